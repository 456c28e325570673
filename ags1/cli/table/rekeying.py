"""What ``ags1 table rekey`` and ``ags1 spark rekey`` share: their options, and what they print.
Independent of where the files are rewritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..console import Output
from ..options import grouped
from ..report import progress_line
from ..results import BranchResult
from . import options
from .catalogs import ChangedCatalog
from .filters import parsed_filter
from .options import TableOptions

if TYPE_CHECKING:
    from ...iceberg.command_line import Rekeyed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rekeyed(BranchResult):
    done: Rekeyed
    PARTS: ClassVar = (
        "{files:file} of {size:byte} rewritten under fresh keys",
        "{manifests:plaintext manifest} encrypted",
    )


@dataclass(frozen=True, slots=True)
class RekeyingOptions:
    """Which files of which branch get fresh keys."""

    row_filter: str | None
    branch: str
    dry_run: bool


asking = grouped(
    "asked",
    RekeyingOptions,
    options.file_filter,
    options.branch,
    options.dry_run("Print what would be rewritten."),
)


def rekey_and_report(
    table_options: TableOptions, asked: RekeyingOptions, rekey: Callable[..., Rekeyed], out: Output
) -> None:
    """Have files rewritten under fresh keys and print what was done. ``rekey`` gets the table, the
    filter and, by name, the arguments that all rekeyings take."""
    table = ChangedCatalog(table_options).load()
    name = ".".join(table.name())
    files = parsed_filter(table.schema(), asked.row_filter, "--filter")
    with progress_line(name, out) as progress:
        done = rekey(table, files, branch=asked.branch, dry_run=asked.dry_run, progress=progress)
    _Rekeyed(table=name, branch=asked.branch, dry_run=asked.dry_run, done=done).show(out)
