"""The sidecar of one file of a job, around the step in which the file gets its name. It changes as
in ``ags1 encrypt``, so that each state between two steps is one that opens the file::

    after this step    FILE.ags1.keys         FILE.ags1
    add_key            new key and old keys   none, or the old file
    the file is named  new key and old keys   the new file
    drop_old_keys      new key                the new file

Old keys stay if the job replaces no file: what they open may only have been moved. A failed file
gives its key back (``remove_key``). All this can be repeated after a kill, because it looks at the
sidecar that is there. Wrapped keys are copied; no KMS is called.
"""

from __future__ import annotations

import contextlib
import errno

from ...errors import KeyMetadataError
from ...files.ledger import Row
from ...files.pairs import PresentSidecar, with_keys_of
from ...files.storage.places import open_storage
from ...files.storage.protocol import Storage
from ...keys.sidecar import Sidecar, sidecar_path


def add_key(row: Row) -> bool:
    """Write a row's key to the sidecar of its target. Return whether the sidecar has old keys that
    the new file does not need. Raises OSError."""
    storage, path, ours = _place(row)
    old = _read(storage, path)
    both = ours
    # A storage that does not write whole files may have been interrupted.
    if old is not None and not ours.to_bytes().startswith(old):
        both = _with_keys_of(old, ours, path, may_replace=row.replaces)
    data = both.to_bytes()
    if data != old:
        storage.write_small(path, data, row=row)
    return row.replaces and both != ours


def drop_old_keys(row: Row) -> None:
    """Write a sidecar that has only a row's key beside its target. Raises OSError."""
    storage, path, ours = _place(row)
    storage.write_small(path, ours.to_bytes(), row=row)


def remove_key(row: Row) -> None:
    """Remove a row's key from the sidecar of its target, and a sidecar that is empty then. If that
    fails, the sidecar has one key too many, which opens no file."""
    storage, path, ours = _place(row)
    with contextlib.suppress(OSError, KeyMetadataError):
        old = Sidecar.from_bytes(storage.read_small(path))
        rest = old.without(ours.key_id)
        if rest is None:
            storage.remove(path)
        elif rest != old:
            storage.write_small(path, rest.to_bytes(), row=row)


def _place(row: Row) -> tuple[Storage, str, Sidecar]:
    try:
        sidecar = Sidecar.from_bytes((row.key_metadata or "").encode())
    except KeyMetadataError as error:  # the row is damaged
        raise OSError(errno.EINVAL, error.message, row.target) from None
    return open_storage(row.target), sidecar_path(row.target), sidecar


def _read(storage: Storage, path: str) -> bytes | None:
    try:
        return storage.read_small(path)
    except FileNotFoundError:
        return None


def _with_keys_of(old: bytes, ours: Sidecar, path: str, *, may_replace: bool) -> Sidecar:
    present = PresentSidecar.of(old)
    if present.sidecar is None and not may_replace:  # what is damaged opens no file
        message = f"the sidecar is damaged: move the file {path} away"
        raise OSError(errno.EINVAL, message, path)
    try:
        return with_keys_of(ours, present, path)
    except KeyMetadataError as error:
        raise OSError(errno.EINVAL, f"{error.message}: {path}", path) from None
