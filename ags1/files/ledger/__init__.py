"""The ledger: what became of each file of a job, and its wrapped key. If the ledger is lost, the
files cannot be decrypted.
"""

from .ledger import JobNote, Ledger, check_ledger, ledger_location, open_ledger
from .rows import (
    DECRYPT,
    DONE,
    ENCRYPT,
    FAILED,
    REMOVED,
    SCHEMA,
    SKIPPED,
    Batch,
    Row,
)

__all__ = [
    "DECRYPT",
    "DONE",
    "ENCRYPT",
    "FAILED",
    "REMOVED",
    "SCHEMA",
    "SKIPPED",
    "Batch",
    "JobNote",
    "Ledger",
    "Row",
    "check_ledger",
    "ledger_location",
    "open_ledger",
]
