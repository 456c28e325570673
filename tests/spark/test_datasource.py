"""The data source "ags1": encrypted files as rows, compared with Spark's own readers on the files
in the clear."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import pickle
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ags1
from ags1.keys import Keychain, write_sidecar
from ags1.kms import from_properties

pytest.importorskip("pyspark")

from pyspark.sql.types import LongType, StringType, StructField, StructType

from ags1.files.keys import FileKeys, KmsConfig
from ags1.files.ledger import DONE, ENCRYPT, Row, open_ledger
from ags1.files.staging.protocol import SourceFile
from ags1.spark import datasource
from ags1.spark.datasource.encrypted_files import Part, list_files, open_part, plan
from ags1.spark.datasource.lines import whole_lines
from ags1.spark.datasource.reader import FilesReader

pytestmark = pytest.mark.spark

BLOCK = 4096

Seal = Callable[[Path], Path]


@pytest.fixture
def sealed(tmp_path: Path, kms: KmsConfig) -> Seal:
    """Encrypts all files of a folder, in small blocks, with sidecars; returns the new folder."""

    def seal(folder: Path, block_size: int = BLOCK) -> Path:
        target = tmp_path / f"{folder.name}-sealed"
        target.mkdir()
        keychain = Keychain(from_properties(dict(kms.properties)))
        for file in sorted(folder.iterdir()):
            encrypted = target / file.name
            km = ags1.encrypt_file(file, encrypted, block_size=block_size)
            write_sidecar(f"{encrypted}.keys", keychain.seal(km))
        return target

    return seal


@pytest.fixture
def source(spark: Any, keyring: Path) -> Callable[..., Any]:
    """Reads encrypted files through the data source."""
    datasource.register(spark)

    def read(path: Path | str, **options: str) -> Any:
        reader = spark.read.format("ags1").option("keyring", str(keyring))
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load(str(path))

    return read


def folder_of(tmp_path: Path, **files: bytes) -> Path:
    folder = tmp_path / "plain"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_blocks_are_rows_and_make_up_the_files(
    tmp_path: Path, sealed: Seal, source: Callable[..., Any]
) -> None:
    noise = random.Random(1)
    files = {
        "large": noise.randbytes(3_000_001),
        "small": b"x",
        "empty": b"",
        "even": noise.randbytes(2 * BLOCK),
    }
    folder = sealed(folder_of(tmp_path, **files))

    frame = source(folder, partSize="300k")

    assert frame.rdd.getNumPartitions() >= 5
    found: dict[str, dict[int, bytes]] = {}
    for row in frame.collect():
        assert len(row.content) == row.length
        pieces = found.setdefault(Path(row.path).name, {})
        assert row.offset not in pieces
        pieces[row.offset] = bytes(row.content)
    for name, data in files.items():
        assert b"".join(found[name][at] for at in sorted(found[name])) == data
        assert min(found[name]) == 0
    by_length = source(folder, columns="length,path").groupBy("path").sum("length").collect()
    assert {Path(r[0]).name: r[1] for r in by_length} == {n: len(d) for n, d in files.items()}


def test_parts_cover_every_byte_once() -> None:
    sizes = {"a": 1000, "b": 10, "c": 5, "d": 350, "e": 0}
    files = [SourceFile(name, name, size, "1") for name, size in sizes.items()]

    tasks = plan(files, 100)

    parts = [part for task in tasks for part in task]
    assert [len(part) for part in parts if part.file.path == "a"] == [100] * 10
    for name, size in sizes.items():
        mine = [(p.begin, p.end) for p in parts if p.file.path == name]
        assert mine[0][0] == 0
        assert mine[-1][1] == size
        assert [end for _, end in mine[:-1]] == [begin for begin, _ in mine[1:]]
    assert Part(files[0], 0, 100) in tasks[0]


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.plaintext_size = len(data)

    def pread(self, offset: int, size: int, /) -> bytes:
        return self._data[offset : offset + size]


@pytest.mark.parametrize("seed", range(20))
def test_a_line_is_in_one_part(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(seed)
    monkeypatch.setattr("ags1.spark.datasource.lines._STEP", choose.choice([1, 2, 3, 7, 1 << 20]))
    data = b"".join(choose.choice([b"a", b"bc", b"\n", b"\r", b"\r\n"]) for _ in range(200))
    cuts = sorted(choose.sample(range(len(data)), 6))

    ranges = list(zip([0, *cuts], [*cuts, len(data)], strict=True))
    size = choose.choice([1, 3, 50])
    parts = [list(whole_lines(_Bytes(data), a, b, size)) for a, b in ranges]

    at = 0
    for (begin, end), part in zip(ranges, parts, strict=True):
        if part:
            assert begin <= at < end
        at += sum(map(len, part))
    pieces = [piece for part in parts for piece in part]
    assert b"".join(pieces) == data
    for piece, after in pairwise(pieces):
        assert piece.endswith((b"\n", b"\r"))
        assert not (piece.endswith(b"\r") and after.startswith(b"\n"))


def test_a_file_that_is_replaced_meanwhile_is_not_read(
    tmp_path: Path, sealed: Seal, kms: KmsConfig
) -> None:
    folder = sealed(folder_of(tmp_path, a=b"x" * 10_000))
    (part,) = plan(list_files([str(folder)]), 1 << 20)[0]
    keys = FileKeys.for_opening(kms)
    with open_part(part, keys) as opened_part:
        assert opened_part.end == 10_000
    (folder / "a").write_bytes((folder / "a").read_bytes())

    with pytest.raises(ags1.FormatError, match="was replaced"), open_part(part, keys):
        pass


def test_files_elsewhere_are_listed_and_opened_by_fsspec(
    tmp_path: Path, sealed: Seal, kms: KmsConfig
) -> None:
    folder = sealed(folder_of(tmp_path, a=b"x" * 10_000, b=b"y", _work=b"z"))
    store = fsspec.filesystem("memory")
    store.put(str(folder), "/bucket/data", recursive=True)
    keys = FileKeys.for_opening(kms)

    files = list_files(["memory://bucket/data"])

    assert [(file.path, file.size) for file in files] == [
        ("memory:///bucket/data/a", 10_000 + 8 + 3 * 28),
        ("memory:///bucket/data/b", 37),
    ]
    (found,) = list_files(["memory://bucket/*/a"])
    assert found._replace(relative_path="a") == files[0]
    parts = [part for task in plan(files, 5000) for part in task]
    texts = []
    for part in parts:
        with open_part(part, keys) as found:
            texts.append(found.reader.pread(found.begin, found.end - found.begin))
    assert b"".join(texts) == b"x" * 10_000 + b"y"
    with pytest.raises(FileNotFoundError):
        list_files(["memory://bucket/nothing"])


def write_ledger(ledger_folder: Path, folder: Path) -> None:
    """Make a ledger that has what the sidecars in a folder have."""
    rows = []
    for path in sorted(folder.glob("*.keys")):
        known = dict.fromkeys(Row._fields)
        known |= {
            "operation": ENCRYPT,
            "status": DONE,
            "target": str(path.with_suffix("")),
            "key_metadata": path.read_text(),
        }
        rows.append(Row(**known))  # type: ignore[arg-type]
    with open_ledger(str(ledger_folder), writing=True, durable=False) as ledger:
        ledger.settle(ledger.prepare(rows), rows)


def test_keys_may_come_from_a_ledger(tmp_path: Path, sealed: Seal, keyring: Path) -> None:
    folder = sealed(folder_of(tmp_path, a=b"one\ntwo\n" * 3000, b=b"three\n"))
    write_ledger(tmp_path / "ledger", folder)
    for path in folder.glob("*.keys"):
        path.unlink()
    options = {"path": str(folder), "inner": "text", "keyring": str(keyring), "partsize": "9k"}
    schema = StructType([StructField("value", StringType())])

    reader = FilesReader({**options, "ledger": str(tmp_path / "ledger")}, schema)
    partitions = pickle.loads(pickle.dumps(reader.partitions()))

    lines = [value for p in partitions for batch in reader.read(p) for value in batch["value"]]
    assert len(partitions) > 2
    assert sorted(map(str, lines)) == ["one"] * 3000 + ["three"] + ["two"] * 3000
    without = FilesReader(options, schema)
    with pytest.raises(ags1.KeyMetadataError, match="no such sidecar"):
        list(without.read(without.partitions()[0]))


class TestLedgers:
    """What a ledger has not is not read, and what it has is missed."""

    @pytest.fixture
    def folder(self, tmp_path: Path, sealed: Seal) -> Path:
        folder = sealed(folder_of(tmp_path, a=b"a\n", b=b"b\n", _c=b"c\n"))
        write_ledger(tmp_path / "ledger", folder)
        return folder

    def lines(self, folder: Path, **options: str) -> list[str]:
        where = {
            "path": str(folder),
            "ledger": str(folder.parent / "ledger"),
            "keyring": str(folder.parent / "keyring.json"),
            "inner": "text",
        }
        reader = FilesReader(where | options, StructType([StructField("value", StringType())]))
        parts = reader.partitions()
        return [str(v) for p in parts for batch in reader.read(p) for v in batch["value"]]

    def test_a_strangers_file_is_passed_over(self, folder: Path) -> None:
        # With its genuine sidecar: another table's, say.
        for suffix in ("", ".keys"):
            (folder / f"x{suffix}").write_bytes((folder / f"a{suffix}").read_bytes())
        assert self.lines(folder) == ["a", "b"]

    def test_a_file_that_is_gone(self, folder: Path) -> None:
        (folder / "a").unlink()
        with pytest.raises(FileNotFoundError):
            self.lines(folder)
        assert self.lines(folder, ignoremissingfiles="true") == ["b"]
        assert self.lines(folder, path=f"{folder}/[ab]") == ["b"]

    def test_a_listing_that_is_not_whole(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "ags1.spark.datasource.reader.list_files", lambda paths: list_files(paths)[1:]
        )
        assert self.lines(folder) == ["a", "b"]

    def test_another_folders_ledger(self, folder: Path) -> None:
        moved = folder.rename(folder.with_name("moved"))
        with pytest.raises(ags1.KeyMetadataError, match="no key for any of these files"):
            self.lines(moved)


@pytest.mark.parametrize("inner", ["", "text"])
def test_a_header_that_is_shown_to_one_task_alone(
    tmp_path: Path, sealed: Seal, keyring: Path, inner: str
) -> None:
    """Blocks that are said to be larger begin in no part but the first: no row, no tag."""
    line = json.dumps({"value": "x" * 90}) + "\n"
    folder = sealed(folder_of(tmp_path, a=line.encode() * 1000))
    options = {"path": str(folder), "keyring": str(keyring), "partsize": "20k", "inner": inner}
    schema = StructType([StructField("value", StringType())])
    if not inner:
        schema = StructType([StructField("length", LongType())])
    reader = FilesReader(options, schema)
    partitions = reader.partitions()
    assert len(partitions) > 3
    times = (folder / "a").stat()
    with (folder / "a").open("r+b") as file:
        file.seek(4)
        file.write((64 << 20).to_bytes(4, "little"))
    os.utime(folder / "a", ns=(times.st_atime_ns, times.st_mtime_ns))
    for partition in partitions:
        with pytest.raises(ags1.Ags1Error):
            list(reader.read(partition))


def test_the_lengths_of_a_file_are_what_it_has(tmp_path: Path, sealed: Seal, keyring: Path) -> None:
    folder = sealed(folder_of(tmp_path, a=b"x" * 10_000))
    options = {"path": str(folder), "keyring": str(keyring)}
    reader = FilesReader(options, StructType([StructField("length", LongType())]))
    [partition] = reader.partitions()
    times = (folder / "a").stat()
    with (folder / "a").open("r+b") as file:
        file.seek(4)
        file.write((64 << 20).to_bytes(4, "little"))
    os.utime(folder / "a", ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ags1.Ags1Error):
        list(reader.read(partition))


def test_text_has_the_lines_that_sparks_own_source_has(
    tmp_path: Path, spark: Any, sealed: Seal, source: Callable[..., Any]
) -> None:
    lines = ["", "äöü€", "x" * 20_000, "last line of a block"] + [f"line {n}" for n in range(9000)]
    plain = folder_of(
        tmp_path,
        unix="\n".join(lines).encode(),
        dos="\r\n".join(lines).encode() + b"\r\n",
        old="\r".join(lines).encode(),
        none=b"",
        bare=b"\n\n",
    )

    found = source(sealed(plain), inner="text", partSize="100k")

    expected = spark.read.text(str(plain))
    assert found.schema == expected.schema
    assert rows(found) == rows(expected)
    assert found.count() == expected.count()


def test_csv_has_the_rows_that_sparks_own_source_has(
    tmp_path: Path, spark: Any, sealed: Seal, source: Callable[..., Any]
) -> None:
    def table(first: int) -> bytes:
        text = ["id,name,price,when,flag"]
        for n in range(first, first + 4000):
            name = ['"quoted, with a comma"', '"with ""quotes"""', "", "plain äö", "b"][n % 5]
            text.append(
                f"{n},{name},{n / 4},2024-02-{n % 28 + 1:02d},{'true' if n % 2 else 'false'}"
            )
        return "\n".join(text).encode()

    plain = folder_of(tmp_path, a=table(0), b=table(10_000) + b"\n")
    folder = sealed(plain)

    def expected(**options: Any) -> Any:
        return spark.read.options(header=True, escape='"', **options).csv(str(plain))

    found = source(folder, inner="csv", header="true", partSize="100k")
    assert found.schema == expected().schema
    assert rows(found) == rows(expected())

    typed = source(
        folder, inner="csv", header="true", inferSchema="true", columns="price,flag,when"
    )
    kinds = {field.name: field.dataType.simpleString() for field in typed.schema}
    assert kinds == {"price": "double", "flag": "boolean", "when": "date"}
    assert rows(typed) == rows(expected(inferSchema=True).select("price", "flag", "when"))

    bare = source(folder, inner="csv")
    assert bare.columns == [f"_c{n}" for n in range(5)]
    assert bare.count() == 8002


