"""The built-in KMS: the master keys of a keyring file (see ``keyring``) wrap and unwrap.

A wrapped key is ``01 | key version: int32 BE | nonce(12) | ct | tag(16)``, AES-256-GCM, with the
first five bytes as additional data. A key with more than one version still opens what an older
version wrapped.
"""

from __future__ import annotations

import functools
import hmac
import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..engine._messages import open as open_sealed
from ..engine._messages import seal
from ..errors import AuthenticationError, KmsError, KmsKeyNotFoundError, KmsUnwrapError
from ..host import private_file
from ..host.process import OncePerProcess
from .client import WrapsOnly
from .keyring import Keyring, MasterKey, new_version, sealing
from .passphrase import ALLOW_READABLE, checked, encoded, passphrase_source
from .properties import Properties
from .secret import discreet

_KEYRING = "kms.local.keyring"
_PASSPHRASE = "kms.local.passphrase"
_PASSPHRASE_FILE = "kms.local.passphrase-file"
_ALGORITHM = "AES-256-GCM"
_WRAPPED_PREFIX = struct.Struct(">BI")
_NEW_KEY = "make a new one with: ags1 keygen --name NAME"
_WRAPPED_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:/+=-]{0,127}")
# The version is for another way to make fingerprints, so that the two kinds are never equal.
_FINGERPRINT_LABEL = b"ags1 master key fingerprint v1"
_FINGERPRINT_SIZE = 8


@dataclass(frozen=True, slots=True)
class KeyVersion:
    """A version of a master key, without its secret. ``created_ms`` is in epoch milliseconds. For
    ``fingerprint`` see ``LocalKms.describe_key``."""

    version: str
    created_ms: int | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A master key, without its secret. ``current_version`` is the version that wraps."""

    key_id: str
    algorithm: str
    current_version: str
    versions: tuple[KeyVersion, ...]


def default_keyring_path() -> str:
    """Return ``$AGS1_KEYRING``, or ``ags1/keyring.json`` in the user's configuration folder."""
    if path := os.environ.get("AGS1_KEYRING"):
        return os.path.expanduser(path)
    return os.path.join(private_file.config_folder(os.environ), "keyring.json")


def check_names(properties: Mapping[str, str]) -> None:
    """Raise KmsConfigurationError for an unknown property ``kms.local.…``: a mistyped one would
    leave a keyring without its passphrase."""
    known = (_KEYRING, _PASSPHRASE, _PASSPHRASE_FILE)
    Properties(properties).check_names("kms.local.", known)


