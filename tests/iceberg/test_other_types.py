"""Columns whose types nobody here knows: the table is used without them. And geometries, which
PyIceberg knows and Arrow writes. What Java makes of both is in ``interop/test_other_types.py``."""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
import threading
import uuid
from base64 import b64decode
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import KMS_PROPERTIES, expected_rows, open_fixture, rewritten
from kept_tables import KeptTables
from pyarrow.parquet.encryption import create_decryption_properties
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    GeographyType,
    GeometryType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)
from rest_catalog import Rest

import ags1
from ags1 import Ags1Error, UnsupportedTypeError
from ags1.columns.avro.variants import VariantType
from ags1.iceberg import EncryptedCatalog, EncryptedTable, load_catalog, verify_table
from ags1.iceberg.spec.column_types import OpaqueType, parse_schema

Json = dict[str, Any]

UNION = {"type": "union", "of": ["int"]}
KINDS: list[Any] = ["interval", "unheard-of(3)", "decimal(9, 2) unsigned", UNION]
STORED = StructType(
    NestedField(20, "metadata", BinaryType()), NestedField(21, "value", BinaryType())
)
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "v", STORED),
    NestedField(
        3, "st", StructType(NestedField(4, "a", IntegerType()), NestedField(5, "v", STORED))
    ),
    NestedField(6, "l", ListType(7, STORED, False)),
    NestedField(8, "s", StringType()),
)
PART = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x11"}
ROWS = [
    {"id": 1, "v": PART, "st": {"a": 7, "v": PART}, "l": [PART, None], "s": "q"},
    {"id": 2, "v": None, "st": None, "l": None, "s": "r"},
    {"id": 3, "v": PART, "st": {"a": None, "v": None}, "l": [], "s": "s"},
]
KNOWN = [
    {"id": 1, "st": {"a": 7}, "s": "q"},
    {"id": 2, "st": None, "s": "r"},
    {"id": 3, "st": {"a": None}, "s": "s"},
]


def create(catalog: EncryptedCatalog, schema: Schema, **more: Any) -> EncryptedTable:
    properties = {"encryption.key-id": "keyA"} | more.pop("properties", {})
    table = catalog.create_table("db.t", schema, properties=properties, **more)
    assert isinstance(table, EncryptedTable)
    return table


def with_kind(kind: Any, **more: Any) -> Any:
    """What makes the columns v a type of another kind."""

    def change(metadata: Json) -> None:
        [schema] = metadata["schemas"]
        schema["fields"][1] |= {"type": kind, **more}
        schema["fields"][2]["type"]["fields"][1]["type"] = kind
        schema["fields"][3]["type"]["element"] = kind

    return change


def filled(catalog: EncryptedCatalog, file_format: str) -> EncryptedTable:
    renumbered = create(catalog, SCHEMA, properties={"write.format.default": file_format})
    renumbered.append(pa.Table.from_pylist(ROWS, renumbered.schema().as_arrow()))
    return renumbered


def ours(kept: KeptTables, file_format: str, kind: Any, **more: Any) -> EncryptedTable:
    """A table with rows whose columns v have become of this type."""
    return rewritten(kept(filled, file_format), with_kind(kind, **more))


