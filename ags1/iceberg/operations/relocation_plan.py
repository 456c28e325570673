"""What a relocation copies and what it writes anew, as the table's manifests say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntryStatus

from ...errors import FormatError, MetadataIntegrityError, NotEncryptedError, TruncatedError
from ...key_metadata import KeyMetadata
from ..read.records import ContentFile
from ..read.snapshots import EncryptedManifest, EncryptedSnapshot
from ..storage.byte_meter import ByteMeter
from ..storage.home import FOLDER_PROPERTIES
from ..storage.places import Place, Places, place_of
from ..storage.table_files import TableFiles
from .repoint import Paths


class Copy(NamedTuple):
    """A file to be copied. ``size`` in bytes; ``is_encrypted`` where tags tell if it is right."""

    source: str
    size: int
    is_encrypted: bool


class Vectors(NamedTuple):
    """A Puffin file of deletion vectors, and those of them that a snapshot has."""

    source: str
    km: KeyMetadata
    vectors: list[ContentFile]


class Deletes(NamedTuple):
    """A file of position deletes."""

    source: str
    km: KeyMetadata
    file_format: FileFormat


class Found(NamedTuple):
    """What one manifest names that is live."""

    copies: list[Copy]
    vectors: list[Vectors]
    deletes: list[Deletes]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file that was written anew, in the place of ``source``."""

    source: str
    location: str
    km: KeyMetadata
    paths: Paths | None = None

    @property
    def size(self) -> int:
        return cast("int", self.km.file_length)


@dataclass(slots=True)
class Plan:
    """All that is to be done."""

    snapshots: list[EncryptedSnapshot] = field(default_factory=list)
    manifests: dict[str, EncryptedManifest] = field(default_factory=dict)
    copies: dict[Place, Copy] = field(default_factory=dict)
    vectors: dict[Place, Vectors] = field(default_factory=dict)
    deletes: dict[Place, Deletes] = field(default_factory=dict)
    dropped_statistics: list[str] = field(default_factory=list)

    def add_manifest(self, manifest: EncryptedManifest) -> None:
        """Add a manifest. Raises MetadataIntegrityError when two lists differ on its key."""
        known = self.manifests.setdefault(manifest.manifest_path, manifest)
        if known.key != manifest.key:
            raise MetadataIntegrityError(
                "two manifest lists have different keys for this manifest",
                file=manifest.manifest_path,
            )

    def add(self, found: Found) -> None:
        """Add what a manifest names. Raises MetadataIntegrityError for a file that two entries do
        not describe alike."""
        for item in found.copies:
            self.add_copy(item)
        for vectors in found.vectors:
            here = self.vectors.setdefault(place_of(vectors.source), vectors)
            if here is not vectors:
                _check_same(here.km, vectors.km, vectors.source)
                here.vectors.extend(vectors.vectors)
        for deletes in found.deletes:
            known_file = self.deletes.setdefault(place_of(deletes.source), deletes)
            _check_same(known_file.km, deletes.km, deletes.source)

    def add_copy(self, item: Copy) -> None:
        """Add a file to be copied. Raises MetadataIntegrityError as ``add``."""
        known = self.copies.setdefault(place_of(item.source), item)
        if known[1:] != item[1:]:
            raise MetadataIntegrityError(
                "two entries say different things of this file", file=item.source
            )

    def sources(self) -> Iterator[str]:
        """Yield the locations of all data and delete files and statistics."""
        yield from (item.source for item in self.copies.values())
        yield from (item.source for item in self.vectors.values())
        yield from (item.source for item in self.deletes.values())

    @property
    def rewritten(self) -> int:
        return sum(map(len, (self.snapshots, self.manifests, self.vectors, self.deletes)))

    @property
    def copied_size(self) -> int:
        return sum(c.size for c in self.copies.values())


def read_manifest(manifest: EncryptedManifest, files: TableFiles, meter: ByteMeter) -> Found:
    """Return what a manifest names that is live. Raises NotEncryptedError, and what reading one
    raises."""
    found = Found([], [], [])
    puffins: dict[str, Vectors] = {}
    for entry in manifest.fetch_manifest_entry(files, discard_deleted=False):
        meter.add(0)
        if entry.status == ManifestEntryStatus.DELETED:
            continue
        file = cast("ContentFile", entry.data_file)
        path, km = file.file_path, file.key
        if km is None and files.require_encrypted:
            raise NotEncryptedError(
                "this data file is in the clear, and the caller requires encryption", file=path
            )
        if km is None or file.content != DataFileContent.POSITION_DELETES:
            found.copies.append(Copy(path, file.file_size_in_bytes, km is not None))
        elif file.is_deletion_vector:
            if path not in puffins:
                puffins[path] = Vectors(path, km, [])
                found.vectors.append(puffins[path])
            puffins[path].vectors.append(file)
        else:
            found.deletes.append(Deletes(path, km, FileFormat(file.file_format)))
    return found


def distinct(vectors: Iterable[ContentFile]) -> Iterable[ContentFile]:
    """Return deletion vectors of one file without those of which another says the same."""
    found = {
        (v.content_offset, v.content_size_in_bytes, v.referenced_data_file, v.record_count): v
        for v in vectors
    }
    return found.values()


def _check_same(one: KeyMetadata, other: KeyMetadata, location: str) -> None:
    if one != other:
        raise MetadataIntegrityError("two entries have different keys for this file", file=location)


def check_size(size: int, item: Copy) -> None:
    """Raise TruncatedError or FormatError for a file that has not the size that it should have."""
    if size < item.size:
        raise TruncatedError(
            f"the file has {size} bytes, and the metadata says {item.size}", file=item.source
        )
    if size > item.size:
        raise FormatError(
            f"the file has more than the {item.size} bytes that the metadata says",
            file=item.source,
        )


def moved_properties(metadata: Mapping[str, Any], places: Places) -> dict[str, str]:
    """Return the table's properties in its new place: folders below the old one are moved, and
    those elsewhere dropped."""
    properties = dict(metadata.get("properties") or {})
    for name in FOLDER_PROPERTIES:
        folder = properties.get(name)
        if folder is None:
            continue
        moved = places.inside(folder.rstrip("/"))
        if moved is not None:
            properties[name] = moved
        else:
            del properties[name]
    return properties


def refs_to(refs: Mapping[str, Any], kept: set[int]) -> dict[str, Any]:
    """Return the branches and tags that are at snapshots which are kept."""
    return {name: ref for name, ref in refs.items() if ref["snapshot-id"] in kept}


def log_of(log: Iterable[dict[str, Any]], kept: set[int]) -> list[dict[str, Any]]:
    """Return a snapshot log without what is gone, nor what was before: as Java keeps it, the log
    says without a gap which snapshot was the current one."""
    found: list[dict[str, Any]] = []
    for entry in log:
        if entry["snapshot-id"] in kept:
            found.append(entry)
        else:
            found.clear()
    return found
