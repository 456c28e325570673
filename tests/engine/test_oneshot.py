"""encrypt, decrypt and their _into forms: round trips, lengths, keys, overlaps, arguments."""

from __future__ import annotations

import array
import ctypes
import gc
import os
import pickle
import signal
import tracemalloc
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

import ags1
from ags1 import KeyMetadata, layout
from ags1.engine import _messages
from ags1.hazmat import BlockCipher

threads = pytest.mark.parametrize("threads", [1, 2, 5])
MIB = 1 << 20


def open_by_reference(sealed: ags1.Sealed) -> bytes:
    km = sealed.key_metadata
    return reference.decrypt(sealed.data, km.encryption_key, km.aad_prefix, km.file_length)


def test_a_sealed_message_is_a_tuple_that_has_no_hash() -> None:
    sealed, [other] = ags1.encrypt(b"data"), ags1.encrypt_many([b"data"])
    for pair in (sealed, other):
        assert type(pair) is ags1.Sealed
        assert pair == (pair.data, pair.key_metadata)
        with pytest.raises(TypeError, match="unhashable"):
            hash(pair)


@given(
    st.binary(max_size=400),
    st.integers(1, 60),
    st.sampled_from([16, 24, 32]),
    st.integers(1, 4),
)
def test_round_trip(data: bytes, block_size: int, key_size: int, threads: int) -> None:
    sealed = ags1.encrypt(data, key_size=key_size, block_size=block_size, threads=threads)
    km = sealed.key_metadata
    assert type(sealed.data) is bytes
    assert len(km.encryption_key) == key_size
    assert km.aad_prefix is not None
    assert len(km.aad_prefix) == 16
    assert km.file_length == len(sealed.data) == layout.encrypted_size(len(data), block_size)
    assert open_by_reference(sealed) == data
    for count in (1, 2, 7):
        opened = ags1.decrypt(sealed.data, km, threads=count)
        assert type(opened) is bytes
        assert opened == data
    assert ags1.decrypt(sealed.data, km, block_size=block_size) == data


@given(
    st.binary(max_size=400),
    st.integers(1, 60),
    st.none() | st.binary(max_size=40),
    st.integers(1, 4),
    st.integers(0, 50),
)
def test_round_trip_into_buffers(
    data: bytes, block_size: int, prefix: bytes | None, threads: int, margin: int
) -> None:
    km = KeyMetadata(bytes(16), prefix)
    size = layout.encrypted_size(len(data), block_size)
    sealed = bytearray(b"\xaa" * (size + margin))
    full = ags1.encrypt_into(data, sealed, km=km, block_size=block_size, threads=threads)
    assert full == km.with_file_length(size)
    assert sealed[size:] == b"\xaa" * margin
    stream = bytes(sealed[:size])
    assert reference.decrypt(stream, bytes(16), prefix, size) == data
    for each in (stream, reference.encrypt(data, bytes(16), prefix, block_size)):
        out = bytearray(b"\xaa" * (len(data) + margin))
        assert ags1.decrypt_into(each, out, full, threads=threads) == len(data)
        assert out == data + b"\xaa" * margin
        assert ags1.decrypt(each, full, threads=threads) == data


@threads
@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 5 * MIB + 17])
def test_default_blocks(size: int, threads: int) -> None:
    data = reference.pattern(size)
    sealed = ags1.encrypt(data, threads=threads)
    assert sealed.data[:8] == b"AGS1\0\0\x10\0"
    assert len(sealed.key_metadata.encryption_key) == 32
    assert open_by_reference(sealed) == data
    assert ags1.decrypt(sealed.data, sealed.key_metadata, threads=threads) == data


def test_threads_give_the_nonces_of_their_own() -> None:
    sealed = ags1.encrypt(bytes(5000), block_size=1, threads=4).data
    nonces = {slot[:12] for slot in reference.slots(sealed)}
    assert len(nonces) == 5000


def test_every_call_has_a_fresh_key_and_prefix() -> None:
    made = [ags1.encrypt(b"same").key_metadata for _ in range(50)]
    assert len({km.encryption_key for km in made}) == 50
    assert len({km.aad_prefix for km in made}) == 50


