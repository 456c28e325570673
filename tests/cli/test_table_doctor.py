"""``ags1 table doctor``: each command that it names mends the finding, and parses."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exposing import rewrite_manifests_as_java_1_11
from pyiceberg.catalog import load_catalog as load_plain_catalog

from ags1.cli.table.commands import table as table_commands
from ags1.iceberg import EncryptedTable, verify_table
from ags1.kms import create_key

from .test_files import home, run
from .test_table_changes import ROWS, catalog, filled, ids, load, table

__all__ = ["catalog", "filled", "home"]

DAY = 24 * 60 * 60


def doctor(name: str = "db.t", *arguments: object, code: int = 0) -> dict[str, Any]:
    result = table("doctor", name, *arguments, "--json")
    assert result.exit_code == code, (result.stdout, result.stderr)
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["exit_code"] == code
    return found


def commands(found: dict[str, Any]) -> dict[str, str | None]:
    return {finding["kind"]: finding["command"] for finding in found["findings"]}


def execute(command: str, status: int = 0) -> None:
    """Run a command as a shell would, and answer its question."""
    program, *arguments = shlex.split(command)
    assert program == "ags1"
    asks = arguments[1] in ("expire", "erase", "prune-keys", "remove-orphans")
    result = run(*arguments, *(["--yes"] if asks else []))
    assert (result.exit_code, result.stderr) == (status, ""), (result.stdout, result.stderr)


def folder(of: EncryptedTable) -> Path:
    return Path(of.location().removeprefix("file://"))


def exposed(of: EncryptedTable) -> None:
    rewrite_manifests_as_java_1_11(of)


def plain_file(of: EncryptedTable) -> None:
    path = folder(of) / "data" / "plain.parquet"
    plain = pa.table({"id": pa.array([9], pa.int64()), "v": ["v9"], "n": [4.5]})
    schema = pa.schema([f.with_nullable(f.name != "id") for f in plain.schema])
    pq.write_table(plain.cast(schema), path)
    of.add_files([str(path)], allow_plaintext=True)


def small_files(of: EncryptedTable) -> None:
    for number in range(6, 10):
        of.append(pa.Table.from_pylist([ROWS[0] | {"id": number}], of.schema().as_arrow()))


def deleted(of: EncryptedTable) -> None:
    of.delete("id = 2")


def rolled_back(of: EncryptedTable) -> None:
    of.delete("id = 2")
    snapshots = [s.snapshot_id for s in of.metadata.snapshots]
    of.expire_snapshots(snapshot_ids=snapshots[:1])


def several_keks(of: EncryptedTable) -> None:
    """As Java leaves them after a rotation: it puts the old KEK back."""
    old = of.files.keys.key_encryption_keys
    of.rotate_keys()
    transaction = of.transaction()
    transaction.stage_updates(
        [{"action": "add-encryption-key", "encryption-key": key.to_dict()} for key in old], []
    )
    transaction.commit_transaction()


def orphan(of: EncryptedTable) -> None:
    path = folder(of) / "data" / "orphan.parquet"
    path.write_bytes(b"PAR1")
    os.utime(path, (time.time() - 9 * DAY,) * 2)


def old_snapshots(of: EncryptedTable) -> None:
    with of.transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "1"})
    time.sleep(0.01)


def metadata_files(of: EncryptedTable) -> None:
    with of.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "1"})


MENDED: list[tuple[str, Callable[[EncryptedTable], None], str, int]] = [
    ("exposed-keys", exposed, "ags1 table rekey db.t --catalog prod --exposed", 7),
    ("plain-data-file", plain_file, "ags1 table rekey db.t --catalog prod --unencrypted", 0),
    ("compaction", small_files, "ags1 table compact db.t --catalog prod", 0),
    ("deleted-rows", deleted, "ags1 table erase db.t --catalog prod", 0),
    ("orphan-key", rolled_back, "ags1 table prune-keys db.t --catalog prod", 0),
    ("several-keks", several_keks, "ags1 table rotate db.t --catalog prod", 0),
    ("orphan-file", orphan, "ags1 table remove-orphans db.t --catalog prod", 0),
    ("old-snapshots", old_snapshots, "ags1 table expire db.t --catalog prod", 0),
    ("metadata-files", metadata_files, "ags1 table erase db.t --catalog prod", 0),
]


@pytest.mark.parametrize(("kind", "spoil", "command", "code"), MENDED, ids=[m[0] for m in MENDED])
def test_the_command_mends_the_finding(
    filled: EncryptedTable,
    kind: str,
    spoil: Callable[[EncryptedTable], None],
    command: str,
    code: int,
) -> None:
    assert doctor()["findings"] == []
    spoil(filled)
    assert commands(doctor(code=code))[kind] == command
    before = [] if kind == "exposed-keys" else ids()
    execute(command)
    found = doctor(code=code)
    assert kind not in commands(found)
    assert before in ([], ids())


@pytest.mark.parametrize("spoil", [exposed, plain_file])
def test_doctor_and_its_commands_end_in_silence(
    filled: EncryptedTable, spoil: Callable[[EncryptedTable], None]
) -> None:
    """A rekeyed table's earlier snapshots still have the old files: the next finding."""
    spoil(filled)
    seen = []
    for _ in range(5):
        findings = json.loads(table("doctor", "db.t", "--json").stdout)["findings"]
        if not findings:
            break
        seen.append(findings[0]["kind"])
        execute(findings[0]["command"])
    assert findings == []
    assert seen[1] == f"{seen[0]}-earlier"
    result = verify_table(load())
    assert (result.ok, result.plain_data_files, result.exposed_files) == (True, 0, 0)