def test_files_of_csv_may_have_their_columns_in_another_order(
    tmp_path: Path, sealed: Seal, source: Callable[..., Any]
) -> None:
    plain = folder_of(tmp_path, a=b"x,y\n1,2\n", b=b"y,x\n4,3\n", c=b"x\n5\n")

    found = source(sealed(plain), inner="csv", header="true")

    assert rows(found) == [("1", "2"), ("3", "4"), ("5", None)]


def test_json_is_text_that_spark_parses(
    tmp_path: Path, spark: Any, sealed: Seal, keyring: Path, source: Callable[..., Any]
) -> None:
    documents = [
        {"alpha": None if n % 3 else f"text {n}", "nested": {"b": n / 2, "a": [n]}, "zeta": n}
        for n in range(5000)
    ]
    lines = "\n".join(map(json.dumps, documents)).encode()
    plain = folder_of(tmp_path, a=lines, b=b'{"zeta": 9, "other": 1}\n')
    columns = "alpha string, nested struct<a:array<bigint>,b:double>, zeta bigint"

    text = source(sealed(plain), inner="text", partSize="80k")
    found = text.selectExpr(f"from_json(value, '{columns}') as row").select("row.*")

    assert rows(found) == rows(spark.read.schema(columns).json(str(plain)))
    sink = found.selectExpr("to_json(struct(*)) as value").write.format("ags1")
    sink.options(keyring=str(keyring), inner="text").mode("append").save(str(tmp_path / "back"))
    again = source(tmp_path / "back", inner="text")
    again = again.selectExpr(f"from_json(value, '{columns}') as row").select("row.*")
    assert rows(again) == rows(found)
    with pytest.raises(Exception, match=r"'inner' .* not 'json'.* from_json"):
        source(tmp_path / "back", inner="json")
    with pytest.raises(Exception, match=r"'inner' .* not 'json'.* to_json"):
        found.write.format("ags1").option("inner", "json").mode("append").save(f"{tmp_path}/x")


