"""What every test may ask for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import ags1

settings.register_profile(
    "ags1",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("ags1")

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fuzz: random input for a while; AGS1_FUZZ_SECONDS each")


def python_environment() -> dict[str, str]:
    """Return an environment in which a child imports the same ags1 and this folder's modules."""
    assert ags1.__file__ is not None
    ours = [str(Path(ags1.__file__).parents[1]), str(Path(__file__).parent)]
    return os.environ | {"PYTHONPATH": os.pathsep.join([*ours, os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Run a script in a Python of its own; fail with its output unless it exits with 0."""

    def run(
        script: str, *arguments: object, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, arguments)],
            env=python_environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            pytest.fail(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run
