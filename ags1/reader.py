"""``Reader``: an encrypted file as a seekable file object.

Whole blocks are decrypted straight into the caller's memory; small reads are served from a window
of verified plaintext; ``pread`` and ``readv`` serve many threads. With ``threads`` above one, a
bounded number of blocks is read and decrypted ahead. Knows nothing of how keys are wrapped.
Counterpart in Java: ``AesGcmInputStream``.
"""

from __future__ import annotations

import collections
import copy
import io
import operator
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from . import layout
from ._buffers import flat, new_bytes, wipe
from ._gcm import process_number
from ._stream import ReadWindow
from .blocks import Blocks
from .errors import Ags1Error
from .filelike import Lock, Stream
from .geometry import DEFAULT_MAX_BLOCK_SIZE, Geometry, file_geometry
from .key_metadata import KeyMetadata
from .source import Source, open_source

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

_P = ParamSpec("_P")
_T = TypeVar("_T")


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
        source, self.name = open_source(file)
        try:
            geometry = _survey(source, km, block_size, max_block_size, trust_file_size)
            self._blocks = Blocks(source, geometry, km, threads=threads)
            self._check_empty()
        except Ags1Error as error:
            source.close()
            error.file = error.file or self.name
            raise
        except BaseException:
            source.close()
            raise
        self._block_size = geometry.block_size
        self._plaintext_size = geometry.plaintext_size
        self._shown: memoryview | None = None
        self._next_block = -1
        self._run = 1
        self._ahead: collections.deque[tuple[int, Future[memoryview]]] = collections.deque()
        self._error: Ags1Error | None = None
        self._fork = process_number()
        self._lock = Lock()
        self.closed = False

    def _check_empty(self) -> None:
        # No read will ever need the one empty block, yet its tag says whose file this is.
        geometry = self._blocks.geometry
        if not geometry.plaintext_size:
            if geometry.block_count:
                self._blocks.open_chunk(0, 1, memoryview(bytearray()))
            else:
                self._blocks.source.check_end()

    # -- facts

    @property
    def plaintext_size(self) -> int:
        """The size of the plaintext in bytes."""
        return self._plaintext_size

    @property
    def encrypted_size(self) -> int:
        """The trusted size of the encrypted file in bytes."""
        return self._blocks.geometry.encrypted_size

    @property
    def block_size(self) -> int:
        """The plaintext bytes of a full block."""
        return self._block_size

    def readable(self) -> bool:
        self._check_open()
        return True

    def seekable(self) -> bool:
        self._check_open()
        return self._blocks.source.random_access

    def write(self, data: Buffer, /) -> int:
        raise io.UnsupportedOperation("write: the stream is open for reading")

    def writelines(self, lines: Iterable[Buffer], /) -> None:
        raise io.UnsupportedOperation("writelines: the stream is open for reading")

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
        self._check_seekable()
        return self._serially(self._seek, operator.index(offset), whence)

    def _seek(self, offset: int, whence: int) -> int:
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

    # What the window cannot serve from memory comes here.

    def _read_slow(self, size: int) -> bytes:
        return self._serially(self._read, size)

    def _read1_slow(self, size: int) -> bytes:
        return self._serially(self._read1, size)

    def _readline_slow(self, limit: int) -> bytes:
        return self._serially(self._readline, limit)

    def _peek_slow(self) -> bytes:
        return self.peek() if self._serially(self._show) else b""

    def _readinto_slow(self, buffer: Buffer) -> int:
        self._check_open()
        out = flat(buffer)[: self._remaining()]
        try:
            return self._serially(self._readinto, out)
        except BaseException:
            wipe(out)
            raise

    def _serially(self, work: Callable[_P, _T], /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        """Call ``work`` while nobody else uses the position, the window or what is read ahead."""
        self._check_fork()
        self._lock.check_not_mine()
        with self._lock:
            self.busy = True
            try:
                self._check_open()
                self._check_error()
                return work(*arguments, **named)
            except Ags1Error as error:
                self._remember(error)
                raise
            finally:
                self.busy = False

    def _check_error(self) -> None:
        if self._error is not None:
            raise copy.copy(self._error)

    def _remember(self, error: Ags1Error) -> None:
        error.file = error.file or self.name
        # A copy, which holds no frames and with them no buffers.
        self._error = copy.copy(error)
        self.drop_window()

    def _check_fork(self) -> None:
        if self._fork != process_number():
            self._fork = process_number()
            self._lock = Lock()
            self._ahead.clear()
            self.drop_window()
            self._shown = None
            self._blocks.after_fork()
            self.busy = False

    def _remaining(self) -> int:
        return max(0, self._plaintext_size - self.position)

    def _read(self, size: int) -> bytes:
        left = self._remaining()
        data, out = new_bytes(left if size < 0 else min(size, left))
        self._fill(out)
        return data

    def _readinto(self, out: memoryview) -> int:
        out = out[: self._remaining()]
        self._fill(out)
        return out.nbytes

    def _read1(self, size: int) -> bytes:
        if size == 0 or not self._show():
            return b""
        inside = self.position % self._block_size
        left = min(self._block_size - inside, self._remaining())
        return self._read(left if size < 0 else min(size, left))

    def _readline(self, limit: int) -> bytes:
        parts: list[bytes] = []
        while limit != 0 and self._show():
            parts.append(self.window_line(limit))
            if parts[-1].endswith(b"\n"):
                break
            if limit > 0:
                limit -= len(parts[-1])
        return b"".join(parts)

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

    def _open_straight(self, position: int, out: memoryview) -> int:
        """Decrypt whole blocks into the caller's memory; return the bytes, 0 if there is none."""
        blocks = self._blocks
        count = blocks.whole_blocks(position, out.nbytes)
        if not count:
            return 0
        if blocks.threads > 1:
            # Fewer are had sooner from what is read ahead.
            if count < blocks.threads * blocks.chunk:
                return 0
            self._forget_ahead()
        first = position // self._block_size
        size = blocks.geometry.text_size(first, count)
        blocks.open_blocks(first, count, out[:size])
        self._next_block = first + count
        return size

    def _load(self, position: int) -> None:
        """Have the window show the block at ``position``, with some that follow if they are small
        and the reading is sequential."""
        blocks = self._blocks
        block = position // self._block_size
        sequential = block == self._next_block
        self._run = min(self._run * 2, blocks.chunk) if sequential else 1
        if blocks.threads > 1 and sequential:
            count = blocks.chunk
            text = self._take_ahead(block)
        else:
            count = self._run
            text = blocks.open_text(block, count)
        count = min(count, blocks.geometry.block_count - block)
        # In this order no interrupt can leave a buffer both shown and free for other uses.
        old, self._shown = self._shown, None
        self.drop_window()
        size = blocks.geometry.text_size(block, count)
        self.set_window(text, block * self._block_size, 0, size)
        self._shown = text
        if old is not None:
            blocks.give_back(old)
        self._next_block = block + count

    def _take_ahead(self, block: int) -> memoryview:
        """Return the chunk that begins at ``block``, and keep the next ones in the making."""
        blocks = self._blocks
        if not self._ahead or self._ahead[0][0] != block:
            self._forget_ahead()
        queued = self._ahead[-1][0] + blocks.chunk if self._ahead else block
        while len(self._ahead) <= blocks.threads and queued < blocks.geometry.block_count:
            self._ahead.append((queued, blocks.open_ahead(queued)))
            queued += blocks.chunk
        return self._ahead.popleft()[1].result()

    def _forget_ahead(self) -> None:
        for _, job in self._ahead:
            job.cancel()
        self._ahead.clear()

    # -- positioned

    def pread(self, offset: int, size: int, /) -> bytes:
        """Return up to ``size`` bytes from ``offset``; fewer at the end of the file.

        Does not use the position. Any number of threads may call it; with a path, an ``io.BytesIO``
        or a ranged source they do not wait for each other. Raises io.UnsupportedOperation when the
        source cannot seek, and ValueError for a negative argument.
        """
        self._check_seekable()
        offset, size = self._clip(offset, size)
        data = self.cached(offset, size)
        if data is None:
            data, out = new_bytes(size)
            self._positioned(self._blocks.read, offset, out)
        return data

    def readv(self, ranges: Iterable[tuple[int, int]], /) -> list[bytes]:
        """Return the bytes of each ``(offset, size)``, in that order, as ``pread`` does.

        Ranges in the same or in adjacent blocks are read from the source together, and each block
        is decrypted once.
        """
        self._check_seekable()
        wanted = [self._clip(offset, size) for offset, size in ranges]
        results = [new_bytes(size) for _, size in wanted]
        pieces = [
            (offset, out) for (offset, size), (_, out) in zip(wanted, results, strict=True) if size
        ]
        self._positioned(self._blocks.read_all, pieces)
        return [data for data, _ in results]

    def _positioned(
        self, work: Callable[_P, None], /, *arguments: _P.args, **named: _P.kwargs
    ) -> None:
        self._check_fork()
        self._check_error()
        try:
            work(*arguments, **named)
        except Ags1Error as error:
            self._remember(error)
            raise
        # What a close in the meantime did to the source is no fault of the source.
        except (OSError, ValueError):
            self._check_open()
            raise

    def _check_seekable(self) -> None:
        self._check_open()
        if not self._blocks.source.random_access:
            raise io.UnsupportedOperation("the source of this stream cannot seek")

    def _clip(self, offset: int, size: int) -> tuple[int, int]:
        offset, size = operator.index(offset), operator.index(size)
        if offset < 0 or size < 0:
            raise ValueError(f"neither offset {offset} nor size {size} may be negative")
        offset = min(offset, self._plaintext_size)
        return offset, min(size, self._plaintext_size - offset)

    # -- the end

    def close(self) -> None:
        """Close the stream, and its file if ``open`` was given a path."""
        if self.closed:
            return
        self._check_fork()
        self._lock.check_not_mine()
        with self._lock:
            if not self.closed:
                self.closed = True
                self._forget_ahead()
                self.drop_window()
                self._blocks.close(wait=True)

    def __del__(self) -> None:
        # Nobody else is left to hold the lock; and this may be one of our own threads.
        if not self.closed:
            self.closed = True
            self._blocks.close(wait=False)


def _survey(
    source: Source,
    km: KeyMetadata,
    block_size: int | None,
    max_block_size: int,
    trust_file_size: bool,
) -> Geometry:
    header = b""
    if source.size is None or source.size >= layout.HEADER_SIZE:
        scratch = memoryview(bytearray(layout.HEADER_SIZE))
        header = bytes(source.fetch(0, layout.HEADER_SIZE, scratch))
    return file_geometry(
        header,
        source.size,
        km,
        block_size=block_size,
        max_block_size=max_block_size,
        trust_file_size=trust_file_size,
    )


io.BufferedIOBase.register(Reader)
