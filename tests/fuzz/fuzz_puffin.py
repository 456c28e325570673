"""A deletion vector of any bytes is refused, or is a bitmap that can be used and written again."""

import functools
import json
import struct
import zlib

import harness
import pyarrow as pa

with harness.instrumented():
    from pyroaring import BitMap64

    from ags1.errors import MetadataIntegrityError
    from ags1.iceberg.read.deletes import (
        VECTOR_MAGIC,
        VECTOR_TYPE,
        read_deletion_vector,
    )
    from ags1.iceberg.read.kept_rows import KeptRows
    from ags1.iceberg.read.records import ContentFile
    from ags1.iceberg.write.deletion_vectors import vector_blob

DATA_FILE = "s3://b/data.parquet"


def puffin(blob: bytes, footer: bytes) -> bytes:
    return b"PFA1" + blob + b"PFA1" + footer + struct.pack("<i", len(footer)) + b"\0" * 4 + b"PFA1"


@functools.cache
def footer(size: int, cardinality: int) -> bytes:
    """Return one that describes a vector of ``size`` bytes."""
    blob = {
        "type": VECTOR_TYPE,
        "fields": [2147483645],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": 4,
        "length": size,
        "properties": {"referenced-data-file": DATA_FILE, "cardinality": str(cardinality)},
    }
    return json.dumps({"blobs": [blob]}).encode()


def entry(size: int, cardinality: int) -> ContentFile:
    file = ContentFile.of(
        file_path="s3://b/deletes.puffin",
        record_count=cardinality,
        referenced_data_file=DATA_FILE,
        content_offset=4,
        content_size_in_bytes=size,
    )
    assert isinstance(file, ContentFile)
    return file


def TestOneInput(data: bytes) -> None:
    source = harness.Input(data)
    way, cardinality = source.number(3), source.number(20)
    body = source.rest()
    if way == 0:
        size, payload = 40, body
    elif way == 1:
        size = len(body) // 2
        payload = puffin(body[:size], body[size:])
    else:
        if way == 2:
            vector = VECTOR_MAGIC + body
            body = struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
        size = len(body)
        payload = puffin(body, footer(size, cardinality))
    try:
        found = read_deletion_vector(payload, entry(size, cardinality), DATA_FILE)
    except MetadataIntegrityError:
        return
    positions = list(found)
    assert len(positions) == len(found)
    assert positions == sorted(set(positions))
    kept = KeptRows(found, 0, 100).of(pa.array(range(100)))
    assert kept.to_pylist() == [n for n in range(100) if n not in found]
    blob = vector_blob(BitMap64(found))
    assert BitMap64.deserialize(blob[8:-4]) == found


if __name__ == "__main__":
    harness.main(TestOneInput)
