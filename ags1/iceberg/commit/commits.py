"""``Commits``: how a table's next metadata becomes the current one, in whichever catalog it is.

One optimistic try each: the metadata as it was loaded is the ``Base``, updates are applied to it,
and the catalog takes the outcome only where it still has that base. A conflict is a
CommitFailedException, and its caller may load again and retry; when the catalog's answer is lost it
is asked what became of it, and CommitStateUnknownException leaves every file where it is. Catalogs
that only keep a metadata.json's location share ``FileCommits``. Follows Java's
``BaseMetastoreTableOperations``. Knows nothing of snapshots' files and of keys in the clear.
"""

from __future__ import annotations

import hashlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema
from pyiceberg.typedef import Identifier, Properties

from ...errors import MetadataIntegrityError, NotEncryptedError
from ...keys.manager import TABLE_KEY_ID, now_ms
from ..pyiceberg.catalogs import default_table_location
from ..pyiceberg.redirection import refuse_redirection
from ..read.metadata import MAX_METADATA_SIZE, read_metadata, table_key_id
from ..spec.requirements import check_requirements
from ..storage.output import TableOutput
from ..storage.trust import Trust, vouches
from .metadata_file import (
    METADATA_PATH,
    hash_of,
    java_hash,
    next_metadata_location,
    print_metadata,
    stored_form,
    with_metadata_log,
)
from .updates import apply_updates

_log = logging.getLogger(__name__)

# Of what a catalog says, in characters: some send a stack trace.
_MAX_SAID = 300

# Properties of a table that say how often, and how long apart, a catalog is asked what became of a
# commit whose answer was lost: Java's names and values, the times in ms.
_STATUS_CHECKS = "commit.status-check.num-retries"
_STATUS_CHECK_MIN_WAIT = "commit.status-check.min-wait-ms"
_STATUS_CHECK_MAX_WAIT = "commit.status-check.max-wait-ms"
_STATUS_CHECK_DEFAULTS = {
    _STATUS_CHECKS: 3,
    _STATUS_CHECK_MIN_WAIT: 1000,
    _STATUS_CHECK_MAX_WAIT: 60_000,
}


@dataclass(frozen=True, slots=True)
class Base:
    """A table's metadata as a catalog has it, which updates are applied to.

    ``location`` is its metadata.json's, ``trust`` what vouches for it. ``config`` and ``storage``
    are a REST server's configuration of the table, the second with credentials.
    """

    identifier: Identifier
    metadata: dict[str, Any] = field(repr=False)
    location: str
    trust: Trust
    config: dict[str, str] = field(default_factory=dict, repr=False)
    storage: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class NewLocation:
    """Where a table that does not exist yet will be. ``config`` and ``storage`` are as in
    ``Base``."""

    location: str
    config: dict[str, str] = field(default_factory=dict, repr=False)
    storage: dict[str, str] = field(default_factory=dict, repr=False)


