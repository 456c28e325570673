"""Writing to encrypted tables: PyIceberg's methods on ours beside the same on its own plain table,
writers that meet, commits that fail, and what is refused."""

from __future__ import annotations

import copy
import errno
import json
import math
import operator
import os
import pickle
import random
import resource
import signal
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RunPython
from iceberg_tables import KMS_PROPERTIES, sql_catalog, unpin
from kept_tables import KeptTables
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import (
    EqualTo,
    GreaterThan,
    In,
    IsNaN,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNaN,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.transforms import BucketTransform, IdentityTransform, parse_transform
from pyiceberg.types import (
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestamptzNanoType,
)

from ags1 import (
    KeyMetadata,
    KeyReuseError,
    KmsConfigurationError,
    KmsError,
    MetadataIntegrityError,
    NotEncryptedError,
)
from ags1.iceberg import (
    EncryptedCatalog,
    EncryptedTable,
    RowsDeleted,
    load_catalog,
    verify_table,
)
from ags1.iceberg.operations.check.findings import Remedy
from ags1.iceberg.read.records import read_entries
from ags1.iceberg.steps import Attempt, SnapshotStep
from ags1.iceberg.storage.locations import without_scheme
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.storage.table_files import ManifestCache, TableFiles
from ags1.iceberg.write.snapshot import FileChange
from ags1.kms.memory import MemoryKms

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "v", StringType(), required=False),
    NestedField(3, "n", IntegerType(), required=False),
)
BY_V = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v"))
HUGE = "1" + "0" * 60 + ".0"
ENCRYPTED = {"format-version": "3", "encryption.key-id": "keyA"}


@pytest.fixture
def table(catalog: EncryptedCatalog) -> EncryptedTable:
    return create(catalog)


def create(catalog: EncryptedCatalog, name: str = "db.t", **properties: str) -> EncryptedTable:
    made = catalog.create_table(name, SCHEMA, properties=ENCRYPTED | properties)
    assert isinstance(made, EncryptedTable)
    return made


def again(table: EncryptedTable) -> EncryptedTable:
    """Return the table as another writer has it."""
    loaded = table.catalog.load_table(table.name())
    assert isinstance(loaded, EncryptedTable)
    return loaded


def rows(*ids: int, v: str | None = "a") -> pa.Table:
    return pa.table(
        {"id": ids, "v": [v] * len(ids), "n": [i % 5 for i in ids]},
        schema=pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int32())]),
    )


def ids(table: Table, **scan: Any) -> list[int]:
    found: list[int] = sorted(table.scan(**scan).to_arrow()["id"].to_pylist())
    return found


def contents(table: Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.scan().to_arrow().to_pylist()), key=repr)


def deleted(table: Table, row_filter: str) -> int:
    """Delete rows, with a dry run before it if there is one; return how many."""
    before = table.scan().count()
    if not isinstance(table, EncryptedTable):
        table.delete(row_filter)
        return before - table.scan().count()
    files, location = stored(table.catalog), table.metadata_location
    would = table.delete(row_filter, dry_run=True)
    assert (stored(table.catalog), again(table).metadata_location) == (files, location)
    done = table.delete(row_filter)
    assert replace(done, snapshot_ids=()) == would
    head = table.current_snapshot()
    assert done.snapshot_ids == (() if would == RowsDeleted() else (head and head.snapshot_id,))
    return done.deleted_rows


def stored(catalog: EncryptedCatalog) -> set[str]:
    """Return all files of the warehouse."""
    folder = Path(str(catalog.properties["warehouse"]).removeprefix("file://"))
    return {str(path) for path in folder.rglob("*") if path.is_file()}


# -- beside PyIceberg's own


# Of `make test`: a seed that begins with an append and chooses each change within seven steps.
@pytest.mark.slow_variants(r".*-12")
@pytest.mark.parametrize(("seed", "steps"), [(1985, 7), (1, 12), (2, 12), (3, 12)])
@pytest.mark.parametrize("spec", [PartitionSpec(), BY_V], ids=["unpartitioned", "partitioned"])
def test_the_same_as_on_a_plain_table(
    catalog: EncryptedCatalog, spec: PartitionSpec, seed: int, steps: int
) -> None:
    pick = random.Random(seed)
    ours = catalog.create_table("db.t", SCHEMA, partition_spec=spec, properties=ENCRYPTED)
    plain = catalog.create_table("db.plain", SCHEMA, partition_spec=spec)
    assert isinstance(ours, EncryptedTable)
    assert not isinstance(plain, EncryptedTable)
    for step in range(steps):
        first = pick.randrange(40)
        some = pa.concat_tables(
            [rows(*range(first, first + 6), v=pick.choice(["a", "b", "c"])), rows(step + 500)]
        )
        low, high = sorted((pick.randrange(45), pick.randrange(45)))
        works: list[Callable[[Table], object]] = [
            lambda t, some=some: t.append(some),
            lambda t, low=low, high=high: deleted(t, f"id >= {low} and id < {high}"),
            lambda t, some=some, low=low: t.overwrite(some, f"id = {low} or v is null"),
            lambda t, some=some: t.upsert(
                some.group_by("id")
                .aggregate([("v", "min"), ("n", "min")])
                .rename_columns(["id", "v", "n"]),
                ["id"],
            ),
            lambda t: deleted(t, "v = 'b'"),
        ]
        if spec.fields:
            works.append(lambda t, some=some: t.dynamic_partition_overwrite(some))
        work = pick.choice(works)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcomes = []
            for each in (ours, plain):
                try:
                    outcomes.append(repr(work(each)))
                except ValueError as error:
                    outcomes.append(type(error).__name__)
        assert outcomes[0] == outcomes[1]
        assert contents(ours) == contents(plain)
    assert contents(again(ours)) == contents(plain)
    assert verify_table(again(ours)).ok


def test_a_stream_of_batches_is_written_to_partitions(catalog: EncryptedCatalog) -> None:
    made = catalog.create_table("db.t", SCHEMA, partition_spec=BY_V, properties=ENCRYPTED)
    batches = [batch for n in range(20) for batch in rows(n, n + 100, v="abc"[n % 3]).to_batches()]
    made.append(pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches)))
    assert ids(made) == sorted([*range(20), *range(100, 120)])
    assert len(made.inspect.files()) == 3


# -- transactions


def test_a_transaction_sees_its_own_steps_and_commits_once(table: EncryptedTable) -> None:
    table.append(rows(1, 2))
    version = table.metadata_location
    with table.transaction() as transaction:
        transaction.append(rows(3, 4))
        transaction.delete("id = 3 or id = 1")
        with transaction.update_schema() as change:
            change.add_column("w", StringType())
        transaction.append(rows(5).append_column("w", pa.array(["x"])))
        transaction.set_properties(a="b")
        assert table.metadata_location == version
        assert ids(again(table)) == [1, 2]
    assert ids(table) == [2, 4, 5]
    found = again(table)
    assert found.scan("id = 5").to_arrow()["w"].to_pylist() == ["x"]
    assert found.properties["a"] == "b"
    assert len(found.metadata.metadata_log) == 2
    assert [s["summary"]["operation"] for s in found.view().metadata["snapshots"]] == [
        *("append", "append", "delete", "append")
    ]


