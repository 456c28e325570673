"""Encrypted tables in a Spark job: opened by each process for itself, and keys that travel wrapped.

A table is named by options that hold no secret; the driver and every Python worker open it with
what their own environment and configuration files give: PyIceberg's for the catalog, the command
line's for the KMS. What the driver knows of files besides, their keys, goes to the tasks under a
key of the job, and that one under a key which only the KMS opens. Knows nothing of Spark.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

from pyiceberg.manifest import DataFile
from pyiceberg.typedef import Record

from ..errors import KeyMetadataError, NotEncryptedError
from ..iceberg.catalog import EncryptedCatalog, load_catalog
from ..iceberg.pyiceberg_internals import configured_properties
from ..iceberg.snapshots import ContentFile
from ..iceberg.table import EncryptedTable, open_table
from ..key_metadata import KeyMetadata
from ..keys.cache import KekCache
from ..keys.envelope import KEY_TIMESTAMP, EncryptedKey, KeyEncryptionKey, new_key_id
from ..keys.manager import EncryptionManager, now_ms
from ..kms.registry import KMS_IMPL, KMS_TYPE
from . import options as opt

JOB_KEY_SIZE = 32
# What is sealed for a job opens as nothing else: neither as a manifest list's key nor a sidecar's.
_JOB = b"\0ags1 spark job"
_FILE = b"\0ags1 spark file\0"

_CATALOG_PREFIX = "catalog."
# Of a data file's record: sizes, counts and bounds of columns, which no task needs.
_METRICS = range(6, 12)
_FILE_PATH, _PARTITION = 1, 3


def open_of_options(options: Mapping[str, str]) -> EncryptedTable:
    """Open the table that a reader's or writer's options name.

    ``path`` (what ``load`` and ``save`` are given) is its name in the catalog ``catalog`` or, to
    read, the location of a metadata.json. ``catalog.<property>`` are properties of the catalog or,
    without one, of PyIceberg's FileIO, above PyIceberg's configuration file and environment.
    ``key`` is the master key to expect, ``require-encrypted`` as for ``load_table``,
    ``location-map`` that of a table that was moved, in JSON.

    Raises as ``load_table`` and ``open_table``; NotEncryptedError for a plain table, which Spark's
    own sources read; KmsConfigurationError for an option that is a secret.
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
        raise NotEncryptedError("the table is not encrypted: Spark's own sources read it")
    return table


def catalog_of_options(options: Mapping[str, str]) -> EncryptedCatalog:
    """Open the catalog that the options name, ``catalog`` and ``catalog.<property>`` as above, with
    the KMS of its configuration or else of ``opt.key_settings``. Raises as ``load_catalog``, and
    KmsConfigurationError for an option that is a secret."""
    opt.refuse_secrets(options)
    name = options.get("catalog")
    properties = _catalog_properties(options)
    configured = configured_properties(name, properties)
    if not (configured.get(KMS_TYPE) or configured.get(KMS_IMPL)):
        properties = _with_kms(properties, options)
    return load_catalog(name, **properties)


def _catalog_properties(options: Mapping[str, str]) -> dict[str, str]:
    return {
        key.removeprefix(_CATALOG_PREFIX): text
        for key, text in options.items()
        if key.startswith(_CATALOG_PREFIX)
    }


