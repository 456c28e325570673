"""The commands ``ags1 spark …``: any number of files, on Spark's executors.

Imports nothing that help doesn't need; PySpark and Arrow come in when a job begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from . import options, spark_session, spark_tables
from .failures import EXIT_STATUS, Exit
from .options import KmsOptions
from .spark_session import kms_config

if TYPE_CHECKING:
    from ..spark.jobs import Summary
    from ..spark.keys import KmsConfig
    from .report import Report


class _NamedPath(click.Path):
    """A path that is not empty: that would mean the folder that happens to be the current one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:  # a shell's variable that is not set
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


_PATH = _NamedPath(readable=False)
_ledger = click.option(
    "--ledger",
    required=True,
    type=_PATH,
    metavar="DIR",
    help="The ledger: a folder of Parquet files with each file's wrapped key and outcome. If it is "
    "lost, so are the encrypted files.",
)
_json = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object a line: one for each failure, and a summary at the end.",
)
_force = click.option(
    "-f", "--force", is_flag=True, help="Replace targets that the ledger does not know."
)
_sources = click.argument("sources", nargs=-1, required=True, type=_PATH, metavar="SOURCE...")
_some_sources = click.argument("sources", nargs=-1, type=_PATH, metavar="[SOURCE]...")
_target = click.argument("target", type=_PATH, metavar="TARGET")
_VERBS = {
    "encrypt": "encrypted",
    "decrypt": "decrypted",
    "verify": "verified",
    "rewrap": "wrapped anew the keys of",
}


@click.group(
    "spark",
    invoke_without_command=True,
    short_help="Encrypt, decrypt, verify many files on Spark.",
    epilog="""
\b
Examples:
  ags1 spark encrypt warehouse sealed --ledger ledger
  ags1 spark verify --ledger ledger
  ags1 spark decrypt sealed copy --ledger ledger
  ags1 spark rewrap --ledger ledger --to-key new
  ags1 spark encrypt s3://raw/2026 s3://sealed/2026 --ledger ledger
""",
)
@click.pass_context
def spark(ctx: click.Context) -> None:
    """Work on any number of files with Spark (pip install 'ags1[spark]', and Java).

    Large files are cut into ranges of blocks and small ones grouped, so that all cores are busy.
    The keys are kept in a ledger, a folder on the driver's machine, instead of sidecars. A path is
    a folder that the driver and all executors have mounted, or a URL: of S3 (pip install
    'ags1[s3]'), or of another storage that fsspec knows. Each process uses the KMS and the storage
    under its own identity and finds its own credentials: a role, VAULT_TOKEN, a token file. A
    secret in AGS1_KMS_... or in the configuration is refused, because it would be sent to the
    executors.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(Exit.USAGE)


@spark.command(
    epilog=f"""
\b
Examples:
  ags1 spark encrypt warehouse sealed --ledger ledger
  ags1 spark encrypt '/data/2026-*/*.avro' sealed --ledger ledger --master 'local[2]'
  ags1 spark encrypt in sealed --ledger ledger --kms aws --key alias/files --json

{EXIT_STATUS}"""
)
@_sources
@_target
@_ledger
@click.option(
    "--key",
    metavar="NAME",
    help="The master key to use.  [default: $AGS1_KMS_KEY, the configuration's key, or in a "
    "keyring 'default']",
)
@options.kms
@click.option(
    "--hmac",
    "plaintext_hmac",
    is_flag=True,
    help="Note an HMAC-SHA-256 of each plaintext in the ledger, under a key derived from the "
    "run's own; each file is read twice.",
)
@spark_session.master
@_force
@options.no_fsync
@options.quiet
@_json
def encrypt(
    sources: tuple[str, ...],
    target: str,
    ledger: str,
    key: str | None,
    kms: KmsOptions,
    plaintext_hmac: bool,
    master: str | None,
    force: bool,
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Encrypt files, folders and globs into the folder TARGET, each file under a fresh key.

    FILE becomes TARGET/FILE.ags1, with the same tree as below the folder named. To go on with an
    interrupted run, repeat the command: files that the ledger lists as done and that have not
    changed since are left alone, and sources that have changed are encrypted anew. If a file fails,
    the ledger notes it and the others are still done. Files that are encrypted already, links to
    folders, and what is not a file are passed over.
    """
    from ..spark.storage.protocol import ledger_folder
    from .masters import settings_of

    if key == "":  # a shell's variable that is not set
        raise click.UsageError("--key is empty")
    settings = settings_of(kms)
    key_id = key or settings.key_id
    if not key_id:
        raise click.UsageError(
            f"which master key of {settings.kms_name}? Name it with --key (or AGS1_KMS_KEY, or "
            "key in the configuration)"
        )
    config = kms_config(settings)
    ledger_folder(ledger)  # told before Spark starts

    def work(session: Any, progress: Callable[[int, int], None]) -> Summary:
        from ..spark.jobs import encrypt_files

        return encrypt_files(
            session,
            sources,
            target,
            ledger=ledger,
            kms=config,
            key_id=key_id,
            overwrite=force,
            durable=not no_fsync,
            plaintext_hmac=plaintext_hmac,
            progress=progress,
        )

    return _run(work, master, quiet=quiet, as_json=as_json)


