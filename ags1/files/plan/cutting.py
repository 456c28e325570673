"""Cuts the work on many files into large tasks of about equal cost, and the tasks into waves. Large
files are cut into ranges of whole blocks and small files are grouped, so that one huge file and a
million tiny ones both fill the cluster. Each file has a cost besides its bytes. A large file stays
whole if nothing would tell that it was changed between two ranges. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeAlias

from ...engine import layout
from ...host.runners import FILE_COST
from ..staging.pieces import BLOCK_SIZE, Item, Piece

# As FILE_COST, of a remote file, whose requests take tens of milliseconds each.
REMOTE_FILE_COST = 8 << 20
MIN_TASK_COST = 64 << 20
MAX_TASK_COST = 1 << 30
# For each core: enough tasks that few cores are idle while a slow task ends.
_TASKS_PER_CORE = 3
# A wave's results are committed together, and a killed driver loses the work of two waves. So a
# wave is as large as this time allows at the speed that was measured, and the first ones are small.
WAVE_SECONDS = 60.0
_FIRST_TASKS_PER_CORE = 2
_WAVE_TASKS_PER_CORE = 4
# The driver needs some kilobytes of memory for each file of the waves that it has at once.
_WAVE_FILES = 20_000


Task: TypeAlias = "list[Piece]"


class Wave(NamedTuple):
    """Tasks whose results are committed together, and their items. All pieces of an item are in one
    wave. ``number`` is the wave's in the ledger."""

    tasks: list[Task]
    items: list[Item]
    number: int = 0


def task_cost(items: Collection[Item], cores: int, file_cost: int = FILE_COST) -> int:
    """Return how much work (bytes) a task should have; each file adds ``file_cost``."""
    total = sum(item.source_size + file_cost for item in items)
    return max(MIN_TASK_COST, min(MAX_TASK_COST, total // (cores * _TASKS_PER_CORE)))


class Pace:
    """How many tasks a wave may have. A killed driver shall lose about ``WAVE_SECONDS`` for each
    wave under way, but no core shall be idle."""

    def __init__(self, cores: int) -> None:
        self._least = cores
        self._most = max(_WAVE_TASKS_PER_CORE * cores, 8)
        self._tasks_done = 0
        self.wave_tasks = max(_FIRST_TASKS_PER_CORE * cores, 4)

    def is_enough(self, tasks: int, files: int) -> bool:
        """Tell whether a wave has as many tasks, or as many files, as it may have."""
        return tasks >= self.wave_tasks or (files >= _WAVE_FILES and tasks >= self._least)

    def finished(self, wave: Wave, seconds: float) -> None:
        """Take that a wave has finished, ``seconds`` after the first one began."""
        self._tasks_done += len(wave.tasks)
        fitting = int(self._tasks_done / max(seconds, 1e-3) * WAVE_SECONDS)
        self.wave_tasks = min(max(fitting, self._least), self._most)


def waves(
    items: Collection[Item], pace: Pace, cost: int, file_cost: int = FILE_COST
) -> Iterator[Wave]:
    """Cut the work into waves of tasks of about ``cost`` bytes each, large files first. The files
    of a wave are not cut before it is asked for: ``pace`` may change until then."""
    tasks: list[Task] = []
    taken: list[Item] = []
    task: Task = []
    load = 0

    def is_large(item: Item) -> bool:
        # A key is for one content. If nothing tells whether a file has changed, one task has to
        # make the key and encrypt all of the file.
        may_be_cut = item.unit and (item.source_version or item.wrapped)
        return bool(may_be_cut) and item.plaintext_size > cost + cost // 2

    # Read twice, because a list of a million items is hundreds of megabytes.
    for item in filter(is_large, items):
        tasks += ([piece] for piece in ranges(item, cost))
        taken.append(item)
        if pace.is_enough(len(tasks), len(taken)):
            yield Wave(tasks, taken)
            tasks, taken = [], []
    for item in itertools.filterfalse(is_large, items):
        task.append(whole(item))
        taken.append(item)
        load += item.source_size + file_cost
        if load >= cost:
            tasks.append(task)
            task, load = [], 0
            if pace.is_enough(len(tasks), len(taken)):
                yield Wave(tasks, taken)
                tasks, taken = [], []
    if task:
        tasks.append(task)
    if tasks:
        yield Wave(tasks, taken)


def whole(item: Item) -> Piece:
    """Return the one piece of a file that is not cut."""
    size, version = item.source_size, item.source_version
    piece = Piece(item.number, item.source, item.target, size, version, item.wrapped)
    return piece._replace(unit=item.unit)


def ranges(item: Item, cost: int) -> Iterator[Piece]:
    """Cut a file into ranges of about equal size, none much larger than ``cost`` bytes. All but the
    last are a multiple of its unit."""
    blocks = layout.block_count(item.plaintext_size, BLOCK_SIZE)
    units = -(-blocks // item.unit)
    count = min(units, -(-item.plaintext_size // cost))
    share, longer = divmod(units, count)
    first = 0
    for number in range(count):
        length = min((share + (number < longer)) * item.unit, blocks - first)
        yield whole(item)._replace(first_block=first, block_count=length)
        first += length
