"""Interrupts, closings and forks at any moment: never wrong bytes, a hang or a stray file."""

from __future__ import annotations

import _thread
import contextlib
import gc
import io
import itertools
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import reference
import sources
from conftest import SANITIZED, RunPython, not_sanitized

import ags1
from ags1 import KeyMetadata
from ags1.engine import _buffers, _gcm, bulk
from ags1.engine._pump import Pump, allocate
from ags1.engine._reading import BlockCache, ReadWindow
from ags1.engine._writing import WriteBatch

MIB = 1 << 20
KEY, PREFIX = bytes(range(32)), b"sixteen byte aad"
threads = pytest.mark.parametrize("threads", [1, 3])
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
quiet_fork = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def sealed(data: bytes, block_size: int) -> tuple[bytes, KeyMetadata]:
    stream = reference.encrypt(data, KEY, PREFIX, block_size)
    return stream, KeyMetadata(KEY, PREFIX, len(stream))


class Struck(BaseException):
    """What the signal handler raises, as Ctrl-C does."""


class Storm:
    """Interrupts calls, again and again, at whatever instruction they are."""

    def __init__(self) -> None:
        self.strikes = 0
        self._left = 0

    def _strike(self, number: int, frame: Any) -> None:
        if self._left:
            self._left -= 1
            self.strikes += 1
            raise Struck

    @contextlib.contextmanager
    def blowing(self, every: float) -> Iterator[None]:
        previous = signal.signal(signal.SIGALRM, self._strike)
        # A strike within a __del__ can only be reported.
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        signal.setitimer(signal.ITIMER_REAL, every, every)
        try:
            yield
            gc.collect()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
            sys.unraisablehook = hook

    def until(self, strikes: int) -> Iterator[int]:
        """Count attempts, until there were so many strikes; for 20 seconds at most."""
        end = time.monotonic() + 20
        for attempt in itertools.count(1):
            if self.strikes >= strikes or time.monotonic() > end:
                return
            yield attempt

    def arm(self, times: int) -> None:
        """Have the next strikes hit."""
        self._left = times

    def through(self, call: Callable[[], object], times: int = 1) -> bool:
        """Make the call, interrupted so many times at most; return whether it came through."""
        try:
            try:
                self._left = times
                call()
            finally:
                self._left = 0
        except Struck:
            return False
        return True


def test_an_interrupted_call_leaves_no_thread_at_work() -> None:
    data = bytes([1]) * (6 * MIB)
    (stream, km), out, zeros = ags1.encrypt(data), bytearray(6 * MIB), bytes(6 * MIB)
    storm = Storm()
    with storm.blowing(0.0005):
        for _ in range(70):
            out[:] = zeros
            through = storm.through(lambda: ags1.decrypt_into(stream, out, km, threads=3))
            left = bytes(out)
            # An interrupt may come when all is done, and then all is there.
            assert left == data or (left == zeros and not through)
            time.sleep(0.002)
            assert out == left
    assert storm.strikes > 30


