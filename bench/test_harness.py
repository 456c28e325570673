"""The comparison itself: that its contestants do the same work, and that it says what it found."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import compare, report, targets
from bench.contenders import Engine, EngineByBlock, Into
from bench.limits import EvpLoop, pieces
from bench.machine import this_machine
from bench.material import make_material
from bench.peers import ALL_PEERS
from bench.rounds import Contest, Contestant, Series, compete
from bench.settings import MIB, SMOKE
from bench.subjects import ALL_SUBJECTS, bulk, engine, grid, queries, spark, streams
from bench.targets import DEADLINES, TARGETS, Deadline, Target, judge


def test_contestants_run_in_turns_and_slow_ones_drop_out() -> None:
    order: list[str] = []

    def runner(name: str) -> Contestant:
        def run() -> float:
            order.append(name)
            return 1.0

        return Contestant(name, run, rounds=1 if name == "slow" else None)

    contest = compete("subject", "name", [runner("a"), runner("slow")], 3)
    assert order == ["a", "slow", "a", "slow", "a", "a"]  # the first two are the untimed ones
    assert [len(series.seconds) for series in contest.series.values()] == [3, 1]
    order.clear()
    contest = compete("subject", "name", [runner("a"), runner("b")], 1)
    assert order == ["a", "b"]  # a single round has no untimed run
    assert contest.ratio("a", "b") == 1


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    ours = Series("ours", 100, 1, [1.0, 2.0, 1.0])
    theirs = Series("theirs", 100, 1, [3.0, 4.0, 8.0])
    contest = Contest("subject", "name", {"ours": ours, "theirs": theirs})
    assert contest.ratio("ours", "theirs") == 3.0
    assert contest.ratio("ours", "nobody") is None


def test_of_several_of_ours_the_slowest_is_shown() -> None:
    seconds = {"quick": 2.0, "slow": 3.0, "theirs": 1.0}
    series = {name: Series(name, 0, 1000, [value]) for name, value in seconds.items()}
    contest = Contest(engine.SUBJECT, "AES-256 seal", series)
    target = Target("measure", "subject", "name", ("quick", "slow"), "theirs", 1 / 2.2, True)
    outcome = targets._judge(target, contest)
    assert (outcome.measured, outcome.passed) == ("3.00x the time: slow", False)
    absent = dataclasses.replace(target, ours=("quick", "absent"))
    assert targets._judge(absent, contest).passed is None
    deadline = Deadline("measure", "subject", "name", "quick", 0.002, each=True)
    assert targets._in_time(deadline, contest).passed
    assert not targets._in_time(dataclasses.replace(deadline, each=False), contest).passed


def test_the_limit_is_the_best_piece_of_each_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    best = {"AES-256 seal": "64 KiB", "AES-256 open": pieces.WHOLE_BLOCK}
    seen: list[str] = []

    def contest(subject: str, name: str, contestants: Sequence[Contestant], rounds: int) -> Contest:
        for contestant in contestants:
            contestant.run()
        seen[:] = [contestant.name for contestant in contestants]
        wanted = best[name.removesuffix(pieces.BY_PIECE)]
        series = {
            c.name: Series(c.name, c.size, 1, [2.0 - (c.name == wanted)]) for c in contestants
        }
        # Neither is AGS1, however fast.
        series[pieces.MEMCPY].seconds = series[pieces.IN_CACHE].seconds = [0.1]
        return Contest(subject, name, series)

    monkeypatch.setattr(pieces, "compete", contest)
    limit = pieces.find_limit(make_material(2 * MIB), 1)
    loops = [limit.seal.__self__, limit.open.__self__]  # type: ignore[attr-defined]
    assert [loop.piece_size for loop in loops] == [64 << 10, MIB]
    assert seen == [
        *("16 KiB", "64 KiB", "128 KiB", "256 KiB", "512 KiB"),
        *(pieces.WHOLE_BLOCK, pieces.IN_CACHE, pieces.MEMCPY),
    ]


def test_what_one_contestant_seals_the_others_open() -> None:
    material = make_material(2 * MIB + 5)
    contestants: list[Engine | EvpLoop | Into]
    contestants = [Engine(material), EvpLoop(material), EvpLoop(material, 100_000)]
    contestants += [Into(material, 1), Into(material, 2)]
    for sealer in contestants:
        sealer.seal()
        EngineByBlock(material).open()
        for opener in contestants:
            opener.open()
            material.check_opened()


@pytest.mark.parametrize("name", ["cryptography", "naive", "joined", "cobblestone", "tink", "aws"])
def test_a_peer_gives_the_plaintext_back(name: str) -> None:
    peer = ALL_PEERS[name]()
    if reason := peer.missing():
        pytest.skip(f"lacking: {reason}")
    peer.start(make_material(2 * MIB + 5))
    assert peer.seal() > 0
    assert peer.open() > 0
    peer.check()
    peer.stop()


def test_each_target_names_a_contest_that_is_held(tmp_path: Path) -> None:
    """With every peer that needs no other process; those of Java stay open."""
    skipped: dict[str, str] = {}
    settings = dataclasses.replace(
        SMOKE, peers=("cryptography", "naive", "cobblestone"), folder=tmp_path
    )
    contests = [
        contest for measure in ALL_SUBJECTS.values() for contest in measure(settings, skipped)
    ]
    # Java, which Spark needs, is not everywhere.
    assert set(skipped) == ({spark.SUBJECT, queries.SUBJECT} if spark.missing() else set())
    outcomes = judge(contests)
    assert len(outcomes) == len(TARGETS) + len(DEADLINES)
    open_rows = [
        target.theirs
        for target, outcome in zip(TARGETS, outcomes, strict=False)
        if outcome.passed is None and target.subject not in skipped
    ]
    assert set(open_rows) <= {"Iceberg Java"}
    assert all(
        outcome.passed is not None
        for deadline, outcome in zip(DEADLINES, outcomes[len(TARGETS) :], strict=True)
        if deadline.subject not in skipped
    )
    results = report.Results(this_machine(), settings, "any", contests, outcomes, {}, {})
    report.write_json(results, tmp_path / "results.json")
    report.write_markdown(results, tmp_path / "results.md")
    assert len(json.loads((tmp_path / "results.json").read_text())["contests"]) == len(contests)
    text = (tmp_path / "results.md").read_text()
    assert all(target.measure in text for target in TARGETS)
    assert all(name in text for name in (bulk.CP_FSYNC, streams.PREAD, grid.SUBJECT.capitalize()))
    pytest.importorskip("matplotlib")
    from bench.plots import write_plots

    assert all(path.stat().st_size for path in write_plots(results, tmp_path))


def test_an_unknown_subject_is_refused() -> None:
    with pytest.raises(SystemExit, match="unknown: engin"):
        compare.main(["--subjects", "engin"])
