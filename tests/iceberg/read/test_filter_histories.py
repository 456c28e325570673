"""Random filters over random histories of a table mean what they mean for plain Python rows.

A history has nested columns, optional and required, which are renamed, swapped, dropped, added
again and promoted, and rows that are appended, deleted and kept by tags and branches. Rows are kept
by field ID, so that the model knows no names. A snapshot and a tag have the snapshot's columns, the
table and its branches the table's, as in Java. ``AGS1_TEST_FILTERS=1000000`` tries so many filters,
600 in each history. `make test` tries 120 in each of three.
"""

from __future__ import annotations

import datetime
import functools
import math
import operator
import os
import random
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg import expressions as ex
from pyiceberg import types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform

from ags1.iceberg.read import open_files
from ags1.iceberg.read.binding import bind_filter
from ags1.iceberg.read.pruning import FileFilter

FILTERS_OF_A_HISTORY = 600
HISTORIES = -(-int(os.environ.get("AGS1_TEST_FILTERS", "3600")) // FILTERS_OF_A_HISTORY)
_NAMES = ["a", "b", "c", "é", "x-y"]
# The values of each type, and literals beside them.
VALUES: dict[str, list[Any]] = {
    "int": [-(2**31), -1, 0, 1, 2, 7, 2**31 - 1],
    "long": [-(2**63), -1, 0, 1, 2, 2**31, 2**63 - 1],
    "float": [-math.inf, -1.5, -0.0, 0.0, 1.5, 2.0, math.nan],
    "double": [-1.5, 0.0, 0.1, 2.0, math.inf, math.nan],
    "boolean": [False, True],
    "string": ["", "a", "ab", "b", "é", "\U0001f600"],
    "binary": [b"", b"\0", b"a", b"\xff"],
    "date": [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date(2024, 2, 29)],
    "decimal(9, 2)": [Decimal("-1.00"), Decimal("0.00"), Decimal("0.01"), Decimal("9999999.99")],
}
VALUES["decimal(12, 2)"] = VALUES["decimal(9, 2)"]
_PROMOTED = {"int": "long", "float": "double", "decimal(9, 2)": "decimal(12, 2)"}
_INVERSE: dict[Any, tuple[Any, Callable[..., bool], Callable[..., bool]]] = {
    ex.EqualTo: (operator.eq, operator.eq, operator.ne),
    ex.NotEqualTo: (operator.ne, operator.ne, operator.eq),
    ex.LessThan: (operator.lt, operator.lt, operator.ge),
    ex.LessThanOrEqual: (operator.le, operator.le, operator.gt),
    ex.GreaterThan: (operator.gt, operator.gt, operator.le),
    ex.GreaterThanOrEqual: (operator.ge, operator.ge, operator.lt),
}
Row = dict[int, Any]


class Filter(NamedTuple):
    """A filter, what it and its negation are for a row, and the filter in Polars if it is the same
    there (NaN is not)."""

    expression: ex.BooleanExpression
    matches: Callable[[Row], bool]
    negated: Callable[[Row], bool]
    polars: pl.Expr | None = None


# -- rows


def random_value(kind: types.IcebergType, chance: random.Random) -> Any:
    if isinstance(kind, types.StructType):
        return {field.field_id: random_field(field, chance) for field in kind.fields}
    if isinstance(kind, types.ListType):
        return [random_field(kind.element_field, chance) for _ in range(chance.randrange(3))]
    if isinstance(kind, types.MapType):
        keys = chance.sample("klm", chance.randrange(3))
        return [(key, random_field(kind.value_field, chance)) for key in keys]
    return chance.choice(VALUES[str(kind)])


def random_field(field: types.NestedField, chance: random.Random) -> Any:
    is_null = field.optional and chance.random() < 0.3
    return None if is_null else random_value(field.field_type, chance)


def as_read(kind: types.IcebergType, value: Any) -> Any:
    """A value in the names of a schema, as Arrow returns it."""
    if value is None:
        return None
    if isinstance(kind, types.StructType):
        return {f.name: as_read(f.field_type, found_in(value, f)) for f in kind.fields}
    if isinstance(kind, types.ListType):
        return [as_read(kind.element_type, one) for one in value]
    if isinstance(kind, types.MapType):
        return [(key, as_read(kind.value_type, one)) for key, one in value]
    return value


def found_in(row: Row, field: types.NestedField) -> Any:
    return row.get(field.field_id, field.initial_default)


# -- filters


Path_ = tuple[types.NestedField, ...]


def paths(fields: Sequence[types.NestedField], above: Path_ = ()) -> Iterator[Path_]:
    """The columns that filters can name, with the structs around them."""
    for field in fields:
        yield (*above, field)
        if isinstance(field.field_type, types.StructType):
            yield from paths(field.field_type.fields, (*above, field))


def dotted(path: Path_) -> str:
    return ".".join(field.name for field in path)


def value_at(path: Path_, row: Row) -> Any:
    value: Any = row
    for field in path:
        value = None if value is None else found_in(value, field)
    return value


def predicate(path: Path_, chance: random.Random) -> Filter:
    name, kind = dotted(path), path[-1].field_type
    column = pl.col(path[0].name)
    for field in path[1:]:
        column = column.struct.field(field.name)

    def of(test: Callable[[Any], bool]) -> Callable[[Row], bool]:
        return lambda row: test(value_at(path, row))

    def is_null(value: Any) -> bool:
        return value is None

    def is_not_null(value: Any) -> bool:
        return value is not None

    shape = chance.randrange(10)
    if shape < 3 or not kind.is_primitive:
        if shape % 2:
            return Filter(ex.NotNull(name), of(is_not_null), of(is_null), column.is_not_null())
        return Filter(ex.IsNull(name), of(is_null), of(is_not_null), column.is_null())
    known = VALUES[str(kind)]
    is_float = str(kind) in ("float", "double")
    in_both = not is_float and str(kind) != "binary"
    if shape == 3 and is_float:
        is_nan = of(lambda value: value != value)
        return Filter(ex.IsNaN(name), is_nan, lambda row: not is_nan(row))
    literals = [value for value in known if value == value]
    if isinstance(kind, types.IntegerType):
        literals += [2**40, -(2**40)]
    if isinstance(kind, types.IntegerType | types.LongType):
        literals += [0.5, -1.5, Decimal("-1000000000000.5"), Decimal(2**70)]
    if isinstance(kind, types.DecimalType):
        literals += [2, Decimal("0.005"), Decimal("-99999999999.001")]
    chosen = [chance.choice(literals) for _ in range(chance.randint(2, 4))]

    def given(value: Any) -> Any:
        return value.isoformat() if isinstance(value, datetime.date) else value

    if shape == 4:
        return Filter(
            ex.In(name, {given(value) for value in chosen}),
            of(lambda value: value is not None and value in chosen),
            of(lambda value: value is not None and value not in chosen),
        )
    if shape == 5 and str(kind) == "string":
        prefix = chosen[0]
        return Filter(
            ex.StartsWith(name, prefix),
            of(lambda value: value is not None and value.startswith(prefix)),
            of(lambda value: value is not None and not value.startswith(prefix)),
        )
    compare = chance.choice(list(_INVERSE)[: 2 if str(kind) == "boolean" else None])
    in_polars, holds, fails = _INVERSE[compare]
    literal = chosen[0]
    return Filter(
        compare(name, given(literal)),
        of(lambda value: value is not None and holds(value, literal)),
        of(lambda value: value is not None and fails(value, literal)),
        in_polars(column, pl.lit(literal)) if in_both and literal in known else None,
    )


def random_filter(named: Sequence[Path_], chance: random.Random, depth: int = 3) -> Filter:
    shape = chance.randrange(8) if depth else 7
    if shape > 3:
        return predicate(chance.choice(named), chance)
    first = random_filter(named, chance, depth - 1)
    if shape == 3:
        in_polars = None if first.polars is None else ~first.polars
        return Filter(ex.Not(first.expression), first.negated, first.matches, in_polars)
    second = random_filter(named, chance, depth - 1)
    both = first.polars is not None and second.polars is not None

    def and_(one: Any, other: Any) -> Callable[[Row], bool]:
        return lambda row: one(row) and other(row)

    def or_(one: Any, other: Any) -> Callable[[Row], bool]:
        return lambda row: one(row) or other(row)

    if shape == 2:
        return Filter(
            ex.And(first.expression, second.expression),
            and_(first.matches, second.matches),
            or_(first.negated, second.negated),
            first.polars & second.polars if both else None,  # type: ignore[operator]
        )
    return Filter(
        ex.Or(first.expression, second.expression),
        or_(first.matches, second.matches),
        and_(first.negated, second.negated),
        first.polars | second.polars if both else None,  # type: ignore[operator]
    )


# -- histories


class Version(NamedTuple):
    """A version of the table: how it is read, and what its columns and rows are."""

    name: str
    scan: Callable[..., Any]
    schema: Schema
    rows: list[Row]
    polars: Callable[[], pl.LazyFrame] | None = None


class History:
    """A table and its model. ``main`` and ``branch`` are rows by field ID."""

    def __init__(self, catalog: Any, seed: object) -> None:
        self.chance = chance = random.Random(f"history {seed}")
        self._last_id = 100
        self._next_row = 0
        fields = [types.NestedField(1, "id", types.LongType(), required=True)]
        names = chance.sample(_NAMES, 3)
        fields += [self._new_field(name, 3) for name in names]
        # One column stays, so that there is always another one to change.
        fields.append(types.NestedField(2, "n", types.LongType(), required=False))
        schema = Schema(*fields)
        self.table = catalog.create_table(
            "db.t",
            schema,
            partition_spec=self._random_spec(schema),
            properties={
                "encryption.key-id": "keyA",
                "write.format.default": chance.choice(["parquet", "parquet", "avro"]),
                "write.delete.mode": chance.choice(["merge-on-read", "copy-on-write"]),
            },
        )
        self.branches: dict[str, list[Row]] = {"main": []}
        self.kept: dict[str, tuple[int, Schema, list[Row]]] = {}
        self.append("main")
        steps = [self.append, self.append, self.change, self.change, self.change, self.delete]
        for number in range(chance.randint(4, 9)):
            step = chance.choice([*steps, self.keep])
            if step == self.keep:
                self.keep(f"v{number}")
            elif step == self.change:
                self.change()
            else:
                step(chance.choice(list(self.branches)))

    # -- what changes

    def append(self, branch: str) -> None:
        schema = self.table.schema()
        rows = []
        for _ in range(self.chance.randint(1, 5)):
            row = random_value(schema.as_struct(), self.chance)
            self._next_row += 1
            rows.append({**row, 1: self._next_row})
        arrow = schema_to_pyarrow(schema, include_field_ids=False)
        named = [as_read(schema.as_struct(), row) for row in rows]
        self.table.append(pa.Table.from_pylist(named, schema=arrow), branch=branch)
        self.branches[branch] = [*self.branches[branch], *rows]

    def delete(self, branch: str) -> None:
        found = random_filter(list(paths(self.table.schema().fields)), self.chance)
        self.table.delete(found.expression, branch=branch)
        self.branches[branch] = [row for row in self.branches[branch] if not found.matches(row)]

    def keep(self, name: str) -> None:
        """Keep the current snapshot by its ID and a tag, and perhaps a branch."""
        snapshot = self.table.current_snapshot()
        schema = self.table.schemas()[snapshot.schema_id]
        self.kept[name] = snapshot.snapshot_id, schema, self.branches["main"]
        with self.table.manage_snapshots() as refs:
            refs.create_tag(snapshot.snapshot_id, name)
            if "b" not in self.branches:
                refs.create_branch(snapshot.snapshot_id, "b")
        self.branches.setdefault("b", self.branches["main"])

    def change(self) -> None:
        """Change the schema: rename, swap, drop, add, promote, or make optional."""
        schema, chance = self.table.schema(), self.chance
        named = [path for path in paths(schema.fields) if path[0].field_id != 1]
        sources = {f.source_id for f in self.table.spec().fields}
        if sources and chance.random() < 0.2:
            with self.table.update_spec() as spec:
                for field in self.table.spec().fields:
                    spec.remove_field(field.name)
            return
        path = chance.choice(named)
        name, beside = self._names(path)
        shape = chance.choice(
            ["rename", "swap", "drop", "drop", "add", "add", "promote", "optional"]
        )
        kept = {field.field_id for p in named if p[-1].field_id in sources for field in p}
        alone = not beside and len(path) > 1
        with self.table.update_schema() as update:
            if shape == "rename":
                update.rename_column(name, self._free(path))
            elif shape == "drop" and path[-1].field_id not in {2, *kept} and not alone:
                update.delete_column(name)
            elif shape == "promote" and str(path[-1].field_type) in _PROMOTED:
                kind = _PROMOTED[str(path[-1].field_type)]
                update.update_column(name, types.NestedField(1, "x", kind).field_type)
            elif shape == "optional":
                update.make_column_optional(name)
            elif shape == "add":
                field = self._new_field(self._free(path), 2)
                default = None
                if str(field.field_type) in ("int", "string") and chance.random() < 0.5:
                    default = chance.choice(VALUES[str(field.field_type)])
                required = default is not None and field.required
                parent = tuple(part.name for part in path[:-1])
                update.add_column(
                    (*parent, field.name),
                    field.field_type,
                    required=required,
                    default_value=default,
                )
        if shape == "swap" and beside:
            other = chance.choice(beside)
            above = [part.name for part in path[:-1]]
            for old, new in ((path[-1].name, "tmp"), (other, path[-1].name), ("tmp", other)):
                with self.table.update_schema() as update:
                    update.rename_column((*above, old), new)

    def _names(self, path: Path_) -> tuple[tuple[str, ...], list[str]]:
        """The name of a column, and the other names in its struct, without ``id``."""
        fields = self.table.schema().fields if len(path) == 1 else path[-2].field_type.fields  # type: ignore[union-attr]
        others = [f.name for f in fields if f.field_id not in (1, path[-1].field_id)]
        return tuple(field.name for field in path), others

    def _free(self, path: Path_) -> str:
        """A name that the struct of a column does not have. Other columns may have had it."""
        _, others = self._names(path)
        taken = {*others, path[-1].name, "id"}
        free = [n for n in (*_NAMES, f"n{self._last_id}") if n not in taken]
        return self.chance.choice(free)

    def _new_field(self, name: str, depth: int) -> types.NestedField:
        chance = self.chance
        self._last_id += 1
        number = self._last_id
        shape = chance.choice(["struct", "struct", "list", "map", *"pppp"][0 if depth else 4 :])
        kind: types.IcebergType
        if shape == "struct":
            names = chance.sample(_NAMES, chance.randint(1, 3))
            kind = types.StructType(*(self._new_field(inner, depth - 1) for inner in names))
        elif shape == "list":
            inner = self._new_field("element", depth - 1)
            kind = types.ListType(inner.field_id, inner.field_type, inner.required)
        elif shape == "map":
            self._last_id += 1
            key, inner = self._last_id, self._new_field("value", depth - 1)
            kind = types.MapType(
                key, types.StringType(), inner.field_id, inner.field_type, inner.required
            )
        else:
            primitive = chance.choice(list(VALUES))
            kind = types.NestedField(1, "x", primitive).field_type
        return types.NestedField(number, name, kind, required=chance.random() < 0.5)

    def _random_spec(self, schema: Schema) -> PartitionSpec:
        sources = [path[-1] for path in paths(schema.fields) if path[-1].field_type.is_primitive]
        source = self.chance.choice(sources)
        transform = parse_transform(self.chance.choice(["identity", "bucket[3]", "truncate[2]"]))
        if self.chance.random() < 0.5 or not transform.can_transform(source.field_type):
            return PartitionSpec()
        return PartitionSpec(PartitionField(source.field_id, 1000, transform, "p_"))

    # -- what is read

    def versions(self) -> Iterator[Version]:
        table = self.table
        rows = self.branches["main"]
        yield Version("table", table.scan, table.schema(), rows, table.to_polars)
        for name, found in self.branches.items():

            def of_branch(*given: Any, ref: str = name, **more: Any) -> Any:
                return table.scan(*given, **more).use_ref(ref)

            yield Version(f"branch {name}", of_branch, table.schema(), found)
        for name, (snapshot_id, schema, found) in self.kept.items():

            def of_tag(*given: Any, ref: str = name, **more: Any) -> Any:
                return table.scan(*given, **more).use_ref(ref)

            in_polars = functools.partial(
                pl.scan_iceberg, table, snapshot_id=snapshot_id, use_pyiceberg_filter=True
            )
            of_snapshot = functools.partial(table.scan, snapshot_id=snapshot_id)
            yield Version(f"snapshot {name}", of_snapshot, schema, found, in_polars)
            yield Version(f"tag {name}", of_tag, schema, found)


def check_version(
    version: Version,
    chance: random.Random,
    filters: int,
    scans: int,
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """Check filters on a version by what manifests say of its files, and ``scans`` of them by
    reading."""
    schema, struct = version.schema, version.schema.as_struct()
    by_id = {row[1]: row for row in version.rows}
    read = {row["id"]: row for row in version.scan().to_arrow().to_pylist()}
    expected = {i: as_read(struct, row) for i, row in by_id.items()}
    assert repr(sorted(read.items())) == repr(sorted(expected.items())), version.name
    if version.polars is not None:
        in_duckdb = version.scan().to_duckdb("t", connection).table("t").to_arrow_table()
        same = {row["id"]: row for row in in_duckdb.to_pylist()}
        assert repr(sorted(same.items())) == repr(sorted(expected.items())), version.name
    files = version.scan(selected_fields=("id", "_file")).to_arrow().to_pylist()
    in_file: dict[str, list[Row]] = {}
    for found in files:
        in_file.setdefault(found["_file"], []).append(by_id[found["id"]])
    scan = version.scan()
    entries = {task.file.file_path: task.file for task in scan.plan_files()}
    specs = scan.table_metadata.specs()
    named = list(paths(schema.fields))
    for number in range(filters):
        some = random_filter(named, chance)
        bound = bind_filter(some.expression, schema)
        of_files = FileFilter(bound, specs)
        for path, rows in in_file.items():
            answer = of_files.of_file(entries[path])
            wrong = answer is not None and {some.matches(row) for row in rows} != {answer}
            assert not wrong, (version.name, some.expression, answer, rows)
        if number >= scans:
            continue
        wanted = sorted(i for i, row in by_id.items() if some.matches(row))
        about = version.name, some.expression, schema
        found = sorted(version.scan(some.expression, ("id",)).to_arrow()["id"].to_pylist())
        assert found == wanted, about
        assert version.scan(some.expression).count() == len(wanted), about
        if number == 0:
            chosen = version.scan(some.expression, ("id",))
            shown = chosen.to_duckdb("t", connection).table("t")
            assert sorted(i for (i,) in shown.fetchall()) == wanted, about
        if version.polars is not None and some.polars is not None and number % 4 == 0:
            frame = version.polars().filter(some.polars).select("id").collect()
            assert sorted(frame["id"].to_list()) == wanted, about


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        yield made


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@pytest.mark.parametrize(
    ("seed", "filters", "scans"),
    [(seed, 120, 1) for seed in (0, 2, 3)]  # of both formats, and of both modes of deletes
    + [
        pytest.param(seed, FILTERS_OF_A_HISTORY, 3, marks=pytest.mark.slow)
        for seed in range(HISTORIES)
    ],
)
def test_filters_of_a_history(
    catalog: Any,
    seed: int,
    filters: int,
    scans: int,
    connection: duckdb.DuckDBPyConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if seed % 2:  # as files that are too large to be read whole, which Arrow filters
        monkeypatch.setattr(open_files, "_WHOLE_SIZE", 0)
    history = History(catalog, seed)
    versions = list(history.versions())
    for version in versions:
        of_version = -(-filters // len(versions))
        check_version(version, history.chance, of_version, min(of_version, scans), connection)
