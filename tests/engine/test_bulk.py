"""encrypt_file, decrypt_file, verify_file: round trips, and targets that appear whole or not."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import reference
from conftest import RunPython
from hypothesis import given
from hypothesis import strategies as st
from reading import write_anew

import ags1
from ags1 import KeyMetadata, layout
from ags1.engine import bulk
from ags1.host import atomic, private_file
from ags1.host._paths import real_path
from ags1.host.atomic import AtomicFile

MIB = 1 << 20
threads = pytest.mark.parametrize("threads", [1, 2, 3, None])
# Above bulk's limit for a single thread, and no whole number of blocks.
LARGE = reference.pattern(5 * MIB + 12345)
# The same for less work: a batch has at most 256 blocks, and ``small_limits`` sets the limits.
BLOCK, BATCH = 250, 256 * 250
DATA = reference.pattern(9 * BATCH + 123)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of ``BATCH`` bytes takes the place of 1 MiB in every limit."""
    for name in ("SMALL_FILE", "SMALL_FILE_ALONE", "_CHUNK_SIZE"):
        monkeypatch.setattr(bulk, name, getattr(bulk, name) // MIB * BATCH)
    for module in ("blocks", "writer"):
        monkeypatch.setattr(f"ags1.engine.{module}.CHUNK_SIZE", BATCH)


@pytest.fixture
def plain(tmp_path: Path, small_limits: None) -> Path:
    path = tmp_path / "plain"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def sealed(tmp_path: Path, small_limits: None) -> tuple[Path, KeyMetadata]:
    made = ags1.encrypt(DATA, block_size=BLOCK)
    path = tmp_path / "sealed"
    path.write_bytes(made.data)
    return path, made.key_metadata


@pytest.fixture
def eager_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ags1.host.threads.WAIT_SECONDS", 0.0001)


@contextlib.contextmanager
def nothing_new_in(folder: Path) -> Iterator[None]:
    """The files there, their contents and their modes must be afterwards as they were before."""

    def state() -> dict[str, tuple[bytes, int]]:
        return {p.name: (p.read_bytes(), p.stat().st_mode) for p in folder.iterdir() if p.is_file()}

    before = state()
    yield
    assert state() == before


def open_by_reference(path: Path, km: KeyMetadata) -> bytes:
    return reference.decrypt(path.read_bytes(), km.encryption_key, km.aad_prefix, km.file_length)


# ---- round trips -------------------------------------------------------------------------------


# Of `make test`: the usual block size in all numbers of threads, each other one in two of them.
@pytest.mark.slow_variants(r"(65536|16777216)-(1|3)", r"100003-(2|None)")
@threads
@pytest.mark.parametrize("block_size", [MIB, 65_536, 100_003, 16 * MIB])
def test_round_trip(tmp_path: Path, threads: int | None, block_size: int) -> None:
    plain, sealed, again = tmp_path / "plain", tmp_path / "sealed", tmp_path / "again"
    plain.write_bytes(LARGE)
    km = ags1.encrypt_file(plain, sealed, threads=threads, block_size=block_size, durable=False)
    assert km.file_length == sealed.stat().st_size == layout.encrypted_size(len(LARGE), block_size)
    assert len(km.encryption_key) == 32
    assert open_by_reference(sealed, km) == LARGE
    assert ags1.verify_file(sealed, km, threads=threads) == len(LARGE)
    assert ags1.decrypt_file(sealed, again, km, threads=threads, durable=False) == len(LARGE)
    assert again.read_bytes() == LARGE
    assert plain.read_bytes() == LARGE
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "plain", "sealed"]


@given(
    st.binary(max_size=500),
    st.integers(1, 60),
    st.sampled_from([16, 24, 32]),
    st.sampled_from([1, 2, 5, None]),
    st.booleans(),
)
def test_small_files_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    data: bytes,
    block_size: int,
    key_size: int,
    threads: int | None,
    in_threads: bool,
) -> None:
    folder = tmp_path_factory.mktemp("bulk")
    plain, sealed, again = folder / "plain", folder / "sealed", folder / "again"
    plain.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        if in_threads:
            patch.setattr(bulk, "SMALL_FILE", -1)
        km = ags1.encrypt_file(
            plain, sealed, key_size=key_size, block_size=block_size, threads=threads, durable=False
        )
        assert open_by_reference(sealed, km) == data
        assert len(km.encryption_key) == key_size
        assert ags1.verify_file(sealed, km, threads=threads) == len(data)
        assert ags1.decrypt_file(sealed, again, km, threads=threads, durable=False) == len(data)
    assert again.read_bytes() == data
    shutil.rmtree(folder)


