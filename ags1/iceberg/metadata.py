"""A table's metadata.json: its bytes, whether they are trusted, what PyIceberg makes of them.

PyIceberg's parsing drops ``encryption-keys`` and the snapshots' ``key-id``, so the JSON is read
here and both are taken from one parse. The file lies where others may write; what is known of it
from a better place (the caller, the catalog) is a ``Trust``. Knows nothing of keys in the clear.
Follows the Iceberg specification and, for Hive's hash, Java's ``HiveTableOperations``.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import pyiceberg
from pyiceberg.exceptions import ValidationError as PyIcebergValidationError
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.types import NestedField

from ..errors import MetadataIntegrityError, NotEncryptedError
from ..keys.manager import DATA_KEY_LENGTH, DEFAULT_DATA_KEY_LENGTH, TABLE_KEY_ID
from .java_json import java_print
from .snapshots import EncryptedSnapshot

FORMAT_VERSION = 3
MAX_METADATA_SIZE = 256 << 20


@dataclass(frozen=True, slots=True)
class Trust:
    """What is known of a table's metadata from a better place than the file itself.

    ``key_id`` is the table's master key; ``metadata_sha256`` the SHA-256 of the file's bytes, in
    hex; ``java_hash`` and ``data_key_length`` Hive's ``metadata_hash`` and
    ``encryption.data-key-length``. None where nothing is known. ``is_server_s``: the metadata is a
    REST server's answer, and no file's.
    """

    key_id: str | None = None
    metadata_sha256: str | None = None
    java_hash: str | None = None
    data_key_length: str | None = None
    is_server_s: bool = False


def read_metadata(io: FileIO, location: str, trust: Trust) -> dict[str, Any]:
    """Return the metadata.json at ``location``, parsed, once its bytes have been checked.

    Raises MetadataIntegrityError when they are not what ``trust`` says, or no metadata.
    """
    with io.new_input(location).open() as stream:
        stored = stream.read(MAX_METADATA_SIZE + 1)
    _check_size(stored, location)
    if trust.metadata_sha256 is not None:
        digest = hashlib.sha256(stored).hexdigest()
        if digest != trust.metadata_sha256.lower():
            raise MetadataIntegrityError(
                f"the metadata's SHA-256 is {digest}, and {trust.metadata_sha256} was expected: "
                "the file was changed or is of another version",
                file=location,
            )
    try:
        text = _decompressed(stored, location) if _is_compressed(location) else stored
        metadata = json.loads(text)
    except MetadataIntegrityError:
        raise
    except (ValueError, RecursionError, zlib.error):
        raise MetadataIntegrityError("the metadata is not JSON", file=location) from None
    if not _has_the_form(metadata):
        raise MetadataIntegrityError("the JSON is not a table's metadata", file=location)
    if trust.java_hash is not None and trust.java_hash not in _java_hashes(text, metadata):
        raise MetadataIntegrityError(
            "the metadata does not have the hash that the Hive metastore keeps of it "
            "(metadata_hash): it was changed outside the catalog",
            file=location,
        )
    return metadata


def table_key_id(metadata: Mapping[str, Any], trust: Trust, location: str) -> str | None:
    """Return the id of the table's master key, None for a table that is not encrypted.

    Raises NotEncryptedError when it should be, and MetadataIntegrityError when the metadata names
    another key than ``trust``, or has keys that no master key could open.
    """
    properties = metadata.get("properties") or {}
    stated = properties.get(TABLE_KEY_ID)
    if not stated:
        if trust.key_id is not None:
            raise NotEncryptedError(
                f"the metadata has no {TABLE_KEY_ID!r}, and {trust.key_id!r} was expected: "
                "the table was replaced or its encryption stripped",
                file=location,
            )
        if metadata.get("encryption-keys") or any(
            snapshot.get("key-id") for snapshot in metadata.get("snapshots") or ()
        ):
            raise NotEncryptedError(
                f"the metadata has encryption keys and no {TABLE_KEY_ID!r}: it was stripped",
                file=location,
            )
        return None
    if trust.key_id is not None and stated != trust.key_id:
        raise MetadataIntegrityError(
            f"the metadata names {stated!r} as the table's key, and {trust.key_id!r} was expected",
            file=location,
        )
    length = str(properties.get(DATA_KEY_LENGTH, DEFAULT_DATA_KEY_LENGTH))
    if trust.data_key_length not in (None, length):
        raise MetadataIntegrityError(
            f"the metadata has data keys of {length} bytes, and the catalog of "
            f"{trust.data_key_length}",
            file=location,
        )
    version = metadata.get("format-version")
    if version != FORMAT_VERSION:
        raise MetadataIntegrityError(
            f"the metadata has {TABLE_KEY_ID!r} and format version {version}: "
            f"only version {FORMAT_VERSION} can be encrypted",
            file=location,
        )
    return str(stated)


def parse_metadata(metadata: dict[str, Any]) -> TableMetadata:
    """Return PyIceberg's metadata of an encrypted table, with snapshots that know their key.

    Raises NotImplementedError for a column's type that PyIceberg does not know, and
    MetadataIntegrityError when it is malformed.
    """
    try:
        parsed = TableMetadataUtil.parse_obj(metadata)
        snapshots = [EncryptedSnapshot.model_validate(s) for s in metadata.get("snapshots") or ()]
    except (ValueError, TypeError, KeyError, PyIcebergValidationError) as error:
        for name, kind in _columns(metadata.get("schemas")):
            if not _is_known(kind):
                raise NotImplementedError(
                    f"column {name!r} has type {kind!r}, which PyIceberg {pyiceberg.__version__} "
                    "cannot read"
                ) from None
        raise MetadataIntegrityError(
            f"the table's metadata is malformed: {str(error).splitlines()[0]}"
        ) from error
    _check_refs(metadata)
    return parsed.model_copy(update={"snapshots": snapshots})


def _check_refs(metadata: Mapping[str, Any]) -> None:
    """Raise MetadataIntegrityError when a branch or tag is of no snapshot, or main is not the
    current one: who reads would see another table than who writes."""
    ids = [snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or ()]
    if len(set(ids)) != len(ids):
        raise MetadataIntegrityError("two of the table's snapshots have one id")
    current = metadata.get("current-snapshot-id")
    heads = {name: ref["snapshot-id"] for name, ref in (metadata.get("refs") or {}).items()}
    current = None if current == -1 else current
    if "main" in heads and heads["main"] != current:
        raise MetadataIntegrityError("the main branch is not at the table's current snapshot")
    for name, head in [*heads.items(), ("main", current)]:
        if head is not None and head not in ids:
            raise MetadataIntegrityError(f"{name!r} is at a snapshot that the table has not")


def _columns(schemas: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and type of what has a primitive type in schemas' JSON, well-formed or not."""
    waiting: list[tuple[str, Any]] = [("", schemas)]
    while waiting:
        name, found = waiting.pop()
        if isinstance(found, list):
            waiting += ((name, item) for item in reversed(found))
        elif isinstance(found, dict):
            inside = ".".join(filter(None, (name, str(found.get("name", "")))))
            for key in ("fields", "type", "element", "key", "value"):
                part = found.get(key)
                if isinstance(part, str) and part not in ("struct", "list", "map"):
                    yield inside, part
                else:
                    waiting.append((inside, part))


