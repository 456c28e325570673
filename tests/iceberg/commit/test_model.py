"""A small model of everybody who changes a table's keys at once, searched exhaustively.

Writers, a rotation, a pruning, an expiry and a rollback each load the table and commit to it, in
every order there is, with retries after conflicts; over the functions that the real ones use, with
two kinds of catalog. Whatever the order, every snapshot that is there opens with its own key, no
append is lost, and no file of a snapshot that is there is deleted. Each rule that sees to it is
broken once, and the search finds what comes of that.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
from iceberg_tables import memory_kms
from pyiceberg.exceptions import CommitFailedException

from ags1 import KeyMetadata
from ags1.errors import Ags1Error
from ags1.iceberg.commit import updates as updates_module
from ags1.iceberg.commit.updates import apply_updates
from ags1.iceberg.operations.expire import ExpiryPlan, expire
from ags1.iceberg.spec.requirements import check_requirements
from ags1.iceberg.spec.table_keys import (
    KeyChange,
    prune,
    restore,
    rotate,
    snapshots_without_keys,
    unmoved_refs,
    with_own_kek,
)
from ags1.iceberg.write.snapshot import key_updates
from ags1.keys import EncryptionManager, KekCache, encryption_keys_to_dicts
from ags1.keys.manager import KEK_LIFETIME_MS

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

NOW = 1_790_000_000_000
DAY = 24 * 60 * 60 * 1000
# A snapshot's file, by the snapshot's id; a snapshot reaches its own and some of those before it.
Files = frozenset[int]


@dataclass(frozen=True)
class Rules:
    """What the rule in ``rotation`` asks for, each part of it to be broken."""

    kek_added_again: bool = True
    refs_unmoved: bool = True
    own_kek: bool = True
    parent_unmoved: bool = True
    restored: bool = True
    base_unchanged: bool = True


@dataclass(frozen=True)
class World:
    """What the catalog and the storage have, after ``history``: who committed, upon which version.

    ``versions`` are the worlds before it. ``secrets`` are what manifest lists were really sealed
    with, ``reached`` which files a snapshot needs; ``pending`` the changes of keys whose answer
    showed snapshots without keys and was not acted upon yet.
    """

    metadata: dict[str, Any]
    secrets: Mapping[int, KeyMetadata]
    reached: Mapping[int, Files]
    history: tuple[tuple[str, int], ...] = ()
    versions: tuple[World, ...] = ()
    done: frozenset[int] = frozenset()
    expired: Files = frozenset()
    deleted: Files = frozenset()
    pending: tuple[tuple[KeyChange, dict[str, Any]], ...] = ()


@dataclass(frozen=True)
class Attempt:
    """What somebody who loaded a version would commit."""

    updates: list[dict[str, Any]]
    requirements: list[dict[str, Any]]
    outcome: KeyChange | ExpiryPlan | None = None
    secrets: Mapping[int, KeyMetadata] = field(default_factory=dict)
    reached: Mapping[int, Files] = field(default_factory=dict)


ALL_RULES = Rules()


class Violation(AssertionError):
    """What must not be, and the history that led there."""


def manager_of(metadata: Mapping[str, Any], now_ms: int = NOW) -> EncryptionManager:
    kms, kek_cache = _kms()
    return EncryptionManager.from_metadata(
        metadata, kms, table_key_id="keyA", clock_ms=lambda: now_ms, cache=kek_cache
    )


@cache
def _kms() -> tuple[Any, KekCache]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kms = memory_kms()
    return kms, KekCache(kms)


def first_world(age_ms: int) -> World:
    """A table of three snapshots, the last of which replaced the others' files, with a KEK of
    ``age_ms``, one that is too old to seal, and a key that nothing needs."""
    metadata: dict[str, Any] = {
        "format-version": 3,
        "table-uuid": "0e1f0d92-5a9c-4b0e-9f5d-0a6f3c1d2e4b",
        "location": "file:///t",
        "last-sequence-number": 3,
        "last-updated-ms": NOW - 3,
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
            }
        ],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"encryption.key-id": "keyA"},
        "current-snapshot-id": 3,
        "next-row-id": 3,
        "refs": {"main": {"snapshot-id": 3, "type": "branch"}},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    kms, kek_cache = _kms()
    too_old = NOW - KEK_LIFETIME_MS - age_ms - DAY
    manager = EncryptionManager(kms, "keyA", clock_ms=lambda: too_old, cache=kek_cache)
    secrets = {}
    for snapshot_id in (1, 2, 3):
        if snapshot_id == 2:
            keys = manager.encryption_keys
            manager = EncryptionManager(
                kms, "keyA", keys, clock_ms=lambda: NOW - age_ms, cache=kek_cache
            )
            manager.add_manifest_list_key(_new_secret())
        secrets[snapshot_id] = _new_secret()
        metadata["snapshots"].append(
            _snapshot(snapshot_id, manager.add_manifest_list_key(secrets[snapshot_id]), NOW - 10)
            | {"sequence-number": snapshot_id, "parent-snapshot-id": snapshot_id - 1 or None}
        )
    del metadata["snapshots"][0]["parent-snapshot-id"]
    metadata["encryption-keys"] = encryption_keys_to_dicts(manager.encryption_keys)
    assert len(manager.key_encryption_keys) == 2
    reached = {1: frozenset({1}), 2: frozenset({1, 2}), 3: frozenset({3})}
    return World(metadata, secrets, reached)


def _new_secret() -> KeyMetadata:
    return KeyMetadata.generate(16).with_file_length(1000)


def _snapshot(snapshot_id: int, key_id: str, timestamp_ms: int) -> dict[str, Any]:
    return {
        "snapshot-id": snapshot_id,
        "timestamp-ms": timestamp_ms,
        "summary": {"operation": "append"},
        "manifest-list": f"file:///t/metadata/snap-{snapshot_id}.avro",
        "schema-id": 0,
        "first-row-id": snapshot_id - 1,
        "added-rows": 1,
        "key-id": key_id,
    }


class Model:
    """One search: the kind of catalog (``swap`` or ``rest``), the rules, the age of the KEK.

    Whoever changes the table may have loaded any of its versions. An attempt that fails leaves the
    catalog as it was, and the retry, upon a later version, is another attempt.
    """

    def __init__(
        self,
        catalog: str,
        rules: Rules = ALL_RULES,
        *,
        kek_age_ms: int = DAY,
        is_empty: bool = False,
    ) -> None:
        self.catalog = catalog
        self.rules = rules
        self.first = first_world(kek_age_ms)
        if is_empty:
            metadata = self.first.metadata | {"snapshots": [], "refs": {}, "next-row-id": 0}
            del metadata["current-snapshot-id"]
            self.first = World(metadata, {}, {})
        self.worlds = self.ends = self.conflicts = 0
        self._opened: dict[Any, KeyMetadata] = {}

    def search(self, *kinds: str) -> None:
        """Go through every order. Raises Violation."""
        waiting = [self.first]
        attempts: dict[tuple[int, Any], Attempt] = {}
        while waiting:
            world = waiting.pop()
            self.worlds += 1
            self.check(world, is_rolled_back="rollback" in kinds)
            self.ends += len(world.done) == len(kinds) and not world.pending
            for i in range(len(world.pending)):
                waiting.append(self._restored(world, i))
            for number, kind in enumerate(kinds):
                if number in world.done:
                    continue
                for base in (*world.versions, world):
                    known = number, base.history
                    if known not in attempts:
                        attempts[known] = self._attempt(base, kind, 100 * (number + 1))
                    try:
                        waiting.append(self._after(world, base, attempts[known], number, kind))
                    except CommitFailedException:
                        assert base is not world, "nobody can commit"
                        self.conflicts += 1

    # -- who commits what

    def _attempt(self, base: World, kind: str, snapshot_id: int) -> Attempt:
        metadata = base.metadata
        if kind.startswith("pruner"):
            return self._append_and_prune(base, kind, snapshot_id)
        if _is_writer(kind):
            return self._append(base, kind, snapshot_id)
        if kind == "rollback":
            return Attempt(*_rollback(metadata))
        outcome: KeyChange | ExpiryPlan
        if kind == "expire":
            outcome = expire(metadata, older_than_ms=NOW - 5, retain_last=1, now_ms=NOW)
        else:
            change = {"rotate": rotate, "prune": prune}[kind]
            outcome = change(metadata, manager_of(metadata))
        requirements = outcome.requirements if self.rules.refs_unmoved else []
        return Attempt(outcome.updates, requirements, outcome)

    def _append(self, world: World, kind: str, snapshot_id: int) -> Attempt:
        base, branch = world.metadata, _branch(kind)
        head, main = _head(base, branch), _head(base, "main")
        parent = head or main
        # Java holds on to the keys that it once loaded, and takes any of its KEKs.
        manager = manager_of(self.first.metadata if kind == "java" else base)
        known = {key.key_id for key in manager.encryption_keys}
        # That there is no main branch is required too, so a first append to it is seen.
        if head is None and branch != "main" and self.rules.own_kek:
            manager = with_own_kek(manager)
        secret = _new_secret()
        key_id = manager.add_manifest_list_key(secret)
        changes: list[dict[str, Any]] = key_updates(manager, key_id)
        if kind == "java":
            keys = encryption_keys_to_dicts(manager.encryption_keys)
            changes = [{"action": "add-encryption-key", "encryption-key": key} for key in keys]
        if not self.rules.kek_added_again:
            changes = [c for c in changes if c["encryption-key"]["key-id"] not in known]
        snapshot = _snapshot(snapshot_id, key_id, NOW) | {
            "sequence-number": base["last-sequence-number"] + 1,
            "first-row-id": base["next-row-id"],
            "parent-snapshot-id": parent,
        }
        changes.append({"action": "add-snapshot", "snapshot": snapshot})
        asserted: dict[str, int | None] = {}
        if branch is not None:
            ref = {"ref-name": branch, "snapshot-id": snapshot_id, "type": "branch"}
            changes.append({"action": "set-snapshot-ref", **ref})
            asserted[branch] = head
        if head is None and self.rules.parent_unmoved:
            asserted["main"] = main
        requirements = [
            {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": found}
            for ref, found in asserted.items()
        ]
        kept = Files() if kind == "overwrite" or parent is None else world.reached[parent]
        reached = {snapshot_id: kept | {snapshot_id}}
        return Attempt(changes, requirements, None, {snapshot_id: secret}, reached)

    def _append_and_prune(self, world: World, kind: str, snapshot_id: int) -> Attempt:
        append = self._append(world, kind, snapshot_id)
        after = apply_updates(world.metadata, append.updates, now_ms=NOW)
        change = prune(after, manager_of(after))
        requirements = append.requirements
        if self.rules.refs_unmoved and change.updates:
            requirements = unmoved_refs(world.metadata) + requirements
        updates = append.updates + change.updates
        return replace(append, updates=updates, requirements=requirements, outcome=change)

    # -- the catalogs, and what follows a commit

    def _after(self, world: World, base: World, attempt: Attempt, number: int, kind: str) -> World:
        updates, requirements = attempt.updates, attempt.requirements
        done, who = world.done | {number}, f"{number} {kind}"
        if not updates:
            return self._next(world, base, who, done=done)
        if self.catalog == "rest":
            check_requirements(world.metadata, requirements)
            if kind == "rollback" and updates[0]["snapshot-id"] in world.expired:
                raise CommitFailedException("there is no such snapshot any more")
            metadata = _as_server(world.metadata, updates)
        else:
            if world is not base and self.rules.base_unchanged:
                raise CommitFailedException("another metadata file is the current one")
            check_requirements(base.metadata, requirements)
            metadata = apply_updates(base.metadata, updates, now_ms=NOW)
        after = self._next(
            world,
            base,
            who,
            metadata=metadata,
            secrets={**world.secrets, **attempt.secrets},
            reached={**world.reached, **attempt.reached},
            done=done,
        )
        if isinstance(attempt.outcome, ExpiryPlan):
            live = {snapshot["snapshot-id"] for snapshot in metadata["snapshots"]}
            gone = set(attempt.outcome.snapshot_ids) - live
            files = _union(after.reached, gone) - _union(after.reached, live)
            after = replace(after, expired=after.expired | gone, deleted=after.deleted | files)
        elif attempt.outcome and self.rules.restored and snapshots_without_keys(metadata):
            after = replace(after, pending=(*after.pending, (attempt.outcome, metadata)))
        return after

    def _restored(self, world: World, number: int) -> World:
        """The world once somebody has put back the keys that the answer to their commit lacked."""
        change, answer = world.pending[number]
        updates = restore(answer, change.removed)
        return self._next(
            world,
            world,
            "restore",
            metadata=_as_server(world.metadata, updates),
            pending=world.pending[:number] + world.pending[number + 1 :],
        )

    def _next(self, world: World, base: World, who: str, **changes: Any) -> World:
        return replace(
            world,
            history=(*world.history, (who, len(base.history))),
            versions=(*world.versions, world),
            **changes,
        )

    # -- what has to be true

    def check(self, world: World, *, is_rolled_back: bool) -> None:
        metadata, secrets = world.metadata, world.secrets
        there = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
        for name, ref in metadata["refs"].items():
            if ref["snapshot-id"] not in there:
                raise Violation(f"{name} is at a snapshot that is not there", world.history)
        if "main" in self.first.metadata["refs"] and "main" not in metadata["refs"]:
            raise Violation("there is no main branch", world.history)
        if secrets.keys() - there.keys() - world.expired:
            raise Violation("a snapshot was lost", world.history)
        for snapshot_id in there:
            if world.reached[snapshot_id] & world.deleted:
                raise Violation("a snapshot's file was deleted", world.history)
        if is_rolled_back and world.pending:
            # The one case where keys are missed for a moment.
            return
        for snapshot_id, snapshot in there.items():
            try:
                opened = self._key(metadata, snapshot["key-id"])
            except Ags1Error as error:
                raise Violation("a snapshot does not open", world.history) from error
            if opened != secrets[snapshot_id]:
                raise Violation("a snapshot has another's key", world.history)

    def _key(self, metadata: Mapping[str, Any], key_id: str) -> KeyMetadata:
        """Return a manifest list's key. Those of one list of keys are opened once."""
        parts = "key-id", "encrypted-key-metadata", "encrypted-by-id"
        known = key_id, *(key.get(part) for key in metadata["encryption-keys"] for part in parts)
        if known not in self._opened:
            self._opened[known] = manager_of(metadata).manifest_list_key(key_id)
        return self._opened[known]