def typed_table(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    zero = datetime.datetime(2024, 1, 1)
    times = [zero + datetime.timedelta(seconds=n) for n in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "small": pa.array([n % 100 for n in numbers], pa.int8()),
            "text": pa.array([None if n % 7 == 0 else f"row {n}" for n in numbers]),
            "amount": pa.array(
                [decimal.Decimal(n).scaleb(-2) for n in numbers], pa.decimal128(12, 2)
            ),
            "at": pa.array(times, pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
            "local": pa.array(times, pa.timestamp("us")),
            "day": pa.array([datetime.date(2024, 1, 1 + n % 28) for n in numbers]),
            "tags": pa.array([[f"t{n}", None][: n % 3] for n in numbers], pa.list_(pa.string())),
            "point": pa.array([{"x": n / 2, "y": n} for n in numbers]),
            "blob": pa.array([bytes([n % 256]) * 3 for n in numbers], pa.binary()),
        }
    )


def test_parquet_has_the_rows_that_sparks_own_source_has(
    tmp_path: Path, spark: Any, sealed: Seal, source: Callable[..., Any]
) -> None:
    plain = folder_of(tmp_path)
    pq.write_table(typed_table(0, 9000), plain / "a.parquet", row_group_size=1000)
    pq.write_table(typed_table(9000, 10), plain / "b.parquet")

    found = source(sealed(plain), inner="parquet", partSize="40k")

    expected = spark.read.parquet(str(plain))
    assert found.rdd.getNumPartitions() > 2
    assert found.schema == expected.schema
    assert rows(found) == rows(expected)
    assert source(tmp_path / "plain-sealed", inner="parquet", columns="point").columns == ["point"]
    assert found.select("id").count() == 9010


def test_a_large_avro_file_is_split_by_its_markers(
    tmp_path: Path, spark: Any, sealed: Seal, source: Callable[..., Any]
) -> None:
    schema = {
        "type": "record",
        "name": "row",
        "namespace": "org.example",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "text", "type": ["null", "string"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {
                "name": "amount",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["A", "B"]}},
            {"name": "again", "type": ["null", "kind"]},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "map", "type": {"type": "map", "values": "double"}},
            {
                "name": "inside",
                "type": {
                    "type": "record",
                    "name": "inner",
                    "fields": [{"name": "x", "type": "int"}],
                },
            },
        ],
    }
    utc = datetime.timezone.utc
    written = [
        {
            "id": n,
            "text": f"text {n}" if n % 5 else None,
            "at": datetime.datetime(2024, 1, 1, tzinfo=utc) + datetime.timedelta(seconds=n),
            "day": datetime.date(2024, 1, 1),
            "amount": decimal.Decimal(n).scaleb(-2),
            "kind": "AB"[n % 2],
            "again": None if n % 2 else "B",
            "tags": ["a", "b"][: n % 3],
            "map": {"k": n / 2},
            "inside": {"x": n},
        }
        for n in range(20_000)
    ]
    plain = folder_of(tmp_path)
    with (plain / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, written, codec="deflate", sync_interval=4000)

    found = source(sealed(plain), inner="avro", partSize="60k")

    assert found.rdd.getNumPartitions() >= 5
    expected = [
        tuple(
            value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else value
            for value in row.values()
        )
        for row in written
    ]
    got = [(*row[:9], {"x": row["inside"]["x"]}) for row in found.orderBy("id").collect()]
    assert got == expected
    assert dict(found.dtypes)["at"] == "timestamp"
    some = source(tmp_path / "plain-sealed", inner="avro", columns="amount,id")
    assert some.columns == ["amount", "id"]
    assert some.agg({"id": "sum"}).collect()[0][0] == sum(range(20_000))


