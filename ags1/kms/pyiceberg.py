"""``KeyManagementClient``: the KMS clients of ags1, for software that takes those of PyIceberg.

``py-kms-impl = ags1.kms.pyiceberg.KeyManagementClient`` names it to PyIceberg, and to libraries
that follow it. ``encryption.kms-type`` or ``encryption.kms-impl`` chooses our client. Follows
PyIceberg's ``pyiceberg/encryption/kms.py``. If the installed PyIceberg has this module, the class
is a subclass of its ``KeyManagementClient``; PyIceberg 0.12 has none. The other direction is
``adapter``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..errors import KmsConfigurationError
from .client import GeneratedKey, KmsClient
from .properties import Properties
from .registry import KMS_IMPL, PY_KMS_IMPL, from_properties

if TYPE_CHECKING:
    Base = object
else:
    try:
        from pyiceberg.encryption.kms import KeyManagementClient as Base
    except ImportError:
        Base = object

_NONE: Mapping[str, str] = MappingProxyType({})


class KeyManagementClient(Base):
    """The client of ags1 that ``properties`` describe, with the methods that PyIceberg calls.

    ``properties`` are those of a catalog. Values that are not text are passed over. Properties of
    the KMS are as in ``ags1.kms``. If there are none, ``initialize`` gives them. The attribute
    ``properties`` has those that are not secret. The methods raise what our client raises:
    KmsError, and KmsConfigurationError, which is a ValueError, if no KMS is configured.
    """

    properties: Mapping[str, str]

    def __init__(self, properties: Mapping[str, str] = _NONE) -> None:
        self.properties = {}
        self._given = Properties({})
        self._kms: KmsClient | None = None
        if properties:
            self.initialize(properties)

    def initialize(self, properties: Mapping[str, str]) -> None:
        """Make the client from ``properties``, as PyIceberg's proof of concept does. Raises
        KmsConfigurationError."""
        texts = {name: text for name, text in properties.items() if isinstance(text, str)}
        # It names this class.
        texts.pop(PY_KMS_IMPL, None)
        if texts.get(KMS_IMPL, "").startswith(f"{__name__}:"):
            raise KmsConfigurationError(
                f"{KMS_IMPL} names the adapter for PyIceberg, which is not a KMS: set "
                f"encryption.kms-type, and name the adapter in {PY_KMS_IMPL}"
            )
        self._kms = from_properties(texts)
        self._given = Properties(texts)
        secrets = set(self._given.secrets())
        self.properties = {name: text for name, text in texts.items() if name not in secrets}

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        """Return ``key`` wrapped under the master key ``wrapping_key_id``."""
        return self._client().wrap_key(key, wrapping_key_id)

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        """Return the key that ``wrap_key`` wrapped. Raises KmsUnwrapError."""
        return self._client().unwrap_key(wrapped_key, wrapping_key_id)

    def supports_key_generation(self) -> bool:
        """Whether ``generate_key`` works."""
        return self._client().supports_key_generation

    def generate_key(self, wrapping_key_id: str) -> GeneratedKey:
        """Have the service make a key, wrapped under ``wrapping_key_id``. It has 32 bytes, or 16 if
        ``kms.data-key-spec`` is ``AES_128``, as Java's ``AwsKeyManagementClient`` has it. Raises
        NotImplementedError if the service makes no keys."""
        size = 16 if self._given.get("kms.data-key-spec") == "AES_128" else 32
        return self._client().generate_key(wrapping_key_id, size)

    def close(self) -> None:
        """Close connections and forget keys. If the client is used again, it connects again."""
        if self._kms is not None:
            self._kms.close()

    def _client(self) -> KmsClient:
        return from_properties({}) if self._kms is None else self._kms

    def __reduce__(self) -> tuple[type, tuple[dict[str, str]]]:
        return type(self), (self._given.to_pickle(),)

    def __repr__(self) -> str:
        return f"KeyManagementClient({self._kms!r})"
