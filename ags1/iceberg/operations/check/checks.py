"""Checks one file of an encrypted table at a time.

A ``Check`` says which file to check and what it must be. An ``Outcome`` has the findings. Checks do
not depend on each other. Threads of this process do them, or another ``CheckExecutor``, such as
Spark. A damaged file is a finding. This module does not know snapshots, and does not compare
files with each other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias, cast

from pyiceberg.manifest import FileFormat

from ....columns.avro.container import AVRO_MAGIC
from ....engine.bulk import verify_file
from ....engine.key_metadata import KeyMetadata
from ....engine.layout import DEFAULT_BLOCK_SIZE, MAGIC
from ....errors import Ags1Error, FormatError, NotEncryptedError
from ....host.atomic import is_temporary
from ...formats.parquet_modules import WINDOW_SIZE, VerifiedParquet, verify_parquet
from ...read.deletes import read_deletion_vector
from ...read.records import ContentFile
from ...spec.constants import ENCRYPTED_PARQUET_MAGIC, ORC_MAGIC, PARQUET_MAGIC, PUFFIN_MAGIC
from ...storage.byte_meter import ByteMeter
from ...storage.locations import new_input, refuse_pipe
from ...storage.table_files import TableFiles
from ..own_folders import is_metadata
from .findings import Finding, finding_of

TICK_SECONDS = 0.1
_BUFFER_SIZE = 8 << 20
_HUGE_FILE = 256 << 20
_PLAIN_FORMATS = {
    PARQUET_MAGIC: "Parquet",
    AVRO_MAGIC: "Avro",
    ORC_MAGIC: "ORC",
    PUFFIN_MAGIC: "Puffin",
}

# Called about ten times a second, in the waiting thread. If it raises, the work ends.
Tick: TypeAlias = "Callable[[], object]"


class CheckKind(str, Enum):
    """What a file is. This decides what is checked."""

    ENCRYPTED = "encrypted"  # a data or delete file with a key
    VECTORS = "vectors"  # a Puffin file, and the deletion vectors in it
    PLAIN = "plain"  # an unencrypted data or delete file
    STATISTICS = "statistics"
    UNREFERENCED = "unreferenced"  # a file that no snapshot has


@dataclass(frozen=True, slots=True)
class Check:
    """A file to check. ``location`` is the location in the metadata, or the real one if no snapshot
    has the file. ``files`` are the manifests' records of it: one for a data or delete file, one for
    each deletion vector of a Puffin file, none for others. ``snapshot_ids`` are those that need
    it."""

    kind: CheckKind
    location: str
    snapshot_ids: tuple[int, ...] = ()
    files: tuple[ContentFile, ...] = ()

    @property
    def size(self) -> int:
        """About how many bytes the check reads."""
        is_read = self.kind in (CheckKind.ENCRYPTED, CheckKind.VECTORS)
        return self.files[0].file_size_in_bytes if is_read else 0

    def finding(self, kind: str, message: str) -> Finding:
        """Return a finding of this kind about the file."""
        return Finding(kind, message, self.location, self.snapshot_ids)


@dataclass(slots=True)
class Outcome:
    """The result of one check. ``size`` is the number of bytes whose tags were checked."""

    size: int = 0
    findings: list[Finding] = field(default_factory=list)


class CheckExecutor(Protocol):
    """Does checks, in any order and in any process."""

    def run(
        self, checks: Iterator[Check], files: TableFiles, meter: ByteMeter, tick: Tick
    ) -> Generator[Outcome, None, None]:
        """Yield each check's outcome. ``files`` opens files, ``meter`` counts the bytes read.
        Getting the next check may take long and may raise. Any exception ends all checks, and so
        does closing the generator."""
        ...


class CheckThreads:
    """Does checks in ``pool``, which has ``threads`` threads, on ``cpus`` CPUs. ``lengths_only``:
    no byte of an encrypted file is read."""

    def __init__(
        self, pool: ThreadPoolExecutor, threads: int, cpus: int, lengths_only: bool = False
    ) -> None:
        self._pool = pool
        self._threads = threads
        self._cpus = cpus
        self._lengths_only = lengths_only

    def run(
        self, checks: Iterator[Check], files: TableFiles, meter: ByteMeter, tick: Tick
    ) -> Generator[Outcome, None, None]:
        """Yield the outcome of each check, as they finish."""
        checker = FileChecker(files, meter, self._cpus, lengths_only=self._lengths_only)
        done: SimpleQueue[Future[Outcome]] = SimpleQueue()
        running = 0

        def finished() -> Iterator[Outcome]:
            nonlocal running
            try:
                future = done.get(timeout=TICK_SECONDS)
            except Empty:
                pass
            else:  # outside the try: a check may have raised Empty
                running -= 1
                yield future.result()
            tick()

        for check in checks:
            while running >= 4 * self._threads:
                yield from finished()
            self._pool.submit(checker, check).add_done_callback(done.put)
            running += 1
            tick()
        while running:
            yield from finished()


class FileChecker:
    """Checks files of one table. Many threads may call it. ``meter`` counts the bytes that are
    read. Each thread checks one file, which is fastest; one huge file at a time may use all
    ``cpus``. With ``lengths_only``, files with a key are not read; their lengths are checked."""

    def __init__(
        self, files: TableFiles, meter: ByteMeter, cpus: int = 1, *, lengths_only: bool = False
    ) -> None:
        self._files = files
        self._meter = meter
        self._cpus = cpus
        self._all_cpus = threading.Lock()
        self._work: dict[CheckKind, Callable[[Check], Outcome]] = {
            CheckKind.ENCRYPTED: self._check_size if lengths_only else self._verify_encrypted,
            CheckKind.VECTORS: self._check_size if lengths_only else self._verify_vectors,
            CheckKind.PLAIN: self._check_size,
            CheckKind.STATISTICS: self._check_statistics,
            CheckKind.UNREFERENCED: self._check_unreferenced,
        }

    def __call__(self, check: Check) -> Outcome:
        """Do a check. An error in the file becomes a finding."""
        try:
            return self._work[check.kind](check)
        except (Ags1Error, OSError) as error:
            return Outcome(0, [finding_of(error, check.location, check.snapshot_ids)])

    def _verify_encrypted(self, check: Check) -> Outcome:
        (file,) = check.files
        key_metadata = cast("KeyMetadata", file.key)
        findings: list[Finding] = []
        if file.file_format == FileFormat.PARQUET:
            key_metadata = cast("KeyMetadata", file.sized_key)
            findings = _parquet_findings(check, self._verify_parquet(check.location, key_metadata))
        elif file.file_format == FileFormat.ORC:
            raise FormatError("the manifest has a key for an ORC file: Iceberg cannot encrypt ORC")
        else:
            key_metadata = self._files.sized_key(check.location, key_metadata)
            self._verify_ags1(check.location, key_metadata)
        return Outcome(cast("int", key_metadata.file_length), findings)

    def _verify_ags1(self, location: str, key_metadata: KeyMetadata) -> None:
        path = self._files.local_path(location)
        try:
            if path is not None:
                self._verify_local(path, key_metadata)
            else:
                self._verify_stream(location, key_metadata)
        except FormatError:
            if self._head(location) != MAGIC:
                raise NotEncryptedError(
                    "the manifest has a key for this file, but the file does not begin as an "
                    "encrypted one"
                ) from None
            raise

    def _verify_local(self, path: str, key_metadata: KeyMetadata) -> None:
        before = 0

        def progress(done: int, total: int) -> None:
            nonlocal before
            self._meter.add(done - before)
            before = done

        self._meter.add(0)
        is_huge = (key_metadata.file_length or 0) > _HUGE_FILE
        takes_all = is_huge and self._all_cpus.acquire(blocking=False)
        try:
            verify_file(
                path,
                key_metadata,
                threads=self._cpus if takes_all else 1,
                block_size=DEFAULT_BLOCK_SIZE,
                progress=progress,
            )
        finally:
            if takes_all:
                self._all_cpus.release()

    def _verify_stream(self, location: str, key_metadata: KeyMetadata) -> None:
        with self._files.open_encrypted(location, key_metadata) as reader:
            buffer = bytearray(min(_BUFFER_SIZE, reader.plaintext_size) or 1)
            while size := reader.readinto(buffer):
                self._meter.add(size)

    def _verify_parquet(self, location: str, key_metadata: KeyMetadata) -> VerifiedParquet:
        path = self._files.local_path(location)
        if path is not None:
            refuse_pipe(path)
            with open(path, "rb", buffering=0) as file:
                fd = file.fileno()
                buffer = memoryview(bytearray(WINDOW_SIZE))

                def read(offset: int, size: int) -> memoryview:
                    # Using the same memory again is far faster than allocating it.
                    nonlocal buffer
                    if size > len(buffer):
                        buffer = memoryview(bytearray(size))
                    self._meter.add(size)
                    return buffer[: os.preadv(fd, [buffer[:size]], offset)]

                return verify_parquet(read, os.fstat(fd).st_size, key_metadata)
        stored = self._files.new_input(location)
        size = len(stored)
        with closing(stored.open()) as stream:

            def fetch(offset: int, size: int) -> bytes:
                self._meter.add(size)
                stream.seek(offset)
                return stream.read(size)

            return verify_parquet(fetch, size, key_metadata)

    def _verify_vectors(self, check: Check) -> Outcome:
        """Verify one Puffin file and the deletion vectors in it."""
        outcome = Outcome()
        key_metadata = self._files.sized_key(
            check.location, cast("KeyMetadata", check.files[0].key)
        )
        payload = self._files.read_encrypted(check.location, key_metadata)
        outcome.size = cast("int", key_metadata.file_length)
        self._meter.add(outcome.size)
        for vector in check.files:
            try:
                read_deletion_vector(payload, vector, vector.referenced_data_file or "")
            except Ags1Error as error:
                outcome.findings.append(finding_of(error, check.location, check.snapshot_ids))
        return outcome

    def _check_size(self, check: Check) -> Outcome:
        """Check that a file exists and has the size that its key, or the manifest, says."""
        self._meter.add(0)
        file = check.files[0]
        size = len(self._files.new_input(check.location))
        stated = file.file_size_in_bytes
        if (key_metadata := file.sized_key) is not None:
            stated = cast("int", key_metadata.file_length)
        if size == stated:
            return Outcome()
        kind = "truncated" if size < stated else "format"
        message = f"the file has {size} bytes, but its manifest says {stated}"
        return Outcome(0, [check.finding(kind, message)])

    def _check_statistics(self, check: Check) -> Outcome:
        try:
            head = self._head(check.location)
        except FileNotFoundError:
            kind, message = "missing-statistics", "the statistics file is missing"
        else:
            if head in (MAGIC, ENCRYPTED_PARQUET_MAGIC):
                kind = "unauthenticated-bytes"
                message = (
                    "the statistics file is encrypted and was not verified: the metadata has no "
                    "key for it, as after a commit of Java up to 1.12"
                )
            else:
                kind = "plain-statistics"
                message = "the statistics file is not encrypted: it reveals values of the data"
        return Outcome(0, [check.finding(kind, message)])

    def _check_unreferenced(self, check: Check) -> Outcome:
        try:
            with closing(new_input(self._files.inner, check.location).open()) as stream:
                head = stream.read(4)
        except FileNotFoundError:
            return Outcome()
        format_ = next((n for magic, n in _PLAIN_FORMATS.items() if head.startswith(magic)), "")
        kind, what = "stray-plain-file", f"an unencrypted {format_} file".replace("  ", " ")
        if head in (MAGIC, ENCRYPTED_PARQUET_MAGIC):
            kind, what = "orphan-file", "an encrypted file"
        elif not format_ and (not head or _has_no_rows(check.location)):
            kind, what = "orphan-file", "a file"
        return Outcome(0, [check.finding(kind, f"{what} that no snapshot has")])

    def _head(self, location: str) -> bytes:
        with closing(self._files.open_stored(location)) as stream:
            return stream.read(len(MAGIC))


def _has_no_rows(location: str) -> bool:
    """Whether a file that no snapshot has is one that the format or ``ags1`` leaves unencrypted:
    metadata, a checksum, the journal of a rewrite, or a metadata file that was not finished."""
    name = location.rpartition("/")[2]
    return is_metadata(name) or is_temporary(name) or name.endswith((".crc", ".journal"))


def _parquet_findings(check: Check, verified: VerifiedParquet) -> list[Finding]:
    """Return what is wrong with a Parquet file whose modules are authentic."""
    (file,) = check.files
    findings = []
    if verified.rows != file.record_count:
        message = f"the file has {verified.rows} rows, but the manifest says {file.record_count}"
        findings.append(check.finding("record-count", message))
    if verified.plain_levels_size:
        message = (
            f"{verified.plain_levels_size} bytes of levels (which values are null, where lists "
            "begin) are not encrypted, and somebody could change them: Java writes pages of "
            "version 2 in this way. Set write.parquet.page-version=v1, and rewrite the file in "
            "Spark"
        )
        findings.append(check.finding("plain-levels", message))
    if verified.padding_size:
        message = f"{verified.padding_size} bytes belong to no part of the Parquet file"
        findings.append(check.finding("unauthenticated-bytes", message))
    return findings
