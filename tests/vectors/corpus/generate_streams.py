"""Makes the cases of ags1_stream_test.json. ``generate.py`` writes them."""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from derived_bytes import AUTHENTICATION, FORMAT, TRUNCATED, derived, sealed

MIB = 1 << 20

STREAM_NOTES = {
    "BadMagic": ("AUTH_BYPASS", "The file does not begin with AGS1."),
    "BlockFromOtherFile": (
        "AUTH_BYPASS",
        "A block at its own position comes from a file with another key or another AAD prefix. If "
        "key and prefix are the same, no reader can notice it, and the case is acceptable.",
    ),
    "BlockReordering": ("AUTH_BYPASS", "Whole blocks are at other positions than they were."),
    "BlockRepeated": ("AUTH_BYPASS", "A block is there twice, in place of another one."),
    "BlockSizeChanged": (
        "AUTH_BYPASS",
        "The block size in the header is not the one of the blocks. The header has no tag. A file "
        "of one block that still fits gives the same plaintext, and the case is acceptable.",
    ),
    "CounterRollover": (
        "EDGE_CASE",
        "Block numbers go beyond one byte, or are not four bytes with the lowest first.",
    ),
    "EmptyBlock": (
        "EDGE_CASE",
        "A block without plaintext: the only block of an empty file, or one too many at the end.",
    ),
    "HeaderOnly": (
        "LEGACY",
        "Eight bytes and no block. Earlier texts of the specification implied this form of no "
        "plaintext, and today's tells readers to refuse it. The case is acceptable if the trusted "
        "length says 8 bytes.",
    ),
    "LargeBlockSize": ("EDGE_CASE", "The header states blocks that a reader may find too large."),
    "ModifiedCiphertext": ("AUTH_BYPASS", "A bit of a block's ciphertext was changed."),
    "ModifiedNonce": ("AUTH_BYPASS", "A bit of a block's nonce was changed."),
    "ModifiedTag": ("AUTH_BYPASS", "A block's tag was changed."),
    "NoFileLength": (
        "MISSING_STEP",
        "The reader has no trusted length. It must refuse, unless its caller asked it to trust the "
        "size of the file. The result is the one for such a caller.",
    ),
    "NonDefaultBlockSize": (
        "FUNCTIONALITY",
        "The blocks are not 1 MiB. A reader that supports 1 MiB only must refuse the file.",
    ),
    "PartialPlaintext": (
        "FUNCTIONALITY",
        "The first blocks are genuine. A reader may release them before it fails: msgLength and "
        "msgSha256 describe the longest prefix.",
    ),
    "TrailingData": ("AUTH_BYPASS", "Something follows the last block."),
    "Truncation": ("AUTH_BYPASS", "The end is missing, from within a block or the header on."),
    "TruncationAtBlock": (
        "AUTH_BYPASS",
        "Whole blocks are missing at the end. Only the trusted length shows it. Without one, the "
        "case is acceptable.",
    ),
    "WrongAadPrefix": ("MISSING_STEP", "The reader has another AAD prefix than the writer."),
    "WrongFileLength": ("MISSING_STEP", "The trusted length is not the length of the file."),
    "WrongKey": ("MISSING_STEP", "The reader has another key than the writer."),
}


