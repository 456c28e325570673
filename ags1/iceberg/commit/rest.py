"""``RestCommits``: commits to a server of the REST protocol, which applies the updates itself.

The server has nothing but the requirements to tell two writers apart, and may be one that does not
know of encryption keys. So a table's first key is committed alone and looked for in the answer, a
snapshot's keys are sent with it each time, and the keys of all snapshots are looked for in every
answer. Where an answer was lost, snapshots and their sequence numbers tell what became of the
commit. Follows the REST specification and Java's ``RESTTableOperations`` and ``CatalogHandlers``.
Knows nothing of metadata files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.typedef import Identifier, Properties

from ...keys.manager import TABLE_KEY_ID, now_ms
from ..pyiceberg.rest import (
    NotSentError,
    ask_rest_server,
    check_rest_commits,
    post_to_rest_server,
    refused_by_rest_server,
    stage_rest_table,
)
from ..read.metadata import read_metadata, table_key_id
from ..spec.constants import MAIN_BRANCH
from ..spec.requirements import check_requirements
from ..spec.table_keys import needed_keys
from ..storage.output import TableOutput
from ..storage.trust import Trust, rest_trust
from .commits import Base, Commits, NewLocation, ask_again, check_still_encrypted, plain_dicts
from .updates import apply_updates

_log = logging.getLogger(__name__)

Update = dict[str, Any]

# Updates of a new table that are sent once its keys are known to be kept.
_OF_SNAPSHOTS = (
    "add-snapshot",
    "set-snapshot-ref",
    "remove-snapshots",
    "remove-snapshot-ref",
)
_FORMAT_VERSION = {"format-version": "3"}
_NO_SNAPSHOT = {"type": "assert-ref-snapshot-id", "ref": MAIN_BRANCH, "snapshot-id": None}
# Of a server that did not do what it was asked to: a lost race, another client's turn, its rules.
_DONE = (200, 201)
_NOT_FOUND, _CONFLICT, _TOO_MANY = 404, 409, 429
_MAY_BE_CONFLICTS = (400, 422)


class RestCommits(Commits):
    """Commits to the tables of a RestCatalog. Raises NotImplementedError for a server that has no
    commits."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        check_rest_commits(catalog)

    def load(self, identifier: str | Identifier, trust: Trust) -> Base:
        base = self._ask(Catalog.identifier_to_tuple(identifier), trust)
        self.check(base)
        return base

    def new_location(
        self,
        identifier: str | Identifier,
        location: str | None,
        schema: Schema,
        properties: Properties,
    ) -> NewLocation:
        # The server stages the table: it says where and with which credentials, and forgets it.
        name = Catalog.identifier_to_tuple(identifier)
        request = {
            "name": name[-1],
            "location": location and location.rstrip("/"),
            "schema": json.loads(assign_fresh_schema_ids(schema).model_dump_json()),
            "stage-create": True,
            "properties": {k: str(v) for k, v in {**_FORMAT_VERSION, **properties}.items()},
        }
        metadata, _, config, storage = stage_rest_table(self.catalog, name, request)
        return NewLocation(str(location or metadata["location"]).rstrip("/"), config, storage)

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
        after = self._next(base, sent, new_key_id, _time_after(base.metadata))
        trust = replace(base.trust, key_id=new_key_id or base.trust.key_id)
        if any(update["action"] == "remove-encryption-key" for update in sent):
            required += _same_refs(base.metadata, required)
        required = _same_table(base.metadata, required)
        if not base.metadata.get("encryption-keys"):
            first = [update for update in sent if _is_wrapped_by_master(update, after)]
            if first:
                self._commit_first_keys(base, first)
        sent = [*_kept_alive(base.metadata, sent), *sent]
        answer = self._commit(base, sent, required)
        return self._accepted(base, answer, after, set(_added_keys(sent)), trust)

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
        after = apply_updates(None, sent, now_ms=now_ms())
        new_location = new_location or NewLocation(after["location"])
        self._refuse_foreign_code(new_location, after)
        trust = Trust((after.get("properties") or {}).get(TABLE_KEY_ID) or None, is_server_s=True)
        check_still_encrypted({}, after, trust.key_id)
        # What depends on keys waits until the server has shown that it keeps them.
        later = [update for update in sent if _depends_on_keys(update, after)]
        begun = [update for update in sent if update not in later]
        base = Base(name, after, "", trust, new_location.config, new_location.storage)
        metadata, location = self._commit(base, begun, [{"type": "assert-create"}], is_new=True)
        made = replace(base, metadata=metadata, location=location)
        try:
            self.check(made)
            if _lost(metadata, after, set(_added_keys(begun))):
                raise _loses_keys(name)
            return self.commit(made, later, [_NO_SNAPSHOT], output)
        except CommitStateUnknownException:
            raise
        except BaseException:
            self._undo(made)
            raise

    def _ask(self, identifier: Identifier, trust: Trust) -> Base:
        metadata, location, config, storage = ask_rest_server(self.catalog, identifier)
        trust = rest_trust(trust, metadata)
        if trust.metadata_sha256 is not None:
            # The hash is of the file: then the file it is, and not a server's word.
            io = load_file_io({**self.catalog.properties, **storage}, location)
            metadata = read_metadata(io, location, trust)
        return Base(identifier, metadata, location, trust, config, storage)

    def _commit(
        self,
        base: Base,
        updates: list[Update],
        requirements: list[Update],
        *,
        is_new: bool = False,
    ) -> tuple[dict[str, Any], str]:
        """Send a commit; return the metadata that came of it, and the location of that. Raises as
        ``commit`` and ``create``."""
        name = ".".join(base.identifier)
        body = {
            "identifier": {"namespace": base.identifier[:-1], "name": base.identifier[-1]},
            "requirements": requirements,
            "updates": updates,
        }
        try:
            response = post_to_rest_server(self.catalog, base.identifier, base.config, body)
            if response.status_code in _DONE:
                answer = response.json()
                return dict(answer["metadata"]), str(answer.get("metadata-location") or "")
        except NotSentError as error:
            raise CommitFailedException(f"{name}: the server cannot be reached") from error
        except BaseException as error:
            return self._settle(base, updates, requirements, error, is_new=is_new)
        status = response.status_code
        if status < 400:
            # A proxy's word, that somebody else is to be asked.
            raise OSError(f"{name}: the server answers a commit with status {status}")
        refusal = refused_by_rest_server(response)
        if status >= 500:
            return self._settle(base, updates, requirements, refusal, is_new=is_new)
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
        """Whether there were other commits since: updates that fitted the base may not fit now."""
        try:
            current = self._ask(base.identifier, Trust()).metadata
        except Exception:
            return False
        # But for the keys, which may be this writer's first.
        ignored = {"encryption-keys": None, "metadata-log": None, "last-updated-ms": None}
        return {**current, **ignored} != {**base.metadata, **ignored}

    def _settle(
        self,
        base: Base,
        updates: list[Update],
        requirements: list[Update],
        error: BaseException,
        *,
        is_new: bool,
    ) -> tuple[dict[str, Any], str]:
        """Return the table's metadata when a commit whose answer is lost was made; else raise."""
        name = ".".join(base.identifier)
        found: list[Base] = []

        def was_made() -> bool | None:
            try:
                fresh = self._ask(base.identifier, Trust())
            except NoSuchTableError:
                return None
            found[:] = [fresh]
            if is_new:
                return bool(fresh.metadata["table-uuid"] == base.metadata["table-uuid"])
            return _was_made(fresh.metadata, base.metadata, updates, requirements)

        try:
            made = ask_again(was_made, base.metadata)
        except BaseException:
            # A second Ctrl-C. The first question was not answered yet.
            made = None
        if made is None:
            raise CommitStateUnknownException(
                f"nobody can tell whether a commit of {name} was made: {type(error).__name__}"
            ) from error
        if not isinstance(error, Exception):
            if made:
                raise CommitStateUnknownException(
                    f"a commit of {name} was made, and interrupted afterwards"
                ) from error
            raise error
        if made:
            return found[0].metadata, found[0].location
        if is_new:
            raise TableAlreadyExistsError(f"Table {name} already exists") from error
        raise CommitFailedException(
            f"a commit of {name} was not made: {type(error).__name__}"
        ) from error

    def _commit_first_keys(self, base: Base, first: list[Update]) -> None:
        """Commit a table's first keys alone. Raises NotImplementedError when they are lost."""
        try:
            metadata, _ = self._commit(base, first, _same_table(base.metadata, []))
        except CommitStateUnknownException as error:
            # What matters was not sent yet.
            raise CommitFailedException(str(error)) from error
        sent = {update["encryption-key"]["key-id"] for update in first}
        after = apply_updates(base.metadata, first, now_ms=_time_after(base.metadata))
        if _lost(metadata, after, sent):
            raise _loses_keys(base.identifier)

    def _accepted(
        self,
        base: Base,
        answer: tuple[dict[str, Any], str],
        after: Mapping[str, Any],
        sent: set[str],
        trust: Trust,
    ) -> Base:
        """Return the base that a commit has made, once its keys are seen in the answer: those of
        the ids ``sent``, and those that snapshots need. ``after`` is what it was to be.

        Another writer may have taken out a key that this commit had relied on: it is put back.
        Raises CommitStateUnknownException, for the commit was made.
        """
        metadata, location = answer
        try:
            lost = _lost(metadata, after, sent)
            if lost:
                again = list(_put_back(metadata, lost))
                metadata, location = self._commit(base, again, _same_table(metadata, []))
                if _lost(metadata, after, sent):
                    raise _loses_keys(base.identifier)
            trust = replace(trust, metadata_sha256=None, is_server_s=True)
            table_key_id(metadata, trust, location)
        except CommitStateUnknownException:
            raise
        except BaseException as error:
            raise CommitStateUnknownException(
                f"a commit of {'.'.join(base.identifier)} was made, and then: {error}"
            ) from error
        return replace(base, metadata=metadata, location=location, trust=trust)

    def _undo(self, made: Base) -> None:
        """Drop a table that was just created, if nobody has written to it."""
        name = ".".join(made.identifier)
        try:
            if self._ask(made.identifier, Trust()).location == made.location:
                self.catalog.drop_table(made.identifier)
                return
            _log.warning("%s is left behind: somebody wrote to it", name)
        except Exception as error:
            _log.warning("%s is left behind: %s", name, type(error).__name__)


