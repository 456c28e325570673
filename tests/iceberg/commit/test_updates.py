"""Updates of a table's metadata: Java's own next files, PyIceberg's rules, what is refused."""

from __future__ import annotations

import copy
import itertools
import json
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssertCreate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUUID,
    AssignUUIDUpdate,
    RemovePartitionSpecsUpdate,
    RemovePropertiesUpdate,
    RemoveSchemasUpdate,
    RemoveSnapshotRefUpdate,
    RemoveStatisticsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
    TableRequirement,
    TableUpdate,
    UpgradeFormatVersionUpdate,
    update_table_metadata,
)
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from ags1 import KeyMetadataError
from ags1.iceberg.commit.metadata_file import print_metadata, with_metadata_log
from ags1.iceberg.commit.new_table import new_table_updates
from ags1.iceberg.commit.updates import apply_updates
from ags1.iceberg.spec.java_json import (
    in_java_order,
    java_hash,
    java_print,
    metadata_hash,
    print_ordered,
)
from ags1.iceberg.spec.requirements import check_requirements

TABLES = Path(__file__).parents[2] / "tables"
CHAINS = [sorted(folder.glob("*.metadata.json")) for folder in sorted(TABLES.glob("*/metadata"))]
NOW_MS = 1_800_000_000_000


def named(chain: list[Path]) -> str:
    return chain[0].parts[-3]


def fixture(name: str, version: int = -1) -> dict[str, Any]:
    """A version of a table that Java wrote."""
    paths = sorted((TABLES / name / "metadata").glob("*.metadata.json"))
    metadata: dict[str, Any] = json.loads(paths[version].read_bytes())
    return metadata


def plain(*updates: TableUpdate) -> list[dict[str, Any]]:
    return [json.loads(update.model_dump_json()) for update in updates]


# Java's own next files


def difference(old: dict[str, Any], new: dict[str, Any]) -> list[dict[str, Any]]:
    """The updates that a writer sends who makes the one metadata into the other."""
    updates: list[dict[str, Any]] = []
    added = {n: v for n, v in new["properties"].items() if old["properties"].get(n) != v}
    if added:
        updates.append({"action": "set-properties", "updates": added})
    known = {key["key-id"] for key in old.get("encryption-keys", [])}
    for key in new.get("encryption-keys", []):
        if key["key-id"] not in known:
            updates.append({"action": "add-encryption-key", "encryption-key": key})
    known = {snapshot["snapshot-id"] for snapshot in old["snapshots"]}
    for snapshot in new["snapshots"]:
        if snapshot["snapshot-id"] not in known:
            updates.append({"action": "add-snapshot", "snapshot": snapshot})
    for name, ref in new["refs"].items():
        updates.append({"action": "set-snapshot-ref", "ref-name": name, **ref})
    for kind in ("statistics", "partition-statistics"):
        for statistics in new[kind]:
            if statistics not in old[kind]:
                updates.append({"action": f"set-{kind}", kind: statistics})
    return updates


@pytest.mark.parametrize("chain", CHAINS, ids=named)
def test_a_table_s_creation_gives_java_s_first_file(chain: list[Path]) -> None:
    data = chain[0].read_bytes()
    new = json.loads(data)
    [schema], [spec], [order] = new["schemas"], new["partition-specs"], new["sort-orders"]
    updates = [
        {"action": "assign-uuid", "uuid": new["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": new["format-version"]},
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": spec},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": order},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": new["location"] + "/"},
        {"action": "set-properties", "updates": new["properties"]},
    ]
    made = apply_updates(None, updates, now_ms=new["last-updated-ms"])
    assert print_metadata(made) == data


STEPS = [
    pytest.param(before, after, id=f"{named(chain)}-{after.name[:5]}")
    for chain in CHAINS
    for before, after in itertools.pairwise(chain)
]


@pytest.mark.parametrize(("before", "after"), STEPS)
def test_the_updates_of_a_commit_give_java_s_next_file(before: Path, after: Path) -> None:
    old, new = json.loads(before.read_bytes()), json.loads(after.read_bytes())
    untouched = copy.deepcopy(old)
    made = apply_updates(old, difference(old, new), now_ms=new["last-updated-ms"])
    assert old == untouched
    place = f"{old['location']}/metadata/{before.name}"
    made, _ = with_metadata_log(made, place, old["last-updated-ms"])
    assert print_metadata(made) == after.read_bytes()


