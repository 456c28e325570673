"""AWS KMS both ways: what Java's client wrapped ours unwraps, and the other way round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ags1
from ags1 import KmsAccessDeniedError, KmsUnwrapError
from ags1.keys.manager import EncryptionManager
from ags1.kms import KmsClient, from_properties

from . import jars
from .java import Java, JavaError
from .spark import SparkTables
from .table_keys import JavaKeys
from .tables import (
    check_goes_on,
    create,
    manager_of,
    open_all,
    with_keys,
    with_list_of_ours,
    write_metadata,
)

pytestmark = pytest.mark.interop

NAMES = ["id", "alias", "arn", "alias-arn"]


@dataclass(frozen=True, slots=True)
class Aws:
    """A KMS on this machine: the properties of a client, Java's or ours, and its master keys."""

    properties: Mapping[str, str]
    names: Mapping[str, str]
    other: str
    rsa: str

    def client(self, **more: str) -> KmsClient:
        """Return ours. Java finds the same credentials in its JVM's properties."""
        dummies = {
            "client.access-key-id": "testing",
            "client.secret-access-key": "testing",
        }
        return from_properties({**self.properties, **dummies, **more})


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    try:
        import boto3
        import moto.server  # noqa: F401 - what aws_server needs
    except ImportError as error:
        jars.unavailable(f"{error.name} is not installed")
    from aws_server import REGION, aws_server

    with aws_server() as endpoint:
        plain: Any = boto3.client(
            "kms",
            region_name=REGION,
            endpoint_url=endpoint,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        key = plain.create_key()["KeyMetadata"]
        plain.create_alias(AliasName="alias/ags1", TargetKeyId=key["KeyId"])
        [alias] = plain.list_aliases(KeyId=key["KeyId"])["Aliases"]
        rsa = plain.create_key(KeyUsage="ENCRYPT_DECRYPT", KeySpec="RSA_2048")["KeyMetadata"]
        yield Aws(
            {
                "encryption.kms-type": "aws",
                "kms.endpoint": endpoint,
                "client.region": REGION,
            },
            {
                "id": key["KeyId"],
                "alias": "alias/ags1",
                "arn": key["Arn"],
                "alias-arn": alias["AliasArn"],
            },
            plain.create_key()["KeyMetadata"]["Arn"],
            rsa["Arn"],
        )


@pytest.fixture(scope="module")
def catalog(spark: SparkTables, aws: Aws) -> str:
    return spark.catalog("aws", kms=aws.properties)


@pytest.mark.parametrize("key_size", [16, 24, 32])
@pytest.mark.parametrize("name", NAMES)
def test_keks_both_ways(java: Java, aws: Aws, name: str, key_size: int) -> None:
    master = aws.names[name]
    ours = EncryptionManager(aws.client(), master, (), key_size)
    km = ags1.encrypt(b"a manifest list", key_size=key_size)[1]
    key_id = ours.add_manifest_list_key(km)
    theirs = JavaKeys(java, aws.properties, master, key_size)
    assert theirs.open(ours.encryption_keys, [key_id]) == {key_id: km}

    added = theirs.add((), km)
    found = EncryptionManager(aws.client(), master, added.keys, key_size)
    assert found.manifest_list_key(added.key_id) == km
    # And each goes on under the other's KEK.
    key_id = found.add_manifest_list_key(km)
    assert len(found.key_encryption_keys) == 1
    assert theirs.open(found.encryption_keys, [key_id]) == {key_id: km}


def test_an_asymmetric_master_key_both_ways(java: Java, aws: Aws) -> None:
    algorithm = {"kms.encryption-algorithm-spec": "RSAES_OAEP_SHA_256"}
    km = ags1.encrypt(b"a manifest list")[1]
    ours = EncryptionManager(aws.client(**algorithm), aws.rsa)
    key_id = ours.add_manifest_list_key(km)
    theirs = JavaKeys(java, {**aws.properties, **algorithm}, aws.rsa)
    assert theirs.open(ours.encryption_keys, [key_id]) == {key_id: km}
    added = theirs.add((), km)
    found = EncryptionManager(aws.client(**algorithm), aws.rsa, added.keys)
    assert found.manifest_list_key(added.key_id) == km


def test_both_refuse_another_master_key(java: Java, aws: Aws) -> None:
    km = ags1.encrypt(b"a manifest list")[1]
    ours = EncryptionManager(aws.client(), aws.names["arn"])
    key_id = ours.add_manifest_list_key(km)
    # moto refuses access where AWS says that the key is incorrect.
    with pytest.raises(JavaError, match="KmsException"):
        JavaKeys(java, aws.properties, aws.other).open(ours.encryption_keys, [key_id])
    with pytest.raises((KmsUnwrapError, KmsAccessDeniedError)):
        EncryptionManager(aws.client(), aws.other, ours.encryption_keys).manifest_list_key(key_id)


@pytest.mark.parametrize("name", ["id", "alias", "arn"])
def test_spark_and_we_take_turns(
    spark: SparkTables, catalog: str, aws: Aws, name: str, tmp_path: Path
) -> None:
    master, kms = aws.names[name], aws.client()
    table = f"{catalog}.db.aws_{name}"
    create(spark, table, tmp_path / "table", **{"encryption.key-id": master})
    metadata, file = spark.metadata(table), spark.metadata_file(table)
    manager = manager_of(metadata, kms, master)
    assert len(open_all(metadata, manager)) == 2

    changed = with_list_of_ours(metadata, manager)
    rotated = manager_of(changed, kms, master).rotate()
    spark.commit(table, write_metadata(with_keys(changed, rotated), file))
    check_goes_on(spark, table, kms, master)


def test_a_table_moves_to_aws(
    spark: SparkTables, catalog: str, kms: KmsClient, aws: Aws, tmp_path: Path
) -> None:
    create(spark, "enc.db.to_aws", tmp_path / "table")
    metadata, file = spark.metadata("enc.db.to_aws"), spark.metadata_file("enc.db.to_aws")
    moved = manager_of(metadata, kms).rewrap(aws.client(), aws.names["arn"])
    spark.commit(
        "enc.db.to_aws",
        write_metadata(with_keys(metadata, moved), file),
        **{"encryption.key-id": aws.names["arn"]},
    )
    check_goes_on(spark, f"{catalog}.db.to_aws", aws.client(), aws.names["arn"])
