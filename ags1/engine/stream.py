"""``open``: an encrypted file as a Python file object, as ``gzip.open`` does for compressed files.

The objects that it makes::

    open(path, "rt")  ->  TextIOWrapper  ------->    Reader  -->  source: path, file, ranged reads
    open(path, "rb")  ->                             Reader
    open(path, "wt")  ->  TextWriter  -- buffer -->  Writer  -->  sink: path, file
    open(path, "wb")  ->                             Writer
"""

from __future__ import annotations

import io
from typing import Any, Literal, NoReturn, overload

from . import layout
from .geometry import DEFAULT_MAX_BLOCK_SIZE
from .key_metadata import KeyMetadata
from .reader import DEFAULT_CACHE_SIZE, Reader
from .writer import Writer


class TextWriter(io.TextIOWrapper):
    """Text over a ``Writer``, which is its ``buffer``. If an exception leaves the ``with`` block,
    or the object is dropped without ``close``, no file is left. ``tell`` flushes the text, and
    returns the number of encoded bytes."""

    buffer: Writer

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an encrypted stream holds a key and cannot be pickled")

    @property
    def key_metadata(self) -> KeyMetadata:
        """The same as ``Writer.key_metadata``."""
        return self.buffer.key_metadata

    def abort(self) -> None:
        """The same as ``Writer.abort``."""
        self.buffer.abort()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
        self.close()

    def __del__(self) -> None:
        # There is no buffer if the constructor failed. Without contextlib: when the interpreter
        # ends, this module may have lost the name.
        try:  # noqa: SIM105
            self.buffer.__del__()
        except (ValueError, AttributeError):
            pass


@overload
def open(
    file: Any,
    mode: Literal["r", "rb"] = "rb",
    km: KeyMetadata | None = None,
    *,
    block_size: int | None = None,
    max_block_size: int = DEFAULT_MAX_BLOCK_SIZE,
    threads: int = 1,
    trust_file_size: bool = False,
    cache_size: int = DEFAULT_CACHE_SIZE,
) -> Reader: ...
@overload
def open(
    file: Any,
    mode: Literal["w", "wb", "x", "xb"],
    km: KeyMetadata | None = None,
    *,
    key_size: int = 32,
    block_size: int | None = None,
    threads: int = 1,
    reuse_key: bool = False,
    durable: bool = True,
) -> Writer: ...
@overload
def open(
    file: Any,
    mode: Literal["rt"],
    km: KeyMetadata | None = None,
    *,
    block_size: int | None = None,
    max_block_size: int = DEFAULT_MAX_BLOCK_SIZE,
    threads: int = 1,
    trust_file_size: bool = False,
    cache_size: int = DEFAULT_CACHE_SIZE,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> io.TextIOWrapper: ...
@overload
def open(
    file: Any,
    mode: Literal["wt", "xt"],
    km: KeyMetadata | None = None,
    *,
    key_size: int = 32,
    block_size: int | None = None,
    threads: int = 1,
    reuse_key: bool = False,
    durable: bool = True,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> TextWriter: ...


def open(
    file: Any,
    mode: str = "rb",
    km: KeyMetadata | None = None,
    *,
    key_size: int = 32,
    block_size: int | None = None,
    max_block_size: int = DEFAULT_MAX_BLOCK_SIZE,
    threads: int = 1,
    trust_file_size: bool = False,
    cache_size: int = DEFAULT_CACHE_SIZE,
    reuse_key: bool = False,
    durable: bool = True,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> Reader | Writer | io.TextIOWrapper | TextWriter:
    """Open an encrypted file, as ``gzip.open`` does a compressed one.

    >>> with ags1.open("sales.csv.ags1", "wt") as out:
    ...     _ = out.write("day,sold\\n")
    >>> with ags1.open("sales.csv.ags1", "rt", out.key_metadata) as file:
    ...     file.read()
    'day,sold\\n'

    ``file`` is a path or a binary file object, which is used from its position on, and which
    ``close`` leaves open. For reading, it can also be an object with ``pread(offset, size)``. A
    seekable pyarrow file is read by its ``read_at``, any number of ranges at once. ``mode`` is
    ``rb`` (the default), ``wb`` or ``xb``, or one of the text forms ``rt``, ``wt`` and ``xt`` with
    ``encoding``, ``errors`` and ``newline``. ``r``, ``w`` and ``x`` are binary.

    Reading needs ``km`` with its file length. If it has none, ``trust_file_size=True`` uses the
    source's size. ``block_size`` is the block size to expect (bytes). If it is None, the header's
    is used, up to ``max_block_size``. ``pread``, ``readv`` and reads after a ``seek`` cache the
    last blocks that they read in part, up to ``cache_size`` bytes (16 MiB by default) until
    ``close``. A larger block is not
    cached, and 0 turns the cache off. Raises FormatError, TruncatedError, MissingFileLengthError.

    Writing makes a fresh key of ``key_size`` bytes, unless ``km`` gives one. If that key may have
    encrypted a file before, the call raises KeyReuseError, unless ``reuse_key`` is set. The
    ``key_metadata`` of the closed stream opens the file. A path gets the file when ``close``
    succeeds, and not before. ``durable`` syncs it to the disk. Java and iceberg-rust read only the
    default ``block_size`` of 1 MiB. A path of a pipe, a device or an open file of this process
    (``/dev/fd/N``) is opened and written as a file object, unless the mode is ``xb`` or ``xt``.

    If a stream is aborted or fails, it gives no key metadata, and its path stays as it was. In a
    seekable file object the first byte written becomes zero, so that nobody takes the rest for a
    whole file, and the file gets its old length back. Bytes that the stream has overwritten are
    lost, and all others stay. For the same reason, a file object that cannot seek gets a zero byte
    after the written bytes.

    With ``threads`` above 1, background threads decrypt ahead of the reader or encrypt behind the
    writer.
    """
    if not isinstance(mode, str):
        raise TypeError(f"mode must be a str, not {type(mode).__name__}")
    kind, text = mode.replace("t", "").replace("b", ""), "t" in mode
    if kind not in ("r", "w", "x") or ("b" in mode and text) or len(mode) > 2:
        raise ValueError(f"mode must be one of rb, wb, xb, rt, wt, xt, not {mode!r}")
    if not text and (encoding, errors, newline) != (None, None, None):
        raise ValueError("encoding, errors and newline need a text mode: rt, wt or xt")
    if kind == "r":
        if km is None:
            raise TypeError("reading an encrypted file needs its key metadata (km)")
        reader = Reader(
            file,
            km,
            block_size=block_size,
            max_block_size=max_block_size,
            threads=threads,
            trust_file_size=trust_file_size,
            cache_size=cache_size,
        )
        if not text:
            return reader
        # Not a class derived from it: iterating over the lines of such a one is slower in CPython.
        return io.TextIOWrapper(reader, io.text_encoding(encoding), errors, newline)
    writer = Writer(
        file,
        km,
        key_size=key_size,
        block_size=layout.DEFAULT_BLOCK_SIZE if block_size is None else block_size,
        threads=threads,
        reuse_key=reuse_key,
        durable=durable,
        exclusive=kind == "x",
    )
    if not text:
        return writer
    return TextWriter(writer, io.text_encoding(encoding), errors, newline)
