"""The ways of reading in this project, each as a function that takes a stream of the corpus.

A way adds what it releases to ``out``, and raises what the reading raises. The stored file is at
``path``, with the suffix ``.ags1``. The environment names a keyring with the master key
``default``.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.io.pyarrow import PyArrowFileIO

import ags1
import ags1.arrow
from ags1 import KeyMetadata
from ags1.cli.app import app
from ags1.cli.exits import Exit
from ags1.filesystem import Ags1FileSystem
from ags1.iceberg.storage.table_files import TableFiles
from ags1.keys import Keychain
from ags1.keys.manager import EncryptionManager
from ags1.kms import LocalKms

MIB = 1 << 20


class Stream(NamedTuple):
    """A case of ags1_stream_test.json, and what the specification's program does with it."""

    case: dict[str, Any]
    data: bytes
    km: KeyMetadata
    released: bytes
    released_sha256: str
    error: str | None

    @property
    def trust(self) -> dict[str, Any]:
        return {"trust_file_size": self.km.file_length is None}


Way = Callable[[Stream, Path, bytearray], None]


# -- whole files -----------------------------------------------------------------------------------


def _decrypt(stream: Stream, path: Path, out: bytearray) -> None:
    out += ags1.decrypt(stream.data, stream.km, **stream.trust)


def _decrypt_in_threads(stream: Stream, path: Path, out: bytearray) -> None:
    out += ags1.decrypt(stream.data, stream.km, **stream.trust, threads=2)


def _decrypt_into(stream: Stream, path: Path, out: bytearray) -> None:
    room = bytearray(len(stream.data))
    try:
        size = ags1.decrypt_into(stream.data, room, stream.km, **stream.trust)
    except ags1.Ags1Error:
        assert not any(room)  # nothing unverified is left in the caller's memory
        raise
    out += room[:size]


def _decrypt_many(stream: Stream, path: Path, out: bytearray) -> None:
    (text,) = ags1.decrypt_many([(stream.data, stream.km)], **stream.trust)
    out += text


def _decrypt_file(stream: Stream, path: Path, out: bytearray) -> None:
    target = path.with_suffix(".plain")
    try:
        ags1.decrypt_file(path, target, stream.km, durable=False, **stream.trust)
        out += target.read_bytes()
    except ags1.Ags1Error:
        assert not target.exists()
        raise
    finally:
        target.unlink(missing_ok=True)


# -- ags1.open -------------------------------------------------------------------------------------


