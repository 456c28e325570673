"""Encrypted Parquet files that somebody forged who holds no key.

Whoever has had a row of theirs written to a file chose the plaintext of a page. If a reader takes
an id of the file that ends as the page's AAD does, the page verifies as the footer. Here the text
of the row is a footer for other pages, which are in the clear.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from ags1.iceberg.formats.thrift import parse, print_struct

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.binary(), nullable=False)]
)
# So that the page is written as it is.
PROPERTIES = {"write.parquet.compression-codec": "uncompressed"}
FORGED = pa.table({"id": [666], "text": [b"forged"]}, schema=SCHEMA)
# A page begins with the size of its first text: 18 02 00 00, to Thrift a field that is a text.
_TEXT_SIZE = 0x0218
_ID = b"\x28\x08"  # field 2, 8 bytes
ID_SIZE = 8


def _parts() -> tuple[bytes, bytes]:
    """Return the pages and the footer of an unencrypted file with the forged rows."""
    ids = [f.with_metadata({"PARQUET:field_id": str(i)}) for i, f in enumerate(SCHEMA, 1)]
    out, plain = io.BytesIO(), {"use_dictionary": False, "write_statistics": False}
    table = FORGED.cast(pa.schema(ids))
    pq.write_table(table, out, compression="none", store_schema=False, **plain)
    data = out.getvalue()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer, _ = parse(data[start:-8])
    needed = {field: footer[field] for field in (1, 2, 3, 4)}
    # Its first field again, by its whole number: the page has a field before it.
    return data[4:start], b"\x05\x02" + print_struct(needed)[1:]


def rows() -> pa.Table:
    """Return the rows of the file before it is forged, the first of them by the forger."""
    text = _parts()[1].ljust(_TEXT_SIZE, b"\0")
    assert len(text) == _TEXT_SIZE
    return pa.table({"id": [1, 2], "text": [text, b"of another"]}, schema=SCHEMA)


def crypto_metadata(data: bytes) -> tuple[int, bytes]:
    """Return where a file's crypto metadata begins, and the id of the file in it."""
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert data[start : start + 4] == b"\x1c\x1c" + _ID
    return start, data[start + 4 : start + 4 + ID_SIZE]


def _with_page_as_footer(data: bytes, ids: Callable[[bytes, bytes], bytes]) -> bytes:
    _, file_id = crypto_metadata(data)
    at, size = 4, 0
    while size < _TEXT_SIZE:
        at, size = at + size, 4 + int.from_bytes(data[at + size : at + size + 4], "little")
    long_id = file_id + b"\2" + struct.pack("<HH", 0, 1) + b"\0"
    end = b"\x1c\x1c" + ids(long_id, file_id) + b"\x11\0\0\0" + data[at : at + size]
    end += struct.pack("<I", len(end)) + b"PARE"
    pages = b"PARE" + _parts()[0]
    return pages + bytes(len(data) - len(pages) - len(end)) + end


def _binary(file_id: bytes) -> bytes:
    return b"\x28" + bytes([len(file_id)]) + file_id


def a_longer_id(data: bytes) -> bytes:
    """The id ends with the bytes that follow it in the page's AAD."""
    return _with_page_as_footer(data, lambda longer, _: _binary(longer))


def an_id_twice(data: bytes) -> bytes:
    """Field 2 is there again, as a double of 8 bytes, which Arrow skips."""
    return _with_page_as_footer(data, lambda longer, own: _binary(longer) + b"\x07\x04" + own)


def a_first_id_of_another_type(data: bytes) -> bytes:
    """The double comes first."""
    return _with_page_as_footer(
        data, lambda longer, own: b"\x27" + own + b"\x08\x04" + _binary(longer)[1:]
    )


def another_algorithm(data: bytes) -> bytes:
    """AES_GCM_CTR_V1, whose pages have no tags."""
    start, _ = crypto_metadata(data)
    return data[: start + 1] + b"\x2c" + data[start + 2 :]


FORGERIES = [a_longer_id, an_id_twice, a_first_id_of_another_type, another_algorithm]
