"""A catalog of PyIceberg's configuration, in the words of Iceberg's Java runtime with our plug-in.

The properties of a KMS, of trust and of most storages have the same names in Python and in Java.
This module translates the others, and refuses what Java cannot do as Python does, and every secret:
Spark shows its configuration to its users. Independent of sessions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import infer_catalog_type

from ..errors import KmsConfigurationError
from ..iceberg.distributed import configured_properties
from ..kms.properties import Properties
from ..kms.registry import KMS_IMPL, KMS_TYPE, PY_KMS_IMPL, built_in_type, names_kms
from ..kms.settings import FILE, KEYRING, PASSPHRASE_FILE
from . import options as opt

_CLASSES = {
    "sql": "Jdbc",
    "rest": "Rest",
    "hive": "Hive",
    "glue": "Glue",
    "dynamodb": "DynamoDb",
}
# By the beginning of a warehouse's location: the FileIO, and the package that it needs.
_STORAGES = {
    "s3": ("org.apache.iceberg.aws.s3.S3FileIO", "aws"),
    "gs": ("org.apache.iceberg.gcp.gcs.GCSFileIO", "gcp"),
    "abfs": ("org.apache.iceberg.azure.adlsv2.ADLSFileIO", "azure"),
    "": ("org.apache.iceberg.hadoop.HadoopFileIO", None),
}
_S3_SCHEMES = {"s3", "s3a", "s3n"}
_KMS_PACKAGES = ("aws", "gcp", "azure")
# What only PyIceberg knows.
_PYTHON_S = re.compile(
    r"type|py-.*|pool_pre_ping|echo|init_catalog_tables|downcast-.*|hive\.hive2-compatible"
    r"|(s3|glue|dynamodb)\.region|s3\.force-virtual-addressing|table-name"
)
_NAME = re.compile(r"[A-Za-z0-9_-]+")

_AWS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write it into ~/.aws/credentials"
# What to do with a secret, by its name.
_INSTEAD = {
    r"kms\.local\.passphrase": "name a file in 'kms.local.passphrase-file'",
    r"kms\.vault\.token": "set VAULT_TOKEN, or name a file in 'kms.vault.token-file'",
    r"kms\.vault\.secret-id": "name a file in 'kms.vault.secret-id-file'",
    r"encryption\.kms\.key\..*": "use a keyring ('encryption.kms-type' = 'local'), because the "
    "memory KMS is for tests",
    r"(s3|glue|dynamodb|client)\..*": _AWS,
    r"gcs\..*": "name a file in GOOGLE_APPLICATION_CREDENTIALS",
    r"(adls|azure)\..*": "set AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET",
}
_PGPASS = "write the password into ~/.pgpass, which Python and Java read"
_OWN = "let each process find its own credentials (a file, the environment, its identity)"
# Iceberg's REST client takes these from an environment variable if the value is "env:" and a name.
_FROM_ENVIRONMENT = ("token", "credential")


@dataclass(frozen=True, slots=True)
class SqlCatalog:
    """A catalog for Spark SQL: its ``properties`` in Java, without secrets, and the names of the
    ``packages`` that it needs (see ``plugin.packages``)."""

    properties: dict[str, str]
    packages: list[str]


def sql_catalog(name: str, given: Mapping[str, str] | None = None) -> SqlCatalog:
    """Return the catalog ``name`` of PyIceberg's configuration (file and environment) for Spark.
    The properties ``given`` override those of the configuration.

    If the catalog names no KMS, it has that of the environment and configuration of ags1. Raises
    KmsConfigurationError for a secret, which must not be in Spark's configuration, and for a KMS
    that only Python has; ValueError for a catalog that is not known or that Java cannot open.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"the catalog {name!r} needs a name of letters, digits, '_' and '-'")
    for key, value in (given or {}).items():
        if not isinstance(value, str):
            raise ValueError(f"the catalog property {key!r} is not text")
    configured = configured_properties(name, given or {})
    if not configured:
        raise ValueError(f"PyIceberg's configuration has no catalog {name!r}: add it there")
    if not names_kms(configured):
        configured = {**opt.key_settings({}).properties, **configured}
    kind = _kind_of(name, configured)
    configured = _without_secrets(name, kind, configured)
    properties = {"catalog-impl": f"ags1.iceberg.Encrypted{_CLASSES[kind]}Catalog"}
    packages = ["runtime"]
    properties |= {k: v for k, v in configured.items() if not _PYTHON_S.fullmatch(k)}
    for more, needed in (
        _database(configured) if kind == "sql" else ({}, None),
        _storage(kind, configured),
        _kms(configured),
    ):
        properties |= more
        packages += [needed] if needed else []
    if kind in ("glue", "dynamodb"):
        packages.append("aws")
    if kind == "dynamodb" and "table-name" in configured:
        properties["dynamodb.table-name"] = configured["table-name"]
    return SqlCatalog(properties, list(dict.fromkeys(packages)))


