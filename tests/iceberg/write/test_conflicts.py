"""Writers that change the same rows: what of it is a conflict, and that the outcome is PyIceberg's.

The rules one by one, without a table; then PyIceberg on a plain table beside ours on an encrypted
one, for each operation of one writer, each of another in between, and both isolation levels; then
what only encrypted tables have: deletion vectors, branches that move, keys that many threads add.
"""

from __future__ import annotations

import functools
import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import KMS_PROPERTIES
from pyiceberg.catalog import Catalog
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysFalse
from pyiceberg.expressions.parser import parse
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import IsolationLevel, Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

from ags1.iceberg import EncryptedCatalog, EncryptedTable, load_catalog, verify_table
from ags1.iceberg.read.binding import bind_filter
from ags1.iceberg.read.records import (
    DATA,
    EQUALITY_DELETES,
    POSITION_DELETES,
    ContentFile,
)
from ags1.iceberg.write.conflicts import Changes, Read, find_conflict
from ags1.iceberg.write.history import snapshots_since
from ags1.iceberg.write.snapshot import FileChange, SnapshotProducer

pytestmark = pytest.mark.filterwarnings(
    "ignore::ags1.kms.memory.KeysInPropertiesWarning",
    "ignore:Delete operation did not match any records",
)

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "v", StringType(), required=False),
    NestedField(3, "n", IntegerType(), required=False),
)
BY_V = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v"))
QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "5"}
ENCRYPTED = {"format-version": "3", "encryption.key-id": "keyA"} | QUICK
LEVELS = ("write.delete.isolation-level", "write.update.isolation-level")
SERIALIZABLE, SNAPSHOT = IsolationLevel.SERIALIZABLE, IsolationLevel.SNAPSHOT
ROW_TYPE = pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int32())])


def at(folder: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }


@pytest.fixture
def table(catalog: EncryptedCatalog) -> EncryptedTable:
    made = create(catalog, "db.t", ENCRYPTED)
    assert isinstance(made, EncryptedTable)
    return made


def create(catalog: Catalog | EncryptedCatalog, name: str, properties: dict[str, str]) -> Table:
    """A table of a file for each of two partitions."""
    made = catalog.create_table(name, SCHEMA, partition_spec=BY_V, properties=properties)
    made.append(pa.concat_tables([rows(1, 2, 3, v="a"), rows(11, 12, 13, v="b")]))
    return made


Begun = Callable[[bool, dict[str, str]], Table]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """Return a new table like those of ``create``, encrypted or of PyIceberg. Tables with the same
    properties begin with the same metadata.json and files, which are made once."""
    numbers = itertools.count()
    folders = [tmp_path_factory.mktemp(name) for name in ("plain", "encrypted")]
    with (
        load_plain_catalog("plain", **at(folders[False])) as plain,
        load_catalog("sql", **at(folders[True]), **KMS_PROPERTIES) as encrypted,
    ):
        catalogs: list[Any] = [plain, encrypted]
        for catalog in catalogs:
            catalog.create_namespace("db")

        @functools.cache
        def first(encrypted: bool, properties: frozenset[tuple[str, str]]) -> str:
            name = f"db.t{next(numbers)}"
            return create(catalogs[encrypted], name, dict(properties)).metadata_location

        def table(encrypted: bool, properties: dict[str, str]) -> Any:
            begins = first(encrypted, frozenset(properties.items()))
            return catalogs[encrypted].register_table(f"db.t{next(numbers)}", begins)

        yield table


def again(table: Table) -> Any:
    """Return the table as another writer has it."""
    return table.catalog.load_table(table.name())


def rows(*ids: int, v: str = "a", n: int = 0) -> pa.Table:
    return pa.table({"id": ids, "v": [v] * len(ids), "n": [n] * len(ids)}, schema=ROW_TYPE)


def contents(table: Table, **scan: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in again(table).scan(**scan).to_arrow().to_pylist())


def ids(table: Table) -> list[int]:
    return [row[0] for row in contents(table)]


def files_left(table: EncryptedTable) -> None:
    """Check that the table is whole, and that a writer who failed has left no file."""
    report = verify_table(again(table))
    assert (report.ok, report.finding_counts.get("orphan-file")) == (True, None)


# -- the rules, without a table


def data_file(name: str, *, low: int | None = None, high: int | None = None) -> ContentFile:
    """A data file with ids from ``low`` to ``high``, or of which nothing is known."""
    bounds: dict[str, Any] = {}
    if low is not None and high is not None:
        bounds = {
            "lower_bounds": {1: low.to_bytes(8, "little")},
            "upper_bounds": {1: high.to_bytes(8, "little")},
        }
    return ContentFile.of(
        content=DATA,
        file_path=name,
        file_format="PARQUET",
        partition=(),
        record_count=10,
        file_size_in_bytes=100,
        **bounds,
    )


