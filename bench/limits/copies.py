"""Copying without encrypting: ``memcpy`` between kept buffers, ``cp`` and ``cat`` on files."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


def copy_memory(target: bytearray, source: bytearray) -> None:
    """One ``memcpy`` of all of ``source``."""
    size = len(source)
    into = (ctypes.c_char * size).from_buffer(target)
    out_of = (ctypes.c_char * size).from_buffer(source)
    ctypes.memmove(into, out_of, size)


def run_command(command: Sequence[str | Path], output: Path | str | None = None) -> None:
    """Run a program as a shell would, its output into the file ``output``."""
    with open(output or os.devnull, "wb") as file:
        subprocess.run(command, stdout=file, check=True)


def sync_file(path: Path) -> None:
    """fsync of the file and of its folder: what a durable copy needs beside the copying."""
    for name in (path, path.parent):
        descriptor = os.open(name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
