"""What a key management service does for us, in the nouns of Java's ``KeyManagementClient``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GeneratedKey:
    """A key that the KMS made, in the clear and wrapped."""

    key: bytes = field(repr=False)
    wrapped_key: bytes = field(repr=False)


class KmsClient(Protocol):
    """Wraps and unwraps keys under master keys that never leave the service.

    Every method may raise KmsKeyNotFoundError, KmsAccessDeniedError or KmsUnavailableError. A
    client may be used by several threads at once.
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
        """Have the service make a key of ``key_size`` bytes, wrapped under ``key_id``."""
        ...

    def close(self) -> None:
        """Give back connections and forget keys."""
        ...
