"""``Journal`` records which files a long rewrite has finished, to continue it after a crash.

The journal is in the table's metadata folder and has several parts. Each part is a file::

    {"kek": ..., "key": ...}     one line: a KEK that the master key has wrapped, and the key of
                                 this part, which the KEK has wrapped
    AGS1 stream, under that key  {"table-uuid": ..., "files": [...]}: for each rewritten file, the
                                 old path, the new path, and the key metadata of the new file

No key is stored in plaintext. Without the master key, nobody can forge a part or exchange files.
"""

from __future__ import annotations

import base64
import json
import logging
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from ...engine import oneshot
from ...engine._key_metadata import EncodedKeyMetadata
from ...engine.key_metadata import KeyMetadata
from ...engine.layout import DEFAULT_BLOCK_SIZE
from ...errors import Ags1Error, KmsError, KmsUnwrapError
from ...host import strict_json
from ...keys.envelope import EncryptedKey, KeyEncryptionKey
from ...keys.manager import EncryptionManager, now_ms
from ...kms.client import wraps_with_public_key
from ..read.records import ContentFile
from ..storage.listing import list_files
from ..storage.locations import new_input
from ..storage.output import TableOutput
from ..write.executors import Identity

# A part has some thousand files. A larger one was not written here.
_MAX_SIZE = 64 << 20

_log = logging.getLogger(__name__)

_SUFFIX = ".journal"
_PURPOSE = b"ags1 journal"
_FILES_PER_PART = 64
_SECONDS_PER_PART = 5.0

