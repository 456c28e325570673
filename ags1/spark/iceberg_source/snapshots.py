"""Which snapshot of a table a frame reads. It is decided when the frame is made, and stays.

The options have Iceberg's names, and only one can be given: ``snapshot-id``, ``branch`` (a branch
or a tag), and ``as-of-timestamp`` (ms since 1970; the snapshot that was current then). Without any,
it is the table's current snapshot. This one and the head of a branch have the table's current
columns, as in Java (``SnapshotUtil``); any other snapshot has its own. Independent of files and
of Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table.refs import SnapshotRefType

from ...iceberg.distributed import EncryptedTable

_ID, _REF, _TIME = "snapshot-id", "branch", "as-of-timestamp"


@dataclass(frozen=True, slots=True)
class Pin:
    """The version of a table that a frame reads; pickled with the frame. ``snapshot_id`` is None
    for a table without a snapshot, and ``schema_id`` that of the frame's columns."""

    snapshot_id: int | None
    schema_id: int

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
    given = [name for name in (_ID, _REF, _TIME) if options.get(name)]
    if len(given) > 1:
        raise ValueError(f"the options {given[0]!r} and {given[1]!r} cannot be used together")
    schema_id = table.metadata.current_schema_id
    if not given:
        return Pin(table.metadata.current_snapshot_id, schema_id)
    [name] = given
    text = options[name]
    if name == _REF:
        snapshot, missing = table.snapshot_by_name(text), "branch or tag of that name"
    elif name == _ID:
        snapshot, missing = table.snapshot_by_id(_number(options, name)), "snapshot of that ID"
    else:
        snapshot = table.snapshot_as_of_timestamp(_number(options, name))
        missing = "snapshot of that time or before"
    if snapshot is None:
        raise ValueError(f"the table has no {missing}: correct the option {name!r} ({text!r})")
    ref = table.metadata.refs.get(text) if name == _REF else None
    if ref is None or ref.snapshot_ref_type != SnapshotRefType.BRANCH:
        schema_id = table.scan(snapshot_id=snapshot.snapshot_id).schema.schema_id
    return Pin(snapshot.snapshot_id, schema_id)


def _number(options: Mapping[str, str], name: str) -> int:
    text = options[name].strip()
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"the option {name!r} has to be a number, not {text!r}")
    return int(text)
