"""Statistics files of an encrypted table: what metadata.json says of them, and what is in them.

Up to Iceberg 1.12, Java writes statistics unencrypted. The open pull request apache/iceberg 17533
adds a ``key-id`` to their entries in metadata.json, and 17417 implements it for table statistics::

    metadata.json   statistics:       {snapshot-id, statistics-path, …, key-id}
                    encryption-keys:  {key-id, encrypted-key-metadata, encrypted-by-id: the KEK}
    Puffin file     encrypted as AGS1 with the key in that key metadata

The key of a statistics file is wrapped in the same way as that of a manifest list. The entries of
statistics are not authenticated. Unencrypted files are not either, so a caller must allow them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyiceberg.table.puffin import PuffinFile

from ...errors import Ags1Error, MetadataIntegrityError, NotEncryptedError
from ...key_metadata import KeyMetadata
from ..storage.table_files import TableFiles

STATISTICS = ("statistics", "partition-statistics")


def list_statistics(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the entries of all statistics files in the metadata, each after its list's name."""
    for name in STATISTICS:
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


def read_statistics(
    entry: Mapping[str, Any], files: TableFiles, *, allow_plaintext: bool = False
) -> PuffinFile:
    """Return the Puffin file of an entry in ``statistics``.

    Raises NotEncryptedError if the entry names no key, unless ``allow_plaintext`` is true;
    MetadataIntegrityError if the file is not a Puffin file, or if its blobs are not those of the
    entry; AuthenticationError, TruncatedError and OSError; and as ``statistics_key``.
    """
    location = entry["statistics-path"]
    key_metadata = statistics_key(entry, files)
    if key_metadata is not None:
        data = files.read_encrypted(location, key_metadata)
    elif allow_plaintext:
        with files.open_stored(location) as stream:
            data = stream.read(entry["file-size-in-bytes"])
    else:
        raise NotEncryptedError(
            "the metadata has no key for this statistics file. Either the file is unencrypted, "
            "as Java writes it, or a writer that does not know key-id has removed the "
            "key-id. Pass allow_plaintext=True if it is unencrypted; nothing authenticates it then",
            file=location,
        )
    try:
        puffin = PuffinFile(data)
    except (IndexError, ValueError):
        raise MetadataIntegrityError(
            "the statistics file is not a Puffin file that can be read: write it again",
            file=location,
        ) from None
    found = [
        (b.type, b.snapshot_id, b.sequence_number, list(b.fields), b.properties)
        for b in puffin.footer.blobs
    ]
    stated = [
        (b["type"], b["snapshot-id"], b["sequence-number"], b["fields"], b.get("properties") or {})
        for b in entry["blob-metadata"]
    ]
    if found != stated:
        raise MetadataIntegrityError(
            "the statistics file has other blobs than the metadata says: somebody has changed the "
            "metadata or replaced the file",
            file=location,
        )
    return puffin
