"""Encrypted tables that we and Spark write in turns, whatever catalog of ours they are in.

Spark sees all tables through its own catalog ``enc``: those of its metastore as they are, those of
other catalogs by ``register_table``, which takes a metadata file as it is given; the way back is
the same. Comparisons of what both say of rows and files are here too.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from data_files import all_fields
from pyiceberg.catalog import load_catalog

from ags1.engine._key_metadata import EncodedKeyMetadata
from ags1.iceberg import EncryptedCatalog, EncryptedTable
from ags1.iceberg.read.records import DELETED, ManifestEntry, read_entries
from ags1.kms import KmsClient

from .reading import check_equal, exactly, plain_types
from .spark import DATABASE, SparkTables, path_of

# The metastore is of Hive 2 and has no lock tables: Spark's settings say so too.
HIVE = {"iceberg.engine.hive.lock-enabled": "false", "hive.hive2-compatible": "true"}
# The row id and the sequence number of the last change, by ``id``.
Lineage = dict[Any, list[int]]
_FILE = (
    *("content", "file_path", "file_format", "spec_id", "record_count", "file_size_in_bytes"),
    *("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"),
    *("lower_bounds", "upper_bounds", "key_metadata", "split_offsets", "equality_ids"),
    *("sort_order_id", "first_row_id", "referenced_data_file", "content_offset"),
    "content_size_in_bytes",
)
_MANIFEST = (
    *("content", "path", "length", "partition_spec_id", "added_snapshot_id"),
    *("added_data_files_count", "existing_data_files_count", "deleted_data_files_count"),
    *("added_delete_files_count", "existing_delete_files_count", "deleted_delete_files_count"),
)
_EPOCH = date(1970, 1, 1)  # of the days that Java shows as dates
_numbers = itertools.count()


class Shared:
    """A catalog of ours whose tables Spark has too.

    ``kind`` is ``sql``, ``hive`` or ``rest``; ``uri`` that of the metastore or the REST server.
    """

    def __init__(
        self, kind: str, spark: SparkTables, kms: KmsClient, folder: Path, uri: str | None = None
    ) -> None:
        self._spark = spark
        self.kind = kind
        properties: dict[str, dict[str, Any]] = {
            "sql": {"uri": f"sqlite:///{folder}/catalog.db"},
            "hive": {"uri": uri, **HIVE},
            "rest": {"uri": uri},
        }
        inner = load_catalog(
            kind, type=kind, warehouse=f"file:{folder}/warehouse", **properties[kind]
        )
        self.catalog = EncryptedCatalog(inner, kms)
        self.catalog.create_namespace_if_not_exists(DATABASE)
        self._names: list[str] = []

    def new_name(self) -> str:
        """Return an identifier that no table has had."""
        return f"{DATABASE}.written_{next(_numbers)}"

    def shown(self, table: EncryptedTable) -> str:
        """Have Spark see our version of a table; return the name that it has there."""
        if self.kind == "hive":
            name = "enc." + ".".join(table.name())
            location = path_of(table.metadata_location)
            parameters = self._spark.parameters(name)
            assert parameters["metadata_location"] == table.metadata_location
            # What Spark compares with its own printing of what it reads.
            digest = hashlib.sha256(location.read_bytes()).digest()
            assert parameters["metadata_hash"] == base64.b64encode(digest).decode()
        else:
            name = f"enc.{self.new_name()}"
            self._spark.register(name, path_of(table.metadata_location))
        self._names.append(name)
        return name

    def taken_back(self, name: str) -> EncryptedTable:
        """Return Spark's version of a table, to be written to."""
        identifier = name.removeprefix("enc.")
        if self.kind != "hive":
            identifier = self.new_name()
            location = self._spark.parameters(name)["metadata_location"]
            self.catalog.register_table(identifier, location)
        table = self.catalog.load_table(identifier)
        assert isinstance(table, EncryptedTable)
        return table

    def close(self) -> None:
        for name in set(self._names):
            self._spark.sql(f"DROP TABLE IF EXISTS {name}")
        self.catalog.close()


def entries_of(table: EncryptedTable) -> list[ManifestEntry]:
    """Return the entries of all manifests of the current snapshot."""
    view = table.view()
    return [
        entry
        for manifest in view.manifests
        for entry in read_entries(manifest, view.files, discard_deleted=False)
    ]


def check_version(
    spark: SparkTables, name: str, table: EncryptedTable, *, rewritten: bool = False
) -> Lineage:
    """Check that both have the same rows and say the same of files, entries, manifests, snapshots
    and references; see ``check_rows``."""
    lineage = check_rows(spark, name, table, rewritten=rewritten)
    check_entries(spark, name, table)
    check_files(spark, name, table)
    check_manifests(spark, name, table)
    check_snapshots(spark, name, table)
    return lineage


def check_rows(
    spark: SparkTables, name: str, table: EncryptedTable, *, rewritten: bool = False
) -> Lineage:
    """Check that both read the same rows, and that Spark's row ids are those that our entries give,
    unless some files have ids of their own, as ``rewritten`` ones; return the row ids."""
    hidden = ("_file", "_pos", "_row_id", "_last_updated_sequence_number")
    theirs = spark.session.sql(f"SELECT *, {', '.join(hidden)} FROM {name}").toArrow()
    ours = table.scan(selected_fields=("*", *hidden)).to_arrow()
    assert plain_types(ours.schema) == plain_types(theirs.schema)
    check_equal(ours, theirs)
    files = {entry.file.file_path: entry for entry in entries_of(table) if entry.status != DELETED}
    lineage = {}
    for row_key, path, position, *found in zip(
        *(theirs[column].to_pylist() for column in ("id", *hidden)), strict=True
    ):
        entry = files[path]
        lineage[row_key] = row_id, number = found
        if not rewritten:
            assert entry.file.first_row_id is not None
            assert row_id == entry.file.first_row_id + position
            assert number == entry.sequence_number
    assert len(lineage) == theirs.num_rows, "the ids must be unique"
    assert len({row_id for row_id, _ in lineage.values()}) == theirs.num_rows
    assert max(row_id for row_id, _ in lineage.values()) < table.view().metadata["next-row-id"]
    return lineage


