"""The names of encrypted files; and which paths are on this machine, and which are URLs. No I/O."""

from __future__ import annotations

from urllib.parse import unquote

# What the names of encrypted files end in.
SUFFIX = ".ags1"


def local_path(path: str) -> str | None:
    """Return the path of a local file, None for the URL of a remote one."""
    if path.startswith("file:"):
        return unquote("/" + path.removeprefix("file:").lstrip("/"))
    return None if "://" in path else path
