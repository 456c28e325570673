"""Messages in memory: ``encrypt``, ``decrypt``, their ``_into`` forms and their ``_many`` forms.
Independent of files."""

from __future__ import annotations

import contextlib
import mmap
import operator
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

from ..errors import Ags1Error
from ..host.threads import check_threads, run_in_threads, thread_count
from . import layout
from ._arrow_arrays import Column, Messages
from ._buffers import flat, new_bytes, overlapping, wipe
from ._columns import ColumnBatch, OpenColumn, SealColumn
from ._gcm import BlockCipher
from ._messages import NEW_BYTES, OpenBatch, SealBatch, open_stream, seal_stream
from .geometry import DEFAULT_MAX_BLOCK_SIZE, Geometry, check_km, claim_key, file_geometry
from .key_metadata import KeyMetadata

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Sealed(NamedTuple):
    """An encrypted message and what opens it."""

    data: bytes
    key_metadata: KeyMetadata

    def __repr__(self) -> str:
        return f"Sealed(data=<{len(self.data)} bytes>, key_metadata={self.key_metadata!r})"


class ArrowColumn(Protocol):
    """Of an array. A chunked array has ``__arrow_c_stream__`` instead."""

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...


# Messages smaller than this take more time with the GIL than without it, so that a second thread
# slows the first one down.
_THREADS_WORTHWHILE = 2048
_SAMPLE = 16


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

    The call makes a fresh key of ``key_size`` bytes, unless ``km`` gives one. If that key may have
    encrypted a file before, the call raises KeyReuseError, unless ``reuse_key`` is set. The
    returned key metadata has the file's length. Java and iceberg-rust read only the default
    ``block_size`` (bytes). If a call fails because of its arguments, it does not use up ``km``.
    """
    if threads == 1:
        sealed: Sealed = seal_stream(
            data, NEW_BYTES, km, key_size, block_size, reuse_key, kind=Sealed
        )
        return sealed
    text = flat(data)
    stream, out = new_bytes(layout.encrypted_size(text.nbytes, block_size))
    return Sealed(stream, _encrypt(text, out, km, key_size, block_size, threads, reuse_key))


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

    ``out`` is a writable buffer of at least ``layout.encrypted_size(len(data), block_size)`` bytes.
    Returns the key metadata; its ``file_length`` is the number of bytes written. A buffer that is
    used again costs far less than a fresh one. Arguments and errors are as in ``encrypt``; also
    raises TypeError for a read-only ``out``, and ValueError if it is too small or overlaps
    ``data``.
    """
    if threads == 1:
        metadata: KeyMetadata
        _, metadata = seal_stream(data, out, km, key_size, block_size, reuse_key)
        return metadata
    text = flat(data)
    room = _room(out, layout.encrypted_size(text.nbytes, block_size), text)
    return _encrypt(text, room, km, key_size, block_size, threads, reuse_key)


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

    ``block_size`` is the block size to expect (bytes). If it is None, the header's is used, up to
    ``max_block_size``. Raises AuthenticationError, TruncatedError or FormatError. Raises
    MissingFileLengthError if ``km`` has no file length and ``trust_file_size`` is not set.
    """
    check_km(km)
    if threads == 1:
        plaintext: bytes | None = open_stream(sealed, NEW_BYTES, km, block_size, max_block_size)
        if plaintext is not None:
            return plaintext
    slots = flat(sealed)
    header = bytes(slots[: layout.HEADER_SIZE])
    geometry = file_geometry(header, slots.nbytes, km, block_size, max_block_size, trust_file_size)
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
    """Decrypt into the beginning of ``out`` as ``decrypt`` does; return the plaintext's size
    (bytes). Raises as ``decrypt``, and for a wrong ``out`` as ``encrypt_into``. If the call fails
    after the sizes are known, it zeroes the bytes of ``out`` that it would have written."""
    check_km(km)
    if threads == 1:
        size: int | None = open_stream(sealed, out, km, block_size, max_block_size)
        if size is not None:
            return size
    slots = flat(sealed)
    header = bytes(slots[: layout.HEADER_SIZE])
    geometry = file_geometry(header, slots.nbytes, km, block_size, max_block_size, trust_file_size)
    room = _room(out, geometry.plaintext_size, slots)
    _decrypt(slots, room, km, geometry, threads)
    return geometry.plaintext_size


def new_buffer(size: int) -> memoryview:
    """Return a writable buffer of ``size`` bytes, all zero, to be used again and again: for
    ``encrypt_into``, ``decrypt_into``, ``readinto`` and the ``out`` of ``encrypt_many``. If the
    system has huge pages, large buffers are made of them, so that the first use costs less too.
    Raises ValueError for a negative size."""
    if operator.index(size) < 0:
        raise ValueError(f"a buffer cannot have a size of {size}")
    memory = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)[:size]


@overload
def encrypt_many(
    messages: ArrowColumn,
    *,
    threads: int | None = ...,
    key_size: int = ...,
    out: Buffer | None = ...,
) -> tuple[Any, Any]: ...
@overload
def encrypt_many(
    messages: Iterable[Buffer], *, threads: int | None = ..., key_size: int = ...
) -> list[Sealed]: ...
def encrypt_many(
    messages: Any, *, threads: int | None = None, key_size: int = 32, out: Buffer | None = None
) -> Any:
    """Encrypt each of ``messages`` (any C-contiguous buffers), as ``encrypt`` does.

    Each message becomes a whole AGS1 file under its own fresh key of ``key_size`` bytes. The
    results are in the order of the messages. ``threads`` is by default one for each CPU available
    to the process. They work without the GIL. If a message fails, the call returns nothing and
    raises the exception of the first failing message. The text names the message's number (from 0),
    which an Ags1Error also has as ``index``.

    ``messages`` may also be a column of bytes or text in Arrow's memory: an object with
    ``__arrow_c_array__`` or ``__arrow_c_stream__``, such as an array or a chunked array of pyarrow,
    or a series of Polars or pandas. The result is then a pair of arrays, and no Python object is
    made for a message. One array has the encrypted files. The other has their key metadata as
    ``KeyMetadata.to_bytes`` returns it, with the plaintext keys: wrap or encrypt it before you
    store it. What is null stays null. If pyarrow is installed, the arrays are pyarrow's, of type
    ``binary``, or ``large_binary`` if the input is large or the files have 2 GiB or more together.
    Without pyarrow they are objects with ``__arrow_c_array__``. Raises FormatError for a malformed
    array, and TypeError for an array of other types.

    ``out`` is a writable buffer. The files of a column are written to its beginning, one after the
    other. The array of the files uses that memory: do not use ``out`` again while you need the
    array. Fresh memory costs more than AES. Each file has the size that ``layout.encrypted_size``
    returns. If the call fails, it zeroes what it could have written. Raises ValueError if ``out``
    is too small, with the size that it must have, or overlaps the messages, and TypeError without a
    column.
    """
    if _is_column(messages):
        column, count = Messages(messages), thread_count(threads)
        return _work_on_column(SealColumn(column, count, operator.index(key_size), out))
    _refuse_out(out)
    if isinstance(messages, (bytes, bytearray, memoryview)):
        raise TypeError("messages must be an iterable of buffers, not one buffer")
    batch = list(messages)
    count = _useful_threads(threads, batch, lambda message: message)
    return _work(SealBatch(batch, count, operator.index(key_size), Sealed), count)


@overload
def decrypt_many(
    sealed: tuple[ArrowColumn, ArrowColumn],
    *,
    threads: int | None = ...,
    trust_file_size: bool = ...,
    out: Buffer | None = ...,
) -> Any: ...
@overload
def decrypt_many(
    sealed: Iterable[tuple[Buffer, KeyMetadata]],
    *,
    threads: int | None = ...,
    trust_file_size: bool = ...,
) -> list[bytes]: ...
def decrypt_many(
    sealed: Any,
    *,
    threads: int | None = None,
    trust_file_size: bool = False,
    out: Buffer | None = None,
) -> Any:
    """Decrypt each pair of an AGS1 file and its key metadata, as ``decrypt`` does. ``sealed`` is
    what ``encrypt_many`` returned, or any iterable of ``(data, key_metadata)``. Order, threads and
    failures are as in ``encrypt_many``, and errors as in ``decrypt``.

    ``sealed`` may also be a pair of columns, as ``encrypt_many`` returns them. The result is then
    one array of the plaintexts, of type ``binary`` or ``large_binary``. Text comes back as bytes:
    cast the array to ``string``. A row must be null in both columns or in none of them. ``out`` is
    a buffer for the plaintexts, as in ``encrypt_many``.
    """
    open_one = partial(decrypt, trust_file_size=trust_file_size)
    if isinstance(sealed, (tuple, list)) and len(sealed) == 2 and all(map(_is_column, sealed)):
        files, keys = map(Messages, sealed)
        return _work_on_column(OpenColumn(files, keys, thread_count(threads), open_one, out))
    _refuse_out(out)
    batch = list(sealed)
    count = _useful_threads(threads, batch, lambda pair: pair[0])
    return _work(OpenBatch(batch, count, open_one), count)


def _is_column(messages: object) -> bool:
    return hasattr(messages, "__arrow_c_array__") or hasattr(messages, "__arrow_c_stream__")


def _refuse_out(out: Buffer | None) -> None:
    if out is not None:
        raise TypeError("out needs a column of messages: an object with __arrow_c_array__")


def _work_on_column(batch: ColumnBatch) -> Any:
    try:
        results = _work(batch, batch.useful_threads)
    except BaseException:
        batch.wipe()
        raise
    # Optional, and slow to import.
    try:
        import pyarrow
    except ImportError:
        return results
    if isinstance(results, Column):
        return pyarrow.array(results)
    return tuple(map(pyarrow.array, results))


def _useful_threads(threads: int | None, batch: list[Any], data: Callable[[Any], Any]) -> int:
    """Return how many of ``threads`` shorten the work. ``data`` returns a message's bytes."""
    if threads is not None:
        check_threads(threads)
    count = min(thread_count(threads), len(batch)) if len(batch) > 1 else 1
    if count > 1:
        # If it has no bytes, the message is refused later, with its number.
        with contextlib.suppress(Exception):
            sample = batch[:: -(-len(batch) // _SAMPLE)]
            size = sum(memoryview(data(message)).nbytes for message in sample)
            if size < _THREADS_WORTHWHILE * len(sample):
                return 1
    return count


def _work(batch: SealBatch | OpenBatch | ColumnBatch, threads: int) -> Any:
    if threads == 1:
        batch.work()
    else:
        run_in_threads(batch.work, range(threads), batch.stop)
    if batch.failure is None:
        return batch.results
    index, error = batch.failure
    if isinstance(error, Ags1Error):
        error.index = index
    elif type(error) in (TypeError, ValueError, BufferError):
        raise type(error)(f"message {index}: {error}") from None
    raise error


def _room(out: Buffer, size: int, source: memoryview) -> memoryview:
    room = flat(out)
    if room.readonly:
        raise TypeError("the output must be a writable buffer")
    if room.nbytes < size:
        raise ValueError(f"the output has {room.nbytes} bytes and must have at least {size}")
    room = room[:size]
    if overlapping(source, room):
        raise ValueError("input and output overlap: give another buffer as the output")
    return room


def _encrypt(
    text: memoryview,
    out: memoryview,
    km: KeyMetadata | None,
    key_size: int,
    block_size: int,
    threads: int,
    reuse_key: bool,
) -> KeyMetadata:
    if km is None:
        km = KeyMetadata.generate(key_size)
    check_km(km)
    cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=block_size)
    geometry = Geometry(block_size, text.nbytes, out.nbytes)

    def seal(slots: memoryview, share: memoryview, first: int) -> None:
        cipher.seal_blocks(share, slots, first)

    check_threads(threads)
    claim_key(km, reuse_key=reuse_key)
    try:
        _in_threads(seal, out, text, geometry, threads)
        out[: layout.HEADER_SIZE] = layout.build_header(block_size)
    except BaseException:
        wipe(out)
        raise
    return km.with_file_length(out.nbytes)


def _decrypt(
    slots: memoryview, out: memoryview, km: KeyMetadata, geometry: Geometry, threads: int
) -> None:
    cipher = BlockCipher(km.encryption_key, km.aad_prefix, block_size=geometry.block_size)
    check_threads(threads)
    if not geometry.block_count:
        return
    try:
        _in_threads(cipher.open_blocks, slots, out, geometry, threads)
    except BaseException:
        wipe(out)
        raise


def _in_threads(
    work: Callable[[memoryview, memoryview, int], object],
    slots: memoryview,
    text: memoryview,
    geometry: Geometry,
    threads: int,
) -> None:
    """Call ``work(slots, text, first block)`` for contiguous shares of both, one for each
    thread."""
    count = -(-geometry.block_count // threads)
    shares = []
    for first in range(0, geometry.block_count, count):
        at, size = geometry.slots(first, count)
        begin = first * geometry.block_size
        # Here and not in the threads: without the GIL, a view does not survive that two threads
        # slice it at once.
        share = text[begin : begin + count * geometry.block_size]
        shares.append((slots[at : at + size], share, first))
    if len(shares) == 1:
        work(*shares[0])
        return
    run_in_threads(lambda number: work(*shares[number]), range(len(shares)))
