"""New schemas: which changes of columns Java allows, in every place of a schema, by every door."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate
from pyiceberg.types import BinaryType, DecimalType, NestedField, StringType, StructType
from type_changes import JAVA_ALLOWS, PAIRS, TYPES

from ags1.iceberg.commit.updates import apply_updates

Json = dict[str, Any]
NOW_MS = 1_700_000_000_000


def column(field_id: int, kind: Any, **more: Any) -> Json:
    return {"id": field_id, "name": f"c{field_id}", "required": False, "type": kind, **more}


def struct(*columns: Json) -> Json:
    return {"type": "struct", "fields": list(columns)}


def a_list(element: Any, element_id: int = 2) -> Json:
    return {"type": "list", "element-id": element_id, "element": element, "element-required": False}


def a_map(key: Any, value: Any) -> Json:
    ids = {"key-id": 2, "value-id": 3}
    return {"type": "map", **ids, "key": key, "value": value, "value-required": False}


def table_of(*columns: Json) -> Json:
    schema = struct(*columns)
    return apply_updates(
        None,
        [
            {"action": "assign-uuid", "uuid": "00000000-0000-0000-0000-000000000001"},
            {"action": "set-location", "location": "s3://b/t"},
            {"action": "add-schema", "schema": schema},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
        ],
        now_ms=NOW_MS,
    )


def evolved(metadata: Json, *columns: Json) -> Json:
    updates = [
        {"action": "add-schema", "schema": struct(*columns)},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    return apply_updates(metadata, updates, now_ms=NOW_MS)


def may_become(metadata: Json, *columns: Json) -> bool:
    try:
        evolved(metadata, *columns)
    except ValidationError:
        return False
    return True


def allows(before: list[Json], after: list[Json]) -> bool:
    return may_become(table_of(*before), *after)


PLACES: dict[str, Callable[[Any], Any]] = {
    "column": lambda kind: kind,
    "field": lambda kind: struct(column(2, kind)),
    "element": lambda kind: a_list(kind),
    "field of an element": lambda kind: a_list(struct(column(3, kind))),
    "value": lambda kind: a_map("string", kind),
    "key": lambda kind: a_map(kind, "string"),
    "field of a key": lambda kind: a_map(struct(column(4, kind)), "string"),
}


@pytest.mark.parametrize("place", PLACES)
def test_types_change_as_java_allows(place: str) -> None:
    columns = {kind: column(1, PLACES[place](kind)) for kind in TYPES}
    tables = {kind: table_of(columns[kind]) for kind in TYPES}
    allowed = {pair for pair in PAIRS if may_become(tables[pair[0]], columns[pair[1]])}
    # By the specification, an unknown type may become any type. Java does not change it.
    unknown = {pair for pair in PAIRS if pair[0] == "unknown"}
    # Java refuses every change in a map's key.
    assert allowed == (set() if "key" in place else JAVA_ALLOWS | unknown)


NESTED = {"struct": struct(column(2, "int")), "list": a_list("int"), "map": a_map("int", "int")}


@pytest.mark.parametrize("kind", NESTED)
def test_a_column_stays_nested_or_primitive(kind: str) -> None:
    nested = NESTED[kind]
    for other in [*TYPES, *(NESTED[name] for name in NESTED if name != kind)]:
        assert allows([column(1, other)], [column(1, nested)]) == (other == "unknown")
        assert not allows([column(1, nested)], [column(1, other)])


REFUSED = {
    "out of a struct": (
        [column(1, struct(column(2, "int"), column(3, "int")))],
        [column(1, struct(column(2, "int"))), column(3, "int")],
    ),
    "into a struct": (
        [column(1, struct(column(2, "int"))), column(3, "int")],
        [column(1, struct(column(2, "int"), column(3, "int")))],
    ),
    "another element": ([column(1, a_list("int"))], [column(1, a_list("int", 5))]),
    "a field more in a key": (
        [column(1, a_map(struct(column(4, "int")), "int"))],
        [column(1, a_map(struct(column(4, "int"), column(5, "int")), "int"))],
    ),
    "a field less in a key": (
        [column(1, a_map(struct(column(4, "int"), column(5, "int")), "int"))],
        [column(1, a_map(struct(column(4, "int")), "int"))],
    ),
}
ALLOWED = {
    "renamed, required, moved": (
        [column(1, "int"), column(2, "int")],
        [column(2, "int"), column(1, "long", name="new", required=True)],
    ),
    "fields in structs": (
        [column(1, struct(column(2, "int"), column(3, "int")))],
        [column(1, struct(column(4, "string"), column(3, "long")))],
    ),
    "fields in elements and values": (
        [column(1, a_map("int", a_list(struct(column(5, "int")), 4)))],
        [column(1, a_map("int", a_list(struct(column(6, "date"), column(5, "int")), 4)))],
    ),
    "spaces": ([column(1, "decimal(5,2)")], [column(1, "decimal( 6, 2 )")]),
}


@pytest.mark.parametrize("name", [*REFUSED, *ALLOWED])
def test_changes_of_the_shape(name: str) -> None:
    assert allows(*(REFUSED | ALLOWED)[name]) == (name in ALLOWED)


def default(kind: str, value: Any) -> Json:
    return column(1, kind, **{"initial-default": value})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (default("int", 5), default("int", 6)),
        (default("int", 5), column(1, "int")),
        (column(1, "int"), default("int", 5)),
        (default("int", 5), default("long", 6)),
        (default("string", "a"), default("string", "A")),
        (default("decimal(5,2)", "1.20"), default("decimal(6,2)", "1.21")),
        (default("binary", "0a"), default("binary", "0b")),
        (default("date", "2020-01-01"), default("date", "2020-01-02")),
        (column(1, struct(column(2, "int"))), default(struct(column(2, "int")), {})),
    ],
)
def test_an_initial_default_does_not_change(before: Json, after: Json) -> None:
    """By the specification, "the initial-default value is set only when a field is added"."""
    metadata = table_of(before)
    with pytest.raises(ValidationError, match="Cannot change the initial default of a column: c1"):
        evolved(metadata, after)
    with pytest.raises(ValidationError, match=r"c9\.c1"):
        evolved(table_of(column(9, struct(before))), column(9, struct(after)))
    assert evolved(metadata, before, default("int", 7) | {"id": 7, "name": "c7"})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (default("int", 5), default("long", 5) | {"write-default": 6}),
        (default("float", 0.5), default("double", 0.5)),
        (default("decimal(5, 2)", "1.20"), default("decimal(6,2)", "1.20")),
        (default("binary", "0AFF"), default("binary", "0aff")),
        (
            default("timestamptz", "2020-01-01T00:00:00+00:00"),
            default("timestamptz", "2020-01-01T00:00:00.000000+00:00"),
        ),
        (default("int", None), column(1, "int")),
    ],
)
def test_an_initial_default_may_be_written_in_another_form(before: Json, after: Json) -> None:
    assert evolved(table_of(before), after | {"doc": "new"})["current-schema-id"] == 1


def test_the_id_of_a_dropped_column_keeps_its_type() -> None:
    metadata = evolved(table_of(column(1, "int"), column(2, "int")), column(1, "int"))
    with pytest.raises(ValidationError, match="c2: int -> string"):
        evolved(metadata, column(1, "int"), column(2, "string"))
    again = evolved(metadata, column(1, "int"), column(2, "long"))
    # Its last type counts.
    dropped = evolved(again, column(1, "long"))
    with pytest.raises(ValidationError, match="c2: long -> int"):
        evolved(dropped, column(1, "long"), column(2, "int"))


def test_a_table_that_java_has_replaced_goes_on() -> None:
    """Java's CREATE OR REPLACE TABLE gives a column of the same name its ID, with any type."""
    metadata = table_of(column(1, "int"))
    replaced = {**struct(column(1, "string")), "schema-id": 1}
    metadata = {**metadata, "schemas": [*metadata["schemas"], replaced], "current-schema-id": 1}
    assert evolved(metadata, column(1, "string"), column(2, "int"))["current-schema-id"] == 2


