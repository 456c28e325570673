"""``ags1 table delete|rotate|…``: tables changed and maintained from the command line, and read
back through PyIceberg."""

from __future__ import annotations

import base64
import datetime
import decimal
import fcntl
import functools
import json
import os
import pty
import re
import resource
import select
import shlex
import shutil
import signal
import termios
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from conftest import RunPython
from exposing import rewrite_manifests_as_java_1_11
from pyarrow import csv
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from ags1 import KeyMetadata
from ags1.cli import options
from ags1.cli.table.failures import CommitStateUnknownError, failures
from ags1.cli.table.options import default_catalog
from ags1.iceberg import EncryptedCatalog, EncryptedTable, verify_table
from ags1.kms import LocalKms, create_key

from .test_files import home, run, start

__all__ = ["home"]

COLUMNS: dict[str, IcebergType] = {"id": LongType(), "v": StringType(), "n": DoubleType()}
ROWS = [{"id": i, "v": f"v{i}", "n": i / 2} for i in range(1, 6)]
# These are all that CSV has a form for.
SIMPLE_TYPES = COLUMNS | {
    "b": BooleanType(),
    "i": IntegerType(),
    "f": FloatType(),
    "d": DoubleType(),
    "x": DecimalType(9, 2),
    "day": DateType(),
    "t": TimeType(),
    "ts": TimestampType(),
    "tz": TimestamptzType(),
    "s": StringType(),
}
EVERY_TYPE = SIMPLE_TYPES | {
    "u": UUIDType(),
    "k": FixedType(3),
    "y": BinaryType(),
    "a": ListType(101, IntegerType(), element_required=False),
    "m": MapType(102, StringType(), 103, LongType(), value_required=False),
    "r": StructType(
        NestedField(104, "p", IntegerType()),
        NestedField(105, "q", ListType(106, StringType(), element_required=False)),
    ),
}
UTC = datetime.timezone.utc
ONE = {
    "id": 1,
    "b": True,
    "i": 2**31 - 1,
    "f": 0.5,
    "d": 0.1,
    "x": decimal.Decimal("-1.50"),
    "day": datetime.date(2026, 1, 31),
    "t": datetime.time(12, 0, 0, 5),
    "ts": datetime.datetime(2026, 1, 31, 12, 0, 0, 123456),
    "tz": datetime.datetime(2026, 1, 31, 12, tzinfo=UTC),
    "s": 'a "quoted"\nline, NA',
    "u": uuid.UUID(int=7),
    "k": b"abc",
    "y": b"\x00\xff",
    "a": [1, None, 3],
    "m": [("one", 1), ("none", None)],
    "r": {"p": 1, "q": ["x"]},
}


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the lake, and of a copy of it with one table. The metadata of a table has
    absolute paths, so that all tests have the lake at the same place."""
    return tmp_path_factory.mktemp("lakes")


@pytest.fixture(autouse=True)
def catalog(home: Path, lakes: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A SQL catalog 'prod' in PyIceberg's configuration, for this process and its children."""
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog import _ENV_CONFIG

    place = lakes / "lake"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (home.parent / "lake").symlink_to(place)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{place}/catalog.db",
        "warehouse": f"file://{place}/w",
    }
    monkeypatch.setattr(_ENV_CONFIG, "config", {"catalog": {"prod": properties}})
    for name, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name.upper()}", value)
    return properties


def table(command: str, name: str, *arguments: object, data: bytes = b"") -> Result:
    return run("table", command, name, "--catalog", "prod", *arguments, data=data)


def succeed(command: str, name: str, *arguments: object, data: bytes = b"") -> str:
    result = table(command, name, *arguments, data=data)
    assert (result.exit_code, result.stderr) == (0, ""), (result.stdout, result.stderr)
    return result.stdout


def facts(command: str, name: str, *arguments: object, data: bytes = b"") -> dict[str, Any]:
    """Return what a command says as JSON."""
    found: dict[str, Any] = json.loads(succeed(command, name, *arguments, "--json", data=data))
    assert found.pop("ok") is True
    return found


def fail(code: int, command: str, name: str, *arguments: object, data: bytes = b"") -> str:
    """Expect an exit code, one line about it, and nothing on standard output; return the line."""
    result = table(command, name, *arguments, data=data)
    assert (result.exit_code, result.stdout) == (code, ""), (result.stdout, result.stderr)
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("ags1")
    return result.stderr


def create(
    name: str = "db.t",
    columns: dict[str, IcebergType] = COLUMNS,
) -> EncryptedTable:
    """Make a table, of which the column id is required."""
    fields = (
        NestedField(number, column, kind, required=column == "id")
        for number, (column, kind) in enumerate(columns.items(), 1)
    )
    lake = EncryptedCatalog(load_plain_catalog("prod"), LocalKms())
    lake.create_namespace_if_not_exists("db")
    made = lake.create_table(name, Schema(*fields), properties={"encryption.key-id": "default"})
    assert isinstance(made, EncryptedTable)
    return made


def append(found: list[dict[str, Any]], branch: str = "main") -> None:
    """Append rows to the table db.t, in one file."""
    to = load()
    to.append(pa.Table.from_pylist(found, to.schema().as_arrow()), branch=branch)


def load(name: str = "db.t") -> EncryptedTable:
    made = EncryptedCatalog(load_plain_catalog("prod"), LocalKms()).load_table(name)
    assert isinstance(made, EncryptedTable)
    return made


