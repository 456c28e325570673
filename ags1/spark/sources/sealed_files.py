"""Encrypted files and their parts, as the "ags1" source reads them.

The driver lists files and cuts them by their stored bytes, without opening one; a task opens a
file, with the keys of its sidecar, and finds which blocks begin in its part. So each block is in
one part, whatever the block size. Local paths are read by their path, all others through fsspec.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from ... import layout
from ...errors import Ags1Error, FormatError, KeyMetadataError
from ...key_metadata import KeyMetadata
from ...keys.keychain import find_sidecar
from ...keys.sidecar import SUFFIX, Sidecar, sidecar_path
from ...reader import Reader
from ..bulk.running import SUFFIX as LEDGER_SUFFIX
from ..keys import FileKeys
from ..storage.choice import absolute, find, storage_of
from ..storage.protocol import REQUESTS, Found, local_path

_MAX_SIDECAR_SIZE = 1 << 20
_NONE: Mapping[str, str] = MappingProxyType({})
# What opening a file costs, in the bytes that could be read meanwhile.
_OPEN_COST = 1 << 20


class Listed(NamedTuple):
    """A file that was found; ``version`` changes when the file does, as far as its storage tells.
    ``size`` in bytes."""

    path: str
    size: int
    version: str


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a file's stored bytes; the blocks that begin in it are meant. ``sidecar`` is the
    document with the file's wrapped key, where it is not beside the file."""

    file: Listed
    begin: int
    end: int
    sidecar: str | None = None

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class OpenPart:
    """A part of a file that is open: ``begin`` and ``end`` are offsets in the plaintext."""

    path: str
    reader: Reader
    begin: int
    end: int


def list_files(paths: Sequence[str]) -> list[Listed]:
    """Return the encrypted files of files, folders and patterns.

    Folders are searched with those inside them. Names that begin with ``_`` or ``.`` are somebody's
    work in progress, and ``.keys`` are sidecars; all else is taken for an encrypted file, and so is
    a file that is named itself. Raises FileNotFoundError for a path that stands for nothing, and
    OSError.
    """
    listing = find(paths)
    for _, error in listing.problems:
        raise error
    named = frozenset(map(absolute, paths))
    return [
        Listed(file.path, file.size, file.version)
        for file in listing.files
        if file.path in named or is_encrypted(file.relative_path)
    ]


def encrypted_below(folder: str, known: Collection[str]) -> list[str]:
    """Return the files below a folder that are there to be read and certainly encrypted: those that
    are ``known``, and those that have a sidecar or a ledger's kind of name and begin as they must.
    Others may be anybody's. Raises FileNotFoundError where there is no folder, OSError, Ags1Error.
    """
    listing = find([folder])
    for _, error in listing.problems:
        raise error
    files = [file for file in listing.files if is_encrypted(file.relative_path)]
    names = {file.path for file in listing.files}
    likely = [
        file
        for file in files
        if file.path not in known
        and (file.path.endswith(LEDGER_SUFFIX) or sidecar_path(file.path) in names)
    ]
    with ThreadPoolExecutor(REQUESTS, "ags1-headers") as pool:
        looked_at = zip(likely, pool.map(_begins_encrypted, likely), strict=True)
        certain = [file.path for file, is_ours in looked_at if is_ours]
    return [file.path for file in files if file.path in known] + certain


def _begins_encrypted(file: Found) -> bool:
    try:
        with storage_of(file.path).open(file.path, file.size, file.version) as source:
            return source.read(0, len(layout.MAGIC)) == layout.MAGIC
    except FileNotFoundError:
        return False


