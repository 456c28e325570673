"""The commands that change a table, in Glue and DynamoDB catalogs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto")
pytest.importorskip("werkzeug")
pytest.importorskip("boto3")
pytest.importorskip("pyiceberg")

import pyarrow as pa
from aws_catalogs import aws_catalogs, environment, properties
from aws_server import dummy_environment
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.table import Table

from ags1.iceberg import EncryptedCatalog
from ags1.kms import KmsClient, LocalKms, from_properties

from .test_files import fail, home, succeed

__all__ = ["home"]


@pytest.fixture(params=["glue", "dynamodb"])
def kind(
    request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A catalog 'prod' of that kind in PyIceberg's configuration."""
    from pyiceberg.catalog import _ENV_CONFIG

    kind = str(request.param)
    with aws_catalogs() as aws:
        for name, value in environment(aws.url).items():
            monkeypatch.setenv(name, value)
        found = properties(kind, aws.url, f"file://{home.parent}/lake")
        monkeypatch.setattr(_ENV_CONFIG, "config", {"catalog": {"prod": found}})
        yield kind


def create(kms: KmsClient, key_id: str) -> Table:
    """Make a table with one column of integers."""
    lake = EncryptedCatalog(load_plain_catalog("prod"), kms)
    lake.create_namespace("db")
    columns = pa.schema([("id", pa.int64())])
    return lake.create_table("db.t", columns, properties={"encryption.key-id": key_id})


def table(command: str, name: str, *arguments: object, data: bytes = b"") -> dict[str, Any]:
    more = ("--catalog", "prod", *arguments, "--json")
    said: dict[str, Any] = json.loads(succeed("table", command, name, *more, data=data).stdout)
    assert said["ok"]
    return said


# Of `make test`: in Glue; the test below has a table in DynamoDB.
@pytest.mark.slow_variants("dynamodb")
def test_a_table_from_its_creation_to_its_purge(kind: str) -> None:
    made = create(LocalKms(), "default")
    for number in (1, 2):
        made.append(pa.table({"id": [number]}))
    table("delete", "db.t", "id = 1")
    table("rotate", "db.t")
    done = table("expire", "db.t", "--older-than", "0s", "--prune-keys", "--yes")
    assert (len(done["snapshot_ids"]), len(done["key_ids"])) == (2, 2)
    found = table("check", "db.t", "--full")
    assert (found["errors"], found["warnings"], found["notes"]) == (0, 0, 0)
    text = succeed("table", "scan", "db.t", "--catalog", "prod", "--format", "jsonl").stdout
    assert [json.loads(line) for line in text.splitlines()] == [{"id": 2}]
    table("drop", "db.t", "--purge", "--yes")
    assert not [path for path in Path("../lake").rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", ["dynamodb"], indirect=True)
def test_a_table_under_an_alias_that_was_pointed_at_a_new_key(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    for name, value in dummy_environment(os.environ["AWS_ENDPOINT_URL_DYNAMODB"]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AGS1_KMS_TYPE", "aws")
    client = boto3.client("kms")
    old, new = (client.create_key()["KeyMetadata"] for _ in range(2))
    client.create_alias(AliasName="alias/t", TargetKeyId=old["KeyId"])
    create(from_properties({"encryption.kms-type": "aws"}), "alias/t").append(pa.table({"id": [1]}))
    client.update_alias(AliasName="alias/t", TargetKeyId=new["KeyId"])
    scan = ("table", "scan", "db.t", "--catalog", "prod", "--key", "alias/t", "--format", "jsonl")
    fail(5, *scan)
    former = ("--kms-property", f"kms.aws.former-keys=alias/t={old['Arn']}")
    assert json.loads(succeed(*scan, *former).stdout) == {"id": 1}
    table("rotate", "db.t", "--rewrap", "--key", "alias/t", *former)
    assert json.loads(succeed(*scan).stdout) == {"id": 1}