def test_a_schema_may_be_given(
    tmp_path: Path, spark: Any, keyring: Path, sealed: Seal, source: Callable[..., Any]
) -> None:
    folder = sealed(folder_of(tmp_path, a=b"a,b\n1,x\n,y\n"))
    reader = spark.read.format("ags1").option("keyring", str(keyring)).option("inner", "csv")

    found = reader.option("header", "true").schema("b string, c double, a int").load(str(folder))

    assert rows(found) == [("x", None, 1), ("y", None, None)]


@pytest.mark.parametrize("inner", [None, "text"])
def test_a_changed_block_fails_the_job(
    tmp_path: Path, sealed: Seal, source: Callable[..., Any], inner: str | None
) -> None:
    folder = sealed(folder_of(tmp_path, a=b"x\n" * 50_000, b=b"y\n"))
    data = bytearray((folder / "a").read_bytes())
    data[60_000] ^= 1
    (folder / "a").write_bytes(data)

    with pytest.raises(Exception, match="AuthenticationError"):
        source(folder, **({"inner": inner} if inner else {})).collect()


def test_a_cut_file_and_one_without_a_sidecar_fail_the_job(
    tmp_path: Path, sealed: Seal, source: Callable[..., Any]
) -> None:
    folder = sealed(folder_of(tmp_path, a=b"x" * 50_000, b=b"y"))
    whole = (folder / "a").read_bytes()
    (folder / "a").write_bytes(whole[: -BLOCK - 28])
    with pytest.raises(Exception, match="TruncatedError"):
        source(folder).collect()
    (folder / "a").write_bytes(whole)
    (folder / "b.keys").unlink()
    with pytest.raises(Exception, match="no such sidecar"):
        source(folder).collect()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kms.local.passphrase": "open sesame"}, "would send a secret"),
        ({"s3.secret-access-key": "open sesame"}, "would send a secret"),
        ({"inner": "orc"}, "one of text, csv, parquet, avro"),
        ({"columns": "path,nothing"}, "'nothing', which the files do not have"),
        ({"trusted_keys": "somebody"}, "not among those to trust"),
        ({"partSize": "much"}, "number of bytes above 0, not"),
    ],
)
def test_options_that_cannot_be_are_refused(
    tmp_path: Path,
    sealed: Seal,
    source: Callable[..., Any],
    options: dict[str, str],
    message: str,
) -> None:
    folder = sealed(folder_of(tmp_path, a=b"x"))

    with pytest.raises(Exception, match=message) as caught:
        source(folder, **options).collect()

    assert "sesame" not in str(caught.value)


