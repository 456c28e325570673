"""What the driver does of a job of a quarter of a million files, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")
pytest.importorskip("pyarrow")

# What a driver may need for these files, without Python and its modules; it needs 160 to 205. A
# list of all files needs 100 more.
_LIMIT_MIB = 240

_PROGRAM = """
import sys, types
import fsspec
from fsspec import AbstractFileSystem
from ags1.kms import LocalKms
from ags1.spark import jobs
from ags1.files.jobs import waves
from ags1.files.keys import KmsConfig
from ags1.files.staging.places import open_storage
from ags1.files.work.tasks import Result

FOLDERS, FILES, SIZE, HUGE = 25, 10_000, 10_000, 100 << 30

class Many(AbstractFileSystem):
    "Folders of ten thousand files; and one huge file."
    protocol = "many"

    def ls(self, path, detail=True, **more):
        path = self._strip_protocol(path).strip("/")
        if path == "in":
            found = [{"name": f"in/{n:03}", "size": 0, "type": "directory"} for n in range(FOLDERS)]
            return [*found, {"name": "in/huge", "size": HUGE, "type": "file", "mtime": 1}]
        if path.count("/") > 1 or not path.startswith("in/"):
            raise FileNotFoundError(path)
        return [self.of(f"{path}/{n:05}.avro") for n in range(FILES)]

    def of(self, name):
        return {"name": name, "size": SIZE, "type": "file", "mtime": 1}

    def info(self, path, **more):
        path = self._strip_protocol(path).strip("/")
        if path == "in":
            return {"name": path, "size": 0, "type": "directory"}
        return self.of(path)

fsspec.register_implementation("many", Many)
def say_most(name):
    # Not ru_maxrss: a process inherits that of the process that started it.
    status = open("/proc/self/status").read().split()
    print(name, int(status[status.index("VmHWM:") + 1]) >> 10)

say_most("imported")
folder = sys.argv[1]
if sys.argv[2:] != ["again"]:
    LocalKms(folder + "/keyring.json").create_key("default")
kms = KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": folder + "/keyring.json"})
context = types.SimpleNamespace(defaultParallelism=100)
spark = types.SimpleNamespace(sparkContext=context, conf={})

counts = [0, 0, 0]

def run_wave(self, wave, work):
    "Take every task for done."
    longest = max(sum(piece.cost for piece in task) for task in wave.tasks)
    counts[:] = [counts[0] + 1, counts[1] + len(wave.tasks), max(counts[2], longest)]
    return [
        Result(p.number, p.first_block, p.source_size, p.source_version,
               p.shared or p.target + "x", p.source_size, "{}", "id")
        for task in wave.tasks for p in task
    ]

waves.Waves.run_wave = run_wave
type(open_storage(folder)).gather = lambda *_: "staged"  # there are no files
waves.published = lambda rows, **more: rows
where = {"ledger": folder + "/ledger", "kms": kms, "key_id": "default", "durable": False}
if sys.argv[2:] == ["again"]:  # the files are as the ledger says
    local = open_storage(folder)
    type(local).statuses = lambda *_, **__: lambda target: types.SimpleNamespace(
        size=HUGE if target.endswith("/huge.ags1") else SIZE)
summary = jobs.encrypt_files(spark, "many://in", folder + "/out", **where)
print("summary", summary.done, summary.unchanged, summary.failed)
print("run", *counts)
say_most("peak")
"""


@pytest.mark.slow
def test_many_files_and_a_huge_one(tmp_path: Path, run_python: Any) -> None:
    said = []
    for more in ((), ("again",)):
        done = run_python(_PROGRAM, tmp_path, *more, timeout=600)
        said += [line.split() for line in done.stdout.splitlines()]
    runs = [list(map(int, line[1:])) for line in said if line[0] == "run"]
    waves, tasks, longest = runs[0]
    assert waves > 10
    assert tasks < 20_000
    # Skewed as the sizes are, no task has much more to do than another.
    assert longest <= 2 << 30
    assert runs[1] == [0, 0, 0]
    summaries = [line[1:] for line in said if line[0] == "summary"]
    assert summaries == [["250001", "0", "0"], ["0", "250001", "0"]]
    imported, peaks = (
        [int(line[1]) for line in said if line[0] == n] for n in ("imported", "peak")
    )
    assert max(peaks) - max(imported) < _LIMIT_MIB
