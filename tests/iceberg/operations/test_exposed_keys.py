"""Plaintext manifests in encrypted tables: found, counted, and mended. One table is as Iceberg
1.11 left it, the others are made alike."""

from __future__ import annotations

import io
import json
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exposing import rewrite_manifests_as_java_1_11
from iceberg_tables import CORPUS_TABLES, by_id, open_fixture
from kept_tables import KeptTables
from pyarrow.parquet.encryption import create_decryption_properties
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType, NestedField, StringType

import ags1
from ags1 import Ags1Error, KeyMetadata, MetadataIntegrityError, NotEncryptedError
from ags1.iceberg import EncryptedCatalog, EncryptedTable, Rekeyed, verify_table
from ags1.iceberg.commit.metadata_file import print_metadata
from ags1.iceberg.commit.updates import apply_updates
from ags1.iceberg.operations.rekey import Choice, Rekeying
from ags1.iceberg.operations.rewrite import Rewriter
from ags1.iceberg.read.records import ContentFile, read_entries
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.storage.table_files import TableFiles
from ags1.iceberg.write.snapshot import SnapshotProducer
from ags1.keys.manager import now_ms

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "v", StringType(), required=False),
)
ENCRYPTED = {"encryption.key-id": "keyA", "commit.manifest-merge.enabled": "false"}


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{i}" for i in ids]})


def filled(catalog: EncryptedCatalog, **more: str) -> EncryptedTable:
    """A table of three data files, one of them with a deletion vector, in a manifest each."""
    table = catalog.create_table("db.t", SCHEMA, properties=ENCRYPTED | more)
    assert isinstance(table, EncryptedTable)
    for first in (10, 20, 30):
        table.append(rows(*range(first, first + 5)))
    table.delete("id = 21")
    return table


IDS = sorted({*range(10, 15), *range(20, 25), *range(30, 35)} - {21})


def ids(table: EncryptedTable) -> list[int]:
    found: list[int] = sorted(table.scan().to_arrow()["id"].to_pylist())
    return found


def live(table: EncryptedTable) -> dict[str, ContentFile]:
    """The files of the current snapshot, by path."""
    view = table.view().exposed()
    return {
        entry.file.file_path: entry.file
        for manifest in view.manifests
        for entry in read_entries(manifest, view.files)
    }


def plaintext(table: EncryptedTable) -> list[Path]:
    folder = Path(table.location().removeprefix("file://"))
    return [p for p in folder.rglob("*.avro") if p.read_bytes()[:4] == b"Obj\x01"]


def errors(table: EncryptedTable) -> dict[str, int]:
    result = verify_table(table)
    return {f.kind: result.finding_counts[f.kind] for f in result.findings if f.severity == "error"}


def opens(file: ContentFile, km: KeyMetadata) -> bool:
    """Whether a key opens a file, whatever its entry says."""
    path = file.file_path.removeprefix("file://")
    try:
        if file.file_format == "PARQUET":
            keys = create_decryption_properties(km.encryption_key, aad_prefix=km.aad_prefix)
            pq.ParquetFile(path, decryption_properties=keys).read()
        else:
            ags1.decrypt(Path(path).read_bytes(), km.with_file_length(file.file_size_in_bytes))
    except (Ags1Error, OSError):
        return False
    return True


def key(file: ContentFile) -> KeyMetadata:
    assert file.key is not None
    return file.key


def test_exposed_keys_are_found_and_counted(kept: KeptTables) -> None:
    table = kept(filled)
    assert errors(table) == {}
    rewrite_manifests_as_java_1_11(table)
    # Three data files and a deletion vector, with their keys for everybody to read.
    assert len(plaintext(table)) == 4
    with pytest.raises(NotEncryptedError, match=r"rekey\(exposed=True\).*before 1\.12"):
        ids(table)
    result = verify_table(table)
    assert (result.exposed_files, result.exposed_current_files) == (4, 4)
    assert errors(table) == {"exposed-keys": 4}
    current = table.metadata.current_snapshot_id
    for finding in result.findings:
        if finding.kind == "exposed-keys":
            assert finding.snapshot_ids == (current,)
            assert "the keys of 1 encrypted files" in finding.message
    # All are read all the same.
    assert (result.data_files, result.deletion_vectors) == (3, 1)
    told = repr(result) + json.dumps(result.to_dict())
    for file in live(table).values():
        assert key(file).encryption_key.hex() not in told
        assert repr(key(file).encryption_key)[2:-1] not in told


