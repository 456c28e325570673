"""One run of a job, on the driver: waves of tasks, their results, and what becomes of them.

Knows nothing of what a file's work is.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from .. import errors, layout
from .._gcm import random_bytes
from ..bulk import verify_file
from ..errors import Ags1Error, KeyMetadataError
from ..key_metadata import KeyMetadata
from ..keys.keychain import FILE_KEY_SIZE
from . import files
from .keys import FileKeys
from .ledger import DONE, ENCRYPT, FAILED, SKIPPED, Ledger, Row
from .planning import BLOCK_SIZE, Item, Task, Wave, task_cost, waves
from .publishing import cause, has_its_name, published, settle_pending
from .work import EXPECTED, KMS_UNUSABLE, Result, Work, as_text, claim_path

SUFFIX = ".ags1"
VERIFY = "verify"
# What a summary shows; the ledger has them all.
MAX_FAILURES = 1000
_POLL_SECONDS = 0.1
# Two: one is published while the next one runs.
_WAVES_IN_FLIGHT = 2
_MAX_CAUSE = 500
# More than it takes to find one file among those of a task.
_MAX_FAILED_JOBS = 16
_PYTHON_ERROR = re.compile(r"^ags1\.errors\.(\w+): (.*)$", re.MULTILINE)

Progress: TypeAlias = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class FailedFile:
    """A file that a job could not deal with; ``kind`` is the exception's name."""

    path: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(slots=True)
class Summary:
    """What a job has done. ``unchanged`` files were done already; ``size`` is the bytes read of
    the files that are done now. ``failures`` are the first ones."""

    operation: str
    done: int = 0
    unchanged: int = 0
    skipped: int = 0
    failed: int = 0
    size: int = 0
    seconds: float = 0.0
    failures: list[FailedFile] = field(default_factory=list)

    @property
    def bytes_per_second(self) -> float:
        return self.size / self.seconds if self.seconds else 0.0

    def add_failure(self, path: str, kind: str, message: str) -> None:
        """Count a failure, and keep it if it is among the first."""
        self.failed += 1
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(FailedFile(path, kind, message))


class TaskFailedError(Ags1Error):
    """A task failed, over and over, and not because of what a file's work may raise."""


class _Shared(NamedTuple):
    """What the tasks of a file that is cut have in common: the file that they write, and, where it
    is encrypted, its key (of the driver's, not pickled) and that wrapped."""

    staged: str
    km: KeyMetadata | None
    wrapped: str | None
    key_id: str | None


