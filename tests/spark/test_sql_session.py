"""What ``session``, ``configure`` and ``ags1 spark conf`` set in Spark. Tests in ``tests/interop``
run it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.utils.config import Config

from ags1 import spark as package
from ags1.cli.app import app
from ags1.errors import KmsConfigurationError
from ags1.iceberg.pyiceberg import catalogs
from ags1.spark import plugin, sql_session
from ags1.spark.sql_catalog import sql_catalog

PAGES = Path(__file__).parents[2] / "docs"
LOCAL = {"encryption.kms-type": "local"}
SQLITE = {"type": "sql", "uri": "sqlite:////srv/lake/catalog.db", **LOCAL}
REST = {"type": "rest", "uri": "https://lake.example", **LOCAL}
ICEBERG = "org.apache.iceberg"
EXTENSIONS = f"{ICEBERG}.spark.extensions.IcebergSparkSessionExtensions"


@pytest.fixture(autouse=True)
def jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The jar of an installation that has one."""
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "ags1-iceberg-0.2.0.jar").touch()
    monkeypatch.setattr(plugin, "_FOLDER", folder)
    return str(folder / "ags1-iceberg-0.2.0.jar")


def test_the_jar(jar: str) -> None:
    assert package.jar() == jar
    os.unlink(jar)
    with pytest.raises(FileNotFoundError, match="make jvm"):
        package.jar()
    with pytest.raises(FileNotFoundError, match="make jvm"):
        sql_session.conf("lake", SQLITE, spark_version="4.1")


def test_the_page_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (yaml,) = re.findall(r"```yaml\n# ~/.pyiceberg.yaml\n(.*?)```", _page("tables.md"), re.S)
    (tmp_path / ".pyiceberg.yaml").write_text(yaml)
    (shown,) = re.findall(r"```text\n(spark\.jars .*?)```", _page("spark-sql.md"), re.S)

    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_CONF_DIR", "/nowhere")
    # PyIceberg reads its file once.
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())
    with pytest.raises(SystemExit) as ended:
        app(["spark", "conf", "lake", "--spark-version", "4.1"])
    out, err = capsys.readouterr()
    assert (ended.value.code, err) == (0, "")
    printed = re.sub(r"(?<= )/.*?(?=ags1-iceberg-)", "/path/to/", out)
    assert _lines(printed) == _lines(shown)


def _page(name: str) -> str:
    return (PAGES / name).read_text()


def _lines(text: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in text.splitlines())


