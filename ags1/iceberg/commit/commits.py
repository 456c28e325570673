"""``Commits``: makes a table's next metadata the current one, in one kind of catalog. Warns of
a clock that is behind the table's, and of hashes that another program has left stale.

The way of a commit, from ``table.append(rows)`` to the catalog's answer::

    EncryptedTransaction.append       writes the data files and adds a SnapshotStep
    EncryptedTransaction._commit      THE RETRIES: if another writer was first, reloads the table
      Attempt.apply                     THE CONFLICT CHECK of each step (write/conflicts.py), then
                                        the steps' updates and requirements for this version
      TableSession.commit_updates       one try; then the table object has the new version
        Commits.commit                    applies the updates, refuses a loss of encryption, and
          RestCommits                       sends the updates to the server, which applies them; or
          SqlCommits, HiveCommits,          writes the metadata.json (FileCommits) and makes it
          GlueCommits, DynamoDbCommits      current if the catalog still has the base's location
          was_committed                   THE UNKNOWN OUTCOME: asks again if the answer was lost

Exceptions say what became of it. CommitFailedException: another writer was first, and a retry may
help. CommitStateUnknownException: it may have been made, so its files stay. Any other: it was not
made.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import Identifier, Properties

from ...errors import MetadataIntegrityError, NotEncryptedError
from ...keys.manager import TABLE_KEY_ID, now_ms
from ..pyiceberg.catalogs import default_table_location
from ..pyiceberg.redirection import refuse_redirection
from ..pyiceberg.versions import check_tested_for_writing
from ..read.metadata import table_key_id
from ..spec.java_json import JavaOrdered
from ..storage.output import TableOutput
from ..storage.trust import (
    HASH_LOCATION,
    ICEBERG,
    METADATA_HASH,
    METADATA_LOCATION,
    METADATA_SHA256,
    TABLE_TYPE,
    Trust,
    parameters_trust,
)
from .base import Base, TableConfig, file_base
from .metadata_file import CLOCK_SKEW_MS
from .updates import apply_updates

Update = dict[str, Any]
_END_OF_9999 = 253_402_300_799


@dataclass(frozen=True, slots=True)
class NewLocation:
    """Where a new table will be."""

    location: str
    config: TableConfig = field(default_factory=TableConfig)

    def io(self, catalog: Catalog) -> FileIO:
        """Return the FileIO of the new table's files."""
        return self.config.io(catalog, self.location)


