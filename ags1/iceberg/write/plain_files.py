"""Records of unencrypted Parquet files that are added to a table as they are (``add_files``).

It does not know snapshots.
"""

from __future__ import annotations

from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.utils.concurrent import ExecutorFactory

from ..read.records import DATA, FileRecord, file_record, manifest_record, read_entries
from .view import TableView

NAME_MAPPING = "schema.name-mapping.default"


def plain_file_records(
    view: TableView, io: FileIO, paths: list[str], *, check_duplicates: bool
) -> list[FileRecord]:
    """Return records of plain Parquet files that have the table's current schema.

    Raises ValueError if a path is named twice, if a file does not fit the schema or has rows of
    several partitions, and, with ``check_duplicates``, if the table has the file already. Raises
    OSError.
    """
    if len(set(paths)) != len(paths):
        raise ValueError("File paths must be unique")
    if check_duplicates:
        wanted = set(paths)
        known = [
            entry.file.file_path
            for manifest in view.manifests
            if manifest_record(manifest).content == DATA
            for entry in read_entries(manifest, view.files)
            if entry.file.file_path in wanted
        ]
        if known:
            raise ValueError(f"the table has these files already: {', '.join(known)}")
    executor = ExecutorFactory.get_or_create()
    files = list(executor.map(lambda path: parquet_file_to_data_file(io, view.parsed, path), paths))
    for file in files:
        file.spec_id = view.metadata["default-spec-id"]
    return list(map(file_record, files))


def name_mapping_update(view: TableView) -> list[dict[str, object]]:
    """Return the update that adds a name mapping, so that files without field IDs can be read. If
    the table has one, no update is needed."""
    if view.parsed.name_mapping() is not None:
        return []
    mapping = view.schema.name_mapping.model_dump_json()
    return [{"action": "set-properties", "updates": {NAME_MAPPING: mapping}}]
