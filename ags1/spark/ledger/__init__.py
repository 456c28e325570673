"""The ledger: what became of each file of a job, and its wrapped key. If the ledger is lost, the
files cannot be decrypted.

    rows          a row, its columns, and Parquet files of rows
    base          what a ledger of any kind promises
    segments      files of settled batches, one or many each
    folder        a folder of the driver's file system
    objects       conditional writes to an object storage
    object_store  a folder of an object storage
    claims        the job that writes to it
    copying       the rows of one ledger into another, and as one Parquet file
    choice        ``open_ledger``: the kind that a text names
    lookup        the wrapped keys of files, for readers that are no jobs
"""

from .base import JobNote, Ledger
from .choice import check_ledger, ledger_location, open_ledger
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