def test_a_transaction_that_fails_leaves_nothing(
    catalog: EncryptedCatalog, table: EncryptedTable
) -> None:
    table.append(rows(1))
    before = stored(catalog)
    transaction = table.transaction()

    def interrupted() -> None:
        with transaction:
            transaction.append(rows(2))
            transaction.delete("id = 1")
            assert len(stored(catalog)) > len(before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stored(catalog) == before
    with pytest.raises(RuntimeError, match="failed"):
        transaction.append(rows(3))
    assert ids(again(table)) == [1]


def test_rows_that_do_not_fit_leave_nothing(
    catalog: EncryptedCatalog, table: EncryptedTable
) -> None:
    before = stored(catalog)
    with pytest.raises(ValueError, match=r"[Mm]ismatch|fit"):
        table.append(pa.table({"id": ["text"]}))

    def broken() -> Iterator[pa.RecordBatch]:
        yield from rows(1, 2).to_batches()
        raise OSError("the source broke")

    with pytest.raises(OSError, match="the source broke"):
        table.append(pa.RecordBatchReader.from_batches(rows(1).schema, broken()))
    assert stored(catalog) == before
    assert ids(again(table)) == []


# -- writers that meet


def test_appends_of_two_writers_are_both_there(table: EncryptedTable) -> None:
    other = again(table)
    table.append(rows(1))
    other.append(rows(2))
    table.append(rows(3))
    assert ids(again(table)) == [1, 2, 3]
    snapshots = again(table).view().metadata["snapshots"]
    assert [s["first-row-id"] for s in snapshots] == [0, 1, 2]
    assert [s["sequence-number"] for s in snapshots] == [1, 2, 3]
    report = verify_table(again(table))
    assert (report.ok, report.finding_counts.get("orphan-file")) == (True, None)


@contextmanager
def counted_reads() -> Iterator[Counter[str]]:
    """Count how often each AGS1 file of a table is read."""
    reads: Counter[str] = Counter()
    read_encrypted = TableFiles.read_encrypted

    def read(files: TableFiles, location: str, km: KeyMetadata) -> bytes:
        reads[location] += 1
        return read_encrypted(files, location, km)

    with mock.patch.object(TableFiles, "read_encrypted", read):
        yield reads


READING: dict[str, Callable[[Any], object]] = {
    "delete of rows": lambda t: t.delete("id in (10, 21)"),
    "delete of files": lambda t: t.delete("id >= 20"),
    "overwrite": lambda t: t.overwrite(rows(7), "id in (10, 11, 21)"),
    "upsert": lambda t: t.upsert(rows(10, 20, 33, v="b"), ["id"]),
}


def six_manifests(catalog: EncryptedCatalog, merged: str = "true") -> EncryptedTable:
    merging = {"commit.manifest-merge.enabled": merged, "commit.manifest.min-count-to-merge": "7"}
    quick = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "1"}
    table = create(catalog, **merging, **quick)
    with table.transaction() as transaction:
        for first in range(0, 60, 10):
            transaction.append(rows(first, first + 1))
    return table