@threads
def test_an_empty_file(tmp_path: Path, threads: int | None) -> None:
    plain, sealed, again = tmp_path / "plain", tmp_path / "sealed", tmp_path / "again"
    plain.touch()
    km = ags1.encrypt_file(plain, sealed, threads=threads)
    assert km.file_length == sealed.stat().st_size == 36
    assert ags1.verify_file(sealed, km, threads=threads) == 0
    assert ags1.decrypt_file(sealed, again, km, threads=threads) == 0
    assert again.read_bytes() == b""


@pytest.mark.parametrize("key_size", [16, 24, 32])
@pytest.mark.parametrize("prefix_size", [0, 1, 11, 12, 13, 16, 28, 29])
def test_files_of_any_length_verify_and_not_with_a_bit_more(
    tmp_path: Path, key_size: int, prefix_size: int
) -> None:
    """Verifying decrypts nothing: it fills up AAD and ciphertext itself."""
    key, prefix = bytes(range(key_size)), bytes(prefix_size)
    path = tmp_path / "sealed"
    for size in (*range(36), 100):
        stream = reference.encrypt(reference.pattern(size), key, prefix, 33)
        write_anew(path, stream)
        assert ags1.verify_file(path, KeyMetadata(key, prefix, len(stream))) == size
        for wrong in (prefix + b"\0", b"\1" + prefix[1:]):
            with pytest.raises(ags1.AuthenticationError, match="block 0"):
                ags1.verify_file(path, KeyMetadata(key, wrong, len(stream)))
        # A zero more is what the ciphertext is filled up with.
        write_anew(path, stream[:-16] + b"\0" + stream[-16:])
        with pytest.raises((ags1.AuthenticationError, ags1.FormatError)):
            ags1.verify_file(path, KeyMetadata(key, prefix, len(stream) + 1))


@threads
def test_a_header_alone(tmp_path: Path, threads: int | None) -> None:
    sealed, again = tmp_path / "sealed", tmp_path / "again"
    sealed.write_bytes(layout.build_header(MIB))
    km = KeyMetadata(bytes(16), None, 8)
    assert ags1.verify_file(sealed, km, threads=threads) == 0
    assert ags1.decrypt_file(sealed, again, km, threads=threads) == 0
    assert again.read_bytes() == b""
    for trust in ({"trust_file_size": True}, {}):
        with pytest.raises(ags1.Ags1Error):
            ags1.verify_file(sealed, KeyMetadata(bytes(16)), threads=threads, **trust)


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_paths_of_every_kind(tmp_path: Path, kind: Callable[[Any], Any]) -> None:
    plain = tmp_path / "plän \udcff"
    plain.write_bytes(b"data")
    sealed, again = tmp_path / "sealed", tmp_path / "again"
    km = ags1.encrypt_file(kind(plain), kind(sealed))
    assert ags1.verify_file(kind(sealed), km) == 4
    assert ags1.decrypt_file(kind(sealed), kind(again), km) == 4
    assert again.read_bytes() == b"data"


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain").write_bytes(b"data")
    km = ags1.encrypt_file("plain", "sealed")
    assert ags1.decrypt_file("sealed", "again", km) == 4
    assert Path("again").read_bytes() == b"data"


@pytest.mark.usefixtures("small_limits")
@threads
def test_a_sparse_source(tmp_path: Path, threads: int | None) -> None:
    plain, sealed, again = tmp_path / "plain", tmp_path / "sealed", tmp_path / "again"
    size = 33 * BATCH + 7
    with plain.open("wb") as file:
        file.write(b"begin")
        file.seek(17 * BATCH - 3)
        file.write(b"middle")
        file.truncate(size)
    km = ags1.encrypt_file(plain, sealed, threads=threads, block_size=BATCH, durable=False)
    ags1.decrypt_file(sealed, again, km, threads=threads, durable=False)
    assert again.read_bytes() == plain.read_bytes()
    # Every block is sealed, holes too: equal blocks must not look equal.
    tags = {slot[-16:] for slot in reference.slots(sealed.read_bytes())}
    assert len(tags) == 34


# ---- keys --------------------------------------------------------------------------------------


def test_a_used_key_is_refused_before_anything_is_made(
    tmp_path: Path, plain: Path, sealed: tuple[Path, KeyMetadata]
) -> None:
    target = tmp_path / "target"
    with nothing_new_in(tmp_path), pytest.raises(ags1.KeyReuseError):
        ags1.encrypt_file(plain, target, km=sealed[1])
    km = ags1.encrypt_file(plain, target, km=sealed[1], reuse_key=True)
    assert km.encryption_key == sealed[1].encryption_key
    assert ags1.verify_file(target, km) == len(DATA)


def test_a_given_key_is_used(tmp_path: Path, plain: Path) -> None:
    given_km = KeyMetadata(bytes(16))
    km = ags1.encrypt_file(plain, tmp_path / "target", km=given_km)
    assert km == given_km.with_file_length((tmp_path / "target").stat().st_size)
    assert given_km.file_length is None