def pattern(size: int) -> bytes:
    """Byte i is (31 i + 7) mod 256."""
    return (bytes((31 * i + 7) & 0xFF for i in range(256)) * (size // 256 + 1))[:size]


@dataclass(frozen=True)
class File:
    """A file, as a writer made it. Blocks of 1 MiB have the plaintext that makes the ciphertext
    zeros, which zlib makes small."""

    name: str
    key: bytes
    prefix: bytes | None
    block_size: int
    size: int

    @cached_property
    def texts(self) -> list[bytes]:
        starts = range(0, self.size or 1, self.block_size)
        sizes = [min(self.block_size, self.size - start) for start in starts]
        if self.size < 65536:
            whole = pattern(self.size)
            return [whole[s : s + n] for s, n in zip(starts, sizes, strict=True)]
        return [self._keystream(number, n) for number, n in enumerate(sizes)]

    def _keystream(self, number: int, size: int) -> bytes:
        counter = derived(f"{self.name}/nonce/{number}", 12) + struct.pack(">I", 2)
        return Cipher(algorithms.AES(self.key), modes.CTR(counter)).encryptor().update(bytes(size))

    def block(self, number: int, text: bytes, aad_number: bytes | None = None) -> bytes:
        aad = (self.prefix or b"") + (aad_number or struct.pack("<i", number))
        return sealed(f"{self.name}/nonce/{number}", self.key, text, aad)

    @cached_property
    def blocks(self) -> list[bytes]:
        return [self.block(number, text) for number, text in enumerate(self.texts)]

    @property
    def header(self) -> bytes:
        return b"AGS1" + struct.pack("<i", self.block_size)

    @cached_property
    def data(self) -> bytes:
        return self.header + b"".join(self.blocks)


class Streams:
    """The cases of ags1_stream_test.json, in order."""

    def __init__(self) -> None:
        self.tests: list[dict[str, Any]] = []

    def add(
        self,
        file: File,
        comment: str,
        flags: str = "",
        *,
        data: bytes | None = None,
        good: int | None = None,
        result: str | None = None,
        error: str | None = None,
        **given: Any,
    ) -> None:
        """Add a case. ``good`` is how many blocks may be released; ``given`` has what the reader is
        told if that is not what the writer knew: ``key``, ``prefix`` and ``length``."""
        data = file.data if data is None else data
        text = b"".join(file.texts[:good])
        names = flags.split()
        if file.block_size != MIB:
            names.append("NonDefaultBlockSize")
        if error and text:
            names.append("PartialPlaintext")
        length = given.get("length", len(file.data))
        if length is None:
            names.append("NoFileLength")
        prefix = given.get("prefix", file.prefix)
        self.tests.append(
            {
                "tcId": len(self.tests) + 1,
                "comment": comment,
                "key": given.get("key", file.key).hex(),
                "aadPrefix": None if prefix is None else prefix.hex(),
                "fileLength": None if length is None else str(length),
                "ct": zlib.compress(data, 9).hex(),
                "msgLength": len(text),
                "msgSha256": hashlib.sha256(text).hexdigest(),
                "result": result or ("invalid" if error else "valid"),
                "error": error,
                "flags": sorted(names),
            }
        )

    def valid(self) -> None:
        for key_size in (16, 24, 32):
            for prefix in (None, b"", derived("prefix", 16)):
                for size in (0, 1, 15, 16, 17, 255, 4096):
                    shown = "null" if prefix is None else len(prefix)
                    name = f"{size} bytes, {key_size * 8}-bit key, AAD prefix {shown}"
                    file = File(name, derived(name, key_size), prefix, MIB, size)
                    self.add(file, name, "" if size else "EmptyBlock")
        for size in (MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 17):
            for key_size, prefix in ((16, derived("prefix", 16)), (32, None)):
                name = f"{size} bytes in blocks of 1 MiB, {key_size * 8}-bit key"
                self.add(File(name, derived(name, key_size), prefix, MIB, size), name)
        for size in (1, 2, 15, 17, 255, 256, 65536):
            name = f"AAD prefix of {size} bytes"
            self.add(File(name, derived(name, 16), derived(name + "p", size), MIB, 33), name)
        for block_size in (1, 2, 16, 17, 64, 1000, 4096):
            for size in sorted(
                {0, 1, block_size - 1, block_size, block_size + 1, 3 * block_size + 1}
            ):
                for key_size, prefix in ((16, derived("prefix", 16)), (32, None)):
                    name = f"{size} bytes in blocks of {block_size}, {key_size * 8}-bit key"
                    file = File(name, derived(name, key_size), prefix, block_size, size)
                    self.add(file, name, "" if size else "EmptyBlock")
        for block_size in (65536, 2 * MIB, 64 * MIB):
            name = f"100 bytes in blocks of {block_size}"
            self.add(File(name, derived(name, 16), None, block_size, 100), name)
        for block_size in (64 * MIB + 1, 2**31 - 29):
            name = f"100 bytes, and a header that states blocks of {block_size}"
            file = File(name, derived(name, 16), None, block_size, 100)
            self.add(file, name, "LargeBlockSize", result="acceptable")

    def counters(self) -> None:
        for block_size, blocks in ((1, 256), (1, 257), (1, 300), (3, 257), (3, 513)):
            name = f"{blocks} blocks of {block_size}"
            prefix = derived("prefix", 16)
            file = File(name, derived(name, 16), prefix, block_size, blocks * block_size)
            self.add(file, name, "CounterRollover")
            if blocks > 256:
                block = file.block(256, file.texts[256], struct.pack("<i", 0))
                data = file.header + b"".join([*file.blocks[:256], block, *file.blocks[257:]])
                comment = f"{name}: block 256 has the number 0"
                flag = "CounterRollover"
                self.add(file, comment, flag, data=data, good=256, error=AUTHENTICATION)
        for block_size in (MIB, 16):
            name = f"big-endian block numbers, blocks of {block_size}"
            file = File(name, derived(name, 32), derived("prefix", 16), block_size, 2 * block_size)
            numbers = [struct.pack(">i", n) for n in (0, 1)]
            blocks = [file.block(n, file.texts[n], numbers[n]) for n in (0, 1)]
            data, flag = file.header + b"".join(blocks), "CounterRollover"
            self.add(file, name, flag, data=data, good=1, error=AUTHENTICATION)

    def lengths(self, file: File) -> None:
        """Faults at the ends of the file, and in what the reader is told of its length."""
        data, name, size = file.data, file.name, len(file.data)
        slot = file.block_size + 28

        def whole(length: int) -> int:
            return max(0, (length - 8) // slot)

        for cut in sorted({0, 3, 7, 8, 19, 35, size - 17, size - 16, size - 1}):
            comment = f"{name}: the first {cut} bytes"
            kept = data[:cut]
            self.add(file, comment, "Truncation", data=kept, good=whole(cut), error=TRUNCATED)
        for cut in (size - 1, size - 16):
            good = whole(cut)
            partial = (cut - 8) % slot
            error = FORMAT if good and partial <= 28 else AUTHENTICATION
            comment = f"{name}: the first {cut} bytes, no trusted length"
            given = {"data": data[:cut], "length": None}
            self.add(file, comment, "Truncation", good=good, error=error, **given)
        for dropped in range(1, min(len(file.blocks), 4)):
            kept = file.header + b"".join(file.blocks[:-dropped])
            good = len(file.blocks) - dropped
            comment = f"{name}: the last {dropped} blocks are missing"
            flag = "TruncationAtBlock"
            self.add(file, comment, flag, data=kept, good=good, error=TRUNCATED)
            comment += ", no trusted length"
            given = {"data": kept, "length": None}
            self.add(file, comment, flag, good=good, result="acceptable", **given)
        further = file.block(len(file.blocks), b"more")
        for what, tail in (
            ("a zero byte", b"\0"),
            ("16 zero bytes", bytes(16)),
            ("28 zero bytes", bytes(28)),
            ("the last block again", file.blocks[-1]),
            ("the header again", file.header),
            ("a genuine further block", further),
        ):
            comment = f"{name}: {what} at the end"
            self.add(file, comment, "TrailingData", data=data + tail, error=FORMAT)
        for length in (0, 7, 8, 36, size - 28, size - 1, size + 1, size + slot, 2**63 - 1):
            comment = f"{name}: a trusted length of {length} bytes"
            error = FORMAT if length < size else TRUNCATED
            if length != size:
                self.add(file, comment, "WrongFileLength", length=length, error=error)
        self.add(file, f"{name}: no trusted length", length=None, result="acceptable")

    def headers(self, file: File) -> None:
        rest, name = file.data[4:], file.name
        for magic in (b"AGS2", b"ags1", b"1SGA", bytes(4), b"PARE"):
            comment = f"{name}: the magic is {magic!r}"
            self.add(file, comment, "BadMagic", data=magic + rest, good=0, error=FORMAT)
        swapped = int.from_bytes(file.data[4:8], "big", signed=True)
        size = file.block_size
        for stated in (0, -1, -(2**31), size - 1, size + 1, size // 2, size * 2, swapped):
            if stated == size or stated > 64 * MIB:  # a reader may limit it
                continue
            comment = f"{name}: the header states blocks of {stated} bytes"
            data = file.data[:4] + struct.pack("<i", stated) + file.data[8:]
            last = (len(data) - 8) % (stated + 28) if stated > 0 else 0
            if len(file.blocks) == 1 and stated >= file.size:
                self.add(file, comment, "BlockSizeChanged", data=data, result="acceptable")
            else:
                possible = stated > 0 and (last == 0 or last > 28)
                error = AUTHENTICATION if possible else FORMAT
                self.add(file, comment, "BlockSizeChanged", data=data, good=0, error=error)

    def keys(self, file: File) -> None:
        """A reader with another key or prefix."""
        name, key, prefix = file.name, file.key, file.prefix
        for what, wrong in (
            ("the key's first bit is another", bytes([key[0] ^ 0x80]) + key[1:]),
            ("the key's last bit is another", key[:-1] + bytes([key[-1] ^ 1])),
            ("a key of zeros", bytes(len(key))),
            ("a key of another size", (key + bytes(16))[:32] if len(key) < 32 else key[:16]),
        ):
            comment = f"{name}: {what}"
            self.add(file, comment, "WrongKey", key=wrong, good=0, error=AUTHENTICATION)
        some = prefix or b""
        prefixes = [some + b"\0", b"\0" + some, derived(name + "/other", 16), bytes(4)]
        if some:
            prefixes += [None, b"", some[:-1], some[1:], some[:-1] + bytes([some[-1] ^ 1])]
        for wrong_prefix in dict.fromkeys(prefixes):
            shown = "null" if wrong_prefix is None else wrong_prefix.hex() or "empty"
            given = {"prefix": wrong_prefix, "good": 0, "error": AUTHENTICATION}
            self.add(file, f"{name}: the AAD prefix {shown}", "WrongAadPrefix", **given)
        if not some:
            other = None if prefix is not None else b""
            comment = f"{name}: null and empty AAD prefix are the same"
            self.add(file, comment, prefix=other)

    def changes(self, file: File) -> None:
        """One bit is another, in the first or the last block."""
        numbers = sorted({0, len(file.blocks) - 1})
        for number in numbers:
            size = len(file.blocks[number])
            for flag, at in (
                ("ModifiedNonce", 0),
                ("ModifiedNonce", 11),
                ("ModifiedCiphertext", 12),
                ("ModifiedCiphertext", 12 + (size - 28) // 2),
                ("ModifiedCiphertext", size - 17),
                ("ModifiedTag", size - 16),
                ("ModifiedTag", size - 4),
                ("ModifiedTag", size - 1),
            ):
                if size - 28 < 3 and flag == "ModifiedCiphertext" and at != 12:
                    continue
                block = bytearray(file.blocks[number])
                block[at] ^= 1 << (at % 8)
                comment = f"{file.name}: a bit of byte {at} of block {number}"
                self.exchanged(file, comment, flag, {number: bytes(block)})
            zeros = file.blocks[number][:-16] + bytes(16)
            comment = f"{file.name}: a tag of zeros at block {number}"
            self.exchanged(file, comment, "ModifiedTag", {number: zeros})

    def exchanged(self, file: File, comment: str, flag: str, others: dict[int, bytes]) -> None:
        """Add the file with other blocks at some positions."""
        blocks = [others.get(number, block) for number, block in enumerate(file.blocks)]
        data = file.header + b"".join(blocks)
        self.add(file, comment, flag, data=data, good=min(others), error=AUTHENTICATION)

    def positions(self, file: File) -> None:
        """Whole blocks are elsewhere, or from elsewhere."""
        blocks, name = file.blocks, file.name
        full = [n for n, text in enumerate(file.texts) if len(text) == file.block_size]
        for i in full:
            for j in full:
                if i < j:
                    comment = f"{name}: blocks {i} and {j} exchanged"
                    others = {i: blocks[j], j: blocks[i]}
                    self.exchanged(file, comment, "BlockReordering", others)
                if i != j:
                    comment = f"{name}: block {i} in place of block {j}"
                    self.exchanged(file, comment, "BlockRepeated", {j: blocks[i]})
        others = {n: blocks[full[(k + 1) % len(full)]] for k, n in enumerate(full)}
        if len(full) > 2:
            self.exchanged(file, f"{name}: blocks rotated", "BlockReordering", others)

    def foreign(self, file: File) -> None:
        key = derived(file.name + "/other key", len(file.key))
        prefix = derived(file.name + "/other prefix", 16)
        for what, other in (
            ("another key", replace(file, name=file.name + "/2", key=key)),
            ("another AAD prefix", replace(file, name=file.name + "/3", prefix=prefix)),
        ):
            for number in range(len(file.blocks)):
                comment = f"{file.name}: block {number} is from a file with {what}"
                others = {number: other.blocks[number]}
                self.exchanged(file, comment, "BlockFromOtherFile", others)
        same = replace(file, name=file.name + "/4")
        comment = f"{file.name}: the first block is from a file with the same key and prefix"
        blocks = [same.blocks[0], *file.blocks[1:]]
        mixed = replace(file, name=file.name)
        mixed.__dict__["texts"] = [same.texts[0], *file.texts[1:]]
        data = file.header + b"".join(blocks)
        self.add(mixed, comment, "BlockFromOtherFile", data=data, result="acceptable")

    def empties(self) -> None:
        for key_size in (16, 32):
            name = f"no plaintext, {key_size * 8}-bit key"
            file = File(name, derived(name, key_size), derived("prefix", 16), MIB, 0)
            given: dict[str, Any] = {"data": file.header, "good": 0}
            comment = f"{name}: a header alone"
            given["error"] = FORMAT
            self.add(file, comment, "HeaderOnly", length=8, result="acceptable", **given)
            comment += ", no trusted length"
            self.add(file, comment, "HeaderOnly", length=None, **given)
        for block_size in (MIB, 64):
            for count in (1, 2):
                name = f"{count} full blocks of {block_size}"
                size = count * block_size
                file = File(name, derived(name, 16), derived("prefix", 16), block_size, size)
                data = file.data + file.block(count, b"")
                comment = f"{name}, then an empty block"
                given = {"data": data, "error": FORMAT}
                self.add(file, comment, "EmptyBlock", length=len(data), **given)
                self.add(file, comment + ", no trusted length", "EmptyBlock", length=None, **given)


def streams() -> list[dict[str, Any]]:
    made = Streams()
    made.valid()
    made.counters()
    made.empties()
    prefix = derived("prefix", 16)
    for name, key_size, file_prefix, block_size, size in (
        ("100 bytes", 16, prefix, MIB, 100),
        ("100 bytes, no prefix", 32, None, MIB, 100),
        ("2 MiB and 100 bytes", 16, prefix, MIB, 2 * MIB + 100),
        ("51 bytes in blocks of 16", 16, prefix, 16, 51),
        ("192 bytes in blocks of 64, no prefix", 24, None, 64, 192),
        ("51 bytes in blocks of 16, empty prefix", 32, b"", 16, 51),
    ):
        file = File(name, derived(name, key_size), file_prefix, block_size, size)
        made.headers(file)
        made.lengths(file)
        made.keys(file)
        made.changes(file)
        made.positions(file)
        made.foreign(file)
    return made.tests
