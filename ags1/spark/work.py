"""What a task does: encrypt, decrypt or verify its pieces, in the executor's Python.

Each file that an attempt writes has that attempt's name, and each key that is made in a task is
made for that attempt. A piece's failure is a result, not the task's failure. What the attempt has
written is on the disk when it reports. Knows nothing of the ledger.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hmac
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from .. import layout, oneshot
from .._gcm import BlockCipher
from .._pump import Pump
from ..errors import (
    Ags1Error,
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsUnavailableError,
    TruncatedError,
)
from ..geometry import Geometry, check_length, claim_key, survey
from ..key_metadata import KeyMetadata
from ..keys.keychain import FILE_KEY_SIZE
from . import files
from .keys import FileKeys
from .planning import BLOCK_SIZE, Piece

EXPECTED = (Ags1Error, OSError, MemoryError)
# What every other file would meet as well.
KMS_UNUSABLE = (KmsUnavailableError, KmsAccessDeniedError, KmsConfigurationError)
CHANGED = "the file changed while it was read"
ALREADY_ENCRYPTED = "is encrypted already"
_SMALL = 1 << 20
_CHUNK_SIZE = 1 << 20


class Result(NamedTuple):
    """What became of a piece.

    ``staged`` is the file that holds it; ``wrapped`` is its key and ``key_id`` that key's id, where
    the task made it; sizes are bytes. ``error_kind`` is the exception's name; a piece with an
    ``error`` and no kind was passed over.
    """

    number: int
    first_block: int = 0
    source_size: int = 0
    source_mtime_ns: int = 0
    staged: str | None = None
    target_size: int = 0
    wrapped: str | None = None
    key_id: str | None = None
    plaintext_hmac: bytes | None = None
    error_kind: str | None = None
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class Work:
    """The function over a partition of tasks; picklable. ``done``, called with the bytes of each
    piece that is dealt with, feeds the progress. ``digests``: the plaintexts' HMACs are wanted."""

    keys: FileKeys
    job_id: str
    durable: bool
    done: Callable[[int], object]
    digests: bool = False

    # Whether the KEK is needed before the first piece.
    seals: ClassVar[bool] = False

    def __call__(self, tasks: Iterable[list[Piece]]) -> Iterator[list[Result]]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = f"{context.taskAttemptId():x}"
        if self.seals:
            self.keys.prepare()
        for task in tasks:
            yield self.run(task, attempt)

    def run(self, task: list[Piece], attempt: str) -> list[Result]:
        """Deal with the pieces of a task. Raises KmsError when the KMS cannot be used, and OSError
        when what was written cannot be synced."""
        results: list[Result] = []
        try:
            for piece in task:
                try:
                    results.append(self.piece(piece, f"{attempt}-{piece.number:x}"))
                except KMS_UNUSABLE:
                    raise
                except EXPECTED as error:
                    kind = type(error).__name__
                    results.append(
                        Result(
                            piece.number,
                            piece.first_block,
                            piece.source_size,
                            piece.source_mtime_ns,
                            error_kind=kind,
                            error=_message(error),
                        )
                    )
                self.done(piece.cost)
            if self.durable:
                files.sync([result.staged for result in results if result.staged])
        except BaseException:
            for result in results:
                if result.staged and not _is_shared(task, result.staged):
                    files.remove(result.staged)
            raise
        return results

    def piece(self, piece: Piece, attempt: str) -> Result:
        """Deal with one piece. Raises ``EXPECTED``."""
        raise NotImplementedError

    def staged(self, piece: Piece, attempt: str) -> str:
        """Return the name of the file that this attempt writes."""
        return files.staged_path(piece.target, self.job_id, attempt)

    @contextlib.contextmanager
    def output(self, piece: Piece, attempt: str, mode: int) -> Iterator[tuple[int, str]]:
        """Open what this attempt writes to, which is gone if that fails.

        The first attempt at a range to come writes to the file of all ranges, which needs no
        copying then. Every other one writes, at the same offset, to a file of its own: an attempt
        that was given up may still be writing.
        """
        path = self.staged(piece, attempt)
        if piece.shared is not None and _claims(claim_path(piece.shared, piece.first_block)):
            path = piece.shared
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        else:
            fd = files.create(path)
        try:
            try:
                yield fd, path
                if path != piece.shared:
                    os.fchmod(fd, mode & 0o777)
            finally:
                os.close(fd)
        except BaseException:
            if path != piece.shared:
                files.remove(path)
            raise


