"""Crates behind programs of ours, in memory: iceberg-rust's public AesGcmFileWrite and
AesGcmFileRead, and FLOE by fast-floe on AWS-LC.

``cargo`` builds them in the user's cache folder: iceberg-rust takes some six minutes on one core
the first time, and AWS-LC two. So they are measured only when they are asked for.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.storage import cache_folder

from .process import ProcessPeer, run_quietly


class _RustPeer(ProcessPeer):
    crate: str
    """Its name in the manifest."""
    package: str
    """The folder of our program."""

    def missing(self) -> str | None:
        return None if shutil.which("cargo") else "cargo"

    def version(self) -> str:
        manifest = (Path(__file__).with_name(self.package) / "Cargo.toml").read_text()
        return manifest.partition(f'{self.crate} = "=')[2].partition('"')[0]

    def command(self) -> Sequence[str | Path]:
        # A copy, so that cargo's lock file and target folder stay out of the project.
        folder = cache_folder() / self.package
        shutil.copytree(Path(__file__).with_name(self.package), folder, dirs_exist_ok=True)
        program = folder / "target" / "release" / f"ags1-bench-{self.package.replace('_', '-')}"
        if not program.exists():
            print(f"   building {self.name}, which takes some minutes", flush=True)
        run_quietly(["cargo", "build", "--release"], "cargo build", folder)
        return [program]


class IcebergRust(_RustPeer):
    name = "iceberg-rust"
    crate, package = "iceberg", "iceberg_rust"
    rounds: int | None = 5


class FastFloe(_RustPeer):
    name = "FLOE, fast-floe"
    crate, package = "fast-floe", "fast_floe"
    writes_ags1 = False
