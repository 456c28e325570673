"""The exceptions that callers of ags1 can act on.

One class per failure with its own remedy. Real I/O trouble (a missing file, a full disk) stays the
builtin ``OSError`` with its ``filename``. A class that means what a builtin means subclasses it.
This module imports nothing, so that every floor may raise from it.
"""

from __future__ import annotations

__all__ = [
    "Ags1Error",
    "AuthenticationError",
    "FormatError",
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
    "TruncatedError",
]


class Ags1Error(Exception):
    """Base of all of them.

    ``file`` is the name of the file concerned, ``block`` the number of the block, ``offset`` the
    position in the encrypted file (bytes) where the block begins, ``index`` the number of the
    message where there are many. Each is None where unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        block: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.block = block
        self.offset = offset
        self.index: int | None = None

    def __str__(self) -> str:
        text = self.message if self.index is None else f"message {self.index}: {self.message}"
        return text if self.file is None else f"{self.file}: {text}"

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments are lost by Exception's own pickling, and worker processes
        # (multiprocessing, Spark) send exceptions that way.
        places = (self.file, self.block, self.offset, self.index)
        return _rebuild, (type(self), self.message, *places)


def _rebuild(
    kind: type[Ags1Error],
    message: str,
    file: str | None,
    block: int | None,
    offset: int | None,
    index: int | None,
) -> Ags1Error:
    error = kind(message, file=file, block=block, offset=offset)
    error.index = index
    return error


class FormatError(Ags1Error, ValueError):
    """Not an AGS1 file, a bad header, an impossible length, or bytes after the end; or an Avro file
    inside that is malformed."""


class TruncatedError(Ags1Error, EOFError):
    """The file is shorter than its trusted length."""


class AuthenticationError(Ags1Error):
    """A GCM tag does not verify: wrong key or AAD prefix, or the data was changed."""


class MissingFileLengthError(Ags1Error, ValueError):
    """The key metadata has no file length and the caller did not accept the file system's."""


class KeyMetadataError(Ags1Error, ValueError):
    """Bytes that are not a StandardKeyMetadata, or a key of a size that AES does not have."""


class KeyReuseError(Ags1Error, ValueError):
    """Going on would seal two contents under one key: a used key, a fork, or GCM's limit."""


class KmsError(Ags1Error):
    """A master key could not be used."""


class KmsConfigurationError(KmsError, ValueError):
    """The KMS client's properties are missing, wrong or contradictory, or its library is."""


class KmsKeyDisabledError(KmsError):
    """The KMS has the key, but it is disabled or about to be deleted."""


class KmsKeyNotFoundError(KmsError, LookupError):
    """The KMS has no key of that name."""


class KmsAccessDeniedError(KmsError, PermissionError):
    """The KMS refused the caller."""


class KmsUnavailableError(KmsError, ConnectionError):
    """The KMS could not be reached or did not answer in time."""


class KmsUnwrapError(KmsError):
    """The wrapped key does not unwrap: another master key wrapped it, or it was changed."""


class MetadataIntegrityError(Ags1Error, ValueError):
    """A table's metadata is not what its trusted place says, or its parts don't fit each other."""


class NotEncryptedError(MetadataIntegrityError):
    """A file of an encrypted table that has to be encrypted is not: a downgrade."""
