"""``Trust``: what the caller or the catalog knows of a table, independent of the table's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.typedef import Properties

from ...errors import MetadataIntegrityError
from ...keys.manager import DATA_KEY_LENGTH, TABLE_KEY_ID

# Parameters of a table in a Hive metastore, in AWS Glue and in DynamoDB.
METADATA_LOCATION = "metadata_location"
PREVIOUS_METADATA_LOCATION = "previous_metadata_location"
METADATA_HASH = "metadata_hash"
# Ours: the SHA-256 of the metadata.json, which SQL catalogs keep instead of that hash.
METADATA_SHA256 = "ags1.metadata-sha256"
# Ours: the metadata that the hash is of. Other writers replace the location and leave the hash.
HASH_LOCATION = "ags1.metadata-hash-location"
# Instead of that location: the hash is of metadata with a folder that nobody has confirmed.
UNCONFIRMED = "unconfirmed"
TABLE_TYPE = "table_type"
ICEBERG = "iceberg"
# Not a parameter that is stored: the table's folder in the entry of Hive or Glue.
TABLE_LOCATION = "ags1.table-location"


@dataclass(frozen=True, slots=True)
class Trust:
    """What the caller or the catalog knows of a table's metadata. None means unknown.

    ``key_id`` is the table's master key. ``metadata_sha256`` is the SHA-256 of the file's bytes, in
    hex, that the caller expects; ``pinned_sha256`` is the one that a SQL catalog keeps.
    ``java_hash`` and ``data_key_length`` are the parameters ``metadata_hash`` and
    ``encryption.data-key-length`` in Hive, Glue or DynamoDB. ``table_location`` is the table's
    folder in Hive or Glue. If ``is_from_server`` is true, the metadata is a REST server's answer
    and not that of a file.
    """

    key_id: str | None = None
    metadata_sha256: str | None = None
    java_hash: str | None = None
    pinned_sha256: str | None = None
    data_key_length: str | None = None
    table_location: str | None = None
    is_from_server: bool = False

    @property
    def has_hash(self) -> bool:
        """Whether a hash confirms the whole metadata."""
        return bool(self.metadata_sha256 or self.java_hash or self.pinned_sha256)

    @property
    def confirms_metadata(self) -> bool:
        """Whether a hash or a REST server confirms the whole metadata. Otherwise somebody who can
        write to the storage may have changed it."""
        return self.is_from_server or self.has_hash


@dataclass(frozen=True, slots=True)
class Pins:
    """What a catalog keeps of a table to confirm its metadata.json: the ID of the master key, and
    the location of the metadata.json that it has a hash of. Each is None if it is not kept."""

    key_id: str | None
    metadata_location: str | None

    @classmethod
    def of(cls, parameters: Properties, location: str) -> Pins:
        """Return what the catalog's parameters of the table at ``location`` say."""
        hash_of: str | None = parameters.get(HASH_LOCATION, location)
        has_hash = METADATA_HASH in parameters or METADATA_SHA256 in parameters
        known = has_hash and hash_of != UNCONFIRMED
        return cls(parameters.get(TABLE_KEY_ID), hash_of if known else None)


def rest_trust(trust: Trust, metadata: Mapping[str, Any]) -> Trust:
    """Add what a REST server's answer says of a table. The server is the table's catalog, so it may
    name the key. A hash is of the file, and not of a server's answer."""
    if trust.metadata_sha256 is not None:
        return trust
    stated = (metadata.get("properties") or {}).get(TABLE_KEY_ID)
    return replace(trust, key_id=trust.key_id or stated or None, is_from_server=True)


def parameters_trust(trust: Trust, parameters: Properties) -> Trust:
    """Add what a catalog's parameters of a table say: those of a Hive metastore, of AWS Glue or of
    DynamoDB, or the pins of a SQL catalog. Raises MetadataIntegrityError if that contradicts what
    the caller expects."""
    key_id = parameters.get(TABLE_KEY_ID)
    if None not in (key_id, trust.key_id) and key_id != trust.key_id:
        raise MetadataIntegrityError(
            f"the catalog has {key_id!r} as the table's key, but {trust.key_id!r} was expected"
        )
    java_hash, sha256 = parameters.get(METADATA_HASH), parameters.get(METADATA_SHA256)
    location = parameters.get(METADATA_LOCATION)
    if parameters.get(HASH_LOCATION, location) != location:
        # A writer that does not know the hash has committed since.
        java_hash = sha256 = None
    # The hash covers the whole metadata. Without one, Java compares the two properties.
    length = None if java_hash else parameters.get(DATA_KEY_LENGTH)
    return Trust(
        trust.key_id or key_id,
        trust.metadata_sha256,
        java_hash,
        sha256,
        length,
        None if java_hash else parameters.get(TABLE_LOCATION) or None,
    )
