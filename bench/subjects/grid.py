"""The engine over key sizes and block sizes, next to the bare loop and ``cryptography``."""

from __future__ import annotations

from collections.abc import Iterator

from bench.contenders import ENGINE, Engine
from bench.limits import LIMIT
from bench.material import make_material, with_key
from bench.rounds import Contest
from bench.settings import Settings, size_name

from .pairs import in_buffers, seal_then_open, the_limit, the_peers

SUBJECT = "grid"
PEER = "cryptography"
BLOCK_SIZES = tuple(4096 << shift for shift in range(0, 13, 2))


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    material = make_material(settings.grid_size)
    for key_size in (16, 24, 32):
        for block_size in BLOCK_SIZES:
            if block_size > settings.grid_size:
                continue
            shaped = with_key(material, key_size, block_size)
            engine = Engine(shaped)
            entrants = [in_buffers(ENGINE, engine.seal, engine.open, shaped)]
            if limit := the_limit(shaped, skipped, settings.slow_rounds):
                entrants.append(in_buffers(LIMIT, limit.seal, limit.open, shaped))
            names = [PEER] if PEER in settings.peers else []
            with the_peers(names, shaped, skipped) as peers:
                yield from seal_then_open(
                    SUBJECT,
                    contest_name(key_size, block_size),
                    entrants + peers,
                    settings.grid_size,
                    settings.rounds,
                )


def contest_name(key_size: int, block_size: int) -> str:
    return f"AES-{key_size * 8} {size_name(block_size)} blocks"
