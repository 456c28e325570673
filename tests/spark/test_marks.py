"""What needs PySpark is marked so. Without the mark, `make test` would skip it, because PySpark is
not installed there, and `make interop` would leave it out."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_files_that_are_skipped_without_pyspark_are_marked() -> None:
    skipped = 'importorskip("py' + 'spark")'
    texts = {path.name: path.read_text() for path in TESTS.rglob("test_*.py")}
    needing = {name for name, text in texts.items() if skipped in text}
    assert len(needing) > 10
    marks = ("pytest.mark.spark", "pytest.mark.interop")
    assert {name for name in needing if not any(mark in texts[name] for mark in marks)} == set()
