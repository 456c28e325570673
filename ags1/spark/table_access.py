"""Encrypted tables in a Spark job: each process opens them for itself, and keys are sent wrapped.

A table is named by options without secrets. The driver and every Python worker open it with their
own environment and configuration files: PyIceberg's for the catalog, the command line's for the
KMS. The driver sends the keys of files to tasks wrapped under a key of the job, and that key
wrapped under a KEK that only the KMS unwraps. Knows nothing of Spark.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

from pyiceberg.manifest import DataFile

from ..errors import KeyMetadataError, NotEncryptedError
from ..key_metadata import KeyMetadata
from ..keys.cache import KekCache
from ..keys.envelope import KEY_TIMESTAMP, EncryptedKey, KeyEncryptionKey, new_key_id
from ..keys.manager import EncryptionManager, now_ms
from ..kms.registry import names_kms
from . import options as opt
from .iceberg_api import (
    ContentFile,
    EncryptedCatalog,
    EncryptedTable,
    configured_properties,
    load_catalog,
    open_table,
)

JOB_KEY_SIZE = 32
# With these purposes, what is wrapped for a job cannot be taken for any other wrapped key.
_JOB = b"\0ags1 spark job"
_FILE = b"\0ags1 spark file\0"

# All fields of a record but its key, which is sent wrapped.
SENT_FIELDS = [*(name for name in ContentFile.names if name != "key_metadata"), "spec_id"]

_CATALOG_PREFIX = "catalog."
# The fields of a data file's record that a task needs: all but its metrics and its key.
_METRICS = "column_sizes value_counts null_value_counts nan_value_counts lower_bounds upper_bounds"
_SENT = [*(n for n in ContentFile.names if n not in ("key_metadata", *_METRICS.split())), "spec_id"]
# Fields of a table's metadata that grow with its history. No task needs them.
_HISTORY = frozenset(
    "current-snapshot-id encryption-keys metadata-log partition-statistics refs snapshot-log "
    "snapshots statistics".split()
)


def open_of_options(options: Mapping[str, str]) -> EncryptedTable:
    """Open the table that a reader's or writer's options name.

    ``path`` (the argument of ``load`` and ``save``) is its name in the catalog ``catalog`` or, to
    read, the location of a metadata.json. ``catalog.<property>`` are properties of the catalog or,
    without a catalog, of PyIceberg's FileIO; they come before PyIceberg's configuration file and
    environment. ``key`` is the master key to expect, ``require-encrypted`` is as for
    ``load_table``, and ``location-map`` is that of a table that was moved, in JSON.

    Raises as ``load_table`` and ``open_table``; NotEncryptedError for a table that is not
    encrypted; KmsConfigurationError for an option that is a secret.
    """
    opt.refuse_secrets(options)
    name = options.get("path")
    if not name:
        raise ValueError("no table is named: load('database.table') or load('….metadata.json')")
    more: dict[str, Any] = {
        "expected_key_id": options.get("key") or None,
        "location_map": json.loads(options.get("location-map") or "{}"),
    }
    if options.get("require-encrypted"):
        more["require_encrypted"] = opt.flag(options, "require-encrypted")
    if name.endswith((".metadata.json", ".metadata.json.gz")):
        properties = _catalog_properties(options)
        kms = _with_kms(properties, options)
        table = open_table(name, kms, properties=properties, **more)
    else:
        table = catalog_of_options(options).load_table(name, **more)
    if not isinstance(table, EncryptedTable):
        raise NotEncryptedError("the table is not encrypted: read it with Spark's own sources")
    return table


def catalog_of_options(options: Mapping[str, str]) -> EncryptedCatalog:
    """Open the catalog that the options ``catalog`` and ``catalog.<property>`` name, with the KMS
    of its configuration or else that of ``opt.key_settings``. Raises as ``load_catalog``, and
    KmsConfigurationError for an option that is a secret."""
    opt.refuse_secrets(options)
    name = options.get("catalog")
    properties = _catalog_properties(options)
    configured = configured_properties(name, properties)
    if not names_kms(configured):
        properties = _with_kms(properties, options)
    return load_catalog(name, **properties)


def _catalog_properties(options: Mapping[str, str]) -> dict[str, str]:
    ours = (name for name in options if name.startswith(_CATALOG_PREFIX))
    return {name.removeprefix(_CATALOG_PREFIX): options[name] for name in ours}


def _with_kms(properties: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    return {**opt.key_settings(options).properties, **properties}


@functools.lru_cache(maxsize=4)
def table_of_process(job_id: str, options: tuple[tuple[str, str], ...]) -> EncryptedTable:
    """Return the table, which this process opens once for a job."""
    return open_of_options(dict(options))


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
        km = kek.unwrap_key_metadata(self.job, purpose=_JOB)
        return KeyEncryptionKey(self.job, km.encryption_key)


def wrap_key(job: KeyEncryptionKey, km: KeyMetadata, file_path: str) -> bytes:
    """Wrap a file's key for the job. It cannot be unwrapped for another file's path."""
    return job.wrap_key_metadata(km, purpose=_FILE + file_path.encode()).encrypted_key_metadata


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
        km = record.key
        wrapped = None if km is None else wrap_key(job, km, record.file_path)
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
        km = None if wrapped is None else unwrap_key(job, wrapped, self.path)
        return {**self.fields, "key_metadata": None if km is None else km.to_bytes()}


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


def new_job_id() -> str:
    """Return a new name for a job. The names of the files that it writes contain it."""
    return str(uuid4())
