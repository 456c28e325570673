"""``Ags1FileSystem``: the names, listings and whole files that fsspec asks for.

The file system below has ``NAME.ags1`` and its sidecar ``NAME.ags1.keys``. Listings show ``NAME``
with the plaintext's size. A path may have ``.ags1`` or not. Files without this ending are not
shown, not read and not replaced: no plaintext is taken for an encrypted file. Only a Parquet file
that is encrypted inside is read. A move removes no original if somebody has replaced one meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from glob import has_magic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fsspec import filesystem as make_filesystem
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.implementations.local import LocalFileSystem, trailing_sep
from fsspec.utils import isfilelike, other_paths

from ...engine import layout
from ...engine.key_metadata import KeyMetadata
from ...engine.sink import FileSink
from ...engine.source import open_source
from ...engine.stream import TextWriter
from ...errors import (
    KMS_UNUSABLE,
    Ags1Error,
    AuthenticationError,
    FormatError,
    KeyMetadataError,
    TruncatedError,
)
from ...host.atomic import AtomicFile, already_exists
from ...host.cpu import usable_cpus
from ...host.descriptors import is_stream, open_stream
from ...host.threads import thread_count
from ...keys.sidecar import (
    ENCRYPTED_PARQUET_MAGIC,
    MAX_SIDECAR_SIZE,
    MOST_TRIES,
    START_SIZE,
    Sidecar,
    sidecar_path,
)
from ..paths import SUFFIX
from ..storage.bucket import bucket_below
from ..storage.folder import Folder
from .entries import Info, is_encrypted, is_file, is_same, names_of
from .files import EncryptedInput, EncryptedOutput
from .options import KeyOptions
from .pairs import LocalPairs, Pairs, parse_sidecar, stored_path
from .transfers import ManyFiles, unless_replaced

if TYPE_CHECKING:
    from ...iceberg.formats.parquet_view import PlainParquet

# Bytes that are decrypted at a time when a whole file is.
_CHUNK = 8 << 20


class _Instances(type(ChainedFileSystem)):  # type: ignore[misc]
    """Makes a new file system for each ``key_for``. fsspec returns one that it has if the ``repr``
    of all arguments is the same, and two functions with different keys may have the same."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("key_for") is None:
            return super().__call__(*args, **kwargs)
        made = super().__call__(*args, **{**kwargs, "skip_instance_cache": True})
        # By this, fsspec compares file systems.
        made._fs_token_ = uuid4().hex
        return made


