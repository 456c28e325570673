"""``Writer``: an encrypted file as a file object to write to, on any target.

Small writes gather in the slots that are sealed in place; large ones are sealed from where they
lie. With ``threads`` above one, a bounded number of batches is sealed in the background. Knows
nothing of how keys are wrapped. Counterpart in Java: ``AesGcmOutputStream``.
"""

from __future__ import annotations

import collections
import copy
import io
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec

from . import layout
from ._buffers import flat
from ._gcm import BlockCipher
from ._stream import WriteBatch
from .errors import Ags1Error, KeyReuseError
from .filelike import CHUNK_SIZE, Lock, Scratch, Stream
from .geometry import check_unused, claim_key
from .key_metadata import KeyMetadata
from .sink import open_sink

if TYPE_CHECKING:
    from typing_extensions import Buffer

_P = ParamSpec("_P")


class Writer(WriteBatch, Stream):
    """An encrypted file, open for writing: made by ``open``.

    An ``io.BufferedIOBase`` (registered), not seekable, whose target need not be either. Blocks
    leave as they fill; ``close`` seals the last one and gives a path its name. Leaving ``with`` by
    an exception, ``abort``, or dropping the object unclosed leaves no file. An error in writing is
    remembered: every later call raises it again. Raises KeyReuseError in a forked child.
    """

    def __init__(
        self,
        file: Any,
        km: KeyMetadata | None = None,
        *,
        key_size: int = 32,
        block_size: int = layout.DEFAULT_BLOCK_SIZE,
        threads: int = 1,
        reuse_key: bool = False,
        durable: bool = True,
        exclusive: bool = False,
    ) -> None:
        self.closed = True
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        if km is None:
            km = KeyMetadata.generate(key_size)
        check_unused(km, reuse_key=reuse_key)
        self.mode = "xb" if exclusive else "wb"
        self._block_size = block_size
        self._km = km
        self._cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=block_size)
        slot = block_size + layout.BLOCK_OVERHEAD
        self._chunk = max(1, CHUNK_SIZE // slot)
        self._slots = Scratch(self._chunk * slot)
        self._batch = self._slots.take()
        self.set_batch(self._batch, block_size)
        self._next_block = 0
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "ags1-writer")
        self._sealing: collections.deque[tuple[memoryview, int, Future[int]]] = collections.deque()
        self._lock = Lock()
        self._error: Exception | None = None
        self._aborting = False
        self._finished: KeyMetadata | None = None
        self._sink = open_sink(file, overwrite=not exclusive, durable=durable)
        self.name = self._sink.name
        self.closed = False
        try:
            claim_key(km, reuse_key=reuse_key)
            self._sink.write(memoryview(layout.build_header(block_size)))
        except BaseException:
            self.abort()
            raise

    @property
    def key_metadata(self) -> KeyMetadata:
        """What opens the file, with its length. Raises ValueError until ``close`` has succeeded."""
        if self._finished is None:
            why = "closed without a file" if self.closed else "the stream is not closed yet"
            raise ValueError(f"there is no key metadata: {why}")
        return self._finished

    @property
    def block_size(self) -> int:
        """The plaintext bytes of a full block."""
        return self._block_size

    def writable(self) -> bool:
        self._check_open()
        return True

    def tell(self) -> int:
        """Return the number of plaintext bytes written."""
        self._check_open()
        return self.position

    def seek(self, offset: int, whence: int = 0, /) -> int:
        raise io.UnsupportedOperation("seek: an encrypted stream is written from start to end")

    def _unreadable(self, *arguments: object) -> NoReturn:
        raise io.UnsupportedOperation("the stream is open for writing")

    read = read1 = readinto = readinto1 = readline = readlines = peek = _unreadable
    __iter__ = __next__ = _unreadable

    def writelines(self, lines: Iterable[Buffer], /) -> None:
        """Write each of ``lines``."""
        for line in lines:
            self.write(line)

    def _write_slow(self, data: Buffer) -> int:
        view = flat(data)
        self._serially(self._write, view)
        return view.nbytes

    def _serially(
        self, work: Callable[_P, None], /, *arguments: _P.args, **named: _P.kwargs
    ) -> None:
        """Call ``work`` while no other thread uses the stream."""
        self._check_process()
        self._lock.check_not_mine()
        with self._lock:
            self._check_open()
            self._for_good(work, *arguments, **named)

    def _check_process(self) -> None:
        if self.forked:
            raise KeyReuseError(
                "this stream was opened before a fork: its parent writes under the same key",
                file=self.name,
            )

    def _for_good(
        self, work: Callable[_P, None], /, *arguments: _P.args, **named: _P.kwargs
    ) -> None:
        """Call ``work``, holding the lock. Whatever it raises is the end of the stream."""
        if self._error is not None:
            raise copy.copy(self._error)
        self.busy = True
        try:
            work(*arguments, **named)
        except BaseException as error:
            self._error = _remembered(error)
            # Small writes would go on filling it, unheard.
            self.drop_batch()
            raise
        finally:
            self.busy = False
            if self._aborting:
                self._finish(discard=self._finished is None)

    def _write(self, rest: memoryview) -> None:
        while rest.nbytes:
            if self._threads == 1 and not self.batch_used and rest.nbytes >= self._room:
                rest = rest[self._write_straight(rest[: self._room]) :]
            else:
                rest = rest[self.fill_batch(rest) :]
                if self.batch_full:
                    self._emit()

    @property
    def _room(self) -> int:
        return self._chunk * self._block_size

    def _write_straight(self, text: memoryview) -> int:
        """Seal a whole batch from where the caller's data lies."""
        size = self._cipher.seal_blocks(text, self._batch, self._next_block)
        self._send(self._batch[:size])
        self._next_block += self._chunk
        self.position += text.nbytes
        return text.nbytes

    def _emit(self) -> None:
        """Seal the batch under way and send it; with threads, send what was sealed before."""
        batch, used = self._batch, self.batch_used
        first, self._next_block = self._next_block, self._next_block + self._chunk
        if self._threads == 1:
            self._cipher.seal_in_place(batch[:used], first)
            self._send(batch[:used])
            self.restart_batch()
            return
        job = self._pool.submit(self._cipher.seal_in_place, batch[:used], first)
        self.restart_batch()
        self._sealing.append((batch, used, job))
        self._send_sealed(self._threads)
        self._batch = self._slots.take()
        self.set_batch(self._batch, self._block_size)

    def _send_sealed(self, leave: int) -> None:
        while len(self._sealing) > leave:
            batch, used, job = self._sealing.popleft()
            job.result()
            self._send(batch[:used])
            self._slots.give(batch)

    def _send(self, data: memoryview) -> None:
        if self._aborting:
            raise Ags1Error("the stream was aborted", file=self.name)
        self._sink.write(data)

    def close(self) -> None:
        """Seal what remains and finish the file.

        When anything fails, nothing is left of a path; a file object given to ``open`` stays open.
        """
        if self.closed:
            return
        try:
            self._check_process()
        except KeyReuseError:
            self._finish(discard=False)
            raise
        self._lock.check_not_mine()
        with self._lock:
            # Another thread may have closed it while we waited.
            if not self.closed:
                try:
                    self._for_good(self._complete)
                finally:
                    self._finish(discard=self._finished is None)

    def _complete(self) -> None:
        if not self.position:
            empty = memoryview(bytearray(layout.BLOCK_OVERHEAD))
            self._cipher.seal_in_place(empty, 0)
            self._send(empty)
        if self.batch_used:
            self._emit()
        self._send_sealed(0)
        length = layout.encrypted_size(self.position, self._block_size)
        try:
            self._sink.commit()
        finally:
            # A file that is there has a key, even if Ctrl-C came right after.
            if self._sink.published:
                self._finished = self._km.with_file_length(length)

    def abort(self) -> None:
        """Give up: close the stream and leave no file. Does nothing once it is closed.

        A write that is under way in another thread, or further up in this one, fails.
        """
        if self.closed:
            return
        self._aborting = True
        if self.forked:
            self._finish(discard=False)
        elif not self._lock.mine:
            with self._lock:
                if not self.closed:
                    self._finish(discard=True)

    def _finish(self, *, discard: bool) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            # A forked child has neither the threads nor a part in what its parent writes.
            if not self.forked:
                self._pool.shutdown(cancel_futures=True)
        finally:
            self._sealing.clear()
            self.drop_batch()
            if discard and not self.forked:
                self._sink.discard()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if not self.closed:
            try:
                if not self.forked:
                    message = f"unclosed {self!r}: no file is left"
                    warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            finally:
                self.abort()


def _remembered(error: BaseException) -> Exception:
    """Return what later calls raise: the same, without the frames and the buffers in them."""
    if isinstance(error, Ags1Error):
        return copy.copy(error)
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, error.filename)
    return Ags1Error(f"the stream failed before ({type(error).__name__}); no file is left")


io.BufferedIOBase.register(Writer)