class Commits(ABC):
    """Commits to the tables of one catalog; any number of threads may use it."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    @abstractmethod
    def load(self, identifier: str | Identifier, trust: Trust) -> Base:
        """Return a table's current metadata, checked by ``trust`` and what the catalog knows.

        Raises NoSuchTableError, NotEncryptedError and MetadataIntegrityError.
        """

    def new_location(
        self,
        identifier: str | Identifier,
        location: str | None,
        schema: Schema,
        properties: Properties,
    ) -> NewLocation:
        """Return where a new table would be. Nothing is created that others could see.

        ``location`` is the caller's wish, None for the catalog's choice. Raises
        NoSuchNamespaceError, TableAlreadyExistsError where it is known already, and ValueError when
        no location is given nor configured.
        """
        return NewLocation(default_table_location(self.catalog, identifier, location))

    @abstractmethod
    def commit(
        self,
        base: Base,
        updates: Sequence[Mapping[str, Any]],
        requirements: Sequence[Mapping[str, Any]],
        output: TableOutput,
        *,
        new_key_id: str | None = None,
    ) -> Base:
        """Make one try to commit updates, in the REST specification's form, upon ``base``.

        ``output`` writes the metadata.json where the catalog does not write it itself.
        ``new_key_id`` is given when the updates put the table under another master key, or a plain
        table under its first: nothing else may change it.

        Raises CommitFailedException for a conflict, after which the base is to be loaded anew;
        CommitStateUnknownException when nobody can tell whether it was committed, so that no file
        may be deleted; NotEncryptedError and MetadataIntegrityError for updates that would lose the
        encryption, ValueError and ValidationException for others that cannot be. After all but the
        unknown, what was written for the commit can go. So it is with KeyboardInterrupt, which
        comes as CommitStateUnknownException when it came too late.
        """

    @abstractmethod
    def create(
        self,
        identifier: str | Identifier,
        updates: Sequence[Mapping[str, Any]],
        output: TableOutput,
        *,
        new_location: NewLocation | None = None,
    ) -> Base:
        """Create a table by the updates that make it from nothing.

        ``new_location`` is the result of the method of that name, if it was called. Raises
        TableAlreadyExistsError, NoSuchNamespaceError, NotImplementedError when the catalog would
        lose its keys, and what ``commit`` raises.
        """

    def repoint(self, base: Base, location: str, output: TableOutput) -> Base:
        """Make another metadata.json of the table its present one: that of a copy elsewhere.

        ``output`` reaches it. Raises as ``commit``; NotImplementedError where the catalog writes
        the metadata itself.
        """
        raise NotImplementedError(
            f"{self.catalog.name!r} writes its tables' metadata itself, and cannot be pointed to "
            "other files: register them under another name"
        )

    def register(self, identifier: str | Identifier, location: str, output: TableOutput) -> None:
        """Make the metadata.json at ``location`` a table. ``output`` reaches it. Raises
        TableAlreadyExistsError, NoSuchNamespaceError, MetadataIntegrityError."""
        self.catalog.register_table(identifier, location)

    def io(self, base: Base | NewLocation) -> FileIO:
        """Return the storage of the table as the catalog's properties say, never the metadata's."""
        location = base.location
        if isinstance(base, Base) and not location:
            # A REST server need not say where its metadata lies.
            location = base.metadata["location"]
        return load_file_io(self.storage_properties(base), location)

    def storage_properties(self, base: Base | NewLocation) -> Properties:
        return {**self.catalog.properties, **base.storage}

    def check(self, base: Base) -> None:
        """Raise MetadataIntegrityError or NotEncryptedError for a table that is not to be written
        to: its metadata names code to run, or is not what its catalog says."""
        self._refuse_foreign_code(base, base.metadata)
        table_key_id(base.metadata, base.trust, base.location)

    def _next(
        self, base: Base, updates: list[dict[str, Any]], new_key_id: str | None, now_ms: int
    ) -> dict[str, Any]:
        """Return the metadata after the updates. Raises as ``commit``."""
        metadata = apply_updates(base.metadata, updates, now_ms=now_ms)
        self._refuse_foreign_code(base, metadata)
        check_still_encrypted(base.metadata, metadata, new_key_id)
        return metadata

    def _refuse_foreign_code(self, base: Base | NewLocation, metadata: Mapping[str, Any]) -> None:
        refuse_redirection(metadata, self.storage_properties(base), base.location)


@dataclass(frozen=True, slots=True)
class Staged:
    """A table's next metadata, written but not committed.

    ``java_hash`` is Hive's ``metadata_hash`` of it, ``sha256`` the stored file's, in hex.
    """

    metadata: dict[str, Any] = field(repr=False)
    location: str
    java_hash: str
    sha256: str


class FileCommits(Commits):
    """Commits to a catalog that keeps the location of a table's metadata.json."""

    def load(self, identifier: str | Identifier, trust: Trust) -> Base:
        name = Catalog.identifier_to_tuple(identifier)
        location, trust = self._find(name, trust)
        io = load_file_io(self.catalog.properties, location)
        base = Base(name, read_metadata(io, location, trust), location, trust)
        self.check(base)
        return base

    def commit(
        self,
        base: Base,
        updates: Sequence[Mapping[str, Any]],
        requirements: Sequence[Mapping[str, Any]],
        output: TableOutput,
        *,
        new_key_id: str | None = None,
    ) -> Base:
        check_requirements(base.metadata, plain_dicts(requirements))
        if not updates:
            return base
        changes = plain_dicts(updates)
        metadata = self._next(base, changes, new_key_id, now_ms())
        metadata, expired = with_metadata_log(
            metadata, base.location, base.metadata["last-updated-ms"]
        )
        location = next_metadata_location(
            metadata, base.location, is_beside=not self._may_choose_folder(base, metadata, changes)
        )
        staged = _write(metadata, location, output, base)
        trust = replace(base.trust, key_id=new_key_id or base.trust.key_id)
        trust = self._trust_after(trust, staged)
        after = replace(base, metadata=metadata, location=staged.location, trust=trust)
        self._try(base, staged, output, lambda sent: self._swap(base, staged, sent))
        # From here on the commit is made, whatever comes.
        try:
            output.discard(expired)
        except BaseException as error:
            raise _made_but(base.identifier, error) from error
        return after

    def create(
        self,
        identifier: str | Identifier,
        updates: Sequence[Mapping[str, Any]],
        output: TableOutput,
        *,
        new_location: NewLocation | None = None,
    ) -> Base:
        name = Catalog.identifier_to_tuple(identifier)
        metadata = apply_updates(None, plain_dicts(updates), now_ms=now_ms())
        self._refuse_foreign_code(new_location or NewLocation(metadata["location"]), metadata)
        key_id = (metadata.get("properties") or {}).get(TABLE_KEY_ID) or None
        check_still_encrypted({}, metadata, key_id)
        staged = _write(metadata, next_metadata_location(metadata, None), output)
        trust = self._trust_after(Trust(key_id), staged)
        base = Base(name, metadata, staged.location, trust)
        self._try(base, staged, output, lambda sent: self._insert(name, staged, sent))
        return base

    def repoint(self, base: Base, location: str, output: TableOutput) -> Base:
        staged = _found(location, output.io, base)
        check_requirements(
            staged.metadata,
            [{"type": "assert-table-uuid", "uuid": base.metadata["table-uuid"]}],
        )
        self._refuse_foreign_code(base, staged.metadata)
        check_still_encrypted(base.metadata, staged.metadata, None)
        self._try(base, staged, output, lambda sent: self._swap(base, staged, sent))
        trust = self._trust_after(base.trust, staged)
        return replace(base, metadata=staged.metadata, location=location, trust=trust)

    def register(self, identifier: str | Identifier, location: str, output: TableOutput) -> None:
        name = Catalog.identifier_to_tuple(identifier)
        staged = _found(location, output.io, None)
        base = Base(name, staged.metadata, location, Trust())
        self._refuse_foreign_code(base, staged.metadata)
        self._insert(name, staged, Event())

    def _may_choose_folder(
        self, base: Base, metadata: Mapping[str, Any], updates: list[dict[str, Any]]
    ) -> bool:
        """Whether what ``metadata`` says of the folder for the next metadata.json is to be obeyed.

        Files beside the catalog's metadata.json pass for the table's own. So the folder is not for
        whoever could write the base's file to choose: only for this commit, the catalog's own
        properties, and what vouches for the base.
        """
        path = (metadata.get("properties") or {}).get(METADATA_PATH)
        if path:
            chosen = any(
                update["action"] == "set-properties"
                and update["updates"].get(METADATA_PATH) == path
                for update in updates
            )
            return (
                chosen or vouches(base.trust) or self.catalog.properties.get(METADATA_PATH) == path
            )
        chosen = any(update["action"] == "set-location" for update in updates)
        return chosen or vouches(base.trust)

    @abstractmethod
    def _find(self, identifier: Identifier, trust: Trust) -> tuple[str, Trust]:
        """Return where a table's metadata.json is, and ``trust`` with what the catalog knows of it.
        Raises NoSuchTableError."""

    @abstractmethod
    def _swap(self, base: Base, staged: Staged, sent: Event) -> None:
        """Make ``staged`` the table's metadata if ``base`` still is.

        ``sent`` is set before the catalog is asked to do what it may have done although an
        exception comes of it. Raises CommitFailedException when another commit was first, whether
        ``sent`` is set or not.
        """

    @abstractmethod
    def _insert(self, identifier: Identifier, staged: Staged, sent: Event) -> None:
        """Make a new table; ``sent`` as for ``_swap``. Raises TableAlreadyExistsError and
        NoSuchNamespaceError when it certainly was not made."""

    @abstractmethod
    def _settled_location(self, identifier: Identifier) -> str | None:
        """Return where the catalog has the table's metadata, None when there is no such table.
        Raises whatever keeps it from being known."""

    @abstractmethod
    def _may_land(self, error: BaseException, is_new: bool) -> bool:
        """Whether the catalog may yet do what it was asked to do when ``error`` came, though its
        answer to ``_settled_location`` does not show it: to commit, or to make a new table."""

    def _trust_after(self, trust: Trust, staged: Staged) -> Trust:
        """Return what vouches for metadata that was just committed: whatever did for its base."""
        return replace(
            trust,
            metadata_sha256=trust.metadata_sha256 and staged.sha256,
            java_hash=None,
            data_key_length=None,
        )

    def _try(
        self, base: Base, staged: Staged, output: TableOutput, change: Callable[[Event], None]
    ) -> None:
        """Return when the catalog has ``staged``. Raises as ``commit`` and ``create``."""
        sent = Event()
        try:
            change(sent)
        except (CommitFailedException, NoSuchNamespaceError, TableAlreadyExistsError):
            output.discard([staged.location])
            raise
        except BaseException as error:
            if not sent.is_set():
                output.discard([staged.location])
                raise
            self._settle(base, staged, output, error)

    def _settle(
        self, base: Base, staged: Staged, output: TableOutput, error: BaseException
    ) -> None:
        """Return when a change that ended in ``error`` was made all the same; else raise."""
        is_new = base.location == staged.location
        name = ".".join(base.identifier)
        try:
            may_land = self._may_land(error, is_new)
            committed = ask_again(lambda: self._was_made(base, staged, may_land), staged.metadata)
        except BaseException:
            # A second Ctrl-C. The first question was not answered yet.
            committed = None
        if committed is None:
            raise CommitStateUnknownException(
                f"nobody can tell whether a commit of {name} was made: {type(error).__name__}"
            ) from error
        if committed and not isinstance(error, Exception):
            raise _made_but(base.identifier, error) from error
        if not committed:
            output.discard([staged.location])
            if not isinstance(error, Exception):
                raise error
            what = "the creation" if is_new else "a commit"
            raise CommitFailedException(
                f"{what} of {name} was not made: {_said_by(error)}"
            ) from error

    def _was_made(self, base: Base, staged: Staged, may_land: bool) -> bool | None:
        """Whether the catalog has ``staged``, or had it before later commits; None when that cannot
        be known: the change may yet be made, the table is gone or has a short log."""
        location = self._settled_location(base.identifier)
        if location == staged.location:
            return True
        is_new = base.location == staged.location
        if location == (None if is_new else base.location):
            return None if may_land else False
        if location is None:
            return None
        log = self.load(base.identifier, Trust()).metadata.get("metadata-log") or ()
        locations = {entry.get("metadata-file") for entry in log}
        if staged.location in locations:
            return True
        # Another's table keeps ours from being made. A commit may be older than the log.
        return False if is_new or base.location in locations else None


