"""``load_catalog``: PyIceberg's catalogs, able to open and write encrypted tables.

``EncryptedCatalog`` wraps a catalog of PyIceberg. Its ``load_table`` returns an ``EncryptedTable``
if the table has the property ``encryption.key-id``. What the catalog says of a table is trusted
more than the metadata file: the parameters of Hive, Glue and DynamoDB, the pins of a SQL catalog,
and a REST server's answer. A new table is encrypted if its properties name a key; without one, a
warning says so where a KMS is configured. Only the caller and the configuration file choose the
KMS, never a server, because ``encryption.kms-impl`` names code to run.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pydantic import ValidationError as PydanticValidationError
from pyiceberg.catalog import PY_CATALOG_IMPL, Catalog
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.exceptions import ValidationError as PyIcebergValidationError
from pyiceberg.io import FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import (
    AddSchemaUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from ..errors import KmsConfigurationError, MetadataIntegrityError, NotEncryptedError
from ..keys.cache import KekCache
from ..keys.envelope import KeyEncryptionKey
from ..keys.manager import DATA_KEY_LENGTH, DEFAULT_DATA_KEY_LENGTH, TABLE_KEY_ID, now_ms
from ..kms.client import KmsClient
from ..kms.properties import Properties as KmsProperties
from ..kms.registry import from_properties, names_kms
from .commit.base import Base, file_base
from .commit.commits import Commits, NewLocation
from .commit.connections import connection_to
from .commit.new_table import new_table_updates
from .commit.outcome import after_commit
from .commit.session import open_version
from .commit.updates import apply_updates
from .operations.catalog_jobs import MigrationResult, migrate
from .operations.expire import expire_all
from .operations.expire_snapshots import Expiry
from .pyiceberg.arrow import iceberg_schema
from .pyiceberg.catalogs import configured_properties, plain_file_io
from .pyiceberg.delegation import DelegatingCatalog
from .pyiceberg.guard import guard_catalog
from .pyiceberg.redirection import refuse_redirection
from .pyiceberg.tables import transaction_table
from .read.metadata import is_plaintext_with_key_id, not_encrypted, table_key_id
from .spec.properties import check_encryption, is_like_encryption, refuse_misspelt
from .spec.shape import check_evolution
from .storage.output import TableOutput
from .storage.trust import Trust
from .table import EncryptedTable, OpenedTable, kms_client
from .transaction import EncryptedCreateTransaction
from .write.arrow_input import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from .write.arrow_input import ArrowRows, ArrowSchemaProducer

# Properties of a catalog. Only the caller sets them: a server's values are ignored.
TRUSTED_KEY_IDS = "encryption.trusted-key-ids"
REQUIRE_ENCRYPTED = "encryption.require-encrypted"
# The value of PyIceberg's property ``py-catalog-impl`` that names ``load_catalog``.
_THIS_IMPL = "ags1.iceberg.load_catalog"


class PlainTableWarning(UserWarning):
    """A catalog that has a KMS creates an unencrypted table, one that has ``key_ids`` loads one, or
    a table with ``encryption.key-id`` is not encrypted."""


def load_catalog(name: str | None = None, **properties: str | None) -> EncryptedCatalog:
    """Return the catalog that PyIceberg's ``load_catalog`` returns, able to open encrypted tables.

    The arguments, the configuration file and the environment are PyIceberg's. Iceberg's encryption
    properties (``encryption.kms-type``, …) or PyIceberg's ``py-kms-impl`` choose the KMS. Without
    them, only unencrypted tables can be loaded. If the caller of PyIceberg's own ``load_catalog``
    sets the property ``py-catalog-impl`` to ``ags1.iceberg.load_catalog``, PyIceberg calls this
    function. This library has two more properties:

    ``encryption.trusted-key-ids`` lists the master keys that a table may name, separated by commas.
    Set it if the KMS would also unwrap with another user's key (AWS, GCP), unless the catalog
    itself keeps the key IDs of its tables (SQL, Hive, REST, Glue, DynamoDB).
    ``encryption.require-encrypted=true`` sets ``require_encrypted`` for every table: unencrypted
    tables and unencrypted data files are refused.

    If you already have a KMS client, use
    ``EncryptedCatalog(pyiceberg.catalog.load_catalog(…), client)``. Raises KmsConfigurationError,
    and what PyIceberg raises.
    """
    if properties.get(PY_CATALOG_IMPL) == _THIS_IMPL:
        # PyIceberg has called us, and now loads the catalog that the others name.
        del properties[PY_CATALOG_IMPL]
    return catalog_with(None, name, properties)


def catalog_with(
    kms: KmsClient | None, name: str | None, properties: Mapping[str, str | None]
) -> EncryptedCatalog:
    """Return the catalog as ``load_catalog`` does, but with the client ``kms`` unless that is
    None. Closing the catalog does not close this client."""
    configured = configured_properties(name, properties)
    rules = catalog_rules(configured)
    inner = load_plain_catalog(name, **properties)
    owns_kms = kms is None and names_kms(configured)
    return EncryptedCatalog(
        inner, from_properties(configured) if owns_kms else kms, owns_kms=owns_kms, **rules
    )


def catalog_rules(configured: Mapping[str, str]) -> dict[str, Any]:
    """Return ``key_ids`` and ``require_encrypted`` as configured. Raises KmsConfigurationError."""
    for name in configured:
        if (
            is_like_encryption(name)
            and not name.startswith("encryption.kms")
            and name not in (TRUSTED_KEY_IDS, REQUIRE_ENCRYPTED)
        ):
            raise KmsConfigurationError(
                f"the catalog property {name!r} does not exist: use {TRUSTED_KEY_IDS!r}, "
                f"{REQUIRE_ENCRYPTED!r} or a property of the KMS, 'encryption.kms…'"
            )
    key_ids = [part.strip() for part in configured.get(TRUSTED_KEY_IDS, "").split(",")]
    required = configured.get(REQUIRE_ENCRYPTED, "false").lower()
    if required not in ("true", "false"):
        raise KmsConfigurationError(
            f"the catalog property {REQUIRE_ENCRYPTED!r} must be 'true' or 'false', "
            f"not {required!r}"
        )
    return {"key_ids": list(filter(None, key_ids)), "require_encrypted": required == "true"}


class NewTable(NamedTuple):
    """What is asked of a new table: the arguments of ``create_table``, in PyIceberg's order."""

    identifier: str | Identifier
    schema: Schema | pa.Schema
    location: str | None
    partition_spec: PartitionSpec
    sort_order: SortOrder
    properties: Properties


