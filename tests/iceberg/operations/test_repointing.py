"""Manifests with other paths in them: every other value stays as its bytes are."""

from __future__ import annotations

import io
import math
import struct
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from iceberg_tables import memory_kms
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

import ags1
from ags1 import KeyMetadata
from ags1.iceberg.operations.relocation.repoint import (
    Row,
    UnreadableError,
    repoint_puffin,
    repoint_records,
)
from ags1.iceberg.pyiceberg.records import read_avro_records
from ags1.iceberg.read.records import ADDED, DELETED, ContentFile, ManifestEntry
from ags1.iceberg.read.snapshots import MANIFEST
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.write.manifests import DATA_MANIFEST, NewManifests, write_manifest
from ags1.keys.manager import EncryptionManager

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

# Some of them are beyond what Python's own dates and times hold.
VALUES: list[tuple[Any, Any]] = [
    (DoubleType(), 0.1),
    (DoubleType(), math.nan),
    (FloatType(), -0.0),
    (DateType(), -(2**31)),
    (TimestampType(), 2**62),
    (TimestamptzType(), -1),
    (TimestampNanoType(), 2**62 + 1),
    (DecimalType(9, 2), Decimal("-1.28")),
    (DecimalType(9, 2), None),
    (UUIDType(), uuid.UUID(int=1 << 127 | 5)),
    (UUIDType(), uuid.UUID(int=3)),
    (FixedType(3), b"\xff\x00\x01"),
    (BinaryType(), b""),
    (StringType(), "\U0001f600"),
    (BooleanType(), False),
    (TimeType(), 86_399_999_999),
]


def manifest(folder: Path, codec: str) -> bytes:
    """A manifest's plaintext, with a partition of all of those values and one of nulls."""
    manager = EncryptionManager(memory_kms(), "keyA")
    kinds = list(enumerate((kind for kind, _ in VALUES), 1))
    schema = Schema(*(NestedField(n, f"c{n}", kind, required=False) for n, kind in kinds))
    fields = (PartitionField(n, 999 + n, IdentityTransform(), f"p{n}") for n, _ in kinds)
    partitions = [tuple(value for _, value in VALUES), (None,) * len(VALUES)]
    files = [
        ContentFile.of(
            content=0,
            file_path=f"file:/t/data/{n}.parquet",
            file_format="PARQUET",
            partition=values,
            record_count=n,
            file_size_in_bytes=4,
            lower_bounds={1: b"\0"},
            key_metadata=manager.new_file_key().with_file_length(4).to_bytes(),
            split_offsets=(4,),
            first_row_id=None if n else 7,
        )
        for n, values in enumerate(partitions)
    ]
    entries = [
        ManifestEntry(ADDED, None, None, None, files[0]),
        ManifestEntry(DELETED, 1, 2, 3, files[1]),
    ]
    new = NewManifests(
        output=TableOutput(PyArrowFileIO()),
        manager=manager,
        spec=PartitionSpec(*fields),
        schema=schema,
        schema_json=schema.model_dump(),
        snapshot_id=5,
        content=DATA_MANIFEST,
        codec=codec,
    )
    record = write_manifest(new, str(folder / "m.avro"), entries)
    assert record.key_bytes is not None
    sealed = (folder / "m.avro").read_bytes()
    return ags1.decrypt(sealed, KeyMetadata.from_bytes(record.key_bytes))


def to_elsewhere(row: Row) -> None:
    file = row.record(2)
    file.set(100, file.get(100).replace("file:/t/", "s3://elsewhere/"))


@pytest.mark.parametrize("codec", ["gzip", "zstd", "snappy", "uncompressed"])
def test_values_of_every_type_stay(tmp_path: Path, codec: str) -> None:
    data = manifest(tmp_path, codec)
    header, before = read_avro_records(data, MANIFEST)
    header_after, after = read_avro_records(repoint_records(data, to_elsewhere), MANIFEST)
    kept = header.keys() - {"avro.codec", "avro.schema"}
    assert {k: header[k] for k in kept} == {k: header_after[k] for k in kept}
    assert len(after) == 2
    for one, other in zip(before, after, strict=True):
        assert one._data[:4] == other._data[:4]
        assert other.data_file.file_path == one.data_file.file_path.replace(
            "file:/t/", "s3://elsewhere/"
        )
        assert repr(one.data_file._data[3:]) == repr(other.data_file._data[3:])
    assert after[0].data_file.partition[3] == -(2**31)


def test_the_bytes_of_records_and_the_schema_stay(tmp_path: Path) -> None:
    data = manifest(tmp_path, "uncompressed")
    readers: list[Any] = [
        fastavro.block_reader(io.BytesIO(d)) for d in (data, repoint_records(data, lambda _: None))
    ]
    assert readers[0].writer_schema == readers[1].writer_schema
    before, after = (b"".join(block.bytes_.getvalue() for block in r) for r in readers)
    assert before == after


def test_what_cannot_be_read_says_nothing_of_its_bytes(tmp_path: Path) -> None:
    data = manifest(tmp_path, "uncompressed")
    for damaged in (b"", b"Obj\x01", data[:-1], data[:300], data.replace(b'"long"', b'"lung"')):
        with pytest.raises(UnreadableError) as caught:
            repoint_records(damaged, to_elsewhere)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
        assert len(str(caught.value)) < 80
    with pytest.raises(UnreadableError):
        repoint_records(data, lambda row: row.set(9999, 1))
    with pytest.raises(UnreadableError):
        repoint_records(data, lambda row: row.record(0).set(1, 1))


def test_puffin_files_that_are_none() -> None:
    footer = b'{"blobs":[]}'
    end = struct.pack("<i", len(footer)) + bytes(4) + b"PFA1"
    whole = b"PFA1" + b"PFA1" + footer + end
    assert repoint_puffin(whole, str) == whole
    compressed = whole[:-8] + b"\x01\0\0\0" + b"PFA1"
    huge = whole[:-12] + struct.pack("<i", 1 << 30) + whole[-8:]
    negative = whole[:-12] + struct.pack("<i", -1) + whole[-8:]
    not_json = whole.replace(b'{"blobs"', b'{"blobs ')
    other = whole.replace(b'"blobs":[]', b'"blobs":{}').replace(b"{}}", b"7 }")
    for damaged in (b"", whole[:11], compressed, huge, negative, not_json, other, whole[4:]):
        with pytest.raises(UnreadableError):
            repoint_puffin(damaged, str)
