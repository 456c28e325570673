"""Encrypted Iceberg tables for PyIceberg: change one import, and encrypted tables open.

>>> from ags1.iceberg import load_catalog, open_table

Needs ``ags1[iceberg]``. All results are of PyIceberg's own classes or subclasses of them.
"""

# First: it raises ArgumentError if PyIceberg's configuration file is broken.
from .pyiceberg import configuration as configuration  # isort: skip

from ..columns.avro.variants import VariantType
from .catalog import EncryptedCatalog, PlainTableWarning, load_catalog
from .operations.catalog_jobs import MigrationResult
from .operations.check import check_table, verify_table
from .operations.check.findings import TableCheck
from .operations.compact import Compacted
from .operations.delete_rows import RowsDeleted
from .operations.erase import Erasure
from .operations.expire_snapshots import Expiry
from .operations.orphans import OrphanFiles
from .operations.rekey import Rekeyed
from .operations.rotation import KeysChanged
from .read.records import ContentFile
from .read.scan import EncryptedScan
from .read.snapshots import EncryptedManifest, EncryptedSnapshot
from .storage.table_files import TableFiles
from .table import EncryptedTable, open_table
from .transaction import EncryptedTransaction

__all__ = [
    "Compacted",
    "ContentFile",
    "EncryptedCatalog",
    "EncryptedManifest",
    "EncryptedScan",
    "EncryptedSnapshot",
    "EncryptedTable",
    "EncryptedTransaction",
    "Erasure",
    "Expiry",
    "KeysChanged",
    "MigrationResult",
    "OrphanFiles",
    "PlainTableWarning",
    "Rekeyed",
    "RowsDeleted",
    "TableCheck",
    "TableFiles",
    "VariantType",
    "check_table",
    "load_catalog",
    "open_table",
    "verify_table",
]
