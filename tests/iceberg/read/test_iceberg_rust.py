"""A table whose key metadata has no file lengths, as builds of iceberg-rust wrote them.

The writers of iceberg-rust 0.10.1 wrote ``tests/vectors/corpus/tables/iceberg_rust``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from iceberg_tables import CORPUS_TABLES, JAVA_LOCATION, memory_kms

from ags1.errors import AuthenticationError, MissingFileLengthError
from ags1.iceberg import EncryptedTable, open_table
from ags1.iceberg.operations.check import verify_table
from ags1.iceberg.operations.check.findings import Severity


def opened(folder: Path = CORPUS_TABLES, **more: Any) -> EncryptedTable:
    (metadata,) = (folder / "iceberg_rust" / "metadata").glob("*.metadata.json")
    table = open_table(str(metadata), memory_kms(), {JAVA_LOCATION: str(folder)}, **more)
    assert isinstance(table, EncryptedTable)
    return table


def test_the_error_names_the_cause_and_the_way_to_read_it() -> None:
    said = r"no file length.*iceberg-rust from 2026-08-21.*3236.*trust_file_size=True"
    with pytest.raises(MissingFileLengthError, match=said) as caught:
        opened().scan().to_arrow()
    assert caught.value.file == "file:/tmp/ags1-fixtures/iceberg_rust/metadata/snap-4242.avro"


def test_the_rows_are_read_where_the_size_of_the_files_is_trusted() -> None:
    expected = (CORPUS_TABLES / "iceberg_rust" / "expected.jsonl").read_text().splitlines()
    table = opened(trust_file_size=True)
    assert table.scan().to_arrow().to_pylist() == [json.loads(line) for line in expected]
    assert table.refresh().scan(row_filter="id > 2").to_arrow()["id"].to_pylist() == [3, 4]
    # In the folder is expected.jsonl, which is not encrypted.
    found = verify_table(table, list_folders=False)
    assert not [finding for finding in found.findings if finding.severity != Severity.NOTE]


def test_it_cannot_be_written() -> None:
    table = opened(trust_file_size=True)
    rows = table.scan().to_arrow()
    with pytest.raises(NotImplementedError):
        table.append(rows)


def test_what_is_cut_within_a_block_is_still_refused(tmp_path: Path) -> None:
    shutil.copytree(CORPUS_TABLES / "iceberg_rust", tmp_path / "iceberg_rust")
    manifest = tmp_path / "iceberg_rust" / "metadata" / "m0.avro"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    with pytest.raises(AuthenticationError):
        opened(tmp_path, trust_file_size=True).scan().to_arrow()
