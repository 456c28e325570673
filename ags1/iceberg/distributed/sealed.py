"""The keys of files, sent to other processes wrapped under a key of the job, and a table's
metadata, sent without its history.

The KMS unwraps the job's key, or the KEK above it, in each process. Independent of what the
processes do with the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pyiceberg.manifest import DataFile

from ...engine.key_metadata import KeyMetadata
from ...errors import KeyMetadataError
from ...keys.cache import KekCache
from ...keys.envelope import KEY_TIMESTAMP, EncryptedKey, KeyEncryptionKey, new_key_id
from ...keys.manager import EncryptionManager, now_ms
from ..read.records import ContentFile

JOB_KEY_SIZE = 32
# With these purposes, what is wrapped for a job cannot be taken for any other wrapped key.
_JOB = b"\0ags1 spark job"
_FILE = b"\0ags1 spark file\0"

# All fields of a record but its key, which is sent wrapped.
SENT_FIELDS = [*(name for name in ContentFile.names if name != "key_metadata"), "spec_id"]
# The fields of a data file's record that a task needs: all but its metrics and its key.
_METRICS = "column_sizes value_counts null_value_counts nan_value_counts lower_bounds upper_bounds"
_SENT = [name for name in SENT_FIELDS if name not in _METRICS.split()]
# Fields of a table's metadata that grow with its history. No task needs them.
_HISTORY = frozenset(
    "current-snapshot-id encryption-keys metadata-log partition-statistics refs snapshot-log "
    "snapshots statistics".split()
)


def without_history(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's metadata without its snapshots and keys: what a task needs, however
    long the table's history is."""
    return {name: value for name, value in metadata.items() if name not in _HISTORY}


@dataclass(frozen=True, slots=True)
class JobKey:
    """The wrapped key of a job, under which the keys of its files are sent. The KMS unwraps ``kek``
    by the master key ``table_key_id``. ``job`` is the job's key under that KEK; None if the KEK
    itself is the job's key."""

    table_key_id: str
    kek: EncryptedKey
    job: EncryptedKey | None = None

    @classmethod
    def under_kek_of(
        cls, manager: EncryptionManager, key_id: str
    ) -> tuple[JobKey, KeyEncryptionKey]:
        """Make a job's key under the KEK that wraps the key ``key_id`` of a snapshot. The KMS has
        to unwrap, but not to wrap, so the right to read the table is enough. The KEK wraps one key
        more, however many files the job reads. Raises KmsError, KeyMetadataError."""
        entries = {entry.key_id: entry for entry in manager.encryption_keys}
        wrapped = entries.get(key_id)
        kek_entry = wrapped and entries.get(wrapped.encrypted_by_id or "")
        if kek_entry is None:
            raise KeyMetadataError(f"the table's metadata has no KEK for {key_id!r}: it is damaged")
        kek = manager.cache.unwrap(kek_entry, manager.table_key_id)
        key = KeyMetadata.generate(JOB_KEY_SIZE)
        sealed = kek.wrap_key_metadata(key, purpose=_JOB).encrypted_key_metadata
        stamp = {KEY_TIMESTAMP: str(now_ms())}
        entry = EncryptedKey(new_key_id(), sealed, kek_entry.key_id, stamp)
        made = KeyEncryptionKey(entry, key.encryption_key, made_here=True)
        return cls(manager.table_key_id, kek_entry, entry), made

    @classmethod
    def by_kms(cls, manager: EncryptionManager) -> JobKey:
        """Make a job's key, wrapped by the KMS with the table's master key. Raises KmsError."""
        kek = KeyEncryptionKey.generate(
            manager.kms, manager.table_key_id, key_size=JOB_KEY_SIZE, timestamp_ms=now_ms()
        )
        return cls(manager.table_key_id, kek.entry)

    def open(self, keks: KekCache) -> KeyEncryptionKey:
        """Unwrap the key. A process calls the KMS once an hour. Raises KmsError,
        AuthenticationError."""
        kek = keks.unwrap(self.kek, self.table_key_id)
        if self.job is None:
            return kek
        key_metadata = kek.unwrap_key_metadata(self.job, purpose=_JOB)
        return KeyEncryptionKey(self.job, key_metadata.encryption_key)


def wrap_key(job: KeyEncryptionKey, key_metadata: KeyMetadata, file_path: str) -> bytes:
    """Wrap a file's key for the job. It cannot be unwrapped for another file's path."""
    return job.wrap_key_metadata(
        key_metadata, purpose=_FILE + file_path.encode()
    ).encrypted_key_metadata


def unwrap_key(job: KeyEncryptionKey, wrapped: bytes, file_path: str) -> KeyMetadata:
    """Unwrap a file's key. Raises AuthenticationError."""
    entry = EncryptedKey("the key of a file", wrapped, job.entry.key_id)
    return job.unwrap_key_metadata(entry, purpose=_FILE + file_path.encode())


@dataclass(frozen=True, slots=True)
class SentRecord:
    """Some fields of a file's record, and its wrapped key, to be sent to or from a task."""

    fields: dict[str, Any]
    wrapped_key: bytes | None

    @classmethod
    def of(cls, record: ContentFile, names: Iterable[str], job: KeyEncryptionKey) -> SentRecord:
        """Raises KeyMetadataError."""
        key_metadata = record.key
        wrapped = None if key_metadata is None else wrap_key(job, key_metadata, record.file_path)
        fields = record.fields()
        return cls({name: fields[name] for name in names}, wrapped)

    @classmethod
    def of_new(cls, record: ContentFile, names: Iterable[str], job: KeyEncryptionKey) -> SentRecord:
        """The record of a file that a task has written, which always has a key."""
        assert record.is_encrypted
        return cls.of(record, names, job)

    @property
    def path(self) -> str:
        return str(self.fields["file_path"])

    def fields_with_key(self, job: KeyEncryptionKey) -> dict[str, Any]:
        """Return the fields and ``key_metadata``. Raises AuthenticationError."""
        wrapped = self.wrapped_key
        key_metadata = None if wrapped is None else unwrap_key(job, wrapped, self.path)
        return {
            **self.fields,
            "key_metadata": None if key_metadata is None else key_metadata.encoded(),
        }


@dataclass(frozen=True, slots=True)
class SentFile:
    """A data or delete file for a task: its record without metrics, with its wrapped key."""

    record: SentRecord
    sequence_number: int | None

    @classmethod
    def of(cls, file: DataFile, job: KeyEncryptionKey) -> SentFile:
        """Raises KeyMetadataError, MetadataIntegrityError."""
        known = cast("ContentFile", file)
        return cls(SentRecord.of(known, _SENT, job), known.sequence_number)

    def open(self, job: KeyEncryptionKey) -> ContentFile:
        """Return the file with its key, which does not leave this process. Raises
        AuthenticationError."""
        file = ContentFile.of(**self.record.fields_with_key(job))
        file.sequence_number = self.sequence_number
        return file
