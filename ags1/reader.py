"""``Reader``: an encrypted file as a seekable file object.

Whole blocks are decrypted straight into the caller's memory; small reads are served from a window
of verified plaintext; ``pread`` and ``readv`` serve many threads. With ``threads`` above one, a
bounded number of blocks is read and decrypted ahead. Knows nothing of how keys are wrapped.
Counterpart in Java: ``AesGcmInputStream``.
"""

from __future__ import annotations

import collections
import contextlib
import io
import operator
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from . import layout
from ._gcm import BlockCipher, new_bytes
from ._stream import ReadWindow
from .errors import Ags1Error
from .filelike import CHUNK_SIZE, Lock, Scratch, Stream
from .geometry import DEFAULT_MAX_BLOCK_SIZE, Geometry, check_length, survey
from .key_metadata import KeyMetadata
from .memory import flat, run_all, wipe
from .source import Source, open_source

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self


class Reader(ReadWindow, Stream):
    """An encrypted file, open for reading: made by ``open``.

    An ``io.BufferedIOBase`` (registered), seekable wherever its source is, with ``pread`` and
    ``readv`` besides. A failed tag, a cut source or a format error is remembered: every later read
    raises it again. Any number of threads may use one reader; the position is theirs in common,
    and ``pread`` and ``readv`` neither use nor move it.
    """

    def __init__(
        self,
        file: Any,
        km: KeyMetadata,
        *,
        block_size: int | None = None,
        max_block_size: int = DEFAULT_MAX_BLOCK_SIZE,
        threads: int = 1,
        trust_file_size: bool = False,
    ) -> None:
        self.closed = True
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.mode = "rb"
        self._source: Source
        self._source, self.name = open_source(file)
        try:
            self._geometry = self._survey(km, block_size, max_block_size, trust_file_size)
            self._block_size = self._geometry.block_size
            self._plaintext_size = self._geometry.plaintext_size
            self._cipher = BlockCipher(
                km.encryption_key, km.aad_prefix, block_size=self._block_size
            )
        except Ags1Error as error:
            self._source.close()
            error.file = error.file or self.name
            raise
        except BaseException:
            self._source.close()
            raise
        # No block is larger than the file, whatever the header says.
        slot = min(self._block_size, self._plaintext_size) + layout.BLOCK_OVERHEAD
        self._chunk = max(1, min(CHUNK_SIZE // slot, self._geometry.block_count))
        self._slots = Scratch(self._chunk * slot)
        self._texts = Scratch(self._chunk * slot)
        self._shown: memoryview | None = None
        self._next_block = -1
        self._run = 1
        self._threads = threads if self._source.random_access else 1
        self._pool = ThreadPoolExecutor(self._threads, "ags1-reader")
        self._ahead: collections.deque[tuple[int, Future[memoryview]]] = collections.deque()
        self._error: Ags1Error | None = None
        self._pid = os.getpid()
        self._lock = Lock()
        self.closed = False
        if not self._geometry.plaintext_size:
            self._check_empty()

    def _check_empty(self) -> None:
        # No read will ever need the one empty block, yet its tag says whose file this is.
        try:
            if self._geometry.block_count:
                self._open_chunk(0, 1, memoryview(bytearray()))
            else:
                self._source.check_end()
        except BaseException as error:
            self._remember(error)
            self.close()
            raise

    def _survey(
        self,
        km: KeyMetadata,
        block_size: int | None,
        max_block_size: int,
        trust_file_size: bool,
    ) -> Geometry:
        actual = self._source.size
        scratch = memoryview(bytearray(layout.HEADER_SIZE))
        header = b""
        if actual is None or actual >= layout.HEADER_SIZE:
            header = bytes(self._source.fetch(0, layout.HEADER_SIZE, scratch))
            layout.parse_header(header)
        length = check_length(actual, km, trust_file_size=trust_file_size)
        return survey(header, length, block_size=block_size, max_block_size=max_block_size)

    # -- facts

    @property
    def plaintext_size(self) -> int:
        """The size of the plaintext in bytes."""
        return self._plaintext_size

    @property
    def encrypted_size(self) -> int:
        """The trusted size of the encrypted file in bytes."""
        return self._geometry.encrypted_size

    @property
    def block_size(self) -> int:
        """The plaintext bytes of a full block."""
        return self._block_size

    def readable(self) -> bool:
        self._check_open()
        return True

    def seekable(self) -> bool:
        self._check_open()
        return self._source.random_access

    # -- sequential

    def tell(self) -> int:
        """Return the position in the plaintext."""
        self._check_open()
        return self.position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to ``offset`` from the start, the position or the end; return the new position.

        Beyond the end is allowed, and reads nothing. Raises ValueError for a negative position and
        io.UnsupportedOperation when the source cannot seek.
        """
        self._check_open()
        if not self._source.random_access:
            raise io.UnsupportedOperation("the source of this stream cannot seek")
        offset = operator.index(offset)
        self._acquire()
        try:
            if whence == os.SEEK_CUR:
                offset += self.position
            elif whence == os.SEEK_END:
                offset += self._plaintext_size
            elif whence != os.SEEK_SET:
                raise ValueError(f"whence must be 0, 1 or 2, not {whence}")
            if offset < 0:
                raise ValueError(f"cannot seek to {offset}, before the beginning")
            self.position = offset
            return offset
        finally:
            self._release()

    def readinto1(self, buffer: Buffer, /) -> int:
        """Read into ``buffer`` from one block at most; return the bytes read."""
        view = flat(buffer)
        data = self.read1(view.nbytes)
        view[: len(data)] = data
        return len(data)

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        """Return the remaining lines, or as many as make up ``hint`` bytes."""
        lines: list[bytes] = []
        size = 0
        for line in self:
            lines.append(line)
            size += len(line)
            if hint is not None and 0 < hint <= size:
                break
        return lines

    def __iter__(self) -> Self:
        self._check_open()
        return self

    def __next__(self) -> bytes:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def _remaining(self) -> int:
        return max(0, self._plaintext_size - self.position)

    def _read_slow(self, size: int) -> bytes:
        self._acquire()
        try:
            left = self._remaining()
            data, out = new_bytes(left if size < 0 else min(size, left))
            self._fill(out)
            return data
        except BaseException as error:
            self._remember(error)
            raise
        finally:
            self._release()

    def _readinto_slow(self, buffer: Buffer) -> int:
        self._check_open()
        out = flat(buffer)[: self._remaining()]
        try:
            self._acquire()
            try:
                out = out[: self._remaining()]
                self._fill(out)
                return out.nbytes
            finally:
                self._release()
        except BaseException as error:
            wipe(out)
            self._remember(error)
            raise

    def _read1_slow(self, size: int) -> bytes:
        self._acquire()
        try:
            if size == 0 or not self._show():
                return b""
            inside = (self.position // self._block_size + 1) * self._block_size - self.position
            left = min(inside, self._remaining())
            data, out = new_bytes(left if size < 0 else min(size, left))
            self._fill(out)
            return data
        except BaseException as error:
            self._remember(error)
            raise
        finally:
            self._release()

    def _readline_slow(self, limit: int) -> bytes:
        parts: list[bytes] = []
        self._acquire()
        try:
            while limit != 0 and self._show():
                parts.append(self.window_line(limit))
                if parts[-1].endswith(b"\n"):
                    break
                if limit > 0:
                    limit -= len(parts[-1])
            return b"".join(parts)
        except BaseException as error:
            self._remember(error)
            raise
        finally:
            self._release()

    def _peek_slow(self) -> bytes:
        self._acquire()
        try:
            if not self._show():
                return b""
        except BaseException as error:
            self._remember(error)
            raise
        finally:
            self._release()
        return self.peek()

    def _acquire(self) -> None:
        """Take the position, the window and what is read ahead; ``_release`` gives them back."""
        self._check_fork()
        self._lock.acquire()
        self.busy = True
        try:
            self._check_open()
            self._check_error()
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        self.busy = False
        self._lock.release()

    def _check_error(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _remember(self, error: BaseException) -> None:
        if isinstance(error, Ags1Error):
            error.file = error.file or self.name
            self._error = error
            self.drop_window()

    def _check_fork(self) -> None:
        # A child has none of the threads, and a lock that one of them held would stay held.
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = Lock()
            self._pool = ThreadPoolExecutor(self._threads, "ags1-reader")
            self._ahead.clear()
            self.busy = False

    def _fill(self, out: memoryview) -> None:
        """Read all of ``out`` from the position on, and move it. ``out`` fits in what remains."""
        done, position = 0, self.position
        while done < out.nbytes:
            rest = out[done:] if done else out
            copied = self.copy_window(position, rest) or self._open_straight(position, rest)
            if not copied:
                self._load(position)
            done += copied
            position += copied
        self.position = position

    def _show(self) -> bool:
        """Have the window hold the position; return False at the end of the file."""
        if not self._remaining():
            return False
        if not self.copy_window(self.position, bytearray(1)):
            self._load(self.position)
        return True

    def write(self, data: Buffer, /) -> int:
        raise io.UnsupportedOperation("write: the stream is open for reading")

    def writelines(self, lines: Iterable[Buffer], /) -> None:
        raise io.UnsupportedOperation("writelines: the stream is open for reading")

    # -- blocks

    def _open_straight(self, position: int, out: memoryview) -> int:
        """Decrypt whole blocks into the caller's memory; return the bytes, 0 if there is none."""
        first, inside = divmod(position, self._block_size)
        count = out.nbytes // self._block_size
        if position + out.nbytes == self._plaintext_size:
            count = self._geometry.block_count - first
        if inside or not count:
            return 0
        if self._threads > 1:
            if count < self._threads * self._chunk:
                return 0
            self._ahead.clear()
        size = self._geometry.text_size(first, count)
        self._open_blocks(first, count, out[:size])
        self._next_block = first + count
        return size

    def _open_blocks(self, first: int, count: int, out: memoryview) -> None:
        """Decrypt blocks ``first`` onwards into ``out``, a chunk at a time."""
        if count <= self._chunk:
            self._open_chunk(first, count, out)
            return
        starts = range(first, first + count, self._chunk)

        def open_(begin: int) -> None:
            blocks = min(self._chunk, first + count - begin)
            at = (begin - first) * self._block_size
            size = self._geometry.text_size(begin, blocks)
            self._open_chunk(begin, blocks, out[at : at + size])

        if self._threads > 1:
            run_all(self._pool, open_, starts)
        else:
            for begin in starts:
                open_(begin)

    def _open_chunk(self, first: int, count: int, out: memoryview) -> None:
        offset, size = self._geometry.slots(first, count)
        scratch = self._slots.take()
        try:
            self._cipher.open_blocks(self._source.fetch(offset, size, scratch), out, first)
        finally:
            self._slots.give(scratch)
        if not self._source.random_access and offset + size == self._geometry.encrypted_size:
            self._source.check_end()

    def _load(self, position: int) -> None:
        """Have the window show the block at ``position``, with some that follow if they are small
        and the reading is sequential."""
        block = position // self._block_size
        sequential = block == self._next_block
        self._run = min(self._run * 2, self._chunk) if sequential else 1
        text: memoryview | None = None
        if self._threads > 1 and sequential:
            first, text = self._take_ahead(block)
            count = self._chunk
        if text is None:
            first = block
            count = self._run
            text = self._open_text(block, count)
        count = min(count, self._geometry.block_count - first)
        self.drop_window()
        if self._shown is not None:
            self._texts.give(self._shown)
        self._shown = text
        self.set_window(text, first * self._block_size, 0, self._geometry.text_size(first, count))
        self._next_block = first + count

    def _open_text(self, first: int, count: int) -> memoryview:
        count = min(count, self._geometry.block_count - first)
        text = self._texts.take()
        self._open_chunk(first, count, text)
        return text

    def _take_ahead(self, block: int) -> tuple[int, memoryview]:
        """Return the chunk that begins at ``block``, and keep the next ones in the making."""
        if not self._ahead or self._ahead[0][0] != block:
            self._ahead.clear()
        queued = self._ahead[-1][0] + self._chunk if self._ahead else block
        while len(self._ahead) <= self._threads and queued < self._geometry.block_count:
            job = self._pool.submit(self._open_text, queued, self._chunk)
            self._ahead.append((queued, job))
            queued += self._chunk
        first, job = self._ahead.popleft()
        return first, job.result()

    # -- positioned

    def pread(self, offset: int, size: int, /) -> bytes:
        """Return up to ``size`` bytes from ``offset``; fewer at the end of the file.

        Does not use the position. Any number of threads may call it; with a path, an ``io.BytesIO``
        or a ranged source they do not wait for each other. Raises io.UnsupportedOperation when the
        source cannot seek, and ValueError for a negative argument.
        """
        self._check_positioned(offset, size)
        data = self.cached(offset, size)
        if data is not None:
            return data
        data, out = new_bytes(self._clip(offset, size))
        try:
            self._read_range(offset, out)
        except BaseException as error:
            self._remember(error)
            raise
        return data

    def readv(self, ranges: Iterable[tuple[int, int]], /) -> list[bytes]:
        """Return the bytes of each ``(offset, size)``, in that order, as ``pread`` does.

        Ranges in the same or in adjacent blocks are read from the source together, and each block
        is decrypted once.
        """
        self._check_positioned(0, 0)
        wanted = [(operator.index(offset), operator.index(size)) for offset, size in ranges]
        for offset, size in wanted:
            self._check_positioned(offset, size)
        results = [new_bytes(self._clip(offset, size)) for offset, size in wanted]
        pieces = [
            (offset, out)
            for (offset, _), (_, out) in zip(wanted, results, strict=True)
            if out.nbytes
        ]
        pieces.sort(key=lambda piece: piece[0])
        try:
            for group in self._neighbours(pieces):
                self._read_group(group)
        except BaseException as error:
            self._remember(error)
            raise
        return [data for data, _ in results]

    def _check_positioned(self, offset: int, size: int) -> None:
        self._check_open()
        self._check_fork()
        if not self._source.random_access:
            raise io.UnsupportedOperation("the source of this stream cannot seek")
        if offset < 0 or size < 0:
            raise ValueError(f"neither offset {offset} nor size {size} may be negative")
        self._check_error()

    def _clip(self, offset: int, size: int) -> int:
        return max(0, min(size, self._plaintext_size - offset))

    def _neighbours(
        self, pieces: list[tuple[int, memoryview]]
    ) -> Iterator[list[tuple[int, memoryview]]]:
        group: list[tuple[int, memoryview]] = []
        last_block = -2
        for offset, out in pieces:
            if offset // self._block_size > last_block + 1:
                if group:
                    yield group
                group = []
            group.append((offset, out))
            last_block = max(last_block, (offset + out.nbytes - 1) // self._block_size)
        if group:
            yield group

    def _read_group(self, group: list[tuple[int, memoryview]]) -> None:
        if len(group) == 1:
            self._read_range(*group[0])
            return
        first = group[0][0] // self._block_size
        last = max((offset + out.nbytes - 1) // self._block_size for offset, out in group)
        starts = range(first, last + 1, self._chunk)

        def serve(begin: int) -> None:
            count = min(self._chunk, last + 1 - begin)
            start = begin * self._block_size
            text = self._texts.take()
            try:
                self._open_chunk(begin, count, text)
                end = start + self._geometry.text_size(begin, count)
                for offset, out in group:
                    low, high = max(offset, start), min(offset + out.nbytes, end)
                    if low < high:
                        out[low - offset : high - offset] = text[low - start : high - start]
            finally:
                self._texts.give(text)

        if self._threads > 1 and len(starts) > 1:
            run_all(self._pool, serve, starts)
        else:
            for begin in starts:
                serve(begin)

    def _read_range(self, offset: int, out: memoryview) -> None:
        """Read ``out`` from ``offset``: a part of a block, whole blocks, a part of a block."""
        done = 0
        while done < out.nbytes:
            block, inside = divmod(offset + done, self._block_size)
            whole = (out.nbytes - done) // self._block_size
            if offset + out.nbytes == self._plaintext_size:
                whole = self._geometry.block_count - block
            if whole and not inside:
                size = self._geometry.text_size(block, whole)
                self._open_blocks(block, whole, out[done : done + size])
            else:
                size = min(self._geometry.text_size(block, 1) - inside, out.nbytes - done)
                text = self._texts.take()
                try:
                    self._open_chunk(block, 1, text)
                    out[done : done + size] = text[inside : inside + size]
                finally:
                    self._texts.give(text)
            done += size

    # -- the end

    def close(self) -> None:
        """Close the stream, and its file if ``open`` was given a path."""
        if self.closed:
            return
        self._check_fork()
        self._lock.acquire()
        try:
            self.closed = True
            self._pool.shutdown(cancel_futures=True)
            self._ahead.clear()
            self.drop_window()
            self._source.close()
        finally:
            self._lock.release()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


io.BufferedIOBase.register(Reader)
