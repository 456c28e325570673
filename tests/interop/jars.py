"""The Java that we test against: which releases, and where they lie on this machine.

Maven fetches a jar once into the user's cache folder; pyspark brings Spark's own. Independent of
what the jars are for. Without Java or Maven a test is skipped, but on CI (CI=true) it fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

# GROUP:ARTIFACT:VERSION[:TYPE:CLASSIFIER]. Nothing else in this folder names a version.
COORDINATES = {
    "spark-runtime": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "spark-runtime-4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    # UnitestKMS. The tests of 1.12.0 are not published; these run with its runtime.
    "core-tests": "org.apache.iceberg:iceberg-core:1.11.0:jar:tests",
    "aws-bundle": "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
    "sqlite": "org.xerial:sqlite-jdbc:3.50.3.0",
    "postgresql": "org.postgresql:postgresql:42.7.8",
}
# The REST server of the reference implementation, which the runtime above has not.
REST_SERVER = (
    "org.apache.iceberg:iceberg-core:1.11.0",
    "org.apache.iceberg:iceberg-core:1.11.0:jar:tests",
    "org.eclipse.jetty:jetty-servlet:11.0.25",
    "org.slf4j:slf4j-simple:2.0.17",
    COORDINATES["sqlite"],
)
# Namenode and datanode in one JVM. In hadoop-client-minicluster, WebHDFS does not answer.
HDFS = ("org.apache.hadoop:hadoop-minicluster:3.4.2",)
PYSPARK = "4.1."  # the Spark of the runtime above
# For every JVM: credentials of nobody, found before any other, and times that compare.
JVM_OPTIONS = (
    "-Daws.accessKeyId=testing",
    "-Daws.secretAccessKey=testing",
    "-Duser.timezone=UTC",
    "-XX:-UsePerfData",  # which would write to the machine's temporary folder
)
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_FETCH_TIMEOUT_S = 300


def unavailable(reason: str) -> NoReturn:
    """Skip the test, which this machine cannot run; on CI fail, because there it must run."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def program(name: str) -> str:
    """Return the path of a program, or skip."""
    return shutil.which(name) or unavailable(f"{name} is not on this machine")


def jar(name: str) -> Path:
    """Return a jar of ``COORDINATES``, fetched if need be, or skip."""
    return fetched(COORDINATES[name])


def fetched(coordinates: str) -> Path:
    """Return a jar without what it depends on, fetched if need be, or skip."""
    _, artifact, version, *rest = coordinates.split(":")
    classifier = f"-{rest[1]}" if rest else ""
    path = cache_folder() / "jars" / f"{artifact}-{version}{classifier}.jar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with (path.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _fetch(coordinates, path)
    return path


def plugin() -> Path:
    """Return our plug-in for Iceberg's runtime, or skip."""
    found = sorted((Path(__file__).parents[2] / "ags1" / "spark" / "jars").glob("*.jar"))
    return found[0] if found else unavailable("our plug-in is not built: make jvm")


def with_dependencies(coordinates: Sequence[str]) -> list[Path]:
    """Return jars and all that they depend on, fetched if need be, or skip."""
    project = _project(coordinates)
    folder = cache_folder() / "jars" / hashlib.sha256(project.encode()).hexdigest()[:20]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            Path(made, "pom.xml").write_text(project)
            _maven(
                [f"{_PLUGIN}:copy-dependencies", f"-DoutputDirectory={made}/jars"],
                Path(made),
                ", ".join(coordinates),
            )
            try:
                Path(made, "jars").rename(folder)
            except OSError:
                if not folder.is_dir():  # another run was no faster
                    raise
    return sorted(folder.glob("*.jar"))


def pyspark_jars(*names: str) -> list[Path]:
    """Return the jars in pyspark's folder that are called NAME-VERSION.jar, or skip. Without names
    it is only made sure that pyspark is there."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        unavailable("pyspark is not installed")
    version = importlib.metadata.version("pyspark")
    if not version.startswith(PYSPARK):
        unavailable(f"pyspark is {version}, and Iceberg's runtime needs {PYSPARK}*")
    folder = Path(found.origin).parent / "jars"
    jars = []
    for name in names:
        matching = sorted(folder.glob(f"{name}-[0-9]*.jar"))
        assert len(matching) == 1, (name, matching)
        jars += matching
    return jars


def cache_folder() -> Path:
    """Return this user's folder for what takes long to make or fetch."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "ags1"


def _fetch(coordinates: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        arguments = [f"-Dartifact={coordinates}", f"-DoutputDirectory={folder}"]
        _maven([f"{_PLUGIN}:copy", *arguments], Path(folder), coordinates)
        (Path(folder) / path.name).replace(path)


def _project(coordinates: Sequence[str]) -> str:
    dependencies = ""
    for part in coordinates:
        group, artifact, version, *rest = part.split(":")
        dependencies += (
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version>"
        )
        if rest:
            dependencies += f"<type>{rest[0]}</type><classifier>{rest[1]}</classifier>"
        dependencies += "</dependency>"
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>ags1</groupId><artifactId>interop</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def _maven(arguments: Sequence[str], folder: Path, what: str) -> None:
    try:
        done = subprocess.run(
            [program("mvn"), "--batch-mode", "--quiet", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        unavailable(f"Maven did not fetch {what} within {_FETCH_TIMEOUT_S} s")
    if done.returncode:
        last_lines = " / ".join(done.stdout.strip().splitlines()[-3:])
        unavailable(f"Maven cannot fetch {what}: {last_lines}")
