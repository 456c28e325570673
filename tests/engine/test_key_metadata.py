"""StandardKeyMetadata: Java's bytes, what a newer version may append, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ags1
from ags1 import KeyMetadata
from ags1.engine.key_metadata import _codec
from ags1.errors import Ags1Error, KeyMetadataError

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "key_metadata.json").read_text())
KEY = bytes(range(16))
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "encryption_key", "type": "bytes"},
        {"name": "aad_prefix", "type": ["null", "bytes"]},
        {"name": "file_length", "type": ["null", "long"]},
    ],
}

keys = st.sampled_from([16, 24, 32]).flatmap(lambda n: st.binary(min_size=n, max_size=n))
prefixes = st.none() | st.binary(max_size=40)
lengths = st.none() | st.integers(0, 2**63 - 1)
metadata = st.builds(KeyMetadata, keys, prefixes, lengths)


def fields_of(km: KeyMetadata) -> tuple[bytes, bytes | None, int | None]:
    return km.encryption_key, km.aad_prefix, km.file_length


def avro(schema: dict[str, Any], datum: dict[str, Any]) -> bytes:
    import io

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), datum)
    return out.getvalue()


def test_all_of_javas_vectors_are_here() -> None:
    assert len(VECTORS) == 32


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["bytes"][:4] + "-" + v["bytes"][-8:])
def test_javas_bytes(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    aad = None if vector["aad"] is None else bytes.fromhex(vector["aad"])
    expected = (bytes.fromhex(vector["key"]), aad, vector["file_length"])
    assert fields_of(KeyMetadata.from_bytes(data)) == expected
    assert KeyMetadata(*expected).to_bytes() == data


@given(metadata, st.integers(0, 2**63 - 1))
def test_the_bytes_are_a_version_and_an_avro_datum(km: KeyMetadata, length: int) -> None:
    before = fields_of(km)
    data = km.to_bytes()
    names = ("encryption_key", "aad_prefix", "file_length")
    assert data == b"\x01" + avro(AVRO, dict(zip(names, before, strict=True)))
    for kind in (bytes, bytearray, memoryview):
        again = KeyMetadata.from_bytes(kind(data))
        assert fields_of(again) == before
        assert again == km
    # With another length, nothing else is another.
    assert fields_of(km.with_file_length(length)) == (*before[:2], length)
    assert fields_of(km) == before


def test_a_null_and_an_empty_prefix_are_kept_apart() -> None:
    null, empty = KeyMetadata(KEY, None), KeyMetadata(KEY, b"")
    assert null != empty
    assert null.to_bytes() != empty.to_bytes()
    assert KeyMetadata.from_bytes(null.to_bytes()).aad_prefix is None
    assert KeyMetadata.from_bytes(empty.to_bytes()).aad_prefix == b""


# ---- a newer version may append optional fields ------------------------------------------------

appended = st.lists(
    st.sampled_from(["long", "bytes", "string", "boolean", "int"]).flatmap(
        lambda kind: st.tuples(
            st.just(kind),
            st.none()
            | {
                "long": st.integers(-(2**63), 2**63 - 1),
                "int": st.integers(-(2**31), 2**31 - 1),
                "bytes": st.binary(max_size=40),
                "string": st.text(max_size=10),
                "boolean": st.booleans(),
            }[kind],
        )
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30)  # fastavro parses a schema for each
@given(metadata, appended)
def test_fields_that_a_newer_version_appends_are_passed_over(
    km: KeyMetadata, extra: list[tuple[str, Any]]
) -> None:
    schema: dict[str, Any] = {"type": "record", "name": "tail", "fields": []}
    for i, (kind, _) in enumerate(extra):
        schema["fields"].append({"name": f"f{i}", "type": ["null", kind]})
    tail = avro(schema, {f"f{i}": value for i, (_, value) in enumerate(extra)})
    assert KeyMetadata.from_bytes(km.to_bytes() + tail) == km


@pytest.mark.parametrize(
    "rubbish",
    [b"\x01", b"\xff", b"\x04\x00", b"\x02", b"\x02\x80", b"\x02\xff", b"AGS1", b"\x00AGS1"],
)
def test_trailing_rubbish_is_refused(rubbish: bytes) -> None:
    for prefix in (None, b"", bytes(16)):
        for length in (None, 0, 5_000_000_000):
            data = KeyMetadata(KEY, prefix, length).to_bytes() + rubbish
            with pytest.raises(KeyMetadataError):
                KeyMetadata.from_bytes(data)


def test_two_of_them_in_a_row_are_refused() -> None:
    data = KeyMetadata(KEY, bytes(16), 100).to_bytes()
    with pytest.raises(KeyMetadataError):
        KeyMetadata.from_bytes(data + data)


def test_a_long_tail_is_judged_quickly() -> None:
    data = KeyMetadata(KEY).to_bytes()
    with pytest.raises(KeyMetadataError):
        KeyMetadata.from_bytes(data + bytes(20_000) + b"\x01")
    with pytest.raises(KeyMetadataError):
        KeyMetadata.from_bytes(data + b"\x02\x02\x02" * 10_000 + bytes(3) + b"\x01")
    assert KeyMetadata.from_bytes(data + bytes(20_000)) == KeyMetadata(KEY)


# ---- refusals ----------------------------------------------------------------------------------


def test_other_versions_are_refused() -> None:
    for version in (0, *range(2, 256)):
        data = bytes([version]) + KeyMetadata(KEY).to_bytes()[1:]
        with pytest.raises(KeyMetadataError, match="version"):
            KeyMetadata.from_bytes(data)


def test_a_library_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    data = KeyMetadata.generate().to_bytes()
    _codec.cache_clear()
    monkeypatch.setitem(sys.modules, "fastavro", None)
    for call in (lambda: KeyMetadata.from_bytes(data), KeyMetadata.generate().to_bytes):
        with pytest.raises(ImportError, match="fastavro"):
            call()
    monkeypatch.undo()
    assert KeyMetadata.from_bytes(data).to_bytes() == data


def test_nothing_is_refused() -> None:
    with pytest.raises(KeyMetadataError):
        KeyMetadata.from_bytes(b"")


@given(metadata)
def test_every_cut_is_refused(km: KeyMetadata) -> None:
    data = km.to_bytes()
    for end in range(len(data)):
        with pytest.raises(KeyMetadataError):
            KeyMetadata.from_bytes(data[:end])


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\xa0\x00" + KEY + b"\x00\x00",  # lengths and branches in more bytes than they need
        b"\x01\x20" + KEY + b"\x80\x00\x00",
        b"\x01\x20" + KEY + b"\x02\x82\x00x\x00",
        b"\x01\x20" + KEY + b"\x00\x02\xc8\x00",
        b"\x01\x1f" + KEY + b"\x00\x00",  # a negative length
        b"\x01\x20" + KEY + b"\x04\x00",  # branches that do not exist
        b"\x01\x20" + KEY + b"\x01\x00",
        b"\x01\x20" + KEY + b"\x00\x01",
    ],
)
def test_bytes_that_no_writer_writes_are_refused(data: bytes) -> None:
    with pytest.raises(KeyMetadataError):
        KeyMetadata.from_bytes(data)


@given(st.binary(max_size=80))
def test_any_bytes_give_key_metadata_or_its_error(data: bytes) -> None:
    for candidate in (data, b"\x01" + data):
        try:
            km = KeyMetadata.from_bytes(candidate)
        except KeyMetadataError:
            continue
        assert candidate.startswith(km.to_bytes())


@pytest.mark.parametrize("size", [*range(16), *range(17, 24), *range(25, 32), 33, 64, 128])
def test_other_key_lengths_are_refused(size: int) -> None:
    datum = {"encryption_key": bytes(size), "aad_prefix": None, "file_length": None}
    with pytest.raises(KeyMetadataError, match=f"16, 24 or 32.*{size}"):
        KeyMetadata.from_bytes(b"\x01" + avro(AVRO, datum))
    with pytest.raises(KeyMetadataError, match=f"16, 24 or 32.*{size}"):
        KeyMetadata(bytes(size))


@pytest.mark.parametrize("length", [-1, -(2**63), 2**63])
def test_impossible_file_lengths_are_refused(length: int) -> None:
    with pytest.raises(KeyMetadataError):
        KeyMetadata(KEY, None, length)
    with pytest.raises(KeyMetadataError):
        KeyMetadata(KEY).with_file_length(length)
    if length > -(2**63) - 1 and length < 2**63:
        datum = {"encryption_key": KEY, "aad_prefix": None, "file_length": length}
        with pytest.raises(KeyMetadataError):
            KeyMetadata.from_bytes(b"\x01" + avro(AVRO, datum))


@pytest.mark.parametrize("key", [None, "0123456789012345", 16, 32, 1.5, list(range(16))])
def test_a_key_is_bytes(key: Any) -> None:
    # An int must not become so many zero bytes.
    with pytest.raises(TypeError):
        KeyMetadata(key)


@pytest.mark.parametrize("prefix", ["aad", 16, 1.5, [1, 2]])
def test_a_prefix_is_bytes(prefix: Any) -> None:
    with pytest.raises(TypeError):
        KeyMetadata(KEY, prefix)


@pytest.mark.parametrize("length", ["36", 36.0, b"36"])
def test_a_file_length_is_an_int(length: Any) -> None:
    with pytest.raises(TypeError):
        KeyMetadata(KEY, None, length)


@pytest.mark.parametrize("data", [None, 5, "01", ["01"]])
def test_what_is_parsed_is_bytes(data: Any) -> None:
    with pytest.raises((TypeError, KeyMetadataError)):
        KeyMetadata.from_bytes(data)


# ---- the object --------------------------------------------------------------------------------


def test_a_buffer_given_as_key_is_copied() -> None:
    key, prefix = bytearray(KEY), bytearray(b"prefix")
    km = KeyMetadata(key, prefix)  # type: ignore[arg-type]
    key[0] ^= 1
    prefix[0] ^= 1
    assert fields_of(km) == (KEY, b"prefix", None)
    assert type(km.encryption_key) is bytes


@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_generate_makes_fresh_keys_and_prefixes(key_size: int) -> None:
    made = [KeyMetadata.generate(key_size) for _ in range(50)]
    assert {len(km.encryption_key) for km in made} == {key_size}
    assert {len(km.aad_prefix or b"") for km in made} == {16}
    assert len({km.encryption_key for km in made}) == 50
    assert len({km.aad_prefix for km in made}) == 50
    assert {km.file_length for km in made} == {None}


def test_generate_makes_32_bytes_by_default() -> None:
    assert len(KeyMetadata.generate().encryption_key) == 32


@pytest.mark.parametrize("key_size", [0, -1, 8, 15, 128, 256])
def test_generate_refuses_other_sizes(key_size: int) -> None:
    with pytest.raises(KeyMetadataError):
        KeyMetadata.generate(key_size)


@pytest.mark.parametrize("name", ["encryption_key", "aad_prefix", "file_length", "another"])
def test_it_is_immutable(name: str) -> None:
    km = KeyMetadata(KEY, b"", 36)
    with pytest.raises(AttributeError):
        setattr(km, name, KEY)
    with pytest.raises(AttributeError):
        delattr(km, name)
    assert fields_of(km) == (KEY, b"", 36)


@given(metadata, metadata)
def test_it_compares_by_value(a: KeyMetadata, b: KeyMetadata) -> None:
    assert (a == b) is (fields_of(a) == fields_of(b))
    assert (a != b) is not (a == b)
    assert a == KeyMetadata(*fields_of(a))
    assert a != fields_of(a)


def test_it_does_not_hash() -> None:
    with pytest.raises(TypeError):
        hash(KeyMetadata(KEY))


def test_pickling_and_copying_are_refused() -> None:
    km = KeyMetadata.generate()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="to_bytes"):
            pickle.dumps(km, protocol)
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            duplicate(km)


def test_the_error_is_a_value_error_and_ours() -> None:
    assert issubclass(KeyMetadataError, Ags1Error)
    assert issubclass(KeyMetadataError, ValueError)
    assert ags1.KeyMetadata is KeyMetadata
