"""A Reader does what an io.BytesIO of the plaintext does, whatever is asked of it."""

import io

import harness
import reference

with harness.instrumented():
    import ags1


def TestOneInput(data: bytes) -> None:
    source = harness.Input(data)
    block_size = 1 + source.number(40)
    text = harness.TEXT[: source.number(300)]
    sealed = reference.encrypt(text, harness.KEY, harness.PREFIX, block_size)
    km = ags1.KeyMetadata(harness.KEY, harness.PREFIX, len(sealed))
    model = io.BytesIO(text)
    with ags1.open(io.BytesIO(sealed), "rb", km, threads=source.threads()) as file:
        while source.left > 0:
            kind, a, b = source.number(7), source.number(400), source.number(400)
            if kind == 0:
                assert file.read(a) == model.read(a)
            elif kind == 1:
                ours, theirs = bytearray(a), bytearray(a)
                assert file.readinto(ours) == model.readinto(theirs)
                assert ours == theirs
            elif kind == 2:
                assert file.readline(a - 1) == model.readline(a - 1)
            elif kind == 3:
                assert file.seek(a) == model.seek(a)
            elif kind == 4:
                assert file.pread(a, b) == text[a : a + b]
            elif kind == 5:
                assert file.readv([(a, b), (b, a)]) == [text[a : a + b], text[b : b + a]]
            elif kind == 6:
                part = file.read1(a)
                assert model.read(len(part)) == part
            else:
                seek(file, model, a - 200, b % 3)
            assert file.tell() == model.tell()


def seek(file: ags1.Reader, model: io.BytesIO, offset: int, whence: int) -> None:
    base = (0, model.tell(), len(model.getvalue()))[whence]
    if base + offset >= 0:
        assert file.seek(offset, whence) == model.seek(offset, whence)
        return
    # Before the beginning BytesIO goes to it; files, and we, refuse.
    try:
        file.seek(offset, whence)
    except (ValueError, OSError):
        return
    raise AssertionError("a position before the beginning")


if __name__ == "__main__":
    harness.main(TestOneInput)
