"""With a PyIceberg that is newer than the tested one, tables are not written unless asked for."""

from __future__ import annotations

from typing import Any

import pytest

PROGRAM = """
import sys, warnings
import pyiceberg
pyiceberg.__version__ = sys.argv[1]
warnings.simplefilter("ignore")
from ags1.iceberg import load_catalog
place = {"uri": f"sqlite:///{sys.argv[2]}/c.db", "warehouse": f"file://{sys.argv[2]}"}
kms = {"encryption.kms-type": "memory", "encryption.kms.key.a": b"0123456789012345".hex()}
catalog = load_catalog("lake", type="sql", **place, **kms)
catalog.create_namespace("db")
from pyiceberg.schema import Schema
try:
    catalog.create_table("db.t", Schema(), properties={"encryption.key-id": "a"})
except NotImplementedError as error:
    print(error)
else:
    print("written")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "variable", "printed"),
    [
        ("0.13.0", None, "PyIceberg 0.12, and this is 0.13.0: tables can be read but not written"),
        ("1.0.0", "write", "written"),
    ],
)
def test_writing_with_a_version(
    version: str,
    variable: str | None,
    printed: str,
    tmp_path: Any,
    run_python: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if variable is not None:
        monkeypatch.setenv("AGS1_UNTESTED_PYICEBERG", variable)
    assert printed in run_python(PROGRAM, version, tmp_path).stdout
