"""Filters in the forms that Arrow has: an expression for it to apply while it reads a file, and a
mask of rows that were read. ``binding`` says what filters mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero
from pyiceberg import types
from pyiceberg.schema import Schema

from ..pyiceberg.expressions import arrow_filter
from .binding import BoundFilter
from .metadata_columns import METADATA_COLUMNS


class RowFilter:
    """A filter in both forms. ``field_ids`` are the columns that it uses. A filter that is always
    false uses none."""

    def __init__(self, bound: BoundFilter) -> None:
        self._bound, self._schema = bound
        self.field_ids: tuple[int, ...] = tuple(sorted(bound.field_ids))
        # Each column has its ID as its name, because a column's own name may contain dots.
        self._flat = arrow_filter(self._bound, {i: str(i) for i in self.field_ids})

    @property
    def float_ids(self) -> frozenset[int]:
        """The columns of type float or double among ``field_ids``."""
        kinds = types.FloatType, types.DoubleType
        return frozenset(i for i in self.field_ids if isinstance(self._schema.find_type(i), kinds))

    def for_file(
        self, file_schema: Schema, without_nan: frozenset[int] = frozenset()
    ) -> pc.Expression | None:
        """Return the filter over a file's own columns, so that Arrow can skip parts of the file.

        The result is None in these cases, because Arrow would return wrong rows:

        - The file does not have a column, or has it in another type, which could round a literal.
        - A float column may have NaN: it is not in ``without_nan``. Parquet's statistics do not
          count NaN, and Arrow concludes from them that all rows match, or none.
        - The filter uses metadata columns, whose values are not all in the file.
        """
        if not self.float_ids <= without_nan or not METADATA_COLUMNS.keys().isdisjoint(
            self.field_ids
        ):
            return None
        names: dict[int, str | tuple[str, ...]] = {}
        paths = dict(_paths(file_schema.fields))
        for field_id in self.field_ids:
            kind = self._schema.find_type(field_id)
            # Arrow's type for a UUID depends on the writer of the file.
            if field_id not in paths or isinstance(kind, types.UUIDType):
                return None
            if file_schema.find_type(field_id) != kind:
                return None
            names[field_id] = paths[field_id]
        return arrow_filter(self._bound, names)

    def mask(self, columns: Iterable[pa.Array]) -> pa.Array:
        """Return a mask of the rows that match; null if that is unknown. ``columns`` are those of
        ``field_ids``, in the table's types."""
        names = map(str, self.field_ids)
        table = pa.table({n: _storage(c) for n, c in zip(names, columns, strict=True)})
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
        project = acero.Declaration("project", acero.ProjectNodeOptions([self._flat], ["matches"]))
        plan = acero.Declaration.from_sequence([source, project])
        # With several threads, the order of the rows would be undefined.
        return plan.to_table(use_threads=False).column(0).combine_chunks()


def _storage(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _paths(
    fields: Iterable[types.NestedField], above: tuple[str, ...] = ()
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the ID of each column that is not inside a list or map, and its names from the top."""
    for field in fields:
        path = (*above, field.name)
        yield field.field_id, path
        if isinstance(field.field_type, types.StructType):
            yield from _paths(field.field_type.fields, path)
