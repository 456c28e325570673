"""Where the row groups of a Parquet file begin, by which a file is split.

A row group belongs to the split in which it begins. Knows nothing of what encrypts the file.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any


def row_group_starts(metadata: Any) -> list[int]:
    """Return the offset of each row group's first page, of pyarrow's ``FileMetaData``.

    They ascend, as splits that adjoin have to have adjoining rows: a group that lies before the one
    that it follows is taken to begin where that one does.
    """
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return list(accumulate(map(_start, groups), max))


def _start(group: Any) -> int:
    starts = []
    for number in range(group.num_columns):
        column = group.column(number)
        starts.append(column.data_page_offset)
        if column.has_dictionary_page:
            starts.append(column.dictionary_page_offset)
    return min(starts, default=0)
