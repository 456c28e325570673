"""ags1 itself, in the forms that are compared."""

from __future__ import annotations

import time

import ags1
from ags1 import hazmat, layout
from bench.material import Material

ENGINE = "ags1"


class Engine:
    """``BlockCipher`` between the shared kept buffers."""

    def __init__(self, material: Material) -> None:
        self._cipher = hazmat.BlockCipher(
            material.key, material.aad_prefix, block_size=material.block_size
        )
        self._text = material.plaintext
        self._slots = memoryview(material.sealed)[layout.HEADER_SIZE :]
        self._opened = material.opened

    def seal(self) -> None:
        self._cipher.seal_blocks(self._text, self._slots)

    def open(self) -> None:
        self._cipher.open_blocks(self._slots, self._opened)


class EngineByBlock:
    """The same, block by block through one kept block: the memory traffic of a stream."""

    def __init__(self, material: Material) -> None:
        self._cipher = hazmat.BlockCipher(
            material.key, material.aad_prefix, block_size=material.block_size
        )
        slot_size = material.block_size + layout.BLOCK_OVERHEAD
        text, slots = memoryview(material.plaintext), memoryview(material.sealed)
        self._texts = [
            text[at : at + material.block_size] for at in range(0, len(text), material.block_size)
        ]
        self._slots = [
            slots[at : at + slot_size] for at in range(layout.HEADER_SIZE, len(slots), slot_size)
        ]
        self._text = memoryview(bytearray(material.block_size))
        self._slot = memoryview(bytearray(slot_size))

    def seal(self) -> None:
        for number, text in enumerate(self._texts):
            self._cipher.seal_blocks(text, self._slot, number)

    def open(self) -> None:
        for number, slot in enumerate(self._slots):
            self._cipher.open_blocks(slot, self._text, number)


class Into:
    """``encrypt_into`` and ``decrypt_into`` between the shared kept buffers."""

    def __init__(self, material: Material, threads: int) -> None:
        self._material = material
        self._threads = threads

    def seal(self) -> None:
        material = self._material
        km = key_metadata(material, for_reading=False)
        ags1.encrypt_into(material.plaintext, material.sealed, km=km, threads=self._threads)

    def open(self) -> None:
        material = self._material
        km = key_metadata(material)
        ags1.decrypt_into(
            material.sealed,
            material.opened,
            km,
            block_size=material.block_size,
            threads=self._threads,
        )


class NewBytes:
    """``encrypt`` and ``decrypt``, whose results are new bytes. Freeing the last is not timed."""

    def __init__(self, material: Material, threads: int = 1) -> None:
        self._text = material.plaintext
        self._threads = threads
        self._sealed = ags1.encrypt(material.plaintext)
        self._opened = b""

    def seal(self) -> float:
        self._sealed = ags1.Sealed(b"", self._sealed.key_metadata)
        begin = time.perf_counter()
        self._sealed = ags1.encrypt(self._text, threads=self._threads)
        return time.perf_counter() - begin

    def open(self) -> float:
        self._opened = b""
        sealed, km = self._sealed
        begin = time.perf_counter()
        self._opened = ags1.decrypt(sealed, km, threads=self._threads)
        return time.perf_counter() - begin

    def check(self) -> None:
        if self._opened != self._text:
            raise RuntimeError("the plaintext did not come back")


def key_metadata(material: Material, *, for_reading: bool = True) -> ags1.KeyMetadata:
    """What opens ``material.sealed``, or with ``for_reading=False`` what a writer takes."""
    return ags1.KeyMetadata(
        material.key, material.aad_prefix, len(material.sealed) if for_reading else None
    )
