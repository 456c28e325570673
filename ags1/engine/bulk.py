"""Whole files: ``encrypt_file``, ``decrypt_file``, ``verify_file``. Room for a large target is set
aside on the disk first.

A file is divided into contiguous ranges of blocks, one for each thread. A thread works from
descriptor to descriptor without the GIL (``_pump``). The calling thread waits, reports progress and
handles Ctrl-C. A target gets its name when it is complete. If anything fails, no target is left.
A target that is a pipe or a device is written from its beginning to its end, as by ``open``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
from collections.abc import Callable
from typing import Any, TypeAlias

from ..errors import Ags1Error, TruncatedError
from ..host.atomic import AtomicFile
from ..host.descriptors import is_new, is_stream, open_stream
from ..host.regular_file import RegularFile, regular_file
from ..host.threads import check_threads, run_in_threads, thread_count
from . import layout
from ._gcm import BlockCipher
from ._pump import Pump, allocate
from .geometry import DEFAULT_MAX_BLOCK_SIZE, Geometry, check_unused, claim_key, file_geometry
from .key_metadata import KeyMetadata
from .reader import Reader
from .writer import Writer

Path: TypeAlias = "str | os.PathLike[str]"
Progress: TypeAlias = Callable[[int, int], object]

# Up to these sizes (bytes) the calling thread does the work itself, because starting threads costs
# more than they save. One thread besides the caller's only makes Ctrl-C take effect sooner.
SMALL_FILE = 4 << 20
SMALL_FILE_ALONE = 16 << 20
_CHUNK_SIZE = 1 << 20

_CHANGED = (
    "the file changed while it was read, or the system reports a wrong size for it: encrypt a copy "
    "of the file"
)


def encrypt_file(
    source: Path,
    target: Path,
    *,
    km: KeyMetadata | None = None,
    key_size: int = 32,
    block_size: int = layout.DEFAULT_BLOCK_SIZE,
    threads: int | None = None,
    durable: bool = True,
    overwrite: bool = False,
    reuse_key: bool = False,
    progress: Progress | None = None,
) -> KeyMetadata:
    """Encrypt the file ``source`` as ``target``; return the key metadata with the file's length.

    ``km``, ``key_size``, ``block_size`` (bytes) and ``reuse_key`` are as in ``encrypt``.
    ``threads`` is by default one for each CPU available to the process. ``durable`` syncs file and
    folder. The target gets the source's permission bits, less the umask. ``progress(done, total)``
    is called with plaintext bytes, about ten times a second, in the calling thread. If it raises,
    the call ends with that exception.

    If the target is a pipe, a device or an open file of this process (``/dev/fd/N``), it is written
    as a stream, also without ``overwrite``. If the call fails, the stream ends as after ``open``.

    If the file system supports it, the whole size of a target above 1 MiB is reserved first, so
    that a full disk is an OSError at once. Raises KeyReuseError, FileExistsError unless
    ``overwrite``, shutil.SameFileError, OSError with its filename, and Ags1Error if the source
    changes meanwhile.
    """
    if km is None:
        km = KeyMetadata.generate(key_size)
    if threads is not None:
        check_threads(threads)
    check_unused(km, reuse_key=reuse_key)
    options: Any = {"block_size": block_size, "reuse_key": reuse_key}
    with regular_file(source) as opened:
        fd, status = opened.fd, opened.status
        new = is_new(target)
        if not new:
            _refuse_same_file(source, status, target)
        if not new and is_stream(target):
            with (
                open_stream(target, overwrite=overwrite) as stream,
                Writer(stream, km, threads=thread_count(threads), **options) as w,
            ):
                copy_through(io.FileIO(fd, closefd=False), w.write, progress, status.st_size)
                _check_unchanged(source, fd, status)
            return w.key_metadata
        mode = status.st_mode
        with AtomicFile(target, overwrite=overwrite, durable=durable, mode=mode, new=new) as out:
            return encrypt_opened(opened, out, km, threads=threads, progress=progress, **options)


def encrypt_opened(
    source: RegularFile,
    out: AtomicFile,
    km: KeyMetadata,
    *,
    block_size: int,
    threads: int | None,
    reuse_key: bool = False,
    progress: Progress | None = None,
) -> KeyMetadata:
    """Encrypt an open file into ``out``. Arguments and errors as in ``encrypt_file``."""
    fd, size = source.fd, source.status.st_size
    cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=block_size)
    geometry = Geometry(block_size, size, layout.encrypted_size(size, block_size))
    with _NamedErrors(source, out.name), _pump(fd, out.fd, size, durable=out.durable) as pump:
        _reserve(out.fd, geometry.encrypted_size)
        claim_key(km, reuse_key=reuse_key)
        try:
            _transfer(pump, functools.partial(pump.seal, cipher), geometry, threads, progress)
        except TruncatedError:
            raise Ags1Error(_CHANGED) from None
    _check_unchanged(source, fd, source.status)
    return km.with_file_length(geometry.encrypted_size)


def decrypt_file(
    source: Path,
    target: Path,
    km: KeyMetadata,
    *,
    threads: int | None = None,
    durable: bool = True,
    overwrite: bool = False,
    block_size: int | None = None,
    max_block_size: int = DEFAULT_MAX_BLOCK_SIZE,
    trust_file_size: bool = False,
    progress: Progress | None = None,
) -> int:
    """Decrypt the file ``source`` as ``target``; return the plaintext's size in bytes.

    No block is written before its tag is verified. The target gets its name after the last block,
    and the source's permission bits, less the umask. A pipe, a device or an open file of this
    process is written as a stream, block by block. Arguments as in ``encrypt_file`` and
    ``decrypt``. Raises AuthenticationError, TruncatedError, FormatError, MissingFileLengthError,
    FileExistsError, shutil.SameFileError and OSError.
    """
    with regular_file(source) as opened:
        fd, status = opened.fd, opened.status
        new = is_new(target)
        if not new:
            _refuse_same_file(source, status, target)
        with _NamedErrors(source, target):
            header = os.pread(fd, layout.HEADER_SIZE, 0)
            geometry = file_geometry(
                header, status.st_size, km, block_size, max_block_size, trust_file_size
            )
        if not new and is_stream(target):
            options: Any = {"block_size": geometry.block_size, "threads": thread_count(threads)}
            options |= {"max_block_size": max_block_size, "trust_file_size": trust_file_size}
            with (
                Reader(opened, km, **options) as r,
                open_stream(target, overwrite=overwrite) as stream,
            ):
                copy_through(r, stream.write, progress, r.plaintext_size)
            return r.plaintext_size
        cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=geometry.block_size)
        mode = status.st_mode
        with AtomicFile(target, overwrite=overwrite, durable=durable, mode=mode, new=new) as out:
            size = geometry.plaintext_size
            with _NamedErrors(source, target), _pump(fd, out.fd, size, durable=durable) as pump:
                _reserve(out.fd, size)
                open_ = functools.partial(pump.open, cipher)
                _transfer(pump, open_, geometry, threads, progress)
    return geometry.plaintext_size


def verify_file(
    source: Path,
    km: KeyMetadata,
    *,
    threads: int | None = None,
    block_size: int | None = None,
    max_block_size: int = DEFAULT_MAX_BLOCK_SIZE,
    trust_file_size: bool = False,
    progress: Progress | None = None,
) -> int:
    """Authenticate every block of the file ``source``; return the plaintext's size in bytes.
    Nothing is written or decrypted. Arguments and errors as in ``decrypt_file``."""
    with regular_file(source) as (fd, status, _), _NamedErrors(source, source):
        header = os.pread(fd, layout.HEADER_SIZE, 0)
        geometry = file_geometry(
            header, status.st_size, km, block_size, max_block_size, trust_file_size
        )
        cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=geometry.block_size)
        with _pump(fd, -1, geometry.plaintext_size) as pump:
            _transfer(pump, functools.partial(pump.open, cipher), geometry, threads, progress)
    return geometry.plaintext_size


def _check_unchanged(source: Path, fd: int, before: os.stat_result) -> None:
    after = os.fstat(fd)
    size = before.st_size
    # Files in /proc report a size of 0, and have content all the same.
    if (after.st_size, after.st_mtime_ns) != (size, before.st_mtime_ns) or os.pread(fd, 1, size):
        raise Ags1Error(_CHANGED, file=os.fsdecode(source))


def copy_through(
    source: Any,
    write: Callable[[memoryview], object],
    progress: Progress | None,
    total: int,
    length: int | None = None,
) -> int:
    """Hand ``length`` bytes of a file object (None: to its end) on to ``write``, and return how
    many there were. ``total`` (bytes) is for ``progress``."""
    chunk = memoryview(bytearray(_CHUNK_SIZE))
    done = 0
    while got := source.readinto(chunk if length is None else chunk[: length - done]):
        write(chunk[:got])
        done += got
        if progress is not None:
            progress(done, total)
    return done


def _refuse_same_file(source: Path, status: os.stat_result, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(status, os.stat(target)):
            raise shutil.SameFileError(
                f"{os.fsdecode(source)} and {os.fsdecode(target)} are the same file"
            )


class _NamedErrors:
    """Names the caller's files in the errors that Pump raises in a ``with`` block."""

    __slots__ = ("_source", "_target")

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Ags1Error):
            error.file = error.file or os.fsdecode(self._source)
        elif isinstance(error, OSError):
            paths = {"source": self._source, "target": self._target}
            if error.filename in paths:
                path = os.fsdecode(paths[error.filename])
                raise OSError(error.errno, error.strerror, path) from None


