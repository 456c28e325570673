"""encrypt_many and decrypt_many of Arrow columns: against the list form, other implementations and
pyarrow's own check of arrays."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import pyarrow as pa
import pytest
import reference
from all_pairs import all_pairs
from conftest import RunPython

import ags1
from ags1 import KeyMetadata, layout
from ags1.engine import _arrow_arrays, _columns

MIB = 1 << 20
TYPES = {
    "binary": (pa.binary(), "binary"),
    "large_binary": (pa.large_binary(), "large_binary"),
    "string": (pa.string(), "binary"),
    "large_string": (pa.large_string(), "large_binary"),
    "binary_view": (pa.binary_view(), "binary"),
    "string_view": (pa.string_view(), "binary"),
}
TEXTS = ["", "x" * 12, "y" * 13, *(str(n) * (n * 7 % 900) for n in range(300))]
MESSAGES = [None if n % 7 == 3 else text.encode() for n, text in enumerate(TEXTS)]


class Stream:
    """What is no array of pyarrow, and gives its chunks one after the other."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._column.__arrow_c_stream__(requested_schema)


class Foreign:
    """What is no array of pyarrow, so that nobody knows the sizes of its buffers."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self._array.__arrow_c_array__(requested_schema)


FORMS: dict[str, Any] = {
    "whole": lambda array: array,
    "slice": lambda array: array[13:290],
    "foreign": lambda array: Foreign(array[5:]),
    "chunks": lambda array: pa.chunked_array([array[3:9], array[:0], array[50:]]),
    "no chunks": lambda array: pa.chunked_array([], array.type),
    "stream": lambda array: Stream(pa.chunked_array([array[3:9], array[:0], array[50:]])),
    "no nulls": lambda array: array[4:10],
}


def plain(column: Any) -> list[bytes | None]:
    column = getattr(column, "_array", getattr(column, "_column", column))
    return [text.encode() if isinstance(text, str) else text for text in column.to_pylist()]


@all_pairs(form=list(FORMS), name=list(TYPES), options=[(1, 16), (5, 24), (None, 32)])
def test_columns_are_read_by_others_and_come_back(
    name: str, form: str, options: tuple[int | None, int]
) -> None:
    given, made = TYPES[name]
    column = FORMS[form](pa.array(MESSAGES, pa.large_binary()).cast(given))
    expected = plain(column)
    threads, key_size = options
    sealed, keys = ags1.encrypt_many(column, threads=threads, key_size=key_size)
    for array in (sealed, keys):
        array.validate(full=True)
        assert array.null_count == expected.count(None)
    assert (str(sealed.type), str(keys.type)) == (made, "binary")
    secrets = set()
    for data, stored, message in zip(sealed.to_pylist(), keys.to_pylist(), expected, strict=True):
        if message is None:
            assert (data, stored) == (None, None)
            continue
        km = KeyMetadata.from_bytes(stored)
        assert km.to_bytes() == stored
        assert (len(km.encryption_key), km.file_length) == (key_size, len(data))
        assert data[:8] == layout.build_header(MIB)
        assert message == reference.decrypt(data, km.encryption_key, km.aad_prefix, len(data))
        secrets |= {km.encryption_key, km.aad_prefix, data[8:20]}
    assert len(secrets) == 3 * sum(message is not None for message in expected)
    for pair in ((sealed, keys), [Stream(pa.chunked_array([sealed])), Foreign(keys)]):
        opened = ags1.decrypt_many(pair, threads=threads)
        opened.validate(full=True)
        assert opened.to_pylist() == expected
        assert str(opened.type) == made


def test_messages_of_several_blocks() -> None:
    messages = [reference.pattern(size) for size in (MIB, 3 * MIB + 5, 0, MIB + 1)]
    sealed, keys = ags1.encrypt_many(pa.array(messages))
    kms = [KeyMetadata.from_bytes(stored) for stored in keys.to_pylist()]
    pairs = list(zip(sealed.to_pylist(), kms, strict=True))
    assert ags1.decrypt_many(pairs) == messages
    assert ags1.decrypt_many((sealed, keys), threads=2).to_pylist() == messages


def test_large_results_do_not_share_memory() -> None:
    """The memory of a large result is used again when it was freed."""
    columns = [pa.array([bytes([n]) * 1000] * 6000) for n in range(4)]
    sealed = [ags1.encrypt_many(column) for column in columns]
    for _ in range(3):
        opened = [ags1.decrypt_many(pair) for pair in sealed]
        sealed[0] = ags1.encrypt_many(columns[0])
        assert opened == columns
        del opened[1]
        assert ags1.decrypt_many(sealed[3]) == columns[3]
        assert opened == [columns[0], *columns[2:]]


@pytest.mark.parametrize("form", ["whole", "slice", "foreign", "stream"])
@pytest.mark.parametrize("threads", [1, 3])
def test_results_in_memory_of_the_caller(form: str, threads: int) -> None:
    column = FORMS[form](pa.array(MESSAGES, pa.binary()))
    expected = plain(column)
    sizes = [layout.encrypted_size(len(text)) for text in expected if text is not None]
    files, texts = (
        bytearray(b"\xaa" * (sum(sizes) + 5)),
        ags1.new_buffer(sum(map(len, filter(None, expected)))),
    )
    for _ in range(2):
        sealed, keys = ags1.encrypt_many(column, threads=threads, out=files)
        sealed.validate(full=True)
        assert b"".join(data for data in sealed.to_pylist() if data) == files[:-5]
        assert files[-5:] == b"\xaa" * 5
        assert ags1.decrypt_many((sealed, keys)).to_pylist() == expected
        opened = ags1.decrypt_many((sealed, keys), threads=threads, out=texts)
        opened.validate(full=True)
        assert opened.to_pylist() == expected
        # The arrays keep the memory, whatever becomes of the caller's name for it.
        with pytest.raises(BufferError):
            files.clear()
        del sealed, opened
    files.clear()


def test_memory_of_the_caller_that_cannot_be_used() -> None:
    column = pa.array([b"first", b"second"])
    size = 2 * layout.encrypted_size(0) + 11
    with pytest.raises(ValueError, match=f"must have at least {size}"):
        ags1.encrypt_many(column, out=bytearray(size - 1))
    with pytest.raises(TypeError, match="writable"):
        ags1.encrypt_many(column, out=bytes(size))
    for call in (ags1.encrypt_many, ags1.decrypt_many):
        with pytest.raises(TypeError, match="column"):
            call([], out=bytearray(1))
    memory = bytearray(b"a" * 1000)
    aliased = pa.Array.from_buffers(
        pa.binary(), 2, [None, pa.array([0, 5, 11], pa.int32()).buffers()[1], pa.py_buffer(memory)]
    )
    with pytest.raises(ValueError, match="overlap"):
        ags1.encrypt_many(aliased, out=memory)
    assert memory == b"a" * 1000
    files = bytearray(size)
    sealed, keys = ags1.encrypt_many(column, out=files)
    before = bytes(files)
    with pytest.raises(ValueError, match="overlap"):
        ags1.decrypt_many((sealed, keys), out=files)
    assert files == before


def test_a_failed_call_zeroes_memory_of_the_caller() -> None:
    sealed, keys = ags1.encrypt_many(pa.array([b"one", b"two", b"three"]))
    damaged = sealed.to_pylist()
    damaged[1] = damaged[1][:-1] + bytes([damaged[1][-1] ^ 1])
    out = bytearray(b"\xaa" * 20)
    with pytest.raises(ags1.AuthenticationError, match="message 1"):
        ags1.decrypt_many((pa.array(damaged), keys), out=out)
    assert out == bytes(11) + b"\xaa" * 9


def test_a_new_buffer_is_zero_and_writable() -> None:
    for size in (0, 1, 5 << 20):
        buffer = ags1.new_buffer(size)
        assert buffer == bytes(size)
        buffer[:] = b"x" * size
    with pytest.raises(ValueError, match="size"):
        ags1.new_buffer(-1)
    with pytest.raises(TypeError):
        ags1.new_buffer("1")  # type: ignore[arg-type]


def columns_of(pairs: list[Any]) -> tuple[Any, Any]:
    return pa.array([data for data, _ in pairs]), pa.array([km.to_bytes() for _, km in pairs])


def test_columns_of_other_writers_are_read() -> None:
    """Other prefixes and block sizes, and what only ``decrypt`` reads."""
    texts, pairs = [reference.pattern(n) for n in range(150)], []
    for n, text in enumerate(texts):
        key, prefix = bytes([n]) * (16, 24, 32)[n % 3], (None, b"", b"x" * n)[n % 3]
        data = reference.encrypt(text, key, prefix, block_size=1 + n % 50)
        pairs.append((data, KeyMetadata(key, prefix, len(data))))
    pairs.append((layout.build_header(MIB), KeyMetadata(bytes(16), None, 8)))
    assert ags1.decrypt_many(columns_of(pairs), threads=3).to_pylist() == [*texts, b""]
    sealed, keys = columns_of(pairs[:3])
    # With one more field, which is null.
    newer = pa.array([stored + b"\0" for stored in keys.to_pylist()])
    assert ags1.decrypt_many((sealed, newer)).to_pylist() == texts[:3]
    unknown = columns_of([(data, KeyMetadata(km.encryption_key)) for data, km in pairs[:1]])
    assert ags1.decrypt_many(unknown, trust_file_size=True).to_pylist() == texts[:1]
    with pytest.raises(ags1.MissingFileLengthError, match=r"^message 0: "):
        ags1.decrypt_many(unknown)
    data, km = pairs[148]  # blocks of 49 bytes, of which the last has one
    with pytest.raises(ags1.TruncatedError, match=r"^message 0: "):
        ags1.decrypt_many(columns_of([(data[:-29], km)]))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bad", [{0}, {9999, 3000}, set(range(4000, 9999))])
def test_the_first_message_that_fails_is_named(bad: set[int], threads: int) -> None:
    sealed, keys = ags1.encrypt_many(pa.array([b"text"] * 10_000))
    files, stored = sealed.to_pylist(), keys.to_pylist()
    for index in bad:
        files[index] = files[index][:-1] + bytes([files[index][-1] ^ 1])
    with pytest.raises(ags1.AuthenticationError, match=f"^message {min(bad)}: ") as caught:
        ags1.decrypt_many((pa.array(files), keys), threads=threads)
    assert (caught.value.index, caught.value.block) == (min(bad), 0)
    if len(bad) == 1:
        good = sealed.to_pylist()[0]
        for data, km, error in (
            (good[:-1], stored[0], ags1.TruncatedError),
            (good + b"x", stored[0], ags1.FormatError),
            (b"PAR1" + good[4:], stored[0], ags1.FormatError),
            (b"", stored[0], ags1.TruncatedError),
            (good, stored[0][:-1], ags1.KeyMetadataError),
            (good, stored[0][:-1] + bytes([stored[0][-1] | 0x80, 0]), ags1.KeyMetadataError),
            (good, stored[0] + b"x", ags1.KeyMetadataError),
            (good, b"", ags1.KeyMetadataError),
            (good, stored[1], ags1.AuthenticationError),
        ):
            columns = pa.array([good, data]), pa.array([stored[0], km])
            with pytest.raises(error, match=r"^message 1: "):
                ags1.decrypt_many(columns, threads=threads)


def test_columns_that_do_not_fit_together_are_refused() -> None:
    sealed, keys = ags1.encrypt_many(pa.array([b"a", None, b"c"]))
    with pytest.raises(ValueError, match="3 messages, and key metadata for 2"):
        ags1.decrypt_many((sealed, keys[:2]))
    with pytest.raises(ValueError, match=r"message 1: .* null"):
        ags1.decrypt_many((sealed, keys.fill_null(b"")))
    for column in (
        pa.array([1]),
        pa.array([b"x"], pa.binary(1)),
        pa.array(["x"]).dictionary_encode(),
        pa.array([[b"x"]]),
        pa.record_batch({"text": ["x"]}),
        pa.chunked_array([], pa.int64()),
        Stream(pa.chunked_array([], pa.int64())),
    ):
        with pytest.raises(TypeError, match="binary or text"):
            ags1.encrypt_many(column)
    for size in (0, 15, 2**40):
        with pytest.raises(ags1.KeyMetadataError):
            ags1.encrypt_many(sealed, key_size=size)
    with pytest.raises(ValueError, match="threads"):
        ags1.encrypt_many(sealed, threads=0)


def test_series_of_polars_and_results_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    polars = pytest.importorskip("polars", reason="pip install ags1[test]")
    series = polars.Series(["text", None, "x" * 50])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    sealed, keys = ags1.encrypt_many(series)
    opened = ags1.decrypt_many((sealed, keys))
    monkeypatch.undo()
    assert {type(column) for column in (sealed, keys, opened)} == {_arrow_arrays.Column}
    assert len(opened) == 3
    # Each export holds the memory.
    twice = [pa.array(opened), pa.array(opened)]
    del opened
    for array in twice:
        assert array.cast(pa.string()).to_pylist() == series.to_list()


def test_offsets_of_two_gibibytes_have_64_bits() -> None:
    """Views of one buffer, so that the messages take no memory. Nothing is encrypted here."""
    text = bytes(MIB)
    size = layout.encrypted_size(MIB)
    fitting = (2**31 - 1) // size
    for count, made in ((fitting, pa.binary()), (fitting + 1, pa.large_binary())):
        view = MIB.to_bytes(4, "little") + bytes(12)
        views = pa.Array.from_buffers(
            pa.binary_view(), count, [None, pa.py_buffer(view * count), pa.py_buffer(text)]
        )
        batch = _columns.SealColumn(_arrow_arrays.Messages(views), 1, 32)
        array = pa.array(batch.sealed)
        assert array.type == made
        assert array.nbytes >= count * size


# ---- malformed arrays --------------------------------------------------------------------------

# Random arrays, of which pyarrow says whether they are valid. A crash ends the process.
HOSTILE = """
import random, sys
import pyarrow as pa
import ags1

