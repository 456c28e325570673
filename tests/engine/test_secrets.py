"""Keys stay where they belong: out of texts, errors, pickles and files, and out of memory after."""

from __future__ import annotations

import base64
import copy
import io
import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference
from conftest import not_sanitized, python_environment
from reading import WAYS, Attempt

import ags1
from ags1 import KeyMetadata, hazmat
from ags1.engine import _messages
from ags1.keys import EncryptedKey, KeyEncryptionKey
from ags1.kms import GeneratedKey, azure, keyring, vault
from ags1.kms.passphrase import Protection, passphrase_source
from ags1.kms.properties import Properties
from ags1.kms.secret import discreet

# No byte of it is a printable character, so that it cannot hide in a text by chance.
KEY = bytes(0x80 | byte for byte in os.urandom(32))


def shapes_of(secret: bytes) -> set[str]:
    """Return the ways in which a secret, or a half of it, could stand in a text."""
    found = set()
    for part in (secret, secret[: len(secret) // 2], secret[len(secret) // 2 :]):
        found |= {part.hex(), part.hex().upper(), part.hex(" "), part.hex(":")}
        found |= {repr(part)[2:-1], repr(list(part))[1:-1], str(int.from_bytes(part, "big"))}
        found |= {part.decode("latin-1"), part.decode("utf-8", "replace").strip("\ufffd")}
        for encode in (base64.b64encode, base64.urlsafe_b64encode, base64.b32encode):
            found.add(encode(part).decode().rstrip("=")[:-1])
    return {shape for shape in found if len(shape) > 8}


def assert_no_key(text: str, key: bytes = KEY) -> None:
    # The message must not print what was found.
    assert not any(shape in text for shape in shapes_of(key)), "a key stands in a text"


def assert_no_key_in_bytes(data: bytes, key: bytes = KEY) -> None:
    for part in (key, key[:16], key[16:]):
        assert part not in data, "a key stands in the bytes"
    assert_no_key(data.decode("latin-1"), key)


def test_the_search_finds_what_it_should() -> None:
    for text in (repr(KEY), KEY.hex(), f"key={KEY.hex().upper()}", str(list(KEY)), f"{KEY[16:]!r}"):
        with pytest.raises(AssertionError):
            assert_no_key(text)
    for kind in (base64.b64encode, base64.urlsafe_b64encode):
        with pytest.raises(AssertionError):
            assert_no_key(kind(KEY).decode())


def kms_objects() -> dict[str, Any]:
    """What holds keys or credentials in the KMS clients and in the keyring."""
    protection = Protection.new()
    return {
        "GeneratedKey": GeneratedKey(KEY, b"wrapped"),
        "KeyringVersion": keyring.KeyringVersion(KEY, None),
        "MasterKey": keyring.MasterKey(1, {1: keyring.KeyringVersion(KEY, None)}),
        "Sealing": keyring.Sealing(protection, KEY),
        "a keyring's JSON": keyring._Hidden(key=KEY.hex()),
        "Keyring": keyring.Keyring("keyring.json", None),
        "Passphrase": passphrase_source(KEY, None),
        "KeyEncryptionKey": KeyEncryptionKey(
            EncryptedKey("k", b"w", "m", {"KEY_TIMESTAMP": "1"}), KEY
        ),
        "Properties": Properties({"kms.vault.token": KEY.hex()}),
        "Azure's token": azure._StaticCredential(KEY.hex()),
        "Vault's answer": vault._Answer(200, {"data": {"plaintext": KEY.hex()}}, (), True),
    }


def objects() -> dict[str, Any]:
    sealed = ags1.encrypt(b"data", km=KeyMetadata(KEY, b"prefix"))
    return {
        "KeyMetadata": sealed.key_metadata,
        "Sealed": sealed,
        "BlockCipher": hazmat.BlockCipher(KEY, b"prefix"),
        "Reader": ags1.open(io.BytesIO(sealed.data), "rb", sealed.key_metadata),
        "TextReader": ags1.open(io.BytesIO(sealed.data), "rt", sealed.key_metadata),
        "Writer": ags1.open(io.BytesIO(), "wb", KeyMetadata(KEY)),
        "TextWriter": ags1.open(io.BytesIO(), "wt", KeyMetadata(KEY)),
        **kms_objects(),
    }


def _names() -> list[str]:
    made = objects()
    for value in made.values():
        getattr(value, "abort", getattr(value, "close", bool))()
    return list(made)


NAMES = _names()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", NAMES)
def test_no_text_of_an_object_holds_its_key(name: str, caplog: pytest.LogCaptureFixture) -> None:
    value = objects()[name]
    texts = [repr(value), str(value), f"{value}", f"{value!r:>50}"]
    texts += [repr([value]), repr({"km": value}), ascii(value)]
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").warning("%s %r", value, [value])
    texts.append(caplog.text)
    if hasattr(value, "__dict__"):
        texts.append(repr(vars(value)))
    for text in texts:
        assert_no_key(text)
    value.close() if hasattr(value, "close") else None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_holds_a_key_is_pickled(name: str) -> None:
    value = objects()[name]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for what in (value, [value], {"km": value}):
            with pytest.raises(TypeError):
                pickle.dumps(what, protocol)
    if name in kms_objects():
        for duplicate in (copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="not pickled or copied"):
                duplicate(value)
    value.close() if hasattr(value, "close") else None


def failures(path: Path) -> dict[str, Callable[[], object]]:
    """Return calls that fail, with the key at hand in every one of them."""
    sealed = ags1.encrypt(reference.pattern(100), km=KeyMetadata(KEY, b"p"), block_size=16)
    km = sealed.key_metadata
    forged = sealed.data[:-1] + bytes([sealed.data[-1] ^ 1])
    path.write_bytes(sealed.data)
    raw = km.to_bytes()
    calls: dict[str, Callable[[], object]] = {
        "a longer key": lambda: KeyMetadata(KEY + b"x"),
        "a shorter key": lambda: KeyMetadata(KEY[:-1]),
        "a bad length": lambda: KeyMetadata(KEY, None, -1),
        "a prefix of the wrong type": lambda: KeyMetadata(KEY, "text"),  # type: ignore[arg-type]
        "a key as text": lambda: KeyMetadata(KEY.hex()),  # type: ignore[arg-type]
        "a cipher with a longer key": lambda: hazmat.BlockCipher(KEY + b"x"),
        "a cipher with bad blocks": lambda: hazmat.BlockCipher(KEY, block_size=0),
        "trailing rubbish": lambda: KeyMetadata.from_bytes(raw + b"\x01"),
        "another version": lambda: KeyMetadata.from_bytes(b"\x02" + raw[1:]),
        "no version": lambda: KeyMetadata.from_bytes(raw[1:]),
        "the key alone": lambda: KeyMetadata.from_bytes(KEY),
        "a version and the key": lambda: KeyMetadata.from_bytes(b"\x01" + KEY),
        "a used key": lambda: ags1.encrypt(b"", km=km),
        "a used key for a writer": lambda: ags1.open(io.BytesIO(), "wb", km),
        "a used key for a file": lambda: ags1.encrypt_file(path, str(path) + ".new", km=km),
        "a forged message": lambda: _messages.open(KEY, bytes(40)),
        "no length": lambda: ags1.decrypt(sealed.data, KeyMetadata(KEY, b"p")),
        "pickling": lambda: pickle.dumps(km),
        "the key metadata as file": lambda: ags1.open(km, "rb", km),
        "the key as key metadata": lambda: ags1.decrypt(sealed.data, KEY),  # type: ignore[arg-type]
        "raw key metadata as key metadata": lambda: ags1.decrypt(sealed.data, raw),  # type: ignore[arg-type]
    }
    for cut in range(0, len(raw), 3):
        calls[f"key metadata cut to {cut}"] = lambda cut=cut: KeyMetadata.from_bytes(raw[:cut])
    for name, stream in (("forged", forged), ("cut", forged[:-1]), ("longer", forged + b"x")):
        for way, run in WAYS.items():

            def call(run: Callable[[Attempt], None] = run, stream: bytes = stream) -> None:
                path.write_bytes(stream)
                run(Attempt(stream, path, km, 2, {}, 100))

            calls[f"{name} {way}"] = call
    return calls


def test_no_error_holds_a_key(tmp_path: Path) -> None:
    tried = 0
    for name, call in failures(tmp_path / "file").items():
        with pytest.raises(Exception) as caught:  # noqa: PT011
            call()
        error = caught.value
        assert not isinstance(error, AssertionError), name
        text = "".join(traceback.format_exception(error))
        attributes = repr(getattr(error, "__dict__", {}))
        for shown in (str(error), repr(error), repr(error.args), text, attributes):
            assert_no_key(shown)
        if isinstance(error, ags1.Ags1Error):
            dumped = pickle.dumps(error)
            assert_no_key_in_bytes(dumped)
            again = pickle.loads(dumped)
            assert type(again) is type(error)
            assert (again.file, again.block, again.offset) == (
                error.file,
                error.block,
                error.offset,
            )
            assert str(again) == str(error)
        tried += 1
    assert tried == 21 + 3 * len(WAYS) + 14


def test_no_local_variable_of_ours_shows_a_key_when_reading_fails(tmp_path: Path) -> None:
    # Error reporters print the variables of every frame.
    tried = 0
    for name, call in failures(tmp_path / "file").items():
        if not name.startswith(("forged ", "cut ", "longer ", "used ", "no length")):
            continue
        with pytest.raises(ags1.Ags1Error) as caught:
            call()
        frames = list(traceback.walk_tb(caught.value.__traceback__))
        ours = [frame for frame, _ in frames if frame.f_globals["__name__"].startswith("ags1")]
        assert ours
        for frame in ours:
            # The output of a call that failed is fresh memory, and may hold what we freed above.
            kept = {k: v for k, v in frame.f_locals.items() if k not in ("data", "out", "results")}
            assert_no_key(repr(kept))
        tried += 1
    assert tried == 3 * len(WAYS) + 1


@pytest.mark.parametrize("end", ["04", "cut", "version"])
def test_no_local_variable_of_ours_shows_a_key_when_it_is_refused(end: str) -> None:
    datum = KeyMetadata(KEY).to_bytes()
    datum = {"04": datum + b"\x04", "cut": datum[:20], "version": b"\x02" + datum[1:]}[end]
    for call in (lambda: KeyMetadata.from_bytes(datum), lambda: KeyMetadata(KEY + b"k")):
        with pytest.raises(ags1.KeyMetadataError) as caught:
            call()
        for frame, _ in traceback.walk_tb(caught.value.__traceback__):
            if frame.f_globals["__name__"].startswith("ags1"):
                # Reporters print every variable: ``repr`` of a refused object must not fail.
                assert_no_key(repr(frame.f_locals))


def test_no_file_holds_key_or_plaintext(tmp_path: Path) -> None:
    text = b"\x90plain\x91text\x92" * 1000
    (tmp_path / "plain").write_bytes(text)
    for threads in (1, 2):
        ags1.encrypt_file(
            tmp_path / "plain", tmp_path / "sealed", km=KeyMetadata(KEY), overwrite=True
        )
        with ags1.open(tmp_path / "other", "wb", KeyMetadata(KEY), threads=threads) as file:
            file.write(text)
        for name in ("sealed", "other"):
            stream = (tmp_path / name).read_bytes()
            assert_no_key_in_bytes(stream)
            assert b"plain" not in stream


# ---- discreet ----------------------------------------------------------------------------------


def test_a_discreet_function_lets_out_its_exception_alone() -> None:
    class RequestError(Exception):
        pass

    @discreet
    def call(key: bytes, *, failure: Exception) -> None:
        try:
            raise RequestError(key)
        except RequestError as error:
            raise failure from error

    for failure in (ags1.KmsError("no"), OSError(5, "Input/output error")):
        with pytest.raises(type(failure)) as caught:
            call(KEY, failure=failure)
        error = caught.value
        assert error is failure
        assert error.__cause__ is error.__context__ is None
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        assert [frame.f_code.co_name for frame in frames] == [
            "test_a_discreet_function_lets_out_its_exception_alone",
            "call",
        ]
        assert_no_key(repr(frames[1].f_locals))
    with pytest.raises(KeyboardInterrupt):
        discreet(interrupt)()


def interrupt() -> None:
    raise KeyboardInterrupt


# ---- memory ------------------------------------------------------------------------------------

# The child gets its secrets straight into buffers that it can wipe, and stops to be looked at.
CHILD = """
import gc, os, sys
from ags1.engine import _gcm, _messages

def show(word):
    print(word, flush=True)
    sys.stdin.readline()

def receive():
    secret = bytearray(32)
    assert os.readv(int(sys.argv[1]), [secret]) == 32
    return secret

control, key = receive(), receive()
data, slots, text = bytearray(5000), bytearray(8000), bytearray(5000)
show("received")
cipher = _gcm.BlockCipher(key, b"prefix", block_size=100)
for _ in range(3):
    size = cipher.seal_blocks(data, slots)
    cipher.open_blocks(memoryview(slots)[:size], text)
sealed = _messages.seal(key, data, b"aad")
_messages.open(key, sealed, b"aad")
try:
    _messages.open(key, sealed, b"other")
except Exception:
    pass
try:
    _gcm.BlockCipher(key, b"prefix", block_size=0)
except Exception:
    pass
key[:] = bytes(32)
show("cipher")
del cipher
gc.collect()
show("gone")
"""


# The same for plaintext that was decrypted and did not verify.
FORGED = """
import gc, io, os, sys, tempfile
import pyarrow
import ags1
from ags1.engine import _gcm, _messages

def show(word):
    print(word, flush=True)
    sys.stdin.readline()

def receive(size):
    data = bytearray(size)
    done = 0
    while done < size:
        done += os.readv(int(sys.argv[1]), [memoryview(data)[done:]])
    return bytes(data)

message, stream = receive(int(sys.argv[2])), receive(int(sys.argv[3]))
km = ags1.KeyMetadata(bytes(16), None, len(stream))
folder = tempfile.TemporaryDirectory()
path = os.path.join(folder.name, "file")
with open(path, "wb") as file:
    file.write(stream)
out = bytearray(len(stream))
files = pyarrow.array([stream[:-1] + bytes([stream[-1] ^ 1])] * 20 + [stream])
keys = pyarrow.array([km.to_bytes()] * 21)
show("received")
cipher = _gcm.BlockCipher(bytes(16), block_size=5000)

def refused(call):
    try:
        call()
    except ags1.AuthenticationError:
        return
    sys.exit("not refused")

refused(lambda: _messages.open(bytes(16), message))
refused(lambda: cipher.open_blocks(stream[8:], out))
refused(lambda: cipher.open_in_place(bytearray(stream[8:])))
for threads in (1, 2):
    refused(lambda: ags1.decrypt(stream, km, threads=threads))
    refused(lambda: ags1.decrypt(bytearray(stream), km, threads=threads))
    refused(lambda: ags1.decrypt_into(stream, out, km, threads=threads))
    refused(lambda: ags1.verify_file(path, km, threads=threads))
    refused(lambda: ags1.decrypt_file(path, path + ".out", km, threads=threads))
    for call in (
        lambda f: f.read(), lambda f: f.read(10), lambda f: f.readinto(out), lambda f: f.peek(),
        lambda f: f.pread(0, 9000), lambda f: f.pread(5, 10), lambda f: f.readv([(1, 2), (5, 5)]),
    ):
        def read(source):
            with ags1.open(source, "rb", km, threads=threads) as file:
                call(file)
        refused(lambda: read(path))
        refused(lambda: read(io.BytesIO(stream)))
refused(lambda: ags1.decrypt_many((files, keys)))
gc.collect()
show("refused")
"""


def occurrences(pid: int, *secrets: bytes) -> tuple[int, ...]:
    """Count secrets in the writable memory of another process."""
    counts = [0] * len(secrets)
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, mode = line.split()[:2]
            if not mode.startswith("rw"):
                continue
            begin, end = (int(number, 16) for number in span.split("-"))
            memory.seek(begin)
            try:
                area = memory.read(end - begin)
            except OSError:
                continue
            counts = [
                count + area.count(secret) for count, secret in zip(counts, secrets, strict=True)
            ]
    return tuple(counts)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="looks into /proc/PID/mem")
@not_sanitized
def test_a_key_is_gone_from_memory_with_its_cipher() -> None:
    control, key = os.urandom(32), os.urandom(32)
    read, write = os.pipe()
    os.write(write, control + key)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(read)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[read],
        env=python_environment(),
        bufsize=0,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        counts = {}
        for word in ("received", "cipher", "gone"):
            assert child.stdout.readline().decode().strip() == word
            try:
                counts[word] = occurrences(child.pid, control, key)
            except PermissionError:
                child.kill()
                pytest.skip("another process's memory may not be read here")
            child.stdin.write(b"\n")
    os.close(read)
    os.close(write)
    assert child.returncode == 0
    assert counts["received"] == (1, 1)
    # Alive, the cipher holds it: that shows that the search would find it.
    assert counts["cipher"][0] == 1
    assert counts["cipher"][1] >= 1
    assert counts["gone"] == (1, 0)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="looks into /proc/PID/mem")
