"""Encrypted statistics, in the draft form of apache/iceberg 17533.

The blobs are Java's: the fixture ``stats`` has the sketches of ``compute_table_stats``. Files and
keys are opened by ``cryptography`` alone. Spark's part is in ``tests/interop/test_statistics.py``.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import reference
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from iceberg_tables import KMS_PROPERTIES, MASTER_KEYS, open_fixture, rewritten
from pyiceberg.schema import Schema
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.types import LongType, NestedField, StringType
from rest_catalog import Rest

from ags1 import (
    Ags1Error,
    AuthenticationError,
    KeyMetadata,
    KeyMetadataError,
    MetadataIntegrityError,
    NotEncryptedError,
    TruncatedError,
)
from ags1.iceberg import (
    EncryptedCatalog,
    EncryptedTable,
    StatisticsBlob,
    load_catalog,
    verify_table,
)
from ags1.iceberg.commit.updates import apply_updates
from ags1.iceberg.spec.java_json import in_java_order
from ags1.iceberg.write.statistics import StatisticsWriter

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

DRAFT = "draft-17533"
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


def java_statistics() -> PuffinFile:
    return open_fixture("stats").read_statistics(allow_plaintext=True)


def blobs() -> list[StatisticsBlob]:
    """Java's sketches, as those of this table's own snapshot."""
    found = StatisticsBlob.read_all(java_statistics())
    return [StatisticsBlob(b.type, b.fields, b.payload, b.properties) for b in found]


@pytest.fixture
def table(catalog: EncryptedCatalog) -> EncryptedTable:
    properties = {"format-version": "3", "encryption.key-id": "keyA"}
    made = catalog.create_table("db.t", SCHEMA, properties=properties)
    assert isinstance(made, EncryptedTable)
    made.append(pa.table({"id": [1, 2, 3], "p": ["a", "b", None]}))
    return made


@pytest.fixture
def described(table: EncryptedTable) -> EncryptedTable:
    """A table with encrypted statistics."""
    table.write_statistics(blobs(), encrypted_statistics=DRAFT)
    return table


def entry_of(table: EncryptedTable) -> dict[str, Any]:
    metadata = json.loads(Path(table.metadata_location.removeprefix("file://")).read_bytes())
    [entry] = metadata["statistics"]
    assert isinstance(entry, dict)
    return entry


def stored(table: EncryptedTable) -> Path:
    return Path(entry_of(table)["statistics-path"].removeprefix("file://"))


def payloads(puffin: PuffinFile) -> list[tuple[str, list[int], bytes, dict[str, str]]]:
    return [
        (blob.type, blob.fields, puffin.get_blob_payload(blob), blob.properties)
        for blob in puffin.footer.blobs
    ]


def test_the_statistics_of_java_are_read_only_on_request() -> None:
    table = open_fixture("stats")
    with pytest.raises(NotEncryptedError, match="allow_plaintext"):
        table.read_statistics()
    found = table.read_statistics(allow_plaintext=True)
    [entry] = table.metadata.statistics
    assert [b.properties["ndv"] for b in found.footer.blobs] == ["1000", "2"]
    assert [b.fields for b in found.footer.blobs] == [b.fields for b in entry.blob_metadata]
    # The header of a compact theta sketch: 3 is its serial version, and 3 its family.
    assert {payload[1:3] for _, _, payload, _ in payloads(found)} == {b"\3\3"}
    with pytest.raises(ValueError, match="no statistics"):
        open_fixture("mor_dv").read_statistics()


def test_statistics_are_encrypted_and_read(described: EncryptedTable) -> None:
    found = described.read_statistics()
    assert payloads(found) == payloads(java_statistics())
    snapshot = described.current_snapshot()
    assert snapshot is not None
    assert {b.snapshot_id for b in found.footer.blobs} == {snapshot.snapshot_id}
    assert {b.sequence_number for b in found.footer.blobs} == {snapshot.sequence_number}
    report = verify_table(described)
    assert report.ok
    assert report.statistics_files == 1
    assert set(report.finding_counts) <= {"metadata-not-pinned"}


def test_the_entry_has_the_form_of_the_draft(described: EncryptedTable) -> None:
    entry, like = entry_of(described), json.loads(OF_JAVA)
    assert list(entry) == list(like)
    assert [list(blob) for blob in entry["blob-metadata"]] == [list(like["blob-metadata"][0])] * 2
    metadata = {"format-version": 3, "statistics": [like]}
    assert OF_JAVA in json.dumps(in_java_order(metadata), separators=(",", ":"))


def test_the_file_opens_with_the_key_that_the_entry_names(described: EncryptedTable) -> None:
    entry = entry_of(described)
    keys = {key["key-id"]: key for key in described.version.json["encryption-keys"]}
    of_file = keys[entry["key-id"]]
    kek = keys[of_file["encrypted-by-id"]]

    def unwrapped(key: bytes, text: str, aad: str | None) -> bytes:
        data = base64.b64decode(text)
        return AESGCM(key).decrypt(data[:12], data[12:], None if aad is None else aad.encode())

    kek_bytes = unwrapped(MASTER_KEYS["keyA"], kek["encrypted-key-metadata"], None)
    timestamp = kek["properties"]["KEY_TIMESTAMP"]
    km = KeyMetadata.from_bytes(unwrapped(kek_bytes, of_file["encrypted-key-metadata"], timestamp))
    data = stored(described).read_bytes()
    assert len(data) == entry["file-size-in-bytes"] == km.file_length
    plaintext = reference.decrypt(data, km.encryption_key, km.aad_prefix, km.file_length)
    assert payloads(PuffinFile(plaintext)) == payloads(java_statistics())
    # From the magic bytes before the footer to the end.
    footer = plaintext[-entry["file-footer-size-in-bytes"] :]
    assert footer[:4] == footer[-4:] == b"PFA1"
    assert json.loads(footer[4:-12])["blobs"][0]["type"] == "apache-datasketches-theta-v1"
    # The key itself is nowhere in the metadata.
    text = Path(described.metadata_location.removeprefix("file://")).read_text()
    assert base64.b64encode(km.encryption_key).decode().rstrip("=") not in text
    assert km.encryption_key.hex() not in text


def test_the_form_has_to_be_named(table: EncryptedTable) -> None:
    for form in ("final", "", "draft-17533 "):
        with pytest.raises(ValueError, match="draft-17533"):
            table.write_statistics(blobs(), encrypted_statistics=form)
    with pytest.raises(ValueError, match="no snapshot 7"):
        table.write_statistics(blobs(), 7, encrypted_statistics=DRAFT)
    assert not list(Path(table.location().removeprefix("file://")).rglob("*.stats"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": None},
        {"fields": ["a"]},
        {"fields": [1.5]},
        {"fields": [1 << 31]},
        {"properties": {"ndv": 3}},
        {"properties": {"\ud800": "3"}},
        {"payload": "text"},
        {"snapshot_id": "1"},
        {"sequence_number": 1 << 63},
    ],
)
def test_what_no_reader_would_accept_is_not_written(
    table: EncryptedTable, wrong: dict[str, Any]
) -> None:
    blob = {"type": "t", "fields": [1], "payload": b"x", "properties": {"ndv": "3"}}
    with pytest.raises(ValueError, match="of the statistics blob"):
        table.write_statistics([StatisticsBlob(**blob | wrong)], encrypted_statistics=DRAFT)
    assert table.catalog.load_table("db.t").metadata.statistics == []


def test_an_interrupt_leaves_no_file(
    table: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = StatisticsWriter.write

    def interrupted(writer: StatisticsWriter, blobs: Iterable[StatisticsBlob]) -> None:
        write(writer, blobs)
        raise KeyboardInterrupt

    monkeypatch.setattr(StatisticsWriter, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.write_statistics(blobs(), encrypted_statistics=DRAFT)
    assert list(Path(table.location().removeprefix("file://")).rglob("*.stats")) == []


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: list[tuple[Callable[[Path], object], type[Ags1Error]]] = [
    (flipped, AuthenticationError),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), TruncatedError),
    (lambda path: path.write_bytes(b"PFA1" + path.read_bytes()[4:]), NotEncryptedError),
]


@pytest.mark.parametrize(("damage", "error"), DAMAGE)
def test_a_damaged_file_is_an_error(
    described: EncryptedTable, damage: Callable[[Path], object], error: type[Ags1Error]
) -> None:
    damage(stored(described))
    for more in ({}, {"allow_plaintext": True}):
        with pytest.raises(error):
            described.read_statistics(**more)
    assert not verify_table(described).ok


CHANGES: list[tuple[Callable[[dict[str, Any]], Any], type[Ags1Error], str]] = [
    (
        lambda e: e["blob-metadata"][0]["properties"].update(ndv="1"),
        MetadataIntegrityError,
        "blobs",
    ),
    (lambda e: e["blob-metadata"].pop(), MetadataIntegrityError, "blobs"),
    (lambda e: e.update({"file-size-in-bytes": 17}), MetadataIntegrityError, "length"),
    (lambda e: e.update({"key-id": "no such"}), KeyMetadataError, "no such"),
    (lambda e: e.update({"key-metadata": "AA=="}), MetadataIntegrityError, "plaintext"),
]


@pytest.mark.parametrize(("change", "error", "message"), CHANGES)
def test_changed_metadata_is_an_error(
    described: EncryptedTable,
    change: Callable[[dict[str, Any]], Any],
    error: type[Ags1Error],
    message: str,
) -> None:
    def of_statistics(metadata: dict[str, Any]) -> None:
        change(metadata["statistics"][0])

    changed = rewritten(described, of_statistics)
    with pytest.raises(error, match=message):
        changed.read_statistics()
    assert not verify_table(changed).ok


def test_the_key_of_a_snapshot_opens_no_statistics(described: EncryptedTable) -> None:
    def exchange(metadata: dict[str, Any]) -> None:
        snapshot, entry = metadata["snapshots"][0], metadata["statistics"][0]
        path = Path(snapshot["manifest-list"].removeprefix("file://"))
        entry["key-id"] = snapshot["key-id"]
        entry["statistics-path"] = snapshot["manifest-list"]
        entry["file-size-in-bytes"] = path.stat().st_size

    with pytest.raises(MetadataIntegrityError, match="not a Puffin file"):
        rewritten(described, exchange).read_statistics()


def test_a_writer_that_drops_the_key_id_leaves_an_intact_table(described: EncryptedTable) -> None:
    # As Java up to 1.12 does with its next commit.
    def drop(metadata: dict[str, Any]) -> None:
        del metadata["statistics"][0]["key-id"]

    left = rewritten(described, drop)
    for more, error in (({}, NotEncryptedError), ({"allow_plaintext": True}, Ags1Error)):
        with pytest.raises(error):
            left.read_statistics(**more)
    report = verify_table(left)
    assert report.ok
    assert report.finding_counts["unauthenticated-bytes"] == 1
    assert report.finding_counts["orphan-key"] == 1
    assert len(left.prune_keys()) == 1
    assert left.scan().count() == 3
    left.write_statistics(blobs(), encrypted_statistics=DRAFT)
    assert payloads(left.read_statistics()) == payloads(java_statistics())


def test_every_change_of_keys_keeps_the_statistics(described: EncryptedTable) -> None:
    expected = payloads(java_statistics())
    assert described.prune_keys() == []
    described.rotate_keys()
    assert payloads(described.read_statistics()) == expected
    described.rewrap_keys("keyB")
    assert payloads(described.read_statistics()) == expected
    described.rekey()
    first, last = described.snapshots()
    assert payloads(described.read_statistics(first.snapshot_id)) == expected
    with pytest.raises(ValueError, match="no statistics"):
        described.read_statistics(last.snapshot_id)
    described.prune_keys()
    again = described.refresh()
    assert payloads(again.read_statistics(first.snapshot_id)) == expected
    assert verify_table(again).ok
    path = stored(again)
    expired = again.expire_snapshots(snapshot_ids=[first.snapshot_id])
    assert expired.files.statistics == (f"file://{path}",)
    assert not path.exists()
    assert len(again.prune_keys()) == 2  # of the snapshot and of its statistics
    assert verify_table(again).ok


def test_statistics_of_a_snapshot_that_others_expire(
    table: EncryptedTable, catalog: EncryptedCatalog
) -> None:
    first = table.snapshots()[0].snapshot_id
    table.append(pa.table({"id": [4], "p": ["d"]}))
    other = catalog.load_table("db.t")
    assert isinstance(other, EncryptedTable)
    other.expire_snapshots(snapshot_ids=[first])
    with pytest.raises(Exception, match="expired by another writer"):
        table.write_statistics(blobs(), first, encrypted_statistics=DRAFT)
    assert not list(Path(table.location().removeprefix("file://")).rglob("*.stats"))


def test_two_writers_of_keys_meet(table: EncryptedTable, catalog: EncryptedCatalog) -> None:
    other = catalog.load_table("db.t")
    assert isinstance(other, EncryptedTable)
    other.rotate_keys()
    table.write_statistics(blobs(), encrypted_statistics=DRAFT)
    assert len(table.files.keys.key_encryption_keys) == 1
    assert payloads(table.read_statistics()) == payloads(java_statistics())


def test_a_key_that_the_table_does_not_have_is_not_named(table: EncryptedTable) -> None:
    update = {"action": "set-statistics", "statistics": json.loads(OF_JAVA)}
    with pytest.raises(ValueError, match="some-key-id"):
        apply_updates(table.version.json, [update], now_ms=1)


def test_a_catalog_that_drops_the_key_id_is_refused(tmp_path: Path) -> None:
    with Rest(tmp_path) as server:
        commit = server.commit

        def dropping(name: str, body: dict[str, Any]) -> Any:
            # As Java's server does, which does not know the field.
            for update in body["updates"]:
                update.get("statistics", {}).pop("key-id", None)
            return commit(name, body)

        server.commit = dropping  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            uri = f"http://127.0.0.1:{server.server_address[1]}"
            with load_catalog("rest", type="rest", uri=uri, **KMS_PROPERTIES) as catalog:
                properties = {"format-version": "3", "encryption.key-id": "keyA"}
                table = catalog.create_table("db.t", SCHEMA, properties=properties)
                assert isinstance(table, EncryptedTable)
                table.append(pa.table({"id": [1], "p": ["a"]}))
                with pytest.raises(NotImplementedError, match="removed again"):
                    table.write_statistics(blobs(), encrypted_statistics=DRAFT)
                assert not table.metadata.statistics
                assert table.scan().count() == 1
        finally:
            server.shutdown()
