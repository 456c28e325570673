"""Writes the deletion vectors of a commit into one encrypted Puffin file.

    blob        length | magic | 64-bit Roaring bitmap of positions | CRC-32

The layout is that of Java's ``BaseDVFileWriter`` and ``BitmapPositionDeleteIndex``: one blob for
each data file, nothing compressed, and a bitmap run-length encoded if that is shorter. Offsets in
the records are the plaintext's. This follows the Iceberg specification, "Puffin" and
"Deletion Vectors". It does not know which rows are deleted.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any

from pyiceberg.table.deletion_vector import PROPERTY_REFERENCED_DATA_FILE
from pyroaring import BitMap64

from ...keys.manager import EncryptionManager
from ..read.deletes import CARDINALITY, VECTOR_MAGIC, VECTOR_TYPE
from ..read.records import POSITION_DELETES, ContentFile
from ..spec.constants import POSITION_ID
from ..storage.output import TableOutput
from .puffin import PuffinPayload

_INHERITED = -1  # the snapshot ID or sequence number is that of the manifest entry


def write_deletion_vectors(
    output: TableOutput,
    location: str,
    vectors: Mapping[str, tuple[BitMap64, ContentFile]],
    manager: EncryptionManager,
) -> list[ContentFile]:
    """Write a Puffin file of deletion vectors under a fresh key; return the vectors' records.
    ``vectors`` has by a data file's path the positions of its deleted rows and its record, in the
    order in which they are written; each vector is in the partition of its data file. If there are
    no vectors, no file is written. Raises ValueError if a record is not of the file that its key
    names, and what ``TableOutput.write_encrypted`` raises."""
    if not vectors:
        return []
    payload = PuffinPayload()
    blobs: list[dict[str, Any]] = []
    for path, (positions, data_file) in vectors.items():
        if data_file.file_path != path:
            raise ValueError(
                f"the deletion vector of {path} has the record of {data_file.file_path}"
            )
        blobs.append(
            payload.add(
                vector_blob(positions),
                type=VECTOR_TYPE,
                fields=[POSITION_ID],
                snapshot_id=_INHERITED,
                sequence_number=_INHERITED,
                properties={
                    PROPERTY_REFERENCED_DATA_FILE: path,
                    CARDINALITY: str(len(positions)),
                },
            )
        )
    data = payload.finish()
    key_metadata = output.write_encrypted(location, data, manager.new_file_key())
    assert key_metadata.file_length is not None
    return [
        ContentFile.of(
            content=POSITION_DELETES,
            file_path=location,
            file_format="PUFFIN",
            partition=data_file.partition_values,
            record_count=len(positions),
            file_size_in_bytes=key_metadata.file_length,
            key_metadata=key_metadata.encoded(),
            referenced_data_file=path,
            content_offset=blob["offset"],
            content_size_in_bytes=blob["length"],
            spec_id=data_file.spec_id,
        )
        for (path, (positions, data_file)), blob in zip(vectors.items(), blobs, strict=True)
    ]


def vector_blob(positions: BitMap64) -> bytes:
    """Return a deletion vector as a blob of a Puffin file: length, magic, bitmap, CRC-32."""
    data = VECTOR_MAGIC + BitMap64(positions, optimize=True).serialize()
    return struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
