"""Small Java programs of ours, compiled once and served by one JVM.

The sources lie in ``sources/``. ``Requests.java`` reads a request per line, ``{"call":
"package.Class.method", "arguments": {…}}``, and answers ``{"result": …}`` or ``{"error": …}``; a
method to call is ``static Object method(JsonNode arguments)`` of any class there. Independent of
what the methods do.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import jars

SOURCES = Path(__file__).with_name("sources")
_MAIN = "ags1.interop.Requests"
_COMPILE_TIMEOUT_S = 120
_ANSWER_TIMEOUT_S = 60


class JavaError(Exception):
    """What a method threw: its class, and its message with those of its causes."""


class Java:
    """A JVM with our programs and Iceberg on its class path; ``close`` ends it."""

    def __init__(self, log: Path, class_path: Sequence[Path] | None = None) -> None:
        if class_path is None:
            class_path = iceberg_class_path()
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [
                    *(jars.program("java"), "-Xmx512m", "-XX:+UseSerialGC"),
                    *jars.JVM_OPTIONS,
                    *("-cp", os.pathsep.join(map(str, [compiled(class_path), *class_path]))),
                    _MAIN,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                encoding="utf-8",
            )
        self._lock = threading.Lock()

    def call(self, method: str, **arguments: Any) -> Any:
        """Call ``package.Class.method`` and return its result. Raises JavaError."""
        request = json.dumps({"call": method, "arguments": arguments})
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            hanging = threading.Timer(_ANSWER_TIMEOUT_S, self._process.kill)
            hanging.start()
            try:
                self._process.stdin.write(request + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except OSError:
                line = ""
            finally:
                hanging.cancel()
        if not line:
            raise AssertionError(
                f"the JVM died or did not answer {method} within {_ANSWER_TIMEOUT_S} s; it said: "
                + self._log.read_text(errors="replace")[-2000:]
            )
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End the JVM, which stops when nobody can ask it any more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def iceberg_class_path() -> list[Path]:
    """Return the jars of Iceberg without Spark and Hive, and our plug-in: tables, files,
    every KMS that we test."""
    return [
        *map(jars.jar, jars.COORDINATES),
        jars.plugin(),
        *jars.pyspark_jars(
            *("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "zstd-jni", "snappy-java")
        ),
    ]


def compiled(class_path: Sequence[Path]) -> Path:
    """Return the folder of our classes, from the cache or fresh from javac."""
    sources = sorted(SOURCES.glob("*.java"))
    content = hashlib.sha256()
    for part in [*(path.name.encode() for path in class_path), *(s.read_bytes() for s in sources)]:
        content.update(len(part).to_bytes(8, "big") + part)
    folder = jars.cache_folder() / "java" / content.hexdigest()[:20]
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        done = subprocess.run(
            [
                *(jars.program("javac"), "-nowarn", "-proc:none", "--release", "17"),
                *("-cp", os.pathsep.join(map(str, class_path)), "-d", f"{made}/classes"),
                *sources,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMPILE_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"javac failed:\n{done.stdout}"
        try:
            Path(made, "classes").rename(folder)
        except OSError:
            if not folder.is_dir():  # another run was no faster
                raise
    return folder
