"""KMS clients of plug-ins: their bugs are failures of keys, not internal errors of ours. If
such a client raises an error that is not ours, the message names only its type, because its text
may have a key. The types of what it returns are checked."""

from __future__ import annotations

import contextlib
import functools
import os
import traceback
from collections.abc import Iterator
from typing import Any, cast

import click

from ...errors import Ags1Error, KmsError
from ...kms import GeneratedKey, KmsClient

_BYTES = (bytes, bytearray, memoryview)
_RESULTS: dict[str, type | tuple[type, ...]] = {
    "wrap_key": _BYTES,
    "unwrap_key": _BYTES,
    "generate_key": GeneratedKey,
    "own_name": (str, type(None)),
    "close": object,
}


class PluginError(KmsError):
    """A KMS client that is not ours failed in a way that is not in the protocol."""


def guarded(kms: KmsClient, name: str) -> KmsClient:
    """Return ``kms`` such that its methods raise nothing but our errors; ours as it is."""
    if type(kms).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return kms
    return cast("KmsClient", _Guarded(kms, name))


class _Guarded:
    """A client whose calls go through ``failures_of``. Of the methods in ``_RESULTS``, it has
    exactly those that the client has."""

    def __init__(self, kms: Any, name: str) -> None:
        self._kms = kms
        self._name = name
        for method in _RESULTS:
            if hasattr(type(kms), method) or hasattr(kms, method):
                setattr(self, method, functools.partial(self._call, method))

    @property
    def accepts_foreign_keys(self) -> bool:
        return bool(self._get("accepts_foreign_keys", True))

    @property
    def wraps_with_public_key(self) -> bool:
        return bool(self._get("wraps_with_public_key", False))

    @property
    def supports_key_generation(self) -> bool:
        return bool(self._get("supports_key_generation", False))

    def __repr__(self) -> str:
        return f"<the KMS client {self._name}>"

    def _get(self, attribute: str, default: bool) -> object:
        with failures_of(self._name, attribute):
            return getattr(self._kms, attribute, default)

    def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        with failures_of(self._name, method):
            result = getattr(self._kms, method)(*arguments, **named)
        if not isinstance(result, _RESULTS[method]):
            message = f"the KMS client {self._name} returned the wrong type from {method}"
            kind = type(result).__name__
            raise PluginError(f"{message}: {kind}. This is a bug in that client")
        return result


@contextlib.contextmanager
def failures_of(name: str, doing: str) -> Iterator[None]:
    """Turn what the client ``name`` raises while ``doing`` something into a PluginError. Our own
    errors, and those that our code handles, are raised as they are."""
    failure: BaseException | None = None
    try:
        yield
    except (Ags1Error, NotImplementedError, MemoryError, click.Abort):
        raise
    # A client must not end the program: its exit code would mean something else here.
    except (Exception, SystemExit) as error:
        failure = error
    if failure is not None:
        if os.environ.get("AGS1_DEBUG"):
            # The frames without the values: neither those of variables nor the exception's text.
            traceback.print_tb(failure.__traceback__)
        kind = type(failure).__name__
        del failure
        raise PluginError(
            f"the KMS client {name} failed in {doing}: {kind}. This is a bug in that client; "
            "AGS1_DEBUG=1 shows where"
        )
