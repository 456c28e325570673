"""A table's new metadata.json: its text, its place, its log of earlier files.

Pure over the parsed JSON; knows nothing of catalogs, nor of who writes the file. Follows Java's
``TableMetadataParser``, ``BaseMetastoreTableOperations`` and ``TableMetadata``.
"""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Mapping
from typing import Any

from ..read.metadata import MAX_METADATA_SIZE
from ..spec.java_json import hash_of, java_hash, java_print
from ..storage.table_folders import versions_beside

__all__ = [
    "hash_of",
    "java_hash",
    "next_metadata_location",
    "print_metadata",
    "stored_form",
    "with_metadata_log",
    "without_trailing_slash",
]

METADATA_PATH = "write.metadata.path"
COMPRESSION = "write.metadata.compression-codec"
PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
DEFAULT_PREVIOUS_VERSIONS_MAX = 100

_EXTENSIONS = {"none": ".metadata.json", "gzip": ".gz.metadata.json"}
_COMPRESSED = (_EXTENSIONS["gzip"], ".metadata.json.gz")
# Java takes a table whose log goes back in time by more than this for damaged.
CLOCK_SKEW_MS = 60_000


def print_metadata(metadata: Mapping[str, Any]) -> bytes:
    """Return the text of a metadata.json, in Java's form; fields unknown to Java stay.

    Raises ValueError for what JSON cannot say: NaN, infinities, text that is not Unicode.
    """
    return java_print(metadata)


def stored_form(text: bytes, location: str) -> bytes:
    """Return the bytes of the file at ``location`` for a metadata's text: compressed or not.

    Raises ValueError when the metadata is larger than readers accept.
    """
    if len(text) > MAX_METADATA_SIZE:
        raise ValueError(
            f"the metadata has {len(text)} bytes, more than {MAX_METADATA_SIZE >> 20} MiB: "
            "expire snapshots"
        )
    return gzip.compress(text, mtime=0) if location.endswith(_COMPRESSED) else text


def next_metadata_location(
    metadata: Mapping[str, Any], base_location: str | None, *, is_beside: bool = False
) -> str:
    """Return a new place for a table's metadata.json, which no other attempt has.

    ``base_location`` is that of the current one, None for a new table. The table's
    ``write.metadata.compression-codec`` is obeyed, and its ``write.metadata.path`` and location
    unless the new file ``is_beside`` the current one. Raises ValueError for an unknown codec.
    """
    properties = metadata.get("properties") or {}
    codec = properties.get(COMPRESSION, "none")
    extension = _EXTENSIONS.get(str(codec).lower())
    if extension is None:
        raise ValueError(f"{COMPRESSION} is {codec!r}; it is 'none' or 'gzip'")
    if is_beside and base_location is not None:
        folder = base_location.rpartition("/")[0]
    else:
        folder = properties.get(METADATA_PATH) or f"{metadata['location']}/metadata"
    name = f"{_version(base_location) + 1:05d}-{uuid.uuid4()}{extension}"
    return f"{without_trailing_slash(folder)}/{name}"


def with_metadata_log(
    metadata: Mapping[str, Any], previous_location: str | None, previous_last_updated_ms: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata with its predecessor's file in its log, and the files to be deleted.

    The log keeps the last ``write.metadata.previous-versions-max`` files; those that leave it are
    to be deleted, once this metadata is committed, if
    ``write.metadata.delete-after-commit.enabled``: only metadata files in the predecessor's folder,
    since the log is no better protected than the file that it stands in. Raises ValueError when one
    of the two is not what it has to be, or when the table's clock would go back.
    """
    if previous_location is None:
        return dict(metadata), []
    properties = metadata.get("properties") or {}
    text = properties.get(PREVIOUS_VERSIONS_MAX, DEFAULT_PREVIOUS_VERSIONS_MAX)
    try:
        kept = max(1, int(text))
    except ValueError:
        raise ValueError(f"{PREVIOUS_VERSIONS_MAX} is {text!r}, not a number") from None
    if metadata["last-updated-ms"] - previous_last_updated_ms < -CLOCK_SKEW_MS:
        raise ValueError(
            f"the table was updated at {previous_last_updated_ms} ms, and it is "
            f"{metadata['last-updated-ms']} ms here: this machine's clock is slow"
        )
    log = [
        *(metadata.get("metadata-log") or ()),
        {"timestamp-ms": previous_last_updated_ms, "metadata-file": previous_location},
    ]
    gone = log[:-kept]
    deletes = str(properties.get(DELETE_AFTER_COMMIT, "false")).lower() == "true"
    files = [entry["metadata-file"] for entry in gone] if deletes else []
    expired = versions_beside(previous_location, files)
    return {**metadata, "metadata-log": log[-kept:]}, expired


def _version(location: str | None) -> int:
    """Return the number that begins a metadata file's name, -1 where there is none."""
    number, dash, _ = (location or "").rpartition("/")[2].partition("-")
    return int(number) if dash and number.isascii() and number.isdigit() else -1


def without_trailing_slash(location: str) -> str:
    """Return a location without slashes at its end, as Java has it; a scheme's own stay."""
    while location.endswith("/") and not location.endswith("://"):
        location = location[:-1]
    return location
