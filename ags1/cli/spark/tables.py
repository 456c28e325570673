"""The commands ``ags1 spark verify-table|migrate|rekey``: those of ``ags1 table``, but
Spark's executors do the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...errors import NotEncryptedError
from ..console import Output
from ..exits import Command
from ..kms.options import KmsOptions
from ..options import output
from ..table import checking, migrating, options, rekeying
from ..table.checking import CheckOptions, report_check
from ..table.migrating import MigrationOptions, migrate_and_report
from ..table.opening import open_table
from ..table.options import TableOptions
from ..table.rekeying import RekeyingOptions, rekey_and_report
from .session import kms_config, master, session

if TYPE_CHECKING:
    from ...iceberg.command_line import (
        EncryptedCatalog,
        EncryptedTable,
        MigrationResult,
        Rekeyed,
        TableCheck,
    )


@click.command(
    "verify-table", cls=Command, short_help="Check every block of every file of a table."
)
@options.opening
@checking.asking
@master
@output
def verify_table(
    table_options: TableOptions, asked: CheckOptions, master: str | None, out: Output
) -> int:
    """Check every block of every file of every snapshot of a table, on Spark.

    The findings are as in 'ags1 table check --full', without the maintenance that is due. The
    catalog, the storage and the KMS have to be configured on the executors as they are here; no
    secret is sent.

    Examples:
      ags1 spark verify-table db.flights --catalog prod
      ags1 spark verify-table s3://lake/db/flights --kms aws --key $KEY --json
    """

    from ...iceberg.command_line import EncryptedTable

    def work(opened: EncryptedTable, **named: Any) -> TableCheck:
        known = _executors_options(table_options)
        with session(master) as spark:
            from ...spark.tables import verify_table as verify

            return verify(spark, opened, known, **named)

    opened = open_table(table_options, out.note)
    if not isinstance(opened, EncryptedTable):
        raise NotEncryptedError(
            "the table is not encrypted, so nothing in it can be verified: 'ags1 table migrate' "
            "encrypts it"
        )
    return report_check(table_options, opened, asked, work, out)


@click.command(cls=Command, short_help="Encrypt an unencrypted table in place.")
@migrating.opening
@migrating.asking
@master
@output
def migrate(
    table_options: TableOptions, asked: MigrationOptions, master: str | None, out: Output
) -> int:
    """Encrypt an unencrypted table, of any format version, in place, on Spark.

    The result is that of 'ags1 table migrate'. If a run was interrupted, either command continues
    it. The catalog, the storage and the KMS have to be configured on the executors as
    they are here; no secret is sent.

    Examples:
      ags1 spark migrate db.flights --catalog prod --key tables --dry-run
      ags1 spark migrate db.flights --catalog prod --key tables
      ags1 spark migrate db.flights --catalog prod --key tables --delete-plaintext --yes
    """

    def work(catalog: EncryptedCatalog, table: str, key_id: str, **named: Any) -> MigrationResult:
        known = _executors_options(table_options)
        with session(master) as spark:
            from ...spark.tables import migrate_table

            return migrate_table(spark, table, key_id, known, catalog=catalog, **named)

    return migrate_and_report(table_options, asked, work, out)


@click.command(cls=Command)
@options.changing()
@rekeying.asking
@master
@output
def rekey(
    table_options: TableOptions, asked: RekeyingOptions, master: str | None, out: Output
) -> None:
    """Rewrite files under fresh keys, in one commit, on Spark.

    The result is that of 'ags1 table rekey'. The catalog, the storage and the KMS have to be
    configured on the executors as they are here; no secret is sent.

    Examples:
      ags1 spark rekey db.flights --catalog prod
      ags1 spark rekey db.flights --catalog prod --filter "day < '2026-01-31'" --dry-run
    """

    def work(table: EncryptedTable, files: Any, **named: Any) -> Rekeyed:
        known = _executors_options(table_options)
        with session(master) as spark:
            from ...spark.tables import rekey_table

            return rekey_table(spark, table, known, files, **named)

    rekey_and_report(table_options, asked, work, out)


def _executors_options(table_options: TableOptions) -> dict[str, str]:
    """Return the options by which executors open what the command line has opened here, without
    the table's name. Raises KmsConfigurationError for one that is a secret."""
    from ...iceberg.command_line import configured_properties
    from ...kms.registry import names_kms
    from ...spark.options import refuse_secrets
    from ..kms.master_keys import settings_of

    known = {f"catalog.{name}": text for name, text in table_options.io_properties.items()}
    if table_options.catalog is None:
        known |= dict(kms_config(settings_of(table_options.kms)).properties)
    else:
        known["catalog"] = table_options.catalog
        configured = configured_properties(table_options.catalog, table_options.io_properties)
        has_kms = names_kms(configured)
        if table_options.kms != KmsOptions() or not has_kms:
            # Above the catalog's own, and above what is set for everything.
            kms = kms_config(settings_of(table_options.kms)).properties
            known |= {f"catalog.{name}": text for name, text in kms}
    refuse_secrets(known)
    return known


COMMANDS = (verify_table, migrate, rekey)
