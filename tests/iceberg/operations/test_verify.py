"""Whole tables verified: every file of Java's tables damaged in every way is found and named.

What is right is what Java's tables are: the sizes of their files on the disk, Spark's listing of
them, and pyarrow's own reading of Parquet.
"""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from all_pairs import all_pairs
from iceberg_tables import (
    JAVA_LOCATION,
    MASTER_KEYS,
    READABLE,
    TABLES,
    copied,
    memory_kms,
    metadata_file,
    open_fixture,
)
from pyarrow.parquet.encryption import create_decryption_properties, create_encryption_properties
from table_maker import Entry, TableMaker, stored

import ags1
from ags1 import KeyMetadata
from ags1.errors import (
    AuthenticationError,
    FormatError,
    KmsConfigurationError,
    KmsUnavailableError,
    NotEncryptedError,
    TruncatedError,
)
from ags1.iceberg import EncryptedTable, open_table
from ags1.iceberg.formats.parquet_fields import AesGcmV1, EncryptionAlgorithm, FileCryptoMetaData
from ags1.iceberg.formats.parquet_modules import verify_parquet
from ags1.iceberg.formats.thrift import BINARY, parse, print_struct
from ags1.iceberg.operations.check import TableCheck, verify_table
from ags1.iceberg.operations.check.checks import CheckThreads
from ags1.iceberg.operations.check.findings import (
    MAX_FINDINGS,
    SEVERITIES,
    Finding,
    Findings,
    Severity,
)

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

DAMAGED = ["mor_dv", "parquet_plain", "stats"]
COLUMNS = [{"id": 1, "name": "id", "type": "long"}, {"id": 2, "name": "s", "type": "string"}]
AVRO = {
    "type": "record",
    "name": "row",
    "fields": [{"name": "id", "type": "long", "field-id": 1}],
}
SHA256 = "expected_metadata_sha256"
DAY_MS = 24 * 60 * 60 * 1000


def verified(name: str, folder: Path = TABLES, **more: Any) -> TableCheck:
    return verify_table(open_fixture(name, folder), **more)


def kinds(result: TableCheck, *severities: Severity) -> dict[str, int]:
    """The counts of findings by kind, of the severities given (errors and warnings if none)."""
    wanted = severities or (Severity.ERROR, Severity.WARNING)
    return {k: n for k, n in result.finding_counts.items() if SEVERITIES[k] in wanted}


def errors_of(result: TableCheck) -> list[Finding]:
    """The errors, but for the statistics that Java does not encrypt."""
    errors = [f for f in result.findings if f.severity == Severity.ERROR]
    return [f for f in errors if f.kind != "plain-statistics"]


