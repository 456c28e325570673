"""PyIceberg's own tests, of the release that we support, with our catalogs around its own: its unit
tests, and those of its integration tests that need no Spark, on SQLite.

They run twice, side by side: plain tables; each table of a SQL or in-memory catalog encrypted (see
``peer_plugin``). Those that do not pass in both, and those that ``differences.toml`` names, then
run with PyIceberg alone. What ends otherwise there has to stand in that file, with its reason, and
what stands there has to differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from interop.jars import cache_folder, unavailable

from ags1.kms.local import create_key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.peers

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REQUIREMENTS = HERE / "requirements.txt"
# The exact release, whose code runs here.
VERSION, SHA256 = re.findall(r"pyiceberg==(\S+) --hash=sha256:(\w+)", REQUIREMENTS.read_text())[0]
KEYRING = "keyring.json"
KEY_ID = "peer"
WAYS = ("plain", "encrypted")
# They need tables or answers of Spark's, or libraries that are large; or measure.
LEFT_OUT = [
    "benchmark",
    "catalog/test_bigquery_metastore.py",
    "integration/test_add_files.py",
    "integration/test_hive_migration.py",
    "integration/test_inspect_table.py",
    "integration/test_partitioning_key.py",
    "integration/test_reads.py",
    "integration/test_rest_manifest.py",
    "integration/test_writes/test_optimistic_concurrency.py",
    "notebooks",
]
# Of catalogs whose tables are not made encrypted. They take half the time.
OF_OTHER_CATALOGS = [f"catalog/test_{name}*.py" for name in ("glue", "dynamodb", "hive", "rest")]
MARKS = "unmarked or parametrize or integration"
# Those of servers, which are not here.
NAMES = "not (integration and (hive_catalog or rest_catalog or rest_test_catalog))"
LEAST = {"plain": 4500, "encrypted": 4000}
# An encrypted table has version 3, whatever a test asked for.
_OF_VERSION = re.compile(r"assert tbl\.format_version == .*")
TIMEOUT_S = 840
_PARAMETERS = re.compile(r"\[.*", re.DOTALL)

Outcomes = Mapping[str, tuple[str, str]]


def source_distribution() -> Path:
    """Return PyIceberg's source distribution, which pip fetches once."""
    path = cache_folder() / f"pyiceberg-{VERSION}.tar.gz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            # pip compares the hash before it runs what it needs of the source.
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            source = ["--no-binary", "pyiceberg", "-r", str(REQUIREMENTS)]
            done = subprocess.run(
                [*pip, *source], cwd=folder, capture_output=True, text=True, check=False
            )
            if done.returncode:
                unavailable(f"pip does not fetch PyIceberg's source: {done.stderr[-500:]}")
            os.replace(Path(folder) / path.name, path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    assert found == SHA256, f"{path} is not the file that was checked: remove it"
    return path


def unpack_tests(folder: Path) -> Path:
    """Unpack PyIceberg's tests, and not PyIceberg, which is installed."""
    top = f"pyiceberg-{VERSION}"
    with tarfile.open(source_distribution()) as archive:
        names = (f"{top}/tests/", f"{top}/pyproject.toml", f"{top}/PKG-INFO")
        members = [member for member in archive if member.name.startswith(names)]
        archive.extractall(folder, members, filter="data")
    integration = folder / top / "tests" / "integration"
    shutil.copy(HERE / "integration_conftest.py", integration / "conftest.py")
    for path in (integration / "test_writes").glob("*.py"):
        path.write_text(_OF_VERSION.sub("pass", path.read_text()))
    return folder / top


class Run:
    """A run of PyIceberg's tests, in a process of its own."""

    def __init__(self, way: str, tree: Path, folder: Path, tests: Iterable[str] = ()) -> None:
        self._way = way
        self._outcomes = folder / f"{way}.jsonl"
        self._log = folder / f"{way}.log"
        environment = os.environ | {
            "AGS1_PEER": way,
            "AGS1_PEER_KEY_ID": KEY_ID,
            "AGS1_OUTCOMES": str(self._outcomes),
            "AGS1_KEYRING": str(folder / KEYRING),
            "PYTHONPATH": os.pathsep.join(map(str, (tree, HERE, ROOT))),
        }
        left_out = [*LEFT_OUT, *(OF_OTHER_CATALOGS if way == "encrypted" else [])]
        ignored = [f"--ignore-glob=tests/{name}" for name in left_out]
        options = ["-q", "-p", "peer_plugin", "-p", "no:cacheprovider", *ignored]
        options += ["-m", MARKS, "-k", NAMES]
        temporary = ["--basetemp", str(folder / way)]
        named = folder / f"{way}.txt"
        named.write_text("\n".join(tests) or "tests")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, *temporary, f"@{named}"],
                cwd=tree,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def outcomes(self) -> Outcomes:
        """Wait, and return each test's outcome and error."""
        try:
            status = self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.stop()
            pytest.fail(f"PyIceberg's tests ({self._way}) still ran after {TIMEOUT_S} s")
        if status not in (0, 1):
            pytest.fail(f"PyIceberg's tests ({self._way}):\n{self._log.read_text()[-4000:]}")
        found: dict[str, tuple[str, str]] = {}
        for line in self._outcomes.read_text().splitlines():
            report: dict[str, Any] = json.loads(line)
            if found.get(report["test"], ("", ""))[0] != "failed":
                found[report["test"]] = report["outcome"], report.get("error", "")
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcomes]:
    """Return the outcomes by the way of running; "alone": of those that do not pass in both."""
    folder = tmp_path_factory.mktemp("peers")
    tree = unpack_tests(folder)
    create_key(str(folder / KEYRING), KEY_ID)
    started: list[Run] = []
    found: dict[str, Outcomes] = {}
    try:
        for way in WAYS:
            started.append(Run(way, tree, folder))
        found = {way: run.outcomes() for way, run in zip(WAYS, started, strict=True)}
        wanted = {test for ours in found.values() for test in ours if ours[test][0] != "passed"}
        wanted.update(*(stated(way, ours).keys() & ours.keys() for way, ours in found.items()))
        # In the same order: after a fixture that failed, the next one may fail, too.
        in_order = dict.fromkeys(test for ours in found.values() for test in ours)
        started.append(Run("alone", tree, folder, filter(wanted.__contains__, in_order)))
        return found | {"alone": started[-1].outcomes()}
    finally:
        for run in started:
            run.stop()