def check_kept(before: Lineage, after: Lineage, *changed: int) -> None:
    """Check that the rows of both, but for those that were ``changed``, are the same rows."""
    both = before.keys() & after.keys() - set(changed)
    assert both
    assert {key: after[key] for key in both} == {key: before[key] for key in both}


def check_entries(spark: SparkTables, name: str, table: EncryptedTable) -> None:
    """Check that Spark reads the same entries from the manifests, the deleted ones too."""
    columns = "status, snapshot_id, sequence_number, file_sequence_number, data_file"
    theirs = [
        row.asDict(recursive=True) for row in spark.sql(f"SELECT {columns} FROM {name}.entries")
    ]
    ours = []
    for entry in entries_of(table):
        fields = all_fields(entry.file)
        file = {column: fields[column] for column in _FILE}
        file |= {"content": int(file["content"]), "file_format": file["file_format"].value}
        spec = table.specs()[entry.file.spec_id]
        file["partition"] = {
            field.name: value
            for field, value in zip(spec.fields, entry.file.partition_values, strict=True)
        }
        ours.append(
            {
                "status": entry.status.value,
                "snapshot_id": entry.snapshot_id,
                "sequence_number": entry.sequence_number,
                "file_sequence_number": entry.file_sequence_number,
                "data_file": file,
            }
        )
    for row in theirs:
        file = row["data_file"]
        # One column for all specs: it has those of the others too.
        names = {field.name for field in table.specs()[file["spec_id"]].fields}
        file["partition"] = {k: v for k, v in (file.get("partition") or {}).items() if k in names}
    _check_alike(map(_entry, ours), map(_entry, theirs))


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    file = row["data_file"]
    plain = {column: _plain(file.get(column)) for column in _FILE}
    plain["partition"] = {
        k: (v - _EPOCH).days if type(v) is date else v for k, v in file["partition"].items()
    }
    return {k: v for k, v in row.items() if k != "data_file"} | plain


def check_files(spark: SparkTables, name: str, table: EncryptedTable) -> None:
    """Check that the metadata table ``files`` says the same here and there."""
    ours = table.inspect.files()
    # What PyIceberg shows not, and the keys.
    columns = [c for c in _FILE if c in ours.schema.names and c != "key_metadata"]
    theirs = spark.sql(f"SELECT {', '.join(columns)} FROM {name}.files")
    _check_alike(
        ({c: _plain(row[c]) for c in columns} for row in ours.to_pylist()),
        ({c: _plain(row[c]) for c in columns} for row in theirs),
    )


def check_manifests(spark: SparkTables, name: str, table: EncryptedTable) -> None:
    """Check that the metadata table ``manifests`` says the same here and there."""
    columns = [*_MANIFEST, "partition_summaries"]
    theirs = spark.sql(f"SELECT {', '.join(columns)} FROM {name}.manifests")
    rows = [[row.asDict(recursive=True) for row in theirs], table.inspect.manifests().to_pylist()]
    for row in itertools.chain.from_iterable(rows):
        for summary in row["partition_summaries"]:
            for bound in ("lower_bound", "upper_bound"):
                # PyIceberg shows no empty string, and the word where there is no bound.
                summary[bound] = None if summary[bound] in ("", "null") else summary[bound]
    _check_alike(*([{c: _plain(row[c]) for c in columns} for row in some] for some in rows))


def check_snapshots(spark: SparkTables, name: str, table: EncryptedTable) -> None:
    """Check that the metadata tables ``snapshots`` and ``refs`` say the same here and there."""
    columns = ["snapshot_id", "parent_id", "operation", "manifest_list", "summary"]
    theirs = spark.sql(f"SELECT {', '.join(columns)} FROM {name}.snapshots")
    ours = table.inspect.snapshots().to_pylist()
    _check_alike(
        ({c: _plain(row[c]) for c in columns} for row in ours),
        ({c: _plain(row[c]) for c in columns} for row in theirs),
    )
    columns = ["name", "type", "snapshot_id"]
    _check_alike(
        table.inspect.refs().select(columns).to_pylist(),
        (row.asDict() for row in spark.sql(f"SELECT {', '.join(columns)} FROM {name}.refs")),
    )


def _check_alike(ours: Iterable[dict[str, Any]], theirs: Iterable[dict[str, Any]]) -> None:
    mine, others = sorted(ours, key=repr), sorted(theirs, key=repr)
    assert len(mine) == len(others)
    for one, other in zip(mine, others, strict=True):
        assert exactly(one) == exactly(other), {
            k: (v, other[k]) for k, v in one.items() if exactly(v) != exactly(other[k])
        }


def _plain(value: Any) -> Any:
    """Return a value of Spark's, Arrow's or ours in one form."""
    if isinstance(value, bytearray | EncodedKeyMetadata):
        return bytes(memoryview(value))
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in sorted(value.items())} or None
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], tuple):  # Arrow's maps
            return _plain(dict(value))
        return [_plain(v) for v in value] or None
    return _plain(value.as_dict()) if hasattr(value, "as_dict") else value
