"""The protocol of a key management service, with the names of Java's ``KeyManagementClient``, and
what the clients of all services share. Independent of any service."""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from ..errors import (
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsError,
    KmsUnavailableError,
)
from ..host.process import OncePerProcess
from .causes import cause_of
from .properties import Properties
from .secret import Secret, discreet

if TYPE_CHECKING:
    from typing_extensions import Self

# The statuses of Google and Azure that are worth another attempt.
TRANSIENT_HTTP = frozenset((408, 429, 500, 502, 503, 504))

_Connection = TypeVar("_Connection")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class GeneratedKey(Secret):
    """A key that the KMS made, unencrypted and wrapped. It is not pickled or copied: TypeError."""

    key: bytes = field(repr=False)
    wrapped_key: bytes = field(repr=False)


class KmsClient(Protocol):
    """A client that wraps and unwraps keys under master keys, which never leave the service.

    Every method may raise KmsKeyNotFoundError, KmsKeyDisabledError, KmsAccessDeniedError,
    KmsUnavailableError (after the configured retries) or KmsConfigurationError. A client may be
    used by several threads at once and in a forked child. It connects when it is first used.
    ``encryption.kms-impl`` and the entry points ``ags1.kms`` name a class or object with a method
    ``from_properties(properties)`` that returns a client, or a class for PyIceberg (``adapter``).

    ``kms.connect-timeout-ms`` and ``kms.read-timeout-ms`` (between two reads) limit the waiting for
    a service, and ``kms.max-attempts`` the number of attempts. The time and the size of a whole
    answer are not limited: a service with the master keys could withhold the keys anyway.

    A client may also have two attributes of the type bool. ``accepts_foreign_keys`` says whether a
    ``key_id`` may name a key that does not belong to the configured account or server (such as
    another user's ARN). Then a key ID from an untrusted source is not used. Without the attribute
    it is true. ``wraps_with_public_key`` says whether public knowledge (RSA) is enough to wrap.
    Then the fact that a wrapped key unwraps does not show who made it. Without the attribute it is
    false. If a name can be pointed at another key (an alias), a method ``own_name(key_id)`` may
    return the service's own name of the key that ``wrap_key`` or ``generate_key`` used last. If
    wrapped keys name their version (``wrapped_version``), a method ``newest_version(key_id)`` may
    return the one that wraps now, so that keys which have it are not wrapped again.
    """

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        """Return ``key`` wrapped under the master key ``key_id``."""

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        """Return the key that ``wrap_key`` wrapped. Raises KmsUnwrapError."""

    @property
    def supports_key_generation(self) -> bool:
        """Whether ``generate_key`` works."""

    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        """Have the service make a key of ``key_size`` bytes, wrapped under ``key_id``. Raises
        NotImplementedError if the service makes no keys, or none of that size."""

    def close(self) -> None:
        """Close connections and forget keys. If the client is used again, it connects again."""


def accepts_foreign_keys(kms: KmsClient) -> bool:
    """Whether a key ID may name another user's key (see ``KmsClient``)."""
    return bool(getattr(kms, "accepts_foreign_keys", True))


def wraps_with_public_key(kms: KmsClient) -> bool:
    """Whether anybody can make keys that the KMS unwraps (see ``KmsClient``)."""
    return bool(getattr(kms, "wraps_with_public_key", False))


def own_name(kms: KmsClient, key_id: str) -> str | None:
    """Return the service's own name of the key that last wrapped under ``key_id``; None if it is
    the same, or if the client does not say (see ``KmsClient``)."""
    name: str | None = getattr(kms, "own_name", lambda _: None)(key_id)
    return None if name == key_id else name


def wrapped_version(wrapped_key: bytes) -> int | None:
    """Return the version of the master key that a wrapped key names, in the form of a keyring or of
    Vault; None if it names none. It is a hint: nothing is authenticated before the key is open."""
    if match := re.match(rb"vault:v([0-9]{1,10}):", wrapped_key):
        return int(match[1])
    if len(wrapped_key) > 5 and wrapped_key[0] == 1:
        return int.from_bytes(wrapped_key[1:5], "big")
    return None


def newest_version(kms: KmsClient, key_id: str) -> int | None:
    """Return the version of a master key that wraps now; None if the client does not say."""
    version: int | None = getattr(kms, "newest_version", lambda _: None)(key_id)
    return version


class WrapsOnly:
    """Part of a client of a service that makes no keys itself."""

    supports_key_generation = False

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


class ServiceClient(MadeOfProperties, ABC, Generic[_Connection]):
    """Part of a client of a remote service: its time limits (in seconds, for the connection and for
    each read), and one connection for each process. ``_extra`` is the extra of ags1 that installs
    its ``_libraries``. Raises KmsConfigurationError if one cannot be imported."""

    _extra: ClassVar[str]
    _libraries: ClassVar[tuple[str, ...]]

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        # A missing library is better known now than when the first key is needed.
        for library in self._libraries:
            try:
                importlib.import_module(library)
            except ImportError as error:
                raise missing_library(self._extra, error) from None
        given = self._properties
        self._timeout_s = (given.connect_timeout_ms / 1000, given.read_timeout_ms / 1000)
        self._max_attempts = given.max_attempts
        self._connection = OncePerProcess(self._connect)

    @abstractmethod
    def _connect(self) -> _Connection:
        """Connect to the service. Called once in each process, when the first key is needed."""


class SdkClient(ServiceClient[_Connection]):
    """Part of a client over a service's own library. The library's exceptions may hold the request
    with the key, so none of them leaves the client. ``_fixed_credential`` is the property of a
    credential that cannot change while the client lives."""

    _fixed_credential: ClassVar[str]

    @abstractmethod
    def _failure(self, action: str, key_id: str, error: Exception) -> KmsError:
        """Return our exception for one of the library's. It quotes only what cannot be secret."""

    @discreet
    def _call(self, action: str, key_id: str, work: Callable[[_Connection], _T]) -> _T:
        """Call ``work``, which calls the service, and raise its exceptions as ours. If the service
        refuses, the credentials are looked up again, once: others may have renewed them since."""
        used = self._attempt(action, key_id, self._connection.get)
        try:
            return self._attempt(action, key_id, lambda: work(used))
        except KmsAccessDeniedError:
            if self._properties.get(self._fixed_credential):
                raise
            # It is not closed, because other threads may be waiting for its answers.
            self._connection.forget(used)
        return self._attempt(action, key_id, lambda: work(self._connection.get()))

    def _attempt(self, action: str, key_id: str, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except KmsError:
            raise
        except Exception as error:
            raise self._failure(action, key_id, error) from None


def unasked(error: BaseException, request: str, trust: str) -> KmsError:
    """Return our error for an SDK's that says that a ``request`` was not sent or not answered.
    ``trust`` says how to name the authority of the server's certificate."""
    cause = cause_of(error, trust)
    if cause is None:
        return KmsUnavailableError(f"{request} ({type(error).__name__})")
    kind = KmsConfigurationError if cause.is_local else KmsUnavailableError
    return kind(f"{request}: {cause.text}")


def unreadable(error: OSError | UnicodeError, file: str, where: str) -> KmsAccessDeniedError:
    """Return the error for a file of credentials that an SDK cannot read."""
    why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
    return KmsAccessDeniedError(f"no credentials for {where}: cannot read {file}: {why}")


def missing_library(extra: str, error: ImportError) -> KmsConfigurationError:
    """Return the error for a client whose library is missing or broken."""
    return KmsConfigurationError(
        f"the library for this KMS cannot be imported ({error}): pip install 'ags1[{extra}]'"
    )
