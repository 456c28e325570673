"""``check_table`` says what is wrong with a table, and which command fixes it. ``verify_table``
authenticates a whole encrypted table.

A check has three levels. ``QUICK`` needs no key and reads metadata.json and the catalog
(``metadata_checks``). The others follow the keys down from metadata.json. One thread walks through
the table, in this order::

    1  metadata.json         partition fields; the KMS unwraps each KEK        ``metadata_checks``
    2  manifest lists        decrypted with the keys in metadata.json; each    ``walk``
                             must be written for its snapshot
    3  plaintext manifests   an error: they expose the keys of their files
    4  encrypted manifests   decrypted with the keys in the manifest lists;
                             they must have as many files as the list says
       their entries         compared with all earlier ones: one file, one     ``file_index``
                             key, one size. A new file becomes a ``Check``
    5  statistics files      named by metadata.json; each becomes a ``Check``
    6  the table's folders   a file that 1 to 5 did not name becomes a         ``unreferenced``
                             ``Check``
    7  maintenance           compactions, deleted rows: not in ``verify_table``  ``maintenance``

Meanwhile threads, or Spark, do the checks, one file each (``checks``). With ``FULL``, they
authenticate every block or Parquet module, and compare the file's size and rows with its manifest
entry. With ``DEFAULT``, they compare its length.

For example, snapshot 1 has manifest A with data file x. Snapshot 2 has A, and B with a deletion
vector for x. The walk opens two manifest lists, then A and B once each, and yields two checks: one
of x, one of the Puffin file. If B gave x another key than A, the finding would be ``two-keys``.

A damaged file is a finding (``findings``), and the check goes on. It writes nothing. Before a file
is said to be missing, or an orphan, the newest version is looked at (``newest``). At the end, each
finding gets the command that fixes it (``remedies``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from pyiceberg.table import Table

from ....errors import KMS_UNUSABLE, Ags1Error, MetadataIntegrityError, NotEncryptedError
from ....host.cpu import usable_cpus
from ....host.pools import CancellingPool
from ....keys.manager import TABLE_KEY_ID, Clock, now_ms
from ...commit.session import TableSession
from ...storage.byte_meter import ByteMeter
from ..plaintext_files import unencrypted_version
from .checks import Check, CheckExecutor, CheckThreads
from .file_index import FileIndex
from .findings import Finding, Findings, LeftOut, Level, TableCheck
from .maintenance import Maintenance, surplus_metadata
from .metadata_checks import check_keks, check_metadata, check_settings, check_statistics, keks_of
from .newest import DoubtfulFindings
from .progress import EstimatedProgress, ProgressReport
from .remedies import with_remedies
from .unreferenced import unreferenced_files
from .walk import ReadAhead, TableWalk

_REMOTE_THREADS = 16
_MAX_DIGITS = 18

LevelName: TypeAlias = Literal["quick", "default", "full"]


def check_table(
    table: Table,
    level: Level | LevelName = Level.DEFAULT,
    *,
    threads: int | None = None,
    progress: EstimatedProgress | None = None,
    require_encrypted: bool = False,
    list_folders: bool = True,
    clock_ms: Clock = now_ms,
) -> TableCheck:
    """Return what is wrong or could be better with ``table``, encrypted or not, and which command
    fixes it.

    ``level`` is ``"quick"`` (metadata.json and the catalog; needs no key), ``"default"`` (also
    manifests, folders and the lengths of all files) or ``"full"`` (every byte of every file). The
    other arguments are as in ``verify_table``; they are not used by a quick check. A file that
    is not encrypted is an error, wherever in the table or its folders it is. If the KMS cannot be
    used, the quick checks are done, and ``left_out`` of the result names the others.
    """
    run = _Run(Level(level), threads, progress, require_encrypted, list_folders, clock_ms)
    if not isinstance(table, TableSession):
        return _unencrypted(table, run.level)
    if run.level is Level.QUICK:
        return run.quick(table)
    try:
        return run.deep(table)
    except KMS_UNUSABLE as error:
        left_out = LeftOut("manifests, files and folders", error.message)
        return replace(run.quick(table), level=run.level, left_out=(left_out,))


def verify_table(
    table: TableSession,
    *,
    threads: int | None = None,
    progress: EstimatedProgress | None = None,
    require_encrypted: bool = False,
    list_folders: bool = True,
    clock_ms: Clock = now_ms,
    executor: CheckExecutor | None = None,
) -> TableCheck:
    """Authenticate every file of every snapshot of ``table``: ``check_table`` at the level
    ``"full"``, without the maintenance that is due.

    ``threads`` is the number of threads that read and decrypt. The default is one per CPU for local
    files, and more for files on a network. ``progress(done, total)`` is called about ten times a
    second with numbers of bytes, in the calling thread. ``total`` is an estimate; None without one.
    If ``progress`` raises, the call ends. With ``require_encrypted``, an unencrypted data file is
    the finding ``not-encrypted``. Files that no snapshot has are searched for, unless
    ``list_folders`` is false, or a manifest list or a manifest cannot be read: then any file may be
    one of its. If ``executor`` is given, it checks the data files, and this process reads only
    manifests and manifest lists.

    The result has what is wrong with the table. Its ``ok`` is about the encrypted files: those that
    are not encrypted, although the format allows them, do not count. Raises NotEncryptedError for a
    table that is not encrypted, KmsUnavailableError, KmsAccessDeniedError and
    KmsConfigurationError: without the KMS, nothing can be verified.

    If others have committed meanwhile, a file that is missing is not reported if the newest version
    does not need it, nor an orphan that it has. If the current snapshot has expired meanwhile, the
    newest version is verified instead.

    The number of rows in Avro files is not checked, and statistics are not compared with the data.
    Plaintext statistics are only reported. No key of the table protects
    metadata.json. So the list of snapshots, the schemas (names, field IDs, defaults) and the
    partition specs are only as trustworthy as the storage of that file. If no expected SHA-256, no
    hash in the catalog and no REST server confirms it, the result has the note
    ``metadata-not-pinned``.
    """
    if not isinstance(table, TableSession):
        raise NotEncryptedError(
            "the table is not encrypted, so nothing can be verified: migrate_table() of the "
            "catalog (ags1 table migrate) encrypts it",
            file=table.metadata_location,
        )
    run = _Run(Level.FULL, threads, progress, require_encrypted, list_folders, clock_ms)
    result = replace(run, executor=executor, maintains=False).deep(table)
    return replace(result, plaintext_counts=False)


@dataclass(frozen=True, slots=True)
class _Run:
    """The arguments of a check. ``maintains``: look for the maintenance that is due, too."""

    level: Level
    threads: int | None
    progress: EstimatedProgress | None
    require_encrypted: bool
    list_folders: bool
    clock_ms: Clock
    executor: CheckExecutor | None = None
    maintains: bool = True

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, not {self.threads}")

    def quick(self, table: TableSession) -> TableCheck:
        """Check metadata.json and the catalog."""
        started = time.perf_counter()
        findings = Findings(table.files.location_map)
        check_metadata(table, findings, self.clock_ms)
        check_settings(table, findings, self.clock_ms)
        check_statistics(table.version.json, findings)
        return self._result(table, findings, started)

    def deep(self, table: TableSession) -> TableCheck:
        """Check the files, too. Raises the exceptions of ``KMS_UNUSABLE``."""
        result, newest = self._deep(table)
        return result if newest is None else self._deep(newest)[0]

    def _deep(self, table: TableSession) -> tuple[TableCheck, TableSession | None]:
        """Check one version of a table. If its current snapshot has expired meanwhile, also return
        the table at its newest version."""
        started = time.perf_counter()
        cpus = threads = self.threads or usable_cpus()
        if self.threads is None and not _is_local(table):
            threads = max(cpus, _REMOTE_THREADS)
        findings, meter = DoubtfulFindings(table.files.location_map), ByteMeter()
        report = ProgressReport(self.progress, meter, estimated_size(table))
        index = FileIndex(table.files, table.metadata.location, findings)
        verified_size = 0
        with CancellingPool(threads, "ags1-check", meter.stop) as pool:
            walk = TableWalk(
                table,
                index,
                findings,
                ReadAhead(pool, threads, report.tick),
                report,
                require_encrypted=self.require_encrypted or table.files.require_encrypted,
            )
            check_metadata(table, findings, self.clock_ms)
            check_keks(table, findings)
            walk.read_manifest_lists()

            def checks() -> Iterator[Check]:
                yield from walk.checks()
                if self.list_folders:
                    yield from unreferenced_files(table, index, findings, walk.is_complete)

            lengths_only = self.level is not Level.FULL
            executor = self.executor or CheckThreads(pool, threads, cpus, lengths_only)
            with closing(executor.run(checks(), table.files, meter, report.tick)) as outcomes:
                for outcome in outcomes:
                    verified_size += outcome.size
                    for finding in outcome.findings:
                        findings.append(finding)
        newest = findings.settle(table)
        more = self._maintenance(table, index, findings) if self.maintains else {}
        report.finish()
        exposed, exposed_current = index.count_exposed()
        result = self._result(
            table,
            findings,
            started,
            **walk.counts,
            exposed_files=exposed,
            exposed_current_files=exposed_current,
            verified_size=walk.verified_size + verified_size,
            **more,
        )
        return result, newest

    def _maintenance(
        self, table: TableSession, index: FileIndex, findings: Findings
    ) -> dict[str, Any]:
        """Add the maintenance that is due; return what the result has of it."""
        check_settings(table, findings, self.clock_ms)
        maintenance = Maintenance(table, index)
        for finding in maintenance.findings():
            findings.append(finding)
        left_out = maintenance.left_out
        try:
            for finding in surplus_metadata(table) if self.list_folders else ():
                findings.append(finding)
        except (Ags1Error, OSError) as error:
            left_out.append(LeftOut("earlier metadata files", str(error)))
        return {"branches": tuple(maintenance.branches), "left_out": tuple(left_out)}

    def _result(
        self, table: TableSession, findings: Findings, started: float, **facts: Any
    ) -> TableCheck:
        migrated = findings.counts["stray-plain-file"] > 0 and _was_migrated(table)
        found = with_remedies(findings.sorted(), table.version.json, migrated=migrated)
        return TableCheck(
            self.level,
            table.metadata_location,
            str(table.metadata.table_uuid),
            True,
            table.key_id,
            len(table.metadata.snapshots),
            **facts,
            keks=keks_of(table),
            seconds=time.perf_counter() - started,
            findings=tuple(found),
            finding_counts=dict(findings.counts),
        )


def _unencrypted(table: Table, level: Level) -> TableCheck:
    """Return the result for a table that is not encrypted: that is all that is wrong with it."""
    current = table.metadata.current_snapshot()
    summary = None if current is None else current.summary
    files = None if summary is None else summary["total-data-files"]
    why = "the table is not encrypted"
    if key_id := table.metadata.properties.get(TABLE_KEY_ID):
        why = f"the table has {TABLE_KEY_ID!r} ({key_id}), but no file of it is encrypted"
    finding = Finding(
        "unencrypted-table",
        f"{why}: everybody who can read its files can read its rows",
        count=int(files) if files and files.isdecimal() else 0,
        size=estimated_size(table),
    )
    return TableCheck(
        level,
        table.metadata_location,
        str(table.metadata.table_uuid),
        False,
        None,
        len(table.metadata.snapshots),
        findings=tuple(with_remedies([finding], {})),
        finding_counts={finding.kind: 1},
    )


def _was_migrated(table: TableSession) -> bool:
    """Whether an earlier version of the table, which is not encrypted, is still there."""
    metadata, io = table.version.json, table.files.inner
    try:
        return unencrypted_version(metadata, io, table.folders) is not None
    except OSError:
        return False


def estimated_size(table: Table) -> int | None:
    """Return the size (bytes) of the current snapshot's files from its summary; None if unknown."""
    snapshot = table.metadata.current_snapshot()
    summary = snapshot.summary if snapshot is not None else None
    size = summary["total-files-size"] if summary is not None else None
    return int(size) if size and size.isdecimal() and len(size) <= _MAX_DIGITS else None


def _is_local(table: TableSession) -> bool:
    try:
        return table.files.local_path(table.metadata.location) is not None
    except MetadataIntegrityError:
        return False