def rows_of(table: EncryptedTable, *names: str) -> list[Json]:
    found = table.scan(selected_fields=names or ("id", "st.a", "s")).to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def types_of(table: EncryptedTable) -> list[Any]:
    return [field["type"] for field in table.view().metadata["schemas"][-1]["fields"]]


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_other_columns_are_read(kept: KeptTables, file_format: str, kind: Any) -> None:
    table = ours(kept, file_format, kind)
    shown = kind if isinstance(kind, str) else json.dumps(kind)
    assert str(table.schema().find_type("v")) == shown
    assert rows_of(table) == KNOWN
    assert table.scan().count() == 3
    assert table.scan("st.a = 7 or s = 's'").count() == 2
    assert [row["id"] for row in rows_of(table, "id")] == [1, 2, 3]
    for names in (("*",), ("id", "v"), ("st",), ("l",), ("st.v",)):
        scan = table.scan(selected_fields=names)
        for read in (scan.to_arrow, scan.to_arrow_batch_reader):
            with pytest.raises(UnsupportedTypeError) as caught:
                read()
            assert isinstance(caught.value, Ags1Error)
            assert isinstance(caught.value, NotImplementedError)
            assert f"has type {shown}, which this version does not read" in str(caught.value)
    with pytest.raises(UnsupportedTypeError, match=r"id, s \(see the .* selected_fields\)"):
        table.scan().to_arrow()
    for row_filter in ("v is null", "st.v is not null", "id = 1 and v = 'x'"):
        with pytest.raises(UnsupportedTypeError, match="filter by other columns"):
            table.scan(row_filter, selected_fields=("id",)).to_arrow()
        with pytest.raises(UnsupportedTypeError, match="filter by other columns"):
            table.delete(row_filter)
    assert {"id", "s"} <= set(table.inspect.files()["readable_metrics"][0].as_py())
    assert table.inspect.entries().num_rows == 1


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
@pytest.mark.parametrize("kind", KINDS[2:], ids=str)
def test_the_other_columns_are_written(kept: KeptTables, file_format: str, kind: Any) -> None:
    table = ours(kept, file_format, kind)
    kinds = types_of(table)
    for name, values in {
        "v": pa.array([PART]),
        "l": pa.array([[PART]]),
        "st": pa.array([{"a": 1, "v": None}], pa.struct([("a", pa.int32()), ("v", pa.null())])),
    }.items():
        with pytest.raises(UnsupportedTypeError, match="leave the column out"):
            table.append(pa.table({"id": [4], name: values}))
    structs = pa.array([{"a": 5}], pa.struct([("a", pa.int32())]))
    table.append(pa.table({"id": [4], "st": structs, "s": ["ours"]}))
    table.overwrite(pa.table({"id": [2], "s": ["again"]}), "id = 2")
    table.delete("id = 3")
    expected = [KNOWN[0], KNOWN[1] | {"s": "again"}, {"id": 4, "st": {"a": 5}, "s": "ours"}]
    assert rows_of(table) == expected
    with pytest.raises(UnsupportedTypeError, match="when_matched_update_all=False"):
        table.upsert(pa.table({"id": [1], "s": ["x"]}), join_cols=["id"])
    new = pa.table({"id": [1, 5], "s": ["x", "y"]})
    result = table.upsert(new, join_cols=["id"], when_matched_update_all=False)
    assert result.rows_inserted == 1
    table.update_schema().add_column("more", StringType()).rename_column("s", "t").commit()
    assert types_of(table) == [*kinds, "string"]
    assert [row["t"] for row in rows_of(table, "id", "t")] == ["q", "again", "ours", "y"]


@pytest.mark.parametrize("kind", KINDS[2:], ids=str)
def test_what_does_not_look_into_files_goes_on(kept: KeptTables, kind: Any) -> None:
    table = ours(kept, "parquet", kind)
    kinds, catalog = types_of(table), table.catalog
    table.append(pa.table({"id": [4], "s": ["ours"]}))
    expected = [*KNOWN, {"id": 4, "st": None, "s": "ours"}]
    table.rotate_keys()
    table.rewrap_keys("keyB")
    assert table.rekey().files == 2
    assert len(table.expire_snapshots(datetime.now(timezone.utc), 1).snapshot_ids) == 2
    assert len(table.prune_keys()) == 2
    assert verify_table(table).ok
    renamed = catalog.rename_table("db.t", "db.other")
    assert catalog.table_exists("db.other")
    catalog.register_table("db.copy", renamed.metadata_location)
    for name in ("db.other", "db.copy"):
        again = catalog.load_table(name)
        assert isinstance(again, EncryptedTable)
        assert types_of(again) == kinds
        assert rows_of(again) == expected
        assert verify_table(again).ok
    catalog.purge_table("db.copy")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Rest]:
    with Rest(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_rest_server_s_table_is_used_too(server: Rest) -> None:
    uri = f"http://127.0.0.1:{server.server_address[1]}"
    with load_catalog("rest", type="rest", uri=uri, **KMS_PROPERTIES) as catalog:
        table = create(catalog, SCHEMA)
        table.append(pa.Table.from_pylist(ROWS, table.schema().as_arrow()))
        with_kind("variant")(server.tables["t"][0])
        table = table.refresh()
        assert rows_of(table) == KNOWN
        table.append(pa.table({"id": [4]}))
        table.rotate_keys()
        table.rekey()
        again = catalog.load_table("db.t")
        assert isinstance(again, EncryptedTable)
        assert [row["id"] for row in rows_of(again)] == [1, 2, 3, 4]
        assert types_of(again)[1] == "variant"


def test_a_required_column_cannot_be_left_out(kept: KeptTables) -> None:
    table = ours(kept, "parquet", "interval", required=True)
    before = table.current_snapshot()
    with pytest.raises(UnsupportedTypeError, match=r"'v' has type interval.* and is required"):
        table.append(pa.table({"id": [4]}))
    assert table.current_snapshot() == before
    table.delete("id = 1")
    assert [row["id"] for row in rows_of(table)] == [2, 3]


def test_a_column_with_a_default_cannot_be_left_out(kept: KeptTables) -> None:
    """It would read as the default where the file has none, and a new row shall have it."""
    for name in ("initial-default", "write-default"):
        table = ours(kept, "parquet", "unheard-of", **{name: {"x": [1, None]}})
        with pytest.raises(UnsupportedTypeError, match=r"'v' has type .* and has a default"):
            table.append(pa.table({"id": [4]}))
        table.update_schema().add_column("more", StringType()).commit()
        assert table.view().metadata["schemas"][-1]["fields"][1][name] == {"x": [1, None]}
        assert rows_of(table) == KNOWN


def test_a_partition_of_such_a_column_is_not_written(catalog: EncryptedCatalog) -> None:
    spec = PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "p"))
    create(catalog, SCHEMA, partition_spec=PartitionSpec())
    table = catalog.load_table("db.t")
    assert isinstance(table, EncryptedTable)
    table = rewritten(table, with_kind("unheard-of"))

    def partition(metadata: Json) -> None:
        source = metadata["schemas"][0]["fields"][1]["id"]
        [found] = metadata["partition-specs"]
        found["fields"] = [json.loads(spec.fields[0].model_dump_json()) | {"source-id": source}]

    table = rewritten(table, partition)
    with pytest.raises(UnsupportedTypeError, match="partitioned by 'p'"):
        table.append(pa.table({"id": [4]}))


