"""Whole messages between buffers: ``encrypt``, ``decrypt`` and their ``_into`` forms.

The easy call does the safe thing: a fresh key for every message, and the length taken from the key
metadata. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from . import layout
from ._gcm import BlockCipher, new_bytes, open_stream, overlapping, seal_stream
from .geometry import DEFAULT_MAX_BLOCK_SIZE, Geometry, check_km, check_length, claim_key, survey
from .key_metadata import KeyMetadata
from .memory import flat, is_private, run_all, wipe

if TYPE_CHECKING:
    from typing_extensions import Buffer

# What is copied at a time from memory that others can write to.
_COPY_SIZE = 1 << 20


class Sealed(NamedTuple):
    """An encrypted message and what opens it."""

    data: bytes
    key_metadata: KeyMetadata

    def __repr__(self) -> str:
        return f"Sealed(data=<{len(self.data)} bytes>, key_metadata={self.key_metadata!r})"


def encrypt(
    data: Buffer,
    *,
    km: KeyMetadata | None = None,
    key_size: int = 32,
    block_size: int = layout.DEFAULT_BLOCK_SIZE,
    threads: int = 1,
    reuse_key: bool = False,
) -> Sealed:
    """Encrypt ``data`` (any C-contiguous buffer) as a whole AGS1 file in memory.

    A fresh key of ``key_size`` bytes is made unless ``km`` gives one, which must not have sealed a
    file before: KeyReuseError unless ``reuse_key``. The key metadata returned carries the length.
    Java and iceberg-rust read no other ``block_size`` (bytes) than the default.
    """
    if km is not None:
        claim_key(km, reuse_key=reuse_key)
    if threads == 1:
        key, aad_prefix = (None, None) if km is None else (km.encryption_key, km.aad_prefix)
        sealed, key, aad_prefix = seal_stream(data, key, aad_prefix, key_size, block_size)
        return Sealed(sealed, KeyMetadata.trusted(key, aad_prefix, len(sealed)))
    km = km or KeyMetadata.generate(key_size)
    text = flat(data)
    sealed, out = new_bytes(layout.encrypted_size(text.nbytes, block_size))
    _encrypt(text, out, km, block_size, threads)
    return Sealed(sealed, km.with_file_length(len(sealed)))


def encrypt_into(
    data: Buffer,
    out: Buffer,
    *,
    km: KeyMetadata | None = None,
    key_size: int = 32,
    block_size: int = layout.DEFAULT_BLOCK_SIZE,
    threads: int = 1,
    reuse_key: bool = False,
) -> KeyMetadata:
    """Encrypt ``data`` into the beginning of ``out``, as ``encrypt`` does.

    ``out`` is a writable buffer of at least ``layout.encrypted_size(len(data), block_size)`` bytes
    that does not overlap ``data``. Returns the key metadata; its ``file_length`` is the number of
    bytes written. A buffer used again costs far less than a fresh one.
    """
    text = flat(data)
    size = layout.encrypted_size(text.nbytes, block_size)
    room = _room(out, size, text)
    if km is None:
        km = KeyMetadata.generate(key_size)
    claim_key(km, reuse_key=reuse_key)
    _encrypt(text, room, km, block_size, threads)
    return km.with_file_length(size)


def decrypt(
    sealed: Buffer,
    km: KeyMetadata,
    *,
    block_size: int | None = None,
    max_block_size: int = DEFAULT_MAX_BLOCK_SIZE,
    trust_file_size: bool = False,
    threads: int = 1,
) -> bytes:
    """Return the plaintext of a whole AGS1 file in memory.

    ``block_size`` pins the block size (bytes); otherwise the header's is taken, up to
    ``max_block_size``. Raises AuthenticationError, TruncatedError, FormatError, or
    MissingFileLengthError when ``km`` has no file length and ``trust_file_size`` is not set.
    """
    check_km(km)
    length = km.file_length
    if threads == 1 and block_size is None and length is not None and type(sealed) is bytes:
        plaintext = open_stream(sealed, km.encryption_key, km.aad_prefix, length, max_block_size)
        if plaintext is not None:
            return plaintext
    slots = flat(sealed)
    geometry = _survey(slots, km, block_size, max_block_size, trust_file_size)
    data, out = new_bytes(geometry.plaintext_size)
    _decrypt(slots, out, km, geometry, threads)
    return data


def decrypt_into(
    sealed: Buffer,
    out: Buffer,
    km: KeyMetadata,
    *,
    block_size: int | None = None,
    max_block_size: int = DEFAULT_MAX_BLOCK_SIZE,
    trust_file_size: bool = False,
    threads: int = 1,
) -> int:
    """Decrypt into the beginning of ``out`` as ``decrypt`` does; return the plaintext's size.

    ``out`` is a writable buffer that does not overlap ``sealed``. When the call fails once the
    sizes are known, the bytes that it would have written are zero.
    """
    slots = flat(sealed)
    geometry = _survey(slots, km, block_size, max_block_size, trust_file_size)
    room = _room(out, geometry.plaintext_size, slots)
    _decrypt(slots, room, km, geometry, threads)
    return geometry.plaintext_size


def _room(out: Buffer, size: int, source: memoryview) -> memoryview:
    room = flat(out)
    if room.readonly:
        raise TypeError("the output must be a writable buffer")
    if room.nbytes < size:
        raise ValueError(f"the output needs {size} bytes and has {room.nbytes}")
    room = room[:size]
    if overlapping(source, room):
        raise ValueError("input and output overlap")
    return room


def _encrypt(
    text: memoryview, out: memoryview, km: KeyMetadata, block_size: int, threads: int
) -> None:
    cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=block_size)
    geometry = Geometry(block_size, text.nbytes, out.nbytes)

    def seal(first: int, count: int) -> None:
        begin = first * block_size
        at, slots_size = geometry.slots(first, count)
        cipher.seal_blocks(
            text[begin : begin + geometry.text_size(first, count)], out[at : at + slots_size], first
        )

    if threads == 1:
        cipher.seal_blocks(text, out[layout.HEADER_SIZE :])
    else:
        _in_threads(seal, geometry, threads)
    out[: layout.HEADER_SIZE] = layout.build_header(block_size)


def _survey(
    slots: memoryview,
    km: KeyMetadata,
    block_size: int | None,
    max_block_size: int,
    trust_file_size: bool,
) -> Geometry:
    length = check_length(slots.nbytes, km, trust_file_size=trust_file_size)
    header = bytes(slots[: layout.HEADER_SIZE])
    return survey(header, length, block_size=block_size, max_block_size=max_block_size)


def _decrypt(
    slots: memoryview, out: memoryview, km: KeyMetadata, geometry: Geometry, threads: int
) -> None:
    cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=geometry.block_size)

    def open_run(first: int, count: int, copy: memoryview | None = None) -> None:
        begin = first * geometry.block_size
        at, size = geometry.slots(first, count)
        run = slots[at : at + size]
        if copy is not None:
            copy[:size] = run
            run = copy[:size]
        cipher.open_blocks(run, out[begin : begin + geometry.text_size(first, count)], first)

    def open_share(first: int, count: int) -> None:
        if is_private(slots):
            open_run(first, count)
            return
        chunk = min(count, max(1, _COPY_SIZE // (geometry.block_size + layout.BLOCK_OVERHEAD)))
        copy = memoryview(bytearray(geometry.slots(first, chunk)[1]))
        for begin in range(first, first + count, chunk):
            open_run(begin, min(chunk, first + count - begin), copy)

    if not geometry.block_count:
        return
    try:
        if threads == 1:
            open_share(0, geometry.block_count)
        else:
            _in_threads(open_share, geometry, threads)
    except BaseException:
        wipe(out)
        raise


def _in_threads(work: Callable[[int, int], None], geometry: Geometry, threads: int) -> None:
    """Call ``work(first block, blocks)`` over contiguous shares, one a thread."""
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    share = -(-geometry.block_count // threads)
    starts = range(0, geometry.block_count, share)
    with ThreadPoolExecutor(len(starts), "ags1") as pool:
        run_all(pool, lambda first: work(first, min(share, geometry.block_count - first)), starts)