class Encrypting(Work):
    """Encrypts. A file of one piece gets its key here, one of several pieces brings it."""

    seals = True

    def piece(self, piece: Piece, attempt: str) -> Result:
        with _source(piece.source) as (fd, status):
            if piece.digests:
                result = Result(piece.number, -1, status.st_size, status.st_mtime_ns)
                return result._replace(plaintext_hmac=self._hmac(fd, status))
            if piece.block_count:
                return self._range(piece, attempt, fd, status)
            size = status.st_size
            digest = None
            if size <= _SMALL:
                data = _read_all(fd, size)
                if data[:4] == layout.MAGIC:
                    return _passed_over(piece, status)
                if self.digests:
                    digest = hmac.digest(self.keys.hmac_key(), data, "sha256")
                sealed, km = oneshot.encrypt(data, key_size=FILE_KEY_SIZE)
                with self.output(piece, attempt, status.st_mode) as (out, staged):
                    _check_unchanged(fd, status)
                    _write_all(out, sealed)
            else:
                if os.pread(fd, 4, 0) == layout.MAGIC:
                    return _passed_over(piece, status)
                km = KeyMetadata.generate(FILE_KEY_SIZE)
                claim_key(km, reuse_key=False)
                with self.output(piece, attempt, status.st_mode) as (out, staged):
                    os.pwrite(out, layout.build_header(BLOCK_SIZE), 0)
                    _pump(fd, out, km, 0, size, sealing=True)
                    digest = self._hmac(fd, status) if self.digests else None
                    _check_unchanged(fd, status)
                km = km.with_file_length(layout.encrypted_size(size, BLOCK_SIZE))
        assert km.file_length is not None
        document = self.keys.wrap(km)
        done = _done(piece, status, staged, km.file_length)
        return done._replace(
            wrapped=as_text(document), key_id=document["key-id"], plaintext_hmac=digest
        )

    def _hmac(self, fd: int, status: os.stat_result) -> bytes:
        digest = hmac.new(self.keys.hmac_key(), digestmod="sha256")
        room = memoryview(bytearray(_CHUNK_SIZE))
        offset = 0
        while count := os.preadv(fd, [room], offset):
            digest.update(room[:count])
            offset += count
        _check_unchanged(fd, status)
        return digest.digest()

    def _range(self, piece: Piece, attempt: str, fd: int, status: os.stat_result) -> Result:
        # The key is for the content that there was when it was made.
        if (status.st_size, status.st_mtime_ns) != (piece.source_size, piece.source_mtime_ns):
            raise Ags1Error(CHANGED)
        assert piece.wrapped is not None
        km = self.keys.unwrap(piece.wrapped)
        size = status.st_size
        encrypted_size = layout.encrypted_size(size, BLOCK_SIZE)
        geometry = Geometry(BLOCK_SIZE, size, encrypted_size)
        text_size = geometry.text_size(piece.first_block, piece.block_count)
        with self.output(piece, attempt, status.st_mode) as (out, staged):
            _pump(fd, out, km, piece.first_block, text_size, sealing=True)
            _check_unchanged(fd, status)
        return _done(piece, status, staged, encrypted_size)


