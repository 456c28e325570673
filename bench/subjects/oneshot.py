"""From whole bytes to whole new bytes, where fresh memory costs more than AES does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bench.contenders import ENGINE, NewBytes
from bench.material import make_material
from bench.peers import ALL_PEERS
from bench.rounds import Contest
from bench.settings import Settings

from .engine import TWO_THREADS
from .pairs import Entrant, seal_then_open, the_peer

SUBJECT = "oneshot"


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    material = make_material(settings.size)
    entrants = []
    for threads, name in ((1, ENGINE), (2, TWO_THREADS)):
        form = NewBytes(material, threads)
        entrants.append(Entrant(name, form.seal, form.open, form.check))
    with contextlib.ExitStack() as stack:
        for name in ("naive", "joined"):
            if name not in settings.peers:
                continue
            peer = ALL_PEERS[name]()
            if started := the_peer(peer, material, skipped):
                stack.callback(peer.stop)
                entrants += started
        yield from seal_then_open(SUBJECT, "AES-256", entrants, settings.size, settings.rounds)
