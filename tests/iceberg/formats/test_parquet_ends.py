"""The end of an encrypted Parquet file as we read it and as Arrow does.

Each case is a structure before the footer, or a footer, that a writer would not make: a field is
there twice, of another type, in another place, longer than it may be. What Arrow accepts, we read
in the same way, or refuse. ``make forged`` tries a million cases.
"""

from __future__ import annotations

import io
import os
import random
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pyarrow.parquet.encryption import create_decryption_properties, create_encryption_properties

from ags1 import KeyMetadata
from ags1.errors import Ags1Error
from ags1.iceberg.formats import thrift
from ags1.iceberg.formats.parquet_modules import ParquetSource, chunks, parsing

CASES = int(os.environ.get("AGS1_TEST_FORGED", "2000"))
KEY, PREFIX, FILE_ID = bytes(range(16)), bytes(range(50, 66)), b"\xf0file id"
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
NUMBERS = (BYTE, I16, I32, I64)

# A struct as a list of fields, each a list of id, type and value; a list as [the type that is said,
# the type, values].
Tree = list[Any]


def tree(kind: int, value: Any) -> Any:
    if kind == STRUCT:
        return [[number, of, tree(of, content)] for number, (of, content) in sorted(value.items())]
    if kind == LIST:
        return [value[0], value[0], [tree(value[0], item) for item in value[1]]]
    return value


class Printer:
    """Prints a tree. ``odd`` is how often it prints something in a longer form than it needs to."""

    def __init__(self, chance: random.Random, odd: float) -> None:
        self.chance, self.odd = chance, odd

    def is_odd(self) -> bool:
        return self.chance.random() < self.odd

    def varint(self, number: int) -> bytes:
        out = bytearray()
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*out, number | 0x80, 0] if self.is_odd() else [*out, number])

    def zigzag(self, number: int) -> bytes:
        return self.varint((number << 1 ^ number >> 63) & (1 << 64) - 1)

    def value(self, kind: int, value: Any) -> bytes:
        if kind in (I16, I32, I64):
            return self.zigzag(value)
        if kind == BYTE:
            return bytes([value & 0xFF])
        if kind in (TRUE, FALSE):
            return bytes([TRUE if value else FALSE])
        if kind == BINARY:
            return self.varint(len(value)) + bytes(value)
        if kind == STRUCT:
            return self.struct(value)
        if kind in (LIST, SET):
            said, inside, items = value
            if len(items) < 15 and not self.is_odd():
                header = bytes([len(items) << 4 | said])
            else:
                header = bytes([0xF0 | said]) + self.varint(len(items))
            return header + b"".join(self.value(inside, item) for item in items)
        return bytes(value)

    def struct(self, fields: Tree) -> bytes:
        out, last = bytearray(), 0
        for number, kind, value in fields:
            code = kind if kind != TRUE or value else FALSE
            if 0 < number - last <= 15 and not self.is_odd():
                out.append(number - last << 4 | code)
            else:
                out.append(code)
                out += self.zigzag(number)
            last = number
            if kind != TRUE:
                out += self.value(kind, value)
        return bytes([*out, 0])


def structs(fields: Tree) -> Iterator[Tree]:
    """Yield all structs of a tree."""
    yield fields
    for _, kind, value in fields:
        if kind == STRUCT:
            yield from structs(value)
        elif kind == LIST and value[1] == STRUCT:
            for item in value[2]:
                yield from structs(item)


def copied(value: Any) -> Any:
    return [copied(item) for item in value] if isinstance(value, list) else value


