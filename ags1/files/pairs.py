"""A local file and its sidecar appear together, or neither does.

Two names cannot change in one step, so the sidecar changes before the file does. What is on the
disk after each step, and what opens it, if a file is replaced:

    ==================================  =============  ===================  =====================
    After this step                     FILE.ags1      FILE.ags1.keys       What can be decrypted
    ==================================  =============  ===================  =====================
    0. the run starts                   the old file   old key              the old file
    1. a temporary file is written      the old file   old key              the old file
    2. the sidecar gets the new key     the old file   old key and new key  the old file
    3. the temporary file is renamed    the new file   old key and new key  the new file
    4. the sidecar loses the old key    the new file   new key              the new file
    ==================================  =============  ===================  =====================

Each step is on the disk before the next one begins (if ``durable`` is set). If a run is killed,
the disk stays as after its last step, and before step 3 also the temporary file stays. If a run
fails before step 3, it removes the temporary file and puts the sidecar back as it was. If it fails
later, the new file stays, and so does its sidecar. A run locks the sidecar that it replaces, and
the one that it writes in step 2, until it ends. So two runs come one after the other, and so do a
run and a removal. The other beginnings:

    ==================================  =========================================================
    What is there at the start          What is different
    ==================================  =========================================================
    no file, no sidecar                 After step 2 there is a sidecar without a file; step 4
                                        has nothing to do.
    a file without a sidecar, or with   Nothing opens the old file, not even at the start. The
    a damaged one, and ``overwrite``    sidecar never has an old key.
    a sidecar without a file, and       The sidecar keeps its old keys in step 4, because the
    ``takes_orphans``                   file that they open may only have been moved.
    ==================================  =========================================================

Knows nothing of what the file holds, or of keys that are not wrapped.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from ..errors import KeyMetadataError
from ..host import private_file
from ..host._process import process_number
from ..host.atomic import AtomicFile, publish
from ..host.descriptors import is_stream
from ..keys.sidecar import MAX_SIDECAR_SIZE, Sidecar, sidecar_path, write_sidecar


class PresentSidecar(NamedTuple):
    """The file that is there under a sidecar's name. ``sidecar`` is None if it is damaged."""

    data: bytes
    sidecar: Sidecar | None

    @classmethod
    def of(cls, data: bytes) -> PresentSidecar:
        """Return what these bytes are."""
        try:
            return cls(data, Sidecar.from_bytes(data))
        except KeyMetadataError:
            return cls(data, None)


def publish_pair(
    staged: str,
    target: str,
    sidecar: Sidecar,
    sidecar_file: str,
    *,
    overwrite: bool,
    durable: bool,
    takes_orphans: bool = False,
) -> None:
    """Give the file ``staged`` and its sidecar their names: steps 2 to 4. With ``takes_orphans``,
    the key is added to a sidecar that has no file; it excludes ``overwrite``. Raises OSError, and
    KeyMetadataError if the sidecar has no room. If the sidecar is a stream, it is written, and then
    the file gets its name: there is nothing to replace or to take back."""
    is_sent = is_stream(sidecar_file)
    with contextlib.ExitStack() as locks:
        status = os.stat(staged)
        if overwrite and not is_sent:
            old, first = _replace_sidecar(sidecar_file, sidecar, status, locks, durable=durable)
        else:
            takes_orphans = takes_orphans and not is_sent
            old = locks.enter_context(_orphan(sidecar_file)) if takes_orphans else None
            first = with_keys_of(sidecar, old, sidecar_file)

        def add_key() -> None:
            if not overwrite or is_sent:
                replaces = old is not None
                write_sidecar(sidecar_file, first, overwrite=replaces, durable=durable, file=status)

        publish_in_order(
            add_key,
            partial(publish, staged, target, overwrite=overwrite, durable=durable),
            # Ctrl-C may come when the file has its name already.
            is_published=lambda: _is_file(target, status),
            take_back=lambda: take_back(sidecar_file, first, old),
        )
        if overwrite and first != sidecar:
            write_sidecar(sidecar_file, sidecar, overwrite=True, durable=durable, file=status)


def publish_in_order(
    add_key: Callable[[], object],
    publish: Callable[[], object],
    *,
    is_published: Callable[[], bool],
    take_back: Callable[[], object],
) -> None:
    """Steps 2 and 3 in any storage: first ``add_key`` writes the sidecar, with the keys of the file
    that is there; then ``publish`` gives the new file its name. If one of them fails, and the file
    does not have its name all the same, ``take_back`` undoes the first. The caller does step 4."""
    try:
        add_key()
        publish()
    except BaseException:
        if not is_published():
            take_back()
        raise


