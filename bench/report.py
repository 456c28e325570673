"""Writes down what was measured: everything as JSON, tables in Markdown, plots in PNG."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.machine import Machine
from bench.rounds import Contest, Series
from bench.settings import Settings, size_name
from bench.targets import Outcome, duration

INTRODUCTIONS = {
    "engine": "One large buffer in blocks of 1 MiB. Memory is kept and shared where a peer can.",
    "limits": "The bare loop by the pieces that libcrypto gets a block in; the best is the limit.",
    "grid": "The engine by key size and block size.",
    "oneshot": "From whole bytes to whole new bytes.",
    "messages": "4 KiB, sealed and opened; each form of the call, and many in one call.",
    "streams": "Sequential pieces through `ags1.open`, and random 4 KiB reads.",
    "keys": "A table's keys, each of a manifest list, under one KEK that is unwrapped once.",
    "libraries": "One Parquet file in the page cache, read by libraries through our file systems.",
    "tables": "Whole tables, opened and read from the page cache; the twin's rows are the same.",
    "writes": "Tables in a SQLite catalog; eight processes where they contend.",
    "objects": "Tables in an object store that answers each request after 30 ms.",
    "growth": "CPU time of one call by the size of the table; a slope of 1 is twice for twice.",
    "bulk": "Whole files in the page cache; the disk is synced between runs.",
    "spark": "Jobs and data sources of warm sessions on this machine; no Spark is this process.",
    "queries": "An encrypted table, queried in one warm session of Spark on two cores.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Results:
    machine: Machine
    settings: Settings
    file_system: str
    contests: Sequence[Contest]
    outcomes: Sequence[Outcome]
    skipped: Mapping[str, str]
    peers: Mapping[str, str]
    """The peers that took part, and their versions."""

    def of(self, subject: str) -> list[Contest]:
        return [contest for contest in self.contests if contest.subject == subject]


def write_json(results: Results, path: Path) -> None:
    settings = dataclasses.asdict(results.settings)
    # Where the files lay says nothing; what kind of file system it was does.
    settings["folder"] = results.file_system
    document = {
        "machine": dataclasses.asdict(results.machine),
        "settings": settings,
        "targets": [dataclasses.asdict(outcome) for outcome in results.outcomes],
        "peers": dict(results.peers),
        "skipped": dict(results.skipped),
        "contests": [
            {
                "subject": contest.subject,
                "name": contest.name,
                "series": [
                    dataclasses.asdict(series)
                    | {"median": series.median, "best": series.best}
                    | {"first_is_faster_by": _lead(contest, series.name)}
                    for series in _measured(contest)
                ],
            }
            for contest in results.contests
        ],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def write_markdown(results: Results, path: Path) -> None:
    path.write_text("\n".join(_markdown(results)) + "\n")


def _markdown(results: Results) -> Iterator[str]:
    machine, settings = results.machine, results.settings
    present = ", ".join(machine.cpu_flags) or "none"
    absent = ", ".join(machine.cpu_flags_absent) or "none"
    yield "# What was measured"
    yield ""
    yield f"- CPU: {machine.cpu}, {machine.cpus} usable; {machine.memory_gib} GiB of memory"
    yield f"- CPU flags: {present}; absent: {absent}"
    yield f"- libcrypto: {machine.libcrypto}"
    yield f"- Python {machine.python}, {machine.kernel}, files on {results.file_system}"
    for name, version in results.peers.items():
        yield f"- {name}: {version}"
    in_memory, in_files = size_name(settings.size), size_name(settings.file_size)
    yield f"- {machine.date}, {settings.rounds} rounds, {in_memory} in memory, {in_files} in files"
    yield ""
    yield (
        "Contestants run in turns; a ratio is formed within each round, and the median is shown "
        "(for files, the ratio of the best runs)."
    )
    yield ""
    yield "## What it must show"
    yield ""
    yield from table(
        ("measure", "target", "measured", ""),
        [
            (outcome.measure, outcome.target, outcome.measured, verdict(outcome))
            for outcome in results.outcomes
        ],
    )
    for subject, introduction in INTRODUCTIONS.items():
        contests = results.of(subject)
        if not contests:
            continue
        yield ""
        yield f"## {subject.capitalize()}"
        yield ""
        yield introduction
        yield ""
        yield from table(
            ("what", "who", "median", "best", "the first is faster by"),
            [row for contest in contests for row in _rows(contest)],
        )
    if results.skipped:
        yield ""
        yield "## Left out"
        yield ""
        yield from table(("who", "why"), sorted(results.skipped.items()))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in row) + " |"


def verdict(outcome: Outcome) -> str:
    return {True: "pass", False: "FAIL", None: "-"}[outcome.passed]


def speed(series: Series, seconds: float) -> str:
    """A rate for work that is counted in bytes, a time for work that is counted in calls."""
    if series.size:
        return f"{series.size / seconds / 1e9:.2f} GB/s"
    return duration(seconds / series.count)


def _rows(contest: Contest) -> Iterator[tuple[str, ...]]:
    for series in _measured(contest):
        lead, slope = _lead(contest, series.name), contest.slope(series.name)
        yield (
            contest.name,
            series.name + (f", {series.requests} requests" if series.requests else ""),
            speed(series, series.median),
            speed(series, series.best),
            ("" if lead is None else f"{lead:.2f}x")
            + ("" if slope is None else f"; slope {slope:.2f}"),
        )


def _measured(contest: Contest) -> list[Series]:
    return [series for series in contest.series.values() if series.seconds]


def _lead(contest: Contest, name: str) -> float | None:
    first = next(iter(contest.series))
    return None if name == first else contest.ratio(first, name)
