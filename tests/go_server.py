"""Servers for the tests that are Go programs: built once from a module of this folder, and run.

A module's folder has ``go.mod`` and ``go.sum`` with every dependency pinned. The program is built
into the user's cache folder, which takes minutes, and serves on a free port of 127.0.0.1 until its
owner ends. Independent of what the programs do. Imports nothing of ags1.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def have_go() -> bool:
    return shutil.which("go") is not None


def cache_home() -> Path:
    """Return the user's cache folder by the XDG rules."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    return Path(folder) if os.path.isabs(folder) else Path.home() / ".cache"


def build(source: Path, name: str, package: str = ".") -> Path:
    """Return the path of the program ``name``, built if it is not there yet from ``package`` of the
    module in the folder ``source``."""
    environment = os.environ | {"GOWORK": "off", "GOFLAGS": ""}
    version = subprocess.run(
        ["go", "env", "GOVERSION", "GOOS", "GOARCH"],
        env=environment,
        cwd=source,
        capture_output=True,
        check=True,
    ).stdout
    files = sorted([*source.glob("go.*"), *source.glob("*.go")])
    content = b"".join(path.read_bytes() for path in files)
    folder = cache_home() / "ags1" / name
    name += "-" + hashlib.sha256(content + version).hexdigest()[:16]
    program = folder / name
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    # On a slow machine a build takes longer than pytest gives a test.
    faulthandler.cancel_dump_traceback_later()
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():  # another process built it while this one waited
            return program
        print(f"building {program}, which takes some minutes", file=sys.stderr)
        new = folder / f"{name}.new"
        command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false"]
        command += ["-ldflags", "-s -w", "-o", str(new), package]
        done = subprocess.run(
            command, env=environment, cwd=source, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{name} does not build:\n{done.stdout}{done.stderr}"[-4000:])
        new.rename(program)
    return program


@contextlib.contextmanager
def serving(
    name: str,
    command: Callable[[int, Path], list[str]],
    environment: dict[str, str],
    is_ready: Callable[[], bool],
    secret: str,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server, and yield its process. ``command`` is called with a free port and a folder that
    ends with the server. ``is_ready`` may raise OSError or ValueError while the server starts.
    ``secret`` is left out of what the server said if it does not start."""
    with contextlib.ExitStack() as stack:
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # servers sync what they keep
        made = tempfile.TemporaryDirectory(prefix=f"ags1-{name}-", dir=memory)
        folder = Path(stack.enter_context(made))
        for attempt in range(3):
            port = free_port()
            log = folder / f"{name}.log"
            with open(log, "wb") as output:
                server = subprocess.Popen(
                    command(port, folder),
                    env=environment | {"HOME": str(folder)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C is for us
                )
            stack.callback(_stop, server)
            stack.enter_context(_watchdog(server, folder))
            if _becomes_ready(server, is_ready):
                break
            said = log.read_text(errors="replace")[-3000:].replace(secret, "…")
            if server.poll() is None or "address already in use" not in said or attempt == 2:
                raise RuntimeError(f"{name} did not start:\n{said}")
        yield server


def _becomes_ready(server: subprocess.Popen[bytes], is_ready: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            if is_ready():
                return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def _watchdog(server: subprocess.Popen[bytes], folder: Path) -> Any:
    # However this process ends, its end of the pipe is closed, and the shell's `read` returns.
    watchdog = subprocess.Popen(
        ["sh", "-c", 'read _; kill -9 "$0"; rm -rf "$1"', str(server.pid), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        _stop(watchdog)
        assert watchdog.stdin is not None
        watchdog.stdin.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
