"""``KeptRows``: leaves deleted rows out of a batch, by copying the runs of rows between them.

    rows     a b c d e f      positions 2 and 3 are deleted, so two runs stay: 0-2 and 4-6
    kept     a b     e f      one copy of bytes for each run, in each buffer of a column

Arrow's filter decides on each row, and looks up each list by its number: for few deleted rows it
takes two to three times as long. This takes as long as a copy of the whole batch. Follows Arrow's
columnar format. Columns of other types than those of Iceberg are left to Arrow.
"""

from __future__ import annotations

import sys
from array import array
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from ._runs import copy_bits, copy_offsets, copy_values, runs_between

_TYPES = pa.types


class KeptRows:
    """Some of the rows of a batch: ``count`` of them, which are those that ``deleted`` does not
    have, of ``rows`` rows from position ``first`` on."""

    def __init__(self, deleted: BitMap64, first: int, rows: int) -> None:
        # Only these: a bitmap of few bytes can have billions of positions.
        here = deleted & BitMap64(range(first, first + rows))
        self._deleted: array[int] = here.to_array()
        self._first, self._rows = first, rows
        self.count = rows - len(self._deleted)
        self._runs = runs_between(self._deleted, first, rows)

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return these rows of a batch."""
        if not batch.num_columns:
            return batch.slice(0, self.count)
        columns = [self.of(column) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def of(self, column: pa.Array) -> pa.Array:
        """Return these rows of a column."""
        if self.count == self._rows:
            return column
        if _is_known(column.type):
            return _copy(column, self._runs, self.count)
        return column.filter(self._mask)

    @cached_property
    def _mask(self) -> pa.Array:
        mask = np.ones(self._rows, bool)
        mask[np.asarray(self._deleted).astype(np.int64) - self._first] = False
        return pa.array(mask)


def _is_known(kind: pa.DataType) -> bool:
    """Return whether ``_copy`` knows a type and those inside it."""
    if _TYPES.is_struct(kind) or _is_list(kind):
        return all(_is_known(kind.field(i).type) for i in range(kind.num_fields))
    return bool(_TYPES.is_null(kind) or _TYPES.is_boolean(kind) or _width(kind) or _is_text(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(_TYPES.is_list(kind) or _TYPES.is_large_list(kind) or _TYPES.is_map(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        _TYPES.is_string(kind)
        or _TYPES.is_binary(kind)
        or _TYPES.is_large_string(kind)
        or _TYPES.is_large_binary(kind)
    )


def _width(kind: pa.DataType) -> int:
    """Return the size of each value (bytes); 0 if the values are not whole bytes of one size."""
    if _TYPES.is_primitive(kind) or _TYPES.is_fixed_size_binary(kind) or _TYPES.is_decimal(kind):
        return int(kind.bit_width) // 8
    return 0


def _offset_size(kind: pa.DataType) -> int:
    """Return the size of each offset of lists or texts (bytes)."""
    is_large = (
        _TYPES.is_large_list(kind) or _TYPES.is_large_string(kind) or _TYPES.is_large_binary(kind)
    )
    return 8 if is_large else 4


def _copy(column: pa.Array, runs: bytes, count: int) -> pa.Array:
    """Return the ``count`` values in ``runs`` of a column whose type is known."""
    kind, buffers = column.type, column.buffers()
    if _TYPES.is_null(kind):
        return pa.nulls(count)
    valid = _bits(column, buffers[0], runs, count) if column.null_count else None
    if _TYPES.is_boolean(kind):
        made = [valid, _bits(column, buffers[1], runs, count)]
        return pa.Array.from_buffers(kind, count, made)
    if _TYPES.is_struct(kind):
        fields = [_copy(column.field(i), runs, count) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, count, [valid], children=fields)
    if width := _width(kind):
        values = _values(buffers[1], column.offset, runs, width, count)
        return pa.Array.from_buffers(kind, count, [valid, values])
    size = _offset_size(kind)
    offsets = pa.allocate_buffer((count + 1) * size)
    inner = copy_offsets(_from(buffers[1], column.offset * size), runs, size, offsets)
    total = int.from_bytes(memoryview(offsets).cast("B")[count * size :], sys.byteorder)
    if _is_list(kind):
        children = [_copy(column.values, inner, total)]
        return pa.Array.from_buffers(kind, count, [valid, offsets], children=children)
    values = _values(buffers[2], 0, inner, 1, total)
    return pa.Array.from_buffers(kind, count, [valid, offsets, values])


def _values(
    buffer: pa.Buffer | None, offset: int, runs: bytes, width: int, count: int
) -> pa.Buffer:
    made = pa.allocate_buffer(count * width)
    copy_values(_from(buffer, offset * width), runs, width, made)
    return made


def _bits(column: pa.Array, buffer: pa.Buffer, runs: bytes, count: int) -> pa.Buffer:
    made = pa.allocate_buffer((count + 7) // 8)
    copy_bits(buffer, column.offset, len(column), runs, made)
    return made


def _from(buffer: pa.Buffer | None, start: int) -> pa.Buffer | bytes:
    return b"" if buffer is None else buffer.slice(start)
