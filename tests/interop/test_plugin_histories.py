"""Random histories of one table, which Python and Spark through the plug-in change in turn.

Spark keeps the loaded table from one step to the next, but for steps of Python's. After each step
both are asked for rows, row IDs and the sequence numbers of the last changes. A
model that is a dictionary says which rows there are, which of them the step has touched, and so
which have to keep ID and number. ``make histories`` plays 200.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from day import SEED

from ags1.iceberg import EncryptedTable, verify_table

from .lake import SCHEMA, Lake, listed, plain_files
from .spark import path_of

pytestmark = pytest.mark.interop

# Of each catalog. By default `make interop` plays a few.
HISTORIES = int(os.environ.get("AGS1_TEST_HISTORIES") or 2)
STEPS = 6
MODES = "copy-on-write", "merge-on-read"
HIDDEN = "_row_id", "_last_updated_sequence_number"

Rows = dict[int, str | None]
Lineage = dict[int, tuple[int, int]]


@dataclass
class History:
    """A table with its model; ``done`` is what a failure shows."""

    lake: Lake
    table: str
    pick: random.Random
    rows: Rows
    done: list[str] = field(default_factory=list)

    def some(self) -> list[int]:
        """Pick some rows of the table."""
        return sorted(self.pick.sample(sorted(self.rows), min(len(self.rows), 2)))

    def new(self) -> Rows:
        first = max(self.rows, default=0) + 1
        return {number: self.pick.choice(("UA", "AA", None)) for number in (first, first + 1)}

    def loaded(self) -> EncryptedTable:
        loaded = self.lake.ours.load_table(self.table)
        assert isinstance(loaded, EncryptedTable)
        return loaded

    def sql(self, statement: str) -> None:
        self.lake.sql(statement, self.table)

    def compared(self) -> Lineage:
        """Return the row IDs and sequence numbers, which must be the same in both languages."""
        columns = "id", "carrier", *HIDDEN
        query = f"SELECT {', '.join(columns)} FROM {self.lake.name}.{self.table}"
        theirs = self.lake.spark.session.sql(query).toArrow()
        ours = self.loaded().scan(selected_fields=columns).to_arrow()
        read, other = (
            sorted(zip(*(found[name].to_pylist() for name in columns), strict=True))
            for found in (ours, theirs)
        )
        assert read == other, self.done
        assert {number: carrier for number, carrier, *_ in read} == self.rows, self.done
        assert len(read) == len(self.rows), self.done
        assert len({row_id for _, _, row_id, _ in read}) == len(read), self.done
        return {number: (row_id, sequence) for number, _, row_id, sequence in read}


# --- steps: each changes table and model, and returns the rows that it has touched ----------------


def insert(history: History) -> Rows:
    new = history.new()
    values = ", ".join(f"({k}, {'NULL' if v is None else repr(v)})" for k, v in new.items())
    history.sql(f"INSERT INTO {{t}} VALUES {values}")
    history.rows |= new
    return new


def update(history: History) -> Rows:
    touched: Rows = dict.fromkeys(history.some(), "U")
    history.sql(f"UPDATE {{t}} SET carrier = 'U' WHERE id IN ({_listed(touched)})")
    history.rows |= touched
    return touched


def delete(history: History) -> Rows:
    gone = history.some()
    history.sql(f"DELETE FROM {{t}} WHERE id IN ({_listed(gone)})")
    for number in gone:
        del history.rows[number]
    return {}


def merge(history: History) -> Rows:
    gone, *changed = history.some()
    touched: Rows = dict.fromkeys([*changed, *history.new()], "M")
    rows = " UNION ALL ".join(f"SELECT {number} AS id" for number in [gone, *touched])
    history.sql(
        f"MERGE INTO {{t}} t USING ({rows}) s ON t.id = s.id "
        f"WHEN MATCHED AND s.id = {gone} THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET carrier = 'M' "
        "WHEN NOT MATCHED THEN INSERT (id, carrier) VALUES (s.id, 'M')"
    )
    del history.rows[gone]
    history.rows |= touched
    return touched


def rewrite(history: History) -> Rows:
    procedure = history.pick.choice(
        (
            "rewrite_data_files(table => '{0}', options => map('rewrite-all', 'true'))",
            "rewrite_manifests('{0}')",
            "rewrite_position_delete_files('{0}')",
        )
    )
    history.lake.sql(f"CALL {{c}}.system.{procedure.format(history.table)}")
    return {}


def our_append(history: History) -> Rows:
    new = history.new()
    history.loaded().append(_arrow(new))
    history.rows |= new
    return new


def our_delete(history: History) -> Rows:
    gone = history.some()
    history.loaded().delete(f"id in ({_listed(gone)})")
    for number in gone:
        del history.rows[number]
    return {}


def our_upsert(history: History) -> Rows:
    # Of no earlier step: rows that are as they should be are left alone.
    value = f"P{len(history.done)}"
    touched: Rows = dict.fromkeys([*history.some(), *history.new()], value)
    history.loaded().upsert(_arrow(touched), ["id"])
    history.rows |= touched
    return touched


def our_overwrite(history: History) -> Rows:
    touched: Rows = dict.fromkeys(history.some(), "O")
    history.loaded().overwrite(_arrow(touched), f"id in ({_listed(touched)})")
    history.rows |= touched
    return touched


def our_rewrite(history: History) -> Rows:
    table = history.loaded()
    if history.pick.random() < 0.5:
        table.rewrite_data_files(min_input_files=2)
    else:
        table.rotate_keys()
    return {}


SPARK = (insert, update, delete, merge, rewrite)
OURS = (our_append, our_delete, our_upsert, our_overwrite, our_rewrite)
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
    rows: Rows = {n: pick.choice(("UA", "AA", None)) for n in range(1, 7)}
    history = History(lake, lake.create(listed(rows), **properties), pick, rows)
    before, first = history.compared(), pick.randrange(2)
    for step in range(STEPS):
        kinds: tuple[Callable[[History], Rows], ...] = (SPARK, OURS)[(step + first) % 2]
        change = pick.choice(kinds if len(history.rows) > 2 else kinds[:1])
        history.done.append(change.__name__)
        touched = change(history)
        if change in OURS:
            lake.refresh(history.table)
        after, sequence = history.compared(), history.loaded().metadata.last_sequence_number
        for row, (row_id, changed) in after.items():
            if row not in touched:
                assert (row_id, changed) == before[row], (history.done, row)
                continue
            # The last snapshot of the step is the one that has written the row.
            assert before.get(row, (0, 0))[1] < changed <= sequence, (history.done, row)
            if change in KEEP_IDS and row in before:
                assert row_id == before[row][0], (history.done, row)
        before = after
    table = history.loaded()
    assert not [f for f in verify_table(table).findings if f.severity != "note"], history.done
    assert plain_files(path_of(table.location())) == []


def _listed(numbers: object) -> str:
    assert isinstance(numbers, (list, dict))
    return ", ".join(map(str, numbers))


def _arrow(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(listed(rows), SCHEMA)
