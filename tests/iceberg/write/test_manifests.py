"""Manifests and manifest lists as they are written: Java's own written again are the same, and
fastavro and the reader find in them what was put in."""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import io
import itertools
import json
import math
import random
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from data_files import all_fields
from hypothesis import given, settings
from hypothesis import strategies as st
from iceberg_tables import READABLE, TABLES, memory_kms, metadata_file
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import PartitionFieldSummary, construct_partition_summaries
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

import ags1
from ags1 import KeyMetadata, NotEncryptedError
from ags1.columns.avro.container import AvroCodec, Container, NewContainer
from ags1.iceberg.pyiceberg.records import read_avro_records
from ags1.iceberg.read.records import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    POSITION_DELETES,
    ContentFile,
    ManifestEntry,
    read_entries,
)
from ags1.iceberg.read.snapshots import MANIFEST, EncryptedManifest
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.storage.table_files import TableFiles
from ags1.iceberg.write.manifests import (
    DATA_MANIFEST,
    DELETE_MANIFEST,
    NewManifests,
    NewSnapshot,
    schema_of_spec,
    write_manifest,
    write_manifest_list,
    write_manifests,
)
from ags1.keys.manager import EncryptionManager

WITH_SNAPSHOTS = ["avro_part", *(name for name in READABLE if name != "empty")]
SNAPSHOT = 42


@pytest.fixture
def manager() -> EncryptionManager:
    return EncryptionManager(memory_kms(), "keyA")


@pytest.fixture
def output() -> TableOutput:
    return TableOutput(PyArrowFileIO())


# -- Java's manifests


@dataclasses.dataclass
class JavaSnapshot:
    """A snapshot of a fixture table, its manifest list parsed by fastavro."""

    metadata: dict[str, Any]
    snapshot: dict[str, Any]
    header: dict[str, str]
    records: list[dict[str, Any]]
    folder: Path

    def manifest(self, record: dict[str, Any]) -> tuple[dict[str, str], list[dict[str, Any]]]:
        path = self.folder / record["manifest_path"].rsplit("/", 1)[1]
        return parsed(path.read_bytes(), KeyMetadata.from_bytes(record["key_metadata"]))


def parsed(sealed: bytes, km: KeyMetadata) -> tuple[dict[str, str], list[dict[str, Any]]]:
    reader = fastavro.reader(io.BytesIO(ags1.decrypt(sealed, km)))
    return dict(reader.metadata), list(reader)


def java_snapshots() -> Iterator[JavaSnapshot]:
    for name in WITH_SNAPSHOTS:
        metadata = json.loads(metadata_file(name).read_text())
        manager = EncryptionManager.from_metadata(metadata, memory_kms(), table_key_id="keyA")
        for snapshot in metadata["snapshots"]:
            path = TABLES / name / "metadata" / snapshot["manifest-list"].rsplit("/", 1)[1]
            header, records = parsed(
                path.read_bytes(), manager.manifest_list_key(snapshot["key-id"])
            )
            yield JavaSnapshot(metadata, snapshot, header, records, path.parent)


def mapped(pairs: list[dict[str, Any]] | None) -> dict[int, Any] | None:
    return None if pairs is None else {pair["key"]: pair["value"] for pair in pairs}


def entry_of(record: dict[str, Any], spec_id: int) -> ManifestEntry:
    """An entry as it stands in a manifest, without what it inherits."""
    file = dict(record["data_file"])
    maps = "column_sizes value_counts null_value_counts nan_value_counts lower_bounds upper_bounds"
    for name in maps.split():
        file[name] = mapped(file[name])
    file["partition"] = tuple(file["partition"].values())
    for name in ("split_offsets", "equality_ids"):
        file[name] = None if file[name] is None else tuple(file[name])
    return ManifestEntry(
        record["status"],
        record["snapshot_id"],
        record["sequence_number"],
        record["file_sequence_number"],
        ContentFile.of(**file, spec_id=spec_id),
    )


def record_of(record: dict[str, Any]) -> EncryptedManifest:
    assert record["partitions"] is not None
    partitions = [PartitionFieldSummary.from_args(**s) for s in record["partitions"]]
    return EncryptedManifest.of(**record | {"partitions": partitions})


def without_java_s_own(header: dict[str, str]) -> dict[str, str]:
    """A header but for the schema that Java writes a second time, in Iceberg's JSON."""
    return {name: value for name, value in header.items() if name != "iceberg.schema"}


JAVA_SNAPSHOTS = list(java_snapshots())
JAVA_MANIFESTS = list(
    {
        record["manifest_path"]: (snapshot, record)
        for snapshot in JAVA_SNAPSHOTS
        for record in snapshot.records
    }.values()
)


def test_the_fixtures_have_manifests_of_every_kind() -> None:
    statuses = set()
    for snapshot, record in JAVA_MANIFESTS:
        statuses |= {(record["content"], e["status"]) for e in snapshot.manifest(record)[1]}
    assert statuses >= {(0, ADDED), (1, ADDED), (1, EXISTING), (1, DELETED)}


