"""Random histories of one table, which Python and Spark through the plug-in change in turn.

A step changes rows, the schema or the refs. Columns are nested, and are added, renamed, dropped,
added again and promoted, with defaults. Spark keeps the loaded table from one step to the next, but
for steps of Python's.

After each step both languages read the table, its branch, its tag and a past snapshot, with row IDs
and the sequence numbers of the last changes. A model says which rows each of them has, by field ID,
which rows the step has touched, and so which have to keep ID and number. ``make histories`` plays
200.
"""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from day import SEED
from pyiceberg import types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from ags1.iceberg import EncryptedTable, verify_table

from .lake import Lake, plain_files
from .spark import path_of

pytestmark = pytest.mark.interop

# Of each catalog. By default `make interop` plays one.
HISTORIES = int(os.environ.get("AGS1_TEST_HISTORIES") or 1)
STEPS = 8
MODES = "copy-on-write", "merge-on-read"
HIDDEN = "_row_id", "_last_updated_sequence_number"
ID, CARRIER = 1, 2  # the columns that stay as they are
FIELD_NAMES = "a", "b", "é", "x-y"
# The values of each type. 0.1 of a float is that of no double.
VALUES: dict[str, list[Any]] = {
    "boolean": [False, True],
    "int": [-(2**31), 0, 7],
    "long": [-(2**63), 2**40, 7],
    "float": [-1.5, 0.0, 0.10000000149011612],
    "double": [0.1, 1e300],
    "string": ["", "é", "ab"],
    "date": [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)],
    "decimal(9, 2)": [Decimal("-0.01"), Decimal("9999999.99")],
}
VALUES["decimal(12, 2)"] = VALUES["decimal(9, 2)"]
PROMOTED = {"int": "long", "float": "double", "decimal(9, 2)": "decimal(12, 2)"}
SQL_TYPES = {"long": "bigint"}
COLUMNS = pa.schema(
    {
        "id": pa.int64(),
        "carrier": pa.string(),
        "a": pa.float32(),
        "b": pa.struct(
            {"a": pa.int32(), "b": pa.struct({"a": pa.float32(), "b": pa.decimal128(9, 2)})}
        ),
        "é": pa.list_(pa.struct({"a": pa.int32(), "b": pa.string()})),
        "x-y": pa.map_(pa.string(), pa.struct({"a": pa.float32(), "b": pa.date32()})),
    }
)

Row = dict[int, Any]  # by field ID, at all depths; what is not there has the initial default
Rows = dict[int, Row]
Lineage = dict[int, tuple[int, int]]
Path = tuple[types.NestedField, ...]


class Kept(NamedTuple):
    """A past snapshot: its columns, rows and lineage."""

    snapshot_id: int
    schema: Schema
    rows: Rows
    lineage: Lineage


class Written(NamedTuple):
    """New rows, and the columns that are written of them."""

    schema: Schema
    columns: list[types.NestedField]
    rows: Rows

    def arrow(self) -> pa.Table:
        rows = [as_read(self.schema.as_struct(), row) for row in self.rows.values()]
        arrow = schema_to_pyarrow(self.schema, include_field_ids=False)
        names = [column.name for column in self.columns]
        return pa.Table.from_pylist(rows, arrow).select(names)


