"""Summaries of snapshots: those of Java's own snapshots come out again, word for word."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iceberg_tables import READABLE, TABLES, memory_kms, metadata_file
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import (
    Operation,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType

import ags1
from ags1 import KeyMetadata
from ags1.iceberg.read.records import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    POSITION_DELETES,
    ContentFile,
)
from ags1.iceberg.write.summary import ENVIRONMENT, SummaryBuilder
from ags1.keys.manager import EncryptionManager

WITH_SNAPSHOTS = ["avro_part", *(name for name in READABLE if name != "empty")]
# What Spark says of itself, and ends a summary with.
SPARK_S = ["engine-version", "app-id", "engine-name", "iceberg-version", "app-name"]
MANIFESTS = ["manifests-created", "manifests-kept", "manifests-replaced"]

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "p", StringType(), required=False),
    NestedField(3, "d", DateType(), required=False),
)
SPECS = {
    0: PartitionSpec(spec_id=0),
    1: PartitionSpec(
        PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="p x"),
        spec_id=1,
    ),
    2: PartitionSpec(
        PartitionField(source_id=3, field_id=1001, transform=DayTransform(), name="d_day"),
        spec_id=2,
    ),
}


# -- Java's


def java_snapshots() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for name in WITH_SNAPSHOTS:
        metadata = json.loads(metadata_file(name).read_text())
        for snapshot in metadata["snapshots"]:
            yield name, metadata, snapshot


def changes(
    name: str, metadata: dict[str, Any], snapshot: dict[str, Any]
) -> Iterator[tuple[int, ContentFile]]:
    """The entries that a snapshot's own manifests have of it: status and file."""
    manager = EncryptionManager.from_metadata(metadata, memory_kms(), table_key_id="keyA")

    def records(location: str, km: KeyMetadata) -> list[dict[str, Any]]:
        sealed = (TABLES / name / "metadata" / location.rsplit("/", 1)[1]).read_bytes()
        return list(fastavro.reader(io.BytesIO(ags1.decrypt(sealed, km))))

    key = manager.manifest_list_key(snapshot["key-id"])
    for manifest in records(snapshot["manifest-list"], key):
        key = KeyMetadata.from_bytes(manifest["key_metadata"])
        for entry in records(manifest["manifest_path"], key):
            if entry["snapshot_id"] == snapshot["snapshot-id"]:
                file = entry["data_file"]
                names = set(ContentFile.names)
                values = {k: v for k, v in file.items() if k in names and k != "partition"}
                partition = tuple(file["partition"].values())
                spec_id = manifest["partition_spec_id"]
                yield (
                    entry["status"],
                    ContentFile.of(**values, partition=partition, spec_id=spec_id),
                )


