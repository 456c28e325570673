"""The tamper matrix: every change to a file, through every way of reading it.

Each must raise the right error, hand out no byte that was not verified, leave zeros where the
output would have been, and no file. The counts are asserted, so that no case vanishes silently.
"""

from __future__ import annotations

import functools
import struct
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import reference
from conftest import RunPython
from reading import WAYS, Attempt, write_anew

import ags1
from ags1 import KeyMetadata, layout

FORMAT, CUT, FORGED = ags1.FormatError, ags1.TruncatedError, ags1.AuthenticationError
REFUSALS = (FORMAT, CUT, FORGED)


@dataclass(frozen=True)
class Shape:
    """A file to be tampered with."""

    name: str
    size: int
    block_size: int
    key: bytes
    prefix: bytes | None
    every_byte: bool = True
    piece: int = 7
    data: bytes = field(init=False, repr=False)
    stream: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # A newline now and then, for the ways that read lines.
        data = bytes(10 if byte % 13 == 0 else byte for byte in reference.pattern(self.size))
        object.__setattr__(self, "data", data)
        stream = reference.encrypt(data, self.key, self.prefix, self.block_size)
        object.__setattr__(self, "stream", stream)

    @property
    def km(self) -> KeyMetadata:
        return KeyMetadata(self.key, self.prefix, len(self.stream))


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("five-blocks", 70, 16, bytes(range(16)), b"sixteen byte aad"),
        Shape("full-blocks", 99, 33, bytes(range(32)), None),
        Shape("one-block", 10, 16, bytes(range(24)), b"x"),
        Shape("one-full-block", 16, 16, bytes(range(16)), b""),
        Shape("empty", 0, 16, bytes(range(16)), b"sixteen byte aad"),
        Shape("large", 325_000, 16_384, bytes(range(32)), bytes(16), False, 10_000),
    )
}
# Cases of each shape, and of all through all ways with one thread and with two.
COUNTS = {
    "five-blocks": 404,
    "full-blocks": 367,
    "one-block": 151,
    "one-full-block": 150,
    "empty": 136,
    "large": 124,
}
TOTAL = 63_936


@dataclass(frozen=True)
class Case:
    """One change. ``blocks`` are those that may be named; None: every one is bad.

    ``intact`` says how many bytes at the beginning may still be handed out. ``error`` None: the
    change must make no difference.
    """

    name: str
    stream: bytes
    km: KeyMetadata
    error: type[ags1.Ags1Error] | None
    blocks: frozenset[int] | None = None
    intact: int = 0
    options: dict[str, Any] = field(default_factory=dict)


def changed_header(shape: Shape, header: bytes, name: str) -> Case:
    """What follows from a header that no tag protects, by the format's own arithmetic."""
    stream = header + shape.stream[8:]
    stated = struct.unpack("<i", header[4:])[0]
    error: type[ags1.Ags1Error] | None = FORGED
    if header[:4] != b"AGS1" or not 1 <= stated <= 64 << 20:
        error = FORMAT
    else:
        rest = (len(stream) - 8) % (stated + 28)
        whole = (len(stream) - 8) // (stated + 28)
        if 0 < rest < 28 or (rest == 28 and whole):
            error = FORMAT
        elif stated >= shape.size and shape.block_size >= shape.size:
            error = None
    return Case(name, stream, shape.km, error)


