"""Tables under AWS KMS, tables with files in the clear, and what is refused of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ags1 import KmsKeyNotFoundError, KmsUnwrapError, MetadataIntegrityError, NotEncryptedError
from ags1.iceberg import EncryptedTable, open_table
from ags1.kms import KmsClient

from . import jars
from .reading import check_filters, check_same, opened
from .spark import SparkTables

pytestmark = pytest.mark.interop


@dataclass(frozen=True, slots=True)
class Aws:
    """A KMS on this machine: the properties of a client, and names of one master key."""

    properties: Mapping[str, str]
    names: Mapping[str, str]


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    try:
        import boto3
        import moto.server  # noqa: F401 - what aws_server needs
    except ImportError as error:
        jars.unavailable(f"{error.name} is not installed")
    from aws_server import REGION, aws_server

    with aws_server() as endpoint:
        credentials = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        plain: Any = boto3.client("kms", region_name=REGION, endpoint_url=endpoint, **credentials)
        key = plain.create_key()["KeyMetadata"]
        plain.create_alias(AliasName="alias/ags1-read", TargetKeyId=key["KeyId"])
        yield Aws(
            {
                "encryption.kms-type": "aws",
                "kms.endpoint": endpoint,
                "client.region": REGION,
            },
            {"id": key["KeyId"], "alias": "alias/ags1-read", "arn": key["Arn"]},
        )


@pytest.fixture(scope="module")
def catalog(spark: SparkTables, aws: Aws) -> str:
    return spark.catalog("aws_read", kms=aws.properties)


@pytest.mark.parametrize("kind", ["id", "alias", "arn"])
def test_tables_under_aws_kms(
    spark: SparkTables,
    catalog: str,
    aws: Aws,
    tmp_path: Path,
    kind: str,
) -> None:
    name, master = f"{catalog}.db.aws_read_{kind.replace('-', '_')}", aws.names[kind]
    spark.create(name, "id BIGINT, v STRING", tmp_path, **{"encryption.key-id": master})
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, null)")
    properties = {
        **aws.properties,
        "client.access-key-id": "testing",
        "client.secret-access-key": "testing",
    }
    table = open_table(str(spark.metadata_file(name)), kms=properties, expected_key_id=master)
    assert isinstance(table, EncryptedTable)
    assert check_same(spark, name, table.scan()) == 2
    assert table.key_id == master
    assert "testing" not in repr(table)
    with pytest.raises(MetadataIntegrityError):
        open_table(str(spark.metadata_file(name)), kms=properties, expected_key_id="another")


def test_another_kms_opens_nothing(
    spark: SparkTables,
    catalog: str,
    aws: Aws,
    kms: KmsClient,
    tmp_path: Path,
) -> None:
    name = f"{catalog}.db.aws_other"
    spark.create(name, "id BIGINT", tmp_path, **{"encryption.key-id": aws.names["arn"]})
    spark.sql(f"INSERT INTO {name} VALUES (1)")
    table = open_table(str(spark.metadata_file(name)), kms=kms)
    with pytest.raises((KmsUnwrapError, KmsKeyNotFoundError)):
        table.scan().to_arrow()


def test_plain_files_that_were_added(spark: SparkTables, kms: KmsClient, tmp_path: Path) -> None:
    """``add_files`` brings Parquet in the clear, without field ids."""
    spark.session.sql("SELECT id, concat('v', id) AS v, id / 3 AS f FROM range(20)").write.parquet(
        f"file:{tmp_path}/plain"
    )
    name = "enc.db.added"
    spark.create(name, "id BIGINT, v STRING, f DOUBLE", tmp_path / "table")
    spark.sql(f"INSERT INTO {name} VALUES (100, 'ours', 0.5)")
    add_files(spark, "db.added", tmp_path / "plain")
    # Spark's executors write a manifest in the clear, which we don't read until it is rewritten.
    assert len(spark.rows(name)) == 21
    with pytest.raises(NotEncryptedError, match="no key for this manifest"):
        opened(spark, name, kms).scan().to_arrow()
    spark.sql("CALL enc.system.rewrite_manifests('db.added')")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN v TO w")
    table = opened(spark, name, kms)
    assert check_same(spark, name, table.scan()) == 21
    scan = table.scan()
    assert 1 <= scan.plain_files() == len(scan.plan_files()) - 1
    check_filters(spark, name, table, [("w = 'v7'", "w = 'v7'"), ("f > 3.3", "f > 3.3")])
    strict = opened(spark, name, kms, require_encrypted=True)
    with pytest.raises(NotEncryptedError, match="not encrypted"):
        strict.scan().to_arrow()
    assert strict.scan("id = 100").to_arrow().num_rows == 1


@pytest.fixture(scope="module")
def partitioned(spark: SparkTables, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with files whose folders say what the files lack."""
    folder, name = tmp_path_factory.mktemp("partitioned"), "enc.db.added_parts"
    spark.session.sql(
        "SELECT id, IF(id < 3, null, int(id % 2)) AS p, "
        "date_add(DATE'1969-12-30', int(id % 4)) AS dt FROM range(20)"
    ).write.partitionBy("p", "dt").parquet(f"file:{folder}/plain")
    spark.create(name, "id BIGINT, p INT, dt DATE", folder / "table")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD p")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD dt")
    spark.sql(f"INSERT INTO {name} VALUES (100, 1, DATE'1970-01-01')")
    add_files(spark, "db.added_parts", folder / "plain")
    spark.sql("CALL enc.system.rewrite_manifests('db.added_parts')")
    return name


def add_files(spark: SparkTables, table: str, folder: Path) -> None:
    source = f"`parquet`.`{folder}`"
    spark.sql(f"CALL enc.system.add_files(table => '{table}', source_table => '{source}')")


def test_filters_on_what_only_the_partition_knows(
    spark: SparkTables, partitioned: str, kms: KmsClient
) -> None:
    table = opened(spark, partitioned, kms)
    assert check_same(spark, partitioned, table.scan()) == 21
    filters = [
        ("p = 1", "p = 1"),
        ("p IS NULL", "p is null"),
        ("p = 0 AND id > 10", "p = 0 and id > 10"),
        ("p != 1", "p != 1"),
        ("p = 1 OR id = 4", "p = 1 or id = 4"),
    ]
    check_filters(spark, partitioned, table, filters)


def test_filters_on_dates_that_only_the_partition_knows(
    spark: SparkTables, partitioned: str, kms: KmsClient
) -> None:
    filters = [
        ("dt = DATE'1969-12-31'", "dt = '1969-12-31'"),
        ("dt < DATE'1970-01-01'", "dt < '1970-01-01'"),
        ("dt = DATE'1970-01-01' OR id = 4", "dt = '1970-01-01' or id = 4"),
    ]
    check_filters(spark, partitioned, opened(spark, partitioned, kms), filters)
