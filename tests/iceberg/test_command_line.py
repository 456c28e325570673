"""PyIceberg's command line works on encrypted tables, and prints no key."""

from __future__ import annotations

import json
import os
import runpy
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import python_environment
from pyiceberg.cli import console
from pyiceberg.utils.config import Config

from ags1.iceberg import EncryptedTable, load_catalog

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

MASTER_KEY = bytes(range(30, 46)).hex()
Run = Callable[..., str]


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set properties of the catalog ``prod`` as the environment does."""

    def configure(**properties: str) -> None:
        for name, value in properties.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name}", value)
        # PyIceberg reads the environment when it is imported.
        for module in ("pyiceberg.catalog", "ags1.iceberg.pyiceberg.catalogs"):
            monkeypatch.setattr(f"{module}._ENV_CONFIG", Config())

    return configure


@pytest.fixture
def table(tmp_path: Path, configure: Callable[..., None]) -> Iterator[EncryptedTable]:
    configure(
        TYPE="sql",
        URI=f"sqlite:///{tmp_path}/catalog.db",
        WAREHOUSE=f"file://{tmp_path}",
        ENCRYPTION__KMS_TYPE="memory",
        ENCRYPTION__KMS__KEY__ORDERS=MASTER_KEY,
    )
    with load_catalog("prod") as catalog:
        catalog.create_namespace("db")
        schema = pa.schema([("id", pa.int64()), ("item", pa.string())])
        table = catalog.create_table("db.t", schema, properties={"encryption.key-id": "orders"})
        assert isinstance(table, EncryptedTable)
        table.append(pa.table({"id": [1, 2], "item": ["a", "b"]}))
        table.append(pa.table({"id": [3], "item": ["c"]}))
        yield table


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run ``python -m ags1.iceberg`` and return what it prints."""
    monkeypatch.setenv("COLUMNS", "250")  # or locations are cut

    def run(*arguments: str, code: int = 0) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(console, "load_catalog", console.load_catalog)
            patch.setattr(sys, "argv", ["", "--catalog", "prod", *arguments])
            with pytest.raises(SystemExit) as ended:
                runpy.run_module("ags1.iceberg", run_name="__main__")
        shown = capfd.readouterr()
        assert ended.value.code == code, shown
        assert MASTER_KEY not in shown.out + shown.err
        return shown.out + shown.err

    return run


def test_the_commands_that_read(table: EncryptedTable, run: Run) -> None:
    assert run("list").split() == ["db"]
    assert run("list", "db").split() == ["db.t"]
    assert run("schema", "db.t").split() == ["id", "long", "item", "string"]
    assert run("uuid", "db.t").strip() == str(table.metadata.table_uuid)
    assert run("location", "db.t").strip() == table.location()
    assert run("properties", "get", "table", "db.t", "encryption.key-id").strip() == "orders"
    assert run("spec", "db.t").strip() == "[]"
    assert "main" in run("list-refs", "db.t")
    described = run("describe", "db.t")
    assert table.metadata_location in described
    assert all(str(snapshot.snapshot_id) in described for snapshot in table.snapshots())
    metadata = json.loads(run("--output", "json", "describe", "db.t"))["metadata"]
    assert metadata["current-snapshot-id"] == table.metadata.current_snapshot_id


@pytest.mark.slow
def test_output_waits_for_its_reader() -> None:
    script = (
        "from pyiceberg.cli import console\n"
        "from ags1.iceberg.pyiceberg.command_line import run_commands\n"
        "console.run = lambda prog_name: print('x' * 300_000)\n"
        "run_commands(None, '')"
    )
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    environment = python_environment() | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=writing, env=environment) as process:
        # The reader comes when the pipe is full, or the process has ended.
        while process.poll() is None and select.select([], [writing], [], 0)[1]:
            time.sleep(0.01)
        os.close(writing)
        with open(reading, "rb") as file:
            assert file.read() == b"x" * 300_000 + b"\n"
    assert process.returncode == 0


FULL = "python -m ags1.iceberg: standard output: No space left on device"


@pytest.mark.usefixtures("table")
def test_a_full_disk_is_said(in_a_fork: Callable[[Callable[[], object]], None]) -> None:
    def child() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.argv = ["", "--catalog", "prod", "list"]
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("ags1.iceberg", run_name="__main__")
        # Python prints this and exits with 1.
        assert ended.value.code == FULL

    in_a_fork(child)


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "arguments", [["--help"], ["list"], ["--output", "json", "list"]], ids=["help", "text", "json"]
)
@pytest.mark.usefixtures("table")
def test_a_full_disk_is_one_line(arguments: list[str], unbuffered: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "ags1.iceberg", "--catalog", "prod"]
    environment = os.environ | python_environment() | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*command, *arguments], stdout=full, stderr=subprocess.PIPE, env=environment, text=True
        )
    said = done.stderr.splitlines()
    assert (done.returncode, said[-1]) == (1, FULL)
    assert "Traceback" not in done.stderr


def test_the_files_are_those_of_the_encrypted_manifests(table: EncryptedTable, run: Run) -> None:
    files = [task.file.file_path for task in table.scan().plan_files()]
    assert len(files) == 2
    shown = run("files", "db.t")
    assert all(shown.count(f"Datafile: {path}") == 1 for path in files)
    older = run("files", "db.t", "--history")
    assert sorted(older.count(f"Datafile: {path}") for path in files) == [1, 2]


def test_the_commands_that_write(table: EncryptedTable, run: Run, tmp_path: Path) -> None:
    run("properties", "set", "table", "db.t", "owner", "me")
    assert table.refresh().properties["owner"] == "me"
    run("properties", "remove", "table", "db.t", "owner")
    run("rename", "db.t", "db.u")
    assert run("properties", "get", "table", "db.u", "owner", code=1)
    assert table.catalog.load_table("db.u").scan().count() == 3
    run("drop", "table", "db.u", "--purge")
    assert not list(tmp_path.rglob("*.parquet"))


def test_errors_are_pyicebergs_and_have_no_key(
    table: EncryptedTable, run: Run, configure: Callable[..., None]
) -> None:
    assert "NoSuchTableError" in run("--output", "json", "describe", "db.no", code=1)
    # The right name, and another key.
    configure(ENCRYPTION__KMS__KEY__ORDERS="00" * 16)
    said = run("--verbose", "true", "files", "db.t", code=1)
    assert "KmsUnwrapError" in said
    assert all(task.file.key.encryption_key.hex() not in said for task in table.scan().plan_files())