@dataclass
class History:
    """A table with its model; ``done`` is what a failure shows."""

    lake: Lake
    table: str
    pick: random.Random
    branches: dict[str, Rows] = field(default_factory=lambda: {"main": {}})
    tags: dict[str, Kept] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    lineage: dict[str, Lineage] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    branch: str = "main"  # that the step changes

    @property
    def rows(self) -> Rows:
        return self.branches[self.branch]

    @property
    def target(self) -> str:
        """The branch, for Spark's INSERT, UPDATE, DELETE and MERGE."""
        return "{t}" if self.branch == "main" else f"{{t}}.branch_{self.branch}"

    def some(self) -> list[int]:
        """Pick some rows of the branch."""
        return sorted(self.pick.sample(sorted(self.rows), min(len(self.rows), 2)))

    def new(self) -> list[int]:
        first = max(self.rows, default=0) + 1
        return [first, first + 1]

    def made(self, numbers: list[int], carrier: str | None = None, written: float = 0.8) -> Written:
        """Make rows, and pick the columns that a step writes. The others get their defaults."""
        schema = self.loaded().schema()
        columns = [
            f for f in schema.fields if f.field_id <= CARRIER or self.pick.random() < written
        ]
        rows = {}
        for number in numbers:
            values = random_value(types.StructType(*columns), self.pick)
            defaults = {f.field_id: f.write_default for f in schema.fields if f not in columns}
            chosen = carrier or self.pick.choice(("UA", "AA", None))
            rows[number] = {**defaults, **values, ID: number, CARRIER: chosen}
        self.branches[self.branch] = self.rows | rows
        return Written(schema, columns, rows)

    def drop(self, numbers: list[int]) -> None:
        self.branches[self.branch] = {k: v for k, v in self.rows.items() if k not in numbers}

    def loaded(self) -> EncryptedTable:
        loaded = self.lake.ours.load_table(self.table)
        assert isinstance(loaded, EncryptedTable)
        return loaded

    def sql(self, statement: str) -> None:
        self.done.append(statement)
        self.lake.sql(statement, self.table)

    def compared(self) -> dict[str, Lineage]:
        """Compare what both languages read with the model; return the lineage of each branch."""
        table, name = self.loaded(), f"{self.lake.name}.{self.table}"
        lineages = {}
        for branch, rows in self.branches.items():
            # As the table and its branch, or by VERSION AS OF.
            theirs = name if branch == "main" else f"{name}.branch_{branch}"
            theirs = self.pick.choice((theirs, f"{name} VERSION AS OF '{branch}'"))
            ours = table.scan() if branch == "main" else table.scan().use_ref(branch)
            lineages[branch] = self.read(ours, theirs, table.schema(), rows)
        past = [(f"'{tag}'", table.scan().use_ref(tag), kept) for tag, kept in self.tags.items()]
        for kept in self.pick.sample(self.kept, min(len(self.kept), 1)):
            past.append((str(kept.snapshot_id), table.scan(snapshot_id=kept.snapshot_id), kept))
        for version, scan, kept in past:
            found = self.read(scan, f"{name} VERSION AS OF {version}", kept.schema, kept.rows)
            assert found == kept.lineage, (self.done, version)
        return lineages

    def read(self, scan: Any, theirs: str, schema: Schema, rows: Rows) -> Lineage:
        """Return row IDs and sequence numbers, which must be the same in both languages."""
        names, about = [f.name for f in schema.fields], (theirs, self.done)
        query = f"SELECT {', '.join(f'`{name}`' for name in (*names, *HIDDEN))} FROM {theirs}"
        expected = {number: as_read(schema.as_struct(), row) for number, row in rows.items()}
        lineages = []
        read = scan.select(*names, *HIDDEN).to_arrow()
        for found in (read, self.lake.spark.session.sql(query).toArrow()):
            hidden = zip(*(found[name].to_pylist() for name in ("id", *HIDDEN)), strict=True)
            lineages.append({number: (row_id, sequence) for number, row_id, sequence in hidden})
            values = found.select(names).to_pylist()
            assert {row["id"]: row for row in values} == expected, about
            assert len(values) == len(rows), about
        assert lineages[0] == lineages[1], about
        assert len({row_id for row_id, _ in lineages[0].values()}) == len(rows), about
        return lineages[0]

    def keep(self) -> Kept:
        """Keep the snapshot of the branch, as it is now."""
        table = self.loaded()
        snapshot = table.snapshot_by_name(self.branch)
        assert snapshot is not None
        assert snapshot.schema_id is not None
        schema = table.schemas()[snapshot.schema_id]
        kept = Kept(snapshot.snapshot_id, schema, self.rows, self.lineage[self.branch])
        self.kept.append(kept)
        return kept


# --- values ---------------------------------------------------------------------------------------


def random_value(kind: types.IcebergType, pick: random.Random) -> Any:
    """Make a value; that of a struct is by field ID."""
    if isinstance(kind, types.StructType):
        return {f.field_id: random_or_null(f.field_type, pick) for f in kind.fields}
    if isinstance(kind, types.ListType):
        return [random_or_null(kind.element_type, pick) for _ in range(pick.randrange(3))]
    if isinstance(kind, types.MapType):
        keys = pick.sample("klm", pick.randrange(3))
        return [(key, random_or_null(kind.value_type, pick)) for key in keys]
    return pick.choice(VALUES[str(kind)])


def random_or_null(kind: types.IcebergType, pick: random.Random) -> Any:
    return None if pick.random() < 0.2 else random_value(kind, pick)


