"""``verify_table`` authenticates a whole encrypted table and reports everything that is wrong.

It goes from the metadata through the manifest list and manifests of every snapshot to each data and
delete file. It checks every block and every Parquet module once, even if several snapshots share
the file. Then it looks for files in the table's folder that belong to no snapshot. One thread walks
through the table and reports; others read the files (``checks``). A damaged file is a finding, and
the verification goes on. It writes nothing.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any, TypeAlias, TypeVar, cast

from pyiceberg.manifest import DataFileContent

from ..._gcm import random_bytes
from ...cpu import usable_cpus
from ...errors import (
    Ags1Error,
    KeyMetadataError,
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsUnavailableError,
    MetadataIntegrityError,
)
from ...key_metadata import KeyMetadata
from ...keys.envelope import EncryptedKey, KeyEncryptionKey
from ...keys.manager import CLOCK_SKEW_MS, KEK_LIFETIME_MS, Clock, EncryptionManager, now_ms
from ..commit.session import TableSession
from ..pyiceberg.records import ManifestEntry, ManifestEntryStatus, read_avro_records
from ..read.snapshots import (
    MANIFEST,
    MANIFEST_LIST,
    ContentFile,
    EncryptedManifest,
    EncryptedSnapshot,
    unreadable,
)
from ..spec.table_keys import needed_keys
from ..storage.byte_meter import ByteMeter
from ..storage.listing import list_files, place
from ..storage.table_files import TableFiles
from .checks import TICK_SECONDS, Check, CheckExecutor, CheckKind, CheckThreads
from .findings import Finding, Findings, TableVerification, finding_of

Progress: TypeAlias = "Callable[[int, int | None], object]"

_KMS_UNUSABLE = (KmsUnavailableError, KmsAccessDeniedError, KmsConfigurationError)
_REMOTE_THREADS = 16
_NEAR_EXPIRY_MS = 60 * 24 * 60 * 60 * 1000
_DAY_MS = 24 * 60 * 60 * 1000
_MAX_DIGITS = 18
# Where Iceberg's table properties may put files besides the table's own folder.
_FOLDER_PROPERTIES = ("write.data.path", "write.metadata.path", "write.object-storage.path")

_Snapshots: TypeAlias = "tuple[int, ...]"
_Stated: TypeAlias = "tuple[Any, ...]"
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def verify_table(
    table: TableSession,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    require_encrypted: bool = False,
    list_folders: bool = True,
    clock_ms: Clock = now_ms,
    executor: CheckExecutor | None = None,
) -> TableVerification:
    """Authenticate every file of every snapshot of ``table``.

    ``threads`` is the number of threads that read and decrypt. The default is one per CPU for local
    files, and more for files on a network. ``progress(done, total)`` is called about ten times a
    second with numbers of bytes, in the calling thread. ``total`` is an estimate, or None if there
    is no basis for one. If ``progress`` raises, the call ends. With ``require_encrypted``,
    unencrypted data files are errors. With ``list_folders=False``, files that no snapshot has are
    not searched for. If ``executor`` is given, it checks the data files, and this process reads
    only manifests and manifest lists.

    The result has what is wrong with the table. Raises KmsUnavailableError, KmsAccessDeniedError
    and KmsConfigurationError: without the KMS, nothing can be verified.

    Not checked are the number of rows in Avro files, and statistics against the data. Statistics
    files are not encrypted; they are only reported. No key of the table protects metadata.json. So
    the list of snapshots, the schemas (names, field IDs, defaults) and the partition specs are only
    as trustworthy as the place of that file. If no expected SHA-256, no hash in Hive and no REST
    server confirms it, the result has the note ``metadata-not-pinned``.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    verification = _Verification(table, threads, progress, require_encrypted, clock_ms, executor)
    return verification.run(list_folders)


def estimated_size(table: TableSession) -> int | None:
    """Return the size (bytes) of the current snapshot's files from its summary; None if unknown."""
    snapshot = table.metadata.current_snapshot()
    summary = snapshot.summary if snapshot is not None else None
    size = summary["total-files-size"] if summary is not None else None
    return int(size) if size and size.isdecimal() and len(size) <= _MAX_DIGITS else None


