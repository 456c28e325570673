"""iceberg-rust's newest release, behind a small program of ours that one process serves.

``iceberg_rust/`` is a cargo project with every dependency locked. The program is built into the
user's cache folder, which takes some ten minutes of one core the first time. It reads a request per
line, ``{"call": …}`` with its arguments, and answers ``{"result": …}`` or ``{"error": …}``. Imports
nothing of ags1. Without cargo a test is skipped, but on CI (CI=true) it fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

from . import jars

PACKAGE = Path(__file__).with_name("iceberg_rust")
_PROGRAM = "ags1-interop-iceberg-rust"
_ANSWER_TIMEOUT_S = 60


class RustError(Exception):
    """What iceberg-rust returned as its error; ``panic`` if it panicked."""


class Rust:
    """A process of our program; ``close`` ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [built()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def call(self, name: str, **arguments: Any) -> Any:
        """Call one of the program's functions and return its result. Raises RustError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        hanging = threading.Timer(_ANSWER_TIMEOUT_S, self._process.kill)
        hanging.start()
        try:
            self._process.stdin.write(json.dumps({"call": name} | arguments) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        finally:
            hanging.cancel()
        if not line:
            raise AssertionError(f"the program died or did not answer {name}")
        answer = json.loads(line)
        if "error" in answer:
            raise RustError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End the process, which stops when nobody can ask it any more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def version() -> str:
    """Return the version of the crate ``iceberg`` that the project names."""
    manifest = (PACKAGE / "Cargo.toml").read_text()
    return manifest.partition('iceberg = "=')[2].partition('"')[0]


def built() -> Path:
    """Return the path of our program, from the cache or fresh from cargo, or skip."""
    cargo = jars.program("cargo")
    compiler = subprocess.run(["rustc", "-vV"], capture_output=True, check=True).stdout
    sources = [PACKAGE / "Cargo.toml", PACKAGE / "Cargo.lock", PACKAGE / "src" / "main.rs"]
    content = b"".join(path.read_bytes() for path in sources) + compiler
    folder = jars.cache_folder() / "iceberg_rust"
    program = folder / f"{_PROGRAM}-{hashlib.sha256(content).hexdigest()[:16]}"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():  # another process built it while this one waited
            return program
        command = [cargo, "build", "--locked", "--quiet"]
        command += ["--manifest-path", PACKAGE / "Cargo.toml", "--target-dir", folder / "target"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            if "failed to download" in done.stderr or "failed to get" in done.stderr:
                jars.unavailable(f"cargo cannot fetch iceberg-rust: {done.stderr[-300:]}")
            raise AssertionError(f"iceberg-rust does not build:\n{done.stderr[-4000:]}")
        new = program.with_suffix(".new")
        shutil.copy2(folder / "target" / "debug" / _PROGRAM, new)
        os.rename(new, program)
    return program