def cases(shape: Shape) -> Iterator[Case]:
    """Yield every change to a file of that shape."""
    stream, km, block_size = shape.stream, shape.km, shape.block_size
    header, slots = stream[:8], reference.slots(stream)
    count = len(slots)

    def intact(block: int) -> int:
        return min(block * block_size, shape.size)

    def forged(name: str, new: list[bytes], *blocks: int) -> Case:
        return Case(
            name, header + b"".join(new), km, FORGED, frozenset(blocks), intact(min(blocks))
        )

    # Every header byte.
    for at in range(8):
        for flip in (0x01, 0x80, 0xFF):
            new = header[:at] + bytes([header[at] ^ flip]) + header[at + 1 :]
            yield changed_header(shape, new, f"header byte {at} xor {flip:#x}")
    stated_sizes = {0, 1, block_size - 1, block_size + 1, 2 * block_size, shape.size + 1, 64 << 20}
    for stated in sorted(stated_sizes):
        yield changed_header(shape, b"AGS1" + struct.pack("<i", stated), f"blocks of {stated}")

    # Every byte of nonce and tag, and the ends of the ciphertext, of three blocks.
    for block in sorted({0, count // 2, count - 1}):
        text = len(slots[block]) - 28
        inside = [*range(12), *range(12 + text, 28 + text)]
        if not shape.every_byte:
            inside = [0, 11, 12 + text, 27 + text]
        if text:
            inside += [12, 11 + text]
        for at in inside:
            slot = bytearray(slots[block])
            slot[at] ^= 0x10
            new_slots = [*slots[:block], bytes(slot), *slots[block + 1 :]]
            yield forged(f"block {block} byte {at}", new_slots, block)

    # Blocks moved within the file.
    pairs = [(i, j) for i in range(count) for j in range(i) if len(slots[i]) == len(slots[j])]
    if not shape.every_byte:
        pairs = [(1, 0), (count // 2, 0), (count - 2, 1)]
    for i, j in pairs:
        new_slots = list(slots)
        new_slots[i], new_slots[j] = slots[j], slots[i]
        yield forged(f"blocks {i} and {j} swapped", new_slots, i, j)
    if count > 1:
        rotated = [*slots[1:], slots[0]]
        # A short last block comes to lie elsewhere, and shifts what follows.
        yield forged("blocks rotated", rotated, *range(count))
        doubled = [slots[0], slots[0], *slots[2:]]
        if len(slots[0]) == len(slots[1]):
            yield forged("block 0 in the place of block 1", doubled, 1)

    # Blocks of other files in the place of ours.
    key = bytes([shape.key[0] ^ 1]) + shape.key[1:]
    others = {
        "another key": reference.encrypt(shape.data, key, shape.prefix, block_size),
        "another prefix": reference.encrypt(shape.data, shape.key, b"another", block_size),
    }
    for kind, other in others.items():
        theirs = reference.slots(other)
        for block in sorted({0, count // 2, count - 1}):
            new_slots = [*slots[:block], theirs[block], *slots[block + 1 :]]
            yield forged(f"block {block} of a file under {kind}", new_slots, block)
        yield Case(f"a file under {kind}", other, km, FORGED)

    # Blocks dropped, repeated, added: the length tells before anything is opened.
    for block in sorted({0, count // 2, count - 1}):
        dropped = [*slots[:block], *slots[block + 1 :]]
        yield Case(f"block {block} dropped", header + b"".join(dropped), km, CUT)
        repeated = [*slots[: block + 1], *slots[block:]]
        yield Case(f"block {block} repeated", header + b"".join(repeated), km, FORMAT)
        padded = header + b"".join(dropped) + bytes(len(slots[block]))
        if count > 1:
            # The length restored: then the numbers tell.
            bad = frozenset(range(block, count))
            yield Case(f"block {block} dropped, padded", padded, km, FORGED, bad, intact(block))
    for extra in (1, 27, 28, 29):
        yield Case(f"{extra} bytes appended", stream + bytes(extra), km, FORMAT)
    yield Case("a full block of zeros appended", stream + bytes(block_size + 28), km, FORMAT)
    yield Case("the file appended to itself", stream + stream, km, FORMAT)
    yield Case("a byte before the file", b"\0" + stream, km, FORMAT)

    # Cut anywhere.
    cuts = range(len(stream))
    if not shape.every_byte:
        ends = [8 + i * (block_size + 28) for i in (0, 1, count // 2, count - 1)]
        cuts = sorted({0, 1, 7, len(stream) - 1, *(e + step for e in ends for step in (-1, 0, 1))})
    for end in cuts:
        yield Case(f"cut to {end} bytes", stream[:end], km, CUT)

    # Wrong keys, prefixes, lengths, block sizes.
    wrong_keys = [key, shape.key[:-1] + bytes([shape.key[-1] ^ 0x80])]
    wrong_keys += [bytes(n) for n in (16, 24, 32)]
    for i, wrong in enumerate(wrong_keys):
        wrong_km = KeyMetadata(wrong, shape.prefix, len(stream))
        yield Case(f"wrong key {i}", stream, wrong_km, FORGED)
    prefix = shape.prefix or b""
    wrong_prefixes = {prefix + b"\0", b"\0" + prefix, prefix[:-1], prefix[1:], prefix * 2}
    wrong_prefixes |= {None, b"", bytes(4), b"sixteen byte AAD"} if prefix else {bytes(4)}
    for wrong_prefix in sorted(wrong_prefixes - {shape.prefix, prefix}, key=lambda p: p or b""):
        wrong_km = KeyMetadata(shape.key, wrong_prefix, len(stream))
        yield Case(f"wrong prefix {wrong_prefix!r}", stream, wrong_km, FORGED)
    for length in sorted(
        {
            0,
            7,
            8,
            35,
            36,
            len(stream) - block_size - 28,
            len(stream) - 28,
            len(stream) - 1,
            len(stream) + 1,
            len(stream) + 28,
            len(stream) + block_size + 28,
            2**40,
            2**63 - 1,
        }
        - {len(stream)}
    ):
        if length >= 0:
            error = CUT if length > len(stream) else FORMAT
            yield Case(f"wrong length {length}", stream, km.with_file_length(length), error)
    for pinned in sorted({1, block_size - 1, block_size + 1, 1 << 20, 2**31 - 29}):
        options = {"block_size": pinned}
        yield Case(f"blocks of {pinned} wanted", stream, km, FORMAT, options=options)
    options = {"max_block_size": block_size - 1}
    yield Case("blocks above the limit", stream, km, FORMAT, options=options)


@functools.cache
def all_cases(name: str) -> list[Case]:
    return list(cases(SHAPES[name]))


def output_size(case: Case) -> int:
    """The bytes that a call would write, by the sizes that the file states."""
    stated = struct.unpack("<i", case.stream[4:8])[0] if len(case.stream) >= 8 else 0
    length = case.km.file_length or len(case.stream)
    try:
        return layout.plaintext_size(length, stated) if length == len(case.stream) else 0
    except FORMAT:
        return 0


def run(case: Case, shape: Shape, way: str, threads: int, path: Path) -> None:
    """Try one case one way and judge it."""
    write_anew(path, case.stream)
    size = output_size(case)
    attempt = Attempt(case.stream, path, case.km, threads, case.options, size, shape.piece)
    caught: BaseException | None = None
    try:
        WAYS[way](attempt)
    except REFUSALS as error:
        caught = error
    for at, part in attempt.returned:
        assert part == shape.data[at : at + len(part)], f"wrong bytes came out at {at}"
    if case.error is None:
        assert caught is None, f"refused: {caught!r}"
        assert sum(len(part) for _, part in attempt.returned) >= shape.size
        return
    assert caught is not None, "not refused"
    if way == "from_pipe":
        # Without a size, what is read in order tells first; and never is all of it returned.
        assert sum(len(part) for _, part in attempt.returned) < max(1, shape.size)
        return
    assert type(caught) is case.error, f"{caught!r} instead of {case.error.__name__}"
    if case.error is not FORGED:
        assert not attempt.returned, "something was returned of a file of a wrong shape"
        return
    error = caught
    assert isinstance(error, FORGED)
    assert error.block is not None
    backwards = way in ("pread_backwards", "readv")
    # Of several bad blocks, the threads of a bulk call report whichever they meet first.
    any_order = backwards or (threads > 1 and way.endswith("_file"))
    bad_blocks = case.blocks or ({error.block} if any_order else {0})
    assert error.block in bad_blocks, f"block {error.block} named"
    stated = struct.unpack("<i", case.stream[4:8])[0]
    assert error.offset == layout.block_offset(error.block, stated)
    for at, part in attempt.returned:
        if not backwards:
            assert at + len(part) <= case.intact, "a byte of a forged block came out"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of 16 bytes a chunk, and threads for the smallest files."""
    monkeypatch.setattr("ags1.engine.blocks.CHUNK_SIZE", 100)
    monkeypatch.setattr("ags1.engine.bulk.SMALL_FILE", -1)


# These have blocks opened in threads, each by other code. For the rest one thread will do.
IN_THREADS = "decrypt|decrypt_into|read|readinto|pread|readv|from_ranges|verify_file|decrypt_file"


# Of `make test`: five blocks, in two threads where these do other things than one; one block
# and none, which have no work for a second thread; the large file through a way of each kind.
@pytest.mark.slow_variants(
    r"(full-blocks|one-full-block)-.*",
    r"(one-block|empty)-.*-2",
    rf"five-blocks-({IN_THREADS})-1",
    rf"five-blocks-(?!({IN_THREADS})-).*-2",
    r"large-.*-1",
    r"large-(?!(read_pieces|pread|pread_backwards|decrypt_file|from_ranges)-).*-2",
)
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_change_is_refused(shape: Shape, way: str, threads: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(shape.stream)
    ran = 0
    failures = []
    for case in all_cases(shape.name):
        ran += 1
        try:
            run(case, shape, way, threads, path)
        except AssertionError as error:
            failures.append(f"{case.name}: {error}")
    assert not failures, f"{len(failures)} of {ran}:\n" + "\n".join(failures[:20])
    assert ran == COUNTS[shape.name]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("way", WAYS)
def test_the_file_as_it_was_is_read(way: str, tmp_path: Path) -> None:
    # Otherwise a way that refuses everything would pass for a careful one.
    for shape in SHAPES.values():
        for threads in (1, 2):
            run(Case(shape.name, shape.stream, shape.km, None), shape, way, threads, tmp_path / "f")


def test_no_case_has_vanished() -> None:
    found = {name: sum(1 for _ in cases(shape)) for name, shape in SHAPES.items()}
    assert found == COUNTS
    for shape in SHAPES.values():
        names = [case.name for case in cases(shape)]
        assert len(names) == len(set(names))
    assert len(WAYS) == 24
    assert sum(COUNTS.values()) * len(WAYS) * 2 == TOTAL


# ---- without a trusted length ------------------------------------------------------------------


# Of `make test`: two threads, and in one thread a way of each kind.
@pytest.mark.slow_variants(r"(?!(decrypt|decrypt_file|read_pieces|pread|from_ranges)-).*-1")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "from_pipe"])
def test_without_a_trusted_length_only_a_cut_between_blocks_passes(
    way: str, threads: int, tmp_path: Path
) -> None:
    # The weakness that trust_file_size accepts, and no other: this is why the length matters.
    shape = SHAPES["five-blocks"]
    km = KeyMetadata(shape.key, shape.prefix)
    path = tmp_path / "file"
    passed = {}
    for end in range(len(shape.stream) + 1):
        stream = shape.stream[:end]
        write_anew(path, stream)
        size = output_size(Case("", stream, km, None))
        attempt = Attempt(stream, path, km, threads, {"trust_file_size": True}, size)
        try:
            WAYS[way](attempt)
        except REFUSALS:
            pass
        else:
            passed[end] = max(at + len(part) for at, part in attempt.returned)
        for at, part in attempt.returned:
            assert part == shape.data[at : at + len(part)]
    assert passed == {52: 16, 96: 32, 140: 48, 184: 64, 218: 70}


@pytest.mark.parametrize("way", WAYS)
def test_no_length_at_all_is_refused(way: str, tmp_path: Path) -> None:
    shape = SHAPES["five-blocks"]
    path = tmp_path / "file"
    path.write_bytes(shape.stream)
    attempt = Attempt(shape.stream, path, KeyMetadata(shape.key, shape.prefix), 1, {}, shape.size)
    with pytest.raises(ags1.MissingFileLengthError):
        WAYS[way](attempt)
    assert not attempt.returned


# ---- hostile block lengths ---------------------------------------------------------------------

HOSTILE = """
import resource, struct, sys
from pathlib import Path
import ags1, reference
from reading import WAYS, Attempt

path = Path(sys.argv[1])
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
limit = int(status["VmSize"].split()[0]) * 1024 + (192 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    bytearray(256 << 20)
except MemoryError:
    pass
else:
    sys.exit("the limit does not work")
tried = 0
for size in (0, 40, 100):
    data = reference.pattern(size)
    stream = reference.encrypt(data, bytes(16), None, 50)
    km = ags1.KeyMetadata(bytes(16), None, len(stream))
    for stated in (64 << 20, (64 << 20) + 1, 1 << 30, 2**31 - 29, 2**31 - 28, 2**31 - 1):
        for most in (64 << 20, 2**31 - 1):
            hostile = b"AGS1" + struct.pack("<i", stated) + stream[8:]
            path.write_bytes(hostile)
            for way in WAYS:
                for threads in (1, 2):
                    attempt = Attempt(
                        hostile, path, km, threads, {"max_block_size": most},
                        len(hostile) - 36,
                    )
                    try:
                        WAYS[way](attempt)
                    except (ags1.FormatError, ags1.AuthenticationError):
                        assert size == 100 or stated > min(most, 2**31 - 29), (way, stated)
                    else:
                        assert size < 100, (way, stated)
                        assert all(p == data[at : at + len(p)] for at, p in attempt.returned)
                    tried += 1
print(tried)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads the address space's size in /proc"
)
@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="such a Python reserves a GiB of address space at a time",
)
def test_a_hostile_block_length_allocates_nothing(run_python: RunPython, tmp_path: Path) -> None:
    # 192 MiB of address space for everything, among it the stacks of the threads.
    assert run_python(HOSTILE, tmp_path / "file").stdout == f"{3 * 6 * 2 * len(WAYS) * 2}\n"
