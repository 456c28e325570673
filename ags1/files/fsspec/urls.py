"""Encrypted files by their URLs, for libraries that do not ask fsspec themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsspec.core import url_to_fs

from .system import Ags1FileSystem

_PREFIX = f"{Ags1FileSystem.protocol}::"


def at_url(url: str, options: Mapping[str, Any] | None = None) -> tuple[Ags1FileSystem, str]:
    """Return the file system and the path in it that ``url`` means, with or without ``ags1::``. A
    path without a scheme is one of this machine. ``options`` are those for ``ags1::`` URLs."""
    plain = url.removeprefix(_PREFIX).removeprefix("ags1://")
    plain = plain if "://" in plain else f"file://{plain}"
    files, path = url_to_fs(f"{_PREFIX}{plain}", **options or {})
    return files, path
