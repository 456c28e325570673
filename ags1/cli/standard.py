"""Standard input and output as the commands use them: binary, and with errors that name them."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from typing_extensions import Buffer

from .failures import ReaderGoneError

STDIN = "standard input"
STDOUT = "standard output"


def occupy_descriptors() -> None:
    """See that 0, 1 and 2 are open: a file that got one of them would receive our messages."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def binary_input() -> BinaryIO:
    """Return standard input. Raises OSError when it is closed."""
    if sys.stdin is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), STDIN)
    return sys.stdin.buffer


class BinaryOutput(io.RawIOBase):
    """Standard output. Writes all of what it is given; raises ReaderGoneError, or OSError."""

    name = STDOUT

    def __init__(self) -> None:
        if sys.stdout is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), STDOUT)

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        with _named_errors():
            return sys.stdout.buffer.write(data)

    def flush(self) -> None:
        with _named_errors():
            sys.stdout.buffer.flush()


def print_line(text: str) -> None:
    """Write a line to standard output, at once: a reader may be waiting for it."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), STDOUT)
    with _named_errors():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def print_error(text: str) -> None:
    """Write a line to standard error. There is nobody to tell when that fails."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def forget_output() -> None:
    """Let Python's last flush of standard output go nowhere: it has failed already."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ReaderGoneError from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, STDOUT) from error
