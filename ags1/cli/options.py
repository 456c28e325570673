"""Options that commands of several packages share, and how their values are read."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeAlias

import click

from ..host.descriptors import own_descriptor
from .console import STREAM, Output
from .exits import DeclinedError

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


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


class Pair(click.ParamType):  # type: ignore[type-arg]
    """``NAME=VALUE``. What is wrong is never repeated: it may be a secret. A property ``of_kms``
    has a name with a dot, and its value may be empty."""

    name = "pair"

    def __init__(self, form: str, example: str, *, of_kms: bool = False) -> None:
        self._expected = f"expected {form}, such as {example}."
        self._of_kms = of_kms

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, equals, text = value.partition("=")
        if equals and name and self._of_kms and "." not in name.strip("."):
            self.fail(f"the name of a property has a dot: {self._expected}", param, ctx)
        if not equals or not (name if self._of_kms else name and text):
            self.fail(self._expected, param, ctx)
        return name, text


def _unique(
    ctx: click.Context, param: click.Parameter, given: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    if len(dict(given)) != len(given):
        raise click.BadParameter("a name is given twice: give it once.")
    return dict(given)


def pairs(*names: str, help: str, example: str, form: str = "NAME=VALUE") -> Decorator:
    """Return an option that may be repeated; the command takes its pairs as a dict."""
    return click.option(
        *names, type=Pair(form, example), multiple=True, callback=_unique, metavar=form, help=help
    )


def flag(*names: str, help: str) -> Decorator:
    """Return an option that takes no value."""
    return click.option(*names, is_flag=True, help=help)


# What ``nargs=-1`` gives: the paths that were named.
Paths: TypeAlias = tuple[str, ...]
# click does not check whether a path can be read. The command reports that when it reads the path.
PATH = click.Path(readable=False)


def output_path(help: str, metavar: str, default: str | None = None) -> Decorator:
    """Return the option ``--output``: a path, or ``STREAM`` for any name of standard output."""

    def read(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
        return STREAM if path is not None and own_descriptor(path) == 1 else path

    return click.option(
        "-o", "--output", type=PATH, default=default, callback=read, metavar=metavar, help=help
    )


force = flag("-f", "--force", help="Overwrite files that exist.")
no_fsync = flag(
    "--no-fsync",
    help="Do not wait for the disk. This is faster, but a power failure may lose what was reported "
    "as done.",
)
yes = flag("-y", "--yes", help="Do not ask: the answer is yes.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal whether to go on, unless ``yes`` says so. Raises DeclinedError for a no,
    click.Abort for Ctrl-C, and click.UsageError if there is no terminal to ask on."""
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


def grouped(name: str, kind: Any, *options: Decorator) -> Decorator:
    """Return a decorator that adds ``options`` to a command, which takes them as one object. The
    object is the argument ``name``. ``kind`` is its dataclass: its fields have the names of the
    options' parameters. A field keeps its default if the command does not have its option."""
    parameters = [field.name for field in fields(kind)]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def collecting(*arguments: Any, **given: Any) -> Any:
            values = {key: given.pop(key) for key in parameters if key in given}
            return command(*arguments, **given, **{name: kind(**values)})

        decorated: Callable[..., Any] = collecting
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


_json = flag(
    "--json",
    "as_json",
    help="Print JSON, one object a line: for each result, and for each file that fails.",
)
_quiet = flag("-q", "--quiet", help="Print no progress, notes, warnings or OK lines.")
json_output = grouped("out", Output, _json)
quiet = grouped("out", Output, _quiet)
output = grouped("out", Output, _quiet, _json)
