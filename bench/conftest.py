"""Sizes for the benchmarks under pytest; ``--smoke`` runs each once, small."""

from __future__ import annotations

import pytest

from bench.settings import MIB


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--smoke", action="store_true", help="small, once, untimed: does it work?")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--smoke"):
        config.option.benchmark_disable = True


@pytest.fixture(scope="session")
def size(request: pytest.FixtureRequest) -> int:
    """Bytes of plaintext."""
    return MIB if request.config.getoption("--smoke") else 32 * MIB
