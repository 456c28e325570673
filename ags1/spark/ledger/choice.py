"""Which kind of ledger a text names, and the one way to open it.

a folder, or file:/…           ``folder``, for one machine
"""

from __future__ import annotations

import errno
import os
import re

from ..keys import KmsConfig
from ..paths import local_path
from .base import Ledger
from .folder import FolderLedger

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def ledger_location(text: str | os.PathLike[str]) -> str:
    """Return the text of a ledger in the form that means the same in any current folder. Raises
    OSError for a URL that is no ledger: taken as a path, it would name a folder below the current
    one, and the only copy of the keys would be there."""
    path = os.fspath(text)
    here = local_path(path)
    # Also URLs with one slash: dbfs:/ledger, or s3:/bucket/ledger, which pathlib makes of s3://.
    if here is None or _URL.match(here):
        raise OSError(errno.EINVAL, "a ledger has to be a folder of the driver, not a URL", path)
    return os.path.abspath(here)


def check_ledger(text: str | os.PathLike[str]) -> None:
    """Raise OSError unless a ledger exists. Costs a moment, so that it can be called before Spark
    starts."""
    os.listdir(ledger_location(text))


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
    caller will write; None means any files. A folder has one writer, whatever its root. ``kms`` and
    ``key_id``, the master key, are those of the job, for kinds that are encrypted themselves.

    Raises BlockingIOError while another job writes,
    OSError, FormatError for a file there that is not a ledger's, and KmsAccessDeniedError for a
    ledger that other users may write to: jobs move and remove the files that a ledger names.
    """
    return FolderLedger(ledger_location(text), writing=writing, durable=durable)
