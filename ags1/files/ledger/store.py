"""``Store``: where a ledger keeps its objects. They are made once, read, listed and removed.

There are two: a folder (``folder``), and a folder of an object storage (``objects``). All that a
storage must have is a conditional write: a write that makes an object whole, and fails if there is
one of that name. ``check`` tries that out. Knows nothing of ledgers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ...host.atomic import already_exists

BUSY = (
    "another job is writing to this ledger: wait for it, or give each folder of targets a ledger "
    "of its own"
)
# How often an object is written again whose writer got no answer.
_TRIES = 3


class Store(Protocol):
    """The objects below ``url``, which is a folder or a URL. Methods raise OSError."""

    url: str

    def url_of(self, name: str) -> str:
        """Return the path or the URL of an object."""

    def put(self, name: str, data: bytes) -> None:
        """Make an object, whole or not at all. Raises FileExistsError if there is one."""

    def read(self, name: str) -> bytes:
        """Return an object. Raises FileNotFoundError."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the objects directly below a folder; none if it does not exist."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; those that do not exist are no error."""

    def modified(self, name: str) -> float:
        """Return when an object was made, in seconds since 1970, by the storage's clock."""

    def check(self, age_of: str | None) -> float:
        """Make sure that a ledger can be written here. Return how old the object ``age_of`` is, in
        seconds, by the storage's own clock; 0 without one. Raises OSError for a storage without
        conditional writes, with the way out, and KmsAccessDeniedError for one that others may write
        to."""


def create(store: Store, name: str, data: bytes) -> None:
    """Make an object. Raises FileExistsError if somebody else has made it. ``data`` has to be
    unlike all that others write under this name: it tells who has made the object, if the answer to
    a request was lost."""
    for tries_left in reversed(range(_TRIES)):
        try:
            store.put(name, data)
            return
        except OSError as error:
            # The request, or an earlier one whose answer was lost, may have made the object.
            try:
                found = store.read(name)
            except FileNotFoundError:
                if isinstance(error, FileExistsError) or not tries_left:
                    raise error from None
                continue
            if found != data:
                raise already_exists(store.url_of(name)) from None
            return