def rows(name: str = "db.t", **scan: Any) -> list[dict[str, Any]]:
    found = load(name).scan(**scan).to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def ids(name: str = "db.t", **scan: Any) -> list[int]:
    return [row["id"] for row in rows(name, **scan)]


def listed(name: str = "db.t") -> list[dict[str, Any]]:
    """Return the data files that the command ``files`` lists."""
    lines = succeed("files", name, "--json").splitlines()
    found = [json.loads(line) for line in lines]
    return [file for file in found if file["content"] == "data"]


def data_keys(name: str = "db.t") -> list[KeyMetadata]:
    return [task.file.key for task in load(name).scan().plan_files()]  # type: ignore[attr-defined]


def stored(name: str = "t") -> list[Path]:
    """Return a table's files but for its metadata.json."""
    place = (Path.cwd().parent / "lake").resolve() / "w" / "db" / name
    files = (path for path in place.rglob("*") if path.is_file())
    return sorted(path for path in files if not path.name.endswith(".metadata.json"))


@pytest.fixture
def filled(home: Path, lakes: Path) -> EncryptedTable:
    """The table db.t with ROWS in two files. It is made once, and each test gets a copy."""
    keyring = home.parent / "config" / "ags1" / "keyring.json"
    made = lakes / "made"
    if made.exists():
        shutil.copy(made / keyring.name, keyring)
        shutil.copytree(made / "lake", lakes / "lake", dirs_exist_ok=True)
    else:
        create()
        append(ROWS[:3])
        append(ROWS[3:])
        shutil.copytree(lakes / "lake", made / "lake")
        shutil.copy(keyring, made / keyring.name)
    return load()


# -- scan, delete


@pytest.mark.parametrize("form", ["csv", "arrow", "parquet"])
def test_arrow_reads_what_scan_prints(form: str) -> None:
    """Every type, as the library reads it; and with CSV, every type that CSV has a form for."""
    source = create("db.t", SIMPLE_TYPES if form == "csv" else EVERY_TYPE)
    arrow = schema_to_pyarrow(source.schema(), include_field_ids=False)
    made = []
    for field in arrow:
        is_uuid = field.name == "u"
        kind = field.type.storage_type if is_uuid else field.type
        values = [row.get(field.name) for row in ({**ONE, "u": uuid.UUID(int=7).bytes}, {"id": 2})]
        column = pa.array(values, kind)
        made.append(pa.ExtensionArray.from_storage(field.type, column) if is_uuid else column)
    source.append(pa.Table.from_arrays(made, schema=arrow))
    succeed("scan", "db.t", "--format", form, "-o", "rows")
    if form == "csv":
        convert = csv.ConvertOptions(
            column_types={field.name: field.type for field in arrow}, strings_can_be_null=True
        )
        parse = csv.ParseOptions(newlines_in_values=True)
        read = csv.read_csv("rows", parse_options=parse, convert_options=convert)
    else:
        read = pq.read_table("rows") if form == "parquet" else pa.ipc.open_stream("rows").read_all()
    assert read.to_pylist() == rows()
    assert read.to_pylist()[0]["s"] == ONE["s"]


def test_delete_tells_what_it_did_and_would_do(filled: EncryptedTable) -> None:
    would = facts("delete", "db.t", "id >= 3", "--dry-run")
    assert ids() == [1, 2, 3, 4, 5]
    did = facts("delete", "db.t", "id >= 3")
    for found in (would, did):
        counts = (found["deleted_rows"], found["dropped_files"], found["marked_files"])
        assert counts == (3, 1, 1)
    assert ids() == [1, 2]
    # Its older vector is part of the new one, and not counted twice.
    assert facts("delete", "db.t", "id = 2")["deleted_rows"] == 1
    assert "delete, 3 rows, 2 of them deleted\n" in succeed("info", "db.t")
    assert succeed("delete", "db.t", "id = 77") == "db.t: 0 rows deleted\n"
    assert facts("delete", "db.t", "id = 1")["dropped_files"] == 1
    assert ids() == []


def test_files_are_rewritten_where_the_table_says_so(filled: EncryptedTable) -> None:
    succeed("delete", "db.t", "id = 1")
    with load().transaction() as transaction:
        transaction.set_properties({"write.delete.mode": "copy-on-write"})
    for flags in (["--dry-run"], []):
        found = facts("delete", "db.t", "id = 2 or id = 4", *flags)
        assert (found["deleted_rows"], found["marked_files"]) == (2, 0)
        assert (found["dropped_files"], found["rewritten_files"]) == (2, 2)
    assert ids() == [3, 5]
    append([{"id": 20}, {"id": 21}])
    assert "1 row deleted, 1 file dropped, 1 file written" in succeed("delete", "db.t", "id = 21")


