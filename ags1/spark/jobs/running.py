"""One run of a job, on the driver: it runs waves of tasks, and commits their results.

::

    Job()            the ledger's lock
    __enter__        finish what a killed job has left
    selection        which files have to be done
    run              begin: note that this job has begun; only then Spark is needed
                     for each wave: _prepared  stage the files, make keys that tasks share
                                    _run_wave  the tasks, by Spark (``group``)
                                    _finish    put together what they wrote, and _commit:
                                               rows pending, files named, rows settled
    __exit__         remove what is staged; note the end

Knows nothing of what is done to a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..._gcm import random_bytes
from ...bulk import verify_file
from ...errors import KMS_UNUSABLE
from ...key_metadata import KeyMetadata
from ...keys.keychain import FILE_KEY_SIZE
from ..keys import FileKeys, as_text
from ..ledger import (
    DECRYPT,
    DONE,
    ENCRYPT,
    FAILED,
    SKIPPED,
    JobNote,
    Row,
    check_ledger,
    open_ledger,
)
from ..storage.choice import storage_of
from ..storage.pieces import Item, target_size
from ..storage.protocol import JobEndedError, Staging
from ..workers import task_context
from . import planning
from .group import JobGroup, SparkEndedError
from .patterns import Patterns
from .planning import Pace, Task, Wave, task_cost, waves
from .publishing import clear, clear_again, published, settle_pending, sync_names
from .selection import SUFFIX, Selection
from .work import EXPECTED, NO_ROOM, Result, Work, failed, identity_of

VERIFY = "verify"
# In a summary; the ledger has them all.
MAX_FAILURES = 1000
# Up to so many requests are sent by the driver, more by executors.
_FEW_REQUESTS = 64
# More than it takes to find one bad file among those of a task.
_MAX_FAILED_JOBS = 16
# In the texts of errors that are not a file's: the executors have another Python or lack a module,
# or the job has ended.
_OF_NO_FILE = (
    "ModuleNotFoundError",
    "Cannot run program",
    "[PYTHON_VERSION_MISMATCH]",
    JobEndedError.__name__,
)

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


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that a job would do, its target (empty for a job that writes none), and the source's
    size in bytes."""

    path: str
    target: str
    size: int


