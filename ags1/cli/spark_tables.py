"""The commands ``ags1 spark verify-table|migrate|rekey``: a whole table, on Spark's executors.

They are the commands of ``ags1 table`` with the work done elsewhere. Imports nothing that help
doesn't need; PySpark and Arrow come in when a job begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options, table_options
from .failures import EXIT_STATUS
from .spark_session import kms_config, master, session
from .table_catalogs import ChangedCatalog, reporting
from .table_commands import as_json as findings_as_json
from .table_commands import errors_only, no_list, require_encrypted, strict
from .table_maintenance import (
    Bar,
    MigrationOptions,
    data_key_length,
    delete_plaintext,
    drop_refs,
    dry_run_encrypting,
    dry_run_rewriting,
    files_filter,
    migrating,
    row_filter,
    tell_migration,
    tell_rekeying,
)
from .table_options import TableOptions
from .table_verifying import verify_and_tell
from .table_writing import as_json, branch, quiet

if TYPE_CHECKING:
    from ..iceberg import EncryptedTable
    from ..iceberg.findings import TableVerification


@click.command(
    "verify-table",
    epilog=f"""
\b
Examples:
  ags1 spark verify-table db.flights --catalog prod
  ags1 spark verify-table s3://lake/db/flights --kms aws --key alias/tables --json

{EXIT_STATUS}""",
)
@table_options.opening
@require_encrypted
@strict
@no_list
@master
@errors_only
@findings_as_json
def verify_table(
    where: TableOptions,
    require_encrypted: bool,
    strict: bool,
    no_list: bool,
    master: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Check every block of every file of every snapshot of a table, on Spark.

    The findings are those of 'ags1 table verify'. The catalog, the storage and the KMS have to be
    configured on the executors as they are here; no secret is sent.
    """

    def verified(opened: EncryptedTable, progress: Any) -> TableVerification:
        known = _executors_options(where)
        with session(master) as spark:
            from ..spark.tables import verify_table as verify

            return verify(
                spark,
                opened,
                known,
                progress=progress,
                require_encrypted=require_encrypted,
                list_folders=not no_list,
            )

    return verify_and_tell(where, verified, strict=strict, quiet=quiet, as_json=as_json)


@click.command(
    epilog=f"""
\b
Examples:
  ags1 spark migrate db.flights --catalog prod --key tables --dry-run
  ags1 spark migrate db.flights --catalog prod --key tables
  ags1 spark migrate db.flights --catalog prod --key tables --delete-plaintext --yes

{EXIT_STATUS}"""
)
@migrating
@data_key_length
@delete_plaintext
@drop_refs
@dry_run_encrypting
@options.yes
@master
@quiet
@as_json
@reporting
def migrate(
    where: TableOptions,
    data_key_length: str,
    delete_plaintext: bool,
    drop_refs: bool,
    dry_run: bool,
    yes: bool,
    master: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Encrypt an unencrypted table, of any format version, in its place, on Spark.

    The result is that of 'ags1 table migrate'. If a run was interrupted, either command goes on
    where it stopped. The catalog, the storage and the KMS have to be configured on the executors as
    they are here; no secret is sent.
    """
    opened = ChangedCatalog(where)
    told = MigrationOptions(dry_run, delete_plaintext)
    told.confirm(opened.identifier, yes=yes)
    key_id = opened.new_key_id()
    known = _executors_options(where)
    with Bar(opened.identifier, quiet=quiet) as bar, session(master) as spark:
        from ..spark.tables import migrate_table

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
    tell_migration(opened.identifier, done, told, quiet=quiet, as_json=as_json)
    return 0


@click.command(
    epilog=f"""
\b
Examples:
  ags1 spark rekey db.flights --catalog prod
  ags1 spark rekey db.flights --catalog prod --filter "day < '2026-01-31'" --dry-run

{EXIT_STATUS}"""
)
@table_options.changing()
@row_filter
@branch
@dry_run_rewriting
@master
@quiet
@as_json
@reporting
def rekey(
    where: TableOptions,
    row_filter: str | None,
    branch: str,
    dry_run: bool,
    master: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Rewrite files under fresh keys, in one commit, on Spark.

    The result is that of 'ags1 table rekey'. The catalog, the storage and the KMS have to be
    configured on the executors as they are here; no secret is sent.
    """
    table = ChangedCatalog(where).load()
    name = ".".join(table.name())
    expression = files_filter(table, row_filter)
    known = _executors_options(where)
    with Bar(name, quiet=quiet) as bar, session(master) as spark:
        from ..spark.tables import rekey_table

        done = rekey_table(
            spark, table, known, expression, branch=branch, dry_run=dry_run, progress=bar
        )
    tell_rekeying(name, branch, done, dry_run=dry_run, quiet=quiet, as_json=as_json)
    return 0


def _executors_options(where: TableOptions) -> dict[str, str]:
    """Return the options by which executors open what the command line has opened here, without
    the table's name. Raises KmsConfigurationError for one that is a secret."""
    from ..iceberg.pyiceberg_internals import configured_properties
    from ..kms.registry import KMS_IMPL, KMS_TYPE
    from ..spark.options import refuse_secrets
    from .masters import settings_of
    from .options import KmsOptions

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