def test_sealed_is_a_named_pair() -> None:
    sealed = ags1.encrypt(b"data")
    data, km = sealed
    assert (data, km) == (sealed.data, sealed.key_metadata)
    with pytest.raises(TypeError):
        pickle.dumps(sealed)


# ---- key metadata ------------------------------------------------------------------------------


def test_a_given_key_is_used() -> None:
    km = KeyMetadata(bytes(16), b"")
    sealed = ags1.encrypt(b"data", km=km)
    assert sealed.key_metadata == km.with_file_length(len(sealed.data))
    assert km.file_length is None


@pytest.mark.parametrize("prefix", [None, b""])
def test_a_null_and_an_empty_prefix_stay_apart_and_read_alike(prefix: bytes | None) -> None:
    sealed = ags1.encrypt(b"data", km=KeyMetadata(bytes(16), prefix))
    assert sealed.key_metadata.aad_prefix == prefix
    for other in (None, b""):
        km = KeyMetadata(bytes(16), other, len(sealed.data))
        assert ags1.decrypt(sealed.data, km) == b"data"


def test_key_prefix_and_nonce_have_no_bytes_in_common() -> None:
    for sealed in (ags1.encrypt(b"data"), *ags1.encrypt_many([b"data"] * 3)):
        km = sealed.key_metadata
        assert km.aad_prefix is not None
        drawn = km.encryption_key + km.aad_prefix + sealed.data[8:20]
        # No six bytes of random ones come twice.
        assert len({drawn[at : at + 6] for at in range(len(drawn) - 5)}) == len(drawn) - 5


def test_a_used_key_is_refused_unless_insisted_on() -> None:
    used = ags1.encrypt(b"data").key_metadata
    out = bytearray(b"\xaa" * 100)
    # Its length tells, wherever the object comes from.
    for km in (used, KeyMetadata.from_bytes(used.to_bytes())):
        with pytest.raises(ags1.KeyReuseError):
            ags1.encrypt(b"other", km=km)
        with pytest.raises(ags1.KeyReuseError):
            ags1.encrypt_into(b"other", out, km=km)
    assert out == b"\xaa" * 100
    again = ags1.encrypt(b"other data", km=used, reuse_key=True)
    assert again.key_metadata == used.with_file_length(len(again.data))
    assert ags1.decrypt(again.data, again.key_metadata) == b"other data"


def test_no_trusted_length_no_reading() -> None:
    sealed = ags1.encrypt(b"data", km=KeyMetadata(bytes(16)))
    km = KeyMetadata(bytes(16))
    with pytest.raises(ags1.MissingFileLengthError, match="trust_file_size"):
        ags1.decrypt(sealed.data, km)
    out = bytearray(b"\xaa" * 4)
    with pytest.raises(ags1.MissingFileLengthError):
        ags1.decrypt_into(sealed.data, out, km)
    assert out == b"\xaa" * 4
    assert ags1.decrypt(sealed.data, km, trust_file_size=True) == b"data"


def test_trusting_the_size_does_not_override_a_trusted_length() -> None:
    sealed = ags1.encrypt(bytes(64), block_size=16)
    with pytest.raises(ags1.TruncatedError):
        ags1.decrypt(sealed.data[:-44], sealed.key_metadata, trust_file_size=True)


def test_lengths_that_differ_are_both_named() -> None:
    sealed = ags1.encrypt(bytes(64), block_size=16)
    size = len(sealed.data)
    with pytest.raises(ags1.TruncatedError, match=rf"{size - 5}.*{size}"):
        ags1.decrypt(sealed.data[:-5], sealed.key_metadata)
    with pytest.raises(ags1.FormatError, match=rf"{size + 5}.*{size}"):
        ags1.decrypt(sealed.data + bytes(5), sealed.key_metadata)


