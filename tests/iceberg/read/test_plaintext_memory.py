"""The memory of a plaintext is used again only if nobody can see it any more."""

from __future__ import annotations

import pyarrow as pa
import pytest
from conftest import RunPython

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
    assert pool.take(1 << 16).data is memory.data


@pytest.mark.parametrize("size", [1, 1000, 4096, 100_000])
def test_the_memory_of_one_file_is_that_of_the_next(size: int) -> None:
    pool = MemoryPool()
    memory = pool.take(size)
    pool.give_back(memory)
    assert pool.take(size) is memory


def test_few_pieces_stay_for_files_that_were_read_at_the_same_time() -> None:
    """All of them are looked at for each file."""
    pool = MemoryPool()
    taken = [pool.take(1000) for _ in range(1000)]
    for memory in taken:
        pool.give_back(memory)
    again = [pool.take(1000) for _ in range(1000)]
    assert 0 < len({*map(id, taken)} & {*map(id, again)}) < 100


_LATE_READER = """
import os, threading, time
import pyarrow as pa
from ags1.iceberg.read.plaintext_memory import POOL

def read(buffers, begun):
    begun.set()
    time.sleep(0.1)
    buffers.clear()
    os.write(1, b"dropped")

memory, begun = POOL.take(1000), threading.Event()
buffers = [pa.py_buffer(memory.data)]
threading.Thread(target=read, args=(buffers, begun), daemon=True).start()
begun.wait()
POOL.give_back(memory)
"""


def test_the_end_of_a_process_waits_for_a_reader_in_another_thread(run_python: RunPython) -> None:
    """Arrow's threads drop a file's memory after the read has ended."""
    assert run_python(_LATE_READER).stdout == "dropped"