@pytest.mark.parametrize("chain", CHAINS, ids=named)
def test_a_chain_of_commits_prints_java_s_files(chain: list[Path]) -> None:
    """Each version is made and printed with what is known of the one before it."""
    made = in_java_order(json.loads(chain[0].read_bytes()))
    assert print_ordered(made) == chain[0].read_bytes()
    for before, after in itertools.pairwise(chain):
        new = json.loads(after.read_bytes())
        updates = difference(made, new)
        for update in updates:
            if update["action"] == "add-snapshot":
                update["snapshot"] = dict(reversed(update["snapshot"].items()))
        last = made
        changed = apply_updates(last, updates, now_ms=new["last-updated-ms"])
        place = f"{last['location']}/metadata/{before.name}"
        made, _ = with_metadata_log(changed, place, last["last-updated-ms"])
        assert print_ordered(made, last) == after.read_bytes()
        assert java_hash(made, after.read_bytes()) == metadata_hash(after.read_bytes())
    # A version that lost a snapshot, and one more upon it.
    for n in {0, len(made["snapshots"]) // 2} if len(made["snapshots"]) > 1 else ():
        gone = made["snapshots"][n]["snapshot-id"]
        last, update = made, {"action": "remove-snapshots", "snapshot-ids": [gone]}
        for _ in range(2):
            changed = apply_updates(last, [update], now_ms=NOW_MS)
            assert print_ordered(changed, last) == java_print(json.loads(json.dumps(changed)))
            last, update = changed, {"action": "set-properties", "updates": {"a": "b"}}


def test_hive_s_hash_leaves_out_what_java_does_not_know() -> None:
    made = in_java_order(fixture("mor_dv"))
    text = print_ordered(made)
    future = in_java_order({**made, "from-the-future": 1})
    assert print_ordered(future, made) != text
    assert java_hash(future, print_ordered(future)) == metadata_hash(text)


def test_unknown_fields_survive() -> None:
    old = fixture("mor_dv") | {"from-the-future": {"a": [1]}}
    old["snapshots"][0]["new"] = 1
    old["schemas"][0]["fields"][0]["new"] = 2
    made = apply_updates(old, [{"action": "set-location", "location": "file:/x"}], now_ms=NOW_MS)
    assert made == old | {"location": "file:/x", "last-updated-ms": NOW_MS}


def test_no_change_is_no_update() -> None:
    old = fixture("stats")
    updates = [
        {"action": "set-snapshot-ref", "ref-name": "main", **old["refs"]["main"]},
        {"action": "set-location", "location": old["location"]},
        {"action": "assign-uuid", "uuid": old["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 3},
        {"action": "set-current-schema", "schema-id": 0},
        {"action": "set-default-spec", "spec-id": 0},
        {"action": "set-default-sort-order", "sort-order-id": 0},
        {"action": "add-schema", "schema": old["schemas"][0]},
        {"action": "add-spec", "spec": old["partition-specs"][0]},
        {"action": "add-sort-order", "sort-order": old["sort-orders"][0]},
        {"action": "add-encryption-key", "encryption-key": old["encryption-keys"][0]},
        {"action": "remove-encryption-key", "key-id": "unknown"},
        {"action": "remove-snapshots", "snapshot-ids": [12]},
        {"action": "remove-snapshot-ref", "ref-name": "unknown"},
        {"action": "remove-statistics", "snapshot-id": 12},
        {"action": "remove-partition-statistics", "snapshot-id": 12},
        {"action": "remove-schemas", "schema-ids": []},
        {"action": "remove-partition-specs", "spec-ids": [7]},
        {"action": "set-properties", "updates": {}},
        {"action": "remove-properties", "removals": []},
    ]
    assert apply_updates(old, updates, now_ms=NOW_MS) == old
    assert apply_updates(old, [], now_ms=NOW_MS) == old


# PyIceberg's rules, where it and Java agree

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "at", TimestampType(), required=False),
    NestedField(3, "s", StringType(), required=False, doc="text"),
    identifier_field_ids=[1],
)
WIDER = Schema(
    *SCHEMA.fields,
    NestedField(4, "tags", ListType(5, StringType(), element_required=False), required=False),
    NestedField(
        6, "in", StructType(NestedField(7, "d", DoubleType(), required=False)), required=False
    ),
    schema_id=1,
    identifier_field_ids=[1],
)
BY_DAY = PartitionSpec(
    PartitionField(source_id=2, field_id=1000, transform=DayTransform(), name="at_day"), spec_id=1
)
BY_DAY_AND_ID = PartitionSpec(
    *BY_DAY.fields,
    PartitionField(source_id=1, field_id=1001, transform=BucketTransform(16), name="id_bucket"),
    spec_id=2,
)
BY_ID = SortOrder(SortField(source_id=1, transform=IdentityTransform()), order_id=1)


def empty(version: int = 2) -> TableMetadata:
    return new_table_metadata(
        SCHEMA,
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        "s3://b/t",
        {"format-version": str(version), "a": "1"},
        UUID(int=1),
    )


def snapshot(number: int, parent: int | None = None, **more: Any) -> Snapshot:
    values: dict[str, Any] = {
        "snapshot-id": number,
        "parent-snapshot-id": parent,
        "sequence-number": number,
        "timestamp-ms": NOW_MS + number,
        "manifest-list": f"s3://b/t/metadata/snap-{number}.avro",
        "summary": Summary(Operation.APPEND, **{"added-records": "7"}),
        "schema-id": 0,
    }
    return Snapshot(**{name: v for name, v in (values | more).items() if v is not None})


def added(number: int, parent: int | None = None, **more: Any) -> AddSnapshotUpdate:
    return AddSnapshotUpdate(snapshot=snapshot(number, parent, **more))


def ref(name: str, number: int, kind: str = "branch", **more: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(
        **{"ref-name": name, "type": SnapshotRefType(kind), "snapshot-id": number, **more}
    )


def statistics(number: int, size: int = 100) -> StatisticsFile:
    blob = BlobMetadata(
        **{
            "type": "apache-datasketches-theta-v1",
            "snapshot-id": number,
            "sequence-number": 1,
            "fields": [1],
        },
        properties={"ndv": "3"},
    )
    return StatisticsFile(
        **{
            "snapshot-id": number,
            "statistics-path": f"s3://b/{number}.stats",
            "file-size-in-bytes": size,
            "file-footer-size-in-bytes": 10,
            "blob-metadata": [blob],
        }
    )


SCRIPTS: dict[str, list[TableUpdate]] = {
    "uuid and place": [
        AssignUUIDUpdate(uuid=UUID(int=5)),
        SetLocationUpdate(location="s3://other/place"),
    ],
    "properties": [
        SetPropertiesUpdate(updates={"b": True, "c": 3, "a": "2"}),
        RemovePropertiesUpdate(removals=["a"]),
    ],
    "schema": [
        AddSchemaUpdate(schema=WIDER),
        SetCurrentSchemaUpdate(**{"schema-id": -1}),
    ],
    "schema and back": [
        AddSchemaUpdate(schema=WIDER),
        SetCurrentSchemaUpdate(**{"schema-id": -1}),
        SetCurrentSchemaUpdate(**{"schema-id": 0}),
        RemoveSchemasUpdate(**{"schema-ids": [1]}),
    ],
    "specs": [
        AddPartitionSpecUpdate(spec=BY_DAY),
        SetDefaultSpecUpdate(**{"spec-id": -1}),
        AddPartitionSpecUpdate(spec=BY_DAY_AND_ID),
        SetDefaultSpecUpdate(**{"spec-id": 2}),
        RemovePartitionSpecsUpdate(**{"spec-ids": [0]}),
    ],
    "order": [
        AddSortOrderUpdate(**{"sort-order": BY_ID}),
        SetDefaultSortOrderUpdate(**{"sort-order-id": -1}),
    ],
    "snapshots": [
        added(1),
        ref("main", 1),
        added(2, 1),
        ref("main", 2, **{"min-snapshots-to-keep": 3, "max-snapshot-age-ms": 5}),
        ref("old", 1, "tag", **{"max-ref-age-ms": 9}),
    ],
    "a branch": [added(1), ref("main", 1), added(2, 1), ref("audit", 2)],
    "branches gone": [
        added(1),
        ref("main", 1),
        ref("audit", 1),
        RemoveSnapshotRefUpdate(**{"ref-name": "audit"}),
    ],
    "statistics": [
        added(1),
        ref("main", 1),
        SetStatisticsUpdate(statistics=statistics(1)),
        SetStatisticsUpdate(statistics=statistics(1, 200)),
    ],
    "statistics gone": [
        added(1),
        ref("main", 1),
        SetStatisticsUpdate(statistics=statistics(1)),
        RemoveStatisticsUpdate(**{"snapshot-id": 1}),
    ],
}


def comparable(metadata: TableMetadata) -> dict[str, Any]:
    """Without the log of snapshots that were passed over, and the time, where Java differs."""
    dumped: dict[str, Any] = json.loads(metadata.model_dump_json())
    log = dumped["snapshot-log"]
    dumped["snapshot-log"] = log[-1:]
    return {name: v for name, v in dumped.items() if name != "last-updated-ms"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_pyiceberg_makes_the_same_of_it(name: str) -> None:
    base = empty()
    theirs = update_table_metadata(base, tuple(SCRIPTS[name]))
    old = json.loads(base.model_dump_json())
    made = apply_updates(old, plain(*SCRIPTS[name]), now_ms=NOW_MS)
    assert json.loads(print_metadata(made)) == made
    assert comparable(TableMetadataUtil.parse_obj(made)) == comparable(theirs)
    assert made["last-updated-ms"] == NOW_MS


@pytest.mark.parametrize("name", SCRIPTS)
def test_pyiceberg_reads_it_one_update_at_a_time(name: str) -> None:
    metadata = json.loads(empty().model_dump_json())
    for update in SCRIPTS[name]:
        if getattr(update, "schema_id", 0) == -1:
            # The last added is of the same commit.
            update = SetCurrentSchemaUpdate(**{"schema-id": metadata["schemas"][-1]["schema-id"]})
        if getattr(update, "spec_id", 0) == -1:
            update = SetDefaultSpecUpdate(**{"spec-id": metadata["partition-specs"][-1]["spec-id"]})
        if getattr(update, "sort_order_id", 0) == -1:
            update = SetDefaultSortOrderUpdate(**{"sort-order-id": 1})
        metadata = apply_updates(metadata, plain(update), now_ms=NOW_MS)
        assert TableMetadataUtil.parse_obj(metadata)
    at_once = apply_updates(
        json.loads(empty().model_dump_json()), plain(*SCRIPTS[name]), now_ms=NOW_MS
    )
    for one in (metadata, at_once):
        one["snapshot-log"] = one["snapshot-log"][-1:]
    assert [e["snapshot-id"] for e in metadata.pop("snapshot-log")] == [
        e["snapshot-id"] for e in at_once.pop("snapshot-log")
    ]
    assert metadata == at_once


def test_a_new_table_is_what_pyiceberg_makes() -> None:
    spec = PartitionSpec(
        PartitionField(source_id=20, field_id=7, transform=DayTransform(), name="at_day"),
        spec_id=9,
    )
    order = SortOrder(SortField(source_id=10, transform=IdentityTransform()), order_id=5)
    schema = Schema(
        NestedField(10, "id", LongType(), required=True),
        NestedField(20, "at", TimestampType(), required=False),
        NestedField(30, "l", ListType(40, IntegerType(), element_required=True), required=False),
        schema_id=3,
        identifier_field_ids=[10],
    )
    properties = {"format-version": "3", "write.x": True, "n": 5}
    theirs = new_table_metadata(schema, spec, order, "s3://b/t", dict(properties), UUID(int=3))
    updates = new_table_updates(schema, spec, order, "s3://b/t/", properties, UUID(int=3))
    made = apply_updates(None, updates, now_ms=NOW_MS)
    expected = theirs.model_dump(mode="json")
    expected["properties"] = {
        "write.x": "true",
        "n": "5",
        "write.parquet.compression-codec": "zstd",
    }
    ours = TableMetadataUtil.parse_obj(made).model_dump(mode="json")
    for metadata in (ours, expected):
        for name in ("last-updated-ms", "next-row-id"):
            metadata.pop(name, None)
    assert ours == expected
    assert made["next-row-id"] == 0
    assert made["last-partition-id"] == 1000
    assert made["current-snapshot-id"] is None


@pytest.mark.parametrize(
    ("properties", "match"),
    [
        ({"format-version": "2"}, "version 3"),
        ({"format-version": 4}, "version 3"),
        ({"uuid": "x"}, "reserved"),
        ({"current-schema": "{}"}, "reserved"),
        ({"a": None}, "'a'"),
        ({"commit.retry.num-retries": "few"}, "num-retries' is 'few': it must be a whole number"),
        ({"write.metadata.previous-versions-max": "x"}, "previous-versions-max"),
        ({"write.metadata.metrics.column.nothing": "full"}, "nothing"),
    ],
)
def test_properties_that_a_new_table_cannot_have(properties: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        new_table_updates(SCHEMA, BY_DAY, UNSORTED_SORT_ORDER, "s3://b/t", properties)


def test_metrics_of_a_column_that_is_there() -> None:
    properties = {"write.metadata.metrics.column.in.d": "full"}
    assert new_table_updates(WIDER, BY_DAY, UNSORTED_SORT_ORDER, "s3://b/t", properties)


# Java's rules, beyond PyIceberg's


def v3(**more: Any) -> dict[str, Any]:
    """A plain table of format version 3 with three snapshots on main."""
    updates = new_table_updates(
        SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "s3://b/t", more
    )
    metadata = apply_updates(None, updates, now_ms=NOW_MS)
    for number in (1, 2, 3):
        metadata = apply_updates(
            metadata,
            plain(
                added(
                    number,
                    number - 1 or None,
                    **{"first-row-id": metadata["next-row-id"], "added-rows": 10},
                ),
                ref("main", number),
            ),
            now_ms=NOW_MS + number,
        )
    return metadata


def logged(metadata: dict[str, Any]) -> list[int]:
    return [entry["snapshot-id"] for entry in metadata["snapshot-log"]]


def test_row_ids_are_given_out_in_turn() -> None:
    metadata = v3()
    assert metadata["next-row-id"] == 30
    assert [s["first-row-id"] for s in metadata["snapshots"]] == [0, 10, 20]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"first-row-id": 29, "added-rows": 1}, CommitFailedException),
        ({"sequence-number": 3, "first-row-id": 30, "added-rows": 1}, CommitFailedException),
        ({"first-row-id": None, "added-rows": 1}, ValueError),
        ({"first-row-id": 30, "added-rows": None}, ValueError),
        ({"first-row-id": 30, "added-rows": -1}, ValueError),
        ({"snapshot-id": 3, "first-row-id": 30, "added-rows": 1}, ValueError),
        ({"timestamp-ms": None, "first-row-id": 30, "added-rows": 1}, ValueError),
        ({"snapshot-id": None, "first-row-id": 30, "added-rows": 1}, ValueError),
    ],
)
def test_snapshots_that_do_not_follow(more: dict[str, Any], error: type[Exception]) -> None:
    metadata = v3()
    update = plain(added(4, 3))[0]
    update["snapshot"] |= more
    with pytest.raises(error):
        apply_updates(metadata, [update], now_ms=NOW_MS)


