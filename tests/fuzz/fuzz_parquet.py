"""A plain Parquet file of any bytes is refused, or encrypted so that every part of it verifies."""

import harness

with harness.instrumented():
    import ags1
    from ags1.engine._gcm import Checksum
    from ags1.errors import Ags1Error
    from ags1.iceberg.formats import thrift
    from ags1.iceberg.formats.parquet_modules import verify_parquet
    from ags1.iceberg.formats.parquet_transcription import read_contents, transcribe_parquet


def TestOneInput(data: bytes) -> None:
    structure(data)
    footer_size = int.from_bytes(data[:2], "little")
    body = data[2:]
    # Its length, which a mutation of the footer would make wrong.
    plain = body + min(footer_size, len(body)).to_bytes(4, "little") + b"PAR1"
    out = bytearray()
    try:
        written = transcribe_parquet(
            fetch(plain),
            len(plain),
            None,
            out.extend,
            ags1.KeyMetadata(harness.KEY, None),
            Checksum(harness.KEY),
        )
    except (Ags1Error, NotImplementedError):
        return
    sealed = bytes(out)
    assert written.size == len(sealed)
    km = ags1.KeyMetadata(harness.KEY, None, len(sealed))
    try:
        again = read_contents(fetch(sealed), len(sealed), km, Checksum(harness.KEY))
        verified = verify_parquet(fetch(sealed), len(sealed), km)
    except ags1.FormatError:
        # Of a structure that says more than it holds, and was kept as it was.
        return
    assert again.checksum == written.checksum
    assert again.rows == verified.rows == written.rows


def fetch(data):
    return lambda offset, size: data[offset : offset + size]


def structure(data: bytes) -> None:
    """A structure that parses is the same once it was printed."""
    try:
        fields, end = thrift.parse(data)
    except (IndexError, RecursionError, ags1.FormatError):
        return
    assert end <= len(data)
    printed = thrift.print_struct(fields)
    assert thrift.parse(printed) == (fields, len(printed))


if __name__ == "__main__":
    harness.main(TestOneInput)
