"""Ranges of appended rows, beside PyIceberg's own scan of a plain table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from table_maker import TableMaker

from .test_scan import both

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")


def numbered(*numbers: int) -> list[dict[str, Any]]:
    """Rows of the tables of ``both``."""
    return [{"id": n, "name": f"n{n % 7}"} for n in numbers]


def outcome(table: Any, inclusive: bool, first: int | None, last: int | None) -> Any:
    """Return the rows that were appended, or the error."""
    scan = table.incremental_append_scan(to_snapshot_id_inclusive=last)
    if first is not None and inclusive:
        scan = scan.from_snapshot_id_inclusive(first)
    elif first is not None:
        scan = scan.from_snapshot_id_exclusive(first)
    try:
        planned = len(list(scan.plan_files()))
        found = scan.to_arrow()
        streamed = scan.to_arrow_batch_reader().read_all()
    except Exception as error:
        return type(error), str(error)
    assert streamed.to_pylist() == found.to_pylist()
    limited = scan.select("id").filter("id > 1").update(limit=2).to_arrow()
    return planned, sorted(found["id"].to_pylist()), limited.num_rows, found.schema


@pytest.mark.slow
def test_ranges_of_appended_rows_are_pyiceberg_s(tmp_path: Path) -> None:
    ids: list[int] = []

    def build(maker: TableMaker) -> None:
        ids[:] = [maker.commit(maker.add_parquet(numbered(n, n + 1))) for n in range(0, 12, 2)]
        path = maker.add_parquet(numbered(50))
        ids.append(maker.commit(path))
        ids.append(maker.commit(maker.add_position_deletes([(path["file_path"], 0)])))
        operations = ["append", "append", "replace", "overwrite", "append", "delete", "append"]
        for snapshot, operation in zip(maker.snapshots, [*operations, "delete"], strict=True):
            snapshot["summary"]["operation"] = operation
        # The first is expired, and the last is on a branch.
        del maker.snapshots[0]
        maker.refs = {
            "main": {"snapshot-id": ids[6], "type": "branch"},
            "side": {"snapshot-id": ids[7], "type": "branch"},
        }
        maker.snapshots[-1]["parent-snapshot-id"] = ids[4]

    ours, theirs = both(tmp_path, build)
    rows_found = 0
    for inclusive in (False, True):
        for first in (None, 1, *ids):
            for last in (None, 1, *ids):
                found = outcome(ours, inclusive, first, last)
                expected = outcome(theirs, inclusive, first, last)
                if first == ids[7] or last == ids[7]:
                    # PyIceberg's planner refuses no delete files here, and neither do we.
                    assert found[:2] == expected[:2]
                assert found == expected, (inclusive, first, last)
                rows_found += isinstance(found[0], int) and found[0] > 0
    assert rows_found > 20
