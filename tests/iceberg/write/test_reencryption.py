"""Files under fresh keys: the same rows, metadata and statistics, judged by pyarrow and Java's
files."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_files import all_fields
from iceberg_tables import TABLES, copied, memory_kms, open_fixture
from pyarrow.parquet.encryption import (
    create_decryption_properties,
    create_encryption_properties,
)
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.locations import load_location_provider
from table_maker import stored

import ags1
from ags1 import KeyMetadata
from ags1.engine._gcm import Checksum
from ags1.engine.reader import Reader
from ags1.errors import (
    Ags1Error,
    AuthenticationError,
    FormatError,
    KeyReuseError,
    MetadataIntegrityError,
    NotEncryptedError,
    TruncatedError,
)
from ags1.iceberg.formats import parquet_encryption, parquet_modules
from ags1.iceberg.formats._modules import ModuleCipher
from ags1.iceberg.formats.parquet_modules import (
    ModuleType,
    ParquetSource,
    chunks,
    verify_parquet,
)
from ags1.iceberg.formats.parquet_transcription import transcribe_parquet
from ags1.iceberg.formats.thrift import parse, print_struct, value
from ags1.iceberg.operations.rewrite import RewritePlan, Rewriter
from ags1.iceberg.read.records import ContentFile, ManifestEntry, read_entries
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.storage.table_files import TableFiles
from ags1.iceberg.write import reencryption
from ags1.iceberg.write.executors import RewriteThreads
from ags1.iceberg.write.reencryption import new_location, rewrite_file
from ags1.keys.manager import EncryptionManager

IO = PyArrowFileIO()


def manager(key_size: int = 16) -> EncryptionManager:
    return EncryptionManager(memory_kms(), "keyA", data_key_length=key_size)


def _files(key_size: int = 16) -> TableFiles:
    return TableFiles(IO, manager(key_size))


def field(name: str, kind: pa.DataType, field_id: int, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable, {"PARQUET:field_id": str(field_id)})


def table(count: int = 1000) -> pa.Table:
    item = field("element", pa.int32(), 21)
    schema = pa.schema(
        [
            field("id", pa.int64(), 1, nullable=False),
            field("text", pa.string(), 2),
            field("ratio", pa.float64(), 3),
            field("flag", pa.bool_(), 4),
            field("price", pa.decimal128(20, 3), 5),
            field("day", pa.date32(), 6),
            field("at", pa.timestamp("us", "UTC"), 7),
            field("clock", pa.time64("us"), 8),
            field("uuid", pa.binary(16), 9),
            field("list", pa.list_(item), 10),
            field("pair", pa.struct([field("x", pa.int32(), 22), field("y", pa.string(), 23)]), 11),
            field(
                "map",
                pa.map_(
                    field("key", pa.string(), 24, nullable=False), field("value", pa.int64(), 25)
                ),
                12,
            ),
        ],
        {"iceberg.schema": '{"type":"struct"}'},
    )
    rows = [
        {
            "id": i,
            "text": None if i % 7 == 0 else f"text {i % 50}",
            "ratio": [1.5, float("nan"), None, -0.0][i % 4],
            "flag": [True, False, None][i % 3],
            "price": Decimal(i) / 8 * 8,
            "day": date(2026, 1, 1 + i % 28),
            "at": datetime(2026, 1, 1, i % 24),
            "clock": time(i % 24, 1),
            "uuid": UUID(int=i).bytes,
            "list": [None, [], [1, None, i]][i % 3],
            "pair": None if i % 5 == 0 else {"x": i, "y": None if i % 2 else "y"},
            "map": [None, [], [("k", i), ("n", None)]][i % 3],
        }
        for i in range(count)
    ]
    return pa.Table.from_pylist(rows, schema)


def record(path: Path, rows: int, **more: Any) -> ContentFile:
    kind = path.suffix[1:].upper()
    size = path.stat().st_size
    return ContentFile.of(
        content=0,
        file_path=f"file://{path}",
        file_format=kind,
        partition=(),
        record_count=rows,
        file_size_in_bytes=size,
        **more,
    )


def opened(file: ContentFile) -> pq.ParquetFile:
    km = file.key
    assert km is not None
    properties = create_decryption_properties(
        km.encryption_key, aad_prefix=km.aad_prefix, allow_plaintext_files=False
    )
    return pq.ParquetFile(stored(file.file_path), decryption_properties=properties)


def contents(found: pa.Table) -> Any:
    """All values and the schema; NaN is equal to itself."""
    return repr(found.to_pylist()), str(found.schema), found.schema.metadata


def _statistics(column: pq.ColumnChunkMetaData) -> str:
    found = column.statistics
    return str(found and found.to_dict())


def _slices(data: bytes) -> Callable[[int, int], bytes]:
    return lambda at, size: data[at : at + size]


def described(metadata: pq.FileMetaData) -> Any:
    """What a footer says of a file besides offsets and sizes."""
    columns = [
        (
            metadata.row_group(g).column(c).physical_type,
            metadata.row_group(g).column(c).path_in_schema,
            metadata.row_group(g).column(c).compression,
            metadata.row_group(g).column(c).num_values,
            _statistics(metadata.row_group(g).column(c)),
            metadata.row_group(g).column(c).has_offset_index,
            metadata.row_group(g).column(c).has_column_index,
        )
        for g in range(metadata.num_row_groups)
        for c in range(metadata.num_columns)
    ]
    groups = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
    return (
        columns,
        groups,
        str(metadata.schema).partition(">")[2],
        metadata.metadata,
        metadata.created_by,
    )


WRITERS: dict[str, dict[str, Any]] = {
    "snappy": {},
    "zstd in row groups": {"compression": "zstd", "row_group_size": 300},
    "no dictionary": {"use_dictionary": False, "compression": "none"},
    "indexes and filters": {
        "write_page_index": True,
        "data_page_size": 2000,
        "write_batch_size": 100,
        "bloom_filter_options": {"id": {"ndv": 3000}, "text": {"ndv": 50}},
    },
    "checksums": {"write_page_checksum": True, "compression": "gzip"},
    "int96": {"use_deprecated_int96_timestamps": True},
    "small pages": {"data_page_size": 500, "write_batch_size": 50},
}
WRITERS_V2: dict[str, dict[str, Any]] = {
    "version 2": {"data_page_version": "2.0"},
    "version 2, delta": {
        "data_page_version": "2.0",
        "use_dictionary": False,
        "column_encoding": {"id": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY", "flag": "RLE"},
        "write_page_index": True,
        "write_page_checksum": True,
        "data_page_size": 2000,
        "compression": "zstd",
    },
    "version 2, plain": {"data_page_version": "2.0", "compression": "none"},
}


# The bytes that are read at once: all of a page or more, and less.
@pytest.mark.parametrize(("key_size", "window_size"), [(16, 4 << 20), (32, 64)])
@pytest.mark.parametrize("options", WRITERS.values(), ids=WRITERS)
def test_a_plain_parquet_file_is_the_same_but_encrypted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    key_size: int,
    window_size: int,
) -> None:
    monkeypatch.setattr(parquet_modules, "WINDOW_SIZE", window_size)
    path = tmp_path / "plain.parquet"
    rows = table(400)
    pq.write_table(rows, path, **options)
    old = record(path, len(rows), column_sizes={1: 3, 2: 4}, value_counts={1: 400})
    new = rewrite_file(old, _files(key_size), TableOutput(IO), f"file://{tmp_path}/new.parquet")

    file = opened(new)
    assert contents(file.read()) == contents(pq.read_table(path))
    assert described(file.metadata) == described(pq.read_metadata(path))
    data = (tmp_path / "new.parquet").read_bytes()
    km = new.key
    assert km is not None
    assert len(km.encryption_key) == key_size
    assert km.file_length == new.file_size_in_bytes == len(data)
    verified = verify_parquet(_slices(data), len(data), km)
    assert verified.rows == len(rows)
    assert verified.padding_size == verified.plain_levels_size == 0
    assert b"text 1" not in data
    # What the manifest says of it follows the new places and sizes.
    metadata = file.metadata
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    assert new.column_sizes == {
        i + 1: sum(g.column(i).total_compressed_size for g in groups) for i in range(2)
    }
    firsts = [g.column(0) for g in groups]
    assert new.split_offsets == tuple(
        c.dictionary_page_offset or c.data_page_offset for c in firsts
    )
    assert new.split_offsets[0] == 4
    for group in groups:
        sizes = [group.column(c).total_compressed_size for c in range(metadata.num_columns)]
        assert sum(sizes) <= len(data)
    expected = old.replace(
        file_path=new.file_path,
        file_size_in_bytes=new.file_size_in_bytes,
        key_metadata=new.key_bytes,
        column_sizes=new.column_sizes,
        split_offsets=new.split_offsets,
    )
    assert all_fields(new) == all_fields(expected)


@pytest.mark.parametrize("options", WRITERS_V2.values(), ids=WRITERS_V2)
def test_pages_of_version_2_become_pages_of_version_1(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path = tmp_path / "plain.parquet"
    rows = table()
    pq.write_table(rows, path, **options)
    new = rewrite_file(
        record(path, len(rows)), _files(), TableOutput(IO), f"file://{tmp_path}/n.parquet"
    )
    file = opened(new)
    assert contents(file.read()) == contents(pq.read_table(path))
    assert described(file.metadata) == described(pq.read_metadata(path))
    data = (tmp_path / "n.parquet").read_bytes()
    verified = verify_parquet(_slices(data), len(data), new.key)
    assert verified.plain_levels_size == 0


def test_an_index_still_finds_its_pages(tmp_path: Path) -> None:
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    path = tmp_path / "plain.parquet"
    rows = table()
    pq.write_table(rows, path, write_page_index=True, data_page_size=500, write_batch_size=50)
    new = rewrite_file(
        record(path, len(rows)), _files(), TableOutput(IO), f"file://{tmp_path}/n.parquet"
    )
    km = new.key
    assert km is not None
    options = ds.ParquetFragmentScanOptions(
        decryption_properties=create_decryption_properties(
            km.encryption_key, aad_prefix=km.aad_prefix
        )
    )
    kind = ds.ParquetFileFormat(default_fragment_scan_options=options)
    found = ds.dataset(str(tmp_path / "n.parquet"), format=kind).to_table(
        filter=pc.field("id") == 789
    )
    assert found["id"].to_pylist() == [789]


def test_a_file_without_rows_is_rewritten(tmp_path: Path) -> None:
    for name, rows in {"none": table(0), "one": table(1)}.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(rows, path)
        location = f"file://{tmp_path}/new-{name}.parquet"
        new = rewrite_file(record(path, len(rows)), _files(), TableOutput(IO), location)
        assert contents(opened(new).read()) == contents(pq.read_table(path))
        data = stored(location).read_bytes()
        assert verify_parquet(_slices(data), len(data), new.key).rows == len(rows)
        again = rewrite_file(new, _files(), TableOutput(IO), f"{location}-2")
        assert contents(opened(again).read()) == contents(pq.read_table(path))


def test_an_encrypted_file_of_arrow_without_rows_is_rewritten(tmp_path: Path) -> None:
    km = KeyMetadata.generate(16)
    properties = create_encryption_properties(
        km.encryption_key, aad_prefix=km.aad_prefix, store_aad_prefix=False
    )
    path = tmp_path / "empty.parquet"
    pq.write_table(table(0), path, encryption_properties=properties)
    km = km.with_file_length(path.stat().st_size)
    old = record(path, 0, key_metadata=km.to_bytes())
    new = rewrite_file(old, _files(), TableOutput(IO), f"file://{tmp_path}/n.parquet")
    assert contents(opened(new).read()) == contents(opened(old).read())


def fixture_entries(name: str, folder: Path = TABLES) -> tuple[Any, list[ManifestEntry]]:
    opened_table = open_fixture(name, folder)
    snapshot = opened_table.current_snapshot()
    assert snapshot is not None
    entries = [
        e
        for m in snapshot.manifests(opened_table.files)
        for e in read_entries(m, opened_table.files)
    ]
    return opened_table, entries


@pytest.mark.parametrize("name", ["parquet_plain", "mor_dv", "stats"])
def test_a_file_of_java_has_the_same_rows_under_another_key(tmp_path: Path, name: str) -> None:
    source, entries = fixture_entries(name)
    data = [e.file for e in entries if e.file.content == 0]
    assert data
    for number, old in enumerate(data):
        location = f"file://{tmp_path}/{number}.parquet"
        new = rewrite_file(old, source.files.with_keys(manager(32)), TableOutput(IO), location)
        before, after = old.key, new.key
        assert before is not None
        assert after is not None
        assert before.encryption_key != after.encryption_key
        here = source.files.local_path(old.file_path)
        properties = create_decryption_properties(
            before.encryption_key, aad_prefix=before.aad_prefix
        )
        expected = pq.ParquetFile(here, decryption_properties=properties)
        assert contents(opened(new).read()) == contents(expected.read())
        assert described(opened(new).metadata) == described(expected.metadata)
        assert new.fields()["split_offsets"] == old.fields()["split_offsets"]
        # Java's structures have some bytes behind them that nobody reads.
        assert new.column_sizes is not None
        assert old.column_sizes is not None
        assert new.column_sizes.keys() == old.column_sizes.keys()
        assert all(0 < size <= old.column_sizes[i] for i, size in new.column_sizes.items())
        assert new.first_row_id == old.first_row_id


def test_an_avro_file_is_sealed_anew_as_it_is(tmp_path: Path) -> None:
    source, entries = fixture_entries("avro_part")
    folder = TABLES / "avro_part" / "data"
    here = next(
        e.file for e in entries if (folder / "p=odd" / Path(e.file.file_path).name).exists()
    )
    location = f"file://{tmp_path}/new.avro"
    new = rewrite_file(here, source.files.with_keys(manager(32)), TableOutput(IO), location)
    old_km, new_km = here.key, new.key
    assert old_km is not None
    assert new_km is not None
    plain = source.files.read_encrypted(here.file_path, old_km)
    data = (tmp_path / "new.avro").read_bytes()
    assert ags1.decrypt(data, new_km) == plain
    assert new_km.encryption_key != old_km.encryption_key
    assert new.file_size_in_bytes == len(data) == new_km.file_length


def avro(path: Path, count: int, text: str = "") -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "v", "type": "string"}]
    schema = {"type": "record", "name": "r", "fields": fields}
    rows = ({"id": i, "v": text} for i in range(count))
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, sync_interval=1000)


def test_a_plain_avro_file_is_sealed(tmp_path: Path) -> None:
    avro(tmp_path / "plain.avro", 5000)
    old = record(tmp_path / "plain.avro", 5000)
    new = rewrite_file(old, _files(), TableOutput(IO), f"file://{tmp_path}/new.avro")
    assert new.key is not None
    plain = ags1.decrypt((tmp_path / "new.avro").read_bytes(), new.key)
    assert plain == (tmp_path / "plain.avro").read_bytes()
    assert len(list(fastavro.reader(io.BytesIO(plain)))) == 5000


@pytest.mark.parametrize("kind", ["avro", "parquet"])
@pytest.mark.parametrize("stated", [-1, +1])
def test_another_number_of_rows_is_noticed(tmp_path: Path, kind: str, stated: int) -> None:
    path = tmp_path / f"plain.{kind}"
    if kind == "avro":
        avro(path, 100)
    else:
        pq.write_table(table(100), path)
    with pytest.raises(MetadataIntegrityError, match="100 rows"):
        rewrite_file(record(path, 100 + stated), _files(), TableOutput(IO), f"file://{tmp_path}/n")
    assert os.listdir(tmp_path) == [path.name]


class Careless(TableOutput):
    """A storage that changes a byte of what it was given."""

    @contextmanager
    def create(self, location: str) -> Iterator[BinaryIO]:
        with super().create(location) as file:
            yield file
        path = stored(location)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


@pytest.mark.parametrize("kind", ["avro", "parquet"])
def test_what_the_storage_changed_is_noticed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"plain.{kind}"
    if kind == "avro":
        avro(path, 5000)
    else:
        pq.write_table(table(), path)
    with pytest.raises((AuthenticationError, MetadataIntegrityError)):
        rewrite_file(record(path, 5000), _files(), Careless(IO), f"file://{tmp_path}/n")
    assert os.listdir(tmp_path) == [path.name]


def test_what_a_faulty_machine_encrypted_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tags verify then, and the plaintext is another."""

    class Wrong(Reader):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(size).replace(b"text", b"texT")

    class WrongCipher(ModuleCipher):
        def seal(self, modules: Iterable[tuple[int, bytes, Any]]) -> bytes:
            return super().seal(
                (kind, at, bytes(text).replace(b"text", b"texT") if kind == 2 else text)
                for kind, at, text in modules
            )

    pq.write_table(table(10), tmp_path / "plain.parquet", compression="none", use_dictionary=False)
    avro(tmp_path / "plain.avro", 10, "text")
    before = sorted(os.listdir(tmp_path))
    monkeypatch.setattr(parquet_encryption, "ModuleCipher", WrongCipher)
    monkeypatch.setattr(reencryption, "Reader", Wrong)
    for kind in ("parquet", "avro"):
        old = record(tmp_path / f"plain.{kind}", 10)
        with pytest.raises(MetadataIntegrityError, match="does not contain what was written"):
            rewrite_file(old, _files(), TableOutput(IO), f"file://{tmp_path}/n")
        assert sorted(os.listdir(tmp_path)) == before


