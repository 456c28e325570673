"""Every name of PyIceberg that is private or undocumented and that we use anyway.

Tested with PyIceberg 0.12.0; ``ags1[iceberg]`` allows 0.12.x only. When another version is to be
allowed, this is the module to compare with its source. Knows nothing of encryption.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import struct
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyiceberg
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
from pyiceberg.avro.reader import DoubleReader, OptionReader, Reader, StructReader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.catalog import _ENV_CONFIG, Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    WaitingForLockException,
)
from pyiceberg.expressions import BooleanExpression, BoundTerm
from pyiceberg.expressions.literals import literal
from pyiceberg.expressions.visitors import (
    ResidualEvaluator,
    ResidualVisitor,
    UnpartitionedResidualEvaluator,
    _InclusiveMetricsEvaluator,
    _RewriteNotVisitor,
    _StrictMetricsEvaluator,
    visit,
)
from pyiceberg.io.pyarrow import (
    ArrowAccessor,
    ArrowProjectionVisitor,
    _ConvertToArrowExpression,
    schema_to_pyarrow,
)
from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible as _check_compatible
from pyiceberg.io.pyarrow import _get_column_projection_values as column_projection_values
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    PartitionFieldSummary,
)
from pyiceberg.manifest import _inherit_from_manifest as inherit_from_manifest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.table import DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE
from pyiceberg.table import _min_sequence_number as min_sequence_number
from pyiceberg.table import _parse_row_filter as parse_row_filter
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.transforms import Transform
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.types import (
    DoubleType,
    FloatType,
    ListType,
    MapType,
    NestedField,
    TimestampNanoType,
    TimestampType,
    UUIDType,
)
from pyiceberg.utils.config import Config, merge_config

from . import avro
from .redirection import refuse_foreign_code, refuse_redirection

__all__ = [
    "DATA_FILE_KEY_METADATA",
    "MANIFEST_ENTRY_SCHEMAS",
    "MANIFEST_FILE_KEY_METADATA",
    "MANIFEST_LIST_FILE_SCHEMAS",
    "BooleanRewriter",
    "InclusiveMetricsEvaluator",
    "ManifestContent",
    "ManifestEntry",
    "ManifestEntryStatus",
    "NotSentError",
    "PartitionFieldSummary",
    "RecordShape",
    "ReusingUpdateSpec",
    "StrictMetricsEvaluator",
    "arrow_filter",
    "ask_rest_server",
    "check_arrow_schema",
    "check_rest_commits",
    "column_projection_values",
    "configured_properties",
    "default_table_location",
    "downcasts_ns_timestamps",
    "guard_catalog",
    "hive_client",
    "hive_parameters",
    "hive_table_lock",
    "iceberg_schema",
    "inherit_from_manifest",
    "min_sequence_number",
    "parse_row_filter",
    "partition_spec_is_void",
    "post_to_rest_server",
    "project",
    "read_avro_records",
    "refused_by_rest_server",
    "residual_evaluator",
    "sql_metadata_location",
    "sql_table_row",
    "stage_rest_table",
]

_TESTED = ("0", "12")
if tuple(pyiceberg.__version__.split(".")[:2]) != _TESTED:
    raise ImportError(
        f"ags1.iceberg reaches into PyIceberg {'.'.join(_TESTED)}, and this is "
        f"{pyiceberg.__version__}: pip install 'ags1[iceberg]'"
    )

_SYNC_SIZE = 16
_DOUBLE = struct.Struct("<d")
# What a REST server answers to a token that is no longer good, and how long it may take: Java's
# names and, where it has none, ours.
_EXPIRED = (401, 419)
_REST_TIMEOUTS_MS = {"connection": 30_000, "socket": 300_000}
# Positions of a DataFile's and a ManifestFile's key_metadata in their records.
DATA_FILE_KEY_METADATA = 12
MANIFEST_FILE_KEY_METADATA = 14


class RecordShape:
    """What the records of a metadata file are read into: a schema, and Python types by field id."""

    def __init__(
        self, read_schema: Schema, read_types: Mapping[int, Any], read_enums: Mapping[int, Any]
    ) -> None:
        self._read_schema = read_schema
        self._read_types = dict(read_types)
        self._read_enums = dict(read_enums)
        # Files of one table mostly have one schema; resolving it costs more than reading a file.
        self.reader = functools.lru_cache(maxsize=256)(self._resolve)

    def _resolve(self, avro_schema: str) -> Reader:
        readable = json.dumps(_readable(json.loads(avro_schema), {}))
        header = AvroFileHeader(None, {"avro.schema": readable}, None)
        return _exact(
            resolve_reader(
                header.get_schema(), self._read_schema, self._read_types, self._read_enums
            )
        )


def _readable(avro_type: Any, named: dict[str, Any]) -> Any:
    """Return an Avro schema's JSON as PyIceberg can read it: it knows neither names that stand for
    a type defined before, as Avro demands of two uuid fields, nor timestamps in nanoseconds."""
    if isinstance(avro_type, str):
        return named.get(avro_type, avro_type)
    if isinstance(avro_type, list):
        return [_readable(branch, named) for branch in avro_type]
    readable = dict(avro_type)
    if readable.get("logicalType") == "timestamp-nanos":
        del readable["logicalType"]
    for part in ("type", "items", "values"):
        if part in readable:
            readable[part] = _readable(readable[part], named)
    if "fields" in readable:
        readable["fields"] = [_readable(field, named) for field in readable["fields"]]
    if readable.get("type") in ("record", "fixed", "enum"):
        named[readable["name"]] = readable
    return readable


class _ExactDoubleReader(DoubleReader):
    """PyIceberg's compiled decoder reads a double as a float, and its digits are lost."""

    def read(self, decoder: Any) -> float:
        value: float = _DOUBLE.unpack(decoder.read(_DOUBLE.size))[0]
        return value


