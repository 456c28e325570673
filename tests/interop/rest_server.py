"""The REST server of Java's reference implementation, on 127.0.0.1, over a catalog in SQLite.

Its tables' metadata lies in files. Independent of encryption; the server does not either, but for
keeping what the protocol has of it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import jars

SOURCE = Path(__file__).with_name("rest") / "RestServer.java"


@contextmanager
def rest_server(
    warehouse: Path, log: Path, database: str = "file:rest?mode=memory&cache=shared"
) -> Iterator[str]:
    """Start the server over Java's JDBC catalog named ``rest``; give its URI."""
    class_path = [
        *jars.with_dependencies(jars.REST_SERVER),
        *jars.pyspark_jars("hadoop-client-api", "hadoop-client-runtime"),
    ]
    with log.open("wb") as stderr:
        server = subprocess.Popen(
            [
                *(jars.program("java"), "-Xmx512m", "-XX:+UseSerialGC", *jars.JVM_OPTIONS),
                *("-cp", os.pathsep.join(map(str, class_path)), str(SOURCE)),
                *(f"file:{warehouse}", f"jdbc:sqlite:{database}"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = server.stdout.readline().strip()
        assert port, f"the server did not start; it said: {log.read_text(errors='replace')[-2000:]}"
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stdin.close()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()
