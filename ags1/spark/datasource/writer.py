"""Writes rows as encrypted files: tasks write them, and the driver publishes them.

``df.write.format("ags1").option("inner", "parquet").option("key", …).mode("append").save(folder)``
makes a file, and its sidecar, for the first task and for each other one that has rows: as in
Spark's own sources, a file without rows tells the columns. With the option ``ledger`` the ledger
gets the wrapped key instead of a sidecar (see ``ledger_commit``), and the file's name ends in
``.ags1``, as in bulk jobs. Each attempt of a task writes with a name and a key of its own into the
job's folder inside the target. The driver gives the files of one attempt of each task their names,
each after its key is stored. ``mode("overwrite")`` then removes the older encrypted files of the
folder, and no other files. A job that fails removes its own folder. The target is in a file system
that driver and executors have mounted or, with a ledger, in any storage that fsspec knows.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...engine.key_metadata import KeyMetadata
from ...files.keys import FileKeys
from ...files.ledger import ledger_location
from ...files.paths import SUFFIX, local_path
from ...files.sidecars import OldKeys, publish_pair
from ...files.staging.places import absolute, open_storage
from ...keys.sidecar import START_SIZE, Sidecar, first_nonce, sidecar_path
from .. import options as opt
from ..arrow_rows import arrow_schema, conform
from ..workers import end_of_task
from . import staging
from .encrypted_files import encrypted_below
from .format_writers import check_columns, write_file
from .ledger_commit import (
    NewFile,
    commit_to_ledger,
    ledger_rows,
    remove_with_sidecar,
    rewrappings,
    take_back,
)


@dataclass
class WrittenFile(WriterCommitMessage):  # type: ignore[misc]  # PySpark's types are not read
    """What a task has written; ``file`` is None if it has written none."""

    file: NewFile | None


class FilesWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes rows as encrypted files into a folder. Its pickle has a wrapped key only.

    Raises ValueError for invalid options or columns that the format cannot hold, OSError for a text
    that names no ledger, NotImplementedError for a folder that is a URL without a ledger,
    KmsConfigurationError for an option that is a secret, and KmsError.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__()
        opt.refuse_secrets(options)
        (path,) = opt.paths(options)
        if local_path(path) is None and not options.get("ledger"):
            raise NotImplementedError(f"{path}: a URL can only be written with the option 'ledger'")
        self._inner = opt.inner(options)
        if not self._inner:
            raise ValueError(f"rows need the option 'inner', one of {', '.join(opt.INNER_FORMATS)}")
        self._columns = arrow_schema(schema)
        check_columns(self._inner, self._columns)
        self._folder = absolute(path)
        self._options = dict(options)
        # The ledger that gets the files' keys, None if sidecars do.
        self._ledger = ledger_location(options["ledger"]) if options.get("ledger") else None
        self._overwrite = overwrite
        self._job_id = uuid.uuid4().hex
        self._rewrappings = rewrappings(self._ledger)  # before there is a KEK
        # The driver calls the KMS only here.
        self._keys: FileKeys = opt.sealing_keys(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFile:
        """Write a task's rows as one file; without rows, the first task writes one all the same.
        Raises OSError, and ValueError for values that the format cannot hold."""
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        rows = (conform(batch, self._columns) for batch in iterator if batch.num_rows)
        first = list(islice(rows, 1))
        if number and not first:
            return WrittenFile(None)
        unique = uuid.uuid4().hex[:8]
        extension = "txt" if self._inner == "text" else self._inner
        name = f"part-{number:05d}-{self._job_id}-{unique}.{extension}"

        nonce: bytes | None = None

        def write(path: str) -> KeyMetadata:
            nonlocal nonce
            found = chain(first, rows)
            key_metadata = write_file(self._inner, path, self._columns, found, self._options)
            with open(path, "rb") as file:
                nonce = first_nonce(file.read(START_SIZE))
            return key_metadata

        target = name if self._ledger is None else name + SUFFIX
        staged, key_metadata = staging.stage(self._folder, target, self._job_id, number, write)
        assert key_metadata.file_length is not None
        end_of_task()
        wrapped = self._keys.wrap(key_metadata, nonce)
        return WrittenFile(NewFile(name, staged, key_metadata.file_length, wrapped))

    def commit(self, messages: list[WrittenFile | None]) -> None:
        """Publish the files with their keys. Raises OSError; then the job leaves no new file."""
        files = _files(messages)
        folder = self._folder
        open_storage(folder).make_root(folder)
        if self._ledger is None:
            _commit_with_sidecars(folder, files, overwrite=self._overwrite)
        else:
            rows = ledger_rows(folder, files, self._job_id)
            known = self._rewrappings
            commit_to_ledger(self._ledger, folder, rows, known, overwrite=self._overwrite)
        staging.clear(folder, self._job_id)

    def abort(self, messages: list[WrittenFile | None]) -> None:
        """Remove everything that the attempts have written."""
        if self._ledger is not None:
            take_back(self._ledger, self._job_id)
            staging.withdraw(ledger_rows(self._folder, _files(messages), self._job_id))
        staging.clear(self._folder, self._job_id)


def _files(messages: Iterable[WrittenFile | None]) -> list[NewFile]:
    return [m.file for m in messages if m is not None and m.file is not None]


def _commit_with_sidecars(folder: str, files: list[NewFile], *, overwrite: bool) -> None:
    old = encrypted_below(folder, ()) if overwrite else []
    published: list[str] = []
    try:
        for file in files:
            target = os.path.join(folder, file.name)
            published.append(target)
            sidecar = Sidecar.from_bytes(json.dumps(file.wrapped).encode())
            staged = staging.staged_path(folder, file.staged)
            # No other file has this name.
            publish_pair(staged, target, sidecar, sidecar_path(target), OldKeys.RETIRE)
    except BaseException:
        for path in published:
            remove_with_sidecar(path)
        raise
    for path in old:
        remove_with_sidecar(path)