def _said_by(error: BaseException) -> str:
    """Return an exception's name, and the first line of what the catalog says in it."""
    text = str(getattr(error, "message", None) or error).strip()
    said = text.splitlines()[0][:_MAX_SAID] if text else ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def ask_again(was_committed: Callable[[], bool | None], metadata: Mapping[str, Any]) -> bool | None:
    """Return whether a commit was made, None if it cannot be known.

    The question is put again while there is no answer, as the table's properties
    (``commit.status-check.…``) say.
    """
    stated = metadata.get("properties") or {}
    values = {}
    for name, default in _STATUS_CHECK_DEFAULTS.items():
        try:
            # The metadata is not to keep us waiting for ever.
            most = 100 if name == _STATUS_CHECKS else 60_000
            values[name] = min(max(0, int(stated.get(name, default))), most)
        except ValueError:
            values[name] = default
    wait_ms = values[_STATUS_CHECK_MIN_WAIT]
    for attempt in range(values[_STATUS_CHECKS] + 1):
        if attempt:
            time.sleep(min(wait_ms, values[_STATUS_CHECK_MAX_WAIT]) / 1000)
            wait_ms *= 2
        try:
            found = was_committed()
        except Exception as error:
            _log.warning("the catalog cannot be asked about a commit: %s", type(error).__name__)
        else:
            if found is not None:
                return found
    return None


