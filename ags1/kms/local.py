"""The embedded KMS: named master keys, each with its versions, in a keyring file.

::

    {"format": "ags1-keyring", "version": 1,
     "keys": {"default": {"current": 1,
                          "versions": {"1": {"created-ms": 1700000000000, "key": "<base64>"}}}}}

A wrapped key is ``01 | key version: int32 BE | nonce(12) | ct | tag(16)``, AES-256-GCM, with the
first five bytes as additional data: a key with more than one version still opens what an older one
wrapped. Who can read the file has the master keys, so, as ssh does with private keys, a keyring of
ours that others may access is refused; one that belongs to somebody else (a secret that root
mounted) has the mode its owner chose, but nobody else may be able to write it.

A passphrase protects the keys where the file alone must not do (a backup, a lost disk)::

    {"format": "ags1-keyring", "version": 2,
     "protection": {"kdf": "scrypt", "n": 131072, "r": 8, "p": 1, "salt": "<base64>"},
     "keys": "<base64 of nonce(12) | ct | tag(16)>"}

Then ``keys`` is the JSON of the first form under AES-256-GCM with the key that scrypt (RFC 7914)
derives. The additional data is the JSON of ``format``, ``protection`` and ``version`` alone, sorted
and without white space.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import hashlib
import hmac
import json
import os
import re
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from .._gcm import open as open_sealed
from .._gcm import random_bytes, seal
from ..errors import (
    AuthenticationError,
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsError,
    KmsKeyNotFoundError,
    KmsUnwrapError,
)
from ..keys import files
from .client import KeyInfo, KeyVersion
from .process import PerProcess
from .properties import Properties

_FORMAT = "ags1-keyring"
_PLAIN, _PROTECTED = 1, 2
_ALGORITHM = "AES-256-GCM"
_KEY_SIZE = 32
_MAX_SIZE = 16 << 20
_MAX_PASSPHRASE_SIZE = 64 << 10
_WRAPPED_PREFIX = struct.Struct(">BI")
_WRAPPED_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:/+=-]{0,127}")
# "v1": another way to make fingerprints would get another label, and never look alike.
_FINGERPRINT_LABEL = b"ags1 master key fingerprint v1"
_FINGERPRINT_SIZE = 8

# 128 MiB and a third of a second, once a process.
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 1 << 17, 8, 1
_SALT_SIZE = 16
# What a file may ask of whoever opens it: four times the memory, and that at most four times over.
_SCRYPT_MAX_MEMORY = 512 << 20
_SCRYPT_MAX_P = 4


def default_keyring_path() -> str:
    """Return ``$AGS1_KEYRING``, or ``ags1/keyring.json`` in the user's configuration folder."""
    if path := os.environ.get("AGS1_KEYRING"):
        return path
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # the XDG rules: a relative path there is to be ignored
        folder = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(folder, "ags1", "keyring.json")


