"""Read and write encrypted files in Apache Iceberg's AES-GCM stream format (AGS1), fast.

>>> sealed, km = ags1.encrypt(b"data")
>>> ags1.decrypt(sealed, km)
b'data'

Each package imports only from the packages below it::

    cli                the command
    spark              jobs and data sources for PySpark
    files  iceberg     files with wrapped keys, for fsspec, pyarrow and jobs; tables
    columns  keys      Avro and Arrow layouts; wrapped keys
    kms                master keys
    engine             the format: streams, whole files, messages
    host               what the operating system offers

``errors``, ``hazmat``, ``layout``, ``arrow``, ``filesystem``, ``polars`` and ``duckdb`` are public
names beside them.

A name is loaded when it is first used (PEP 562), so that a command starts quickly, and hears Ctrl-C
from its first moment.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own takes a moment to import
if TYPE_CHECKING:
    from .engine.bulk import decrypt_file, encrypt_file, verify_file
    from .engine.key_metadata import KeyMetadata
    from .engine.oneshot import (
        Sealed,
        decrypt,
        decrypt_into,
        decrypt_many,
        encrypt,
        encrypt_into,
        encrypt_many,
        new_buffer,
    )
    from .engine.reader import Reader
    from .engine.stream import open
    from .engine.writer import Writer
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
    "new_buffer",
    "open",
    "verify_file",
]

# The module that has each name. Names that are not here are in ``errors``.
_HOMES = {
    "KeyMetadata": "engine.key_metadata",
    "Reader": "engine.reader",
    "Sealed": "engine.oneshot",
    "Writer": "engine.writer",
    "decrypt": "engine.oneshot",
    "decrypt_file": "engine.bulk",
    "decrypt_into": "engine.oneshot",
    "decrypt_many": "engine.oneshot",
    "encrypt": "engine.oneshot",
    "encrypt_file": "engine.bulk",
    "encrypt_into": "engine.oneshot",
    "encrypt_many": "engine.oneshot",
    "new_buffer": "engine.oneshot",
    "open": "engine.stream",
    "verify_file": "engine.bulk",
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