def test_an_offset_index_has_the_new_places(tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    rows = table()
    pq.write_table(rows, path, write_page_index=True, data_page_size=500, write_batch_size=50)
    location = f"file://{tmp_path}/n.parquet"
    new = rewrite_file(record(path, len(rows)), _files(), TableOutput(IO), location)
    data = stored(location).read_bytes()
    source = ParquetSource(_slices(data), len(data), new.key)
    pages = 0
    for chunk in chunks(source.footer()):
        index, _ = parse(source.index(chunk, ModuleType.OFFSET_INDEX))
        for number, found in enumerate(value(index, 1)[1]):
            # It opens there only as the page that it is.
            start, size = value(found, 1), value(found, 2)
            _, end = source._encrypted_page(chunk, start, start + size, number)
            assert end == start + size
            pages += 1
    assert pages > 50


def test_the_checksum_is_of_all_pages_in_their_order(tmp_path: Path) -> None:
    rows = table(200).select(["id", "text"])
    sums = set()
    reversed_rows = rows.take(list(range(199, -1, -1)))
    texts = pa.array([t and t.replace("text", "texT") for t in rows["text"].to_pylist()])
    changed = rows.set_column(1, rows.schema.field(1), texts)
    for number, each in enumerate((rows, reversed_rows, changed, rows.slice(0, 199))):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(each, path, use_dictionary=False, write_statistics=False, compression="none")
        data = path.read_bytes()
        found = [
            transcribe_parquet(
                _slices(data),
                len(data),
                None,
                lambda _: None,
                KeyMetadata.generate(16),
                Checksum(bytes(32)),
            )
            for _ in range(2)
        ]
        assert found[0].checksum == found[1].checksum
        sums.add(found[0].checksum)
    assert len(sums) == 4


@pytest.mark.parametrize("where", ["first page", "footer", "cut", "plain"])
def test_a_source_that_was_changed_is_not_rewritten(tmp_path: Path, where: str) -> None:
    folder = copied("parquet_plain", tmp_path).parent
    source, entries = fixture_entries("parquet_plain", folder)
    old = entries[0].file
    path = Path(source.files.local_path(old.file_path))
    data = bytearray(path.read_bytes())
    error: type[Exception] = AuthenticationError
    if where == "first page":
        data[100] ^= 1
    elif where == "footer":
        data[-30] ^= 1
    elif where == "cut":
        del data[-1]
        error = TruncatedError
    else:
        data[:4] = data[-4:] = b"PAR1"
        error = NotEncryptedError
    path.write_bytes(data)
    with pytest.raises(error) as raised:
        rewrite_file(old, source.files, TableOutput(IO), f"file://{tmp_path}/new")
    assert str(old.file_path) in str(raised.value)
    assert not (tmp_path / "new").exists()


def test_no_damage_of_a_plain_file_is_more_than_an_error(tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    pq.write_table(table(50), path, write_page_index=True, write_page_checksum=True)
    good = path.read_bytes()
    footer_at = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    chance = random.Random(7)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(footer_at, len(data) - 8)] = chance.randrange(256)
        try:
            transcribe_parquet(
                _slices(bytes(data)),
                len(data),
                None,
                lambda _: None,
                KeyMetadata.generate(16),
                Checksum(bytes(32)),
            )
        except (Ags1Error, NotImplementedError):
            continue


def test_a_page_with_a_wrong_checksum_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    pq.write_table(table(50), path, write_page_checksum=True, compression="none")
    data = bytearray(path.read_bytes())
    data[data.index(b"text 3")] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match="checksum"):
        rewrite_file(record(path, 50), _files(), TableOutput(IO), f"file://{tmp_path}/new")


