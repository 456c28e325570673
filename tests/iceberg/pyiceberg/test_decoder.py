"""The decoder of manifests: it reads what PyIceberg's readers read, and nothing beyond the end.

PyIceberg's readers, over a decoder in Python that is as strict as ours, say what is right.
"""

from __future__ import annotations

import functools
import io
import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyiceberg")

import fastavro
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.reader import OptionReader
from pyiceberg.manifest import ManifestContent
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IntegerType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from ags1.columns.avro._decoder import (
    Block,
    CheckedDecoder,
    Kind,
    Shape,
    read_records,
)
from ags1.columns.avro.records import _encoder
from ags1.columns.avro.schema import avro_schema, layout
from ags1.engine._key_metadata import EncodedKeyMetadata
from ags1.errors import FormatError
from ags1.iceberg.read.snapshots import _LOCATIONS, MANIFEST, MANIFEST_LIST
from ags1.iceberg.write.manifest_schemas import MANIFEST_FILE, entry_type

LONGS = st.integers(-(2**63), 2**63 - 1)
PARTITIONS = StructType(
    NestedField(1000, "n", IntegerType(), required=False),
    NestedField(1001, "s", StringType(), required=False),
    NestedField(1002, "u", UUIDType(), required=False),
    NestedField(1003, "d", DecimalType(9, 2), required=False),
    NestedField(1004, "f", DoubleType(), required=False),
)
ENTRY = entry_type(PARTITIONS)
# Fields in another order, and some that nobody knows. (PyIceberg cannot leave out maps and lists.)
FOREIGN = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        {"name": "x", "type": ["null", "double"], "field-id": 900},
        *reversed(avro_schema(ENTRY, "manifest_entry")["fields"]),
        {"name": "y", "type": "string", "field-id": 902},
    ],
}


class StrictDecoder(StreamingBinaryDecoder):
    """PyIceberg's decoder, which is written in Python and checks lengths; with our other checks."""

    def read_int(self) -> int:
        number = super().read_int()
        if not -(2**63) <= number < 2**63:
            raise ValueError
        return number

    skip_int = read_int

    def read_boolean(self) -> bool:
        return self.read(1) != b"\0"

    def read_bytes(self) -> bytes:
        return self.read(self.read_int())

    def skip_bytes(self) -> None:
        self.read(self.read_int())

    skip_utf8 = skip_bytes

    def read(self, n: int) -> bytes:
        found = super().read(n)
        if len(found) != n:
            raise EOFError
        return found

    skip = read  # type: ignore[assignment]


def strict_option(reader: Any, decoder: Any, read: str) -> Any:
    branch = decoder.read_int()
    if branch not in (0, 1):
        raise ValueError
    return getattr(reader.option, read)(decoder) if branch else None


def by_pyiceberg(data: bytes, rows: int, reader: Any) -> list[Any]:
    """Read all records, and nothing else."""
    decoder = StrictDecoder(data)
    records = [reader.read(decoder) for _ in range(rows)]
    if decoder.tell() != len(data):
        raise ValueError
    return records


def values(record: Any) -> Any:
    if hasattr(record, "_data"):
        return [values(record[at]) for at in range(len(record._data))]
    if isinstance(record, EncodedKeyMetadata):
        return bytes(record)
    return dict(record) if hasattr(record, "keys") else record


def entries(chosen: random.Random) -> list[tuple[Any, ...]]:
    def maybe(value: Any) -> Any:
        return value if chosen.random() < 0.8 else None

    def counts() -> dict[int, int]:
        return {i: chosen.getrandbits(chosen.randint(1, 62)) for i in range(chosen.randint(0, 3))}

    def bounds() -> dict[int, bytes]:
        return {i: chosen.randbytes(chosen.randint(0, 9)) for i in range(chosen.randint(0, 3))}

    def partition() -> tuple[Any, ...]:
        number = chosen.choice([0.0, -0.0, float("nan"), 1.5])
        return tuple(map(maybe, (7, "ü", UUID(int=7).bytes, -12, number)))

    same = partition()
    return [
        (
            chosen.randrange(3),
            maybe(chosen.getrandbits(63)),
            maybe(chosen.randrange(300)),
            maybe(chosen.randrange(300)),
            (
                *(0, f"s3://b/data/{n}.parquet", chosen.choice(["PARQUET", "avro"])),
                same if chosen.random() < 0.7 else partition(),
                *(chosen.randrange(9), chosen.randrange(1000)),
                *(maybe(counts()) for _ in range(4)),
                *(maybe(bounds()) for _ in range(2)),
                *(maybe(b"key"), maybe([4, 2**40]), maybe([1, 2]), maybe(0), maybe(2**40)),
                *(maybe("s3://b/x"), maybe(4), maybe(44)),
            ),
        )
        for n in range(chosen.randint(0, 4))
    ]


