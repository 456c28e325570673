"""Reads Avro into PyIceberg's records, and gives access to their fields by name.

PyIceberg's ``Record`` is a list of values. Other modules use names and not positions in it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from uuid import UUID

from pyiceberg.avro import reader as readers
from pyiceberg.avro.file import AvroFileHeader
from pyiceberg.avro.resolver import EnumReader, resolve_reader
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestEntryStatus,
)
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import StructType
from pyiceberg.utils.decimal import bytes_to_decimal, decimal_required_bytes

from ...columns.avro._decoder import UNREAD, Block, EncodedFile, Kind, Shape, read_records
from ...columns.avro.container import Container
from ...columns.avro.schema import layout
from ...engine._key_metadata import EncodedKeyMetadata
from ...errors import FormatError

__all__ = [
    "DATA_FILE",
    "MANIFEST_ENTRY",
    "MANIFEST_ENTRY_SCHEMAS",
    "MANIFEST_FILE",
    "MANIFEST_LIST_FILE_SCHEMAS",
    "Field",
    "NamedRecord",
    "RecordShape",
    "inherit",
    "read_avro_records",
    "record_values",
]

if TYPE_CHECKING:
    from typing_extensions import Self

_T = TypeVar("_T")


def _names(struct_type: StructType) -> tuple[str, ...]:
    return tuple(field.name for field in struct_type.fields)


# The names of the specification's fields, in the order in which PyIceberg's records have them.
DATA_FILE = _names(DATA_FILE_TYPE[3])
MANIFEST_ENTRY = _names(MANIFEST_ENTRY_SCHEMAS[3].as_struct())
MANIFEST_FILE = _names(MANIFEST_LIST_FILE_SCHEMAS[3].as_struct())


def record_values(record: Record) -> tuple[Any, ...]:
    """Return a record's values, in its order."""
    values: list[Any] = record._data
    if isinstance(record, FileRecord):
        values = [record[at] for at in range(len(values))]
    return tuple(values)


class Field(Generic[_T]):
    """A field of a record, under the name that the specification gives it."""

    def __set_name__(self, owner: type[NamedRecord], name: str) -> None:
        self._position = owner.names.index(name)

    def __get__(self, record: Record | None, owner: type) -> _T:
        if record is None:
            # It is read from the class, as ``inspect`` and completion in a shell do.
            return self  # type: ignore[return-value]
        value: _T = record[self._position]
        return value

    def __set__(self, record: Record, value: _T) -> None:
        record[self._position] = value


class NamedRecord(Record):
    """A record of PyIceberg with the names of its fields, in the order of the specification."""

    names: ClassVar[tuple[str, ...]]

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Return the record with these fields. Others are None. Raises TypeError for a field that
        the specification does not have."""
        if unknown := fields.keys() - set(cls.names):
            raise TypeError(f"{cls.__name__} has no field {', '.join(sorted(unknown))}")
        return cls(*map(fields.get, cls.names))

    def fields(self) -> dict[str, Any]:
        """Return the fields by name, in the order of the specification, and without a key."""
        return dict(zip(self.names, record_values(self), strict=True))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these fields changed."""
        return self.of(**{**self.fields(), **changes})


class FileRecord(NamedRecord):
    """The record of a file. ``lazy`` names the fields that are decoded when they are asked for;
    until then, ``encoded`` has them. It is None if the record was not read."""

    lazy: ClassVar[tuple[str, ...]]
    encoded: EncodedFile | None = None

    def __getitem__(self, pos: int) -> Any:
        value = self._data[pos]
        if value is UNREAD:
            # The value is not kept: for many files, it takes more memory than all else.
            assert self.encoded is not None
            return self.encoded.value(pos)
        return value


def inherit(entries: Iterable[Any], manifest: Any, first_row_id: int | None) -> None:
    """Give entries that were just read what they inherit from their manifest, as PyIceberg's
    ``_inherit_from_manifest`` does: snapshot, sequence numbers and partition spec. Live files
    without a row ID get theirs, from ``first_row_id`` on, unless that is None. The records are
    handled as lists, because there may be many."""
    added_by, number = manifest.added_snapshot_id, manifest.sequence_number
    spec_id = manifest.partition_spec_id
    key_at, rows_at, row_id_at = map(DATA_FILE.index, ("key_metadata", *_ROWS))
    for entry in entries:
        status, snapshot_id, sequence_number, file_sequence_number, file = values = entry._data
        if snapshot_id is None:
            values[1] = added_by
        # In version 1, files have no sequence numbers. Later, those that a snapshot adds lack them.
        if status == ManifestEntryStatus.ADDED or number == 0:
            if sequence_number is None:
                values[2] = sequence_number = number
            if file_sequence_number is None:
                values[3] = number
        file._spec_id = spec_id
        file.sequence_number = sequence_number
        fields = file._data
        file._key_bytes, fields[key_at] = fields[key_at], None
        is_live = status != ManifestEntryStatus.DELETED
        if first_row_id is not None and is_live and fields[row_id_at] is None:
            fields[row_id_at] = first_row_id
            first_row_id += fields[rows_at]


