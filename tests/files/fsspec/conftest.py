"""A keyring for each test, and the file systems that lie below ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem

from ags1.cli.app import app
from ags1.kms import LocalKms

BUCKET = "filesystem"  # of these tests alone: moto keeps the buckets of all servers of a process


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out seven of eight globs of fsspec's "glob edge cases" on S3, where each takes hundreds
    of requests. What a glob means is decided by fsspec's code and ours, which is the same for each
    file system below: all globs run over files and in memory. S3 is another
    in that its folders are prefixes only; of these the four that stay have each kind: recursive and
    not, with a depth and without."""
    spare = {
        item
        for item in items
        if isinstance(item, pytest.Function)
        and item.originalname.endswith("_glob_edge_cases")
        and item.callspec.params["below"] == "s3"
        and item.callspec.indices["path"] % 8 != 5
    }
    if spare:
        config.hook.pytest_deselected(items=list(spare))
        items[:] = [item for item in items if item not in spare]


@pytest.fixture(autouse=True)
def keyring(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """The keyring that the environment names, with the master key ``default``."""
    for name in [name for name in os.environ if name.startswith(("AGS1_", "XDG_CONFIG"))]:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    path = str(folder / "keyring.json")
    LocalKms(path).create_key("default")
    monkeypatch.setenv("AGS1_KEYRING", path)
    return path


@pytest.fixture(autouse=True)
def empty_memory() -> Iterator[None]:
    """All of a process have one memory, and look for a folder among all its files."""
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def command() -> Callable[..., None]:
    """Run the command line; fail with its output unless it succeeds."""

    def run(*arguments: object) -> None:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output

    return run


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    pytest.importorskip("moto")
    from aws_server import aws_server, dummy_environment

    with aws_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in dummy_environment(endpoint).items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir(BUCKET)
        yield endpoint


@pytest.fixture(params=["file", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def below(request: pytest.FixtureRequest) -> str:
    """The protocol of the file system below."""
    protocol: str = request.param
    if protocol == "s3":
        request.getfixturevalue("s3_endpoint")
    return protocol


@pytest.fixture
def root(below: str, tmp_path: Path) -> Iterator[str]:
    """A new folder of the file system below, without its protocol."""
    if below != "s3":
        yield str(tmp_path) if below == "file" else f"/folder/{os.urandom(4).hex()}"
        return
    folder = f"{BUCKET}/{os.urandom(4).hex()}"
    yield folder
    inner = fsspec.filesystem(below)
    inner.invalidate_cache()
    if inner.exists(folder):
        inner.rm(folder, recursive=True)


@pytest.fixture
def fs(below: str) -> Any:
    options = {"auto_mkdir": True} if below == "file" else {}
    return fsspec.filesystem("ags1", target_protocol=below, target_options=options)
