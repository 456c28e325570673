"""The embedded KMS: named master keys in a keyring file.

::

    {"format": "ags1-keyring", "version": 1,
     "keys": {"default": {"current": 1,
                          "versions": {"1": {"created-ms": 1700000000000, "key": "<base64>"}}}}}

A wrapped key is ``01 | key version: int32 BE | nonce(12) | ct | tag(16)``, AES-256-GCM, with the
first five bytes as additional data: a key with more than one version still opens what an older one
wrapped. Who can read the file has the master keys, so, as ssh does with private keys, a keyring of
ours that others may access is refused; one that belongs to somebody else (a secret that root
mounted) has the mode its owner chose, but nobody else may be able to write it.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import re
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .._gcm import open as open_sealed
from .._gcm import random_bytes, seal
from ..errors import (
    AuthenticationError,
    KmsAccessDeniedError,
    KmsError,
    KmsKeyNotFoundError,
    KmsUnwrapError,
)
from ..keys import files

_FORMAT = "ags1-keyring"
_VERSION = 1
_KEY_SIZE = 32
_MAX_SIZE = 16 << 20
_WRAPPED_PREFIX = struct.Struct(">BI")
_WRAPPED_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:/+=-]{0,127}")


def default_keyring_path() -> str:
    """Return ``$AGS1_KEYRING``, or ``ags1/keyring.json`` in the user's configuration folder."""
    if path := os.environ.get("AGS1_KEYRING"):
        return path
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # the XDG rules: a relative path there is to be ignored
        folder = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(folder, "ags1", "keyring.json")


@dataclass(frozen=True, slots=True)
class _MasterKey:
    current: int
    versions: Mapping[int, bytes] = field(repr=False)


class LocalKms:
    """A KMS client over a keyring file. The file is read when a key is first needed, and again when
    it may have got the key that is missing."""

    def __init__(self, path: str | None = None) -> None:
        self.path = default_keyring_path() if path is None else path
        self._keys: Mapping[str, _MasterKey] | None = None

    def names(self) -> list[str]:
        """Return the names of the master keys."""
        return sorted(self._read())

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        master_key = self._master_key(key_id)
        prefix = _WRAPPED_PREFIX.pack(_WRAPPED_FORMAT, master_key.current)
        return prefix + seal(master_key.versions[master_key.current], key, prefix)

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        prefix = wrapped_key[: _WRAPPED_PREFIX.size]
        if len(prefix) < _WRAPPED_PREFIX.size or prefix[0] != _WRAPPED_FORMAT:
            raise KmsUnwrapError("the wrapped key is damaged, or no keyring wrapped it")
        _, version = _WRAPPED_PREFIX.unpack(prefix)
        master_key = self._master_key(key_id, version)
        try:
            sealed = wrapped_key[_WRAPPED_PREFIX.size :]
            return open_sealed(master_key.versions[version], sealed, prefix)
        except (AuthenticationError, ValueError):
            raise KmsUnwrapError(
                f"the master key {key_id!r} in the keyring {self.path} does not open the wrapped "
                "key: another key of that name wrapped it, or it was changed"
            ) from None

    @property
    def supports_key_generation(self) -> bool:
        return False

    def generate_key(self, key_id: str, key_size: int) -> NoReturn:
        raise NotImplementedError("a keyring does not generate keys; wrap one")

    def close(self) -> None:
        self._keys = None

    def __repr__(self) -> str:
        return f"LocalKms({self.path!r})"

    def __reduce__(self) -> tuple[type[LocalKms], tuple[str]]:
        # The path travels, the keys never do.
        return LocalKms, (self.path,)

    def _master_key(self, name: str, version: int | None = None) -> _MasterKey:
        keys = self._read()
        if name not in keys or (version is not None and version not in keys[name].versions):
            keys = self._read(again=True)
        if name not in keys:
            raise KmsKeyNotFoundError(
                f"no master key {name!r} in the keyring {self.path} "
                f"(make a new one with: ags1 keygen --name NAME)"
            )
        if version is not None and version not in keys[name].versions:
            raise KmsKeyNotFoundError(
                f"the master key {name!r} in the keyring {self.path} has no version {version}"
            )
        return keys[name]

    def _read(self, again: bool = False) -> Mapping[str, _MasterKey]:
        # Without a lock, which a forked child could inherit held: two threads at worst both read.
        keys = self._keys
        if keys is None or again:
            keys = self._keys = _parse(_load(self.path), self.path)
        return keys


