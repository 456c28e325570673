"""What a relocation copies and what it writes anew, as the table's manifests say.

    metadata.json                          written anew, at the end
      manifest list, one a snapshot        written anew: it names manifests
        manifest                           written anew: it names the files below
          deletion vectors (Puffin)        written anew: they name data files
          position deletes                 written anew: they name data files
          data file, equality deletes      copied as they are stored
      statistics                           copied as they are stored

A file may be named by many manifests, and is planned once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntryStatus

from ....errors import MetadataIntegrityError, NotEncryptedError
from ....key_metadata import KeyMetadata
from ...read.records import ContentFile
from ...read.snapshots import EncryptedManifest, EncryptedSnapshot
from ...read.statistics import STATISTICS
from ...storage.byte_meter import ByteMeter
from ...storage.locations import Location, normalized
from ...storage.table_files import TableFiles
from .relocation import Relocation

# The fields of metadata.json that name statistics files.


class Copy(NamedTuple):
    """A file to copy. ``size`` is in bytes. If ``is_encrypted``, tags show whether it is right."""

    source: str
    size: int
    is_encrypted: bool


class Vectors(NamedTuple):
    """A Puffin file of deletion vectors, and those of its vectors that a snapshot has."""

    source: str
    key_metadata: KeyMetadata
    vectors: list[ContentFile]


class Deletes(NamedTuple):
    """A file of position deletes."""

    source: str
    key_metadata: KeyMetadata
    file_format: FileFormat


@dataclass(slots=True)
class Plan:
    """All files that a relocation copies or writes anew. ``statistics`` are the entries of
    metadata.json that the new table keeps. ``dropped_statistics`` are the locations of others."""

    snapshots: list[EncryptedSnapshot] = field(default_factory=list)
    manifests: dict[str, EncryptedManifest] = field(default_factory=dict)
    copies: dict[Location, Copy] = field(default_factory=dict)
    vectors: dict[Location, Vectors] = field(default_factory=dict)
    deletes: dict[Location, Deletes] = field(default_factory=dict)
    statistics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    dropped_statistics: list[str] = field(default_factory=list)
    copied_size: int = 0

    def add_manifest(self, manifest: EncryptedManifest) -> None:
        """Add a manifest. Raises MetadataIntegrityError if two lists have different keys for it."""
        known = self.manifests.setdefault(manifest.manifest_path, manifest)
        _check_same_key(known.key, manifest.key, manifest.manifest_path)

    def add(self, item: Copy | Vectors | Deletes) -> None:
        """Add a file. Raises MetadataIntegrityError if another entry describes it differently."""
        location = normalized(item.source)
        if isinstance(item, Copy):
            known = self.copies.setdefault(location, item)
            if known is item:
                self.copied_size += item.size
            elif known[1:] != item[1:]:
                raise MetadataIntegrityError(
                    "two entries in the table's metadata describe this file differently",
                    file=item.source,
                )
        elif isinstance(item, Deletes):
            _check_same_key(
                self.deletes.setdefault(location, item).key_metadata, item.key_metadata, item.source
            )
        elif (vectors := self.vectors.setdefault(location, item)) is not item:
            _check_same_key(vectors.key_metadata, item.key_metadata, item.source)
            vectors.vectors.extend(item.vectors)

    def sources(self) -> Iterator[str]:
        """Yield the locations of all data files, delete files and statistics."""
        yield from (item.source for item in self.copies.values())
        yield from (item.source for item in self.vectors.values())
        yield from (item.source for item in self.deletes.values())

    @property
    def rewritten_files(self) -> int:
        """The number of files that are written anew, without metadata.json."""
        return sum(map(len, (self.snapshots, self.manifests, self.vectors, self.deletes)))


def make_plan(relocation: Relocation) -> Plan:
    """Read the table's manifests; return what its relocation has to do, without statistics outside
    the table's folders. Raises MetadataIntegrityError, NotEncryptedError, and as reading manifests
    does."""
    plan = Plan()
    files, workers = relocation.files, relocation.workers
    current = relocation.metadata.get("current-snapshot-id")
    for entry in relocation.metadata.get("snapshots") or ():
        if relocation.all_snapshots or entry["snapshot-id"] == current:
            parsed = relocation.view.parsed.snapshot_by_id(entry["snapshot-id"])
            plan.snapshots.append(cast("EncryptedSnapshot", parsed))
    for manifests in workers.each(lambda snapshot: snapshot.manifests(files), plan.snapshots):
        for manifest in manifests:
            plan.add_manifest(cast("EncryptedManifest", manifest))
    for live in workers.each(
        lambda manifest: _live_files(manifest, files, workers.meter), plan.manifests.values()
    ):
        for item in live:
            plan.add(item)
        workers.report.known_size = plan.copied_size
    _add_statistics(plan, relocation)
    workers.report.known_size = plan.copied_size
    relocation.destination.keep_apart(plan.sources())
    return plan


def _live_files(
    manifest: EncryptedManifest, files: TableFiles, meter: ByteMeter
) -> list[Copy | Vectors | Deletes]:
    """Return the live files that a manifest names. Raises NotEncryptedError if one is not encrypted
    and must be, and what reading the manifest raises."""
    live: list[Copy | Vectors | Deletes] = []
    for entry in manifest.fetch_manifest_entry(files, discard_deleted=False):
        meter.add(0)
        if entry.status == ManifestEntryStatus.DELETED:
            continue
        file = cast("ContentFile", entry.data_file)
        path, key_metadata = file.file_path, file.key
        if key_metadata is None and files.require_encrypted:
            raise NotEncryptedError(
                "this data file is not encrypted, and the caller requires encryption", file=path
            )
        if key_metadata is None or file.content != DataFileContent.POSITION_DELETES:
            live.append(Copy(path, file.file_size_in_bytes, key_metadata is not None))
        elif file.is_deletion_vector:
            live.append(Vectors(path, key_metadata, [file]))
        else:
            live.append(Deletes(path, key_metadata, FileFormat(file.file_format)))
    return live


def _add_statistics(plan: Plan, relocation: Relocation) -> None:
    copied_snapshots = {snapshot.snapshot_id for snapshot in plan.snapshots}
    for name in STATISTICS:
        usable = plan.statistics[name] = []
        for entry in relocation.metadata.get(name) or ():
            if not relocation.all_snapshots and entry["snapshot-id"] not in copied_snapshots:
                continue
            location = entry["statistics-path"]
            try:
                is_usable = relocation.folders.has_statistics(location, relocation.files)
            except FileNotFoundError:
                is_usable = False
            if is_usable:
                is_encrypted = entry.get("key-id") is not None
                plan.add(Copy(location, int(entry["file-size-in-bytes"]), is_encrypted))
                usable.append(entry)
            else:
                # No reader needs statistics: Java reads the table without them if they are missing.
                plan.dropped_statistics.append(location)


def _check_same_key(one: KeyMetadata | None, other: KeyMetadata | None, location: str) -> None:
    if one != other:
        raise MetadataIntegrityError(
            "two entries in the table's metadata have different keys for this file", file=location
        )
