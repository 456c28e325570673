"""The block cipher: NIST's vectors, every kind of buffer, refusals, threads, forks."""

from __future__ import annotations

import array
import concurrent.futures
import copy
import ctypes
import functools
import json
import mmap
import os
import pickle
import ssl
import struct
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cryptography_vectors
import numpy as np
import pytest
import reference
from conftest import RunPython
from hypothesis import given
from hypothesis import strategies as st

from ags1 import layout
from ags1.engine import _gcm, _messages
from ags1.engine._gcm import BlockCipher
from ags1.errors import Ags1Error, AuthenticationError, FormatError, KeyMetadataError, KeyReuseError

KEY = bytes(range(16))
PREFIX = b"sixteen byte aad"
key_sizes = pytest.mark.parametrize("key_size", [16, 24, 32])
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def sealed_size(size: int, block_size: int) -> int:
    return size + 28 * max(1, -(-size // block_size))


def seal(cipher: BlockCipher, data: bytes, first_block: int = 0) -> bytearray:
    out = bytearray(sealed_size(len(data), cipher.block_size))
    assert cipher.seal_blocks(data, out, first_block) == len(out)
    return out


_READABLE = ctypes.create_string_buffer(64)


def pretended_buffer(size: int) -> Any:
    """Return a buffer that says it is so large, of which only the first bytes may be read."""
    return (ctypes.c_char * size).from_address(ctypes.addressof(_READABLE))


# ---- NIST CAVP and Wycheproof ------------------------------------------------------------------


@functools.cache
def nist_vectors(name: str) -> list[dict[str, bytes | None]]:
    """Return those with AGS1's parameters: a 96-bit IV and a 128-bit tag."""
    vectors = []
    with cryptography_vectors.open_vector_file(f"ciphers/AES/GCM/{name}.rsp", "r") as file:
        sizes: dict[str, int] = {}
        vector: dict[str, bytes | None] = {}
        for line in [*file.read().splitlines(), ""]:
            if line.startswith("["):
                field, _, value = line.strip("[]").partition(" = ")
                sizes[field] = int(value)
            elif line == "FAIL":
                vector["PT"] = None
            elif " = " in line or line.endswith(" ="):
                field, _, value = line.partition(" =")
                if field != "Count":
                    vector[field] = bytes.fromhex(value)
            elif not line and vector:
                if sizes["IVlen"] == 96 and sizes["Taglen"] == 128:
                    vectors.append(vector)
                vector = {}
    return vectors


nist_files = pytest.mark.parametrize(
    "name", [f"gcm{kind}{bits}" for kind in ("Decrypt", "EncryptExtIV") for bits in (128, 192, 256)]
)


@nist_files
def test_nist_vectors_as_messages(name: str) -> None:
    count = failures = 0
    for vector in nist_vectors(name):
        sealed = vector["IV"] + vector["CT"] + vector["Tag"]  # type: ignore[operator]
        if vector["PT"] is None:
            failures += 1
            with pytest.raises(AuthenticationError):
                _messages.open(vector["Key"], sealed, vector["AAD"])
        else:
            assert _messages.open(vector["Key"], sealed, vector["AAD"]) == vector["PT"]
        count += 1
    assert count == 375
    assert (failures > 100) is name.startswith("gcmDecrypt")


def check_block(
    key: bytes, prefix: bytes, number: int, sealed: bytes, expected: bytes | None
) -> None:
    """Open one block; ``expected`` is None for one that must fail."""
    size = len(sealed) - 28
    cipher = BlockCipher(key, prefix, block_size=max(1, size))
    out = bytearray(b"\xaa" * (size + 3))
    if expected is None:
        with pytest.raises(AuthenticationError) as caught:
            cipher.open_blocks(sealed, out, number)
        assert caught.value.block == number
    else:
        assert cipher.open_blocks(sealed, out, number) == size
    assert out == (expected or bytes(size)) + b"\xaa" * 3


@nist_files
def test_nist_vectors_as_blocks(name: str) -> None:
    count = 0
    for vector in nist_vectors(name):
        key, iv, text, tag, aad = (vector[f] or b"" for f in ("Key", "IV", "CT", "Tag", "AAD"))
        # A block's AAD ends with its number: those vectors fit whose AAD ends with one.
        if len(aad) < 4 or (number := int.from_bytes(aad[-4:], "little")) > 2**31 - 2:
            continue
        count += 1
        check_block(key, aad[:-4], number, iv + text + tag, vector["PT"])
    assert (
        count
        == {
            "gcmDecrypt128": 141,
            "gcmDecrypt192": 134,
            "gcmDecrypt256": 161,
            "gcmEncryptExtIV128": 153,
            "gcmEncryptExtIV192": 162,
            "gcmEncryptExtIV256": 148,
        }[name]
    )


def wycheproof() -> Iterator[tuple[bytes, bytes, bytes, bytes, bytes | None]]:
    """Yield key, nonce, AAD, ciphertext with its tag, and the plaintext, None if it must fail."""
    path = Path(__file__).parents[1] / "vectors" / "wycheproof_aes_gcm.json"
    for case in json.loads(path.read_text()):
        names = ("key", "iv", "aad", "msg", "ct", "tag")
        key, iv, aad, message, ciphertext, tag = (bytes.fromhex(case[name]) for name in names)
        yield key, iv, aad, ciphertext + tag, message if case["result"] == "valid" else None


def test_wycheproof_as_messages() -> None:
    valid = invalid = other_nonces = 0
    for key, iv, aad, sealed, expected in wycheproof():
        if len(iv) == 12 and expected is not None:
            valid += 1
            assert _messages.open(key, iv + sealed, aad) == expected
            continue
        # A nonce of another size cannot be expressed, and is not taken for one of ours.
        other_nonces += len(iv) != 12
        invalid += len(iv) == 12
        with pytest.raises(AuthenticationError):
            _messages.open(key, iv + sealed, aad)
    assert (valid, invalid, other_nonces) == (116, 81, 119)


def test_wycheproof_as_blocks() -> None:
    outcomes = []
    for key, iv, aad, sealed, expected in wycheproof():
        number = int.from_bytes(aad[-4:], "little")
        if len(iv) == 12 and len(aad) >= 4 and number <= 2**31 - 2:
            outcomes.append(expected is not None)
            check_block(key, aad[:-4], number, iv + sealed, expected)
    assert (outcomes.count(True), outcomes.count(False)) == (20, 0)


# ---- runs of blocks against the reference ------------------------------------------------------


@given(
    st.sampled_from([16, 24, 32]),
    st.none() | st.binary(max_size=40),
    st.integers(1, 40),
    st.binary(max_size=300),
)
def test_the_reference_opens_what_is_sealed_and_the_other_way(
    key_size: int, prefix: bytes | None, block_size: int, data: bytes
) -> None:
    key = bytes(range(key_size))
    cipher = BlockCipher(key, prefix, block_size=block_size)
    assert (cipher.key_size, cipher.block_size) == (key_size, block_size)
    stream = layout.build_header(block_size) + seal(cipher, data)
    assert reference.decrypt(stream, key, prefix, len(stream)) == data
    blocks = reference.encrypt(data, key, prefix, block_size)[8:]
    out = bytearray(b"\xaa" * (len(data) + 5))
    assert cipher.open_blocks(blocks, out) == len(data)
    assert out == data + b"\xaa" * 5


@given(st.integers(1, 40), st.binary(min_size=1, max_size=300), st.data())
def test_a_run_may_begin_at_any_block(block_size: int, text: bytes, data: st.DataObject) -> None:
    cipher = BlockCipher(KEY, PREFIX, block_size=block_size)
    blocks = -(-len(text) // block_size)
    first = data.draw(st.integers(0, 2**31 - 1 - blocks))
    sealed = seal(cipher, text, first)
    out = bytearray(len(text))
    cipher.open_blocks(sealed, out, first)
    assert out == text
    # One by one they open under their own numbers, and under no other.
    stride = block_size + 28
    for i in range(blocks):
        one = sealed[i * stride : (i + 1) * stride]
        aad = PREFIX + struct.pack("<i", first + i)
        assert _messages.open(KEY, one, aad) == text[i * block_size : (i + 1) * block_size]
        with pytest.raises(AuthenticationError):
            cipher.open_blocks(one, bytearray(block_size), (first + i + 1) % (2**31 - 1))


@given(st.integers(1, 40), st.binary(max_size=300), st.integers(0, 1000))
def test_in_place_is_the_same_run(block_size: int, data: bytes, first: int) -> None:
    cipher = BlockCipher(KEY, PREFIX, block_size=block_size)
    stride = block_size + 28
    slots = bytearray(sealed_size(len(data), block_size))
    for i in range(-(-len(data) // block_size)):
        part = data[i * block_size : (i + 1) * block_size]
        slots[i * stride + 12 : i * stride + 12 + len(part)] = part
    assert cipher.seal_in_place(slots, first) == len(data)
    out = bytearray(len(data))
    assert cipher.open_blocks(slots, out, first) == len(data)
    assert out == data
    assert cipher.open_in_place(slots, first) == len(data)
    found = b"".join(slots[at : at + stride][12:-16] for at in range(0, len(slots), stride))
    assert found == data


@key_sizes
def test_messages_both_ways(key_size: int) -> None:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key = os.urandom(key_size)
    for size in (0, 1, 15, 16, 17, 4096, 100_000):
        for aad in (b"", b"a", os.urandom(100)):
            data = os.urandom(size)
            sealed = _messages.seal(key, data, aad)
            assert type(sealed) is bytes
            assert len(sealed) == size + 28
            assert AESGCM(key).decrypt(sealed[:12], sealed[12:], aad) == data
            nonce = os.urandom(12)
            opened = _messages.open(key, nonce + AESGCM(key).encrypt(nonce, data, aad), aad)
            assert type(opened) is bytes
            assert opened == data


@given(st.binary(max_size=60), st.binary(max_size=20), st.data())
def test_a_changed_message_is_refused(text: bytes, aad: bytes, data: st.DataObject) -> None:
    sealed = bytearray(_messages.seal(KEY, text, aad))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(AuthenticationError):
        _messages.open(KEY, sealed, aad)
    sealed = bytearray(_messages.seal(KEY, text, aad))
    for changed in (sealed[:-1], sealed[1:], sealed[:27], b"", sealed + b"\0"):
        with pytest.raises(AuthenticationError):
            _messages.open(KEY, changed, aad)
    for other in (aad + b"\0", b"x" + aad):
        with pytest.raises(AuthenticationError):
            _messages.open(KEY, sealed, other)
    with pytest.raises(AuthenticationError):
        _messages.open(bytes(16), sealed, aad)


# ---- nonces ------------------------------------------------------------------------------------


def nonces_of(run: bytes | bytearray, block_size: int) -> list[bytes]:
    return [bytes(run[at : at + 12]) for at in range(0, len(run), block_size + 28)]


def test_every_block_has_a_nonce_of_its_own() -> None:
    cipher = BlockCipher(KEY, block_size=1)
    nonces = [n for _ in range(3) for n in nonces_of(seal(cipher, bytes(1000)), 1)]
    slots = bytearray(29 * 1000)
    cipher.seal_in_place(slots)
    nonces += nonces_of(slots, 1)
    nonces += [_messages.seal(KEY, b"")[:12] for _ in range(1000)]
    assert len(nonces) == len(set(nonces)) == 5000
    # Random ones, not counters: every bit is one about half the time.
    for bit in range(96):
        ones = sum(nonce[bit // 8] >> (bit % 8) & 1 for nonce in nonces)
        assert 2000 < ones < 3000


def test_random_bytes() -> None:
    assert _gcm.random_bytes(0) == b""
    drawn = [_gcm.random_bytes(16) for _ in range(1000)]
    assert len(set(drawn)) == 1000
    assert {len(d) for d in drawn} == {16}
    assert type(drawn[0]) is bytes
    for bad in (-1, 2**31, 2**40):
        with pytest.raises((ValueError, OverflowError)):
            _gcm.random_bytes(bad)


# ---- buffers -----------------------------------------------------------------------------------


def _mmap(data: bytes) -> mmap.mmap:
    area = mmap.mmap(-1, len(data))
    area[:] = data
    return area


def _pyarrow(data: bytes) -> Any:
    return pytest.importorskip("pyarrow").py_buffer(bytearray(data))


# Sizes are multiples of 16 so that every element type divides them.
BUFFERS: dict[str, Callable[[bytes], Any]] = {
    "bytearray": bytearray,
    "memoryview": lambda data: memoryview(bytearray(data)),
    "memoryview slice": lambda data: memoryview(bytearray(b"..." + data + b"..."))[3:-3],
    "memoryview of ints": lambda data: memoryview(bytearray(data)).cast("I"),
    "memoryview 2-d": lambda data: memoryview(bytearray(data)).cast("B", (2, len(data) // 2)),
    "array": lambda data: array.array("H", data),
    "ctypes": lambda data: (ctypes.c_char * len(data)).from_buffer(bytearray(data)),
    "mmap": _mmap,
    "pyarrow": _pyarrow,
    "numpy 2-d": lambda data: np.frombuffer(bytearray(data), "u1").reshape(2, -1),
    "numpy record": lambda data: np.frombuffer(bytearray(data), [("a", "<i4"), ("b", "<f4")]),
} | {
    f"numpy {dtype}": lambda data, dtype=dtype: np.frombuffer(bytearray(data), dtype)  # type: ignore[misc]
    for dtype in ("u1", "i1", "?", "<u2", ">i4", "f2", "f4", "f8", "c16", "S4", "U1", "V2")
}
READ_ONLY: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "memoryview of bytes": memoryview,
    "toreadonly": lambda data: memoryview(bytearray(data)).toreadonly(),
    "numpy": lambda data: np.frombuffer(data, "u1"),
    "pyarrow": lambda data: pytest.importorskip("pyarrow").py_buffer(data),
}
NOT_CONTIGUOUS: dict[str, Callable[[int], Any]] = {
    "strided": lambda size: memoryview(bytearray(2 * size))[::2],
    "reversed": lambda size: memoryview(bytearray(size))[::-1],
    "numpy column": lambda size: np.zeros((size, 3), "u1")[:, 1],
    "numpy Fortran": lambda size: np.zeros((2, size // 2), "u1", order="F"),
}


def content(buffer: Any) -> bytes:
    return (
        bytes(memoryview(buffer).cast("B"))
        if not isinstance(buffer, np.ndarray)
        else (buffer.tobytes())
    )


@pytest.mark.parametrize("kind", [*BUFFERS, *(f"read-only {k}" for k in READ_ONLY)])
def test_inputs_of_every_kind(kind: str) -> None:
    make = BUFFERS.get(kind) or READ_ONLY[kind.removeprefix("read-only ")]
    data = reference.pattern(96)
    cipher = BlockCipher(make(KEY), make(PREFIX), block_size=36)
    out = bytearray(180)
    cipher.seal_blocks(make(data), out)
    assert reference.decrypt(layout.build_header(36) + out, KEY, PREFIX) == data
    cipher = BlockCipher(KEY, PREFIX, block_size=20)
    sealed, text = seal(cipher, data[:40]), bytearray(40)
    assert len(sealed) == 96
    cipher.open_blocks(make(bytes(sealed)), text)
    assert text == data[:40]
    message = _messages.seal(make(KEY), make(data), make(PREFIX))
    assert _messages.open(KEY, message, PREFIX) == data
    message = _messages.seal(KEY, data[:36], PREFIX)
    assert len(message) == 64
    assert _messages.open(make(KEY), make(message), make(PREFIX)) == data[:36]


@pytest.mark.parametrize("kind", BUFFERS)
def test_outputs_of_every_kind(kind: str) -> None:
    make = BUFFERS[kind]
    cipher = BlockCipher(KEY, PREFIX, block_size=20)
    data = reference.pattern(40)
    out = make(b"\xaa" * 112)
    if kind == "pyarrow" and memoryview(out).readonly:
        pytest.skip("this pyarrow offers no writable buffers")
    assert cipher.seal_blocks(data, out) == 96
    assert content(out)[96:] == b"\xaa" * 16
    sealed = content(out)[:96]
    out = make(b"\xaa" * 48)
    assert cipher.open_blocks(sealed, out) == 40
    assert content(out) == data + b"\xaa" * 8
    slots = make(sealed)
    assert cipher.open_in_place(slots) == 40
    assert content(slots)[12:32] + content(slots)[60:80] == data
    assert cipher.seal_in_place(slots) == 40
    assert cipher.open_blocks(slots, bytearray(40)) == 40


@pytest.mark.parametrize("kind", READ_ONLY)
def test_read_only_outputs_are_refused(kind: str) -> None:
    make = READ_ONLY[kind]
    cipher = BlockCipher(KEY, block_size=16)
    sealed = bytes(seal(cipher, bytes(32)))
    out = make(bytes(88))
    before = content(out)
    for call in (
        lambda: cipher.seal_blocks(bytes(32), out),
        lambda: cipher.open_blocks(sealed, out),
        lambda: cipher.seal_in_place(out),
        lambda: cipher.open_in_place(make(sealed)),
    ):
        with pytest.raises((TypeError, BufferError, ValueError)):  # numpy's own is a ValueError
            call()
    assert content(out) == before


@pytest.mark.parametrize("kind", NOT_CONTIGUOUS)
def test_buffers_with_gaps_are_refused(kind: str) -> None:
    make = NOT_CONTIGUOUS[kind]
    cipher = BlockCipher(KEY, block_size=16)
    for call in (
        lambda: cipher.seal_blocks(make(32), bytearray(88)),
        lambda: cipher.seal_blocks(bytes(32), make(88)),
        lambda: cipher.open_blocks(make(88), bytearray(32)),
        lambda: cipher.open_blocks(seal(cipher, bytes(32)), make(32)),
        lambda: cipher.seal_in_place(make(88)),
        lambda: cipher.open_in_place(make(88)),
        lambda: _messages.seal(KEY, make(32)),
        lambda: _messages.seal(KEY, b"", make(32)),
        lambda: _messages.seal(make(16), b""),
        lambda: BlockCipher(make(16)),
    ):
        with pytest.raises((BufferError, TypeError, ValueError)):
            call()


@pytest.mark.parametrize("size", [0, 1, 255, 256, 4096, 65_537])
def test_buffers_at_every_alignment(size: int) -> None:
    cipher = BlockCipher(KEY, PREFIX, block_size=4096)
    data = reference.pattern(size)
    room = sealed_size(size, 4096)
    for offset in range(17):
        source, sealed, opened = bytearray(size + 40), bytearray(room + 40), bytearray(size + 40)
        source[offset : offset + size] = data
        cipher.seal_blocks(memoryview(source)[offset : offset + size], memoryview(sealed)[offset:])
        assert sealed[:offset] + sealed[offset + room :] == bytes(40)
        cipher.open_blocks(memoryview(sealed)[offset : offset + room], memoryview(opened)[offset:])
        assert opened == source


@pytest.mark.parametrize("bad", [None, "text", 5, 1.5, [1, 2], object()])
def test_what_is_no_buffer_is_refused(bad: Any) -> None:
    cipher = BlockCipher(KEY, block_size=16)
    for call in (
        lambda: BlockCipher(bad),
        lambda: cipher.seal_blocks(bad, bytearray(100)),
        lambda: cipher.seal_blocks(b"", bad),
        lambda: cipher.open_blocks(bad, bytearray(100)),
        lambda: cipher.open_blocks(bytes(28), bad),
        lambda: cipher.seal_in_place(bad),
        lambda: cipher.open_in_place(bad),
        lambda: _messages.seal(bad, b""),
        lambda: _messages.seal(KEY, bad),
        lambda: _messages.seal(KEY, b"", bad),
        lambda: _messages.open(bad, bytes(28)),
        lambda: _messages.open(KEY, bad),
        lambda: _messages.open(KEY, bytes(28), bad),
    ):
        with pytest.raises(TypeError):
            call()
    if bad is not None:
        with pytest.raises(TypeError):
            BlockCipher(KEY, bad)


def test_a_buffer_is_let_go_after_the_call() -> None:
    cipher = BlockCipher(KEY, block_size=16)
    data, out = bytearray(16), bytearray(44)
    cipher.seal_blocks(data, out)
    with pytest.raises(ValueError, match="output"):
        cipher.seal_blocks(data, bytearray(1))
    wrong = bytearray(out)
    wrong[0] ^= 1
    text = bytearray(16)
    with pytest.raises(AuthenticationError):
        cipher.open_blocks(wrong, text)
    with pytest.raises(AuthenticationError):
        cipher.open_in_place(wrong)
    for buffer in (data, out, wrong, text):
        buffer.append(0)  # raises BufferError while somebody holds it


# ---- overlap -----------------------------------------------------------------------------------


@given(st.data())
def test_overlap_is_refused_unless_it_is_exactly_in_place(data: st.DataObject) -> None:
    block_size = data.draw(st.integers(1, 20))
    size = data.draw(st.integers(1, 60))
    cipher = BlockCipher(KEY, PREFIX, block_size=block_size)
    room = sealed_size(size, block_size)
    text_at = data.draw(st.integers(0, 400))
    slots_at = data.draw(st.one_of(st.integers(0, 400), st.just(max(0, text_at - 12))))
    apart = text_at + size <= slots_at or slots_at + room <= text_at
    in_place = size <= block_size and text_at == slots_at + 12
    text = os.urandom(size)

    buffer = bytearray(os.urandom(3000))
    buffer[text_at : text_at + size] = text
    before = bytes(buffer)
    view = memoryview(buffer)
    arguments = view[text_at : text_at + size], view[slots_at : slots_at + room]
    if apart or in_place:
        assert cipher.seal_blocks(*arguments) == room
        out = bytearray(size)
        cipher.open_blocks(arguments[1], out)
        assert out == text
    else:
        with pytest.raises(ValueError, match="overlap"):
            cipher.seal_blocks(*arguments)
        assert buffer == before

    buffer[slots_at : slots_at + room] = seal(cipher, text)
    before = bytes(buffer)
    arguments = view[slots_at : slots_at + room], view[text_at : text_at + size]
    if apart or in_place:
        assert cipher.open_blocks(*arguments) == size
        assert arguments[1] == text
    else:
        with pytest.raises(ValueError, match="overlap"):
            cipher.open_blocks(*arguments)
        assert buffer == before


# ---- failure zeroes the output -----------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 30), st.data())
def test_a_failed_open_leaves_zeros_and_nothing_else(
    block_size: int, size: int, margin: int, data: st.DataObject
) -> None:
    cipher = BlockCipher(KEY, PREFIX, block_size=block_size)
    sealed = seal(cipher, reference.pattern(size), 5)
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= 1 << data.draw(st.integers(0, 7))
    number = 5 + at // (block_size + 28)

    before = bytes(sealed)
    whole = bytearray(b"\xaa" * (margin + size + margin))
    with pytest.raises(AuthenticationError, match=f"block {number} ") as caught:
        cipher.open_blocks(sealed, memoryview(whole)[margin:], 5)
    assert caught.value.block == number
    assert caught.value.offset == 8 + number * (block_size + 28)
    assert whole == b"\xaa" * margin + bytes(size) + b"\xaa" * margin
    assert sealed == before

    whole = bytearray(b"\xaa" * margin + sealed + b"\xaa" * margin)
    with pytest.raises(AuthenticationError) as caught:
        cipher.open_in_place(memoryview(whole)[margin : margin + len(sealed)], 5)
    assert caught.value.block == number
    assert whole == b"\xaa" * margin + bytes(len(sealed)) + b"\xaa" * margin


@pytest.mark.parametrize("bad_block", [0, 1, 2])
def test_a_failed_open_of_large_blocks_leaves_zeros(bad_block: int) -> None:
    cipher = BlockCipher(KEY, PREFIX)
    size = (2 << 20) + 12345
    sealed = seal(cipher, reference.pattern(size))
    sealed[bad_block * ((1 << 20) + 28) + 12] ^= 0x80
    out = bytearray(b"\xaa" * (size + 100))
    with pytest.raises(AuthenticationError) as caught:
        cipher.open_blocks(sealed, out)
    assert caught.value.block == bad_block
    assert out == bytes(size) + b"\xaa" * 100


def test_a_cipher_works_after_a_failure() -> None:
    cipher = BlockCipher(KEY, PREFIX, block_size=16)
    sealed = seal(cipher, reference.pattern(50))
    for _ in range(3):
        with pytest.raises(AuthenticationError):
            cipher.open_blocks(sealed, bytearray(50), 1)
        out = bytearray(50)
        assert cipher.open_blocks(sealed, out) == 50
        assert out == reference.pattern(50)


def test_failures_leave_pythons_ssl_alone() -> None:
    for _ in range(100):
        with pytest.raises(AuthenticationError):
            _messages.open(KEY, bytes(28))
    ssl.create_default_context().set_ciphers("ECDHE+AESGCM")
    left, right = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(left, right, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()


# ---- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 8, 15, 17, 23, 25, 31, 33, 64, 256])
def test_other_key_lengths_are_refused(size: int) -> None:
    for call in (
        lambda: BlockCipher(bytes(size)),
        lambda: _messages.seal(bytes(size), b""),
        lambda: _messages.open(bytes(size), bytes(28)),
    ):
        with pytest.raises(KeyMetadataError, match=f"16, 24 or 32 bytes, not {size}"):
            call()


@pytest.mark.parametrize("block_size", [0, -1, layout.MAX_BLOCK_SIZE + 1, 2**31, 2**64, -(2**64)])
def test_block_sizes_that_do_not_exist_are_refused(block_size: int) -> None:
    with pytest.raises(FormatError):
        BlockCipher(KEY, block_size=block_size)


def test_the_largest_message_that_is_sealed_is_opened() -> None:
    largest, key = 2**31 - 1 - 28, b"no AES key"  # refused once the sizes are accepted
    with pytest.raises(KeyMetadataError, match="10"):
        _messages.seal(key, pretended_buffer(largest))
    with pytest.raises(KeyMetadataError, match="10"):
        _messages.open(key, pretended_buffer(largest + 28))
    with pytest.raises(ValueError, match="limited"):
        _messages.seal(key, pretended_buffer(largest + 1))
    with pytest.raises(ValueError, match="limited"):
        _messages.open(key, pretended_buffer(largest + 29))


@pytest.mark.skipif(sys.maxsize < 2**32, reason="no such size here")
def test_the_size_of_a_key_is_not_cut_to_32_bits() -> None:
    with pytest.raises(KeyMetadataError):
        _messages.seal(pretended_buffer(2**32 + 16), b"")
    with pytest.raises(KeyMetadataError):
        BlockCipher(pretended_buffer(2**32 + 16))


@pytest.mark.parametrize("block_size", ["16", 16.0, 1.5, None, b"16"])
def test_a_block_size_is_an_int(block_size: Any) -> None:
    with pytest.raises(TypeError):
        BlockCipher(KEY, block_size=block_size)


def test_the_largest_block_size_allocates_nothing() -> None:
    cipher = BlockCipher(KEY, block_size=layout.MAX_BLOCK_SIZE)
    sealed = seal(cipher, b"small")
    out = bytearray(5)
    assert cipher.open_blocks(sealed, out) == 5
    assert out == b"small"


CALLS = pytest.mark.parametrize(
    "call", ["seal_blocks", "open_blocks", "seal_in_place", "open_in_place"]
)


def call_with_first_block(name: str, first_block: Any) -> int:
    cipher = BlockCipher(KEY, block_size=16)
    # Two blocks whose numbers the calls that open must not get as far as.
    buffers = {"seal_blocks": (bytes(32), bytearray(88)), "open_blocks": (bytes(88), bytearray(32))}
    return getattr(cipher, name)(*buffers.get(name, (bytearray(88),)), first_block)  # type: ignore[no-any-return]


@CALLS
@pytest.mark.parametrize(
    "first", [-1, 2**31 - 2, 2**31 - 1, 2**31, 2**32, 2**32 + 1, -(2**32), 2**62]
)
def test_block_numbers_beyond_int32_are_refused(call: str, first: int) -> None:
    with pytest.raises(ValueError, match="from"):
        call_with_first_block(call, first)
    with pytest.raises((ValueError, OverflowError)):
        call_with_first_block(call, 2**70)


@CALLS
@pytest.mark.parametrize("first", ["0", 0.0, 1.5, None, b""])
def test_a_block_number_is_an_int(call: str, first: Any) -> None:
    with pytest.raises(TypeError):
        call_with_first_block(call, first)


def test_the_last_block_number_works() -> None:
    cipher = BlockCipher(KEY, block_size=16)
    sealed = seal(cipher, bytes(20), 2**31 - 3)
    assert cipher.open_blocks(sealed, bytearray(20), 2**31 - 3) == 20
    assert _messages.open(KEY, sealed[44:], struct.pack("<i", 2**31 - 2)) == bytes(4)


@pytest.mark.parametrize("size", [0, 1, 27, 44 + 1, 44 + 27, 44 + 28, 88 + 28])
def test_lengths_that_are_no_run_are_refused(size: int) -> None:
    cipher = BlockCipher(KEY, block_size=16)
    for call in (
        lambda: cipher.open_blocks(bytes(size), bytearray(100)),
        lambda: cipher.open_in_place(bytearray(size)),
        lambda: cipher.seal_in_place(bytearray(size)),
    ):
        with pytest.raises(ValueError, match="run of blocks"):
            call()


@given(st.integers(1, 40), st.integers(0, 200), st.data())
def test_an_output_that_is_too_small_is_refused(
    block_size: int, size: int, data: st.DataObject
) -> None:
    cipher = BlockCipher(KEY, block_size=block_size)
    sealed = seal(cipher, bytes(size))
    small = bytearray(b"\xaa" * data.draw(st.integers(0, len(sealed) - 1)))
    with pytest.raises(ValueError, match="output needs"):
        cipher.seal_blocks(bytes(size), small)
    assert small == b"\xaa" * len(small)
    if size:
        small = bytearray(b"\xaa" * data.draw(st.integers(0, size - 1)))
        with pytest.raises(ValueError, match="output needs"):
            cipher.open_blocks(sealed, small)
        assert small == b"\xaa" * len(small)


def test_an_empty_run_is_one_empty_block() -> None:
    cipher = BlockCipher(KEY, PREFIX, block_size=16)
    sealed = seal(cipher, b"", 3)
    assert len(sealed) == 28
    assert cipher.open_blocks(sealed, bytearray(), 3) == 0
    assert cipher.open_in_place(bytearray(sealed), 3) == 0
    with pytest.raises(AuthenticationError):
        cipher.open_blocks(sealed, bytearray(), 4)


def test_pickling_and_copying_are_refused() -> None:
    cipher = BlockCipher(KEY)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="key"):
            pickle.dumps(cipher, protocol)
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            duplicate(cipher)


def test_a_cipher_cannot_be_changed() -> None:
    cipher = BlockCipher(KEY)
    for name in ("key_size", "block_size", "another"):
        with pytest.raises(AttributeError):
            setattr(cipher, name, 16)


def test_a_cipher_made_without_init_holds_no_key() -> None:
    with pytest.raises(TypeError):
        BlockCipher.__new__(BlockCipher)  # type: ignore[call-arg]


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="looks into the object")
def test_a_key_seals_at_most_2_32_blocks() -> None:
    cipher = BlockCipher(KEY, block_size=1)
    seal(cipher, bytes(23_456))
    # Nobody can wait for 2**32 blocks: find the counter in the object by its value and advance it.
    raw = (ctypes.c_char * BlockCipher.__basicsize__).from_address(id(cipher))
    at = [i for i in range(0, len(raw) - 7, 8) if raw[i : i + 8] == struct.pack("<Q", 23_456)]
    assert len(at) == 1
    raw[at[0] : at[0] + 8] = struct.pack("<Q", 2**32 - 5)
    seal(cipher, bytes(3))
    with pytest.raises(KeyReuseError):
        seal(cipher, bytes(3))
    slots = bytearray(29 * 3)
    with pytest.raises(KeyReuseError):
        cipher.seal_in_place(slots)
    assert slots == bytes(29 * 3)
    last = seal(cipher, bytes(2))
    with pytest.raises(KeyReuseError):
        seal(cipher, b"")
    assert cipher.open_blocks(last, bytearray(2)) == 2


def test_libcrypto() -> None:
    about = _gcm.libcrypto()
    assert about["version"].startswith("OpenSSL ")
    assert isinstance(about["source"], str)
    assert about["source"]
    assert about["fips"] == ("AGS1_TEST_FIPS" in os.environ)


# ---- threads, forks, interpreters --------------------------------------------------------------


def test_many_threads_share_one_cipher() -> None:
    cipher = BlockCipher(bytes(32), PREFIX, block_size=1000)

    def work(seed: int) -> list[bytes]:
        nonces = []
        for i in range(30):
            data = reference.pattern(seed * 37 + i * 101)
            first = seed * 1000 + i
            sealed = seal(cipher, data, first)
            nonces += nonces_of(sealed, 1000)
            out = bytearray(len(data))
            assert cipher.open_blocks(sealed, out, first) == len(data)
            assert out == data
            sealed[len(sealed) // 2] ^= 1
            with pytest.raises(AuthenticationError):
                cipher.open_blocks(sealed, out, first)
            assert out == bytes(len(data))
        return nonces

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        nonces = [nonce for part in pool.map(work, range(64)) for nonce in part]
    assert len(nonces) == len(set(nonces)) > 64 * 30


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="this Python has no GIL"
)
@pytest.mark.parametrize("call", ["seal_blocks", "open_blocks", "seal_in_place", "open_in_place"])
def test_the_gil_is_released(call: str) -> None:
    cipher = BlockCipher(KEY)
    data = bytearray(24 << 20)
    slots = bytearray(sealed_size(len(data), 1 << 20))
    arguments = {"seal_blocks": (data, slots), "open_blocks": (slots, data)}.get(call, (slots,))

    def runs_amid_the_call() -> bool:
        cipher.seal_blocks(data, slots)
        span: list[float] = []

        def work() -> None:
            span.append(time.perf_counter())
            getattr(cipher, call)(*arguments)
            span.append(time.perf_counter())

        thread = threading.Thread(target=work)
        ticks = []
        thread.start()
        while thread.is_alive():
            ticks.append(time.perf_counter())
            time.sleep(0)
        thread.join()
        begin, end = span
        return any(begin + (end - begin) / 4 < t < end - (end - begin) / 4 for t in ticks)

    # With the GIL held, it never does. On a busy machine, this thread may get no CPU meanwhile.
    assert any(runs_amid_the_call() for _ in range(50))


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked child and return its exit code; 124 when it hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return 124


@pytest.mark.thread_unsafe(reason="a child of a fork has one thread")
@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_opens_but_does_not_seal() -> None:
    cipher = BlockCipher(KEY, block_size=16)
    sealed = seal(cipher, bytes(40))

    def work() -> None:
        out = bytearray(b"\xaa" * 40)
        assert cipher.open_blocks(sealed, out) == 40
        assert out == bytes(40)
        for call in (
            lambda: cipher.seal_blocks(b"", out),
            lambda: cipher.seal_in_place(bytearray(28)),
        ):
            with pytest.raises(KeyReuseError, match="fork"):
                call()
        fresh = BlockCipher(KEY, block_size=16)
        assert fresh.open_blocks(seal(fresh, bytes(40)), out) == 40
        # And the same again one generation on.
        assert in_child(grandchild) == 0

    def grandchild() -> None:
        with pytest.raises(KeyReuseError):
            cipher.seal_blocks(b"", bytearray(28))

    assert in_child(work) == 0
    assert len(seal(cipher, bytes(40))) == 40 + 3 * 28


@pytest.mark.thread_unsafe(reason="a child of a fork has one thread")
@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_children_draw_other_random_bytes() -> None:
    _gcm.random_bytes(16)
    read, write = os.pipe()
    for _ in range(4):
        child = os.fork()
        if child == 0:
            os.write(write, _gcm.random_bytes(16) + _messages.seal(KEY, b"")[:12] + bytes(4))
            os._exit(0)
        os.waitpid(child, 0)
    os.close(write)
    drawn = [os.read(read, 32) for _ in range(4)]
    os.close(read)
    drawn.append(_gcm.random_bytes(16) + _messages.seal(KEY, b"")[:12] + bytes(4))
    assert len({d[:16] for d in drawn}) == len({d[16:28] for d in drawn}) == 5


def test_a_checksum_is_for_one_thread() -> None:
    checksum, text, refused = _gcm.Checksum(bytes(32)), bytes(8 << 20), threading.Event()
    until = time.monotonic() + 60

    def work() -> None:
        while not refused.is_set() and time.monotonic() < until:
            try:
                checksum.update(text)
            except RuntimeError:
                refused.set()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused.is_set()
    assert len(checksum.finish()) == 16


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("forks", [4, pytest.param(15, marks=pytest.mark.slow)])
def test_forks_amid_sealing_threads_do_not_hang(forks: int) -> None:
    cipher = BlockCipher(KEY, block_size=16)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            seal(cipher, bytes(1600))
            _gcm.random_bytes(16)

    def child() -> None:
        fresh = BlockCipher(KEY, block_size=16)
        out = bytearray(160)
        fresh.open_blocks(seal(fresh, bytes(160)), out)
        assert len(_gcm.random_bytes(16)) == 16

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(forks):
            assert in_child(child) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


SUBINTERPRETER = """
import sys
from ags1.engine import _gcm
cipher = _gcm.BlockCipher(bytes(16), block_size=16)
out = bytearray(44)
cipher.seal_blocks(bytes(16), out)
script = '''
import sys
sys.path[:] = %r
try:
    from ags1.engine import _gcm
except ImportError:
    refused = True
else:
    refused = False
    cipher = _gcm.BlockCipher(bytes(16), block_size=16)
    sealed, text = bytearray(44), bytearray(16)
    cipher.seal_blocks(b"x" * 16, sealed)
    cipher.open_blocks(sealed, text)
    assert text == b"x" * 16
open(%r, "a").write("refused " if refused else "works ")
''' % (sys.path, sys.argv[1])
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
else:
    import _xxsubinterpreters as interpreters
for _ in range(2):
    new = interpreters.create()
    interpreters.run_string(new, script)
    interpreters.destroy(new)
text = bytearray(16)
assert cipher.open_blocks(out, text) == 16
"""


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="CPython's subinterpreters")
def test_a_subinterpreter_works_or_is_refused(run_python: RunPython, tmp_path: Any) -> None:
    run_python(SUBINTERPRETER, tmp_path / "out")
    assert (tmp_path / "out").read_text() in ("refused refused ", "works works ")


def test_all_errors_are_ags1_errors() -> None:
    for kind in (AuthenticationError, FormatError, KeyMetadataError, KeyReuseError):
        assert issubclass(kind, Ags1Error)