# What reading a file raises that is not a part of this journal. JSON may be nested too deeply.
_NOT_A_PART = (Ags1Error, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class Journal:
    """The journal in ``folder`` of the table with the UUID ``table_uuid``, under the table's master
    key. ``manager`` has that key and the size of data keys. ``output`` writes the parts. If
    everybody can wrap keys with the master key (``KmsClient.wraps_with_public_key``), anybody could
    forge a part. If the storage cannot list a folder, no part could be found. In both cases no
    journal is kept. One thread at a time may use it."""

    def __init__(
        self, output: TableOutput, folder: str, table_uuid: str, manager: EncryptionManager
    ) -> None:
        self._io, self._output = output.io, output
        self._folder = folder
        self._table_uuid = table_uuid
        self._kms, self._key_id = manager.kms, manager.table_key_id
        self._key_size = manager.data_key_length
        self._kek: KeyEncryptionKey | None = None
        self._waiting: list[dict[str, Any]] = []
        self._last_part = time.monotonic()
        self._is_kept = (
            not wraps_with_public_key(self._kms) and list_files(self._io, folder) is not None
        )

    def prepare(self) -> None:
        """Make the KEK of the parts, with a KMS call. If the master key cannot be used, this fails
        before hours of work and not after. Raises KmsError."""
        if self._kek is None:
            self._kek = KeyEncryptionKey.generate(
                self._kms, self._key_id, key_size=self._key_size, timestamp_ms=now_ms()
            )

    def add(self, old: ContentFile, new: ContentFile) -> None:
        """Record that a file was rewritten. The record is durable after ``flush``, which this calls
        every 64 files and every five seconds."""
        if not self._is_kept:
            return
        self._waiting.append(_note(old, new))
        is_due = time.monotonic() - self._last_part >= _SECONDS_PER_PART
        if is_due or len(self._waiting) >= _FILES_PER_PART:
            self.flush()

    def flush(self) -> None:
        """Write the records that are not written yet. Raises KmsError and OSError."""
        if not self._waiting:
            return
        self.prepare()
        assert self._kek is not None
        sealed = oneshot.encrypt(
            json.dumps({"table-uuid": self._table_uuid, "files": self._waiting}).encode(),
            km=KeyMetadata.generate(self._key_size),
            block_size=DEFAULT_BLOCK_SIZE,
        )
        wrapped = self._kek.wrap_key_metadata(sealed.key_metadata, purpose=_PURPOSE)
        keys = {"kek": self._kek.entry.to_dict(), "key": wrapped.to_dict()}
        head = json.dumps(keys).encode() + b"\n"
        self._output.write(f"{self._folder}/{uuid.uuid4()}{_SUFFIX}", head + sealed.data)
        self._waiting.clear()
        self._last_part = time.monotonic()

    def finished(self, files: Iterable[ContentFile]) -> dict[Identity, ContentFile]:
        """Return the new record of each of ``files`` that an earlier run has rewritten, by the
        identity of the old one. The new file must exist and have the recorded size. If a part
        cannot be decrypted, it is skipped, and its files are rewritten again. Raises KmsError if
        the KMS cannot be asked, and OSError."""
        if not self._is_kept:
            return {}
        wanted = {(f.file_path, f.file_size_in_bytes, f.record_count): f for f in files}
        keks: dict[bytes, KeyEncryptionKey] = {}
        rewritten: dict[Identity, ContentFile] = {}
        for location in self._parts():
            for note in self._read(location, keks):
                old = wanted.get((note["source"], note["source-size"], note["rows"]))
                if old is not None and old.identity not in rewritten:
                    new = _from_note(old, note)
                    if self._is_usable(new):
                        rewritten[old.identity] = new
        return rewritten

    def remove(self) -> None:
        """Delete the journal, after it is no longer needed."""
        if self._is_kept:
            self._output.discard(list(self._parts()))

    def _parts(self) -> list[str]:
        return sorted(f for f in list_files(self._io, self._folder) or () if f.endswith(_SUFFIX))

    def _read(self, location: str, keks: dict[bytes, KeyEncryptionKey]) -> list[dict[str, Any]]:
        with new_input(self._io, location).open() as stream:
            stored = bytes(stream.read(_MAX_SIZE + 1))
        head, _, sealed = stored.partition(b"\n")
        try:
            if len(stored) > _MAX_SIZE:
                raise ValueError("the file is too large for a part of a journal")
            keys = strict_json.parse(head)
            entry = EncryptedKey.from_dict(keys["kek"])
            if entry.encrypted_by_id != self._key_id:
                return []
            kek = keks.get(entry.encrypted_key_metadata)
            if kek is None:
                kek = KeyEncryptionKey.unwrap(self._kms, entry, self._key_id)
                keks[entry.encrypted_key_metadata] = kek
            key_metadata = kek.unwrap_key_metadata(
                EncryptedKey.from_dict(keys["key"]), purpose=_PURPOSE
            )
            part: dict[str, Any] = json.loads(oneshot.decrypt(sealed, key_metadata))
            files: list[dict[str, Any]] = part["files"]
            for note in files:
                encoded = base64.b64decode(note.pop("key-metadata"), validate=True)
                note["key-metadata"] = EncodedKeyMetadata(encoded)
        except _NOT_A_PART as error:
            if isinstance(error, KmsError) and not isinstance(error, KmsUnwrapError):
                raise
            kind = type(error).__name__
            _log.warning("%s is skipped, its files are rewritten: %s", location, kind)
            return []
        return files if part["table-uuid"] == self._table_uuid else []

    def _is_usable(self, new: ContentFile) -> bool:
        key_metadata = new.key
        if key_metadata is None or len(key_metadata.encryption_key) != self._key_size:
            return False
        try:
            return len(self._io.new_input(new.file_path)) == new.file_size_in_bytes
        except FileNotFoundError:
            return False


def _note(old: ContentFile, new: ContentFile) -> dict[str, Any]:
    assert new.key_bytes is not None
    fields = new.fields()
    sizes = fields["column_sizes"]
    return {
        "source": old.file_path,
        "source-size": old.file_size_in_bytes,
        "rows": old.record_count,
        "path": new.file_path,
        "size": new.file_size_in_bytes,
        "column-sizes": None if sizes is None else list(sizes.items()),
        "split-offsets": fields["split_offsets"],
        "key-metadata": base64.b64encode(new.key_bytes).decode(),
    }


def _from_note(old: ContentFile, note: Mapping[str, Any]) -> ContentFile:
    sizes, offsets = note["column-sizes"], note["split-offsets"]
    return old.replace(
        file_path=note["path"],
        file_size_in_bytes=note["size"],
        column_sizes=None if sizes is None else dict(sizes),
        split_offsets=None if offsets is None else tuple(offsets),
        key_metadata=note["key-metadata"],
    )
