"""Random input, judged by the reference: ``python tests/fuzz_ags1.py TARGET [SECONDS]``.

With atheris installed it is coverage-guided over the Python layers; without, hypothesis draws the
input. A target raises on a finding. Targets: key_metadata, stream, reader, writer.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None

sys.path.insert(0, str(Path(__file__).parent))

if atheris is not None and __name__ == "__main__":
    with atheris.instrument_imports(include=["ags1"]):
        import ags1
        from ags1 import layout
else:
    import ags1
    from ags1 import layout

import reference

KEY, PREFIX = bytes(range(16)), b"prefix"


class Input:
    """Numbers and bytes out of a fuzzer's bytes; zeros when they run out."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at].ljust(size, b"\0")

    def number(self, most: int) -> int:
        """Return 0 to ``most``."""
        size = (most.bit_length() + 7) // 8
        return int.from_bytes(self.bytes(size), "little") % (most + 1)


def key_metadata(data: bytes) -> None:
    """Whatever parses is what ``to_bytes`` writes, with at most unknown fields behind."""
    for candidate in (data, b"\x01" + data, b"\x01\x20" + KEY + data):
        try:
            km = ags1.KeyMetadata.from_bytes(candidate)
        except ags1.KeyMetadataError:
            continue
        assert candidate.startswith(km.to_bytes())
        assert ags1.KeyMetadata.from_bytes(km.to_bytes()) == km


def edited_stream(source: Input) -> tuple[bytes, bytes, int | None]:
    """Return a plaintext, its stream after some edits, and the length to trust."""
    block_size = 1 + source.number(40)
    text = reference.pattern(source.number(200))
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


def stream(data: bytes) -> None:
    """Ours accepts and refuses what the reference does, and with the same result."""
    source = Input(data)
    text, sealed, length = edited_stream(source)
    km = ags1.KeyMetadata(KEY, PREFIX, length)
    trust, threads = length is None, 1 + source.number(2)
    expected: bytes | None
    try:
        expected = reference.decrypt(sealed, KEY, PREFIX, length)
    except reference.RefusedError:
        expected = None
    stated = int.from_bytes(sealed[4:8], "little", signed=True)
    if stated > 64 << 20 or stated > layout.MAX_BLOCK_SIZE:
        expected = None

    def read(file: object) -> bytes:
        with ags1.open(file, "rb", km, threads=threads, trust_file_size=trust) as reader:
            return reader.read()

    def into() -> bytes:
        out = bytearray(b"\xaa" * (len(sealed) + 1))
        try:
            size = ags1.decrypt_into(sealed, out, km, threads=threads, trust_file_size=trust)
        except ags1.Ags1Error:
            assert not out.strip(b"\0\xaa")
            raise
        assert set(out[size:]) == {0xAA}
        return bytes(out[:size])

    for way in (
        lambda: ags1.decrypt(sealed, km, threads=threads, trust_file_size=trust),
        into,
        lambda: read(io.BytesIO(sealed)),
    ):
        try:
            found = way()
        except (ags1.FormatError, ags1.TruncatedError, ags1.AuthenticationError):
            assert expected is None
        else:
            assert found == expected
            assert text.startswith(found)


def reader(data: bytes) -> None:
    """A Reader does what an io.BytesIO of the plaintext does, whatever is asked of it."""
    source = Input(data)
    block_size = 1 + source.number(40)
    text = bytes(10 if b % 7 == 0 else b for b in reference.pattern(source.number(300)))
    sealed = reference.encrypt(text, KEY, PREFIX, block_size)
    km = ags1.KeyMetadata(KEY, PREFIX, len(sealed))
    model = io.BytesIO(text)
    with ags1.open(io.BytesIO(sealed), "rb", km, threads=1 + source.number(2)) as file:
        while source.left > 0:
            kind, a, b = source.number(6), source.number(400), source.number(400)
            if kind == 0:
                assert file.read(a) == model.read(a)
            elif kind == 1:
                ours, theirs = bytearray(a), bytearray(a)
                assert file.readinto(ours) == model.readinto(theirs)
                assert ours == theirs
            elif kind == 2:
                assert file.readline(a - 1) == model.readline(a - 1)
            elif kind == 3:
                assert file.seek(a) == model.seek(a)
            elif kind == 4:
                assert file.pread(a, b) == text[a : a + b]
            elif kind == 5:
                assert file.readv([(a, b), (b, a)]) == [text[a : a + b], text[b : b + a]]
            else:
                part = file.read1(a)
                assert model.read(len(part)) == part
            assert file.tell() == model.tell()


def writer(data: bytes) -> None:
    """What is written in any pieces is what the reference reads."""
    source = Input(data)
    target, model = io.BytesIO(), io.BytesIO()
    km = ags1.KeyMetadata(KEY, PREFIX)
    with ags1.open(
        target, "wb", km, block_size=1 + source.number(40), threads=1 + source.number(2)
    ) as file:
        while source.left > 0:
            part = source.bytes(source.number(200))
            assert file.write(part) == model.write(part)
            assert file.tell() == model.tell()
    length = file.key_metadata.file_length
    assert reference.decrypt(target.getvalue(), KEY, PREFIX, length) == model.getvalue()


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (key_metadata, stream, reader, writer)
}


def by_hypothesis(target: Callable[[bytes], None], seconds: float) -> int:
    """Run a target on what hypothesis draws; return how often."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    ran = 0

    @settings(
        max_examples=500,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.binary(max_size=300))
    def search(data: bytes) -> None:
        nonlocal ran
        ran += 1
        target(data)

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        search()
    return ran


def main() -> None:
    name, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 60
    target = TARGETS[name]
    if atheris is None or os.environ.get("AGS1_FUZZ_WITHOUT_ATHERIS"):
        print(f"{name}: {by_hypothesis(target, seconds)} runs by hypothesis")
        return
    arguments = [sys.argv[0], f"-max_total_time={max(1, int(seconds))}", "-max_len=300"]
    atheris.Setup([*arguments, *sys.argv[3:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
