"""The threads that read several files of a table at once.

For files on this machine, there are as many as PyIceberg has: it follows the number of CPUs. A
thread that reads from an object store mostly waits for it, so there are more of them then.
PyIceberg's setting ``max-workers`` (``PYICEBERG_MAX_WORKERS``) is followed for both.
"""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

from pyiceberg.utils.concurrent import ExecutorFactory

from ...host.process import PerProcess
from .table_files import TableFiles

REMOTE_WORKERS = 16


def pool_size(executor: Executor) -> int:
    """Return the number of an executor's threads, which decides how far others read ahead."""
    return getattr(executor, "_max_workers", None) or 8


def _remote_pool() -> ThreadPoolExecutor:
    local = pool_size(ExecutorFactory.get_or_create())
    return ThreadPoolExecutor(max(REMOTE_WORKERS, local), "ags1-remote")


_REMOTE = PerProcess(_remote_pool)


def workers(files: TableFiles, location: str) -> Executor:
    """Return the threads for the files below a table's ``location``."""
    if files.local_path(location) is not None or ExecutorFactory.max_workers() is not None:
        return ExecutorFactory.get_or_create()
    return _REMOTE.get()
