"""Decrypting, printing and verifying one encrypted file.

No byte leaves this module before its block is verified. What is on the disk after each step of
``decrypt``, which changes neither the encrypted file nor its sidecar:

    ==================================  =====================  ==================================
    After this step                     FILE                   .ags1-*.tmp beside it
    ==================================  =====================  ==================================
    0. the run starts                   as before the run      none
    1. a block is verified and written  as before the run      the plaintext of verified blocks
    2. every block is verified          as before the run      all of the plaintext
    3. the temporary file is renamed    all of the plaintext   none
    ==================================  =====================  ==================================

If a run fails before step 3, it removes the temporary file. If it is killed, the temporary file
stays, with plaintext in it; nobody can read it who could not read FILE. If it is interrupted in
step 3, FILE is removed again, unless it has replaced an older file (``--force``).

Standard output cannot be taken back: there, the exit status tells whether the output is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ...atomic import AtomicFile
from ...bulk import decrypt_file, verify_file
from ...cpu import usable_cpus
from ...errors import Ags1Error
from ...key_metadata import KeyMetadata
from ...keys import Keychain
from ...reader import Reader
from ...stream import open as open_stream
from ..console import BinaryOutput, binary_input
from .sources import STREAM, Job, refuse_other_files

_CHUNK_SIZE = 1 << 20

Progress = Callable[[int, int], None]


class Sink(Protocol):
    """Takes plaintext."""

    def write(self, data: memoryview, /) -> object: ...


class Nowhere:
    """Takes plaintext and drops it: a pipe is only verified."""

    def write(self, data: memoryview, /) -> int:
        return len(data)


@dataclass(frozen=True, slots=True)
class _Descriptor:
    """Writes to an open file; its errors have the file's name."""

    fd: int
    name: str

    def write(self, data: memoryview, /) -> int:
        done = 0
        try:
            while done < len(data):
                done += os.write(self.fd, data[done:])
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.name) from None
        return done


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read an encrypted file. ``threads`` is None for one thread per CPU that we may use."""

    threads: int | None
    max_block_size: int
    progress: Progress


def key_metadata(job: Job, keychain: Keychain) -> KeyMetadata:
    """Return the key metadata of a job's file from its sidecar. Raises KeyMetadataError, KmsError;
    of a file without sidecar that is no AGS1 file, FormatError."""
    if job.is_pipe:
        return keychain.open(job.sidecar, None)
    if not os.path.lexists(job.sidecar):
        refuse_other_files(job.source)
    return keychain.open(job.sidecar, job.source)


def decrypt(job: Job, km: KeyMetadata, how: Reading, *, durable: bool, overwrite: bool) -> int:
    """Write the plaintext to the job's target; return its size in bytes."""
    assert job.target is not None
    if job.target == STREAM:
        output = BinaryOutput()
        size = copy_out(job, km, how, output)
        output.flush()
        return size
    if job.is_pipe:
        with AtomicFile(job.target, overwrite=overwrite, durable=durable) as out:
            return copy_out(job, km, how, _Descriptor(out.fd, job.target))
    return decrypt_file(
        job.source,
        job.target,
        km,
        threads=how.threads,
        max_block_size=how.max_block_size,
        durable=durable,
        overwrite=overwrite,
        progress=how.progress,
    )


def verify(job: Job, km: KeyMetadata, how: Reading) -> int:
    """Verify all of a file, write nothing; return the plaintext's size in bytes."""
    if job.is_pipe:
        return copy_out(job, km, how, Nowhere())
    return verify_file(
        job.source,
        km,
        threads=how.threads,
        max_block_size=how.max_block_size,
        progress=how.progress,
    )


def copy_out(
    job: Job,
    km: KeyMetadata,
    how: Reading,
    sink: Sink,
    *,
    offset: int = 0,
    length: int | None = None,
) -> int:
    """Write ``length`` bytes of the plaintext from ``offset`` on (None: to its end) to ``sink``.
    Returns how many there were. Only the blocks that hold them are read, unless from a pipe."""
    source = binary_input() if job.source == STREAM else job.source
    # Reading ahead pays when the whole file is wanted.
    threads = (how.threads or usable_cpus()) if length is None else 1
    chunk = memoryview(bytearray(_CHUNK_SIZE))
    size = 0
    with _named_input(job):
        with open_stream(
            source, "rb", km, threads=threads, max_block_size=how.max_block_size
        ) as reader:
            _go_to(reader, offset, chunk)
            while length is None or size < length:
                wanted = chunk if length is None else chunk[: length - size]
                got = reader.readinto(wanted)
                if not got:
                    break
                sink.write(wanted[:got])
                size += got
                how.progress(size, 0)
    return size


def _go_to(reader: Reader, offset: int, scratch: memoryview) -> None:
    if reader.seekable():
        reader.seek(offset)
        return
    while offset:
        got = reader.readinto(scratch[:offset])
        if not got:
            break
        offset -= got


@contextlib.contextmanager
def _named_input(job: Job) -> Iterator[None]:
    """Name standard input in the errors that come from it."""
    try:
        yield
    except Ags1Error as error:
        if job.source == STREAM:
            error.file = job.source_name
        raise
