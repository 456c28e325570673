"""The waves of a run: the driver prepares files, has tasks work on them, commits the results.

::

    for each wave    _prepared  stage the files, make keys that tasks share
                     run_wave   the tasks, by the ``Runner``
                     _finish    put together what they wrote, and ``commit``:
                                rows pending, files named, rows settled

If a wave's tasks fail, its files are tried one by one, so that only those at fault fail.
Independent of what is done to a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import NamedTuple, TypeVar

from ...engine.bulk import verify_file
from ...engine.key_metadata import KeyMetadata
from ...errors import KMS_UNUSABLE, NoKeyError
from ...host.runners import FILE_COST, Runner, RunnerEndedError, this_attempt
from ...keys.keychain import FILE_KEY_SIZE
from ...keys.sidecar import Sidecar
from ..keys import FileKeys, as_text
from ..ledger import DONE, Ledger, Row
from ..plan import cutting
from ..plan.cutting import Pace, Task, Wave, task_cost, waves
from ..staging import local_files
from ..staging.pieces import Item, target_size
from ..staging.places import open_storage
from ..staging.protocol import CHANGED, JobEndedError, Staging
from ..work.tasks import EXPECTED, Result, Work, failed, file_identity
from .publishing import published, sync_names
from .report import Report

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


class _Shared(NamedTuple):
    """The values that all attempts at a file share. ``staged`` is what its storage has prepared for
    them. If the file is cut and encrypted, there are its key (which stays in the driver), the
    wrapped key, and the identity of the source."""

    staged: str | None
    key_metadata: KeyMetadata | None = None
    wrapped: str | None = None
    key_id: str | None = None
    identity: str = ""


class Waves:
    """The waves of one run, which writes files if ``writes`` is set. ``runner`` returns what runs
    its tasks, and starts it when it is first asked for. ``sidecars``: each file gets one.
    ``folders`` are those of the targets so far, ``new_folders`` those of them that did not exist.
    ``replaced`` collects encrypted sources that others have replaced since their keys were looked
    up, and that are not tried again yet; if it is None, these have failed."""

    def __init__(
        self,
        staging: Staging,
        ledger: Ledger,
        report: Report,
        runner: Callable[[], Runner],
        *,
        writes: bool,
        sidecars: bool,
    ) -> None:
        self.folders: set[str] = set()
        self.new_folders: set[str] = set()
        self.has_pending_batch = False
        self.replaced: list[Item] | None = None if staging.seals else []
        self._staging = staging
        self._storage = open_storage(staging.root)
        self._ledger = ledger
        self._report = report
        self._runner = runner
        self._writes = writes
        self._sidecars = sidecars
        self._failed_jobs = 0  # since the last one that succeeded
        # For each item's number.
        self._shared: dict[int, _Shared] = {}
        self._wave = 0  # the number of the newest wave in the ledger

    def note_folders(self, folders: Iterable[str]) -> None:
        """Note those of the folders that do not exist yet. Raises OSError."""
        if not self._storage.is_remote:
            self.new_folders |= local_files.missing_folders(folders, self._staging.root)

    def run(self, items: Collection[Item], work: Work) -> int:
        """Do the work on items. Return how many were tried: after some failures the rest is
        left."""
        runner, report = self._runner(), self._report
        paths = itertools.chain((self._staging.root,), (item.source for item in items))
        remote = any(open_storage(path).is_remote for path in paths)
        file_cost = cutting.REMOTE_FILE_COST if remote else FILE_COST
        cost = task_cost(items, runner.cores, file_cost)
        pace = Pace(runner.cores)
        cut = waves(items, pace, cost, file_cost)
        tried = 0

        def prepared() -> Iterator[Wave]:
            nonlocal tried
            for wave in itertools.takewhile(lambda _: not report.is_stopped, cut):
                tried += len(wave.items)
                ready = self._prepared(wave, work.keys) if self._writes else wave
                if ready.tasks:
                    yield ready

        begun = time.monotonic()
        run = runner.run_waves(
            prepared(),
            lambda wave: self.run_wave(wave, work),
            lambda: report.tell(runner.cost_done) if report.is_watched else None,
        )
        with closing(run) as finished:
            for wave, results in finished:
                pace.finished(wave, time.monotonic() - begun)
                self._finish(wave, results)
                report.wave_ended()
        report.tell(report.total)
        return tried

    def run_wave(self, wave: Wave, work: Work) -> list[Result]:
        """Run the tasks of a wave."""
        return self._run_tasks(wave.tasks, work)

    def _run_tasks(self, tasks: list[Task], work: Work) -> list[Result]:
        """Run tasks at once. If that fails, for instance because a file kills its worker, run its
        parts one by one, so that only that file fails. Give up if no part succeeds."""
        runner = self._runner()
        costs = [sum(piece.cost for piece in task) for task in tasks]
        try:
            results = [result for part in runner.run(tasks, work, costs) for result in part]
        except Exception as error:
            failure = error
            self._failed_jobs += 1
            if (
                runner.is_cancelled
                or self._failed_jobs > _MAX_FAILED_JOBS
                or isinstance(failure, (*KMS_UNUSABLE, RunnerEndedError))
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
        folders = {os.path.dirname(item.target) for item in wave.items}
        self.folders |= folders
        self.note_folders(folders)
        cut = {task[0].number for task in wave.tasks if task[0].block_count}
        staged = dict(self._spread(partial(_staged, self._staging, cut), wave.items))
        rows: list[Row] = []
        items: list[Item] = []
        begun: dict[str, str] = {}
        for item in wave.items:
            stage = staged[item.number]
            if isinstance(stage, OSError):
                if not self._report.has_no_room(stage.errno, item):
                    rows.append(self._report.failure_row(item, stage))
                continue
            items.append(item)
            self._shared[item.number] = self._sharing(stage, item, cut, keys)
            if stage is not None and self._storage.is_remote:
                begun[item.target] = stage
        if begun:
            self._wave += 1
            with naming_ledger(self._ledger):
                self._ledger.note_staged(self._staging.job_id, self._wave, begun)
        self.commit(rows)
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
        if item.number not in cut or not self._staging.seals:
            return _Shared(stage)
        size = target_size(item, seals=True)
        key_metadata = KeyMetadata.generate(FILE_KEY_SIZE).with_file_length(size)
        document = keys.wrap(key_metadata)
        try:
            identity = file_identity(item.source)
        except OSError:
            identity = "none"  # no file has this identity
        return _Shared(stage, key_metadata, as_text(document), document["key-id"], identity)

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
        runner = self._runner()
        size = max(_FEW_REQUESTS, -(-len(items) // runner.cores))
        parts = [items[first : first + size] for first in range(0, len(items), size)]
        again = again or call
        # With speculation two copies of a task run, and one may find the other's work.
        first_time = again if runner.speculates else call
        results = runner.run(parts, partial(_each, first_time, again))
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
            is_replaced = self.replaced is not None and any(map(_is_of_another, results))
            try:
                whole = self._whole(item, shared, results)
                row = self._report.row(item, whole)
                number: int | None = whole.errno
            except EXPECTED as error:
                row = self._report.failure_row(item, error)
                number = error.errno if isinstance(error, OSError) else None
            if self._writes:
                staged = [(result.first_block, result.staged or "") for result in results]
                all_discarded &= self._storage.discard(
                    item.target, shared.staged, staged, whole=row.status != DONE
                )
            if self.replaced is not None and is_replaced:
                self.replaced.append(item)
            elif not self._report.has_no_room(number, item):
                rows.append(row)
        self.commit(rows)
        if wave.number and all_discarded:
            self._ledger.forget_staged(self._staging.job_id, wave.number)

    def _whole(self, item: Item, shared: _Shared, results: list[Result]) -> Result:
        """Put together what the tasks wrote of an item, and return one result."""
        wrong = next((result for result in results if result.error is not None), None)
        if wrong is not None or not self._writes:
            return wrong or results[0]
        staged = [(r.first_block, r.staged) for r in results if r.staged is not None]
        key_metadata = shared.key_metadata
        check = (
            (lambda path: None)
            if key_metadata is None
            else (lambda path: verify_file(path, key_metadata))
        )
        attempt = self._storage.gather(self._staging, item, shared.staged, staged, check)
        result = results[0]
        if shared.wrapped is not None:
            nonce = next((r.nonce for r in results if r.nonce is not None), None)
            wrapped = Sidecar.from_bytes(shared.wrapped.encode()).with_nonce(nonce).to_dict()
            result = result._replace(wrapped=as_text(wrapped), key_id=shared.key_id)
        return result._replace(staged=attempt)

    def commit(self, rows: list[Row]) -> None:
        """Give the files of the rows their names, and settle the rows in the ledger."""
        if rows and self._writes:
            self.has_pending_batch = True
            with naming_ledger(self._ledger):
                batch = self._ledger.prepare(rows)
            name = partial(published, sidecars=self._sidecars)
            rows = self._spread(name, rows, partial(name, again=True))
            if self._staging.durable:
                sync_names(rows)
            with naming_ledger(self._ledger):
                self._ledger.settle(batch, rows)
            self.has_pending_batch = False
        self._report.summary.add(rows)


def _is_of_another(result: Result) -> bool:
    """Whether a source was not the content whose key a task had."""
    return result.error_kind == NoKeyError.__name__ or result.error == CHANGED


@contextlib.contextmanager
def naming_ledger(ledger: Ledger) -> Iterator[None]:
    """Have an OSError that names no file name the ledger."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            message = error.strerror or str(error)
            raise type(error)(error.errno or errno.EIO, message, ledger.location) from None
        raise


def _staged(
    staging: Staging, cut: Collection[int], items: list[Item]
) -> list[tuple[int, str | OSError | None]]:
    return list(open_storage(staging.root).stage(staging, items, cut).items())


def _each(
    call: Callable[[list[T]], list[R]],
    again: Callable[[list[T]], list[R]],
    parts: Iterable[list[T]],
) -> Iterator[list[R]]:
    for part in parts:
        yield (again if this_attempt.get().number else call)(part)