def _replace_sidecar(
    path: str,
    sidecar: Sidecar,
    file: os.stat_result,
    locks: contextlib.ExitStack,
    *,
    durable: bool,
) -> tuple[PresentSidecar | None, Sidecar]:
    """Write ``sidecar`` with the keys of the one that is there. Return that one and the new one.
    ``locks`` holds both, so that no other run changes or removes the pair. Raises OSError,
    KeyMetadataError."""
    while True:
        # Its locks are released before another try, which may need the same ones.
        with contextlib.ExitStack() as held:
            held.enter_context(locked(path))
            old = present_sidecar(path)
            first = with_keys_of(sidecar, old, path)
            is_new = old is None and not os.path.islink(path)
            try:
                write_sidecar(path, first, overwrite=not is_new, durable=durable, file=file)
                held.enter_context(locked(path))
                present = present_sidecar(path)
            except FileExistsError:
                if not is_new:
                    raise
                continue
            except BaseException:
                take_back(path, first, old)
                raise
            # Another run may have come before we held the lock.
            if present is not None and present.data == first.to_bytes():
                locks.push(held.pop_all())
                return old, first


@contextlib.contextmanager
def locked(path: str) -> Iterator[bool]:
    """Lock the sidecar that is there, and wait while another run has it. Yield whether there is
    one. Where the file system has no locks, nothing is locked."""
    fd = -1
    is_there = True
    process = process_number()
    try:
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as error:
                is_there = not isinstance(error, FileNotFoundError)
                break
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX)
            # The run that had the lock before may have put another file in its place.
            if _is_file(path, os.fstat(fd)):
                break
            os.close(fd)
            fd = -1
        yield is_there
    finally:
        if fd >= 0:
            if process == process_number():
                with contextlib.suppress(OSError):
                    # A child that was forked meanwhile has this descriptor, too.
                    fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def remove_pair(target: str, sidecar_file: str) -> None:
    """Remove a file and then its sidecar. A run that replaces the file comes before or after.
    Raises OSError."""
    with locked(sidecar_file) as is_there:
        os.remove(target)
        # If there was none, the one that is there now is the key of another run's file.
        if is_there:
            with contextlib.suppress(FileNotFoundError):
                os.remove(sidecar_file)


def with_keys_of(sidecar: Sidecar, old: PresentSidecar | None, path: str) -> Sidecar:
    """Return ``sidecar`` with the keys of the one that is at ``path``. Raises KeyMetadataError if
    they are too many."""
    if old is None or old.sidecar is None:
        return sidecar
    both = sidecar.with_keys_of(old.sidecar)
    try:
        return Sidecar.from_bytes(both.to_bytes())
    except KeyMetadataError:
        message = "this sidecar has no room for another key: move it and its file away"
        raise KeyMetadataError(message, file=path) from None


@contextlib.contextmanager
def _orphan(path: str) -> Iterator[PresentSidecar | None]:
    """Lock a sidecar without a file, so that one run at a time replaces it; None if there is none.
    If another run publishes its file meanwhile, our own cannot get the name, and the sidecar keeps
    the other's key. Raises FileExistsError if this is no sidecar, or another run replaced it;
    OSError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        yield None
        return
    try:
        with contextlib.suppress(OSError):  # as in ``locked``
            fcntl.flock(fd, fcntl.LOCK_EX)
        present = present_sidecar(path)
        # The run that had the lock before may have put another file in its place.
        if present is None or present.sidecar is None or not _is_file(path, os.fstat(fd)):
            raise already_exists(path)
        yield present
    finally:
        os.close(fd)


def check_link(target: str, sidecar_file: str) -> None:
    """Raise OSError if ``target`` is a link to a file whose usual sidecar is another one than
    ``sidecar_file``: that sidecar would not open the new file."""
    own = sidecar_path(os.path.realpath(target))
    is_other = os.path.realpath(sidecar_file) != os.path.realpath(own)
    if os.path.islink(target) and is_other and os.path.lexists(own):
        message = (
            f"this is a link, and the file that it points to has the sidecar {own}: name that file"
        )
        raise OSError(errno.EINVAL, message, target)


def already_exists(path: str) -> FileExistsError:
    """Return the error of a file that is there and must not be replaced."""
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def present_sidecar(path: str) -> PresentSidecar | None:
    """Return the sidecar at a path; None if there is none, or a stream. Raises OSError."""
    if is_stream(path):
        return None
    try:
        data, _ = private_file.read(path, MAX_SIDECAR_SIZE)
    except FileNotFoundError:
        return None
    return PresentSidecar.of(data)


def take_back(path: str, written: Sidecar, old: PresentSidecar | None) -> None:
    """Undo the writing of a sidecar, unless it did not happen or another one is there by now."""
    present = present_sidecar(path)
    if present is None or present.data != written.to_bytes():
        return
    if old is None:
        _remove(path)
    else:
        with AtomicFile(path, overwrite=True) as out:
            out.write(old.data)


def _is_file(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError:
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