def named(struct: Any, of_record: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip([field.name for field in struct.fields], of_record, strict=True))


def shuffled(encoded: tuple[Any, ...]) -> bytes:
    """Return an entry as a writer of FOREIGN has it, encoded by fastavro."""
    schema = fastavro.parse_schema(json.loads(json.dumps(FOREIGN)))
    stored = io.BytesIO()
    record = named(ENTRY, encoded)
    file = named(ENTRY.fields[-1].field_type, record["data_file"])
    partition = named(PARTITIONS, file["partition"])
    if partition["d"] is not None:
        partition["d"] = Decimal(partition["d"]).scaleb(-2)
    file["partition"] = partition
    for name, value in file.items():
        if isinstance(value, dict) and name != "partition":
            file[name] = [{"key": key, "value": part} for key, part in value.items()]
    more = {"x": 1.0, "y": "z"}
    fastavro.schemaless_writer(stored, schema, {**record, "data_file": file, **more})
    return stored.getvalue()


encode_entry = _encoder(ENTRY)
WRITERS: dict[str, tuple[Any, Callable[[tuple[Any, ...]], bytes]]] = {
    "ours": (avro_schema(ENTRY, "manifest_entry"), encode_entry),
    "foreign": (FOREIGN, shuffled),
}


@functools.cache
def resolved(writer: str) -> tuple[Any, Shape, str]:
    schema = json.dumps(WRITERS[writer][0])
    shapes, file_layout = MANIFEST.resolved(schema)
    # Readers remember the methods of those inside them, and equal readers are one object.
    with (
        mock.patch.object(OptionReader, "read", lambda r, d: strict_option(r, d, "read")),
        mock.patch.object(OptionReader, "skip", lambda r, d: strict_option(r, d, "skip")),
    ):
        reader = MANIFEST.reader(schema)
    # The form that the schema says, as PyIceberg reads it.
    return reader, shapes[-1], file_layout


def damaged(data: bytes, chosen: random.Random) -> Iterator[bytes]:
    yield data
    for _ in range(12):
        at = chosen.randrange(len(data) + 1)
        match chosen.randrange(4):
            case 0:
                yield data[:at]
            case 1:
                yield data[:at] + chosen.randbytes(chosen.randint(1, 9)) + data[at:]
            case 2:
                yield data[:at] + data[at + chosen.randint(1, 9) :]
            case _:
                flipped = bytearray(data or b"\0")
                flipped[at % len(flipped)] ^= 1 << chosen.randrange(8)
                yield bytes(flipped)


def compare(writer: str, seed: int, count: int) -> tuple[int, int]:
    """Read damaged blocks both ways; return how many were read, and how many refused."""
    chosen = random.Random(f"{writer} {seed}")
    reader, shape, file_layout = resolved(writer)
    read = refused = 0
    while read + refused < count:
        records = entries(chosen)
        block = b"".join(map(WRITERS[writer][1], records))
        for data in damaged(block, chosen):
            expected: Any = None
            with suppress(Exception):
                expected = [values(r) for r in by_pyiceberg(data, len(records), reader)]
            try:
                made = Block(data, b"", "null", file_layout, len(records))
                found = [values(record) for record in read_records(made, shape)]
            except Exception as error:
                refused += 1
                assert expected is None, data
                assert isinstance(error, FormatError | EOFError | ValueError), data  # noqa: PT017
            else:
                assert repr(found) == repr(expected), data
                read += 1
    return read, refused


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("count", [400, pytest.param(40_000, marks=pytest.mark.slow)])
def test_damaged_entries_are_read_as_pyiceberg_reads_them(writer: str, count: int) -> None:
    read, refused = compare(writer, 1, count)
    assert min(read, refused) > count // 20