@pytest.mark.parametrize("merged", ["false", "true"])
@pytest.mark.parametrize("change", READING)
def test_each_manifest_is_read_once(
    kept: KeptTables, change: str, merged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = kept(six_manifests, merged)
    manifests = {m.manifest_path for m in table.view().manifests}
    assert len(manifests) == 6

    # Somebody else comes first, with what does not concern the change.
    commit = Attempt.commit

    def commit_second(attempt: Attempt, output: TableOutput) -> None:
        monkeypatch.setattr(Attempt, "commit", commit)
        by_us = reads.copy()
        again(table).append(rows(-1))
        reads.clear()
        reads.update(by_us)
        commit(attempt, output)

    monkeypatch.setattr(Attempt, "commit", commit_second)
    with counted_reads() as reads:
        READING[change](table)
    assert manifests <= reads.keys()
    assert {path: n for path, n in reads.items() if n > 1} == {}
    assert -1 in ids(again(table))
    assert verify_table(again(table)).ok


def test_what_is_kept_of_manifests_is_bounded(
    kept: KeptTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = kept(six_manifests)
    lengths = [m.manifest_length for m in table.view().manifests]
    # With room for some, it is chance whether those that are needed again are among them.
    for room, least in ((0, 2), (sum(lengths[:2]) + 1 + 2 * lengths[0], 1)):
        monkeypatch.setattr("ags1.iceberg.storage.table_files._MAX_CACHED_SIZE", room)
        with counted_reads() as reads:
            table.transaction().delete("id >= 50")
        assert least <= max(reads.values()) <= 3
    cache = ManifestCache()
    made = [cache.get(n, room // 4, lambda n=n: str(n)) for n in range(100)]
    assert made == [str(n) for n in range(100)]
    assert len(cache._this_attempt) <= 4
    # Another attempt's take the place of those that were not used again.
    cache.next_attempt()
    assert cache.get(0, room // 4, lambda: "new") == "0"
    assert cache.get(50, room // 4, lambda: "new") == "new"
    assert cache.get(50, room // 4, lambda: "newer") == "new"
    assert cache.get(0, room // 4, lambda: "new") == "0"
    assert not vars(pickle.loads(pickle.dumps(cache)))["_this_attempt"]


def test_a_rotation_and_an_append_meet(table: EncryptedTable) -> None:
    table.append(rows(1))
    [old] = [k.key_id for k in table.files.keys.key_encryption_keys]
    other, third = again(table), again(table)
    other.append(rows(2))
    table.rotate_keys()
    third.append(rows(3))
    found = again(table)
    assert ids(found) == [1, 2, 3]
    [new] = [k.key_id for k in found.files.keys.key_encryption_keys]
    assert new != old
    assert {k.encrypted_by_id for k in found.files.keys.encryption_keys} == {"keyA", new}


def test_keys_go_under_another_master_key_in_one_commit(
    catalog: EncryptedCatalog, table: EncryptedTable
) -> None:
    table.append(rows(1))
    other = again(table)
    table.rewrap_keys("keyB")
    assert table.key_id == "keyB"
    table.append(rows(2))
    assert ids(again(table)) == [1, 2]
    assert again(table).key_id == "keyB"
    with pytest.raises(ValueError, match="keyA"):
        other.append(rows(3))
    assert ids(catalog.load_table("db.t", expected_key_id="keyB")) == [1, 2]


def test_keys_that_no_snapshot_needs_are_taken_out(table: EncryptedTable) -> None:
    for n in range(4):
        table.append(rows(n))
    assert len(table.files.keys.encryption_keys) == 5
    first = table.snapshots()[0].snapshot_id
    gone = table.expire_snapshots(snapshot_ids=[first], dry_run=True)
    assert gone.snapshot_ids == (first,)
    assert len(table.snapshots()) == 4
    table.expire_snapshots(snapshot_ids=[first])
    assert len(again(table).snapshots()) == 3
    [pruned] = table.prune_keys()
    assert pruned not in {k.key_id for k in again(table).files.keys.encryption_keys}
    assert ids(again(table)) == [0, 1, 2, 3]


# -- commits that fail


class Refusing:
    """Commits that raise, before the catalog has heard of them or after."""

    def __init__(self, commits: Any, error: Exception, *, afterwards: bool, times: int) -> None:
        self._commits = commits
        self._error = error
        self._afterwards = afterwards
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._commits, name)

    def commit(self, *arguments: Any, **more: Any) -> Any:
        if self.times <= 0:
            return self._commits.commit(*arguments, **more)
        self.times -= 1
        if self._afterwards:
            self._commits.commit(*arguments, **more)
        raise self._error


def test_a_commit_that_keeps_failing_leaves_nothing(
    catalog: EncryptedCatalog, table: EncryptedTable
) -> None:
    table.append(rows(1))
    with table.transaction() as transaction:
        transaction.set_properties(
            **{"commit.retry.num-retries": "2", "commit.retry.min-wait-ms": "1"}
        )
    before = stored(catalog)
    catalog.connection = refusing = Refusing(
        catalog.commits(), CommitFailedException("lost"), afterwards=False, times=3
    )
    with pytest.raises(CommitFailedException, match="lost"):
        table.append(rows(2))
    assert refusing.times == 0
    assert stored(catalog) == before
    refusing.times = 2
    again(table).append(rows(3))
    assert ids(again(table)) == [1, 3]
    assert verify_table(again(table)).finding_counts.get("orphan-file") is None


def test_after_a_commit_of_unknown_outcome_every_file_stays(
    catalog: EncryptedCatalog, table: EncryptedTable
) -> None:
    table.append(rows(1))
    catalog.connection = refusing = Refusing(
        catalog.commits(), CommitStateUnknownException("?"), afterwards=True, times=1
    )
    with pytest.raises(CommitStateUnknownException):
        table.append(rows(2))
    assert refusing.times == 0
    assert ids(again(table)) == [1, 2]
    refusing.times = 1
    transaction = again(table).transaction()
    transaction.append(rows(3))

    def commit_inside() -> None:
        with transaction:
            transaction.commit_transaction()

    with pytest.raises(CommitStateUnknownException):
        commit_inside()
    assert ids(again(table)) == [1, 2, 3]
    assert verify_table(again(table)).ok


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_comes_after_a_commit_takes_nothing_back(
    table: EncryptedTable, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(EncryptedTable, "switch_to", fail)
        with pytest.raises(CommitStateUnknownException, match="was made"):
            table.append(rows(1))
    assert ids(again(table)) == [1]
    assert verify_table(again(table)).ok


def test_a_kms_that_fails_leaves_nothing(
    catalog: EncryptedCatalog, table: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored(catalog)

    def fail(*_: object) -> bytes:
        raise KmsError("the KMS is down")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryKms, "wrap_key", fail)
        with pytest.raises(KmsError, match="down"):
            table.append(rows(1))
    assert stored(catalog) == before
    table.append(rows(2))
    assert ids(again(table)) == [2]


def test_a_forked_child_neither_goes_on_nor_takes_back(
    table: EncryptedTable, in_a_fork: Callable[[Callable[[], object]], None]
) -> None:
    transaction = table.transaction()
    transaction.append(rows(1))

    def child() -> None:
        for work in (transaction.commit_transaction, lambda: transaction.append(rows(2))):
            with pytest.raises(KeyReuseError, match="parent"):
                work()
        transaction.__exit__(RuntimeError, RuntimeError(), None)

    in_a_fork(child)
    transaction.commit_transaction()
    assert ids(again(table)) == [1]


# -- branches


def test_branches_and_tags(table: EncryptedTable) -> None:
    table.append(rows(1))
    table.append(rows(2), branch="dev")
    assert (ids(table), ids(again(table))) == ([1], [1])
    assert sorted(table.scan().use_ref("dev").to_arrow()["id"].to_pylist()) == [1, 2]
    table.delete("id = 1", branch="dev")
    assert table.scan().use_ref("dev").to_arrow()["id"].to_pylist() == [2]
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "v1").commit()
    table.append(rows(3))
    assert table.scan().use_ref("v1").to_arrow()["id"].to_pylist() == [1]
    with pytest.raises(ValueError, match="tag"):
        table.append(rows(4), branch="v1")
    table.manage_snapshots().set_current_snapshot(ref_name="v1").commit()
    assert ids(again(table)) == [1]
    table.append(rows(5), branch=None)
    assert ids(again(table)) == [1]


# -- metadata that was changed: nothing authenticates it in a SQL catalog


@pytest.mark.parametrize("name", ["last-sequence-number", "next-row-id"])
def test_counters_that_were_set_back_are_refused(table: EncryptedTable, name: str) -> None:
    """Else a delete would delete nothing, and row ids would be given twice."""
    for n in range(4):
        table.append(rows(n, n + 10))
    path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_bytes())
    for snapshot in metadata["snapshots"]:
        snapshot["sequence-number"] = min(snapshot["sequence-number"], 1)
        snapshot["first-row-id"] = 0
    path.write_text(json.dumps(metadata | {name: 1}))
    unpin(table.catalog)
    for work in (lambda t: t.delete("id = 3"), lambda t: t.append(rows(5))):
        with pytest.raises(MetadataIntegrityError, match="was changed"):
            work(again(table))
    assert len(ids(again(table))) == 8


MALFORMED: dict[str, dict[str, Any]] = {
    "main elsewhere": {"refs": {"main": {"snapshot-id": 7, "type": "branch"}}},
    "another current": {"refs": {}, "current-snapshot-id": 7},
    "no current": {"current-snapshot-id": -1},
    "no order": {"sort-orders": []},
    "keys": {"encryption-keys": None},
    "number": {"properties": {"encryption.key-id": "keyA", "write.format.default": 5}},
    "huge": {
        "properties": {"encryption.key-id": "keyA", "write.parquet.row-group-limit": "9" * 40}
    },
}


def test_malformed_metadata_loses_no_rows(
    catalog: EncryptedCatalog, table: EncryptedTable, subtests: pytest.Subtests
) -> None:
    table.append(rows(1, 2))
    path = Path(table.metadata_location.removeprefix("file://"))
    good = path.read_bytes()
    unpin(catalog)
    for name, change in MALFORMED.items():
        path.write_text(json.dumps(json.loads(good) | change))
        before = stored(catalog)
        with (
            subtests.test(name),
            pytest.raises(
                (MetadataIntegrityError, ValueError),
                match=r"main|snapshot|malformed|JSON|limit|order|metadata",
            ),
        ):
            again(table).append(rows(3))
        assert stored(catalog) == before, name
    path.write_bytes(good)
    again(table).append(rows(3))
    assert ids(again(table)) == [1, 2, 3]


def test_a_shorter_data_key_length_is_not_believed(catalog: EncryptedCatalog) -> None:
    table = create(catalog, **{"encryption.data-key-length": "32"})
    table.append(rows(1))
    path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_bytes())
    metadata["properties"]["encryption.data-key-length"] = "16"
    path.write_text(json.dumps(metadata))
    unpin(catalog)
    table = again(table)
    table.append(rows(2))
    keys = [KeyMetadata.from_bytes(key or b"") for key in files_of(table).values()]
    assert [len(km.encryption_key) for km in keys] == [32, 32]


SECRET = "123-45-6789"
TOLD = {"write.summary.partition-limit": "100"}
_SOME = f"v = '{SECRET}' and id = 2"


def _in_one_transaction(table: EncryptedTable, path: str) -> None:
    with table.transaction() as transaction:
        transaction.append(rows(9, v=SECRET))
        transaction.delete("id = 1")


# Everything that writes a snapshot, all of whose rows have the secret.
CHANGES: dict[str, Callable[[EncryptedTable, str], object]] = {
    "append": lambda table, path: table.append(rows(9, v=SECRET)),
    "overwrite": lambda table, path: table.overwrite(rows(9, v=SECRET)),
    "overwrite-filter": lambda table, path: table.overwrite(rows(2, v=SECRET), _SOME),
    "overwrite-partitions": lambda table, path: table.dynamic_partition_overwrite(
        rows(9, v=SECRET)
    ),
    "delete-rows": lambda table, path: table.delete(_SOME),
    "delete-files": lambda table, path: table.delete(f"v = '{SECRET}'"),
    "upsert": lambda table, path: table.upsert(rows(2, 9, v=SECRET), ["id"]),
    "add_files": lambda table, path: table.add_files([path], allow_plaintext=True),
    "rekey": lambda table, path: table.rekey(),
    "branch": lambda table, path: table.append(rows(9, v=SECRET), branch="other"),
    "transaction": _in_one_transaction,
}


def with_a_secret(catalog: EncryptedCatalog) -> EncryptedTable:
    table = partitioned(catalog, "db.t", **TOLD)
    table.append(rows(1, 2, v=SECRET))
    return table


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_no_operation_puts_partition_values_into_metadata_json(
    kept: KeptTables, tmp_path: Path, change: Callable[[EncryptedTable, str], object]
) -> None:
    table = kept(with_a_secret)
    pq.write_table(rows(9, v=SECRET), tmp_path / "plain.parquet")
    change(table, str(tmp_path / "plain.parquet"))
    assert len(table.metadata.snapshots) > 1
    for snapshot in table.metadata.snapshots:
        assert snapshot.summary is not None
        assert snapshot.summary["changed-partition-count"] == "1"
    folder = Path(table.metadata_location.removeprefix("file://")).parent
    for version in folder.glob("*.metadata.json"):
        assert SECRET not in version.read_text()


def test_no_migration_puts_partition_values_into_metadata_json(catalog: EncryptedCatalog) -> None:
    plain = catalog.create_table("db.t", SCHEMA, partition_spec=BY_V, properties=TOLD)
    plain.append(rows(1, 2, v=SECRET))
    assert SECRET in Path(plain.metadata_location.removeprefix("file://")).read_text()
    catalog.migrate_table("db.t", "keyA")
    table = catalog.load_table("db.t")
    assert SECRET not in Path(table.metadata_location.removeprefix("file://")).read_text()
    [snapshot] = table.metadata.snapshots
    assert snapshot.summary is not None
    assert snapshot.summary["changed-partition-count"] == "1"


@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_a_partition_field_that_is_added_again_has_its_id(
    table: EncryptedTable, in_a_transaction: bool
) -> None:
    def update() -> UpdateSpec:
        return table.transaction().update_spec() if in_a_transaction else table.update_spec()

    def changed(change: Callable[[UpdateSpec], UpdateSpec]) -> list[tuple[str, int]]:
        builder = change(update())
        builder.commit()
        if in_a_transaction:
            builder._transaction.commit_transaction()
        return [(field.name, field.field_id) for field in again(table).spec().fields]

    bucket = BucketTransform(4)
    assert changed(lambda spec: spec.add_field("id", bucket, "id_b")) == [("id_b", 1000)]
    assert changed(lambda spec: spec.add_identity("v")) == [("id_b", 1000), ("v", 1001)]
    assert changed(lambda spec: spec.remove_field("id_b")) == [("v", 1001)]
    table.append(rows(1))
    again_there = changed(lambda spec: spec.add_field("id", bucket, "id_b"))
    assert again_there == [("v", 1001), ("id_b", 1000)]
    table.append(rows(2))
    assert ids(again(table)) == [1, 2]
    assert changed(lambda spec: spec.add_field("n", bucket))[-1] == ("n_bucket_4", 1002)
    assert "partition-field-ids" not in verify_table(again(table)).finding_counts


def test_a_partition_field_with_two_ids_is_named(table: EncryptedTable) -> None:
    specs = [
        {"spec-id": number, "fields": [{"source-id": 1, "transform": "identity"} | field]}
        for number, field in enumerate(
            ({"name": "id", "field-id": 1000}, {"name": "id", "field-id": 1001}), 1
        )
    ]
    path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_bytes())
    metadata["partition-specs"] += specs
    path.write_text(json.dumps(metadata | {"last-partition-id": 1001, "default-spec-id": 2}))
    unpin(table.catalog)
    table = again(table)
    result = verify_table(table)
    assert result.finding_counts["partition-field-ids"] == 1
    assert any("'id' has several IDs, [1000, 1001]" in f.message for f in result.findings)
    # What the finding advises.
    table.update_spec().rename_field("id", "id_again").commit()
    assert "partition-field-ids" not in verify_table(table).finding_counts


NANOSECONDS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "t", TimestampNanoType(), required=False),
    NestedField(3, "z", TimestamptzNanoType(), required=False),
)
_MOMENT = 1_700_000_000_000_000_000  # 2023-11-14T22:13:20 UTC
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


# Partitions are chosen by manifests, which do not know what a file's format makes of a filter.
# Of `make test`: a bucket, a day and no partition.
@pytest.mark.slow_variants(r"(parquet-None|avro-day)", r"parquet-(hour|identity)")
@pytest.mark.parametrize(
    ("file_format", "transform"),
    [
        *(("parquet", each) for each in (None, "day", "hour", "identity", "bucket[3]")),
        *(("avro", each) for each in (None, "day")),
    ],
)
def test_filters_in_nanoseconds(
    catalog: EncryptedCatalog, file_format: str, transform: str | None
) -> None:
    spec = PartitionSpec()
    if transform is not None:
        field = parse_transform(transform)
        spec = PartitionSpec(
            PartitionField(2, 1000, field, "p"), PartitionField(3, 1001, field, "q")
        )
    table = catalog.create_table(
        "db.t",
        NANOSECONDS,
        partition_spec=spec,
        properties=ENCRYPTED | {"write.format.default": file_format},
    )
    moments = {i: _MOMENT + n for i, n in enumerate((-1, 0, 1, 999, 1000, 86_400_000_000_000))}
    values = [*moments.values(), None]
    columns = [
        pa.array([*moments, None], pa.int64()),
        pa.array(values, pa.timestamp("ns")),
        pa.array(values, pa.timestamp("ns", "UTC")),
    ]
    table.append(pa.table(columns, ["id", "t", "z"]))
    for sign, compare in _COMPARED.items():
        for nanoseconds in (0, 1, 999):
            text = f"2023-11-14T22:13:20.{nanoseconds:09}"
            wanted = [i for i, m in moments.items() if compare(m, _MOMENT + nanoseconds)]
            assert ids(table, row_filter=f"t {sign} '{text}'") == wanted
            if nanoseconds == 1:
                assert ids(table, row_filter=f"z {sign} '{text}+00:00'") == wanted
    for name, offset in (("t", ""), ("z", "+01:00")):
        hour = "23" if offset else "22"
        some = f"'2023-11-14T{hour}:13:20.000000001{offset}', '2023-11-14T{hour}:13:20{offset}'"
        assert ids(table, row_filter=f"{name} in ({some})") == [1, 2]
        assert ids(table, row_filter=f"{name} not in ({some})") == [0, 3, 4, 5]
        moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc if offset else None)
        assert ids(table, row_filter=GreaterThan(name, moment)) == [2, 3, 4, 5]
        with pytest.raises(ValueError, match=r"zone|[Zz]one|offset"):
            ids(table, row_filter=f"{name} > '2023-11-14T22:13:20{'' if offset else '+00:00'}'")
    table.delete("t >= '2023-11-14T22:13:20.000000001' and z < '2023-11-14T22:13:20.000001+00:00'")
    left = again(table).scan().to_arrow()["id"].to_pylist()
    assert sorted(i for i in left if i is not None) == [0, 1, 4, 5]
    assert None in left


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_zero_is_equal_to_minus_zero_in_a_set_too(
    catalog: EncryptedCatalog, file_format: str
) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "f", FloatType(), required=False),
        NestedField(3, "d", DoubleType(), required=False),
    )
    properties = ENCRYPTED | {"write.format.default": file_format}
    table = catalog.create_table("db.t", schema, properties=properties)
    # Statistics say of each file that it has one value.
    for number, value in enumerate((0.0, -0.0, 0.5, None)):
        columns = [
            pa.array([number]),
            pa.array([value], pa.float32()),
            pa.array([value], pa.float64()),
        ]
        table.append(pa.table(columns, ["id", "f", "d"]))
    for name in ("f", "d"):
        for zero in (0.0, -0.0):
            assert ids(table, row_filter=In(name, [zero, 0.25])) == [0, 1]
            assert ids(table, row_filter=In(name, [zero, 0.5])) == [0, 1, 2]
            assert ids(table, row_filter=NotIn(name, [zero, 0.25])) == [2]
            assert ids(table, row_filter=In(name, [zero])) == [0, 1]
    table.delete(In("d", [0.0, 0.25]))
    assert ids(again(table)) == [2, 3]