@pytest.mark.parametrize("step", ["start_new_thread", "SimpleQueue.put"])
def test_an_interrupt_while_threads_start(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    data = reference.pattern(4 * MIB)
    (stream, km), out = ags1.encrypt(data), bytearray(4 * MIB)
    begun = []

    def interrupted(*arguments: Any) -> Any:
        begun.append(_thread.start_new_thread(*arguments))
        if len(begun) == 2:
            raise Struck
        return begun[-1]

    class Queue(queue.SimpleQueue):  # type: ignore[type-arg]
        def put(self, job: Any) -> None:
            super().put(job)
            begun.append(job)
            if len(begun) == 2:
                raise Struck

    if step == "start_new_thread":
        monkeypatch.setattr("ags1.host.threads.start_new_thread", interrupted)
    else:
        monkeypatch.setattr("ags1.host.threads.SimpleQueue", Queue)
    with pytest.raises(Struck):
        ags1.decrypt_into(stream, out, km, threads=3)
    assert not any(out)
    time.sleep(0.02)
    assert not any(out)
    with ags1.open(io.BytesIO(stream), "rb", km, threads=3) as file:
        begun.clear()
        with pytest.raises(Struck):
            file.readinto(out)
        file.seek(0)
        assert file.read() == data


def test_an_interrupt_while_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, km = ags1.encrypt(bytes(4 * MIB))
    ended: list[None] = []
    made: list[weakref.ref[Any]] = []

    class Queue(queue.SimpleQueue):  # type: ignore[type-arg]
        def put(self, job: Any) -> None:
            if job is None:
                ended.append(job)
                if len(ended) == 2:
                    raise Struck
            super().put(job)

    def queue_of_a_pool() -> Queue:
        made.append(weakref.ref(new := Queue()))
        return new

    monkeypatch.setattr("ags1.host.threads.SimpleQueue", queue_of_a_pool)
    with pytest.raises(Struck):
        ags1.decrypt(stream, km, threads=3)
    end = time.monotonic() + 20
    while made[0]() is not None and time.monotonic() < end:
        time.sleep(0.01)
    # The threads hold it until they end.
    assert made[0]() is None


# Of `make test`: a path, in three threads. Three threads, on a path and on a file; for
# interrupts, a BytesIO is read as a file is.
@pytest.mark.slow_variants(r"(file-1|file-3)", r"(path-1|BytesIO-1|BytesIO-3)")
@threads
@pytest.mark.parametrize("kind", ["BytesIO", "path", "file"])
def test_reads_are_right_under_a_storm_of_interrupts(
    tmp_path: Path, kind: str, threads: int
) -> None:
    data = reference.pattern(200_000)
    stream, km = sealed(data, 700)
    path = tmp_path / "file"
    path.write_bytes(stream)
    found: list[tuple[int, bytes]] = []
    with contextlib.ExitStack() as stack:
        source: Any = path
        if kind != "path":
            source = (
                io.BytesIO(stream) if kind == "BytesIO" else stack.enter_context(path.open("rb"))
            )
        file = ags1.open(source, "rb", km, threads=threads)
        stack.callback(file.close)

        def look(at: int) -> None:
            file.seek(at)
            found.append((at, file.read(900)))
            found.append((at, file.pread(at, 900)))
            found.append((at, file.readv([(at, 2000)])[0]))
            found.append((at, file.pread(at, 60_000)))
            out = bytearray(30_000)
            file.seek(at)
            found.append((at, bytes(out[: file.readinto(out)])))

        storm = Storm()
        # Some calls have to get through, and a sanitizer makes them several times slower.
        with storm.blowing(0.002 if SANITIZED else 0.0003):
            for attempt in storm.until(400):
                at = attempt * 12_345 % 100_000
                storm.through(lambda at=at: look(at), times=1 + at % 2)
        assert storm.strikes > 100
        # It is as good as new, and closes.
        file.seek(0)
        assert file.read() == data
        file.close()
    for at, part in found:
        assert part == data[at : at + len(part)]
    assert sum(bool(part) for _, part in found) > 100


def test_writes_under_a_storm_of_interrupts_leave_whole_files_or_none(tmp_path: Path) -> None:
    data = reference.pattern(100_000)

    def write(target: Path) -> None:
        km = KeyMetadata(KEY, PREFIX)
        with ags1.open(target, "wb", km, block_size=700, durable=False) as file:
            for at in range(0, 100_000, 3000):
                file.write(data[at : at + 3000])

    storm = Storm()
    with storm.blowing(0.0021):
        for tried in storm.until(100):
            target = tmp_path / str(tried)
            storm.through(lambda target=target: write(target), times=1 + tried % 2)
    assert storm.strikes >= 100
    for path in tmp_path.iterdir():
        # Whole files under their names, and nothing else.
        assert path.name.isdigit()
        assert reference.decrypt(path.read_bytes(), KEY, PREFIX) == data


@pytest.mark.parametrize("threads", [1, 2])
def test_bulk_under_a_storm_of_interrupts(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    # Several pieces of work for each thread.
    monkeypatch.setattr(bulk, "SMALL_FILE_ALONE", 4 * MIB)
    with source.open("wb") as file:
        file.truncate(8 * MIB)
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir())) if descriptors.exists() else 0
    monkeypatch.setattr("ags1.host.threads.WAIT_SECONDS", 0.001)
    storm, tried = Storm(), 0

    def encrypt() -> None:
        # Once the workers run: Python's own start of a thread does not survive an interrupt.
        ags1.encrypt_file(
            source,
            target,
            km=KeyMetadata(KEY),
            threads=threads,
            durable=False,
            overwrite=True,
            progress=lambda done, total: storm.arm(1 + tried % 3) if done < total else None,
        )

    with storm.blowing(0.0007):
        for tried in storm.until(40):  # noqa: B007
            storm.through(encrypt, times=0)
    assert storm.strikes >= 40
    assert {path.name for path in tmp_path.iterdir()} <= {"source", "target"}
    if target.exists():
        assert reference.decrypt(target.read_bytes(), KEY) == bytes(8 * MIB)
    if before:
        # A number that os.open() was about to return when the signal came is nobody's.
        assert len(list(descriptors.iterdir())) <= before + storm.strikes // 10 + 1


