"""Makes the cases of ags1_key_metadata_test.json. ``generate.py`` writes them."""

from __future__ import annotations

from typing import Any

from derived_bytes import KEY_METADATA, derived

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
