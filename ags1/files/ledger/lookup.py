"""``LedgerSidecars``: the wrapped keys that a ledger has for files, for readers outside of jobs.

``ags1.filesystem`` finds it by its name for the storage option ``ledger``. A ledger is only read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...keys.sidecar import Sidecar
from .ledger import Ledger, ledger_location, open_ledger
from .rows import DONE, ENCRYPT, FAILED, REMOVED, Row

_COLUMNS = ("target", "key_metadata")
_KEYS = ("key_metadata", "nonce", "retires")


class LedgerSidecars:
    """Finds sidecars in a ledger. Raises as ``ledger_location``."""

    def __init__(self, ledger: str) -> None:
        self._ledger = ledger_location(ledger)
        # By folder: the ledger's files that were read, and the wrapped keys by target.
        self._folders: dict[str, tuple[list[str], dict[str, str]]] = {}

    def find(self, targets: Sequence[str], *, pending: bool = False) -> list[Sidecar | None]:
        """Return the sidecar of each encrypted file, a path or a URL; None if the ledger has no key
        for it. If the ledger has new rows or keys, it is read again. ``pending``: with the keys of
        files that a job is giving their names. Raises KeyMetadataError, and as ``open_ledger``."""
        if not targets:
            return []
        new: dict[str, Sidecar] = {}
        with open_ledger(self._ledger, writing=False) as ledger:
            if pending:
                new = pending_keys(ledger, all_keys(ledger, targets))
            files = ledger.files()
            for folder in {_folder(target) for target in targets}:
                if folder in self._folders and self._folders[folder][0] == files:
                    continue
                rows = ledger.done(ENCRYPT, _COLUMNS, below=folder).values()
                keys = {row.target: row.key_metadata for row in rows if row.key_metadata}
                self._folders[folder] = files, keys
        found = [self._folders[_folder(target)][1].get(target) for target in targets]
        return [joined(text, new.get(at)) for at, text in zip(targets, found, strict=True)]


def all_keys(ledger: Ledger, targets: Collection[str]) -> dict[str, Sidecar]:
    """Return by target the keys of all contents that it may have: several if two jobs wrote it, or
    if one of them failed and its file may exist all the same. Raises KeyMetadataError."""
    rows: dict[str, list[Row]] = {target: [] for target in targets}
    for _, batch in ledger.batches(("operation", "status", "target", *_KEYS)):
        for row in batch:
            if row.operation == ENCRYPT and row.target in rows:
                retired = set() if row.status == FAILED else {*(row.retires or "").split()}
                kept = [one for one in rows[row.target] if one.nonce not in retired]
                # Without nonces, the newest counts.
                kept = [one for one in kept if one.nonce and row.status != REMOVED]
                rows[row.target] = [*kept, row] if row.key_metadata else kept
    found: dict[str, Sidecar] = {}
    for target, candidates in rows.items():
        for row in candidates:
            sidecar = joined(row.key_metadata, found.get(target))
            if sidecar is not None:
                found[target] = sidecar
    return found


def pending_keys(ledger: Ledger, found: dict[str, Sidecar] | None = None) -> dict[str, Sidecar]:
    """Return by target the keys of files that a job is giving their names, or that was killed,
    beside those that were ``found``. Read the settled ones afterwards (``Ledger.pending``). Raises
    KeyMetadataError."""
    found = {} if found is None else found
    for batch in ledger.pending():
        for row in batch.rows:
            if (row.operation, row.status) == (ENCRYPT, DONE) and row.key_metadata:
                sidecar = joined(row.key_metadata, found.get(row.target))
                if sidecar is not None:
                    found[row.target] = sidecar
    return found


def joined(document: str | None, others: Sidecar | None) -> Sidecar | None:
    """Return the keys of a document and further ones. Which one is a file's, the file's first nonce
    tells. Raises KeyMetadataError."""
    if not document:
        return others
    sidecar = Sidecar.from_bytes(document.encode())
    return sidecar if others is None else sidecar.with_keys_of(others)


def _folder(target: str) -> str:
    return target[: target.rfind("/") + 1]
