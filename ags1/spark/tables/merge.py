"""SQL for changes of rows: the actions of a delete, an update and a merge, as DataFrames.

An action says what to do with a row (``row_tasks``): the rows of a merge, for example, are ::

    target  source   clause that applies          action
    t       s        whenMatched().update(...)    remove t, write its new values
    t       s        whenMatched().delete()       remove t
    t       -        whenNotMatchedBySource()...  the same
    -       s        whenNotMatched().insert()    write the values

``MergeInto`` has the grammar of PySpark's ``DataFrame.mergeInto``. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as sql
from pyspark.sql.types import DataType

from .assignments import as_assigned
from .row_changes import ROW_ID_NAME, ChangedTable, Command, RowChanges
from .row_tasks import ACTION, FILE, MATCHED, POSITION, REMOVE, WRITE

TARGET, SOURCE = "target", "source"
_IN_SOURCE, _CLAUSE = "_ags1_in_source", "_ags1_clause"

# For each column's name: an expression of SQL, a Column, or a literal that is not a string.
Assignments: TypeAlias = "Mapping[str, Any]"


def delete_command(target: ChangedTable, where: str | Column) -> Command:
    """Return the command that deletes the rows for which ``where`` is true."""
    text = where if isinstance(where, str) else None
    row_filter, exact = target.filter_of(text)

    def actions(frame: Any) -> Any:
        return frame.where(where).select(sql.lit(REMOVE).alias(ACTION), FILE, POSITION)

    columns = target.columns_in(text) if text else None
    exact = exact and text is not None
    return Command("delete", actions, row_filter, exact, columns, writes=False)


def update_command(
    target: ChangedTable, assignments: Assignments, where: str | Column | None
) -> Command:
    """Return the command that updates the rows for which ``where`` is true."""
    text = where if isinstance(where, str) else None
    assigned = named(target, assignments)

    def actions(frame: Any) -> Any:
        rows = frame if where is None else frame.where(where)
        values = {name: as_column(value) for name, value in assigned.items()}
        fields = {f.name: f for f in target.schema.fields}
        frame = rows.select(
            sql.lit(REMOVE | WRITE).alias(ACTION),
            FILE,
            POSITION,
            ROW_ID_NAME,
            *(values.get(name, sql.col(quoted(name))).alias(name) for name in fields),
        )
        return as_assigned(frame, {name: fields[name] for name in assigned}, target.table.name())

    return Command("update", actions, target.filter_of(text)[0])


@dataclass(frozen=True, slots=True)
class _Clause:
    """A clause of a merge. ``kind`` says which rows it is for: matched, inserted (not matched) or
    by_source (not matched by the source). Without ``values`` it deletes them; ``all_columns``
    takes the source's."""

    kind: str
    condition: str | Column | None
    values: dict[str, Any] | None
    all_columns: bool = False

    @property
    def action(self) -> int:
        if self.kind == "inserted":
            return WRITE
        return REMOVE if self.is_delete else REMOVE | WRITE

    @property
    def is_delete(self) -> bool:
        return self.values is None and not self.all_columns


