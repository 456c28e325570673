"""The keys of a run: one new KEK for all files that it encrypts, and the KEKs of the sidecars that
it opens, each unwrapped once."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any

from ..engine import layout
from ..engine.key_metadata import KeyMetadata
from ..engine.source import open_source
from ..engine.stream import open as open_stream
from ..errors import (
    Ags1Error,
    AuthenticationError,
    KeyMetadataError,
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsError,
    KmsUnavailableError,
    NoKeyError,
    TruncatedError,
)
from ..host.process import OncePerProcess
from ..kms.client import KmsClient, accepts_foreign_keys
from .cache import KekCache
from .envelope import EncryptedKey, KeyEncryptionKey, new_key_id
from .sidecar import COPY_OF, START_SIZE, Sidecar, first_nonce, read_sidecar

FILE_KEY_SIZE = 32


class Keychain:
    """Makes and opens sidecars with the master keys of a KMS.

    ``master_key_id`` is the master key for new sidecars. A sidecar itself says which master key
    wrapped it, and may come from a place where others can write. ``trusted_key_ids`` are therefore
    the master keys to unwrap with, whatever the sidecar says; None stands for ``default_trust``:
    all keys of a KMS that has only its owner's, and otherwise ``master_key_id`` alone.
    """

    def __init__(
        self,
        kms: KmsClient,
        master_key_id: str = "default",
        *,
        trusted_key_ids: Collection[str] | None = None,
    ) -> None:
        self._kms = kms
        if trusted_key_ids is None:
            trusted_key_ids = default_trust(kms, {master_key_id})
        self._trusted_key_ids = trusted_key_ids
        self._keks = KekCache(kms)
        # The last ones: the sidecars of a folder mostly share a KEK. A copy of an entry may have
        # another KEK than the entry, so the one that was unwrapped belongs to what is known.
        self._rewrapped: deque[tuple[EncryptedKey, EncryptedKey, KmsClient, EncryptedKey]] = deque(
            maxlen=16
        )
        # Of a KEK that several master keys wrap, the one that opened the last file comes first.
        self._opened_by: Collection[str] = trusted_key_ids or ()
        self._new_kek = OncePerProcess(
            lambda: KeyEncryptionKey.generate(kms, master_key_id, key_size=FILE_KEY_SIZE)
        )

    def prepare(self) -> None:
        """Make the KEK for new sidecars; one KMS call. ``seal`` does it too. Call this before long
        work, to learn at once if the KMS cannot be used. Raises KmsError."""
        self._new_kek.get()

    def seal(self, key_metadata: KeyMetadata, file: Any = None) -> Sidecar:
        """Return a sidecar that holds ``key_metadata``. It names ``file``, the encrypted file as a
        path or a file object, by its content. Raises KmsError, OSError."""
        nonce = None if file is None else _nonce_of(file)
        return Sidecar.seal(key_metadata, self._new_kek.get(), nonce)

    def open(self, sidecar_file: str, encrypted_file: str | os.PathLike[str] | None) -> KeyMetadata:
        """Return the key metadata of ``encrypted_file`` (None for a pipe) from its sidecar, as
        ``key_of_file`` does. Raises KeyMetadataError, AuthenticationError and KmsError."""
        sidecar = find_sidecar(sidecar_file)
        with _errors_about(sidecar_file):
            return self.key_of(sidecar, encrypted_file)

    def key_of(self, sidecar: Sidecar, encrypted_file: Any = None) -> KeyMetadata:
        """Return the key metadata that ``sidecar`` has for ``encrypted_file``, as ``key_of_file``
        does; without a file, the only or newest one. Raises KeyMetadataError, AuthenticationError
        and KmsError."""
        return key_of_file(sidecar, self._unwrap, encrypted_file, self._opened_by)

    def rewrap(
        self, sidecar_file: str, master_key_id: str, kms: KmsClient | None = None
    ) -> Sidecar:
        """Return the sidecar with its KEKs wrapped under another master key, which may be another
        KMS's, or under the newest version of the same key. Copies of KEKs under further master keys
        stay. Nothing is written. If sidecars share a KEK, the KMS is asked once for all of them.
        Raises KmsError, KeyMetadataError, and AuthenticationError if a file's key in the sidecar
        does not open."""
        sidecar = self._opened(sidecar_file)
        with _errors_about(sidecar_file):
            own = sidecar.own_kek_entries
            return sidecar.with_entries(
                [self._rewrap(sidecar, entry, entry, master_key_id, kms) for entry in own]
            )

    def add_key(
        self, sidecar_file: str, master_key_id: str, kms: KmsClient | None = None
    ) -> Sidecar:
        """Return the sidecar with copies of its KEKs under one more master key, so that this key
        opens the files too. The arguments and the errors are as in ``rewrap``."""
        sidecar = self._opened(sidecar_file)
        with _errors_about(sidecar_file):
            copies = []
            for entry in sidecar.own_kek_entries:
                form = EncryptedKey(new_key_id(), b"", None, {COPY_OF: entry.key_id})
                copies.append(self._rewrap(sidecar, entry, form, master_key_id, kms))
            return sidecar.with_copies(copies)

    def _opened(self, sidecar_file: str) -> Sidecar:
        sidecar = find_sidecar(sidecar_file)
        with _errors_about(sidecar_file):
            for wrapped in sidecar.file_keys:
                sidecar.open(self._unwrap, wrapped, self._opened_by)
        return sidecar

    def _rewrap(
        self,
        sidecar: Sidecar,
        entry: EncryptedKey,
        form: EncryptedKey,
        master_key_id: str,
        kms: KmsClient | None,
    ) -> EncryptedKey:
        """Return the KEK of ``entry`` wrapped under another master key, with the ID and properties
        of ``form``."""
        target = self._kms if kms is None else kms
        is_copy = COPY_OF in form.properties
        kek = sidecar.unwrap_kek(self._unwrap, entry.key_id, self._opened_by)
        for known, opened, by, made in self._rewrapped:
            is_same = by is target and (known, opened) == (entry, kek.entry)
            is_same = is_same and made.encrypted_by_id == master_key_id
            if is_same and is_copy == (COPY_OF in made.properties):
                return made
        wrapped = kek.rewrap(target, master_key_id, form).entry
        self._rewrapped.append((entry, kek.entry, target, wrapped))
        return wrapped

    def check_trust(self, entry: EncryptedKey) -> None:
        """Raise KeyMetadataError if the master key that ``entry`` names is not a trusted one. Check
        this before you wrap a key under that name."""
        check_trust(entry, self._trusted_key_ids)

    def _unwrap(self, entry: EncryptedKey) -> KeyEncryptionKey:
        kek = unwrap_trusted(self._keks, entry, self._trusted_key_ids)
        if self._trusted_key_ids is None:
            self._opened_by = (str(entry.encrypted_by_id),)
        return kek


def default_trust(kms: KmsClient, key_ids: Collection[str]) -> frozenset[str] | None:
    """Return the master keys to accept where nobody has named any: ``key_ids`` if a key ID may name
    another user's key (``KmsClient.accepts_foreign_keys``); None, which accepts every key of the
    KMS, if it has only its owner's."""
    return frozenset(key_ids) if accepts_foreign_keys(kms) else None


