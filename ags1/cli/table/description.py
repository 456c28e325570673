"""What a table's metadata and manifests say, as facts for JSON and as lines to read. These are ids,
times and sizes, never key material. Knows no KMS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from ...iceberg.command_line import EncryptedTable
    from ...keys import EncryptedKey

_DAY_MS = 24 * 60 * 60 * 1000
_MAX_DIGITS = 18
_CONTENTS = {0: "data", 1: "position-deletes", 2: "equality-deletes"}


def describe_table(table: Table) -> dict[str, Any]:
    """Return what ``ags1 table info`` tells."""
    from ...iceberg.command_line import EncryptedTable

    metadata = table.metadata
    current = metadata.current_snapshot()
    keys = table.files.keys if isinstance(table, EncryptedTable) else None
    entries = () if keys is None else keys.encryption_keys
    keks = {entry.key_id: entry.encrypted_by_id for entry in entries}
    statistics = (*metadata.statistics, *metadata.partition_statistics)
    return {
        "table_uuid": str(metadata.table_uuid),
        "format_version": metadata.format_version,
        "location": metadata.location,
        "metadata_location": table.metadata_location,
        "encrypted": keys is not None,
        "key_id": None if keys is None else keys.table_key_id,
        "data_key_length": None if keys is None else keys.data_key_length,
        "pinned": _pinned(table) if isinstance(table, EncryptedTable) else None,
        "current_snapshot_id": None if current is None else current.snapshot_id,
        "refs": {
            name: {"type": ref.snapshot_ref_type.value, "snapshot_id": ref.snapshot_id}
            for name, ref in sorted(metadata.refs.items())
        },
        "keks": [_kek(entry) for entry in (() if keys is None else keys.key_encryption_keys)],
        "snapshots": [_snapshot(snapshot, keks) for snapshot in metadata.snapshots],
        "plain_statistics": [file.statistics_path for file in statistics],
    }


def _kek(entry: EncryptedKey) -> dict[str, Any]:
    from ...keys.manager import KEK_LIFETIME_MS

    made_ms = entry.timestamp_ms
    age_ms = None if made_ms is None else time.time_ns() // 1_000_000 - made_ms
    return {
        "kek_id": entry.key_id,
        "master_key_id": entry.encrypted_by_id,
        "created": made_ms and _time(made_ms),
        "age_days": None if age_ms is None else age_ms // _DAY_MS,
        "expires": made_ms and _time(made_ms + KEK_LIFETIME_MS),
        "expired": age_ms is not None and age_ms >= KEK_LIFETIME_MS,
    }


def _snapshot(snapshot: Snapshot, keks: dict[str, str | None]) -> dict[str, Any]:
    summary = snapshot.summary
    rows = summary["total-records"] if summary is not None else None
    key_id = getattr(snapshot, "key_id", None)
    return {
        "snapshot_id": snapshot.snapshot_id,
        "time": _time(snapshot.timestamp_ms),
        "operation": summary.operation.value if summary is not None else None,
        "rows": _number(rows),
        "position_deletes": _number(
            summary["total-position-deletes"] if summary is not None else None
        ),
        "key_id": key_id,
        "kek_id": keks.get(key_id or ""),
    }


def table_lines(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the facts as lines."""
    yield f"table      {facts['location']}"
    yield f"uuid       {facts['table_uuid']}"
    yield f"metadata   {facts['metadata_location']}"
    yield f"format     version {facts['format_version']}"
    if not facts["encrypted"]:
        yield "encrypted  no: everything is plaintext"
    else:
        size = facts["data_key_length"]
        yield f"encrypted  under {facts['key_id']}, data keys of {size} bytes"
        yield "           manifest lists, manifests, deletes and (see 'ags1 table files') data"
        yield "plaintext  metadata.json: the schema, partition specs, snapshots' row counts"
        yield f"pinned     {_pinned_line(facts['pinned'], facts['metadata_location'])}"
    for path in facts["plain_statistics"]:
        yield f"           statistics {path}"
    for name, ref in facts["refs"].items():
        yield f"{ref['type']:<10} {name}: snapshot {ref['snapshot_id']}"
    for kek in facts["keks"]:
        age = "of unknown age" if kek["age_days"] is None else f"{kek['age_days']} days old"
        ends = "expired" if kek["expired"] else f"in use until {kek['expires']}"
        yield f"KEK        {kek['kek_id']} under {kek['master_key_id']}, {age}, {ends}"
    for snapshot in facts["snapshots"]:
        rows = "" if snapshot["rows"] is None else f", {snapshot['rows']} rows"
        if gone := snapshot["position_deletes"]:
            rows += f", {gone} of them deleted"
        what = f"{snapshot['time']} {snapshot['operation']}{rows}"
        yield f"snapshot   {snapshot['snapshot_id']} {what}"
        if facts["encrypted"]:
            yield f"           key {snapshot['key_id']}, KEK {snapshot['kek_id']}"


def _pinned(table: EncryptedTable) -> dict[str, Any]:
    """Return what the catalog keeps of a table, and whether anything confirms metadata.json."""
    return {**asdict(table.pins()), "metadata_confirmed": table.metadata_is_confirmed}


def _pinned_line(pinned: dict[str, Any], metadata_location: str) -> str:
    hash_of, message = pinned["metadata_location"], f"in the catalog: the key {pinned['key_id']}"
    if pinned["key_id"] is None:
        if pinned["metadata_confirmed"]:
            return "metadata.json, by the SHA-256 that was given or the server's answer"
        return "nothing: whoever can write metadata.json can change the table"
    if hash_of is None:
        return f"{message}, and no hash of metadata.json"
    if hash_of == metadata_location:
        return f"{message} and the hash of metadata.json"
    return f"{message} and the hash of {hash_of}, which another writer has replaced"


def files_of_snapshot(table: Table, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield what is known of each data and delete file of a snapshot, manifest by manifest."""
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            file = cast("Any", entry.data_file)
            vector = bool(getattr(file, "is_deletion_vector", False))
            yield {
                "content": "deletion-vector" if vector else _CONTENTS[int(file.content)],
                "path": file.file_path,
                "format": file.file_format.value.lower(),
                "rows": file.record_count,
                "size": file.content_size_in_bytes if vector else file.file_size_in_bytes,
                "file_size": file.file_size_in_bytes,
                "encrypted": bool(getattr(file, "is_encrypted", False)),
                "snapshot_id": entry.snapshot_id,
                "sequence_number": entry.sequence_number,
            }


def file_line(facts: dict[str, Any]) -> str:
    """Return a file's facts as a line."""
    state = "encrypted" if facts["encrypted"] else "plaintext"
    return (
        f"{facts['content']:<16} {facts['format']:<7} {state:<9} {facts['rows']:>10} rows "
        f"{facts['size']:>12} bytes  {facts['path']}"
    )


def _number(text: str | None) -> int | None:
    """Return a count or time that the metadata has as text, None for what is none."""
    return int(text) if text and text.isdecimal() and len(text) <= _MAX_DIGITS else None


def _time(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return "unknown"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
