"""Every file in a table's folder opened with the table's keys, to search for what it still holds.

``OpenedFiles`` remembers all keys that it has ever learned, as somebody would who has read the
table before. Manifests are parsed by fastavro. Of Parquet files each page, with the dictionaries,
and the footer with its bounds is decrypted and decompressed.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manifests import DATA_FILE, FILE_PATH, KEY_METADATA, MANIFEST_KEY_METADATA, MANIFEST_PATH
from manifests import records as records_of
from pyarrow.parquet.encryption import create_decryption_properties

import ags1
from ags1 import KeyMetadata
from ags1.iceberg.formats.parquet_fields import ColumnMetaData, PageHeader
from ags1.iceberg.formats.parquet_modules import ParquetSource, chunks, parsing
from ags1.iceberg.formats.thrift import value
from ags1.iceberg.storage.output import TableOutput
from ags1.keys import EncryptionManager
from ags1.kms import KmsClient

_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}


class OpenedFiles:
    """The files below ``folder``, all of one table under ``key_id``."""

    def __init__(self, folder: Path, kms: KmsClient, key_id: str = "keyA") -> None:
        self.folder = folder
        self._kms = kms
        self._key_id = key_id
        self._keys: dict[Path, KeyMetadata] = {}
        self._read: set[Path] = set()

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also learn the keys of all manifests and manifest lists that are written from now on,
        even if no file has them in the end."""
        write = TableOutput.write_encrypted

        def noted(output: Any, location: str, plaintext: bytes, km: KeyMetadata) -> KeyMetadata:
            self._keys[_path(location)] = written = write(output, location, plaintext, km)
            return written

        monkeypatch.setattr(TableOutput, "write_encrypted", noted)

    def holding(self, *values: bytes) -> dict[bytes, set[str]]:
        """Return the names of the files that have each value, after learning all keys that are
        there now. Fails if there is a file that cannot be opened."""
        self._learn()
        found: dict[bytes, set[str]] = {wanted: set() for wanted in values}
        for path in self._files():
            pieces = [path.relative_to(self.folder).as_posix().encode(), *self._pieces(path)]
            for wanted in values:
                if any(wanted in piece for piece in pieces):
                    found[wanted].add(path.name)
        return found

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def _learn(self) -> None:
        for path in self._files():
            if not path.name.endswith(".metadata.json"):
                continue
            metadata = json.loads(_metadata_text(path))
            if "encryption.key-id" not in metadata["properties"]:
                continue
            manager = EncryptionManager.from_metadata(
                metadata, self._kms, table_key_id=self._key_id
            )
            for snapshot in metadata.get("snapshots") or ():
                listed = _path(snapshot["manifest-list"])
                if listed not in self._read and listed.exists():
                    self._keys[listed] = manager.manifest_list_key(snapshot["key-id"])
                    self._learn_manifests(listed)

    def _learn_manifests(self, listed: Path) -> None:
        self._read.add(listed)
        for manifest in records_of(listed.read_bytes(), self._keys[listed]):
            path = _path(manifest[MANIFEST_PATH])
            if path in self._read or not path.exists():
                continue
            self._read.add(path)
            self._keys[path] = KeyMetadata.from_bytes(manifest[MANIFEST_KEY_METADATA])
            for entry in records_of(path.read_bytes(), self._keys[path]):
                file = entry[DATA_FILE]
                key = KeyMetadata.from_bytes(file[KEY_METADATA])
                self._keys[_path(file[FILE_PATH])] = key

    def _pieces(self, path: Path) -> Iterator[bytes]:
        """Yield all plaintext of a file, in pieces that contain each value whole."""
        data = path.read_bytes()
        if path.name.endswith(".metadata.json"):
            yield _metadata_text(path)
        elif data.startswith(b"AGS1"):
            plaintext = ags1.decrypt(data, self._keys[path])
            yield plaintext
            if plaintext.startswith(b"Obj\x01"):
                reader: Any = fastavro.reader(io.BytesIO(plaintext))
                yield from _leaves([dict(reader.metadata), *reader])
        elif data.startswith(b"PARE"):
            yield from _parquet(data, self._keys[path])
        else:
            yield data


def _parquet(data: bytes, km: KeyMetadata) -> Iterator[bytes]:
    properties = create_decryption_properties(km.encryption_key, aad_prefix=km.aad_prefix)
    file = pq.ParquetFile(io.BytesIO(data), decryption_properties=properties)
    yield repr(file.metadata.metadata).encode()
    for group in range(file.metadata.num_row_groups):
        for column in range(file.metadata.num_columns):
            chunk = file.metadata.row_group(group).column(column)
            if chunk.statistics is not None and chunk.statistics.has_min_max:
                yield from _leaves([chunk.statistics.min, chunk.statistics.max])
    yield from _leaves(file.read().to_pylist())
    with parsing():
        source = ParquetSource(lambda offset, size: data[offset : offset + size], len(data), km)
        for chunk in chunks(source.footer()):
            codec = _CODECS.get(value(chunk.meta, ColumnMetaData.CODEC))
            for page in source.pages(chunk):
                body = bytes(page.body)
                yield page.header_bytes
                yield body
                if codec is not None:
                    size = value(page.header, PageHeader.UNCOMPRESSED_PAGE_SIZE)
                    yield pa.decompress(body, size, codec, asbytes=True)


def _leaves(tree: Any) -> Iterator[bytes]:
    if isinstance(tree, dict):
        for key, of in tree.items():
            yield from _leaves(key)
            yield from _leaves(of)
    elif isinstance(tree, list | tuple):
        for of in tree:
            yield from _leaves(of)
    else:
        yield tree if isinstance(tree, bytes) else str(tree).encode()


def _metadata_text(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def _path(location: str) -> Path:
    return Path(location.removeprefix("file:").replace("///", "/"))
