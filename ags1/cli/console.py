"""Standard input and output as the commands use them: binary, and with errors that name them."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import stat
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import click

from ..host.descriptors import STDOUT as STDOUT
from ..host.descriptors import forget_output as forget_output
from ..host.descriptors import open_stream
from .exits import Exit, ReaderGoneError, one_line

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Stands for standard input or output.
STREAM = "-"
STDIN = "standard input"
# In click's ``Context.meta``: a message could not be written.
LOST_MESSAGE = "ags1.lost_message"


def occupy_descriptors() -> None:
    """Open 0, 1 and 2 if they are closed: a file with such a number would get our messages."""
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
    """Standard output, or the stream of another name. Writes all that it is given; raises
    ReaderGoneError, or OSError. Its users flush it, and do not close it."""

    def __init__(self, name: str = STREAM, *, overwrite: bool = False) -> None:
        self.name = STDOUT if name == STREAM else name
        self._file: BinaryIO = (
            _standard_output().buffer if name == STREAM else open_stream(name, overwrite=overwrite)
        )

    def refuse_source(self, source: str) -> None:
        """Raise OSError if the file ``source``, or standard input, is what is written to: a command
        that reads what it has just written damages the file, or never ends."""
        with contextlib.suppress(io.UnsupportedOperation):  # of a file without a descriptor
            read = os.stat(binary_input().fileno() if source == STREAM else source)
            if stat.S_ISREG(read.st_mode) and os.path.samestat(read, os.stat(self._file.fileno())):
                message = f"this and {self.name} are the same file: write to another one"
                raise OSError(errno.EINVAL, message, STDIN if source == STREAM else source)

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        with _reader_gone():
            return self._file.write(data)

    def flush(self) -> None:
        with _reader_gone():
            self._file.flush()


def _standard_output() -> TextIO:
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), STDOUT)
    return sys.stdout


def print_line(text: str) -> None:
    """Write a line to standard output, at once: a reader may be waiting for it."""
    out = _standard_output()
    with _reader_gone():
        out.write(text + "\n")
        out.flush()


def counted(number: int, name: str) -> str:
    """Return ``1 file``, ``2,000 files``."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """Return a number of bytes in the largest binary unit that gives it a whole part."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1024 and len(units) > 1:
        number /= 1024
        units.pop(0)
    return f"{number:.0f} bytes" if units[0] == "bytes" else f"{number:.1f} {units[0]}"


def print_json(facts: Mapping[str, Any]) -> None:
    """Write an object of JSON as a line to standard output."""
    print_line(json.dumps(facts))


def print_error(text: str) -> None:
    """Write a line with the program's name to standard error."""
    context = click.get_current_context(silent=True)
    if not write_error(f"ags1: {one_line(text)}\n") and context is not None:
        context.meta[LOST_MESSAGE] = True


def write_error(text: str) -> bool:
    """Write to standard error; return False if the text is lost. If standard error is closed, or
    its reader has gone, nobody waits for the text, so that is no loss."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except AttributeError:
        pass
    except (OSError, ValueError) as error:
        forget_output(sys.stderr)
        return isinstance(error, BrokenPipeError)
    return True


@dataclass(frozen=True, slots=True)
class Output:
    """What ``--json`` and ``--quiet`` say of a command's output."""

    as_json: bool = False
    quiet: bool = False

    def result(
        self, facts: Mapping[str, Any], line: str | None = None, code: Exit = Exit.OK
    ) -> None:
        """Print a result: as JSON, or as ``line`` if there is one and nobody asked for silence.
        ``code`` is what the command exits with. If that is not OK, JSON has it."""
        if self.as_json:
            failed = {} if code == Exit.OK else {"exit_code": int(code)}
            print_json({**facts, "ok": code == Exit.OK, **failed})
        elif line is not None and not self.quiet:
            print_line(one_line(line))

    def note(self, text: str) -> None:
        """Print what is neither a result nor a failure on standard error; nothing for JSON."""
        if not self.as_json and not self.quiet:
            print_error(text)


class _LogLines(logging.Handler):
    """Prints what the library logs, one line for each message."""

    def emit(self, record: logging.LogRecord) -> None:
        kind = "warning: " if record.levelno >= logging.WARNING else ""
        print_error(f"{kind}{record.getMessage()}")


@contextlib.contextmanager
def log_as_lines(name: str) -> Iterator[None]:
    """Print also what a logger of the library says at the level INFO: in a log it takes the place
    of a progress bar."""
    logger, handler = logging.getLogger(name), _LogLines()
    handler.addFilter(lambda record: record.levelno < logging.WARNING)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


@contextlib.contextmanager
def warnings_as_lines(*, quiet: bool) -> Iterator[None]:
    """Print the library's warnings and what it logs as lines on standard error, without a place in
    the code; nothing with ``quiet``."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **_named: Any) -> None:
        if not quiet and issubclass(category, UserWarning):
            print_error(f"warning: {message}")

    handler = logging.NullHandler() if quiet else _LogLines(logging.WARNING)
    logger = logging.getLogger("ags1")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def _reader_gone() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ReaderGoneError from None