class Mutations:
    """Changes a tree, in place."""

    def __init__(self, chance: random.Random, base: Tree) -> None:
        self.chance, self.base = chance, base

    def any_value(self, kind: int) -> Any:
        chance = self.chance
        if kind in NUMBERS:
            return chance.choice([0, 1, 2, 7, -1, 127, 128, 1 << 15, 1 << 31, 1 << 32, -(1 << 63)])
        if kind in (TRUE, FALSE):
            return chance.random() < 0.5
        if kind == BINARY:
            return chance.choice([b"", FILE_ID, FILE_ID + b"\2" + bytes(6), PREFIX, b"x"])
        if kind == STRUCT:
            return copied(chance.choice(list(structs(self.base))))
        if kind in (LIST, SET):
            inside = chance.choice([TRUE, *NUMBERS, BINARY, STRUCT])
            return [inside, inside, [self.any_value(inside) for _ in range(chance.randrange(3))]]
        return FILE_ID if kind == DOUBLE else b"\0"  # eight bytes; a map without entries

    def near(self, kind: int, value: Any) -> Any:
        """Return a value like this one."""
        if kind in NUMBERS:
            return value + self.chance.choice([-1, 1, 1 << 32, 1 << 16, 256])
        if kind == BINARY and value:
            return self.chance.choice([value[:-1], value + b"\0", value * 2, value.swapcase()])
        if kind == LIST and value[2]:
            said, inside, items = value
            items = self.chance.choice([items, items + copied(items[:1]), items[1:]])
            return [self.chance.choice([said, I32, BINARY, STRUCT]), inside, items]
        return self.any_value(kind)

    def apply(self, root: Tree) -> None:
        chance = self.chance
        fields = chance.choice(list(structs(root)))
        place = chance.randrange(len(fields) + 1)
        kind = chance.randrange(TRUE, STRUCT + 1)
        number = chance.choice([chance.randrange(-1, 18), 0x7FFF, 0x8001])
        if not fields or chance.random() < 0.15:  # an unknown field, or one again
            fields.insert(place, [number, kind, self.any_value(kind)])
            return
        field = chance.choice(fields)
        what = chance.randrange(8)
        if what == 0:
            fields.remove(field)
        elif what == 1:
            fields.insert(place, copied(field))
        elif what == 2:  # the field again, with another value, or of another type
            kind = chance.choice([field[1], kind])
            fields.insert(place, [field[0], kind, self.any_value(kind)])
        elif what == 3:
            field[1:] = [kind, self.any_value(kind)]
        elif what == 4 and field[1] in NUMBERS:
            field[1] = chance.choice(NUMBERS)
        elif what == 5:
            field[0] = number
        elif what == 6:
            chance.shuffle(fields)
        else:
            field[2] = self.near(*field[1:])


def sealed(text: bytes, aad: bytes) -> bytes:
    module = bytes(12) + AESGCM(KEY).encrypt(bytes(12), text, aad)
    return struct.pack("<I", len(module)) + module


def of_arrow(data: bytes) -> Any:
    properties = create_decryption_properties(KEY, aad_prefix=PREFIX, allow_plaintext_files=False)
    try:
        found = pq.read_metadata(io.BytesIO(data), decryption_properties=properties)
        groups = []
        for group in map(found.row_group, range(found.num_row_groups)):
            if group.num_columns != found.num_columns:
                return None  # asked for the columns, pyarrow ends the process
            columns = [group.column(i) for i in range(group.num_columns)]
            names = (
                "data_page_offset dictionary_page_offset total_compressed_size num_values".split()
            )
            told = [tuple(getattr(column, name) for name in names) for column in columns]
            groups.append((group.num_rows, told))
        return found.num_rows, groups
    except (OSError, pa.ArrowInvalid, ValueError, OverflowError, UnicodeDecodeError):
        return None


def of_ours(data: bytes) -> Any:
    km = KeyMetadata(KEY, PREFIX, len(data))
    try:
        with parsing():
            footer, end = ParquetSource(lambda at, n: data[at : at + n], len(data), km).read_end()
            assert data.endswith(end)
            groups: list[Any] = [(group[3][1], []) for group in footer[4][1][1]]
            for chunk in chunks(footer):
                told = tuple(thrift.value(chunk.meta, number) for number in (9, 11, 7, 5))
                groups[chunk.group][1].append(told)
            return footer[3][1], groups
    except Ags1Error:
        return None


