"""The one table of steps for an encrypted file and its key, in any storage.

A file and its key cannot change in one step. So its keystore gets the new key before the file has
its name, and gives the old key up afterwards. ``docs/design/0004-pairs.md`` has ``STEPS``, with
what can be decrypted after each of them. A run that is killed leaves the state of one of its lines.
A run that fails before the file has its name takes its key back; if it fails later, the file stays,
and so does its key. Independent of storages, of what a file holds, and of keys that are not
wrapped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

ADDED, PUT, RETIRED = STEPS = "added", "put", "retired"


class Keystore(Protocol):
    """The keys of one file, where one run changes them."""

    def add(self) -> object:
        """Store the new key beside those that are there. Raises OSError, KeyMetadataError."""

    def take_back(self) -> None:
        """Undo ``add`` as far as it happened: the file did not get its name. Raises nothing."""

    def retire(self) -> None:
        """Give up the keys of what the new file has replaced. Raises OSError."""


def steps(
    keys: Keystore, put: Callable[[], object], is_put: Callable[[BaseException], bool]
) -> Iterator[str]:
    """Change a file and its key, and yield each of ``STEPS`` when it is done. ``put`` gives the new
    file its name. If anything fails before that, ``is_put`` says whether the file has its name all
    the same, or may get it: then its key stays."""
    try:
        keys.add()
        yield ADDED
        put()
        yield PUT
    except BaseException as error:
        if not is_put(error):
            keys.take_back()
        raise
    keys.retire()
    yield RETIRED


def publish(
    keys: Keystore, put: Callable[[], object], is_put: Callable[[BaseException], bool]
) -> None:
    """Do all ``steps``. Ctrl-C comes in one of them, not between."""
    deque(steps(keys, put, is_put), maxlen=0)
