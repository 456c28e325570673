"""An Avro data file in memory, plain, compressed and encrypted, into columns or rows of Python."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import fastavro

import ags1
from bench.rounds import Contest, Contestant, compete, timed
from bench.settings import Settings, first_missing

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

SUBJECT = "avro"
NEEDED = ("pyarrow", "pyiceberg")
OURS = "read_avro"
TWO_THREADS = "read_avro, 2 threads"
FASTAVRO = "fastavro, list of dicts"
POLARS = "polars.read_avro"
PLAIN = "read a data file, uncompressed"
DEFLATE = "read a data file, deflate"
ENCRYPTED = "read a data file, uncompressed, encrypted"

# Of the settings' size: a row of Python's takes about so many bytes.
_BYTES_PER_ROW = 1280
# Java's writers end a block there.
_BLOCK_SIZE = 64000

_FIELDS: list[tuple[str, object]] = [
    ("id", "long"),
    ("quantity", ["null", "int"]),
    ("price", ["null", "double"]),
    ("name", ["null", "string"]),
    ("made_at", {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False}),
    ("sizes", {"type": "array", "items": "int", "element-id": 7}),
]


class Ranged(io.BytesIO):
    """Memory that threads read together."""

    def pread(self, offset: int, size: int, /) -> bytes:
        with self.getbuffer() as view:
            return bytes(view[offset : offset + size])


class DataFile:
    """``rows`` rows of six columns, written by fastavro, and the ways to read them from memory."""

    def __init__(self, rows: int, codec: str = "null", *, encrypted: bool = False) -> None:
        self.rows = rows
        out = io.BytesIO()
        fields = [
            {"name": name, "type": kind, "field-id": number}
            for number, (name, kind) in enumerate(_FIELDS, 1)
        ]
        fastavro.writer(
            out,
            {"type": "record", "name": "table", "fields": fields},
            (_row(n) for n in range(rows)),
            codec=codec,
            sync_interval=_BLOCK_SIZE,
        )
        self.data = out.getvalue()
        self._stored = self.data
        self._key: ags1.KeyMetadata | None = None
        if encrypted:
            self._stored, self._key = ags1.encrypt(self.data)
        self._schema = _schema()

    def source(self) -> Any:
        """The file's plain bytes as a file object."""
        stored = Ranged(self._stored)
        return stored if self._key is None else ags1.open(stored, "rb", self._key)

    def read(self, threads: int = 1) -> list[Any]:
        """Into Arrow's batches."""
        from ags1.columns.avro.files import read_avro

        with self.source() as source:
            return list(read_avro(source, self._schema, threads=threads))

    def read_by_fastavro(self) -> list[Any]:
        """Into a list of dicts."""
        with self.source() as source:
            return list(fastavro.reader(source))

    def read_by_polars(self) -> Any:
        import polars

        with self.source() as source:
            return polars.read_avro(source)

    def check(self) -> None:
        """Raise RuntimeError unless all have the same rows."""
        theirs = self.read_by_fastavro()
        for row in theirs:
            row["made_at"] = row["made_at"].replace(tzinfo=None)
        for threads in (1, 2):
            if [row for batch in self.read(threads) for row in batch.to_pylist()] != theirs:
                raise RuntimeError("the rows are not fastavro's")


def _row(n: int) -> dict[str, object]:
    return {
        "id": n,
        "quantity": None if n % 7 == 0 else n % 1000,
        "price": n / 8,
        "name": f"{('tea', 'coffee', 'crème brûlée', 'a glass of water')[n % 4]} {n}",
        "made_at": 1_700_000_000_000_000 + n,
        "sizes": list(range(n % 4)),
    }


def _schema() -> Schema:
    from pyiceberg.schema import Schema
    from pyiceberg.types import (
        DoubleType,
        IntegerType,
        ListType,
        LongType,
        NestedField,
        StringType,
        TimestampType,
    )

    return Schema(
        NestedField(1, "id", LongType(), True),
        NestedField(2, "quantity", IntegerType()),
        NestedField(3, "price", DoubleType()),
        NestedField(4, "name", StringType()),
        NestedField(5, "made_at", TimestampType(), True),
        NestedField(6, "sizes", ListType(7, IntegerType(), True), True),
    )


def missing() -> str | None:
    """Which package is not there, if one is not."""
    return first_missing(NEEDED)


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    if (name := missing()) is not None:
        skipped[SUBJECT] = f"{name} is not installed"
        return
    rows = max(1, settings.size // _BYTES_PER_ROW)
    for contest, file in (
        (PLAIN, DataFile(rows)),
        (DEFLATE, DataFile(rows, "deflate")),
        (ENCRYPTED, DataFile(rows, encrypted=True)),
    ):
        file.check()
        ways: dict[str, Callable[[], object]] = {
            OURS: file.read,
            TWO_THREADS: lambda file=file: file.read(2),  # type: ignore[misc]
            FASTAVRO: file.read_by_fastavro,
        }
        if importlib.util.find_spec("polars") is not None:
            ways[POLARS] = file.read_by_polars
        runs = [Contestant(name, timed(way), len(file.data), rows) for name, way in ways.items()]
        yield compete(SUBJECT, contest, runs, settings.slow_rounds)
