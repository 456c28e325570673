"""PyIceberg's metadata tables (``table.inspect``) for every history of specs and schemas.

The column ``partition`` has a field for each partition field, under its newest name, as in Java. If
the source column of a partition field was dropped, it is left out. PyIceberg raises an error then,
shows null for a field that was renamed later, and cannot show UUIDs.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Container, Iterable
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import ALWAYS_TRUE, Table
from pyiceberg.table.inspect import InspectTable
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform, Transform, VoidTransform
from pyiceberg.types import (
    DecimalType,
    FixedType,
    IcebergType,
    NestedField,
    PrimitiveType,
    StructType,
    UUIDType,
)

from ..spec.column_types import with_types_changed, without_uuids

# Returns the manifest entries of a snapshot, by default the current one, that a filter may match.
# The last argument says whether its names are case-sensitive.
EntriesOf = Callable[["int | None", "str | BooleanExpression", bool], Iterable[ManifestEntry]]

_SAME = (IdentityTransform, VoidTransform)
_BOUNDS = ("lower_bound", "upper_bound")


def _shown(kind: Any) -> Any:
    """Return a type that shows a bound of a manifest as null if it is not a value of the type: a
    writer may have cut it within a letter, or had another type. PyIceberg raises an error."""
    if not isinstance(kind, PrimitiveType) or isinstance(kind, UUIDType):
        return kind
    return _shown_class(type(kind))(*_arguments(kind))


def _arguments(kind: Any) -> tuple[Any, ...]:
    return kind.__getnewargs__() if isinstance(kind, DecimalType | FixedType) else ()


@functools.cache
def _shown_class(kind: type[PrimitiveType]) -> Any:
    def reduced(shown: Any) -> tuple[Any, tuple[Any]]:
        return _shown, (kind(*_arguments(shown)),)  # no module has the class

    made = type(kind.__name__, (kind,), {"__reduce__": reduced})
    read: Any = from_bytes.dispatch(kind)

    @from_bytes.register(made)
    def _(shown: Any, bound: bytes) -> Any:
        try:
            value = read(shown, bound)
            pa.scalar(value, schema_to_pyarrow(shown))
        except (struct.error, ValueError, TypeError, OverflowError):
            return None
        return value

    return made


def _shown_schema(schema: Schema) -> Schema:
    return with_types_changed(schema, lambda field: _shown(field.field_type))


class MetadataTables(InspectTable):
    """PyIceberg's metadata tables of a table, whose metadata is an ``InspectedMetadata``."""

    def __init__(self, table: Table, entries_of: EntriesOf) -> None:
        super().__init__(table)
        self._entries_of = entries_of

    def entries(self, snapshot_id: int | None = None) -> pa.Table:
        """Return the manifest entries of a snapshot, as PyIceberg."""
        return self._with_uuids(super().entries(snapshot_id))

    def all_entries(self) -> pa.Table:
        """Return the entries of the manifests of all snapshots, in the columns of ``entries``. As
        in Java, each manifest is read once. PyIceberg 0.12 lacks this table."""
        everything: Any = _AllSnapshots(self.tbl.snapshots())
        return self.entries(everything)

    def _get_snapshot(self, snapshot_id: Any = None) -> Any:
        if isinstance(snapshot_id, _AllSnapshots):
            return snapshot_id
        return super()._get_snapshot(snapshot_id)

    def partitions(
        self,
        snapshot_id: int | None = None,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        case_sensitive: bool = True,
    ) -> pa.Table:
        """Return the partitions of a snapshot, as PyIceberg. A partition is left out if manifests
        say that no row of its files matches. The filter's columns are those of a scan."""
        snapshot = self._get_snapshot(snapshot_id)
        specs = self.tbl.metadata.specs()
        found: dict[tuple[str, Any], Any] = {}
        for entry in self._entries_of(snapshot_id, row_filter, case_sensitive):
            file = entry.data_file
            names = (field.name for field in specs[file.spec_id].fields)
            by = None if entry.snapshot_id is None else self.tbl.snapshot_by_id(entry.snapshot_id)
            values = {name: file.partition[at] for at, name in enumerate(names)}
            self._update_partitions_map_from_manifest_entry(found, file, values, by)
        spec_ids = {manifest.partition_spec_id for manifest in snapshot.manifests(self.tbl.io)}
        struct = schema_to_pyarrow(self.tbl.metadata.specs_struct(spec_ids))
        columns = [("partition", struct), ("spec_id", pa.int32())] if struct.num_fields else []
        required = [pa.field(name, kind, nullable=False) for name, kind in (*columns, *_COUNTS)]
        schema = pa.schema([*required, *_UPDATED])
        return self._with_uuids(pa.Table.from_pylist(list(found.values()), schema=schema))

    def _files(self, *given: Any) -> pa.Table:
        return self._with_uuids(super()._files(*given))

    def _all_files(self, *given: Any) -> pa.Table:
        return self._with_uuids(super()._all_files(*given))

    def _with_uuids(self, table: pa.Table) -> pa.Table:
        # Arrow does not make UUIDs inside structs from Python's values. It casts bytes to them.
        metadata = self.tbl.metadata
        assert isinstance(metadata, InspectedMetadata)
        return table.cast(pa.schema([metadata.with_uuids(field) for field in table.schema]))