class MergeInto:
    """A merge that is being described; ``merge`` carries it out. In expressions, the table is
    ``target`` and the DataFrame ``source``. The first clause whose condition is true for a row
    applies to it."""

    def __init__(self, target: ChangedTable, source: Any, on: Any, branch: str | None) -> None:
        self._target = target
        self._source = source
        self._on = on
        self._branch = branch
        self._clauses: list[_Clause] = []

    def whenMatched(self, condition: str | Column | None = None) -> WhenMatched:
        """Begin a clause for the rows that ``on`` matches with one of the source."""
        return WhenMatched(self, "matched", condition)

    def whenNotMatched(self, condition: str | Column | None = None) -> WhenNotMatched:
        """Begin a clause for the rows of the source that match none."""
        return WhenNotMatched(self, "inserted", condition)

    def whenNotMatchedBySource(
        self, condition: str | Column | None = None
    ) -> WhenNotMatchedBySource:
        """Begin a clause for the rows that match none of the source."""
        return WhenNotMatchedBySource(self, "by_source", condition)

    def merge(self) -> RowChanges:
        """Carry out the merge, in one commit. Raises PySpark's AnalysisException for an invalid
        expression, its SparkRuntimeException with the condition MERGE_CARDINALITY_VIOLATION if a
        row matches several of the source, ValueError without any clause, and as ``update``."""
        if not self._clauses:
            raise ValueError(
                "the merge has no clause: add whenMatched, whenNotMatched or whenNotMatchedBySource"
            )
        writes = any(not clause.is_delete for clause in self._clauses)
        keeps = all(clause.kind == "inserted" for clause in self._clauses)
        texts = [self._on_text(), *(clause.condition for clause in self._clauses)]
        columns = None
        if all(text is None or isinstance(text, str) for text in texts) and (keeps or not writes):
            columns = self._target.columns_in(*texts)
        on = self._on if isinstance(self._on, str) and not self._has("by_source") else None
        row_filter, _ = self._target.filter_of(on, f"{TARGET}.")
        command = Command(
            "merge",
            self._actions,
            row_filter,
            columns=columns,
            writes=writes,
            inserts=self._has("inserted"),
        )
        return self._target.run(command, self._branch)

    def add(self, clause: _Clause) -> MergeInto:
        """Add a clause. Raises ValueError if one before it leaves no rows for it."""
        for before in self._clauses:
            if before.kind == clause.kind and before.condition is None:
                raise ValueError(
                    "a clause without a condition takes all the rows, so no other of its kind "
                    "can follow it: put it last"
                )
        self._clauses.append(clause)
        return self

    def named(self, assignments: Assignments) -> dict[str, Any]:
        """Return assignments by the table's names of columns. Raises ValueError."""
        return named(self._target, assignments)

    def _has(self, kind: str) -> bool:
        return any(clause.kind == kind for clause in self._clauses)

    def _on_text(self) -> Any:
        if isinstance(self._on, str | Column):
            return self._on
        names = [quoted(self._target.own_name(name)) for name in self._on]
        return " AND ".join(f"{TARGET}.{name} = {SOURCE}.{name}" for name in names)

    def _actions(self, frame: Any) -> Any:
        joined = self._joined(frame)
        has_target = self._has("matched") or self._has("by_source")
        is_new = sql.lit(True) if not has_target else sql.col(f"{TARGET}.{FILE}").isNull()
        is_left = sql.lit(False) if not has_target else sql.col(f"{SOURCE}.{_IN_SOURCE}").isNull()
        of_kind = {"inserted": is_new, "by_source": is_left, "matched": ~is_new & ~is_left}
        clause = sql.lit(None).cast("int")
        for number, one in reversed(list(enumerate(self._clauses))):
            condition = sql.lit(True) if one.condition is None else as_column(one.condition)
            clause = sql.when(of_kind[one.kind] & condition, number).otherwise(clause)
        chosen = joined.select("*", clause.alias(_CLAUSE))
        action = sql.lit(0)
        for number, one in enumerate(self._clauses):
            action = sql.when(sql.col(_CLAUSE) == number, one.action).otherwise(action)
        if self._counts_matches():
            matched = sql.when(of_kind["matched"], MATCHED).otherwise(0)
            action = action.bitwiseOR(matched)
        rows = chosen.select("*", action.cast("int").alias(ACTION)).where(sql.col(ACTION) != 0)
        located = [self._of_target(name, "bigint", has_target) for name in (FILE, POSITION)]
        if all(one.is_delete for one in self._clauses):
            return rows.select(ACTION, *located)
        return self._with_new_row(rows, [sql.col(ACTION), *located], has_target)

    def _joined(self, frame: Any) -> Any:
        target = frame.alias(TARGET)
        source = self._source.select("*", sql.lit(True).alias(_IN_SOURCE)).alias(SOURCE)
        on = as_column(self._on_text())
        if not (self._has("matched") or self._has("by_source")):
            return source.join(target, on, "left_anti")
        kinds = self._has("inserted"), self._has("by_source")
        how = {(0, 0): "inner", (1, 0): "left", (0, 1): "right", (1, 1): "full"}[kinds]
        return source.join(target, on, how)

    def _counts_matches(self) -> bool:
        """Whether a row may match only one of the source. As in Spark, deleting it several times
        is no fault."""
        matched = [clause for clause in self._clauses if clause.kind == "matched"]
        return not all(clause.is_delete and clause.condition is None for clause in matched)

    def _of_target(self, name: str, kind: DataType | str, has_target: bool) -> Column:
        value = sql.col(f"{TARGET}.{quoted(name)}") if has_target else sql.lit(None).cast(kind)
        return value.alias(name)

    def _with_new_row(self, rows: Any, others: list[Column], has_target: bool) -> Any:
        """Return the columns ``others``, the row ID and the columns of a new row."""
        fields = {f.name: f for f in self._target.schema.fields}
        kept = [self._of_target(ROW_ID_NAME, "bigint", has_target)]
        kept += [self._of_target(f.name, f.dataType, has_target) for f in fields.values()]
        # The assignments of all clauses, each in a column of its own.
        names: dict[tuple[int, str], str] = {}
        assigned = []
        for number, clause in enumerate(self._clauses):
            for name, value in self._assigned(clause).items():
                own = names[number, name] = f"{_CLAUSE}_{number}_{name}"
                # A value of a clause that does not apply is not computed.
                assigned.append(sql.when(sql.col(_CLAUSE) == number, as_column(value)).alias(own))
        frame = as_assigned(
            rows.select(_CLAUSE, *others, *kept, *assigned),
            {own: fields[name] for (_, name), own in names.items()},
            self._target.table.name(),
        )
        values = {name: sql.col(quoted(name)) for name in fields}
        for (number, name), own in names.items():
            chosen = sql.when(sql.col(_CLAUSE) == number, sql.col(quoted(own)))
            values[name] = chosen.otherwise(values[name])
        new = [value.alias(name) for name, value in values.items()]
        return frame.select(ACTION, FILE, POSITION, ROW_ID_NAME, *new)

    def _assigned(self, clause: _Clause) -> dict[str, Any]:
        """Return the values that a clause assigns, by the table's names of columns."""
        names = [f.name for f in self._target.schema.fields]
        given = clause.values or {}
        if clause.all_columns:
            given = {name: sql.col(f"{SOURCE}.{quoted(name)}") for name in names}
        if clause.kind == "inserted":
            given = {name: sql.lit(self._target.default_of(name)) for name in names} | given
        return given


