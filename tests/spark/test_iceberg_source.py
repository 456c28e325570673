"""The data source "ags1-iceberg": tables that Java wrote and tables of our own, read and written by
Spark without Java's Iceberg."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import unpin
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from ags1.errors import TruncatedError
from ags1.iceberg.distributed.sealed import SentRecord
from ags1.iceberg.read.tasks import TaskReader

pytest.importorskip("pyspark")

from pyspark.sql import types

from ags1.iceberg.read.splits import splits_of
from ags1.iceberg.table import EncryptedTable
from ags1.spark import iceberg_source
from ags1.spark.arrow_rows import spark_schema
from ags1.spark.iceberg_source import writer as table_writer
from ags1.spark.iceberg_source.reader import TableReader, build_scan
from ags1.spark.iceberg_source.writer import TableWriter

pytestmark = pytest.mark.spark

TABLES = Path(__file__).parent.parent / "tables"
JAVA_LOCATION = "file:/tmp/ags1-fixtures"

# The tests' KMS of Iceberg's Java, as a plug-in: its keys are no options.
JAVA_KMS = """
import warnings

from ags1.kms import from_properties as make


class Kms:
    @staticmethod
    def from_properties(properties):
        keys = {"keyA": b"0123456789012345", "keyB": b"1123456789012345"}
        named = {f"encryption.kms.key.{name}": key.hex() for name, key in keys.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make({"encryption.kms-type": "memory"} | named)
"""


@pytest.fixture(scope="module")
def iceberg(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The session, with the data source and Java's test KMS."""
    module = tmp_path_factory.mktemp("kms") / "java_unitest_kms.py"
    module.write_text(JAVA_KMS)
    spark.sparkContext.addPyFile(str(module))
    iceberg_source.register(spark)
    return spark


def fixture_reader(session: Any, name: str, **options: str) -> Any:
    """A reader of a table that Java wrote."""
    metadata = sorted((TABLES / name / "metadata").glob("*.metadata.json"))[-1]
    reader = (
        session.read.format("ags1-iceberg")
        .option("encryption.kms-impl", "java_unitest_kms:Kms")
        .option("location-map", json.dumps({JAVA_LOCATION: str(TABLES)}))
        .option("key", "keyA")
    )
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load(str(metadata))


def expected(name: str) -> list[dict[str, Any]]:
    """What Java read from that table, in the order of ``id``."""
    return [
        json.loads(line)
        for line in (TABLES / "read_by_spark" / name / "expected.jsonl").read_text().splitlines()
    ]


@pytest.mark.parametrize(
    "name", ["empty", "mor_dv", "parquet_plain", "stats"], ids=lambda name: name
)
def test_java_s_tables_have_the_rows_that_java_reads(iceberg: Any, name: str) -> None:
    frame = fixture_reader(iceberg, name)

    found = [json.loads(row) for row in frame.orderBy("id").toJSON().collect()]

    assert found == [{k: v for k, v in row.items() if v is not None} for row in expected(name)]


def test_variants_are_structs_of_their_parts(iceberg: Any) -> None:
    frame = fixture_reader(iceberg, "dev/variant").selectExpr("id", "v.value", "v.metadata")

    found = [json.loads(row) for row in frame.orderBy("id").toJSON().collect()]

    parts = [{k: v for k, v in row.items() if k != "json"} for row in expected("dev/variant")]
    assert found == [{k: v for k, v in row.items() if v is not None} for row in parts]


_SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType()),
    NestedField(3, "at", TimestamptzType()),
)


def table_of(
    catalog: Any, file_format: str = "parquet", spec: PartitionSpec | None = None, **more: str
) -> Any:
    properties = {
        "encryption.key-id": "default",
        "write.format.default": file_format,
        "write.delete.mode": "merge-on-read",
        **more,
    }
    partitions = {} if spec is None else {"partition_spec": spec}
    return catalog.create_table("db.t", _SCHEMA, properties=properties, **partitions)


def some_rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "region": pa.array([None if n % 11 == 0 else f"r{n % 3}" for n in ids]),
            "at": pa.array([n * 1_000_000 for n in ids], pa.timestamp("us", "UTC")),
        },
        schema=pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                ("region", pa.string()),
                ("at", pa.timestamp("us", "UTC")),
            ]
        ),
    )


