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
"""

from .bulk import decrypt_file, encrypt_file, verify_file
from .errors import (
    Ags1Error,
    ArgumentError,
    AuthenticationError,
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
