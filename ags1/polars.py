"""Lazy frames of Polars over encrypted files.

Polars does not open files through fsspec, so ``polars.read_csv("ags1::file://x.csv")`` finds none.
Here a file is named by its path or URL, with or without ``ags1::`` and ``.ags1``. Needs polars,
pyarrow and fsspec, which are optional (the extra ``polars``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import polars
import pyarrow as pa
import pyarrow.dataset as ds

from .files.arrow import filesystem
from .files.fsspec.urls import at_url


def scan_parquet(
    source: str | os.PathLike[str] | Sequence[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> polars.LazyFrame:
    """Return a lazy frame of the rows in encrypted Parquet files.

    ``source`` is a file, a folder, a pattern with ``*``, or a list of files: paths, or URLs of one
    file system. As in Polars, names such as ``year=2026`` below a folder become columns. Only the
    columns that a query uses are read, batch by batch. If no column has floating-point numbers,
    only the row groups that its filter needs are read: Arrow and Polars compare NaN differently, so
    otherwise Polars filters.

    ``storage_options`` name the KMS, as for ``ags1::`` (``Ags1FileSystem``). Raises
    FileNotFoundError, and Ags1Error for a file that was changed, when it is read.
    """
    names = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    opened = [at_url(os.fspath(name), storage_options) for name in names]
    if not opened:
        raise ValueError("no file is named: give a path, a URL or a list of them")
    files = opened[0][0]
    paths = [path for _, one in opened for path in (files.glob(one) if "*" in one else [one])]
    if not paths:
        raise FileNotFoundError(f"no encrypted file has the name {', '.join(map(str, names))}")
    place = {"filesystem": filesystem(files), "format": "parquet"}
    if paths == [opened[0][1]] and files.isdir(paths[0]):
        dataset = ds.dataset(paths[0], partitioning="hive", **place)
        # Polars has 64 bits for the numbers in folders' names.
        found = [(one.name, _wide(one.type)) for one in dataset.partitioning.schema]
        named = ds.partitioning(pa.schema(found), flavor="hive")
        dataset = ds.dataset(paths[0], partitioning=named, **place)
    else:
        dataset = ds.dataset(paths, **place)
    exact = not any(_has_floats(field.type) for field in dataset.schema)
    return polars.scan_pyarrow_dataset(dataset, allow_pyarrow_filter=exact)


def scan_csv(
    source: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> polars.LazyFrame:
    """Return a lazy frame of an encrypted CSV file.

    The file is decrypted into memory now, because a CSV file is parsed as a whole, and no plaintext
    is written to the disk. ``options`` are as in ``polars.scan_csv``. ``source`` and
    ``storage_options`` are as for ``scan_parquet``, but ``source`` is one file. Raises
    FileNotFoundError, and Ags1Error for a file that was changed.
    """
    files, path = at_url(os.fspath(source), storage_options)
    return polars.scan_csv(files.cat_file(path), **options)


def _wide(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_integer(kind) else kind


def _has_floats(kind: pa.DataType) -> bool:
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.types.is_floating(kind) or any(map(_has_floats, inner))