class EncryptedCatalog(DelegatingCatalog):
    """PyIceberg's catalog ``inner``, whose encrypted tables open with ``kms``.

    ``key_ids`` are the master keys that a table may name. If it is empty, a table may name any key.
    ``require_encrypted`` is the default of the argument of ``load_table``. If ``owns_kms`` is true,
    ``close`` closes the KMS client too.

    A table that is created with the property ``encryption.key-id`` is encrypted. Namespaces, views
    and all other methods and attributes are those of the inner catalog. ``isinstance`` is true for
    the inner catalog's class. SQL, Hive, REST, Glue and DynamoDB catalogs keep the keys of a table.
    With any other catalog, writing an encrypted table raises NotImplementedError.
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
        properties = inner.properties.items()
        texts = {k: v for k, v in properties if isinstance(k, str) and isinstance(v, str)}
        # Only the KMS client needs these secrets. Code that gets the catalog must not see them.
        for name in KmsProperties(texts).secrets():
            if name.startswith(("encryption.", "kms.")):
                del inner.properties[name]
        super().__init__(inner.name, **inner.properties)
        guard_catalog(inner)
        self.inner = inner
        self.kms = kms
        self.key_ids = frozenset(key_ids)
        self.require_encrypted = require_encrypted
        self._owns_kms = owns_kms
        self._warned_of: set[Identifier] = set()
        # All tables share one cache, so that a refresh does not ask the KMS again.
        self._cache = None if kms is None else KekCache(kms)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a catalog is not pickled or copied, because it has connections and may have "
            "credentials: load the catalog, and its tables, in each process, or pickle a scan of "
            "a table"
        )

    def load_table(
        self,
        identifier: str | Identifier,
        *,
        expected_key_id: str | None = None,
        expected_metadata_sha256: str | None = None,
        location_map: Mapping[str, str] | None = None,
        require_encrypted: bool | None = None,
    ) -> OpenedTable:
        """Return an ``EncryptedTable`` if the table is encrypted, else PyIceberg's ``Table``.

        The arguments after ``identifier`` are as in ``open_table``. If Hive, Glue or DynamoDB
        has ``metadata_hash``, ``encryption.key-id`` or ``encryption.data-key-length``, or if a SQL
        catalog has pins of the table, the metadata must agree with them. If a REST server answers
        with metadata, that is used and not the metadata file, unless a SHA-256 of the file is
        expected.

        Files are read with the properties of the caller and of the catalog. Properties in the
        metadata that contradict them (``py-io-impl``, ``s3.endpoint``, …) are refused before
        anything obeys them. This holds for unencrypted tables too, and for every method that loads
        one.

        Warns with PlainTableWarning if the table is not encrypted and the catalog has ``key_ids``.
        Raises as ``open_table`` does, and NoSuchTableError.
        """
        trust = Trust(expected_key_id, expected_metadata_sha256)
        base = self.connection.read(identifier, trust, as_pyiceberg=True)
        return self._opened(base, location_map, require_encrypted)

    def _opened(
        self,
        base: Base,
        location_map: Mapping[str, str] | None = None,
        require_encrypted: bool | None = None,
    ) -> OpenedTable:
        """Return the table if its key is an expected one."""
        if require_encrypted is None:
            require_encrypted = self.require_encrypted
        base = replace(base, trust=self._with_key_ids(base))
        if is_plaintext_with_key_id(base.metadata):
            self.connection.check_never_encrypted(base)
        key_id = table_key_id(base.metadata, base.trust, base.location)
        if key_id is None:
            return self._plain_table(base, require_encrypted)
        version = open_version(
            base,
            base.io(self.inner),
            kms_client(self.kms, key_id),
            location_map=location_map,
            require_encrypted=require_encrypted,
            cache=self._cache,
        )
        return EncryptedTable(version, self)

    def _plain_table(self, base: Base, require_encrypted: bool) -> Table:
        """Return PyIceberg's table, made from the metadata that was checked."""
        if require_encrypted:
            raise not_encrypted(base.metadata, base.location)
        doubt = None
        if is_plaintext_with_key_id(base.metadata):
            doubt = (
                f"although it has {TABLE_KEY_ID!r}: another writer wrote plaintext, and what you "
                "write is plaintext too. migrate_table() (ags1 table migrate) encrypts it"
            )
        elif self.key_ids:
            doubt = (
                f"but its catalog has {TRUSTED_KEY_IDS!r}: if it should be encrypted, somebody "
                f"replaced its metadata. Set {REQUIRE_ENCRYPTED!r} to refuse such tables"
            )
        if doubt and base.identifier not in self._warned_of:
            self._warned_of.add(base.identifier)
            name = ".".join(base.identifier)
            warnings.warn(f"{name} is not encrypted, {doubt}", PlainTableWarning, stacklevel=4)
        parsed = TableMetadataUtil.parse_obj(base.metadata)
        properties = {**parsed.properties, **base.config.storage}
        io = plain_file_io(self.inner, properties, base.location)
        return Table(base.identifier, parsed, base.location, io, self, base.config.config)

    def _with_key_ids(self, base: Base) -> Trust:
        """Return what is known of the table, with its metadata's key ID if that is one of
        ``key_ids``. Raises MetadataIntegrityError if it is not, even if a server names the same."""
        stated = (base.metadata.get("properties") or {}).get(TABLE_KEY_ID)
        if not stated or not self.key_ids:
            return base.trust
        if stated not in self.key_ids:
            raise MetadataIntegrityError(
                f"the metadata names {stated!r} as the table's key, which is none of those "
                f"configured as {TRUSTED_KEY_IDS!r}: add it there if you trust it",
                file=base.location,
            )
        return base.trust if base.trust.key_id is not None else replace(base.trust, key_id=stated)

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema | ArrowSchemaProducer | ArrowRows,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> OpenedTable:
        """Create a table. It is encrypted if ``properties`` has ``encryption.key-id``.

        ``schema`` may be any object that exports an Arrow schema or Arrow data, such as a data
        frame. Its rows are not written. A stream that can be read only once is used up.

        An encrypted table has format version 3. Further properties are
        ``encryption.data-key-length`` (16, 24 or 32 bytes) and ``write.format.default``
        (``parquet`` or ``avro``). The master key is used once, to test that it works.

        Raises TableAlreadyExistsError; NoSuchNamespaceError; KmsError; KmsConfigurationError if no
        KMS is configured; ValueError for invalid properties; NotEncryptedError for an unencrypted
        table if this catalog requires encryption; NotImplementedError if the catalog does not keep
        keys.
        """
        wanted = NewTable(
            identifier, arrow_schema(schema), location, partition_spec, sort_order, properties
        )
        if not self._is_encrypted(properties, location):
            self.connection.forget(identifier)
            table = self.inner.create_table(*wanted)
            self._warn_of_plain(identifier)
            table.catalog = self
            return table
        place, updates = self._new_table(wanted)
        return self._created(identifier, place, updates, TableOutput(place.io(self.inner)))

    def create_table_if_not_exists(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema | ArrowSchemaProducer | ArrowRows,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> OpenedTable:
        """Create a table, or load the one that exists. Raises as the two methods do."""
        return super().create_table_if_not_exists(
            identifier, schema, location, partition_spec, sort_order, properties
        )

    def create_table_transaction(  # type: ignore[override]
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema | ArrowSchemaProducer | ArrowRows,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> EncryptedCreateTransaction | Any:
        """Return a transaction whose commit creates the table. Raises as ``create_table``."""
        wanted = NewTable(
            identifier, arrow_schema(schema), location, partition_spec, sort_order, properties
        )
        if not self._is_encrypted(properties, location):
            self.connection.forget(identifier)
            plain = self.inner.create_table_transaction(*wanted)
            self._warn_of_plain(identifier)
            transaction_table(plain).catalog = self
            return plain
        place, updates = self._new_table(wanted)
        metadata = apply_updates(None, updates, now_ms=now_ms())
        name = Catalog.identifier_to_tuple(identifier)
        base = Base(name, metadata, "", Trust(metadata["properties"][TABLE_KEY_ID]))
        table = self._table(base, place.io(self.inner))

        def create(updates: list[dict[str, Any]], output: TableOutput) -> None:
            table.switch_to(self._created(identifier, place, updates, output).version, base)

        return EncryptedCreateTransaction(table, updates, create)

    def _is_encrypted(self, properties: Properties, location: str | None) -> bool:
        """Return whether a table with these properties will be encrypted. Raises NotEncryptedError
        if it will not and this catalog requires it, ValueError for properties of encryption without
        a key ID, and MetadataIntegrityError if the properties or the location of an unencrypted
        table contradict the catalog's."""
        if properties.get(TABLE_KEY_ID):
            return True
        misspelt = list(filter(is_like_encryption, properties))
        if misspelt:
            raise ValueError(
                f"the table would not be encrypted: it has the property {misspelt[0]!r} and no "
                f"{TABLE_KEY_ID!r}. Add {TABLE_KEY_ID!r}, or remove {misspelt[0]!r}"
            )
        for name in self.inner.properties:
            prefix, _, rest = name.partition(".")
            if prefix in ("table-default", "table-override") and is_like_encryption(rest):
                raise ValueError(
                    f"the table would not be encrypted: the catalog's {name!r} is obeyed by Java "
                    f"alone, because a REST server may have set it. Add the property "
                    f"{TABLE_KEY_ID!r}, or remove {name!r}"
                )
        if self.require_encrypted:
            raise NotEncryptedError(
                f"the table would not be encrypted, and the catalog's {REQUIRE_ENCRYPTED!r} is "
                f"set: add the property {TABLE_KEY_ID!r}"
            )
        refuse_redirection({"properties": properties}, self.inner.properties, location)
        return False

    def _warn_of_plain(self, identifier: str | Identifier) -> None:
        """Warn of a new unencrypted table, if this catalog has a KMS."""
        if self.kms is not None:
            name = ".".join(Catalog.identifier_to_tuple(identifier))
            warnings.warn(
                f"the new table {name} is not encrypted, although its catalog has a KMS: add the "
                f"property {TABLE_KEY_ID!r} to encrypt it. Set the catalog's {REQUIRE_ENCRYPTED!r} "
                "to refuse such tables",
                PlainTableWarning,
                stacklevel=3,
            )

    def _new_table(self, wanted: NewTable) -> tuple[NewLocation, list[dict[str, Any]]]:
        """Return where a new encrypted table will be, and the updates that create it."""
        # As PyIceberg does: numbers become text, and other values that are not text are refused.
        properties = SetPropertiesUpdate(updates=wanted.properties).updates
        properties = {"format-version": "3", **properties}
        key_id = properties[TABLE_KEY_ID]
        if self.key_ids and key_id not in self.key_ids:
            raise KmsConfigurationError(
                f"{key_id!r} is none of the master keys configured as {TRUSTED_KEY_IDS!r}: "
                "add it there, or use one of them"
            )
        kms = kms_client(self.kms, key_id)
        check_encryption(properties)
        key_size = int(properties.get(DATA_KEY_LENGTH, DEFAULT_DATA_KEY_LENGTH))
        commits = self.commits()
        # Fail now, not at the first append, if the key ID is wrong or the key may not be used.
        KeyEncryptionKey.generate(kms, key_id, key_size=key_size, timestamp_ms=now_ms())
        schema = iceberg_schema(wanted.schema)
        place = commits.new_location(wanted.identifier, wanted.location, schema, properties)
        return place, new_table_updates(
            schema, wanted.partition_spec, wanted.sort_order, place.location, properties
        )

    def _created(
        self,
        identifier: str | Identifier,
        place: NewLocation,
        updates: list[dict[str, Any]],
        output: TableOutput,
    ) -> EncryptedTable:
        base = self.commits().create(identifier, updates, output, new_location=place)
        output.keep()
        with after_commit(base.identifier):
            return self._table(base, base.io(self.inner))

    def _table(self, base: Base, io: FileIO) -> EncryptedTable:
        """Return the table for metadata that this catalog has just committed or will commit."""
        version = open_version(
            base,
            io,
            kms_client(self.kms, base.metadata["properties"][TABLE_KEY_ID]),
            require_encrypted=self.require_encrypted,
            cache=self._cache,
        )
        return EncryptedTable(version, self)

    def commits(self) -> Commits:
        """Return the object that commits to this catalog's tables. Raises NotImplementedError if
        the catalog does not keep keys, or if PyIceberg is newer than the tested version."""
        self.connection.check_writable()
        return self.connection

    @functools.cached_property
    def connection(self) -> Commits:
        """The object that reads this catalog's tables, and commits to them if it can."""
        return connection_to(self.inner)

    def register_table(
        self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False
    ) -> OpenedTable:
        """Register the metadata.json at ``metadata_location`` as a table of this catalog. Raises as
        ``load_table``; unless this is a REST catalog, it does so before the table is registered."""
        name = self.identifier_to_tuple(identifier)
        by_server = self.connection.register_by_server(identifier, metadata_location, overwrite)
        if by_server is not None:
            return self._opened(by_server)
        base = file_base(self.inner, name, metadata_location, Trust())
        refuse_misspelt(base.metadata.get("properties") or ())
        is_encrypted = table_key_id(base.metadata, base.trust, metadata_location) is not None
        if is_encrypted and not overwrite and self.connection.keeps_location:
            # Keep in the catalog what Java keeps in Hive's for an encrypted table (such as its
            # hash), and avoid PyIceberg's parser, which does not know all types.
            output = TableOutput(base.io(self.inner))
            self.commits().register(identifier, metadata_location, output)
            return self.load_table(identifier)
        self.connection.forget(identifier)
        with suppress(*(_UNPARSED if self.connection.parses_registered else ())):
            self.inner.register_table(identifier, metadata_location, overwrite)
        return self.load_table(identifier)

    def rename_table(
        self, from_identifier: str | Identifier, to_identifier: str | Identifier
    ) -> OpenedTable:
        """Rename a table. Raises as ``load_table``. Unless the catalog is a REST catalog, metadata
        is refused before the table is renamed."""
        # If the table does not exist, the inner catalog raises its own error below.
        encrypted: Base | None = None
        with suppress(NoSuchTableError):
            if not self.connection.has_server:
                base = self.connection.read(from_identifier, Trust())
                if table_key_id(base.metadata, base.trust, base.location) is not None:
                    encrypted = base
        with suppress(*(_UNPARSED if self.connection.parses_renamed else ())):
            if encrypted is not None and self.connection.keeps_location:
                self.commits().rename(encrypted, to_identifier)
            else:
                self.connection.forget(to_identifier)
                self.inner.rename_table(from_identifier, to_identifier)
        return self.load_table(to_identifier)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Commit PyIceberg's updates to a table, as PyIceberg does. Raises TypeChangeError, a
        ValueError and PyIceberg's ValidationError, if a column would get a type that the values in
        its files do not have, or another initial default."""
        if not isinstance(table, EncryptedTable):
            for update in updates:
                if isinstance(update, AddSchemaUpdate):
                    schemas = (*table.metadata.schemas, table.schema())
                    before = [schema.model_dump(mode="json") for schema in schemas]
                    check_evolution(update.schema_.model_dump(mode="json"), before)
                if isinstance(update, SetPropertiesUpdate):
                    for name in filter(is_like_encryption, update.updates):
                        raise ValueError(
                            f"{name!r} does not encrypt a table that exists: use "
                            f"catalog.migrate_table({'.'.join(table.name())!r}, key_id)"
                        )
            return self.inner.commit_table(table, requirements, updates)
        table.commit_built(updates, requirements)
        return CommitTableResponse.model_validate(
            {"metadata": table.metadata, "metadata-location": table.metadata_location}
        )

    def purge_table(  # type: ignore[override]  # PyIceberg's returns nothing
        self, identifier: str | Identifier, *, dry_run: bool = False
    ) -> Expiry | None:
        """Drop a table and delete its files; return what was deleted, or None for an unencrypted
        table. Files that its metadata does not reach stay, for example those of failed commits, and
        so do files outside its folders. If ``dry_run`` is true, nothing is dropped.

        Raises ValidationException if ``gc.enabled`` is not true, and what reading the table raises.
        In both cases nothing is dropped. Raises OSError if the catalog fails, or if files are left,
        and NotEncryptedError for a dry run of an unencrypted table."""
        table = self.load_table(identifier)
        if not isinstance(table, EncryptedTable):
            if dry_run:
                raise NotEncryptedError("PyIceberg has no dry run for an unencrypted table")
            self.inner.purge_table(identifier)
            return None
        folders = table.folders
        plan = expire_all(table.view().metadata)
        files = plan.find_files(table.files, folders)
        done = Expiry(plan.snapshot_ids, plan.refs, files)
        if dry_run:
            return done
        output = table.output()
        location = table.location()
        try:
            self.drop_table(identifier)
        except NoSuchTableError:
            raise
        except Exception as error:
            raise OSError(
                f"the catalog did not say that the table was dropped ({type(error).__name__}), so "
                f"its files are left in {location}: purge it again. If the catalog does not have "
                "it any more, delete them by hand"
            ) from error
        failed = files.delete(output)
        logged = [entry.metadata_file for entry in table.metadata.metadata_log]
        output.discard([*folders.versions(logged), table.metadata_location])
        if failed:
            raise OSError(
                f"the table is dropped, but {len(failed)} of its files in {location} could not be "
                f"deleted, such as {failed[0]}: delete them by hand"
            )
        return done

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
        """Encrypt an unencrypted table in place, under the master key ``key_id``.

        The table may have any format version. Each file is encrypted on its own and read back,
        ``threads`` files at a time. Then one commit makes the table an encrypted one of format
        version 3. Rows keep their order, sequence numbers and row IDs. Only the current snapshot
        stays: the older ones are not encrypted. If the table has other branches or tags than main,
        it is refused unless ``drop_refs`` is true. If a run is killed, the next one continues its
        work.

        If ``delete_plaintext`` is true, the unencrypted files are deleted after the new table is
        committed and verified. If not, the result lists them, and another call for the same table
        and key lists them again or deletes them. If ``gc.enabled`` is not true, other tables may
        have them too: then they stay, and ``delete_plaintext`` is refused before anything is
        changed. ``progress`` is called with two numbers of bytes: those of the finished files, and
        those of all files.

        Raises ValueError for a table with such branches or tags, or that is encrypted under another
        key; ValidationException for ``delete_plaintext`` if ``gc.enabled`` is not true;
        NotImplementedError for ORC files; KmsError; MetadataIntegrityError; OSError;
        CommitFailedException if other writers kept committing first.
        """
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

    def drop_table(self, identifier: str | Identifier) -> None:
        """Drop a table from the catalog. Its files stay."""
        self.connection.drop(identifier)

    def table_exists(self, identifier: str | Identifier) -> bool:
        """Return whether the catalog has the table, even if its metadata is refused."""
        try:
            return self.inner.table_exists(identifier)
        except (MetadataIntegrityError, *_UNPARSED):
            # Some catalogs load the table to find out. It exists, but it may not or cannot load.
            return True

    def close(self) -> None:
        """Close the inner catalog, and the KMS client if this catalog owns it."""
        self.inner.close()
        if self.kms is not None and self._owns_kms:
            self.kms.close()

    def __enter__(self) -> EncryptedCatalog:
        return self

    def __getattr__(self, name: str) -> Any:
        # Methods that only one kind of catalog has, such as SqlCatalog.create_tables.
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # isinstance reads this after the type. So code that checks for a kind of catalog gets the
        # inner one's kind: DataScan._plan_files_server_side of PyIceberg refuses to plan with a
        # catalog that is no RestCatalog.
        inner = vars(self).get("inner")
        return EncryptedCatalog if inner is None else type(inner)

    def __repr__(self) -> str:
        return repr(self.inner) if self.kms is None else f"{self.inner!r}, keys of {self.kms!r}"


# PyIceberg raises these for metadata with a column of a type that it does not know.
_UNPARSED = (PyIcebergValidationError, PydanticValidationError)
