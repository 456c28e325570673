"""Writing encrypted files from Spark: by the tasks, published by the driver.

``df.write.format("ags1").option("inner", "parquet").option("key", …).mode("append").save(folder)``
leaves a file for each task that has rows, and its sidecar. A task writes into the job's own folder
inside the target, under a name and a key of its attempt; the driver gives the files of one attempt
of each task their names, each after its sidecar. ``mode("overwrite")`` takes the folder's other
files away, once the new ones are there. A job that fails takes its folder with it. The folder is on
a file system that driver and executors share.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..atomic import publish
from ..keys.sidecar import Sidecar, sidecar_path, write_sidecar
from . import options as opt
from .arrow_rows import arrow_schema, conform
from .file_writers import EXTENSIONS, check_columns, write_file
from .keys import FileKeys
from .sealed_files import list_files, local_path


@dataclass
class WrittenFile(WriterCommitMessage):  # type: ignore[misc]  # PySpark's types are not read
    """What a task has written: a file's name in the job's folder, None without rows, and the
    document of its sidecar."""

    name: str | None
    sidecar: dict[str, Any] | None


class FilesWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes rows as encrypted files. What is pickled has a wrapped key.

    Raises ValueError for an option that says nothing or columns that the format cannot hold,
    NotImplementedError for a folder that lies elsewhere than in a file system, and KmsError.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__()
        opt.refuse_secrets(options)
        (path,) = opt.paths(options)
        folder = local_path(path)
        if folder is None:
            raise NotImplementedError(f"{path}: files are written to a file system's folder only")
        self._folder = os.path.abspath(folder)
        self._options = dict(options)
        self._inner = options.get("inner", "").lower()
        if self._inner not in EXTENSIONS:
            raise ValueError(f"the option 'inner' is one of {', '.join(EXTENSIONS)}")
        self._arrow: pa.Schema = arrow_schema(schema)
        check_columns(self._inner, self._arrow)
        self._overwrite = overwrite
        self._job_id = uuid.uuid4().hex
        # The first call of the KMS, and the driver's only one.
        self._keys: FileKeys = opt.sealing_keys(options)

    @property
    def _staging(self) -> str:
        # Readers pass over what begins so.
        return os.path.join(self._folder, f"_ags1-{self._job_id}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFile:
        """Write a task's rows as one file. Raises OSError, and ValueError for values that the
        format cannot hold."""
        batches = (conform(batch, self._arrow) for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return WrittenFile(None, None)
        os.makedirs(self._staging, exist_ok=True)
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        attempt = uuid.uuid4().hex[:8]
        name = f"part-{number:05d}-{self._job_id}-{attempt}.{EXTENSIONS[self._inner]}"
        path = os.path.join(self._staging, name)
        km = write_file(self._inner, path, first, batches, self._options)
        return WrittenFile(name, self._keys.wrap(km))

    def commit(self, messages: list[WrittenFile | None]) -> None:
        """Publish the files with their sidecars. Raises OSError; then no file of the job is left
        that was not there before."""
        os.makedirs(self._folder, exist_ok=True)
        old = [file.path for file in list_files([self._folder])] if self._overwrite else []
        published: list[str] = []
        try:
            for message in messages:
                if message is not None and message.name is not None:
                    target = os.path.join(self._folder, message.name)
                    published.append(target)
                    document = json.dumps(message.sidecar).encode()
                    write_sidecar(sidecar_path(target), Sidecar.from_bytes(document))
                    staged = os.path.join(self._staging, message.name)
                    # Nobody else has this name.
                    publish(staged, target, overwrite=True, durable=True)
        except BaseException:
            for path in published:
                _remove(path)
            raise
        for path in old:
            _remove(path)
        shutil.rmtree(self._staging, ignore_errors=True)

    def abort(self, messages: list[WrittenFile | None]) -> None:
        """Take away whatever any attempt has written."""
        shutil.rmtree(self._staging, ignore_errors=True)


def _remove(path: str) -> None:
    """Remove a file and then its sidecar."""
    for name in (path, sidecar_path(path)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
