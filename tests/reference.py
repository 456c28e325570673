"""An AGS1 of its own, to judge ags1 by, written from the specification.

Its cipher is ``cryptography``'s AESGCM. Never imports ags1 and shares no arithmetic with it; walks
the blocks one by one and is slow on purpose. ``python tests/reference.py`` prints
``tests/vectors/small.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MIB = 1 << 20


class RefusedError(Exception):
    """The stream is not what was written under this key, prefix and length."""


def pattern(size: int) -> bytes:
    """Return the plaintext of all vectors: byte i is (31 i + 7) mod 256."""
    period = bytes((31 * i + 7) & 0xFF for i in range(256))
    return (period * (size // 256 + 1))[:size]


def _random_nonce(number: int) -> bytes:
    return os.urandom(12)


def encrypt(
    plaintext: bytes,
    key: bytes,
    aad_prefix: bytes | None = None,
    block_size: int = MIB,
    nonce: Callable[[int], bytes] = _random_nonce,
) -> bytes:
    """Return the stream, as Java writes it."""
    aes = AESGCM(key)
    stream = [b"AGS1", struct.pack("<i", block_size)]
    view = memoryview(plaintext)
    for number, start in enumerate(range(0, len(plaintext) or 1, block_size)):
        aad = (aad_prefix or b"") + struct.pack("<i", number)
        fresh = nonce(number)
        stream += [fresh, aes.encrypt(fresh, view[start : start + block_size], aad)]
    return b"".join(stream)


def decrypt(
    stream: bytes, key: bytes, aad_prefix: bytes | None = None, length: int | None = None
) -> bytes:
    """Return the plaintext; raise RefusedError where a reader must refuse."""
    if length is not None and len(stream) != length:
        raise RefusedError(f"{len(stream)} bytes, not {length}")
    if len(stream) < 8 or stream[:4] != b"AGS1":
        raise RefusedError("no header")
    block_size = struct.unpack("<i", stream[4:8])[0]
    if block_size < 1:
        raise RefusedError(f"block size {block_size}")
    if len(stream) == 8 and length != 8:
        raise RefusedError("a header alone, and no trusted length that says so")
    aes = AESGCM(key)
    plaintext = []
    rest = memoryview(stream)[8:]
    number = 0
    while rest:
        slot, rest = rest[: block_size + 28], rest[block_size + 28 :]
        if len(slot) < 28 or (len(slot) == 28 and number > 0):
            raise RefusedError(f"block {number} has {len(slot)} bytes")
        try:
            aad = (aad_prefix or b"") + struct.pack("<i", number)
            plaintext.append(aes.decrypt(bytes(slot[:12]), slot[12:], aad))
        except InvalidTag:
            raise RefusedError(f"block {number} does not authenticate") from None
        number += 1
    return b"".join(plaintext)


def slots(stream: bytes) -> list[bytes]:
    """Cut a well-formed stream into its blocks, each nonce | ciphertext | tag."""
    block_size = struct.unpack("<i", stream[4:8])[0]
    return [stream[at : at + block_size + 28] for at in range(8, len(stream), block_size + 28)]


@dataclass(frozen=True)
class Vector:
    """One line of small.json. ``plaintext`` is None where a reader must refuse."""

    name: str
    key: bytes
    aad_prefix: bytes | None
    length: int | None
    block_size: int
    stream: bytes
    plaintext: bytes | None

    def to_json(self) -> dict[str, object]:
        """Return the line with its bytes in hex."""
        return {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_json(cls, line: dict[str, object]) -> Vector:
        """Read such a line."""
        kept = ("name", "length", "block_size")
        return cls(
            **{  # type: ignore[arg-type]
                name: value if name in kept or value is None else bytes.fromhex(str(value))
                for name, value in line.items()
            }
        )


def small_vectors() -> list[Vector]:
    """Return the vectors of small.json: streams with small blocks, and what to refuse."""
    made = []
    for key_size in (16, 24, 32):
        key = bytes(range(0x10, 0x10 + key_size))
        for prefix in (None, b"", bytes.fromhex("a0a3a6a9acafb2b5b8bbbec1c4c7cacd")):
            for block_size in (1, 16, 17):
                for size in (0, 1, 16, 17, 51):
                    kind = "none" if prefix is None else str(len(prefix))
                    name = f"k{key_size}-aad_{kind}-b{block_size}-s{size}"

                    def nonce(number: int, name: str = name) -> bytes:
                        return hashlib.sha256(f"{name}/{number}".encode()).digest()[:12]

                    stream = encrypt(pattern(size), key, prefix, block_size, nonce)
                    made.append(
                        Vector(name, key, prefix, len(stream), block_size, stream, pattern(size))
                    )
    whole = next(v for v in made if v.name == "k16-aad_16-b16-s51")
    header, parts = whole.stream[:8], slots(whole.stream)

    def refused(name: str, stream: bytes, **changed: object) -> Vector:
        fields = vars(whole) | {"name": name, "stream": stream, "plaintext": None} | changed
        return Vector(**fields)  # type: ignore[arg-type]

    made.append(Vector("header-alone", whole.key, None, 8, 16, header, b""))
    made += [
        refused("header-alone-untrusted", header, length=None),
        refused("magic", b"AGS2" + whole.stream[4:]),
        refused("block-size-zero", b"AGS1" + bytes(4) + whole.stream[8:]),
        refused("block-size-negative", b"AGS1" + b"\xff" * 4 + whole.stream[8:]),
        refused("block-size-15", header[:4] + b"\x0f\0\0\0" + whole.stream[8:]),
        refused("block-size-huge", header[:4] + b"\xff\xff\xff\x7f" + whole.stream[8:]),
        refused("tag-changed", whole.stream[:-1] + bytes([whole.stream[-1] ^ 1])),
        refused("nonce-changed", header + b"\0" + whole.stream[9:]),
        refused("blocks-swapped", header + parts[1] + parts[0] + parts[2] + parts[3]),
        refused("first-block-dropped", header + b"".join(parts[1:]), length=None),
        refused("last-block-dropped", header + b"".join(parts[:-1])),
        refused("block-repeated", header + parts[0] + parts[0] + parts[2] + parts[3]),
        refused("byte-appended", whole.stream + b"\0"),
        refused("empty-block-appended", whole.stream + bytes(28), length=len(whole.stream) + 28),
        refused("cut-in-a-tag", whole.stream[:-1]),
        refused("empty", b""),
        refused("key", whole.stream, key=bytes(16)),
        refused("aad-prefix-missing", whole.stream, aad_prefix=None),
        refused("aad-prefix-empty", whole.stream, aad_prefix=b""),
        refused("length-too-small", whole.stream, length=len(whole.stream) - 1),
        refused("length-too-large", whole.stream, length=len(whole.stream) + 1),
    ]
    return made


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(vector.to_json()) for vector in small_vectors())
    print(f"[\n{lines}\n]")
