"""Makes the program with which ``_program`` reads the rows of an Avro file as a table's columns.

The program follows from the file's schema and the table's schema. Fields are matched by their ids
(Iceberg specification, "Column projection"); a file without ids needs the table's name mapping.
Types may differ as "Schema Evolution" allows. Java's ``TypeToSchema`` says how each Iceberg type is
written. This module also makes Arrow arrays of the columns that the program fills. It is
independent of files. The file's schema is not trusted: its depth, and the number of steps that it
makes, are limited.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg import types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping

from ...errors import FormatError
from ..arrow_nested import without_hidden_nulls
from ._columns import Layout, Memory
from ._program import ColumnLayout, Decoder, Instruction, Step
from .types import MAX_AVRO_DEPTH, MAX_STEPS, AvroTypes, fields_of, has_ids, shown
from .variants import is_stored_variant

_MAX_DECIMAL_DIGITS = 38

_Taken = list[tuple[int, int, "Memory | None", "Memory | None", "Memory | None"]]


@dataclass(frozen=True, slots=True)
class _Target:
    """A column, field or element as the table has it."""

    type: types.IcebergType
    arrow: pa.DataType
    required: bool


@dataclass(frozen=True, slots=True)
class _Constant:
    """A column that is not in the file: all of its values are the same."""

    type: pa.DataType
    value: pa.Scalar | None

    def array(self, taken: _Taken, length: int) -> pa.Array:
        if self.value is None:
            return without_hidden_nulls(pa.nulls(length, self.type))
        return pa.repeat(self.value, length)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column that the decoder fills. ``number`` is its number there."""

    type: pa.DataType
    number: int
    inside: tuple[_Node, ...] = ()

    def array(self, taken: _Taken, length: int) -> pa.Array:
        if length == 0:
            return pa.nulls(0, self.type)
        got, nulls, validity, offsets, data = taken[self.number]
        if got != length:
            raise RuntimeError(f"a column of {got} values among {length}")
        storage = self.type.storage_type if isinstance(self.type, pa.BaseExtensionType) else None
        plain = self.type if storage is None else storage
        if pa.types.is_struct(plain):
            children = [node.array(taken, length) for node in self.inside]
            buffers = [_buffer(validity)]
        elif pa.types.is_large_list(plain):
            children = [self.inside[0].array(taken, _last_offset(offsets, "<q"))]
            buffers = [_buffer(validity), _buffer(offsets)]
        elif pa.types.is_map(plain):
            items = _last_offset(offsets, "<i")
            arrays = [node.array(taken, items) for node in self.inside]
            pairs = pa.struct([plain.key_field, plain.item_field])
            children = [pa.Array.from_buffers(pairs, items, [None], 0, children=arrays)]
            buffers = [_buffer(validity), _buffer(offsets)]
        elif offsets is not None:
            children, buffers = None, [_buffer(validity), _buffer(offsets), _content(data)]
        else:
            children, buffers = None, [_buffer(validity), _content(data)]
        array = pa.Array.from_buffers(plain, length, buffers, nulls, children=children)
        return array if storage is None else pa.ExtensionArray.from_storage(self.type, array)


_Node = _Constant | _Column


def _buffer(memory: Memory | None) -> pa.Buffer | None:
    return None if memory is None else pa.py_buffer(memory)


def _content(memory: Memory | None) -> pa.Buffer:
    # If there are no bytes, for example of empty strings, Arrow still requires a buffer.
    return pa.py_buffer(b"" if memory is None else memory)


def _last_offset(offsets: Memory | None, form: str) -> int:
    if offsets is None:
        return 0
    view = memoryview(offsets)
    (end,) = struct.unpack(form, view[-struct.calcsize(form) :])
    return int(end)


