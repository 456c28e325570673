"""Options that several commands share, and how their values are read.

Imports nothing that help doesn't need: which KMSs there are is found out when one is named.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from .failures import DeclinedError

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class KmsOptions:
    """What ``--kms``, ``--kms-property`` and ``--keyring`` say."""

    kms_type: str | None = None
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    keyring: str | None = None


class _KmsType(click.ParamType):  # type: ignore[type-arg]
    name = "type"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from ..kms.registry import kms_types

        types = kms_types()
        for known in types:
            if value in (known, known.upper()):
                return known
        self.fail(f"{value!r} is none of {', '.join(types)}.", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        from click.shell_completion import CompletionItem

        from ..kms.registry import kms_types

        return [CompletionItem(known) for known in kms_types() if known.startswith(incomplete)]


class _Property(click.ParamType):  # type: ignore[type-arg]
    """``NAME=VALUE``. What is wrong is never repeated: it may be a secret."""

    name = "property"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, equals, text = value.partition("=")
        if not equals or "." not in name.strip("."):
            self.fail("a property is NAME=VALUE, such as client.region=eu-west-1.", param, ctx)
        return name, text


KMS_TYPE = _KmsType()
PROPERTY = _Property()


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

keyring = click.option(
    "--keyring",
    type=PATH,
    metavar="FILE",
    help="The keyring with the master keys.  [default: $AGS1_KEYRING, or ags1/keyring.json in "
    "$XDG_CONFIG_HOME or ~/.config]",
)
new_passphrase = click.option(
    "--passphrase",
    is_flag=True,
    help="Protect the new keyring by a passphrase: the one in the settings "
    "(kms.local.passphrase-file), or one that is asked for twice.",
)
_kms_type = click.option(
    "--kms",
    "kms_type",
    type=KMS_TYPE,
    metavar="TYPE",
    help="Where the master keys are: local (a keyring), aws, gcp, azure, vault, memory, or what "
    "a plug-in adds.  [default: $AGS1_KMS_TYPE, the configuration's type, or local]",
)
_kms_property = click.option(
    "--kms-property",
    "kms_properties",
    type=PROPERTY,
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of the KMS, such as client.region=eu-west-1; may be repeated. Others can see "
    "it in the list of processes: secrets belong in the environment or the configuration.",
)
trusted_keys = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="NAME",
    help="Accept only keys that are wrapped under this master key; may be repeated. Needed with "
    "aws and gcp, where the name may be that of another user's key.  [default with those: "
    "$AGS1_KMS_KEY, or the configuration's key]",
)
force = click.option("-f", "--force", is_flag=True, help="Overwrite files that exist.")
no_fsync = click.option(
    "--no-fsync",
    is_flag=True,
    help="Don't wait for the disk. Faster; a power failure may lose what was reported as done.",
)
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress bar, no notes, no OK lines.")
as_json = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object a line, one line for each file, failures too.",
)

yes = click.option("-y", "--yes", is_flag=True, help="Answer yes to the question, and don't ask.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal whether to go on, unless ``yes`` says so.

    Raises DeclinedError for a no, click.Abort for Ctrl-C, and click.UsageError if there is no
    terminal to ask on.
    """
    if yes:
        return
    if not _has_terminal():
        raise click.UsageError(f"{question} There is no terminal to ask this on: give --yes")
    # Standard output may be a file for the result.
    if not click.confirm(question, err=True):
        raise DeclinedError


def _has_terminal() -> bool:
    """Whether somebody can see a question and answer it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def kms(command: Command) -> Command:
    """Add ``--kms``, ``--kms-property`` and ``--keyring``; the command takes them as ``kms``."""

    @functools.wraps(command)
    def collecting(
        *arguments: Any,
        kms_type: str | None,
        kms_properties: tuple[tuple[str, str], ...],
        keyring: str | None,
        **options: Any,
    ) -> Any:
        return command(*arguments, kms=KmsOptions(kms_type, kms_properties, keyring), **options)

    decorated: Any = _kms_type(_kms_property(keyring(collecting)))
    return decorated  # type: ignore[no-any-return]
