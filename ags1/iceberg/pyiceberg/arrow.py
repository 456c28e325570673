"""Converts between Arrow's data and schemas and the columns of a table's schema."""

from __future__ import annotations

import builtins
import contextlib
import io
import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import (
    ArrowAccessor,
    ArrowProjectionVisitor,
    _ConvertToArrowSchema,
    schema_to_pyarrow,
)
from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible as _check_compatible
from pyiceberg.schema import Schema, visit, visit_with_partner
from pyiceberg.table import DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE
from pyiceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimeType,
)
from pyiceberg.utils.config import Config

from ...columns.arrow_nested import with_child, without_hidden_nulls
from ...columns.avro.projection import default_of
from ...columns.avro.variants import VARIANT_PARTS, VariantType
from ..spec.column_types import VARIANT, WKB, as_bytes, as_stored, extensions

__all__ = [
    "TableSchema",
    "arrow_schema",
    "check_arrow_schema",
    "downcasts_ns_timestamps",
    "iceberg_schema",
    "project",
]


_MICROSECONDS = pa.time64("us")


class _ArrowSchema(_ConvertToArrowSchema):
    """PyIceberg's conversion of a schema of stored types, with the names of extension types."""

    def __init__(self, schema: Schema, *, include_field_ids: bool) -> None:
        super().__init__(include_field_ids=include_field_ids)
        self._extensions = extensions([schema])

    def field(self, field: NestedField, field_result: pa.DataType) -> pa.Field:
        arrow = super().field(field, field_result)
        # Parts of variants have no IDs in files.
        if field.field_id < 0:
            return arrow.remove_metadata()
        return _marked(arrow, self._extensions.get(field.field_id))


def _marked(field: pa.Field, extension: dict[bytes, bytes] | None) -> pa.Field:
    return field.with_metadata({**(field.metadata or {}), **extension}) if extension else field


def arrow_schema(schema: Schema, *, include_field_ids: bool = True) -> pa.Schema:
    """Return the Arrow schema of rows of ``schema``."""
    visitor = _ArrowSchema(schema, include_field_ids=include_field_ids)
    converted: pa.Schema = visit(as_stored(schema), visitor)
    return converted


class TableSchema(Schema):
    """A table's schema that PyIceberg's ``schema_to_pyarrow`` converts as ``arrow_schema`` does, so
    that Polars finds the names of extension types in it. PyIceberg knows no variants."""

    @classmethod
    def of(cls, schema: Schema) -> Schema:
        """Return the schema in this form; as it is if it has no extension types."""
        if not extensions([schema]):
            return schema
        more = {"schema_id": schema.schema_id, "identifier_field_ids": schema.identifier_field_ids}
        return cls(*schema.fields, **more)  # type: ignore[arg-type]

    def select(self, *names: str, case_sensitive: bool = True) -> Schema:
        """Return a selection of the columns, in this form too."""
        return self.of(super().select(*names, case_sensitive=case_sensitive))


@visit.register(TableSchema)
def _(schema: TableSchema, visitor: Any) -> Any:
    if type(visitor) is _ConvertToArrowSchema:
        return arrow_schema(schema, include_field_ids=visitor._include_field_ids)
    return visitor.schema(schema, visit(schema.as_struct(), visitor))


@visit.register(VariantType)
def _(_: VariantType, visitor: Any) -> Any:
    """Polars also converts single columns, in plain schemas."""
    if type(visitor) is _ConvertToArrowSchema:
        return pa.struct([pa.field(n, pa.large_binary(), nullable=False) for n in VARIANT_PARTS])
    return visitor.primitive(VariantType())


