"""``LedgerSidecars``: the wrapped keys that a ledger has for files, for readers outside of jobs.

``ags1.filesystem`` finds it by its name for the storage option ``ledger``. A ledger is only read.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...keys.sidecar import Sidecar
from .ledger import ledger_location, open_ledger
from .rows import ENCRYPT

_COLUMNS = ("target", "key_metadata")


class LedgerSidecars:
    """Finds sidecars in a ledger. Raises as ``ledger_location``."""

    def __init__(self, ledger: str) -> None:
        self._ledger = ledger_location(ledger)
        # By folder: the ledger's files that were read, and the wrapped keys by target.
        self._folders: dict[str, tuple[list[str], dict[str, str]]] = {}

    def find(self, targets: Sequence[str]) -> list[Sidecar | None]:
        """Return the sidecar of each encrypted file, a path or a URL; None if the ledger has no key
        for it. If the ledger has new rows or keys, it is read again. Raises KeyMetadataError, and
        as ``open_ledger``."""
        if not targets:
            return []
        with open_ledger(self._ledger, writing=False) as ledger:
            files = ledger.files()
            for folder in {_folder(target) for target in targets}:
                if folder in self._folders and self._folders[folder][0] == files:
                    continue
                rows = ledger.done(ENCRYPT, _COLUMNS, below=folder).values()
                keys = {row.target: row.key_metadata for row in rows if row.key_metadata}
                self._folders[folder] = files, keys
        found = [self._folders[_folder(target)][1].get(target) for target in targets]
        return [Sidecar.from_bytes(text.encode()) if text else None for text in found]


def _folder(target: str) -> str:
    return target[: target.rfind("/") + 1]