class Ags1FileSystem(ManyFiles, metaclass=_Instances):
    """Encrypted files of another file system, as plaintext: ``ags1::`` in front of a URL.

    The file system below is ``fs``, or the one that ``target_protocol`` and ``target_options``
    describe; by default that of local files. fsspec fills these in for a chained URL, and ``fo``
    with the path. ``options`` are these. They hold no secrets:

    - ``kms``: the type of the KMS: ``local`` (a keyring), ``file``, ``aws``, ``gcp``, ``azure``,
      ``vault``. If no option names a KMS, the environment and the configuration file of each
      process do, as for the command ``ags1``.
    - ``keyring``: the keyring's path.
    - ``key``: the master key for new files.
    - ``trusted_keys``: the master keys that sidecars may name, as a list; by default ``key``, if
      that is given.
    - ``client.region``, ``kms.vault.url`` and so on: properties of the KMS.

    A file's key comes from the sidecar beside it, unless one of these gives it:

    - ``ledger``: the ledger of jobs on Spark. If it has a key for a file, that is used in place of
      the sidecar's, and the files cannot be written.
    - ``key_for``: a function from the path of a stored file to its key metadata. None means the
      ledger or the sidecar. Such a file system cannot be pickled: the function may hold keys.

    ``threads`` decrypt one file; the default is one per CPU, and at least four if the files are
    remote.

    A file gets its name and its sidecar when it is closed. If an exception leaves the ``with``
    block of ``open``, it gets neither. ``fsspec.open`` closes a file after an exception too, as it
    does with every file system: use a transaction there. An encrypted file cannot be appended to or
    changed in place. Raises KmsConfigurationError for an option that is a secret, and ValueError
    for one that is not known.
    """

    protocol = "ags1"
    # The path of a chained URL. The file system is the same for every path.
    _strip_tokenize_options = ("fo",)

    def __init__(
        self,
        fo: str | None = None,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        fs: Any = None,
        *,
        key_for: Callable[[str], KeyMetadata | None] | None = None,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if fs is not None and target_protocol is not None:
            raise ValueError("ags1 needs one file system below: give either target_protocol or fs")
        self._keys = KeyOptions(options)
        self._key_source = self._keys.key_source()
        self._key_for = key_for
        if fs is None:
            fs = make_filesystem(target_protocol or "file", **(target_options or {}))
        self.fs = fs
        if getattr(self.fs, "asynchronous", False):
            raise ValueError("the file system below is asynchronous: give one that is not")
        is_local = isinstance(self.fs, LocalFileSystem)
        self._pairs: Pairs
        if is_local:
            self._pairs = LocalPairs(Folder(makes_folders=self.fs.auto_mkdir))
        else:
            self._pairs = Pairs(bucket_below(self.fs))
        self._is_local = is_local
        usual = usable_cpus() if is_local else max(4, usable_cpus())
        self.threads = thread_count(usual if threads is None else threads)
        # Paths are those of the file system below. Only this instance knows its rules.
        self._strip_protocol = self._path_below
        self._parent = self._parent_below
        self.sep = self.fs.sep

    def _path_below(self, path: Any) -> Any:
        if isinstance(path, list):
            return [self._path_below(one) for one in path]
        return self.fs._strip_protocol(ChainedFileSystem._strip_protocol.__func__(type(self), path))

    def _parent_below(self, path: Any) -> Any:
        return self.fs._parent(self._path_below(path))

    # -- keys

    def _sidecar_of(self, path: str, *, pending: bool = False) -> Sidecar:
        """Return what the ledger has for a stored file, or else its sidecar. Raises
        KeyMetadataError, OSError."""
        (sidecar,) = self._of_ledger([path], pending=pending)
        if sidecar is not None:
            return sidecar
        return self._pairs.sidecar(path)

    def _km(self, path: str, sidecar: Sidecar, source: Any) -> KeyMetadata:
        """Return the key metadata of a stored file. Raises KeyMetadataError, KmsError."""
        with _errors_about(sidecar_path(path) if self._key_source is None else path):
            return self._keys.keychain().key_of(sidecar, source)

    def _of_ledger(self, paths: list[str], *, pending: bool = False) -> list[Sidecar | None]:
        """Return the sidecars that the ledger has for stored files; None for others. ``pending``:
        with the keys of files that a job is giving their names."""
        if self._key_source is None:
            return [None] * len(paths)
        if not isinstance(self.fs, LocalFileSystem):
            paths = [self.fs.unstrip_protocol(path) for path in paths]
        try:
            return self._key_source.find(paths, pending=pending)
        except FileNotFoundError:
            # Readers would take this error for that of a file that is missing.
            raise KeyMetadataError(
                f"there is no ledger {self._keys.ledger!r}: give the storage option 'ledger' the "
                "place of the job's ledger, or leave it out to read sidecars"
            ) from None

    def _check_writable(self) -> None:
        if self._keys.ledger is not None:
            raise NotImplementedError(
                "files whose keys are in a ledger are read only, because the ledger would keep the "
                "old key: leave out the storage option 'ledger' to write"
            )

    def publish(self, staged: Any, path: str, km: KeyMetadata, *, overwrite: bool) -> None:
        """Give staged bytes their name ``path`` and a sidecar with their key. Called by the files
        that ``open`` returns."""
        sidecar = self._keys.keychain(sealing=True).seal(km, staged.temporary)
        self._pairs.publish(staged, path, sidecar, overwrite=overwrite)
        self.invalidate_cache(self._parent(path))

    def _sizes(self, stored: list[Info]) -> list[int | None]:
        """Return the plaintexts' sizes in bytes; None where a key cannot be had. Raises KmsError if
        the KMS cannot be used."""
        beside = self._pairs.sidecar_path
        wanted = [(beside(info["name"]), MAX_SIDECAR_SIZE + 1) for info in stored]
        wanted += [(info["name"], layout.HEADER_SIZE) for info in stored]
        starts = self._pairs.storage.starts(wanted)
        keychain = self._keys.keychain() if stored else None
        paths = [info["name"] for info in stored]
        known = dict(zip(paths, self._of_ledger(paths), strict=True))

        def size(info: Info, sidecar: bytes | Exception, header: bytes | Exception) -> int | None:
            path = info["name"]
            try:
                km = None if self._key_for is None else self._key_for(path)
                if km is None:
                    assert keychain is not None
                    keys = known[path] or parse_sidecar(sidecar, path)
                    if len(keys.file_keys) == 1:
                        km = keychain.key_of(keys)
                    else:
                        with self._pairs.opened(path, info["size"]) as source:
                            km = keychain.key_of(keys, source)
                if km.file_length is None or isinstance(header, Exception):
                    return None
                return layout.plaintext_size(km.file_length, layout.parse_header(header))
            except KMS_UNUSABLE:
                raise
            except (Ags1Error, OSError):
                return None

        count = len(stored)
        return [size(*one) for one in zip(stored, starts[:count], starts[count:], strict=True)]

    # -- listings

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """List a folder. ``sizes=False`` leaves out the sizes, which need a request a file."""
        sizes = kwargs.pop("sizes", detail)
        path = self._strip_protocol(path)
        entries = self._entries(path, **kwargs)
        below = [info for info in entries if is_file(info) or not is_same(info["name"], path)]
        listing = self._listing(below, sizes=sizes)
        return listing if detail else names_of(listing)

    def _listing(self, entries: list[Info], *, sizes: bool) -> list[Info]:
        """Return the folders and the encrypted files as they are shown, in the order of names."""
        folders = [info for info in entries if not is_file(info)]
        shown = self._shown([info for info in entries if is_encrypted(info)], sizes=sizes)
        return sorted([*folders, *shown], key=lambda info: str(info["name"]))

    def _entries(self, path: str, **kwargs: Any) -> list[Info]:
        """List a folder below, or a single encrypted file. Raises FileNotFoundError."""
        entries: list[Info] = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            entries = self.fs.ls(path, detail=True, **kwargs)
        first = entries[0] if len(entries) == 1 else None
        names_file = first is not None and is_file(first) and is_same(first["name"], path)
        if names_file or (not entries and not self.fs.isdir(path)):
            return [self._info_below(stored_path(path))]
        return entries

    def _info_below(self, path: str, **kwargs: Any) -> Info:
        # Some file systems leave out the bucket.
        return {**self.fs.info(path, **kwargs), "name": path}

    def _shown(self, stored: list[Info], *, sizes: bool) -> list[Info]:
        found = self._sizes(stored) if sizes else [None] * len(stored)
        return [
            {
                **info,
                "name": info["name"].removesuffix(SUFFIX),
                "size": size,
                "encrypted_size": info["size"],
            }
            for info, size in zip(stored, found, strict=True)
        ]

    def info(self, path: str, **kwargs: Any) -> Info:
        """Describe a file or a folder. The size is None if the file's key cannot be had."""
        path = self._strip_protocol(path)
        try:
            info = self._info_below(stored_path(path), **kwargs)
        except FileNotFoundError:
            info = None
        if info is not None and is_file(info):
            return self._shown([info], sizes=True)[0]
        info = self.fs.info(path, **kwargs)
        if is_file(info):
            if self._is_parquet(path):
                with self._open_input(path) as file:
                    sizes = {"size": file.size, "encrypted_size": info["size"]}
                return {**info, "name": path, **sizes}
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), stored_path(path))
        return info  # type: ignore[no-any-return]

    def walk(self, path: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        kwargs.setdefault("sizes", kwargs.get("detail", False))
        yield from super().walk(path, *args, **kwargs)

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        """List the files below a folder. An object storage lists them with one request or a few."""
        sizes = kwargs.pop("sizes", detail)
        path = self._strip_protocol(path)
        found = self.fs.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True, **kwargs)
        if not found and self._is_stored(path):
            found = {path: self._info_below(stored_path(path))}
        listing = self._listing(list(found.values()), sizes=sizes)
        return {info["name"]: info for info in listing} if detail else names_of(listing)

    def glob(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> Any:
        kwargs.setdefault("sizes", kwargs.get("detail", False))
        return super().glob(path.removesuffix(SUFFIX), maxdepth, **kwargs)

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self.isfile(path) or self.isdir(path)

    def isfile(self, path: str) -> bool:
        return self._is_stored(path) or self._is_parquet(self._strip_protocol(path))

    def _is_stored(self, path: str) -> bool:
        return bool(self.fs.isfile(stored_path(self._strip_protocol(path))))

    def isdir(self, path: str) -> bool:
        return bool(self.fs.isdir(self._strip_protocol(path)))

    def invalidate_cache(self, path: str | None = None) -> None:
        super().invalidate_cache(path)
        self.fs.invalidate_cache(path)

    def _existing(self, path: str) -> str:
        path = self._strip_protocol(path)
        return stored_path(path) if self._is_stored(path) else path

    def created(self, path: str) -> datetime:
        return self.fs.created(self._existing(path))  # type: ignore[no-any-return]

    def modified(self, path: str) -> datetime:
        return self.fs.modified(self._existing(path))  # type: ignore[no-any-return]

    def ukey(self, path: str) -> str:
        return self.fs.ukey(self._existing(path))  # type: ignore[no-any-return]

    def checksum(self, path: str) -> int:
        return self.fs.checksum(self._existing(path))  # type: ignore[no-any-return]

    # -- files

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Any = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        if "b" in mode or compression is not None:
            return super().open(path, mode, block_size, cache_options, compression, **kwargs)
        names = ("encoding", "errors", "newline")
        text = [kwargs.pop(name, None) for name in names]
        file = self.open(path, mode.replace("t", "") + "b", block_size, cache_options, **kwargs)
        return (io.TextIOWrapper if mode.startswith("r") else TextWriter)(file, *text)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        **kwargs: Any,
    ) -> EncryptedInput | EncryptedOutput | PlainParquet:
        plain = self._strip_protocol(path)
        path = stored_path(plain)
        if mode == "rb":
            try:
                return self._open_input(path)
            except FileNotFoundError:
                if not self._is_parquet(plain):
                    raise
                return self._open_input(plain)
        if mode not in ("wb", "xb"):
            raise NotImplementedError(
                f"{path}: mode {mode!r} is not supported, because an encrypted file cannot be "
                "appended to or changed in place: write the whole file again (wb)"
            )
        self._check_writable()
        folder = path.removesuffix(SUFFIX)
        # In an object storage, a file and a folder may have the same name.
        if self._is_local and self.isdir(folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), folder)
        if mode == "xb" and self.fs.exists(path):
            raise already_exists(path)
        # A KMS that cannot be used fails here, before any work.
        self._keys.keychain(sealing=True).prepare()
        staged, overwrite = self._pairs.storage.scratch(path), mode == "wb"
        return EncryptedOutput(self, path, staged, overwrite=overwrite, autocommit=autocommit)

    def _open_input(self, path: str) -> EncryptedInput | PlainParquet:
        seen: object = None
        for tries in range(MOST_TRIES):
            sidecar = None
            with self._pairs.opened(path, self._listed_size(path)) as source:
                try:
                    if self._key_for is not None and (km := self._key_for(path)) is not None:
                        return self._opened(path, source, km)
                    # A sidecar has a file's key for as long as the file has its name.
                    sidecar = self._sidecar_of(path, pending=tries > 0)
                    return self._fitting(path, source, sidecar)
                except (KeyMetadataError, AuthenticationError, FormatError, TruncatedError):
                    # Another process may have replaced both just now, or the listing is old.
                    looked_at = source.pread(0, START_SIZE), sidecar
                    if looked_at == seen or tries == MOST_TRIES - 1:
                        raise
                    seen = looked_at
                    self.fs.invalidate_cache(self.fs._parent(path))
        raise AssertionError

    def _fitting(self, path: str, source: Any, sidecar: Sidecar) -> EncryptedInput | PlainParquet:
        file = self._opened(path, source, self._km(path, sidecar, source))
        try:
            if len(sidecar.file_keys) > 1:
                # Keys of earlier releases do not say which file they belong to.
                file.pread(0, 1)
        except BaseException:
            file.close()
            raise
        return file

    def _listed_size(self, path: str) -> int:
        try:
            info = self.fs.info(path)
        except FileNotFoundError:
            if self.isdir(folder := path.removesuffix(SUFFIX)):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), folder) from None
            raise
        if not is_file(info):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return int(info["size"] or 0)

    def _is_parquet(self, path: str) -> bool:
        """Whether this is a Parquet file that is encrypted inside, which has no ``.ags1``."""
        if not path.endswith(".parquet") or not self.fs.isfile(path):
            return False
        return bool(
            self.fs.cat_file(path, 0, len(ENCRYPTED_PARQUET_MAGIC)) == ENCRYPTED_PARQUET_MAGIC
        )

    def _opened(self, path: str, source: Any, km: KeyMetadata) -> EncryptedInput | PlainParquet:
        if not path.endswith(SUFFIX):
            # Needs pyarrow, which is optional.
            from ...iceberg.formats.parquet_view import ParquetView, PlainParquet

            return PlainParquet(ParquetView(open_source(source)[0], km))
        file = EncryptedInput(source, km, threads=self.threads)
        file.fs, file.stored = self, path
        return file

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        def read() -> bytes:
            with self.open(path, "rb", **kwargs) as file:
                begin, stop, _ = slice(start, end).indices(file.size)
                return file.pread(begin, max(0, stop - begin))  # type: ignore[no-any-return]

        return unless_replaced(read)

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Return ranges of files. Each file is opened once. ``max_gap`` is not needed."""
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("paths, starts and ends must have the same length")
        results: list[Any] = [None] * len(paths)
        numbers: dict[str, list[int]] = {}
        for number, path in enumerate(paths):
            numbers.setdefault(path, []).append(number)

        def read(path: str) -> None:
            found: list[Any]

            def ranges() -> list[Any]:
                with self.open(path, "rb", **kwargs) as file:
                    slices = [slice(starts[n], ends[n]) for n in numbers[path]]
                    bounds = [one.indices(file.size)[:2] for one in slices]
                    return file.readv([(begin, max(0, end - begin)) for begin, end in bounds])  # type: ignore[no-any-return]

            try:
                found = unless_replaced(ranges)
            except Exception as error:
                if on_error != "return":
                    raise
                found = [error] * len(numbers[path])
            for number, data in zip(numbers[path], found, strict=True):
                results[number] = data

        self.side_by_side(read, [(path,) for path in numbers])
        return results

    def get_file(
        self,
        rpath: str,
        lpath: Any = None,
        callback: Callback = DEFAULT_CALLBACK,
        outfile: Any = None,
        **kwargs: Any,
    ) -> None:
        """Decrypt a file to a local one, which appears whole or not at all, or to a stream."""
        if outfile is None and isfilelike(lpath):
            outfile = lpath
        try:
            file = self.open(rpath, "rb", **kwargs)
        except IsADirectoryError:
            if outfile is not None:
                raise
            os.makedirs(lpath, exist_ok=True)
            return
        with file:
            callback.set_size(file.size)
            if outfile is None:
                os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
            with (
                contextlib.nullcontext(FileSink(outfile))
                if outfile is not None
                else open_stream(lpath, overwrite=True)
                if is_stream(lpath)
                else AtomicFile(lpath, overwrite=True, durable=False)
            ) as out:
                chunk = memoryview(bytearray(min(file.size, _CHUNK)))
                while count := file.readinto(chunk):
                    out.write(chunk[:count])
                    callback.relative_update(count)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb", **kwargs) as file:
            file.write(value)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        if truncate or not self.exists(path):
            super().touch(path, truncate=True, **kwargs)
        else:
            self.fs.touch(self._existing(path), truncate=False, **kwargs)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self._check_writable()
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self._is_stored(source):
            stored = stored_path(source), stored_path(target)
            if self._pairs.is_same(*stored):
                raise shutil.SameFileError(f"{stored[0]!r} and {stored[1]!r} are the same file")
            self._pairs.copy(*stored)
            self.invalidate_cache(self._parent(target))
        elif self.isdir(source):
            self.makedirs(target, exist_ok=True)
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), stored_path(source))

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy files, and then remove those that were copied. If the storage is local, a path is
        not a pattern. Raises OSError if a folder is moved into itself, and BlockingIOError if
        another process has replaced a file meanwhile. Then nothing is removed."""
        if isinstance(path1, str) and isinstance(path2, str):
            source, target = self._strip_protocol(path1), self._strip_protocol(path2)
            if self._is_stored(source) and stored_path(source) == stored_path(target):
                return
            if recursive and f"{target}/".startswith(f"{source.rstrip('/')}/"):
                message = "a folder cannot be moved into itself: give another target"
                raise OSError(errno.EINVAL, message, path1)
        if isinstance(path1, list) and isinstance(path2, list):
            paths = [self._strip_protocol(one) for one in path1]
        else:
            paths = self._expand(path1, recursive=recursive, maxdepth=maxdepth)
            if self._is_local and isinstance(path1, str) and has_magic(path1):
                # fsspec's ``copy`` would take the name for a pattern, but not the names in a list.
                into = (trailing_sep(path2) or self.isdir(path2)) and not trailing_sep(path1)
                if not recursive or maxdepth is not None:
                    paths = [one for one in paths if not self.isdir(one)]
                path1, path2 = paths, other_paths(paths, self._strip_protocol(path2), exists=into)
        beside = self._pairs.sidecar_path
        sidecars = [beside(stored_path(one)) for one in paths if self._is_stored(one)]
        wanted = [(name, MAX_SIDECAR_SIZE + 1) for name in sidecars]
        before = self._pairs.storage.starts(wanted)
        self.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise")
        after = self._pairs.storage.starts(wanted)
        for name, one, other in zip(sidecars, before, after, strict=True):
            if one != other:
                message = "another process replaced the file while it was moved: move it again"
                raise BlockingIOError(errno.EAGAIN, message, name)
        self._remove_all(paths, recursive=recursive)

    # -- folders and removal

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        self.fs.mkdir(self._strip_protocol(path), create_parents=create_parents, **kwargs)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.fs.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self.fs.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        path = stored_path(self._strip_protocol(path))
        self._pairs.remove(path)
        self.invalidate_cache(self._parent(path))

    def rm(
        self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None
    ) -> None:
        """Remove files, and with ``recursive`` folders. If the storage is local, a path is not a
        pattern. A folder that contains other files is not removed: what is not shown is not
        deleted."""
        paths = self._expand(path, recursive=recursive, maxdepth=maxdepth)
        self._remove_all(paths, recursive=recursive)

    def _expand(self, path: Any, *, recursive: bool, maxdepth: int | None) -> list[str]:
        """Return the paths that ``rm`` and ``mv`` are given, expanded. As in fsspec, those of local
        files are not patterns."""
        paths: list[str] = self.expand_path(
            [path] if isinstance(path, (str, os.PathLike)) else path,
            recursive=recursive,
            maxdepth=maxdepth,
            assume_literal=self._is_local,
        )
        return paths

    def _remove_all(self, paths: list[str], *, recursive: bool) -> None:
        are_files = self.side_by_side(self.isfile, [(one,) for one in paths])
        files = [one for one, is_file in zip(paths, are_files, strict=True) if is_file]
        others = [one for one, is_file in zip(paths, are_files, strict=True) if not is_file]
        for one in [] if recursive else others:
            error = errno.EISDIR if self.isdir(one) else errno.ENOENT
            raise OSError(error, os.strerror(error), one)
        self.side_by_side(self.rm_file, [(one,) for one in files])
        for one in reversed(others):
            # Object storages have no folder any more when its last file is removed.
            if self.isdir(one):
                self.rmdir(one)

    # -- other processes

    def __reduce__(self) -> Any:
        self._refuse_function("pickled")
        return super().__reduce__()

    def to_json(self, **kwargs: Any) -> str:
        self._refuse_function("stored")
        return super().to_json(**kwargs)  # type: ignore[no-any-return]

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        self._refuse_function("stored")
        return super().to_dict(**kwargs)  # type: ignore[no-any-return]

    def _refuse_function(self, done: str) -> None:
        if self._key_for is not None:
            raise TypeError(
                f"a file system with key_for cannot be {done}, because the function may hold keys: "
                "put sidecars beside the files"
            )


@contextlib.contextmanager
def _errors_about(file: str) -> Iterator[None]:
    try:
        yield
    except Ags1Error as error:
        error.file = error.file or file
        raise
