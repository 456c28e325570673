"""Stages the files that tasks write, and removes what is left.

In a mounted folder a file is staged in a folder inside it, which readers pass over. For another
storage a task encrypts it to its own disk and uploads it from there: to S3 as an upload that is not
completed, otherwise among the job's staged files (see ``storage``). Independent of rows.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable
from typing import TypeAlias

from ...engine import layout
from ...engine.key_metadata import KeyMetadata
from ...files.ledger import Row
from ...files.paths import local_path
from ...files.plan.cutting import whole
from ...files.staging import local_files as files
from ...files.staging.pieces import BLOCK_SIZE, Item
from ...files.staging.places import open_storage
from ...files.staging.protocol import Attempt, Staging

# Of a file that is uploaded, if the storage does not say.
_RUN_BLOCKS = 8
# Makes a file of that path, and returns its key.
Write: TypeAlias = "Callable[[str], KeyMetadata]"


def stage(
    folder: str, name: str, job_id: str, number: int, write: Write
) -> tuple[str, KeyMetadata]:
    """Have ``write`` make a file, and stage it so that the driver can give it the name ``name`` in
    ``folder``. Return what the ledger needs for that (``Row.attempt``), and the key. ``number`` is
    the task's. Raises OSError and what ``write`` raises. Then nothing is left, except in S3 parts
    that belong to no object."""
    attempt = f"{number:x}-{uuid.uuid4().hex[:8]}"
    if local_path(folder) is not None:
        inside = _staging(folder, job_id)
        os.makedirs(inside, exist_ok=True)
        staged = files.staged_path(os.path.join(inside, name), job_id, attempt)
        key_metadata = write(staged)
        return files.attempt(staged, folder), key_metadata
    with tempfile.TemporaryDirectory(prefix="ags1-") as scratch:
        path = os.path.join(scratch, attempt)
        key_metadata = write(path)
        return _uploaded(path, f"{folder}/{name}", folder, job_id, number, attempt), key_metadata


def _uploaded(path: str, target: str, folder: str, job_id: str, number: int, attempt: str) -> str:
    storage = open_storage(folder)
    plaintext_size = layout.plaintext_size(os.stat(path).st_size)
    unit = storage.unit(plaintext_size) or _RUN_BLOCKS
    item = Item(number, path, target, "", plaintext_size, "", plaintext_size, unit=unit)
    staging = Staging(job_id, folder, seals=True, durable=True)
    shared = storage.stage(staging, [item], ())[number]
    if isinstance(shared, OSError):
        raise shared
    piece = whole(item)._replace(shared=shared)
    try:
        with storage.output(piece, Attempt(job_id, attempt, 0), 0o600, 0) as out:
            with open(path, "rb") as file:
                while data := file.read(unit * (BLOCK_SIZE + layout.BLOCK_OVERHEAD)):
                    out.write(data)
    except BaseException:
        storage.discard(target, shared, (), whole=True)
        raise
    return storage.gather(staging, item, shared, [(0, out.staged)], lambda staged: None)


def staged_path(folder: str, staged: str) -> str:
    """Return the path of a file that ``stage`` left in a mounted folder."""
    return os.path.join(folder, staged.rpartition("\t")[0])


def withdraw(rows: Iterable[Row]) -> None:
    """Remove what was staged for rows that will not be in the ledger."""
    for row in rows:
        open_storage(row.target).withdraw(row)


def clear(folder: str, job_id: str) -> None:
    """Remove what attempts of a job left staged."""
    if local_path(folder) is not None:
        shutil.rmtree(_staging(folder, job_id), ignore_errors=True)
    else:
        open_storage(folder).clear(job_id, folder, None, ())


def remove(path: str) -> None:
    """Remove a published file, if it exists. A file that cannot be removed stays."""
    with contextlib.suppress(OSError):
        open_storage(path).remove(path)


def _staging(folder: str, job_id: str) -> str:
    return os.path.join(folder, f"{files.SINK_PREFIX}{job_id}")