class _Projection(ArrowProjectionVisitor):
    """PyIceberg's projection with three corrections. Null lists and maps of structs stay null, and
    do not become empty. Dates are read as times if format version 3 promotes the column. A struct
    that the file does not have is null, and its required fields are not. ``extensions`` are those
    of ``column_types``."""

    extensions: Mapping[int, dict[bytes, bytes]]

    def _construct_field(self, field: NestedField, arrow_type: pa.DataType) -> pa.Field:
        arrow = super()._construct_field(field, arrow_type)
        return _marked(arrow, self.extensions.get(field.field_id))

    def _cast_if_needed(self, field: NestedField, values: pa.Array) -> pa.Array:
        kind = field.field_type
        if not isinstance(kind, PrimitiveType):
            return values
        if isinstance(kind, TimestampType | TimestampNanoType) and pa.types.is_date32(values.type):
            return values.cast(schema_to_pyarrow(kind, include_field_ids=False))
        return super()._cast_if_needed(field, values)

    def struct(
        self, struct: StructType, struct_array: pa.Array | None, field_results: builtins.list[Any]
    ) -> pa.Array | None:
        if struct_array is not None:
            results = zip(struct.fields, field_results, strict=True)
            field_results = [
                self._default(f, len(struct_array)) if r is None else r for f, r in results
            ]
        array = super().struct(struct, struct_array, field_results)
        if array is None or all(
            result is not None or field.field_type.is_primitive
            for field, result in zip(struct.fields, field_results, strict=True)
        ):
            return array
        return without_hidden_nulls(array)

    def _default(self, field: NestedField, count: int) -> pa.Array | None:
        """Return the initial default of a struct; None for other fields."""
        if field.initial_default is None or not isinstance(field.field_type, StructType):
            return None
        kind = schema_to_pyarrow(field.field_type, include_field_ids=False)
        return pa.repeat(pa.scalar(default_of(field, "initial_default"), kind), count)

    def list(
        self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None
    ) -> pa.Array | None:
        if not isinstance(list_array, pa.ListArray | pa.LargeListArray) or value_array is None:
            return super().list(list_type, list_array, value_array)
        field = list_type.element_field
        values = self._cast_if_needed(field, value_array)
        make = pa.large_list if isinstance(list_array, pa.LargeListArray) else pa.list_
        return with_child(list_array, make(self._construct_field(field, values.type)), values)

    def map(
        self,
        map_type: MapType,
        map_array: pa.Array | None,
        key_result: pa.Array | None,
        value_result: pa.Array | None,
    ) -> pa.Array | None:
        if map_array is None or key_result is None or value_result is None:
            return None
        keys = self._cast_if_needed(map_type.key_field, key_result)
        values = self._cast_if_needed(map_type.value_field, value_result)
        fields = [
            self._construct_field(map_type.key_field, keys.type),
            self._construct_field(map_type.value_field, values.type),
        ]
        entries = pa.StructArray.from_arrays([keys, values], fields=fields)
        return with_child(map_array, pa.map_(*fields), entries)


def project(
    wanted: Schema,
    file_schema: Schema,
    batch: pa.RecordBatch,
    missing: Mapping[int, Any],
    extensions: Mapping[int, dict[bytes, bytes]],
) -> pa.RecordBatch:
    """Return a batch of a file's columns as the columns of ``wanted``, matched by field ID. If a
    file has nanoseconds and the column has not, they are cut to microseconds, as in PyIceberg.
    ``missing`` has the values of columns that the file does not have. ``extensions`` are those of
    ``column_types``."""
    visitor = _Projection(
        file_schema,
        downcast_ns_timestamp_to_us=True,
        projected_missing_fields=dict(missing),
        allow_timestamp_tz_mismatch=True,
    )
    visitor.extensions = extensions
    columns = visit_with_partner(wanted, batch, visitor, ArrowAccessor(file_schema))
    return pa.RecordBatch.from_struct_array(columns)


_redirecting = threading.Lock()