@not_sanitized
def test_plaintext_that_did_not_verify_is_gone_from_memory() -> None:
    secret = os.urandom(64)
    message = bytearray(_messages.seal(bytes(16), secret))
    message[-1] ^= 1
    stream = bytearray(reference.encrypt(secret * 60, bytes(16), None, 5000))
    stream[-1] ^= 1
    read, write = os.pipe()
    os.write(write, message + stream)
    with subprocess.Popen(
        [sys.executable, "-c", FORGED, str(read), str(len(message)), str(len(stream))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[read],
        # Arrow's own allocator reserves a GiB, which would be searched too.
        env=python_environment() | {"ARROW_DEFAULT_MEMORY_POOL": "system"},
        bufsize=0,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        counts = {}
        for word in ("received", "refused"):
            assert child.stdout.readline().decode().strip() == word
            try:
                # The ciphertext shows that the search would find it.
                counts[word] = occurrences(child.pid, secret, bytes(stream[-80:]))
            except PermissionError:
                child.kill()
                pytest.skip("another process's memory may not be read here")
            child.stdin.write(b"\n")
    os.close(read)
    os.close(write)
    assert child.returncode == 0
    assert counts["received"][0] == counts["refused"][0] == 0
    assert min(counts["received"][1], counts["refused"][1]) >= 1
