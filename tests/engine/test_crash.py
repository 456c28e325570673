"""Kills, full disks, crowds, exits and memory: what must hold when things go wrong."""

from __future__ import annotations

import concurrent.futures
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import reference
from conftest import RunPython, not_sanitized, python_environment

import ags1
from ags1 import KeyMetadata, layout

MIB = 1 << 20
SIZE = 9 * MIB + 12345
KEY = bytes(range(32))
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")


def is_whole(path: Path, expected: bytes) -> bool:
    stream = path.read_bytes()
    return reference.decrypt(stream, KEY, None, layout.encrypted_size(SIZE)) == expected


# ---- killed ------------------------------------------------------------------------------------

KILLED = {
    "encrypt_file": """
    ags1.encrypt_file(source, target, km=km, threads=2, overwrite=overwrite, durable=durable)
""",
    "decrypt_file": """
    km = km.with_file_length(length)
    ags1.decrypt_file(sealed, target, km, overwrite=overwrite, durable=durable)
""",
    "Writer": """
    with ags1.open(target, mode, km, durable=durable) as file:
        for at in range(0, len(data), 100_000):
            file.write(data[at : at + 100_000])
""",
    "Writer in threads": """
    with ags1.open(target, mode, km, durable=durable, threads=2) as file:
        file.write(data)
""",
}
BEFORE_KILLED = """
import itertools, os, sys
source, sealed, target, length, way = *sys.argv[1:4], int(sys.argv[4]), sys.argv[5]
if way == "named" and hasattr(os, "O_TMPFILE"):
    del os.O_TMPFILE
import ags1
for name in ags1.__all__:
    getattr(ags1, name)  # loads it, before the child is ready
overwrite, mode = way != "new", "xb" if way == "new" else "wb"
data = open(source, "rb").read()
print("ready", flush=True)
for durable in itertools.cycle([False, False, True]):
    if not overwrite and os.path.exists(target):
        os.unlink(target)
    km = ags1.KeyMetadata(bytes(range(32)))"""


def has_nameless_files(folder: Path) -> bool:
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))
    except (AttributeError, OSError):
        return False
    return Path("/proc/self/fd").exists()


# Of `make test`: a writer that works in threads.
@pytest.mark.slow_variants(r"(?!decr.*new|.*threads-named).*")
@pytest.mark.parametrize("way", ["new", "replaced", "named"])
@pytest.mark.parametrize("what", KILLED)
def test_a_killed_process_leaves_the_target_whole_or_absent(
    tmp_path: Path, what: str, way: str
) -> None:
    """``new``: nothing is replaced. ``named``: the system has no files without names."""
    folder = tmp_path / "folder"
    folder.mkdir()
    nameless = way != "named" and has_nameless_files(folder)
    source, sealed, target = tmp_path / "source", tmp_path / "sealed", folder / "target"
    data = reference.pattern(SIZE)
    source.write_bytes(data)
    sealed.write_bytes(reference.encrypt(data, KEY))
    arguments = [source, sealed, target, str(layout.encrypted_size(SIZE)), way]
    picker = random.Random(what)

    def check(path: Path) -> None:
        assert path.read_bytes() == data if what == "decrypt_file" else is_whole(path, data)

    amid_the_work = 0
    for attempt in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", BEFORE_KILLED + KILLED[what], *arguments],
            env=python_environment(),
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert child.stdout is not None
        with child.stdout:
            assert child.stdout.readline() == b"ready\n"
            time.sleep(picker.uniform(0.001, 0.012) if attempt % 2 == 0 else picker.uniform(0, 0.2))
            child.send_signal(signal.SIGKILL)
            assert child.wait() == -signal.SIGKILL
        there = target.exists()
        if there:
            check(target)
        left = set(folder.iterdir()) - {target}
        amid_the_work += bool(left) if way == "named" else not there or way == "replaced"
        for path in left:
            assert path.name.startswith(".ags1-")
            assert path.name.endswith(".tmp")
            # A whole file has such a name just before it replaces another.
            if nameless:
                assert way == "replaced"
                check(path)
        # And it is in nobody's way.
        km = ags1.encrypt_file(source, target, overwrite=True, durable=False)
        assert ags1.verify_file(target, km) == SIZE
        target.unlink()
    assert amid_the_work


