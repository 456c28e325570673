"""Read and write encrypted files in Apache Iceberg's AES-GCM stream format (AGS1), fast.

>>> sealed, km = ags1.encrypt(b"data")
>>> ags1.decrypt(sealed, km)
b'data'
"""

from .bulk import decrypt_file, encrypt_file, verify_file
from .errors import (
    Ags1Error,
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

__version__ = "0.1.0"

__all__ = [
    "Ags1Error",
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
