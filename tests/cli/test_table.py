"""``ags1 table``: Java's tables described, read, listed and verified from the command line."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import pty
import shutil
import signal
import sqlite3
import stat
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from iceberg_tables import (
    JAVA_LOCATION,
    KMS_PROPERTIES,
    MASTER_KEYS,
    TABLES,
    by_id,
    copied,
    expected_rows,
    memory_kms,
    metadata_file,
)
from table_maker import TableMaker

from ags1 import KeyMetadata
from ags1.cli.table.rows import json_value

from .test_files import execute, home, run, start, wait_for

__all__ = ["home"]

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

KMS = ["--kms", "memory"] + [
    argument
    for name, key in MASTER_KEYS.items()
    for argument in ("--kms-property", f"encryption.kms.key.{name}={key.hex()}")
]
WARNING = "ags1: master keys in properties are for tests"


def table(command: str, where: object, *arguments: object, kms: bool = True) -> Result:
    return run("table", command, where, *(KMS if kms else ()), *arguments)


def told(result: Result) -> list[str]:
    """The lines on standard error, without what the KMS of these tests warns of."""
    return [line for line in result.stderr.splitlines() if not line.startswith(WARNING)]


def succeed(command: str, where: object, *arguments: object, **more: Any) -> str:
    result = table(command, where, *arguments, **more)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def fail(code: int, command: str, where: object, *arguments: object, **more: Any) -> str:
    """Expect an exit code and one line about it; return the line."""
    result = table(command, where, "-q", *arguments, **more)
    assert result.exit_code == code, (result.stdout, result.stderr)
    (line,) = told(result)
    assert line.startswith("ags1")
    return line


# -- which table


@pytest.mark.parametrize("name", ["stats", "mor_dv"])
def test_a_folder_is_read_where_it_lies_and_what_is_read_is_told(name: str) -> None:
    result = table("scan", TABLES / name, "--format", "jsonl")
    assert by_id([json.loads(line) for line in result.stdout.splitlines()]) == expected_rows(name)
    assert told(result) == [
        f"ags1: reading {metadata_file(name)}",
        f"ags1: the table was moved here from {JAVA_LOCATION}/{name}",
    ]
    assert told(table("scan", TABLES / name, "-q")) == []


def test_a_folder_in_a_storage_that_cannot_list() -> None:
    module = "iceberg.storage.test_metadata_files"
    result = table("scan", TABLES / "stats", "--io-property", f"py-io-impl={module}.BlindIO")
    said = "BlindIO cannot list the files in this folder: name the metadata.json"
    assert (result.exit_code, told(result)) == (6, [f"ags1: {TABLES}/stats: {said}"])


def test_a_metadata_file_and_a_map(home: Path) -> None:
    arguments = ["--map", f"{JAVA_LOCATION}={TABLES}", "--format", "csv"]
    text = succeed("scan", metadata_file("stats"), *arguments)
    assert len(text.splitlines()) == 1 + len(expected_rows("stats"))
    # Without a map, a hint comes before the error.
    hint, _ = told(table("scan", metadata_file("stats")))
    assert f"the table is in {JAVA_LOCATION}/stats" in hint
    assert "name the folder" in hint
    # A relative path, and a URL.
    shutil.copytree(TABLES / "stats", home / "stats")
    assert succeed("scan", "stats", "-q", *arguments) == text
    assert succeed("scan", f"file://{home}/stats", "-q", *arguments) == text


def test_an_older_version_by_its_metadata_file() -> None:
    path = sorted((TABLES / "parquet_plain" / "metadata").glob("*.metadata.json"))[1]
    arguments = ["--map", f"{JAVA_LOCATION}={TABLES}", "--format", "csv", "--columns", "id"]
    assert len(succeed("scan", path, *arguments).splitlines()) == 1 + 1000


@pytest.fixture
def catalog(home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """PyIceberg's configuration with a SQL catalog 'prod' that has Java's table ``db.stats``."""
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog import _ENV_CONFIG, load_catalog

    copied("stats", home)
    properties = {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": str(home)}
    plain = load_catalog("prod", **properties)
    plain.create_namespace("db")
    plain.register_table("db.stats", str(metadata_file("stats", home)))
    plain.close()
    monkeypatch.setattr(_ENV_CONFIG, "config", {"catalog": {"prod": properties}})
    return properties


@pytest.mark.parametrize("name", ["db.stats", "prod.db.stats"])
def test_a_table_of_a_catalog(home: Path, catalog: dict[str, str], name: str) -> None:
    arguments = ["--catalog", "prod", "--map", f"{JAVA_LOCATION}={home}"]
    text = succeed("scan", name, *arguments, "--format", "jsonl")
    assert by_id([json.loads(line) for line in text.splitlines()]) == expected_rows("stats")
    checked = table("check", name, *arguments, "--full", "--json")
    counts = json.loads(checked.stdout)["finding_counts"]
    assert (checked.exit_code, counts["plain-statistics"]) == (10, 2)
    assert json.loads(succeed("info", name, *arguments, "--json", kms=False))["key_id"] == "keyA"
    # The KMS that the catalog's configuration names.
    catalog.update(KMS_PROPERTIES)
    assert succeed("scan", name, *arguments, "--format", "jsonl", kms=False) == text


def test_what_a_catalog_pins_is_shown(home: Path, catalog: dict[str, str]) -> None:
    from ags1.iceberg import load_catalog

    def shown(*more: str) -> tuple[dict[str, Any], str]:
        where = ["db.stats", "--catalog", "prod", *more]
        [line] = [x for x in succeed("info", *where).splitlines() if x.startswith("pinned")]
        facts: dict[str, Any] = json.loads(succeed("info", *where, "--json"))["pinned"]
        return facts, line

    path = metadata_file("stats", home)
    nothing = {"key_id": None, "metadata_location": None, "metadata_confirmed": False}
    facts, line = shown()
    assert facts == nothing
    assert "nothing: whoever can write metadata.json" in line
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    facts, line = shown("--expect-sha256", digest)
    assert facts == nothing | {"metadata_confirmed": True}
    assert "the SHA-256 that was given" in line
    with load_catalog("prod", **KMS_PROPERTIES) as ours:
        ours.drop_table("db.stats")
        ours.register_table("db.stats", str(path))
    facts, line = shown()
    kept = {"key_id": "keyA", "metadata_location": str(path), "metadata_confirmed": True}
    assert facts == kept
    assert line.endswith("in the catalog: the key keyA and the hash of metadata.json")
    # Another writer.
    theirs = path.with_name("00099-theirs.metadata.json")
    theirs.write_bytes(path.read_bytes())
    with sqlite3.connect(home / "catalog.db") as database:
        database.execute("UPDATE iceberg_tables SET metadata_location = ?", [str(theirs)])
    facts, line = shown()
    assert facts == kept | {"metadata_confirmed": False}
    assert line.endswith(f"the hash of {path}, which another writer has replaced")
    with sqlite3.connect(home / "catalog.db") as database:
        database.execute(
            "UPDATE iceberg_namespace_properties SET property_value = 'unconfirmed'"
            " WHERE property_key = 'ags1.pin.location.stats'"
        )
    facts, line = shown()
    assert facts == kept | {"metadata_location": None, "metadata_confirmed": False}
    assert line.endswith("in the catalog: the key keyA, and no hash of metadata.json")


def test_a_catalog_s_rules_hold_here_too(home: Path, catalog: dict[str, str]) -> None:
    catalog["encryption.trusted-key-ids"] = "keyB"
    for command in ("info", "scan", "check"):
        result = table(command, "db.stats", "--catalog", "prod")
        assert result.exit_code == 7
        assert "'keyA'" in result.stderr
    catalog["encryption.require-encrypted"] = "true"
    maker = TableMaker(home / "plain", [{"id": 1, "name": "id", "type": "long"}])
    from ags1.iceberg import load_catalog

    load_catalog("prod").inner.register_table("db.plain", maker.write())
    assert "not encrypted" in fail(7, "scan", "db.plain", "--catalog", "prod")


def test_what_a_catalog_does_not_have(catalog: dict[str, str]) -> None:
    assert "db.nothing" in fail(2, "scan", "db.nothing", "--catalog", "prod")
    assert "NAMESPACE.TABLE" in fail(2, "scan", "stats", "--catalog", "prod")
    assert "no catalog 'nope'" in fail(2, "scan", "db.stats", "--catalog", "nope")


# -- trust


def test_the_table_has_to_be_the_expected_one() -> None:
    where = TABLES / "stats"
    digest = hashlib.sha256(metadata_file("stats").read_bytes()).hexdigest()
    expectations = ["--expect-key-id", "keyA", "--expect-sha256", digest]
    assert succeed("scan", where, *expectations, "--limit", 1)
    for command in ("scan", "files", "check"):
        assert "keyB" in fail(7, command, where, "--key", "keyB")
        assert "SHA-256" in fail(7, command, where, "--expect-sha256", "0" * 64)
    assert "64 hexadecimal" in fail(2, "scan", where, "--expect-sha256", "abc")


def test_a_table_whose_encryption_was_stripped(tmp_path: Path) -> None:
    copied("stats", tmp_path)
    path = metadata_file("stats", tmp_path)
    metadata = json.loads(path.read_text())
    del metadata["properties"]["encryption.key-id"]
    path.write_text(json.dumps(metadata))
    assert "somebody removed it" in fail(7, "check", tmp_path / "stats")
    failure = table("check", tmp_path / "stats", "--json")
    assert failure.exit_code == 7
    assert json.loads(failure.stdout)["error"]["kind"] == "NotEncryptedError"


def test_where_a_key_may_be_a_strangers_it_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from ags1.kms.memory import MemoryKms

    monkeypatch.setattr(MemoryKms, "accepts_foreign_keys", True)
    assert "--key" in fail(2, "scan", TABLES / "stats")
    assert succeed("scan", TABLES / "stats", "--key", "keyA", "--limit", 1)
    monkeypatch.setenv("AGS1_KMS_TYPE", "memory")
    monkeypatch.setenv("AGS1_KMS_KEY", "keyB")
    fail(7, "scan", TABLES / "stats")
    monkeypatch.setenv("AGS1_KMS_KEY", "keyA")
    assert succeed("scan", TABLES / "stats", "--limit", 1)


def test_without_the_master_key() -> None:
    fail(5, "scan", TABLES / "stats", kms=False)
    wrong = ["--kms", "memory", "--kms-property", "encryption.kms.key.keyB=" + "00" * 16]
    fail(5, "scan", TABLES / "stats", *wrong, kms=False)


@pytest.mark.parametrize("command", ["info", "files", "check"])
def test_with_json_failures_are_json_too(command: str) -> None:
    result = table(command, TABLES / "nothing", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 6
    assert (told["ok"], told["exit_code"]) == (False, 6)
    assert str(TABLES / "nothing") in told["error"]["message"]


# -- info and files


def test_info_tells_what_the_metadata_has_and_needs_no_key() -> None:
    facts = json.loads(succeed("info", TABLES / "mor_dv", "--json", kms=False))
    metadata = json.loads(metadata_file("mor_dv").read_text())
    assert facts["table_uuid"] == metadata["table-uuid"]
    assert (facts["key_id"], facts["data_key_length"]) == ("keyA", 16)
    assert facts["encrypted"] is True
    assert facts["refs"]["main"]["snapshot_id"] == metadata["current-snapshot-id"]
    assert [(s["snapshot_id"], s["key_id"], s["operation"]) for s in facts["snapshots"]] == [
        (s["snapshot-id"], s["key-id"], s["summary"]["operation"]) for s in metadata["snapshots"]
    ]
    assert [s["rows"] for s in facts["snapshots"]] == [
        int(s["summary"]["total-records"]) for s in metadata["snapshots"]
    ]
    (kek,) = [e for e in metadata["encryption-keys"] if e.get("encrypted-by-id") == "keyA"]
    assert [(k["kek_id"], k["master_key_id"]) for k in facts["keks"]] == [(kek["key-id"], "keyA")]
    assert {s["kek_id"] for s in facts["snapshots"]} == {kek["key-id"]}


@pytest.mark.parametrize("digits", [30, 5000])
def test_info_of_numbers_that_are_none(tmp_path: Path, digits: int) -> None:
    copied("stats", tmp_path)
    path = metadata_file("stats", tmp_path)
    metadata = json.loads(path.read_text())
    for entry in metadata["encryption-keys"]:
        if "KEY_TIMESTAMP" in entry.get("properties", {}):
            entry["properties"]["KEY_TIMESTAMP"] = "9" * digits
    metadata["snapshots"][0]["timestamp-ms"] = 10**17
    metadata["snapshots"][0]["summary"]["total-records"] = "x" * digits
    path.write_text(json.dumps(metadata))
    facts = json.loads(succeed("info", path, "--json", kms=False))
    assert [kek["created"] for kek in facts["keks"]] == [None]
    assert (facts["snapshots"][0]["time"], facts["snapshots"][0]["rows"]) == ("unknown", None)
    assert "of unknown age" in succeed("info", path, kms=False)


def test_info_in_words_and_of_plain_and_empty_tables(tmp_path: Path) -> None:
    text = succeed("info", TABLES / "stats", kms=False)
    assert "under keyA" in text
    assert text.count("statistics ") == 2
    assert "keyA" in succeed("info", TABLES / "empty", kms=False)
    plain = TableMaker(tmp_path / "plain", [{"id": 1, "name": "id", "type": "long"}])
    plain.commit(plain.add_parquet([{"id": 1}]))
    plain.write()
    assert "plaintext" in succeed("info", tmp_path / "plain", kms=False)
    assert json.loads(succeed("info", tmp_path / "plain", "--json", kms=False))["keks"] == []
    assert succeed("scan", tmp_path / "plain", kms=False).split() == ["id", "--", "1"]
    assert not json.loads(succeed("files", tmp_path / "plain", "--json", kms=False))["encrypted"]
    checked = table("check", tmp_path / "plain", kms=False)
    assert checked.exit_code == 7
    assert "error: unencrypted-table: the table is not encrypted" in checked.stdout
    assert "    ags1 table migrate NAMESPACE.TABLE --catalog CATALOG --key KEY\n" in checked.stdout


@pytest.mark.parametrize("name", ["mor_dv", "parquet_plain", "stats"])
def test_files_are_those_that_spark_lists(name: str) -> None:
    listed = [json.loads(line) for line in succeed("files", TABLES / name, "--json").splitlines()]
    expected = json.loads((TABLES / "read_by_spark" / name / "files.json").read_text())
    assert sorted((f["path"], f["format"], f["file_size"]) for f in listed) == sorted(
        (f["file_path"], f["file_format"].lower(), f["file_size_in_bytes"]) for f in expected
    )
    deleted = sum(f["rows"] for f in listed if f["content"] == "deletion-vector")
    assert sum(f["rows"] for f in listed if f["content"] == "data") - deleted == len(
        expected_rows(name)
    )
    assert all(f["encrypted"] for f in listed)
    text = succeed("files", TABLES / name)
    assert len(text.splitlines()) == len(expected)
    for file in expected:
        key = KeyMetadata.from_bytes(bytes.fromhex(file["km"])).encryption_key
        assert key.hex() not in text + json.dumps(listed)


def test_files_of_an_older_snapshot() -> None:
    metadata = json.loads(metadata_file("parquet_plain").read_text())
    for number, snapshot in enumerate(metadata["snapshots"], 1):
        arguments = ["--snapshot", snapshot["snapshot-id"], "-q"]
        assert len(succeed("files", TABLES / "parquet_plain", *arguments).splitlines()) == number
    assert succeed("files", TABLES / "empty") == ""


# -- scan


@pytest.mark.parametrize("form", ["jsonl", "csv", "arrow", "parquet"])
@pytest.mark.parametrize("output", [None, "/dev/stdout", "out", "descriptor"])
def test_every_format_has_the_rows(home: Path, form: str, output: str | None) -> None:
    arguments = ["--format", form, "-q"]
    if output == "descriptor":
        (home / "out").write_bytes(b"old")
        with open("out", "ab") as file:
            result = table("scan", TABLES / "stats", *arguments, "-o", f"/dev/fd/{file.fileno()}")
    else:
        result = table("scan", TABLES / "stats", *arguments, *(["-o", output] if output else []))
    assert result.exit_code == 0, result.stderr
    data = result.stdout_bytes or (home / "out").read_bytes()
    if output == "descriptor":
        old, data = data[:3], data[3:]
        assert old == b"old"
    if form == "jsonl":
        rows = [json.loads(line) for line in data.splitlines()]
    elif form == "csv":
        rows = [{**r, "id": int(r["id"])} for r in csv.DictReader(io.StringIO(data.decode()))]
    elif form == "arrow":
        rows = pa.ipc.open_stream(data).read_all().to_pylist()
    else:
        rows = pq.read_table(io.BytesIO(data)).to_pylist()
    assert by_id(rows) == expected_rows("stats")


def test_filter_columns_limit_and_snapshot() -> None:
    where = TABLES / "mor_dv"
    expected = expected_rows("mor_dv")
    text = succeed("scan", where, "-q", "--format", "jsonl", "--filter", "g = 3 and id > 1000")
    assert by_id([json.loads(line) for line in text.splitlines()]) == [
        row for row in expected if row["g"] == 3 and row["id"] > 1000
    ]
    text = succeed("scan", where, "-q", "--format", "csv", "--columns", "s,id", "--limit", "7")
    assert text.splitlines()[0] in ("s,id", "id,s")
    assert len(text.splitlines()) == 8
    arguments = ["--columns", "*,_pos,_file", "--filter", "_pos < 3 and g is not null"]
    text = succeed("scan", where, "-q", "--format", "jsonl", *arguments)
    found = [json.loads(line) for line in text.splitlines()]
    assert list(found[0]) == ["id", "g", "s", "_pos", "_file"]
    assert {row["_pos"] for row in found} == {0, 2}  # 1 was deleted
    assert {row["_file"].startswith(JAVA_LOCATION) for row in found} == {True}
    first = json.loads(metadata_file("mor_dv").read_text())["snapshots"][0]["snapshot-id"]
    arguments = ["-q", "--format", "csv", "--snapshot", first]
    assert len(succeed("scan", where, *arguments).splitlines()) == 2001
    arguments = ["-q", "--format", "csv", "--ref", "main"]
    assert len(succeed("scan", where, *arguments).splitlines()) == 1 + len(expected)


def test_wrong_usage_is_one_line() -> None:
    where = TABLES / "stats"
    assert "zz" in fail(2, "scan", where, "--filter", "zz = 3")
    assert "character" in fail(2, "scan", where, "--filter", "id > > 3")
    # A shell's variable that is not set does not mean all rows.
    assert "--filter ''" in fail(2, "scan", where, "--filter", "")
    assert "nope" in fail(2, "scan", where, "--columns", "nope")
    assert "_partition" in fail(2, "scan", where, "--filter", "_partition = 3")
    assert "no snapshot 7" in fail(2, "scan", where, "--snapshot", "7")
    assert "'nope'" in fail(2, "scan", where, "--ref", "nope")
    assert "name one" in fail(2, "scan", where, "--ref", "main", "--snapshot", "7")
    assert "OLD=NEW" in fail(2, "scan", where, "--map", "there")
    assert "twice" in fail(2, "scan", where, "--map", "a=b", "--map", "a=c")
    assert "no metadata.json" in fail(6, "scan", TABLES)
    fail(6, "scan", "nowhere.metadata.json")


def test_a_file_is_written_whole_or_not_at_all(home: Path) -> None:
    mask = os.umask(0o027)
    try:
        succeed("scan", TABLES / "stats", "-q", "-o", "rows.csv")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((home / "rows.csv").stat().st_mode) == 0o640
    before = (home / "rows.csv").read_bytes()
    assert before.startswith(b"id,p\n") or b"," in before.splitlines()[0]
    assert "--force" in fail(6, "scan", TABLES / "stats", "-o", "rows.csv")
    assert "give --format" in fail(2, "scan", TABLES / "stats", "-o", "rows.feather")
    copied("stats", home)
    for path in (home / "stats" / "data").rglob("*.parquet"):
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 3] ^= 1
        path.write_bytes(damaged)
    for form in ("csv", "parquet", "arrow", "table", "jsonl"):
        fail(7, "scan", home / "stats", "--format", form, "-o", "rows.csv", "--force")
        assert (home / "rows.csv").read_bytes() == before
    assert sorted(p.name for p in home.iterdir()) == ["rows.csv", "stats"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_binary_formats_are_not_for_a_terminal(form: str) -> None:
    leader, follower = pty.openpty()
    try:
        code, _, errors = execute(
            "table", "scan", TABLES / "stats", *KMS, "--format", form, stdout=follower
        )
    finally:
        os.close(follower)
        os.close(leader)
    assert code == 2
    assert b"not written to a terminal" in errors


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_message() -> None:
    with start(
        "table", "scan", TABLES / "parquet_plain", "-q", *KMS, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read().decode() if process.stderr else ""
    assert [line for line in errors.splitlines() if not line.startswith(WARNING)] == []


def test_values_as_json() -> None:
    import datetime
    import decimal
    import uuid

    moment = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc)
    value = {
        "a": b"\x00\xff",
        "b": decimal.Decimal("1.50"),
        "c": moment,
        "d": [float("nan"), float("-inf"), 0.5, None, True],
        "e": [("k", uuid.UUID(int=1))],
    }
    assert json.loads(json.dumps(json_value(value))) == {
        "a": "AP8=",
        "b": "1.50",
        "c": "2026-01-31T12:00:00+00:00",
        "d": ["nan", "-inf", 0.5, None, True],
        "e": [["k", "00000000-0000-0000-0000-000000000001"]],
    }


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    made = TableMaker(tmp_path / "t", [{"id": 1, "name": "s", "type": "string"}], memory_kms())
    made.commit(made.add_parquet([{"s": "\x1b[2J\nx"}]))
    made.write()
    assert "\x1b" not in succeed("scan", tmp_path / "t", "-q")


# -- check


def test_a_full_check_in_words_json_and_silence(tmp_path: Path) -> None:
    where = TABLES / "stats"
    result = table("check", where, "--full")
    assert result.exit_code == 10
    errors = [line for line in result.stdout.splitlines() if line.startswith("error")]
    assert [line.split(": ")[1] for line in errors] == ["plain-statistics"] * 2
    assert f"ags1: {where}: 1 snapshot, 1 KEK, 1 manifest, 2 data files, " in result.stderr
    result = json.loads(table("check", where, "--full", "--json").stdout)
    assert (result["ok"], result["exit_code"], result["errors"]) == (False, 10, 2)
    where = TABLES / "parquet_plain"
    lines = succeed("check", where, "--full").splitlines()
    assert lines[-1].startswith(f"{where}: OK: 3 snapshots, 1 KEK, 3 manifests, 3 data files, ")
    assert succeed("check", where, "--full", "--quiet") == ""
    assert "metadata-not-pinned" in succeed("check", where)
    digest = hashlib.sha256(metadata_file("parquet_plain").read_bytes()).hexdigest()
    assert "metadata-not-pinned" not in succeed("check", where, "--expect-sha256", digest)
    copy = copied("mor_dv", tmp_path)
    (copy / "notes.txt").write_text("x")
    assert "stray-plain-file" in table("check", copy).stdout
    assert "stray-plain-file" not in succeed("check", copy, "--no-list")


@pytest.mark.parametrize(
    ("harm", "code", "kind"),
    [
        (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], 7, "authentication"),
        (lambda data: data[:-1], 3, "truncated"),
        (lambda data: data + b"\0", 4, "format"),
        (lambda data: b"PAR1" + data[4:], 7, "not-encrypted"),
        (None, 6, "missing-file"),
    ],
)
def test_the_exit_code_tells_what_is_wrong(tmp_path: Path, harm: Any, code: int, kind: str) -> None:
    folder = copied("parquet_plain", tmp_path)
    path = next((folder / "data").rglob("*.parquet"))
    whole = path.read_bytes()
    path.unlink()
    if harm is not None:
        path.write_bytes(harm(whole))
    result = table("check", folder, "--full")
    assert result.exit_code == code
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("error")]
    assert line.startswith(f"error: {kind}: {JAVA_LOCATION}/{path.relative_to(tmp_path)}: ")
    assert told(result)[-1].startswith(f"ags1: {folder}: ")
    assert "1 error" in told(result)[-1]
    as_json = json.loads(table("check", folder, "--full", "--json").stdout)
    assert (as_json["ok"], as_json["exit_code"], as_json["errors"]) == (False, code, 1)


def test_of_several_errors_the_gravest_is_the_exit_code(tmp_path: Path) -> None:
    folder = copied("stats", tmp_path)  # its statistics are not encrypted
    assert table("check", folder, "--full").exit_code == 10
    one, other = (folder / "data").rglob("*.parquet")
    one.unlink()
    whole = other.read_bytes()
    other.write_bytes(whole[:-1])
    assert table("check", folder, "--full").exit_code == 3
    one.write_bytes(b"PAR1" + whole[4:])
    assert table("check", folder, "--full").exit_code == 7


def test_plain_data_can_be_forbidden(tmp_path: Path) -> None:
    made = TableMaker(tmp_path / "t", [{"id": 1, "name": "id", "type": "long"}], memory_kms())
    made.commit(made.add_parquet([{"id": 1}], encrypted=False))
    made.write()
    where = tmp_path / "t"
    checked = table("check", where, "--full")
    assert checked.exit_code == 10
    assert ", 1 data file not encrypted, " in checked.stderr
    assert succeed("scan", where, "-q").split() == ["id", "--", "1"]
    assert table("check", where, "--require-encrypted").exit_code == 7
    fail(7, "scan", where, "--require-encrypted")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_ends_it(tmp_path: Path, number: int, code: int) -> None:
    marker = tmp_path / "asked"
    kms = ["--kms-property", "encryption.kms-impl=cli.kms_impls:SilentKms"]
    kms += ["--kms-property", f"test.marker={marker}"]
    with start("table", "check", TABLES / "stats", "-q", *kms, stdout=subprocess.PIPE) as process:
        wait_for(marker.exists)
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, b"")
    assert errors == (b"ags1: interrupted\n" if number == signal.SIGINT else b"")


# -- help


def test_help_of_the_group_and_its_commands_has_examples() -> None:
    for arguments in ([], ["info"], ["scan"], ["files"], ["check"]):
        text = run("table", *arguments, "--help").stdout
        assert "Examples:" in text
    for command in ("info", "scan", "files", "check"):
        assert "Exit status:" in run("table", command, "--help").stdout
    assert run("table").exit_code == 2


def test_help_imports_neither_pyiceberg_nor_arrow(run_python: Any) -> None:
    run_python(
        """
import sys
from ags1.cli.app import app
try:
    app.main(["table", "check", "--help"])
except SystemExit as end:
    assert not end.code
loaded = {name.partition(".")[0] for name in sys.modules}
assert not {"pyiceberg", "pyarrow", "rich", "fastavro", "configparser"} & loaded, loaded
"""
    )


# -- columns of types that are not known


def test_a_table_with_a_column_of_an_unknown_type(tmp_path: Path) -> None:
    copied("stats", tmp_path)
    path = metadata_file("stats", tmp_path)
    metadata = json.loads(path.read_bytes())
    for schema in metadata["schemas"]:
        schema["fields"].append({"id": 90, "name": "v", "required": False, "type": "interval"})
    path.write_text(json.dumps(metadata))
    line = fail(2, "scan", path.parent.parent)
    assert "column 'v' has type interval, which this version does not read" in line
    assert "select others, such as id, p (see --columns)" in line
    text = succeed("scan", path.parent.parent, "-q", "--columns", "id", "--format", "csv")
    assert len(text.splitlines()) == 1 + 1000
    assert "authentication" not in table("check", path.parent.parent, "--full").stdout
    assert succeed("files", path.parent.parent)
    assert succeed("info", path.parent.parent)
