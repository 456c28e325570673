"""Which kind of ledger a text names, and the one way to open it.

a folder, or file:/…           ``folder``, for one machine
s3://…, gs://…, another URL    ``object_store``, for any number of machines
iceberg:CATALOG.NAMESPACE.…    ``iceberg``, a table of any catalog that keeps keys
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from .. import options as opt
from ..keys import KmsConfig
from ..paths import local_path
from .base import Ledger
from .folder import FolderLedger
from .object_store import ObjectLedger

_TABLE = "iceberg:"
# URLs with one slash: dbfs:/ledger, or s3:/bucket/ledger, which pathlib makes of s3://.
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")


class LedgerAt(NamedTuple):
    """A ledger, and how to open one that is encrypted itself: with the KMS of the job, unless its
    catalog has one. If the ledger does not exist, it is made under the master key ``key_id``."""

    location: str
    kms: KmsConfig | None = None
    key_id: str | None = None

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> LedgerAt:
        """Return what the options of a data source say. Raises as ``ledger_location`` and
        ``opt.key_settings``."""
        location = ledger_location(options["ledger"])
        if not location.startswith(_TABLE):
            return cls(location)
        chosen = opt.key_settings(options)
        return cls(location, KmsConfig(chosen.properties), chosen.key_id)


def ledger_location(text: str | os.PathLike[str]) -> str:
    """Return the text of a ledger in the form that means the same in any current folder. Raises
    OSError for a URL with one slash: taken as a path, it would name a folder below the current one,
    and the only copy of the keys would be there."""
    path = os.fspath(text)
    if path.startswith(_TABLE):
        return path
    here = local_path(path)
    if here is None:
        return path.rstrip("/")
    if _ONE_SLASH.match(here):
        said = "this is neither a folder nor a URL: write two slashes behind the colon"
        raise OSError(errno.EINVAL, said, path)
    return os.path.abspath(here)


def check_ledger(text: str | os.PathLike[str]) -> None:
    """Raise OSError unless a ledger exists. Costs a moment, so that it can be called before Spark
    starts. A table is not looked for: its catalog may be far away."""
    location = ledger_location(text)
    if not location.startswith(_TABLE):
        open_ledger(location, writing=False).close()


def open_ledger(
    ledger: LedgerAt | str | os.PathLike[str],
    *,
    writing: bool,
    durable: bool = True,
    root: str | None = None,
) -> Ledger:
    """Open a ledger, or the one that a text names. With ``writing``, it is made if it does not
    exist, and no other job may write the same files until it is closed.

    ``durable`` syncs a folder's files to the disk. ``root`` is the folder of the files that the
    caller will write; None means any files. Folders and URLs have one writer, whatever its root.

    Raises BlockingIOError while another job writes, OSError, FormatError for a file there that is
    not a ledger's, and KmsAccessDeniedError for a ledger that other users may write to: jobs move
    and remove the files that a ledger names.
    """
    at = ledger if isinstance(ledger, LedgerAt) else LedgerAt(os.fspath(ledger))
    location = ledger_location(at.location)
    if location.startswith(_TABLE):
        from .iceberg import IcebergLedger  # PyIceberg is optional

        return IcebergLedger(location, writing=writing, root=root, kms=at.kms, key_id=at.key_id)
    if local_path(location) is None:
        return ObjectLedger(location, writing=writing)
    return FolderLedger(location, writing=writing, durable=durable)
