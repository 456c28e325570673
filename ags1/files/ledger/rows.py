"""The rows of a ledger, and Parquet files of them. Independent of where a ledger is."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ...engine import layout
from ...errors import FormatError
from ...keys.sidecar import NONCE, Sidecar
from ..keys import as_text

ENCRYPT, DECRYPT = "encrypt", "decrypt"
DONE, FAILED, SKIPPED, REMOVED = "done", "failed", "skipped", "removed"

# A batch is of one wave.
_MAX_ROWS = 5_000_000


class Row(NamedTuple):
    """What became of one file.

    Sizes are bytes, times are ms since 1970. ``source_version`` changes with the source: a local
    file's time in ns, S3's ETag. ``key_metadata`` is the JSON document of a sidecar with the file's
    wrapped key, ``key_id`` that key's id there, ``master_key_id`` the master key in the KMS.
    ``error_kind`` is the exception's name. ``attempt`` tells the storage what was written: for a
    local file its path from the target's folder, a tab, its inode and time; for S3 JSON of the
    upload and its parts; otherwise a URL. ``replaces``: the target may replace an older one.
    A failed row has its key if its file may exist all the same. ``nonce`` is the first nonce of the
    encrypted file, in hex, and ``retires`` has those of the contents that it replaced, with spaces
    between.
    """

    operation: str
    source: str
    target: str
    relative_path: str
    source_size: int
    source_version: str
    target_size: int | None
    status: str
    error_kind: str | None
    error: str | None
    key_metadata: str | None
    key_id: str | None
    master_key_id: str | None
    attempt: str | None
    replaces: bool
    job_id: str
    finished_ms: int
    nonce: str | None = None
    retires: str | None = None


# Columns that ledgers of earlier versions do not have.
LATER = ("nonce", "retires")
_NONCE_IN_DOCUMENT = re.compile(rf'"{NONCE}": ?"([0-9a-f]*)"')


def nonce_of(document: str | None) -> str | None:
    """Return the first nonce that the document of a wrapped key names; None if it names none."""
    match = _NONCE_IN_DOCUMENT.search(document or "")
    return None if match is None else match[1]


def encrypted_row(
    target: str,
    relative_path: str,
    size: int,
    sidecar: Sidecar,
    job_id: str,
    *,
    source: str = "",
    attempt: str | None = None,
) -> Row:
    """Return the row of a new encrypted file of ``size`` bytes, which replaces none. Raises
    KeyMetadataError for a sidecar without the file's KEK, FormatError for an impossible size."""
    document = as_text(sidecar.to_dict())
    return Row(
        operation=ENCRYPT,
        source=source,
        target=target,
        relative_path=relative_path,
        source_size=layout.plaintext_size(size),
        source_version="",
        target_size=size,
        status=DONE,
        error_kind=None,
        error=None,
        key_metadata=document,
        key_id=sidecar.key_id,
        master_key_id=sidecar.kek_entry(sidecar.file_keys[0]).encrypted_by_id,
        attempt=attempt,
        replaces=False,
        job_id=job_id,
        finished_ms=time.time_ns() // 1_000_000,
        nonce=nonce_of(document),
    )


_TYPES: dict[str, pa.DataType] = {
    "source_size": pa.int64(),
    "target_size": pa.int64(),
    "replaces": pa.bool_(),
    "finished_ms": pa.int64(),
}
# Columns that are null in no row: those whose fields cannot be None.
ALWAYS = frozenset(name for name, kind in Row.__annotations__.items() if "None" not in str(kind))
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.string())) for name in Row._fields])


class Batch(NamedTuple):
    """A pending batch: its name, which it keeps, its rows, and the object that they are in."""

    name: str
    rows: Sequence[Row]
    file: str


def rows_to_table(rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table of the schema ``SCHEMA``."""
    columns: Iterable[Any] = zip(*rows, strict=True) if rows else ([] for _ in Row._fields)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def table_to_rows(table: pa.Table, columns: Iterable[str], where: str) -> list[Row]:
    """Return the rows of a table, with None in columns that are not asked for; ``where`` is the
    table's name for messages. Raises FormatError."""
    wanted = frozenset(columns)
    names = [name for name in Row._fields if name in wanted]
    for name in names:
        column = table.column(name)
        if column.type != SCHEMA.field(name).type or (name in ALWAYS and column.null_count):
            raise damaged(f"column {name!r}", where)
    nothing = [None] * table.num_rows
    values = [table.column(name).to_pylist() if name in wanted else nothing for name in Row._fields]
    return [Row(*row) for row in zip(*values, strict=True)]


def to_parquet(table: pa.Table) -> bytes:
    """Return a table as a Parquet file."""
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def read_table(data: bytes, columns: Iterable[str], where: str) -> pa.Table:
    """Return these columns of a Parquet file. Raises FormatError."""
    wanted = frozenset(columns)
    names = [name for name in Row._fields if name in wanted]
    # Memory of Arrow, because a thread of Arrow may drop it when the read has ended already. If the
    # interpreter ends in this moment, to drop an object of Python aborts the process.
    copy = pa.BufferOutputStream()
    copy.write(data)
    try:
        with pq.ParquetFile(pa.BufferReader(copy.getvalue())) as opened:
            if opened.metadata.num_rows > _MAX_ROWS:
                raise damaged("no batch has so many rows", where)
            table = opened.read(columns=names)
            for name in LATER:
                if name in names and name not in table.column_names:
                    nothing = pa.nulls(table.num_rows, SCHEMA.field(name).type)
                    table = table.add_column(names.index(name), name, nothing)
    except pa.ArrowInvalid as error:
        raise damaged(str(error), where) from None
    if table.column_names != names:
        message = "this is not a ledger's file (columns are missing): remove it from the folder"
        raise FormatError(message, file=where)
    return table


def damaged(what: str, where: str) -> FormatError:
    """Return the error for a ledger that no job has written so."""
    return FormatError(f"the ledger is damaged ({what}): restore a copy", file=where)
