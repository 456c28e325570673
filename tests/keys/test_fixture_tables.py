"""Tables that released Java wrote: every key from the master key down to the data files opens.

``tables/<name>/metadata/`` is the table's folder of that name as Java left it, and
``tables/read_by_spark/<name>/files.json`` what Spark's ``files`` metadata table said of it.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from manifests import (
    CONTENT,
    DATA_FILE,
    DELETED,
    FILE_FORMAT,
    FILE_PATH,
    FILE_SIZE,
    KEY_METADATA,
    MANIFEST_KEY_METADATA,
    MANIFEST_LENGTH,
    MANIFEST_PATH,
    RECORD_COUNT,
    SPLIT_OFFSETS,
    STATUS,
    entries,
    records,
)

from ags1 import Ags1Error, AuthenticationError, KeyMetadata, KeyMetadataError, KmsUnwrapError
from ags1.keys.manager import EncryptionManager
from ags1.kms import KmsClient, from_properties

TABLES = Path(__file__).parents[1] / "tables"
NAMES = sorted(folder.parent.name for folder in TABLES.glob("*/metadata"))
WITH_SNAPSHOTS = [name for name in NAMES if name != "empty"]

MASTER_KEYS = {"keyA": b"0123456789012345", "keyB": b"1123456789012345"}


@pytest.fixture
def kms() -> KmsClient:
    """Our counterpart of the KMS that the tables were written with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return from_properties(
            {"encryption.kms-type": "memory"}
            | {f"encryption.kms.key.{name}": key.hex() for name, key in MASTER_KEYS.items()}
        )


def metadata_files(name: str) -> list[Path]:
    """A table's metadata files, the current one last."""
    return sorted((TABLES / name / "metadata").glob("*.metadata.json"))


def stored(location: str) -> Path:
    """Where a file of a table's metadata folder lies here. Java's locations are absolute."""
    table, folder, name = location.rsplit("/", 3)[1:]
    return TABLES / table / folder / name


def read(location: str) -> bytes:
    return stored(location).read_bytes()


def manager_of(metadata: dict[str, Any], kms: KmsClient) -> EncryptionManager:
    return EncryptionManager.from_metadata(metadata, kms, table_key_id="keyA")


def test_the_tables_are_here() -> None:
    assert NAMES == ["avro_part", "empty", "mor_dv", "parquet_plain", "stats"]


@pytest.mark.parametrize(
    "path", [p for name in NAMES for p in metadata_files(name)], ids=lambda p: p.name[:14]
)
def test_every_snapshot_of_every_version_opens(path: Path, kms: KmsClient) -> None:
    metadata = json.loads(path.read_bytes())
    manager = manager_of(metadata, kms)
    for snapshot in metadata.get("snapshots", []):
        sealed = read(snapshot["manifest-list"])
        km = manager.manifest_list_key(snapshot["key-id"])
        assert km.file_length == len(sealed)
        live = []
        for manifest, entry in entries(sealed, km, read):
            manifest_km = KeyMetadata.from_bytes(manifest[MANIFEST_KEY_METADATA])
            assert manifest_km.file_length == manifest[MANIFEST_LENGTH]
            assert stored(manifest[MANIFEST_PATH]).stat().st_size == manifest[MANIFEST_LENGTH]
            file = entry[DATA_FILE]
            assert KeyMetadata.from_bytes(file[KEY_METADATA]).file_length == file[FILE_SIZE]
            if entry[STATUS] != DELETED:
                live.append(file)
        summary = snapshot["summary"]
        data = [file for file in live if file[CONTENT] == 0]
        assert len(data) == int(summary["total-data-files"])
        assert len(live) - len(data) == int(summary["total-delete-files"])
        assert sum(file[RECORD_COUNT] for file in data) == int(summary["total-records"])


