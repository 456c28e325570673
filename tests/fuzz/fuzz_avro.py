"""An Avro file of any bytes is read as valid batches or refused, whatever its schema and codec."""

import contextlib
import io
import json
import zlib

import harness
from fuzz_avro_rows import SHAPES

with harness.instrumented():
    from ags1.columns.avro.container import CODECS
    from ags1.columns.avro.files import AvroFile
    from ags1.errors import FormatError, TruncatedError

SYNC = bytes(range(16))
# Enough for what is fuzzed, and little enough to be had a million times.
MAX_BLOCK_SIZE = 1 << 20


def long(number: int) -> bytes:
    """Return a number that is not negative as Avro writes it."""
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def counted(data: bytes) -> bytes:
    return long(len(data)) + data


def header(schema: bytes, codec: bytes) -> bytes:
    entries = counted(b"avro.schema") + counted(schema) + counted(b"avro.codec") + counted(codec)
    return b"Obj\x01" + long(2) + entries + long(0) + SYNC


def TestOneInput(data: bytes) -> None:
    source = harness.Input(data)
    way, shape = source.number(7), source.number(len(SHAPES) - 1)
    codec = list(CODECS)[source.number(len(CODECS) - 1)].encode()
    split = source.number(3) == 0
    schema = json.dumps(SHAPES[shape][0]).encode()
    body = source.rest()
    if way == 0:
        content = b"Obj\x01" + body
    elif way == 1:
        content = header(body, codec) + long(0) * 2 + SYNC
    elif way == 2:
        content = header(schema, codec) + body
    else:
        if way == 3 and codec == b"deflate":
            body = zlib.compress(body)[2:-4]
        block = long(way - 3) + counted(body) + SYNC
        content = header(schema, codec) + block * (1 + way % 2)
    part = (len(content) // 3, len(content) // 2) if split else None
    with contextlib.suppress(FormatError, TruncatedError):
        file = AvroFile(io.BytesIO(content), max_block_size=MAX_BLOCK_SIZE)
        batches = file.read(SHAPES[shape][1], split=part, batch_size=7)
        for _, (_, batch) in zip(range(100), batches, strict=False):
            batch.validate(full=True)


if __name__ == "__main__":
    harness.main(TestOneInput)