def as_read(kind: types.IcebergType, value: Any) -> Any:
    """A value in the names of a schema, as Arrow returns it."""
    if value is None:
        return None
    if isinstance(kind, types.StructType):
        found = ((f, value.get(f.field_id, f.initial_default)) for f in kind.fields)
        return {f.name: as_read(f.field_type, inner) for f, inner in found}
    if isinstance(kind, types.ListType):
        return [as_read(kind.element_type, one) for one in value]
    if isinstance(kind, types.MapType):
        return [(key, as_read(kind.value_type, one)) for key, one in value]
    if isinstance(kind, types.FloatType):  # 0.1 in metadata.json is the float next to it
        return pa.scalar(value, pa.float32()).as_py()
    return value


def in_sql(kind: types.IcebergType, value: Any) -> str:
    """A value as an expression of Spark's SQL."""
    if value is None:
        text = "NULL"
    elif isinstance(kind, types.StructType):
        parts = (f"'{f.name}', {in_sql(f.field_type, value[f.field_id])}" for f in kind.fields)
        text = f"named_struct({', '.join(parts)})"
    elif isinstance(kind, types.ListType):
        text = f"array({', '.join(in_sql(kind.element_type, one) for one in value)})"
    elif isinstance(kind, types.MapType):
        parts = (f"'{key}', {in_sql(kind.value_type, one)}" for key, one in value)
        text = f"map({', '.join(parts)})"
    else:
        text = f"'{value}'"
    return f"CAST({text} AS {sql_type(kind)})"


def sql_type(kind: types.IcebergType) -> str:
    if isinstance(kind, types.StructType):
        fields = (f"`{f.name}`: {sql_type(f.field_type)}" for f in kind.fields)
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(kind, types.ListType):
        return f"ARRAY<{sql_type(kind.element_type)}>"
    if isinstance(kind, types.MapType):
        return f"MAP<STRING, {sql_type(kind.value_type)}>"
    return "BIGINT" if str(kind) == "long" else str(kind)


def paths(fields: tuple[types.NestedField, ...], above: Path = ()) -> Iterator[Path]:
    """The columns that the schema's steps change, with what is around them."""
    for column in fields:
        path, kind = (*above, column), column.field_type
        if column.field_id > CARRIER:
            yield path
        if isinstance(kind, types.ListType):
            path, kind = (*path, kind.element_field), kind.element_type
        elif isinstance(kind, types.MapType):
            path, kind = (*path, kind.value_field), kind.value_type
        if isinstance(kind, types.StructType):
            yield from paths(kind.fields, path)


# --- steps: each changes table and model, and returns the rows that it has touched ----------------


def insert(history: History) -> Rows:
    written = history.made(history.new())
    names = ", ".join(f"`{column.name}`" for column in written.columns)
    values = (
        f"({', '.join(in_sql(f.field_type, row[f.field_id]) for f in written.columns)})"
        for row in written.rows.values()
    )
    history.sql(f"INSERT INTO {history.target} ({names}) VALUES {', '.join(values)}")
    return written.rows


def update(history: History) -> Rows:
    """Update the carrier, and a field of a struct if there is one."""
    touched = {number: {**history.rows[number], CARRIER: "U"} for number in history.some()}
    sets = ["carrier = 'U'"]
    inner = [
        path
        for path in paths(history.loaded().schema().fields)
        if len(path) == 2 and isinstance(path[0].field_type, types.StructType)
    ]
    if inner:
        struct, leaf = history.pick.choice(inner)
        value = random_or_null(leaf.field_type, history.pick)
        sets.append(f"`{struct.name}`.`{leaf.name}` = {in_sql(leaf.field_type, value)}")
        assert isinstance(struct.field_type, types.StructType)
        # A null struct becomes one of nulls.
        nulls = dict.fromkeys(f.field_id for f in struct.field_type.fields)
        for row in touched.values():
            row[struct.field_id] = {**(row.get(struct.field_id) or nulls), leaf.field_id: value}
    history.sql(f"UPDATE {history.target} SET {', '.join(sets)} WHERE id IN ({_listed(touched)})")
    history.branches[history.branch] = history.rows | touched
    return touched


def delete(history: History) -> Rows:
    gone = history.some()
    history.sql(f"DELETE FROM {history.target} WHERE id IN ({_listed(gone)})")
    history.drop(gone)
    return {}


