"""Which kind of ledger a text names, and the one way to open it.

a folder, or file:/…         ``folder``, for one machine
s3://…, gs://…, another URL  ``object_store``, for any number of machines
"""

from __future__ import annotations

import errno
import os
import re

from ..paths import local_path
from .base import Ledger
from .folder import FolderLedger
from .object_store import ObjectLedger

# The ledgers of releases before 0.2 could be tables.
_TABLE = "iceberg:"
_TABLES_ROWS = (
    "a ledger is a folder or a URL, and no longer a table. Write the rows of the table to a file "
    "(ags1 table scan TABLE --catalog CATALOG --filter \"entry = 'settled'\" -o FILE.parquet), and "
    "copy them into a ledger (ags1 spark ledger import LEDGER FILE.parquet)"
)
# URLs with one slash: dbfs:/ledger, or s3:/bucket/ledger, which pathlib makes of s3://.
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")


def ledger_location(text: str | os.PathLike[str]) -> str:
    """Return the text of a ledger in the form that means the same in any current folder. Raises
    OSError for a URL with one slash: taken as a path, it would name a folder below the current one,
    and the only copy of the keys would be there. Raises OSError for a table too."""
    path = os.fspath(text)
    if path.startswith(_TABLE):
        raise OSError(errno.EINVAL, _TABLES_ROWS, path)
    here = local_path(path)
    if here is None:
        return path.rstrip("/")
    if _ONE_SLASH.match(here):
        message = "this is neither a folder nor a URL: write two slashes behind the colon"
        raise OSError(errno.EINVAL, message, path)
    return os.path.abspath(here)


def check_ledger(text: str | os.PathLike[str]) -> None:
    """Raise OSError unless a ledger exists. Costs a moment, so that it can be called before Spark
    starts."""
    open_ledger(text, writing=False).close()


def open_ledger(text: str | os.PathLike[str], *, writing: bool, durable: bool = True) -> Ledger:
    """Open the ledger that a text names. With ``writing``, it is made if it does not exist, and no
    other job may write to it until it is closed. ``durable`` syncs a folder's files to the disk.

    Raises BlockingIOError while another job writes, OSError, FormatError for a file there that is
    not a ledger's, and KmsAccessDeniedError for a ledger that other users may write to: jobs move
    and remove the files that a ledger names.
    """
    location = ledger_location(text)
    if local_path(location) is None:
        return ObjectLedger(location, writing=writing)
    return FolderLedger(location, writing=writing, durable=durable)