def test_a_header_alone_is_a_file_only_when_the_trusted_length_says_so() -> None:
    header = layout.build_header(16)
    assert ags1.decrypt(header, KeyMetadata(bytes(16), None, 8)) == b""
    with pytest.raises((ags1.FormatError, ags1.TruncatedError)):
        ags1.decrypt(header, KeyMetadata(bytes(16)), trust_file_size=True)
    with pytest.raises(ags1.TruncatedError):
        ags1.decrypt(header, KeyMetadata(bytes(16), None, 36))


# ---- block sizes -------------------------------------------------------------------------------


def test_a_pinned_block_size_must_be_the_headers() -> None:
    sealed = ags1.encrypt(b"data", block_size=100)
    for other in (99, 101, MIB):
        with pytest.raises(ags1.FormatError, match=f"100.*{other}"):
            ags1.decrypt(sealed.data, sealed.key_metadata, block_size=other)


def test_large_block_sizes_are_refused_unless_allowed() -> None:
    block_size = (64 << 20) + 1
    sealed = ags1.encrypt(b"data", block_size=block_size)
    with pytest.raises(ags1.FormatError, match="max_block_size"):
        ags1.decrypt(sealed.data, sealed.key_metadata)
    for allowed in ({"max_block_size": block_size}, {"block_size": block_size}):
        assert ags1.decrypt(sealed.data, sealed.key_metadata, **allowed) == b"data"
    just_right = ags1.encrypt(b"data", block_size=64 << 20)
    assert ags1.decrypt(just_right.data, just_right.key_metadata) == b"data"
    assert ags1.decrypt(*just_right, max_block_size=2**70) == b"data"
    for limit in ((64 << 20) - 1, 0, -1, -(2**70)):
        with pytest.raises(ags1.FormatError):
            ags1.decrypt(*just_right, max_block_size=limit)


@pytest.mark.parametrize("block_size", [0, -1, layout.MAX_BLOCK_SIZE + 1, 2**40])
def test_block_sizes_that_do_not_exist_are_refused(block_size: int) -> None:
    with pytest.raises(ags1.FormatError):
        ags1.encrypt(b"", block_size=block_size)
    with pytest.raises(ags1.FormatError):
        ags1.encrypt_into(b"", bytearray(100), block_size=block_size)


@pytest.mark.thread_unsafe(reason="tracemalloc traces all threads")
@pytest.mark.parametrize("stated", [1, 16, MIB, 64 << 20, 2**31 - 1 - 28, 2**31 - 1])
@threads
def test_a_hostile_header_allocates_nothing(stated: int, threads: int) -> None:
    sealed = ags1.encrypt(bytes(40), block_size=40)
    hostile = b"AGS1" + stated.to_bytes(4, "little") + sealed.data[8:]
    tracemalloc.start()
    try:
        opened = ags1.decrypt(hostile, sealed.key_metadata, threads=threads)
        assert opened == bytes(40)
        assert 40 <= stated <= 64 << 20
    except (ags1.FormatError, ags1.AuthenticationError):
        assert not 40 <= stated <= 64 << 20
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 20


# ---- buffers -----------------------------------------------------------------------------------


DTYPES = ["u1", "?", "<u2", ">i4", "f2", "f8", "c16", "S4", "U1", [("a", "<i4"), ("b", "<f4")]]


@threads
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_arrays_of_every_type(dtype: Any, threads: int) -> None:
    text = reference.pattern(96)
    source = np.frombuffer(text, dtype).reshape(2, -1)
    sealed = ags1.encrypt(source, block_size=20, threads=threads)
    assert ags1.decrypt(sealed.data, sealed.key_metadata, threads=threads) == text
    out = np.zeros((4, 32), "u1").view(dtype)
    assert ags1.decrypt_into(sealed.data, out, sealed.key_metadata, threads=threads) == 96
    assert out.tobytes() == text + bytes(32)
    room = np.zeros(256, "u1").view(dtype)
    km = ags1.encrypt_into(source, room, block_size=20, threads=threads)
    assert ags1.decrypt(room.tobytes()[: km.file_length], km) == text
    for empty in (np.zeros(0, dtype), np.zeros((3, 0), dtype)):
        nothing = ags1.encrypt(empty, threads=threads)
        assert ags1.decrypt_into(nothing.data, empty, nothing.key_metadata, threads=threads) == 0