def sealed_files(folder: Path) -> list[Path]:
    """The encrypted files of a table, as their first bytes tell."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.read_bytes()[:4] in (b"AGS1", b"PARE")
    )


def location(path: Path, folder: Path) -> str:
    """What the metadata of a fixture table in ``folder`` calls a file."""
    return f"{JAVA_LOCATION}/{path.relative_to(folder)}"


# -- tables as Java left them


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("threads", [None, 1, 7])
def test_a_table_of_java_s_verifies_and_every_file_of_it_is_read_once(
    name: str, threads: int | None
) -> None:
    result = verified(name, threads=threads)
    assert errors_of(result) == []
    assert result.ok
    assert result.verified_size == sum(p.stat().st_size for p in sealed_files(TABLES / name))
    listed = json.loads((TABLES / "read_by_spark" / name / "files.json").read_text())
    listed = {f["file_path"]: f["content"] for f in listed}
    assert result.data_files >= sum(content == 0 for content in listed.values())
    assert result.snapshots == result.manifest_lists
    data = [p for p in sealed_files(TABLES / name) if p.suffix in (".parquet", ".puffin")]
    assert result.data_files + result.delete_files == len(data)


def test_statistics_that_java_leaves_in_the_clear_are_told() -> None:
    result = verified("stats")
    assert kinds(result) == {"plain-statistics": 2}
    metadata = json.loads(metadata_file("stats").read_text())
    expected = {
        entry["statistics-path"]
        for name in ("statistics", "partition-statistics")
        for entry in metadata[name]
    }
    assert {f.file for f in result.findings if f.kind == "plain-statistics"} == expected
    assert result.statistics_files == 2


def test_no_key_is_in_what_is_told() -> None:
    table = open_fixture("mor_dv")
    keys = [*MASTER_KEYS.values()]
    for snapshot in table.snapshots():
        for manifest in snapshot.manifests(table.io):
            keys.append(manifest.key.encryption_key)  # type: ignore[attr-defined]
            for entry in manifest.fetch_manifest_entry(table.io):
                keys.append(entry.data_file.key.encryption_key)  # type: ignore[attr-defined]
    result = verify_table(table)
    told = repr(result) + json.dumps(result.to_dict())
    for key in keys:
        for spelling in (key.hex(), base64.b64encode(key).decode(), repr(key)[2:-1]):
            assert spelling not in told


def test_the_result_as_json_is_stable() -> None:
    result = verified("stats").to_dict()
    assert json.loads(json.dumps(result)) == result
    assert set(result) == set(
        "ok level metadata_location table_uuid encrypted key_id snapshots manifest_lists manifests "
        "data_files plain_data_files delete_files deletion_vectors statistics_files exposed_files "
        "exposed_current_files verified_size seconds bytes_per_second errors warnings notes "
        "finding_counts keks branches left_out findings".split()
    )
    assert set(result["findings"][0]) == set(
        "severity kind message file snapshot_ids block offset count size remedy".split()
    )
    assert (result["ok"], result["errors"], result["warnings"]) == (True, 2, 0)
    assert result["findings"][0]["severity"] == "error"


# -- one file damaged


def flipped(path: Path, position: float) -> None:
    data = bytearray(path.read_bytes())
    data[int((len(data) - 1) * position)] ^= 0x40
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "first byte": (lambda p: flipped(p, 0), {"not-encrypted", "format"}),
    "middle byte": (lambda p: flipped(p, 0.5), {"authentication"}),
    "last byte": (lambda p: flipped(p, 1), {"authentication", "format"}),
    "cut by a byte": (lambda p: p.write_bytes(p.read_bytes()[:-1]), {"truncated"}),
    "cut to nothing": (lambda p: p.write_bytes(b""), {"truncated"}),
    "cut within the header": (lambda p: p.write_bytes(p.read_bytes()[:6]), {"truncated"}),
    "longer by a byte": (lambda p: p.write_bytes(p.read_bytes() + b"\0"), {"format"}),
    "gone": (Path.unlink, {"missing-file"}),
    "a folder": (lambda p: (p.unlink(), p.mkdir()), {"unreadable-file", "missing-file"}),
    "a pipe": (lambda p: (p.unlink(), os.mkfifo(p)), {"unreadable-file"}),
    "plain Avro": (lambda p: p.write_bytes(b"Obj\x01" + bytes(5000)), {"not-encrypted"}),
    "plain Parquet": (lambda p: p.write_bytes(b"PAR1" + bytes(5000)), {"not-encrypted"}),
    "noise": (lambda p: p.write_bytes(os.urandom(p.stat().st_size)), {"not-encrypted", "format"}),
}


def one_of_each_kind(files: list[Path], turn: int) -> list[Path]:
    """A list of manifests, a manifest, a data file and a file of vectors: others at each turn."""
    kinds: dict[str, list[Path]] = {}
    for path in files:
        kinds.setdefault("list" if path.name.startswith("snap-") else path.suffix, []).append(path)
    return [some[turn % len(some)] for some in kinds.values()]


# Each file is cut, and each kind of file has all damages.
@pytest.mark.slow_variants(
    r"(parquet_plain|stats)-.*"
    r"(byte|nothing|header|folder|pipe|Avro|Parquet|noise)(?<!cut by a byte)"
)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", DAMAGED)
def test_each_damaged_file_is_found_and_named(name: str, damage: str, tmp_path: Path) -> None:
    folder = copied(name, tmp_path)
    harm, expected = DAMAGES[damage]
    files = sealed_files(folder)
    if damage != "cut by a byte":
        files = one_of_each_kind(files, list(DAMAGES).index(damage))
    for path in files:
        whole = path.read_bytes()
        harm(path)
        result = verified(name, tmp_path)
        errors = errors_of(result)
        assert not result.ok
        assert [f.file for f in errors] == [location(path, tmp_path)], damage
        assert errors[0].kind in expected
        assert errors[0].snapshot_ids
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(whole)
    assert errors_of(verified(name, tmp_path)) == []


def test_entries_that_contradict_each_other_are_found(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    one, other = (maker.add_parquet([{"id": n, "s": "x"}]) for n in (1, 2))
    maker.commit(one, other)
    [vector] = maker.add_deletion_vectors({one["file_path"]: [0]})
    maker.commit(vector)
    maker.commit(vector | {}, one | {})
    assert kinds(verify_table(open_made(maker))) == {}
    maker.commit(one | {"record_count": 99})
    result = verify_table(open_made(maker))
    assert kinds(result) == {"metadata": 1}
    assert [f.file for f in result.findings if f.kind == "metadata"] == [one["file_path"]]
    maker.commit(vector | {"referenced_data_file": other["file_path"], "record_count": 7})
    assert kinds(verify_table(open_made(maker))) == {"metadata": 2}


def open_made(maker: TableMaker) -> EncryptedTable:
    table = open_table(maker.write(), memory_kms())
    assert isinstance(table, EncryptedTable)
    return table


def test_that_nothing_vouches_for_the_metadata_is_told(tmp_path: Path) -> None:
    location = metadata_file("stats")
    digest = hashlib.sha256(location.read_bytes()).hexdigest()
    for pins, told in (({}, 1), ({"expected_key_id": "keyA"}, 1), ({SHA256: digest}, 0)):
        places = {JAVA_LOCATION: str(TABLES)}
        table = open_table(str(location), memory_kms(), places, **pins)
        assert isinstance(table, EncryptedTable)
        assert verify_table(table).finding_counts.get("metadata-not-pinned", 0) == told


@pytest.mark.parametrize("name", DAMAGED)
def test_two_files_exchanged_are_found(name: str, tmp_path: Path) -> None:
    folder = copied(name, tmp_path)
    for suffix in (".parquet", ".avro", ".puffin"):
        of_kind = [path for path in sealed_files(folder) if path.suffix == suffix]
        for one, other in itertools.pairwise(of_kind):
            first, second = one.read_bytes(), other.read_bytes()
            # The same lengths, so that only the tags can tell.
            one.write_bytes((second + first[len(second) :])[: len(first)])
            result = verified(name, tmp_path)
            assert [f.file for f in errors_of(result)] == [location(one, tmp_path)]
            one.write_bytes(first)


@pytest.mark.parametrize("huge", [1 << 20, 1 << 30])
def test_every_flipped_block_is_named(
    huge: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From so many bytes on, one file takes all threads.
    monkeypatch.setattr("ags1.iceberg.operations.check.checks._HUGE_FILE", huge)
    table = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    data, km = table._sealed(os.urandom((3 << 20) + 5))
    assert km is not None
    table.commit(table._entry("avro", data, km, 1, None, 0))
    path = next((tmp_path / "t" / "data").iterdir())
    opened = open_table(table.write(), memory_kms())
    assert isinstance(opened, EncryptedTable)
    assert verify_table(opened).ok
    slot = (1 << 20) + 28
    for block in range(4):
        damaged = bytearray(data)
        damaged[min(8 + block * slot + 20, len(data) - 1)] ^= 1
        path.write_bytes(damaged)
        (error,) = [f for f in verify_table(opened).findings if f.severity == Severity.ERROR]
        assert (error.kind, error.block) == ("authentication", block)


# -- Parquet


def sealed_parquet(table: pa.Table, key_size: int = 16, **how: Any) -> tuple[bytes, KeyMetadata]:
    km = KeyMetadata.generate(key_size)
    out = io.BytesIO()
    properties = create_encryption_properties(
        km.encryption_key, aad_prefix=km.aad_prefix, store_aad_prefix=False
    )
    pq.write_table(table, out, encryption_properties=properties, **how)
    return out.getvalue(), km.with_file_length(len(out.getvalue()))


def authenticate(data: bytes, km: KeyMetadata) -> Any:
    return verify_parquet(lambda offset, size: data[offset : offset + size], len(data), km)


PARQUETS: list[dict[str, Any]] = [
    {},
    {"write_page_index": True, "data_page_size": 200, "row_group_size": 20},
    {"use_dictionary": False, "data_page_version": "2.0"},
    {"compression": "none", "write_page_index": True},
]


# Of `make test`: each damage to files of one table, and two to those of each.
@pytest.mark.slow_variants(r"how[23]")
@pytest.mark.parametrize("how", PARQUETS)
def test_no_byte_of_a_parquet_file_can_be_changed(how: dict[str, Any]) -> None:
    rows = pa.table({"a": range(60), "b": [[i, None] for i in range(60)], "c": [None] * 60})
    data, km = sealed_parquet(rows, **how)
    found = authenticate(data, km)
    properties = create_decryption_properties(km.encryption_key, aad_prefix=km.aad_prefix)
    file = pq.ParquetFile(io.BytesIO(data), decryption_properties=properties)
    assert found.rows == file.metadata.num_rows == 60
    assert (found.padding_size, found.plain_levels_size) == (0, 0)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises((AuthenticationError, FormatError, NotEncryptedError)):
            authenticate(bytes(changed), km)


def test_java_s_parquet_files_are_covered_to_the_last_byte(tmp_path: Path) -> None:
    folder = copied("stats", tmp_path)
    path = next((folder / "data").rglob("*.parquet"))
    whole = path.read_bytes()
    table = open_fixture("stats", tmp_path)
    (km,) = [
        task.file.key  # type: ignore[attr-defined]
        for task in table.scan().plan_files()
        if task.file.file_path.endswith(path.name)
    ]
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0x10
        with pytest.raises((AuthenticationError, FormatError, NotEncryptedError)):
            authenticate(bytes(changed), km)


@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_pages_of_the_same_file_cannot_be_exchanged(key_size: int) -> None:
    # Equal sizes everywhere, so that only each page's place in its tag's data tells them apart.
    rows = pa.table({"a": [bytes(100)] * 8})
    more = {"use_dictionary": False, "compression": "none", "row_group_size": 4}
    data, km = sealed_parquet(rows, key_size, store_schema=False, **more)
    assert authenticate(data, km).rows == 8
    file = pq.ParquetFile(
        io.BytesIO(data),
        decryption_properties=create_decryption_properties(
            km.encryption_key, aad_prefix=km.aad_prefix
        ),
    )
    first, second = (file.metadata.row_group(i).column(0) for i in (0, 1))
    size = first.total_compressed_size
    assert size == second.total_compressed_size
    a, b = first.data_page_offset, second.data_page_offset
    swapped = data[:a] + data[b : b + size] + data[a + size : b] + data[a : a + size]
    swapped += data[b + size :]
    assert len(swapped) == len(data)
    with pytest.raises(AuthenticationError):
        authenticate(swapped, km)


def test_another_key_another_prefix_and_plain_parquet_are_told_apart() -> None:
    data, km = sealed_parquet(pa.table({"a": [1, 2, 3]}))
    with pytest.raises(AuthenticationError):
        authenticate(data, KeyMetadata(bytes(16), km.aad_prefix, len(data)))
    with pytest.raises(AuthenticationError):
        authenticate(data, KeyMetadata(km.encryption_key, bytes(16), len(data)))
    with pytest.raises(FormatError):
        authenticate(data, KeyMetadata(km.encryption_key, None, len(data) - 1))
    with pytest.raises(TruncatedError):
        authenticate(data, KeyMetadata(km.encryption_key, km.aad_prefix, len(data) + 1))
    out = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), out)
    with pytest.raises(NotEncryptedError):
        authenticate(out.getvalue(), km.with_file_length(len(out.getvalue())))


def test_pages_that_nothing_authenticates_are_refused() -> None:
    km = KeyMetadata.generate(16)
    out = io.BytesIO()
    properties = create_encryption_properties(
        km.encryption_key, aad_prefix=km.aad_prefix, encryption_algorithm="AES_GCM_CTR_V1"
    )
    pq.write_table(pa.table({"a": [1]}), out, encryption_properties=properties)
    with pytest.raises(AuthenticationError, match="without authenticating"):
        authenticate(out.getvalue(), km.with_file_length(len(out.getvalue())))


@pytest.mark.parametrize("size", [0, 7, 9, 15])
def test_an_id_of_a_file_that_takes_over_more_of_the_aad_is_refused(size: int) -> None:
    """The id comes before the module type and the numbers of a page, and nothing authenticates it:
    with the bytes of a page's AAD at its end, the page would verify as a footer."""
    km = KeyMetadata.generate(16)
    out = io.BytesIO()
    properties = create_encryption_properties(
        km.encryption_key, aad_prefix=km.aad_prefix, store_aad_prefix=False
    )
    pq.write_table(pa.table({"a": [1]}), out, encryption_properties=properties)
    data = out.getvalue()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    crypto, length = parse(data[start:-8])
    _, algorithms = crypto[FileCryptoMetaData.ENCRYPTION_ALGORITHM]
    _, algorithm = algorithms[EncryptionAlgorithm.AES_GCM_V1]
    file_id = algorithm[AesGcmV1.AAD_FILE_UNIQUE][1]
    assert len(file_id) == 8
    algorithm[AesGcmV1.AAD_FILE_UNIQUE] = (BINARY, (file_id + bytes([2]) + bytes(6))[:size])
    footer = print_struct(crypto) + data[start + length : -8]
    changed = data[:start] + footer + len(footer).to_bytes(4, "little") + data[-4:]
    with pytest.raises(FormatError, match=f"has {size} bytes, not 8"):
        authenticate(changed, km.with_file_length(len(changed)))


