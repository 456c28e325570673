"""The keys of a job: what travels to the executors, and what stays in each process.

Only wrapped keys and a KMS's configuration without secrets are pickled. Each process makes its own
KMS client, under its own identity (environment, files, the machine's role), and unwraps a job's KEK
once: no KMS call a file. The wrapped form is the sidecar's. Knows nothing of Spark.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import KeyMetadataError, KmsConfigurationError
from ..key_metadata import KeyMetadata
from ..keys.cache import KekCache
from ..keys.envelope import EncryptedKey, KeyEncryptionKey, encryption_keys_to_dicts
from ..keys.keychain import FILE_KEY_SIZE
from ..keys.sidecar import Sidecar
from ..kms.client import KmsClient
from ..kms.process import PerProcess
from ..kms.properties import Properties
from ..kms.registry import from_properties


@dataclass(frozen=True, slots=True, init=False)
class KmsConfig:
    """Which KMS is meant, in Iceberg's property names, without anything secret; picklable.

    Raises KmsConfigurationError for properties that hold a secret: what is pickled is sent around
    and stored. A process finds its own credentials.
    """

    properties: tuple[tuple[str, str], ...]

    def __init__(self, properties: Mapping[str, str]) -> None:
        if secrets := Properties(properties).secrets():
            raise KmsConfigurationError(
                f"the property {secrets[0]!r} is secret and does not travel to executors: let "
                "each process find its own credentials (a file, the environment, its identity)"
            )
        object.__setattr__(self, "properties", tuple(sorted(properties.items())))

    def client(self) -> KmsClient:
        """Return this process's client of the KMS, made once. Raises KmsError."""
        return self.keks().kms

    def keks(self) -> KekCache:
        """Return this process's KEKs of the KMS."""
        caches = _caches.get()
        cache = caches.get(self.properties)
        if cache is None:
            made = KekCache(from_properties(dict(self.properties)))
            cache = caches.setdefault(self.properties, made)
        return cache


# What the KEK's own seals are never bound to: those are AES-GCM's.
_HMAC_PURPOSE = b"ags1 ledger plaintext hmac sha256"

# One KMS client and its KEKs for each configuration.
_caches: PerProcess[dict[tuple[tuple[str, str], ...], KekCache]] = PerProcess(dict)


@dataclass(frozen=True, slots=True)
class FileKeys:
    """Wraps the keys of files under a KEK, and unwraps them; picklable.

    ``kek`` is the job's, None where nothing is wrapped. ``trusted_key_ids`` are the master keys
    that wrapped keys may name; None is all that the KMS has (see ``Keychain``).
    """

    kms: KmsConfig
    kek: EncryptedKey | None = None
    trusted_key_ids: frozenset[str] | None = None

    @classmethod
    def for_sealing(cls, kms: KmsConfig, master_key_id: str) -> FileKeys:
        """Make a job's KEK under the master key; one KMS call. Raises KmsError."""
        keks = kms.keks()
        kek = KeyEncryptionKey.generate(keks.kms, master_key_id, key_size=FILE_KEY_SIZE)
        keks.put(kek)
        return cls(kms, kek.entry, trusted(kms, {master_key_id}))

    @classmethod
    def for_opening(cls, kms: KmsConfig, master_key_ids: Collection[str] = ()) -> FileKeys:
        """Return what unwraps keys; only those under ``master_key_ids`` where there are any.

        Raises KmsConfigurationError when they have to be named: a key id may be a stranger's.
        """
        accepted = frozenset(master_key_ids) or None
        if accepted is None and getattr(kms.client(), "accepts_foreign_keys", True):
            raise KmsConfigurationError(
                "with this KMS a wrapped key may name anybody's master key: say which ones to "
                "accept"
            )
        return cls(kms, None, accepted)

    def wrap(self, km: KeyMetadata) -> dict[str, Any]:
        """Return ``km`` wrapped: the document that a sidecar holds. Raises KmsError."""
        sidecar = Sidecar.seal(km, self._kek())
        entries = encryption_keys_to_dicts(sidecar.encryption_keys)
        return {"encryption-keys": entries, "key-id": sidecar.key_id}

    def unwrap(self, wrapped: Mapping[str, Any] | str) -> KeyMetadata:
        """Return what ``wrap`` wrapped, or what a sidecar holds; ``wrapped`` may be the JSON text.

        Raises KeyMetadataError, AuthenticationError, KmsError.
        """
        text = wrapped if isinstance(wrapped, str) else json.dumps(dict(wrapped))
        sidecar = Sidecar.from_bytes(text.encode())
        return sidecar.open(self.unwrap_kek, sidecar.file_keys[0])

    def hmac_key(self) -> bytes:
        """Return the key for HMACs of plaintexts, which is derived from the job's KEK: HMAC-SHA-256
        of a fixed text. Raises KmsError."""
        return self._kek().derived_key(_HMAC_PURPOSE)

    def prepare(self) -> None:
        """Unwrap the job's KEK, so that a KMS that fails does so before any work. Raises
        KmsError."""
        self._kek()

    def _kek(self) -> KeyEncryptionKey:
        if self.kek is None:
            raise ValueError("these keys only open")
        return self.kms.keks().unwrap(self.kek)

    def unwrap_kek(self, entry: EncryptedKey) -> KeyEncryptionKey:
        """Return a KEK, from this process's if it is there. Raises KeyMetadataError for a master
        key that is not accepted, KmsError."""
        accepted = self.trusted_key_ids
        if accepted is not None and entry.encrypted_by_id not in accepted:
            raise KeyMetadataError(
                f"the wrapped key names the master key {entry.encrypted_by_id!r}, which is not "
                "among those to trust"
            )
        return self.kms.keks().unwrap(entry)


def trusted(kms: KmsConfig, master_key_ids: Collection[str]) -> frozenset[str] | None:
    """Return the master keys to accept besides: all, where a key id cannot be a stranger's."""
    if getattr(kms.client(), "accepts_foreign_keys", True):
        return frozenset(master_key_ids)
    return None