def test_a_manifest_that_is_cut_or_changed_is_parsed_or_refused() -> None:
    chosen = random.Random(7)
    java, record = JAVA_MANIFESTS[-1]
    path = java.folder / record["manifest_path"].rsplit("/", 1)[1]
    data = ags1.decrypt(path.read_bytes(), KeyMetadata.from_bytes(record["key_metadata"]))
    assert read_avro_records(data, MANIFEST)[1]
    parsed_sizes = []
    for size in [*range(0, len(data), 50), *range(len(data) - 400, len(data))]:
        with suppress(EOFError, ValueError, KeyError):
            assert read_avro_records(data[:size], MANIFEST)[1] == []
            parsed_sizes.append(size)
    assert len(parsed_sizes) <= 1  # where the header ends
    for _ in range(2000):
        at = chosen.randrange(len(data) - 400, len(data))
        changed = data[:at] + chosen.randbytes(chosen.randint(1, 9)) + data[at + 1 :]
        with suppress(Exception):  # but no end of the process
            read_avro_records(changed, MANIFEST)


@pytest.mark.parametrize(("java", "record"), JAVA_MANIFESTS, ids=lambda x: "")
def test_a_manifest_of_java_s_written_again_is_the_same(
    java: JavaSnapshot,
    record: dict[str, Any],
    tmp_path: Path,
    output: TableOutput,
    manager: EncryptionManager,
) -> None:
    header, records = java.manifest(record)
    spec_id = record["partition_spec_id"]
    schema_json = java.metadata["schemas"][0]
    new = NewManifests(
        output=output,
        spec=PartitionSpec.model_validate(java.metadata["partition-specs"][spec_id]),
        schema=Schema.model_validate(schema_json),
        schema_json=schema_json,
        snapshot_id=record["added_snapshot_id"],
        content=record["content"],
        manager=manager,
    )
    entries = [entry_of(entry, spec_id) for entry in records]
    written = write_manifest(new, f"file:{tmp_path}/m0.avro", entries)

    sealed = (tmp_path / "m0.avro").read_bytes()
    own_header, own_records = parsed(sealed, KeyMetadata.from_bytes(written.key_bytes))
    assert own_records == records
    # The text itself: names, order, defaults, documentation, ids and logical types.
    assert own_header == without_java_s_own(header)

    assert written.manifest_length == len(sealed)
    inherited = written.min_sequence_number is None
    expected = written.replace(
        manifest_path=record["manifest_path"],
        manifest_length=record["manifest_length"],
        key_metadata=record["key_metadata"],
        sequence_number=record["sequence_number"],
        min_sequence_number=record["sequence_number"] if inherited else written.min_sequence_number,
        first_row_id=record["first_row_id"],
    )
    assert all_fields(record_of(record)) == all_fields(expected)


@pytest.mark.parametrize(
    "java", JAVA_SNAPSHOTS, ids=lambda java: str(java.snapshot["snapshot-id"])[:6]
)
def test_a_manifest_list_of_java_s_written_again_is_the_same(
    java: JavaSnapshot, tmp_path: Path, output: TableOutput, manager: EncryptionManager
) -> None:
    snapshot = java.snapshot
    km, next_row_id = write_manifest_list(
        output,
        f"file:{tmp_path}/snap.avro",
        NewSnapshot(
            snapshot_id=snapshot["snapshot-id"],
            parent_snapshot_id=snapshot.get("parent-snapshot-id"),
            sequence_number=snapshot["sequence-number"],
            first_row_id=snapshot["first-row-id"],
        ),
        [as_it_was_written(record, snapshot) for record in java.records],
        manager,
    )
    sealed = (tmp_path / "snap.avro").read_bytes()
    assert km.file_length == len(sealed)
    header, records = parsed(sealed, km)
    assert records == java.records
    assert header == without_java_s_own(java.header)
    assert next_row_id - snapshot["first-row-id"] == snapshot["added-rows"]


def as_it_was_written(record: dict[str, Any], snapshot: dict[str, Any]) -> EncryptedManifest:
    """A manifest as its writer knew it, before its snapshot's commit gave it numbers."""
    manifest = record_of(record)
    if manifest.added_snapshot_id != snapshot["snapshot-id"]:
        return manifest
    inherited = manifest.min_sequence_number == snapshot["sequence-number"]
    return manifest.replace(
        sequence_number=None,
        min_sequence_number=None if inherited else manifest.min_sequence_number,
        first_row_id=None,
    )


# -- partitions

