"""Reads a table's metadata.json, checks it, and parses it with PyIceberg.

The file is not encrypted, and others may be able to write to the storage. So each statement of it
that decides about keys is compared with ``Trust``, which is what the caller or the catalog knows::

    statement of metadata.json       compared with, if that is known           in
    the whole file                   the SHA-256 of its bytes, which the       read_metadata
                                     caller or a SQL catalog knows
    the whole content                the hash in Hive, Glue or DynamoDB        read_metadata
    the table's master key           the key ID                                table_key_id
    "the table is not encrypted"     the key ID; keys left in the metadata     table_key_id
    the length of data keys          the length in Hive, Glue or DynamoDB      table_key_id
    the table's folder               the folder in Hive or Glue                table_key_id
    the branches and snapshots       each other                                parse_metadata
    which manifest list is whose     the header of the manifest list           snapshots

PyIceberg's parser drops ``encryption-keys`` and the ``key-id`` of snapshots. So the JSON is parsed
here once, for both. No plaintext keys are handled here. This follows the Iceberg specification and,
for Hive's hash, Java's ``HiveTableOperations``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pyiceberg.exceptions import ValidationError as PyIcebergValidationError
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from ...errors import MetadataIntegrityError, NotEncryptedError
from ...host import strict_json
from ...keys.manager import DATA_KEY_LENGTH, DEFAULT_DATA_KEY_LENGTH, TABLE_KEY_ID
from ..spec.constants import FORMAT_VERSION, MAIN_BRANCH
from ..spec.java_json import in_java_order, java_print, metadata_hash
from ..spec.parsable import parsable, parsable_snapshot, without_nulls
from ..storage.locations import leads_up, may_be_one_folder, new_input
from ..storage.trust import Trust
from .snapshots import EncryptedSnapshot

_Model = TypeVar("_Model", bound=BaseModel)

MAX_METADATA_SIZE = 256 << 20
# How large compressed metadata may become. Real metadata grows 10 to 25 times; parsed, it takes
# about 20 times the memory of its text.
_FREE_SIZE, _MAX_GROWTH = 4 << 20, 64
_PIECE_SIZE = 4 << 10
# How the names of files that are compressed with gzip end. Java wrote the second until 2018.
COMPRESSED = (".gz.metadata.json", ".metadata.json.gz")
_GZIP = b"\x1f\x8b"


class _Snapshots(BaseModel):
    snapshots: list[EncryptedSnapshot]


def read_metadata(io: FileIO, location: str, trust: Trust) -> dict[str, Any]:
    """Return the parsed metadata.json at ``location``, after its hashes are checked. Raises
    MetadataIntegrityError if they contradict ``trust``, or if the file is not metadata."""
    with new_input(io, location).open() as stream:
        stored = stream.read(MAX_METADATA_SIZE + 1)
    _check_size(stored, location)
    _check_sha256(stored, trust, location)
    try:
        text = _decompressed(stored, location) if location.endswith(COMPRESSED) else stored
        metadata = _parse(text)
    except MetadataIntegrityError:
        raise
    except zlib.error:
        raise MetadataIntegrityError("the metadata is not JSON", file=location) from None
    except ValueError as error:
        raise MetadataIntegrityError(f"the metadata {error}", file=location) from None
    if not isinstance(metadata, dict):
        raise MetadataIntegrityError("the JSON is not a table's metadata", file=location)
    for field in _wrong_fields(metadata):
        raise MetadataIntegrityError(f"{field} of the metadata has a wrong type", file=location)
    _check_java_hash(text, metadata, trust, location)
    return without_nulls(metadata)


# Most of them are in each version of a table.
_parser = strict_json.SharingParser("snapshots", "encryption-keys")


def _parse(text: bytes) -> Any:
    """Return the parsed metadata. Raises ValueError as ``strict_json.parse``. Integers of more than
    64 bits are refused only where Java looks at them."""
    try:
        return _parser.parse(text)
    except strict_json.LongIntegerError:
        metadata = strict_json.parse(text, long_integers=True)
        if isinstance(metadata, dict):
            strict_json.parse(json.dumps(in_java_order(metadata, known_only=True)))
        return metadata


def _check_sha256(stored: bytes, trust: Trust, location: str) -> None:
    expected, pinned = trust.metadata_sha256, trust.pinned_sha256
    if expected is None and pinned is None:
        return
    digest = hashlib.sha256(stored).hexdigest()
    if expected is not None and digest != expected.lower():
        raise MetadataIntegrityError(
            f"the metadata's SHA-256 is {digest}, but {expected} was expected: "
            "the file was changed or is of another version",
            file=location,
        )
    if pinned is not None and digest != pinned:
        raise MetadataIntegrityError(
            f"the metadata's SHA-256 is {digest}, but the catalog keeps {pinned}: "
            "the file was changed outside the catalog. Restore the file",
            file=location,
        )


def _check_java_hash(text: bytes, metadata: dict[str, Any], trust: Trust, location: str) -> None:
    if trust.java_hash is not None and trust.java_hash not in _java_hashes(text, metadata):
        raise MetadataIntegrityError(
            "the metadata does not have the hash that the catalog keeps of it "
            "(metadata_hash): it was changed outside the catalog. Restore the file",
            file=location,
        )


def table_key_id(metadata: Mapping[str, Any], trust: Trust, location: str) -> str | None:
    """Return the ID of the table's master key; None if the table is not encrypted, or if it only
    has the property (``is_plaintext_with_key_id``). Raises NotEncryptedError if the table should be
    encrypted, and MetadataIntegrityError if the metadata names another key than ``trust``, another
    key length, another folder or one with ``..``, or another format version than 3."""
    properties = metadata.get("properties") or {}
    key_id = properties.get(TABLE_KEY_ID)
    if not key_id:
        _check_never_encrypted(metadata, trust, location)
        return None
    if trust.key_id is not None and key_id != trust.key_id:
        raise MetadataIntegrityError(
            f"the metadata names {key_id!r} as the table's key, but {trust.key_id!r} was expected",
            file=location,
        )
    length = str(properties.get(DATA_KEY_LENGTH, DEFAULT_DATA_KEY_LENGTH))
    if trust.data_key_length not in (None, length):
        raise MetadataIntegrityError(
            f"the metadata says that data keys have {length} bytes, but the catalog says "
            f"{trust.data_key_length}",
            file=location,
        )
    if is_plaintext_with_key_id(metadata):
        if trust.key_id is None:
            return None
        raise NotEncryptedError(
            f"the table has {TABLE_KEY_ID!r}, but no file of it is encrypted: another writer wrote "
            "plaintext, or somebody replaced the metadata. migrate_table() of the catalog (ags1 "
            "table migrate) encrypts the table",
            file=location,
        )
    version = metadata.get("format-version")
    if version != FORMAT_VERSION:
        why = f"only tables of version {FORMAT_VERSION} can be encrypted"
        if isinstance(version, int) and version > FORMAT_VERSION:
            why = f"this release knows versions up to {FORMAT_VERSION}"
        raise MetadataIntegrityError(
            f"the metadata has {TABLE_KEY_ID!r} and format version {version}: {why}", file=location
        )
    _check_folder(str(metadata.get("location") or ""), trust, location)
    return str(key_id)


def _check_folder(folder: str, trust: Trust, location: str) -> None:
    """Raise MetadataIntegrityError if the table's folder in its metadata cannot be the right one:
    new files would be written there."""
    if leads_up(folder):
        raise MetadataIntegrityError(
            f"the metadata names {folder!r} as the table's folder, and '..' may lead out of it",
            file=location,
        )
    known = trust.table_location
    if known is not None and not may_be_one_folder(folder, known):
        raise MetadataIntegrityError(
            f"the metadata names {folder!r} as the table's folder, but the catalog has {known!r}: "
            "the metadata was changed outside the catalog",
            file=location,
        )


def is_plaintext_with_key_id(metadata: Mapping[str, Any]) -> bool:
    """Whether a table has ``encryption.key-id``, but nothing of it is encrypted. PyIceberg 0.12 and
    iceberg-rust 0.11 make such tables of versions 1 and 2, and Java 1.12 makes them in REST, Glue,
    DynamoDB and Hadoop catalogs."""
    if not (metadata.get("properties") or {}).get(TABLE_KEY_ID) or metadata.get("encryption-keys"):
        return False
    snapshots = metadata.get("snapshots") or ()
    if any(snapshot.get("key-id") for snapshot in snapshots):
        return False
    # A new table of version 3 has neither snapshots nor keys, and is encrypted.
    return bool(snapshots) or metadata.get("format-version") in (1, 2)


def is_plaintext(metadata: Mapping[str, Any]) -> bool:
    """Whether nothing of a table is encrypted, and nothing is to be."""
    has_key_id = (metadata.get("properties") or {}).get(TABLE_KEY_ID)
    return not has_key_id or is_plaintext_with_key_id(metadata)


def not_encrypted(metadata: Mapping[str, Any], location: str) -> NotEncryptedError:
    """Return the error for a table that is ``is_plaintext`` and has to be encrypted."""
    why = f"it has no property {TABLE_KEY_ID!r}"
    if is_plaintext_with_key_id(metadata):
        why = f"it has {TABLE_KEY_ID!r}, but no file of it is encrypted. migrate_table() of the "
        why += "catalog (ags1 table migrate) encrypts it"
    return NotEncryptedError(f"the table is not encrypted: {why}", file=location)


def _check_never_encrypted(metadata: Mapping[str, Any], trust: Trust, location: str) -> None:
    """Raise NotEncryptedError if metadata without a key ID is that of an encrypted table."""
    if trust.key_id is not None:
        raise NotEncryptedError(
            f"the metadata has no {TABLE_KEY_ID!r}, but {trust.key_id!r} was expected: "
            "somebody replaced the table or removed its encryption",
            file=location,
        )
    snapshots = metadata.get("snapshots") or ()
    if metadata.get("encryption-keys") or any(snapshot.get("key-id") for snapshot in snapshots):
        raise NotEncryptedError(
            f"the metadata has encryption keys but no {TABLE_KEY_ID!r}: somebody removed it",
            file=location,
        )


def parse_metadata(
    metadata: dict[str, Any], before: tuple[dict[str, Any], TableMetadata] | None = None
) -> TableMetadata:
    """Return PyIceberg's metadata of an encrypted table, with the ``key_id`` of each snapshot.

    The metadata is parsed in the form that ``parsable`` returns. ``before`` is another version and
    what was returned for it. The snapshots whose JSON is the same object in both are not parsed
    again. Raises MetadataIntegrityError, which names the field, if the metadata is malformed.
    """
    try:
        snapshots = _parse_snapshots(metadata.get("snapshots", []), before)
        parsed = TableMetadataUtil.parse_obj(parsable({**metadata, "snapshots": []}))
        _check_refs(metadata)
    except MetadataIntegrityError:
        raise
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise _malformed(f"{field}: {first['msg']}") from error
    except (ValueError, RecursionError, PyIcebergValidationError) as error:
        raise _malformed(str(error).partition("\n")[0]) from error
    except (TypeError, KeyError, AttributeError) as error:
        raise _malformed(f"{type(error).__name__}: {error}") from error
    return parsed.model_copy(update={"snapshots": snapshots})


def _parse_snapshots(
    snapshots: Any, before: tuple[dict[str, Any], TableMetadata] | None
) -> list[EncryptedSnapshot]:
    known: dict[int, Any] = {}
    if before is not None:
        known = dict(zip(map(id, before[0]["snapshots"]), before[1].snapshots, strict=False))
    if isinstance(snapshots, list):
        # If one is malformed, all are validated together below: then the error names its number.
        with contextlib.suppress(ValidationError):
            return [known.get(id(each)) or _parse_snapshot(each) for each in snapshots]
        snapshots = list(map(parsable_snapshot, snapshots))
    return _Snapshots(snapshots=snapshots).snapshots


def _parse_snapshot(snapshot: Any) -> EncryptedSnapshot:
    known = _known_snapshot(snapshot)
    # A copy, because a summary can be changed. bool() of one counts its entries.
    summary = None if known.summary is None else _copied(known.summary)
    return _copied(known, summary=summary)


def _copied(model: _Model, **changes: Any) -> _Model:
    """Return ``model.model_copy(update=changes)`` with copies of its private dicts, in a hundredth
    of the time: Pydantic looks for a private attribute in four places."""
    made = model.__class__.__new__(model.__class__)
    private = model.__pydantic_private__
    if private is not None:
        private = {n: dict(v) if isinstance(v, dict) else v for n, v in private.items()}
    _set(made, "__dict__", {**model.__dict__, **changes})
    _set(made, "__pydantic_fields_set__", {*model.__pydantic_fields_set__, *changes})
    _set(made, "__pydantic_extra__", model.__pydantic_extra__)
    _set(made, "__pydantic_private__", private)
    return made


_set = object.__setattr__


# A snapshot never changes, and each commit reads all of them again.
@strict_json.kept
def _known_snapshot(snapshot: Any) -> EncryptedSnapshot:
    return EncryptedSnapshot.model_validate(parsable_snapshot(snapshot))


def _malformed(what: str) -> MetadataIntegrityError:
    return MetadataIntegrityError(f"the table's metadata is malformed: {what}")


def _check_refs(metadata: Mapping[str, Any]) -> None:
    """Raise MetadataIntegrityError if a branch or tag refers to no snapshot, or if main is not the
    current one: readers and writers would then see different tables."""
    ids = [snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or ()]
    known = set(ids)
    if len(known) != len(ids):
        raise MetadataIntegrityError("two of the table's snapshots have the same ID")
    current = metadata.get("current-snapshot-id")
    heads = {name: ref["snapshot-id"] for name, ref in (metadata.get("refs") or {}).items()}
    current = None if current == -1 else current
    if heads.get(MAIN_BRANCH, current) != current:
        raise MetadataIntegrityError("the main branch is not at the table's current snapshot")
    for name, head in [*heads.items(), (MAIN_BRANCH, current)]:
        if head is not None and head not in known:
            raise MetadataIntegrityError(f"{name!r} is at a snapshot that the table does not have")


def _wrong_fields(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of metadata that this module uses and that have a wrong type."""
    properties = metadata.get("properties") or {}
    if isinstance(properties, dict):
        yield from (f"properties.{n}" for n, v in properties.items() if not isinstance(v, str))
    else:
        yield "properties"
    # Java refuses JSON's null as the list of keys, and takes it for a missing list of snapshots.
    lists = {"encryption-keys": metadata.get("encryption-keys", [])}
    for name, entries in {"snapshots": metadata.get("snapshots") or [], **lists}.items():
        if isinstance(entries, list):
            wrong = (i for i, entry in enumerate(entries) if not isinstance(entry, dict))
            yield from (f"{name}.{i}" for i in wrong)
        else:
            yield name


