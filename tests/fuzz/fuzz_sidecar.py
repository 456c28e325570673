"""A sidecar that parses says the same once it is printed, and opens under its KEK or is refused."""

import json

import harness

with harness.instrumented():
    import ags1
    from ags1.errors import AuthenticationError, KeyMetadataError
    from ags1.keys.envelope import EncryptedKey, KeyEncryptionKey
    from ags1.keys.sidecar import Sidecar

KEK = b"K" * 16
KM = ags1.KeyMetadata(harness.KEY, harness.PREFIX, 100)


def unwrap_kek(entry: EncryptedKey) -> KeyEncryptionKey:
    return KeyEncryptionKey(entry, KEK)


def TestOneInput(data: bytes) -> None:
    for text in (data, b'{"encryption-keys":[' + data + b'],"key-id":"f"}'):
        try:
            sidecar = Sidecar.from_bytes(text)
        except KeyMetadataError:
            continue
        assert json.loads(sidecar.to_bytes())["key-id"] == sidecar.key_id
        assert Sidecar.from_bytes(sidecar.to_bytes()) == sidecar
        for wrapped in sidecar.file_keys:
            try:
                opened = sidecar.open(unwrap_kek, wrapped)
            except (AuthenticationError, KeyMetadataError):
                continue
            # Only a seed of the corpus was sealed under this KEK.
            assert opened == KM


if __name__ == "__main__":
    harness.main(TestOneInput)