def check_arrow_schema(
    schema: Schema, provided: pa.Schema, *, downcast_ns_timestamp_to_us: bool
) -> None:
    """Check that Arrow data can be written to a table of format version 3. Columns without field
    IDs are matched by name. Arrow's nulls fit every optional type, and the extension types of
    geometries and variants fit these. Raises ValueError, and TypeError for a type unknown to
    Iceberg."""
    provided = pa.schema(list(_with_typed_nulls(pa.struct(list(provided)), schema.as_struct())))
    # PyIceberg also prints the error. If two threads redirected at once, one would restore the
    # other's target, and standard output would be lost for good.
    with _redirecting, contextlib.redirect_stdout(io.StringIO()):
        _check_compatible(as_bytes(schema), provided, downcast_ns_timestamp_to_us, format_version=3)


def _with_typed_nulls(source: pa.DataType, kind: IcebergType, path: str = "") -> pa.DataType:
    """Return an Arrow type in which nulls have the table's type. PyIceberg takes nulls without a
    type for primitive types alone. Geometries and variants become binary."""
    if pa.types.is_dictionary(source):
        source = source.value_type
    if isinstance(kind, VariantType) and not pa.types.is_null(source):
        if not _is_variant(source):
            raise ValueError(
                f"column {path!r} has variants: provide structs of the binary fields metadata and "
                "value"
            )
        return pa.binary()
    if isinstance(source, pa.BaseExtensionType) and source.extension_name == WKB:
        return source.storage_type
    if isinstance(kind, TimeType) and pa.types.is_time(source):
        return _MICROSECONDS  # what does not fit is refused when it is converted
    if pa.types.is_null(source) and not isinstance(kind, PrimitiveType):
        [field] = as_bytes(Schema(NestedField(1, "x", kind))).fields
        return schema_to_pyarrow(field.field_type, include_field_ids=False)

    def typed(field: pa.Field, inner: IcebergType) -> pa.Field:
        inside = f"{path}.{field.name}".lstrip(".")
        return field.with_type(_with_typed_nulls(field.type, inner, inside))

    if pa.types.is_struct(source) and isinstance(kind, StructType):
        kinds = {field.name: field.field_type for field in kind.fields}
        return pa.struct([typed(f, kinds[f.name]) if f.name in kinds else f for f in source])
    if pa.types.is_map(source) and isinstance(kind, MapType):
        key = typed(source.key_field, kind.key_type)
        return pa.map_(key, typed(source.item_field, kind.value_type))
    is_list = pa.types.is_list(source) or pa.types.is_large_list(source)
    if isinstance(kind, ListType) and (is_list or pa.types.is_fixed_size_list(source)):
        return pa.list_(typed(source.value_field, kind.element_type))
    return source


def _is_variant(kind: pa.DataType) -> bool:
    """Return whether this is the type of variants, as a struct or as an extension type."""
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == VARIANT:
        kind = kind.storage_type
    names = sorted(field.name for field in kind) if pa.types.is_struct(kind) else []
    return names in (["metadata", "value"], ["metadata", "typed_value", "value"])


def iceberg_schema(schema: Schema | pa.Schema) -> Schema:
    """Return a schema of format version 3, converted from Arrow's if it is one of Arrow."""
    if isinstance(schema, pa.Schema):
        kinds = map(_with_times_of_iceberg, schema.types)
        fields = [field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)]
        schema = pa.schema(fields, schema.metadata)
    converted: Schema = Catalog._convert_schema_if_needed(schema, 3)
    return converted


def _with_times_of_iceberg(kind: pa.DataType) -> pa.DataType:
    """Return an Arrow type whose times of day have microseconds, the only ones that Iceberg has.
    Those of Polars have nanoseconds."""

    def typed(field: pa.Field) -> pa.Field:
        return field.with_type(_with_times_of_iceberg(field.type))

    if pa.types.is_time(kind):
        return _MICROSECONDS
    if pa.types.is_struct(kind):
        return pa.struct([typed(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(typed(kind.key_field), typed(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(typed(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(typed(kind.value_field))
    return kind


def downcasts_ns_timestamps() -> bool | None:
    """Return PyIceberg's setting whether nanoseconds become microseconds; None if not set."""
    return Config().get_bool(DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE)
