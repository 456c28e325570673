"""The rows of a ledger that is an Iceberg table: columns, filters and reads. Beside the columns of
``Row`` a row has ``entry``, ``batch`` and ``number``. Knows nothing of jobs and commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyiceberg.expressions
from pyiceberg.expressions import BooleanExpression

from ..iceberg_api import EncryptedScan, ManifestEntry, TableView, read_entries
from .claims import Claim
from .rows import ALWAYS, SCHEMA, Row, rows_of, table_of

# Their types are those of pydantic, for keywords only.
where: Any = pyiceberg.expressions

JOBS_BRANCH = "jobs"
SETTLED = "settled"
# How many rows are read or replaced at once.
MOST_ROWS = 100_000
_ROWS_AS_OBJECTS = 10_000

TABLE_SCHEMA = pa.schema(
    [pa.field(field.name, field.type, nullable=field.name not in ALWAYS) for field in SCHEMA]
    + [
        pa.field("entry", pa.string(), nullable=False),
        pa.field("batch", pa.int64(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
    ]
)


def files_by_entry(view: TableView) -> dict[str, list[ManifestEntry]]:
    files: dict[str, list[ManifestEntry]] = {}
    for manifest in view.manifests:
        for entry in read_entries(manifest, view.files):
            files.setdefault(str(entry.file.partition[0]), []).append(entry)
    return files


def pending_numbers(entries: Iterable[str]) -> list[int]:
    """Return the numbers of pending batches."""
    return [int(name.rpartition("-")[2]) for name in entries if name.startswith("pending-")]


def read_table(view: TableView, wanted: BooleanExpression, columns: Sequence[str]) -> pa.Table:
    """Return the rows of a version that match, in the types of ``TABLE_SCHEMA``."""
    head = view.branch_head_id
    if head is None:
        table = TABLE_SCHEMA.empty_table().select(list(columns))
    else:
        table = EncryptedScan(
            table_metadata=view.parsed,
            io=view.files,
            row_filter=wanted,
            selected_fields=tuple(columns),
            snapshot_id=head,
        ).to_arrow()
    return table.select(list(columns)).cast(
        pa.schema([pa.field(name, TABLE_SCHEMA.field(name).type) for name in columns])
    )


def numbered(table: pa.Table, names: Sequence[str], name: str) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a table, each with the number of its batch."""
    # Rows as objects need several times the memory that they need in Arrow.
    for first in range(0, table.num_rows, _ROWS_AS_OBJECTS):
        part = table.slice(first, _ROWS_AS_OBJECTS)
        numbers = part.column("batch").to_pylist()
        yield from zip(numbers, rows_of(part.select(names), names, name), strict=True)


def entries_of(view: TableView, prefix: str) -> dict[str, list[Row]]:
    names = [*Row._fields, "entry", "number"]
    table = read_table(view, where.StartsWith("entry", prefix), names).sort_by("number")
    rows = rows_of(table.select(list(Row._fields)), Row._fields, JOBS_BRANCH)
    entries: dict[str, list[Row]] = {}
    for entry, row in zip(table.column("entry").to_pylist(), rows, strict=True):
        entries.setdefault(entry, []).append(row)
    return entries


def arrow_table(rows: Sequence[Row], entry: str, batch: int) -> pa.Table:
    count = len(rows)
    table = table_of(rows)
    columns = [*table.columns, pa.repeat(entry, count)]
    columns += [pa.repeat(pa.scalar(batch, pa.int64()), count), pa.array(range(count), pa.int64())]
    return pa.Table.from_arrays(columns, schema=TABLE_SCHEMA)


def between(after: int, until: int | None) -> BooleanExpression:
    above: BooleanExpression = where.And(
        where.EqualTo("entry", SETTLED), where.GreaterThan("batch", after)
    )
    return above if until is None else where.And(above, where.LessThanOrEqual("batch", until))


def runs_of(sizes: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of batches with about as many rows as are read at once."""
    first, count = None, 0
    last = 0
    for number in sorted(sizes):
        if first is not None and count + sizes[number] > MOST_ROWS:
            yield first, last
            first, count = None, 0
        first = number if first is None else first
        last = number
        count += sizes[number]
    if first is not None:
        yield first, last


def known_columns(columns: Collection[str]) -> list[str]:
    return [name for name in Row._fields if name in columns]


def note_row(**values: Any) -> Row:
    """Return a row of the branch of the jobs that is of no file."""
    nothing: dict[str, Any] = dict.fromkeys(Row._fields)
    for name in ALWAYS:
        kind = SCHEMA.field(name).type
        nothing[name] = "" if pa.types.is_string(kind) else False if kind == pa.bool_() else 0
    return Row(**{**nothing, **values})


def claim_rows(claim: Claim) -> list[Row]:
    facts = {"attempt": claim.process, "job_id": claim.claim_id, "finished_ms": claim.renewed_ms}
    return [note_row(target=root, **facts) for root in claim.roots]


def claim_of(rows: Sequence[Row]) -> Claim:
    first = rows[0]
    roots = tuple(row.target for row in rows)
    return Claim(first.job_id, roots, first.attempt or "", first.finished_ms)
