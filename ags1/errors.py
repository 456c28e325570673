"""The exceptions that callers of ags1 can act on.

There is one class for each failure that has its own remedy. An I/O error (a missing file, a full
disk) is the builtin ``OSError`` with its ``filename``. A class that means the same as a builtin is
a subclass of it. This module imports nothing, so that every floor may raise from it.
"""

from __future__ import annotations


class Ags1Error(Exception):
    """The base class of all exceptions of ags1.

    ``file`` is the name of the file concerned. ``stored_file`` is where it is, if a table that was
    moved or copied names it by its former location. ``block`` is the number of the block, and
    ``offset`` the position in the encrypted file (bytes) where that block begins. ``index`` is the
    number of the message if the call had many. ``parameter`` is the name of the parameter, of the
    call in question, that the failure is about. Each of them is None if it is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        block: int | None = None,
        offset: int | None = None,
        parameter: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.block = block
        self.offset = offset
        self.parameter = parameter
        self.index: int | None = None
        self.stored_file: str | None = None

    def __str__(self) -> str:
        text = self.message if self.index is None else f"message {self.index}: {self.message}"
        text = text if self.parameter is None else f"{text} (see the parameter {self.parameter})"
        if self.file is None:
            return text
        stored = "" if self.stored_file is None else f" (which is {self.stored_file} now)"
        return f"{self.file}{stored}: {text}"

    def __reduce__(self) -> tuple[object, ...]:
        # Worker processes (multiprocessing, Spark) pickle exceptions. Attributes that others have
        # added are not pickled, because they may be secret.
        ours = ("file", "block", "offset", "parameter", "index", "stored_file")
        return type(self), (self.message,), {name: getattr(self, name) for name in ours}


class ArgumentError(Ags1Error, ValueError):
    """An argument has a value that it cannot have, on its own or beside the others."""


class FormatError(Ags1Error, ValueError):
    """The file is not an AGS1 file: its header or its length is impossible, or bytes follow the
    end. Also raised for a malformed Avro file."""


class TruncatedError(Ags1Error, EOFError):
    """The file is shorter than its trusted length."""


class AuthenticationError(Ags1Error):
    """A GCM tag does not match: the key or AAD prefix is wrong, or the data was changed."""


class MissingFileLengthError(Ags1Error, ValueError):
    """The key metadata has no file length, and the caller did not accept the file's own size."""


class KeyMetadataError(Ags1Error, ValueError):
    """The key metadata is malformed, or a key has a size that AES does not have."""


class NoKeyError(KeyMetadataError):
    """None of the keys that were found belongs to the file: the file was replaced, moved or
    restored, or its key was lost. It is not known whether somebody changed it."""


class KeyReuseError(Ags1Error, ValueError):
    """The call could encrypt two contents under one key: the key was used before, the process was
    forked, or GCM's limit is reached."""


class KmsError(Ags1Error):
    """A master key could not be used."""


class KmsConfigurationError(KmsError, ValueError):
    """A property of the KMS client is missing, wrong or contradicts another one, or the client's
    library is not installed."""


class KmsKeyDisabledError(KmsError):
    """The KMS has the key, but it is disabled or about to be deleted."""


class KmsKeyNotFoundError(KmsError, LookupError):
    """The KMS has no key of that name."""


class KmsAccessDeniedError(KmsError, PermissionError):
    """The KMS refused the caller."""


class KmsUnavailableError(KmsError, ConnectionError):
    """The KMS could not be reached or did not answer in time."""


# If the KMS raises one of these for one file, it does so for every other file, too.
KMS_UNUSABLE = (KmsUnavailableError, KmsAccessDeniedError, KmsConfigurationError)


class KmsUnwrapError(KmsError):
    """The wrapped key cannot be unwrapped: another master key wrapped it, or it was changed."""


class MetadataIntegrityError(Ags1Error, ValueError):
    """A table's metadata is not what a trusted source says, or its parts contradict each other."""


class NotEncryptedError(MetadataIntegrityError):
    """A table, or a file of an encrypted table, is not encrypted although it has to be."""


class UnsupportedTypeError(Ags1Error, NotImplementedError):
    """A column has a type that this version does not read or write, for example one of a later
    version of the table format."""


class FileWarning(UserWarning, RuntimeWarning):
    """Something about a file needs a look: its owner changed, its folder could not be synced, or
    a temporary file could not be removed."""
