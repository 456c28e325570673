"""Which kind of ledger a text names, and the one way to open it.

a folder, or file:/…           ``folder``, for one machine
s3://…, gs://…, another URL    ``object_store``, for any number of machines
"""

from __future__ import annotations

import errno
import os
import re

from ..keys import KmsConfig
from ..paths import local_path
from .base import Ledger
from .folder import FolderLedger
from .object_store import ObjectLedger

# URLs with one slash: dbfs:/ledger, or s3:/bucket/ledger, which pathlib makes of s3://.
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")


def ledger_location(text: str | os.PathLike[str]) -> str:
    """Return the text of a ledger in the form that means the same in any current folder. Raises
    OSError for a URL with one slash: taken as a path, it would name a folder below the current one,
    and the only copy of the keys would be there."""
    path = os.fspath(text)
    here = local_path(path)
    if here is None:
        return path.rstrip("/")
    if _ONE_SLASH.match(here):
        said = "this is neither a folder nor a URL: write two slashes behind the colon"
        raise OSError(errno.EINVAL, said, path)
    return os.path.abspath(here)


def check_ledger(text: str | os.PathLike[str]) -> None:
    """Raise OSError unless a ledger exists. Costs a moment, so that it can be called before Spark
    starts."""
    open_ledger(text, writing=False).close()


def open_ledger(
    text: str | os.PathLike[str],
    *,
    writing: bool,
    durable: bool = True,
    root: str | None = None,
    kms: KmsConfig | None = None,
    key_id: str | None = None,
) -> Ledger:
    """Open the ledger that a text names. With ``writing``, it is made if it does not exist, and no
    other job may write the same files until it is closed.

    ``durable`` syncs a folder's files to the disk. ``root`` is the folder of the files that the
    caller will write; None means any files. Folders and URLs have one writer, whatever its root.
    ``kms`` and ``key_id``, the master key, are those of the job, for kinds that are encrypted
    themselves.

    Raises BlockingIOError while another job writes,
    OSError, FormatError for a file there that is not a ledger's, and KmsAccessDeniedError for a
    ledger that other users may write to: jobs move and remove the files that a ledger names.
    """
    location = ledger_location(text)
    if local_path(location) is None:
        return ObjectLedger(location, writing=writing)
    return FolderLedger(location, writing=writing, durable=durable)