def _decompressed(stored: bytes, location: str) -> bytes:
    """Return the text of all members of a gzip file. As in Java, other bytes may follow them."""
    text = bytearray()
    limit = min(MAX_METADATA_SIZE, _FREE_SIZE + _MAX_GROWTH * len(stored))
    at = 0
    while True:
        decompressor = zlib.decompressobj(wbits=31)
        # zlib copies what follows a member: of many small ones, not the whole file each time.
        while not decompressor.eof:
            piece = stored[at : at + _PIECE_SIZE]
            if not piece:
                raise ValueError("is not JSON: the compressed data is cut")
            text += decompressor.decompress(piece, limit + 1 - len(text))
            if len(text) > limit:
                raise MetadataIntegrityError(
                    f"the metadata is larger than {limit} bytes once it is decompressed: no writer "
                    "of Iceberg makes that of a file of its size",
                    file=location,
                )
            at += len(piece) - len(decompressor.unused_data)
        if not stored.startswith(_GZIP, at):
            return bytes(text)


def _check_size(text: bytes, location: str) -> None:
    if len(text) > MAX_METADATA_SIZE:
        raise MetadataIntegrityError(
            f"the metadata is larger than {MAX_METADATA_SIZE >> 20} MiB", file=location
        )


def _java_hashes(text: bytes, metadata: dict[str, Any]) -> list[str]:
    """Return the hashes that Java may have for the metadata. Java hashes its own compact print of
    what it parsed. For a file that Java wrote, that is the file itself."""
    compact = json.dumps(metadata, separators=(",", ":"), ensure_ascii=False)
    prints = [text, compact.encode("utf-8", "surrogatepass")]
    # If Java cannot print the metadata, Java has no hash of it.
    with contextlib.suppress(ValueError, RecursionError):
        prints.append(java_print(metadata, known_only=True))
    return list(map(metadata_hash, prints))
