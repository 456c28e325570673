"""Data files of other writers: fields without IDs, and times in nanoseconds."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from foreign_files import CASES, INSIDE, ROWS, A, B, avro_of, field, file_of, mapped, struct
from iceberg_tables import memory_kms
from table_maker import TableMaker

from ags1 import FormatError
from ags1.iceberg import open_table

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")


@pytest.mark.parametrize(
    ("case", "file_format"),
    # In Avro files, Java finds elements, keys and values by their place.
    [(case, "parquet") for case in CASES]
    + [(case, "avro") for case in CASES if case not in INSIDE],
)
def test_fields_that_the_name_mapping_lacks_are_left_out(
    tmp_path: Path, case: str, file_format: str
) -> None:
    columns, mapping, stored, expected = CASES[case]
    maker = TableMaker(tmp_path / "t", columns, memory_kms())
    maker.properties["schema.name-mapping.default"] = json.dumps(mapping)
    table = file_of(stored)
    is_avro = file_format == "avro"
    maker.commit(maker.add_avro(stored, avro_of(table)) if is_avro else maker.add_parquet_of(table))
    opened = open_table(maker.write(), memory_kms())
    assert opened.scan().to_arrow().to_pylist() == expected
    for name in expected[0]:
        names = (name,)
        found = opened.scan(selected_fields=names).to_arrow().to_pylist()
        assert found == [{name: row[name]} for row in expected]
        nulls = sum(row[name] is None for row in expected)
        assert opened.scan(f"{name} is null").count() == nulls


def test_ids_of_the_file_come_before_the_mapping(tmp_path: Path) -> None:
    def with_id(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})

    maker = TableMaker(tmp_path / "t", [A, B], memory_kms())
    maker.properties["schema.name-mapping.default"] = json.dumps([mapped(1, "a"), mapped(2, "b")])
    numbers, texts = pa.array([1, 2]), pa.array(["x", None])
    swapped = [with_id("b", pa.int64(), 1), with_id("a", pa.string(), 2)]
    maker.commit(maker.add_parquet_of(pa.table([numbers, texts], pa.schema(swapped))))
    some = [with_id("a", pa.int64(), 1), pa.field("b", pa.string())]
    maker.commit(maker.add_parquet_of(pa.table([numbers, texts], pa.schema(some))))
    taken = [with_id("b", pa.int64(), 1), pa.field("a", pa.int64())]
    maker.commit(maker.add_parquet_of(pa.table([numbers, numbers], pa.schema(taken))))
    opened = open_table(maker.write(), memory_kms())
    found = [row for batch in opened.scan().to_arrow_batch_reader() for row in batch.to_pylist()]
    assert found == [*ROWS, *ROWS, {"a": 1, "b": None}, {"a": 2, "b": None}]
    del maker.properties["schema.name-mapping.default"]
    opened = open_table(maker.write(), memory_kms())
    assert opened.scan("b = 'x'").count() == 1


def test_a_file_without_ids_needs_a_mapping(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", [A, B], memory_kms())
    maker.commit(maker.add_parquet_of(file_of(ROWS)))
    opened = open_table(maker.write(), memory_kms())
    with pytest.raises(FormatError, match=r"parquet: .* 'schema.name-mapping.default'"):
        opened.scan().to_arrow()


MOMENT = datetime(2025, 7, 1, 15, 27, 53, 123456, tzinfo=timezone.utc)


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "timestamp_ns"])
@pytest.mark.parametrize("nested", [False, True])
def test_nanoseconds_of_a_file_are_read_in_the_unit_of_the_column(
    tmp_path: Path, kind: str, nested: bool
) -> None:
    zone = "UTC" if kind == "timestamptz" else None
    nanos = int(MOMENT.timestamp()) * 10**9 + 123_456_789
    stored = pa.array([nanos, None], pa.timestamp("ns", zone))
    column, wanted = field(1, "t", kind), pa.timestamp("ns" if kind.endswith("ns") else "us", zone)
    if nested:
        stored = pa.ListArray.from_arrays(
            [0, 1, 2], pa.StructArray.from_arrays([stored], names=["t"])
        )
        element = {"type": "list", "element-id": 2, "element": struct(field(3, "t", kind))}
        column = field(1, "t", {**element, "element-required": False})
    below = [mapped(2, "element", fields=[mapped(3, "t")])] if nested else []
    maker = TableMaker(tmp_path / "t", [column], memory_kms())
    maker.properties["schema.name-mapping.default"] = json.dumps([mapped(1, "t", fields=below)])
    maker.commit(maker.add_parquet_of(pa.table({"t": stored})))
    opened = open_table(maker.write(), memory_kms())
    found = opened.scan().to_arrow()["t"].combine_chunks()
    if nested:
        found = found.values.field("t")
    assert found.type == wanted
    assert found.cast(pa.int64()).to_pylist() == [
        nanos if kind.endswith("ns") else nanos // 1000,
        None,
    ]
    if not nested:
        text = MOMENT.replace(tzinfo=MOMENT.tzinfo if zone else None).isoformat()
        assert opened.scan(f"t <= '{text}'").count() == (0 if kind.endswith("ns") else 1)
        assert opened.scan(f"t >= '{text}'").count() == 1
