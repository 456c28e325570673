"""Contestants that seal and open: first all seal in turns, then all open."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.limits import LIMIT, Limit, LimitError, find_limit
from bench.material import Material
from bench.peers import ALL_PEERS
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


def the_limit(material: Material, skipped: dict[str, str], rounds: int) -> Limit | None:
    """The bare loop in the best pieces, if it can be built."""
    try:
        return find_limit(material, rounds)
    except LimitError as error:
        skipped[LIMIT] = str(error)
        return None


@contextlib.contextmanager
def the_peers(
    names: Iterable[str], material: Material, skipped: dict[str, str]
) -> Iterator[list[Entrant]]:
    """Those peers that can be started, until they are stopped again."""
    with contextlib.ExitStack() as stack:
        entrants = []
        for peer in (ALL_PEERS[name]() for name in names):
            reason = peer.missing()
            if reason is None:
                try:
                    peer.start(material)
                except Exception as error:
                    # Other people's code may raise anything, and must not end our run.
                    reason = f"{type(error).__name__}: {error}"
            if reason is not None:
                skipped[peer.name] = reason
                continue
            stack.callback(peer.stop)
            entrants.append(Entrant(peer.name, peer.seal, peer.open, peer.check, peer.rounds))
        yield entrants


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
