"""Whatever is asked of a reader over a damaged stream, it returns the plaintext or refuses."""

import io

import harness

with harness.instrumented():
    import ags1


def TestOneInput(data: bytes) -> None:
    source = harness.Input(data)
    if source.number(3) == 0:
        text = b""
        size = source.number(100)
        sealed = source.bytes(size)
        length = None if source.number(1) else size
    else:
        text, sealed, length = harness.edited_stream(source)
    km = ags1.KeyMetadata(harness.KEY, harness.PREFIX, length)
    threads = source.threads()
    try:
        with ags1.open(
            io.BytesIO(sealed), "rb", km, threads=threads, trust_file_size=length is None
        ) as file:
            for _ in range(1 + min(source.left // 4, 8)):
                ask(file, source, text)
    except harness.REFUSALS:
        assert harness.accepted(sealed, length) is None


def ask(file: ags1.Reader, source: harness.Input, text: bytes) -> None:
    kind, offset, size = source.number(5), source.number(255), source.number(255)
    if kind == 0:
        at, found = 0, b""
        file.seek(0)
        found = file.read()
        size = len(text)
    elif kind == 1:
        at, found = offset, file.pread(offset, size)
    elif kind == 2:
        at = file.seek(offset)
        found = file.read(size)
    elif kind == 3:
        at = file.seek(0, io.SEEK_END)
        found = file.read(size)
        assert not found
    elif kind == 4:
        at = file.tell()
        out = bytearray(b"\xaa" * size)
        try:
            count = file.readinto(out)
        except harness.REFUSALS:
            assert not out.strip(b"\0\xaa")
            raise
        assert set(out[count:]) <= {0xAA}
        found = bytes(out[:count])
    else:
        at, found = offset, file.readv([(offset, size)])[0]
    assert text[at : at + size].startswith(found)


if __name__ == "__main__":
    harness.main(TestOneInput)