D = Decimal
UUIDS = [uuid.UUID(int=1 << 127 | 5), uuid.UUID(int=3), None]
UTC = datetime.timezone.utc
# Source type, transform, values as PyIceberg has them, and as fastavro reads them.
PARTITIONS: list[tuple[IcebergType, str, list[Any], list[Any] | None]] = [
    (BooleanType(), "identity", [True, None, False], None),
    (IntegerType(), "identity", [-(2**31), 2**31 - 1, None, 0], None),
    (LongType(), "identity", [2**63 - 1, -(2**63), None, -1, 63, 64, -64, -65], None),
    (FloatType(), "identity", [1.5, -0.0, None, 0.0, -math.inf], None),
    (DoubleType(), "identity", [0.0, -0.0, 1e300, None], None),
    (StringType(), "identity", ["b", "", "\U0001f600", "\uffff", None, "ä"], None),
    (BinaryType(), "identity", [b"\x80", b"", b"\x7f\x00", None], None),
    (FixedType(3), "identity", [b"\xff\x00\x01", b"abc", None], None),
    (UUIDType(), "identity", UUIDS, [u and u.bytes for u in UUIDS]),
    (DecimalType(9, 2), "identity", [D("-1.28"), D("1.27"), None, D("0.00")], None),
    (
        DecimalType(38, 10),
        "identity",
        [D("-" + "9" * 28 + "." + "9" * 10), D("1.0000000000")],
        None,
    ),
    (DecimalType(3, 3), "identity", [D("0.128"), D("-0.128"), D("0.127"), None], None),
    (
        DateType(),
        "identity",
        [19000, -1, None],
        [datetime.date(2022, 1, 8), datetime.date(1969, 12, 31), None],
    ),
    (TimeType(), "identity", [0, 86_399_999_999], [datetime.time(0), datetime.time.max]),
    (
        TimestampType(),
        "identity",
        [1_000_001, -1],
        # fastavro knows no adjust-to-utc.
        [
            datetime.datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC),
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        ],
    ),
    (
        TimestamptzType(),
        "identity",
        [1_000_001, None],
        [datetime.datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC), None],
    ),
    (TimestampNanoType(), "identity", [1_000_000_001, -1], None),
    (TimestamptzNanoType(), "identity", [2**62, None], None),
    (StringType(), "bucket[16]", [15, 0, None], None),
    (UUIDType(), "bucket[4]", [3, None], None),
    (DecimalType(9, 2), "bucket[4]", [3, 1], None),
    (StringType(), "truncate[2]", ["ab", "a\u0301"], None),
    (BinaryType(), "truncate[2]", [b"ab", b""], None),
    (LongType(), "truncate[10]", [-10, 20], None),
    (DecimalType(9, 2), "truncate[10]", [D("-1.30"), D("1.20")], None),
    (TimestampType(), "year", [-1, 54], None),
    (TimestamptzNanoType(), "month", [-1, 600, None], None),
    (DateType(), "day", [0, 1], [datetime.date(1970, 1, 1), datetime.date(1970, 1, 2)]),
    (TimestampNanoType(), "hour", [-1, 400_000], None),
    (StringType(), "void", [None, None], None),
]


def spec_of(*fields: tuple[IcebergType, str], names: Sequence[str] = ()) -> tuple[Any, Schema]:
    columns = [
        NestedField(number, f"c{number}", source, required=number % 2 == 0)
        for number, (source, _) in enumerate(fields, 1)
    ]
    partitions = [
        PartitionField(
            source_id=number,
            field_id=999 + number,
            transform=parse_transform(transform),
            name=names[number - 1] if names else f"p{number}",
        )
        for number, (_, transform) in enumerate(fields, 1)
    ]
    return PartitionSpec(*partitions, spec_id=7), Schema(*columns, schema_id=3)


def file_of(manager: EncryptionManager, *partition: Any, **more: Any) -> ContentFile:
    number = more.pop("number", 0)
    values = {
        "content": DATA,
        "file_path": f"file:/t/data/{number}.parquet",
        "file_format": "PARQUET",
        "partition": partition,
        "record_count": 10,
        "file_size_in_bytes": 100,
        "key_metadata": manager.new_file_key().with_file_length(100).to_bytes(),
        "spec_id": 7,
    }
    return ContentFile.of(**values | more)


def added(file: ContentFile, **more: Any) -> ManifestEntry:
    return ManifestEntry(ADDED, None, None, None, file).replace(**more)


Write = Callable[..., EncryptedManifest]


@pytest.fixture
def write(tmp_path: Path, output: TableOutput, manager: EncryptionManager) -> Write:
    """Write a manifest of the spec that ``spec_of`` returned."""
    numbers = itertools.count()

    def write(
        entries: Sequence[ManifestEntry], spec: PartitionSpec, schema: Schema, **more: Any
    ) -> EncryptedManifest:
        arguments = {
            "output": output,
            "spec": spec,
            "schema": schema,
            "schema_json": json.loads(schema.model_dump_json()),
            "snapshot_id": SNAPSHOT,
            "content": DATA_MANIFEST,
            "manager": manager,
        }
        location = f"file:{tmp_path}/m{next(numbers)}.avro"
        return write_manifest(NewManifests(**arguments | more), location, entries)

    return write


def read_back(record: EncryptedManifest) -> tuple[dict[str, str], list[dict[str, Any]]]:
    assert record.key_bytes is not None
    sealed = Path(record.manifest_path.removeprefix("file:")).read_bytes()
    return parsed(sealed, KeyMetadata.from_bytes(record.key_bytes))


def entries_of(record: EncryptedManifest, manager: EncryptionManager) -> list[ManifestEntry]:
    """The entries as the reader of tables has them."""
    committed = record.replace(
        sequence_number=9, min_sequence_number=record.min_sequence_number or 9
    )
    files = TableFiles(PyArrowFileIO(), manager)
    return list(read_entries(committed, files, discard_deleted=False))


@pytest.mark.parametrize(
    ("source", "transform", "values", "decoded"),
    PARTITIONS,
    ids=[f"{source}-{transform}" for source, transform, _, _ in PARTITIONS],
)
def test_a_partition_s_values_come_back(
    source: IcebergType,
    transform: str,
    values: list[Any],
    decoded: list[Any] | None,
    write: Write,
    manager: EncryptionManager,
) -> None:
    spec, schema = spec_of((source, transform))
    files = [file_of(manager, value, number=n) for n, value in enumerate(values)]
    record = write([added(file) for file in files], spec, schema)

    _, records = read_back(record)
    found = [entry["data_file"]["partition"]["p1"] for entry in records]
    assert repr(found) == repr(values if decoded is None else decoded)
    assert repr([e.file.partition_values for e in entries_of(record, manager)]) == repr(
        [(value,) for value in values]
    )
    theirs = construct_partition_summaries(spec, schema, [Record(value) for value in values])
    assert record.partitions is not None
    [ours] = record.partitions
    assert (ours.contains_null, ours.contains_nan) == (
        theirs[0].contains_null,
        theirs[0].contains_nan,
    )
    if source not in (FloatType(), DoubleType()):
        assert (ours.lower_bound, ours.upper_bound) == (
            theirs[0].lower_bound,
            theirs[0].upper_bound,
        )