class LocalKms:
    """A KMS client over a keyring file, and its administration.

    ``path`` is the keyring's, ``default_keyring_path()`` without one. The file is read when a key
    is first needed. To wrap, it is read again when it has changed, so that a rotation takes effect
    at once; to unwrap, only when the key or version is missing.

    A keyring with a passphrase needs ``passphrase_file`` (a file under the same rules as the
    keyring; one newline at its end is not part of the passphrase) or ``passphrase``: bytes, or a
    function that asks for them. The function is called when a protected keyring is first read, and
    not again before ``close``, a fork or a change of the passphrase, even if the answer was wrong.
    With a file or bytes, a keyring that is not protected is refused: somebody may have put it there
    to have keys wrapped under a master key of theirs.

    The master keys, and the key derived from the passphrase, stay in memory until ``close``: to
    derive it for every key takes too long, and it opens nothing but the master keys. Nothing secret
    is pickled; a client whose passphrase is not in a file cannot be.

    Besides the errors of ``KmsClient``: KmsAccessDeniedError for a keyring or passphrase file that
    is open to others, and for a missing or wrong passphrase; KmsError for a damaged keyring;
    OSError when a changed keyring cannot be written.
    """

    accepts_foreign_keys: ClassVar[bool] = False

    def __init__(
        self,
        path: str | None = None,
        passphrase_file: str | None = None,
        *,
        passphrase: bytes | Callable[[], bytes] | None = None,
    ) -> None:
        self.path = default_keyring_path() if path is None else path
        self._passphrase = _passphrase_source(passphrase, passphrase_file)
        self._keyring = PerProcess(functools.partial(_Keyring, self.path, self._passphrase))

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LocalKms:
        """Return the client that ``kms.local.keyring`` (a path) and ``kms.local.passphrase-file``
        or ``kms.local.passphrase`` (text, which is used as UTF-8) describe.

        Raises KmsConfigurationError.
        """
        checked = Properties(properties)
        text = checked.get("kms.local.passphrase")
        try:
            passphrase = None if text is None else text.encode()
        except UnicodeEncodeError:
            passphrase = None
        if text is not None and passphrase is None:  # raised here: the error above holds the text
            raise KmsConfigurationError("the property 'kms.local.passphrase' is not UTF-8")
        return cls(
            checked.get("kms.local.keyring"),
            checked.get("kms.local.passphrase-file"),
            passphrase=passphrase,
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
            raise KmsUnwrapError("the wrapped key is damaged, or no keyring wrapped it")
        _, number = _WRAPPED_PREFIX.unpack(prefix)
        version = self._master_key(key_id, number).versions[number]
        try:
            return open_sealed(version.key, wrapped_key[_WRAPPED_PREFIX.size :], prefix)
        except (AuthenticationError, ValueError):
            raise KmsUnwrapError(
                f"the master key {key_id!r} in the keyring {self.path} does not open the wrapped "
                "key: another key of that name wrapped it, or it was changed"
            ) from None

    def rewrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        """Return the same key wrapped under the newest version of ``key_id``; fresh bytes even if
        it was before. Raises KmsUnwrapError."""
        key = self.unwrap_key(wrapped_key, key_id)
        return self.wrap_key(key, key_id)

    @property
    def supports_key_generation(self) -> bool:
        return False

    def generate_key(self, key_id: str, key_size: int) -> NoReturn:
        raise NotImplementedError("a keyring does not generate keys; wrap one")

    def list_keys(self) -> Iterator[KeyInfo]:
        """Yield the master keys, by name."""
        keys = self._keyring.get().keys(fresh=True)
        return iter([_describe(name, keys[name]) for name in sorted(keys)])

    def describe_key(self, key_id: str) -> KeyInfo:
        """Return a master key's versions with their times and fingerprints.

        A fingerprint is the first 8 bytes of HMAC-SHA-256 under the master key over a fixed label,
        in hex. HMAC is a pseudorandom function of its key, so to go from its output back to one of
        2**256 random keys there is only trying them all, and the output looks the same as a random
        one to whoever has only wrapped keys: it tells which copies hold the same key, and nothing
        else. It is no proof against somebody who chooses keys, who finds two with one fingerprint
        in 2**32 tries.
        """
        return _describe(key_id, self._master_key(key_id, fresh=True))

    def create_key(self, key_id: str) -> KeyInfo:
        """Make a master key, and the keyring (mode 0600) where there is none.

        A new keyring is protected if the client has a passphrase at hand, in a file or as bytes. An
        existing key is never replaced, which would lose all it wrapped: KmsError.
        """
        if not _NAME.fullmatch(key_id):
            raise KmsError(
                f"{key_id!r} cannot name a master key: 1 to 128 letters, digits and ._@:/+=- can, "
                "beginning with a letter or digit"
            )

        def add_key(keys: dict[str, Any]) -> None:
            if key_id in keys:
                raise KmsError(
                    f"the keyring {self.path} has a master key {key_id!r} already; it was kept"
                )
            keys[key_id] = {"current": 1, "versions": {"1": _new_version()}}

        keys = self._keyring.get().change(add_key, create=True)
        return _describe(key_id, keys[key_id])

    def rotate_key(self, key_id: str) -> KeyInfo:
        """Add a version to a master key, which wraps from now on; the others still unwrap."""

        def add_version(keys: dict[str, Any]) -> None:
            if key_id not in keys:
                raise self._not_found(key_id)
            entry = keys[key_id]
            number = max(map(int, entry["versions"])) + 1
            entry["versions"][str(number)] = _new_version()
            entry["current"] = number

        keys = self._keyring.get().change(add_version)
        return _describe(key_id, keys[key_id])

    def close(self) -> None:
        self._keyring.take()

    def __repr__(self) -> str:
        return f"LocalKms({self.path!r})"

    def __reduce__(self) -> tuple[type[LocalKms], tuple[str, str | None]]:
        # The paths travel, the keys never do.
        source = self._passphrase
        if source is not None and source.file is None:
            raise TypeError(
                "a KMS client with a passphrase is not pickled: give it a passphrase file"
            )
        return LocalKms, (self.path, None if source is None else source.file)

    def _master_key(
        self, name: str, number: int | None = None, *, fresh: bool = False
    ) -> _MasterKey:
        keyring = self._keyring.get()
        keys = keyring.keys(fresh=fresh)
        if name not in keys or (number is not None and number not in keys[name].versions):
            keys = keyring.keys(fresh=True)
        if name not in keys:
            raise self._not_found(name)
        if number is not None and number not in keys[name].versions:
            raise KmsKeyNotFoundError(
                f"the master key {name!r} in the keyring {self.path} has no version {number}"
            )
        return keys[name]

    def _not_found(self, name: str) -> KmsKeyNotFoundError:
        return KmsKeyNotFoundError(
            f"no master key {name!r} in the keyring {self.path} "
            f"(make a new one with: ags1 keygen --name NAME)"
        )


def create_key(
    path: str, name: str, *, passphrase: bytes | Callable[[], bytes] | None = None
) -> int:
    """Add a new master key to the keyring at ``path``, which is made where there is none.

    Returns the key's version. ``passphrase``, an existing key and the errors: as with ``LocalKms``.
    """
    info = LocalKms(path, passphrase=passphrase).create_key(name)
    return int(info.versions[-1].version)


def set_passphrase(path: str, new: bytes, old: bytes | Callable[[], bytes] | None = None) -> None:
    """Protect the keyring at ``path`` by the passphrase ``new``, in place of ``old`` if it has one.

    Copies of the file as it was (backups) stay as they were: if one of them is in the wrong hands,
    the master keys have to be rotated. Raises as ``LocalKms`` does.
    """
    protection = _Protection.new()
    derived_key = protection.derive(_checked(new))
    keyring = _Keyring(path, _passphrase_source(old, None))
    keyring.change(lambda _: None, protect=lambda _: (protection, derived_key))


def remove_passphrase(path: str, passphrase: bytes | Callable[[], bytes]) -> None:
    """Leave the keyring at ``path`` with its file mode as its only protection.

    Raises as ``LocalKms`` does.
    """
    keyring = _Keyring(path, _passphrase_source(passphrase, None))
    keyring.change(lambda _: None, protect=lambda _: None)


@dataclass(frozen=True, slots=True)
class _Version:
    key: bytes = field(repr=False)
    created_ms: int | None


@dataclass(frozen=True, slots=True)
class _MasterKey:
    current: int
    versions: Mapping[int, _Version]


def _new_version() -> dict[str, Any]:
    return {
        "created-ms": time.time_ns() // 1_000_000,
        "key": base64.b64encode(random_bytes(_KEY_SIZE)).decode(),
    }


def _describe(name: str, master_key: _MasterKey) -> KeyInfo:
    versions = tuple(
        KeyVersion(str(number), version.created_ms, fingerprint=_fingerprint(version.key))
        for number, version in sorted(master_key.versions.items())
    )
    return KeyInfo(name, _ALGORITHM, current_version=str(master_key.current), versions=versions)


def _fingerprint(key: bytes) -> str:
    return hmac.digest(key, _FINGERPRINT_LABEL, "sha256")[:_FINGERPRINT_SIZE].hex()


# ---- the passphrase ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Passphrase:
    """Where the passphrase comes from. ``at_hand``: nobody has to be asked for it."""

    ask: Callable[[], bytes] = field(repr=False)
    at_hand: bool
    file: str | None = None


def _passphrase_source(
    passphrase: bytes | Callable[[], bytes] | None, file: str | None
) -> _Passphrase | None:
    if passphrase is not None and file is not None:
        raise KmsConfigurationError("both a passphrase and a passphrase file are given")
    if file is not None:
        return _Passphrase(functools.partial(_read_passphrase, file), True, file)
    if passphrase is None:
        return None
    if callable(passphrase):
        return _Passphrase(passphrase, False)
    whole = _checked(passphrase)
    return _Passphrase(lambda: whole, True)


def _checked(passphrase: bytes) -> bytes:
    if not isinstance(passphrase, bytes):
        raise KmsConfigurationError("the passphrase is not bytes")
    if not passphrase:
        raise KmsConfigurationError("the passphrase is empty")
    return passphrase


def _read_passphrase(path: str) -> bytes:
    try:
        data, _ = _read_private(path, _MAX_PASSPHRASE_SIZE, "passphrase file")
    except FileNotFoundError:
        raise KmsConfigurationError(f"there is no passphrase file {path}") from None
    passphrase = data.removesuffix(b"\n")
    if not passphrase:
        raise KmsConfigurationError(f"the passphrase file {path} is empty")
    return passphrase


@dataclass(frozen=True, slots=True)
class _Protection:
    """How the key over a keyring's keys comes from the passphrase."""

    n: int
    r: int
    p: int
    salt: bytes

    @classmethod
    def new(cls) -> _Protection:
        return cls(_SCRYPT_N, _SCRYPT_R, _SCRYPT_P, random_bytes(_SALT_SIZE))

    @classmethod
    def from_dict(cls, fields: object, path: str) -> _Protection:
        """Parse a keyring's ``protection``. Raises KmsError, also for one that costs too much."""
        if (
            not isinstance(fields, dict)
            or fields.get("kdf") != "scrypt"
            or fields.keys() != {"kdf", "n", "r", "p", "salt"}
        ):
            raise KmsError(f"the keyring {path} has a protection that this ags1 does not know")
        n, r, p = numbers = fields["n"], fields["r"], fields["p"]
        # There is no least cost: the parameters are authenticated, so whoever lowers them only
        # makes the keyring useless.
        if (
            any(type(number) is not int for number in numbers)
            or min(numbers) < 1
            or p > _SCRYPT_MAX_P
            or 128 * r * n > _SCRYPT_MAX_MEMORY
            or n & (n - 1)
            or not 2 <= n < 1 << 16 * r
        ):
            raise KmsError(
                f"the keyring {path} is damaged, or made to hurt: "
                "its scrypt parameters are out of bounds"
            )
        try:
            salt = base64.b64decode(fields["salt"], validate=True)
        except (TypeError, ValueError):
            salt = b""
        if len(salt) != _SALT_SIZE:
            raise KmsError(f"the keyring {path} is damaged: its salt is not {_SALT_SIZE} bytes")
        return cls(n, r, p, salt)

    def to_dict(self) -> dict[str, Any]:
        salt = base64.b64encode(self.salt).decode()
        return {"kdf": "scrypt", "n": self.n, "r": self.r, "p": self.p, "salt": salt}

    def derive(self, passphrase: bytes) -> bytes:
        """Return the key. Takes as long, and as much memory, as the parameters say."""
        # What OpenSSL counts, to the byte: the vector, two blocks of scratch and p blocks.
        memory = 128 * self.r * (self.n + 2 + self.p)
        try:
            return hashlib.scrypt(
                passphrase,
                salt=self.salt,
                n=self.n,
                r=self.r,
                p=self.p,
                maxmem=memory,
                dklen=_KEY_SIZE,
            )
        except (AttributeError, ValueError):
            raise KmsConfigurationError(
                "a keyring with a passphrase needs scrypt, which this Python's OpenSSL lacks, "
                "forbids (FIPS), or has too little memory for"
            ) from None

    def header(self) -> bytes:
        """Return what the seal over the keys is bound to."""
        header = {"format": _FORMAT, "version": _PROTECTED, "protection": self.to_dict()}
        return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


# A protection with its derived key, None for a keyring without a passphrase.
_Seal = tuple[_Protection, bytes] | None


# ---- the file ----------------------------------------------------------------------------------


class _Keyring:
    """A keyring file as one process knows it: its keys in the clear, once they were needed."""

    __slots__ = ("_derived", "_keys", "_lock", "_passphrase", "_path", "_seen")

    def __init__(self, path: str, passphrase: _Passphrase | None) -> None:
        self._path = path
        self._passphrase = passphrase
        self._lock = threading.Lock()
        self._keys: Mapping[str, _MasterKey] | None = None
        self._seen: object = None
        self._derived: _Seal = None

    def keys(self, *, fresh: bool = False) -> Mapping[str, _MasterKey]:
        """Return the master keys by name; ``fresh``: as they stand in the file now."""
        keys = self._keys
        if keys is not None and not fresh:
            return keys
        with self._lock:
            return self._refresh()

    def change(
        self,
        edit: Callable[[dict[str, Any]], None],
        *,
        create: bool = False,
        protect: Callable[[_Seal], _Seal] = lambda before: before,
    ) -> Mapping[str, _MasterKey]:
        """Let ``edit`` change the ``keys`` object and write the keyring. Returns the master keys.

        ``create``: there need not be a keyring yet. ``protect`` turns the old seal into the new.
        """
        with self._lock:
            new_seal: _Seal = None
            try:
                # Whoever has to be asked for the passphrase is, before others are locked out.
                self._refresh()
            except KmsKeyNotFoundError:
                if not create:
                    raise
                if self._passphrase is not None and self._passphrase.at_hand:
                    protection = _Protection.new()
                    new_seal = protection, protection.derive(_checked(self._passphrase.ask()))
                    self._derived = new_seal
            # A keyring that is a symbolic link stays one.
            path = os.path.realpath(self._path)
            if create:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with _locked(path):
                try:
                    document, _ = _load(self._path)
                    keys, seal_before = self._open(document)
                    _parse(keys, self._path)
                except KmsKeyNotFoundError:
                    if not create:
                        raise
                    document, keys, seal_before = {"format": _FORMAT}, {}, new_seal
                edit(keys)
                master_keys = _parse(keys, self._path)
                data = _print(document, keys, protect(seal_before))
                if len(data) > _MAX_SIZE:
                    raise KmsError(f"the keyring {self._path} would be larger than 16 MiB")
                files.write(path, data, overwrite=True, durable=True)
            return master_keys

    def _refresh(self) -> Mapping[str, _MasterKey]:
        if self._keys is None or self._seen != self._identity():
            document, status = _load(self._path)
            keys, self._derived = self._open(document)
            self._keys = _parse(keys, self._path)
            self._seen = _identity(status)
        return self._keys

    def _identity(self) -> object:
        try:
            return _identity(os.stat(self._path))
        except OSError:
            return None  # reading it tells what is the matter

    def _open(self, document: dict[str, Any]) -> tuple[dict[str, Any], _Seal]:
        """Return the ``keys`` object, and how it was sealed."""
        keys = document.get("keys")
        if document["version"] == _PLAIN:
            if not isinstance(keys, dict):
                raise KmsError(f"the keyring {self._path} is damaged: it has no 'keys'")
            if self._passphrase is not None and self._passphrase.at_hand:
                raise KmsConfigurationError(
                    f"there is a passphrase for the keyring {self._path}, which has none: "
                    "it may not be the keyring that is meant"
                )
            return keys, None
        protection = _Protection.from_dict(document.get("protection"), self._path)
        try:
            sealed = base64.b64decode(keys if isinstance(keys, str) else "", validate=True)
        except ValueError:
            sealed = b""
        if not sealed:
            raise KmsError(f"the keyring {self._path} is damaged: it has no 'keys'")
        derived_key = self._derive(protection)
        try:
            data = open_sealed(derived_key, sealed, protection.header())
        except AuthenticationError:
            raise KmsAccessDeniedError(
                f"the passphrase does not open the keyring {self._path}"
            ) from None
        opened = _decode(data)
        if not isinstance(opened, dict):
            raise KmsError(f"the keyring {self._path} is damaged: its 'keys' are no object")
        return opened, (protection, derived_key)

    def _derive(self, protection: _Protection) -> bytes:
        if self._derived is not None and self._derived[0] == protection:
            return self._derived[1]
        if self._passphrase is None:
            raise KmsAccessDeniedError(
                f"the keyring {self._path} is protected by a passphrase, and none was given"
            )
        derived_key = protection.derive(_checked(self._passphrase.ask()))
        # Kept though it may be wrong: asking or deriving again would not mend it.
        self._derived = protection, derived_key
        return derived_key


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    # Beside the keyring, because each write puts another file in the keyring's place. It stays:
    # removing a lock file lets two holders in.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(f"{path}.lock", flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing is not enough: a child that another thread forked meanwhile has a copy.
            fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


def _read_private(path: str, size_limit: int, what: str) -> tuple[bytes, os.stat_result]:
    """Return a file's bytes and status, once its mode is seen to be safe.

    Raises KmsError, and FileNotFoundError.
    """
    try:
        data, status = files.read(path, size_limit)
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise KmsAccessDeniedError(f"cannot read the {what} {path}: {error.strerror}") from None
    except OSError as error:
        raise KmsError(f"cannot read the {what} {path}: {error.strerror}") from None
    mine = status.st_uid == os.geteuid()
    if status.st_mode & (0o077 if mine else 0o022):
        raise KmsAccessDeniedError(
            f"the {what} {path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}); "
            "it is not used until chmod 600 closes it, and others may know what it holds"
        )
    return data, status


def _identity(status: os.stat_result) -> object:
    """Return what differs when a file was replaced or written."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _load(path: str) -> tuple[dict[str, Any], os.stat_result]:
    """Return the keyring's JSON document and the file's status. Raises KmsError."""
    try:
        data, status = _read_private(path, _MAX_SIZE, "keyring")
    except FileNotFoundError:
        raise KmsKeyNotFoundError(
            f"there is no keyring {path} (make one with: ags1 keygen)"
        ) from None
    document = _decode(data)
    if document is None:
        raise KmsError(f"the keyring {path} is damaged: it is not JSON")
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise KmsError(f"{path} is not a keyring of ags1")
    version = document.get("version")
    if type(version) is not int or version not in (_PLAIN, _PROTECTED):
        raise KmsError(f"the keyring {path} has a version that this ags1 does not know")
    return document, status


def _decode(data: bytes) -> object:
    """Return what JSON says, None for what is no JSON."""
    # Not raised: the decoder's exception holds the whole text, keys and all.
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(data)
    return None


def _print(document: Mapping[str, Any], keys: Mapping[str, Any], sealing: _Seal) -> bytes:
    """Return the keyring file's bytes. What else the document holds is kept."""
    printed: dict[str, Any] = {"format": _FORMAT, "version": _PLAIN}
    if sealing is None:
        printed["keys"] = keys
    else:
        protection, derived_key = sealing
        sealed = seal(derived_key, json.dumps(keys).encode(), protection.header())
        printed["version"] = _PROTECTED
        printed["protection"] = protection.to_dict()
        printed["keys"] = base64.b64encode(sealed).decode()
    known = {"format", "version", "protection", "keys"}
    printed.update((name, value) for name, value in document.items() if name not in known)
    return json.dumps(printed, indent=2).encode() + b"\n"


def _parse(keys: Mapping[str, Any], path: str) -> Mapping[str, _MasterKey]:
    """Return the master keys of a ``keys`` object by name. Raises KmsError, naming the key."""
    master_keys = {}
    for name, entry in keys.items():
        try:
            versions = {
                int(number): _Version(
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
            # Not the entry itself: it holds the key.
            raise KmsError(f"the keyring {path} is damaged: its key {name!r} is not whole")
        master_keys[name] = _MasterKey(current, versions)
    return master_keys


def _epoch_ms(value: object) -> int | None:
    return value if type(value) is int else None
