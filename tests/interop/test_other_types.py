"""Columns whose types PyIceberg does not know, or knows under other names: what Java makes of the
tables afterwards.

Spark makes tables with variants only where no catalog keeps keys, so they are made in the clear and
migrated. Java's own reader compares: it prints a variant with all that is in it.
"""

from __future__ import annotations

import struct
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.types import GeographyType, GeometryType, ListType, LongType, NestedField

from ags1 import UnsupportedTypeError
from ags1.iceberg import EncryptedCatalog, EncryptedTable, verify_table
from ags1.kms import KmsClient

from .java_tables import JavaTables
from .spark import SparkTables, path_of
from .writing import Shared

pytestmark = pytest.mark.interop

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


@pytest.mark.parametrize("layout", VARIANTS)
def test_variants_stay_what_they_are(
    spark: SparkTables, plain: str, catalog: EncryptedCatalog, tmp_path: Path, layout: str
) -> None:
    name = f"{plain}.db.{layout}"
    properties = ", ".join(f"'{k}' = '{v}'" for k, v in VARIANTS[layout].items())
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, v VARIANT, st STRUCT<a: INT, v: VARIANT>, s STRING) "
        f"USING iceberg TBLPROPERTIES ('format-version' = '3', {properties})"
    )
    spark.sql(
        f"INSERT INTO {name} VALUES "
        """(1, parse_json('{"a": 1, "b": [1, 2.5, "x", null]}'),"""
        """ named_struct('a', 7, 'v', parse_json('{"a": 3}')), 'q'), """
        "(2, NULL, NULL, 'r'), (3, parse_json('17'), named_struct('a', NULL, 'v', NULL), 's')"
    )
    java = JavaTables(spark)
    rows = sorted(java.rows(java.load(name)), key=lambda row: int(row[0] or 0))
    assert "VariantArray" in str(rows[0])

    folder = spark.folder / "plain" / "db" / layout / "metadata"
    with pytest.raises(ValidationError):  # of PyIceberg's, which registers it and cannot load it
        catalog.register_table("db.t", f"file:{max(folder.glob('v*.metadata.json'))}")
    catalog.migrate_table("db.t", "keyA", delete_plaintext=True)
    table = catalog.load_table("db.t")
    assert isinstance(table, EncryptedTable)
    assert javas_rows(spark, table) == rows

    # What reads and writes the other columns.
    with pytest.raises(UnsupportedTypeError, match=r"'v' has type variant.*\('id', 's'\)"):
        table.scan().to_arrow()
    selected = table.scan("st.a = 7 or id > 1", selected_fields=("id", "st.a", "s")).to_arrow()
    assert sorted(selected.to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "st": {"a": 7}, "s": "q"},
        {"id": 2, "st": None, "s": "r"},
        {"id": 3, "st": {"a": None}, "s": "s"},
    ]
    with pytest.raises(UnsupportedTypeError, match=r"'v'.*leave the column out"):
        table.append(pa.table({"id": [4], "v": ["x"]}))
    with pytest.raises(UnsupportedTypeError, match=r"'st\.v'.*leave the column out"):
        table.append(pa.table({"id": [4], "st": [{"a": 1, "v": "x"}]}))
    ours = pa.array([{"a": 5}], pa.struct([("a", pa.int32())]))
    table.append(pa.table({"id": [4], "st": ours, "s": ["ours"]}))
    rows.append(["4", None, "Record(5, null)", "ours"])
    assert javas_rows(spark, table) == rows

    # What does not look into files.
    table.rotate_keys()
    assert table.rekey().files == 3
    table.rewrap_keys("keyB")
    table.expire_snapshots(datetime.now(timezone.utc), retain_last=1)
    assert len(table.prune_keys()) == 2
    assert javas_rows(spark, table) == rows
    table = catalog.rename_table("db.t", "db.renamed")
    catalog.relocate_table("db.renamed", f"file:{tmp_path}/there", register_as="db.copy")
    table = catalog.load_table("db.copy")
    assert isinstance(table, EncryptedTable)
    assert javas_rows(spark, table) == rows
    assert verify_table(table).ok
    table.delete("id = 3")
    assert table.scan("id != 2").count() == 2


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
