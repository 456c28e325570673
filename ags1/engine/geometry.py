"""Decide which sizes of a file to trust.

The header has no tag, and the file system is not trusted. So the sizes that a reader uses are
decided here, once, before any memory is allocated. The length comes from the key metadata. The
block size comes from the header, within the caller's limits. There is no I/O here.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import FormatError, KeyReuseError, MissingFileLengthError, TruncatedError
from . import layout
from .key_metadata import KeyMetadata

DEFAULT_MAX_BLOCK_SIZE = 64 << 20

_USED = (
    "this key may already have encrypted a file: it has a file length, was given to a writer "
    "before, or was made before a fork. Use a fresh key, or pass reuse_key=True."
)


class Geometry(NamedTuple):
    """The sizes of one file (bytes, blocks)."""

    block_size: int
    plaintext_size: int
    encrypted_size: int

    @property
    def block_count(self) -> int:
        """The number of blocks in the file; 0 if it has only a header."""
        if self.encrypted_size == layout.HEADER_SIZE:
            return 0
        return layout.block_count(self.plaintext_size, self.block_size)

    def slots(self, first: int, count: int) -> tuple[int, int]:
        """Return the offset and the size in the file of ``count`` blocks from ``first`` on."""
        begin = layout.block_offset(first, self.block_size)
        end = min(layout.block_offset(first + count, self.block_size), self.encrypted_size)
        return begin, end - begin

    def text_size(self, first: int, count: int) -> int:
        """Return the plaintext size of ``count`` blocks from block ``first`` on."""
        begin = first * self.block_size
        return min(begin + count * self.block_size, self.plaintext_size) - begin


def check_km(km: object) -> None:
    """Raise TypeError if ``km`` is not a KeyMetadata, but a bare key, for example."""
    if not isinstance(km, KeyMetadata):
        raise TypeError(
            f"km must be a KeyMetadata, not {type(km).__name__} (KeyMetadata.from_bytes makes one)"
        )


def trusted_length(actual_size: int | None, km: KeyMetadata, *, trust_file_size: bool) -> int:
    """Return the length to trust. ``actual_size`` is the source's size; None if it is unknown.
    Raises MissingFileLengthError, TruncatedError, or FormatError for a longer source."""
    check_km(km)
    trusted = km.file_length
    if trusted is None:
        if not trust_file_size:
            raise MissingFileLengthError(
                "the key metadata has no file length, so a truncated file could not be noticed: "
                "give key metadata with a length, or pass trust_file_size=True to accept the "
                "file's own size"
            )
        if actual_size is None:
            raise MissingFileLengthError(
                "the key metadata has no file length, and the source has no known size: give "
                "key metadata with a length"
            )
        if actual_size == layout.HEADER_SIZE:
            raise FormatError(
                "the file has a header and no block, which is accepted only with key metadata that "
                "has the file's length"
            )
        trusted = actual_size
    if actual_size == 0:
        raise TruncatedError("the file is empty")
    if actual_size is not None:
        if actual_size < trusted:
            raise TruncatedError(
                f"the file is truncated: it has {actual_size} bytes of its trusted length of "
                f"{trusted}, or these keys belong to another file"
            )
        if actual_size > trusted:
            raise FormatError(
                f"the file has {actual_size} bytes, more than its trusted length of {trusted}: "
                "something was appended, or these keys belong to another file"
            )
    if trusted < layout.HEADER_SIZE:
        raise FormatError(f"an AGS1 file has at least {layout.HEADER_SIZE} bytes, not {trusted}")
    return trusted


def file_geometry(
    header: bytes,
    actual_size: int | None,
    km: KeyMetadata,
    block_size: int | None = None,
    max_block_size: int = DEFAULT_MAX_BLOCK_SIZE,
    trust_file_size: bool = False,
) -> Geometry:
    """Return a file's sizes, given its eight header bytes (fewer if the file has fewer) and the
    size that its source has. ``block_size`` is the block size to expect. Raises FormatError if the
    header states another block size or one above ``max_block_size``, or if no file of that block
    size has that length. Also raises what ``trusted_length`` raises."""
    if len(header) == layout.HEADER_SIZE:
        # Before the lengths: "not an AGS1 file" says more than "longer than its keys say".
        layout.parse_header(header)
    encrypted_size = trusted_length(actual_size, km, trust_file_size=trust_file_size)
    stated = layout.parse_header(header)
    if block_size is not None and stated != block_size:
        raise FormatError(
            f"the header states blocks of {stated} bytes, and blocks of {block_size} were expected"
        )
    if block_size is None and stated > max_block_size:
        raise FormatError(
            f"the header states blocks of {stated} bytes, above the limit of {max_block_size}",
            parameter="max_block_size",
        )
    return Geometry(stated, layout.plaintext_size(encrypted_size, stated), encrypted_size)


def check_unused(km: KeyMetadata, *, reuse_key: bool) -> None:
    """Raise KeyReuseError if ``km`` may have encrypted a file before, unless ``reuse_key``."""
    check_km(km)
    if km.used and not reuse_key:
        raise KeyReuseError(_USED)


def claim_key(km: KeyMetadata, *, reuse_key: bool) -> None:
    """Mark ``km`` as used for the file that is about to be encrypted, even if that fails later.
    Raises KeyReuseError as ``check_unused`` does."""
    check_unused(km, reuse_key=reuse_key)
    if not km.claim() and not reuse_key:
        raise KeyReuseError(_USED)
