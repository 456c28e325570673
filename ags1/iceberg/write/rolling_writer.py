"""Writes the rows of one partition into data files of the target size, one after the other.

The next row group is as large as the table wants it, or as large as still fits into the file:

    target size   |------------------------------------------------------|  95 % full is enough
    open file     |== row group ==|== row group ==|== fits ==|               -> ContentFile
    next file     |== row group ==|= ...

How many rows fit is estimated from the compression of the rows that are in the file already.
"""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from ..read.records import ContentFile
from .file_writer import FileWriter, NewFiles

# A file is complete if it has this part of its target size: another row group would be too small.
_FULL_ENOUGH = 0.95


class RollingWriter:
    """Writes the rows of a partition. ``files`` has the records of the complete files.

    Any thread may use it. After ``abort``, nothing is written any more: an interrupt while a thread
    is started can leave one that nobody waits for.
    """

    def __init__(self, new_files: NewFiles, partition: tuple[Any, ...]) -> None:
        self.files: list[ContentFile] = []
        self._new_files = new_files
        self._plan = new_files.plan
        self._partition = partition
        self._lock = threading.Lock()
        self._is_aborted = False
        self._file: FileWriter | None = None
        self._arrow_size = 0  # of the rows in the open file

    def write(self, rows: pa.Table) -> None:
        """Write rows into the open file and, when it is full, into new ones. In a sorted table
        they are sorted first, and no later rows are added to their files, unless the new files
        join runs."""
        with self._lock:
            if not self._is_aborted:
                self._write(self._plan.sorted(rows))

    def finish(self) -> None:
        """Complete the open file, if there is one."""
        with self._lock:
            self._finish()

    def abort(self) -> None:
        """Delete all files of this writer."""
        with self._lock:
            self._is_aborted = True
            file, self._file = self._file, None
            try:
                if file is not None:
                    file.abort()
            finally:
                self._new_files.output.discard([record.file_path for record in self.files])

    def _write(self, rows: pa.Table) -> None:
        row_size = max(1.0, rows.nbytes / rows.num_rows)
        if self._file is not None:
            self._file.is_sorted = False  # earlier rows may be greater
        start = 0
        while start < rows.num_rows:
            if self._file is None:
                self._file = FileWriter(self._new_files, self._partition, rows.slice(start))
                self._arrow_size = 0
            group = rows.slice(start, self._fitting_rows(self._file, row_size))
            self._file.write(group)
            self._arrow_size += int(row_size * group.num_rows)
            start += group.num_rows
            if self._file.size >= self._plan.target_size * _FULL_ENOUGH:
                self._finish()
        if self._plan.sort_order is not None and not self._new_files.joins_runs:
            self._finish()

    def _finish(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self.files.append(file.close())

    def _fitting_rows(self, file: FileWriter, row_size: float) -> int:
        """Return the number of rows in the next row group; ``row_size`` is in bytes of Arrow."""
        # The first rows are assumed not to shrink.
        ratio = min(1.0, file.size / self._arrow_size) if self._arrow_size else 1.0
        room = max(1.0, (self._plan.target_size - file.size) / max(ratio, 0.01))
        count = int(min(self._plan.row_group_size, room) / row_size)
        return max(1, min(count, self._plan.row_group_rows))
