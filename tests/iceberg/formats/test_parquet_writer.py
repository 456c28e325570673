"""Encrypted Parquet files of rows: what Arrow, with the key, writes itself and reads of ours."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet.encryption import create_decryption_properties, create_encryption_properties

from ags1 import KeyMetadata
from ags1.errors import FormatError, KeyReuseError
from ags1.iceberg.formats import parquet_modules
from ags1.iceberg.formats.parquet_fields import ColumnMetaData
from ags1.iceberg.formats.parquet_modules import (
    ModuleType,
    ParquetSource,
    chunks,
    verify_parquet,
)
from ags1.iceberg.formats.parquet_writer import EncryptedParquetWriter
from ags1.iceberg.formats.thrift import parse, value

from ..write.test_reencryption import WRITERS, contents, table

OPTIONS: dict[str, dict[str, Any]] = {
    **WRITERS,
    "sorted": {"sorting_columns": [pq.SortingColumn(0), pq.SortingColumn(1, True, True)]},
    "no statistics, no schema of Arrow": {"write_statistics": False, "store_schema": False},
    "brotli, byte streams": {
        "compression": "brotli",
        "use_dictionary": False,
        "column_encoding": {"ratio": "BYTE_STREAM_SPLIT", "id": "DELTA_BINARY_PACKED"},
    },
}


def written(
    rows: pa.Table, km: KeyMetadata, row_group_size: int | None = None, **options: Any
) -> tuple[bytes, pq.FileMetaData]:
    out = io.BytesIO()
    writer = EncryptedParquetWriter(out.write, km, rows.schema, **options)
    writer.write_table(rows, row_group_size)
    footer = writer.close()
    assert writer.size == len(out.getvalue())
    return out.getvalue(), footer


def by_arrow(rows: pa.Table, km: KeyMetadata, **options: Any) -> bytes:
    out = io.BytesIO()
    properties = create_encryption_properties(
        km.encryption_key, aad_prefix=km.aad_prefix or b"", store_aad_prefix=False
    )
    pq.write_table(rows, out, encryption_properties=properties, **options)
    return out.getvalue()


def opened(data: bytes, km: KeyMetadata) -> pq.ParquetFile:
    properties = create_decryption_properties(
        km.encryption_key, aad_prefix=km.aad_prefix or b"", allow_plaintext_files=False
    )
    return pq.ParquetFile(io.BytesIO(data), decryption_properties=properties)


def values(rows: pa.Table) -> str:
    """NaN is equal to itself."""
    return repr(rows.to_pylist())


def footer_of(metadata: pq.FileMetaData) -> str:
    """All that a footer says besides where parts are, its own size and bloom filters."""
    places = {"file_offset", "dictionary_page_offset", "data_page_offset"}
    found = metadata.to_dict()
    del found["serialized_size"]
    for group in found["row_groups"]:
        for column in group["columns"]:
            for name in ("bloom_filter_offset", "bloom_filter_length"):
                column.pop(name, None)
            for place in places & column.keys():
                column[place] = column[place] is not None
    schema = str(metadata.schema).partition(">")[2]
    return json.dumps([found, schema, repr(metadata.metadata)], default=repr, indent=1)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_arrow_reads_it_as_its_own(options: dict[str, Any]) -> None:
    rows = table(400)
    km, theirs_km = KeyMetadata.generate(), KeyMetadata.generate()
    data, footer = written(rows, km, **options)
    # Arrow encrypts no bloom filters. Our pages have no checksum: they have a tag.
    left_out = "bloom_filter_options", "write_page_checksum"
    options = {name: given for name, given in options.items() if name not in left_out}
    file, theirs = opened(data, km), opened(by_arrow(rows, theirs_km, **options), theirs_km)
    assert contents(file.read()) == contents(theirs.read())
    assert footer_of(file.metadata) == footer_of(theirs.metadata)
    assert file.metadata.to_dict() == footer.to_dict() | {
        "serialized_size": file.metadata.serialized_size
    }
    km = km.with_file_length(len(data))
    verified = verify_parquet(lambda at, size: data[at : at + size], len(data), km)
    assert (verified.rows, verified.padding_size) == (len(rows), 0)
    assert b"text 1" not in data


def test_indexes_and_filters_are_those_of_arrow() -> None:
    """Of a file of several row groups; offset indexes have other places."""
    rows, options = table(), WRITERS["indexes and filters"]
    km = KeyMetadata.generate()
    data, _ = written(rows, km, row_group_size=300, **options)
    plain = io.BytesIO()
    pq.write_table(rows, plain, row_group_size=300, **options)
    km = km.with_file_length(len(data))
    ours = ParquetSource(lambda at, size: data[at : at + size], len(data), km)
    theirs = ParquetSource(lambda at, size: plain.getvalue()[at : at + size], plain.tell(), None)
    filters = 0
    for chunk, other in zip(chunks(ours.footer()), chunks(theirs.footer()), strict=True):
        kind = ModuleType.COLUMN_INDEX
        assert ours.index(chunk, kind) == theirs.index(other, kind)
        if ColumnMetaData.BLOOM_FILTER_OFFSET in other.meta:
            assert ours.bloom_filter(chunk) == theirs.bloom_filter(other)
            filters += 1
        index, _ = parse(ours.index(chunk, ModuleType.OFFSET_INDEX))
        for number, place in enumerate(value(index, 1)[1]):
            # It opens there only as the page that it is.
            start, size = value(place, 1), value(place, 2)
            assert ours._encrypted_page(chunk, start, start + size, number)[1] == start + size
    assert filters == 2 * 4


@pytest.mark.parametrize("count", [0, 1])
def test_a_file_of_no_rows(count: int) -> None:
    rows = table(count)
    km, theirs_km = KeyMetadata.generate(), KeyMetadata.generate()
    data, _ = written(rows, km)
    assert values(opened(data, km).read()) == values(rows)
    theirs = opened(by_arrow(rows, theirs_km), theirs_km)
    assert footer_of(opened(data, km).metadata) == footer_of(theirs.metadata)
    out = io.BytesIO()
    km = KeyMetadata.generate()
    EncryptedParquetWriter(out.write, km, rows.schema).close()
    assert values(opened(out.getvalue(), km).read()) == "[]"


def test_pages_of_version_2_become_pages_of_version_1() -> None:
    rows, km = table(), KeyMetadata.generate()
    data, _ = written(rows, km, data_page_version="2.0", compression="zstd")
    assert values(opened(data, km).read()) == values(rows)
    km = km.with_file_length(len(data))
    verified = verify_parquet(lambda at, size: data[at : at + size], len(data), km)
    assert verified.plain_levels_size == 0


def test_a_file_without_an_aad_prefix() -> None:
    rows, km = table(10), KeyMetadata(bytes(range(16)))
    data, _ = written(rows, km)
    properties = create_decryption_properties(km.encryption_key)
    file = pq.ParquetFile(io.BytesIO(data), decryption_properties=properties)
    assert values(file.read()) == values(rows)


def test_each_module_has_a_nonce_of_its_own() -> None:
    data, _ = written(table(), KeyMetadata.generate(), row_group_size=100, data_page_size=300)
    at, nonces = 4, []
    while at < len(data) - 8 - int.from_bytes(data[-8:-4], "little"):
        nonces.append(data[at + 4 : at + 16])
        at += 4 + int.from_bytes(data[at : at + 4], "little")
    assert len(nonces) > 500
    assert len(set(nonces)) == len(nonces)


def test_a_used_key_is_refused() -> None:
    km = KeyMetadata.generate()
    written(table(1), km)
    for used in (km, km.with_file_length(100)):
        with pytest.raises(KeyReuseError):
            written(table(1), used)


def test_a_forked_child_does_not_continue_a_file(
    in_a_fork: Callable[[Callable[[], object]], None],
) -> None:
    out, rows, km = io.BytesIO(), table(100), KeyMetadata.generate()
    writer = EncryptedParquetWriter(out.write, km, rows.schema)
    writer.write_table(rows)

    def child() -> None:
        before = out.getvalue()
        for work in (lambda: writer.write_table(rows), writer.close):
            with pytest.raises(KeyReuseError, match="fork"):
                work()
        assert out.getvalue() == before

    in_a_fork(child)
    writer.close()
    assert opened(out.getvalue(), km).read().num_rows == 100


def test_more_pages_than_can_be_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another page would have the AAD of an earlier one. Arrow refuses it too."""
    rows = pa.table({"a": range(40_000)})
    options: dict[str, Any] = {"max_rows_per_page": 1, "use_dictionary": False}
    with pytest.raises(FormatError, match="more pages"):
        written(rows, KeyMetadata.generate(), write_batch_size=1, **options)
    monkeypatch.setattr(parquet_modules, "_MAX_ORDINAL", 3)
    with pytest.raises(FormatError, match="more row groups"):
        written(rows.slice(0, 5), KeyMetadata.generate(), row_group_size=1)


def test_what_arrow_refuses_is_raised() -> None:
    with pytest.raises(ValueError, match="schema"):
        EncryptedParquetWriter(
            io.BytesIO().write, KeyMetadata.generate(), pa.schema({"a": pa.int64()})
        ).write_table(pa.table({"b": [1]}))


def test_arrow_gets_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes an unencrypted file, to memory."""
    made: list[tuple[Any, ...]] = []

    class Noted(pq.ParquetWriter):
        def __init__(self, where: Any, schema: pa.Schema, **options: Any) -> None:
            made.append((where, options))
            super().__init__(where, schema, **options)

    monkeypatch.setattr(pq, "ParquetWriter", Noted)
    rows, km = table(250), KeyMetadata.generate()
    written(rows, km, row_group_size=100)
    assert len(made) == 3
    for where, options in made:
        assert "encryption_properties" not in options
        assert pq.read_table(io.BytesIO(where.data)).num_rows in (100, 50)
