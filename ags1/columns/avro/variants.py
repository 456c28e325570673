"""The type ``variant``, which PyIceberg does not have. Independent of the values."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pyiceberg import types

# The fields of a variant's storage.
VARIANT_PARTS = ("metadata", "value")


class VariantType(types.PrimitiveType):
    """The type ``variant``: values of any type, as JSON has them. A value is a struct of two binary
    fields, ``metadata`` and ``value``, in the encoding of Parquet's specification. A filter can
    only ask whether it is null."""

    root: Literal["variant"] = Field(default="variant")


def is_stored_variant(kind: types.IcebergType) -> bool:
    """Return whether ``as_stored`` has made a type from a variant."""
    return isinstance(kind, types.StructType) and any(f.field_id < 0 for f in kind.fields)
