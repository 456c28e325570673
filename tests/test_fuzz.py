"""Runs the fuzz targets: for a moment always, for a minute each when asked (``-m fuzz``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fuzz_ags1
import pytest
from conftest import python_environment

SECONDS = int(os.environ.get("AGS1_FUZZ_SECONDS", "60"))
targets = pytest.mark.parametrize("target", fuzz_ags1.TARGETS)


def run(target: str, seconds: float, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, fuzz_ags1.__file__, target, str(seconds)],
        env=python_environment() | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout + done.stderr


@targets
def test_a_moment_of_fuzzing(target: str, tmp_path: Path) -> None:
    out = run(target, 1, tmp_path, AGS1_FUZZ_WITHOUT_ATHERIS="1")
    assert int(out.split()[1]) >= 100


@pytest.mark.slow
@pytest.mark.fuzz
@targets
def test_a_minute_of_fuzzing(target: str, tmp_path: Path) -> None:
    print(run(target, SECONDS, tmp_path)[-500:])


def test_a_finding_makes_the_run_fail(tmp_path: Path) -> None:
    broken = (
        "import fuzz_ags1, reference, sys\n"
        "real = reference.decrypt\n"
        "reference.decrypt = lambda *a: real(*a) + b'x'\n"
        "fuzz_ags1.by_hypothesis(fuzz_ags1.TARGETS[sys.argv[1]], 30)\n"
    )
    for target in ("stream", "writer"):
        done = subprocess.run(
            [sys.executable, "-c", broken, target],
            env=python_environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert "AssertionError" in done.stderr
