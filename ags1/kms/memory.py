"""A KMS for tests and demonstrations, compatible with Java's ``MemoryMockKMS``, byte for byte.

A wrapped key is ``nonce(12) | ct | tag(16)``, AES-GCM without additional data. Its master keys
stand in its properties and none is built in; whoever reads the configuration has them, and it warns
of that. Java's ``UnitestKMS``, which Iceberg's own tests use, has ``keyA`` = ``0123456789012345``
in ASCII and ``keyB`` = ``1123456789012345``.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping
from typing import ClassVar, NoReturn

from .._gcm import open as open_sealed
from .._gcm import seal
from ..errors import (
    AuthenticationError,
    KmsConfigurationError,
    KmsKeyNotFoundError,
    KmsUnwrapError,
)
from .properties import Properties

_KEY_PREFIX = "encryption.kms.key."
_HEX_KEY = re.compile(r"(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{48}|[0-9A-Fa-f]{64})")


class KeysInPropertiesWarning(UserWarning):
    """Master keys in the clear, in a place that is read, stored and sent around."""


class MemoryKms:
    """A KMS client over the properties ``encryption.kms.key.<id>``, each a key of 16, 24 or 32
    bytes in hex.

    Raises KmsConfigurationError without one, or when one is no such key. Each client made warns
    with KeysInPropertiesWarning. It is not pickled: TypeError.
    """

    accepts_foreign_keys: ClassVar[bool] = False
    wraps_with_public_key: ClassVar[bool] = False

    def __init__(self, properties: Mapping[str, str]) -> None:
        # They stay in hex in there: it neither shows nor pickles them.
        self._properties = Properties(properties)
        keys = self._properties.with_prefix(_KEY_PREFIX)
        if not keys:
            raise KmsConfigurationError(f"there is no property '{_KEY_PREFIX}<id>': no master key")
        for key_id, text in keys.items():
            if not key_id or not _HEX_KEY.fullmatch(text):
                raise KmsConfigurationError(
                    f"the property {_KEY_PREFIX + key_id!r} is not an AES key: "
                    "16, 24 or 32 bytes in hex, under an id"
                )
        warnings.warn(
            "master keys in properties are for tests and demonstrations: "
            "who can read the configuration can decrypt everything",
            KeysInPropertiesWarning,
            stacklevel=_level_of_caller(),
        )

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        return seal(self._master_key(key_id), key)

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        master_key = self._master_key(key_id)
        try:
            return open_sealed(master_key, wrapped_key)
        except (AuthenticationError, ValueError):
            raise KmsUnwrapError(
                f"the master key {key_id!r} does not open the wrapped key: "
                "another master key wrapped it, or it was changed"
            ) from None

    @property
    def supports_key_generation(self) -> bool:
        return False

    def generate_key(self, key_id: str, key_size: int) -> NoReturn:
        raise NotImplementedError("this KMS does not generate keys; wrap one")

    def close(self) -> None:
        """Do nothing: the keys belong to the properties."""

    def __repr__(self) -> str:
        return f"MemoryKms({self._properties!r})"

    def __reduce__(self) -> tuple[type[MemoryKms], tuple[dict[str, str]]]:
        return MemoryKms, (self._properties.to_pickle(),)

    def _master_key(self, key_id: str) -> bytes:
        name = _KEY_PREFIX + key_id
        # PyIceberg's configuration makes the names of properties small, in file and environment.
        text = self._properties.get(name, name.lower())
        if text is None:
            raise KmsKeyNotFoundError(f"no master key {key_id!r}: there is no property {name!r}")
        return bytes.fromhex(text)


def _level_of_caller() -> int:
    """Return the ``stacklevel`` at which our caller's warning is about the line outside of this
    library that led here, through the registry or a catalog."""
    package = __name__.partition(".")[0]
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        level, frame = level + 1, frame.f_back
    return max(level, 1)
