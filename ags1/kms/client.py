"""The protocol of a key management service, with the names of Java's ``KeyManagementClient``.

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
    """A client that wraps and unwraps keys under master keys, which never leave the service.

    Every method may raise KmsKeyNotFoundError, KmsKeyDisabledError, KmsAccessDeniedError,
    KmsUnavailableError (after the retries that the client was configured for) or
    KmsConfigurationError. A client may be used by several threads at once and in a forked child; it
    connects when it is first used. ``encryption.kms-impl`` and the entry points ``ags1.kms`` name a
    class or object with a method ``from_properties(properties)`` that returns a client.

    ``kms.connect-timeout-ms`` and ``kms.read-timeout-ms`` (between two reads) limit the waiting for
    a service, and ``kms.max-attempts`` the number of attempts. Neither the time nor the size of a
    whole answer is limited: the certificate proves that the service with the master keys answers,
    and that service could withhold the keys anyway.

    A client may also have ``accepts_foreign_keys: bool``. It says whether a ``key_id`` may name a
    key that does not belong to the configured account or server (such as another user's ARN). If it
    is true, a key ID from an untrusted place is not used. A client without the attribute counts as
    true.

    A client may also have ``wraps_with_public_key: bool``. It says whether public knowledge (RSA)
    is enough to wrap, so that anybody can make wrapped keys. If it is true, the fact that a wrapped
    key unwraps does not show who made it. A client without the attribute counts as false.
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

        Raises NotImplementedError if the service makes no keys, or none of that size.
        """
        ...

    def close(self) -> None:
        """Close connections and forget keys. If the client is used again, it connects again."""
        ...


@runtime_checkable
class Rewrapper(Protocol):
    """A KMS that can wrap a wrapped key again under its master key's newest version. The key does
    not leave the KMS."""

    def rewrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        """Return the same key wrapped under the newest version of ``key_id``."""
        ...


class WrapsOnly:
    """Part of a client of a service that makes no keys itself."""

    @property
    def supports_key_generation(self) -> bool:
        return False

    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        raise NotImplementedError("this KMS makes no keys: make a key and wrap it")


class MadeOfProperties:
    """Part of a client that its properties describe completely. A pickle has the properties. If one
    of them is secret, pickling raises TypeError: the other process must find its own credentials.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = Properties(properties)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Return the client that ``properties`` describe. Raises KmsConfigurationError."""
        return cls(properties)

    def __reduce__(self) -> tuple[type, tuple[dict[str, str]]]:
        return type(self), (self._properties.to_pickle(),)