def test_no_trusted_length_no_reading(tmp_path: Path, sealed: tuple[Path, KeyMetadata]) -> None:
    path, full = sealed
    km = KeyMetadata(full.encryption_key, full.aad_prefix)
    with nothing_new_in(tmp_path):
        for call in (
            lambda: ags1.verify_file(path, km),
            lambda: ags1.decrypt_file(path, tmp_path / "target", km),
        ):
            with pytest.raises(ags1.MissingFileLengthError) as caught:
                call()
            assert caught.value.file == str(path)
    assert ags1.verify_file(path, km, trust_file_size=True) == len(DATA)
    assert ags1.decrypt_file(path, tmp_path / "target", km, trust_file_size=True) == len(DATA)


def test_block_size_limits(tmp_path: Path, sealed: tuple[Path, KeyMetadata]) -> None:
    path, km = sealed
    for limits in ({"block_size": 4096}, {"max_block_size": BLOCK - 1}):
        with nothing_new_in(tmp_path):
            with pytest.raises(ags1.FormatError):
                ags1.verify_file(path, km, **limits)
            with pytest.raises(ags1.FormatError):
                ags1.decrypt_file(path, tmp_path / "target", km, **limits)
    assert ags1.verify_file(path, km, block_size=BLOCK, max_block_size=1) == len(DATA)


# ---- the target --------------------------------------------------------------------------------

BothCalls = Callable[..., object]


@pytest.fixture(params=["encrypt_file", "decrypt_file"])
def call(
    request: pytest.FixtureRequest, tmp_path: Path, small_limits: None
) -> tuple[BothCalls, Path, bytes]:
    """One of the calls that write, its source, and the plaintext behind it."""
    source = tmp_path / "source"
    if request.param == "encrypt_file":
        source.write_bytes(DATA)
        return functools.partial(ags1.encrypt_file, block_size=BLOCK), source, DATA
    made = ags1.encrypt(DATA, block_size=BLOCK)
    source.write_bytes(made.data)
    return functools.partial(ags1.decrypt_file, km=made.key_metadata), source, DATA


def test_an_existing_target_is_refused(tmp_path: Path, call: tuple[BothCalls, Path, bytes]) -> None:
    run, source, _ = call
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    with nothing_new_in(tmp_path), pytest.raises(FileExistsError) as caught:
        run(source, target)
    assert caught.value.filename == str(target)


def test_an_existing_target_is_replaced_when_asked(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes]
) -> None:
    run, source, _ = call
    target = tmp_path / "target"
    target.write_bytes(b"old")
    old = target.open("rb")
    run(source, target, overwrite=True)
    assert target.stat().st_size >= len(DATA)
    # Another file under the same name: who had the old one open still sees it.
    assert old.read() == b"old"
    old.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "target"]


@pytest.mark.usefixtures("eager_progress")
def test_a_target_that_appears_meanwhile_is_not_replaced(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes]
) -> None:
    run, source, _ = call
    target = tmp_path / "target"
    with pytest.raises(FileExistsError):
        run(source, target, progress=lambda done, total: target.write_bytes(b"another's"))
    assert target.read_bytes() == b"another's"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "target"]


@pytest.mark.usefixtures("eager_progress")
def test_the_target_appears_only_when_whole(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes]
) -> None:
    run, source, _ = call
    target = tmp_path / "target"
    seen = []
    run(source, target, progress=lambda done, total: seen.append(target.exists()))
    assert seen
    assert not any(seen)
    assert target.exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["same path", "other spelling", "hard link", "symlink"])
def test_source_and_target_must_differ(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes], kind: str, overwrite: bool
) -> None:
    run, source, _ = call
    target = tmp_path / "target"
    if kind == "same path":
        target = source
    elif kind == "other spelling":
        (tmp_path / "folder").mkdir()
        target = tmp_path / "folder" / ".." / "source"
    elif kind == "hard link":
        os.link(source, target)
    else:
        target.symlink_to(source)
    with nothing_new_in(tmp_path), pytest.raises(shutil.SameFileError, match="same file"):
        run(source, target, overwrite=overwrite)
    if kind == "symlink":
        with nothing_new_in(tmp_path), pytest.raises(shutil.SameFileError):
            run(target, source, overwrite=overwrite)


def test_a_symlink_as_target_is_followed(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes]
) -> None:
    run, source, _ = call
    (tmp_path / "elsewhere").mkdir()
    end, link = tmp_path / "elsewhere" / "end", tmp_path / "link"
    end.write_bytes(b"old")
    link.symlink_to(end)
    with pytest.raises(FileExistsError):
        run(source, link)
    assert end.read_bytes() == b"old"
    run(source, link, overwrite=True)
    assert link.is_symlink()
    assert end.stat().st_size >= len(DATA)


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    previous = os.umask(mask)
    try:
        yield
    finally:
        os.umask(previous)


