"""The data source "ags1": encrypted files as rows.

``spark.read.format("ags1").load(path)`` has a row for each run of blocks: path, offset, length,
content. With ``.option("inner", "text"|"csv"|"json"|"parquet"|"avro")`` the rows are those that the
files hold. Files are found on the driver, which opens one of them at most, to see its columns; the
tasks open the others by their sidecars, with keys that each process unwraps for itself.

Options: ``columns`` (names with commas between: the others are not decoded), ``partSize`` (what a
task reads at most, 64m), ``ledger`` (the ledger of the job that encrypted the files: the driver
reads it, and the wrapped keys go to the tasks; a file that the ledger does not have as done yet, or
no longer, is passed over; one that is gone is an error, unless ``ignoreMissingFiles`` is ``true``),
and those of keys (see ``options``). Filters are not taken from Spark: its way to hand them over
gives wrong rows where a frame is used twice. For writing see ``files_sink``, for streams
``stream_source`` and ``stream_sink``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from ..errors import KeyMetadataError
from ..layout import encrypted_size
from . import options as opt
from .keys import FileKeys
from .ledger import DONE, ENCRYPT, REMOVED, Ledger
from .sources.arrow_rows import arrow_schema, conform, spark_schema
from .sources.files_sink import FilesWriter
from .sources.inner_formats import InnerFormat, inner_format
from .sources.sealed_files import (
    Listed,
    OpenPart,
    Part,
    is_encrypted,
    list_file,
    list_files,
    open_part,
    open_whole,
    plan,
)
from .storage.choice import absolute
from .storage.protocol import REQUESTS
from .workers import end_of_task

NAME = "ags1"
_PART_SIZE = 64 << 20
# Of a row's content, where blocks are smaller; and of a batch's.
_ROW_SIZE = 1 << 20
_BATCH_SIZE = 8 << 20

_ROWS = StructType(
    [
        StructField("path", StringType(), False),
        StructField("offset", LongType(), False),
        StructField("length", LongType(), False),
        StructField("content", BinaryType(), False),
    ]
)


def register(spark: Any) -> None:
    """Make "ags1" known to a Spark session."""
    spark.dataSource.register(Ags1DataSource)


class Ags1DataSource(DataSource):  # type: ignore[misc]  # PySpark's types are not read
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Return the columns: of ``inner``, those of the first file.

        Raises ValueError for options that say nothing, FileNotFoundError, and what opening the file
        raises.
        """
        opt.refuse_secrets(self.options)
        name = self.options.get("inner")
        found = _ROWS if not name else self._inner_schema(name)
        return _chosen(found, opt.names(self.options.get("columns")))

    def reader(self, schema: StructType) -> FilesReader:
        return FilesReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> FilesWriter:
        return FilesWriter(dict(self.options), schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .sources.stream_source import LedgerStreamReader

        return LedgerStreamReader(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        # Needs PySpark 4.1.
        from .sources.stream_sink import StreamWriter

        return StreamWriter(dict(self.options), schema, overwrite=overwrite)

    def _inner_schema(self, name: str) -> StructType:
        inner = inner_format(name, self.options)
        files, sidecars = find_files(self.options)
        if not files:
            raise ValueError("there are no files to see the columns of: give a schema")
        # An empty one has nothing to show.
        first = next((file for file in files if file.size > encrypted_size(0)), files[0])
        with open_whole(first, opt.opening_keys(self.options), sidecars) as whole:
            return spark_schema(inner.columns(whole))


class FilesPartition(InputPartition):  # type: ignore[misc]
    """What a task reads: parts of files. Holds no keys."""

    def __init__(self, parts: list[Part]) -> None:
        super().__init__(len(parts))
        self.parts = parts


class FilesReader(DataSourceReader):  # type: ignore[misc]
    """Reads the parts of encrypted files. What is pickled has options, and no keys."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        opt.refuse_secrets(options)
        self._options = options
        self._schema = schema
        self._keys: FileKeys = opt.opening_keys(options)
        name = options.get("inner")
        self._inner: InnerFormat | None = inner_format(name, options) if name else None

    def partitions(self) -> list[FilesPartition]:
        """Return the tasks. Raises FileNotFoundError, ValueError."""
        # Without a partition Spark would read None.
        return self.tasks(*find_files(self._options)) or [FilesPartition([])]

    def tasks(self, files: list[Listed], sidecars: Mapping[str, str]) -> list[FilesPartition]:
        """Return the tasks that read these files; ``sidecars`` as for ``plan``. Raises
        ValueError."""
        part_size = opt.size(self._options, "partsize", _PART_SIZE)
        return [FilesPartition(parts) for parts in plan(files, part_size, sidecars)]

    def read(self, partition: FilesPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows. Raises as ``open_part``, and FormatError."""
        wanted = arrow_schema(self._schema)
        for part in partition.parts:
            with open_part(part, self._keys) as opened:
                if self._inner is None:
                    batches = content_rows(opened, with_content="content" in wanted.names)
                else:
                    batches = self._inner.read(opened, wanted)
                for batch in batches:
                    yield conform(batch, wanted)
        end_of_task()


def find_files(options: Mapping[str, str]) -> tuple[list[Listed], dict[str, str]]:
    """Return the files that are to be read, and the wrapped keys that the ledger ``ledger`` has of
    them, by their paths. With a ledger it alone says which files there are: others are passed over,
    and one that is gone raises FileNotFoundError, unless ``ignoreMissingFiles``.

    Raises FileNotFoundError, OSError, FormatError, KeyMetadataError where the ledger knows none of
    the files, ValueError.
    """
    paths = opt.paths(options)
    listed = {absolute(file.path): file for file in list_files(paths)}
    folder = options.get("ledger")
    if not folder:
        return list(listed.values()), {}
    with Ledger(folder, writing=False) as ledger:
        known = ledger.done(ENCRYPT, ("key_metadata",))
        # Those of a job under way, and those that were removed.
        others = {
            row.target: row.status
            for row in ledger.rows(("operation", "status", "target"), pending=True)
            if row.operation == ENCRYPT and row.status in (DONE, REMOVED)
        }
    known = {target: row for target, row in known.items() if others.get(target) != REMOVED}
    if listed and not any(target in known or target in others for target in listed):
        raise KeyMetadataError("the ledger has no key of any of these files", file=paths[0])
    missing = [target for target in _below(paths, known) if target not in listed]
    look = _list_if_there if opt.flag(options, "ignoremissingfiles") else list_file
    with ThreadPoolExecutor(REQUESTS, "ags1-listing") as pool:
        # Written since they were listed; or a listing was not whole.
        for file in pool.map(look, missing):
            if file is not None:
                listed[file.path] = file
    keys: dict[str, str] = {}
    for target, file in listed.items():
        if target in known and (wrapped := known[target].key_metadata) is not None:
            keys[file.path] = wrapped
    return sorted(file for file in listed.values() if file.path in keys), keys


def _below(paths: Iterable[str], targets: Iterable[str]) -> Iterator[str]:
    """Yield the targets that a listing of folders has in it if it is whole. What a pattern would
    have matched is not known here."""
    folders = [absolute(path).rstrip("/") + "/" for path in paths]
    for target in targets:
        names = (target.removeprefix(folder) for folder in folders if target.startswith(folder))
        if any(map(is_encrypted, names)):
            yield target


def _list_if_there(path: str) -> Listed | None:
    try:
        return list_file(path)
    except FileNotFoundError:
        return None


def content_rows(part: OpenPart, *, with_content: bool = True) -> Iterator[pa.RecordBatch]:
    """Yield rows of path, offset, length and content: a row for a block, or for several small ones.
    An empty file has one row. Offsets and lengths are of the plaintext, in bytes."""
    step = max(1, _ROW_SIZE // part.reader.block_size) * part.reader.block_size
    starts = list(range(part.begin, part.end, step))
    if part.reader.plaintext_size == 0 and part.begin == 0:
        starts = [0]
    at_once = max(1, _BATCH_SIZE // step)
    for first in range(0, len(starts), at_once):
        offsets = starts[first : first + at_once]
        lengths = [min(step, part.end - offset) for offset in offsets]
        columns: dict[str, Any] = {
            "path": pa.array([part.path] * len(offsets), pa.string()),
            "offset": pa.array(offsets, pa.int64()),
            "length": pa.array(lengths, pa.int64()),
        }
        if not with_content and not first:
            # Lengths, too, follow from what the header says (see ``open_part``).
            part.reader.pread(0, 1)
        if with_content:
            ranges = zip(offsets, lengths, strict=True)
            columns["content"] = pa.array(part.reader.readv(ranges), pa.binary())
        yield pa.RecordBatch.from_pydict(columns)


def _chosen(schema: StructType, columns: list[str]) -> StructType:
    """Return the columns of these names, all where there are none. Raises ValueError."""
    if not columns:
        return schema
    missing = [name for name in columns if name not in schema.fieldNames()]
    if missing:
        raise ValueError(f"the option 'columns' names {missing[0]!r}, which is not there")
    return StructType([schema[name] for name in columns])