def merge(history: History) -> Rows:
    gone, *changed = history.some()
    updated = {number: {**history.rows[number], CARRIER: "M"} for number in changed}
    new = history.made(history.new(), "M", 0).rows
    rows = " UNION ALL ".join(f"SELECT {number} AS id" for number in [gone, *changed, *new])
    history.sql(
        f"MERGE INTO {history.target} t USING ({rows}) s ON t.id = s.id "
        f"WHEN MATCHED AND s.id = {gone} THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET carrier = 'M' "
        "WHEN NOT MATCHED THEN INSERT (id, carrier) VALUES (s.id, 'M')"
    )
    history.branches[history.branch] = history.rows | updated
    history.drop([gone])
    return updated | new


def rewrite(history: History) -> Rows:
    procedure = history.pick.choice(
        (
            "rewrite_data_files(table => '{0}', options => map('rewrite-all', 'true'))",
            "rewrite_manifests('{0}')",
            "rewrite_position_delete_files('{0}')",
        )
    )
    history.sql(f"CALL {{c}}.system.{procedure.format(history.table)}")
    return {}


def evolve(history: History) -> Rows:
    shape, path, name, kind = _change(history)
    column = ".".join(f"`{part.name}`" for part in path)
    beside = ".".join([*(f"`{part.name}`" for part in path[:-1]), f"`{name}`"])
    history.sql(
        "ALTER TABLE {t} "
        + {
            "add": f"ADD COLUMN {beside} {sql_type(kind)}",
            "drop": f"DROP COLUMN {column}",
            "rename": f"RENAME COLUMN {column} TO `{name}`",
            "promote": f"ALTER COLUMN {column} TYPE {sql_type(kind)}",
            "move": f"ALTER COLUMN {column} FIRST",
        }[shape]
    )
    return {}


def refer(history: History) -> Rows:
    shape, kept = _reference(history)
    history.sql(
        "ALTER TABLE {t} "
        + {
            "tag": f"CREATE OR REPLACE TAG v AS OF VERSION {kept.snapshot_id}",
            "branch": f"CREATE OR REPLACE BRANCH side AS OF VERSION {kept.snapshot_id}",
            "untag": "DROP TAG v",
            "unbranch": "DROP BRANCH side",
        }[shape]
    )
    return {}


def our_append(history: History) -> Rows:
    written = history.made(history.new())
    history.loaded().append(written.arrow(), branch=history.branch)
    return written.rows


def our_delete(history: History) -> Rows:
    gone = history.some()
    history.loaded().delete(f"id in ({_listed(gone)})", branch=history.branch)
    history.drop(gone)
    return {}


def our_upsert(history: History) -> Rows:
    # Of no earlier step: rows that are as they should be are left alone.
    written = history.made([*history.some(), *history.new()], f"P{len(history.done)}", 1)
    history.loaded().upsert(written.arrow(), ["id"], branch=history.branch)
    return written.rows


def our_overwrite(history: History) -> Rows:
    written = history.made(history.some(), "O")
    gone = f"id in ({_listed(written.rows)})"
    history.loaded().overwrite(written.arrow(), gone, branch=history.branch)
    return written.rows


def our_rewrite(history: History) -> Rows:
    table = history.loaded()
    if history.pick.random() < 0.5:
        table.rewrite_data_files(min_input_files=2)
    else:
        table.rotate_keys()
    return {}


def our_evolve(history: History) -> Rows:
    """Change the schema as ``evolve`` does, or a column's default."""
    shape, path, name, kind = _change(history)
    column, above = tuple(part.name for part in path), tuple(part.name for part in path[:-1])
    default = history.pick.choice(VALUES[str(kind)]) if kind.is_primitive else None
    history.done.append(f"{shape} {column} {name} {kind} {default}")
    with history.loaded().update_schema() as change:
        if shape == "add":
            change.add_column((*above, name), kind, default_value=default)
        elif shape == "drop":
            change.delete_column(column)
        elif shape == "rename":
            change.rename_column(column, name)
        elif shape == "promote":
            change.update_column(column, kind)
        elif path[-1].field_type.is_primitive:
            change.set_default_value(column, history.pick.choice(VALUES[str(path[-1].field_type)]))
    return {}


def our_refer(history: History) -> Rows:
    shape, kept = _reference(history)
    history.done.append(f"{shape} {kept.snapshot_id}")
    with history.loaded().manage_snapshots() as refs:
        if shape == "tag":
            refs.create_tag(kept.snapshot_id, "v")
        elif shape == "branch":
            refs.create_branch(kept.snapshot_id, "side")
        elif shape == "untag":
            refs.remove_tag("v")
        else:
            refs.remove_branch("side")
    return {}


