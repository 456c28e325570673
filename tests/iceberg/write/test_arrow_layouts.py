"""Rows in every layout that Arrow has for them: views, runs, dictionaries, slices, and values that
no row has, under a null or in a gap. Python's rows, of which the arrays were made, are right."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from data_files import files_in, metadata_of, read_avro, read_parquet, write
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    IcebergType,
    IntegerType,
    ListType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

import ags1
from ags1 import UnsupportedTypeError
from ags1.columns.avro.files import AvroFile
from ags1.columns.avro.schema import iceberg_schema_of_avro
from ags1.iceberg import EncryptedCatalog
from ags1.iceberg.pyiceberg.arrow import iceberg_schema
from ags1.iceberg.write.arrow_input import arrow_rows

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")


def required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


INNER = pa.struct([required("z", pa.int64()), ("t", pa.string())])
KIND = pa.struct(
    [
        ("n", pa.int64()),
        ("t", pa.string()),
        ("s", pa.struct([required("x", pa.int64()), required("in", INNER), ("o", INNER)])),
        ("l", pa.list_(INNER)),
        ("r", pa.list_(required("element", pa.list_(required("element", pa.int64()))))),
        ("m", pa.map_(pa.string(), required("value", INNER))),
    ]
)


class Layouts:
    """Makes values, and arrays of them. The hidden values of an array are arbitrary."""

    def __init__(self, seed: int) -> None:
        self._choose = random.Random(seed)

    def value(self, kind: pa.DataType, nullable: bool = True, *, hidden: bool = False) -> Any:
        """Return a value. If it is hidden, a required one inside may be null, too."""
        choose = self._choose
        if nullable and choose.random() < 0.3:
            return None
        if pa.types.is_struct(kind):
            return {f.name: self.value(f.type, hidden or f.nullable, hidden=hidden) for f in kind}
        if pa.types.is_map(kind):
            keys = choose.sample("abcd", choose.randrange(3))
            return [(k, self.value(kind.item_type, kind.item_field.nullable)) for k in keys]
        if pa.types.is_list(kind):
            field = kind.value_field
            return [self.value(field.type, field.nullable) for _ in range(choose.randrange(3))]
        return (
            choose.randrange(3) if pa.types.is_int64(kind) else choose.choice(["", "a", "bc" * 9])
        )

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """Return the values as a slice of an array in some layout."""
        before, after = ([self.value(kind)] * self._choose.randrange(3) for _ in range(2))
        whole = [*before, *values, *after]
        if pa.types.is_struct(kind):
            made = self._struct(whole, kind)
        elif pa.types.is_map(kind):
            made = self._map(whole, kind)
        elif pa.types.is_list(kind):
            made = self._list(whole, kind)
        else:
            made = self._leaf(whole, kind)
        return made.slice(len(before), len(values))

    def _struct(self, values: list[Any], kind: pa.StructType) -> pa.Array:
        hidden = [self.value(kind, False, hidden=True) if v is None else v for v in values]
        nulls = [self._choose.random() < 0.5 and value is None for value in values]
        columns, fields = [], []
        for f in kind:
            parts = [None if n else h[f.name] for n, h in zip(nulls, hidden, strict=True)]
            columns.append(self.array(parts, f.type))
            fields.append(f.with_type(columns[-1].type))
        return pa.StructArray.from_arrays(columns, fields=fields, mask=_mask(values))

    def _map(self, values: list[Any], kind: pa.MapType) -> pa.Array:
        hidden = [self.value(kind, nullable=False) if v is None else v for v in values]
        offsets, entries = _end_to_end(hidden)
        keys = self.array([key for key, _ in entries], kind.key_type)
        items = self.array([item for _, item in entries], kind.item_type)
        fields = kind.key_field.with_type(keys.type), kind.item_field.with_type(items.type)
        made = pa.map_(*fields, keys_sorted=self._choose.random() < 0.3)
        return pa.MapArray.from_arrays(offsets, keys, items, made, mask=_mask(values))

    def _list(self, values: list[Any], kind: pa.ListType) -> pa.Array:
        field = kind.value_field
        if self._choose.random() < 0.5:
            # A required element that is null is hidden under a null list.
            hidden = [[None] if v is None else v for v in values]
            offsets, parts = _end_to_end(hidden)
            child = self.array(parts, field.type)
            field = field.with_type(child.type)
            if values and {len(part) for part in hidden} in ({1}, {2}):
                made = pa.list_(field, len(hidden[0]))
                return pa.FixedSizeListArray.from_arrays(child, type=made, mask=_mask(values))
            one, made, width = self._choose.choice(
                [
                    (pa.ListArray, pa.list_(field), pa.int32()),
                    (pa.LargeListArray, pa.large_list(field), pa.int64()),
                ]
            )
            return one.from_arrays(offsets.cast(width), child, type=made, mask=_mask(values))
        starts: list[int] = [10**6] * len(values)
        sizes = [10**6 if value is None else len(value) for value in values]
        gap = self.value(field.type)
        parts = [gap]
        for at in self._choose.sample(range(len(values)), len(values)):
            if values[at] is not None:
                same = [i for i, v in enumerate(values) if v == values[at] and starts[i] < 10**6]
                starts[at] = starts[same[0]] if same else len(parts)
                parts += [] if same else [*values[at], gap]
        child = self.array(parts, field.type)
        field = field.with_type(child.type)
        one, made, width = self._choose.choice(
            [
                (pa.ListViewArray, pa.list_view(field), pa.int32()),
                (pa.LargeListViewArray, pa.large_list_view(field), pa.int64()),
            ]
        )
        places = pa.array(starts, width), pa.array(sizes, width)
        return one.from_arrays(*places, child, type=made, mask=_mask(values))

    def _leaf(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        array = pa.array(values, kind)
        layout = self._choose.randrange(5)
        if layout == 0:
            return pc.run_end_encode(array)
        if layout == 1:
            distinct = pa.array([None, *{v for v in values if v is not None}], kind)
            if pa.types.is_string(kind) and self._choose.random() < 0.5:
                distinct = distinct.cast(pa.string_view())
            places = [distinct.to_pylist().index(value) for value in values]
            return pa.DictionaryArray.from_arrays(pa.array(places, pa.int8()), distinct)
        if pa.types.is_string(kind):
            return array.cast([pa.string(), pa.large_string(), pa.string_view()][layout - 2])
        return array


def _mask(values: list[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _end_to_end(parts: list[list[Any]]) -> tuple[pa.Array, list[Any]]:
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return pa.array(offsets, pa.int32()), [value for part in parts for value in part]


def in_python(value: Any, kind: pa.DataType) -> Any:
    """Return a value of fastavro, whose maps are dicts, in Arrow's form."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return {f.name: in_python(value[f.name], f.type) for f in kind}
    if pa.types.is_map(kind):
        return [(key, in_python(item, kind.item_type)) for key, item in dict(value).items()]
    return [in_python(item, kind.value_type) for item in value]


