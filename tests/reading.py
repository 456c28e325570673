"""Every way of reading an encrypted file, for tests that must hold for all of them.

A way puts what it is handed into ``attempt.returned`` as it comes, so that what arrived before an
error can be judged too, and checks the memory that it lent when a call failed.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sources

import ags1

UNTOUCHED = 0xAA


def write_anew(path: Path, content: bytes) -> None:
    """Make this the content of a file, which may have another. Tests with thousands of files write
    each over the one before: it costs least, and some file systems write a file to disk at once
    that was emptied first."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    assert os.pwrite(fd, content, 0) == len(content)
    os.ftruncate(fd, len(content))
    os.close(fd)


@dataclass
class Attempt:
    """One file to be read, and what came of it.

    ``output_size`` is what the file's sizes, as stated, make a call write; ``piece`` how much the
    ways that read piece by piece ask for.
    """

    stream: bytes
    path: Path
    km: ags1.KeyMetadata
    threads: int
    options: dict[str, Any]
    output_size: int
    piece: int = 7
    returned: list[tuple[int, bytes]] = field(default_factory=list)

    def open(self, file: Any = None, **more: Any) -> Any:
        file = self.path if file is None else file
        return ags1.open(file, "rb", self.km, threads=self.threads, **self.options, **more)

    def lend(self, call: Callable[[bytearray], int], offset: int, size: int) -> int:
        """Have ``call`` fill a patterned buffer; ``size`` is what it may touch of it."""
        out = bytearray([UNTOUCHED]) * (size + 64)
        try:
            got = call(out)
        except ags1.AuthenticationError:
            assert out[:size] == bytes(size), "the output is not zero after a failure"
            assert out[size:] == bytes([UNTOUCHED]) * 64, "a failure wrote beyond the output"
            raise
        except ags1.Ags1Error:
            assert set(out) <= {0, UNTOUCHED}, "something was written before the refusal"
            raise
        assert set(out[got:]) <= {UNTOUCHED}, "a success wrote beyond what it returned"
        self.returned.append((offset, bytes(out[:got])))
        return got


def decrypt(a: Attempt) -> None:
    a.returned.append((0, ags1.decrypt(a.stream, a.km, threads=a.threads, **a.options)))


def decrypt_into(a: Attempt) -> None:
    a.lend(
        lambda out: ags1.decrypt_into(a.stream, out, a.km, threads=a.threads, **a.options),
        0,
        a.output_size,
    )


def decrypt_bytearray(a: Attempt) -> None:
    sealed = bytearray(a.stream)
    a.returned.append((0, ags1.decrypt(sealed, a.km, threads=a.threads, **a.options)))


def shared(data: bytes) -> Any:
    """Return a buffer that, for all anybody knows, another process may change."""
    area = mmap.mmap(-1, max(1, len(data)))
    area[: len(data)] = data
    return memoryview(area)[: len(data)]


def decrypt_shared(a: Attempt) -> None:
    sealed = shared(a.stream)
    a.returned.append((0, ags1.decrypt(sealed, a.km, threads=a.threads, **a.options)))


def decrypt_shared_into(a: Attempt) -> None:
    sealed = shared(a.stream)
    a.lend(
        lambda out: ags1.decrypt_into(sealed, out, a.km, threads=a.threads, **a.options),
        0,
        a.output_size,
    )


def read(a: Attempt) -> None:
    with a.open() as file:
        a.returned.append((0, file.read()))


def _in_pieces(a: Attempt, file: Any, take: Callable[[], bytes]) -> None:
    while True:
        at = file.tell()
        part = take()
        if not part:
            return
        a.returned.append((at, part))


def read_pieces(a: Attempt) -> None:
    with a.open() as file:
        _in_pieces(a, file, lambda: file.read(a.piece))


def read1_pieces(a: Attempt) -> None:
    with a.open() as file:
        _in_pieces(a, file, lambda: file.read1(a.piece))


def peek(a: Attempt) -> None:
    with a.open() as file:
        while part := file.peek():
            a.returned.append((file.tell(), part))
            file.seek(len(part), 1)