def _change(history: History) -> tuple[str, Path, str, types.IcebergType]:
    """Pick a change of the schema: a column, a name that is free beside it, and a type."""
    pick, schema = history.pick, history.loaded().schema()
    path = pick.choice(list(paths(schema.fields)))
    struct = path[-2].field_type if len(path) > 1 else schema.as_struct()
    assert isinstance(struct, types.StructType)
    free = [name for name in FIELD_NAMES if name not in {f.name for f in struct.fields}]
    name = pick.choice(free) if free else f"n{schema.highest_field_id}"
    old = str(path[-1].field_type)
    shapes = ["add", "add", "rename", "move"]
    if len(struct.fields) > (1 if len(path) > 1 else 3):
        shapes += ["drop", "drop"]
    shape = "promote" if old in PROMOTED and pick.random() < 0.5 else pick.choice(shapes)
    added = PROMOTED[old] if shape == "promote" else pick.choice([*VALUES, "struct"])
    if added == "struct":
        inner = types.NestedField(1, "a", types.IntegerType(), required=False)
        return shape, path, name, types.StructType(inner)
    return shape, path, name, types.NestedField(1, "x", added).field_type


def _reference(history: History) -> tuple[str, Kept]:
    """Pick a change of the refs, and make it in the model."""
    kept = history.keep() if history.pick.random() < 0.5 else history.pick.choice(history.kept)
    shapes = ["tag", "branch", "branch"]
    shapes += ["untag"] if history.tags else ["tag"]
    shapes += ["unbranch"] if len(history.branches) > 1 else ["branch"]
    shape = history.pick.choice(shapes)
    if shape == "tag":
        history.tags["v"] = kept
    elif shape == "branch":
        history.branches["side"], history.lineage["side"] = kept.rows, kept.lineage
    elif shape == "untag":
        del history.tags["v"]
    else:
        del history.branches["side"]
    return shape, kept


SPARK = (insert, update, delete, merge, rewrite, evolve, evolve, refer)
OURS = (
    our_append,
    our_delete,
    our_upsert,
    our_overwrite,
    our_rewrite,
    our_evolve,
    our_evolve,
    our_refer,
)
KEEP_IDS = (update, merge)  # of the rows that they change


@pytest.mark.parametrize("lake", ["sql", "rest"], indirect=True)
@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_random_history(lake: Lake, number: int) -> None:
    pick = random.Random(f"{SEED}-{number}")
    properties = {
        f"write.{what}.mode": pick.choice(MODES) for what in ("delete", "update", "merge")
    }
    properties["write.format.default"] = pick.choice(("parquet", "parquet", "avro"))
    properties["encryption.data-key-length"] = pick.choice(("16", "24", "32"))
    properties["encryption.keys.prune-on-commit"] = pick.choice(("true", "false"))
    history = History(lake, lake.create([], COLUMNS, **properties), pick)
    our_append(history)
    our_append(history)
    first = pick.randrange(2)
    for step in range(STEPS + 1):
        touched: Rows = {}
        if step:
            kinds = (SPARK, OURS)[(step + first) % 2]
            history.branch = pick.choice(list(history.branches))
            change = pick.choice(kinds if len(history.rows) > 2 else kinds[:1])
            history.done.append(f"{change.__name__} {history.branch}")
            touched = change(history)
            if change in OURS:
                lake.refresh(history.table)
        after, sequence = history.compared(), history.loaded().metadata.last_sequence_number
        for branch, lineage in after.items() if step else ():
            before = history.lineage[branch]
            for row, (row_id, changed) in lineage.items():
                if branch != history.branch or row not in touched:
                    assert (row_id, changed) == before[row], (history.done, row)
                    continue
                # The last snapshot of the step is the one that has written the row.
                assert before.get(row, (0, 0))[1] < changed <= sequence, (history.done, row)
                if change in KEEP_IDS and row in before:
                    assert row_id == before[row][0], (history.done, row)
        history.lineage = after
        if not step:
            history.keep()
    table = history.loaded()
    assert not [f for f in verify_table(table).findings if f.severity != "note"], history.done
    assert plain_files(path_of(table.location())) == []


def _listed(numbers: object) -> str:
    assert isinstance(numbers, (list, dict))
    return ", ".join(map(str, numbers))
