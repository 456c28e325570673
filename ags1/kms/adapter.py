"""``PyIcebergKms``: a KMS client that was written for PyIceberg, used as one of ours.

PyIceberg's ``pyiceberg.encryption.kms.KeyManagementClient`` is made from ``properties`` alone,
``supports_key_generation`` is a method, and ``generate_key`` takes no size. Its proof of concept
makes a client without arguments and then calls ``initialize(properties)``. A class is known by its
methods, so PyIceberg is not imported. The other direction is ``pyiceberg.KeyManagementClient``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import Ags1Error, KmsAccessDeniedError, KmsError, KmsUnavailableError
from ..host.process import OncePerProcess
from .client import GeneratedKey
from .properties import Properties
from .secret import discreet


def is_pyiceberg_client(named: object) -> bool:
    """Return whether ``named`` is a class with the methods that PyIceberg asks of every client."""
    methods = (getattr(named, name, None) for name in ("wrap_key", "unwrap_key"))
    return isinstance(named, type) and all(map(callable, methods))


class PyIcebergKms:
    """A client of the class ``kind``, which was written for PyIceberg, made from ``properties``.

    The class must allow calls by several threads at once. Each process makes its own client. Only
    an exception's type is quoted, because its text may hold a key: ConnectionError and TimeoutError
    become KmsUnavailableError, PermissionError becomes KmsAccessDeniedError, and other exceptions
    become KmsError. A pickle has the class and the properties; if one of them is secret, pickling
    raises TypeError. Raises KmsError if the client cannot be made.
    """

    def __init__(self, kind: type, properties: Mapping[str, str]) -> None:
        self._kind = kind
        self._properties = Properties(properties)
        made = dict(properties)
        self._client: OncePerProcess[Any] = OncePerProcess(lambda: _make(kind, made))
        self._call("its construction", self._client.get)

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        return self._bytes("wrap_key", lambda: self._client.get().wrap_key(key, key_id))

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        return self._bytes("unwrap_key", lambda: self._client.get().unwrap_key(wrapped_key, key_id))

    @property
    def supports_key_generation(self) -> bool:
        def ask() -> bool:
            says = getattr(self._client.get(), "supports_key_generation", False)
            return bool(says() if callable(says) else says)

        return bool(self._call("supports_key_generation", ask))

    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        """Have the service make a key. Raises NotImplementedError if it makes none of that size,
        which is known only after it has made one."""
        made: Any = self._call("generate_key", lambda: self._client.get().generate_key(key_id))
        key = self._bytes("generate_key", lambda: made.key)
        if len(key) != key_size:
            raise NotImplementedError(f"{self!r} makes keys of {len(key)} bytes, not of {key_size}")
        return GeneratedKey(key, self._bytes("generate_key", lambda: made.wrapped_key))

    @property
    def accepts_foreign_keys(self) -> bool:
        return bool(getattr(self._kind, "accepts_foreign_keys", True))

    @property
    def wraps_with_public_key(self) -> bool:
        return bool(getattr(self._kind, "wraps_with_public_key", False))

    def close(self) -> None:
        client = self._client.take()
        if callable(close := getattr(client, "close", None)):
            self._call("close", close)

    def __reduce__(self) -> tuple[type, tuple[type, dict[str, str]]]:
        return type(self), (self._kind, self._properties.to_pickle())

    def __repr__(self) -> str:
        return f"PyIcebergKms({self._kind.__module__}.{self._kind.__qualname__})"

    @discreet
    def _call(self, doing: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (Ags1Error, MemoryError):
            raise
        except Exception as error:
            if isinstance(error, NotImplementedError) and doing == "generate_key":
                raise NotImplementedError(f"{self!r} makes no keys") from None
            message = f"{self!r} failed in {doing}: {type(error).__name__}"
            if isinstance(error, (ConnectionError, TimeoutError)):
                raise KmsUnavailableError(
                    f"{message}. Try again when its service answers"
                ) from None
            if isinstance(error, PermissionError):
                denied = f"{message}. Allow this user the use of the master key"
                raise KmsAccessDeniedError(denied) from None
            hidden = "The text of the exception is not shown, because it may hold a key: call"
            raise KmsError(f"{message}. {hidden} the class in a program of your own") from None

    def _bytes(self, doing: str, work: Callable[[], Any]) -> bytes:
        answer = self._call(doing, work)
        if not isinstance(answer, (bytes, bytearray, memoryview)):
            kind = type(answer).__name__
            raise KmsError(f"{self!r} returned {kind} from {doing}: it must return bytes")
        return bytes(answer)


def _make(kind: type, properties: Mapping[str, str]) -> Any:
    if not callable(getattr(kind, "initialize", None)):
        return kind(dict(properties))
    client = kind()
    client.initialize(dict(properties))
    return client