def test_what_others_changed_is_a_conflict(
    filled: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = EncryptedTable.commit_updates
    others = [lambda: load().delete("id = 3"), lambda: load().delete("id = 4")]
    waiting: list[Callable[[], object]] = []

    def second(self: EncryptedTable, *arguments: Any) -> None:
        while waiting:
            waiting.pop()()
        commit(self, *arguments)

    monkeypatch.setattr(EncryptedTable, "commit_updates", second)
    for filter_ in ("id = 2", "id = 5"):
        waiting.append(others.pop(0))
        result = table("delete", "db.t", filter_, "--json")
        found = json.loads(result.stdout)
        assert (result.exit_code, found["error"]["kind"]) == (6, "CommitConflictError")
        assert "nothing was committed" in found["error"]["message"]
    assert ids() == [1, 2, 5]


def test_a_filter_that_is_none(filled: EncryptedTable) -> None:
    for command, arguments in (
        ("delete", ["{}"]),
        ("rekey", ["--filter", "{}"]),
        ("compact", ["--filter", "{}"]),
    ):
        for text, what in (("id > > 3", "character"), ("zz = 3", "zz"), ("", "character")):
            given = [text if a == "{}" else a for a in arguments]
            assert what in fail(2, command, "db.t", *given)
    assert ids() == [1, 2, 3, 4, 5]


# -- keys and files


def test_rotate_and_prune(filled: EncryptedTable) -> None:
    def keks() -> set[str]:
        return {kek.key_id for kek in load().files.keys.key_encryption_keys}

    before = keks()
    assert facts("rotate", "db.t", "--dry-run")["keks"] != sorted(before)
    assert keks() == before
    assert set(facts("rotate", "db.t")["keks"]) == keks()
    assert not keks() & before
    after = keks()
    succeed("rotate", "db.t", "--rewrap")
    assert keks() == after
    succeed("delete", "db.t", "id > 0")
    assert len(facts("expire", "db.t", "--older-than", "0s", "--yes")["snapshot_ids"]) == 2
    would = facts("prune-keys", "db.t", "--dry-run")["key_ids"]
    assert facts("prune-keys", "db.t", "--yes")["key_ids"] == would
    assert len(would) == 2
    assert verify_table(load()).ok
    assert ids() == []


def test_another_master_key_and_another_kms(
    filled: EncryptedTable, catalog: dict[str, str], home: Path
) -> None:
    assert "'new'" in fail(5, "rotate", "db.t", "--to-key", "new")
    create_key(os.environ["XDG_CONFIG_HOME"] + "/ags1/keyring.json", "new")
    catalog["encryption.trusted-key-ids"] = "default"
    assert "trusted-key-ids" in fail(2, "rotate", "db.t", "--to-key", "new")
    del catalog["encryption.trusted-key-ids"]
    succeed("rotate", "db.t", "--to-key", "new", "--dry-run")
    assert load().key_id == "default"
    succeed("rotate", "db.t", "--to-key", "new")
    assert load().key_id == "new"
    assert ids() == [1, 2, 3, 4, 5]
    # A table is only what it is expected to be.
    assert "'default'" in fail(7, "delete", "db.t", "id = 5", "--key", "default")
    succeed("delete", "db.t", "id = 5", "--key", "new")
    for wrong in (
        ["--to-kms", "memory"],
        ["--rewrap", "--to-key", "new"],
        ["--to-kms-property", "a.b=c", "--to-key", "new"],
    ):
        fail(2, "rotate", "db.t", *wrong)
    other = home / "other.json"
    create_key(str(other), "elsewhere")
    there = ["--to-kms", "local", "--to-kms-property", f"kms.local.keyring={other}"]
    succeed("rotate", "db.t", *there, "--to-key", "elsewhere")
    fail(5, "delete", "db.t", "id = 1")
    succeed("delete", "db.t", "id = 1", "--keyring", other)


def test_rekey_takes_fresh_keys_and_keeps_the_rows(filled: EncryptedTable) -> None:
    def keys() -> set[bytes]:
        return {km.encryption_key for km in data_keys()}

    before = keys()
    assert facts("rekey", "db.t", "--dry-run")["files"] == 2
    assert keys() == before
    assert facts("rekey", "db.t", "--filter", "id < 2")["files"] == 1
    assert len(keys() & before) == 1
    assert facts("rekey", "db.t")["files"] == 2
    assert not keys() & before
    assert ids() == [1, 2, 3, 4, 5]


def test_compact_rewrites_small_files(filled: EncryptedTable) -> None:
    size = sum(file["size"] for file in listed())
    nothing = facts("compact", "db.t")
    assert (nothing["rewritten_data_files_count"], nothing["added_data_files_count"]) == (0, 0)
    asked = ["--min-input-files", "2", "--target-file-size", "1MiB"]
    would = facts("compact", "db.t", *asked, "--dry-run")
    assert len(listed()) == 2
    done = facts("compact", "db.t", *asked)
    assert done == would | {"dry_run": False}
    assert done | {"table": "db.t", "branch": "main"} == done
    assert (done["rewritten_data_files_count"], done["added_data_files_count"]) == (2, 1)
    assert (done["rewritten_bytes_count"], done["failed_data_files_count"]) == (size, 0)
    assert [file["rows"] for file in listed()] == [5]
    assert ids() == [1, 2, 3, 4, 5]
    succeed("delete", "db.t", "id in (1, 2)")
    line = succeed("compact", "db.t", "--filter", "id < 4")
    assert "1 data file of" in line
    assert "rewritten into 1, 1 delete file removed" in line
    assert [file["rows"] for file in listed()] == [3]
    assert "128XB" in fail(2, "compact", "db.t", "--target-file-size", "128XB")
    failure = fail(2, "compact", "db.t", "--target-file-size", "1M", "--min-file-size", "2M")
    assert "(2097152)" in failure
    assert "(see --target-file-size)" in failure
    assert "absent" in fail(2, "compact", "db.t", "--branch", "absent")


def test_compact_exits_with_6_if_a_part_fails(filled: EncryptedTable) -> None:
    for _ in range(2):
        append([{"id": number} for number in range(10, 13)])
    sizes = [file["size"] for file in listed()]
    damaged = Path(listed()[0]["path"].removeprefix("file://"))
    data = bytearray(damaged.read_bytes())
    data[60] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(data)
    options = ["--rewrite-all", "--max-file-group-size", str(max(sizes)), "--partial-progress"]
    result = table("compact", "db.t", *options, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 6
    assert (found["failed_data_files_count"], found["rewritten_data_files_count"]) == (1, 3)
    assert (found["ok"], found["exit_code"]) == (False, 6)
    assert result.stderr.startswith("ags1: warning: 1 files were not rewritten: ")


def test_a_full_disk_is_told_with_the_file(filled: EncryptedTable) -> None:
    before = stored()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        result = table("rekey", "db.t")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.exit_code == 6
    data = re.escape(filled.location().removeprefix("file://")) + "/data/"
    assert re.fullmatch(f"ags1: {data}[^:]*: File too large\n", result.stderr)
    assert stored() == before


def test_exposed_keys_are_told_and_mended(filled: EncryptedTable) -> None:
    rewrite_manifests_as_java_1_11(filled)
    assert "--exposed" in run("table", "scan", "db.t", "--catalog", "prod").stderr
    result = run("table", "check", "db.t", "--catalog", "prod")
    assert result.exit_code == 7
    assert "error: exposed-keys: " in result.stdout
    assert "2 files with exposed keys (2 in use)" in result.stderr
    told = json.loads(run("table", "check", "db.t", "--catalog", "prod", "--json").stdout)
    assert (told["exposed_files"], told["exposed_current_files"]) == (2, 2)
    would = facts("rekey", "db.t", "--exposed", "--dry-run")
    assert (would["files"], would["manifests"]) == (2, 2)
    line = succeed("rekey", "db.t", "--exposed", "--quiet")
    assert line == ""
    assert ids() == [1, 2, 3, 4, 5]
    succeed("expire", "db.t", "--older-than", "0s", "--retain-last", "1", "--yes")
    result = run("table", "check", "db.t", "--catalog", "prod")
    assert result.exit_code == 0
    assert "exposed keys" not in result.stdout


def test_remove_orphans(filled: EncryptedTable) -> None:
    data = Path(filled.location().removeprefix("file://")) / "data"
    for name in ("old", "young"):
        (data / name).write_bytes(b"AGS1")
    os.utime(data / "old", (0, 0))
    would = facts("remove-orphans", "db.t", "--dry-run")
    assert would["orphan_file_locations"] == [str(data / "old")]
    assert (would["size"], would["young_files"], would["failed"]) == (4, 1, [])
    assert (data / "old").exists()
    assert succeed("remove-orphans", "db.t", "--yes") == (
        "db.t: 1 orphan file deleted, of 4 bytes in all, 1 orphan file too young (--older-than)\n"
    )
    told = fail(2, "remove-orphans", "db.t", "--older-than", "1h", "--yes")
    assert "at least 24 hours ago" in told
    assert "(see --older-than)" in told
    told = fail(2, "erase", "db.t", "--orphans", "--orphans-older-than", "1h", "--yes")
    assert "(see --orphans-older-than)" in told
    would_delete = ("--older-than", "0s", "--no-other-writers", "--dry-run")
    named, line = succeed("remove-orphans", "db.t", *would_delete).splitlines()
    assert (named, line) == (
        str(data / "young"),
        "db.t: 1 orphan file deleted, of 4 bytes in all (dry run: nothing was changed)",
    )
    now = ("--older-than", "0s", "--no-other-writers", "--yes")
    assert "folders" in fail(2, "remove-orphans", "db.t", *now, "--location", "/elsewhere")
    inside = ("--location", f"{filled.location()}/metadata", "--prefix-mismatch", "ignore")
    assert facts("remove-orphans", "db.t", *now, *inside)["orphan_file_locations"] == []
    succeed("remove-orphans", "db.t", *now)
    assert {path.name for path in data.rglob("*")} & {"old", "young"} == set()
    assert ids() == [1, 2, 3, 4, 5]


def undeletable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(io: object, location: object) -> None:
        raise PermissionError(13, "Permission denied", str(location))

    for kind in (PyArrowFileIO, FsspecFileIO):
        monkeypatch.setattr(kind, "delete", refuse)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("remove-orphans", ["--older-than", "0s", "--no-other-writers"]),
        ("expire", ["--older-than", "0s"]),
        ("erase", []),
    ],
)
def test_what_cannot_be_deleted_is_exit_status_6(
    filled: EncryptedTable, monkeypatch: pytest.MonkeyPatch, command: str, options: list[str]
) -> None:
    succeed("delete", "db.t", "id in (1, 2, 3)")
    data = Path(filled.location().removeprefix("file://")) / "data"
    (data / "old").write_bytes(b"AGS1")
    os.utime(data / "old", (0, 0))
    undeletable(monkeypatch)
    result = table(command, "db.t", *options, "--yes", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["exit_code"], found["ok"]) == (6, 6, False)
    assert found.get("failed") or found["left_behind"]
    for line in result.stderr.splitlines():
        assert line.startswith("ags1: warning: file:///" if command != "remove-orphans" else "ags1")
        assert "is left behind" in line


