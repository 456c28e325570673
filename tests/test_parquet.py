"""Encrypted Parquet files outside tables, which pyarrow reads with the same key."""

from __future__ import annotations

import io
import os
import resource
import signal
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet.encryption import create_decryption_properties, create_encryption_properties

from ags1 import KeyMetadata, parquet
from ags1.arrow import filesystem
from ags1.duckdb import connect
from ags1.errors import AuthenticationError, NoKeyError, NotEncryptedError, TruncatedError
from ags1.kms.local import create_key
from ags1.polars import scan_parquet

ROWS = pa.table(
    {
        "n": pa.array(range(5000)),
        "text": pa.array([None if i % 5 == 0 else f"t{i % 50}" for i in range(5000)]),
        "list": pa.array([list(range(i % 3)) for i in range(5000)]),
    }
)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("HOME", str(tmp_path))
    keyring = tmp_path / "keyring"
    create_key(str(keyring), "default")
    return {"keyring": str(keyring), "key": "default"}


@pytest.fixture
def written(tmp_path: Path, options: dict[str, Any]) -> tuple[Path, KeyMetadata]:
    path = tmp_path / "f.parquet"
    km = parquet.write_table(
        ROWS, path, row_group_size=2000, storage_options=options, write_page_index=True
    )
    return path, km


def test_pyarrow_reads_it_with_the_same_key(written: tuple[Path, KeyMetadata]) -> None:
    path, km = written
    keys = create_decryption_properties(km.encryption_key, aad_prefix=km.aad_prefix)
    assert pq.read_table(path, decryption_properties=keys).equals(ROWS)


def test_other_libraries_read_the_plaintext(
    written: tuple[Path, KeyMetadata], options: dict[str, Any]
) -> None:
    path, km = written
    with parquet.open(path, storage_options=options) as file:
        assert pq.read_table(file).equals(ROWS)
    with parquet.open(path, km) as file:
        assert pq.read_table(file, columns=["text"], filters=[("n", ">", 4000)]).num_rows == 999
    with parquet.open(path, km) as file:
        assert pandas.read_parquet(file)["n"].sum() == sum(range(5000))
    with parquet.open(path, km) as file:
        assert polars.read_parquet(file).equals(polars.DataFrame(ROWS))
    with parquet.open(path, km) as file, duckdb.connect() as connection:
        found = connection.from_parquet(file).aggregate("sum(n)").fetchall()
        assert found == [(sum(range(5000)),)]


def test_what_pyarrow_wrote_is_opened(tmp_path: Path) -> None:
    km = KeyMetadata.generate(16)
    properties = create_encryption_properties(
        km.encryption_key, aad_prefix=km.aad_prefix, store_aad_prefix=False
    )
    out = io.BytesIO()
    pq.write_table(ROWS, out, encryption_properties=properties, write_page_index=True)
    path = tmp_path / "f.parquet"
    path.write_bytes(out.getvalue())
    km = km.with_file_length(len(out.getvalue()))
    with parquet.open(path, km) as file:
        assert pq.ParquetFile(file).metadata.row_group(0).column(0).has_offset_index
        file.seek(0)
        assert polars.scan_parquet(file).select("n").sum().collect().item() == sum(range(5000))


def test_another_file_is_refused(
    written: tuple[Path, KeyMetadata], tmp_path: Path, options: dict[str, Any]
) -> None:
    path, km = written
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(TruncatedError):
        parquet.open(path, km)
    changed = bytearray(data)
    changed[100] ^= 1
    path.write_bytes(changed)
    with parquet.open(path, km) as file, pytest.raises(AuthenticationError):
        file.read()
    other = tmp_path / "other.parquet"
    parquet.write_table(ROWS, other, storage_options=options)
    path.write_bytes(other.read_bytes())
    with pytest.raises(NoKeyError):
        parquet.open(path, storage_options=options)
    pq.write_table(ROWS, path)
    with pytest.raises(NotEncryptedError):
        parquet.open(path, km)


def test_a_pipe_is_refused_at_once(written: tuple[Path, KeyMetadata]) -> None:
    path, km = written
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="Not a regular file"):
        parquet.open(path, km)


def test_ags1_urls_name_it(written: tuple[Path, KeyMetadata], options: dict[str, Any]) -> None:
    path, _ = written
    url = f"ags1::file://{path}"
    n = sum(range(5000))
    assert pandas.read_parquet(url, storage_options=options, columns=["n"])["n"].sum() == n
    assert scan_parquet(path, storage_options=options).select("n").sum().collect().item() == n
    with connect(storage_options=options) as connection:
        found = connection.sql(f"SELECT sum(n), count(text) FROM read_parquet('{url}')").fetchall()
    assert found == [(n, 4000)]
    assert pq.read_table(str(path), filesystem=filesystem(**options)).equals(ROWS)
    files = fsspec.filesystem("ags1", target_protocol="file", **options)
    with files.open(str(path), "rb") as file:
        assert files.info(str(path))["size"] == file.size
    pq.write_table(ROWS, path)
    with pytest.raises(FileNotFoundError):
        files.open(str(path), "rb")
    assert not files.exists(str(path))


def test_a_file_is_replaced_as_a_whole(
    written: tuple[Path, KeyMetadata], options: dict[str, Any], tmp_path: Path
) -> None:
    path, _ = written
    names = sorted(os.listdir(tmp_path))
    on_excess = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for most in (1000, path.stat().st_size // 2):
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
            with pytest.raises(OSError, match="File too large"):
                parquet.write_table(ROWS, path, storage_options=options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, on_excess)
    with parquet.open(path, storage_options=options) as file:
        assert pq.read_table(file).equals(ROWS)
    parquet.write_table(ROWS.slice(7), path, storage_options=options)
    with parquet.open(path, storage_options=options) as file:
        assert pq.read_table(file).equals(ROWS.slice(7))
    assert sorted(os.listdir(tmp_path)) == names
