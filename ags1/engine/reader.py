"""``Reader``: an encrypted file as a seekable file object. Java: ``AesGcmInputStream``.

Where a read takes its bytes from. It goes down until it has all of them::

    read, readinto, readline, ...              pread, readv
    one caller at a time                       any number at once
                |                                    |
    +--> window: plaintext at hand <---------- window
    |           |                                    |
    |           |                              cache: blocks that pread has decrypted <--+
    |           |                                    |                                   |
    |    straight: whole blocks,               straight: whole blocks,                   |
    |    into the caller's memory              into the result                           |
    |           |                                    |                                   |
    |    ahead: runs that threads              a buffer for a part of a block -----------+
    |    have decrypted before (threads > 1,
    |    only while the reading goes onwards)
    |           |
    +--- run: the block at the position, and
         twice as many each time (up to the
         most for one request) while the
         reading goes onwards

``FastReader`` serves from the window and the cache in compiled code; all below them is
``ReaderCore``'s, and ``Blocks`` does the decryption. Only the left side has a position, and
remembers its first error. After a seek, threads read ahead no more than was read since.
"""

from __future__ import annotations

import collections
import copy
import errno
import functools
import io
import operator
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

from ..errors import Ags1Error
from ..host.process import Lock, PerProcess
from ..host.threads import Job, check_threads
from . import layout
from ._buffers import flat, new_bytes, wipe
from ._reading import FastReader, ReadWindow
from .blocks import Blocks
from .filelike import Stream, check_open
from .geometry import DEFAULT_MAX_BLOCK_SIZE, file_geometry
from .key_metadata import KeyMetadata
from .source import Source, open_source

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

_P = ParamSpec("_P")
_T = TypeVar("_T")

DEFAULT_CACHE_SIZE = 16 << 20


class Reader(FastReader, Stream):
    """An encrypted file, open for reading: made by ``open``.

    It is registered as an ``io.BufferedIOBase``, is seekable if its source is, and also has
    ``pread`` and ``readv``. Any number of threads may use one reader. They share one position,
    which ``pread`` and ``readv`` neither use nor move. If a read from the position meets a wrong
    tag, a truncated source or a format error, every later read from the position and every ``seek``
    raises that error again. An error of ``pread`` or ``readv`` fails only that call.
    """

    __slots__ = ()

    mode = "rb"

    def __init__(
        self,
        file: Any,
        km: KeyMetadata,
        *,
        block_size: int | None = None,
        max_block_size: int = DEFAULT_MAX_BLOCK_SIZE,
        threads: int = 1,
        trust_file_size: bool = False,
        cache_size: int = DEFAULT_CACHE_SIZE,
    ) -> None:
        check_threads(threads)
        if cache_size < 0:
            raise ValueError(f"cache_size must be at least 0, not {cache_size}")
        source, name = open_source(file)
        try:
            geometry = file_geometry(
                _header(source), source.size, km, block_size, max_block_size, trust_file_size
            )
            blocks = Blocks(source, geometry, km, threads=threads, cache_size=cache_size)
            _check_empty(blocks)
        except Ags1Error as error:
            source.close()
            error.file = error.file or name
            raise
        except BaseException:
            source.close()
            raise
        super().__init__(ReaderCore(blocks, name))

    def readable(self) -> bool:
        check_open(self)
        return True

    def readinto1(self, buffer: Buffer, /) -> int:
        """Read into ``buffer`` from one block at most; return the bytes read."""
        view = flat(buffer)
        data = self.read1(view.nbytes)
        view[: len(data)] = data
        return len(data)

    def read_buffer(self, nbytes: int | None = None, /) -> pa.Buffer:
        """Read up to ``nbytes`` bytes, or all that remain, into memory of Arrow's pool, which costs
        less than the fresh memory of ``read``. ``pyarrow.PythonFile.read_buffer`` calls it."""
        import pyarrow as pa

        left = max(0, self.plaintext_size - self.tell())
        size = left if nbytes is None or nbytes < 0 else min(nbytes, left)
        buffer = pa.allocate_buffer(size)
        return buffer.slice(0, self.readinto(buffer))

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

    def _unwritable(self, *arguments: object) -> NoReturn:
        raise io.UnsupportedOperation("the stream is open for reading")

    write = writelines = _unwritable


io.BufferedIOBase.register(Reader)


