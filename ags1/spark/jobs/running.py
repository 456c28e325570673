"""One run of a job, on the driver: it runs waves of tasks, and commits their results.

::

    Job()            the ledger's lock
    __enter__        finish what a killed job has left; note that this job has begun
    takes            for each file: is there anything to do?
    run              for each wave: _prepared  stage the files, make keys that tasks share
                                    _run_wave  the tasks, by Spark
                                    _finish    put together what they wrote, and _commit:
                                               rows pending, files named, rows settled
    __exit__         remove what is staged; note the end

Knows nothing of what is done to a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ... import errors
from ..._gcm import random_bytes
from ...bulk import verify_file
from ...errors import KMS_UNUSABLE, Ags1Error, FormatError, KeyMetadataError, TruncatedError
from ...key_metadata import KeyMetadata
from ...keys.keychain import FILE_KEY_SIZE
from ...layout import encrypted_size
from ..keys import FileKeys, as_text
from ..ledger import DECRYPT, DONE, ENCRYPT, FAILED, SKIPPED, Ledger, Row
from ..paths import ledger_folder
from ..storage.choice import absolute, find, storage_of
from ..storage.pieces import BLOCK_SIZE, Item, target_size
from ..storage.protocol import REQUESTS, Problem, SourceFile, Staging, StatusOf
from ..workers import task_context
from . import planning
from .planning import Task, Wave, task_cost, waves
from .publishing import clear, has_its_name, published, settle_pending, sync_names
from .work import EXPECTED, WRONG_LENGTH, Result, Work, cause, identity_of

SUFFIX = ".ags1"
VERIFY = "verify"
_NO_KEY = "the ledger has no key for this file: use the ledger of the job that encrypted it"
# In a summary; the ledger has them all.
MAX_FAILURES = 1000
_POLL_SECONDS = 0.1
# Spark gives a Python worker two seconds to end.
_LAST_TASKS_SECONDS = 10
# The Spark jobs whose tasks may still be running.
_LAST_JOBS = 32
# Two, so that one wave is published while the next one runs.
_WAVES_IN_FLIGHT = 2
_MAX_CAUSE = 500
# Up to so many requests are sent by the driver, more by executors.
_FEW_REQUESTS = 256
# More than it takes to find one bad file among those of a task.
_MAX_FAILED_JOBS = 16
# Errors of no single file: the executors have another Python, or lack a module.
_NO_PYTHON = ("ModuleNotFoundError", "Cannot run program", "[PYTHON_VERSION_MISMATCH]")
_PYTHON_ERROR = re.compile(r"^ags1\.errors\.(\w+): (.*)$", re.MULTILINE)

T = TypeVar("T")
R = TypeVar("R")

Progress: TypeAlias = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class FailedFile:
    """A file for which a job failed; ``kind`` is the exception's name."""

    path: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(slots=True)
class Summary:
    """What a job has done. ``unchanged`` files were done already. ``size`` is the bytes of the
    sources that were done now. ``failures`` has the first thousand."""

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
        """Count a failure, and keep it if it is one of the first."""
        self.failed += 1
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(FailedFile(path, kind, message))


class TaskFailedError(Ags1Error):
    """A task failed again and again, with an error that the work on a file does not raise."""


class _Shared(NamedTuple):
    """What the attempts at a file share: what its storage has staged for them and, if the file is
    cut and encrypted, its key (which stays in the driver), the wrapped key, and the identity of the
    source."""

    staged: str | None
    km: KeyMetadata | None = None
    wrapped: str | None = None
    key_id: str | None = None
    identity: str = ""


