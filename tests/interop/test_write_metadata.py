"""Updates and requirements of metadata: what Java's builder makes of the same, and how it prints.

Random commits are applied by both; who refuses one has to refuse it in both.
"""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException

from ags1.iceberg.commit.metadata_file import print_metadata, with_metadata_log
from ags1.iceberg.commit.updates import apply_updates
from ags1.iceberg.spec.java_json import java_hash
from ags1.iceberg.spec.requirements import check_requirements

from .java import Java, JavaError
from .spark import SparkTables

pytestmark = pytest.mark.interop

JAVA = "org.apache.iceberg.TableUpdates"
Json = dict[str, Any]


def applied(java: Java, metadata: Json | None, updates: list[Json]) -> Json | str:
    """What Java makes of updates, or what it says when it refuses them."""
    try:
        text = java.call(
            f"{JAVA}.apply",
            metadata=None if metadata is None else print_metadata(metadata).decode(),
            updates=[json.dumps(update) for update in updates],
        )
    except JavaError as error:
        return str(error)
    made: Json = json.loads(text)
    return made


def column(field_id: int, kind: Any = "int", **more: Any) -> Json:
    return {"id": field_id, "name": f"c{field_id}", "required": False, "type": kind, **more}


def struct(*columns: Json, **more: Any) -> Json:
    return {"type": "struct", "fields": list(columns), **more}


NESTED = {
    "type": "map",
    "key-id": 11,
    "key": "string",
    "value-id": 12,
    "value": {
        "type": "list",
        "element-id": 13,
        "element": "decimal(9,2)",
        "element-required": True,
    },
    "value-required": False,
}
FIRST = [column(1, "long", required=True), column(2, "timestamp"), column(3, "string")]
SCHEMAS = [
    struct(*FIRST),
    struct(*FIRST, **{"identifier-field-ids": [1], "schema-id": 1}),
    struct(*FIRST, column(4, "double", doc="x"), **{"schema-id": 7}),
    struct(*FIRST, column(4, "double")),
    struct(*FIRST[:2]),
    struct(*FIRST[1:]),
    struct(*FIRST, column(10, NESTED)),
    struct(*FIRST, column(7, "timestamp_ns")),
    struct(*FIRST, column(5, "double", **{"initial-default": 1e10, "write-default": 0.5})),
    struct(*FIRST, column(6, "float", **{"write-default": 1.1})),
    struct(*FIRST, column(16, struct(column(14, "uuid"), column(15, "fixed[3]")))),
]


def part(source: int, transform: str, name: str, field_id: int | None = None) -> Json:
    field = {"source-id": source, "transform": transform, "name": name}
    return field if field_id is None else field | {"field-id": field_id}


SPECS: list[list[Json]] = [
    [],
    [part(2, "day", "d", 1000)],
    [part(2, "day", "d")],
    [part(2, "day", "d", 1007)],
    [part(1, "bucket[16]", "b", 1001), part(2, "day", "d", 1000)],
    [part(1, "bucket[16]", "b"), part(3, "truncate[2]", "t")],
    [part(1, "identity", "c1", 1000)],
    [part(1, "bucket[4]", "c1", 1000)],
    [part(1, "identity", "c3", 1000)],
    [part(2, "void", "v", 1000)],
    [part(9, "void", "v", 1000)],
    [part(3, "day", "bad", 1000)],
    [part(9, "identity", "missing", 1000)],
    [part(10, "identity", "nested", 1000)],
    [part(14, "identity", "c10.c14", 1000)],
    [part(11, "identity", "in_map", 1000)],
    [part(1, "identity", "x", 1000), part(2, "identity", "x", 1001)],
    [part(1, "identity", "x", 1000), part(2, "identity", "y")],
]


def by(source: int, transform: str = "identity", direction: str = "asc") -> Json:
    nulls = "nulls-first" if direction == "asc" else "nulls-last"
    return {
        "source-id": source,
        "transform": transform,
        "direction": direction,
        "null-order": nulls,
    }


ORDERS: list[list[Json]] = [
    [],
    [by(1)],
    [by(1, direction="desc")],
    [by(2, "day"), by(3)],
    [by(3, "day")],
    [by(9)],
    [by(10)],
]