_EXACT_DOUBLES: Reader = _ExactDoubleReader()  # type: ignore[no-untyped-call]


def _exact(reader: Reader) -> Reader:
    """Return a reader of records, which reads doubles, in a partition for one, as they are."""
    if isinstance(reader, DoubleReader):
        return _EXACT_DOUBLES
    if isinstance(reader, OptionReader):
        return OptionReader(_exact(reader.option))
    if isinstance(reader, StructReader):
        fields = tuple((at, _exact(field)) for at, field in reader.field_readers)
        return StructReader(fields, reader.create_struct, reader.struct)
    return reader


@functools.cache
def _header_reader() -> Reader:
    return construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def read_avro_records(data: bytes, shape: RecordShape) -> tuple[dict[str, str], list[Any]]:
    """Return the header's properties and the records of an Avro file in memory.

    PyIceberg's own ``AvroFile`` does the same, from a file, and resolves the schema each time.
    """
    decoder = new_decoder(data)
    header = _header_reader().read(decoder)
    reader = shape.reader(header.meta["avro.schema"])
    decompress = avro.CODECS[header.meta.get("avro.codec", "null")]
    records: list[Any] = []
    while True:
        try:
            count = decoder.read_int()
        except EOFError:
            return header.meta, records
        block = decompress(memoryview(decoder.read_bytes()), avro.MAX_BLOCK_SIZE)
        block_decoder = new_decoder(bytes(block))
        records += [reader.read(block_decoder) for _ in range(count)]
        if decoder.read(_SYNC_SIZE) != header.sync:
            raise ValueError("the sync marker after an Avro block is not the file's")


_DAY = struct.Struct("<i")
_TIME = struct.Struct("<q")
_PER_DAY = {TimestampType: 86_400_000_000, TimestampNanoType: 86_400_000_000_000}


@from_bytes.register(TimestampType)
@from_bytes.register(TimestampNanoType)
def _time_of_bound(kind: TimestampType | TimestampNanoType, bound: bytes) -> int:
    """Return a bound of a column of times. PyIceberg's own function raises for that of a column
    which was one of dates, in days, when its file was written."""
    if len(bound) == _DAY.size:
        return int(_DAY.unpack(bound)[0]) * _PER_DAY[type(kind)]
    return int(_TIME.unpack(bound)[0])


