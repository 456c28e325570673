"""What the figures have to show, each row with its measured value."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.contenders import ENGINE
from bench.limits import LIMIT
from bench.peers import IcebergJava, PycaInto, PycaNaive
from bench.rounds import Contest
from bench.settings import MIB
from bench.subjects import (
    avro,
    bulk,
    engine,
    grid,
    keys,
    libraries,
    messages,
    objects,
    oneshot,
    queries,
    spark,
    streams,
    tables,
    writes,
)

PROJECT = Path(__file__).resolve().parent.parent
TAMPER_TESTS = PROJECT / "tests" / "format" / "test_tamper.py"


@dataclass(frozen=True, slots=True)
class Target:
    """``ours`` must be at least ``at_least`` times as fast as ``theirs`` in that contest.

    With ``as_time`` the row is read the other way round: ours takes at most so many times as long.
    Of several of ours the slowest is shown.
    """

    measure: str
    subject: str
    contest: str
    ours: str | tuple[str, ...]
    theirs: str
    at_least: float
    as_time: bool = False


@dataclass(frozen=True, slots=True)
class Deadline:
    """All the work of ``ours`` in that contest, or ``each`` operation of it, must take at most
    ``seconds``: for work whose time a user waits for, whoever else could do it."""

    measure: str
    subject: str
    contest: str
    ours: str
    seconds: float
    each: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    measure: str
    target: str
    measured: str
    passed: bool | None
    """None where this run did not measure it."""


def _rows() -> list[Target]:
    rows: list[Target] = []
    for bits in (256, 128):
        for verb in ("seal", "open"):
            what, name = f"{verb} in kept buffers, AES-{bits}", f"AES-{bits} {verb}"
            for other, at_least in ((LIMIT, 0.97), (PycaInto.name, 1.0), (IcebergJava.name, 2.0)):
                label = f"{what}, 256 MiB, vs {other}"
                rows.append(Target(label, engine.SUBJECT, name, ENGINE, other, at_least))
            name = f"{grid.contest_name(bits // 8, MIB)} {verb}"
            for other, at_least in ((LIMIT, 0.97), (PycaInto.name, 1.0)):
                label = f"{what}, 128 MiB, vs {other}"
                rows.append(Target(label, grid.SUBJECT, name, ENGINE, other, at_least))
            rows.append(
                Target(
                    f"{what}, two threads vs one",
                    engine.SUBJECT,
                    f"AES-{bits} threads {verb}",
                    engine.TWO_THREADS,
                    engine.ONE_THREAD,
                    1.85,
                )
            )
    for function, verb in (("encrypt", "seal"), ("decrypt", "open")):
        label = f"{function} to new bytes, vs {PycaNaive.name}"
        rows.append(Target(label, oneshot.SUBJECT, f"AES-256 {verb}", ENGINE, PycaNaive.name, 2.0))
    rows += [
        Target(
            f"4 KiB message with fresh keys, vs {messages.NAIVE}",
            messages.SUBJECT,
            messages.FRESH,
            ENGINE,
            messages.NAIVE,
            2.0,
        ),
        Target(
            f"4 KiB message with a kept BlockCipher, vs {messages.NAIVE_OWN_KEY}",
            messages.SUBJECT,
            messages.KEPT,
            messages.KEPT_CIPHER,
            messages.NAIVE_OWN_KEY,
            3.0,
        ),
    ]
    for verb, forms in (("encrypt", messages.ENCRYPT_FORMS), ("decrypt", messages.DECRYPT_FORMS)):
        label = f"4 KiB message, the slowest form of {verb}, time vs {messages.KEPT_AESGCM}"
        contest, other = messages.FORMS.format(verb), messages.KEPT_AESGCM
        rows.append(Target(label, messages.SUBJECT, contest, forms, other, 1 / 2.2, as_time=True))
    for verb in ("encrypt", "decrypt"):
        for form, at_least in (("list", 1.3), ("column", 1.6)):
            one, two = (messages.many(verb, threads, form) for threads in (1, 2))
            what = f"{verb}_many of a {form} of 10,000 messages of 4 KiB"
            contest = messages.MANY.format(verb)
            label = f"{what}, two threads vs one"
            rows.append(Target(label, messages.SUBJECT, contest, two, one, at_least))
        label, other = f"{what}, one thread, vs {messages.KEPT_LOOP}", messages.KEPT_LOOP
        rows.append(Target(label, messages.SUBJECT, contest, one, other, 4.0))
    for verb in ("encrypt", "decrypt"):
        for kind, other in (("not durable", bulk.CP), ("durable", bulk.CP_FSYNC)):
            rows.append(
                Target(
                    f"{verb}_file, two threads, {kind}, time vs {other}",
                    bulk.SUBJECT,
                    f"{verb}_file, {kind}",
                    f"{verb}_file, 2 threads",
                    other,
                    1 / 1.1,
                    as_time=True,
                )
            )
    # The engine reads memory. From a file there is the kernel's copying too, so the bare loop that
    # a Reader is held against there makes the same preads.
    for piece, at_least in (("1 MiB", 0.9), ("4 KiB", 0.6)):
        for place, other in (
            ("memory", streams.ENGINE_BLOCKS),
            ("page cache", streams.BARE_FILE),
        ):
            rows.append(
                Target(
                    f"Reader.readinto of {piece} from {place}, vs {other}",
                    streams.SUBJECT,
                    f"read {piece} pieces from {place}",
                    streams.READER,
                    other,
                    at_least,
                )
            )
    rows.append(
        Target(
            "random 4 KiB pread, time vs pread and opening of one bare block",
            streams.SUBJECT,
            streams.RANDOM_READS,
            streams.PREAD,
            streams.BARE_BLOCK,
            1 / 1.1,
            as_time=True,
        )
    )
    for contest in (avro.PLAIN, avro.DEFLATE, avro.ENCRYPTED):
        label = f"{contest}, vs {avro.FASTAVRO}"
        rows.append(Target(label, avro.SUBJECT, contest, avro.OURS, avro.FASTAVRO, 2.0))
    for contest, times in ((libraries.DATASET, 1.15), (libraries.PANDAS, 1.25)):
        rows.append(
            Target(
                f"{contest}: {libraries.ENCRYPTED}, time vs {libraries.PLAIN}",
                libraries.SUBJECT,
                contest,
                libraries.ENCRYPTED,
                libraries.PLAIN,
                1 / times,
                as_time=True,
            )
        )
    for contest, times in ((tables.SCAN, 1.1), (tables.PLAN, 1.2)):
        rows.append(
            Target(
                f"{contest}, time vs {tables.PYICEBERG}",
                tables.SUBJECT,
                contest,
                tables.OURS,
                tables.PYICEBERG,
                1 / times,
                as_time=True,
            )
        )
    label = f"{writes.APPEND}, time vs {writes.PYICEBERG}"
    rows.append(
        Target(
            label,
            writes.SUBJECT,
            writes.APPEND,
            writes.OURS,
            writes.PYICEBERG,
            1 / 1.15,
            as_time=True,
        )
    )
    rows.append(
        Target(
            f"{writes.COMPACTION}, time vs {writes.READ_AND_APPEND}",
            writes.SUBJECT,
            writes.COMPACTION,
            writes.COMPACT,
            writes.READ_AND_APPEND,
            1.0,
            as_time=True,
        )
    )
    label = f"{writes.BUCKETS}: {writes.PARTITIONED}, time vs {writes.UNPARTITIONED}"
    rows.append(
        Target(
            label,
            writes.SUBJECT,
            writes.BUCKETS,
            writes.PARTITIONED,
            writes.UNPARTITIONED,
            1 / 1.8,
            as_time=True,
        )
    )
    for contest, times in (
        (objects.APPEND, 0.5),
        (objects.SCAN, 0.8),
        (objects.DELETE, 0.15),
        (objects.COMPACTION, 0.4),
    ):
        rows.append(
            Target(
                f"object store: {contest}, time vs {objects.PYICEBERG}",
                objects.SUBJECT,
                contest,
                objects.OURS,
                objects.PYICEBERG,
                1 / times,
                as_time=True,
            )
        )
    label = f"{tables.VERIFICATION}, two threads, vs {tables.CAT}"
    rows.append(Target(label, tables.SUBJECT, tables.VERIFICATION, tables.VERIFY, tables.CAT, 0.8))
    for contest in (spark.ENCRYPT, spark.DECRYPT):
        for ours, theirs, at_least in (
            (spark.MANY_TWO_CORES, spark.MANY_HERE, 0.8),
            (spark.ONE_TWO_CORES, spark.ONE_HERE, 0.8),
            (spark.ONE_TWO_CORES, spark.MANY_TWO_CORES, 0.9),
        ):
            label = f"{contest}: {ours}, vs {theirs}"
            rows.append(Target(label, spark.SUBJECT, contest, ours, theirs, at_least))
    for contest, at_least in ((queries.SUM, 0.8), (queries.GROUPS, 0.8), (queries.DAY, 0.5)):
        label = f"Spark, {contest}: {queries.OURS}, vs {queries.JAVA}"
        rows.append(Target(label, queries.SUBJECT, contest, queries.OURS, queries.JAVA, at_least))
    for contest, source in ((spark.AVRO, spark.AVRO_SOURCE), (spark.TABLE, spark.TABLE_SOURCE)):
        ours, theirs = f"{source}, 2 cores", f"{source}, 1 core"
        label = f"{contest}: 2 cores vs 1"
        rows.append(Target(label, spark.SUBJECT, contest, ours, theirs, 1.7))
    return rows


TARGETS = _rows()
DEADLINES = [
    Deadline(
        f"{keys.OPEN}, the KEK's unwrapping included", keys.SUBJECT, keys.OPEN, keys.MANAGER, 0.02
    ),
    Deadline(
        f"{writes.ROTATION}, 1,000 of both, local keyring",
        writes.SUBJECT,
        writes.ROTATION,
        writes.ROTATE,
        1.0,
    ),
    Deadline(
        f"20,000 of {spark.SMALL}, {spark.SMALL_ENCRYPTED} (2,000 a second)",
        spark.SUBJECT,
        spark.SMALL,
        spark.SMALL_ENCRYPTED,
        10.0,
    ),
    Deadline(f"Spark, {queries.COUNT}", queries.SUBJECT, queries.COUNT, queries.COUNTED, 0.5),
    Deadline(
        "4 KiB pread from a block that was just read",
        streams.SUBJECT,
        streams.RANDOM_READS,
        streams.PREAD_AGAIN,
        2e-6,
        each=True,
    ),
]


def judge(contests: Sequence[Contest]) -> list[Outcome]:
    """One outcome per row, in the order of the rows."""
    found = {(contest.subject, contest.name): contest for contest in contests}
    outcomes = [_judge(target, found.get((target.subject, target.contest))) for target in TARGETS]
    for deadline in DEADLINES:
        outcomes.append(_in_time(deadline, found.get((deadline.subject, deadline.contest))))
    return outcomes


def _in_time(deadline: Deadline, contest: Contest | None) -> Outcome:
    wanted = f"at most {duration(deadline.seconds)}"
    series = contest.series.get(deadline.ours) if contest else None
    if series is None or not series.seconds:
        return Outcome(deadline.measure, wanted, "not measured", None)
    measured = series.each if deadline.each else series.median
    return Outcome(deadline.measure, wanted, duration(measured), measured <= deadline.seconds)


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} µs" if seconds < 0.001 else f"{seconds * 1e3:.1f} ms"


def _judge(target: Target, contest: Contest | None) -> Outcome:
    if target.as_time:
        wanted = f"at most {1 / target.at_least:.2f}x the time"
    else:
        wanted = f"at least {target.at_least:.2f}x"
    ours = (target.ours,) if isinstance(target.ours, str) else target.ours
    found = [
        (ratio, name)
        for name in ours
        if contest and (ratio := contest.ratio(name, target.theirs)) is not None
    ]
    if len(found) < len(ours):
        return Outcome(target.measure, wanted, "not measured", None)
    ratio, slowest = min(found)
    shown = f"{1 / ratio:.2f}x the time" if target.as_time else f"{ratio:.2f}x"
    if len(ours) > 1:
        shown += f": {slowest}"
    return Outcome(target.measure, wanted, shown, ratio >= target.at_least)


def tamper_matrix() -> Outcome:
    """Run the tests that tamper with files; each case must raise and return nothing unverified."""
    measure, wanted = "tamper matrix", "100 % raised, 0 unverified bytes returned"
    if not TAMPER_TESTS.exists():
        return Outcome(measure, wanted, "not measured", None)
    with tempfile.TemporaryDirectory(prefix="ags1-bench-") as folder:
        report = Path(folder, "report.xml")
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider"),
                *(f"--junitxml={report}", TAMPER_TESTS),
            ],
            cwd=PROJECT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        if not report.exists():
            return Outcome(measure, wanted, "its tests can't be run", False)
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    ran = [case for case in cases if case.find("skipped") is None]
    bad = [
        case.get("name", "?")
        for case in ran
        if case.find("failure") is not None or case.find("error") is not None
    ]
    measured = f"{len(ran) - len(bad)} of {len(ran)} tests passed"
    if bad:
        measured += f"; the first that did not: {bad[0]}"
    return Outcome(measure, wanted, measured, bool(ran) and not bad)
