"""The plaintext of encrypted Parquet files, which Arrow, Polars and DuckDB read as what it is.

The files are Arrow's own, and hold what was given to Arrow.
"""

from __future__ import annotations

import functools
import io
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet.encryption import create_encryption_properties

from ags1 import KeyMetadata
from ags1.engine.source import PathSource, RangedSource, open_source
from ags1.errors import Ags1Error, AuthenticationError
from ags1.iceberg.formats import parquet_view
from ags1.iceberg.formats.parquet_fields import ColumnMetaData
from ags1.iceberg.formats.parquet_modules import ModuleType, ParquetSource, chunks
from ags1.iceberg.formats.parquet_view import ParquetView, PlainParquet
from ags1.iceberg.formats.parquet_writer import EncryptedParquetWriter

WRITTEN: list[dict[str, Any]] = [
    {},
    {"data_page_version": "2.0"},
    {"compression": "none", "write_page_index": True},
    {"use_dictionary": False, "compression": "zstd"},
    {"row_group_size": 700},
    {"write_page_checksum": True, "data_page_size": 1000},
]


@functools.cache
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
    view = ParquetView(open_source(io.BytesIO(data))[0], km)
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
        # Nothing is left of the pages before one that is not authentic.
        part = view.parts(["number"], None)[0]
        changed = bytearray(data)
        changed[part.end - 1] ^= 1
        path.write_bytes(changed)
        memory = bytearray(view.size)
        with pytest.raises(AuthenticationError):
            view.fill(memoryview(memory), [part])
        assert not any(memory)
        path.write_bytes(data)


def test_a_changed_byte_is_refused_and_nothing_of_its_column_is_shown() -> None:
    table = rows().select(["number", "last"])
    data, km = encrypted(table, data_page_size=2000)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    refused = 0
    for at in range(4, footer, 97):
        changed = bytearray(data)
        changed[at] ^= 1
        view = ParquetView(open_source(io.BytesIO(changed))[0], km)
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
            ParquetView(open_source(io.BytesIO(changed))[0], km)


EVERY_MODULE: dict[str, Any] = {
    "write_page_index": True,
    "bloom_filter_options": {"number": {"ndv": 3000}, "a.b": {"ndv": 100}},
    "row_group_size": 2000,
    "data_page_size": 4000,
}


@pytest.fixture(scope="module")
def whole() -> tuple[bytes, KeyMetadata]:
    """A file with modules of all kinds. Arrow cannot encrypt bloom filters."""
    km, out = KeyMetadata.generate(), io.BytesIO()
    options = dict(EVERY_MODULE)
    size = options.pop("row_group_size")
    writer = EncryptedParquetWriter(out.write, km, rows().schema, **options)
    writer.write_table(rows(), size)
    writer.close()
    return out.getvalue(), km.with_file_length(writer.size)


def plain(data: bytes, km: KeyMetadata) -> PlainParquet:
    return PlainParquet(ParquetView(open_source(io.BytesIO(data))[0], km))


def unencrypted(data: bytes) -> ParquetSource:
    return ParquetSource(lambda at, size: data[at : at + size], len(data), None)


def test_indexes_and_bloom_filters_are_those_of_a_plain_file(
    whole: tuple[bytes, KeyMetadata], tmp_path: Path
) -> None:
    theirs = io.BytesIO()
    pq.write_table(rows(), theirs, **EVERY_MODULE)
    with plain(*whole) as file:
        ours = file.read()
    sources = unencrypted(ours), unencrypted(theirs.getvalue())
    filters = 0
    for chunk, other in zip(*(chunks(source.footer()) for source in sources), strict=True):
        kind = ModuleType.COLUMN_INDEX
        found, expected = (s.index(c, kind) for s, c in zip(sources, (chunk, other), strict=True))
        # The end of the struct, which the padding comes before.
        assert found.startswith(expected[:-1])
        if ColumnMetaData.BLOOM_FILTER_OFFSET in other.meta:
            assert sources[0].bloom_filter(chunk)[1] == sources[1].bloom_filter(other)[1]
            filters += 1
    assert filters == 2 * 2
    paths = tmp_path / "ours.parquet", tmp_path / "theirs.parquet"
    paths[0].write_bytes(ours)
    paths[1].write_bytes(theirs.getvalue())
    with duckdb.connect() as connection:
        for value in ("5", "2500", "99999"):
            probes = [
                connection.sql(
                    f"SELECT row_group_id, bloom_filter_excludes "
                    f"FROM parquet_bloom_probe('{path}', 'number', {value}::BIGINT)"
                ).fetchall()
                for path in paths
            ]
            assert probes[0] == probes[1]
            assert any(excludes for _, excludes in probes[0])


def modules(data: bytes) -> list[tuple[int, int]]:
    """Return where the modules before the footer begin and end: one follows the other."""
    found, at = [], 4
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    while at < footer:
        found.append((at, at + 4 + int.from_bytes(data[at : at + 4], "little")))
        at = found[-1][1]
    assert at == footer
    return found


PLACES: dict[str, Callable[[int, int], int]] = {
    "length": lambda begin, _: begin,
    "nonce": lambda begin, _: begin + 4,
    "text": lambda begin, _: begin + 16,
    "tag": lambda _, end: end - 1,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_bit_in_a_module_of_any_kind(
    whole: tuple[bytes, KeyMetadata], place: str
) -> None:
    data, km = whole
    with plain(data, km) as file:
        assert pq.read_table(file).equals(rows())
    for begin, end in modules(data):
        changed = bytearray(data)
        changed[PLACES[place](begin, end)] ^= 1
        with pytest.raises(Ags1Error), plain(bytes(changed), km) as file:
            file.read()


def test_another_key_and_a_cut_file(whole: tuple[bytes, KeyMetadata]) -> None:
    data, km = whole
    other = KeyMetadata(bytes(len(km.encryption_key)), km.aad_prefix, km.file_length)
    with pytest.raises(AuthenticationError):
        plain(data, other)
    with pytest.raises(AuthenticationError):
        plain(data, KeyMetadata(km.encryption_key, bytes(16), km.file_length))
    for size in (0, 3, 12, len(data) // 2, len(data) - 1):
        with pytest.raises(Ags1Error):
            plain(data[:size], km)
        with pytest.raises(Ags1Error):
            plain(data[:size], km.with_file_length(size))


def test_threads_share_a_view(
    whole: tuple[bytes, KeyMetadata], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it holds fewer parts than they read, and the source returns pieces."""
    data, km = whole
    with plain(data, km) as file:
        expected = file.read()
    monkeypatch.setattr(parquet_view, "_HELD_SIZE", 1000)
    source = RangedSource(lambda at, size: data[at : at + min(size, 5000)], len(data))
    with PlainParquet(ParquetView(source, km)) as file, ThreadPoolExecutor(8) as pool:

        def read(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(50):
                at, size = chance.randrange(len(data)), chance.randrange(20_000)
                assert file.pread(at, size) == expected[at : at + size]

        list(pool.map(read, range(8)))
