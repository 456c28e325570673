"""A pytest plugin for PyIceberg's own tests: whatever catalog they make, ours wraps it.

``AGS1_PEER`` says how they run: ``alone`` changes nothing; ``plain`` wraps each catalog;
``encrypted`` makes each table of a SQL or in-memory catalog an encrypted one, too, under the key
``AGS1_PEER_KEY_ID``. ``AGS1_OUTCOMES`` is the file that gets a line of JSON for each outcome.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyiceberg.catalog
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.sql import SqlCatalog

from ags1.iceberg import EncryptedCatalog, load_catalog
from ags1.iceberg.transaction import EncryptedTransaction
from ags1.keys.manager import TABLE_KEY_ID
from ags1.kms import from_properties

WAY = os.environ["AGS1_PEER"]
KMS = {"encryption.kms-type": "local"}  # the keyring that AGS1_KEYRING names
KEY_ID = os.environ.get("AGS1_PEER_KEY_ID", "peer")


class PeerCatalog(EncryptedCatalog):
    """Ours, which PyIceberg's tests take for the catalog that they made."""

    def __setattr__(self, name: str, value: object) -> None:
        # A mock of what only the inner catalog has belongs there; one that answers, to both.
        inner = self.__dict__.get("inner")
        is_own = inner is None or name in self.__dict__ or hasattr(PeerCatalog, name)
        if is_own:
            super().__setattr__(name, value)
        if not is_own or (isinstance(value, Mock) and value.side_effect is None):
            setattr(inner, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self.inner, name)


def _encrypted(make: Any) -> Any:
    def create(
        self: EncryptedCatalog,
        identifier: Any,
        schema: Any,
        location: Any = None,
        *more: Any,
        properties: Any = None,
        **named: Any,
    ) -> Any:
        if len(more) == 3:
            *more, properties = more
        if isinstance(self.inner, SqlCatalog):
            properties = {**(properties or {}), TABLE_KEY_ID: KEY_ID, "format-version": "3"}
        return make(self, identifier, schema, location, *more, properties=properties or {}, **named)

    return create


_making = threading.local()
_new = object.__new__


def _wrapped(cls: type, *arguments: Any, **named: Any) -> Any:
    made = _new(cls)
    if issubclass(cls, EncryptedCatalog | NoopCatalog) or not (arguments or named):
        return made
    if getattr(_making, "inner", False):
        return made
    made.__init__(*arguments, **named)  # type: ignore[misc]
    return _peer(made)


def _peer(inner: Catalog) -> PeerCatalog:
    return PeerCatalog(inner, from_properties(KMS) if WAY == "encrypted" else None)


def _load_catalog(name: str | None = None, **properties: str | None) -> PeerCatalog:
    _making.inner = True
    try:
        return _peer(load_catalog(name, **properties).inner)
    finally:
        _making.inner = False


if WAY != "alone":
    Catalog.__new__ = _wrapped  # type: ignore[method-assign,assignment]
    pyiceberg.catalog.load_catalog = _load_catalog
    if WAY == "encrypted":
        for method in ("create_table", "create_table_transaction"):
            setattr(PeerCatalog, method, _encrypted(getattr(EncryptedCatalog, method)))
        # The tables have version 3 whatever a test asked for.
        EncryptedTransaction.upgrade_table_version = lambda self, format_version: self  # type: ignore[method-assign]


class _Outcomes:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._write(report.nodeid, report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report.nodeid, report)

    def _write(self, test: str, report: Any) -> None:
        line = {"test": test, "outcome": report.outcome, "when": report.when}
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            line["error"] = crash.message if crash else str(report.longrepr)
        with self._path.open("a") as outcomes:
            outcomes.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Outcomes(Path(os.environ["AGS1_OUTCOMES"])))
