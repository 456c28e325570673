"""The keys of a job: what is sent to executors, and what stays in each process.

Only wrapped keys and a KMS's configuration without secrets are pickled. Each process makes its own
KMS client with its own identity (environment, files, the machine's role), and unwraps a job's KEK
once, so that no file costs a KMS call. A wrapped key has the form of a sidecar. Independent of
Spark.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..engine.key_metadata import KeyMetadata
from ..errors import KMS_UNUSABLE, Ags1Error, KmsConfigurationError, NoKeyError
from ..host.process import OncePerProcess
from ..keys.cache import KekCache
from ..keys.envelope import EncryptedKey, KeyEncryptionKey
from ..keys.keychain import FILE_KEY_SIZE, check_trust, default_trust, unwrap_trusted
from ..keys.sidecar import Sidecar
from ..kms.client import KmsClient, accepts_foreign_keys
from ..kms.properties import Properties
from ..kms.registry import from_properties


@dataclass(frozen=True, slots=True, init=False)
class KmsConfig:
    """The configuration of a KMS, under Iceberg's property names; picklable. Raises
    KmsConfigurationError for a property that is a secret, because pickles are sent over the network
    and stored. Each process finds its own credentials."""

    properties: tuple[tuple[str, str], ...]

    def __init__(self, properties: Mapping[str, str]) -> None:
        if secrets := Properties(properties).secrets():
            raise KmsConfigurationError(
                f"the property {secrets[0]!r} is a secret, which is not sent to executors: let "
                "each process find its own credentials (a file, the environment, its identity)"
            )
        object.__setattr__(self, "properties", tuple(sorted(properties.items())))

    def client(self) -> KmsClient:
        """Return the KMS client of this process, which is made once. Raises KmsError."""
        return self.keks().kms

    def keks(self) -> KekCache:
        """Return the KEKs that this process has unwrapped with the KMS."""
        caches = _caches.get()
        return caches.get(self.properties) or caches.setdefault(
            self.properties, KekCache(from_properties(dict(self.properties)))
        )


# One KMS client and its KEKs for each configuration.
_caches: OncePerProcess[dict[tuple[tuple[str, str], ...], KekCache]] = OncePerProcess(dict)


@dataclass(frozen=True, slots=True)
class FileKeys:
    """Wraps the keys of files under a KEK, and unwraps them; picklable. ``kek`` is the job's, None
    if nothing is wrapped. ``trusted_key_ids`` are the master keys to unwrap with; None accepts all
    that the KMS has (see ``Keychain``)."""

    kms: KmsConfig
    kek: EncryptedKey | None = None
    trusted_key_ids: frozenset[str] | None = None

    @classmethod
    def for_sealing(cls, kms: KmsConfig, master_key_id: str) -> FileKeys:
        """Make a job's KEK under the master key with one KMS call. Raises KmsError."""
        keks = kms.keks()
        kek = KeyEncryptionKey.generate(keks.kms, master_key_id, key_size=FILE_KEY_SIZE)
        keks.put(kek)
        return cls(kms, kek.entry, default_trust(keks.kms, {master_key_id}))

    @classmethod
    def for_opening(cls, kms: KmsConfig, master_key_ids: Collection[str] = ()) -> FileKeys:
        """Return what unwraps keys, only those under ``master_key_ids`` if any are given. Raises
        KmsConfigurationError if they have to be given: with some KMSs a wrapped key may name
        another user's master key."""
        accepted = frozenset(master_key_ids) or None
        if accepted is None and accepts_foreign_keys(kms.client()):
            raise KmsConfigurationError(
                "with this KMS a wrapped key may name another user's master key: name those to "
                "accept (--key, key_ids=, or the option 'trusted_keys')"
            )
        return cls(kms, None, accepted)

    def wrap(self, key_metadata: KeyMetadata, nonce: bytes | None = None) -> dict[str, Any]:
        """Wrap ``km``: return the document that a sidecar holds. ``nonce`` is that of the file's
        first block, if it is known. Raises KmsError."""
        return Sidecar.seal(key_metadata, self._kek(), nonce).to_dict()

    def unwrap(self, wrapped: Mapping[str, Any] | str, nonce: bytes | None = None) -> KeyMetadata:
        """Return the key that ``wrap`` wrapped, or that a sidecar holds. ``wrapped`` may be JSON.
        ``nonce`` is that of the file's first block, if there is a file. Raises NoKeyError if the
        key is another file's, KeyMetadataError, AuthenticationError, KmsError."""
        text = wrapped if isinstance(wrapped, str) else json.dumps(dict(wrapped))
        sidecar = Sidecar.from_bytes(text.encode())
        keys = sidecar.keys_for(nonce) if nonce else sidecar.file_keys
        if not keys:
            raise NoKeyError(
                "the key in the ledger is not that of this file: the file was replaced, moved or "
                "put back"
            )
        return sidecar.open(self.unwrap_kek, keys[0])

    def check(self, documents: Iterable[str]) -> None:
        """Check that the KEK of one of these wrapped keys, at least, can be unwrapped; that is one
        KMS call, unless it fails. If none can, the cause is no single file's: raises the first
        error, one of KeyMetadataError, AuthenticationError, KmsError."""
        first_error: Ags1Error | None = None
        tried: set[tuple[str, bytes, str | None]] = set()
        for document in documents:
            try:
                sidecar = Sidecar.from_bytes(document.encode())
                entry = sidecar.kek_entry(sidecar.file_keys[0])
                known = (entry.key_id, entry.encrypted_key_metadata, entry.encrypted_by_id)
                if known in tried:
                    continue
                tried.add(known)
                sidecar.unwrap_kek(self.unwrap_kek, entry.key_id)
            except KMS_UNUSABLE:
                raise
            except Ags1Error as error:
                first_error = first_error or error
            else:
                return
        if first_error is not None:
            raise first_error

    def prepare(self) -> None:
        """Unwrap the job's KEK, so that a KMS that fails does so before any work begins. Raises
        KmsError."""
        self._kek()

    def _kek(self) -> KeyEncryptionKey:
        if self.kek is None:
            raise ValueError("these keys can only unwrap")
        return self.kms.keks().unwrap(self.kek)

    def unwrap_kek(self, entry: EncryptedKey) -> KeyEncryptionKey:
        """Unwrap a KEK, or return it if this process has unwrapped it already. Raises
        KeyMetadataError for a master key that is not accepted, KmsError."""
        return unwrap_trusted(self.kms.keks(), entry, self.trusted_key_ids)

    def check_trust(self, entry: EncryptedKey) -> None:
        """Raise KeyMetadataError if the master key that ``entry`` names is not accepted."""
        check_trust(entry, self.trusted_key_ids)


def as_text(document: Mapping[str, Any]) -> str:
    """Return the document of a wrapped key in the form of tasks and of the ledger."""
    return json.dumps(document, separators=(",", ":"))