# -- what the metadata says and what there is


class Made:
    """A table of this test's own making."""

    def __init__(self, folder: Path) -> None:
        self.maker = TableMaker(folder / "t", COLUMNS, memory_kms())
        self.folder = folder / "t"

    def verify(self, metadata: dict[str, Any] | None = None, **more: Any) -> TableCheck:
        location = self.maker.write(metadata)
        digest = hashlib.sha256(Path(location).read_bytes()).hexdigest()
        table = open_table(location, memory_kms(), expected_metadata_sha256=digest)
        assert isinstance(table, EncryptedTable)
        return verify_table(table, **more)

    def parquet(self, **more: Any) -> Entry:
        return self.maker.add_parquet([{"id": i, "s": str(i)} for i in range(10)], **more)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_all_kinds_of_files_verify(made: Made) -> None:
    data = made.parquet()
    avro = made.maker.add_avro([{"id": 1}], AVRO)
    made.maker.commit(data, avro)
    made.maker.commit(
        made.maker.add_position_deletes([(data["file_path"], 1)]),
        made.maker.add_equality_deletes([{"id": 2}], [1]),
        *made.maker.add_deletion_vectors({avro["file_path"]: [0], data["file_path"]: [3, 4]}),
    )
    result = made.verify()
    assert not result.findings
    assert (result.data_files, result.delete_files, result.deletion_vectors) == (2, 3, 2)
    assert result.verified_size == sum(p.stat().st_size for p in sealed_files(made.folder))


