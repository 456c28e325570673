"""Applies updates to a table's metadata, by the rules of Java's ``TableMetadata.Builder``.

Updates and metadata are parsed JSON, in the forms of the REST and the table specification. Catalogs
without a server need this. PyIceberg's ``update_table_metadata`` does not replace it: it drops
``encryption-keys``, a snapshot's ``key-id``, and all fields and types that PyIceberg does not know.

Four rules are added to Java's: a new snapshot of an encrypted table must have a key, a key that
something still needs cannot be removed, a column's type changes only as the specification allows,
and its initial default does not change. Pure: independent of files, catalogs and plaintext keys.
"""

from __future__ import annotations

import itertools
import uuid as uuids
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pyiceberg.exceptions import CommitFailedException

from ...errors import MetadataIntegrityError
from ...keys.envelope import EncryptedKey
from ...keys.manager import DATA_KEY_LENGTH, TABLE_KEY_ID
from ..spec.constants import FORMAT_VERSION, MAIN_BRANCH
from ..spec.java_json import JavaOrdered, in_java_order, schema_in_java_order
from ..spec.json_fields import json_object, string, whole, wholes
from ..spec.properties import check_encryption, property_text, refuse_reserved
from ..spec.refs import RETENTION, read_refs, ref_from_update
from ..spec.shape import (
    FIRST_PARTITION_ID,
    LINEAGE,
    check_evolution,
    checked_schema,
    known_sort_fields,
    partition_fields,
    partitioning,
    schema_content,
    sequential_ids,
    sort_fields,
    source_column,
    walk,
)
from ..spec.table_keys import named_keys
from ..storage.locations import leads_up
from .metadata_file import CLOCK_SKEW_MS, without_trailing_slash

# As the ID of a schema, a partition spec or a sort order: the one that an update added last.
LAST_ADDED = -1
_REF_FIELDS = frozenset({"snapshot-id", "type", *RETENTION})


def apply_updates(
    metadata: Mapping[str, Any] | None, updates: Sequence[Mapping[str, Any]], *, now_ms: int
) -> JavaOrdered:
    """Return a table's metadata after updates, in Java's field order. The argument is not changed.
    ``metadata`` is None for a new table. ``now_ms`` is the time of the change (epoch). If the table
    was last updated later than that, by another clock, the change has the time of that update. The
    log of metadata files stays as it is. Raises CommitFailedException if a snapshot was made for an
    older version of the table: then it has to be made again. Raises ValueError for updates that are
    not allowed, and MetadataIntegrityError (a ValueError too) for malformed metadata or updates."""
    try:
        table = _Table(metadata, updates, now_ms)
        for update in updates:
            table.apply(update)
        return table.build()
    except (KeyError, TypeError, AttributeError) as error:
        raise MetadataIntegrityError(
            f"the table's metadata, or an update of it, is malformed: {error!r}"
        ) from error


