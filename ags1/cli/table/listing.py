"""The command ``ags1 table list``: the tables of a catalog, and which of them are encrypted."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from ...errors import Ags1Error
from ..console import Output, print_error, warnings_as_lines
from ..exits import Command, Exit, describe
from ..kms.options import KmsOptions
from ..options import output
from . import options
from .failures import failures
from .opening import NamedCatalog, NoKms
from .options import TableOptions

if TYPE_CHECKING:
    from ...iceberg.command_line import EncryptedCatalog


@dataclass(frozen=True, slots=True)
class _Listed:
    """A table, and the master key that its metadata names."""

    table: str
    encrypted: bool
    key_id: str | None


@click.command("list", cls=Command, short_help="List a catalog's tables and their master keys.")
@click.argument("namespace", metavar="[NAMESPACE]", required=False)
@options.catalog
@options.io_property
@output
def list_(
    namespace: str | None, catalog: str | None, io_properties: Mapping[str, str], out: Output
) -> int:
    """List the tables of a catalog: which are encrypted, and under which master key.

    With NAMESPACE, only the tables in it and below it are listed. This needs no key. If the
    metadata of a table cannot be read, the others are still listed, and the exit status says so.

    Examples:
      ags1 table list --catalog prod
      ags1 table list db --json | jq -r 'select(.encrypted | not) | .table'
    """
    catalog = catalog or options.default_catalog()
    if catalog is None:
        raise click.UsageError("no catalog is named: name it with --catalog or AGS1_CATALOG")
    with failures(catalog):
        table_options = TableOptions(
            f"{catalog}.a.table", catalog, KmsOptions(), None, io_properties
        )
        opened = NamedCatalog(table_options, without=NoKms()).catalog
        start = None if namespace is None else tuple(namespace.split("."))
        names = list(_tables(opened, start))
    code = Exit.OK
    for name in names:
        try:
            with warnings_as_lines(quiet=out.quiet), failures(name):
                found = _listed(opened, name)
        except (Ags1Error, OSError, click.UsageError) as error:
            failure = describe(error) if not isinstance(error, click.UsageError) else None
            code = code or (Exit.USAGE if failure is None else failure.exit_code)
            message = str(error) if failure is None else failure.message
            print_error(message if message.startswith(name) else f"{name}: {message}")
            continue
        state = f"encrypted under {found.key_id}" if found.encrypted else "plaintext"
        out.result(asdict(found), f"{name}  {state}")
    return code


def _tables(catalog: EncryptedCatalog, namespace: tuple[str, ...] | None) -> Iterator[str]:
    if namespace is not None:
        for name in sorted(catalog.list_tables(namespace)):
            yield ".".join(name)
    for inner in sorted(catalog.list_namespaces(namespace or ())):
        if inner != namespace:
            yield from _tables(catalog, tuple(inner))


def _listed(catalog: EncryptedCatalog, name: str) -> _Listed:
    from ...iceberg.command_line import EncryptedTable, PlainTableWarning

    with warnings.catch_warnings():
        # The line of the table says it.
        warnings.simplefilter("ignore", PlainTableWarning)
        table = catalog.load_table(name)
    key_id = table.key_id if isinstance(table, EncryptedTable) else None
    return _Listed(name, isinstance(table, EncryptedTable), key_id)
