"""iceberg-rust's public AesGcmFileWrite and AesGcmFileRead, in memory.

``cargo`` builds the crate in the user's cache folder: some six minutes on one core the first time,
which is why it is measured only when asked for.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.storage import cache_folder

from .process import ProcessPeer, run_quietly

PACKAGE = Path(__file__).with_name("iceberg_rust")
PROGRAM = "ags1-bench-iceberg-rust"


class IcebergRust(ProcessPeer):
    name = "iceberg-rust"
    rounds: int | None = 5

    def missing(self) -> str | None:
        return None if shutil.which("cargo") else "cargo"

    def version(self) -> str:
        manifest = (PACKAGE / "Cargo.toml").read_text()
        return manifest.partition('iceberg = "=')[2].partition('"')[0]

    def command(self) -> Sequence[str | Path]:
        # A copy, so that cargo's lock file and target folder stay out of the project.
        folder = cache_folder() / "iceberg_rust"
        shutil.copytree(PACKAGE, folder, dirs_exist_ok=True)
        program = folder / "target" / "release" / PROGRAM
        if not program.exists():
            print("   building iceberg-rust, which takes some minutes", flush=True)
        run_quietly(["cargo", "build", "--release"], "cargo build", folder)
        return [program]