def delete_file(content: int, of: str | None = None, **more: Any) -> ContentFile:
    return ContentFile.of(
        content=content,
        file_path="deletes",
        file_format="PUFFIN",
        partition=(),
        record_count=1,
        file_size_in_bytes=100,
        referenced_data_file=of,
        **more,
    )


def conflict(
    changes: Changes,
    row_filter: str = "id = 5",
    isolation: IsolationLevel = SERIALIZABLE,
    files: frozenset[str] = frozenset({"read"}),
) -> str | None:
    return find_conflict(
        Read(parse(row_filter), files, bind_filter(parse(row_filter), SCHEMA).field_ids),
        [changes],
        SCHEMA,
        isolation,
    )


@pytest.mark.parametrize("operation", list(Operation))
@pytest.mark.parametrize("isolation", list(IsolationLevel))
def test_added_rows(operation: Operation, isolation: IsolationLevel) -> None:
    near = Changes(7, operation, added=[data_file("new", low=1, high=9)])
    is_one = isolation == SERIALIZABLE and operation in (Operation.APPEND, Operation.OVERWRITE)
    found = conflict(near, isolation=isolation)
    assert (found is not None) == is_one
    assert not found or ("added the data file new in snapshot 7" in found)
    far = Changes(7, operation, added=[data_file("new", low=6, high=9)])
    assert conflict(far, isolation=isolation) is None
    unknown = Changes(7, operation, added=[data_file("new")])
    assert (conflict(unknown, isolation=isolation) is not None) == is_one


@pytest.mark.parametrize("operation", [Operation.DELETE, Operation.OVERWRITE, Operation.REPLACE])
@pytest.mark.parametrize("isolation", list(IsolationLevel))
def test_removed_rows(operation: Operation, isolation: IsolationLevel) -> None:
    near = Changes(7, operation, removed=[data_file("old", low=1, high=9)])
    found = conflict(near, isolation=isolation)
    assert found is not None
    assert "removed the data file old in snapshot 7" in found
    far = Changes(7, operation, removed=[data_file("old", low=6, high=9)])
    assert conflict(far, isolation=isolation) is None


@pytest.mark.parametrize("operation", list(Operation))
@pytest.mark.parametrize("isolation", list(IsolationLevel))
def test_a_deletion_vector_counts_by_its_data_file(
    operation: Operation, isolation: IsolationLevel
) -> None:
    mine = Changes(7, operation, deletes=[delete_file(POSITION_DELETES, "read")])
    found = conflict(mine, isolation=isolation)
    assert found is not None
    assert "added the delete file" in found
    other = Changes(7, operation, deletes=[delete_file(POSITION_DELETES, "unread")])
    assert conflict(other, isolation=isolation) is None


@pytest.mark.parametrize("content", [POSITION_DELETES, EQUALITY_DELETES])
@pytest.mark.parametrize("isolation", list(IsolationLevel))
def test_other_delete_files_count_by_their_metrics(content: int, isolation: IsolationLevel) -> None:
    def deletes(operation: Operation, **bounds: Any) -> str | None:
        changes = Changes(7, operation, deletes=[delete_file(content, **bounds)])
        return conflict(changes, isolation=isolation)

    for operation in (Operation.DELETE, Operation.OVERWRITE):
        assert deletes(operation) is not None
        away = {1: (8).to_bytes(8, "little")}
        assert deletes(operation, lower_bounds=away, upper_bounds=away) is None
    # The same deletes in another file.
    assert deletes(Operation.REPLACE) is None
    # Of a file that is written anew they may be of other rows than those of the filter.
    away = {1: (8).to_bytes(8, "little")}
    for operation in Operation:
        added = delete_file(content, lower_bounds=away, upper_bounds=away)
        changes = Changes(7, operation, deletes=[added])
        read = Read(parse("id = 5"), frozenset({"read"}), frozenset({1}), rewrites=True)
        found = find_conflict(read, [changes], SCHEMA, isolation)
        assert (found is None) == (operation == Operation.REPLACE)


def test_a_filter_is_meant_as_in_sql() -> None:
    nulls = {"value_counts": {1: 10}, "null_value_counts": {1: 10}}
    only_nulls = ContentFile.of(
        content=DATA,
        file_path="new",
        file_format="PARQUET",
        partition=(),
        record_count=10,
        file_size_in_bytes=100,
        **nulls,
    )
    changes = Changes(7, Operation.APPEND, added=[only_nulls])
    assert conflict(changes, "id != 5") is None
    assert conflict(changes, "id is null") is not None


