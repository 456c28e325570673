"""Clients for the services that keep master keys: one protocol, a client for each service, and a
keyring file as the default. Read in this order::

    client                     the protocol, and what the clients of services share
    aws  azure  gcp  vault     the services
    local, keyring             the keyring file; passphrase protects it
    key_file                   one AES key in a file
    memory                     for tests, like Java's
    registry                   makes the client that properties name
    adapter                    a client that was written for PyIceberg, used as ours
    pyiceberg                  our clients, used as PyIceberg's
    settings                   which properties a run has: options, environment, file
    properties, endpoints      checked values and addresses
    causes                     says why a service cannot be asked
    secret                     keeps keys out of pickles and tracebacks

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
