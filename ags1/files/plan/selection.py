"""``Selection``: which files a job has to do, which are done already, and which it cannot do. A
file that the job cannot do is a failure of this file only. For the others, the ledger decides: if
it has the file's target as done, and source and target still are as it says, the file is done."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...engine import layout
from ...engine.layout import encrypted_size
from ...errors import Ags1Error, FormatError, KeyMetadataError, TruncatedError
from ...host.pools import map_in_threads
from ...keys.sidecar import SUFFIX as KEYS
from ..keys import as_text
from ..ledger import DONE, ENCRYPT, Ledger, Row
from ..ledger.lookup import joined
from ..paths import SUFFIX
from ..staging.packed import DigestMap, Packed, PackedRows
from ..staging.pieces import BLOCK_SIZE, Item
from ..staging.places import absolute, find, open_storage
from ..staging.protocol import (
    EXCLUDED,
    NOT_UTF8,
    REQUESTS,
    NothingStagedError,
    SourceFile,
    StatusOf,
)
from ..storage.protocol import status_of_file
from ..work.tasks import WRONG_LENGTH
from .patterns import Patterns

_log = logging.getLogger("ags1.spark.jobs.selection")  # programs know this name

_NO_FILE = "there is no file: check the path, and that it is mounted"
# Of a target whose content is not certain.
_UNCERTAIN = b"uncertain"
# The size of the digest of what is known of a target.
_FACTS = 16
_NO_NONCE = bytes(layout.NONCE_SIZE).hex()
_OWN_FOLDER = "it is in the folder of the targets or the ledger: name another source"
_NO_KEY = "the ledger has no key for this file: use the ledger of the job that encrypted it"


class Wanted(NamedTuple):
    """A file that somebody wants done: its path below the folder that was given, unencrypted; the
    size of its plaintext in bytes; and its wrapped key if it is encrypted."""

    file: SourceFile
    relative_path: str
    plaintext_size: int
    wrapped: str | None


class Failure(NamedTuple):
    """A file that cannot be done, its target if it is known, and why."""

    file: SourceFile
    target: str
    error: BaseException


class Selection:
    """The files of one job. ``root`` is the folder of its targets, empty if it writes none.
    ``failures`` and ``unchanged`` (a number) are of the files that the job need not try, and
    ``passed_over`` (numbers by reason) of what is no file, or is not wanted."""

    def __init__(self, operation: str, root: str, ledger: Ledger, wanted: Patterns) -> None:
        self._wanted = wanted
        self._operation = operation
        self._root = root
        self._storage = open_storage(root)
        self._ledger = ledger
        # Sources are not searched for in these folders.
        self._own_folders = [folder for folder in (root, ledger.location) if folder]
        self._targets = DigestMap(1)
        self._status_of: StatusOf = lambda target: None
        self._plans: set[str] | None = None
        self.failures: list[Failure] = []
        self.unchanged = 0
        self.passed_over: dict[str, int] = {}

    def listed(self, paths: Sequence[str]) -> Packed[SourceFile]:
        """Return the files that paths, globs and folders mean. Paths that cannot be listed, or
        paths without any file, are failures: the folder may not be mounted."""
        listing = find(paths, closed=self._own_folders, takes=self._wanted)
        for path, error in listing.problems:
            self._fail(_unlisted(path), error)
        for reason, (first, count) in listing.passed_over.items():
            self.passed_over[reason] = count
            if reason == NOT_UTF8:  # it may be a file whose content nobody encrypts
                _log.warning(
                    "passed over %d names that are not UTF-8, the first is %s: rename them",
                    count,
                    first,
                )
        if not listing.files and not listing.problems and EXCLUDED not in listing.passed_over:
            own = tuple(absolute(folder).rstrip("/") + "/" for folder in self._own_folders)
            for path in paths:
                message = _OWN_FOLDER if (absolute(path) + "/").startswith(own) else _NO_FILE
                if listing.passed_over:
                    kinds = ", ".join(f"{n} {name}" for name, n in self.passed_over.items())
                    message += f" (passed over: {kinds})"
                self._fail(_unlisted(path), OSError(errno.ENOENT, message))
        return listing.files

    def encrypted(self, paths: Sequence[str] | None) -> Iterator[tuple[SourceFile, Row]]:
        """Yield the encrypted files that ``paths`` mean (None: all files of the ledger), each with
        the row that has its key."""
        by_target = self._encrypted_rows()
        found = (
            self._named(paths, by_target) if paths is not None else self._all_encrypted(by_target)
        )
        others = []
        for file, row in found:
            if _wrong_length(file, row) is None:
                yield file, row
            else:
                others.append((file, row))
        if others:  # a job may have replaced them since
            by_target = self._encrypted_rows()
        for file, row in others:
            yield from self._looked_at_again(file, by_target.get(row.target) or row)

    def _named(
        self, paths: Sequence[str], by_target: PackedRows[Row]
    ) -> Iterator[tuple[SourceFile, Row]]:
        by_name = by_target.by(lambda row: f"{row.relative_path}{SUFFIX}")
        for file in self.listed(paths):
            row = by_target.get(file.path) or by_name.get(file.relative_path)
            if row is None and _is_sidecar_of(file, by_target, by_name):
                continue
            if row is None:
                self._fail(file, KeyMetadataError(_NO_KEY))
            else:
                yield file, row

    def looked_up_again(self, items: Iterable[Item]) -> list[Item]:
        """Return the work on encrypted files that others have replaced, with their keys and sizes
        of now."""
        by_target = self._encrypted_rows()
        by_name = by_target.by(lambda row: f"{row.relative_path}{SUFFIX}")
        found = []
        for item in items:
            row = by_target.get(item.source) or by_name.get(item.relative_path)
            file = SourceFile(item.source, item.relative_path, item.source_size, "")
            if row is None:
                self._fail(file, KeyMetadataError(_NO_KEY), item.target)
                continue
            for now, of in self._looked_at_again(file, row):
                item = item._replace(source_size=now.size, source_version=now.version)
                size, wrapped = of.source_size, of.key_metadata
                found.append(item._replace(plaintext_size=size, wrapped=wrapped))
        return found

    def _looked_at_again(self, file: SourceFile, row: Row) -> Iterator[tuple[SourceFile, Row]]:
        try:
            status = status_of_file(open_storage(file.path), file.path)
        except OSError as unknown:
            self._fail(file, unknown)
            return
        file = SourceFile(file.path, file.relative_path, *status)
        error = _wrong_length(file, row)
        if error is None:
            yield file, row
        else:
            self._fail(file, error)

    def items(
        self, wanted: Iterable[Wanted], count: int, *, suffix: str = "", overwrite: bool
    ) -> Packed[Item]:
        """Return the work on all files that are not done. There are about ``count``. The names of
        their targets end with ``suffix``."""
        columns = "source source_size source_version target_size nonce retires".split()
        known = _Contents()
        self._ledger.facts(known, self._operation, columns, lambda row: row, below=self._root)
        self._status_of = self._storage.statuses(self._root, count, follow=False)
        items = Packed(Item._make)
        for file, name, size, wrapped in wanted:
            target = os.path.join(self._root, name + suffix)
            row, is_again = known.visit(target)
            if row is None:
                is_again = self._targets.put(target, b"\1") is not None
            if self._is_to_do(file, target, row, is_again, overwrite=overwrite):
                source = file.path, target, name, file.size, file.version
                replaces = overwrite or row is not None
                unit = self._storage.unit(size)
                work = size, wrapped, replaces, unit, known.nonces(target)
                items.append(Item(len(items), *source, *work))
        return items

    def _is_to_do(
        self, file: SourceFile, target: str, row: bytes | None, is_again: bool, *, overwrite: bool
    ) -> bool:
        """Return whether a file has to be done. ``row`` tells what the ledger has of its target
        (``_Contents``), and ``is_again`` that another source had the same target."""
        if not self._storage.holds(self._root, target):
            message = f"its target would be outside the folder {self._root}: rename the source"
            self._fail(file, OSError(errno.EINVAL, message))
            return False
        if is_again:
            message = f"another source has the same target, {target}: name a folder above both"
            self._fail(file, OSError(errno.EINVAL, message))
            return False
        if row is None and overwrite:
            return True
        try:
            status = self._status_of(target)
        except (OSError, ValueError) as error:  # ValueError: for example, a NUL in a name
            self._fail(file, error, target)
            return False
        if status is None:
            return True
        if row is None:
            message = "the target exists, and this ledger does not know it"
            message += ": use --force (overwrite=True)"
            if target in self._planned():
                message = "another job has just given its target the name: run this one again later"
            self._fail(file, FileExistsError(errno.EEXIST, message), target)
            return False
        if row != _digest(file.path, file.size, file.version, status.size):
            return True
        self.unchanged += 1
        return False

    def _planned(self) -> set[str]:
        """Return the targets that other jobs are about to name, or have named just now."""
        if self._plans is None:
            self._plans = {row.target for batch in self._ledger.pending() for row in batch.rows}
        return self._plans

    def _encrypted_rows(self) -> PackedRows[Row]:
        """Return the rows of all encrypted files by target, also those of a job that was killed or
        that is writing now."""
        pending = [row for batch in self._ledger.pending() for row in batch.rows]
        columns = ("source_size", "relative_path", "key_metadata", "nonce", "retires")
        by_target: PackedRows[Row] = PackedRows(Row._make, lambda row: row.target)

        contents = _Contents()

        def with_others(row: Row) -> Row:
            contents[row.target] = row
            before = by_target.get(row.target) if row.target in contents.several else None
            if before is None:
                return row
            # The file's first nonce tells which key is its.
            both = joined(row.key_metadata, joined(before.key_metadata, None))
            return row if both is None else row._replace(key_metadata=as_text(both.to_dict()))

        self._ledger.facts(by_target, ENCRYPT, columns, with_others)
        pending = [row for row in pending if (row.operation, row.status) == (ENCRYPT, DONE)]
        are_named = map_in_threads(REQUESTS, has_its_name, pending)
        for row, is_named in zip(pending, are_named, strict=True):
            if is_named:
                by_target[row.target] = row
        return by_target

    def _all_encrypted(self, by_target: PackedRows[Row]) -> Iterator[tuple[SourceFile, Row]]:
        folders: dict[int, tuple[str, int]] = {}  # of each storage, with the number of files
        for row in by_target:
            path = row.target
            if not self._wanted(row.relative_path, False):
                self.passed_over[EXCLUDED] = self.passed_over.get(EXCLUDED, 0) + 1
                continue
            try:
                storage = id(open_storage(path))
            except (OSError, ValueError) as error:
                self._fail(_unlisted(path, row.relative_path), error)
            else:
                prefix, count = folders.get(storage, (path, 0))
                # commonpath would not return a URL.
                shared = os.path.commonprefix((prefix, path))  # noqa: RUF071
                folders[storage] = shared, count + 1
        status_of = {}
        for storage, (prefix, count) in folders.items():
            folder = os.path.dirname(prefix + "x")
            status_of[storage] = open_storage(folder).statuses(folder, count, follow=True)
        for row in by_target.drained():
            path = row.target
            try:
                storage = id(open_storage(path))
            except (OSError, ValueError):
                continue  # it has failed above
            if self._wanted(row.relative_path, False):
                yield from self._with_status(row, status_of[storage])

    def _with_status(self, row: Row, status_of: StatusOf) -> Iterator[tuple[SourceFile, Row]]:
        path = row.target
        try:
            status = status_of(path)
            if status is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        except (OSError, ValueError) as error:
            self._fail(_unlisted(path, row.relative_path), error)
            return
        yield SourceFile(path, row.relative_path, *status), row

    def _fail(self, file: SourceFile, error: BaseException, target: str = "") -> None:
        self.failures.append(Failure(file, target, error))


def _wrong_length(file: SourceFile, row: Row) -> Ags1Error | None:
    """Return the error of a file without the length in its row, by which it is cut."""
    try:
        expected = encrypted_size(row.source_size, BLOCK_SIZE)
    except (FormatError, TypeError):  # the row is damaged
        expected = -1
    if file.size == expected:
        return None
    return (TruncatedError if file.size < expected else FormatError)(WRONG_LENGTH)


def _is_sidecar_of(file: SourceFile, by_target: PackedRows[Row], by_name: PackedRows[Row]) -> bool:
    """Whether a file is the sidecar of an encrypted file of the ledger."""
    path, name = file.path.removesuffix(KEYS), file.relative_path.removesuffix(KEYS)
    return path != file.path and (path in by_target or name in by_name)


def _unlisted(path: str, relative_path: str = "") -> SourceFile:
    return SourceFile(path, relative_path, 0, "")


def has_its_name(row: Row) -> bool:
    """Whether the file of a pending row has its name already."""
    try:
        return row.attempt is not None and open_storage(row.target).has_its_name(row)
    except NothingStagedError:
        return False


class _Contents:
    """What rows say of targets, oldest first: what must still be so if a target is done, and which
    contents it may have. That is one, unless two jobs wrote it, and neither knew of the other. Then
    nothing tells which one it has: it is done again, and replaces both."""

    def __init__(self) -> None:
        # Facts, nonce, and 1 if somebody asked for them.
        self._known = DigestMap(_FACTS + layout.NONCE_SIZE + 1)
        self.several: dict[str, set[str]] = {}

    def __setitem__(self, target: str, row: Row) -> None:
        facts = _digest(row.source, row.source_size, row.source_version, row.target_size)
        before = self._known.put(target, facts + _nonce(row) + b"\0")
        if before is not None and row.nonce:
            others = self.several.pop(target, None) or {before[_FACTS:-1].hex()}
            others -= {*(row.retires or "").split(), row.nonce, _NO_NONCE}
            if others:
                self.several[target] = {*others, row.nonce}

    def pop(self, target: str, default: None) -> None:
        self.several.pop(target, default)
        self._known.pop(target, default)

    def visit(self, target: str) -> tuple[bytes | None, bool]:
        """Return the digest of what must still be so, None if the target is not done; and whether
        somebody asked before."""
        known = self._known.visit(target)
        if known is None:
            return None, False
        return _UNCERTAIN if target in self.several else known[:_FACTS], known[-1] == 1

    def nonces(self, target: str) -> str:
        """Return the first nonces of what a target may be, with spaces between."""
        known = self._known.get(target)
        one = {known[_FACTS:-1].hex()} if known is not None else set()
        return " ".join(sorted(self.several.get(target, one) - {_NO_NONCE}))


def _nonce(row: Row) -> bytes:
    """Return the first nonce of a row's file. If it has none, as in rows of earlier versions and in
    damaged ones, it is all zeros."""
    try:
        nonce = bytes.fromhex(row.nonce or "")
    except ValueError:
        nonce = b""
    return nonce if len(nonce) == layout.NONCE_SIZE else bytes(layout.NONCE_SIZE)


def _digest(*facts: object) -> bytes:
    """Return 16 bytes that are equal if, and only if, the facts are."""
    text = repr(facts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=_FACTS).digest()
