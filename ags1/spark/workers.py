"""What a task does for the worker process that it ran in: the next one there starts sooner."""

from __future__ import annotations

import sys
from zipimport import zipimporter


def forget_archives() -> None:
    """Drop the import system's readers of archives that stay as they are: PySpark's and Spark's.

    Spark has each task begin with ``importlib.invalidate_caches()``, and before Python 3.13 each of
    these readers (one for each package that came from an archive) reads its archive's whole
    directory then: 0.1 s of a core for each task. They are a cache: a reader that is needed is made
    anew, from the directory that ``zipimport`` keeps. Those of files that users add stay.
    """
    from pyspark import SparkFiles

    added = SparkFiles.getRootDirectory()
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and not finder.archive.startswith(added):
            sys.path_importer_cache.pop(path, None)


def end_of_task() -> None:
    """``forget_archives``, unless this is no task's process but a program that does its work."""
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        forget_archives()
