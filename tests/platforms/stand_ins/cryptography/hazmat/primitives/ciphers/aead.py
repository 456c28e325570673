"""``AESGCM`` on the libcrypto of the machine, which is not the one that ags1 has inside."""

from __future__ import annotations

import ctypes
from typing import Any

from cryptography.exceptions import InvalidTag

SET_IV_SIZE, GET_TAG, SET_TAG = 0x9, 0x10, 0x11
TAG_SIZE = 16

_crypto = ctypes.CDLL("libcrypto.so.3")
_pointer, _bytes, _int = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
for _name in ("EVP_CIPHER_CTX_new", *(f"EVP_aes_{bits}_gcm" for bits in (128, 192, 256))):
    getattr(_crypto, _name).restype = _pointer
_crypto.EVP_CipherInit_ex.argtypes = [_pointer, _pointer, _pointer, _bytes, _bytes, _int]
_crypto.EVP_CipherUpdate.argtypes = [_pointer, _pointer, _pointer, _bytes, _int]
_crypto.EVP_CipherFinal_ex.argtypes = [_pointer, _pointer, _pointer]
_crypto.EVP_CIPHER_CTX_ctrl.argtypes = [_pointer, _int, _int, _pointer]
_crypto.EVP_CIPHER_CTX_free.argtypes = [_pointer]


class AESGCM:
    def __init__(self, key: Any) -> None:
        self._key = bytes(key)

    def encrypt(self, nonce: Any, data: Any, aad: Any) -> bytes:
        text, tag = self._run(True, bytes(nonce), bytes(data), bytes(aad or b""), bytes(TAG_SIZE))
        return text + tag

    def decrypt(self, nonce: Any, data: Any, aad: Any) -> bytes:
        sealed = bytes(data)
        if len(sealed) < TAG_SIZE:
            raise InvalidTag
        text, tag = sealed[:-TAG_SIZE], sealed[-TAG_SIZE:]
        return self._run(False, bytes(nonce), text, bytes(aad or b""), tag)[0]

    def _run(
        self, encrypts: bool, nonce: bytes, text: bytes, aad: bytes, tag: bytes
    ) -> tuple[bytes, bytes]:
        out = ctypes.create_string_buffer(len(text) + TAG_SIZE)
        tag_buffer = ctypes.create_string_buffer(tag, TAG_SIZE)
        done = ctypes.byref(ctypes.c_int())
        context = _crypto.EVP_CIPHER_CTX_new()
        try:
            cipher = getattr(_crypto, f"EVP_aes_{8 * len(self._key)}_gcm")()
            _crypto.EVP_CipherInit_ex(context, cipher, None, None, None, encrypts)
            _crypto.EVP_CIPHER_CTX_ctrl(context, SET_IV_SIZE, len(nonce), None)
            _crypto.EVP_CipherInit_ex(context, None, None, self._key, nonce, encrypts)
            if aad:
                _crypto.EVP_CipherUpdate(context, None, done, aad, len(aad))
            if text:
                _crypto.EVP_CipherUpdate(context, out, done, text, len(text))
            if not encrypts:
                _crypto.EVP_CIPHER_CTX_ctrl(context, SET_TAG, TAG_SIZE, tag_buffer)
            if _crypto.EVP_CipherFinal_ex(context, out, done) != 1:
                raise InvalidTag
            if encrypts:
                _crypto.EVP_CIPHER_CTX_ctrl(context, GET_TAG, TAG_SIZE, tag_buffer)
            return out.raw[: len(text)], tag_buffer.raw
        finally:
            _crypto.EVP_CIPHER_CTX_free(context)
