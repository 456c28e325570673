"""The documents say what is so: the tests that SECURITY.md names exist, the tutorial runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PROJECT = TESTS.parent

pytestmark = pytest.mark.skipif(
    not (PROJECT / "SECURITY.md").exists(), reason="the documents are not beside these tests"
)


def test_every_test_that_security_names_exists() -> None:
    text = (PROJECT / "SECURITY.md").read_text()
    named = re.findall(r"`(?:(test_\w+\.py)(?:::)?)?(test_\w+)?`", text)
    here = ""
    count = 0
    for file, test in named:
        here = file or here
        if here:
            source = (TESTS / here).read_text()
            assert not test or f"def {test}(" in source, f"{here}::{test}"
            count += 1
    assert count > 20


def test_every_line_of_the_threat_model_names_a_test() -> None:
    text = (PROJECT / "SECURITY.md").read_text()
    table = text[text.index("| Against |") : text.index("## What is not")].splitlines()
    rows = [line for line in table[2:] if line.startswith("|")]
    assert len(rows) > 10
    assert [row for row in rows if "`test_" not in row] == []


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (PROJECT / "README.md").read_text()
    tutorial = text[text.index("## Tutorial") :]
    code = tutorial[tutorial.index("```python\n") + 10 :]
    code = code[: code.index("```")]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["stored"] == names["km"]
    assert (tmp_path / "numbers.ags1").exists()