def test_row_ids_behind_a_gap_are_not_given_twice() -> None:
    made = apply_updates(
        v3(), plain(added(4, 3, **{"first-row-id": 100, "added-rows": 5})), now_ms=NOW_MS
    )
    assert made["next-row-id"] == 105


def test_a_rollback_is_logged_now() -> None:
    made = apply_updates(v3(), plain(ref("main", 1)), now_ms=NOW_MS + 99)
    assert made["current-snapshot-id"] == 1
    assert made["snapshot-log"][-1] == {"timestamp-ms": NOW_MS + 99, "snapshot-id": 1}
    assert logged(made) == [1, 2, 3, 1]


def test_what_a_transaction_passes_over_is_not_logged() -> None:
    rows = {"first-row-id": 30, "added-rows": 0}
    updates = plain(added(4, 3, **rows), ref("main", 4), added(5, 4, **rows), ref("main", 5))
    assert logged(apply_updates(v3(), updates, now_ms=NOW_MS + 9)) == [1, 2, 3, 5]


def test_expired_snapshots_take_the_history_before_them() -> None:
    metadata = apply_updates(
        v3(),
        plain(
            ref("main", 1),
            ref("tagged", 2, "tag"),
            SetStatisticsUpdate(statistics=statistics(2)),
            SetStatisticsUpdate(statistics=statistics(3)),
        ),
        now_ms=NOW_MS + 9,
    )
    made = apply_updates(
        metadata, [{"action": "remove-snapshots", "snapshot-ids": [2]}], now_ms=NOW_MS + 10
    )
    assert [s["snapshot-id"] for s in made["snapshots"]] == [1, 3]
    assert logged(made) == [3, 1]
    assert list(made["refs"]) == ["main"]
    assert [s["snapshot-id"] for s in made["statistics"]] == [3]
    # As Java: the parent is gone, and was the parent.
    assert made["snapshots"][1]["parent-snapshot-id"] == 2


