"""Has PyArrow write a small file to S3 by one request.

Otherwise it begins an upload in parts when a file is opened, which takes three requests, one after
the other. PyIceberg has no property for that. The file systems are made again with the same
options; the credentials are those that PyIceberg was given, or are found as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from pyarrow.fs import FileSystem, S3FileSystem
from pyiceberg.io import AWS_ACCESS_KEY_ID, S3_ACCESS_KEY_ID, S3_RETRY_STRATEGY_IMPL, FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

_CREDENTIALS = frozenset(("access_key", "secret_key", "session_token"))


def upload_small_files_at_once(io: FileIO) -> None:
    """Have ``io`` write files that are smaller than a part of an upload by one request."""
    # The strategy of retries is not among the options of a file system.
    if (
        isinstance(io, PyArrowFileIO)
        and not isinstance(io.fs_by_scheme, _FileSystems)
        and S3_RETRY_STRATEGY_IMPL not in io.properties
    ):
        io.fs_by_scheme = _FileSystems(io.fs_by_scheme, io.properties)


class _FileSystems:
    """PyArrow's file systems by scheme and host."""

    def __init__(
        self, find: Callable[[str, str | None], FileSystem], properties: Mapping[str, str]
    ) -> None:
        given = properties.get(S3_ACCESS_KEY_ID) or properties.get(AWS_ACCESS_KEY_ID)
        self._left_out = frozenset() if given else _CREDENTIALS
        self._found = functools.cache(lambda *place: self._delayed(find(*place)))

    def __call__(self, scheme: str, host: str | None = None) -> FileSystem:
        return self._found(scheme, host)

    def _delayed(self, found: FileSystem) -> FileSystem:
        if not isinstance(found, S3FileSystem):
            return found
        # What a pickle has: credentials that were found would not be renewed.
        options = found.__reduce__()[1][0]
        kept = {name: value for name, value in options.items() if name not in self._left_out}
        return S3FileSystem(**{**kept, "allow_delayed_open": True})
