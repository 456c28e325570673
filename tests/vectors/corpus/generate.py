"""Makes the three JSON files of this folder. The same files come out each time, because keys and
nonces are derived from names. Shares no code with ags1 or with spec.py.

``python generate.py`` writes the files; ``generate()`` returns their contents.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FOLDER = Path(__file__).parent
MIB = 1 << 20
FORMAT, TRUNCATED, AUTHENTICATION = "FormatError", "TruncatedError", "AuthenticationError"
KEY_METADATA, UNWRAP = "KeyMetadataError", "KmsUnwrapError"

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


def derived(name: str, size: int) -> bytes:
    """Return ``size`` bytes that depend on ``name`` alone."""
    return hashlib.shake_256(f"ags1 corpus/{name}".encode()).digest(size)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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

    def nonce(self, number: int) -> bytes:
        return derived(f"{self.name}/nonce/{number}", 12)

    @cached_property
    def texts(self) -> list[bytes]:
        starts = range(0, self.size or 1, self.block_size)
        sizes = [min(self.block_size, self.size - start) for start in starts]
        if self.size < 65536:
            whole = pattern(self.size)
            return [whole[s : s + n] for s, n in zip(starts, sizes, strict=True)]
        return [self._keystream(number, n) for number, n in enumerate(sizes)]

    def _keystream(self, number: int, size: int) -> bytes:
        counter = self.nonce(number) + struct.pack(">I", 2)
        return Cipher(algorithms.AES(self.key), modes.CTR(counter)).encryptor().update(bytes(size))

    def block(self, number: int, text: bytes, aad_number: bytes | None = None) -> bytes:
        aad = (self.prefix or b"") + (aad_number or struct.pack("<i", number))
        return self.nonce(number) + AESGCM(self.key).encrypt(self.nonce(number), text, aad)

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
                "msgSha256": sha256(text),
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


KEY_METADATA_NOTES = {
    "AppendedFields": (
        "FUNCTIONALITY",
        "A later version appended optional fields. A reader ignores them.",
    ),
    "BadUnion": ("MISSING_STEP", "A union has a branch other than 0 and 1."),
    "HugeLength": ("DENIAL_OF_SERVICE", "The length of bytes is far beyond the end."),
    "NegativeLength": ("MISSING_STEP", "A length is negative."),
    "NotShortest": (
        "EDGE_CASE",
        "A number has more bytes than it needs. Most Avro readers accept it.",
    ),
    "OtherVersion": ("FUNCTIONALITY", "The version byte is not 1."),
    "TrailingBytes": (
        "EDGE_CASE",
        "Bytes follow that cannot be optional fields. Java ignores them, a reader may refuse them.",
    ),
    "Truncation": ("MISSING_STEP", "The end is missing."),
    "WrongKeyLength": ("MISSING_STEP", "The key has not 16, 24 or 32 bytes."),
}


def avro_long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def avro_bytes(value: bytes) -> bytes:
    return avro_long(len(value)) + value


def key_metadata(key: bytes, prefix: bytes | None, length: int | None) -> bytes:
    """Return ``StandardKeyMetadata`` as Java writes it."""
    encoded = b"\1" + avro_bytes(key)
    encoded += b"\0" if prefix is None else b"\2" + avro_bytes(prefix)
    return encoded + (b"\0" if length is None else b"\2" + avro_long(length))


def key_metadata_cases() -> list[dict[str, Any]]:
    tests: list[dict[str, Any]] = []
    key, prefix = derived("key metadata", 16), derived("prefix", 16)

    def add(
        comment: str,
        data: bytes,
        flags: str = "",
        fields: tuple[bytes, bytes | None, int | None] | None = None,
        error: str | None = None,
    ) -> None:
        read: dict[str, Any] = {"encryptionKey": None, "aadPrefix": None, "fileLength": None}
        if fields is not None:
            read["encryptionKey"] = fields[0].hex()
            read["aadPrefix"] = None if fields[1] is None else fields[1].hex()
            read["fileLength"] = None if fields[2] is None else str(fields[2])
        result = "invalid" if fields is None else "acceptable" if error else "valid"
        case = {"tcId": len(tests) + 1, "comment": comment, "data": data.hex()}
        tests.append({**case, **read, "result": result, "error": error, "flags": flags.split()})

    for key_size in (16, 24, 32):
        for size in (None, 0, 1, 16, 300):
            for length in (None, 0, 36, 64, 5_000_000_000, 2**63 - 1):
                some = None if size is None else derived("prefix", size)
                fields = (derived("key metadata", key_size), some, length)
                prefix_shown = "null" if size is None else f"{size} bytes"
                comment = f"{key_size * 8}-bit key, AAD prefix {prefix_shown}, length {length}"
                add(comment, key_metadata(*fields), "", fields)
    for fields in ((key, prefix, 1000), (key, None, None)):
        data = key_metadata(*fields)
        for what, tail in (
            ("null", b"\0"),
            ("two nulls", b"\0\0"),
            ("a number", b"\2" + avro_long(77)),
            ("bytes", b"\2" + avro_bytes(b"abc")),
            ("null and bytes", b"\0\2" + avro_bytes(bytes(40))),
        ):
            add(f"appended to {len(data)} bytes: {what}", data + tail, "AppendedFields", fields)
        for tail in (b"\1", b"\2", b"\3", b"\4", b"\xff", b"\2\x80"):
            comment = f"the bytes {tail.hex()} follow {len(data)} bytes"
            add(comment, data + tail, "TrailingBytes", fields, KEY_METADATA)
    data = key_metadata(key, prefix, 1000)
    for version in (0, 2, 3, 0x7F, 0x80, 0xFF):
        add(f"version {version}", bytes([version]) + data[1:], "OtherVersion", None, KEY_METADATA)
    for cut in range(len(data)):
        add(f"the first {cut} bytes", data[:cut], "Truncation", None, KEY_METADATA)
    for size in (0, 1, 15, 17, 20, 31, 33, 64):
        wrong = key_metadata(derived("key metadata", size), prefix, 1000)
        add(f"a key of {size} bytes", wrong, "WrongKeyLength", None, KEY_METADATA)
    start = b"\1" + avro_bytes(key)
    for branch in (-1, 2, 3, 64):
        union = avro_long(branch)
        wrong = start + union + avro_bytes(prefix) + b"\0"
        add(f"branch {branch} for the AAD prefix", wrong, "BadUnion", None, KEY_METADATA)
        wrong = start + b"\0" + union + avro_long(1000)
        add(f"branch {branch} for the length", wrong, "BadUnion", None, KEY_METADATA)
    for what, wrong in (
        ("key's length is -1", b"\1" + avro_long(-1) + key + b"\0\0"),
        ("AAD prefix's length is -1", start + b"\2" + avro_long(-1) + b"\0"),
        ("file length is -1", key_metadata(key, prefix, -1)),
        ("file length is -2**63", key_metadata(key, prefix, -(2**63))),
    ):
        add(f"the {what}", wrong, "NegativeLength", None, KEY_METADATA)
    for huge in (1000, 2**31 - 1, 2**31, 2**62):
        wrong = b"\1" + avro_long(huge) + key + b"\0\0"
        add(f"the key's length is {huge}", wrong, "HugeLength", None, KEY_METADATA)
        wrong = start + b"\2" + avro_long(huge) + prefix + b"\0"
        add(f"the AAD prefix's length is {huge}", wrong, "HugeLength", None, KEY_METADATA)
    longer = b"\1\xa0\0" + key + b"\0\0"
    add("the key's length in two bytes", longer, "NotShortest", (key, None, None), KEY_METADATA)
    longer = start + b"\0\2\xd0\x8f\0"
    add("the file length in three bytes", longer, "NotShortest", (key, None, 1000), KEY_METADATA)
    return tests


ENVELOPE_NOTES = {
    "BadBase64": ("MISSING_STEP", "encrypted-key-metadata is not base64."),
    "DifferentTimestamps": ("AUTH_BYPASS", "The KEK has both spellings, and they differ."),
    "DuplicateKeyId": ("AUTH_BYPASS", "Two entries have one ID."),
    "ExchangedEntries": (
        "AUTH_BYPASS",
        "The encrypted bytes of two entries are exchanged. Nothing binds an entry to its ID, so "
        "that nobody can notice it under one KEK, and the case is acceptable.",
    ),
    "ExpiredKek": ("FUNCTIONALITY", "The KEK is older than 730 days. It opens, and wraps no more."),
    "FutureKek": ("FUNCTIONALITY", "The KEK is from the future. What it wrapped still opens."),
    "KekSize": ("MISSING_STEP", "The KEK unwraps to a size that AES does not have."),
    "KeyMetadata": ("MISSING_STEP", "The content is not a whole StandardKeyMetadata."),
    "MissingEntry": ("MISSING_STEP", "An entry that is needed is not in the list."),
    "MissingField": ("MISSING_STEP", "An entry does not name what wrapped it."),
    "ModifiedEntry": ("AUTH_BYPASS", "A bit of the manifest list's wrapped key was changed."),
    "ModifiedKek": ("AUTH_BYPASS", "A bit of the wrapped KEK was changed."),
    "NoTimestamp": ("MISSING_STEP", "The KEK has no timestamp."),
    "NotAManifestListKey": ("AUTH_BYPASS", "The snapshot names a KEK."),
    "OtherMasterKeyNamed": (
        "EDGE_CASE",
        "The KEK names another master key than the table's, which wrapped it. Java takes the "
        "table's key.",
    ),
    "ProposedSpelling": ("FUNCTIONALITY", "The timestamp's property is key-timestamp."),
    "Truncation": ("MISSING_STEP", "The end of the wrapped bytes is missing."),
    "TwoKeks": ("FUNCTIONALITY", "The list has more than one KEK."),
    "UnknownContent": ("FUNCTIONALITY", "Entries have properties that a reader does not know."),
    "WrongAad": ("AUTH_BYPASS", "The timestamp is not the additional data of the wrapped key."),
    "WrongKek": ("MISSING_STEP", "Another KEK than the named one wrapped the key."),
    "WrongMasterKey": ("MISSING_STEP", "Another master key than the table's wrapped the KEK."),
}
MASTER_KEYS = {"keyA": b"0123456789012345", "keyB": b"1123456789012345"}
NOW_MS, DAY_MS = 1_800_000_000_000, 86_400_000


def sealed(name: str, key: bytes, data: bytes, aad: bytes = b"") -> bytes:
    nonce = derived(f"{name}/nonce", 12)
    return nonce + AESGCM(key).encrypt(nonce, data, aad)


@dataclass(frozen=True)
class Kek:
    name: str
    size: int = 16
    master: str = "keyA"
    timestamp: str = "1790000000000"

    @property
    def key(self) -> bytes:
        return derived(f"{self.name}/kek", self.size)

    @property
    def id(self) -> str:
        return base64.b64encode(derived(f"{self.name}/id", 16)).decode()

    def entry(self, **changed: Any) -> dict[str, Any]:
        wrapped = changed.pop("wrapped", sealed(self.name, MASTER_KEYS[self.master], self.key))
        entry = {
            "key-id": self.id,
            "encrypted-key-metadata": base64.b64encode(wrapped).decode(),
            "encrypted-by-id": self.master,
            "properties": {"KEY_TIMESTAMP": self.timestamp},
        }
        return entry | {name.replace("_", "-"): value for name, value in changed.items()}

    def seal(self, name: str, km: bytes, aad: str | None = None) -> bytes:
        return sealed(
            f"{name}/list", self.key, km, (self.timestamp if aad is None else aad).encode()
        )

    def child(self, name: str, content: bytes) -> dict[str, Any]:
        return {
            "key-id": base64.b64encode(derived(f"{name}/list id", 16)).decode(),
            "encrypted-key-metadata": base64.b64encode(content).decode(),
            "encrypted-by-id": self.id,
        }


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


class Envelopes:
    """The cases of ags1_key_envelope_test.json, in order."""

    def __init__(self) -> None:
        self.tests: list[dict[str, Any]] = []
        self.km = key_metadata(derived("list key", 16), derived("prefix", 16), 4321)

    def add(
        self,
        comment: str,
        flags: str,
        keys: list[dict[str, Any]],
        *,
        error: str | None = None,
        msg: bytes | None = None,
        table: str = "keyA",
        result: str | None = None,
        wraps: bool | None = None,
    ) -> None:
        msg = self.km if msg is None else msg
        self.tests.append(
            {
                "tcId": len(self.tests) + 1,
                "comment": comment,
                "tableKeyId": table,
                "nowMs": str(NOW_MS),
                "encryptionKeys": keys,
                "keyId": keys[-1]["key-id"],
                "msg": None if error else msg.hex(),
                "wrapsNewKeys": wraps,
                "result": result or ("invalid" if error else "valid"),
                "error": error,
                "flags": flags.split(),
            }
        )

    def pair(
        self, comment: str, flags: str, kek: Kek, km: bytes | None = None, **given: Any
    ) -> None:
        """Add a case of one KEK and one manifest list's key."""
        km = self.km if km is None else km
        child = kek.child(comment, kek.seal(comment, km))
        self.add(comment, flags, [kek.entry(**given.pop("entry", {})), child], **given)

    def valid(self) -> None:
        for master in ("keyA", "keyB"):
            for size in (16, 24, 32):
                for key_size in (16, 24, 32):
                    km = key_metadata(derived("list key", key_size), derived("prefix", 16), 4321)
                    comment = f"a KEK of {size} bytes under {master}, a key of {key_size} bytes"
                    kek = Kek(comment, size, master)
                    self.pair(comment, "", kek, km, msg=km, table=master, wraps=size >= 16)
        for prefix in (None, b""):
            km = key_metadata(derived("list key", 16), prefix, 99)
            comment = f"AAD prefix {'null' if prefix is None else 'empty'}"
            self.pair(comment, "", Kek(comment), km, msg=km)
        for age, flag, wraps in (
            (0, "", True),
            (729 * DAY_MS, "", True),
            (730 * DAY_MS - 1, "", True),
            (730 * DAY_MS, "ExpiredKek", False),
            (731 * DAY_MS, "ExpiredKek", False),
            (NOW_MS, "ExpiredKek", False),
            (-1000, "FutureKek", None),
            (-2 * DAY_MS, "FutureKek", None),
            (-4000 * DAY_MS, "FutureKek", None),
        ):
            comment = f"a KEK made {age} ms ago"
            self.pair(comment, flag, Kek(comment, timestamp=str(NOW_MS - age)), wraps=wraps)
        text = "1790000000000"
        both = {"KEY_TIMESTAMP": text, "key-timestamp": text}
        for comment, properties, flag in (
            ("the proposed spelling", {"key-timestamp": text}, "ProposedSpelling"),
            ("both spellings", both, "ProposedSpelling"),
            ("another property", {"KEY_TIMESTAMP": text, "a": "b"}, "UnknownContent"),
        ):
            self.pair(comment, flag, Kek(comment), entry={"properties": properties})
        comment = "a timestamp with a leading zero is text, and bound as text"
        self.pair(comment, "", Kek(comment, timestamp="01790000000000"), result="acceptable")
        first, second = Kek("first"), Kek("second", timestamp="1795000000000")
        for kek in (first, second):
            comment = f"two KEKs, the {kek.name} one"
            child = kek.child(comment, kek.seal(comment, self.km))
            keys = [first.entry(), second.entry(), child]
            self.add(comment, "TwoKeks", keys, wraps=True)
        comment = "the KEK names another master key"
        kek = Kek(comment)
        self.pair(comment, "OtherMasterKeyNamed", kek, entry={"encrypted_by_id": "keyB"})

    def invalid(self) -> None:
        master = Kek("A")
        for comment, flag, entry, error in (
            ("no timestamp", "NoTimestamp", {"properties": {}}, KEY_METADATA),
            ("another timestamp", "WrongAad", {"properties": {"KEY_TIMESTAMP": "1"}}, None),
            ("a later KEK", "WrongAad", {"properties": {"KEY_TIMESTAMP": "1790000000001"}}, None),
            ("another text", "WrongAad", {"properties": {"KEY_TIMESTAMP": "01790000000000"}}, None),
            (
                "two spellings",
                "DifferentTimestamps",
                {"properties": {"KEY_TIMESTAMP": master.timestamp, "key-timestamp": "1"}},
                KEY_METADATA,
            ),
            ("not base64", "BadBase64", {"encrypted_key_metadata": "!"}, KEY_METADATA),
        ):
            self.pair(comment, flag, Kek(comment), entry=entry, error=error or AUTHENTICATION)
        for wrong in ("", "0", master.timestamp + "0", master.timestamp[:-1]):
            comment = f"sealed with the additional data {wrong!r}"
            keys = [master.entry(), master.child(comment, master.seal(comment, self.km, wrong))]
            self.add(comment, "WrongAad", keys, error=AUTHENTICATION)
        for size in (1, 15, 17, 33):
            comment = f"a KEK of {size} bytes"
            kek = Kek(comment, size)
            child = kek.child(comment, sealed(comment, bytes(16), self.km))
            self.add(comment, "KekSize", [kek.entry(), child], error=KEY_METADATA)
        for wrapper, table in (("keyB", "keyA"), ("keyA", "keyB")):
            comment = f"{wrapper} wrapped the KEK, and the table's key is {table}"
            kek = Kek(comment, master=wrapper)
            given = {"table": table, "error": UNWRAP}
            self.pair(comment, "WrongMasterKey", kek, **given, entry={"encrypted_by_id": table})
        wrapped = sealed("A", MASTER_KEYS["keyA"], master.key)
        child = master.seal("child", self.km)
        for what, at in (("nonce", 0), ("ciphertext", 12), ("tag", -1)):
            place = at % len(wrapped)
            keys = [
                master.entry(wrapped=flipped(wrapped, place)),
                master.child("child", child),
            ]
            self.add(f"the KEK's {what} was changed", "ModifiedKek", keys, error=UNWRAP)
            changed = flipped(child, at % len(child))
            keys = [master.entry(), master.child("child", changed)]
            comment = f"the wrapped key's {what} was changed"
            self.add(comment, "ModifiedEntry", keys, error=AUTHENTICATION)
        for cut in (12, 27, 28, len(wrapped) - 1):
            keys = [master.entry(wrapped=wrapped[:cut]), master.child("child", child)]
            self.add(f"the KEK's first {cut} bytes", "Truncation", keys, error=UNWRAP)
            keys = [master.entry(), master.child("child", child[:cut])]
            comment = f"the wrapped key's first {cut} bytes"
            self.add(comment, "Truncation", keys, error=AUTHENTICATION)
        self.relations(master, child)
        for comment, content in (
            ("version 2", b"\2" + self.km[1:]),
            ("cut off", self.km[:-3]),
            ("nothing", b""),
            ("a bare key", derived("list key", 16)),
        ):
            self.pair(comment, "KeyMetadata", Kek(comment), content, error=KEY_METADATA)

    def relations(self, master: Kek, child: bytes) -> None:
        """Faults between entries."""
        other = Kek("B2", timestamp="1795000000000")
        twin = Kek("C")
        lists = master.child("child", child)
        for kek in (other, twin):
            keks = [master.entry(), kek.entry()]
            comment = f"the key names {kek.name}, and another KEK wrapped it"
            keys = [*keks, lists | {"encrypted-by-id": kek.id}]
            self.add(comment, "WrongKek", keys, error=AUTHENTICATION)
            wrapped = [k["encrypted-key-metadata"] for k in keks]
            exchanged = [
                keks[0] | {"encrypted-key-metadata": wrapped[1]},
                keks[1] | {"encrypted-key-metadata": wrapped[0]},
                lists,
            ]
            comment = f"the wrapped KEKs A and {kek.name} are exchanged"
            self.add(comment, "ExchangedEntries", exchanged, error=AUTHENTICATION)
            content = base64.b64decode(
                kek.child("x", kek.seal("x", self.km))["encrypted-key-metadata"]
            )
            keys = [*keks, kek.child("x", child), master.child("child", content)]
            comment = f"exchanged with a key under {kek.name}"
            self.add(comment, "ExchangedEntries", keys, error=AUTHENTICATION)
        km = key_metadata(derived("other list key", 16), derived("prefix", 16), 777)
        keys = [
            master.entry(),
            master.child("other", child),
            master.child("child", master.seal("other", km)),
        ]
        comment = "exchanged with a key under the same KEK"
        self.add(comment, "ExchangedEntries", keys, msg=km, result="acceptable")
        self.add("no KEK", "MissingEntry", [lists], error=KEY_METADATA)
        self.add("another KEK only", "MissingEntry", [other.entry(), lists], error=KEY_METADATA)
        self.add("the snapshot names a KEK", "NotAManifestListKey", [lists, master.entry()])
        self.tests[-1] |= {"result": "invalid", "error": KEY_METADATA, "msg": None}
        keys = [master.entry(), {k: v for k, v in lists.items() if k != "encrypted-by-id"}]
        self.add("nothing says what wrapped the key", "MissingField", keys, error=KEY_METADATA)
        for comment, keys in (
            ("a second KEK with the ID", [master.entry(), twin.entry(key_id=master.id), lists]),
            ("the key twice", [master.entry(), lists, lists]),
        ):
            self.add(comment, "DuplicateKeyId", keys, error=KEY_METADATA)


