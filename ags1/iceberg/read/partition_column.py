"""The metadata column ``_partition``: the partition of a row's file. It is a struct that has the
fields of all partition specs of a table.

Names and types are as in Java's ``Partitioning.partitionType``: fields are in the order of their
IDs, each under the name that the newest spec has for it. A field whose source column was dropped is
left out. A field that the spec of a file does not have is null for its rows. If no spec has
a field, the struct itself is null.

In Java the fields keep their IDs, which may be those of columns, too. Here they have IDs of their
own in a scan, because all IDs of PyIceberg's schemas differ.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.types import NestedField, StructType

from ..spec.constants import PARTITION_ID
from .records import ContentFile

PARTITION = "_partition"

# It is above the IDs of a table's columns, and below the reserved ones.
_FIRST_ID = 2_000_000_000


def partition_column(metadata: TableMetadata) -> NestedField:
    """Return the column. Raises ValueError if the specs do not agree on a field, or if the library
    does not know one of their transforms."""
    schema = metadata.schema()
    known = schema.field_ids
    newest: dict[int, PartitionField] = {}
    names: dict[int, str] = {}
    for spec in sorted(metadata.partition_specs, key=lambda spec: spec.spec_id, reverse=True):
        for field in spec.fields:
            if isinstance(field.transform, UnknownTransform):
                raise ValueError(
                    f"{PARTITION!r} cannot be read: the transform of the partition field "
                    f"{field.name!r} is not known. Leave the column out"
                )
            if field.source_id not in known:
                continue
            names.setdefault(field.field_id, field.name)
            other = newest.setdefault(field.field_id, field)
            if isinstance(other.transform, VoidTransform):
                newest[field.field_id] = field
            elif other.source_id != field.source_id or (
                other.transform != field.transform
                and not isinstance(field.transform, VoidTransform)
            ):
                raise ValueError(
                    f"{PARTITION!r} cannot be read: the partition fields {other.name!r} and "
                    f"{field.name!r} have the same ID. Leave the column out"
                )
    parts = [
        NestedField(
            _FIRST_ID + field_id,
            names[field_id],
            field.transform.result_type(schema.find_type(field.source_id)),
            required=False,
        )
        for field_id, field in sorted(newest.items())
    ]
    doc = "Partition to which a row belongs to"
    return NestedField(PARTITION_ID, PARTITION, StructType(*parts), required=False, doc=doc)


def partitions(column: NestedField, file: ContentFile, spec: PartitionSpec, count: int) -> pa.Array:
    """Return ``column`` for ``count`` rows of a file, which has the partition spec ``spec``."""
    ids = (_FIRST_ID + field.field_id for field in spec.fields)
    values = dict(zip(ids, file.partition_values, strict=True))
    assert isinstance(column.field_type, StructType)
    fields = column.field_type.fields
    kinds: Any = schema_to_pyarrow(column.field_type, include_field_ids=False)
    if not fields:
        return pa.nulls(count, kinds)
    arrays = [
        _repeated(values.get(field.field_id), kind.type, count)
        for field, kind in zip(fields, kinds, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(kinds))


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):  # a UUID
        stored = value.bytes if isinstance(value, UUID) else value
        return pa.ExtensionArray.from_storage(kind, _repeated(stored, kind.storage_type, count))
    return pa.repeat(pa.scalar(value, kind), count)
