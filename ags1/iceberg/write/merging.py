"""Writes the rows of several data files into new files, without the deleted rows.

    parts of old files     a (rows 0 to 9, 4 deleted)   b (rows 0 to 5)   half of c
    rows                   a0 a1 a2 a3 a5 ... a9 b0 ... b5 c0 c1 ...      in this order
    new files              one, or several of the target size

The rows keep their IDs and the sequence numbers of their last change, which become columns of the
new files. These have the table's current schema, partition spec, sort order and format. In a sorted
table, as many rows as fit into memory are sorted at once; if a file has more, it has several sorted
runs, and its record says that it is unsorted. This module does not choose files, and does not
commit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import pyarrow as pa
from pyiceberg.table import FileScanTask

from ...columns.arrow_nested import cast_rows
from ..read.ahead import in_order
from ..read.records import ContentFile
from ..read.tasks import TaskReader
from ..storage.output import TableOutput
from .data_files import DataFileWriter
from .plan import WritePlan
from .row_lineage import metadata_with_lineage, schema_with_lineage
from .view import TableView

_MIB = 1 << 20
# For each merge: the stored bytes that are read ahead, and the Arrow data that waits for the writer
# or is being written, if row groups are not much smaller.
_READ_AHEAD = 32 * _MIB
_MAX_WAITING = 256 * _MIB
# The same for a sorted table; half of it is sorted at once.
_MAX_WAITING_SORTED = 512 * _MIB

# Called with a number of stored bytes that have been read.
OnRead: TypeAlias = "Callable[[int], None]"


class Part(NamedTuple):
    """A data file with the deletes that apply to it, or its part ``split`` (offset and length).
    ``size`` is the number of its stored bytes."""

    task: FileScanTask
    split: tuple[int, int] | None
    size: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Parts of data files whose rows are written together, in this order. ``number``
    distinguishes the merges of one operation."""

    number: int
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """The number of stored bytes to read."""
        return sum(part.size for part in self.parts)


class Merger:
    """Carries out merges of one version of a table. Any number of threads may use it.

    New files have at most about ``target_size`` stored bytes. The names of the files contain
    ``write_uuid``. Raises as ``WritePlan`` and ``schema_with_lineage``.
    """

    def __init__(
        self,
        view: TableView,
        output: TableOutput,
        target_size: int,
        *,
        write_uuid: UUID | None = None,
    ) -> None:
        self._view = view
        self._output = output
        self._write_uuid = write_uuid
        self._plan = WritePlan(_metadata_for(view.metadata, target_size))
        schema = schema_with_lineage(view.schema)
        self._reader = TaskReader(view.files, view.parsed, schema)
        self._is_stopped = False

    def stop(self) -> None:
        """Let merges that other threads carry out raise CancelledError soon."""
        self._is_stopped = True

    def merge(self, merge: Merge, on_read: OnRead, *, threads: int = 1) -> list[ContentFile]:
        """Write the rows of a merge; return the new files' records, in the order of the rows.

        If all rows are deleted, there is no file. ``threads`` files are written at once. A few
        hundred MiB of rows are held in memory. Raises what reading and ``write_rows`` raise; then
        no new file is left.
        """
        self._reader.share(len(merge.parts))
        with closing(self._rows(merge, on_read)) as rows:
            first = next(rows, None)
            if first is None:
                return []
            # Arrow may read a type differently from file to file, such as string and large_string.
            provided = first.schema
            waiting = min(_MAX_WAITING, 2 * self._plan.row_group_size)
            if self._plan.sort_order is not None:
                waiting = _MAX_WAITING_SORTED
            with DataFileWriter(
                self._plan,
                provided,
                self._view,
                self._output,
                write_uuid=self._write_uuid,
                threads=threads,
                max_waiting=waiting,
                joins_runs=True,
            ) as writer:
                for batch in itertools.chain([first], rows):
                    same = batch if batch.schema.equals(provided) else cast_rows(batch, provided)
                    writer.write(same, in_turn=False)
        return writer.files

    def _rows(self, merge: Merge, on_read: OnRead) -> Generator[pa.RecordBatch, None, None]:
        def stream(part: Part) -> Iterator[pa.RecordBatch]:
            for batch in self._reader.batches(part.task, part.split):
                if self._is_stopped:
                    raise CancelledError
                yield batch
            on_read(part.size)

        def read(part: Part) -> list[pa.RecordBatch]:
            return list(stream(part))

        pool = self._view.workers
        yield from in_order(stream, read, merge.parts, lambda part: part.size, _READ_AHEAD, pool)


def _metadata_for(metadata: Mapping[str, Any], target_size: int) -> dict[str, Any]:
    """Return a table's metadata for a plan of files that have the columns of row lineage."""
    properties = {
        **(metadata.get("properties") or {}),
        "write.target-file-size-bytes": str(target_size),
    }
    return {**metadata_with_lineage(metadata), "properties": properties}
