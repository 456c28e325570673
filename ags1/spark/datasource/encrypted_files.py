"""Encrypted files and their parts.

The driver lists files and cuts them by their stored bytes, without opening one. A task opens a file
with the keys of its sidecar, and reads the blocks that begin in its part. So each block is in one
part, whatever the block size. Local files are read by their paths, others through fsspec.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from ...engine import layout
from ...engine.reader import Reader
from ...errors import Ags1Error, FormatError, KeyMetadataError
from ...files.keys import FileKeys
from ...files.paths import SUFFIX, local_path
from ...files.sidecars import sidecar_bytes
from ...files.staging.places import absolute, find, open_storage
from ...files.staging.protocol import REQUESTS, SourceFile
from ...files.storage.protocol import status_of_file
from ...host.pools import map_in_threads
from ...keys.keychain import find_sidecar, key_of_file
from ...keys.sidecar import SUFFIX as KEYS
from ...keys.sidecar import Sidecar, sidecar_path
from ..splits import grouped

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Part:
    """The blocks that begin in a range of a file's stored bytes. ``sidecar`` is the document with
    the file's wrapped key, if that is not in a sidecar beside the file."""

    file: SourceFile
    begin: int
    end: int
    sidecar: str | None = None

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class OpenPart:
    """An open part of a file; ``begin`` and ``end`` are offsets in the plaintext."""

    path: str
    reader: Reader
    begin: int
    end: int


def list_files(paths: Sequence[str]) -> list[SourceFile]:
    """Return the encrypted files of files, folders and patterns. Folders are searched with all
    below them. Names that begin with ``_`` or ``.`` are unfinished files, and names in ``.keys``
    are sidecars; any other file is taken for an encrypted one, and so is a file that is given
    itself. Raises FileNotFoundError for a path without any file, OSError."""
    listed = _found(paths)
    named = frozenset(map(absolute, paths))
    return [file for file in listed if file.path in named or is_encrypted(file.relative_path)]


def encrypted_below(folder: str, known: Collection[str]) -> list[str]:
    """Return the files below a folder that are certainly encrypted: those that are ``known``, and
    those that begin as they must and have a sidecar or the suffix of a job's targets. Other files
    may belong to another program. Raises FileNotFoundError if the folder does not exist, OSError,
    Ags1Error."""
    listed = _found([folder])
    files = [file for file in listed if is_encrypted(file.relative_path)]
    names = {file.path for file in listed}
    others = (file for file in files if file.path not in known)
    likely = [f for f in others if f.path.endswith(SUFFIX) or sidecar_path(f.path) in names]
    looked_at = zip(likely, map_in_threads(REQUESTS, _begins_encrypted, likely), strict=True)
    certain = [file.path for file, is_ours in looked_at if is_ours]
    return [file.path for file in files if file.path in known] + certain


def _found(paths: Sequence[str]) -> list[SourceFile]:
    listing = find(paths)
    for _, error in listing.problems:
        raise error
    return list(listing.files)


def _begins_encrypted(file: SourceFile) -> bool:
    try:
        with open_storage(file.path).open(file.path, file.size, file.version) as source:
            return source.read(0, len(layout.MAGIC)) == layout.MAGIC
    except FileNotFoundError:
        return False


def plan(
    files: Sequence[SourceFile],
    part_size: int,
    sidecars: Mapping[str, str] = _NONE,
    *,
    cuts: bool = True,
) -> list[list[Part]]:
    """Return the parts for each task: a large file in several parts if ``cuts``, several small
    files together. ``sidecars`` has the documents of sidecars by the files' paths."""
    cut_size = part_size if cuts else sys.maxsize
    return list(grouped(((_parts(f, cut_size, sidecars), f.size) for f in files), part_size))


def _parts(file: SourceFile, part_size: int, sidecars: Mapping[str, str]) -> list[Part]:
    count = max(1, round(file.size / part_size))
    bounds = [file.size * n // count for n in range(count + 1)]
    return [Part(file, a, b, sidecars.get(file.path)) for a, b in pairwise(bounds)]


@contextlib.contextmanager
def open_part(part: Part, keys: FileKeys) -> Iterator[OpenPart]:
    """Open a part of a file with the keys in its sidecar. Raises KeyMetadataError if the sidecar is
    missing or invalid, KmsError, AuthenticationError, TruncatedError, OSError, and FormatError,
    also if the file was replaced since it was listed."""
    path = part.file.path
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(_open(part, keys, stack))
        # Other tasks may have read parts of the old file.
        if list_file(path)[2:] != part.file[2:]:
            raise FormatError("the file was replaced since the job began: run it again", file=path)
        size = end = reader.plaintext_size
        begin = min(size, _first_block(part.begin, reader.block_size) * reader.block_size)
        if part.end < part.file.size:
            end = min(size, _first_block(part.end, reader.block_size) * reader.block_size)
        try:
            if size and len(part) < part.file.size:
                # The header says which blocks are in the part, and no tag protects it. But the
                # first block authenticates only if the block size is right.
                reader.pread(0, 1)
            yield OpenPart(path, reader, begin, end)
        except Ags1Error as error:
            error.file = path
            raise


def open_whole(
    file: SourceFile, keys: FileKeys, sidecars: Mapping[str, str] = _NONE
) -> contextlib.AbstractContextManager[OpenPart]:
    """Open all of a file. Raises as ``open_part``."""
    return open_part(Part(file, 0, file.size, sidecars.get(file.path)), keys)


def _open(part: Part, keys: FileKeys, stack: contextlib.ExitStack) -> Reader:
    path = part.file.path
    here = local_path(path)
    source: Any = here
    if here is None:
        import fsspec.core  # optional

        filesystem, name = fsspec.core.url_to_fs(path)
        source = stack.enter_context(filesystem.open(name, "rb"))
    sidecar = Sidecar.from_bytes(part.sidecar.encode()) if part.sidecar else _sidecar(path)
    try:
        return Reader(source, key_of_file(sidecar, keys.unwrap_kek, source))
    except Ags1Error as error:
        error.file = path
        raise


def _sidecar(path: str) -> Sidecar:
    here = local_path(path)
    if here is not None:
        return find_sidecar(sidecar_path(here))
    try:
        return Sidecar.from_bytes(sidecar_bytes(open_storage(path), sidecar_path(path)))
    except FileNotFoundError:
        message = (
            "there is no such sidecar, and only it has the file's key (see the option 'ledger')"
        )
        raise KeyMetadataError(message, file=sidecar_path(path)) from None


def _first_block(stored: int, block_size: int) -> int:
    """Return the first block that begins at or after an offset in the encrypted file."""
    return -(-max(0, stored - layout.HEADER_SIZE) // (block_size + layout.BLOCK_OVERHEAD))


def is_encrypted(name: str) -> bool:
    """Whether a file of that name below a folder is taken for an encrypted one."""
    hidden = any(part.startswith(("_", ".")) for part in name.split("/"))
    return not hidden and not name.endswith(KEYS)


def list_file(path: str) -> SourceFile:
    """Return one file as ``list_files`` does. Raises OSError."""
    path = absolute(path)
    return SourceFile(path, os.path.basename(path), *status_of_file(open_storage(path), path))


def list_if_there(path: str) -> SourceFile | None:
    """Return one file, None if it does not exist. Raises OSError."""
    try:
        return list_file(path)
    except FileNotFoundError:
        return None
