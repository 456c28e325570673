"""Encrypted statistics that another writer has made, in the draft form of apache/iceberg 17533.
They survive our changes, and ``verify`` authenticates them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import rewritten, with_statistics
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from ags1.iceberg import EncryptedCatalog, EncryptedTable, verify_table
from ags1.iceberg.commit.updates import apply_updates
from ags1.iceberg.spec.java_json import in_java_order

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

# From the tests of apache/iceberg 17417.
OF_JAVA = (
    '{"snapshot-id":42,"statistics-path":"/stats/file.puffin","file-size-in-bytes":124,'
    '"file-footer-size-in-bytes":27,"key-id":"some-key-id","blob-metadata":[{"type":"some-stats",'
    '"snapshot-id":42,"sequence-number":3,"fields":[1,2],"properties":{"prop":"value"}}]}'
)
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "p", StringType(), required=False),
)
DATA = b"PFA1 a sketch" * 100


@pytest.fixture
def described(catalog: EncryptedCatalog) -> EncryptedTable:
    """A table with encrypted statistics."""
    properties = {"format-version": "3", "encryption.key-id": "keyA"}
    table = catalog.create_table("db.t", SCHEMA, properties=properties)
    assert isinstance(table, EncryptedTable)
    table.append(pa.table({"id": [1, 2, 3], "p": ["a", "b", None]}))
    return with_statistics(table, DATA)


def entry_of(table: EncryptedTable) -> dict[str, Any]:
    [entry] = table.version.json["statistics"]
    assert isinstance(entry, dict)
    return entry


def stored(table: EncryptedTable) -> Path:
    return Path(entry_of(table)["statistics-path"].removeprefix("file://"))


def opened(table: EncryptedTable) -> bytes:
    """The statistics, by the key that their entry names."""
    entry = entry_of(table)
    km = table.files.keys.manifest_list_key(entry["key-id"])
    return bytes(table.files.read_encrypted(entry["statistics-path"], km))


def test_statistics_are_authenticated(described: EncryptedTable) -> None:
    assert opened(described) == DATA
    report = verify_table(described)
    assert report.ok
    assert report.statistics_files == 1


def test_the_entry_has_the_order_of_the_draft() -> None:
    metadata = {"format-version": 3, "statistics": [json.loads(OF_JAVA)]}
    assert OF_JAVA in json.dumps(in_java_order(metadata), separators=(",", ":"))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (flipped, "authentication"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "truncated"),
        (lambda path: path.write_bytes(b"PFA1" + path.read_bytes()[4:]), "not-encrypted"),
    ],
)
def test_a_damaged_file_is_an_error(
    described: EncryptedTable, damage: Callable[[Path], object], kind: str
) -> None:
    damage(stored(described))
    report = verify_table(described)
    assert not report.ok
    assert report.finding_counts[kind] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"file-size-in-bytes": 17}, "length"),
        ({"key-id": "no such"}, "no such"),
        ({"key-metadata": "AA=="}, "plaintext"),
    ],
)
def test_changed_metadata_is_an_error(
    described: EncryptedTable, change: dict[str, Any], message: str
) -> None:
    changed = rewritten(described, lambda metadata: metadata["statistics"][0].update(change))
    report = verify_table(changed)
    assert not report.ok
    assert any(message in finding.message for finding in report.findings)


def test_a_writer_that_drops_the_key_id_leaves_an_intact_table(described: EncryptedTable) -> None:
    # As Java up to 1.12 does with its next commit.
    def drop(metadata: dict[str, Any]) -> None:
        del metadata["statistics"][0]["key-id"]

    left = rewritten(described, drop)
    report = verify_table(left)
    assert report.ok
    assert report.finding_counts["unauthenticated-bytes"] == 1
    assert report.finding_counts["orphan-key"] == 1
    assert len(left.prune_keys()) == 1
    assert left.scan().count() == 3


def test_every_change_of_keys_keeps_the_statistics(described: EncryptedTable) -> None:
    assert described.prune_keys() == []
    described.rotate_keys()
    assert opened(described) == DATA
    described.rewrap_keys("keyB")
    assert opened(described) == DATA
    described.rekey()
    first, _ = described.snapshots()
    described.prune_keys()
    again = described.refresh()
    assert opened(again) == DATA
    assert verify_table(again).ok
    path = stored(again)
    expired = again.expire_snapshots(snapshot_ids=[first.snapshot_id])
    assert expired.files.statistics == (f"file://{path}",)
    assert not path.exists()
    assert len(again.prune_keys()) == 2  # of the snapshot and of its statistics
    assert verify_table(again).ok


def test_a_key_that_the_table_does_not_have_is_not_named(described: EncryptedTable) -> None:
    update = {"action": "set-statistics", "statistics": json.loads(OF_JAVA)}
    with pytest.raises(ValueError, match="some-key-id"):
        apply_updates(described.version.json, [update], now_ms=1)
