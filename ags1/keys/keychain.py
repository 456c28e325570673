"""The keys of a run: one KEK for all that is encrypted, and each sidecar's keys unwrapped once."""

from __future__ import annotations

import errno

from ..errors import Ags1Error, AuthenticationError, KeyMetadataError
from ..key_metadata import KeyMetadata
from ..stream import open as open_stream
from .envelope import EncryptedKey, KeyEncryptionKey, KeyWrapper
from .sidecar import Sidecar, read_sidecar

FILE_KEY_SIZE = 32
# Unwrapped KEKs kept: a folder's files mostly share one.
_KEKS_KEPT = 100


class Keychain:
    """Seals and opens sidecars with the master keys of a KMS."""

    def __init__(self, kms: KeyWrapper, master_key_id: str = "default") -> None:
        self._kms = kms
        self._master_key_id = master_key_id
        self._new_kek: KeyEncryptionKey | None = None
        self._unwrapped: dict[tuple[str | None, bytes], KeyEncryptionKey] = {}

    def prepare(self) -> None:
        """Make the KEK for new sidecars; one KMS call. Raises KmsError. ``seal`` does it otherwise;
        whoever has long work to do before would rather know at once."""
        self._new_kek = KeyEncryptionKey.generate(
            self._kms, self._master_key_id, key_size=FILE_KEY_SIZE
        )

    def seal(self, km: KeyMetadata) -> Sidecar:
        """Return a sidecar that holds ``km``. Raises KmsError."""
        if self._new_kek is None:
            self.prepare()
        assert self._new_kek is not None
        return Sidecar.seal(km, self._new_kek)

    def open(self, sidecar_file: str, encrypted_file: str | None) -> KeyMetadata:
        """Return the key metadata of ``encrypted_file`` from its sidecar.

        A sidecar has more than one file key only when the replacement of a file was cut short; the
        file tells which is its own (a pipe, None, cannot be asked: the newest is taken).
        """
        sidecar = find_sidecar(sidecar_file)
        candidates = sidecar.file_keys
        try:
            first = sidecar.open(self._unwrap, candidates[0])
            if encrypted_file is None or len(candidates) == 1 or _opens(encrypted_file, first):
                return first
            for wrapped in candidates[1:]:
                km = sidecar.open(self._unwrap, wrapped)
                if _opens(encrypted_file, km):
                    return km
        except AuthenticationError as error:
            raise AuthenticationError(error.message, file=sidecar_file) from None
        except KeyMetadataError as error:
            raise KeyMetadataError(error.message, file=sidecar_file) from None
        return first

    def _unwrap(self, entry: EncryptedKey) -> KeyEncryptionKey:
        wanted = (entry.encrypted_by_id, entry.encrypted_key_metadata)
        kek = self._unwrapped.get(wanted)
        if kek is None or kek.entry != entry:
            kek = KeyEncryptionKey.unwrap(self._kms, entry)
            while len(self._unwrapped) >= _KEKS_KEPT:
                del self._unwrapped[next(iter(self._unwrapped))]
            self._unwrapped[wanted] = kek
        return kek


def find_sidecar(path: str) -> Sidecar:
    """Read a sidecar. Raises KeyMetadataError whatever is wrong: what is missing is the keys."""
    try:
        return read_sidecar(path)
    except OSError as error:
        if error.errno == errno.ENOENT:
            message = "there is no such sidecar, and only it has the file's key (see --sidecar)"
        else:
            message = f"cannot read this sidecar: {error.strerror}"
        raise KeyMetadataError(message, file=path) from None


def _opens(encrypted_file: str, km: KeyMetadata) -> bool:
    """Whether ``km`` fits the file: its length, and the tag of its first block."""
    try:
        with open_stream(encrypted_file, "rb", km) as file:
            file.read(1)
    except Ags1Error:
        return False
    return True
