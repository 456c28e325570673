"""What the plug-in reads and writes in the folder of an encrypted table, by the first bytes."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path

import pytest

from .java import Java, JavaError
from .lake import pipe

pytestmark = pytest.mark.interop

CRYPTO_METADATA = bytes.fromhex("1c1c2808010203040506070811000000")


def parquet(*, footer: int = 28, rows: bytes = b" rows ") -> bytes:
    """An encrypted Parquet file as its ends show it, whose encrypted footer has so many bytes."""
    end = CRYPTO_METADATA + footer.to_bytes(4, "little") + bytes(footer)
    return b"PARE" + rows + end + len(end).to_bytes(4, "little") + b"PARE"


STREAM = b"AGS1 and a stream"
PARQUET = [parquet(), parquet(footer=1 << 18)]
ENCRYPTED = [STREAM, *PARQUET]
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
def test_what_was_checked_is_what_is_read(java: Java, ranges: bool) -> None:
    """On an object store, a later read is another request, and somebody may have replaced the
    file meanwhile."""

    def read(before: bytes, after: bytes, size: int, *, at_end: bool = False) -> bytes:
        given = {"before": before.hex(), "after": after.hex(), "size": size, "at-end": at_end}
        call = "ags1.iceberg.Guard.readReplaced"
        return bytes.fromhex(java.call(call, **given, ranges=ranges, required=False))

    for data in ENCRYPTED:
        assert read(data, data, len(data)) == data
    for data in PARQUET:
        assert read(data, data, 4, at_end=True) == data[-4:]
    # No reader of Parquet gets a file that nobody has checked as Parquet.
    for data in (STREAM, b"AGS1" + parquet()[4:]):
        with pytest.raises(JavaError, match="is read from its end"):
            read(data, data, 8, at_end=True)
    for before in (*ENCRYPTED, b"PAR1 rows PAR1"):
        other = b"Obj\1" * (len(before) // 4 + 1)
        after = other[: len(before)]
        for size in (1, 3, 4):
            assert read(before, after, size) == before[:size]
        checked = 4 + (before[:4] == b"PARE") * (len(before) - 4)
        assert read(before, after, len(before))[:4] == before[:4]
        if before != STREAM:
            assert read(before, after, len(before) - checked, at_end=True) == after[checked:]
    # Of a long end, the last 64 KiB are checked, and the structure in front of the footer.
    small, large = parquet(), parquet(footer=1 << 18)
    for before, size in ((small, len(small)), (large, 1 << 16)):
        assert read(before, bytes(len(before)), size, at_end=True) == before[-size:]
    size = len(large) - 4 - len(b" rows ")
    found = read(large, b"\1" * len(large), size, at_end=True)
    assert found == large[-size:][:20] + b"\1" * (size - 20 - (1 << 16)) + large[-(1 << 16) :]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused(java: Java, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    with contextlib.ExitStack() as made:
        if kind == "pipe":
            made.enter_context(pipe(path))
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
        for location in (f"file:{path}", f"file://{path}", str(path)):
            with pytest.raises(JavaError, match="is not a regular file"):
                java.call("ags1.iceberg.Guard.read", path=location)


@pytest.mark.parametrize("size", [0, 10, 1 << 16, (1 << 16) + 1])
def test_what_was_written_here_is_known_by_its_key(java: Java, size: int) -> None:
    is_small = size <= 1 << 16
    assert java.call("ags1.iceberg.Guard.known", size=size) == [is_small, False, False]


def test_files_are_deleted_at_once_where_the_storage_can(java: Java, tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(3)]
    for file in files:
        file.write_bytes(b"")
    paths = [f"file:{file}" for file in files]
    able = java.call("ags1.iceberg.Guard.abilities", paths=paths)
    assert able == [True, True, False, False]
    assert not any(file.exists() for file in files)


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


def test_nothing_is_written_into_a_table_that_may_not_have_it(java: Java, tmp_path: Path) -> None:
    """Its pages of version 2, say, which somebody asked for before the plug-in refused them."""
    call = {"path": f"file:{tmp_path}/file", "bytes": ENCRYPTED[0].hex(), "size": 4}
    with pytest.raises(JavaError, match="is not written: page-version is v2"):
        java.call("ags1.iceberg.Guard.write", **call, why="page-version is v2")
    assert not (tmp_path / "file").exists()


def test_metadata_that_changes_during_a_commit_is_not_pinned(java: Java, tmp_path: Path) -> None:
    catalog = {
        "uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        "warehouse": f"file:{tmp_path}",
        "encryption.kms-type": "memory",
        "encryption.kms.key.a": b"0123456789012345".hex(),
    }
    created = "ags1.iceberg.Swapped.created"
    swapped = {"from": '"price"', "to": '"PRICE"'}
    with pytest.raises(JavaError, match="is not the file that the catalog knows"):
        java.call(created, catalog=catalog, **swapped)
    # The pin is that of the metadata which was committed.
    kept = swapped | {"to": '"price"'}
    assert java.call(created, catalog=catalog, **kept).endswith("/db/t")