@pytest.mark.parametrize(("source", "code"), [(FloatType(), "<f"), (DoubleType(), "<d")])
def test_summaries_of_floats_tell_the_zeros_apart_and_leave_nan_out(
    source: IcebergType, code: str, write: Write, manager: EncryptionManager
) -> None:
    spec, schema = spec_of((source, "identity"))
    for values in itertools.permutations([0.0, -0.0, math.nan]):
        record = write([added(file_of(manager, value)) for value in values], spec, schema)
        assert record.partitions == [
            PartitionFieldSummary(False, True, struct.pack(code, -0.0), struct.pack(code, 0.0))
        ]
        _, entries = read_back(record)
        found = [entry["data_file"]["partition"]["p1"] for entry in entries]
        assert repr(found) == repr(list(values))


def test_a_column_of_nulls_and_nans_has_no_bounds(write: Write, manager: EncryptionManager) -> None:
    spec, schema = spec_of((DoubleType(), "identity"))
    files = [file_of(manager, None), file_of(manager, math.nan)]
    assert write([added(file) for file in files], spec, schema).partitions == [
        PartitionFieldSummary(True, True, None, None)
    ]


def test_a_uuid_may_come_as_its_bytes(write: Write, manager: EncryptionManager) -> None:
    spec, schema = spec_of((UUIDType(), "identity"))
    record = write([added(file_of(manager, UUIDS[0].bytes))], spec, schema)
    assert entries_of(record, manager)[0].file.partition_values == (UUIDS[0],)


def test_a_decimal_of_another_exponent_is_the_same_number(
    write: Write, manager: EncryptionManager
) -> None:
    spec, schema = spec_of((DecimalType(9, 2), "identity"))
    entries = [added(file_of(manager, value)) for value in (D("1E+2"), D("1.500"), D("-7"))]
    found = [e.file.partition[0] for e in entries_of(write(entries, spec, schema), manager)]
    assert found == [D("100.00"), D("1.50"), D("-7.00")]


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (DecimalType(9, 2), D("1.001")),
        (DecimalType(3, 2), D("10.00")),
        (DecimalType(3, 2), D("NaN")),
        (DecimalType(3, 2), 1),
        (IntegerType(), 2**31),
        (IntegerType(), "1"),
        (LongType(), 2**63),
        (LongType(), 1.5),
        (BooleanType(), 1),
        (StringType(), b"a"),
        (StringType(), "\ud800"),
        (BinaryType(), "a"),
        (FixedType(3), b"ab"),
        (UUIDType(), b"ab"),
        (UUIDType(), str(UUIDS[0])),
        (DateType(), datetime.date(2020, 1, 1)),
        (FloatType(), 1e300),
        (FloatType(), "1"),
    ],
)
def test_a_partition_value_of_another_type_is_refused(
    source: IcebergType, value: Any, write: Write, manager: EncryptionManager
) -> None:
    spec, schema = spec_of((source, "identity"))
    with pytest.raises(ValueError, match=r"p1|partition"):
        write([added(file_of(manager, value))], spec, schema)


def test_types_that_avro_names_are_defined_once(write: Write, manager: EncryptionManager) -> None:
    kinds = [UUIDType(), UUIDType(), FixedType(2), FixedType(2), DecimalType(5, 1)]
    spec, schema = spec_of(*((kind, "identity") for kind in [*kinds, DecimalType(5, 1)]))
    partition = UUIDS[0], UUIDS[1], b"ab", None, D("1.5"), D("-1.5")
    record = write([added(file_of(manager, *partition))], spec, schema)
    header, [entry] = read_back(record)
    raw = UUIDS[0].bytes, UUIDS[1].bytes
    assert tuple(entry["data_file"]["partition"].values()) == raw + partition[2:]
    assert header["avro.schema"].count('"size":16') == 1
    assert entries_of(record, manager)[0].file.partition_values == partition


@pytest.mark.parametrize("form", ["java", "schema"])
@pytest.mark.parametrize("rows", [1, 64])
def test_both_forms_of_fixed_partitions_are_read(
    form: str, rows: int, write: Write, manager: EncryptionManager
) -> None:
    """Java writes their lengths, but its schema has none."""
    spec, schema = spec_of((UUIDType(), "identity"), (FixedType(3), "identity"))
    # The last byte of the first and the row count make one number; the second begins as a length.
    values = b"\xff\x00\x81", b"\x06ab", b"abc", None
    for some in (values[:1], values[2:], values) if form == "java" else (values[:1], values):
        files = [file_of(manager, UUIDS[0], value, record_count=rows) for value in some]
        header, records = read_back(write(map(added, files), spec, schema))
        avro = json.loads(header["avro.schema"])
        partition = avro["fields"][4]["type"]["fields"][3]["type"]["fields"]
        assert partition[1]["type"] == ["null", "bytes"]
        data = io.BytesIO()
        for kind in ("bytes", {"type": "fixed", "name": "fixed_3", "size": 3}):
            partition[1]["type"][1] = kind
            if (kind == "bytes") == (form == "java"):
                parsed_schema = fastavro.parse_schema(avro)
                for record in records:
                    fastavro.schemaless_writer(data, parsed_schema, record)
        container = NewContainer(avro, {}, AvroCodec("gzip"))
        block = container.block(len(records), data.getvalue())
        _, found = read_avro_records(container.header + block, MANIFEST)
        assert [entry.file.partition_values for entry in found] == [(UUIDS[0], v) for v in some]
        assert [entry.file.record_count for entry in found] == [rows] * len(some)


