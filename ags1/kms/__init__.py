"""Clients for the services that keep master keys: one protocol, a client for each service, and a
keyring file as the default.

Each client imports its service's library when the client is made. The clients know nothing of the
keys that the master keys wrap.
"""

from .client import GeneratedKey, KmsClient
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
    "create_key",
    "default_keyring_path",
    "from_properties",
    "kms_types",
    "remove_passphrase",
    "set_passphrase",
]
