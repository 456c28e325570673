"""Where the jar of the plug-in is, without Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from ags1 import spark
from ags1.spark import plugin


def test_the_jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plugin, "_FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match="make jvm"):
        spark.jar()
    (tmp_path / "ags1-iceberg-1.0.jar").touch()
    assert spark.jar() == str(tmp_path / "ags1-iceberg-1.0.jar")
