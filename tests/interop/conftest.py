"""What the tests against Java share: a JVM with our programs, a Spark session, the tests' KMS."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ags1.kms import KmsClient, from_properties

from .java import Java
from .spark import SparkTables

if TYPE_CHECKING:
    from .lake import Lake


# Of the package, not of the session: other tests fork, and count memory and signals.
@pytest.fixture(scope="package")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """Our Java programs; started once."""
    jvm = Java(tmp_path_factory.mktemp("java") / "stderr.txt")
    yield jvm
    jvm.close()


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkTables]:
    """A Spark session; started once, with the catalog ``enc`` of the tests' KMS."""
    tables = SparkTables(tmp_path_factory.mktemp("spark"))
    tables.catalog("enc")
    yield tables
    tables.stop()


@pytest.fixture
def kms() -> KmsClient:
    """Our counterpart of Java's UnitestKMS, with its keys keyA and keyB."""
    keys = {"keyA": b"0123456789012345", "keyB": b"1123456789012345"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return from_properties(
            {"encryption.kms-type": "memory"}
            | {f"encryption.kms.key.{name}": key.hex() for name, key in keys.items()}
        )


POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.cluster)


@pytest.fixture(scope="module", params=["sql", "rest", "hive", "glue", "dynamodb", POSTGRESQL])
def lake(
    request: Any, spark: SparkTables, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lake]:
    """A catalog that Python and the plug-in share, with a keyring."""
    from .lake import lake_in  # only these tests need moto

    with lake_in(tmp_path_factory.mktemp(f"lake-{request.param}"), request.param, spark) as made:
        yield made
