"""Replaces the values inside Arrow's lists and maps, and offsets that are not there."""

from __future__ import annotations

import pyarrow as pa


def with_child(array: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """Return a list or map of type ``kind`` with another child array, and with the offsets and
    nulls of ``array``, which may be a slice."""
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], offset=array.offset, children=[child]
    )


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose ``nbytes`` may be asked for. If the lists of a batch are all empty, the
    offsets of lists inside them may be an empty buffer: Spark makes such batches (SPARK-55056), and
    Arrow's IPC reads them as they are. ``nbytes`` reads the first offset without a check."""
    columns = [
        pa.concat_arrays([column])
        if any(buffer is not None and not buffer.size for buffer in column.buffers())
        and not pa.types.is_primitive(column.type)
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch
