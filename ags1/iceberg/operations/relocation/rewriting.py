"""``Rewriter`` writes the files that name other files anew, with their new locations.

These are deletion vectors, position deletes, manifests and manifest lists. Each new file has a
fresh key and a name that no other attempt uses, so no key ever encrypts two contents.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from pyiceberg.manifest import DataFileContent, FileFormat

from ....errors import Ags1Error, MetadataIntegrityError
from ....key_metadata import KeyMetadata
from ...read.deletes import read_deletion_vector
from ...read.records import ContentFile
from ...read.snapshots import EncryptedManifest, EncryptedSnapshot
from ...storage.locations import Location, normalized
from ...storage.output import TableOutput
from .copying import check_size, open_regular
from .plan import Copy, Deletes, Plan, Vectors
from .relocation import Relocation
from .repoint import (
    Paths,
    Row,
    UnreadableError,
    repoint_avro_deletes,
    repoint_parquet_deletes,
    repoint_puffin,
    repoint_records,
    with_bound,
)

# Field IDs of manifest lists, manifest entries and data files.
_MANIFEST_PATH, _MANIFEST_LENGTH, _MANIFEST_KEY = 500, 501, 519
_DATA_FILE, _FILE_PATH, _FILE_SIZE, _COLUMN_SIZES = 2, 100, 104, 108
_LOWER_BOUNDS, _UPPER_BOUNDS, _KEY, _SPLIT_OFFSETS = 125, 128, 131, 132
_CONTENT, _REFERENCED_DATA_FILE = 134, 143


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file that was written anew at ``location``. ``source`` is the location of the old one.
    ``paths`` are the bounds of the paths in a file of position deletes."""

    source: str
    location: str
    key_metadata: KeyMetadata
    paths: Paths | None = None

    @property
    def size(self) -> int:
        """The size of the new file (bytes)."""
        return cast("int", self.key_metadata.file_length)