@pytest.mark.parametrize(
    ("name", "metadata", "snapshot"),
    list(java_snapshots()),
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_java_s_summary_comes_out_again(
    name: str, metadata: dict[str, Any], snapshot: dict[str, Any]
) -> None:
    specs = {s["spec-id"]: PartitionSpec.model_validate(s) for s in metadata["partition-specs"]}
    builder = SummaryBuilder(specs, Schema.model_validate(metadata["schemas"][0]))
    for status, file in changes(name, metadata, snapshot):
        if status == ADDED:
            builder.add(file)
        elif status == DELETED:
            builder.remove(file)
    theirs = snapshot["summary"]
    created, kept, replaced = (int(theirs[key]) for key in MANIFESTS)
    builder.manifests(created=created, kept=kept, replaced=replaced)
    parents = {s["snapshot-id"]: s["summary"] for s in metadata["snapshots"]}
    summary = builder.build(
        theirs["operation"],
        parents.get(snapshot.get("parent-snapshot-id")),
        {"spark.app.id": theirs["spark.app.id"]},
        environment={key: theirs[key] for key in SPARK_S},
    )
    assert list(summary.items()) == list(theirs.items())


# -- by itself


def file_of(
    content: int = DATA, spec_id: int = 0, partition: tuple[Any, ...] = (), **more: Any
) -> ContentFile:
    values = {"file_path": "f", "file_format": "PARQUET", "record_count": 10} | more
    size = values.pop("file_size_in_bytes", 100)
    return ContentFile.of(
        content=content, partition=partition, file_size_in_bytes=size, spec_id=spec_id, **values
    )


def vector(rows: int, size: int) -> ContentFile:
    return file_of(
        POSITION_DELETES,
        file_format="PUFFIN",
        record_count=rows,
        file_size_in_bytes=10_000,
        referenced_data_file="f",
        content_offset=4,
        content_size_in_bytes=size,
    )


def test_deletion_vectors_count_by_their_own_size() -> None:
    builder = SummaryBuilder(SPECS, SCHEMA)
    builder.add(vector(3, 40))
    builder.add(vector(4, 50))
    builder.remove(vector(2, 30))
    assert builder.build("delete", {}, environment={}) == {
        "operation": "delete",
        "added-delete-files": "2",
        "removed-delete-files": "1",
        "added-dvs": "2",
        "removed-dvs": "1",
        "added-files-size": "90",
        "removed-files-size": "30",
        "added-position-deletes": "7",
        "removed-position-deletes": "2",
        "changed-partition-count": "1",
    }


FILES = st.builds(
    file_of,
    content=st.sampled_from([DATA, POSITION_DELETES, EQUALITY_DELETES]),
    spec_id=st.just(1),
    partition=st.tuples(st.sampled_from([None, "a", "b/c=ä", ""])),
    record_count=st.integers(1, 1000),
    file_size_in_bytes=st.integers(1, 1000),
)


@pytest.mark.parametrize("examples", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_pyiceberg_counts_the_same(examples: int) -> None:
    @settings(max_examples=examples)
    @given(
        added=st.lists(FILES, max_size=6),
        removed=st.lists(FILES, max_size=6),
        before=st.none() | st.integers(0, 5000),
    )
    def check(added: list[ContentFile], removed: list[ContentFile], before: int | None) -> None:
        ours = SummaryBuilder(SPECS, SCHEMA)
        theirs = SnapshotSummaryCollector()
        for file in added:
            ours.add(file)
            theirs.add_file(as_pyiceberg_s(file), SCHEMA, SPECS[1])
        for file in removed:
            ours.remove(file)
            theirs.remove_file(as_pyiceberg_s(file), SCHEMA, SPECS[1])
        previous = (
            None if before is None else {"total-records": str(before), "total-data-files": "x9"}
        )
        summary = ours.build("overwrite", previous, environment={})
        without_bad = None if previous is None else {"total-records": str(before)}
        expected = update_snapshot_summaries(
            Summary(Operation.OVERWRITE, **theirs.build()), without_bad
        )
        wanted = {"operation": "overwrite", **expected.additional_properties}
        # Java counts none too.
        wanted.setdefault("changed-partition-count", "0")
        assert summary == wanted

    check()


def as_pyiceberg_s(file: ContentFile) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent(file.content),
        file_path=file.file_path,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
    )


def test_partitions_are_counted_and_not_named() -> None:
    builder = SummaryBuilder(SPECS, SCHEMA)
    builder.add(file_of(spec_id=1, partition=("a/b",)))
    builder.remove(file_of(spec_id=2, partition=(1,), record_count=3))
    # Beyond Python's dates.
    for day in (10_000_000, -800_000, 2**31 - 1):
        builder.add(file_of(spec_id=2, partition=(day,)))
    summary = builder.build("overwrite", {}, environment={})
    assert summary["changed-partition-count"] == "5"
    assert [name for name in summary if "partition" in name] == ["changed-partition-count"]


def test_an_unpartitioned_table_has_one_partition() -> None:
    builder = SummaryBuilder(SPECS, SCHEMA)
    builder.add(file_of())
    assert builder.build("append", {}, environment={})["changed-partition-count"] == "1"


def test_totals_begin_at_0_and_are_lost_where_the_parent_has_none() -> None:
    builder = SummaryBuilder(SPECS, SCHEMA)
    builder.add(file_of())

    def totals(previous: dict[str, str] | None) -> dict[str, str]:
        built = builder.build("append", previous)
        return {name: value for name, value in built.items() if name.startswith("total-")}

    assert totals(None) == {
        "total-records": "10",
        "total-files-size": "100",
        "total-data-files": "1",
        "total-delete-files": "0",
        "total-position-deletes": "0",
        "total-equality-deletes": "0",
    }
    assert totals({}) == {}
    assert totals({"total-records": "5", "total-data-files": "many", "total-files-size": "-1"}) == {
        "total-records": "15"
    }
    builder.remove(file_of(record_count=100))
    assert totals({"total-records": "5"}) == {}
    assert totals({"total-records": "90"}) == {"total-records": "0"}


def test_a_snapshot_of_no_change_has_a_summary() -> None:
    assert SummaryBuilder(SPECS, SCHEMA).build("append", {}) == {
        "operation": "append",
        "changed-partition-count": "0",
        **ENVIRONMENT,
    }


def test_the_caller_s_properties_stand_after_the_operation() -> None:
    summary = SummaryBuilder(SPECS, SCHEMA).build("append", {}, {"b": "1", "engine-name": "mine"})
    assert list(summary)[:3] == ["operation", "b", "engine-name"]
    assert (summary["engine-name"], summary["engine-version"]) == ("mine", ags1.__version__)


@pytest.mark.parametrize(
    "name",
    [
        "operation",
        "added-records",
        "added-dvs",
        "total-records",
        "removed-files-size",
        "manifests-kept",
        "changed-partition-count",
        "partitions.p=1",
    ],
)
def test_what_is_counted_is_not_for_the_caller_to_say(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        SummaryBuilder(SPECS, SCHEMA).build("append", None, {name: "1"})


def test_a_replacement_that_adds_rows_is_refused() -> None:
    builder = SummaryBuilder(SPECS, SCHEMA)
    builder.add(file_of(record_count=10))
    builder.remove(file_of(record_count=9))
    with pytest.raises(ValueError, match="cannot add rows: 10 in place of 9"):
        builder.build("replace", None)
    builder.remove(file_of(record_count=5))
    assert builder.build("replace", None)["added-records"] == "10"


def test_a_spec_that_the_table_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="spec 9"):
        SummaryBuilder(SPECS, SCHEMA).add(file_of(spec_id=9))
