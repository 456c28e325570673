"""Whole encrypted tables on Spark's executors: verified, migrated, rekeyed.

The functions do what ``ags1.iceberg.verify_table``, ``EncryptedCatalog.migrate_table`` and
``EncryptedTable.rekey`` do, by the same code, and return the same: the driver plans, reports and
commits, and what takes long, the work on each data and delete file, is the executors'. A table is
named as for the data source "ags1-iceberg": by its name in a catalog or its metadata.json, and
options (``catalog``, ``catalog.<property>``, ``key``, ``keyring``, …, see ``table_access``), none
of which may be a secret. Driver and executors open the table, its storage and its KMS each by
themselves::

    verify_table(spark, "db.flights", {"catalog": "prod"})
    migrate_table(spark, "db.flights", "tables", {"catalog": "prod"})
    rekey_table(spark, "db.flights", {"catalog": "prod"})
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import ALWAYS_TRUE
from pyiceberg.table.refs import MAIN_BRANCH

from ..iceberg import verify as verification
from ..iceberg.catalog import EncryptedCatalog
from ..iceberg.findings import TableVerification
from ..iceberg.maintenance import jobs
from ..iceberg.maintenance.jobs import MigrationResult
from ..iceberg.maintenance.meter import Progress
from ..iceberg.table import EncryptedTable, Rekeyed
from ..iceberg.writing.entries import FileRecord
from ..keys.manager import DEFAULT_DATA_KEY_LENGTH
from .table_access import catalog_of_options, open_of_options
from .table_executors import SparkChecks, SparkRewrites

__all__ = ["migrate_table", "rekey_table", "verify_table"]

Options: TypeAlias = "Mapping[str, str]"


def verify_table(
    spark: Any,
    table: str | EncryptedTable,
    options: Options | None = None,
    *,
    cores: int | None = None,
    progress: verification.Progress | None = None,
    require_encrypted: bool = False,
    list_folders: bool = True,
) -> TableVerification:
    """Authenticate every file of every snapshot of a table.

    ``table`` is its name or the location of its metadata.json, or the table, if the driver has it
    open already; then ``options`` are what executors need besides its name and its catalog's.
    ``cores`` are those of the cluster, by default what Spark says. The other arguments, and what is
    raised, are those of ``ags1.iceberg.verify_table``; KmsConfigurationError also for an option
    that is a secret, TaskFailedError when tasks fail over and over for another reason than a file.
    The manifests are read by the driver.
    """
    opened, known = _opened(table, options)
    return verification.verify_table(
        opened,
        progress=progress,
        require_encrypted=require_encrypted,
        list_folders=list_folders,
        executor=SparkChecks(spark, opened, known, cores=cores),
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
    progress: Progress | None = None,
) -> MigrationResult:
    """Encrypt a plain table under the master key ``key_id``, in its place and in one commit.

    ``table`` is its name in the catalog that ``options`` describe; ``catalog`` is that catalog, if
    the driver has it open already. A run that was killed is gone on with by the next one, on Spark
    or on one machine: what it finds done are the files of all waves of tasks that had ended. The
    other arguments, and what is raised, are those of ``EncryptedCatalog.migrate_table``;
    KmsConfigurationError also for an option that is a secret, TaskFailedError.
    """
    known = {**(options or {}), "path": table}

    def verify(migrated: EncryptedTable) -> TableVerification:
        return verify_table(spark, migrated, {**known, "key": key_id}, cores=cores)

    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(SparkRewrites(spark, known, is_plain=True, cores=cores))
        if catalog is None:
            catalog = stack.enter_context(contextlib.closing(catalog_of_options(known)))
        return jobs.migrate(
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
    select: Callable[[FileRecord], bool] | None = None,
    case_sensitive: bool = True,
    branch: str | None = MAIN_BRANCH,
    cores: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Rekeyed:
    """Rewrite files of a table under fresh keys, in one snapshot; return how many.

    ``table`` and ``options`` as for ``verify_table``, except that a metadata.json has no catalog to
    commit to. The other arguments, and what is raised, are those of ``EncryptedTable.rekey``;
    KmsConfigurationError also for an option that is a secret, TaskFailedError.
    """
    opened, known = _opened(table, options)
    with SparkRewrites(spark, known, cores=cores) as executor:
        return opened.rekey(
            row_filter,
            select=select,
            case_sensitive=case_sensitive,
            branch=branch,
            dry_run=dry_run,
            progress=progress,
            executor=executor,
        )


def _opened(
    table: str | EncryptedTable, options: Options | None
) -> tuple[EncryptedTable, dict[str, str]]:
    """Return the table, and the options by which executors open it."""
    known = dict(options or {})
    if isinstance(table, str):
        known["path"] = table
        table = open_of_options(known)
    elif isinstance(table.catalog, NoopCatalog):
        known.setdefault("path", table.metadata_location)
    else:
        known.setdefault("path", ".".join(table.name()))
        known.setdefault("catalog", table.catalog.name)
    # The key that the driver has opened, whatever the metadata says by then.
    known["key"] = table.key_id
    if table.files.location_map:
        known.setdefault("location-map", json.dumps(table.files.location_map))
    return table, known