@pytest.mark.usefixtures("eager_progress")
@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_the_targets_mode_is_the_sources_less_the_umask(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes], mask: int
) -> None:
    run, source, _ = call
    target = tmp_path / "target"
    modes: set[int] = set()

    def look(done: int, total: int) -> None:
        # Under its temporary name nobody may read it who may not read it afterwards.
        modes.update(stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir() if p != source)

    for mode in (0o600, 0o640, 0o644, 0o444, 0o755, 0o666):
        source.chmod(mode)
        modes.clear()
        with umask(mask), pytest.MonkeyPatch.context() as patch:
            for overwrite in (False, True):
                run(source, target, overwrite=overwrite, durable=False, progress=look)
                assert stat.S_IMODE(target.stat().st_mode) == mode & ~mask
                target.unlink()
                # It may have had no name. The second has one, as where a file must have one.
                assert modes <= {mode & ~mask}
                patch.setattr(atomic, "_NAMELESS", None)
            assert modes == {mode & ~mask}


def test_a_private_file_is_private_and_a_replaced_one_keeps_its_mode(tmp_path: Path) -> None:
    for mask in (0, 0o077):
        with umask(mask):
            private_file.write(str(tmp_path / "key"), b"", overwrite=True, durable=False)
            assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
            (tmp_path / "key").chmod(0o666)
            ags1.open(tmp_path / "key", "wb").close()
            assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o666


def test_setuid_and_its_kind_are_dropped(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes]
) -> None:
    # The target is ours: it must not run or share as its source's owner meant theirs to.
    run, source, _ = call
    target = tmp_path / "target"
    for bits in (stat.S_ISUID, stat.S_ISGID, stat.S_ISVTX):
        source.chmod(0o755 | bits)
        run(source, target, overwrite=True)
        assert stat.S_IMODE(target.stat().st_mode) == 0o755
    target.chmod(0o755 | stat.S_ISUID)
    ags1.open(target, "wb").close()
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


def test_a_dangling_link_is_no_free_name(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes]
) -> None:
    run, source, _ = call
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with nothing_new_in(tmp_path):
        with pytest.raises(FileExistsError):
            run(source, tmp_path / "link")
        with pytest.raises(FileExistsError):
            ags1.open(tmp_path / "link", "xb")
    assert not (tmp_path / "nowhere").exists()


