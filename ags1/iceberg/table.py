"""``EncryptedTable``: PyIceberg's ``Table`` over an encrypted table; ``open_table`` makes one.

Reading goes through PyIceberg's own methods, with our snapshots, scans and files below them.
Writing has PyIceberg's methods and none of its code: what that writes would be in the clear.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import ALWAYS_TRUE, Table, Transaction
from pyiceberg.table.maintenance import MaintenanceTable
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.table.update.statistics import UpdateStatistics
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from ..errors import KmsConfigurationError, MetadataIntegrityError, NotEncryptedError
from ..keys.cache import KekCache
from ..keys.manager import TABLE_KEY_ID, EncryptionManager
from ..kms.client import KmsClient
from ..kms.registry import KMS_IMPL, KMS_TYPE, from_properties
from .files import TableFiles
from .home import home_of, vouches
from .maintenance import rotation
from .maintenance.expiry import ExpiredFiles, expire
from .maintenance.meter import Meter
from .metadata import Trust, parse_metadata, read_metadata, table_key_id
from .pyiceberg_internals import ReusingUpdateSpec, parse_row_filter
from .redirection import refuse_redirection
from .scan import EncryptedIncrementalScan, EncryptedScan

if TYPE_CHECKING:
    import polars as pl

    from ..keys.envelope import EncryptedKey
    from .maintenance.rotation import KeyChange
    from .writing.commits import Base, Commits
    from .writing.entries import FileRecord
    from .writing.output import TableOutput
    from .writing.reencryption import RewriteExecutor
    from .writing.transaction import EncryptedTransaction
    from .writing.view import TableView

NO_CATALOG = (
    "a table that was opened by its metadata.json has no catalog to commit to: load it from one"
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
    not encrypted; MetadataIntegrityError when the metadata is not what is expected, or chooses code
    that reads the table or a server to be asked, and ``properties`` do not say the same;
    KeyMetadataError when the KMS would unwrap with a stranger's key too (AWS, GCP) and neither of
    the two is pinned; KmsConfigurationError; FileNotFoundError.
    """
    io = load_file_io(dict(properties or {}), metadata_json_location)
    trust = Trust(expected_key_id, expected_metadata_sha256)
    metadata = read_metadata(io, metadata_json_location, trust)
    refuse_redirection(metadata, properties or {}, metadata_json_location)
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
    storage: dict[str, str] | None = None,
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
    version = Version(
        parse_metadata(metadata),
        metadata,
        metadata_location,
        files,
        config or {},
        storage or {},
        trust,
    )
    return EncryptedTable(identifier, version, catalog)


@dataclass(frozen=True, slots=True)
class Expiry:
    """What an expiry took: snapshots, names of branches and tags, and files. ``failed`` are files
    that could not be deleted."""

    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]
    files: ExpiredFiles
    failed: tuple[str, ...] = ()

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Files that stay though nothing refers to them."""
        return (*self.files.left_behind, *self.failed)


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """How many files are under fresh keys now, and their size (bytes); how many manifests were
    plaintext and are encrypted now."""

    files: int
    size: int
    manifests: int = 0


class Version(NamedTuple):
    """All that a table object knows of one version of the table. ``json`` is the metadata as it is;
    ``config`` and ``storage`` are a REST server's, the second with credentials."""

    metadata: TableMetadata
    json: dict[str, Any]
    location: str
    files: TableFiles
    config: dict[str, str]
    storage: dict[str, str]
    trust: Trust

    def __repr__(self) -> str:
        return f"Version({self.location!r})"

    @property
    def age(self) -> tuple[int, int]:
        """What a later version of the table has more of: snapshots, milliseconds."""
        return self.json.get("last-sequence-number", 0), self.json.get("last-updated-ms", 0)


