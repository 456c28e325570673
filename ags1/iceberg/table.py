"""``EncryptedTable`` is PyIceberg's ``Table`` for an encrypted table; ``open_table`` returns one.

Reading uses PyIceberg's own methods, with our snapshots, scans and files below them. Writing has
the same methods as PyIceberg but none of its code, because that code would write plaintext.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import load_file_io
from pyiceberg.manifest import ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import ALWAYS_TRUE, Table, Transaction
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.table.update.statistics import UpdateStatistics
from pyiceberg.typedef import EMPTY_DICT, Properties

from ..errors import KmsConfigurationError
from ..kms.client import KmsClient
from ..kms.registry import KMS_IMPL, KMS_TYPE, from_properties
from .commit.base import Base
from .commit.session import TableSession, open_version
from .operations.check import check_table
from .operations.compact import rewrite_data_files
from .operations.delete_rows import delete
from .operations.erase import erase_deleted_rows
from .operations.expire_snapshots import EncryptedMaintenance, expire_snapshots
from .operations.orphans import remove_orphan_files
from .operations.rekey import rekey
from .operations.rotation import prune_keys, rewrap_keys, rotate_keys
from .pyiceberg.arrow import TableSchema
from .pyiceberg.defaults import ExactUpdateSchema
from .pyiceberg.expressions import parse_row_filter
from .pyiceberg.metadata_tables import InspectedMetadata, MetadataTables
from .pyiceberg.redirection import refuse_redirection
from .pyiceberg.tables import ReusingUpdateSpec, check_uuid
from .read.metadata import not_encrypted, read_metadata, table_key_id
from .read.scan import EncryptedIncrementalScan, EncryptedScan
from .spec.column_types import as_stored, readable
from .spec.constants import MAIN_BRANCH
from .storage.metadata_files import absolute, find_metadata, moved_to
from .storage.trust import Trust
from .transaction import EncryptedTransaction

if TYPE_CHECKING:
    import polars


# What is returned for a table that may be unencrypted, which is then PyIceberg's own ``Table``.
# With ``Any`` for that, type checkers accept the methods of ``EncryptedTable`` without a cast, and
# ``isinstance`` tells the two apart.
OpenedTable: TypeAlias = "EncryptedTable | Any"


def open_table(
    location: str,
    kms: KmsClient | Mapping[str, str] | Callable[[str], KmsClient] | None = None,
    location_map: Mapping[str, str] | None = None,
    *,
    expected_key_id: str | None = None,
    expected_metadata_sha256: str | None = None,
    require_encrypted: bool = False,
    trust_file_size: bool = False,
    properties: Properties | None = None,
) -> OpenedTable:
    """Open a table without a catalog. Return an ``EncryptedTable`` if it is encrypted, else
    PyIceberg's ``Table``.

    ``location`` is that of a metadata.json, or of the table's folder. In a folder, the newest
    metadata.json is read: the one that ``version-hint.text`` names, or else the one with the
    highest number; two with that number are refused. ``refresh`` looks for it again. Whoever can
    write to the folder can put an older version there.

    ``kms`` is a KMS client, or Iceberg's properties of one (``encryption.kms-type``, …). It is None
    for a table that is not encrypted. If you do not know whether the table is encrypted, or under
    which master key, it is a function: it gets the ID of the master key that the metadata names,
    and returns the client. It is called only for an encrypted table. ``location_map`` says where a
    moved table is: ``{prefix in the metadata: prefix now}``. By default, the table is in the folder
    that was given. ``properties`` are those of PyIceberg's FileIO.

    Others may be able to replace the metadata.json. So pass what you know of the table:
    ``expected_key_id`` is its master key, ``expected_metadata_sha256`` is the SHA-256 of the file
    in hex. An encrypted table may have unencrypted data files; with ``require_encrypted`` a scan
    refuses them. Builds of iceberg-rust of August 2026 and later wrote key metadata without the
    files' lengths. ``trust_file_size`` takes the stored size of such a file for its length. Then
    nobody notices a manifest list or a manifest that was cut at the end of a block.

    Raises NotEncryptedError if the table is not encrypted and a KMS (other than as a function), a
    key ID or ``require_encrypted`` is given; MetadataIntegrityError if the metadata is not the
    expected one, or if it names code to run or a server to ask that ``properties`` do not name;
    KeyMetadataError if the KMS would also unwrap with another user's key (AWS, GCP) and neither the
    key ID nor the SHA-256 is given; KmsConfigurationError; FileNotFoundError; OSError for a folder
    in a storage that cannot list files.
    """
    location = absolute(location)
    identifier = ("static-table", location)
    io = load_file_io(dict(properties or {}), location)
    location, folder = find_metadata(io, location)
    trust = Trust(expected_key_id, expected_metadata_sha256)
    metadata = read_metadata(io, location, trust)
    refuse_redirection(metadata, properties or {}, location)
    key_id = table_key_id(metadata, trust, location)
    catalog = NoopCatalog("static-table")
    if key_id is None:
        if require_encrypted or not (kms is None or callable(kms)):
            raise not_encrypted(metadata, location)
        plain = TableMetadataUtil.parse_obj(metadata)
        return Table(identifier, plain, location, io, catalog)
    version = open_version(
        Base(identifier, metadata, location, trust),
        io,
        kms(key_id) if callable(kms) else kms_client(kms, key_id),
        location_map=location_map or moved_to(folder, metadata.get("location")),
        require_encrypted=require_encrypted,
    )
    version.files.trust_file_size = trust_file_size
    return EncryptedTable(version, catalog)


def kms_client(kms: KmsClient | Mapping[str, str] | None, key_id: str) -> KmsClient:
    """Return the KMS client that opens a table under ``key_id``. Raises KmsConfigurationError."""
    if kms is None:
        raise KmsConfigurationError(
            f"the table is encrypted under {key_id!r} and no KMS is configured: "
            f"give {KMS_TYPE!r} or {KMS_IMPL!r}, or a KMS client"
        )
    return from_properties(kms) if isinstance(kms, Mapping) else kms


class EncryptedTable(TableSession):
    """An encrypted table with the methods of PyIceberg's ``Table``.

    ``inspect`` shows null for key metadata. ``to_daft``, ``to_bodo`` and DataFusion would open the
    files without keys, so they raise NotImplementedError. Writing raises NotImplementedError if the
    table was opened without a catalog, or from a catalog that does not keep keys.

    Each of the methods that follow is a function of ``operations``, whose first argument is the
    table.
    """

    delete = delete  # type: ignore[assignment]  # PyIceberg's returns nothing
    # Keys.
    rotate_keys = rotate_keys
    rewrap_keys = rewrap_keys
    prune_keys = prune_keys
    rekey = rekey
    # Files and snapshots.
    rewrite_data_files = rewrite_data_files
    expire_snapshots = expire_snapshots
    erase_deleted_rows = erase_deleted_rows
    remove_orphan_files = remove_orphan_files
    # What is wrong, and what fixes it.
    check = check_table

    def transaction(self) -> EncryptedTransaction:
        """Return a transaction, which commits several changes as one. Raises NotImplementedError if
        the table has no catalog that keeps keys."""
        return EncryptedTransaction(self)

    def schema(self) -> Schema:
        """Return the table's schema."""
        return TableSchema.of(super().schema())

    def schemas(self) -> dict[int, Schema]:
        """Return the table's schemas by their IDs."""
        return {number: TableSchema.of(schema) for number, schema in super().schemas().items()}

    def scan(
        self,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        selected_fields: tuple[str, ...] = ("*",),
        case_sensitive: bool = True,
        snapshot_id: int | None = None,
        options: Properties | None = None,
        limit: int | None = None,
    ) -> EncryptedScan:
        """Return a scan. The arguments and the scan's methods are PyIceberg's."""
        return EncryptedScan(
            table_metadata=self.metadata,
            io=self.io,
            row_filter=row_filter,
            selected_fields=selected_fields,
            case_sensitive=case_sensitive,
            snapshot_id=snapshot_id,
            options=options or {},
            limit=limit,
        )

    def incremental_append_scan(
        self,
        *,
        from_snapshot_id_exclusive: int | None = None,
        to_snapshot_id_inclusive: int | None = None,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        selected_fields: tuple[str, ...] = ("*",),
        case_sensitive: bool = True,
        options: Properties | None = None,
        limit: int | None = None,
    ) -> EncryptedIncrementalScan:
        """Return a scan of the rows that were appended between two snapshots."""
        return EncryptedIncrementalScan(
            table_metadata=self.metadata,
            io=self.io,
            row_filter=parse_row_filter(row_filter),
            selected_fields=selected_fields,
            case_sensitive=case_sensitive,
            options=options or {},
            limit=limit,
            from_snapshot_id=from_snapshot_id_exclusive,
            to_snapshot_id=to_snapshot_id_inclusive,
        )

    def __repr__(self) -> str:
        return f"{super().__repr__()},\nencrypted by: [{self.key_id}]"

    def __arrow_c_schema__(self) -> object:
        """Return the schema of ``scan()``."""
        return self.scan().__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows of ``scan()`` as a stream of Arrow batches, with its errors."""
        return self.scan().__arrow_c_stream__(requested_schema)

    @property
    def inspect(self) -> MetadataTables:
        """PyIceberg's metadata tables, without metrics of columns whose type PyIceberg lacks. See
        ``MetadataTables`` for what partition fields they have."""
        schemas = [as_stored(readable(schema, variants=False)) for schema in self.metadata.schemas]
        version = replace(self.version, metadata=InspectedMetadata.of(self.metadata, schemas))

        def entries_of(
            snapshot_id: int | None, row_filter: str | BooleanExpression, case_sensitive: bool
        ) -> Iterable[ManifestEntry]:
            scan = self.scan(row_filter, case_sensitive=case_sensitive, snapshot_id=snapshot_id)
            snapshot: Any = scan.snapshot()
            entries = scan.planner().plan_manifest_entries(snapshot.manifests(self.io))
            return itertools.chain.from_iterable(entries)

        return MetadataTables(EncryptedTable(version, self.catalog), entries_of)

    @property
    def maintenance(self) -> EncryptedMaintenance:
        """PyIceberg's maintenance. Its ``expire_snapshots`` deletes no files; that of this class
        does."""
        return EncryptedMaintenance(self)

    def refresh(self) -> EncryptedTable:
        """Read the table's metadata again, check it again, and return this table. Raises as loading
        does, and MetadataIntegrityError if the table now has another key or none. To accept that,
        load the table anew."""
        before = self.version.base
        fresh = self._load_again()
        check_uuid(self.metadata, fresh.metadata)
        assert isinstance(fresh, EncryptedTable)  # a key is expected
        self.switch_to(fresh.version, before)
        return self

    def _load_again(self) -> OpenedTable:
        trust = self.version.base.trust
        files = self.files
        if isinstance(self.catalog, NoopCatalog):
            return open_table(
                self._identifier[1],
                files.keys.kms,
                files.location_map,
                expected_key_id=trust.key_id,
                expected_metadata_sha256=trust.metadata_sha256,
                require_encrypted=files.require_encrypted,
                trust_file_size=files.trust_file_size,
                properties=files.properties,
            )
        return self.catalog.load_table(  # type: ignore[call-arg]  # our catalog's
            self._identifier,
            expected_key_id=trust.key_id,
            expected_metadata_sha256=trust.metadata_sha256,
            location_map=files.location_map,
            require_encrypted=files.require_encrypted,
        )

    def to_polars(self) -> polars.LazyFrame:
        """Return the table as a lazy frame of Polars, by ``polars.scan_iceberg``. Before 2.1,
        Polars turned filters into those of Iceberg, which leave NaN out; so they are not pushed
        down. Raises ImportError if Polars is not installed."""
        import polars as pl  # an optional dependency

        release = tuple(map(int, pl.__version__.split(".")[:2]))
        # If there is no file to read, Polars reads by itself, and refuses variants.
        return pl.scan_iceberg(
            self, reader_override="pyiceberg", use_pyiceberg_filter=release >= (2, 1)
        )

    def to_daft(self) -> NoReturn:
        """Raise NotImplementedError: Daft opens the files without keys."""
        message = "Daft opens the files without keys: use daft.from_arrow(table.scan())"
        raise NotImplementedError(message)

    def to_bodo(self) -> NoReturn:
        """Raise NotImplementedError: Bodo opens the files without keys."""
        raise NotImplementedError("Bodo opens the files without keys: use scan().to_arrow()")

    def __datafusion_table_provider__(self, session: Any | None = None) -> NoReturn:
        raise NotImplementedError(
            "DataFusion opens the files without keys: use SessionContext().from_arrow(table.scan())"
        )

    # -- writing

    def update_schema(
        self, allow_incompatible_changes: bool = False, case_sensitive: bool = True
    ) -> ExactUpdateSchema:
        """Return PyIceberg's builder for a change of the schema, as that of a transaction."""
        return ExactUpdateSchema(
            Transaction(self, autocommit=True),
            allow_incompatible_changes,
            case_sensitive,
            name_mapping=self.name_mapping(),
        )

    def update_spec(self, case_sensitive: bool = True) -> UpdateSpec:
        """Return PyIceberg's builder for a change of the partition spec."""
        return ReusingUpdateSpec(Transaction(self, autocommit=True), case_sensitive)

    def add_files(
        self,
        file_paths: list[str],
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        check_duplicate_files: bool = True,
        branch: str | None = MAIN_BRANCH,
        *,
        allow_plaintext: bool = False,
    ) -> None:
        """Add unencrypted Parquet files as they are. Raises NotEncryptedError unless
        ``allow_plaintext`` is true."""
        transaction = self.transaction()
        with transaction:
            transaction.add_files(
                file_paths,
                snapshot_properties,
                check_duplicate_files,
                branch,
                allow_plaintext=allow_plaintext,
            )

    def update_statistics(self, *, allow_plaintext: bool = False) -> UpdateStatistics:
        """Set or remove statistics files, which are not encrypted. Raises NotEncryptedError unless
        ``allow_plaintext`` is true."""
        transaction = EncryptedTransaction(self, autocommit=True)
        return transaction.update_statistics(allow_plaintext=allow_plaintext)

    def commit_built(
        self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]
    ) -> None:
        """Commit the changes of a PyIceberg builder that began its own transaction."""
        transaction = self.transaction()
        transaction.stage_built(updates, requirements)
        transaction.commit_transaction()
