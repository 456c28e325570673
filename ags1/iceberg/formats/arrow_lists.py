"""Replaces the values inside Arrow's lists and maps."""

from __future__ import annotations

import pyarrow as pa


def with_child(array: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """Return a list or map of type ``kind`` with another child array, and with the offsets and
    nulls of ``array``, which may be a slice."""
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], offset=array.offset, children=[child]
    )