# ---- a system that gives a file without a name none ----------------------------------------------

# As a container's policy forbids a system call: with an error, for the rest of the process.
FORBIDDEN = """
import ctypes, errno, itertools, os, struct, sys
from pathlib import Path
import ags1, ags1.host.atomic

folder = Path(sys.argv[1])
os.umask(0o027)
data = bytes(range(256)) * 9000

def forbid(reason):
    # Of several filters, the last one decides which error it is.
    numbers = {"x86_64": (265, 86), "aarch64": (37,)}[os.uname().machine]
    load, equal, answer, allow = 0x20, 0x15, 0x06, 0x7FFF0000
    steps = [(load, 0, 0, 0), *((equal, i, 0, number) for i, number in enumerate(numbers, 1))]
    steps = [steps[0], *reversed(steps[1:]), (answer, 0, 0, allow)]
    steps.append((answer, 0, 0, 0x50000 | reason))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    address = ctypes.addressof(code)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), address))
    prctl = ctypes.CDLL(None).prctl
    if prctl(38, 1, 0, 0, 0) or prctl(22, 2, program, 0, 0):
        sys.exit("no filter")
    try:
        os.link(sys.executable, folder / "link", src_dir_fd=0)
    except OSError as error:
        assert error.errno == reason, error
    else:
        sys.exit("no filter")

def check(path, mode):
    assert path.stat().st_mode & 0o7777 == mode, oct(path.stat().st_mode)
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]

for reason, durable in itertools.product((errno.EPERM, errno.EACCES, errno.ENOSYS), (False, True)):
    forbid(reason)
    (folder / "plain").write_bytes(data)
    for mode in (0o644, 0o600):
        # Whatever has no name gets none. The process has to see that anew.
        ags1.host.atomic._NAMELESS = getattr(os, "O_TMPFILE", None)
        (folder / "plain").chmod(mode)
        km = ags1.encrypt_file(folder / "plain", folder / "sealed", durable=durable)
        check(folder / "sealed", mode & ~0o027)
        ags1.decrypt_file(folder / "sealed", folder / "again", km, durable=durable)
        check(folder / "again", mode & ~0o027)
        assert (folder / "again").read_bytes() == data
        try:
            ags1.encrypt_file(folder / "plain", folder / "sealed", durable=durable)
        except FileExistsError:
            pass
        else:
            sys.exit("replaced")
        ags1.host.atomic._NAMELESS = getattr(os, "O_TMPFILE", None)
        (folder / "again").chmod(0o666)
        with ags1.open(folder / "again", "wb", durable=durable) as file:
            file.write(data)
        check(folder / "again", 0o666)
        assert ags1.decrypt((folder / "again").read_bytes(), file.key_metadata) == data
        (folder / "sealed").unlink()
        (folder / "again").unlink()
print("fine")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's filters of system calls")
def test_where_links_are_forbidden_files_have_temporary_names(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = run_python(FORBIDDEN, tmp_path, check=False)
    if done.stderr == "no filter\n":
        pytest.skip("system calls cannot be forbidden here")
    assert (done.stdout, done.stderr) == ("fine\n", "")


# ---- a full disk -------------------------------------------------------------------------------

FULL = """
import errno, os, resource, sys
from pathlib import Path
import ags1
from ags1.engine._pump import allocate
folder, limit = Path(sys.argv[1]), int(sys.argv[2])
outside = Path(sys.argv[3])
data = bytes(5 << 20)
(outside / "plain").write_bytes(data)
sealed, km = ags1.encrypt(data)
(outside / "sealed").write_bytes(sealed)
del sealed
with open(folder / "probe", "wb") as probe:
    allocate(probe.fileno(), 1)
    reserves = os.fstat(probe.fileno()).st_size == 1
(folder / "probe").unlink()
# Where room can be reserved, a full disk is known before the key has encrypted anything.
fresh = ags1.KeyMetadata.generate() if reserves else None
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

def write(threads):
    with ags1.open(folder / "target", "wb", threads=threads, durable=False) as file:
        for _ in range(5):
            file.write(bytes(1 << 20))

