"""The names of columns as users write them, without regard to case unless they say otherwise.

Spark resolves names by its setting ``spark.sql.caseSensitive``, which it does not tell to Python
sources. The option ``case-sensitive`` stands for it here, and is ``false`` by default, as the
setting is. Independent of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa
from pyiceberg.schema import Schema

from ...iceberg.distributed import METADATA_NAMES
from .. import options as opt

CASE_SENSITIVE = "case-sensitive"


def naming(options: Mapping[str, str], schema: Schema) -> Callable[[str], str]:
    """Return a function from a column's name, also with dots, to its name in ``schema`` or among
    the metadata columns; a name that none has stays. It raises ValueError for a name that is
    that of several columns but for its case. Raises ValueError for an invalid option."""
    if opt.flag(options, CASE_SENSITIVE):
        return str
    columns: dict[str, list[str]] = {}
    for name in dict.fromkeys((*schema.column_names, *METADATA_NAMES)):
        columns.setdefault(name.lower(), []).append(name)

    def own_name(name: str) -> str:
        found = columns.get(name.lower(), [name])
        if len(found) > 1:
            both = " and ".join(map(repr, found))
            raise ValueError(
                f"the column {name!r} is ambiguous, because the table has {both}: "
                f"set the option {CASE_SENSITIVE!r} to 'true'"
            )
        return found[0]

    return own_name


def as_in_table(options: Mapping[str, str], frame: pa.Schema, schema: Schema) -> pa.Schema:
    """Return a frame's schema with the table's names for its columns. Raises ValueError as
    ``naming``, and if two columns of the frame are one of the table."""
    own_name = naming(options, schema)
    names = [own_name(name) for name in frame.names]
    _check_once(names, frame.names)
    fields = zip(frame, names, strict=True)
    return pa.schema([field.with_name(name) for field, name in fields])


def _check_once(names: Iterable[str], given: Iterable[str]) -> None:
    first: dict[str, str] = {}
    for name, as_given in zip(names, given, strict=True):
        if first.setdefault(name, as_given) != as_given:
            raise ValueError(
                f"the columns {first[name]!r} and {as_given!r} are both the table's {name!r}: "
                f"leave one out, or set the option {CASE_SENSITIVE!r} to 'true'"
            )


def named(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of a frame with the names of ``schema``, which ``as_in_table`` has made."""
    return batch.rename_columns(schema.names)
