"""Whole encrypted tables on Spark's executors: verified, migrated, rekeyed.

They run the code of ``ags1.iceberg.verify_table``, ``EncryptedCatalog.migrate_table`` and
``EncryptedTable.rekey``, and return the same. The driver plans, reports and commits; executors do
the work on data and delete files (``ags1.iceberg.distributed``). A table is named as
for the data source "ags1-iceberg": by its name in a catalog or the location of its metadata.json,
and by options (``catalog``, ``catalog.<property>``, ``key``, …, see ``table_access``). An
option that is not known is refused. No option may be a secret: driver and executors open the table,
its storage and its KMS each for themselves::

    verify_table(spark, "db.flights", {"catalog": "prod"})
    migrate_table(spark, "db.flights", "tables", {"catalog": "prod"})
    rekey_table(spark, "db.flights", {"catalog": "prod"})
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from uuid import uuid4

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import ALWAYS_TRUE
from pyiceberg.table.refs import MAIN_BRANCH

from ...iceberg.distributed import (
    ContentFile,
    EncryptedCatalog,
    EncryptedTable,
    FileChecks,
    FileRewrites,
    MigrationResult,
    Rekeyed,
    TableCheck,
    migrate,
)
from ...iceberg.distributed import verify_table as verify_with
from ...keys.manager import DEFAULT_DATA_KEY_LENGTH
from .. import known_options as known_names
from .. import options as opt
from ..jobs.group import JobGroup
from ..table_access import TableByOptions, catalog_of_options, open_of_options

__all__ = ["migrate_table", "rekey_table", "verify_table"]

Options: TypeAlias = "Mapping[str, str]"


def verify_table(
    spark: Any,
    table: str | EncryptedTable,
    options: Options | None = None,
    *,
    cores: int | None = None,
    progress: Callable[[int, int | None], object] | None = None,
    require_encrypted: bool = False,
    list_folders: bool = True,
) -> TableCheck:
    """Authenticate every file of every snapshot of a table.

    ``table`` is its name, the location of its metadata.json, or the table if the driver has opened
    it already; then ``options`` need not have its name and its catalog's. ``cores`` are those of
    the cluster, by default what Spark says. The driver reads the manifests. The other arguments and
    the errors are as in ``ags1.iceberg.verify_table``, and besides KmsConfigurationError for an
    option that is a secret, and TaskFailedError if tasks fail again and again for a reason other
    than a file.
    """
    opened, known = _opened(table, options)
    return verify_with(
        opened,
        progress=progress,
        require_encrypted=require_encrypted,
        list_folders=list_folders,
        executor=FileChecks(_runner(spark, cores), opened, TableByOptions.of(known)),
    )


def migrate_table(
    spark: Any,
    table: str,
    key_id: str,
    options: Options | None = None,
    *,
    catalog: EncryptedCatalog | None = None,
    data_key_length: int = DEFAULT_DATA_KEY_LENGTH,
    drop_refs: bool = False,
    delete_plaintext: bool = False,
    cores: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> MigrationResult:
    """Encrypt a table that is not encrypted under the master key ``key_id``, in one commit.

    ``table`` is its name in the catalog that ``options`` describe; ``catalog`` is that catalog, if
    the driver has opened it already. The next run, on Spark or on one machine, continues one that
    was killed, and does not repeat the files of waves of tasks that had ended. The other arguments
    and the errors are as in ``EncryptedCatalog.migrate_table``, and besides
    KmsConfigurationError for an option that is a secret, and TaskFailedError.

    There are more than eight arguments, because each is an option of the migration or of Spark.
    """
    known = _of_name(options, table)

    def verify(migrated: EncryptedTable) -> TableCheck:
        options = {**known, "key": key_id}
        return verify_table(spark, migrated, options, cores=cores, list_folders=False)

    with contextlib.ExitStack() as stack:
        rewrites = FileRewrites(_runner(spark, cores), TableByOptions.of(known), is_plain=True)
        executor = stack.enter_context(rewrites)
        if catalog is None:
            catalog = stack.enter_context(contextlib.closing(catalog_of_options(known)))
        return migrate(
            catalog,
            table,
            key_id,
            data_key_length=data_key_length,
            drop_refs=drop_refs,
            delete_plaintext=delete_plaintext,
            dry_run=dry_run,
            progress=progress,
            executor=executor,
            verify=verify,
        )


def rekey_table(
    spark: Any,
    table: str | EncryptedTable,
    options: Options | None = None,
    row_filter: str | BooleanExpression = ALWAYS_TRUE,
    *,
    select: Callable[[ContentFile], bool] | None = None,
    case_sensitive: bool = True,
    branch: str | None = MAIN_BRANCH,
    cores: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Rekeyed:
    """Rewrite files of a table under fresh keys, in one snapshot; return how many.

    ``table`` and ``options`` are as for ``verify_table``, but not a metadata.json, which has no
    catalog to commit to. The other arguments and the errors are as in ``EncryptedTable.rekey``;
    also raises KmsConfigurationError for an option that is a secret, and TaskFailedError.

    There are more than eight arguments, because each is an option of the rekeying or of Spark.
    """
    opened, known = _opened(table, options)
    with FileRewrites(_runner(spark, cores), TableByOptions.of(known)) as executor:
        return opened.rekey(
            row_filter,
            select=select,
            case_sensitive=case_sensitive,
            branch=branch,
            dry_run=dry_run,
            progress=progress,
            executor=executor,
        )


def _runner(spark: Any, cores: int | None) -> JobGroup:
    return JobGroup(spark, f"ags1-{uuid4()}", "ags1: files of a table", cores)


def _opened(
    table: str | EncryptedTable, options: Options | None
) -> tuple[EncryptedTable, dict[str, str]]:
    """Return the table, and the options by which executors open it."""
    if isinstance(table, str):
        known = _of_name(options, table)
        table = open_of_options(known)
    elif isinstance(table.catalog, NoopCatalog):
        known = _checked(options, table.metadata_location)
    else:
        known = _checked(options, ".".join(table.name()))
        known.setdefault("catalog", table.catalog.name)
    # The master key that the driver has used, whatever the metadata says later.
    known["key"] = table.key_id
    if table.files.location_map:
        known.setdefault("location-map", json.dumps(table.files.location_map))
    return table, known


def _of_name(options: Options | None, table: str) -> dict[str, str]:
    """Return the options of a job on a table that is named. Raises as ``_checked``."""
    known = _checked(options, table)
    if known["path"] != table:
        raise ValueError("the option 'path' is an argument too: leave one out")
    return known


def _checked(options: Options | None, path: str) -> dict[str, str]:
    """Return the options of a job on the table ``path``. Raises ValueError for one that
    is not known, and KmsConfigurationError for one that is a secret."""
    known = opt.as_spark_names(options)
    known.setdefault("path", path)
    opt.refuse_secrets(known)
    known_names.check(known, known_names.TABLES, known_names.JOB)
    return known