def schema_of(kind: pa.StructType) -> Schema:
    return assign_fresh_schema_ids(iceberg_schema(pa.schema(list(kind))))


def stored_rows(record: Any) -> list[dict[str, Any]]:
    return (
        read_parquet(record).to_pylist()
        if record.file_format == "PARQUET"
        else read_avro(record)[1]
    )


def table_of(tmp_path: Path, kind: pa.StructType, file_format: str) -> dict[str, Any]:
    properties = {"write.format.default": file_format}
    return metadata_of(tmp_path, schema_of(kind), properties=properties)


# Of `make test`: each seed in one of the formats.
@pytest.mark.slow_variants(r"\d*[02468]-avro", r"\d*[13579]-parquet")
@pytest.mark.parametrize("file_format", ["parquet", "avro"])
@pytest.mark.parametrize("seed", range(12))
def test_every_layout_is_stored_by_its_values(tmp_path: Path, seed: int, file_format: str) -> None:
    metadata = table_of(tmp_path, KIND, file_format)
    layouts = Layouts(seed)
    for count, as_reader in ((20, False), (3, True)):
        rows = [layouts.value(KIND, nullable=False) for _ in range(count)]
        columns = [layouts.array([row[f.name] for row in rows], f.type) for f in KIND]
        given = pa.Table.from_arrays(columns, names=[f.name for f in KIND])
        (record,) = write(metadata, arrow_rows(given.to_reader() if as_reader else given))
        assert in_python(stored_rows(record), pa.list_(KIND)) == rows


