"""PyIceberg has every private name that we use, and one package uses them."""

from __future__ import annotations

import ast
import inspect
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import RunPython
from iceberg_tables import KMS_PROPERTIES

import ags1

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyiceberg")

PACKAGE = Path(ags1.__file__).parent
INTERNALS = sorted((PACKAGE / "iceberg" / "pyiceberg").glob("*.py"))

# Where PyIceberg has each private name that the package uses.
PRIVATE_NAMES = [
    "catalog._ENV_CONFIG",
    "catalog.Catalog._convert_schema_if_needed",
    "catalog.MetastoreCatalog._resolve_table_location",
    "catalog.dynamodb.DynamoDbCatalog._ensure_namespace_exists",
    "catalog.dynamodb.DynamoDbCatalog._get_iceberg_table_item",
    "catalog.dynamodb._add_property_prefix",
    "catalog.dynamodb._get_create_table_item",
    "catalog.dynamodb._get_rename_table_item",
    "catalog.glue.GlueCatalog._get_glue_table",
    "catalog.glue.GlueCatalog._is_s3tables_database",
    "catalog.glue._to_columns",
    "catalog.hive.HiveCatalog._client",
    "catalog.hive.HiveCatalog._create_hive_client",
    "catalog.hive.HiveCatalog._create_lock_request",
    "catalog.hive.HiveCatalog._get_hive_table",
    "catalog.hive.HiveCatalog._wait_for_lock",
    "catalog.noop.NoopCatalog._load_file_io",
    "catalog.rest.RestCatalog._check_endpoint",
    "catalog.rest.RestCatalog._refresh_token",
    "catalog.rest.RestCatalog._resolve_storage_credentials",
    "catalog.rest.RestCatalog._response_to_staged_table",
    "catalog.rest.RestCatalog._response_to_table",
    "catalog.rest.RestCatalog._session",
    "catalog.rest.RestCatalog._split_identifier_for_path",
    "catalog.rest.response._handle_non_200_response",
    "catalog.sql.SqlCatalog._create_table_row",
    "catalog.sql.SqlCatalog._iceberg_type_filter",
    "expressions.parser._evaluate_like_statement",
    "expressions.visitors._RewriteNotVisitor",
    "io.pyarrow.ArrowProjectionVisitor._cast_if_needed",
    "io.pyarrow.ArrowProjectionVisitor._construct_field",
    "io.pyarrow._ConvertToArrowExpression",
    "io.pyarrow._ConvertToArrowSchema",
    "io.pyarrow._ConvertToArrowSchema._include_field_ids",
    "io.pyarrow._ConvertToArrowExpression._get_field_name",
    "io.pyarrow._check_pyarrow_schema_compatible",
    "manifest.DataFile._spec_id",
    "table.DataScan._manifest_planner",
    "table.DataScan._plan_files_local",
    "table.IncrementalAppendScan._validate_and_resolve_snapshots",
    "table.ManifestGroupPlanner._check_sequence_number",
    "table.Table._check_uuid",
    "table.Table._do_commit",
    "table.Transaction._autocommit",
    "table.Transaction._scan",
    "table.Transaction._stage",
    "table.Transaction._table",
    "table._min_sequence_number",
    "table.inspect.InspectTable._all_files",
    "table.inspect.InspectTable._files",
    "table.inspect.InspectTable._get_snapshot",
    "table.inspect.InspectTable._update_partitions_map_from_manifest_entry",
    "table.update.UpdateTableMetadata._transaction",
    "table.update.schema.UpdateSchema._case_sensitive",
    "table.update.schema.UpdateSchema._schema",
    "table.update.snapshot.ExpireSnapshots._snapshot_ids_to_expire",
    "typedef.Record._data",
    "table.update.spec.UpdateSpec._partition_field",
    # Other packages index records instead.
    "typedef.Record._data",
]


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_pyiceberg_has_the_name(name: str) -> None:
    owner, last = f"pyiceberg.{name}".rsplit(".", 1)
    try:
        found = pkgutil.resolve_name(owner)
    except ImportError as error:
        pytest.skip(str(error))
    # What an instance has is assigned in its class.
    assert hasattr(found, last) or f"self.{last}" in inspect.getsource(found)


def test_the_list_is_whole() -> None:
    listed = {name.rsplit(".", 1)[1] for name in PRIVATE_NAMES}
    assert set().union(*map(_private_names, INTERNALS)) - listed == set()
    text = "".join(path.read_text() for path in INTERNALS)
    assert [name for name in listed if name not in text] == []


def test_no_other_package_uses_one() -> None:
    listed = {name.rsplit(".", 1)[1] for name in PRIVATE_NAMES}
    a_name = re.compile(rf"[.\s]({'|'.join(listed)})\b")
    for path in {*PACKAGE.glob("iceberg/**/*.py"), *PACKAGE.glob("spark/**/*.py")} - {*INTERNALS}:
        if a_name.search(path.read_text()):
            assert _private_names(path) & listed == set(), path


def test_pyiceberg_asks_for_the_kind_of_a_catalog() -> None:
    """If it does not any more, ``EncryptedCatalog.__class__`` can go."""
    from pyiceberg.table import DataScan

    source = inspect.getsource(DataScan._plan_files_server_side)
    assert "isinstance(self.catalog, RestCatalog)" in source


@pytest.mark.slow
def test_a_newer_pyiceberg_reads_with_a_warning_and_does_not_write(
    catalog: Any, run_python: RunPython
) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    table = catalog.create_table("db.t", rows.schema, properties={"encryption.key-id": "keyA"})
    table.append(rows)
    done = run_python(
        """
import json, sys
import pyarrow as pa
import pyiceberg
pyiceberg.__version__ = "0.13.1"
from ags1.iceberg import load_catalog
encrypted = {"encryption.key-id": "keyA"}
catalog = load_catalog("sql", **json.loads(sys.argv[1]))
table = catalog.load_table("db.t")
assert table.scan().to_arrow()["id"].to_pylist() == [1, 2]
for write in (
    lambda: table.append(pa.table({"id": [3]})),
    lambda: table.rotate_keys(),
    lambda: catalog.create_table("db.new", table.schema(), properties=encrypted),
):
    try:
        write()
    except NotImplementedError as error:
        assert "is tested with PyIceberg 0.12, and this is 0.13.1" in str(error), error
    else:
        raise AssertionError("written")
""",
        json.dumps({**catalog.properties, **KMS_PROPERTIES}),
    )
    assert "tested with PyIceberg 0.12, and this is 0.13.1: tables can be read" in done.stderr


def _private_names(path: Path) -> set[str]:
    """Return the private names that a module imports from PyIceberg, or reads of objects without
    defining them."""
    used: set[str] = set()
    own: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("pyiceberg"):
                used |= {alias.name for alias in node.names}
            case ast.Attribute(attr=name, ctx=ast.Load()):
                used.add(name)
            case ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                own.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                own.add(name)
    return {name for name in used - own if name.startswith("_") and not name.startswith("__")}