class Writer:
    """Makes random updates that fit a table, more or less."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.numbers = itertools.count(1)

    def one_of(self, *choices: Any) -> Any:
        return self.dice.choice(choices)

    def create(self) -> list[Json]:
        version = self.one_of(1, 2, 3, 3)
        return [
            {"action": "assign-uuid", "uuid": "00000000-0000-0000-0000-000000000001"},
            {"action": "upgrade-format-version", "format-version": version},
            {"action": "add-schema", "schema": self.dice.choice(SCHEMAS[:4])},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 0, "fields": self.dice.choice(SPECS[:6])}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": self.order(ORDERS[:4])},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": self.one_of("s3://b/t", "file:/x/")},
            {"action": "set-properties", "updates": {"a": "1"}},
        ]

    def order(self, orders: list[list[Json]]) -> Json:
        fields = self.dice.choice(orders)
        return {"order-id": 1 if fields else 0, "fields": fields}

    def commit(self, metadata: Json) -> list[Json]:
        makers = self.dice.choices(
            [
                self.properties,
                self.schema,
                self.spec,
                self.sort_order,
                self.snapshot,
                self.ref,
                self.removal,
                self.statistics,
                self.key,
                self.version,
            ],
            weights=[1, 2, 2, 2, 4, 3, 2, 2, 1, 1],
            k=self.dice.randint(1, 4),
        )
        self.added = list(metadata["snapshots"])
        self.next_row = metadata.get("next-row-id", 0)
        self.last = metadata.get("last-sequence-number", 0)
        return [update for make in makers for update in make(metadata)]

    def properties(self, metadata: Json) -> list[Json]:
        name, value = self.one_of("a", "b"), self.one_of("1", "")
        return [
            self.one_of(
                {"action": "set-properties", "updates": {name: value}},
                {"action": "set-properties", "updates": {}},
                {"action": "remove-properties", "removals": [name]},
                {"action": "set-location", "location": self.one_of("s3://b/t", "s3://b/u/")},
                {"action": "assign-uuid", "uuid": "00000000-0000-0000-0000-00000000000a"},
            )
        ]

    def schema(self, metadata: Json) -> list[Json]:
        add = {"action": "add-schema", "schema": self.dice.choice(SCHEMAS)}
        choose = {"action": "set-current-schema", "schema-id": self.one_of(-1, -1, 0, 1, 2, 30)}
        return self.one_of([add], [add, choose], [add, choose], [choose])  # type: ignore[no-any-return]

    def spec(self, metadata: Json) -> list[Json]:
        add = {"action": "add-spec", "spec": {"spec-id": 5, "fields": self.dice.choice(SPECS)}}
        choose = {"action": "set-default-spec", "spec-id": self.one_of(-1, -1, 0, 1, 2)}
        return self.one_of([add], [add, choose], [add, choose], [choose])  # type: ignore[no-any-return]

    def sort_order(self, metadata: Json) -> list[Json]:
        add = {"action": "add-sort-order", "sort-order": self.order(ORDERS)}
        choose = {"action": "set-default-sort-order", "sort-order-id": self.one_of(-1, -1, 0, 1)}
        return self.one_of([add], [add, choose], [add, choose], [choose])  # type: ignore[no-any-return]

    def snapshot(self, metadata: Json) -> list[Json]:
        number = next(self.numbers)
        made: Json = {
            "snapshot-id": number,
            "timestamp-ms": metadata["last-updated-ms"] + number,
            "summary": {"operation": "append", "added-records": "5"},
            "manifest-list": f"s3://b/snap-{number}.avro",
            "schema-id": metadata["current-schema-id"],
        }
        if self.added and self.dice.random() < 0.9:
            made["parent-snapshot-id"] = self.added[-1]["snapshot-id"]
        if metadata["format-version"] > 1:
            self.last += self.one_of(1, 1, 1, 1, 1, 1, 0)
            made["sequence-number"] = self.last
        if metadata["format-version"] > 2:
            rows = self.one_of(0, 7)
            made |= {"first-row-id": self.next_row - (self.dice.random() < 0.1), "added-rows": rows}
            self.next_row += rows
        self.added.append(made)
        update = {"action": "add-snapshot", "snapshot": made}
        main = {
            "action": "set-snapshot-ref",
            "ref-name": "main",
            "type": "branch",
            "snapshot-id": number,
        }
        return self.one_of([update], [update, main], [update, main])  # type: ignore[no-any-return]

    def ref(self, metadata: Json) -> list[Json]:
        name = self.one_of("main", "main", "b", "t")
        known = [snapshot["snapshot-id"] for snapshot in self.added]
        update = {
            "action": "set-snapshot-ref",
            "ref-name": name,
            "type": self.one_of("branch", "branch", "tag"),
            "snapshot-id": self.dice.choice([*known, 9999]),
        }
        for field in ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms"):
            if self.dice.random() < 0.15:
                update[field] = self.one_of(1, 5)
        return [self.one_of(update, update, {"action": "remove-snapshot-ref", "ref-name": name})]

    def removal(self, metadata: Json) -> list[Json]:
        known = [snapshot["snapshot-id"] for snapshot in metadata["snapshots"]]
        gone = self.dice.sample([*known, 9999], min(len(known), self.dice.randint(0, 3)))
        return [{"action": "remove-snapshots", "snapshot-ids": [each]} for each in gone]

    def statistics(self, metadata: Json) -> list[Json]:
        number = self.dice.choice([snapshot["snapshot-id"] for snapshot in self.added] or [9999])
        path = f"s3://b/{self.dice.randint(1, 3)}.stats"
        partitions = {"snapshot-id": number, "statistics-path": path, "file-size-in-bytes": 100}
        blob = {
            "type": "t",
            "snapshot-id": number,
            "sequence-number": 1,
            "fields": [1],
            "properties": self.one_of({}, {"ndv": "3"}),
        }
        table = partitions | {"file-footer-size-in-bytes": 9, "blob-metadata": [blob]}
        return [
            self.one_of(
                {"action": "set-statistics", "snapshot-id": number, "statistics": table},
                {"action": "set-partition-statistics", "partition-statistics": partitions},
                {"action": "remove-statistics", "snapshot-id": number},
                {"action": "remove-partition-statistics", "snapshot-id": number},
            )
        ]

    def key(self, metadata: Json) -> list[Json]:
        key: Json = {"key-id": self.one_of("k1", "k2"), "encrypted-key-metadata": "AAAA"}
        if self.dice.random() < 0.5:
            key |= {"encrypted-by-id": "m", "properties": self.one_of({}, {"KEY_TIMESTAMP": "1"})}
        add = {"action": "add-encryption-key", "encryption-key": key}
        remove = {"action": "remove-encryption-key", "key-id": key["key-id"]}
        return [self.one_of(add, add, remove)]

    def version(self, metadata: Json) -> list[Json]:
        return [
            {"action": "upgrade-format-version", "format-version": self.one_of(1, 2, 3)},
        ]


def attempt(metadata: Json | None, updates: list[Json], now_ms: int) -> tuple[Json | None, str]:
    """Return what we make of updates, or None and why we refuse them."""
    try:
        return apply_updates(metadata, updates, now_ms=now_ms), ""
    except (ValueError, CommitFailedException) as error:
        return None, str(error)


def unordered(metadata: Json) -> Json:
    """Without the order that Java takes from its hash maps."""
    by_snapshot = {
        name: sorted(metadata[name], key=lambda entry: entry["snapshot-id"])
        for name in ("statistics", "partition-statistics")
    }
    return metadata | by_snapshot


@pytest.mark.parametrize("seed", range(60))
def test_java_makes_the_same_of_random_commits(java: Java, seed: int) -> None:
    writer = Writer(seed)
    metadata: Json | None = None
    outcomes: set[bool] = set()
    for _ in range(25):
        updates = writer.create() if metadata is None else writer.commit(metadata)
        theirs = applied(java, metadata, updates)
        now_ms = 0 if isinstance(theirs, str) else theirs["last-updated-ms"]
        if not now_ms and metadata is not None:
            now_ms = metadata["last-updated-ms"]
        made, refusal = attempt(metadata, updates, now_ms)
        outcomes.add(made is not None)
        if made is None:
            assert isinstance(theirs, str), f"ours alone: {refusal}\n{updates}\n{metadata}"
            continue
        if isinstance(theirs, str) and "arraySize" in theirs:
            continue  # Java stumbles over the removal of more snapshots than there are
        assert not isinstance(theirs, str), f"Java's alone: {theirs}\n{updates}\n{metadata}"
        assert unordered(made) == unordered(theirs), f"{updates}\n{metadata}"
        text = print_metadata(made).decode()
        assert java.call(f"{JAVA}.reprint", metadata=text) == text
        metadata = made
    assert outcomes == {True, False}


def requirements(dice: random.Random) -> Json:
    number = dice.randint(0, 3)
    return dice.choice(
        [
            {"type": "assert-create"},
            {"type": "assert-table-uuid", "uuid": f"00000000-0000-0000-0000-00000000000{number}"},
            {"type": "assert-current-schema-id", "current-schema-id": number},
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": number},
            {
                "type": "assert-last-assigned-partition-id",
                "last-assigned-partition-id": 999 + number,
            },
            {"type": "assert-default-spec-id", "default-spec-id": number},
            {"type": "assert-default-sort-order-id", "default-sort-order-id": number},
            {"type": "assert-ref-snapshot-id", "ref": dice.choice("bt"), "snapshot-id": number},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": number or None},
        ]
    )


def test_java_finds_the_same_requirements_met(java: Java) -> None:
    dice = random.Random(0)
    outcomes = []
    for seed in range(20):
        writer = Writer(seed)
        metadata, _ = attempt(None, writer.create(), 1_800_000_000_000)
        if metadata is None:
            continue
        for _ in range(4):
            changed, _ = attempt(metadata, writer.commit(metadata), 1_800_000_000_000)
            metadata = changed or metadata
        for _ in range(30):
            one = requirements(dice)
            met = java.call(
                f"{JAVA}.meets",
                metadata=print_metadata(metadata).decode(),
                requirements=[json.dumps(one)],
            )
            try:
                check_requirements(metadata, [one])
                outcomes.append(True)
            except CommitFailedException:
                outcomes.append(False)
            assert outcomes[-1] == met, (one, metadata)
    assert min(outcomes.count(True), outcomes.count(False)) > 100


def test_java_prints_every_text_and_number_so(java: Java) -> None:
    writer = Writer(0)
    metadata = apply_updates(None, writer.create()[:1] + Writer(4).create()[1:], now_ms=1)
    text = "".join(map(chr, range(0x3000))) + "\U0001f511\ue000\ufffd"
    metadata["properties"] = {text[:40]: text, "slash": "a/b\\u001f"}
    fields = [
        column(100 + number, kind, **{"initial-default": default, "write-default": default})
        for number, (kind, default) in enumerate(
            [
                ("double", 1e10),
                ("double", 5e-324),
                ("double", 0.1),
                ("double", -0.0),
                ("double", 1),
                ("double", 123456789.125),
                ("float", 1.1),
                ("float", 16777216),
                ("float", 1e-3),
                ("float", 1e-4),
                ("boolean", False),
                ("decimal(9,2)", "1.20"),
                ("string", "x\u2028"),
                ("binary", "00FF"),
                ("date", "2020-01-31"),
                ("timestamptz", "2020-01-31T01:02:03.000004+00:00"),
                ("variant", None),
                ("unknown", None),
                ("geometry", None),
                ("geometry( srid:5070 )", None),
                ("geography", None),
                ("geography(EPSG:4326)", None),
                ("geography(EPSG:4326,karney)", None),
            ]
        )
    ]
    [schema] = metadata["schemas"]
    metadata["schemas"] = [{**schema, "fields": [*schema["fields"], *fields]}]
    printed = print_metadata(metadata | {"format-version": 3, "next-row-id": 0}).decode()
    assert java.call(f"{JAVA}.reprint", metadata=printed) == printed


STATEMENTS = """
INSERT INTO {t} VALUES (1, 'a', timestamp '2024-01-01 00:00:00')
ALTER TABLE {t} ADD COLUMN n struct<x: double, y: map<string, array<decimal(9, 2)>>>
ALTER TABLE {t} ADD PARTITION FIELD days(at)
INSERT INTO {t} VALUES (2, 'b', timestamp '2024-01-02 00:00:00', NULL)
ALTER TABLE {t} REPLACE PARTITION FIELD days(at) WITH bucket(8, id) AS id_bucket
ALTER TABLE {t} WRITE ORDERED BY id DESC NULLS LAST, s
ALTER TABLE {t} CREATE TAG first RETAIN 10 DAYS
ALTER TABLE {t} CREATE BRANCH audit WITH SNAPSHOT RETENTION 3 SNAPSHOTS
INSERT INTO {t}.branch_audit VALUES (3, 'c', timestamp '2024-01-03 00:00:00', NULL)
CALL enc.system.fast_forward('{n}', 'main', 'audit')
ALTER TABLE {t} ALTER COLUMN s COMMENT 'text'
ALTER TABLE {t} SET IDENTIFIER FIELDS id
DELETE FROM {t} WHERE id = 1
ALTER TABLE {t} DROP PARTITION FIELD id_bucket
ALTER TABLE {t} SET TBLPROPERTIES ('x' = 'y')
ALTER TABLE {t} UNSET TBLPROPERTIES ('x')
ALTER TABLE {t} DROP TAG first
CALL enc.system.expire_snapshots(table => '{n}', older_than => timestamp '2200-01-01 00:00:00')
ALTER TABLE {t} DROP BRANCH audit
"""
# Of updates that say what to add, choose, take away: the fields of the metadata.
LISTS = {
    "schemas": ("add-schema", "schema", "schema-id", "remove-schemas", "schema-ids"),
    "partition-specs": ("add-spec", "spec", "spec-id", "remove-partition-specs", "spec-ids"),
    "sort-orders": ("add-sort-order", "sort-order", "order-id", None, None),
}
CHOICES = {
    "current-schema-id": ("set-current-schema", "schema-id"),
    "default-spec-id": ("set-default-spec", "spec-id"),
    "default-sort-order-id": ("set-default-sort-order", "sort-order-id"),
}


def difference(old: Json, new: Json) -> list[Json]:
    """Return updates that make one metadata into another."""
    updates: list[Json] = []
    for name, (add, what, key, _, _) in LISTS.items():
        # Partition specs need their schema first.
        known = {entry[key] for entry in old[name]}
        updates += [{"action": add, what: e} for e in new[name] if e[key] not in known]
        for choice, (choose, chosen) in CHOICES.items():
            if choose.removeprefix("set-current-").removeprefix("set-default-") == what:
                updates.append({"action": choose, chosen: new[choice]})
    for name, (_, _, key, remove, listed) in LISTS.items():
        gone = {entry[key] for entry in old[name]} - {entry[key] for entry in new[name]}
        if gone:
            updates.append({"action": remove, listed: sorted(gone)})
    gone_properties = sorted(set(old["properties"]) - set(new["properties"]))
    updates.append({"action": "set-properties", "updates": new["properties"]})
    updates.append({"action": "remove-properties", "removals": gone_properties})
    updates += [
        {"action": "add-encryption-key", "encryption-key": key}
        for key in new.get("encryption-keys", [])
    ]
    before = {snapshot["snapshot-id"] for snapshot in old["snapshots"]}
    after = {snapshot["snapshot-id"] for snapshot in new["snapshots"]}
    updates += [
        {"action": "add-snapshot", "snapshot": snapshot}
        for snapshot in new["snapshots"]
        if snapshot["snapshot-id"] not in before
    ]
    updates += [
        {"action": "set-snapshot-ref", "ref-name": name, **ref} for name, ref in new["refs"].items()
    ]
    updates += [
        {"action": "remove-snapshot-ref", "ref-name": name}
        for name in old["refs"]
        if name not in new["refs"]
    ]
    updates.append({"action": "remove-snapshots", "snapshot-ids": sorted(before - after)})
    return updates


def test_each_of_spark_s_commits_is_repeated_to_the_byte(spark: SparkTables) -> None:
    table, name = "enc.db.write_metadata", "db.write_metadata"
    columns = "id BIGINT NOT NULL, s STRING, at TIMESTAMP"
    spark.create(table, columns, spark.folder / "write_metadata")
    before = spark.metadata_file(table)
    places = 0
    for statement in filter(None, STATEMENTS.splitlines()):
        spark.sql(statement.format(t=table, n=name))
        after = spark.metadata_file(table)
        data = after.read_bytes()
        old, new = json.loads(before.read_bytes()), json.loads(data)
        assert print_metadata(new) == data
        assert java_hash(new) == spark.parameters(table)["metadata_hash"]
        if len(new["metadata-log"]) == len(old["metadata-log"]) + 1:
            made = apply_updates(old, difference(old, new), now_ms=new["last-updated-ms"])
            place = new["metadata-log"][-1]["metadata-file"]
            made, _ = with_metadata_log(made, place, old["last-updated-ms"])
            # Java's hash maps have an order of their own.
            for unordered_map in ("properties", "refs"):
                made[unordered_map] = {k: made[unordered_map][k] for k in new[unordered_map]}
            assert print_metadata(made) == data, statement
            places += 1
        before = after
    assert places > 15