def _with_kms(properties: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    return {**opt.key_settings(options).properties, **properties}


@functools.lru_cache(maxsize=4)
def table_of_process(job_id: str, options: tuple[tuple[str, str], ...]) -> EncryptedTable:
    """Return the table as this process has opened it for a job, once."""
    return open_of_options(dict(options))


def without_history(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's metadata with its schemas, specs and properties, without its snapshots and
    keys: what a task has to know, however long the table's history is."""
    history = {
        "current-snapshot-id",
        "encryption-keys",
        "metadata-log",
        "partition-statistics",
        "refs",
        "snapshot-log",
        "snapshots",
        "statistics",
    }
    return {name: value for name, value in metadata.items() if name not in history}


@dataclass(frozen=True, slots=True)
class JobKey:
    """The key under which the keys of a job's files travel, itself wrapped.

    ``kek`` is the entry that the KMS unwraps, by the master key ``table_key_id``; ``job`` the job's
    own key under that one, None where the KEK itself is the job's.
    """

    table_key_id: str
    kek: EncryptedKey
    job: EncryptedKey | None = None

    @classmethod
    def under_snapshot_s(
        cls, manager: EncryptionManager, key_id: str
    ) -> tuple[JobKey, KeyEncryptionKey]:
        """Make a job's key under the KEK that a snapshot's ``key_id`` is under.

        The KMS has to unwrap and not to wrap: whoever may read the table can. The KEK seals one
        thing more, however many files the job reads. Raises KmsError, KeyMetadataError.
        """
        entries = {entry.key_id: entry for entry in manager.encryption_keys}
        kek_entry = (
            entries.get(entries[key_id].encrypted_by_id or "") if key_id in entries else None
        )
        if kek_entry is None:
            raise KeyMetadataError(f"the table's encryption keys have no KEK of {key_id!r}")
        kek = manager.cache.unwrap(kek_entry, manager.table_key_id)
        key = KeyMetadata.generate(JOB_KEY_SIZE)
        sealed = kek.wrap_key_metadata(key, purpose=_JOB).encrypted_key_metadata
        stamp = {KEY_TIMESTAMP: str(now_ms())}
        entry = EncryptedKey(new_key_id(), sealed, kek_entry.key_id, stamp)
        made = KeyEncryptionKey(entry, key.encryption_key, made_here=True)
        return cls(manager.table_key_id, kek_entry, entry), made

    @classmethod
    def by_kms(cls, manager: EncryptionManager) -> JobKey:
        """Have the KMS make a job's key under the table's master key. Raises KmsError."""
        kek = KeyEncryptionKey.generate(
            manager.kms, manager.table_key_id, key_size=JOB_KEY_SIZE, timestamp_ms=now_ms()
        )
        return cls(manager.table_key_id, kek.entry)

    def open(self, keks: KekCache) -> KeyEncryptionKey:
        """Return the key; the KMS is asked once an hour and process. Raises KmsError,
        AuthenticationError."""
        kek = keks.unwrap(self.kek, self.table_key_id)
        if self.job is None:
            return kek
        km = kek.unwrap_key_metadata(self.job, purpose=_JOB)
        return KeyEncryptionKey(self.job, km.encryption_key)


def wrap_key(job: KeyEncryptionKey, km: KeyMetadata, file_path: str) -> bytes:
    """Return a file's key sealed for the job, and for no other file."""
    return job.wrap_key_metadata(km, purpose=_FILE + file_path.encode()).encrypted_key_metadata


def unwrap_key(job: KeyEncryptionKey, wrapped: bytes, file_path: str) -> KeyMetadata:
    """Return a file's key. Raises AuthenticationError."""
    entry = EncryptedKey("the key of a file", wrapped, job.entry.key_id)
    return job.unwrap_key_metadata(entry, purpose=_FILE + file_path.encode())


@dataclass(frozen=True, slots=True)
class TravellingFile:
    """A data or delete file as a task gets it: its record without metrics, its key wrapped."""

    record: tuple[Any, ...]
    spec_id: int
    wrapped_key: bytes | None

    @classmethod
    def of(cls, file: DataFile, job: KeyEncryptionKey) -> TravellingFile:
        """Raises KeyMetadataError, MetadataIntegrityError."""
        known = cast("ContentFile", file)
        record = known.record
        record[_PARTITION] = tuple(known.partition[n] for n in range(len(known.partition)))
        for index in _METRICS:
            record[index] = None
        km = known.key
        wrapped = None if km is None else wrap_key(job, km, known.file_path)
        return cls(tuple(record), known.spec_id, wrapped)

    def open(self, job: KeyEncryptionKey) -> ContentFile:
        """Return the file with its key, which does not leave the process. Raises
        AuthenticationError."""
        record = list(self.record)
        record[_PARTITION] = Record(*record[_PARTITION])
        path = record[_FILE_PATH]
        km = None if self.wrapped_key is None else unwrap_key(job, self.wrapped_key, path)
        return ContentFile.of_record(record, self.spec_id, km)


def new_job_id() -> str:
    """Return a job's name: in those of the files that it writes, too."""
    return str(uuid4())
