"""What became of a run: its rows for the ledger, its summary for the user, its progress. No I/O."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from ..ledger import DONE, FAILED, SKIPPED, Row
from ..ledger.rows import nonce_of
from ..staging.pieces import Item
from ..work.tasks import NO_ROOM, Result, cause, failed

_log = logging.getLogger("ags1.spark.jobs.report")  # programs know this name

# In a summary; the ledger has them all.
MAX_FAILURES = 1000

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

    def fail(self, path: str, error: BaseException) -> None:
        """Count a failure that an exception has ended."""
        self.add_failure(path, type(error).__name__, cause(error))

    def add(self, rows: Iterable[Row]) -> None:
        """Count settled rows."""
        for row in rows:
            if row.status == DONE:
                self.done += 1
                self.size += row.source_size
            elif row.status == SKIPPED:
                self.skipped += 1
            else:
                self.add_failure(row.source, row.error_kind or "", row.error or "")


class Report:
    """What a run of a job reports. ``max_failures``: when so many files have failed, no other one
    is begun. ``master_key_id`` is that of new keys, and ``total`` the bytes of all sources, which
    are ``count`` files."""

    def __init__(
        self, operation: str, job_id: str, progress: Progress | None, max_failures: int | None
    ) -> None:
        self.summary = Summary(operation)
        self.master_key_id: str | None = None
        self.total = self.count = 0
        self._job_id = job_id
        self._progress = progress
        self._max_failures = max_failures
        self._told = 0  # bytes
        self._no_room: OSError | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether no other file shall be begun."""
        most = self._max_failures
        return self._no_room is not None or (most is not None and self.summary.failed >= most)

    @property
    def is_watched(self) -> bool:
        """Whether somebody wants to be told of the progress. It takes requests to the runner."""
        return self._progress is not None

    def tell(self, done: int) -> None:
        """Tell how many bytes of the sources are done. It never becomes less."""
        self._told = max(self._told, min(done, self.total))
        if self._progress is not None:
            self._progress(self._told, self.total)

    def wave_ended(self) -> None:
        """Log how far the job is: a batch job has no other sign of life."""
        summary = self.summary
        tried = summary.done + summary.skipped + summary.failed
        _log.info(
            "%s: %d of %d files, %.1f of %.1f GB, %d failed",
            summary.operation,
            tried,
            self.count,
            summary.size / 1e9,
            self.total / 1e9,
            summary.failed,
        )

    def row(self, item: Item, result: Result) -> Row:
        """Return the row of an item. A result with an error has neither a key nor bytes."""
        done = result.error is None
        status = DONE if done else SKIPPED if result.error_kind is None else FAILED
        return Row(
            self.summary.operation,
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
            self.master_key_id if done else None,
            result.staged,
            item.replaces,
            self._job_id,
            time.time_ns() // 1_000_000,
            nonce_of(result.wrapped),
            item.retires or None,
        )

    def failure_row(self, item: Item, error: BaseException) -> Row:
        """Return the row of an item that ``error`` has ended."""
        return self.row(item, failed(item, 0, error))

    def has_no_room(self, number: int | None, item: Item) -> bool:
        """Whether an item failed because nothing more can be written where its target is. Then the
        job tries no other file: that is not this file's failure. ``number`` is that of an
        OSError."""
        if number is None or number not in NO_ROOM:
            return False
        if self._no_room is None:
            where = os.path.dirname(item.target)
            self._no_room = OSError(number, os.strerror(number), where)
        return True

    def raise_no_room(self, count: int) -> None:
        """Raise OSError if there was no room for all of ``count`` files."""
        if self._no_room is not None:
            error, summary = self._no_room, self.summary
            left = count - summary.done - summary.skipped - summary.failed
            message = f"{error.strerror} ({summary.done} files are done, {left} are left): "
            message += "make room and run the job again"
            raise OSError(error.errno, message, error.filename)
