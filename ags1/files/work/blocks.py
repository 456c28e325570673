"""Moves blocks from a source to an output, and encrypts or decrypts them on the way.

Between two descriptors the pump does so without a copy. Otherwise a run of blocks is read, goes
through a buffer that is used again, and is written, while the next run is read. No plaintext is
written before its tags are verified. Independent of jobs.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from ...engine import layout
from ...engine._gcm import BlockCipher
from ...engine._pump import Pump
from ...engine.geometry import Geometry
from ...engine.key_metadata import KeyMetadata
from ...errors import Ags1Error, TruncatedError
from ...host.process import OncePerProcess
from ..staging.pieces import BLOCK_SIZE
from ..staging.protocol import CHANGED, Output, Source

# The blocks of a run by default, and the runs that are read ahead.
RUN_BLOCKS = 8
_READ_AHEAD = 2
_readers = OncePerProcess(lambda: ThreadPoolExecutor(4 * _READ_AHEAD, "ags1-read"))


def seal(
    source: Source,
    output: Output,
    key_metadata: KeyMetadata,
    geometry: Geometry,
    blocks: range,
    run: int,
) -> bytes | None:
    """Encrypt blocks of a source, ``run`` at a time; the header comes before the first block of a
    file. Return the nonce of the file's first block, None if that is not among them. Raises
    Ags1Error if the source ends early, OSError."""
    cipher = BlockCipher(
        key_metadata.encryption_key, key_metadata.aad_prefix, block_size=BLOCK_SIZE
    )
    header = b"" if blocks.start else layout.build_header(BLOCK_SIZE)
    if source.fd >= 0 and output.fd >= 0:
        text_size = geometry.text_size(blocks.start, len(blocks))
        with contextlib.closing(Pump(source.fd, output.fd)) as pump:
            try:
                pump.seal(cipher, blocks.start, text_size)
            except TruncatedError:
                raise Ags1Error(CHANGED) from None
        return os.pread(output.fd, layout.NONCE_SIZE, len(header)) if header else None
    nonce = None
    runs = _runs(blocks, run)
    buffer = memoryview(bytearray(len(header) + geometry.slots(*runs[0])[1]))
    buffer[: len(header)] = header
    texts = ((first * BLOCK_SIZE, geometry.text_size(first, length)) for first, length in runs)
    for (first, _), text in zip(runs, _read(source, texts, Ags1Error(CHANGED)), strict=True):
        begin = 0 if first else len(header)
        size = cipher.seal_blocks(text, buffer[begin:], first)
        if begin:
            nonce = bytes(buffer[begin : begin + layout.NONCE_SIZE])
        output.write(buffer[: begin + size])
    return nonce


def open_blocks(
    source: Source,
    output: Output | None,
    key_metadata: KeyMetadata,
    geometry: Geometry,
    blocks: range,
    run: int,
) -> None:
    """Decrypt blocks of a source, ``run`` at a time; without an output only verify them. Raises
    AuthenticationError, TruncatedError, OSError."""
    cipher = BlockCipher(
        key_metadata.encryption_key, key_metadata.aad_prefix, block_size=BLOCK_SIZE
    )
    if source.fd >= 0 and (output is None or output.fd >= 0):
        text_size = geometry.text_size(blocks.start, len(blocks))
        with contextlib.closing(Pump(source.fd, -1 if output is None else output.fd)) as pump:
            pump.open(cipher, blocks.start, text_size)
        return
    runs = _runs(blocks, run)
    buffer = memoryview(bytearray(geometry.text_size(*runs[0])))
    slots = (geometry.slots(first, length) for first, length in runs)
    cut_short = TruncatedError("the file ends in the middle of a block: it was cut off")
    for (first, _), sealed in zip(runs, _read(source, slots, cut_short), strict=True):
        size = cipher.open_blocks(sealed, buffer, first)
        if output is not None:
            output.write(buffer[:size])


def _runs(blocks: range, run: int) -> list[tuple[int, int]]:
    """Return the first block and the length of each run."""
    length = run if run > 1 else RUN_BLOCKS
    return [(first, min(length, blocks.stop - first)) for first in blocks[::length]]


def _read(
    source: Source, ranges: Iterable[tuple[int, int]], cut_short: Ags1Error
) -> Iterator[bytes]:
    """Yield the bytes of each range (offset, size) of a source. A remote one is read ahead."""
    if source.fd >= 0:
        for offset, size in ranges:
            yield _whole(source.read(offset, size), size, cut_short)
        return
    pool = _readers.get()
    waiting: deque[tuple[int, Future[bytes]]] = deque()
    try:
        for offset, size in ranges:
            waiting.append((size, pool.submit(source.read, offset, size)))
            if len(waiting) > _READ_AHEAD:
                size, future = waiting.popleft()
                yield _whole(future.result(), size, cut_short)
        while waiting:
            size, future = waiting.popleft()
            yield _whole(future.result(), size, cut_short)
    finally:
        for _, future in waiting:
            future.cancel()


def _whole(data: bytes, size: int, cut_short: Ags1Error) -> bytes:
    if len(data) != size:
        raise cut_short
    return data
