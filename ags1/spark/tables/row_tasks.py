"""The work of tasks that change rows of a table: write the new rows, and remove the old ones.

    joined rows, as Spark computes them    --ChangingRows-->  new data files; positions of old rows
    a data file and positions of its rows  --RemovingRows-->  a deletion vector, or a new file

Each row that ``ChangingRows`` gets says in its first column what to do with it. Keys travel as in
``tasks``. Knows neither SQL nor commits.
"""

from __future__ import annotations

import pickle
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyroaring import BitMap64

from ...errors import KMS_UNUSABLE
from ...keys.envelope import KeyEncryptionKey
from ..arrow_rows import conform
from ..iceberg_api import (
    ADDED,
    ContentFile,
    DeletePlan,
    ManifestEntry,
    TableOutput,
    TableView,
    TaskReader,
    rewrite_without,
    write_deletion_vectors,
    write_rows,
)
from ..table_access import SENT_FIELDS, JobKey, SentFile, SentRecord
from ..workers import end_of_task
from .tasks import EXPECTED, Failed, JobTable

# What to do with a row; the names of the columns that say it, and where the old row is.
WRITE, REMOVE, MATCHED = 1, 2, 4
ACTION, FILE, POSITION = "_ags1_action", "_ags1_file", "_pos"


@dataclass
class Positions:
    """Positions of rows in data files, by the number or path of the file."""

    of_file: dict[Any, BitMap64] = field(default_factory=dict)
    # Whether a row was added twice.
    has_twice: bool = False

    def add(self, number: Any, positions: BitMap64, rows: int) -> None:
        """Add positions of ``rows`` rows, which may be the same."""
        known = self.of_file.setdefault(number, BitMap64())
        before = len(known)
        known |= positions
        self.has_twice |= len(known) - before != rows

    def add_rows(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch, by its columns ``FILE`` and ``POSITION``."""
        table = pa.Table.from_batches([batch.select([FILE, POSITION])])
        grouped = table.group_by(FILE).aggregate([(POSITION, "list")])
        for number, found in zip(
            grouped.column(FILE).to_pylist(), grouped.column(f"{POSITION}_list"), strict=True
        ):
            self.add(number, BitMap64(array("Q", found.as_py())), len(found))

    def packed(self) -> dict[Any, bytes]:
        """Return the positions, to be sent."""
        return {
            number: BitMap64(positions, optimize=True).serialize()
            for number, positions in self.of_file.items()
        }


class Changed(NamedTuple):
    """What a task has done: the records of new files, the positions of the old rows to remove and
    of those that a source row matched, and how many rows it has updated and inserted."""

    files: list[SentRecord]
    removed: dict[int, bytes]
    matched: dict[int, bytes]
    matched_twice: bool
    updated: int
    inserted: int


@dataclass(frozen=True)
class ChangingRows:
    """Writes new rows into data files with fresh keys of ``key_size`` bytes; picklable.

    ``metadata`` is the table's with the columns of row lineage, without its history. ``columns``
    are those of the new rows, None if there are none. Yields the pickle of one ``Changed``. Raises
    as ``write_rows``; then it leaves no file.
    """

    table: JobTable
    table_key_id: str
    key_size: int
    key: JobKey
    metadata: dict[str, Any]
    columns: pa.Schema | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        result = pickle.dumps(self._changed(batches))
        yield pa.record_batch([pa.array([result], pa.binary())], names=["result"])
        end_of_task()

    def _changed(self, batches: Iterable[pa.RecordBatch]) -> Changed:
        opened = self.table.open()
        job = self.key.open(opened.keks)
        view = TableView(self.metadata, opened.files(self.table_key_id, self.key_size))
        output = TableOutput(opened.io, opened.location_map)
        removed, matched = Positions(), Positions()
        counts: Counter[str] = Counter()

        def new_rows() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                action = batch.column(ACTION)
                is_old = _has(action, REMOVE)
                removed.add_rows(batch.filter(is_old))
                matched.add_rows(batch.filter(_has(action, MATCHED)))
                is_new = _has(action, WRITE)
                updated = pc.sum(pc.and_(is_new, is_old)).as_py() or 0
                counts["updated"] += updated
                counts["inserted"] += (pc.sum(is_new).as_py() or 0) - updated
                rows = batch.filter(is_new)
                if rows.num_rows and self.columns is not None:
                    yield conform(rows, self.columns)

        files = write_rows(view, new_rows(), output, write_uuid=UUID(self.table.job_id), threads=1)
        return Changed(
            [SentRecord.of_new(file, SENT_FIELDS, job) for file in files],
            removed.packed(),
            matched.packed(),
            matched.has_twice,
            counts["updated"],
            counts["inserted"],
        )


def _has(action: pa.Array, bit: int) -> pa.Array:
    return pc.not_equal(pc.bit_wise_and(action, pa.scalar(bit, action.type)), 0)


class Removal(NamedTuple):
    """A data file, the deletes that apply to it, and the positions of the rows to remove."""

    number: int
    file: SentFile
    deletes: tuple[SentFile, ...]
    positions: bytes

    def open(self, job: KeyEncryptionKey) -> FileScanTask:
        """Return the file with its deletes and keys. Raises AuthenticationError."""
        return FileScanTask(self.file.open(job), {d.open(job) for d in self.deletes})


class Removed(NamedTuple):
    """What a task has done for the removals ``numbers``. Those in ``emptied`` were of all rows of
    their files. ``sent`` are the records of deletion vectors or of rewritten data files."""

    numbers: list[int]
    emptied: list[int]
    sent: list[SentRecord]


@dataclass(frozen=True)
class RemovingRows:
    """Removes rows from data files: by deletion vectors, which have the earlier deleted rows too,
    or by rewriting the files (``copy_on_write``). Picklable. ``metadata`` is the table's, without
    its history."""

    table: JobTable
    table_key_id: str
    key_size: int
    key: JobKey
    metadata: dict[str, Any]
    copy_on_write: bool

    def __call__(self, tasks: Iterable[list[Removal]]) -> Iterator[list[Removed | Failed]]:
        opened = self.table.open()
        job = self.key.open(opened.keks)
        source = opened.files(self.table_key_id, self.key_size)
        view = TableView(self.metadata, source)
        reader = TaskReader(source, view.parsed, Schema(), AlwaysTrue())
        output = TableOutput(opened.io, opened.location_map)
        try:
            for task in tasks:
                try:
                    plan, emptied = _plan(task, reader, job)
                    files = self._removed(plan, view, output)
                except KMS_UNUSABLE:
                    raise
                except (*EXPECTED, ValueError) as error:
                    yield [Failed(task[0].number, error)]
                    continue
                sent = [SentRecord.of_new(file, SENT_FIELDS, job) for file in files]
                yield [Removed([removal.number for removal in task], emptied, sent)]
        except BaseException:
            # The driver will not learn their names.
            output.discard(output.written)
            raise
        end_of_task()

    def _removed(self, plan: DeletePlan, view: TableView, output: TableOutput) -> list[ContentFile]:
        job_id = UUID(self.table.job_id)
        if self.copy_on_write:
            committed = self.metadata.get("last-sequence-number", 0)
            return rewrite_without(view, plan, output, committed, write_uuid=job_id, threads=1)
        # No two attempts write to one file.
        location = view.locations.new_data_location(f"{job_id}-{uuid4()}-deletes.puffin")
        vectors = {path: (gone, entry.file) for path, (gone, entry) in plan.vectors.items()}
        return write_deletion_vectors(output, location, vectors, view.manager)


def _plan(
    task: list[Removal], reader: TaskReader, job: KeyEncryptionKey
) -> tuple[DeletePlan, list[int]]:
    """Return what to write, and the removals that leave no row. If equality deletes apply to a
    file, it is not known how many rows it has, so it is not one of them."""
    plan = DeletePlan()
    emptied: list[int] = []
    for removal in task:
        scan = removal.open(job)
        file: Any = scan.file
        before = reader.deleted_positions(scan)
        positions = BitMap64.deserialize(removal.positions)
        known = not any(d.content == DataFileContent.EQUALITY_DELETES for d in scan.delete_files)
        if known and file.record_count - len(before) == len(positions):
            emptied.append(removal.number)
            continue
        entry = ManifestEntry(ADDED, None, file.sequence_number, None, file)
        plan.vectors[file.file_path] = before | positions, entry
        plan.changed.append(scan)
    return plan, emptied
