"""Jobs on HDFS, whose renames do not replace and whose client does not say so."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hdfs_server import hdfs_server

import ags1
from ags1.files.jobs.publishing import settle_pending
from ags1.files.keys import FileKeys, KmsConfig
from ags1.files.ledger import ENCRYPT, open_ledger
from ags1.files.staging import places as storages
from ags1.spark import jobs

pytest.importorskip("requests")

pytestmark = [pytest.mark.cluster, pytest.mark.interop]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with hdfs_server() as url:
        yield url


class Hdfs:
    """A folder of its own in HDFS, and jobs there."""

    def __init__(self, root: str, spark: Any, kms: KmsConfig, ledger: Path) -> None:
        self.root, self.spark, self.kms, self.ledger = root, spark, kms, ledger
        self.storage: Any = storages.open_storage(root)
        self.fs = self.storage.fs

    def write(self, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            path = self.storage.name(f"{self.root}/in/{name}")
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self.fs.open(path, "wb") as file:
                file.write(data)

    def read(self, folder: str) -> dict[str, bytes]:
        base = self.storage.name(f"{self.root}/{folder}")
        return {name[len(base) + 1 :]: self.fs.cat_file(name) for name in self.fs.find(base)}

    def encrypt(self, **more: Any) -> jobs.Summary:
        where = {"ledger": self.ledger, "kms": self.kms, "key_id": "default"}
        return jobs.encrypt_files(
            self.spark, f"{self.root}/in", f"{self.root}/sealed", **where, **more
        )

    def check(self, plain: dict[str, bytes]) -> None:
        """See that each sealed file opens with the key that the ledger has for it."""
        keys = FileKeys.for_opening(self.kms)
        with open_ledger(str(self.ledger), writing=False) as ledger:
            rows = {row.relative_path: row for row in ledger.done(ENCRYPT).values()}
        sealed = self.read("sealed")
        assert sealed.keys() == {name + ".ags1" for name in plain}
        for name, data in plain.items():
            km = keys.unwrap(rows[name].key_metadata or "")
            assert ags1.decrypt(sealed[name + ".ags1"], km) == data
        assert not [*self.ledger.glob("_[pj]*"), *self.ledger.glob("_staged*")]


@pytest.fixture
def hdfs(tmp_path: Path, spark: Any, kms: KmsConfig, server: str) -> Hdfs:
    return Hdfs(f"{server}/{tmp_path.name}", spark, kms, tmp_path / "ledger")


PLAIN = {"empty": b"", "a/small": b"small", "a/b/larger": os.urandom(2_500_000)}


def test_there_and_back(hdfs: Hdfs) -> None:
    hdfs.write(PLAIN)
    done = hdfs.encrypt()
    assert (done.done, done.failed) == (3, 0), done.failures
    hdfs.check(PLAIN)
    assert (again := hdfs.encrypt()).unchanged == 3, again.failures
    back = jobs.decrypt_files(
        hdfs.spark, None, f"{hdfs.root}/back", ledger=hdfs.ledger, kms=hdfs.kms
    )
    assert (back.done, back.failed) == (3, 0), back.failures
    assert hdfs.read("back") == PLAIN


def test_a_changed_file_replaces_the_older_target(hdfs: Hdfs) -> None:
    """A rename over a file answers "false" with status 200."""
    hdfs.write(PLAIN)
    hdfs.encrypt()
    changed = PLAIN | {"a/small": b"of another length"}
    hdfs.write({"a/small": changed["a/small"]})
    done = hdfs.encrypt()
    assert (done.done, done.unchanged, done.failed) == (1, 2, 0), done.failures
    hdfs.check(changed)


def test_a_target_that_the_ledger_does_not_know(hdfs: Hdfs) -> None:
    hdfs.write(PLAIN)
    theirs = hdfs.storage.name(f"{hdfs.root}/sealed/a/small.ags1")
    hdfs.fs.makedirs(theirs.rpartition("/")[0], exist_ok=True)
    with hdfs.fs.open(theirs, "wb") as file:
        file.write(b"theirs")
    done = hdfs.encrypt()
    assert (done.done, done.failed) == (2, 1)
    assert hdfs.fs.cat_file(theirs) == b"theirs"
    assert hdfs.encrypt(overwrite=True).failed == 0
    hdfs.check(PLAIN)


_KILLED = """
import os, signal, sys
from fsspec.implementations.webhdfs import WebHDFS
from pyspark.sql import SparkSession
from ags1.spark import jobs
from ags1.files.keys import KmsConfig

root, ledger, keyring = sys.argv[1:]
builder = SparkSession.builder.master("local[1]")
for name in ("spark.driver.host", "spark.driver.bindAddress"):
    builder = builder.config(name, "127.0.0.1")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
move, moves = WebHDFS.mv, 0

def killing(self, *names, **more):
    global moves
    moves += 1
    if moves == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    move(self, *names, **more)

WebHDFS.mv = killing
kms = KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": keyring})
where = {"ledger": ledger, "kms": kms, "key_id": "default"}
jobs.encrypt_files(spark, root + "/in", root + "/sealed", **where)
"""


def test_a_driver_that_is_killed_between_two_names(
    hdfs: Hdfs, keyring: Path, run_python: Any
) -> None:
    hdfs.write(PLAIN)
    arguments = hdfs.root, hdfs.ledger, keyring
    done = run_python(_KILLED, *arguments, check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(hdfs.read("sealed")) == 4  # one has its name, two are staged, and the mark
    with open_ledger(str(hdfs.ledger), writing=True) as ledger:
        for _ in range(2):  # the second time, no task of the killed job can be running
            settle_pending(ledger)
    hdfs.check(PLAIN)
    assert hdfs.encrypt().unchanged == 3
