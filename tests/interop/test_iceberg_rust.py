"""Both ways with the released iceberg-rust: streams, and tables as far as it has encrypted ones.

It reads encrypted tables down to the manifests, and no encrypted Parquet. Its commits refuse
encrypted tables, but it has the writers of every file of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from iceberg_tables import MASTER_KEYS, memory_kms
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import ags1
from ags1.errors import MissingFileLengthError
from ags1.iceberg import EncryptedTable, load_catalog, open_table

from . import corpus
from .corpus_cases import CORPUS, cases
from .corpus_implementations import (
    IMPLEMENTATIONS,
    IcebergJava,
    IcebergRust,
    Implementation,
    UnavailableError,
)
from .rust import Rust, RustError

pytestmark = pytest.mark.interop
# cargo builds iceberg-rust for some ten minutes the first time.
built = pytest.mark.cluster

MASTER_KEYS_HEX = {name: key.hex() for name, key in MASTER_KEYS.items()}
MIB = 1 << 20


@pytest.fixture(scope="module")
def rust() -> Iterator[Rust]:
    program = Rust()
    yield program
    program.close()


@built
@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB + 17])
@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_streams_are_read_both_ways(rust: Rust, tmp_path: Path, size: int, key_size: int) -> None:
    key, prefix = bytes(range(key_size)), b"an AAD prefix..."
    named = {"key": key.hex(), "aad_prefix": prefix.hex(), "file_length": None}
    text = bytes(i * 7 & 0xFF for i in range(256)) * (size // 256 + 1)
    plain, sealed, again = tmp_path / "plain", tmp_path / "sealed", tmp_path / "again"
    plain.write_bytes(text[:size])
    km = ags1.encrypt_file(plain, sealed, km=ags1.KeyMetadata(key, prefix))
    rust.call("read_stream", path=str(sealed), output=str(again), **named)
    assert again.read_bytes() == text[:size]
    rust.call("write_stream", path=str(plain), output=str(sealed), **named)
    assert sealed.stat().st_size == km.file_length
    with ags1.open(sealed, "rb", km) as file:
        assert file.read() == text[:size]


@built
def test_a_table_of_ours_is_planned_by_rust(rust: Rust, tmp_path: Path) -> None:
    """Down to the data files: the release gives Parquet no keys."""
    table = _new_table(tmp_path)
    for start in (0, 10):
        rows = [{"id": i, "name": f"row {i}"} for i in range(start, start + 10)]
        table.append(table.scan().to_arrow().from_pylist(rows, table.schema().as_arrow()))
    table.delete("id = 3")
    planned = rust.call("plan_table", metadata=table.metadata_location, master_keys=MASTER_KEYS_HEX)
    ours = {task.file.file_path: task.file.record_count for task in table.scan().plan_files()}
    assert {task["path"]: task["rows"] for task in planned} == ours
    assert {task["format"] for task in planned} == {"parquet"}
    deletes = {
        task.file.file_path: {file.file_path for file in task.delete_files}
        for task in table.scan().plan_files()
    }
    assert any(deletes.values())
    # The release gives a deletion vector to every data file of the partition.
    theirs = {task["path"]: set(task["deletes"]) for task in planned}
    assert all(deletes[path] <= theirs[path] for path in deletes)
    with pytest.raises(RustError, match="encrypted footer but decryption properties were not"):
        rust.call("count_rows", metadata=table.metadata_location, master_keys=MASTER_KEYS_HEX)
    wrong = {"keyA": MASTER_KEYS_HEX["keyB"]}
    with pytest.raises(RustError):
        rust.call("plan_table", metadata=table.metadata_location, master_keys=wrong)


def _new_table(folder: Path) -> EncryptedTable:
    catalog = load_catalog(
        "c",
        type="sql",
        uri=f"sqlite:///{folder}/catalog.db",
        warehouse=str(folder),
        **{"encryption.kms-type": "memory"},
        **{f"encryption.kms.key.{name}": key for name, key in MASTER_KEYS_HEX.items()},
    )
    catalog.create_namespace("db")
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "name", StringType(), required=False),
    )
    properties = {"format-version": "3", "encryption.key-id": "keyA"}
    properties["write.delete.mode"] = "merge-on-read"
    table = catalog.create_table("db.t", schema, properties=properties)
    assert isinstance(table, EncryptedTable)
    return table


@built
def test_a_table_of_rust_is_read_here(rust: Rust, tmp_path: Path) -> None:
    location = tmp_path / "t"
    for folder in ("data", "metadata"):
        (location / folder).mkdir(parents=True)
    metadata = rust.call(
        "write_table",
        location=str(location),
        table_key_id="keyA",
        master_keys=MASTER_KEYS_HEX,
        rows=3000,
    )
    with pytest.raises(MissingFileLengthError, match=r"iceberg-rust .* trust_file_size=True"):
        open_table(metadata, memory_kms()).scan().to_arrow()
    table = open_table(metadata, memory_kms(), trust_file_size=True)
    rows = table.scan().to_arrow().to_pylist()
    assert rows == [{"id": i, "name": f"row {i}"} for i in range(3000)]
    with pytest.raises(NotImplementedError, match="no catalog to commit to"):
        table.append(table.scan().to_arrow())


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=make.name, marks=built if make is IcebergRust else ())
        for make in IMPLEMENTATIONS
    ],
)
def test_the_committed_results_are_those_of_today(
    make: type[Implementation], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    committed = json.loads((CORPUS / "results.json").read_text())
    assert committed["cases"] == corpus.digests(), "run `make corpus` again"
    try:
        implementation = make(tmp_path)
    except UnavailableError as error:
        pytest.skip(str(error))
    if isinstance(implementation, IcebergJava):
        implementation.use(request.getfixturevalue("spark"))
    try:
        results = list(corpus.run(implementation, cases()))
    finally:
        implementation.close()
    found = corpus.differences(results, make.name)
    assert found == committed["implementations"][make.name]["differences"]
    assert not [difference for difference in found if not difference["explanation"]]