def test_erase_exits_with_8_if_something_may_still_have_deleted_rows(
    filled: EncryptedTable,
) -> None:
    head = filled.current_snapshot()
    assert head is not None
    filled.manage_snapshots().create_tag(head.snapshot_id, "audit").commit()
    succeed("delete", "db.t", "id = 2")
    line = succeed("erase", "db.t", "--dry-run").splitlines()[1]
    assert line.startswith("may still have deleted rows: the tag 'audit' keeps snapshot ")
    result = table("erase", "db.t", "--yes", "--quiet")
    assert result.exit_code == 8
    assert result.stdout == line + "\n"  # as ags1 table check prints its errors
    # What the status says is so: the row is there.
    assert 2 in ids(snapshot_id=head.snapshot_id)
    told = table("erase", "db.t", "--yes", "--json")
    found = json.loads(told.stdout)
    assert (told.exit_code, found["exit_code"], found["ok"]) == (8, 8, False)
    assert [left["kind"] for left in found["remaining"]] == ["tag", "orphans-not-searched"]
    load().manage_snapshots().remove_tag("audit").commit()
    succeed("erase", "db.t", "--yes")
    data = Path(filled.location().removeprefix("file://")) / "data"
    (data / "young").write_bytes(b"AGS1")
    assert table("erase", "db.t", "--orphans", "--yes").exit_code == 8


