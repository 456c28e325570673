"""The storage that a path means, and the files that paths, patterns and folders mean."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ...errors import KmsConfigurationError
from ...kms.properties import Properties
from ...process import OncePerProcess
from ..paths import local_path
from .local import LOCAL
from .packed import Packed, PackedFiles
from .protocol import Problem, SourceFile, Storage
from .remote import RemoteStorage, os_errors
from .s3 import S3Storage

_LISTING_THREADS = 8
_SIGNATURE = re.compile(r"[?&](x-\w+-)?(signature|security-token)=", re.IGNORECASE)
# What fsspec takes for a URL inside another URL: two colons behind a scheme or a host.
_CHAIN = re.compile(r"::[^/]*://|^[^/]*://[^/\[]*::")


class Listing(NamedTuple):
    """The files in the order of their paths, and the paths that could not be listed."""

    files: Packed[SourceFile]
    problems: list[Problem]


def storage_of(path: str) -> Storage:
    """Return the storage of a path. A URL's is the file system that fsspec has for its scheme, with
    the credentials that this process finds. Raises OSError for a URL that cannot be used, and
    KmsConfigurationError for one with a password, a signature or another URL in it: paths are sent
    to executors and stored in ledgers."""
    if "::" in path and _CHAIN.search(path):
        raise KmsConfigurationError(
            "a URL with another one inside, behind '::', is refused: give the URL of the files "
            "themselves"
        )
    return LOCAL if local_path(path) is not None else _remote_storage_of(path)


def _has_secret(path: str) -> bool:
    if "@" not in path and "?" not in path:
        return False
    # In other URLs a question mark is part of a name.
    text = path if path.lower().startswith("http") else path.partition("?")[0]
    return bool(Properties({"path": text}).secrets() or _SIGNATURE.search(text))


def _remote_storage_of(path: str) -> RemoteStorage:
    if _has_secret(path):
        raise KmsConfigurationError(
            "a URL with a password or a signature is refused, as paths are sent to executors and "
            "stored: let each process find its own credentials (a file, the environment, its "
            "identity)"
        )
    scheme, _, rest = path.partition("://")
    host_url = f"{scheme}://{rest.partition('/')[0]}"
    known = _remote.get()
    return known.get(host_url) or known.setdefault(host_url, _new_storage(host_url))


def _new_storage(host_url: str) -> RemoteStorage:
    """Return the storage of a URL's scheme and host. Raises OSError if it cannot be used."""
    with os_errors(host_url):
        import fsspec.core  # optional

        filesystem, _ = fsspec.core.url_to_fs(host_url)
        protocol = filesystem.protocol
    if "s3" in ((protocol,) if isinstance(protocol, str) else protocol):
        return S3Storage(filesystem, host_url)
    return RemoteStorage(filesystem, host_url)


# Per process: a forked child must not use its parent's connections.
_remote: OncePerProcess[dict[str, RemoteStorage]] = OncePerProcess(dict)


def absolute(path: str) -> str:
    """Return the one form that a path has in the ledger. Raises as ``storage_of``, and OSError if
    that form would lose the host."""
    storage = storage_of(path)
    whole = storage.absolute(path)
    if local_path(path) is None:
        meant, known = _remote_storage_of(path), _remote_storage_of(whole)
        if known is not meant and not known.is_like(meant):
            said = "executors would look elsewhere: name the host in fsspec's configuration"
            raise OSError(errno.EINVAL, said, path)
    return whole


def find(sources: Iterable[str], *, passed_over: Collection[str] = ()) -> Listing:
    """List the files that paths, globs and folders mean, each file once. Folders are walked,
    several at a time. Links to folders, unfinished files of ags1, and all files in the folders
    ``passed_over`` are left out. Raises KmsConfigurationError as ``storage_of``."""
    files = PackedFiles()
    problems: list[Problem] = []
    with ThreadPoolExecutor(_LISTING_THREADS, "ags1-listing") as pool:
        for source in sources:
            try:
                absolute(source)
                for item in storage_of(source).find(source, passed_over, pool):
                    if isinstance(item, SourceFile):
                        files.add(item)
                    else:
                        problems.append(item)
            except OSError as error:
                problems.append(Problem(source, error))
    return Listing(files.in_order(), problems)
