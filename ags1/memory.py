"""Views of callers' buffers, and threads that fill them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, wait
from typing import TYPE_CHECKING

from ._gcm import FlatBuffer

if TYPE_CHECKING:
    from typing_extensions import Buffer


def flat(buffer: Buffer) -> memoryview:
    """Return the bytes of any C-contiguous buffer as a one-dimensional view."""
    view = memoryview(buffer)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    return memoryview(FlatBuffer(buffer))


def is_private(view: memoryview) -> bool:
    """Whether nobody outside this process can change the memory while it is read.

    OpenSSL may read ciphertext twice, to verify and to decrypt: shared memory (a mapped file, say)
    could be one thing the first time and another the second.
    """
    return type(view.obj) in (bytes, bytearray)


def wipe(view: memoryview) -> None:
    """Zero a view, a piece at a time rather than by a second buffer of its size."""
    zeros = bytes(min(view.nbytes, 1 << 20))
    for begin in range(0, view.nbytes, 1 << 20):
        piece = view[begin : begin + len(zeros)]
        piece[:] = zeros[: piece.nbytes]


def run_all(pool: Executor, work: Callable[[int], object], arguments: Iterable[int]) -> None:
    """Call ``work`` with each argument in the pool; return, or raise the first one's error, when
    all have ended.

    They write to memory that belongs to our caller again as soon as we return, so nothing, Ctrl-C
    included, makes us leave before.
    """
    jobs: list[Future[object]] = []
    interrupt: BaseException | None = None
    try:
        for argument in arguments:
            jobs.append(pool.submit(work, argument))
        wait(jobs)
    except BaseException as error:
        interrupt = error
    while True:
        try:
            if interrupt is not None:
                for job in jobs:
                    job.cancel()
            wait(jobs)
            break
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    for job in jobs:
        job.result()
