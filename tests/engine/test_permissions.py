"""Owners, groups and permission bits of what is written, and file systems that refuse to set them
or to remove a file. The expected values are the system's own: what ``stat`` says."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import RunPython

import ags1
from ags1.errors import FileWarning
from ags1.host import atomic, private_file

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
NOBODY = 65534
DATA = bytes(5000)


def opened(path: Path) -> None:
    with ags1.open(path, "wb") as file:
        file.write(DATA)


def encrypted(path: Path) -> None:
    source = path.with_suffix(".source")
    source.write_bytes(DATA)
    ags1.encrypt_file(source, path, overwrite=True)


def decrypted(path: Path) -> None:
    stored = path.with_suffix(".stored")
    with ags1.open(stored, "wb") as file:
        file.write(DATA)
    ags1.decrypt_file(stored, path, file.key_metadata, overwrite=True)


def private(path: Path) -> None:
    private_file.write(str(path), DATA, overwrite=True, durable=True)


WRITERS = [opened, encrypted, decrypted, private]


@pytest.fixture(params=[True, False], ids=["nameless", "temporary"])
def nameless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(atomic, "_NAMELESS", None)


@is_root
@pytest.mark.usefixtures("nameless")
@pytest.mark.parametrize("write", WRITERS)
def test_who_replaces_a_file_does_not_take_it(tmp_path: Path, write: Callable[..., None]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    os.chown(path, 1234, 2345)
    write(path)
    status = path.stat()
    assert (status.st_uid, status.st_gid) == (1234, 2345)
    assert path.read_bytes() != b"old"


# The extensions are loaded before the user changes, who may not be able to read them.
REPLACING = f"""
import os, sys
import ags1
ags1.open, ags1.encrypt_file
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
with ags1.open(sys.argv[1], "wb") as file:
    file.write(b"new")
"""


@is_root
@pytest.mark.parametrize(
    ("group", "mode", "expected"),
    [
        (0, 0o664, 0o644),  # not a group of this user: theirs may do what all may
        (0, 0o640, 0o600),
        (NOBODY, 0o660, 0o660),
    ],
)
def test_who_may_not_give_a_file_away_is_told(
    run_python: RunPython, group: int, mode: int, expected: int
) -> None:
    # pytest's own folders are this user's alone.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = Path(folder, "file")
        path.write_bytes(b"old")
        os.chown(path, 0, group)
        path.chmod(mode)
        said = run_python(REPLACING, path).stderr
        status = path.stat()
    assert f"should belong to user 0 and group {group}, and belongs to user {NOBODY}" in said
    assert (status.st_uid, status.st_gid) == (NOBODY, NOBODY)
    assert stat.S_IMODE(status.st_mode) == expected


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.usefixtures("nameless")
@pytest.mark.parametrize("write", WRITERS)
def test_a_file_is_replaced_where_modes_cannot_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    path = tmp_path / "file"
    write(path)
    path.chmod(0o644)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fchmod", refuse)
    write(path)
    # All but a private file are encrypted anew, or decrypted.
    assert (path.read_bytes() != before) == (write in (opened, encrypted))


def test_a_file_that_would_be_open_to_more_users_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    opened(path)
    path.chmod(0o600)
    before = path.read_bytes()
    own = os.fstat

    def wide(fd: int) -> os.stat_result:
        """As CIFS shows each file: with the mode of the mount."""
        status = own(fd)
        return os.stat_result([status.st_mode | 0o777, *status[1:]])

    monkeypatch.setattr(os, "fchmod", refuse)
    monkeypatch.setattr(os, "fstat", wide)
    with pytest.raises(PermissionError):
        opened(path)
    monkeypatch.undo()
    assert path.read_bytes() == before


@contextlib.contextmanager
def append_only(folder: Path) -> Iterator[None]:
    done = subprocess.run(["chattr", "+a", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no append-only folders here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-a", folder], check=True)


@is_root
@pytest.mark.parametrize("fault", ["in a block", "at the end"])
def test_no_plaintext_stays_where_nothing_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(atomic, "_NAMELESS", None)
    stored, folder = tmp_path / "stored", tmp_path / "folder"
    folder.mkdir()
    with ags1.open(stored, "wb", block_size=4096) as file:
        file.write(b"secret" * 5000)
    expected: Any = PermissionError  # to replace a file is to remove one
    (folder / "file").write_bytes(b"old")
    if fault == "in a block":
        data = bytearray(stored.read_bytes())
        data[-1] ^= 1
        stored.write_bytes(data)
        expected = ags1.AuthenticationError
    with append_only(folder):
        with pytest.warns(FileWarning, match=r"\.ags1-.*\.tmp: .*it is empty now: remove it"):
            with pytest.raises(expected):
                ags1.decrypt_file(stored, folder / "file", file.key_metadata, overwrite=True)
    left = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert left.pop("file") == b"old"
    assert list(left.values()) == [b""]


@is_root
def test_a_new_file_appears_where_nothing_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_NAMELESS", None)
    folder = tmp_path / "folder"
    folder.mkdir()
    with append_only(folder):
        with pytest.warns(FileWarning, match="it has the same content: remove it"):
            with ags1.open(folder / "file", "xb") as file:
                file.write(DATA)
    assert (folder / "file").stat().st_nlink == 2


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no FUSE here")
@is_root
def test_bindfs_that_refuses_modes(tmp_path: Path, run_python: RunPython) -> None:
    """A real file system that refuses them, if bindfs is installed."""
    below, mount = tmp_path / "below", tmp_path / "mount"
    below.mkdir()
    mount.mkdir()
    try:
        done = subprocess.run(["bindfs", "--chmod-deny", below, mount], capture_output=True)
    except FileNotFoundError:
        pytest.skip("no bindfs here")
    if done.returncode:
        pytest.skip("bindfs cannot mount here")
    try:
        for write in WRITERS:
            path = mount / write.__name__
            path.write_bytes(b"old")
            write(path)
            assert path.read_bytes() != b"old"
    finally:
        subprocess.run(["fusermount", "-u", mount], check=True)


NO_THREADS = f"""
import os, resource, sys
import ags1
from ags1.host import threads
ags1.open, ags1.encrypt_file, ags1.encrypt_many
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    threads.start_new_thread(print, ())
    sys.exit("threads can be started")
except RuntimeError:
    pass
os.chdir(sys.argv[1])
data = os.urandom(1 << 20) * 17
with open("plain", "wb") as file:
    file.write(data)
km = ags1.encrypt_file("plain", "sealed", threads=4)
assert ags1.verify_file("sealed", km) == len(data)
assert ags1.decrypt_file("sealed", "again", km, threads=1) == len(data)
with ags1.open("stream", "wb", threads=4) as file:
    file.write(data)
with ags1.open("stream", "rb", file.key_metadata, threads=4) as file:
    assert file.read() == data
parts = [data[n : n + 5000] for n in range(0, 5_000_000, 5000)]
sealed = ags1.encrypt_many(parts, threads=4)
assert list(map(bytes, ags1.decrypt_many(sealed, threads=4))) == parts
"""


@is_root
def test_the_caller_does_the_work_if_no_thread_can_be_started(run_python: RunPython) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        run_python(NO_THREADS, folder)