@pytest.mark.parametrize(
    ("start", "size"), [(6, 1), (5, 2), (-1, 1), (0, -1), (1 << 62, 5), (0, 1 << 62)]
)
def test_a_view_beyond_its_values_is_refused(start: int, size: int) -> None:
    places = pa.array([0, start]), pa.array([1, size])
    view = pa.LargeListViewArray.from_arrays(*places, pa.array(range(6)))
    with pytest.raises(ValueError, match="list view"):
        arrow_rows(pa.table({"v": view}))


def test_offsets_that_descend_are_refused(tmp_path: Path) -> None:
    offsets = pa.array([0, 5000, 1], pa.int32()).buffers()[1]
    lists = pa.Array.from_buffers(
        pa.list_(pa.int64()), 2, [None, offsets], children=[pa.array([1])]
    )
    with pytest.raises(ValueError, match="descend"):
        write(table_of(tmp_path, pa.struct([("l", lists.type)]), "parquet"), pa.table({"l": lists}))
    assert not files_in(tmp_path)


# -- nulls


LISTS = pa.list_(pa.int64())
NULL_OF = {
    "struct": pa.struct([required("x", pa.int64()), ("l", LISTS)]),
    "list": pa.list_(LISTS),
    "map": pa.map_(pa.string(), pa.struct([("l", LISTS)])),
    "inside": pa.struct([("l", LISTS), ("m", pa.map_(pa.string(), LISTS)), ("t", pa.string())]),
}


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
@pytest.mark.parametrize(
    ("name", "given"),
    [
        *((name, pa.nulls(2)) for name in NULL_OF),
        ("list", pa.array([[None], []], pa.list_(pa.null()))),
        ("list", pa.array([[[None], []], None], pa.list_(pa.list_(pa.null())))),
        ("list", pa.array([[None], None], pa.list_(pa.null(), 1))),
        ("list", pa.DictionaryArray.from_arrays([0, 0], pa.nulls(1))),
        ("map", pa.array([[("a", None)], None], pa.map_(pa.string(), pa.null()))),
        ("inside", pa.array([{"l": None, "m": None, "t": None}, None])),
        ("inside", pa.array([{"l": [None], "m": None, "t": None}])),
    ],
    ids=str,
)
def test_nulls_without_a_type_fit_every_optional_one(
    tmp_path: Path, name: str, given: pa.Array, file_format: str
) -> None:
    metadata = table_of(tmp_path, pa.struct([("c", NULL_OF[name])]), file_format)
    (record,) = write(metadata, pa.table({"c": given}))
    found = [in_python(row["c"], NULL_OF[name]) for row in stored_rows(record)]
    assert found == given.to_pylist()
    needed = table_of(tmp_path, pa.struct([required("c", NULL_OF[name])]), file_format)
    with pytest.raises(ValueError, match="Mismatch"):
        write(needed, pa.table({"c": given}))


@pytest.mark.parametrize("more", [{}, {"fields": "id"}, {"order": "id"}], ids=str)
@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_what_a_null_struct_hides_is_in_no_metrics(
    tmp_path: Path, file_format: str, more: dict[str, str]
) -> None:
    """Arrow refuses to write such nulls to Parquet: apache/arrow 50470."""
    kind = pa.struct([required("x", pa.int64()), required("t", pa.string())])
    hidden = pa.array([None, 7, -99, 5]), pa.array([None, "b", "zzz", "a"])
    structs = pa.StructArray.from_arrays(
        hidden, fields=list(kind), mask=pa.array([True, False, True, False])
    )
    rows = pa.table({"id": [3, 1, 1, 1], "s": structs})
    by_id = {"source-id": 1, "transform": "identity", "name": "id"}
    how = {"direction": "asc", "null-order": "nulls-first"} if "order" in more else {}
    properties = {"write.format.default": file_format}
    metadata = metadata_of(
        tmp_path,
        schema_of(pa.struct([("id", pa.int64()), ("s", kind)])),
        properties=properties,
        **{name: [by_id | how] for name in more},
    )
    records = write(metadata, rows)
    found = sorted((row for record in records for row in stored_rows(record)), key=repr)
    assert found == sorted(rows.to_pylist(), key=repr)
    record = max(records, key=lambda r: r.record_count)
    x, text = 3, 4
    nulls = 1 if "fields" in more else 2
    assert [(record.null_value_counts or {})[i] for i in (x, text)] == [nulls, nulls]
    bounds = record.lower_bounds or {}, record.upper_bounds or {}
    assert [each[x][0] for each in bounds] == [5, 7]
    assert [each[text] for each in bounds] == [b"a", b"b"]
    shown = pa.StructArray.from_arrays(hidden, fields=list(kind))
    with pytest.raises(ValueError, match=r"'s\.x' is required"):
        write(metadata, rows.set_column(1, "s", shown))


