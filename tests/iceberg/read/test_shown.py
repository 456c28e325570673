"""Tables, scans and results as they are shown, without keys, and escaped in notebooks."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from iceberg_tables import MASTER_KEYS, copied, open_fixture

from ags1.iceberg import check_table, verify_table


class Texts(HTMLParser):
    """The tags of a text, and the cells of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, _: Any) -> None:
        self.tags.add(tag)
        self.cells += [""] if tag == "td" else []

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


@pytest.fixture
def table(tmp_path: Path) -> Any:
    (tmp_path / "<i>&").mkdir()
    copied("stats", tmp_path / "<i>&")
    return open_fixture("stats", tmp_path / "<i>&")


def keys_of(table: Any) -> list[bytes]:
    records = [task.file for task in table.scan().plan_files()]
    return [*MASTER_KEYS.values(), *(record.key.encryption_key for record in records)]


def test_a_table_names_its_key_id(table: Any) -> None:
    assert repr(table).splitlines()[0] == f"{table.name()[-1]}("
    assert repr(table).endswith(f"\nencrypted by: [{table.key_id}]")


def test_a_scan_shows_what_it_was_asked_for(table: Any) -> None:
    assert repr(table.scan()) == "EncryptedScan(selected_fields=('*',), row_filter=AlwaysTrue())"
    scan = table.scan("name = '<b>'", selected_fields=("id",), snapshot_id=7, limit=0)
    assert repr(scan) == (
        "EncryptedScan(snapshot_id=7, selected_fields=('id',), "
        "row_filter=EqualTo(term=Reference(name='name'), literal=literal('<b>')), limit=0)"
    )
    assert repr(table.incremental_append_scan()).startswith("EncryptedIncrementalScan(")


def test_results_are_counts(table: Any) -> None:
    for result in (verify_table(table), check_table(table)):
        counts = [
            sum(f.severity == s for f in result.findings) for s in ("error", "warning", "note")
        ]
        assert repr(result) == (
            f"{type(result).__name__}(metadata_location={table.metadata_location!r}, "
            f"key_id={table.key_id!r}, ok={result.ok}, errors={counts[0]}, warnings={counts[1]}, "
            f"notes={counts[2]})"
        )
        cells = Texts(result._repr_html_()).cells
        assert len(result.findings) > 0
        assert all({f.kind, f.message} <= set(cells) for f in result.findings)


def test_html_is_escaped_and_has_no_key(table: Any) -> None:
    scan = table.scan("name = '<script>alert(1)</script>'")
    for thing in (scan, verify_table(table), check_table(table)):
        shown = Texts(thing._repr_html_())
        assert shown.tags == {"b", "table", "tr", "td"}
        assert any("<script>" in cell or "<i>&" in cell for cell in shown.cells)
        for key in keys_of(table):
            assert key.hex() not in repr(thing) + thing._repr_html_()
            assert repr(key)[2:-1] not in repr(thing) + thing._repr_html_()
