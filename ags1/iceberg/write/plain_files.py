"""Records of unencrypted Parquet files that are added to a table as they are (``add_files``).

It does not know snapshots.
"""

from __future__ import annotations

from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.utils.concurrent import ExecutorFactory

from ..pyiceberg.records import record_values
from ..read.records import DATA, ContentFile, read_entries
from .view import TableView

NAME_MAPPING = "schema.name-mapping.default"
_COPIED = """
    file_path file_format record_count file_size_in_bytes column_sizes value_counts
    null_value_counts nan_value_counts lower_bounds upper_bounds split_offsets equality_ids
    sort_order_id
""".split()


def plain_file_records(
    view: TableView, io: FileIO, paths: list[str], *, check_duplicates: bool
) -> list[ContentFile]:
    """Return records of plain Parquet files that have the table's current schema. Raises ValueError
    if a path is named twice, if a file does not fit the schema or has rows of several partitions,
    and, with ``check_duplicates``, if the table has the file already. Raises OSError."""
    if len(set(paths)) != len(paths):
        raise ValueError("File paths must be unique")
    if check_duplicates:
        wanted = set(paths)
        known = [
            entry.file.file_path
            for manifest in view.manifests
            if not manifest.is_deletes
            for entry in read_entries(manifest, view.files)
            if entry.file.file_path in wanted
        ]
        if known:
            raise ValueError(f"the table has these files already: {', '.join(known)}")
    executor = ExecutorFactory.get_or_create()
    files = list(executor.map(lambda path: parquet_file_to_data_file(io, view.parsed, path), paths))
    return [_content_file(file, view.metadata["default-spec-id"]) for file in files]


def _content_file(file: DataFile, spec_id: int) -> ContentFile:
    copied = {name: getattr(file, name) for name in _COPIED}
    partition = record_values(file.partition)
    return ContentFile.of(content=DATA, partition=partition, spec_id=spec_id, **copied)


def name_mapping_update(view: TableView) -> list[dict[str, object]]:
    """Return the update that adds a name mapping, for files without field IDs, if there is none."""
    if view.parsed.name_mapping() is not None:
        return []
    mapping = view.schema.name_mapping.model_dump_json()
    return [{"action": "set-properties", "updates": {NAME_MAPPING: mapping}}]
