"""Whose word is taken: pinned key ids and hashes, downgrades, and damage at every level.

Each attack is on a copy of a table that Java wrote, or on one that ``table_maker`` makes; each has
an error of its own.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import (
    JAVA_LOCATION,
    TABLES,
    copied,
    memory_kms,
    metadata_file,
    open_fixture,
)
from pyiceberg.io.pyarrow import PyArrowFileIO
from table_maker import TableMaker, stored

import ags1
from ags1 import (
    Ags1Error,
    AuthenticationError,
    FormatError,
    KeyMetadataError,
    KmsConfigurationError,
    KmsKeyNotFoundError,
    KmsUnwrapError,
    MetadataIntegrityError,
    NotEncryptedError,
    TruncatedError,
)
from ags1.iceberg import open_table
from ags1.iceberg.read import metadata as metadata_module
from ags1.iceberg.read.metadata import read_metadata
from ags1.iceberg.storage.trust import Trust
from ags1.keys import EncryptionManager, Keychain, encryption_keys_to_dicts
from ags1.kms import from_properties

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

COLUMNS = [{"id": 1, "name": "id", "type": "long"}]


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in numbers]


def read_all(folder: Path, name: str, **more: Any) -> int:
    """Read the current snapshot of a fixture's copy."""
    return open_fixture(name, folder, **more).scan().to_arrow().num_rows


def rewrite_metadata(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    path = metadata_file(name, folder)
    metadata = json.loads(path.read_bytes())
    change(metadata)
    path.write_text(json.dumps(metadata))


# -- what is pinned


def test_the_expected_key_id() -> None:
    assert open_fixture("stats", expected_key_id="keyA").key_id == "keyA"
    with pytest.raises(MetadataIntegrityError, match="'keyB' was expected"):
        open_fixture("stats", expected_key_id="keyB")


def test_the_expected_hash_of_the_metadata(tmp_path: Path) -> None:
    digest = hashlib.sha256(metadata_file("stats").read_bytes()).hexdigest()
    for expected in (digest, digest.upper()):
        assert open_fixture("stats", expected_metadata_sha256=expected).scan().count() == 1000
    copied("stats", tmp_path)
    path = metadata_file("stats", tmp_path)
    path.write_bytes(path.read_bytes() + b"\n")
    assert read_all(tmp_path, "stats") == 1000
    with pytest.raises(MetadataIntegrityError, match="SHA-256"):
        open_fixture("stats", tmp_path, expected_metadata_sha256=digest)


def test_a_refresh_does_not_accept_another_key_or_none(tmp_path: Path) -> None:
    copied("stats", tmp_path)
    table = open_fixture("stats", tmp_path)
    rewrite_metadata(
        tmp_path, "stats", lambda m: m["properties"].update({"encryption.key-id": "keyB"})
    )
    with pytest.raises(MetadataIntegrityError, match="'keyA' was expected"):
        table.refresh()
    rewrite_metadata(tmp_path, "stats", lambda m: m["properties"].pop("encryption.key-id"))
    with pytest.raises(NotEncryptedError):
        table.refresh()


def test_compressed_metadata(tmp_path: Path) -> None:
    data = gzip.compress(metadata_file("stats").read_bytes())
    path = tmp_path / "1.gz.metadata.json"
    path.write_bytes(data)
    places = {JAVA_LOCATION: str(TABLES)}
    digest = hashlib.sha256(data).hexdigest()
    table = open_table(str(path), memory_kms(), places, expected_metadata_sha256=digest)
    assert table.scan().count() == 1000
    path.write_bytes(data[:-20])
    with pytest.raises(MetadataIntegrityError, match="not JSON"):
        open_table(str(path), memory_kms(), places)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "null",
        "\xff",
        "[" * 100_000,
        '{"properties": 3}',
        '{"snapshots": [1]}',
        '{"snapshots": {"a": 1}}',
        '{"properties": {"encryption.key-id": "keyA"}, "format-version": 3}',
        '{"properties": {"encryption.key-id": "keyA"}, "format-version": 3, "snapshots": [{}]}',
    ],
    ids=lambda text: text[:20],
)
def test_metadata_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "1.metadata.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(MetadataIntegrityError):
        open_table(str(path), memory_kms())


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("properties", "{}"),
        ("encryption.key-id", '"keyB"'),
        ("encrypted-by-id", '"keyB"'),
        ("snapshot-id", "1"),
        ("KEY_TIMESTAMP", '"1"'),
    ],
)
def test_metadata_that_has_a_name_twice(tmp_path: Path, name: str, first: str) -> None:
    """Of two values, programs differ in which one they read."""
    text = metadata_file("stats").read_text()
    assert f'"{name}":' in text
    path = tmp_path / "1.metadata.json"
    path.write_text(text.replace(f'"{name}":', f'"{name}":{first},"{name}":', 1))
    with pytest.raises(MetadataIntegrityError, match=f"has the name '{name}' twice"):
        open_table(str(path), memory_kms(), {JAVA_LOCATION: str(TABLES)})


