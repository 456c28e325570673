"""PostgreSQL on a Unix socket and, for Java, on a port of 127.0.0.1, with a database in a temporary
folder. Independent of catalogs."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import jars

_TIMEOUT_S = 60


@contextmanager
def postgres(port: int | None = None) -> Iterator[str]:
    """Start a server; give SQLAlchemy's URI of a database in it, on the port if one is given."""
    try:
        import psycopg2  # noqa: F401 - what SQLAlchemy needs
    except ImportError as error:
        jars.unavailable(f"{error.name} is not installed")
    initdb, pg_ctl = _program("initdb"), _program("pg_ctl")
    # Not under pytest's folder, which nobody else may enter.
    folder = Path(tempfile.mkdtemp(prefix="ags1-pg-"))
    as_user: dict[str, Any] = {"cwd": folder}
    if os.geteuid() == 0:
        # It refuses to run as root.
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        as_user |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    address = "" if port is None else f"127.0.0.1 -c port={port}"
    options = f"-c listen_addresses={address} -c unix_socket_directories={folder} -c fsync=off"
    try:
        _run([initdb, "-D", "data", "-A", "trust", "-U", "ags1", "-E", "UTF8", "-N"], **as_user)
        _run([pg_ctl, "-D", "data", "-l", "log", "-w", "-o", options, "start"], **as_user)
        try:
            place = f"/postgres?host={folder}" if port is None else f"127.0.0.1:{port}/postgres"
            yield f"postgresql+psycopg2://ags1@{place}"
        finally:
            _run([pg_ctl, "-D", "data", "-m", "immediate", "stop"], **as_user)
    finally:
        shutil.rmtree(folder)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        # Debian keeps them apart by version.
        versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
        found = max(map(str, versions), default=None)
    return found or jars.unavailable(f"{name} is not on this machine")


def _run(command: list[str], **options: Any) -> None:
    # Not a pipe, which a server that was started would keep open.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
            **options,
        )
        output.seek(0)
        assert done.returncode == 0, output.read().decode(errors="replace")