def opened(folder: Path, target: Path, kms: KmsConfig) -> Path:
    """Decrypt all files of a folder."""
    target.mkdir()
    keychain = Keychain(from_properties(dict(kms.properties)))
    for file in folder.iterdir():
        if file.suffix != ".keys":
            km = keychain.open(f"{file}.keys", str(file))
            ags1.decrypt_file(file, target / file.name, km)
    return target


@pytest.mark.parametrize("inner", ["text", "csv", "parquet", "avro"])
def test_what_is_written_is_read_by_others_and_by_us(
    tmp_path: Path,
    spark: Any,
    keyring: Path,
    kms: KmsConfig,
    source: Callable[..., Any],
    inner: str,
) -> None:
    columns = ["id", "concat('row ', id) as text", "timestamp_seconds(id) as at"]
    if inner == "text":
        columns = ["concat('row ', id) as value"]
    elif inner != "csv":
        columns += ["array(id, id + 1) as list", "named_struct('x', id, 'y', 'z') as point"]
        # A null struct whose field is required.
        columns.append("if(id % 2 = 0, null, named_struct('x', id)) as half")
        # Spark sends no offsets of the inner arrays.
        columns.append("filter(array(array('x')), inner -> id < 0) as empty")
    frame = spark.range(0, 500, 1, 2).selectExpr(*columns)
    folder = tmp_path / "written"

    writer = frame.write.format("ags1").option("keyring", str(keyring)).option("key", "other")
    header = {"header": "true"} if inner == "csv" else {}
    writer.options(inner=inner, **header).mode("append").save(str(folder))

    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 4
    assert names[1] == f"{names[0]}.keys"
    assert all((folder / name).read_bytes().startswith(b"AGS1") for name in names[::2])
    plain = opened(folder, tmp_path / "opened", kms)
    if inner == "avro":
        records = [
            record
            for path in plain.iterdir()
            for record in fastavro.reader(path.open("rb"))  # type: ignore[union-attr]
        ]
        assert sorted(record["id"] for record in records) == list(range(500))
        assert records[0]["point"]["y"] == "z"
    else:
        # What Spark's reader makes of times without being told is another matter.
        theirs = spark.read.format(inner).schema(frame.schema).load(str(plain), **header)
        assert rows(theirs) == rows(frame)
    ours = source(folder, inner=inner, **header)
    key = "value" if inner == "text" else "text"
    assert rows(ours.select(key)) == rows(frame.select(key))
    if inner in ("avro", "parquet"):
        assert rows(ours) == rows(frame)


