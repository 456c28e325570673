"""Makes the program with which ``_avro`` reads the rows of an Avro file as a table's columns.

The program follows from the file's schema and the table's schema. Fields are matched by their ids
(Iceberg specification, "Column projection"). Types may differ as "Schema Evolution" allows. Java's
``TypeToSchema`` says how each Iceberg type is written. This module also makes Arrow arrays of the
columns that the program fills. It knows nothing of files. The file's schema is not trusted: its
depth, and the number of steps that it makes, are limited.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    GeographyType,
    GeometryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from ags1.errors import FormatError

from ._avro import ColumnLayout, Decoder, Instruction, Step
from ._avro_columns import Layout, Memory
from .avro_types import MAX_DEPTH, MAX_STEPS, AvroTypes, fields_of, has_ids, shown

_MAX_DECIMAL_DIGITS = 38

_Taken = list[tuple[int, int, "Memory | None", "Memory | None", "Memory | None"]]


@dataclass(frozen=True, slots=True)
class _Target:
    """A column, field or element as the table has it."""

    type: IcebergType
    arrow: pa.DataType
    required: bool


@dataclass(frozen=True, slots=True)
class _Constant:
    """A column that is not in the file: all of its values are the same."""

    type: pa.DataType
    value: pa.Scalar | None

    def array(self, taken: _Taken, length: int) -> pa.Array:
        if self.value is None:
            return pa.nulls(length, self.type)
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
    if the file's schema is not a schema of Avro, is not one that Iceberg writes, or cannot be read
    as the table's.
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
        self._nodes = compiler.rows(avro_schema, schema.as_struct(), arrow, mapping)
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


class _Compiler:
    """Goes through the file's schema in the order of the values in a row."""

    def __init__(self, missing_values: Mapping[int, Any]) -> None:
        self.program: list[Instruction] = []
        self.columns: list[ColumnLayout] = []
        self.symbols: list[bytes] = []
        self._missing_values = missing_values
        self._types = AvroTypes()
        self._depth = 0

    def rows(
        self, schema: object, target: StructType, arrow: pa.DataType, mapping: _Mapping
    ) -> tuple[_Node, ...]:
        kind, definition, namespace = self._types.resolve(schema, "", "the schema")
        if kind != "record":
            raise FormatError(f"the rows of an Iceberg file are records, not {shown(kind)}")
        step = self._step(Step.RECORD, "a row")
        nodes = self._fields(definition, namespace, target, arrow, "", mapping)
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

    def _end_column(self, column: int) -> None:
        self.columns[column].end = len(self.columns)

    # -- the types

    def _value(
        self, schema: object, namespace: str, target: _Target | None, path: str, mapping: _Mapping
    ) -> _Node | None:
        """Append the instructions for one value; return its column, or None without a target."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FormatError(f"the file's types are nested more than {MAX_DEPTH} deep")
        kind, definition, inside = self._types.resolve(schema, namespace, path)
        node: _Node | None
        if kind == "union":
            node = self._union(definition, inside, target, path, mapping)
        elif kind == "record":
            node = self._record(definition, inside, target, path, mapping)
        elif kind == "array":
            node = self._array(definition, inside, target, path, mapping)
        elif kind == "map":
            node = self._map(definition, inside, target, path, mapping)
        elif kind == "null":
            self._step(Step.NOTHING, path)
            node = None if target is None else self._unknown(target, path)
        else:
            node = self._primitive(kind, definition, target, path)
        self._depth -= 1
        return node

    def _unknown(self, target: _Target, path: str) -> _Constant:
        if target.required:
            raise FormatError(f"{path}: always null in the file, but the table requires a value")
        return _Constant(target.arrow, None)

    def _union(
        self,
        branches: list[Any],
        namespace: str,
        target: _Target | None,
        path: str,
        mapping: _Mapping,
    ) -> _Node | None:
        # Do not resolve the type here: that would define names twice and out of order.
        null = [n for n, branch in enumerate(branches) if branch in ("null", {"type": "null"})]
        if len(branches) == 1:
            step, inside = self._step(Step.ONLY, path), branches[0]
        elif len(branches) == 2 and len(null) == 1:
            step = self._step(Step.OPTION, path, null_branch=null[0])
            inside = branches[1 - null[0]]
        else:
            raise FormatError(f"{path}: Iceberg knows no unions but those of null and one type")
        node = self._value(inside, namespace, target, path, mapping)
        if isinstance(node, _Column):
            step.column = node.number
        self._end(step)
        return node

    def _record(
        self,
        definition: dict[str, Any],
        namespace: str,
        target: _Target | None,
        path: str,
        mapping: _Mapping,
    ) -> _Node | None:
        if target is None:
            step = self._step(Step.RECORD, path)
            self._fields(definition, namespace, None, None, path, mapping)
            self._end(step)
            return None
        if not isinstance(target.type, StructType) or definition.get("logicalType") == "variant":
            raise _mismatch(path, definition.get("logicalType") or "record", target.type)
        column = self._column(Layout.STRUCT, target)
        step = self._step(Step.RECORD, path, column)
        nodes = self._fields(definition, namespace, target.type, target.arrow, path, mapping)
        self._end_column(column)
        self._end(step)
        return _Column(target.arrow, column, nodes)

    def _fields(
        self,
        definition: dict[str, Any],
        namespace: str,
        target: StructType | None,
        arrow: pa.DataType | None,
        path: str,
        mapping: _Mapping,
    ) -> tuple[_Node, ...]:
        """Append the instructions for a record's fields; return their columns in the table's
        order."""
        wanted: dict[int, _Target] = {}
        if target is not None and arrow is not None:
            wanted = {
                field.field_id: _Target(field.field_type, arrow.field(n).type, field.required)
                for n, field in enumerate(target.fields)
            }
        by_id: dict[int, _Node] = {}
        with self._types.inside(definition, namespace, path):
            for field in fields_of(definition, path):
                below = f"{path}.{field['name']}" if path else field["name"]
                field_id, inside = _field_id(field, mapping, below)
                if field_id in by_id:
                    raise FormatError(f"{below}: another field has the id {field_id} too")
                goal = wanted.get(field_id) if field_id is not None else None
                node = self._value(field["type"], namespace, goal, below, inside)
                if node is not None and field_id is not None:
                    by_id[field_id] = node
        if target is None:
            return ()
        return tuple(
            by_id.get(field.field_id) or self._missing(field, wanted[field.field_id].arrow, path)
            for field in target.fields
        )

    def _missing(self, field: NestedField, arrow: pa.DataType, path: str) -> _Constant:
        value = self._missing_values.get(field.field_id)
        if value is None:
            value = field.initial_default
        name = f"{path}.{field.name}" if path else field.name
        if value is None:
            if field.required:
                raise FormatError(f"{name}: required, without a default, and not in the file")
            return _Constant(arrow, None)
        try:
            return _Constant(arrow, pa.scalar(value, type=arrow))
        except (pa.ArrowException, TypeError, ValueError):
            raise FormatError(f"{name}: its default is no {field.field_type}") from None

    def _array(
        self,
        definition: dict[str, Any],
        namespace: str,
        target: _Target | None,
        path: str,
        mapping: _Mapping,
    ) -> _Node | None:
        items = definition.get("items")
        if definition.get("logicalType") == "map":
            return self._pairs(items, namespace, target, path, mapping)
        element, inside = f"{path}.element", _inside(mapping, "element")
        if target is None:
            step = self._step(Step.LIST, path)
            self._value(items, namespace, None, element, inside)
            self._end(step)
            return None
        if not isinstance(target.type, ListType):
            raise _mismatch(path, "array", target.type)
        column = self._column(Layout.LARGE_LIST, target)
        step = self._step(Step.LIST, path, column)
        goal = _Target(
            target.type.element_type, target.arrow.value_type, target.type.element_required
        )
        node = self._value(items, namespace, goal, element, inside)
        self._end_column(column)
        self._end(step)
        return _Column(target.arrow, column, _present(node))

    def _map(
        self,
        definition: dict[str, Any],
        namespace: str,
        target: _Target | None,
        path: str,
        mapping: _Mapping,
    ) -> _Node | None:
        column, key, value = self._map_column(target, path)
        step = self._step(Step.LIST, path, column)
        nodes = (
            self._value("string", "", key, f"{path}.key", None),
            self._value(
                definition.get("values"),
                namespace,
                value,
                f"{path}.value",
                _inside(mapping, "value"),
            ),
        )
        self._end(step)
        return self._map_node(target, column, nodes)

    def _pairs(
        self, items: object, namespace: str, target: _Target | None, path: str, mapping: _Mapping
    ) -> _Node | None:
        """A map whose keys are not strings: an array of records of key and value."""
        column, key, value = self._map_column(target, path)
        step = self._step(Step.LIST, path, column)
        kind, definition, inside = self._types.resolve(items, namespace, path)
        fields = fields_of(definition, path) if kind == "record" else []
        if [field["name"] for field in fields] != ["key", "value"]:
            raise FormatError(f"{path}: a map's array has records of key and value")
        record = self._step(Step.RECORD, path)
        with self._types.inside(definition, inside, path):
            nodes = tuple(
                self._value(
                    field["type"],
                    inside,
                    goal,
                    f"{path}.{field['name']}",
                    _inside(mapping, field["name"]),
                )
                for field, goal in zip(fields, (key, value), strict=True)
            )
        self._end(record)
        self._end(step)
        return self._map_node(target, column, nodes)

    def _map_column(
        self, target: _Target | None, path: str
    ) -> tuple[int, _Target | None, _Target | None]:
        if target is None:
            return -1, None, None
        if not isinstance(target.type, MapType):
            raise _mismatch(path, "map", target.type)
        arrow, kind = target.arrow, target.type
        key = _Target(kind.key_type, arrow.key_type, True)
        value = _Target(kind.value_type, arrow.item_type, kind.value_required)
        return self._column(Layout.SMALL_LIST, target), key, value

    def _map_node(
        self, target: _Target | None, column: int, nodes: Iterable[_Node | None]
    ) -> _Node | None:
        if target is None:
            return None
        self._end_column(column)
        return _Column(target.arrow, column, tuple(node for node in nodes if node is not None))

    def _primitive(
        self, kind: str, definition: dict[str, Any], target: _Target | None, path: str
    ) -> _Node | None:
        parameters = {}
        if kind == "fixed":
            parameters["size"] = _size(definition, path)
        elif kind == "enum":
            parameters = self._enum(definition, path)
        if target is None:
            self._step(_SKIPPED[kind], path, **parameters)
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
            if isinstance(target.type, TimeType):
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


# The table's mapping from names to ids at one level of the schema. None if the file has ids.
_Mapping = Sequence[MappedField] | None


def _inside(mapping: _Mapping, name: str) -> _Mapping:
    if mapping is None:
        return None
    for field in mapping:
        if name in field.names:
            return field.fields
    return []


def _field_id(field: dict[str, Any], mapping: _Mapping, path: str) -> tuple[int | None, _Mapping]:
    """Return the field's id (None if it has none), and the mapping for the fields inside it."""
    if mapping is not None:
        for mapped in mapping:
            if field["name"] in mapped.names:
                return mapped.field_id, mapped.fields
        return None, []
    field_id = field.get("field-id")
    if field_id is not None and type(field_id) is not int:
        raise FormatError(f"{path}: its field id is not a number")
    return field_id, None


