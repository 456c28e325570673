"""Encrypting one file: the file and its sidecar appear together, or neither does.

Two names cannot change in one step, so the order counts. The encrypted file is written and synced
under a temporary name first; then its sidecar gets its name, then the file gets its own. A crash in
between leaves at most a sidecar without a file, never a file without its key. When an old pair is
replaced, the sidecar holds the keys of both files until the new file has its name: at every moment
the file that is there can be opened. What a crash left is taken up the same way, but keeps its keys
for good: the file that they open may only have been moved away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from .. import layout
from ..atomic import publish, temporary_path
from ..bulk import encrypt_file
from ..cpu import usable_cpus
from ..errors import Ags1Error, KeyMetadataError
from ..key_metadata import KeyMetadata
from ..keys import Keychain, Sidecar, read_sidecar, write_sidecar
from ..keys.keychain import FILE_KEY_SIZE
from ..stream import open as open_stream
from .sources import STREAM, Job
from .standard import BinaryOutput, binary_input

_CHUNK_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class Sealing:
    """How to encrypt. ``threads`` None: one per CPU that we may use. ``takes_orphans``: a sidecar
    whose file does not exist gets the new file's key beside its own."""

    block_size: int
    threads: int | None
    durable: bool
    overwrite: bool
    progress: Callable[[int, int], None]
    takes_orphans: bool = False


def encrypt(job: Job, keychain: Keychain, how: Sealing) -> tuple[KeyMetadata, Sidecar]:
    """Do ``job``; return the key metadata and the sidecar, which hold the sizes and the key ids."""
    assert job.target is not None
    if job.target == STREAM:
        return _encrypt_to_output(job, keychain, how)
    # A link is followed, as it is in all writing; the temporary file belongs beside its end.
    target = os.path.realpath(job.target)
    _check_targets(job, overwrite=how.overwrite, takes_orphans=how.takes_orphans)
    staged = temporary_path(target)
    try:
        with _errors_about(staged, job.target):
            if job.is_pipe:
                km = _encrypt_pipe(job, staged, how)
            else:
                km = encrypt_file(
                    job.source,
                    staged,
                    key_size=FILE_KEY_SIZE,
                    block_size=how.block_size,
                    threads=how.threads,
                    durable=how.durable,
                    progress=how.progress,
                )
            sidecar = keychain.seal(km)
            _publish_pair(staged, target, sidecar, job.sidecar, how)
    finally:
        _remove(staged)
    return km, sidecar


def _encrypt_pipe(job: Job, staged: str, how: Sealing) -> KeyMetadata:
    writer = open_stream(
        staged,
        "xb",
        key_size=FILE_KEY_SIZE,
        block_size=how.block_size,
        threads=how.threads or usable_cpus(),
        durable=how.durable,
    )
    with _pipe_source(job) as chunks, writer:
        size = 0
        for chunk in chunks:
            writer.write(chunk)
            size += len(chunk)
            how.progress(size, 0)
    return writer.key_metadata


def _encrypt_to_output(job: Job, keychain: Keychain, how: Sealing) -> tuple[KeyMetadata, Sidecar]:
    """Encrypt to standard output. The sidecar is there before the stream's last bytes are: whoever
    stored the output has no whole file without its key."""
    if not how.overwrite and os.path.lexists(job.sidecar):
        raise _exists(job.sidecar)
    old = _present_sidecar(job.sidecar)
    km = KeyMetadata.generate(FILE_KEY_SIZE)
    with _pipe_source(job) as chunks:
        writer = open_stream(
            BinaryOutput(),
            "wb",
            km,
            block_size=how.block_size,
            threads=how.threads or usable_cpus(),
        )
        # Whatever goes wrong, leaving the context spoils the stream.
        with writer:
            held_back = b""
            size = 0
            for chunk in chunks:
                writer.write(held_back)
                held_back = chunk
                size += len(chunk)
                how.progress(size, 0)
            km = km.with_file_length(layout.encrypted_size(size, how.block_size))
            sidecar = keychain.seal(km)
            try:
                write_sidecar(job.sidecar, sidecar, overwrite=how.overwrite, durable=how.durable)
                writer.write(held_back)
                writer.close()
            except BaseException:
                _take_back(job.sidecar, sidecar, old)
                raise
    return km, sidecar


