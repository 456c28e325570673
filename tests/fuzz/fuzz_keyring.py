"""A keyring file gives whole master keys or a KmsError, which does not tell what the file holds."""

import atexit
import os
import shutil
import tempfile

import harness

with harness.instrumented():
    from ags1.errors import KmsError
    from ags1.kms.keyring import Keyring
    from ags1.kms.passphrase import passphrase_source

FOLDER = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
PATH = os.path.join(FOLDER, "keyring")
PREFIX = b'{"format":"ags1-keyring","version":'
PROTECTED = PREFIX + b'2,"protection":{"kdf":"scrypt","n":2,"r":1,"p":1,"salt":'


def TestOneInput(data: bytes) -> None:
    way, body = data[:1], data[1:]
    if way == b"1":
        body = PREFIX + b'1,"keys":' + body + b"}"
    elif way == b"2":
        body = PROTECTED + body + b"}"
    with open(os.open(PATH, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(body)
    # Only a passphrase that costs nothing to try: what a file may ask for is bounded, but slow.
    cheap = way == b"2" and body.startswith(PROTECTED)
    keyring = Keyring(PATH, passphrase_source(b"secret", None) if cheap else None)
    try:
        keys = keyring.keys()
    except KmsError:
        return
    for key in keys.values():
        assert len(key.versions[key.current].key) == 32


if __name__ == "__main__":
    harness.main(TestOneInput)
