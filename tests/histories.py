"""Writers who change one table at once, many of them killed, and the serial history behind it.

Each writer is a process. It loads the table, changes it as its dice say, and notes what it is about
to do, what it has read for it, and what came of it. Those who are to die do so at some call that
changes the world outside the process: a file's, the catalog's database's, a socket's. What is left
has to be a serial history: done one after the other in the order of their snapshots, by a model
that is a dictionary, the changes make exactly the rows of each snapshot, and nobody has read what
was not so.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from iceberg_tables import KMS_PROPERTIES
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from rest_catalog import Rest

from ags1.iceberg import EncryptedCatalog, EncryptedTable, load_catalog, verify_table

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "n", LongType(), required=False),
    NestedField(3, "by", StringType(), required=False),
)
PROPERTIES = {
    "encryption.key-id": "keyA",
    "commit.retry.num-retries": "50",
    "commit.retry.min-wait-ms": "2",
    "commit.retry.max-wait-ms": "50",
    "commit.status-check.min-wait-ms": "5",
}
FILE_STEPS = {"open", "link", "unlink", "rename", "fsync", "write", "mkdir"}
STEPS = FILE_STEPS | {"execute", "commit", "connect", "send", "sendall", "recv_into"}
OUTCOMES = {"done", "killed", "unknown", "ConflictError", "CommitFailedException"}
FILES = 4  # of the new table
IDS = 4  # that writers change; each adds others of his own
DOOMED, LIVING, CHANGES = 6, 2, 4  # writers of a round, changes of one who lives
# The last step that a writer may die at; a change takes 10 to 100. Python counts the steps of those
# who are to die, which takes a third of their time.
LAST_STEP = 200
MODES = ("copy-on-write", "merge-on-read")  # of which each table gets one for each command

Rows = dict[int, tuple[int, str]]
Note = dict[str, Any]


class Unexplained(AssertionError):
    """What no serial history explains."""


# -- what writers do: each returns what it will commit, None when there is nothing to do


def append(table: EncryptedTable, note: Note, mark: dict[str, str]) -> None:
    table.append(rows({note["new"]: (0, note["op"])}), mark)


def delete(table: EncryptedTable, note: Note, mark: dict[str, str]) -> None:
    table.delete(f"id = {note['id']}", mark)


def clear(table: EncryptedTable, note: Note, mark: dict[str, str]) -> None:
    # Whose rows these are, changes as others append and update.
    table.delete(f"n = {note['n']}", mark)


def increase(table: EncryptedTable, note: Note, mark: dict[str, str]) -> None:
    number, n = note["id"], note["read"]
    table.overwrite(rows({number: (n + 1, note["op"])}), f"id = {number}", mark)


def move(table: EncryptedTable, note: Note, mark: dict[str, str]) -> None:
    with table.transaction() as transaction:
        transaction.delete(f"id = {note['id']}", mark)
        transaction.append(rows({note["new"]: (note["read"], note["op"])}), mark)


def upsert(table: EncryptedTable, note: Note, mark: dict[str, str]) -> None:
    some = {note["id"]: (100, note["op"]), note["id"] + 1: (200, note["op"])}
    table.upsert(rows(some), ["id"], snapshot_properties=mark)


def rekey(table: EncryptedTable, note: Note, mark: dict[str, str]) -> None:
    table.rekey(f"id = {note['id']}")


def compact(table: EncryptedTable, note: Note, mark: dict[str, str]) -> None:
    table.rewrite_data_files(min_input_files=2)


def rotate(table: EncryptedTable, note: Note, mark: dict[str, str]) -> None:
    table.rotate_keys()


KINDS = {
    work.__name__: (work, weight)
    for work, weight in (
        *((append, 5), (delete, 2), (clear, 3), (increase, 6), (move, 4), (upsert, 5)),
        *((rekey, 2), (compact, 2), (rotate, 1)),
    )
}


def modelled(state: Rows, note: Note) -> Rows:
    """Return the rows after a change. Raises Unexplained for one that had read what is not so."""
    kind, op, number = note["kind"], note["op"], note["id"]
    new = dict(state)
    if kind in ("increase", "move") and state.get(number, (None,))[0] != note["read"]:
        raise Unexplained(f"{op} has read {note['read']} of {number}, and it is in {state}")
    if kind == "append":
        new[note["new"]] = 0, op
    elif kind == "increase":
        new[number] = note["read"] + 1, op
    elif kind == "move":
        del new[number]
        new[note["new"]] = note["read"], op
    elif kind == "upsert":
        new |= {number: (100, op), number + 1: (200, op)}
    else:
        for found, (n, _) in state.items():
            if n == note["n"] if kind == "clear" else found == number:
                del new[found]
        if new == state:
            raise Unexplained(f"{note} made a snapshot, and there is nothing to delete in {state}")
    return new


# -- writers


def write(
    properties: Mapping[str, str], name: str, writer: str, notes: Path, seed: int, die_at: int
) -> None:
    """Make changes, a few or until death; ``die_at`` is the step to die at, -1 for none."""
    pick = random.Random(seed)
    with catalog_of(properties) as catalog, notes.open("ab", buffering=0) as file:
        if die_at >= 0:
            _die_at(die_at, after=pick.random() < 0.5)
        table = loaded(catalog, name)
        kinds, weights = zip(*((k, w) for k, (_, w) in KINDS.items()), strict=True)
        for change in range(CHANGES if die_at < 0 else 1000):
            if pick.random() < 0.4:
                # The others use a version that may be old by now.
                table = loaded(catalog, name)
            [kind] = pick.choices(kinds, weights)
            note: Note = {"op": f"{writer}-{change}", "kind": kind, "id": pick.randrange(IDS)}
            note["new"] = seed * 10_000 + change + IDS + 1
            note["n"] = pick.choice((0, 0, 1, 100))
            if kind in ("increase", "move"):
                found = table.scan(f"id = {note['id']}").to_arrow()["n"].to_pylist()
                if len(found) > 1:
                    raise Unexplained(f"row {note['id']} is there {len(found)} times")
                if not found:
                    continue
                note["read"] = found[0]
            file.write(json.dumps(note).encode() + b"\n")
            try:
                KINDS[kind][0](table, note, {"op": note["op"]})
                outcome = "done"
            except CommitStateUnknownException:
                outcome = "unknown"
            except Exception as error:
                outcome = type(error).__name__
            file.write(json.dumps({"op": note["op"], "outcome": outcome}).encode() + b"\n")


def _die_at(point: int, *, after: bool) -> None:
    """Have this process killed at its ``point``-th step from now, before it or after it."""
    lock = threading.Lock()
    count = 0

    def step(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if event != ("c_return" if after else "c_call") or argument.__name__ not in STEPS:
            return
        with lock:
            if count == point:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    threading.setprofile(step)
    sys.setprofile(step)


# -- the explanation


def explain(properties: Mapping[str, str], name: str, notes: Path) -> dict[str, int]:
    """Return how many changes were made, refused and cut short. Raises Unexplained when the table's
    snapshots are not a serial history of what the writers noted, and when one cannot be read."""
    intents: dict[str, Note] = {}
    outcomes: dict[str, str] = {}
    for line in notes.read_text().splitlines():
        note = json.loads(line)
        if "outcome" in note:
            outcomes[note["op"]] = note["outcome"]
        else:
            intents[note["op"]] = note
    with catalog_of(properties) as catalog:
        table = loaded(catalog, name)
        snapshots = table.snapshots()[FILES - 1 :]
        ops = [s.summary and s.summary.additional_properties.get("op") for s in snapshots]
        state = rows_of(table, snapshots[0].snapshot_id)
        made: list[str] = []
        for number, (before, snapshot) in enumerate(itertools.pairwise(snapshots), 1):
            if snapshot.parent_snapshot_id != before.snapshot_id:
                raise Unexplained("the snapshots are not one history")
            op = ops[number]
            found = rows_of(table, snapshot.snapshot_id)
            if op is None:
                if found != state:
                    raise Unexplained(f"a rewrite made {found} of {state}")
                continue
            if op in ops[number + 1 : number + 2]:
                continue  # the first of two snapshots of one transaction
            made.append(op)
            state = modelled(state, intents[op])
            if found != state:
                raise Unexplained(f"{intents[op]} made {found}, a serial history {state}")
        report = verify_table(table)
        if not report.ok:
            raise Unexplained(f"the table is not whole: {report.findings}")
    times = collections.Counter(made)
    for op, note in intents.items():
        outcome = outcomes.get(op, "killed")
        if outcome not in OUTCOMES:
            raise Unexplained(f"{note} ended in {outcome}")
        # A delete may have found nothing to delete.
        at_least = outcome == "done" and note["kind"] in ("append", "increase", "move", "upsert")
        at_most = outcome in ("done", "killed", "unknown")
        if not at_least <= times[op] <= at_most:
            raise Unexplained(f"{note} was {outcome}, and is there {times[op]} times")
    return dict(collections.Counter(outcomes.get(op, "killed") for op in intents))


# -- tables


@contextmanager
def catalog_of(properties: Mapping[str, str]) -> Iterator[EncryptedCatalog]:
    with load_catalog("histories", **properties, **KMS_PROPERTIES) as catalog:
        yield catalog


def loaded(catalog: EncryptedCatalog, name: str) -> EncryptedTable:
    table = catalog.load_table(name)
    assert isinstance(table, EncryptedTable)
    return table


def make(properties: Mapping[str, str], name: str, location: str) -> None:
    with catalog_of(properties) as catalog:
        if properties["type"] != "rest":
            catalog.create_namespace_if_not_exists("db")
        pick = random.Random(name)
        modes = {
            f"write.{command}.mode": pick.choice(MODES) for command in ("delete", "update", "merge")
        }
        modes["encryption.keys.prune-on-commit"] = pick.choice(("true", "false"))
        table = catalog.create_table(name, SCHEMA, location, properties=PROPERTIES | modes)
        with table.transaction() as transaction:
            for first in range(0, IDS, IDS // FILES):
                some = range(first, first + IDS // FILES)
                transaction.append(rows(dict.fromkeys(some, (0, "first"))))


def rows(state: Rows) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(state, pa.int64()),
            "n": pa.array([n for n, _ in state.values()], pa.int64()),
            "by": pa.array([by for _, by in state.values()], pa.string()),
        }
    )


def rows_of(table: EncryptedTable, snapshot_id: int) -> Rows:
    found = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    state = {row["id"]: (row["n"], row["by"]) for row in found}
    if len(state) != len(found):
        raise Unexplained(f"a row is there twice: {found}")
    return state


# -- rounds


def in_a_fork(work: Callable[[], object]) -> int:
    """Start a child that does the work; return its process id. What it returns is printed."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        said = work()
        if said is not None:
            print(json.dumps(said), flush=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def must(work: Callable[[], object]) -> None:
    status = os.waitpid(in_a_fork(work), 0)[1]
    if status:
        raise Unexplained(f"a child ended with {status}")


@contextmanager
def catalogs(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    """Give the properties of a catalog in a folder: ``sql``, ``rest``, ``glue``, ``dynamodb``, or
    such as are given."""
    if kind == "sql":
        yield {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}",
        }
        return
    if kind in ("glue", "dynamodb"):
        from aws_catalogs import Aws, aws_catalog_server, environment
        from aws_catalogs import properties as aws_properties

        aws = Aws()
        child = in_a_fork(aws_catalog_server(aws).serve_forever)
        os.environ |= environment(aws.url)
        try:
            yield aws_properties(kind, aws.url, f"file://{folder}")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return
    if kind != "rest":
        yield json.loads(kind)
        return
    with Rest(folder) as server:
        # Killed clients do not finish what they say.
        server.handle_error = lambda *request: None  # type: ignore[method-assign]
        child = in_a_fork(server.serve_forever)
        try:
            yield {"type": "rest", "uri": f"http://127.0.0.1:{server.server_address[1]}"}
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def play(properties: Mapping[str, str], name: str, folder: Path, pick: random.Random) -> int:
    """Make a table, have it changed, and explain what is left; return how many writers died."""
    notes = folder / f"{name}.notes"
    must(lambda: make(properties, name, f"file://{folder}/{name}"))
    children = {}
    for number in range(DOOMED + LIVING):
        die_at = pick.randrange(LAST_STEP) if number < DOOMED else -1
        dice = pick.randrange(1 << 20)
        # A child begins with what these are now.
        child = in_a_fork(
            functools.partial(write, properties, name, f"w{number}", notes, dice, die_at)
        )
        children[child] = die_at >= 0
    for child, is_doomed in children.items():
        status = os.waitpid(child, 0)[1]
        if status != (signal.SIGKILL if is_doomed else 0):
            raise Unexplained(f"a writer ended with {status}")
    must(lambda: explain(properties, name, notes))
    shutil.rmtree(folder / name, ignore_errors=True)
    return DOOMED


def import_as_children_do(properties: Mapping[str, str], folder: Path) -> None:
    """Import what a table needs, once for all children."""
    said = folder / "modules"

    def work() -> None:
        make(properties, "db.first", f"file://{folder}/db.first")
        write(properties, "db.first", "first", folder / "first.notes", 1, -1)
        explain(properties, "db.first", folder / "first.notes")
        said.write_text("\n".join(sys.modules))

    must(work)
    for name in said.read_text().splitlines():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main(kind: str, folder: Path, kills: int, seed: int) -> None:
    """Have writers change tables until as many are killed; print the seed, what came of the changes
    of each table, and how many were killed. Here nothing is done but forking: a child would inherit
    locks."""
    print(json.dumps({"seed": seed}), flush=True)
    warnings.simplefilter("ignore")
    pick = random.Random(seed)
    killed = 0
    with catalogs(kind, folder) as properties:
        import_as_children_do(properties, folder)
        for number in itertools.count():
            if killed >= kills:
                break
            killed += play(properties, f"db.t{seed}_{number}", folder, pick)
    print(json.dumps({"kills": killed}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
