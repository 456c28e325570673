"""An HDFS for the tests: Hadoop's minicluster, a namenode and a datanode on 127.0.0.1.

Maven fetches it once. Clients reach it by WebHDFS. Independent of Spark.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interop import jars

SOURCE = Path(__file__).parent / "hdfs" / "HdfsServer.java"


@contextmanager
def hdfs_server() -> Iterator[str]:
    """Start the server; give its URL, ``webhdfs://127.0.0.1:PORT``."""
    class_path = os.pathsep.join(map(str, jars.with_dependencies(jars.HDFS)))
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="ags1-hdfs-", dir=memory) as folder:
        log = Path(folder, "log")
        with log.open("wb") as stderr:
            server = subprocess.Popen(
                [
                    *(jars.program("java"), "-Xmx512m", "-XX:+UseSerialGC", *jars.JVM_OPTIONS),
                    "--add-opens=java.base/java.lang=ALL-UNNAMED",  # for its JAXB
                    *("-cp", class_path, str(SOURCE), f"{folder}/data"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=folder,
                text=True,
            )
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            port = server.stdout.readline().strip()
            assert port, f"HDFS did not start; it said: {log.read_text(errors='replace')[-2000:]}"
            yield f"webhdfs://127.0.0.1:{port}"
        finally:
            server.stdin.close()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            server.stdout.close()
