"""The limit: the bare loop with the pieces that suit this CPU best.

One update over a whole block of 1 MiB is the slow form on an AMD EPYC of family 26 (Zen 5): it
opened 7.5 to 9 GB/s whole, and 17 GB/s in pieces of 128 to 512 KiB. Other CPUs hardly care. So the
loop runs in all these pieces, and the best in each direction is what ags1 is held against.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from bench.material import Material, make_material
from bench.rounds import Contest, Contestant, compete, timed
from bench.settings import size_name

from .copies import copy_memory
from .evp import EvpLoop

SUBJECT = "limits"
LIMIT = "bare EVP loop in C"
MEMCPY = "memcpy"
IN_CACHE = f"{LIMIT}, in cache"
PIECES = (16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10)
WHOLE_BLOCK = "whole block"
BY_PIECE = ", the bare loop by piece"
# With its slot half a MiB, which the second cache of any server's core holds.
IN_CACHE_SIZE = 256 << 10


@dataclass(frozen=True, slots=True)
class Limit:
    """The bare loop in the pieces that were best for ``seal`` and for ``open``.

    ``sweep``: all pieces beside ``memcpy`` of as many bytes and the loop over one block that stays
    in the cache; one contest a direction.
    """

    seal: Callable[[], None]
    open: Callable[[], None]
    open_file: Callable[..., None]
    sweep: tuple[Contest, ...]


def find_limit(material: Material, rounds: int) -> Limit:
    """Raises LimitError."""
    loops = {
        size_name(size): EvpLoop(material, size) for size in PIECES if size < material.block_size
    }
    loops[WHOLE_BLOCK] = EvpLoop(material)
    small_size = min(material.block_size, IN_CACHE_SIZE)
    small = make_material(small_size, len(material.key), small_size)
    cached = EvpLoop(small)
    copy = functools.partial(copy_memory, material.opened, material.plaintext)
    sweep, best = [], []
    for verb in ("seal", "open"):
        works: dict[str, Callable[[], None]] = {
            name: getattr(loop, verb) for name, loop in loops.items()
        }
        works[IN_CACHE] = functools.partial(getattr(cached, verb), material.size)
        works[MEMCPY] = copy
        contest = compete(
            SUBJECT,
            f"AES-{len(material.key) * 8} {verb}{BY_PIECE}",
            [Contestant(name, timed(work), material.size) for name, work in works.items()],
            rounds,
        )
        sweep.append(contest)
        best.append(loops[min(loops, key=lambda name: contest.series[name].median)])
    copy()
    material.check_opened()
    for loop in loops.values():
        loop.open()
        material.check_opened()
    small.check_opened()
    sealing, opening = best
    return Limit(sealing.seal, opening.open, opening.open_file, tuple(sweep))