@spark.command(
    epilog=f"""
\b
Examples:
  ags1 spark decrypt copy --ledger ledger          all that the ledger has
  ags1 spark decrypt sealed copy --ledger ledger   these files, moved or not

{EXIT_STATUS}"""
)
@_some_sources
@_target
@_ledger
@options.trusted_keys
@options.kms
@spark_session.master
@_force
@options.no_fsync
@options.quiet
@_json
def decrypt(
    sources: tuple[str, ...],
    target: str,
    ledger: str,
    keys: tuple[str, ...],
    kms: KmsOptions,
    master: str | None,
    force: bool,
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Decrypt files into the folder TARGET, with the keys in the ledger.

    Without SOURCE, all files of the ledger are decrypted. A file appears under its name when every
    block has been verified. The ledger notes which files are done, and the next run leaves them
    alone.
    """
    config, key_ids = _opening(ledger, kms, keys)

    def work(session: Any, progress: Callable[[int, int], None]) -> Summary:
        from ..spark.jobs import decrypt_files

        return decrypt_files(
            session,
            sources or None,
            target,
            ledger=ledger,
            kms=config,
            key_ids=key_ids,
            overwrite=force,
            durable=not no_fsync,
            progress=progress,
        )

    return _run(work, master, quiet=quiet, as_json=as_json)


@spark.command(
    epilog=f"""
\b
Examples:
  ags1 spark verify --ledger ledger
  ags1 spark verify sealed --ledger ledger --json | jq -r 'select(.ok | not) | .file'

{EXIT_STATUS}"""
)
@_some_sources
@_ledger
@options.trusted_keys
@options.kms
@spark_session.master
@options.quiet
@_json
def verify(
    sources: tuple[str, ...],
    ledger: str,
    keys: tuple[str, ...],
    kms: KmsOptions,
    master: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Check every block of the files in a ledger; write nothing.

    Without SOURCE, all files of the ledger are checked.
    """
    config, key_ids = _opening(ledger, kms, keys)

    def work(session: Any, progress: Callable[[int, int], None]) -> Summary:
        from ..spark.jobs import verify_files

        return verify_files(
            session, sources or None, ledger=ledger, kms=config, key_ids=key_ids, progress=progress
        )

    return _run(work, master, quiet=quiet, as_json=as_json)


@spark.command(
    epilog=f"""
\b
Examples:
  ags1 spark rewrap --ledger ledger                newest version of each one's key
  ags1 spark rewrap --ledger ledger --to-key new   another key of the same KMS

{EXIT_STATUS}"""
)
@_ledger
@options.trusted_keys
@options.kms
@click.option("--to-key", metavar="NAME", help="The master key to wrap under.")
@click.option(
    "--to-kms",
    type=options.KMS_TYPE,
    metavar="TYPE",
    help="The KMS of that key, if it is another one; needs --to-key.",
)
@click.option(
    "--to-kms-property",
    "to_kms_properties",
    type=options.PROPERTY,
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of that KMS; may be repeated.",
)
@spark_session.master
@options.no_fsync
@options.quiet
@_json
def rewrap(
    ledger: str,
    keys: tuple[str, ...],
    kms: KmsOptions,
    to_key: str | None,
    to_kms: str | None,
    to_kms_properties: tuple[tuple[str, str], ...],
    master: str | None,
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Wrap the keys in a ledger anew; the encrypted files stay as they are.

    The keys are wrapped under another master key (--to-key), which may be in another KMS
    (--to-kms), or without options under the newest version of their own. A wrapped key is replaced
    only when the new one has been unwrapped as a check. An interrupted run can be repeated. Once
    all keys are rewrapped, only older copies of the ledger still need the old master key.
    """
    from .masters import settings_of
    from .settings import from_options

    is_other = to_kms is not None or bool(to_kms_properties)
    if is_other and from_options(to_kms, to_kms_properties, None).kind is None:
        raise click.UsageError("--to-kms-property needs --to-kms")
    if is_other and to_key is None:
        raise click.UsageError("--to-kms needs --to-key")
    config, key_ids = _opening(ledger, kms, keys)
    other = kms_config(settings_of(KmsOptions(to_kms, to_kms_properties))) if is_other else None

    def work(session: Any, progress: Callable[[int, int], None]) -> Summary:
        from ..spark.jobs import rewrap_ledger

        return rewrap_ledger(
            session,
            ledger=ledger,
            kms=config,
            to_key_id=to_key,
            to_kms=other,
            key_ids=key_ids,
            durable=not no_fsync,
        )

    return _run(work, master, quiet=quiet, as_json=as_json)


def _opening(
    ledger: str, options: KmsOptions, keys: tuple[str, ...]
) -> tuple[KmsConfig, frozenset[str]]:
    import os

    from ..spark.storage.protocol import ledger_folder
    from .masters import settings_of, trusted_keys

    os.listdir(ledger_folder(ledger))  # told before Spark starts
    settings = settings_of(options)
    config = kms_config(settings)
    return config, trusted_keys(settings, config.client(), keys) or frozenset()


def _run(
    work: Callable[[Any, Callable[[int, int], None]], Summary],
    master: str | None,
    *,
    quiet: bool,
    as_json: bool,
) -> int:
    """Do a job in a session of Spark and report it."""
    from .report import Report

    with spark_session.session(master) as session, contextlib.ExitStack() as stack:
        reports: list[Report] = []

        def progress(done: int, total: int) -> None:
            if not reports:
                report = Report(as_json=as_json, quiet=quiet, total_size=total)
                report.begin("")
                reports.append(stack.enter_context(report))
            reports[0].progress(done, total)

        summary = work(session, progress)
    return _report(summary, quiet=quiet, as_json=as_json)


def _report(summary: Summary, *, quiet: bool, as_json: bool) -> int:
    import dataclasses
    import json

    from .. import errors
    from ..errors import Ags1Error
    from .failures import describe, one_line
    from .standard import print_error, print_line

    exit_code = Exit.OK
    for failure in summary.failures:
        kind: Any = getattr(errors, failure.kind, None)
        is_ours = isinstance(kind, type) and issubclass(kind, Ags1Error)
        error: Exception = kind(failure.message) if is_ours else OSError(0, failure.message)
        told = dataclasses.replace(describe(error, failure.path), kind=failure.kind)
        exit_code = exit_code or told.exit_code
        print_error(f"ags1: {one_line(told.message)}")
        if as_json:
            details = {n: v for n, v in dataclasses.asdict(told).items() if v is not None}
            print_line(json.dumps({"file": failure.path, "ok": False, "error": details}))
    if more := summary.failed - len(summary.failures):
        print_error(f"ags1: {more} more files failed")
    if as_json:
        facts = dataclasses.asdict(summary)
        del facts["failures"]
        facts["bytes_per_second"] = summary.bytes_per_second
        print_line(json.dumps({**facts, "ok": not summary.failed}))
    elif not quiet:
        print_line(_line(summary))
    return exit_code


def _line(summary: Summary) -> str:
    parts = [f"{_VERBS[summary.operation]} {summary.done:,} files"]
    if summary.size:
        size, rate = (_size(number) for number in (summary.size, summary.bytes_per_second))
        parts.append(f"{size} in {summary.seconds:.1f} s ({rate}/s)")
    for number, what in (
        (summary.unchanged, "done already"),
        (summary.skipped, "passed over"),
        (summary.failed, "failed"),
    ):
        if number:
            parts.append(f"{number:,} {what}")
    return ", ".join(parts)


def _size(number: float) -> str:
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1024 and len(units) > 1:
        number /= 1024
        units.pop(0)
    return f"{number:.0f} bytes" if units[0] == "bytes" else f"{number:.1f} {units[0]}"


for _command in spark_tables.COMMANDS:
    spark.add_command(_command)