def test_a_used_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    pq.write_table(table(5), path)
    data = path.read_bytes()
    km = KeyMetadata.generate(16)
    transcribe_parquet(_slices(data), len(data), None, lambda _: None, km, Checksum(bytes(32)))
    with pytest.raises(KeyReuseError):
        transcribe_parquet(_slices(data), len(data), None, lambda _: None, km, Checksum(bytes(32)))


@pytest.mark.parametrize(
    "data",
    [
        b"\x1c" * 100,  # structs in structs
        b"\x19" * 1_000_000,  # lists in lists
        b"\x15" + b"\xff" * 10,  # a number of 70 bits
        b"\x15" + b"\xff" * 9 + b"\x02",
        b"\x05" + b"\xff\xff\xff\x0f\x00",  # a field's number of 28 bits
        b"\x1b\x00",  # a map
    ],
    ids=len,
)
def test_structures_that_thrift_does_not_have_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse(data)


@pytest.mark.parametrize(
    "data", [b"", b"\x15", b"\x18\xff\xff\xff\xff\x0fx", b"\x19\xf5\xff\x7f\x01"]
)
def test_structures_that_are_cut_are_refused(data: bytes) -> None:
    with pytest.raises(IndexError):
        parse(data)


def test_other_formats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.orc"
    path.write_bytes(b"ORC")
    with pytest.raises(NotImplementedError, match="ORC"):
        rewrite_file(record(path, 1), _files(), TableOutput(IO), f"file://{tmp_path}/n")
    puffin = record(path, 1).replace(file_format="PUFFIN")
    with pytest.raises(ValueError, match="deletion vector"):
        rewrite_file(puffin, _files(), TableOutput(IO), f"file://{tmp_path}/n")