def test_all_snapshots_gone() -> None:
    made = apply_updates(
        v3(), [{"action": "remove-snapshots", "snapshot-ids": [1, 2, 3]}], now_ms=NOW_MS
    )
    assert made["current-snapshot-id"] is None
    assert made["refs"] == {}
    assert made["snapshots"] == made["snapshot-log"] == []
    assert made["next-row-id"] == 30


def test_main_gone_leaves_the_snapshots() -> None:
    made = apply_updates(
        v3(), plain(RemoveSnapshotRefUpdate(**{"ref-name": "main"})), now_ms=NOW_MS
    )
    assert made["current-snapshot-id"] is None
    assert len(made["snapshots"]) == 3
    assert logged(made) == [1, 2, 3]


def test_a_column_inside_a_list_or_map_does_not_partition() -> None:
    metadata = apply_updates(
        v3(),
        plain(AddSchemaUpdate(schema=WIDER), SetCurrentSchemaUpdate(**{"schema-id": -1})),
        now_ms=NOW_MS,
    )
    field = {"name": "part", "transform": "identity", "source-id": 7, "field-id": 1000}
    made = apply_updates(
        metadata, [{"action": "add-spec", "spec": {"fields": [field]}}], now_ms=NOW_MS
    )
    assert made["partition-specs"][1]["fields"] == [field]
    for source, match in ((5, "list or map"), (6, "nested")):
        update = {"action": "add-spec", "spec": {"fields": [field | {"source-id": source}]}}
        with pytest.raises(ValueError, match=match):
            apply_updates(metadata, [update], now_ms=NOW_MS)


