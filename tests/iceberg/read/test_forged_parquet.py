"""Parquet files that somebody forged, and storages that change their answers.

The forged files are those that Arrow alone reads: pyarrow is asked first.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forged_parquet as forged
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import KMS_PROPERTIES
from pyarrow.parquet.encryption import create_decryption_properties
from pyiceberg.utils.concurrent import ExecutorFactory

from ags1 import KeyMetadata
from ags1.engine.source import open_source
from ags1.errors import Ags1Error, AuthenticationError, MetadataIntegrityError
from ags1.iceberg import EncryptedTable, load_catalog, verify_table
from ags1.iceberg.read import open_files
from ags1.iceberg.read.records import ContentFile
from ags1.iceberg.storage.table_files import TableFiles
from ags1.iceberg.storage.workers import pool_size


class Made:
    """A table with one file, and a forger's way to it."""

    def __init__(self, folder: Path) -> None:
        place = {"uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}"}
        self._catalog = load_catalog("c", type="sql", **place, **KMS_PROPERTIES)
        self._catalog.create_namespace("db")
        properties = {"encryption.key-id": "keyA", **forged.PROPERTIES}
        table = self._catalog.create_table("db.t", forged.SCHEMA, properties=properties)
        table.append(forged.rows())
        ((task,),) = [list(self.table().scan().plan_files())]
        self.path = Path(task.file.file_path.removeprefix("file://"))
        self.km: KeyMetadata = task.file.key  # type: ignore[attr-defined]

    def table(self) -> EncryptedTable:
        table = self._catalog.load_table("db.t")
        assert isinstance(table, EncryptedTable)
        return table


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def by_arrow(data: bytes, km: KeyMetadata) -> pa.Table:
    keys = create_decryption_properties(km.encryption_key, aad_prefix=km.aad_prefix)
    return pq.ParquetFile(io.BytesIO(data), decryption_properties=keys).read()


READERS: list[Callable[[EncryptedTable], Any]] = [
    lambda table: table.scan().to_arrow(),
    lambda table: table.scan("id > 1").count(),
    lambda table: table.scan().to_polars(),
    lambda table: table.delete("id = 2"),
    lambda table: table.upsert(forged.rows().slice(1), join_cols=["id"]),
    lambda table: table.rewrite_data_files(rewrite_all=True),
    lambda table: table.rekey(),
]


@pytest.mark.parametrize("forge", forged.FORGERIES)
def test_rows_that_somebody_without_a_key_forged(
    made: Made, forge: Callable[[bytes], bytes]
) -> None:
    """No reader gives the rows, and no writer puts them into a new file."""
    data = forge(made.path.read_bytes())
    if forge is not forged.another_algorithm:
        assert by_arrow(data, made.km).to_pylist() == forged.FORGED.to_pylist()
    made.path.write_bytes(data)
    for read in READERS:
        with pytest.raises(Ags1Error):
            read(made.table())
    assert not verify_table(made.table()).ok


@pytest.mark.parametrize("whole_size", [0, 1 << 20])
def test_arrow_gets_what_was_checked(
    made: Made, monkeypatch: pytest.MonkeyPatch, whole_size: int
) -> None:
    """A storage answers the second request for the file's end with a forged one."""
    genuine = made.path.read_bytes()
    start, _ = forged.crypto_metadata(genuine)
    reads: list[tuple[int, int]] = []

    class Changing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            at = self.tell()
            data = super().read(size)
            if reads:
                forged_end = bytes(len(genuine) - start)
                data = (genuine[:start] + forged_end)[at : at + len(data)]
            reads.append((at, len(data)))
            return data

    monkeypatch.setattr(open_files, "_WHOLE_SIZE", whole_size)
    source, _ = open_source(pa.PythonFile(Changing(genuine), "r"))
    monkeypatch.setattr(TableFiles, "open_source", lambda *_: source)
    assert made.table().scan().to_arrow().to_pylist() == forged.rows().to_pylist()
    assert sum(at + size > start for at, size in reads) == 1
    if whole_size:
        assert reads == [(0, len(genuine))]


