"""``ags1::`` in front of a URL: a file system of fsspec that shows encrypted files as plaintext.

::

    pandas.read_parquet("ags1::s3://lake/x.parquet.ags1")
        |
    system    Ags1FileSystem: names, listings, whole files; what fsspec calls
    transfers many files at a time: get, put, copy, cat, pipe
    entries   entries of a listing: which are encrypted files
    files     the open files that it returns
    pairs     a file and its sidecar in the file system below, local or remote
    urls      encrypted files by their URLs, for Polars and DuckDB
    options   storage options, and the keychain that they name
    paths     the same for universal_pathlib: UPath("ags1::…")

Needs fsspec, which is optional (the extra ``fsspec``).
"""

from .system import Ags1FileSystem

__all__ = ["Ags1FileSystem"]
