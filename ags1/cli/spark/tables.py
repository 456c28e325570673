"""The commands ``ags1 spark verify-table|migrate|rekey``: a whole table, on Spark's executors.

They are the commands of ``ags1 table`` with the work done elsewhere. Each imports what it runs on:
start-up time, and PySpark and PyIceberg are optional.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..console import Output
from ..exits import Command
from ..kms.options import KmsOptions
from ..options import output, yes
from ..table import options
from ..table.maintenance import Bar, MigrationOptions, files_filter, tell_migration, tell_rekeying
from ..table.options import TableOptions
from ..table.verifying import verify_and_tell
from .session import kms_config, master, session

if TYPE_CHECKING:
    from ...iceberg import EncryptedTable
    from ...iceberg.operations.verify.findings import TableVerification


@click.command(
    "verify-table",
    cls=Command,
    epilog="""
\b
Examples:
  ags1 spark verify-table db.flights --catalog prod
  ags1 spark verify-table s3://lake/db/flights --kms aws --key alias/tables --json
""",
)
@options.opening
@options.require_encrypted
@options.strict
@options.no_list
@master
@output
def verify_table(
    where: TableOptions,
    require_encrypted: bool,
    strict: bool,
    no_list: bool,
    master: str | None,
    out: Output,
) -> int:
    """Check every block of every file of every snapshot of a table, on Spark.

    The findings are those of 'ags1 table verify'. The catalog, the storage and the KMS have to be
    configured on the executors as they are here; no secret is sent.
    """

    def verified(opened: EncryptedTable, progress: Any) -> TableVerification:
        known = _executors_options(where)
        with session(master) as spark:
            from ...spark.tables import verify_table as verify

            return verify(
                spark,
                opened,
                known,
                progress=progress,
                require_encrypted=require_encrypted,
                list_folders=not no_list,
            )

    return verify_and_tell(where, verified, strict=strict, out=out)


@click.command(
    cls=Command,
    epilog="""
\b
Examples:
  ags1 spark migrate db.flights --catalog prod --key tables --dry-run
  ags1 spark migrate db.flights --catalog prod --key tables
  ags1 spark migrate db.flights --catalog prod --key tables --delete-plaintext --yes
""",
)
@options.migrating
@options.data_key_length
@options.delete_plaintext
@options.drop_refs
@options.dry_run("Print what would be encrypted.")
@yes
@master
@output
def migrate(
    where: TableOptions,
    data_key_length: str,
    delete_plaintext: bool,
    drop_refs: bool,
    dry_run: bool,
    yes: bool,
    master: str | None,
    out: Output,
) -> int:
    """Encrypt an unencrypted table, of any format version, in its place, on Spark.

    The result is that of 'ags1 table migrate'. If a run was interrupted, either command continues
    it. The catalog, the storage and the KMS have to be configured on the executors as
    they are here; no secret is sent.
    """
    from ..table.catalogs import ChangedCatalog

    opened = ChangedCatalog(where)
    told = MigrationOptions(dry_run, delete_plaintext)
    told.confirm(opened.identifier, yes=yes)
    key_id = opened.new_key_id()
    known = _executors_options(where)
    with Bar(opened.identifier, out) as bar, session(master) as spark:
        from ...spark.tables import migrate_table

        done = migrate_table(
            spark,
            opened.identifier,
            key_id,
            known,
            catalog=opened.catalog,
            data_key_length=int(data_key_length),
            drop_refs=drop_refs,
            delete_plaintext=delete_plaintext,
            dry_run=dry_run,
            progress=bar,
        )
    tell_migration(opened.identifier, done, told, out)
    return 0


@click.command(
    cls=Command,
    epilog="""
\b
Examples:
  ags1 spark rekey db.flights --catalog prod
  ags1 spark rekey db.flights --catalog prod --filter "day < '2026-01-31'" --dry-run
""",
)
@options.changing()
@options.row_filter
@options.branch
@options.dry_run("Print what would be rewritten.")
@master
@output
def rekey(
    where: TableOptions,
    row_filter: str | None,
    branch: str,
    dry_run: bool,
    master: str | None,
    out: Output,
) -> int:
    """Rewrite files under fresh keys, in one commit, on Spark.

    The result is that of 'ags1 table rekey'. The catalog, the storage and the KMS have to be
    configured on the executors as they are here; no secret is sent.
    """
    from ..table.catalogs import ChangedCatalog

    table = ChangedCatalog(where).load()
    name = ".".join(table.name())
    expression = files_filter(table, row_filter)
    known = _executors_options(where)
    with Bar(name, out) as bar, session(master) as spark:
        from ...spark.tables import rekey_table

        done = rekey_table(
            spark, table, known, expression, branch=branch, dry_run=dry_run, progress=bar
        )
    tell_rekeying(name, branch, done, out, dry_run=dry_run)
    return 0


def _executors_options(where: TableOptions) -> dict[str, str]:
    """Return the options by which executors open what the command line has opened here, without
    the table's name. Raises KmsConfigurationError for one that is a secret."""
    from ...iceberg.pyiceberg.catalogs import configured_properties
    from ...kms.registry import KMS_IMPL, KMS_TYPE
    from ...spark.options import refuse_secrets
    from ..kms.master_keys import settings_of

    found = {f"catalog.{name}": text for name, text in where.io_properties.items()}
    if where.catalog is None:
        found |= dict(kms_config(settings_of(where.kms)).properties)
    else:
        found["catalog"] = where.catalog
        configured = configured_properties(where.catalog, where.io_properties)
        has_kms = bool(configured.get(KMS_TYPE) or configured.get(KMS_IMPL))
        if where.kms != KmsOptions() or not has_kms:
            # Above the catalog's own, and above what is set for everything.
            kms = kms_config(settings_of(where.kms)).properties
            found |= {f"catalog.{name}": text for name, text in kms}
    refuse_secrets(found)
    return found


COMMANDS = (verify_table, migrate, rekey)
