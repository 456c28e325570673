"""The commands ``ags1 spark ledger …``: look at a ledger, copy it, and end claims of dead jobs."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import click

from ..console import Output, counted
from ..exits import Group
from ..kms import options
from ..kms.options import KmsOptions
from ..options import Paths, flag, output
from .running import BulkCommand
from .session import kms_config, report_of

if TYPE_CHECKING:
    from ...spark.jobs.sidecars import Moved
    from ...spark.ledger import LedgerAt

_ledger = click.argument("ledger", metavar="LEDGER")


@click.group("ledger", cls=Group, short_help="Look at a ledger, copy it, compact it, free it.")
def ledger() -> None:
    """Look at a ledger, copy it, compact it, rebuild it, free it.

    LEDGER is a folder, the URL of one in S3 or another object storage with conditional writes, or
    iceberg:CATALOG.NAMESPACE.TABLE for an encrypted table of a catalog that PyIceberg's
    configuration names. A table is opened with the KMS of its catalog's configuration or, if that
    has none, with the KMS of the options.

    Examples:
      ags1 spark ledger info ledger
      ags1 spark ledger import iceberg:prod.ops.ledger ledger
      ags1 spark ledger export iceberg:prod.ops.ledger backup
    """


ledger.command_class = BulkCommand


@ledger.command(short_help="Show a ledger's rows by outcome, and unfinished jobs.")
@_ledger
@options.kms
@output
def info(ledger: str, kms: KmsOptions, out: Output) -> int:
    """Show what a ledger has: rows by operation and outcome, and the work of jobs that have not
    ended.

    Examples:
      ags1 spark ledger info ledger
      ags1 spark ledger info iceberg:prod.ops.ledger --json | jq .jobs
    """
    from ...spark.ledger import ENCRYPT, open_ledger

    with open_ledger(_ledger_at(ledger, kms), writing=False) as opened:
        pending = list(opened.pending(others=True))
        counts = Counter(
            f"{row.operation} {row.status}" for row in opened.rows(("operation", "status"))
        )
        claims = opened.claims()
        jobs = [
            {
                "job": claim.claim_id,
                "folders": [root or "any" for root in claim.roots],
                "renewed_ms": claim.renewed_ms,
            }
            for claim in claims
        ]
        facts: dict[str, Any] = {
            "ledger": opened.location,
            "batches": len(opened.numbers()),
            "rows": dict(sorted(counts.items())),
            "encrypted_files": len(opened.done(ENCRYPT, ())),
            "pending_rows": sum(len(batch.rows) for batch in pending),
            "killed": opened.killed(),
            "jobs": jobs,
        }
    lines = [f"{counted(facts['encrypted_files'], 'encrypted file')}, {facts['batches']:,} batches"]
    lines += [f"{number:,} rows: {what}" for what, number in facts["rows"].items()]
    if facts["pending_rows"]:
        lines.append(f"{facts['pending_rows']:,} rows of a job that runs or was killed")
    lines += [f"job {job} in {folder} has not ended" for job, folder in facts["killed"].items()]
    for claim in claims:
        folders = ", ".join(root or "any folder" for root in claim.roots)
        lines.append(f"claim of job {claim.claim_id}: {folders}")
    if out.as_json:
        out.result(facts)
    else:
        for line in lines:
            out.result({}, line)
    return 0


@ledger.command("import", short_help="Copy the rows of another ledger into this one.")
@_ledger
@click.argument("source", metavar="SOURCE")
@options.new_key
@options.kms
@output
def import_(ledger: str, source: str, key: str | None, kms: KmsOptions, out: Output) -> int:
    """Copy the rows of the ledger SOURCE into LEDGER.

    SOURCE is another ledger of any kind, and does not change. If LEDGER does not exist, it is
    made; a new table is encrypted under the master key --key. Rows that LEDGER has already are left
    out, so an interrupted run can be repeated. No job may write to LEDGER meanwhile.

    Examples:
      ags1 spark ledger import iceberg:prod.ops.ledger ledger --key default
    """
    return _copy(source, ledger, key, kms, out)


@ledger.command(short_help="Copy the rows to another ledger, or to sidecars.")
@_ledger
@click.argument("target", metavar="[TARGET]", required=False)
@flag("--to-sidecars", help="Write FILE.keys beside each encrypted file, instead of a TARGET.")
@options.new_key
@options.kms
@output
def export(
    ledger: str,
    target: str | None,
    to_sidecars: bool,
    key: str | None,
    kms: KmsOptions,
    out: Output,
) -> int:
    """Copy the rows of LEDGER into the ledger TARGET, such as a folder for a backup.

    If TARGET does not exist, it is made. Rows that TARGET already has are left out, so an
    interrupted run can be repeated. No job may write to TARGET meanwhile. With --to-sidecars, each
    encrypted file gets its wrapped key beside it. Then 'ags1 decrypt' and others open it without
    the ledger, and 'rebuild' makes a ledger of the sidecars.

    Examples:
      ags1 spark ledger export iceberg:prod.ops.ledger backup
      ags1 spark ledger export ledger --to-sidecars
    """
    if (target is None) != to_sidecars:
        raise click.UsageError("give either a TARGET or --to-sidecars")
    if target is not None:
        return _copy(ledger, target, key, kms, out)
    from ...spark.jobs.sidecars import write_sidecars
    from ...spark.ledger import open_ledger

    with open_ledger(_ledger_at(ledger, kms), writing=False) as opened:
        moved = write_sidecars(opened)
    return _report(moved, "wrote {}", "sidecar", out)


@ledger.command()
@_ledger
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@options.new_key
@options.kms
@output
def rebuild(ledger: str, sources: Paths, key: str | None, kms: KmsOptions, out: Output) -> int:
    """Make a ledger of the sidecars beside encrypted files.

    SOURCE is an encrypted file, a folder or a pattern. LEDGER gets a row for each encrypted file
    with FILE.keys beside it; a new table is encrypted under the master key --key. Files that the
    ledger has already are left alone, so the command can be repeated. Nothing is decrypted:
    'verify' tells afterwards whether each key opens its file. To rebuild from a copy of a ledger,
    use 'import'.

    Examples:
      ags1 spark ledger rebuild ledger sealed
      ags1 spark ledger rebuild s3://ops/ledger s3://sealed/2026
    """
    from ...spark.jobs.sidecars import rows_from_sidecars
    from ...spark.ledger import open_ledger

    with open_ledger(_ledger_at(ledger, kms, key, new=True), writing=True) as opened:
        moved = rows_from_sidecars(opened, sources)
    return _report(moved, "took the keys of {} from their sidecars", "file", out)


@ledger.command()
@_ledger
@options.kms
@output
def compact(ledger: str, kms: KmsOptions, out: Output) -> int:
    """Store a ledger's rows in fewer files.

    Each wave of a job adds a file. Rows, and numbers of batches, do not change, so streams that
    read the ledger go on where they were. If the ledger is a table, its old snapshots are
    expired too.

    Examples:
      ags1 spark ledger compact ledger
    """
    from ...spark.ledger import open_ledger

    with open_ledger(_ledger_at(ledger, kms), writing=True) as opened:
        before, after = opened.compact()
    facts = {"ledger": ledger, "files_before": before, "files_after": after}
    out.result(facts, f"{counted(before, 'file')} became {after:,}")
    return 0


@ledger.command(short_help="End the claim of a dead job.")
@_ledger
@click.argument("job", metavar="JOB")
@options.kms
@output
def release(ledger: str, job: str, kms: KmsOptions, out: Output) -> int:
    """End the claim of a job that is dead, so that the next job need not wait.

    JOB is the name in the message of the job that was refused, or in 'info'. The next job takes
    over what the dead one has left. If it is alive after all, its next step fails, and nothing is
    lost.

    Examples:
      ags1 spark ledger release iceberg:prod.ops.ledger 5f2b90aa01c3
    """
    from ...spark.ledger import open_ledger

    with open_ledger(_ledger_at(ledger, kms), writing=False) as opened:
        opened.release(job)
    out.result({"ledger": ledger, "released": job}, f"released the claim of job {job}")
    return 0


@ledger.command(short_help="Give up the files of a killed job.")
@_ledger
@click.argument("job", metavar="JOB")
@options.kms
@output
def forget(ledger: str, job: str, kms: KmsOptions, out: Output) -> int:
    """Give up the files of a killed job whose folder is lost for good.

    JOB is the name in the message of the job that was refused. The next job then notes as failed
    the files that it does not find. Their keys stay in the ledger.

    Examples:
      ags1 spark ledger forget iceberg:prod.ops.ledger 0123456789ab
    """
    from ...spark.ledger import open_ledger

    with open_ledger(_ledger_at(ledger, kms), writing=True) as opened:
        if job not in opened.killed():
            raise click.UsageError(
                f"the ledger has no killed job {job}: 'ags1 spark ledger info' lists them"
            )
        opened.end(job)
    out.result({"ledger": ledger, "forgotten": job}, f"forgot job {job}")
    return 0


def _report(moved: Moved, text: str, name: str, out: Output) -> int:
    report = report_of(moved.failures, out)
    facts = {"done": moved.done, "known": moved.known, "failed": len(moved.failures)}
    text = text.format(counted(moved.done, name))
    text = f"{text}, {moved.known:,} were there already" if moved.known else text
    out.result(facts, text, report.exit_code)
    return report.exit_code


def _copy(source: str, target: str, key: str | None, kms: KmsOptions, out: Output) -> int:
    from ...spark.ledger import open_ledger
    from ...spark.ledger.copying import copy_rows

    with (
        open_ledger(_ledger_at(source, kms), writing=False) as old,
        open_ledger(_ledger_at(target, kms, key, new=True), writing=True) as new,
    ):
        copied = copy_rows(old, new)
    facts = {"source": source, "target": target, **copied._asdict()}
    text = f"copied {copied.rows:,} rows to {target}"
    out.result(facts, f"{text}, {copied.known:,} were there already" if copied.known else text)
    return 0


def _ledger_at(
    location: str, kms: KmsOptions, key: str | None = None, *, new: bool = False
) -> LedgerAt:
    """Return the ledger, with the KMS if it is a table. Raises click.UsageError, KmsError, OSError
    for a text that is no ledger."""
    from ...errors import KmsConfigurationError
    from ...spark.ledger import LedgerAt, ledger_location
    from ..kms.master_keys import named_key, settings_of

    location = ledger_location(location)
    if not location.startswith("iceberg:"):
        return LedgerAt(location)
    if new:
        settings, key_id = named_key(kms, key)
        return LedgerAt(location, kms_config(settings), key_id)
    # The catalog's own configuration may have a KMS.
    is_optional = kms == KmsOptions()
    found = None
    with suppress(KmsConfigurationError) if is_optional else nullcontext():
        found = kms_config(settings_of(kms))
    return LedgerAt(location, found)