def readinto(a: Attempt) -> None:
    with a.open() as file:
        a.lend(file.readinto, 0, a.output_size)


def readinto_pieces(a: Attempt) -> None:
    with a.open() as file:
        while True:
            at = file.tell()
            size = min(a.piece, a.output_size - at)
            if not a.lend(
                lambda out, n=size: file.readinto(memoryview(out)[: max(1, n)]), at, size
            ):
                return


def pread(a: Attempt) -> None:
    with a.open() as file:
        a.returned.append((0, file.pread(0, a.output_size + 10)))


def pread_forwards(a: Attempt) -> None:
    with a.open() as file:
        for at in range(0, max(1, a.output_size), a.piece):
            a.returned.append((at, file.pread(at, a.piece)))


def pread_backwards(a: Attempt) -> None:
    with a.open() as file:
        for at in reversed(range(0, max(1, a.output_size), a.piece)):
            a.returned.append((at, file.pread(at, a.piece)))


def readv(a: Attempt) -> None:
    ranges = [(at, a.piece) for at in range(0, max(1, a.output_size), a.piece)]
    with a.open() as file:
        parts = file.readv(ranges[::2] + ranges[1::2])
    for (at, _), part in zip(ranges[::2] + ranges[1::2], parts, strict=True):
        a.returned.append((at, part))


def lines(a: Attempt) -> None:
    with a.open() as file:
        at = 0
        for line in file:
            a.returned.append((at, line))
            at += len(line)


def text(a: Attempt) -> None:
    with ags1.open(
        a.path, "rt", a.km, threads=a.threads, encoding="latin-1", newline="", **a.options
    ) as file:
        a.returned.append((0, file.read().encode("latin-1")))


def from_memory(a: Attempt) -> None:
    with a.open(io.BytesIO(a.stream)) as file:
        a.returned.append((0, file.read()))


class Sized(sources.PreadOnly):
    """Ranged reads from storage that knows the object's size."""

    @property
    def size(self) -> int:
        return len(self.data)


def from_ranges(a: Attempt) -> None:
    with a.open(Sized(a.stream)) as file:
        _in_pieces(a, file, lambda: file.read(a.piece))


class Shared(Sized):
    """The same, in memory that others may change."""

    def pread(self, offset: int, size: int) -> Any:  # a view, where the others return bytes
        return shared(super().pread(offset, size))


def from_shared_ranges(a: Attempt) -> None:
    with a.open(Shared(a.stream)) as file:
        a.returned.append((0, file.read()))


def from_file_object(a: Attempt) -> None:
    with a.path.open("rb") as source, a.open(source) as file:
        a.lend(file.readinto, 0, a.output_size)


def from_pipe(a: Attempt) -> None:
    with a.open(sources.ReadOnlyStream(a.stream)) as file:
        _in_pieces(a, file, lambda: file.read(a.piece))


def verify_file(a: Attempt) -> None:
    ags1.verify_file(a.path, a.km, threads=a.threads, **a.options)
    a.returned.append((0, ags1.decrypt(a.stream, a.km, **a.options)))


def decrypt_file(a: Attempt) -> None:
    target = a.path.with_name("target")
    before = sorted(p.name for p in a.path.parent.iterdir())
    try:
        ags1.decrypt_file(a.path, target, a.km, threads=a.threads, durable=False, **a.options)
    except BaseException:
        assert sorted(p.name for p in a.path.parent.iterdir()) == before, "a file was left behind"
        raise
    a.returned.append((0, target.read_bytes()))
    target.unlink()


WAYS: dict[str, Callable[[Attempt], None]] = {
    way.__name__: way
    for way in (
        decrypt,
        decrypt_into,
        decrypt_bytearray,
        decrypt_shared,
        decrypt_shared_into,
        read,
        read_pieces,
        read1_pieces,
        peek,
        readinto,
        readinto_pieces,
        pread,
        pread_forwards,
        pread_backwards,
        readv,
        lines,
        text,
        from_memory,
        from_ranges,
        from_shared_ranges,
        from_file_object,
        from_pipe,
        verify_file,
        decrypt_file,
    )
}
