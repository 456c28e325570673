"""Tables that are made once for all tests of a module, and put back before each of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


class KeptTables:
    """Makes a table in a new SQL catalog, or puts back what the same call has made before.

    Manifests have the paths of their files, so the tables lie in the same place one after the
    other. A test has one of them, and may do with it and its catalog what it likes.
    """

    def __init__(self, folder: Path, open_catalog: Callable[[Path], Any]) -> None:
        self.place = folder / "place"
        self._folder = folder
        self._open_catalog = open_catalog
        self._made: dict[Any, tuple[Path, str]] = {}
        self._opened: Any = None

    def __call__(self, make: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Return the table that ``make(catalog, *arguments, **named)`` makes."""
        self.close()
        key = make, repr((arguments, named))
        if key in self._made:
            kept, name = self._made[key]
            shutil.copytree(kept, self.place)
        else:
            self.place.mkdir(parents=True)
            catalog = self._open_catalog(self.place)
            name = make(catalog, *arguments, **named).name()
            catalog.close()
            kept = self._folder / str(len(self._made))
            shutil.copytree(self.place, kept)
            self._made[key] = kept, name
        self._opened = self._open_catalog(self.place)
        return self._opened.load_table(name)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        shutil.rmtree(self.place, ignore_errors=True)