class _AllSnapshots:
    """The manifests of several snapshots, as those of one."""

    def __init__(self, snapshots: list[Snapshot]) -> None:
        self._snapshots = snapshots

    def manifests(self, io: FileIO) -> list[ManifestFile]:
        manifests = (manifest for each in self._snapshots for manifest in each.manifests(io))
        return list({manifest.manifest_path: manifest for manifest in manifests}.values())


_COUNTS = (
    ("record_count", pa.int64()),
    ("file_count", pa.int32()),
    ("total_data_file_size_in_bytes", pa.int64()),
    ("position_delete_record_count", pa.int64()),
    ("position_delete_file_count", pa.int32()),
    ("equality_delete_record_count", pa.int64()),
    ("equality_delete_file_count", pa.int32()),
)
_UPDATED = (
    pa.field("last_updated_at", pa.timestamp("ms")),
    pa.field("last_updated_snapshot_id", pa.int64()),
)


class InspectedMetadata(TableMetadataV3):
    """A table's metadata in the form that PyIceberg's metadata tables can show."""

    @classmethod
    def of(cls, metadata: TableMetadata, schemas: list[Schema]) -> InspectedMetadata:
        """Return the form of ``metadata`` with these schemas."""
        schemas = [_shown_schema(schema) for schema in schemas]
        return cls.model_construct(**{**dict(metadata), "schemas": schemas})

    def schema(self) -> Schema:  # type: ignore[override]
        """Return the current schema, in which a UUID is its bytes."""
        return _shown_schema(without_uuids(super().schema()))

    def specs(self) -> dict[int, PartitionSpec]:
        """Return the specs. Their fields have the newest names, and their transforms have a text
        for every value."""
        names = self._names()

        def shown(field: PartitionField) -> PartitionField:
            change = {"name": names[field.field_id], "transform": _Readable(field.transform)}
            return field.model_copy(update=change)

        return {
            spec.spec_id: PartitionSpec(*map(shown, spec.fields), spec_id=spec.spec_id)
            for spec in self.partition_specs
        }

    def specs_struct(self, spec_ids: Iterable[int] | None = None) -> StructType:
        """Return the fields of these specs, or of all, that have a source column."""
        wanted = {spec.spec_id for spec in self.partition_specs} if spec_ids is None else spec_ids
        schema, names = self.schema(), self._names()
        fields: dict[int, NestedField] = {}
        for field in (f for spec in self._by_age() if spec.spec_id in wanted for f in spec.fields):
            number, is_void = field.field_id, isinstance(field.transform, VoidTransform)
            if field.source_id in schema.field_ids and not (is_void and number in fields):
                kind = field.transform.result_type(schema.find_type(field.source_id))
                fields[number] = NestedField(number, names[number], kind, required=False)
        return StructType(*(fields[number] for number in sorted(fields)))

    def with_uuids(self, field: pa.Field, uuids: Container[str] = ()) -> pa.Field:
        """Return a column of a metadata table in which bytes that stand for UUIDs are UUIDs.
        ``uuids`` are the names of such fields in the struct that the column is in."""
        if not pa.types.is_struct(field.type):
            return field.with_type(pa.uuid()) if field.name in uuids else field
        columns = {
            f.field_id: f.name for f in super().schema().fields if f.field_type == UUIDType()
        }
        uuids = _BOUNDS if field.name in columns.values() else ()
        if field.name == "partition":
            identity = (f for s in self.partition_specs for f in s.fields if f.source_id in columns)
            names = self._names()
            uuids = {names[f.field_id] for f in identity if isinstance(f.transform, _SAME)}
        return field.with_type(pa.struct([self.with_uuids(part, uuids) for part in field.type]))

    def _names(self) -> dict[int, str]:
        return {field.field_id: field.name for spec in self._by_age() for field in spec.fields}

    def _by_age(self) -> list[PartitionSpec]:
        return sorted(self.partition_specs, key=lambda spec: spec.spec_id)


class _Readable:
    """A transform that has a text for UUIDs, and for times outside the years 1 to 9999."""

    def __init__(self, transform: Transform[Any, Any]) -> None:
        self._transform = transform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transform, name)

    def result_type(self, kind: IcebergType) -> IcebergType:
        """Return the type of the values."""
        result: IcebergType = _shown(self._transform.result_type(kind))
        return result

    def to_human_string(self, kind: IcebergType, value: Any) -> str:
        """Return the text of a value. A time for which Python has no text is a number."""
        if isinstance(kind, UUIDType) and isinstance(value, bytes):
            return str(UUID(bytes=value))
        try:
            return str(self._transform.to_human_string(kind, value))
        except OverflowError:
            return str(value)