# ---- a second visitor --------------------------------------------------------------------------


class Gate(sources.WriteOnlyStream):
    """Stops in the middle of a write until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()
        self.armed = False

    def write(self, data: Any) -> int:
        if self.armed:
            self.armed = False
            self.entered.set()
            assert self.go.wait(20)
        return super().write(data)


@threads
def test_abort_while_another_thread_writes(threads: int) -> None:
    target = Gate()
    file = ags1.open(target, "wb", KeyMetadata(KEY, PREFIX), block_size=1000, threads=threads)
    target.armed = True
    errors: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(100):
                file.write(bytes(1 << 18))
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    assert target.entered.wait(20)
    aborter = threading.Thread(target=file.abort)
    aborter.start()
    time.sleep(0.05)
    target.go.set()
    writer.join(20)
    aborter.join(20)
    assert not writer.is_alive()
    assert not aborter.is_alive()
    assert file.closed
    assert isinstance(errors[0], (ags1.Ags1Error, ValueError))
    with pytest.raises(reference.RefusedError):
        reference.decrypt(target.data, KEY, PREFIX)


@threads
def test_a_signal_handler_that_closes_the_stream_under_a_write(threads: int) -> None:
    # It must neither hang nor leave the write thinking that all is well.
    class Handled(sources.WriteOnlyStream):
        def write(self, data: Any) -> int:
            if len(self.data) > 2000 and not raised:
                signal.raise_signal(signal.SIGALRM)
            return super().write(data)

    raised: list[BaseException] = []

    def handler(number: int, frame: Any) -> None:
        try:
            file.close()
        except BaseException as error:
            raised.append(error)

    target = Handled()
    file = ags1.open(target, "wb", KeyMetadata(KEY, PREFIX), block_size=1000, threads=threads)
    previous = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(40):
            file.write(bytes(1 << 18))
        file.close()
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert isinstance(raised[0], RuntimeError)
    assert file.key_metadata.file_length == len(target.data)
    assert reference.decrypt(target.data, KEY, PREFIX) == bytes(40 << 18)


@pytest.mark.parametrize("size", [0, 10, 100_000])
@threads
def test_many_threads_close_one_writer(size: int, threads: int) -> None:
    for _ in range(20):
        target = io.BytesIO()
        file = ags1.open(target, "wb", block_size=1000, threads=threads)
        file.write(bytes(size))
        barrier = threading.Barrier(4)

        def close(file: Any = file, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            file.close()

        closers = [threading.Thread(target=close) for _ in range(4)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()
        km = file.key_metadata
        assert km.file_length == len(target.getvalue())
        stream = target.getvalue()
        assert reference.decrypt(stream, km.encryption_key, km.aad_prefix) == bytes(size)


def test_closing_a_reader_that_others_use_says_closed(tmp_path: Path) -> None:
    data = reference.pattern(300_000)
    stream, km = sealed(data, 5000)
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(stream)
    other.write_bytes(bytes(len(stream)))
    strange: list[BaseException] = []
    for _ in range(30):
        file = ags1.open(path, "rb", km)

        def use(file: Any = file) -> None:
            try:
                for at in range(0, 300_000, 1000):
                    assert file.pread(at, 12_000) == data[at : at + 12_000]
            except ValueError as error:
                if "closed" not in str(error):
                    strange.append(error)
            except BaseException as error:
                strange.append(error)

        users = [threading.Thread(target=use) for _ in range(3)]
        for user in users:
            user.start()
        time.sleep(0.001)
        file.close()
        # Takes the descriptor's number, if it is free.
        with other.open("rb"):
            for user in users:
                user.join()
    assert not strange, strange[:3]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts in /proc")
@threads
def test_readers_that_are_dropped_leave_nothing_open(tmp_path: Path, threads: int) -> None:
    stream, km = sealed(reference.pattern(3 * MIB), 10_000)
    path = tmp_path / "file"
    path.write_bytes(stream)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        file = ags1.open(path, "rb", km, threads=threads)
        file.read(1)
        file.read(1_200_000)
        file.seek(0)
        file.read(5000)
        del file
    for _ in range(200):
        gc.collect()
        if len(os.listdir("/proc/self/fd")) <= before:
            break
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before


# ---- forks -------------------------------------------------------------------------------------


# Of `make test`: a path, in three threads. Three threads, on a path and on a file; for
# interrupts, a BytesIO is read as a file is.
@pytest.mark.slow_variants(r"(1-file|3-file)", r"(1-path|1-BytesIO|3-BytesIO)")
@needs_fork
@quiet_fork
@pytest.mark.parametrize("kind", ["file", "path", "BytesIO"])
@threads
def test_children_forked_while_others_read(tmp_path: Path, kind: str, threads: int) -> None:
    data = reference.pattern(100_000)
    stream, km = sealed(data, 1000)
    path = tmp_path / "file"
    path.write_bytes(stream)
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        source: Any = path
        if kind != "path":
            source = (
                io.BytesIO(stream)
                if kind == "BytesIO"
                else stack.enter_context(path.open("rb", buffering=0))
            )
        file = stack.enter_context(ags1.open(source, "rb", km, threads=threads))

        def use() -> None:
            while not stop.is_set():
                file.seek(0)
                file.read(5000)
                file.pread(50_000, 3000)

        # A file object's position is the children's too: only one process may move it.
        users = [threading.Thread(target=use) for _ in range(0 if kind == "file" else 3)]
        for user in users:
            user.start()
        codes = []
        try:
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        signal.alarm(20)
                        file.seek(0)
                        right = file.read() == data and file.pread(7, 9000) == data[7:9007]
                        code = 0 if right else 2
                    finally:
                        os._exit(code)
                codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                if codes[-1]:
                    break
        finally:
            stop.set()
            for user in users:
                user.join()
    assert codes == [0] * 3


SAME_PID = """
import ctypes, os, platform, signal, sys
from ags1 import Ags1Error, KeyReuseError
from ags1.engine import _gcm, _messages
from ags1.hazmat import BlockCipher
# OpenSSL's FIPS provider draws the nonces, and knows its children by their process ID.
fips = _gcm.libcrypto()["fips"]
libc = ctypes.CDLL(None, use_errno=True)
cipher = BlockCipher(bytes(16), block_size=16)
before = _gcm.random_bytes(16), _messages.seal(bytes(16), b"")
CLONE_NEWPID = 0x20000000
def clone():
    # No fork handler runs: what a clone of a machine or of a process image (CRIU) does, too.
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    return libc.syscall(number, CLONE_NEWPID | signal.SIGCHLD, 0, 0, 0, 0)
def fork():
    return -1 if libc.unshare(CLONE_NEWPID) else os.fork()