def test_schemas_specs_and_orders_are_reused() -> None:
    metadata = v3()
    again = apply_updates(
        metadata,
        plain(
            AddSchemaUpdate(schema=WIDER),
            SetCurrentSchemaUpdate(**{"schema-id": -1}),
            AddPartitionSpecUpdate(spec=BY_DAY),
            SetDefaultSpecUpdate(**{"spec-id": -1}),
            AddSortOrderUpdate(**{"sort-order": BY_ID}),
            SetDefaultSortOrderUpdate(**{"sort-order-id": -1}),
        ),
        now_ms=NOW_MS,
    )
    other_ids = plain(
        AddSchemaUpdate(schema=Schema(*WIDER.fields, schema_id=7, identifier_field_ids=[1])),
        AddPartitionSpecUpdate(spec=PartitionSpec(*BY_DAY.fields, spec_id=9)),
        AddSortOrderUpdate(**{"sort-order": SortOrder(*BY_ID.fields, order_id=4)}),
    )
    assert apply_updates(again, other_ids, now_ms=NOW_MS) == again
    for action in ("set-current-schema", "set-default-spec", "set-default-sort-order"):
        name = {"set-current-schema": "schema-id", "set-default-spec": "spec-id"}.get(
            action, "sort-order-id"
        )
        with pytest.raises(ValueError, match="none was added"):
            apply_updates(again, [*other_ids, {"action": action, name: -1}], now_ms=NOW_MS)


def test_new_ids_are_the_table_s() -> None:
    narrow = Schema(NestedField(9, "x", LongType(), required=False), schema_id=0)
    made = apply_updates(
        v3(),
        plain(
            AddSchemaUpdate(schema=narrow),
            SetCurrentSchemaUpdate(**{"schema-id": -1}),
            AddPartitionSpecUpdate(
                spec=PartitionSpec(
                    PartitionField(
                        source_id=9, field_id=1005, transform=IdentityTransform(), name="x"
                    ),
                    spec_id=0,
                )
            ),
        ),
        now_ms=NOW_MS,
    )
    assert made["current-schema-id"] == 1
    assert made["last-column-id"] == 9
    assert made["partition-specs"][1]["spec-id"] == 1
    assert made["last-partition-id"] == 1005


def test_partition_fields_without_ids_get_some() -> None:
    fields = [
        {"name": "s", "transform": "identity", "source-id": 3},
        {"name": "at_day", "transform": "day", "source-id": 2},
    ]
    update = {"action": "add-spec", "spec": {"fields": fields}}
    made = apply_updates(v3(), [update], now_ms=NOW_MS)
    assert [f["field-id"] for f in made["partition-specs"][1]["fields"]] == [1000, 1001]
    fields[0]["field-id"] = 1000
    with pytest.raises(ValueError, match="id"):
        apply_updates(v3(), [update], now_ms=NOW_MS)


def test_an_upgrade_from_version_1() -> None:
    old = json.loads(empty(1).model_dump_json())
    for name in ("schemas", "partition-specs", "sort-orders", "refs", "last-partition-id"):
        del old[name]
    for name in ("current-schema-id", "default-spec-id", "default-sort-order-id"):
        del old[name]
    old["schema"].pop("schema-id")
    old["partition-spec"] = [
        {"name": "s", "transform": "identity", "source-id": 3, "field-id": 1000}
    ]
    old["current-snapshot-id"] = 1
    old["snapshots"] = [{"snapshot-id": 1, "timestamp-ms": NOW_MS - 5, "manifest-list": "x"}]
    kept = apply_updates(old, [], now_ms=NOW_MS)
    assert kept["schema"]["fields"] == kept["schemas"][0]["fields"]
    for version in (2, 3):
        made = apply_updates(
            old, plain(UpgradeFormatVersionUpdate(**{"format-version": version})), now_ms=NOW_MS
        )
        assert "schema" not in made
        assert "partition-spec" not in made
        assert made["schemas"][0]["schema-id"] == made["current-schema-id"] == 0
        assert made["partition-specs"] == [{"spec-id": 0, "fields": old["partition-spec"]}]
        assert made["last-partition-id"] == 1000
        assert made["sort-orders"] == [{"order-id": 0, "fields": []}]
        assert made["last-sequence-number"] == 0
        assert made["refs"] == {"main": {"snapshot-id": 1, "type": "branch"}}
        assert made.get("next-row-id") == (0 if version == 3 else None)
        assert TableMetadataUtil.parse_obj(made).format_version == version


def test_version_1_keeps_its_own_fields_in_step() -> None:
    old = json.loads(empty(1).model_dump_json())
    made = apply_updates(
        old,
        plain(
            AddSchemaUpdate(schema=WIDER),
            SetCurrentSchemaUpdate(**{"schema-id": -1}),
            AddPartitionSpecUpdate(spec=BY_DAY),
            SetDefaultSpecUpdate(**{"spec-id": -1}),
        ),
        now_ms=NOW_MS,
    )
    assert made["schema"] == made["schemas"][1]
    assert made["partition-spec"] == made["partition-specs"][1]["fields"]
    assert "last-sequence-number" not in made


# Keys

KEY = "encryption.key-id"


def sealed_snapshot(metadata: dict[str, Any], **more: Any) -> dict[str, Any]:
    old = metadata["snapshots"][-1]
    return {
        **old,
        "snapshot-id": 99,
        "parent-snapshot-id": old["snapshot-id"],
        "sequence-number": metadata["last-sequence-number"] + 1,
        "first-row-id": metadata["next-row-id"],
        "added-rows": 0,
        **more,
    }


