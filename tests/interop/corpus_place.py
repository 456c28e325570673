"""The folder where the metadata of the corpus's tables says that they are. Knows no table."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

from .jars import cache_folder

PLACE = Path("/tmp/ags1-fixtures")


@contextlib.contextmanager
def in_place() -> Iterator[Path]:
    """Have ``PLACE`` as an empty folder, one process at a time. Raises FileExistsError."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "corpus-tables.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        PLACE.mkdir()
        try:
            yield PLACE
        finally:
            shutil.rmtree(PLACE)
