"""Statistics files of an encrypted table: what metadata.json says of them.

Up to Iceberg 1.12, Java writes statistics unencrypted. The open pull request apache/iceberg 17533
adds a ``key-id`` to their entries in metadata.json, and 17417 implements it for table statistics.
We do not write them, but keep such keys, and verify such files::

    metadata.json   statistics:       {snapshot-id, statistics-path, …, key-id}
                    encryption-keys:  {key-id, encrypted-key-metadata, encrypted-by-id: the KEK}
    Puffin file     encrypted as AGS1 with the key in that key metadata

The key of a statistics file is wrapped in the same way as that of a manifest list. The entries of
statistics are not authenticated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...engine.key_metadata import KeyMetadata
from ...errors import Ags1Error, MetadataIntegrityError
from ..storage.table_files import TableFiles

_STATISTICS = ("statistics", "partition-statistics")


def list_statistics(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the entries of all statistics files in the metadata, each after its list's name."""
    for name in _STATISTICS:
        for entry in metadata.get(name) or ():
            yield name, entry


def statistics_key(entry: Mapping[str, Any], files: TableFiles) -> KeyMetadata | None:
    """Return the key of a statistics file; None if its entry names none.

    Raises MetadataIntegrityError if the entry has a plaintext key, or another length than the key
    metadata; KeyMetadataError, AuthenticationError and KmsError if the key cannot be unwrapped.
    """
    location = entry["statistics-path"]
    if entry.get("key-metadata") is not None:
        raise MetadataIntegrityError(
            "the metadata has the key of this statistics file in plaintext: everybody can read and "
            "change the file. Remove the statistics",
            file=location,
        )
    key_id = entry.get("key-id")
    if key_id is None:
        return None
    try:
        key_metadata = files.keys.manifest_list_key(key_id)
    except Ags1Error as error:
        error.file = location
        raise
    if key_metadata.file_length != entry["file-size-in-bytes"]:
        raise MetadataIntegrityError(
            f"the file's length is {entry['file-size-in-bytes']} in its entry, but "
            f"{key_metadata.file_length} in its key metadata: somebody has changed it. "
            "Remove the entry",
            file=location,
        )
    return key_metadata
