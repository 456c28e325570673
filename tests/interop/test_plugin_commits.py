"""Threads of one Spark session share a loaded table, because Spark keeps loaded tables by default.

What was acknowledged has to be there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .java import Java

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize("step", ["list", "metadata", "transaction"])
def test_another_thread_reads_the_table_during_a_commit(
    java: Java, tmp_path: Path, step: str, has_keys: bool
) -> None:
    catalog = {
        "uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        "warehouse": f"file:{tmp_path}",
        "encryption.kms-type": "memory",
        "encryption.kms.key.a": b"0123456789012345".hex(),
    }
    call = "ags1.iceberg.Interleaved.commit"
    marks = java.call(call, catalog=catalog, step=step, **{"has-keys": has_keys})
    assert marks == ["first"] * has_keys + ["other", "stopped"]