def create_key(path: str, name: str) -> int:
    """Add a new master key to the keyring at ``path``, which is made where there is none.

    Returns the key's version. An existing key is never replaced: that would lose all it wrapped.
    Raises KmsError, or OSError where the file cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise KmsError(
            f"{name!r} cannot name a master key: 1 to 128 letters, digits and ._@:/+=- can, "
            "beginning with a letter or digit"
        )
    # A keyring that is a symbolic link stays one.
    path = os.path.realpath(path)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with _locked(path):
        try:
            document = _load(path)
        except KmsKeyNotFoundError:
            document = {"format": _FORMAT, "version": _VERSION, "keys": {}}
        if name in _parse(document, path):
            raise KmsError(f"the keyring {path} has a master key {name!r} already; it was kept")
        version = 1
        document["keys"][name] = {
            "current": version,
            "versions": {
                str(version): {
                    "created-ms": time.time_ns() // 1_000_000,
                    "key": base64.b64encode(random_bytes(_KEY_SIZE)).decode(),
                }
            },
        }
        data = json.dumps(document, indent=2).encode() + b"\n"
        files.write(path, data, overwrite=True, durable=True)
    return version


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    # Beside the keyring, because each write puts another file in the keyring's place. It stays:
    # removing a lock file lets two holders in.
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _load(path: str) -> dict[str, Any]:
    """Return the keyring's JSON document, once its mode is seen to be safe. Raises KmsError."""
    try:
        data, status = files.read(path, _MAX_SIZE)
    except FileNotFoundError:
        raise KmsKeyNotFoundError(
            f"there is no keyring {path} (make one with: ags1 keygen)"
        ) from None
    except PermissionError as error:
        raise KmsAccessDeniedError(f"cannot read the keyring {path}: {error.strerror}") from None
    except OSError as error:
        raise KmsError(f"cannot read the keyring {path}: {error.strerror}") from None
    mine = status.st_uid == os.geteuid()
    if status.st_mode & (0o077 if mine else 0o022):
        raise KmsAccessDeniedError(
            f"the keyring {path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}); "
            "it is not used until chmod 600 closes it, and others may know its keys"
        )
    document = None
    # Raised outside: the decoder's exception holds the whole text, keys and all.
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(data)
    if document is None:
        raise KmsError(f"the keyring {path} is damaged: it is not JSON")
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise KmsError(f"{path} is not a keyring of ags1")
    if document.get("version") != _VERSION:
        raise KmsError(f"the keyring {path} has a version that this ags1 does not know")
    return document


def _parse(document: Mapping[str, Any], path: str) -> Mapping[str, _MasterKey]:
    """Return the keys of a keyring's document by name. Raises KmsError, naming the key."""
    keys = document.get("keys")
    if not isinstance(keys, dict):
        raise KmsError(f"the keyring {path} is damaged: it has no 'keys'")
    master_keys = {}
    for name, entry in keys.items():
        try:
            versions = {
                int(number): base64.b64decode(version["key"], validate=True)
                for number, version in entry["versions"].items()
            }
            current = int(entry["current"])
            whole = current in versions and all(
                len(key) == _KEY_SIZE and 0 < number < 2**32 for number, key in versions.items()
            )
            whole = whole and [str(number) for number in versions] == list(entry["versions"])
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            whole = False
        if not whole:
            # Not the entry itself: it holds the key.
            raise KmsError(f"the keyring {path} is damaged: its key {name!r} is not whole")
        master_keys[name] = _MasterKey(current, versions)
    return master_keys
