"""The format's arithmetic, against its definition and against files made another way."""

from __future__ import annotations

import inspect
import re
import struct
from pathlib import Path

import pytest
import reference
from hypothesis import assume, given
from hypothesis import strategies as st

from ags1 import layout
from ags1.errors import FormatError

block_sizes = st.one_of(
    st.integers(1, 70),
    st.integers(1, layout.MAX_BLOCK_SIZE),
    st.sampled_from([1, 4096, 1 << 20, layout.MAX_BLOCK_SIZE - 1, layout.MAX_BLOCK_SIZE]),
)


@st.composite
def files(draw: st.DrawFn) -> tuple[int, int]:
    """Draw a plaintext size that fits, up to the largest, and a block size."""
    block_size = draw(block_sizes)
    largest = layout.MAX_BLOCK_COUNT * block_size
    near_a_border = draw(st.integers(0, layout.MAX_BLOCK_COUNT)) * block_size + draw(
        st.integers(-2, 2)
    )
    size = draw(st.one_of(st.integers(0, 300), st.integers(0, largest), st.just(near_a_border)))
    assume(0 <= size <= largest)
    return size, block_size


def test_the_constants_are_the_formats() -> None:
    assert layout.MAGIC == b"AGS1"
    assert layout.HEADER_SIZE == 8
    assert (layout.NONCE_SIZE, layout.TAG_SIZE, layout.BLOCK_OVERHEAD) == (12, 16, 28)
    assert layout.DEFAULT_BLOCK_SIZE == 1048576
    assert layout.MAX_BLOCK_SIZE == 2**31 - 1 - 28
    assert layout.MAX_BLOCK_COUNT == 2**31 - 1


@given(st.integers(0, 300), st.integers(1, 70))
def test_sizes_are_those_of_a_real_file(size: int, block_size: int) -> None:
    stream = reference.encrypt(bytes(size), bytes(16), None, block_size)
    assert layout.encrypted_size(size, block_size) == len(stream)
    assert layout.plaintext_size(len(stream), block_size) == size
    assert layout.block_count(size, block_size) == len(reference.slots(stream))


@pytest.mark.parametrize(
    ("plaintext", "encrypted"),
    [(0, 36), (1, 37), (1048575, 1048611), (1048576, 1048612), (1048577, 1048641)],
)
def test_sizes_of_javas_files(plaintext: int, encrypted: int) -> None:
    assert layout.encrypted_size(plaintext) == encrypted
    assert layout.plaintext_size(encrypted) == plaintext


@given(files())
def test_sizes_are_those_of_the_definition(file: tuple[int, int]) -> None:
    size, block_size = file
    encrypted, count = layout.encrypted_size(size, block_size), layout.block_count(size, block_size)
    # The header, and 28 bytes a block.
    assert encrypted == 8 + size + 28 * count
    assert count >= 1
    assert (count - 1) * block_size < max(size, 1) <= count * block_size
    assert layout.plaintext_size(encrypted, block_size) == size
    if size < layout.MAX_BLOCK_COUNT * block_size:
        # A byte more, and a whole block's overhead where it begins a new block.
        more = layout.encrypted_size(size + 1, block_size) - encrypted
        assert more == (29 if size and size % block_size == 0 else 1)


@given(files(), st.integers(-60, 60))
def test_every_length_is_either_some_plaintexts_or_refused(
    file: tuple[int, int], step: int
) -> None:
    size, block_size = file
    length = layout.encrypted_size(size, block_size) + step
    try:
        found = layout.plaintext_size(length, block_size)
    except FormatError:
        # Then no plaintext nearby makes it: the lengths of its neighbours jump over it.
        for near in range(max(0, size - 70), size + 70):
            if near <= layout.MAX_BLOCK_COUNT * block_size:
                assert layout.encrypted_size(near, block_size) != length
    else:
        assert length == 8 or layout.encrypted_size(found, block_size) == length


