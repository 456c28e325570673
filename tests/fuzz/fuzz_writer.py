"""What is written in any pieces is what the reference reads."""

import io

import harness
import reference

with harness.instrumented():
    import ags1


def TestOneInput(data: bytes) -> None:
    source = harness.Input(data)
    target, model = io.BytesIO(), io.BytesIO()
    km = ags1.KeyMetadata(harness.KEY, harness.PREFIX)
    block_size, threads = 1 + source.number(40), source.threads()
    with ags1.open(target, "wb", km, block_size=block_size, threads=threads) as file:
        while source.left > 0:
            part = source.bytes(source.number(200))
            assert file.write(part) == model.write(part)
            assert file.tell() == model.tell()
    length = file.key_metadata.file_length
    found = reference.decrypt(target.getvalue(), harness.KEY, harness.PREFIX, length)
    assert found == model.getvalue()


if __name__ == "__main__":
    harness.main(TestOneInput)