@pytest.mark.parametrize("inner", ["csv", "parquet", "avro", "text"])
def test_without_rows_there_are_the_files_that_sparks_own_source_writes(
    tmp_path: Path, spark: Any, keyring: Path, source: Callable[..., Any], inner: str
) -> None:
    theirs = "orc" if inner == "avro" else inner  # Spark's Avro is another package
    header = {"header": "true"} if inner == "csv" else {}
    columns = ["value"] if inner == "text" else ["id", "value"]
    late = spark.range(0, 4, 1, 2).where("id > 1").selectExpr("id", "'x' as value")
    for frame in (spark.createDataFrame([], late.schema), late):
        ours, plain = (tmp_path / f"{frame is late}-{end}" for end in ("ours", "plain"))
        chosen = frame.select(*columns)
        chosen.write.format(theirs).options(**header).save(str(plain))
        writer = chosen.write.format("ags1").options(inner=inner, keyring=str(keyring), **header)
        writer.mode("append").save(str(ours))

        # The number of the task is in the name.
        numbers = [{path.name[:10] for path in at.glob("part-*")} for at in (ours, plain)]
        assert numbers[0] == numbers[1]
        found = source(ours, inner=inner, **header)
        expected = spark.read.format(theirs).options(**header).load(str(plain))
        assert found.schema == expected.schema
        assert rows(found) == rows(expected)