class Projection:
    """How to read files of ``avro_schema``, as parsed from JSON, as rows of ``schema``.

    ``name_mapping`` gives ids to the fields of a file that has none. ``missing_values`` has, by
    field id, values of fields that the file lacks (identity partition values). If it has no value
    for a field, the field has its initial default or, without a default, null. Raises FormatError
    if the file's schema is not an Avro schema, is not one that Iceberg writes, or cannot be read as
    the table's.
    """

    def __init__(
        self,
        avro_schema: object,
        schema: Schema,
        *,
        name_mapping: NameMapping | None = None,
        missing_values: Mapping[int, Any] | None = None,
    ) -> None:
        self.schema: pa.Schema = schema_to_pyarrow(schema, include_field_ids=False)
        arrow = pa.struct(list(self.schema))
        mapping = None
        if not has_ids(avro_schema):
            if name_mapping is None:
                raise FormatError("the fields have no ids, and the table has no name mapping")
            mapping = list(name_mapping)
        compiler = _Compiler(missing_values or {})
        target = _Target(schema.as_struct(), arrow, True)
        self._nodes = compiler.rows(avro_schema, _Spot(target, "", mapping))
        self._program, self._columns = compiler.program, compiler.columns
        self._symbols = compiler.symbols

    def decoder(self) -> Decoder:
        """Return a new decoder. Each thread needs its own."""
        return Decoder(self._program, self._columns, self._symbols)

    def batch(self, decoder: Decoder, rows: int) -> pa.RecordBatch:
        """Return the rows that ``decoder`` has read. ``rows`` is their number."""
        taken = decoder.take()
        arrays = [node.array(taken, rows) for node in self._nodes]
        if not arrays:
            # A batch without columns gets its number of rows in this way.
            nothing = pa.Array.from_buffers(pa.struct([]), rows, [None], 0, children=[])
            return pa.RecordBatch.from_struct_array(nothing)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


# The table's mapping from names to ids at one level of the schema. None if the file has ids.
_Mapping = Sequence[MappedField] | None


class _Spot(NamedTuple):
    """A place in the file's schema: what the table wants there (None if it wants nothing), what
    messages call it, and the mapping of the fields inside."""

    target: _Target | None
    path: str
    mapping: _Mapping

    def inside(self, name: str, target: _Target | None) -> _Spot:
        """Return the place of a list's element, or of a map's key or value."""
        mapping = self.mapping
        if mapping is not None:
            mapping = next((field.fields for field in mapping if name in field.names), [])
        return _Spot(target, f"{self.path}.{name}", mapping)


