"""What the plug-in reads and writes in the folder of an encrypted table, by the first bytes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from .java import Java, JavaError

pytestmark = pytest.mark.interop

ENCRYPTED = [b"AGS1 and a stream", b"PARE, an encrypted footer, PARE"]
PLAIN = {
    "an Avro file": b"Obj\1 a manifest, a manifest list or rows",
    "a Puffin file": b"PFA1 a deletion vector or statistics",
    "an ORC file": b"ORC rows",
    "a cut file": b"AGS",
    "an empty file": b"",
    "another": b"ags1",
}
METADATA = [b'{"format-version": 3}', gzip.compress(b"{}")]


def read(java: Java, tmp_path: Path, data: bytes, *, required: bool, name: str = "file") -> bytes:
    path = tmp_path / name
    path.write_bytes(data)
    call = "ags1.iceberg.Guard.read"
    return bytes.fromhex(java.call(call, path=f"file:{path}", required=required))


@pytest.mark.parametrize("required", [True, False])
def test_what_is_read(java: Java, tmp_path: Path, required: bool) -> None:
    for data in ENCRYPTED:
        assert read(java, tmp_path, data, required=required) == data
    for data, name in zip(METADATA, ("00001-a.metadata.json", "v1.gz.metadata.json"), strict=True):
        assert read(java, tmp_path, data, required=required, name=name) == data
    for data in (*PLAIN.values(), *METADATA):
        with pytest.raises(JavaError, match="is not encrypted or is truncated"):
            read(java, tmp_path, data, required=required)


def test_plaintext_parquet_is_read_unless_encryption_is_required(
    java: Java, tmp_path: Path
) -> None:
    data = b"PAR1 rows PAR1"
    assert read(java, tmp_path, data, required=False) == data
    with pytest.raises(JavaError, match="is not encrypted"):
        read(java, tmp_path, data, required=True)


@pytest.mark.parametrize("ranges", [False, True])
def test_a_file_that_is_replaced_after_it_was_opened_is_refused(java: Java, ranges: bool) -> None:
    def read(before: bytes, after: bytes, size: int, *, at_end: bool = False) -> bytes:
        given = {"before": before.hex(), "after": after.hex(), "size": size, "at-end": at_end}
        call = "ags1.iceberg.Guard.readReplaced"
        return bytes.fromhex(java.call(call, **given, ranges=ranges, required=False))

    stream, parquet = ENCRYPTED
    for data in ENCRYPTED:
        assert read(data, data, len(data)) == data
        assert read(data, data, 4, at_end=True) == data[-4:]
    for before in (stream, parquet, b"PAR1 rows PAR1"):
        for size in (1, 40):
            with pytest.raises(JavaError, match="somebody replaced it"):
                read(before, PLAIN["an Avro file"], size)
    # Readers of Parquet look at its end alone.
    for size in (1, 8, 14):
        with pytest.raises(JavaError, match="somebody replaced it"):
            read(parquet, b"PARE rows PAR1", size, at_end=True)


def test_plaintext_parquet_that_begins_like_encrypted_parquet_is_refused(
    java: Java, tmp_path: Path
) -> None:
    for required in (True, False):
        with pytest.raises(JavaError, match="somebody replaced it"):
            read(java, tmp_path, b"PARE rows PAR1", required=required)


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_what_is_written(java: Java, tmp_path: Path, size: int) -> None:
    for number, data in enumerate(ENCRYPTED):
        path = tmp_path / str(number)
        call = {"path": f"file:{path}", "bytes": data.hex(), "size": size}
        assert java.call("ags1.iceberg.Guard.write", **call) == len(data)
        assert path.read_bytes() == data
    for number, data in enumerate([*PLAIN.values(), *METADATA, b"PAR1 rows PAR1"], 10):
        path = tmp_path / str(number)
        with pytest.raises(JavaError, match="would be written unencrypted"):
            java.call("ags1.iceberg.Guard.write", path=f"file:{path}", bytes=data.hex(), size=size)
        assert not path.exists()


def test_metadata_that_changes_during_a_commit_is_not_pinned(java: Java, tmp_path: Path) -> None:
    catalog = {
        "uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        "warehouse": f"file:{tmp_path}",
        "encryption.kms-type": "memory",
        "encryption.kms.key.a": b"0123456789012345".hex(),
    }
    create = "ags1.iceberg.Swapped.create"
    swapped = {"from": '"price"', "to": '"PRICE"'}
    with pytest.raises(JavaError, match="is not the metadata that was committed"):
        java.call(create, catalog=catalog, **swapped)
    # The catalog has no table then: with metadata that stays, it is made.
    assert java.call(create, catalog=catalog, **(swapped | {"to": '"price"'})).endswith("/db/t")