_ROWS = "record_count", "first_row_id"


class RecordShape:
    """The schema with which records are read, and their Python types by field ID. If ``only`` is
    given, the records have just the fields with these IDs. All bytes are checked all the same."""

    def __init__(
        self,
        read_schema: Schema,
        read_types: Mapping[int, Any],
        read_enums: Mapping[int, Any],
        only: Collection[int] | None = None,
    ) -> None:
        self._only = only
        self._read_schema = read_schema
        self._read_types = dict(read_types)
        self._read_enums = dict(read_enums)
        # Most files of a table have the same schema, and resolving it costs more than reading.
        self.resolved = functools.lru_cache(maxsize=256)(self._resolve)

    def reader(self, avro_schema: str) -> readers.Reader:
        """Return PyIceberg's reader of records with this schema (JSON)."""
        schema = json.loads(avro_schema)
        _check_expansion(schema, _FREE_SCHEMA_SIZE + _MAX_SCHEMA_GROWTH * len(avro_schema))
        readable = json.dumps(_readable(schema, {}))
        header = AvroFileHeader(None, {"avro.schema": readable}, None)
        return resolve_reader(
            header.get_schema(), self._read_schema, self._read_types, self._read_enums
        )

    def _resolve(self, avro_schema: str) -> tuple[tuple[Shape, ...], str]:
        """Return the shapes that records with this schema (JSON) may have, and their layout.

        Java writes the number of bytes before a partition value of type fixed, although its schema
        says fixed. Such a block can look sound in the schema's form too, if the values end in bytes
        from 0x80 on: those make one number with the next. A block of the schema's form has the
        right number before each value by chance only, so Java's form comes first."""
        forms = (Kind.PREFIXED, Kind.FIXED) if '"fixed"' in avro_schema else (Kind.FIXED,)
        reader = self.reader(avro_schema)
        shapes = tuple(_shape(reader, self._only, fixed=form) for form in forms)
        return shapes, layout(json.loads(avro_schema))


class _Members(dict[Any, Enum]):
    """The members of an enumeration by their values. What the enumeration understands besides is
    looked up there."""

    def __init__(self, members: Any) -> None:
        super().__init__({member.value: member for member in members})
        self._members = members

    def __missing__(self, value: Any) -> Any:
        return self._members(value)


def _shape(
    reader: Any,
    only: Collection[int] | None = None,
    of_bytes: Callable[[bytes], Any] | None = None,
    *,
    fixed: Kind = Kind.FIXED,
) -> Shape:
    """Return what a reader of PyIceberg reads, for the compiled decoder. ``only`` is that of
    ``RecordShape``. ``of_bytes`` makes the value of a field of bytes. ``fixed`` is the form of type
    fixed outside of lists and maps. Raises TypeError for a reader that this version does not
    know."""
    match reader:
        case readers.OptionReader():
            part = _shape(reader.option, of_bytes=of_bytes, fixed=fixed)
            return Shape(Kind.OPTION, parts=(part,))
        case readers.StructReader():
            return _record_shape(reader, only, fixed)
        case readers.ListReader():
            return Shape(Kind.LIST, parts=(_shape(reader.element),))
        case readers.MapReader():
            return Shape(Kind.PAIRS, parts=(_shape(reader.key), _shape(reader.value)))
        case EnumReader():
            kind = _SIMPLE[type(reader.reader)]
            return Shape(kind, members=_Members(reader.enum).__getitem__)
        case readers.DefaultReader():
            return Shape(Kind.CONSTANT, value=reader.default_value)
        case readers.NoneReader() | readers.UnknownReader():
            return Shape(Kind.CONSTANT)
        case readers.FixedReader():
            return Shape(fixed, size=len(reader))
        case readers.UUIDReader():
            return Shape(Kind.FIXED, size=16, value=lambda data: UUID(bytes=data))
        case readers.DecimalReader():
            decimal = functools.partial(bytes_to_decimal, scale=reader.scale)
            size = decimal_required_bytes(reader.precision)
            return Shape(Kind.FIXED, size=size, value=decimal)
        case readers.IntegerReader():
            # Dates and times are its subclasses.
            return Shape(Kind.LONG)
    if type(reader) not in _SIMPLE:
        raise TypeError(f"{reader} is not known")
    return Shape(_SIMPLE[type(reader)], value=of_bytes)