def test_data_files_in_the_clear_are_errors(made: Made) -> None:
    made.maker.commit(made.parquet(), made.parquet(encrypted=False))
    result = made.verify()
    assert (result.ok, kinds(result)) == (True, {"plain-data-file": 1})
    assert (result.data_files, result.plain_data_files) == (2, 1)
    assert kinds(made.verify(require_encrypted=True)) == {"not-encrypted": 1}


def test_a_plain_data_file_that_is_cut_or_gone_is_found(made: Made) -> None:
    one, other = made.parquet(encrypted=False), made.parquet(encrypted=False)
    made.maker.commit(one, other)
    path = stored(one["file_path"])
    path.write_bytes(path.read_bytes()[:-1])
    stored(other["file_path"]).unlink()
    found = kinds(made.verify(), Severity.ERROR)
    assert found == {"truncated": 1, "missing-file": 1, "plain-data-file": 2}


def test_delete_files_in_the_clear_are_errors(made: Made) -> None:
    data = made.parquet()
    made.maker.commit(
        data,
        made.maker.add_position_deletes([(data["file_path"], 1)], encrypted=False),
        *made.maker.add_deletion_vectors({data["file_path"]: [3]}, encrypted=False),
    )
    assert kinds(made.verify()) == {"delete-file-without-key": 2}


def test_a_snapshot_without_key_id_is_an_error(made: Made) -> None:
    made.maker.commit(made.parquet())
    made.maker.commit(made.parquet())
    metadata = made.maker.metadata()
    stripped = metadata["snapshots"][0].pop("key-id")
    result = made.verify(metadata)
    assert kinds(result) == {"snapshot-without-key": 1}
    assert result.findings[0].snapshot_ids == (metadata["snapshots"][0]["snapshot-id"],)
    assert result.finding_counts["orphan-key"] == 1
    assert any(stripped in f.message for f in result.findings if f.kind == "orphan-key")