random = random.Random(sys.argv[1])
outcomes = {"valid": 0, "refused": 0}

def number(most):
    edges = [0, 1, -1, most, most + 1, 2**31 - 1, -(2**31), 2**40, -(2**63), 2**63 - 1]
    return random.choice(edges) if random.random() < 0.1 else random.randint(0, max(most, 0))

def clip(n, width):
    return max(-(1 << 8 * width - 1), min(n, (1 << 8 * width - 1) - 1)).to_bytes(
        width, "little", signed=True)

def some_array():
    type_ = random.choice([pa.binary(), pa.large_binary(), pa.binary_view()])
    length, offset = random.randint(0, 6), random.randint(0, 3)
    if random.random() < 0.1:
        length += 70
    data = random.randbytes(random.randint(0, 60))
    valid = random.choice([None, pa.py_buffer(random.randbytes(random.choice([2, 2, 20, 0])))])
    room = length + offset - (random.random() < 0.02)
    if type_ == pa.binary_view():
        entries = b""
        for _ in range(room):
            size = number(30)
            start, buffer = number(len(data) - max(size, 0)), number(0)
            entries += clip(size, 4) + data[:4].ljust(4, b"x") + clip(buffer, 4) + clip(start, 4)
    else:
        at = sorted(number(len(data)) for _ in range(room + 1))
        if random.random() < 0.2:
            random.shuffle(at)
        entries = b"".join(clip(n, 8 if type_ == pa.large_binary() else 4) for n in at)
    # pyarrow looks at the offsets at once, but not again when they have changed.
    changing = bytearray(len(entries))
    buffers = [valid, pa.py_buffer(changing), pa.py_buffer(data)]
    try:
        array = pa.Array.from_buffers(type_, length, buffers, offset=offset)
    except pa.ArrowInvalid:
        return some_array()
    changing[:] = entries
    return array

