"""Decrypting, printing and verifying one encrypted file.

No byte leaves this module before its block is verified. What is on the disk after each step of
``decrypt``, which changes neither the encrypted file nor its sidecar:

    ==================================  =====================  ==================================
    After this step                     FILE                   the new file, without a name
    ==================================  =====================  ==================================
    0. the run starts                   as before the run      none
    1. a block is verified and written  as before the run      the plaintext of verified blocks
    2. every block is verified          as before the run      all of the plaintext
    3. the new file gets its name       all of the plaintext   none
    ==================================  =====================  ==================================

If a run fails or is killed before step 3, nothing is left of the new file. Where there are no files
without a name (see ``ags1.host.atomic``), it is ``.ags1-*.tmp`` beside FILE. That stays after a
kill, with plaintext in it; nobody can read it who could not read FILE. If a run is interrupted in
step 3, FILE is removed again, unless it has replaced an older file (``--force``).

Standard output, pipes and devices get each verified block at once. That cannot be taken back: the
exit status tells whether the output is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...engine.bulk import copy_through, decrypt_file, verify_file
from ...engine.key_metadata import KeyMetadata
from ...engine.reader import Reader
from ...engine.stream import open as open_stream
from ...errors import Ags1Error, KeyMetadataError, NoKeyError
from ...host.atomic import AtomicFile
from ...host.cpu import usable_cpus
from ...host.regular_file import RegularFile, regular_file
from ...keys import Keychain
from ...keys.sidecar import MOST_TRIES, START_SIZE
from ..console import STREAM, BinaryOutput, binary_input
from .sources import Job, refuse_other_files

_CHUNK_SIZE = 1 << 20


class Opened(NamedTuple):
    """An encrypted file that is open, or the path of a pipe, and its key."""

    source: RegularFile | str
    km: KeyMetadata


class Reading(NamedTuple):
    """How to read an encrypted file. ``threads`` is None for one thread per CPU that we may use.
    The fields are arguments of ``decrypt_file`` and ``verify_file``."""

    threads: int | None
    max_block_size: int
    progress: Callable[[int, int], None]


@contextlib.contextmanager
def opened(job: Job, keychain: Keychain) -> Iterator[Opened]:
    """Open a job's file, and find its key in its sidecar. If another process is replacing
    both, the sidecar may no longer have the key of the opened file. Then this looks at both again.
    Raises KeyMetadataError, KmsError, and FormatError for a file that has no sidecar and is not an
    AGS1 file."""
    if not os.path.lexists(job.sidecar):
        if not job.is_pipe:
            refuse_other_files(job.source)
        message = "there is no such sidecar, and only it has the file's key (see --sidecar)"
        raise KeyMetadataError(message, file=job.sidecar)
    if job.is_pipe:
        yield Opened(job.source, keychain.open(job.sidecar, None))
        return
    seen: object = None
    for tries in range(MOST_TRIES):
        with regular_file(job.source) as file:
            try:
                found = Opened(file, keychain.open(job.sidecar, file))
            except NoKeyError:
                looked_at = file.pread(0, START_SIZE)
                if looked_at == seen or tries == MOST_TRIES - 1:
                    raise
                seen = looked_at
                continue
            yield found
            return


def decrypt(job: Job, file: Opened, options: Reading, *, durable: bool, overwrite: bool) -> int:
    """Write the plaintext to the job's target; return its size in bytes."""
    target = job.target
    assert target is not None
    if job.to_stream:
        output = BinaryOutput(target, overwrite=overwrite)
        output.refuse_source(job.source)
        size = copy_out(job, file, options, output.write)
        output.flush()
        return size
    if job.is_pipe:
        with AtomicFile(target, overwrite=overwrite, durable=durable) as out:
            return copy_out(job, file, options, out.write)
    return decrypt_file(
        file.source, target, file.km, **options._asdict(), durable=durable, overwrite=overwrite
    )


def verify(job: Job, file: Opened, options: Reading) -> int:
    """Verify all of a file, write nothing; return the plaintext's size in bytes."""
    if job.is_pipe:
        return copy_out(job, file, options, lambda _: None)  # the plaintext is dropped
    return verify_file(file.source, file.km, **options._asdict())


def copy_out(
    job: Job,
    file: Opened,
    options: Reading,
    write: Callable[[memoryview], object],
    *,
    offset: int = 0,
    length: int | None = None,
) -> int:
    """Hand ``length`` bytes of the plaintext from ``offset`` on (None: to its end) to ``write``.
    Returns how many there were. Only the blocks that hold them are read, unless from a pipe."""
    source = binary_input() if job.source == STREAM else file.source
    # Reading ahead pays when the whole file is wanted.
    threads = (options.threads or usable_cpus()) if length is None else 1
    blocks = options.max_block_size
    with _named_input(job):
        with open_stream(source, "rb", file.km, threads=threads, max_block_size=blocks) as reader:
            _go_to(reader, offset)
            return copy_through(reader, write, options.progress, 0, length)


def _go_to(reader: Reader, offset: int) -> None:
    if reader.seekable():
        reader.seek(offset)
        return
    while offset and (data := reader.read(min(offset, _CHUNK_SIZE))):
        offset -= len(data)


@contextlib.contextmanager
def _named_input(job: Job) -> Iterator[None]:
    """Name standard input in the errors that come from it."""
    try:
        yield
    except Ags1Error as error:
        if job.source == STREAM:
            error.file = job.source_name
        raise