def test_a_manifest_without_key_is_an_error_and_the_others_are_verified(made: Made) -> None:
    made.maker.commit(made.parquet(), made.parquet(), manifests_of=1)
    made.maker.manifests[0]["key_metadata"] = None
    made.maker.commit()
    result = made.verify({**made.maker.metadata(), "snapshots": made.maker.snapshots[1:]})
    assert kinds(result, Severity.ERROR) == {"manifest-without-key": 1}
    assert result.data_files == 1


def test_a_key_that_no_snapshot_needs_is_a_note(made: Made) -> None:
    made.maker.commit(made.parquet())
    made.maker.commit(made.parquet())
    metadata = made.maker.metadata()
    metadata["snapshots"] = metadata["snapshots"][1:]
    result = made.verify(metadata)
    assert (kinds(result), result.finding_counts["orphan-key"]) == ({}, 1)
    # The files of the expired snapshot's own: its manifest list.
    assert [f.file for f in result.findings if f.kind == "orphan-file"] == [
        str(made.folder / "metadata" / "snap-1001.avro")
    ]


def test_a_key_that_is_not_there_or_does_not_open_is_an_error(made: Made) -> None:
    made.maker.commit(made.parquet())
    metadata = made.maker.metadata()
    kek, entry = metadata["encryption-keys"]
    assert kinds(made.verify(metadata | {"encryption-keys": [kek]})) == {"key": 1}
    assert kinds(made.verify(metadata | {"encryption-keys": [entry]})) == {"key": 1}
    later = kek | {
        "properties": {"KEY_TIMESTAMP": str(int(kek["properties"]["KEY_TIMESTAMP"]) + 1)}
    }
    changed = made.verify(metadata | {"encryption-keys": [later, entry]})
    assert kinds(changed) == {"authentication": 1}
    wrapped = bytearray(base64.b64decode(kek["encrypted-key-metadata"]))
    wrapped[-1] ^= 1
    broken = kek | {"encrypted-key-metadata": base64.b64encode(wrapped).decode()}
    result = made.verify(metadata | {"encryption-keys": [broken, entry]})
    assert kinds(result) == {"kek-unusable": 1, "key": 1}


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (0, {}),
        (600, {}),
        (700, {"kek-near-expiry": 1}),
        (730, {"kek-expired": 1}),
        (-10, {"kek-timestamp": 1}),
    ],
)
def test_the_age_of_a_kek(days: int, expected: dict[str, int]) -> None:
    table = open_fixture("parquet_plain")
    (kek,) = table.files.keys.key_encryption_keys
    made_ms = int(kek.timestamp or "")
    result = verify_table(table, clock_ms=lambda: made_ms + days * DAY_MS)
    assert (result.ok, kinds(result)) == (True, expected)


def _statistics(path: str) -> list[dict[str, Any]]:
    facts = {"snapshot-id": 1001, "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1}
    return [facts | {"statistics-path": path, "blob-metadata": []}]


def _two_timestamps(metadata: dict[str, Any]) -> dict[str, Any]:
    kek = next(entry for entry in metadata["encryption-keys"] if "properties" in entry)
    times = {"KEY_TIMESTAMP": "1", "key-timestamp": "2"}
    other = kek | {"key-id": "q", "encrypted-by-id": "other", "properties": times}
    return {"encryption-keys": [*metadata["encryption-keys"], other]}


def _another_snapshot(metadata: dict[str, Any], location: str) -> dict[str, Any]:
    [snapshot] = metadata["snapshots"]
    return {"snapshots": [snapshot, snapshot | {"snapshot-id": 5, "manifest-list": location}]}


def _sized(metadata: dict[str, Any], size: str) -> dict[str, Any]:
    [snapshot] = metadata["snapshots"]
    summary = snapshot["summary"] | {"total-files-size": size}
    return {"snapshots": [snapshot | {"summary": summary}]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: {"statistics": _statistics("foo://x")}, {"metadata": 1}),
        (lambda m: {"statistics": _statistics("/tmp/a\0b")}, {"metadata": 1}),
        (lambda m: {"statistics": _statistics("s3://[")}, {"metadata": 1}),
        (lambda m: {"location": "foo://x"}, {"metadata": 1}),
        (lambda m: {"location": "/tmp/a\0b"}, {"metadata": 1}),
        (lambda m: {"location": "s3://["}, {"metadata": 1}),
        (lambda m: _another_snapshot(m, "foo://x"), {"metadata": 1}),
        (lambda m: _another_snapshot(m, "/tmp/a\0b"), {"metadata": 1}),
        (lambda m: _sized(m, "9" * 5000), {}),
        (_two_timestamps, {"kek-unusable": 1}),
    ],
)
def test_metadata_that_cannot_be_is_a_finding(
    made: Made, change: Callable[[dict[str, Any]], dict[str, Any]], expected: dict[str, int]
) -> None:
    made.maker.commit(made.parquet())
    metadata = made.maker.metadata()
    result = made.verify(metadata | change(metadata))
    assert kinds(result) == expected
    assert result.data_files == 1


def test_several_keks_and_a_foreign_one(made: Made) -> None:
    made.maker.commit(made.parquet())
    metadata = made.maker.metadata()
    kek = metadata["encryption-keys"][0]
    other = kek | {"key-id": "b3RoZXI=", "encrypted-by-id": "keyB"}
    result = made.verify(metadata | {"encryption-keys": [*metadata["encryption-keys"], other]})
    assert kinds(result) == {"kek-other-master-key": 1}
    assert kinds(result, Severity.NOTE) == {"several-keks": 1, "orphan-key": 1}