for threads in (1, 2):
    for call in (
        lambda: ags1.encrypt_file(outside / "plain", folder / "target", km=fresh, threads=threads),
        lambda: ags1.decrypt_file(outside / "sealed", folder / "target", km, threads=threads),
        lambda: write(threads),
    ):
        for existing in (False, True):
            if existing:
                (folder / "target").write_bytes(b"old")
            try:
                ags1.verify_file(outside / "sealed", km)
                call()
            except FileExistsError:
                assert existing
            except OSError as error:
                assert error.errno in (errno.ENOSPC, errno.EFBIG), error
                assert error.filename == str(folder / "target"), error.filename
            else:
                sys.exit("nothing was raised")
            left = {p.name: p.read_bytes() for p in folder.iterdir()}
            assert left == ({"target": b"old"} if existing else {}), left.keys()
            (folder / "target").unlink(missing_ok=True)

# A file object: what is left of it must not pass for a file.
for threads in (1, 2):
    km = ags1.KeyMetadata(bytes(16))
    with open(folder / "object", "wb", buffering=0) as target:
        try:
            with ags1.open(target, "wb", km, threads=threads) as file:
                file.write(data)
        except OSError as error:
            assert error.errno in (errno.ENOSPC, errno.EFBIG), error
        else:
            sys.exit("nothing was raised")
    left = (folder / "object").read_bytes()
    try:
        ags1.decrypt(left, km, trust_file_size=True)
    except ags1.Ags1Error:
        pass
    else:
        sys.exit("what was left of the file opens")
print("fine")
"""


@pytest.mark.parametrize("limit", [5, 100_000, MIB + 100, 3 * MIB])
def test_a_limit_on_file_sizes(run_python: RunPython, tmp_path: Path, limit: int) -> None:
    (tmp_path / "folder").mkdir()
    assert run_python(FULL, tmp_path / "folder", limit, tmp_path).stdout == "fine\n"


def test_a_full_disk(tmp_path: Path) -> None:
    folder, small = tmp_path / "folder", tmp_path / "small"
    folder.mkdir()
    small.mkdir()
    mount = 'mount -t tmpfs -o size=3m tmpfs "$1"'
    may = (
        subprocess.run(["unshare", "-rm", "sh", "-c", mount, "sh", str(small)], check=False)
        if (shutil.which("unshare"))
        else None
    )
    if may is None or may.returncode:
        pytest.skip("a small file system cannot be mounted here")
    script = [sys.executable, "-c", FULL, small, "0", folder]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount} && shift && exec "$@"', "sh", small, *script],
        env=python_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)


# ---- a crowd -----------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_64_threads_on_one_reader(tmp_path: Path, threads: int) -> None:
    block_size = MIB // 4
    data = os.urandom(12 * block_size + 99)
    made = ags1.encrypt(data, block_size=block_size)
    (tmp_path / "sealed").write_bytes(made.data)

    def work(seed: int) -> int:
        picker = random.Random(seed)
        for _ in range(6):
            at, size = (
                picker.randrange(len(data)),
                picker.choice([1, 4096, 100_000, 3 * block_size]),
            )
            assert file.pread(at, size) == data[at : at + size]
            ranges = [(picker.randrange(len(data)), 1000) for _ in range(3)]
            assert file.readv(ranges) == [data[o : o + n] for o, n in ranges]
        return seed

    with ags1.open(tmp_path / "sealed", "rb", made.key_metadata, threads=threads) as file:
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            assert list(pool.map(work, range(64))) == list(range(64))


@pytest.mark.parametrize("threads", [1, 2])
def test_64_threads_meet_one_bad_block(tmp_path: Path, threads: int) -> None:
    data = reference.pattern(200_000)
    stream = bytearray(reference.encrypt(data, KEY, None, 1000))
    stream[layout.block_offset(100, 1000)] ^= 1
    km = KeyMetadata(KEY, None, len(stream))
    path = tmp_path / "file"
    path.write_bytes(stream)

    def work(seed: int) -> str:
        picker = random.Random(seed)
        try:
            for _ in range(50):
                at = picker.randrange(200_000)
                part = file.pread(at, 700)
                assert part == data[at : at + 700]
                assert at + len(part) <= 100_000 or at >= 101_000
        except ags1.AuthenticationError as error:
            return f"block {error.block} refused"
        return "read"

    with ags1.open(path, "rb", km, threads=threads) as file:
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            outcomes = list(pool.map(work, range(64)))
    assert set(outcomes) <= {"read", "block 100 refused"}
    assert "block 100 refused" in outcomes


# ---- exits -------------------------------------------------------------------------------------

EXITS = """
import sys, threading, time
import ags1
from ags1.engine import _gcm, _messages
cipher = _gcm.BlockCipher(bytes(32))
data = bytearray(8 << 20)
slots = bytearray((8 << 20) + 8 * 28)
sealed = ags1.encrypt(data)
reader = ags1.open(__import__("io").BytesIO(sealed.data), "rb", sealed.key_metadata, threads=2)
reader.read(10)

