"""Decides which data files a compaction rewrites, and which of them together.

With a target of 128 MiB, files of less than 96 MiB or more than 230 MiB are candidates::

    files of a partition, MiB   40  128  60  20  8  300  70       in the order of their rows
    candidates                  40       60  20  8  300  70       128 is near enough to the target
    a group                     40       60  20  8  300  70       enough files, or enough bytes
    merges of about 128 MiB     [40      60  20  8] [128] [128] [44 70]  300 is cut

Each merge becomes a file of about the target size. A large file is cut between row groups. A rest
that is too small for a file of its own goes to the others, if they grow by at most a tenth. Files
of an older partition spec are one group and one merge, because their rows may belong to any
partition.
Options, defaults and rules are as in Java's ``SizeBasedFileRewritePlanner`` and
``BinPackRewriteFilePlanner``. Unlike Java's, the plan is in the order in which the rows were added.
This module opens no file.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import FileScanTask

from ...errors import ArgumentError
from ..read.planning import partition_key, path_of_all
from ..read.records import ContentFile
from ..read.splits import splits_of
from ..spec.properties import number_in
from ..write.merging import Merge, Part

DEFAULT_TARGET_SIZE = 512 << 20
_TARGET_PROPERTY = "write.target-file-size-bytes"
_MIN_RATIO, _MAX_RATIO = 0.75, 1.8
# Java's constant: how much larger than its share of the input a merge may be.
_SPLIT_OVERHEAD = 5 << 10
# A file is cut where a row group begins, but not into pieces that are smaller than this part of a
# merge.
_SMALLEST_CUT = 8


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """What to rewrite; sizes in stored bytes. The names are those of Java's options.

    A data file is a candidate if it is smaller than ``min_file_size_bytes`` (by default 75 % of
    the target) or larger than ``max_file_size_bytes`` (180 %), if at least
    ``delete_file_threshold`` delete files apply to it (None: any number is accepted), or if at
    least the part ``delete_ratio_threshold`` of its rows is deleted by deletion vectors and by
    position delete files of this file alone. Candidates of a partition are packed into groups of at
    most ``max_file_group_size_bytes``. A group is rewritten if it has at least
    ``min_input_files`` files, or more than ``target_file_size_bytes`` in several files, or more
    than ``max_file_size_bytes``, or a file with too many deletes. With ``rewrite_all``, all files
    are rewritten.

    Deletion vectors of rewritten files are always removed. With ``remove_dangling_deletes``, so are
    position and equality delete files that apply to no data file any more.

    Raises ValueError for an impossible value.
    """

    target_file_size_bytes: int | None = None
    min_file_size_bytes: int | None = None
    max_file_size_bytes: int | None = None
    min_input_files: int = 5
    delete_file_threshold: int | None = None
    delete_ratio_threshold: float = 0.3
    rewrite_all: bool = False
    max_file_group_size_bytes: int = 100 << 30
    remove_dangling_deletes: bool = False

    def __post_init__(self) -> None:
        for name in ("target_file_size_bytes", "min_input_files", "max_file_group_size_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"{value} is too small: it must be at least 1", parameter=name)
        for name in ("min_file_size_bytes", "delete_file_threshold"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ArgumentError(f"{value} is too small: it must be at least 0", parameter=name)
        if not 0 < self.delete_ratio_threshold <= 1:
            message = f"{self.delete_ratio_threshold} must be more than 0 and at most 1"
            raise ArgumentError(message, parameter="delete_ratio_threshold")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that decide (stored bytes): of new files, and the smallest and the largest that a
    file may have without being rewritten. Raises ArgumentError unless the target lies between these
    two: otherwise each run would rewrite the files of the last one."""

    target: int
    least: int
    most: int

    def __post_init__(self) -> None:
        if not self.least < self.target < self.most:
            raise ArgumentError(
                f"the target ({self.target} bytes) must be more than the size below which files "
                f"are rewritten ({self.least}), and less than that above which they are "
                f"({self.most}): otherwise the new files would be rewritten again",
                parameter="target_file_size_bytes",
            )

    @classmethod
    def of(cls, options: RewriteOptions, default_target: int) -> Sizes:
        """Return the sizes that are asked for, or Java's defaults."""
        target, least, most = (
            options.target_file_size_bytes or default_target,
            options.min_file_size_bytes,
            options.max_file_size_bytes,
        )
        return cls(
            target,
            int(target * _MIN_RATIO) if least is None else least,
            int(target * _MAX_RATIO) if most is None else most,
        )

    @property
    def largest_output(self) -> int:
        """The size at which a new file ends. It is above the target, so that a merge that becomes
        larger than its input leaves no small rest in a file of its own."""
        return int(self.target + (self.most - self.target) * 0.5)

    def output_files(self, size: int) -> int:
        """Return the number of files to write for ``size`` bytes of input. A rest that is too small
        for a file is spread over the others, if they become at most 10 % larger."""
        if size < self.target:
            return 1
        whole, rest = divmod(size, self.target)
        if rest == 0 or (
            rest <= self.least and size // whole < min(1.1 * self.target, self.largest_output)
        ):
            return whole
        return whole + 1

    def merge_size(self, size: int) -> int:
        """Return the size of each merge, for ``size`` bytes of input."""
        share = size // self.output_files(size) + _SPLIT_OVERHEAD
        return self.target if share < self.target else min(share, self.largest_output)


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Data files that are rewritten together, and the merges that do it."""

    tasks: tuple[FileScanTask, ...]
    merges: tuple[Merge, ...]
    output_files: int

    @property
    def size(self) -> int:
        """The number of stored bytes to read."""
        return sum(map(_size, self.tasks))


def default_target(properties: Mapping[str, str]) -> int:
    """Return the target size that a table's properties name. Raises ValueError if it is not a
    number of at least 1."""
    return number_in(properties, _TARGET_PROPERTY, DEFAULT_TARGET_SIZE, least=1)


def plan_groups(
    tasks: Iterable[FileScanTask], options: RewriteOptions, sizes: Sizes, spec: PartitionSpec
) -> list[FileGroup]:
    """Return the groups to rewrite into files of the partition spec ``spec``."""
    by_partition: dict[Hashable, list[FileScanTask]] = {}
    for task in sorted(tasks, key=_row_order):
        by_partition.setdefault(_partition(task, spec), []).append(task)
    rules = _Rules(options, sizes)
    groups: list[FileGroup] = []
    number = 0
    for candidates in by_partition.values():
        if not options.rewrite_all:
            candidates = list(filter(rules.is_candidate, candidates))
        for packed in _packed(candidates, options.max_file_group_size_bytes):
            if options.rewrite_all or rules.is_worth_it(packed):
                group = _group(packed, sizes, spec, number)
                number += len(group.merges)
                groups.append(group)
    return groups


class _Rules:
    def __init__(self, options: RewriteOptions, sizes: Sizes) -> None:
        self._options = options
        self._sizes = sizes

    def is_candidate(self, task: FileScanTask) -> bool:
        return not self._sizes.least <= _size(task) <= self._sizes.most or self._deleted(task)

    def is_worth_it(self, group: Sequence[FileScanTask]) -> bool:
        size = sum(map(_size, group))
        several = len(group) > 1 and (
            len(group) >= self._options.min_input_files or size > self._sizes.target
        )
        return several or size > self._sizes.most or any(map(self._deleted, group))

    def _deleted(self, task: FileScanTask) -> bool:
        """Return whether too many deletes apply to a file."""
        deletes = _deletes(task)
        threshold = self._options.delete_file_threshold
        if threshold is not None and len(deletes) >= threshold:
            return True
        known = sum(d.record_count for d in deletes if path_of_all(d) is not None)
        rows = task.file.record_count
        return bool(deletes) and min(known, rows) >= self._options.delete_ratio_threshold * rows


def _group(
    tasks: Sequence[FileScanTask], sizes: Sizes, spec: PartitionSpec, number: int
) -> FileGroup:
    size = sum(map(_size, tasks))
    is_spread = bool(spec.fields) and any(task.file.spec_id != spec.spec_id for task in tasks)
    if is_spread:
        parts = [[Part(task, None, _size(task)) for task in tasks]]
    else:
        parts = list(_merges(tasks, sizes.merge_size(size)))
    merges = tuple(Merge(number + i, tuple(p)) for i, p in enumerate(parts))
    return FileGroup(tuple(tasks), merges, max(len(merges), sizes.output_files(size)))


def _merges(tasks: Iterable[FileScanTask], merge_size: int) -> Iterator[list[Part]]:
    """Yield the parts of each merge. A file that does not fit whole is cut where its row groups
    begin."""
    parts: list[Part] = []
    room = merge_size
    for task in tasks:
        size = _size(task)
        splits = [(0, size)]
        if size > room:
            splits = splits_of(task, max(1, merge_size // _SMALLEST_CUT), counted=True)
        for offset, length in splits:
            if parts and length > room:
                yield parts
                parts, room = [], merge_size
            room -= length
            last = parts[-1] if parts else None
            if last is not None and last.task is task and last.split is not None:
                # The pieces of a file in one merge are read at once.
                parts[-1] = _part(task, last.split[0], last.size + length)
            else:
                parts.append(_part(task, offset, length))
    if parts:
        yield parts


def _part(task: FileScanTask, offset: int, length: int) -> Part:
    is_whole = length == _size(task)
    return Part(task, None if is_whole else (offset, length), length)


def _packed(tasks: Iterable[FileScanTask], most: int) -> Iterator[list[FileScanTask]]:
    """Yield neighbours of at most ``most`` bytes together, or one larger file."""
    group: list[FileScanTask] = []
    size = 0
    for task in tasks:
        if group and size + _size(task) > most:
            yield group
            group, size = [], 0
        group.append(task)
        size += _size(task)
    if group:
        yield group


def _partition(task: FileScanTask, spec: PartitionSpec) -> Hashable:
    """Return the same for files whose rows may come into one file. As in Java, files of other specs
    are taken for files without a partition."""
    file = cast("ContentFile", task.file)
    if file.spec_id == spec.spec_id:
        return partition_key(file)[1:]
    return (None,) * len(spec.fields)


def _row_order(task: FileScanTask) -> tuple[int, int, str]:
    file = cast("ContentFile", task.file)
    return file.sequence_number or 0, file.first_row_id or 0, file.file_path


def _deletes(task: FileScanTask) -> Collection[ContentFile]:
    return cast("set[ContentFile]", task.delete_files)


def _size(task: FileScanTask) -> int:
    return task.file.file_size_in_bytes
