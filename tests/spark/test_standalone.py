"""A standalone cluster of Spark: a master, two workers and a driver, each a user of its own.

Each user has a home with a keyring there, and all share a group and a folder of this group. Needs
root, to start processes as other users.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ags1.kms import LocalKms

from .test_versions import FOUND, JOB, ROOT, run_job

# Users that every Debian has.
MASTER, *WORKERS, DRIVER = "daemon", "www-data", "nobody", "games"
GROUP = "users"

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def _python_of_all() -> str | None:
    """Return a Python like this one that other users may run: this one may be in root's home."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (os.path.realpath(sys.executable), f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([path, "-c", ""], user=DRIVER, check=True, capture_output=True)
            return path
    return None


class Cluster:
    """Master and workers. ``folder`` is what all users share."""

    def __init__(self, stack: contextlib.ExitStack, python: str) -> None:
        import pyspark

        self.home = Path(pyspark.__file__).parent
        self._stack = stack
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ags1-cluster-")))
        base.chmod(0o755)
        self._base = base
        self._python = python
        self.folder = base / "shared"
        self.folder.mkdir()
        shutil.chown(self.folder, DRIVER, GROUP)
        self.folder.chmod(0o2770)  # what is made there is the group's too
        keyring = base / "keyring.json"
        LocalKms(str(keyring)).create_key("default")
        for user in (MASTER, *WORKERS, DRIVER):
            home = base / user
            home.mkdir(0o700)
            shutil.copy(keyring, home)
            for path in (home, home / keyring.name):
                shutil.chown(path, user)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.url = f"spark://127.0.0.1:{port}"
        self._start(MASTER, "master.Master", "--port", str(port))
        self._until(rf"Starting Spark master at {self.url}", MASTER)
        for user in WORKERS:
            work = self._base / user / "work"
            self._start(user, "worker.Worker", "-c", "1", "-m", "1g", "-d", str(work), self.url)
        for user in WORKERS:
            self._until("Successfully registered with master", user)

    def process(self, user: str) -> dict[str, Any]:
        """Return what makes a process one of that user's."""
        environment = {
            "HOME": str(self._base / user),
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:-UsePerfData",
            "PYSPARK_PYTHON": self._python,
            "PYTHONPATH": os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")]),
        }
        return {
            "user": pwd.getpwnam(user).pw_uid,
            "group": grp.getgrnam(GROUP).gr_gid,
            "extra_groups": [],
            "umask": 0o007,
            "env": os.environ | environment,
        }

    def run(self, settings: dict[str, str]) -> dict[str, Any]:
        """Run ``cluster_job`` as the driver's user."""
        return run_job(
            [self._python, str(JOB), self.url, str(self.folder), "~/keyring.json"],
            self.folder,
            settings,
            **self.process(DRIVER),
        )

    def _start(self, user: str, kind: str, *arguments: str) -> None:
        command = [f"{self.home}/bin/spark-class", f"org.apache.spark.deploy.{kind}"]
        own = ["--host", "127.0.0.1", "--webui-port", "0"]
        with open(self._base / f"{user}.log", "wb") as log:
            started = subprocess.Popen(
                [*command, *own, *arguments],
                cwd=self._base / user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self.process(user),
            )
        self._stack.callback(_end, started)

    def _until(self, said: str, user: str) -> None:
        deadline = time.monotonic() + 120
        while True:
            log = (self._base / f"{user}.log").read_text(errors="replace")
            if re.search(said, log):
                return
            assert time.monotonic() < deadline, log[-3000:]
            time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # so that a worker ends its executors
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("pyspark")
    if os.geteuid() or shutil.which("java") is None:
        pytest.skip("this needs root and Java")
    python = _python_of_all()
    if python is None:
        pytest.skip("no Python of this version is for all users")
    with contextlib.ExitStack() as stack:
        yield Cluster(stack, python)


def test_users_share_a_folder(cluster: Cluster) -> None:
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        # Otherwise executors of one host open each other's shuffle files, which are private.
        "spark.shuffle.readHostLocalDisk": "false",
        "spark.executorEnv.PYTHONPATH": cluster.process(DRIVER)["env"]["PYTHONPATH"],
    }
    said = cluster.run(settings)
    assert {name: said[name] for name in FOUND} == FOUND
    made = list(cluster.folder.rglob("*.ags1"))
    # The large file is the driver's: all workers have written to it.
    owners = {pwd.getpwuid(path.stat().st_uid).pw_name for path in made}
    assert owners >= {*WORKERS, DRIVER}
    for folder, suffix in (("sealed", ".ags1"), ("back", "")):
        for path in (cluster.folder / "in").rglob("*"):
            copy = cluster.folder / folder / path.relative_to(cluster.folder / "in")
            copy = copy if path.is_dir() else copy.with_name(copy.name + suffix)
            assert stat.S_IMODE(copy.stat().st_mode) == stat.S_IMODE(path.stat().st_mode)


def test_a_python_driver_stays_with_its_user(cluster: Cluster) -> None:
    """Spark's standalone clusters run only drivers of Java and Scala themselves."""
    submit = [cluster.home / "bin/spark-submit", "--deploy-mode", "cluster"]
    done = subprocess.run(
        [*submit, "--master", cluster.url, JOB],
        env=os.environ | {"SPARK_HOME": str(cluster.home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode
    assert "not supported for python applications on standalone clusters" in done.stderr
