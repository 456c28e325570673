"""The commands ``ags1 spark …``: any number of files, on Spark's executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from ..exits import Group
from ..kms import options
from ..kms.options import KmsOptions, NewMasterKey
from ..options import Paths, flag, grouped, no_fsync
from .catalogs import conf
from .ledger import ledger as ledger_commands
from .running import BulkCommand, RunOptions, run, running, selecting
from .session import kms_config
from .tables import COMMANDS


class _NamedPath(click.Path):
    """A path that is not empty: that would mean the folder that happens to be the current one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:  # a shell's variable that is not set
            self.fail("the path is empty: name one", param, ctx)
        return super().convert(value, param, ctx)


_PATH = _NamedPath(readable=False)
_ledger = click.option(
    "--ledger",
    required=True,
    type=_PATH,
    metavar="LEDGER",
    help="The ledger with each file's wrapped key and outcome: a folder of Parquet files, "
    "or s3://BUCKET/FOLDER. If it is lost, files without sidecars cannot be decrypted.",
)
_force = flag("-f", "--force", help="Overwrite targets that the ledger does not list.")
_sources = click.argument("sources", nargs=-1, required=True, type=_PATH, metavar="SOURCE...")
_some_sources = click.argument("sources", nargs=-1, type=_PATH, metavar="[SOURCE]...")
_target = click.argument("target", type=_PATH, metavar="TARGET")


@dataclass(frozen=True, slots=True)
class _LedgerOptions:
    """What the options say of the ledger to open, and of the keys to accept."""

    ledger: str
    keys: tuple[str, ...]
    kms: KmsOptions

    def opening(self) -> dict[str, Any]:
        """Return the arguments by which Spark's jobs open the ledger. Raises before Spark starts
        what would fail in each of them: OSError, click.UsageError, KmsError."""
        from ...files.ledger import check_ledger
        from ..kms.master_keys import accepted_key_ids_of, settings_of

        check_ledger(self.ledger)
        settings = settings_of(self.kms)
        config = kms_config(settings)
        key_ids = accepted_key_ids_of(settings, config.client(), self.keys) or frozenset()
        return {"ledger": self.ledger, "kms": config, "key_ids": key_ids}


_reading = grouped("reading", _LedgerOptions, _ledger, options.trusted_keys, options.kms)


@click.group("spark", cls=Group, short_help="Work on many files and large tables on Spark.")
def spark() -> None:
    """Work on any number of files, or on a whole table, with Spark (pip install 'ags1[spark]', and
    Java; for --remote 'ags1[connect]').

    Large files are split into ranges of blocks and small files are grouped, so that all cores work.
    The keys are kept in a ledger instead of sidecars: a folder on the driver's machine, or, so that
    it outlives that machine, a folder of an object storage (s3://BUCKET/FOLDER). A path is a folder
    that the driver and all executors have mounted, or a URL of S3 (pip install 'ags1[s3]') or of
    another storage that fsspec knows.
    Each process uses the KMS and the storage under its own identity and finds its own credentials:
    a role, VAULT_TOKEN, a token file. A secret in AGS1_KMS_... or in the configuration is refused,
    because it would be sent to the executors.

    Examples:
      ags1 spark encrypt warehouse sealed --ledger ledger
      ags1 spark verify --ledger ledger
      ags1 spark decrypt sealed copy --ledger ledger
      ags1 spark rewrap --ledger ledger --to-key new
      ags1 spark encrypt s3://raw/2026 s3://sealed/2026 --ledger ledger
      ags1 spark verify-table db.flights --catalog prod
    """


