"""Finds the files that a scan reads, and the delete files that apply to each.

This is PyIceberg's planner with four differences. ``pruning`` decides which files may match.
Deletion vectors are matched by the data file that they reference, not by partition. Equality
deletes are planned; PyIceberg refuses them. A filter does not prune delete files by the metrics of
their columns. The module follows the Iceberg specification, "Scan Planning". It reads manifests and
no data files.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, TypeAlias, cast

from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    INITIAL_SEQUENCE_NUMBER,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.table import ALWAYS_TRUE, FileScanTask
from pyiceberg.table.metadata import TableMetadata

from ...columns.avro._decoder import untrack
from ...errors import MetadataIntegrityError, NotEncryptedError
from ..pyiceberg.records import record_values
from ..pyiceberg.scans import ManifestPlanner, min_sequence_number, partition_spec_is_void
from ..spec.constants import PATH_FIELD_ID
from ..storage.workers import workers
from .pruning import FileFilter
from .records import ContentFile
from .snapshots import to_table_files

# The ID of a partition spec, then the values.
_Partition: TypeAlias = "tuple[Any, ...]"


class _BySequence:
    """Delete files in the order of their sequence numbers."""

    def __init__(self) -> None:
        self._files: list[tuple[int, ContentFile]] = []
        self._is_sorted = False

    def add(self, sequence_number: int, file: ContentFile) -> None:
        self._files.append((sequence_number, file))

    def since(self, sequence_number: int) -> list[ContentFile]:
        """Return the files with this sequence number or a greater one."""
        if not self._is_sorted:
            self._files.sort(key=itemgetter(0))
            self._is_sorted = True
        first = bisect_left(self._files, sequence_number, key=itemgetter(0))
        return [file for _, file in self._files[first:]]


class DeleteIndex:
    """Finds the delete files of a snapshot that apply to a data file."""

    def __init__(self, is_global: Callable[[int], bool]) -> None:
        self._is_global = is_global
        self._vectors: dict[str, tuple[int, ContentFile]] = {}
        self._by_path: defaultdict[str, _BySequence] = defaultdict(_BySequence)
        self._by_partition: defaultdict[_Partition, _BySequence] = defaultdict(_BySequence)
        self._equality: defaultdict[_Partition, _BySequence] = defaultdict(_BySequence)
        self._global_equality = _BySequence()
        self._empty = True

    def add(self, entry: ManifestEntry) -> None:
        """Add a delete file. Raises MetadataIntegrityError if a data file has two deletion vectors,
        or if a deletion vector names no data file."""
        self._empty = False
        file = cast("ContentFile", entry.data_file)
        sequence_number = _sequence_number(entry)
        if file.is_deletion_vector:
            self._add_vector(sequence_number, file)
        elif file.content == DataFileContent.POSITION_DELETES:
            path = path_of_all(file)
            if path is not None:
                self._by_path[path].add(sequence_number, file)
            else:
                self._by_partition[partition_key(file)].add(sequence_number, file)
        elif self._is_global(file.spec_id):
            self._global_equality.add(sequence_number, file)
        else:
            self._equality[partition_key(file)].add(sequence_number, file)

    def _add_vector(self, sequence_number: int, file: ContentFile) -> None:
        path = file.referenced_data_file
        if path is None:
            raise MetadataIntegrityError(
                "a deletion vector does not name its data file", file=file.file_path
            )
        if path in self._vectors:
            raise MetadataIntegrityError(
                "the snapshot has more than one deletion vector for this data file", file=path
            )
        self._vectors[path] = sequence_number, file

    def of(self, entry: ManifestEntry) -> set[DataFile]:
        """Return the delete files that apply to a data file."""
        if self._empty:
            return set()
        file = cast("ContentFile", entry.data_file)
        sequence_number = _sequence_number(entry)
        # Equality deletes apply to files of earlier commits, position deletes also to those of the
        # same commit.
        deletes = self._global_equality.since(sequence_number + 1)
        partition = partition_key(file)
        if partition in self._equality:
            deletes += self._equality[partition].since(sequence_number + 1)
        vector = self._vectors.get(file.file_path)
        if vector is not None and vector[0] >= sequence_number:
            deletes.append(vector[1])
        else:
            if partition in self._by_partition:
                deletes += self._by_partition[partition].since(sequence_number)
            if file.file_path in self._by_path:
                deletes += self._by_path[file.file_path].since(sequence_number)
        return set(deletes)


class EncryptedPlanner(ManifestPlanner):
    """Plans the scan tasks for a group of manifests of an encrypted table. ``file_filter`` chooses
    the files. ``row_filter`` (unbound) is the ``residual`` of the tasks."""

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        file_filter: FileFilter,
        row_filter: BooleanExpression = ALWAYS_TRUE,
    ) -> None:
        super().__init__(metadata, io, row_filter)
        self.file_filter = file_filter

    def plan_manifest_entries(
        self, manifests: Iterable[ManifestFile]
    ) -> Iterator[list[ManifestEntry]]:
        """Yield the matching entries of each manifest that passes the partition filter."""
        of_files = self.file_filter
        manifests = [m for m in manifests if of_files.may_match_manifest(m)]
        first = min_sequence_number(manifests)

        def may_match(file: DataFile) -> bool:
            is_data = file.content == DataFileContent.DATA
            return (of_files.of_file if is_data else of_files.of_partition)(file) is not False

        def matching(manifest: ManifestFile) -> list[ManifestEntry]:
            entries = manifest.fetch_manifest_entry(self.io)
            return [entry for entry in entries if may_match(entry.data_file)]

        wanted = [m for m in manifests if self.is_new_enough(first, m)]
        pool = workers(to_table_files(self.io), self.table_metadata.location)
        return pool.map(matching, wanted)

    def plan_files(
        self,
        manifests: Iterable[ManifestFile],
        manifest_entry_filter: Callable[[ManifestEntry], bool] | None = None,
    ) -> list[FileScanTask]:
        """Return the tasks. Each has a data file and the delete files that apply to it. Raises
        NotEncryptedError if a data file is not encrypted and the table's io says
        ``require_encrypted``, and NotImplementedError for ORC files."""
        specs = self.table_metadata.specs()
        deletes = DeleteIndex(lambda spec_id: partition_spec_is_void(specs[spec_id]))
        require_encrypted = to_table_files(self.io).require_encrypted
        data: list[ManifestEntry] = []
        for entry in itertools.chain.from_iterable(self.plan_manifest_entries(manifests)):
            file = cast("ContentFile", entry.data_file)
            if file.content != DataFileContent.DATA:
                deletes.add(entry)
            elif manifest_entry_filter is None or manifest_entry_filter(entry):
                if require_encrypted and not file.is_encrypted:
                    raise _not_encrypted(file)
                if file.stored_format == FileFormat.ORC:
                    raise _is_orc(file)
                data.append(entry)
        return [self._task(entry, deletes.of(entry)) for entry in data]

    def _task(self, entry: ManifestEntry, deletes: set[DataFile]) -> FileScanTask:
        task = FileScanTask(entry.data_file, deletes, self.row_filter)
        untrack(task.delete_files)
        return untrack(task)


def _not_encrypted(file: ContentFile) -> NotEncryptedError:
    return NotEncryptedError(
        "this data file is not encrypted, and the caller requires encryption: rewrite it with "
        "rekey, or do not require encryption",
        file=file.file_path,
    )


def _is_orc(file: ContentFile) -> NotImplementedError:
    return NotImplementedError(
        f"{file.file_path}: Iceberg cannot encrypt ORC files, so they are not read in an encrypted "
        "table"
    )


def _sequence_number(entry: ManifestEntry) -> int:
    return entry.sequence_number or INITIAL_SEQUENCE_NUMBER


def partition_key(file: DataFile) -> _Partition:
    """Return a value that is equal for equal partitions. As in Java, and unlike in Python, NaN
    equals NaN, and -0.0 is not 0.0."""
    values = record_values(file.partition)
    return file.spec_id, *(_bits(v) if isinstance(v, float) else v for v in values)


def _bits(value: float) -> bytes:
    return b"NaN" if value != value else struct.pack("<d", value)


def live_rows(task: FileScanTask) -> int:
    """Return the number of a file's rows that are not in its deletion vector."""
    deletes = cast("set[ContentFile]", task.delete_files)
    return task.file.record_count - sum(d.record_count for d in deletes if d.is_deletion_vector)


def path_of_all(file: ContentFile) -> str | None:
    """Return the data file that all rows of a position delete file name; None for several."""
    if file.referenced_data_file is not None:
        return file.referenced_data_file
    lower = (file.lower_bounds or {}).get(PATH_FIELD_ID)
    upper = (file.upper_bounds or {}).get(PATH_FIELD_ID)
    if lower is None or lower != upper:
        return None
    # If bounds are truncated to a prefix, the upper bound is larger than the lower one.
    try:
        return lower.decode()
    except UnicodeDecodeError:
        return None