def test_a_table_of_such_a_type_is_not_made(catalog: EncryptedCatalog) -> None:
    for schema in (
        parse_schema({"type": "struct", "fields": [column("interval")]}),
        Schema(NestedField(1, "v", GeographyType("OGC:CRS84", "karney"))),
    ):
        with pytest.raises(UnsupportedTypeError, match=r"'v' has type .*does not write to Parquet"):
            create(catalog, schema)
    assert not catalog.table_exists("db.t")


def test_other_libraries_know_geometries_and_variants(catalog: EncryptedCatalog) -> None:
    """By the names of Arrow's extension types, DuckDB and Polars read and write them."""
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    fields = NestedField(2, "v", VariantType()), NestedField(3, "g", GeometryType())
    table = create(catalog, Schema(NestedField(1, "id", LongType()), *fields))
    made = duckdb.sql("""SELECT 1 AS id, '{"a": [1, "x"]}'::JSON::VARIANT AS v""")
    table.append(made)
    given = table.scan().to_arrow()
    named = {pair for field in given.schema for pair in (field.metadata or {}).items()}
    assert {name for key, name in named if key == b"ARROW:extension:name"} == {
        b"arrow.parquet.variant",
        b"geoarrow.wkb",
    }
    table.append(polars.from_arrow(given.select(["id", "v"])))
    table.append(duckdb.sql("SELECT id, v FROM given"))
    found = duckdb.from_arrow(table.scan())
    assert [str(kind) for kind in found.types] == ["BIGINT", "VARIANT", "GEOMETRY('OGC:CRS84')"]
    assert found.fetchall() == [(1, {"a": [1, "x"]}, None)] * 3


def column(kind: str) -> Json:
    return {"id": 1, "name": "v", "required": False, "type": kind}


@pytest.mark.parametrize(
    ("kind", "shown"), [("interval", "OpaqueType('\"interval\"')"), ("variant", "VariantType()")]
)
def test_the_type_itself(kind: str, shown: str) -> None:
    schema = parse_schema({"type": "struct", "fields": [column(kind)]})
    [field] = schema.fields
    assert isinstance(field.field_type, OpaqueType | VariantType)
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert json.loads(schema.model_dump_json())["fields"] == [column(kind)]
    assert field.field_type != StringType()
    assert repr(field.field_type) == shown


# -- variants

