"""Killed and concurrent writers leave a history that some serial order explains (``histories``)."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import RunPython

SCRIPT = """
import sys
from pathlib import Path
import histories
{broken}
histories.main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: thousands of files are synced."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(dir=memory))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("kind", ["sql", "rest"])
# `python tests/histories.py sql FOLDER 1000 SEED` takes longer.
@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_every_history_is_explained(
    folder: Path, run_python: RunPython, kind: str, kills: int
) -> None:
    done = run_python(SCRIPT.format(broken=""), kind, folder, kills, 1, timeout=60 + 5 * kills)
    assert json.loads(done.stdout.splitlines()[-1])["kills"] >= kills


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["transaction.check_unchanged", "conflicts.new_deletes"])
def test_a_rule_that_is_broken_is_found(folder: Path, run_python: RunPython, broken: str) -> None:
    rule = (
        "from ags1.iceberg.writing import conflicts, transaction\n"
        f"{broken} = lambda *arguments: None"
    )
    script = SCRIPT.format(broken=rule)
    done = run_python(script, "sql", folder, 300, 1, timeout=1500, check=False)
    assert done.returncode != 0
    assert "Unexplained" in done.stderr
