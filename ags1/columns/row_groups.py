"""Where the row groups of a Parquet file begin. Parquet files are split there.

A row group belongs to the split in which it begins. Independent of what encrypts the file.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any


def row_group_starts(metadata: Any) -> list[int]:
    """Return the offset of each row group's first page, given pyarrow's ``FileMetaData``. The
    offsets ascend, because adjacent splits must have adjacent rows. If a group lies before the
    group that it follows, it counts as beginning at the same offset."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return list(accumulate(map(_start, groups), max))


def _start(group: Any) -> int:
    columns = map(group.column, range(group.num_columns))
    pages = ((c.data_page_offset, c.dictionary_page_offset) for c in columns)
    return min((offset for both in pages for offset in both if offset is not None), default=0)
