"""What a task leaves behind in its worker process."""

from __future__ import annotations

import gc
import importlib
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipimport import zipimporter

import pytest

from ags1.spark import workers
from ags1.spark.workers import end_of_task, forget_archives


def _readers() -> list[str]:
    found = sys.path_importer_cache.items()
    return [path for path, finder in found if isinstance(finder, zipimporter)]


def _in_a_task(_: Iterable[int]) -> list[tuple[int, list[str], str]]:
    _imported()  # an earlier task here may have forgotten them
    before = len(_readers())
    forget_archives()
    left = _readers()
    return [(before, left, _imported())]


def _imported() -> str:
    sys.modules.pop("pyspark.join", None)
    return importlib.import_module("pyspark.join").__name__


def test_a_task_forgets_sparks_archives_and_can_still_import_from_them(spark: Any) -> None:
    context = spark.sparkContext
    [(before, left, imported)] = context.runJob(context.parallelize([0], 1), _in_a_task)
    assert before > 0
    assert left == []
    assert imported == "pyspark.join"


def test_archives_that_users_add_are_read_again_when_spark_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pyspark: Any
) -> None:
    spark_files = pyspark.SparkFiles
    added, other = tmp_path / "files", tmp_path / "spark"
    monkeypatch.setattr(spark_files, "getRootDirectory", lambda: str(added))
    for folder, module in ((added, "ags1_test_added"), (other, "ags1_test_other")):
        folder.mkdir()
        with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
            archive.writestr(f"{module}.py", "")
        monkeypatch.syspath_prepend(str(folder / "archive.zip"))
        importlib.import_module(module)
        sys.modules.pop(module)
    forget_archives()
    assert str(added / "archive.zip") in _readers()
    assert str(other / "archive.zip") not in _readers()
    importlib.import_module("ags1_test_other")
    sys.modules.pop("ags1_test_other")


def _frozen(_: Iterable[int]) -> list[tuple[int, int, int]]:
    gc.unfreeze()
    workers._frozen = False
    imported = len(gc.get_objects())
    end_of_task()
    first = gc.get_freeze_count()
    later: list[list[int]] = [[] for _ in range(100)]
    end_of_task()
    seen = (imported, first, gc.get_freeze_count())
    del later
    return [seen]


def test_garbage_collection_passes_over_what_the_first_task_of_a_worker_imported(
    spark: Any,
) -> None:
    context = spark.sparkContext
    [(imported, first, second)] = context.runJob(context.parallelize([0], 1), _frozen)
    assert first > imported / 2
    assert second == first


@pytest.mark.usefixtures("pyspark")
def test_a_program_that_does_a_tasks_work_keeps_its_garbage_collection() -> None:
    before = gc.get_freeze_count()
    end_of_task()
    assert gc.get_freeze_count() == before
