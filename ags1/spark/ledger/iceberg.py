"""A ledger that is an encrypted Iceberg table, in any catalog that keeps keys.

Each row has the columns of ``Row`` and three more: ``entry``, ``batch`` and ``number``. Rows are
in the order of ``batch`` and, in a batch, of ``number``. The table is partitioned by ``entry``, so
each entry has data files of its own, and is removed without reading one.

    branch   entry                              rows
    main     settled                            all settled batches
    jobs     claim-<claim>                      which files a job may write (``claims``)
             pending-<claim>-<batch>            a pending batch
             job-<claim>-<job id>               a job that has begun, and its folder
             staged-<claim>-<job id>-<wave>     the uploads that a wave has begun

So a query on the table sees settled rows only. Each step of a ledger is one commit, which changes
one or both branches. A commit to ``jobs`` requires that its head is the one that was looked at. So
of two jobs that want the same files one gets the claim; and a job whose claim was taken over cannot
commit any more. Whoever claims files takes over what dead jobs have left of them.

Knows nothing of Spark, and tables only through ``iceberg_api``.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import BooleanExpression
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.transforms import IdentityTransform

from ..._gcm import random_bytes
from ...errors import FormatError
from ...keys.manager import TABLE_KEY_ID
from ...kms.registry import names_kms
from ..iceberg_api import (
    MAIN_BRANCH,
    ContentFile,
    EncryptedCatalog,
    EncryptedTable,
    FileChange,
    ManifestEntry,
    RecomputedSnapshotStep,
    TableOutput,
    TableView,
    configured_properties,
    iceberg_schema,
    load_catalog,
    read_entries,
    write_rows,
)
from ..keys import KmsConfig
from ..paths import local_path
from .base import JobNote, Ledger
from .claims import RENEW_SECONDS, Claim, now_ms, this_process
from .rows import DONE, REMOVED, Batch, Row
from .table_rows import (
    JOBS_BRANCH,
    SETTLED,
    TABLE_SCHEMA,
    arrow_table,
    between,
    claim_of,
    claim_rows,
    entries_of,
    files_by_entry,
    known_columns,
    note_row,
    numbered,
    pending_numbers,
    read_table,
    runs_of,
    where,
)

_log = logging.getLogger(__name__)

# The status in the note of a job that writes sidecars.
_WITH_SIDECARS = "sidecars"
# A compaction writes files of about so many bytes, and has the rows of one or two in memory.
_FILE_SIZE = 16 << 20
# After so many commits a job expires old snapshots. After so many data files its end compacts them.
_COMMITS_BEFORE_EXPIRY = 50
_FILES_BEFORE_COMPACTION = 50
# Readers of the branch of the jobs may still read what is younger.
_JOBS_SNAPSHOTS_MS = 120_000

_PROPERTIES = {
    # Old wrapped keys are not to stay behind deletion vectors.
    "write.update.mode": "copy-on-write",
    # Whole paths: many of them begin with the same letters.
    "write.metadata.metrics.column.target": "full",
    # A compaction has some row groups in memory, however well their rows compress.
    "write.parquet.row-group-size-bytes": str(_FILE_SIZE // 4),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # By number, because each commit reads and writes all snapshots of the metadata.
    "history.expire.max-snapshot-age-ms": "1",
    "history.expire.min-snapshots-to-keep": "50",
    "encryption.keys.prune-on-commit": "true",
    "commit.retry.num-retries": "20",
    "commit.manifest.min-count-to-merge": "20",
}


class _Jobs:
    """The branch of the jobs in one version of the table, and what a commit changes in it: ``put``
    and ``remove``. ``written`` has the files of entries that an earlier try has written."""

    def __init__(
        self, view: TableView, output: TableOutput, written: dict[str, list[ContentFile]]
    ) -> None:
        self.view = view.at(JOBS_BRANCH)
        self._output = output
        self._written = written
        self._added: list[ContentFile] = []
        # Rows of main are there if the branch was lost, and made again from main.
        self._removed: set[str] = {SETTLED}

    @cached_property
    def files(self) -> dict[str, list[ManifestEntry]]:
        """The data files of each entry."""
        return files_by_entry(self.view)

    def rows(self, prefix: str) -> dict[str, list[Row]]:
        """Return the rows of the entries whose names begin with ``prefix``."""
        return entries_of(self.view, prefix)

    def claims(self) -> list[Claim]:
        """Return the claims of all jobs."""
        return [claim_of(rows) for rows in self.rows("claim-").values()]

    def check(self, claim: Claim, location: str) -> None:
        """Raise OSError if a claim was taken over."""
        if f"claim-{claim.claim_id}" not in self.files:
            said = "another job has taken over the files of this job, which had not been seen for "
            said += "too long: run this job again"
            raise OSError(errno.ESTALE, said, location)

    def put(self, entry: str, rows: Sequence[Row], batch: int = 0) -> None:
        """Add an entry, or replace it."""
        self.remove(entry)
        if entry not in self._written or entry.startswith("claim-"):
            table = arrow_table(rows, entry, batch)
            self._written[entry] = write_rows(self.view, table, self._output, threads=1)
        self._added += self._written[entry]

    def remove(self, entry: str) -> None:
        """Remove an entry if it is there."""
        self._removed.add(entry)

    def change(self) -> FileChange:
        """Return what the commit changes."""
        removed = [file for name in self._removed for file in self.files.get(name, ())]
        return FileChange(added=self._added, removed=removed)


class TableName(NamedTuple):
    """The name of a table and of its catalog."""

    catalog: str
    identifier: tuple[str, ...]

    @classmethod
    def parse(cls, location: str) -> TableName:
        """Raises OSError if the text of a ledger names no table."""
        parts = location.removeprefix("iceberg:").split(".")
        if len(parts) < 3 or not all(parts):
            said = "a table that is a ledger is named iceberg:CATALOG.NAMESPACE.TABLE"
            raise OSError(errno.EINVAL, said, location)
        return cls(parts[0], tuple(parts[1:]))

    def open_catalog(self, kms: KmsConfig | None) -> EncryptedCatalog:
        """Open the catalog, with the KMS of its configuration or else ``kms``."""
        configured = configured_properties(self.catalog, {})
        if not configured:
            said = f"no catalog {self.catalog!r} is configured for PyIceberg: add it to "
            said += ".pyiceberg.yaml, or name another one"
            # ENOENT would say that the catalog has no such ledger yet.
            raise OSError(errno.EINVAL, said, self.catalog)
        if kms is not None and not names_kms(configured):
            return load_catalog(self.catalog, **dict(kms.properties))
        return load_catalog(self.catalog)


class IcebergLedger(Ledger):
    """A table; see ``choice.open_ledger``. A writer has a claim on the files below ``root``, which
    a thread renews. Raises BlockingIOError while another job that is alive writes files there."""

    def __init__(
        self,
        location: str,
        *,
        writing: bool,
        root: str | None,
        kms: KmsConfig | None,
        key_id: str | None,
    ) -> None:
        self.location = location
        self._name = TableName.parse(location)
        self._catalog = self._name.open_catalog(kms)
        self._claim: Claim | None = None
        self._closing = threading.Event()
        self._renewals: threading.Thread | None = None
        self._table_to_renew: EncryptedTable | None = None
        self._commits = 0
        # For each manifest's path. A manifest never changes.
        self._last_of_manifests: dict[str, int] = {}
        try:
            self._table = self._opened(key_id if writing else None)
            folder = self._table.location()
            self.own_folder = local_path(folder) or folder
            if writing:
                self._take(root or "")
        except BaseException:
            self._catalog.close()
            raise

    # -- claims

    def claims(self) -> list[Claim]:
        return self._jobs().claims()

    def release(self, claim_id: str) -> None:
        def end(jobs: _Jobs) -> None:
            claim = next((claim for claim in jobs.claims() if claim.claim_id == claim_id), None)
            if claim is None:
                raise self._no_claim(claim_id)
            jobs.put(f"claim-{claim_id}", claim_rows(claim._replace(renewed_ms=0)))

        self._commit(end, owned=False)

    def _take(self, root: str) -> None:
        """Claim the files below a root, and take over what dead jobs have left of them."""
        claim_id = random_bytes(6).hex()
        made: list[Claim] = []

        def take(jobs: _Jobs) -> None:
            claim = Claim(claim_id, (root,), this_process(), now_ms())
            others = jobs.claims()
            dead = [other for other in others if not other.is_alive(claim.renewed_ms)]
            taken: list[Claim] = []
            # The roots of a claim that is taken over may meet those of further claims.
            while more := [c for c in dead if c not in taken and c.meets(claim.roots)]:
                taken += more
                roots = dict.fromkeys([*claim.roots, *(r for c in more for r in c.roots)])
                claim = claim._replace(roots=tuple(roots))
            for other in others:
                if other not in dead and other.meets(claim.roots):
                    raise other.refusal(self.location, claim.renewed_ms)
            for other in taken:
                self._adopt(jobs, other, claim_id)
            jobs.put(f"claim-{claim_id}", claim_rows(claim))
            made[:] = [claim]

        self._commit(take, owned=False)
        self._claim = made[0]
        self._renewals = threading.Thread(
            target=_renew, args=(weakref.ref(self), self._closing), name="ags1-ledger", daemon=True
        )
        self._renewals.start()

    def _adopt(self, jobs: _Jobs, dead: Claim, claim_id: str) -> None:
        jobs.remove(f"claim-{dead.claim_id}")
        for kind in ("pending", "job", "staged"):
            prefix = f"{kind}-{dead.claim_id}-"
            if not any(name.startswith(prefix) for name in jobs.files):
                continue
            for entry, rows in jobs.rows(prefix).items():
                jobs.remove(entry)
                name = entry.removeprefix(prefix)
                jobs.put(f"{kind}-{claim_id}-{name}", rows, int(name) if kind == "pending" else 0)

    def renew(self) -> None:
        """Renew the claim, with a table object of the thread that does this."""
        try:
            table = self._table_to_renew
            table = self._loaded() if table is None else table.refresh()
            self._table_to_renew = table
            self._commit(lambda jobs: None, renew=True, table=table)
        except Exception as error:
            # The job's own commits tell, if the claim is lost.
            _log.warning("%s: the claim was not renewed: %s", self.location, error)

    def close(self) -> None:
        claim, self._claim = self._claim, None
        self._closing.set()
        if self._renewals is not None:
            self._renewals.join()
        if claim is not None:
            try:
                self._claim = claim
                self.maintain(expires=self._commits > _COMMITS_BEFORE_EXPIRY // 2)
                self._commit(self._end_claim)
            except Exception as error:
                # Others need not wait longer than for a job that was killed.
                _log.warning("%s: the claim was not released: %s", self.location, error)
            self._claim = None
        self._catalog.close()

    def _end_claim(self, jobs: _Jobs) -> None:
        assert self._claim is not None
        claim_id = self._claim.claim_id
        if any(f"-{claim_id}-" in name for name in jobs.files):  # the next job needs it
            jobs.put(f"claim-{claim_id}", claim_rows(self._claim._replace(renewed_ms=0)))
        else:
            jobs.remove(f"claim-{claim_id}")

    # -- batches

    def prepare(self, rows: Sequence[Row]) -> Batch:
        numbers: list[int] = []

        def prepare(jobs: _Jobs) -> None:
            numbers[:] = [1 + max(self._last_batch(jobs.view), *pending_numbers(jobs.files), 0)]
            jobs.put(self._own("pending", f"{numbers[0]:012}"), rows, numbers[0])

        self._commit(prepare)
        return Batch(numbers[0], rows)

    def settle(self, batch: Batch, rows: Sequence[Row]) -> None:
        entry = self._own("pending", f"{batch.number:012}")
        self._commit(
            lambda jobs: jobs.remove(entry), settled=arrow_table(rows, SETTLED, batch.number)
        )

    def pending(self, *, others: bool = False) -> Iterator[Batch]:
        entries = self._jobs().rows(self._prefix("pending", others=others))
        batches = [Batch(int(name.rpartition("-")[2]), rows) for name, rows in entries.items()]
        yield from sorted(batches, key=lambda batch: batch.number)

    def numbers(self) -> list[int]:
        return sorted(self._sizes(0, None))

    def rows_between(
        self, after: int, until: int | None = None, columns: Sequence[str] = Row._fields
    ) -> Iterator[tuple[int, list[Row]]]:
        for rows in self._ordered(after, until, columns):
            for number, group in itertools.groupby(rows, key=lambda pair: pair[0]):
                yield number, [row for _, row in group]

    def _ordered(
        self,
        after: int,
        until: int | None,
        columns: Sequence[str],
        wanted: BooleanExpression | None = None,
    ) -> Iterator[Iterator[tuple[int, Row]]]:
        """Yield the settled rows of a range of batches that match, with the number of their batch,
        in their order: those of some whole batches at a time."""
        names = known_columns(columns)
        for first, last in runs_of(self._sizes(after, until)):
            within = between(first - 1, last)
            # Each from the newest version: an older one may expire while the rows are used.
            matching = within if wanted is None else where.And(within, wanted)
            table = read_table(self._now(), matching, [*names, "batch", "number"])
            table = table.sort_by([("batch", "ascending"), ("number", "ascending")])
            yield numbered(table, names, self.location)

    def _outcomes(self, operation: str, columns: Sequence[str], below: str) -> Iterator[Row]:
        wanted: BooleanExpression = where.And(
            where.EqualTo("operation", operation), where.In("status", [DONE, REMOVED])
        )
        if below:
            wanted = where.And(wanted, where.StartsWith("target", below))
        for rows in self._ordered(0, None, columns, wanted):
            yield from (row for _, row in rows)

    def settled_up_to(self) -> int:
        view = self._now()
        pending = pending_numbers(files_by_entry(view.at(JOBS_BRANCH)))
        return min([self._last_batch(view), *(number - 1 for number in pending)])

    def replace(self, number: int, rows: Sequence[Row]) -> None:
        self.replace_all({number: rows})

    def replace_all(self, batches: Mapping[int, Sequence[Row]]) -> None:
        if batches:
            tables = [arrow_table(rows, SETTLED, number) for number, rows in batches.items()]
            what = where.In("batch", list(batches))
            self._commit(lambda jobs: None, pa.concat_tables(tables), replaces=what, renew=True)

    def rewrap(self, to_key_id: str | None) -> None:
        self._table.refresh()
        self._table.rewrap_keys(to_key_id)

    # -- notes

    def begin(self, job_id: str, folder: str, *, sidecars: bool = False) -> None:
        self.note_cleared(job_id, JobNote(folder, sidecars))

    def note_cleared(self, job_id: str, note: JobNote) -> None:
        status = _WITH_SIDECARS if note.sidecars else ""
        facts = {"job_id": job_id, "status": status, "finished_ms": note.cleared_ms}
        row = note_row(target=note.folder, **facts)
        self._commit(lambda jobs: jobs.put(self._own("job", job_id), [row]))

    def end(self, job_id: str) -> None:
        def end(jobs: _Jobs) -> None:
            jobs.remove(self._own("job", job_id))
            for name in jobs.files:
                if name.startswith(self._own("staged", f"{job_id}-")):
                    jobs.remove(name)

        self._commit(end)

    def notes(self) -> dict[str, JobNote]:
        entries = self._jobs().rows(self._prefix("job"))
        return {
            row.job_id: JobNote(row.target, row.status == _WITH_SIDECARS, row.finished_ms)
            for rows in entries.values()
            for row in rows
        }

    def note_staged(self, job_id: str, number: int, staged: Mapping[str, str]) -> None:
        rows = [note_row(target=t, job_id=job_id, attempt=shared) for t, shared in staged.items()]
        entry = self._own("staged", f"{job_id}-{number:06}")
        self._commit(lambda jobs: jobs.put(entry, rows))

    def forget_staged(self, job_id: str, number: int) -> None:
        self._commit(lambda jobs: jobs.remove(self._own("staged", f"{job_id}-{number:06}")))

    def staged(self, job_id: str) -> list[tuple[str, str]]:
        entries = self._jobs().rows(self._prefix("staged"))
        rows = [row for rows in entries.values() for row in rows if row.job_id == job_id]
        return [(row.target, row.attempt or "") for row in rows]

    def how_to_forget(self, job_id: str) -> str:
        return f"run: ags1 spark ledger forget {self.location} {job_id}"

    # -- maintenance

    def maintain(self, *, expires: bool = True) -> None:
        """Compact many small data files of settled rows, and expire old snapshots: of main as the
        table's properties ``history.expire.*`` say, of the jobs after two
        minutes."""
        if self._files() >= _FILES_BEFORE_COMPACTION:
            with contextlib.suppress(BlockingIOError):  # the next job does it
                self.compact()
        elif expires:
            self._expire()

    def compact(self) -> tuple[int, int]:
        before = self._files()
        try:
            self._table.rewrite_data_files(
                target_file_size_bytes=_FILE_SIZE, max_file_group_size_bytes=_FILE_SIZE, threads=1
            )
        except (CommitFailedException, ValidationException) as error:
            said = f"another job has compacted the ledger first ({error}): run this again"
            raise BlockingIOError(errno.EAGAIN, said, self.location) from error
        self._expire()
        return before, self._files()

    def _files(self) -> int:
        """Return how many data files the settled rows are in."""
        view = self._table.refresh().view()
        return sum(len(files) for files in files_by_entry(view).values())

    def _expire(self) -> None:
        table = self._table.refresh()
        refs = table.metadata.refs
        head = refs[JOBS_BRANCH].snapshot_id if JOBS_BRANCH in refs else None
        ended = now_ms() - _JOBS_SNAPSHOTS_MS
        snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        heads = {ref.snapshot_id for ref in refs.values()}
        old = set()
        while head in snapshots:
            snapshot = snapshots[head]
            if snapshot.timestamp_ms < ended and head not in heads:
                old.add(head)
            head = snapshot.parent_snapshot_id
        with contextlib.suppress(CommitFailedException):
            table.expire_snapshots(snapshot_ids=old)
        self._commits = 0

    # -- the table

    def _opened(self, key_id: str | None) -> EncryptedTable:
        """Load the table, or create it under a master key."""
        try:
            return self._loaded()
        except NoSuchTableError:
            if key_id is None:
                said = "there is no such ledger: check its name, and that of the catalog"
                raise FileNotFoundError(errno.ENOENT, said, self.location) from None
        schema = assign_fresh_schema_ids(iceberg_schema(TABLE_SCHEMA))
        partition = schema.find_field("entry")
        spec = PartitionSpec(
            PartitionField(partition.field_id, 1000, IdentityTransform(), partition.name)
        )
        properties = {**_PROPERTIES, TABLE_KEY_ID: key_id}
        self._catalog.create_namespace_if_not_exists(self._name.identifier[:-1])
        with contextlib.suppress(TableAlreadyExistsError):
            self._catalog.create_table(
                self._name.identifier, schema, partition_spec=spec, properties=properties
            )
        return self._loaded()

    def _loaded(self) -> EncryptedTable:
        table = self._catalog.load_table(self._name.identifier, require_encrypted=True)
        assert isinstance(table, EncryptedTable)  # it is required
        names = set(table.schema().column_names)
        if not names.issuperset(TABLE_SCHEMA.names):
            said = "this table is no ledger (columns are missing): name another table"
            raise FormatError(said, file=self.location)
        return table

    def _now(self) -> TableView:
        """Return the newest version of the table."""
        return self._table.refresh().view()

    def _last_batch(self, view: TableView) -> int:
        """Return the highest number of a settled batch, from the bounds in the manifests."""
        view = view.at(MAIN_BRANCH)
        field_id = view.schema.find_field("batch").field_id
        known = self._last_of_manifests
        self._last_of_manifests = {}
        for manifest in view.manifests:
            path = manifest.manifest_path
            if path not in known:
                entries = read_entries(manifest, view.files)
                bounds = [(entry.file.upper_bounds or {}).get(field_id) for entry in entries]
                numbers = [int.from_bytes(b, "little", signed=True) for b in bounds if b]
                known[path] = max(numbers, default=0)
            self._last_of_manifests[path] = known[path]
        return max(self._last_of_manifests.values(), default=0)

    def _jobs(self) -> _Jobs:
        return _Jobs(self._now(), self._table.output(), {})

    def _sizes(self, after: int, until: int | None) -> dict[int, int]:
        """Return the settled batches of a range, and how many rows each has."""
        batches = read_table(self._now(), between(after, until), ["batch"]).column("batch")
        counts = pc.value_counts(batches).to_pylist()
        return {count["values"]: count["counts"] for count in counts}

    def _own(self, kind: str, name: str) -> str:
        return f"{kind}-{self._writer().claim_id}-{name}"

    def _prefix(self, kind: str, *, others: bool = False) -> str:
        """Return how the names of entries begin: those of this writer, or all of them."""
        if self._claim is None or others:
            return f"{kind}-"
        return self._own(kind, "")

    def _writer(self) -> Claim:
        if self._claim is None:
            raise ValueError("this ledger was opened for reading")
        return self._claim

    def _commit(
        self,
        change: Callable[[_Jobs], None],
        settled: pa.Table | None = None,
        *,
        replaces: BooleanExpression | None = None,
        owned: bool = True,
        renew: bool = False,
        table: EncryptedTable | None = None,
    ) -> None:
        """Commit a change of the branch of the jobs, and with it settled rows, which are added or
        replace those of a filter. ``change`` is called for each version of the table that is tried.
        ``owned``: this writer must still have its claim; ``renew`` renews it."""
        claim = self._writer() if owned else None
        written: dict[str, list[ContentFile]] = {}
        transaction = (table or self._table).transaction()

        def changed(view: TableView) -> FileChange:
            jobs = _Jobs(view, transaction.output, written)
            if claim is not None:
                jobs.check(claim, self.location)
            change(jobs)
            if claim is not None and renew:
                renewed = claim._replace(renewed_ms=now_ms())
                jobs.put(f"claim-{claim.claim_id}", claim_rows(renewed))
            return jobs.change()

        try:
            transaction.stage_step(RecomputedSnapshotStep(transaction.output, changed, JOBS_BRANCH))
            if settled is not None and replaces is not None:
                transaction.overwrite(settled, replaces)
            elif settled is not None and settled.num_rows:
                transaction.append(settled)
            transaction.commit_transaction()
        except CommitFailedException as error:
            said = f"other jobs kept changing the ledger first ({error}): run this job again"
            raise OSError(errno.EAGAIN, said, self.location) from error
        except CommitStateUnknownException as error:
            said = "the catalog did not say whether it has stored a change of the ledger: run this "
            said += "job again, which finds out"
            raise OSError(errno.EIO, said, self.location) from error
        self._commits += 1
        if owned and table is None and self._commits > _COMMITS_BEFORE_EXPIRY:
            self._expire()


def _renew(opened: weakref.ref[IcebergLedger], closing: threading.Event) -> None:
    """Renew a claim from time to time, as long as anybody has the ledger."""
    while not closing.wait(RENEW_SECONDS):
        ledger = opened()
        if ledger is None:
            return
        ledger.renew()
        del ledger
