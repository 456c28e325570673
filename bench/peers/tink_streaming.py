"""Tink's streaming AEAD: AES-GCM-HKDF in segments of 1 MiB, the closest relative of AGS1."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import time
from typing import Any

from bench.material import Material

from .process import PeerError

PIECE = 1 << 20


class TinkStreaming:
    name = "Tink streaming AEAD"
    writes_ags1 = False
    rounds: int | None = 5

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("tink") else "pip install tink"

    def version(self) -> str:
        return importlib.metadata.version("tink")

    def start(self, material: Material) -> None:
        # Not imports, so that type checkers need not know a package that is seldom there.
        tink: Any = importlib.import_module("tink")
        streaming_aead: Any = importlib.import_module("tink.streaming_aead")
        templates = streaming_aead.streaming_aead_key_templates
        chosen = {16: templates.AES128_GCM_HKDF_1MB, 32: templates.AES256_GCM_HKDF_1MB}
        if len(material.key) not in chosen:
            raise PeerError(f"Tink has no template for a key of {len(material.key)} bytes")
        streaming_aead.register()
        handle = tink.new_keyset_handle(chosen[len(material.key)])
        self._primitive: Any = handle.primitive(streaming_aead.StreamingAead)
        self._material = material
        self._sink = _Sink(bytearray(material.size + (material.size >> 8) + 4096))
        self._opened = bytearray(material.size)

    def seal(self) -> float:
        text = memoryview(self._material.plaintext)
        begin = time.perf_counter()
        self._sink.size = 0
        stream = self._primitive.new_encrypting_stream(self._sink, self._material.aad_prefix)
        for at in range(0, len(text), PIECE):
            stream.write(text[at : at + PIECE])
        stream.close()
        return time.perf_counter() - begin

    def open(self) -> float:
        out = memoryview(self._opened)
        source = _Source(memoryview(self._sink.memory)[: self._sink.size])
        begin = time.perf_counter()
        stream = self._primitive.new_decrypting_stream(source, self._material.aad_prefix)
        at = 0
        while count := stream.readinto(out[at : at + PIECE]):
            at += count
        stream.close()
        return time.perf_counter() - begin

    def check(self) -> None:
        if self._opened != self._material.plaintext:
            raise PeerError("the plaintext did not come back")

    def stop(self) -> None:
        del self._primitive, self._material, self._sink, self._opened


class _Sink(io.RawIOBase):
    """Kept memory. Tink closes what it writes to; this survives it."""

    def __init__(self, memory: bytearray) -> None:
        self.memory = memory
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.memory[self.size : self.size + len(data)] = data
        self.size += len(data)
        return len(data)

    def close(self) -> None:
        pass


class _Source(io.RawIOBase):
    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        end = len(self._view) if size < 0 else self._at + size
        piece = bytes(self._view[self._at : end])
        self._at += len(piece)
        return piece
