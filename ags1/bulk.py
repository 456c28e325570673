"""Whole files: ``encrypt_file``, ``decrypt_file``, ``verify_file``.

A file is cut into contiguous ranges of blocks, one a thread, and each goes from descriptor to
descriptor without the GIL. The calling thread waits, reports progress and hears Ctrl-C. A target
appears under its name when all of it is right, and is not there otherwise. Knows nothing of
Iceberg or of wrapped keys.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from . import layout
from ._gcm import BlockCipher
from ._pump import Pump
from .atomic import AtomicFile
from .cpu import usable_cpus
from .errors import Ags1Error, TruncatedError
from .geometry import (
    DEFAULT_MAX_BLOCK_SIZE,
    Geometry,
    check_unused,
    claim_key,
    file_geometry,
)
from .key_metadata import KeyMetadata

Path: TypeAlias = "str | os.PathLike[str]"
Progress: TypeAlias = Callable[[int, int], object]

PROGRESS_SECONDS = 0.1
# A thread costs more than it saves on less than this.
SMALL_FILE = 4 << 20

_CHANGED = "the file changed while it was read, or its size is not what the system says"


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

    A fresh key of ``key_size`` bytes is made unless ``km`` gives one that has sealed no file yet
    (``reuse_key`` insists). Java and iceberg-rust read no other ``block_size`` (bytes) than the
    default. ``threads`` is by default one for each CPU that we may use. ``durable`` syncs file and
    folder. The target gets the source's permission bits. ``progress(done, total)`` is called with
    plaintext bytes, about ten times a second, in the calling thread; what it raises ends the call.

    Raises KeyReuseError, FileExistsError unless ``overwrite``, shutil.SameFileError, OSError with
    its filename, and Ags1Error when the source changes meanwhile.
    """
    if km is None:
        km = KeyMetadata.generate(key_size)
    check_unused(km, reuse_key=reuse_key)
    cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=block_size)
    with _source(source) as (fd, status):
        size = status.st_size
        geometry = Geometry(block_size, size, layout.encrypted_size(size, block_size))
        _refuse_same_file(source, status, target)
        mode = stat.S_IMODE(status.st_mode)
        with AtomicFile(target, overwrite=overwrite, durable=durable, mode=mode) as out:

            def seal(pump: Pump, first: int, text_size: int) -> None:
                try:
                    pump.seal(cipher, first, text_size)
                except TruncatedError:
                    raise Ags1Error(_CHANGED) from None

            claim_key(km, reuse_key=reuse_key)
            with _name_errors(source, target):
                _write_header(out.fd, block_size)
                _share_out(seal, lambda: Pump(fd, out.fd), geometry, threads, progress)
            after = os.fstat(fd)
            # Files of the kernel's (/proc) have no size and hold something all the same.
            if (after.st_size, after.st_mtime_ns) != (size, status.st_mtime_ns) or os.pread(
                fd, 1, size
            ):
                raise Ags1Error(_CHANGED, file=os.fsdecode(source))
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

    No block is written before its tag is verified, and the target's name appears after the last.
    Arguments as in ``encrypt_file`` and ``decrypt``. Raises AuthenticationError, TruncatedError,
    FormatError, MissingFileLengthError, FileExistsError, shutil.SameFileError and OSError.
    """
    with _source(source) as (fd, status):
        _refuse_same_file(source, status, target)
        with _name_errors(source, target):
            geometry = _survey(fd, status, km, block_size, max_block_size, trust_file_size)
        cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=geometry.block_size)
        mode = stat.S_IMODE(status.st_mode)
        with AtomicFile(target, overwrite=overwrite, durable=durable, mode=mode) as out:

            def open_(pump: Pump, first: int, text_size: int) -> None:
                pump.open(cipher, first, text_size)

            with _name_errors(source, target):
                _share_out(open_, lambda: Pump(fd, out.fd), geometry, threads, progress)
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

    Nothing is written. Arguments and errors as in ``decrypt_file``.
    """
    with _source(source) as (fd, status), _name_errors(source, source):
        geometry = _survey(fd, status, km, block_size, max_block_size, trust_file_size)
        cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=geometry.block_size)

        def verify(pump: Pump, first: int, text_size: int) -> None:
            pump.open(cipher, first, text_size)

        _share_out(verify, lambda: Pump(fd), geometry, threads, progress)
    return geometry.plaintext_size