def test_a_key_that_sealed_two_files_is_an_error(made: Made) -> None:
    data, km = made.maker._sealed(b"one")
    again, _ = ags1.encrypt(b"two", km=km, reuse_key=True)
    one = made.maker._entry("avro", data, km, 1, None, 0)
    two = made.maker._entry("avro", again, km, 1, None, 0)
    made.maker.commit(one)
    made.maker.commit(two)
    (error,) = made.verify().findings
    assert error.kind == "shared-key"
    assert error.file == two["file_path"]
    assert one["file_path"].rpartition("/")[2] in error.message


def test_a_file_with_two_keys_is_an_error(made: Made) -> None:
    one = made.parquet()
    other = KeyMetadata.generate(16).with_file_length(one["file_size_in_bytes"])
    made.maker.commit(one)
    made.maker.commit(one | {"key_metadata": other.to_bytes()})
    assert kinds(made.verify()) == {"two-keys": 1}


def test_a_file_in_two_manifests_is_verified_once(made: Made) -> None:
    one = made.parquet()
    made.maker.commit(one)
    made.maker.commit(one)
    result = made.verify()
    assert (result.findings, result.data_files) == ((), 1)
    assert result.verified_size == sum(p.stat().st_size for p in sealed_files(made.folder))


def test_counts_that_do_not_fit_are_errors(made: Made) -> None:
    made.maker.commit(made.parquet() | {"record_count": 11})
    assert kinds(made.verify()) == {"record-count": 1}
    made.maker.manifests[0]["added_files_count"] = 2
    made.maker.commit()
    metadata = {**made.maker.metadata(), "snapshots": made.maker.snapshots[1:]}
    assert kinds(made.verify(metadata), Severity.ERROR) == {"record-count": 1, "metadata": 1}


@pytest.mark.parametrize("field", ["file_size_in_bytes", "manifest_length"])
def test_lengths_that_differ_between_entry_and_key_are_errors(made: Made, field: str) -> None:
    entry = made.parquet()
    if field == "file_size_in_bytes":
        entry[field] += 1
        made.maker.commit(entry)
    else:
        made.maker.commit(entry)
        made.maker.manifests[0][field] += 1
        made.maker.commit()
    metadata = {**made.maker.metadata(), "snapshots": made.maker.snapshots[-1:]}
    assert kinds(made.verify(metadata), Severity.ERROR) == {"metadata": 1}


@pytest.mark.parametrize(
    "wrong", [{"cardinality": "9"}, {"referenced-data-file": "elsewhere.parquet"}]
)
def test_a_deletion_vector_that_is_not_what_its_entry_says(
    made: Made, wrong: dict[str, str]
) -> None:
    data = made.parquet()
    made.maker.commit(data, *made.maker.add_deletion_vectors({data["file_path"]: [1, 2]}, **wrong))
    assert kinds(made.verify()) == {"metadata": 1}


def test_a_manifest_list_of_another_snapshot_is_an_error(made: Made) -> None:
    made.maker.commit(made.parquet())
    made.maker.commit(made.parquet())
    metadata = made.maker.metadata()
    first, second = metadata["snapshots"]
    first |= {"manifest-list": second["manifest-list"], "key-id": second["key-id"]}
    assert kinds(made.verify(metadata)) == {"metadata": 1}


def test_missing_statistics_are_a_warning(tmp_path: Path) -> None:
    folder = copied("stats", tmp_path)
    next((folder / "metadata").glob("*.stats")).unlink()
    result = verified("stats", tmp_path)
    assert (result.ok, kinds(result)) == (
        True,
        {"plain-statistics": 1, "missing-statistics": 1},
    )


# -- what else lies in the folder


@pytest.mark.parametrize("name", ["data/p=e/part-0.parquet", "data/new/deep/x.parquet", "x"])
def test_a_stray_plain_file_in_the_folder_is_found(name: str, tmp_path: Path) -> None:
    folder = copied("stats", tmp_path)
    stray = folder / name
    stray.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": [1]}), stray)
    result = verified("stats", tmp_path)
    assert [f.file for f in errors_of(result)] == [str(stray)]
    assert [f.file for f in result.findings if f.kind == "stray-plain-file"] == [str(stray)]
    assert "stray-plain-file" not in verified("stats", tmp_path, list_folders=False).finding_counts


@pytest.mark.parametrize("magic", [b"Obj\x01", b"ORC", b"PFA1", b"PAR1", b"id,v\n1", b"x"])
def test_plain_files_are_known_by_their_first_bytes(made: Made, magic: bytes) -> None:
    """Whatever is not encrypted is plaintext: also a file of a program that knows no tables."""
    (made.folder / "data" / "stray").write_bytes(magic + b"...")
    assert kinds(made.verify()) == {"stray-plain-file": 1}


def test_other_files_are_notes_and_the_table_s_own_are_not(made: Made) -> None:
    made.maker.commit(made.parquet())
    orphans = {"data/sealed": b"AGS1....", "data/PARE": b"PARE", "data/empty": b""}
    orphans |= {"metadata/a.journal": b'{"kek', "metadata/.ags1-00000000000000aa.tmp": b"{"}
    for name, data in orphans.items():
        (made.folder / name).write_bytes(data)
    for name in ("metadata/version-hint.text", "data/.00001.parquet.crc"):
        (made.folder / name).write_bytes(b"1")
    result = made.verify()
    assert kinds(result, *Severity) == {"orphan-file": len(orphans)}
    assert {f.file for f in result.findings} == {str(made.folder / name) for name in orphans}