# Of `make test`: each two of the three together.
@pytest.mark.slow_variants(
    r"parquet-((None|month)-timestamp|day-timestamp_ns)",
    r"avro-(day-timestamp|(None|month)-timestamp_ns)",
)
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ns"])
@pytest.mark.parametrize("transform", [None, "day", "month"])
@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_dates_that_became_times(
    catalog: EncryptedCatalog, kind: str, transform: str | None, file_format: str
) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "d", DateType(), required=False),
    )
    spec = PartitionSpec()
    if transform is not None:
        spec = PartitionSpec(PartitionField(2, 1000, parse_transform(transform), "p"))
    properties = ENCRYPTED | {"write.format.default": file_format}
    table = catalog.create_table("db.t", schema, partition_spec=spec, properties=properties)
    days = [date(1969, 12, 31), date(1970, 1, 2), None]
    table.append(pa.table({"id": [0, 1, 2], "d": pa.array(days, pa.date32())}))
    # PyIceberg does not promote dates; Spark does.
    path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_bytes())
    promoted = copy.deepcopy(metadata["schemas"][0]) | {"schema-id": 1}
    promoted["fields"][1]["type"] = kind
    metadata["schemas"].append(promoted)
    path.write_text(json.dumps(metadata | {"current-schema-id": 1}))
    unpin(catalog)
    table = again(table)
    unit = "us" if kind == "timestamp" else "ns"
    times = [datetime(1970, 1, 2, 12), datetime(1969, 12, 31)]
    table.append(pa.table({"id": [3, 4], "d": pa.array(times, pa.timestamp(unit))}))
    found = table.scan().to_arrow().sort_by("id")
    assert found.schema.field("d").type == pa.timestamp(unit)
    midnight = [None if day is None else datetime(day.year, day.month, day.day) for day in days]
    assert found["d"].cast(pa.timestamp("us")).to_pylist() == midnight + times
    for text, wanted in {
        "d < '1970-01-02T00:00:00'": [0, 4],
        "d <= '1970-01-02T00:00:00'": [0, 1, 4],
        "d = '1969-12-31T00:00:00'": [0, 4],
        "d > '1970-01-02T00:00:00'": [3],
        "d in ('1970-01-02T00:00:00', '1971-01-01T00:00:00')": [1],
        "d is null": [2],
    }.items():
        assert ids(table, row_filter=text) == wanted, text
    assert verify_table(table).ok
    table.delete("d >= '1970-01-02T00:00:00'")
    assert ids(again(table)) == [0, 2, 4]


