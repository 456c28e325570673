"""``load_catalog``: PyIceberg's catalogs, whose encrypted tables open.

A catalog here is PyIceberg's own with one change: ``load_table`` returns our table where the table
has ``encryption.key-id``. What the catalog knows of a table (Hive's parameters, the REST server's
answer) is trusted before the metadata file. The KMS is the caller's and the configuration file's,
never the server's: ``encryption.kms-impl`` names code to run.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from pyiceberg.catalog import Catalog, PropertiesUpdateSummary
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, CreateTableTransaction, Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewVersion

from ..errors import KmsConfigurationError, MetadataIntegrityError, NotEncryptedError
from ..key_metadata import KEY_SIZES
from ..keys.cache import KekCache
from ..keys.envelope import KeyEncryptionKey
from ..keys.manager import DATA_KEY_LENGTH, DEFAULT_DATA_KEY_LENGTH, TABLE_KEY_ID, now_ms
from ..kms.client import KmsClient
from ..kms.properties import Properties as KmsProperties
from ..kms.registry import KMS_IMPL, KMS_TYPE, from_properties
from .catalog_trust import (
    ICEBERG,
    METADATA_LOCATION,
    TABLE_TYPE,
    hive_trust,
    is_a,
)
from .home import home_of
from .maintenance.expiry import everything
from .metadata import Trust, read_metadata, table_key_id
from .pyiceberg_internals import (
    ask_rest_server,
    configured_properties,
    guard_catalog,
    hive_parameters,
    iceberg_schema,
    sql_metadata_location,
)
from .redirection import refuse_redirection
from .table import EncryptedTable, encrypted_table, kms_client
from .writing.commits import Base, Commits, Place, commits_for, made_whatever_comes
from .writing.output import TableOutput
from .writing.transaction import EncryptedCreateTransaction
from .writing.updates import apply_updates, new_table_updates

if TYPE_CHECKING:
    import pyarrow as pa

    from .maintenance.jobs import MigrationResult
    from .maintenance.relocation import RelocationResult

# Properties of a catalog, the caller's own: a server's word does not count for them.
TRUSTED_KEY_IDS = "encryption.trusted-key-ids"
REQUIRE_ENCRYPTED = "encryption.require-encrypted"


class PlainTableWarning(UserWarning):
    """A table in the clear was loaded from a catalog whose tables' master keys are configured."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A table before its metadata is believed. Of a REST server: ``config``, ``storage``, which is
    that with credentials, and ``metadata``."""

    identifier: Identifier
    metadata_location: str
    config: dict[str, str] = field(default_factory=dict)
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    metadata: dict[str, Any] | None = None


def load_catalog(name: str | None = None, **properties: str | None) -> EncryptedCatalog:
    """Return the catalog that PyIceberg's ``load_catalog`` returns for the same arguments,
    configuration file and environment, able to load encrypted tables.

    The KMS is what Iceberg's encryption properties say (``encryption.kms-type``, …), given among
    ``properties`` or configured; without them, plain tables load. Two more are of this library:

    ``encryption.trusted-key-ids`` names the master keys that tables may be under, with commas
    between. It is needed for a KMS where anybody's key may be named (AWS, GCP), unless the catalog
    itself keeps its tables' keys (Hive, REST).
    ``encryption.require-encrypted``, if ``true``, makes ``require_encrypted`` the rule for every
    table: one that is not encrypted is refused, and data files in the clear are.

    To use a KMS client that is there already:
    ``EncryptedCatalog(pyiceberg.catalog.load_catalog(…), client)``. Raises KmsConfigurationError,
    and what PyIceberg raises.
    """
    configured = configured_properties(name, properties)
    rules = catalog_rules(configured)
    inner = load_plain_catalog(name, **properties)
    has_kms = bool(configured.get(KMS_TYPE) or configured.get(KMS_IMPL))
    return EncryptedCatalog(
        inner,
        from_properties(configured) if has_kms else None,
        owns_kms=has_kms,
        **rules,
    )


def catalog_rules(configured: Mapping[str, str]) -> dict[str, Any]:
    """Return the ``key_ids`` and ``require_encrypted`` of a catalog with these properties. Raises
    KmsConfigurationError."""
    for name in configured:
        if (
            name.startswith("encryption.")
            and not name.startswith("encryption.kms")
            and name not in (TRUSTED_KEY_IDS, REQUIRE_ENCRYPTED)
        ):
            raise KmsConfigurationError(
                f"no catalog has the property {name!r}; there are {TRUSTED_KEY_IDS!r}, "
                f"{REQUIRE_ENCRYPTED!r} and those of the KMS, 'encryption.kms…'"
            )
    key_ids = [part.strip() for part in configured.get(TRUSTED_KEY_IDS, "").split(",")]
    required = configured.get(REQUIRE_ENCRYPTED, "false").lower()
    if required not in ("true", "false"):
        raise KmsConfigurationError(f"{REQUIRE_ENCRYPTED!r} is 'true' or 'false', not {required!r}")
    return {"key_ids": list(filter(None, key_ids)), "require_encrypted": required == "true"}


@dataclass(frozen=True, slots=True)
class _NewTable:
    """A table that is to be created by ``updates``."""

    identifier: Identifier
    key_id: str
    place: Place
    updates: list[dict[str, Any]]
    io: FileIO


class EncryptedCatalog(Catalog):
    """A catalog of PyIceberg's, ``inner``, whose encrypted tables open with ``kms``.

    ``key_ids`` are the master keys that its tables may be under; none given, any.
    ``require_encrypted`` is what ``load_table`` takes it to be where its caller does not say.

    A table that is created with ``encryption.key-id`` is encrypted. Everything but tables is the
    inner catalog's; its own methods and attributes are had here too. ``owns_kms`` has ``close``
    close the KMS client. Writing encrypted tables to a catalog that would lose their keys is
    NotImplementedError: SQL, Hive and REST catalogs keep them.
    """

    def __init__(
        self,
        inner: Catalog,
        kms: KmsClient | None = None,
        *,
        key_ids: Iterable[str] = (),
        require_encrypted: bool = False,
        owns_kms: bool = False,
    ) -> None:
        # They were needed to make the KMS client. Whoever sees the catalog need not see them.
        for name in KmsProperties(_texts(inner.properties)).secrets():
            if name.startswith(("encryption.", "kms.")):
                del inner.properties[name]
        super().__init__(inner.name, **inner.properties)
        guard_catalog(inner)
        self.inner = inner
        self.kms = kms
        self.key_ids = frozenset(key_ids)
        self.require_encrypted = require_encrypted
        self._owns_kms = owns_kms
        self._told: set[Identifier] = set()
        self._commits: Commits | None = None
        # One for all tables: to refresh one does not ask the KMS again.
        self._cache = None if kms is None else KekCache(kms)

    def load_table(
        self,
        identifier: str | Identifier,
        *,
        expected_key_id: str | None = None,
        expected_metadata_sha256: str | None = None,
        location_map: Mapping[str, str] | None = None,
        require_encrypted: bool | None = None,
    ) -> Table:
        """Return a table: an ``EncryptedTable`` if it is encrypted, else what PyIceberg returns.

        The arguments after ``identifier`` are those of ``open_table``. A Hive metastore's
        ``metadata_hash``, ``encryption.key-id`` and ``encryption.data-key-length`` are checked
        where there are any; what a REST server answers is taken before the metadata file.

        The files are read as the caller's properties and the catalog's say. Properties in the
        metadata that say otherwise (``py-io-impl``, ``s3.endpoint``, …) are refused before anything
        obeys them, of plain tables too, here and in all other methods that load a table.

        Warns, with PlainTableWarning, of a table in the clear where ``key_ids`` were given. Raises
        as ``open_table`` does, and NoSuchTableError.
        """
        if require_encrypted is None:
            require_encrypted = self.require_encrypted
        trust = Trust(expected_key_id, expected_metadata_sha256)
        found, trust = self._find(identifier, trust)
        metadata, location = found.metadata, found.metadata_location
        # Not as PyIceberg makes it: the properties in the metadata would overrule these.
        properties = {**self.inner.properties, **found.storage}
        io = load_file_io(properties, location)
        if metadata is None or expected_metadata_sha256 is not None:
            # The hash is of the file: then the file it is, and not a server's word.
            metadata = read_metadata(io, location, trust)
        refuse_redirection(metadata, properties, location)
        trust = self._with_key_ids(trust, metadata, location)
        key_id = table_key_id(metadata, trust, location)
        if key_id is None:
            return self._plain_table(found, metadata, require_encrypted)
        return encrypted_table(
            found.identifier,
            metadata,
            location,
            io,
            self,
            kms_client(self.kms, key_id),
            trust,
            location_map=location_map,
            require_encrypted=require_encrypted,
            config=found.config,
            storage=found.storage,
            cache=self._cache,
        )

    def _find(self, identifier: str | Identifier, trust: Trust) -> tuple[_Found, Trust]:
        """Return where the table's metadata is, and what its catalog vouches for."""
        name = Catalog.identifier_to_tuple(identifier)
        if is_a(self.inner, "RestCatalog"):
            metadata, location, config, storage = ask_rest_server(self.inner, identifier)
            if trust.metadata_sha256 is None:
                trust = _with_server(trust, metadata)
            return _Found(name, location, config, storage, metadata), trust
        if is_a(self.inner, "HiveCatalog"):
            parameters = hive_parameters(self.inner, identifier)
            location = parameters.get(METADATA_LOCATION, "")
            if not location or parameters.get(TABLE_TYPE, "").lower() != ICEBERG:
                self.inner.load_table(identifier)  # raises PyIceberg's own errors
                raise MetadataIntegrityError("the Hive metastore changes its answer")
            return _Found(name, location), hive_trust(trust, parameters)
        if is_a(self.inner, "SqlCatalog"):
            return _Found(name, sql_metadata_location(self.inner, identifier)), trust
        table = self.inner.load_table(identifier)
        return _Found(table.name(), table.metadata_location, table.config, table.config), trust

    def _plain_table(
        self, found: _Found, metadata: dict[str, Any], require_encrypted: bool
    ) -> Table:
        """Return the table as PyIceberg would, of the metadata that was checked."""
        if require_encrypted:
            raise NotEncryptedError(
                f"the table is not encrypted: it has no {TABLE_KEY_ID!r}",
                file=found.metadata_location,
            )
        if self.key_ids and found.identifier not in self._told:
            self._told.add(found.identifier)
            warnings.warn(
                f"{'.'.join(found.identifier)} is not encrypted, in a catalog with keys "
                f"({TRUSTED_KEY_IDS!r}): if it should be, its metadata was replaced "
                f"({REQUIRE_ENCRYPTED!r} refuses such tables)",
                PlainTableWarning,
                stacklevel=3,
            )
        parsed = TableMetadataUtil.parse_obj(metadata)
        location = found.metadata_location
        properties = {**self.inner.properties, **parsed.properties, **found.storage}
        io = load_file_io(properties, location)
        return Table(found.identifier, parsed, location, io, self.inner, found.config)

    def _with_key_ids(self, trust: Trust, metadata: dict[str, Any], location: str) -> Trust:
        """Add the table's key if it is one of this catalog's. Raises MetadataIntegrityError when it
        is none of them, whoever else vouches for it."""
        stated = (metadata.get("properties") or {}).get(TABLE_KEY_ID)
        if not stated or not self.key_ids:
            return trust
        if stated not in self.key_ids:
            raise MetadataIntegrityError(
                f"the metadata names {stated!r} as the table's key, which is none of those "
                f"configured as {TRUSTED_KEY_IDS!r}",
                file=location,
            )
        return trust if trust.key_id is not None else replace(trust, key_id=stated)

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        """Create a table: an encrypted one where ``properties`` has ``encryption.key-id``.

        That has format version 3. ``encryption.data-key-length`` (16, 24 or 32 bytes) and
        ``write.format.default`` (``parquet`` or ``avro``) are properties too. The master key is
        used once, to see that it can be.

        Raises TableAlreadyExistsError, NoSuchNamespaceError, KmsError, KmsConfigurationError where
        no KMS is configured, ValueError for properties that cannot be, NotEncryptedError for a
        plain table where this catalog requires encryption, and NotImplementedError for a catalog
        that would lose the keys.
        """
        if not self._is_encrypted(properties):
            refuse_redirection({"properties": properties}, self.inner.properties, location)
            return self.inner.create_table(
                identifier, schema, location, partition_spec, sort_order, properties
            )
        new = self._new_table(identifier, schema, location, partition_spec, sort_order, properties)
        return self._created(new, new.updates, TableOutput(new.io))

    def create_table_transaction(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> CreateTableTransaction:
        """Return a transaction that creates the table when it is committed. Raises as
        ``create_table``."""
        if not self._is_encrypted(properties):
            refuse_redirection({"properties": properties}, self.inner.properties, location)
            return self.inner.create_table_transaction(
                identifier, schema, location, partition_spec, sort_order, properties
            )
        new = self._new_table(identifier, schema, location, partition_spec, sort_order, properties)
        metadata = apply_updates(None, new.updates, now_ms=now_ms())
        table = self._table(Base(new.identifier, metadata, "", Trust(new.key_id)), new.io)

        def create(updates: list[dict[str, Any]], output: TableOutput) -> None:
            table._become(self._created(new, updates, output), metadata)

        transaction = EncryptedCreateTransaction(table, new.updates, create)
        return cast("CreateTableTransaction", transaction)

    def _is_encrypted(self, properties: Properties) -> bool:
        """Whether a table with these properties is to be encrypted. Raises NotEncryptedError when
        it is not, and should be; ValueError when it has other properties of encryption alone."""
        if properties.get(TABLE_KEY_ID):
            return True
        misspelt = [name for name in properties if name.startswith("encryption.")]
        if misspelt:
            raise ValueError(
                f"the table would not be encrypted: it has {misspelt[0]!r} and no {TABLE_KEY_ID!r}"
            )
        if self.require_encrypted:
            raise NotEncryptedError(
                f"the table would not be encrypted, it has no {TABLE_KEY_ID!r}, and the catalog's "
                f"{REQUIRE_ENCRYPTED!r} is set"
            )
        return False

    def _new_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None,
        partition_spec: PartitionSpec,
        sort_order: SortOrder,
        properties: Properties,
    ) -> _NewTable:
        properties = {"format-version": "3", **properties}
        key_id = properties[TABLE_KEY_ID]
        if str(properties["format-version"]) != "3":
            raise ValueError("an encrypted table has format version 3")
        if self.key_ids and key_id not in self.key_ids:
            raise KmsConfigurationError(
                f"{key_id!r} is none of the master keys configured as {TRUSTED_KEY_IDS!r}"
            )
        kms = kms_client(self.kms, key_id)
        unknown = [
            name
            for name in properties
            if name.startswith("encryption.") and name not in (TABLE_KEY_ID, DATA_KEY_LENGTH)
        ]
        if unknown:
            raise ValueError(f"no table has the property {unknown[0]!r}")
        file_format = properties.get("write.format.default", "parquet")
        if str(file_format).lower() not in ("parquet", "avro"):
            raise ValueError(
                f"an encrypted table has data files of parquet or avro, not {file_format}"
            )
        length = str(properties.get(DATA_KEY_LENGTH, DEFAULT_DATA_KEY_LENGTH))
        if length not in map(str, KEY_SIZES):
            raise ValueError(f"{DATA_KEY_LENGTH!r} is 16, 24 or 32, not {length!r}")
        commits = self.commits()
        # A name that is wrong or a key that may not be used would be noticed at the first append.
        KeyEncryptionKey.generate(kms, key_id, key_size=int(length), timestamp_ms=now_ms())
        converted = iceberg_schema(schema)
        place = commits.place(identifier, location, converted, properties)
        updates = new_table_updates(
            converted, partition_spec, sort_order, place.location, properties, uuid.uuid4()
        )
        name = Catalog.identifier_to_tuple(identifier)
        return _NewTable(name, key_id, place, updates, commits.io(place))

    def _created(
        self, new: _NewTable, updates: list[dict[str, Any]], output: TableOutput
    ) -> EncryptedTable:
        base = self.commits().create(new.identifier, updates, output, place=new.place)
        output.keep()
        with made_whatever_comes(new.identifier):
            return self._table(base, self.commits().io(base))

    def _table(self, base: Base, io: FileIO) -> EncryptedTable:
        """Return the table for metadata that this catalog has just committed, or will."""
        key_id = base.metadata["properties"][TABLE_KEY_ID]
        return encrypted_table(
            base.identifier,
            base.metadata,
            base.location,
            io,
            self,
            kms_client(self.kms, key_id),
            replace(base.trust, key_id=key_id),
            require_encrypted=self.require_encrypted,
            config=base.config,
            storage=base.storage,
            cache=self._cache,
        )

    def commits(self) -> Commits:
        """Return what commits to this catalog's tables. Raises NotImplementedError for a catalog
        that would lose the keys."""
        if self._commits is None:
            self._commits = commits_for(self.inner)
        return self._commits

    def register_table(
        self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False
    ) -> Table:
        """Make the metadata.json at ``metadata_location`` a table of this catalog. Raises as
        ``load_table``; without a server, before the catalog knows of the table."""
        if not is_a(self.inner, "RestCatalog"):
            properties = dict(self.inner.properties)
            output = TableOutput(load_file_io(properties, metadata_location))
            metadata = read_metadata(output.io, metadata_location, Trust())
            refuse_redirection(metadata, properties, metadata_location)
            is_encrypted = table_key_id(metadata, Trust(), metadata_location) is not None
            if is_encrypted and not overwrite and is_a(self.inner, "HiveCatalog"):
                # With what Java keeps of an encrypted table in the metastore, its hash for one.
                self.commits().register(identifier, metadata_location, output)
                return self.load_table(identifier)
        self.inner.register_table(identifier, metadata_location, overwrite)
        return self.load_table(identifier)

    def rename_table(
        self, from_identifier: str | Identifier, to_identifier: str | Identifier
    ) -> Table:
        """Rename a table. Raises as ``load_table``; without a server, before it is renamed where
        its metadata is refused."""
        if not is_a(self.inner, "RestCatalog"):
            found, trust = self._find(from_identifier, Trust())
            properties = self.inner.properties
            io = load_file_io(properties, found.metadata_location)
            metadata = read_metadata(io, found.metadata_location, trust)
            refuse_redirection(metadata, properties, found.metadata_location)
        self.inner.rename_table(from_identifier, to_identifier)
        return self.load_table(to_identifier)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        if not isinstance(table, EncryptedTable):
            return self.inner.commit_table(table, requirements, updates)
        table._do_commit(updates, requirements)
        return CommitTableResponse.model_validate(
            {"metadata": table.metadata, "metadata-location": table.metadata_location}
        )

    def purge_table(self, identifier: str | Identifier) -> None:
        """Drop a table and delete its files. What is not known of it by then stays: files that
        failed commits have left, for one; so does what lies outside its folders. Raises
        ValidationException where ``gc.enabled`` is not true, and what reading the table raises:
        then nothing is dropped."""
        table = self.load_table(identifier)
        if not isinstance(table, EncryptedTable):
            self.inner.purge_table(identifier)
            return
        home = home_of(table)
        found = everything(table.view().metadata).find_files(
            table.files, table.metadata_location, home=home
        )
        output = table.output()
        self.inner.drop_table(identifier)
        failed = found.delete(output)
        logged = [entry.metadata_file for entry in table.metadata.metadata_log]
        output.discard([*home.versions(logged), table.metadata_location])
        if failed:
            raise OSError(
                f"the table is dropped, and {len(failed)} of its files could not be deleted, "
                f"{failed[0]} for one"
            )

    def migrate_table(
        self,
        identifier: str | Identifier,
        key_id: str,
        *,
        data_key_length: int = DEFAULT_DATA_KEY_LENGTH,
        drop_refs: bool = False,
        threads: int | None = None,
        delete_plaintext: bool = False,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> MigrationResult:
        """Encrypt a plain table, of any format version, under the master key ``key_id``, in place.

        Each file is encrypted on its own, ``threads`` at a time, and read back; then one commit
        makes the table an encrypted one of format version 3. Rows keep their order, sequence
        numbers and row ids. Its history goes: all snapshots but the current one were in the clear.
        Other branches and tags than main are refused unless ``drop_refs``. A run that was killed
        goes on where it was. ``delete_plaintext`` deletes the files in the clear once the new table
        is committed and verified; otherwise they are in the result, and another call for the same
        table and key tells them again, or deletes them. ``progress`` is called with the bytes of
        files that are done and of all.

        Raises ValueError for a table with such references, or one that was encrypted otherwise;
        NotImplementedError for ORC files; KmsError, MetadataIntegrityError, OSError, and
        CommitFailedException when others kept committing first.
        """
        from .maintenance.jobs import migrate

        return migrate(
            self,
            identifier,
            key_id,
            data_key_length=data_key_length,
            drop_refs=drop_refs,
            threads=threads,
            delete_plaintext=delete_plaintext,
            dry_run=dry_run,
            progress=progress,
        )

    def relocate_table(
        self,
        identifier: str | Identifier,
        new_location: str,
        *,
        move: bool = False,
        register_as: str | Identifier | None = None,
        snapshots: Literal["all", "current"] = "all",
        properties: Mapping[str, str] | None = None,
        threads: int | None = None,
        verify: bool = False,
        dry_run: bool = False,
        progress: Callable[[int, int | None], object] | None = None,
    ) -> RelocationResult:
        """Copy an encrypted table to another place, another storage too.

        Data files are copied byte by byte; what names them is written anew, with fresh keys under
        the table's KEKs. ``register_as`` names the copy in this catalog. ``move`` makes the copy
        this table, once every file of it is verified, and then deletes the files at the old place;
        a REST catalog cannot do that. Without either, the result tells where the copy's
        metadata.json is. The other arguments are those of ``maintenance.relocation.relocate``.

        Raises what that raises; CommitFailedException when somebody committed to the table
        meanwhile: run it again, what is copied stays; TableAlreadyExistsError,
        NotImplementedError.
        """
        from .maintenance.jobs import move_or_copy

        return move_or_copy(
            self,
            identifier,
            new_location,
            move=move,
            register_as=register_as,
            snapshots=snapshots,
            properties=properties,
            threads=threads,
            verify=verify,
            dry_run=dry_run,
            progress=progress,
        )

    def drop_table(self, identifier: str | Identifier) -> None:
        self.inner.drop_table(identifier)

    def table_exists(self, identifier: str | Identifier) -> bool:
        try:
            return self.inner.table_exists(identifier)
        except MetadataIntegrityError:
            # Some catalogs load it to tell. It is there, and may not be loaded.
            return True

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        return self.inner.list_tables(namespace)

    def namespace_exists(self, namespace: str | Identifier) -> bool:
        return self.inner.namespace_exists(namespace)

    def create_namespace(
        self, namespace: str | Identifier, properties: Properties = EMPTY_DICT
    ) -> None:
        self.inner.create_namespace(namespace, properties)

    def drop_namespace(self, namespace: str | Identifier) -> None:
        self.inner.drop_namespace(namespace)

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        return self.inner.list_namespaces(namespace)

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        return self.inner.load_namespace_properties(namespace)

    def update_namespace_properties(
        self,
        namespace: str | Identifier,
        removals: set[str] | None = None,
        updates: Properties = EMPTY_DICT,
    ) -> PropertiesUpdateSummary:
        return self.inner.update_namespace_properties(namespace, removals, updates)

    def create_view(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        view_version: ViewVersion,
        location: str | None = None,
        properties: Properties = EMPTY_DICT,
    ) -> View:
        return self.inner.create_view(identifier, schema, view_version, location, properties)

    def view_exists(self, identifier: str | Identifier) -> bool:
        return self.inner.view_exists(identifier)

    def list_views(self, namespace: str | Identifier) -> list[Identifier]:
        return self.inner.list_views(namespace)

    def load_view(self, identifier: str | Identifier) -> View:
        return self.inner.load_view(identifier)

    def register_view(self, identifier: str | Identifier, metadata_location: str) -> View:
        return self.inner.register_view(identifier, metadata_location)

    def drop_view(self, identifier: str | Identifier) -> None:
        self.inner.drop_view(identifier)

    def supports_server_side_planning(self) -> bool:
        # Of its plain tables: a scan of an encrypted one does not ask.
        return self.inner.supports_server_side_planning()

    def close(self) -> None:
        self.inner.close()
        if self.kms is not None and self._owns_kms:
            self.kms.close()

    def __enter__(self) -> EncryptedCatalog:
        return self

    def __getattr__(self, name: str) -> Any:
        # What only one kind of catalog has: SqlCatalog.create_tables, for one.
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return f"{self.inner.name} (encrypted tables: {self.kms!r})"


def _with_server(trust: Trust, metadata: dict[str, Any]) -> Trust:
    """Add the key that a REST server, as the table's catalog, names."""
    stated = (metadata.get("properties") or {}).get(TABLE_KEY_ID)
    return replace(trust, key_id=trust.key_id or stated or None, is_server_s=True)


def _texts(properties: Properties) -> dict[str, str]:
    return {k: v for k, v in properties.items() if isinstance(k, str) and isinstance(v, str)}
