"""``ags1 table check``: each command that it names fixes the finding, and parses."""

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
from .test_table_changes import ROWS, catalog, fail, filled, ids, lakes, load, table

__all__ = ["catalog", "filled", "home", "lakes"]

DAY = 24 * 60 * 60


def check(name: str = "db.t", *arguments: object, code: int = 0) -> dict[str, Any]:
    result = table("check", name, *arguments, "--json")
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
    path.write_bytes(b"PARE")
    os.utime(path, (time.time() - 9 * DAY,) * 2)


def stray(of: EncryptedTable) -> None:
    path = folder(of) / "data" / "left.csv"
    path.write_text("id,v\n1,a\n")
    os.utime(path, (time.time() - 9 * DAY,) * 2)


def old_snapshots(of: EncryptedTable) -> None:
    with of.transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "1"})
    time.sleep(0.01)


def metadata_files(of: EncryptedTable) -> None:
    with of.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "1"})


FIXED: list[tuple[str, Callable[[EncryptedTable], None], str, int]] = [
    ("exposed-keys", exposed, "ags1 table rekey db.t --catalog prod --exposed", 7),
    ("plain-data-file", plain_file, "ags1 table rekey db.t --catalog prod --unencrypted", 10),
    ("compaction", small_files, "ags1 table compact db.t --catalog prod", 0),
    ("deleted-rows", deleted, "ags1 table erase db.t --catalog prod", 0),
    ("orphan-key", rolled_back, "ags1 table prune-keys db.t --catalog prod", 0),
    ("several-keks", several_keks, "ags1 table rotate db.t --catalog prod", 0),
    ("orphan-file", orphan, "ags1 table remove-orphans db.t --catalog prod", 0),
    ("stray-plain-file", stray, "ags1 table remove-orphans db.t --catalog prod", 10),
    ("old-snapshots", old_snapshots, "ags1 table expire db.t --catalog prod", 0),
    ("metadata-files", metadata_files, "ags1 table erase db.t --catalog prod", 0),
]


@pytest.mark.parametrize(("kind", "spoil", "command", "code"), FIXED, ids=[m[0] for m in FIXED])
def test_the_command_fixes_the_finding(
    filled: EncryptedTable,
    kind: str,
    spoil: Callable[[EncryptedTable], None],
    command: str,
    code: int,
) -> None:
    assert check()["findings"] == []
    spoil(filled)
    assert commands(check(code=code))[kind] == command
    before = [] if kind == "exposed-keys" else ids()
    execute(command)
    # Earlier snapshots have the old files: another command.
    is_earlier = kind in ("exposed-keys", "plain-data-file")
    found = check(code=code if is_earlier else 0)
    assert commands(found).get(kind) != command
    assert before in ([], ids())


@pytest.mark.parametrize("spoil", [exposed, plain_file])
def test_the_commands_end_in_silence(
    filled: EncryptedTable, spoil: Callable[[EncryptedTable], None]
) -> None:
    """A rekeyed table's earlier snapshots still have the old files: the next finding."""
    spoil(filled)
    seen = []
    for _ in range(5):
        findings = json.loads(table("check", "db.t", "--json").stdout)["findings"]
        if not findings:
            break
        seen.append(findings[0]["command"].split()[2])
        execute(findings[0]["command"])
    assert findings == []
    assert seen[:2] == ["rekey", "expire"]
    result = verify_table(load())
    assert (result.ok, result.plain_data_files, result.exposed_files) == (True, 0, 0)


def test_a_plain_table_is_to_be_migrated(catalog: dict[str, str]) -> None:
    plain = load_plain_catalog("prod")
    plain.create_namespace("db")
    rows = pa.table({"id": pa.array([1], pa.int64())})
    plain.create_table("db.plain", rows.schema).append(rows)
    found = check("db.plain", code=7)
    assert found["encrypted"] is False
    command = "ags1 table migrate db.plain --catalog prod --key KEY"
    assert commands(found) == {"unencrypted-table": command}
    migrated = run(*shlex.split(command.replace("KEY", "default"))[1:])
    assert migrated.exit_code == 0
    # What the migration has left is an error, until its command has deleted it.
    found = check("db.plain", code=10)
    assert {finding["kind"] for finding in found["findings"]} == {"stray-plain-file"}
    assert len(found["findings"]) == 3  # a data file, a manifest and a manifest list
    command = "ags1 table migrate db.plain --catalog prod --key default --delete-plaintext"
    assert commands(found) == {"stray-plain-file": command}
    result = table("check", "db.plain", "--full")
    assert result.exit_code == 10
    assert "error: stray-plain-file: 3 times: " in result.stdout
    assert result.stdout.count(f"    {command}\n") == 1
    assert result.stderr.endswith(", 3 errors\n")
    execute(f"{command} --yes")
    assert check("db.plain")["findings"] == []
    assert check("db.plain", "--full")["findings"] == []


