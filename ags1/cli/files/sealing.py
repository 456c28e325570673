"""Encrypting one file: the file and its sidecar appear together, or neither does.

Two names cannot change in one step, so the sidecar changes before the file does. What is on the
disk after each step, and what opens it, if ``--force`` replaces a file:

    ==================================  =============  ===================  =====================
    After this step                     FILE.ags1      FILE.ags1.keys       What can be decrypted
    ==================================  =============  ===================  =====================
    0. the run starts                   the old file   old key              the old file
    1. a temporary file is written      the old file   old key              the old file
    2. the sidecar gets the new key     the old file   old key and new key  the old file
    3. the temporary file is renamed    the new file   old key and new key  the new file
    4. the sidecar loses the old key    the new file   new key              the new file
    ==================================  =============  ===================  =====================

Each step is on the disk before the next one begins (not with ``--no-fsync``). If a run is killed,
the disk stays as after its last step, and before step 3 also the temporary file stays. If a run
fails before step 3, it removes the temporary file and puts the sidecar back as it was. If it fails
later, the new file stays, and so does its sidecar. The other beginnings:

    ==================================  =========================================================
    What is there at the start          What is different
    ==================================  =========================================================
    no file, no sidecar                 After step 2 there is a sidecar without a file; step 4
                                        has nothing to do.
    a file without a sidecar, or with   Nothing opens the old file, not even at the start. The
    a damaged one, and ``--force``      sidecar never has an old key.
    a sidecar without a file, and       The sidecar keeps its old keys in step 4, because the
    ``--skip-existing``                 file that they open may only have been moved.
    ==================================  =========================================================

Standard output cannot be taken back, and its reader sees the stream end only when we close it. So
the sidecar is written when all but the last bytes are sent:

    ==================================  ==================  =====================================
    After this step                     ``--sidecar FILE``  What was sent
    ==================================  ==================  =====================================
    1. the stream but its last bytes    as before the run   a part, which nothing decrypts
    2. the sidecar                      new key             a part, which is refused as truncated
    3. the last bytes                   new key             the whole file
    ==================================  ==================  =====================================

If a run fails before step 3, it puts the sidecar back as it was. ``--force`` replaces a sidecar
here without its old keys: which stream they open, nobody knows.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from ... import layout, private_file
from ...atomic import publish, temporary_path
from ...bulk import encrypt_file
from ...cpu import usable_cpus
from ...errors import Ags1Error, KeyMetadataError
from ...key_metadata import KeyMetadata
from ...keys import Keychain, Sidecar, write_sidecar
from ...keys.keychain import FILE_KEY_SIZE
from ...keys.sidecar import MAX_SIDECAR_SIZE
from ...stream import open as open_stream
from ...writer import Writer
from ..console import BinaryOutput, binary_input
from .sources import STREAM, Job

_CHUNK_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class Sealing:
    """How to encrypt. ``threads`` is None for one thread per CPU that we may use. With
    ``takes_orphans``, the new file's key is added to a sidecar that has no file. It excludes
    ``overwrite``."""

    block_size: int
    threads: int | None
    durable: bool
    overwrite: bool
    progress: Callable[[int, int], None]
    takes_orphans: bool = False


class _Present(NamedTuple):
    """The file that is there under a sidecar's name. ``sidecar`` is None if it is damaged."""

    data: bytes
    sidecar: Sidecar | None


def encrypt(job: Job, keychain: Keychain, how: Sealing) -> tuple[KeyMetadata, Sidecar]:
    """Do ``job``; return the key metadata and the sidecar, which hold the sizes and the key ids."""
    assert job.target is not None
    if job.target == STREAM:
        return _encrypt_to_output(job, keychain, how)
    # A link is followed, as open() does; the temporary file belongs beside what it points to.
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
    """Encrypt to standard output. The sidecar is written before the stream's last bytes, so that
    whoever stores the output never has a whole file without its key."""
    if not how.overwrite and os.path.lexists(job.sidecar):
        raise _exists(job.sidecar)
    old = _present(job.sidecar)
    km = KeyMetadata.generate(FILE_KEY_SIZE)
    threads = how.threads or usable_cpus()
    with _pipe_source(job) as chunks:
        writer = open_stream(BinaryOutput(), "wb", km, block_size=how.block_size, threads=threads)
        # If anything fails, leaving the context makes the stream unreadable.
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
                # Ctrl-C may come when the last bytes are sent already: then they need the sidecar.
                writer.abort()
                if not _is_complete(writer):
                    _take_back(job.sidecar, sidecar, old)
                raise
    return km, sidecar


