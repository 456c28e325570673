"""The options that say which table is meant and how it is opened, as the commands share them.

Imports nothing that help doesn't need.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import click

from . import options
from .options import KmsOptions

Command = TypeVar("Command", bound=Callable[..., Any])

_TABLE_HELP = """\
    TABLE is the location of a metadata.json, or a table's folder, or with --catalog the name
    NAMESPACE.TABLE in one of PyIceberg's catalogs. In a folder, the newest metadata is read, and
    its name is printed. Whoever can write a metadata file can change what the table is: --key says
    under which master key it has to be, and --expect-sha256 which version of the metadata it is.
"""

_CHANGING_HELP = """\
    NAME is NAMESPACE.TABLE in the catalog of PyIceberg's that --catalog names. Changes need a
    catalog; a table that is opened by its metadata.json or folder can only be read.
"""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What the command line says of a table and of how it is opened."""

    table: str
    catalog: str | None
    kms: KmsOptions
    key_id: str | None
    metadata_sha256: str | None
    location_map: Mapping[str, str]
    io_properties: Mapping[str, str] = field(repr=False)


class _Pair(click.ParamType):  # type: ignore[type-arg]
    """``NAME=VALUE``. What is wrong is not repeated: it may be a secret."""

    name = "pair"

    def __init__(self, form: str) -> None:
        self._form = form

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, equals, text = value.partition("=")
        if not equals or not name or not text:
            self.fail(f"expected {self._form}.", param, ctx)
        return name, text


def _sha256(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    if text is not None and not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise click.BadParameter("a SHA-256 has 64 hexadecimal digits.")
    return text


def unique(
    ctx: click.Context, param: click.Parameter, pairs: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    """Return pairs as a dict. Raises click.BadParameter for a name that is there twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise click.BadParameter("one name is given twice.")
    return found


TABLE_PROPERTY = _Pair("NAME=VALUE, such as write.parquet.compression-codec=zstd")
IO_PROPERTY = _Pair("NAME=VALUE, such as s3.endpoint=http://host:9000")

_CATALOG = click.option(
    "--catalog",
    metavar="NAME",
    help="The catalog with the table, by its name in PyIceberg's configuration. If the catalog "
    "has an encryption.kms-type, that is used unless --kms is given.",
)
_MAP = click.option(
    "--map",
    "location_map",
    type=_Pair("OLD=NEW, two prefixes of locations"),
    multiple=True,
    callback=unique,
    metavar="OLD=NEW",
    help="Files whose locations in the metadata begin with OLD are at NEW; may be repeated.  "
    "[default for a folder: the table's own location is that folder]",
)
_IO_PROPERTY = click.option(
    "--io-property",
    "io_properties",
    type=IO_PROPERTY,
    multiple=True,
    callback=unique,
    metavar="NAME=VALUE",
    help="A property of PyIceberg's FileIO, such as s3.region=eu-west-1; may be repeated. "
    "Others can see it in the list of processes.",
)
_TABLE_OPTIONS = (
    click.argument("table", metavar="TABLE"),
    _CATALOG,
    options.kms,
    click.option(
        "--key",
        "--expect-key-id",
        "key_id",
        metavar="NAME",
        help="The table's master key; a table under another key, or none, is refused. Needed with "
        "aws and gcp without a catalog, where the name may be that of another user's key.  "
        "[default with those: $AGS1_KMS_KEY, or the configuration's key]",
    ),
    click.option(
        "--expect-sha256",
        "metadata_sha256",
        callback=_sha256,
        metavar="HEX",
        help="Refuse another metadata.json than the one with this SHA-256.",
    ),
    _MAP,
    _IO_PROPERTY,
)


def opening(command: Command) -> Command:
    """Add what says which table is meant; the command takes it as ``where``."""

    @functools.wraps(command)
    def collecting(
        *arguments: Any,
        table: str,
        catalog: str | None,
        kms: KmsOptions,
        key_id: str | None,
        metadata_sha256: str | None,
        location_map: dict[str, str],
        io_properties: dict[str, str],
        **more: Any,
    ) -> Any:
        where = TableOptions(
            table, catalog, kms, key_id, metadata_sha256, location_map, io_properties
        )
        return command(*arguments, where=where, **more)

    decorated: Any = collecting
    for option in reversed(_TABLE_OPTIONS):
        decorated = option(decorated)
    decorated.__doc__ = f"{(command.__doc__ or '').rstrip()}\n\n{_TABLE_HELP}"
    return decorated  # type: ignore[no-any-return]


_EXPECTED_KEY = click.option(
    "--key",
    "--expect-key-id",
    "key_id",
    metavar="NAME",
    help="The table's master key; a table under another key is refused.",
)


def changing(
    *, key: Callable[[Any], Any] = _EXPECTED_KEY, mapped: bool = True
) -> Callable[[Command], Command]:
    """Return what adds the options that say which table of which catalog is changed; the command
    takes them as ``where``. ``key`` is the option for ``key_id``; only a table that is there can be
    ``mapped``."""
    added = [click.argument("table", metavar="NAME"), _CATALOG, options.kms, key]
    added += [_MAP, _IO_PROPERTY] if mapped else [_IO_PROPERTY]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def collecting(
            *arguments: Any,
            table: str,
            catalog: str | None,
            kms: KmsOptions,
            key_id: str | None,
            io_properties: dict[str, str],
            location_map: Mapping[str, str] = MappingProxyType({}),
            **more: Any,
        ) -> Any:
            where = TableOptions(table, catalog, kms, key_id, None, location_map, io_properties)
            return command(*arguments, where=where, **more)

        decorated: Any = collecting
        for option in reversed(added):
            decorated = option(decorated)
        decorated.__doc__ = f"{(command.__doc__ or '').rstrip()}\n\n{_CHANGING_HELP}"
        return decorated  # type: ignore[no-any-return]

    return decorate
