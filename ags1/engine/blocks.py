"""Fetches and decrypts the blocks of a source, for a reader. It has no position, and no state
except buffers and threads. So any number of callers may use it at once."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

from ..errors import AuthenticationError
from ..host.process import PerProcess
from ..host.threads import Job, Pool, run_all
from . import layout
from ._gcm import BlockCipher
from ._reading import BlockCache
from .filelike import CHUNK_SIZE, REQUEST_SIZE, Scratch
from .geometry import Geometry
from .key_metadata import KeyMetadata
from .source import Source

Piece: TypeAlias = "tuple[int, memoryview]"
"""A position in the plaintext, and the memory for what begins there."""


class Blocks:
    """The blocks of ``source``. Small blocks are read ``chunk`` at a time. Where many bytes are
    wanted, one request asks for up to ``most`` blocks, more than a chunk if the source may be far
    away. ``cache`` keeps up to ``cache_size`` bytes of the plaintext that ``fill`` decrypts. All
    sizes and positions must be within the plaintext."""

    def __init__(
        self, source: Source, geometry: Geometry, km: KeyMetadata, *, threads: int, cache_size: int
    ) -> None:
        self.source = source
        self.geometry = geometry
        self.threads = threads if source.random_access else 1
        self._block_size = geometry.block_size
        self._cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=self._block_size)
        # No block is larger than the file, whatever the header says.
        text = min(self._block_size, geometry.plaintext_size)
        slot = text + layout.BLOCK_OVERHEAD
        self.chunk = max(1, min(CHUNK_SIZE // slot, geometry.block_count))
        request = max(self.chunk, min(REQUEST_SIZE // max(1, text), geometry.block_count))
        self.most = request if source.far else self.chunk
        self._slots = Scratch(self.chunk * slot, self.most * slot)
        self._texts = Scratch(self.chunk * text, self.most * text)
        self.cache = BlockCache(cache_size)
        self._pool = PerProcess(partial(Pool, self.threads))

    def close(self, *, wait: bool) -> None:
        """Close the source, after the threads have ended if ``wait``."""
        try:
            if (pool := self._pool.made()) is not None:
                pool.shutdown(wait=wait)
        finally:
            self.cache.close()
            self.source.close()

    def open_chunk(self, first: int, count: int, out: memoryview) -> None:
        """Decrypt up to ``most`` blocks into the beginning of ``out``."""
        offset, size = self.geometry.slots(first, count)
        scratch = self._slots.take(size)
        try:
            self._cipher.open_blocks(self.source.fetch(offset, size, scratch), out, first)
        except AuthenticationError:
            self.source.check_unchanged()
            raise
        finally:
            self._slots.give(scratch)
        if not self.source.random_access and offset + size == self.geometry.encrypted_size:
            self.source.check_end()

    def open_text(self, first: int, count: int) -> memoryview:
        """Decrypt up to ``most`` blocks into a buffer, which goes to ``give_back`` later."""
        text = self._texts.take(self.geometry.text_size(first, count))
        self.open_chunk(first, min(count, self.geometry.block_count - first), text)
        return text

    def open_ahead(self, first: int, count: int) -> Job[memoryview]:
        """Have a thread do what ``open_text`` does."""
        return self._pool.get().submit(partial(self.open_text, first, count))

    def give_back(self, text: memoryview) -> None:
        """Take back a buffer of ``open_text``."""
        self._texts.give(text)

    def whole_blocks(self, position: int, size: int) -> int:
        """Return how many whole blocks are in ``size`` bytes from ``position`` on; 0 if no block
        begins there. The file's last block counts as whole even if it is short."""
        first, inside = divmod(position, self._block_size)
        if inside:
            return 0
        if position + size == self.geometry.plaintext_size:
            return self.geometry.block_count - first
        return size // self._block_size

    def fill(self, pieces: list[Piece]) -> None:
        """Fill every piece; none may be empty. Each block is fetched and decrypted once, and
        adjacent blocks together."""
        groups: list[list[Piece]] = []
        last = -2
        for position, out in sorted(pieces, key=lambda piece: piece[0]):
            if position // self._block_size > last + 1:
                groups.append([])
            groups[-1].append((position, out))
            last = max(last, (position + out.nbytes - 1) // self._block_size)
        for group in groups:
            self._fill_run(group)

    def _fill_run(self, pieces: list[Piece]) -> None:
        """Fill pieces whose blocks are adjacent."""
        first = pieces[0][0] // self._block_size
        last = max((position + out.nbytes - 1) // self._block_size for position, out in pieces)
        shares: list[tuple[int, int]] = []
        for begin in range(first, last + 1, self.chunk):
            count = min(self.chunk, last + 1 - begin)
            # The cache has whole blocks.
            at = max(begin * self._block_size, pieces[0][0])
            if self.cache.holds(at) and all(
                self.cache.copy(*part) for part in self._parts(pieces, begin, count)
            ):
                continue
            before, blocks = shares[-1] if shares else (begin, self.most)
            if before + blocks == begin and blocks + count <= self.most:
                shares[-1] = before, blocks + count
            else:
                shares.append((begin, count))
        # Here and not in the threads: without the GIL, a view does not survive that two threads
        # slice it at once.
        parts = [self._parts(pieces, *share) for share in shares]

        def serve(number: int) -> None:
            self._serve(*shares[number], parts[number])

        if self.threads > 1 and len(shares) > 1:
            run_all(self._pool.get(), serve, range(len(shares)))
        else:
            for number in range(len(shares)):
                serve(number)

    def _parts(self, pieces: list[Piece], first: int, count: int) -> list[Piece]:
        """Return what the blocks have of the pieces."""
        start = first * self._block_size
        end = start + self.geometry.text_size(first, count)
        return [
            (max(position, start), out[max(start - position, 0) : end - position])
            for position, out in pieces
            if position < end and start < position + out.nbytes
        ]

    def _serve(self, first: int, count: int, parts: list[Piece]) -> None:
        """Fill the parts of pieces that these blocks have."""
        start, size = first * self._block_size, self.geometry.text_size(first, count)
        if parts[0][1].nbytes == size and len(parts) == 1:
            self.open_chunk(first, count, parts[0][1])
        else:
            text = self.open_text(first, count)
            for position, out in parts:
                out[:] = text[position - start : position - start + out.nbytes]
            spare = self.cache.keep(text, start, size)
            if spare is not None:
                self.give_back(spare)
