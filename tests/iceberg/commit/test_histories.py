"""Killed and concurrent writers leave a history that some serial order explains (``histories``).

Each day has other histories (``day``). What the system lets run first is not in the dice.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import RunPython
from day import SEED

OTHERS = ("rest", "glue", "dynamodb")
SCRIPT = """
import sys
from pathlib import Path
import histories
{broken}
histories.main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
"""


# `python tests/histories.py sql FOLDER 1000 SEED` takes longer.
# Of `make test`: all histories with 48 kills are slow.
@pytest.mark.slow_variants(r"sql-6")
@pytest.mark.parametrize(
    ("kind", "kills"),
    [("sql", 6), *(pytest.param(kind, 48, marks=pytest.mark.slow) for kind in ("sql", *OTHERS))],
)
def test_every_history_is_explained(
    memory_folder: Path, run_python: RunPython, kind: str, kills: int
) -> None:
    if kind in ("glue", "dynamodb"):
        pytest.importorskip("moto")
    done = run_python(
        SCRIPT.format(broken=""), kind, memory_folder, kills, SEED, timeout=60 + 5 * kills
    )
    assert json.loads(done.stdout.splitlines()[-1])["kills"] >= kills


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "modes"),
    [
        ("steps.check_unchanged", ("copy-on-write", "merge-on-read")),
        # Where files are rewritten, the rule for removed files finds nearly all of these as well.
        ("conflicts.new_deletes", ("merge-on-read",)),
    ],
)
def test_a_rule_that_is_broken_is_found(
    memory_folder: Path, run_python: RunPython, broken: str, modes: tuple[str, ...]
) -> None:
    rule = (
        "from ags1.iceberg import steps\nfrom ags1.iceberg.write import conflicts\n"
        f"{broken} = lambda *arguments: None\nhistories.MODES = {modes}\n"
        # More writers who change the same rows, so that the rule is needed in one round of four.
        "histories.LIVING = 6\nkinds = ('delete', 'clear', 'increase', 'move', 'upsert')\n"
        "histories.KINDS = {kind: histories.KINDS[kind] for kind in kinds}"
    )
    script = SCRIPT.format(broken=rule)
    done = run_python(script, "sql", memory_folder, 300, SEED, timeout=1500, check=False)
    assert done.returncode != 0
    assert "Unexplained" in done.stderr
