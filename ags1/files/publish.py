"""The one table of steps for an encrypted file and its key, in any storage.

A file and its key cannot change in one step. So its keystore gets the new key before the file has
its name, and gives the old key up afterwards. ``STEPS``, and what opens if a file is replaced:

    ==================  =======================  ======================  ======================
    After this step     The file's name has      The keystore has        What can be decrypted
    ==================  =======================  ======================  ======================
    (the run starts)    the old file             the old key             the old file
    ADDED               the old file             the old and the new     the old file
    PUT                 the new file             the old and the new     the new file
    RETIRED             the new file             the new key             the new file
    ==================  =======================  ======================  ======================

A run that is killed leaves the state of one of these lines. A run that fails before the file has
its name takes its key back; if it fails later, the file stays, and so does its key. The other
beginnings:

    ==================================  =========================================================
    What is there at the start          What is different
    ==================================  =========================================================
    no file, no key                     After ADDED there is a key without a file; nothing is to
                                        be retired.
    a file without a key, or with       Nothing opens the old file, not even at the start. The
    damaged ones                        keystore never has an old key.
    keys without a file                 They stay, because what they open may only have been
                                        moved (``OldKeys.KEEP``).
    ==================================  =========================================================

Independent of storages, of what a file holds, and of keys that are not wrapped.
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