def test_copied_entries_are_what_the_writer_encodes() -> None:
    """What an entry would be if its file had been decoded and encoded again."""
    chosen = random.Random(5)
    _, shape, file_layout = resolved("ours")
    assert file_layout == layout(avro_schema(ENTRY, "other_name"))
    assert file_layout != layout(FOREIGN)
    copied = 0
    for _ in range(300):
        records = entries(chosen)
        encoded = list(map(encode_entry, records))
        block = Block(b"".join(encoded), b"", "null", file_layout, len(records))
        for number, entry in enumerate(read_records(block, shape)):
            file = entry.data_file.encoded
            assert (file.block, file.number) == (block, number)
            *head, values_of_file = records[number]
            row_id = values_of_file[-4]
            assert file.is_as_read(file.entry(*head, row_id))
            assert file.entry(*head, row_id) == encoded[number]
            changed = [0, 2**63 - 1, None, -1]
            new_file = (*values_of_file[:-4], 2**33, *values_of_file[-3:])
            made = file.entry(*changed, 2**33)
            assert made == encode_entry((*changed, new_file))
            assert not file.is_as_read(made)
            copied += 1
    assert copied > 300


def test_locations_are_those_of_whole_entries() -> None:
    chosen = random.Random(6)
    for writer, (schema, encode) in WRITERS.items():
        _, shape, file_layout = resolved(writer)
        only = _LOCATIONS.resolved(json.dumps(schema))[0][-1]
        for _ in range(50):
            records = entries(chosen)
            data = b"".join(map(encode, records))
            block = Block(data, b"", "null", file_layout, len(records))
            wanted = [
                [e.status, list(map(values, (file.content, file.file_path, file.key_metadata)))]
                for e in read_records(block, shape)
                for file in [e.data_file]
            ]
            assert [values(record) for record in read_records(block, only)] == wanted


def test_a_manifest_list_is_read_as_by_pyiceberg() -> None:
    schema = json.dumps(avro_schema(MANIFEST_FILE, "manifest_file"))
    reader, ((shape,), file_layout) = MANIFEST_LIST.reader(schema), MANIFEST_LIST.resolved(schema)
    encode = _encoder(MANIFEST_FILE)
    summaries = [(True, None, b"a", None), (False, False, None, b"\xff")]
    numbers = tuple(range(1, 11))
    data = b"".join(
        encode(("s3://b/m.avro", 9, 0, content, *numbers[:9], partitions, b"key", None))
        for content, partitions in ((0, summaries), (1, None), (0, []))
    )
    block = Block(data, b"", "null", file_layout, 3)
    found = read_records(block, shape)
    assert [values(m) for m in found] == [values(m) for m in by_pyiceberg(data, 3, reader)]
    assert [m.content for m in found] == [
        ManifestContent.DATA,
        ManifestContent.DELETES,
        ManifestContent.DATA,
    ]


@given(numbers=st.lists(LONGS, max_size=9))
def test_numbers_of_all_sizes(numbers: list[int]) -> None:
    data = b"".join(map(encoded, numbers))
    decoder = CheckedDecoder(data)
    assert [decoder.read_int() for _ in numbers] == numbers
    decoder = CheckedDecoder(data)
    for _ in numbers:
        decoder.skip_int()
    assert decoder.tell() == len(data)
    with pytest.raises(EOFError):
        decoder.read_int()


def encoded(number: int) -> bytes:
    rest = (number << 1 ^ number >> 63) & (2**64 - 1)
    data = bytearray()
    while rest > 0x7F:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*data, rest])


ARRAY_OF_LONGS = Shape(Kind.LIST, parts=(Shape(Kind.LONG),))
PAIRS_OF_BYTES = Shape(Kind.PAIRS, parts=(Shape(Kind.LONG), Shape(Kind.BYTES)))