def plan(
    files: Sequence[Listed], part_size: int, sidecars: Mapping[str, str] = _NONE
) -> list[list[Part]]:
    """Return the parts for each task: large files in several, small files several to a task.

    ``sidecars`` has the documents of sidecars by the files' paths.
    """
    tasks: list[list[Part]] = []
    gathered: list[Part] = []
    weight = 0
    for file in files:
        size = file.size
        count = max(1, round(size / part_size))
        bounds = [size * n // count for n in range(count + 1)]
        sidecar = sidecars.get(file.path)
        parts = [Part(file, a, b, sidecar) for a, b in pairwise(bounds)]
        if count > 1:
            tasks += [[part] for part in parts]
            continue
        if gathered and weight + size > part_size:
            tasks.append(gathered)
            gathered, weight = [], 0
        gathered += parts
        weight += size + _OPEN_COST
    return [*tasks, gathered] if gathered else tasks


@contextlib.contextmanager
def open_part(part: Part, keys: FileKeys) -> Iterator[OpenPart]:
    """Open a part of a file by the keys in its sidecar.

    Raises KeyMetadataError where the sidecar is missing or not what it should be, KmsError,
    AuthenticationError, TruncatedError, FormatError, also when the file was replaced since it was
    listed, and OSError.
    """
    path = part.file.path
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(_open(part, keys, stack))
        # Other parts may be of the old one.
        if list_file(path) != part.file:
            raise FormatError("the file was replaced since the job began", file=path)
        first = _first_block(part.begin, reader.block_size)
        size = reader.plaintext_size
        end = size
        if part.end < part.file.size:
            end = min(size, _first_block(part.end, reader.block_size) * reader.block_size)
        try:
            if size and len(part) < part.file.size:
                # Which blocks are the part's the header says, which is under no tag; the first
                # block opens only if its size is what it says.
                reader.pread(0, 1)
            yield OpenPart(path, reader, min(size, first * reader.block_size), end)
        except Ags1Error as error:
            error.file = path
            raise


def open_whole(
    file: Listed, keys: FileKeys, sidecars: Mapping[str, str] = _NONE
) -> contextlib.AbstractContextManager[OpenPart]:
    """Open all of a file. Raises as ``open_part``."""
    return open_part(Part(file, 0, file.size, sidecars.get(file.path)), keys)


def _open(part: Part, keys: FileKeys, stack: contextlib.ExitStack) -> Reader:
    path = part.file.path
    here = local_path(path)
    source: Any = here
    if here is None:
        filesystem, name = _remote(path)
        source = stack.enter_context(filesystem.open(name, "rb"))
    sidecar = Sidecar.from_bytes(part.sidecar.encode()) if part.sidecar else _sidecar(path)
    candidates = sidecar.file_keys
    try:
        for wrapped in candidates:
            chosen = Sidecar(sidecar.encryption_keys, wrapped.key_id)
            km = keys.unwrap(chosen.to_bytes().decode())
            # While a file is replaced, its sidecar has the keys of the old one and of the new.
            if len(candidates) == 1 or _fits(source, km):
                break
        return Reader(source, km)
    except Ags1Error as error:
        error.file = path
        raise


def _fits(source: Any, km: KeyMetadata) -> bool:
    try:
        with Reader(source, km) as reader:
            reader.read(1)
    except Ags1Error:
        return False
    return True


def _sidecar(path: str) -> Sidecar:
    here = local_path(path)
    if here is not None:
        return find_sidecar(sidecar_path(here))
    filesystem, name = _remote(sidecar_path(path))
    try:
        with filesystem.open(name, "rb") as file:
            data = file.read(_MAX_SIDECAR_SIZE)
    except FileNotFoundError:
        raise KeyMetadataError(
            "there is no such sidecar, and only it has the file's key", file=sidecar_path(path)
        ) from None
    return Sidecar.from_bytes(data)


def _first_block(stored: int, block_size: int) -> int:
    """Return the first block that begins at or after an offset in the encrypted file."""
    return -(-max(0, stored - layout.HEADER_SIZE) // (block_size + layout.BLOCK_OVERHEAD))


def is_encrypted(name: str) -> bool:
    """Whether a file of that name, below the folder that is read, is taken for an encrypted one."""
    hidden = any(part.startswith(("_", ".")) for part in name.split("/"))
    return not hidden and not name.endswith(SUFFIX)


def list_file(path: str) -> Listed:
    """Return a file as ``list_files`` does. Raises OSError."""
    path = absolute(path)
    found = storage_of(path).statuses(path.rpartition("/")[0], 1, follow=True)(path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return Listed(path, *found)


def _remote(path: str) -> tuple[Any, str]:
    import fsspec.core

    filesystem, name = fsspec.core.url_to_fs(path)
    return filesystem, name
