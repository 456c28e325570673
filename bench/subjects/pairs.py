"""Contestants that seal and open: first all seal in turns, then all open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.contenders import LIMIT
from bench.limits import EvpLoop, LimitError
from bench.material import Material
from bench.peers import Peer
from bench.rounds import Contest, Contestant, compete, timed


@dataclass(frozen=True, slots=True)
class Entrant:
    """``seal`` and ``open`` return the seconds they took; ``check`` raises if the text is wrong."""

    name: str
    seal: Callable[[], float]
    open: Callable[[], float]
    check: Callable[[], None]
    rounds: int | None = None


def in_buffers(
    name: str, seal: Callable[[], object], open_: Callable[[], object], material: Material
) -> Entrant:
    """An entrant that works between the shared buffers."""
    return Entrant(name, timed(seal), timed(open_), material.check_opened)


def the_limit(material: Material, skipped: dict[str, str]) -> list[Entrant]:
    """The bare loop, if it can be built."""
    try:
        loop = EvpLoop(material)
    except LimitError as error:
        skipped[LIMIT] = str(error)
        return []
    return [in_buffers(LIMIT, loop.seal, loop.open, material)]


def the_peer(peer: Peer, material: Material, skipped: dict[str, str]) -> list[Entrant]:
    """The peer, started, if it can be."""
    reason = peer.missing()
    if reason is None:
        try:
            peer.start(material)
        except Exception as error:
            # Other people's code may raise anything, and must not end our run.
            reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        skipped[peer.name] = reason
        return []
    return [Entrant(peer.name, peer.seal, peer.open, peer.check, peer.rounds)]


def seal_then_open(
    subject: str, name: str, entrants: Sequence[Entrant], size: int, rounds: int
) -> Iterator[Contest]:
    """Two contests; afterwards each entrant's plaintext is checked once more."""
    for verb in ("seal", "open"):
        contestants = [
            Contestant(
                entrant.name,
                entrant.seal if verb == "seal" else entrant.open,
                size,
                rounds=entrant.rounds,
            )
            for entrant in entrants
        ]
        yield compete(subject, f"{name} {verb}", contestants, rounds)
    for entrant in entrants:
        entrant.open()
        entrant.check()
