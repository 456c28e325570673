"""Where the benchmarks keep what they build, and where they put large files."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_folder() -> Path:
    """A folder for built programs, beside ags1's own in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "ags1" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def scratch_folder(parent: Path | None, needed: int) -> Iterator[Path]:
    """A folder on a disk (not in memory) with ``needed`` bytes free, removed afterwards."""
    parent = parent or cache_folder()
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise OSError(
            f"{parent} has {free >> 20} MiB free and the benchmark needs {needed >> 20} MiB; "
            "--dir names another folder, --size and --file-size make it smaller"
        )
    with tempfile.TemporaryDirectory(prefix="ags1-bench-", dir=parent) as folder:
        yield Path(folder)
