"""``HiveCommits``: commits to a Hive metastore, whose table parameters protect the keys.

The parameters are the table's master key, the length of its data keys and a hash of its metadata,
as in Java's ``HiveTableOperations`` and ``HMSTablePropertyHelper``. The metastore also gets its own
copy of the columns and statistics. Two things prevent that two writers commit at once: Hive's lock,
unless the table's ``engine.hive.lock-enabled`` is false; and the expected metadata location, which
metastores compare from Hive 2.3.10, 3.1.4 and 4.0 on. Independent of metadata files.
"""

from __future__ import annotations

import getpass
import json
import logging
import time
from collections.abc import Callable, Mapping
from threading import Event
from typing import Any

from hive_metastore.ttypes import (
    AlreadyExistsException,
    EnvironmentContext,
    FieldSchema,
    InvalidObjectException,
    InvalidOperationException,
    MetaException,
    NoSuchObjectException,
    SerDeInfo,
    StorageDescriptor,
    UnlockRequest,
)
from hive_metastore.ttypes import Table as HiveTable
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.hive import HIVE2_COMPATIBLE, SchemaToHiveConverter
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import visit
from pyiceberg.typedef import Identifier, Properties
from pyiceberg.types import PrimitiveType, TimestampNanoType, TimestamptzNanoType
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TTransport import TTransportException

from ...errors import MetadataIntegrityError
from ...keys.manager import TABLE_KEY_ID
from ..pyiceberg.hive import hive_client, hive_table, hive_table_lock
from ..spec.column_types import parse_schema
from ..spec.properties import number_in
from ..storage.trust import (
    ICEBERG,
    METADATA_HASH,
    METADATA_LOCATION,
    PREVIOUS_METADATA_LOCATION,
    TABLE_LOCATION,
    TABLE_TYPE,
)
from .base import Base
from .file_commits import FileCommits, NewMetadata
from .outcome import not_committed, was_committed

_log = logging.getLogger(__name__)

# Properties of a table. Their defaults are properties of the catalog with the prefix below, which
# Java reads from Hadoop's configuration.
_LOCK_ENABLED = "engine.hive.lock-enabled"
_ENGINE_ENABLED = "engine.hive.enabled"
_DEFAULT_PREFIX = "iceberg."
_OWNER = "hive.metastore.table.owner"
_MAX_SIZE = "iceberg.hive.table-property-max-size"
_DEFAULT_MAX_SIZE = 32672

# Hive's names of Iceberg's properties, if they differ.
_HIVE_NAMES = {"gc.enabled": "external.table.purge"}
_STORAGE_HANDLER = "storage_handler"
_CURRENT = {
    "schemas": "current-schema-id",
    "partition-specs": "default-spec-id",
    "sort-orders": "default-sort-order-id",
}
_EXPOSED = """
    current-schema default-partition-spec default-sort-order current-snapshot-id
    current-snapshot-timestamp-ms current-snapshot-summary
""".split()
# Hive's names of the totals in the current snapshot's summary.
_STATISTICS = {
    "total-data-files": "numFiles",
    "total-records": "numRows",
    "total-files-size": "totalSize",
}