def test_erase(filled: EncryptedTable) -> None:
    succeed("delete", "db.t", "id = 2")
    would = facts("erase", "db.t", "--dry-run")
    assert would["rewritten"]["rewritten_data_files_count"] == 1
    assert [remaining["kind"] for remaining in would["remaining"]] == ["orphans-not-searched"]
    assert len(load().snapshots()) == 3
    done, left = succeed("erase", "db.t", "--yes").splitlines()
    assert done.startswith("db.t: 1 data file rewritten, 4 snapshots expired, ")
    assert left.startswith("note: files of writers that failed may have deleted rows")
    assert "--orphans" in left
    assert len(load().snapshots()) == 1
    assert ids() == [1, 3, 4, 5]
    assert "need --orphans" in fail(2, "erase", "db.t", "--no-other-writers", "--yes")
    now = ("--orphans", "--orphans-older-than", "0s")
    assert "24 hours" in fail(2, "erase", "db.t", *now, "--yes")
    assert "no branch 'x'" in fail(2, "erase", "db.t", "--branch", "x", "--yes")
    assert facts("erase", "db.t", *now, "--no-other-writers", "--yes")["remaining"] == []
    assert verify_table(load()).ok


def test_expire_by_age_number_and_id(filled: EncryptedTable) -> None:
    filled.overwrite(pa.Table.from_pylist(ROWS[:3], filled.schema().as_arrow()))
    expire = functools.partial(facts, "expire", "db.t", "--yes")
    first, second, _ = (s.snapshot_id for s in load().metadata.snapshots)
    assert expire("--older-than", "7d")["snapshot_ids"] == []
    assert expire("--older-than", "2026-01-31T12:00:00Z")["snapshot_ids"] == []
    assert expire("--older-than", "0s", "--retain-last", "3")["files"] == 0
    would = facts("expire", "db.t", "--snapshot", first, "--dry-run")
    assert would["snapshot_ids"] == [first]
    before = stored()
    assert expire("--snapshot", first)["files"] == would["files"]
    assert len(stored()) == len(before) - would["files"]
    would = facts("expire", "db.t", "--older-than", "0s", "--prune-keys", "--dry-run")["key_ids"]
    kept = expire("--older-than", "0s", "--keep-files", "--prune-keys")
    assert (kept["snapshot_ids"], kept["files"]) == ([second], 0)
    # The key of the first snapshot is pruned too.
    assert (kept["key_ids"], len(would)) == (would, 2)
    assert facts("prune-keys", "db.t", "--dry-run")["key_ids"] == []
    assert ids() == [1, 2, 3]
    for wrong in (["--older-than", "soon"], ["--older-than", "7x"], ["--retain-last", "0"]):
        fail(2, "expire", "db.t", *wrong)


def plain_table(properties: dict[str, str] | None = None) -> Table:
    catalog = load_plain_catalog("prod")
    catalog.create_namespace_if_not_exists("db")
    data = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]})
    made = catalog.create_table("db.t", data.schema, properties=properties or {})
    made.append(data)
    made.append(data)
    return made