class Job:
    """One run: its ledger, its summary, and what is under way."""

    def __init__(
        self,
        spark: Any,
        operation: str,
        root: str,
        ledger: str,
        durable: bool,
        cores: int | None,
        progress: Progress | None,
    ) -> None:
        self.summary = Summary(operation)
        self.operation = operation
        self.id = random_bytes(6).hex()
        self.writes = operation != VERIFY
        self._context = spark.sparkContext
        self._root = root
        self._durable = durable
        self._cores = cores or max(self._context.defaultParallelism, 1)
        self._progress = progress or (lambda done, total: None)
        self._started = time.monotonic()
        self._targets: set[str] = set()
        self._folders: set[str] = set()
        self._bytes_done: Any = self._context.accumulator(0)
        self._total = 0
        self._master_key_id: str | None = None
        self._early: list[Row] = []
        self._unsettled = False
        self._stopping = False
        self._failed_jobs = 0  # since the last one that succeeded
        # By the item's number: what the tasks of a file that is cut have in common.
        self._shared: dict[int, _Shared] = {}
        if operation != ENCRYPT:
            os.listdir(ledger)  # there must be one
        self.ledger = Ledger(ledger, writing=self.writes, durable=durable)

    def __enter__(self) -> Job:
        try:
            if self.writes:
                settle_pending(self.ledger, durable=self._durable)
                os.makedirs(self._root, exist_ok=True)
                self.ledger.begin(self.id, self._root)
        except BaseException:
            self.ledger.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            # What is pending needs its staged files: the next job settles it.
            if self.writes and not self._unsettled:
                files.remove_staged(self._folders, self.id)
                self.ledger.end(self.id)
        finally:
            self.ledger.close()
        self.summary.seconds = time.monotonic() - self._started

    def stages_in(self, folder: str) -> None:
        """Note that the job stages files in a folder: what is left there goes with its end."""
        self._folders.add(folder)

    def list_failed(self, problems: Sequence[files.Problem]) -> None:
        """Count paths that could not be listed, and note them in the ledger."""
        for path, error in problems:
            self._fail_early(files.Found(path, "", 0, 0), "", error)

    def takes(self, found: files.Found, target: str, row: Row | None, *, overwrite: bool) -> bool:
        """Whether there is something to do for a file; ``row`` is what the ledger has of it."""
        if os.path.normpath(target) != target or not target.startswith(self._root + os.sep):
            said = f"its target would not be in the folder {self._root}"
            self._fail_early(found, "", OSError(errno.EINVAL, said))
            return False
        if target in self._targets:
            said = f"another source has the same target, {target}"
            self._fail_early(found, "", OSError(errno.EINVAL, said))
            return False
        self._targets.add(target)
        if row is None and overwrite:
            return True
        try:
            status = os.lstat(target)
        except FileNotFoundError:
            return True
        except OSError as error:
            self._fail_early(found, target, error)
            return False
        if row is None:
            said = "the target exists, and not by this ledger"
            self._fail_early(found, target, FileExistsError(errno.EEXIST, said))
            return False
        as_it_was = (row.source, row.source_size, row.source_mtime_ns)
        if as_it_was != (found.path, found.size, found.mtime_ns):
            return True
        if not stat.S_ISREG(status.st_mode) or status.st_size != row.target_size:
            return True
        self.summary.unchanged += 1
        return False

    def sealed_files(
        self, paths: Sequence[str] | None, passed_over: Sequence[str]
    ) -> Iterable[tuple[files.Found, Row]]:
        """Yield the encrypted files that ``paths`` mean (None: all of the ledger's), each with the
        row that has its key."""
        columns = ("source_size", "relative_path", "key_metadata")
        by_target = self.ledger.done(ENCRYPT, columns)
        for batch in self.ledger.pending():
            # Of a job that was killed, or that writes just now.
            for row in batch.rows:
                if (row.operation, row.status) == (ENCRYPT, DONE) and has_its_name(row):
                    by_target[row.target] = row
        if paths is None:
            for path, row in by_target.items():
                try:
                    status = os.stat(path)
                except OSError as error:
                    self._fail_early(files.Found(path, row.relative_path, 0, 0), "", error)
                    continue
                name = row.relative_path
                yield files.Found(path, name, status.st_size, status.st_mtime_ns), row
            return
        by_name = {row.relative_path + SUFFIX: row for row in by_target.values()}
        listing = files.find(paths, passed_over=passed_over)
        self.list_failed(listing.problems)
        for found in listing.files:
            row_or_none = by_target.get(found.path) or by_name.get(found.relative_path)
            if row_or_none is None:
                self._fail_early(found, "", KeyMetadataError("the ledger has no key of this file"))
            else:
                yield found, row_or_none

    def run(
        self,
        items: list[Item],
        kind: Callable[..., Work],
        keys: FileKeys,
        master_key_id: str | None,
        *,
        digests: bool = False,
    ) -> None:
        """Do the work, wave after wave; ``digests``: with the plaintexts' HMACs."""
        self._master_key_id = master_key_id
        self._total = sum(item.source_size for item in items)
        self._progress(0, self._total)
        self._flush_early()
        work = kind(keys, self.id, self._durable, self._bytes_done.add, digests)
        cost = task_cost(items, self._cores)
        tag = f"ags1-{self.id}"
        flying: deque[tuple[Wave, Future[list[Result]]]] = deque()
        with ThreadPoolExecutor(_WAVES_IN_FLIGHT, "ags1-wave") as pool:
            try:
                for wave in waves(items, self._cores, cost, digests=digests):
                    ready = self._prepared(wave, keys)
                    if not ready.tasks:
                        continue
                    flying.append((ready, pool.submit(self._run_wave, ready, work, tag)))
                    if len(flying) == _WAVES_IN_FLIGHT:
                        self._finish(*flying.popleft(), keys)
                while flying:
                    self._finish(*flying.popleft(), keys)
            except BaseException:
                self._stopping = True
                self._context.cancelJobsWithTag(tag)
                raise
        self._progress(self._total, self._total)

    def _run_wave(self, wave: Wave, work: Work, tag: str) -> list[Result]:
        # The tag is the thread's.
        self._context.addJobTag(tag)
        return self._run_tasks(wave.tasks, work)

    def _run_tasks(self, tasks: list[Task], work: Work) -> list[Result]:
        """Run tasks as one job. If it fails, because of a file that kills its worker, say, run its
        parts, so that it is that file alone that fails; unless nothing at all succeeds."""
        context = self._context
        try:
            cut = context.parallelize(tasks, len(tasks))
            results = [result for part in context.runJob(cut, work) for result in part]
        except Exception as error:
            failure = task_failure(error)
            self._failed_jobs += 1
            if (
                self._stopping
                or self._failed_jobs > _MAX_FAILED_JOBS
                or isinstance(failure, KMS_UNUSABLE)
            ):
                raise failure from None
        else:
            self._failed_jobs = 0
            return results
        if len(tasks) > 1:
            parts = [[task] for task in tasks]
        elif len(tasks[0]) > 1:
            middle = len(tasks[0]) // 2
            parts = [[tasks[0][:middle]], [tasks[0][middle:]]]
        else:
            piece = tasks[0][0]
            size, mtime_ns = piece.source_size, piece.source_mtime_ns
            failed = Result(piece.number, piece.first_block, size, mtime_ns)
            return [failed._replace(error_kind=type(failure).__name__, error=cause(failure))]
        return [result for part in parts for result in self._run_tasks(part, work)]

    def _prepared(self, wave: Wave, keys: FileKeys) -> Wave:
        """Make the folders of a wave, and the keys and staged files that its tasks share."""
        if not self.writes:
            return wave
        problems: dict[int, BaseException] = {}
        for item in wave.items:
            folder = os.path.dirname(item.target)
            if folder in self._folders:
                continue
            try:
                files.make_folder(folder, os.path.dirname(item.source), self._root)
                self._folders.add(folder)
            except OSError as error:
                problems[item.number] = error
        in_ranges = {task[0].number for task in wave.tasks if task[0].block_count}
        for item in wave.items:
            if item.number in in_ranges and item.number not in problems:
                try:
                    self._share(item, keys)
                except OSError as error:
                    problems[item.number] = error
        if problems:
            self._commit(
                [
                    self._failure_row(item, problems[item.number])
                    for item in wave.items
                    if item.number in problems
                ]
            )
        tasks = []
        for task in wave.tasks:
            pieces = []
            for piece in task:
                if piece.number in problems:
                    continue
                if piece.number in in_ranges:
                    shared = self._shared[piece.number]
                    wrapped = shared.wrapped or piece.wrapped
                    piece = piece._replace(wrapped=wrapped, shared=shared.staged)
                pieces.append(piece)
            if pieces:
                tasks.append(pieces)
        return Wave(tasks, [item for item in wave.items if item.number not in problems])

    def _share(self, item: Item, keys: FileKeys) -> None:
        """Stage a file for all ranges of an item, with a key where it is to be encrypted."""
        staged = files.staged_path(item.target, self.id, f"shared-{item.number:x}")
        km = wrapped = key_id = None
        size = item.plaintext_size
        mode = stat.S_IMODE(os.stat(item.source).st_mode) & 0o777
        if self.operation == ENCRYPT:
            size = layout.encrypted_size(item.plaintext_size, BLOCK_SIZE)
            km = KeyMetadata.generate(FILE_KEY_SIZE).with_file_length(size)
            document = keys.wrap(km)
            wrapped, key_id = as_text(document), document["key-id"]
        fd = files.create(staged)
        try:
            os.ftruncate(fd, size)
            if km is not None:
                os.pwrite(fd, layout.build_header(BLOCK_SIZE), 0)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
        self._shared[item.number] = _Shared(staged, km, wrapped, key_id)

    def _finish(self, wave: Wave, future: Future[list[Result]], keys: FileKeys) -> None:
        """Wait for a wave's results and commit them."""
        while True:
            try:
                results = future.result(_POLL_SECONDS)
                break
            except NotYet:
                self._progress(min(self._bytes_done.value, self._total), self._total)
        self._progress(min(self._bytes_done.value, self._total), self._total)
        of_item: dict[int, list[Result]] = {}
        for result in results:
            of_item.setdefault(result.number, []).append(result)
        rows = []
        for item in wave.items:
            try:
                result = self._whole(item, of_item[item.number])
            except EXPECTED as error:
                rows.append(self._failure_row(item, error))
            else:
                rows.append(self._row(item, result))
            self._discard_parts(item, of_item[item.number])
            self._shared.pop(item.number, None)
        self._commit(rows)

    def _whole(self, item: Item, results: list[Result]) -> Result:
        """Return one result for an item; put together what its tasks wrote, if need be."""
        failed = next((result for result in results if result.error is not None), None)
        if item.number not in self._shared:
            return failed or results[0]
        shared = self._shared[item.number]
        if failed is not None:
            self._discard_shared(item)
            return failed
        digests = [result for result in results if result.first_block < 0]
        results = [result for result in results if result.first_block >= 0]
        digest = digests[0].plaintext_hmac if digests else None
        staged = shared.staged
        if {result.staged for result in results} != {staged}:
            staged = self._assembled(item, shared, results)
        return results[0]._replace(
            staged=staged, wrapped=shared.wrapped, key_id=shared.key_id, plaintext_hmac=digest
        )

    def _assembled(self, item: Item, shared: _Shared, results: list[Result]) -> str:
        """Copy the ranges together into a file that no attempt knows.

        The file of all ranges will not do once another attempt has won one of them: the attempt
        that had begun there may still be writing.
        """
        km = shared.km
        path = files.staged_path(item.target, self.id, f"whole-{item.number:x}")
        size = results[0].target_size
        fd = files.create(path)
        try:
            if km is not None:
                os.pwrite(fd, layout.build_header(BLOCK_SIZE), 0)
            firsts = sorted(result.first_block for result in results)
            offset = layout.block_offset if km is not None else _text_offset
            ends = [offset(first, BLOCK_SIZE) for first in firsts[1:]] + [size]
            by_first = {result.first_block: result for result in results}
            for first, end in zip(firsts, ends, strict=True):
                begin = offset(first, BLOCK_SIZE)
                staged = by_first[first].staged
                assert staged is not None
                files.copy_range(staged, fd, begin, end - begin)
            os.fchmod(fd, stat.S_IMODE(os.stat(shared.staged).st_mode))
            if self._durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        files.remove(shared.staged)
        if km is not None:
            verify_file(path, km)
        return path

    def _discard_shared(self, item: Item) -> None:
        if item.number in self._shared:
            files.remove(self._shared[item.number].staged)

    def _discard_parts(self, item: Item, results: list[Result]) -> None:
        """Remove what the ranges of an item needed besides."""
        if item.number not in self._shared:
            return
        shared = self._shared[item.number].staged
        for result in results:
            files.remove(claim_path(shared, result.first_block))
            if result.staged and result.staged != shared:
                files.remove(result.staged)

    def _row(self, item: Item, result: Result) -> Row:
        done = result.error is None
        status = DONE if done else SKIPPED if result.error_kind is None else FAILED
        wrapped = result.wrapped if done else None
        return Row(
            self.operation,
            item.source,
            item.target,
            item.relative_path,
            result.source_size,
            result.source_mtime_ns,
            result.target_size if done else None,
            status,
            result.error_kind,
            result.error,
            wrapped,
            result.key_id if done else None,
            self._master_key_id if done else None,
            result.plaintext_hmac if done else None,
            os.path.basename(result.staged) if done and result.staged else None,
            item.replaces,
            self.id,
            time.time_ns() // 1_000_000,
        )

    def _failure_row(self, item: Item, error: BaseException) -> Row:
        result = Result(
            item.number,
            0,
            item.source_size,
            item.source_mtime_ns,
            error_kind=type(error).__name__,
            error=cause(error),
        )
        return self._row(item, result)

    def _fail_early(self, found: files.Found, target: str, error: BaseException) -> None:
        item = Item(-1, found.path, target, found.relative_path, found.size, found.mtime_ns, 0)
        self._early.append(self._failure_row(item, error))

    def _flush_early(self) -> None:
        rows, self._early = self._early, []
        self._commit(rows)

    def _commit(self, rows: list[Row]) -> None:
        """Publish what the rows are about and settle them in the ledger."""
        if not rows:
            return
        if self.writes:
            self._unsettled = True
            batch = self.ledger.prepare(rows)
            rows = published(rows)
            if self._durable and any(row.status == DONE for row in rows):
                files.sync_file_system(self._root)
            self.ledger.settle(batch, rows)
            self._unsettled = False
        summary = self.summary
        for row in rows:
            if row.status == DONE:
                summary.done += 1
                summary.size += row.source_size
            elif row.status == SKIPPED:
                summary.skipped += 1
            else:
                summary.add_failure(row.source, row.error_kind or "", row.error or "")


def _text_offset(number: int, block_size: int) -> int:
    return number * block_size


def task_failure(error: Exception) -> Exception:
    """Return what to say of an exception of Spark's: ours, if one was at its root."""
    text = str(error)
    if match := _PYTHON_ERROR.search(text):
        kind = getattr(errors, match[1], None)
        if isinstance(kind, type) and issubclass(kind, Ags1Error):
            return kind(match[2])
    java = getattr(error, "java_exception", None)
    message = str(java.getMessage()) if java is not None else text
    _, _, python = message.partition("Traceback (most recent call last):\n")
    said = [line for line in python.splitlines() if line and not line.startswith(" ")]
    said += [*message.splitlines(), type(error).__name__]
    return TaskFailedError(said[0][:_MAX_CAUSE])