def test_a_structure_is_printed_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    pq.write_table(table(50), path, write_page_index=True, row_group_size=10)
    data = path.read_bytes()
    footer = data[len(data) - 8 - int.from_bytes(data[-8:-4], "little") : -8]
    fields, size = parse(footer)
    assert size == len(footer)
    assert print_struct(fields) == footer


# -- many files


def many(folder: Path, count: int) -> list[ContentFile]:
    records = []
    for number in range(count):
        path = folder / "data" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table(10 + number), path)
        records.append(record(path, 10 + number))
    return records


def test_each_file_is_rewritten_once_and_under_its_own_key(tmp_path: Path) -> None:
    files = many(tmp_path, 7)
    done: list[Any] = []
    output = TableOutput(IO)
    rewriter = Rewriter(output, RewriteThreads(3), lambda old, new: done.append((old, new)))
    locations = load_location_provider(f"file://{tmp_path}", {})
    entries = [ManifestEntry(0, 5, 3, 4, file.replace(first_row_id=77)) for file in files]
    rewriter.apply(RewritePlan(entries[:4]), _files(), locations)
    added, _ = rewriter.apply(RewritePlan(entries), _files(), locations)
    assert len(done) == len(output.written) == 7
    keys = {file.key.encryption_key for file in rewriter.rewritten.values() if file.key}
    assert len(keys) == 7
    new = added[2]
    assert (new.status, new.sequence_number, new.file.first_row_id) == (1, 3, 77)
    assert new.file_sequence_number is new.snapshot_id is None
    assert opened(new.file).metadata.num_rows == 12