class Job:
    """One run: its ledger, its summary, and its waves."""

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
        self._group = f"ags1-{self.id}"
        self.writes = operation != VERIFY
        self._context = spark.sparkContext
        self._root = root
        self._storage = storage_of(root)
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
        # Spark's ids of jobs that failed, or ran at that time: their tasks may still be running.
        self._failed_ids: deque[int] = deque(maxlen=_LAST_JOBS)
        # By the item's number.
        self._shared: dict[int, _Shared] = {}
        self._staging = Staging(self.id, root, operation == ENCRYPT, durable)
        self._wave = 0  # the number of the newest wave in the ledger
        self._status_of: StatusOf = lambda target: None
        if operation != ENCRYPT:
            os.listdir(ledger_folder(ledger))  # it must exist
        self.ledger = Ledger(ledger, writing=self.writes, durable=durable)

    def __enter__(self) -> Job:
        try:
            if self.writes:
                # Other operations concern all files of the ledger.
                root = self._root if self.operation in (ENCRYPT, DECRYPT) else None
                settle_pending(self.ledger, durable=self._durable, root=root)
                self._storage.make_root(self._root)
                # In this order: a note without a mark means that the folder is not mounted.
                self._storage.mark(self.id, self._root, durable=self._durable)
                self.ledger.begin(self.id, self._root)
        except BaseException:
            self.ledger.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        broken_off = error[0] is not None
        may_go_on = broken_off or bool(self._failed_ids)
        try:
            # Spark itself may have ended.
            with contextlib.suppress(Exception):
                if may_go_on or self._speculates():
                    ended = wait_for_tasks(self._context, self._group, self._failed_ids)
                    may_go_on = broken_off or not ended
            # A pending batch needs its staged files: the next job settles it.
            if self.writes and not self._unsettled:
                if may_go_on:
                    # The ledger keeps its note, so the next job removes what late tasks leave.
                    staged = self.ledger.staged(self.id)
                    self._storage.clear(self.id, self._root, self._folders, staged)
                else:
                    clear(self.ledger, self.id, self._root, self._folders)
        finally:
            self.ledger.close()
        self.summary.seconds = time.monotonic() - self._started

    def _speculates(self) -> bool:
        return str(self._context.getConf().get("spark.speculation", "false")).lower() == "true"

    def stages_in(self, folder: str) -> None:
        """Note that the job stages files in a folder, so that its end removes them."""
        self._folders.add(folder)

    def target(self, name: str) -> str:
        """Return the path of a target; ``takes`` checks that it lies in the job's folder."""
        return os.path.join(self._root, name)

    def unit(self, plaintext_size: int) -> int:
        """Return the number of blocks that the ranges of a file are a multiple of; 0: one task."""
        return self._storage.unit(plaintext_size) if self.writes else 1

    def looks_at(self, count: int) -> None:
        """Prepare to look at so many targets."""
        self._status_of = self._storage.statuses(self._root, count, follow=False)

    def list_failed(self, problems: Sequence[Problem]) -> None:
        """Note paths that could not be listed as failures."""
        for path, error in problems:
            self._fail_early(SourceFile(path, "", 0, ""), "", error)

    def fail_as_empty(self, paths: Sequence[str], passed_over: Sequence[str]) -> None:
        """Note paths without any file as failures: the folder may not be mounted."""
        closed = [absolute(folder).rstrip("/") + "/" for folder in passed_over if folder]
        for path in paths:
            said = "there is no file: check the path, and that it is mounted"
            if any((absolute(path) + "/").startswith(folder) for folder in closed):
                said = "it is in the folder of the targets or the ledger: name another source"
            self._fail_early(SourceFile(path, "", 0, ""), "", OSError(errno.ENOENT, said))

    def takes(self, file: SourceFile, target: str, row: Row | None, *, overwrite: bool) -> bool:
        """Whether a file has to be done; ``row`` is the ledger's of its target."""
        if not self._storage.holds(self._root, target):
            said = f"its target would be outside the folder {self._root}: rename the source"
            self._fail_early(file, "", OSError(errno.EINVAL, said))
            return False
        if target in self._targets:
            said = f"another source has the same target, {target}: name a folder above both"
            self._fail_early(file, "", OSError(errno.EINVAL, said))
            return False
        self._targets.add(target)
        if row is None and overwrite:
            return True
        try:
            status = self._status_of(target)
        except (OSError, ValueError) as error:  # a name with a NUL in it, say
            self._fail_early(file, target, error)
            return False
        if status is None:
            return True
        if row is None:
            said = (
                "the target exists, and this ledger does not know it: use --force (overwrite=True)"
            )
            self._fail_early(file, target, FileExistsError(errno.EEXIST, said))
            return False
        as_it_was = (row.source, row.source_size, row.source_version)
        if as_it_was != (file.path, file.size, file.version):
            return True
        if status.size != row.target_size:
            return True
        self.summary.unchanged += 1
        return False

    def sealed_files(
        self, paths: Sequence[str] | None, passed_over: Sequence[str]
    ) -> Iterable[tuple[SourceFile, Row]]:
        """Yield the encrypted files that ``paths`` mean (None: all files of the ledger), each with
        the row that has its key."""
        # Of a job that was killed, or that is writing now.
        pending = [row for batch in self.ledger.pending() for row in batch.rows]
        columns = ("source_size", "relative_path", "key_metadata")
        by_target = self.ledger.done(ENCRYPT, columns)
        pending = [row for row in pending if (row.operation, row.status) == (ENCRYPT, DONE)]
        with ThreadPoolExecutor(REQUESTS, "ags1-names") as pool:
            for row, is_named in zip(pending, pool.map(has_its_name, pending), strict=True):
                if is_named:
                    by_target[row.target] = row
        if paths is None:
            yield from self._all_sealed(by_target)
            return
        by_name = {f"{row.relative_path}{SUFFIX}": row for row in by_target.values()}
        listing = find(paths, passed_over=passed_over)
        self.list_failed(listing.problems)
        if not listing.files and not listing.problems:
            self.fail_as_empty(paths, passed_over)
        for file in listing.files:
            row_or_none = by_target.get(file.path) or by_name.get(file.relative_path)
            if row_or_none is None:
                self._fail_early(file, "", KeyMetadataError(_NO_KEY))
            elif self._has_its_length(file, row_or_none):
                yield file, row_or_none

    def _has_its_length(self, file: SourceFile, row: Row) -> bool:
        """Whether a file has the length in its row, by which it is cut."""
        try:
            expected = encrypted_size(row.source_size, BLOCK_SIZE)
        except (FormatError, TypeError):  # the row is damaged
            expected = -1
        if file.size == expected:
            return True
        kind = TruncatedError if file.size < expected else FormatError
        self._fail_early(file, "", kind(WRONG_LENGTH))
        return False

    def _all_sealed(self, by_target: Mapping[str, Row]) -> Iterator[tuple[SourceFile, Row]]:
        paths: dict[int, list[str]] = {}
        storages: dict[str, int] = {}
        for path, row in by_target.items():
            try:
                storages[path] = id(storage_of(path))
            except (OSError, ValueError) as error:
                self._fail_early(SourceFile(path, row.relative_path, 0, ""), "", error)
            else:
                paths.setdefault(storages[path], []).append(path)
        status_of = {}
        for number, its in paths.items():
            # commonpath would not return a URL.
            folder = os.path.dirname(os.path.commonprefix(its) + "x")  # noqa: RUF071
            status_of[number] = storage_of(folder).statuses(folder, len(its), follow=True)
        for path, number in storages.items():
            row = by_target[path]
            try:
                status = status_of[number](path)
                if status is None:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            except (OSError, ValueError) as error:
                self._fail_early(SourceFile(path, row.relative_path, 0, ""), "", error)
                continue
            file = SourceFile(path, row.relative_path, *status)
            if self._has_its_length(file, row):
                yield file, row

    def run(
        self,
        items: list[Item],
        kind: Callable[..., Work],
        keys: FileKeys,
        master_key_id: str | None,
        *,
        digests: bool = False,
    ) -> None:
        """Do the work, wave after wave; ``digests``: also compute HMACs of the plaintexts."""
        self._master_key_id = master_key_id
        self._total = sum(item.source_size for item in items)
        self._progress(0, self._total)
        self._flush_early()
        work = kind(keys, self.id, self._durable, self._bytes_done.add, digests)
        remote = self._storage.is_remote or any(storage_of(i.source).is_remote for i in items)
        file_cost = planning.REMOTE_FILE_COST if remote else planning.FILE_COST
        cost = task_cost(items, self._cores, file_cost)
        flying: deque[tuple[Wave, Future[list[Result]]]] = deque()
        with ThreadPoolExecutor(_WAVES_IN_FLIGHT, "ags1-wave") as pool:
            try:
                for wave in waves(items, self._cores, cost, file_cost, digests=digests):
                    ready = self._prepared(wave, keys)
                    if not ready.tasks:
                        continue
                    flying.append((ready, pool.submit(self._run_wave, ready, work)))
                    if len(flying) == _WAVES_IN_FLIGHT:
                        self._finish(*flying[0])
                        flying.popleft()
                while flying:
                    self._finish(*flying[0])
                    flying.popleft()
            except BaseException:
                self._stopping = True
                cancel(self._context, self._group, (future for _, future in flying))
                raise
        self._progress(self._total, self._total)

    def _run_wave(self, wave: Wave, work: Work) -> list[Result]:
        # Spark keeps the job group by thread.
        self._context.setJobGroup(self._group, f"ags1: {self.operation} files")
        return self._run_tasks(wave.tasks, work)

    def _run_tasks(self, tasks: list[Task], work: Work) -> list[Result]:
        """Run tasks as one Spark job. If it fails, for instance because a file kills its worker,
        run its parts one by one, so that only that file fails. Give up if no part succeeds."""
        context = self._context
        try:
            cut = context.parallelize(tasks, len(tasks))
            results = [result for part in context.runJob(cut, work) for result in part]
        except Exception as error:
            failure = task_failure(error)
            self._failed_jobs += 1
            with contextlib.suppress(Exception):  # Spark itself may have ended
                self._failed_ids += _last_jobs(context, self._group, 2 * _WAVES_IN_FLIGHT)
            if (
                self._stopping
                or self._failed_jobs > _MAX_FAILED_JOBS
                or isinstance(failure, KMS_UNUSABLE)
                or any(sign in str(failure) for sign in _NO_PYTHON)
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
            size, version = piece.source_size, piece.source_version
            failed = Result(piece.number, piece.first_block, size, version)
            return [failed._replace(error_kind=type(failure).__name__, error=cause(failure))]
        work = dataclasses.replace(work, first_attempt=work.first_attempt + 1)
        return [result for part in parts for result in self._run_tasks(part, work)]

    def _prepared(self, wave: Wave, keys: FileKeys) -> Wave:
        """Stage the files of a wave, and make the keys of files that are cut."""
        if not self.writes:
            return wave
        self._folders.update(os.path.dirname(item.target) for item in wave.items)
        cut = {task[0].number for task in wave.tasks if task[0].block_count}
        staged = dict(self._spread(partial(_staged, self._staging, cut), wave.items))
        failed: list[Row] = []
        items: list[Item] = []
        begun: dict[str, str] = {}
        for item in wave.items:
            stage = staged[item.number]
            if isinstance(stage, OSError):
                failed.append(self._failure_row(item, stage))
                continue
            items.append(item)
            self._shared[item.number] = self._sharing(stage, item, cut, keys)
            if stage is not None and self._storage.is_remote:
                begun[item.target] = stage
        if begun:
            self._wave += 1
            self.ledger.note_staged(self.id, self._wave, begun)
        self._commit(failed)
        tasks = []
        for task in wave.tasks:
            shared = [(piece, self._shared.get(piece.number)) for piece in task]
            pieces = [
                piece._replace(
                    shared=its.staged,
                    wrapped=its.wrapped or piece.wrapped,
                    source_identity=its.identity,
                )
                for piece, its in shared
                if its is not None
            ]
            if pieces:
                tasks.append(pieces)
        return Wave(tasks, items, self._wave)

    def _sharing(
        self, stage: str | None, item: Item, cut: Collection[int], keys: FileKeys
    ) -> _Shared:
        if item.number not in cut or self.operation != ENCRYPT:
            return _Shared(stage)
        size = target_size(item, seals=True)
        km = KeyMetadata.generate(FILE_KEY_SIZE).with_file_length(size)
        document = keys.wrap(km)
        try:
            identity = identity_of(item.source)
        except OSError:
            identity = "gone"  # no file has this identity
        return _Shared(stage, km, as_text(document), document["key-id"], identity)

    def _spread(
        self,
        call: Callable[[list[T]], list[R]],
        items: list[T],
        again: Callable[[list[T]], list[R]] | None = None,
    ) -> list[R]:
        """Call a function with all items. If that takes many requests, executors share them. A task
        that runs again calls ``again``, because some of its items may be done."""
        if not self._storage.is_remote or len(items) <= _FEW_REQUESTS:
            return call(items)
        size = max(_FEW_REQUESTS, -(-len(items) // self._cores))
        parts = [items[first : first + size] for first in range(0, len(items), size)]
        cut = self._context.parallelize(parts, len(parts))
        try:
            again = again or call
            # With speculation two copies of a task run, and one may find the other's work.
            first = again if self._speculates() else call
            return list(self._context.runJob(cut, partial(_each, first, again)))
        except Exception as error:
            raise task_failure(error) from None

    def _finish(self, wave: Wave, future: Future[list[Result]]) -> None:
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
        all_gone = True
        for item in wave.items:
            shared = self._shared.pop(item.number, _Shared(None))
            results = of_item[item.number]
            try:
                row = self._row(item, self._whole(item, shared, results))
            except EXPECTED as error:
                row = self._failure_row(item, error)
            if self.writes:
                staged = [(result.first_block, result.staged or "") for result in results]
                failed = row.status != DONE
                all_gone &= self._storage.discard(item.target, shared.staged, staged, all_=failed)
            rows.append(row)
        self._commit(rows)
        if wave.number and all_gone:
            self.ledger.forget_staged(self.id, wave.number)

    def _whole(self, item: Item, shared: _Shared, results: list[Result]) -> Result:
        """Put together what the tasks wrote of an item, and return one result."""
        failed = next((result for result in results if result.error is not None), None)
        if failed is not None or not self.writes:
            return failed or results[0]
        digest = next((r.plaintext_hmac for r in results if r.plaintext_hmac), None)
        staged = [(r.first_block, r.staged) for r in results if r.staged is not None]
        km = shared.km
        check = (lambda path: None) if km is None else (lambda path: verify_file(path, km))
        attempt = self._storage.gather(self._staging, item, shared.staged, staged, check)
        result = max(results, key=lambda result: result.first_block)._replace(
            staged=attempt, plaintext_hmac=digest
        )
        if shared.wrapped is not None:
            result = result._replace(wrapped=shared.wrapped, key_id=shared.key_id)
        return result

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
            result.source_version,
            result.target_size if done else None,
            status,
            result.error_kind,
            result.error,
            wrapped,
            result.key_id if done else None,
            self._master_key_id if done else None,
            result.plaintext_hmac if done else None,
            result.staged if done else None,
            item.replaces,
            self.id,
            time.time_ns() // 1_000_000,
        )

    def _failure_row(self, item: Item, error: BaseException) -> Row:
        result = Result(
            item.number,
            0,
            item.source_size,
            item.source_version,
            error_kind=type(error).__name__,
            error=cause(error),
        )
        return self._row(item, result)

    def _fail_early(self, file: SourceFile, target: str, error: BaseException) -> None:
        item = Item(-1, file.path, target, file.relative_path, file.size, file.version, 0)
        self._early.append(self._failure_row(item, error))

    def _flush_early(self) -> None:
        rows, self._early = self._early, []
        self._commit(rows)

    def _commit(self, rows: list[Row]) -> None:
        """Give the files of the rows their names, and settle the rows in the ledger."""
        if not rows:
            return
        if self.writes:
            self._unsettled = True
            batch = self.ledger.prepare(rows)
            rows = self._spread(published, rows, partial(published, again=True))
            if self._durable:
                sync_names(rows)
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


def _staged(
    staging: Staging, cut: Collection[int], items: list[Item]
) -> list[tuple[int, str | OSError | None]]:
    return list(storage_of(staging.root).stage(staging, items, cut).items())


def _each(
    call: Callable[[list[T]], list[R]],
    again: Callable[[list[T]], list[R]],
    parts: Iterable[list[T]],
) -> Iterator[R]:
    context = task_context()
    for part in parts:
        yield from (again if context.attemptNumber() else call)(part)


def cancel(context: Any, group: str, waves: Iterable[Future[Any]]) -> None:
    """End the waves of a job group that are under way, and wait until they have ended."""
    under_way = {future for future in waves if not future.cancel()}
    while under_way:
        # Again and again: a wave may be about to begin.
        context.cancelJobGroup(group)
        under_way = wait(under_way, _POLL_SECONDS).not_done


def wait_for_tasks(context: Any, group: str, failed_ids: Iterable[int] = ()) -> bool:
    """Wait some seconds for tasks of a job group that outlast their Spark jobs: cancelled tasks and
    second attempts. Return whether they have ended. ``failed_ids`` are the ids of jobs to look at
    besides the last ones of the group."""
    end = time.monotonic() + _LAST_TASKS_SECONDS
    job_ids = {*failed_ids, *_last_jobs(context, group, _LAST_JOBS)}
    while _have_tasks(context, job_ids):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _last_jobs(context: Any, group: str, count: int) -> list[int]:
    return sorted(context.statusTracker().getJobIdsForGroup(group))[-count:]


def _have_tasks(context: Any, job_ids: Iterable[int]) -> bool:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job_id) for job_id in job_ids]
    stages = [tracker.getStageInfo(n) for job in jobs if job for n in job.stageIds]
    return any(stage.numActiveTasks for stage in stages if stage)


def task_failure(error: Exception) -> Exception:
    """Return the exception of ours that caused Spark's, or else a TaskFailedError."""
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
