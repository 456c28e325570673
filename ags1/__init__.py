"""Read and write encrypted files in Apache Iceberg's AES-GCM stream format (AGS1), fast.

>>> sealed, km = ags1.encrypt(b"data")
>>> ags1.decrypt(sealed, km)
b'data'

The modules of the format, from the users' functions down to libcrypto::

    oneshot: encrypt, decrypt    stream: open                       bulk: encrypt_file, decrypt_file
       |                            |                                  |
       |                         reader       writer                   |
       |                            |            |                     |
       |                         blocks          |                     |
       |                            |            |                     |
       |                         source        sink --> atomic <-------+
       v                            v            v                     v
    _messages, _columns          _stream (small reads and writes)   _pump (file to file)
       |                            |            |                     |
       +----------------------------+--- _gcm ---+---------------------+

All of them use ``layout`` (the format's arithmetic), ``geometry`` (which sizes to trust),
``key_metadata``, ``errors`` and ``threads``. Above the format are ``kms`` (master keys), ``keys``
(wrapped keys), ``iceberg`` (tables), ``spark`` and ``cli``.

A name is loaded when it is first used (PEP 562), so that a command starts quickly, and hears Ctrl-C
from its first moment.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own takes a moment to import
if TYPE_CHECKING:
    from .bulk import decrypt_file, encrypt_file, verify_file
    from .errors import (
        Ags1Error,
        ArgumentError,
        AuthenticationError,
        FileWarning,
        FormatError,
        KeyMetadataError,
        KeyReuseError,
        KmsAccessDeniedError,
        KmsConfigurationError,
        KmsError,
        KmsKeyDisabledError,
        KmsKeyNotFoundError,
        KmsUnavailableError,
        KmsUnwrapError,
        MetadataIntegrityError,
        MissingFileLengthError,
        NoKeyError,
        NotEncryptedError,
        TruncatedError,
        UnsupportedTypeError,
    )
    from .key_metadata import KeyMetadata
    from .oneshot import (
        Sealed,
        decrypt,
        decrypt_into,
        decrypt_many,
        encrypt,
        encrypt_into,
        encrypt_many,
    )
    from .reader import Reader
    from .stream import open
    from .writer import Writer

__version__ = "0.2.0"

__all__ = [
    "Ags1Error",
    "ArgumentError",
    "AuthenticationError",
    "FileWarning",
    "FormatError",
    "KeyMetadata",
    "KeyMetadataError",
    "KeyReuseError",
    "KmsAccessDeniedError",
    "KmsConfigurationError",
    "KmsError",
    "KmsKeyDisabledError",
    "KmsKeyNotFoundError",
    "KmsUnavailableError",
    "KmsUnwrapError",
    "MetadataIntegrityError",
    "MissingFileLengthError",
    "NoKeyError",
    "NotEncryptedError",
    "Reader",
    "Sealed",
    "TruncatedError",
    "UnsupportedTypeError",
    "Writer",
    "decrypt",
    "decrypt_file",
    "decrypt_into",
    "decrypt_many",
    "encrypt",
    "encrypt_file",
    "encrypt_into",
    "encrypt_many",
    "open",
    "verify_file",
]

# The module that has each name. Names that are not here are in ``errors``.
_HOMES = {
    "KeyMetadata": "key_metadata",
    "Reader": "reader",
    "Sealed": "oneshot",
    "Writer": "writer",
    "decrypt": "oneshot",
    "decrypt_file": "bulk",
    "decrypt_into": "oneshot",
    "decrypt_many": "oneshot",
    "encrypt": "oneshot",
    "encrypt_file": "bulk",
    "encrypt_into": "oneshot",
    "encrypt_many": "oneshot",
    "open": "stream",
    "verify_file": "bulk",
}
# Modules that are attributes of ``ags1`` without an import of their own.
_MODULES = ("errors", "hazmat", "keys", "kms", "layout")


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
