"""Writes encrypted table statistics, and adds them to metadata.json.

The form is that of the open pull requests apache/iceberg 17533 and 17417: see ``read/statistics``.
That form may change, so a caller has to name it. This module does not know what the blobs mean.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pyiceberg.table.puffin import PuffinFile

from ...key_metadata import KeyMetadata
from ...keys.manager import EncryptionManager
from ..spec.table_keys import KeyChange
from ..storage.locations import is_encodable
from ..storage.output import TableOutput
from .conflicts import ConflictError
from .puffin import PuffinPayload
from .snapshot import key_updates
from .view import TableView

# The form of encrypted statistics that a caller has to name.
DRAFT: Literal["draft-17533"] = "draft-17533"


@dataclass(frozen=True, slots=True)
class StatisticsBlob:
    """One blob of a statistics file.

    ``type`` is for example ``apache-datasketches-theta-v1``; ``fields`` are the IDs of the columns.
    ``payload`` is stored as it is. ``snapshot_id`` and ``sequence_number`` are those of the
    snapshot that the blob was computed from; None for the snapshot of the file.

    Raises ValueError for a value that metadata.json cannot have: readers would refuse the table.
    """

    type: str
    fields: Sequence[int]
    payload: bytes = field(repr=False)
    properties: Mapping[str, str] = field(default_factory=dict)
    snapshot_id: int | None = None
    sequence_number: int | None = None

    def __post_init__(self) -> None:
        texts = self.type, *self.properties, *self.properties.values()
        numbers = (n for n in (self.snapshot_id, self.sequence_number) if n is not None)
        for name, is_valid in (
            ("text", all(map(_is_text, texts))),
            ("field ID", all(_is_number(n, 32) for n in self.fields)),
            ("snapshot ID or sequence number", all(_is_number(n, 64) for n in numbers)),
            ("payload", isinstance(self.payload, bytes)),
        ):
            if not is_valid:
                raise ValueError(f"a {name} of the statistics blob has a wrong type or size")

    @classmethod
    def read_all(cls, puffin: PuffinFile) -> list[StatisticsBlob]:
        """Return the blobs of a Puffin file, decompressed."""
        return [
            cls(
                blob.type,
                blob.fields,
                puffin.get_blob_payload(blob),
                blob.properties,
                blob.snapshot_id,
                blob.sequence_number,
            )
            for blob in puffin.footer.blobs
        ]


class StatisticsWriter:
    """Writes the statistics file of one snapshot to ``output``. ``change`` makes the updates that
    a commit needs."""

    def __init__(self, output: TableOutput, view: TableView, snapshot_id: int) -> None:
        self._output = output
        self._view = view
        self._snapshot_id = snapshot_id
        self._key: KeyMetadata | None = None
        self._entry: dict[str, Any] = {}

    def write(self, blobs: Iterable[StatisticsBlob]) -> None:
        """Write the blobs under a fresh key. Raises ValueError if the table does not have the
        snapshot, and what ``TableOutput.write_encrypted`` raises."""
        view = self._view
        snapshot = view.parsed.snapshot_by_id(self._snapshot_id)
        if snapshot is None:
            raise ValueError(f"the table has no snapshot {self._snapshot_id}")
        payload = PuffinPayload()
        stated = []
        for blob in blobs:
            number = blob.sequence_number
            entry = payload.add(
                blob.payload,
                type=blob.type,
                fields=list(blob.fields),
                snapshot_id=self._snapshot_id if blob.snapshot_id is None else blob.snapshot_id,
                sequence_number=snapshot.sequence_number if number is None else number,
                properties=dict(blob.properties),
            )
            names = ("type", "snapshot-id", "sequence-number", "fields", "properties")
            stated.append({name: entry[name] for name in names})
        data, footer_size = payload.finish()
        name = f"{self._snapshot_id}-{uuid.uuid4()}.stats"
        location = view.locations.new_metadata_location(name)
        self._key = self._output.write_encrypted(location, data, view.manager.new_file_key())
        self._entry = {
            "snapshot-id": self._snapshot_id,
            "statistics-path": location,
            "file-size-in-bytes": self._key.file_length,
            "file-footer-size-in-bytes": footer_size,
            "blob-metadata": stated,
        }

    def change(self, metadata: Mapping[str, Any], manager: EncryptionManager) -> KeyChange:
        """Return the change that adds the file's key and the file to a version of the table. Raises
        ConflictError if the snapshot is not there any more, and KmsError."""
        assert self._key is not None
        if self._snapshot_id not in (s["snapshot-id"] for s in metadata.get("snapshots") or ()):
            raise ConflictError(
                f"snapshot {self._snapshot_id} was expired by another writer: nothing was committed"
            )
        key_id = manager.add_manifest_list_key(self._key)
        entry = {name: value for name, value in self._entry.items() if name != "blob-metadata"}
        entry |= {"key-id": key_id, "blob-metadata": self._entry["blob-metadata"]}
        updates = [
            *key_updates(manager, key_id),
            {"action": "set-statistics", "snapshot-id": self._snapshot_id, "statistics": entry},
        ]
        requirements = [{"type": "assert-table-uuid", "uuid": metadata["table-uuid"]}]
        return KeyChange(updates, requirements, manager)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and is_encodable(value)


def _is_number(value: object, bits: int) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and cast("int", value).bit_length() < bits
