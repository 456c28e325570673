"""``examine_table`` checks a table's health, and names the command that mends each finding.

It reads metadata.json and manifests, lists folders, and opens no data file. ``verify_table`` reads
and authenticates the data files. Most checks are in modules of this package::

    needs no key       metadata.json and the catalog          ``metadata_checks``
                       the number of metadata files           here
    needs the keys     manifests, orphan files                ``content_checks``

If the keys cannot be used, the checks that need no key are still done, and the result names the
others. Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pyiceberg.table import Table

from ....errors import Ags1Error
from ....keys.manager import TABLE_KEY_ID, Clock, now_ms
from ...commit.session import TableSession
from ...spec.properties import number_in
from ...storage.listing import list_files
from ...storage.table_folders import METADATA_ENDINGS
from ..deletion import may_share_files
from .content_checks import UNREADABLE, LiveFiles, ManifestChecks, check_orphans
from .findings import HealthFinding, LeftOut, Remedy, TableHealth, in_order
from .metadata_checks import check_without_keys, keks_of

_METADATA_FILES = "write.metadata.previous-versions-max"
_MAX_METADATA_FILES = 100
_LISTING = "orphan files"
_CONTENTS = "manifests, compaction, deleted rows"


def examine_table(
    table: Table,
    *,
    no_keys: str | None = None,
    list_folders: bool = True,
    clock_ms: Clock = now_ms,
) -> TableHealth:
    """Return what is wrong or could be better with ``table``, encrypted or not, and what mends it.

    ``no_keys`` says why the table's keys cannot be used; it is None if they can be used. If they
    cannot, or if the KMS does not unwrap them, only the checks that need no key are done, and
    ``left_out`` names the others. With ``list_folders=False``, no folder is listed. A file that
    cannot be read is a finding, or the reason of an entry in ``left_out``.

    Raises OSError if the listing of the metadata folder fails.
    """
    started = time.perf_counter()
    if not isinstance(table, TableSession):
        return replace(_plain(table), seconds=time.perf_counter() - started)
    findings = list(check_without_keys(table, clock_ms))
    left_out: list[LeftOut] = []
    if list_folders:
        findings += _metadata_files(table)
    else:
        left_out.append(LeftOut(_LISTING, "folders are not listed"))
    live = None
    no_keys = no_keys or _why_no_keys(table)
    if no_keys is not None:
        names = f"{_CONTENTS}, {_LISTING}" if list_folders else _CONTENTS
        left_out.append(LeftOut(names, no_keys))
    else:
        live = LiveFiles(table)
        findings += live.findings
        left_out += live.left_out
        _try(findings, left_out, "manifests", ManifestChecks(table, live).run())
        if list_folders:
            _try(findings, left_out, _LISTING, check_orphans(table))
    return TableHealth(
        metadata_location=table.metadata_location,
        table_uuid=str(table.metadata.table_uuid),
        encrypted=True,
        key_id=table.key_id,
        snapshots=len(table.metadata.snapshots),
        keks=keks_of(table),
        branches=() if live is None else tuple(live.branches),
        findings=in_order(findings),
        left_out=tuple(left_out),
        seconds=time.perf_counter() - started,
    )


def _plain(table: Table) -> TableHealth:
    current = table.metadata.current_snapshot()
    summary = None if current is None else current.summary
    files, size = (
        int(text) if text and text.isdecimal() else None
        for text in (
            (None, None)
            if summary is None
            else (summary["total-data-files"], summary["total-files-size"])
        )
    )
    why = "the table is not encrypted"
    if key_id := table.metadata.properties.get(TABLE_KEY_ID):
        why = f"the table has {TABLE_KEY_ID!r} ({key_id}), but no file of it is encrypted"
    finding = HealthFinding(
        "unencrypted-table",
        f"{why}: everybody who can read its files can read its rows",
        files or 0,
        size,
        remedy=Remedy("migrate"),
    )
    return TableHealth(
        metadata_location=table.metadata_location,
        table_uuid=str(table.metadata.table_uuid),
        encrypted=False,
        key_id=None,
        snapshots=len(table.metadata.snapshots),
        findings=(finding,),
    )


def _why_no_keys(table: TableSession) -> str | None:
    """Return why no snapshot's key can be unwrapped; None if one can, or if there are none."""
    reason = None
    for snapshot in reversed(table.metadata.snapshots):
        key_id = getattr(snapshot, "key_id", None)
        if key_id is None:
            continue
        try:
            table.files.keys.manifest_list_key(key_id)
        except Ags1Error as error:
            reason = reason or error.message
        else:
            return None
    return reason


def _try(
    findings: list[HealthFinding],
    left_out: list[LeftOut],
    checks: str,
    found: Iterable[HealthFinding],
) -> None:
    """Add the findings, or the reason why these checks could not be done."""
    try:
        findings += found
    except UNREADABLE as error:
        left_out.append(LeftOut(checks, str(error)))


def _metadata_files(table: TableSession) -> Iterator[HealthFinding]:
    """Yield a finding if there are more metadata files than the metadata log names."""
    metadata = table.version.json
    properties = metadata.get("properties") or {}
    try:
        most = number_in(properties, _METADATA_FILES, _MAX_METADATA_FILES)
    except ValueError as error:
        yield HealthFinding("impossible-setting", str(error))
        return
    folder = table.files.stored_location(table.metadata_location).rpartition("/")[0]
    files = [f for f in list_files(table.files.inner, folder) or () if f.endswith(METADATA_ENDINGS)]
    # The log does not name the current one.
    if len(files) > most + 1:
        yield HealthFinding(
            "metadata-files",
            f"there are {len(files)} metadata files, but the metadata log names at most {most} "
            "earlier ones: set write.metadata.delete-after-commit.enabled to true, or erase the "
            "deleted rows, which also expires all earlier snapshots",
            len(files),
            remedy=None if may_share_files(properties) else Remedy("erase"),
        )