@pytest.mark.parametrize(
    ("given", "java_s", "packages"),
    [
        (
            {"type": "SQL", "uri": "sqlite:///here.db"},
            {"uri": "jdbc:sqlite:{cwd}/here.db"},
            "sqlite",
        ),
        (
            {"uri": "postgresql+psycopg2://me@db.example:5433/lake?sslmode=verify-full"},
            {
                "uri": "jdbc:postgresql://db.example:5433/lake?sslmode=verify-full",
                "jdbc.user": "me",
                "catalog-impl": "ags1.iceberg.EncryptedJdbcCatalog",
            },
            "postgresql",
        ),
        (
            {"uri": "https://lake.example", "warehouse": "s3://lake/", "s3.region": "eu-west-1"},
            {
                "catalog-impl": "ags1.iceberg.EncryptedRestCatalog",
                "uri": "https://lake.example",
                "io-impl": f"{ICEBERG}.aws.s3.S3FileIO",
                "client.region": "eu-west-1",
            },
            "aws",
        ),
        (
            {"uri": "thrift://metastore:9083", "warehouse": "gs://lake/"},
            {
                "catalog-impl": "ags1.iceberg.EncryptedHiveCatalog",
                "io-impl": f"{ICEBERG}.gcp.gcs.GCSFileIO",
            },
            "gcp",
        ),
        (
            {"type": "glue", "warehouse": "s3a://lake/", "glue.region": "eu-west-1"},
            {
                "catalog-impl": "ags1.iceberg.EncryptedGlueCatalog",
                "io-impl": f"{ICEBERG}.aws.s3.S3FileIO",
                "client.region": "eu-west-1",
            },
            "aws",
        ),
        (
            {"type": "dynamodb", "warehouse": "file:///lake", "table-name": "tables"},
            {
                "catalog-impl": "ags1.iceberg.EncryptedDynamoDbCatalog",
                "io-impl": f"{ICEBERG}.hadoop.HadoopFileIO",
                "dynamodb.table-name": "tables",
            },
            "aws",
        ),
        (
            {"type": "rest", "uri": "https://lake", "s3.endpoint": "http://minio:9000"},
            {"s3.endpoint": "http://minio:9000", "s3.path-style-access": "true"},
            "",
        ),
        (
            {"type": "rest", "uri": "https://lake", "encryption.kms-type": "AWS"},
            {"encryption.kms-type": "aws"},
            "aws",
        ),
        (
            {
                "type": "rest",
                "uri": "https://lake",
                "warehouse": "abfss://lake@account.dfs.core.windows.net/",
                "encryption.kms-type": "",
                "encryption.kms-impl": f"{ICEBERG}.azure.keymanagement.AzureKeyManagementClient",
            },
            {"io-impl": f"{ICEBERG}.azure.adlsv2.ADLSFileIO"},
            "azure",
        ),
        (
            {"type": "rest", "uri": "https://lake", "kms.local.keyring": "keys.json"},
            {"kms.local.keyring": "{cwd}/keys.json"},
            "",
        ),
        (
            {"type": "rest", "uri": "https://lake", "kms.local.keyring": "~/keys.json"},
            {"kms.local.keyring": "~/keys.json"},
            "",
        ),
    ],
    ids=lambda value: value.get("uri", value.get("type")) if isinstance(value, dict) else None,
)
def test_a_catalog_in_java_s_words(
    given: dict[str, str], java_s: dict[str, str], packages: str
) -> None:
    found = sql_catalog("lake", LOCAL | given)
    for name, value in java_s.items():
        assert found.properties[name] == value.format(cwd=os.getcwd()), name
    assert found.packages == ["runtime", *packages.split()]
    assert not {"type", "py-catalog-impl", "table-name", "s3.region"} & found.properties.keys()


def test_the_properties_of_a_kms_keep_their_names() -> None:
    given = {
        "encryption.kms-type": "vault",
        "kms.vault.url": "https://vault:8200",
        "kms.vault.token-file": "/run/token",
        "kms.vault.auth": "approle",
        "kms.max-attempts": "2",
        "encryption.trusted-key-ids": "default,other",
        "encryption.require-encrypted": "true",
    }
    assert given.items() <= sql_catalog("lake", REST | given).properties.items()