# -- Hive's hash, which Java computed when it wrote the file


def _java_hash(name: str) -> str:
    # Java's own files are what Java prints of them.
    return base64.b64encode(hashlib.sha256(metadata_file(name).read_bytes()).digest()).decode()


@pytest.mark.parametrize("name", ["stats", "mor_dv", "parquet_plain", "avro_part", "empty"])
def test_java_s_hash_of_what_java_wrote(name: str, tmp_path: Path) -> None:
    path = metadata_file(name)
    io = PyArrowFileIO()
    trust = Trust(java_hash=_java_hash(name))
    metadata = json.loads(path.read_bytes())
    assert read_metadata(io, str(path), trust) == metadata
    # Laid out otherwise, or with a field that Java does not know: it prints the same of it.
    others = [
        json.dumps(metadata, indent=2),
        json.dumps(dict(sorted(metadata.items()))),
        json.dumps({"x-ours": 1} | metadata),
    ]
    for text in others:
        other = tmp_path / "x.metadata.json"
        other.write_text(text)
        assert read_metadata(io, str(other), trust)


def test_another_hash_than_hive_s(tmp_path: Path) -> None:
    copied("stats", tmp_path)
    trust = Trust(java_hash=_java_hash("stats"))
    rewrite_metadata(tmp_path, "stats", lambda m: m.update({"last-updated-ms": 1}))
    with pytest.raises(MetadataIntegrityError, match="metadata_hash"):
        read_metadata(PyArrowFileIO(), str(metadata_file("stats", tmp_path)), trust)


# -- metadata.json


