"""What every test may ask for."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from day import SEED
from hypothesis import HealthCheck, settings
from kept_tables import KeptTables

import ags1
from ags1.kms import passphrase

settings.register_profile(
    "ags1",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("ags1")

# Until the tests are collected there is no garbage, only thousands of modules and tests.
gc.disable()


# Files of minutes whose tests each start Spark of their own. At the end of `make interop`, which
# hands out whole files, one process would run these while the other has nothing to do.
FIRST = [
    "test_docs.py",
    *(f"spark/test_{name}.py" for name in ("guide", "leaks", "side_by_side", "shipping")),
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before any test is left out for its marks."""
    here = Path(__file__).parent
    for item in items:
        variants = [v for mark in item.iter_markers("slow_variants") for v in mark.args]
        if any(re.fullmatch(variant, item.callspec.id) for variant in variants):  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.variant)
        if not any(map(item.get_closest_marker, ("spark", "cluster", "peers", "interop"))):
            item.add_marker(pytest.mark.local)
            is_slow = item.get_closest_marker("slow") is not None
            item.add_marker(pytest.mark.long if is_slow else pytest.mark.quick)
    places = {here / file: place for place, file in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(FIRST)))


def pytest_report_header() -> str:
    return f"seed of the day: AGS1_TEST_SEED={SEED}"


def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests out of every later garbage collection, and have fewer
    of those: a table's metadata is thousands of objects, of which hardly any is garbage."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 10, 10)


SANITIZED = os.environ.get("AGS1_BUILD") == "sanitize"
not_sanitized = pytest.mark.skipif(
    SANITIZED,
    reason="a sanitizer has a malloc of its own, which keeps freed memory",
)

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


OF_CONNECT = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE", "SPARK_REMOTE")


def python_environment() -> dict[str, str]:
    """Return an environment in which a child imports the same ags1 and this folder's modules."""
    assert ags1.__file__ is not None
    ours = [str(Path(ags1.__file__).parents[1]), str(Path(__file__).parent)]
    path = os.pathsep.join([*ours, os.environ.get("PYTHONPATH", "")])
    # PySpark's own, which would have a child be a client of this process's Spark Connect.
    others = {name: value for name, value in os.environ.items() if name not in OF_CONNECT}
    return others | {"PYTHONPATH": path}


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Run a script in a Python of its own; fail with its output unless it exits with 0."""

    def run(
        script: str, *arguments: object, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, arguments)],
            env=python_environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            pytest.fail(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: thousands of files are synced."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(dir=memory))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def cheap_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process protects keyrings with 1 MiB of work for scrypt instead of 128 MiB."""
    monkeypatch.setattr(passphrase, "_SCRYPT_N", 1 << 10)


@pytest.fixture
def in_a_fork() -> Callable[[Callable[[], object]], None]:
    """Call a function in a forked child; fail with what it raised, or when it hangs."""

    def run(work: Callable[[], object], timeout: float = 60) -> None:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                work()
                code = 0
            except BaseException:
                os.write(writing, traceback.format_exc().encode()[-4000:])
            finally:
                os._exit(code)
        os.close(writing)
        deadline = time.monotonic() + timeout
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                os.close(reading)
                pytest.fail(f"the child was still running after {timeout:.0f} s")
            time.sleep(0.01)
        with open(reading, "rb") as said:
            if status:
                pytest.fail(f"in the forked child: {said.read().decode()}")

    return run


@pytest.fixture(scope="session", autouse=True)
def _statements_are_compiled_once() -> Iterator[None]:
    """All SQL catalogs on SQLite share what SQLAlchemy compiles, which takes longer than SQLite
    does. Else each catalog, and so each test, compiles every statement again."""
    # Here, because most tests need no PyIceberg.
    if "ags1.iceberg" not in sys.modules or not importlib.util.find_spec("sqlalchemy"):
        yield
        return
    from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite as Dialect
    from sqlalchemy.util import LRUCache

    compiled: LRUCache[Any, Any] = LRUCache(500)

    def share(_: type[Dialect], engine: Any) -> None:
        engine._compiled_cache = compiled

    with pytest.MonkeyPatch.context() as patch:
        # The dialect is a part of the key of what is compiled.
        patch.setattr(Dialect, "__hash__", lambda self: hash(type(self)))
        patch.setattr(Dialect, "__eq__", lambda self, other: type(self) is type(other))
        patch.setattr(Dialect, "engine_created", classmethod(share))
        yield


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    """An ``EncryptedCatalog`` over SQLite, with keys in properties and a namespace ``db``."""
    from iceberg_tables import sql_catalog

    with sql_catalog(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def _kept_tables(tmp_path_factory: pytest.TempPathFactory) -> KeptTables:
    from iceberg_tables import sql_catalog

    return KeptTables(tmp_path_factory.mktemp("kept"), sql_catalog)


@pytest.fixture
def kept(_kept_tables: KeptTables) -> Iterator[KeptTables]:
    """Make a table once for all tests of the module that call this with the same arguments."""
    yield _kept_tables
    _kept_tables.close()


@pytest.fixture(scope="session")
def real_s3() -> Iterator[dict[str, str]]:
    """The environment in which the AWS SDKs talk to a real S3 server with the bucket 'bucket'."""
    from go_server import have_go
    from s3_server import s3_server

    if not have_go():
        if os.environ.get("CI") == "true":
            pytest.fail("there is no Go to build MinIO with", pytrace=False)
        pytest.skip("there is no Go to build MinIO with")
    with s3_server() as environment:
        yield environment