def test_migrate() -> None:
    plain_table()
    before = stored()
    fail(2, "migrate", "db.t")  # --key has to be said
    assert "not encrypted" in fail(7, "delete", "db.t", "id = 1")
    # Without a KMS, that comes first.
    for code, arguments in (
        (7, ["delete", "db.t", "id = 1"]),
        (7, ["compact", "db.t"]),
        (5, ["migrate", "db.t", "--key", "default"]),
    ):
        said = fail(code, *arguments, "--keyring", "none.json")
        assert said.startswith("ags1: db.t: the table is not encrypted"), said
    assert "does not exist" in fail(2, "check", "db.x", "--keyring", "none.json")
    would = facts("migrate", "db.t", "--key", "default", "--dry-run")
    assert (would["files"], would["rows"]) == (2, 6)
    history = [one.snapshot_id for one in load_plain_catalog("prod").load_table("db.t").history()]
    assert would["dropped_snapshots"] == history
    said = succeed("migrate", "db.t", "--key", "default", "--dry-run")
    assert "2 earlier snapshots removed" in said
    assert said.endswith("\nto encrypt it: ags1 table migrate db.t --catalog=prod --key=default\n")
    assert stored() == before
    done = facts("migrate", "db.t", "--key", "default", "--data-key-length", "32")
    assert (done["files"], done["rows"], done["plaintext_deleted"]) == (2, 6, 0)
    assert done["metadata_deleted"] == 0
    assert {path.removeprefix("file://") for path in done["plaintext_left"]} == set(
        map(str, before)
    )
    assert load().files.keys.data_key_length == 32
    assert ids() == [1, 1, 2, 2, 3, 3]
    # What is left can be deleted by another call.
    said = succeed("migrate", "db.t", "--key", "default")
    assert "6 unencrypted files left" in said
    assert set(before) & set(stored())
    # The last line is the command that does it.
    command = shlex.split(said.splitlines()[-1].partition(": ")[2])
    assert command[:3] == ["ags1", "table", "migrate"]
    done = facts(*command[2:], "--yes")
    assert (done["plaintext_deleted"], done["plaintext_left"]) == (6, [])
    assert done["metadata_deleted"] == 3
    assert not [path for path in before if path in stored() and "metadata.json" not in str(path)]


def test_migrate_and_delete_what_was_in_the_clear() -> None:
    plain_table()
    before = set(stored())
    done = succeed("migrate", "db.t", "--key", "default", "--delete-plaintext", "--yes")
    deleted = "6 unencrypted files deleted, 3 earlier metadata files deleted"
    assert f"time travel with them, {deleted}\nreaders need the KMS" in done
    assert done.endswith("    encryption.kms-type: local\n    encryption.require-encrypted: true\n")
    assert not before & set(stored())
    for path in stored():
        assert path.read_bytes()[:4] in (b"PARE", b"AGS1")
    assert ids() == [1, 1, 2, 2, 3, 3]


def test_drop_and_purge(filled: EncryptedTable) -> None:
    would = facts("drop", "db.t", "--purge", "--dry-run")
    assert would["files"] == len(stored())
    location = load().metadata_location
    succeed("drop", "db.t", "--dry-run")
    assert facts("drop", "db.t", "--yes")["metadata_location"] == location
    assert "not exist: db.t" in fail(2, "drop", "db.t", "--yes")
    load_plain_catalog("prod").register_table("db.t", location)
    assert ids() == [1, 2, 3, 4, 5]
    assert succeed("drop", "db.t", "--purge", "--yes").startswith("db.t: dropped, ")
    assert stored() == []


# -- questions

ASKED = [
    (["delete", "id >= 0"], None),
    (["delete", "id is not null"], "Delete all rows of db.t?"),
    (["delete", "id is not null", "--branch", "audit"], "Delete all rows of db.t, branch audit?"),
    (["expire", "--older-than", "0s"], "and delete the files that only they use?"),
    (["expire", "--older-than", "0s", "--keep-files"], "Remove old snapshots of db.t?"),
    (["remove-orphans"], "Delete the files of db.t that nothing needs?"),
    (["erase"], "Erase the deleted rows of db.t, with all its earlier snapshots?"),
    (["prune-keys"], "Remove the keys of db.t that nothing refers to?"),
    (["drop"], "Remove db.t from its catalog?"),
    (["drop", "--purge"], "Drop db.t and delete its"),
]


@pytest.mark.parametrize(("words", "question"), ASKED)
def test_what_destroys_asks(
    filled: EncryptedTable,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    question: str | None,
) -> None:
    command, *rest = (str(home.parent / "new") if word == "/" else word for word in words)
    words = [command, "db.t", *rest]
    if "audit" in words:
        append(ROWS[3:], "audit")
    before = load().metadata_location, stored()
    if question is None:
        succeed(*words)
        return
    said = fail(2, *words)
    assert question in said
    assert "--yes" in said
    assert " (dry run: nothing was changed)\n" in succeed(*words, "--dry-run")
    monkeypatch.setattr(options, "_has_terminal", lambda: True)
    for answer in (b"n\n", b"\n"):
        result = table(*words, "--json", data=answer)
        assert (result.exit_code, result.stdout.strip()) == (1, "")
        assert question in result.stderr
        assert result.stderr.endswith("ags1: nothing was changed\n")
    result = table(*words, data=b"")
    assert (result.exit_code, result.stderr[-18:]) == (130, "ags1: interrupted\n")
    assert (load().metadata_location, stored()) == before
    result = table(*words, "--json", data=b"y\n")
    assert (result.exit_code, json.loads(result.stdout)["ok"]) == (0, True), result.stderr


def test_deleting_the_plaintext_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_table()
    before = stored()
    words = ("migrate", "db.t", "--key", "default", "--delete-plaintext")
    question = "Delete the unencrypted files of db.t once it is encrypted?"
    assert question in fail(2, *words)
    succeed(*words, "--dry-run")
    spark = run("spark", *words, "--catalog", "prod")
    assert spark.exit_code == 2
    assert question in spark.stderr
    monkeypatch.setattr(options, "_has_terminal", lambda: True)
    assert table(*words, data=b"n\n").exit_code == 1
    assert stored() == before