def test_a_catalog_without_a_kms_has_that_of_ags1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGS1_KMS_TYPE", "vault")
    monkeypatch.setenv("AGS1_KMS_KMS__VAULT__URL", "https://vault:8200")
    given = {"type": "rest", "uri": "https://lake"}
    found = sql_catalog("lake", given).properties
    assert found["kms.vault.url"] == "https://vault:8200"
    monkeypatch.setenv("AGS1_KMS_KMS__VAULT__TOKEN", "hvs.secret")
    with pytest.raises(KmsConfigurationError, match="VAULT_TOKEN"):
        sql_catalog("lake", given)


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("kms.local.passphrase", "s3cr3t", "kms.local.passphrase-file"),
        ("kms.vault.token", "s3cr3t", "VAULT_TOKEN"),
        ("kms.vault.secret-id", "s3cr3t", "kms.vault.secret-id-file"),
        ("encryption.kms.key.a", "s3cr3t", "keyring"),
        ("s3.secret-access-key", "s3cr3t", "AWS_SECRET_ACCESS_KEY"),
        ("glue.session-token", "s3cr3t", "AWS_SECRET_ACCESS_KEY"),
        ("client.secret-access-key", "s3cr3t", "AWS_SECRET_ACCESS_KEY"),
        ("gcs.oauth2.token", "s3cr3t", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("adls.account-key", "s3cr3t", "AZURE_CLIENT_ID"),
        ("token", "s3cr3t", "PYICEBERG_CATALOG__LAKE_1__TOKEN"),
        ("credential", "id:s3cr3t", "PYICEBERG_CATALOG__LAKE_1__CREDENTIAL"),
        ("uri", "https://me:s3cr3t@lake.example", "its identity"),
        ("uri", "postgresql://me:s3cr3t@db.example/lake", ".pgpass"),
        ("any.password", "s3cr3t", "its identity"),
    ],
)
def test_a_secret_is_refused(name: str, value: str, instead: str) -> None:
    kind = "sql" if value.startswith("postgresql") else "rest"
    with pytest.raises(KmsConfigurationError, match=re.escape(repr(name))) as caught:
        sql_session.conf("lake-1", REST | {"type": kind, name: value}, spark_version="4.1")
    assert instead in str(caught.value)
    assert "s3cr3t" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_java_reads_a_token_from_the_variable_that_python_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE_1__TOKEN", "s3cr3t")
    # PyIceberg reads the environment once, when it is imported.
    found = sql_catalog("lake-1", REST | {"token": "s3cr3t"})
    assert found.properties["token"] == "env:PYICEBERG_CATALOG__LAKE_1__TOKEN"
    with pytest.raises(KmsConfigurationError):
        sql_catalog("lake-1", REST | {"token": "another"})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"type": "sql", "uri": "sqlite:///:memory:"}, "name a file"),
        ({"type": "sql", "uri": "mysql://db/lake"}, "alone"),
        ({"type": "sql", "uri": "postgresql://me@/lake?host=/run/postgresql"}, "Unix sockets"),
        ({"type": "in-memory"}, "not 'in-memory'"),
        ({"type": "rest", "uri": "https://l", "py-catalog-impl": "my.Catalog"}, "class of Python"),
        ({"type": "rest", "uri": "https://l", "encryption.kms-impl": "my.kms:Kms"}, "of Python"),
        ({"type": "rest", "uri": "https://l", "py-kms-impl": "my.kms.Kms"}, "class of Python"),
        ({"type": "rest", "uri": "https://l", "encryption.kms-type": "mine"}, "only Python has"),
        ({"type": "rest", "uri": "https://l", "encryption.kms-type": "file"}, "only Python has"),
        ({"type": "rest", "uri": "https://l", "encryption.require-encrypted": True}, "not text"),
    ],
)
def test_what_java_cannot_do_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        sql_catalog("lake", given if "impl" in str(given) else LOCAL | given)


def test_catalogs_and_sparks_that_are_not_known() -> None:
    with pytest.raises(ValueError, match="has no catalog 'nowhere'"):
        sql_catalog("nowhere")
    with pytest.raises(ValueError, match="a name of letters"):
        sql_catalog("a.b", SQLITE)
    with pytest.raises(ValueError, match=r"no runtime for Spark 4.3.0: .*pyspark==4\.1\.\*"):
        sql_session.conf("lake", SQLITE, spark_version="4.3.0")
    assert sql_session.conf("lake", SQLITE, spark_version="4.0.1")["spark.jars.packages"] == (
        f"{ICEBERG}:iceberg-spark-runtime-4.0_2.13:1.11.0,org.xerial:sqlite-jdbc:3.50.3.0"
    )


