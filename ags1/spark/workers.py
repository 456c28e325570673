"""What a task does for the worker process that it ran in: the next one there starts sooner."""

from __future__ import annotations

import gc
import sys
from zipimport import zipimporter

_settled = False


def end_of_task() -> None:
    """Make the next task of this process cheap; nothing where this is no task's process.

    Spark has a worker collect garbage after each task, which looks through all that PySpark,
    PyArrow and ags1 have imported: 0.02 s of a core for each task. What is there at the end of a
    worker's first one is there to stay, and is looked at no more.
    """
    global _settled
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    forget_archives()
    if not _settled:
        gc.collect()
        gc.freeze()
        _settled = True


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
