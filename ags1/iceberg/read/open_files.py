"""Opens data and delete files: Parquet files with Arrow, Avro files with our reader.

Arrow gets the plaintext of encrypted files, and never a key. No deletes and no filters are known
here, but Arrow applies a filter that is passed to it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping

from ...columns.arrow_layouts import plain_batch
from ...columns.arrow_nested import with_child
from ...columns.avro.files import AvroFile, read_avro
from ...columns.row_groups import row_group_starts
from ...engine.key_metadata import KeyMetadata
from ...engine.source import RangedSource, Source
from ...errors import FormatError
from ...host.pools import CancellingPool
from ..formats.parquet_view import ParquetView, PlainParquet
from ..formats.variants import whole
from ..spec.column_types import WKB, variant_part_ids
from ..spec.constants import PARQUET_FIELD_ID
from ..storage.table_files import TableFiles
from .ahead import read_ahead
from .plaintext_memory import POOL, PlainMemory
from .records import ContentFile

_Result = TypeVar("_Result")

_BUFFER_SIZE = 8 << 20
# Files up to this size are read whole: a second request to a distant store, and Arrow's scanner,
# cost more than columns that nobody wants.
_WHOLE_SIZE = 1 << 20
# The plaintexts of files up to this size are held, as in ``ahead``. Of larger ones, row groups of
# about so many bytes are read together, and the next ones are begun meanwhile.
_HELD_SIZE = 32 << 20
_WINDOW_SIZE = 64 << 20
_BATCH_ROWS = 128 << 10  # as a scanner's batches
# As nanoseconds, INT96 ends in 2262, and later times would be others.
_INT96_UNIT = "us"


@dataclass(frozen=True, slots=True, eq=False)
class FileColumns:
    """A file's ``schema``, the columns of it that are ``read``, the IDs of its ``variants``, and
    whether Arrow reads columns of it as views. Compared by identity."""

    schema: Schema
    read: Schema
    variants: frozenset[int] = frozenset()
    has_views: bool = False
    _stored: list[tuple[pa.Schema, pa.Schema]] = dataclasses.field(default_factory=list)

    def stored(self, given: pa.Schema) -> pa.Schema:
        """Return what ``without_fields`` makes of the schema of the file's batches, ``given``."""
        for known, made in self._stored:
            if known.equals(given, check_metadata=True):
                return made
        made = without_fields(given, frozenset(), self.variants)
        self._stored.append((given, made))
        return made