class _Verification:
    def __init__(
        self,
        table: TableSession,
        threads: int | None,
        progress: Progress | None,
        require_encrypted: bool,
        clock_ms: Clock,
        executor: CheckExecutor | None,
    ) -> None:
        self._table = table
        self._metadata = table.metadata
        self._files: TableFiles = table.files
        self._progress = progress
        self._require_encrypted = require_encrypted or self._files.require_encrypted
        self._clock_ms = clock_ms
        self._is_local = self._lies_here()
        self._cpus = threads or usable_cpus()
        self._threads = threads or (
            self._cpus if self._is_local else max(self._cpus, _REMOTE_THREADS)
        )
        self._executor = executor
        self._meter = ByteMeter()
        self._findings = Findings()
        self._counts = dict.fromkeys(
            (
                "manifest_lists",
                "manifests",
                "data_files",
                "plain_data_files",
                "delete_files",
                "deletion_vectors",
                "statistics_files",
            ),
            0,
        )
        self._verified_size = 0
        self._root = self._place_of(self._metadata.location).rstrip("/") + "/"
        # `_known`: a file's name below the table's folder -> a digest of its key. `_sealed_by`: the
        # reverse. The digests use a secret of this run, so that no keys need to be kept.
        self._salt = random_bytes(32)
        self._known: dict[bytes, bytes] = {}
        # The names of the metadata versions that the metadata log has.
        logged = [entry.metadata_file for entry in self._metadata.metadata_log]
        locations = [*logged, table.metadata_location]
        self._versions = {location.rpartition("/")[2] for location in locations}
        self._logged_since = min((_version(v) or 0 for v in self._versions), default=0)
        self._sealed_by: dict[bytes, bytes] = {}
        # `_said`: what an entry says of its file. `_vectors`: what it says of a deletion vector.
        self._said: dict[bytes, _Stated] = {}
        self._vectors: set[tuple[bytes, _Stated, _Stated]] = set()
        self._manifests: dict[str, tuple[EncryptedManifest, list[int]]] = {}
        # Plaintext manifests; the names of the files whose keys they contain; and, if there are
        # such manifests, the names of all live files and of those in the current snapshot.
        self._plaintext: dict[str, tuple[EncryptedManifest, list[int]]] = {}
        self._exposed: set[bytes] = set()
        self._live: set[bytes] = set()
        self._current: set[bytes] = set()
        self._estimate = estimated_size(table)
        self._size_seen = 0
        self._next_progress = 0.0

    def run(self, list_folders: bool) -> TableVerification:
        started = time.perf_counter()
        self._pool = ThreadPoolExecutor(self._threads, "ags1-verify")
        try:
            self._check_pin()
            self._check_keys()
            self._check_partition_fields()
            self._read_manifest_lists()
            executor = self._executor or CheckThreads(self._pool, self._threads, self._cpus)
            checks = self._checks(list_folders)
            with closing(executor.run(checks, self._files, self._meter, self._tell)) as outcomes:
                for outcome in outcomes:
                    self._verified_size += outcome.size
                    for finding in outcome.findings:
                        self._findings.take(finding)
        finally:
            self._meter.stop()
            self._pool.shutdown(cancel_futures=True)
        seconds = time.perf_counter() - started
        self._tell(final=True)
        return TableVerification(
            metadata_location=self._table.metadata_location,
            table_uuid=str(self._metadata.table_uuid),
            key_id=self._table.key_id,
            snapshots=len(self._metadata.snapshots),
            **self._counts,
            exposed_files=len(self._exposed & self._live),
            exposed_current_files=len(self._exposed & self._current),
            verified_size=self._verified_size,
            seconds=seconds,
            findings=self._findings.sorted(),
            finding_counts=dict(self._findings.counts),
        )

    def _checks(self, list_folders: bool) -> Iterator[Check]:
        """Walk through the table; yield the checks of its files."""
        yield from self._read_plaintext_manifests()
        yield from self._read_manifests()
        yield from self._take_statistics()
        if list_folders:
            yield from self._list_folders()

    # -- the metadata, and keys in it

    def _check_pin(self) -> None:
        if not self._table.metadata_is_vouched_for:
            self._findings.add(
                "metadata-not-pinned",
                "the metadata's schemas and list of snapshots are not authenticated: pass the "
                "file's expected SHA-256, or load the table from a Hive or REST catalog",
                self._table.metadata_location,
            )

    def _check_partition_fields(self) -> None:
        """Find partition fields with one name and several IDs. As in Java, a field's latest name
        counts."""
        names: dict[int, str] = {}
        for spec in sorted(self._metadata.partition_specs, key=lambda s: s.spec_id, reverse=True):
            for field in spec.fields:
                names.setdefault(field.field_id, field.name)
        ids_of: dict[str, list[int]] = {}
        for field_id, name in names.items():
            ids_of.setdefault(name, []).append(field_id)
        for name, ids in ids_of.items():
            if len(ids) > 1:
                self._findings.add(
                    "partition-field-ids",
                    f"the partition field {name!r} has several IDs, {sorted(ids)}: Java cannot "
                    "read the table's metadata tables (FILES, PARTITIONS, ENTRIES). Rename the "
                    "field with update_spec().rename_field(…)",
                    self._table.metadata_location,
                )

    def _check_keys(self) -> None:
        manager = self._files.keys
        sound = []
        for entry in manager.encryption_keys:
            try:
                _ = entry.timestamp
            except KeyMetadataError as error:
                self._findings.add("kek-unusable", error.message)
            else:
                sound.append(entry)
        keks = EncryptionManager(manager.kms, manager.table_key_id, sound).key_encryption_keys
        needed = needed_keys(self._table.version.json)
        for entry in sound:
            if entry not in keks and entry.key_id not in needed:
                self._findings.add(
                    "orphan-key", f"nothing needs the key {entry.key_id!r}: prune_keys removes it"
                )
        for kek in keks:
            self._check_kek(kek)
            if kek.key_id not in needed and len(keks) > 1:
                self._findings.add(
                    "orphan-key",
                    f"the KEK {kek.key_id!r} wraps no key that is needed: prune_keys removes it",
                )
        if len(keks) > 1:
            self._findings.add(
                "several-keks",
                f"the table has {len(keks)} KEKs, and Java's next commit may use any of them: "
                "rotate_keys leaves one",
            )

    def _check_kek(self, kek: EncryptedKey) -> None:
        name = f"the KEK {kek.key_id!r}"
        master_key_id = self._table.key_id
        if kek.encrypted_by_id != master_key_id:
            self._findings.add(
                "kek-other-master-key",
                f"{name} says that it is wrapped with {kek.encrypted_by_id!r}, but the table's "
                f"master key is {master_key_id!r}",
            )
        try:
            KeyEncryptionKey.unwrap(self._files.keys.kms, kek, master_key_id)
            timestamp = kek.timestamp
        except _KMS_UNUSABLE:
            raise
        except Ags1Error as error:
            self._findings.add("kek-unusable", f"{name} cannot be used: {error.message}")
            return
        try:
            age_ms = self._clock_ms() - int(timestamp or "")
        except ValueError:
            self._findings.add("kek-timestamp", f"{name} has no readable time of creation")
            return
        days = age_ms // _DAY_MS
        if age_ms < -CLOCK_SKEW_MS:
            self._findings.add("kek-timestamp", f"{name} was created in the future")
        elif age_ms >= KEK_LIFETIME_MS:
            self._findings.add(
                "kek-expired",
                f"{name} is {days} days old, more than its {KEK_LIFETIME_MS // _DAY_MS} days: the "
                "next commit makes a new one",
            )
        elif age_ms >= KEK_LIFETIME_MS - _NEAR_EXPIRY_MS:
            self._findings.add(
                "kek-near-expiry",
                f"{name} is {days} days old: after {KEK_LIFETIME_MS // _DAY_MS} days a commit "
                "makes a new one",
            )

    # -- snapshots and manifests

    def _read_manifest_lists(self) -> None:
        snapshots = []
        for plain in self._metadata.snapshots:
            snapshot = cast("EncryptedSnapshot", plain)
            if snapshot.key_id is None:
                self._findings.add(
                    "snapshot-without-key",
                    "the snapshot has no key-id, so its manifest list is not encrypted",
                    snapshot.manifest_list,
                    (snapshot.snapshot_id,),
                )
                self._known.setdefault(self._name(snapshot.manifest_list), b"")
            else:
                snapshots.append(snapshot)
        for snapshot, result in self._ahead(self._open_manifest_list, snapshots):
            ids = (snapshot.snapshot_id,)
            if isinstance(result, Finding):
                self._known.setdefault(self._name(snapshot.manifest_list), b"")
                self._findings.take(result)
                continue
            km, data = result
            self._counts["manifest_lists"] += self._register(snapshot.manifest_list, km, ids)
            self._verified_size += cast("int", km.file_length)
            try:
                self._take_manifests(snapshot, data)
            except Ags1Error as error:
                self._findings.take(finding_of(error, snapshot.manifest_list, ids))

    def _open_manifest_list(
        self, snapshot: EncryptedSnapshot
    ) -> tuple[KeyMetadata, bytes] | Finding:
        location = snapshot.manifest_list
        try:
            km = self._files.keys.manifest_list_key(cast("str", snapshot.key_id))
            return km, self._files.read_encrypted(location, km)
        except _KMS_UNUSABLE:
            raise
        except (Ags1Error, OSError) as error:
            return finding_of(error, location, (snapshot.snapshot_id,))

    def _take_manifests(self, snapshot: EncryptedSnapshot, data: bytes) -> None:
        header, manifests = _manifests(snapshot, data)
        written_for = header.get("snapshot-id")
        if written_for not in (None, str(snapshot.snapshot_id)):
            raise MetadataIntegrityError(
                f"the manifest list was written for snapshot {written_for}, not for this one"
            )
        for manifest in manifests:
            manifest.conceal()
            path, ids = manifest.manifest_path, (snapshot.snapshot_id,)
            try:
                km = manifest.key
            except Ags1Error as error:
                self._known.setdefault(self._name(path), b"")
                if manifest.is_plaintext:
                    self._plaintext.setdefault(path, (manifest, []))[1].append(snapshot.snapshot_id)
                else:
                    self._findings.take(finding_of(error, path, ids))
                continue
            if self._register(path, km, ids):
                self._manifests[path] = (manifest, [snapshot.snapshot_id])
            elif path in self._manifests:
                self._manifests[path][1].append(snapshot.snapshot_id)

    def _read_manifests(self) -> Iterator[Check]:
        paths = list(self._manifests)
        for path, result in self._ahead(self._open_manifest, paths):
            # Remove it with its key, which is not needed any more.
            manifest, snapshots = self._manifests.pop(path)
            ids = tuple(snapshots)
            if isinstance(result, Finding):
                self._findings.take(result)
                continue
            self._counts["manifests"] += 1
            self._verified_size += manifest.manifest_length
            try:
                yield from self._take_entries(manifest, result, ids)
            except Ags1Error as error:
                self._findings.take(finding_of(error, path, ids))

    def _read_plaintext_manifests(self) -> Iterator[Check]:
        for path, result in self._ahead(self._open_plaintext_manifest, list(self._plaintext)):
            manifest, snapshots = self._plaintext[path]
            ids = tuple(snapshots)
            keyed: set[bytes] = set()
            why = "the manifest is plaintext: the manifest list has no key for it"
            try:
                if isinstance(result, Exception):
                    raise result
                self._counts["manifests"] += 1
                yield from self._take_entries(manifest, result, ids, keyed)
            except KeyMetadataError as error:
                why = error.message
            except (Ags1Error, OSError) as error:
                self._findings.take(finding_of(error, path, ids))
            self._exposed |= keyed
            if keyed:
                self._findings.add(
                    "exposed-keys",
                    f"the manifest is plaintext and has the keys of {len(keyed)} encrypted files: "
                    "everybody who can read it can decrypt and forge them. Run rekey(exposed=True) "
                    "or 'ags1 table rekey --exposed', which rewrites those in use with fresh keys. "
                    "Then expire these snapshots",
                    path,
                    ids,
                )
            else:
                self._findings.add("manifest-without-key", why, path, ids)

    def _open_plaintext_manifest(self, path: str) -> bytes | Ags1Error | OSError:
        manifest, _ = self._plaintext[path]
        try:
            return self._files.read_exposed(path, manifest.manifest_length)
        except (Ags1Error, OSError) as error:
            return error

    def _open_manifest(self, path: str) -> bytes | Finding:
        manifest, snapshots = self._manifests[path]
        try:
            return self._files.read_encrypted(path, manifest.key)
        except (Ags1Error, OSError) as error:
            return finding_of(error, path, tuple(snapshots))

    def _take_entries(
        self,
        manifest: EncryptedManifest,
        data: bytes,
        ids: _Snapshots,
        keyed: set[bytes] | None = None,
    ) -> Iterator[Check]:
        """Record a manifest's files; yield the checks of those. ``keyed`` collects the names of all
        files whose key the manifest has."""
        counts = dict.fromkeys(ManifestEntryStatus, 0)
        puffins: dict[str, list[ContentFile]] = {}
        for entry in _entries(manifest, data):
            counts[entry.status] += 1
            file = cast("ContentFile", entry.data_file)
            file.conceal()
            if keyed is not None and file.is_encrypted:
                keyed.add(self._name(file.file_path))
            if entry.status == ManifestEntryStatus.DELETED:
                continue
            file.spec_id = manifest.partition_spec_id
            try:
                kind = self._take_file(file, ids, puffins)
            except Ags1Error as error:
                self._known.setdefault(self._name(file.file_path), b"")
                self._findings.take(finding_of(error, file.file_path, ids))
                continue
            if kind is not None:
                yield Check(kind, file.file_path, ids, (file,))
        for path, vectors in puffins.items():
            yield Check(CheckKind.VECTORS, path, ids, tuple(vectors))
        stated = {
            ManifestEntryStatus.ADDED: manifest.added_files_count,
            ManifestEntryStatus.EXISTING: manifest.existing_files_count,
            ManifestEntryStatus.DELETED: manifest.deleted_files_count,
        }
        for status, count in stated.items():
            if count is not None and count != counts[status]:
                raise MetadataIntegrityError(
                    f"the manifest has {counts[status]} {status.name.lower()} files, but the "
                    f"manifest list says {count}"
                )

    # -- data and delete files

    def _take_file(
        self, file: ContentFile, ids: _Snapshots, puffins: dict[str, list[ContentFile]]
    ) -> CheckKind | None:
        """Record a file; return the kind of check that it needs. Return None if it needs none, or
        if it is a deletion vector, which is added to ``puffins``."""
        if self._plaintext:
            self._live.add(self._name(file.file_path))
            if self._metadata.current_snapshot_id in ids:
                self._current.add(self._name(file.file_path))
        km = file.key
        is_new = self._register(file.file_path, km, ids)
        stated = _stated(file)
        if self._said.setdefault(self._name(file.file_path), stated) != stated:
            self._findings.add(
                "metadata",
                "two manifest entries contradict each other about this file",
                file.file_path,
                ids,
            )
        if file.is_deletion_vector and km is not None:
            vector = (
                self._name(file.file_path),
                (file.content_offset, file.content_size_in_bytes),
                (file.referenced_data_file, file.record_count),
            )
            if vector not in self._vectors:
                self._vectors.add(vector)
                self._counts["deletion_vectors"] += 1
                self._counts["delete_files"] += is_new
                self._size_seen += file.file_size_in_bytes if is_new else 0
                puffins.setdefault(file.file_path, []).append(file)
            return None
        if not is_new:
            return None
        self._size_seen += file.file_size_in_bytes
        is_data = file.content == DataFileContent.DATA
        self._counts["data_files" if is_data else "delete_files"] += 1
        if km is not None:
            return CheckKind.SEALED
        if not is_data:
            self._findings.add(
                "delete-file-without-key",
                "the delete file is not encrypted: the manifest has no key for it",
                file.file_path,
                ids,
            )
            return CheckKind.PLAIN
        self._counts["plain_data_files"] += 1
        self._findings.add(
            "not-encrypted" if self._require_encrypted else "plain-data-file",
            "the data file is not encrypted: the manifest has no key for it",
            file.file_path,
            ids,
        )
        return CheckKind.PLAIN

    def _take_statistics(self) -> Iterator[Check]:
        for statistics in (*self._metadata.statistics, *self._metadata.partition_statistics):
            location = statistics.statistics_path
            if self._register(location, None, (statistics.snapshot_id,)):
                self._counts["statistics_files"] += 1
                yield Check(CheckKind.STATISTICS, location, (statistics.snapshot_id,))

    # -- other files in the table's folders

    def _list_folders(self) -> Iterator[Check]:
        properties = self._metadata.properties
        folders = [self._metadata.location]
        for name in _FOLDER_PROPERTIES:
            location = properties.get(name)
            if location and not self._place_of(location).startswith(self._root):
                folders.append(location)
        for folder in folders:
            for location in self._listed(folder):
                name = location.rpartition("/")[2]
                if self._place_name(place(location)) in self._known:
                    continue
                if not _is_of_use(name) or self._was_never_current(name):
                    yield Check(CheckKind.STRANGER, location)

    def _was_never_current(self, name: str) -> bool:
        """Return whether a metadata file is of a commit that failed or was killed: the metadata log
        would have its name otherwise."""
        version = _version(name)
        return version is not None and version >= self._logged_since and name not in self._versions

    def _listed(self, folder: str) -> Iterator[str]:
        """Yield the locations of the files in a folder. If it cannot be listed, add a finding."""
        try:
            found = list_files(self._files.inner, self._files.stored_location(folder))
            if found is None:
                self._findings.add(
                    "folder-not-listed",
                    f"{type(self._files.inner).__name__} cannot list files, so files that no "
                    "snapshot has were not searched for in this folder",
                    folder,
                )
                return
            yield from found
        except (Ags1Error, OSError) as error:
            self._findings.take(finding_of(error, folder, ()))
        except (ValueError, ImportError) as error:
            self._findings.add("metadata", f"this location is not valid: {error}", folder)

    # -- names and keys

    def _name(self, location: str) -> bytes:
        return self._place_name(self._place_of(location))

    def _place_of(self, location: str) -> str:
        try:
            return place(self._files.stored_location(location))
        except MetadataIntegrityError:
            # The same error is a finding when the file is opened.
            return place(location)

    def _lies_here(self) -> bool:
        try:
            return self._files.local_path(self._metadata.location) is not None
        except MetadataIntegrityError:
            return False

    def _place_name(self, where: str) -> bytes:
        return where.removeprefix(self._root).encode("utf-8", "surrogatepass")

    def _register(self, location: str, km: KeyMetadata | None, ids: _Snapshots) -> bool:
        """Record a file; return whether it is new. Adds a finding if a file has two keys, or if two
        files have one key."""
        name = self._name(location)
        digest = b""
        if km is not None:
            digest = hashlib.blake2b(km.encryption_key, digest_size=16, key=self._salt).digest()
        known = self._known.get(name)
        if known is not None:
            if known != digest:
                self._findings.add(
                    "two-keys", "the table's metadata has two keys for this file", location, ids
                )
            return False
        self._known[name] = digest
        if digest and self._sealed_by.setdefault(digest, name) is not name:
            other = self._sealed_by[digest].decode("utf-8", "replace")
            self._findings.add(
                "shared-key",
                f"its key is also that of {other}: somebody can exchange parts of the two files. "
                "Rewrite both with rekey",
                location,
                ids,
            )
        return True

    # -- threads

    def _ahead(
        self, work: Callable[[_Item], _Result], items: Iterable[_Item]
    ) -> Iterator[tuple[_Item, _Result]]:
        """Yield each item with ``work(item)``, in order. Threads work a few items ahead."""
        under_way: deque[tuple[_Item, Future[_Result]]] = deque()

        def first() -> tuple[_Item, _Result]:
            item, future = under_way.popleft()
            while not wait((future,), TICK_SECONDS).done:
                self._tell()
            return item, future.result()

        for item in items:
            under_way.append((item, self._pool.submit(work, item)))
            if len(under_way) > 2 * self._threads:
                yield first()
        while under_way:
            yield first()

    def _tell(self, *, final: bool = False) -> None:
        now = time.monotonic()
        if self._progress is None or (now < self._next_progress and not final):
            return
        self._next_progress = now + TICK_SECONDS
        if final:
            self._progress(self._size_seen, self._size_seen)
            return
        total = None if self._estimate is None else max(self._estimate, self._size_seen)
        self._progress(self._meter.done, total)


