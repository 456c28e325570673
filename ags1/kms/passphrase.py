"""Read private files, and derive a key from a passphrase with scrypt (RFC 7914), which Python's own
OpenSSL has. Independent of keyrings."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..engine._gcm import random_bytes
from ..errors import KmsAccessDeniedError, KmsConfigurationError, KmsError
from ..host import private_file
from ..host.descriptors import own_descriptor
from .secret import Secret, discreet

# A property: whether secrets are accepted from files that others can read. It is for secrets that
# are mounted read-only, whose mode the user of the mount cannot change.
ALLOW_READABLE = "kms.allow-readable-files"
_MAX_PASSPHRASE_SIZE = 64 << 10
_DERIVED_SIZE = 32
# This takes 128 MiB and a third of a second, once for each process.
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 1 << 17, 8, 1
_SALT_SIZE = 16
# The highest cost that is accepted from a file: four times the memory and four times the passes.
_SCRYPT_MAX_MEMORY = 512 << 20
_SCRYPT_MAX_P = 4


@discreet
def read_private(path: str, size_limit: int, what: str, *, allow_readable: bool) -> bytes:
    """Return a file's bytes, after ``check_private``. Raises KmsError, and FileNotFoundError."""
    data, status = read_owned(path, size_limit, what)
    check_private(status, path, what, allow_readable=allow_readable)
    return data


@discreet
def read_owned(path: str, size_limit: int, what: str) -> tuple[bytes, os.stat_result]:
    """Return the bytes and the status of a file that belongs to us or to root. Raises KmsError, and
    FileNotFoundError."""
    try:
        data, status = private_file.read(path, size_limit)
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise KmsAccessDeniedError(f"cannot read the {what} {path}: {error.strerror}") from None
    except OSError as error:
        raise KmsError(f"cannot read the {what} {path}: {error.strerror}") from None
    check_owner(status, path, what)
    return data, status


def check_private(
    status: os.stat_result, path: str, what: str, *, allow_readable: bool = False
) -> None:
    """Raise KmsAccessDeniedError unless the file is ours and private, or root's and nobody else can
    write it. Root chooses the mode of a secret that root mounts. With ``allow_readable``, others
    may read our file, too."""
    check_owner(status, path, what)
    mine = status.st_uid == os.geteuid()
    mode = stat.S_IMODE(status.st_mode)
    if mode & (0o077 if mine and not allow_readable else 0o022):
        remedy = mode_remedy(path, "run chmod 600 on it before you use it")
        if not mode & 0o022 and is_read_only(path):
            remedy += f", or set {ALLOW_READABLE} to true if nobody else can reach this mount"
        raise KmsAccessDeniedError(
            f"the {what} {path} is open to others (mode {mode:04o}), who may have read or changed "
            f"it: {remedy}"
        )


def mode_remedy(path: str, otherwise: str) -> str:
    """Return what to do about a file's mode: ``otherwise``, if its file system can be written."""
    if is_read_only(path):
        return "its file system is read-only, so mount it with mode 0400 (Kubernetes: defaultMode)"
    return otherwise


def is_read_only(path: str) -> bool:
    """Whether the file system of an existing file or folder is mounted read-only."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def check_owner(status: os.stat_result, path: str, what: str) -> None:
    """Raise KmsAccessDeniedError if the file belongs neither to us nor to root. Its owner can write
    it, whatever its mode is."""
    if status.st_uid not in (0, os.geteuid()):
        raise KmsAccessDeniedError(
            f"the {what} {path} belongs to another user (uid {status.st_uid}), who can change it "
            "at any time: use a file that belongs to you or to root"
        )


@dataclass(frozen=True, slots=True)
class Passphrase(Secret):
    """Where the passphrase comes from. ``at_hand``: no user has to be asked for it."""

    ask: Callable[[], bytes] = field(repr=False)
    at_hand: bool
    file: str | None = None


@discreet
def passphrase_source(
    passphrase: bytes | Callable[[], bytes] | None,
    file: str | None,
    *,
    allow_readable: bool = False,
) -> Passphrase | None:
    """Return the source of a passphrase, None if there is none. Raises KmsConfigurationError."""
    if passphrase is not None and file is not None:
        raise KmsConfigurationError("both a passphrase and a passphrase file are given: give one")
    if file is not None and own_descriptor(file) is not None:
        # A pipe of the shell, <(command), can be read once.
        return Passphrase(functools.cache(functools.partial(_read_descriptor, file)), True)
    if file is not None:
        ask = functools.partial(read_passphrase, file, allow_readable=allow_readable)
        return Passphrase(ask, True, file)
    if passphrase is None:
        return None
    if callable(passphrase):
        return Passphrase(passphrase, False)
    whole = checked(passphrase)
    return Passphrase(lambda: whole, True)


@discreet
def encoded(text: str) -> bytes:
    """Return a passphrase that is given as text. Raises KmsConfigurationError."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise KmsConfigurationError("the property 'kms.local.passphrase' is not UTF-8") from None


