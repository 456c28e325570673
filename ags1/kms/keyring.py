"""The keyring file: named master keys, each with its versions. One process at a
time changes it: by flock, or by a file beside it where the file system has no locks.

::

    {"format": "ags1-keyring", "version": 1,
     "keys": {"default": {"current": 1,
                          "versions": {"1": {"created-ms": 1700000000000, "key": "<base64>"}}}}}

Whoever can read the file has the master keys. So a keyring that others may access is refused, as
ssh does with private keys (see ``passphrase.check_private``).

A passphrase protects the keys if somebody gets the file (from a backup, from a lost disk)::

    {"format": "ags1-keyring", "version": 2,
     "protection": {"kdf": "scrypt", "n": 131072, "r": 8, "p": 1, "salt": "<base64>"},
     "keys": "<base64 of nonce(12) | ct | tag(16)>"}

Then ``keys`` is the JSON of the first form, encrypted with AES-256-GCM under the key that scrypt
(RFC 7914) derives. The additional data is the JSON of ``format``, ``protection`` and ``version``,
sorted and without white space.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..engine._gcm import random_bytes
from ..engine._messages import open as open_sealed
from ..engine._messages import seal
from ..errors import (
    AuthenticationError,
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsError,
    KmsKeyNotFoundError,
)
from ..host import private_file, strict_json
from ..host.process import Lock
from .passphrase import (
    Passphrase,
    Protection,
    check_private,
    checked,
    composed,
    forms,
    is_read_only,
    read_owned,
)
from .secret import Secret, discreet

_FORMAT = "ags1-keyring"
# Of the file beside a keyring that processes lock.
LOCK_SUFFIX = ".lock"
# What a file system without flock answers. There, this file beside the keyring is the lock.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_HELD_SUFFIX = ".lock.held"
_MOST_SECONDS, _BETWEEN_TRIES = 10.0, 0.05
_PLAIN, _PROTECTED = 1, 2
_KEY_SIZE = 32
_MAX_SIZE = 16 << 20


@dataclass(frozen=True, slots=True)
class KeyringVersion(Secret):
    """A version of a master key. ``created_ms`` is in epoch milliseconds; None if it is unknown."""

    key: bytes = field(repr=False)
    created_ms: int | None


@dataclass(frozen=True, slots=True)
class MasterKey(Secret):
    """A master key. ``current`` is the number of the version that wraps."""

    current: int
    versions: Mapping[int, KeyringVersion]


def new_version() -> dict[str, Any]:
    """Return the JSON object of a new random key."""
    return {
        "created-ms": time.time_ns() // 1_000_000,
        "key": base64.b64encode(random_bytes(_KEY_SIZE)).decode(),
    }


class _Hidden(Secret, dict[str, Any]):
    """A JSON object that has keys on any level. Its ``repr`` does not show them."""

    def __repr__(self) -> str:
        return "<hidden>"


@dataclass(frozen=True, slots=True)
class Sealing(Secret):
    """A protection with its derived key."""

    protection: Protection
    derived_key: bytes = field(repr=False)


# None for a keyring without a passphrase.
_Seal = Sealing | None


class Keyring(Secret):
    """A keyring file, and its unencrypted keys after they were first needed."""

    __slots__ = (
        "_allow_readable",
        "_derived",
        "_keys",
        "_lock",
        "_passphrase",
        "_path",
        "_seen",
        "_wrong",
    )

    def __init__(
        self, path: str, passphrase: Passphrase | None, *, allow_readable: bool = False
    ) -> None:
        self._path = path
        self._allow_readable = allow_readable
        self._passphrase = passphrase
        self._lock = Lock()
        self._keys: Mapping[str, MasterKey] | None = None
        self._seen: object = None
        self._derived: _Seal = None
        # The version of the passphrase file that gave the derived key (True if there is no file),
        # as long as that key has not opened the keyring. Then it is None.
        self._wrong: object = None

    @discreet
    def keys(self, *, fresh: bool = False) -> Mapping[str, MasterKey]:
        """Return the master keys by name; ``fresh``: read the file again if it has changed."""
        if (keys := self._keys) is not None and not fresh:
            return keys
        self._lock.check_not_mine()
        with self._lock:
            return self._refresh()

    @discreet
    def is_protected(self) -> bool:
        """Return whether the keyring has a passphrase. If it has one, this asks for it."""
        self._lock.check_not_mine()
        with self._lock:
            self._refresh()
            return self._derived is not None

    @discreet
    def change(
        self,
        edit: Callable[[dict[str, Any]], None],
        *,
        create: bool = False,
        protect: Callable[[_Seal], _Seal] = lambda before: before,
    ) -> Mapping[str, MasterKey]:
        """Let ``edit`` change the ``keys`` object and write the keyring. Returns the master keys.
        ``create``: make the keyring if there is none. ``protect`` returns the new seal for the
        old."""
        self._lock.check_not_mine()
        with self._lock:
            new_seal: _Seal = None
            try:
                # This may ask the user for the passphrase, so it comes before the lock.
                self._refresh()
            except KmsKeyNotFoundError:
                if not create:
                    raise
                if self._passphrase is not None and self._passphrase.at_hand:
                    new_seal = sealing(checked(self._passphrase.ask()))
                    self._derived = new_seal
            # A keyring that is a symbolic link stays one.
            path = os.path.realpath(self._path)
            if create:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            if is_read_only(path if os.path.exists(path) else os.path.dirname(path)):
                raise KmsAccessDeniedError(
                    f"the keyring {self._path} cannot be changed here, because its file system is "
                    "read-only: change the original, and mount it again"
                )
            with _locked(path):
                try:
                    document, _ = self._load()
                    keys, seal_before = self._open(document)
                    _parse(keys, self._path)
                except KmsKeyNotFoundError:
                    if not create:
                        raise
                    document, keys, seal_before = {"format": _FORMAT}, _Hidden(), new_seal
                edit(keys)
                master_keys = _parse(keys, self._path)
                sealed_by = protect(seal_before)
                data = _print(document, keys, sealed_by)
                if len(data) > _MAX_SIZE:
                    raise KmsError(f"the keyring {self._path} would be larger than 16 MiB")
                _write(path, data, self._path, is_sealed=sealed_by is not None)
            return master_keys

    def _refresh(self) -> Mapping[str, MasterKey]:
        if self._keys is None or self._seen != _identity_of(self._path):
            document, status = self._load()
            keys, self._derived = self._open(document)
            self._keys = _parse(keys, self._path)
            self._seen = _identity(status)
        return self._keys

    def _load(self) -> tuple[dict[str, Any], os.stat_result]:
        return _load(self._path, allow_readable=self._allow_readable)

    def _open(self, document: dict[str, Any]) -> tuple[dict[str, Any], _Seal]:
        """Return the ``keys`` object, and how it was sealed."""
        keys = document.get("keys")
        if document["version"] == _PLAIN:
            if not isinstance(keys, dict):
                raise KmsError(f"the keyring {self._path} is damaged: it has no 'keys'")
            if self._passphrase is not None and self._passphrase.at_hand:
                raise KmsConfigurationError(
                    f"a passphrase is given for the keyring {self._path}, which has none: it may "
                    "be another keyring than yours; if it is yours, give no passphrase"
                )
            if self._derived is not None:
                raise KmsConfigurationError(
                    f"the keyring {self._path} was protected by a passphrase when it was first "
                    "read, and is not now: it may be another keyring than yours; if you removed "
                    "the passphrase, make another client"
                )
            return keys, None
        protection = Protection.from_dict(document.get("protection"), self._path)
        try:
            sealed = base64.b64decode(keys if isinstance(keys, str) else "", validate=True)
        except ValueError:
            sealed = b""
        if not sealed:
            raise KmsError(f"the keyring {self._path} is damaged: it has no 'keys'")
        sealed_by, text = self._unsealed(protection, sealed)
        opened = _decode(text, self._path)
        if not isinstance(opened, dict):
            raise KmsError(f"the keyring {self._path} is damaged: its 'keys' are not an object")
        self._wrong = None
        return opened, sealed_by

    def _unsealed(self, protection: Protection, sealed: bytes) -> tuple[Sealing, bytes]:
        """Return the sealing that opens the ``keys``, and their JSON."""
        header = _header(protection)
        for sealed_by in self._sealings(protection):
            with contextlib.suppress(AuthenticationError):
                return sealed_by, open_sealed(sealed_by.derived_key, sealed, header)
        raise KmsAccessDeniedError(f"the passphrase does not open the keyring {self._path}")

    def _sealings(self, protection: Protection) -> Iterator[Sealing]:
        """Yield the keys that the passphrase may stand for."""
        file = None if self._passphrase is None else self._passphrase.file
        source = True if file is None else _identity_of(file)
        if (
            self._derived is not None
            and self._derived.protection == protection
            and self._wrong in (None, source)
        ):
            yield self._derived
            return
        if self._passphrase is None:
            raise KmsAccessDeniedError(
                f"the keyring {self._path} is protected by a passphrase, and none was given"
            )
        for form in forms(checked(self._passphrase.ask())):
            # Remember the last key even if the passphrase is wrong: asking or deriving again would
            # give the same, as long as the passphrase file is the same.
            self._derived, self._wrong = Sealing(protection, protection.derive(form)), source
            yield self._derived


def sealing(passphrase: bytes) -> Sealing:
    """Return a new protection by ``passphrase``."""
    protection = Protection.new()
    return Sealing(protection, protection.derive(composed(passphrase)))


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    # A file of its own, because each write replaces the keyring's file. It is never removed:
    # otherwise two processes could hold the lock.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(path + LOCK_SUFFIX, flags, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise OSError(error.errno, error.strerror, path + LOCK_SUFFIX) from None
            with _held(path + _HELD_SUFFIX):
                yield
            return
        try:
            yield
        finally:
            # Closing is not enough: a child that another thread forked meanwhile has a copy.
            fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


@contextlib.contextmanager
def _held(path: str) -> Iterator[None]:
    """Hold a lock where the file system has none (some NFS, FUSE and Lustre mounts): a file that
    exists as long as a process has it. Raises OSError if it is not removed in time."""
    give_up = time.monotonic() + _MOST_SECONDS
    while True:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            break
        except FileExistsError:
            if time.monotonic() > give_up:
                message = (
                    "another process holds this lock of the keyring. If none is running, it was "
                    "killed: remove this file"
                )
                raise OSError(errno.EAGAIN, message, path) from None
            time.sleep(_BETWEEN_TRIES)
    try:
        yield
    finally:
        os.unlink(path)


def _identity(status: os.stat_result) -> object:
    """Return a value that changes if the file is replaced or written."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _identity_of(path: str) -> object:
    try:
        return _identity(os.stat(path))
    except OSError:
        return None  # reading the file raises the error