class HiveCommits(FileCommits):
    """Commits to the tables of a HiveCatalog. Without Hive's lock, the metastore must be one that
    compares the expected location. With an older one, a commit could silently replace another."""

    keeps_hash = True
    parses_renamed = True

    def parameters(self, name: Identifier, shared_client: bool) -> Properties:
        table = hive_table(self.catalog, name, shared_client=shared_client)
        return {**(table.parameters or {}), TABLE_LOCATION: table.sd and table.sd.location}

    def _swap(self, base: Base, new: NewMetadata, sent: Event) -> None:
        def change(table: HiveTable) -> None:
            table.sd = self._storage(new.metadata)
            table.parameters = self._parameters(table.parameters, new, base)

        self._alter(base, change, sent)

    def rename(self, base: Base, identifier: str | Identifier) -> None:
        database, name = Catalog.identifier_to_database_and_table(identifier)
        if self._entry((database, name)) is not None:
            raise TableAlreadyExistsError(f"Table {database}.{name} already exists")

        def change(table: HiveTable) -> None:
            table.dbName, table.tableName = database, name

        def ask() -> bool | None:
            if self._current_location((database, name)) == base.location:
                return True
            return None if self._may_still_commit(failure, is_new=False) else False

        sent = Event()
        try:
            self._alter(base, change, sent)
        except BaseException as error:
            failure = error
            if isinstance(error, CommitFailedException) or not sent.is_set():
                raise
            if was_committed(base.identifier, base.metadata, error, ask):
                return
            if isinstance(error, InvalidOperationException):
                raise NoSuchNamespaceError(f"Database {database} does not exist") from error
            if not isinstance(error, Exception):
                raise
            raise not_committed(base.identifier, error, "the renaming") from error

    def _alter(self, base: Base, change: Callable[[HiveTable], None], sent: Event) -> None:
        """Change the metastore's entry of a table, if it is still that of ``base``."""
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
                    raise CommitFailedException(
                        f"{database}.{name} does not exist any more"
                    ) from error
                if (table.parameters or {}).get(METADATA_LOCATION) != base.location:
                    raise CommitFailedException(
                        f"Table has been updated by another process: {database}.{name}"
                    )
                change(table)
                sent.set()
                client.alter_table_with_environment_context(
                    database, name, table, EnvironmentContext(context)
                )
            finally:
                self._unlock(client, lock_id, base)

    def _insert(self, identifier: Identifier, new: NewMetadata, sent: Event) -> None:
        database, name = identifier
        now = int(time.time())
        properties = new.metadata.get("properties") or {}
        table = HiveTable(
            tableName=name,
            dbName=database,
            owner=properties.get(_OWNER) or getpass.getuser(),
            createTime=now,
            lastAccessTime=now,
            retention=2**31 - 1,
            sd=self._storage(new.metadata),
            partitionKeys=[],
            parameters=self._parameters({"EXTERNAL": "TRUE"}, new, None),
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

    def _current_location(self, identifier: Identifier) -> str | None:
        table = self._entry(identifier)
        return None if table is None else (table.parameters or {}).get(METADATA_LOCATION)

    def _entry(self, identifier: Identifier) -> HiveTable | None:
        with hive_client(self.catalog) as client:
            try:
                return client.get_table(*identifier)
            except NoSuchObjectException:
                return None

    def _may_still_commit(self, error: BaseException, is_new: bool) -> bool:
        # After an answer of its own, the metastore does nothing more.
        is_answer = isinstance(error, TException) and not isinstance(
            error, TTransportException | TProtocolException
        )
        return not is_answer

    # Not a context manager of contextlib: that sets an attribute of exceptions that pass through
    # it, and Hive's exceptions cannot be changed.
    def _lock(self, client: Any, base: Base) -> int | None:
        """Return the ID of Hive's lock of the table; None if the table does not use it. Raises
        CommitFailedException if others hold it, NotImplementedError if the metastore has none."""
        properties = base.metadata.get("properties") or {}
        if not self._flag(properties, _LOCK_ENABLED, default=True):
            return None
        try:
            return hive_table_lock(self.catalog, client, *base.identifier)
        except (MetaException, TApplicationException) as error:
            raise NotImplementedError(
                f"the metastore gives no lock of {'.'.join(base.identifier)}: if its version is "
                f"2.3.10, 3.1.4 or 4.0 or later, set the table's {_LOCK_ENABLED!r} to 'false'"
            ) from error

    def _unlock(self, client: Any, lock_id: int | None, base: Base) -> None:
        if lock_id is None:
            return
        try:
            client.unlock(UnlockRequest(lockid=lock_id))
        except Exception as error:
            # The lock expires by itself. The commit is not affected.
            name = ".".join(base.identifier)
            _log.warning("the lock of %s is not released: %s", name, type(error).__name__)

    def _flag(self, properties: Mapping[str, str], name: str, *, default: bool) -> bool:
        configured = self.catalog.properties.get(_DEFAULT_PREFIX + name, str(default))
        return str(properties.get(name, configured)).lower() == "true"

    def _storage(self, metadata: Mapping[str, Any]) -> StorageDescriptor:
        """Return the columns and the location in Hive's form."""
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
        self, before: Mapping[str, str] | None, new: NewMetadata, base: Base | None
    ) -> dict[str, str]:
        """Return a table's parameters with ``new`` as its metadata. Other parameters stay."""
        metadata = new.metadata
        properties = metadata.get("properties") or {}
        parameters = dict(before or {})
        for name in (base.metadata.get("properties") or {}) if base else ():
            if name not in properties:
                parameters.pop(_HIVE_NAMES.get(name, name), None)
        for name, value in properties.items():
            if name.lower() != _OWNER:
                parameters[_HIVE_NAMES.get(name, name)] = str(value)
        parameters |= {
            "uuid": metadata["table-uuid"],
            TABLE_TYPE: ICEBERG.upper(),
            METADATA_LOCATION: new.location,
            "DO_NOT_UPDATE_STATS": "true",
            "snapshot-count": str(len(metadata.get("snapshots") or ())),
        }
        if base is not None:
            parameters[PREVIOUS_METADATA_LOCATION] = base.location
        parameters.pop(METADATA_HASH, None)
        # Without a hash, Java compares the two properties.
        if TABLE_KEY_ID in parameters and new.is_confirmed:
            parameters[METADATA_HASH] = new.java_hash
        parameters.pop("COLUMN_STATS_ACCURATE", None)
        parameters.pop(_STORAGE_HANDLER, None)
        if self._is_for_hive(metadata):
            parameters[_STORAGE_HANDLER] = "org.apache.iceberg.mr.hive.HiveIcebergStorageHandler"
        return parameters | self._exposed(metadata, parameters)

    def _exposed(self, metadata: Mapping[str, Any], parameters: dict[str, str]) -> dict[str, str]:
        """Return what Hive shows of the metadata. Remove the old values from ``parameters``."""
        max_size = number_in(self.catalog.properties, _MAX_SIZE, _DEFAULT_MAX_SIZE)
        for name in _EXPOSED:
            parameters.pop(name, None)
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
    """PyIceberg's converter, with the types of format version 3 that Hive has a name for."""

    def primitive(self, primitive: PrimitiveType) -> str:
        if isinstance(primitive, TimestampNanoType):
            return "timestamp"
        if isinstance(primitive, TimestamptzNanoType):
            return "timestamp" if self.hive2_compatible else "timestamp with local time zone"
        try:
            return super().primitive(primitive)
        except KeyError:
            return "unknown"  # as in Java, for types that Hive does not have


def _current(metadata: Mapping[str, Any], name: str, id_name: str) -> dict[str, Any]:
    """Return a table's current schema, default spec or default sort order."""
    current = _CURRENT[name]
    entry: dict[str, Any]
    for entry in metadata[name]:
        if entry.get(id_name, 0) == metadata[current]:
            return entry
    raise MetadataIntegrityError(f"{current!r} is not among the {name!r}")


def _printed(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