def test_a_data_folder_elsewhere_is_looked_through(made: Made, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "stray.avro").write_bytes(b"Obj\x01")
    made.maker.properties["write.data.path"] = f"file://{elsewhere}"
    result = made.verify()
    assert [f.file for f in result.findings] == [str(elsewhere / "stray.avro")]


def test_findings_are_counted_beyond_those_that_are_kept() -> None:
    findings = Findings()
    for number in range(MAX_FINDINGS + 5):
        findings.add("orphan-file", "a file", str(number))
    assert findings.counts["orphan-file"] == MAX_FINDINGS + 5
    assert len(findings.sorted()) == MAX_FINDINGS


# -- running


def test_progress_comes_in_the_calling_thread_and_reaches_the_end() -> None:
    seen: list[tuple[int, int | None]] = []

    def progress(done: int, total: int | None) -> None:
        assert threading.current_thread() is threading.main_thread()
        seen.append((done, total))

    verified("mor_dv", progress=progress)
    done, total = seen[-1]
    assert done == total
    assert total == sum(
        p.stat().st_size
        for p in sealed_files(TABLES / "mor_dv")
        if p.suffix in (".parquet", ".puffin")
    )


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, RuntimeError])
def test_what_progress_raises_ends_it_and_no_thread_stays(
    made: Made, interrupt: type[BaseException]
) -> None:
    entries = []
    for _ in range(4):
        data, km = made.maker._sealed(bytes(4 << 20))
        entries.append(made.maker._entry("avro", data, km, 1, None, 0))
    made.maker.commit(*entries)
    before = threading.active_count()

    def progress(done: int, total: int | None) -> None:
        raise interrupt

    with pytest.raises(interrupt):
        made.verify(progress=progress, threads=2)
    assert threading.active_count() == before


def test_a_kms_that_cannot_be_used_is_no_finding() -> None:
    class Down:
        accepts_foreign_keys = False
        supports_key_generation = False

        def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
            raise KmsUnavailableError("down")

    table = open_fixture("stats", kms=Down())
    with pytest.raises(KmsUnavailableError):
        verify_table(table)


def test_a_master_key_that_is_not_there_is_a_finding() -> None:
    from ags1.kms import from_properties

    kms = from_properties({"encryption.kms-type": "memory", "encryption.kms.key.keyB": "00" * 16})
    result = verify_table(open_fixture("parquet_plain", kms=kms))
    assert kinds(result, Severity.ERROR) == {"kek-unusable": 1, "key": 3}
    # All files of the table would look like orphan files.
    assert result.finding_counts["orphans-not-searched"] == 1
    assert not {"orphan-file", "stray-plain-file"} & result.finding_counts.keys()


def test_a_wrong_number_of_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="threads"):
        verified("stats", threads=0)


# -- other storage


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("moto.server")
    from aws_server import aws_server, dummy_environment

    with aws_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in dummy_environment(endpoint).items():
            patch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket="lake")
        yield client


# Of `make test`: PyArrow's FileIO.
@pytest.mark.slow_variants(r"fsspec.FsspecFileIO")
@pytest.mark.parametrize("io_impl", ["pyarrow.PyArrowFileIO", "fsspec.FsspecFileIO"])
def test_a_table_on_s3(s3: Any, io_impl: str, tmp_path: Path) -> None:
    if io_impl.startswith("fsspec"):
        pytest.importorskip("s3fs")
    folder = copied("mor_dv", tmp_path)
    prefix = io_impl.partition(".")[0]
    pq.write_table(pa.table({"id": [1]}), folder / "data" / "stray.parquet")
    for path in folder.rglob("*"):
        if path.is_file():
            s3.upload_file(str(path), "lake", f"{prefix}/{path.relative_to(tmp_path)}")
    properties = {
        "py-io-impl": f"pyiceberg.io.{io_impl}",
        "s3.endpoint": s3.meta.endpoint_url,
        "s3.access-key-id": "testing",
        "s3.secret-access-key": "testing",
        "s3.region": "us-east-1",
    }
    table = open_table(
        f"s3://lake/{prefix}/mor_dv/metadata/{metadata_file('mor_dv').name}",
        memory_kms(),
        {JAVA_LOCATION: f"s3://lake/{prefix}"},
        properties=properties,
    )
    assert isinstance(table, EncryptedTable)
    result = verify_table(table)
    assert kinds(result) == {"stray-plain-file": 1}
    assert result.findings[0].file == f"s3://lake/{prefix}/mor_dv/data/stray.parquet"
    assert result.verified_size == sum(p.stat().st_size for p in sealed_files(folder))
    vectors = next(folder.rglob("*.puffin"))
    rows, gone = [p for p in sorted(folder.rglob("*.parquet")) if p.name != "stray.parquet"][:2]
    for victim in (vectors, rows):
        flipped(victim, 0.4)
        s3.upload_file(str(victim), "lake", f"{prefix}/{victim.relative_to(tmp_path)}")
    s3.delete_object(Bucket="lake", Key=f"{prefix}/{gone.relative_to(tmp_path)}")
    errors = [f for f in verify_table(table).findings if f.severity == Severity.ERROR]
    assert {(f.file, f.kind) for f in errors} == {
        (f"s3://lake/{prefix}/mor_dv/data/stray.parquet", "stray-plain-file"),
        (location(vectors, tmp_path), "authentication"),
        (location(rows, tmp_path), "authentication"),
        (location(gone, tmp_path), "missing-file"),
    }


