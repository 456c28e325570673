"""``Ledger``: what became of each file of a job, and its wrapped key.

The rule: the ledger stores the wrapped key of a file before the file gets its name. So there is no
file without its key. A file has one key for one content: whoever writes a file again does it under
a fresh key, with a new row. These are the steps of a batch, each of them one request::

    prepare(rows)         the rows, with their keys, are pending
      files get their names (``ags1.files.jobs.publishing``)
    settle(batch, rows)   the same rows, as they turned out; then they are pending no longer

A job may be killed between any two steps. Then a later job sees its batches in ``pending`` and its
notes in ``notes`` and ``staged``, and brings them to their end. **No job has to wait for another
one.** All objects are written once, under names that are used once, and a ledger is the union of
them (``packs``). So each step may be done twice, by two jobs, and a request may arrive late.
Whether a job is dead is only a guess (``notes``): if it was paused, its staged files are gone when
it goes on, and never a key. ``tests/spark/test_model.py`` tries many orders of requests.

These are the objects of a ledger, in a folder or an object storage (``store``). Readers of Parquet
folders pass over names that begin with ``_``::

    pack-….parquet              settled rows
    _plan-<job id>-….parquet    rows whose files may not all have their names yet
    _job-<job id>.json          a job that is running, or was killed
    _alive-<job id>             its sign of life, which is written again and again
    _cleared-<job id>-<ms>.json when what it had staged was removed, and its tasks may still run
    _rewrap-<random>            keys were wrapped again
    _staged-<job id>-….json     the uploads that it has begun; they are aborted with it
    batch-…, _pending-…, _state of earlier versions (``earlier``), which cannot write here any more

A job without a sign of life for some seconds counts as dead (``_DEAD_SECONDS``). Independent of
Spark and storages of files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from ...engine._gcm import random_bytes
from ..paths import local_path
from . import earlier, packs
from .packs import Leaf
from .processes import is_gone, process_name, this_process
from .rows import DONE, REMOVED, Batch, Row, read_table, rows_to_table, table_to_rows, to_parquet
from .segments import read_batches
from .store import Store, create

T = TypeVar("T")

# A merged file has about so many rows: rewrapping rewrites it as a whole.
MERGED_ROWS = 200_000
# How often files are listed again, if others take their places while they are read.
_TRIES = 8
# URLs and the ids of uploads have a few hundred bytes each.
_STAGED_IN_A_NOTE = 20_000
_JOB = re.compile(r"_job-([0-9a-f]+)\.json")
_PLAN = re.compile(r"_plan-[0-9a-f]+-(\d{15}-[0-9a-f]{16})\.parquet")
# A job that has not given a sign of life for so long is taken for dead.
_DEAD_SECONDS, _SIGN_SECONDS = 45.0, 10.0
_NO_LEDGER = "there is no ledger: check its place"
_CLEARED = re.compile(r"_cleared-([0-9a-f]+)-(\d{1,15})\.json")
# What an object raises that is no note.
_NO_NOTE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)

# The ledgers of earlier versions could be tables.
_TABLE = "iceberg:"
_TABLES_ROWS = (
    "a ledger is a folder or a URL, and no longer a table. Write the rows of the table to a file "
    "(ags1 table scan TABLE --catalog CATALOG --filter \"entry = 'settled'\" -o FILE.parquet), and "
    "copy them into a ledger (ags1 spark ledger import LEDGER FILE.parquet)"
)
# URLs with one slash: dbfs:/ledger, or s3:/bucket/ledger, which pathlib makes of s3://.
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")


class JobNote(NamedTuple):
    """What a job notes when it begins: the folder in and below which it stages files, and whether
    each file that it names gets a sidecar. ``cleared_ms`` is the time when the staged files of a
    dead job were first removed (0: not yet). After that, the note stays for a while, because tasks
    of the job may still run. ``runs_in`` is the process of a job that is not known to be dead."""

    folder: str
    sidecars: bool = False
    cleared_ms: int = 0
    runs_in: str | None = None


class Facts(Protocol[T]):
    """What a dictionary of facts has to support; ``DigestMap`` needs less memory."""

    def __setitem__(self, target: str, fact: T, /) -> None: ...

    def pop(self, target: str, default: None, /) -> T | None: ...


class Ledger:
    """A ledger, open for reading or for writing. ``open_ledger`` makes one. Any number of jobs
    write to it at the same time.

    ``location`` is the text that opens the ledger again: a folder of this machine, or a URL. No
    sources are searched for in it. All methods raise OSError if the ledger cannot be reached, and
    FormatError if it is damaged.
    """

    def __init__(self, store: Store, *, writing: bool) -> None:
        self._store = store
        self.location = store.url
        self._stamp = 0
        self._footers: dict[str, list[Leaf]] = {}
        self._jobs: set[str] = set()  # those that this object has begun
        self._signing = threading.Lock()
        self._closing = threading.Event()
        self._signs: threading.Thread | None = None
        if writing:
            store.check()
            earlier.shut(store)
        elif not earlier.is_there(store):
            raise FileNotFoundError(errno.ENOENT, _NO_LEDGER, store.url)

    def close(self) -> None:
        """Give no more signs of life. What is pending stays pending."""
        self._closing.set()
        if self._signs is not None:
            self._signs.join()
        with contextlib.suppress(OSError):  # others wait until the signs are old
            self._store.remove(map(_sign, self._jobs))

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- batches

    def prepare(self, rows: Sequence[Row]) -> Batch:
        """Store rows of a job as pending."""
        job_id = rows[0].job_id if rows else "0"
        leaf = packs.new_leaf(self._next_stamp())
        file = f"_plan-{job_id}-{leaf.removeprefix('pack-')}.parquet"
        create(self._store, file, to_parquet(rows_to_table(rows)))
        return Batch(leaf, rows, file)

    def settle(self, batch: Batch, rows: Sequence[Row]) -> None:
        """Store the rows of a pending batch as they turned out. It is pending no longer. If two
        jobs do this, or one does it again after a kill, each row is there once."""
        create(self._store, packs.name_of(batch.name, rows), to_parquet(rows_to_table(rows)))
        self._store.remove([batch.file])

    def add(self, rows: Sequence[Row]) -> None:
        """Store rows as settled, all or none of them."""
        name = packs.name_of(packs.new_leaf(self._next_stamp()), rows)
        create(self._store, name, to_parquet(rows_to_table(rows)))

    def pending(self) -> Iterator[Batch]:
        """Yield the pending batches, oldest first: those of jobs that run or were killed. Read the
        settled batches afterwards, not before: otherwise a batch that is settled in between is
        missed."""
        names = self._names()
        plans = sorted((match[1], name) for name in names if (match := _PLAN.fullmatch(name)))
        found = [(f"pack-{leaf}", name) for leaf, name in plans]
        # Before those of this version.
        old = earlier.pending(self._store, names)
        for leaf, name in [*((f"pack-{int(x[9:21]):015}-{0:016x}", x) for x in old), *found]:
            with contextlib.suppress(FileNotFoundError):  # settled since
                table = read_table(self._store.read(name), Row._fields, self._store.url_of(name))
                rows = table_to_rows(table, Row._fields, self._store.url_of(name))
                yield Batch(leaf, rows, name)

    def numbers(self) -> list[str]:
        """Return the names of the settled batches, oldest first."""
        return [leaf.name for leaf in self._leaves()]

    def files(self) -> list[str]:
        """Return the names of the objects of the settled batches. They change with every row and
        key, and when batches are merged."""
        return sorted({leaf.file for leaf in self._leaves()})

    def batches(
        self, columns: Sequence[str] = Row._fields, *, besides: Collection[str] = ()
    ) -> Iterator[tuple[str, list[Row]]]:
        """Yield name and rows of each settled batch, oldest first, with None in columns that are
        not asked for. ``besides``: not the batches of these names."""
        tries_left = _TRIES
        read = {*besides}
        while True:
            try:
                new = [leaf for leaf in self._leaves() if leaf.name not in read]
                for leaf, rows in self._read(new, columns):
                    read.add(leaf.name)
                    yield leaf.name, rows
                return
            except FileNotFoundError:  # merged or wrapped again since it was listed
                tries_left -= 1
                if not tries_left:
                    raise

    def settled_groups(
        self, most: int, *, besides: Collection[str] = ()
    ) -> Iterator[list[tuple[str, list[Row]]]]:
        """Yield name and rows of all settled batches, oldest first, small batches together: up to
        about ``most`` rows, or one batch. ``besides``: not the batches of these names."""
        group: list[tuple[str, list[Row]]] = []
        for name, rows in self.batches(besides=besides):
            if group and sum(len(batch) for _, batch in group) + len(rows) > most:
                yield group
                group = []
            group.append((name, rows))
        yield group

    def replace_all(self, batches: Mapping[str, Sequence[Row]]) -> None:
        """Give settled batches the keys of these rows, which were wrapped again; each batch
        whole."""
        left = dict(batches)
        tries_left = _TRIES
        while left:
            by_file: dict[str, list[Leaf]] = {}
            for leaf in self._leaves():
                by_file.setdefault(leaf.file, []).append(leaf)
            try:
                for file, leaves in by_file.items():
                    if any(leaf.name in left for leaf in leaves):
                        self._replace(file, leaves, left)
                return
            except FileNotFoundError:  # it was merged meanwhile
                tries_left -= 1
                if not tries_left:
                    raise

    def _replace(self, file: str, leaves: Sequence[Leaf], left: dict[str, Sequence[Row]]) -> None:
        """Store the leaves of an object again, with the new keys that are ``left``."""
        found: list[tuple[Leaf, Sequence[Row]]] = []
        for leaf, rows in self._read(leaves, Row._fields):
            if leaf.name in left:
                # They may have been settled otherwise meanwhile.
                pairs = zip(rows, left[leaf.name], strict=True)
                rows = [
                    row._replace(key_metadata=new.key_metadata, master_key_id=new.master_key_id)
                    for row, new in pairs
                ]
                leaf = leaf._replace(wraps=leaf.wraps + 1)
            found.append((leaf, rows))
        self._merge(found, [file])
        for leaf, _ in found:
            left.pop(leaf.name, None)

    def compact(self) -> tuple[int, int]:
        """Store settled batches in fewer objects. Rows and names of batches do not change. Any
        number of processes may do this, beside jobs. Return the number of objects before and
        after."""
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):  # another one has merged them meanwhile
                return self._compact()
        return self._compact()

    def _compact(self) -> tuple[int, int]:
        listed = self._names()
        names = [x for x in listed if packs.is_pack(x) or x.startswith("batch-")]
        leaves = self._leaves()
        needed: set[str] = set()
        after = 0
        while leaves:
            run: list[tuple[Leaf, Sequence[Row]]] = []
            while leaves and sum(len(rows) for _, rows in run) < MERGED_ROWS:
                run += self._read([leaves.pop(0)], Row._fields)
            files = {leaf.file for leaf, _ in run}
            if len(files) > 1:
                self._merge(run, [])
            else:
                needed |= files
            after += 1
        # All that they have was read, and is in objects that were written now.
        old = [name for name in names if name not in needed]
        self._store.remove([*old, *earlier.strays(self._store, listed)])
        return len(names), after

    # -- notes of what a job has begun

    def begin(self, job_id: str, folder: str, *, sidecars: bool = False) -> None:
        """Note that a job has begun (``JobNote``), and give signs of life until ``close``."""
        create(self._store, _sign(job_id), b"")
        with self._signing:
            self._jobs.add(job_id)
        note = {"folder": folder, "sidecars": sidecars, "process": this_process()}
        create(self._store, f"_job-{job_id}.json", _json(note))
        if self._signs is None:
            self._signs = threading.Thread(target=self._live, name="ags1-signs", daemon=True)
            self._signs.start()

    def _live(self) -> None:
        while not self._closing.wait(_SIGN_SECONDS):
            with self._signing:
                for job_id in self._jobs:
                    with contextlib.suppress(OSError):  # the next one may succeed
                        self._store.put(_sign(job_id), b"")

    def note_cleared(self, job_id: str, note: JobNote) -> None:
        """Note ``cleared_ms`` in the note of a job, which has the rest already."""
        create(self._store, f"_cleared-{job_id}-{note.cleared_ms}.json", b"")

    def end(self, job_id: str) -> None:
        """Note that nothing that a job staged is left. It is no error if there is no note."""
        # The job's note last: while it is there, the next job looks for the other ones.
        noted = self._noted((f"_staged-{job_id}-", f"_cleared-{job_id}-"))
        with self._signing:  # no sign comes after this
            self._store.remove([*noted, _sign(job_id)])
            self._jobs.discard(job_id)
        self._store.remove([f"_job-{job_id}.json"])

    def notes(self) -> dict[str, JobNote]:
        """Return the notes of jobs that did not end, by job id."""
        notes: dict[str, JobNote] = {}
        names = self._names()
        cleared = {match[1]: int(match[2]) for name in names if (match := _CLEARED.fullmatch(name))}
        for name in names:
            if match := _JOB.fullmatch(name):
                with contextlib.suppress(FileNotFoundError, *_NO_NOTE):
                    note = json.loads(self._store.read(name))
                    sidecars = note.get("sidecars") is True
                    # In a folder, earlier versions have the time here.
                    at = cleared.get(match[1], int(note.get("cleared_ms", 0)))
                    runs_in = self._process_of(match[1], str(note.get("process")), names)
                    notes[match[1]] = JobNote(str(note["folder"]), sidecars, at, runs_in)
        return notes

    def _process_of(self, job_id: str, process: str, names: Sequence[str]) -> str | None:
        """Return where a job runs; None if it is taken for dead."""
        if job_id in self._jobs or _sign(job_id) not in names or is_gone(process):
            return None
        try:
            old = self._store.age(_sign(job_id)) > _DEAD_SECONDS
        except FileNotFoundError:  # it has just ended
            return None
        return None if old else process_name(process)

    def refuse_jobs(self) -> None:
        """Raise BlockingIOError while another job runs, or has left a batch pending."""
        if any(note.runs_in for note in self.notes().values()) or any(self.pending()):
            message = "a job is writing, or was killed before all of its files had their names: "
            message += "wait, or run it again, which finishes its work"
            raise BlockingIOError(errno.EAGAIN, message, self.location)

    def note_rewrapping(self) -> None:
        """Note that keys are wrapped again from now on (``rewrappings``)."""
        create(self._store, f"_rewrap-{random_bytes(8).hex()}", b"")

    def rewrappings(self) -> frozenset[str]:
        """Return the names of the rewrappings that have begun. If one has begun since a KEK was
        made, do not add that KEK: its master key may be destroyed."""
        return frozenset(self._noted("_rewrap-"))

    def killed(self) -> dict[str, str]:
        """Return the folders of the jobs in ``notes`` that have not been cleared."""
        notes = self.notes().items()
        return {job_id: note.folder for job_id, note in notes if not note.cleared_ms}

    def note_staged(self, job_id: str, number: int, staged: Mapping[str, str]) -> None:
        """Note the uploads that wave ``number`` of a job has begun, by target: their names do not
        tell which job they belong to."""
        begun = list(staged.items())
        for part, first in enumerate(range(0, len(begun), _STAGED_IN_A_NOTE)):
            data = _json(begun[first : first + _STAGED_IN_A_NOTE])
            create(self._store, f"_staged-{job_id}-{number:06}-{part}.json", data)

    def forget_staged(self, job_id: str, number: int) -> None:
        """Note that no upload of a wave is left. It is no error if there is no note."""
        self._store.remove(self._noted(f"_staged-{job_id}-{number:06}-"))

    def staged(self, job_id: str) -> list[tuple[str, str]]:
        """Return the uploads that a job has noted: (target, what its storage calls it) each."""
        staged: list[tuple[str, str]] = []
        for name in self._noted(f"_staged-{job_id}-"):
            with contextlib.suppress(*_NO_NOTE):
                noted = json.loads(self._store.read(name))
                staged += [(str(target), str(shared)) for target, shared in noted]
        return staged

    def _noted(self, start: str | tuple[str, ...]) -> list[str]:
        return sorted(name for name in self._store.names() if name.startswith(start))

    # -- rows

    def rows(self, columns: Sequence[str] = Row._fields, *, pending: bool = False) -> list[Row]:
        """Return the settled rows, oldest first, with None in columns that are not asked for;
        ``pending`` adds the pending ones, in the order of their batches."""
        # Before the settled ones, so that a batch which is settled meanwhile is not missed.
        new = [row for batch in self.pending() for row in batch.rows] if pending else []
        return [row for _, rows in self.batches(columns) for row in rows] + new

    def done(
        self, operation: str, columns: Sequence[str] = Row._fields, *, below: str = ""
    ) -> dict[str, Row]:
        """Return by target the newest row of each file that is done and was not removed since.
        ``below``: only targets that begin with this text."""
        newest: dict[str, Row] = {}
        self.facts(newest, operation, columns, lambda row: row, below=below)
        return newest

    def facts(
        self,
        newest: Facts[T],
        operation: str,
        columns: Sequence[str],
        fact_of: Callable[[Row], T],
        *,
        below: str = "",
    ) -> None:
        """Put into ``newest`` what ``fact_of`` makes of each row that ``done`` returns. Besides
        that, one batch at a time is in memory."""
        names = [*columns, "operation", "status", "target"]
        for _, rows in self.batches(names):
            for row in rows:
                if row.operation != operation or not row.target.startswith(below):
                    continue
                if row.status == DONE:
                    newest[row.target] = fact_of(row)
                elif row.status == REMOVED:
                    newest.pop(row.target, None)

    # -- objects of settled batches

    def _names(self) -> list[str]:
        names = self._store.names()
        self._stamp = max([self._stamp, *map(packs.stamp_of, names)])
        return names

    def _next_stamp(self) -> int:
        """Return a stamp that is later than all that were listed."""
        self._stamp = max(time.time_ns() // 1_000_000, self._stamp + 1)
        return self._stamp

    def _leaves(self) -> list[Leaf]:
        """Return where each leaf is, in their order."""
        names = self._names()
        found = packs.old_leaves(names)
        found += [packs.single(x) for x in names if packs.is_pack(x) and not packs.is_merged(x)]
        for name in filter(packs.is_merged, names):
            if name not in self._footers:
                with contextlib.suppress(FileNotFoundError):  # merged again
                    data = self._store.read(name)
                    where = self._store.url_of(name)
                    self._footers[name] = packs.merged_leaves(data, name, where)
            found += self._footers.get(name, ())
        best: dict[str, Leaf] = {}
        for leaf in found:
            known = best.get(leaf.name)
            if known is None or known[2:5] < leaf[2:5]:  # wraps, done, file
                best[leaf.name] = leaf
        return sorted(best.values())

    def _read(
        self, leaves: Sequence[Leaf], columns: Sequence[str]
    ) -> Iterator[tuple[Leaf, list[Row]]]:
        """Yield the rows of leaves. Those of one object that follow each other are read at once."""
        file = None
        for leaf in leaves:
            where = self._store.url_of(leaf.file)
            if leaf.file != file:
                file, data = leaf.file, self._store.read(leaf.file)
                if leaf.segment is not None:
                    old = dict(read_batches(data, leaf.segment, columns, where))
                else:
                    table = read_table(data, columns, where)
            if leaf.segment is not None:
                yield leaf, old[leaf.stamp]
            else:
                count = table.num_rows if leaf.length is None else leaf.length
                yield leaf, table_to_rows(table.slice(leaf.first, count), columns, where)

    def _merge(self, leaves: Sequence[tuple[Leaf, Sequence[Row]]], old: Sequence[str]) -> None:
        """Write an object with leaves, which takes the place of the objects ``old``."""
        stamp = max(packs.stamp_of(leaf.file) for leaf, _ in leaves)
        name = f"{packs.new_leaf(stamp)}.merged.parquet"
        create(self._store, name, packs.merged_to_bytes(leaves))
        self._store.remove(old)


def ledger_location(text: str | os.PathLike[str]) -> str:
    """Return the text of a ledger in the form that means the same in any current folder. Raises
    OSError for a URL with one slash: taken as a path, it would name a folder below the current one,
    and the only copy of the keys would be there. Raises OSError for a table too."""
    path = os.fspath(text)
    if path.startswith(_TABLE):
        raise OSError(errno.EINVAL, _TABLES_ROWS, path)
    here = local_path(path)
    if here is None:
        return path.rstrip("/")
    if _ONE_SLASH.match(here):
        message = "this is neither a folder nor a URL: write two slashes behind the colon"
        raise OSError(errno.EINVAL, message, path)
    return os.path.abspath(here)


def check_ledger(text: str | os.PathLike[str]) -> None:
    """Raise OSError unless a ledger exists. Costs a moment, so that it can be called before Spark
    starts."""
    open_ledger(text, writing=False).close()


def open_ledger(text: str | os.PathLike[str], *, writing: bool, durable: bool = True) -> Ledger:
    """Open the ledger that a text names: a folder, or the URL of one in an object storage or HDFS.
    With ``writing``, it is made if it does not exist. ``durable`` syncs a folder's files to the
    disk.

    Raises OSError, BlockingIOError while a job of an earlier version writes, FormatError for a file
    there that is not a ledger's, and KmsAccessDeniedError for a folder that other users may write
    to: jobs move and remove the files that a ledger names.
    """
    return Ledger(Store(ledger_location(text), durable=durable), writing=writing)


def _sign(job_id: str) -> str:
    return f"_alive-{job_id}"


def _json(note: object) -> bytes:
    return json.dumps(note).encode() + b"\n"