class OpenParquet:
    """An open Parquet file, encrypted or not. ``columns_of`` is by the file's Arrow schema."""

    def __init__(
        self,
        files: TableFiles,
        file: ContentFile,
        columns_of: Callable[[pa.Schema], FileColumns],
        dictionary_columns: tuple[str, ...],
    ) -> None:
        self._files, self._file = files, file
        key_metadata = file.sized_key
        self._stream: Any = None
        self._fragment: ds.ParquetFileFragment | None = None
        self._whole: pq.ParquetFile | None = None
        self._view: OpenView | None = None
        try:
            if key_metadata is None:
                source = self._stream = files.open_stored(file.file_path)
            else:
                with files.naming(file.file_path):
                    self._stream = files.open_source(file.file_path)
                    self._view = OpenView(self._stream, key_metadata)
                source = self._view.reader()
            with _arrow_errors(files, file):
                if self._view is not None and self._view.is_small and not dictionary_columns:
                    # The reader of one file takes half the time of a scanner, which is for many.
                    self._whole = pq.ParquetFile(
                        source,
                        arrow_extensions_enabled=False,
                        coerce_int96_timestamp_unit=_INT96_UNIT,
                    )
                    self._physical = self._whole.schema_arrow
                    self._metadata = self._whole.metadata
                else:
                    parquet = ds.ParquetFileFormat(
                        default_fragment_scan_options=ds.ParquetFragmentScanOptions(
                            pre_buffer=True, buffer_size=_BUFFER_SIZE
                        ),
                        dictionary_columns=dictionary_columns or None,
                        coerce_int96_timestamp_unit=_INT96_UNIT,
                    )
                    self._fragment = parquet.make_fragment(source)
                    self._physical = self._fragment.physical_schema
                    self._metadata = self._fragment.metadata
                file.check_rows(self._metadata.num_rows)
            with files.naming(file.file_path):
                self.columns = columns_of(self._physical)
        except BaseException:
            self.close()
            raise

    @property
    def can_filter(self) -> bool:
        """Whether Arrow can filter the rows: its scanner can, but cannot compare views."""
        return self._whole is None and not self.columns.has_views

    @property
    def has_int96(self) -> bool:
        """Whether the file has times in an old type, which readers convert in several ways."""
        schema = self._metadata.schema
        return any(schema.column(n).physical_type == "INT96" for n in range(len(schema)))

    @property
    def plain_size(self) -> int:
        """The size (bytes) of an encrypted file's plaintext."""
        assert self._view is not None
        return self._view.size

    def read(
        self, row_filter: pc.Expression | None = None, split: tuple[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows for which ``row_filter`` is true, of the row groups that begin in
        ``split`` (offset and length in bytes)."""
        with _arrow_errors(self._files, self._file):
            groups = None
            if split is not None:
                begin, end = split[0], split[0] + split[1]
                starts = enumerate(row_group_starts(self._metadata))
                groups = [number for number, start in starts if begin <= start < end]
            batches = self._batches([f.name for f in self.columns.read.fields], row_filter, groups)
            stored: pa.Schema | None = None
            for batch in map(plain_batch, batches) if self.columns.has_views else batches:
                stored = stored or self.columns.stored(batch.schema)
                yield batch if stored == batch.schema else self._as_stored(batch, stored)

    def _batches(
        self, names: list[str], row_filter: pc.Expression | None, groups: list[int] | None
    ) -> Iterator[pa.RecordBatch]:
        if self._whole is not None:
            assert self._view is not None
            self._view.fill(names, groups)
            for batch in self._whole.iter_batches(_BATCH_ROWS, groups, names, use_threads=False):
                # A name with a dot in it also finds the inside of a struct.
                yield batch.select(names)
            return
        assert self._fragment is not None
        fragment = self._fragment if groups is None else self._fragment.subset(row_group_ids=groups)
        if self._view is None:
            yield from self._scan(fragment, names, row_filter)
            return
        if row_filter is not None:
            fragment = fragment.subset(row_filter, schema=self._physical)
        groups = [group.id for group in fragment.row_groups]
        windows = list(self._view.windows(names, groups))
        scans = (
            self._scan(fragment.subset(row_group_ids=window), names, row_filter)
            for window in windows
        )
        if len(windows) == 1:
            yield from next(scans)
            return
        # Arrow begins to read when it is asked for the first batch. The threads are the file's own:
        # those that read the files of a scan may all wait here.
        with CancellingPool(2, "ags1-window") as pool:
            for first, others in read_ahead(_begun, scans, lambda _: 1, 2, pool):
                yield from first
                yield from others

    def _scan(
        self, fragment: ds.ParquetFileFragment, names: list[str], row_filter: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        scanner = ds.Scanner.from_fragment(
            fragment, schema=self._physical, columns=names, filter=row_filter
        )
        return iter(scanner.to_batches())

    def plaintext(
        self, row_filter: pc.Expression | None, read: Callable[[bytes], _Result]
    ) -> _Result | None:
        """Return what ``read`` makes of the plaintext, which has the columns that are read. It is
        empty if no row group can have rows for which ``row_filter`` is true. Returns None if the
        file is not held as a whole."""
        if self._view is None:
            return None
        if row_filter is not None and self._fragment is not None:
            with _arrow_errors(self._files, self._file):
                found = self._fragment.subset(row_filter, schema=self._physical)
            if not found.row_groups:
                return read(b"")
        with self._files.naming(self._file.file_path):
            names = [field.name for field in self.columns.read.fields]
            return self._view.plaintext(names, read)

    def _as_stored(self, batch: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
        with self._files.naming(self._file.file_path):
            columns = [
                _stored_array(column, field, wanted, self.columns.variants)
                for column, field, wanted in zip(batch.columns, batch.schema, stored, strict=True)
            ]
        return pa.RecordBatch.from_arrays(columns, schema=stored)

    def rows_before(self, offset: int) -> int:
        """Return how many rows are in the row groups that begin before ``offset``."""
        with _arrow_errors(self._files, self._file):
            starts = enumerate(row_group_starts(self._metadata))
            return sum(
                self._metadata.row_group(n).num_rows for n, start in starts if start < offset
            )

    def close(self) -> None:
        # Arrow's objects refer to the memory of the view.
        self._fragment = self._whole = None
        if self._view is not None:
            self._view.close()
        if self._stream is not None:
            self._stream.close()


def _begun(
    batches: Iterator[pa.RecordBatch],
) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
    """Return the first batch, in a list that is empty if there is none, and the others."""
    return list(itertools.islice(batches, 1)), batches


class OpenView:
    """The plaintext of an encrypted file, for Arrow to read. A column chunk is decrypted before
    Arrow gets a byte of it, so Arrow meets nothing that is not authentic.

    That of most files is in memory, and is filled before Arrow reads. From a larger one, Arrow asks
    for column chunks while it decodes others, into memory of its own that it uses again."""

    def __init__(self, source: Source, key_metadata: KeyMetadata) -> None:
        size = source.size
        assert size is not None
        self.is_small = size <= _WHOLE_SIZE
        if self.is_small and source.far:
            whole = source.fetch(0, size, memoryview(bytearray(size)))
            source = RangedSource(lambda at, n: whole[at : at + n], size, far=False)
        self._view = ParquetView(source, key_metadata)
        self.size = self._view.size
        self._held: PlainMemory | None = None
        if self.size <= _HELD_SIZE:
            self._held = POOL.take(self.size)
            self._view.enclose(self._held.view)

    def reader(self) -> pa.NativeFile:
        """Return a file for Arrow."""
        if self._held is not None:
            return pa.BufferReader(pa.py_buffer(self._held.data))
        return pa.PythonFile(PlainParquet(self._view, has_indexes=False), mode="r")

    def close(self) -> None:
        """Give the memory back."""
        held, self._held = self._held, None
        if held is not None:
            POOL.give_back(held)

    def plaintext(self, names: list[str], read: Callable[[bytes], _Result]) -> _Result | None:
        """Return what ``read`` makes of a file of these columns and all indexes; None if it is not
        held as a whole."""
        if self._held is None:
            return None
        self.fill(names, None)
        self._view.fill_indexes(self._held.view)
        return read(self._held.data)

    def fill(self, names: list[str], groups: Iterable[int] | None) -> None:
        """Decrypt these columns of these row groups, if the file is held."""
        if self._held is not None:
            self._view.fill(self._held.view, self._view.parts(names, groups))

    def windows(self, names: list[str], groups: Iterable[int]) -> Iterator[list[int]]:
        """Yield the row groups that are read together, decrypted if the file is held. Arrow keeps
        the bytes of all of them until it has read the last one."""
        groups = list(groups)
        if self._held is not None:
            self.fill(names, groups)
            yield groups
            return
        window: list[int] = []
        size = 0
        for group in groups:
            group_size = sum(part.size for part in self._view.parts(names, [group]))
            if window and size + group_size > _WINDOW_SIZE:
                yield window
                window, size = [], 0
            window.append(group)
            size += group_size
        yield window


class OpenAvro:
    """An open Avro file, encrypted or not. Its rows are read as the table's columns directly."""

    can_filter = False

    def __init__(
        self,
        files: TableFiles,
        file: ContentFile,
        wanted: Schema,
        names: NameMapping | None,
        values: dict[int, Any],
        threads: int,
    ) -> None:
        self.columns = FileColumns(wanted, wanted)
        self._files, self._file = files, file
        self._options: dict[str, Any] = {"name_mapping": names, "missing_values": values}
        self._options |= {"record_count": file.record_count, "threads": threads}
        path, key_metadata = file.file_path, file.key
        self._stream: Any = (
            files.open_stored(path)
            if key_metadata is None
            else files.open_encrypted(path, key_metadata)
        )

    def read(
        self, row_filter: pc.Expression | None = None, split: tuple[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the blocks in ``split``. There must be no filter."""
        with self._files.naming(self._file.file_path):
            yield from read_avro(self._stream, self.columns.read, split=split, **self._options)

    def rows_before(self, offset: int) -> int:
        """Return how many rows are in the splits before ``offset``, from the blocks' headers."""
        with self._files.naming(self._file.file_path):
            return AvroFile(self._stream).rows_before(offset)

    def close(self) -> None:
        self._stream.close()


def with_ids(schema: pa.Schema, names: NameMapping | None, variants: frozenset[int]) -> pa.Schema:
    """Return the schema of a Parquet file with the IDs that ``names`` gives to fields without one.
    Fields that have none in the end are left out, as the specification says ("Column Projection"),
    with the lists and maps that need them. The fields with the IDs ``variants`` stay as they are.
    Raises FormatError if no field of the file has an ID and the table has no mapping."""
    fields = _with_ids(list(schema), [] if names is None else list(names), variants)
    if names is None and not fields and len(schema):
        raise FormatError(
            "Parquet file does not have field-ids and the Iceberg table does not have "
            "'schema.name-mapping.default' defined"
        )
    return pa.schema(fields)


def _with_ids(
    fields: list[pa.Field], mapping: list[MappedField], variants: frozenset[int]
) -> list[pa.Field]:
    own = {_id_of(field) for field in fields}
    kept: list[pa.Field] = []
    for field in fields:
        field_id = _id_of(field)
        mapped = next((m for m in mapping if field.name in m.names), None)
        if field_id < 0:
            # A column that has the ID itself is meant.
            if mapped is None or mapped.field_id is None or mapped.field_id in own:
                continue
            field_id = mapped.field_id
            own.add(field_id)
            field = field.with_metadata({PARQUET_FIELD_ID: str(field_id)})
        parts, make = _parts(field.type)
        if make is not None and field_id not in variants:
            # The names of Parquet's elements, keys and values differ from writer to writer.
            if not pa.types.is_struct(field.type):
                names = ("key", "value") if pa.types.is_map(field.type) else ("element",)
                parts = [part.with_name(name) for part, name in zip(parts, names, strict=True)]
            inside = _with_ids(parts, [] if mapped is None else mapped.fields, variants)
            if len(inside) < len(parts) and not pa.types.is_struct(field.type):
                continue
            field = field.with_type(make(*inside))
        kept.append(field)
    return kept


def without_fields(schema: pa.Schema, ids: frozenset[int], variants: frozenset[int]) -> pa.Schema:
    """Return the schema of a Parquet file without the fields with these IDs and without containers
    that need them. Geometries, for which GeoArrow's libraries have a type, become bytes. The fields
    with the IDs ``variants`` become structs of metadata and value."""
    kept = (_field_without(field, ids, variants) for field in schema)
    return pa.schema([field for field in kept if field is not None])


def _field_without(
    field: pa.Field, ids: frozenset[int], variants: frozenset[int]
) -> pa.Field | None:
    field_id = _id_of(field)
    if field_id in ids:
        return None
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == WKB:
        return field.with_type(kind.storage_type)
    if field_id in variants:
        return field.with_type(_variant_type(kind, field_id))
    parts, make = _parts(kind)
    kept = [
        part for part in (_field_without(part, ids, variants) for part in parts) if part is not None
    ]
    if make is None:
        return field
    if len(kept) < len(parts) and not (kept and pa.types.is_struct(kind)):
        return None
    return field.with_type(make(*kept))


def _id_of(field: pa.Field) -> int:
    return int((field.metadata or {}).get(PARQUET_FIELD_ID, -1))


def _parts(kind: pa.DataType) -> tuple[list[pa.Field], Callable[..., pa.DataType] | None]:
    """Return the fields inside a type, and what makes a type from such fields."""
    if pa.types.is_struct(kind):
        return list(kind), lambda *fields: pa.struct(fields)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field], pa.map_
    if pa.types.is_list(kind):
        return [kind.value_field], pa.list_
    if pa.types.is_large_list(kind):
        return [kind.value_field], pa.large_list
    return [], None


def _variant_type(kind: pa.DataType, field_id: int) -> pa.DataType:
    """Return the type of a variant that ``whole`` makes, with IDs."""
    if not pa.types.is_struct(kind):
        raise FormatError("a variant's column in the file is no group")
    made = whole(pa.array([], kind)).type
    ids = zip(made, variant_part_ids(field_id), strict=True)
    return pa.struct([f.with_metadata({PARQUET_FIELD_ID: str(i).encode()}) for f, i in ids])


def _stored_array(
    array: pa.Array, field: pa.Field, wanted: pa.Field, variants: frozenset[int]
) -> pa.Array:
    """Return a column as the field that ``without_fields`` makes of its own field."""
    if field.equals(wanted, check_metadata=True):
        return array
    kind = array.type
    if _id_of(field) in variants:
        made = whole(array)
        parts = [made.field(i) for i in range(2)]
        mask = made.is_null() if made.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(wanted.type), mask=mask)
    inside = zip(_parts(kind)[0], _parts(wanted.type)[0], strict=True)
    if pa.types.is_struct(kind):
        columns = [_stored_array(array.field(i), *pair, variants) for i, pair in enumerate(inside)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(columns, fields=list(wanted.type), mask=mask)
    if pa.types.is_map(kind):
        children = [array.keys, array.items]
        pairs = zip(children, inside, strict=True)
        arrays = [_stored_array(child, *pair, variants) for child, pair in pairs]
        entries = pa.StructArray.from_arrays(arrays, fields=_parts(wanted.type)[0])
        return with_child(array, wanted.type, entries)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        child = _stored_array(array.values, *next(inside), variants)
        return with_child(array, wanted.type, child)
    return array.cast(wanted.type)


@contextmanager
def _arrow_errors(files: TableFiles, file: ContentFile) -> Iterator[None]:
    """Turn Arrow's errors about the contents of an encrypted file into ours. Arrow has no types for
    these, so its messages decide. Errors of the storage pass."""
    with files.naming(file.file_path):
        try:
            yield
        except (OSError, pa.ArrowInvalid) as error:
            what = str(error).splitlines()[0]
            if not file.is_encrypted or not ("Parquet" in what or "thrift" in what):
                raise
            raise FormatError(f"the Parquet file cannot be read: {what}") from None
