"""What the stored files of a table say of its rows: read by pyarrow, fastavro and PyIceberg.

Row IDs and sequence numbers are added up as the specification says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
from pyarrow.parquet.encryption import create_decryption_properties
from pyiceberg.table import Table
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

import ags1
from ags1.iceberg import EncryptedTable, verify_table
from ags1.iceberg.read.records import ManifestEntry, read_entries

# By id: the row id, and the sequence number of the last change.
Lineage = dict[int, tuple[int, int]]


def again(table: Table) -> Any:
    """Return the table as another writer has it."""
    return table.catalog.load_table(table.name())


def entries(table: EncryptedTable) -> list[ManifestEntry]:
    view = again(table).view()
    return [entry for manifest in view.manifests for entry in read_entries(manifest, view.files)]


def raw(entry: ManifestEntry) -> list[dict[str, Any]]:
    """Return all rows of a data file, as it is stored."""
    path = Path(entry.file.file_path.removeprefix("file://"))
    km = entry.file.key
    assert km is not None
    if entry.file.file_format == "AVRO":
        with ags1.open(path, "rb", km) as stream:
            return list(fastavro.reader(stream))  # type: ignore[arg-type]
    opened = create_decryption_properties(km.encryption_key, aad_prefix=km.aad_prefix)
    found: list[dict[str, Any]] = pq.read_table(path, decryption_properties=opened).to_pylist()
    return found


def lineage(table: EncryptedTable) -> Lineage:
    """Return what the specification says of the rows of a table, from its files."""
    all_entries = entries(table)
    deleted: dict[str, set[int]] = {}
    for entry in all_entries:
        if entry.file.is_deletion_vector:
            km = entry.file.key
            assert km is not None
            stored = Path(entry.file.file_path.removeprefix("file://")).read_bytes()
            for vector in deletion_vectors_from_puffin_file(PuffinFile(ags1.decrypt(stored, km))):
                if vector.referenced_data_file == entry.file.referenced_data_file:
                    positions = vector.to_vector()
                    deleted[vector.referenced_data_file] = set(positions.to_pylist())
    found: Lineage = {}
    row_ids: set[int] = set()
    for entry in all_entries:
        if entry.file.content:
            continue
        gone = deleted.get(entry.file.file_path, set())
        for position, row in enumerate(raw(entry)):
            if position in gone:
                continue
            row_id, number = row.get("_row_id"), row.get("_last_updated_sequence_number")
            assert entry.file.first_row_id is not None
            row_id = entry.file.first_row_id + position if row_id is None else row_id
            assert row["id"] not in found
            assert row_id not in row_ids
            row_ids.add(row_id)
            assert entry.sequence_number is not None
            found[row["id"]] = row_id, entry.sequence_number if number is None else number
    return found


def check_whole(table: EncryptedTable) -> None:
    """Check that the table is whole, and that no file is left of what was not committed."""
    report = verify_table(again(table))
    assert (report.ok, report.finding_counts.get("orphan-file")) == (True, None)
