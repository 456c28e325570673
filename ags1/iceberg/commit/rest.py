"""``RestCommits``: commits to a server of the REST protocol, which applies the updates itself.

Only the requirements tell two writers apart, and the server may not know of encryption keys. So
every commit is built and checked like this::

    create   1. the table without snapshots     are its keys in the answer? if not, drop the table
             2. snapshots and their keys        as a commit
    commit   1. the table's first keys alone    are they in the answer? if not, refuse
             2. keys that wrap the sent keys, then the updates
             3. are all needed keys in the answer? if another writer or this commit removed one,
                add it again

If an answer was lost, the server is asked for the table: snapshot IDs and sequence numbers show
whether the commit was made. Follows the REST specification and Java's ``RESTTableOperations`` and
``CatalogHandlers``. ``docs/design/0006-keys-over-rest.md`` has the reasons. Independent of metadata
files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, TypeAlias

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.typedef import Identifier, Properties

from ...keys.envelope import EncryptedKey
from ...keys.manager import TABLE_KEY_ID, now_ms
from ..pyiceberg.rest import (
    NotSentError,
    ask_rest_server,
    check_rest_commits,
    post_to_rest_server,
    refused_by_rest_server,
    register_rest_table,
    snapshot_loading_mode,
    stage_rest_table,
)
from ..read.metadata import table_key_id
from ..spec.constants import MAIN_BRANCH
from ..spec.requirements import check_requirements
from ..spec.table_keys import needed_keys, restore
from ..storage.output import TableOutput
from ..storage.trust import Trust
from .base import Base, TableConfig, rest_base
from .commits import Commits, NewLocation, Update, check_still_encrypted, plain_dicts
from .outcome import after_commit, not_committed, was_committed
from .updates import apply_updates

_log = logging.getLogger(__name__)

# A table's metadata as the server has it, and its location, which may be empty.
_Current: TypeAlias = "tuple[dict[str, Any], str]"

# Updates of a new table that wait until the server has its keys.
_OF_SNAPSHOTS = ("add-snapshot", "set-snapshot-ref", "remove-snapshots", "remove-snapshot-ref")
_FORMAT_VERSION = {"format-version": "3"}
_NO_SNAPSHOT = {"type": "assert-ref-snapshot-id", "ref": MAIN_BRANCH, "snapshot-id": None}
_DONE = (200, 201)
_NOT_FOUND, _CONFLICT, _TOO_MANY = 404, 409, 429
# Some servers answer with these if the updates fitted the base, but another commit came first.
_MAY_BE_CONFLICTS = (400, 422)
# How often keys that a server's answer lacks are looked for and added again.
_TRIES = 4


class RestCommits(Commits):
    """Commits to the tables of a RestCatalog."""

    has_server = True
    parses_renamed = True

    def check_writable(self) -> None:
        super().check_writable()
        check_rest_commits(self.catalog)

    def read(
        self, identifier: str | Identifier, trust: Trust, *, as_pyiceberg: bool = False
    ) -> Base:
        mode = snapshot_loading_mode(self.catalog) if as_pyiceberg else None
        answer = ask_rest_server(self.catalog, identifier, mode)
        if mode == "refs" and answer[0].get("properties", {}).get(TABLE_KEY_ID):
            # Keys whose snapshots are missing from the answer would be pruned.
            answer = ask_rest_server(self.catalog, identifier)
        return rest_base(self.catalog, Catalog.identifier_to_tuple(identifier), answer, trust)

    def register_by_server(
        self, identifier: str | Identifier, location: str, overwrite: bool
    ) -> Base:
        answer = register_rest_table(self.catalog, identifier, location, overwrite)
        return rest_base(self.catalog, Catalog.identifier_to_tuple(identifier), answer, Trust())

    def new_location(
        self,
        identifier: str | Identifier,
        location: str | None,
        schema: Schema,
        properties: Properties,
    ) -> NewLocation:
        # The server stages the table: it answers with a location and credentials, and forgets it.
        name = Catalog.identifier_to_tuple(identifier)
        request = {
            "name": name[-1],
            "location": location and location.rstrip("/"),
            "schema": json.loads(assign_fresh_schema_ids(schema).model_dump_json()),
            "stage-create": True,
            "properties": {k: str(v) for k, v in {**_FORMAT_VERSION, **properties}.items()},
        }
        metadata, _, config, storage = stage_rest_table(self.catalog, name, request)
        location = str(location or metadata["location"]).rstrip("/")
        return NewLocation(location, TableConfig(config, storage))

    def commit(
        self,
        base: Base,
        updates: Sequence[Mapping[str, Any]],
        requirements: Sequence[Mapping[str, Any]],
        output: TableOutput,
        *,
        new_key_id: str | None = None,
    ) -> Base:
        sent, required = plain_dicts(updates), plain_dicts(requirements)
        check_requirements(base.metadata, required)
        if not sent:
            return base
        expected = self._updated(base, sent, new_key_id)
        trust = replace(base.trust, key_id=new_key_id or base.trust.key_id)
        if any(update["action"] == "remove-encryption-key" for update in sent):
            required += _same_refs(base.metadata, required)
        required = _same_table(base.metadata, required)
        if not base.metadata.get("encryption-keys"):
            first = [update for update in sent if _is_wrapped_by_master(update, expected)]
            if first:
                self._commit_first_keys(base, first)
        sent = [*_wrapping_keys(base.metadata, sent), *sent]
        current = self._send(base, sent, required)
        return self._confirmed(replace(base, trust=trust), current, expected, sent)

    def create(
        self,
        identifier: str | Identifier,
        updates: Sequence[Mapping[str, Any]],
        output: TableOutput,
        *,
        new_location: NewLocation | None = None,
    ) -> Base:
        name = Catalog.identifier_to_tuple(identifier)
        sent = plain_dicts(updates)
        expected = apply_updates(None, sent, now_ms=now_ms())
        new_location = new_location or NewLocation(expected["location"])
        self._refuse_redirection(expected, new_location.config, new_location.location)
        key_id = (expected.get("properties") or {}).get(TABLE_KEY_ID) or None
        check_still_encrypted({}, expected, key_id)
        later = [update for update in sent if _depends_on_keys(update, expected)]
        now = [update for update in sent if update not in later]
        base = Base(name, expected, "", Trust(key_id, is_from_server=True), new_location.config)
        metadata, location = self._send(base, now, [{"type": "assert-create"}], is_new=True)
        created = replace(base, metadata=metadata, location=location)
        try:
            self.check(created)
            if _lost_keys(metadata, expected, set(_added_keys(now))):
                raise _server_loses_keys(name)
            return self.commit(created, later, [_NO_SNAPSHOT], output)
        except CommitStateUnknownException:
            raise
        except BaseException:
            self._undo(created)
            raise

    def _ask(self, identifier: Identifier) -> _Current:
        return ask_rest_server(self.catalog, identifier)[:2]

    def _send(
        self, base: Base, updates: list[Update], requirements: list[Update], *, is_new: bool = False
    ) -> _Current:
        """Send a commit; return what is current then. Raises as ``commit`` and ``create``."""
        name = ".".join(base.identifier)
        body = {
            "identifier": {"namespace": base.identifier[:-1], "name": base.identifier[-1]},
            "requirements": requirements,
            "updates": updates,
        }
        try:
            response = post_to_rest_server(self.catalog, base.identifier, base.config.config, body)
            if response.status_code in _DONE:
                answer = response.json()
                return dict(answer["metadata"]), str(answer.get("metadata-location") or "")
        except NotSentError as error:
            raise CommitFailedException(f"{name}: the server cannot be reached") from error
        except BaseException as error:
            return self._without_answer(base, updates, requirements, error, is_new=is_new)
        status = response.status_code
        if status < 400:
            # A proxy redirects the request.
            raise OSError(f"{name}: the server answers a commit with status {status}")
        refusal = refused_by_rest_server(response)
        if status >= 500:
            return self._without_answer(base, updates, requirements, refusal, is_new=is_new)
        if status == _CONFLICT and is_new:
            raise TableAlreadyExistsError(f"Table {name} already exists") from refusal
        if status == _NOT_FOUND and is_new:
            raise NoSuchNamespaceError(str(refusal)) from refusal
        if status in (_CONFLICT, _TOO_MANY) or (
            status in _MAY_BE_CONFLICTS and not is_new and self._has_moved_on(base)
        ):
            raise CommitFailedException(f"{name}: {refusal}") from refusal
        raise refusal

    def _has_moved_on(self, base: Base) -> bool:
        """Return whether there were other commits since ``base``."""
        try:
            current, _ = self._ask(base.identifier)
        except Exception:
            return False
        # Keys are left out: they may be this writer's first.
        ignored = {"encryption-keys": None, "metadata-log": None, "last-updated-ms": None}
        return {**current, **ignored} != {**base.metadata, **ignored}

    def _without_answer(
        self,
        base: Base,
        updates: list[Update],
        requirements: list[Update],
        error: BaseException,
        *,
        is_new: bool,
    ) -> _Current:
        """Return what is current if a commit that ended in ``error`` was made. Otherwise raise as
        ``commit`` and ``create``."""
        current: _Current = {}, ""

        def ask() -> bool | None:
            nonlocal current
            try:
                current = self._ask(base.identifier)
            except NoSuchTableError:
                return None
            if is_new:
                return bool(current[0]["table-uuid"] == base.metadata["table-uuid"])
            return _shows(current[0], base.metadata, updates, requirements)

        if was_committed(base.identifier, base.metadata, error, ask):
            return current
        if not isinstance(error, Exception):
            raise error
        if is_new:
            raise TableAlreadyExistsError(
                f"Table {'.'.join(base.identifier)} already exists"
            ) from error
        raise not_committed(base.identifier, error) from error

    def _commit_first_keys(self, base: Base, first: list[Update]) -> None:
        """Commit a table's first keys alone. Raises NotImplementedError if the server loses
        them."""
        try:
            metadata, _ = self._send(base, first, _same_table(base.metadata, []))
        except CommitStateUnknownException as error:
            # The commit itself was not sent yet.
            raise CommitFailedException(str(error)) from error
        expected = apply_updates(base.metadata, first, now_ms=now_ms())
        if _lost_keys(metadata, expected, set(_added_keys(first))):
            raise _server_loses_keys(base.identifier)

    def _confirmed(
        self, base: Base, current: _Current, expected: Mapping[str, Any], sent: list[Update]
    ) -> Base:
        """Return the base after the commit ``sent`` upon ``base``, once its keys are seen in the
        answer ``current``: the sent ones, and those that snapshots need.

        ``expected`` is the metadata that the commit was to make. Another writer may have removed a
        key that this commit relied on, or may need one that this commit has removed; then it is
        added again. Raises CommitStateUnknownException, because the commit was made.
        """
        metadata, location = current
        added = set(_added_keys(sent))
        kept = {entry["key-id"] for entry in expected.get("encryption-keys") or ()}
        entries = base.metadata.get("encryption-keys") or ()
        removed = [EncryptedKey.from_dict(e) for e in entries if e["key-id"] not in kept]
        with after_commit(base.identifier):
            for _ in range(_TRIES):
                lost = _lost_keys(metadata, expected, added)
                again = [*_replacing(metadata, lost), *restore(metadata, removed)]
                if not again:
                    break
                try:
                    metadata, location = self._send(base, again, _same_table(metadata, []))
                except CommitFailedException:
                    # Another writer was first. The keys may be needed by its snapshot only.
                    metadata, location = self._ask(base.identifier)
            else:
                raise _server_loses_keys(base.identifier)
            trust = replace(base.trust, metadata_sha256=None, is_from_server=True)
            table_key_id(metadata, trust, location)
        return replace(base, metadata=metadata, location=location, trust=trust)

    def _undo(self, created: Base) -> None:
        """Drop a table that was just created, unless another writer has committed to it."""
        name = ".".join(created.identifier)
        try:
            if self._ask(created.identifier)[1] == created.location:
                self.catalog.drop_table(created.identifier)
                return
            _log.warning("%s is not dropped: another writer has committed to it", name)
        except Exception as error:
            _log.warning("%s is left behind: %s", name, type(error).__name__)


def _shows(
    current: Mapping[str, Any],
    before: Mapping[str, Any],
    updates: list[Update],
    requirements: list[Update],
) -> bool | None:
    """Return whether a table's current metadata shows that updates were committed upon ``before``;
    None if it shows neither."""
    if current["table-uuid"] != before["table-uuid"]:
        return None
    added = {u["snapshot"]["snapshot-id"]: u["snapshot"] for u in updates if _adds_snapshot(u)}
    if added:
        others = {s["snapshot-id"]: s for s in current.get("snapshots") or ()}
        if added.keys() <= others.keys():
            return True
        # No two snapshots have the same sequence number. If another one has ours, the server will
        # never accept ours.
        taken = {s["sequence-number"] for i, s in others.items() if i not in added}
        return None if taken.isdisjoint(s["sequence-number"] for s in added.values()) else False
    try:
        changed = apply_updates(dict(current), updates, now_ms=current["last-updated-ms"])
        if _comparable(changed) == _comparable(current):
            return True
        check_requirements(dict(current), requirements)
    except CommitFailedException:
        return False
    except Exception:
        return None
    return None


def _comparable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    keys = {entry["key-id"]: _content(entry) for entry in metadata.get("encryption-keys") or ()}
    return {**metadata, "encryption-keys": keys, "last-updated-ms": None}


def _lost_keys(
    metadata: Mapping[str, Any], expected: Mapping[str, Any], sent: Set[str]
) -> list[dict[str, Any]]:
    """Return the keys of ``expected`` that are missing from a server's metadata: those that were
    ``sent``, and those that something in the metadata needs."""
    known = {entry["key-id"]: entry for entry in expected.get("encryption-keys") or ()}
    held = {entry["key-id"]: entry for entry in metadata.get("encryption-keys") or ()}
    lost = {i for i in sent if i in known and _content(held.get(i)) != _content(known[i])}
    if known.keys() - held.keys():
        keys = list((known | held).values())
        lost |= needed_keys({**metadata, "encryption-keys": keys}) - held.keys()
    return [known[key_id] for key_id in sorted(lost)]


def _content(entry: Mapping[str, Any] | None) -> tuple[Any, ...] | None:
    if entry is None:
        return None
    properties = entry.get("properties") or {}
    return entry["encrypted-key-metadata"], entry.get("encrypted-by-id"), properties


def _replacing(metadata: Mapping[str, Any], lost: list[dict[str, Any]]) -> Iterator[Update]:
    """Yield updates that add keys again, in place of other keys with the same IDs."""
    held = {entry["key-id"] for entry in metadata.get("encryption-keys") or ()}
    for entry in lost:
        if entry["key-id"] in held:
            yield {"action": "remove-encryption-key", "key-id": entry["key-id"]}
        yield {"action": "add-encryption-key", "encryption-key": entry}


def _wrapping_keys(metadata: Mapping[str, Any], sent: list[Update]) -> list[Update]:
    """Return updates that add again the keys that wrap keys in ``sent``, as Java sends them.
    Another writer may be removing them. A server that has them ignores the updates."""
    held = {entry["key-id"]: entry for entry in metadata.get("encryption-keys") or ()}
    removed = {u["key-id"] for u in sent if u["action"] == "remove-encryption-key"}
    added = _added_keys(sent)
    parents = {entry["encrypted-by-id"] for entry in added.values()}
    return [
        {"action": "add-encryption-key", "encryption-key": held[key_id]}
        for key_id in sorted((parents & held.keys()) - removed - added.keys())
    ]


def _added_keys(updates: list[Update]) -> dict[str, dict[str, Any]]:
    return {
        u["encryption-key"]["key-id"]: u["encryption-key"]
        for u in updates
        if u["action"] == "add-encryption-key"
    }


def _same_table(metadata: Mapping[str, Any], required: list[Update]) -> list[Update]:
    if any(r["type"] == "assert-table-uuid" for r in required):
        return required
    return [{"type": "assert-table-uuid", "uuid": metadata["table-uuid"]}, *required]


def _same_refs(metadata: Mapping[str, Any], required: list[Update]) -> list[Update]:
    """Return requirements that no branch has moved, for the branches that ``required`` leaves out.
    A new snapshot of another writer may need a key that this commit removes."""
    stated = {r.get("ref") for r in required if r["type"] == "assert-ref-snapshot-id"}
    refs = {MAIN_BRANCH: None} | {
        name: ref["snapshot-id"] for name, ref in (metadata.get("refs") or {}).items()
    }
    return [
        {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": snapshot_id}
        for name, snapshot_id in refs.items()
        if name not in stated
    ]


def _is_wrapped_by_master(update: Update, metadata: Mapping[str, Any]) -> bool:
    master = (metadata.get("properties") or {}).get(TABLE_KEY_ID)
    if update["action"] != "add-encryption-key":
        return False
    return bool(update["encryption-key"].get("encrypted-by-id") == master)


def _adds_snapshot(update: Update) -> bool:
    return bool(update["action"] == "add-snapshot")


def _depends_on_keys(update: Update, metadata: Mapping[str, Any]) -> bool:
    """Return whether an update of a new table has to wait until the server has its first key."""
    if update["action"] == "add-encryption-key":
        return not _is_wrapped_by_master(update, metadata)
    return update["action"] in _OF_SNAPSHOTS


def _server_loses_keys(identifier: Identifier) -> NotImplementedError:
    return NotImplementedError(
        f"{'.'.join(identifier)}: the REST server does not keep a table's encryption keys, so "
        "encrypted data could never be read. Use a server that supports Iceberg's table encryption"
    )