@dataclass(slots=True)
class Summary:
    """The result of a job. ``unchanged`` files were done already; ``skipped`` ones were encrypted
    already. ``not_tried`` files were left because too many others failed. ``passed_over`` counts,
    by reason, what is no file or was not wanted. ``size`` is the bytes of the sources that were
    done now. ``failures`` has the first thousand. A dry run has the files that it would do in
    ``planned``."""

    operation: str
    done: int = 0
    unchanged: int = 0
    skipped: int = 0
    failed: int = 0
    not_tried: int = 0
    size: int = 0
    seconds: float = 0.0
    passed_over: dict[str, int] = field(default_factory=dict)
    failures: list[FailedFile] = field(default_factory=list)
    planned: list[PlannedFile] = field(default_factory=list)

    @property
    def bytes_per_second(self) -> float:
        return self.size / self.seconds if self.seconds else 0.0

    def add_failure(self, path: str, kind: str, message: str) -> None:
        """Count a failure, and keep it if it is one of the first."""
        self.failed += 1
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(FailedFile(path, kind, message))


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a job is run: the arguments of these names of ``encrypt_files``."""

    durable: bool = True
    cores: int | None = None
    progress: Progress | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    dry_run: bool = False
    max_failures: int | None = None
    sidecars: bool = False

    def __post_init__(self) -> None:
        for name in ("cores", "max_failures"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"{name} is {number}: give 1 or more")


class _NoLedger:
    """What a dry run reads where there is no ledger yet."""

    location = ""

    def facts(self, *arguments: Any, **options: Any) -> None:
        return

    def close(self) -> None:
        return


class _Shared(NamedTuple):
    """The values that all attempts at a file share. ``staged`` is what its storage has prepared for
    them. If the file is cut and encrypted, there are its key (which stays in the driver), the
    wrapped key, and the identity of the source."""

    staged: str | None
    km: KeyMetadata | None = None
    wrapped: str | None = None
    key_id: str | None = None
    identity: str = ""


class Job:
    """One run: its ledger, its summary, and its waves."""

    def __init__(
        self, spark: Any, operation: str, root: str, ledger: str, conduct: Conduct
    ) -> None:
        self.summary = Summary(operation)
        self.operation = operation
        self.id = random_bytes(6).hex()
        self.writes = operation != VERIFY and not conduct.dry_run
        self._spark = spark
        self._group: JobGroup | None = None
        self._conduct = conduct
        self._root = root
        self._storage = storage_of(root)
        self._durable = conduct.durable
        self._progress = conduct.progress or (lambda done, total: None)
        self._started = time.monotonic()
        self._folders: set[str] = set()
        self._new_folders: set[str] = set()
        self._has_begun = self._has_dead_jobs = False
        self.has_ended = False  # all that Spark was asked for
        self._told = 0  # bytes
        self._total = 0
        self._tried = 0  # files
        self._no_room: OSError | None = None
        self._master_key_id: str | None = None
        self._has_pending_batch = False
        self._failed_jobs = 0  # since the last one that succeeded
        # For each item's number.
        self._shared: dict[int, _Shared] = {}
        self._staging = Staging(self.id, root, operation == ENCRYPT, conduct.durable)
        self._wave = 0  # the number of the newest wave in the ledger
        suffix = "" if operation == ENCRYPT else SUFFIX
        wanted = Patterns(conduct.include, conduct.exclude, suffix=suffix)
        self.ledger: Any = self._opened(ledger)
        self.selection = Selection(operation, root, self.ledger, wanted)

    def _opened(self, ledger: str) -> Any:
        if self.operation != ENCRYPT:
            check_ledger(ledger)
        try:
            return open_ledger(ledger, writing=self.writes, durable=self._durable)
        except FileNotFoundError:
            if self.operation == ENCRYPT and self._conduct.dry_run:
                return _NoLedger()
            raise

    @property
    def group(self) -> JobGroup:
        """The Spark jobs of this run. Spark is started when they are first asked for."""
        if self._group is None:
            session = self._spark() if callable(self._spark) else self._spark
            description = f"ags1: {self.operation} files"
            self._group = JobGroup(session, f"ags1-{self.id}", description, self._conduct.cores)
        return self._group

    def __enter__(self) -> Job:
        try:
            self._storage.check_root(self._root)
            if self.writes:
                # Other operations concern all files of the ledger.
                root = self._root if self.operation in (ENCRYPT, DECRYPT) else None
                with self._naming_ledger():
                    dead = settle_pending(self.ledger, durable=self._durable, root=root)
                self._has_dead_jobs = bool(dead)
        except BaseException:
            self.ledger.close()
            raise
        return self

    def begin(self) -> None:
        """Make the folder of the targets, and note in it and in the ledger that this job writes.
        Raises OSError."""
        if self.writes:
            self._new_folders |= self._storage.missing_folders([self._root], self._root)
            self._storage.make_root(self._root)
            self._has_begun = True
            # In this order: a note without a mark means that the folder is not mounted.
            self._storage.mark(self.id, self._root, durable=self._durable)
            with self._naming_ledger():
                self.ledger.begin(self.id, self._root, sidecars=self._conduct.sidecars)

    def __exit__(self, *error: object) -> None:
        group = self._group
        was_interrupted = group is not None and not self.has_ended
        tasks_may_run = group is not None and (was_interrupted or group.has_failures)
        try:
            # Spark itself may have ended.
            with contextlib.suppress(Exception):
                if group is not None and (tasks_may_run or group.speculates):
                    # Spark kills the processes of its ended tasks a while later. If one is killed
                    # between writing to a remote storage and its look at the mark, the file stays.
                    tasks_may_run = was_interrupted or self._storage.is_remote
                    tasks_may_run |= not group.wait_for_tasks()
            # A pending batch needs its staged files: the next job settles it.
            if self._has_begun and not self._has_pending_batch:
                late = JobNote(self._root, self._conduct.sidecars) if tasks_may_run else None
                clear(self.ledger, self.id, self._root, self._folders, late=late)
                self._storage.remove_empty(self._new_folders)
            if self._has_dead_jobs:
                clear_again(self.ledger)
        finally:
            self.ledger.close()
        self.summary.seconds = time.monotonic() - self._started

    def run(
        self,
        items: Collection[Item],
        kind: Callable[..., Work],
        keys: FileKeys,
        master_key_id: str | None,
        *,
        digests: bool = False,
    ) -> None:
        """Do the work, wave after wave; ``digests``: also compute HMACs of the plaintexts. Spark is
        not needed, and nothing is written, before all is known that can be known without it. Raises
        OSError if there is no room for more targets; then the files done so far stay done."""
        self._master_key_id = master_key_id
        remote = self._storage.is_remote
        for item in items:
            self._total += item.source_size
            remote = remote or storage_of(item.source).is_remote
        self._progress(0, self._total)
        if master_key_id is None:
            keys.check(item.wrapped or "" for item in items)
        if self._conduct.dry_run:
            planned = (PlannedFile(item.source, item.target, item.source_size) for item in items)
            self.summary.planned = list(planned)
            self._commit_failures()
            return
        if items:
            self.begin()
        self._commit_failures()
        failed_before = self.summary.failed
        if items and not self._is_stopped:
            self._run_waves(items, kind, keys, digests, remote)
        self.has_ended = True
        self.summary.not_tried = len(items) - self._tried
        if self._no_room is not None:
            error, summary = self._no_room, self.summary
            todo = len(items) - summary.done - summary.skipped - summary.failed + failed_before
            said = f"{error.strerror} ({summary.done} files are done, {todo} are left): "
            said += "make room and run the job again"
            raise OSError(error.errno, said, error.filename)

    @property
    def _is_stopped(self) -> bool:
        most = self._conduct.max_failures
        return self._no_room is not None or (most is not None and self.summary.failed >= most)

    def _run_waves(
        self,
        items: Collection[Item],
        kind: Callable[..., Work],
        keys: FileKeys,
        digests: bool,
        remote: bool,
    ) -> None:
        work = kind(keys, self.id, self._durable, digests, root=self._root)
        file_cost = planning.REMOTE_FILE_COST if remote else planning.FILE_COST
        cost = task_cost(items, self.group.cores, file_cost)
        pace = Pace(self.group.cores)
        cut = waves(items, pace, cost, file_cost, digests)
        wanted = itertools.takewhile(lambda _: not self._is_stopped, cut)
        prepared = (self._prepared(wave, keys) for wave in wanted)
        begun = time.monotonic()
        not_empty = (wave for wave in prepared if wave.tasks)
        run = self.group.run_waves(not_empty, lambda wave: self._run_wave(wave, work), self._tell)
        with closing(run) as finished:
            for wave, results in finished:
                pace.finished(wave, time.monotonic() - begun)
                self._finish(wave, results)
        self._progress(self._total, self._total)

    def _tell(self) -> None:
        if self._conduct.progress is None:
            return
        self._told = max(self._told, min(self.group.cost_done, self._total))
        self._progress(self._told, self._total)

    def _run_wave(self, wave: Wave, work: Work) -> list[Result]:
        return self._run_tasks(wave.tasks, work)

    def _run_tasks(self, tasks: list[Task], work: Work) -> list[Result]:
        """Run tasks as one Spark job. If it fails, for instance because a file kills its worker,
        run its parts one by one, so that only that file fails. Give up if no part succeeds."""
        costs = [sum(piece.cost for piece in task) for task in tasks]
        try:
            results = [result for part in self.group.run(tasks, work, costs) for result in part]
        except Exception as error:
            failure = error
            self._failed_jobs += 1
            if (
                self.group.is_cancelled
                or self._failed_jobs > _MAX_FAILED_JOBS
                or isinstance(failure, (*KMS_UNUSABLE, SparkEndedError))
                or any(sign in str(failure) for sign in _OF_NO_FILE)
            ):
                raise
        else:
            self._failed_jobs = 0
            return results
        if len(tasks) > 1:
            parts = [[task] for task in tasks]
        elif len(tasks[0]) > 1:
            middle = len(tasks[0]) // 2
            parts = [[tasks[0][:middle]], [tasks[0][middle:]]]
        else:
            return [failed(tasks[0][0], tasks[0][0].first_block, failure)]
        work = dataclasses.replace(work, first_attempt=work.first_attempt + 1)
        return [result for part in parts for result in self._run_tasks(part, work)]

    def _prepared(self, wave: Wave, keys: FileKeys) -> Wave:
        """Stage the files of a wave, and make the keys of files that are cut."""
        self._tried += len(wave.items)
        if not self.writes:
            return wave
        folders = {os.path.dirname(item.target) for item in wave.items}
        self._folders |= folders
        self._new_folders |= self._storage.missing_folders(folders, self._root)
        cut = {task[0].number for task in wave.tasks if task[0].block_count}
        staged = dict(self._spread(partial(_staged, self._staging, cut), wave.items))
        rows: list[Row] = []
        items: list[Item] = []
        begun: dict[str, str] = {}
        for item in wave.items:
            stage = staged[item.number]
            if isinstance(stage, OSError):
                if not self._has_no_room(stage, item):
                    rows.append(self._failure_row(item, stage))
                continue
            items.append(item)
            self._shared[item.number] = self._sharing(stage, item, cut, keys)
            if stage is not None and self._storage.is_remote:
                begun[item.target] = stage
        if begun:
            self._wave += 1
            with self._naming_ledger():
                self.ledger.note_staged(self.id, self._wave, begun)
        self._commit(rows)
        tasks = [
            [
                piece._replace(
                    shared=shared.staged,
                    wrapped=shared.wrapped or piece.wrapped,
                    source_identity=shared.identity,
                )
                for piece in task
                if (shared := self._shared.get(piece.number)) is not None
            ]
            for task in wave.tasks
        ]
        return Wave([task for task in tasks if task], items, self._wave)

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
            identity = "none"  # no file has this identity
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
        size = max(_FEW_REQUESTS, -(-len(items) // self.group.cores))
        parts = [items[first : first + size] for first in range(0, len(items), size)]
        again = again or call
        # With speculation two copies of a task run, and one may find the other's work.
        first_time = again if self.group.speculates else call
        results = self.group.run(parts, partial(_each, first_time, again))
        return [result for part in results for result in part]

    def _finish(self, wave: Wave, results: list[Result]) -> None:
        """Put together the results of a wave and commit them."""
        of_item: dict[int, list[Result]] = {}
        for result in results:
            of_item.setdefault(result.number, []).append(result)
        rows = []
        all_discarded = True
        for item in wave.items:
            shared = self._shared.pop(item.number, _Shared(None))
            results = of_item[item.number]
            has_no_room = False
            try:
                whole = self._whole(item, shared, results)
                row = self._row(item, whole)
                has_no_room = self._has_no_room(OSError(whole.errno, whole.error), item)
            except EXPECTED as error:
                row = self._failure_row(item, error)
                has_no_room = self._has_no_room(error, item)
            if self.writes:
                staged = [(result.first_block, result.staged or "") for result in results]
                all_discarded &= self._storage.discard(
                    item.target, shared.staged, staged, all_=row.status != DONE
                )
            if not has_no_room:
                rows.append(row)
        self._commit(rows)
        if wave.number and all_discarded:
            self.ledger.forget_staged(self.id, wave.number)

    def _whole(self, item: Item, shared: _Shared, results: list[Result]) -> Result:
        """Put together what the tasks wrote of an item, and return one result."""
        wrong = next((result for result in results if result.error is not None), None)
        if wrong is not None or not self.writes:
            return wrong or results[0]
        digest = next((r.plaintext_hmac for r in results if r.plaintext_hmac), None)
        staged = [(r.first_block, r.staged) for r in results if r.staged is not None]
        km = shared.km
        check = (lambda path: None) if km is None else (lambda path: verify_file(path, km))
        attempt = self._storage.gather(self._staging, item, shared.staged, staged, check)
        result = max(results, key=lambda result: result.first_block)
        if shared.wrapped is not None:
            result = result._replace(wrapped=shared.wrapped, key_id=shared.key_id)
        return result._replace(staged=attempt, plaintext_hmac=digest)

    def _row(self, item: Item, result: Result) -> Row:
        # A result with an error has neither a key nor bytes.
        done = result.error is None
        status = DONE if done else SKIPPED if result.error_kind is None else FAILED
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
            result.wrapped,
            result.key_id,
            self._master_key_id if done else None,
            result.plaintext_hmac,
            result.staged,
            item.replaces,
            self.id,
            time.time_ns() // 1_000_000,
        )

    def _failure_row(self, item: Item, error: BaseException) -> Row:
        return self._row(item, failed(item, 0, error))

    def _has_no_room(self, error: BaseException, item: Item) -> bool:
        """Whether an item failed because nothing more can be written where its target is. Then the
        job tries no other file: that is not this file's failure."""
        if not isinstance(error, OSError) or error.errno not in NO_ROOM:
            return False
        if self._no_room is None:
            said = os.strerror(error.errno)
            self._no_room = OSError(error.errno, said, os.path.dirname(item.target))
        return True

    @contextlib.contextmanager
    def _naming_ledger(self) -> Iterator[None]:
        """Have an OSError that names no file name the ledger."""
        try:
            yield
        except OSError as error:
            if error.filename is None:
                said = error.strerror or str(error)
                raise type(error)(error.errno or errno.EIO, said, self.ledger.location) from None
            raise

    def _commit_failures(self) -> None:
        """Commit the failures of files that are not tried."""
        self.summary.unchanged = self.selection.unchanged
        self.summary.passed_over = self.selection.passed_over
        rows = []
        for file, target, error in self.selection.failures:
            item = Item(-1, file.path, target, file.relative_path, file.size, file.version, 0)
            rows.append(self._failure_row(item, error))
        self._commit(rows)

    def _commit(self, rows: list[Row]) -> None:
        """Give the files of the rows their names, and settle the rows in the ledger."""
        if not rows:
            return
        if self.writes:
            self._has_pending_batch = True
            with self._naming_ledger():
                batch = self.ledger.prepare(rows)
            name = partial(published, sidecars=self._conduct.sidecars)
            rows = self._spread(name, rows, partial(name, again=True))
            if self._durable:
                sync_names(rows)
            with self._naming_ledger():
                self.ledger.settle(batch, rows)
            self._has_pending_batch = False
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
) -> Iterator[list[R]]:
    context = task_context()
    for part in parts:
        yield (again if context.attemptNumber() else call)(part)