class _Compiler:
    """Goes through the file's schema in the order of the values in a row."""

    def __init__(self, missing_values: Mapping[int, Any]) -> None:
        self.program: list[Instruction] = []
        self.columns: list[ColumnLayout] = []
        self.symbols: list[bytes] = []
        self._missing_values = missing_values
        self._types = AvroTypes()
        self._depth = 0

    def rows(self, schema: object, at: _Spot) -> tuple[_Node, ...]:
        kind, definition, namespace = self._types.resolve(schema, "", "the schema")
        if kind != "record":
            raise FormatError(f"the rows of an Iceberg file are records, not {shown(kind)}")
        step = self._step(Step.RECORD, "a row")
        nodes = self._fields(definition, namespace, at)
        self._end(step)
        return nodes

    # -- the lists of instructions and of columns

    def _step(self, step: Step, path: str, column: int = -1, **parameters: int) -> Instruction:
        if len(self.program) >= MAX_STEPS:
            raise FormatError("the file's schema is too large")
        end = len(self.program) + 1
        self.program.append(Instruction(step, path, end, column, **parameters))
        return self.program[-1]

    def _end(self, instruction: Instruction) -> None:
        instruction.end = len(self.program)

    def _column(self, layout: Layout, target: _Target, width: int = 0) -> int:
        end = len(self.columns) + 1
        self.columns.append(ColumnLayout(layout, end, width, not target.required))
        return len(self.columns) - 1

    def _node(
        self, target: _Target | None, column: int, inside: Sequence[_Node | None]
    ) -> _Column | None:
        """End a column that has others inside."""
        if target is None:
            return None
        self.columns[column].end = len(self.columns)
        return _Column(target.arrow, column, tuple(node for node in inside if node is not None))

    # -- the types

    def _value(self, schema: object, namespace: str, at: _Spot) -> _Node | None:
        """Append the instructions for one value; return its column, or None without a target."""
        self._depth += 1
        if self._depth > MAX_AVRO_DEPTH:
            raise FormatError(f"the file's types are nested more than {MAX_AVRO_DEPTH} deep")
        kind, definition, inside = self._types.resolve(schema, namespace, at.path)
        node: _Node | None = None
        if kind == "union":
            node = self._union(definition, inside, at)
        elif kind == "record":
            node = self._record(definition, inside, at)
        elif kind == "array":
            node = self._array(definition, inside, at)
        elif kind == "map":
            node = self._map(definition, inside, at)
        elif kind != "null":
            node = self._primitive(kind, definition, at)
        else:
            self._step(Step.NOTHING, at.path)
            if at.target is not None:
                if at.target.required:
                    raise FormatError(
                        f"{at.path}: always null in the file, but the table requires a value"
                    )
                node = _Constant(at.target.arrow, None)
        self._depth -= 1
        return node

    def _union(self, branches: list[Any], namespace: str, at: _Spot) -> _Node | None:
        # Do not resolve the type here: that would define names twice and out of order.
        null = [n for n, branch in enumerate(branches) if branch in ("null", {"type": "null"})]
        if len(branches) == 1:
            step, inside = self._step(Step.ONLY, at.path), branches[0]
        elif len(branches) == 2 and len(null) == 1:
            step = self._step(Step.OPTION, at.path, null_branch=null[0])
            inside = branches[1 - null[0]]
        else:
            raise FormatError(f"{at.path}: Iceberg knows no unions but those of null and one type")
        node = self._value(inside, namespace, at)
        if isinstance(node, _Column):
            step.column = node.number
        self._end(step)
        return node

    def _record(self, definition: dict[str, Any], namespace: str, at: _Spot) -> _Node | None:
        column, is_variant = -1, definition.get("logicalType") == "variant"
        if at.target is not None:
            kind = at.target.type
            if not isinstance(kind, types.StructType) or is_stored_variant(kind) != is_variant:
                raise _mismatch(at.path, "variant" if is_variant else "record", kind)
            column = self._column(Layout.STRUCT, at.target)
            if is_variant:
                # Its fields have no ids in the file.
                ids = {field.name: field.field_id for field in kind.fields}
                fields = [
                    {**field, "field-id": ids.get(field["name"])}
                    for field in fields_of(definition, at.path)
                ]
                definition, at = {**definition, "fields": fields}, at._replace(mapping=None)
        step = self._step(Step.RECORD, at.path, column)
        nodes = self._fields(definition, namespace, at)
        self._end(step)
        return self._node(at.target, column, nodes)

    def _fields(self, definition: dict[str, Any], namespace: str, at: _Spot) -> tuple[_Node, ...]:
        """Append a record's instructions; return its columns in the table's order."""
        wanted: dict[int, _Target] = {}
        fields: tuple[types.NestedField, ...] = ()
        if at.target is not None and isinstance(at.target.type, types.StructType):
            fields = at.target.type.fields
            for n, field in enumerate(fields):
                arrow = at.target.arrow.field(n).type
                wanted[field.field_id] = _Target(field.field_type, arrow, field.required)
        by_id: dict[int, _Node] = {}
        with self._types.inside(definition, namespace, at.path):
            for stored in fields_of(definition, at.path):
                below = f"{at.path}.{stored['name']}" if at.path else stored["name"]
                field_id, mapping = _field_id(stored, at.mapping, below)
                if field_id in by_id:
                    raise FormatError(f"{below}: another field has the id {field_id} too")
                target = wanted.get(field_id) if field_id is not None else None
                node = self._value(stored["type"], namespace, _Spot(target, below, mapping))
                if node is not None and field_id is not None:
                    by_id[field_id] = node
        return tuple(
            by_id.get(field.field_id) or self._missing(field, wanted[field.field_id].arrow, at.path)
            for field in fields
        )

    def _missing(self, field: types.NestedField, arrow: pa.DataType, path: str) -> _Constant:
        value = self._missing_values.get(field.field_id)
        if value is None:
            value = default_of(field, "initial_default")
        name = f"{path}.{field.name}" if path else field.name
        if value is None:
            if field.required:
                raise FormatError(f"{name}: required, without a default, and not in the file")
            return _Constant(arrow, None)
        try:
            return _Constant(arrow, pa.scalar(value, type=arrow))
        except (pa.ArrowException, TypeError, ValueError):
            raise FormatError(f"{name}: its default is no {field.field_type}") from None

    def _array(self, definition: dict[str, Any], namespace: str, at: _Spot) -> _Node | None:
        items = definition.get("items")
        if definition.get("logicalType") == "map":
            return self._pairs(items, namespace, at)
        column, element = -1, None
        if at.target is not None:
            kind = at.target.type
            if not isinstance(kind, types.ListType):
                raise _mismatch(at.path, "array", kind)
            element = _Target(kind.element_type, at.target.arrow.value_type, kind.element_required)
            column = self._column(Layout.LARGE_LIST, at.target)
        step = self._step(Step.LIST, at.path, column)
        node = self._value(items, namespace, at.inside("element", element))
        self._end(step)
        return self._node(at.target, column, [node])

    def _map(self, definition: dict[str, Any], namespace: str, at: _Spot) -> _Node | None:
        column, key, value = self._map_column(at)
        step = self._step(Step.LIST, at.path, column)
        nodes = [
            self._value("string", "", at.inside("key", key)),
            self._value(definition.get("values"), namespace, at.inside("value", value)),
        ]
        self._end(step)
        return self._node(at.target, column, nodes)

    def _pairs(self, items: object, namespace: str, at: _Spot) -> _Node | None:
        """A map whose keys are not strings: an array of records of key and value."""
        column, key, value = self._map_column(at)
        step = self._step(Step.LIST, at.path, column)
        kind, definition, inside = self._types.resolve(items, namespace, at.path)
        fields = fields_of(definition, at.path) if kind == "record" else []
        if [field["name"] for field in fields] != ["key", "value"]:
            raise FormatError(f"{at.path}: a map's array has records of key and value")
        record = self._step(Step.RECORD, at.path)
        with self._types.inside(definition, inside, at.path):
            nodes = [
                self._value(field["type"], inside, at.inside(field["name"], target))
                for field, target in zip(fields, (key, value), strict=True)
            ]
        self._end(record)
        self._end(step)
        return self._node(at.target, column, nodes)

    def _map_column(self, at: _Spot) -> tuple[int, _Target | None, _Target | None]:
        if at.target is None:
            return -1, None, None
        arrow, kind = at.target.arrow, at.target.type
        if not isinstance(kind, types.MapType):
            raise _mismatch(at.path, "map", kind)
        key = _Target(kind.key_type, arrow.key_type, True)
        value = _Target(kind.value_type, arrow.item_type, kind.value_required)
        return self._column(Layout.SMALL_LIST, at.target), key, value

    def _primitive(self, kind: str, definition: dict[str, Any], at: _Spot) -> _Node | None:
        target, path, parameters = at.target, at.path, {}
        if kind == "fixed":
            parameters["size"] = _size(definition, path)
        elif kind == "enum":
            parameters = self._enum(definition, path)
        if target is None:
            # A value that no column wants is read by the step that has the name of its type.
            self._step(Step[kind.upper()], path, **parameters)
            return None
        readable = (
            _decimal(kind, definition, target.type, path)
            if definition.get("logicalType") == "decimal" and kind in ("bytes", "fixed")
            else _number(kind, definition, target.type)
        )
        if readable is None:
            raise _mismatch(path, definition.get("logicalType") or kind, target.type)
        step, factor_or_digits = readable
        if step is Step.SCALED:
            parameters["factor"] = factor_or_digits
            if isinstance(target.type, types.TimeType):
                parameters["below"] = _DAY_SECONDS * 10**6
        elif step in (Step.DECIMAL_BYTES, Step.DECIMAL_FIXED):
            parameters["digits"] = factor_or_digits
        column = self._leaf(target)
        self._step(step, path, column, **parameters)
        return _Column(target.arrow, column)

    def _leaf(self, target: _Target) -> int:
        arrow = target.arrow
        if isinstance(arrow, pa.BaseExtensionType):
            arrow = arrow.storage_type
        if pa.types.is_boolean(arrow):
            return self._column(Layout.BITS, target)
        if pa.types.is_large_string(arrow) or pa.types.is_large_binary(arrow):
            return self._column(Layout.VARIABLE, target)
        return self._column(Layout.WIDE, target, arrow.bit_width // 8)

    def _enum(self, definition: dict[str, Any], path: str) -> dict[str, int]:
        symbols = definition.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(s, str) and s for s in symbols):
            raise FormatError(f"{path}: an enum has no symbols")
        first = len(self.symbols)
        try:
            self.symbols += [symbol.encode() for symbol in symbols]
        except UnicodeEncodeError:
            raise FormatError(f"{path}: a symbol of an enum is not UTF-8") from None
        return {"first_symbol": first, "symbol_count": len(symbols)}


