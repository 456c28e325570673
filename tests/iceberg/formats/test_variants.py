"""Shredded variants are put together again. Spark's decoder in Python judges the values; what Spark
itself writes and reads is in ``interop/test_other_types.py``."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ags1 import FormatError
from ags1.iceberg.formats.variants import whole

VariantVal = pytest.importorskip("pyspark.sql.types").VariantVal

# PySpark is there where the tests of Spark run.
pytestmark = pytest.mark.spark

BINARY = pa.binary()
UTC = timezone.utc


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def metadata_of(names: Sequence[str], size: int = 1) -> bytes:
    ends = [sum(len(name.encode()) for name in names[:i]) for i in range(len(names) + 1)]
    head = bytes([1 | (size - 1) << 6]) + number(len(names), size)
    return head + b"".join(number(end, size) for end in ends) + "".join(names).encode()


def encoded(value: Any, names: Sequence[str]) -> bytes:
    """A value of JSON's in the encoding of variants, with sizes of 4 bytes, offsets of 3 bytes, and
    values of objects in any order."""
    if value is None or isinstance(value, bool):
        return {None: b"\0", True: b"\4", False: b"\x08"}[value]
    if isinstance(value, int):
        return b"\x18" + value.to_bytes(8, "little", signed=True)
    if isinstance(value, str):
        return bytes([16 << 2]) + number(len(value.encode()), 4) + value.encode()
    is_object = isinstance(value, dict)
    keys = sorted(value, key=str.encode) if is_object else range(len(value))
    parts = {key: encoded(value[key], names) for key in keys}
    offsets, data = {}, b""
    for key in random.sample(list(keys), len(keys)) if is_object else keys:
        offsets[key] = len(data)
        data += parts[key]
    places = b"".join(number(n, 3) for n in (*(offsets[key] for key in keys), len(data)))
    if not is_object:
        return b"\x1b" + number(len(keys), 4) + places + data
    ids = b"".join(number(names.index(key), 1) for key in keys)
    return b"\x4a" + number(len(keys), 4) + ids + places + data


# What a value is shredded as: an Arrow type, a list of one, or fields. None: not at all.
Shape = Any


def group(shape: Shape) -> pa.DataType:
    fields = [pa.field("value", BINARY)]
    if shape is not None:
        fields.append(pa.field("typed_value", typed(shape)))
    return pa.struct(fields)


def typed(shape: Shape) -> pa.DataType:
    if isinstance(shape, dict):
        return pa.struct([pa.field(k, group(inner), nullable=False) for k, inner in shape.items()])
    if isinstance(shape, list):
        return pa.list_(pa.field("element", group(shape[0]), nullable=False))
    return shape


def shredded(value: Any, shape: Shape, names: Sequence[str]) -> dict[str, Any]:
    """A value as the specification has it in a group of ``value`` and ``typed_value``."""
    if isinstance(shape, dict) and isinstance(value, dict):
        fields = {
            k: shredded(value[k], inner, names) if k in value else {"value": None}
            for k, inner in shape.items()
        }
        rest = {k: v for k, v in value.items() if k not in shape}
        return {"value": encoded(rest, names) if rest else None, "typed_value": fields}
    if isinstance(shape, list) and isinstance(value, list):
        return {"typed_value": [shredded(v, shape[0], names) for v in value]}
    kinds = {pa.int64(): int, pa.string(): str, pa.bool_(): bool}
    if isinstance(shape, pa.DataType) and type(value) is kinds[shape]:
        return {"typed_value": value}
    return {"value": encoded(value, names)}


def some_value(chance: random.Random, depth: int = 0) -> Any:
    kinds = [None, True, chance.randint(-(2**63), 2**63 - 1), "é" * chance.randint(0, 70), {}, []]
    kind = chance.choice(kinds if depth < 3 else kinds[:4])
    if kind == {}:
        names = chance.sample("abcdé", chance.randint(0, 5))
        return {name: some_value(chance, depth + 1) for name in names}
    if kind == []:
        return [some_value(chance, depth + 1) for _ in range(chance.randint(0, 4))]
    return kind


def some_shape(chance: random.Random, depth: int = 0) -> Shape:
    leaves = [None, pa.int64(), pa.string(), pa.bool_()]
    kind = chance.choice([{}, [], *leaves] if depth < 3 else leaves)
    if kind == {}:
        names = chance.sample("abcdé", chance.randint(1, 3))
        return {name: some_shape(chance, depth + 1) for name in names}
    return [some_shape(chance, depth + 1)] if kind == [] else kind


def array_of(rows: list[Any], shape: Shape, names: Sequence[str]) -> pa.StructArray:
    """Variants, shredded. A row of ``...`` is null."""
    fields = [pa.field("metadata", BINARY, nullable=False), *group(shape)]
    metadata = {"metadata": metadata_of(names, random.choice((1, 2, 4)))}
    stored = [None if v is ... else metadata | shredded(v, shape, names) for v in rows]
    return pa.array(stored, pa.struct(fields))


def python_of(variants: pa.StructArray) -> list[Any]:
    return [
        ... if v is None else VariantVal(v["value"], v["metadata"]).toPython()
        for v in variants.to_pylist()
    ]


@pytest.mark.parametrize("seed", range(60))
def test_shredded_variants_are_whole_again(seed: int) -> None:
    chance = random.Random(seed)
    rows = [chance.choice([some_value(chance), some_value(chance), ...]) for _ in range(12)]
    shape = some_shape(chance)
    variants = array_of(rows, shape, ["é", "d", "a", "unused", "c", "b"])
    for found, expected in ((variants, rows), (variants.slice(3, 7), rows[3:10])):
        made = whole(found)
        assert python_of(made) == expected
        assert [field.name for field in made.type] == ["metadata", "value"]
        # What Spark's decoder does not look at.
        assert whole(made).equals(made)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int8(), -5),
        (pa.int16(), 300),
        (pa.int32(), -(2**31)),
        (pa.int64(), 2**63 - 1),
        (pa.float32(), 1.5),
        (pa.float64(), -2.25),
        (pa.decimal128(9, 2), Decimal("-1234567.89")),
        (pa.decimal128(18, 0), Decimal(-(10**17))),
        (pa.decimal128(38, 10), Decimal("-123456789012345678.0123456789")),
        (pa.bool_(), False),
        (pa.date32(), date(1969, 12, 31)),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
        (pa.timestamp("us"), datetime(1900, 1, 2, 3, 4, 5, 6)),
        (pa.binary(), b"\0\xff"),
        (pa.large_binary(), b""),
        (pa.string(), "x" * 63),
        (pa.large_string(), "x" * 64),
    ],
    ids=str,
)
def test_each_type_of_a_typed_value(kind: pa.DataType, value: Any) -> None:
    metadata = pa.array([metadata_of(())] * 3)
    values = pa.array([None, b"\0", None], BINARY)
    variants = pa.StructArray.from_arrays(
        [pa.array([value, None, value], kind), values, metadata],
        ["typed_value", "value", "metadata"],
    )
    assert python_of(whole(variants)) == [value, None, value]


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.time64("us"), 1, "44 0100000000000000"),
        (pa.timestamp("ns", "UTC"), 2, "48 0200000000000000"),
        (pa.timestamp("ns"), 3, "4c 0300000000000000"),
        (pa.uuid(), uuid.UUID(int=4).bytes, "50 00000000000000000000000000000004"),
        (pa.binary(16), uuid.UUID(int=4).bytes, "50 00000000000000000000000000000004"),
    ],
    ids=str,
)
def test_the_types_that_spark_does_not_know(kind: pa.DataType, value: Any, stored: str) -> None:
    variants = pa.StructArray.from_arrays(
        [pa.array([metadata_of(())]), pa.array([value]).cast(kind)], ["metadata", "typed_value"]
    )
    [made] = whole(variants).to_pylist()
    assert made["value"] == bytes.fromhex(stored)


def test_a_variant_without_a_value_is_the_variant_null() -> None:
    kind = pa.struct({"metadata": BINARY, "value": BINARY})
    rows = [{"metadata": metadata_of(()), "value": None}, None]
    assert python_of(whole(pa.array(rows, kind))) == [None, ...]


def test_many_fields_and_elements() -> None:
    names = [f"f{n:03}" for n in range(300)]
    size = {"metadata": metadata_of(names, 2)}
    rows = [dict.fromkeys(names, "x" * 300), list(range(300))]
    objects = [
        size | {"typed_value": {n: {"typed_value": v} for n, v in rows[0].items()}},
        size | {"value": whole(array_of([rows[1]], [pa.int64()], ())).field("value")[0].as_py()},
    ]
    kind = pa.struct([("metadata", BINARY), *group(dict.fromkeys(names, pa.string()))])
    assert python_of(whole(pa.array(objects, kind))) == rows


def one(row: Any, shape: Shape, **changed: bytes | None) -> pa.StructArray:
    variants = array_of([row], shape, ["a", "b"])
    columns = {field.name: variants.field(field.name) for field in variants.type}
    columns |= {name: pa.array([data], BINARY) for name, data in changed.items()}
    return pa.StructArray.from_arrays(columns.values(), columns.keys())


def twice(name: str, value: Any) -> pa.StructArray:
    return pa.StructArray.from_arrays([pa.array([value])] * 2, [name, name])


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        (one({"a": 1}, {"a": pa.int64()}, metadata=b""), "version"),
        (one({"a": 1}, {"a": pa.int64()}, metadata=b"\2\0\0"), "version"),
        (one({"a": 1}, {"a": pa.int64()}, metadata=b"\xc1\xff\xff\xff\xff"), "early"),
        (one({"a": 1}, {"a": pa.int64()}, metadata=b"\1\2\0\2\1ab"), "descend"),
        (one({"a": 1}, {"a": pa.int64()}, metadata=b"\1\1\0\2a"), "outside"),
        (one({"a": 1}, {"a": pa.int64()}, metadata=metadata_of(["b"])), "not in its metadata"),
        (one({"a": 1}, {"a": pa.int64()}, metadata=None), "no metadata"),
        (one({"a": 1}, {"a": pa.int64()}, value=b""), "no object"),
        (one({"a": 1}, {"a": pa.int64()}, value=b"\4"), "no object"),
        (one({"a": 1}, {"a": pa.int64()}, value=b"\x42\xff\xff\xff\xff"), "early"),
        (one({"a": 1}, {"a": pa.int64()}, value=b"\2\1\1\0\2\0"), "outside"),
        (one({"a": 1}, {"a": pa.int64()}, value=b"\2\1\1\1\1\0"), "outside"),
        (one({"a": 1}, {"a": pa.int64()}, value=b"\2\1\2\0\1\0"), "not in its metadata"),
        (one({"a": 1}, {"a": pa.int64()}, value=encoded({"a": 1}, "a")), "twice"),
        (one(1, pa.int64(), value=b"\0"), "both"),
        (one([1], [pa.int64()], value=b"\0"), "both"),
        (pa.array([{"value": b"\0"}]), "no binary field metadata"),
        (pa.array([{"metadata": b"\1\0\0"}]), "no binary field value"),
        (pa.array([{"metadata": b"\1\0\0", "value": "x"}]), "no binary field value"),
        (pa.array([{"metadata": b"\1\0\0", "value": "x", "typed_value": 1}]), "not binary"),
        (pa.array([{"metadata": b"\1\0\0", "typed_value": {"a": 1}}]), "no group"),
        (pa.array([{"metadata": b"\1\0\0", "typed_value": {"a": {"x": 1}}}]), "neither"),
        (pa.array([{"metadata": b"\1\0\0", "typed_value": [1]}]), "no group"),
        (
            pa.StructArray.from_arrays(
                [pa.array([b"\1\0\0"]), pa.array([1], pa.uint8())], ["metadata", "typed_value"]
            ),
            "uint8, which no variant has",
        ),
        (twice("metadata", b"\1\0\0"), "two fields"),
        (
            pa.StructArray.from_arrays(
                [pa.array([b"\1\1\0\1a"]), twice("a", {"value": b"\0"})],
                ["metadata", "typed_value"],
            ),
            "two fields",
        ),
    ],
)
def test_what_cannot_be_a_variant_is_refused(variants: pa.StructArray, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        whole(variants)


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_do_no_harm(seed: int) -> None:
    chance = random.Random(seed)
    row = {"a": 1, "b": {"c": [1, "x"]}, "d": None}
    names = ["a", "b", "c", "d"]
    variants = array_of([row] * 3, {"a": pa.int64()}, names)
    for _ in range(300):
        name = chance.choice(["metadata", "value"])
        changed = bytearray(variants.field(name)[0].as_py())
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        data = bytes(
            changed[: chance.randint(0, len(changed))] if chance.random() < 0.3 else changed
        )
        columns = {field.name: variants.field(field.name) for field in variants.type}
        columns[name] = pa.array([data] * 3, BINARY)
        try:
            made = whole(pa.StructArray.from_arrays(columns.values(), columns.keys()))
        except FormatError:
            continue
        assert pc.max(pc.binary_length(made.field("value"))).as_py() < 200
