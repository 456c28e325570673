"""What our plug-in makes of the rows of ``vectors/rules``. For Python, see ``../test_rules.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rules import changed_metadata, rows

from .java import Java

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rules")


@pytest.mark.parametrize(("rule", "given", "result"), rows("java"))
def test_the_rows(java: Java, folder: Path, rule: str, given: Any, result: str) -> None:
    if rule == "table_metadata":
        given = changed_metadata(given)
    call = {"rule": rule, "given": given, "folder": str(folder)}
    assert java.call("ags1.iceberg.Rules.decide", **call) == result