read, write = os.pipe()
child = HOW()
if child < 0:
    sys.exit(77)
if child == 0:
    try:
        cipher.seal_blocks(b"", bytearray(28))
    except KeyReuseError:
        pass
    else:
        os.write(write, b"sealed")
        os._exit(1)
    try:
        drawn = _gcm.random_bytes(16) + _messages.seal(bytes(16), b"")[:12]
    except Ags1Error:
        if not fips:
            raise
        drawn = _gcm.random_bytes(16) + b"refused"
    os.write(write, os.getpid().to_bytes(4, "little") + drawn)
    os._exit(0)
os.wait()
drawn = _gcm.random_bytes(16) + _messages.seal(bytes(16), b"")[:12]
child = os.read(read, 100)
assert int.from_bytes(child[:4], "little") == os.getpid() == 1, (child[:4], os.getpid())
assert child[4:20] != drawn[:16], "parent and child drew the same key"
assert child[20:] != drawn[16:], "parent and child drew the same nonce"
cipher.seal_blocks(b"", bytearray(28))
print("different")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's namespaces")
@pytest.mark.parametrize("how", ["fork", "clone"])
def test_a_child_with_its_parents_pid_draws_other_keys(run_python: RunPython, how: str) -> None:
    # As in a container: both are process 1 of a namespace, and OpenSSL goes by that number.
    same_pid = SAME_PID.replace("HOW", how)
    script = (
        "import subprocess, sys\n"
        "command = ['unshare', '-r', '--pid', '--fork', '--mount-proc', sys.executable, '-c']\n"
        f"done = subprocess.run([*command, {same_pid!r}], capture_output=True, text=True)\n"
        "print(done.stdout, end='')\n"
        "print(done.stderr, end='', file=sys.stderr)\n"
        "sys.exit(77 if 'unshare' in done.stderr else done.returncode)\n"
    )
    done = run_python(script, check=False)
    if done.returncode == 77:
        pytest.skip("namespaces may not be made here")
    assert (done.stdout, done.stderr) == ("different\n", "")


