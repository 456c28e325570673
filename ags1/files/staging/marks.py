"""The mark of a job: a file in the folder of its targets, or in a folder in that. Tasks stage files
only as long as it is there (``JobEndedError``).

If the folder may be a mount, the mark also shows that it is mounted. So another file takes its
place when it ends. S3 needs no mark: it takes no part of an upload that ``clear`` has aborted.
"""

from __future__ import annotations

import contextlib
import time

from . import local_files
from .protocol import Attempt, JobEndedError, JobStorage, Staging

# Between two looks at a mark, if each look is a request.
_SECONDS = 1.0

# The last mark of a remote storage that was there, and when.
_seen = "", 0.0


def leave(storage: JobStorage, job_id: str, root: str, *, durable: bool) -> None:
    """Leave the mark of a job; ``durable``: on the disk."""
    for path in storage.mark_paths(job_id, root)[:1]:
        if storage.is_remote:
            storage.make_root(path.rpartition("/")[0])
        storage.write(path, b"ags1\n" if storage.is_remote else b"")
        if durable and not storage.is_remote:
            local_files.sync([path])


def check(storage: JobStorage, job: Attempt | Staging, *, now: bool) -> None:
    """Raise JobEndedError if the mark of a job has ended. Without ``now``, it may have
    ended a second ago in a remote storage."""
    global _seen
    if job.root is None:
        return
    for path in storage.mark_paths(job.job_id, job.root)[:1]:
        seen, at = _seen
        if storage.is_remote and not now and seen == path and time.monotonic() < at + _SECONDS:
            return
        began = time.monotonic()
        try:
            # On a network file system, this asks the server. A status may be a minute old.
            storage.read(path)
        except FileNotFoundError:
            raise JobEndedError(job.root) from None
        except PermissionError:
            continue  # it is there, and another user's
        _seen = path, began


def end(storage: JobStorage, job_id: str, root: str) -> None:
    """Tell the tasks of a job, which may outlast it, to stage nothing any more. ``clear`` comes
    after this. If a task stages files later, it removes them when it looks at the mark."""
    mark, *ended = storage.mark_paths(job_id, root) or [""]
    # In this order, so that ``is_there`` always knows the folder.
    for path in ended:
        with contextlib.suppress(FileExistsError):
            storage.write(path, b"", new=True)
    if mark:
        storage.remove(mark)


def is_there(storage: JobStorage, job_id: str, root: str) -> bool:
    """Whether the folder that a job has marked is mounted, also after ``end``. A remote storage
    that cannot be reached raises OSError at the next call instead."""
    return storage.is_remote or any(
        storage.status(path) is not None for path in storage.mark_paths(job_id, root)
    )


def remove(storage: JobStorage, job_id: str, root: str) -> None:
    """Remove the mark of a job in a folder, and what took its place. What cannot be removed
    stays."""
    for path in () if storage.is_remote else storage.mark_paths(job_id, root):
        with contextlib.suppress(OSError):
            storage.remove(path)
