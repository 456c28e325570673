"""Tables without data, to be committed to: creation, appends of snapshots, many writers at once.

What a snapshot's files would be is not there; no catalog looks.
"""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField, StringType

from ags1.iceberg.commit.base import Base
from ags1.iceberg.commit.commits import Commits
from ags1.iceberg.commit.connections import connection_to
from ags1.iceberg.commit.new_table import new_table_updates
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.storage.trust import Trust

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType(), required=False, doc="a name"),
)
KEY = {"encryption.key-id": "keyA"}
# A catalog that is asked in vain is asked again at once.
QUICK = {"commit.status-check.num-retries": "1", "commit.status-check.min-wait-ms": "1"}
KEK = {
    "key-id": "a2Vr",
    "encrypted-key-metadata": "d3JhcHBlZA==",
    "encrypted-by-id": "keyA",
    "properties": {"KEY_TIMESTAMP": "1700000000000"},
}

Update = dict[str, Any]


def files_of(location: str) -> list[str]:
    """The names of the metadata files under a table's location."""
    return sorted(path.name for path in Path(location.removeprefix("file://")).rglob("*.json"))


def setting(**properties: str) -> list[Update]:
    return [{"action": "set-properties", "updates": properties}]


def key_entry(key_id: str, by: str = "a2Vr") -> dict[str, str]:
    return {"key-id": key_id, "encrypted-key-metadata": "c2VhbGVk", "encrypted-by-id": by}


def adding(key: Mapping[str, Any]) -> Update:
    return {"action": "add-encryption-key", "encryption-key": dict(key)}


def appending(base: Base, number: int, *, key_id: str | None = None) -> list[Update]:
    """The updates of an append to main, with its keys."""
    metadata = base.metadata
    key_id = key_id or f"key-{number}"
    parent = metadata.get("current-snapshot-id")
    snapshot = {
        "snapshot-id": number,
        "sequence-number": metadata["last-sequence-number"] + 1,
        "timestamp-ms": metadata["last-updated-ms"],
        "manifest-list": f"{metadata['location']}/metadata/snap-{number}.avro",
        "summary": {"operation": "append", "total-records": "1"},
        "schema-id": 0,
        "first-row-id": metadata["next-row-id"],
        "added-rows": 1,
        "key-id": key_id,
    }
    if parent not in (None, -1):
        snapshot["parent-snapshot-id"] = parent
    return [
        adding(KEK),
        adding(key_entry(key_id)),
        {"action": "add-snapshot", "snapshot": snapshot},
        {
            "action": "set-snapshot-ref",
            "ref-name": "main",
            "type": "branch",
            "snapshot-id": number,
        },
    ]


def at(base: Base) -> list[Update]:
    """The requirement that main has not moved."""
    current = base.metadata.get("current-snapshot-id")
    current = None if current == -1 else current
    return [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": current}]


def ids(base: Base) -> list[int]:
    return [snapshot["snapshot-id"] for snapshot in base.metadata.get("snapshots") or ()]


def create(
    commits: Commits,
    name: str = "db.t",
    properties: Mapping[str, str] = KEY,
    more: Sequence[Update] = (),
    schema: Schema = SCHEMA,
) -> tuple[Base, TableOutput]:
    """Create a table; return it and where its files go."""
    new_location = commits.new_location(name, None, schema, {**QUICK, **properties})
    updates = new_table_updates(
        schema,
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        new_location.location,
        {**QUICK, **properties},
        uuid.uuid4(),
    )
    output = TableOutput(new_location.io(commits.catalog))
    return commits.create(name, [*updates, *more], output, new_location=new_location), output


def append_some(catalog: Callable[[], Catalog], writer: int, count: int) -> None:
    """Append snapshots to ``db.t`` of a catalog, each retried until it is in."""
    commits = connection_to(catalog())
    for number in range(1, count + 1):
        while True:
            base = commits.load("db.t", Trust("keyA"))
            output = TableOutput(base.io(commits.catalog))
            try:
                commits.commit(base, appending(base, writer * 100 + number), at(base), output)
                break
            except CommitFailedException:
                continue


def check_eight_writers(commits: Commits, catalog: Callable[[], Catalog]) -> None:
    """Have eight processes append to a new table at once: nothing is lost, nothing is there twice,
    and of the attempts that lost no file is left."""
    base, _ = create(commits)
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=append_some, args=(catalog, writer, 2)) for writer in range(1, 9)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0] * 8
    final = commits.load("db.t", Trust())
    assert final.trust.confirms_metadata
    assert sorted(ids(final)) == sorted(w * 100 + n for w in range(1, 9) for n in range(1, 3))
    snapshots = final.metadata["snapshots"]
    assert [s["sequence-number"] for s in snapshots] == list(range(1, 17))
    assert [s["first-row-id"] for s in snapshots] == list(range(16))
    assert [s.get("parent-snapshot-id") for s in snapshots] == [None, *ids(final)[:-1]]
    logged = {entry["metadata-file"] for entry in final.metadata["metadata-log"]}
    assert len(files_of(base.metadata["location"])) == len(logged | {final.location}) == 17