def base() -> tuple[bytes, Tree, Tree]:
    """Return a file's beginning, and the trees of its two structures."""
    out = io.BytesIO()
    properties = create_encryption_properties(KEY, aad_prefix=PREFIX, store_aad_prefix=False)
    rows = pa.table({"a": [1, 2, 3, 4], "b": ["x", None, "y", "z"]})
    plain: dict[str, Any] = {"write_statistics": False, "store_schema": False}
    pq.write_table(rows, out, encryption_properties=properties, row_group_size=3, **plain)
    data = out.getvalue()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    crypto, size = thrift.parse(data[start:-8])
    file_id = crypto[1][1][1][1][2][1]
    module = data[start + size + 4 : -8]
    footer, _ = thrift.parse(
        AESGCM(KEY).decrypt(module[:12], module[12:], PREFIX + file_id + b"\0")
    )
    crypto[1][1][1][1][2] = BINARY, FILE_ID
    for group in footer[4][1][1]:
        for chunk in group[1][1][1]:
            chunk[3][1].pop(16, None)  # a wrong histogram of sizes makes pyarrow end the process
    return data[:start], tree(STRUCT, crypto), tree(STRUCT, footer)


def canonical(file_id: bytes) -> bytes:
    """Return all that is accepted before a footer: AES_GCM_V1, an id of 8 bytes, a prefix that the
    reader has to know."""
    return b"\x1c\x1c\x28\x08" + file_id + b"\x11\0\0\0"


def a_file(head: bytes, texts: list[bytes], file_id: bytes) -> bytes:
    end = texts[0] + sealed(texts[1], PREFIX + file_id + b"\0")
    return head + end + struct.pack("<I", len(end)) + b"PARE"


@pytest.mark.parametrize(
    "crypto",
    [
        None,
        [8, STRUCT, []],
        [8, STRUCT, [[2, STRUCT, [[1, LIST, [BINARY, BINARY, [b"a"]]]]]]],
        [8, STRUCT, [[1, STRUCT, []], [2, STRUCT, []]]],
        [8, STRUCT, [[1, STRUCT, [[1, BINARY, b""]]]]],
        [8, STRUCT, [[3, STRUCT, []]]],
    ],
)
def test_each_column_is_encrypted_under_the_key_of_the_footer(crypto: Tree | None) -> None:
    head, *trees = base()
    texts = [Printer(random.Random(), 0).struct(fields) for fields in trees]
    assert of_ours(a_file(head, texts, FILE_ID)) is not None
    groups = next(content for number, _, content in trees[1] if number == 4)
    chunk = groups[2][-1][0][2][2][-1]  # the last column of the last group
    assert [number for number, *_ in chunk] == [2, 3, 8]
    chunk[2:] = [] if crypto is None else [crypto]
    texts[1] = Printer(random.Random(), 0).struct(trees[1])
    assert of_ours(a_file(head, texts, FILE_ID)) is None


@pytest.mark.parametrize("mutated", ["crypto metadata", "footer"])
def test_nothing_is_read_otherwise_than_arrow_reads_it(mutated: str) -> None:
    chance = random.Random(f"{mutated} {CASES}")
    head, *trees = base()
    number = ["crypto metadata", "footer"].index(mutated)
    mutations = Mutations(chance, trees[number])
    seen: Counter[tuple[bool, bool]] = Counter()
    genuine = [Printer(chance, 0).struct(fields) for fields in trees]
    assert genuine[0] == canonical(FILE_ID)
    for _ in range(CASES // 4 * (1 + 2 * (number == 0))):  # nothing authenticates the first
        texts = list(genuine)
        changed = copied(trees[number])
        for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
            mutations.apply(changed)
        texts[number] = Printer(chance, chance.choice([0, 0, 0, 0.05])).struct(changed)
        texts[number] += chance.choice([b"", b"", b"", b"\0", FILE_ID])
        # Whichever id a reader takes, the footer is the one that was sealed with it.
        ids = [value for s in structs(changed) for _, kind, value in s if kind == BINARY]
        file_id = chance.choice([FILE_ID, *ids]) if number == 0 else FILE_ID
        data = a_file(head, texts, file_id)
        ours, arrows = of_ours(data), of_arrow(data)
        seen[ours is not None, arrows is not None] += 1
        if ours is not None:
            assert len(file_id) == 8
            assert texts[0] == canonical(file_id), data[len(head) :].hex()
            assert arrows in (None, ours), data[len(head) :].hex()
    # Both accept some, and Arrow accepts some that we refuse: the test is able to fail.
    assert seen[True, True]
    assert seen[False, True]