class LocalKms(WrapsOnly):
    """A KMS client over a keyring file, which also makes, lists and rotates its master keys.

    ``path`` is the keyring's path, by default ``default_keyring_path()``. The file is read when a
    key is first needed. To wrap, it is read again if it has changed, so that a rotation takes
    effect at once. To unwrap, it is read again only if the key or version is missing.

    A keyring with a passphrase needs ``passphrase_file`` (as private as the keyring; one newline at
    its end is not part of the passphrase) or ``passphrase``: bytes, or a function that asks for
    them. The function is called when a protected keyring is first read, and again only after
    ``close``, a fork or a change of the passphrase, even if the answer was wrong.

    With a file or bytes, a keyring that is not protected is refused: somebody may have put it there
    to have keys wrapped under their own master key. A keyring that was protected when this client
    first read it, and is not now, is always refused.

    A keyring or passphrase file that others can read is refused. ``allow_readable`` accepts it, for
    secrets that are mounted read-only. A file that others can write is always refused.

    The master keys, and the key derived from the passphrase, stay in memory until ``close``.
    Nothing secret is pickled. A client whose passphrase is not in a file cannot be pickled.

    Besides the errors of ``KmsClient``, raises KmsAccessDeniedError for a keyring or passphrase
    file that is open to others or belongs to another user, and for a missing or wrong passphrase;
    KmsError for a damaged keyring; OSError if a changed keyring cannot be written.
    """

    accepts_foreign_keys = False
    wraps_with_public_key = False

    def __init__(
        self,
        path: str | None = None,
        passphrase_file: str | None = None,
        *,
        passphrase: bytes | Callable[[], bytes] | None = None,
        allow_readable: bool = False,
    ) -> None:
        self.path = default_keyring_path() if path is None else path
        self._allow_readable = allow_readable
        self._passphrase = passphrase_source(
            passphrase, passphrase_file, allow_readable=allow_readable
        )
        self._keyring = OncePerProcess(
            functools.partial(Keyring, self.path, self._passphrase, allow_readable=allow_readable)
        )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LocalKms:
        """Return the client that ``kms.local.keyring`` (a path) and ``kms.local.passphrase-file``
        or ``kms.local.passphrase`` (text, which is used as UTF-8) describe; ``~`` is the home
        folder. ``kms.allow-readable-files`` is ``allow_readable``. Raises
        KmsConfigurationError."""
        check_names(properties)
        given = Properties(properties)
        path, file = given.get(_KEYRING), given.get(_PASSPHRASE_FILE)
        return cls(
            path and os.path.expanduser(path),
            file and os.path.expanduser(file),
            passphrase=encoded(given.require(_PASSPHRASE)) if given.get(_PASSPHRASE) else None,
            allow_readable=given.flag(ALLOW_READABLE, default=False),
        )

    def names(self) -> list[str]:
        """Return the names of the master keys."""
        return sorted(self._keyring.get().keys(fresh=True))

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        master_key = self._master_key(key_id, fresh=True)
        prefix = _WRAPPED_PREFIX.pack(_WRAPPED_FORMAT, master_key.current)
        return prefix + seal(master_key.versions[master_key.current].key, key, prefix)

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        prefix = wrapped_key[: _WRAPPED_PREFIX.size]
        if len(prefix) < _WRAPPED_PREFIX.size or prefix[0] != _WRAPPED_FORMAT:
            raise KmsUnwrapError(
                f"no keyring wrapped it: the master key {key_id!r} belongs to another KMS (--kms "
                "says which), or the wrapped key is damaged"
            )
        _, number = _WRAPPED_PREFIX.unpack(prefix)
        advice = "name the keyring that has it: a new key of this name would not open anything"
        version = self._master_key(key_id, number, advice=advice).versions[number]
        try:
            return open_sealed(version.key, wrapped_key[_WRAPPED_PREFIX.size :], prefix)
        except (AuthenticationError, ValueError):
            raise KmsUnwrapError(
                f"the master key {key_id!r} in the keyring {self.path} does not open the wrapped "
                "key: another key of that name wrapped it, or it was changed"
            ) from None

    def newest_version(self, key_id: str) -> int:
        """Return the number of the version that wraps."""
        return self._master_key(key_id, fresh=True).current

    def list_keys(self) -> list[KeyInfo]:
        """Return the master keys, by name."""
        keys = self._keyring.get().keys(fresh=True)
        return [_describe(name, keys[name]) for name in sorted(keys)]

    def describe_key(self, key_id: str) -> KeyInfo:
        """Return a master key's versions with their times and fingerprints.

        A fingerprint is the first 8 bytes of HMAC-SHA-256 under the master key over a fixed label,
        in hex. HMAC is a pseudorandom function of its key. So a fingerprint shows which copies hold
        the same key, and nothing else. It is no proof against somebody who chooses keys: they find
        two with one fingerprint in 2**32 tries.
        """
        return _describe(key_id, self._master_key(key_id, fresh=True))

    def create_key(self, key_id: str) -> KeyInfo:
        """Make a master key, and the keyring (mode 0600) if there is none. A new keyring is
        protected if the client has its passphrase in a file or as bytes. An existing key is never
        replaced, because all that it wrapped would be lost: KmsError."""
        if not _NAME.fullmatch(key_id):
            raise KmsError(
                f"{key_id!r} cannot name a master key: a name has 1 to 128 letters, digits and "
                "._@:/+=-, and begins with a letter or digit"
            )

        def add_key(keys: dict[str, Any]) -> None:
            if key_id in keys:
                raise KmsError(
                    f"the keyring {self.path} has a master key {key_id!r} already: choose another "
                    "name, or rotate the key"
                )
            keys[key_id] = {"current": 1, "versions": {"1": new_version()}}

        keys = self._keyring.get().change(add_key, create=True)
        return _describe(key_id, keys[key_id])

    def rotate_key(self, key_id: str) -> KeyInfo:
        """Add a version to a master key. It wraps from now on; older versions still unwrap."""

        def add_version(keys: dict[str, Any]) -> None:
            if key_id not in keys:
                raise self._not_found(key_id)
            entry = keys[key_id]
            number = max(map(int, entry["versions"])) + 1
            entry["versions"][str(number)] = new_version()
            entry["current"] = number

        keys = self._keyring.get().change(add_version)
        return _describe(key_id, keys[key_id])

    def close(self) -> None:
        self._keyring.take()

    def __repr__(self) -> str:
        return f"LocalKms({self.path!r})"

    def __reduce__(self) -> tuple[Callable[..., LocalKms], tuple[str, str | None]]:
        source = self._passphrase
        if source is not None and source.file is None:
            raise TypeError(
                "a KMS client with a passphrase is not pickled: give it a passphrase file"
            )
        make = functools.partial(LocalKms, allow_readable=self._allow_readable)
        return make, (self.path, None if source is None else source.file)

    def _master_key(
        self, name: str, number: int | None = None, *, fresh: bool = False, advice: str = _NEW_KEY
    ) -> MasterKey:
        keyring = self._keyring.get()
        keys = keyring.keys(fresh=fresh)
        if name not in keys or (number is not None and number not in keys[name].versions):
            keys = keyring.keys(fresh=True)
        if name not in keys:
            raise self._not_found(name, advice)
        if number is not None and number not in keys[name].versions:
            raise KmsKeyNotFoundError(
                f"the master key {name!r} in the keyring {self.path} has no version {number}"
            )
        return keys[name]

    def _not_found(self, name: str, advice: str = _NEW_KEY) -> KmsKeyNotFoundError:
        from difflib import get_close_matches  # an error alone needs it

        near = get_close_matches(name, self._keyring.get().keys(), 1)
        hint = f"did you mean {near[0]!r}? Otherwise " if near else ""
        return KmsKeyNotFoundError(
            f"no master key {name!r} in the keyring {self.path} ({hint}{advice})"
        )


