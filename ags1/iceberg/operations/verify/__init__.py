"""``verify_table`` authenticates a whole encrypted table and reports everything that is wrong.

It follows the keys down from metadata.json. One thread walks through the table, in this order::

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

Meanwhile threads, or Spark, do the checks, one file each (``checks``): they authenticate every
block or Parquet module, and compare the file's size and rows with its manifest entry.

For example, snapshot 1 has manifest A with data file x. Snapshot 2 has A, and B with a deletion
vector for x. The walk opens two manifest lists, then A and B once each, and yields two checks: one
of x, one of the Puffin file. If B gave x another key than A, the finding would be ``two-keys``.

A damaged file is a finding (``findings``), and the verification goes on. It writes nothing. Before
a file is said to be missing, or an orphan, the newest version is looked at (``newest``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from pyiceberg.table import Table

from ....errors import MetadataIntegrityError, NotEncryptedError
from ....host.cpu import usable_cpus
from ....keys.manager import Clock, now_ms
from ...commit.session import TableSession
from ...storage.byte_meter import ByteMeter
from ...write.executors import CancellingPool
from .checks import Check, CheckExecutor, CheckThreads
from .file_index import FileIndex
from .findings import TableVerification
from .metadata_checks import check_metadata
from .newest import DoubtfulFindings
from .progress import EstimatedProgress, ProgressReport
from .unreferenced import unreferenced_files
from .walk import ReadAhead, TableWalk

_REMOTE_THREADS = 16
_MAX_DIGITS = 18


def verify_table(
    table: TableSession,
    *,
    threads: int | None = None,
    progress: EstimatedProgress | None = None,
    require_encrypted: bool = False,
    list_folders: bool = True,
    clock_ms: Clock = now_ms,
    executor: CheckExecutor | None = None,
) -> TableVerification:
    """Authenticate every file of every snapshot of ``table``.

    ``threads`` is the number of threads that read and decrypt. The default is one per CPU for local
    files, and more for files on a network. ``progress(done, total)`` is called about ten times a
    second with numbers of bytes, in the calling thread. ``total`` is an estimate; None without one.
    If ``progress`` raises, the call ends. With ``require_encrypted``, unencrypted data files are
    errors. Files that no snapshot has are searched for, unless ``list_folders`` is false, or a
    manifest list or a manifest cannot be read: then any file may be one of its. If ``executor`` is
    given, it checks the data files, and this process reads only manifests and manifest lists.

    The result has what is wrong with the table. Raises NotEncryptedError for a table that is not
    encrypted, KmsUnavailableError, KmsAccessDeniedError and KmsConfigurationError: without the KMS,
    nothing can be verified.

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
    _check_arguments(table, threads)
    run = _Run(threads, progress, require_encrypted, list_folders, clock_ms, executor)
    result, newest = run.verify(table)
    return result if newest is None else run.verify(newest)[0]


@dataclass(frozen=True, slots=True)
class _Run:
    """The arguments of ``verify_table``."""

    threads: int | None
    progress: EstimatedProgress | None
    require_encrypted: bool
    list_folders: bool
    clock_ms: Clock
    executor: CheckExecutor | None

    def verify(self, table: TableSession) -> tuple[TableVerification, TableSession | None]:
        """Verify one version of a table. If its current snapshot has expired meanwhile, also return
        the table at its newest version."""
        started = time.perf_counter()
        cpus = threads = self.threads or usable_cpus()
        if self.threads is None and not _is_local(table):
            threads = max(cpus, _REMOTE_THREADS)
        findings, meter = DoubtfulFindings(table.files.location_map), ByteMeter()
        report = ProgressReport(self.progress, meter, estimated_size(table))
        index = FileIndex(table.files, table.metadata.location, findings)
        verified_size = 0
        with CancellingPool(threads, "ags1-verify", meter.stop) as pool:
            walk = TableWalk(
                table,
                index,
                findings,
                ReadAhead(pool, threads, report.tick),
                report,
                require_encrypted=self.require_encrypted or table.files.require_encrypted,
            )
            check_metadata(table, findings, self.clock_ms)
            walk.read_manifest_lists()

            def checks() -> Iterator[Check]:
                yield from walk.checks()
                if self.list_folders:
                    yield from unreferenced_files(table, index, findings, walk.is_complete)

            executor = self.executor or CheckThreads(pool, threads, cpus)
            with closing(executor.run(checks(), table.files, meter, report.tick)) as outcomes:
                for outcome in outcomes:
                    verified_size += outcome.size
                    for finding in outcome.findings:
                        findings.append(finding)
        newest = findings.settle(table)
        report.finish()
        exposed, exposed_current = index.count_exposed()
        result = TableVerification(
            metadata_location=table.metadata_location,
            table_uuid=str(table.metadata.table_uuid),
            key_id=table.key_id,
            snapshots=len(table.metadata.snapshots),
            **walk.counts,
            exposed_files=exposed,
            exposed_current_files=exposed_current,
            verified_size=walk.verified_size + verified_size,
            seconds=time.perf_counter() - started,
            findings=findings.sorted(),
            finding_counts=dict(findings.counts),
        )
        return result, newest


def estimated_size(table: TableSession) -> int | None:
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


def _check_arguments(table: Table, threads: int | None) -> None:
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    if not isinstance(table, TableSession):
        raise NotEncryptedError(
            "the table is not encrypted, so nothing can be verified: migrate_table() of the "
            "catalog (ags1 table migrate) encrypts it",
            file=table.metadata_location,
        )