def _kind_of(name: str, configured: Mapping[str, str]) -> str:
    implementation = configured.get("py-catalog-impl")
    if implementation not in (None, "ags1.iceberg.load_catalog"):
        raise ValueError(
            f"the catalog {name!r} has 'py-catalog-impl', a class of Python: Spark needs a "
            f"catalog of 'type' {', '.join(_CLASSES)}"
        )
    kind = configured.get("type")
    if kind is None:
        inferred: Any = infer_catalog_type(name, dict(configured))
        kind = str(inferred.value)
    if kind.lower() not in _CLASSES:
        raise ValueError(f"Spark opens catalogs of 'type' {', '.join(_CLASSES)}, not {kind!r}")
    return kind.lower()


def _without_secrets(name: str, kind: str, configured: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with the names of environment variables for the secrets that Java
    reads from there. Raises KmsConfigurationError for any other secret."""
    properties = dict(configured)
    for secret in Properties(properties).secrets():
        if kind == "rest" and secret in _FROM_ENVIRONMENT and "_" not in name:
            variable = f"PYICEBERG_CATALOG__{name.replace('-', '_')}__{secret}".upper()
            if os.environ.get(variable) == properties[secret]:
                properties[secret] = f"env:{variable}"
                continue
            instead = f"set {variable}, which Python and Java read"
        elif secret == "uri":
            instead = _PGPASS if kind == "sql" else _OWN
        else:
            known = (text for form, text in _INSTEAD.items() if re.fullmatch(form, secret))
            instead = next(known, _OWN)
        raise KmsConfigurationError(
            f"the catalog property {secret!r} is a secret, and Spark shows its configuration to "
            f"its users: remove the property, and {instead}"
        )
    return properties


def _database(configured: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the properties that name the database of a SQL catalog, and its driver."""
    from sqlalchemy.engine import make_url  # comes with PyIceberg's extras for SQL catalogs

    url = make_url(configured["uri"])
    backend = url.get_backend_name()
    if backend == "sqlite":
        if not url.database or url.database == ":memory:":
            raise ValueError("Java cannot open a database in the memory of Python: name a file")
        return {"uri": f"jdbc:sqlite:{os.path.abspath(url.database)}"}, "sqlite"
    if backend != "postgresql" or not url.host:
        raise ValueError(
            "Spark opens SQL catalogs with the URI sqlite:////PATH or postgresql://HOST/DATABASE "
            "alone: other databases, and Unix sockets, are not supported"
        )
    host = f"[{url.host}]" if ":" in url.host else url.host
    place = f"{host}:{url.port}" if url.port else host
    # The names of sslmode and the like are those of libpq in Java's driver, too.
    parameters = url.render_as_string().partition("?")[2]
    properties = {"uri": f"jdbc:postgresql://{place}/{url.database or ''}"}
    if parameters:
        properties["uri"] += f"?{parameters}"
    if url.username:
        properties["jdbc.user"] = url.username
    return properties, "postgresql"


def _storage(kind: str, configured: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """Return the properties of a table's files, and the package for them. A REST server says where
    the files are, and Iceberg chooses then."""
    properties: dict[str, str] = {}
    warehouse = configured.get("warehouse", "")
    scheme = warehouse.partition("://")[0] if "://" in warehouse else ""
    scheme = "s3" if scheme in _S3_SCHEMES else "abfs" if scheme.startswith("abfs") else scheme
    implementation, package = _STORAGES.get(scheme, _STORAGES[""])
    # The default is S3's for Glue and DynamoDB, and Hadoop's for the others.
    if "io-impl" not in configured and (package or kind in ("glue", "dynamodb")):
        properties["io-impl"] = implementation
    regions = (configured.get(name) for name in ("s3.region", f"{kind}.region"))
    if region := next(filter(None, regions), None):
        properties |= {} if "client.region" in configured else {"client.region": region}
    if "s3.endpoint" in configured and "s3.path-style-access" not in configured:
        virtual = configured.get("s3.force-virtual-addressing", "false").lower()
        properties["s3.path-style-access"] = str(virtual != "true").lower()
    return properties, package


def _kms(configured: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """Return the properties of the KMS that differ from Python's, and the package for it."""
    implementation = configured.get(KMS_IMPL)
    if ":" in (implementation or "") or not (implementation or configured.get(KMS_TYPE)):
        name = KMS_IMPL if implementation else PY_KMS_IMPL
        raise KmsConfigurationError(
            f"the catalog property {name!r} is a class of Python: Java needs {KMS_TYPE!r}, or a "
            f"class of its own as {KMS_IMPL!r}"
        )
    kms_type = built_in_type(configured)
    if kms_type in (None, FILE) and not implementation:
        raise KmsConfigurationError(
            f"{KMS_TYPE} is {configured[KMS_TYPE]!r}, which only Python has: Java needs a class of "
            f"its own as {KMS_IMPL!r}"
        )
    properties = {} if implementation or kms_type is None else {KMS_TYPE: kms_type}
    for name in (KEYRING, PASSPHRASE_FILE):
        path = configured.get(name)
        if path and not path.startswith("~"):  # which each process takes for its own user's
            properties[name] = os.path.abspath(path)
    return properties, kms_type if kms_type in _KMS_PACKAGES else None
