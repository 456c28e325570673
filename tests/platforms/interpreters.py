"""Interpreters of other kinds, each built or fetched once and kept in the user's cache folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import debian

sys.path.insert(0, str(Path(__file__).parents[2]))

import build_openssl

CACHE = build_openssl._cache_folder(os.environ).with_name("platforms")


def _run(folder: Path, *command: object, **variables: str) -> None:
    subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=os.environ | variables,
        check=True,
        stdout=sys.stderr,
    )


def _make(prefix: Path, source: Path, *options: str, **variables: str) -> None:
    """Configure, compile and install what is in the tar file ``source``."""
    with tempfile.TemporaryDirectory(prefix="ags1-platforms-") as scratch:
        with tarfile.open(source) as archive:
            archive.extractall(scratch, filter="data")
        (folder,) = Path(scratch).iterdir()
        _run(folder, "./configure", f"--prefix={prefix}", *options, **variables)
        _run(folder, "make", f"-j{build_openssl.cpu_count()}", **variables)
        _run(folder, "make", "install", **variables)


@dataclass(frozen=True)
class Interpreter:
    python: Path
    tags: list[str]  # of its packages, as pip has them
    variables: dict[str, str] = field(default_factory=dict)  # of the environment
    pytest: list[str] = field(default_factory=list)
    parallel: str = ""  # which tests also run in several threads at once
    without: frozenset[str] = frozenset()  # packages that there are not for it
    tests: tuple[str, ...] = ("tests/engine",)  # by default


def _tags(version: str, abi: str, *platforms: str) -> list[str]:
    wanted = ["--python-version", version, "--implementation", "cp"]
    # What is compiled for the limited API does not run without the GIL.
    for name in (abi, "none", *(() if abi.endswith("t") else ("abi3",))):
        wanted += ["--abi", name]
    for name in platforms:
        wanted += ["--platform", name]
    return wanted


def freethreaded() -> Interpreter:
    """CPython without the GIL, compiled here."""
    prefix = CACHE / "freethreaded"
    python = prefix / "bin" / "python3"
    if not python.exists():
        archive = debian.Archive(CACHE / "apt-source", "amd64")
        # The packages come from this machine's pip, and Python's own tests are not wanted.
        lean = ("--without-ensurepip", "--disable-test-modules")
        _make(prefix, archive.source("python3.13"), "--disable-gil", *lean)
    return Interpreter(
        python,
        _tags("3.13", "cp313t", *(f"manylinux_{glibc}_x86_64" for glibc in ("2_28", "2_17"))),
        {"PYTHON_GIL": "0"},
        [f"--numprocesses={build_openssl.cpu_count()}"],
        "test_gcm or test_oneshot or test_layout or test_key_metadata or test_stream",
        frozenset({"cryptography"}),
    )


def aarch64() -> Interpreter:
    """Debian's CPython for arm64, under qemu's user mode. The compiler is a cross compiler, which
    the emulated Python starts as a program of this machine."""
    root = CACHE / "aarch64"
    python = root / "python"
    if not python.exists():
        (root / "usr" / "lib").mkdir(parents=True, exist_ok=True)
        if not (root / "lib").is_symlink():
            (root / "lib").symlink_to("usr/lib")
        archive = debian.Archive(CACHE / "apt-arm64", "arm64")
        # numpy and pyarrow are in C++.
        archive.unpack(["python3.13", "libpython3.13-dev", "libstdc++6"], root)
        # Tests start sys.executable, and this machine cannot run it without qemu.
        site = root / "usr" / "lib" / "python3.13" / "sitecustomize.py"
        site.unlink(missing_ok=True)
        site.write_text(f"import sys\n\nsys.executable = {str(python)!r}\n")
        real = root / "usr" / "bin" / "python3.13"
        python.write_text(f'#!/bin/sh\nexec qemu-aarch64 -L {root} {real} "$@"\n')
        python.chmod(0o755)
    headers = root / "usr" / "include" / "python3.13"
    return Interpreter(
        python,
        _tags("3.13", "cp313", *(f"manylinux_{glibc}_aarch64" for glibc in ("2_28", "2_17"))),
        {
            "CC": f"aarch64-linux-gnu-gcc --sysroot={root}",
            "CFLAGS": f"-idirafter {headers}",
        },
        [f"--numprocesses={build_openssl.cpu_count()}"],
        # Emulated, the others take hours. These have the C code, forks and the vectors.
        tests=tuple(
            f"tests/engine/test_{name}.py"
            for name in ("key_use", "gcm", "layout", "key_metadata", "vectors")
        ),
    )


KINDS: Mapping[str, Callable[[], Interpreter]] = {
    "freethreaded": freethreaded,
    "aarch64": aarch64,
}
