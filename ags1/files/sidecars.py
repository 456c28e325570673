"""The keystore that has the keys of a file beside it, in a sidecar, on any storage.

``Place`` is all that a sidecar needs of its storage. A folder of this machine has locks, so runs
that change one pair there come one after the other (``LocalPlace``). An object storage has none:
there may be one writer of a file at a time. Independent of plaintext and unwrapped keys.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from ..errors import KeyMetadataError
from ..host import private_file
from ..host._process import process_number
from ..host.atomic import already_exists, is_at
from ..host.atomic import publish as give_name
from ..host.descriptors import is_stream
from ..keys.sidecar import MAX_SIDECAR_SIZE, Sidecar, sidecar_path, write_document
from .publish import publish
from .storage.protocol import Storage


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


class OldKeys(enum.Enum):
    """What becomes of the keys that a sidecar has already. ``RETIRE``: they open the file that is
    replaced, and go after it. ``KEEP``: there is no file, and what they open may only have been
    moved. ``DROP``: nobody knows what they open. ``REFUSE``: there may be no sidecar."""

    RETIRE = enum.auto()
    KEEP = enum.auto()
    DROP = enum.auto()
    REFUSE = enum.auto()


# From the sidecar that is there to the bytes of the one that takes its place.
Change = Callable[[PresentSidecar | None], bytes]


class Place:
    """Where one sidecar lies; ``path`` is its name. In the context of ``with``, no other run
    changes what ``change`` has written, if the storage has locks. Methods raise OSError."""

    path: str

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read(self) -> bytes | None:
        """Return the sidecar's bytes; None if there is none."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Write the sidecar, whole or not at all, in place of an older one."""
        raise NotImplementedError

    def remove(self) -> None:
        """Remove the sidecar, if it is there."""
        raise NotImplementedError

    def present(self) -> PresentSidecar | None:
        """Return what is there."""
        data = self.read()
        return None if data is None else PresentSidecar.of(data)

    def change(self, change: Change, old_keys: OldKeys) -> bool:
        """Replace the sidecar by what ``change`` makes of it. Return whether it is another one."""
        old = self.present()
        data = change(old)
        is_other = old is None or old.data != data
        if is_other:
            self.write(data)
        return is_other

    def undo(self, written: bytes, rest: bytes | None) -> None:
        """Put ``rest`` in the place of ``written``, or remove that if there is no rest. A sidecar
        that another run has changed stays."""
        if self.read() != written:
            return
        if rest is None:
            self.remove()
        elif rest != written:
            self.write(rest)

    def remove_after(self, remove_file: Callable[[], object]) -> None:
        """Remove a file by ``remove_file``, and then its sidecar. If another run has replaced the
        file meanwhile, the sidecar has the new file's key, and stays."""
        before = self.read()
        remove_file()
        if before is not None and self.read() == before:
            self.remove()


class Beside:
    """The keys of one file, in the sidecar at ``place``. ``sidecar`` has the new file's key."""

    def __init__(self, place: Place, sidecar: Sidecar, old_keys: OldKeys) -> None:
        self._place = place
        self._sidecar = sidecar
        self._ours = sidecar.to_bytes()
        self._old_keys = old_keys
        self._rest: bytes | None = None
        self._written: bytes | None = None

    def add(self) -> bool:
        """Store the new key beside those that are there. Return whether it was not there yet."""
        return self._place.change(self._with_keys_of, self._old_keys)

    def _with_keys_of(self, old: PresentSidecar | None) -> bytes:
        path = self._place.path
        both = self._ours
        if old is not None and self._old_keys is OldKeys.REFUSE:
            raise already_exists(path)
        # An earlier try may have been cut off, where a storage does not write whole files.
        is_ours = old is not None and both.startswith(old.data)
        if old is not None and self._old_keys is not OldKeys.DROP and not is_ours:
            if old.sidecar is not None:
                both = _with_room(self._sidecar.with_keys_of(old.sidecar), path)
            elif self._old_keys is OldKeys.KEEP:  # it may be no sidecar at all
                raise KeyMetadataError("the sidecar is damaged: move the file away", file=path)
        self._rest = self._without_ours(old)
        self._written = both
        return both

    def retire(self) -> None:
        if self._old_keys is not OldKeys.RETIRE or self._written in (None, self._ours):
            return
        present = self._place.read()
        if present == self._written:
            self._place.write(self._ours)
        elif present is None:
            # Another process has removed the old file, and thought that the sidecar was its.
            self._place.write(self._written or self._ours)

    def take_back(self) -> None:
        # The error that is on its way says more than what fails here. A key that stays, because it
        # fails or another run has changed the sidecar meanwhile, opens no file.
        with contextlib.suppress(Exception):
            if self._written is not None:
                self._place.undo(self._written, self._rest)

    def _without_ours(self, old: PresentSidecar | None) -> bytes | None:
        """Return a sidecar without our key, which a run that was killed may have added already."""
        if old is None or old.data == self._ours:
            return None
        key_id = self._sidecar.key_id
        if old.sidecar is None or all(key.key_id != key_id for key in old.sidecar.file_keys):
            return old.data
        rest = old.sidecar.without(key_id)
        return None if rest is None else rest.to_bytes()