# Of `make test`: the answer "y", and a signal at a question in the tests' own process.
@pytest.mark.slow_variants(r"\\x03-.*")
@pytest.mark.parametrize(
    ("answer", "code", "end"), [(b"y\n", 0, b"db.t: dropped"), (b"\x03", 130, b"interrupted")]
)
def test_a_question_on_a_terminal(
    filled: EncryptedTable, answer: bytes, code: int, end: bytes
) -> None:
    master, terminal = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    with start(
        *("table", "drop", "db.t", "--catalog", "prod", "--purge"),
        **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
        preexec_fn=own_terminal,
    ) as process:
        os.close(terminal)
        seen, is_asked = b"", False
        with suppress(OSError):  # the other end is closed
            while True:
                if select.select([master], [], [], 1)[0]:
                    if not (part := os.read(master, 65536)):
                        break
                    seen += part
                    # The space is written when the answer is waited for.
                    if is_asked or not seen.endswith(b"[y/N]: "):
                        continue
                elif not is_asked or answer != b"\x03" or end in seen:
                    continue
                # Python misses a Ctrl-C that comes right before it waits: press it again.
                is_asked = True
                os.write(master, answer)
    os.close(master)
    assert (process.returncode, end in seen) == (code, True), seen
    assert (stored() == []) is (code == 0)