class _Projection(ArrowProjectionVisitor):
    """PyIceberg's, whose lists and maps of structs lose their nulls: they come out empty; and which
    does not read dates as times, to which version 3 promotes them."""

    def _cast_if_needed(self, field: NestedField, values: pa.Array) -> pa.Array:
        if isinstance(field.field_type, tuple(_PER_DAY)) and pa.types.is_date32(values.type):
            return values.cast(schema_to_pyarrow(field.field_type, include_field_ids=False))
        return super()._cast_if_needed(field, values)

    def list(
        self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None
    ) -> pa.Array | None:
        if not isinstance(list_array, pa.ListArray | pa.LargeListArray) or value_array is None:
            return super().list(list_type, list_array, value_array)
        field = list_type.element_field
        values = self._cast_if_needed(field, value_array)
        make = pa.large_list if isinstance(list_array, pa.LargeListArray) else pa.list_
        return _with_children(list_array, make(self._construct_field(field, values.type)), values)

    def map(
        self,
        map_type: MapType,
        map_array: pa.Array | None,
        key_result: pa.Array | None,
        value_result: pa.Array | None,
    ) -> pa.Array | None:
        if map_array is None or key_result is None or value_result is None:
            return None
        keys = self._cast_if_needed(map_type.key_field, key_result)
        values = self._cast_if_needed(map_type.value_field, value_result)
        fields = [
            self._construct_field(map_type.key_field, keys.type),
            self._construct_field(map_type.value_field, values.type),
        ]
        entries = pa.StructArray.from_arrays([keys, values], fields=fields)
        return _with_children(map_array, pa.map_(*fields), entries)


def _with_children(array: pa.Array, kind: pa.DataType, children: pa.Array) -> pa.Array:
    """Return a list or map of other children: the same offsets and nulls, wherever it begins."""
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], offset=array.offset, children=[children]
    )


def project(
    wanted: Schema,
    file_schema: Schema,
    batch: pa.RecordBatch,
    *,
    downcast_ns_timestamp_to_us: bool,
    missing: Mapping[int, Any],
) -> pa.RecordBatch:
    """Return a batch of a file's columns as columns of ``wanted``, found by their ids.

    ``missing`` has values of columns that the file lacks.
    """
    visitor = _Projection(
        file_schema,
        downcast_ns_timestamp_to_us,
        projected_missing_fields=dict(missing),
        allow_timestamp_tz_mismatch=True,
    )
    columns = visit_with_partner(wanted, batch, visitor, ArrowAccessor(file_schema))
    return pa.RecordBatch.from_struct_array(columns)


def check_arrow_schema(
    schema: Schema, provided: pa.Schema, *, downcast_ns_timestamp_to_us: bool
) -> None:
    """Check that Arrow data without field ids, found by names, can be written to a table of format
    version 3. Raises ValueError, or TypeError for a type that Iceberg has not."""
    # It prints what it raises, too.
    with contextlib.redirect_stdout(io.StringIO()):
        _check_compatible(schema, provided, downcast_ns_timestamp_to_us, format_version=3)


def iceberg_schema(schema: Schema | pa.Schema) -> Schema:
    """Return the schema of a table of format version 3, from Arrow's if need be."""
    converted: Schema = Catalog._convert_schema_if_needed(schema, 3)
    return converted


class ReusingUpdateSpec(UpdateSpec):
    """PyIceberg's, which in version 3 gives a partition field that is added again another id; Java
    cannot read some of a table's metadata tables then."""

    def _partition_field(
        self, transform_key: tuple[int, Transform[Any, Any]], name: str | None
    ) -> PartitionField:
        source_id, transform = transform_key
        for spec in self._transaction.table_metadata.specs().values():
            for field in spec.fields:
                is_same = field.source_id == source_id and str(field.transform) == str(transform)
                if is_same and name in (None, field.name):
                    return PartitionField(source_id, field.field_id, transform, field.name)
        return super()._partition_field(transform_key, name)


# Whether all rows of a data file match, and whether any may, from its metrics.
StrictMetricsEvaluator = _StrictMetricsEvaluator
InclusiveMetricsEvaluator = _InclusiveMetricsEvaluator

# A visitor that returns the expression that it visits: for rewriting some of its predicates.
BooleanRewriter = _RewriteNotVisitor