@pytest.mark.parametrize(
    ("name", "each"),
    [("mor_dv", False), *(pytest.param(name, True, marks=pytest.mark.slow) for name in DAMAGED)],
)
def test_streams_tell_the_same_as_files_of_this_machine(
    name: str, each: bool, tmp_path: Path
) -> None:
    pytest.importorskip("fsspec")
    folder = copied(name, tmp_path)
    through_streams = {"properties": {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}}

    def both() -> list[list[tuple[str, str | None]]]:
        tables = [open_fixture(name, tmp_path, **how) for how in ({}, through_streams)]
        return [[(f.kind, f.file) for f in verify_table(t).findings] for t in tables]

    damages = ("middle byte", "cut by a byte", "longer by a byte", "gone", "plain Parquet")
    for (at, damage), (number, path) in itertools.product(
        enumerate(damages), enumerate(sealed_files(folder))
    ):
        # Each file has one damage and each damage a file, or each file has each.
        if not each and (at - number) % len(damages):
            continue
        whole = path.read_bytes()
        DAMAGES[damage][0](path)
        here, streams = both()
        assert here == streams
        assert location(path, tmp_path) in {file for _, file in here}
        path.write_bytes(whole)
    shutil.copy(TABLES / "README.md", folder / "data" / "other")
    here, streams = both()
    assert here == streams
    assert ("stray-plain-file", str(folder / "data" / "other")) in here


def test_a_file_io_that_cannot_list_is_told(made: Made) -> None:
    table = open_table(made.maker.write(), memory_kms())
    assert isinstance(table, EncryptedTable)

    class NoListing:
        """A FileIO of somebody's, which has the three methods that one must have."""

        def __init__(self, inner: Any) -> None:
            self.properties = inner.properties
            self.new_input = inner.new_input

    table.files.inner = NoListing(table.files.inner)  # type: ignore[assignment]
    assert kinds(verify_table(table), *Severity) == {
        "folder-not-listed": 1,
        "metadata-not-pinned": 1,
    }


def test_no_error_of_a_file_io_is_taken_for_a_file_that_verified(made: Made) -> None:
    made.maker.commit(made.parquet())
    table = open_table(made.maker.write(), memory_kms())
    assert isinstance(table, EncryptedTable)

    class NoConnection:
        """A FileIO of somebody's that waits in a queue for a connection to the data files."""

        def __init__(self, inner: Any) -> None:
            self.properties = inner.properties
            self.inner = inner

        def new_input(self, location: str) -> Any:
            if "/data/" in location:
                raise queue.Empty
            return self.inner.new_input(location)

    table.files.inner = NoConnection(table.files.inner)  # type: ignore[assignment]
    with pytest.raises(queue.Empty):
        verify_table(table)


def test_kms_configuration_errors_are_raised() -> None:
    with pytest.raises(KmsConfigurationError):
        open_fixture("stats", kms=None)


# -- beside other writers


def expire(table: EncryptedTable) -> None:
    older = [snapshot.snapshot_id for snapshot in table.snapshots()[:-1]]
    table.expire_snapshots(snapshot_ids=older, prune_keys=True)


def replace_all(table: EncryptedTable) -> None:
    table.overwrite(pa.table({"id": [7]}))
    expire(table)


def append(table: EncryptedTable) -> None:
    table.append(pa.table({"id": [7]}))


@all_pairs(place=["lists", "files"], change=[expire, replace_all, append], is_damaged=[False, True])
def test_what_others_change_meanwhile_is_no_damage(
    catalog: Any, place: str, change: Callable[[EncryptedTable], None], is_damaged: bool
) -> None:
    """What others have expired is not missing, and what they have added is no orphan. A file that
    the newest version needs is missing all the same."""
    schema = pa.schema([("id", pa.int64())])
    table = catalog.create_table("db.t", schema, properties={"encryption.key-id": "keyA"})
    for number in range(3):
        table.append(pa.table({"id": [number]}))
    table.delete("id = 0")  # the file goes
    before = table.metadata_location
    other = catalog.load_table("db.t")
    changes = iter([change])

    def change_once() -> None:
        for work in changes:
            work(other)
            if is_damaged:
                [*_, path] = other.inspect.files()["file_path"].to_pylist()
                Path(path.removeprefix("file://")).unlink()

    class Later(CheckThreads):
        def run(self, *arguments: Any) -> Any:
            if place == "files":
                change_once()
            return super().run(*arguments)

    def clock_ms() -> int:
        if place == "lists":
            change_once()
        return time.time_ns() // 1_000_000

    with ThreadPoolExecutor(2) as pool:
        result = verify_table(table, clock_ms=clock_ms, executor=Later(pool, 2, 2))
    missing = dict(result.finding_counts)
    missing.pop("orphans-not-searched", None)
    expected = {"missing-file": 1} if is_damaged else {}
    assert missing == expected
    assert table.metadata_location == before
    newest = other.metadata_location if change is replace_all else before
    assert result.metadata_location == newest
