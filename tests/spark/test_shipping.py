"""ags1 on the executors of a cluster, from the archive of a virtual environment and nowhere else.

The cluster is Spark's own ``local-cluster``: a master, two workers and their executors, each a JVM
with a working directory of its own.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import ags1

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

JOB = Path(__file__).with_name("shipping_job.py")
LINES = 2_000
FILES = 100
# What a cluster has: its own PySpark.
OF_SPARK = {"pyspark", "py4j"}


def needed(name: str, extra: str = "", known: set[str] | None = None) -> Iterator[str]:
    """Yield what pip would install for a package, the package itself first."""
    known = set() if known is None else known
    if name in known | OF_SPARK:
        return
    known.add(name)
    yield name
    for text in importlib.metadata.requires(name) or []:
        required = Requirement(text)
        if required.marker is None or required.marker.evaluate({"extra": extra}):
            yield from needed(required.name.lower(), known=known)


def make_environment(folder: Path) -> None:
    """Make what ``python -m venv`` and ``pip install 'ags1[spark]'`` make, from what is installed
    here: a test needs no network."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    ours, *others = needed("ags1", "spark")
    assert ags1.__file__ is not None
    left_out = shutil.ignore_patterns("__pycache__", "*.pyx", "*.pxd")
    shutil.copytree(Path(ags1.__file__).parent, site / ours, ignore=left_out)
    for name in others:
        for file in importlib.metadata.files(name) or []:
            if ".." not in file.parts and file.suffix != ".pyc":
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target)


def make_spark_home(folder: Path) -> None:
    """Make a Spark installation of PySpark's: executors work in a folder inside it."""
    import pyspark

    folder.mkdir()
    for name in ("bin", "jars", "python"):
        (folder / name).symlink_to(Path(pyspark.__file__).parent / name)


def test_executors_have_ags1_from_the_archive(tmp_path: Path, keyring: Path) -> None:
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("java is not on this machine")
    make_environment(tmp_path / "environment")
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(tmp_path / "environment", ".")
    make_spark_home(tmp_path / "spark")
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        text = "".join(f"line {n} of {number}\n" for n in range(LINES))
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "AGS1"))
    }

    done = subprocess.run(
        [
            "spark/bin/spark-submit",
            *("--master", "local-cluster[2,1,1024]"),
            *("--archives", "environment.tar.gz#environment"),
            *("--driver-memory", "512m"),
            *("--conf", "spark.ui.enabled=false"),
            *("--conf", f"spark.local.dir={tmp_path}/local"),
            *("--driver-java-options", f"-XX:-UsePerfData -Djava.io.tmpdir={tmp_path}"),
            str(JOB),
            str(tmp_path),
            str(keyring),
        ],
        cwd=tmp_path,
        env=clean
        | {
            "PYSPARK_PYTHON": "environment/bin/python",
            "SPARK_HOME": str(tmp_path / "spark"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["driver"].startswith(f"{tmp_path}/environment/")
    executors = said["executors"]
    assert len({one["folder"] for one in executors}) == 2
    for one in executors:
        assert Path(one["folder"]).is_relative_to(tmp_path / "spark" / "work")
        for module in one["modules"]:
            assert module.startswith(f"{one['folder']}/environment/lib/")
        assert one["without the archive"] != 0
    assert said["encrypted"] == [FILES, 0]
    assert said["rows"] == FILES * LINES
    assert said["files at the kill"] < FILES
    assert said["decrypted"] == [FILES, 0]
    for number in range(FILES):
        name = f"{number}.txt"
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "in" / name).read_bytes()