def test_names_that_avro_forbids_are_rewritten_as_java_does(
    write: Write, manager: EncryptionManager
) -> None:
    names = ["1st", "a b", "x-y", "größe"]
    spec, schema = spec_of(*[(LongType(), "identity")] * 4, names=names)
    header, [entry] = read_back(write([added(file_of(manager, 1, 2, 3, 4))], spec, schema))
    assert entry["data_file"]["partition"] == {"_1st": 1, "a_x20b": 2, "x_x2Dy": 3, "größe": 4}
    avro = json.loads(header["avro.schema"])
    file_fields = avro["fields"][4]["type"]["fields"]
    partition = file_fields[3]["type"]["fields"]
    assert [field.get("iceberg-field-name") for field in partition] == ["1st", "a b", "x-y", None]
    assert [field["name"] for field in json.loads(header["partition-spec"])] == names


def test_a_dropped_column_s_partition_needs_a_schema_that_had_it(
    write: Write, manager: EncryptionManager
) -> None:
    spec, schema = spec_of((StringType(), "identity"), (StringType(), "bucket[4]"))
    now = Schema(NestedField(9, "other", LongType(), required=False), schema_id=4)
    with pytest.raises(ValueError, match="p1"):
        write([added(file_of(manager, "a", 3))], spec, now)
    record = write([added(file_of(manager, None, 3))], spec, now)
    header, [entry] = read_back(record)
    assert entry["data_file"]["partition"] == {"p1": None, "p2": 3}
    # As Java writes it: no union of null and null.
    assert '"name":"p1","type":"null","default":null,"field-id":1000' in header["avro.schema"]
    assert entries_of(record, manager)[0].file.partition_values == (None, 3)

    assert schema_of_spec(spec, [schema, now]) is schema
    record = write([added(file_of(manager, "a", 3))], spec, schema_of_spec(spec, [schema, now]))
    assert entries_of(record, manager)[0].file.partition_values == ("a", 3)


def test_the_schema_of_a_spec_is_the_last_one_with_all_its_columns() -> None:
    spec, both = spec_of((LongType(), "identity"), (LongType(), "identity"))
    one, none = (Schema(*both.fields[:n], schema_id=9) for n in (1, 0))
    later = Schema(*both.fields, schema_id=5)
    assert schema_of_spec(spec, [both, later, one, none]) is later
    assert schema_of_spec(spec, [none, one, none]) is one
    assert schema_of_spec(PartitionSpec(), [both, none]) is none


# -- entries

