"""A task's worker process: the task's context, and what makes the next task start sooner, such as
less garbage to look for."""

from __future__ import annotations

import gc
import sys
from typing import Any
from zipimport import zipimporter

_frozen = False


def task_context() -> Any:
    """Return Spark's context of the running task, None outside a task."""
    from pyspark import TaskContext  # optional: the driver's part is imported without it

    return TaskContext.get()


def end_of_task() -> None:
    """Make the next task of this process cheap. Does nothing outside a task. Spark makes a worker
    collect garbage after each task. That walks through all objects that PySpark, PyArrow and ags1
    have made by being imported, and costs a core 0.02 s a task. So the objects that exist after a
    worker's first task are taken out of later collections."""
    global _frozen
    if task_context() is None:
        return
    forget_archives()
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True


def forget_archives() -> None:
    """Drop the import system's readers of PySpark's and Spark's own archives.

    Spark begins each task with ``importlib.invalidate_caches()``. Before Python 3.13 each reader
    (there is one for each package from an archive) then reads its archive's whole directory: 0.1 s
    of a core a task. The readers are only a cache: one that is needed is made again from the
    directory that ``zipimport`` keeps. Readers of archives that users have added stay.
    """
    from pyspark import SparkFiles  # optional

    added = SparkFiles.getRootDirectory()
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and not finder.archive.startswith(added):
            sys.path_importer_cache.pop(path, None)