def test_pyiceberg_s_expiry_is_committed_by_our_rules(table: EncryptedTable) -> None:
    for number in range(4):
        table.append(rows(number))
    first, second, third, last = (snapshot.snapshot_id for snapshot in table.snapshots())
    with pytest.raises(ValueError, match="protected"):
        table.maintenance.expire_snapshots().by_id(last)
    expiry = table.maintenance.expire_snapshots().by_ids([first, second])
    # Somebody tags what is to go, and commits.
    other = again(table)
    other.manage_snapshots().create_tag(first, "kept").commit()
    other.append(rows(4))
    expiry.commit()
    left = [snapshot.snapshot_id for snapshot in again(table).snapshots()]
    assert left == [first, third, last, other.current_snapshot().snapshot_id]
    assert ids(table) == [0, 1, 2, 3, 4]
    table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    with pytest.raises(ValidationException, match=r"gc\.enabled"):
        table.maintenance.expire_snapshots().by_id(third).commit()


def test_ages_of_snapshots_are_given_as_the_command_takes_them(table: EncryptedTable) -> None:
    for number in range(3):
        table.append(rows(number))
    old = [snapshot.snapshot_id for snapshot in table.snapshots()][:2]
    moment = datetime.now(timezone.utc) + timedelta(seconds=1)
    for age in ("0s", timedelta(0), moment, moment.isoformat(), f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"):
        assert list(table.expire_snapshots(age, dry_run=True).snapshot_ids) == old
        # PyIceberg's builder takes a datetime alone.
        builder = table.maintenance.expire_snapshots().older_than(age)
        assert sorted(builder.chosen) == sorted(old)
    for age in ("7d", timedelta(days=7), moment - timedelta(days=7)):
        assert table.expire_snapshots(age, dry_run=True).snapshot_ids == ()
        assert table.remove_orphan_files(age, dry_run=True).orphan_file_locations == ()
        table.erase_deleted_rows(remove_orphans=True, orphans_older_than=age, dry_run=True)
    for wrong, error in ((7, TypeError), (date(2026, 1, 1), TypeError), ("7x", ValueError),
                         ("-7d", ValueError), (timedelta(-7), ValueError)):  # fmt: skip
        for call, name in (
            (lambda age: table.expire_snapshots(age), "older_than"),
            (lambda age: table.remove_orphan_files(age), "older_than"),
            (lambda age: table.erase_deleted_rows(remove_orphans=True, orphans_older_than=age),
             "orphans_older_than"),
            (lambda age: table.maintenance.expire_snapshots().older_than(age), "dt"),
        ):  # fmt: skip
            with pytest.raises(error, match=name):
                call(wrong)
    assert len(table.snapshots()) == 3


def test_records_with_keys_are_not_pickled(table: EncryptedTable) -> None:
    table.append(rows(1))
    view = table.view()
    [manifest] = view.manifests
    [entry] = read_entries(manifest, view.files)
    for record in (manifest, entry, entry.file):
        for work in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="not pickled"):
                work(record)
        assert bytes(entry.file.key_bytes or b"").hex() not in repr(record)


def test_a_table_of_a_catalog_is_not_pickled(table: EncryptedTable) -> None:
    table.append(rows(1))
    for work in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="in each process, or pickle a scan of a table"):
            work(table.catalog)
    for thing in (table, table.transaction(), table.inspect):
        with pytest.raises(TypeError, match="is not pickled"):
            pickle.dumps(thing)
    assert copy.copy(table).scan().count() == 1


# -- what is refused


