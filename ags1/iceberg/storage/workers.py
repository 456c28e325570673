"""The threads that read several files of a table at once.

For files on this machine, there are as many as PyIceberg has: it follows the number of CPUs. A
thread that reads from an object store mostly waits for it, so there are more of them then.
PyIceberg's setting ``max-workers`` (``PYICEBERG_MAX_WORKERS``) is followed for both.
"""

from __future__ import annotations

import os
from concurrent.futures import Executor, ThreadPoolExecutor

from pyiceberg.utils.concurrent import ExecutorFactory

from .table_files import TableFiles

REMOTE_WORKERS = 16


class _Pool:
    """The pool of one process: a forked child has none of its parent's threads."""

    process = 0
    threads: ThreadPoolExecutor


def workers(files: TableFiles, location: str) -> Executor:
    """Return the threads for the files below a table's ``location``."""
    near = ExecutorFactory.get_or_create()
    if files.local_path(location) is not None or ExecutorFactory.max_workers() is not None:
        return near
    if _Pool.process != os.getpid():
        cpus = getattr(near, "_max_workers", REMOTE_WORKERS)
        _Pool.threads = ThreadPoolExecutor(max(REMOTE_WORKERS, cpus), "ags1-remote")
        _Pool.process = os.getpid()
    return _Pool.threads