def _is_complete(writer: Writer) -> bool:
    try:
        writer.key_metadata  # noqa: B018
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def _pipe_source(job: Job) -> Iterator[Iterator[bytes]]:
    """Open a job's source to be read once; errors name it."""
    with contextlib.ExitStack() as stack:
        if job.source == STREAM:
            file: BinaryIO = binary_input()
        else:
            file = stack.enter_context(open(job.source, "rb", buffering=0))

        def read() -> bytes:
            try:
                chunk: bytes | None = file.read(_CHUNK_SIZE)
            except OSError as error:
                raise OSError(error.errno, error.strerror, job.source_name) from None
            if chunk is None:  # not the end: a descriptor in non-blocking mode has no data yet
                said = "there is no data now, and it would block: give one in blocking mode"
                raise BlockingIOError(errno.EAGAIN, said, job.source_name)
            return chunk

        yield iter(read, b"")


def _publish_pair(
    staged: str, target: str, sidecar: Sidecar, sidecar_file: str, how: Sealing
) -> None:
    """Give a file and its sidecar their names: steps 2 to 4."""
    with _orphan(sidecar_file) if how.takes_orphans else contextlib.nullcontext() as orphan:
        old = _present(sidecar_file) if how.overwrite else orphan
        first = sidecar if old is None else _with_keys_of(old, sidecar, sidecar_file)
        status = os.stat(staged)
        try:
            overwrite = how.overwrite or orphan is not None
            write_sidecar(sidecar_file, first, overwrite=overwrite, durable=how.durable)
            publish(staged, target, overwrite=how.overwrite, durable=how.durable)
        except BaseException:
            # Ctrl-C may come when the file has its name already.
            if not _is_file(target, status):
                _take_back(sidecar_file, first, old)
            raise
        if how.overwrite and first != sidecar:
            write_sidecar(sidecar_file, sidecar, overwrite=True, durable=how.durable)


def _with_keys_of(old: _Present, sidecar: Sidecar, path: str) -> Sidecar:
    if old.sidecar is None:
        return sidecar
    both = sidecar.with_keys_of(old.sidecar)
    try:
        return Sidecar.from_bytes(both.to_bytes())
    except KeyMetadataError:
        message = "this sidecar has no room for another key: move it and its file away"
        raise KeyMetadataError(message, file=path) from None


@contextlib.contextmanager
def _orphan(path: str) -> Iterator[_Present | None]:
    """Lock a sidecar without a file, so that one run at a time replaces it; None if there is none.
    If another run publishes its file meanwhile, our own cannot get the name, and the sidecar keeps
    the other's key. Raises FileExistsError if this is no sidecar, or another run replaced it;
    OSError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        present = _present(path)
        # The run that had the lock before may have put another file in its place.
        if present is None or present.sidecar is None or not _is_file(path, os.fstat(fd)):
            raise _exists(path)
        yield present
    finally:
        os.close(fd)


def _exists(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def _present(path: str) -> _Present | None:
    """Return the sidecar that is there, None if there is none. Raises OSError."""
    try:
        data, _ = private_file.read(path, MAX_SIDECAR_SIZE)
    except FileNotFoundError:
        return None
    try:
        return _Present(data, Sidecar.from_bytes(data))
    except KeyMetadataError:
        return _Present(data, None)


def _take_back(path: str, written: Sidecar, old: _Present | None) -> None:
    """Undo the writing of a sidecar, unless it did not happen or another one is there by now."""
    present = _present(path)
    if present is None or present.data != written.to_bytes():
        return
    if old is None:
        _remove(path)
    else:
        private_file.write(path, old.data, overwrite=True, durable=True)


def _is_file(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError:
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _check_targets(job: Job, *, overwrite: bool, takes_orphans: bool) -> None:
    """Refuse before the work what publishing would refuse after it. Raises OSError."""
    assert job.target is not None
    may_be_there = job.sidecar if takes_orphans and not os.path.lexists(job.target) else None
    for path in (job.target, job.sidecar):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
                raise
            continue
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if path == may_be_there:
            present = _present(path)
            if present is None or present.sidecar is None:
                raise _exists(path)
            continue
        if not overwrite:
            raise _exists(path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", path)
        if path == job.sidecar:
            _present(path)
        if not job.is_pipe and os.path.samefile(job.source, path):
            said = f"{job.source} and this are the same file: give another -o"
            raise OSError(errno.EINVAL, said, path)


@contextlib.contextmanager
def _errors_about(staged: str, target: str) -> Iterator[None]:
    """Let errors name the target instead of the temporary file."""
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
