"""Rewrites data files without their deleted rows (copy-on-write).

    old file    rows a b c d    its entry: first_row_id 100, sequence number 7
    delete b
    new file    rows a c d      two more columns: row IDs 100 102 103, sequence numbers 7 7 7

The rows keep their row lineage: their IDs and the sequence number of their last change become
columns of the new file. The new files have the table's current schema, partition spec, sort order
and format, like those that Spark and PyIceberg rewrite. This follows the Iceberg specification,
"Row Lineage". It does not know filters and commits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from operator import itemgetter
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import FileScanTask

from ...columns.arrow_nested import cast_rows
from ..read.records import ContentFile, ManifestEntry
from ..read.tasks import TaskReader
from ..storage.output import TableOutput
from .data_files import DataFileWriter
from .deletes import DeletePlan
from .plan import WritePlan
from .row_lineage import LINEAGE, metadata_with_lineage, schema_with_lineage
from .view import TableView

_MODES = {"copy-on-write": True, "merge-on-read": False}


def is_copy_on_write(
    properties: Mapping[str, str], command: str, default: str = "merge-on-read"
) -> bool:
    """Return whether a command (``delete``, ``update``, ``merge``) rewrites files, according to the
    table's ``write.{command}.mode``. ``default`` is the mode if the table has none: Java's default
    for Spark is copy-on-write. Raises ValueError for an unknown mode."""
    mode = properties.get(f"write.{command}.mode", default)
    if mode.lower() not in _MODES:
        raise ValueError(f"Unknown row-level operation mode: {mode} (write.{command}.mode)")
    return _MODES[mode.lower()]


def rewrite_without(
    view: TableView,
    plan: DeletePlan,
    output: TableOutput,
    committed_sequence_number: int,
    *,
    write_uuid: UUID | None = None,
    threads: int | None = None,
) -> list[ContentFile]:
    """Rewrite the files that lose some of their rows by a plan; return the new files.

    Each new file has rows of one old file only. ``committed_sequence_number`` is the last one in
    the catalog: rows of later files have no IDs yet that they could keep. ``write_uuid`` and
    ``threads`` are as in ``write_rows``. About half a GiB of rows is held in memory. Raises what
    reading and ``write_rows`` raise; then no new file is left.
    """
    schema = schema_with_lineage(view.schema, "set the property write.delete.mode to merge-on-read")
    reader = TaskReader(view.files, view.parsed, schema)
    rows = _live_rows(plan, reader, committed_sequence_number)
    first = next(rows, None)
    if first is None:
        return []
    # Arrow may read a type differently from file to file, such as string and large_string.
    provided = first[1].schema
    with DataFileWriter(
        WritePlan(metadata_with_lineage(view.metadata)),
        provided,
        view,
        output,
        write_uuid=write_uuid,
        threads=threads,
    ) as writer:
        groups = itertools.groupby(itertools.chain([first], rows), key=itemgetter(0))
        for _, of_file in groups:
            for _, batch in of_file:
                writer.write(cast_rows(batch, provided), in_turn=False)
            writer.end_files()
    return writer.files


def _live_rows(
    plan: DeletePlan, reader: TaskReader, committed_sequence_number: int
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the path of each file and its rows that are not deleted."""
    # If a table has a file twice, it has the rows twice.
    for task in plan.changed:
        path = task.file.file_path
        deleted, entry = plan.vectors[path]
        is_committed = (entry.sequence_number or 0) <= committed_sequence_number
        for batch, positions in reader.remaining(_without_positions(task), deleted):
            yield path, _inherited(batch, positions, entry) if is_committed else batch


def _without_positions(task: FileScanTask) -> FileScanTask:
    """Return the task without its position deletes and deletion vector."""
    deletes = {d for d in task.delete_files if d.content == DataFileContent.EQUALITY_DELETES}
    return FileScanTask(task.file, delete_files=deletes, residual=task.residual)


def _inherited(batch: pa.RecordBatch, positions: pa.Array, entry: ManifestEntry) -> pa.RecordBatch:
    """Return rows with their IDs and sequence numbers. What the file does not have comes from its
    entry. Files of an older format version may have no row IDs."""
    if entry.file.first_row_id is None:
        return batch
    values = pc.add(positions, entry.file.first_row_id), entry.sequence_number
    for field, value in zip(LINEAGE, values, strict=True):
        index = batch.schema.get_field_index(field.name)
        column = pc.coalesce(batch.column(index), value)
        batch = batch.set_column(index, batch.schema.field(index), column)
    return batch
