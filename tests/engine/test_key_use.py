"""A key seals one file: every way of writing takes it, once."""

# ruff: noqa: PT012
from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import ags1
from ags1 import KeyMetadata


def encrypt(km: KeyMetadata, folder: Path, **more: bool) -> object:
    return ags1.encrypt(b"data", km=km, **more)


def encrypt_into(km: KeyMetadata, folder: Path, **more: bool) -> object:
    return ags1.encrypt_into(b"data", bytearray(100), km=km, **more)


def encrypt_file(km: KeyMetadata, folder: Path, **more: bool) -> object:
    (folder / "plain").write_bytes(b"data")
    return ags1.encrypt_file(folder / "plain", folder / "sealed", km=km, overwrite=True, **more)


def write(km: KeyMetadata, folder: Path, **more: bool) -> object:
    with ags1.open(folder / "sealed", "wb", km, **more) as file:
        file.write(b"data")
    return file.key_metadata


WRITERS = pytest.mark.parametrize("writer", [encrypt, encrypt_into, encrypt_file, write])
Write = Callable[..., object]


@WRITERS
def test_a_key_that_was_given_to_a_writer_is_used(writer: Write, tmp_path: Path) -> None:
    for first in (encrypt, encrypt_into, encrypt_file, write):
        km = KeyMetadata.generate()
        first(km, tmp_path)
        with pytest.raises(ags1.KeyReuseError):
            writer(km, tmp_path)
        writer(km, tmp_path, reuse_key=True)
        # An equal object made from its bytes is a key that nobody has seen used.
        writer(KeyMetadata.from_bytes(km.to_bytes()), tmp_path)


@WRITERS
def test_a_key_whose_file_came_to_nothing_is_used(writer: Write, tmp_path: Path) -> None:
    km = KeyMetadata.generate()
    target = io.BytesIO()
    with pytest.raises(RuntimeError):
        with ags1.open(target, "wb", km, block_size=16) as file:
            file.write(bytes(100))
            raise RuntimeError
    with pytest.raises(ags1.KeyReuseError):
        writer(km, tmp_path)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda km, **more: ags1.encrypt("text", km=km, **more), TypeError),
        (lambda km, **more: ags1.encrypt(b"", km=km, block_size=0, **more), ags1.FormatError),
        (lambda km, **more: ags1.encrypt(b"", km=km.encryption_key, **more), TypeError),
        (lambda km, **more: ags1.encrypt_into(b"x", bytearray(36), km=km, **more), ValueError),
        (lambda km, **more: ags1.encrypt_into(b"x", bytes(100), km=km, **more), TypeError),
    ],
)
def test_a_call_with_wrong_arguments_does_not_use_the_key(
    call: Callable[..., object], error: type[Exception], threads: int, tmp_path: Path
) -> None:
    km = KeyMetadata.generate()
    with pytest.raises(error):
        call(km, threads=threads)
    with pytest.raises(ValueError, match="threads"):
        ags1.encrypt(b"", km=km, threads=0)
    with pytest.raises(TypeError):
        ags1.encrypt(b"", km=km, threads=2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads"):
        ags1.encrypt_file(__file__, tmp_path / "sealed", km=km, threads=0)
    ags1.encrypt(b"data", km=km)


@WRITERS
def test_a_key_that_carries_a_file_length_is_used(writer: Write, tmp_path: Path) -> None:
    km = KeyMetadata.generate().with_file_length(36)
    with pytest.raises(ags1.KeyReuseError):
        writer(km, tmp_path)
    assert not (tmp_path / "sealed").exists()
    writer(km, tmp_path, reuse_key=True)


def test_a_key_that_was_read_with_is_not_used_by_that(tmp_path: Path) -> None:
    sealed = ags1.encrypt(b"data")
    km = KeyMetadata(sealed.key_metadata.encryption_key, sealed.key_metadata.aad_prefix)
    assert ags1.decrypt(sealed.data, km, trust_file_size=True) == b"data"
    ags1.encrypt(b"other", km=km)


@pytest.mark.thread_unsafe(reason="a child of a fork has one thread")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@WRITERS
def test_a_key_from_before_a_fork_is_the_parents(writer: Write, tmp_path: Path) -> None:
    km = KeyMetadata.generate()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(ags1.KeyReuseError):
                writer(km, tmp_path)
            writer(KeyMetadata.generate(), tmp_path)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer(km, tmp_path)


@WRITERS
def test_of_two_writers_that_both_found_the_key_unused_one_gets_it(
    writer: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if another thread had come between the look and the taking.
    monkeypatch.setattr(KeyMetadata, "used", False)
    km = KeyMetadata.generate()
    writer(km, tmp_path)
    with pytest.raises(ags1.KeyReuseError):
        writer(km, tmp_path)
    writer(km, tmp_path, reuse_key=True)


@WRITERS
def test_of_many_threads_one_gets_the_key(writer: Write, tmp_path: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for i in range(15):
            km = KeyMetadata.generate()
            barrier = threading.Barrier(6)
            outcomes: list[str] = []

            def work(
                number: int, km: KeyMetadata = km, barrier: threading.Barrier = barrier
            ) -> None:
                folder = tmp_path / str(number)
                folder.mkdir(exist_ok=True)
                barrier.wait()
                try:
                    writer(km, folder)
                    outcomes.append("sealed")  # noqa: B023
                except ags1.KeyReuseError:
                    outcomes.append("refused")  # noqa: B023

            workers = [threading.Thread(target=work, args=(n,)) for n in range(6)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            assert sorted(outcomes) == ["refused"] * 5 + ["sealed"], f"round {i}"
    finally:
        sys.setswitchinterval(interval)
