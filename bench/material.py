"""The key and the buffers that all contestants in one process share.

Where a buffer lies (page size, cache colour) is worth several per cent; contestants that fill the
very same memory differ by their work alone.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from ags1 import layout

AAD_PREFIX_SIZE = 16


@dataclass(slots=True)
class Material:
    """``sealed`` has room for a whole AGS1 file of ``plaintext``, header and all."""

    key: bytes
    aad_prefix: bytes
    block_size: int
    plaintext: bytearray
    sealed: bytearray
    opened: bytearray

    @property
    def size(self) -> int:
        return len(self.plaintext)

    def check_opened(self) -> None:
        """Raise unless the plaintext came back; then spoil it for the next contestant."""
        if self.opened != self.plaintext:
            raise RuntimeError("the plaintext did not come back")
        self.opened[:] = bytes(len(self.opened))


def make_material(
    size: int, key_size: int = 32, block_size: int = layout.DEFAULT_BLOCK_SIZE
) -> Material:
    return Material(
        key=os.urandom(key_size),
        aad_prefix=os.urandom(AAD_PREFIX_SIZE),
        block_size=block_size,
        plaintext=random_bytearray(size),
        sealed=sealed_buffer(size, block_size),
        opened=bytearray(size),
    )


def with_key(material: Material, key_size: int, block_size: int | None = None) -> Material:
    """The same buffers under a fresh key of another size, or with another block size."""
    block_size = block_size or material.block_size
    sealed = material.sealed
    if len(sealed) != layout.encrypted_size(material.size, block_size):
        sealed = sealed_buffer(material.size, block_size)
    return Material(
        key=os.urandom(key_size),
        aad_prefix=material.aad_prefix,
        block_size=block_size,
        plaintext=material.plaintext,
        sealed=sealed,
        opened=material.opened,
    )


def sealed_buffer(size: int, block_size: int) -> bytearray:
    buffer = bytearray(layout.encrypted_size(size, block_size))
    buffer[: layout.HEADER_SIZE] = layout.build_header(block_size)
    return buffer


def random_bytearray(size: int) -> bytearray:
    """Random content, so that no storage or memory can make it smaller."""
    piece = os.urandom(min(size, 16 << 20))
    content = bytearray(size)
    for at in range(0, size, len(piece) or 1):
        content[at : at + len(piece)] = piece[: size - at]
    return content


def random_file(path: Path, size: int) -> Path:
    """A file of random content, in the page cache."""
    piece = os.urandom(min(size, 16 << 20))
    with path.open("wb") as file:
        for at in range(0, size, len(piece) or 1):
            file.write(piece[: size - at])
    return path


def take_memory(size: int) -> None:
    """Have so many bytes of memory that the machine has, and free them again.

    A virtual machine may give what is free back to its host, and getting it again costs more than
    encrypting it: whoever came first after a pause would pay for that.
    """
    populated = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, max(size, 1), flags=populated).close()