@spark.command(cls=BulkCommand, short_help="Encrypt files into a folder, each under a fresh key.")
@_sources
@_target
@_ledger
@options.new_key
@options.kms
@flag(
    "--sidecars",
    help="Write a sidecar FILE.ags1.keys beside each file that is encrypted now, so that 'ags1 "
    "decrypt' opens it without the ledger.",
)
@_force
@no_fsync
@selecting
def encrypt(
    sources: Paths,
    target: str,
    ledger: str,
    key: str | None,
    kms: KmsOptions,
    sidecars: bool,
    force: bool,
    no_fsync: bool,
    run_options: RunOptions,
) -> int:
    """Encrypt files, folders and globs into the folder TARGET, each file under a fresh key.

    FILE becomes TARGET/FILE.ags1, with the same tree as in the source folder. To go on with an
    interrupted run, repeat the command: it skips files that the ledger lists as done and that have
    not changed since, and encrypts changed sources again. If a file fails, the ledger records it
    and the others are still done. Files that are encrypted already are skipped. Links to folders,
    dangling links, pipes, sockets, devices and names that are not UTF-8 are passed over and
    counted.

    A PATTERN is as in .gitignore: '*.tmp' matches at any depth, '2026/*.csv' from the source folder
    on, 'cache/' only folders, and '**/' any folders. --exclude wins over --include.

    Examples:
      ags1 spark encrypt warehouse sealed --ledger ledger
      ags1 spark encrypt '/data/2026-*/*.avro' sealed --ledger ledger --master 'local[2]'
      ags1 spark encrypt in sealed --ledger ledger --kms aws --key $KEY --json
      ags1 spark encrypt in sealed --ledger ledger --include '*.csv' --exclude tmp/ --dry-run
    """
    from ...files.ledger import ledger_location
    from ..kms.master_keys import named_key

    settings, key_id = named_key(kms, key)
    config = kms_config(settings)
    ledger_location(ledger)  # raises before Spark starts

    return run(
        "encrypt_files",
        run_options,
        sources,
        target,
        ledger=ledger,
        kms=config,
        key_id=key_id,
        overwrite=force,
        durable=not no_fsync,
        sidecars=sidecars,
    )


@spark.command(cls=BulkCommand, short_help="Decrypt files with the keys in a ledger.")
@_some_sources
@_target
@_reading
@_force
@no_fsync
@selecting
def decrypt(
    sources: Paths,
    target: str,
    reading: _LedgerOptions,
    force: bool,
    no_fsync: bool,
    run_options: RunOptions,
) -> int:
    """Decrypt files into the folder TARGET, with the keys in the ledger.

    Without SOURCE, all files of the ledger are decrypted. A file appears under its name when every
    block has been verified. The ledger records which files are done, and the next run skips them.

    Examples:
      ags1 spark decrypt copy --ledger ledger          all that the ledger has
      ags1 spark decrypt sealed copy --ledger ledger   these files, moved or not
    """
    more = {"overwrite": force, "durable": not no_fsync, **reading.opening()}
    return run("decrypt_files", run_options, sources or None, target, **more)


@spark.command(cls=BulkCommand)
@_some_sources
@_reading
@selecting
def verify(sources: Paths, reading: _LedgerOptions, run_options: RunOptions) -> int:
    """Check every block of the files in a ledger; write nothing.

    Without SOURCE, all files of the ledger are checked.

    Examples:
      ags1 spark verify --ledger ledger
      ags1 spark verify sealed --ledger ledger --json | jq -r 'select(.ok | not) | .file'
    """
    return run("verify_files", run_options, sources or None, **reading.opening())


@spark.command(cls=BulkCommand)
@_reading
@options.target
@no_fsync
@running
def rewrap(
    reading: _LedgerOptions, target: NewMasterKey, no_fsync: bool, run_options: RunOptions
) -> int:
    """Wrap the keys in a ledger again. The encrypted files do not change.

    The keys are wrapped under another master key (--to-key), which may be in another KMS
    (--to-kms), or without options under the newest version of their own master key. A wrapped key
    is replaced only when the new one has been unwrapped as a check. An interrupted run can be
    repeated. After the run, only older copies of the ledger still need the old master key.

    Examples:
      ags1 spark rewrap --ledger ledger                newest version of each one's key
      ags1 spark rewrap --ledger ledger --to-key new   another key of the same KMS
    """
    from ..kms.master_keys import target_of

    other = target_of(target)
    more = {"to_key_id": target.to_key, "durable": not no_fsync, **reading.opening()}
    more["to_kms"] = None if other is None else kms_config(other)
    return run("rewrap_ledger", run_options, **more)


for _command in (*COMMANDS, conf, ledger_commands):
    spark.add_command(_command)
