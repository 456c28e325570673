"""Options that commands of several rooms share, and how their values are read."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .console import Output
from .exits import DeclinedError

Command = TypeVar("Command", bound=Callable[..., Any])


def size(
    minimum: int = 1, maximum: int | None = None
) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """Return a callback that reads a number of bytes, with an optional binary unit."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
        if text is None:
            return None
        match = re.fullmatch(r"(\d{1,19})([KMGT]?)(iB|B)?", text, re.IGNORECASE | re.ASCII)
        if match is None:
            raise click.BadParameter(f"{text!r} is not a size such as 4096, 64K or 1MiB.")
        wanted = int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")
        if wanted < minimum:
            raise click.BadParameter(f"{text} is less than {minimum} bytes.")
        if maximum is not None and wanted > maximum:
            raise click.BadParameter(f"{text} is more than {maximum} bytes.")
        return wanted

    return read


# Whether a path can be read is found out, and told, by reading it.
PATH = click.Path(readable=False)

force = click.option("-f", "--force", is_flag=True, help="Overwrite files that exist.")
no_fsync = click.option(
    "--no-fsync",
    is_flag=True,
    help="Do not wait for the disk. This is faster, but a power failure may lose what was reported "
    "as done.",
)
yes = click.option("-y", "--yes", is_flag=True, help="Do not ask: the answer is yes.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal whether to go on, unless ``yes`` says so.

    Raises DeclinedError for a no, click.Abort for Ctrl-C, and click.UsageError if there is no
    terminal to ask on.
    """
    if yes:
        return
    if not _has_terminal():
        raise click.UsageError(f"{question} There is no terminal to ask this on: answer with --yes")
    # Standard output may be a file for the result.
    if not click.confirm(question, err=True):
        raise DeclinedError


def _has_terminal() -> bool:
    """Whether somebody can see a question and answer it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


_json = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON, one object a line: for each result, and for each file that fails.",
)
_quiet = click.option(
    "-q", "--quiet", is_flag=True, help="Print no progress, notes, warnings or OK lines."
)


def _collecting(command: Command, *added: Callable[[Command], Command]) -> Command:
    @functools.wraps(command)
    def collecting(*given: Any, as_json: bool = False, quiet: bool = False, **more: Any) -> Any:
        return command(*given, out=Output(as_json, quiet), **more)

    decorated: Any = collecting
    for option in added:
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def json_output(command: Command) -> Command:
    """Add ``--json``; the command takes it as ``out``."""
    return _collecting(command, _json)


def quiet(command: Command) -> Command:
    """Add ``--quiet``; the command takes it as ``out``."""
    return _collecting(command, _quiet)


def output(command: Command) -> Command:
    """Add ``--quiet`` and ``--json``; the command takes them as ``out``."""
    return _collecting(command, _json, _quiet)