def _record_shape(reader: readers.StructReader, only: Collection[int] | None, fixed: Kind) -> Shape:
    made: Any = reader.create_struct
    fields = reader.struct.fields
    kept = [at for at, field in enumerate(fields) if only is None or field.field_id in only]
    places = [kept.index(at) if at in kept else -1 for at, _ in reader.field_readers]
    parts = tuple(
        _shape(
            part,
            only,
            EncodedKeyMetadata if at in kept and fields[at].field_id in _KEYS else None,
            fixed=fixed,
        )
        for at, part in reader.field_readers
    )
    lazy: list[int] = []
    row_id = -1
    if issubclass(made, FileRecord):
        lazy = [made.names.index(name) for name in made.lazy]
        row_id = made.names.index("first_row_id")
    return Shape(
        Kind.STRUCT,
        parts=parts,
        places=places,
        size=1 + max(places, default=-1),
        value=made,
        lazy=lazy,
        row_id=row_id,
    )


# How large a few bytes may become in memory: real manifests grow by a tenth of that.
_FREE_SIZE, _MAX_GROWTH = 1 << 20, 256
_FREE_SCHEMA_SIZE, _MAX_SCHEMA_GROWTH = 1 << 18, 16
# The fields with the key metadata of a data file and of a manifest.
_KEYS = frozenset((131, 519))

_SIMPLE = {
    readers.BooleanReader: Kind.BOOLEAN,
    readers.IntegerReader: Kind.LONG,
    readers.FloatReader: Kind.FLOAT,
    readers.DoubleReader: Kind.DOUBLE,
    readers.StringReader: Kind.STRING,
    readers.BinaryReader: Kind.BYTES,
}


# The keys of a type's JSON that have other types.
_TYPES = ("type", "items", "values", "fields")


def _check_expansion(schema: Any, limit: int) -> None:
    """Raise FormatError if a schema has more than ``limit`` characters once each name in it is
    replaced by its type: some records that each have two fields of the one before grow without
    end."""
    named: dict[str, Any] = {}
    to_see, size = [schema], 0
    while to_see:
        part = to_see.pop()
        part = named.get(part, part) if isinstance(part, str) else part
        inside: list[Any] = []
        if isinstance(part, dict):
            inside = [part.get(key) for key in _TYPES]
            if part.get("type") in ("record", "fixed", "enum"):
                named[str(part.get("name"))] = part
                inside = inside[1:]
            size += sum(len(str(value)) for key, value in part.items() if key not in _TYPES)
        elif isinstance(part, list):
            inside = part
        # In the order of the text, because a type is defined before its name is used.
        to_see += reversed(inside)
        size += 1
        if size > limit:
            raise FormatError("the file's schema is too large, with the types that it names")


def _readable(avro_type: Any, named: dict[str, Any]) -> Any:
    """Return an Avro schema's JSON in a form that PyIceberg can read. PyIceberg does not know
    timestamps in nanoseconds, nor names of types that were defined earlier in the schema; Avro
    requires such a name if a schema has two UUID fields."""
    if isinstance(avro_type, str):
        return named.get(avro_type, avro_type)
    if isinstance(avro_type, list):
        return [_readable(branch, named) for branch in avro_type]
    readable = dict(avro_type)
    if readable.get("logicalType") == "timestamp-nanos":
        del readable["logicalType"]
    for part in ("type", "items", "values"):
        if part in readable:
            readable[part] = _readable(readable[part], named)
    if "fields" in readable:
        readable["fields"] = [_readable(field, named) for field in readable["fields"]]
    if readable.get("type") in ("record", "fixed", "enum"):
        named[readable["name"]] = readable
    return readable


def read_avro_records(data: bytes, shape: RecordShape) -> tuple[dict[str, str], list[Any]]:
    """Return the header's properties and the records of an Avro file in memory. PyIceberg's own
    ``AvroFile`` does the same from a file. It resolves the schema each time, and reads beyond the
    end of truncated bytes. Raises what parsing raises, and FormatError if the file, decompressed,
    has more than 1 MiB and 256 times its stored size."""
    limit = _FREE_SIZE + _MAX_GROWTH * len(data)
    container = Container(lambda offset, size: data[offset : offset + size], len(data), limit)
    properties = {name: text.decode() for name, text in container.metadata.items()}
    shapes, file_layout = shape.resolved(properties["avro.schema"])
    blocks = []
    for count, stored in container.stored_blocks():
        text = bytes(container.decompressed(stored))
        limit -= len(text)
        if limit < 0:
            raise FormatError("the file is too large, decompressed")
        blocks.append(Block(text, bytes(stored), container.codec, file_layout, count))
    for form in shapes[:-1]:
        with suppress(EOFError, ValueError):
            return properties, _records(blocks, form)
    return properties, _records(blocks, shapes[-1])


def _records(blocks: Iterable[Block], shape: Shape) -> list[Any]:
    return [record for block in blocks for record in read_records(block, shape)]