class _ArrowFilter(_ConvertToArrowExpression):
    def __init__(self, names: Mapping[int, str | tuple[str, ...]]) -> None:
        super().__init__()
        self._names = names

    def _get_field_name(self, term: BoundTerm) -> str | tuple[str, ...]:
        return self._names[term.ref().field.field_id]

    def visit_equal(self, term: BoundTerm, literal: Any) -> pc.Expression:
        if isinstance(term.ref().field.field_type, UUIDType):
            return self.visit_in(term, {literal.value})
        return super().visit_equal(term, literal)

    def visit_not_equal(self, term: BoundTerm, literal: Any) -> pc.Expression:
        if isinstance(term.ref().field.field_type, UUIDType):
            return self.visit_not_in(term, {literal.value})
        return super().visit_not_equal(term, literal)

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        if isinstance(term.ref().field.field_type, UUIDType):
            # Arrow compares UUIDs as the bytes that they are.
            found = [x.bytes if isinstance(x, UUID) else x for x in literals]
            return pc.field(self._get_field_name(term)).isin(pa.array(found, pa.binary(16)))
        rest = literals - {0}
        if rest != literals and isinstance(term.ref().field.field_type, FloatType | DoubleType):
            # Zero is equal to minus zero; Arrow's sets tell them apart.
            zero = self.visit_equal(term, literal(0.0))
            return zero | super().visit_in(term, rest) if rest else zero
        return super().visit_in(term, literals)

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        # Arrow finds that null is in no set, and so not in one.
        return ~self.visit_in(term, literals) & self.visit_not_null(term)


def arrow_filter(
    bound: BooleanExpression, names: Mapping[int, str | tuple[str, ...]]
) -> pc.Expression:
    """Return a bound filter without negations over columns that Arrow finds by ``names``."""
    return visit(bound, _ArrowFilter(names))


class _Residuals(ResidualEvaluator):
    """PyIceberg's, which compares with a partition's null and raises TypeError."""

    def visit_less_than(self, term: BoundTerm, literal: Any) -> BooleanExpression:
        return self._of(ResidualVisitor.visit_less_than, term, literal)

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Any) -> BooleanExpression:
        return self._of(ResidualVisitor.visit_less_than_or_equal, term, literal)

    def visit_greater_than(self, term: BoundTerm, literal: Any) -> BooleanExpression:
        return self._of(ResidualVisitor.visit_greater_than, term, literal)

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Any) -> BooleanExpression:
        return self._of(ResidualVisitor.visit_greater_than_or_equal, term, literal)

    def _of(self, visit_value: Any, term: BoundTerm, literal: Any) -> BooleanExpression:
        if term.eval(self.struct) is None:
            return self.visit_false()
        found: BooleanExpression = visit_value(self, term, literal)
        return found


def residual_evaluator(
    spec: PartitionSpec, expression: BooleanExpression, case_sensitive: bool, schema: Schema
) -> ResidualEvaluator:
    """Return what tells of a partition which part of a filter is left to be applied."""
    if spec.is_unpartitioned():
        return UnpartitionedResidualEvaluator(schema=schema, expr=expression)
    return _Residuals(schema, spec, case_sensitive, expression)


def configured_properties(name: str | None, properties: Mapping[str, Any]) -> dict[str, str]:
    """Return what PyIceberg's ``load_catalog`` takes for the properties of a catalog: those of the
    configuration file and the environment, overruled by the caller's."""
    if name is None:
        name = _ENV_CONFIG.get_default_catalog_name()
    merged = merge_config(_ENV_CONFIG.get_catalog_config(name) or {}, dict(properties))
    return {key: value for key, value in merged.items() if isinstance(value, str)}


def downcasts_ns_timestamps() -> bool | None:
    """Return PyIceberg's setting: nanoseconds to microseconds, None where it is not set."""
    return Config().get_bool(DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE)


def partition_spec_is_void(spec: PartitionSpec) -> bool:
    """Whether a partition spec does not partition: it has no field, or only dropped ones."""
    return spec.is_unpartitioned() or all(str(f.transform) == "void" for f in spec.fields)


def ask_rest_server(
    catalog: Any, identifier: str | Identifier
) -> tuple[dict[str, Any], str, dict[str, str], dict[str, str]]:
    """Return what a REST server knows of a table: its metadata as sent, the location of that, the
    table's configuration, and this with the credentials for the storage.

    PyIceberg's parsing drops what encryption needs, and the server's word is better than that of
    the file, which lies where the data lies. Raises what ``catalog.load_table`` raises.
    """
    from pyiceberg.catalog.rest import Endpoints

    url = catalog.url(
        Endpoints.load_table, prefixed=True, **catalog._split_identifier_for_path(identifier)
    )
    response = catalog._session.get(url)
    if not response.ok:
        # It raises PyIceberg's own errors, or renews a token that has expired.
        catalog.load_table(identifier)
        response = catalog._session.get(url)
        response.raise_for_status()
    return _rest_table(catalog, response)


