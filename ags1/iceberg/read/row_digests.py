"""Digests of rows: two rows have the same digest if all of their values are equal.

Each value is encoded as bytes from which it could be read back, so that different rows have
different bytes. The encodings of a row's columns are joined and hashed. Values are equal if they
are equal in Java: null equals null, NaN equals NaN, -0.0 is not 0.0.

The hash has a random salt of this process. So somebody who chooses rows cannot search in advance
for two with one digest, which an upsert would take for equal. Digests of two processes differ.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...columns.arrow_nested import with_child
from .deletes import comparable

# Shape (rows, 2): a digest is two numbers of 64 bits.
Digests: TypeAlias = "npt.NDArray[np.uint64]"

_SIZE = 16
_SALT = os.urandom(hashlib.blake2b.SALT_SIZE)
_NULL, _VALUE, _NOTHING = (pa.scalar(b, pa.large_binary()) for b in (b"\0", b"\1", b""))


def row_digests(columns: Sequence[pa.Array]) -> Digests:
    """Return the digests (BLAKE2b, 16 bytes) of rows, which have at least one column."""
    encoded = _joined(map(_encoded, columns))
    digests = (
        hashlib.blake2b(row, digest_size=_SIZE, salt=_SALT).digest() for row in encoded.to_pylist()
    )
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)


def _encoded(column: pa.Array) -> pa.Array:
    """Return the values as binary. No result is null or the start of a different one."""
    column = comparable(column)
    kind = column.type
    if pa.types.is_null(kind):
        return pa.repeat(_NULL, len(column))
    if pa.types.is_struct(kind):
        parts = [_encoded(child) for child in column.flatten()]
        value = _joined([_empty_or_null(column), *parts])
    elif pa.types.is_nested(kind):
        value = _encoded_lists(column)
    elif pa.types.is_fixed_size_binary(kind) or not (_is_text(kind) or pa.types.is_boolean(kind)):
        value = column.view(pa.binary(kind.bit_width // 8)).cast(pa.binary())
        value = value.cast(pa.large_binary())
    elif pa.types.is_boolean(kind):
        value = column.cast(pa.string()).cast(pa.large_binary())
        value = _joined([_length(value), value])
    else:
        value = column.cast(pa.large_binary())
        value = _joined([_length(value), value])
    return _joined([_VALUE, value]).fill_null(_NULL)


def _encoded_lists(column: pa.Array) -> pa.Array:
    """Return lists or maps as binary: the number of values, and the encoded values."""
    if pa.types.is_map(column.type):
        column = with_child(column, pa.list_(column.values.type), column.values)
    lengths = pc.list_value_length(column).cast(pa.int64())
    values = _encoded(column.flatten())  # without those of null lists
    sizes = pc.binary_length(values).fill_null(0).to_numpy()
    ends = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    last = np.concatenate(([0], np.cumsum(lengths.fill_null(0).to_numpy(), dtype=np.int64)))
    data = pa.py_buffer(b"".join(values.to_pylist()))
    buffers = [None, pa.py_buffer(np.ascontiguousarray(ends[last])), data]
    joined = pa.Array.from_buffers(pa.large_binary(), len(column), buffers)
    return _joined([_as_binary(lengths), joined])


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        is_kind(kind)
        for is_kind in (
            *(types.is_string, types.is_large_string, types.is_string_view),
            *(types.is_binary, types.is_large_binary, types.is_binary_view),
        )
    )


def _length(values: pa.Array) -> pa.Array:
    return _as_binary(pc.binary_length(values).cast(pa.int64()))


def _as_binary(numbers: pa.Array) -> pa.Array:
    return numbers.view(pa.binary(8)).cast(pa.binary()).cast(pa.large_binary())


def _empty_or_null(column: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), _NOTHING, pa.scalar(None, pa.large_binary()))


def _joined(parts: Iterable[Any]) -> pa.Array:
    """Join binary values row by row. The result is null where one of them is."""
    return pc.binary_join_element_wise(*parts, _NOTHING)