class Rewriter:
    """Writes the files of a relocation anew. ``output`` has the files that were written."""

    def __init__(self, relocation: Relocation, metadata_folder: str) -> None:
        self.output = TableOutput(relocation.io)
        self._workers, self._destination = relocation.workers, relocation.destination
        self._files, self._manager = relocation.files, relocation.files.keys
        self._metadata_folder = metadata_folder
        # In the names of this attempt's manifests and manifest lists.
        self._attempt = str(uuid.uuid4())
        self._rewritten: dict[Location, Rewritten] = {}

    def rewrite(self, plan: Plan) -> dict[str, Rewritten]:
        """Write all files of ``plan`` anew; return the manifest lists by their old locations.
        Raises MetadataIntegrityError, NotImplementedError, and what reading a file raises."""
        # Manifests name the files above them, and manifest lists name manifests.
        self._rewrite_each(self._rewrite_vectors, plan.vectors.values())
        self._rewrite_each(self._rewrite_deletes, plan.deletes.values())
        self._rewrite_each(self._rewrite_manifest, enumerate(plan.manifests.values()))
        lists = self._workers.each(self._rewrite_list, plan.snapshots)
        return {rewritten.source: rewritten for rewritten in lists}

    def _rewrite_each(self, rewrite: Callable[[Any], Rewritten], items: Iterable[Any]) -> None:
        # None of the threads may see this dictionary change.
        for rewritten in list(self._workers.each(rewrite, items)):
            self._rewritten[normalized(rewritten.source)] = rewritten

    def _rewrite_vectors(self, item: Vectors) -> Rewritten:
        payload = self._files.read_encrypted(item.source, item.key_metadata)
        for vector in _distinct(item.vectors):
            read_deletion_vector(payload, vector, vector.referenced_data_file or "")
        with _named("Puffin file", item.source):
            data = repoint_puffin(payload, self._destination)
        location = self._fresh_name(item.source, "-deletes.puffin")
        return Rewritten(item.source, location, self._write_encrypted(location, data))

    def _rewrite_deletes(self, item: Deletes) -> Rewritten:
        source = item.source
        if item.file_format == FileFormat.AVRO:
            plain = self._files.read_encrypted(source, item.key_metadata)
            with _named("position delete file", source):
                data, paths = repoint_avro_deletes(plain, self._destination)
            location = self._fresh_name(source, "-deletes.avro")
            return Rewritten(source, location, self._write_encrypted(location, data), paths)
        if item.file_format != FileFormat.PARQUET:
            raise NotImplementedError(
                f"{source}: position deletes in {item.file_format.name} files are not supported "
                "in an encrypted table"
            )
        key_metadata = self._manager.new_file_key()
        stored = self._read_stored(item)
        with _named("position delete file", source):
            data, paths = repoint_parquet_deletes(
                stored, item.key_metadata, key_metadata, self._destination
            )
        location = self._fresh_name(source, "-deletes.parquet")
        self.output.write(location, data)
        return Rewritten(source, location, key_metadata.with_file_length(len(data)), paths)

    def _rewrite_manifest(self, item: tuple[int, EncryptedManifest]) -> Rewritten:
        number, manifest = item
        source = manifest.manifest_path
        plain = self._files.read_encrypted(source, manifest.key)
        with _named("manifest", source):
            data = repoint_records(plain, self._repoint_entry)
        location = f"{self._metadata_folder}/{self._attempt}-m{number}.avro"
        return Rewritten(source, location, self._write_encrypted(location, data))

    def _repoint_entry(self, entry: Row) -> None:
        file = entry.record(_DATA_FILE)
        path = file.get(_FILE_PATH)
        if not isinstance(path, str):
            raise UnreadableError("an entry has no path")
        file.set(_FILE_PATH, self._destination(path))
        referenced = file.get(_REFERENCED_DATA_FILE)
        if referenced is not None:
            file.set(_REFERENCED_DATA_FILE, self._destination(referenced))
        if file.get(_CONTENT) != DataFileContent.POSITION_DELETES:
            return
        rewritten = self._rewritten.get(normalized(path))
        if rewritten is None:
            # The entry only says that the file was removed.
            _set_bounds(file, Paths(None, None))
            return
        file.set(_FILE_PATH, rewritten.location)
        file.set(_FILE_SIZE, rewritten.size)
        file.set(_KEY, rewritten.key_metadata.to_bytes())
        if rewritten.paths is not None:
            _set_bounds(file, rewritten.paths)

    def _rewrite_list(self, snapshot: EncryptedSnapshot) -> Rewritten:
        source = snapshot.manifest_list
        key_metadata = self._manager.manifest_list_key(cast("str", snapshot.key_id))
        plain = self._files.read_encrypted(source, key_metadata)
        with _named("manifest list", source):
            data = repoint_records(plain, self._repoint_manifest)
        name = f"snap-{snapshot.snapshot_id}-1-{self._attempt}.avro"
        location = f"{self._metadata_folder}/{name}"
        return Rewritten(source, location, self._write_encrypted(location, data))

    def _repoint_manifest(self, manifest: Row) -> None:
        rewritten = self._rewritten.get(normalized(manifest.get(_MANIFEST_PATH)))
        if rewritten is None:
            raise UnreadableError("it has changed since it was first read")
        manifest.set(_MANIFEST_PATH, rewritten.location)
        manifest.set(_MANIFEST_LENGTH, rewritten.size)
        manifest.set(_MANIFEST_KEY, rewritten.key_metadata.to_bytes())

    def _write_encrypted(self, location: str, data: bytes) -> KeyMetadata:
        return self.output.write_encrypted(location, data, self._manager.new_file_key())

    def _fresh_name(self, source: str, ending: str) -> str:
        return f"{self._destination.folder(source)}/{uuid.uuid4()}{ending}"

    def _read_stored(self, item: Deletes) -> bytes:
        """Return an encrypted Parquet file as it is stored. Raises TruncatedError, FormatError."""
        size = item.key_metadata.file_length
        assert size is not None
        with open_regular(self._files, item.source) as stream:
            stored = stream.read(size + 1)
        check_size(len(stored), Copy(item.source, size, True))
        return stored


@contextmanager
def _named(what: str, source: str) -> Iterator[None]:
    """Name the file in the errors of its bytes. UnreadableError becomes MetadataIntegrityError."""
    try:
        yield
    except UnreadableError as error:
        raise MetadataIntegrityError(
            f"the {what} cannot be rewritten: {error}", file=source
        ) from None
    except Ags1Error as error:
        error.file = source
        raise


def _set_bounds(file: Row, paths: Paths) -> None:
    """Change an entry's bounds of paths, and remove optional values that are no longer true."""
    for field_id, bound in zip((_LOWER_BOUNDS, _UPPER_BOUNDS), paths, strict=True):
        bounds = file.get(field_id)
        if bounds is not None:
            file.set(field_id, with_bound(bounds, None if bound is None else bound.encode()))
    for field_id in (_COLUMN_SIZES, _SPLIT_OFFSETS):
        if file.get(field_id) is not None:
            file.set(field_id, None)


def _distinct(vectors: Iterable[ContentFile]) -> Iterable[ContentFile]:
    """Return the deletion vectors of one file, each once."""
    return {
        (v.content_offset, v.content_size_in_bytes, v.referenced_data_file, v.record_count): v
        for v in vectors
    }.values()