def _rest_table(
    catalog: Any, response: Any
) -> tuple[dict[str, Any], str, dict[str, str], dict[str, str]]:
    from pyiceberg.catalog.rest import TableResponse

    parsed = TableResponse.model_validate_json(response.text)
    metadata: dict[str, Any] = json.loads(response.text)["metadata"]
    location = parsed.metadata_location or ""
    credentials = catalog._resolve_storage_credentials(
        parsed.storage_credentials, location or metadata.get("location")
    )
    storage = {**parsed.config, **credentials}
    refuse_foreign_code(storage, catalog.properties, location)
    return metadata, location, parsed.config, storage


def guard_catalog(catalog: Any) -> None:
    """Have a catalog of PyIceberg's refuse tables whose metadata chooses code, a server or
    credentials: all its methods that load a table obey that metadata at once, ``refresh`` and
    ``append`` of tables that it has loaded included.

    They raise MetadataIntegrityError. Of a catalog without a server, the one method that makes a
    table's FileIO of the metadata is guarded; with REST, what parses the server's answers.
    """
    own = vars(catalog)
    if "_response_to_table" in own or "_load_file_io" in own:
        return
    if hasattr(catalog, "_response_to_table"):
        for name in ("_response_to_table", "_response_to_staged_table"):
            setattr(catalog, name, functools.partial(_checked, catalog, getattr(catalog, name)))
        catalog.commit_table = functools.partial(_committed, catalog, catalog.commit_table)
    elif hasattr(catalog, "_load_file_io"):
        catalog._load_file_io = functools.partial(_loaded, catalog, catalog._load_file_io)


def _loaded(
    catalog: Any, load: Any, properties: Properties = EMPTY_DICT, location: str | None = None
) -> Any:
    refuse_redirection({"properties": properties}, catalog.properties, location)
    return load(properties, location)


def _checked(catalog: Any, make: Any, identifier: Any, response: Any) -> Any:
    location = response.metadata_location
    credentials = catalog._resolve_storage_credentials(response.storage_credentials, location)
    storage = {**response.config, **credentials}
    refuse_foreign_code(storage, catalog.properties, location)
    stated = {"properties": response.metadata.properties}
    refuse_redirection(stated, {**catalog.properties, **storage}, location)
    return make(identifier, response)


def _committed(catalog: Any, commit: Any, table: Any, requirements: Any, updates: Any) -> Any:
    response = commit(table, requirements, updates)
    # The table obeys what the server answers from now on.
    stated = {"properties": response.metadata.properties}
    own = {**catalog.properties, **table.config}
    refuse_redirection(stated, own, response.metadata_location)
    return response


def check_rest_commits(catalog: Any) -> None:
    """Raise NotImplementedError for a REST server that has no commits."""
    from pyiceberg.catalog.rest import Capability

    catalog._check_endpoint(Capability.V1_CREATE_TABLE)
    catalog._check_endpoint(Capability.V1_UPDATE_TABLE)


def stage_rest_table(
    catalog: Any, identifier: Identifier, request: Mapping[str, Any]
) -> tuple[dict[str, Any], str, dict[str, str], dict[str, str]]:
    """Send a REST server the request to create a table, and return what ``ask_rest_server`` does.

    Raises TableAlreadyExistsError, NoSuchNamespaceError, and PyIceberg's errors of REST.
    """
    from pyiceberg.catalog.rest import Endpoints

    path = catalog._split_identifier_for_path(identifier)
    url = catalog.url(Endpoints.create_table, namespace=path["namespace"])
    response = _post(catalog, url, request, {})
    if not response.ok:
        errors = {409: TableAlreadyExistsError, 404: NoSuchNamespaceError}
        raise refused_by_rest_server(response, errors)
    return _rest_table(catalog, response)


class NotSentError(Exception):
    """A REST server was never asked: there was no connection."""


def post_to_rest_server(
    catalog: Any, identifier: Identifier, config: Mapping[str, str], body: Mapping[str, Any]
) -> Any:
    """Send a commit to a table of a REST server and return its response, whatever it is.

    ``config`` is the table's. Raises NotSentError, and requests' RequestException when there is no
    answer.
    """
    from pyiceberg.catalog.rest import Endpoints

    path = catalog._split_identifier_for_path(identifier)
    token = config.get("token")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return _post(catalog, catalog.url(Endpoints.update_table, **path), body, headers)