def test_the_path_of_a_target_is_python_s_realpath(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("folder/inner")
    monkeypatch.chdir(tmp_path)
    names = ["x", "./x", "link/x", "link/../x", "folder//x", "/x", f"{tmp_path}/link/\udcff"]
    for name in map(os.fsencode, names):
        assert real_path(name) == os.path.realpath(name)
    assert real_path(b"nowhere/x") is None
    with pytest.raises(ValueError, match="null byte"):
        real_path(b"a\0/x")


def test_durable_syncs_the_file_before_its_name_and_then_the_folder(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, source, _ = call
    steps: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "rename", "link", "replace")}

    def fsync(fd: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        steps.append("sync folder" if is_folder else f"sync {os.fstat(fd).st_size >= len(DATA)}")
        real["fsync"](fd)

    def publish(name: str) -> Callable[..., None]:
        def step(*arguments: Any, **more: Any) -> None:
            # To replace a file takes two such steps.
            steps.extend(["publish"] * (steps[-1:] != ["publish"]))
            real[name](*arguments, **more)

        return step

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("rename", "link", "replace"):
        monkeypatch.setattr(os, name, publish(name))
    run(source, tmp_path / "one")
    assert steps == ["sync True", "publish", "sync folder"]
    steps.clear()
    run(source, tmp_path / "one", overwrite=True)
    assert steps == ["sync True", "publish", "sync folder"]
    steps.clear()
    run(source, tmp_path / "two", durable=False)
    assert steps == ["publish"]


def test_a_failed_sync_leaves_no_target(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, source, _ = call

    def fsync(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with nothing_new_in(tmp_path), pytest.raises(OSError, match="Input/output") as caught:
        run(source, tmp_path / "target")
    assert caught.value.filename == str(tmp_path / "target")


def test_two_calls_for_one_target(tmp_path: Path, call: tuple[BothCalls, Path, bytes]) -> None:
    run, source, _ = call
    target = tmp_path / "target"
    outcomes: list[str] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        try:
            run(source, target, threads=1, durable=False)
            outcomes.append("made")
        except FileExistsError:
            outcomes.append("refused")

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(outcomes) == ["made", "refused", "refused", "refused"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "target"]


# ---- bad sources and targets -------------------------------------------------------------------


def every_call(km: KeyMetadata) -> list[Callable[[Path, Path], object]]:
    return [
        lambda s, t: ags1.encrypt_file(s, t),
        lambda s, t: ags1.decrypt_file(s, t, km),
        lambda s, t: ags1.verify_file(s, km),
    ]


def test_sources_that_are_no_files(tmp_path: Path) -> None:
    km = KeyMetadata(bytes(16), None, 36)
    fifo, folder = tmp_path / "fifo", tmp_path / "folder"
    os.mkfifo(fifo)
    folder.mkdir()
    for run in every_call(km):
        for source, kind in (
            (tmp_path / "missing", FileNotFoundError),
            (folder, IsADirectoryError),
            (fifo, OSError),
            (Path("/dev/null"), OSError),
        ):
            with nothing_new_in(tmp_path), pytest.raises(kind) as caught:
                run(source, tmp_path / "target")
            assert caught.value.filename == str(source)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_source(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"data")
    source.chmod(0)
    for run in every_call(KeyMetadata(bytes(16), None, 36)):
        with pytest.raises(PermissionError) as caught:
            run(source, tmp_path / "target")
        assert caught.value.filename == str(source)


@pytest.mark.parametrize("overwrite", [False, True])
def test_targets_that_cannot_be_made(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes], overwrite: bool
) -> None:
    run, source, _ = call
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.touch()
    for target, kind in (
        (tmp_path / "no" / "folder", FileNotFoundError),
        (folder, (IsADirectoryError, FileExistsError)),
        (file / "below", NotADirectoryError),
        (Path("/dev/full"), OSError),
        (Path("/dev/fd/987654321"), OSError),
    ):
        with nothing_new_in(tmp_path), pytest.raises(kind) as caught:  # type: ignore[arg-type]
            run(source, target, overwrite=overwrite)
        assert caught.value.filename == str(target)


STREAMS = ["pipe", "descriptor of a pipe", "descriptor of a file", "link to a descriptor"]


@contextlib.contextmanager
def stream(kind: str, folder: Path) -> Iterator[tuple[Path, list[bytes]]]:
    """Yield a target that is written as a stream, and a list with what has arrived afterwards. A
    file had content before, and is open for appending."""
    arrived: list[bytes] = []
    path = folder / "stream"
    if kind == "pipe":
        os.mkfifo(path)
        reader = threading.Thread(target=lambda: arrived.append(path.read_bytes()))
        reader.start()
        yield path, arrived
        reader.join()
        assert stat.S_ISFIFO(path.stat().st_mode)
    elif kind == "descriptor of a pipe":
        read, write = os.pipe()
        # In non-blocking mode, what does not fit has to wait for the reader.
        os.set_blocking(write, False)
        with os.fdopen(read, "rb") as file:
            reader = threading.Thread(target=lambda: arrived.append(file.read()))
            reader.start()
            yield Path(f"/dev/fd/{write}"), arrived
            os.close(write)
            reader.join()
    else:
        path.write_bytes(b"before")
        with path.open("ab", 0) as file:
            name = Path(f"/proc/self/fd/{file.fileno()}")
            if kind == "link to a descriptor":
                (folder / "link").symlink_to(name)
                name = folder / "link"
            yield name, arrived
        before, after = path.read_bytes()[:6], path.read_bytes()[6:]
        assert before == b"before"
        arrived.append(after)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux's names of descriptors")
@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_is_written_and_not_replaced(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes], kind: str
) -> None:
    run, source, plaintext = call
    done: list[int] = []
    with stream(kind, tmp_path) as (target, arrived):
        with pytest.raises(OSError):  # noqa: PT011
            AtomicFile(target, overwrite=True)
        result = run(source, target, progress=lambda size, total: done.append(size))
    (data,) = arrived
    if isinstance(result, KeyMetadata):
        prefix = result.aad_prefix
        data = reference.decrypt(data, result.encryption_key, prefix, result.file_length)
    assert data == plaintext
    assert done[-1] == len(plaintext)


@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_gets_nothing_unverified(
    tmp_path: Path, sealed: tuple[Path, KeyMetadata], kind: str
) -> None:
    source, km = sealed
    with source.open("r+b") as file:
        file.seek(layout.block_offset(5 * 256, BLOCK) + 100)
        file.write(b"changed")
    with stream(kind, tmp_path) as (target, arrived), pytest.raises(ags1.AuthenticationError):
        ags1.decrypt_file(source, target, km)
    assert 0 < len(arrived[0]) <= 5 * BATCH
    assert DATA.startswith(arrived[0])
    assert len(arrived[0]) % BLOCK == 0


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("kind", STREAMS)
def test_an_aborted_stream_cannot_be_taken_for_a_whole_file(tmp_path: Path, kind: str) -> None:
    km = KeyMetadata.generate()
    with stream(kind, tmp_path) as (target, arrived):
        file = ags1.open(target, "wb", km, block_size=BLOCK)
        file.write(DATA[: 2 * BATCH])
        file.abort()
    (data,) = arrived
    with pytest.raises(ags1.Ags1Error):
        ags1.decrypt(data, km.with_file_length(len(data)))


def test_a_source_is_not_appended_to_itself(tmp_path: Path, plain: Path) -> None:
    with plain.open("ab") as file, pytest.raises(shutil.SameFileError):
        ags1.encrypt_file(plain, f"/dev/fd/{file.fileno()}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("kind", ["pipe", "/dev/null", "file", "descriptor"])
def test_another_users_pipe_or_link_in_a_shared_folder_is_refused(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes], kind: str
) -> None:
    run, source, _ = call
    shared, end, own_link = tmp_path / "shared", tmp_path / "end", tmp_path / "own link"
    shared.mkdir()
    shared.chmod(0o1777)
    end.write_bytes(b"precious")
    planted = shared / "planted"
    with end.open("ab") as file:
        if kind == "pipe":
            os.mkfifo(planted)
        else:
            ends = {"file": end, "descriptor": f"/dev/fd/{file.fileno()}"}
            planted.symlink_to(ends.get(kind, kind))
        os.chown(planted, 12345, -1, follow_symlinks=False)
        own_link.symlink_to(planted)
        reader = os.open(planted, os.O_RDONLY | os.O_NONBLOCK)
        for target in (planted, own_link):
            with pytest.raises(PermissionError):
                run(source, target, overwrite=True)
        if kind == "pipe":
            assert os.read(reader, 100) == b""
        os.close(reader)
    assert end.read_bytes() == b"precious"


@pytest.mark.parametrize("number", ["4294967296", "9" * 20, "9" * 5000])
def test_a_descriptor_that_cannot_be_is_an_oserror(plain: Path, number: str) -> None:
    for run in (ags1.encrypt_file, lambda *paths: ags1.open(paths[1], "wb")):
        with pytest.raises(OSError, match=number):
            run(plain, f"/dev/fd/{number}")


@pytest.mark.parametrize(
    "content", [b"", b"A", b"AGS1", b"AGS1\0\0\x10", b"PAR1 plain data, not encrypted", bytes(100)]
)
def test_sources_that_are_not_ags1(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "source"
    source.write_bytes(content)
    for length in (len(content), 36):
        km = KeyMetadata(bytes(16), None, length)
        for run in every_call(km)[1:]:
            with nothing_new_in(tmp_path):
                with pytest.raises((ags1.FormatError, ags1.TruncatedError)) as caught:
                    run(source, tmp_path / "target")
            assert caught.value.file == str(source)
            assert str(source) in str(caught.value)


@pytest.mark.parametrize("count", [0, -1])
def test_there_is_at_least_one_thread(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes], count: int
) -> None:
    run, source, _ = call
    with nothing_new_in(tmp_path), pytest.raises(ValueError, match="thread"):
        run(source, tmp_path / "target", threads=count)


def test_errors_name_file_block_and_offset(
    tmp_path: Path, sealed: tuple[Path, KeyMetadata]
) -> None:
    path, km = sealed
    with path.open("r+b") as file:
        file.seek(layout.block_offset(1800, BLOCK) + 100)
        file.write(b"changed")
    for count in (1, 2, 3):
        for run in (
            lambda c=count: ags1.verify_file(path, km, threads=c),
            lambda c=count: ags1.decrypt_file(path, tmp_path / "target", km, threads=c),
        ):
            with nothing_new_in(tmp_path), pytest.raises(ags1.AuthenticationError) as caught:
                run()
            error = caught.value
            assert (error.file, error.block) == (str(path), 1800)
            assert error.offset == layout.block_offset(1800, BLOCK)
            assert str(path) in str(error)
            assert "block 1800" in str(error)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts in /proc")
def test_no_descriptor_or_thread_is_left_behind(
    tmp_path: Path, plain: Path, sealed: tuple[Path, KeyMetadata]
) -> None:
    path, km = sealed
    target = tmp_path / "target"

    def fail(done: int, total: int) -> None:
        raise RuntimeError

    def attempts() -> None:
        for run in (
            lambda: ags1.encrypt_file(plain, tmp_path / "no" / "folder"),
            lambda: ags1.encrypt_file(plain, plain),
            lambda: ags1.encrypt_file(plain, target, progress=fail),
            lambda: ags1.decrypt_file(path, target, KeyMetadata(bytes(16), None, 36)),
            lambda: ags1.decrypt_file(path, target, km.with_file_length(1)),
            lambda: ags1.decrypt_file(path, target, km, progress=fail),
            lambda: ags1.verify_file(path, km, progress=fail),
            lambda: ags1.verify_file(plain, km),
        ):
            with pytest.raises((ags1.Ags1Error, OSError, RuntimeError)):
                run()
        ags1.verify_file(path, km)

    attempts()
    before = os.listdir("/proc/self/fd"), threading.active_count()
    for _ in range(3):
        attempts()
    assert (os.listdir("/proc/self/fd"), threading.active_count()) == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts in /proc")
@pytest.mark.usefixtures("eager_progress")
def test_many_threads_share_their_descriptors(tmp_path: Path, plain: Path) -> None:
    sealed, again = tmp_path / "sealed", tmp_path / "again"
    counts = set()

    def count(done: int, total: int) -> None:
        counts.add(len(os.listdir("/proc/self/fd")))

    more: dict[str, Any] = {"threads": 100, "durable": False, "progress": count}
    before = len(os.listdir("/proc/self/fd"))
    km = ags1.encrypt_file(plain, sealed, block_size=BLOCK, **more)
    ags1.decrypt_file(sealed, again, km, **more)
    assert again.read_bytes() == DATA
    assert max(counts) <= before + 4


# ---- progress and interruption -----------------------------------------------------------------


@pytest.mark.usefixtures("eager_progress")
@threads
def test_progress(tmp_path: Path, plain: Path, threads: int | None) -> None:
    sealed, again = tmp_path / "sealed", tmp_path / "again"
    calls: list[tuple[int, int, int]] = []
    more: dict[str, Any] = {
        "threads": threads,
        "progress": lambda done, total: calls.append((done, total, threading.get_ident())),
    }
    km = ags1.encrypt_file(plain, sealed, block_size=BLOCK, **more)
    for run in (
        lambda: None,
        lambda: ags1.decrypt_file(sealed, again, km, **more),
        lambda: ags1.verify_file(sealed, km, **more),
    ):
        run()
        assert {total for _, total, _ in calls} == {len(DATA)}
        assert {who for _, _, who in calls} == {threading.get_ident()}
        done = [d for d, _, _ in calls]
        assert done == sorted(done)
        assert done[0] >= 0
        assert done[-1] == len(DATA)
        calls.clear()


@pytest.mark.parametrize("size", [0, 1, 100])
def test_progress_of_small_files_ends_at_all(tmp_path: Path, size: int) -> None:
    plain, calls = tmp_path / "plain", []
    plain.write_bytes(bytes(size))
    km = ags1.encrypt_file(
        plain, tmp_path / "sealed", progress=lambda done, total: calls.append((done, total))
    )
    ags1.verify_file(
        tmp_path / "sealed", km, progress=lambda done, total: calls.append((done, total))
    )
    assert calls[-1] == (size, size)
    assert len(calls) >= 2


@pytest.mark.usefixtures("eager_progress")
@pytest.mark.parametrize("at", ["first", "last"])
@threads
def test_what_progress_raises_ends_the_call(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes], at: str, threads: int | None
) -> None:
    run, source, _ = call
    kind: type[BaseException]

    def progress(done: int, total: int) -> None:
        if at == "first" or done == total:
            raise kind

    for kind in (KeyboardInterrupt, RuntimeError, SystemExit, MemoryError):
        with nothing_new_in(tmp_path), pytest.raises(kind):
            run(source, tmp_path / "target", threads=threads, progress=progress)


