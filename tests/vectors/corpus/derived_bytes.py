"""What the generators share: bytes that depend on a name alone, sealing, and the classes of error.

Shares no code with ags1 or with spec.py.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FORMAT, TRUNCATED, AUTHENTICATION = "FormatError", "TruncatedError", "AuthenticationError"
KEY_METADATA, UNWRAP = "KeyMetadataError", "KmsUnwrapError"


def derived(name: str, size: int) -> bytes:
    """Return ``size`` bytes that depend on ``name`` alone."""
    return hashlib.shake_256(f"ags1 corpus/{name}".encode()).digest(size)


def sealed(nonce_name: str, key: bytes, data: bytes, aad: bytes = b"") -> bytes:
    """Return ``nonce | ciphertext | tag``."""
    nonce = derived(nonce_name, 12)
    return nonce + AESGCM(key).encrypt(nonce, data, aad)