@contextlib.contextmanager
def _pipe_source(job: Job) -> Iterator[Iterator[bytes]]:
    """Open a job's source to be read once; errors name it."""
    with contextlib.ExitStack() as stack:
        if job.source == STREAM:
            file: BinaryIO = binary_input()
        else:
            file = stack.enter_context(open(job.source, "rb", buffering=0))

        def chunks() -> Iterator[bytes]:
            while True:
                try:
                    chunk = file.read(_CHUNK_SIZE)
                except OSError as error:
                    raise OSError(error.errno, error.strerror, job.source_name) from None
                if not chunk:
                    return
                yield chunk

        yield chunks()


def _publish_pair(
    staged: str, target: str, sidecar: Sidecar, sidecar_file: str, how: Sealing
) -> None:
    """Give a file and its sidecar their names, the sidecar first."""
    if how.takes_orphans:
        with _orphan(sidecar_file) as orphan:
            if orphan is not None:
                _publish_with_orphan(staged, target, sidecar, sidecar_file, orphan, how)
                return
    overwrite, durable = how.overwrite, how.durable
    status = os.stat(staged)
    old = _present_sidecar(sidecar_file) if overwrite else None
    first = sidecar if old is None else sidecar.with_keys_of(old)
    if overwrite and old is None:
        # Nothing here opens an old file, and it must not stand beside another file's sidecar.
        _remove(target)
    try:
        write_sidecar(sidecar_file, first, overwrite=overwrite, durable=durable)
        publish(staged, target, overwrite=overwrite, durable=durable)
    except BaseException:
        published = _is_file(target, status)
        if published and old is None:
            _remove(target)
        if old is None or not published:
            _take_back(sidecar_file, first, old)
        raise
    if old is not None:
        write_sidecar(sidecar_file, sidecar, overwrite=True, durable=durable)


def _publish_with_orphan(
    staged: str, target: str, sidecar: Sidecar, sidecar_file: str, orphan: Sidecar, how: Sealing
) -> None:
    """Do so where a sidecar is already, but no file."""
    both = sidecar.with_keys_of(orphan)
    try:
        Sidecar.from_bytes(both.to_bytes())
    except KeyMetadataError:  # too many keys
        raise _exists(sidecar_file) from None
    status = os.stat(staged)
    try:
        write_sidecar(sidecar_file, both, overwrite=True, durable=how.durable)
        publish(staged, target, overwrite=False, durable=how.durable)
    except BaseException:
        if not _is_file(target, status):
            _take_back(sidecar_file, both, orphan)
        raise


@contextlib.contextmanager
def _orphan(path: str) -> Iterator[Sidecar | None]:
    """Hold a sidecar, so that of several runs one at a time replaces it; None if there is none.

    Another run may be about to give its file a name: then the file is there first, or its name is
    taken, and either way the sidecar has its key. Raises FileExistsError for what is no sidecar, or
    was replaced meanwhile; OSError.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        sidecar = _present_sidecar(path)
        # Whoever held it before has put another file in its place.
        if sidecar is None or not _is_file(path, os.fstat(fd)):
            raise _exists(path)
        yield sidecar
    finally:
        os.close(fd)


def _exists(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def _present_sidecar(path: str) -> Sidecar | None:
    try:
        return read_sidecar(path)
    except (OSError, KeyMetadataError):
        return None


def _take_back(path: str, written: Sidecar, old: Sidecar | None) -> None:
    """Undo the writing of a sidecar, if it came about and nobody wrote another one since."""
    if _present_sidecar(path) != written:
        return
    if old is None:
        _remove(path)
    else:
        write_sidecar(path, old, overwrite=True)


def _is_file(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError:
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _check_targets(job: Job, *, overwrite: bool, takes_orphans: bool) -> None:
    """Refuse what publishing would refuse, before the work rather than after it."""
    assert job.target is not None
    may_be_there = job.sidecar if takes_orphans and not os.path.lexists(job.target) else None
    for path in (job.target, job.sidecar):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if path == may_be_there:
            if _present_sidecar(path) is None:
                raise _exists(path)
            continue
        if not overwrite:
            raise _exists(path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", path)
        if not job.is_pipe and os.path.samefile(job.source, path):
            raise OSError(errno.EINVAL, f"{job.source} and this are the same file", path)


@contextlib.contextmanager
def _errors_about(staged: str, target: str) -> Iterator[None]:
    """Let errors name the target; nobody knows the temporary name."""
    try:
        yield
    except Ags1Error as error:
        if error.file == staged:
            error.file = target
        raise
    except OSError as error:
        if error.filename != staged:
            raise
        raise OSError(error.errno, error.strerror, target) from None
