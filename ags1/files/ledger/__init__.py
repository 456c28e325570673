"""The ledger: what became of each file of a job, and its wrapped key. If the ledger is lost, the
files cannot be decrypted.

    ledger       what a ledger promises; ``open_ledger``
    state        its state, and the claim of the job that writes: one protocol for all storages
    claims       which process holds a claim
    segments     files of settled batches, one or many each
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
