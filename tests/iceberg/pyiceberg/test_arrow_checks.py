"""PyIceberg's check of a schema, which prints: standard output has to survive it in threads."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from ags1.iceberg.pyiceberg.arrow import check_arrow_schema


def test_standard_output_is_the_same_after_checks_in_many_threads() -> None:
    schema = Schema(*(NestedField(i, f"c{i}", LongType()) for i in range(1, 4)))
    provided = pa.schema([pa.field(f"c{i}", pa.int64()) for i in range(1, 4)])
    before = sys.stdout

    def check(_: int) -> None:
        check_arrow_schema(schema, provided, downcast_ns_timestamp_to_us=False)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(check, range(400)))
        after = sys.stdout
    finally:
        sys.setswitchinterval(interval)
        sys.stdout = before
    assert after is before
