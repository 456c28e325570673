"""A few bytes that would take gigabytes: what decompresses or expands without end is refused, in
little memory. A limit of the process's memory shows that."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import resource
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from ags1 import MetadataIntegrityError
from ags1.columns.avro.container import long, prefixed, string
from ags1.columns.avro.schema import avro_schema
from ags1.iceberg.read.deletes import read_deletion_vector
from ags1.iceberg.read.metadata import read_metadata
from ags1.iceberg.read.records import ContentFile
from ags1.iceberg.read.snapshots import MANIFEST_LIST, parsed
from ags1.iceberg.storage.trust import Trust
from ags1.iceberg.write.manifest_schemas import MANIFEST_FILE

LIST_SCHEMA = json.dumps(avro_schema(MANIFEST_FILE, "manifest_file"))
ZEROS = bytes(64 << 20)
# Snappy makes no more than 21 bytes of one.
CODECS: dict[str, Callable[[], bytes]] = {
    "zstandard": lambda: bytes(pa.compress(ZEROS, codec="zstd", asbytes=True)),
    "deflate": lambda: zlib.compress(ZEROS, 9)[2:-4],
    "bzip2": lambda: bz2.compress(ZEROS, 1),
    "xz": lambda: lzma.compress(ZEROS, preset=0),
}


def avro(schema: str, codec: str, *blocks: bytes) -> bytes:
    pairs = {"avro.schema": schema, "avro.codec": codec}
    header = b"".join(string(name) + string(value) for name, value in pairs.items())
    marker = b"s" * 16
    data = b"Obj\x01" + long(len(pairs)) + header + b"\x00" + marker
    return data + b"".join(long(1) + prefixed(block) + marker for block in blocks)


def doubling() -> str:
    schema: object = "int"
    for number in range(40):
        fields = [
            {"name": "a", "type": schema, "field-id": 500},
            {"name": "b", "type": f"r{number - 1}" if number else "int", "field-id": 501},
        ]
        schema = {"type": "record", "name": f"r{number}", "fields": fields}
    return json.dumps(schema)


def in_little_memory(
    work: Callable[[], object], mib: int = 100, match: str = r"\(FormatError\)"
) -> Callable[[], None]:
    def limited() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (mib << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        with pytest.raises(MetadataIntegrityError, match=match):
            work()

    return limited


InAFork = Callable[[Callable[[], object]], None]


@pytest.mark.slow_variants(r"(?!zstandard).*")
@pytest.mark.parametrize("codec", CODECS)
def test_manifests_that_decompress_without_end(codec: str, in_a_fork: InAFork) -> None:
    data = avro(LIST_SCHEMA, codec, CODECS[codec]())
    in_a_fork(in_little_memory(lambda: parsed("manifest list", "m.avro", data, MANIFEST_LIST)))


def test_many_blocks_that_are_each_below_the_limit(in_a_fork: InAFork) -> None:
    block = zlib.compress(bytes(1 << 20), 9)[2:-4]
    data = avro(LIST_SCHEMA, "deflate", *[block] * 160)
    in_a_fork(in_little_memory(lambda: parsed("manifest list", "m.avro", data, MANIFEST_LIST)))


def test_a_schema_that_doubles_its_names(in_a_fork: InAFork) -> None:
    data = avro(doubling(), "null")
    assert len(data) < 8 << 10
    in_a_fork(in_little_memory(lambda: parsed("manifest list", "m.avro", data, MANIFEST_LIST)))


def test_a_puffin_file_of_empty_blobs(in_a_fork: InAFork) -> None:
    footer = json.dumps({"blobs": [{}] * 200_000}).encode()
    file = b"PFA1PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"
    record = SimpleNamespace(content_offset=4, content_size_in_bytes=40, file_path="d.puffin")
    in_a_fork(
        in_little_memory(
            lambda: read_deletion_vector(file, cast("ContentFile", record), "a.parquet"),
            match="has none at byte 4",
        )
    )


def test_compressed_metadata(tmp_path: Path, in_a_fork: InAFork) -> None:
    path = tmp_path / "1.gz.metadata.json"
    path.write_bytes(gzip.compress(b'{"a":[' + b"[]," * (20 << 20) + b"[]]}", 1))
    io = PyArrowFileIO()
    # Arrow takes room for the largest metadata, and returns what it does not need.
    in_a_fork(in_little_memory(lambda: read_metadata(io, str(path), Trust()), 500, "decompressed"))
