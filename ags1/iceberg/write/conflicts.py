"""Decides whether a change that was made for one version of a table fits a later one.

    what the change has read      Read
    what others have committed    Changes of each snapshot since then
    find_conflict                 None, or the reason why the change cannot be committed

    others have        conflict if the change ...             isolation level
    added rows         may match them by its filter           serializable
    removed a file     has read it, or may match its rows     both
    deleted rows       has read their file, or may match      both

The rules are as in PyIceberg 0.12 (``pyiceberg.table.update.validate``), with two differences: a
deletion vector counts for the data file that it names, as in Java, and filters mean what they mean
in SQL. A filter whose names mean other columns by now is a conflict, too. This module opens no file
and does not know catalogs and retries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import IsolationLevel, Operation

from ..pyiceberg.scans import partition_spec_is_void
from ..read.binding import bind_filter
from ..read.planning import DeleteIndex, path_of_all
from ..read.pruning import FileFilter
from ..read.records import ADDED, EQUALITY_DELETES, ContentFile, ManifestEntry

MayMatch = Callable[[ContentFile], bool]


class ConflictError(ValidationException):
    """Others have committed what the change should have read, so it was not committed."""


@dataclass(frozen=True, slots=True)
class Read:
    """What a change has read: the rows for which ``row_filter`` (unbound) is true. ``files`` are
    the paths of the data files that may have such rows, in the version that the change was made
    for. ``field_ids`` are the columns that the filter compares there. ``rewrites`` is
    true if some of these files are rewritten: an equality delete that others commit meanwhile would
    not apply to the new files. The isolation level is as in ``command`` (``isolation_level``)."""

    row_filter: BooleanExpression
    files: frozenset[str]
    field_ids: frozenset[int]
    command: str = "update"
    case_sensitive: bool = True
    rewrites: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """The data files that one snapshot has ``added`` and ``removed``, and its new ``deletes``."""

    snapshot_id: int
    operation: Operation
    added: Sequence[ContentFile] = ()
    removed: Sequence[ContentFile] = ()
    deletes: Sequence[ContentFile] = ()


def isolation_level(properties: Mapping[str, str], command: str) -> IsolationLevel:
    """Return the isolation level of a command (``delete``, ``update``, ``merge``), the table's
    ``write.{command}.isolation-level``. The default is serializable, as in Java. Raises ValueError
    for an unknown level."""
    name = f"write.{command}.isolation-level"
    level = properties.get(name, IsolationLevel.SERIALIZABLE.value)
    try:
        return IsolationLevel(level.lower())
    except ValueError:
        raise ValueError(f"Invalid isolation level: {level} ({name})") from None


def find_conflict(
    read: Read, snapshots: Iterable[Changes], schema: Schema, isolation: IsolationLevel
) -> str | None:
    """Return the reason why a change cannot be committed after these snapshots; None if it can.
    ``schema`` is the table's current one. Raises ValueError if it lacks a column of the filter."""
    bound = bind_filter(read.row_filter, schema, case_sensitive=read.case_sensitive)
    if bound.field_ids != read.field_ids:
        return (
            "another writer has renamed columns, so the filter of this change now names other "
            "columns: nothing was committed. Load the table again and repeat the change"
        )
    of_files = FileFilter(bound, {})

    def may_match(file: ContentFile) -> bool:
        return of_files.of_file(file) is not False

    for changes in snapshots:
        conflict = None
        if isolation == IsolationLevel.SERIALIZABLE:
            conflict = added_rows(changes, may_match)
        conflict = conflict or removed_rows(changes, may_match, read)
        conflict = conflict or new_deletes(changes, may_match, read)
        if conflict:
            return (
                f"{conflict} in snapshot {changes.snapshot_id}, and its rows may match the filter "
                "of this change, which had read the table before: nothing was committed. Load the "
                "table again and repeat the change"
            )
    return None


def find_rewrite_conflict(
    rewritten: Sequence[ManifestEntry],
    snapshots: Iterable[Changes],
    specs: Mapping[int, PartitionSpec],
    new_spec_id: int,
) -> str | None:
    """Return the reason why data files cannot be replaced by others with the same rows after these
    snapshots; None if they can. ``specs`` are the table's, ``new_spec_id`` is that of the new
    files.

    Added rows are no conflict. An equality delete of a later sequence number applies to the new
    files as to the old ones. But if these have another spec, it may apply to the old files only, or
    to the new ones only. That is a conflict, and so are removed files and deleted positions.
    """
    paths = {entry.file.file_path for entry in rewritten}
    changes_spec = any(entry.file.spec_id != new_spec_id for entry in rewritten)

    def is_global(spec_id: int) -> bool:
        return partition_spec_is_void(specs[spec_id])

    def still_applies(delete: ContentFile, entry: ManifestEntry) -> bool:
        return delete.content == EQUALITY_DELETES and (
            entry.file.spec_id == new_spec_id or is_global(delete.spec_id)
        )

    def is_new_to_rows(delete: ContentFile) -> bool:
        return (
            changes_spec
            and delete.content == EQUALITY_DELETES
            and delete.spec_id == new_spec_id
            and not is_global(delete.spec_id)
        )

    for changes in snapshots:
        removed = (file for file in changes.removed if file.file_path in paths)
        conflict = _first("another writer removed the data file", removed)
        if changes.deletes and conflict is None:
            index = DeleteIndex(is_global)
            for file in changes.deletes:
                index.add(ManifestEntry(ADDED, None, file.sequence_number, None, file))
            lost = (
                delete
                for entry in rewritten
                for delete in cast("set[ContentFile]", index.of(entry))
                if not still_applies(delete, entry)
            )
            conflict = _first(
                "another writer added the delete file",
                itertools.chain(lost, filter(is_new_to_rows, changes.deletes)),
            )
        if conflict is not None:
            return (
                f"{conflict} in snapshot {changes.snapshot_id} while rows that it concerns were "
                "rewritten: nothing was committed. Repeat the operation"
            )
    return None


def added_rows(changes: Changes, may_match: MayMatch) -> str | None:
    """Find added rows that the change would have read if it had run later. A rewrite (REPLACE)
    adds no rows."""
    if changes.operation not in (Operation.APPEND, Operation.OVERWRITE):
        return None
    return _first("another writer added the data file", filter(may_match, changes.added))


def removed_rows(changes: Changes, may_match: MayMatch, read: Read) -> str | None:
    """Find removed data files that the change has read, or whose rows it may match. If such a file
    was rewritten, the change does not know the new file."""

    def counts(file: ContentFile) -> bool:
        return file.file_path in read.files or may_match(file)

    return _first("another writer removed the data file", filter(counts, changes.removed))


def new_deletes(changes: Changes, may_match: MayMatch, read: Read) -> str | None:
    """Find added deletes of rows that the change has read. A data file has only one deletion
    vector; if the change's vector lacks these rows, they come back. A delete file of one data file
    counts if the change has read that. Any other counts unless its metrics rule out a match, and
    always if the change rewrites files, because then other rows than those of the filter matter. A
    snapshot that only rewrites files (REPLACE) deletes no rows, but may add deletion vectors."""

    def counts(file: ContentFile) -> bool:
        path = path_of_all(file)
        if path is not None:
            return path in read.files
        return changes.operation != Operation.REPLACE and (read.rewrites or may_match(file))

    return _first("another writer added the delete file", filter(counts, changes.deletes))


def _first(what: str, files: Iterable[ContentFile]) -> str | None:
    """Return ``what`` with the path of the first file; None if there is no file."""
    return next((f"{what} {file.file_path}" for file in files), None)
