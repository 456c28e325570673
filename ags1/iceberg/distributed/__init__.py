"""Work on an encrypted table in other processes: the whole interface of Spark's package.

    FileChecks, FileRewrites   ``verify_table``, ``migrate`` and ``rekey`` by other processes
    ScanJob                    reads a scan's parts
    WriteJob                   writes new data files, and commits them

A job sends the keys of files wrapped under a key of its own, and each process has the KMS unwrap
that key (``sealed``). A ``Runner`` (``ags1.host.runners``) runs the tasks. Independent of Spark.
"""

from ..catalog import EncryptedCatalog, load_catalog
from ..operations.catalog_jobs import MigrationResult, migrate
from ..operations.check import verify_table
from ..operations.check.findings import TableCheck
from ..operations.rekey import Rekeyed
from ..pyiceberg.catalogs import configured_properties
from ..pyiceberg.expressions import parse_filter, rename_columns
from ..read.binding import bind_filter
from ..read.metadata_columns import METADATA_NAMES
from ..read.records import ContentFile
from ..read.scan import EncryptedScan
from ..table import EncryptedTable, open_table
from .executors import FileChecks, FileRewrites
from .scan import ScanJob
from .write import WriteJob

__all__ = [
    "METADATA_NAMES",
    "ContentFile",
    "EncryptedCatalog",
    "EncryptedScan",
    "EncryptedTable",
    "FileChecks",
    "FileRewrites",
    "MigrationResult",
    "Rekeyed",
    "ScanJob",
    "TableCheck",
    "WriteJob",
    "bind_filter",
    "configured_properties",
    "load_catalog",
    "migrate",
    "open_table",
    "parse_filter",
    "rename_columns",
    "verify_table",
]
