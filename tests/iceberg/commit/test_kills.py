"""A writer killed between any two steps of a commit: the table is whole, old or new.

The steps are the calls that change something outside the process: files opened, written, synced,
linked and removed, statements and commits of the catalog's database. A process that has everything
imported makes the table once, and has a writer note what is on the disk at each step, before it and
after it. For each step that finds another disk than the one before it forks a writer that is killed
there. Most steps find the same disk, and a kill there leaves nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import RunPython

pytestmark = pytest.mark.slow

SCRIPT = '''
import collections, contextlib, hashlib, importlib, itertools, json, os, shutil, signal, sqlite3
import sys, threading, traceback, warnings
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
from opened_files import OpenedFiles
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from ags1.host import cpu
from ags1.iceberg import load_catalog, verify_table
from ags1.kms.local import create_key

# The quota is looked up each second: at other steps in each run.
cpu._read_quota = lambda: None
warnings.simplefilter("ignore")
folder, work = Path(sys.argv[1]), sys.argv[2]
part, parts = int(sys.argv[3]), int(sys.argv[4])
# Threads write manifests and delete files, so that the number of steps is not quite the same each
# time, nor what is there at each.
slack = 5 if work in ("erase", "compact") else 0
in_order = work not in ("erase", "remove_orphans", "compact")
live, saved = folder / "live", folder / "saved"
STEPS = {"open", "link", "unlink", "rename", "fsync", "write", "execute", "commit", "mkdir"}

def catalog():
    return load_catalog(
        "sql", type="sql", uri=f"sqlite:///{live}/catalog.db", warehouse=f"file://{live}/w",
        **{"encryption.kms-type": "local", "kms.local.keyring": f"{folder}/keys.json"},
    )

def rows(*ids):
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{i}" for i in ids]})

def in_a_fork(do):
    """Return the child's wait status and what it printed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(reading)
            os.write(writing, json.dumps(do()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as said:
        text = said.read()
    return os.waitpid(child, 0)[1], text and json.loads(text)

def must(do):
    status, said = in_a_fork(do)
    assert status == 0, status
    return said

def make():
    live.mkdir(exist_ok=True)
    create_key(str(folder / "keys.json"), "default")
    with catalog() as made:
        made.create_namespace("db")
        table = made.create_table(
            "db.t",
            Schema(
                NestedField(1, "id", LongType(), required=False),
                NestedField(2, "v", StringType(), required=False),
            ),
            properties={"encryption.key-id": "default"},
        )
        table.append(rows(1, 2, 3, 4))
        table.append(rows(5, 6, 7, 8))
        table.delete("id = 2")
        table.append(rows(9))
        if work == "remove_orphans":
            for path in ORPHANS:
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(b"AGS1")
                os.utime(path, (0, 0))
        if work == "erase":
            table.append(pa.table({"id": [900, 901], "v": [SECRET, "kept"]}))
            table.delete("id = 900")

SECRET = "erase-me-900"
ORPHANS = [live / "w/db/t" / f"{place}/{n}" for place in ("data", "metadata", "x") for n in "abc"]

def remove_orphans(table): table.remove_orphan_files()
def erase(table): table.erase_deleted_rows()
def append(table): table.append(rows(10, 11))
def overwrite(table): table.overwrite(rows(3, 20), "id = 3")
def rotate(table): table.rotate_keys()
def compact(table): table.rewrite_data_files(rewrite_all=True)
def create(table):
    key = {"encryption.key-id": "default"}
    table.catalog.create_table("db.new", table.schema(), properties=key)
def several(table):
    with table.transaction() as transaction:
        transaction.append(rows(30))
        transaction.delete("id = 4")
        transaction.set_properties({"a": "b"})

OUTCOMES = {
    "append": ([1, 3, 4, 5, 6, 7, 8, 9], [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    "overwrite": ([1, 3, 4, 5, 6, 7, 8, 9], [1, 3, 4, 5, 6, 7, 8, 9, 20]),
    "several": ([1, 3, 4, 5, 6, 7, 8, 9], [1, 3, 5, 6, 7, 8, 9, 30]),
    "compact": ([1, 3, 4, 5, 6, 7, 8, 9],) * 2,
    "rotate": ([1, 3, 4, 5, 6, 7, 8, 9],) * 2,
    "create": ([1, 3, 4, 5, 6, 7, 8, 9],) * 2,
    "remove_orphans": ([1, 3, 4, 5, 6, 7, 8, 9],) * 2,
    "erase": ([1, 3, 4, 5, 6, 7, 8, 9, 901],) * 2,
}
# PyArrow's own calls are not seen, but those of PyIceberg to it are.
DELETE = PyArrowFileIO.delete.__code__

def at_each_step(act):
    """Do the work, and call ``act`` with the number of each step."""
    numbers = itertools.count()
    lock = threading.Lock()

    def step(frame, event, argument):
        if event in ("call", "return"):
            if frame.f_code is not DELETE:
                return
        elif event not in ("c_call", "c_return") or argument.__name__ not in STEPS:
            return
        with lock:
            act(next(numbers))

    with catalog() as opened:
        table = opened.load_table("db.t")
        threading.setprofile(step)
        sys.setprofile(step)
        globals()[work](table)
        sys.setprofile(None)
        threading.setprofile(None)

def foreseen():
    """Return what is on the disk at each step, and at the end."""
    found = []
    at_each_step(lambda number: found.append(on_disk()))
    return [*found, on_disk()]

def done_once():
    """Do the work, and return the modules that are imported then."""
    at_each_step(lambda number: None)
    return list(sys.modules)

def killed_at(point):
    """Do the work, and die at the step ``point``."""
    def act(number):
        if number == point:
            os.kill(os.getpid(), signal.SIGKILL)
    at_each_step(act)

def state():
    """Return what a reader finds: the rows, and what lies in the folder that nothing refers to."""
    with catalog() as opened:
        tables = sorted(name for _, name in opened.list_tables("db"))
        table = opened.load_table("db.t")
        assert table.metadata_is_confirmed
        found = sorted(table.scan().to_arrow()["id"].to_pylist())
        keks = [key.key_id for key in table.files.keys.key_encryption_keys]
        files = len(table.inspect.data_files())
        report = verify_table(table)
        assert report.ok, report.findings
        for name in tables:
            assert opened.load_table(f"db.{name}").scan().count() in (0, len(found))
        known = {table.metadata_location, *(e.metadata_file for e in table.metadata.metadata_log)}
        known |= {s.manifest_list for s in table.snapshots()}
        known |= set(table.inspect.all_manifests()["path"].to_pylist())
        known |= set(table.inspect.all_files()["file_path"].to_pylist())
        known = {location.removeprefix("file://") for location in known}
        lost = sorted(str(p) for p in (live / "w/db/t").rglob("*") if p.is_file())
        lost = [path for path in lost if path not in known]
        told = [f.file.removeprefix("file://") for f in report.findings if f.kind == "orphan-file"]
        assert sorted(told) == lost, (told, lost)
        # And it goes on.
        if work == "remove_orphans":
            table.remove_orphan_files()
            assert not [path for path in ORPHANS if path.exists()]
        if work == "erase":
            now = datetime.now(timezone.utc)
            done = table.erase_deleted_rows(
                remove_orphans=True, orphans_older_than=now, no_other_writers=True
            )
            assert not done.remaining, done
            opened = OpenedFiles(live / "w/db/t", table.files.keys.kms, "default")
            assert not opened.holding(SECRET.encode())[SECRET.encode()]
            assert sorted(table.scan().to_arrow()["id"].to_pylist()) == found
        table.append(rows(1000))
        assert table.scan().count() == len(found) + 1
        return found, tables, len(lost), keks, files

def on_disk():
    """Return what a kill leaves, alike for all kills that leave the same: the files that were there
    before and whether they are unchanged; the folder, kind and size of each new file, whose names
    are random; and the version that each table has in the catalog's database. Returns two digests,
    of all that and without the sizes, of which some are others in each run."""
    while True:
        try:
            files, tables = files_on_disk(), tables_on_disk()
        except FileNotFoundError:
            continue  # a thread has deleted it meanwhile
        rough = [(name, size < 0, same) for name, size, same in files]
        return [digest(sorted(files), tables), digest(sorted(rough), tables)]

def digest(*facts):
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

def files_on_disk():
    files = []
    for path in live.rglob("*"):
        name, kind = path.relative_to(live), "".join(path.suffixes[-2:])
        before = saved / name
        if not path.is_file():
            files.append((str(name), -1, before.is_dir()))
        elif before.exists():
            same = before.read_bytes() == path.read_bytes()
            files.append((str(name), path.stat().st_size, same))
        else:
            files.append((str(name.parent / kind), path.stat().st_size, False))
    return files

def tables_on_disk():
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for path in live.glob("catalog.db*"):
        shutil.copy(path, copy)
    with sqlite3.connect(copy / "catalog.db") as database:
        rows = database.execute(
            "SELECT table_name, metadata_location, previous_metadata_location FROM iceberg_tables"
        ).fetchall()
    database.close()
    shutil.rmtree(copy)
    return sorted(
        [text and text.rpartition("/")[2].partition("-")[0] for text in row] for row in rows
    )

must(make)
shutil.copytree(live, saved)
saved_keys, modules = must(lambda: [state()[3], done_once()])
# What children would import one by one.
for name in modules:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
shutil.rmtree(live)
shutil.copytree(saved, live)
disks = must(foreseen)
total = len(disks) - 1
points = [n for n in range(total + 1) if n in (0, total) or disks[n] != disks[n - 1]]
old, new = OUTCOMES[work]
seen = collections.Counter()
states = {}
left = 0
for point in points[part::parts]:
    shutil.rmtree(live)
    shutil.copytree(saved, live)
    status, _ = in_a_fork(lambda: killed_at(point))
    assert (status == signal.SIGKILL) or point >= total - slack, (point, status)
    disk, rough = on_disk()
    assert rough == disks[point][1] or not in_order, point
    if disk not in states:
        states[disk] = must(state)
    found, tables, lost, keks, files = states[disk]
    assert found in (old, new), (point, found)
    # Each new KEK has a name of its own.
    seen[json.dumps((found, tables, keks == saved_keys, files))] += 1
    left += lost > 0
counts = {"points": total, "kills": len(points), "left": left, "states": len(states)}
print(json.dumps(counts | {"seen": dict(seen)}))
'''


# How many states a reader can find: the removal of orphan files changes nothing.
OUTCOMES = {"remove_orphans": 1}


@pytest.mark.parametrize(
    ("work", "part", "parts"),
    [
        *((work, 0, 1) for work in ("append", "overwrite", "several", "compact")),
        *((work, 0, 1) for work in ("rotate", "create", "remove_orphans")),
        # It has five hundred steps.
        *(("erase", part, 2) for part in range(2)),
    ],
)
def test_a_killed_writer_leaves_the_table_old_or_new(
    memory_folder: Path, run_python: RunPython, work: str, part: int, parts: int
) -> None:
    done = run_python(SCRIPT, memory_folder, work, part, parts, timeout=800)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["points"] > 20, result
    assert len(result["seen"]) == OUTCOMES.get(work, 2), result
    # What a creation leaves is no table's. A file without a name leaves nothing.
    assert result["left"] > 2 or work == "create", result