def test_keys_that_an_older_snapshot_exposes_are_counted(kept: KeptTables) -> None:
    """As after a rewrite by 1.12: the manifests are encrypted again, the keys are out."""
    table = kept(filled)
    before = table.metadata.current_snapshot_id
    assert before is not None
    rewrite_manifests_as_java_1_11(table)
    table.manage_snapshots().rollback_to_snapshot(before).commit()
    table.append(rows(1))
    result = verify_table(table)
    assert (result.exposed_files, result.exposed_current_files) == (4, 4)
    assert ids(table) == [1, *IDS]
    done = table.rekey(exposed=True)
    assert (done.files, done.manifests) == (3, 0)
    result = verify_table(table)
    assert (result.exposed_files, result.exposed_current_files) == (4, 0)
    assert ids(table) == [1, *IDS]


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_exposed_files_get_fresh_keys_and_manifests_are_encrypted(
    kept: KeptTables, file_format: str
) -> None:
    table = kept(filled, **{"write.format.default": file_format})
    before = live(table)
    lineage = sorted((f.first_row_id, f.record_count) for f in before.values() if not f.content)
    rewrite_manifests_as_java_1_11(table)
    old = live(table)
    assert {path: key(f) for path, f in old.items()} == {p: key(f) for p, f in before.items()}

    dry = table.rekey(exposed=True, dry_run=True)
    assert (dry.files, dry.manifests) == (3, 4)
    assert live(table) == old
    assert table.rekey(exposed=True) == dry

    new = live(table)
    assert ids(table) == IDS
    assert (
        sorted((f.first_row_id, f.record_count) for f in new.values() if not f.content) == lineage
    )
    assert len(new) == 4
    assert not new.keys() & old.keys()
    for file in new.values():
        assert opens(file, key(file))
        assert not any(opens(file, key(exposed)) for exposed in old.values())
    assert not any(manifest.is_plaintext for manifest in table.view().manifests)
    assert table.metadata.snapshots[-1].summary.operation == Operation.REPLACE
    result = verify_table(table)
    assert (result.exposed_files, result.exposed_current_files) == (4, 0)

    # The plaintext manifests and the files under the old keys go with their snapshots.
    expired = table.expire_snapshots(retain_last=1, older_than=_now())
    assert expired.left_behind == ()
    assert plaintext(table) == []
    assert not any(Path(path.removeprefix("file://")).exists() for path in old)
    assert verify_table(table).ok
    assert verify_table(table).exposed_files == 0
    assert ids(table) == IDS
    assert table.rekey(exposed=True) == Rekeyed(0, 0)


def test_files_that_are_not_exposed_stay_where_they_are(kept: KeptTables) -> None:
    table = kept(filled)
    first = min(manifest.sequence_number or 0 for manifest in table.view().manifests)
    rewrite_manifests_as_java_1_11(table, lambda record: record.sequence_number == first)
    assert len(plaintext(table)) == 1
    old = live(table)
    result = verify_table(table)
    assert (result.exposed_files, result.exposed_current_files) == (1, 1)
    done = table.rekey(exposed=True)
    assert (done.files, done.manifests) == (1, 1)
    new = live(table)
    [gone] = old.keys() - new.keys()
    assert old[gone].first_row_id == 0
    assert len(new.keys() - old.keys()) == 1
    for path in old.keys() & new.keys():
        assert new[path] == old[path]
    assert ids(table) == IDS
    # And nothing is left to do.
    assert table.rekey(exposed=True).files == 0
    assert len(table.snapshots()) == 6


def test_a_plaintext_manifest_of_plain_files_is_encrypted_alone(
    kept: KeptTables, tmp_path: Path
) -> None:
    """As Spark's add_files leaves it: no key is exposed, and no file is to be rewritten."""
    table = kept(filled)
    pq.write_table(rows(1), tmp_path / "plain.parquet")
    table.add_files([str(tmp_path / "plain.parquet")], allow_plaintext=True)
    newest = max(manifest.sequence_number or 0 for manifest in table.view().manifests)
    rewrite_manifests_as_java_1_11(table, lambda record: record.sequence_number == newest)
    old = live(table)
    assert errors(table) == {"manifest-without-key": 1, "plain-data-file": 1}
    assert verify_table(table).exposed_files == 0
    done = table.rekey(exposed=True)
    assert (done.files, done.size, done.manifests) == (0, 0, 1)
    assert live(table) == old
    assert ids(table) == [1, *IDS]
    table.expire_snapshots(retain_last=1, older_than=_now())
    assert errors(table) == {"plain-data-file": 1}


