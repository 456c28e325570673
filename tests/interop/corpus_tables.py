"""Makes the valid tables of the corpus anew.

``python -m interop.corpus_tables java|rust|ags1 [NAME ...]``, in the folder ``tests``.

Java (through Spark), iceberg-rust and ags1 each write their own, in the folder that the tables'
metadata names. A table without its earlier metadata.json goes to ``tests/vectors/corpus/tables``,
with the rows that its writer read or wrote, in ``expected.jsonl``. Keys and the names of files are
fresh each time. Run ``generate_tables.py`` of the corpus afterwards, which makes the other tables
out of these.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from iceberg_tables import KMS_PROPERTIES, MASTER_KEYS, memory_kms

from ags1.iceberg import EncryptedTable, load_catalog
from ags1.keys.manager import EncryptionManager, now_ms

from . import rust
from .corpus_cases import CORPUS
from .corpus_place import PLACE, in_place
from .java_tables import JavaTables
from .spark import SparkTables
from .tables import current_snapshot, manager_of, with_keys, write_metadata

TABLES = CORPUS / "tables"

Row = Mapping[str, Any]


def aged_ms() -> int:
    """Return a time that is longer ago than the 730 days for which a KEK wraps new keys."""
    return now_ms() - 800 * 24 * 3_600_000


def keep(name: str, rows: Sequence[Row]) -> None:
    """Copy a table from ``PLACE`` to the corpus, with its last metadata.json alone."""
    target = TABLES / name
    shutil.rmtree(target, ignore_errors=True)
    *older, _ = sorted((PLACE / name / "metadata").glob("*.metadata.json"))
    left_out = {path.name for path in older}
    shutil.copytree(
        PLACE / name,
        target,
        ignore=lambda _, names: [n for n in names if n in left_out or n.startswith(".")],
    )
    lines = [json.dumps(row) for row in sorted(rows, key=lambda row: row["id"])]
    (target / "expected.jsonl").write_text("".join(f"{line}\n" for line in lines))


class FromJava:
    """The tables that Java writes, through one Spark session."""

    COLUMNS = "id BIGINT, name STRING"

    def __init__(self, folder: Path) -> None:
        self.spark = SparkTables(folder)
        self.spark.catalog("enc")
        self.java = JavaTables(self.spark)

    def close(self) -> None:
        self.spark.stop()

    def create(self, name: str, columns: str = COLUMNS, **properties: str) -> str:
        table = f"enc.db.{name}"
        self.spark.create(table, columns, PLACE / name, **properties)
        return table

    def insert(self, table: str, *values: str) -> None:
        """Append rows in one data file for each partition."""
        rows = ", ".join(values)
        self.spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM VALUES {rows}")

    def keep(self, table: str) -> None:
        rows = self.spark.session.sql(f"SELECT * FROM {table}").toArrow().to_pylist()
        keep(table.rpartition(".")[2], rows)

    def parquet(self) -> None:
        table = self.create("java_parquet")
        self.insert(table, "(1, 'a')", "(2, 'b')", "(3, null)")
        self.insert(table, "(4, 'd')", "(5, 'e')", "(6, 'f')")
        self.keep(table)

    def avro(self) -> None:
        columns = "id BIGINT, p STRING, name STRING"
        table = self.create("java_avro", columns, **{"write.format.default": "avro"})
        self.spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD p")
        self.insert(table, "(1, 'x', 'a')", "(2, 'y', 'b')", "(3, 'x', null)")
        self.insert(table, "(4, 'y', 'd')", "(5, 'y', 'e')")
        self.keep(table)

    def deletion_vectors(self) -> None:
        modes = {f"write.{what}.mode": "merge-on-read" for what in ("delete", "update")}
        table = self.create("java_deletion_vectors", **modes)
        self.insert(table, *(f"({i}, 'row {i}')" for i in range(10)))
        self.spark.sql(f"DELETE FROM {table} WHERE id IN (2, 3, 7)")
        self.spark.sql(f"UPDATE {table} SET name = 'changed' WHERE id = 5")
        self.keep(table)

    def equality_deletes(self) -> None:
        name = "java_equality_deletes"
        table = self.create(name)
        self.insert(table, *(f"({i}, 'row {i}')" for i in range(8)))
        self.java.delete(table, [{"id": 1}, {"id": 6}], "parquet")
        self.java.delete(table, [{"name": "row 4"}], "avro")
        self.insert(table, "(6, 'again')")
        self.keep(table)

    def long_keys(self) -> None:
        table = self.create("java_256_bit_keys", **{"encryption.data-key-length": "32"})
        self.insert(table, "(1, 'a')", "(2, 'b')")
        self.keep(table)

    def two_keks(self) -> None:
        """Java makes a new KEK, because the first one's timestamp was set back by ags1."""
        table = self.create("java_two_keks")
        self.insert(table, "(1, 'a')")
        metadata, kms = self.spark.metadata(table), memory_kms()
        snapshot = current_snapshot(metadata)
        km = manager_of(metadata, kms).manifest_list_key(snapshot["key-id"])
        aged = EncryptionManager(kms, "keyA", clock_ms=aged_ms)
        metadata["snapshots"] = [snapshot | {"key-id": aged.add_manifest_list_key(km)}]
        path = write_metadata(with_keys(metadata, aged), self.spark.metadata_file(table))
        self.spark.commit(table, path)
        self.insert(table, "(2, 'b')")
        assert len(manager_of(self.spark.metadata(table), kms).key_encryption_keys) == 2
        self.keep(table)

    def empty(self) -> None:
        self.keep(self.create("java_empty"))