def test_the_first_conflict_of_several_snapshots_is_told() -> None:
    far = Changes(8, Operation.APPEND, added=[data_file("new", low=6, high=9)])
    near = Changes(7, Operation.DELETE, removed=[data_file("old")])
    read = Read(parse("id = 5"), frozenset(), frozenset({1}))
    assert find_conflict(read, [], SCHEMA, SERIALIZABLE) is None
    assert find_conflict(read, [far], SCHEMA, SERIALIZABLE) is None
    assert "snapshot 7" in (find_conflict(read, [far, near], SCHEMA, SERIALIZABLE) or "")
    with pytest.raises(ValueError, match="nothing_like_it"):
        find_conflict(
            Read(parse("nothing_like_it = 1"), frozenset(), frozenset()), [], SCHEMA, SERIALIZABLE
        )
    read = Read(parse("ID = 5"), frozenset(), frozenset({1}), case_sensitive=False)
    assert find_conflict(read, [near], SCHEMA, SERIALIZABLE) is not None


# -- beside PyIceberg


def delete_and_append(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.delete("id = 2")
        transaction.append(rows(50))


def append_and_overwrite(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.append(rows(51, v="b"))
        transaction.overwrite(rows(52, v="b"), "v = 'b'")


def set_property(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"a": "b"})


Operations = dict[str, Callable[[Table], object]]
OTHERS: Operations = {
    "append beside": lambda t: t.append(rows(2, 20, n=7)),
    "append elsewhere": lambda t: t.append(rows(30, v="c")),
    "delete the row": lambda t: t.delete("id = 2"),
    "delete a neighbour": lambda t: t.delete("id = 3"),
    "delete elsewhere": lambda t: t.delete("id = 12"),
    "delete a partition": lambda t: t.delete("v = 'a'"),
    "overwrite elsewhere": lambda t: t.overwrite(rows(14, v="b"), "id = 13"),
    "overwrite all": lambda t: t.overwrite(rows(40)),
    "upsert": lambda t: t.upsert(rows(2, n=8), ["id"]),
    "a property": set_property,
}
OURS: Operations = {
    "append": lambda t: t.append(rows(60)),
    "overwrite": lambda t: t.overwrite(rows(60)),
    "overwrite rows": lambda t: t.overwrite(rows(60), "id = 2"),
    "overwrite nothing": lambda t: t.overwrite(rows(60), AlwaysFalse()),
    "delete a row": lambda t: t.delete("id = 2"),
    "delete files": lambda t: t.delete("v = 'a'"),
    "delete both": lambda t: t.delete("id <= 11"),
    "delete what is not there": lambda t: t.delete("id = 20"),
    "dynamic": lambda t: t.dynamic_partition_overwrite(rows(61)),
    "delete and append": delete_and_append,
    "append and overwrite": append_and_overwrite,
    "upsert a row": lambda t: t.upsert(rows(2, n=9), ["id"]),
    "upsert a new row": lambda t: t.upsert(rows(62), ["id"]),
    "upsert nothing": lambda t: t.upsert(rows(1), ["id"]),
}


def outcome(table: Table, other: str, ours: str) -> Any:
    """Have another writer come between the loading of a table and a change of it; return the
    exception's class, or the rows that are left."""
    OTHERS[other](again(table))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            OURS[ours](table)
        except ValidationException:
            return ValidationException
        except Exception as error:
            return type(error)
    return contents(table)


Outcome = Callable[[str, str, str], Any]


@pytest.fixture(scope="module")
def outcome_of_pyiceberg(begun: Begun) -> Outcome:
    """Return the outcome on a table of PyIceberg, which has one mode."""

    @functools.cache
    def found(ours: str, other: str, level: str) -> Any:
        table = begun(False, QUICK | dict.fromkeys(LEVELS, level))
        assert not isinstance(table, EncryptedTable)
        return outcome(table, other, ours)

    return found


def cases() -> Iterator[Any]:
    """All pairs, in one mode at one level and in the other one at the other. Those that say most
    are not slow."""
    first = {"overwrite", "overwrite rows", "delete a row", "delete and append"}
    then = {"append beside", "delete the row", "delete elsewhere"}
    for i, ours in enumerate(OURS):
        for j, other in enumerate(OTHERS):
            levels = ["serializable", "snapshot"][:: 1 if (i + j // 2) % 2 else -1]
            for mode, level in zip(("merge-on-read", "copy-on-write"), levels, strict=True):
                is_quick = ours in first and other in then and mode == "merge-on-read"
                marks = () if is_quick else (pytest.mark.slow,)
                name = f"{ours} after {other}-{mode}-{level}"
                yield pytest.param(ours, other, mode, level, marks=marks, id=name)


# Of `make test`: files that are added and removed.
@pytest.mark.slow_variants(r".* after delete elsewhere-merge-on-read-.*")
@pytest.mark.parametrize(("ours", "other", "mode", "level"), list(cases()))
def test_the_outcome_is_pyiceberg_s(
    begun: Begun, outcome_of_pyiceberg: Outcome, ours: str, other: str, mode: str, level: str
) -> None:
    modes = {f"write.{command}.mode": mode for command in ("delete", "update", "merge")}
    table = begun(True, ENCRYPTED | dict.fromkeys(LEVELS, level) | modes)
    assert isinstance(table, EncryptedTable)
    assert outcome(table, other, ours) == outcome_of_pyiceberg(ours, other, level)


def test_the_levels_of_deletes_and_overwrites_are_two(catalog: EncryptedCatalog) -> None:
    for number, name in enumerate(LEVELS):
        table = create(catalog, f"db.t{number}", ENCRYPTED | {name: "snapshot"})
        results = [outcome(table, "append beside", "delete a row")]
        table = create(catalog, f"db.u{number}", ENCRYPTED | {name: "snapshot"})
        results.append(outcome(table, "append beside", "overwrite rows"))
        assert [r is ValidationException for r in results] == [number == 1, number == 0]


def test_a_level_that_there_is_not(catalog: EncryptedCatalog) -> None:
    table = create(catalog, "db.t", ENCRYPTED | dict.fromkeys(LEVELS, "hope"))
    assert outcome(table, "append elsewhere", "delete a row") is ValueError


# -- a table that is refreshed while a transaction is open


def add_column(table: Table | Transaction, name: str) -> None:
    with table.update_schema() as update:
        update.add_column(name, LongType())


STEPS: dict[str, Callable[[Transaction], object]] = {
    "nothing": lambda t: None,
    "property": lambda t: t.set_properties({"a": "b"}),
    "column": lambda t: add_column(t, "mine"),
    "append": lambda t: t.append(rows(70)),
    "delete": lambda t: t.delete("id = 2"),
    "overwrite": lambda t: t.overwrite(rows(71)),
    "upsert": lambda t: t.upsert(rows(2, 20, n=6), ["id"]),
}


def refreshed(table: Table, first: str, other: str, then: str) -> Any:
    """Refresh a table within a transaction on it, after another writer's commit. Return what the
    transaction shows then, and the outcome."""
    transaction = table.transaction()
    try:
        STEPS[first](transaction)
        if other == "a column":
            add_column(again(table), "other")
        else:
            OTHERS[other](again(table))
        table.refresh()
        shown = transaction.table_metadata
        names = [field.name for field in shown.schema().fields]
        read = len(transaction._scan("id < 20").to_arrow())
        STEPS[then](transaction)
        transaction.commit_transaction()
    except Exception as error:
        return type(error)
    return len(shown.snapshots), names, shown.properties.get("a"), read, contents(table)


def refreshes() -> Iterator[Any]:
    others = ("append beside", "delete the row", "a property", "a column")
    for first, other, then in itertools.product(("nothing", "property", "column"), others, STEPS):
        # PyIceberg's upsert reads the columns that the table had when its snapshot was made, and it
        # takes a key that is in two files.
        if then != "upsert" or ("column" not in first + other and other != "append beside"):
            is_quick = (first, then) == ("nothing", "delete") or (first, other, then) == (
                "property",
                "a column",
                "column",
            )
            marks = () if is_quick else (pytest.mark.slow,)
            yield pytest.param(first, other, then, marks=marks, id=f"{first} {other} {then}")


@pytest.mark.parametrize(("first", "other", "then"), list(refreshes()))
def test_a_refresh_reaches_an_open_transaction_as_in_pyiceberg(
    begun: Begun, first: str, other: str, then: str
) -> None:
    found = refreshed(begun(True, ENCRYPTED), first, other, then)
    assert found == refreshed(begun(False, QUICK), first, other, then)


def test_a_delete_after_a_refresh_is_of_what_the_table_shows_then(table: EncryptedTable) -> None:
    with table.transaction() as transaction:
        again(table).append(rows(2, n=80))
        table.refresh()
        transaction.delete("id = 2")
    assert ids(table) == [1, 3, 11, 12, 13]
    assert len(table.snapshots()) == 3


def test_what_a_transaction_has_written_is_kept_when_the_table_is_refreshed(
    table: EncryptedTable,
) -> None:
    # PyIceberg's fails: "Cannot add snapshot with sequence number 3 older than …".
    transaction = table.transaction()
    transaction.append(rows(70))
    transaction.delete("id = 3")
    again(table).append(rows(80))
    table.refresh()
    assert len(transaction.table_metadata.snapshots) == 4
    assert sorted(transaction._scan("id > 2").to_arrow()["id"].to_pylist()) == [11, 12, 13, 70, 80]
    transaction.delete("id >= 70 and id < 90")
    transaction.append(rows(90))
    transaction.commit_transaction()
    assert ids(table) == [1, 2, 11, 12, 13, 90]
    files_left(table)


LOOKS: dict[str, Callable[[Transaction], object]] = {
    "commit": lambda t: t.commit_transaction(),
    "append": STEPS["append"],
    "metadata": lambda t: t.table_metadata,
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_refresh_shows_a_conflict_with_what_was_written_before(
    table: EncryptedTable, look: str
) -> None:
    transaction = table.transaction()
    transaction.overwrite(rows(70), "id < 10")
    again(table).append(rows(2, n=80))
    table.refresh()
    with pytest.raises(ValidationException):
        LOOKS[look](transaction)
    with pytest.raises(RuntimeError, match="cannot be used again"):
        transaction.commit_transaction()
    assert ids(table) == [1, 2, 2, 3, 11, 12, 13]
    files_left(table)


# -- what is lost without it, and what is left of a writer who failed


def test_the_other_writer_s_row_is_kept(table: EncryptedTable) -> None:
    changes: list[Callable[[EncryptedTable], object]] = [
        lambda t: t.overwrite(rows(60)),
        lambda t: t.overwrite(rows(60), "id < 100"),
        lambda t: t.delete("id < 100"),
        delete_and_append,
    ]
    for number, change in enumerate(changes):
        stale = again(table)
        again(table).append(rows(2, n=70 + number))
        before = contents(table)
        with pytest.raises(ValidationException, match="repeat the change"):
            change(stale)
        assert contents(table) == before
    files_left(table)


# Of `make test`: each change once.
@pytest.mark.slow_variants("copy-on-write-(delete|append|nothing)", "merge-on-read-rekey")
@pytest.mark.parametrize("rewrite", ["delete", "rekey", "append", "nothing"])
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_columns_whose_names_are_swapped_meanwhile(
    catalog: EncryptedCatalog, rewrite: str, mode: str
) -> None:
    """A filter names columns. If another writer has given the names to other columns, the deleted
    rows, and new ones like them, are in files that the filter rules out by its new meaning."""
    properties = ENCRYPTED | {"write.delete.mode": mode}
    table = catalog.create_table(
        "db.t", pa.schema([("a", pa.int64()), ("b", pa.int64())]), properties=properties
    )
    table.append(pa.table({"a": [1, 2, 3], "b": [100, 200, 300]}))
    transaction = again(table).transaction()
    transaction.delete("a = 2")
    other = again(table)
    for before, after in (("a", "c"), ("b", "a"), ("c", "b")):
        with other.update_schema() as update:
            update.rename_column(before, after)
    if rewrite == "delete":
        with other.transaction() as change:
            change.set_properties({"write.delete.mode": "copy-on-write"})
        other.delete("b = 3")
    elif rewrite == "rekey":
        other.rekey()
    elif rewrite == "append":
        other.append(pa.table({"b": [2], "a": [400]}))
    if rewrite == "nothing":
        transaction.commit_transaction()
        assert again(table).scan().to_arrow()["b"].to_pylist() == [1, 3]
        return
    with pytest.raises(ValidationException):
        transaction.commit_transaction()
    assert 2 in again(table).scan().to_arrow()["b"].to_pylist()


def test_a_file_that_was_read_and_is_gone_is_a_conflict_whatever_its_metrics() -> None:
    gone = Changes(7, Operation.REPLACE, removed=[data_file("read", low=6, high=9)])
    assert conflict(gone, "id = 5") is not None
    elsewhere = Changes(7, Operation.REPLACE, removed=[data_file("other", low=6, high=9)])
    assert conflict(elsewhere, "id = 5") is None


def test_a_transaction_that_conflicts_is_over(table: EncryptedTable) -> None:
    transaction = table.transaction()
    transaction.append(rows(60))
    transaction.delete("id = 2")
    again(table).delete("id = 3")
    with pytest.raises(ValidationException):
        transaction.commit_transaction()
    with pytest.raises(RuntimeError, match="cannot be used again"):
        transaction.commit_transaction()
    assert ids(table) == [1, 2, 11, 12, 13]
    files_left(table)


def test_what_conflicts_with_nobody_is_committed_as_it_was_found(table: EncryptedTable) -> None:
    with table.transaction() as transaction:
        transaction.append(rows(60, 61))
        transaction.delete("id = 2 or id = 60")
        transaction.delete("id = 3 or id = 12")
        again(table).append(rows(70, 71, v="c"))
        again(table).delete("id = 71")
    assert ids(table) == [1, 11, 13, 61, 70]
    files_left(table)


def test_a_writer_who_began_with_an_empty_table(catalog: EncryptedCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA, properties=ENCRYPTED)
    other = again(table)
    table.append(rows(2))
    with pytest.raises(ValidationException):
        other.overwrite(rows(60), "id = 2")
    assert ids(table) == [2]


def test_branches_do_not_conflict_with_each_other(table: EncryptedTable) -> None:
    table.append(rows(4), branch="b")
    stale = again(table)
    again(table).append(rows(2))
    stale.overwrite(rows(60), branch="b")
    assert [row[0] for row in contents(table, snapshot_id=head(table, "b"))] == [60]
    stale = again(table)
    again(table).append(rows(2), branch="b")
    with pytest.raises(ValidationException):
        stale.delete("id = 2", branch="b")
    stale.delete("id = 2", branch="main")
    # A branch that is to be made begins where main is.
    stale = again(table)
    again(table).append(rows(2))
    with pytest.raises(ValidationException):
        stale.delete("id = 2", branch="new")
    files_left(table)


def head(table: Table, branch: str) -> int:
    snapshot = again(table).metadata.snapshot_by_name(branch)
    assert snapshot is not None
    return int(snapshot.snapshot_id)


def test_a_branch_that_was_rolled_back(table: EncryptedTable) -> None:
    again(table).append(rows(50))
    table.refresh()
    [first, second] = table.snapshots()
    stale, appending = again(table), again(table)
    again(table).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with pytest.raises(ValidationException, match=f"snapshot {second.snapshot_id}.*not in the"):
        stale.delete("id = 2")
    # An append goes by nothing.
    appending.append(rows(60))
    assert ids(table) == [1, 2, 3, 11, 12, 13, 60]


def test_a_starting_snapshot_that_has_expired(table: EncryptedTable) -> None:
    stale = again(table)
    transaction = stale.transaction()
    transaction.delete("id = 2")
    again(table).append(rows(60, v="c"))
    again(table).expire_snapshots(snapshot_ids=[stale.metadata.current_snapshot_id])
    with pytest.raises(ValidationException, match="expired"):
        transaction.commit_transaction()
    assert ids(table) == [1, 2, 3, 11, 12, 13, 60]


def streamed(table: EncryptedTable) -> None:
    batches = rows(60).to_batches()
    table.append(pa.RecordBatchReader.from_batches(ROW_TYPE, batches))


def in_one_transaction(table: EncryptedTable) -> None:
    with table.transaction() as transaction:
        transaction.append(rows(60))
        transaction.delete("id = 2")


LATER: dict[str, tuple[Callable[[EncryptedTable], object], Callable[[set[int]], set[int]]]] = {
    "append": (lambda t: t.append(rows(60)), lambda ids: ids | {60}),
    "stream": (streamed, lambda ids: ids | {60}),
    "delete": (lambda t: t.delete("id = 2"), lambda ids: ids - {2}),
    "delete nothing": (lambda t: t.delete("id = 500"), lambda ids: ids),
    "overwrite": (lambda t: t.overwrite(rows(60)), lambda _: {60}),
    "upsert": (lambda t: t.upsert(rows(2, 60, n=9), ["id"]), lambda ids: ids | {60}),
    "partitions": (
        lambda t: t.dynamic_partition_overwrite(rows(60)),
        lambda ids: {i for i in ids if i > 3} | {60},
    ),
    "transaction": (in_one_transaction, lambda ids: ids - {2} | {60}),
    "rekey": (lambda t: t.rekey(), lambda ids: ids),
    "compaction": (lambda t: t.rewrite_data_files(rewrite_all=True), lambda ids: ids),
    "compaction in parts": (
        lambda t: t.rewrite_data_files(rewrite_all=True, partial_progress=True),
        lambda ids: ids,
    ),
    "orphans": (lambda t: t.remove_orphan_files(), lambda ids: ids),
    "expiry": (lambda t: t.expire_snapshots(retain_last=1), lambda ids: ids),
    "dry expiry": (lambda t: t.expire_snapshots(retain_last=1, dry_run=True), lambda ids: ids),
    "erasure": (lambda t: t.erase_deleted_rows(), lambda ids: ids),
    "rotation": (lambda t: t.rotate_keys(), lambda ids: ids),
    "rewrapping": (lambda t: t.rewrap_keys(), lambda ids: ids),
    "properties": (
        lambda t: t.transaction().set_properties(a="b").commit_transaction(),
        lambda ids: ids,
    ),
}


# Of `make test`: the ways to commit that differ.
@pytest.mark.slow_variants(
    r"True-.*",
    r"False-(stream|delete nothing|compaction in parts|dry expiry|erasure|rewrapping|properties)",
)
@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("erased", [False, True])
def test_a_table_object_older_than_somebody_s_expiry(
    table: EncryptedTable, name: str, erased: bool
) -> None:
    """The files of its version are gone, and the change is made upon the newest one."""
    stale = again(table)
    table.append(rows(20, v="c"))
    table.delete("id = 1")
    if erased:
        table.erase_deleted_rows()
    table.expire_snapshots(
        snapshot_ids=[s.snapshot_id for s in table.snapshots()[:-1]], prune_keys=True
    )
    change, expected = LATER[name]
    change(stale)
    assert set(ids(table)) == expected({2, 3, 11, 12, 13, 20})
    files_left(table)


def test_a_file_that_is_missing_though_nobody_has_committed(table: EncryptedTable) -> None:
    stale = again(table)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    with pytest.raises(FileNotFoundError, match="snap-"):
        stale.append(rows(60))


def test_a_snapshot_of_the_same_id_and_other_files(table: EncryptedTable) -> None:
    """As in a copy of the table that was registered under its name."""
    view = table.view()
    assert view.snapshot is not None
    copied = view.snapshot.model_copy(update={"manifest_list": "file:///elsewhere/snap.avro"})
    with pytest.raises(ValidationException, match="not in the history"):
        snapshots_since(copied, view)


def test_damaged_metadata_does_not_lead_in_a_circle(table: EncryptedTable) -> None:
    stale = again(table)
    view = table.view()
    parents = [s["snapshot-id"] for s in reversed(view.metadata["snapshots"])]
    for snapshot, parent in zip(view.metadata["snapshots"], parents, strict=True):
        snapshot["parent-snapshot-id"] = parent
    again(table).append(rows(60))
    start = again(table).view().snapshot
    with pytest.raises(ValidationException, match="not in the history"):
        snapshots_since(start, view)
    assert snapshots_since(stale.view().snapshot, again(table).view()) == [start]


def test_a_partition_spec_that_another_writer_removed(table: EncryptedTable) -> None:
    with table.update_spec() as change:
        change.add_identity("n")
    stale, going_on = again(table).transaction(), again(table).transaction()
    stale.append(rows(60))
    stale.overwrite(rows(61), "id = 60")
    going_on.append(rows(62))
    with again(table).update_spec() as change:
        change.remove_field("n")
    assert again(table).spec().spec_id == 0
    with again(table).transaction() as removing:
        removing.stage_updates([{"action": "remove-partition-specs", "spec-ids": [1]}])
    before = contents(table)
    with pytest.raises(ValidationException, match="Cannot find partition spec 1 for data file"):
        stale.commit_transaction()
    assert contents(table) == before
    # As long as there is its spec, a file is as it should be, whatever the default is.
    with again(table).update_spec() as change:
        change.add_identity("n")
    going_on.commit_transaction()
    assert ids(table) == [1, 2, 3, 11, 12, 13, 62]
    files_left(table)


def test_a_sort_order_or_schema_that_another_writer_removed(table: EncryptedTable) -> None:
    with table.update_sort_order() as change:
        change.asc("id", IdentityTransform())
    stale = again(table).transaction()
    stale.append(rows(61, 60))
    with again(table).update_schema() as evolve:
        evolve.add_column("new", LongType())
    with again(table).transaction() as removing:
        # Files know columns by their ids, and no schema.
        removing.stage_updates([{"action": "remove-schemas", "schema-ids": [0]}])
    stale.commit_transaction()
    found = again(table).scan("id >= 60").to_arrow().to_pylist()
    assert found == [{"id": n, "v": "a", "n": 0, "new": None} for n in (60, 61)]
    view = again(table).view()
    view.metadata["sort-orders"] = [{"order-id": 0, "fields": []}]
    view.metadata["default-sort-order-id"] = 0
    added = [task.file for task in again(table).scan("id >= 60").plan_files()]
    producer = SnapshotProducer(table.output())
    with pytest.raises(ValidationException, match="Cannot find sort order 1 for data file"):
        producer.produce(view, FileChange(added=added))
    files_left(table)


def test_changes_that_match_nothing_warn_as_pyiceberg_does(
    catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    def warned(table: Table, change: Callable[[Table], object]) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            change(table)
        said = [str(warning.message) for warning in caught]
        return [text for text in said if "did not match" in text]

    changes: list[Callable[[Table], object]] = [
        *OURS.values(),
        lambda t: t.overwrite(rows(60), "id = 999"),
        lambda t: t.overwrite(rows(61), "v = 'none such'"),
        lambda t: t.dynamic_partition_overwrite(rows(70, v="new")),
        lambda t: t.delete("id = 999"),
        lambda t: t.append(rows(201, 209)),
        lambda t: t.delete("id = 205"),
        lambda t: t.overwrite(rows(62), "id = 205"),
        lambda t: t.delete(AlwaysFalse()),
    ]
    with load_plain_catalog("plain", **at(tmp_path)) as plain_catalog:
        plain_catalog.create_namespace("db")
        plain = create(plain_catalog, "db.plain", QUICK)
        encrypted = create(catalog, "db.t", ENCRYPTED)
        counts = []
        for change in changes:
            theirs = warned(plain, change)
            assert warned(encrypted, change) == theirs
            counts.append(len(theirs))
    assert sum(counts) >= 4


def test_a_delete_that_finds_nothing_has_read_the_table_too(table: EncryptedTable) -> None:
    transaction = again(table).transaction()
    transaction.delete("id = 20")
    transaction.set_properties({"a": "b"})
    # A REST server takes a commit upon any version of which its requirements hold.
    assert "assert-ref-snapshot-id" in {r["type"] for r in transaction._attempt.requirements}
    stale = again(table)
    table.append(rows(20))
    with pytest.raises(ValidationException):
        stale.delete("id = 20")
    with pytest.raises(ValidationException):
        transaction.commit_transaction()
    assert "a" not in again(table).properties
    table.delete("id = 99")
    assert ids(table) == [1, 2, 3, 11, 12, 13, 20]


def test_a_key_is_inserted_once(table: EncryptedTable) -> None:
    others = [again(table) for _ in range(2)]
    table.upsert(rows(4, 6, n=1), ["id"])
    # PyIceberg has the key twice then.
    with pytest.raises(ValidationException, match="has inserted a key"):
        others[0].upsert(rows(5, 6, n=2), ["id"])
    # Its keys lie between the others', and they are new all the same.
    result = others[1].upsert(rows(5, 7, n=3), ["id"])
    assert (result.rows_updated, result.rows_inserted) == (0, 2)
    found = {row[0]: row[2] for row in contents(table)}
    assert {k: found[k] for k in (4, 5, 6, 7)} == {4: 1, 5: 3, 6: 1, 7: 3}
    # A key that the transaction itself has deleted is new.
    with again(table).transaction() as transaction:
        transaction.delete("id = 4")
        transaction.upsert(rows(4, n=9), ["id"])
        again(table).append(rows(70, v="c"))
    assert (4, "a", 9) in contents(table)
    files_left(table)


def test_a_commit_that_was_made_though_the_catalog_refuses_it(
    table: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = EncryptedTable.commit_updates
    answers = iter([True])

    def refused(self: EncryptedTable, *arguments: Any) -> None:
        commit(self, *arguments)
        if next(answers, False):
            raise CommitFailedException("so says a proxy that has sent it twice")

    monkeypatch.setattr(EncryptedTable, "commit_updates", refused)
    with table.transaction() as transaction:
        transaction.append(rows(60))
        transaction.delete("id = 2")
    assert ids(table) == [1, 3, 11, 12, 13, 60]
    assert set(transaction.snapshot_ids) <= {s.snapshot_id for s in again(table).snapshots()}
    files_left(table)


def test_maintenance_keeps_what_others_did(table: EncryptedTable) -> None:
    deleting: list[Callable[[], object]] = [
        lambda: again(table).delete("id = 2"),
        lambda: again(table).delete("v = 'b'"),
        lambda: again(table).append(rows(60)),
    ]
    maintenance: list[Callable[[EncryptedTable], object]] = [
        lambda t: t.rekey(progress=first_of(deleting)),
        lambda t: t.rotate_keys(),
        lambda t: t.expire_snapshots(retain_last=1),
        lambda t: t.prune_keys(),
    ]
    maintenance[0](again(table))
    assert not deleting
    for number, work in enumerate(maintenance[1:]):
        stale = again(table)
        again(table).append(rows(70 + number))
        work(stale)
    assert ids(table) == [1, 3, 60, 70, 71, 72]
    files_left(table)
    # Who has read the files that are rewritten knows them by their old names.
    stale = again(table)
    again(table).rekey()
    with pytest.raises(ValidationException, match="removed the data file"):
        stale.delete("id = 1")


def first_of(works: list[Callable[[], object]]) -> Callable[[int, int], None]:
    """A ``progress`` that does all of the works when it is first called."""

    def progress(done: int, total: int) -> None:
        while works:
            works.pop(0)()

    return progress


# -- many threads


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_threads_that_share_a_table_object_lose_no_key(
    catalog: EncryptedCatalog, rounds: int
) -> None:
    patient = {"commit.retry.num-retries": "200", "commit.retry.max-wait-ms": "20"}
    table = create(catalog, "db.t", ENCRYPTED | patient)
    assert isinstance(table, EncryptedTable)
    together = threading.Barrier(4)

    def work(first: int) -> int:
        together.wait()
        conflicts = 0
        for n in range(first, first + rounds):
            table.append(rows(n, v=f"{first}"))
            table.append(rows(n + 50, v=f"{first}"), branch="b")
            try:
                table.delete(f"id = {n}")
            except ValidationException:
                conflicts += 1
        table.rotate_keys()
        return conflicts

    with ThreadPoolExecutor(4) as pool:
        conflicts = sum(pool.map(work, (100, 200, 300, 400)))
    found = again(table)
    # What one thread has deleted, no other has seen.
    assert (conflicts, ids(found)) == (0, [1, 2, 3, 11, 12, 13])
    assert ids(table) == ids(found)
    keys = {key.key_id for key in found.files.keys.encryption_keys}
    assert len(found.snapshots()) == 1 + 4 * rounds * 3
    for snapshot in found.snapshots():
        assert snapshot.key_id in keys
        assert found.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows >= 3
    files_left(found)


def test_a_schema_for_another_version_is_a_conflict(table: EncryptedTable) -> None:
    """Its new column has the ID of another writer's, which is no change of a type."""
    update = table.transaction().update_schema()
    table.update_schema().add_column("theirs", LongType()).commit()
    update.add_column("ours", DoubleType())
    with pytest.raises(CommitFailedException, match="current schema id has changed"):
        update.commit()
