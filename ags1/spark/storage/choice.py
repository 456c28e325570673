"""Which storage a path means, and the files of sources wherever they lie."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from ...errors import KmsConfigurationError
from ...kms.process import PerProcess
from ...kms.properties import Properties
from .local import LOCAL
from .protocol import Found, Problem, Storage, local_path

if TYPE_CHECKING:
    from .remote import RemoteStorage

_LISTING_THREADS = 8
_SIGNATURE = re.compile(r"[?&](x-\w+-)?(signature|security-token)=", re.IGNORECASE)
# What fsspec takes for a URL inside another one: a scheme, or a host's end, by two colons.
_CHAIN = re.compile(r"::[^/]*://|^[^/]*://[^/\[]*::")


class Listing(NamedTuple):
    """The files found, in the order of their paths, and what could not be listed."""

    files: list[Found]
    problems: list[Problem]


def storage_of(path: str) -> Storage:
    """Return the storage of a path: a URL's is what fsspec knows under its scheme, with the
    credentials that this process finds. Raises OSError for one that cannot be used, and
    KmsConfigurationError for one with a password in it or a signature, or with another URL inside:
    paths are sent around, and stored in ledgers."""
    if "::" in path and _CHAIN.search(path):
        raise KmsConfigurationError(
            "a URL with another one inside, behind '::', is not taken: name the files where they "
            "lie"
        )
    return LOCAL if local_path(path) is not None else _remote_storage_of(path)


def _has_secret(path: str) -> bool:
    if "@" not in path and "?" not in path:
        return False
    # Elsewhere a question mark is a name's.
    shown = path if path.lower().startswith("http") else path.partition("?")[0]
    return bool(Properties({"path": shown}).secrets() or _SIGNATURE.search(shown))


def _remote_storage_of(path: str) -> RemoteStorage:
    if _has_secret(path):
        raise KmsConfigurationError(
            "a URL with a password or a signature in it is sent around and stored: let each "
            "process find its own credentials (a file, the environment, its identity)"
        )
    scheme, _, rest = path.partition("://")
    place = f"{scheme}://{rest.partition('/')[0]}"
    known = _remote.get()
    storage = known.get(place)
    if storage is None:
        from .remote import remote_storage

        storage = known.setdefault(place, remote_storage(place))
    return storage


# Connections are no forked child's.
_remote: PerProcess[dict[str, RemoteStorage]] = PerProcess(dict)


def absolute(path: str) -> str:
    """Return the one form that a path has in the ledger. Raises as ``storage_of``, and OSError
    where that form would not say which host is meant."""
    storage = storage_of(path)
    whole = storage.absolute(path)
    if local_path(path) is None:
        meant, known = _remote_storage_of(path), _remote_storage_of(whole)
        if known is not meant and not known.is_like(meant):
            said = "other processes would look elsewhere: name the host in fsspec's configuration"
            raise OSError(errno.EINVAL, said, path)
    return whole


def find(sources: Iterable[str], *, passed_over: Collection[str] = ()) -> Listing:
    """Find the files that paths, globs and folders mean; each once.

    Folders are walked, several at a time; links to folders and unfinished files of ags1 are passed
    over, and so is whatever lies in the folders ``passed_over``. Raises KmsConfigurationError as
    ``storage_of``.
    """
    files: dict[str, Found] = {}
    problems: list[Problem] = []
    with ThreadPoolExecutor(_LISTING_THREADS, "ags1-listing") as pool:
        for source in sources:
            try:
                absolute(source)
                for item in storage_of(source).find(source, passed_over, pool):
                    if isinstance(item, Found):
                        files.setdefault(item.path, item)
                    else:
                        problems.append(item)
            except OSError as error:
                problems.append(Problem(source, error))
    return Listing([files[path] for path in sorted(files)], problems)