class Opening(Work):
    """Verifies, and in ``Decrypting`` writes what was verified."""

    def piece(self, piece: Piece, attempt: str) -> Result:
        assert piece.wrapped is not None
        km = self.keys.unwrap(piece.wrapped)
        with _source(piece.source) as (fd, status):
            header = os.pread(fd, layout.HEADER_SIZE, 0)
            if len(header) == layout.HEADER_SIZE:
                layout.parse_header(header)
            length = check_length(status.st_size, km, trust_file_size=False)
            # As Iceberg's readers do: the header is under no tag.
            geometry = survey(header, length, block_size=BLOCK_SIZE)
            staged = self._open(piece, attempt, fd, status, km, geometry)
        return _done(piece, status, staged, geometry.plaintext_size)

    def _open(
        self,
        piece: Piece,
        attempt: str,
        fd: int,
        status: os.stat_result,
        km: KeyMetadata,
        geometry: Geometry,
    ) -> str | None:
        self.pump(piece, fd, -1, km, geometry)
        return None

    def pump(self, piece: Piece, fd: int, out: int, km: KeyMetadata, geometry: Geometry) -> None:
        """Verify the blocks of a piece, and write them where there is an ``out``."""
        count = piece.block_count or geometry.block_count
        if piece.first_block + count > geometry.block_count:
            raise Ags1Error("the file is not as long as the ledger says")
        if count:
            text_size = geometry.text_size(piece.first_block, count)
            _pump(fd, out, km, piece.first_block, text_size, sealing=False)


class Verifying(Opening):
    """Verifies every block and writes nothing."""


class Decrypting(Opening):
    """Decrypts: no block is written before its tag is verified."""

    def _open(
        self,
        piece: Piece,
        attempt: str,
        fd: int,
        status: os.stat_result,
        km: KeyMetadata,
        geometry: Geometry,
    ) -> str | None:
        with self.output(piece, attempt, status.st_mode) as (out, staged):
            self.pump(piece, fd, out, km, geometry)
        return staged


def as_text(wrapped: dict[str, Any]) -> str:
    """Return the document of a wrapped key as a task and the ledger have it."""
    return json.dumps(wrapped, separators=(",", ":"))


def claim_path(shared: str, first_block: int) -> str:
    """Return the name of the file whose creation gives an attempt a range of a shared file."""
    stem, suffix = os.path.splitext(shared)
    return f"{stem}-claim{first_block:x}{suffix}"


def _claims(path: str) -> bool:
    try:
        os.close(files.create(path))
    except FileExistsError:
        return False
    return True


def _is_shared(task: list[Piece], path: str) -> bool:
    return any(piece.shared == path for piece in task)


@contextlib.contextmanager
def _source(path: str) -> Iterator[tuple[int, os.stat_result]]:
    # Without O_NONBLOCK, opening a pipe that nobody writes to would hang.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", path)
        yield fd, status
    finally:
        os.close(fd)


def _read_all(fd: int, size: int) -> bytes:
    """Return a file's bytes. Raises Ags1Error when it has not ``size`` of them."""
    data = os.read(fd, size + 1)
    if len(data) < size:
        parts = [data]
        while part := os.read(fd, size + 1):
            parts.append(part)
        data = b"".join(parts)
    if len(data) != size:
        raise Ags1Error(CHANGED)
    return data


def _write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])


def _check_unchanged(fd: int, status: os.stat_result) -> None:
    after = os.fstat(fd)
    if (after.st_size, after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
        raise Ags1Error(CHANGED)


def _pump(
    source: int, target: int, km: KeyMetadata, first_block: int, text_size: int, *, sealing: bool
) -> None:
    cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=BLOCK_SIZE)
    with contextlib.closing(Pump(source, target)) as pump:
        if not sealing:
            pump.open(cipher, first_block, text_size)
            return
        try:
            pump.seal(cipher, first_block, text_size)
        except TruncatedError:
            raise Ags1Error(CHANGED) from None


def _done(piece: Piece, status: os.stat_result, staged: str | None, target_size: int) -> Result:
    return Result(
        piece.number,
        piece.first_block,
        status.st_size,
        status.st_mtime_ns,
        staged,
        target_size,
    )


def _passed_over(piece: Piece, status: os.stat_result) -> Result:
    return Result(piece.number, 0, status.st_size, status.st_mtime_ns, error=ALREADY_ENCRYPTED)


def _message(error: BaseException) -> str:
    if isinstance(error, Ags1Error):
        return error.message
    if isinstance(error, OSError):
        cause = error.strerror or str(error)
        # The pump names its descriptors; whoever reads knows the source.
        return f"{cause} (writing)" if error.filename == "target" else cause
    return "not enough memory"