def _pump(source: int, target: int, size: int, *, durable: bool = False) -> Pump:
    """Return what transfers ``size`` bytes of plaintext; only the caller's thread does if they are
    few."""
    return Pump(source, target, durable=durable, shared=size > SMALL_FILE)


def _reserve(fd: int, size: int) -> None:
    """Reserve the target's room on the disk. What one call writes needs no reservation: if there is
    no room, that call says so."""
    try:
        if size > _CHUNK_SIZE:
            allocate(fd, size)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "target") from None


def _transfer(
    pump: Pump,
    work: Callable[[int, int], object],
    geometry: Geometry,
    threads: int | None,
    progress: Progress | None,
) -> None:
    """Call ``work(first block, text size)`` for contiguous ranges of blocks, one per thread."""
    if threads is None and geometry.plaintext_size <= SMALL_FILE:
        threads = 1  # to ask how many there could be takes time
    threads = thread_count(threads)
    share = -(-geometry.block_count // threads)

    def transfer(first: int) -> None:
        try:
            work(first, geometry.text_size(first, share))
        except BaseException:
            pump.stop()
            raise

    def report() -> None:
        if progress is not None:
            progress(pump.bytes_done, geometry.plaintext_size)

    if geometry.plaintext_size > (SMALL_FILE if threads > 1 else SMALL_FILE_ALONE):
        run_in_threads(transfer, range(0, geometry.block_count, share), pump.stop, report)
    elif geometry.block_count:
        work(0, geometry.plaintext_size)
    if progress is not None:
        progress(geometry.plaintext_size, geometry.plaintext_size)
