"""Each kind of work on each PySpark that ags1 is for, with that version's own JVM.

pip fetches a version once into the user's cache folder; all else is this environment's. A newer
Python: ``make cluster PYTHON=python3.13 VENV=.venv-3.13``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark_versions import pyspark

from ags1.kms import LocalKms

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).with_name("cluster_job.py")
# The first and the last minor versions that pyproject.toml takes, and those between.
VERSIONS = ["4.0.5", "4.1.4", "4.2.1", "4.3.0"]
LOCAL = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
# What ``cluster_job`` finds if all is well.
FOUND: dict[str, Any] = {
    "bulk": {"counts": [21, 21, 21], "same": True, "failures": []},
    "files": {"same": True, "bytes": 8890, "selected": 1},
    "table": {
        "count": 300,
        "sum": sum(range(300)),
        "names": [f"n{number}" for number in range(290, 300)],
        "verified": True,
    },
}

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def run_job(
    command: Sequence[str], folder: Path, settings: dict[str, str], **process: Any
) -> dict[str, Any]:
    """Run ``cluster_job``, to which settings are added, in a process of its own; return what it
    found, or fail."""
    settings = {
        **LOCAL,
        "spark.local.dir": f"{folder}/local",
        "spark.sql.warehouse.dir": f"file:{folder}/spark-warehouse",
        "spark.driver.extraJavaOptions": f"-XX:-UsePerfData -Djava.io.tmpdir={folder}",
        **settings,
    }
    done = subprocess.run(
        [*command, *(f"{name}={value}" for name, value in settings.items())],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        **process,
    )
    if done.returncode:
        pytest.fail(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[-8000:]}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_of_pyspark(tmp_path: Path, version: str) -> None:
    keyring = tmp_path / "keyring.json"
    LocalKms(str(keyring)).create_key("default")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*map(str, pyspark(version)), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
    }
    environment.pop("SPARK_HOME", None)
    command = [sys.executable, str(JOB), "local[2]", str(tmp_path), str(keyring)]
    said = run_job(command, tmp_path, {}, env=environment)
    assert said.pop("pyspark") == version
    assert tuple(said.pop("python")) == sys.version_info[:2]
    assert said == FOUND
