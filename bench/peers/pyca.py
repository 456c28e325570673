"""AGS1 on ``cryptography``'s AESGCM: as one writes it first, and as fast as it can be made."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import os
import time
from collections.abc import Sequence
from typing import Any

from ags1 import layout
from bench.material import Material

from .process import PeerError

NAME = "cryptography"
_KEY_METADATA = {
    "type": "record",
    "name": "key_metadata",
    "fields": [
        {"name": "encryption_key", "type": "bytes"},
        {"name": "aad_prefix", "type": ["null", "bytes"]},
        {"name": "file_length", "type": ["null", "long"]},
    ],
}


def missing() -> str | None:
    try:
        importlib.import_module("cryptography.cobblestone")
    except ImportError:
        return "pip install 'cryptography>=50'"
    return None


def version() -> str:
    from cryptography.hazmat.backends.openssl import backend

    return f"{importlib.metadata.version('cryptography')}, {backend.openssl_version_text()}"


def naive_encrypt(data: bytes | bytearray, key: bytes, aad_prefix: bytes) -> bytes:
    """The loop from the format's description, one ``encrypt`` per block."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    out = bytearray(layout.build_header(layout.DEFAULT_BLOCK_SIZE))
    for number, at in enumerate(range(0, max(len(data), 1), layout.DEFAULT_BLOCK_SIZE)):
        nonce = os.urandom(layout.NONCE_SIZE)
        aad = aad_prefix + number.to_bytes(4, "little")
        out += nonce
        out += AESGCM(key).encrypt(nonce, data[at : at + layout.DEFAULT_BLOCK_SIZE], aad)
    return bytes(out)