@contextlib.contextmanager
def _source(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    # Without O_NONBLOCK, opening a pipe that nobody writes to would hang before we can refuse it.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", os.fsdecode(path))
        yield fd, status
    finally:
        os.close(fd)


def _refuse_same_file(source: Path, status: os.stat_result, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(status, os.stat(target)):
            raise shutil.SameFileError(
                f"{os.fsdecode(source)} and {os.fsdecode(target)} are the same file"
            )


@contextlib.contextmanager
def _name_errors(source: Path, target: Path) -> Iterator[None]:
    """Give the errors that come from below the names of the files that the caller knows."""
    try:
        yield
    except Ags1Error as error:
        error.file = error.file or os.fsdecode(source)
        raise
    except OSError as error:
        paths = {"source": source, "target": target}
        if error.filename not in paths:
            raise
        path = os.fsdecode(paths[error.filename])
        raise OSError(error.errno, error.strerror, path) from None


def _write_header(fd: int, block_size: int) -> None:
    try:
        os.pwrite(fd, layout.build_header(block_size), 0)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "target") from None


def _survey(
    fd: int,
    status: os.stat_result,
    km: KeyMetadata,
    block_size: int | None,
    max_block_size: int,
    trust_file_size: bool,
) -> Geometry:
    return file_geometry(
        os.pread(fd, layout.HEADER_SIZE, 0),
        status.st_size,
        km,
        block_size=block_size,
        max_block_size=max_block_size,
        trust_file_size=trust_file_size,
    )


def _share_out(
    work: Callable[[Pump, int, int], None],
    new_pump: Callable[[], Pump],
    geometry: Geometry,
    threads: int | None,
    progress: Progress | None,
) -> None:
    """Call ``work(pump, first block, text size)`` over contiguous ranges, one a thread."""
    if threads is None:
        threads = usable_cpus()
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    if geometry.plaintext_size <= SMALL_FILE:
        if geometry.block_count:
            with contextlib.closing(new_pump()) as pump:
                work(pump, 0, geometry.plaintext_size)
    else:
        _run_threads(work, new_pump, geometry, threads, progress)
    if progress is not None:
        progress(geometry.plaintext_size, geometry.plaintext_size)


def _run_threads(
    work: Callable[[Pump, int, int], None],
    new_pump: Callable[[], Pump],
    geometry: Geometry,
    threads: int,
    progress: Progress | None,
) -> None:
    share = -(-geometry.block_count // threads)
    pumps: list[Pump] = []
    errors: dict[int, BaseException] = {}

    def run(pump: Pump, first: int) -> None:
        try:
            work(pump, first, geometry.text_size(first, share))
        except BaseException as error:
            errors[first] = error
            for other in pumps:
                other.stop()

    workers: list[threading.Thread] = []
    try:
        for first in range(0, geometry.block_count, share):
            pumps.append(new_pump())
            workers.append(threading.Thread(target=run, args=(pumps[-1], first), name="ags1-bulk"))
            workers[-1].start()
        for worker in workers:
            while worker.is_alive():
                worker.join(PROGRESS_SECONDS)
                if progress is not None:
                    progress(sum(pump.bytes_done for pump in pumps), geometry.plaintext_size)
    finally:
        _end(pumps, workers)
    if errors:
        raise errors[min(errors)]


def _end(pumps: list[Pump], workers: list[threading.Thread]) -> None:
    """Stop the workers and wait for them; a second Ctrl-C waits its turn, too."""
    interrupt: BaseException | None = None
    while True:
        try:
            for pump in pumps:
                pump.stop()
            for worker in workers:
                if worker.ident is not None:
                    worker.join()
            break
        except BaseException as error:
            interrupt = error
    # An exception may keep the pumps alive for a while, and they the space of a removed file.
    for pump in pumps:
        pump.close()
    if interrupt is not None:
        raise interrupt