def test_an_earlier_schema_becomes_current_only_if_its_types_still_hold() -> None:
    metadata = evolved(table_of(column(1, "int"), column(2, "int")), column(1, "int"))
    back = [{"action": "set-current-schema", "schema-id": 0}]
    assert apply_updates(metadata, back, now_ms=NOW_MS)["current-schema-id"] == 0
    with pytest.raises(ValidationError, match="c1: long -> int"):
        apply_updates(evolved(metadata, column(1, "long")), back, now_ms=NOW_MS)


# The doors

DECIMAL = pa.decimal128(5, 2)
ROWS = pa.table(
    {
        "d": pa.array([Decimal("1.23")], DECIMAL),
        "s": ["a"],
        "l": pa.array([[Decimal("1.23")]], pa.list_(DECIMAL)),
        "m": pa.array([[("a", {"d": 1})]], pa.map_(pa.string(), pa.struct([("d", DECIMAL)]))),
    }
)


def committed(table: Table, kind: Any) -> None:
    fields = [
        NestedField(f.field_id, f.name, kind if f.name == "d" else f.field_type, required=False)
        for f in table.schema().fields
    ]
    added = AddSchemaUpdate(schema=Schema(*fields, schema_id=1))
    table.catalog.commit_table(table, (), (added, SetCurrentSchemaUpdate(schema_id=-1)))


def changed(table: Table, path: str, kind: Any) -> None:
    with table.update_schema() as update:
        update.update_column(path, kind)


def unified(table: Table, name: str, kind: pa.DataType) -> None:
    with table.update_schema() as update:
        update.union_by_name(pa.schema([(name, kind)]))


