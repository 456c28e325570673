"""Iceberg's Java runtime and "ags1-iceberg" in one Spark session: what one wrote the other reads.

In a process of its own: a JVM has one class path.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .test_iceberg_source import JAVA_KMS

pytestmark = [pytest.mark.spark, pytest.mark.interop]

TESTS = Path(__file__).parent.parent


def test_each_reads_what_the_other_has_written(tmp_path: Path) -> None:
    (tmp_path / "java_unitest_kms.py").write_text(JAVA_KMS)
    (tmp_path / "java").mkdir()
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent), str(tmp_path)]),
    }

    done = subprocess.run(
        [sys.executable, str(TESTS / "spark" / "side_by_side_job.py"), str(tmp_path)],
        env=environment,
        capture_output=True,
        timeout=800,
        check=False,
    )

    if b"Skipped" in done.stderr:
        pytest.skip(done.stderr.decode().splitlines()[-1])
    assert done.returncode == 0, done.stderr[-3000:].decode()
    said = json.loads(done.stdout.decode().splitlines()[-1])
    assert len(said["java's by us"]) == 450
    assert said["java's by us"] == said["java's by java"]
    assert said["joined"] == 450
    for file_format in ("parquet", "avro"):
        assert said[f"ours by java, {file_format}"] == said["expected"]
    assert said["shared by java"] == said["shared, expected"]
    assert said["shared by us"] == said["shared, expected"]
    assert said["snapshots"] == 4
    pairs = {name: pair for name, pair in said.items() if name.startswith(("read", "overwritten"))}
    assert len(pairs) == 6
    for name, (java_s, ours) in pairs.items():
        assert ours == java_s, name
    assert 20 < len(said["overwritten"][0]) < 400
    assert len({str(java_s) for java_s, _ in pairs.values()}) > 3
