"""What the fuzz targets share: the fuzzer where it is installed, values out of its bytes, streams.

A target is a module with ``TestOneInput(data)``, which raises on a finding. Without atheris it can
still be called: ``tests/test_fuzz.py`` does so with each file of the corpus.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None

FOLDER = Path(__file__).parent
# For reference.py, and, where nothing else says where ags1 is, for this checkout.
sys.path[:0] = [str(FOLDER.parent)]
sys.path.append(str(FOLDER.parents[1]))

KEY, PREFIX = bytes(range(16)), b"prefix"


@contextlib.contextmanager
def instrumented() -> Iterator[None]:
    """Within it, modules of ags1 that are imported tell the fuzzer which lines they run."""
    if atheris is None or os.environ.get("AGS1_FUZZ_COMPILED_ONLY"):
        yield
        return
    with atheris.instrument_imports(include=["ags1"]):
        yield


with instrumented():
    import reference

    import ags1
    from ags1 import layout

REFUSALS = (ags1.FormatError, ags1.TruncatedError, ags1.AuthenticationError)
TEXT = bytes(10 if byte % 7 == 0 else byte for byte in reference.pattern(1 << 10))


def main(target: Callable[[bytes], None]) -> None:
    """Fuzz: the arguments are libFuzzer's."""
    if atheris is None:
        sys.exit("atheris is not installed: see tests/fuzz/README.md")
    # To merge corpora libFuzzer starts itself again, by the first argument.
    atheris.Setup([f"{sys.executable} -W ignore {sys.argv[0]}", *sys.argv[1:]], target)
    atheris.Fuzz()


class Input:
    """Numbers and bytes out of a fuzzer's bytes; zeros when they run out."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return max(0, len(self._data) - self._at)

    def bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at].ljust(size, b"\0")

    def rest(self) -> bytes:
        return self.bytes(self.left)

    def number(self, most: int) -> int:
        """Return 0 to ``most``."""
        size = (most.bit_length() + 7) // 8
        return int.from_bytes(self.bytes(size), "little") % (most + 1)

    def threads(self) -> int:
        """Return 1, and for one input of 64 2: threads are slow to start, and new to the fuzzer."""
        return 2 if zlib.crc32(self._data) % 64 == 0 else 1


def edited_stream(source: Input) -> tuple[bytes, bytes, int | None]:
    """Return a plaintext, its stream after some edits, and the length to trust."""
    block_size = 1 + source.number(40)
    text = TEXT[: source.number(200)]
    stream = bytearray(
        reference.encrypt(
            text, KEY, PREFIX, block_size, lambda number: number.to_bytes(12, "little")
        )
    )
    length: int | None = len(stream)
    for _ in range(source.number(3)):
        kind, at = source.number(6), source.number(max(0, len(stream) - 1))
        if kind == 0 and stream:
            stream[at] ^= 1 << source.number(7)
        elif kind == 1:
            del stream[at:]
        elif kind == 2:
            stream[at:at] = source.bytes(source.number(60))
        elif kind == 3:
            del stream[at : at + source.number(60)]
        elif kind == 4:
            size, other = source.number(80), source.number(max(0, len(stream) - 1))
            stream[at : at + size] = stream[other : other + size]
        elif kind == 5:
            stream[:8] = layout.build_header(1 + source.number(300))
        else:
            stream[:8] = source.bytes(8)
    choice = source.number(3)
    if choice == 0:
        length = None
    elif choice == 1:
        length = len(stream)
    return text, bytes(stream), length


def accepted(sealed: bytes, length: int | None) -> bytes | None:
    """Return what the reference makes of a stream, None where a reader has to refuse it."""
    stated = int.from_bytes(sealed[4:8], "little", signed=True)
    if stated > 64 << 20 or stated > layout.MAX_BLOCK_SIZE:
        return None
    try:
        return reference.decrypt(sealed, KEY, PREFIX, length)
    except reference.RefusedError:
        return None
