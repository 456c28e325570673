"""The plaintext of encrypted Parquet files, which Arrow, Polars and DuckDB read as what it is.

The files are Arrow's own, and hold what was given to Arrow.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet.encryption import create_encryption_properties

from ags1 import KeyMetadata
from ags1.engine.source import MemorySource, PathSource
from ags1.errors import Ags1Error, AuthenticationError
from ags1.iceberg.formats import parquet_view
from ags1.iceberg.formats.parquet_view import ParquetView

WRITTEN: list[dict[str, Any]] = [
    {},
    {"data_page_version": "2.0"},
    {"compression": "none", "write_page_index": True},
    {"use_dictionary": False, "compression": "zstd"},
    {"row_group_size": 700},
    {"write_page_checksum": True, "data_page_size": 1000},
]


def rows() -> pa.Table:
    count = 3000
    columns = {
        "number": pa.array(range(count)),
        "a.b": pa.array([None if i % 7 == 0 else f"v{i % 100}" for i in range(count)]),
        "list": pa.array([list(range(i % 4)) for i in range(count)]),
        "group": pa.array([{"x": i, "y": {"z": str(i)}} for i in range(count)]),
        "last": pa.array([i / 3 for i in range(count)]),
    }
    return pa.table(columns)


def encrypted(table: pa.Table, **options: Any) -> tuple[bytes, KeyMetadata]:
    km = KeyMetadata(os.urandom(16), os.urandom(16))
    properties = create_encryption_properties(
        km.encryption_key, aad_prefix=km.aad_prefix, store_aad_prefix=False
    )
    out = io.BytesIO()
    pq.write_table(table, out, encryption_properties=properties, **options)
    data = out.getvalue()
    return data, km.with_file_length(len(data))


def shown(data: bytes, km: KeyMetadata, names: list[str] | None = None) -> bytearray:
    view = ParquetView(MemorySource(io.BytesIO(data)), km)
    memory = bytearray(view.size)
    view.prepare(memoryview(memory))
    view.fill(memoryview(memory), view.parts(names, None))
    return memory


@pytest.mark.parametrize("options", WRITTEN, ids=str)
def test_other_readers_read_it(options: dict[str, Any], tmp_path: Path) -> None:
    table = rows()
    data, km = encrypted(table, **options)
    plain = bytes(shown(data, km))
    assert pq.read_table(pa.BufferReader(plain)).equals(table)
    assert polars.read_parquet(plain).equals(polars.DataFrame(table))
    path = tmp_path / "plain.parquet"
    path.write_bytes(plain)
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT * FROM '{path}' WHERE number >= 0").fetch_arrow_table()
    assert found.cast(table.schema).equals(table)


@pytest.mark.parametrize("names", [["list"], ["last", "a.b"], ["group", "number"]])
def test_only_what_is_wanted_is_decrypted(names: list[str]) -> None:
    table = rows()
    data, km = encrypted(table, row_group_size=1000)
    plain = shown(data, km, names)
    assert pq.read_table(pa.BufferReader(plain), columns=names).select(names) == table.select(names)
    groups = pq.read_metadata(pa.BufferReader(plain))
    for group in map(groups.row_group, range(3)):
        for column in map(group.column, range(group.num_columns)):
            top = next(
                name for name in table.column_names if column.path_in_schema.startswith(name)
            )
            start = column.dictionary_page_offset or column.data_page_offset
            part = plain[start : start + column.total_compressed_size]
            assert any(part) == (top in names)


def test_pages_are_longer_than_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rows()
    data, km = encrypted(table, data_page_size=500, max_rows_per_page=100)
    path = tmp_path / "f.parquet"
    path.write_bytes(data)
    for size in (100, 1000, 5000):
        monkeypatch.setattr(parquet_view, "_WINDOW_SIZE", size)
        view = ParquetView(PathSource(os.open(path, os.O_RDONLY), len(data)), km)
        memory = bytearray(view.size)
        view.prepare(memoryview(memory))
        view.fill(memoryview(memory), view.parts(None, None))
        assert memory == shown(data, km)
        assert pq.read_table(pa.BufferReader(memory)).equals(table)


def test_a_changed_byte_is_refused_and_nothing_of_its_column_is_shown() -> None:
    table = rows().select(["number", "last"])
    data, km = encrypted(table, data_page_size=2000)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    refused = 0
    for at in range(4, footer, 97):
        changed = bytearray(data)
        changed[at] ^= 1
        view = ParquetView(MemorySource(io.BytesIO(changed)), km)
        memory = bytearray(view.size)
        for part in view.parts(None, None):
            if part.start <= at < part.end:
                with pytest.raises(AuthenticationError):
                    view.fill(memoryview(memory), [part])
                assert not any(memory)
                refused += 1
    assert refused > 100
    for at in range(footer, len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(Ags1Error):
            ParquetView(MemorySource(io.BytesIO(changed)), km)
