"""Messages of 4 KiB, sealed and opened again: what a call costs when AES costs nearly nothing."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator

import ags1
from ags1 import hazmat
from bench.contenders import ENGINE, LIMIT
from bench.limits import EvpLoop, LimitError
from bench.material import make_material
from bench.peers.pyca import naive_decrypt, naive_encrypt
from bench.rounds import Contest, Contestant, compete, repeated, timed
from bench.settings import Settings

SUBJECT = "messages"
SIZE = 4096
NAIVE = "cryptography, naive loop"
NAIVE_OWN_KEY = "cryptography, naive loop, given key"
KEPT_CIPHER = f"{ENGINE}, kept BlockCipher"
KEPT_AESGCM = "cryptography, kept AESGCM"
FRESH = "fresh keys, encrypt + decrypt"
KEPT = "kept key, encrypt + decrypt"


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    count = settings.messages
    has_peer = "naive" in settings.peers and importlib.util.find_spec("cryptography") is not None
    message = os.urandom(SIZE)
    fresh: dict[str, Callable[[], object]] = {ENGINE: lambda: _fresh(message)}
    kept = _kept(message)
    if has_peer:
        fresh[NAIVE] = lambda: _naive_fresh(message)
        kept |= _naive_kept(message)
    yield compete(SUBJECT, FRESH, _contestants(fresh, count), settings.rounds)
    contestants = _contestants(kept, count)
    material = make_material(SIZE)
    try:
        loop = EvpLoop(material)
    except LimitError as error:
        skipped[LIMIT] = str(error)
    else:
        contestants.append(Contestant(LIMIT, timed(lambda: loop.messages(count)), count=count))
    yield compete(SUBJECT, KEPT, contestants, settings.rounds)


def _contestants(works: dict[str, Callable[[], object]], count: int) -> list[Contestant]:
    return [Contestant(name, repeated(work, count), count=count) for name, work in works.items()]


def _fresh(message: bytes) -> bytes:
    sealed, km = ags1.encrypt(message)
    return ags1.decrypt(sealed, km)


def _naive_fresh(message: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key, aad_prefix = AESGCM.generate_key(256), os.urandom(16)
    return naive_decrypt(naive_encrypt(message, key, aad_prefix), key, aad_prefix)


def _kept(message: bytes) -> dict[str, Callable[[], object]]:
    """A kept ``BlockCipher``, into kept buffers."""
    cipher = hazmat.BlockCipher(os.urandom(32), os.urandom(16))
    slot, text = bytearray(SIZE + 28), bytearray(SIZE)

    def work() -> None:
        cipher.seal_blocks(message, slot)
        cipher.open_blocks(slot, text)

    work()
    if text != message:
        raise RuntimeError("the message did not come back")
    return {KEPT_CIPHER: work}


def _naive_kept(message: bytes) -> dict[str, Callable[[], object]]:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key, aad_prefix = os.urandom(32), os.urandom(16)
    cipher = AESGCM(key)
    aad = aad_prefix + bytes(4)

    def naive() -> bytes:
        return naive_decrypt(naive_encrypt(message, key, aad_prefix), key, aad_prefix)

    def bare() -> bytes:
        nonce = os.urandom(12)
        return cipher.decrypt(nonce, cipher.encrypt(nonce, message, aad), aad)

    return {NAIVE_OWN_KEY: naive, KEPT_AESGCM: bare}
