"""Deletes, updates and merges over executors: what goes wrong, and what others do meanwhile.

``tests/interop/test_row_changes.py`` compares their rows and row lineage with Java's. Here Spark's
own SQL, on a view of the same rows, says what is right.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ValidationException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from ags1.errors import KmsConfigurationError
from ags1.iceberg import EncryptedTable
from ags1.iceberg import verify_table as verify_here

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, ArithmeticException, SparkRuntimeException
from pyspark.sql import functions as sql

from ags1.spark import tables
from ags1.spark.jobs.group import TaskFailedError
from ags1.spark.tables import RowChanges, row_changes
from ags1.spark.tables.row_tasks import ChangingRows, RemovingRows

from .test_iceberg_source import some_rows, stored_files, table_of

pytestmark = pytest.mark.spark

BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
MODES = ["merge-on-read", "copy-on-write"]


def filled(catalog: Any, mode: str = "merge-on-read", **more: Any) -> EncryptedTable:
    """A table of three files with 100 rows each."""
    modes = {f"write.{command}.mode": mode for command in ("delete", "update", "merge")}
    table: EncryptedTable = table_of(catalog, **more, **modes)
    for first in (0, 100, 200):
        table.append(some_rows(first, 100))
    return table


def ids(table: EncryptedTable) -> list[int]:
    found: list[int] = table.refresh().scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
    return sorted(found)


def check_whole(table: EncryptedTable) -> None:
    found = verify_here(table.refresh())
    assert (found.ok, found.finding_counts.get("orphan-file")) == (True, None)


def changes_of(spark: Any, *numbers: int) -> Any:
    return spark.createDataFrame([(n, "new") for n in numbers], "id bigint, region string")


def merged(spark: Any, options: dict[str, str], source: Any) -> RowChanges:
    merge = tables.merge_into(spark, "db.t", source, "target.id = source.id", options)
    merge = merge.whenMatched().update({"region": "source.region"})
    return merge.whenNotMatched().insert({"id": "source.id"}).merge()


COMMANDS: dict[str, Callable[[Any, dict[str, str]], RowChanges]] = {
    "delete": lambda spark, options: tables.delete(spark, "db.t", "id < 3", options),
    "update": lambda spark, options: tables.update(
        spark, "db.t", {"region": "'new'"}, "id < 3", options
    ),
    "merge": lambda spark, options: merged(spark, options, changes_of(spark, 1, 1000)),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_partitioned_avro_table_is_changed_as_sql_says(
    spark: Any, catalog: Any, options: dict[str, str], mode: str
) -> None:
    table = filled(catalog, mode, file_format="avro", spec=BY_REGION)
    name = f"rows_{mode.replace('-', '_')}"

    def frame() -> Any:
        rows = table.refresh().scan().to_arrow().sort_by("id").to_pylist()
        return [(row["id"], row["region"]) for row in rows]

    before = frame()
    schema = "id bigint, region string"
    spark.createDataFrame(before, schema).createOrReplaceTempView(name)

    done = tables.delete(spark, "db.t", "region = 'r1'", options)
    left = [row for row in before if row[1] != "r1"]
    assert frame() == left
    assert done == RowChanges(rows_deleted=len(before) - len(left))
    # All of these files were dropped by their partitions.
    assert table.current_snapshot().summary.additional_properties["deleted-data-files"] == "3"

    done = tables.update(
        spark,
        "db.t",
        {"REGION": sql.concat(sql.col("region"), sql.lit("x"))},
        "id % 2 = 0",
        options,
    )
    query = f"SELECT id, IF(id % 2 = 0, concat(region, 'x'), region) FROM {name} "
    wanted = spark.sql(query + "WHERE NOT region <=> 'r1' ORDER BY id").collect()
    assert frame() == [tuple(row) for row in wanted]
    assert done == RowChanges(rows_updated=sum(row[0] % 2 == 0 for row in wanted))

    source = changes_of(spark, 2, 3, 5000)
    merge = tables.merge_into(spark, "db.t", source, ["id"], options)
    done = merge.whenNotMatched().insert({"id": "source.id", "region": "'in'"}).merge()
    assert done == RowChanges(rows_inserted=1)
    assert frame() == [*(tuple(row) for row in wanted), (5000, "in")]
    check_whole(table)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_change_of_the_same_files_meanwhile_is_not_lost(
    spark: Any,
    catalog: Any,
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    mode: str,
) -> None:
    table = filled(catalog, mode)
    remove = row_changes.SparkRowChanges.remove_rows

    def meanwhile(*arguments: Any, **more: Any) -> Any:
        catalog.load_table("db.t").delete("id = 50")
        return remove(*arguments, **more)

    monkeypatch.setattr(row_changes.SparkRowChanges, "remove_rows", meanwhile)
    with pytest.raises(ValidationException, match="another writer"):
        COMMANDS[command](spark, options)

    assert ids(table) == [n for n in range(300) if n != 50]
    assert "new" not in table.scan().to_arrow()["region"].to_pylist()
    check_whole(table)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_isolation_level_of_the_command_says_whether_added_rows_conflict(
    spark: Any,
    catalog: Any,
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    levels = {f"write.{other}.isolation-level": "snapshot" for other in COMMANDS}
    table = filled(catalog, **levels | {f"write.{command}.isolation-level": "serializable"})
    remove = row_changes.SparkRowChanges.remove_rows

    def meanwhile(*arguments: Any, **more: Any) -> Any:
        # The columns of the filter: an appended row that it may match.
        catalog.load_table("db.t").append(some_rows(-5, 10))
        return remove(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(row_changes.SparkRowChanges, "remove_rows", meanwhile)
        with pytest.raises(ValidationException, match="another writer added"):
            COMMANDS[command](spark, options)
        check_whole(table)
        table.refresh().delete("id < 0")
        with table.transaction() as transaction:
            transaction.set_properties({f"write.{command}.isolation-level": "SNAPSHOT"})
        COMMANDS[command](spark, options)

    check_whole(table)
    assert {-5, -1, 0, 1, 4} <= set(ids(table))


def test_rows_that_others_append_meanwhile_stay(
    spark: Any, catalog: Any, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(catalog)
    remove = row_changes.SparkRowChanges.remove_rows

    def meanwhile(*arguments: Any, **more: Any) -> Any:
        catalog.load_table("db.t").append(some_rows(900, 5))
        return remove(*arguments, **more)

    monkeypatch.setattr(row_changes.SparkRowChanges, "remove_rows", meanwhile)
    tables.delete(spark, "db.t", "id < 3", options)

    assert ids(table) == [*range(3, 300), *range(900, 905)]
    check_whole(table)


def die_once(options: tuple[tuple[str, str], ...]) -> None:
    marker = Path(dict(options)["keyring"]).with_name("killed")
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class KilledChanging(ChangingRows):
    """The first worker to have written rows is killed before anybody hears of it."""

    def _changed(self, batches: Iterable[pa.RecordBatch]) -> Any:
        changed = super()._changed(batches)
        if changed.files or changed.removed:
            die_once(self.table.options)
        return changed


class KilledRemoving(RemovingRows):
    """The first worker to have removed rows is killed before anybody hears of it."""

    def __call__(self, tasks: Iterable[list[Any]]) -> Iterator[list[Any]]:
        for result in super().__call__(tasks):
            die_once(self.table.options)
            yield result


class DyingRemoving(RemovingRows):
    """All workers are killed when they have removed rows."""

    def __call__(self, tasks: Iterable[list[Any]]) -> Iterator[list[Any]]:
        for _ in super().__call__(tasks):
            os.kill(os.getpid(), signal.SIGKILL)
        yield []


@pytest.mark.parametrize(
    ("name", "killed"), [("ChangingRows", KilledChanging), ("RemovingRows", KilledRemoving)]
)
def test_a_worker_that_is_killed_changes_nothing_twice(
    spark: Any,
    catalog: Any,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    killed: type,
) -> None:
    table = filled(catalog, "copy-on-write")
    monkeypatch.setattr(row_changes, name, killed)

    done = tables.update(spark, "db.t", {"region": "'new'"}, "id < 150", options)

    assert (tmp_path / "killed").exists()
    assert done == RowChanges(rows_updated=150)
    found = table.refresh().scan("region = 'new'").to_arrow()
    assert sorted(found["id"].to_pylist()) == [*range(150)]
    assert ids(table) == [*range(300)]
    check_whole(table)


def test_a_job_that_fails_leaves_nothing(
    spark: Any,
    catalog: Any,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filled(catalog)
    before = stored_files(tmp_path)
    wrong = "IF(id = 299, raise_error('on purpose'), region)"
    with pytest.raises(SparkRuntimeException, match="on purpose"):
        tables.update(spark, "db.t", {"region": wrong}, options=options)
    assert stored_files(tmp_path) == before
    with pytest.raises(ArithmeticException, match="overflow"):
        tables.update(spark, "db.t", {"id": "id * 1e30D"}, "id BETWEEN 1 AND 4", options)
    with pytest.raises(TaskFailedError, match="'id' is required"):
        tables.update(spark, "db.t", {"id": "null"}, "id < 5", options)
    with pytest.raises(SparkRuntimeException) as caught:
        merged(spark, options, changes_of(spark, 7, 8, 8))
    assert caught.value.getCondition() == "MERGE_CARDINALITY_VIOLATION"
    monkeypatch.setattr(row_changes, "RemovingRows", DyingRemoving)
    with pytest.raises(TaskFailedError):
        merged(spark, options, changes_of(spark, 7, 8))

    assert stored_files(tmp_path) == before


def test_a_row_may_be_deleted_by_several(spark: Any, catalog: Any, options: dict[str, str]) -> None:
    table = filled(catalog)
    source = changes_of(spark, 7, 8, 8, 2000)

    merge = tables.merge_into(spark, "db.t", source, sql.expr("target.id = source.id"), options)
    assert merge.whenMatched().delete().merge() == RowChanges(rows_deleted=2)

    assert ids(table) == [n for n in range(300) if n not in (7, 8)]
    check_whole(table)


def test_files_that_cannot_match_are_not_read(
    spark: Any, catalog: Any, options: dict[str, str]
) -> None:
    table = filled(catalog)
    for task in table.scan("id >= 100").plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()

    assert tables.delete(spark, "db.t", "id < 3", options) == RowChanges(rows_deleted=3)
    assert tables.update(spark, "db.t", {"region": None}, "id = 5", options).rows_updated == 1
    assert (
        tables.delete(spark, "db.t", "5 < id AND id < 9 AND id % 4 = 3", options).rows_deleted == 1
    )
    on = "target.id < 100 AND target.id = source.id AND source.region = 'new'"
    merge = tables.merge_into(spark, "db.t", changes_of(spark, 4, 200), on, options)
    assert merge.whenMatched().delete().merge().rows_deleted == 1
    assert tables.delete(spark, "db.t", "id >= 100", options) == RowChanges(rows_deleted=200)

    assert ids(table) == [n for n in range(3, 100) if n not in (4, 7)]


def test_a_branch_and_an_empty_table(spark: Any, catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    more = {**options, "snapshot-property.job": "nightly"}
    assert COMMANDS["delete"](spark, options) == COMMANDS["update"](spark, options) == RowChanges()
    assert table.refresh().current_snapshot() is None
    assert merged(spark, more, changes_of(spark, 1, 2)) == RowChanges(rows_inserted=2)
    assert table.refresh().current_snapshot().summary.additional_properties["job"] == "nightly"

    tables.delete(spark, "db.t", "id = 1", options, branch="side")

    assert ids(table) == [1, 2]
    side = table.scan().use_ref("side").to_arrow()
    assert side["id"].to_pylist() == [2]


def test_what_is_wrong_is_said_before_anything_runs(
    spark: Any, catalog: Any, options: dict[str, str]
) -> None:
    filled(catalog)
    source = changes_of(spark, 1)
    with pytest.raises(ValueError, match="has no column 'regoin'"):
        tables.update(spark, "db.t", {"regoin": "1"}, options=options)
    with pytest.raises(ValueError, match="did you mean 'catalog'"):
        tables.delete(spark, "db.t", "id = 1", {**options, "catalgo": "x"})
    with pytest.raises(ValueError, match="only for reading"):
        tables.delete(spark, "db.t", "id = 1", {**options, "filter": "id = 1"})
    with pytest.raises(KmsConfigurationError):
        tables.delete(spark, "db.t", "id = 1", {**options, "kms.local.passphrase": "secret"})
    with pytest.raises(AnalysisException, match='Cannot safely cast `id` "STRING" to "BIGINT"'):
        tables.update(spark, "db.t", {"id": "'text'"}, "id < 5", options)
    with pytest.raises(AnalysisException, match="nothing"):
        tables.delete(spark, "db.t", "nothing = 1", options)
    merge = tables.merge_into(spark, "db.t", source, "target.id = source.id", options)
    with pytest.raises(ValueError, match="has no clause"):
        merge.merge()
    with pytest.raises(AnalysisException, match="at"):
        merge.whenNotMatched().insertAll().merge()
    with pytest.raises(ValueError, match="put it last"):
        merge.whenNotMatched("source.id = 1").insertAll()
