"""What a snapshot's summary says: files and rows added and removed, and the totals after it.

Names and order are Java's, and so is what counts: a deletion vector by its own size and not by its
file's. Follows the Iceberg specification, "Optional Snapshot Summary Fields", and Java's
``SnapshotSummary`` and ``SnapshotProducer``, with one exception: no partition has a summary of its
own, whatever ``write.summary.partition-limit`` says. Its name would have the partition's values,
and metadata.json is not encrypted. Knows nothing of manifests and metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from ... import __version__
from ..read.records import DATA, EQUALITY_DELETES, ContentFile

__all__ = ["ENVIRONMENT", "SummaryBuilder", "without_partitions"]

# What a summary says of who wrote it, at its end.
ENVIRONMENT: Mapping[str, str] = {"engine-name": "ags1", "engine-version": __version__}

# How the summary of one partition is named, with its values after the dot.
_PARTITION = "partitions."
_PARTITIONS_INCLUDED = "partition-summaries-included"

# Each total, with what adds to it and what takes away from it.
_TOTALS = (
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)


@dataclass(slots=True)
class _Counts:
    """What was added and removed; sizes in bytes."""

    added_data_files: int = 0
    deleted_data_files: int = 0
    added_equality_delete_files: int = 0
    removed_equality_delete_files: int = 0
    added_position_delete_files: int = 0
    removed_position_delete_files: int = 0
    added_delete_files: int = 0
    removed_delete_files: int = 0
    added_dvs: int = 0
    removed_dvs: int = 0
    added_records: int = 0
    deleted_records: int = 0
    added_files_size: int = 0
    removed_files_size: int = 0
    added_position_deletes: int = 0
    removed_position_deletes: int = 0
    added_equality_deletes: int = 0
    removed_equality_deletes: int = 0

    def add(self, file: ContentFile) -> None:
        rows = file.record_count
        self.added_files_size += _content_size(file)
        if file.content == DATA:
            self.added_data_files += 1
            self.added_records += rows
            return
        self.added_delete_files += 1
        if file.content == EQUALITY_DELETES:
            self.added_equality_delete_files += 1
            self.added_equality_deletes += rows
            return
        self.added_position_deletes += rows
        if file.is_deletion_vector:
            self.added_dvs += 1
        else:
            self.added_position_delete_files += 1

    def remove(self, file: ContentFile) -> None:
        rows = file.record_count
        self.removed_files_size += _content_size(file)
        if file.content == DATA:
            self.deleted_data_files += 1
            self.deleted_records += rows
            return
        self.removed_delete_files += 1
        if file.content == EQUALITY_DELETES:
            self.removed_equality_delete_files += 1
            self.removed_equality_deletes += rows
            return
        self.removed_position_deletes += rows
        if file.is_deletion_vector:
            self.removed_dvs += 1
        else:
            self.removed_position_delete_files += 1

    def properties(self) -> dict[str, str]:
        """Return what is not 0, in Java's order."""
        counts = ((name, getattr(self, name)) for name in self.__slots__)
        return {name.replace("_", "-"): str(count) for name, count in counts if count}


class SummaryBuilder:
    """The summary of a snapshot under construction.

    ``specs`` are the table's partition specs by id, ``schema`` its current schema.
    """

    def __init__(self, specs: Mapping[int, PartitionSpec], schema: Schema) -> None:
        self._specs = dict(specs)
        self._schema = schema
        self._counts = _Counts()
        self._partitions: set[str] = set()
        self._manifests: dict[str, str] = {}

    def add(self, file: ContentFile) -> None:
        """Count a file that the snapshot adds. Raises ValueError for a spec the table has not."""
        self._counts.add(file)
        self._partitions.add(self._partition(file))

    def remove(self, file: ContentFile) -> None:
        """Count a file that the snapshot removes. Raises as ``add``."""
        self._counts.remove(file)
        self._partitions.add(self._partition(file))

    def manifests(self, *, created: int, kept: int, replaced: int) -> None:
        """Say how many manifests the snapshot has written, left as they were, and done without."""
        self._manifests = {
            "manifests-created": str(created),
            "manifests-kept": str(kept),
            "manifests-replaced": str(replaced),
        }

    def build(
        self,
        operation: str,
        previous: Mapping[str, str] | None,
        extra: Mapping[str, str] | None = None,
        *,
        environment: Mapping[str, str] = ENVIRONMENT,
    ) -> dict[str, str]:
        """Return the summary, ``operation`` (append, overwrite, delete, replace) first.

        ``previous`` is the parent's summary, empty where it has none, and None where there is no
        parent: a total is known only if the parent's is. ``extra`` are the caller's own properties.
        Raises ValueError when one of them is what is counted here, and for a replacement that adds
        rows.
        """
        counts = self._counts
        if operation == "replace" and counts.added_records > counts.deleted_records:
            raise ValueError(
                f"a replacement cannot add rows: {counts.added_records} in place of "
                f"{counts.deleted_records}"
            )
        computed = {**self._manifests, **counts.properties()}
        computed["changed-partition-count"] = str(len(self._partitions))
        computed |= _totals(computed, previous)
        summary = {"operation": operation}
        for name, value in (extra or {}).items():
            if name in _RESERVED or name in computed or name.startswith(_PARTITION):
                raise ValueError(f"{name!r} is no property of a snapshot to choose")
            summary[name] = str(value)
        return {**summary, **computed, **{k: v for k, v in environment.items() if k not in summary}}

    def _partition(self, file: ContentFile) -> str:
        spec = self._specs.get(file.spec_id)
        if spec is None:
            raise ValueError(f"{file.file_path}: the table has no partition spec {file.spec_id}")
        try:
            return spec.partition_to_path(file.partition, self._schema)
        except OverflowError:
            # Python's dates end with the year 9999, Iceberg's don't.
            names = (field.name for field in spec.fields)
            return "/".join(f"{n}={v}" for n, v in zip(names, file.partition_values, strict=True))


_RESERVED = frozenset(
    {"operation", "changed-partition-count", _PARTITIONS_INCLUDED}
    | {"manifests-created", "manifests-kept", "manifests-replaced"}
    | {name.replace("_", "-") for name in _Counts.__slots__}
    | {name for name, _, _ in _TOTALS}
)


def without_partitions(summary: Mapping[str, str]) -> dict[str, str]:
    """Return a summary without its partitions' own, which other writers may have left in it."""
    return {
        name: value
        for name, value in summary.items()
        if name != _PARTITIONS_INCLUDED and not name.startswith(_PARTITION)
    }


def _content_size(file: ContentFile) -> int:
    # Several deletion vectors may lie in one file.
    if file.is_deletion_vector and file.content_size_in_bytes is not None:
        return file.content_size_in_bytes
    return file.file_size_in_bytes


def _totals(computed: Mapping[str, str], previous: Mapping[str, str] | None) -> dict[str, str]:
    totals = {}
    for name, adding, removing in _TOTALS:
        before = "0" if previous is None else previous.get(name)
        if before is None or not re.fullmatch(r"[+-]?\d{1,19}", str(before), re.ASCII):
            continue
        total = int(before)
        # One that is negative is wrong, and stays unknown from there on.
        if total >= 0:
            total += int(computed.get(adding, 0)) - int(computed.get(removing, 0))
        if total >= 0:
            totals[name] = str(total)
    return totals