def test_overwriting_takes_the_other_files_away(
    tmp_path: Path, spark: Any, keyring: Path, source: Callable[..., Any]
) -> None:
    folder = tmp_path / "written"

    def write(count: int, mode: str, expression: str = "cast(id as string) as value") -> None:
        frame = spark.range(0, count, 1, 2).selectExpr(expression)
        writer = frame.write.format("ags1").option("keyring", str(keyring)).option("inner", "text")
        writer.mode(mode).save(str(folder))

    write(3, "append")
    write(2, "append")
    assert source(folder, inner="text").count() == 5
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(Exception, match="boom"):
        write(10, "overwrite", "if(id = 9, raise_error('boom'), 'x') as value")
    assert sorted(path.name for path in folder.iterdir()) == before
    write(4, "overwrite")
    assert rows(source(folder, inner="text")) == [("0",), ("1",), ("2",), ("3",)]
    assert not {path.name for path in folder.iterdir()} & set(before)


@pytest.mark.parametrize(
    ("inner", "columns", "message"),
    [
        ("csv", "array(id) as a", "CSV cannot hold"),
        ("csv", "cast('a' as binary) as b", "CSV cannot hold the binary column 'b'"),
        ("text", "id", "one column, a string"),
        ("orc", "id", "has to be one of text, csv, parquet, avro"),
        ("", "id", "rows need the option 'inner'"),
    ],
)
def test_what_a_format_cannot_hold_is_not_begun(
    tmp_path: Path, spark: Any, keyring: Path, inner: str, columns: str, message: str
) -> None:
    writer = spark.range(2).selectExpr(columns).write.format("ags1")
    writer = writer.option("keyring", str(keyring)).option("inner", inner).mode("append")

    with pytest.raises(Exception, match=message):
        writer.save(str(tmp_path / "written"))

    assert not (tmp_path / "written").exists()