def _manifests(
    snapshot: EncryptedSnapshot, data: bytes
) -> tuple[dict[str, str], list[EncryptedManifest]]:
    try:
        header, records = read_avro_records(data, MANIFEST_LIST)
        return header, list(records)
    except Exception as error:
        failure = unreadable("manifest list", snapshot.manifest_list, error)
    # Raised out here, without the other error as its context: that may quote a record with a key.
    raise failure


def _entries(manifest: EncryptedManifest, data: bytes) -> Iterator[ManifestEntry]:
    failure = None
    try:
        _, records = read_avro_records(data, MANIFEST)
        yield from records
    except Exception as error:
        failure = unreadable("manifest", manifest.manifest_path, error)
    if failure is not None:
        raise failure


def _stated(file: ContentFile) -> _Stated:
    """Return the values that all entries of one file must agree on."""
    # One Puffin file may have several deletion vectors, each with its own number of rows.
    rows = None if file.is_deletion_vector else file.record_count
    ids = tuple(file.equality_ids or ())
    return file.file_size_in_bytes, rows, file.content, file.file_format, ids


def _version(name: str) -> int | None:
    """Return the number at the beginning of a metadata.json's name; None if there is none."""
    found = re.fullmatch(r"(\d+)-[^/]*\.metadata\.json", name)
    return None if found is None else int(found[1])


def _is_of_use(name: str) -> bool:
    """Return whether a file belongs to a table although no snapshot has it: a version of the
    metadata, which is unencrypted by design, or a checksum file of Hadoop."""
    return (
        name.endswith((".metadata.json", ".metadata.json.gz", ".crc"))
        or name == "version-hint.text"
    )
