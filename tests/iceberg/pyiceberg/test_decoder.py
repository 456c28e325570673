"""The decoder of manifests: it reads what PyIceberg encodes, and nothing beyond the end."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyiceberg")

from pyiceberg.avro.encoder import BinaryEncoder

from ags1.avro._decoder import CheckedDecoder

BYTES = st.binary(max_size=40)
VALUES = st.one_of(
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("int"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("bytes"), st.binary(max_size=200)),
    st.tuples(st.just("utf8"), st.text(max_size=70)),
    st.tuples(st.just("float"), st.floats(width=32)),
    st.tuples(st.just("double"), st.floats()),
)


@given(values=st.lists(VALUES, max_size=12), entries=st.dictionaries(st.integers(0, 900), BYTES))
def test_values_are_those_that_pyiceberg_encodes(
    values: list[tuple[str, Any]], entries: dict[int, bytes]
) -> None:
    stored = io.BytesIO()
    encoder = BinaryEncoder(stored)
    for kind, value in values:
        getattr(encoder, f"write_{kind}")(value)
    for key, part in entries.items():
        encoder.write_int(key)
        encoder.write_bytes(part)
    decoder = CheckedDecoder(stored.getvalue())
    for kind, value in values:
        assert repr(getattr(decoder, f"read_{kind}")()) == repr(value)
    found: dict[int, bytes] = {}
    decoder.read_int_bytes_dict(len(entries), found)
    assert found == entries
    decoder = CheckedDecoder(stored.getvalue())
    for kind, _ in values:
        getattr(decoder, f"skip_{kind}")()
    decoder.read_int_bytes_dict(len(entries), found)
    assert decoder.tell() == len(stored.getvalue())


@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_numbers_of_all_sizes(numbers: list[int]) -> None:
    data = b"".join(map(encoded, numbers))
    assert list(CheckedDecoder(data).read_ints(len(numbers))) == numbers
    decoder = CheckedDecoder(data)
    for _ in numbers:
        decoder.skip_int()
    assert decoder.tell() == len(data)
    if data:
        with pytest.raises(EOFError):
            CheckedDecoder(data[:-1]).read_ints(len(numbers))


def encoded(number: int) -> bytes:
    rest = (number << 1 ^ number >> 63) & (2**64 - 1)
    data = bytearray()
    while rest > 0x7F:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*data, rest])


@pytest.mark.parametrize(
    ("data", "method"),
    [
        (encoded(2**62), "read_bytes"),
        (encoded(-1) + b"x" * 9, "read_bytes"),
        (encoded(9) + b"x" * 8, "read_utf8"),
        (encoded(2**62), "skip_bytes"),
        (b"\xff" * 9 + b"\x02", "read_int"),
        (b"\x80", "read_int"),
        (b"1234567", "read_double"),
        (b"123", "read_float"),
        (b"", "read_boolean"),
    ],
)
def test_nothing_is_read_beyond_the_end(data: bytes, method: str) -> None:
    with pytest.raises((EOFError, ValueError)):
        getattr(CheckedDecoder(data), method)()
    with pytest.raises((EOFError, ValueError)):
        CheckedDecoder(data).read_ints(2**61)