def _exclusively(
    work: Callable[Concatenate[ReaderCore, _P], _T],
) -> Callable[Concatenate[ReaderCore, _P], _T]:
    """Run a method under the lock of the position, the window and what is read ahead."""

    @functools.wraps(work)
    def run(self: ReaderCore, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        lock = self._lock.get()
        lock.check_not_mine()
        with lock:
            self.window.busy = True
            try:
                check_open(self)
                if self._error is not None:
                    raise copy.copy(self._error)
                return work(self, *arguments, **named)
            except Ags1Error as error:
                error.file = error.file or self.name
                # A copy, which holds no frames and with them no buffers.
                self._error = copy.copy(error)
                self.window.drop()
                raise
            finally:
                # What comes after an error, or after the end, is the core's answer.
                self.window.busy = self.closed or self._error is not None

    return run


class ReaderCore:
    """Does the reads that need more than the window and the cache (see the drawing above)."""

    def __init__(self, blocks: Blocks, name: str | None) -> None:
        geometry = blocks.geometry
        self.name = name
        self.plaintext_size = geometry.plaintext_size
        self.encrypted_size = geometry.encrypted_size
        self.block_size = geometry.block_size
        self.seekable = blocks.source.random_access
        self.cache = blocks.cache
        self.window = ReadWindow()
        self._blocks = blocks
        self._lock = PerProcess(Lock)
        self._error: Ags1Error | None = None
        # The next block of a sequential read, and the number of blocks that the last step read.
        self._next_block = -1
        self._run = 1
        # The block where the reading that goes onwards began, and the runs that threads decrypt for
        # it: the first block, the number of blocks, and the job.
        self._start = 0
        self._ahead: PerProcess[collections.deque[tuple[int, int, Job[memoryview]]]]
        self._ahead = PerProcess(collections.deque)

    @property
    def closed(self) -> bool:
        return self.window.closed

    # -- at the position

    @_exclusively
    def _seek(self, offset: int, whence: int) -> int:
        if whence == os.SEEK_CUR:
            offset += self.window.position
        elif whence == os.SEEK_END:
            offset += self.plaintext_size
        elif whence != os.SEEK_SET:
            raise ValueError(f"whence must be 0, 1 or 2, not {whence}")
        if offset < 0:
            raise OSError(errno.EINVAL, f"cannot seek to {offset}, before the beginning", self.name)
        self.window.position = offset
        return offset

    def seek(self, offset: int, whence: int) -> int:
        self._check_seekable()
        return self._seek(operator.index(offset), whence)

    @_exclusively
    def read(self, size: int) -> bytes:
        return self._read(size)

    @_exclusively
    def read1(self, size: int) -> bytes:
        if size == 0 or not self._ensure_window():
            return b""
        left = self.block_size - self.window.position % self.block_size
        return self._read(left if size < 0 else min(size, left))

    def readinto(self, buffer: Buffer) -> int:
        check_open(self)
        out = flat(buffer)[: self._remaining()]
        try:
            return self._readinto(out)
        except BaseException:
            wipe(out)
            raise

    @_exclusively
    def _readinto(self, out: memoryview) -> int:
        out = out[: self._remaining()]
        self._fill(out)
        return out.nbytes

    @_exclusively
    def readline(self, limit: int) -> bytes:
        parts: list[bytes] = []
        while limit != 0 and self._ensure_window():
            parts.append(self.window.line(limit))
            if parts[-1].endswith(b"\n"):
                break
            if limit > 0:
                limit -= len(parts[-1])
        return b"".join(parts)

    @_exclusively
    def peek(self) -> bytes:
        return self.window.peek() if self._ensure_window() else b""

    def _remaining(self) -> int:
        return max(0, self.plaintext_size - self.window.position)

    def _read(self, size: int) -> bytes:
        left = self._remaining()
        data, out = new_bytes(left if size < 0 else min(size, left))
        self._fill(out)
        return data

    def _fill(self, out: memoryview) -> None:
        """Fill ``out`` from the position on, and move the position. The plaintext must have that
        many bytes."""
        done, position = 0, self.window.position
        while done < out.nbytes:
            rest = out[done:] if done else out
            copied = self.window.copy(position, rest) or self._open_straight(position, rest)
            if not copied:
                self._load(position)
            done += copied
            position += copied
        self.window.position = position

    def _ensure_window(self) -> bool:
        """Make the window hold the position; return False at the end of the file."""
        if not self._remaining():
            return False
        if not self.window.holds(self.window.position):
            self._load(self.window.position)
        return True

    def _open_straight(self, position: int, out: memoryview) -> int:
        """Decrypt whole blocks directly into the caller's memory; return their plaintext size, 0 if
        no whole block is wanted."""
        blocks = self._blocks
        count = blocks.whole_blocks(position, out.nbytes)
        if not count:
            return 0
        first = position // self.block_size
        if blocks.threads > 1:
            # Fewer blocks come sooner from the runs that are read ahead.
            if count < blocks.threads * blocks.most:
                return 0
            self._forget_ahead()
        # One request for more blocks than are wanted now, instead of one for each read.
        elif first == self._next_block and blocks.chunk < blocks.most and count < blocks.most:
            return 0
        size = blocks.geometry.text_size(first, count)
        if count <= blocks.chunk:
            blocks.open_chunk(first, count, out)
        else:
            blocks.fill([(position, out[:size])])
        self._next_block = first + count
        return size

    def _load(self, position: int) -> None:
        """Put the block at ``position`` into the window, and small blocks that follow if the file
        is read sequentially."""
        blocks = self._blocks
        block = position // self.block_size
        onwards = block == self._next_block
        if not onwards:
            self._run, self._start = 1, block
        begun = self._next_block >= 0
        if begun and (not onwards or self.cache.holds(position)) and self._jump(position):
            return
        if blocks.threads > 1 and onwards:
            count, text = self._take_ahead(block)
        else:
            count = self._next_run(block) if onwards else 1
            text = blocks.open_text(block, count)
        size = blocks.geometry.text_size(block, count)
        old = self.window.put(text, block * self.block_size, size)
        if old is not None:
            blocks.give_back(old)
        self._next_block = block + count

    def _jump(self, position: int) -> bool:
        """Keep the plaintext that the reading leaves, and look whether that at ``position`` was
        kept. So reads here and there decrypt a block once, as ``pread`` does."""
        spare = self.window.keep_in(self.cache)
        if spare is not None:
            self._blocks.give_back(spare)
        end = self.window.turn(self.cache, position)
        if end >= 0:
            self._next_block = -(-end // self.block_size)
        return end >= 0

    def _next_run(self, block: int) -> int:
        """Return how many blocks to read at ``block``: twice as many as before."""
        self._run = min(self._run * 2, self._blocks.most)
        return min(self._run, self._blocks.geometry.block_count - block)

    def _take_ahead(self, block: int) -> tuple[int, memoryview]:
        """Return the run that begins at ``block``, and have threads decrypt the next ones. After a
        jump they fetch no more than was read since. Who reads a file from its beginning will
        probably read it whole."""
        blocks, ahead = self._blocks, self._ahead.get()
        if not ahead or ahead[0][0] != block:
            self._forget_ahead()
        queued = ahead[-1][0] + ahead[-1][1] if ahead else block
        limit = blocks.geometry.block_count
        if self._start:
            limit = min(limit, max(block + 1, 2 * block - self._start))
        while len(ahead) <= blocks.threads and queued < limit:
            count = self._next_run(queued)
            ahead.append((queued, count, blocks.open_ahead(queued, count)))
            queued += count
        _, count, job = ahead.popleft()
        return count, job.result()

    def _forget_ahead(self) -> None:
        if (ahead := self._ahead.made()) is not None:
            for _, _, job in ahead:
                job.cancel()
            ahead.clear()

    # -- anywhere

    def pread(self, offset: int, size: int) -> bytes:
        return self.readv([(offset, size)])[0]

    def readv(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        self._check_seekable()
        results: list[bytes] = []
        pieces: list[tuple[int, memoryview]] = []
        for position, size in [self._clip(offset, size) for offset, size in ranges]:
            data, out = new_bytes(size)
            results.append(data)
            if size:
                pieces.append((position, out))
        try:
            self._blocks.fill(pieces)
        except Ags1Error as error:
            error.file = error.file or self.name
            raise
        # If the stream was closed meanwhile, that is the cause, and not the source.
        except (OSError, ValueError):
            check_open(self)
            raise
        return results

    def _check_seekable(self) -> None:
        check_open(self)
        if not self.seekable:
            raise io.UnsupportedOperation("the source of this stream cannot seek: read it in order")

    def _clip(self, offset: int, size: int) -> tuple[int, int]:
        offset, size = operator.index(offset), operator.index(size)
        if offset < 0 or size < 0:
            raise ValueError(f"neither offset {offset} nor size {size} may be negative")
        offset = min(offset, self.plaintext_size)
        return offset, min(size, self.plaintext_size - offset)

    # -- the end

    def close(self) -> None:
        if self.closed:
            return
        lock = self._lock.get()
        lock.check_not_mine()
        with lock:
            if not self.closed:
                self.window.close()
                self._forget_ahead()
                self._blocks.close(wait=True)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Nobody else can hold the lock. This may run in one of our own threads, so do not wait.
        # When the interpreter ends, modules may have lost their names. The system closes the file.
        if not (self.closed or is_finalizing()):
            self.window.close()
            self._blocks.close(wait=False)


def _check_empty(blocks: Blocks) -> None:
    # No read ever needs the one empty block, but its tag shows that the key fits the file.
    if not blocks.geometry.plaintext_size:
        if blocks.geometry.block_count:
            blocks.open_chunk(0, 1, memoryview(bytearray()))
        else:
            blocks.source.check_end()


def _header(source: Source) -> bytes:
    if source.size is not None and source.size < layout.HEADER_SIZE:
        return b""
    scratch = memoryview(bytearray(layout.HEADER_SIZE))
    return bytes(source.fetch(0, layout.HEADER_SIZE, scratch))
