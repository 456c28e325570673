"""A KMS for tests and demonstrations, compatible with Java's ``MemoryMockKMS``, byte for byte.

A wrapped key is ``nonce(12) | ct | tag(16)``, AES-GCM without additional data. The master keys are
in the properties, and none is built in. Java's ``UnitestKMS``, which Iceberg's own tests use, has
``keyA`` = ``0123456789012345`` in ASCII and ``keyB`` = ``1123456789012345``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..engine._messages import open as open_sealed
from ..engine._messages import seal
from ..errors import AuthenticationError, KmsConfigurationError, KmsKeyNotFoundError, KmsUnwrapError
from .client import MadeOfProperties, WrapsOnly
from .properties import warn_user

_KEY_PREFIX = "encryption.kms.key."
_HEX_KEY = re.compile(r"(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{48}|[0-9A-Fa-f]{64})")


class KeysInPropertiesWarning(UserWarning):
    """Master keys are in properties, not encrypted, where others may read or store them."""


class MemoryKms(WrapsOnly, MadeOfProperties):
    """A KMS client over the properties ``encryption.kms.key.<id>``, each a key of 16, 24 or 32
    bytes in hex. Raises KmsConfigurationError if there is no such property, or one is not such a
    key. Each new client warns with KeysInPropertiesWarning. Pickling it raises TypeError."""

    accepts_foreign_keys = False
    wraps_with_public_key = False

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        # The keys stay in there in hex: properties neither show nor pickle them.
        keys = self._properties.with_prefix(_KEY_PREFIX)
        if not keys:
            raise KmsConfigurationError(f"no master key: set the property '{_KEY_PREFIX}<id>'")
        for key_id, text in keys.items():
            if not key_id or not _HEX_KEY.fullmatch(text):
                raise KmsConfigurationError(
                    f"the property {_KEY_PREFIX + key_id!r} is not an AES key: "
                    "16, 24 or 32 bytes in hex, under an id"
                )
        warn_user(
            "master keys in properties are for tests and demonstrations: "
            "whoever can read the configuration can decrypt everything",
            KeysInPropertiesWarning,
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

    def close(self) -> None:
        """Do nothing: the keys belong to the properties."""

    def __repr__(self) -> str:
        return f"MemoryKms({self._properties!r})"

    def _master_key(self, key_id: str) -> bytes:
        name = _KEY_PREFIX + key_id
        # PyIceberg's configuration (file and environment) has property names in lower case.
        text = self._properties.get(name, name.lower())
        if text is None:
            raise KmsKeyNotFoundError(f"no master key {key_id!r}: there is no property {name!r}")
        return bytes.fromhex(text)
