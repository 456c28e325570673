"""The storage options that name keys, and the keychain that they give.

Storage options stand in programs, in task graphs, in JSON and in pickles. They hold the name and
the properties of a KMS, and no secret. Each process reads its own environment and configuration
file (``ags1.kms.settings``), and makes its own KMS client. Independent of files.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import KmsConfigurationError
from ...host.process import OncePerProcess
from ...keys.keychain import Keychain
from ...kms import from_properties, settings
from ...kms.client import accepts_foreign_keys
from ...kms.properties import Properties
from ...kms.registry import check_type

if TYPE_CHECKING:
    from ..ledger.lookup import LedgerSidecars

_TRUSTED = "trusted_keys"
_LEDGER = "ledger"
_NAMES = ("key", "keyring", "kms", _LEDGER, _TRUSTED)
# Options of every file system of fsspec.
_FSSPEC = ("asynchronous", "listings_expiry_time", "loop", "max_paths", "use_listings_cache")

_Identity = tuple[tuple[tuple[str, str], ...], str, frozenset[str] | None]
# One KMS client and its KEKs for each configuration.
_keychains: OncePerProcess[dict[_Identity, Keychain]] = OncePerProcess(dict)


class KeyOptions:
    """The checked options. Raises KmsConfigurationError for a secret or a value that is not text,
    and ValueError for an option that is not known."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        named = {name: value for name, value in options.items() if name not in _FSSPEC}
        if isinstance(named.get(_TRUSTED), (list, tuple, set, frozenset)):
            named[_TRUSTED] = ",".join(named[_TRUSTED])
        texts = {name: value for name, value in named.items() if isinstance(value, str)}
        if secrets := Properties(texts).secrets():
            raise KmsConfigurationError(
                f"the storage option {secrets[0]!r} is a secret, and storage options are stored "
                "and sent to other processes: let each process find its own credentials (a file, "
                "the environment, its identity)"
            )
        for name in named:
            if name not in _NAMES and not name.startswith(settings.PROPERTY_PREFIXES):
                raise ValueError(_unknown(name, named[name]))
            if name not in texts:
                raise KmsConfigurationError(f"the storage option {name!r} is not text: give a str")
        self._layer = settings.from_options(texts)
        self.ledger = texts.get(_LEDGER)
        self._texts = texts
        listed = texts.get(_TRUSTED, "").split(",")
        self._trusted = frozenset(name.strip() for name in listed if name.strip())
        if not self._trusted and texts.get("key"):
            self._trusted = frozenset({texts["key"]})

    def key_source(self) -> LedgerSidecars | None:
        """Return what finds keys in the ledger, None if none is named. Raises ValueError if it
        cannot be loaded, and OSError."""
        if self.ledger is None:
            return None
        try:
            from ..ledger.lookup import LedgerSidecars  # needs pyarrow, which is optional
        except ImportError as error:
            raise ValueError(
                f"the storage option {_LEDGER!r} cannot be used ({error}): pip install pyarrow"
            ) from None
        return LedgerSidecars(self.ledger)

    def keychain(self, *, sealing: bool = False) -> Keychain:
        """Return this process's keychain. Raises KmsError, and KmsConfigurationError if a master
        key has to be named: for ``sealing``, or because with this KMS a sidecar may name another
        user's key."""
        chosen = settings.of_process(self._layer)
        if sealing and not chosen.key_id:
            check_type(chosen.properties)
            raise KmsConfigurationError(
                f"no master key of {chosen.kms_name} is named: give the storage option 'key', "
                "AGS1_KMS_KEY, or key in the configuration"
            )
        identity = (tuple(sorted(chosen.properties.items())), chosen.key_id or "", self._trusted)
        chains = _keychains.get()
        return chains.get(identity) or chains.setdefault(identity, self._make(chosen))

    def _make(self, chosen: settings.Settings) -> Keychain:
        kms = from_properties(dict(chosen.properties))
        trusted: frozenset[str] | None = self._trusted or None
        if trusted is None and accepts_foreign_keys(kms):
            if not chosen.key_id:
                raise KmsConfigurationError(
                    f"with {chosen.kms_name}, a sidecar may name another user's master key: name "
                    "those to accept with the storage option 'trusted_keys' or 'key', or with "
                    "AGS1_KMS_KEY"
                )
            trusted = frozenset({chosen.key_id})
        return Keychain(kms, chosen.key_id or "", trusted_key_ids=trusted)


def _unknown(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            f"the storage option {name!r} is not known to ags1: give fsspec.filesystem the options "
            f"of the file system below as target_options={{...}}, with target_protocol={name!r}. "
            f"Beside a URL, {name!r} goes with ags1::{name}://..."
        )
    near = difflib.get_close_matches(name, _NAMES, 1)
    if near:
        return f"the storage option {name!r} is not known: did you mean {near[0]!r}?"
    return (
        f"the storage option {name!r} is not known to ags1: give options of the file system below "
        'under the name of its protocol, as in {"s3": {...}}, or as target_options={...}'
    )