UNPARTITIONED = (
    PartitionSpec(spec_id=7),
    Schema(NestedField(1, "a", LongType(), required=False), schema_id=3),
)
NUMBERS = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize("examples", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_fastavro_reads_what_was_written(
    write: Write, manager: EncryptionManager, examples: int
) -> None:
    @settings(max_examples=examples)
    @given(
        counts=st.none() | st.dictionaries(st.integers(0, 2**31 - 1), NUMBERS),
        bounds=st.none() | st.dictionaries(st.integers(0, 2**31 - 1), st.binary()),
        number=NUMBERS,
        offsets=st.none() | st.lists(NUMBERS).map(tuple),
        path=st.text(st.characters(codec="utf-8")),
    )
    def check(
        counts: dict[int, int] | None,
        bounds: dict[int, bytes] | None,
        number: int,
        offsets: tuple[int, ...] | None,
        path: str,
    ) -> None:
        file = file_of(
            manager,
            file_path=path,
            column_sizes=counts,
            lower_bounds=bounds,
            split_offsets=offsets,
            first_row_id=number,
        )
        _, [entry] = read_back(write([added(file, sequence_number=number)], *UNPARTITIONED))
        found = entry["data_file"]
        assert (mapped(found["column_sizes"]), mapped(found["lower_bounds"])) == (counts, bounds)
        assert found["split_offsets"] == (None if offsets is None else list(offsets))
        assert (found["file_path"], found["first_row_id"]) == (path, number)
        assert (entry["sequence_number"], entry["snapshot_id"]) == (number, SNAPSHOT)

    check()


def test_every_field_of_an_entry_comes_back(write: Write, manager: EncryptionManager) -> None:
    spec, schema = UNPARTITIONED
    file = file_of(
        manager,
        column_sizes={1: 10},
        value_counts={1: 20},
        null_value_counts={1: 2},
        nan_value_counts={1: 3},
        lower_bounds={1: b"low"},
        upper_bounds={1: b"up"},
        split_offsets=(4, 1000),
        sort_order_id=2,
        first_row_id=77,
    )
    entries = [
        ManifestEntry(EXISTING, 5, 3, 4, file),
        ManifestEntry(DELETED, SNAPSHOT, 3, 3, file.replace(first_row_id=None)),
        ManifestEntry(ADDED, SNAPSHOT, 2, None, file),
    ]
    record = write(entries, spec, schema)
    expected = [
        *entries[:2],
        entries[2].replace(file_sequence_number=9),
    ]
    assert list(map(all_fields, entries_of(record, manager))) == list(map(all_fields, expected))
    counted = tuple(record.fields().values())[7:13]
    assert counted == (1, 1, 1, 10, 10, 10)
    # Of live files only: what Java's scans prune by.
    assert record.min_sequence_number == 2


def test_the_classes_of_records_can_be_inspected() -> None:
    for kind in (ContentFile, ManifestEntry, EncryptedManifest):
        assert {name for name, _ in inspect.getmembers(kind)} >= {"of", "fields", "replace"}
    assert hasattr(ContentFile, "first_row_id")


def test_every_field_of_a_deletion_vector_and_of_equality_deletes_comes_back(
    write: Write, manager: EncryptionManager
) -> None:
    spec, schema = UNPARTITIONED
    vector = file_of(
        manager,
        content=POSITION_DELETES,
        file_format="PUFFIN",
        referenced_data_file="file:/t/data/0.parquet",
        content_offset=4,
        content_size_in_bytes=50,
    )
    equality = file_of(manager, content=EQUALITY_DELETES, equality_ids=(1, 2), sort_order_id=0)
    entries = [ManifestEntry(ADDED, SNAPSHOT, 9, 9, file) for file in (vector, equality)]
    record = write(entries, spec, schema, content=DELETE_MANIFEST)
    assert list(map(all_fields, entries_of(record, manager))) == list(map(all_fields, entries))
    assert read_back(record)[0]["content"] == "deletes"


def test_only_data_files_have_row_ids_and_only_position_deletes_a_data_file(
    write: Write, manager: EncryptionManager
) -> None:
    spec, schema = UNPARTITIONED
    wrong = {"referenced_data_file": "x", "content_offset": 4, "content_size_in_bytes": 5}
    data = file_of(manager, first_row_id=3, **wrong)
    equality = file_of(manager, first_row_id=3, content=EQUALITY_DELETES, **wrong)
    [found] = entries_of(write([added(data)], spec, schema), manager)
    assert found.file.first_row_id == 3
    assert found.file.referenced_data_file is found.file.content_offset is None
    record = write([added(equality)], spec, schema, content=DELETE_MANIFEST)
    [found] = entries_of(record, manager)
    assert found.file.first_row_id is found.file.referenced_data_file is None


def test_a_file_in_the_clear_may_be_listed_and_a_delete_file_may_not(
    write: Write, manager: EncryptionManager
) -> None:
    spec, schema = UNPARTITIONED
    plain = file_of(manager, key_metadata=None)
    [found] = entries_of(write([added(plain)], spec, schema), manager)
    assert not found.file.is_encrypted
    deletes = plain.replace(content=EQUALITY_DELETES)
    with pytest.raises(NotEncryptedError):
        write([added(deletes)], spec, schema, content=DELETE_MANIFEST)


def test_the_key_of_a_new_file_has_its_length(write: Write, manager: EncryptionManager) -> None:
    spec, schema = UNPARTITIONED
    file = file_of(manager, key_metadata=manager.new_file_key().to_bytes())
    with pytest.raises(ValueError, match="100 bytes, but None"):
        write([added(file)], spec, schema)
    # Of another writer, and long since in the table.
    old = ManifestEntry(EXISTING, 5, 3, 3, file)
    [found] = entries_of(write([old], spec, schema), manager)
    assert all_fields(found) == all_fields(old)


def test_entries_that_cannot_stand_in_a_manifest_are_refused(
    write: Write, manager: EncryptionManager, output: TableOutput
) -> None:
    spec, schema = UNPARTITIONED
    file = file_of(manager)
    vector = file.replace(content=POSITION_DELETES, file_format="PUFFIN")
    for entry, content, message in [
        (ManifestEntry(EXISTING, 5, None, None, file), 0, "only an added file"),
        (ManifestEntry(EXISTING, None, 5, 5, file), 0, "only an added file"),
        (ManifestEntry(DELETED, SNAPSHOT, None, None, file), 0, "only an added file"),
        (ManifestEntry(ADDED, 5, None, None, file), 0, "added by snapshot 5"),
        (ManifestEntry(3, SNAPSHOT, 1, 1, file), 0, "status"),
        (added(file), 1, "manifest of deletes"),
        (added(file.replace(content=EQUALITY_DELETES)), 0, "manifest of data"),
        (added(file.replace(content=3)), 1, "content 3"),
        (added(file), 2, r"data \(0\) or deletes \(1\)"),
        (added(file.replace(spec_id=0)), 0, "spec 0"),
        (added(file.replace(partition=(1,))), 0, "1 values"),
        (added(file.replace(file_size_in_bytes=101)), 0, "101 bytes, but 100"),
        (added(vector), 1, "the deletion vector lacks"),
        (added(file.replace(record_count=None)), 0, "record_count"),
        (added(file.replace(column_sizes={1: "x"})), 0, "column_sizes"),
        (added(file.replace(file_path=None)), 0, "file_path"),
        (added(file.replace(sort_order_id=2**31)), 0, "sort_order_id"),
    ]:
        with pytest.raises(ValueError, match=message):
            write([entry], spec, schema, content=content)
    assert output.written == []


def test_a_key_is_in_no_message(write: Write, manager: EncryptionManager) -> None:
    spec, schema = UNPARTITIONED
    file = file_of(manager)
    km = file.key
    assert km is not None
    for wrong in (
        file.replace(file_size_in_bytes=7),
        file.replace(sort_order_id="x"),
        file.replace(key_metadata=b"\x02" + km.to_bytes()),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            write([added(wrong)], spec, schema)
        shown = repr(caught.getrepr(showlocals=False)) + str(caught.value)
        error: BaseException | None = caught.value
        while error is not None:
            shown += repr(error)
            error = error.__context__
        assert km.encryption_key.hex() not in shown
        assert repr(km.encryption_key)[2:-1] not in shown


# -- files


def test_each_manifest_has_a_key_of_its_own_and_shows_nothing(
    write: Write, manager: EncryptionManager
) -> None:
    spec, schema = UNPARTITIONED
    entries = [added(file_of(manager))]
    first, second = (write(entries, spec, schema) for _ in range(2))
    keys = [KeyMetadata.from_bytes(r.key_bytes or b"") for r in (first, second)]
    assert keys[0].encryption_key != keys[1].encryption_key
    assert keys[0].aad_prefix != keys[1].aad_prefix
    for record, km in zip((first, second), keys, strict=True):
        sealed = Path(record.manifest_path.removeprefix("file:")).read_bytes()
        assert sealed[:4] == b"AGS1"
        assert b"avro" not in sealed
        assert b"parquet" not in sealed
        assert km.file_length == record.manifest_length == len(sealed)
        assert len(km.encryption_key) == manager.data_key_length


@pytest.mark.parametrize("codec", ["gzip", "zstd", "snappy", "uncompressed", "GZIP"])
def test_codecs(codec: str, write: Write, manager: EncryptionManager) -> None:
    spec, schema = UNPARTITIONED
    # More than one block.
    entries = [added(file_of(manager, number=n, first_row_id=n)) for n in range(700)]
    record = write(entries, spec, schema, codec=codec)
    names = {"zstd": "zstandard", "uncompressed": "null", "gzip": "deflate"}
    header, records = read_back(record) if codec != "snappy" else (None, [])
    if header is not None:
        assert header["avro.codec"] == names[codec.lower()]
        assert [r["data_file"]["file_path"] for r in records] == [e.file.file_path for e in entries]
    assert [e.file for e in entries_of(record, manager)] == [e.file for e in entries]


def test_an_unknown_codec_is_refused(write: Write) -> None:
    with pytest.raises(ValueError, match="lzma"):
        write([], *UNPARTITIONED, codec="lzma")


def test_manifests_are_rolled_at_their_target_size(
    tmp_path: Path, output: TableOutput, manager: EncryptionManager
) -> None:
    spec, schema = UNPARTITIONED
    entries = [added(file_of(manager, number=n)) for n in range(1001)]
    numbers = itertools.count()
    new = NewManifests(output, manager, spec, schema, {}, SNAPSHOT, DATA_MANIFEST)

    def write(entries: Sequence[ManifestEntry], target_size: int) -> list[EncryptedManifest]:
        location = f"file:{tmp_path}/r{{}}.avro"
        return write_manifests(
            new, lambda: location.format(next(numbers)), iter(entries), target_size
        )

    assert [r.added_files_count for r in write(entries, 1)] == [250] * 4 + [1]
    assert [r.added_files_count for r in write(entries[:500], 1)] == [250, 250]
    assert [r.added_files_count for r in write(entries, 8 << 20)] == [1001]
    assert write([], 1) == []
    sizes = [r.manifest_length for r in write(entries, 30_000)]
    assert len(sizes) > 1
    assert all(size > 30_000 for size in sizes[:-1])
    paths = [e.file.file_path for r in write(entries, 1) for e in entries_of(r, manager)]
    assert paths == [e.file.file_path for e in entries]


def blocks_of(record: EncryptedManifest) -> list[bytes]:
    """The blocks of a manifest as they are stored."""
    assert record.key_bytes is not None
    sealed = Path(record.manifest_path.removeprefix("file:")).read_bytes()
    data = ags1.decrypt(sealed, KeyMetadata.from_bytes(record.key_bytes))
    container = Container(lambda offset, size: data[offset : offset + size], len(data))
    return [bytes(stored) for _, stored in container.stored_blocks()]


def test_blocks_without_a_change_are_copied_as_they_are_stored(
    write: Write, manager: EncryptionManager
) -> None:
    spec, schema = UNPARTITIONED
    more = {"lower_bounds": {1: bytes(300)}, "value_counts": {1: 10}}
    files = [file_of(manager, number=n, first_row_id=9 * n, **more) for n in range(1000)]
    new = [added(file) for file in files]
    first = write(new, spec, schema)
    # All entries become existing ones, so that no block is as it was.
    kept = [entry.existing() for entry in entries_of(first, manager)]
    second = write(kept, spec, schema)
    assert len(blocks_of(first)) > 4
    assert not set(blocks_of(second)) & set(blocks_of(first))
    again = entries_of(second, manager)
    assert [all_fields(e.file) for e in again] == [all_fields(e.file) for e in kept]
    assert {(e.status, e.snapshot_id, e.sequence_number) for e in again} == {
        (EXISTING, SNAPSHOT, 9)
    }

    # One is deleted, one is left out, and the last ones come in another order.
    changed = [*again[:250], again[250].deleted(77), *again[251:450], *again[451:995]]
    changed += again[:994:-1]
    third = write(changed, spec, schema)
    copied = [block in blocks_of(second) for block in blocks_of(third)]
    assert copied.count(False) <= 4
    assert copied.count(True) >= len(blocks_of(second)) - 3
    header, records = read_back(third)
    assert [(r["status"], r["data_file"]["file_path"]) for r in records] == [
        (e.status, e.file.file_path) for e in changed
    ]
    assert header.keys() == read_back(second)[0].keys()
    by_path = {r["data_file"]["file_path"]: r["data_file"] for r in read_back(second)[1]}
    assert [r["data_file"] for r in records] == [by_path[e.file.file_path] for e in changed]

    # Another codec: the same entries in other blocks.
    fourth = write(again, spec, schema, codec="zstd")
    assert read_back(fourth)[1] == read_back(second)[1]
    assert not set(blocks_of(fourth)) & set(blocks_of(second))


def test_an_entry_that_fails_leaves_no_file(
    tmp_path: Path, write: Write, manager: EncryptionManager
) -> None:
    spec, schema = UNPARTITIONED

    def entries() -> Iterator[ManifestEntry]:
        yield added(file_of(manager))
        raise ConnectionError

    with pytest.raises(ConnectionError):
        write(entries(), spec, schema)
    assert list(tmp_path.iterdir()) == []


# -- manifest lists


def manifest(
    manager: EncryptionManager, number: int, rows: int = 10, **more: Any
) -> EncryptedManifest:
    km = manager.new_file_key().with_file_length(500)
    base = EncryptedManifest.of(
        manifest_path=f"file:/t/metadata/{number}-m0.avro",
        manifest_length=500,
        partition_spec_id=0,
        content=DATA_MANIFEST,
        sequence_number=None,
        min_sequence_number=None,
        added_snapshot_id=SNAPSHOT,
        added_files_count=1,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=rows,
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=(),
        key_metadata=km.to_bytes(),
    )
    return base.replace(**more)


ListRecords = Callable[[Sequence[EncryptedManifest]], tuple[list[dict[str, Any]], int]]


@pytest.fixture
def list_records(tmp_path: Path, output: TableOutput, manager: EncryptionManager) -> ListRecords:
    """Write a manifest list of snapshot 42, sequence number 6, from row 1000 on; read it."""

    def write(manifests: Sequence[EncryptedManifest]) -> tuple[list[dict[str, Any]], int]:
        location = f"file:{tmp_path}/snap.avro"
        snapshot = NewSnapshot(SNAPSHOT, None, 6, 1000)
        km, next_row_id = write_manifest_list(output, location, snapshot, manifests, manager)
        header, records = parsed((tmp_path / "snap.avro").read_bytes(), km)
        assert header["parent-snapshot-id"] == "null"
        return records, next_row_id

    return write


def test_manifests_without_row_ids_get_them_in_order(
    list_records: ListRecords, manager: EncryptionManager
) -> None:
    old = {"sequence_number": 2, "min_sequence_number": 1, "added_snapshot_id": 5}
    records, next_row_id = list_records(
        [
            manifest(manager, 0, rows=10),
            manifest(manager, 1, rows=20, first_row_id=3, **old),
            manifest(manager, 2, content=DELETE_MANIFEST),
            manifest(manager, 3, content=DELETE_MANIFEST, first_row_id=5),
            # Of a table of before version 3, or of entries moved here: room for all of them.
            manifest(manager, 4, rows=7, existing_rows_count=100, deleted_rows_count=9, **old),
            manifest(manager, 5, rows=0),
            manifest(manager, 6, rows=1, min_sequence_number=4),
        ]
    )
    assert [r["first_row_id"] for r in records] == [1000, 3, None, None, 1010, 1117, 1117]
    assert next_row_id == 1118
    assert [r["sequence_number"] for r in records] == [6, 2, 6, 6, 2, 6, 6]
    assert [r["min_sequence_number"] for r in records] == [6, 1, 6, 6, 1, 6, 4]


def test_manifests_that_cannot_be_listed_are_refused(
    list_records: ListRecords, manager: EncryptionManager, output: TableOutput
) -> None:
    good = manifest(manager, 0)
    for manifests, message in [
        ([good, good], "twice"),
        ([good.replace(added_snapshot_id=5)], "added by snapshot 5"),
        ([good.replace(added_snapshot_id=5, sequence_number=1)], "no sequence number"),
        ([good.replace(manifest_length=501)], "501 bytes, but 500"),
        ([good.replace(content=2)], r"data \(0\) or deletes \(1\)"),
        ([good.replace(added_files_count=2**31)], "added_files_count"),
        ([good.replace(partitions=(PartitionFieldSummary(None, None, None, None),))], "null"),
    ]:
        with pytest.raises(ValueError, match=message):
            list_records(manifests)
    with pytest.raises(NotEncryptedError):
        list_records([good.replace(key_metadata=None)])
    assert output.written == []


def test_an_empty_manifest_list_is_one(list_records: ListRecords) -> None:
    assert list_records([]) == ([], 1000)


def test_row_ids_of_written_manifests_are_what_readers_assign(
    write: Write, list_records: ListRecords, manager: EncryptionManager
) -> None:
    spec, schema = UNPARTITIONED
    first = write(
        [
            added(file_of(manager, number=1)),
            # Carried from another manifest: its rows keep their ids.
            ManifestEntry(EXISTING, 5, 3, 3, file_of(manager, number=2, first_row_id=50)),
            ManifestEntry(DELETED, SNAPSHOT, 3, 3, file_of(manager, number=3)),
            added(file_of(manager, number=4)),
        ],
        spec,
        schema,
    )
    records, next_row_id = list_records([first, write([added(file_of(manager))], spec, schema)])
    assert next_row_id == 1040
    ids = [
        [entry.file.first_row_id for entry in entries_of(record_of(record), manager)]
        for record in records
    ]
    assert ids == [[1000, 50, None, 1010], [1030]]
