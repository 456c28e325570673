"""Sealing and opening one large buffer in blocks of 1 MiB: ags1, its limits, all the peers."""

from __future__ import annotations

from collections.abc import Iterator

from bench.contenders import ENGINE, Engine, Into
from bench.limits import LIMIT
from bench.material import Material, make_material, with_key
from bench.peers import IcebergJava
from bench.rounds import Contest, Series
from bench.settings import Settings

from .pairs import in_buffers, seal_then_open, the_limit, the_peers

SUBJECT = "engine"
MAKES_NEW_BYTES = ("naive", "joined")
"""Measured by ``oneshot``, beside ags1's own new bytes."""
ONE_THREAD, TWO_THREADS = f"{ENGINE}, 1 thread", f"{ENGINE}, 2 threads"
COLD_STARTS = 3


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    material = make_material(settings.size)
    for key_size in (32, 16):
        keyed = with_key(material, key_size)
        yield from _threads(keyed, settings)
        yield from _everybody(keyed, settings, skipped)
    if "java" in settings.peers and IcebergJava.name not in skipped:
        yield from _cold_java(material)


def _threads(material: Material, settings: Settings) -> Iterator[Contest]:
    entrants = []
    for threads in (1, 2):
        form = Into(material, threads)
        name = TWO_THREADS if threads == 2 else ONE_THREAD
        entrants.append(in_buffers(name, form.seal, form.open, material))
    name = f"AES-{len(material.key) * 8} threads"
    yield from seal_then_open(SUBJECT, name, entrants, settings.size, settings.rounds)


def _everybody(
    material: Material, settings: Settings, skipped: dict[str, str]
) -> Iterator[Contest]:
    engine = Engine(material)
    entrants = [in_buffers(ENGINE, engine.seal, engine.open, material)]
    if limit := the_limit(material, skipped, settings.rounds):
        yield from limit.sweep
        entrants.append(in_buffers(LIMIT, limit.seal, limit.open, material))
    names = [name for name in settings.peers if name not in MAKES_NEW_BYTES]
    with the_peers(names, material, skipped) as peers:
        name = f"AES-{len(material.key) * 8}"
        yield from seal_then_open(SUBJECT, name, entrants + peers, settings.size, settings.rounds)


def _cold_java(material: Material) -> Iterator[Contest]:
    """What a fresh JVM needs for its first buffer: many Iceberg jobs are no longer than that."""
    java = IcebergJava()
    times = [java.first_run(material) for _ in range(COLD_STARTS)]
    for verb, seconds in zip(("seal", "open"), zip(*times, strict=True), strict=True):
        series = Series(f"{java.name}, cold", material.size, 1, list(seconds))
        yield Contest(SUBJECT, f"AES-256 {verb}, cold", {series.name: series})
