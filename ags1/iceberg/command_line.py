"""The whole interface of the command line's package, as ``distributed`` is that of Spark's.

It has the public names of ``ags1.iceberg`` that commands use, and what they need besides:
PyIceberg's configuration, filters and times as they are typed, and where a moved table says that it
is.
"""

from .catalog import EncryptedCatalog, PlainTableWarning, catalog_with
from .operations.catalog_jobs import MigrationResult
from .operations.check import check_table
from .operations.check.findings import Finding, TableCheck
from .operations.compact import Compacted
from .operations.delete_rows import RowsDeleted
from .operations.orphans import OrphanFiles
from .operations.rekey import Rekeyed
from .pyiceberg.catalogs import configured_catalogs, configured_properties
from .pyiceberg.expressions import parse_filter
from .read.binding import bind_filter
from .spec.moments import moment
from .storage.metadata_files import moved_to
from .table import EncryptedTable, open_table
from .write.conflicts import ConflictError

__all__ = [
    "Compacted",
    "ConflictError",
    "EncryptedCatalog",
    "EncryptedTable",
    "Finding",
    "MigrationResult",
    "OrphanFiles",
    "PlainTableWarning",
    "Rekeyed",
    "RowsDeleted",
    "TableCheck",
    "bind_filter",
    "catalog_with",
    "check_table",
    "configured_catalogs",
    "configured_properties",
    "moment",
    "moved_to",
    "open_table",
    "parse_filter",
]
