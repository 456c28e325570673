"""A table's new metadata.json: its text, its location, its log of earlier files.

Pure functions over the parsed JSON. Independent of catalogs. Follows Java's
``TableMetadataParser``, ``BaseMetastoreTableOperations`` and ``TableMetadata``.
"""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Mapping
from typing import Any

from ..read.metadata import COMPRESSED, MAX_METADATA_SIZE
from ..spec.java_json import JavaOrdered, java_print
from ..spec.properties import number_in
from ..storage.table_folders import TableFolders

METADATA_PATH = "write.metadata.path"
COMPRESSION = "write.metadata.compression-codec"
PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
DEFAULT_PREVIOUS_VERSIONS_MAX = 100

_EXTENSIONS = {"none": ".metadata.json", "gzip": ".gz.metadata.json"}
# Java refuses a table whose log goes back in time by more than this.
CLOCK_SKEW_MS = 60_000


def print_metadata(metadata: Mapping[str, Any]) -> bytes:
    """Return the text of a metadata.json, as ``java_print``."""
    return java_print(metadata)


def stored_form(text: bytes, location: str) -> bytes:
    """Return the bytes of the file at ``location``: the text, compressed if the name says so.
    Raises ValueError if the metadata is larger than readers accept."""
    if len(text) > MAX_METADATA_SIZE:
        raise ValueError(
            f"the metadata has {len(text)} bytes, but at most {MAX_METADATA_SIZE >> 20} MiB are "
            "allowed: expire snapshots"
        )
    return gzip.compress(text, mtime=0) if location.endswith(COMPRESSED) else text


def next_metadata_location(
    metadata: Mapping[str, Any], base_location: str | None, *, is_beside: bool = False
) -> str:
    """Return a new location for a table's metadata.json. No other attempt has the same.
    ``base_location`` is the current one's, None for a new table. The folder is that of
    ``write.metadata.path`` or the table's own; if ``is_beside`` is true, that of the current file.
    Raises ValueError if ``write.metadata.compression-codec`` is unknown."""
    properties = metadata.get("properties") or {}
    codec = properties.get(COMPRESSION, "none")
    extension = _EXTENSIONS.get(str(codec).lower())
    if extension is None:
        raise ValueError(f"{COMPRESSION} is {codec!r}: change it to 'none' or 'gzip'")
    if is_beside and base_location is not None:
        folder = base_location.rpartition("/")[0]
    else:
        folder = properties.get(METADATA_PATH) or f"{metadata['location']}/metadata"
    name = f"{_version(base_location) + 1:05d}-{uuid.uuid4()}{extension}"
    return f"{without_trailing_slash(folder)}/{name}"


def with_metadata_log(
    metadata: JavaOrdered, previous_location: str | None, previous_last_updated_ms: int
) -> tuple[JavaOrdered, list[str]]:
    """Return the metadata with the previous file in its log, and the files to delete after the
    commit. The log keeps the last ``write.metadata.previous-versions-max`` files. Older ones are
    deleted if ``write.metadata.delete-after-commit.enabled`` is true and they are in the previous
    file's folder, because somebody may have changed the log. Raises ValueError if the first
    property is not a number."""
    if previous_location is None:
        return JavaOrdered(metadata), []
    properties = metadata.get("properties") or {}
    length = max(1, number_in(properties, PREVIOUS_VERSIONS_MAX, DEFAULT_PREVIOUS_VERSIONS_MAX))
    log = [
        *(metadata.get("metadata-log") or ()),
        {"timestamp-ms": previous_last_updated_ms, "metadata-file": previous_location},
    ]
    deletes = str(properties.get(DELETE_AFTER_COMMIT, "false")).lower() == "true"
    files = [entry["metadata-file"] for entry in log[:-length]] if deletes else []
    expired = TableFolders(previous_location).versions(files)
    return JavaOrdered({**metadata, "metadata-log": log[-length:]}), expired


def _version(location: str | None) -> int:
    """Return the number at the start of a metadata file's name; -1 if it has none."""
    number, dash, _ = (location or "").rpartition("/")[2].partition("-")
    return int(number) if dash and number.isascii() and number.isdigit() else -1


def without_trailing_slash(location: str) -> str:
    """Return a location without slashes at its end, as in Java. Those of ``file://`` stay."""
    while location.endswith("/") and not location.endswith("://"):
        location = location[:-1]
    return location
