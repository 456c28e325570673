"""Iceberg's own AesGcmOutputStream and AesGcmInputStream on the JVM, in memory.

Needs a JDK of 17 or newer, and the Iceberg runtime jar: AGS1_BENCH_ICEBERG_JAR names it, else it
is taken from Maven's local repository, where ``mvn`` puts it the first time. No Hadoop is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.material import Material
from bench.storage import cache_folder

from .process import LineProcess, PeerError, ProcessPeer, run_quietly

GROUP = "org.apache.iceberg"
ARTIFACT = "iceberg-spark-runtime-4.1_2.13"
VERSION = "1.12.0"
SOURCE = Path(__file__).with_name("java") / "Ags1Bench.java"
MAIN_CLASS = "org.apache.iceberg.encryption.Ags1Bench"


class IcebergJava(ProcessPeer):
    name = "Iceberg Java"
    # HotSpot compiles its AES-GCM loop in after about half a gigabyte; then some more to settle.
    warm_up_bytes = 4 << 30

    def missing(self) -> str | None:
        lacking = [program for program in ("java", "javac") if shutil.which(program) is None]
        if not _jar().exists() and shutil.which("mvn") is None:
            lacking.append(f"mvn or AGS1_BENCH_ICEBERG_JAR ({ARTIFACT} {VERSION})")
        return " and ".join(lacking) or None

    def version(self) -> str:
        asked = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
        first_line = asked.stderr.partition("\n")[0]
        return f"{VERSION} on {first_line}"

    def command(self) -> Sequence[str | Path]:
        jar = _jar()
        if not jar.exists():
            artifact = f"{GROUP}:{ARTIFACT}:{VERSION}"
            run_quietly(
                [
                    *("mvn", "--batch-mode", "dependency:get"),
                    *("-Dtransitive=false", f"-Dartifact={artifact}"),
                ],
                f"mvn dependency:get of {artifact}",
            )
        if not jar.exists():
            raise PeerError(f"mvn fetched the Iceberg jar, but not to {jar}")
        classes = cache_folder() / "java"
        run_quietly(["javac", "-nowarn", "-cp", jar, "-d", classes, SOURCE], "javac")
        return ["java", "-Xmx3g", "-cp", f"{jar}{os.pathsep}{classes}", MAIN_CLASS]

    def first_run(self, material: Material) -> tuple[float, float]:
        """The seconds of the first ``seal`` and the first ``open`` of a new JVM."""
        process = LineProcess(self.command())
        try:
            process.load(material)
            return process.seconds("seal"), process.seconds("open")
        finally:
            process.stop()


def _jar() -> Path:
    if named := os.environ.get("AGS1_BENCH_ICEBERG_JAR"):
        return Path(named)
    folder = Path.home() / ".m2" / "repository" / Path(*GROUP.split(".")) / ARTIFACT / VERSION
    return folder / f"{ARTIFACT}-{VERSION}.jar"
