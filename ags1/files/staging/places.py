"""The storage that a path means, and the files that paths, patterns and folders mean."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable
from typing import NamedTuple

from ...host.pools import CancellingPool
from ...host.process import OncePerProcess
from ..filesystems import host_url_of, is_s3, open_filesystem, refuse_chain
from ..paths import local_path
from .local import LOCAL
from .packed import Packed, PackedFiles
from .protocol import LISTING_THREADS, JobStorage, PassedOver, Problem, SourceFile, Takes
from .remote import RemoteStorage
from .s3 import S3Storage


class Listing(NamedTuple):
    """The files in the order of their paths, the paths that could not be listed, and by reason the
    first path that was passed over and their number."""

    files: Packed[SourceFile]
    problems: list[Problem]
    passed_over: dict[str, tuple[str, int]]


def open_storage(path: str) -> JobStorage:
    """Return the storage of a path. A URL's is the file system that fsspec has for its scheme, with
    the credentials that this process finds. Raises OSError for a URL that cannot be used, and
    KmsConfigurationError for one with a password, a signature or another URL in it: paths are sent
    to executors and stored in ledgers."""
    refuse_chain(path)
    return LOCAL if local_path(path) is not None else _open_remote(path)


def _open_remote(path: str) -> RemoteStorage:
    host_url = host_url_of(path)
    known = _remote.get()
    return known.get(host_url) or known.setdefault(host_url, _new_storage(host_url))


def _new_storage(host_url: str) -> RemoteStorage:
    """Return the storage of a URL's scheme and host. Raises OSError if it cannot be used."""
    filesystem = open_filesystem(host_url)
    return (S3Storage if is_s3(filesystem) else RemoteStorage)(filesystem, host_url)


# Per process: a forked child must not use its parent's connections.
_remote: OncePerProcess[dict[str, RemoteStorage]] = OncePerProcess(dict)


def absolute(path: str) -> str:
    """Return the one form that a path has in the ledger. Raises as ``open_storage``, and OSError if
    that form would lose the host."""
    storage = open_storage(path)
    whole = storage.absolute(path)
    if local_path(path) is None:
        meant, known = _open_remote(path), _open_remote(whole)
        if known is not meant and not known.is_like(meant):
            message = "executors would look elsewhere: name the host in fsspec's configuration"
            raise OSError(errno.EINVAL, message, path)
    return whole


def find(
    sources: Iterable[str], *, closed: Collection[str] = (), takes: Takes | None = None
) -> Listing:
    """List the files that paths, globs and folders mean, each file once. Folders are walked,
    several at a time. Paths that are no files, and files that ``takes`` does not take, are counted.
    Unfinished files of ags1, and all files in the folders ``closed``, are left out without a count.
    Raises KmsConfigurationError as ``open_storage``."""
    files = PackedFiles()
    problems: list[Problem] = []
    passed_over: dict[str, tuple[str, int]] = {}
    takes = takes or _all
    with CancellingPool(LISTING_THREADS, "ags1-listing") as pool:
        for source in sources:
            try:
                absolute(source)
                for item in open_storage(source).find(source, closed, takes, pool):
                    if isinstance(item, SourceFile):
                        files.add(item)
                    elif isinstance(item, PassedOver):
                        first, count = passed_over.get(item.reason, (item.path, 0))
                        passed_over[item.reason] = first, count + 1
                    else:
                        problems.append(item)
            except OSError as error:
                problems.append(Problem(source, error))
    return Listing(files.in_order(), problems, passed_over)


def _all(relative_path: str, is_folder: bool) -> bool:
    return True