def _present(node: _Node | None) -> tuple[_Node, ...]:
    return () if node is None else (node,)


def _mismatch(path: str, kind: object, wanted: IcebergType) -> FormatError:
    return FormatError(f"{path}: {shown(str(kind))} can't be read as {wanted}")


def _size(definition: dict[str, Any], path: str) -> int:
    size = definition.get("size")
    if type(size) is not int or not 0 <= size < 1 << 31:
        raise FormatError(f"{path}: a fixed type has no size")
    return size


# -- the types as which a primitive type of the file can be read

_SKIPPED = {
    "boolean": Step.BOOLEAN,
    "int": Step.INT,
    "long": Step.LONG,
    "float": Step.FLOAT,
    "double": Step.DOUBLE,
    "bytes": Step.BYTES,
    "string": Step.STRING,
    "fixed": Step.FIXED,
    "enum": Step.ENUM,
}

_DAY_SECONDS = 24 * 60 * 60
_ANY_TIMESTAMP = (TimestampType, TimestamptzType)
_ANY_NANO_TIMESTAMP = (TimestampNanoType, TimestamptzNanoType)

_READABLE: dict[tuple[str, str | None], list[tuple[tuple[type[IcebergType], ...], Step, int]]] = {
    ("boolean", None): [((BooleanType,), Step.BOOLEAN, 0)],
    ("int", None): [((IntegerType,), Step.INT, 0), ((LongType,), Step.INT_AS_LONG, 0)],
    ("int", "date"): [
        ((DateType,), Step.INT, 0),
        ((TimestampType,), Step.SCALED, _DAY_SECONDS * 10**6),
        ((TimestampNanoType,), Step.SCALED, _DAY_SECONDS * 10**9),
    ],
    ("int", "time-millis"): [((TimeType,), Step.SCALED, 1000)],
    ("long", None): [((LongType,), Step.LONG, 0)],
    ("long", "time-micros"): [((TimeType,), Step.SCALED, 1)],
    ("long", "timestamp-millis"): [(_ANY_TIMESTAMP, Step.SCALED, 1000)],
    ("long", "timestamp-micros"): [(_ANY_TIMESTAMP, Step.LONG, 0)],
    ("long", "timestamp-nanos"): [(_ANY_NANO_TIMESTAMP, Step.LONG, 0)],
    ("long", "local-timestamp-millis"): [((TimestampType,), Step.SCALED, 1000)],
    ("long", "local-timestamp-micros"): [((TimestampType,), Step.LONG, 0)],
    ("long", "local-timestamp-nanos"): [((TimestampNanoType,), Step.LONG, 0)],
    ("float", None): [((FloatType,), Step.FLOAT, 0), ((DoubleType,), Step.FLOAT_AS_DOUBLE, 0)],
    ("double", None): [((DoubleType,), Step.DOUBLE, 0)],
    ("bytes", None): [((BinaryType, GeometryType, GeographyType), Step.BYTES, 0)],
    ("string", None): [((StringType,), Step.STRING, 0)],
    ("enum", None): [((StringType,), Step.ENUM, 0)],
}
# A value of these logical types may not be read as its plain Avro type. All other logical types are
# ignored, as Avro's specification demands.
_LOGICAL = frozenset(name for _, name in _READABLE) | {"decimal", "uuid", "duration"}


