"""What is compared. Each module's ``measure`` yields one ``Contest`` after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.rounds import Contest
from bench.settings import Settings

from . import (
    avro,
    bulk,
    engine,
    grid,
    growth,
    keys,
    libraries,
    messages,
    objects,
    oneshot,
    queries,
    spark,
    streams,
    tables,
    writes,
)

# What could not be measured here, and why, is put into the second argument.
Measure = Callable[[Settings, dict[str, str]], Iterator[Contest]]

ALL_SUBJECTS: dict[str, Measure] = {
    "engine": engine.measure,
    "grid": grid.measure,
    "oneshot": oneshot.measure,
    "messages": messages.measure,
    "streams": streams.measure,
    "keys": keys.measure,
    "avro": avro.measure,
    "libraries": libraries.measure,
    "tables": tables.measure,
    "writes": writes.measure,
    "objects": objects.measure,
    "growth": growth.measure,
    "bulk": bulk.measure,
    "spark": spark.measure,
    "queries": queries.measure,
}
