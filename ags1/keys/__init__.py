"""Keys as Iceberg keeps them: the envelope of wrapped keys, and the sidecar of a loose file.

Bytes, dicts and a KMS client handed in; knows nothing of tables or the command line.
"""

from .envelope import EncryptedKey, KeyEncryptionKey
from .keychain import Keychain
from .sidecar import Sidecar, read_sidecar, sidecar_path, write_sidecar

__all__ = [
    "EncryptedKey",
    "KeyEncryptionKey",
    "Keychain",
    "Sidecar",
    "read_sidecar",
    "sidecar_path",
    "write_sidecar",
]
