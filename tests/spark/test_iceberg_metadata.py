"""Metadata tables of the data source "ags1-iceberg"."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from ags1.spark.iceberg_source import Ags1IcebergDataSource

from .test_iceberg_source import some_rows, table_of

pytestmark = pytest.mark.spark

NAMES = """
    entries files data_files delete_files partitions snapshots history refs manifests
    metadata_log_entries all_manifests all_files all_data_files all_delete_files
""".split()


def read(options: dict[str, str], path: str, **more: str) -> pa.Table:
    """Read as Spark does; the tasks have only what is pickled."""
    given = {**options, "path": path, **{k.replace("_", "-"): v for k, v in more.items()}}
    source = Ags1IcebergDataSource(given)
    reader = source.reader(source.schema())
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    return pa.Table.from_batches([batch for part in parts for batch in reader.read(part)])


@pytest.mark.parametrize("name", NAMES)
def test_metadata_tables_are_pyiceberg_s(catalog: Any, options: dict[str, str], name: str) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    table.append(some_rows(10, 10))
    table.delete("id = 5")

    rows = read(options, f"db.t.{name}")

    expected = getattr(table.inspect, name)()
    assert rows.schema.names == expected.schema.names
    assert rows.num_rows == expected.num_rows > 0


def test_a_metadata_table_has_no_key_in_it(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    table.delete("id = 5")
    tasks = table.scan().plan_files()
    keys = [f.key.encryption_key for task in tasks for f in (task.file, *task.delete_files)]
    assert len(keys) == 2

    for name in NAMES:
        given = {**options, "path": f"db.t.{name}"}
        source = Ags1IcebergDataSource(given)
        reader = source.reader(source.schema())
        sent = pickle.dumps((reader, reader.partitions()))
        assert not any(key in sent or key.hex().encode() in sent for key in keys)
    assert read(options, "db.t.files")["key_metadata"].to_pylist() == [None, None]


def test_which_version_a_metadata_table_is_of(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    with pytest.raises(ValueError, match="no snapshot yet, and so no files"):
        read(options, "db.t.files")
    assert read(options, "db.t.snapshots").num_rows == 0
    for first in (0, 10):
        table.append(some_rows(first, 10))
    first, second = (str(snapshot.snapshot_id) for snapshot in table.snapshots())
    table.manage_snapshots().create_tag(int(first), "early").commit()

    assert read(options, "db.t.files").num_rows == 2
    assert read(options, "db.t.files", snapshot_id=first).num_rows == 1
    assert read(options, "db.t.files", tag="early").num_rows == 1
    assert read(options, f"{table.refresh().metadata_location}#all_files").num_rows == 2
    with pytest.raises(ValueError, match="'snapshots' is not one of a snapshot"):
        read(options, "db.t.snapshots", snapshot_id=first)
    with pytest.raises(ValueError, match="has no option 'filter': leave it out, and use where"):
        read(options, "db.t.files", filter="record_count > 1")
    times = read(options, "db.t.snapshots")["committed_at"]
    assert times.type == pa.timestamp("us", "UTC")
    assert times.to_pylist()[1].timestamp() * 1000 == table.snapshots()[1].timestamp_ms
    assert second


def test_a_table_of_that_name_comes_first(catalog: Any, options: dict[str, str]) -> None:
    table_of(catalog).append(some_rows(0, 10))
    catalog.create_namespace("db.t")
    properties = {"encryption.key-id": "default"}
    other = catalog.create_table("db.t.files", some_rows(0, 1).schema, properties=properties)
    other.append(some_rows(5, 1))

    assert read(options, "db.t.files")["id"].to_pylist() == [5]
    assert read(options, "db.t.history").num_rows == 1