SCHEMAS = {
    "Ags1Stream": "ags1_stream_schema.json",
    "Ags1KeyMetadata": "ags1_key_metadata_schema.json",
    "Ags1KeyEnvelope": "ags1_key_envelope_schema.json",
}


def document(
    algorithm: str, kind: str, notes: dict[str, tuple[str, str]], tests: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a whole file."""
    used = Counter(flag for test in tests for flag in test["flags"])
    described = {
        flag: {"bugType": bug_type, "description": text}
        for flag, (bug_type, text) in sorted(notes.items())
    }
    assert used.keys() == described.keys(), used.keys() ^ described.keys()
    group: dict[str, Any] = {"type": kind, "source": {"name": "ags1", "version": "1"}}
    if kind == "Ags1KeyEnvelope":
        group["masterKeys"] = {key_id: key.hex() for key_id, key in MASTER_KEYS.items()}
    return {
        "algorithm": algorithm,
        "schema": SCHEMAS[kind],
        "header": ["Data: CC0 1.0. How to use these cases: README.md in this folder."],
        "numberOfTests": len(tests),
        "notes": described,
        "testGroups": [{**group, "tests": tests}],
    }


def generate() -> dict[str, dict[str, Any]]:
    """Return the files' contents by name."""
    envelopes = Envelopes()
    envelopes.valid()
    envelopes.invalid()
    cases = key_metadata_cases()
    return {
        "ags1_stream_test.json": document("AGS1", "Ags1Stream", STREAM_NOTES, streams()),
        "ags1_key_metadata_test.json": document(
            "StandardKeyMetadata", "Ags1KeyMetadata", KEY_METADATA_NOTES, cases
        ),
        "ags1_key_envelope_test.json": document(
            "AES-GCM", "Ags1KeyEnvelope", ENVELOPE_NOTES, envelopes.tests
        ),
    }


def lines(contents: dict[str, Any]) -> Iterator[str]:
    """Yield a file's text, one case per line."""
    (group,) = contents["testGroups"]
    head = {**contents, "testGroups": [{**group, "tests": ["@"]}]}
    before, after = json.dumps(head, indent=1).split('"@"')
    yield before
    yield ",\n    ".join(json.dumps(test) for test in group["tests"])
    yield after + "\n"


if __name__ == "__main__":
    for file_name, contents in generate().items():
        (FOLDER / file_name).write_text("".join(lines(contents)))
