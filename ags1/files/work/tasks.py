"""The work of a task: it encrypts, decrypts or verifies its pieces, in any process.

Each attempt writes files under its own name and makes its own keys. A piece that fails is a result,
and does not fail the task. When an attempt reports, its files are synced. This module does not know
the ledger.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, NamedTuple

from ...engine import layout, oneshot
from ...engine.geometry import Geometry, claim_key, file_geometry
from ...engine.key_metadata import KeyMetadata
from ...errors import KMS_UNUSABLE, Ags1Error
from ...host.pools import CancellingPool
from ...host.runners import this_attempt
from ...keys.keychain import FILE_KEY_SIZE
from ...keys.sidecar import START_SIZE, first_nonce
from ..keys import FileKeys, as_text
from ..paths import local_path
from ..staging import local_files, marks
from ..staging.pieces import BLOCK_SIZE, Item, Piece, target_offset
from ..staging.places import open_storage
from ..staging.protocol import CHANGED, Attempt, JobEndedError, Output, Source
from .blocks import open_blocks, seal

EXPECTED = (Ags1Error, OSError, MemoryError)
ALREADY_ENCRYPTED = "is encrypted already"
# Errors of the target's file system: every other file would fail, too.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
WRONG_LENGTH = "the file is not as long as the ledger says: it was cut or replaced"
_SMALL = 1 << 20
# Pieces of a task at a time, if each one mostly waits for a remote storage.
_SIDE_BY_SIDE = 8


class Result(NamedTuple):
    """The result for a piece. ``staged`` tells the target's storage where the bytes are.
    ``wrapped`` and ``key_id`` are the wrapped key and its id, if the task made a key. Sizes are
    bytes. ``nonce`` is the first block's, if the task wrote that. ``error_kind`` is the
    exception's name; a piece with an ``error`` and no kind was
    skipped. ``errno`` is that of an OSError."""

    number: int
    first_block: int = 0
    source_size: int = 0
    source_version: str = ""
    staged: str | None = None
    target_size: int = 0
    wrapped: str | None = None
    key_id: str | None = None
    nonce: bytes | None = None
    error_kind: str | None = None
    error: str | None = None
    errno: int = 0


@dataclasses.dataclass(frozen=True)
class Work:
    """The function that a ``Runner`` calls with tasks; picklable. ``first_attempt`` is how often
    these pieces were tried before. ``root`` is the folder that has the job's mark."""

    keys: FileKeys
    job_id: str
    durable: bool
    first_attempt: int = 0
    root: str | None = None

    # Whether the KEK is needed before the first piece, and whether files are written.
    seals: ClassVar[bool] = False
    writes: ClassVar[bool] = False

    def __call__(self, tasks: Iterable[list[Piece]]) -> Iterator[list[Result]]:
        name, number = this_attempt.get()
        if self.seals:
            self.keys.prepare()
        for task in tasks:
            yield self.run(task, Attempt(self.job_id, name, self.first_attempt + number, self.root))

    def run(self, task: list[Piece], attempt: Attempt) -> list[Result]:
        """Deal with the pieces of a task. Raises KmsError when the KMS cannot be used, OSError when
        what was written cannot be synced, and JobEndedError. Then nothing is left, except what
        attempts share."""
        results: list[Result] = []
        # All targets of a job are in one storage.
        storage = open_storage(task[0].target)
        try:
            for result in self._results(task, attempt):
                results.append(result)
            if self.writes:
                marks.check(storage, attempt, now=True)
                if self.durable and not storage.is_remote:
                    local_files.sync([r.staged for r in results if r.staged])
        except BaseException as error:
            pieces = {piece.number: piece for piece in task}
            for result in results:
                piece = pieces[result.number]
                if result.staged is not None and result.staged != piece.shared:
                    storage.discard(piece.target, None, [(0, result.staged)], whole=True)
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                return [failed(piece, piece.first_block, error) for piece in task]
            raise
        return results

    def _results(self, task: list[Piece], attempt: Attempt) -> Iterator[Result]:
        paths = [task[0].target, *(piece.source for piece in task)]
        if not any(open_storage(path).is_remote for path in paths):
            no_room: Result | None = None
            for piece in task:
                if no_room is not None:
                    yield no_room._replace(number=piece.number, first_block=piece.first_block)
                    continue
                result = self._result(piece, attempt)
                if result.errno in NO_ROOM:
                    no_room = result
                yield result
            return
        with CancellingPool(_SIDE_BY_SIDE, "ags1-piece") as pool:
            futures = [pool.submit(self._result, piece, attempt) for piece in task]
            wait(futures, return_when=FIRST_EXCEPTION)
        ended = [future for future in futures if not future.cancelled()]
        # An exception is raised last, so that the caller has all results.
        for future in sorted(ended, key=lambda future: future.exception() is not None):
            yield future.result()

    def _result(self, piece: Piece, attempt: Attempt) -> Result:
        try:
            name = f"{attempt.name}-{piece.number:x}"
            return self.piece(piece, attempt._replace(name=name))
        except (*KMS_UNUSABLE, JobEndedError):
            raise
        except EXPECTED as error:
            return failed(piece, piece.first_block, error)

    def piece(self, piece: Piece, attempt: Attempt) -> Result:
        """Do one piece. Raises ``EXPECTED``."""
        raise NotImplementedError

    def source(self, piece: Piece) -> AbstractContextManager[Source]:
        """Open the source of a piece."""
        storage = open_storage(piece.source)
        return storage.open(piece.source, piece.source_size, piece.source_version)

    def output(
        self, piece: Piece, attempt: Attempt, source: Source
    ) -> AbstractContextManager[Output]:
        """Open what an attempt writes to; if writing fails, it is removed."""
        begin = target_offset(piece.first_block, seals=self.seals)
        return open_storage(piece.target).output(piece, attempt, source.mode, begin)


