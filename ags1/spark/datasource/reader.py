"""Reads encrypted files as rows. The driver lists the files and cuts them into parts for tasks.
Tasks open the files by their sidecars, or by the wrapped keys that the driver has read from the
ledger. Each process unwraps the keys for itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...errors import KeyMetadataError
from ...files.keys import FileKeys, as_text
from ...files.ledger import DONE, ENCRYPT, REMOVED, open_ledger
from ...files.ledger.lookup import joined, pending_keys
from ...files.staging.places import absolute
from ...files.staging.protocol import REQUESTS, SourceFile
from ...host.pools import map_in_threads
from .. import options as opt
from ..arrow_rows import arrow_schema, conform
from ..planning_errors import in_few_words
from ..splits import PART_SIZE
from ..workers import end_of_task
from .encrypted_files import (
    OpenPart,
    Part,
    is_encrypted,
    list_file,
    list_files,
    list_if_there,
    open_part,
    plan,
)
from .format_readers import inner_format

_NO_KEYS = "the ledger has no key for any of these files: give the ledger that encrypted them"
# Bytes of a row's content, if blocks are smaller, and of a batch's.
_ROW_SIZE = 1 << 20
_BATCH_SIZE = 8 << 20


class FilesPartition(InputPartition):  # type: ignore[misc]
    """What a task reads: parts of files. It holds no plaintext keys."""

    def __init__(self, parts: list[Part]) -> None:
        super().__init__(len(parts))
        self.parts = parts


class FilesReader(DataSourceReader):  # type: ignore[misc]
    """Reads parts of encrypted files. Its pickle has options, and no plaintext keys."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        opt.refuse_secrets(options)
        self._options = options
        self._schema = schema
        self._keys: FileKeys = opt.opening_keys(options)
        self._inner = inner_format(options)

    @in_few_words
    def partitions(self) -> list[FilesPartition]:
        """Return the tasks. Raises FileNotFoundError, ValueError."""
        part_size = opt.size(self._options, "partsize", PART_SIZE)
        files, sidecars = find_files(self._options)
        cuts = not (opt.inner(self._options) == "csv" and opt.flag(self._options, "multiline"))
        parts = plan(files, part_size, sidecars, cuts=cuts)
        # Without any partition Spark would call read(None).
        return [FilesPartition(p) for p in parts] or [FilesPartition([])]

    def read(self, partition: FilesPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows. Raises as ``open_part``, and FormatError."""
        wanted = arrow_schema(self._schema)
        for part in partition.parts:
            with open_part(part, self._keys) as opened:
                if self._inner is None:
                    batches = content_rows(opened, with_content="content" in wanted.names)
                else:
                    batches = self._inner.read(opened, wanted)
                for batch in batches:
                    yield conform(batch, wanted)
        end_of_task()


def find_files(options: Mapping[str, str]) -> tuple[list[SourceFile], dict[str, str]]:
    """Return the files to be read and, by their paths, the wrapped keys that the option ``ledger``
    has for them. If a ledger is given, files that it does not have as done are left out, and one
    that does not exist raises FileNotFoundError, unless ``ignoreMissingFiles``.

    Raises FileNotFoundError, OSError, FormatError, ValueError, and KeyMetadataError if the ledger
    knows none of the files.
    """
    paths = opt.paths(options)
    listed = {absolute(file.path): file for file in list_files(paths)}
    if not options.get("ledger"):
        return list(listed.values()), {}
    with open_ledger(options["ledger"], writing=False) as ledger:
        new = pending_keys(ledger)
        known = ledger.done(ENCRYPT, ("key_metadata",))
        # Files of a job that is running, and files that were removed.
        others = {
            row.target: row.status
            for row in ledger.rows(("operation", "status", "target"), pending=True)
            if row.operation == ENCRYPT and row.status in (DONE, REMOVED)
        }
    known = {target: row for target, row in known.items() if others.get(target) != REMOVED}
    if listed and not any(target in known or target in others for target in listed):
        raise KeyMetadataError(_NO_KEYS, file=paths[0])
    missing = [target for target in _below(paths, known) if target not in listed]
    look = list_if_there if opt.flag(options, "ignoremissingfiles") else list_file
    # Files written since the listing, or left out of an incomplete listing.
    for file in map_in_threads(REQUESTS, look, missing):
        if file is not None:
            listed[file.path] = file
    keys: dict[str, str] = {}
    for target, file in listed.items():
        if target in known and (wrapped := known[target].key_metadata) is not None:
            # A job may be replacing the file.
            if target in new and (both := joined(wrapped, new[target])) is not None:
                wrapped = as_text(both.to_dict())
            keys[file.path] = wrapped
    return sorted(file for file in listed.values() if file.path in keys), keys


def _below(paths: Iterable[str], targets: Iterable[str]) -> Iterator[str]:
    """Yield the targets that a complete listing of the folders would have. Patterns are not matched
    here."""
    folders = [absolute(path).rstrip("/") + "/" for path in paths]
    for target in targets:
        names = (target.removeprefix(folder) for folder in folders if target.startswith(folder))
        if any(map(is_encrypted, names)):
            yield target


def content_rows(part: OpenPart, *, with_content: bool = True) -> Iterator[pa.RecordBatch]:
    """Yield rows of path, offset, length and content: one row a block, or several small blocks.
    An empty file has one row. Offsets and lengths are bytes of the plaintext."""
    step = max(1, _ROW_SIZE // part.reader.block_size) * part.reader.block_size
    starts = list(range(part.begin, part.end, step))
    if part.reader.plaintext_size == 0 and part.begin == 0:
        starts = [0]
    at_once = max(1, _BATCH_SIZE // step)
    for first in range(0, len(starts), at_once):
        offsets = starts[first : first + at_once]
        lengths = [min(step, part.end - offset) for offset in offsets]
        columns: dict[str, Any] = {
            "path": pa.array([part.path] * len(offsets), pa.string()),
            "offset": pa.array(offsets, pa.int64()),
            "length": pa.array(lengths, pa.int64()),
        }
        if not with_content and not first:
            # Lengths also depend on the header, so check it (see ``open_part``).
            part.reader.pread(0, 1)
        if with_content:
            ranges = zip(offsets, lengths, strict=True)
            columns["content"] = pa.array(part.reader.readv(ranges), pa.binary())
        yield pa.RecordBatch.from_pydict(columns)