FORKED = """
import os
from ags1 import KeyReuseError
from ags1.hazmat import BlockCipher
cipher = BlockCipher(bytes(16), block_size=16)
if not (child := os.fork()):
    try:
        cipher.seal_blocks(b"", bytearray(28))
    except KeyReuseError:
        os._exit(0)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


# qemu's user mode says that madvise(MADV_WIPEONFORK) has succeeded, and does nothing.
LYING_KERNEL = "int madvise(void *at, unsigned long size, int advice) { return 0; }"

# Memory before a large block cannot be read. jemalloc sometimes gives such blocks.
OTHER_MALLOC = """
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
enum { PAGE = 65536, LARGE = 1 << 20 };
extern void *__libc_malloc(size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);
static int is_large(void *block) { return block != NULL && (uintptr_t)block % PAGE == 0; }
void *malloc(size_t size) {
    if (size < LARGE)
        return __libc_malloc(size);
    int access = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS;
    char *begin = mmap(NULL, size + 3 * PAGE, access, kind, -1, 0);
    begin += -(uintptr_t)begin % PAGE;
    *(size_t *)begin = size;
    mprotect(begin + PAGE, PAGE, PROT_NONE);
    return begin + 2 * PAGE;
}
void free(void *block) {
    if (!is_large(block))
        __libc_free(block);
}
void *realloc(void *block, size_t size) {
    if (!is_large(block))
        return __libc_realloc(block, size);
    size_t old = *(size_t *)((char *)block - 2 * PAGE);
    return memcpy(malloc(size), block, old < size ? old : size);
}
"""
MANY = """
import ags1
sealed = ags1.encrypt_many([bytes(300_000)] * 50)
print(ags1.decrypt_many(sealed) == [bytes(300_000)] * 50)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@not_sanitized
@pytest.mark.parametrize(
    ("replaced", "script", "printed"),
    [(LYING_KERNEL, FORKED, "0"), (OTHER_MALLOC, MANY, "True")],
    ids=["a kernel that does not wipe memory on fork", "another malloc"],
)
def test_parts_of_the_system_that_are_replaced(
    run_python: RunPython,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    replaced: str,
    script: str,
    printed: str,
) -> None:
    source = tmp_path / "replaced.c"
    source.write_text(replaced)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "replaced.so", source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "replaced.so"))
    assert run_python(script).stdout == f"{printed}\n"


# ---- the parts beneath -------------------------------------------------------------------------


def test_new_bytes_are_owned_by_the_view_that_fills_them() -> None:
    data, view = _buffers.new_bytes(100_000)
    assert type(data) is bytes
    view[:] = b"x" * 100_000
    assert data == b"x" * 100_000
    del data
    others = [bytearray(100_000) for _ in range(50)]
    view[:] = b"y" * 100_000
    assert not any(any(other) for other in others)
    assert bytes(view) == b"y" * 100_000
    for size in (-1, -(2**62)):
        with pytest.raises(ValueError, match="size"):
            _buffers.new_bytes(size)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's full device")