def test_a_dropped_table_key_id(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    rewrite_metadata(tmp_path, "parquet_plain", lambda m: m["properties"].pop("encryption.key-id"))
    with pytest.raises(NotEncryptedError, match="was expected"):
        read_all(tmp_path, "parquet_plain", expected_key_id="keyA")
    # Even to somebody who knows nothing, the keys that are left tell.
    with pytest.raises(NotEncryptedError, match="somebody removed it"):
        read_all(tmp_path, "parquet_plain")


def test_a_stripped_table(tmp_path: Path) -> None:
    def strip(metadata: dict[str, Any]) -> None:
        del metadata["properties"]["encryption.key-id"], metadata["encryption-keys"]
        for snapshot in metadata["snapshots"]:
            del snapshot["key-id"]

    copied("parquet_plain", tmp_path)
    rewrite_metadata(tmp_path, "parquet_plain", strip)
    with pytest.raises(NotEncryptedError, match="was expected"):
        read_all(tmp_path, "parquet_plain", expected_key_id="keyA")
    with pytest.raises(NotEncryptedError, match="not encrypted"):
        read_all(tmp_path, "parquet_plain")
    with pytest.raises(NotEncryptedError, match="not encrypted"):
        read_all(tmp_path, "parquet_plain", kms=None, require_encrypted=True)


def test_a_dropped_snapshot_key_id(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    rewrite_metadata(tmp_path, "parquet_plain", lambda m: m["snapshots"][-1].pop("key-id"))
    with pytest.raises(NotEncryptedError, match="has no key-id"):
        read_all(tmp_path, "parquet_plain")


def test_an_unknown_snapshot_key_id(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    rewrite_metadata(
        tmp_path, "parquet_plain", lambda m: m["snapshots"][-1].update({"key-id": "x"})
    )
    with pytest.raises(KeyMetadataError, match="no 'x'"):
        read_all(tmp_path, "parquet_plain")


def test_a_changed_kek_timestamp(tmp_path: Path) -> None:
    def change(metadata: dict[str, Any]) -> None:
        for key in metadata["encryption-keys"]:
            if properties := key.get("properties"):
                properties["KEY_TIMESTAMP"] = str(int(properties["KEY_TIMESTAMP"]) + 1)

    copied("parquet_plain", tmp_path)
    rewrite_metadata(tmp_path, "parquet_plain", change)
    with pytest.raises(AuthenticationError):
        read_all(tmp_path, "parquet_plain")


def test_a_snapshot_given_the_manifest_list_of_an_older_one(tmp_path: Path) -> None:
    def change(metadata: dict[str, Any]) -> None:
        older, *_, newest = metadata["snapshots"]
        for field in ("manifest-list", "key-id"):
            newest[field] = older[field]

    copied("parquet_plain", tmp_path)
    rewrite_metadata(tmp_path, "parquet_plain", change)
    with pytest.raises(MetadataIntegrityError, match="was written for snapshot"):
        read_all(tmp_path, "parquet_plain")


def test_format_version_2_is_not_encrypted(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    rewrite_metadata(tmp_path, "parquet_plain", lambda m: m.update({"format-version": 2}))
    with pytest.raises(MetadataIntegrityError, match="format version 2"):
        read_all(tmp_path, "parquet_plain")


# -- files


def location(folder: Path, name: str, kind: str) -> list[Path]:
    return sorted((folder / name).glob(kind))


def current_manifest_list(folder: Path, name: str) -> Path:
    metadata = json.loads(metadata_file(name, folder).read_bytes())
    current = next(
        s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"]
    )
    return folder / name / "metadata" / current["manifest-list"].rpartition("/")[2]


def test_a_cut_manifest_list(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    path = current_manifest_list(tmp_path, "parquet_plain")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TruncatedError) as caught:
        read_all(tmp_path, "parquet_plain")
    assert caught.value.file is not None
    assert caught.value.file.endswith(path.name)


def test_a_lengthened_manifest_list(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    path = current_manifest_list(tmp_path, "parquet_plain")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(FormatError):
        read_all(tmp_path, "parquet_plain")


def test_a_plain_manifest_list(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    path = current_manifest_list(tmp_path, "parquet_plain")
    path.write_bytes(b"Obj\x01" + bytes(len(path.read_bytes()) - 4))
    with pytest.raises(NotEncryptedError):
        read_all(tmp_path, "parquet_plain")


def test_another_block_size_in_the_header(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    path = current_manifest_list(tmp_path, "parquet_plain")
    data = path.read_bytes()
    path.write_bytes(data[:4] + (1 << 21).to_bytes(4, "little") + data[8:])
    with pytest.raises(FormatError, match="1 MiB"):
        read_all(tmp_path, "parquet_plain")


def test_a_manifest_of_an_older_snapshot(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    manifests = location(tmp_path, "parquet_plain", "metadata/*-m0.avro")
    same = [p for p in manifests if p.stat().st_size == manifests[0].stat().st_size]
    assert len(same) == 2, "two manifests of one length, so that only the tag tells"
    shutil.copyfile(same[0], same[1])
    with pytest.raises(AuthenticationError):
        read_all(tmp_path, "parquet_plain")


def test_a_manifest_of_another_table(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    theirs = next((TABLES / "stats/metadata").glob("*-m0.avro"))
    ours = location(tmp_path, "parquet_plain", "metadata/*-m0.avro")[0]
    size = ours.stat().st_size
    ours.write_bytes(theirs.read_bytes()[:size])
    with pytest.raises(AuthenticationError):
        read_all(tmp_path, "parquet_plain")


def test_two_data_files_swapped(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    data = location(tmp_path, "parquet_plain", "data/*.parquet")
    same = [p for p in data if p.stat().st_size == 4748]
    assert len(same) == 2
    first, second = same[0].read_bytes(), same[1].read_bytes()
    same[0].write_bytes(second)
    same[1].write_bytes(first)
    with pytest.raises(AuthenticationError) as caught:
        read_all(tmp_path, "parquet_plain")
    assert caught.value.file is not None
    assert Path(caught.value.file).name in {p.name for p in same}


# Arrow does not read what lies between the pages and the footer: the page index.
@pytest.mark.parametrize("position", [5, 40, 1000, 2500, 4700, 5200])
def test_a_changed_byte_in_a_data_file(tmp_path: Path, position: int) -> None:
    copied("parquet_plain", tmp_path)
    path = location(tmp_path, "parquet_plain", "data/*.parquet")[0]
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(AuthenticationError):
        read_all(tmp_path, "parquet_plain")


@pytest.mark.parametrize(("change", "error"), [(-1, TruncatedError), (1, FormatError)])
def test_a_data_file_of_another_length(tmp_path: Path, change: int, error: type[Ags1Error]) -> None:
    copied("parquet_plain", tmp_path)
    path = location(tmp_path, "parquet_plain", "data/*.parquet")[0]
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + bytes(change))
    with pytest.raises(error):
        read_all(tmp_path, "parquet_plain")


def test_a_data_file_replaced_by_a_plain_one(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    path = location(tmp_path, "parquet_plain", "data/*.parquet")[0]
    out = io.BytesIO()
    pq.write_table(pa.table({"id": [1]}), out)
    plain = out.getvalue()
    padding = bytes(path.stat().st_size - len(plain))
    path.write_bytes(plain[:4] + padding + plain[4:])
    with pytest.raises(NotEncryptedError):
        read_all(tmp_path, "parquet_plain")


def test_a_missing_data_file(tmp_path: Path) -> None:
    copied("parquet_plain", tmp_path)
    location(tmp_path, "parquet_plain", "data/*.parquet")[0].unlink()
    with pytest.raises(FileNotFoundError):
        read_all(tmp_path, "parquet_plain")


def test_a_cut_deletion_vector(tmp_path: Path) -> None:
    copied("mor_dv", tmp_path)
    table = open_fixture("mor_dv", tmp_path)
    used = {d.file_path for task in table.scan().plan_files() for d in task.delete_files}
    path = tmp_path / "mor_dv/data" / sorted(used)[0].rpartition("/")[2]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TruncatedError):
        table.scan().to_arrow()


def test_a_deletion_vector_of_another_time(tmp_path: Path) -> None:
    copied("mor_dv", tmp_path)
    table = open_fixture("mor_dv", tmp_path)
    used = {d.file_path for task in table.scan().plan_files() for d in task.delete_files}
    path = tmp_path / "mor_dv/data" / sorted(used)[0].rpartition("/")[2]
    size = path.stat().st_size
    other = next(p for p in location(tmp_path, "mor_dv", "data/*.puffin") if p != path)
    path.write_bytes((other.read_bytes() + bytes(size))[:size])
    with pytest.raises(AuthenticationError):
        table.scan().to_arrow()


# -- what only a writer with the keys could do


def maker(tmp_path: Path, **more: Any) -> TableMaker:
    return TableMaker(tmp_path / "t", COLUMNS, memory_kms(), **more)


def test_a_manifest_without_a_key(tmp_path: Path) -> None:
    table = maker(tmp_path)
    file = table.add_parquet(rows(1))
    table.commit(file)
    table.manifests[0]["key_metadata"] = None
    table.commit()
    with pytest.raises(NotEncryptedError, match=r"no key for this manifest.*rewrite_manifests"):
        open_table(table.write(), memory_kms()).scan().to_arrow()


def test_one_manifest_with_two_keys(tmp_path: Path) -> None:
    table = maker(tmp_path)
    table.commit(table.add_parquet(rows(1)))
    table.commit(table.add_parquet(rows(2)))
    table.manifests.append(
        dict(table.manifests[0], key_metadata=table.manifests[1]["key_metadata"])
    )
    table.commit()
    with pytest.raises(MetadataIntegrityError, match="twice"):
        open_table(table.write(), memory_kms()).scan().to_arrow()


def test_lengths_that_differ_between_entry_and_key(tmp_path: Path) -> None:
    table = maker(tmp_path)
    file = table.add_parquet(rows(1))
    table.commit(dict(file, file_size_in_bytes=file["file_size_in_bytes"] + 1))
    with pytest.raises(MetadataIntegrityError, match="length"):
        open_table(table.write(), memory_kms()).scan().to_arrow()


def test_a_plain_deletion_vector_or_delete_file(tmp_path: Path) -> None:
    table = maker(tmp_path)
    file = table.add_parquet(rows(1, 2, 3))
    table.commit(file)
    before = list(table.manifests)
    path = file["file_path"]
    for deletes in (
        table.add_deletion_vectors({path: [0]}, encrypted=False),
        [table.add_position_deletes([(path, 0)], encrypted=False)],
        [table.add_equality_deletes(rows(1), [1], encrypted=False)],
    ):
        table.manifests = list(before)
        table.commit(*deletes)
        with pytest.raises(NotEncryptedError, match="delete file"):
            open_table(table.write(), memory_kms()).scan().to_arrow()


def test_plain_data_files_are_read_counted_and_refused_on_demand(tmp_path: Path) -> None:
    table = maker(tmp_path)
    table.commit(table.add_parquet(rows(1)), table.add_parquet(rows(2), encrypted=False))
    path = table.write()
    scan = open_table(path, memory_kms()).scan()
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [1, 2]
    assert scan.plain_files() == 1
    strict = open_table(path, memory_kms(), require_encrypted=True)
    with pytest.raises(NotEncryptedError, match="not encrypted"):
        strict.scan().to_arrow()
    assert strict.scan("id = 1").to_arrow()["id"].to_pylist() == [1], "the plain file is pruned"


def test_orc_is_refused(tmp_path: Path) -> None:
    table = maker(tmp_path)
    table.commit(dict(table.add_parquet(rows(1)), file_format="ORC"))
    with pytest.raises(NotImplementedError, match="ORC"):
        open_table(table.write(), memory_kms()).scan().to_arrow()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"referenced-data-file": "x"}, "says it is of x"),
        ({"cardinality": "3"}, "it has 2 positions"),
    ],
)
def test_a_vector_that_says_something_else_than_its_entry(
    tmp_path: Path, wrong: dict[str, str], message: str
) -> None:
    table = maker(tmp_path)
    file = table.add_parquet(rows(1, 2, 3))
    vectors = table.add_deletion_vectors({file["file_path"]: [0, 1]}, **wrong)
    table.commit(file)
    table.commit(*vectors)
    with pytest.raises(MetadataIntegrityError, match=message):
        open_table(table.write(), memory_kms()).scan().to_arrow()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"content_offset": 5}, "has none at byte 5"),
        ({"content_offset": None}, "where it begins"),
        ({"record_count": 7}, "positions"),
        ({"referenced_data_file": None}, "name its data file"),
    ],
)
def test_an_entry_that_says_something_else_than_its_vector(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    table = maker(tmp_path)
    file = table.add_parquet(rows(1, 2, 3))
    [vector] = table.add_deletion_vectors({file["file_path"]: [0, 1]})
    table.commit(file)
    table.commit(vector | change)
    with pytest.raises(MetadataIntegrityError, match=message):
        open_table(table.write(), memory_kms()).scan().to_arrow()


def test_two_vectors_of_one_file(tmp_path: Path) -> None:
    table = maker(tmp_path)
    file = table.add_parquet(rows(1, 2, 3))
    table.commit(file)
    table.commit(*table.add_deletion_vectors({file["file_path"]: [0]}))
    table.commit(*table.add_deletion_vectors({file["file_path"]: [1]}))
    with pytest.raises(MetadataIntegrityError, match="more than one deletion vector"):
        open_table(table.write(), memory_kms()).scan().to_arrow()


def test_a_vector_with_a_wrong_checksum(tmp_path: Path) -> None:
    import ags1
    from ags1 import KeyMetadata

    table = maker(tmp_path)
    file = table.add_parquet(rows(1, 2, 3))
    [vector] = table.add_deletion_vectors({file["file_path"]: [0, 1]})
    km = KeyMetadata.from_bytes(vector["key_metadata"])
    path = stored(vector["file_path"])
    plain = bytearray(ags1.decrypt(path.read_bytes(), km))
    plain[vector["content_offset"] + vector["content_size_in_bytes"] - 1] ^= 1
    # The test may use a key twice: it plays a writer that damages its own file.
    sealed, km = ags1.encrypt(bytes(plain), km=km, reuse_key=True)
    path.write_bytes(sealed)
    table.commit(file)
    table.commit(vector)
    with pytest.raises(MetadataIntegrityError, match="checksum"):
        open_table(table.write(), memory_kms()).scan().to_arrow()


def test_an_equality_delete_without_columns(tmp_path: Path) -> None:
    table = maker(tmp_path)
    table.commit(table.add_parquet(rows(1)))
    table.commit(table.add_equality_deletes(rows(1), [1]) | {"equality_ids": None})
    with pytest.raises(MetadataIntegrityError, match="which columns"):
        open_table(table.write(), memory_kms()).scan().to_arrow()


# -- the KMS


def test_no_kms_for_an_encrypted_table() -> None:
    with pytest.raises(KmsConfigurationError, match=r"encryption\.kms-type"):
        open_fixture("stats", kms=None)


def test_a_kms_without_the_master_key() -> None:
    kms = {"encryption.kms-type": "memory", "encryption.kms.key.other": "00" * 16}
    with pytest.raises(KmsKeyNotFoundError, match="keyA"):
        open_fixture("stats", kms=kms).scan().to_arrow()


def test_another_master_key_of_that_name() -> None:
    kms = from_properties({"encryption.kms-type": "memory", "encryption.kms.key.keyA": "00" * 16})
    with pytest.raises(KmsUnwrapError):
        open_fixture("stats", kms=kms).scan().to_arrow()


def test_a_plain_table_opens_without_a_kms(tmp_path: Path) -> None:
    table = TableMaker(tmp_path / "t", COLUMNS)
    table.commit(table.add_parquet(rows(1, 2)))
    path = table.write()
    assert open_table(path).scan().to_arrow().num_rows == 2
    with pytest.raises(NotEncryptedError):
        open_table(path, memory_kms())
    with pytest.raises(NotEncryptedError):
        open_table(path, expected_key_id="keyA")


def test_keys_of_each_size(tmp_path: Path) -> None:
    for length in (16, 24, 32):
        table = TableMaker(tmp_path / str(length), COLUMNS, memory_kms(), data_key_length=length)
        file = table.add_parquet(rows(*range(10)))
        table.commit(file)
        table.commit(*table.add_deletion_vectors({file["file_path"]: [0]}))
        assert open_table(table.write(), memory_kms()).scan().count() == 9


def test_a_parse_error_quotes_no_key(tmp_path: Path) -> None:
    import ags1

    table = maker(tmp_path)
    file = table.add_parquet(rows(1))
    table.commit(file)
    # A manifest that decrypts, and whose records are not what its schema says.
    manifest = table.manifests[0]
    km = ags1.KeyMetadata.from_bytes(manifest["key_metadata"])
    path = stored(manifest["manifest_path"])
    plain = ags1.decrypt(path.read_bytes(), km)
    broken = plain.replace(b'"name": "status", "type": "int"', b'"name": "status", "type": "long"')
    sealed, km = ags1.encrypt(broken[:-40], km=km, reuse_key=True)
    path.write_bytes(sealed)
    manifest |= {"manifest_length": len(sealed), "key_metadata": km.to_bytes()}
    table.commit()
    with pytest.raises(MetadataIntegrityError, match="cannot be parsed") as caught:
        open_table(table.write(), memory_kms()).scan().to_arrow()
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["parquet_plain", "mor_dv"])
def test_pages_are_not_read_without_authentication(tmp_path: Path, name: str) -> None:
    """How pages are encrypted stands in the clear before the footer, under no tag: a byte makes
    AES_GCM_V1 into AES_GCM_CTR_V1, whose pages Arrow decrypts and believes."""
    folder = copied(name, tmp_path)
    for path in (folder / "data").rglob("*.parquet"):
        data = bytearray(path.read_bytes())
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        assert data[start : start + 2] == b"\x1c\x1c"  # Thrift: field 1, a struct; in it field 1
        data[start + 1] = 0x2C
        path.write_bytes(data)
    scan = open_fixture(name, tmp_path, expected_key_id="keyA").scan()
    with pytest.raises(AuthenticationError, match="without authenticating"):
        scan.to_arrow()
    with pytest.raises(AuthenticationError, match="without authenticating"):
        list(scan.to_arrow_batch_reader())
    with pytest.raises(AuthenticationError, match="without authenticating"):
        open_fixture(name, tmp_path).scan("id > 1").count()


def test_a_loose_files_key_is_no_manifest_lists(tmp_path: Path) -> None:
    """Whoever gets a file of theirs encrypted under a table's master key has a sidecar whose
    entries would fit into the table's metadata, and a file to go with them."""
    folder = copied("parquet_plain", tmp_path)
    location = metadata_file("parquet_plain", tmp_path)
    metadata = json.loads(location.read_text())
    snapshot = metadata["snapshots"][-1]
    genuine = EncryptionManager.from_metadata(metadata, memory_kms())
    plain = ags1.decrypt(
        (folder / "metadata" / Path(snapshot["manifest-list"]).name).read_bytes(),
        genuine.manifest_list_key(snapshot["key-id"]),
    )
    sealed, km = ags1.encrypt(plain)
    (folder / "metadata" / "upload.avro").write_bytes(sealed)
    sidecar = Keychain(memory_kms(), "keyA").seal(km)
    metadata["encryption-keys"] += encryption_keys_to_dicts(sidecar.encryption_keys)
    snapshot["key-id"] = sidecar.key_id
    snapshot["manifest-list"] = f"{JAVA_LOCATION}/parquet_plain/metadata/upload.avro"
    location.write_text(json.dumps(metadata))
    with pytest.raises(AuthenticationError, match="wrapped key metadata"):
        open_fixture("parquet_plain", tmp_path).scan().to_arrow()


@pytest.mark.parametrize("keys", [[1], "x", {"a": 1}])
def test_keys_that_are_none_under_a_hash_of_hive_s(tmp_path: Path, keys: Any) -> None:
    path = tmp_path / "x.metadata.json"
    path.write_text(json.dumps({"encryption-keys": keys}))
    with pytest.raises(MetadataIntegrityError):
        read_metadata(PyArrowFileIO(), str(path), Trust(java_hash="x"))
    path.write_text(json.dumps({"comment": "\ud800"}))
    with pytest.raises(MetadataIntegrityError, match="Unicode"):
        read_metadata(PyArrowFileIO(), str(path), Trust(java_hash="x"))


def test_compressed_metadata_that_grows_or_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_module, "MAX_METADATA_SIZE", 1000)
    path = tmp_path / "x.gz.metadata.json"
    whole = gzip.compress(b"{}".ljust(1000))
    path.write_bytes(whole)
    assert read_metadata(PyArrowFileIO(), str(path), Trust()) == {}
    path.write_bytes(gzip.compress(b"{}".ljust(1001)))
    with pytest.raises(MetadataIntegrityError, match="larger"):
        read_metadata(PyArrowFileIO(), str(path), Trust())
    path.write_bytes(whole[:-10])
    with pytest.raises(MetadataIntegrityError, match="not JSON"):
        read_metadata(PyArrowFileIO(), str(path), Trust())
    plain = tmp_path / "x.metadata.json"
    plain.write_bytes(b"{}".ljust(1001))
    with pytest.raises(MetadataIntegrityError, match="larger"):
        read_metadata(PyArrowFileIO(), str(plain), Trust())