def _time_after(metadata: Mapping[str, Any]) -> int:
    """Return the time in ms, or the server's where its clock is ahead."""
    return max(now_ms(), int(metadata["last-updated-ms"]))


def _was_made(
    current: Mapping[str, Any],
    before: Mapping[str, Any],
    updates: list[Update],
    requirements: list[Update],
) -> bool | None:
    """Whether a table's metadata shows that updates were committed, None if it cannot tell."""
    if current["table-uuid"] != before["table-uuid"]:
        return None
    added = {u["snapshot"]["snapshot-id"]: u["snapshot"] for u in updates if _adds_snapshot(u)}
    if added:
        others = {s["snapshot-id"]: s for s in current.get("snapshots") or ()}
        if added.keys() <= others.keys():
            return True
        # No two snapshots have one sequence number, so the server will never take these.
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


def _lost(
    metadata: Mapping[str, Any], after: Mapping[str, Any], sent: Set[str]
) -> list[dict[str, Any]]:
    """Return the keys of ``after`` that a server's metadata lacks: those that something in it needs
    and those that were ``sent``."""
    known = {entry["key-id"]: entry for entry in after.get("encryption-keys") or ()}
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


def _put_back(metadata: Mapping[str, Any], lost: list[dict[str, Any]]) -> Iterator[Update]:
    held = {entry["key-id"] for entry in metadata.get("encryption-keys") or ()}
    for entry in lost:
        if entry["key-id"] in held:
            yield {"action": "remove-encryption-key", "key-id": entry["key-id"]}
        yield {"action": "add-encryption-key", "encryption-key": entry}


def _kept_alive(metadata: Mapping[str, Any], sent: list[Update]) -> list[Update]:
    """Return updates that add the keys again which keys in ``sent`` are wrapped by, as Java sends
    them: another writer may be taking them out. A server that has them ignores it."""
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
    """Return requirements that no branch has moved, besides ``required``: a snapshot that came in
    between may need a key that is to go."""
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
    """Whether an update of a new table has to wait until its first key is there."""
    if update["action"] == "add-encryption-key":
        return not _is_wrapped_by_master(update, metadata)
    return update["action"] in _OF_SNAPSHOTS


def _loses_keys(identifier: Identifier) -> NotImplementedError:
    return NotImplementedError(
        f"{'.'.join(identifier)}: the REST server does not keep a table's encryption keys, and "
        "what is written could never be read"
    )
