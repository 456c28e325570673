"""Other versions of PySpark than this environment's, which pip fetches once."""

from __future__ import annotations

import fcntl
import importlib.metadata
import subprocess
import sys
from pathlib import Path

from go_server import cache_home


def pyspark(version: str) -> list[Path]:
    """Return the folder with that PySpark, fetched if it is not there yet; none if it is this
    environment's."""
    if importlib.metadata.version("pyspark") == version:
        return []
    folder = cache_home() / "ags1" / "pyspark" / version
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{version}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            made = folder.with_name(f"{version}.new")
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps"]
            subprocess.run([*install, "--target", made, f"pyspark=={version}"], check=True)
            made.rename(folder)
    return [folder]