@pytest.mark.parametrize(
    "make",
    [
        bytearray,
        memoryview,
        lambda data: array.array("I", data),
        lambda data: (ctypes.c_char * len(data)).from_buffer_copy(data),
        lambda data: (ctypes.c_int32 * (len(data) // 4)).from_buffer_copy(data),
        lambda data: memoryview(data).cast("B", (4, len(data) // 4)),
    ],
)
def test_other_buffers(make: Any) -> None:
    text = reference.pattern(96)
    sealed = ags1.encrypt(make(text), block_size=28)
    assert len(sealed.data) == 216
    assert ags1.decrypt(make(sealed.data), sealed.key_metadata) == text
    out = make(bytes(100))
    if not memoryview(out).readonly:
        ags1.decrypt_into(sealed.data, out, sealed.key_metadata)
        assert bytes(out) == text + bytes(4)


@threads
def test_buffers_with_gaps_are_refused(threads: int) -> None:
    sealed = ags1.encrypt(bytes(48))
    gaps = memoryview(bytearray(400))[::2]
    for call in (
        lambda: ags1.encrypt(gaps, threads=threads),
        lambda: ags1.encrypt_into(b"data", gaps, threads=threads),
        lambda: ags1.decrypt(gaps, sealed.key_metadata, threads=threads),
        lambda: ags1.decrypt_into(sealed.data, gaps, sealed.key_metadata, threads=threads),
    ):
        with pytest.raises((TypeError, BufferError, ValueError)):
            call()
    assert bytes(gaps) == bytes(200)


def test_read_only_outputs_are_refused() -> None:
    sealed = ags1.encrypt(b"data")
    for count in (1, 2):
        with pytest.raises(TypeError):
            ags1.encrypt_into(b"data", bytes(100), threads=count)
        with pytest.raises(TypeError):
            ags1.decrypt_into(sealed.data, bytes(100), sealed.key_metadata, threads=count)


def test_read_only_outputs_of_other_types_are_refused() -> None:
    numbers = np.zeros(100)
    numbers.setflags(write=False)
    sealed = ags1.encrypt(bytes(100))
    for threads in (1, 2):
        with pytest.raises(TypeError, match="writable"):
            ags1.encrypt_into(b"", numbers, threads=threads)
        with pytest.raises(TypeError, match="writable"):
            ags1.decrypt_into(sealed.data, numbers, sealed.key_metadata, threads=threads)
    assert not numbers.any()


def test_small_outputs_are_refused_and_left_alone() -> None:
    sealed = ags1.encrypt(bytes(50), block_size=16)
    for count in (1, 2):
        out = bytearray(b"\xaa" * (len(sealed.data) - 1))
        with pytest.raises(ValueError, match=str(len(sealed.data))):
            ags1.encrypt_into(bytes(50), out, block_size=16, threads=count)
        small = bytearray(b"\xaa" * 49)
        with pytest.raises(ValueError, match="50"):
            ags1.decrypt_into(sealed.data, small, sealed.key_metadata, threads=count)
        assert set(out) == set(small) == {0xAA}


@given(st.data())
def test_overlapping_buffers_are_refused(data: st.DataObject) -> None:
    block_size, size = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 90))
    count = data.draw(st.integers(1, 4))
    room = layout.encrypted_size(size, block_size)
    text_at = data.draw(st.integers(0, 200))
    sealed_at = data.draw(st.integers(0, 200))
    if text_at + size <= sealed_at or sealed_at + room <= text_at:
        return
    exact = text_at == sealed_at + 20 and size <= block_size
    km = KeyMetadata(bytes(16))
    text = os.urandom(size)
    buffer = bytearray(os.urandom(4000))
    view = memoryview(buffer)
    inside, outside = view[text_at : text_at + size], view[sealed_at : sealed_at + room]

    inside[:] = text
    before = bytes(buffer)
    try:
        km = ags1.encrypt_into(inside, outside, km=km, block_size=block_size, threads=count)
    except ValueError:
        assert buffer == before
        km = km.with_file_length(room)
    else:
        assert exact
        assert reference.decrypt(bytes(outside), bytes(16), None, room) == text

    outside[:] = reference.encrypt(text, bytes(16), None, block_size)
    before = bytes(buffer)
    try:
        ags1.decrypt_into(outside, inside, km, threads=count)
    except ags1.Ags1Error:
        raise
    except ValueError:
        assert buffer == before
    else:
        assert exact
        assert inside == text


@pytest.mark.parametrize("bad", [None, "text", 5, 1.5, [1, 2]])
@threads
def test_what_is_no_buffer_is_refused(bad: Any, threads: int) -> None:
    sealed = ags1.encrypt(b"data")
    for call in (
        lambda: ags1.encrypt(bad, threads=threads),
        lambda: ags1.encrypt_into(bad, bytearray(100), threads=threads),
        lambda: ags1.encrypt_into(b"", bad, threads=threads),
        lambda: ags1.decrypt(bad, sealed.key_metadata, threads=threads),
        lambda: ags1.decrypt_into(bad, bytearray(100), sealed.key_metadata, threads=threads),
        lambda: ags1.decrypt_into(sealed.data, bad, sealed.key_metadata, threads=threads),
    ):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("count", [0, -1, -100])
def test_there_is_at_least_one_thread(count: int) -> None:
    sealed = ags1.encrypt(b"data")
    out = bytearray(b"\xaa" * 100)
    for call in (
        lambda: ags1.encrypt(b"data", threads=count),
        lambda: ags1.encrypt_into(b"data", out, threads=count),
        lambda: ags1.decrypt(sealed.data, sealed.key_metadata, threads=count),
        lambda: ags1.decrypt_into(sealed.data, out, sealed.key_metadata, threads=count),
    ):
        with pytest.raises(ValueError, match="thread"):
            call()


@pytest.mark.parametrize("key_size", [0, 1, 15, 17, 64, 128, 256, 2**40])
def test_key_sizes_that_aes_does_not_have(key_size: int) -> None:
    with pytest.raises(ags1.KeyMetadataError):
        ags1.encrypt(b"", key_size=key_size)


def test_buffers_are_let_go() -> None:
    data, sealed, out = bytearray(100), bytearray(1000), bytearray(100)
    for count in (1, 2):
        km = ags1.encrypt_into(data, sealed, block_size=16, threads=count)
        ags1.decrypt_into(memoryview(sealed)[: km.file_length], out, km, threads=count)
        sealed[50] ^= 1
        with pytest.raises(ags1.AuthenticationError):
            ags1.decrypt_into(memoryview(sealed)[: km.file_length], out, km, threads=count)
        gc.collect()
        for buffer in (data, sealed, out):
            buffer.append(0)  # raises BufferError while somebody holds it
            buffer.pop()


@threads
@pytest.mark.parametrize("bad_block", [0, 3, 6])
def test_a_failure_in_any_share_zeroes_the_whole_output(threads: int, bad_block: int) -> None:
    sealed = ags1.encrypt(reference.pattern(200), block_size=30)
    changed = bytearray(sealed.data)
    changed[8 + bad_block * 58 + 12] ^= 4
    out = bytearray(b"\xaa" * 250)
    with pytest.raises(ags1.AuthenticationError) as caught:
        ags1.decrypt_into(changed, out, sealed.key_metadata, threads=threads)
    assert (caught.value.block, caught.value.offset) == (bad_block, 8 + bad_block * 58)
    assert out == bytes(200) + b"\xaa" * 50


@threads
def test_the_first_bad_block_is_named(threads: int) -> None:
    sealed = ags1.encrypt(reference.pattern(200), block_size=30)
    changed = bytearray(sealed.data)
    for block in (6, 2, 4):
        changed[8 + block * 58] ^= 1
    with pytest.raises(ags1.AuthenticationError) as caught:
        ags1.decrypt(changed, sealed.key_metadata, threads=threads)
    assert caught.value.block == 2


# ---- many messages -----------------------------------------------------------------------------

many_threads = pytest.mark.parametrize("threads", [1, 2, 5, None])


@pytest.mark.parametrize(("threads", "key_size"), [(1, 16), (2, 24), (5, 32), (None, 32)])
def test_many_messages_keep_their_order(key_size: int, threads: int | None) -> None:
    messages = [reference.pattern(n * 7 % 5000) for n in range(1500)] + [bytes(3 * MIB + 5)]
    sealed = ags1.encrypt_many(iter(messages), threads=threads, key_size=key_size)
    assert all(type(one) is ags1.Sealed and type(one.data) is bytes for one in sealed)
    for one, message in zip(sealed, messages, strict=True):
        assert len(one.key_metadata.encryption_key) == key_size
        assert open_by_reference(one) == message
    secrets = {(km.encryption_key, km.aad_prefix) for _, km in sealed}
    assert len({key for key, _ in secrets}) == len({prefix for _, prefix in secrets}) == 1501
    assert len({one.data[8:20] for one in sealed}) == 1501
    assert ags1.decrypt_many(iter(sealed), threads=threads) == messages
    assert all(one.key_metadata.used for one in sealed)


def test_many_messages_of_other_writers_are_read() -> None:
    """Other key sizes, prefixes and block sizes side by side, and what only ``decrypt`` reads."""
    texts = [reference.pattern(n) for n in range(120)]
    sealed: list[Any] = []
    for n, text in enumerate(texts):
        key, prefix = bytes([n]) * (16, 24, 32)[n % 3], (None, b"", b"x" * n)[n % 3]
        data = reference.encrypt(text, key, prefix, block_size=1 + n % 50)
        sealed.append((bytearray(data), KeyMetadata(key, prefix, len(data))))
    header_alone = layout.build_header(MIB)
    sealed.append([header_alone, KeyMetadata(bytes(16), None, 8)])
    assert ags1.decrypt_many(sealed, threads=3) == [*texts, b""]


def test_an_empty_block_after_others_is_refused() -> None:
    cipher, block, empty = BlockCipher(bytes(16), block_size=16), bytearray(44), bytearray(28)
    cipher.seal_blocks(bytes(16), block)
    cipher.seal_blocks(b"", empty, 1)
    data = layout.build_header(16) + block + empty
    km = KeyMetadata(bytes(16), None, len(data))
    for call in (
        lambda: ags1.decrypt(data, km),
        lambda: ags1.decrypt_into(data, bytearray(16), km),
        lambda: ags1.decrypt_many([(data, km)]),
    ):
        with pytest.raises(ags1.FormatError, match="bytes long"):
            call()


def test_of_failures_in_two_threads_the_first_message_s_is_raised() -> None:
    pairs = []
    # The second is under way when the first fails, and fails later.
    for size in (8 * MIB, 40 * MIB):
        out = bytearray(layout.encrypted_size(size))
        km = ags1.encrypt_into(bytes(size), out)
        out[-1] ^= 1
        pairs.append((out, km))
    with pytest.raises(ags1.AuthenticationError, match=r"^message 0: "):
        ags1.decrypt_many(pairs, threads=2)


def test_messages_without_a_length_are_read_when_told_so() -> None:
    data, km = ags1.encrypt(b"text")
    pair = data, KeyMetadata(km.encryption_key, km.aad_prefix)
    assert ags1.decrypt_many([pair, (data, km)], trust_file_size=True) == [b"text"] * 2


def test_no_messages() -> None:
    assert ags1.encrypt_many([]) == []
    assert ags1.decrypt_many(()) == []


@many_threads
@pytest.mark.parametrize("bad", [{0}, {700}, {999}, {999, 3}, set(range(100, 1000))])
def test_the_first_message_that_fails_is_named(bad: set[int], threads: int | None) -> None:
    sealed: list[Any] = ags1.encrypt_many([b"text"] * 1000)
    for index in bad:
        data, km = sealed[index]
        sealed[index] = (data[:-1] + bytes([data[-1] ^ 1]), km)
    with pytest.raises(ags1.AuthenticationError, match=f"^message {min(bad)}: ") as caught:
        ags1.decrypt_many(sealed, threads=threads)
    assert caught.value.index == min(bad)
    assert pickle.loads(pickle.dumps(caught.value)).index == min(bad)


def test_a_message_that_is_refused_is_named() -> None:
    data, km = ags1.encrypt(b"text")
    for pair, error in (
        ((data[:-1], km), ags1.TruncatedError),
        ((data + b"x", km), ags1.FormatError),
        ((data, KeyMetadata(km.encryption_key)), ags1.MissingFileLengthError),
        ((b"PAR1" + data[4:], km), ags1.FormatError),
        ((data, km.encryption_key), TypeError),
        (("text", km), TypeError),
        ((data,), TypeError),
        (None, TypeError),
        ((data, km, 1), TypeError),
    ):
        with pytest.raises(error, match=r"^message 2: "):
            ags1.decrypt_many([(data, km), (data, km), pair])
    for message in ("text", 5, np.zeros((4, 4))[::2, ::2]):
        with pytest.raises((TypeError, ValueError, BufferError), match=r"^message 1: "):
            ags1.encrypt_many([b"", message])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="one buffer"):
        ags1.encrypt_many(b"abc")  # type: ignore[arg-type]
    for size in (0, 15, 256, 2**40):
        with pytest.raises(ags1.KeyMetadataError):
            ags1.encrypt_many([b""], key_size=size)
    for threads in (0, -1):
        with pytest.raises(ValueError, match="threads"):
            ags1.encrypt_many([b""], threads=threads)


@many_threads
def test_the_first_failure_is_named_whatever_its_kind(threads: int | None) -> None:
    data, km = ags1.encrypt(b"text")
    changed = data[:-1] + bytes([data[-1] ^ 1])
    pairs: list[Any] = [(data, km)] * 1000
    pairs[40], pairs[43], pairs[44] = (changed, km), ("text", km), (data[:-1], km)
    with pytest.raises(ags1.AuthenticationError, match=r"^message 40: "):
        ags1.decrypt_many(pairs, threads=threads)


def test_messages_after_a_failure_leave_no_uninitialised_bytes() -> None:
    data, km = ags1.encrypt(bytes(1000))
    for refused in ((data[:-1] + bytes([data[-1] ^ 1]), km), ("text", km), (data[:-1], km)):
        pairs: list[Any] = [(data, km)] * 80 + [refused, (data, km)]
        batch = _messages.OpenBatch(pairs, 1, ags1.decrypt)
        batch.work()
        assert set(batch.results[:80]) == {bytes(1000)}
        assert batch.results[80:] == [None, None]


@pytest.mark.thread_unsafe(reason="signals go to the main thread")
def test_many_messages_can_be_interrupted() -> None:
    def interrupt(*_: object) -> None:
        raise InterruptedError

    pair = ags1.encrypt(b"text")
    batch = _messages.OpenBatch([pair] * 200_000, 1, ags1.decrypt)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(InterruptedError):
            batch.work()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert batch.results[-1] is None


def test_a_key_of_a_wrong_length_never_reaches_aes() -> None:
    data, _ = ags1.encrypt(b"text")
    with pytest.raises(ags1.KeyMetadataError, match=r"message 0: .* not 5"):
        ags1.decrypt_many([(data, KeyMetadata.unchecked(b"short", None, len(data)))])


def test_an_error_that_no_text_alone_makes_is_raised_as_it_is() -> None:
    class Pair:
        def __iter__(self) -> Any:
            raise UnicodeDecodeError("utf-8", b"x", 0, 1, "reason")

    with pytest.raises(UnicodeDecodeError, match="reason"):
        ags1.decrypt_many([Pair()])  # type: ignore[list-item]


def test_buffers_of_many_messages_are_let_go() -> None:
    messages = [bytearray(10) for _ in range(600)]
    sealed = ags1.encrypt_many(messages, threads=2)
    files = [(bytearray(one.data), one.key_metadata) for one in sealed]
    ags1.decrypt_many(files, threads=2)
    files[300][0][-1] ^= 1
    with pytest.raises(ags1.AuthenticationError):
        ags1.decrypt_many(files, threads=2)
    for buffer in (*messages, *(data for data, _ in files)):
        buffer.append(0)  # refused while anybody holds the buffer