# -- depth


def nested(shape: str, levels: int, is_required: bool) -> tuple[Schema, Any]:
    """Return a column of nested types, and a value of it."""
    kind: IcebergType = IntegerType()
    value: Any = 1
    for n in range(levels):
        ids = 2 * n + 2, 2 * n + 3
        if shape == "struct":
            kind = StructType(NestedField(ids[0], "f", kind, required=is_required))
            value = {"f": value}
        elif shape == "list":
            kind, value = ListType(ids[0], kind, is_required), [value]
        else:
            key, of_key = (StringType(), "k") if shape == "map" else (IntegerType(), 1)
            kind = MapType(ids[0], key, ids[1], kind, is_required)
            value = [(of_key, value)]
    return Schema(NestedField(1, "d", kind, required=False)), value


@pytest.mark.parametrize(
    ("file_format", "shape", "is_required", "most"),
    [
        *(("avro", shape, False, 31) for shape in ("struct", "list", "map", "map of ints")),
        ("avro", "list", True, 62),
        *(("parquet", shape, False, 49) for shape in ("list", "map")),
        ("parquet", "struct", False, 60),
    ],
)
def test_what_can_be_written_can_be_read(
    tmp_path: Path, file_format: str, shape: str, is_required: bool, most: int
) -> None:
    properties = {"write.format.default": file_format}
    schema, value = nested(shape, most, is_required)
    rows = [{"d": value}]
    given = pa.Table.from_pylist(rows, schema_to_pyarrow(schema))
    (record,) = write(metadata_of(tmp_path, schema, properties=properties), given)
    if file_format == "parquet":
        assert read_parquet(record).to_pylist() == rows
    else:
        with ags1.open(record.file_path, "rb", record.key) as file:
            avro = AvroFile(file)
            other, _ = iceberg_schema_of_avro(avro.schema)
            for wanted in (schema, other):
                assert [b.to_pylist() for _, b in avro.read(wanted, positions=False)] == [rows]
    schema, _ = nested(shape, most + 1, is_required)
    metadata = metadata_of(tmp_path / "deeper", schema, properties=properties)
    if (file_format, shape) != ("parquet", "struct"):
        with pytest.raises(UnsupportedTypeError, match="column 'd' is nested"):
            write(metadata, pa.table({"d": pa.nulls(1)}))
        assert not files_in(tmp_path / "deeper")


def test_a_table_that_could_not_be_opened_is_not_made(catalog: EncryptedCatalog) -> None:
    encrypted = {"encryption.key-id": "keyA"}
    for shape in ("struct", "list", "map"):
        deep, _ = nested(shape, 61, False)
        with pytest.raises(UnsupportedTypeError, match="column 'd' is nested more than 60 deep"):
            catalog.create_table(f"db.{shape}", deep, properties=encrypted)
        assert not catalog.table_exists(f"db.{shape}")
    table = catalog.create_table("db.t", nested("struct", 60, False)[0], properties=encrypted)
    with pytest.raises(UnsupportedTypeError, match="column 'more' is nested more than 60 deep"):
        table.update_schema().add_column("more", deep.fields[0].field_type).commit()
    assert catalog.load_table("db.t").schema() == table.schema()
