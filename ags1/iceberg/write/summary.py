"""The summary of a snapshot: how many files and rows it adds and removes, and the new totals.

Names, order and rules are Java's; for example, a deletion vector counts with its own size, not with
that of its Puffin file. This follows the Iceberg specification, "Optional Snapshot Summary Fields",
and Java's ``SnapshotSummary`` and ``SnapshotProducer``, with one exception: there are no summaries
of single partitions, whatever ``write.summary.partition-limit`` says. Their names contain values of
the rows, and metadata.json is not encrypted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from ... import __version__
from ..read.records import DATA, EQUALITY_DELETES, ContentFile

# The last entries of a summary: who wrote it.
ENVIRONMENT: Mapping[str, str] = {"engine-name": "ags1", "engine-version": __version__}

# The name of a partition's summary begins with this; the partition's values follow.
_PARTITION = "partitions."
_PARTITIONS_INCLUDED = "partition-summaries-included"

# The totals: name, what is added, what is subtracted.
_TOTALS = (
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)

# What is counted, in Java's order; sizes in bytes.
_COUNTED = """
    added-data-files deleted-data-files added-equality-delete-files removed-equality-delete-files
    added-position-delete-files removed-position-delete-files added-delete-files
    removed-delete-files added-dvs removed-dvs added-records deleted-records
    added-files-size removed-files-size added-position-deletes removed-position-deletes
    added-equality-deletes removed-equality-deletes
""".split()


class SummaryBuilder:
    """A summary under construction. ``specs`` are the table's by id, ``schema`` its current one."""

    def __init__(self, specs: Mapping[int, PartitionSpec], schema: Schema) -> None:
        self._specs = dict(specs)
        self._schema = schema
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._partitions: set[str] = set()
        self._manifests: dict[str, str] = {}

    def add(self, file: ContentFile) -> None:
        """Count an added file. Raises ValueError if the table lacks its partition spec."""
        self._count(file, "added", "added")

    def remove(self, file: ContentFile) -> None:
        """Count a file that the snapshot removes. Raises as ``add``."""
        self._count(file, "deleted", "removed")

    def _count(self, file: ContentFile, of_data: str, of_others: str) -> None:
        """Count a file. The other arguments are the first words of the counts' names."""
        counts, rows = self._counts, file.record_count
        self._partitions.add(self._partition(file))
        # One Puffin file may have several deletion vectors.
        size = file.content_size_in_bytes if file.is_deletion_vector else None
        counts[f"{of_others}-files-size"] += file.file_size_in_bytes if size is None else size
        if file.content == DATA:
            counts[f"{of_data}-data-files"] += 1
            counts[f"{of_data}-records"] += rows
            return
        kind = "equality" if file.content == EQUALITY_DELETES else "position"
        counts[f"{of_others}-delete-files"] += 1
        counts[f"{of_others}-{kind}-deletes"] += rows
        counts[f"{of_others}-{'dvs' if file.is_deletion_vector else f'{kind}-delete-files'}"] += 1

    def manifests(self, *, created: int, kept: int, replaced: int) -> None:
        """Set how many manifests the snapshot has written, kept from its parent, and replaced."""
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
        ``previous`` is the parent's summary; None if there is no parent. A total is known only if
        the parent's is. ``extra`` are the caller's own properties. Raises ValueError if one of them
        has a name of this summary, and if a replacement adds rows."""
        added, deleted = self._counts["added-records"], self._counts["deleted-records"]
        if operation == "replace" and added > deleted:
            raise ValueError(f"a replacement cannot add rows: {added} in place of {deleted}")
        computed = self._manifests | {k: str(count) for k, count in self._counts.items() if count}
        computed["changed-partition-count"] = str(len(self._partitions))
        computed |= _totals(computed, previous)
        summary = {"operation": operation}
        for name, value in (extra or {}).items():
            if name in _RESERVED or name in computed or name.startswith(_PARTITION):
                raise ValueError(f"the snapshot property {name!r} is computed: choose another name")
            summary[name] = str(value)
        return {**summary, **computed, **{k: v for k, v in environment.items() if k not in summary}}

    def _partition(self, file: ContentFile) -> str:
        spec = self._specs.get(file.spec_id)
        if spec is None:
            raise ValueError(f"{file.file_path}: the table has no partition spec {file.spec_id}")
        try:
            return spec.partition_to_path(file.partition, self._schema)
        except OverflowError:
            # Python has no dates after the year 9999; Iceberg does.
            names = (field.name for field in spec.fields)
            return "/".join(f"{n}={v}" for n, v in zip(names, file.partition_values, strict=True))


_RESERVED = frozenset(
    {"operation", "changed-partition-count", _PARTITIONS_INCLUDED}
    | {"manifests-created", "manifests-kept", "manifests-replaced"}
    | {*_COUNTED}
    | {name for name, _, _ in _TOTALS}
)


def _totals(computed: Mapping[str, str], previous: Mapping[str, str] | None) -> dict[str, str]:
    totals = {}
    for name, adding, removing in _TOTALS:
        before = "0" if previous is None else previous.get(name)
        if before is None or not re.fullmatch(r"[+-]?\d{1,19}", str(before), re.ASCII):
            continue
        total = int(before)
        # A negative total is wrong, so it becomes unknown.
        if total >= 0:
            total += int(computed.get(adding, 0)) - int(computed.get(removing, 0))
        if total >= 0:
            totals[name] = str(total)
    return totals
