"""One run of a job, on the driver.

::

    __enter__        finish what a killed job has left
    selection        which files have to be done
    run              begin: note that this job has begun; only then make its KEK, and start the
                     runner; the work, wave after wave (``waves``)
    __exit__         remove what is staged; note the end

``report`` has what became of it. Independent of what is done to a file.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ...engine._gcm import random_bytes
from ...host.runners import Runner, Start
from ..keys import FileKeys
from ..ledger import DECRYPT, ENCRYPT, JobNote, check_ledger, open_ledger
from ..paths import SUFFIX
from ..plan.patterns import Patterns
from ..plan.selection import Selection
from ..staging import local_files, marks
from ..staging.pieces import Item
from ..staging.places import open_storage
from ..staging.protocol import Staging
from ..work.tasks import Work
from .publishing import clear, clear_again, settle_pending
from .report import PlannedFile, Progress, Report, Summary
from .waves import Waves, naming_ledger

VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class JobOptions:
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


class Job:
    """One run: its ledger, the files that it selects, its waves and its report. ``has_ended``: all
    that the runner was asked for."""

    def __init__(
        self, start: Start, operation: str, root: str, ledger: str, options: JobOptions
    ) -> None:
        self.id = random_bytes(6).hex()
        self.has_ended = False
        self._operation = operation
        self._writes = operation != VERIFY and not options.dry_run
        self._start = start
        self._runner: Runner | None = None
        self._options = options
        self._root = root
        self._storage = open_storage(root)
        self._started = time.monotonic()
        self._has_begun = self._has_dead_jobs = False
        suffix = "" if operation == ENCRYPT else SUFFIX
        wanted = Patterns(options.include, options.exclude, suffix=suffix)
        self.ledger: Any = self._opened(ledger)
        self.selection = Selection(operation, root, self.ledger, wanted)
        self._report = Report(operation, self.id, options.progress, options.max_failures)
        self._waves = Waves(
            Staging(self.id, root, operation == ENCRYPT, options.durable),
            self.ledger,
            self._report,
            lambda: self.runner,
            writes=self._writes,
            sidecars=options.sidecars,
        )

    @property
    def summary(self) -> Summary:
        """The result so far."""
        return self._report.summary

    def _opened(self, ledger: str) -> Any:
        if self._operation != ENCRYPT:
            check_ledger(ledger)
        try:
            return open_ledger(ledger, writing=self._writes, durable=self._options.durable)
        except FileNotFoundError:
            if self._operation == ENCRYPT and self._options.dry_run:
                return _NoLedger()
            raise

    @property
    def runner(self) -> Runner:
        """What runs the tasks of this run. It is started when it is first asked for."""
        if self._runner is None:
            description = f"ags1: {self._operation} files"
            self._runner = self._start(f"ags1-{self.id}", description, self._options.cores)
        return self._runner

    def __enter__(self) -> Job:
        try:
            if not self._storage.is_remote:
                local_files.check_root(self._root)
            if self._writes:
                # Other operations concern all files of the ledger.
                root = self._root if self._operation in (ENCRYPT, DECRYPT) else None
                with naming_ledger(self.ledger):
                    dead = settle_pending(self.ledger, durable=self._options.durable, root=root)
                self._has_dead_jobs = bool(dead)
        except BaseException:
            self.ledger.close()
            raise
        return self

    def begin(self) -> None:
        """Make the folder of the targets, and note in it and in the ledger that this job writes.
        Raises OSError."""
        if self._writes:
            self._waves.note_folders([self._root])
            self._storage.make_root(self._root)
            self._has_begun = True
            # In this order: a note without a mark means that the folder is not mounted.
            marks.leave(self._storage, self.id, self._root, durable=self._options.durable)
            with naming_ledger(self.ledger):
                self.ledger.begin(self.id, self._root, sidecars=self._options.sidecars)

    def __exit__(self, *error: object) -> None:
        runner = self._runner
        was_interrupted = runner is not None and not self.has_ended
        tasks_may_run = runner is not None and (was_interrupted or runner.has_failures)
        try:
            # What runs the tasks may have ended.
            with contextlib.suppress(Exception):
                if runner is not None and (tasks_may_run or runner.speculates):
                    # Spark kills the processes of its ended tasks a while later. If one is killed
                    # between writing to a remote storage and its look at the mark, the file stays.
                    tasks_may_run = was_interrupted or self._storage.is_remote
                    tasks_may_run |= not runner.wait_for_tasks()
            # A pending batch needs its staged files: the next job settles it.
            if self._has_begun and not self._waves.has_pending_batch:
                late = JobNote(self._root, self._options.sidecars) if tasks_may_run else None
                clear(self.ledger, self.id, self._root, self._waves.folders, late=late)
                local_files.remove_empty(self._waves.new_folders)
            if self._has_dead_jobs:
                clear_again(self.ledger)
        finally:
            self.ledger.close()
        self.summary.seconds = time.monotonic() - self._started

    def run(
        self,
        items: Collection[Item],
        kind: Callable[..., Work],
        make_keys: Callable[[], FileKeys],
        master_key_id: str | None,
    ) -> None:
        """Do the work, wave after wave. A job's KEK is made when the ledger says that the job runs,
        so that no rewrapping misses it. The runner is not needed before all is known that can be
        known without it. Raises OSError if there is no room for more targets; then the files done
        so far stay done."""
        report, summary = self._report, self.summary
        report.master_key_id = master_key_id
        report.total = sum(item.source_size for item in items)
        report.count = len(items)
        report.tell(0)
        if master_key_id is None:
            make_keys().check(item.wrapped or "" for item in items)
        if self._options.dry_run:
            planned = (PlannedFile(item.source, item.target, item.source_size) for item in items)
            summary.planned = list(planned)
        elif items:
            self.begin()
        keys = make_keys()
        self._commit_failures()
        failed_before = summary.failed
        tried = 0
        if items and not self._options.dry_run and not report.is_stopped:
            work = kind(keys, self.id, self._options.durable, root=self._root)
            tried = self._waves.run(items, work)
            if self._waves.replaced:
                again = self.selection.looked_up_again(self._waves.replaced)
                self._waves.replaced = None
                self._waves.run(again, work)
                self._commit_failures()
        if not self._options.dry_run:
            self.has_ended = True
            summary.not_tried = len(items) - tried
            report.raise_no_room(len(items) + failed_before)

    def _commit_failures(self) -> None:
        """Commit the failures of files that are not tried."""
        self.summary.unchanged = self.selection.unchanged
        self.summary.passed_over = self.selection.passed_over
        rows = []
        failures, self.selection.failures = self.selection.failures, []
        for file, target, error in failures:
            item = Item(-1, file.path, target, file.relative_path, file.size, file.version, 0)
            rows.append(self._report.failure_row(item, error))
        self._waves.commit(rows)