def _write(path: str, data: bytes, shown: str, *, is_sealed: bool) -> None:
    try:
        private_file.write(path, data, overwrite=True, durable=True, has_secrets=not is_sealed)
    except PermissionError as error:
        if error.errno != errno.EPERM or is_sealed:
            raise
        raise KmsAccessDeniedError(
            f"the keyring {shown} would be open to others: {error.strerror}, whatever is asked for "
            "(FAT, NTFS, a share). Keep the keyring on another file system, or protect it with a "
            "passphrase (ags1 keygen --passphrase)"
        ) from None


def _load(path: str, *, allow_readable: bool) -> tuple[dict[str, Any], os.stat_result]:
    """Return the keyring's JSON document and the file's status. Only a keyring with a passphrase
    may be open to others, as all files are on a file system without modes. Raises KmsError."""
    try:
        data, status = read_owned(path, _MAX_SIZE, "keyring")
    except FileNotFoundError:
        raise KmsKeyNotFoundError(
            f"there is no keyring {path}. To encrypt for the first time, make one: ags1 keygen. "
            "A new keyring opens nothing that is encrypted already: for that, name the keyring "
            "(--keyring, AGS1_KEYRING) or the KMS (--kms) that has the master key, or restore the "
            "keyring from a backup"
        ) from None
    document = _decode(data, path)
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise KmsError(f"{path} is not a keyring of ags1")
    version = document.get("version")
    if type(version) is not int or version not in (_PLAIN, _PROTECTED):
        raise KmsError(f"the keyring {path} has a version that this ags1 does not know")
    if version == _PLAIN:
        check_private(status, path, "keyring", allow_readable=allow_readable)
    return document, status