def test_a_failure_leaves_the_files_that_were_finished(tmp_path: Path) -> None:
    files = many(tmp_path, 4)
    stored(files[2].file_path).write_bytes(b"PAR1 but not a whole file PAR1")
    output = TableOutput(IO)
    rewriter = Rewriter(output, RewriteThreads(1))
    locations = load_location_provider(f"file://{tmp_path}", {})
    with pytest.raises(FormatError):
        rewriter.apply(
            RewritePlan([ManifestEntry(0, 5, 3, 4, f) for f in files]), _files(), locations
        )
    assert set(output.written) == {f.file_path for f in rewriter.rewritten.values()}


def test_a_new_file_lies_beside_the_old_one_in_the_table_and_in_the_table_else() -> None:
    locations = load_location_provider("s3://b/t", {})
    old = ContentFile.of(
        content=0,
        file_path="s3://b/t/data/p=1/x.parquet",
        file_format="PARQUET",
        partition=(),
        record_count=1,
        file_size_in_bytes=1,
    )
    assert new_location(old, locations).startswith("s3://b/t/data/p=1/")
    foreign = old.replace(file_path="s3://b/t/database/x.parquet")
    assert new_location(foreign, locations).startswith("s3://b/t/data/")
    assert new_location(old, locations) != new_location(old, locations)
