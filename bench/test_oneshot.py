"""Whole bytes to new bytes, and messages of 4 KiB."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import ags1
from ags1 import hazmat
from bench.material import random_bytearray
from bench.peers import pyca
from bench.subjects import messages

NAIVE = {
    "naive": (pyca.naive_encrypt, pyca.naive_decrypt),
    "joined": (pyca.joined_encrypt, pyca.joined_decrypt),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("verb", ["encrypt", "decrypt"])
def test_new_bytes(benchmark: BenchmarkFixture, size: int, verb: str, threads: int) -> None:
    data = bytes(random_bytearray(size))
    sealed, km = ags1.encrypt(data)
    benchmark.group = f"{verb} to new bytes"
    if verb == "encrypt":
        sealed, km = benchmark(ags1.encrypt, data, threads=threads)
        assert ags1.decrypt(sealed, km) == data
    else:
        assert benchmark(ags1.decrypt, sealed, km, threads=threads) == data


@pytest.mark.parametrize("name", NAIVE)
@pytest.mark.parametrize("verb", ["encrypt", "decrypt"])
def test_new_bytes_of_cryptography(
    benchmark: BenchmarkFixture, size: int, verb: str, name: str
) -> None:
    pytest.importorskip("cryptography")
    encrypt, decrypt = NAIVE[name]
    data, key, aad_prefix = bytes(random_bytearray(size)), os.urandom(32), os.urandom(16)
    sealed = encrypt(data, key, aad_prefix)
    benchmark.group = f"{verb} to new bytes"
    if verb == "encrypt":
        sealed = benchmark(encrypt, data, key, aad_prefix)
        km = ags1.KeyMetadata(key, aad_prefix, len(sealed))
        assert ags1.decrypt(sealed, km) == data
    else:
        assert benchmark(decrypt, sealed, key, aad_prefix) == data


@pytest.mark.parametrize("who", ["ags1", "naive"])
def test_message_with_fresh_keys(benchmark: BenchmarkFixture, who: str) -> None:
    message = os.urandom(4096)

    def ours() -> bytes:
        return ags1.decrypt(*ags1.encrypt(message))

    def naive() -> bytes:
        key, aad_prefix = os.urandom(32), os.urandom(16)
        return pyca.naive_decrypt(pyca.naive_encrypt(message, key, aad_prefix), key, aad_prefix)

    if who == "naive":
        pytest.importorskip("cryptography")
    benchmark.group = "4 KiB message, fresh keys"
    assert benchmark(ours if who == "ags1" else naive) == message


def test_message_with_a_kept_cipher(benchmark: BenchmarkFixture) -> None:
    message, slot, text = os.urandom(4096), bytearray(4096 + 28), bytearray(4096)
    cipher = hazmat.BlockCipher(os.urandom(32), os.urandom(16))

    def work() -> None:
        cipher.seal_blocks(message, slot)
        cipher.open_blocks(slot, text)

    benchmark.group = "4 KiB message, kept key"
    benchmark(work)
    assert text == message


@pytest.mark.parametrize("form", [*messages.ENCRYPT_FORMS, *messages.DECRYPT_FORMS])
def test_message_in_each_form(benchmark: BenchmarkFixture, form: str) -> None:
    with tempfile.TemporaryFile() as file:
        sealing, opening = messages.forms(os.urandom(4096), file)
        benchmark.group = f"4 KiB message, each form of {'en' if form in sealing else 'de'}crypt"
        benchmark((sealing | opening)[form])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", ["list", "column"])
@pytest.mark.parametrize("verb", ["encrypt", "decrypt"])
def test_many_messages(
    benchmark: BenchmarkFixture, request: pytest.FixtureRequest, verb: str, form: str, threads: int
) -> None:
    count = 20 if request.config.getoption("--smoke") else 10_000
    batch: Any = [os.urandom(4096) for _ in range(count)]
    if form == "column":
        batch = pytest.importorskip("pyarrow").array(batch)
    sealed = ags1.encrypt_many(batch)
    benchmark.group = f"{verb}_many of 4 KiB messages"
    if verb == "encrypt":
        sealed = benchmark(ags1.encrypt_many, batch, threads=threads)
        assert ags1.decrypt_many(sealed) == batch
    else:
        assert benchmark(ags1.decrypt_many, sealed, threads=threads) == batch
