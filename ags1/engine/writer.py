"""``Writer``: a file object that encrypts what is written to it. Java: ``AesGcmOutputStream``.

The way of the plaintext through a writer::

    small write --> batch: slots in memory --+-> sealed in place ----------------------+
                                             |                                         v
                                             +-> (threads > 1) sealed by a thread --> send --> sink
                                                                                       ^
    large write (threads = 1) ---------------> whole batch sealed from the caller's ---+
                                               memory into the slots

``FastWriter`` fills the batch in compiled code. ``WriterCore`` does all else. The order of the
blocks in the file is the order of ``_next_block``. When the interpreter ends, open writers are
dropped, and one that hangs in another thread is waited for ``EXIT_WAIT_SECONDS``.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import copy
import io
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import Ags1Error, KeyReuseError
from ..host.atomic import AtomicFile
from ..host.process import Lock
from ..host.threads import Job, Pool, check_threads
from . import layout
from ._buffers import flat
from ._gcm import BlockCipher
from ._writing import FastWriter, WriteBatch, report
from .filelike import CHUNK_SIZE, Scratch, Stream, check_open
from .geometry import check_unused, claim_key
from .key_metadata import KeyMetadata
from .sink import open_sink

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The writers that are not closed. Only single calls of C code change it.
_unclosed: dict[int, WriterCore] = {}
# How long the interpreter's end waits for a write that another thread has begun.
EXIT_WAIT_SECONDS = 5


class Writer(FastWriter, Stream):
    """An encrypted file, open for writing: made by ``open``.

    It is registered as an ``io.BufferedIOBase``. It cannot seek, and its target does not have to. A
    block is written when it is full. ``close`` writes the last block and gives a path its file. No
    file is left if an exception leaves the ``with`` block, if ``abort`` is called, or if the object
    is dropped without ``close``. After an error in writing, every later call raises that error
    again. Raises KeyReuseError in a forked child.

    The parameters are as in ``open``.
    """

    __slots__ = ()

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
        check_threads(threads)
        if km is None:
            km = KeyMetadata.generate(key_size)
        check_unused(km, reuse_key=reuse_key)
        core = WriterCore(file, km, block_size, threads, exclusive=exclusive, durable=durable)
        super().__init__(core)
        core.writer = weakref.ref(self)
        _unclosed[id(core)] = core
        try:
            claim_key(km, reuse_key=reuse_key)
            core.send(memoryview(layout.build_header(block_size)))
        except BaseException:
            self.abort()
            raise

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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


io.BufferedIOBase.register(Writer)


class WriterCore:
    """Encrypts and sends the batches that small writes fill, and large writes (see the drawing
    above)."""

    def __init__(
        self,
        file: Any,
        km: KeyMetadata,
        block_size: int,
        threads: int,
        *,
        exclusive: bool,
        durable: bool,
    ) -> None:
        self.writer: Callable[[], Writer | None] = lambda: None
        self.mode = "xb" if exclusive else "wb"
        self.closed = False
        self.block_size = block_size
        self._km = km
        self._cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=block_size)
        self.batch = WriteBatch()
        slot = self.block_size + layout.BLOCK_OVERHEAD
        self._chunk = max(1, CHUNK_SIZE // slot)
        self._slots = Scratch(self._chunk * slot)
        self._filling = self._slots.take()
        self.batch.begin(self._filling, self.block_size)
        self._next_block = 0
        self._threads = threads
        self._pool: Pool | None = None
        self._sealing: collections.deque[tuple[memoryview, int, Job[int]]] = collections.deque()
        self._lock = Lock()
        self._error: Exception | None = None
        self._aborting = False
        self._finished: KeyMetadata | None = None
        self._sink = open_sink(file, overwrite=not exclusive, durable=durable)
        self.name = self._sink.name

    @property
    def key_metadata(self) -> KeyMetadata:
        if self._finished is None:
            if self.closed:
                raise ValueError("there is no key metadata: the stream was closed without a file")
            raise ValueError(
                "there is no key metadata: the stream is not closed yet, and the file's length is "
                "part of it: close it first"
            )
        return self._finished

    def write(self, data: Buffer) -> int:
        view = flat(data)
        self._check_process()
        self._lock.check_not_mine()
        with self._lock:
            check_open(self)
            self._or_fail(partial(self._write, view))
        return view.nbytes

    def _check_process(self) -> None:
        if self.batch.forked:
            raise KeyReuseError(
                "this stream was opened before a fork, and the parent process still writes with "
                "its key: open another stream in the child",
                file=self.name,
            )

    def _or_fail(self, work: Callable[[], None]) -> None:
        """Call ``work`` under the lock. If it raises, every later call raises that too."""
        if self._error is not None:
            raise copy.copy(self._error)
        self.batch.busy = True
        try:
            work()
        except BaseException as error:
            self._error = _remembered(error)
            # Otherwise small writes would still go there without an error.
            self.batch.drop()
            raise
        finally:
            self.batch.busy = False
            if self._aborting:
                self._finish(discard=self._finished is None)

    def _write(self, rest: memoryview) -> None:
        while rest.nbytes:
            if self._threads == 1 and not self.batch.used and rest.nbytes >= self._room:
                rest = rest[self._write_straight(rest[: self._room]) :]
            else:
                rest = rest[self.batch.fill(rest) :]
                if self.batch.full:
                    self._emit()

    @property
    def _room(self) -> int:
        return self._chunk * self.block_size

    def _write_straight(self, text: memoryview) -> int:
        """Seal a whole batch directly from the caller's memory."""
        size = self._cipher.seal_blocks(text, self._filling, self._next_block)
        self.send(self._filling[:size])
        self._next_block += self._chunk
        self.batch.position += text.nbytes
        return text.nbytes

    def _emit(self) -> None:
        """Seal the current batch and send it. With threads, send earlier ones, and let a thread
        seal this one."""
        slots, used = self._filling, self.batch.used
        first, self._next_block = self._next_block, self._next_block + self._chunk
        if self._threads == 1:
            self._cipher.seal_in_place(slots[:used], first)
            self.send(slots[:used])
            self.batch.restart()
            return
        if self._pool is None:
            self._pool = Pool(self._threads)
        job = self._pool.submit(partial(self._cipher.seal_in_place, slots[:used], first))
        self.batch.restart()
        self._sealing.append((slots, used, job))
        self._send_sealed(self._threads)
        self._filling = self._slots.take()
        self.batch.begin(self._filling, self.block_size)

    def _send_sealed(self, leave: int) -> None:
        while len(self._sealing) > leave:
            slots, used, job = self._sealing.popleft()
            job.result()
            self.send(slots[:used])
            self._slots.give(slots)

    def send(self, data: memoryview) -> None:
        """Write encrypted bytes to the target."""
        if self._aborting:
            raise Ags1Error("the stream was aborted during this write", file=self.name)
        self._sink.write(data)

    def close(self) -> None:
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
                    self._or_fail(self._complete)
                finally:
                    self._finish(discard=self._finished is None)

    def _complete(self) -> None:
        if not self.batch.position:
            empty = memoryview(bytearray(layout.BLOCK_OVERHEAD))
            self._cipher.seal_in_place(empty, 0)
            self.send(empty)
        if self.batch.used:
            self._emit()
        self._send_sealed(0)
        length = layout.encrypted_size(self.batch.position, self.block_size)
        try:
            self._sink.commit()
        finally:
            # If the file has its name, the caller gets its key, even after Ctrl-C.
            if self._sink.published:
                self._finished = self._km.with_file_length(length)

    def abort(self) -> None:
        if self.closed:
            return
        self._aborting = True
        if self.batch.forked:
            self._finish(discard=False)
        elif not self._lock.mine:
            with self._lock:
                if not self.closed:
                    self._finish(discard=True)

    def _finish(self, *, discard: bool) -> None:
        if self.closed:
            return
        self.closed = True
        _unclosed.pop(id(self), None)
        # A forked child has no threads, and must not touch what its parent writes.
        forked = self.batch.forked
        try:
            if self._pool is not None and not forked:
                self._pool.shutdown(wait=True)
        finally:
            self._sealing.clear()
            self.batch.drop()
            if discard and not forked:
                self._sink.discard()

    def drop(self, writer: object) -> None:
        """Abort, because ``writer`` was dropped without ``close``."""
        try:
            self._report(writer)
        finally:
            self.abort()

    def drop_at_exit(self) -> None:
        """Abort, because the interpreter ends, which stops all other threads. A write that hangs in
        another thread is left alone."""
        self._aborting = True
        if self._lock.acquire(timeout=EXIT_WAIT_SECONDS):
            try:
                self._report(self.writer() or self)
            finally:
                self._finish(discard=True)
                self._lock.release()

    def _report(self, writer: Any) -> None:
        """Say what was lost, unless an earlier error has said it. A warning would be hidden: Python
        does not show a ResourceWarning."""
        if self._error is None and not self.batch.forked:
            lost = "nothing was written" if isinstance(self._sink, AtomicFile) else "it is no file"
            report(writer, Ags1Error(f"the writer was not closed: {lost}", file=writer.name))

    def __repr__(self) -> str:
        return f"<ags1 Writer name={self.name!r} mode={self.mode!r}>"


@atexit.register
def _drop_unclosed() -> None:
    for core in list(_unclosed.values()):
        # In a forked child they are the parent's, and a thread of the parent may hold the lock.
        if not core.batch.forked:
            with contextlib.suppress(Exception):
                core.drop_at_exit()


def _remembered(error: BaseException) -> Exception:
    """Return the error for later calls: a copy without frames, which hold buffers."""
    if isinstance(error, Ags1Error):
        return copy.copy(error)
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, error.filename)
    return Ags1Error(
        f"an earlier write to this stream failed with {type(error).__name__}, and no file is left: "
        "open another stream and write the file again from its start"
    )