def _field_id(field: dict[str, Any], mapping: _Mapping, path: str) -> tuple[int | None, _Mapping]:
    """Return the field's id (None if it has none), and the mapping for the fields inside it."""
    if mapping is not None:
        mapped = next((m for m in mapping if field["name"] in m.names), None)
        return (None, []) if mapped is None else (mapped.field_id, mapped.fields)
    field_id = field.get("field-id")
    if field_id is not None and type(field_id) is not int:
        raise FormatError(f"{path}: its field id is not a number")
    return field_id, None


def default_of(field: types.NestedField, name: str) -> Any:
    """Return a field's ``initial_default`` or ``write_default``. The default of a struct
    consists of those of its fields (specification, "Default values")."""
    value = getattr(field, name)
    if value is not None and isinstance(field.field_type, types.StructType):
        return {inner.name: default_of(inner, name) for inner in field.field_type.fields}
    return value


def _mismatch(path: str, kind: object, wanted: types.IcebergType) -> FormatError:
    return FormatError(f"{path}: {shown(str(kind))} can't be read as {wanted}")


def _size(definition: dict[str, Any], path: str) -> int:
    size = definition.get("size")
    if type(size) is not int or not 0 <= size < 1 << 31:
        raise FormatError(f"{path}: a fixed type has no size")
    return size


