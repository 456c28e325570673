"""A catalog with a keyring that we and Iceberg's Spark runtime share, through our plug-in."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aws_catalogs import aws_catalogs, environment, properties
from go_server import free_port

from ags1.iceberg import EncryptedCatalog, EncryptedTable, load_catalog, verify_table
from ags1.kms.local import create_key
from ags1.spark.sql_catalog import sql_catalog

from .metastore import served_metastore
from .postgres import postgres
from .rest_server import rest_server
from .spark import DATABASE, SparkTables

SCHEMA = pa.schema([("id", pa.int64()), ("carrier", pa.string())])
_numbers = itertools.count()


@contextmanager
def pipe(path: Path) -> Iterator[None]:
    """A pipe in place of a file. The first who reads it by mistake gets bytes and an end."""

    def write() -> None:
        with suppress(BrokenPipeError):
            path.write_bytes(b"{" * 1000)

    os.mkfifo(path)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        writer.join()


@dataclass(frozen=True)
class Lake:
    """A catalog with a keyring: ours, and the plug-in's by the name ``name``."""

    ours: EncryptedCatalog
    spark: SparkTables
    name: str
    folder: Path

    def new_name(self) -> str:
        return f"{DATABASE}.t{next(_numbers)}"

    def create(
        self, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA, **properties: str
    ) -> str:
        """Create a table in Python; return its name."""
        name = self.new_name()
        # The metastore of Spark's own has no tables for locks.
        properties |= {"encryption.key-id": "default", "engine.hive.lock-enabled": "false"}
        table = self.ours.create_table(name, schema, properties=properties)
        table.append(pa.Table.from_pylist(rows, schema))
        return name

    def sql(self, statement: str, table: str = "") -> list[Any]:
        """Run a statement, with ``{t}`` for the table and ``{c}`` for the catalog."""
        return self.spark.sql(statement.format(t=f"{self.name}.{table}", c=self.name))

    def refresh(self, table: str) -> None:
        """Have Spark load a table again that Python, or somebody else, has changed."""
        self.spark.refresh(f"{self.name}.{table}")

    def check(self, table: str, expected: dict[int, str | None]) -> EncryptedTable:
        """Compare the rows of both languages with a model, and verify every file."""
        loaded = self.ours.load_table(table)
        assert isinstance(loaded, EncryptedTable)
        read = loaded.scan().to_arrow().to_pylist()
        assert {row["id"]: row["carrier"] for row in read} == expected
        assert len(read) == len(expected)
        self.refresh(table)
        rows = self.sql("SELECT id, carrier FROM {t} ORDER BY id", table)
        assert [tuple(row) for row in rows] == sorted(expected.items())
        assert not [f for f in verify_table(loaded).findings if f.severity != "note"]
        return loaded


@contextmanager
def lake_in(folder: Path, kind: str, spark: SparkTables) -> Iterator[Lake]:
    """Make a catalog in a folder: ``sql``, ``rest``, ``hive``, ``glue``, ``dynamodb`` or
    ``postgresql``."""
    keyring = folder / "keyring.json"
    create_key(str(keyring), "default")
    create_key(str(keyring), "other")
    kms = {
        "encryption.kms-type": "local",
        "kms.local.keyring": str(keyring),
        "encryption.trusted-key-ids": "default,other",
    }
    name = f"lake_{kind}_{next(_numbers)}"
    warehouse = f"file://{folder}/warehouse"
    with ExitStack() as stack:
        python, java = {"type": kind, "warehouse": warehouse, **kms}, {}
        if kind == "sql":
            python["uri"] = f"sqlite:///{folder}/catalog.db"
        elif kind == "postgresql":
            uri = stack.enter_context(postgres(free_port()))
            python |= {"type": "sql", "uri": uri}
        elif kind == "rest":
            python["uri"] = stack.enter_context(rest_server(folder, folder / "stderr.txt"))
        elif kind == "hive":
            python["uri"] = stack.enter_context(served_metastore(spark))
        else:
            url = stack.enter_context(aws_catalogs()).url
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for variable, value in environment(url).items():
                patch.setenv(variable, value)
            python |= properties(kind, url, warehouse)
            java = {f"{kind}.endpoint": url}
        # Both languages take the keys of AWS from the environment.
        named = {key: value for key, value in python.items() if "access-key" not in key}
        java |= sql_catalog(name, named).properties
        if kind == "hive":
            del java["uri"]  # Iceberg's catalog there shares Spark's metastore
        spark.plugin_catalog(name, java)
        ours = load_catalog(name, **python)
        ours.create_namespace_if_not_exists(DATABASE)
        yield Lake(ours, spark, name, folder)
        ours.close()


def listed(rows: dict[int, str | None]) -> list[dict[str, Any]]:
    return [{"id": key, "carrier": value} for key, value in rows.items()]


def plain_files(folder: Path) -> list[Path]:
    """The files of a table that are neither encrypted nor metadata.json."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not path.name.endswith((".metadata.json", ".crc"))
        and path.read_bytes()[:4] not in (b"AGS1", b"PARE")
    ]
