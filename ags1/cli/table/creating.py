"""The command ``ags1 table create``: a new encrypted table, with the columns of a file or table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import click

from ..console import Output
from ..exits import Command
from ..options import PATH, flag, grouped, output, pairs
from ..results import TableResult
from . import options
from .catalogs import ChangedCatalog
from .options import TableOptions

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder

_new_key = click.option(
    "--key",
    "key_id",
    metavar="NAME",
    help="The table's master key.  [default: encryption.trusted-key-ids of the catalog if that is "
    "one, $AGS1_KMS_KEY, the configuration's key, or in a keyring 'default']",
)


@dataclass(frozen=True, slots=True)
class _NewTable:
    """What the options say of the table that is to be made."""

    schema_file: str | None
    like: str | None
    partitions: tuple[str, ...]
    sorts: tuple[str, ...]
    data_key_length: str
    file_format: str
    properties: Mapping[str, str]
    location: str | None
    create_namespace: bool
    input_format: str | None


_new_table = grouped(
    "new",
    _NewTable,
    click.option(
        "--schema-file",
        type=PATH,
        metavar="FILE",
        help="Take the columns of this file of rows (Parquet, Arrow or CSV), or of a schema in "
        "Iceberg's JSON (FILE.json).",
    ),
    click.option(
        "--like",
        metavar="NAME",
        help="Take the columns, partitions and sort order of this table in the catalog.",
    ),
    click.option(
        "--partition",
        "partitions",
        multiple=True,
        metavar="TERM",
        help="Partition by a column, or by one transformed: bucket[16](id), truncate[4](s), "
        "year|month|day|hour(ts); may be repeated.",
    ),
    click.option(
        "--sort",
        "sorts",
        multiple=True,
        metavar="'TERM [asc|desc]'",
        help="Sort the rows of a file by this; may be repeated.",
    ),
    options.data_key_length,
    click.option(
        "--format",
        "file_format",
        type=click.Choice(["parquet", "avro"]),
        default="parquet",
        help="Format of the data files.  [default: parquet]",
    ),
    pairs(
        "--property",
        "properties",
        example="write.parquet.compression-codec=zstd",
        help="A table property, such as write.target-file-size-bytes=134217728; may be repeated.",
    ),
    click.option(
        "--location", metavar="LOCATION", help="The table's folder.  [default: the catalog's]"
    ),
    flag("--create-namespace", help="Create the namespace if it does not exist."),
    options.input_format,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Created(TableResult):
    """What ``create`` has made. The location is None after a dry run."""

    key_id: str
    data_key_length: int
    format: str
    schema: dict[str, Any]
    columns: list[str]
    partitions: list[str]
    location: str | None = None
    metadata_location: str | None = None
    PARTS: ClassVar = (
        "created under {key_id}",
        "at {location}",
        "columns {columns}",
        "partitioned by {partitions}",
    )


@click.command(cls=Command)
@options.changing(key=_new_key, mapped=False)
@_new_table
@options.dry_run("Print what would be created.")
@output
def create(table_options: TableOptions, new: _NewTable, dry_run: bool, out: Output) -> None:
    """Create an encrypted table, of format version 3.

    Its columns come from --schema-file or --like. The master key is used once, to check that it
    works.

    Examples:
      ags1 table create db.flights --catalog prod --schema-file flights.parquet --create-namespace
      ags1 table create db.t --catalog prod --schema-file t.json --partition "bucket[16](id)" \\
          --partition "month(ts)" --sort "ts desc" --key tables --data-key-length 32
      ags1 table create db.copy --catalog prod --like db.t --format avro --dry-run
    """
    _refuse_own(new.properties)
    opened = ChangedCatalog(table_options)
    schema, spec, order = _layout(new, opened)
    key_id = opened.new_key_id()
    made = _Created(
        table=opened.identifier,
        dry_run=dry_run,
        key_id=key_id,
        data_key_length=int(new.data_key_length),
        format=new.file_format,
        schema=schema.model_dump(mode="json", by_alias=True, exclude_none=True),
        columns=[
            f"{field.name} {field.field_type}{' not null' if field.required else ''}"
            for field in schema.fields
        ],
        partitions=[f"{field.name}: {field.transform}" for field in spec.fields],
    )
    if dry_run:
        made.show(out)
        return
    with _namespace(opened, create=new.create_namespace):
        table = opened.catalog.create_table(
            opened.identifier,
            schema,
            location=new.location,
            partition_spec=spec,
            sort_order=order,
            properties={
                **new.properties,
                "format-version": "3",
                "encryption.key-id": key_id,
                "encryption.data-key-length": new.data_key_length,
                "write.format.default": new.file_format,
            },
        )
    made = replace(made, location=table.location(), metadata_location=table.metadata_location)
    made.show(out)


def _layout(new: _NewTable, opened: ChangedCatalog) -> tuple[Schema, PartitionSpec, SortOrder]:
    from .schemas import partition_spec, schema_of_file, sort_order

    if (new.schema_file is None) == (new.like is None):
        raise click.UsageError("the table needs columns: give either --schema-file or --like")
    if new.like is None:
        schema = schema_of_file(new.schema_file or "", new.input_format)
        return schema, partition_spec(new.partitions, schema), sort_order(new.sorts, schema)
    other = opened.catalog.load_table(new.like.removeprefix(f"{opened.name}."))
    schema, spec, order = other.schema(), other.spec(), other.sort_order()
    if new.partitions:
        spec = partition_spec(new.partitions, schema)
    return schema, spec, sort_order(new.sorts, schema) if new.sorts else order


def _refuse_own(properties: Mapping[str, str]) -> None:
    """Raise click.UsageError for a property that the command sets itself."""
    own = ("encryption.", "write.format.default", "format-version")
    for name in properties:
        if name.startswith(own):
            message = (
                f"--property {name} is set by the command: use --key, --data-key-length or --format"
            )
            raise click.UsageError(message)


@contextmanager
def _namespace(opened: ChangedCatalog, *, create: bool) -> Iterator[None]:
    """Create the table's namespace if it does not exist, or say that this can be done."""
    from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError

    namespace = opened.identifier.rpartition(".")[0]
    if create and not opened.catalog.namespace_exists(namespace):
        with suppress(NamespaceAlreadyExistsError):  # somebody else was faster
            opened.catalog.create_namespace(namespace)
    try:
        yield
    except NoSuchNamespaceError:
        message = f"the catalog has no namespace {namespace!r}: --create-namespace creates it"
        raise click.UsageError(message) from None