def work():
    mine = bytearray(len(slots))
    while True:
        cipher.seal_blocks(data, mine)
        _gcm.random_bytes(32)
        _messages.seal(bytes(16), b"data")

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.02)
if sys.argv[1] == "raise":
    raise SystemExit(0)
"""


# Of `make test`: a writer that works in threads.
@pytest.mark.slow_variants(r"raise")
@pytest.mark.parametrize("how", ["end", "raise"])
def test_an_exit_amid_daemon_threads(run_python: RunPython, how: str) -> None:
    for _ in range(3):
        done = run_python(EXITS, how, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


# The writer is global, and its threads are still at work. Without AES instructions a block takes
# them so long that the interpreter ends before.
UNCLOSED = """
import sys
import ags1
writer = ags1.open(sys.argv[1], "wb", threads=4, block_size=8 << 20)
writer.write(bytes((20 << 20) + 5))
print("written", flush=True)
HOW
"""


# Of `make test`: a script that comes to its end, and one that fails.
@pytest.mark.slow_variants(r"sys.*")
@pytest.mark.parametrize("how", ["", "sys.exit(3)", "open('no/such/file')"])
def test_an_exit_with_an_unclosed_writer_leaves_no_file(
    run_python: RunPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("OPENSSL_ia32cap", "~0x200000200000000")
    target = tmp_path / "target"
    done = run_python(UNCLOSED.replace("HOW", how), target, check=False, timeout=60)
    assert done.stdout == "written\n"
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(how, 1)
    # The report of the script's own error comes first.
    said = done.stderr.rpartition("No such file or directory: 'no/such/file'\n")[2]
    told = f"ags1.errors.Ags1Error: {target}: the writer was not closed: nothing was written"
    assert (said.count("Error"), said.splitlines()[-1]) == (2, told)
    assert list(tmp_path.iterdir()) == []


AT_EXIT = """
import sys
import ags1
class AtExit:
    def __del__(self):
        data = [bytes(20), bytes(30_000)] * 8
        sealed = ags1.encrypt_many(data, threads=2)
        assert ags1.decrypt_many(sealed, threads=2) == data
        large = ags1.encrypt(bytes(5 << 20), threads=2)
        assert ags1.decrypt(large.data, large.key_metadata, threads=2) == bytes(5 << 20)
        km = ags1.encrypt_file(path, path + ".ags1", threads=2)
        with ags1.open(path + ".ags1", "rb", km, threads=2) as file:
            assert len(file.read()) == 3 << 20
        print("worked")
path = sys.argv[1]
open(path, "wb").write(bytes(3 << 20))
for name in ags1.__all__:
    getattr(ags1, name)  # nothing can be imported at the very end
last = AtExit()
"""


def test_work_in_threads_at_exit_does_not_hang(run_python: RunPython, tmp_path: Path) -> None:
    # A new thread never runs then, and Python 3.12 makes none. So the calling thread works.
    done = run_python(AT_EXIT, tmp_path / "file", timeout=60)
    assert (done.stdout, done.stderr) == ("worked\n", "")


# ---- memory ------------------------------------------------------------------------------------

MEMORY = """
import os, sys
import ags1
source, sealed, again, *tasks = sys.argv[1:]

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

