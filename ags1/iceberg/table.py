"""``EncryptedTable``: PyIceberg's ``Table`` over an encrypted table; ``open_table`` makes one.

Reading goes through PyIceberg's own methods, with our snapshots, scans and files below them.
Writing is refused before anything is written: what PyIceberg writes would be in the clear.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import ALWAYS_TRUE, Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.typedef import Identifier, Properties

from ..errors import KmsConfigurationError, NotEncryptedError
from ..keys.cache import KekCache
from ..keys.manager import TABLE_KEY_ID, EncryptionManager
from ..kms.client import KmsClient
from ..kms.registry import KMS_IMPL, KMS_TYPE, from_properties
from .files import TableFiles
from .metadata import Trust, parse_metadata, read_metadata, table_key_id
from .scan import EncryptedIncrementalScan, EncryptedScan

if TYPE_CHECKING:
    import polars as pl

NO_WRITES = (
    "writing to an encrypted table is not supported: what PyIceberg writes would be in the clear"
)


def open_table(
    metadata_json_location: str,
    kms: KmsClient | Mapping[str, str] | None = None,
    location_map: Mapping[str, str] | None = None,
    *,
    expected_key_id: str | None = None,
    expected_metadata_sha256: str | None = None,
    require_encrypted: bool = False,
    properties: Properties | None = None,
) -> Table:
    """Open a table from its metadata.json, without a catalog.

    ``kms`` is a KMS client or Iceberg's properties of one (``encryption.kms-type``, …); None for a
    table that is not encrypted. ``location_map`` says where a moved table lies:
    ``{prefix in the metadata: prefix now}``. ``properties`` are those of PyIceberg's FileIO.

    The file lies where others may write, so say what you know: ``expected_key_id`` is the table's
    master key, ``expected_metadata_sha256`` the SHA-256 of the file in hex. ``require_encrypted``
    makes a scan refuse data files in the clear, which an encrypted table may have.

    Raises NotEncryptedError when a KMS, a key id or ``require_encrypted`` is given and the table is
    not encrypted; MetadataIntegrityError when the metadata is not what is expected;
    KeyMetadataError when the KMS would unwrap with a stranger's key too (AWS, GCP) and neither of
    the two is pinned; KmsConfigurationError; FileNotFoundError.
    """
    io = load_file_io(dict(properties or {}), metadata_json_location)
    trust = Trust(expected_key_id, expected_metadata_sha256)
    metadata = read_metadata(io, metadata_json_location, trust)
    key_id = table_key_id(metadata, trust, metadata_json_location)
    identifier = ("static-table", metadata_json_location)
    catalog = NoopCatalog("static-table")
    if key_id is None:
        if kms is not None or require_encrypted:
            raise NotEncryptedError(
                f"the table is not encrypted: it has no {TABLE_KEY_ID!r}",
                file=metadata_json_location,
            )
        plain = TableMetadataUtil.parse_obj(metadata)
        return Table(identifier, plain, metadata_json_location, io, catalog)
    return encrypted_table(
        identifier,
        metadata,
        metadata_json_location,
        io,
        catalog,
        kms_client(kms, key_id),
        trust,
        location_map=location_map,
        require_encrypted=require_encrypted,
    )


def kms_client(kms: KmsClient | Mapping[str, str] | None, key_id: str) -> KmsClient:
    """Return the KMS client to open an encrypted table with. Raises KmsConfigurationError."""
    if kms is None:
        raise KmsConfigurationError(
            f"the table is encrypted under {key_id!r} and no KMS is configured: "
            f"give {KMS_TYPE!r} or {KMS_IMPL!r}, or a KMS client"
        )
    return from_properties(kms) if isinstance(kms, Mapping) else kms


def encrypted_table(
    identifier: Identifier,
    metadata: dict[str, Any],
    metadata_location: str,
    io: FileIO,
    catalog: Catalog,
    kms: KmsClient,
    trust: Trust,
    *,
    location_map: Mapping[str, str] | None = None,
    require_encrypted: bool = False,
    config: dict[str, str] | None = None,
    cache: KekCache | None = None,
) -> EncryptedTable:
    """Return the table for metadata that was read and checked.

    Raises KeyMetadataError when nobody but the metadata says what the table's key is and the KMS
    would unwrap with anybody's.
    """
    key_id = trust.key_id
    if trust.metadata_sha256 is not None or trust.java_hash is not None:
        # Whoever vouches for the metadata vouches for the key that it names.
        key_id = metadata["properties"][TABLE_KEY_ID]
    files = TableFiles(
        io,
        EncryptionManager.from_metadata(metadata, kms, table_key_id=key_id, cache=cache),
        location_map=location_map,
        require_encrypted=require_encrypted,
    )
    table = EncryptedTable(
        identifier, parse_metadata(metadata), metadata_location, files, catalog, config or {}
    )
    table._trust = trust
    return table


class EncryptedTable(Table):
    """An encrypted table, read as any of PyIceberg's: ``scan``, ``inspect``, history, references.

    ``inspect`` shows null for key metadata. ``to_daft``, ``to_bodo`` and DataFusion open the files
    by themselves, without keys: NotImplementedError. Writing: NotImplementedError.
    """

    _trust: Trust = Trust()

    @property
    def key_id(self) -> str:
        """The id of the table's master key."""
        return self.files.keys.table_key_id

    @property
    def metadata_is_vouched_for(self) -> bool:
        """Whether the whole metadata is from a better place than a file where others may write: by
        its expected SHA-256, Hive's hash of it, or a REST server's answer."""
        trust = self._trust
        return trust.is_server_s or bool(trust.metadata_sha256 or trust.java_hash)

    @property
    def files(self) -> TableFiles:
        """The table's files, stored and decrypted."""
        assert isinstance(self.io, TableFiles)
        return self.io

    def scan(
        self,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        selected_fields: tuple[str, ...] = ("*",),
        case_sensitive: bool = True,
        snapshot_id: int | None = None,
        options: Properties | None = None,
        limit: int | None = None,
    ) -> EncryptedScan:
        """Return a scan: PyIceberg's arguments, and its methods on the result."""
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
        """Return a scan of what was appended between two snapshots."""
        return EncryptedIncrementalScan(
            table_metadata=self.metadata,
            io=self.io,
            row_filter=row_filter,
            selected_fields=selected_fields,
            case_sensitive=case_sensitive,
            options=options or {},
            limit=limit,
            from_snapshot_id=from_snapshot_id_exclusive,
            to_snapshot_id=to_snapshot_id_inclusive,
        )

    def refresh(self) -> EncryptedTable:
        """Read the table's metadata again, check it again, and return this table.

        Raises as loading does, and MetadataIntegrityError when the table has another key by now, or
        none: load it anew to accept that.
        """
        fresh = self._load_again()
        self._check_uuid(self.metadata, fresh.metadata)
        self.metadata = fresh.metadata
        self.io = fresh.io
        self.metadata_location = fresh.metadata_location
        self.config = fresh.config
        return self

    def _load_again(self) -> Table:
        trust = Trust(self.key_id, self._trust.metadata_sha256)
        files = self.files
        if isinstance(self.catalog, NoopCatalog):
            return open_table(
                self.metadata_location,
                files.keys.kms,
                files.location_map,
                expected_key_id=trust.key_id,
                expected_metadata_sha256=trust.metadata_sha256,
                require_encrypted=files.require_encrypted,
                properties=files.properties,
            )
        return self.catalog.load_table(  # type: ignore[call-arg]  # our catalog's
            self._identifier,
            expected_key_id=trust.key_id,
            expected_metadata_sha256=trust.metadata_sha256,
            location_map=files.location_map,
            require_encrypted=files.require_encrypted,
        )

    def to_polars(self) -> pl.LazyFrame:
        """Return the rows as a Polars frame. They are read now: Polars cannot open the files."""
        return self.scan().to_polars().lazy()

    def to_daft(self) -> NoReturn:
        raise NotImplementedError("Daft opens the files without keys: use scan().to_arrow()")

    def to_bodo(self) -> NoReturn:
        raise NotImplementedError("Bodo opens the files without keys: use scan().to_arrow()")

    def __datafusion_table_provider__(self, session: Any | None = None) -> NoReturn:
        raise NotImplementedError("DataFusion opens the files without keys: use scan().to_arrow()")

    def transaction(self) -> NoReturn:
        raise NotImplementedError(NO_WRITES)

    def _do_commit(self, updates: Any, requirements: Any) -> NoReturn:
        # Where the transactions end that PyIceberg begins by itself, as in update_schema.
        raise NotImplementedError(NO_WRITES)
