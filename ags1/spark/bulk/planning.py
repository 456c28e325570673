"""How the work over many files is cut: few, large tasks of about equal cost, and waves of them.

A small file's cost is mostly not its bytes. Large files are cut into ranges of whole blocks, small
ones grouped, so that one huge file and a million tiny ones both fill the cluster. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from ... import layout

# What opening, creating and naming one file costs, in bytes that are encrypted meanwhile.
FILE_COST = 512 << 10
# And the requests for one, where each takes tens of milliseconds.
REMOTE_FILE_COST = 8 << 20
MIN_TASK_COST = 64 << 20
MAX_TASK_COST = 1 << 30
# For each core: enough that a slow task at the end leaves few cores idle.
_TASKS_PER_CORE = 3
# A wave's results are committed together. What a killed driver has to do again is a few waves.
_WAVE_TASKS_PER_CORE = 4
BLOCK_SIZE = layout.DEFAULT_BLOCK_SIZE


class Item(NamedTuple):
    """One file's work. ``plaintext_size`` and ``source_size`` are bytes; ``wrapped`` is the key,
    wrapped, where there is one already; ``replaces``: the target may be there. ``unit`` is of how
    many blocks the ranges consist into which the file may be cut; 0: one task does it."""

    number: int
    source: str
    target: str
    relative_path: str
    source_size: int
    source_version: str
    plaintext_size: int
    wrapped: str | None = None
    replaces: bool = False
    unit: int = 1


class Piece(NamedTuple):
    """What a task does of one file: all of it, or, where ``block_count`` is not 0, the blocks from
    ``first_block`` on. ``shared`` is what the attempts at a file share (``Storage.stage``).
    ``digests``: nothing but the HMAC of a file that is cut. ``source_identity`` is of a local file
    that is cut (``work.identity_of``): files may share their size and their time."""

    number: int
    source: str
    target: str
    source_size: int
    source_version: str
    wrapped: str | None
    shared: str | None = None
    first_block: int = 0
    block_count: int = 0
    unit: int = 1
    digests: bool = False
    source_identity: str = ""

    @property
    def cost(self) -> int:
        """The work in bytes, as far as progress is concerned."""
        if self.digests:
            return 0
        if not self.block_count:
            return self.source_size
        return min(self.block_count * BLOCK_SIZE, self.source_size)


Task: TypeAlias = "list[Piece]"


class Wave(NamedTuple):
    """Tasks whose results are committed together, and the items that they are about. The pieces of
    an item are all in one wave. ``number`` is what the ledger knows it by."""

    tasks: list[Task]
    items: list[Item]
    number: int = 0


def task_cost(items: Sequence[Item], cores: int, file_cost: int = FILE_COST) -> int:
    """Return how much work (bytes) a task is to have; ``file_cost`` is what each file adds."""
    total = sum(item.source_size + file_cost for item in items)
    return max(MIN_TASK_COST, min(MAX_TASK_COST, total // (cores * _TASKS_PER_CORE)))


def waves(
    items: Sequence[Item],
    cores: int,
    cost: int,
    file_cost: int = FILE_COST,
    *,
    digests: bool = False,
) -> Iterator[Wave]:
    """Cut the work into waves of tasks of about ``cost`` bytes; the largest files come first.

    ``digests``: a file that is cut needs one more task, which reads all of it for its HMAC.
    """
    wave_tasks = max(_WAVE_TASKS_PER_CORE * cores, 8)
    tasks: list[Task] = []
    taken: list[Item] = []
    task: Task = []
    load = 0
    large: list[Item] = []
    small: list[Item] = []
    for item in items:
        # A key is for one content: where nothing tells whether a file has changed, one task gives
        # it both.
        may_be_cut = item.unit and (item.source_version or item.wrapped)
        is_large = may_be_cut and item.plaintext_size > cost + cost // 2
        (large if is_large else small).append(item)
    for item in large:
        if digests:
            tasks.append([whole(item)._replace(digests=True)])
        tasks += ([piece] for piece in ranges(item, cost))
        taken.append(item)
        if len(tasks) >= wave_tasks:
            yield Wave(tasks, taken)
            tasks, taken = [], []
    for item in small:
        task.append(whole(item))
        taken.append(item)
        load += item.source_size + file_cost
        if load >= cost:
            tasks.append(task)
            task, load = [], 0
            if len(tasks) >= wave_tasks:
                yield Wave(tasks, taken)
                tasks, taken = [], []
    if task:
        tasks.append(task)
    if tasks:
        yield Wave(tasks, taken)


def whole(item: Item) -> Piece:
    """Return the one piece of a file that is not cut."""
    return Piece(
        item.number,
        item.source,
        item.target,
        item.source_size,
        item.source_version,
        item.wrapped,
        unit=item.unit,
    )


def ranges(item: Item, cost: int) -> Iterator[Piece]:
    """Cut a file into ranges of about equal size, none much larger than ``cost`` bytes; all but the
    last are a number of whole units."""
    blocks = layout.block_count(item.plaintext_size, BLOCK_SIZE)
    units = -(-blocks // item.unit)
    count = min(units, -(-item.plaintext_size // cost))
    share, longer = divmod(units, count)
    first = 0
    for number in range(count):
        length = min((share + (number < longer)) * item.unit, blocks - first)
        yield whole(item)._replace(first_block=first, block_count=length)
        first += length


def target_offset(first_block: int, *, seals: bool) -> int:
    """Return where in a target (``seals``: an encrypted one) what comes of the blocks from
    ``first_block`` on begins. The header goes with the first block."""
    if not seals:
        return first_block * BLOCK_SIZE
    return layout.block_offset(first_block, BLOCK_SIZE) if first_block else 0


def target_size(item: Item, *, seals: bool) -> int:
    """Return the size that an item's target will have."""
    size = item.plaintext_size
    return layout.encrypted_size(size, BLOCK_SIZE) if seals else size