IN_VARIANTS = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "v", VariantType()),
    NestedField(
        3, "st", StructType(NestedField(4, "a", IntegerType()), NestedField(5, "v", VariantType()))
    ),
    NestedField(6, "l", ListType(7, VariantType(), False)),
    NestedField(8, "m", MapType(9, StringType(), 10, VariantType(), False)),
)
OBJECT = {"metadata": b"\x01\1\0\1a", "value": b"\x02\1\0\0\1\0"}
VARIANTS: list[Json] = [
    {"id": 1, "v": PART, "st": {"a": 1, "v": OBJECT}, "l": [PART, None], "m": [("k", PART)]},
    {"id": 2, "v": None, "st": None, "l": None, "m": None},
    {"id": 3, "v": OBJECT, "st": {"a": None, "v": None}, "l": [], "m": [("", None)]},
]


class FromAnotherLibrary(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(
            pa.struct({"value": pa.binary(), "metadata": pa.binary()}), "arrow.parquet.variant"
        )

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def variants_of(rows: list[Json]) -> pa.Table:
    v = pa.struct({"value": pa.binary(), "metadata": pa.large_binary()})
    st = pa.struct({"a": pa.int32(), "v": v})
    kinds = {"id": pa.int64(), "v": v, "st": st, "l": pa.list_(v), "m": pa.map_(pa.string(), v)}
    return pa.Table.from_pylist(rows, pa.schema(kinds))


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_variants_are_written_and_read(catalog: EncryptedCatalog, file_format: str) -> None:
    table = create(catalog, IN_VARIANTS, properties={"write.format.default": file_format})
    assert types_of(table)[1] == "variant"
    table.append(variants_of(VARIANTS))
    everything = ("*",)
    assert rows_of(table, *everything) == VARIANTS
    for read in (table.scan().to_arrow(), table.scan().to_arrow_batch_reader().read_all()):
        assert read.to_pylist() == VARIANTS
        field = read.schema.field("v")
        assert field.metadata[b"ARROW:extension:name"] == b"arrow.parquet.variant"
        assert [f.name for f in field.type] == ["metadata", "value"]
        assert not any(f.nullable or f.metadata for f in field.type)
        element = read.schema.field("l").type.value_field
        assert element.metadata[b"ARROW:extension:name"] == b"arrow.parquet.variant"
        # Arrow's writer crashes if it gets an extension type of Python's with this name.
        pq.write_table(read, io.BytesIO())
    [task] = table.scan().plan_files()
    file, ids = task.file, [table.schema().find_field(name).field_id for name in ("v", "st.v")]
    assert [file.value_counts[i] for i in ids] == [3, 3]
    assert [file.null_value_counts[i] for i in ids] == [1, 2]
    assert not {*(file.lower_bounds or {}), *(file.column_sizes or {})} & {*ids}
    assert set(table.inspect.files()["readable_metrics"][0].as_py()) == {"id", "st"}
    if file_format == "parquet":
        printed = str(parquet_schema(table, task))
        annotated = re.findall(r"(\w+) \(Variant\(1\)\) \{\n *required binary", printed)
        assert annotated == ["v", "v", "element", "value"]

    assert table.scan("v is null").to_arrow()["id"].to_pylist() == [2]
    assert table.scan("st.v is not null", selected_fields=("id",)).to_arrow().to_pylist() == [
        {"id": 1}
    ]
    with pytest.raises(TypeError, match="'v' is a variant: a filter can only ask"):
        table.scan("v = 'x'").to_arrow()


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_variants_stay_what_they_are(
    catalog: EncryptedCatalog, tmp_path: Path, file_format: str
) -> None:
    properties = {"write.format.default": file_format, "write.delete.mode": "copy-on-write"}
    table = create(catalog, IN_VARIANTS, properties=properties)
    table.append(variants_of(VARIANTS))
    more = [{**VARIANTS[0], "id": 4}, {**VARIANTS[2], "id": 5}]
    table.append(variants_of(more).to_reader())
    table.delete("id = 3")
    table.overwrite(variants_of([{**VARIANTS[2], "id": 2}]), "id = 2")
    changed = variants_of([{**more[0], "v": OBJECT}, more[1], {**VARIANTS[1], "id": 6}])
    result = table.upsert(changed, join_cols=["id"])
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    expected = [VARIANTS[0], {**VARIANTS[2], "id": 2}, *changed.to_pylist()]
    assert rows_of(table, "*") == expected
    table.rewrite_data_files()
    table.rekey()
    table = catalog.load_table("db.t")
    assert rows_of(table, "*") == expected
    assert verify_table(table).ok
    table.update_schema().add_column("w", VariantType()).commit()
    added = pa.ExtensionArray.from_storage(
        FromAnotherLibrary(), pa.array([OBJECT], FromAnotherLibrary().storage_type)
    )
    table.append(pa.table({"id": [9], "w": added}))
    nothing = dict.fromkeys(("v", "st", "l", "m"))
    assert rows_of(table, "*") == [
        *({**row, "w": None} for row in expected),
        {"id": 9, **nothing, "w": OBJECT},
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (pa.array(["x"]), "provide structs of the binary fields metadata and value"),
        (pa.array([{"metadata": b"\1\0\0", "x": b"\0"}]), "provide structs"),
        (pa.array([{"metadata": b"\2\0\0", "value": b"\0"}]), "not of version 1"),
        (pa.array([{"metadata": b"", "value": b"\0"}]), "not of version 1"),
        (pa.array([{"metadata": b"\1\0\0", "value": b""}]), "empty"),
        (pa.array([{"metadata": None, "value": b"\0"}, PART]), "no metadata"),
        (pa.array([{"metadata": "x", "value": b"\0"}]), "no binary field metadata"),
    ],
)
def test_what_is_no_variant_is_not_written(
    catalog: EncryptedCatalog, given: pa.Array, message: str
) -> None:
    table = create(catalog, Schema(NestedField(1, "v", VariantType())))
    with pytest.raises(ValueError, match=message) as caught:
        table.append(pa.table({"v": given}))
    assert "'v'" in str(caught.value)
    assert table.current_snapshot() is None


