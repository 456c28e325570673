"""``HiveCommits``: commits to a Hive metastore, whose table parameters hold what guards the keys.

The metastore keeps the table's master key, the length of its data keys and a hash of its metadata,
as Java's ``HiveTableOperations`` and ``HMSTablePropertyHelper`` do, and refreshes its own view of
columns and statistics. Two writers are told apart by Hive's lock, where the table does not say that
it goes without (``engine.hive.lock-enabled``), and always by the parameter that is expected to
stand, which metastores check from Hive 2.3.10, 3.1.4 and 4.0 on. Knows nothing of metadata files.
"""

from __future__ import annotations

import getpass
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from threading import Event
from typing import Any

from hive_metastore.ttypes import (
    AlreadyExistsException,
    EnvironmentContext,
    FieldSchema,
    InvalidObjectException,
    MetaException,
    NoSuchObjectException,
    SerDeInfo,
    StorageDescriptor,
    UnlockRequest,
)
from hive_metastore.ttypes import Table as HiveTable
from pyiceberg.catalog.hive import HIVE2_COMPATIBLE, SchemaToHiveConverter
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import visit
from pyiceberg.typedef import Identifier
from pyiceberg.types import PrimitiveType, TimestampNanoType, TimestamptzNanoType
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TTransport import TTransportException

from ...errors import MetadataIntegrityError
from ...keys.manager import TABLE_KEY_ID
from ..pyiceberg.hive import hive_client, hive_table_lock
from ..spec.column_types import parse_schema
from ..storage.trust import ICEBERG, METADATA_HASH, METADATA_LOCATION, TABLE_TYPE, Trust, hive_trust
from .commits import Base, FileCommits, Staged

_log = logging.getLogger(__name__)

# A table's property, and what Java reads from Hadoop's configuration and we from the catalog's.
_LOCK_ENABLED = "engine.hive.lock-enabled"
_ENGINE_ENABLED = "engine.hive.enabled"
_CONFIGURED = "iceberg."
_OWNER = "hive.metastore.table.owner"
_MAX_SIZE = "iceberg.hive.table-property-max-size"
_DEFAULT_MAX_SIZE = 32672

# Iceberg's names of properties that Hive calls otherwise.
_HIVE_NAMES = {"gc.enabled": "external.table.purge"}
_STORAGE_HANDLER = "storage_handler"
_CURRENT = {
    "schemas": "current-schema-id",
    "partition-specs": "default-spec-id",
    "sort-orders": "default-sort-order-id",
}
_EXPOSED = (
    "current-schema",
    "default-partition-spec",
    "default-sort-order",
    "current-snapshot-id",
    "current-snapshot-timestamp-ms",
    "current-snapshot-summary",
)
# What Hive calls the totals of the current snapshot's summary.
_STATISTICS = {
    "total-data-files": "numFiles",
    "total-records": "numRows",
    "total-files-size": "totalSize",
}


