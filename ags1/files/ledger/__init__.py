"""The ledger: what became of each file of a job, and its wrapped key. If the ledger is lost, the
files cannot be decrypted.

    ledger       what a ledger promises; ``open_ledger``
    packs        the objects with its settled batches
    processes    which process a job runs in
    earlier      ledgers of earlier versions; ``segments`` are their settled batches
    rows         a row, its columns, and Parquet files of rows
    store        the objects of a ledger, in any storage
    copying      the rows of one ledger into another, and as one Parquet file
    lookup       the wrapped keys of files, for readers that are no jobs
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