def reading(session: Any, options: dict[str, str], **more: str) -> Any:
    return session.read.format("ags1-iceberg").options(**options, **more).load("db.t")


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_deletes_filters_columns_and_snapshots(
    iceberg: Any, catalog: Any, options: dict[str, str], file_format: str
) -> None:
    table = table_of(catalog, file_format)
    table.append(some_rows(0, 100))
    first = table.current_snapshot().snapshot_id
    table.append(some_rows(100, 100))
    table.delete("id in (5, 150)")
    table.manage_snapshots().create_tag(first, "early").commit()
    with table.update_schema() as update:
        update.add_column("extra", StringType())

    frame = reading(iceberg, options, partSize="1k")

    left = [n for n in range(200) if n not in (5, 150)]
    assert frame.columns == ["id", "region", "at", "extra"]
    assert frame.rdd.getNumPartitions() == 2
    assert ids(frame) == left
    filtered = reading(iceberg, options, filter="region = 'r1' and id < 120", columns="id,at")
    assert filtered.columns == ["id", "at"]
    assert ids(filtered) == [n for n in left if n % 3 == 1 and n % 11 and n < 120]
    assert filtered.where("id = 1").collect()[0]["at"].second == 1
    hidden = ("_file", "_pos", "_spec_id", "_row_id", "_last_updated_sequence_number")
    places = reading(iceberg, options, columns=f"id,{','.join(hidden)}", partSize="1k")
    scanned = table.scan(selected_fields=("id", *hidden)).to_arrow().to_pylist()
    assert places.columns == ["id", *hidden]
    assert [row.asDict() for row in places.orderBy("id").collect()] == sorted(
        scanned, key=lambda row: row["id"]
    )
    assert ids(reading(iceberg, options, filter="_pos < 2 and id > 1")) == [100, 101]
    old = reading(iceberg, options, **{"snapshot-id": str(first)})
    assert old.columns == ["id", "region", "at"]
    assert ids(old) == list(range(100))
    assert ids(reading(iceberg, options, branch="early")) == list(range(100))
    assert ids(reading(iceberg, options, filter="id = 150")) == []


def test_a_column_of_an_unknown_type_is_left_out(
    iceberg: Any, catalog: Any, options: dict[str, str]
) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_bytes())
    metadata["schemas"][0]["fields"][1]["type"] = "interval"
    path.write_text(json.dumps(metadata))
    unpin(catalog)

    with pytest.raises(Exception, match=r"'region' has type interval, .* the option 'columns'"):
        reading(iceberg, options).collect()

    assert ids(reading(iceberg, options, columns="id,at", filter="id < 5")) == list(range(5))


def test_a_table_without_a_snapshot_has_no_rows(
    iceberg: Any, catalog: Any, options: dict[str, str]
) -> None:
    table_of(catalog)

    assert ids(reading(iceberg, options)) == []


def test_what_travels_has_no_key_in_it(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 100))
    table.delete("id = 7")
    given = {**options, "path": "db.t"}
    tasks = build_scan(table, given).plan_files()
    keys = [f.key for task in tasks for f in (task.file, *task.delete_files)]
    reader = TableReader(given, spark_schema(some_rows(0, 1).schema))

    sent = pickle.dumps((reader, reader.partitions()))

    assert len(keys) == 2
    for km in keys:
        assert km.encryption_key not in sent
        assert km.encryption_key.hex().encode() not in sent


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_spark_appends_and_overwrites_in_one_snapshot(
    iceberg: Any, catalog: Any, options: dict[str, str], file_format: str
) -> None:
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "region"),
        PartitionField(1, 1001, BucketTransform(2), "bucket"),
    )
    table = table_of(catalog, file_format, spec)
    table.append(some_rows(0, 10))

    def write(first: int, count: int, mode: str, **more: str) -> None:
        frame = iceberg.range(first, first + count, 1, 3).selectExpr(
            "id", "concat('r', id % 3) as region", "timestamp_seconds(id) as at"
        )
        writer = frame.write.format("ags1-iceberg").options(**options, **more)
        writer.mode(mode).save("db.t")

    write(10, 50, "append")
    table.refresh()
    rows = table.scan().to_arrow().sort_by("id")
    assert rows["id"].to_pylist() == list(range(60))
    assert rows["at"].to_pylist()[59].timestamp() == 59
    assert table.current_snapshot().summary["added-records"] == "50"
    assert len(table.snapshots()) == 2
    assert all(task.file.is_encrypted for task in table.scan().plan_files())
    keys = [task.file.key.encryption_key for task in table.scan().plan_files()]
    assert len(set(keys)) == len(keys)

    write(100, 5, "overwrite", **{"overwrite-filter": "id >= 5"})
    table.refresh()
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [*range(5), *range(100, 105)]
    assert len(table.snapshots()) == 3

    write(200, 4, "overwrite")
    assert ids(reading(iceberg, options)) == [200, 201, 202, 203]

    write(300, 1, "append", branch="work")
    assert ids(reading(iceberg, options)) == [200, 201, 202, 203]
    assert ids(reading(iceberg, options, branch="work")) == [200, 201, 202, 203, 300]


def stored_files(tmp_path: Path) -> set[str]:
    return {str(path) for path in (tmp_path / "warehouse").rglob("*") if path.is_file()}


