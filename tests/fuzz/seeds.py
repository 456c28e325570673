"""Writes the first inputs of each target: ``python tests/fuzz/seeds.py FOLDER``.

The fuzzer finds a magic number or a checksum by itself, but not a whole Parquet file.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import fuzz_keyring
import fuzz_sidecar
import harness
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_avro import counted, long
from fuzz_avro_rows import SHAPES
from pyroaring import BitMap64

import ags1
from ags1.iceberg.formats.thrift import I32, I64, LIST, STRUCT, print_struct
from ags1.keys.envelope import EncryptedKey, KeyEncryptionKey
from ags1.keys.sidecar import Sidecar


def streams() -> Iterator[bytes]:
    for block_size in (0, 7, 40):
        for size in (0, 8, 120):
            yield bytes([3, block_size, size, 0, 0, 0, *range(40)])


def decryptions() -> Iterator[bytes]:
    for way in (1, 7, 0xFF, 0x2D):
        for size in (0, 1, 100):
            for at in (0, 1, 2, 30):
                yield bytes([way, size, at]) + b"x" * (at % 2)
    for at in range(3):
        yield bytes([0, 0, at]) + b"AGS1\x10\0\0\0" + bytes(72)


def key_metadata() -> Iterator[bytes]:
    for km in (fuzz_sidecar.KM, ags1.KeyMetadata(harness.KEY)):
        yield km.to_bytes()
        yield km.to_bytes()[18:]
        yield km.to_bytes() + b"\0\2\4ab"


def sidecars() -> Iterator[bytes]:
    entry = EncryptedKey("k", b"wrapped", "master", {"KEY_TIMESTAMP": "1"})
    sidecar = Sidecar.seal(fuzz_sidecar.KM, KeyEncryptionKey(entry, fuzz_sidecar.KEK))
    document = json.loads(sidecar.to_bytes())
    text = json.dumps(document).replace(sidecar.key_id, "f")
    yield text.encode()
    yield json.dumps(json.loads(text)["encryption-keys"])[1:-1].encode()


def keyrings() -> Iterator[bytes]:
    version = {"key": "A" * 43 + "=", "created-ms": 1}
    keys = json.dumps({"k": {"current": 1, "versions": {"1": version}}})
    yield b"1" + keys.encode()
    yield b"0" + fuzz_keyring.PREFIX + b'1,"keys":' + keys.encode() + b"}"
    yield b'2"AAAAAAAAAAAAAAAAAAAAAA==","keys":"' + b"A" * 60 + b'"'[:1]
    yield b'2"AAAAAAAAAAAAAAAAAAAAAA=="},"keys":"' + b"A" * 60 + b'"'


def avro_rows() -> Iterator[bytes]:
    numbers = b"\2\2\4\0" + bytes(12) + b"\2\1\2\5" + bytes(5) + b"\2\2\2"
    texts = b"\4ab" + b"\2\2z" + b"abc" + b"\2" + bytes(16) + b"\2"
    nested = b"\2\2\2\2\0" + b"\2\2k\2\6\0" + b"\2\1\2\2y" + b"\2\2k\4\0"
    for shape, row in enumerate((numbers, numbers, texts, texts, nested, nested)):
        for rows in (0, 1, 3):
            yield bytes([shape, rows, 1, 100, 0]) + row * rows


def avro_files() -> Iterator[bytes]:
    for seed in avro_rows():
        yield bytes([3 + seed[1] if seed[1] < 5 else 4, seed[0], 0, 1]) + seed[5:]
    for codec in range(6):
        yield bytes([4, 2, codec, 0]) + b"\4ab\2\2zabc\2" + bytes(16) + b"\2"
    schema = json.dumps(SHAPES[2][0]).encode()
    yield bytes([1, 2, 0, 1]) + schema
    yield bytes([0, 2, 0, 1]) + long(1) + counted(b"avro.schema") + counted(schema) + b"\0" * 17


def parquet_files() -> Iterator[bytes]:
    table = pa.table({"a": [1, None, 3], "b": [[1], [], [2, 3]]})
    for options in (
        {},
        {"data_page_version": "2.0", "compression": "zstd"},
        {"use_dictionary": False, "write_page_index": True, "compression": "none"},
        {"compression": "gzip", "write_statistics": False, "write_page_checksum": True},
    ):
        out = io.BytesIO()
        pq.write_table(table, out, store_schema=False, **options)
        data = out.getvalue()
        yield data[-8:-6] + data[:-8]


def parquet_modules() -> Iterator[bytes]:
    # One column of one page.
    page = {1: (I32, 0), 2: (I32, 4), 3: (I32, 36), 5: (STRUCT, {1: (I32, 1)})}
    header = print_struct(page)
    facts = {5: (I64, 1), 7: (I64, 68 + len(header)), 9: (I64, 4)}
    group = {1: (LIST, (STRUCT, [{3: (STRUCT, facts)}])), 3: (I64, 1)}
    footer = print_struct(
        {2: (LIST, (STRUCT, [{5: (I32, 1)}, {}])), 3: (I64, 1), 4: (LIST, (STRUCT, [group]))}
    )
    place = bytes(3)
    modules = bytes([2, 2, *place, len(header)]) + header + bytes([0, *place, 4]) + bytes(4)
    yield modules + bytes(2) + footer
    for options in ({}, {"use_dictionary": False, "write_page_index": True}):
        out = io.BytesIO()
        pq.write_table(pa.table({"a": [1]}), out, store_schema=False, **options)
        data = out.getvalue()
        size = int.from_bytes(data[-8:-4], "little")
        yield bytes([0, 0, 0]) + data[-8 - size : -8]


def puffins() -> Iterator[bytes]:
    for positions in ([], [1, 5], [3, 1 << 33], list(range(20))):
        for optimize in (False, True):
            bitmap = BitMap64(positions, optimize=optimize).serialize()
            yield bytes([2, len(positions)]) + bitmap


SEEDS = {
    "decrypt": decryptions,
    "oneshot": streams,
    "stream": streams,
    "reader": streams,
    "writer": streams,
    "key_metadata": key_metadata,
    "sidecar": sidecars,
    "keyring": keyrings,
    "avro": avro_files,
    "avro_rows": avro_rows,
    "parquet": parquet_files,
    "parquet_modules": parquet_modules,
    "puffin": puffins,
}


def main() -> None:
    for target, seeds in SEEDS.items():
        folder = Path(sys.argv[1], target)
        folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds()):
            (folder / f"seed{number}").write_bytes(seed)


if __name__ == "__main__":
    main()