def test_a_branch_of_its_own_is_mended(kept: KeptTables) -> None:
    table = kept(filled)
    table.append(rows(1), branch="other")
    rewrite_manifests_as_java_1_11(table)
    main = table.metadata.current_snapshot_id
    assert table.rekey(exposed=True, branch="other").files == 3
    assert table.metadata.current_snapshot_id == main
    scan = table.scan().use_ref("other")
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [1, *IDS]
    assert table.rekey(exposed=True).files == 3
    assert ids(table) == IDS


@pytest.mark.parametrize("damage", ["another key", "fewer entries", "longer", "gone", "encrypted"])
def test_a_plaintext_manifest_that_was_changed_is_refused(
    kept: KeptTables, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = kept(filled)
    rewrite_manifests_as_java_1_11(table)
    before = table.metadata.current_snapshot_id
    for path in plaintext(table):
        data = path.read_bytes()
        if damage == "longer":
            path.write_bytes(data + b"\0")
        elif damage == "encrypted":
            path.write_bytes(ags1.encrypt(data).data)
        elif damage == "gone":
            path.unlink()
        else:
            path.write_bytes(_forged(data, drop=damage == "fewer entries"))
            _trust_lengths(monkeypatch)
    with pytest.raises((Ags1Error, FileNotFoundError)) as caught:
        table.rekey(exposed=True)
    if damage in ("another key", "fewer entries"):
        assert caught.type is MetadataIntegrityError
        assert "was changed" in str(caught.value)
    assert table.refresh().metadata.current_snapshot_id == before
    assert not verify_table(table).ok


def _forged(data: bytes, *, drop: bool) -> bytes:
    """Return a manifest without its last entry, or with other keys of its files."""
    reader = fastavro.reader(io.BytesIO(data))
    entries: list[Any] = list(reader)
    for entry in entries:
        km = KeyMetadata.generate(16)
        length = entry["data_file"]["file_size_in_bytes"]
        entry["data_file"]["key_metadata"] = km.with_file_length(length).to_bytes()
    out = io.BytesIO()
    header = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
    schema = json.loads(reader.metadata["avro.schema"])
    fastavro.writer(out, schema, entries[:-1] if drop else entries, metadata=header)
    return out.getvalue()


def _trust_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have plaintext manifests be as long as they should be: a forger can pad them."""
    read = TableFiles.read_exposed

    def believing(files: TableFiles, location: str, _: int) -> bytes:
        return read(files, location, Path(location.removeprefix("file://")).stat().st_size)

    monkeypatch.setattr(TableFiles, "read_exposed", believing)


def test_nothing_else_reads_plaintext_manifests(kept: KeptTables) -> None:
    table = kept(filled)
    rewrite_manifests_as_java_1_11(table)
    for work in (
        lambda: table.append(rows(1)),
        lambda: table.delete("id = 10"),
        lambda: table.rekey(),
        lambda: table.scan().count(),
        lambda: table.inspect.files(),
    ):
        with pytest.raises(NotEncryptedError, match="no key for this manifest"):
            work()


def test_the_table_that_java_1_11_left(catalog: EncryptedCatalog, tmp_path: Path) -> None:
    written = CORPUS_TABLES / "java_plain_manifest"
    leave_out = shutil.ignore_patterns("expected.jsonl")
    shutil.copytree(written, tmp_path / "exposed", ignore=leave_out)
    moved = open_fixture("exposed", tmp_path)
    result = verify_table(moved)
    assert (result.data_files, result.exposed_files, result.exposed_current_files) == (3, 1, 1)
    assert errors(moved) == {"exposed-keys": 1}
    with pytest.raises(NotEncryptedError, match="no key for this manifest"):
        moved.scan().to_arrow()
    view = moved.view()
    output = TableOutput(moved.files.inner, moved.files.location_map)
    rekeying = Rekeying(Rewriter(output), Choice(exposed=True))
    updates = SnapshotProducer(output).produce(view, rekeying.change(view))
    metadata = apply_updates(view.metadata, updates, now_ms=now_ms())
    path = tmp_path / "exposed" / "metadata" / "00005-new.metadata.json"
    path.write_bytes(print_metadata(metadata))
    mended = open_fixture("exposed", tmp_path)
    lines = (written / "expected.jsonl").read_text().splitlines()
    assert by_id(mended.scan().to_arrow().to_pylist()) == [json.loads(line) for line in lines]
    result = verify_table(mended)
    assert (result.exposed_files, result.exposed_current_files) == (1, 0)
    old, new = live(moved), live(mended)
    assert not old.keys() & new.keys()
    assert {key(f).encryption_key for f in old.values()}.isdisjoint(
        key(f).encryption_key for f in new.values()
    )


def _now() -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=1)