def check_still_encrypted(
    before: Mapping[str, Any], after: Mapping[str, Any], new_key_id: str | None
) -> None:
    """Raise NotEncryptedError when a commit would leave a table, or a snapshot of it, in the clear,
    and MetadataIntegrityError when it would put it under another master key than ``new_key_id``, or
    adds a snapshot whose key no key of the table opens."""
    had = (before.get("properties") or {}).get(TABLE_KEY_ID) or None
    has = (after.get("properties") or {}).get(TABLE_KEY_ID) or None
    expected = new_key_id or had
    if has is None and expected is not None:
        raise NotEncryptedError(f"the commit would take {TABLE_KEY_ID!r} from the table")
    if has != expected:
        raise MetadataIntegrityError(
            f"the commit would put the table under the key {has!r}, and it is under {had!r}: "
            f"{TABLE_KEY_ID!r} cannot be changed as other properties are"
        )
    if has is None:
        return
    keys = {entry["key-id"]: entry for entry in after.get("encryption-keys") or ()}
    old = {snapshot["snapshot-id"] for snapshot in before.get("snapshots") or ()} if had else set()
    for snapshot in after.get("snapshots") or ():
        number, key_id = snapshot["snapshot-id"], snapshot.get("key-id")
        if number in old:
            continue
        if key_id is None:
            raise NotEncryptedError(f"the snapshot {number} has no key: it would be in the clear")
        if keys.get(key_id, {}).get("encrypted-by-id") not in keys:
            raise MetadataIntegrityError(f"the table has no key for that of the snapshot {number}")


