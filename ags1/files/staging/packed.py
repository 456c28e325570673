"""Many tuples in little memory: what a driver keeps of a million files. As objects they need some
500 bytes each, packed about 40. No I/O."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import pickle
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Generic, TypeVar

from .protocol import SourceFile

_CHUNK = 4096
# Rows that are looked up: a chunk has few, because all of it is unpacked for one. Some are kept.
_ROWS, _KEPT = 64, 16
_LEVEL = 1  # zlib's fastest

# The bytes of a digest and of a slot with two of them.
_KEY = 16
_NOTHING = bytes(_KEY)

T = TypeVar("T", bound="tuple[object, ...]")


class Packed(Collection[T]):
    """A list that only grows at its end, and is read from its beginning, as often as wanted.
    ``make`` makes an item of a plain tuple (``NamedTuple._make``)."""

    def __init__(self, make: Callable[[Iterable[object]], T], items: Iterable[T] = ()) -> None:
        self._make = make
        self._chunks: list[bytes] = []
        self._newest: list[T] = []
        for item in items:
            self.append(item)

    def append(self, item: T) -> None:
        """Add an item at the end."""
        self._newest.append(item)
        if len(self._newest) == _CHUNK:
            self._chunks.append(_packed(self._newest))
            self._newest = []

    def __contains__(self, item: object) -> bool:
        return any(item == mine for mine in self)

    def __len__(self) -> int:
        return len(self._chunks) * _CHUNK + len(self._newest)

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from map(self._make, _unpacked(chunk))
        yield from self._newest


class PackedRows(Generic[T]):
    """A dictionary of tuples in little memory, which iterates over its values, in the order in
    which they came. ``key`` returns a tuple's key. It is fast if values are looked up nearly in the
    order in which they came, as those of a ledger are."""

    def __init__(
        self,
        make: Callable[[Iterable[object]], T],
        key: Callable[[T], str],
    ) -> None:
        self._make = make
        self._key = key
        self._chunks: list[bytes] = []
        self._newest: list[T] = []
        self._numbers = DigestMap()
        self._unpacked: OrderedDict[int, list[tuple[object, ...]]] = OrderedDict()

    def __setitem__(self, key: str, row: T) -> None:
        self._numbers[key] = _number(len(self._chunks) * _ROWS + len(self._newest))
        self._newest.append(row)
        if len(self._newest) == _ROWS:
            self._chunks.append(_packed(self._newest))
            self._newest = []

    def pop(self, key: str, default: None) -> None:
        """Remove a key, if it is there."""
        self._numbers.pop(key, default)

    def get(self, key: str) -> T | None:
        """Return the value of a key."""
        number = self._numbers.get(key)
        if number is None:
            return None
        chunk, index = divmod(int.from_bytes(number, "big") - 1, _ROWS)
        if chunk == len(self._chunks):
            return self._newest[index]
        rows = self._unpacked.pop(chunk, None) or _unpacked(self._chunks[chunk])
        self._unpacked[chunk] = rows
        if len(self._unpacked) > _KEPT:
            self._unpacked.popitem(last=False)
        return self._make(rows[index])

    def __contains__(self, key: str) -> bool:
        return self._numbers.get(key) is not None

    def __iter__(self) -> Iterator[T]:
        return (row for _, row in self._numbered())

    def drained(self) -> Iterator[T]:
        """Return the values. None of them is here afterwards."""
        for place in range(len(self._chunks)):
            yield from (row for _, row in self._of_chunk(place))
            self._chunks[place] = b""
        yield from (row for _, row in self._of_chunk(len(self._chunks)))

    def by(self, key: Callable[[T], str]) -> PackedRows[T]:
        """Return the same values under other keys. Of two with one key, the later one counts."""
        same = PackedRows(self._make, key)
        same._chunks, same._newest = self._chunks, self._newest
        for number, row in self._numbered():
            same._numbers[key(row)] = number
        return same

    def _numbered(self) -> Iterator[tuple[bytes, T]]:
        return itertools.chain.from_iterable(map(self._of_chunk, range(len(self._chunks) + 1)))

    def _of_chunk(self, chunk: int) -> Iterator[tuple[bytes, T]]:
        """Yield the values of a chunk that are still here, with their numbers."""
        rows: Iterable[tuple[object, ...]] = self._newest
        if chunk < len(self._chunks):
            rows = _unpacked(self._chunks[chunk])
        for place, row in enumerate(rows, chunk * _ROWS):
            made, number = self._make(row), _number(place)
            if self._numbers.get(self._key(made)) == number:
                yield number, made


class PackedFiles:
    """Listed files, which come in any order and leave in that of their paths, each path once. If
    they come nearly in order, as listings do, few of them are unpacked at a time."""

    def __init__(self) -> None:
        self._chunks: list[tuple[str, bytes]] = []  # with the first path
        self._newest: list[SourceFile] = []

    def add(self, file: SourceFile) -> None:
        """Add a file. If two files have one path, the first counts."""
        self._newest.append(file)
        if len(self._newest) == _CHUNK:
            self._pack()

    def _pack(self) -> None:
        if self._newest:
            files = sorted(self._newest, key=lambda file: file.path)
            self._chunks.append((files[0].path, _packed(files)))
            self._newest = []

    def in_order(self) -> Packed[SourceFile]:
        """Return the files, sorted by path. They are not here afterwards."""
        self._pack()
        chunks, self._chunks = self._chunks, []
        found: Packed[SourceFile] = Packed(SourceFile._make)
        # The chunk's number decides between equal paths: sorting is stable.
        waiting = deque(sorted((first, number) for number, (first, _) in enumerate(chunks)))
        heads: list[tuple[str, int, SourceFile, Iterator[SourceFile]]] = []
        last = None
        while waiting or heads:
            while waiting and (not heads or waiting[0][0] <= heads[0][0]):
                _, number = waiting.popleft()
                files: Iterator[SourceFile] = map(SourceFile._make, _unpacked(chunks[number][1]))
                chunks[number] = ("", b"")
                file = next(files)
                heapq.heappush(heads, (file.path, number, file, files))
            path, number, file, files = heads[0]
            if path != last:
                found.append(file)
                last = path
            following = next(files, None)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following.path, number, following, files))
        return found


class DigestMap:
    """From texts to ``width`` bytes each, in about twice the memory of a digest and a value. The
    texts are known by their digests only. Values that are all zeros cannot be stored."""

    def __init__(self, width: int = _KEY) -> None:
        self._slot = _KEY + width
        self._none = bytes(width)
        self._slots = bytearray(self._slot << 10)
        self._count = 0  # of the slots that are taken

    def __setitem__(self, text: str, value: bytes) -> None:
        self.put(text, value)

    def put(self, text: str, value: bytes) -> bytes | None:
        """Set the value of a text. Return the value that it had."""
        key = _digest(text)
        begin = self._find(key)
        before = self._slots[begin : begin + self._slot]
        self._slots[begin : begin + self._slot] = key + value
        if before[:_KEY] == _NOTHING:
            self._count += 1
            if 3 * self._count * self._slot > 2 * len(self._slots):
                self._grow()
        return None if before[_KEY:] == self._none else bytes(before[_KEY:])

    def get(self, text: str) -> bytes | None:
        """Return the value of a text."""
        begin = self._find(_digest(text))
        value = bytes(self._slots[begin + _KEY : begin + self._slot])
        return None if value == self._none else value

    def visit(self, text: str) -> bytes | None:
        """Return the value of a text. Next time, the last byte of it is 1."""
        begin = self._find(_digest(text))
        end = begin + self._slot
        value = bytes(self._slots[begin + _KEY : end])
        if value == self._none:
            return None
        self._slots[end - 1] = 1
        return value

    def pop(self, text: str, default: None) -> bytes | None:
        """Remove a text and return its value, ``default`` if it has none."""
        value = self.get(text)
        if value is not None:
            self[text] = self._none
        return value

    def _find(self, key: bytes) -> int:
        """Return where the slot of a key begins, or the empty one that it may take."""
        slots, either = self._slots, (key, _NOTHING)
        size = len(slots)
        begin = int.from_bytes(key[:8], "little") * self._slot % size
        while not slots.startswith(either, begin):
            begin = (begin + self._slot) % size
        return begin

    def _grow(self) -> None:
        old, self._slots = self._slots, bytearray(2 * len(self._slots))
        for first in range(0, len(old), self._slot):
            slot = bytes(old[first : first + self._slot])
            if slot[:_KEY] != _NOTHING:
                begin = self._find(slot[:_KEY])
                self._slots[begin : begin + self._slot] = slot


def _number(place: int) -> bytes:
    return (place + 1).to_bytes(_KEY, "big")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY).digest()


def _packed(items: Iterable[tuple[object, ...]]) -> bytes:
    return zlib.compress(pickle.dumps(list(map(tuple, items)), pickle.HIGHEST_PROTOCOL), _LEVEL)


def _unpacked(chunk: bytes) -> list[tuple[object, ...]]:
    items: list[tuple[object, ...]] = pickle.loads(zlib.decompress(chunk))
    return items
