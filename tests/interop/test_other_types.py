"""Columns whose types PyIceberg does not know, or knows under other names: what Java makes of the
tables afterwards.

Spark makes tables with variants only where no catalog keeps keys, so they are made in the clear and
migrated. Java's own reader compares: it prints a variant with all that is in it.
"""

from __future__ import annotations

import struct
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.types import GeographyType, GeometryType, ListType, LongType, NestedField

from ags1.iceberg import EncryptedCatalog, EncryptedTable, verify_table
from ags1.kms import KmsClient

from .java_tables import JavaTables
from .spark import SparkTables, path_of
from .writing import Shared

pytestmark = pytest.mark.interop

VariantVal: Any = pytest.importorskip("pyspark.sql.types").VariantVal

OBJECT = (
    "to_variant_object(named_struct('a', int(id), 'b', struct(double(id) / 4 AS x, 'y' AS y), "
    "'c', array(date '2026-01-01' + int(id)), 'd', decimal(id) / 8, 't', timestamp_micros(id), "
    "'n', timestamp_ntz '2026-01-01 00:00:00', 'r', binary('r'), 'f', float(id), 'o', id % 2 = 0, "
    "'l', concat('x', repeat('long ', 20))))"
)
MIXED = """VALUES
    (100, parse_json('{"a": 1, "b": [1, 2.5, "x", null], "e": {"f": {}}}'), NULL, 'r'),
    (101, parse_json('{"a": "text", "z": 1e300}'), named_struct('a', NULL, 'v', NULL), 's'),
    (102, parse_json('17'), named_struct('a', 1, 'v', parse_json('null')), NULL),
    (103, parse_json('[]'), named_struct('a', 1, 'v', parse_json('{}')), NULL),
    (104, NULL, NULL, NULL), (105, parse_json('null'), NULL, NULL),
    (106, parse_json('{"a": 3, "b": {"x": 1, "w": true}}'), NULL, NULL) AS t(id, v, st, s)"""
VARIANTS = {
    "parquet": {"write.format.default": "parquet"},
    "shredded": {"write.format.default": "parquet", "write.parquet.shred-variants": "true"},
    "avro": {"write.format.default": "avro"},
}


@pytest.fixture(scope="module")
def plain(spark: SparkTables) -> str:
    """A catalog of Spark's without a metastore, which knows no types."""
    conf, name = spark.session.conf, "spark.sql.catalog.plain"
    conf.set(name, "org.apache.iceberg.spark.SparkCatalog")
    conf.set(f"{name}.type", "hadoop")
    conf.set(f"{name}.warehouse", f"file:{spark.folder}/plain")
    return "plain"


@pytest.fixture
def catalog(spark: SparkTables, kms: KmsClient, tmp_path: Path) -> EncryptedCatalog:
    return Shared("sql", spark, kms, tmp_path).catalog


def javas_rows(spark: SparkTables, table: EncryptedTable) -> list[list[str | None]]:
    """What Java reads of a table, in the order of the ids, which come first."""
    java = JavaTables(spark)
    rows = java.rows(java.open(path_of(table.metadata_location)))
    return sorted(rows, key=lambda row: int(row[0] or 0))


def of_spark(spark: SparkTables, table: str) -> list[dict[str, Any]]:
    """What Spark reads of the columns id, v and st.v."""
    rows = spark.sql(f"SELECT id, v, st.v AS w FROM {table} ORDER BY id")
    return [row.asDict() for row in rows]


def ours(table: EncryptedTable) -> list[dict[str, Any]]:
    """What we read of the same columns, as Spark has variants in Python."""
    read = table.scan(selected_fields=("id", "v", "st.v")).to_arrow().to_pylist()
    rows = [{"id": r["id"], "v": r["v"], "w": r["st"] and r["st"]["v"]} for r in read]
    for row in rows:
        for name in "vw":
            if row[name] is not None:
                row[name] = VariantVal(row[name]["value"], row[name]["metadata"])
    return sorted(rows, key=lambda row: row["id"])


def checked(rows: list[dict[str, Any]]) -> list[Any]:
    """Variants in a form that is equal if they are, their types included."""
    return [{k: repr(v.toPython() if k != "id" and v else v) for k, v in r.items()} for r in rows]


