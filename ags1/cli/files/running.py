"""The work of a run, file after file. After a failure, the next file is tried.

If the KMS itself cannot be used, every other file would fail, too, each after a time-out. Then the
other files are reported as not tried. The same is done if the KMS fails for two files in a row with
the same message: then the login page of a proxy may have answered, for example.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from ...errors import KMS_UNUSABLE, KmsError
from ...files.storage.folder import make_folder
from ..console import Output, warnings_as_lines
from ..exits import EXPECTED
from ..report import Report
from .sources import Job, Plan

_EXISTS = "done already"
_CHANGED = "changed after it was encrypted"


def for_each(
    plan: Plan,
    work: Callable[[Job, Report], None],
    out: Output,
    done: str,
    *,
    verbose: bool = False,
) -> int:
    """Do ``work`` for every job; go on after failures. Returns the first failure's exit code. If
    files were skipped, a line says how many, and how many are ``done``, such as "encrypted"; with
    ``verbose``, a line for each says why."""
    with warnings_as_lines(quiet=out.quiet), Report(out, plan.total_size) as report:
        skipped = [*plan.skipped, *((job.source_name, _state(job)) for job in plan.done)]
        for file, reason in skipped if verbose else []:
            report.note(f"{file}: skipped: {reason}")
        for file, problem in plan.problems:
            report.failed(problem, file)
        for job in plan.done:
            result = {"file": job.source, "output": job.target, "sidecar": job.sidecar}
            report.succeeded({**result, "skipped": True})
        last_failure = ""
        for number, job in enumerate(plan.jobs, 1):
            report.begin(job.source_name)
            try:
                if job.makes_folder and job.target is not None:
                    make_folder(os.path.dirname(job.target), os.path.dirname(job.source))
                work(job, report)
            except EXPECTED as error:
                report.failed(error, job.source_name)
                # Subclasses do not count: they are about one master key or one wrapped key.
                failure = error.message if type(error) is KmsError else ""
                if isinstance(error, KMS_UNUSABLE) or (failure and failure == last_failure):
                    report.not_tried([other.source_name for other in plan.jobs[number:]])
                    break
                last_failure = failure
            else:
                last_failure = ""
        if skipped:
            report.note(_summary(report, done, Counter(reason for _, reason in skipped)))
    return report.exit_code


def _state(job: Job) -> str:
    """Return why a job counts as done. Only times are compared: they are hints."""
    try:
        assert job.target is not None
        is_newer = os.stat(job.source).st_mtime_ns > os.stat(job.target).st_mtime_ns
    except OSError:  # removed since
        return _EXISTS
    return _CHANGED if is_newer else _EXISTS


def _summary(report: Report, done: str, skipped: Counter[str]) -> str:
    reasons = ", ".join(f"{reason}: {number:,}" for reason, number in skipped.items())
    parts = [f"{report.done:,} {done}", f"{skipped.total():,} skipped ({reasons})"]
    return ", ".join([*parts, f"{report.failures:,} failed"] if report.failures else parts)
