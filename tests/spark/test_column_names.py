"""Names of columns without regard to case in the data source "ags1-iceberg"."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from ags1.spark.arrow_rows import spark_schema
from ags1.spark.iceberg_source import Ags1IcebergDataSource

pytestmark = pytest.mark.spark

ROWS = pa.table({"Id": [1, 2], "Region": ["a", "b"], "Place": [{"Land": "x"}, {"Land": "y"}]})


def table_like(catalog: Any, rows: pa.Table) -> Any:
    properties = {"encryption.key-id": "default"}
    table = catalog.create_table("db.t", rows.schema, properties=properties)
    table.append(rows)
    return table


def read(options: dict[str, str], **more: str) -> pa.Table:
    given = {**options, "path": "db.t", **{k.replace("_", "-"): v for k, v in more.items()}}
    source = Ags1IcebergDataSource(given)
    reader = source.reader(source.schema())
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    return pa.Table.from_batches([batch for part in parts for batch in reader.read(part)])


def write(options: dict[str, str], rows: pa.Table, **more: str) -> None:
    given = {**options, "path": "db.t", **{k.replace("_", "-"): v for k, v in more.items()}}
    overwrite = "overwrite-filter" in given
    writer = Ags1IcebergDataSource(given).writer(spark_schema(rows.schema), overwrite)
    writer.commit([writer.write(iter(rows.to_batches()))])


def test_columns_and_filters_go_without_regard_to_case(
    catalog: Any, options: dict[str, str]
) -> None:
    table_like(catalog, ROWS)

    found = read(options, columns="REGION,id,_POS", filter="ID = 2 AND place.LAND = 'y'")

    assert sorted(found.column_names) == ["Id", "Region", "_pos"]
    assert found["Id"].to_pylist() == [2]
    for more in ({"columns": "id"}, {"filter": "id = 2"}):
        with pytest.raises(ValueError, match="id"):
            read(options, case_sensitive="true", **more)


def test_written_columns_go_without_regard_to_case(catalog: Any, options: dict[str, str]) -> None:
    table = table_like(catalog, ROWS)
    more = pa.table({"ID": [3], "region": ["c"]})

    write(options, more)
    write(options, pa.table({"iD": [4]}), overwrite_filter="ID <= 2")

    rows = table.refresh().scan(selected_fields=("Id", "Region")).to_arrow().sort_by("Id")
    assert rows.to_pylist() == [{"Id": 3, "Region": "c"}, {"Id": 4, "Region": None}]
    with pytest.raises(ValueError, match="region"):
        write(options, more, case_sensitive="true")
    with pytest.raises(ValueError, match="'id' and 'ID' are both the table's 'Id': leave one out"):
        write(options, pa.table({"id": [1], "ID": [2]}))


def test_names_that_are_ambiguous(catalog: Any, options: dict[str, str]) -> None:
    rows = pa.table({"a": [1], "A": [2]})
    table = table_like(catalog, rows)

    for more in ({"columns": "a"}, {"filter": "a = 1"}):
        with pytest.raises(ValueError, match=r"'a' is ambiguous.*'a' and 'A': set .*'case-sens"):
            read(options, **more)
        assert read(options, case_sensitive="true", **more)["a"].to_pylist() == [1]
    with pytest.raises(ValueError, match="is ambiguous"):
        write(options, rows)
    write(options, rows, case_sensitive="true")
    assert table.refresh().scan().count() == 2
    assert read(options).num_rows == 2  # all columns name none