def test_a_file_with_fewer_rows_than_its_manifest_says(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContentFile, "record_count", 3)
    with pytest.raises(MetadataIntegrityError, match="2 rows, but its manifest says 3"):
        made.table().scan().to_arrow()


WITHOUT_ENCRYPTION = """
import sys

names = "_parquet_encryption", "_dataset_parquet_encryption", "parquet.encryption"
for name in names:
    sys.modules[f"pyarrow.{name}"] = None

import pyarrow as pa
from iceberg_tables import KMS_PROPERTIES
from ags1.iceberg import load_catalog

folder = sys.argv[1]
place = {"uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}"}
catalog = load_catalog("c", type="sql", **place, **KMS_PROPERTIES)
catalog.create_namespace("db")
for mode in ("copy-on-write", "merge-on-read"):
    rows = pa.table({"id": range(10), "text": [f"t{n}" for n in range(10)]})
    properties = {"encryption.key-id": "keyA", "write.delete.mode": mode}
    table = catalog.create_table(f"db.{mode}", rows.schema, properties=properties)
    table.append(rows)
    table.append(rows.slice(5))
    table.delete("id = 7")
    table.upsert(rows.slice(0, 2), join_cols=["id"])
    table.rekey()
    table.rewrite_data_files(rewrite_all=True)
    assert table.check("full").ok
    assert table.scan("id > 7").to_arrow().num_rows == 4
    found = sorted(table.to_polars().select("id").collect()["id"])
    assert found == [0, 1, 2, 3, 4, 5, 5, 6, 6, 8, 8, 9, 9]
assert all(sys.modules[f"pyarrow.{name}"] is None for name in names)
"""


@pytest.mark.slow
def test_tables_need_no_encryption_of_arrow(
    run_python: Callable[..., object], tmp_path: Path
) -> None:
    """So no object of Arrow can have a key."""
    run_python(WITHOUT_ENCRYPTION, tmp_path)


def test_a_large_file_is_read_by_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has one row group, and the next one is begun while Arrow reads the last one."""
    monkeypatch.setattr(open_files, "_HELD_SIZE", 0)
    monkeypatch.setattr(open_files, "_WINDOW_SIZE", 1)
    monkeypatch.setattr(open_files, "_WHOLE_SIZE", 0)
    place = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    catalog = load_catalog("c", type="sql", **place, **KMS_PROPERTIES)
    catalog.create_namespace("db")
    rows = pa.table({"id": range(5000), "text": [f"{n} {n * n}" * 4 for n in range(5000)]})
    properties = {"encryption.key-id": "keyA", "write.parquet.row-group-limit": "500"}
    table = catalog.create_table("db.t", rows.schema, properties=properties)
    threads = pool_size(ExecutorFactory.get_or_create())
    for _ in range(threads):
        table.append(rows)
    # Each thread reads such a file, and none may wait for another one.
    assert table.scan().count() == table.scan().to_arrow().num_rows == threads * len(rows)
    table.delete()
    table.append(rows)
    assert table.scan().to_arrow().to_pylist() == rows.to_pylist()
    found = table.scan("id >= 1990 and id < 2010", selected_fields=("text",)).to_arrow()
    assert found.to_pylist() == rows.slice(1990, 20).select(["text"]).to_pylist()
    ((task,),) = [list(table.scan().plan_files())]
    file = Path(task.file.file_path.removeprefix("file://"))
    genuine = file.read_bytes()
    middle = len(genuine) // 2
    changed = bytes([genuine[middle] ^ 1])
    file.write_bytes(genuine[:middle] + changed + genuine[middle + 1 :])
    with pytest.raises(AuthenticationError):
        table.scan().to_arrow()
    file.write_bytes(genuine)
    table.delete("id >= 1 and id < 4999")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [0, 4999]
