"""Key metadata that parses is what ``to_bytes`` writes, with at most unknown fields behind."""

import harness

with harness.instrumented():
    import ags1


def TestOneInput(data: bytes) -> None:
    for candidate in (data, b"\x01\x20" + harness.KEY + data):
        try:
            km = ags1.KeyMetadata.from_bytes(candidate)
        except ags1.KeyMetadataError:
            continue
        assert candidate.startswith(km.to_bytes())
        assert ags1.KeyMetadata.from_bytes(km.to_bytes()) == km


if __name__ == "__main__":
    harness.main(TestOneInput)
