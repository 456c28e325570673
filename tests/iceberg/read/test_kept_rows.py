"""Rows without the deleted ones, next to Arrow's own filter."""

from __future__ import annotations

import random
from array import array
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from day import SEED
from pyroaring import BitMap64

from ags1.iceberg.read._runs import copy_bits, copy_offsets, copy_values, runs_between
from ags1.iceberg.read.kept_rows import KeptRows

TEXTS = ["", "a", "\N{EURO SIGN}uro", "x" * 70, None]
LISTS: list[Any] = [[], [1], None, [None, 2, 3], list(range(80))]
STRUCT = pa.struct([("a", pa.int16()), ("b", pa.list_(pa.string()))])
# Values of each type. The last types are left to Arrow.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [1, -1, None],
    pa.int32(): [1, -(2**31)],
    pa.int64(): [1, 2**62, None],
    pa.float16(): [0.5, None],
    pa.float64(): [0.5, float("inf"), None],
    pa.bool_(): [True, False, None],
    pa.date32(): [date(2026, 1, 1), None],
    pa.time64("us"): [None, 5],
    pa.timestamp("us", "UTC"): [datetime(2026, 1, 1), None],
    pa.decimal128(38, 2): [Decimal("1.25"), None],
    pa.binary(16): [bytes(16), None, b"\x01" * 16],
    pa.null(): [None],
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.binary(): [b"", b"\0", None],
    pa.large_binary(): [b"", b"abc", None],
    pa.list_(pa.int32()): LISTS,
    pa.large_list(pa.bool_()): [[], [True, None], None, [False] * 70],
    pa.list_(pa.large_list(pa.string())): [[["a", None], []], None, [None], []],
    pa.map_(pa.string(), pa.int64()): [[("a", 1), ("b", None)], None, []],
    STRUCT: [{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}],
    pa.list_(STRUCT): [[{"a": 1, "b": ["x"]}, None], None, []],
    pa.dictionary(pa.int32(), pa.string()): TEXTS,
    pa.list_(pa.int32(), 2): [[1, 2], None],
    pa.uuid(): [bytes(16), None],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_kept_rows_are_those_of_arrow_s_filter(kind: pa.DataType) -> None:
    chance = random.Random(f"{SEED} {kind}")
    sizes = [0, 1, 2, 7, 8, 9, 64, 150]
    for number in range(60):
        values = chance.choices(VALUES[kind], k=chance.choice([*sizes, chance.randrange(150)]))
        start, length = chance.randint(0, len(values)), chance.choice([*sizes, 150, 150])
        column = pa.array(values, kind).slice(chance.choice([0, start]), length)
        first = chance.choice([0, 7, 100, 2**33])
        chosen = chance.sample(range(-100, 200), chance.choice(sizes))
        deleted = BitMap64(first + n for n in chosen if first + n >= 0)
        kept = KeptRows(deleted, first, len(column))
        mask = pa.array([first + n not in deleted for n in range(len(column))], pa.bool_())
        expected = column.filter(mask)
        made = kept.of(column)
        made.validate(full=True)
        assert made.equals(expected), (SEED, number)
        assert kept.count == len(expected)
        batch = pa.RecordBatch.from_arrays([column], ["c"])
        assert kept.of_batch(batch).equals(batch.filter(mask))


def test_a_batch_without_columns_has_its_number_of_rows() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(range(5))], ["c"]).select([])
    assert KeptRows(BitMap64([1, 9]), 0, 5).of_batch(batch).num_rows == 4


def test_lists_of_no_lists_need_no_offsets() -> None:
    inner = pa.Array.from_buffers(
        pa.list_(pa.int8()), 0, [None, None], children=[pa.array([], pa.int8())]
    )
    nothing = memoryview(numbers(1))[:0]
    assert copy_offsets(nothing, numbers(0, 0), 4, bytearray(4)) == numbers(0, 0)
    outer = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), inner)
    assert KeptRows(BitMap64([1]), 0, 2).of(outer).to_pylist() == [[]]


def test_a_bitmap_of_few_bytes_and_many_positions_takes_no_memory() -> None:
    deleted = BitMap64(range(2, 1 << 34))
    assert KeptRows(deleted, 0, 5).of(pa.array(range(5))).to_pylist() == [0, 1]


def numbers(*values: int) -> bytes:
    return array("q", values).tobytes()


@pytest.mark.parametrize("positions", [(3,), (-1,), (0, 0), (2, 1), (-(2**63),), (2**63 - 1,)])
def test_positions_that_are_none(positions: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="the positions do not ascend"):
        runs_between(numbers(*positions), 0, 3)


@pytest.mark.parametrize(
    "runs", [(0, 5), (-1, 1), (2, 1), (1, 3, 2, 4), (2**62, 2**62 + 1), (-(2**63), 2**63 - 1)]
)
def test_runs_outside_of_the_memory_are_refused(runs: tuple[int, ...]) -> None:
    given, out = numbers(*runs), bytearray(1000)
    for call in (
        lambda: copy_values(bytes(16), given, 4, out),
        lambda: copy_values(bytes(4), given, 1, out),
        lambda: copy_bits(b"\xff", 0, 4, given, out),
        lambda: copy_bits(b"\xff", 4, 4, given, out),
        lambda: copy_offsets(bytes(20), given, 4, out),
        lambda: copy_offsets(bytes(40), given, 8, out),
    ):
        with pytest.raises(ValueError, match=r"the runs do not ascend|outside of its buffer"):
            call()
    assert not any(out)


def test_a_target_that_is_too_small_or_a_wrong_size_is_refused() -> None:
    runs = numbers(0, 4)
    for call in (
        lambda: copy_values(bytes(16), runs, 4, bytearray(15)),
        lambda: copy_values(bytes(16), runs, 0, bytearray(16)),
        lambda: copy_bits(b"\xff", 0, 4, runs, bytearray(0)),
        lambda: copy_bits(b"\xff", 5, 4, runs, bytearray(1)),
        lambda: copy_bits(b"\xff", -1, 4, runs, bytearray(1)),
        lambda: copy_bits(b"\xff", 2**62, 2**62, runs, bytearray(1)),
        lambda: copy_offsets(bytes(20), runs, 4, bytearray(16)),
        lambda: copy_offsets(bytes(20), runs, 5, bytearray(100)),
    ):
        with pytest.raises(ValueError, match=r"longer than the target|outside of their|bytes?$"):
            call()
    with pytest.raises(TypeError, match="writable"):
        copy_values(bytes(16), runs, 4, bytes(16))
