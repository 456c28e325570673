"""Encrypting one file: the file and its sidecar appear together, or neither does.

``ags1.files.publish`` has what is on the disk after each step, and what opens it.

A stream (standard output, a pipe, a device) cannot be taken back, and its reader sees its end only
when we close it. So the sidecar is written when all but the last bytes are sent:

    ==================================  ==================  =====================================
    After this step                     ``--sidecar FILE``  What was sent
    ==================================  ==================  =====================================
    1. the stream but its last bytes    as before the run   a part, which nothing decrypts
    2. the sidecar                      new key             a part, which is refused as truncated
    3. the last bytes                   new key             the whole file
    ==================================  ==================  =====================================

If a run fails before step 3, it puts the sidecar back as it was. ``--force`` replaces the
sidecar and discards its old keys, because nobody knows which stream they open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ...engine import layout
from ...engine.bulk import encrypt_opened
from ...engine.key_metadata import KeyMetadata
from ...engine.stream import open as open_stream
from ...engine.writer import Writer
from ...files.publish import publish
from ...files.sidecars import Beside, LocalPlace, OldKeys, check_link, publish_pair
from ...host.atomic import StagedFile, already_exists
from ...host.cpu import usable_cpus
from ...host.descriptors import is_stream
from ...host.regular_file import regular_file
from ...keys import Keychain, Sidecar
from ...keys.keychain import FILE_KEY_SIZE
from ..console import STREAM, BinaryOutput, binary_input
from .sources import Job

_CHUNK_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class EncryptingOptions:
    """How to encrypt. ``threads`` is None for one thread per CPU that we may use. ``old_keys``: the
    file may replace another one (``RETIRE``), or may take a sidecar that has none (``KEEP``)."""

    block_size: int
    threads: int | None
    durable: bool
    old_keys: OldKeys
    progress: Callable[[int, int], None]

    @property
    def overwrite(self) -> bool:
        return self.old_keys is OldKeys.RETIRE


def encrypt(
    job: Job, keychain: Keychain, options: EncryptingOptions
) -> tuple[KeyMetadata, Sidecar]:
    """Do ``job``; return the key metadata and the sidecar, which hold the sizes and the key ids."""
    assert job.target is not None
    if job.to_stream:
        return _encrypt_to_output(job.target, job, keychain, options)
    # A link is followed, as open() does; the temporary file belongs beside what it points to.
    target = os.path.realpath(job.target)
    _check_targets(job, options.old_keys)
    staged, key_metadata = _staged(job.target, job, options)
    try:
        sidecar = keychain.seal(key_metadata, staged.temporary)
        durable = options.durable
        publish_pair(
            staged.temporary, target, sidecar, job.sidecar, options.old_keys, durable=durable
        )
    finally:
        staged.discard()
    return key_metadata, sidecar


def _staged(target: str, job: Job, options: EncryptingOptions) -> tuple[StagedFile, KeyMetadata]:
    """Encrypt a job's source to a file that has no name yet."""
    durable, block_size = options.durable, options.block_size
    if job.is_pipe:
        threads = options.threads or usable_cpus()
        with _pipe_source(job) as chunks:
            staged = StagedFile(target, overwrite=options.overwrite, durable=durable)
            with open_stream(
                staged, "wb", key_size=FILE_KEY_SIZE, block_size=block_size, threads=threads
            ) as writer:
                size = 0
                for chunk in chunks:
                    writer.write(chunk)
                    size += len(chunk)
                    options.progress(size, 0)
        return staged, writer.key_metadata
    with regular_file(job.source) as opened:
        mode = opened.status.st_mode
        with StagedFile(target, overwrite=options.overwrite, durable=durable, mode=mode) as staged:
            key_metadata = encrypt_opened(
                opened,
                staged,
                KeyMetadata.generate(FILE_KEY_SIZE),
                block_size=block_size,
                threads=options.threads,
                progress=options.progress,
            )
    return staged, key_metadata


def _encrypt_to_output(
    target: str, job: Job, keychain: Keychain, options: EncryptingOptions
) -> tuple[KeyMetadata, Sidecar]:
    """Encrypt to standard output or another stream. The sidecar is written before the stream's last
    bytes, so that whoever stores the output never has a whole file without its key."""
    if not options.overwrite and os.path.lexists(job.sidecar) and not is_stream(job.sidecar):
        raise already_exists(job.sidecar)
    place = LocalPlace(job.sidecar, durable=options.durable)
    place.read()
    key_metadata = KeyMetadata.generate(FILE_KEY_SIZE)
    threads = options.threads or usable_cpus()
    with _pipe_source(job) as chunks:
        output = BinaryOutput(target, overwrite=options.overwrite)
        output.refuse_source(job.source)
        writer = open_stream(
            output, "wb", key_metadata, block_size=options.block_size, threads=threads
        )
        # If anything fails, leaving the context makes the stream unreadable.
        with writer, place:
            held_back = b""
            size = 0
            for chunk in chunks:
                writer.write(held_back)
                held_back = chunk
                size += len(chunk)
                options.progress(size, 0)
            key_metadata = key_metadata.with_file_length(
                layout.encrypted_size(size, options.block_size)
            )
            sidecar = keychain.seal(key_metadata)

            def put() -> None:
                writer.write(held_back)
                writer.close()

            old_keys = OldKeys.DROP if options.overwrite else OldKeys.REFUSE
            publish(Beside(place, sidecar, old_keys), put, lambda _: _is_sent(writer))
    return key_metadata, sidecar


def _is_sent(writer: Writer) -> bool:
    """Whether a writer that has failed has sent the last bytes all the same, before Ctrl-C. Then
    they need the sidecar."""
    writer.abort()
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
                message = "there is no data now, and it would block: give one in blocking mode"
                raise BlockingIOError(errno.EAGAIN, message, job.source_name)
            return chunk

        yield iter(read, b"")


def _check_targets(job: Job, old_keys: OldKeys) -> None:
    """Refuse before the work what publishing would refuse after it. Raises OSError."""
    assert job.target is not None
    if old_keys is OldKeys.RETIRE:
        check_link(job.target, job.sidecar)
    keeps = old_keys is OldKeys.KEEP and not os.path.lexists(job.target)
    may_be_there = job.sidecar if keeps else None
    for path in (job.target, job.sidecar):
        if is_stream(path):
            continue
        try:
            status = os.stat(path)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
                raise
            continue
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if path == may_be_there:
            present = LocalPlace(path).present()
            if present is None or present.sidecar is None:
                raise already_exists(path)
            continue
        if old_keys is not OldKeys.RETIRE:
            raise already_exists(path)
        if path == job.sidecar:
            LocalPlace(path).read()
        if not job.is_pipe and os.path.samefile(job.source, path):
            message = f"{job.source} and this are the same file: give another -o"
            raise OSError(errno.EINVAL, message, path)