def entry(key_id: str, by: str | None = None) -> dict[str, Any]:
    return {"key-id": key_id, "encrypted-key-metadata": "AAAA"} | (
        {"encrypted-by-id": by} if by else {}
    )


def add_key(key: dict[str, Any]) -> dict[str, Any]:
    return {"action": "add-encryption-key", "encryption-key": key}


def remove_key(key_id: str) -> dict[str, Any]:
    return {"action": "remove-encryption-key", "key-id": key_id}


def test_a_sealed_snapshot_with_its_key() -> None:
    old = fixture("mor_dv")
    snapshot = sealed_snapshot(old, **{"key-id": "new"})
    for updates in itertools.permutations(
        [add_key(entry("new")), {"action": "add-snapshot", "snapshot": snapshot}]
    ):
        made = apply_updates(old, updates, now_ms=NOW_MS)
        assert made["encryption-keys"][-1] == entry("new")
        assert made["snapshots"][-1]["key-id"] == "new"


@pytest.mark.parametrize("key_id", [None, "unknown"])
def test_a_snapshot_in_the_clear_or_without_its_key_is_refused(key_id: str | None) -> None:
    old = fixture("mor_dv")
    update = {"action": "add-snapshot", "snapshot": sealed_snapshot(old, **{"key-id": key_id})}
    with pytest.raises(ValueError, match="key"):
        apply_updates(old, [update], now_ms=NOW_MS)


def test_a_sealed_snapshot_in_a_plain_table_is_refused() -> None:
    update = plain(added(4, 3, **{"first-row-id": 30, "added-rows": 0}))[0]
    update["snapshot"]["key-id"] = "new"
    with pytest.raises(ValueError, match="key ID"):
        apply_updates(v3(), [add_key(entry("new")), update], now_ms=NOW_MS)


def test_keys_in_use_cannot_be_removed() -> None:
    old = fixture("mor_dv")
    kek, *lists = (key["key-id"] for key in old["encryption-keys"])
    for key_id in (kek, lists[0]):
        with pytest.raises(ValueError, match="still needs"):
            apply_updates(old, [remove_key(key_id)], now_ms=NOW_MS)
    gone = [snapshot["snapshot-id"] for snapshot in old["snapshots"][:-1]]
    updates = [
        {"action": "remove-snapshots", "snapshot-ids": gone},
        *map(remove_key, lists[:-1]),
    ]
    for order in (updates, updates[::-1]):
        made = apply_updates(old, order, now_ms=NOW_MS)
        assert [key["key-id"] for key in made["encryption-keys"]] == [kek, lists[-1]]


def test_keys_are_wrapped_again_under_their_ids() -> None:
    old = fixture("mor_dv")
    keys = [{**key, "encrypted-key-metadata": "BBBB"} for key in old["encryption-keys"]]
    updates = [*(remove_key(key["key-id"]) for key in keys), *map(add_key, keys)]
    assert apply_updates(old, updates, now_ms=NOW_MS)["encryption-keys"] == keys
    # Without a removal the first one stays.
    assert apply_updates(old, list(map(add_key, keys)), now_ms=NOW_MS) == old


def test_thousands_of_keys_are_wrapped_again_at_once() -> None:
    keys = [entry(f"k{number}") for number in range(5000)]
    old = apply_updates(v3(), list(map(add_key, keys)), now_ms=NOW_MS)
    updates = [*(remove_key(key["key-id"]) for key in keys), *map(add_key, keys)]
    started = time.monotonic()
    assert apply_updates(old, updates, now_ms=NOW_MS) == old
    # One pass over the list for each key would take minutes.
    assert time.monotonic() - started < 10


def test_the_last_key_gone_leaves_no_list() -> None:
    made = apply_updates(v3(), [add_key(entry("a"))], now_ms=NOW_MS)
    assert made["encryption-keys"] == [entry("a")]
    assert "encryption-keys" not in apply_updates(made, [remove_key("a")], now_ms=NOW_MS)


def test_the_encryption_of_a_table_needs_version_3() -> None:
    old = json.loads(empty(2).model_dump_json())
    update = {"action": "set-properties", "updates": {KEY: "keyA"}}
    with pytest.raises(ValueError, match="version 3"):
        apply_updates(old, [update], now_ms=NOW_MS)
    upgrade = {"action": "upgrade-format-version", "format-version": 3}
    assert apply_updates(old, [update, upgrade], now_ms=NOW_MS)["properties"][KEY] == "keyA"


def test_statistics_with_key_metadata_are_refused() -> None:
    one = json.loads(statistics(1).model_dump_json()) | {"key-metadata": "c2VjcmV0"}
    with pytest.raises(ValueError, match="plaintext key") as raised:
        apply_updates(v3(), [{"action": "set-statistics", "statistics": one}], now_ms=NOW_MS)
    assert "c2VjcmV0" not in str(raised.value)


# What cannot be

DAY_OF_TEXT = {"name": "x", "transform": "day", "source-id": 3, "field-id": 1000}