def _with_room(sidecar: Sidecar, path: str) -> bytes:
    data = sidecar.to_bytes()
    if PresentSidecar.of(data).sidecar is None:
        message = "this sidecar has no room for another key: move it and its file away"
        raise KeyMetadataError(message, file=path)
    return data


class LocalPlace(Place):
    """A sidecar on this machine, or a stream, of which nothing can be read, replaced or taken back.
    ``file`` is the status of the file whose keys it has."""

    def __init__(
        self, path: str, *, durable: bool = True, file: os.stat_result | None = None
    ) -> None:
        self.path = path
        self._durable = durable
        self._file = file
        self._locks = contextlib.ExitStack()
        self._is_locked = False

    def __exit__(self, *error: object) -> None:
        self._locks.close()

    def read(self) -> bytes | None:
        if is_stream(self.path):
            return None
        try:
            return private_file.read(self.path, MAX_SIDECAR_SIZE)[0]
        except FileNotFoundError:
            return None

    def write(self, data: bytes) -> None:
        self._write(data, overwrite=True)

    def _write(self, data: bytes, *, overwrite: bool) -> None:
        write_document(self.path, data, overwrite=overwrite, durable=self._durable, file=self._file)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def change(self, change: Change, old_keys: OldKeys) -> bool:
        """Replace the sidecar, if it changes. Lock both, so that no other run changes or removes
        the pair until the context ends. A new sidecar of a new file needs no lock: its key stays in
        it, whoever changes it. Only ``undo`` does."""
        if is_stream(self.path):
            self._write(change(None), overwrite=True)
            return True
        is_new_file = old_keys in (OldKeys.KEEP, OldKeys.REFUSE)
        if is_new_file:
            try:
                self._write(change(None), overwrite=False)
                return True
            except FileExistsError:
                if old_keys is OldKeys.REFUSE or not os.path.exists(self.path):
                    raise
        while True:
            # Another try may need the locks of the one before.
            self._locks.close()
            self._is_locked = True
            self._locks.enter_context(locked(self.path))
            old = self.present()
            data = change(old)
            if old is not None and old.data == data:
                return False
            is_new = old is None and not os.path.islink(self.path)
            try:
                self._write(data, overwrite=not is_new)
            except FileExistsError:
                if not is_new:
                    raise
                continue
            self._locks.enter_context(locked(self.path))
            # Another run may have come before we held the lock.
            if self.read() == data:
                return True

    def undo(self, written: bytes, rest: bytes | None) -> None:
        with contextlib.nullcontext() if self._is_locked else locked(self.path):
            super().undo(written, rest)

    def remove_after(self, remove_file: Callable[[], object]) -> None:
        with locked(self.path) as is_there:
            remove_file()
            # If there was none, the one that is there now is the key of another run's file.
            if is_there:
                self.remove()


class StoragePlace(Place):
    """A sidecar in any storage, beside ``file``."""

    def __init__(self, storage: Storage, file: str) -> None:
        self.path = sidecar_path(file)
        self.storage = storage

    def read(self) -> bytes | None:
        try:
            return sidecar_bytes(self.storage, self.path)
        except FileNotFoundError:
            return None

    def write(self, data: bytes) -> None:
        self.storage.write(self.path, data)

    def remove(self) -> None:
        self.storage.remove(self.path)


def place_beside(storage: Storage, file: str) -> Place:
    """Return the place of the sidecar beside a file. Raises OSError."""
    if storage.is_remote:
        return StoragePlace(storage, file)
    return LocalPlace(sidecar_path(file), file=os.stat(file))


def sidecar_bytes(storage: Storage, path: str) -> bytes:
    """Return the bytes of a sidecar. Raises OSError, KeyMetadataError if they are too many."""
    data = storage.read(path, 0, MAX_SIDECAR_SIZE + 1)
    if len(data) > MAX_SIDECAR_SIZE:
        raise KeyMetadataError("this is not a sidecar: it is too large", file=path)
    return data


def publish_pair(
    staged: str,
    target: str,
    sidecar: Sidecar,
    sidecar_file: str,
    old_keys: OldKeys,
    *,
    durable: bool = True,
) -> None:
    """Give the file ``staged`` on this machine and its sidecar their names (``files.publish``),
    each step on the disk before the next one begins if ``durable`` is set. The file replaces
    another one if ``old_keys`` is ``RETIRE``. Raises OSError, and KeyMetadataError if the sidecar
    has no room."""
    status = os.stat(staged)
    overwrite = old_keys is OldKeys.RETIRE
    with LocalPlace(sidecar_file, durable=durable, file=status) as place:
        publish(
            Beside(place, sidecar, old_keys),
            partial(give_name, staged, target, overwrite=overwrite, durable=durable),
            # Ctrl-C may come when the file has its name already.
            lambda _: is_at(target, status, follow=True),
        )


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
            if is_at(path, os.fstat(fd), follow=True):
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