class Encrypting(Work):
    """Encrypts. A file of one piece gets its key here; one of several pieces comes with its key."""

    seals = True
    writes = True

    def piece(self, piece: Piece, attempt: Attempt) -> Result:
        with self.source(piece) as source:
            if not piece.block_count:
                return self._whole(piece, attempt, source)
            # The key belongs to the content that the file had when it was cut.
            facts = (source.size, source.version, file_identity(source))
            if facts != (piece.source_size, piece.source_version, piece.source_identity):
                raise Ags1Error(CHANGED)
            return self._range(piece, attempt, source)

    def _whole(self, piece: Piece, attempt: Attempt, source: Source) -> Result:
        size = source.size
        if size <= _SMALL:
            data = source.read(0, size + (source.fd >= 0))
            if len(data) != size:
                raise Ags1Error(CHANGED)
            if data[:4] == layout.MAGIC:
                return _skipped(piece, source)
            sealed, key_metadata = oneshot.encrypt(data, key_size=FILE_KEY_SIZE)
            with self.output(piece, attempt, source) as out:
                source.check_unchanged()
                out.write(sealed)
            nonce = first_nonce(sealed[:START_SIZE])
        else:
            if source.read(0, len(layout.MAGIC)) == layout.MAGIC:
                return _skipped(piece, source)
            key_metadata = KeyMetadata.generate(FILE_KEY_SIZE)
            claim_key(key_metadata, reuse_key=False)
            geometry = _geometry_of(size)
            with self.output(piece, attempt, source) as out:
                blocks = range(geometry.block_count)
                nonce = seal(source, out, key_metadata, geometry, blocks, piece.unit)
                source.check_unchanged()
            key_metadata = key_metadata.with_file_length(geometry.encrypted_size)
        assert key_metadata.file_length is not None
        document = self.keys.wrap(key_metadata, nonce)
        return _done(piece, source, out.staged, key_metadata.file_length)._replace(
            wrapped=as_text(document), key_id=document["key-id"]
        )

    def _range(self, piece: Piece, attempt: Attempt, source: Source) -> Result:
        if not piece.first_block and source.read(0, len(layout.MAGIC)) == layout.MAGIC:
            return _skipped(piece, source)
        assert piece.wrapped is not None
        key_metadata = self.keys.unwrap(piece.wrapped)
        geometry = _geometry_of(source.size)
        blocks = range(piece.first_block, piece.first_block + piece.block_count)
        with self.output(piece, attempt, source) as out:
            nonce = seal(source, out, key_metadata, geometry, blocks, piece.unit)
            source.check_unchanged()
        result = _done(piece, source, out.staged, geometry.encrypted_size)
        return result._replace(nonce=nonce)


class Verifying(Work):
    """Verifies every block. ``Decrypting`` also writes what was verified."""

    def piece(self, piece: Piece, attempt: Attempt) -> Result:
        assert piece.wrapped is not None
        with self.source(piece) as source:
            # The piece was cut by that size.
            if source.size != piece.source_size:
                raise Ags1Error(CHANGED)
            start = source.read(0, min(START_SIZE, source.size))
            key_metadata = self.keys.unwrap(piece.wrapped, first_nonce(start))
            header = start[: layout.HEADER_SIZE]
            # As in Iceberg's readers the block size is fixed: no tag protects the header.
            geometry = file_geometry(header, source.size, key_metadata, block_size=BLOCK_SIZE)
            count = piece.block_count or geometry.block_count
            blocks = range(piece.first_block, piece.first_block + count)
            if blocks.stop > geometry.block_count:
                raise Ags1Error(WRONG_LENGTH)
            writing = self.output(piece, attempt, source) if self.writes else nullcontext()
            with writing as out:
                if blocks:
                    open_blocks(source, out, key_metadata, geometry, blocks, piece.unit)
        return _done(piece, source, None if out is None else out.staged, geometry.plaintext_size)


class Decrypting(Verifying):
    """Decrypts. No block is written before its tag is verified."""

    writes = True


def file_identity(source: Source | str) -> str:
    """Return what tells a local file, or the file at a local path, from every other one: no program
    can set it. Raises OSError."""
    here = local_path(source) if isinstance(source, str) else source.fd
    if here is None or here == -1:
        return ""
    status = os.stat(here)
    return f"{status.st_ino}-{status.st_ctime_ns}"


def _geometry_of(size: int) -> Geometry:
    return Geometry(BLOCK_SIZE, size, layout.encrypted_size(size, BLOCK_SIZE))


def failed(of: Item | Piece, first_block: int, error: BaseException) -> Result:
    """Return the result for a file or a piece of it whose work has raised ``error``."""
    result = Result(of.number, first_block, of.source_size, of.source_version)
    number = (error.errno or 0) if isinstance(error, OSError) else 0
    return result._replace(error_kind=type(error).__name__, error=cause(error), errno=number)


def _done(piece: Piece, source: Source, staged: str | None, target_size: int) -> Result:
    return Result(piece.number, piece.first_block, source.size, source.version, staged, target_size)


def _skipped(piece: Piece, source: Source) -> Result:
    return Result(piece.number, 0, source.size, source.version, error=ALREADY_ENCRYPTED)


def cause(error: BaseException) -> str:
    """Return what to write in the ledger about an error."""
    if isinstance(error, Ags1Error):
        return error.message
    if isinstance(error, OSError):
        text = error.strerror or str(error)
        # The pump names its descriptors. The reader of the ledger knows the source.
        return f"{text} (writing)" if error.filename == "target" else text
    if isinstance(error, MemoryError):
        return "not enough memory"
    return str(error) or type(error).__name__