def test_a_plain_table_is_to_be_migrated(catalog: dict[str, str]) -> None:
    plain = load_plain_catalog("prod")
    plain.create_namespace("db")
    rows = pa.table({"id": pa.array([1], pa.int64())})
    plain.create_table("db.plain", rows.schema).append(rows)
    found = doctor("db.plain", code=7)
    assert found["encrypted"] is False
    command = "ags1 table migrate db.plain --catalog prod --key KEY"
    assert commands(found) == {"unencrypted-table": command}
    execute(command.replace("KEY", "default"))
    assert doctor("db.plain")["findings"] == []


def test_without_the_key_the_metadata_is_examined(filled: EncryptedTable, home: Path) -> None:
    old_snapshots(filled)
    keyring = home.parent / "config" / "ags1" / "keyring.json"
    keyring.rename(home / "away.json")
    found = doctor()
    assert list(commands(found)) == ["old-snapshots"]
    assert (found["snapshots"], len(found["keks"]), found["branches"]) == (2, 1, [])
    (left,) = found["left_out"]
    assert "orphan files" in left["checks"]
    assert "keyring" in left["reason"]
    result = table("doctor", "db.t")
    assert "left out: manifests, compaction" in result.stderr
    assert result.stderr.count("\n") == 1
    doctor("db.t", "--strict", code=5)
    result = run("table", "doctor", str(folder(filled)))
    assert result.stderr.count("reading ") == 1


def test_with_a_wrong_key_the_metadata_is_examined(filled: EncryptedTable, home: Path) -> None:
    create_key("other.json", "default")
    found = doctor("db.t", "--keyring", "other.json")
    assert found["branches"] == []
    assert "wrapped" in found["left_out"][0]["reason"]


def test_commands_have_the_options_of_the_doctor_and_no_secrets(filled: EncryptedTable) -> None:
    deleted(filled)
    keyring = str(Path.cwd().parent / "config" / "ags1" / "keyring.json")
    options = ["--keyring", keyring, "--io-property", "s3.secret-access-key=topsecret"]
    result = table("doctor", "db.t", *options)
    command = f"ags1 table erase db.t --catalog prod --keyring {keyring}"
    assert f"    {command}\n" in result.stdout
    assert "topsecret" not in result.stdout + result.stderr
    assert "--io-property" in result.stderr
    where = str(folder(filled))
    command = "ags1 table erase NAMESPACE.TABLE --catalog CATALOG"
    result = run("table", "doctor", where)
    assert f"    {command}\n" in result.stdout
    _, *words = shlex.split(command)
    table_commands.commands["erase"].make_context("erase", words[2:])


def test_branches_are_named(filled: EncryptedTable) -> None:
    head = filled.metadata.current_snapshot_id
    assert head is not None
    filled.manage_snapshots().create_branch(head, "audit").commit()
    filled.append(
        pa.Table.from_pylist([ROWS[0] | {"id": 6}], filled.schema().as_arrow()), branch="audit"
    )
    filled.delete("id = 6", branch="audit")
    filled.delete("id = 2", branch="audit")
    found = doctor()
    assert [(b["name"], b["data_files"]) for b in found["branches"]] == [("audit", 2), ("main", 2)]
    assert found["branches"][0]["deletion_vectors"] == 1
    by_command = {f["command"]: f for f in found["findings"] if f["kind"] == "deleted-rows"}
    command = "ags1 table erase db.t --catalog prod --branch audit"
    assert command in by_command
    execute(command, 8)  # the branch main keeps its files
    assert "deleted-rows" not in commands(doctor())


def test_a_report_is_printed(filled: EncryptedTable) -> None:
    result = table("doctor", "db.t")
    assert result.stdout.startswith("branch main: 2 data files of ")
    assert result.stdout.endswith("db.t: OK: 2 snapshots, 1 KEK\n")
    assert table("doctor", "db.t", "--quiet").stdout == ""
    exposed(filled)
    result = table("doctor", "db.t", "--quiet")
    assert result.exit_code == 7
    assert result.stdout.startswith("error: exposed-keys: ")


def test_json_has_stable_names(filled: EncryptedTable) -> None:
    deleted(filled)
    found = doctor()
    assert set(found) == set(
        "ok exit_code metadata_location table_uuid encrypted key_id snapshots seconds errors "
        "warnings notes keks branches left_out findings".split()
    )
    (finding,) = [f for f in found["findings"] if f["kind"] == "deleted-rows"]
    assert set(finding) == set("severity kind message count size examples remedy command".split())
    assert (finding["severity"], finding["remedy"], finding["count"]) == ("note", ["erase"], 1)