def test_no_table_is_partitioned_or_sorted_by_variants(catalog: EncryptedCatalog) -> None:
    schema = Schema(NestedField(1, "v", VariantType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    with pytest.raises(UnsupportedTypeError, match="partitioned or sorted"):
        create(catalog, schema, partition_spec=spec)
    table = create(catalog, schema)
    with pytest.raises(UnsupportedTypeError, match="partitioned or sorted"):
        table.update_sort_order().asc("v", IdentityTransform()).commit()


@pytest.mark.parametrize("name", ["variant", "variant_shredded", "variant_avro"])
def test_java_s_variants_are_read(name: str) -> None:
    expected = [
        {"id": row["id"], "v": row["value"] and {k: b64decode(row[k]) for k in PART}}
        for row in expected_rows(f"dev/{name}")
    ]
    assert rows_of(open_fixture(f"dev/{name}"), "*") == expected


@pytest.mark.parametrize(
    "kind",
    ["geometry", "geometry(EPSG:3857)", "geography", "geography(srid:1)", "geography(a, karney)"],
)
def test_java_s_names_of_geometries_are_kept(catalog: EncryptedCatalog, kind: str) -> None:
    def change(metadata: Json) -> None:
        metadata["schemas"][0]["fields"][1]["type"] = kind

    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "g", BinaryType()))
    table = create(catalog, schema)
    table.append(pa.table({"id": [1], "g": [point(1, 2)]}))
    table = rewritten(table, change)
    assert isinstance(table.schema().find_type("g"), GeometryType | GeographyType)
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "g": point(1, 2)}]
    table.update_schema().add_column("more", StringType()).commit()
    full = {
        "geometry": "geometry(OGC:CRS84)",
        "geography": "geography(OGC:CRS84, spherical)",
        "geography(srid:1)": "geography(srid:1, spherical)",
    }
    assert types_of(table)[1] == full.get(kind, kind)


def point(x: float, y: float) -> bytes:
    return struct.pack("<BIdd", 1, 1, x, y)


class FromGeoArrow(pa.ExtensionType):
    """As GeoArrow's libraries have geometries in Arrow."""

    def __init__(self, storage: pa.DataType = pa.binary()) -> None:  # noqa: B008
        super().__init__(storage, "geoarrow.wkb")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"{}"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, _: bytes) -> FromGeoArrow:
        return cls(storage)


@pytest.fixture
def registered() -> Iterator[None]:
    """As where GeoArrow's library is imported: Arrow reads geometries as of its type then."""
    pa.register_extension_type(FromGeoArrow())
    yield
    pa.unregister_extension_type("geoarrow.wkb")


