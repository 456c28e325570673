"""Encrypted Iceberg tables through PyIceberg: one changed import, and they open.

>>> from ags1.iceberg import load_catalog, open_table

Needs ``ags1[iceberg]``. What is handed back are PyIceberg's own classes, or subclasses of them.
"""

from .catalog import EncryptedCatalog, PlainTableWarning, load_catalog
from .files import TableFiles
from .findings import TableVerification
from .maintenance.jobs import MigrationResult
from .maintenance.relocation import RelocationResult
from .scan import EncryptedScan
from .snapshots import ContentFile, EncryptedManifest, EncryptedSnapshot
from .table import EncryptedTable, Expiry, Rekeyed, open_table
from .verify import verify_table
from .writing.transaction import EncryptedTransaction

__all__ = [
    "ContentFile",
    "EncryptedCatalog",
    "EncryptedManifest",
    "EncryptedScan",
    "EncryptedSnapshot",
    "EncryptedTable",
    "EncryptedTransaction",
    "Expiry",
    "MigrationResult",
    "PlainTableWarning",
    "Rekeyed",
    "RelocationResult",
    "TableFiles",
    "TableVerification",
    "load_catalog",
    "open_table",
    "verify_table",
]
