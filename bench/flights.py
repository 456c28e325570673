"""Rows to write: made-up flights, the same in every run. Needs numpy and pyarrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
)

FLIGHTS = Schema(
    NestedField(1, "day", DateType(), required=False),
    NestedField(2, "carrier", StringType(), required=False),
    NestedField(3, "flight", IntegerType(), required=False),
    NestedField(4, "tailnum", StringType(), required=False),
    NestedField(5, "origin", StringType(), required=False),
    NestedField(6, "dest", StringType(), required=False),
    NestedField(7, "scheduled_at", TimestampType(), required=False),
    NestedField(8, "departed_at", TimestampType(), required=False),
    NestedField(9, "delay", IntegerType(), required=False),
    NestedField(10, "distance", DoubleType(), required=False),
    NestedField(11, "fuel", DoubleType(), required=False),
    NestedField(12, "passengers", LongType(), required=False),
    NestedField(13, "remark", StringType(), required=False),
)
# What a row takes in Arrow, about.
BYTES_PER_FLIGHT = 99

_FIRST_DAY = 15_706  # 2013-01-01
_US_PER_DAY = 86_400_000_000
_CARRIERS = ("9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX")


def flights(count: int, days: int, seed: int = 17) -> pa.Table:
    """Return ``count`` flights in the order of their days, spread evenly over ``days``."""
    random = np.random.default_rng(seed)
    day = _FIRST_DAY + np.arange(count) * days // max(1, count)
    minutes = random.integers(0, 24 * 60, count)
    scheduled = day * _US_PER_DAY + minutes * 60_000_000
    delays = random.exponential(20, count).astype(np.int32) - 8
    departed = scheduled + delays * 60_000_000 + random.integers(0, 60_000_000, count)
    distance = np.round(random.gamma(2.0, 500.0, count), 1)
    cancelled = random.random(count) < 0.02
    airports = _texts(["".join(three) for three in _letters(random, 105)])
    tails = _texts([f"N{number:05}" for number in random.integers(0, 100_000, 4000)])
    columns = (
        pa.array(day.astype(np.int32), pa.date32()),
        _chosen(random, _texts(_CARRIERS), count),
        pa.array(random.integers(1, 8500, count, dtype=np.int32)),
        _chosen(random, tails, count),
        _chosen(random, airports.slice(0, 3), count),
        _chosen(random, airports, count),
        pa.array(scheduled, pa.timestamp("us")),
        pa.array(departed, pa.timestamp("us"), mask=cancelled),
        pa.array(delays, mask=cancelled),
        pa.array(distance),
        pa.array(distance * 11.3 + random.normal(0, 300, count)),
        pa.array(random.integers(20, 350, count)),
        pc.binary_join_element_wise(
            "gate", pa.array(random.integers(0, 10_000_000, count)).cast("string"), " "
        ),
    )
    return pa.table(list(columns), names=FLIGHTS.column_names)


def _letters(random: np.random.Generator, count: int) -> np.ndarray:
    letters: np.ndarray = random.choice(list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), (count, 3))
    return letters


def _texts(values: object) -> pa.Array:
    return pa.array(values, pa.string())


def _chosen(random: np.random.Generator, values: pa.Array, count: int) -> pa.Array:
    return values.take(pa.array(random.integers(0, len(values), count)))
