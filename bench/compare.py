"""ags1 next to its limits and its peers, in turns.

    python -m bench.compare                      everything but iceberg-rust and FLOE
    python -m bench.compare --quick              the same in a few minutes, smaller and noisier
    python -m bench.compare --peers all          with these two, which build for minutes
    python -m bench.compare --subjects engine,messages --out figures

Writes results.json, results.md and the plots: a whole run into bench/results, a quick or partial
one into build/bench, any into the folder that ``--out`` names. A peer that this machine lacks is
left out and named.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.machine import file_system, this_machine
from bench.peers import ALL_PEERS
from bench.rounds import Contest
from bench.settings import MIB, QUICK, Settings
from bench.storage import cache_folder
from bench.subjects import ALL_SUBJECTS
from bench.targets import PROJECT, Outcome, judge, tamper_matrix

RESULTS = Path(__file__).with_name("results")
PARTIAL_RESULTS = PROJECT / "build" / "bench"
TAMPER = "tamper"
NOT_BY_DEFAULT = ("rust", "floe")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    settings = _settings(options)
    subjects = _choose(options.subjects, [*ALL_SUBJECTS, TAMPER])
    skipped: dict[str, str] = {}
    contests: list[Contest] = []
    machine = this_machine()
    print(machine.caption)
    for subject in subjects:
        if subject == TAMPER:
            continue
        print(f"== {subject}", flush=True)
        for contest in ALL_SUBJECTS[subject](settings, skipped):
            contests.append(contest)
            _show(contest)
    outcomes = judge(contests)
    if TAMPER in subjects:
        print(f"== {TAMPER}: running its tests", flush=True)
        outcomes.append(tamper_matrix())
    results = report.Results(
        machine,
        settings,
        file_system(settings.folder or cache_folder()),
        contests,
        outcomes,
        skipped,
        _versions(settings.peers, skipped),
    )
    partial = options.quick or options.subjects
    _write(results, options.out or (PARTIAL_RESULTS if partial else RESULTS))
    _summarise(outcomes, skipped)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subjects = ", ".join([*ALL_SUBJECTS, TAMPER])
    peers = ", ".join(ALL_PEERS)
    parser.add_argument("--subjects", metavar="A,B", help=f"some of: {subjects}")
    parser.add_argument("--peers", metavar="A,B", help=f"all, none, or some of: {peers}")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, three rounds")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each contest")
    parser.add_argument("--size", type=int, metavar="MIB", help="buffers in memory")
    parser.add_argument("--file-size", type=int, metavar="MIB", help="files of `bulk`")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="where to put large files (a disk, not memory)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to put the results")
    return parser.parse_args(arguments)


def _settings(options: argparse.Namespace) -> Settings:
    settings = QUICK if options.quick else Settings()
    if options.rounds is not None:
        settings = dataclasses.replace(settings, rounds=max(1, options.rounds))
    if options.size is not None:
        settings = dataclasses.replace(settings, size=max(1, options.size) * MIB)
    if options.file_size is not None:
        settings = dataclasses.replace(settings, file_size=max(1, options.file_size) * MIB)
    if options.peers is None:
        peers = [name for name in ALL_PEERS if name not in NOT_BY_DEFAULT]
    elif options.peers == "none":
        peers = []
    else:
        peers = _choose(None if options.peers == "all" else options.peers, list(ALL_PEERS))
    return dataclasses.replace(settings, peers=tuple(peers), folder=options.dir)


def _choose(wanted: str | None, known: list[str]) -> list[str]:
    if wanted is None:
        return known
    chosen = [name.strip() for name in wanted.split(",") if name.strip()]
    if unknown := [name for name in chosen if name not in known]:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return [name for name in known if name in chosen]


def _versions(peers: Sequence[str], skipped: dict[str, str]) -> dict[str, str]:
    made = [ALL_PEERS[name]() for name in peers]
    present = [peer for peer in made if peer.name not in skipped and peer.missing() is None]
    return {peer.name: peer.version() for peer in present}


def _show(contest: Contest) -> None:
    figures = [
        f"{series.name} {report.speed(series, series.median)}"
        for series in contest.series.values()
        if series.seconds
    ]
    print(f"   {contest.name}: {', '.join(figures)}", flush=True)


def _write(results: report.Results, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    report.write_json(results, folder / "results.json")
    report.write_markdown(results, folder / "results.md")
    try:
        from bench.plots import write_plots

        write_plots(results, folder)
    except ModuleNotFoundError as error:
        print(f"no plots: {error}", file=sys.stderr)
    print(f"== written to {folder}")


def _summarise(outcomes: Sequence[Outcome], skipped: dict[str, str]) -> None:
    width = max(len(outcome.measure) for outcome in outcomes)
    for outcome in outcomes:
        if outcome.passed is None:
            continue
        mark = report.verdict(outcome)
        print(
            f"{mark:>4}  {outcome.measure:<{width}}  {outcome.measured} (wanted {outcome.target})"
        )
    if absent := sum(outcome.passed is None for outcome in outcomes):
        print(f"{absent} of {len(outcomes)} targets were not measured")
    for name, reason in skipped.items():
        print(f"left out: {name}: {reason}")


if __name__ == "__main__":
    raise SystemExit(main())
