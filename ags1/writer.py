"""``Writer``: an encrypted file as a file object to write to, on any target.

Small writes gather in the slots that are sealed in place; large ones are sealed from where they
lie. With ``threads`` above one, a bounded number of batches is sealed in the background. Knows
nothing of how keys are wrapped. Counterpart in Java: ``AesGcmOutputStream``.
"""

from __future__ import annotations

import collections
import contextlib
import io
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from . import layout
from ._gcm import BlockCipher
from ._stream import WriteBatch
from .errors import KeyReuseError
from .filelike import CHUNK_SIZE, Lock, Scratch, Stream
from .geometry import check_unused
from .key_metadata import KeyMetadata
from .memory import flat
from .sink import Sink, open_sink

if TYPE_CHECKING:
    from typing_extensions import Buffer


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
        self._sink: Sink | None = None
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        if km is None:
            km = KeyMetadata.generate(key_size)
        else:
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
        self._error: BaseException | None = None
        self._finished: KeyMetadata | None = None
        self._sink = open_sink(file, overwrite=not exclusive, durable=durable)
        self.name = self._sink.name
        self.closed = False
        try:
            self._sink.write(memoryview(layout.build_header(block_size)))
        except BaseException:
            self.abort()
            raise

    @property
    def key_metadata(self) -> KeyMetadata:
        """What opens the file, with its length. Raises ValueError until ``close`` has succeeded."""
        if self._finished is None:
            raise ValueError("there is no key metadata until the stream is closed")
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
        with self._exclusively():
            self._check_open()
            rest = view
            while rest.nbytes:
                if self._threads == 1 and not self.batch_used and rest.nbytes >= self._room:
                    rest = rest[self._write_straight(rest[: self._room]) :]
                else:
                    rest = rest[self.fill_batch(rest) :]
                    if self.batch_full:
                        self._emit()
        return view.nbytes

    @property
    def _room(self) -> int:
        return self._chunk * self._block_size

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        if self.forked:
            raise KeyReuseError(
                "this stream was opened before a fork: its parent writes under the same key",
                file=self.name,
            )
        self._lock.acquire()
        try:
            self.busy = True
            try:
                if self._error is not None:
                    raise self._error.with_traceback(None)
                yield
            except BaseException as error:
                if not self.closed:
                    self._error = error
                    # Small writes would go on filling it, unheard.
                    self.drop_batch()
                raise
            finally:
                self.busy = False
        finally:
            self._lock.release()

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
        assert self._sink is not None
        self._sink.write(data)

    def close(self) -> None:
        """Seal what remains and finish the file.

        When anything fails, nothing is left of a path; a file object given to ``open`` stays open.
        """
        if self.closed:
            return
        try:
            with self._exclusively():
                if not self.position:
                    empty = memoryview(bytearray(layout.BLOCK_OVERHEAD))
                    self._cipher.seal_in_place(empty, 0)
                    self._send(empty)
                if self.batch_used:
                    self._emit()
                self._send_sealed(0)
                length = layout.encrypted_size(self.position, self._block_size)
                assert self._sink is not None
                self._sink.commit()
                self.closed = True
                self._finished = self._km.with_file_length(length)
        finally:
            # After a success there is nothing left to discard.
            self._release(discard=self._finished is None)

    def abort(self) -> None:
        """Give up: close the stream and leave no file. Does nothing once it is closed."""
        if not self.closed:
            self._release(discard=True)

    def _release(self, *, discard: bool) -> None:
        self.closed = True
        if not self.forked:
            self._pool.shutdown(cancel_futures=True)
        self._sealing.clear()
        self.drop_batch()
        # A forked child has no part in what its parent is writing.
        if discard and self._sink is not None and not self.forked:
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
            if not self.forked:
                message = f"unclosed {self!r}: no file is left"
                warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            self.abort()


io.BufferedIOBase.register(Writer)
