"""Spark drivers that are processes of their own, to be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import jars

PROGRAM = Path(__file__).with_name("spark_program.py")
_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}


class DriverError(Exception):
    """What Spark says of a statement, or that the driver is gone."""


class Driver:
    """A driver whose Spark has the catalog ``lake``; leaving it kills it with its JVM."""

    def __init__(
        self,
        folder: Path,
        catalog: Mapping[str, str],
        settings: Mapping[str, str] | None = None,
        *,
        more_jars: Sequence[Path] = (),
        runtime: str = "spark-runtime",
        packages: Sequence[Path] = (),
    ) -> None:
        """``packages`` are folders that Python looks into first: for another PySpark."""
        folder.mkdir(parents=True, exist_ok=True)
        class_path = [jars.jar(runtime), jars.jar("sqlite"), jars.plugin(), *more_jars]
        lake = {f"spark.sql.catalog.lake.{name}": value for name, value in catalog.items()}
        given = _SETTINGS | {
            "spark.driver.extraClassPath": os.pathsep.join(map(str, class_path)),
            "spark.driver.extraJavaOptions": " ".join(jars.JVM_OPTIONS),
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": f"file:{folder}/spark-warehouse",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        }
        self._log = folder / "stderr.txt"
        with self._log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(given | lake | dict(settings or {}))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=folder,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, packages))},
                start_new_session=True,  # one signal reaches Python and the JVM
            )
        assert self._answer() == "ready"

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def sql(self, statement: str) -> list[list[Any]]:
        """Run a statement; return its rows. Raises DriverError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(statement) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise DriverError("the driver is gone") from error
        answer = self._answer()
        if "error" in answer:
            raise DriverError(answer["error"])
        rows: list[list[Any]] = answer["rows"]
        return rows

    def kill(self) -> None:
        """End Python and the JVM by SIGKILL, whatever they do."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DriverError("the driver is gone: " + self._log.read_text()[-2000:])
        return json.loads(line)
