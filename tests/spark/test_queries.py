"""``read_table`` and ``count``: the rows that Java and Spark have, from the parts of a table that a
query asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition

from ags1.errors import KmsConfigurationError
from ags1.iceberg.read.scan import ScanReader
from ags1.spark import count, read_table

from .test_iceberg_source import (
    JAVA_KMS,
    JAVA_LOCATION,
    TABLES,
    expected,
    iceberg,
    ids,
    some_rows,
    table_of,
)

pytestmark = pytest.mark.spark

__all__ = ["iceberg"]


def java_s(name: str) -> tuple[str, dict[str, str]]:
    """The location and the options of a table that Java wrote."""
    metadata = sorted((TABLES / name / "metadata").glob("*.metadata.json"))[-1]
    return str(metadata), {
        "encryption.kms-impl": "java_unitest_kms:Kms",
        "location-map": json.dumps({JAVA_LOCATION: str(TABLES)}),
        "key": "keyA",
    }


@pytest.mark.parametrize("name", ["empty", "mor_dv", "parquet_plain"])
def test_java_s_tables_have_the_rows_that_java_reads(iceberg: Any, name: str) -> None:
    path, given = java_s(name)
    rows = [{k: v for k, v in row.items() if v is not None} for row in expected(name)]

    frame = read_table(iceberg, path, given)

    assert [json.loads(row) for row in frame.orderBy("id").toJSON().collect()] == rows
    assert count(iceberg, path, given) == len(rows)


@pytest.mark.parametrize("name", ["mor_dv", "parquet_plain", "stats"])
def test_rows_are_counted_as_java_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "java_unitest_kms.py").write_text(JAVA_KMS)
    monkeypatch.syspath_prepend(tmp_path)
    path, given = java_s(name)
    rows = expected(name)
    middle = rows[len(rows) // 2]["id"]

    assert count(None, path, given) == len(rows)
    some = [row for row in rows if row["id"] < middle]
    assert count(None, path, given, where=f"id < {middle}") == len(some) > 0


def test_columns_rows_snapshots_and_branches(
    iceberg: Any, catalog: Any, options: dict[str, str]
) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 100))
    first = table.current_snapshot().snapshot_id
    table.append(some_rows(100, 100))
    table.delete("id in (5, 150)")
    table.manage_snapshots().create_tag(first, "early").commit()
    left = [n for n in range(200) if n not in (5, 150)]

    frame = read_table(iceberg, "db.t", options, columns=["at", "id"], where="region = 'r1'")

    assert frame.columns == ["id", "at"]
    assert ids(frame) == [n for n in left if n % 3 == 1 and n % 11]
    assert frame.where("id = 1").collect()[0]["at"].second == 1
    assert ids(read_table(iceberg, "db.t", options, snapshot=first)) == list(range(100))
    assert ids(read_table(iceberg, "db.t", options, branch="early")) == list(range(100))
    assert count(iceberg, "db.t", options) == 198
    assert count(iceberg, "db.t", options, branch="early") == 100
    # Both files have to be read: one has a part of these rows, one a deletion vector too.
    assert count(iceberg, "db.t", options, where="id > 3 and id < 152") == 146
    assert count(iceberg, "db.t", {**options, "partSize": "1k"}, where="region = 'r1'") == len(
        ids(frame)
    )

    # A frame keeps the snapshot that was current when it was made. One frame may be used twice.
    table.append(some_rows(500, 10))
    assert ids(frame.union(frame.where("id < 10"))) == sorted([*ids(frame), 1, 4, 7])
    assert count(iceberg, "db.t", options) == 208


def test_the_manifests_count_what_they_prove(
    catalog: Any, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(catalog)
    for first in (0, 100, 200):
        table.append(some_rows(first, 100))
    table.delete("id in (5, 150)")
    read: list[list[Any]] = []
    whole = ScanReader.counts

    def noted(reader: ScanReader, tasks: Any) -> Any:
        read.append(list(tasks))
        return whole(reader, read[-1])

    monkeypatch.setattr(ScanReader, "counts", noted)

    def counted(row_filter: str) -> tuple[int, int]:
        """The rows of a query and the files that were read for it."""
        found = count(None, "db.t", options, where=row_filter or None)
        return found, len(read.pop())

    assert counted("") == (298, 2)  # those with deleted rows
    assert counted("id >= 200") == (100, 0)
    assert counted("id < 150") == (149, 2)
    assert counted("region is not null and id >= 100") == (
        table.scan("region is not null and id >= 100").to_arrow().num_rows,
        2,
    )
    assert counted("_pos < 2") == (6, 3)


def test_spark_knows_about_how_large_a_table_is(
    iceberg: Any, catalog: Any, options: dict[str, str]
) -> None:
    rows = some_rows(0, 50_000)
    table_of(catalog).append(rows)

    frame = read_table(iceberg, "db.t", options)

    plan = frame._jdf.queryExecution().optimizedPlan()
    assert 0.5 < int(str(plan.stats().sizeInBytes())) / rows.nbytes < 4


def test_a_task_gets_its_own_part_and_no_key(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    for first in (0, 100):
        table.append(some_rows(first, 100))
    table.delete("id = 7")
    tasks = table.scan().plan_files()
    keys = [f.key for t in tasks for f in (t.file, *t.delete_files)]
    sent: list[bytes] = []
    described: list[pa.Table] = []

    class Session:
        """Takes what would be sent."""

        def __getattr__(self, name: str) -> Any:
            return lambda *_: self

        def createDataFrame(self, table: pa.Table) -> Session:
            described.append(table)
            return self

        def mapInArrow(self, run: Any, schema: Any) -> None:
            sent.append(cloudpickle.dumps((run, schema)))

    read_table(Session(), "db.t", {**options, "partSize": "1k"})

    (parts,) = described[0].column("parts").to_pylist()
    assert len(keys) == 3
    assert len(parts) == 2
    for task in tasks:
        path = task.file.file_path.encode()
        assert [path in part for part in parts].count(True) == 1
        # What all tasks get.
        assert path not in sent[0]
    for km in keys:
        for text in (*parts, *sent):
            assert km.encryption_key not in text
            assert km.encryption_key.hex().encode() not in text


def test_what_cannot_be_read_is_said_at_once(catalog: Any, options: dict[str, str]) -> None:
    table_of(catalog)

    with pytest.raises(ValueError, match=r"'fliter' is not known: did you mean 'filter'\?"):
        read_table(None, "db.t", {**options, "fliter": "id = 1"})
    with pytest.raises(ValueError, match=r"'filter' is an argument too: leave one out"):
        read_table(None, "db.t", {**options, "filter": "id = 1"}, where="id = 2")
    with pytest.raises(ValueError, match="no column is named"):
        read_table(None, "db.t", options, columns=[])
    with pytest.raises(ValueError, match="nothing"):
        read_table(None, "db.t", options, columns=["nothing"])
    with pytest.raises(ValueError, match="comma in its name"):
        read_table(None, "db.t", options, columns=["a,b"])
    with pytest.raises(KmsConfigurationError, match="would send a secret"):
        count(None, "db.t", {**options, "catalog.s3.secret-access-key": "sesame"})


class TakesFilters(DataSource):  # type: ignore[misc]
    """A data source that takes the filters that Spark offers."""

    @classmethod
    def name(cls) -> str:
        return "takes-filters"

    def schema(self) -> str:
        return "id int"

    def reader(self, schema: Any) -> DataSourceReader:
        return FilteredReader()


class FilteredReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.wanted: list[int] = []

    def pushFilters(self, filters: Any) -> Any:
        for one in filters:
            if isinstance(one, EqualTo):
                self.wanted.append(one.value)
            else:
                yield one

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: Any) -> Any:
        yield pa.record_batch({"id": pa.array(self.wanted or range(10), pa.int32())})


def test_spark_reads_all_scans_of_a_frame_with_the_filters_of_the_last_one(spark: Any) -> None:
    """Why "ags1-iceberg" does not take Spark's filters: Spark keeps one plan of a data source for
    all scans of a frame (``PythonDataSourceV2.setReadInfo``). If this test fails, Spark has been
    mended, and the source can take them."""
    spark.dataSource.register(TakesFilters)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("takes-filters").load()
        both = frame.where("id = 3").union(frame.where("id = 4"))
        assert ids(both) == [4, 4]  # right were 3, 4
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
