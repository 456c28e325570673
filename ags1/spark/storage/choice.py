"""Which storage a path means, and the files of sources wherever they lie."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ...kms.process import PerProcess
from .local import LOCAL
from .protocol import Found, Problem, Storage, local_path

_LISTING_THREADS = 8


class Listing(NamedTuple):
    """The files found, in the order of their paths, and what could not be listed."""

    files: list[Found]
    problems: list[Problem]


def storage_of(path: str) -> Storage:
    """Return the storage of a path: a URL's is what fsspec knows under its scheme, with the
    credentials that this process finds. Raises OSError for one that cannot be used."""
    if local_path(path) is not None:
        return LOCAL
    scheme, _, rest = path.partition("://")
    place = f"{scheme}://{rest.partition('/')[0]}"
    known = _remote.get()
    storage = known.get(place)
    if storage is None:
        from .remote import remote_storage

        storage = known.setdefault(place, remote_storage(place))
    return storage


# Connections are no forked child's.
_remote: PerProcess[dict[str, Storage]] = PerProcess(dict)


def absolute(path: str) -> str:
    """Return the one form that a path has in the ledger."""
    return storage_of(path).absolute(path)


def find(sources: Iterable[str], *, passed_over: Collection[str] = ()) -> Listing:
    """Find the files that paths, globs and folders mean; each once.

    Folders are walked, several at a time; links to folders and unfinished files of ags1 are passed
    over, and so is whatever lies in the folders ``passed_over``.
    """
    files: dict[str, Found] = {}
    problems: list[Problem] = []
    with ThreadPoolExecutor(_LISTING_THREADS, "ags1-listing") as pool:
        for source in sources:
            try:
                for item in storage_of(source).find(source, passed_over, pool):
                    if isinstance(item, Found):
                        files.setdefault(item.path, item)
                    else:
                        problems.append(item)
            except OSError as error:
                problems.append(Problem(source, error))
    return Listing([files[path] for path in sorted(files)], problems)