def checked(passphrase: object) -> bytes:
    """Return a passphrase that is not empty. Raises KmsConfigurationError."""
    if not isinstance(passphrase, bytes):
        raise KmsConfigurationError("the passphrase is not bytes")
    if not passphrase:
        raise KmsConfigurationError("the passphrase is empty")
    return passphrase


@discreet
def read_passphrase(path: str, *, allow_readable: bool = False) -> bytes:
    """Return the passphrase in a private file, without one line end at its end and a byte-order
    mark at its beginning. Raises KmsError."""
    try:
        data = read_private(
            path, _MAX_PASSPHRASE_SIZE, "passphrase file", allow_readable=allow_readable
        )
    except FileNotFoundError:
        raise KmsConfigurationError(f"there is no passphrase file {path}") from None
    return _without_line_end(data, path)


def _without_line_end(data: bytes, path: str) -> bytes:
    # Windows' editors begin text with a byte-order mark and end lines with CRLF.
    passphrase = re.sub(rb"\A\xef\xbb\xbf|(\r\n|\n|\r)\Z", b"", data)
    if not passphrase:
        raise KmsConfigurationError(f"the passphrase file {path} is empty")
    return passphrase


def _read_descriptor(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_PASSPHRASE_SIZE + 1)
    except OSError as error:
        raise KmsError(f"cannot read the passphrase from {path}: {error.strerror}") from None
    if len(data) > _MAX_PASSPHRASE_SIZE:
        raise KmsError(f"the passphrase in {path} is longer than 64 KiB")
    return _without_line_end(data, path)


def composed(passphrase: bytes) -> bytes:
    """Return a passphrase in Unicode's form NFC, in which new protections take it: keyboards of
    macOS and Linux give one letter in different forms. What is not UTF-8 stays as it is."""
    return forms(passphrase)[0]


def forms(passphrase: bytes) -> list[bytes]:
    """Return the forms in which a passphrase may have protected a keyring, the likeliest first:
    NFC, as it is given, and NFD."""
    try:
        text = passphrase.decode()
    except UnicodeDecodeError:
        return [passphrase]
    nfc, nfd = (unicodedata.normalize(form, text).encode() for form in ("NFC", "NFD"))
    return list(dict.fromkeys((nfc, passphrase, nfd)))


@dataclass(frozen=True, slots=True)
class Protection:
    """How the key over a keyring's keys comes from the passphrase."""

    n: int
    r: int
    p: int
    salt: bytes

    @classmethod
    def new(cls) -> Protection:
        """Return a protection with a fresh salt and the present costs."""
        return cls(_SCRYPT_N, _SCRYPT_R, _SCRYPT_P, random_bytes(_SALT_SIZE))

    @classmethod
    def from_dict(cls, fields: object, path: str) -> Protection:
        """Parse a keyring's ``protection``. Raises KmsError, also for one that costs too much."""
        if (
            not isinstance(fields, dict)
            or fields.get("kdf") != "scrypt"
            or fields.keys() != {"kdf", "n", "r", "p", "salt"}
        ):
            raise KmsError(f"the keyring {path} has a protection that this ags1 does not know")
        n, r, p = numbers = fields["n"], fields["r"], fields["p"]
        # There is no lower limit: the parameters are authenticated, so if somebody lowers them, the
        # keyring does not open.
        if (
            any(type(number) is not int for number in numbers)
            or min(numbers) < 1
            or p > _SCRYPT_MAX_P
            or 128 * r * n > _SCRYPT_MAX_MEMORY
            or n & (n - 1)
            or not 2 <= n < 1 << 16 * r
        ):
            raise KmsError(
                f"the keyring {path} is damaged, or somebody has changed it: its scrypt parameters "
                "are out of bounds; restore it from a backup"
            )
        try:
            salt = base64.b64decode(fields["salt"], validate=True)
        except (TypeError, ValueError):
            salt = b""
        if len(salt) != _SALT_SIZE:
            raise KmsError(f"the keyring {path} is damaged: its salt is not {_SALT_SIZE} bytes")
        return cls(n, r, p, salt)

    def to_dict(self) -> dict[str, Any]:
        """Return the keyring's ``protection`` object."""
        salt = base64.b64encode(self.salt).decode()
        return {"kdf": "scrypt", "n": self.n, "r": self.r, "p": self.p, "salt": salt}

    def derive(self, passphrase: bytes) -> bytes:
        """Return the key. Takes as long, and as much memory, as the parameters say."""
        costs = {"n": self.n, "r": self.r, "p": self.p}
        # OpenSSL counts exactly these bytes: the vector, two temporary blocks and p blocks.
        costs["maxmem"] = 128 * self.r * (self.n + 2 + self.p)
        try:
            return hashlib.scrypt(passphrase, salt=self.salt, dklen=_DERIVED_SIZE, **costs)
        except (AttributeError, ValueError):
            raise KmsConfigurationError(
                "a keyring with a passphrase needs scrypt: this Python's OpenSSL does not have it, "
                "forbids it (FIPS), or has too little memory for it"
            ) from None
