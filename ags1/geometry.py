"""Which sizes of a file to believe.

The header is under no tag and the file system is not trusted, so the sizes that a reader works with
are settled here, once, before any memory is allotted: the length from the key metadata, the block
size from the header within the caller's limits. Pure: no I/O.
"""

from __future__ import annotations

from typing import NamedTuple

from . import layout
from .errors import FormatError, KeyReuseError, MissingFileLengthError, TruncatedError
from .key_metadata import KeyMetadata

DEFAULT_MAX_BLOCK_SIZE = 64 << 20

_USED = (
    "this key may already have encrypted a file: it carries a file length, was given to a writer "
    "before, or was made before a fork. Use a fresh key, or pass reuse_key=True."
)


class Geometry(NamedTuple):
    """The sizes of one file (bytes, blocks)."""

    block_size: int
    plaintext_size: int
    encrypted_size: int

    @property
    def block_count(self) -> int:
        """The blocks in the file: none when it is a header alone."""
        if self.encrypted_size == layout.HEADER_SIZE:
            return 0
        return layout.block_count(self.plaintext_size, self.block_size)

    def slots(self, first: int, count: int) -> tuple[int, int]:
        """Return where in the file ``count`` blocks from ``first`` on begin, and their size."""
        begin = layout.block_offset(first, self.block_size)
        end = min(layout.block_offset(first + count, self.block_size), self.encrypted_size)
        return begin, end - begin

    def text_size(self, first: int, count: int) -> int:
        """Return the plaintext size of those blocks."""
        begin = first * self.block_size
        return min(begin + count * self.block_size, self.plaintext_size) - begin


def check_km(km: object) -> None:
    """Raise TypeError when ``km`` is no KeyMetadata: a bare key, say."""
    if not isinstance(km, KeyMetadata):
        raise TypeError(
            f"km must be a KeyMetadata, not {type(km).__name__} (KeyMetadata.from_bytes makes one)"
        )


def trusted_length(actual_size: int | None, km: KeyMetadata, *, trust_file_size: bool) -> int:
    """Return the length to believe, given the size that the source has (None: it can't tell).

    Raises MissingFileLengthError, TruncatedError, or FormatError for a longer source.
    """
    check_km(km)
    trusted = km.file_length
    if trusted is None:
        if not trust_file_size:
            raise MissingFileLengthError(
                "the key metadata holds no file length, so a cut file could not be told from a "
                "whole one; trust_file_size=True accepts the file's own size"
            )
        if actual_size is None:
            raise MissingFileLengthError(
                "the key metadata holds no file length and the source has no size of its own"
            )
        if actual_size == layout.HEADER_SIZE:
            raise FormatError(
                "the file is a header and nothing else, which only a trusted length can vouch for"
            )
        trusted = actual_size
    if actual_size == 0:
        raise TruncatedError("the file is empty")
    if actual_size is not None:
        if actual_size < trusted:
            raise TruncatedError(
                f"the file is cut: it has {actual_size} bytes of its trusted length of {trusted}, "
                "or these keys belong to another file"
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
    *,
    block_size: int | None = None,
    max_block_size: int = DEFAULT_MAX_BLOCK_SIZE,
    trust_file_size: bool = False,
) -> Geometry:
    """Return a file's sizes, given its eight header bytes and the size that its source has.

    ``header`` is shorter where the file is. ``block_size`` pins the block size. Raises FormatError
    when the header states another one or one above ``max_block_size``, or when no file of that
    block size has that length, and what ``trusted_length`` raises.
    """
    if len(header) == layout.HEADER_SIZE:
        # Before the lengths: "not an AGS1 file" says more than "longer than its keys say".
        layout.parse_header(header)
    encrypted_size = trusted_length(actual_size, km, trust_file_size=trust_file_size)
    stated = layout.parse_header(header)
    if block_size is not None and stated != block_size:
        raise FormatError(f"the header states blocks of {stated} bytes, not of {block_size}")
    if block_size is None and stated > max_block_size:
        raise FormatError(
            f"the header states blocks of {stated} bytes, above the limit of {max_block_size}; "
            "max_block_size= allows more"
        )
    return Geometry(stated, layout.plaintext_size(encrypted_size, stated), encrypted_size)


def check_unused(km: KeyMetadata, *, reuse_key: bool) -> None:
    """Raise KeyReuseError when ``km`` has sealed a file before and the caller didn't insist."""
    check_km(km)
    if km.used and not reuse_key:
        raise KeyReuseError(_USED)


def claim_key(km: KeyMetadata, *, reuse_key: bool) -> None:
    """Take ``km`` for the file that is about to be sealed; whatever becomes of that, it is used.

    Raises KeyReuseError as ``check_unused`` does.
    """
    check_unused(km, reuse_key=reuse_key)
    if not km.claim() and not reuse_key:
        raise KeyReuseError(_USED)
