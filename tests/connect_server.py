"""A server of Spark Connect for the tests: this environment's PySpark, as a process of its own.
Imports nothing of ags1."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import go_server

ROOT = Path(__file__).parents[1]


class ConnectServer(NamedTuple):
    """A server: its URL, and its process, which is the JVM."""

    url: str
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def connect_server(more: Mapping[str, str] | None = None) -> Iterator[ConnectServer]:
    """Run a server with two worker threads, whose tasks find ags1, and with ``more`` settings."""
    import pyspark

    home = Path(pyspark.__file__).parent
    at = 0

    def command(port: int, folder: Path) -> list[str]:
        nonlocal at
        at = port
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": port,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.local.dir": f"{folder}/local",
            "spark.sql.warehouse.dir": f"file:{folder}/warehouse",
            **(more or {}),
        }
        conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        java = f"-XX:-UsePerfData -Djava.io.tmpdir={folder}"
        own = ["--master", "local[2]", "--driver-memory", "1g", "--driver-java-options", java]
        main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        return [f"{home}/bin/spark-submit", *own, *conf, *main, "spark-internal"]

    def is_ready() -> bool:
        socket.create_connection(("127.0.0.1", at), 5).close()
        return True

    environment = os.environ | {
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    with go_server.serving("connect", command, environment, is_ready, "none") as process:
        yield ConnectServer(f"sc://127.0.0.1:{at}", process)