def test_geometries_are_bytes_whatever_arrow_knows(
    catalog: EncryptedCatalog, registered: None
) -> None:
    st = StructType(NestedField(4, "g", GeometryType()), NestedField(5, "u", UUIDType()))
    fields = [NestedField(2, "g", GeometryType()), NestedField(3, "st", st)]
    table = create(catalog, Schema(NestedField(1, "id", LongType()), *fields))
    rows = [{"id": 1, "g": point(1, 2), "st": {"g": point(3, 4), "u": uuid.UUID(int=7)}}]
    ids = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([uuid.UUID(int=7).bytes], pa.binary(16))
    )
    structs = pa.StructArray.from_arrays([pa.array([point(3, 4)]), ids], ["g", "u"])
    table.append(pa.table({"id": [1], "g": [point(1, 2)], "st": structs}))
    for found in (table.scan().to_arrow(), table.scan("g is not null").to_arrow()):
        assert found.schema.field("g").type == pa.large_binary()
        assert found.to_pylist() == rows
    assert table.scan(selected_fields=("st.g",)).to_arrow().to_pylist() == [
        {"st": {"g": point(3, 4)}}
    ]


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_geometries_are_written_and_read(catalog: EncryptedCatalog, file_format: str) -> None:
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "g", GeometryType()),
        NestedField(3, "e", GeographyType("EPSG:4267")),
        NestedField(4, "l", ListType(5, GeometryType("srid:5070"), False)),
        NestedField(6, "st", StructType(NestedField(7, "g", GeometryType()))),
    )
    table = create(catalog, schema, properties={"write.format.default": file_format})
    rows = [
        {"id": 1, "g": point(1, 2), "e": None, "l": [point(3, 4), None], "st": {"g": point(5, 6)}},
        {"id": 2, "g": None, "e": point(0, 1), "l": None, "st": None},
        {"id": 3, "g": None, "e": None, "l": [], "st": {"g": None}},
    ]
    wkb = {"g": pa.binary(), "e": pa.large_binary(), "l": pa.list_(pa.binary())}
    arrow = pa.schema({"id": pa.int64(), **wkb, "st": pa.struct({"g": pa.binary()})})
    given = pa.Table.from_pylist(rows, arrow)
    table.append(given)
    assert table.scan().to_arrow().to_pylist() == rows
    assert table.scan().to_arrow_batch_reader().read_all().to_pylist() == rows
    assert table.scan("g is null").count() == 2
    [task] = table.scan().plan_files()
    ids = [table.schema().find_field(name).field_id for name in ("g", "e", "st.g")]
    assert [task.file.value_counts[i] for i in ids] == [3, 3, 3]
    assert [task.file.null_value_counts[i] for i in ids] == [2, 2, 2]
    assert not set(task.file.lower_bounds) & set(ids)
    if file_format == "parquet":
        assert logical_types(table, task) == {
            "g": ("Geometry", "crs="),
            "e": ("Geography", "crs=EPSG:4267, algorithm=spherical"),
            "l.list.element": ("Geometry", "crs=srid:5070"),
            "st.g": ("Geometry", "crs="),
        }

    of_geoarrow = pa.ExtensionArray.from_storage(FromGeoArrow(), pa.array([point(8, 9)]))
    table.append(pa.table({"id": [4], "g": of_geoarrow}))
    changed = given.slice(1, 1).set_column(1, "g", pa.array([point(7, 7)]))
    assert table.upsert(changed, join_cols=["id"]).rows_updated == 1
    assert rows_of(table, "id", "g") == [
        {"id": 1, "g": point(1, 2)},
        {"id": 2, "g": point(7, 7)},
        {"id": 3, "g": None},
        {"id": 4, "g": point(8, 9)},
    ]
    with pytest.raises(ValueError, match="WKB"):
        table.append(pa.table({"id": [5], "g": ["POINT (1 2)"]}))
    table.rekey()
    assert verify_table(table).ok


def parquet_schema(table: EncryptedTable, task: Any) -> pq.ParquetSchema:
    stored = table.io.new_input(task.file.file_path).open().read()
    km = ags1.KeyMetadata.from_bytes(task.file.key.to_bytes())
    keys = create_decryption_properties(km.encryption_key, aad_prefix=km.aad_prefix)
    return pq.ParquetFile(io.BytesIO(stored), decryption_properties=keys).schema


def logical_types(table: EncryptedTable, task: Any) -> dict[str, tuple[str, str]]:
    """The logical types of a Parquet file's geometries, as Arrow prints them."""
    found = parquet_schema(table, task)
    columns = (found.column(number) for number in range(len(found)))
    printed = {c.path: str(c.logical_type).partition("(") for c in columns}
    return {
        path: (name, rest.removesuffix(")"))
        for path, (name, _, rest) in printed.items()
        if name.startswith("Geo")
    }