def naive_decrypt(sealed: bytes | bytearray, key: bytes, aad_prefix: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    slot_size = layout.parse_header(bytes(sealed[: layout.HEADER_SIZE])) + layout.BLOCK_OVERHEAD
    out = bytearray()
    for number, at in enumerate(range(layout.HEADER_SIZE, len(sealed), slot_size)):
        slot = sealed[at : at + slot_size]
        aad = aad_prefix + number.to_bytes(4, "little")
        out += AESGCM(key).decrypt(slot[: layout.NONCE_SIZE], slot[layout.NONCE_SIZE :], aad)
    return bytes(out)


def open_key_metadata(
    kek: bytes, timestamp: bytes, wrapped: Sequence[bytes]
) -> list[tuple[bytes, bytes, int]]:
    """Unwrap the key metadata of manifest lists: key, AAD prefix and file length of each."""
    import fastavro
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    schema = fastavro.parse_schema(_KEY_METADATA)
    opened = []
    for sealed in wrapped:
        datum = AESGCM(kek).decrypt(
            sealed[: layout.NONCE_SIZE], sealed[layout.NONCE_SIZE :], timestamp
        )
        fields: Any = fastavro.schemaless_reader(io.BytesIO(datum[1:]), schema, None)
        opened.append((fields["encryption_key"], fields["aad_prefix"], fields["file_length"]))
    return opened


def joined_encrypt(data: bytes | bytearray, key: bytes, aad_prefix: bytes) -> bytes:
    """The same with one object per file and the pieces joined at the end."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher, text = AESGCM(key), memoryview(data)
    parts = [layout.build_header(layout.DEFAULT_BLOCK_SIZE)]
    for number, at in enumerate(range(0, max(len(data), 1), layout.DEFAULT_BLOCK_SIZE)):
        nonce = os.urandom(layout.NONCE_SIZE)
        aad = aad_prefix + number.to_bytes(4, "little")
        parts.append(nonce)
        parts.append(cipher.encrypt(nonce, text[at : at + layout.DEFAULT_BLOCK_SIZE], aad))
    return b"".join(parts)


def joined_decrypt(sealed: bytes | bytearray, key: bytes, aad_prefix: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher, slots = AESGCM(key), memoryview(sealed)
    slot_size = layout.parse_header(bytes(slots[: layout.HEADER_SIZE])) + layout.BLOCK_OVERHEAD
    parts = []
    for number, at in enumerate(range(layout.HEADER_SIZE, len(sealed), slot_size)):
        slot = slots[at : at + slot_size]
        aad = aad_prefix + number.to_bytes(4, "little")
        parts.append(cipher.decrypt(slot[: layout.NONCE_SIZE], slot[layout.NONCE_SIZE :], aad))
    return b"".join(parts)


class PycaInto:
    """One kept AESGCM, ``encrypt_into`` and ``decrypt_into`` between the shared kept buffers."""

    name = f"{NAME}, into buffers"
    writes_ags1 = True
    rounds: int | None = None

    def missing(self) -> str | None:
        return missing()

    def version(self) -> str:
        return version()

    def start(self, material: Material) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._material = material
        self._cipher = AESGCM(material.key)

    def seal(self) -> float:
        material, encrypt_into = self._material, self._cipher.encrypt_into
        block_size, aad_prefix = material.block_size, material.aad_prefix
        begin = time.perf_counter()
        text, slots = memoryview(material.plaintext), memoryview(material.sealed)
        at = layout.HEADER_SIZE
        for number, start in enumerate(range(0, material.size, block_size)):
            nonce = os.urandom(layout.NONCE_SIZE)
            part = text[start : start + block_size]
            end = at + len(part) + layout.BLOCK_OVERHEAD
            slots[at : at + layout.NONCE_SIZE] = nonce
            aad = aad_prefix + number.to_bytes(4, "little")
            encrypt_into(nonce, part, aad, slots[at + layout.NONCE_SIZE : end])
            at = end
        return time.perf_counter() - begin

    def open(self) -> float:
        material, decrypt_into = self._material, self._cipher.decrypt_into
        block_size, aad_prefix = material.block_size, material.aad_prefix
        begin = time.perf_counter()
        slots, out = memoryview(material.sealed), memoryview(material.opened)
        at = layout.HEADER_SIZE
        for number, start in enumerate(range(0, material.size, block_size)):
            part = out[start : start + block_size]
            text, end = at + layout.NONCE_SIZE, at + len(part) + layout.BLOCK_OVERHEAD
            aad = aad_prefix + number.to_bytes(4, "little")
            decrypt_into(slots[at:text], slots[text:end], aad, part)
            at = end
        return time.perf_counter() - begin

    def check(self) -> None:
        self._material.check_opened()

    def stop(self) -> None:
        del self._material, self._cipher


class _NewBytes:
    """From whole bytes to whole new bytes."""

    name: str
    writes_ags1 = True
    rounds: int | None = None

    def missing(self) -> str | None:
        return missing()

    def version(self) -> str:
        return version()

    def start(self, material: Material) -> None:
        if material.block_size != layout.DEFAULT_BLOCK_SIZE:
            raise PeerError("it writes blocks of 1 MiB only")
        self._material = material
        self._sealed = self._opened = b""

    def seal(self) -> float:
        self._sealed = b""
        begin = time.perf_counter()
        self._sealed = self._encrypt()
        return time.perf_counter() - begin

    def open(self) -> float:
        self._opened = b""
        begin = time.perf_counter()
        self._opened = self._decrypt()
        return time.perf_counter() - begin

    def _encrypt(self) -> bytes:
        raise NotImplementedError

    def _decrypt(self) -> bytes:
        raise NotImplementedError

    def check(self) -> None:
        if self._opened != self._material.plaintext:
            raise PeerError("the plaintext did not come back")

    def stop(self) -> None:
        del self._material, self._sealed, self._opened


class PycaNaive(_NewBytes):
    name = f"{NAME}, naive loop"

    def _encrypt(self) -> bytes:
        return naive_encrypt(
            self._material.plaintext, self._material.key, self._material.aad_prefix
        )

    def _decrypt(self) -> bytes:
        return naive_decrypt(self._sealed, self._material.key, self._material.aad_prefix)


class PycaJoined(_NewBytes):
    name = f"{NAME}, joined loop"

    def _encrypt(self) -> bytes:
        return joined_encrypt(
            self._material.plaintext, self._material.key, self._material.aad_prefix
        )

    def _decrypt(self) -> bytes:
        return joined_decrypt(self._sealed, self._material.key, self._material.aad_prefix)
