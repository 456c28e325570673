"""What the bulk commands share: the options of every one, a run of a job, and what it prints. With
``--json`` all that a command says is on standard output, one object a line: each failure once, and
last either the summary or the error that ended the command."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from .. import console
from ..console import (
    Output,
    counted,
    log_as_lines,
    print_error,
    print_json,
    print_line,
    warnings_as_lines,
)
from ..exits import EXPECTED, Command, Exit, Failure, ReaderGoneError, describe, one_line
from ..options import flag, grouped, output
from ..report import describe_failure, progress_line
from ..results import DRY_RUN
from .session import build_report, master, verbose, when_needed

if TYPE_CHECKING:
    from ...spark.jobs import Summary

# The logger with a line for each wave of a job.
_PROGRESS = "ags1.spark.jobs.report"
_DONE = {
    "encrypt": "encrypted",
    "decrypt": "decrypted",
    "verify": "verified",
    "rewrap": "rewrapped the keys of",
}
_PASSED_OVER = {
    "link_to_folder": "link to a folder",
    "dangling_link": "dangling link",
    "pipe": "pipe",
    "socket": "socket",
    "device": "device",
    "name_not_utf8": "name that is not UTF-8",
    "excluded": "excluded path",
}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the options say of the run: of Spark, and of the files to do."""

    master: str | None
    cores: int | None
    verbose: bool
    out: Output
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_failures: int | None = None
    dry_run: bool = False
    allow_empty: bool = True


def _patterns(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    from ...files.plan.patterns import Patterns

    try:
        Patterns(given)
    except ImportError as error:
        message = f"patterns need pathspec ({error}): pip install 'ags1[spark]'"
        raise click.UsageError(message, ctx) from None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return given


_cores = click.option(
    "--cores",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of cores to split the work for.  [default: what Spark reports]",
)
_include = click.option(
    "--include",
    multiple=True,
    callback=_patterns,
    metavar="PATTERN",
    help="Take only files that match this pattern or another --include.",
)
_exclude = click.option(
    "--exclude",
    multiple=True,
    callback=_patterns,
    metavar="PATTERN",
    help="Leave out files that match this pattern, and files in folders that match it.",
)
_max_failures = click.option(
    "--max-failures",
    type=click.IntRange(min=1),
    metavar="N",
    help="Start no more files after N have failed.  [default: no limit]",
)
_dry_run = flag(
    "--dry-run",
    help="Print what would be done, with sizes; write nothing and do not start Spark.",
)
_allow_empty = flag(
    "--allow-empty", help="Exit with 0 if there is no file to work on, and not with 9."
)
_spark = (master, _cores, verbose, output)
running = grouped("run_options", RunOptions, *_spark)
selecting = grouped(
    "run_options", RunOptions, _include, _exclude, _max_failures, _dry_run, _allow_empty, *_spark
)


class BulkCommand(Command):
    """A command that, with ``--json``, prints its own errors as JSON, too."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        as_json = "--json" in args  # click empties the list
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if not as_json:
                raise
            raise click.exceptions.Exit(_usage_as_json(error)) from None

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx.params.get("as_json"):
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            return _usage_as_json(error)
        except ReaderGoneError:
            raise
        except EXPECTED as error:
            failure = describe(error)
            if failure.file == console.STDOUT:
                raise
            return _as_json(failure)


def _usage_as_json(error: click.UsageError) -> Exit:
    return _as_json(Failure(Exit.USAGE, one_line(error.format_message()), "UsageError"))


def _as_json(failure: Failure) -> Exit:
    print_json({"ok": False, "error": describe_failure(failure)})
    return failure.exit_code


def run(function_name: str, options: RunOptions, *paths: Any, **more: Any) -> int:
    """Call a function of ``ags1.spark.jobs`` and report what it did. Spark starts when there is
    something to do."""
    out = options.out
    is_logged = not (out.quiet or out.as_json or (sys.stderr and sys.stderr.isatty()))
    selects_files = function_name != "rewrap_ledger"  # which knows no sizes
    more["cores"] = options.cores
    if selects_files:
        names = ("include", "exclude", "max_failures", "dry_run")
        more |= {name: getattr(options, name) for name in names}
    with (
        warnings_as_lines(quiet=out.quiet or out.as_json),
        log_as_lines(_PROGRESS) if is_logged else contextlib.nullcontext(),
        when_needed(options.master, verbose=options.verbose) as spark,
        progress_line("", out) as progress,
    ):
        from ...spark import jobs

        if selects_files:
            more["progress"] = progress
        summary = getattr(jobs, function_name)(spark, *paths, **more)
    return _report(summary, options)


def _report(summary: Summary, options: RunOptions) -> int:
    out = options.out
    report = build_report(summary, out)
    numbers = ("done", "unchanged", "skipped", "failed", "not_tried", "planned")
    is_empty = not any(getattr(summary, name) for name in numbers)
    code = report.exit_code or (Exit.NO_FILES if is_empty and not options.allow_empty else Exit.OK)
    for file in summary.planned:
        line = (
            f"{file.path}{f' -> {file.target}' if file.target else ''}, {console.size(file.size)}"
        )
        if out.as_json:
            print_json({"file": file.path, "target": file.target, "size": file.size})
        elif not out.quiet:
            print_line(one_line(line))
    if out.as_json:
        print_json(_facts(summary, options) | {"ok": code == Exit.OK})
    else:
        out.result({}, _line(summary, options))
    if code == Exit.NO_FILES and not out.as_json:
        print_error("there was no file to work on: check the paths and patterns")
    return code


def _facts(summary: Summary, options: RunOptions) -> dict[str, Any]:
    lists = ("failures", "planned")
    names = (field.name for field in fields(summary) if field.name not in lists)
    facts = {name: getattr(summary, name) for name in names}
    if options.dry_run:
        size = sum(file.size for file in summary.planned)
        facts |= {"dry_run": True, "to_do": len(summary.planned), "size": size}
    return facts | {"bytes_per_second": summary.bytes_per_second}


def _line(summary: Summary, options: RunOptions) -> str:
    if options.dry_run:
        size = console.size(sum(file.size for file in summary.planned))
        parts = [f"{_DONE[summary.operation]} {counted(len(summary.planned), 'file')}", size]
    else:
        parts = [f"{_DONE[summary.operation]} {counted(summary.done, 'file')}"]
        if summary.size:
            size, rate = map(console.size, (summary.size, summary.bytes_per_second))
            parts.append(f"{size} in {summary.seconds:.1f} s ({rate}/s)")
    others = {
        "done already": summary.unchanged,
        "skipped": summary.skipped,
        "failed": summary.failed,
        "not tried": summary.not_tried,
    }
    parts += [f"{number:,} {what}" for what, number in others.items() if number]
    if summary.passed_over:
        reasons = summary.passed_over.items()
        text = ", ".join(f"{_PASSED_OVER[reason]}: {number:,}" for reason, number in reasons)
        parts.append(f"passed over ({text})")
    return ", ".join(parts) + (DRY_RUN if options.dry_run else "")
