"""What ``ags1 table compact`` asks and prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from ..console import Output
from ..exits import Exit
from ..options import flag, grouped, size
from ..report import progress_line
from ..results import BranchResult
from . import options
from .catalogs import ChangedCatalog
from .filters import parsed_filter
from .options import TableOptions

if TYPE_CHECKING:
    from ...iceberg.command_line import Compacted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compacted(BranchResult):
    done: Compacted
    PARTS: ClassVar = (
        "{rewritten_data_files_count:data file} of {rewritten_bytes_count:byte} rewritten into "
        "{added_data_files_count}",
        "{removed_delete_files_count:delete file} removed",
        "{failed_data_files_count:data file} failed",
    )


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """Which files of which branch are rewritten, and in how many commits."""

    row_filter: str | None
    target_file_size: int | None
    min_file_size: int | None
    max_file_size: int | None
    min_input_files: int
    delete_file_threshold: int | None
    delete_ratio_threshold: float
    rewrite_all: bool
    max_file_group_size: int | None
    remove_dangling_deletes: bool
    partial_progress: bool
    max_commits: int
    branch: str
    dry_run: bool

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``EncryptedTable.rewrite_data_files``, without the filter."""
        named: dict[str, Any] = {
            "target_file_size_bytes": self.target_file_size,
            "min_file_size_bytes": self.min_file_size,
            "max_file_size_bytes": self.max_file_size,
            "min_input_files": self.min_input_files,
            "delete_file_threshold": self.delete_file_threshold,
            "delete_ratio_threshold": self.delete_ratio_threshold,
            "rewrite_all": self.rewrite_all,
            "remove_dangling_deletes": self.remove_dangling_deletes,
            "partial_progress": self.partial_progress,
            "partial_progress_max_commits": self.max_commits,
            "branch": self.branch,
            "dry_run": self.dry_run,
        }
        if self.max_file_group_size is not None:
            named["max_file_group_size_bytes"] = self.max_file_group_size
        return named


asking = grouped(
    "asked",
    CompactionOptions,
    options.file_filter,
    click.option(
        "--target-file-size",
        callback=size(),
        metavar="SIZE",
        help="Size of the new files.  [default: the table's write.target-file-size-bytes]",
    ),
    click.option(
        "--min-file-size",
        callback=size(minimum=0),
        metavar="SIZE",
        help="Rewrite smaller files.  [default: 75 % of the target]",
    ),
    click.option(
        "--max-file-size",
        callback=size(),
        metavar="SIZE",
        help="Rewrite larger files.  [default: 180 % of the target]",
    ),
    click.option(
        "--min-input-files",
        type=click.IntRange(1),
        default=5,
        metavar="N",
        help="Rewrite files together if there are N, or if together they are larger than "
        "the target.  [default: 5]",
    ),
    click.option(
        "--delete-file-threshold",
        type=click.IntRange(0),
        metavar="N",
        help="Rewrite data files to which N or more delete files apply.  [default: off]",
    ),
    click.option(
        "--delete-ratio-threshold",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.3,
        metavar="RATIO",
        help="Rewrite data files in which at least this fraction of the rows is deleted.  "
        "[default: 0.3]",
    ),
    flag("--rewrite-all", help="Rewrite all files, whatever their size."),
    click.option(
        "--max-file-group-size",
        callback=size(),
        metavar="SIZE",
        help="Rewrite at most this many bytes of files together.  [default: 100GiB]",
    ),
    flag(
        "--remove-dangling-deletes",
        help="Remove delete files that apply to no data file any more.",
    ),
    flag(
        "--partial-progress",
        help="Commit in several parts. If a part fails, the others go on; the exit status is 6.",
    ),
    click.option(
        "--max-commits",
        type=click.IntRange(1),
        default=10,
        metavar="N",
        help="With --partial-progress, commit at most N times.  [default: 10]",
    ),
    options.branch,
    options.dry_run("Print what would be rewritten."),
)


def compact_and_report(
    table_options: TableOptions, asked: CompactionOptions, threads: int | None, out: Output
) -> int:
    """Compact a table, and print what was done."""
    table = ChangedCatalog(table_options).load()
    name = ".".join(table.name())
    chosen = parsed_filter(table.schema(), asked.row_filter, "--filter")
    with progress_line(name, out) as progress:
        done = table.rewrite_data_files(
            chosen, threads=threads, progress=progress, **asked.arguments()
        )
    code = Exit.IO if done.failed_data_files_count else Exit.OK
    result = _Compacted(table=name, branch=asked.branch, dry_run=asked.dry_run, done=done)
    return result.show(out, code)
