"""The command line: what it writes, what it says, and what it leaves behind when it fails."""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import functools
import inspect
import io
import json
import os
import platform
import pty
import re
import resource
import select
import signal
import ssl
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import forked
import fsspec
import pytest
from click.testing import CliRunner, Result
from conftest import RunPython, python_environment

import ags1
from ags1.cli.app import app
from ags1.cli.console import Output
from ags1.cli.exits import EXIT_STATUS, Exit
from ags1.cli.files.encrypting import EncryptingOptions, encrypt
from ags1.cli.files.sources import Job
from ags1.cli.report import Report
from ags1.engine.writer import Writer
from ags1.files.sidecars import OldKeys
from ags1.host import cpu
from ags1.keys import Keychain, Sidecar, keychain, read_sidecar
from ags1.kms import LocalKms, create_key

BLOCK = 1 << 20
# With blocks this small, a file of this size takes eight seconds.
TAKES_LONG = ("--block-size", "16")
LONG = 1 << 28
TEXT = b"some text, 26 bytes of it\n"
VECTORS = Path(__file__).parents[1] / "vectors"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and a keyring with a key 'default' elsewhere."""
    for variable in [name for name in os.environ if name.startswith("AGS1_K")] + ["AGS1_CONFIG"]:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    create_key(str(tmp_path / "config" / "ags1" / "keyring.json"), "default")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def run(*arguments: object, data: bytes = b"") -> Result:
    """Run the command line in this process."""
    # Before click 8.2 the two outputs are mixed unless told.
    split = "mix_stderr" in inspect.signature(CliRunner).parameters
    runner = CliRunner(mix_stderr=False) if split else CliRunner()  # type: ignore[call-arg]
    result = runner.invoke(app, [str(argument) for argument in arguments], input=data)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def succeed(*arguments: object, data: bytes = b"") -> Result:
    result = run(*arguments, data=data)
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return result


def fail(code: int, *arguments: object, data: bytes = b"") -> str:
    """Expect an exit code and one line about it; return the line."""
    result = run(*arguments, data=data)
    assert result.exit_code == code, result.stderr
    assert result.stderr.endswith("\n")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("ags1")
    assert "Traceback" not in result.stderr
    return result.stderr


def start(*arguments: object, anew: bool = False, **options: Any) -> subprocess.Popen[bytes]:
    """Start the command line in a process of its own: a fork of this one or, ``anew``, a new
    Python, for what Python does itself when it starts or ends."""
    options = {
        "env": python_environment(),
        "stdin": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
        **options,
    }
    words = [str(argument) for argument in arguments]
    if anew:
        return subprocess.Popen([sys.executable, "-m", "ags1", *words], **options)
    return forked.popen(words, **options)


def execute(*arguments: object, **options: Any) -> tuple[int, bytes, bytes]:
    """Run the command line in a process of its own; return exit code, output and errors."""
    with start(*arguments, **{"stdout": subprocess.PIPE, **options}) as process:
        out, errors = process.communicate(timeout=120)
    return process.returncode, out, errors


def names(folder: Path) -> list[str]:
    """Return all files below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_writing(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Whether there is a block in an output that a process writes: with a temporary name, or
    without a name, which Linux calls "deleted"."""
    paths = list(folder.glob(".ags1-*.tmp"))
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{process.pid}/fd").iterdir():
            paths += [path] * os.readlink(path).endswith("(deleted)")
    with contextlib.suppress(FileNotFoundError):
        return any(path.stat().st_size >= BLOCK for path in paths)
    return False


# -- the main road


@pytest.mark.parametrize("size", [0, 1, 1000, BLOCK, 5 * BLOCK + 1])
def test_a_file_comes_back(home: Path, size: int) -> None:
    data = os.urandom(size)
    source = home / "a.avro"
    source.write_bytes(data)
    source.chmod(0o640)
    assert succeed("encrypt", "a.avro").stdout == ""
    assert names(home) == ["a.avro", "a.avro.ags1", "a.avro.ags1.keys"]
    assert stat.S_IMODE((home / "a.avro.ags1").stat().st_mode) == 0o640
    assert stat.S_IMODE((home / "a.avro.ags1.keys").stat().st_mode) == 0o640
    source.unlink()
    assert succeed("verify", "a.avro.ags1").stdout == "a.avro.ags1: OK\n"
    assert succeed("cat", "a.avro.ags1").stdout_bytes == data
    succeed("decrypt", "a.avro.ags1")
    assert source.read_bytes() == data
    assert names(home) == ["a.avro", "a.avro.ags1", "a.avro.ags1.keys"]


def test_every_file_has_a_key_of_its_own_and_a_run_one_kek(home: Path) -> None:
    for name in ("a", "b"):
        (home / name).write_bytes(TEXT)
    succeed("encrypt", "a", "b")
    sidecars = [read_sidecar(f"{name}.ags1.keys") for name in ("a", "b")]
    assert sidecars[0].encryption_keys[0] == sidecars[1].encryption_keys[0]
    assert sidecars[0].encryption_keys[1] != sidecars[1].encryption_keys[1]
    keychain = Keychain(LocalKms(), "")
    keys = [keychain.open(f"{name}.ags1.keys", None) for name in ("a", "b")]
    assert len(keys[0].encryption_key) == 32
    assert keys[0].encryption_key != keys[1].encryption_key
    assert keys[0].aad_prefix != keys[1].aad_prefix
    assert keys[0].file_length == (home / "a.ags1").stat().st_size


def test_the_library_opens_what_the_command_line_wrote(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a", "--block-size", "16")
    km = Keychain(LocalKms(), "").open("a.ags1.keys", None)
    with ags1.open("a.ags1", "rb", km) as file:
        assert file.read() == TEXT
        assert file.block_size == 16


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_block_size(home: Path, threads: int) -> None:
    data = os.urandom(6 * BLOCK)
    (home / "a").write_bytes(data)
    succeed("encrypt", "a", "--threads", threads, "--block-size", "64K", "--no-fsync")
    succeed("decrypt", "a.ags1", "-o", "b", "--threads", threads, "--no-fsync")
    assert (home / "b").read_bytes() == data
    assert "(see --max-block-size)" in fail(4, "verify", "a.ags1", "--max-block-size", "1K")


@pytest.mark.parametrize("size", ["0", "x", "1X", "-1", "65M", "1.5M", "9" * 30, ""])
def test_a_wrong_block_size_is_wrong_usage(home: Path, size: str) -> None:
    (home / "a").write_bytes(TEXT)
    assert "--block-size" in fail(2, "encrypt", "a", f"--block-size={size}")


def test_keys_by_name_and_keyring(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    keyring = home / "k.json"
    done = succeed("keygen", "--name", "backup-2026", "--keyring", keyring)
    assert "backup-2026" in done.stdout
    succeed("encrypt", "a", "--key", "backup-2026", "--keyring", keyring)
    assert read_sidecar("a.ags1.keys").encryption_keys[0].encrypted_by_id == "backup-2026"
    succeed("verify", "a.ags1", "--keyring", keyring)
    assert "no master key 'backup-2026'" in fail(5, "verify", "a.ags1")
    assert (
        execute("verify", "a.ags1", env=python_environment() | {"AGS1_KEYRING": str(keyring)})[0]
        == 0
    )


def test_keygen_keeps_a_key_that_is_there() -> None:
    assert "already" in fail(5, "keygen")


def test_keygen_prints_json() -> None:
    done = json.loads(succeed("keygen", "--name", "b", "--json").stdout)
    assert (done["name"], done["version"], done["ok"]) == ("b", 1, True)
    assert Path(done["keyring"]).is_file()


# -- ranges


def test_cat_prints_ranges(home: Path) -> None:
    data = os.urandom(3 * 4096 + 5)
    (home / "a").write_bytes(data)
    succeed("encrypt", "a", "--block-size", "4K")
    for offset, length in [(0, 0), (0, 1), (4095, 2), (5000, 5000), (12288, 100), (99999, 5)]:
        done = succeed("cat", "a.ags1", "--offset", offset, "--length", length)
        assert done.stdout_bytes == data[offset : offset + length]
    assert succeed("cat", "a.ags1", "--offset", "4K").stdout_bytes == data[4096:]


def test_a_range_needs_only_its_own_blocks(home: Path) -> None:
    (home / "a").write_bytes(bytes(5 * 4096))
    succeed("encrypt", "a", "--block-size", "4K")
    flip(home / "a.ags1", 8 + 2 * 4124 + 100)
    assert succeed("cat", "a.ags1", "--offset", "12K", "--length", "8K").stdout_bytes == bytes(8192)
    assert "block 2" in fail(7, "cat", "a.ags1", "--offset", "8K", "--length", "1")


def test_cat_joins_files_but_no_ranges(home: Path) -> None:
    for name in ("a", "b"):
        (home / name).write_bytes(name.encode() * 3)
    succeed("encrypt", "a", "b")
    assert succeed("cat", "a.ags1", "b.ags1").stdout == "aaabbb"
    fail(2, "cat", "a.ags1", "b.ags1", "--length", "1")


def test_cat_prints_nothing_of_a_bad_block(home: Path) -> None:
    data = os.urandom(3 * BLOCK)
    (home / "a").write_bytes(data)
    succeed("encrypt", "a")
    flip(home / "a.ags1", 2 * (BLOCK + 28) - 100)
    result = run("cat", "a.ags1")
    assert result.exit_code == 7
    assert result.stdout_bytes == data[:BLOCK]


# -- folders


def make_tree(folder: Path) -> dict[str, bytes]:
    files = {"x.avro": b"x", "sub/y.avro": b"y" * 100, "sub/deep/z": b"", "sub/ ü\n": b"odd"}
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return files


def test_a_folder_keeps_its_tree(home: Path) -> None:
    files = make_tree(home / "in")
    (home / "in" / "sub").chmod(0o700)
    succeed("encrypt", "in", "-o", "sealed")
    assert names(home / "sealed") == sorted(
        name + suffix for name in files for suffix in (".ags1", ".ags1.keys")
    )
    assert stat.S_IMODE((home / "sealed" / "sub").stat().st_mode) == 0o700
    assert succeed("verify", "sealed").stdout.count(": OK\n") == len(files)
    succeed("decrypt", "sealed", "-o", "back")
    assert {name: (home / "back" / name).read_bytes() for name in names(home / "back")} == files


def test_a_folder_is_encrypted_in_place_and_again_only_where_new(home: Path) -> None:
    files = make_tree(home / "in")
    succeed("encrypt", "in")
    assert len(names(home / "in")) == 3 * len(files)
    (home / "in" / "new").write_bytes(TEXT)
    before = names(home / "in")
    result = run("encrypt", "in")
    # What is encrypted already is passed over; the plain files whose results are there fail.
    assert result.exit_code == 6
    assert "skipped" in result.stderr
    assert set(names(home / "in")) - set(before) == {"new.ags1", "new.ags1.keys"}


def test_existing_pairs_are_skipped_on_demand(home: Path) -> None:
    make_tree(home / "in")
    succeed("encrypt", "in")
    before = {name: (home / "in" / name).read_bytes() for name in names(home / "in")}
    message = fail(6, "encrypt", "in/x.avro")
    assert "--force" in message
    assert "--skip-existing" in message
    (home / "in" / "new").write_bytes(TEXT)
    result = run("encrypt", "in", "--skip-existing", "--json", "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["ok"] for line in lines] == [True] * 5
    assert [line["file"] for line in lines if not line.get("skipped")] == ["in/new"]
    assert {name: (home / "in" / name).read_bytes() for name in before} == before
    os.utime(home / "in" / "x.avro", (2e9, 2e9))
    said = run("encrypt", "in", "--skip-existing").stderr
    assert "done already: 4, changed after it was encrypted: 1)" in said
    assert "cannot be used together" in fail(2, "encrypt", "in", "--skip-existing", "--force")


def test_a_file_without_its_sidecar_is_not_skipped(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    (home / "a.ags1.keys").unlink()
    message = fail(5, "encrypt", "a", "--skip-existing")
    assert message.startswith("ags1: a.ags1.keys: this sidecar is missing")
    assert "--force" in message
    assert names(home) == ["a", "a.ags1"]


def test_a_run_killed_between_sidecar_and_file_is_taken_up(home: Path) -> None:
    for name in ("a", "b"):
        (home / name).write_bytes(TEXT)
    succeed("encrypt", "a")
    # The file was not lost, only moved: its key has to survive.
    (home / "a.ags1").rename(home / "moved.ags1")
    assert "exists already" in fail(6, "encrypt", "a")
    assert run("encrypt", "a", "b", "--skip-existing").exit_code == 0
    succeed("verify", "a.ags1", "b.ags1")
    succeed("verify", "moved.ags1", "--sidecar", "a.ags1.keys")
    said = run("encrypt", "a", "b", "--skip-existing").stderr
    assert said == "ags1: 0 encrypted, 2 skipped (done already: 2)\n"


def test_what_is_no_orphan_sidecar_is_left_alone(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    (home / "a.ags1.keys").write_bytes(b"something else")
    assert "exists already" in fail(6, "encrypt", "a", "--skip-existing")
    assert (home / "a.ags1.keys").read_bytes() == b"something else"
    (home / "a.ags1.keys").unlink()
    (home / "a.ags1.keys").mkdir()
    assert "a.ags1.keys: Is a directory" in fail(6, "encrypt", "a", "--skip-existing")
    assert names(home) == ["a"]


def test_an_orphan_sidecar_outlives_a_failure(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    file = (home / "a.ags1").read_bytes()
    (home / "a.ags1").unlink()
    before = (home / "a.ags1.keys").read_bytes()

    def another_run_is_first(temporary: str, target: str, **_: object) -> None:
        Path(target).write_bytes(file)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)

    monkeypatch.setattr("ags1.files.sidecars.give_name", another_run_is_first)
    assert "exists already" in fail(6, "encrypt", "a", "--skip-existing")
    assert (home / "a.ags1.keys").read_bytes() == before
    assert names(home) == ["a", "a.ags1", "a.ags1.keys"]
    succeed("verify", "a.ags1")


def test_skipping_everything_asks_no_kms(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    result = run("encrypt", "a", "--skip-existing", "--key", "not there")
    assert result.exit_code == 0


def test_an_encrypted_file_is_encrypted_again_only_on_demand(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    (home / "plain.ags1").write_bytes(TEXT)
    succeed("encrypt", "a")
    before = names(home)
    for arguments in (["a.ags1"], ["a.ags1.keys"], ["a.ags1", "--force"]):
        assert "encrypted already (--again" in fail(6, "encrypt", *arguments)
    assert names(home) == before
    result = run("encrypt", "a", "a.ags1", "a.ags1.keys", "--skip-existing")
    assert result.exit_code == 0
    assert result.stderr.count("\n") == 1
    assert "0 encrypted, 3 skipped (encrypted already: 2, done already: 1)" in result.stderr
    assert names(home) == before
    succeed("encrypt", "plain.ags1", "a.ags1", "--again")
    succeed("decrypt", "a.ags1.ags1", "-o", "b")
    assert (home / "b").read_bytes() == (home / "a.ags1").read_bytes()


def test_a_nightly_run_passes_over_keys_and_says_one_line(home: Path) -> None:
    """By their contents: a keyring and a sidecar may have any name."""
    (home / "in").mkdir()
    succeed("keygen", "--keyring", "in/ring")
    succeed("key", "rotate", "default", "--keyring", "in/ring")
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a", "--sidecar", "in/renamed.json")
    (home / "in" / "x.keys").write_bytes(TEXT)
    (home / "in" / "other.lock").write_bytes(b"")
    (home / "in" / "other.json").write_bytes(b"{}")
    result = run("encrypt", "in", "--skip-existing")
    assert (result.exit_code, result.stdout) == (0, "")
    skipped = "3 skipped (sidecar: 1, keyring: 1, lock of a keyring: 1)"
    assert result.stderr == f"ags1: 3 encrypted, {skipped}\n"
    result = run("encrypt", "in", "--skip-existing", "--verbose")
    assert "ags1: in/ring: skipped: keyring\n" in result.stderr
    assert result.stderr.count("\n") == 1 + 3 + 3 + 6
    assert run("encrypt", "in", "--skip-existing", "--quiet").stderr == ""


def test_a_sidecar_named_as_a_file_is_told(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    for command in ("inspect", "verify", "cat"):
        said = fail(4, command, "a.ags1.keys")
        assert "this is a sidecar, not an encrypted file: name a.ags1\n" in said


def test_a_missing_file_is_told_before_a_missing_keyring(home: Path) -> None:
    said = fail(6, "encrypt", "nothere.csv", "--keyring", "nothing")
    assert said == "ags1: nothere.csv: No such file or directory\n"
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    said = fail(5, "decrypt", "a.ags1", "-o", "b", "--keyring", "nothing")
    assert "there is no keyring nothing" in said
    assert "To encrypt for the first time, make one: ags1 keygen. A new keyring opens" in said
    assert "restore the keyring from a backup" in said


def test_several_sources_go_into_the_folder(home: Path) -> None:
    make_tree(home / "in")
    (home / "single").write_bytes(TEXT)
    succeed("encrypt", "in", "single", "-o", "out")
    assert "single.ags1" in names(home / "out")
    assert "sub/y.avro.ags1" in names(home / "out")


def test_an_existing_folder_or_a_slash_takes_the_file_in(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    (home / "there").mkdir()
    succeed("encrypt", "a", "-o", "there")
    succeed("encrypt", "a", "-o", "new/")
    assert names(home / "there") == names(home / "new") == ["a.ags1", "a.ags1.keys"]


def test_what_a_killed_run_left_is_passed_over(home: Path) -> None:
    (home / "in").mkdir()
    (home / "in" / ".ags1-0123456789abcdef.tmp").write_bytes(b"half a file")
    (home / "in" / "a").write_bytes(TEXT)
    result = run("encrypt", "in", "-o", "out")
    assert result.exit_code == 0
    assert "left by an ags1 that was killed" in result.stderr
    assert names(home / "out") == ["a.ags1", "a.ags1.keys"]


def test_links_to_folders_are_not_followed_and_pipes_passed_over(home: Path) -> None:
    make_tree(home / "in")
    (home / "in" / "loop").symlink_to(home / "in")
    os.mkfifo(home / "in" / "fifo")
    (home / "in" / "broken").symlink_to("nowhere")
    result = run("encrypt", "in", "-o", "out", "--verbose")
    assert result.exit_code == 6
    assert "in/loop: skipped: link to a folder" in result.stderr
    assert "in/fifo: skipped: not a regular file" in result.stderr
    end = "4 encrypted, 2 skipped (link to a folder: 1, not a regular file: 1), 1 failed\n"
    assert result.stderr.endswith(end)
    assert "in/broken: No such file or directory" in result.stderr
    assert len(names(home / "out")) == 8


def test_a_folder_without_files_is_a_failure(home: Path) -> None:
    (home / "empty").mkdir()
    assert "no file to encrypt in this folder" in fail(6, "encrypt", "empty")
    assert "no .ags1 file in this folder" in fail(6, "verify", "empty")


def test_the_others_go_on_and_the_first_failure_is_the_exit_code(home: Path) -> None:
    for name in ("a", "b", "c"):
        (home / name).write_bytes(name.encode() * 100)
    succeed("encrypt", "a", "b", "c")
    os.truncate("a.ags1", 100)
    flip(home / "b.ags1", 50)
    for name in ("a", "b", "c"):
        (home / name).unlink()
    result = run("decrypt", "a.ags1", "b.ags1", "c.ags1", "nope.ags1")
    # A source that is not there is seen before any work.
    assert result.exit_code == 6
    assert [line.split(":")[1].strip() for line in result.stderr.splitlines()] == [
        "nope.ags1",
        "a.ags1",
        "b.ags1",
    ]
    assert run("decrypt", "a.ags1", "b.ags1", "c.ags1", "--force").exit_code == 3
    assert run("decrypt", "b.ags1", "a.ags1", "c.ags1", "--force").exit_code == 7
    assert not (home / "a").exists()
    assert (home / "c").read_bytes() == b"c" * 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encrypt", "a", "a"], "both be written to a.ags1"),
        (["encrypt", "d1", "d2", "-o", "out"], "both be written to out/x.ags1"),
        (["encrypt", "a", "-o", "a"], "is a source"),
        (["encrypt", "a", "./a.ags1", "--force"], "is a source"),
        (["encrypt", "a", "b", "--sidecar", "s"], "--sidecar is for one file"),
        (["encrypt", "d1", "--sidecar", "s"], "--sidecar is for one file"),
        (["encrypt", "a", "--sidecar", "a"], "cannot be the sidecar"),
        (["encrypt", "a", "-o", "x", "--sidecar", "x"], "cannot be the sidecar"),
        (["encrypt", "a", "-"], "the only source"),
        (
            ["encrypt", "a", "b", "-o", "-", "--sidecar", "s"],
            "only one file can be written to standard output",
        ),
        (["encrypt", "-"], "--sidecar"),
        (["encrypt", "-", "-o", "d1"], "is a folder"),
        (["decrypt", "-"], "--sidecar"),
        (["decrypt", "sealed"], "does not end in .ags1"),
        (["encrypt", "-", "--sidecar", "s", "--json"], "--json"),
        (["encrypt"], "FILE"),
        (["encrypt", "a", "--threads", "0"], "--threads"),
        (["nonsense"], "nonsense"),
        (["--nonsense"], "--nonsense"),
        (["completion", "tcsh"], "tcsh"),
        (["completion"], "Choose from: bash, zsh, fish"),
        (["encrypt", "a", "--output"], "(see: ags1 encrypt --help)"),
        (["encrypt", "a", "--kms-property", "region=x"], "the name of a property has a dot"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_done(
    home: Path, arguments: list[str], message: str
) -> None:
    for name in ("a", "b", "a.ags1", "d1/x", "d2/x"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_bytes(TEXT)
    (home / "sealed").write_bytes(b"AGS1\0\0\x10\0")
    before = names(home)
    assert message in fail(2, *arguments)
    assert names(home) == before
    assert (home / "a.ags1").read_bytes() == TEXT


# -- pipes


@pytest.mark.parametrize("size", [0, 1, BLOCK, 3 * BLOCK, 3 * BLOCK + 7])
def test_from_pipe_to_pipe_and_back(home: Path, size: int) -> None:
    data = os.urandom(size)
    sealed = succeed("encrypt", "-", "--sidecar", "s", data=data).stdout_bytes
    assert names(home) == ["s"]
    assert succeed("decrypt", "-", "--sidecar", "s", data=sealed).stdout_bytes == data
    assert succeed("cat", "-", "--sidecar", "s", data=sealed).stdout_bytes == data
    assert succeed("verify", "-", "--sidecar", "s", data=sealed).stdout == "standard input: OK\n"
    succeed("decrypt", "-", "--sidecar", "s", "-o", "a", data=sealed)
    assert (home / "a").read_bytes() == data


def test_from_pipe_to_file_and_from_file_to_pipe(home: Path) -> None:
    data = os.urandom(2 * BLOCK + 1)
    succeed("encrypt", "-", "-o", "a.ags1", data=data)
    assert names(home) == ["a.ags1", "a.ags1.keys"]
    assert succeed("decrypt", "a.ags1", "-o", "-").stdout_bytes == data
    (home / "b").write_bytes(data)
    (home / "c").write_bytes(succeed("encrypt", "b", "-o", "-", "--sidecar", "c.keys").stdout_bytes)
    succeed("verify", "c")


def test_a_real_pipe_and_a_fifo_by_name(home: Path) -> None:
    data = os.urandom(3 * BLOCK)
    fifo = home / "fifo"
    os.mkfifo(fifo)
    with start("encrypt", fifo, "-o", "a.ags1") as process:
        fifo.write_bytes(data)
    assert process.returncode == 0
    with start("decrypt", fifo, "-o", "a", "--sidecar", "a.ags1.keys") as process:
        fifo.write_bytes((home / "a.ags1").read_bytes())
    assert process.returncode == 0
    assert (home / "a").read_bytes() == data
    reader = "import os, sys; sys.stdout.buffer.write(open('a.ags1', 'rb').read())"
    with subprocess.Popen([sys.executable, "-c", reader], stdout=subprocess.PIPE) as source:
        done = execute("decrypt", "-", "--sidecar", "a.ags1.keys", stdin=source.stdout)
    assert done == (0, data, b"")
    assert "regular file" in fail(2, "encrypt", fifo)


@pytest.mark.parametrize(("cut", "code"), [(0, 3), (7, 3), (100, 3), (BLOCK + 36, 3), (-1, 3)])
def test_a_cut_pipe_fails_after_what_was_verified(home: Path, cut: int, code: int) -> None:
    data = os.urandom(2 * BLOCK)
    sealed = succeed("encrypt", "-", "--sidecar", "s", data=data).stdout_bytes
    result = run("decrypt", "-", "--sidecar", "s", data=sealed[:cut])
    assert result.exit_code == code, result.stderr
    assert "standard input" in result.stderr
    assert data.startswith(result.stdout_bytes)
    assert len(result.stdout_bytes) % BLOCK == 0
    assert run("decrypt", "-", "--sidecar", "s", "-o", "a", data=sealed[:cut]).exit_code == code
    assert names(home) == ["s"]


def test_a_longer_pipe_fails(home: Path) -> None:
    sealed = succeed("encrypt", "-", "--sidecar", "s", data=TEXT).stdout_bytes
    assert "standard input" in fail(4, "verify", "-", "--sidecar", "s", data=sealed + b"x")


@pytest.mark.parametrize("output", [["-o", "a.ags1"], ["--sidecar", "s"]], ids=["file", "pipe"])
def test_a_pipe_that_has_no_data_yet_is_not_at_its_end(home: Path, output: list[str]) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.write(writing, TEXT)
    try:
        code, _, errors = execute("encrypt", "-", *output, stdin=reading)
    finally:
        os.close(reading)
        os.close(writing)
    assert code == 6, errors
    assert errors.startswith(b"ags1: standard input: there is no data now")
    assert names(home) == []


def test_the_sidecar_is_there_before_the_last_bytes(home: Path) -> None:
    arguments = ["encrypt", "-", "--sidecar", "s", "--threads", "1"]
    with start(*arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(bytes(2 * BLOCK))
        process.stdin.flush()
        # It may keep some kilobytes of the first block in its buffer.
        start_of_file = process.stdout.read(BLOCK // 2)
        assert not (home / "s").exists()
        process.stdin.close()
        # The last block cannot be read whole before the sidecar has its name.
        rest = process.stdout.read(8 + 2 * (BLOCK + 28) - BLOCK // 2)
        assert (home / "s").exists()
        assert process.stdout.read() == b""
    (home / "a.ags1").write_bytes(start_of_file + rest)
    succeed("verify", "a.ags1", "--sidecar", "s")


def test_a_reader_that_goes_away_is_no_message(home: Path) -> None:
    (home / "a").write_bytes(bytes(20 * BLOCK))
    succeed("encrypt", "a")
    for arguments, given in [
        (["cat", "a.ags1"], None),
        (["decrypt", "a.ags1", "-o", "-"], None),
        (["encrypt", "-", "--sidecar", "s"], "a"),
        (["verify", "a.ags1"], None),
        (["--version"], None),
    ]:
        end, other_end = os.pipe()
        os.close(end)
        with open(given or os.devnull, "rb") as stdin:
            anew = arguments[0] == "--version"
            with start(*arguments, stdin=stdin, stdout=other_end, anew=anew) as process:
                os.close(other_end)
                _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (141, b"")
    assert names(home) == ["a", "a.ags1", "a.ags1.keys"]


def test_a_full_or_closed_output_is_one_line(home: Path) -> None:
    (home / "a").write_bytes(bytes(BLOCK))
    succeed("encrypt", "a")
    close = functools.partial(os.close, 1)
    for arguments in (["cat", "a.ags1"], ["verify", "a.ags1"], ["inspect", "a.ags1", "--json"]):
        with open("/dev/full", "wb") as full:
            code, _, errors = execute(*arguments, stdout=full, anew=arguments[0] == "verify")
        assert (code, errors) == (6, b"ags1: standard output: No space left on device\n")
        code, _, errors = execute(
            *arguments, stdout=None, preexec_fn=close, anew=arguments[0] == "cat"
        )
        assert (code, errors) == (6, b"ags1: standard output: Bad file descriptor\n")
    with open("/dev/full", "wb") as full:
        code, _, errors = execute("--help", stdout=full)
    assert (code, errors) == (6, b"ags1: standard output: No space left on device\n")


unbuffered = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


# Of `make test`: without Python's buffer, which is the harder way.
@pytest.mark.slow_variants(r"(encrypt|text|errors)-buffered")
@unbuffered
@pytest.mark.parametrize(
    ("arguments", "descriptor", "code"),
    [
        (["cat", "a.ags1"], 1, 0),
        (["encrypt", "a", "-o", "/dev/stdout", "--sidecar", "s"], 1, 0),
        (["inspect", "small.ags1", "--blocks"], 1, 0),
        (["verify", *["x" * 200] * 500], 2, 6),
    ],
    ids=["cat", "encrypt", "text", "errors"],
)
def test_output_that_does_not_block_is_written_whole(
    home: Path, arguments: list[str], descriptor: int, code: int, unbuffered: str
) -> None:
    (home / "a").write_bytes(os.urandom(3 * BLOCK + 5))
    (home / "small").write_bytes(bytes(50_000))
    succeed("encrypt", "a")
    succeed("encrypt", "small", "--block-size", "16")
    outputs: dict[int, list[bytes]] = {1: [], 2: []}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    pipe = ["stdout", "stderr"][descriptor - 1]
    environment = python_environment() | {"PYTHONUNBUFFERED": unbuffered}
    with start(
        *arguments,
        **{"stdout": subprocess.PIPE, pipe: writing},
        env=environment,
        anew=arguments[0] == "inspect",
    ) as process:
        # The reader comes when the pipe is full, or the process has ended.
        wait_for(lambda: process.poll() is not None or not select.select([], [writing], [], 0)[1])
        os.close(writing)
        with open(reading, "rb") as file:
            outputs[descriptor].append(file.read())
    assert process.returncode == code
    (home / "out").write_bytes(outputs[descriptor][0])
    if arguments[0] == "encrypt":
        assert succeed("cat", "out", "--sidecar", "s").stdout_bytes == (home / "a").read_bytes()
    elif "a.ags1" in arguments:
        assert outputs[1] == [(home / "a").read_bytes()]
    elif descriptor == 2:
        assert outputs[2] == [b"ags1: %s: No such file or directory\n" % (b"x" * 200) * 500]
    else:
        assert outputs[1] == [run(*arguments).stdout_bytes]


# Of `make test`: without Python's buffer, which is the harder way.
@pytest.mark.slow_variants(r"buffered")
@unbuffered
def test_output_that_does_not_fit_is_an_error(home: Path, unbuffered: str) -> None:
    (home / "a").write_bytes(os.urandom(BLOCK))
    succeed("encrypt", "a", "--block-size", "64")
    environment = python_environment() | {"PYTHONUNBUFFERED": unbuffered}

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    for arguments in (["cat", "a.ags1"], ["inspect", "a.ags1", "--blocks"]):
        with open("out", "wb") as out:
            code, _, errors = execute(
                *arguments,
                stdout=out,
                env=environment,
                preexec_fn=limit,
                anew=arguments[0] == "cat",
            )
        assert (code, errors) == (6, b"ags1: standard output: File too large\n")
    # A message that is lost is no success.
    with open("/dev/full", "wb") as full:
        code, *_ = execute("encrypt", "a.ags1", "--skip-existing", stderr=full, env=environment)
    assert code == 6


def test_a_lost_message_does_not_hide_what_happened(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    with open("/dev/full", "wb") as full:
        assert execute("verify", "a.ags1", "--sidecar", "none", stderr=full)[0] == 5
    # If nobody reads standard error, no message is lost.
    end, other_end = os.pipe()
    os.close(end)
    note = ("encrypt", "a.ags1", "--skip-existing")
    assert execute(*note, stderr=other_end)[0] == 0
    os.close(other_end)
    assert execute(*note, preexec_fn=functools.partial(os.close, 2))[0] == 0


def test_a_name_that_the_terminal_cannot_show_is_escaped(home: Path) -> None:
    (home / "é").write_bytes(TEXT)
    succeed("encrypt", "é")
    ascii_only = python_environment() | {"PYTHONIOENCODING": "ascii"}
    assert execute("verify", "é.ags1", env=ascii_only, anew=True)[:2] == (0, b"\\xe9.ags1: OK\n")


# Of `make test`: by a pipe, a link and "-".
@pytest.mark.slow_variants(r"/(dev/fd|proc/self/fd)/1")
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link", "-"])
def test_standard_output_by_every_name(home: Path, name: str) -> None:
    (home / "link").symlink_to("/dev/stdout")
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    (home / "all").write_bytes(b"old\n")
    with open("all", "ab") as out:
        assert execute("decrypt", "a.ags1", "-o", name, stdout=out) == (0, None, b"")
    assert (home / "all").read_bytes() == b"old\n" + TEXT
    assert (home / "link").is_symlink()
    sealed = succeed("encrypt", "a", "-o", name, "--sidecar", "s").stdout_bytes
    assert (
        succeed("decrypt", "-", "--sidecar", "s", "-f", "-o", name, data=sealed).stdout
        == TEXT.decode()
    )
    for wrong in (["decrypt", "a.ags1", "--json"], ["encrypt", "a"], ["decrypt", "a.ags1", "s"]):
        fail(2, *wrong, "-o", name)


def from_a_pipe(write: Callable[[str], object], fifo: str | None = None) -> bytes:
    """Return what ``write`` writes to the name of a pipe of this process, or to ``fifo``."""
    reading, writing = (fifo, None) if fifo else os.pipe()

    def content() -> bytes:
        with open(reading, "rb") as file:
            return file.read()

    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(content)
        write(fifo or f"/dev/fd/{writing}")
        if writing is not None:
            os.close(writing)
        return read.result(60)


def test_pipes_and_devices_are_written_as_streams(home: Path) -> None:
    data = os.urandom(3 * BLOCK)
    (home / "a").write_bytes(data)
    succeed("encrypt", "a")
    os.mkfifo("fifo")
    # The shell's names of pipes, for outputs, sidecars and inputs.
    script = """set -e; ags1() { "$PYTHON" -m ags1 "$@"; }
    ags1 encrypt <(cat a) -o b.ags1 --sidecar >(cat > b.keys)
    """
    environment = python_environment() | {"PYTHON": sys.executable}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    # What the shell has started may end later than the shell.
    wait_for(lambda: run("verify", "b.ags1", "--sidecar", "b.keys").exit_code == 0)
    assert from_a_pipe(lambda pipe: succeed("decrypt", "a.ags1", "-o", pipe)) == data
    assert from_a_pipe(lambda _: succeed("decrypt", "a.ags1", "-o", "fifo"), "fifo") == data
    (home / "c.ags1").write_bytes(
        from_a_pipe(lambda pipe: succeed("encrypt", "a", "-o", pipe, "--sidecar", "c.keys"))
    )
    sealed = []

    def to_standard_output(pipe: str) -> None:
        sealed.append(succeed("encrypt", "a", "-o", "-", "--sidecar", pipe).stdout_bytes)

    (home / "d.keys").write_bytes(from_a_pipe(to_standard_output))
    (home / "d.ags1").write_bytes(sealed[0])
    for name in "cd":
        succeed("verify", f"{name}.ags1", "--sidecar", f"{name}.keys")
    assert stat.S_ISFIFO(os.stat("fifo").st_mode)
    assert succeed("decrypt", "a.ags1", "-o", "/dev/null").stdout == ""
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert "--sidecar" in fail(2, "encrypt", "a", "-o", "fifo")
    with open("a.ags1.keys", "r+b") as file:
        assert "name a sidecar" in fail(2, "key", "rewrap", f"/dev/fd/{file.fileno()}")


def test_closed_standard_descriptors_do_no_harm(home: Path) -> None:
    (home / "a").write_bytes(TEXT)

    def close_all() -> None:
        for descriptor in range(3):
            os.close(descriptor)

    code, _, _ = execute("encrypt", "a", "-Z", preexec_fn=close_all)
    assert code == 2
    code, _, _ = execute("encrypt", "a", preexec_fn=close_all, anew=True)
    assert code == 0
    succeed("verify", "a.ags1")
    code, _, errors = execute("encrypt", "-", "-o", "b", preexec_fn=functools.partial(os.close, 0))
    assert (code, errors) == (6, b"ags1: standard input: Bad file descriptor\n")


# -- bad input


def test_bad_input_is_one_line_that_names_it(home: Path) -> None:
    (home / "plain").write_bytes(bytes(100))
    (home / "short").write_bytes(b"AGS1")
    (home / "empty").touch()
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    succeed("encrypt", "a", "-o", "gone.ags1")
    keys = ["--sidecar", "a.ags1.keys"]
    cases: list[tuple[Any, ...]] = [
        (4, "plain: not an AGS1 file", "verify", "plain", *keys),
        (4, "plain: not an AGS1 file", "decrypt", "plain", "-o", "x", *keys),
        (4, "plain: not an AGS1 file", "cat", "plain", *keys),
        (4, "plain: not an AGS1 file", "inspect", "plain"),
        (3, "empty: the file is empty", "verify", "empty", *keys),
        (3, "empty: the file is empty", "cat", "empty", *keys),
        (3, "empty: the file is empty", "inspect", "empty"),
        (3, "short: ", "verify", "short", *keys),
        (4, "short: ", "inspect", "short"),
        (4, "plain: not an AGS1 file", "verify", "plain"),
        (4, "plain: not an AGS1 file", "cat", "plain"),
        (4, "plain: not an AGS1 file", "decrypt", "plain"),
        (4, "plain: not an AGS1 file", "decrypt", "plain", "-o", "x"),
        (4, "a: not an AGS1 file: it does not begin with 'AGS1': did you mean a.ags1?", "cat", "a"),
        (6, "gone: No such file or directory: did you mean gone.ags1?", "decrypt", "gone"),
        (5, "plain: this is not a sidecar", "key", "rewrap", "plain"),
        (
            6,
            "gone: No such file or directory: did you mean gone.ags1.keys?",
            *("key", "rewrap", "gone"),
        ),
        (5, "a: not a sidecar: did you mean a.ags1.keys?", "key", "rewrap", "a"),
        (5, "short.keys: there is no such sidecar", "verify", "short"),
        (6, "nope: No such file or directory", "encrypt", "nope"),
        (6, "nope: No such file or directory", "cat", "nope"),
        (6, "a.ags1: exists already", "encrypt", "a"),
        (6, "a: exists already", "decrypt", "a.ags1"),
        (6, "none/x: No such file or directory", "encrypt", "a", "-o", "none/x"),
        (6, "a/x: Not a directory", "encrypt", "a", "-o", "a/x"),
        (6, "a: Not a directory", "encrypt", "a", "-o", "a/"),
        (6, "/dev/full: No space left on device", "decrypt", "a.ags1", "-o", "/dev/full", "-f"),
    ]
    for code, message, *arguments in cases:
        line = fail(code, *arguments)
        assert line.startswith(f"ags1: {message}"), line


def test_an_existing_sidecar_alone_is_not_overwritten(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    (home / "a.ags1.keys").write_bytes(b"of a file that was moved")
    assert "a.ags1.keys: exists already" in fail(6, "encrypt", "a")
    assert "exists already" in fail(6, "encrypt", "-", "--sidecar", "a.ags1.keys", data=TEXT)
    assert (home / "a.ags1.keys").read_bytes() == b"of a file that was moved"
    assert names(home) == ["a", "a.ags1.keys"]


def test_another_name_for_the_source_is_no_target(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    os.link("a", "same")
    assert "same file" in fail(6, "encrypt", "a", "-o", "same", "--force")
    assert "same file" in fail(6, "encrypt", "a", "-o", "b", "--sidecar", "same", "--force")
    assert (home / "a").read_bytes() == TEXT


@pytest.mark.parametrize(
    "arguments",
    [
        ("encrypt", "a", "-o", "-", "--sidecar", "new"),
        ("encrypt", "-", "--sidecar", "new"),
        ("decrypt", "a.ags1", "-o", "/dev/fd/1"),
        ("decrypt", "-", "--sidecar", "a.ags1.keys"),
        ("cat", "a.ags1"),
    ],
)
def test_a_source_that_standard_output_is_appended_to(
    home: Path, arguments: tuple[str, ...]
) -> None:
    """As with cp, cat and gzip."""
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    source = home / ("a" if arguments[0] == "encrypt" else "a.ags1")
    before = source.read_bytes()
    # A command that reads what it writes would not end.
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1 << 24, 1 << 24))
    with source.open("rb") as file, source.open("ab") as out:
        code, _, err = execute(*arguments, stdin=file, stdout=out, preexec_fn=limit)
    assert (code, err.count(b"\n"), b"are the same file" in err) == (6, 1, True), err
    assert source.read_bytes() == before
    assert "new" not in names(home)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_source_is_one_line(home: Path) -> None:
    (home / "a").touch(0o000)
    assert "a: Permission denied" in fail(6, "encrypt", "a")


def test_what_is_changed_is_told_from_what_is_cut(home: Path) -> None:
    data = os.urandom(1000)
    (home / "a").write_bytes(data)
    succeed("encrypt", "a", "--block-size", "100")
    whole = (home / "a.ags1").read_bytes()
    for change, code in [
        (whole[:-1], 3),
        (whole[:8], 3),
        (whole + b"x", 4),
        (b"AGS2" + whole[4:], 4),
        (whole[:4] + bytes(4) + whole[8:], 4),
        (whole[:50] + bytes([whole[50] ^ 1]) + whole[51:], 7),
        (whole[:136] + whole[264:392] + whole[136:264] + whole[392:], 7),
        # It begins with another block: it is another file, which no key is said to be of.
        (whole[:8] + whole[136:264] + whole[8:136] + whole[264:], 5),
    ]:
        (home / "a.ags1").write_bytes(change)
        about = "a.ags1: " if code != 5 else "a.ags1.keys: none of its keys"
        assert about in fail(code, "verify", "a.ags1")
        assert about in fail(code, "cat", "a.ags1")
        assert about in fail(code, "decrypt", "a.ags1", "-o", "x")
        assert not (home / "x").exists()


def test_a_sidecar_of_another_file_does_not_open(home: Path) -> None:
    for name in ("a", "b"):
        (home / name).write_bytes(TEXT)
    succeed("encrypt", "a", "b")
    said = fail(5, "verify", "a.ags1", "--sidecar", "b.ags1.keys")
    assert "b.ags1.keys: none of its keys is that of the file" in said
    # What the sidecar says of the file is no more than a hint.
    document = json.loads((home / "b.ags1.keys").read_bytes())
    nonce = (home / "a.ags1").read_bytes()[8:20].hex()
    document["encryption-keys"][1]["properties"]["ags1.nonce"] = nonce
    (home / "b.ags1.keys").write_text(json.dumps(document))
    assert "a.ags1: block 0" in fail(7, "verify", "a.ags1", "--sidecar", "b.ags1.keys")


@pytest.mark.parametrize("command", [["verify"], ["cat"], ["decrypt", "-o", "out", "-f"]])
def test_a_pair_that_is_replaced_meanwhile_is_looked_at_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    find, left = keychain.find_sidecar, [2]

    def replaced_before(path: str) -> Sidecar:
        if left[0]:
            left[0] -= 1
            with monkeypatch.context() as patch:
                patch.setattr(keychain, "find_sidecar", find)
                succeed("encrypt", "-f", "a")
        return find(path)

    monkeypatch.setattr(keychain, "find_sidecar", replaced_before)
    succeed(*command, "a.ags1")
    assert left == [0]
    left[0] = 1000  # without end
    assert "was replaced" in fail(5, *command, "a.ags1")


def test_a_pair_of_file_and_sidecar_can_be_exchanged(home: Path) -> None:
    # A limit of the format that SECURITY.md states, not a feature: neither says whose it is.
    for name in ("a", "b"):
        (home / name).write_bytes(name.encode() * 100)
        run("encrypt", name)
    for ending in (".ags1", ".ags1.keys"):
        (home / f"a{ending}").rename(home / "held")
        (home / f"b{ending}").rename(home / f"a{ending}")
        (home / "held").rename(home / f"b{ending}")
    assert run("cat", "a.ags1").stdout_bytes == b"b" * 100


def test_a_changed_sidecar_does_not_open(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    sidecar = home / "a.ags1.keys"
    whole = json.loads(sidecar.read_bytes())

    def with_entry(number: int, **change: object) -> str:
        entries = [dict(entry) for entry in whole["encryption-keys"]]
        entries[number].update(change)
        return json.dumps({**whole, "encryption-keys": entries})

    wrapped = [entry["encrypted-key-metadata"] for entry in whole["encryption-keys"]]
    kek = base64.b64decode(wrapped[0])
    of_no_format = base64.b64encode(b"\2" + kek[1:]).decode()
    of_version_7 = base64.b64encode(kek[:4] + b"\7" + kek[5:]).decode()
    for text, code, message in [
        ("", 5, "not JSON"),
        ("null", 5, "is a JSON object"),
        (with_entry(0, **{"encrypted-key-metadata": "%"}), 5, "not base64"),
        (with_entry(0, **{"encrypted-key-metadata": of_no_format}), 5, "damaged"),
        (with_entry(0, **{"encrypted-key-metadata": of_version_7}), 5, "has no version 7"),
        (with_entry(0, **{"encrypted-by-id": "none"}), 5, "no master key 'none'"),
        (with_entry(0, **{"encrypted-by-id": "no\x1b[31m"}), 5, r"no\x1b[31m"),
        (with_entry(0, properties={"KEY_TIMESTAMP": "1"}), 7, "does not verify"),
        (with_entry(0, properties={}), 5, "KEY_TIMESTAMP"),
        (with_entry(0, properties={"KEY_TIMESTAMP": "\ud800"}), 5, "not Unicode"),
        (with_entry(0, **{"key-id": "\ud800"}), 5, "damaged"),
        (with_entry(1, **{"encrypted-key-metadata": wrapped[0]}), 7, "does not verify"),
        (with_entry(1, **{"encrypted-key-metadata": ""}), 5, "missing"),
        (with_entry(1, **{"encrypted-by-id": "gone"}), 5, "damaged"),
    ]:
        sidecar.write_text(text)
        line = fail(code, "verify", "a.ags1")
        assert message in line
        assert "a.ags1" in line
        for entry in wrapped:
            assert entry not in line


def test_keyring_trouble_is_one_line_for_the_run(home: Path) -> None:
    for name in ("a", "b"):
        (home / name).write_bytes(TEXT)
    succeed("encrypt", "a", "b")
    keyring = Path(os.environ["XDG_CONFIG_HOME"]) / "ags1" / "keyring.json"
    keyring.chmod(0o644)
    assert "mode 0644" in fail(5, "verify", "a.ags1", "b.ags1")
    keyring.chmod(0o600)
    whole = keyring.read_bytes()
    keyring.write_bytes(whole[:50])
    assert "not JSON" in fail(5, "encrypt", "a", "b", "-f")
    keyring.unlink()
    assert "ags1 keygen" in fail(5, "encrypt", "a", "b", "-f")
    succeed("keygen")
    assert "another key of that name" in fail(5, "verify", "a.ags1")
    assert "no master key 'other'" in fail(5, "encrypt", "a", "b", "-f", "--key", "other")
    succeed("inspect", "a.ags1", "b.ags1")


def test_a_name_with_control_characters_is_escaped(home: Path) -> None:
    name = "a\n\x1b[31m"
    assert r"a\n\x1b[31m: No such file" in fail(6, "encrypt", name)
    (home / name).write_bytes(TEXT)
    succeed("encrypt", name)
    assert succeed("verify", f"{name}.ags1").stdout == "a\\n\\x1b[31m.ags1: OK\n"


def test_a_name_that_is_not_unicode_works(home: Path) -> None:
    name = os.fsdecode(b"\xff.bin")
    (home / name).write_bytes(TEXT)
    succeed("encrypt", name)
    code, out, errors = execute("verify", f"{name}.ags1", "--json", anew=True)
    assert (code, errors) == (0, b"")
    assert json.loads(out)["file"] == f"{name}.ags1"


# -- JSON


def test_json_is_a_line_for_each_file(home: Path) -> None:
    for name in ("a", "b"):
        (home / name).write_bytes(name.encode() * 300)
    result = run("encrypt", "a", "nope", "b", "--json", "--block-size", "100")
    assert result.exit_code == 6
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[0] == {
        "file": "nope",
        "ok": False,
        "error": {
            "exit_code": 6,
            "message": "nope: No such file or directory",
            "kind": "FileNotFoundError",
            "file": "nope",
        },
    }
    assert lines[1] == {
        "file": "a",
        "output": "a.ags1",
        "sidecar": "a.ags1.keys",
        "plaintext_size": 300,
        "encrypted_size": 8 + 300 + 3 * 28,
        "block_size": 100,
        "key_id": read_sidecar("a.ags1.keys").key_id,
        "master_key_id": "default",
        "ok": True,
    }
    flip(home / "b.ags1", 150)
    bad = json.loads(run("verify", "b.ags1", "--json").stdout)
    assert bad["error"]["kind"] == "AuthenticationError"
    assert (bad["error"]["block"], bad["error"]["offset"]) == (1, 136)
    good = json.loads(succeed("decrypt", "a.ags1", "-o", "c", "--json").stdout)
    assert (good["output"], good["plaintext_size"]) == ("c", 300)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_sidecar_belongs_to_whom_its_file_belongs(home: Path) -> None:
    def seen(name: str) -> tuple[int, int, int]:
        status = (home / name).stat()
        return stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid

    def given(name: str, mode: int) -> None:
        os.chown(home / name, 1234, 2345)
        (home / name).chmod(mode)

    (home / "a").write_bytes(TEXT)
    (home / "a").chmod(0o664)
    before = os.umask(0o002)
    try:
        succeed("encrypt", "a")
        assert seen("a.ags1.keys") == seen("a.ags1") == (0o664, 0, 0)
        for name in ("a", "a.ags1", "a.ags1.keys"):
            given(name, 0o664)
        for command in (
            ["key", "rewrap", "."],
            ["encrypt", "-f", "a"],
            ["decrypt", "-f", "a.ags1"],
            ["encrypt", "-f", "a", "--threads", "1"],
        ):
            succeed(*command)
            for name in ("a", "a.ags1", "a.ags1.keys"):
                assert seen(name) == (0o664, 1234, 2345), (command, name)
        fsspec.filesystem("ags1", target_protocol="file").pipe(str(home / "a"), b"new")
        assert seen("a.ags1.keys") == seen("a.ags1") == (0o664, 1234, 2345)
        # One that an earlier release made private.
        given("a.ags1.keys", 0o600)
        succeed("encrypt", "-f", "a")
        assert seen("a.ags1.keys") == (0o664, 1234, 2345)
    finally:
        os.umask(before)


def test_a_temporary_file_that_stays_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    flip(home / "a.ags1", 20)
    monkeypatch.setattr("ags1.host.atomic._NAMELESS", None)

    def refused(path: str) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)

    monkeypatch.setattr(os, "unlink", refused)
    result = run("decrypt", "-f", "a.ags1")
    assert result.exit_code == 7
    pattern = r"ags1: warning: .*\.ags1-\w+\.tmp: .* it is empty now: remove it\n"
    assert re.match(pattern, result.stderr)


def test_inspect_needs_no_key(home: Path) -> None:
    (home / "a").write_bytes(bytes(250))
    succeed("encrypt", "a", "--block-size", "100")
    Path(os.environ["XDG_CONFIG_HOME"], "ags1", "keyring.json").unlink()
    text = succeed("inspect", "a.ags1", "--blocks").stdout
    for part in ("blocks of 100 bytes", "3 (the last has 50 bytes)", "250 bytes", "default"):
        assert part in text
    sidecar = read_sidecar("a.ags1.keys")
    shown = json.loads(succeed("inspect", "a.ags1", "--blocks", "--json").stdout)
    assert shown["keys"] == [
        {
            "key_id": sidecar.key_id,
            "kek_id": sidecar.encryption_keys[0].key_id,
            "master_key_id": "default",
            "master_key_version": 1,
            "kek_timestamp": sidecar.encryption_keys[0].timestamp,
        }
    ]
    assert [block["offset"] for block in shown["block_list"]] == [8, 136, 264]
    assert [block["size"] for block in shown["block_list"]] == [100, 100, 50]
    data = (home / "a.ags1").read_bytes()
    assert shown["block_list"][2]["nonce"] == data[264:276].hex()


def test_inspect_without_sidecar_shows_the_file_and_fails(home: Path) -> None:
    result = run("inspect", VECTORS / "s1048577_k16_aad16.ags1")
    assert result.exit_code == 5
    assert "1,048,577 bytes" in result.stdout
    assert result.stderr.count("no such sidecar") == 1
    assert "no such sidecar" not in result.stdout


def test_info_tells_what_runs() -> None:
    facts = json.loads(succeed("info", "--seconds", "0.02", "--json").stdout)
    assert facts["libcrypto"]["version"].startswith("OpenSSL ")
    assert facts["libcrypto"]["fips"] in (True, False)
    assert facts["speed"]["encrypt_bytes_per_second"] > 0
    assert facts["speed"]["decrypt_bytes_per_second"] > 0
    assert facts["keyring"]["exists"]
    text = succeed("info", "--seconds", "0").stdout
    assert facts["libcrypto"]["version"] in text
    assert ssl.OPENSSL_VERSION in text
    assert "speed" not in text
    assert "warning" not in text


@pytest.mark.skipif("aes" not in cpu.features() or platform.machine() != "x86_64", reason="no AES")
def test_info_warns_of_a_cpu_that_libcrypto_does_not_use(run_python: RunPython) -> None:
    # The variable is read once, when the process starts. Empty, it turns everything off.
    script = "import ags1, os, sys; sys.argv[1:] = ['info', '--seconds', '0']"
    for value, warns in (("", True), ("~0x200000000000000", True), (":~0x1", False)):
        first = f"import os; os.environ['OPENSSL_ia32cap'] = {value!r}"
        text = run_python(f"{first}\n{script}\nfrom ags1.cli import main\nmain()").stdout
        assert ("OpenSSL does not use aes" in text) == warns


# -- help


COMMANDS = [
    *("cat", "completion", "decrypt", "encrypt", "info", "inspect", "key", "keygen", "table"),
    "verify",
]
KEY_COMMANDS = ["create", "export-public-info", "list", "protect", "rewrap", "rotate"]
TABLE_COMMANDS = ["check", "files", "info", "scan"]
IN_GROUPS = [f"key {name}" for name in KEY_COMMANDS] + [f"table {name}" for name in TABLE_COMMANDS]


@pytest.mark.parametrize("command", COMMANDS + IN_GROUPS)
def test_every_command_has_help_with_examples(command: str) -> None:
    text = succeed(*command.split(), "--help").stdout
    assert f"  ags1 {command}" in text
    assert "Examples:" in text
    assert max(map(len, text.splitlines())) <= 88


def test_help_lists_every_command_and_exit_status() -> None:
    text = succeed("--help").stdout
    for part in [*COMMANDS, "Exit status:", "Environment:", "Files:", "Examples:"]:
        assert part in text
    result = run()
    assert result.exit_code == 2
    assert "Exit status:" in result.stderr
    assert ags1.__version__ in succeed("--version").stdout


def test_the_exit_statuses_are_told_once(home: Path) -> None:
    assert {code.name: code.value for code in Exit} == {
        "OK": 0,
        "DECLINED": 1,
        "USAGE": 2,
        "TRUNCATED": 3,
        "FORMAT": 4,
        "KEYS": 5,
        "IO": 6,
        "AUTHENTICATION": 7,
        "ROWS_LEFT": 8,
        "NO_FILES": 9,
        "PLAINTEXT": 10,
        "INTERNAL": 70,
        "INTERRUPTED": 130,
        "READER_GONE": 141,
        "TERMINATED": 143,
    }
    told = EXIT_STATUS.removeprefix("\b\n")
    codes = re.findall(r"^  (\d+) ", told, re.MULTILINE)
    assert [int(code) for code in codes] == [*Exit]
    for command in ("", "verify", "key rewrap", "table scan", "table expire", "spark verify-table"):
        text = succeed(*command.split(), "--help").stdout
        assert [line.strip() for line in told.splitlines()] == [
            line.strip() for line in text[text.index("Exit status:") :].splitlines()
        ][: len(told.splitlines())]
    manual = Path(__file__).parents[2] / "docs" / "command-line.md"
    if manual.exists():
        assert told.removeprefix("Exit status:\n") in manual.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "key", "table", "spark", "nonsense", "--nonsense", "encrypt", "table nonsense"),
        *("verify a --nonsense", "verify a --threads many", "encrypt a --block-size 0"),
        *("completion tcsh", "table scan", "cat a --length", "spark encrypt", "table info x y"),
        *(
            "spark verify --ledger l --key",
            "key create",
            "info --seconds 99",
            "inspect --blocks=3 a",
        ),
    ],
)
def test_wrong_usage_is_2_as_in_the_shell(home: Path, arguments: str) -> None:
    result = run(*arguments.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--help" in result.stderr


def test_help_imports_neither_rich_nor_fastavro(run_python: RunPython) -> None:
    done = run_python(
        """
import sys
from ags1.cli import main
sys.argv = ["ags1", "encrypt", "--help"]
try:
    main()
finally:
    loaded = {name.split(".")[0] for name in sys.modules}
    assert not loaded & {"rich", "fastavro", "cryptography", "numpy", "boto3", "hvac"}, loaded
    # Finding the plug-ins' KMSs reads every installed package's metadata.
    assert not loaded & {"configparser"} and "importlib.metadata" not in sys.modules
"""
    )
    assert "Examples:" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    assert "_AGS1_COMPLETE" in succeed("completion", shell).stdout


def test_completion_completes() -> None:
    environment = python_environment() | {
        "_AGS1_COMPLETE": "bash_complete",
        "COMP_WORDS": "ags1 de",
        "COMP_CWORD": "1",
    }
    code, out, _ = execute(env=environment, anew=True)
    assert (code, out) == (0, b"plain,decrypt\n")


def test_progress_is_one_line_on_a_terminal_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def told(out: Output, total_size: int | None) -> list[str]:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        with Report(out, total_size) as report:
            for done in (1024, 2048):
                report.begin("folder/a\n.avro")
                report.progress(done)
        clear, *lines = terminal.getvalue().split("\r")
        assert clear == ""
        return [re.sub(r"\x1b\[(K|\?7[lh])", "", line) for line in lines]

    monkeypatch.setattr("ags1.cli.report._LINE_DELAY_SECONDS", 0)
    monkeypatch.setattr("ags1.cli.report._LINE_SECONDS", 0)
    first, second, cleared = told(Output(), 4096)
    assert first.startswith(r"a\n.avro  1.0 KiB of 4.0 KiB, ")
    assert second.startswith(r"a\n.avro  3.0 KiB of 4.0 KiB, ")
    assert second.endswith(" s left")
    assert cleared == ""
    assert " of " not in told(Output(as_json=True), None)[0]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Report(Output(quiet=True), 4096) as report:
        report.progress(1024)
    assert terminal.getvalue() == ""


# -- interruptions


def test_an_interrupt_before_the_commands_are_there_is_no_traceback(run_python: RunPython) -> None:
    done = run_python(
        """
import os, signal, sys
from ags1.cli import main

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "ags1.cli.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
main()
""",
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "ags1: interrupted\n")


# Of `make test`: with two threads.
@pytest.mark.slow_variants(r"1-.*")
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 143, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupted_large_file_leaves_nothing(
    home: Path, number: signal.Signals, code: int, threads: int
) -> None:
    with (home / "big").open("wb") as file:
        file.truncate(LONG)
    arguments = ["encrypt", "big", *TAKES_LONG, "--threads", threads, "--no-fsync"]
    with start(*arguments) as process:
        wait_for(lambda: is_writing(process, home))
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors == (b"ags1: interrupted\n" if number == signal.SIGINT else b"")
    assert names(home) == ["big"]


def test_an_interrupted_pipe_leaves_nothing_that_verifies(home: Path) -> None:
    for output in ("a.ags1", "-"):
        with start(
            *("encrypt", "-", "-o", output, "--sidecar", "s"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            process.stdin.write(bytes(3 * BLOCK))
            process.stdin.flush()
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        assert names(home) == []
        if output == "-":
            assert (len(out) - 8) % (BLOCK + 28) != 0


def test_an_interrupted_decryption_leaves_nothing(home: Path) -> None:
    (home / "a").write_bytes(bytes(5 * BLOCK))
    succeed("encrypt", "a")
    os.mkfifo("fifo")
    with start("decrypt", "fifo", "-o", "b", "--sidecar", "a.ags1.keys") as process:
        with open("fifo", "wb") as fifo:
            fifo.write((home / "a.ags1").read_bytes()[: 3 * BLOCK])
            fifo.flush()
            wait_for(lambda: is_writing(process, home))
            process.send_signal(signal.SIGINT)
            process.wait(60)
    assert process.returncode == 130
    assert not (home / "b").exists()
    assert not list(home.glob(".*"))


def test_a_full_disk_leaves_nothing(home: Path) -> None:
    (home / "a").write_bytes(bytes(8 * BLOCK))
    succeed("encrypt", "a", "-o", "whole.ags1")
    before = names(home)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * BLOCK, 2 * BLOCK))

    for arguments, stdin, named in [
        (["encrypt", "a"], None, "a.ags1"),
        (["encrypt", "-", "-o", "b.ags1"], "a", "b.ags1"),
        (["decrypt", "whole.ags1"], None, "whole"),
        (["decrypt", "-", "-o", "b", "--sidecar", "whole.ags1.keys"], "whole.ags1", "b"),
    ]:
        with open(stdin or os.devnull, "rb") as given:
            code, _, errors = execute(*arguments, stdin=given, preexec_fn=limit)
        assert (code, errors) == (6, f"ags1: {named}: File too large\n".encode())
        assert names(home) == before


# -- file and sidecar together

OLD, NEW = b"the old one", b"the new one"
STEPS = ("fsync", "link", "rename", "replace", "unlink", "open")


def job(home: Path) -> Job:
    return Job(str(home / "src"), str(home / "out" / "f"), str(home / "out" / "f.keys"), 0)


def do(home: Path, old_keys: OldKeys) -> None:
    keychain = Keychain(LocalKms(), "default")
    keychain.prepare()
    how = EncryptingOptions(BLOCK, 1, True, old_keys, lambda done, total: None)
    encrypt(job(home), keychain, how)


def content(home: Path) -> bytes | None:
    """What the file holds, opened with its sidecar; None without a file."""
    if not (home / "out" / "f").exists():
        return None
    km = Keychain(LocalKms(), "").open(str(home / "out" / "f.keys"), str(home / "out" / "f"))
    with ags1.open(home / "out" / "f", "rb", km) as file:
        return file.read()


@pytest.fixture(params=["fresh", "replaced", "without sidecar", "damaged sidecar", "only sidecar"])
def before(home: Path, request: pytest.FixtureRequest) -> str:
    """The pair's state before the encryption under test."""
    state = str(request.param)
    (home / "out").mkdir()
    (home / "src").write_bytes(OLD)
    if state != "fresh":
        do(home, OldKeys.REFUSE)
    if state == "without sidecar":
        (home / "out" / "f.keys").unlink()
    if state == "damaged sidecar":
        (home / "out" / "f.keys").write_bytes(b"{")
    if state == "only sidecar":
        (home / "out" / "f").unlink()
    (home / "src").write_bytes(NEW)
    return state


def reset(home: Path, saved: dict[str, bytes]) -> None:
    for name in names(home / "out"):
        (home / "out" / name).unlink()
    for name, data in saved.items():
        (home / "out" / name).write_bytes(data)


class Interrupted(BaseException):
    pass


def at_step(
    number: int, *, after: bool, act: Callable[[], None], crash: bool = False
) -> pytest.MonkeyPatch:
    """Have ``act`` happen before or after the ``number``-th step. A file that is opened to read it
    is a step too, but not for a ``crash``: on the disk it is the same before and after."""
    patch = pytest.MonkeyPatch()
    count = 0
    opening = os.open

    def step(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        nonlocal count
        if crash and call is opening and not arguments[1] & (os.O_WRONLY | os.O_RDWR):
            return call(*arguments, **options)
        count += 1
        mine = count
        if mine == number and not after:
            act()
        result = call(*arguments, **options)
        if mine == number and after:
            act()
        return result

    for name in STEPS:
        patch.setattr(os, name, functools.partial(step, getattr(os, name)))
    return patch


def interrupt() -> None:
    raise Interrupted


# A crash after a step finds the disk as one before the next step does.
AFTER = [False, pytest.param(True, marks=pytest.mark.slow)]


# Of `make test`: a file and its sidecar that are replaced, and a file that is new.
@pytest.mark.slow_variants(r"(damaged|without|only) sidecar-False")
@pytest.mark.parametrize("after", AFTER)
def test_no_crash_parts_a_file_from_its_key(home: Path, before: str, after: bool) -> None:
    old_keys = OldKeys.REFUSE if before == "fresh" else OldKeys.RETIRE
    saved = {name: (home / "out" / name).read_bytes() for name in names(home / "out")}
    opens_before = before in ("fresh", "replaced", "only sidecar")
    seen = set()
    for number in range(1, 100):
        reset(home, saved)
        child = os.fork()
        if child == 0:
            at_step(number, after=after, act=functools.partial(os._exit, 9), crash=True)
            do(home, old_keys)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        file = home / "out" / "f"
        if opens_before or not file.exists() or file.read_bytes() != saved["f"]:
            seen.add(content(home))
        if code == 0:
            break
        # And the next attempt is not in the way of the crash's remains.
        do(home, OldKeys.RETIRE)
        assert content(home) == NEW
    else:
        pytest.fail("it never came to an end")
    if before in ("fresh", "only sidecar"):
        assert seen == {None, NEW}
    else:
        assert seen == ({OLD, NEW} if opens_before else {NEW})


@pytest.mark.parametrize("after", [False, True])
def test_a_failure_leaves_the_old_pair_or_nothing(home: Path, before: str, after: bool) -> None:
    old_keys = OldKeys.REFUSE if before == "fresh" else OldKeys.RETIRE
    saved = {name: (home / "out" / name).read_bytes() for name in names(home / "out")}
    for number in range(1, 100):
        reset(home, saved)
        patch = at_step(number, after=after, act=interrupt)
        try:
            do(home, old_keys)
        except Interrupted:
            finished = False
        else:
            finished = True
        finally:
            patch.undo()
        left = names(home / "out")
        if finished:
            assert (left, content(home)) == (["f", "f.keys"], NEW)
            assert len(read_sidecar(str(home / "out" / "f.keys")).file_keys) == 1
            return
        unchanged = {
            name: (home / "out" / name).read_bytes() for name in left if not name.startswith(".")
        } == saved
        assert unchanged or content(home) == NEW
    pytest.fail("it never came to an end")


@pytest.mark.parametrize("after", AFTER)
def test_an_orphan_sidecar_is_taken_up_after_any_crash(home: Path, after: bool) -> None:
    (home / "out").mkdir()
    (home / "src").write_bytes(OLD)
    do(home, OldKeys.REFUSE)
    (home / "out" / "f").rename(home / "moved")
    (home / "src").write_bytes(NEW)
    saved = {"f.keys": (home / "out" / "f.keys").read_bytes()}
    seen = set()
    for number in range(1, 100):
        reset(home, saved)
        child = os.fork()
        if child == 0:
            at_step(number, after=after, act=functools.partial(os._exit, 9), crash=True)
            do(home, OldKeys.KEEP)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        seen.add(content(home))
        if content(home) is None:
            do(home, OldKeys.KEEP)
        assert content(home) == NEW
        km = Keychain(LocalKms(), "").open(str(home / "out" / "f.keys"), str(home / "moved"))
        with ags1.open(home / "moved", "rb", km) as file:
            assert file.read() == OLD
        if code == 0:
            break
    else:
        pytest.fail("it never came to an end")
    assert seen == {None, NEW}


def test_a_replaced_pair_is_whole_and_has_one_key(home: Path) -> None:
    (home / "a").write_bytes(OLD)
    succeed("encrypt", "a")
    (home / "a").write_bytes(NEW)
    succeed("encrypt", "a", "--force")
    assert succeed("cat", "a.ags1").stdout_bytes == NEW
    assert len(read_sidecar("a.ags1.keys").encryption_keys) == 2


def test_a_failed_replacement_keeps_the_old_pair(home: Path) -> None:
    (home / "a").write_bytes(OLD)
    succeed("encrypt", "a")
    before = (home / "a.ags1.keys").read_bytes()
    fail(6, "encrypt", "nope", "-o", "a.ags1", "--force")
    assert succeed("cat", "a.ags1").stdout_bytes == OLD
    assert (home / "a.ags1.keys").read_bytes() == before


def test_a_sidecar_that_cannot_be_replaced_costs_no_file(home: Path) -> None:
    (home / "a").write_bytes(OLD)
    succeed("encrypt", "a")
    (home / "large").write_bytes(bytes((1 << 20) + 1))
    before = {name: (home / name).read_bytes() for name in names(home)}
    for sidecar, why in (("no/folder", "No such file"), ("large", "File too large")):
        message = fail(6, "encrypt", "a", "--force", "--sidecar", sidecar)
        assert f"{sidecar}: {why}" in message
        assert "File too large" in fail(
            6, "encrypt", "a", "-o", "-", "--force", "--sidecar", "large"
        )
        assert {name: (home / name).read_bytes() for name in names(home)} == before


@pytest.mark.parametrize("how", ["--force", "--skip-existing"])
def test_a_sidecar_without_room_for_another_key_is_left_alone(home: Path, how: str) -> None:
    (home / "a").write_bytes(NEW)
    keychain = Keychain(LocalKms(), "default")
    keychain.prepare()
    full = keychain.seal(ags1.encrypt(OLD).key_metadata)
    for _ in range(62):
        full = keychain.seal(ags1.encrypt(OLD).key_metadata).with_keys_of(full)
    (home / "a.ags1.keys").write_bytes(full.to_bytes())
    assert read_sidecar("a.ags1.keys") == full
    assert "a.ags1.keys: this sidecar has no room" in fail(5, "encrypt", "a", how)
    assert read_sidecar("a.ags1.keys") == full
    assert names(home) == ["a", "a.ags1.keys"]


@pytest.mark.parametrize("sent", [False, True])
def test_an_interrupt_keeps_the_sidecar_of_a_stream_that_was_sent(
    home: Path, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    close = Writer.close

    def interrupted(self: Writer) -> None:
        if sent:
            close(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Writer, "close", interrupted)
    (home / "s").write_bytes(b"damaged")
    result = run("encrypt", "-", "--sidecar", "s", "--force", data=TEXT)
    assert result.exit_code == 130
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home.parent / "config"))
    monkeypatch.chdir(home)
    if sent:
        assert (
            succeed("decrypt", "-", "--sidecar", "s", data=result.stdout_bytes).stdout_bytes == TEXT
        )
    else:
        assert (home / "s").read_bytes() == b"damaged"


# -- the terminal


def terminal_output(*arguments: object, stdout: int | None = None) -> tuple[int, bytes]:
    """Run with standard error on a terminal; return the exit code and what the terminal got."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, b"\x18\x00\x64\x00\x00\x00\x00\x00")
    with start(
        *arguments,
        stderr=terminal,
        stdout=terminal if stdout is None else stdout,
        env=python_environment() | {"TERM": "xterm"},
    ) as process:
        os.close(terminal)
        seen = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the terminal's other end is closed
                break
            if not part:
                break
            seen += part
    os.close(master)
    return process.returncode, seen


def test_a_long_run_shows_a_bar_and_a_short_one_does_not(home: Path) -> None:
    (home / "short").write_bytes(TEXT)
    assert terminal_output("encrypt", "short") == (0, b"")
    with (home / "long").open("wb") as file:
        file.truncate(LONG)
    master, terminal = pty.openpty()
    arguments = ["encrypt", "long", *TAKES_LONG, "--threads", "1"]
    terminals = python_environment() | {"TERM": "xterm"}
    with start(*arguments, stderr=terminal, env=terminals) as process:
        os.close(terminal)
        seen = b""
        while b"/s" not in seen:
            seen += os.read(master, 65536)
        process.send_signal(signal.SIGINT)
        while b"interrupted" not in seen:
            seen += os.read(master, 65536)
        process.wait(60)
    os.close(master)
    assert b"long" in seen
    assert process.returncode == 130
    assert "long.ags1" not in names(home)


def test_encrypted_data_is_not_written_to_a_terminal(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    code, seen = terminal_output("encrypt", "a", "-o", "-", "--sidecar", "s")
    assert code == 2
    assert b"terminal" in seen
    assert names(home) == ["a"]


INTERRUPTED = """
import atexit, os, signal, sys

moment = sys.argv[1]

def press():
    os.kill(os.getpid(), signal.SIGINT)

class Press:
    def find_spec(self, name, *_):
        if name == moment:
            press()

if moment == "end":
    atexit.register(press)
else:
    sys.meta_path.insert(0, Press())
from ags1.cli import main
sys.argv[1:] = ["info", "--seconds", "0"]
main()
"""


@pytest.mark.parametrize("moment", ["ags1.errors", "ags1.cli.app", "ags1.cli.info", "end"])
def test_ctrl_c_is_one_line_from_the_beginning_to_the_end(home: Path, moment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, moment], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "ags1: interrupted\n")
