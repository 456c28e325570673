"""What a key management service does for us, in the nouns of Java's ``KeyManagementClient``.

``KmsClient`` is what reading and writing need; ``KeyAdmin`` is what ``ags1 key`` needs besides, and
a client may lack it. Knows of no service in particular.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class GeneratedKey:
    """A key that the KMS made, in the clear and wrapped."""

    key: bytes = field(repr=False)
    wrapped_key: bytes = field(repr=False)


class KmsClient(Protocol):
    """Wraps and unwraps keys under master keys that never leave the service.

    Every method may raise KmsKeyNotFoundError, KmsKeyDisabledError, KmsAccessDeniedError,
    KmsUnavailableError (after the retries that the client was configured for) or
    KmsConfigurationError. A client may be used by several threads at once and in a forked child; it
    connects when it is first used.

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


@dataclass(frozen=True, slots=True)
class KeyVersion:
    """A version of a master key, as far as the service tells; nothing secret.

    ``created_ms`` is in epoch milliseconds. ``fingerprint`` tells whether two places hold the same
    key and nothing else about it. ``public_key`` is the PEM of an asymmetric key.
    """

    version: str
    created_ms: int | None = None
    enabled: bool = True
    fingerprint: str | None = None
    public_key: str | None = None


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A master key, as far as the service tells; nothing secret.

    ``key_id`` is the name to use in wrap_key; ``algorithm`` the service's own name for it;
    ``current_version`` what wrap_key uses. ``versions`` may be empty where the service lists none.
    """

    key_id: str
    algorithm: str
    enabled: bool = True
    current_version: str | None = None
    versions: tuple[KeyVersion, ...] = ()
    aliases: tuple[str, ...] = ()


@runtime_checkable
class KeyAdmin(Protocol):
    """Manages master keys; raises as ``KmsClient`` does, KmsError where the service refuses."""

    def list_keys(self) -> Iterator[KeyInfo]:
        """Yield the master keys, by id. ``versions`` may be left out."""
        ...

    def describe_key(self, key_id: str) -> KeyInfo:
        """Return all that the service tells about one master key."""
        ...

    def create_key(self, key_id: str) -> KeyInfo:
        """Make a master key for wrapping. An existing one is never replaced: KmsError."""
        ...

    def rotate_key(self, key_id: str) -> KeyInfo:
        """Make a new version of a master key, which wraps from now on; older ones still unwrap."""
        ...
