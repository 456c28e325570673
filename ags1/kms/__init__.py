"""Where master keys live: the client protocol and its embedded default, a keyring file.

Knows nothing of the keys that the master keys wrap.
"""

from .client import GeneratedKey, KmsClient
from .local import LocalKms, create_key, default_keyring_path

__all__ = ["GeneratedKey", "KmsClient", "LocalKms", "create_key", "default_keyring_path"]