def _number(kind: str, definition: dict[str, Any], wanted: IcebergType) -> tuple[Step, int] | None:
    logical = definition.get("logicalType")
    if not isinstance(logical, str) or logical not in _LOGICAL:
        logical = None
    if kind == "fixed":
        if isinstance(wanted, FixedType) and logical is None:
            return (Step.FIXED, 0) if definition["size"] == len(wanted) else None
        is_uuid = isinstance(wanted, UUIDType) and logical in (None, "uuid")
        return (Step.FIXED, 0) if is_uuid and definition["size"] == 16 else None
    for types, step, factor in _READABLE.get((kind, logical), ()):
        if isinstance(wanted, types) and _same_zone(definition, wanted):
            return step, factor
    return None


def _same_zone(definition: dict[str, Any], wanted: IcebergType) -> bool:
    """Whether a timestamp's ``adjust-to-utc``, which only Iceberg's writers set, fits the table's
    type."""
    adjusted = definition.get("adjust-to-utc")
    if not isinstance(adjusted, bool) or definition.get("logicalType") == "date":
        return True
    return adjusted == isinstance(wanted, (TimestamptzType, TimestamptzNanoType))


def _decimal(
    kind: str, definition: dict[str, Any], wanted: IcebergType, path: str
) -> tuple[Step, int] | None:
    precision, scale = definition.get("precision"), definition.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        raise FormatError(f"{path}: a decimal has no precision or scale")
    if not isinstance(wanted, DecimalType) or scale != wanted.scale:
        return None
    if not 0 < precision <= wanted.precision <= _MAX_DECIMAL_DIGITS:
        return None
    return Step.DECIMAL_BYTES if kind == "bytes" else Step.DECIMAL_FIXED, precision
