"""The work of a run, file after file: failures are reported and the next file is taken.

Except where the KMS itself fails, which every other file would meet too, each after a time-out:
then the rest is reported as not tried. So it is when the KMS fails twice in the same words, which
name no key, or one key: what answers is no KMS, say, but the login page of a proxy.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ..errors import KmsError
from .failures import EXPECTED, KMS_UNUSABLE
from .report import Report
from .sources import Job, Plan, make_folder


def for_each(plan: Plan, work: Callable[[Job, Report], None], *, as_json: bool, quiet: bool) -> int:
    """Do ``work`` for every job; go on after failures. Returns the first failure's exit code."""
    with Report(as_json=as_json, quiet=quiet, total_size=plan.total_size) as report:
        for note in plan.notes:
            report.note(note)
        for file, problem in plan.problems:
            report.failed(problem, file)
        for job in plan.done:
            report.note(f"{job.source_name}: {job.target} and its sidecar exist, passed over")
            result = {"file": job.source, "output": job.target, "sidecar": job.sidecar}
            report.succeeded({**result, "skipped": True})
        said_last = ""
        for number, job in enumerate(plan.jobs, 1):
            report.begin(job.source_name)
            try:
                if job.makes_folder and job.target is not None:
                    make_folder(os.path.dirname(job.target), os.path.dirname(job.source))
                work(job, report)
            except EXPECTED as error:
                report.failed(error, job.source_name)
                # Not a subclass: a key of the KMS, or a wrapped key, is the matter there.
                said = error.message if type(error) is KmsError else ""
                if isinstance(error, KMS_UNUSABLE) or (said and said == said_last):
                    report.not_tried([left.source_name for left in plan.jobs[number:]])
                    break
                said_last = said
            else:
                said_last = ""
    return report.exit_code
