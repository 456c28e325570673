"""What the tests on Spark share: a session on two cores, and a keyring with its configuration.

The settings are those that Spark needs on one machine with no network but 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import OF_CONNECT

from ags1.files.jobs import publishing
from ags1.files.keys import KmsConfig
from ags1.files.ledger import Ledger, open_ledger
from ags1.files.plan.cutting import Wave
from ags1.host.runners import TaskAttempt, this_attempt
from ags1.kms import LocalKms

_CONF = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.task.maxFailures": "3",
    # For the tests that look for what must not be there.
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


def step_around(
    patch: pytest.MonkeyPatch, calls: Iterable[tuple[Any, str]], step: Callable[[], object]
) -> None:
    """Call ``step`` before and after each call of some functions, given by owner and name."""

    def around(call: Any) -> Any:
        def called(*args: Any, **more: Any) -> Any:
            step()
            result = call(*args, **more)
            step()
            return result

        return called

    for owner, name in calls:
        patch.setattr(owner, name, around(getattr(owner, name)))


# Before the marks of tests/conftest.py, which depend on this one.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        ours = item.path.parent == Path(__file__).parent
        if ours and not {"spark", "pyspark"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def pyspark() -> Any:
    """PySpark, for tests that need no JVM. They are marked as those are that need one."""
    return pytest.importorskip("pyspark")


def context_of(spark: Any) -> Any:
    """Return the context of the JVM in this process, which a session of Connect does not show."""
    from pyspark import SparkContext

    assert spark is not None
    return SparkContext._active_spark_context


@pytest.fixture(scope="package")
def aws_environment() -> Iterator[dict[str, str]]:
    """The environment in which the AWS SDKs talk to the stand-in of AWS."""
    pytest.importorskip("moto")
    from aws_server import aws_server, dummy_environment

    with aws_server() as url:
        yield dummy_environment(url)


def set_for_workers(patch: pytest.MonkeyPatch, spark: Any, variables: dict[str, str]) -> None:
    """Set variables of this process and of Spark's workers. Those of a server of Spark Connect have
    the variables of ``aws_environment`` from the start, and take no others."""
    for name, value in variables.items():
        patch.setenv(name, value)
        patch.setitem(context_of(spark).environment, name, value)


# Of the package, not of the session: other tests fork, and count memory and signals.
@pytest.fixture(scope="package")
def spark(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A Spark session with two worker threads; a task may fail twice. With AGS1_TEST_SPARK=connect
    it is one of Spark Connect, whose server is in the JVM of this process."""
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("java is not on this machine", pytrace=False)
        pytest.skip("java is not on this machine")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        # So that tasks find the tests' own functions.
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        remote = os.environ.get("AGS1_TEST_SPARK") == "connect"
        # PySpark leaves these where a session of Connect could not be made.
        for name in OF_CONNECT:
            patch.delenv(name, raising=False)
        if remote:
            for name, value in request.getfixturevalue("aws_environment").items():
                patch.setenv(name, value)
        builder = SparkSession.builder.appName("ags1 tests")
        builder = builder.remote("local[2,3]") if remote else builder.master("local[2,3]")
        conf = _CONF | {
            "spark.local.dir": str(folder / "local"),
            "spark.eventLog.dir": f"file:{folder}/events",
            "spark.sql.warehouse.dir": f"file:{folder}/warehouse",
            "spark.driver.extraJavaOptions": f"-XX:-UsePerfData -Djava.io.tmpdir={folder}",
        }
        (folder / "events").mkdir()
        for name, value in conf.items():
            builder = builder.config(name, value)
        on_interrupt = signal.getsignal(signal.SIGINT)
        with warnings.catch_warnings():
            # Connect's client sets again what its server was started with.
            warnings.filterwarnings("ignore", "Failed to set", UserWarning)
            session = builder.getOrCreate()
        signal.signal(signal.SIGINT, on_interrupt)  # Spark's own would stay when Spark is gone
        context_of(session).setLogLevel("OFF")
        yield session
        session.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(autouse=True)
def late_seconds() -> Iterator[pytest.MonkeyPatch]:
    """Let the next job remove the note of a dead one at once. After ``undo``, the note stays for a
    while. It is not ``monkeypatch``, so that a test can undo this alone, or all else alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "LATE_SECONDS", 0)
        yield patch


@pytest.fixture
def keyring(tmp_path: Path) -> Path:
    """A keyring with the master keys 'default' and 'other'."""
    path = tmp_path / "keyring.json"
    kms = LocalKms(str(path))
    kms.create_key("default")
    kms.create_key("other")
    return path


@pytest.fixture
def kms(keyring: Path) -> KmsConfig:
    """The configuration of a KMS that is that keyring."""
    return KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": str(keyring)})


@pytest.fixture
def options(tmp_path: Path, keyring: Path) -> dict[str, str]:
    """The options for a catalog in a SQLite database, with the keyring for a KMS."""
    return {
        "catalog": "test",
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{tmp_path}/catalog.db",
        "catalog.warehouse": f"file://{tmp_path}/warehouse",
        "keyring": str(keyring),
    }


@pytest.fixture
def catalog(options: dict[str, str]) -> Iterator[Any]:
    """The catalog of these options, with the namespace 'db'."""
    pytest.importorskip("pyiceberg")
    from ags1.iceberg import load_catalog

    properties = {
        name.removeprefix("catalog."): value
        for name, value in options.items()
        if name.startswith("catalog.")
    }
    kms = {"encryption.kms-type": "local", "kms.local.keyring": options["keyring"]}
    with load_catalog("test", **properties, **kms) as made:
        made.create_namespace("db")
        yield made


def nonce_in(row: Any) -> str:
    """Return the first nonce of the file whose key a ledger's row has, as the row says it."""
    document = json.loads(row.key_metadata)
    [key] = [key for key in document["encryption-keys"] if key["key-id"] == document["key-id"]]
    return str(key["properties"]["ags1.nonce"])


class LedgerPlace(NamedTuple):
    """Where a test has its ledger, which it may open again and again."""

    kind: str
    at: str

    def open(self, *, writing: bool = True) -> Ledger:
        return open_ledger(self.at, writing=writing)


@pytest.fixture(params=["folder", "object"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerPlace:
    """A ledger of each kind. The objects are in memory; ``test_object_ledger`` has servers."""
    if request.param == "object":
        pytest.importorskip("fsspec")
        return LedgerPlace("object", f"memory://{tmp_path.name}/ledger")
    return LedgerPlace("folder", str(tmp_path / "ledger"))


class _Here:
    """A group of Spark jobs, as jobs use it, that runs tasks in this process."""

    has_failures = speculates = is_cancelled = False

    def __init__(self, spark: Any, group_id: str, description: str, cores: int | None) -> None:
        self.cores = cores or 2

    def run(
        self,
        tasks: list[Any],
        work: Callable[[Iterable[Any]], Iterator[Any]],
        costs: Iterable[int] = (),
    ) -> list[Any]:
        this_attempt.set(TaskAttempt("1", 0))
        return [result for task in tasks for result in work([task])]

    def run_waves(
        self, waves: Iterable[Wave], run: Callable[[Wave], Any], tick: Callable[[], object]
    ) -> Iterator[tuple[Wave, Any]]:
        for wave in waves:
            yield wave, run(wave)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the tasks of jobs run in this process."""
    monkeypatch.setattr("ags1.spark.jobs.group.JobGroup", _Here)
