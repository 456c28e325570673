"""The limit by the size of the pieces that libcrypto gets a block in, as a table.

python -m bench.limits      blocks of 1 MiB, AES-256 and AES-128, 16, 128 and 256 MiB; GB/s
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from bench.machine import this_machine
from bench.material import make_material, with_key
from bench.report import table
from bench.settings import MIB, size_name

from .pieces import BY_PIECE, IN_CACHE, LIMIT, PIECES, WHOLE_BLOCK, find_limit

COLUMNS = [*map(size_name, PIECES), WHOLE_BLOCK, IN_CACHE.removeprefix(f"{LIMIT}, "), "memcpy"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.limits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", default="16,128,256", metavar="A,B", help="of the memory, MiB")
    parser.add_argument("--rounds", type=int, default=9, metavar="N")
    options = parser.parse_args(arguments)
    print(this_machine().caption, end="\n\n")
    sizes = [int(size) * MIB for size in options.sizes.split(",")]
    print(*table(["GB/s", *COLUMNS], list(_rows(sizes, options.rounds))), sep="\n")


def _rows(sizes: Sequence[int], rounds: int) -> Iterator[list[str]]:
    for size in sizes:
        material = make_material(size)
        for key_size in (32, 16):
            for contest in find_limit(with_key(material, key_size), rounds).sweep:
                what = f"{contest.name.removesuffix(BY_PIECE)}, {size_name(size)}"
                yield [what, *(f"{one.rate / 1e9:.2f}" for one in contest.series.values())]


if __name__ == "__main__":
    main()