class _Pipe(io.RawIOBase):
    """A source that can only be read forward."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._data.readinto(buffer)


def _open(stream: Stream, source: Any, **options: Any) -> Any:
    return ags1.open(source, "rb", stream.km, **stream.trust, **options)


def _all_of(file: Any, out: bytearray, size: int = 70_000) -> None:
    while piece := file.read(size):
        out += piece


def _read(stream: Stream, path: Path, out: bytearray) -> None:
    with _open(stream, path) as file:
        out += file.read()


def _read_threads(stream: Stream, path: Path, out: bytearray) -> None:
    with _open(stream, path, threads=2) as file:
        out += file.read()


def _read_object(stream: Stream, path: Path, out: bytearray) -> None:
    with _open(stream, io.BytesIO(stream.data)) as file:
        _all_of(file, out)


def _read_pipe(stream: Stream, path: Path, out: bytearray) -> None:
    with _open(stream, io.BufferedReader(_Pipe(stream.data))) as file:
        _all_of(file, out)


def _readinto(stream: Stream, path: Path, out: bytearray) -> None:
    buffer = bytearray(1 << 17)
    with _open(stream, path) as file:
        while count := file.readinto(buffer):
            out += buffer[:count]


def _read1(stream: Stream, path: Path, out: bytearray) -> None:
    with _open(stream, path) as file:
        while seen := file.peek():
            piece = file.read1()
            assert piece.startswith(seen[: len(piece)])
            out += piece


def _lines(stream: Stream, path: Path, out: bytearray) -> None:
    with _open(stream, path) as file:
        for line in file:
            out += line


def _pread(stream: Stream, path: Path, out: bytearray) -> None:
    with _open(stream, path) as file:
        while piece := file.pread(len(out), 300_000):
            out += piece


def _readv(stream: Stream, path: Path, out: bytearray) -> None:
    with _open(stream, path) as file:
        while any(pieces := file.readv([(len(out) + n * 90_000, 90_000) for n in range(3)])):
            out += b"".join(pieces)


def _read_buffer(stream: Stream, path: Path, out: bytearray) -> None:
    with _open(stream, path) as file:
        while (piece := file.read_buffer(200_000)).size:
            out += piece


# -- pyarrow and fsspec ----------------------------------------------------------------------------


def _python_file(stream: Stream, path: Path, out: bytearray) -> None:
    with _open(stream, path) as file, pa.PythonFile(file, "r") as arrow:
        _all_of(arrow, out, 200_000)


def _arrow_filesystem(stream: Stream, path: Path, out: bytearray) -> None:
    files = ags1.arrow.filesystem(key_for=lambda _: stream.km)
    with files.open_input_file(str(path)) as file:
        while (piece := file.read_buffer(200_000)).size:
            out += piece


def _url(stream: Stream, path: Path, out: bytearray) -> None:
    options = {"key_for": lambda _: stream.km}
    with fsspec.open(f"ags1::file://{path}", "rb", ags1=options) as file:
        _all_of(file, out)


def _file_system(stream: Stream) -> Ags1FileSystem:
    return Ags1FileSystem(target_protocol="file", key_for=lambda _: stream.km)


def _cat_file(stream: Stream, path: Path, out: bytearray) -> None:
    out += _file_system(stream).cat_file(str(path))


def _cat_ranges(stream: Stream, path: Path, out: bytearray) -> None:
    files, name = _file_system(stream), str(path)
    parts = files.cat_ranges([name, name], [0, 60], [60, None], on_error="raise")
    out += b"".join(parts)


# -- tables and jobs -------------------------------------------------------------------------------


def _table_files(stream: Stream) -> TableFiles:
    # Keys of manifest lists are not asked for here.
    files = TableFiles(PyArrowFileIO(), EncryptionManager(None, "keyA"))  # type: ignore[arg-type]
    files.trust_file_size = stream.km.file_length is None
    return files


def _table_reader(stream: Stream, path: Path, out: bytearray) -> None:
    with _table_files(stream).open_encrypted(str(path), stream.km) as file:
        _all_of(file, out)


def _manifest(stream: Stream, path: Path, out: bytearray) -> None:
    out += _table_files(stream).read_encrypted(str(path), stream.km)


class _Key:
    """Stands for the keys of a job: every wrapped key is that of the stream."""

    def __init__(self, km: KeyMetadata) -> None:
        self._km = km

    def unwrap(self, wrapped: str, nonce: bytes | None = None) -> KeyMetadata:
        return self._km


def _pieces(stream: Stream, path: Path) -> Iterator[Any]:
    """Yield the pieces of a job that cuts the file into its blocks."""
    pieces = pytest.importorskip("ags1.files.staging.pieces")
    size = len(stream.data)
    piece = pieces.Piece(0, str(path), str(path.with_suffix(".plain")), size, "", "wrapped")
    count = -(-(size - 8) // (MIB + 28))
    if count < 2:
        yield piece
        return
    for number in range(count):
        yield piece._replace(first_block=number, block_count=1)


def _job(stream: Stream, path: Path, out: bytearray) -> None:
    work = pytest.importorskip("ags1.files.work.tasks")
    decrypting = work.Decrypting(_Key(stream.km), "job", False)
    for piece in _pieces(stream, path):
        result = decrypting.piece(piece, work.Attempt("job", f"a{piece.first_block}", 0))
        staged = Path(result.staged)
        # An attempt of its own has the range at the place where the whole file has it.
        out += staged.read_bytes()[piece.first_block * MIB :]
        staged.unlink()


def _verifying_job(stream: Stream, path: Path, out: bytearray) -> None:
    work = pytest.importorskip("ags1.files.work.tasks")
    verifying = work.Verifying(_Key(stream.km), "job", False)
    for piece in _pieces(stream, path):
        verifying.piece(piece, work.Attempt("job", "a", 0))
    out += stream.released


# -- the command line ------------------------------------------------------------------------------

_ERRORS = {
    Exit.TRUNCATED: ags1.TruncatedError,
    Exit.FORMAT: ags1.FormatError,
    Exit.KEYS: ags1.MissingFileLengthError,
    Exit.AUTHENTICATION: ags1.AuthenticationError,
}


def _run(stream: Stream, path: Path, *arguments: str, data: bytes = b"") -> tuple[Any, bytes]:
    """Run a command on the file, with a sidecar; return its error, if it fails, and its output."""
    sidecar = path.with_name(path.name + ".keys")
    kms = LocalKms(str(path.with_name("keyring.json")))
    sidecar.write_bytes(Keychain(kms, "default").seal(stream.km).to_bytes())
    split = "mix_stderr" in inspect.signature(CliRunner).parameters
    runner = CliRunner(mix_stderr=False) if split else CliRunner()  # type: ignore[call-arg]
    result = runner.invoke(app, list(arguments), input=data)
    if result.exit_code == 0:
        return None, result.stdout_bytes
    return _ERRORS[Exit(result.exit_code)](result.stderr), result.stdout_bytes


def _cat(stream: Stream, path: Path, out: bytearray) -> None:
    error, printed = _run(stream, path, "cat", str(path))
    out += printed
    if error is not None:
        raise error


def _from_standard_input(stream: Stream, path: Path, out: bytearray) -> None:
    sidecar = f"{path}.keys"
    error, printed = _run(stream, path, "decrypt", "-", "--sidecar", sidecar, data=stream.data)
    out += printed
    if error is not None:
        raise error


def _command_decrypt(stream: Stream, path: Path, out: bytearray) -> None:
    target = path.with_suffix("")
    target.unlink(missing_ok=True)
    error, _ = _run(stream, path, "decrypt", "--quiet", str(path))
    if error is not None:
        assert not target.exists()
        raise error
    out += target.read_bytes()


def _command_verify(stream: Stream, path: Path, out: bytearray) -> None:
    error, _ = _run(stream, path, "verify", "--quiet", str(path))
    if error is not None:
        raise error
    out += stream.released


# Each of them reads every case.
WAYS: dict[str, Way] = {
    "decrypt": _decrypt,
    "decrypt_into": _decrypt_into,
    "decrypt_many": _decrypt_many,
    "decrypt_file": _decrypt_file,
    "read": _read,
    "read in threads": _read_threads,
    "read from an object": _read_object,
    "read from a pipe": _read_pipe,
    "readinto": _readinto,
    "lines": _lines,
    "pread": _pread,
    "readv": _readv,
    "PythonFile": _python_file,
}
# They go through the ways above. Each of them reads a case of every flag.
FURTHER_WAYS: dict[str, Way] = {
    "decrypt in threads": _decrypt_in_threads,
    "read1 and peek": _read1,
    "read_buffer": _read_buffer,
    "ags1.arrow.filesystem": _arrow_filesystem,
    "ags1:: URL": _url,
    "fsspec's cat_file": _cat_file,
    "fsspec's cat_ranges": _cat_ranges,
    "ags1 cat": _cat,
    "ags1 decrypt": _command_decrypt,
    "ags1 decrypt of a pipe": _from_standard_input,
    "ags1 verify": _command_verify,
    "a table's data file": _table_reader,
    "a table's manifest": _manifest,
    "a job that decrypts blocks": _job,
    "a job that verifies blocks": _verifying_job,
}
# The size of the source is not known before its end.
UNSIZED = {"read from a pipe", "ags1 decrypt of a pipe"}
# They never trust the size of a stored file.
OF_JOBS = {"a job that decrypts blocks", "a job that verifies blocks"}
# Iceberg's block size is fixed, as in Java.
ONE_BLOCK_SIZE = {"a table's data file", "a table's manifest", *OF_JOBS}
