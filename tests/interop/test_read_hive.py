"""Through PyIceberg's HiveCatalog against Hive's own metastore: what it knows is checked first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.table import Table

from ags1 import MetadataIntegrityError, NotEncryptedError
from ags1.iceberg import EncryptedCatalog, EncryptedTable, load_catalog

from . import jars
from .metastore import served_metastore
from .reading import check_same
from .spark import SparkTables
from .tables import write_metadata

pytestmark = pytest.mark.interop

KMS = {
    "encryption.kms-type": "memory",
    "encryption.kms.key.keyA": b"0123456789012345".hex(),
    "encryption.kms.key.keyB": b"1123456789012345".hex(),
}


@pytest.fixture(scope="module")
def catalog(spark: SparkTables) -> Iterator[EncryptedCatalog]:
    try:
        import hive_metastore  # noqa: F401 - what PyIceberg's HiveCatalog needs
        import thrift  # noqa: F401
    except ImportError as error:
        jars.unavailable(f"{error.name} is not installed")
    with served_metastore(spark) as uri:
        with pytest.warns(UserWarning, match="master keys"):
            made = load_catalog("hive", type="hive", uri=uri, **KMS)
        yield made
        made.close()


@pytest.fixture
def name(spark: SparkTables, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    made = f"enc.db.hive_{request.node.name}"
    spark.create(made, "id BIGINT, v STRING", tmp_path)
    spark.sql(f"INSERT INTO {made} VALUES (1, 'a'), (2, null)")
    yield made
    spark.sql(f"DROP TABLE IF EXISTS {made}")


def load(catalog: EncryptedCatalog, name: str) -> EncryptedTable:
    table = catalog.load_table(name.removeprefix("enc."))
    assert isinstance(table, EncryptedTable)
    return table


def test_tables_are_read(spark: SparkTables, catalog: EncryptedCatalog, name: str) -> None:
    table = load(catalog, name)
    assert spark.parameters(name)["metadata_hash"]
    assert check_same(spark, name, table.scan()) == 2
    assert catalog.table_exists(name.removeprefix("enc."))
    assert tuple(name.split(".")[1:]) in catalog.list_tables("db")
    spark.sql(f"INSERT INTO {name} VALUES (3, 'ü \\u001f')")
    assert table.scan().count() == 2
    assert check_same(spark, name, table.refresh().scan()) == 3
    assert not any(key in repr(vars(catalog)) for key in KMS.values() if len(key) == 32)


def test_every_table_of_the_metastore_has_its_hash(
    spark: SparkTables, catalog: EncryptedCatalog, name: str
) -> None:
    """All that the tests have Spark make: long names, comments, properties, many snapshots."""
    spark.sql(
        f"ALTER TABLE {name} SET TBLPROPERTIES ('comment' = 'ü \\u0007 \\\\ </script> \\u2028')"
    )
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN v COMMENT '𝄞 \"quoted\"'")
    spark.sql(f"ALTER TABLE {name} CREATE TAG `a tag`")
    spark.sql(f"CALL enc.system.compute_table_stats('{name.removeprefix('enc.')}')")
    loaded = 0
    for row in spark.sql("SHOW TABLES IN enc.db"):
        parameters = spark.parameters(f"enc.db.{row['tableName']}")
        if parameters.get("encryption.key-id") == "keyA" and "metadata_hash" in parameters:
            assert load(catalog, f"enc.db.{row['tableName']}").metadata.format_version == 3
            loaded += 1
    assert loaded > 0


def test_a_metadata_file_changed_in_its_place(
    spark: SparkTables, catalog: EncryptedCatalog, name: str
) -> None:
    table, file = load(catalog, name), spark.metadata_file(name)
    file.write_text(file.read_text().replace('"owner"', '"0wner"'))
    with pytest.raises(MetadataIntegrityError, match="metadata_hash"):
        load(catalog, name)
    with pytest.raises(MetadataIntegrityError, match="metadata_hash"):
        table.refresh()


def test_an_older_metadata_file_put_in_its_place(
    spark: SparkTables, catalog: EncryptedCatalog, name: str
) -> None:
    old = spark.metadata_file(name).read_bytes()
    spark.sql(f"DELETE FROM {name} WHERE id = 1")
    spark.metadata_file(name).write_bytes(old)
    with pytest.raises(MetadataIntegrityError, match="metadata_hash"):
        load(catalog, name)


def test_another_key_in_the_metastore(
    spark: SparkTables, catalog: EncryptedCatalog, name: str
) -> None:
    table = load(catalog, name)
    again = write_metadata(spark.metadata(name), spark.metadata_file(name))
    spark.commit(name, again, **{"encryption.key-id": "keyB"})
    for attempt in (lambda: load(catalog, name), table.refresh):
        with pytest.raises(MetadataIntegrityError, match="key"):
            attempt()


def test_encryption_taken_out_of_the_metadata(
    spark: SparkTables, catalog: EncryptedCatalog, name: str
) -> None:
    """Even with the right hash: the metastore still knows that the table is encrypted."""
    metadata = spark.metadata(name)
    del metadata["encryption-keys"]
    properties = metadata["properties"]
    metadata["properties"] = {k: v for k, v in properties.items() if "encryption" not in k}
    metadata["snapshots"] = [
        {k: v for k, v in snapshot.items() if k != "key-id"} for snapshot in metadata["snapshots"]
    ]
    assert not any(k in json.dumps(metadata) for k in ("encryption-keys", "encryption.", 'key-id"'))
    spark.commit(name, write_metadata(metadata, spark.metadata_file(name)))
    with pytest.raises(NotEncryptedError):
        load(catalog, name)


def test_plain_tables_are_pyicebergs(
    spark: SparkTables, catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    spark.sql(
        f"CREATE TABLE enc.db.hive_plain (id BIGINT) USING iceberg LOCATION 'file:{tmp_path}'"
    )
    spark.sql("INSERT INTO enc.db.hive_plain VALUES (1)")
    table = catalog.load_table("db.hive_plain")
    assert type(table) is Table
    assert table.scan().to_arrow()["id"].to_pylist() == [1]
    with pytest.raises(NotEncryptedError):
        catalog.load_table("db.hive_plain", require_encrypted=True)
    with pytest.raises(NotEncryptedError):
        catalog.load_table("db.hive_plain", expected_key_id="keyA")