@pytest.mark.parametrize("way", WAYS)
def test_the_differences_are_those_that_are_stated(way: str, outcomes: dict[str, Outcomes]) -> None:
    ours = outcomes[way]
    assert sum(outcome == "passed" for outcome, _ in ours.values()) >= LEAST[way]
    differ = differences(outcomes["alone"], ours)
    unstated, stale = compared(differ, stated(way, ours))
    assert not unstated
    assert not stale


def differences(alone: Outcomes, ours: Outcomes) -> dict[str, str]:
    """Return the tests that end otherwise with PyIceberg alone, and how they end with us. Modules
    that were left out do not differ."""
    absent = ("absent", "")
    ran = {test.partition("::")[0] for test in ours}
    not_passed = {test for test, (outcome, _) in ours.items() if outcome != "passed"}
    return {
        test: ": ".join(ours.get(test, absent))
        for test in alone.keys() | not_passed
        if test.partition("::")[0] in ran
        and ours.get(test, absent)[0] != alone.get(test, absent)[0]
    }


def stated(way: str, ours: Outcomes) -> dict[str, re.Pattern[str]]:
    """Return the tests that are to differ, and what their errors look like. A name without
    parameters stands for the test with all that it has."""
    with (HERE / "differences.toml").open("rb") as file:
        groups = tomllib.load(file)["difference"]
    found: dict[str, re.Pattern[str]] = {}
    for group in groups:
        assert group["reason"]
        if way not in group["ways"]:
            continue
        for name in group["tests"]:
            tests = [test for test in ours if test == name or _PARAMETERS.sub("", test) == name]
            for test in tests or [name]:
                assert test not in found, f"{test} is stated twice"
                found[test] = re.compile(group["error"])
    return found


def compared(
    differ: Mapping[str, str], expected: Mapping[str, re.Pattern[str]]
) -> tuple[dict[str, str], list[str]]:
    """Return the differences that are not stated, and what is stated and does not differ."""
    unstated = {
        test: error
        for test, error in differ.items()
        if test not in expected or not expected[test].search(error)
    }
    return unstated, sorted(expected.keys() - differ.keys())