@pytest.mark.parametrize(
    ("update", "match"),
    [
        ({}, "unknown update"),
        ({"action": "add-view-version"}, "unknown update"),
        ({"action": "assign-uuid"}, "uuid"),
        ({"action": "assign-uuid", "uuid": "x"}, "not a UUID"),
        ({"action": "upgrade-format-version", "format-version": 4}, "not supported"),
        ({"action": "upgrade-format-version", "format-version": 2}, "cannot be downgraded"),
        ({"action": "upgrade-format-version", "format-version": "3"}, "whole number"),
        ({"action": "set-location"}, "location"),
        ({"action": "set-location", "location": "s3://b/t/../u"}, "must not contain '..'"),
        ({"action": "set-properties"}, "updates"),
        ({"action": "set-properties", "updates": {"a": None}}, "'a'"),
        ({"action": "set-properties", "updates": {"format-version": "3"}}, "reserved"),
        ({"action": "remove-properties", "removals": "a"}, "removals"),
        ({"action": "add-schema"}, "struct"),
        ({"action": "add-schema", "schema": {"type": "list"}}, "struct"),
        (
            {
                "action": "add-schema",
                "schema": {
                    "type": "struct",
                    "fields": [
                        {"id": 1, "name": "a", "required": False, "type": "int"},
                        {"id": 1, "name": "b", "required": False, "type": "int"},
                    ],
                },
            },
            "id and name",
        ),
        ({"action": "set-current-schema", "schema-id": 5}, "no schema 5"),
        ({"action": "set-current-schema", "schema-id": -1}, "none was added"),
        ({"action": "remove-schemas", "schema-ids": [0]}, "in use"),
        ({"action": "add-spec"}, "fields"),
        ({"action": "add-spec", "spec": {"fields": [DAY_OF_TEXT]}}, "does not take"),
        ({"action": "add-spec", "spec": {"fields": [DAY_OF_TEXT | {"source-id": 8}]}}, "not have"),
        (
            {
                "action": "add-spec",
                "spec": {"fields": [DAY_OF_TEXT | {"name": "id", "transform": "identity"}]},
            },
            "name of another column",
        ),
        ({"action": "set-default-spec", "spec-id": 5}, "no partition spec 5"),
        ({"action": "set-default-spec", "spec-id": -1}, "none was added"),
        ({"action": "remove-partition-specs", "spec-ids": [0]}, "in use"),
        ({"action": "add-sort-order", "sort-order": {"fields": [DAY_OF_TEXT]}}, "direction"),
        ({"action": "set-default-sort-order", "sort-order-id": 5}, "no sort order 5"),
        ({"action": "set-default-sort-order", "sort-order-id": -1}, "none was added"),
        ({"action": "add-snapshot"}, "snapshot"),
        ({"action": "remove-snapshots", "snapshot-ids": ["1"]}, "whole number"),
        (
            {"action": "set-snapshot-ref", "ref-name": "b", "type": "branch", "snapshot-id": 8},
            "does not exist",
        ),
        (
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "tag", "snapshot-id": 1},
            "cannot become a tag",
        ),
        (
            {"action": "set-snapshot-ref", "ref-name": "t", "type": "twig", "snapshot-id": 1},
            "twig",
        ),
        (
            {
                "action": "set-snapshot-ref",
                "ref-name": "t",
                "type": "tag",
                "snapshot-id": 1,
                "min-snapshots-to-keep": 1,
            },
            "tag",
        ),
        (
            {
                "action": "set-snapshot-ref",
                "ref-name": "b",
                "type": "branch",
                "snapshot-id": 1,
                "max-ref-age-ms": 0,
            },
            "above 0",
        ),
        ({"action": "set-statistics", "statistics": {"snapshot-id": 1}}, "file-footer"),
        ({"action": "set-partition-statistics"}, "partition-statistics"),
        ({"action": "remove-statistics"}, "snapshot-id"),
        ({"action": "remove-encryption-key"}, "key-id"),
        ({"action": "add-encryption-key"}, "encryption-key"),
    ],
)
def test_updates_that_cannot_be(update: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        apply_updates(v3(), [update], now_ms=NOW_MS)


def test_an_entry_that_is_no_key_is_refused() -> None:
    with pytest.raises(KeyMetadataError, match="base64"):
        apply_updates(
            v3(), [add_key({"key-id": "a", "encrypted-key-metadata": "*"})], now_ms=NOW_MS
        )


@pytest.mark.parametrize("kind", ["timestamp_ns", "unknown", "variant", "geometry(srid:3857)"])
def test_types_of_version_3(kind: str) -> None:
    column = {"id": 9, "name": "x", "required": False, "type": kind}
    schema = {"type": "struct", "fields": [*v3()["schemas"][0]["fields"], column]}
    update = {"action": "add-schema", "schema": schema}
    assert apply_updates(v3(), [update], now_ms=NOW_MS)["schemas"][1]["fields"][3] == column
    with pytest.raises(ValueError, match="version 2"):
        apply_updates(json.loads(empty().model_dump_json()), [update], now_ms=NOW_MS)
    column |= {"type": "list", "element-id": 10, "element": kind, "element-required": False}
    column["type"] = {"type": "list", "element-id": 10, "element": kind, "element-required": False}
    with pytest.raises(ValueError, match="version 2"):
        apply_updates(json.loads(empty().model_dump_json()), [update], now_ms=NOW_MS)


def test_a_default_needs_version_3() -> None:
    column = {"id": 9, "name": "x", "required": False, "type": "int", "initial-default": 3}
    update = {"action": "add-schema", "schema": {"type": "struct", "fields": [column]}}
    assert apply_updates(v3(), [update], now_ms=NOW_MS)["schemas"][1]["fields"] == [column]
    with pytest.raises(ValueError, match="default"):
        apply_updates(json.loads(empty().model_dump_json()), [update], now_ms=NOW_MS)


def test_a_column_that_the_partitioning_needs_cannot_go() -> None:
    metadata = apply_updates(
        v3(),
        plain(AddPartitionSpecUpdate(spec=BY_DAY), SetDefaultSpecUpdate(**{"spec-id": -1})),
        now_ms=NOW_MS,
    )
    narrow = Schema(SCHEMA.fields[0], schema_id=1)
    updates = plain(AddSchemaUpdate(schema=narrow), SetCurrentSchemaUpdate(**{"schema-id": -1}))
    with pytest.raises(ValueError, match="does not have"):
        apply_updates(metadata, updates, now_ms=NOW_MS)
    updates.append({"action": "set-default-spec", "spec-id": 0})
    assert apply_updates(metadata, updates, now_ms=NOW_MS)["current-schema-id"] == 1


def test_time_does_not_go_back() -> None:
    metadata = v3()
    update = {"action": "set-location", "location": "s3://x"}
    for now_ms in (0, NOW_MS - 1, NOW_MS, NOW_MS + 1):
        after = apply_updates({**metadata, "last-updated-ms": NOW_MS}, [update], now_ms=now_ms)
        assert after["last-updated-ms"] == max(now_ms, NOW_MS)
    # Java could not read this, as its last snapshot is newer than its last update.
    damaged = {**metadata, "last-updated-ms": NOW_MS - 59_998}
    with pytest.raises(ValueError, match="history"):
        apply_updates(damaged, [update], now_ms=NOW_MS - 59_998)


def test_a_table_without_a_schema_or_a_place_is_none() -> None:
    updates = new_table_updates(SCHEMA, BY_DAY, UNSORTED_SORT_ORDER, "s3://b/t", {})
    for left_out in ("assign-uuid", "add-schema", "add-spec", "add-sort-order", "set-location"):
        some = [update for update in updates if update["action"] != left_out]
        with pytest.raises(ValueError, match=r"added|no "):
            apply_updates(None, some, now_ms=NOW_MS)


WRONG: list[Any] = [None, 7, "x", [7], [None], {}, {"a": 1}, [{}], True]


@pytest.mark.parametrize("name", sorted(fixture("stats")))
def test_malformed_metadata_is_refused_or_kept(name: str) -> None:
    old = fixture("stats")
    column = {"id": 9, "name": "more", "required": False, "type": "double"}
    updates = [
        {"action": "add-schema", "schema": {"type": "struct", "fields": [column]}},
        {"action": "add-spec", "spec": {"fields": []}},
        {"action": "add-sort-order", "sort-order": {"fields": []}},
        {"action": "remove-snapshots", "snapshot-ids": [1]},
        {"action": "set-properties", "updates": {"a": "b"}},
        {"action": "set-snapshot-ref", "ref-name": "t", **old["refs"]["main"]},
        {"action": "remove-statistics", "snapshot-id": 1},
        add_key(entry("a")),
        remove_key("a"),
    ]
    assert apply_updates(old, updates, now_ms=NOW_MS)
    for value in WRONG:
        for broken in (old | {name: value}, {n: v for n, v in old.items() if n != name}):
            try:
                made = apply_updates(broken, updates, now_ms=NOW_MS)
            except ValueError:
                continue
            assert made["properties"]["a"] == "b"


# Requirements

REQUIREMENTS: list[tuple[TableRequirement, bool]] = [
    (AssertCreate(), False),
    (AssertTableUUID(uuid=UUID(int=1)), True),
    (AssertTableUUID(uuid=UUID(int=2)), False),
    (AssertCurrentSchemaId(**{"current-schema-id": 0}), True),
    (AssertCurrentSchemaId(**{"current-schema-id": 1}), False),
    (AssertLastAssignedFieldId(**{"last-assigned-field-id": 3}), True),
    (AssertLastAssignedFieldId(**{"last-assigned-field-id": 2}), False),
    (AssertLastAssignedPartitionId(**{"last-assigned-partition-id": 999}), True),
    (AssertLastAssignedPartitionId(**{"last-assigned-partition-id": 1000}), False),
    (AssertDefaultSpecId(**{"default-spec-id": 0}), True),
    (AssertDefaultSpecId(**{"default-spec-id": 1}), False),
    (AssertDefaultSortOrderId(**{"default-sort-order-id": 0}), True),
    (AssertDefaultSortOrderId(**{"default-sort-order-id": 1}), False),
    (AssertRefSnapshotId(ref="main", **{"snapshot-id": 1}), True),
    (AssertRefSnapshotId(ref="main", **{"snapshot-id": 2}), False),
    (AssertRefSnapshotId(ref="main", **{"snapshot-id": None}), False),
    (AssertRefSnapshotId(ref="other", **{"snapshot-id": None}), True),
    (AssertRefSnapshotId(ref="other", **{"snapshot-id": 1}), False),
]


@pytest.mark.parametrize(("requirement", "met"), REQUIREMENTS, ids=str)
def test_requirements_are_met_as_pyiceberg_has_it(requirement: TableRequirement, met: bool) -> None:
    theirs = update_table_metadata(empty(), (added(1), ref("main", 1)))
    ours = json.loads(theirs.model_dump_json())
    one = json.loads(requirement.model_dump_json())
    if met:
        requirement.validate(theirs)
        check_requirements(ours, [one])
        return
    with pytest.raises(CommitFailedException):
        requirement.validate(theirs)
    with pytest.raises(CommitFailedException):
        check_requirements(ours, [{"type": "assert-table-uuid", "uuid": str(UUID(int=1))}, one])


@pytest.mark.parametrize(("requirement", "met"), REQUIREMENTS, ids=str)
def test_requirements_of_a_table_that_is_not_there(
    requirement: TableRequirement, met: bool
) -> None:
    one = json.loads(requirement.model_dump_json())
    if isinstance(requirement, AssertCreate):
        check_requirements(None, [one])
    else:
        with pytest.raises(CommitFailedException):
            check_requirements(None, [one])


def test_a_ref_of_metadata_that_knows_none() -> None:
    metadata = {"current-snapshot-id": 5}
    check_requirements(
        metadata, [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 5}]
    )
    with pytest.raises(CommitFailedException):
        check_requirements(
            metadata, [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}]
        )


def test_unknown_requirements_are_refused() -> None:
    with pytest.raises(ValueError, match="assert-luck"):
        check_requirements({}, [{"type": "assert-luck"}])
