"""Keys as Iceberg keeps them: the envelope of wrapped keys, and the sidecar of a loose file.

Bytes, dicts and a KMS client handed in; knows nothing of tables or the command line.
"""

from .cache import KekCache
from .envelope import (
    EncryptedKey,
    KeyEncryptionKey,
    encryption_keys_to_dicts,
    parse_encryption_keys,
)
from .keychain import Keychain
from .manager import EncryptionManager
from .sidecar import Sidecar, read_sidecar, sidecar_path, write_sidecar

__all__ = [
    "EncryptedKey",
    "EncryptionManager",
    "KekCache",
    "KeyEncryptionKey",
    "Keychain",
    "Sidecar",
    "encryption_keys_to_dicts",
    "parse_encryption_keys",
    "read_sidecar",
    "sidecar_path",
    "write_sidecar",
]
