"""The vectors of ``tests/vectors``: Java's streams, and the reference's small ones."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import reference

import ags1
from ags1 import KeyMetadata, layout
from ags1.engine import _messages, geometry

FOLDER = Path(__file__).parents[1] / "vectors"
JAVA = json.loads((FOLDER / "index.json").read_text())
SMALL = [reference.Vector.from_json(v) for v in json.loads((FOLDER / "small.json").read_text())]
REFUSALS = (ags1.FormatError, ags1.TruncatedError, ags1.AuthenticationError)

java_streams = pytest.mark.parametrize(
    "vector", JAVA, ids=lambda v: v["file"].removesuffix(".ags1")
)
small_streams = pytest.mark.parametrize("vector", SMALL, ids=lambda v: v.name)


def java_metadata(vector: dict[str, Any]) -> KeyMetadata:
    aad = None if vector["aad"] is None else bytes.fromhex(vector["aad"])
    return KeyMetadata(bytes.fromhex(vector["key"]), aad, vector["stored"])


def test_all_vectors_are_here() -> None:
    assert len(JAVA) == 18
    assert sorted(v["file"] for v in JAVA) == sorted(p.name for p in FOLDER.glob("*.ags1"))
    assert len(SMALL) == len({v.name for v in SMALL}) == 157
    assert sum(v.plaintext is None for v in SMALL) == 21


@java_streams
def test_java_streams_are_read(vector: dict[str, Any], tmp_path: Path) -> None:
    path, km = FOLDER / vector["file"], java_metadata(vector)
    expected = reference.pattern(vector["size"])
    assert hashlib.sha256(expected).hexdigest() == vector["sha256"]
    stream = path.read_bytes()
    assert len(stream) == vector["stored"] == layout.encrypted_size(vector["size"])

    assert ags1.decrypt(stream, km) == expected
    out = bytearray(len(expected))
    assert ags1.decrypt_into(stream, out, km) == len(expected)
    assert out == expected
    with ags1.open(path, "rb", km, block_size=1 << 20) as file:
        assert file.read() == expected
    with ags1.open(io.BytesIO(stream), "rb", km) as file:
        middle = len(expected) // 2
        assert file.pread(middle, 100) == expected[middle : middle + 100]
    assert ags1.verify_file(path, km) == len(expected)
    target = tmp_path / "plain"
    assert ags1.decrypt_file(path, target, km, durable=False) == len(expected)
    assert target.read_bytes() == expected


@java_streams
def test_java_streams_are_read_by_the_reference(vector: dict[str, Any]) -> None:
    km = java_metadata(vector)
    stream = (FOLDER / vector["file"]).read_bytes()
    text = reference.decrypt(stream, km.encryption_key, km.aad_prefix, vector["stored"])
    assert text == reference.pattern(vector["size"])


@java_streams
def test_what_we_write_has_javas_form(vector: dict[str, Any]) -> None:
    # Everything but nonces, ciphertext and tags is the same byte for byte.
    java = (FOLDER / vector["file"]).read_bytes()
    km = java_metadata(vector)
    ours = ags1.encrypt(reference.pattern(vector["size"]), km=km, reuse_key=True).data
    assert ours[:8] == java[:8]
    assert len(ours) == len(java)
    assert reference.decrypt(ours, km.encryption_key, km.aad_prefix, len(java)) == (
        reference.pattern(vector["size"])
    )


@small_streams
def test_small_streams(vector: reference.Vector, tmp_path: Path) -> None:
    km = KeyMetadata(vector.key, vector.aad_prefix, vector.length)
    trust = {"trust_file_size": vector.length is None}
    path, target = tmp_path / "sealed", tmp_path / "plain"
    path.write_bytes(vector.stream)

    def read(file: Any) -> bytes:
        with ags1.open(file, "rb", km, **trust) as reader:
            return reader.read()  # type: ignore[no-any-return]

    ways = (
        lambda: ags1.decrypt(vector.stream, km, **trust),
        lambda: read(path),
        lambda: read(io.BytesIO(vector.stream)),
        lambda: ags1.verify_file(path, km, **trust),
        lambda: ags1.decrypt_file(path, target, km, durable=False, **trust),
    )
    for way in ways:
        if vector.plaintext is None:
            with pytest.raises(REFUSALS):
                way()
        else:
            assert way() in (vector.plaintext, len(vector.plaintext))
    if vector.plaintext is None:
        assert not target.exists()
        with pytest.raises(reference.RefusedError):
            reference.decrypt(vector.stream, vector.key, vector.aad_prefix, vector.length)
    else:
        assert target.read_bytes() == vector.plaintext
        assert vector.plaintext == reference.decrypt(
            vector.stream, vector.key, vector.aad_prefix, vector.length
        )


def test_the_reference_makes_small_json_again() -> None:
    made = subprocess.run(
        [sys.executable, reference.__file__], capture_output=True, check=True, text=True
    )
    assert made.stdout == (FOLDER / "small.json").read_text()


def test_the_reference_shares_no_code_with_us() -> None:
    assert "ags1" not in {
        line.split()[1].split(".")[0]
        for line in Path(reference.__file__).read_text().splitlines()
        if line.startswith(("import ", "from "))
    }


def test_javas_wrapped_keys_open() -> None:
    wrapped = json.loads((FOLDER / "wrapped.json").read_text())
    raw = {k: bytes.fromhex(v) for k, v in wrapped.items() if k != "key_timestamp"}
    timestamp = wrapped["key_timestamp"].encode()
    assert _messages.open(raw["master"], raw["wrapped_kek"]) == raw["kek"]
    assert _messages.open(raw["kek"], raw["mlk_encrypted"], timestamp) == raw["mlk_plain"]
    assert KeyMetadata.from_bytes(raw["mlk_plain"]).to_bytes() == raw["mlk_plain"]
    with pytest.raises(ags1.AuthenticationError):
        _messages.open(raw["kek"], raw["mlk_encrypted"])


def test_the_default_limit_on_block_sizes() -> None:
    assert geometry.DEFAULT_MAX_BLOCK_SIZE == 64 << 20
