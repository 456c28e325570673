"""An encrypted Parquet file with any footer and any pages, all rightly sealed, verifies or is
refused; a footer that somebody changed is always refused."""

import io
import struct

import harness
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

with harness.instrumented():
    import ags1
    from ags1.engine._gcm import Checksum
    from ags1.engine.source import open_source
    from ags1.errors import Ags1Error
    from ags1.iceberg.formats.parquet_modules import verify_parquet
    from ags1.iceberg.formats.parquet_transcription import read_contents
    from ags1.iceberg.formats.parquet_view import ParquetView
    from ags1.iceberg.formats.thrift import STRUCT, parse, print_struct

FILE_ID = b"file id!"
CIPHER = AESGCM(harness.KEY)
NONCE = bytes(12)
# {1: {1: {2: FILE_ID}}}: AES_GCM_V1
CRYPTO = b"\x1c\x1c\x28\x08" + FILE_ID + b"\x00\x00\x00"
KINDS = (2, 3, 4, 5, 6, 7, 8, 9)


def module(kind: int, place: bytes, text: bytes) -> bytes:
    sealed = NONCE + CIPHER.encrypt(NONCE, text, FILE_ID + bytes([kind]) + place)
    return struct.pack("<I", len(sealed)) + sealed


def encrypted(footer: bytes) -> bytes:
    """Say of all columns that they are encrypted under the footer's key, if there are columns."""
    try:
        fields, _ = parse(footer)
        for group in fields[4][1][1]:
            for chunk in group[1][1][1]:
                chunk[8] = STRUCT, {1: (STRUCT, {})}
        return print_struct(fields)
    except (Ags1Error, LookupError, TypeError, ValueError, OverflowError):
        return footer


def TestOneInput(data: bytes) -> None:
    source = harness.Input(data)
    content = bytearray(b"PARE")
    for _ in range(source.number(6)):
        kind = KINDS[source.number(len(KINDS) - 1)]
        place = struct.pack("<HH", source.number(1), source.number(1))
        if kind in (2, 4):
            place += struct.pack("<H", source.number(2))
        content += module(kind, place, source.bytes(source.number(60)))
    crypto = source.bytes(source.number(40)) if source.number(7) == 7 else CRYPTO
    forged = source.number(7) == 7
    footer = encrypted(source.rest())
    start = len(content)
    content += crypto + module(0, b"", footer)
    if forged:
        content[-1 - len(footer) // 2] ^= 1
    content += struct.pack("<I", len(content) - start) + b"PARE"
    km = ags1.KeyMetadata(harness.KEY, None, len(content))

    def fetch(offset: int, size: int) -> bytes:
        return bytes(content[offset : offset + size])

    def contents(*arguments) -> object:
        return read_contents(*arguments, Checksum(harness.KEY))

    def shown(_: object, size: int, km: ags1.KeyMetadata) -> None:
        view = ParquetView(open_source(io.BytesIO(content))[0], km)
        view.fill(memoryview(bytearray(view.size)), view.parts(None, None))

    for check in (shown, verify_parquet, contents):
        try:
            check(fetch, len(content), km)
        except Ags1Error:
            continue
        assert not forged


if __name__ == "__main__":
    harness.main(TestOneInput)
