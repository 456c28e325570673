"""Rows have equal digests if all of their values are equal."""

from __future__ import annotations

import datetime
import decimal
import importlib.util
import uuid

import pyarrow as pa

from ags1.iceberg.read.row_digests import row_digests


def test_rows_are_equal_if_all_of_their_values_are() -> None:
    columns: list[pa.Array] = [
        pa.array([None, 0, 1, -1], pa.int64()),
        pa.array([None, "", "a", "aa"]),
        pa.array([None, b"", b"\0", b"\0\0"]),
        pa.array([None, float("nan"), -0.0, 0.0]),
        pa.array([None, True, False]),
        pa.array([None, [], [None], [0], [0, 0]], pa.list_(pa.int32())),
        pa.array([None, [["a"], ["b", "c"]], [["a", "b"], ["c"]], [[], ["a", "b", "c"]], [None]]),
        pa.array([None, [], [("a", 1)], [("a", None)]], pa.map_(pa.string(), pa.int64())),
        pa.array([None, {"a": None}, {"a": 1}, {"a": 2}]),
        pa.array([None, decimal.Decimal("1.10"), decimal.Decimal("-1.10")], pa.decimal128(9, 2)),
        pa.array([None, b"ab", b"ba"], pa.binary(2)),
        pa.array([None, uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes], pa.uuid()),
        pa.array([None, datetime.date(1970, 1, 1), datetime.date(1970, 1, 2)]),
    ]
    for column in columns:
        twice = pa.concat_arrays([column, column.slice(1), column.slice(0, 1)])
        digests = [tuple(row) for row in row_digests([twice]).tolist()]
        assert len(set(digests)) == len(column), column.type
        assert digests[0] == digests[-1]
        assert digests[1 : len(column)] == digests[len(column) : -1]
    # Where one column ends and the next begins is part of a row.
    ones, others = pa.array(["a", "ab"]), pa.array(["bc", "c"])
    assert len({tuple(row) for row in row_digests([ones, others]).tolist()}) == 2


def test_nobody_can_compute_the_digests_of_rows_in_advance() -> None:
    """Somebody who chooses rows could search for two with one digest: an upsert would then take
    one for the other."""
    spec = importlib.util.find_spec("ags1.iceberg.read.row_digests")
    assert spec is not None
    assert spec.loader is not None
    found = set()
    for _ in range(2):
        # As a process of its own would import it.
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        digests = [tuple(*module.row_digests([pa.array([1])]).tolist()) for _ in range(2)]
        assert digests[0] == digests[1]
        found.add(digests[0])
    assert len(found) == 2
