"""Keys as Iceberg stores them: the wrapped keys of a table, and the sidecar of a single file.

What wraps what, and the module for it::

    master key       in the KMS                                         ags1.kms
      wraps KEK      an entry of "encryption-keys"                      envelope; cache
        wraps key metadata of a manifest list: another entry            manager
        wraps key metadata of a single file:   an entry in FILE.keys    sidecar, keychain

``manager`` has the keys of a table, and ``keychain`` those of a run over single files. The
functions take bytes, dicts and a KMS client. They know nothing of tables or the command line.
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
