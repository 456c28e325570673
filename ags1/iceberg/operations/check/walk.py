"""``TableWalk``: from the snapshots of a table down to its files, for checks of it.

It decrypts and reads the manifest lists and manifests, and yields a check for each data, delete and
statistics file. It does not read those files. The drawing is in ``check``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeAlias, TypeVar, cast

from pyiceberg.manifest import DataFileContent, ManifestEntryStatus

from ....engine.key_metadata import KeyMetadata
from ....errors import KMS_UNUSABLE, Ags1Error, KeyMetadataError, MetadataIntegrityError
from ...commit.session import TableSession
from ...read.records import ContentFile, ManifestEntry
from ...read.snapshots import (
    MANIFEST,
    MANIFEST_LIST,
    EncryptedManifest,
    EncryptedSnapshot,
    parsed,
)
from ...read.statistics import list_statistics, statistics_key
from .checks import TICK_SECONDS, Check, CheckKind, Tick
from .file_index import FileIndex, SnapshotIds
from .findings import Finding, Findings, finding_of
from .progress import ProgressReport

_COUNTED = (
    "manifest_lists manifests data_files plain_data_files delete_files deletion_vectors "
    "statistics_files"
).split()

# For each location: a manifest, and the IDs of the snapshots that have it.
_Manifests: TypeAlias = "dict[str, tuple[EncryptedManifest, list[int]]]"
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class ReadAhead:
    """Reads files in ``pool``, which has ``threads`` threads. ``tick`` is called while it waits."""

    def __init__(self, pool: ThreadPoolExecutor, threads: int, tick: Tick) -> None:
        self._pool = pool
        self._threads = threads
        self._tick = tick

    def map(
        self, read: Callable[[_Item], _Result], items: Iterable[_Item]
    ) -> Iterator[tuple[_Item, _Result]]:
        """Yield each item with ``read(item)``, in order. Threads read a few items ahead."""
        pending: deque[tuple[_Item, Future[_Result]]] = deque()

        def first() -> tuple[_Item, _Result]:
            item, future = pending.popleft()
            while not wait((future,), TICK_SECONDS).done:
                self._tick()
            return item, future.result()

        for item in items:
            pending.append((item, self._pool.submit(read, item)))
            if len(pending) > 2 * self._threads:
                yield first()
        while pending:
            yield first()


class TableWalk:
    """One walk through a table. Call ``read_manifest_lists`` first, and then ``checks``. ``counts``
    are the numbers of files by kind. ``verified_size`` is the number of verified bytes."""

    def __init__(
        self,
        table: TableSession,
        index: FileIndex,
        findings: Findings,
        ahead: ReadAhead,
        report: ProgressReport,
        *,
        require_encrypted: bool,
    ) -> None:
        self._metadata = table.metadata
        self._json = table.version.json
        self._files = table.files
        self._index = index
        self._findings = findings
        self._ahead = ahead
        self._report = report
        self._require_encrypted = require_encrypted
        self._encrypted_manifests: _Manifests = {}
        self._plaintext_manifests: _Manifests = {}
        # Unencrypted data files: the snapshots that have them.
        self._plain_data: dict[str, set[int]] = {}
        self._heads = {int(ref["snapshot-id"]) for ref in (self._json.get("refs") or {}).values()}
        self.verified_size = 0
        # Whether all manifest lists and manifests were read, so that the index has every file.
        self.is_complete = True
        self.counts = dict.fromkeys(_COUNTED, 0)

    def read_manifest_lists(self) -> None:
        """Read the manifest lists of all snapshots. Raises KmsUnavailableError,
        KmsAccessDeniedError and KmsConfigurationError."""
        encrypted = []
        for plain in self._metadata.snapshots:
            snapshot = cast("EncryptedSnapshot", plain)
            if snapshot.key_id is None:
                self._index.add_unreadable(snapshot.manifest_list)
                self.is_complete = False
            else:
                encrypted.append(snapshot)
        for snapshot, result in self._ahead.map(self._open_manifest_list, encrypted):
            ids = (snapshot.snapshot_id,)
            if isinstance(result, Finding):
                self._index.add_unreadable(snapshot.manifest_list)
                self._note_unread(result)
                continue
            key_metadata, data = result
            self.counts["manifest_lists"] += self._index.add(
                snapshot.manifest_list, key_metadata, ids
            )
            self.verified_size += cast("int", key_metadata.file_length)
            try:
                self._add_manifests(snapshot, data)
            except Ags1Error as error:
                self._note_unread(finding_of(error, snapshot.manifest_list, ids))

    def _note_unread(self, finding: Finding) -> None:
        """Add the finding of a manifest or a manifest list that was not read whole."""
        self.is_complete = False
        self._findings.append(finding)

    def checks(self) -> Iterator[Check]:
        """Read the manifests; yield the checks of the files that they and the metadata name."""
        yield from self._read_plaintext_manifests()
        yield from self._read_encrypted_manifests()
        for path, plain_ids in self._plain_data.items():
            self._findings.add(
                "not-encrypted" if self._require_encrypted else "plain-data-file",
                "the data file is not encrypted: the manifest has no key for it",
                path,
                tuple(sorted(plain_ids)),
            )
        for _, entry in list_statistics(self._json):
            location, ids = entry["statistics-path"], (entry["snapshot-id"],)
            try:
                key_metadata = statistics_key(entry, self._files)
            except KMS_UNUSABLE:
                raise
            except Ags1Error as error:
                self._index.add_unreadable(location)
                self._findings.append(finding_of(error, location, ids))
                continue
            if not self._index.add(location, key_metadata, ids):
                continue
            self.counts["statistics_files"] += 1
            if key_metadata is None:
                yield Check(CheckKind.STATISTICS, location, ids)
                continue
            try:
                self._files.read_encrypted(location, key_metadata)
            except (Ags1Error, OSError) as error:
                self._findings.append(finding_of(error, location, ids))
            else:
                self.verified_size += cast("int", key_metadata.file_length)

    def _open_manifest_list(
        self, snapshot: EncryptedSnapshot
    ) -> tuple[KeyMetadata, bytes] | Finding:
        location = snapshot.manifest_list
        try:
            key_metadata = self._files.keys.manifest_list_key(cast("str", snapshot.key_id))
            key_metadata = self._files.sized_key(location, key_metadata)
            return key_metadata, self._files.read_encrypted(location, key_metadata)
        except KMS_UNUSABLE:
            raise
        except (Ags1Error, OSError) as error:
            return finding_of(error, location, (snapshot.snapshot_id,))

    def _add_manifests(self, snapshot: EncryptedSnapshot, data: bytes) -> None:
        """Note the manifests that a manifest list names, for ``checks``."""
        header, manifests = parsed("manifest list", snapshot.manifest_list, data, MANIFEST_LIST)
        written_for = header.get("snapshot-id")
        if written_for not in (None, str(snapshot.snapshot_id)):
            raise MetadataIntegrityError(
                f"the manifest list was written for snapshot {written_for}, not for this one"
            )
        for manifest in manifests:
            manifest.conceal()
            path, ids = manifest.manifest_path, (snapshot.snapshot_id,)
            try:
                key_metadata = manifest.key
            except Ags1Error as error:
                self._index.add_unreadable(path)
                if manifest.is_plaintext:
                    _, of_manifest = self._plaintext_manifests.setdefault(path, (manifest, []))
                    of_manifest.append(snapshot.snapshot_id)
                else:
                    self._note_unread(finding_of(error, path, ids))
                continue
            if self._index.add(path, key_metadata, ids):
                self._encrypted_manifests[path] = (manifest, [snapshot.snapshot_id])
            elif path in self._encrypted_manifests:
                self._encrypted_manifests[path][1].append(snapshot.snapshot_id)

    def _read_encrypted_manifests(self) -> Iterator[Check]:
        paths = list(self._encrypted_manifests)
        for path, result in self._ahead.map(self._open_encrypted_manifest, paths):
            # Remove it with its key, which is not needed any more.
            manifest, snapshots = self._encrypted_manifests.pop(path)
            ids = tuple(snapshots)
            if isinstance(result, Finding):
                self._note_unread(result)
                continue
            self.counts["manifests"] += 1
            self.verified_size += manifest.manifest_length
            try:
                yield from self._check_entries(manifest, result, ids)
            except Ags1Error as error:
                self._note_unread(finding_of(error, path, ids))

    def _open_encrypted_manifest(self, path: str) -> bytes | Finding:
        manifest, snapshots = self._encrypted_manifests[path]
        try:
            return self._files.read_encrypted(path, manifest.key)
        except (Ags1Error, OSError) as error:
            return finding_of(error, path, tuple(snapshots))

    def _read_plaintext_manifests(self) -> Iterator[Check]:
        paths = list(self._plaintext_manifests)
        for path, result in self._ahead.map(self._open_plaintext_manifest, paths):
            manifest, snapshots = self._plaintext_manifests[path]
            ids = tuple(snapshots)
            exposed: set[bytes] = set()
            why = "the manifest is plaintext: the manifest list has no key for it"
            try:
                if isinstance(result, Exception):
                    raise result
                self.counts["manifests"] += 1
                yield from self._check_entries(manifest, result, ids, exposed)
            except KeyMetadataError as error:
                self.is_complete = False
                why = error.message
            except (Ags1Error, OSError) as error:
                self._note_unread(finding_of(error, path, ids))
            self._index.add_exposed(exposed)
            if exposed:
                self._findings.add(
                    "exposed-keys",
                    f"the manifest is plaintext and has the keys of {len(exposed)} encrypted "
                    "files: everybody who can read it can decrypt and forge them. Run "
                    "rekey(exposed=True) or 'ags1 table rekey --exposed', which rewrites those in "
                    "use with fresh keys. Then expire these snapshots",
                    path,
                    ids,
                )
            else:
                self._findings.add("manifest-without-key", why, path, ids)

    def _open_plaintext_manifest(self, path: str) -> bytes | Ags1Error | OSError:
        manifest, _ = self._plaintext_manifests[path]
        try:
            return self._files.read_exposed(path, manifest.manifest_length)
        except (Ags1Error, OSError) as error:
            return error

    def _check_entries(
        self,
        manifest: EncryptedManifest,
        data: bytes,
        ids: SnapshotIds,
        exposed: set[bytes] | None = None,
    ) -> Iterator[Check]:
        """Yield the checks of a manifest's files. ``exposed`` collects the names of all files whose
        key the manifest has."""
        counts = dict.fromkeys(ManifestEntryStatus, 0)
        vectors: dict[str, list[ContentFile]] = {}
        is_current = self._metadata.current_snapshot_id in ids
        is_head = not self._heads.isdisjoint(ids)
        _, entries = parsed("manifest", manifest.manifest_path, data, MANIFEST)
        for entry in cast("list[ManifestEntry]", entries):
            counts[entry.status] += 1
            file = entry.file
            file.conceal()
            if exposed is not None and file.is_encrypted:
                exposed.add(self._index.name(file.file_path))
            if entry.status == ManifestEntryStatus.DELETED:
                continue
            file.spec_id = manifest.partition_spec_id
            try:
                is_new = self._index.add_entry(file, ids, is_current=is_current, is_head=is_head)
            except Ags1Error as error:
                self._findings.append(finding_of(error, file.file_path, ids))
                continue
            if file.content == DataFileContent.DATA and not file.is_encrypted:
                self._plain_data.setdefault(file.file_path, set()).update(ids)
            if file.is_deletion_vector and file.is_encrypted:
                if self._index.add_vector(file):
                    self.counts["deletion_vectors"] += 1
                    self._count_file("delete_files", file, is_new)
                    vectors.setdefault(file.file_path, []).append(file)
            elif is_new:
                yield Check(self._kind_of(file, ids), file.file_path, ids, (file,))
        for path, in_puffin in vectors.items():
            yield Check(CheckKind.VECTORS, path, ids, tuple(in_puffin))
        _check_counts(manifest, counts)

    def _kind_of(self, file: ContentFile, ids: SnapshotIds) -> CheckKind:
        """Count a new file that is no deletion vector; return the kind of check that it needs."""
        is_data = file.content == DataFileContent.DATA
        self._count_file("data_files" if is_data else "delete_files", file, True)
        if file.is_encrypted:
            return CheckKind.ENCRYPTED
        if is_data:
            self.counts["plain_data_files"] += 1
        else:
            self._findings.add(
                "delete-file-without-key",
                "the delete file is not encrypted: the manifest has no key for it",
                file.file_path,
                ids,
            )
        return CheckKind.PLAIN

    def _count_file(self, kind: str, file: ContentFile, is_new: bool) -> None:
        self.counts[kind] += is_new
        self._report.known_size += file.file_size_in_bytes if is_new else 0


def _check_counts(manifest: EncryptedManifest, counts: dict[ManifestEntryStatus, int]) -> None:
    """Raise MetadataIntegrityError if the manifest list states other numbers of files."""
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