def test_without_the_key_the_metadata_is_examined(filled: EncryptedTable, home: Path) -> None:
    old_snapshots(filled)
    keyring = home.parent / "config" / "ags1" / "keyring.json"
    keyring.rename(home / "away.json")
    assert list(commands(check("db.t", "--quick"))) == ["old-snapshots"]
    found = check(code=5)
    assert list(commands(found)) == ["old-snapshots"]
    assert (found["snapshots"], len(found["keks"]), found["branches"]) == (2, 1, [])
    (left,) = found["left_out"]
    assert left["checks"] == "manifests, files and folders"
    assert "keyring" in left["reason"]
    result = table("check", "db.t")
    assert "not checked: manifests, files and folders: " in result.stderr
    assert result.stderr.count("\n") == 2
    assert "keyring" in fail(5, "check", "db.t", "--full")
    result = run("table", "check", str(folder(filled)))
    assert result.stderr.count("reading ") == 1


def test_with_a_wrong_key_the_metadata_is_examined(filled: EncryptedTable, home: Path) -> None:
    create_key("other.json", "default")
    found = check("db.t", "--keyring", "other.json", code=5)
    assert found["branches"] == []
    assert "wrapped" in found["findings"][0]["message"]
    check("db.t", "--keyring", "other.json", "--quick")


def test_commands_have_the_options_of_the_check_and_no_secrets(filled: EncryptedTable) -> None:
    deleted(filled)
    keyring = str(Path.cwd().parent / "config" / "ags1" / "keyring.json")
    options = ["--keyring", keyring, "--io-property", "s3.secret-access-key=topsecret"]
    result = table("check", "db.t", *options)
    command = f"ags1 table erase db.t --catalog prod --keyring {keyring}"
    assert f"    {command}\n" in result.stdout
    assert "topsecret" not in result.stdout + result.stderr
    assert "--io-property" in result.stderr
    where = str(folder(filled))
    command = "ags1 table erase NAMESPACE.TABLE --catalog CATALOG"
    result = run("table", "check", where)
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
    found = check()
    assert [(b["name"], b["data_files"]) for b in found["branches"]] == [("audit", 2), ("main", 2)]
    assert found["branches"][0]["deletion_vectors"] == 1
    by_command = {f["command"]: f for f in found["findings"] if f["kind"] == "deleted-rows"}
    command = "ags1 table erase db.t --catalog prod --branch audit"
    assert command in by_command
    execute(command, 8)  # the branch main keeps its files
    assert "deleted-rows" not in commands(check())


def test_a_report_is_printed(filled: EncryptedTable) -> None:
    result = table("check", "db.t")
    assert result.stdout.startswith("branch main: 2 data files of ")
    assert result.stdout.endswith("db.t: OK: 2 snapshots, 1 KEK, 2 manifests, 2 data files\n")
    assert table("check", "db.t", "--quiet").stdout == ""
    exposed(filled)
    result = table("check", "db.t", "--quiet")
    assert result.exit_code == 7
    assert result.stdout.startswith("error: exposed-keys: ")


def test_warnings_are_failures_if_that_is_asked(filled: EncryptedTable) -> None:
    with filled.transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "x"})
    assert check()["warnings"] == 1
    assert check("db.t", "--strict", code=4)["ok"] is False


def test_the_former_names_say_the_new_one(filled: EncryptedTable) -> None:
    for name, now in (("doctor", "ags1 table check"), ("verify", "ags1 table check --full")):
        result = table(name, "db.t")
        warning = f"ags1: 'ags1 table {name}' is now '{now}'. The next release has only this name\n"
        assert (result.exit_code, result.stderr) == (0, warning)
        options = now.split()[3:]
        for same in (table(name, "db.t", "--json"), table("check", "db.t", *options, "--json")):
            found = json.loads(same.stdout)
            assert (found["level"], found["errors"]) == ("full" if options else "default", 0)
    shown = run("table", "--help").stdout
    assert "  check " in shown
    assert "  doctor " not in shown
    assert "  verify " not in shown


def test_json_has_stable_names(filled: EncryptedTable) -> None:
    deleted(filled)
    found = check()
    assert set(found) == set(
        "ok exit_code level metadata_location table_uuid encrypted key_id snapshots manifest_lists "
        "manifests data_files plain_data_files delete_files deletion_vectors statistics_files "
        "exposed_files exposed_current_files verified_size seconds bytes_per_second errors "
        "warnings notes finding_counts keks branches left_out findings".split()
    )
    (finding,) = [f for f in found["findings"] if f["kind"] == "deleted-rows"]
    assert set(finding) == set(
        "severity kind message file snapshot_ids block offset count size remedy command".split()
    )
    assert (finding["severity"], finding["remedy"], finding["count"]) == ("note", ["erase"], 1)
