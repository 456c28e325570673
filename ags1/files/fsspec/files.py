"""The open files of ``Ags1FileSystem``: the streams of ``ags1.open`` as fsspec expects them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...engine.reader import Reader
from ...engine.writer import Writer
from ...keys.keychain import FILE_KEY_SIZE
from ..paths import SUFFIX

if TYPE_CHECKING:
    from ...host.atomic import StagedFile


class _OfFileSystem:
    """``stored`` is the path of the encrypted file. ``path`` and ``name`` are the plaintext's, as
    in listings: readers find a compression by its suffix."""

    __slots__ = ()

    fs: Any
    stored: str

    @property
    def path(self) -> str:
        return self.stored.removesuffix(SUFFIX)

    name = path


class EncryptedInput(_OfFileSystem, Reader):
    """A file that is open for reading. A pickle has the file system and the path, and no key. It
    opens the file again."""

    __slots__ = ("fs", "stored")

    @property
    def size(self) -> int:
        """The plaintext's size in bytes."""
        return self.plaintext_size

    def __reduce_ex__(self, protocol: object) -> Any:
        return _reopen, (self.fs, self.stored, self.tell())


def _reopen(fs: Any, path: str, position: int) -> EncryptedInput:
    file = fs.open(path, "rb")
    file.seek(position)
    return file  # type: ignore[no-any-return]


class EncryptedOutput(_OfFileSystem, Writer):
    """A file that is open for writing. ``close`` gives it its name. Without ``autocommit``, in a
    transaction, ``commit`` does."""

    __slots__ = ("_autocommit", "_overwrite", "_staged", "fs", "stored")

    def __init__(
        self, fs: Any, stored: str, staged: StagedFile, *, overwrite: bool, autocommit: bool
    ) -> None:
        self.fs = fs
        self.stored = stored
        self._staged: StagedFile | None = staged
        self._overwrite = overwrite
        self._autocommit = autocommit
        super().__init__(
            staged, key_size=FILE_KEY_SIZE, threads=fs.threads, exclusive=not overwrite
        )

    def close(self) -> None:
        if self.closed:
            return
        try:
            super().close()
            if self._autocommit:
                self.commit()
        except BaseException:
            self.discard()
            raise

    def commit(self) -> None:
        """Give the file its name and its sidecar. Does nothing if it has them."""
        if not self.closed:
            super().close()
        if self._staged is None:
            return
        try:
            self.fs.publish(self._staged, self.stored, self.key_metadata, overwrite=self._overwrite)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove what was written. Does nothing after ``commit``."""
        if not self.closed:
            super().abort()
        staged, self._staged = self._staged, None
        if staged is not None:
            staged.discard()

    def abort(self) -> None:
        self.discard()