def in_a_transaction(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.append(ROWS)
        with transaction.update_schema() as update:
            update.add_column("new", StringType())
            update.update_column("d", DecimalType(10, 4))


DOORS: dict[str, Callable[[Table], object]] = {
    "decimal": lambda table: changed(table, "d", DecimalType(10, 4)),
    "text to bytes": lambda table: changed(table, "s", BinaryType()),
    "element": lambda table: changed(table, "l.element", DecimalType(10, 4)),
    "field of a value": lambda table: changed(table, "m.value.d", DecimalType(10, 4)),
    "incompatible changes": lambda table: (
        table.update_schema(allow_incompatible_changes=True)
        .update_column("d", StringType())
        .commit()
    ),
    "union": lambda table: unified(table, "d", pa.decimal128(10, 4)),
    "union of a struct": lambda table: unified(
        table, "m", pa.map_(pa.string(), pa.struct([("d", pa.decimal128(10, 4))]))
    ),
    "transaction": in_a_transaction,
    "catalog": lambda table: committed(table, DecimalType(10, 4)),
}


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@pytest.mark.parametrize("is_encrypted", [True, False], ids=["encrypted", "plain"])
def test_no_door_gives_values_another_type(catalog: Any, is_encrypted: bool) -> None:
    properties = {"encryption.key-id": "keyA"} if is_encrypted else {}
    table = catalog.create_table("db.t", ROWS.schema, properties=properties)
    table.append(ROWS)
    for name, door in DOORS.items():
        with pytest.raises(ValueError, match="Cannot change column type") as raised:
            door(table)
        assert isinstance(raised.value, ValidationError), name
        table = catalog.load_table("db.t")
        assert len(table.schemas()) == len(table.snapshots()) == 1, name
    table.delete("d < 1")
    assert table.scan().to_arrow().to_pylist() == ROWS.to_pylist()


@pytest.mark.parametrize("is_encrypted", [True, False], ids=["encrypted", "plain"])
def test_no_commit_changes_an_initial_default(catalog: Any, is_encrypted: bool) -> None:
    properties = {"encryption.key-id": "keyA"} if is_encrypted else {}
    table = catalog.create_table("db.t", ROWS.schema, properties=properties)
    fields = [
        NestedField(f.field_id, f.name, f.field_type, required=False, initial_default="x")
        if f.name == "s"
        else f
        for f in table.schema().fields
    ]
    added = AddSchemaUpdate(schema=Schema(*fields, schema_id=1))
    with pytest.raises(ValidationError, match="the initial default of a column: s: None -> 'x'"):
        table.catalog.commit_table(table, (), (added, SetCurrentSchemaUpdate(schema_id=-1)))
    assert len(catalog.load_table("db.t").schemas()) == 1


OF_COLUMNS = (
    "write.metadata.metrics.column.",
    "write.parquet.bloom-filter-enabled.column.",
    "write.parquet.stats-enabled.column.",
)


def test_properties_of_a_column_follow_it(catalog: Any) -> None:
    """The names are those that Java 1.12 gives them. It leaves those of a renamed struct's fields
    as they were, and refuses every change of properties from then on."""
    others = {"write.metadata.metrics.default": "counts", "write.metadata.metrics.column.gone": "x"}

    def of_columns(**settings: str) -> dict[str, str]:
        return {prefix + name: value for prefix in OF_COLUMNS for name, value in settings.items()}

    def check(**settings: str) -> None:
        names = (*OF_COLUMNS, *others)
        found = catalog.load_table("db.t").properties
        found = {name: value for name, value in found.items() if name.startswith(names)}
        assert found == of_columns(**settings) | others

    schema = Schema(
        NestedField(1, "a", StringType()),
        NestedField(2, "b", StringType()),
        NestedField(3, "n", StructType(NestedField(4, "x", StringType()))),
    )
    table = catalog.create_table("db.t", schema, properties={"encryption.key-id": "keyA"})
    kept = {"a": "none", "b": "full", "n.x": "counts"}
    table.transaction().set_properties({**of_columns(**kept), **others}).commit_transaction()
    with table.update_schema() as update:
        update.rename_column("a", "b").rename_column("b", "a")  # swapped
    check(b="none", a="full", **{"n.x": "counts"})
    with table.update_schema() as update:
        update.rename_column("n", "o").rename_column("n.x", "y").delete_column("a")
    check(b="none", **{"o.y": "counts"})
    with table.update_schema() as update:
        update.delete_column("o")
    with table.transaction() as transaction:
        with transaction.update_schema() as update:
            update.rename_column("b", "c")
        with transaction.update_schema() as update:
            update.add_column("b", StringType())
        transaction.append(pa.table({"c": ["secret"], "b": ["public"]}))
    check(c="none")
    [file] = table.inspect.files().to_pylist()
    assert [field_id for field_id, _ in file["value_counts"]] == [5]