def test_tables_that_cannot_be_created(catalog: EncryptedCatalog, tmp_path: Path) -> None:
    for wrong in (
        {"format-version": "2"},
        {"encryption.data-key-length": "20"},
        {"write.format.default": "orc"},
        {"encryption.keyid": "keyA"},
    ):
        with pytest.raises((ValueError, NotImplementedError)):
            create(catalog, **wrong)
    with pytest.raises(KmsError, match="keyX"):
        create(catalog, **{"encryption.key-id": "keyX"})
    with pytest.raises(ValueError, match="would not be encrypted"):
        catalog.create_table("db.t", SCHEMA, properties={"encryption.keyid": "keyA"})
    with pytest.raises(KmsConfigurationError, match="require-encryptd"):
        load_catalog("x", type="in-memory", **{"encryption.require-encryptd": "true"})
    assert catalog.list_tables("db") == []
    assert stored(catalog) == set()
    create(catalog)
    with pytest.raises(TableAlreadyExistsError):
        create(catalog)
    without = load_catalog("sql", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    with without, pytest.raises(KmsConfigurationError, match="no KMS"):
        without.create_table("db.t2", SCHEMA, properties=ENCRYPTED)
    with without, pytest.raises(KmsConfigurationError):
        without.load_table("db.t")


def test_what_would_strip_or_publish_is_refused(table: EncryptedTable) -> None:
    table.append(rows(1))
    for properties in ({"encryption.key-id": "keyB"}, {"encryption.key-id": ""}):
        with pytest.raises(ValueError, match="key-id"):
            table.transaction().set_properties(properties)
    with pytest.raises(ValueError, match="key-id"):
        table.transaction().remove_properties("encryption.key-id")
    with pytest.raises(NotImplementedError):
        table.transaction().update_snapshot()
    with pytest.raises(NotEncryptedError, match="allow_plaintext"):
        table.update_statistics()
    with pytest.raises(NotEncryptedError, match="allow_plaintext"):
        table.transaction().update_statistics()
    with pytest.raises(NotImplementedError):
        table.io.new_output(f"{table.location()}/data/x.parquet")
    assert ids(again(table)) == [1]


def test_plain_files_are_added_only_on_request(table: EncryptedTable, tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    pq.write_table(rows(7, 8), path)
    with pytest.raises(NotEncryptedError, match="allow_plaintext"):
        table.add_files([str(path)])
    strict = table.catalog.load_table("db.t", require_encrypted=True)
    with pytest.raises(NotEncryptedError, match="require-encrypted"):
        strict.add_files([str(path)], allow_plaintext=True)
    table.add_files([str(path)], allow_plaintext=True)
    assert ids(again(table)) == [7, 8]
    assert again(table).scan().plain_files() == 1
    with pytest.raises(ValueError, match="already"):
        table.add_files([str(path)], allow_plaintext=True)
    report = verify_table(again(table))
    assert (report.ok, report.finding_counts["plain-data-file"]) == (True, 1)


def test_a_plain_file_of_arrow_s_views_is_read(catalog: EncryptedCatalog, tmp_path: Path) -> None:
    """Arrow stores its schema in the file, and reads the columns as views again."""
    rows = [{"id": 1, "s": "a", "l": ["x", None]}, {"id": 2, "s": None, "l": None}]
    views = [("s", pa.string_view()), ("l", pa.list_view(pa.string_view()))]
    given = pa.Table.from_pylist(rows, pa.schema([("id", pa.int64()), *views]))
    plain = pa.schema([("id", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.string()))])
    table = catalog.create_table("db.views", plain, properties=ENCRYPTED)
    path = tmp_path / "views.parquet"
    pq.write_table(pa.Table.from_pylist(rows, plain), path)
    table.add_files([str(path)], allow_plaintext=True)
    pq.write_table(given, path)  # Java adds it, PyIceberg does not
    assert pa.types.is_list_view(pq.read_schema(path).field("l").type)
    assert table.scan().to_arrow().to_pylist() == rows
    assert table.scan().to_arrow_batch_reader().read_all().to_pylist() == rows
    assert table.scan("s = 'a'", selected_fields=("id",)).to_arrow().to_pylist() == [{"id": 1}]
    table.delete("s like 'a%' or id = 7")
    assert table.scan().to_arrow().to_pylist() == rows[1:]


def test_a_file_that_the_table_has_twice_goes_from_both_places(
    table: EncryptedTable, tmp_path: Path
) -> None:
    path = tmp_path / "plain.parquet"
    pq.write_table(rows(7, 8), path)
    for _ in range(2):
        table.add_files([str(path)], check_duplicate_files=False, allow_plaintext=True)
    table.append(rows(1))
    assert ids(table) == [1, 7, 7, 8, 8]
    with pytest.raises(ValidationException, match="twice"):
        table.rekey()
    table.delete("id > 6")
    assert ids(again(table)) == [1]


def partitioned(catalog: EncryptedCatalog, name: str, **properties: str) -> EncryptedTable:
    made = catalog.create_table(
        name, SCHEMA, partition_spec=BY_V, properties=ENCRYPTED | properties
    )
    assert isinstance(made, EncryptedTable)
    return made


def list_again(table: EncryptedTable, **changes: Any) -> None:
    """Have the table list its only data file with ``v = 'a'`` again, with changes."""
    [task] = table.scan("v = 'a'").plan_files()
    change = FileChange(added=[task.file.replace(**changes)])
    transaction = table.transaction()
    transaction.stage_step(SnapshotStep(transaction.output, lambda _: change, {}, "main"))
    transaction.commit_transaction()


def two_partitions(catalog: EncryptedCatalog, merged: str, mode: str) -> EncryptedTable:
    least = {"commit.manifest.min-count-to-merge": "2", "write.delete.mode": mode}
    table = partitioned(catalog, "db.t", **{"commit.manifest-merge.enabled": merged}, **least)
    table.append(rows(1, 2, v="a"))
    table.append(rows(9, v="z"))
    return table


@pytest.mark.parametrize("merged", ["false", "true"])
@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_a_file_that_is_listed_again_elsewhere_is_found_where_java_finds_it(
    kept: KeptTables, merged: str, mode: str
) -> None:
    """Java's ``ManifestFilterManager`` reads the manifests whose summaries may match the filter,
    and those that may list a partition of the removed files."""

    def listed() -> EncryptedTable:
        made: EncryptedTable = kept(two_partitions, merged, mode)
        return made

    # In another partition, which the filter may match too: the file goes from both.
    table = listed()
    list_again(table, partition=("b",))
    assert ids(table) == [1, 1, 2, 2, 9]
    table.delete("id < 5")
    assert ids(again(table)) == [9]
    # Some of its rows: they go from both.
    table = listed()
    list_again(table, partition=("b",))
    table.delete("id = 1")
    assert ids(again(table)) == [2, 2, 9]
    # In another partition, which the filter excludes. Java leaves it there, but it may find the
    # file in a manifest that it reads anyway.
    table = listed()
    list_again(table, partition=("b",))
    table.delete("v = 'a'")
    assert ids(again(table)) == ([9] if merged == "true" else [1, 2, 9])
    # Under another spec.
    table = listed()
    with table.update_spec() as update:
        update.remove_field("v")
    list_again(table, partition=(), spec_id=table.spec().spec_id)
    table.delete("v = 'a'")
    assert ids(again(table)) == [9]


def test_a_delete_of_a_partition_reads_its_manifests_alone(catalog: EncryptedCatalog) -> None:
    table = partitioned(catalog, "db.t", **{"commit.manifest-merge.enabled": "false"})
    for n, v in enumerate("abcdef"):
        table.append(rows(n, v=v))
    lists = {snapshot.manifest_list for snapshot in table.snapshots()}
    with counted_reads() as reads:
        again(table).delete("v = 'c'")
    assert len(reads.keys() - lists) == 1
    assert ids(again(table)) == [0, 1, 3, 4, 5]


def test_statistics_in_the_clear_are_set_on_request_and_reported(table: EncryptedTable) -> None:
    table.append(rows(1))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    path = f"{table.location()}/metadata/x.stats"
    Path(path.removeprefix("file://")).write_bytes(b"PFA1" + bytes(20))
    statistics = StatisticsFile(
        snapshot_id=snapshot.snapshot_id,
        statistics_path=path,
        file_size_in_bytes=24,
        file_footer_size_in_bytes=20,
        blob_metadata=[],
    )
    with table.update_statistics(allow_plaintext=True) as update:
        update.set_statistics(statistics)
    assert again(table).metadata.statistics == [statistics]
    assert verify_table(again(table)).finding_counts["plain-statistics"] == 1


def test_a_table_without_a_catalog_is_read_only(table: EncryptedTable) -> None:
    from ags1.iceberg import open_table

    table.append(rows(1))
    opened = open_table(table.metadata_location, KMS_PROPERTIES)
    assert ids(opened) == [1]
    with pytest.raises(NotImplementedError, match="catalog"):
        opened.append(rows(2))


def test_a_file_that_is_gone_is_not_removed_twice(table: EncryptedTable) -> None:
    from ags1.iceberg.storage.output import TableOutput
    from ags1.iceberg.write.snapshot import SnapshotProducer

    table.append(rows(1))
    view = table.view()
    [entry] = [e for m in view.manifests for e in read_entries(m, view.files)]
    table.delete("id = 1")
    producer = SnapshotProducer(TableOutput(table.files.inner))
    with pytest.raises(ValidationException, match="not in the branch"):
        producer.produce(table.view(), FileChange(removed=[entry]))


# -- whole tables


def test_a_plain_table_is_encrypted_in_its_place(catalog: EncryptedCatalog) -> None:
    plain = catalog.create_table("db.plain", SCHEMA, partition_spec=BY_V)
    for n in range(3):
        plain.append(rows(*range(n * 10, n * 10 + 5), v="abc"[n]))
    would = catalog.migrate_table("db.plain", "keyA", dry_run=True)
    assert (would.files, would.rows, would.plaintext) == (3, 15, None)
    done: list[tuple[int, int]] = []
    result = catalog.migrate_table("db.plain", "keyA", progress=lambda *seen: done.append(seen))
    assert (result.files, result.rows, result.size) == (3, 15, done[-1][0])
    assert done[-1][0] == done[-1][1]
    assert result.plaintext is not None
    found = catalog.load_table("db.plain")
    assert isinstance(found, EncryptedTable)
    assert contents(found) == contents(plain)
    report = verify_table(found)
    # All that was there before: three data files, as many manifests and lists, and nothing else.
    left = {without_scheme(location) for location in result.plaintext.inside}
    assert {without_scheme(f.file or "") for f in report.findings if "plain" in f.kind} == left
    assert (report.ok, found.check().ok, len(left)) == (True, False, 9)
    remedies = {(f.kind, f.remedy) for f in report.findings if f.severity == "error"}
    assert remedies == {("stray-plain-file", Remedy("migrate", ("--delete-plaintext",)))}
    found.append(rows(100))
    with pytest.raises(ValueError, match="already"):
        catalog.migrate_table("db.plain", "keyB")
    # What is left is told again, and can be deleted later.
    again_told = catalog.migrate_table("db.plain", "keyA").plaintext
    assert again_told is not None
    assert set(again_told.inside) == set(result.plaintext.inside)
    assert catalog.migrate_table("db.plain", "keyA", delete_plaintext=True).failed == ()
    report = verify_table(catalog.load_table("db.plain"))
    assert (report.ok, set(report.finding_counts)) == (True, set())
    # The last metadata.json of the plain table has gone too. A run that was killed just then is
    # repeated, and there is nothing to do.
    assert not Path(without_scheme(plain.metadata_location)).exists()
    for name in ("db.plain", create(catalog, "db.born_encrypted").name()):
        before = stored(catalog)
        for options in ({}, {"dry_run": True}, {"delete_plaintext": True}):
            result = catalog.migrate_table(name, "keyA", **options)
            assert (result.files, result.failed, result.metadata_deleted) == (0, (), 0)
            assert result.plaintext is not None
            assert (result.plaintext.inside, result.plaintext.outside) == ((), ())
        with pytest.raises(ValueError, match="already"):
            catalog.migrate_table(name, "keyB", delete_plaintext=True)
        assert stored(catalog) == before
    other = catalog.create_table("db.other", SCHEMA)
    other.append(rows(1, 2))
    result = catalog.migrate_table("db.other", "keyA", delete_plaintext=True)
    assert result.failed == ()
    report = verify_table(catalog.load_table("db.other"))
    assert (report.ok, set(report.finding_counts)) == (True, set())


def test_nothing_in_the_clear_is_deleted_for_a_damaged_table(catalog: EncryptedCatalog) -> None:
    plain = catalog.create_table("db.plain", SCHEMA)
    plain.append(rows(*range(1000)))
    catalog.migrate_table("db.plain", "keyA")
    [path] = catalog.load_table("db.plain").inspect.files()["file_path"].to_pylist()
    file = Path(path.removeprefix("file://"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    before = stored(catalog)
    with pytest.raises(MetadataIntegrityError, match="no unencrypted file is deleted"):
        catalog.migrate_table("db.plain", "keyA", delete_plaintext=True)
    assert stored(catalog) == before


def test_files_are_put_under_fresh_keys(catalog: EncryptedCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA, partition_spec=BY_V, properties=ENCRYPTED)
    assert isinstance(table, EncryptedTable)
    for v in "ab":
        table.append(rows(1, 2, 3, v=v))
    table.delete("id = 2")
    before, row_ids = contents(table), files_of(table)
    assert table.rekey("v = 'a'", dry_run=True).files == 1
    assert table.rekey("v = 'a'").files == 1
    assert contents(again(table)) == before
    after = files_of(again(table))
    assert after.keys() == row_ids.keys()
    assert [after[n] != row_ids[n] for n in sorted(after)] == [True, False]
    report = verify_table(again(table))
    assert (report.ok, report.finding_counts.get("orphan-file")) == (True, None)


def files_of(table: EncryptedTable) -> dict[tuple[int | None, int | None], bytes | None]:
    """Return the keys of the data files by their first row id and sequence number."""
    view = table.view()
    return {
        (entry.file.first_row_id, entry.sequence_number): entry.file.key_bytes
        for manifest in view.manifests
        for entry in read_entries(manifest, view.files)
        if entry.file.content == 0
    }


# -- the end


def test_a_purged_table_leaves_nothing(catalog: EncryptedCatalog, table: EncryptedTable) -> None:
    for n in range(3):
        table.append(rows(n, n + 10))
    table.delete("id = 10")
    before = stored(catalog)
    would = catalog.purge_table("db.t", dry_run=True)
    assert stored(catalog) == before
    assert would is not None
    assert would.snapshot_ids == tuple(s.snapshot_id for s in table.snapshots())
    left = {file for file in before if file.endswith((".json", ".db"))}
    assert set(map(without_scheme, would.files.locations)) == {*map(without_scheme, before - left)}
    assert catalog.purge_table("db.t") == would
    assert stored(catalog) == set()
    with pytest.raises(NoSuchTableError):
        catalog.load_table("db.t")
    catalog.create_table("db.plain", SCHEMA)
    with pytest.raises(NotEncryptedError, match="dry run"):
        catalog.purge_table("db.plain", dry_run=True)
    assert catalog.purge_table("db.plain") is None


def test_a_table_is_created_with_its_first_rows(catalog: EncryptedCatalog) -> None:
    transaction = catalog.create_table_transaction("db.t", SCHEMA, properties=ENCRYPTED)
    with transaction:
        transaction.append(rows(1))
        assert catalog.list_tables("db") == []
    assert ids(catalog.load_table("db.t")) == [1]
    transaction = catalog.create_table_transaction("db.t", SCHEMA, properties=ENCRYPTED)
    before = stored(catalog)
    with pytest.raises(CommitFailedException), transaction:
        transaction.append(rows(1))
    assert stored(catalog) == before


def test_a_plain_catalog_reads_the_metadata_that_we_write(
    catalog: EncryptedCatalog, table: EncryptedTable
) -> None:
    table.append(rows(1, 2))
    table.delete("id = 1")
    plain = load_plain_catalog("sql", **catalog.properties)
    metadata = plain.load_table("db.t").metadata
    assert metadata == table.metadata.model_copy(update={"snapshots": metadata.snapshots})


CROWD = """
import sys, warnings
import pyarrow as pa
from ags1.iceberg import load_catalog
warnings.simplefilter("ignore")
folder, number = sys.argv[1], int(sys.argv[2])
keys = dict(pair.split("=", 1) for pair in sys.argv[3:])
with load_catalog("sql", type="sql", uri=f"sqlite:///{folder}/catalog.db", **keys) as catalog:
    table = catalog.load_table("db.t")
    for n in range(5):
        table.append(pa.table({"id": [number * 100 + n, number * 100 + 50 + n]}))
"""


@pytest.mark.slow
def test_a_crowd_of_writers_loses_nothing_and_doubles_nothing(
    catalog: EncryptedCatalog, tmp_path: Path, run_python: RunPython
) -> None:
    retries = {"commit.retry.num-retries": "100", "commit.retry.max-wait-ms": "500"}
    table = create(catalog, **retries)
    arguments = [f"{name}={value}" for name, value in KMS_PROPERTIES.items()]
    with ThreadPoolExecutor(8) as pool:
        runs = [
            pool.submit(run_python, CROWD, tmp_path, n, *arguments, timeout=600) for n in range(8)
        ]
        for run in runs:
            run.result()
    found = again(table)
    assert ids(found) == sorted(
        n * 100 + k + m for n in range(8) for k in range(5) for m in (0, 50)
    )
    snapshots = found.view().metadata["snapshots"]
    assert len(snapshots) == 40
    assert [s["first-row-id"] for s in snapshots] == list(range(0, 80, 2))
    assert [s["sequence-number"] for s in snapshots] == list(range(1, 41))
    report = verify_table(found)
    assert (report.ok, report.finding_counts.get("orphan-file")) == (True, None)
    assert report.data_files == 40


def write_on_a_full_disk(catalog: EncryptedCatalog) -> None:
    """Write while no file may be larger than some limit. Each refusal leaves nothing."""
    table = catalog.load_table("db.t")
    before, refused = stored(catalog), 0
    no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    works: list[Callable[[], object]] = [
        lambda: table.append(pa.table({"id": [5, 6], "v": ["x" * 2000, "y"]})),
        lambda: table.delete("id = 1"),
        table.rotate_keys,  # type: ignore[attr-defined]
    ]
    # Files of all kinds are larger than one of these: data, manifests, lists, metadata.
    for limit in (100, 500, 1000, 1500, 2000, 2500, 3000, 4000, 6000):
        for work in works:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                work()
            except (OSError, CommitFailedException):
                # The database of the catalog is on the full disk too.
                refused += 1
                resource.setrlimit(resource.RLIMIT_FSIZE, no_limit)
                assert stored(catalog) == before, stored(catalog) - before
            else:
                before = stored(catalog)
    assert refused > 8, refused
    resource.setrlimit(resource.RLIMIT_FSIZE, no_limit)
    report = verify_table(catalog.load_table("db.t"))
    assert report.ok, report.findings
    assert "orphan-file" not in report.finding_counts


def test_a_full_disk_leaves_the_table_and_nothing_else(
    table: EncryptedTable,
    tmp_path: Path,
    in_a_fork: Callable[[Callable[[], object]], None],
) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "0"})
        transaction.append(rows(1, 2, 3))

    def child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with sql_catalog(tmp_path) as catalog:
            write_on_a_full_disk(catalog)

    in_a_fork(child)
    assert set(ids(again(table))) >= {2, 3}


def test_a_folder_that_cannot_be_synced_is_refused_before_the_commit(
    catalog: EncryptedCatalog, table: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose name the disk may lose is not committed. It is removed, and nothing is lost."""
    failing = 0
    fsync = os.fsync

    def fails_at_a_folder(fd: int) -> None:
        nonlocal failing
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            failing -= 1
            if failing == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    table.append(rows(1, 2, 3))
    monkeypatch.setattr(os, "fsync", fails_at_a_folder)
    # The folders of a data file or vector, a manifest, a manifest list and a metadata.json.
    for work, folders in (
        (lambda: table.append(rows(4)), 4),
        (lambda: table.delete("id = 1"), 4),
        (table.rotate_keys, 1),
    ):
        errors: list[int | None] = []
        while True:
            before, failing = stored(catalog), len(errors) + 1
            try:
                work()
            except OSError as error:
                errors.append(error.errno)
                assert stored(catalog) == before
            else:
                break
        assert errors == [errno.EIO] * folders
    assert ids(again(table)) == [2, 3, 4]


def test_a_writer_of_its_own_is_refused_when_it_commits(catalog: EncryptedCatalog) -> None:
    frame = polars.DataFrame({"id": [1, 2]})
    table = catalog.create_table("db.t", frame.to_arrow().schema, properties=ENCRYPTED)
    with pytest.raises(NotImplementedError, match=r"Polars' sink_iceberg .* not encrypted"):
        frame.lazy().sink_iceberg(table, mode="append")
    assert again(table).snapshots() == []
    frame.write_iceberg(table, mode="append")
    assert ids(again(table)) == [1, 2]
    assert verify_table(again(table)).finding_counts["stray-plain-file"] == 1


def test_numbers_that_a_column_cannot_hold_are_compared_all_the_same(
    catalog: EncryptedCatalog,
) -> None:
    data = pa.table(
        {
            "id": pa.array(range(8), pa.int64()),
            "i": pa.array([1, None, -(2**31), 2**31 - 1, 0, 3, None, -1], pa.int32()),
            "f": pa.array(
                [1.5, None, float("inf"), -float("inf"), 3.4028234e38, -3.4e38, 0, 2], pa.float32()
            ),
        }
    )
    table = catalog.create_table("db.t", data.schema, properties=ENCRYPTED)
    table.append(data)
    database = duckdb.connect()
    database.register("t", data)
    # More than a float, in the words of both.
    numbers = {"i": ["3000000000", "-3000000000", "1"], "f": [HUGE, "-" + HUGE, "1.5"]}
    filters = [
        (f"{column} {comparison} {number}", f"{column} {comparison} {number.replace(HUGE, '1e60')}")
        for column, some in numbers.items()
        for number in some
        for comparison in ("<", "<=", ">", ">=", "=", "!=")
    ]
    # Each number and each comparison is negated.
    filters += [(f"not ({ours})", f"not ({theirs})") for ours, theirs in filters[::5]]
    for word in ("in", "not in"):
        filters.append((f"i {word} (1, 3000000000)",) * 2)
        filters.append((f"i {word} (3000000000, -3000000000)",) * 2)
    for ours, theirs in filters:
        expected = database.sql(f"select id from t where {theirs} order by id").fetchall()
        assert ids(table, row_filter=ours) == [row[0] for row in expected], ours
        assert table.scan(ours).count() == len(expected), ours
    infinite = [
        (LessThan("f", math.inf), [0, 3, 4, 5, 6, 7]),
        (LessThanOrEqual("f", math.inf), [0, 2, 3, 4, 5, 6, 7]),
        (GreaterThan("f", -math.inf), [0, 2, 4, 5, 6, 7]),
        (EqualTo("f", math.inf), [2]),
        (NotEqualTo("f", -math.inf), [0, 2, 4, 5, 6, 7]),
        (In("f", [math.inf, 2.0]), [2, 7]),
    ]
    for expression, found in infinite:
        assert ids(table, row_filter=expression) == found, expression
    table.delete(f"i < 3000000000 and f < {HUGE}")
    # What is null is not less; infinity is not.
    assert ids(again(table)) == [1, 2, 6]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_an_upsert_tells_keys_of_one_microsecond_apart(
    catalog: EncryptedCatalog, zone: str | None
) -> None:
    def rows_of(*pairs: tuple[int, int]) -> pa.Table:
        times = pa.array([10**18 + at for at, _ in pairs], pa.timestamp("ns", zone))
        return pa.table({"at": times, "n": [n for _, n in pairs]})

    given = rows_of((1, 1), (2, 2), (3, 3))
    table = catalog.create_table("db.times", given.schema, properties=ENCRYPTED)
    table.append(given)
    result = table.upsert(rows_of((1, 1), (2, 20), (9, 90)), ["at"])
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    found = again(table).scan().to_arrow().sort_by("at")
    assert found["n"].to_pylist() == [1, 20, 3, 90]


def test_a_plaintext_table_is_not_encrypted_by_a_property(catalog: EncryptedCatalog) -> None:
    table = catalog.create_table("db.plain", pa.schema([("id", pa.int64())]))
    with pytest.raises(ValueError, match=r"catalog\.migrate_table\('db\.plain', key_id\)"):
        with table.transaction() as transaction:
            transaction.set_properties({"encryption.key-id": "keyA"})
    table.append(pa.table({"id": [1]}))
    assert catalog.load_table("db.plain").scan().count() == 1


def test_an_upsert_goes_by_the_columns_as_they_are(table: EncryptedTable) -> None:
    table.append(rows(1, 2, v="old"))
    with table.update_schema() as change:
        change.add_column("w", StringType())
        change.rename_column("id", "other")
    with table.update_schema() as change:
        change.rename_column("n", "id")
    new = pa.table(
        {
            "other": pa.array([1], pa.int64()),
            "v": ["new"],
            "id": pa.array([1], pa.int32()),
            "w": ["w"],
        }
    )
    with pytest.raises(ValueError, match="'v' is null"):
        table.upsert(new.set_column(1, "v", pa.nulls(1, pa.string())), ["v"])
    result = table.upsert(new, ["id"])
    assert (result.rows_updated, result.rows_inserted) == (1, 0)
    assert contents(again(table)) == [(1, "new", 1, "w"), (2, "old", 2, None)]


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_nan_beside_one_single_value(catalog: EncryptedCatalog, file_format: str) -> None:
    """Parquet's statistics leave NaN out; who concludes from them loses rows or finds too many."""
    table = catalog.create_table(
        "db.t",
        pa.schema([("id", pa.int64()), ("f", pa.float64())]),
        properties=ENCRYPTED | {"write.format.default": file_format},
    )
    table.append(pa.table({"id": [1, 2, 3], "f": [1.5, math.nan, 1.5]}))
    table.append(pa.table({"id": [4, 5], "f": [1.5, None]}))
    expected = [
        (IsNaN("f"), [2]),
        (NotNaN("f"), [1, 3, 4, 5]),
        (EqualTo("f", 1.5), [1, 3, 4]),
        (NotEqualTo("f", 1.5), [2]),
        (GreaterThan("f", 1.0), [1, 3, 4]),
        (NotIn("f", [1.5, 2.5]), [2]),
    ]
    for expression, found in expected:
        assert ids(table, row_filter=expression) == found, expression
        assert table.scan(expression).count() == len(found), expression


@pytest.mark.parametrize("name", ["a?b", "a#b"])
def test_a_location_that_readers_cut_is_refused(catalog: EncryptedCatalog, name: str) -> None:
    schema = pa.schema([("id", pa.int64())])
    place = f"{catalog.properties['warehouse']}/elsewhere/{name}"
    with pytest.raises(ValueError, match=r"ends at the '\?' or '#'"):
        catalog.create_table(f"db.{name}", schema, properties=ENCRYPTED)
    with pytest.raises(ValueError, match=r"ends at the '\?' or '#'"):
        catalog.create_table("db.t", schema, place, properties=ENCRYPTED)
    assert stored(catalog) == set()
    # A path without a scheme is taken as it is.
    path = place.removeprefix("file://")
    table = catalog.create_table("db.t", schema, path, properties=ENCRYPTED)
    table.append(pa.table({"id": [1]}))
    assert again(table).scan().count() == 1
    assert all(file.startswith(path) for file in stored(catalog))


def test_times_of_polars(catalog: EncryptedCatalog) -> None:
    times = [time(1, 2, 3, 4), time(23, 59, 59, 999_999), None]
    frame = polars.DataFrame({"t": times, "s": [{"l": times}] * 3})
    table = catalog.create_table("db.t", frame, properties=ENCRYPTED)
    table.append(frame)
    assert polars.DataFrame(table.scan()).equals(frame)
    table.upsert(frame.head(1).with_columns(s=None), ["t"])
    assert table.scan("s is null").to_arrow()["t"].to_pylist() == times[:1]
    nanos = pa.array([1], pa.time64("ns"))
    with pytest.raises(ValueError, match=r"column 't'.*lose data"):
        table.append(pa.table({"t": nanos}))
