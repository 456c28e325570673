"""The options that several commands on tables share: which table, how it is opened and changed."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import click

from ..console import STDOUT, print_error, print_json, warnings_as_lines
from ..exits import EXPECTED, Exit, describe
from ..kms.options import KmsOptions
from ..kms.options import kms as kms_options
from ..options import Decorator, flag, grouped, pairs
from ..report import describe_failure
from .failures import failures

_TABLE_HELP = """\
    TABLE is the location of a metadata.json or of a table's folder, or with --catalog the name
    NAMESPACE.TABLE in one of PyIceberg's catalogs. In a folder, the newest metadata file is read,
    and its name is printed. Whoever can write a metadata file can replace the table. To
    prevent this, give the table's master key with --key, or the metadata file's hash with
    --expect-sha256.
"""

_CHANGING_HELP = """\
    NAME is NAMESPACE.TABLE in the catalog that --catalog names in PyIceberg's configuration.
    Changes need a catalog; a table that is opened by its metadata.json or folder can only be read.
"""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What the command line says of a table and of how it is opened."""

    table: str
    catalog: str | None
    kms: KmsOptions
    key_id: str | None
    io_properties: Mapping[str, str] = field(repr=False)
    metadata_sha256: str | None = None
    location_map: Mapping[str, str] = field(default_factory=dict)


def _sha256(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    if text is not None and not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise click.BadParameter("a SHA-256 has 64 hexadecimal digits.")
    return text


_METADATA_ENDS = (".metadata.json", ".metadata.json.gz")
IO_EXAMPLE = "s3.endpoint=http://host:9000"
catalog = click.option(
    "--catalog",
    metavar="NAME",
    envvar="AGS1_CATALOG",
    help="The catalog of the table, by its name in PyIceberg's configuration. If the catalog has "
    "an encryption.kms-type, that KMS is used unless --kms is given.  [default: $AGS1_CATALOG; for "
    "NAMESPACE.TABLE also the catalog 'default' of the configuration, or the only one]",
)
_MAP = pairs(
    "--map",
    "location_map",
    form="OLD=NEW",
    example="s3://old/table=/copy/table",
    help="Read files whose locations in the metadata begin with OLD from NEW; may be repeated.  "
    "[default for a folder: the table's location is that folder]",
)
io_property = pairs(
    "--io-property",
    "io_properties",
    example=IO_EXAMPLE,
    help="A property of PyIceberg's FileIO, such as s3.region=eu-west-1; may be repeated. "
    "Other users can see it in the list of processes.",
)
_TABLE_OPTIONS = (
    click.argument("table", metavar="TABLE"),
    catalog,
    kms_options,
    click.option(
        "--key",
        "--expect-key-id",
        "key_id",
        metavar="NAME",
        help="The table's master key; a table under another key, or under none, is refused. "
        "Without a catalog, aws and gcp need it, because with them the key may be another user's.  "
        "[default with those: $AGS1_KMS_KEY, or the configuration's key]",
    ),
    click.option(
        "--expect-sha256",
        "metadata_sha256",
        callback=_sha256,
        metavar="HEX",
        help="Refuse the metadata.json unless it has this SHA-256.",
    ),
    _MAP,
    io_property,
)


def _with_catalog(table_options: TableOptions) -> TableOptions:
    """Return the options with a catalog for a table's name: 'default', or the only one."""
    is_name = re.fullmatch(r"[^/:\\]+\.[^/:\\]+", table_options.table)
    if (
        table_options.catalog is not None
        or not is_name
        or table_options.table.endswith(_METADATA_ENDS)
    ):
        return table_options
    if os.path.exists(table_options.table):
        return table_options
    if (catalog := default_catalog()) is None:
        raise click.UsageError(
            f"{table_options.table}: there is no such folder. If it is a table in a catalog, name "
            "the catalog with --catalog or AGS1_CATALOG"
        )
    return replace(table_options, catalog=catalog)


def default_catalog() -> str | None:
    """Return the catalog 'default' of PyIceberg's configuration, or the only one there; None if
    there are others or none."""
    from ...iceberg.command_line import configured_catalogs

    names = configured_catalogs()
    return "default" if "default" in names else names[0] if len(names) == 1 else None


def _reporting(command: Callable[..., int | None]) -> Callable[..., int]:
    """Report failures of work on the table, with --json also as JSON, and return the exit code.
    ``@output`` stands below this decorator, so ``quiet`` and ``as_json`` are arguments here."""

    @functools.wraps(command)
    def guarded(*, table_options: TableOptions, **more: Any) -> int:
        try:
            with warnings_as_lines(quiet=bool(more.get("quiet"))), failures(table_options.table):
                return command(table_options=_with_catalog(table_options), **more) or Exit.OK
        except EXPECTED as error:
            failure = describe(error, table_options.table)
            if failure.file == STDOUT:
                raise
            print_error(failure.message)
            if more.get("as_json"):
                code = int(failure.exit_code)
                print_json({"ok": False, "exit_code": code, "error": describe_failure(failure)})
            return failure.exit_code

    return guarded


def _table_options(text: str, *options: Decorator) -> Decorator:
    """Return a decorator that adds ``options`` to a command, and ``text`` to its help. The command
    takes them as ``table_options``, and its failures are reported."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command.__doc__ = f"{command.__doc__}\n\n{text}"
        return grouped("table_options", TableOptions, *options)(_reporting(command))

    return decorate


opening = _table_options(_TABLE_HELP, *_TABLE_OPTIONS)
_EXPECTED_KEY = click.option(
    "--key",
    "--expect-key-id",
    "key_id",
    metavar="NAME",
    help="The table's master key; a table under another key is refused.",
)


def changing(*, key: Decorator = _EXPECTED_KEY, mapped: bool = True) -> Decorator:
    """Return what adds the options that say which table of which catalog is changed. ``key`` is the
    option for ``key_id``. ``mapped``: whether its files may be read from other locations."""
    name = click.argument("table", metavar="NAME")
    map_ = (_MAP,) if mapped else ()
    return _table_options(_CHANGING_HELP, name, catalog, kms_options, key, *map_, io_property)


threads = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Worker threads.  [default: one for each CPU, more over a network]",
)
file_filter = click.option(
    "--filter",
    "row_filter",
    metavar="EXPR",
    help="Rewrite only data files that may have such rows, in PyIceberg's syntax.  "
    "[default: all files]",
)
branch = click.option(
    "--branch", default="main", metavar="NAME", help="Change this branch.  [default: main]"
)
data_key_length = click.option(
    "--data-key-length",
    type=click.Choice(["16", "24", "32"]),
    default="16",
    help="Size of the data files' keys in bytes.  [default: 16]",
)
require_encrypted = flag(
    "--require-encrypted", help="Refuse unencrypted data files. The format allows them."
)


def dry_run(text: str) -> Decorator:
    """Return what adds ``--dry-run``; ``text`` is its help."""
    return flag("--dry-run", help=text)