class EncryptedTable(Table):
    """An encrypted table, read and written as any of PyIceberg's.

    ``inspect`` shows null for key metadata. ``to_daft``, ``to_bodo`` and DataFusion open the files
    by themselves, without keys: NotImplementedError. So is writing to a table that was opened
    without a catalog, or from one that would lose its keys.
    """

    def __init__(self, identifier: Identifier, version: Version, catalog: Catalog) -> None:
        self._identifier = identifier
        self.catalog = catalog
        # In one piece: half of one version and half of another would be committed upon.
        self._version = version
        self._lock = threading.Lock()

    @property
    def metadata(self) -> TableMetadata:  # type: ignore[override]
        return self._version.metadata

    @property
    def metadata_location(self) -> str:  # type: ignore[override]
        return self._version.location

    @property
    def io(self) -> FileIO:  # type: ignore[override]
        return self._version.files

    @property
    def config(self) -> dict[str, str]:  # type: ignore[override]
        return self._version.config

    @property
    def key_id(self) -> str:
        """The id of the table's master key."""
        return self.files.keys.table_key_id

    @property
    def metadata_is_vouched_for(self) -> bool:
        """Whether the whole metadata is from a better place than a file where others may write: by
        its expected SHA-256, Hive's hash of it, or a REST server's answer."""
        return vouches(self._version.trust)

    @property
    def files(self) -> TableFiles:
        """The table's files, stored and decrypted."""
        return self._version.files

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

    @property
    def maintenance(self) -> MaintenanceTable:
        """PyIceberg's maintenance; ``expire_snapshots`` here does more than the one there."""
        from .maintenance.builders import EncryptedMaintenance

        return EncryptedMaintenance(self)

    def refresh(self) -> EncryptedTable:
        """Read the table's metadata again, check it again, and return this table.

        Raises as loading does, and MetadataIntegrityError when the table has another key by now, or
        none: load it anew to accept that.
        """
        before = self._version.json
        fresh = self._load_again()
        self._check_uuid(self.metadata, fresh.metadata)
        assert isinstance(fresh, EncryptedTable)  # a key is expected
        self._become(fresh, before)
        return self

    def _load_again(self) -> Table:
        trust = Trust(self.key_id, self._version.trust.metadata_sha256)
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

    # -- writing

    def transaction(self) -> EncryptedTransaction:
        """Return a transaction, which commits several changes as one. Raises NotImplementedError
        when the table's catalog cannot be committed to."""
        from .writing.transaction import EncryptedTransaction

        return EncryptedTransaction(self)

    def update_spec(self, case_sensitive: bool = True) -> UpdateSpec:
        """Return PyIceberg's change of the partition spec."""
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
        """Add Parquet files as they are. Raises NotEncryptedError unless ``allow_plaintext``."""
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
        """Set or remove statistics files, which are in the clear. Raises NotEncryptedError unless
        ``allow_plaintext``."""
        from .writing.transaction import EncryptedTransaction

        transaction = EncryptedTransaction(self, autocommit=True)
        return transaction.update_statistics(allow_plaintext=allow_plaintext)

    def rotate_keys(self) -> None:
        """Make a new KEK, put the key of every snapshot under it, and take the old KEKs out.

        No file changes, and no snapshot. Java picks any unexpired KEK that it knows for its next
        commit, so it is the new one then; but a session that holds the table brings an old KEK
        back, until ``REFRESH TABLE``: rotate again after that. Earlier metadata files still have
        the old KEKs. Raises KmsError, and
        AuthenticationError or KeyMetadataError when a key does not open: ``prune_keys`` takes out
        those that no snapshot needs.
        """
        self._change_keys(rotation.rotate)

    def rewrap_keys(self, table_key_id: str | None = None, kms: KmsClient | None = None) -> None:
        """Put all KEKs under another master key, in another KMS if need be; without arguments under
        the newest version of their own.

        No file changes, and no snapshot. With another KMS, the table is loaded from a catalog that
        is configured for it from then on. Destroy the old master key once all writers have loaded
        the table anew, and the metadata has been verified. Raises KmsError.
        """
        self._change_keys(
            lambda metadata, manager: rotation.rewrap(metadata, manager, kms, table_key_id)
        )

    def prune_keys(self) -> list[str]:
        """Take out the keys that no snapshot needs, which neither Java nor expiry does; return
        their ids. Raises KeyMetadataError when a snapshot's key is missing."""
        return [key.key_id for key in self._change_keys(rotation.prune)]

    def expire_snapshots(
        self,
        older_than: datetime | None = None,
        retain_last: int | None = None,
        snapshot_ids: Collection[int] = (),
        *,
        delete_files: bool = True,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Expiry:
        """Forget old snapshots, and delete the files that only they had; return what went.

        Of each branch the last ``retain_last`` snapshots stay, and those made at ``older_than`` or
        later; without them, what the table's ``history.expire.*`` properties say: five days, one
        snapshot. ``snapshot_ids`` go besides. ``dry_run`` only tells. ``progress`` is called with
        the number of files deleted and that of all. Keys stay: see ``prune_keys``.

        Raises ValueError for arguments that cannot be, ValidationException where ``gc.enabled`` is
        not true. Files that could not be deleted are in ``Expiry.left_behind``.
        """
        from .writing.transaction import ExpiryStep

        moment = None if older_than is None else round(older_than.timestamp() * 1000)
        view, home = self.view(), home_of(self)
        if dry_run:
            plan = expire(
                view.metadata,
                older_than_ms=moment,
                retain_last=retain_last,
                snapshot_ids=snapshot_ids,
            )
            found = plan.find_files(view.files, self.metadata_location, home=home)
            return Expiry(plan.snapshot_ids, plan.refs, found)
        step = ExpiryStep(
            lambda metadata: expire(
                metadata,
                older_than_ms=moment,
                retain_last=retain_last,
                snapshot_ids=snapshot_ids,
            )
        )
        transaction = self.transaction()
        transaction.stage_step(step)
        transaction.commit_transaction()
        plan, view = step.plan, step.view
        if not delete_files:
            return Expiry(plan.snapshot_ids, plan.refs, ExpiredFiles())
        found = plan.find_files(
            view.files,
            self.metadata_location,
            home=home,
            after=self._version.json,
            after_files=self.files,
        )
        failed = found.delete(self.output(), progress=progress)
        return Expiry(plan.snapshot_ids, plan.refs, found, failed)

    def rekey(
        self,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        *,
        select: Callable[[FileRecord], bool] | None = None,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        exposed: bool = False,
        threads: int | None = None,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
        executor: RewriteExecutor | None = None,
    ) -> Rekeyed:
        """Rewrite files under fresh keys, in one snapshot; return how many.

        Those are the data files that may have a row for which ``row_filter`` is true, and of them
        those for which ``select`` is; without a filter, delete files too. Rows, their order, ids
        and sequence numbers stay. Files in the clear are encrypted by this. Earlier snapshots
        keep the old files: ``expire_snapshots`` ends them. ``progress`` is called with the bytes of
        files that are done and of all. ``threads`` files are rewritten at once, or ``executor``
        does it.

        ``exposed`` rewrites only those files whose keys stand in a plaintext manifest, of any
        snapshot, and encrypts the branch's plaintext manifests: ``rewrite_manifests`` of Iceberg
        before 1.12 writes such ones. Until then, such a snapshot cannot be read. What they list is
        compared with the manifest list's counts and with all encrypted manifests; whether somebody
        with the exposed keys has forged files meanwhile cannot be told. Expire the snapshots before
        afterwards: they still have the old files, and the plaintext manifests.

        Raises ValueError for a column that the table does not have, ValidationException when
        somebody removed a chosen file meanwhile, and what reading and writing raises.
        """
        from .maintenance.rekeying import Rekeying
        from .writing.transaction import SnapshotStep

        expression = parse_row_filter(row_filter)
        transaction = self.transaction()
        meter = Meter(progress)
        rekeying = Rekeying(
            transaction.output,
            select=select,
            row_filter=None if expression == ALWAYS_TRUE else expression,
            case_sensitive=case_sensitive,
            exposed=exposed,
            threads=threads,
            on_done=meter.done,
            executor=executor,
        )
        view = self.view().at(branch)
        plan = rekeying.plan(view)
        meter.total = plan.size
        done = Rekeyed(len(plan.files), plan.size, rekeying.plaintext_manifests(view))
        if dry_run or (plan.is_empty and not done.manifests):
            return done
        # Files that others removed stay so, and their deletes are taken along.
        step = SnapshotStep(transaction.output, rekeying.change, {}, branch, anew=True)
        transaction.stage_step(step)
        transaction.commit_transaction()
        return done

    def _change_keys(
        self, compute: Callable[[dict[str, Any], EncryptionManager], KeyChange]
    ) -> tuple[EncryptedKey, ...]:
        from .writing.transaction import KeyStep

        transaction = self.transaction()
        before = self.view().manager
        step = KeyStep(compute)
        transaction.stage_step(step)
        transaction.commit_transaction()
        if rotation.snapshots_without_keys(self._version.json):
            # Over REST, somebody may have added a snapshot that needs what was taken out, or whose
            # key is under the master key before.
            uuid = {"type": "assert-table-uuid", "uuid": self._version.json["table-uuid"]}
            updates = rotation.restore(self._version.json, step.removed)
            updates += rotation.adopt(self._version.json, before, self.view().manager)
            transaction = self.transaction()
            transaction.stage_updates(updates, [uuid])
            transaction.commit_transaction()
            missing = rotation.snapshots_without_keys(self._version.json)
            if missing:
                raise MetadataIntegrityError(
                    f"the keys of snapshots {missing} were lost by a writer that did not wait for "
                    "the change of keys; they are in the metadata file before it",
                    file=self.metadata_location,
                )
        return step.removed

    def view(self) -> TableView:
        """Return the version of the table that this object shows, to build changes upon."""
        # With keys of its own: those that are made for a change which fails are of no use.
        return self.view_of(self._version.json)

    def view_of(
        self,
        metadata: dict[str, Any],
        manager: EncryptionManager | None = None,
        committed_refs: Collection[str] | None = None,
    ) -> TableView:
        """Return a version of the table that is not committed yet; ``manager`` has its keys if
        they are under another master key, ``committed_refs`` what the catalog has by now."""
        from .writing.view import TableView

        keys = self.files.keys if manager is None else manager
        keys = EncryptionManager.from_metadata(
            metadata, keys.kms, table_key_id=keys.table_key_id, cache=keys.cache
        )
        files = self.files.with_keys(keys)
        return TableView(metadata, files, committed_refs=committed_refs)

    def output(self) -> TableOutput:
        """Return what writes new files of the table.

        Raises NotImplementedError as ``transaction`` and for a table that was moved and is read by
        a ``location_map``; MetadataIntegrityError when the metadata would choose the code that
        names files or where they go.
        """
        from .writing.output import TableOutput

        if self.files.location_map:
            raise NotImplementedError(
                "the table was moved, and its metadata does not know: relocate it before writing"
            )
        self._committer().check(self.base())
        return TableOutput(self.files.inner)

    def base(self) -> Base:
        """Return what a commit of this version is built upon."""
        from .writing.commits import Base

        version = self._version
        # The key was settled when the table was loaded.
        trust = replace(version.trust, key_id=version.files.keys.table_key_id)
        return Base(
            self._identifier,
            version.json,
            version.location,
            trust,
            version.config,
            version.storage,
        )

    def commit_updates(
        self,
        base: Base,
        updates: list[dict[str, Any]],
        requirements: list[dict[str, Any]],
        output: TableOutput,
        manager: EncryptionManager | None = None,
    ) -> None:
        """Make one try to commit updates, in the REST specification's form, upon ``base``; show
        the outcome. ``manager`` has the keys if they change. Raises as ``Commits.commit`` does."""
        from .writing.commits import made_whatever_comes

        new_key_id = None
        if manager is not None and manager.table_key_id != base.trust.key_id:
            new_key_id = manager.table_key_id
        after = self._committer().commit(base, updates, requirements, output, new_key_id=new_key_id)
        output.keep()
        with made_whatever_comes(self._identifier):
            self._show(after, base, manager)

    def _show(self, after: Base, before: Base, manager: EncryptionManager | None) -> None:
        files = self.files
        keys = files.keys if manager is None else manager
        self._become(
            encrypted_table(
                self._identifier,
                after.metadata,
                after.location,
                files.inner,
                self.catalog,
                keys.kms,
                replace(after.trust, key_id=keys.table_key_id),
                location_map=files.location_map,
                require_encrypted=files.require_encrypted,
                config=after.config,
                storage=after.storage,
                cache=keys.cache,
            ),
            before.metadata,
        )

    def _become(self, other: EncryptedTable, before: Mapping[str, Any]) -> None:
        """Show the version of ``other``, unless another thread has shown a later one since this
        object showed ``before``: who commits next would take his own rows for another writer's."""
        with self._lock:
            if self._version.json is before or other._version.age >= self._version.age:
                self._version = other._version

    def _committer(self) -> Commits:
        commits = getattr(self.catalog, "commits", None)
        if commits is None:
            raise NotImplementedError(NO_CATALOG)
        return commits()  # type: ignore[no-any-return]  # our catalog's

    def _do_commit(
        self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]
    ) -> None:
        # Where the transactions end that PyIceberg begins by itself, as in update_schema.
        transaction = self.transaction()
        transaction._stage(updates, requirements)
        transaction.commit_transaction()