@given(block_sizes, st.data())
def test_block_offset(block_size: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, layout.MAX_BLOCK_COUNT - 1))
    assert layout.block_offset(number, block_size) == 8 + number * (block_size + 28)
    assert layout.block_offset(number + 1, block_size) == layout.encrypted_size(
        (number + 1) * block_size, block_size
    )


@given(block_sizes)
def test_header_round_trip(block_size: int) -> None:
    header = layout.build_header(block_size)
    assert header == b"AGS1" + struct.pack("<i", block_size)
    assert layout.parse_header(header) == block_size


@given(st.binary(min_size=0, max_size=12))
def test_a_header_is_eight_bytes_magic_and_a_size_that_exists(data: bytes) -> None:
    for header in (data, b"AGS1" + data[4:]):
        stated = struct.unpack("<i", header[4:8])[0] if len(header) == 8 else 0
        good = header[:4] == b"AGS1" and 1 <= stated <= layout.MAX_BLOCK_SIZE
        if good:
            assert layout.parse_header(header) == stated
        else:
            with pytest.raises(FormatError):
                layout.parse_header(header)


bad_block_sizes = pytest.mark.parametrize(
    "block_size", [0, -1, -(2**31), layout.MAX_BLOCK_SIZE + 1, 2**31 - 1, 2**31, 2**64]
)


@bad_block_sizes
def test_block_sizes_that_do_not_exist_are_refused(block_size: int) -> None:
    for call in (
        lambda: layout.build_header(block_size),
        lambda: layout.block_count(1, block_size),
        lambda: layout.encrypted_size(1, block_size),
        lambda: layout.plaintext_size(37, block_size),
    ):
        with pytest.raises(FormatError, match="block size"):
            call()


@pytest.mark.parametrize("length", [-(2**70), -1, 0, 1, 7, *range(9, 36)])
def test_lengths_below_one_block_are_refused(length: int) -> None:
    for block_size in (1, 16, 1 << 20, layout.MAX_BLOCK_SIZE):
        with pytest.raises(FormatError):
            layout.plaintext_size(length, block_size)


def test_a_header_alone_holds_nothing() -> None:
    assert layout.plaintext_size(8) == 0
    assert layout.encrypted_size(0) == 36


def test_an_empty_block_after_a_full_one_is_refused() -> None:
    full = layout.encrypted_size(32, 16)
    assert layout.plaintext_size(full, 16) == 32
    for extra in range(1, 29):
        with pytest.raises(FormatError):
            layout.plaintext_size(full + extra, 16)
    assert layout.plaintext_size(full + 29, 16) == 33


@given(block_sizes)
def test_a_file_holds_at_most_2_31_minus_1_blocks(block_size: int) -> None:
    largest = layout.MAX_BLOCK_COUNT * block_size
    assert layout.block_count(largest, block_size) == layout.MAX_BLOCK_COUNT
    longest = layout.encrypted_size(largest, block_size)
    assert layout.plaintext_size(longest, block_size) == largest
    for call in (
        lambda: layout.block_count(largest + 1, block_size),
        lambda: layout.encrypted_size(largest + 1, block_size),
        lambda: layout.plaintext_size(longest + 29, block_size),
    ):
        with pytest.raises(FormatError):
            call()


def test_negative_sizes_are_refused() -> None:
    for call in (layout.block_count, layout.encrypted_size, layout.plaintext_size):
        with pytest.raises(FormatError):
            call(-1, 16)


def test_the_arithmetic_knows_no_io() -> None:
    imported = {line for line in inspect.getsource(layout).splitlines() if "import" in line}
    assert not [line for line in imported if any(w in line for w in (" io", " os", "_gcm"))]


def test_compiled_code_has_the_same_constants() -> None:
    source = Path(__file__).parents[2] / "ags1" / "engine" / "layout.pxd"
    if not source.exists():
        pytest.skip("the sources are not beside these tests")
    constants = re.findall(r"(\w+) = (\d+)", source.read_text())
    assert len(constants) == 4
    for name, value in constants:
        assert getattr(layout, name) == int(value)
