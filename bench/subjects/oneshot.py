"""From whole bytes to whole new bytes, where fresh memory costs more than AES does."""

from __future__ import annotations

from collections.abc import Iterator

from bench.contenders import ENGINE, NewBytes
from bench.material import make_material
from bench.rounds import Contest
from bench.settings import Settings

from .engine import MAKES_NEW_BYTES, TWO_THREADS
from .pairs import Entrant, seal_then_open, the_peers

SUBJECT = "oneshot"


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    material = make_material(settings.size)
    entrants = []
    for threads, name in ((1, ENGINE), (2, TWO_THREADS)):
        form = NewBytes(material, threads)
        entrants.append(Entrant(name, form.seal, form.open, form.check))
    names = [name for name in MAKES_NEW_BYTES if name in settings.peers]
    with the_peers(names, material, skipped) as peers:
        yield from seal_then_open(
            SUBJECT, "AES-256", entrants + peers, settings.size, settings.rounds
        )