for _ in range(int(sys.argv[2])):
    array = some_array()
    try:
        array.validate(full=True)
        is_valid = True
    except (pa.ArrowInvalid, IndexError):
        is_valid = False
    try:
        sealed, keys = ags1.encrypt_many(array)
    except ags1.FormatError:
        assert not is_valid, array.buffers()
        outcomes["refused"] += 1
        for pair in ((array, array), [array, pa.array([b""] * len(array))]):
            try:
                ags1.decrypt_many(pair)
            except (ags1.Ags1Error, ValueError):
                continue
            assert not len(array)
        continue
    if is_valid:
        assert ags1.decrypt_many((sealed, keys)).to_pylist() == array.to_pylist()
        outcomes["valid"] += 1
assert min(outcomes.values()) > int(sys.argv[2]) // 20, outcomes
"""


@pytest.mark.parametrize("count", [1000, pytest.param(3000, marks=pytest.mark.slow)])
def test_malformed_arrays_are_refused(run_python: RunPython, count: int) -> None:
    run_python(HOSTILE, count, count)


def fields_of(capsule: Any, name: bytes) -> Any:
    """The C struct in a capsule, as numbers."""
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return (ctypes.c_int64 * 10).from_address(address(capsule, name))  # type: ignore[arg-type]


class Given:
    """An array or a stream whose capsules are at hand."""

    def __init__(self, capsules: Any) -> None:
        self._capsules = capsules

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self._capsules


class GivenStream(Given):
    __arrow_c_array__ = property()  # type: ignore[assignment]

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._capsules


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, -1), (0, 2**62), (2, -1), (2, 2**63 - 1), (3, 2), (3, 4), (5, 0), (8, 0)],
)
def test_impossible_structs_are_refused(place: int, value: int) -> None:
    capsules = pa.array([b"text"]).__arrow_c_array__()
    fields = fields_of(capsules[1], b"arrow_array")
    before, fields[place] = fields[place], value
    with pytest.raises(ags1.FormatError, match="Arrow"):
        ags1.encrypt_many(Given(capsules))
    fields[place] = before  # its producer frees what is in there


def test_what_is_no_capsule_of_arrow_is_refused() -> None:
    schema, array = pa.array([b"text"]).__arrow_c_array__()
    for capsules in ((array, schema), (schema, None)):
        with pytest.raises(ValueError, match="PyCapsule"):
            ags1.encrypt_many(Given(capsules))


def test_a_stream_that_fails_or_is_empty_is_refused() -> None:
    failing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: 5)
    for place, value, reason in (
        (1, ctypes.cast(failing, ctypes.c_void_p).value, "stream failed: "),
        (3, 0, "was released"),
    ):
        capsule = pa.chunked_array([["text"]]).__arrow_c_stream__()
        fields = fields_of(capsule, b"arrow_array_stream")
        before, fields[place] = fields[place], value
        with pytest.raises(ags1.FormatError, match=reason):
            ags1.encrypt_many(GivenStream(capsule))  # type: ignore[call-overload]
        fields[place] = before
