"""Which snapshot of a table a frame reads. It is decided when the frame is made, and stays.

The options have Iceberg's names, and each excludes the others (Iceberg 1.12's own Spark runtime
refuses ``tag`` and wants Spark's names): ``snapshot-id``,
``branch``, ``tag``, ``as-of-timestamp`` (ms since 1970; the snapshot that was current then), and
``start-snapshot-id`` (exclusive) for the rows that later snapshots have appended, up to
``end-snapshot-id`` (inclusive) or the head of ``branch``. ``versionAsOf`` (a snapshot ID, a branch
or a tag) and ``timestampAsOf`` are Spark's. Without any, it is the table's current snapshot. This
one and the head of a branch have the table's current columns, as in Java (``SnapshotUtil``); any
other snapshot has its own. Knows nothing of files and of Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from pyiceberg.table.refs import SnapshotRefType

from ...iceberg.distributed import EncryptedTable

_START, _END = "start-snapshot-id", "end-snapshot-id"
_ONE_OF = ("snapshot-id", "branch", "tag", "as-of-timestamp", "versionasof", "timestampasof")
_REFS = ("branch", "versionasof")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Pin:
    """The version of a table that a frame reads; pickled with the frame. ``snapshot_id`` is None
    for a table without a snapshot, and ``schema_id`` that of the table's columns. ``is_chosen``: an
    option chooses the snapshot. Then the frame has that snapshot's own columns, unless it is the
    head of a branch (``is_branch``). ``start``: the frame has the rows that were appended after
    this snapshot."""

    snapshot_id: int | None
    schema_id: int
    is_chosen: bool = False
    start: int | None = None
    is_branch: bool = False

    @property
    def of_own_columns(self) -> int | None:
        """The snapshot whose own columns the frame has; None if it has the table's."""
        return self.snapshot_id if self.is_chosen and not self.is_branch else None

    def check(self, table: EncryptedTable) -> None:
        """Raise ValueError if the table does not have this version any more."""
        schemas = {schema.schema_id for schema in table.metadata.schemas}
        known = self.snapshot_id is None or table.snapshot_by_id(self.snapshot_id) is not None
        if not known or self.schema_id not in schemas:
            raise ValueError(
                f"the snapshot {self.snapshot_id}, which the frame was made for, has expired: load "
                "the table again"
            )


def resolve_pin(table: EncryptedTable, options: Mapping[str, str]) -> Pin:
    """Return the version that the options name. Raises ValueError if it does not exist."""
    given = [name for name in (*_ONE_OF, _START) if options.get(name)]
    if len(given) > 1 and given != ["branch", _START]:
        both = " and ".join(map(repr, given[:2]))
        raise ValueError(f"the options {both} cannot be used together")
    schema_id = table.metadata.current_schema_id
    current = table.metadata.current_snapshot_id
    end = options.get(_END)
    if not given:
        if end:
            raise ValueError(f"the option {_END!r} needs the option {_START!r}: give both")
        return Pin(current, schema_id)
    if _START in given:
        last = _chosen(table, options, "branch") if "branch" in given else current
        if end:
            last = _snapshot_id(table, _END, _number(options, _END))
        return Pin(last, schema_id, start=_number(options, _START))
    if end:
        raise ValueError(f"the options {given[0]!r} and {_END!r} cannot be used together")
    chosen = _chosen(table, options, given[0])
    ref = table.metadata.refs.get(options[given[0]]) if given[0] in _REFS else None
    is_branch = (
        ref is not None
        and ref.snapshot_ref_type == SnapshotRefType.BRANCH
        and ref.snapshot_id == chosen
    )
    return Pin(chosen, schema_id, is_chosen=True, is_branch=is_branch)


def _chosen(table: EncryptedTable, options: Mapping[str, str], name: str) -> int:
    text = options[name]
    if name == "snapshot-id" or (name == "versionasof" and text.isdecimal()):
        return _snapshot_id(table, name, _number(options, name))
    if name in ("as-of-timestamp", "timestampasof"):
        as_of_ms = _number(options, name) if name == "as-of-timestamp" else _milliseconds(text)
        snapshot = table.snapshot_as_of_timestamp(as_of_ms)
        missing = "snapshot of that time or before"
    else:
        snapshot = table.snapshot_by_name(text)
        missing = "branch or tag of that name"
    if snapshot is None:
        raise ValueError(f"the table has no {missing}: correct the option {name!r} ({text!r})")
    return int(snapshot.snapshot_id)


def _snapshot_id(table: EncryptedTable, name: str, snapshot_id: int) -> int:
    if table.snapshot_by_id(snapshot_id) is None:
        raise ValueError(f"the table has no snapshot {snapshot_id}: correct {name!r}")
    return snapshot_id


def _number(options: Mapping[str, str], name: str) -> int:
    text = options[name].strip()
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"the option {name!r} has to be a number, not {text!r}")
    return int(text)


def _milliseconds(text: str) -> int:
    """Return a time in ms since 1970. Spark does not tell a source the session's time zone, so a
    time without an offset could be another one than was meant. Raises ValueError."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(
            "the option 'timestampAsOf' has to be a time with its offset from UTC, as in "
            f"'2026-01-31 12:00:00+00:00', not {text!r}"
        )
    return (time - _EPOCH) // timedelta(milliseconds=1)