def unwrap_trusted(
    keks: KekCache, entry: EncryptedKey, trusted_key_ids: Collection[str] | None
) -> KeyEncryptionKey:
    """Return an entry's KEK. If ``trusted_key_ids`` is None, the key that the entry names unwraps
    it. Otherwise only the trusted ones are tried: first the one that the entry names, if it is
    among them, and then the others, because one key can have several names (an alias, an ARN, a
    replica's ARN), and one name can have had several keys. Raises KmsError, and KeyMetadataError if
    the entry names another key and no trusted one unwraps it."""
    if trusted_key_ids is None:
        return keks.unwrap(entry)
    named = entry.encrypted_by_id
    key_ids = sorted(trusted_key_ids, key=lambda key_id: (key_id != named, key_id))
    for key_id in key_ids:
        if cached := keks.peek(entry, key_id):
            return cached
    failures: list[KmsError] = []
    for key_id in key_ids:
        try:
            return keks.unwrap(entry, key_id)
        except (KmsUnavailableError, KmsConfigurationError):
            raise
        except KmsError as error:
            failures.append(error)
    try:
        check_trust(entry, trusted_key_ids)
    except KeyMetadataError as error:
        if not failures or not all(isinstance(one, KmsAccessDeniedError) for one in failures):
            raise
        # The credentials may be the cause.
        raise KmsAccessDeniedError(f"{failures[0].message}; {error.message}") from None
    if len(failures) == 1:
        raise failures[0]
    others = ", ".join(map(repr, key_ids[1:]))
    raise type(failures[0])(f"{failures[0].message}; {others} did not unwrap it either")


