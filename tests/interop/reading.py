"""What Spark reads from a table beside what we read of it.

Both go through Arrow, and are compared value by value: no NaN, no -0.0, no null that became an
empty list passes for something else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ags1.iceberg import EncryptedScan, EncryptedTable, open_table
from ags1.kms import KmsClient

from .spark import SparkTables

Row = tuple[tuple[str, Any], ...]
METADATA_COLUMNS = (
    "_file",
    "_pos",
    "_spec_id",
    "_partition",
    "_row_id",
    "_last_updated_sequence_number",
)


def opened(spark: SparkTables, name: str, kms: KmsClient, **more: Any) -> EncryptedTable:
    """Open the table that the metastore has at present, as we do without a catalog."""
    parameters = spark.parameters(name)
    table = open_table(
        parameters["metadata_location"],
        kms,
        expected_key_id=parameters["encryption.key-id"],
        **more,
    )
    assert isinstance(table, EncryptedTable)
    return table


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows of an Arrow table as values that compare exactly, in an order of our own."""
    return in_order(table.to_pylist())


def in_order(rows: Iterable[dict[str, Any]]) -> list[Row]:
    return sorted((exactly(row) for row in rows), key=repr)


def exactly(value: Any) -> Any:
    """Return a value that equals another one only where both are the same."""
    if isinstance(value, float):
        return "NaN" if value != value else ("float", struct.pack(">d", value).hex())
    if isinstance(value, dict):
        return tuple((name, exactly(inner)) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return [exactly(inner) for inner in value]
    return type(value).__name__, value


def check_same(spark: SparkTables, query: str, scan: EncryptedScan) -> int:
    """Check that our scan has the rows and types that Spark reads; return how many rows.

    ``query`` may be the name of a table.
    """
    query = query if " " in query else f"SELECT * FROM {query}"
    theirs = spark.session.sql(query).toArrow()
    ours = scan.to_arrow()
    assert plain_types(ours.schema) == plain_types(theirs.schema)
    check_equal(ours, theirs)
    assert scan.count() == theirs.num_rows
    return int(theirs.num_rows)


def check_history(
    spark: SparkTables, name: str, table: EncryptedTable, without: str | None = None
) -> None:
    """Check the rows of every snapshot, what is known of them beside their values too, with one
    query for the snapshots of one schema. ``without``: but for this metadata column."""
    metadata_columns = [column for column in METADATA_COLUMNS if column != without]
    by_schema: dict[int | None, list[int]] = {}
    for snapshot in table.metadata.snapshots:
        by_schema.setdefault(snapshot.schema_id, []).append(snapshot.snapshot_id)
    for ids in by_schema.values():
        columns = ", ".join(metadata_columns)
        queries = [
            f"SELECT {n} AS snapshot, *, {columns} FROM {name} VERSION AS OF {n}" for n in ids
        ]
        theirs = spark.session.sql(" UNION ALL ".join(queries)).toArrow()
        for snapshot_id in ids:
            scan = table.scan(selected_fields=("*", *metadata_columns), snapshot_id=snapshot_id)
            expected = theirs.filter(pc.field("snapshot") == snapshot_id).drop(["snapshot"])
            check_equal(scan.to_arrow(), expected)
            assert scan.count() == len(expected)


def check_equal(ours: pa.Table, theirs: pa.Table) -> None:
    """Check that two tables have the same rows, in any order, and say which columns differ."""
    assert ours.schema.names == theirs.schema.names
    different = {
        name: (unlike(ours, theirs, name), unlike(theirs, ours, name))
        for name in theirs.schema.names
        if rows_of(ours.select([name])) != rows_of(theirs.select([name]))
    }
    assert not different, different
    assert rows_of(ours) == rows_of(theirs)


def unlike(one: pa.Table, other: pa.Table, name: str) -> list[Any]:
    """Return the values of a column that only ``one`` of two tables has."""
    left = [repr(exactly(value)) for value in other.column(name).to_pylist()]
    only = []
    for value in one.column(name).to_pylist():
        if (text := repr(exactly(value))) in left:
            left.remove(text)
        else:
            only.append(value)
    return only


def check_filters(
    spark: SparkTables, name: str, table: EncryptedTable, filters: Iterable[tuple[str, Any]]
) -> None:
    """Check that filters, each in Spark's words and in PyIceberg's, find the same rows by ``id``.

    All columns are read, so that a row cut out of the wrong place would not pass.
    """
    filters = list(filters)
    asked = ", ".join(f"({theirs}) AS f{number}" for number, (theirs, _) in enumerate(filters))
    matches = spark.sql(f"SELECT id, {asked} FROM {name}")
    rows = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    assert len(rows) == len(matches), "the ids must be unique"
    expected: dict[str, Any] = {}
    found: dict[str, Any] = {}
    counted: dict[str, Any] = {}
    for number, (theirs, ours) in enumerate(filters):
        expected[theirs] = sorted((row["id"] for row in matches if row[f"f{number}"]), key=repr)
        try:
            got = table.scan(ours).to_arrow().to_pylist()
        except Exception as error:
            found[theirs] = counted[theirs] = repr(error)
            continue
        found[theirs] = sorted((row["id"] for row in got), key=repr)
        counted[theirs] = table.scan(ours).count()
        assert [exactly(row) for row in got] == [exactly(rows[row["id"]]) for row in got]
    wrong = {f: (found[f], expected[f]) for f in expected if found[f] != expected[f]}
    assert not wrong, wrong
    wrong = {f: n for f, n in counted.items() if n != len(expected[f])}
    assert not wrong, wrong


def plain_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return a schema's types by name, without what Arrow may choose: large or small offsets, the
    names and nullability of elements."""
    return {field.name: _plain_type(field.type) for field in schema}


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _plain_type(f.type)) for f in kind])
    return kind