class FromRust:
    """The table that our program of iceberg-rust's writers makes."""

    def __init__(self, folder: Path) -> None:
        self.program = rust.Rust()

    def close(self) -> None:
        self.program.close()

    def table(self) -> None:
        name, rows = "iceberg_rust", [{"id": i, "name": f"row {i}"} for i in range(5)]
        for folder in ("data", "metadata"):
            (PLACE / name / folder).mkdir(parents=True)
        self.program.call(
            "write_table",
            location=f"file:{PLACE}/{name}",
            table_key_id="keyA",
            master_keys={key: value.hex() for key, value in MASTER_KEYS.items()},
            rows=len(rows),
        )
        keep(name, rows)


class FromAgs1:
    """The tables that ags1 writes."""

    SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])

    def __init__(self, folder: Path) -> None:
        place = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder)}
        self.catalog = load_catalog("c", type="sql", **place, **KMS_PROPERTIES)
        self.catalog.create_namespace("db")

    def close(self) -> None:
        """Nothing stays open."""

    def create(self, name: str, **properties: str) -> EncryptedTable:
        encrypted = {"format-version": "3", "encryption.key-id": "keyA"} | properties
        table = self.catalog.create_table(
            f"db.{name}", self.SCHEMA, location=f"file:{PLACE}/{name}", properties=encrypted
        )
        assert isinstance(table, EncryptedTable)
        return table

    def rows(self, *ids: int) -> pa.Table:
        rows = [{"id": i, "name": f"row {i}"} for i in ids]
        return pa.Table.from_pylist(rows, self.SCHEMA)

    def parquet(self) -> None:
        table = self.create("ags1_parquet")
        table.append(self.rows(1, 2, 3))
        table.append(self.rows(4, 5, 6))
        keep("ags1_parquet", self.rows(1, 2, 3, 4, 5, 6).to_pylist())

    def avro(self) -> None:
        table = self.create("ags1_avro", **{"write.format.default": "avro"})
        table.append(self.rows(1, 2, 3))
        table.append(self.rows(4, 5, 6))
        keep("ags1_avro", self.rows(1, 2, 3, 4, 5, 6).to_pylist())

    def deletion_vectors(self) -> None:
        table = self.create("ags1_deletion_vectors", **{"write.delete.mode": "merge-on-read"})
        table.append(self.rows(*range(10)))
        table.append(self.rows(*range(10, 15)))
        table.delete("id in (2, 3, 11)")
        keep("ags1_deletion_vectors", self.rows(0, 1, *range(4, 11), 12, 13, 14).to_pylist())

    def long_keys(self) -> None:
        table = self.create("ags1_256_bit_keys", **{"encryption.data-key-length": "32"})
        table.append(self.rows(1, 2))
        keep("ags1_256_bit_keys", self.rows(1, 2).to_pylist())

    def two_keks(self) -> None:
        """The first KEK is too old for new keys at the second append."""
        table = self.create("ags1_two_keks")
        defaults = EncryptionManager.from_metadata.__func__.__kwdefaults__
        with mock.patch.dict(defaults, {"clock_ms": aged_ms}):
            table.append(self.rows(1))
        table = self.catalog.load_table("db.ags1_two_keks")
        table.append(self.rows(2))
        keep("ags1_two_keks", self.rows(1, 2).to_pylist())


WRITERS: dict[str, tuple[type[Any], str]] = {
    "java": (
        FromJava,
        "parquet avro deletion_vectors equality_deletes long_keys two_keks empty",
    ),
    "rust": (FromRust, "table"),
    "ags1": (FromAgs1, "parquet avro deletion_vectors long_keys two_keks"),
}


def main(writer: str, *names: str) -> None:
    """Make the tables ``names`` of ``java``, ``rust`` or ``ags1``, or all of them."""
    make, all_names = WRITERS[writer]
    with tempfile.TemporaryDirectory() as folder, in_place():
        made = make(Path(folder))
        try:
            for name in names or all_names.split():
                getattr(made, name)()
        finally:
            made.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
