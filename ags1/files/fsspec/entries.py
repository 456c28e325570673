"""Entries of a listing of fsspec: which of them are encrypted files. Independent of storages."""

from __future__ import annotations

from typing import Any

from ...host.atomic import is_temporary
from ..paths import SUFFIX

Info = dict[str, Any]


def names_of(listing: list[Info]) -> list[str]:
    """Return the names of entries."""
    return [info["name"] for info in listing]


def is_file(info: Info) -> bool:
    """Whether an entry is no folder."""
    return bool(info["type"] != "directory")


def is_encrypted(info: Info) -> bool:
    """Whether an entry is a file with the name of an encrypted one."""
    name = info["name"].rpartition("/")[2]
    plain = name.removesuffix(SUFFIX)
    # A file that was encrypted twice has no name here.
    is_named = plain not in ("", name) and not plain.endswith(SUFFIX)
    return is_file(info) and is_named and not is_temporary(name)


def is_same(name: str, path: str) -> bool:
    """Whether an entry's name is that of ``path``."""
    return name.strip("/") == path.strip("/")