@contextmanager
def made_whatever_comes(identifier: Identifier) -> Iterator[None]:
    """Turn what is raised once a commit is made into CommitStateUnknownException: who takes it for
    a failure would do everything twice."""
    try:
        yield
    except BaseException as error:
        raise _made_but(identifier, error) from error


def _made_but(identifier: Identifier, error: BaseException) -> CommitStateUnknownException:
    return CommitStateUnknownException(
        f"a commit of {'.'.join(identifier)} was made, and then came {type(error).__name__}"
    )


def _found(location: str, io: FileIO, base: Base | None) -> Staged:
    """Return metadata that was written before, for the table of ``base`` if there is one. Raises as
    ``read_metadata``."""
    with io.new_input(location).open() as stream:
        sha256 = hashlib.sha256(stream.read(MAX_METADATA_SIZE + 1)).hexdigest()
    metadata = read_metadata(io, location, Trust(base.trust.key_id if base else None, sha256))
    return Staged(metadata, location, _java_hash(print_metadata(metadata), base), sha256)


def _write(
    metadata: dict[str, Any], location: str, output: TableOutput, base: Base | None = None
) -> Staged:
    text = print_metadata(metadata)
    stored = stored_form(text, location)
    output.write(location, stored)
    return Staged(metadata, location, _java_hash(text, base), hashlib.sha256(stored).hexdigest())


def _java_hash(text: bytes, base: Base | None) -> str:
    """Return Hive's hash of metadata as it is printed. If it has fields that are not known here,
    and the hash of ``base`` is of such ones too, a later Java knows them."""
    known, whole = java_hash(text), hash_of(text)
    stated = None if base is None else base.trust.java_hash
    if base is None or stated is None or known == whole:
        return known
    return known if java_hash(print_metadata(base.metadata)) == stated else whole


def plain_dicts(updates: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return updates or requirements as the caller gave them, in containers of their own."""
    return [dict(update) for update in updates]