def test_a_pump_tells_of_a_write_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(reference.encrypt(bytes(100), KEY, None, 16))
    cipher = _gcm.BlockCipher(KEY, block_size=16)
    with path.open("rb") as source, open("/dev/full", "wb", buffering=0) as target:
        pump = Pump(source.fileno(), target.fileno())
        for call in (pump.seal, pump.open):
            with pytest.raises(OSError, match="No space left") as caught:
                call(cipher, 0, 100)
            assert caught.value.filename == "target"


@needs_fork
@quiet_fork
def test_a_pump_stops_and_does_not_seal_in_a_child(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    cipher = _gcm.BlockCipher(KEY, block_size=16)
    with path.open("rb") as source, (tmp_path / "out").open("wb") as target:
        pump = Pump(source.fileno(), target.fileno())
        child = os.fork()
        if child == 0:
            code = 1
            try:
                pump.seal(cipher, 0, 100)
            except ags1.KeyReuseError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        pump.stop()
        assert pump.seal(cipher, 0, 100) is False
        assert pump.bytes_done == 0
    assert (tmp_path / "out").read_bytes() == b""


def test_a_pump_stays_within_the_file(tmp_path: Path) -> None:
    stream = reference.encrypt(bytes(100), KEY, None, 16)
    path = tmp_path / "file"
    path.write_bytes(stream)
    cipher = _gcm.BlockCipher(KEY, block_size=16)
    with path.open("rb") as source, (tmp_path / "out").open("wb") as target:
        for first, size in (
            (0, -5),
            (0, -1),
            (0, -(2**62)),
            (2**31 - 2, 100),
            (2**32, 1),
            (-1, 16),
        ):
            pump = Pump(source.fileno(), target.fileno())
            for call in (pump.open, pump.seal):
                with pytest.raises((ValueError, OverflowError)):
                    call(cipher, first, size)
            pump.close()
            with pytest.raises(ValueError, match="file"):
                pump.open(cipher, 0, 100)
        for bad in (-1, 10**6):
            with pytest.raises((OSError, ValueError)):
                Pump(bad, target.fileno()).open(cipher, 0, 100)
        assert (tmp_path / "out").stat().st_size == 0


def test_threads_share_a_pump_and_outlive_its_closing(tmp_path: Path) -> None:
    path, out = tmp_path / "file", tmp_path / "out"
    data = reference.pattern(16 * MIB)
    path.write_bytes(reference.encrypt(data, KEY))
    cipher = _gcm.BlockCipher(KEY)
    with path.open("rb") as source, out.open("wb") as target:
        pump = Pump(source.fileno(), target.fileno(), durable=True)
    done: list[bool] = []

    def start(first: int, count: int) -> threading.Thread:
        worker = threading.Thread(target=lambda: done.append(pump.open(cipher, first, count * MIB)))
        worker.start()
        return worker

    for worker in [start(first, 2) for first in range(0, 8, 2)]:
        worker.join()
    assert pump.bytes_done == 8 * MIB
    last = start(8, 8)
    while pump.bytes_done == 8 * MIB:
        time.sleep(0)
    pump.close()
    with pytest.raises(ValueError, match="closed"):
        pump.open(cipher, 0, MIB)
    last.join()
    assert done == [True] * 5
    assert out.read_bytes() == data


def test_room_that_cannot_be_reserved_is_no_error() -> None:
    reading, writing = os.pipe()
    try:
        allocate(writing, 1000)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_window_and_a_cache_stay_within_their_buffers() -> None:
    window, cache = ReadWindow(), BlockCache(6)
    for start, size in ((0, 4), (0, 1 << 40), (0, -1), (-1, 2), (0, -(2**62))):
        for call in (window.put, cache.keep):
            with pytest.raises((ValueError, OverflowError)):
                call(memoryview(b"abc"), start, size)
    window.put(memoryview(b"abc"), 5, 2)
    cache.keep(memoryview(b"abc"), 5, 2)
    out = bytearray(b"....")
    assert window.copy(5, out) == 2
    assert out == b"ab.."
    assert not cache.copy(5, out)
    assert cache.copy(6, memoryview(out)[:1])
    assert out[:1] == b"b"
    for position in (-1, 0, 4, 7, 2**62):
        assert window.copy(position, out) == 0
        assert not window.holds(position)
        assert not cache.copy(position, out)
    batch = WriteBatch()
    for block_size in (0, -1):
        with pytest.raises((ValueError, OverflowError)):
            batch.begin(bytearray(100), block_size)


def test_a_target_that_keeps_what_it_was_lent_is_told_so() -> None:
    # The memory is filled with the next plaintext, which must not leave through a kept view.
    class Keeper(io.RawIOBase):
        def __init__(self) -> None:
            self.kept: list[memoryview] = []

        def writable(self) -> bool:
            return True

        def write(self, data: memoryview) -> int:
            self.kept.append(data)
            return data.nbytes

    for threads in (1, 2):
        keeper = Keeper()
        with ags1.open(keeper, "wb", block_size=100, threads=threads) as file:
            file.write(bytes(3 * MIB))
        assert len(keeper.kept) > 3
        for view in keeper.kept:
            with pytest.raises(ValueError, match="released"):
                bytes(view)


@pytest.mark.parametrize("answer", [0, -1, 10**9])
def test_a_target_that_lies_about_what_it_wrote(answer: int) -> None:
    class Liar:
        def write(self, data: Any) -> int:
            return answer

    with pytest.raises(OSError, match="written"):
        ags1.open(Liar(), "wb").close()


@pytest.mark.parametrize("answer", [-1, 10**9])
def test_a_source_that_lies_about_what_it_read(answer: int) -> None:
    stream, km = sealed(bytes(100), 16)

    class Liar(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any, /) -> int:
            return answer

    with pytest.raises((OSError, ags1.Ags1Error)):
        ags1.open(Liar(), "rb", km).read()
    del stream


def test_a_source_that_would_block_has_not_ended() -> None:
    data = reference.pattern(100)
    stream, km = sealed(data, 16)

    class Slow:
        """Has nothing to say when asked whether more follows."""

        def __init__(self) -> None:
            self.inner = io.BytesIO(stream)

        def read(self, size: int) -> bytes | None:
            return self.inner.read(size) or None

    with pytest.raises(BlockingIOError):
        ags1.open(Slow(), "rb", km).read()


def test_a_file_that_has_its_name_has_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # When the folder cannot be synced the file is there all the same: the key must not be lost.
    def fail(folder: str) -> None:
        raise OSError(5, "Input/output error", folder)

    monkeypatch.setattr("ags1.host.atomic.sync_folder", fail)
    with pytest.warns(RuntimeWarning, match="folder"):
        with ags1.open(tmp_path / "one", "wb") as file:
            file.write(b"data")
    assert ags1.verify_file(tmp_path / "one", file.key_metadata) == 4
    with pytest.warns(RuntimeWarning, match="folder"):
        km = ags1.encrypt_file(tmp_path / "one", tmp_path / "two")
    assert ags1.verify_file(tmp_path / "two", km) == 40


def test_the_largest_numbers() -> None:
    with ags1.open(io.BytesIO(sealed(b"data", 16)[0]), "rb", sealed(b"data", 16)[1]) as file:
        for huge in (2**62, 2**63 - 1, 2**63, 2**70):
            assert file.pread(huge, 1) == b""
            assert file.pread(1, huge) == b"ata"
            assert file.readv([(huge, 5), (0, huge)]) == [b"", b"data"]
            if huge < 2**63:  # io.BytesIO takes no larger ones either
                file.seek(0)
                assert file.read(huge) == b"data"
                file.seek(0)
                assert file.readline(huge) == b"data"
            with contextlib.suppress(ValueError, OverflowError):
                file.seek(huge)
            assert file.read() == b""


@pytest.mark.parametrize("prefix_size", [0, 1, 4096, 65_536, 65_537, 1 << 20])
def test_long_prefixes_are_whole_or_refused(prefix_size: int) -> None:
    try:
        km = KeyMetadata(KEY, bytes(prefix_size))
    except ags1.KeyMetadataError:
        assert prefix_size > 65_536
        return
    made = ags1.encrypt(b"data", km=km)
    assert reference.decrypt(made.data, KEY, bytes(prefix_size)) == b"data"
    other = (
        KeyMetadata(KEY, bytes(prefix_size + 1), len(made.data)) if prefix_size < 65_536 else None
    )
    if other is not None:
        with pytest.raises(ags1.AuthenticationError):
            ags1.decrypt(made.data, other)