def do(task, threads):
    km = ags1.KeyMetadata(bytes(32), b"prefix")
    if task == "encrypt_file":
        km = ags1.encrypt_file(source, sealed, km=km, threads=threads, durable=False)
        assert km.file_length == os.stat(sealed).st_size
        return
    if task == "Writer":
        with open(source, "rb", buffering=0) as plain:
            with ags1.open(sealed, "wb", km, threads=threads, durable=False) as file:
                while part := plain.read(1 << 20):
                    file.write(part)
        return
    km = km.with_file_length(os.stat(sealed).st_size)
    if task == "verify_file":
        ags1.verify_file(sealed, km, threads=threads)
    elif task == "decrypt_file":
        size = ags1.decrypt_file(sealed, again, km, threads=threads, durable=False)
        assert size == os.stat(again).st_size
    else:
        with ags1.open(sealed, "rb", km, threads=threads) as file:
            if task == "read":
                while file.read(1 << 20):
                    pass
            elif task == "readinto":
                buffer = bytearray(100_000)
                while file.readinto(buffer):
                    pass
            else:
                assert task == "pread", task
                for at in range(0, file.plaintext_size, 10_000_000):
                    file.pread(at, 4096)

print("import", peak())
for task, threads in zip(tasks[::2], tasks[1::2]):
    do(task, int(threads))
    print(task, peak())
"""


def check_memory(
    run_python: RunPython,
    folder: Path,
    size: int,
    threads: int,
    bulk_threads: int,
    limit: int,
    marks: Mapping[int, bytes],
) -> None:
    """Have a file of zeros except for ``marks`` (what is at which position) encrypted, read and
    decrypted in every way, by processes that have at most ``limit`` KiB of memory at any time, all
    of Python and its imports included. The marks have to come back."""
    plain, sealed, again = folder / "plain", folder / "sealed", folder / "again"

    def do(*tasks: object) -> None:
        said = run_python(MEMORY, plain, sealed, again, *tasks, timeout=600).stdout
        peaks = dict(line.split() for line in said.splitlines())
        assert list(peaks) == ["import", *tasks[::2]]
        assert all(int(peak) < limit for peak in peaks.values()), peaks

    with plain.open("wb") as file:
        file.truncate(size)
        for at, mark in marks.items():
            os.pwrite(file.fileno(), mark, at)
    reading = [
        part for task in ("verify_file", "read", "readinto", "pread") for part in (task, threads)
    ]
    try:
        for tasks in (
            ["Writer", threads],
            ["encrypt_file", bulk_threads, *reading, "decrypt_file", bulk_threads],
        ):
            sealed.unlink(missing_ok=True)
            do(*tasks)
            assert sealed.stat().st_size == layout.encrypted_size(size)
            km = KeyMetadata(bytes(32), b"prefix", sealed.stat().st_size)
            with ags1.open(sealed, "rb", km) as reader:
                for at, mark in marks.items():
                    assert reader.pread(at, len(mark)) == mark
                    assert reader.seek(at) == at
                    assert reader.read(len(mark)) == mark
                assert reader.pread(size, 1) == b""
        assert again.stat().st_size == size
        with again.open("rb") as file:
            for at, mark in marks.items():
                assert os.pread(file.fileno(), len(mark), at) == mark
    finally:
        for path in (plain, sealed, again):
            path.unlink(missing_ok=True)


@needs_proc
@not_sanitized
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_memory_is_bounded(run_python: RunPython, tmp_path: Path, threads: int) -> None:
    # Above what a bounded stream needs, below the file.
    check_memory(run_python, tmp_path, 100 * MIB, threads, threads, 64 << 10, {66 * MIB: b"middle"})


@needs_proc
@pytest.mark.slow
def test_4_gib_go_through_64_mib(run_python: RunPython, tmp_path: Path) -> None:
    # Past what 32 bits address, on both sides of the border.
    size = (4 << 30) + 3 * MIB + 7
    marks = {0: b"begin", (2 << 30) - 2: b"2 GiB", (4 << 30) - 2: b"4 GiB", size - 4: b"last"}
    check_memory(run_python, tmp_path, size, 1, 2, 64 << 10, marks)
