"""``decrypt`` and ``decrypt_into`` accept and refuse what the reference does, and leave nothing."""

import harness

with harness.instrumented():
    import ags1


def TestOneInput(data: bytes) -> None:
    source = harness.Input(data)
    way = source.number(7)
    if way == 0:
        sealed, length = source.rest(), None
        text = b""
    elif way == 1:
        sealed = ags1.layout.build_header(1 + source.number(255)) + source.rest()
        text, length = b"", len(sealed)
    else:
        text, sealed, length = harness.edited_stream(source)
    threads = source.threads()
    expected = harness.accepted(sealed, length)
    km = ags1.KeyMetadata(harness.KEY, harness.PREFIX, length)
    try:
        if way % 2:
            found = decrypt_into(sealed, km, threads)
        else:
            form = (bytes, bytearray, memoryview)[way // 2 % 3](sealed)
            found = ags1.decrypt(form, km, threads=threads, trust_file_size=length is None)
    except harness.REFUSALS:
        assert expected is None
    else:
        assert found == expected
        assert text.startswith(found)


def decrypt_into(sealed: bytes, km: ags1.KeyMetadata, threads: int) -> bytes:
    out = bytearray(b"\xaa" * (len(sealed) + 1))
    trust = km.file_length is None
    try:
        size = ags1.decrypt_into(sealed, out, km, threads=threads, trust_file_size=trust)
    except ags1.Ags1Error:
        assert not out.strip(b"\0\xaa")
        raise
    assert set(out[size:]) == {0xAA}
    return bytes(out[:size])


if __name__ == "__main__":
    harness.main(TestOneInput)