class HiveCommits(FileCommits):
    """Commits to the tables of a HiveCatalog.

    Where Hive's lock is not used, the metastore must be one that checks the expected parameter: an
    older one lets the last of two writers win, and nobody notices.
    """

    def _find(self, identifier: Identifier, trust: Trust) -> tuple[str, Trust]:
        database, name = identifier
        with hive_client(self.catalog) as client:
            try:
                parameters = client.get_table(database, name).parameters or {}
            except NoSuchObjectException:
                raise NoSuchTableError(f"Table does not exist: {database}.{name}") from None
        location = parameters.get(METADATA_LOCATION)
        if not location or parameters.get(TABLE_TYPE, "").lower() != ICEBERG:
            raise NoSuchIcebergTableError(f"{database}.{name} is no table of Iceberg's")
        return location, hive_trust(trust, parameters)

    def _trust_after(self, trust: Trust, staged: Staged) -> Trust:
        return replace(super()._trust_after(trust, staged), java_hash=staged.java_hash)

    def _swap(self, base: Base, staged: Staged, sent: Event) -> None:
        database, name = base.identifier
        context = {
            "expected_parameter_key": METADATA_LOCATION,
            "expected_parameter_value": base.location,
            "DO_NOT_UPDATE_STATS": "true",
        }
        with hive_client(self.catalog) as client:
            lock_id = self._lock(client, base)
            try:
                try:
                    table = client.get_table(database, name)
                except NoSuchObjectException as error:
                    raise CommitFailedException(f"{database}.{name} is gone") from error
                found = (table.parameters or {}).get(METADATA_LOCATION)
                if found != base.location:
                    raise CommitFailedException(
                        f"Table has been updated by another process: {database}.{name}"
                    )
                table.sd = self._storage(staged.metadata)
                table.parameters = self._parameters(table.parameters, staged, base)
                sent.set()
                client.alter_table_with_environment_context(
                    database, name, table, EnvironmentContext(context)
                )
            finally:
                self._unlock(client, lock_id, base)

    def _insert(self, identifier: Identifier, staged: Staged, sent: Event) -> None:
        database, name = identifier
        now = int(time.time())
        properties = staged.metadata.get("properties") or {}
        table = HiveTable(
            tableName=name,
            dbName=database,
            owner=properties.get(_OWNER) or getpass.getuser(),
            createTime=now,
            lastAccessTime=now,
            retention=2**31 - 1,
            sd=self._storage(staged.metadata),
            partitionKeys=[],
            parameters=self._parameters({"EXTERNAL": "TRUE"}, staged, None),
            tableType="EXTERNAL_TABLE",
        )
        with hive_client(self.catalog) as client:
            sent.set()
            try:
                client.create_table(table)
            except AlreadyExistsException as error:
                raise TableAlreadyExistsError(f"Table {database}.{name} already exists") from error
            except (InvalidObjectException, NoSuchObjectException) as error:
                if database in client.get_all_databases():
                    raise
                raise NoSuchNamespaceError(f"Database does not exist: {database}") from error

    def _settled_location(self, identifier: Identifier) -> str | None:
        database, name = identifier
        with hive_client(self.catalog) as client:
            try:
                parameters = client.get_table(database, name).parameters or {}
            except NoSuchObjectException:
                return None
        return parameters.get(METADATA_LOCATION)

    def _may_land(self, error: BaseException, is_new: bool) -> bool:
        # What the metastore says of its own has an end: it will do nothing afterwards.
        is_answer = isinstance(error, TException) and not isinstance(
            error, TTransportException | TProtocolException
        )
        return not is_answer

    # No context managers of contextlib here: they set an attribute of exceptions that pass, and
    # Hive's own cannot be changed.
    def _lock(self, client: Any, base: Base) -> int | None:
        """Return the id of Hive's lock of the table, None where it goes without. Raises
        CommitFailedException when it cannot be had, NotImplementedError when the metastore has no
        locks."""
        properties = base.metadata.get("properties") or {}
        if not self._flag(properties, _LOCK_ENABLED, default=True):
            return None
        try:
            return hive_table_lock(self.catalog, client, *base.identifier)
        except (MetaException, TApplicationException) as error:
            raise NotImplementedError(
                f"the metastore gives no lock of {'.'.join(base.identifier)}: where it checks the "
                f"parameter that is expected, set the table's {_LOCK_ENABLED!r} to 'false'"
            ) from error

    def _unlock(self, client: Any, lock_id: int | None, base: Base) -> None:
        if lock_id is None:
            return
        try:
            client.unlock(UnlockRequest(lockid=lock_id))
        except Exception as error:
            # It ends by itself; what was done under it stands.
            name = ".".join(base.identifier)
            _log.warning("the lock of %s is left behind: %s", name, type(error).__name__)

    def _flag(self, properties: Mapping[str, str], name: str, *, default: bool) -> bool:
        configured = self.catalog.properties.get(_CONFIGURED + name, str(default))
        return str(properties.get(name, configured)).lower() == "true"

    def _storage(self, metadata: Mapping[str, Any]) -> StorageDescriptor:
        """Return the columns and the location, as Hive has them."""
        hive2 = str(self.catalog.properties.get(HIVE2_COMPATIBLE, "false")).lower() == "true"
        converter = _HiveTypes(hive2)
        fields = parse_schema(_current(metadata, "schemas", "schema-id")).fields
        if self._is_for_hive(metadata):
            package = "org.apache.iceberg.mr.hive.HiveIceberg"
            formats = [f"{package}{part}" for part in ("InputFormat", "OutputFormat", "SerDe")]
        else:
            formats = [
                "org.apache.hadoop.mapred.FileInputFormat",
                "org.apache.hadoop.mapred.FileOutputFormat",
                "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
            ]
        return StorageDescriptor(
            cols=[FieldSchema(f.name, visit(f.field_type, converter), f.doc) for f in fields],
            location=metadata["location"],
            inputFormat=formats[0],
            outputFormat=formats[1],
            serdeInfo=SerDeInfo(serializationLib=formats[2], parameters={}),
        )

    def _is_for_hive(self, metadata: Mapping[str, Any]) -> bool:
        return self._flag(metadata.get("properties") or {}, _ENGINE_ENABLED, default=False)

    def _parameters(
        self, before: Mapping[str, str] | None, staged: Staged, base: Base | None
    ) -> dict[str, str]:
        """Return a table's parameters as they have to be once ``staged`` is its metadata; foreign
        ones stay."""
        metadata = staged.metadata
        properties = metadata.get("properties") or {}
        found = dict(before or {})
        for name in (base.metadata.get("properties") or {}) if base else ():
            if name not in properties:
                found.pop(_HIVE_NAMES.get(name, name), None)
        for name, value in properties.items():
            if name.lower() != _OWNER:
                found[_HIVE_NAMES.get(name, name)] = str(value)
        found |= {
            "uuid": metadata["table-uuid"],
            TABLE_TYPE: ICEBERG.upper(),
            METADATA_LOCATION: staged.location,
            "DO_NOT_UPDATE_STATS": "true",
            "snapshot-count": str(len(metadata.get("snapshots") or ())),
        }
        if base is not None:
            found["previous_metadata_location"] = base.location
        if TABLE_KEY_ID in found:
            found[METADATA_HASH] = staged.java_hash
        found.pop("COLUMN_STATS_ACCURATE", None)
        found.pop(_STORAGE_HANDLER, None)
        if self._is_for_hive(metadata):
            found[_STORAGE_HANDLER] = "org.apache.iceberg.mr.hive.HiveIcebergStorageHandler"
        return found | self._exposed(metadata, found)

    def _exposed(self, metadata: Mapping[str, Any], found: dict[str, str]) -> dict[str, str]:
        """Return what others may see of the metadata without reading it; take old values of that
        out of ``found``."""
        max_size = int(self.catalog.properties.get(_MAX_SIZE, _DEFAULT_MAX_SIZE))
        for name in _EXPOSED:
            found.pop(name, None)
        exposed = {"current-schema": _printed(_current(metadata, "schemas", "schema-id"))}
        spec = _current(metadata, "partition-specs", "spec-id")
        if any(f["transform"] != "void" for f in spec["fields"]):
            exposed["default-partition-spec"] = _printed(spec)
        order = _current(metadata, "sort-orders", "order-id")
        if order["fields"]:
            exposed["default-sort-order"] = _printed(order)
        number = metadata.get("current-snapshot-id")
        totals = {}
        for snapshot in metadata.get("snapshots") or ():
            if snapshot["snapshot-id"] == number:
                summary = snapshot.get("summary") or {}
                exposed["current-snapshot-id"] = str(number)
                exposed["current-snapshot-timestamp-ms"] = str(snapshot["timestamp-ms"])
                exposed["current-snapshot-summary"] = _printed(
                    {name: value for name, value in summary.items() if name != "operation"}
                )
                totals = {hive: summary[k] for k, hive in _STATISTICS.items() if k in summary}
        return totals | {n: value for n, value in exposed.items() if len(value) <= max_size > 0}


class _HiveTypes(SchemaToHiveConverter):
    """PyIceberg's, with the types of format version 3 that Hive has a name for."""

    def primitive(self, primitive: PrimitiveType) -> str:
        if isinstance(primitive, TimestampNanoType):
            return "timestamp"
        if isinstance(primitive, TimestamptzNanoType):
            return "timestamp" if self.hive2_compatible else "timestamp with local time zone"
        try:
            return super().primitive(primitive)
        except KeyError:
            return "unknown"  # as Java has it for what Hive does not know


def _current(metadata: Mapping[str, Any], name: str, id_name: str) -> dict[str, Any]:
    """Return a table's current schema, default spec or default sort order."""
    current = _CURRENT[name]
    found: dict[str, Any]
    for found in metadata[name]:
        if found.get(id_name, 0) == metadata[current]:
            return found
    raise MetadataIntegrityError(f"{current!r} is not among the {name!r}")


def _printed(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