@discreet
def create_key(
    path: str, name: str, *, passphrase: bytes | Callable[[], bytes] | None = None
) -> int:
    """Add a new master key to the keyring at ``path``, and make the keyring if there is none.
    Returns the key's version. ``passphrase`` is as in ``LocalKms``; errors are those of its
    ``create_key``."""
    return int(LocalKms(path, passphrase=passphrase).create_key(name).versions[-1].version)


@discreet
def set_passphrase(
    path: str,
    new: bytes | Callable[[], bytes],
    old: bytes | Callable[[], bytes] | None = None,
    *,
    allow_readable: bool = False,
) -> bool:
    """Protect the keyring at ``path`` by the passphrase ``new``. ``old`` is its passphrase so far,
    if it has one. Returns whether it had one. If both are functions, ``old`` is called first, and
    only if it is needed. Raises as ``LocalKms`` does.

    Older copies of the file (backups) do not change. If somebody else has got one, rotate the
    master keys.
    """
    keyring = Keyring(path, passphrase_source(old, None), allow_readable=allow_readable)
    source = passphrase_source(new, None)
    had_one = keyring.is_protected()
    new_seal = sealing(checked(source and source.ask()))
    keyring.change(lambda _: None, protect=lambda _: new_seal)
    return had_one


@discreet
def remove_passphrase(
    path: str, passphrase: bytes | Callable[[], bytes], *, allow_readable: bool = False
) -> bool:
    """Remove the passphrase of the keyring at ``path``; its file mode is then its only protection.
    Returns whether it had a passphrase. Raises as ``LocalKms`` does."""
    keyring = Keyring(path, passphrase_source(passphrase, None), allow_readable=allow_readable)
    had_one = keyring.is_protected()
    if had_one:
        keyring.change(lambda _: None, protect=lambda _: None)
    return had_one


def _describe(name: str, master_key: MasterKey) -> KeyInfo:
    versions = []
    for number, version in sorted(master_key.versions.items()):
        mac = hmac.digest(version.key, _FINGERPRINT_LABEL, "sha256")
        fingerprint = mac[:_FINGERPRINT_SIZE].hex()
        versions.append(KeyVersion(str(number), version.created_ms, fingerprint))
    return KeyInfo(
        name, _ALGORITHM, current_version=str(master_key.current), versions=tuple(versions)
    )
