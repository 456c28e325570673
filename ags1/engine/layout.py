"""The layout of an AGS1 file, as pure arithmetic.

::

    "AGS1" | block size: int32 LE | block 0 | block 1 | ... | block n-1
    block = nonce(12) | ciphertext (block size bytes; the last block may have fewer) | tag(16)
    AAD of block i = AAD prefix | i: int32 LE

An empty plaintext is one empty block, as Java writes it. Readers also accept the header alone,
which the spec allows. All sizes are in bytes. Independent of I/O, keys and OpenSSL. Follows the
Iceberg specification "AES GCM Stream (AGS1)" and Java's ``Ciphers``.
"""

from __future__ import annotations

from typing import Final

from ..errors import FormatError

MAGIC: Final = b"AGS1"
HEADER_SIZE: Final = 8
NONCE_SIZE: Final = 12
TAG_SIZE: Final = 16
BLOCK_OVERHEAD: Final = NONCE_SIZE + TAG_SIZE
DEFAULT_BLOCK_SIZE: Final = 1 << 20
# A sealed block has to fit in the int that OpenSSL's and Java's calls take.
MAX_BLOCK_SIZE: Final = 2**31 - 1 - BLOCK_OVERHEAD
# Java numbers blocks with a signed int.
MAX_BLOCK_COUNT: Final = 2**31 - 1


def check_block_size(block_size: int) -> int:
    """Return ``block_size`` when it is 1 to ``MAX_BLOCK_SIZE``; raise FormatError otherwise."""
    if not 1 <= block_size <= MAX_BLOCK_SIZE:
        raise FormatError(f"block size {block_size} is not between 1 and {MAX_BLOCK_SIZE} bytes")
    return block_size


def build_header(block_size: int) -> bytes:
    """Return the eight bytes that begin a file of that block size."""
    return MAGIC + check_block_size(block_size).to_bytes(4, "little")


def parse_header(header: bytes) -> int:
    """Return the block size that a header of exactly eight bytes states. Raises FormatError. The
    caller decides whether a block of that size is acceptable."""
    if len(header) != HEADER_SIZE:
        raise FormatError(f"an AGS1 header has {HEADER_SIZE} bytes, not {len(header)}")
    if header[:4] != MAGIC:
        raise FormatError("not an AGS1 file: it does not begin with 'AGS1'")
    return check_block_size(int.from_bytes(header[4:], "little", signed=True))


def block_count(plaintext_size: int, block_size: int = DEFAULT_BLOCK_SIZE) -> int:
    """Return the number of blocks that a writer makes of ``plaintext_size`` bytes: at least one.
    Raises FormatError for a negative size or for more blocks than ``MAX_BLOCK_COUNT``."""
    check_block_size(block_size)
    if plaintext_size < 0:
        raise FormatError(f"a size cannot be negative: {plaintext_size}")
    count = max(1, -(-plaintext_size // block_size))
    if count > MAX_BLOCK_COUNT:
        raise FormatError(
            f"{plaintext_size} bytes make {count} blocks of {block_size} bytes; "
            f"a file holds at most {MAX_BLOCK_COUNT}: choose a larger block size"
        )
    return count


def encrypted_size(plaintext_size: int, block_size: int = DEFAULT_BLOCK_SIZE) -> int:
    """Return the size of the AGS1 file that has ``plaintext_size`` bytes of plaintext."""
    blocks = block_count(plaintext_size, block_size)
    return HEADER_SIZE + plaintext_size + blocks * BLOCK_OVERHEAD


def plaintext_size(encrypted_size: int, block_size: int = DEFAULT_BLOCK_SIZE) -> int:
    """Return the size of the plaintext in an AGS1 file of ``encrypted_size`` bytes. Raises
    FormatError when no plaintext makes a file of that size."""
    check_block_size(block_size)
    if encrypted_size == HEADER_SIZE:
        return 0
    full_blocks, rest = divmod(encrypted_size - HEADER_SIZE, block_size + BLOCK_OVERHEAD)
    possible = full_blocks > 0 if rest == 0 else rest > BLOCK_OVERHEAD
    # An empty block is written for an empty plaintext only.
    possible = possible or (full_blocks == 0 and rest == BLOCK_OVERHEAD)
    if encrypted_size < HEADER_SIZE or not possible:
        raise FormatError(
            f"no AGS1 file of {block_size}-byte blocks is {encrypted_size} bytes long"
        )
    plaintext = full_blocks * block_size + max(0, rest - BLOCK_OVERHEAD)
    block_count(plaintext, block_size)
    return plaintext


def block_offset(number: int, block_size: int = DEFAULT_BLOCK_SIZE) -> int:
    """Return where in the file block ``number`` begins (its nonce)."""
    return HEADER_SIZE + number * (block_size + BLOCK_OVERHEAD)