def _post(catalog: Any, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
    from requests.exceptions import ConnectionError, ConnectTimeout
    from urllib3.exceptions import NewConnectionError

    data = json.dumps(body).encode()
    limits = [
        int(catalog.properties.get(f"rest.client.{name}-timeout-ms", default)) / 1000
        for name, default in _REST_TIMEOUTS_MS.items()
    ]
    try:
        for attempt in range(2):
            response = catalog._session.post(
                url,
                data=data,
                headers=dict(headers),
                timeout=tuple(limits),
                # A commit that is followed becomes a question, whose answer is no commit's.
                allow_redirects=False,
            )
            if attempt or response.status_code not in _EXPIRED:
                break
            try:
                catalog._refresh_token()
            except Exception as error:
                raise NotSentError(f"no new token: {type(error).__name__}") from error
    except ConnectTimeout as error:
        raise NotSentError(str(error)) from error
    except ConnectionError as error:
        if error.args and isinstance(getattr(error.args[0], "reason", None), NewConnectionError):
            raise NotSentError(str(error)) from error
        raise
    return response


def refused_by_rest_server(
    response: Any, errors: Mapping[int, type[Exception]] | None = None
) -> Exception:
    """Return the exception that PyIceberg has for a response of a REST server."""
    from pyiceberg.catalog.rest.response import _handle_non_200_response
    from requests import HTTPError

    known = {404: NoSuchTableError, 409: CommitFailedException} if errors is None else dict(errors)
    try:
        _handle_non_200_response(HTTPError(response=response), known)
    except Exception as error:
        return error
    raise AssertionError(response.status_code)


def sql_metadata_location(catalog: Any, identifier: str | Identifier) -> str:
    """Return where a SQL catalog has a table's metadata, which ``load_table`` would read. Raises
    NoSuchTableError."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
    name = Catalog.table_name_from(identifier)
    statement = select(IcebergTables.metadata_location).where(
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == namespace,
        IcebergTables.table_name == name,
    )
    of_tables = catalog._iceberg_type_filter()
    with Session(catalog.engine) as session:
        location = session.scalar(statement if of_tables is None else statement.where(of_tables))
    if not location:
        raise NoSuchTableError(f"Table does not exist: {namespace}.{name}")
    return str(location)


def sql_table_row(
    catalog: Any, identifier: str | Identifier, metadata_location: str
) -> dict[str, Any]:
    """Return a new table's row in a SQL catalog's ``iceberg_tables``, of the version it has."""
    namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
    row: dict[str, Any] = catalog._create_table_row(
        namespace, Catalog.table_name_from(identifier), metadata_location
    )
    return row


def default_table_location(catalog: Any, identifier: str | Identifier, location: str | None) -> str:
    """Return where a SQL or Hive catalog puts a new table, ``location`` if that is given.

    Raises NoSuchNamespaceError, and ValueError when nothing says where.
    """
    namespace = Catalog.namespace_from(identifier)
    if not catalog.namespace_exists(namespace):
        raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(namespace)}")
    found: str = catalog._resolve_table_location(
        location, Catalog.namespace_to_string(namespace), Catalog.table_name_from(identifier)
    )
    return found


def hive_client(catalog: Any) -> AbstractContextManager[Any]:
    """Return a client of a Hive catalog's metastore, to be opened: the catalog's own is for one
    thread."""
    client: AbstractContextManager[Any] = catalog._create_hive_client(catalog.properties)
    return client


def hive_table_lock(catalog: Any, client: Any, database: str, table: str) -> int:
    """Wait for Hive's lock of a table, as PyIceberg's writers do, and return its id. Raises
    CommitFailedException when it is not to be had."""
    from hive_metastore.ttypes import LockState, UnlockRequest

    lock = client.lock(catalog._create_lock_request(database, table))
    if lock.state == LockState.ACQUIRED:
        return int(lock.lockid)
    try:
        if lock.state == LockState.WAITING:
            catalog._wait_for_lock(database, table, lock.lockid, client)
            return int(lock.lockid)
        raise CommitFailedException(f"no lock of {database}.{table}: {lock.state}")
    except BaseException as error:
        client.unlock(UnlockRequest(lockid=lock.lockid))
        if isinstance(error, WaitingForLockException):
            raise CommitFailedException(f"no lock of {database}.{table}: others hold it") from error
        raise


def hive_parameters(catalog: Any, identifier: str | Identifier) -> Properties:
    """Return the parameters that the Hive metastore keeps of a table."""
    database, name = Catalog.identifier_to_database_and_table(identifier)
    with catalog._client as client:
        parameters: Properties = catalog._get_hive_table(client, database, name).parameters
    return parameters
