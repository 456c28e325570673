"""The commands ``ags1 spark ledger …``: look at a ledger, copy it, merge it."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ..console import Output, counted
from ..exits import Group
from ..options import Paths, flag, output
from .running import BulkCommand
from .session import build_report

if TYPE_CHECKING:
    from ...spark.jobs import Summary

_ledger = click.argument("ledger", metavar="LEDGER")


@click.group("ledger", cls=Group, short_help="Look at a ledger, copy it, compact it.")
def ledger() -> None:
    """Look at a ledger, copy it, compact it, rebuild it.

    LEDGER is a folder, or the URL of one in S3 or another object storage.

    Examples:
      ags1 spark ledger info ledger
      ags1 spark ledger import ledger s3://ops/ledger
      ags1 spark ledger export ledger rows.parquet
    """


ledger.command_class = BulkCommand


@ledger.command(short_help="Show a ledger's rows by outcome, and unfinished jobs.")
@_ledger
@output
def info(ledger: str, out: Output) -> int:
    """Show what a ledger has: rows by operation and outcome, and the work of jobs that have not
    ended.

    Examples:
      ags1 spark ledger info ledger
      ags1 spark ledger info s3://ops/ledger --json | jq .running
    """
    from ...files.ledger import ENCRYPT, open_ledger

    with open_ledger(ledger, writing=False) as opened:
        pending = list(opened.pending())
        counts = Counter(
            f"{row.operation} {row.status}" for row in opened.rows(("operation", "status"))
        )
        running = {job: note.runs_in for job, note in opened.notes().items() if note.runs_in}
        facts: dict[str, Any] = {
            "ledger": opened.location,
            "batches": len(opened.numbers()),
            "rows": dict(sorted(counts.items())),
            "encrypted_files": len(opened.done(ENCRYPT, ())),
            "pending_rows": sum(len(batch.rows) for batch in pending),
            "killed": opened.killed(),
            "running": running,
        }
    lines = [f"{counted(facts['encrypted_files'], 'encrypted file')}, {facts['batches']:,} batches"]
    lines += [f"{number:,} rows: {what}" for what, number in facts["rows"].items()]
    if facts["pending_rows"]:
        lines.append(f"{facts['pending_rows']:,} rows of a job that runs or was killed")
    for job, folder in facts["killed"].items():
        state = f"runs in {running[job]}" if job in running else "has not ended"
        lines.append(f"job {job} in {folder} {state}")
    if out.as_json:
        out.result(facts)
    else:
        for line in lines:
            out.result({}, line)
    return 0


@ledger.command("import", short_help="Copy the rows of another ledger into this one.")
@_ledger
@click.argument("source", metavar="SOURCE")
@output
def import_(ledger: str, source: str, out: Output) -> int:
    """Copy the rows of SOURCE into LEDGER.

    SOURCE is another ledger of any kind, or a Parquet file of 'export' (FILE.parquet). It does not
    change. If LEDGER does not exist, it is made. Rows that LEDGER has already are left out, so an
    interrupted run can be repeated. No job may write to LEDGER meanwhile.

    Examples:
      ags1 spark ledger import s3://ops/ledger ledger
      ags1 spark ledger import ledger rows.parquet
    """
    from ...files.ledger import open_ledger
    from ...files.ledger.copying import ParquetRows, copy_rows

    with ExitStack() as stack:
        if source.endswith(".parquet"):
            rows: Any = ParquetRows(source)
        else:
            rows = stack.enter_context(open_ledger(source, writing=False))
        target = stack.enter_context(open_ledger(ledger, writing=True))
        copied = copy_rows(rows, target)
    facts = {"source": source, "target": ledger, **copied._asdict()}
    text = f"copied {copied.rows:,} rows to {ledger}"
    out.result(facts, f"{text}, {copied.known:,} were there already" if copied.known else text)
    return 0


@ledger.command(short_help="Write the rows to a Parquet file, or to sidecars.")
@_ledger
@click.argument("target", metavar="[FILE.parquet]", required=False)
@flag("--to-sidecars", help="Write FILE.keys beside each encrypted file, instead of one file.")
@flag("-f", "--force", help="Overwrite the Parquet file if it exists.")
@output
def export(ledger: str, target: str | None, to_sidecars: bool, force: bool, out: Output) -> int:
    """Write the rows of LEDGER to one Parquet file, which DuckDB, Spark or Iceberg can query.

    The wrapped keys are in it, so it is a copy of the ledger too: 'import' makes a ledger of it.
    With --to-sidecars, each encrypted file gets its wrapped key beside it. Then 'ags1 decrypt' and
    others open it without the ledger, and 'rebuild' makes a ledger of the sidecars.

    Examples:
      ags1 spark ledger export s3://ops/ledger rows.parquet
      ags1 spark ledger export ledger --to-sidecars
    """
    from ...files.ledger import open_ledger

    if (target is None) != to_sidecars:
        raise click.UsageError("give either FILE.parquet or --to-sidecars")
    with open_ledger(ledger, writing=False) as opened:
        if target is None:
            from ...files.jobs.sidecars import write_sidecars

            return _report(write_sidecars(opened), "wrote {}", "sidecar", out)
        from ...files.ledger.copying import export_rows

        if not target.endswith(".parquet"):
            raise click.UsageError(
                f"the name of the file has to end in .parquet: {target}. To copy the rows into "
                f"another ledger, use: ags1 spark ledger import {target} {ledger}"
            )
        count = export_rows(opened, target, overwrite=force)
    out.result({"target": target, "rows": count}, f"wrote {count:,} rows to {target}")
    return 0


@ledger.command()
@_ledger
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@output
def rebuild(ledger: str, sources: Paths, out: Output) -> int:
    """Make a ledger of the sidecars beside encrypted files.

    SOURCE is an encrypted file, a folder or a pattern. LEDGER gets a row for each encrypted file
    with FILE.keys beside it. Files that the ledger has already are left alone, so the command can
    be repeated. Nothing is decrypted: 'verify' tells afterwards whether each key opens its file. To
    rebuild from a copy of a ledger, use 'import'.

    Examples:
      ags1 spark ledger rebuild ledger sealed
      ags1 spark ledger rebuild s3://ops/ledger s3://sealed/2026
    """
    from ...files.jobs.sidecars import rows_from_sidecars
    from ...files.ledger import open_ledger

    with open_ledger(ledger, writing=True) as opened:
        moved = rows_from_sidecars(opened, sources)
    return _report(moved, "took the keys of {} from their sidecars", "file", out)


@ledger.command()
@_ledger
@output
def compact(ledger: str, out: Output) -> int:
    """Store a ledger's rows in fewer files.

    Each wave of a job adds a file. Rows do not change, and jobs may write meanwhile.

    Examples:
      ags1 spark ledger compact ledger
    """
    from ...files.ledger import open_ledger

    with open_ledger(ledger, writing=True) as opened:
        before, after = opened.compact()
    facts = {"ledger": ledger, "files_before": before, "files_after": after}
    out.result(facts, f"{counted(before, 'file')} became {after:,}")
    return 0


@ledger.command(short_help="Give up the files of a killed job.")
@_ledger
@click.argument("job", metavar="JOB")
@output
def forget(ledger: str, job: str, out: Output) -> int:
    """Give up the files of a killed job whose folder is lost for good.

    JOB is the name in the message of the job that was refused. The next job then notes as failed
    the files that it does not find. Their keys stay in the ledger.

    Examples:
      ags1 spark ledger forget s3://ops/ledger 0123456789ab
    """
    from ...files.ledger import open_ledger

    with open_ledger(ledger, writing=True) as opened:
        note = opened.notes().get(job)
        if note is None or note.cleared_ms or note.runs_in is not None:
            raise click.UsageError(
                f"the ledger has no killed job {job}: 'ags1 spark ledger info' lists them"
            )
        opened.end(job)
    out.result({"ledger": ledger, "forgotten": job}, f"forgot job {job}")
    return 0


def _report(moved: Summary, text: str, name: str, out: Output) -> int:
    report = build_report(moved, out)
    facts = {"done": moved.done, "known": moved.unchanged, "failed": moved.failed}
    text = text.format(counted(moved.done, name))
    text = f"{text}, {moved.unchanged:,} were there already" if moved.unchanged else text
    out.result(facts, text, report.exit_code)
    return report.exit_code
