"""Any bytes, and good files with one edit: ``decrypt`` and its kin refuse, or return the plaintext.

Fast, because it does without the reference: ``fuzz_oneshot`` has that.
"""

import harness

with harness.instrumented():
    import ags1

KM = ags1.KeyMetadata(harness.KEY, harness.PREFIX)


def TestOneInput(data: bytes) -> None:
    way, size, at = data[:3].ljust(3, b"\0")
    rest = data[3:]
    if way & 1:
        text = harness.TEXT[:size]
        sealed, km = ags1.encrypt(text, km=KM, reuse_key=True, block_size=1 + (way >> 3))
        changed = sealed[:at] + rest + sealed[at + len(rest) * (way >> 1 & 1) :]
        km = km if way & 4 else KM.with_file_length(len(changed))
    else:
        text, changed, km = b"", rest, KM.with_file_length(len(rest))
    try:
        if at % 3 == 0:
            found = ags1.decrypt(changed, km)
        elif at % 3 == 1:
            found = into(changed, km)
        else:
            found, again = ags1.decrypt_many([(changed, km), (bytearray(changed), km)], threads=1)
            assert found == again
    except harness.REFUSALS:
        return
    assert text.startswith(found)


def into(sealed: bytes, km: ags1.KeyMetadata) -> bytes:
    out = bytearray(b"\xaa" * (len(sealed) + 1))
    try:
        size = ags1.decrypt_into(sealed, out, km)
    except harness.REFUSALS:
        assert not out.strip(b"\0\xaa")
        raise
    assert not out[size:].strip(b"\xaa")
    return bytes(out[:size])


if __name__ == "__main__":
    harness.main(TestOneInput)