def test_an_oserror_of_progress_keeps_its_own_name(
    tmp_path: Path, call: tuple[BothCalls, Path, bytes]
) -> None:
    run, source, _ = call

    def progress(done: int, total: int) -> None:
        raise BrokenPipeError(32, "Broken pipe", "the terminal")

    with nothing_new_in(tmp_path), pytest.raises(BrokenPipeError) as caught:
        run(source, tmp_path / "target", progress=progress)
    assert caught.value.filename == "the terminal"


INTERRUPTED = """
import os, signal, sys, threading
import ags1
source, target = sys.argv[1:]
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        ags1.encrypt_file(source, target, durable=False, overwrite=True)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_cleans_up(run_python: RunPython, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.truncate(48 * MIB)
    for _ in range(3):
        assert run_python(INTERRUPTED, source, target).stdout == "interrupted\n"
        left = {p.name for p in tmp_path.iterdir()} - {"source"}
        assert left <= {"target"}
        if target.exists():
            assert target.stat().st_size == layout.encrypted_size(48 * MIB)


def test_no_python_runs_when_a_finished_file_is_dropped(tmp_path: Path) -> None:
    """Python ignores the KeyboardInterrupt of a signal that arrives in a ``__del__``."""
    (tmp_path / "source").write_bytes(b"x")
    called: set[str] = set()
    sys.setprofile(lambda frame, *_: called.add(frame.f_code.co_name))
    try:
        ags1.encrypt_file(tmp_path / "source", tmp_path / "target")
    finally:
        sys.setprofile(None)
    assert "commit" in called
    assert not called & {"__del__", "drop", "discard"}


def test_a_signal_handler_runs_while_a_file_is_encrypted(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(64 * MIB)
    heard: list[float] = []
    previous = signal.signal(signal.SIGALRM, lambda *_: heard.append(time.perf_counter()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        ags1.encrypt_file(source, tmp_path / "target", threads=1, durable=False)
        end = time.perf_counter()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert heard
    assert heard[0] < end


# ---- a source that changes meanwhile -----------------------------------------------------------


@pytest.mark.usefixtures("eager_progress")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("change", ["grow", "shrink", "rewrite"])
def test_a_source_that_changes_is_refused(tmp_path: Path, change: str, threads: int) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.truncate(64 * MIB)
    os.utime(source, (1, 1))
    changed = []

    def progress(done: int, total: int) -> None:
        if changed:
            return
        changed.append(True)
        with source.open("r+b") as file:
            if change == "grow":
                file.truncate(65 * MIB)
            elif change == "shrink":
                file.truncate(1 * MIB)
            else:
                file.write(b"rewritten")

    with pytest.raises(ags1.Ags1Error) as caught:
        ags1.encrypt_file(source, target, threads=threads, durable=False, progress=progress)
    assert caught.value.file == str(source)
    assert changed
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


@pytest.mark.usefixtures("eager_progress")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_sealed_source_cut_meanwhile_is_refused(tmp_path: Path, threads: int) -> None:
    plain, source, target = tmp_path / "plain", tmp_path / "source", tmp_path / "target"
    with plain.open("wb") as file:
        file.truncate(64 * MIB)
    km = ags1.encrypt_file(plain, source, durable=False)
    plain.unlink()
    done_before: list[int] = []

    def progress(done: int, total: int) -> None:
        done_before.append(done)
        os.truncate(source, 1 * MIB)

    for run in (
        lambda: ags1.decrypt_file(source, target, km, threads=threads, progress=progress),
        lambda: ags1.verify_file(source, km, threads=threads, progress=progress),
    ):
        caught: ags1.Ags1Error | None = None
        try:
            run()
        except (ags1.TruncatedError, ags1.AuthenticationError) as error:
            caught = error
        if caught is None:
            # Cut after its last block was read.
            assert done_before[0] == 64 * MIB
        else:
            assert caught.file == str(source)
            assert not target.exists()
        done_before.clear()
        target.unlink(missing_ok=True)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_a_long_name_that_is_not_ascii(tmp_path: Path) -> None:
    # File systems count bytes: this name has 240 of them in 80 characters.
    source, target = tmp_path / "plain", tmp_path / ("€" * 80)
    source.write_bytes(b"data")
    km = ags1.encrypt_file(source, target)
    assert ags1.decrypt(target.read_bytes(), km) == b"data"


def test_a_file_without_a_size_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    source = Path("/proc/self/status")
    if not source.exists() or source.stat().st_size:
        pytest.skip("there is no such file here")
    with nothing_new_in(tmp_path):
        with pytest.raises(ags1.Ags1Error, match="size") as caught:
            ags1.encrypt_file(source, tmp_path / "target")
    assert caught.value.file == str(source)


def kernel_calls_to_write() -> int:
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["syscw"])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts the calls")
@pytest.mark.parametrize("where", ["disk", "memory"])
def test_only_files_on_disks_are_written_in_small_pieces(tmp_path: Path, where: str) -> None:
    folder = tmp_path if where == "disk" else Path(tempfile.mkdtemp(dir="/dev/shm"))
    kind = ["stat", "--file-system", "--format=%T", str(folder)]
    found = subprocess.run(kind, capture_output=True, text=True, check=True).stdout.strip()
    if (found == "tmpfs") != (where == "memory"):
        pytest.skip(f"the folder is on {found}")
    try:
        (tmp_path / "plain").write_bytes(LARGE)
        before = kernel_calls_to_write()
        km = ags1.encrypt_file(tmp_path / "plain", folder / "sealed", threads=1)
        between = kernel_calls_to_write()
        ags1.decrypt_file(folder / "sealed", folder / "opened", km, threads=1)
        after = kernel_calls_to_write()
        # Six blocks, each in one call or in sixteen.
        for count in (between - before, after - between):
            assert count > 5 * 16 if where == "disk" else count < 16
        assert (folder / "opened").read_bytes() == LARGE
    finally:
        if where == "memory":
            shutil.rmtree(folder)
