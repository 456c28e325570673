"""The blocks of a source, decrypted into memory: what a reader stands on.

Has no position and no state but buffers and threads, so that any number of callers may use it at
once. Knows nothing of Python's file protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from . import layout
from ._gcm import BlockCipher
from .filelike import CHUNK_SIZE, Scratch
from .geometry import Geometry
from .key_metadata import KeyMetadata
from .source import Source
from .threads import run_all

Piece: TypeAlias = "tuple[int, memoryview]"
"""A position in the plaintext, and the memory for what begins there."""


class Blocks:
    """The blocks of ``source``, ``chunk`` of them at a time where they are small.

    All sizes and positions are within the plaintext; the caller has seen to that.
    """

    def __init__(
        self, source: Source, geometry: Geometry, km: KeyMetadata, *, threads: int
    ) -> None:
        self.source = source
        self.geometry = geometry
        self.threads = threads if source.random_access else 1
        self._block_size = geometry.block_size
        self._cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=self._block_size)
        # No block is larger than the file, whatever the header says.
        slot = min(self._block_size, geometry.plaintext_size) + layout.BLOCK_OVERHEAD
        self.chunk = max(1, min(CHUNK_SIZE // slot, geometry.block_count))
        self._scratch_size = self.chunk * slot
        self.after_fork()

    def after_fork(self) -> None:
        """Begin anew with buffers and threads; a forked child has neither its parent's threads nor
        a say in what they did with the buffers."""
        self._slots = Scratch(self._scratch_size)
        self._texts = Scratch(self._scratch_size)
        self._pool = ThreadPoolExecutor(self.threads, "ags1-reader")
        self.source.after_fork()

    def close(self, *, wait: bool) -> None:
        """Close the source, after the threads have ended if ``wait``."""
        try:
            self._pool.shutdown(wait=wait, cancel_futures=True)
        finally:
            self.source.close()

    def open_chunk(self, first: int, count: int, out: memoryview) -> None:
        """Decrypt up to ``chunk`` blocks into the beginning of ``out``."""
        offset, size = self.geometry.slots(first, count)
        scratch = self._slots.take()
        try:
            self._cipher.open_blocks(self.source.fetch(offset, size, scratch), out, first)
        finally:
            self._slots.give(scratch)
        if not self.source.random_access and offset + size == self.geometry.encrypted_size:
            self.source.check_end()

    def open_text(self, first: int, count: int) -> memoryview:
        """Decrypt up to ``chunk`` blocks into a buffer of ours, to be given back."""
        text = self._texts.take()
        self.open_chunk(first, min(count, self.geometry.block_count - first), text)
        return text

    def open_ahead(self, first: int) -> Future[memoryview]:
        """Have a thread do that with a whole chunk."""
        return self._pool.submit(self.open_text, first, self.chunk)

    def give_back(self, text: memoryview) -> None:
        """Take back a buffer of ``open_text``."""
        self._texts.give(text)

    def open_blocks(self, first: int, count: int, out: memoryview) -> None:
        """Decrypt any number of blocks into ``out``, which has just their size."""
        if count <= self.chunk:
            self.open_chunk(first, count, out)
            return

        def open_at(begin: int) -> None:
            blocks = min(self.chunk, first + count - begin)
            at = (begin - first) * self._block_size
            self.open_chunk(begin, blocks, out[at : at + self.geometry.text_size(begin, blocks)])

        self._run(open_at, range(first, first + count, self.chunk))

    def whole_blocks(self, position: int, size: int) -> int:
        """How many blocks lie wholly within ``size`` bytes that begin at ``position``, the first of
        them right there. The file's last block may be short and is whole all the same."""
        first, inside = divmod(position, self._block_size)
        if inside:
            return 0
        if position + size == self.geometry.plaintext_size:
            return self.geometry.block_count - first
        return size // self._block_size

    def read(self, position: int, out: memoryview) -> None:
        """Fill ``out`` from ``position``: a part of a block, whole blocks, a part of a block."""
        done = 0
        while done < out.nbytes:
            block, inside = divmod(position + done, self._block_size)
            whole = self.whole_blocks(position + done, out.nbytes - done)
            if whole:
                size = self.geometry.text_size(block, whole)
                self.open_blocks(block, whole, out[done : done + size])
            else:
                size = min(self.geometry.text_size(block, 1) - inside, out.nbytes - done)
                text = self._texts.take()
                try:
                    self.open_chunk(block, 1, text)
                    out[done : done + size] = text[inside : inside + size]
                finally:
                    self._texts.give(text)
            done += size

    def read_all(self, pieces: list[Piece]) -> None:
        """Fill every piece; each block is fetched and decrypted once, neighbours together."""
        group: list[Piece] = []
        last_block = -2
        for position, out in sorted(pieces, key=lambda piece: piece[0]):
            if position // self._block_size > last_block + 1:
                self._read_group(group)
                group = []
            group.append((position, out))
            last_block = max(last_block, (position + out.nbytes - 1) // self._block_size)
        self._read_group(group)

    def _read_group(self, group: list[Piece]) -> None:
        if len(group) < 2:
            for position, out in group:
                self.read(position, out)
            return
        first = group[0][0] // self._block_size
        last = max((position + out.nbytes - 1) // self._block_size for position, out in group)

        def serve(begin: int) -> None:
            count = min(self.chunk, last + 1 - begin)
            start = begin * self._block_size
            end = start + self.geometry.text_size(begin, count)
            text = self._texts.take()
            try:
                self.open_chunk(begin, count, text)
                for position, out in group:
                    low, high = max(position, start), min(position + out.nbytes, end)
                    if low < high:
                        out[low - position : high - position] = text[low - start : high - start]
            finally:
                self._texts.give(text)

        self._run(serve, range(first, last + 1, self.chunk))

    def _run(self, work: Callable[[int], None], starts: range) -> None:
        if self.threads > 1 and len(starts) > 1:
            run_all(self._pool, work, starts)
        else:
            for begin in starts:
                work(begin)