@pytest.mark.parametrize("layout", VARIANTS)
def test_variants_both_ways(
    spark: SparkTables, plain: str, catalog: EncryptedCatalog, tmp_path: Path, layout: str
) -> None:
    name = f"{plain}.db.{layout}"
    properties = ", ".join(f"'{k}' = '{v}'" for k, v in VARIANTS[layout].items())
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, v VARIANT, st STRUCT<a: INT, v: VARIANT>, s STRING) "
        f"USING iceberg TBLPROPERTIES ('format-version' = '3', {properties})"
    )
    # Alike objects, which are shredded, and others among them.
    spark.sql(
        f"INSERT INTO {name} SELECT /*+ COALESCE(1) */ id, {OBJECT}, "
        "named_struct('a', int(id), 'v', parse_json(concat('[', id, ', ', id + 1, ']'))), 'q' "
        "FROM range(100)"
    )
    spark.sql(f"INSERT INTO {name} SELECT id, v, st, s FROM {MIXED}")
    expected = of_spark(spark, name)
    java = JavaTables(spark)
    rows = sorted(java.rows(java.load(name)), key=lambda row: int(row[0] or 0))
    assert "VariantObject" in str(rows[0])

    folder = spark.folder / "plain" / "db" / layout
    if layout != "avro":
        stored = [str(pq.ParquetFile(path).schema) for path in folder.glob("data/*.parquet")]
        assert any("typed_value" in schema for schema in stored) == (layout == "shredded")
    newest = max((folder / "metadata").glob("v*.metadata.json"))
    with pytest.raises(ValidationError):  # of PyIceberg's, which registers it and cannot load it
        catalog.register_table("db.t", f"file:{newest}")
    catalog.migrate_table("db.t", "keyA", delete_plaintext=True)
    table = catalog.load_table("db.t")
    assert isinstance(table, EncryptedTable)
    assert javas_rows(spark, table) == rows
    assert checked(ours(table)) == checked(expected)

    # Ours to Java, and what changes rows and files.
    table.append(table.scan("id < 3 or v is null").to_arrow())
    added = [row for row in rows if int(row[0] or 0) < 3 or row[1] is None]
    rows = sorted([*rows, *added], key=lambda row: int(row[0] or 0))
    assert javas_rows(spark, table) == rows
    table.delete("id = 1 or id = 101")
    rows = [row for row in rows if row[0] not in ("1", "101")]
    table.rewrite_data_files()
    assert javas_rows(spark, table) == rows
    table.rotate_keys()
    assert table.rekey().files >= 1
    table.rewrap_keys("keyB")
    table.expire_snapshots(datetime.now(timezone.utc), retain_last=1)
    assert table.prune_keys()
    table = catalog.rename_table("db.t", "db.renamed")
    assert isinstance(table, EncryptedTable)
    assert javas_rows(spark, table) == rows
    assert verify_table(table).ok
    kept = [row for row in expected if row["id"] not in (1, 101)]
    doubled = [row for row in kept if row["id"] in (0, 2) or row["v"] is None]
    assert checked(ours(table)) == checked(sorted([*kept, *doubled], key=lambda row: row["id"]))


def point(x: float, y: float) -> bytes:
    return struct.pack("<BIdd", 1, 1, x, y)


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_java_reads_our_geometries(
    spark: SparkTables, catalog: EncryptedCatalog, file_format: str
) -> None:
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "g", GeometryType()),
        NestedField(3, "m", GeometryType("EPSG:3857")),
        NestedField(4, "e", GeographyType()),
        NestedField(5, "l", ListType(6, GeometryType("srid:5070"), False)),
    )
    table = catalog.create_table(
        "db.geo",
        schema,
        properties={"encryption.key-id": "keyA", "write.format.default": file_format},
    )
    assert isinstance(table, EncryptedTable)
    rows = [
        {"id": 1, "g": point(1, 2), "m": point(3, 4), "e": point(5, 6), "l": [point(7, 8), None]},
        {"id": 2, "g": None, "m": None, "e": None, "l": None},
    ]
    wkb = {"g": pa.binary(), "m": pa.binary(), "e": pa.binary(), "l": pa.list_(pa.binary())}
    table.append(pa.Table.from_pylist(rows, pa.schema({"id": pa.int64(), **wkb})))
    assert table.scan().to_arrow().to_pylist() == rows
    first, second = javas_rows(spark, table)
    assert first[1:4] == [rows[0][name].hex() for name in "gme"]
    assert second[1:] == [None] * 4
    java = JavaTables(spark)
    loaded = java.open(path_of(table.metadata_location))
    types = [loaded.schema().findType(name).toString() for name in ("g", "m", "e", "l.element")]
    assert types == [
        "geometry(OGC:CRS84)",
        "geometry(EPSG:3857)",
        "geography(OGC:CRS84, spherical)",
        "geometry(srid:5070)",
    ]
    table.update_schema().add_column("more", GeometryType("EPSG:3857")).commit()
    loaded = java.open(path_of(table.metadata_location))
    assert loaded.schema().findType("more").toString() == "geometry(EPSG:3857)"
    assert loaded.schema().findType("m").toString() == "geometry(EPSG:3857)"
