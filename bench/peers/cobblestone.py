"""``cryptography.cobblestone``: C2SP's chunked encryption, a stream of chunks of 16 KiB."""

from __future__ import annotations

import time
from typing import Any

from bench.material import Material

from . import pyca
from .process import PeerError

PIECE = 1 << 20


class Cobblestone:
    """``update_into`` in pieces of 1 MiB, between kept buffers."""

    name = f"{pyca.NAME}, Cobblestone"
    writes_ags1 = False
    rounds: int | None = None

    def missing(self) -> str | None:
        return pyca.missing()

    def version(self) -> str:
        return pyca.version()

    def start(self, material: Material) -> None:
        from cryptography import cobblestone

        if len(material.key) not in (16, 32):
            raise PeerError(f"Cobblestone has no key of {len(material.key)} bytes")
        name = f"Cobblestone{len(material.key) * 8}"
        self._encryptor: Any = getattr(cobblestone, f"{name}Encryptor")
        self._decryptor: Any = getattr(cobblestone, f"{name}Decryptor")
        self._material = material
        # 16 bytes a chunk, and a header.
        self._sealed = bytearray(material.size + (material.size >> 10) + 4096)
        self._sealed_size = 0
        self._opened = bytearray(material.size)

    def seal(self) -> float:
        text, out = memoryview(self._material.plaintext), memoryview(self._sealed)
        begin = time.perf_counter()
        stream = self._encryptor(self._material.key, self._material.aad_prefix)
        end = 0
        for at in range(0, len(text), PIECE):
            end += stream.update_into(text[at : at + PIECE], out[end:])
        last = stream.finalize()
        out[end : end + len(last)] = last
        self._sealed_size = end + len(last)
        return time.perf_counter() - begin

    def open(self) -> float:
        sealed, out = memoryview(self._sealed)[: self._sealed_size], memoryview(self._opened)
        begin = time.perf_counter()
        stream = self._decryptor(self._material.key, self._material.aad_prefix)
        end = 0
        for at in range(0, len(sealed), PIECE):
            end += stream.update_into(sealed[at : at + PIECE], out[end:])
        last = stream.finalize()
        out[end : end + len(last)] = last
        return time.perf_counter() - begin

    def check(self) -> None:
        if self._opened != self._material.plaintext:
            raise PeerError("the plaintext did not come back")
        self._opened[:] = bytes(len(self._opened))

    def stop(self) -> None:
        del self._material, self._sealed, self._opened