class _When:
    """A clause whose action is still to be named."""

    def __init__(self, merge: MergeInto, kind: str, condition: str | Column | None) -> None:
        self._merge = merge
        self._kind = kind
        self._condition = condition

    def _then(self, values: Assignments | None, *, all_columns: bool = False) -> MergeInto:
        own = None if values is None else self._merge.named(values)
        return self._merge.add(_Clause(self._kind, self._condition, own, all_columns))


class WhenNotMatched(_When):
    """A clause for rows of the source that match none."""

    def insert(self, assignments: Assignments) -> MergeInto:
        """Insert a row. A column that is not named gets its default, or null."""
        return self._then(assignments)

    def insertAll(self) -> MergeInto:
        """Insert the row, whose columns have the names of the table's."""
        return self._then(None, all_columns=True)


class WhenNotMatchedBySource(_When):
    """A clause for rows of the table that match none of the source."""

    def update(self, assignments: Assignments) -> MergeInto:
        """Set these columns; the others stay."""
        return self._then(assignments)

    def delete(self) -> MergeInto:
        """Delete the rows."""
        return self._then(None)


class WhenMatched(WhenNotMatchedBySource):
    """A clause for rows of the table that match one of the source."""

    def updateAll(self) -> MergeInto:
        """Set all columns to those of the source with the same names."""
        return self._then(None, all_columns=True)


def as_column(expression: Any) -> Column:
    """Return an expression of SQL, a Column or a value as a Column."""
    if isinstance(expression, str):
        return sql.expr(expression)
    return expression if isinstance(expression, Column) else sql.lit(expression)


def quoted(name: str) -> str:
    """Return a column's name as SQL writes it."""
    return f"`{name.replace('`', '``')}`"


def named(target: ChangedTable, assignments: Assignments) -> dict[str, Any]:
    """Return assignments by the table's names of columns. Raises ValueError for a column that it
    does not have, and without any assignment."""
    columns = {column.name for column in target.schema.fields}
    own = {target.own_name(name): value for name, value in assignments.items()}
    if len(own) < len(assignments) or not own:
        raise ValueError("no column is set, or one is set twice: name each column once")
    if unknown := own.keys() - columns:
        raise ValueError(
            f"the table has no column {min(unknown)!r}: set one of {', '.join(sorted(columns))}"
        )
    return own


def checked_on(on: str | Column | Iterable[str]) -> Any:
    """Return a merge's condition, or the names of its key columns. Raises ValueError without
    any."""
    if isinstance(on, str | Column):
        return on
    names = list(on)
    if not names:
        raise ValueError("the merge has no condition: give 'on' an expression, or names of columns")
    return names
