"""The work of a run, file after file. After a failure, the next file is tried.

If the KMS itself cannot be used, every other file would fail, too, each after a time-out. Then the
other files are reported as not tried. The same is done if the KMS fails for two files in a row with
the same message: then the login page of a proxy may have answered, for example.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ...errors import KMS_UNUSABLE, KmsError
from ..console import Output
from ..exits import EXPECTED
from ..report import Report
from .sources import Job, Plan, make_folder


def for_each(plan: Plan, work: Callable[[Job, Report], None], out: Output) -> int:
    """Do ``work`` for every job; go on after failures. Returns the first failure's exit code."""
    with Report(out, plan.total_size) as report:
        for note in plan.notes:
            report.note(note)
        for file, problem in plan.problems:
            report.failed(problem, file)
        for job in plan.done:
            report.note(f"{job.source_name}: {job.target} and its sidecar exist: skipped")
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
    return report.exit_code
