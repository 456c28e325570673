"""Moves keys between a ledger and sidecars: a sidecar beside each encrypted file of a ledger, and
rows for encrypted files that have a sidecar beside them. No file is encrypted or decrypted, and no
KMS is called: wrapped keys are copied as they are. Needs no Spark."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator

from ...engine._gcm import random_bytes
from ...errors import Ags1Error, KeyMetadataError
from ...host.pools import CancellingPool, map_in_threads
from ...keys.sidecar import SUFFIX as KEYS
from ...keys.sidecar import Sidecar, sidecar_path
from ..ledger import ENCRYPT, Ledger, Row
from ..ledger.rows import encrypted_row
from ..paths import SUFFIX
from ..sidecars import Beside, OldKeys, place_beside, sidecar_bytes
from ..staging.places import find, open_storage
from ..staging.protocol import REQUESTS, SourceFile
from ..storage.protocol import status_of_file
from .report import Summary

_ROWS_IN_A_BATCH = 100_000
_ERRORS = (Ags1Error, OSError)


def write_sidecars(ledger: Ledger) -> Summary:
    """Write ``FILE.keys`` beside each encrypted file of a ledger. A sidecar that is there keeps its
    other keys, because they may be those of an older content; one that has the key already is
    ``unchanged``. A file that is not there, and a sidecar that cannot be read, are failures. Raises
    OSError and FormatError for the ledger."""

    def write(row: Row) -> bool:
        """Return whether the sidecar had to be written."""
        storage = open_storage(row.target)
        status_of_file(storage, row.target)
        sidecar = Sidecar.from_bytes((row.key_metadata or "").encode())
        with place_beside(storage, row.target) as place:
            return Beside(place, sidecar, OldKeys.KEEP).add()

    moved = Summary("export")
    columns = ("target", "key_metadata")
    rows = [row for row in ledger.done(ENCRYPT, columns).values() if row.key_metadata is not None]
    with CancellingPool(REQUESTS) as pool:
        futures = [pool.submit(write, row) for row in rows]
        for row, future in zip(rows, futures, strict=True):
            try:
                is_new = future.result()
                moved.done += is_new
                moved.unchanged += not is_new
            except _ERRORS as error:
                moved.fail(row.target, error)
    return moved


def rows_from_sidecars(ledger: Ledger, sources: Iterable[str]) -> Summary:
    """Add a row to a ledger for each encrypted file with a sidecar beside it. ``sources`` are
    files, folders or patterns. Files whose key the ledger has are left alone, so this can be
    repeated. The key is the one that the sidecar names first; whether it opens the file, a
    verification tells. Raises OSError and FormatError for the ledger, and as
    ``Ledger.refuse_jobs``."""
    ledger.refuse_jobs()
    moved = Summary("rebuild")
    listing = find(sources)
    for path, problem in listing.problems:
        moved.fail(path, problem)
    known = {target: row.key_id for target, row in ledger.done(ENCRYPT, ("key_id",)).items()}
    job_id = random_bytes(6).hex()
    waiting: list[Row] = []
    for file, result in _with_sidecars(listing.files):
        if isinstance(result, BaseException):
            moved.fail(file.path, result)
        elif file.path not in known:
            try:
                name = file.relative_path.removesuffix(SUFFIX)
                waiting.append(encrypted_row(file.path, name, file.size, result, job_id))
            except Ags1Error as error:
                moved.fail(file.path, error)
        elif known[file.path] == result.key_id:
            moved.unchanged += 1
        else:
            message = "the ledger has another key for this file: rebuild into a new ledger"
            moved.fail(file.path, KeyMetadataError(message))
    for first in range(0, len(waiting), _ROWS_IN_A_BATCH):
        rows = waiting[first : first + _ROWS_IN_A_BATCH]
        ledger.add(rows)
        moved.done += len(rows)
    return moved


def _with_sidecars(
    files: Collection[SourceFile],
) -> Iterator[tuple[SourceFile, Sidecar | BaseException]]:
    """Yield the files that have a sidecar beside them, with what it is or why it cannot be read."""
    paths = {file.path for file in files}
    pairs = [file for file in files if sidecar_path(file.path) in paths]

    def read(file: SourceFile) -> Sidecar | BaseException:
        try:
            storage = open_storage(file.path)
            return Sidecar.from_bytes(sidecar_bytes(storage, sidecar_path(file.path)))
        except _ERRORS as error:
            return error

    yield from zip(pairs, map_in_threads(REQUESTS, read, pairs), strict=True)
    for file in files:
        if file.path.endswith(SUFFIX) and sidecar_path(file.path) not in paths:
            message = (
                f"there is no sidecar {os.path.basename(file.path)}{KEYS}: put it beside the file"
            )
            yield file, KeyMetadataError(message)