def _union(reached: Mapping[int, Files], snapshot_ids: Iterable[int]) -> Files:
    return Files().union(*(reached[i] for i in snapshot_ids))


def _as_server(metadata: dict[str, Any], changes: list[dict[str, Any]]) -> dict[str, Any]:
    """Apply updates as a REST server does, which does not look at what keys are for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates_module._Table, "_check_keys", lambda self: None)
        return apply_updates(metadata, changes, now_ms=NOW)


def _is_writer(kind: str) -> bool:
    return kind.startswith(("append", "overwrite", "stage", "java", "pruner"))


def _branch(kind: str) -> str | None:
    """The branch that a writer writes to, e.g. ``append b``; None for a staged snapshot."""
    return None if kind == "stage" else [*kind.split(), "main"][1]


def _head(metadata: Mapping[str, Any], branch: str | None) -> int | None:
    ref = metadata["refs"].get(branch)
    return None if ref is None else ref["snapshot-id"]


def _rollback(base: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in base["snapshots"]}
    parent = snapshots[_head(base, "main")].get("parent-snapshot-id")
    if parent not in snapshots:
        return [], []
    change = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
    return [change | {"snapshot-id": parent}], unmoved_refs(base)


# -- with every rule

KEEPERS = ("rotate", "prune", "expire")


# Of `make test`: the same writers, whose pointer is swapped.
@pytest.mark.slow_variants(r".*-rest")
@pytest.mark.parametrize("catalog", ["swap", "rest"])
@pytest.mark.parametrize("writers", [("append", "append"), ("append", "append b")])
def test_two_writers_rotation_pruning_and_expiry(catalog: str, writers: tuple[str, str]) -> None:
    model = Model(catalog)
    model.search(*writers, *KEEPERS)
    # A swapped pointer puts all commits in one order; a server takes more than that.
    assert model.ends == 120 if catalog == "swap" else model.ends > 1000
    assert model.conflicts > 900


# Of `make test`: the newest KEK, both ways to commit; but for the longest searches.
@pytest.mark.slow_variants(r".*-old kek", r"append (b append b|rotate) rotate prune-rest-.*")
@pytest.mark.parametrize("kek_age_ms", [DAY, KEK_LIFETIME_MS + DAY], ids=["kek", "old kek"])
@pytest.mark.parametrize("catalog", ["swap", "rest"])
@pytest.mark.parametrize(
    "kinds",
    [
        ("append", "append b", "rotate", "expire"),
        ("append", "stage", "rotate", "prune"),
        ("append b", "append b", "rotate", "prune"),
        ("append b", "overwrite", "rollback", "expire"),
        ("append", "rollback", "rotate", "expire"),
        ("append", "rollback", "prune"),
        ("append", "rotate", "rotate", "prune"),
        ("java", "append", "rotate", "prune"),
        ("java", "append b", "rotate"),
        ("pruner", "append", "rotate", "expire"),
        ("pruner", "append b", "rollback", "rotate"),
        ("pruner b", "pruner", "rotate", "expire"),
        ("java", "pruner", "pruner b", "rotate"),
    ],
    ids=" ".join,
)
def test_others(kinds: tuple[str, ...], catalog: str, kek_age_ms: int) -> None:
    Model(catalog, kek_age_ms=kek_age_ms).search(*kinds)


@pytest.mark.parametrize("writers", [("append", "append"), ("append", "append b"), ("stage",)])
@pytest.mark.parametrize("catalog", ["swap", "rest"])
def test_a_table_with_keys_and_no_snapshots(catalog: str, writers: tuple[str, ...]) -> None:
    Model(catalog, is_empty=True).search(*writers, "rotate", "prune")


def test_the_table_of_the_model_has_what_there_is_to_lose() -> None:
    first = first_world(DAY)
    manager = manager_of(first.metadata)
    assert len(manager.key_encryption_keys) == 2
    removed = {key.key_id for key in prune(first.metadata, manager).removed}
    assert len(removed) == 1
    plan = expire(first.metadata, older_than_ms=NOW - 5, retain_last=1, now_ms=NOW)
    assert plan.snapshot_ids == (1, 2)


# -- with a rule broken


@pytest.mark.parametrize(
    ("broken", "kinds", "found"),
    [
        ("kek_added_again", ("append", "rotate"), "does not open"),
        ("kek_added_again", ("append", "prune", "rotate"), "does not open"),
        ("refs_unmoved", ("append", "rotate"), "does not open"),
        ("refs_unmoved", ("rollback", "expire"), "no main branch"),
        ("own_kek", ("append b", "rotate"), "does not open"),
        ("own_kek", ("stage", "rotate"), "does not open"),
        ("own_kek", ("append b", "rotate", "prune"), "does not open"),
        ("parent_unmoved", ("append b", "rollback", "expire"), "file was deleted"),
        ("parent_unmoved", ("stage", "rollback", "expire"), "file was deleted"),
        ("restored", ("append", "rollback", "rotate"), "does not open"),
    ],
)
def test_a_rule_broken_at_a_rest_server(broken: str, kinds: tuple[str, ...], found: str) -> None:
    Model("rest").search(*kinds)
    with pytest.raises(Violation, match=found):
        Model("rest", replace(ALL_RULES, **{broken: False})).search(*kinds)


def test_a_first_snapshot_that_no_rotation_sees() -> None:
    with pytest.raises(Violation, match="does not open"):
        Model("rest", Rules(own_kek=False), is_empty=True).search("append b", "rotate")


def test_a_pointer_that_is_not_compared() -> None:
    with pytest.raises(Violation, match="was lost"):
        Model("swap", Rules(base_unchanged=False)).search("append", "append")
    with pytest.raises(Violation, match="was lost"):
        Model("swap", Rules(base_unchanged=False)).search("append", "rotate")


OTHER_RULES = [rule for rule in vars(ALL_RULES) if rule != "base_unchanged"]


# Of `make test`: without any of them.
@pytest.mark.slow_variants("(?!all).*")
@pytest.mark.parametrize("broken", ["all", *OTHER_RULES])
def test_a_swapped_pointer_needs_no_other_rule(broken: str) -> None:
    rules = replace(ALL_RULES, **{rule: False for rule in OTHER_RULES if broken in ("all", rule)})
    Model("swap", rules).search("append", "append b", *KEEPERS)
    Model("swap", rules).search("append", "rollback", "rotate", "expire")
