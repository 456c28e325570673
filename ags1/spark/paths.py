"""Tells paths of this machine from URLs. No I/O."""

from __future__ import annotations

import errno
import os
import re
from urllib.parse import unquote

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def local_path(path: str) -> str | None:
    """Return the path of a local file, None for the URL of a remote one."""
    if path.startswith("file:"):
        return unquote("/" + path.removeprefix("file:").lstrip("/"))
    return None if "://" in path else path


def ledger_folder(path: str) -> str:
    """Return the absolute path of a ledger's folder. Raises OSError for a URL: taken as a path, it
    would name a folder below the current one, and the only copy of the keys would be there."""
    here = local_path(path)
    # Also URLs with one slash: dbfs:/ledger, or s3:/bucket/ledger, which pathlib makes of s3://.
    if here is None or _URL.match(here):
        raise OSError(errno.EINVAL, "a ledger has to be a folder of the driver, not a URL", path)
    return os.path.abspath(here)