def test_what_is_configured_stays(jar: str) -> None:
    given = {
        "spark.jars": "/my.jar",
        "spark.jars.packages": "org.example:mine:1",
        "spark.sql.extensions": "org.example.Mine",
    }
    made = sql_session.conf("lake", SQLITE, spark_version="4.1", given=given)
    runtime = f"{ICEBERG}:iceberg-spark-runtime-4.1_2.13:1.12.0"
    assert made["spark.jars"] == f"/my.jar,{jar}"
    packages = f"org.example:mine:1,{runtime},org.xerial:sqlite-jdbc:3.50.3.0"
    assert made["spark.jars.packages"] == packages
    assert made["spark.sql.extensions"] == f"org.example.Mine,{EXTENSIONS}"
    assert made["spark.comet.scan.icebergNative.enabled"] == "false"
    # Spark's shuffle and spill files hold rows.
    assert made["spark.io.encryption.enabled"] == "true"
    assert made["spark.io.encryption.keySizeBits"] == "256"
    wanted = {
        "spark.comet.scan.icebergNative.enabled": "true",
        "spark.io.encryption.enabled": "false",
        "spark.io.encryption.keySizeBits": "128",
    }
    assert (
        wanted.items()
        <= sql_session.conf("lake", SQLITE, spark_version="4.1", given=given | wanted).items()
    )
    again = sql_session.conf("lake", SQLITE, spark_version="4.1", given=made)
    assert made == again | {"spark.jars.packages": packages}
    # A runtime that is there as a file, of another version, is not fetched again.
    there = {"spark.driver.extraClassPath": "/jars/iceberg-spark-runtime-4.1_2.13-1.12.1.jar"}
    more = sql_session.conf("lake", SQLITE, spark_version="4.1", given=there)
    assert more["spark.jars.packages"] == "org.xerial:sqlite-jdbc:3.50.3.0"


@pytest.mark.spark
class TestBuilders:
    @pytest.fixture(autouse=True)
    def defaults(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        pytest.importorskip("pyspark")
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
        (tmp_path / "spark-defaults.conf").write_text(
            "# mine\n\nspark.jars  /a.jar\nspark.sql.extensions=org.example.Mine\n"
        )

    def configured(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> dict[str, str]:
        from pyspark.sql import SparkSession

        monkeypatch.setattr(plugin, "_ICEBERG", {".".join(_pyspark().split(".")[:2]): "1"})
        builder = SparkSession.builder
        for name, value in options.items():
            builder = builder.config(name, value)
        assert package.configure(builder, "lake", SQLITE) is builder
        return dict(builder._options)

    def test_the_defaults_and_the_builder_s_own_settings_stay(
        self, monkeypatch: pytest.MonkeyPatch, jar: str
    ) -> None:
        made = self.configured(monkeypatch)
        assert made["spark.jars"] == f"/a.jar,{jar}"
        assert made["spark.sql.extensions"] == f"org.example.Mine,{EXTENSIONS}"
        assert made["spark.sql.catalog.lake.uri"] == "jdbc:sqlite:/srv/lake/catalog.db"
        own = self.configured(monkeypatch, **{"spark.jars": "/b.jar"})
        assert own["spark.jars"] == f"/b.jar,{jar}"

    def test_a_server_of_connect_gets_the_catalog_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = self.configured(monkeypatch, **{"spark.remote": "sc://server:15002"})
        del made["spark.remote"]
        assert all(name.startswith("spark.sql.catalog.lake") for name in made)
        assert made["spark.sql.catalog.lake"] == f"{ICEBERG}.spark.SparkCatalog"


def _pyspark() -> str:
    import pyspark

    return str(pyspark.__version__)


def test_a_spark_that_runs_without_the_jars_is_told(spark: Any) -> None:
    if not _pyspark().startswith(tuple(plugin._ICEBERG)):
        pytest.skip("Iceberg has no runtime for this Spark")
    with pytest.raises(RuntimeError, match="takes no jars after its start") as caught:
        package.session("lake", SQLITE)
    said = str(caught.value)
    assert "iceberg-spark-runtime" in said or EXTENSIONS in said
    assert "\n" not in said
    for name in ("", ".catalog-impl", ".uri", ".encryption.kms-type"):
        spark.conf.unset(f"spark.sql.catalog.lake{name}")
