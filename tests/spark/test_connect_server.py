"""The commands with a server of Spark Connect that is a process of its own: there and back, Ctrl-C,
and a server that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from connect_server import ConnectServer, connect_server

from ags1.cli.exits import Exit
from ags1.iceberg import load_catalog
from ags1.kms import LocalKms

pytest.importorskip("grpc")
pytestmark = [pytest.mark.spark, pytest.mark.cluster]

# The command, whose tasks note their processes when they have written a file, and then wait.
_WAITING = """
import os, pathlib, time
from ags1.cli import main
from ags1.spark import jobs
from ags1.files.plan import cutting
from ags1.files.work.tasks import Encrypting

cutting.MIN_TASK_COST = 1

class Waiting(Encrypting):
    def run(self, task, attempt):
        results = super().run(task, attempt)
        folder = pathlib.Path(task[0].source).parents[1]
        (folder / f"{os.getpid()}.pid").touch()
        time.sleep(600)
        return results

jobs.Encrypting = Waiting
main()
"""

# The command ``ags1`` whose tasks take a while for each file.
_SLOW = """
import time
from ags1.cli import main
from ags1.spark import jobs
from ags1.files.work.tasks import Decrypting

class Slow(Decrypting):
    def piece(self, piece, attempt):
        time.sleep(0.05)
        return super().piece(piece, attempt)

jobs.Decrypting = Slow
main()
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The properties of a catalog that server and clients know as 'lake'."""
    folder = tmp_path_factory.mktemp("lake")
    database, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
    return {"type": "sql", "uri": database, "warehouse": warehouse}


@pytest.fixture(scope="module")
def server(lake: dict[str, str]) -> Iterator[ConnectServer]:
    if shutil.which("java") is None:
        pytest.skip("java is not on this machine")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in lake.items():
            patch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
        with connect_server() as made:
            yield made


class Client:
    """The command ``ags1 spark`` in a process of its own, with the server ``url``."""

    def __init__(self, folder: Path, url: str) -> None:
        self.source, self.target = folder / "in", folder / "out"
        self.keyring = folder / "keyring.json"
        self._folder = folder
        self._url = url
        LocalKms(str(self.keyring)).create_key("default")
        self.source.mkdir()
        for number in range(4):
            (self.source / f"{number}").write_bytes(os.urandom(1000 * number))

    def started(self, *arguments: object, program: str = "") -> subprocess.Popen[str]:
        run = ["-c", program] if program else ["-m", "ags1"]
        own = ["--keyring", self.keyring, "--remote", self._url]
        # No server of a user's own, and nothing of a session in the tests' process.
        clean = {name: v for name, v in os.environ.items() if not name.startswith("SPARK_")}
        return subprocess.Popen(
            [sys.executable, *run, "spark", *map(str, [*arguments, *own])],
            env=clean,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str, *arguments: object) -> dict[str, Any]:
        """Run a command to its end; return what it says last."""
        ledger = () if "--catalog" in arguments else ("--ledger", self._folder / "ledger")
        process = self.started(command, *arguments, *ledger, "--json")
        out, err = process.communicate(timeout=180)
        assert (process.returncode, err) == (Exit.OK, ""), out + err
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        return told

    def staged(self) -> list[Path]:
        """What tasks have staged, without a job's note."""
        return [path for path in self.target.glob(".ags1-*.tmp") if "-root." not in path.name]

    @contextlib.contextmanager
    def waiting(self) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
        """Begin to encrypt, and wait until both tasks have written their files. Yield the process,
        and those of the tasks."""
        ledger = self._folder / "ledger"
        process = self.started(
            "encrypt", self.source, self.target, "--ledger", ledger, program=_WAITING
        )
        try:
            deadline = time.monotonic() + 120
            while len(pids := {int(path.stem) for path in self._folder.glob("*.pid")}) < 2:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert self.staged()
            yield process, pids
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def client(tmp_path: Path, server: ConnectServer) -> Client:
    return Client(tmp_path, server.url)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_there_and_back(client: Client, tmp_path: Path) -> None:
    LocalKms(str(client.keyring)).create_key("other")
    assert client.run("encrypt", client.source, client.target)["done"] == 4
    assert client.run("verify")["done"] == 4
    assert client.run("rewrap", "--to-key", "other")["done"] == 4
    assert client.run("decrypt", client.target, tmp_path / "back")["done"] == 4
    assert files(tmp_path / "back") == files(client.source)


def test_a_table(client: Client, lake: dict[str, str]) -> None:
    kms = {"encryption.kms-type": "local", "kms.local.keyring": str(client.keyring)}
    with load_catalog("lake", **lake, **kms) as catalog:
        catalog.create_namespace("db")
        key = {"encryption.key-id": "default"}
        made = catalog.create_table("db.t", pa.schema([("id", pa.int64())]), properties=key)
        for number in range(3):
            made.append(pa.table({"id": [number]}))
        assert client.run("verify-table", "db.t", "--catalog", "lake")["ok"]
        client.run("rekey", "db.t", "--catalog", "lake")
        rekeyed = catalog.load_table("db.t")
        assert len(rekeyed.metadata.snapshots) == 4
        assert sorted(rekeyed.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_an_interrupt_ends_the_tasks_on_the_server(client: Client) -> None:
    with client.waiting() as (process, pids):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.count("Traceback")) == (Exit.INTERRUPTED, 0)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert client.staged() == []
    assert client.run("encrypt", client.source, client.target)["done"] == 4
    named = {path.name for path in client.target.iterdir() if not path.name.startswith(".ags1-")}
    assert named == {f"{n}.ags1" for n in range(4)}
    assert client.staged() == []  # the mark of the job that ended stays for a while


def test_a_client_that_is_killed(client: Client, tmp_path: Path) -> None:
    """The server goes on with its tasks, which would stage plaintext."""
    for number in range(400):
        (client.source / f"{number}.txt").write_bytes(b"plaintext" * 99)
    assert client.run("encrypt", client.source, client.target)["done"] == 404
    sealed, client.target = client.target, tmp_path / "back"
    where = (sealed, client.target, "--ledger", tmp_path / "ledger")
    process = client.started("decrypt", *where, program=_SLOW)
    deadline = time.monotonic() + 120
    while not client.staged():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.communicate()
    # The tasks of the killed client would go on for seconds.
    assert client.run("decrypt", sealed, client.target)["done"] == 404
    assert client.staged() == []
    assert files(client.source) == {
        name: data for name, data in files(client.target).items() if not name.startswith(".")
    }
    time.sleep(3)
    assert client.staged() == []


def test_a_server_that_is_killed(client: Client, server: ConnectServer) -> None:
    """The last test of the module."""
    with client.waiting() as (process, _):
        server.process.kill()
        _, err = process.communicate(timeout=180)
    assert process.returncode == Exit.IO
    [line] = err.splitlines()
    assert line.startswith("ags1: the server of Spark Connect ended during the job, or could not")
    assert client.staged() == []
