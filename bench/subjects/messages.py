"""Messages of 4 KiB: what a call costs when AES costs nearly nothing."""

from __future__ import annotations

import functools
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import ags1
from ags1 import hazmat, layout
from bench.contenders import ENGINE
from bench.limits import LIMIT, EvpLoop, LimitError
from bench.material import make_material
from bench.peers import pyca
from bench.rounds import Contest, Contestant, compete, repeated, timed
from bench.settings import MIB, Settings

SUBJECT = "messages"
SIZE = 4096
NAIVE = "cryptography, naive loop"
NAIVE_OWN_KEY = "cryptography, naive loop, given key"
KEPT_CIPHER = f"{ENGINE}, kept BlockCipher"
KEPT_AESGCM = "cryptography, kept AESGCM"
FRESH = "fresh keys, encrypt + decrypt"
KEPT = "kept key, encrypt + decrypt"
FORMS = "each form of {}"
BUFFERS = ("bytes", "bytearray", "memoryview", "numpy")
ENCRYPT_FORMS = (
    *(f"{function}({kind})" for function in ("encrypt", "encrypt_into") for kind in BUFFERS),
    "encrypt(bytes, km=)",
)
DECRYPT_FORMS = (
    *(
        f"{function}({kind})"
        for function in ("decrypt", "decrypt_into")
        for kind in (*BUFFERS, "mapped file")
    ),
    "decrypt(bytes, block_size=)",
)
MANY = "many messages, {}"
KEPT_LOOP = "loop over a kept AESGCM, which packs the same bytes"
LOOP = f"{ENGINE}, loop over {{}}"

Works = dict[str, Callable[[], object]]


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    count = settings.messages
    has_peer = "naive" in settings.peers and pyca.missing() is None
    message = os.urandom(SIZE)
    fresh: Works = {ENGINE: lambda: ags1.decrypt(*ags1.encrypt(message))}
    kept = _kept(message)
    if has_peer:
        fresh[NAIVE] = lambda: _naive_open(_naive_seal(message))
        kept |= _naive_kept(message)
    yield compete(SUBJECT, FRESH, _contestants(fresh, count), settings.rounds)
    contestants = _contestants(kept, count)
    try:
        loop = EvpLoop(make_material(SIZE))
    except LimitError as error:
        skipped[LIMIT] = str(error)
    else:
        contestants.append(Contestant(LIMIT, timed(lambda: loop.messages(count)), count=count))
    yield compete(SUBJECT, KEPT, contestants, settings.rounds)
    with tempfile.TemporaryFile() as file:
        sealing, opening = forms(message, file)
        if has_peer:
            seal, open_ = _aesgcm(message)
            # The first is what the others are held against.
            sealing = {KEPT_AESGCM: seal} | sealing
            opening = {KEPT_AESGCM: functools.partial(open_, *seal())} | opening
        for verb, works in (("encrypt", sealing), ("decrypt", opening)):
            yield compete(SUBJECT, FORMS.format(verb), _contestants(works, count), settings.rounds)
    messages = [os.urandom(SIZE) for _ in range(settings.many)]
    for verb, works in zip(("encrypt", "decrypt"), _many(messages, has_peer), strict=True):
        yield compete(
            SUBJECT,
            MANY.format(verb),
            [Contestant(name, timed(work), count=len(messages)) for name, work in works.items()],
            settings.rounds,
        )


def many(verb: str, threads: int, form: str = "list") -> str:
    return f"{verb}_many of a {form}, {threads} thread{'s' * (threads > 1)}"


def _contestants(works: Works, count: int) -> list[Contestant]:
    return [Contestant(name, repeated(work, count), count=count) for name, work in works.items()]


def _naive_seal(message: bytes) -> tuple[bytes, bytes, bytes]:
    key, aad_prefix = os.urandom(32), os.urandom(16)
    return pyca.naive_encrypt(message, key, aad_prefix), key, aad_prefix


def _naive_open(sealed: tuple[bytes, bytes, bytes]) -> bytes:
    return pyca.naive_decrypt(*sealed)


def _kept(message: bytes) -> Works:
    """A kept ``BlockCipher``, into kept buffers."""
    cipher = hazmat.BlockCipher(os.urandom(32), os.urandom(16))
    slot, text = bytearray(SIZE + layout.BLOCK_OVERHEAD), bytearray(SIZE)

    def work() -> None:
        cipher.seal_blocks(message, slot)
        cipher.open_blocks(slot, text)

    work()
    _check(text, message)
    return {KEPT_CIPHER: work}


def _naive_kept(message: bytes) -> Works:
    key, aad_prefix = os.urandom(32), os.urandom(16)
    seal, open_ = _aesgcm(message)

    def naive() -> bytes:
        return pyca.naive_decrypt(pyca.naive_encrypt(message, key, aad_prefix), key, aad_prefix)

    def bare() -> bytes:
        return open_(*seal())

    return {NAIVE_OWN_KEY: naive, KEPT_AESGCM: bare}