# -- the types as which a primitive type of the file can be read

_DAY_SECONDS = 24 * 60 * 60
_Kind = type[types.IcebergType]
_ANY_TIMESTAMP: tuple[_Kind, ...] = (types.TimestamptzType, types.TimestampType)
_ANY_NANO_TIMESTAMP: tuple[_Kind, ...] = (types.TimestamptzNanoType, types.TimestampNanoType)

# For each Avro type with its logical type: the types as which its values can be read, the step, and
# the factor of SCALED. The first type is that of a new column.
READABLE: dict[tuple[str, str | None], list[tuple[tuple[_Kind, ...], Step, int]]] = {
    ("boolean", None): [((types.BooleanType,), Step.BOOLEAN, 0)],
    ("int", None): [((types.IntegerType,), Step.INT, 0), ((types.LongType,), Step.INT_AS_LONG, 0)],
    ("int", "date"): [
        ((types.DateType,), Step.INT, 0),
        ((types.TimestampType,), Step.SCALED, _DAY_SECONDS * 10**6),
        ((types.TimestampNanoType,), Step.SCALED, _DAY_SECONDS * 10**9),
    ],
    ("int", "time-millis"): [((types.TimeType,), Step.SCALED, 1000)],
    ("long", None): [((types.LongType,), Step.LONG, 0)],
    ("long", "time-micros"): [((types.TimeType,), Step.SCALED, 1)],
    ("long", "timestamp-millis"): [(_ANY_TIMESTAMP, Step.SCALED, 1000)],
    ("long", "timestamp-micros"): [(_ANY_TIMESTAMP, Step.LONG, 0)],
    ("long", "timestamp-nanos"): [(_ANY_NANO_TIMESTAMP, Step.LONG, 0)],
    ("long", "local-timestamp-millis"): [((types.TimestampType,), Step.SCALED, 1000)],
    ("long", "local-timestamp-micros"): [((types.TimestampType,), Step.LONG, 0)],
    ("long", "local-timestamp-nanos"): [((types.TimestampNanoType,), Step.LONG, 0)],
    ("float", None): [
        ((types.FloatType,), Step.FLOAT, 0),
        ((types.DoubleType,), Step.FLOAT_AS_DOUBLE, 0),
    ],
    ("double", None): [((types.DoubleType,), Step.DOUBLE, 0)],
    ("bytes", None): [((types.BinaryType, types.GeometryType, types.GeographyType), Step.BYTES, 0)],
    ("string", None): [((types.StringType,), Step.STRING, 0)],
    ("enum", None): [((types.StringType,), Step.ENUM, 0)],
}
# A value of these logical types may not be read as its plain Avro type. All other logical types are
# ignored, as Avro's specification demands.
_LOGICAL = frozenset(name for _, name in READABLE) | {"decimal", "uuid", "duration"}


def _number(
    kind: str, definition: dict[str, Any], wanted: types.IcebergType
) -> tuple[Step, int] | None:
    logical = definition.get("logicalType")
    if not isinstance(logical, str) or logical not in _LOGICAL:
        logical = None
    if kind == "fixed":
        if isinstance(wanted, types.FixedType) and logical is None:
            return (Step.FIXED, 0) if definition["size"] == len(wanted) else None
        is_uuid = isinstance(wanted, types.UUIDType) and logical in (None, "uuid")
        return (Step.FIXED, 0) if is_uuid and definition["size"] == 16 else None
    for kinds, step, factor in READABLE.get((kind, logical), ()):
        if isinstance(wanted, kinds) and has_zone_of(definition, type(wanted)):
            return step, factor
    return None


def has_zone_of(definition: dict[str, Any], wanted: _Kind) -> bool:
    """Whether ``adjust-to-utc``, which only Iceberg's writers set, fits a type of timestamps."""
    adjusted = definition.get("adjust-to-utc")
    if not isinstance(adjusted, bool) or definition.get("logicalType") == "date":
        return True
    return adjusted == issubclass(wanted, (types.TimestamptzType, types.TimestamptzNanoType))


def _decimal(
    kind: str, definition: dict[str, Any], wanted: types.IcebergType, path: str
) -> tuple[Step, int] | None:
    precision, scale = definition.get("precision"), definition.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        raise FormatError(f"{path}: a decimal has no precision or scale")
    if not isinstance(wanted, types.DecimalType) or scale != wanted.scale:
        return None
    if not 0 < precision <= wanted.precision <= _MAX_DECIMAL_DIGITS:
        return None
    return Step.DECIMAL_BYTES if kind == "bytes" else Step.DECIMAL_FIXED, precision
