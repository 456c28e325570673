"""``Ags1Path``: encrypted files as paths of universal_pathlib, ``UPath("ags1::file:///data")``.

The class is registered through the entry-point group ``universal_pathlib.implementations``. What a
path does, ``Ags1FileSystem`` does. Independent of keys. Needs universal_pathlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from upath import UPath

_TARGET = ("fo", "target_protocol", "target_options")


class Ags1Path(UPath):  # type: ignore[misc]  # universal_pathlib is optional
    """A path of ``Ags1FileSystem``. Its text is a URL again, ``ags1::file:///data/x.csv``."""

    __slots__ = ()

    @classmethod
    def _transform_init_args(
        cls, args: tuple[Any, ...], protocol: str, storage_options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], str, dict[str, Any]]:
        # For an entry of a folder, universal_pathlib has the path alone, and the chain of file
        # systems in the storage options. This makes a chained URL of both.
        below = storage_options.get("target_protocol")
        if not args or below is None or "::" in str(args[0]):
            return args, protocol, storage_options
        options = {name: given for name, given in storage_options.items() if name not in _TARGET}
        nested = dict(storage_options.get("target_options") or {})
        url = f"ags1::{below}"
        while (deeper := nested.pop("target_protocol", None)) is not None:
            nested.pop("fo", None)
            inner = nested.pop("target_options", {})
            options[below], nested, below = nested, dict(inner), deeper
            url += f"::{below}"
        options[below] = nested
        return (f"{url}://{args[0]}", *args[1:]), "ags1", options

    @classmethod
    def _parse_storage_options(
        cls, urlpath: str, protocol: str, storage_options: Mapping[str, Any]
    ) -> dict[str, Any]:
        # An ags1:: URL itself has none; universal_pathlib would warn that it knows no rules for it.
        return dict(storage_options)
