"""Exit codes, and every failure as one line that names the file and the cause."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass

from ..errors import (
    Ags1Error,
    AuthenticationError,
    FormatError,
    KeyMetadataError,
    KeyReuseError,
    KmsError,
    MissingFileLengthError,
    TruncatedError,
)


class Exit(enum.IntEnum):
    """What the program exits with. ``EXIT_STATUS`` is the same in words."""

    OK = 0
    USAGE = 1
    AUTHENTICATION = 2
    TRUNCATED = 3
    FORMAT = 4
    KEYS = 5
    IO = 6
    INTERNAL = 70
    INTERRUPTED = 130
    READER_GONE = 141
    TERMINATED = 143


EXIT_STATUS = """\
\b
Exit status:
  0    success
  1    wrong usage
  2    authentication failed: wrong key, or the data was changed
  3    truncated: the file is shorter than its keys say
  4    not an AGS1 file, malformed, or longer than its keys say
  5    keys: no keyring, master key or sidecar, or one that doesn't fit
  6    input or output failed
  130  interrupted (141: the reader of the output went away, 143: terminated)
  With several files, a failure doesn't stop the others; the exit status is
  the first failure's.
"""


class ReaderGoneError(Exception):
    """Whoever read our standard output has closed it."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: clean up as after Ctrl-C."""


# What one file's work may raise; anything else is a mistake of ours.
EXPECTED = (Ags1Error, OSError, MemoryError)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as it is shown and counted."""

    exit_code: Exit
    message: str
    kind: str
    file: str | None = None
    block: int | None = None
    offset: int | None = None


def describe(error: BaseException, file: str | None = None) -> Failure:
    """Return how to show ``error``, one of ``EXPECTED``, which came up over ``file``."""
    kind = type(error).__name__
    if isinstance(error, Ags1Error):
        about = error.file or file
        message = error.message if about is None else f"{about}: {error.message}"
        return Failure(_exit_code(error), message, kind, about, error.block, error.offset)
    if isinstance(error, MemoryError):
        cause = "not enough memory"
    elif isinstance(error, OSError):
        cause = error.strerror or str(error)
        if isinstance(error, FileExistsError):
            cause = "exists already (--force overwrites)"
        if isinstance(error.filename, (str, bytes)):
            file = os.fsdecode(error.filename)
    else:
        raise TypeError(f"{kind} is not an expected failure")
    return Failure(Exit.IO, cause if file is None else f"{file}: {cause}", kind, file)


def _exit_code(error: Ags1Error) -> Exit:
    if isinstance(error, AuthenticationError):
        return Exit.AUTHENTICATION
    if isinstance(error, TruncatedError):
        return Exit.TRUNCATED
    if isinstance(error, FormatError):
        return Exit.FORMAT
    if isinstance(error, (KeyMetadataError, KeyReuseError, KmsError, MissingFileLengthError)):
        return Exit.KEYS
    return Exit.IO


def one_line(text: str) -> str:
    """Return ``text`` with everything that would not print as itself escaped.

    File names and names from sidecars may hold newlines or a terminal's control sequences.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