def check_trust(entry: EncryptedKey, trusted_key_ids: Collection[str] | None) -> None:
    """Raise KeyMetadataError if the master key that ``entry`` names is not one to accept."""
    if trusted_key_ids is not None and entry.encrypted_by_id not in trusted_key_ids:
        raise KeyMetadataError(
            f"the wrapped key names the master key {entry.encrypted_by_id!r}, which is not among "
            "those to trust",
            parameter="trusted_key_ids",
        )


def key_of_file(
    sidecar: Sidecar,
    unwrap_kek: Callable[[EncryptedKey], KeyEncryptionKey],
    file: Any,
    prefer: Collection[str] = (),
) -> KeyMetadata:
    """Return the key metadata of an encrypted file: a path, a seekable file object at its
    beginning, an object with ``pread``, or None for the newest key. The nonce of the file's first
    block says which key is the file's. Keys that earlier releases wrote do not have it: if there
    are several, the first block has to open, and if none fits, this returns the newest one.
    ``prefer`` is as in ``Sidecar.open``. Raises NoKeyError if the file is another one."""
    nonce = None if file is None else _nonce_of(file)
    keys = sidecar.file_keys if nonce is None else sidecar.keys_for(nonce)
    if not keys and nonce:
        raise NoKeyError(
            "none of its keys is that of the file: the file was replaced, moved or put back. Put "
            "the file and its own sidecar side by side"
        )
    newest, *older = keys or sidecar.file_keys
    key_metadata = sidecar.open(unwrap_kek, newest, prefer)
    if file is None or not older or _opens(file, key_metadata):
        return key_metadata
    candidates = (sidecar.open(unwrap_kek, wrapped, prefer) for wrapped in older)
    return next((other for other in candidates if _opens(file, other)), key_metadata)


def _nonce_of(file: Any) -> bytes | None:
    """Return the first nonce of an encrypted file, as ``first_nonce`` does."""
    source, _ = open_source(file)
    try:
        for size in (START_SIZE, layout.HEADER_SIZE) if source.random_access else ():
            with contextlib.suppress(TruncatedError):
                return first_nonce(bytes(source.fetch(0, size, memoryview(bytearray(size)))))
        return None
    finally:
        source.close()
        if source.random_access and hasattr(file, "seek"):
            file.seek(0)


@contextlib.contextmanager
def _errors_about(sidecar_file: str) -> Iterator[None]:
    try:
        yield
    except (AuthenticationError, KeyMetadataError, KmsError) as error:
        if error.file is None:
            error.file = sidecar_file
        raise


def find_sidecar(path: str) -> Sidecar:
    """Read a sidecar. Raises KeyMetadataError, for a missing or unreadable file too."""
    try:
        return read_sidecar(path)
    except OSError as error:
        if error.errno == errno.ENOENT:
            message = "there is no such sidecar, and only it has the file's key"
        else:
            message = f"cannot read this sidecar: {error.strerror}"
        raise KeyMetadataError(message, file=path) from None


def _opens(file: Any, key_metadata: KeyMetadata) -> bool:
    """Whether ``km`` fits the file: its length, and the tag of its first block."""
    try:
        with open_stream(file, "rb", key_metadata) as stream:
            stream.read(1)
    except Ags1Error:
        return False
    finally:
        if hasattr(file, "seek"):
            file.seek(0)
    return True