def is_keyring(path: str) -> bool:
    """Return whether a regular file has the content of a keyring. Raises OSError."""
    if not os.path.isfile(path) or os.path.getsize(path) > _MAX_SIZE:
        return False
    with open(path, "rb") as file:
        # Most files need not be read whole.
        start = file.read(1)
        if start != b"{":
            return False
        data = start + file.read()
    try:
        document = _decode(data, path)
    except KmsError:
        return False
    return isinstance(document, dict) and document.get("format") == _FORMAT


def _decode(data: bytes, path: str) -> object:
    """Parse JSON, with ``_Hidden`` objects. Raises KmsError."""
    try:
        return strict_json.parse(data, _Hidden)
    except ValueError as error:
        raise KmsError(f"the keyring {path} is damaged: it {error}") from None


def _print(document: Mapping[str, Any], keys: Mapping[str, Any], sealed_by: _Seal) -> bytes:
    """Return the keyring file's bytes. Unknown fields of ``document`` stay."""
    printed: dict[str, Any] = {"format": _FORMAT, "version": _PLAIN}
    if sealed_by is None:
        printed["keys"] = keys
    else:
        protection = sealed_by.protection
        sealed = seal(sealed_by.derived_key, json.dumps(keys).encode(), _header(protection))
        printed["version"] = _PROTECTED
        printed["protection"] = protection.to_dict()
        printed["keys"] = base64.b64encode(sealed).decode()
    known = {"format", "version", "protection", "keys"}
    printed.update((name, value) for name, value in document.items() if name not in known)
    return json.dumps(printed, indent=2).encode() + b"\n"


def _parse(keys: Mapping[str, Any], path: str) -> Mapping[str, MasterKey]:
    """Return the master keys of a ``keys`` object by name. Raises KmsError, naming the key."""
    master_keys = {}
    for name, entry in keys.items():
        try:
            versions = {
                int(number): KeyringVersion(
                    base64.b64decode(version["key"], validate=True),
                    _epoch_ms(version.get("created-ms")),
                )
                for number, version in entry["versions"].items()
            }
            current = entry["current"]
            whole = (
                type(current) is int
                and current in versions
                and all(
                    len(version.key) == _KEY_SIZE and 0 < number < 2**32
                    for number, version in versions.items()
                )
                and [str(number) for number in versions] == list(entry["versions"])
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise KmsError(f"the keyring {path} is damaged: its key {name!r} is not complete")
        master_keys[name] = MasterKey(current, versions)
    return master_keys


def _epoch_ms(value: object) -> int | None:
    return value if type(value) is int else None


def _header(protection: Protection) -> bytes:
    """Return the additional authenticated data of the sealed keys."""
    header = {"format": _FORMAT, "version": _PROTECTED, "protection": protection.to_dict()}
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