@pytest.mark.parametrize("skipped", [False, True])
@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (encoded(2**62), Shape(Kind.BYTES)),
        (encoded(-1) + b"x" * 9, Shape(Kind.BYTES)),
        (encoded(9) + b"x" * 8, Shape(Kind.STRING)),
        (b"\xff" * 9 + b"\x02", Shape(Kind.LONG)),
        (b"\x80", Shape(Kind.LONG)),
        (b"1234567", Shape(Kind.DOUBLE)),
        (b"123", Shape(Kind.FLOAT)),
        (b"123", Shape(Kind.FIXED, size=4)),
        (encoded(4) + b"123", Shape(Kind.PREFIXED, size=4)),
        (encoded(3) + b"123", Shape(Kind.PREFIXED, size=4)),
        (b"\x04\x02", Shape(Kind.OPTION, parts=(Shape(Kind.LONG),))),
        (b"\x01\x02", Shape(Kind.OPTION, parts=(Shape(Kind.LONG),))),
        (encoded(2**62) + b"\x02", ARRAY_OF_LONGS),
        (encoded(-(2**63)) + b"\x02", ARRAY_OF_LONGS),
        (encoded(3) + b"\x02\x02", ARRAY_OF_LONGS),
        (encoded(1) + b"\xff" * 9 + b"\x02" + b"\x00", ARRAY_OF_LONGS),
        (encoded(1) + b"\x02" + encoded(-5) + b"\x00" * 9, PAIRS_OF_BYTES),
        (encoded(1) + b"\x02" + encoded(9) + b"x" * 8, PAIRS_OF_BYTES),
        (encoded(2**61), Shape(Kind.LIST, parts=(Shape(Kind.CONSTANT),))),
        (b"\x02\x02", Shape(Kind.LONG)),
    ],
)
def test_nothing_is_read_beyond_the_end(data: bytes, shape: Shape, skipped: bool) -> None:
    place = -1 if skipped else 0
    record = Shape(Kind.STRUCT, parts=(shape,), places=(place,), size=1, value=type("R", (), {}))
    with pytest.raises((EOFError, FormatError)):
        read_records(Block(data, b"", "null", "", 1), record)


@pytest.mark.parametrize("skipped", [False, True])
@pytest.mark.parametrize("parts", [(Shape(Kind.CONSTANT),), (Shape(Kind.FIXED),)])
def test_blocks_of_items_without_bytes_do_not_multiply(
    parts: tuple[Shape, ...], skipped: bool
) -> None:
    def read(rows: list[bytes]) -> list[Any]:
        return read_records(Block(b"".join(rows), b"", "null", "", len(rows)), record)

    part = Shape(Kind.LIST, parts=parts)
    place = -1 if skipped else 0
    record = Shape(Kind.STRUCT, parts=(part,), places=(place,), size=1, value=type("R", (), {}))
    assert len(read([encoded(2) + b"\0", encoded(1) + encoded(1) + b"\0"])) == 2
    # Each block alone has no more items than bytes follow it.
    for rows in ([encoded(9) * 9 + b"\0" * 9], [encoded(9) + b"\0"] * 9 + [b"\0"] * 9):
        with pytest.raises(FormatError, match="more items than bytes"):
            read(rows)


def test_a_file_without_a_first_row_id_gives_no_entry() -> None:
    record = Shape(
        Kind.STRUCT, parts=(Shape(Kind.LONG),) * 2, places=(0, 1), size=2, lazy=(0,), row_id=5,
        value=type("R", (), {}),
    )  # fmt: skip
    (found,) = read_records(Block(b"\2\4", b"", "null", "", 1), record)
    with pytest.raises(ValueError, match="without a first row ID"):
        found.encoded.entry(1, None, None, None, None)


def test_a_block_has_not_more_records_than_bytes() -> None:
    with pytest.raises(FormatError):
        Block(b"12", b"", "null", "", 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": Kind.OPTION},
        {"kind": Kind.LIST, "parts": (Shape(Kind.LONG),) * 2},
        {"kind": Kind.STRUCT, "parts": (Shape(Kind.LONG),), "places": (1,), "size": 1},
        {"kind": Kind.STRUCT, "parts": (Shape(Kind.LONG),), "places": ()},
        {"kind": Kind.PAIRS, "parts": (Shape(Kind.LONG), "text")},
        {"kind": Kind.LONG, "places": (0,) * 1000, "size": 1},
        {"kind": Kind.LIST, "parts": (Shape(Kind.LONG),), "places": (0,), "size": 1},
    ],
)
def test_a_shape_without_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"part|place"):
        Shape(wrong.pop("kind"), **wrong)
