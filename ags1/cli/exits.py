"""Exit codes, the help that lists them, and failures as one line with the file and the cause."""

from __future__ import annotations

import enum
import errno
import importlib
import inspect
import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from .. import errors
from ..errors import Ags1Error


class Exit(enum.IntEnum):
    """What the program exits with. ``EXIT_STATUS`` says it in words."""

    OK = 0
    DECLINED = 1
    USAGE = 2
    TRUNCATED = 3
    FORMAT = 4
    KEYS = 5
    IO = 6
    AUTHENTICATION = 7
    ROWS_LEFT = 8
    NO_FILES = 9
    PLAINTEXT = 10
    INTERNAL = 70
    INTERRUPTED = 130
    READER_GONE = 141
    TERMINATED = 143


# The one table of exit statuses: the help of every command ends with it, and the README has it.
EXIT_STATUS = """\
\b
Exit status:
  0    success
  1    a question was answered with no: nothing was changed
  2    wrong usage: of options, names or columns
  3    truncated: the file is shorter than its keys say
  4    not an AGS1 file, malformed, or longer than its keys say
  5    keys: no keyring, master key or sidecar, or one that does not fit;
       the KMS refused, or could not be reached
  6    input or output failed, a file is missing, or other writers kept
       committing to the table first, or changed the same rows
  7    authentication failed: the key is wrong, the data was changed, or
       something is unencrypted that must not be
  8    'ags1 table erase' has erased, but something that it names may still have
       deleted rows
  9    'ags1 spark' found no file to work on (--allow-empty makes this 0)
  10   'ags1 table check' found files that are not encrypted, and nothing worse
  70   internal error: a bug in ags1
  130  interrupted (Ctrl-C)
  141  the reader of the output went away
  143  terminated
  If one of several files fails, the others are still done, unless the KMS
  cannot be used. The exit status is that of the first failure. If a table has
  several errors, it is that of the gravest: 7, then 3, 4, 5, 6, 10.
"""
_EXAMPLES = re.compile(r"\n\nExamples:((?:\n  .+)+)")


class Command(click.Command):
    """A command whose help ends with the examples of its docstring and the exit statuses."""

    def __init__(self, name: str | None, *, help: str | None = None, **more: Any) -> None:
        text, examples = _help_and_examples(help)
        super().__init__(name, help=text, epilog=f"{examples}\n\n{EXIT_STATUS}", **more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            # click does not say which command's option lacks its value.
            error.ctx = error.ctx or ctx
            raise


class Group(click.Group):
    """A group of commands, whose help ends with the examples of its docstring. Without a command,
    it prints its help and exits with ``Exit.USAGE``. ``modules`` names the module of this package
    that has a command. It is imported when the command is needed."""

    command_class = Command

    def __init__(
        self,
        name: str | None,
        *,
        help: str | None = None,
        epilog: str = "",
        modules: Mapping[str, str] = MappingProxyType({}),
        **more: Any,
    ) -> None:
        text, examples = _help_and_examples(help)
        super().__init__(name, help=text, epilog=f"{epilog}\n{examples}", **more)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._modules and cmd_name not in self.commands:
            module = importlib.import_module(self._modules[cmd_name], __package__)
            self.add_command(getattr(module, cmd_name))
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(Exit.USAGE)
        return super().parse_args(ctx, args)


def _help_and_examples(docstring: str | None) -> tuple[str, str]:
    """Return a docstring's help, and its examples such that click does not wrap their lines."""
    text = inspect.cleandoc(docstring or "")
    match = _EXAMPLES.search(text)
    if match is None:
        return text, ""
    return text[: match.start()] + text[match.end() :], f"\b\nExamples:{match[1]}"


class DeclinedError(click.Abort):
    """A question was answered with no. Like click, the program then exits with 1."""


class ReaderGoneError(Exception):
    """The reader of our standard output has closed it."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: clean up as after Ctrl-C."""


# What the work on a file may raise; anything else is a bug in ags1.
EXPECTED = (Ags1Error, OSError, MemoryError)

NO_THREADS = (
    "the system lets this process start no thread: raise the limit of processes (ulimit -u, or "
    "pids of the container)"
)

# The options of the library's parameters, where they do not have the same name.
_OPTIONS = {
    "prefix_mismatch_mode": "--prefix-mismatch",
    "selected_fields": "--columns",
    "trusted_key_ids": "--key",
}


class Failure(NamedTuple):
    """A failure as it is shown and counted."""

    exit_code: Exit
    message: str
    kind: str
    file: str | None = None
    block: int | None = None
    offset: int | None = None


def describe(error: BaseException, file: str | None = None) -> Failure:
    """Return how to show ``error``, one of ``EXPECTED``, raised by the work on ``file``."""
    kind = type(error).__name__
    if isinstance(error, Ags1Error):
        about = error.file or file
        message = with_option(error.message, error)
        message = message if about is None else f"{about}: {message}"
        code = next((code for known, code in _CODES if isinstance(error, known)), Exit.IO)
        return Failure(code, message, kind, about, error.block, error.offset)
    if isinstance(error, MemoryError):
        cause = "not enough memory"
    elif isinstance(error, OSError):
        cause = error.strerror or str(error)
        if isinstance(error, FileExistsError) and cause == os.strerror(errno.EEXIST):
            cause = "exists already (--force overwrites it)"
        if isinstance(error.filename, (str, bytes)):
            file = os.fsdecode(error.filename)
    else:
        raise TypeError(f"{kind} is not an expected failure")
    return Failure(Exit.IO, cause if file is None else f"{file}: {cause}", kind, file)


# The first class in this list that an error belongs to gives its exit code.
_CODES = (
    (errors.AuthenticationError, Exit.AUTHENTICATION),
    (errors.MetadataIntegrityError, Exit.AUTHENTICATION),  # the catalog contradicts it
    (errors.TruncatedError, Exit.TRUNCATED),
    (errors.UnsupportedTypeError, Exit.USAGE),
    (errors.ArgumentError, Exit.USAGE),
    (errors.FormatError, Exit.FORMAT),
    (errors.KeyMetadataError, Exit.KEYS),
    (errors.KeyReuseError, Exit.KEYS),
    (errors.KmsError, Exit.KEYS),
    (errors.MissingFileLengthError, Exit.KEYS),
)


def is_thread_limit(error: BaseException) -> bool:
    """Whether Python could not start a thread. It has no exception of its own for that."""
    return type(error) is RuntimeError and "can't start new thread" in str(error)


def with_option(message: str, error: BaseException) -> str:
    """Return a message of ``error`` with the option for the library's parameter that the error is
    about, if the command has it."""
    parameter = getattr(error, "parameter", None)
    context = click.get_current_context(silent=True)
    if parameter is None or context is None:
        return message
    option = _OPTIONS.get(parameter, f"--{parameter.removesuffix('_bytes').replace('_', '-')}")
    if not any(option in known.opts for known in context.command.params):
        return message
    return f"{message} (see {option})"


def one_line(text: str) -> str:
    """Return ``text`` with everything that would not print as itself escaped. File names and names
    from sidecars may hold newlines or a terminal's control sequences."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