def _aesgcm(
    message: bytes,
) -> tuple[Callable[[], tuple[bytes, bytes]], Callable[[bytes, bytes], bytes]]:
    """One block's ``encrypt`` and ``decrypt`` by a kept AESGCM, and no AGS1 file around it."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher, aad = AESGCM(os.urandom(32)), os.urandom(20)

    def seal() -> tuple[bytes, bytes]:
        nonce = os.urandom(layout.NONCE_SIZE)
        return nonce, cipher.encrypt(nonce, message, aad)

    return seal, lambda nonce, sealed: cipher.decrypt(nonce, sealed, aad)


def forms(message: bytes, file: Any) -> tuple[Works, Works]:
    """Each form of encrypting and of decrypting ``message``, tried once.

    What is mapped is put into the empty ``file``.
    """
    sealed, km = ags1.encrypt(message)
    file.write(sealed)
    file.flush()
    mapped = memoryview(mmap.mmap(file.fileno(), len(sealed), prot=mmap.PROT_READ))
    texts, slots = _buffers(message), _buffers(sealed) | {"mapped file": mapped}
    sealing: Works = {}
    for kind, text in texts.items():
        sealing[f"encrypt({kind})"] = functools.partial(ags1.encrypt, text)
        _check(ags1.decrypt(*ags1.encrypt(text)), message)
        out = _room(kind, len(sealed))
        sealing[f"encrypt_into({kind})"] = functools.partial(ags1.encrypt_into, text, out)
        _check(ags1.decrypt(out, ags1.encrypt_into(text, out)), message)
    given = ags1.KeyMetadata.generate()
    sealing["encrypt(bytes, km=)"] = functools.partial(
        ags1.encrypt, message, km=given, reuse_key=True
    )
    opening: Works = {}
    for kind, slot in slots.items():
        opening[f"decrypt({kind})"] = functools.partial(ags1.decrypt, slot, km)
        _check(ags1.decrypt(slot, km), message)
        out = _room(kind, len(message))
        opening[f"decrypt_into({kind})"] = functools.partial(ags1.decrypt_into, slot, out, km)
        ags1.decrypt_into(slot, out, km)
        _check(out, message)
    opening["decrypt(bytes, block_size=)"] = functools.partial(
        ags1.decrypt, sealed, km, block_size=layout.DEFAULT_BLOCK_SIZE
    )
    return sealing, opening


def _buffers(data: bytes) -> dict[str, Any]:
    content = (data, bytearray(data), memoryview(bytearray(data)), np.frombuffer(data, np.uint8))
    return dict(zip(BUFFERS, content, strict=True))


def _room(kind: str, size: int) -> Any:
    """Writable memory for an ``_into`` form, of the input's kind where that can be written to."""
    room = bytearray(size)
    if kind == "numpy":
        return np.frombuffer(room, np.uint8)
    return memoryview(room) if kind == "memoryview" else room


def _many(messages: Sequence[bytes], has_peer: bool) -> tuple[Works, Works]:
    """Each message a whole AGS1 file under a key of its own."""
    import pyarrow

    sealed, column = ags1.encrypt_many(messages), pyarrow.array(messages)
    columns = ags1.encrypt_many(column)
    if ags1.decrypt_many(sealed) != messages or _open_each(sealed) != messages:
        raise RuntimeError("the messages did not come back")
    if not ags1.decrypt_many(columns).equals(column):
        raise RuntimeError("the column did not come back")
    sealing: Works = {}
    opening: Works = {}
    for threads in (1, 2):
        sealing[many("encrypt", threads)] = functools.partial(
            ags1.encrypt_many, messages, threads=threads
        )
        opening[many("decrypt", threads)] = functools.partial(
            ags1.decrypt_many, sealed, threads=threads
        )
        sealing[many("encrypt", threads, "column")] = functools.partial(
            ags1.encrypt_many, column, threads=threads
        )
        opening[many("decrypt", threads, "column")] = functools.partial(
            ags1.decrypt_many, columns, threads=threads
        )
    sealing[LOOP.format("encrypt")] = lambda: [ags1.encrypt(message) for message in messages]
    opening[LOOP.format("decrypt")] = lambda: _open_each(sealed)
    if has_peer:
        sealing[KEPT_LOOP], opening[KEPT_LOOP] = _kept_loops(messages)
        theirs = [_naive_seal(message) for message in messages]
        sealing[NAIVE] = lambda: [_naive_seal(message) for message in messages]
        opening[NAIVE] = lambda: [_naive_open(one) for one in theirs]
    return sealing, opening


def _kept_loops(messages: Sequence[bytes]) -> tuple[Callable[[], object], Callable[[], object]]:
    """One key for all messages: it shows what the cipher and the bytes cost a loop in Python."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher, aad, header = AESGCM(os.urandom(32)), os.urandom(20), layout.build_header(MIB)

    def seal() -> list[bytes]:
        sealed = []
        for message in messages:
            nonce = os.urandom(layout.NONCE_SIZE)
            sealed.append(header + nonce + cipher.encrypt(nonce, message, aad))
        return sealed

    theirs = seal()
    return seal, lambda: [cipher.decrypt(one[8:20], one[20:], aad) for one in theirs]


def _open_each(sealed: Sequence[ags1.Sealed]) -> list[bytes]:
    return [ags1.decrypt(data, km) for data, km in sealed]


def _check(text: Any, message: bytes) -> None:
    if bytes(text) != message:
        raise RuntimeError("the message did not come back")