def test_a_signal_at_a_question(filled: EncryptedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(text: str, *, err: bool) -> bool:
        try:  # as click does
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise click.Abort from None
        return True

    monkeypatch.setattr(options, "_has_terminal", lambda: True)
    monkeypatch.setattr(click, "confirm", asked)
    result = table("drop", "db.t", "--purge")
    assert (result.exit_code, result.stdout, result.stderr) == (143, "", "")
    assert ids() == [1, 2, 3, 4, 5]


# -- which table, failures


def test_the_tables_of_a_catalog_are_listed(
    filled: EncryptedTable, catalog: dict[str, str]
) -> None:
    inner = load_plain_catalog("prod")
    inner.create_namespace("db.inner")
    inner.create_table("db.inner.plain", pa.schema([("id", pa.int64())]))
    lines = "db.inner.plain  plaintext\ndb.t  encrypted under default\n"
    # With these, loading a plaintext table warns.
    catalog.update({"encryption.kms-type": "local", "encryption.trusted-key-ids": "default"})
    for arguments in ([], ["--catalog", "prod"], ["db"]):
        result = run("table", "list", *arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        assert sorted(result.stdout.splitlines()) == lines.splitlines()
    told = [json.loads(line) for line in run("table", "list", "db", "--json").stdout.splitlines()]
    assert {"table": "db.t", "encrypted": True, "key_id": "default", "ok": True} in told
    assert run("table", "list", "db.inner").stdout.count("\n") == 1
    Path(filled.metadata_location.removeprefix("file://")).unlink()
    result = run("table", "list")
    assert (result.exit_code, result.stdout) == (6, "db.inner.plain  plaintext\n")
    assert result.stderr.startswith("ags1: db.t: ")
    assert "/db/t/metadata/" in result.stderr


def test_a_name_is_looked_up_in_the_only_catalog_or_the_default_one(
    filled: EncryptedTable, monkeypatch: pytest.MonkeyPatch, catalog: dict[str, str]
) -> None:
    from pyiceberg.catalog import _ENV_CONFIG

    def scan(*arguments: str) -> Result:
        return run("table", "scan", "db.t", "--format", "csv", *arguments)

    assert scan().stdout.count("\n") == 6
    assert run("table", "delete", "db.t", "--filter", "id = 1").exit_code == 0
    other = {**catalog, "uri": "sqlite:///other.db"}
    monkeypatch.setattr(_ENV_CONFIG, "config", {"catalog": {"prod": catalog, "other": other}})
    failed = scan()
    assert failed.exit_code == 2
    assert "name the catalog with --catalog or AGS1_CATALOG" in failed.stderr
    monkeypatch.setenv("AGS1_CATALOG", "prod")
    assert scan().stdout.count("\n") == 5
    monkeypatch.delenv("AGS1_CATALOG")
    monkeypatch.setattr(_ENV_CONFIG, "config", {"catalog": {"default": catalog, "other": other}})
    assert default_catalog() == "default"
    monkeypatch.setattr(_ENV_CONFIG, "config", {"catalog": {"prod": catalog}})
    os.mkdir("db.t")  # a folder comes first
    assert scan().exit_code == 6


def test_a_filter_is_said_once(filled: EncryptedTable) -> None:
    assert "once" in fail(2, "delete", "db.t")
    assert "once" in fail(2, "delete", "db.t", "id = 1", "--filter", "id = 1")
    assert "--filter" in fail(2, "delete", "db.t", "--filter", "")
    assert facts("delete", "db.t", "--filter", "id = 1")["deleted_rows"] == 1


CHANGES = {
    "delete": ["id = 1"],
    "migrate": ["--key", "default"],
    "rotate": [],
    "rekey": [],
    "compact": [],
    "expire": ["--yes"],
    "remove-orphans": ["--yes"],
    "erase": ["--yes"],
    "prune-keys": ["--yes"],
    "drop": ["--yes"],
}


def test_what_is_opened_by_its_metadata_cannot_be_changed(filled: EncryptedTable) -> None:
    for command, arguments in CHANGES.items():
        for name in (filled.metadata_location, filled.location()):
            result = run("table", command, name, *arguments)
            assert (result.exit_code, result.stdout) == (2, "")
            assert "only be read" in result.stderr
            assert "--catalog" in result.stderr
        assert "NAMESPACE.TABLE" in fail(2, command, "t", *arguments)


def test_a_table_that_is_not_there() -> None:
    for command, arguments in CHANGES.items():
        assert "db.nothing" in fail(2, command, "db.nothing", *arguments)


def test_without_the_master_key(filled: EncryptedTable, home: Path) -> None:
    other = home / "other.json"
    create_key(str(other), "default")
    before = stored()
    for command in ("delete", "rekey", "compact", "rotate"):
        fail(5, command, "db.t", *CHANGES[command], "--keyring", other)
        fail(7, command, "db.t", *CHANGES[command], "--key", "another")
        assert "empty" in fail(2, command, "db.t", *CHANGES[command], "--key", "")
    result = table("delete", "db.t", "id = 1", "--keyring", other, "--json")
    assert result.exit_code == json.loads(result.stdout)["exit_code"] == 5
    assert json.loads(result.stdout)["ok"] is False
    assert stored() == before


def test_where_a_key_may_be_a_stranger_s_it_is_the_named_one(
    filled: EncryptedTable, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr(LocalKms, "accepts_foreign_keys", True)
    for command, arguments in CHANGES.items():
        if command in ("migrate", "drop"):
            continue
        assert "'other'" in fail(7, command, "db.t", *arguments, "--key", "other")
        succeed(command, "db.t", *arguments, "--key", "default")
    monkeypatch.setenv("AGS1_KMS_KEY", "default")
    succeed("rotate", "db.t")
    succeed("drop", "db.t", "--purge", "--yes")


def test_a_damaged_table_can_be_dropped(filled: EncryptedTable) -> None:
    Path(filled.metadata_location.removeprefix("file://")).unlink()
    fail(6, "delete", "db.t", "id = 1")
    fail(6, "drop", "db.t", "--purge", "--yes")
    assert facts("drop", "db.t", "--yes")["metadata_location"] is None
    assert "not exist: db.t" in fail(2, "drop", "db.t", "--yes")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_of_a_change_leaves_nothing(
    filled: EncryptedTable, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    from ags1.iceberg.storage.output import TableOutput

    before = stored(), filled.metadata_location
    written: list[str] = []
    write_encrypted = TableOutput.write_encrypted

    def interrupted(self: TableOutput, location: str, *more: Any) -> KeyMetadata:
        km = write_encrypted(self, location, *more)
        written.append(location)
        os.kill(os.getpid(), number)
        return km

    monkeypatch.setattr(TableOutput, "write_encrypted", interrupted)
    result = table("delete", "db.t", "id = 1")
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == ("ags1: interrupted\n" if number == signal.SIGINT else "")
    assert written
    assert (stored(), load().metadata_location) == before


def test_no_key_is_ever_printed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of all commands, in words and in JSON."""
    from ags1.iceberg.storage.output import TableOutput

    keys: set[bytes] = set()
    write_encrypted = TableOutput.write_encrypted

    def noting(self: TableOutput, location: str, data: bytes, km: KeyMetadata) -> KeyMetadata:
        keys.add(km.encryption_key)
        return write_encrypted(self, location, data, km)

    monkeypatch.setattr(TableOutput, "write_encrypted", noting)
    said: list[str] = []

    def say(command: str, *arguments: object, name: str = "db.t") -> None:
        result = table(command, name, *arguments)
        assert result.exit_code == 0, result.stderr
        said.extend([result.stdout, result.stderr])

    create()
    for more in ([], ["--json"]):
        append(ROWS)
        say("delete", "id = 1", *more)
        say("rotate", *more)
        say("rotate", "--rewrap", *more)
        say("rekey", *more)
        say("compact", "--rewrite-all", *more)
        say("expire", "--older-than", "0s", "--yes", *more)
        say("erase", "--yes", *more)
        say("remove-orphans", "--older-than", "0s", "--no-other-writers", "--yes", *more)
        say("prune-keys", "--yes", *more)
        keys |= {km.encryption_key for km in data_keys()}
    say("drop", "--purge", "--yes", "--json")
    text = "".join(said) + "".join(capfd.readouterr())
    assert len(keys) > 10
    for key in keys:
        for form in (key.hex(), base64.b64encode(key).decode(), repr(key)[2:-1]):
            assert form not in text


def test_an_interrupt_that_came_too_late_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """What became of the commit, and that it was interrupted."""
    for cause, caught in (
        (KeyboardInterrupt(), KeyboardInterrupt),
        (None, CommitStateUnknownError),
    ):
        with pytest.raises(caught), failures("db.t"):
            raise CommitStateUnknownException("it was made") from cause
    assert capfd.readouterr().err.startswith("ags1: db.t: the commit may have been made or not")


# -- help


def test_help_has_examples_and_imports_little(run_python: RunPython) -> None:
    for command in CHANGES:
        text = run("table", command, "--help").stdout
        assert "Examples:" in text
        assert "Exit status:" in text
        assert f"ags1 table {command} " in text
    run_python(
        """
import sys
from ags1.cli.app import app
try:
    app.main(["table", "expire", "--help"])
except SystemExit as end:
    assert not end.code
loaded = {name.partition(".")[0] for name in sys.modules}
assert not {"pyiceberg", "pyarrow", "rich", "fastavro", "configparser"} & loaded, loaded
"""
    )
