"""Whether a change that was made for one version of a table may be committed upon a later one.

Pure: what the change has read, what the snapshots in between changed, and a verdict with a reason.
The rules are those of PyIceberg 0.12 (``pyiceberg.table.update.validate``), with two differences:
a deletion vector counts by the data file that it is of, as in Java, and a filter means what it
means in SQL. Knows nothing of files, catalogs and retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import IsolationLevel, Operation

from ..pyiceberg.expressions import InclusiveMetricsEvaluator
from ..read.filters import as_sql
from ..read.planning import path_of_all
from ..read.records import ContentFile

MayMatch = Callable[[ContentFile], bool]


class ConflictError(ValidationException):
    """What a change goes by is not so any more: others have committed since."""


@dataclass(frozen=True, slots=True)
class Read:
    """What a change goes by: the rows for which ``row_filter``, unbound, is true.

    ``files`` are the paths of the data files that may have such rows, in the version that the
    change was made for, and ``field_ids`` the columns that the filter named there: see
    ``columns_of``. ``rewrites``: some of them are written anew, and what others delete by
    values meanwhile would not be deleted in the new files. ``operation`` says which isolation level
    counts: OVERWRITE for the table's ``write.update.isolation-level``, any other for
    ``write.delete.isolation-level``.
    """

    row_filter: BooleanExpression
    files: frozenset[str]
    field_ids: frozenset[int]
    operation: Operation = Operation.OVERWRITE
    case_sensitive: bool = True
    rewrites: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """What one snapshot changed: data files that it added and removed, delete files that it
    added."""

    snapshot_id: int
    operation: Operation
    added: Sequence[ContentFile] = ()
    removed: Sequence[ContentFile] = ()
    deletes: Sequence[ContentFile] = ()


def find_conflict(
    read: Read, snapshots: Iterable[Changes], schema: Schema, isolation: IsolationLevel
) -> str | None:
    """Return why a change cannot be committed after these snapshots, None when it can.

    ``schema`` is the table's. Raises ValueError when it does not have a column of the filter.
    """
    if columns_of(read.row_filter, schema, read.case_sensitive) != read.field_ids:
        return (
            "another writer renamed columns, so that the filter of this change names others now: "
            "nothing was committed. Load the table again and repeat the change"
        )
    as_meant = as_sql(read.row_filter, schema, case_sensitive=read.case_sensitive)
    # A record has the metrics that it looks at.
    may_match: Any = InclusiveMetricsEvaluator(schema, as_meant, read.case_sensitive).eval
    for changes in snapshots:
        found = None
        if isolation == IsolationLevel.SERIALIZABLE:
            found = added_rows(changes, may_match)
        found = (
            found or removed_rows(changes, may_match, read) or new_deletes(changes, may_match, read)
        )
        if found:
            return (
                f"{found} in snapshot {changes.snapshot_id}, and its rows may match the filter of "
                "this change, which had read the table before: nothing was committed. Load the "
                "table again and repeat the change"
            )
    return None


def added_rows(changes: Changes, may_match: MayMatch) -> str | None:
    """Rows that a serial order would have shown to the change. A rewrite adds none."""
    if changes.operation not in (Operation.APPEND, Operation.OVERWRITE):
        return None
    return _first("another writer added the data file", filter(may_match, changes.added))


def removed_rows(changes: Changes, may_match: MayMatch, read: Read) -> str | None:
    """Data files that are gone: deleted, or rewritten, and the change knows only their old name."""

    def counts(file: ContentFile) -> bool:
        return file.file_path in read.files or may_match(file)

    return _first("another writer removed the data file", filter(counts, changes.removed))


def new_deletes(changes: Changes, may_match: MayMatch, read: Read) -> str | None:
    """Deletes of rows that the change has read. A data file has one deletion vector, so one that
    was written without these rows would bring them back.

    A delete file of one data file counts when the change has read that; any other when its own
    metrics do not rule it out, or when the change rewrites files: its rows need not be those of the
    filter then. A rewrite of others' deletes no rows, but it may add vectors.
    """

    def counts(file: ContentFile) -> bool:
        path = path_of_all(file)
        if path is not None:
            return path in read.files
        return changes.operation != Operation.REPLACE and (read.rewrites or may_match(file))

    return _first("another writer added the delete file", filter(counts, changes.deletes))


def columns_of(
    row_filter: BooleanExpression, schema: Schema, case_sensitive: bool = True
) -> frozenset[int]:
    """Return the ids of the columns that a filter names. Raises ValueError for one that the schema
    does not have."""
    as_meant = as_sql(row_filter, schema, case_sensitive=case_sensitive)
    bound = bind(schema, as_meant, case_sensitive=case_sensitive)
    return frozenset(extract_field_ids(bound))


def _first(what: str, files: Iterable[ContentFile]) -> str | None:
    return next((f"{what} {file.file_path}" for file in files), None)