def test_a_thread_saves_empty_arrays_of_arrays(
    iceberg: Any, catalog: Any, options: dict[str, str]
) -> None:
    """``save`` looks for the source in the session that is active in the thread."""
    schema = pa.schema([("a", pa.list_(pa.list_(pa.string())))])
    made = catalog.create_table("db.t", schema, properties={"encryption.key-id": "default"})
    # Spark sends no offsets of the inner arrays.
    frame = iceberg.range(0, 2, 1, 1).selectExpr("filter(array(array('x')), i -> id < 0) as a")
    save = frame.write.format("ags1-iceberg").options(**options).mode("append").save
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            pool.submit(save, "db.t").result()
        pool.submit(iceberg_source.register, iceberg).result()
        pool.submit(save, "db.t").result()
    assert made.refresh().scan().to_arrow().to_pylist() == [{"a": []}] * 2


def test_a_job_that_fails_leaves_nothing(
    iceberg: Any, catalog: Any, options: dict[str, str], tmp_path: Path
) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    before = stored_files(tmp_path)
    frame = iceberg.range(0, 1000, 1, 2).selectExpr(
        "coalesce(if(id = 900, cast(raise_error('boom') as long), id), 0) as id", "'r' as region"
    )

    with pytest.raises(Exception, match="boom"):
        frame.write.format("ags1-iceberg").options(**options).mode("append").save("db.t")

    assert stored_files(tmp_path) == before
    assert len(table.refresh().snapshots()) == 1


def test_a_commit_that_fails_leaves_nothing(
    iceberg: Any, catalog: Any, options: dict[str, str], tmp_path: Path
) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    before = stored_files(tmp_path)
    frame = iceberg.range(10).selectExpr("id", "'r' as region", "timestamp_seconds(id) as at")

    writer = frame.write.format("ags1-iceberg").options(**options).mode("overwrite")
    with pytest.raises(Exception, match="nothing_there"):
        writer.option("overwrite-filter", "nothing_there = 1").save("db.t")

    assert stored_files(tmp_path) == before


def written(options: dict[str, str]) -> tuple[TableWriter, Any]:
    """Have a task write rows; return the writer, as another process has it, and the messages."""
    rows = some_rows(10, 10).select(["id"])
    columns = types.StructType([types.StructField("id", types.LongType(), nullable=False)])
    writer = TableWriter({**options, "path": "db.t"}, columns, overwrite=False)
    message = writer.write(iter(rows.to_batches()))
    sent: tuple[TableWriter, Any] = pickle.loads(pickle.dumps((writer, [message])))
    return sent


def test_a_catalog_that_does_not_answer_leaves_nothing(
    catalog: Any, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "notes"))
    (tmp_path / "notes").mkdir()
    table_of(catalog).append(some_rows(0, 10))
    before = stored_files(tmp_path)
    writer, messages = written(options)
    assert len(stored_files(tmp_path)) == len(before) + 1
    with monkeypatch.context() as patch:
        patch.setattr(table_writer, "open_of_options", _no_answer)
        with pytest.raises(OSError, match="no answer"):
            writer.commit(messages)
    written(options)  # another job's
    other = stored_files(tmp_path)

    writer.abort(messages)

    assert len(stored_files(tmp_path) - before) == 1
    assert stored_files(tmp_path) < other
    assert list((tmp_path / "notes").iterdir()) == []


