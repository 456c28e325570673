"""The work on one file, and the pieces of it that tasks do. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from ...engine import layout

BLOCK_SIZE = layout.DEFAULT_BLOCK_SIZE


class Item(NamedTuple):
    """The work on one file. Sizes are in bytes. ``wrapped`` is the wrapped key, if there is one
    already. ``replaces``: the target may exist; ``retires`` has the first nonces of what it may be.
    The file may be cut into ranges whose sizes are
    multiples of ``unit`` blocks; if that is 0, one task does the whole file."""

    number: int
    source: str
    target: str
    relative_path: str
    source_size: int
    source_version: str
    plaintext_size: int
    wrapped: str | None = None
    replaces: bool = False
    unit: int = 1
    retires: str = ""


class Piece(NamedTuple):
    """The part of one file that one task does: all of it or, if ``block_count`` is not 0, that many
    blocks from ``first_block`` on. ``shared`` is what all attempts at the file use together (see
    ``JobStorage.stage``). ``source_identity`` tells a local file that is cut from others of the
    same size and time (``ags1.files.work.tasks.file_identity``)."""

    number: int
    source: str
    target: str
    source_size: int
    source_version: str
    wrapped: str | None
    shared: str | None = None
    first_block: int = 0
    block_count: int = 0
    unit: int = 1
    source_identity: str = ""

    @property
    def cost(self) -> int:
        """The bytes that this piece adds to the progress."""
        if not self.block_count:
            return self.source_size
        return min(self.block_count * BLOCK_SIZE, self.source_size)


def target_offset(first_block: int, *, seals: bool) -> int:
    """Return the offset in a target (``seals``: an encrypted one) at which the output of the blocks
    from ``first_block`` on begins. The header belongs to the first block."""
    if not seals:
        return first_block * BLOCK_SIZE
    return layout.block_offset(first_block, BLOCK_SIZE) if first_block else 0


def target_size(item: Item, *, seals: bool) -> int:
    """Return the size in bytes that an item's target will have."""
    size = item.plaintext_size
    return layout.encrypted_size(size, BLOCK_SIZE) if seals else size
