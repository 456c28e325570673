"""Where master keys live: one protocol, a client for each service, and an embedded default.

Each client imports its service's library when it is made. Knows nothing of the keys that the master
keys wrap.
"""

from .client import GeneratedKey, KmsClient, Rewrapper
from .local import (
    KeyInfo,
    KeyVersion,
    LocalKms,
    create_key,
    default_keyring_path,
    remove_passphrase,
    set_passphrase,
)
from .registry import from_properties, kms_types

__all__ = [
    "GeneratedKey",
    "KeyInfo",
    "KeyVersion",
    "KmsClient",
    "LocalKms",
    "Rewrapper",
    "create_key",
    "default_keyring_path",
    "from_properties",
    "kms_types",
    "remove_passphrase",
    "set_passphrase",
]