@pytest.mark.parametrize("name", NAMES)
def test_the_current_snapshot_has_the_files_and_keys_that_spark_saw(
    name: str, kms: KmsClient
) -> None:
    metadata = json.loads(metadata_files(name)[-1].read_bytes())
    manager = manager_of(metadata, kms)
    found = [
        {
            "content": file[CONTENT],
            "file_path": file[FILE_PATH],
            "file_format": file[FILE_FORMAT],
            "file_size_in_bytes": file[FILE_SIZE],
            "split_offsets": file[SPLIT_OFFSETS],
            "km": file[KEY_METADATA].hex().upper(),
        }
        for snapshot in metadata.get("snapshots", [])
        if snapshot["snapshot-id"] == metadata["current-snapshot-id"]
        for _, entry in entries(
            read(snapshot["manifest-list"]), manager.manifest_list_key(snapshot["key-id"]), read
        )
        if entry[STATUS] != DELETED
        for file in [entry[DATA_FILE]]
    ]
    seen = json.loads((TABLES / "read_by_spark" / name / "files.json").read_bytes())
    assert sorted(map(repr, found)) == sorted(map(repr, seen))


@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_no_two_files_have_one_key(name: str, kms: KmsClient) -> None:
    metadata = json.loads(metadata_files(name)[-1].read_bytes())
    manager = manager_of(metadata, kms)
    keys: dict[str, KeyMetadata] = {}
    for snapshot in metadata["snapshots"]:
        location = snapshot["manifest-list"]
        keys[location] = manager.manifest_list_key(snapshot["key-id"])
        for manifest, entry in entries(read(location), keys[location], read):
            file = entry[DATA_FILE]
            keys[manifest[MANIFEST_PATH]] = KeyMetadata.from_bytes(manifest[MANIFEST_KEY_METADATA])
            keys[file[FILE_PATH]] = KeyMetadata.from_bytes(file[KEY_METADATA])
    assert {len(km.encryption_key) for km in keys.values()} == {16}
    assert len({km.encryption_key for km in keys.values()}) == len(keys)
    encrypted = {p.name for p in (TABLES / name / "metadata").glob("*.avro")}
    assert encrypted <= {Path(location).name for location in keys}


def test_a_table_without_snapshots_has_no_keys(kms: KmsClient) -> None:
    [path] = metadata_files("empty")
    assert manager_of(json.loads(path.read_bytes()), kms).encryption_keys == ()


@pytest.mark.parametrize("name", ["parquet_plain", "mor_dv"])
def test_one_manifest_list_does_not_open_with_the_key_of_another(name: str, kms: KmsClient) -> None:
    metadata = json.loads(metadata_files(name)[-1].read_bytes())
    manager = manager_of(metadata, kms)
    for here in metadata["snapshots"]:
        for there in metadata["snapshots"]:
            if here is not there:
                with pytest.raises(Ags1Error):
                    records(read(here["manifest-list"]), manager.manifest_list_key(there["key-id"]))


@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_nothing_opens_under_another_master_key(name: str, kms: KmsClient) -> None:
    metadata = json.loads(metadata_files(name)[-1].read_bytes())
    with pytest.raises(KeyMetadataError):
        EncryptionManager.from_metadata(metadata, kms, table_key_id="keyB")
    metadata["properties"]["encryption.key-id"] = "keyB"
    manager = EncryptionManager.from_metadata(metadata, kms, table_key_id="keyB")
    for snapshot in metadata["snapshots"]:
        with pytest.raises(KmsUnwrapError):
            manager.manifest_list_key(snapshot["key-id"])


@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_a_changed_timestamp_is_noticed(name: str, kms: KmsClient) -> None:
    metadata = json.loads(metadata_files(name)[-1].read_bytes())
    for entry in metadata["encryption-keys"]:
        if "properties" in entry:
            entry["properties"]["KEY_TIMESTAMP"] = "1"
    manager = manager_of(metadata, kms)
    for snapshot in metadata["snapshots"]:
        with pytest.raises(AuthenticationError):
            manager.manifest_list_key(snapshot["key-id"])
