"""Cuts data files into splits, which ``TaskReader`` reads one by one.

    stored bytes of the file   |--- row group ---|--- row group ---|--- row group ---|
    splits                     (0, 40)           (40, 40)          (80, 38)

Each is an offset and a length, in bytes. Together the splits of a file have each row once. A file
whose rows must be counted has few splits, because each of them reads all that is before it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import FileScanTask

from .records import ContentFile

_MAX_COUNTED_SPLITS = 16


def splits_of(
    task: FileScanTask, part_size: int, *, counted: bool = False
) -> list[tuple[int, int]]:
    """Return the splits of a data file, of about ``part_size`` stored bytes each.

    A Parquet file is split where its manifest entry says that a row group begins. An Avro file is
    split anywhere, but only if it is encrypted: then its blocks prove that none is missing, while
    otherwise only the count of all rows does. Its plaintext is a little shorter than the stored
    bytes, so the last split is a little shorter, too. ``counted`` says that the caller needs the
    positions of the rows.
    """
    file = cast("ContentFile", task.file)
    size = file.file_size_in_bytes
    if file.stored_format == FileFormat.PARQUET:
        bounds = [0]
        for offset in sorted(file.split_offsets or ()):
            if offset - bounds[-1] >= part_size and size - offset >= part_size // 2:
                bounds.append(offset)
    elif file.stored_format == FileFormat.AVRO and file.is_encrypted:
        if counted or any(d.content == DataFileContent.POSITION_DELETES for d in task.delete_files):
            # To know the positions of its rows, each split reads all that is before it.
            part_size = max(part_size, size // _MAX_COUNTED_SPLITS)
        count = max(1, round(size / part_size))
        bounds = [size * number // count for number in range(count)]
    else:
        bounds = [0]
    return [(begin, end - begin) for begin, end in pairwise([*bounds, size])]