class _Added:
    """The IDs of added schemas, specs or sort orders. ``LAST_ADDED`` stands for ``last``."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.last: int | None = None

    def add(self, new_id: int) -> None:
        self.ids.append(new_id)
        self.last = new_id


class _Table:
    """A table's metadata while it is changed. Objects inside it are replaced, never changed."""

    def __init__(
        self, metadata: Mapping[str, Any] | None, updates: Sequence[Mapping[str, Any]], now_ms: int
    ) -> None:
        self._before = metadata
        # Java cannot read a table whose times go back by more than a minute.
        self._now_ms = max(now_ms, (metadata or {}).get("last-updated-ms", 0))
        self._table = _empty(updates) if metadata is None else _completed(metadata)
        self._is_changed = metadata is None
        # Whether the default spec and order have to be compared with the current schema.
        self._shape_changed = metadata is None
        self._schemas, self._specs, self._orders = _Added(), _Added(), _Added()
        self._added_snapshots: set[int] = set()
        self._main_became: list[int] = []
        self._snapshots_removed = False
        # By ID, because a rotation changes thousands. The metadata's order is kept.
        self._keys = {entry["key-id"]: entry for entry in self._table["encryption-keys"]}
        self._keys_changed = False
        self._removed_keys: set[str] = set()

    def apply(self, update: Mapping[str, Any]) -> None:
        action = str(update.get("action")).lower()
        change = _ACTIONS.get(action)
        if change is None:
            raise ValueError(f"unknown update of a table: {action!r}")
        change(self, update)

    def build(self) -> JavaOrdered:
        table = self._table
        if self._is_changed:
            table["last-updated-ms"] = self._now_ms
            if self._keys_changed:
                table["encryption-keys"] = list(self._keys.values())
            if self._shape_changed:
                self._check_shape()
            self._check_snapshots()
            self._correct_snapshot_log()
            self._check_clock()
            self._check_keys()
            if table["format-version"] == 1:
                table["schema"] = self._current_schema()
                table["partition-spec"] = self._by_id("partition-specs", "spec-id")[
                    table["default-spec-id"]
                ]["fields"]
        return in_java_order(table, before=self._before)

    # Identity, version, location, properties

    def _assign_uuid(self, update: Mapping[str, Any]) -> None:
        text = string(update, "uuid")
        try:
            uuids.UUID(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a UUID") from None
        self._set("table-uuid", text)

    def _upgrade(self, update: Mapping[str, Any]) -> None:
        version, current = whole(update, "format-version"), self._table["format-version"]
        _check_version(version)
        if version < current:
            raise ValueError(
                f"a table of format version {current} cannot be downgraded to version {version}"
            )
        if current == 1 < version:
            self._table.pop("schema", None)
            self._table.pop("partition-spec", None)
            self._table["last-sequence-number"] = 0
        if current < LINEAGE <= version:
            self._table["next-row-id"] = 0
        self._set("format-version", version)

    def _set_location(self, update: Mapping[str, Any]) -> None:
        location = without_trailing_slash(string(update, "location"))
        if leads_up(location):
            raise ValueError(f"the table's location {location!r} must not contain '..'")
        self._set("location", location)

    def _set_properties(self, update: Mapping[str, Any]) -> None:
        # Early clients wrote "updated". Java still accepts that.
        changed = update.get("updates", update.get("updated"))
        if not isinstance(changed, Mapping):
            raise ValueError("an update of properties has no 'updates'")
        texts = {name: property_text(name, value) for name, value in changed.items()}
        refuse_reserved(texts)
        if texts:
            before = self._table["properties"]
            self._table["properties"] = {**before, **texts}
            if TABLE_KEY_ID in self._table["properties"]:
                check_encryption({n: t for n, t in texts.items() if before.get(n) != t})
            self._is_changed = True

    def _remove_properties(self, update: Mapping[str, Any]) -> None:
        removals = update.get("removals", update.get("removed"))
        if not isinstance(removals, Iterable) or isinstance(removals, str):
            raise ValueError("a removal of properties has no 'removals'")
        names = set(removals)
        if names:
            properties = self._table["properties"]
            self._table["properties"] = {k: v for k, v in properties.items() if k not in names}
            self._is_changed = True

    # Schemas

    def _add_schema(self, update: Mapping[str, Any]) -> None:
        schema = checked_schema(update.get("schema"), self._table["format-version"])
        largest = max((f.id for f in walk(schema)), default=0)
        last_column = max(self._table["last-column-id"], largest)
        is_known, schema_id = self._id_of_schema(schema)
        if is_known and last_column == self._table["last-column-id"]:
            self._schemas.last = schema_id if schema_id in self._schemas.ids else None
            return
        self._check_evolution(schema)
        self._table["last-column-id"] = last_column
        if not is_known:
            schema = schema_in_java_order({**schema, "schema-id": schema_id})
            self._table["schemas"] = [*self._table["schemas"], schema]
        self._schemas.add(schema_id)
        self._is_changed = True

    def _id_of_schema(self, schema: Mapping[str, Any]) -> tuple[bool, int]:
        """Return whether the table has the schema already, and the ID that it has or will get."""
        schema_id: int = self._table["current-schema-id"]
        for other in self._table["schemas"]:
            if schema_content(schema) == schema_content(other):
                return True, other["schema-id"]
            schema_id = max(schema_id, other["schema-id"] + 1)
        return False, schema_id

    def _set_current_schema(self, update: Mapping[str, Any]) -> None:
        schema_id = self._chosen(update, "schema-id", self._schemas.last, "schema")
        if schema_id not in self._by_id("schemas", "schema-id"):
            raise ValueError(f"the table has no schema {schema_id}")
        self._check_evolution(self._by_id("schemas", "schema-id")[schema_id])
        self._shape_changed |= self._set("current-schema-id", schema_id)

    def _check_evolution(self, schema: Mapping[str, Any]) -> None:
        # An ID that the current schema does not have may be that of a column that was dropped.
        check_evolution(schema, [*self._table["schemas"], self._current_schema() or {}])

    def _remove_schemas(self, update: Mapping[str, Any]) -> None:
        self._remove_from("schemas", "schema-id", wholes(update, "schema-ids"), "current-schema-id")

    # Partition specs

    def _add_spec(self, update: Mapping[str, Any]) -> None:
        fields = partition_fields(update.get("spec"))
        self._check_partitioning(fields)
        spec_id = 0
        for other in self._table["partition-specs"]:
            if partitioning(fields) == partitioning(other["fields"]):
                self._specs.last = other["spec-id"] if self._specs.last in self._specs.ids else None
                return
            spec_id = max(spec_id, other["spec-id"] + 1)
        ids = [field["field-id"] for field in fields]
        if self._table["format-version"] == 1 and ids != sequential_ids(ids):
            raise ValueError(
                "the field IDs of a partition spec of format version 1 must be 1000, 1001, …"
            )
        spec = {"spec-id": spec_id, "fields": fields}
        self._table["partition-specs"] = [*self._table["partition-specs"], spec]
        self._table["last-partition-id"] = max(
            self._table["last-partition-id"], *ids, FIRST_PARTITION_ID - 1
        )
        self._specs.add(spec_id)
        self._is_changed = self._shape_changed = True

    def _set_default_spec(self, update: Mapping[str, Any]) -> None:
        spec_id = self._chosen(update, "spec-id", self._specs.last, "partition spec")
        self._shape_changed |= self._set("default-spec-id", spec_id)

    def _remove_specs(self, update: Mapping[str, Any]) -> None:
        ids = wholes(update, "spec-ids")
        self._remove_from("partition-specs", "spec-id", ids, "default-spec-id")

    # Sort orders

    def _add_sort_order(self, update: Mapping[str, Any]) -> None:
        fields = sort_fields(update.get("sort-order"))
        self._check_sorting(fields)
        order_id = 1 if fields else 0
        for other in self._table["sort-orders"]:
            if fields == known_sort_fields(other["fields"]):
                known = self._orders.last in self._orders.ids
                self._orders.last = other["order-id"] if known else None
                return
            if fields:
                order_id = max(order_id, other["order-id"] + 1)
        order = {"order-id": order_id, "fields": fields}
        self._table["sort-orders"] = [*self._table["sort-orders"], order]
        self._orders.add(order_id)
        self._is_changed = self._shape_changed = True

    def _set_default_sort_order(self, update: Mapping[str, Any]) -> None:
        order_id = self._chosen(update, "sort-order-id", self._orders.last, "sort order")
        self._shape_changed |= self._set("default-sort-order-id", order_id)

    # Snapshots and refs

    def _add_snapshot(self, update: Mapping[str, Any]) -> None:
        table = self._table
        snapshot = json_object(update, "snapshot")
        for name in ("schemas", "partition-specs", "sort-orders"):
            if not table[name]:
                raise ValueError(f"a snapshot cannot be added before the table has {name}")
        snapshot_id = whole(snapshot, "snapshot-id")
        whole(snapshot, "timestamp-ms")
        if snapshot_id in self._by_id("snapshots", "snapshot-id"):
            raise ValueError(f"the table already has a snapshot {snapshot_id}")
        sequence_number = whole(snapshot, "sequence-number", 0)
        if table["format-version"] > 1:
            if (
                sequence_number <= table["last-sequence-number"]
                and snapshot.get("parent-snapshot-id") is not None
            ):
                raise CommitFailedException(
                    f"the snapshot has sequence number {sequence_number}, but the table's last is "
                    f"{table['last-sequence-number']}: another commit came first"
                )
            table["last-sequence-number"] = sequence_number
        if table["format-version"] >= LINEAGE:
            first_row_id = whole(snapshot, "first-row-id")
            added_rows = whole(snapshot, "added-rows")
            if first_row_id < table["next-row-id"]:
                raise CommitFailedException(
                    f"the snapshot's first row ID is {first_row_id}, but the table's next is "
                    f"{table['next-row-id']}: another commit came first"
                )
            if added_rows < 0:
                raise ValueError(f"the snapshot adds {added_rows} rows")
            # Java adds the rows to the table's next row ID. If the snapshot starts after a gap,
            # that would assign some row IDs twice.
            table["next-row-id"] = first_row_id + added_rows
        table["snapshots"] = [*table["snapshots"], dict(snapshot)]
        self._added_snapshots.add(snapshot_id)
        self._is_changed = True

    def _remove_snapshots(self, update: Mapping[str, Any]) -> None:
        removed = set(wholes(update, "snapshot-ids")) & set(self._by_id("snapshots", "snapshot-id"))
        if not removed:
            return
        for name in ("snapshots", "statistics", "partition-statistics"):
            self._table[name] = [x for x in self._table[name] if x["snapshot-id"] not in removed]
        for name, ref in list(self._table["refs"].items()):
            if ref["snapshot-id"] in removed:
                self._drop_ref(name)
        self._is_changed = self._snapshots_removed = True

    def _set_ref(self, update: Mapping[str, Any]) -> None:
        name = string(update, "ref-name")
        before = self._table["refs"].get(name) or {}
        ref = ref_from_update(update) | {
            n: value for n, value in before.items() if n not in _REF_FIELDS
        }
        if self._table["refs"].get(name) == ref:
            return
        snapshot_id = ref["snapshot-id"]
        snapshot = self._by_id("snapshots", "snapshot-id").get(snapshot_id)
        if snapshot is None:
            raise ValueError(f"{name!r} cannot be set to snapshot {snapshot_id}: it does not exist")
        if name == MAIN_BRANCH:
            if ref["type"] != "branch":
                raise ValueError("'main' is a branch and cannot become a tag")
            self._table["current-snapshot-id"] = snapshot_id
            # An older snapshot becomes the current one now, not when it was made.
            is_added = snapshot_id in self._added_snapshots
            time_ms = snapshot["timestamp-ms"] if is_added else self._now_ms
            self._table["snapshot-log"] = [
                *self._table["snapshot-log"],
                {"timestamp-ms": time_ms, "snapshot-id": snapshot_id},
            ]
            if is_added:
                self._main_became.append(snapshot_id)
        self._table["refs"] = {**self._table["refs"], name: ref}
        self._is_changed = True

    def _remove_ref(self, update: Mapping[str, Any]) -> None:
        name = string(update, "ref-name")
        if name in self._table["refs"]:
            self._drop_ref(name)
            self._is_changed = True

    def _drop_ref(self, name: str) -> None:
        if name == MAIN_BRANCH:
            self._table["current-snapshot-id"] = None
        self._table["refs"] = {n: ref for n, ref in self._table["refs"].items() if n != name}

    # Statistics

    def _set_statistics(self, update: Mapping[str, Any]) -> None:
        statistics = json_object(update, "statistics")
        if statistics.get("key-metadata") is not None:
            raise ValueError(
                "statistics cannot have key metadata: the metadata would have a plaintext key"
            )
        whole(statistics, "file-footer-size-in-bytes")
        if not isinstance(statistics.get("blob-metadata"), list):
            raise ValueError("statistics have no 'blob-metadata'")
        self._put_statistics("statistics", statistics)

    def _set_partition_statistics(self, update: Mapping[str, Any]) -> None:
        self._put_statistics("partition-statistics", json_object(update, "partition-statistics"))

    def _put_statistics(self, name: str, statistics: Mapping[str, Any]) -> None:
        snapshot_id = whole(statistics, "snapshot-id")
        string(statistics, "statistics-path")
        whole(statistics, "file-size-in-bytes")
        key_id = statistics.get("key-id")
        if key_id is not None and key_id not in self._keys:
            raise ValueError(f"statistics name the key {key_id!r}, which the table does not have")
        others = [x for x in self._table[name] if x["snapshot-id"] != snapshot_id]
        self._table[name] = [*others, dict(statistics)]
        self._is_changed = True

    def _remove_statistics(self, update: Mapping[str, Any]) -> None:
        """Remove ``statistics`` or ``partition-statistics``, as the action says."""
        name = update["action"].lower().removeprefix("remove-")
        snapshot_id = whole(update, "snapshot-id")
        self._set(name, [x for x in self._table[name] if x["snapshot-id"] != snapshot_id])

    # Keys

    def _add_key(self, update: Mapping[str, Any]) -> None:
        entry = dict(json_object(update, "encryption-key"))
        key_id = EncryptedKey.from_dict(entry).key_id
        # An entry is not replaced: a writer adds again what it knows, maybe an older wrapping.
        if key_id not in self._keys:
            self._keys[key_id] = entry
            self._keys_changed = self._is_changed = True

    def _remove_key(self, update: Mapping[str, Any]) -> None:
        key_id = string(update, "key-id")
        if key_id in self._keys:
            del self._keys[key_id]
            self._removed_keys.add(key_id)
            self._keys_changed = self._is_changed = True

    # Checks of the result

    def _check_shape(self) -> None:
        table = self._table
        if self._before is None:
            for name in ("table-uuid", "location"):
                if not table.get(name):
                    raise ValueError(f"a new table has no {name}")
        if self._current_schema() is None:
            raise ValueError("the table has no schema")
        spec = self._by_id("partition-specs", "spec-id").get(table["default-spec-id"])
        if spec is None:
            raise ValueError(f"the table has no partition spec {table['default-spec-id']}")
        order = self._by_id("sort-orders", "order-id").get(table["default-sort-order-id"])
        if order is None:
            raise ValueError(f"the table has no sort order {table['default-sort-order-id']}")
        self._check_partitioning(spec["fields"])
        self._check_sorting(order["fields"])

    def _check_snapshots(self) -> None:
        table = self._table
        snapshots = self._by_id("snapshots", "snapshot-id")
        if table["format-version"] > 1:
            for snapshot_id, snapshot in snapshots.items():
                if snapshot.get("sequence-number", 0) > table["last-sequence-number"]:
                    raise ValueError(
                        f"snapshot {snapshot_id} has a sequence number above the table's last"
                    )
        for name, ref in table["refs"].items():
            if ref["snapshot-id"] not in snapshots:
                raise ValueError(
                    f"the {ref['type']} {name!r} is at a snapshot that the table does not have"
                )
        main = table["refs"].get(MAIN_BRANCH)
        if (main and main["snapshot-id"]) != table["current-snapshot-id"]:
            raise ValueError("the branch 'main' is not at the current snapshot")

    def _correct_snapshot_log(self) -> None:
        current = self._table["current-snapshot-id"]
        # A snapshot that a transaction made and replaced by a later one was never current.
        passed = {snapshot_id for snapshot_id in self._main_became if snapshot_id != current}
        if not passed and not self._snapshots_removed:
            return
        snapshots = self._by_id("snapshots", "snapshot-id")
        log: list[dict[str, Any]] = []
        for entry in self._table["snapshot-log"]:
            if entry["snapshot-id"] in snapshots:
                if entry["snapshot-id"] not in passed:
                    log.append(entry)
            elif self._snapshots_removed:
                # A gap would extend the time of the snapshot before it, and time travel would read
                # wrong data.
                log.clear()
        had_log = bool(self._table["snapshot-log"])
        if current is not None and had_log and (not log or log[-1]["snapshot-id"] != current):
            raise ValueError("the last entry of the snapshot log is not the current snapshot")
        self._table["snapshot-log"] = log

    def _check_clock(self) -> None:
        """Refuse times that go back by more than a minute: Java could not read the table then."""
        times = [entry["timestamp-ms"] for entry in self._table["snapshot-log"]]
        times.append(self._now_ms)
        for before, after in itertools.pairwise(times):
            if after - before < -CLOCK_SKEW_MS:
                raise ValueError(
                    f"the table's history would have a change at {before} ms and the next one at "
                    f"{after} ms, and Java could not read that: make the snapshot again"
                )

    def _check_keys(self) -> None:
        table = self._table
        properties = table["properties"]
        key_id = properties.get(TABLE_KEY_ID)
        if table["format-version"] < FORMAT_VERSION:
            for name in (TABLE_KEY_ID, DATA_KEY_LENGTH):
                if name in properties:
                    raise ValueError(
                        f"{name!r} in format version {table['format-version']}: only version "
                        f"{FORMAT_VERSION} can be encrypted"
                    )
        lost = self._removed_keys - self._keys.keys()
        for snapshot_id, snapshot in self._by_id("snapshots", "snapshot-id").items():
            needed = snapshot.get("key-id")
            if snapshot_id in self._added_snapshots:
                if needed is None and key_id:
                    raise ValueError(f"snapshot {snapshot_id} of an encrypted table has no key ID")
                if needed is not None and not key_id:
                    raise ValueError(
                        f"snapshot {snapshot_id} has a key ID, but the table no {TABLE_KEY_ID!r}"
                    )
                if needed is not None and needed not in self._keys:
                    raise ValueError(f"the key of snapshot {snapshot_id} is not in the table")
            elif needed in lost:
                raise ValueError(f"snapshot {snapshot_id} still needs the key {needed!r}")
        for key_id in sorted(named_keys(table, lost)) if lost else ():
            raise ValueError(f"something in the metadata still refers to the key {key_id!r}")
        for entry in self._keys.values():
            if entry.get("encrypted-by-id") in lost:
                raise ValueError(
                    f"the key {entry['key-id']!r} still needs the key {entry['encrypted-by-id']!r}"
                )

    # Shared by the methods above

    def _set(self, name: str, value: Any) -> bool:
        if self._table.get(name) == value:
            return False
        self._table[name] = value
        self._is_changed = True
        return True

    def _by_id(self, name: str, key: str) -> dict[Any, Any]:
        return {entry[key]: entry for entry in self._table[name]}

    def _current_schema(self) -> Any:
        return self._by_id("schemas", "schema-id").get(self._table["current-schema-id"])

    def _chosen(self, update: Mapping[str, Any], key: str, last: int | None, what: str) -> int:
        chosen = whole(update, key)
        if chosen != LAST_ADDED:
            return chosen
        if last is None:
            raise ValueError(f"the last added {what} cannot be set: none was added")
        return last

    def _remove_from(self, name: str, key: str, ids: Sequence[int], current: str) -> None:
        if self._table[current] in ids:
            raise ValueError(f"{key} {self._table[current]} is in use: {current}")
        self._set(name, [entry for entry in self._table[name] if entry[key] not in ids])

    def _check_partitioning(self, fields: Sequence[Mapping[str, Any]]) -> None:
        columns = {column.id: column for column in walk(self._current_schema() or {})}
        top = {column.name: column.id for column in columns.values()}
        names: set[str] = set()
        for field in fields:
            name = field["name"]
            if not name or name in names:
                raise ValueError(f"two partition fields are named {name!r}, or one has no name")
            names.add(name)
            if field["transform"] == "void":
                continue
            column = source_column(columns, field, "partition")
            if column.in_collection:
                raise ValueError(f"the source of partition field {name!r} is inside a list or map")
            if top.get(name, column.id) != column.id:
                raise ValueError(f"the partition field {name!r} has the name of another column")

    def _check_sorting(self, fields: Sequence[Mapping[str, Any]]) -> None:
        columns = {column.id: column for column in walk(self._current_schema() or {})}
        for field in fields:
            source_column(columns, field, "sort")


_ACTIONS: dict[str, Callable[[_Table, Mapping[str, Any]], None]] = {
    "assign-uuid": _Table._assign_uuid,
    "upgrade-format-version": _Table._upgrade,
    "set-location": _Table._set_location,
    "set-properties": _Table._set_properties,
    "remove-properties": _Table._remove_properties,
    "add-schema": _Table._add_schema,
    "set-current-schema": _Table._set_current_schema,
    "remove-schemas": _Table._remove_schemas,
    "add-spec": _Table._add_spec,
    "set-default-spec": _Table._set_default_spec,
    "remove-partition-specs": _Table._remove_specs,
    "add-sort-order": _Table._add_sort_order,
    "set-default-sort-order": _Table._set_default_sort_order,
    "add-snapshot": _Table._add_snapshot,
    "remove-snapshots": _Table._remove_snapshots,
    "set-snapshot-ref": _Table._set_ref,
    "remove-snapshot-ref": _Table._remove_ref,
    "set-statistics": _Table._set_statistics,
    "remove-statistics": _Table._remove_statistics,
    "set-partition-statistics": _Table._set_partition_statistics,
    "remove-partition-statistics": _Table._remove_statistics,
    "add-encryption-key": _Table._add_key,
    "remove-encryption-key": _Table._remove_key,
}


def _empty(updates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metadata of a new table, before the updates."""
    versions = [u for u in updates if u.get("action") == "upgrade-format-version"]
    version = whole(versions[0], "format-version") if versions else FORMAT_VERSION
    _check_version(version)
    return _completed(
        {
            "format-version": version,
            "last-sequence-number": 0,
            "last-column-id": 0,
            "current-schema-id": 0,
            "schemas": [],
            "default-spec-id": 0,
            "partition-specs": [],
            "last-partition-id": 0,
            "default-sort-order-id": 0,
            "sort-orders": [],
            **({"next-row-id": 0} if version >= LINEAGE else {}),
        }
    )


def _check_version(version: int) -> None:
    if version > FORMAT_VERSION:
        raise ValueError(
            f"format version {version} is not supported, only those up to {FORMAT_VERSION}"
        )


_LISTS = """
    encryption-keys snapshots statistics partition-statistics snapshot-log metadata-log
""".split()


def _completed(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of metadata with the fields that format version 1 and lax writers leave out."""
    table = dict(metadata)
    for name in _LISTS:
        table[name] = list(table.get(name) or ())
    table["properties"] = dict(table.get("properties") or {})
    if "schemas" not in table:
        table["schemas"] = [{"schema-id": 0, **json_object(table, "schema")}]
        table["current-schema-id"] = table["schemas"][0]["schema-id"]
    if "partition-specs" not in table:
        fields = partition_fields({"fields": table.get("partition-spec") or []})
        table["partition-specs"] = [{"spec-id": 0, "fields": fields}]
        table["default-spec-id"] = 0
    if "last-partition-id" not in table:
        table["last-partition-id"] = max(
            (f["field-id"] for spec in table["partition-specs"] for f in spec["fields"]),
            default=FIRST_PARTITION_ID - 1,
        )
    if "sort-orders" not in table:
        table["sort-orders"] = [{"order-id": 0, "fields": []}]
        table["default-sort-order-id"] = 0
    if table.get("current-snapshot-id") == -1:
        table["current-snapshot-id"] = None
    table.setdefault("current-snapshot-id", None)
    table["refs"] = read_refs(table)
    return table
