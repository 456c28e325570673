"""Data files written anew without their deleted rows, instead of vectors that mark those.

The rows that stay keep what the specification calls row lineage: their ids and the sequence numbers
of their last change are columns of the new file, since its own are others. Rows are in the schema,
partition spec, sort order and format that the table has now, as Spark's and PyIceberg's rewritten
files are. Follows the Iceberg specification, "Row Lineage". Knows nothing of filters and commits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask

from ..read.metadata_columns import METADATA_COLUMNS
from ..read.records import ContentFile, ManifestEntry
from ..read.tasks import TaskReader
from ..spec.column_types import check_readable
from ..spec.constants import LAST_UPDATED_ID, ROW_ID
from ..storage.output import TableOutput
from .data_files import DataFileWriter, WritePlan
from .deletes import DeletePlan
from .snapshot import location_provider
from .view import TableView

_LINEAGE = METADATA_COLUMNS[ROW_ID], METADATA_COLUMNS[LAST_UPDATED_ID]
_MODES = {"copy-on-write": True, "merge-on-read": False}


def is_copy_on_write(properties: Mapping[str, str], command: str) -> bool:
    """Return whether a table wants a command (``delete``, ``update``, ``merge``) to rewrite files.

    Where its property does not say so, rows are marked; Spark's default is to rewrite. Raises
    ValueError for a mode that there is not.
    """
    mode = properties.get(f"write.{command}.mode", "merge-on-read")
    if mode.lower() not in _MODES:
        raise ValueError(f"Unknown row-level operation mode: {mode} (write.{command}.mode)")
    return _MODES[mode.lower()]


def rewrite_without(
    view: TableView, plan: DeletePlan, output: TableOutput, committed_sequence_number: int
) -> list[ContentFile]:
    """Write the rows that a plan leaves in files of which only a part goes; return the new files.

    They are in no file with rows of another old one. ``committed_sequence_number`` is the last of
    the table as the catalog has it: rows of later files have no ids yet that they could keep. Of
    the rows, about half a GiB is held in memory. Raises what reading and ``write_rows`` raise; then
    no new file is left.
    """
    check_readable(view.schema, "set the property write.delete.mode to merge-on-read")
    for field in _LINEAGE:
        if field.name in view.schema.column_names:
            raise NotImplementedError(
                f"the table has a column named {field.name!r}, so files cannot be rewritten with "
                "their row IDs: rename it, or set the property write.delete.mode to merge-on-read"
            )
    schema = Schema(*view.schema.fields, *_LINEAGE)
    reader = TaskReader(view.files, view.parsed, schema, AlwaysTrue())
    rows = _rows_left(plan, reader, committed_sequence_number)
    first = next(rows, None)
    if first is None:
        return []
    # Files may differ in what Arrow has for a type: large strings beside strings.
    provided = first[1].schema
    with DataFileWriter(
        WritePlan(_with_lineage(view.metadata)),
        provided,
        output,
        view.manager,
        location_provider=location_provider(view),
    ) as writer:
        groups = itertools.groupby(itertools.chain([first], rows), key=lambda found: found[0])
        for _, of_file in groups:
            for _, batch in of_file:
                writer.write(batch.cast(provided), in_turn=False)
            writer.end_files()
    return writer.files


def _rows_left(
    plan: DeletePlan, reader: TaskReader, committed_sequence_number: int
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows that stay, with the path of the file that they are in."""
    # A table may have a file twice, and then it has the rows twice.
    for task in plan.changed:
        path = task.file.file_path
        gone, entry = plan.vectors[path]
        is_committed = (entry.sequence_number or 0) <= committed_sequence_number
        for batch, positions in reader.left(_without_positions(task), gone):
            yield path, _inherited(batch, positions, entry) if is_committed else batch


def _without_positions(task: FileScanTask) -> FileScanTask:
    """Return a task whose position deletes are known already."""
    deletes = {d for d in task.delete_files if d.content == DataFileContent.EQUALITY_DELETES}
    return FileScanTask(task.file, delete_files=deletes, residual=task.residual)


def _inherited(batch: pa.RecordBatch, positions: pa.Array, entry: ManifestEntry) -> pa.RecordBatch:
    """Return rows with the ids and sequence numbers that they have, where the file does not say,
    from its entry. A file of an older format version may have none."""
    if entry.file.first_row_id is None:
        return batch
    values = pc.add(positions, entry.file.first_row_id), entry.sequence_number
    for field, value in zip(_LINEAGE, values, strict=True):
        place = batch.schema.get_field_index(field.name)
        column = pc.coalesce(batch.column(place), value)
        batch = batch.set_column(place, batch.schema.field(place), column)
    return batch


def _with_lineage(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's metadata with the columns of row lineage in its schema."""
    more = [field.model_dump(by_alias=True, mode="json", exclude_none=True) for field in _LINEAGE]
    current = metadata["current-schema-id"]
    schemas = [
        schema | {"fields": [*schema["fields"], *more]}
        if schema["schema-id"] == current
        else schema
        for schema in metadata["schemas"]
    ]
    return {**metadata, "schemas": schemas}
