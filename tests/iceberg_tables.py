"""What the tests of ``ags1.iceberg`` share: the fixture tables, their KMS, copies to damage."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ags1
from ags1.iceberg import EncryptedCatalog, EncryptedTable, load_catalog, open_table
from ags1.keys.envelope import encryption_keys_to_dicts
from ags1.kms import KmsClient, from_properties

TABLES = Path(__file__).parent / "tables"
CORPUS_TABLES = TABLES.parent / "vectors" / "corpus" / "tables"
# Those whose data files are here too.
READABLE = ["empty", "mor_dv", "parquet_plain", "stats"]
JAVA_LOCATION = "file:/tmp/ags1-fixtures"  # where Java wrote them
MASTER_KEYS = {"keyA": b"0123456789012345", "keyB": b"1123456789012345"}
KMS_PROPERTIES = {"encryption.kms-type": "memory"} | {
    f"encryption.kms.key.{name}": key.hex() for name, key in MASTER_KEYS.items()
}


def memory_kms() -> KmsClient:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return from_properties(KMS_PROPERTIES)


def sql_catalog(folder: Path) -> EncryptedCatalog:
    """Open a catalog over SQLite in a folder, with keys in properties. If it is new, it has a
    namespace ``db``."""
    database = folder / "catalog.db"
    if not database.exists():
        database.write_bytes(_empty_database())
    return _over(folder)


@functools.cache
def _empty_database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with _over(Path(folder)) as made:
            made.create_namespace("db")
        return Path(folder, "catalog.db").read_bytes()


def _over(folder: Path) -> EncryptedCatalog:
    return load_catalog(
        "sql",
        type="sql",
        uri=f"sqlite:///{folder}/catalog.db",
        warehouse=f"file://{folder}/warehouse",
        **KMS_PROPERTIES,
    )


def metadata_file(name: str, folder: Path = TABLES) -> Path:
    """A fixture table's current metadata file."""
    return sorted((folder / name / "metadata").glob("*.metadata.json"))[-1]


def open_fixture(name: str, folder: Path = TABLES, **more: Any) -> EncryptedTable:
    """Open a fixture table, or a copy of it in another folder."""
    more = {"kms": memory_kms(), "location_map": {JAVA_LOCATION: str(folder)}} | more
    table = open_table(str(metadata_file(name, folder)), **more)
    assert isinstance(table, EncryptedTable)
    return table


def copied(name: str, folder: Path) -> Path:
    """Copy a fixture table into ``folder``; return the copy's own folder."""
    return Path(shutil.copytree(TABLES / name, folder / name))


def expected_rows(name: str) -> list[dict[str, Any]]:
    """What Spark read from a fixture table, in the order of ``id``."""
    path = TABLES / "read_by_spark" / name / "expected.jsonl"
    text = path.read_text()
    return [json.loads(line) for line in text.splitlines()]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def unpin(catalog: Any) -> None:
    """Delete what a SQL catalog keeps of its tables, so that a change of their files is not
    noticed."""
    from sqlalchemy import text

    with catalog.engine.begin() as connection:
        statement = "DELETE FROM iceberg_namespace_properties WHERE property_key LIKE 'ags1.pin.%'"
        connection.execute(text(statement))


def with_statistics(table: EncryptedTable, data: bytes) -> EncryptedTable:
    """Give the current snapshot an encrypted statistics file, in the draft form of apache/iceberg
    17533; return the table."""
    manager = table.view().manager
    sealed, km = ags1.encrypt(data)
    snapshot_id = table.metadata.current_snapshot_id
    location = f"{table.location()}/metadata/{uuid.uuid4()}.stats"
    Path(location.removeprefix("file://")).write_bytes(sealed)
    entry = {
        "snapshot-id": snapshot_id,
        "statistics-path": location,
        "file-size-in-bytes": len(sealed),
        "file-footer-size-in-bytes": 4,
        "key-id": manager.add_manifest_list_key(km),
        "blob-metadata": [],
    }

    def change(metadata: dict[str, Any]) -> None:
        metadata["encryption-keys"] = encryption_keys_to_dicts(manager.encryption_keys)
        others = metadata.get("statistics") or ()
        kept = [other for other in others if other["snapshot-id"] != snapshot_id]
        metadata["statistics"] = [*kept, entry]

    return rewritten(table, change)


def rewritten(table: EncryptedTable, change: Callable[[dict[str, Any]], Any]) -> EncryptedTable:
    """Change a table's metadata.json, or return another for it, behind the back of its catalog,
    which does not notice; return the table of it."""
    path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_bytes())
    path.write_text(json.dumps(change(metadata) or metadata))
    unpin(table.catalog)
    made = table.catalog.load_table(table.name())
    assert isinstance(made, EncryptedTable)
    return made
