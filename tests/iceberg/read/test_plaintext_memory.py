"""The memory of a plaintext is used again only if nobody can see it any more."""

from __future__ import annotations

import pyarrow as pa

from ags1.iceberg.read.plaintext_memory import MemoryPool


def test_memory_that_a_reader_still_has_is_not_used_again() -> None:
    pool = MemoryPool()
    memory = pool.take(1 << 16)
    memory.view[:5] = b"first"
    reader = pa.BufferReader(pa.py_buffer(memory.data)).read_buffer(5)
    pool.give_back(memory)
    other = pool.take(1 << 16)
    other.view[:5] = b"other"
    assert reader.to_pybytes() == b"first"
    assert other.data is not memory.data
    reader = None
    pool.give_back(memory)
    assert pool.take(1 << 16).data is memory.data
