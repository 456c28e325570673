"""Runs every implementation over the corpus, and writes what came of it: ``make corpus``.

The corpus is ``tests/vectors/corpus``. An implementation that cannot be built here is left out,
with the reason. The table goes to ``tests/vectors/corpus/results.json`` and ``RESULTS.md``. What
differs from the corpus must have an explanation in ``corpus_differences.py``, or the run fails.
This lies beside the tests against Java because it uses their Java and Rust.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .corpus_cases import CORPUS, Case, cases
from .corpus_differences import explanation
from .corpus_implementations import (
    IMPLEMENTATIONS,
    Implementation,
    RefusedError,
    UnavailableError,
    UnsupportedError,
)

OUTCOMES = ("pass", "fail", "unsupported", "error")


@dataclass(frozen=True, slots=True)
class Result:
    """What one implementation made of one case. ``said`` is its error, or what it returned."""

    case: Case
    outcome: str
    said: str = ""


def run(implementation: Implementation, all_cases: Iterable[Case]) -> Iterator[Result]:
    """Yield the result of each case."""
    for case in all_cases:
        try:
            found = implementation.run(case)
        except UnsupportedError as error:
            yield Result(case, "unsupported", str(error))
        except RefusedError as error:
            outcome = "pass" if case.result != "valid" else "fail"
            if outcome == "fail" and not implementation.reads_any_block_size:
                outcome = "unsupported" if "NonDefaultBlockSize" in case.flags else outcome
            yield Result(case, outcome, f"refused: {error}")
        except Exception as error:  # whatever an implementation does is a result
            yield Result(case, "error", f"{type(error).__name__}: {error}")
        else:
            yield _judged(case, found)


def _judged(case: Case, found: Mapping[str, Any]) -> Result:
    if case.result == "invalid":
        return Result(case, "fail", "accepted")
    same = all(found.get(name) == value for name, value in case.expected.items())
    return Result(case, "pass" if same else "fail", "accepted" if same else "returned other values")


def differences(results: Iterable[Result], name: str) -> list[dict[str, Any]]:
    """Return the cases with another outcome than ``pass``, gathered by their explanation."""
    gathered: dict[tuple[str, str, str, str], list[int]] = {}
    for result in results:
        if result.outcome != "pass":
            what = result.said.partition(":")[0]
            why = explanation(name, result.case, result.outcome)
            gathered.setdefault((result.case.kind, result.outcome, what, why), []).append(
                result.case.number
            )
    return [
        {"kind": kind, "outcome": outcome, "what": what, "cases": ids, "explanation": why}
        for (kind, outcome, what, why), ids in gathered.items()
    ]


def _accepted(results: Iterable[Result]) -> dict[str, list[int]]:
    """Return the acceptable cases that were read, by their kind."""
    accepted: dict[str, list[int]] = {}
    for result in results:
        if result.case.result == "acceptable" and result.said == "accepted":
            accepted.setdefault(result.case.kind, []).append(result.case.number)
    return accepted


def main() -> int:
    """Run everything and write the results. Return how many differences have no explanation."""
    all_cases = cases()
    report: dict[str, Any] = {"cases": digests(), "implementations": {}}
    for make in IMPLEMENTATIONS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                implementation = make(Path(folder))
            except UnavailableError as error:
                report["implementations"][make.name] = {"unavailable": str(error)}
                continue
            try:
                results = list(run(implementation, all_cases))
            finally:
                implementation.close()
        report["implementations"][make.name] = {
            "version": implementation.version(),
            "groups": _counts(results),
            "accepts": _accepted(results),
            "differences": differences(results, make.name),
        }
        print(f"{make.name}: {dict(Counter(r.outcome for r in results))}", flush=True)
    (CORPUS / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    (CORPUS / "RESULTS.md").write_text(as_markdown(report))
    missing = [
        (name, difference["kind"], difference["outcome"], difference["what"], difference["cases"])
        for name, found in report["implementations"].items()
        for difference in found.get("differences", ())
        if not difference["explanation"]
    ]
    for difference in missing:
        print("no explanation:", *difference, file=sys.stderr)
    return len(missing)


def digests() -> dict[str, str]:
    """Return the SHA-256 of each file of cases by its name, and one of all files of tables."""
    files = sorted(CORPUS.glob("*_test.json"))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    tables = hashlib.sha256()
    for path in sorted(path for path in (CORPUS / "tables").rglob("*") if path.is_file()):
        tables.update(f"{path.relative_to(CORPUS)} {path.stat().st_size}\n".encode())
        tables.update(path.read_bytes())
    return found | {"tables": tables.hexdigest()}


def _counts(results: Iterable[Result]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for result in results:
        counts.setdefault(result.case.group, dict.fromkeys(OUTCOMES, 0))[result.outcome] += 1
    return counts


def as_markdown(report: Mapping[str, Any]) -> str:
    """Return the report as the text of ``RESULTS.md``."""
    found = report["implementations"]
    ran = {name: one for name, one in found.items() if "groups" in one}
    lines = [
        "# What each implementation makes of the corpus",
        "",
        "`make corpus` writes this file and `results.json`. *pass*: the plaintext or the values "
        "come back, or an invalid case is refused. *fail*: an invalid case is accepted, a valid "
        "one is refused, or other values come back. *unsupported*: the implementation says that "
        "it does not do this. *error*: it crashed. Cells with one number are all *pass*.",
        "",
        "| group | " + " | ".join(f"{name} {one['version']}" for name, one in ran.items()) + " |",
        "|---" * (len(ran) + 1) + "|",
    ]
    groups = list(dict.fromkeys(group for one in ran.values() for group in one["groups"]))
    for group in groups:
        cells = [_cell(one["groups"].get(group, {})) for one in ran.values()]
        lines.append(f"| {group} | " + " | ".join(cells) + " |")
    for name, one in found.items():
        if "unavailable" in one:
            lines += ["", f"{name}: {one['unavailable']}."]
    lines += ["", "## Differences", ""]
    for name, one in ran.items():
        for difference in one["differences"]:
            ids, kind = difference["cases"], difference["kind"]
            shown = ", ".join(map(str, ids[:6])) + (
                f" and {len(ids) - 6} more" if len(ids) > 6 else ""
            )
            lines.append(
                f"- **{name}**, {difference['outcome']}, {difference['what']} ({kind} {shown}): "
                f"{difference['explanation'] or 'not explained'}"
            )
    return "\n".join(lines) + "\n"


def _cell(counts: Mapping[str, int]) -> str:
    there = {name: count for name, count in counts.items() if count}
    if set(there) <= {"pass"}:
        return str(there.get("pass", "–"))
    return ", ".join(f"{count} {name}" for name, count in there.items())


if __name__ == "__main__":
    sys.exit(min(main(), 1))