def test_a_file_that_does_not_open_for_the_commit_leaves_nothing(
    catalog: Any, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_of(catalog)
    before = stored_files(tmp_path)
    writer, messages = written(options)
    monkeypatch.setattr(SentRecord, "fields_with_key", _no_answer)

    with pytest.raises(OSError, match="no answer"):
        writer.commit(messages)

    assert stored_files(tmp_path) == before


def _no_answer(*_: object) -> Any:
    raise OSError("no answer")


@pytest.mark.parametrize("error", [CommitStateUnknownException, KeyboardInterrupt])
def test_a_commit_of_unknown_outcome_keeps_its_files(
    catalog: Any,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    table = table_of(catalog)
    commit_updates = EncryptedTable.commit_updates

    def commit_and_lose_the_answer(*args: Any) -> None:
        commit_updates(*args)
        raise error

    writer, messages = written(options)
    with monkeypatch.context() as patch:
        patch.setattr(EncryptedTable, "commit_updates", commit_and_lose_the_answer)
        with pytest.raises(error):
            writer.commit(messages)
    after = stored_files(tmp_path)
    # Anybody may plant a note there, whose it is is known.
    note = Path(writer._not_sent)
    with monkeypatch.context() as patch:
        patch.setattr("os.geteuid", lambda: 12345)
        note.touch()
        writer.abort(messages)
        note.unlink()
    writer.abort(messages)

    assert stored_files(tmp_path) == after
    assert table.refresh().scan().to_arrow()["id"].to_pylist() == list(range(10, 20))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id, 1 as region", "region"),
        ("cast(id as string) as id", "id"),
        ("id, 2 as other", "other"),
        ("'r' as region", "id"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    iceberg: Any, catalog: Any, options: dict[str, str], columns: str, message: str
) -> None:
    table_of(catalog)
    frame = iceberg.range(3).selectExpr(*columns.split(", "))

    with pytest.raises(Exception, match=message):
        frame.write.format("ags1-iceberg").options(**options).mode("append").save("db.t")


def test_a_damaged_file_and_a_missing_key_fail_the_job(
    iceberg: Any, catalog: Any, options: dict[str, str], keyring: Path
) -> None:
    table = table_of(catalog, "avro")
    table.append(some_rows(0, 1000))
    path = Path(table.scan().plan_files()[0].file.file_path.removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match="AuthenticationError"):
        reading(iceberg, options).collect()

    with pytest.raises(Exception, match=r"'default'.*other|'other'.*default"):
        reading(iceberg, options, key="other").collect()
    shutil.copy(keyring, f"{keyring}.kept")
    keyring.unlink()
    with pytest.raises(Exception, match="keyring"):
        reading(iceberg, options).collect()


def test_secrets_are_no_options(iceberg: Any, catalog: Any, options: dict[str, str]) -> None:
    table_of(catalog)

    with pytest.raises(Exception, match="would send a secret") as caught:
        reading(iceberg, options, **{"catalog.s3.secret-access-key": "sesame"}).collect()

    assert "sesame" not in str(caught.value)


def split_reads(
    table: Any, part_size: int, **options: str
) -> Iterator[tuple[list[Any], list[list[Any]]]]:
    """Yield for each data file the rows read as a whole, and those of each split."""
    scan = build_scan(table, options)
    for task in scan.plan_files():

        def read(split: tuple[int, int] | None, task: Any = task) -> list[Any]:
            # A reader of its own, as in another process.
            reader = TaskReader(table.files, table.metadata, scan.projection(), scan.bound_filter)
            return [row for batch in reader.batches(task, split) for row in batch.to_pylist()]

        splits = splits_of(task, part_size)
        assert splits[0][0] == 0
        assert sum(length for _, length in splits) == task.file.file_size_in_bytes
        yield read(None), [read(split) for split in splits]


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
@pytest.mark.parametrize("deletes", ["none", "vector"])
def test_the_splits_of_a_file_have_its_rows(catalog: Any, file_format: str, deletes: str) -> None:
    table = table_of(catalog, file_format, **{"write.parquet.row-group-limit": "1500"})
    table.append(some_rows(0, 40_000))
    if deletes == "vector":
        gone = [*range(0, 40_000, 997), 1499, 1500, 1501, 39_999]
        table.delete(f"id in ({str(gone)[1:-1]})")

    for row_filter in ("", "region = 'r1' and id < 30000"):
        options = {"filter": row_filter, "columns": "id,region,_pos,_row_id"}
        ((whole, splits),) = split_reads(table, 9000, **options)
        assert len(splits) > 4
        assert sum(map(bool, splits)) > 4
        assert [row for split in splits for row in split] == whole
        assert 0 < len(whole) < 40_001


def test_files_that_are_not_split(catalog: Any) -> None:
    table = table_of(catalog, "avro")
    table.append(some_rows(0, 20_000))
    (task,) = table.scan().plan_files()
    size = task.file.file_size_in_bytes
    assert len(splits_of(task, size // 40)) == 40
    assert len(splits_of(task, size // 40, counted=True)) == 16
    table.delete("id = 5")
    (task,) = table.scan().plan_files()
    assert len(splits_of(task, size // 40)) == 16
    plain = task.file.replace(key_metadata=None)
    assert splits_of(FileScanTask(plain), size // 40) == [(0, size)]


def test_a_large_file_is_read_by_several_tasks(
    iceberg: Any, catalog: Any, options: dict[str, str]
) -> None:
    table = table_of(catalog, "avro")
    table.append(some_rows(0, 30_000))
    table.append(some_rows(30_000, 10))
    table.append(some_rows(30_010, 10))
    table.delete("id in (7, 29000)")

    frame = reading(iceberg, options, partSize="20k")

    assert frame.rdd.getNumPartitions() > 4
    assert ids(frame) == [n for n in range(30_020) if n not in (7, 29_000)]


def test_a_block_that_is_missing_fails_a_split(catalog: Any) -> None:
    table = table_of(catalog, "avro")
    table.append(some_rows(0, 20_000))
    (task,) = table.scan().plan_files()
    path = Path(task.file.file_path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(TruncatedError):
        list(split_reads(table, 9000))
