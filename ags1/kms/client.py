"""What a key management service does for us, in the nouns of Java's ``KeyManagementClient``.

Knows of no service in particular.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .properties import Properties
from .secret import Secret

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class GeneratedKey(Secret):
    """A key that the KMS made, unencrypted and wrapped. It is not pickled or copied: TypeError."""

    key: bytes = field(repr=False)
    wrapped_key: bytes = field(repr=False)


class KmsClient(Protocol):
    """Wraps and unwraps keys under master keys that never leave the service.

    Every method may raise KmsKeyNotFoundError, KmsKeyDisabledError, KmsAccessDeniedError,
    KmsUnavailableError (after the retries that the client was configured for) or
    KmsConfigurationError. A client may be used by several threads at once and in a forked child; it
    connects when it is first used. ``encryption.kms-impl`` and the entry points ``ags1.kms`` name a
    class or object with a method ``from_properties(properties)`` that returns a client.

    ``kms.connect-timeout-ms`` and ``kms.read-timeout-ms`` (between two reads) bound the waiting for
    a service, ``kms.max-attempts`` the number of attempts. Neither the time nor the size of a whole
    answer is bounded: by its certificate, whoever answers is the service with the master keys, and
    can withhold them anyway.

    A client may also have ``accepts_foreign_keys: bool``: whether a ``key_id`` may name a key that
    does not belong to the configured account or server (an ARN of anybody's). There, a key id that
    was read from an untrusted place is not used. Without the attribute that is assumed.

    And ``wraps_with_public_key: bool``: whether wrapping needs only public knowledge (RSA), so that
    anybody can make wrapped keys. There, that a wrapped key unwraps says nothing about who made it.
    Without the attribute False is assumed.
    """

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        """Return ``key`` wrapped under the master key ``key_id``."""
        ...

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        """Return the key that ``wrap_key`` wrapped. Raises KmsUnwrapError."""
        ...

    @property
    def supports_key_generation(self) -> bool:
        """Whether ``generate_key`` works."""
        ...

    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        """Have the service make a key of ``key_size`` bytes, wrapped under ``key_id``.

        Raises NotImplementedError where it cannot, or not of that size.
        """
        ...

    def close(self) -> None:
        """Give back connections and forget keys. A client that is used again connects again."""
        ...


@runtime_checkable
class Rewrapper(Protocol):
    """A KMS that brings a wrapped key to its master key's newest version by itself, so that the key
    does not leave it."""

    def rewrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        """Return the same key wrapped under the newest version of ``key_id``."""
        ...


class WrapsOnly:
    """Part of a client of a service that makes no keys itself."""

    @property
    def supports_key_generation(self) -> bool:
        return False

    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        raise NotImplementedError("this KMS does not generate wrapped keys; wrap one")


class MadeOfProperties:
    """Part of a client that its properties describe whole. A pickle has the properties, and is
    refused with TypeError when one of them is secret: the other process finds its own credentials.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = Properties(properties)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Return the client that ``properties`` describe. Raises KmsConfigurationError."""
        return cls(properties)

    def __reduce__(self) -> tuple[type, tuple[dict[str, str]]]:
        return type(self), (self._properties.to_pickle(),)