class Commits:
    """Reads the tables of one catalog. Subclasses commit to catalogs that keep a table's keys. Any
    number of threads may use it."""

    # Whether the catalog keeps a hash of a table's metadata.json.
    keeps_hash = False
    # Whether the catalog keeps the location of a table's metadata.json, which a commit replaces.
    keeps_location = False
    # Whether the catalog is a server that reads and writes metadata.json itself.
    has_server = False
    # Whether PyIceberg's catalog parses a table's metadata after it has registered or renamed it.
    parses_registered = parses_renamed = False

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def check_writable(self) -> None:
        """Raise NotImplementedError if tables cannot be committed to this catalog, or if PyIceberg
        is newer than the tested version."""
        check_tested_for_writing()
        if type(self) is Commits:
            raise NotImplementedError(
                f"encrypted tables cannot be written to {self.catalog.name!r}, a "
                f"{type(self.catalog).__name__}: only SQL, Hive, REST, Glue and DynamoDB catalogs "
                "are known to keep a table's keys"
            )

    def parameters(self, name: Identifier, shared_client: bool) -> Properties | None:
        """Return the parameters that the catalog keeps of a table; None if it keeps none. If
        ``shared_client`` is true, a Hive catalog's own client asks, which is for one thread only.
        Raises NoSuchTableError."""
        return None

    def pins(self, identifier: str | Identifier) -> Properties:
        """Return what the catalog keeps of a table to confirm its metadata.json, by the names of
        the parameters in ``trust``. It is empty if the catalog keeps nothing, or is a REST catalog.
        Raises NoSuchTableError."""
        parameters = self.parameters(Catalog.identifier_to_tuple(identifier), True) or {}
        names = TABLE_KEY_ID, METADATA_HASH, METADATA_SHA256, HASH_LOCATION
        return {name: parameters[name] for name in names if name in parameters}

    def check_never_encrypted(self, base: Base) -> None:
        """Raise NotEncryptedError if the catalog keeps more of a plaintext table than its key ID:
        then the table was encrypted. Raises NoSuchTableError."""
        if self.pins(base.identifier).keys() - {TABLE_KEY_ID}:
            raise NotEncryptedError(
                "no file of the table is encrypted, but its catalog keeps a hash of it, as of an "
                "encrypted one: the table was encrypted, and somebody replaced the metadata or "
                "removed its keys. This may be an attack. Restore the earlier metadata file",
                file=base.location,
            )

    def read(
        self, identifier: str | Identifier, trust: Trust, *, as_pyiceberg: bool = False
    ) -> Base:
        """Return a table's current metadata. ``trust`` is what the caller knows of it.

        A REST server is asked for all snapshots, and the Hive metastore by a client for this call.
        If ``as_pyiceberg`` is true, both are asked as PyIceberg's ``load_table`` asks them: the
        server for the snapshots that ``snapshot-loading-mode`` names (but an encrypted table needs
        all), and the metastore by the catalog's own client.

        Raises NoSuchTableError, and MetadataIntegrityError if the metadata contradicts what the
        caller or the catalog knows, or names code to run or a server to ask that the catalog does
        not name.
        """
        catalog, name = self.catalog, Catalog.identifier_to_tuple(identifier)
        parameters = self.parameters(name, as_pyiceberg)
        while parameters is not None:
            location = parameters.get(METADATA_LOCATION, "")
            if not location or parameters.get(TABLE_TYPE, "").lower() != ICEBERG:
                catalog.load_table(identifier)  # raises PyIceberg's own errors
                raise MetadataIntegrityError(
                    f"the catalog gave two different answers about {'.'.join(name)}: "
                    "load the table again"
                )
            try:
                return file_base(catalog, name, location, parameters_trust(trust, parameters))
            except MetadataIntegrityError:
                # While another writer commits, the Hive metastore can answer with the location of
                # one version and the hash of another.
                asked = self.parameters(name, as_pyiceberg)
                if asked == parameters:
                    raise
                parameters = asked
        table = catalog.load_table(identifier)
        config = TableConfig(table.config, table.config)
        return file_base(catalog, table.name(), table.metadata_location, trust, config)

    def load(self, identifier: str | Identifier, trust: Trust) -> Base:
        """Return a table's current metadata. Raises NotEncryptedError, and as ``read``."""
        base = self.read(identifier, trust)
        table_key_id(base.metadata, base.trust, base.location)
        return base

    def new_location(
        self,
        identifier: str | Identifier,
        location: str | None,
        schema: Schema,
        properties: Properties,
    ) -> NewLocation:
        """Return the location of a new table: ``location``, or the catalog's choice if that is
        None. Nothing is created that others could see. Raises NoSuchNamespaceError,
        TableAlreadyExistsError if that is known already, and ValueError without any location."""
        return NewLocation(default_table_location(self.catalog, identifier, location))

    def commit(
        self,
        base: Base,
        updates: Sequence[Mapping[str, Any]],
        requirements: Sequence[Mapping[str, Any]],
        output: TableOutput,
        *,
        new_key_id: str | None = None,
    ) -> Base:
        """Make one try to commit updates upon ``base``; return what is current then.

        Updates and requirements have the REST specification's form. ``output`` writes the
        metadata.json if the catalog does not do that itself. ``new_key_id`` is given if the updates
        put the table under another master key or its first; without it, they may not.

        Raises CommitFailedException if another writer was first: load the table again before the
        next try. Raises CommitStateUnknownException if it is unknown whether the commit was made,
        and for Ctrl-C after it was made: no file may be deleted then. After any other exception,
        the files that were written for the commit can be deleted: NotEncryptedError and
        MetadataIntegrityError for updates that would lose the encryption, ValueError and
        ValidationException for other wrong updates.
        """
        raise NotImplementedError

    def create(
        self,
        identifier: str | Identifier,
        updates: Sequence[Mapping[str, Any]],
        output: TableOutput,
        *,
        new_location: NewLocation | None = None,
    ) -> Base:
        """Create a table from updates. ``new_location`` is the result of the method of that name.
        Raises TableAlreadyExistsError, NoSuchNamespaceError, NotImplementedError if keys would be
        lost, and as ``commit``."""
        raise NotImplementedError

    def register(self, identifier: str | Identifier, location: str, output: TableOutput) -> None:
        """Register the metadata.json at ``location`` as a table. ``output`` reads it. Raises
        TableAlreadyExistsError, NoSuchNamespaceError and MetadataIntegrityError."""
        self.catalog.register_table(identifier, location)

    def register_by_server(
        self, identifier: str | Identifier, location: str, overwrite: bool
    ) -> Base | None:
        """If the catalog is a server that reads metadata.json itself, have it register the one at
        ``location``; return the table. Raises what the catalog raises."""
        return None

    def drop(self, identifier: str | Identifier) -> None:
        """Drop a table, with what the catalog keeps of it. Raises NoSuchTableError, and what the
        catalog raises."""
        self.catalog.drop_table(identifier)

    def forget(self, identifier: str | Identifier) -> None:
        """If no table has the name, delete what the catalog keeps of one that had it. The next one
        may be unencrypted, or under another key."""

    def rename(self, base: Base, identifier: str | Identifier) -> None:
        """Rename a table.

        Raises TableAlreadyExistsError, NoSuchNamespaceError, what the catalog raises, and in
        Glue, DynamoDB and Hive CommitFailedException if another writer has committed since
        ``base``.
        """
        self.catalog.rename_table(base.identifier, identifier)

    def check(self, base: Base) -> None:
        """Raise MetadataIntegrityError or NotEncryptedError if the table must not be written to:
        its metadata names code to run, or contradicts the catalog."""
        self._refuse_redirection(base.metadata, base.config, base.location)
        table_key_id(base.metadata, base.trust, base.location)

    def _updated(self, base: Base, updates: list[Update], new_key_id: str | None) -> JavaOrdered:
        """Return the metadata after the updates. Raises as ``commit``.

        PyIceberg has applied them to its models too, before the table asked for a commit. Its
        models do not keep Java's order of fields and what they do not know. To apply the updates
        twice costs 3 % of a commit."""
        metadata = apply_updates(base.metadata, updates, now_ms=now_ms())
        last_ms = base.metadata["last-updated-ms"]
        if last_ms > now_ms() + CLOCK_SKEW_MS:
            last = datetime.fromtimestamp(min(last_ms // 1000, _END_OF_9999), tz=timezone.utc)
            warnings.warn(
                f"{'.'.join(base.identifier)} was last changed at {last:%Y-%m-%d %H:%M:%S} UTC, "
                "which is in the future by this machine's clock: this change gets the same time. "
                "Correct this clock if it is slow, or the other writer's if it was fast",
                stacklevel=2,
            )
        self._refuse_redirection(metadata, base.config, base.location)
        check_still_encrypted(base.metadata, metadata, new_key_id)
        return metadata

    def _refuse_redirection(
        self, metadata: Mapping[str, Any], config: TableConfig, location: str
    ) -> None:
        refuse_redirection(metadata, config.properties(self.catalog), location)


def check_still_encrypted(
    before: Mapping[str, Any], after: Mapping[str, Any], new_key_id: str | None
) -> None:
    """Refuse a commit that would lose a table's encryption. Raises NotEncryptedError if the table,
    or a new snapshot of it, would not be encrypted. Raises MetadataIntegrityError if the table
    would get another master key than ``new_key_id``, or a snapshot whose key nothing unwraps."""
    had = (before.get("properties") or {}).get(TABLE_KEY_ID) or None
    has = (after.get("properties") or {}).get(TABLE_KEY_ID) or None
    expected = new_key_id or had
    if has is None and expected is not None:
        raise NotEncryptedError(f"the commit would remove {TABLE_KEY_ID!r} from the table")
    if has != expected:
        raise MetadataIntegrityError(
            f"the commit would put the table under the key {has!r}, but it is under {had!r}: "
            f"{TABLE_KEY_ID!r} cannot be changed like other properties"
        )
    if has is None:
        return
    keys = {entry["key-id"]: entry for entry in after.get("encryption-keys") or ()}
    old = {snapshot["snapshot-id"] for snapshot in before.get("snapshots") or ()} if had else set()
    for snapshot in after.get("snapshots") or ():
        snapshot_id, key_id = snapshot["snapshot-id"], snapshot.get("key-id")
        if snapshot_id in old:
            continue
        if key_id is None:
            raise NotEncryptedError(
                f"snapshot {snapshot_id} has no key, so it would not be encrypted"
            )
        if keys.get(key_id, {}).get("encrypted-by-id") not in keys:
            raise MetadataIntegrityError(
                f"the table has no key that unwraps the key of snapshot {snapshot_id}"
            )


def plain_dicts(updates: Sequence[Mapping[str, Any]]) -> list[Update]:
    """Return copies of updates or requirements as dicts."""
    return [dict(update) for update in updates]