def _is_known(kind: str) -> bool:
    try:
        NestedField(field_id=1, name="x", field_type=kind, required=False)
    except (ValueError, PyIcebergValidationError):
        return False
    return True


def _has_the_form(metadata: object) -> TypeGuard[dict[str, Any]]:
    """Whether parsed JSON has the form of a table's metadata, as far as is looked at here."""
    if not isinstance(metadata, dict):
        return False
    properties = metadata.get("properties") or {}
    lists = [metadata.get(name) or [] for name in ("snapshots", "encryption-keys")]
    if not isinstance(properties, dict) or not all(map(_is_string, properties.values())):
        return False
    return all(
        isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
        for entries in lists
    )


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_compressed(location: str) -> bool:
    return location.endswith(".gz.metadata.json")


def _decompressed(stored: bytes, location: str) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    text = decompressor.decompress(stored, MAX_METADATA_SIZE + 1)
    _check_size(text, location)
    if not decompressor.eof:
        raise ValueError("the compressed data is cut")
    return text


def _check_size(text: bytes, location: str) -> None:
    if len(text) > MAX_METADATA_SIZE:
        raise MetadataIntegrityError(
            f"the metadata is larger than {MAX_METADATA_SIZE >> 20} MiB", file=location
        )


def _java_hashes(text: bytes, metadata: dict[str, Any]) -> list[str]:
    """Return the hashes that Java can have given the metadata: it parses the file and prints what
    it knows of it, compact, which for a file of its own is the file."""
    prints = [text, _compact(metadata)]
    # What Java cannot have printed has no hash of Java's.
    with contextlib.suppress(ValueError, RecursionError):
        prints.append(java_print(metadata, known_only=True))
    return [base64.b64encode(hashlib.sha256(p).digest()).decode() for p in prints]


def _compact(metadata: dict[str, Any]) -> bytes:
    return json.dumps(metadata, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
