"""fsspec's own tests of file systems, over local files, memory and S3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem, make_path_posix
from fsspec.tests import abstract

# Of `make test`: the same cases in memory. All globs are copied; each is either put or got.
of_files_slow = pytest.mark.slow_variants(r"file-.*")
odd_slow = pytest.mark.slow_variants(r"memory-.*[13579]")
even_slow = pytest.mark.slow_variants(r"memory-.*[02468]")


class _Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture
    def fs(self, below: str, fs: Any) -> Any:
        return fs

    @pytest.fixture
    def fs_path(self, root: str) -> str:
        return root

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_sanitize_path(self, below: str) -> Callable[[str], str]:
        return make_path_posix if below == "file" else (lambda path: path)

    @pytest.fixture
    def supports_empty_directories(self, below: str) -> bool:
        return below != "s3"

    @pytest.fixture
    def local_fs(self) -> LocalFileSystem:
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_path(self, tmp_path_factory: pytest.TempPathFactory) -> str:
        return str(tmp_path_factory.mktemp("local"))


class TestCopy(abstract.AbstractCopyTests, _Fixtures):  # type: ignore[misc]
    test_copy_glob_edge_cases = of_files_slow(abstract.AbstractCopyTests.test_copy_glob_edge_cases)


class TestGet(abstract.AbstractGetTests, _Fixtures):  # type: ignore[misc]
    test_get_glob_edge_cases = odd_slow(
        of_files_slow(abstract.AbstractGetTests.test_get_glob_edge_cases)
    )


class TestPut(abstract.AbstractPutTests, _Fixtures):  # type: ignore[misc]
    test_put_glob_edge_cases = even_slow(
        of_files_slow(abstract.AbstractPutTests.test_put_glob_edge_cases)
    )


class TestOpen(abstract.AbstractOpenTests, _Fixtures):  # type: ignore[misc]
    pass


class TestPipe(abstract.AbstractPipeTests, _Fixtures):  # type: ignore[misc]
    pass
