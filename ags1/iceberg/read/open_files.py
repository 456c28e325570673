"""Opens data and delete files: Parquet files with Arrow, Avro files with our reader.

Arrow decrypts Parquet, with properties that are made for one file and never cached. Its messages
about wrong encrypted files become our errors. No deletes and no filters are known here, but Arrow
applies a filter that is passed to it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyarrow.parquet.encryption import create_decryption_properties
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping

from ...columns.arrow_layouts import plain_batch
from ...columns.arrow_nested import with_child
from ...columns.avro.files import AvroFile, read_avro
from ...columns.row_groups import row_group_starts
from ...engine.key_metadata import KeyMetadata
from ...errors import Ags1Error, AuthenticationError, FormatError, NotEncryptedError
from ..formats.parquet_modules import check_end
from ..formats.variants import whole
from ..spec.column_types import WKB, variant_part_ids
from ..spec.constants import PARQUET_FIELD_ID
from ..storage.table_files import TableFiles
from .records import ContentFile

_BUFFER_SIZE = 8 << 20
# Files up to this size are read whole: a second request to a distant store, and Arrow's scanner,
# cost more than columns that nobody wants.
_WHOLE_SIZE = 1 << 20
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
        self._stream: Any = files.open_stored(file.file_path)
        self._name = str(next(_NAMES))
        self._fragment: ds.ParquetFileFragment | None = None
        self._whole: pq.ParquetFile | None = None
        try:
            decryption = None
            source: tuple[Any, ...] = (self._stream,)
            if key_metadata is not None:
                with files.naming(file.file_path):
                    source = self._checked(key_metadata)
                decryption = create_decryption_properties(
                    key_metadata.encryption_key,
                    aad_prefix=key_metadata.aad_prefix,
                    allow_plaintext_files=False,
                )
            with _arrow_errors(files, file):
                if isinstance(source[0], pa.BufferReader) and not dictionary_columns:
                    # The reader of one file takes half the time of a scanner, which is for many.
                    self._whole = pq.ParquetFile(
                        *source,
                        decryption_properties=decryption,
                        arrow_extensions_enabled=False,
                        coerce_int96_timestamp_unit=_INT96_UNIT,
                    )
                    self._physical = self._whole.schema_arrow
                    self._metadata = self._whole.metadata
                else:
                    parquet = ds.ParquetFileFormat(
                        default_fragment_scan_options=ds.ParquetFragmentScanOptions(
                            pre_buffer=True,
                            buffer_size=_BUFFER_SIZE,
                            decryption_properties=decryption,
                        ),
                        dictionary_columns=dictionary_columns or None,
                        coerce_int96_timestamp_unit=_INT96_UNIT,
                    )
                    self._fragment = parquet.make_fragment(*source)
                    self._physical = self._fragment.physical_schema
                    self._metadata = self._fragment.metadata
                file.check_rows(self._metadata.num_rows)
            if self._name in _CHECKED.now:
                _CHECKED.now[self._name] = self._stream
            with files.naming(file.file_path):
                self.columns = columns_of(self._physical)
        except BaseException:
            self.close()
            raise

    def _checked(self, key_metadata: KeyMetadata) -> tuple[Any, ...]:
        """Check the footer. Return the source of a fragment, which gives Arrow what was checked:
        all of a small file, or the end of a larger one. Raises as ``check_end``."""
        stream = self._stream
        if not isinstance(stream, pa.NativeFile):
            stream = self._stream = pa.PythonFile(stream, "r")
        size = stream.size()
        whole = stream.read_buffer(size) if size <= _WHOLE_SIZE else None

        def fetch(offset: int, length: int) -> memoryview:
            # Arrow's bytes are signed: from 128 on, they are not equal to Python's.
            if whole is not None:
                return memoryview(whole).cast("B")[offset : offset + length]
            stream.seek(offset)
            return memoryview(stream.read_buffer(length)).cast("B")

        end = check_end(fetch, size, key_metadata)
        if whole is not None:
            return (pa.BufferReader(whole),)
        # Memory of Arrow's own: its threads may outlive the interpreter.
        memory = pa.allocate_buffer(len(end))
        memoryview(memory).cast("B")[:] = end
        _CHECKED.now[self._name] = pa.BufferReader(memory)
        return self._name, _CHECKED_FILES

    @property
    def can_filter(self) -> bool:
        """Whether Arrow can filter the rows: its scanner can, but cannot compare views."""
        return self._whole is None and not self.columns.has_views

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
            for batch in self._whole.iter_batches(_BATCH_ROWS, groups, names, use_threads=False):
                # A name with a dot in it also finds the inside of a struct.
                yield batch.select(names)
            return
        assert self._fragment is not None
        fragment = self._fragment if groups is None else self._fragment.subset(row_group_ids=groups)
        yield from ds.Scanner.from_fragment(
            fragment, schema=self._physical, columns=names, filter=row_filter
        ).to_batches()

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
        _CHECKED.now.pop(self._name, None)
        self._stream.close()


class _CheckedFiles(pafs.FSSpecHandler):  # type: ignore[misc]
    """Encrypted files that Arrow opens twice: first to parse the footer, for which it gets the end
    that was checked, then to read pages, whose tags it verifies. ``now`` has by name what the next
    opening gives."""

    def __init__(self) -> None:
        self.now: dict[str, pa.NativeFile] = {}

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self.now[path]


_CHECKED = _CheckedFiles()
_NAMES = itertools.count()
# There is one for all files, which the module keeps: if Arrow's threads had the last reference to
# a file system in Python, the end of the program could end them by force.
_CHECKED_FILES = pafs.PyFileSystem(_CHECKED)


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
    """Turn Arrow's errors about a wrong encrypted file into our errors. Arrow has no types for
    these, so its messages decide. Errors of the storage pass."""
    with files.naming(file.file_path):
        try:
            yield
        except (OSError, pa.ArrowInvalid) as error:
            kind, what = _arrow_failure(str(error))
            if kind is None or not file.is_encrypted:
                raise
            raise kind(what) from None


def _arrow_failure(message: str) -> tuple[type[Ags1Error] | None, str]:
    if "decryption properties on plaintext" in message:
        return NotEncryptedError, (
            "the manifest has a key for this file, but it is an unencrypted Parquet file"
        )
    if "decrypt" in message.lower() or "AAD" in message:
        return AuthenticationError, (
            "the Parquet file does not decrypt: it was changed, or the key is of another file"
        )
    if "ciphertext" in message.lower():
        return AuthenticationError, (
            "a page of the Parquet file does not decrypt: it was changed, or it is a page of "
            "version 2 as parquet-java encrypts it. Such a page leaves unauthenticated which "
            "values are null. Set write.parquet.page-version=v1, and rewrite it in Spark "
            "(rewrite_data_files)"
        )
    if "Parquet" in message or "thrift" in message:
        return FormatError, f"the Parquet file cannot be read: {message.splitlines()[0]}"
    return None, ""
