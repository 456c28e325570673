"""A table of the corpus, and what can be wrong with it. ``generate_tables.py`` calls this.

Each function at the end makes one change. Keys and nonces are derived from names, so the same files
come out each time. Shares no code with ags1, and decrypts with ``spec.py``.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import fastavro
import spec
from derived_bytes import derived, sealed
from generate_envelopes import MASTER_KEYS

TABLES = Path(__file__).parent / "tables"


def key_metadata(key: bytes, prefix: bytes, length: int) -> bytes:
    """Return the bytes of a ``StandardKeyMetadata``."""

    def number(value: int) -> bytes:
        value, out = value << 1, bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    fields = (
        number(len(key)) + key,
        b"\x02" + number(len(prefix)) + prefix,
        b"\x02" + number(length),
    )
    return b"\x01" + b"".join(fields)


def opened(stream: bytes, metadata: bytes | spec.KeyMetadata) -> bytes:
    """Decrypt a stream."""
    km = spec.parse_key_metadata(metadata) if isinstance(metadata, bytes) else metadata
    return b"".join(spec.read_blocks(stream, km.key, km.aad_prefix, km.file_length))


def avro(data: bytes) -> tuple[Any, list[dict[str, Any]]]:
    """Return the header and the records of an Avro file."""
    reader: Any = fastavro.reader(io.BytesIO(data))
    return reader.metadata, list(reader)


def avro_file(header: dict[str, str], records: list[dict[str, Any]], name: str) -> bytes:
    """Return an Avro file without compression, so that no version of zlib changes it."""
    schema = json.loads(header["avro.schema"])
    own = {key: value for key, value in header.items() if not key.startswith("avro.")}
    out = io.BytesIO()
    marker = derived(f"tables/{name}/marker", 16)
    fastavro.writer(out, schema, records, codec="null", metadata=own, sync_marker=marker)
    return out.getvalue()


class Table:
    """A copy of a valid table, to be changed. ``files`` are the stored ones by their paths."""

    def __init__(self, base: str, name: str) -> None:
        self.name = name
        paths = sorted(path for path in (TABLES / base).rglob("*") if path.is_file())
        self.files = {str(path.relative_to(TABLES / base)): path.read_bytes() for path in paths}
        del self.files["expected.jsonl"]
        (self.metadata_path,) = (path for path in self.files if path.endswith(".metadata.json"))
        self.metadata: dict[str, Any] = json.loads(self.files[self.metadata_path])
        self.location: str = self.metadata["location"]
        self._untouched = copy.deepcopy(self.metadata)

    def stored(self) -> dict[str, bytes]:
        """Return the files, with the metadata as it is now."""
        if self.metadata != self._untouched:
            text = json.dumps(self.metadata, separators=(",", ":"))
            self.files[self.metadata_path] = text.encode()
        return self.files

    def path(self, location: str) -> str:
        assert location.startswith(f"{self.location}/")
        return location[len(self.location) + 1 :]

    # -- keys

    @property
    def keys(self) -> list[dict[str, Any]]:
        keys: list[dict[str, Any]] = self.metadata["encryption-keys"]
        return keys

    @property
    def kek(self) -> dict[str, Any]:
        """The entry of the last KEK."""
        return [entry for entry in self.keys if "properties" in entry][-1]

    def add_list_key(self, km: bytes) -> str:
        """Wrap the key metadata of a manifest list under the last KEK; return its ID."""
        wrapped = base64.b64decode(self.kek["encrypted-key-metadata"])
        kek = spec.open_sealed(MASTER_KEYS["keyA"], wrapped, b"")
        aad = self.kek["properties"]["KEY_TIMESTAMP"].encode()
        key_id = base64.b64encode(derived(f"tables/{self.name}/key-id", 16)).decode()
        wrapped = sealed(f"tables/{self.name}/list-key/nonce", kek, km, aad)
        entry = {"key-id": key_id, "encrypted-key-metadata": base64.b64encode(wrapped).decode()}
        self.keys.append(entry | {"encrypted-by-id": self.kek["key-id"]})
        return key_id

    # -- snapshots

    @property
    def snapshots(self) -> list[dict[str, Any]]:
        """All snapshots, the oldest first."""
        return sorted(self.metadata["snapshots"], key=lambda one: int(one["sequence-number"]))

    @property
    def snapshot(self) -> dict[str, Any]:
        return self.snapshots[-1]

    @property
    def list_path(self) -> str:
        return self.path(self.snapshot["manifest-list"])

    def list_key(self, snapshot: dict[str, Any]) -> spec.KeyMetadata:
        return spec.manifest_list_key(MASTER_KEYS, "keyA", self.keys, snapshot["key-id"])

    @cached_property
    def manifest_list(self) -> tuple[Any, list[dict[str, Any]]]:
        """The header and the records of the last snapshot's manifest list, as it was."""
        return avro(opened(self.files[self.list_path], self.list_key(self.snapshot)))

    @cached_property
    def manifests(self) -> list[dict[str, Any]]:
        """The records of the last snapshot's manifests."""
        return self.manifest_list[1]

    def manifest(self, record: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
        """Return the header and the records of a manifest."""
        return avro(opened(self.files[self.path(record["manifest_path"])], record["key_metadata"]))

    def files_of(self, content: int) -> Iterator[dict[str, Any]]:
        """Yield the data files (``content`` 0) or delete files of the last snapshot."""
        for record in self.manifests:
            if (record["content"] > 0) == (content > 0):
                for entry in self.manifest(record)[1]:
                    if entry["status"] < 2 and entry["data_file"]["content"] == content:
                        yield entry["data_file"]

    def file_path(self, content: int, number: int = 0) -> str:
        found = sorted(self.path(file["file_path"]) for file in self.files_of(content))
        return found[number]

    # -- other files in the place of those

    def encrypted(self, text: bytes, name: str) -> tuple[bytes, bytes]:
        """Return a stream and its key metadata, under a key of its own."""
        name = f"tables/{self.name}/{name}"
        key, prefix = derived(f"{name}/key", 16), derived(f"{name}/prefix", 16)
        data = struct.pack("<4si", b"AGS1", 1 << 20)
        data += sealed(f"{name}/nonce", key, text, prefix + bytes(4))
        return data, key_metadata(key, prefix, len(data))

    def replace_list(self) -> None:
        """Write the manifest list again, with ``manifests`` as they are now."""
        text = avro_file(self.manifest_list[0], self.manifests, f"{self.name}/list")
        data, km = self.encrypted(text, "list")
        self.files[self.list_path] = data
        replaced, key_id = self.snapshot["key-id"], self.add_list_key(km)
        self.snapshot["key-id"] = key_id
        self.metadata["encryption-keys"] = [e for e in self.keys if e["key-id"] != replaced]

    def plaintext(self, path: str, km: bytes | spec.KeyMetadata) -> bytes:
        """Replace a file by what it decrypts to; return that."""
        self.files[path] = opened(self.files[path], km)
        return self.files[path]


# -- What is wrong with a table --------------------------------------------------------------------


def change_bit(table: Table, path: str, at: int) -> None:
    data = bytearray(table.files[path])
    data[at] ^= 1
    table.files[path] = bytes(data)


def exchange(table: Table, one: str, other: str) -> None:
    assert len(table.files[one]) == len(table.files[other]), "the length alone would show it"
    table.files[one], table.files[other] = table.files[other], table.files[one]


def stripped(table: Table) -> None:
    """Take all encryption away, without a trace in the files."""
    for snapshot in table.snapshots:
        path = table.path(snapshot["manifest-list"])
        header, manifests = avro(opened(table.files[path], table.list_key(snapshot)))
        for record in manifests:
            manifest_path = table.path(record["manifest_path"])
            if not table.files[manifest_path].startswith(b"Obj"):
                manifest_header, entries = table.manifest(record)
                for entry in entries:
                    file = entry["data_file"]
                    data = table.plaintext(table.path(file["file_path"]), file["key_metadata"])
                    file |= {"key_metadata": None, "file_size_in_bytes": len(data)}
                text = avro_file(manifest_header, entries, f"{table.name}/{manifest_path}")
                table.files[manifest_path] = text
            size = len(table.files[manifest_path])
            record |= {"key_metadata": None, "manifest_length": size}
        table.files[path] = avro_file(header, manifests, f"{table.name}/{path}")
    for snapshot in table.snapshots:
        del snapshot["key-id"]
    del table.metadata["properties"]["encryption.key-id"], table.metadata["encryption-keys"]


def cut_data_file(table: Table) -> None:
    path = table.file_path(0)
    table.files[path] = table.files[path][:-1]


def data_files_exchanged(table: Table) -> None:
    exchange(table, table.file_path(0, 0), table.file_path(0, 1))


def kek_of_other_master_key(table: Table) -> None:
    wrapped = base64.b64decode(table.kek["encrypted-key-metadata"])
    kek = spec.open_sealed(MASTER_KEYS["keyA"], wrapped, b"")
    again = sealed(f"tables/{table.name}/kek/nonce", MASTER_KEYS["keyB"], kek)
    table.kek["encrypted-key-metadata"] = base64.b64encode(again).decode()


def older_manifest_list(table: Table) -> None:
    older = table.snapshots[-2]
    table.snapshot.update({name: older[name] for name in ("manifest-list", "key-id")})


def key_id_removed(table: Table) -> None:
    del table.metadata["properties"]["encryption.key-id"]


def other_key_id(table: Table) -> None:
    table.metadata["properties"]["encryption.key-id"] = "keyB"


def unknown_master_key(table: Table) -> None:
    table.metadata["properties"]["encryption.key-id"] = "keyC"
    for entry in table.keys:
        if "properties" in entry:
            entry["encrypted-by-id"] = "keyC"


def kek_timestamp(table: Table) -> None:
    properties = table.kek["properties"]
    properties["KEY_TIMESTAMP"] = str(int(properties["KEY_TIMESTAMP"]) + 1)


def missing_key(table: Table) -> None:
    key_id = table.snapshot["key-id"]
    table.metadata["encryption-keys"] = [e for e in table.keys if e["key-id"] != key_id]


def plain_manifest_list(table: Table) -> None:
    table.plaintext(table.list_path, table.list_key(table.snapshot))
    del table.snapshot["key-id"]


def forged_manifest_list(table: Table) -> None:
    path = table.list_path
    text = opened(table.files[path], table.list_key(table.snapshot))
    table.files[path], _ = table.encrypted(text, "forged")


def cut_manifest_list(table: Table) -> None:
    table.files[table.list_path] = table.files[table.list_path][:-1]


def longer_manifest_list(table: Table) -> None:
    table.files[table.list_path] += b"\0"


def manifest_path(table: Table) -> str:
    return table.path(table.manifests[0]["manifest_path"])


def plain_manifest(table: Table, forge: Callable[[dict[str, Any]], None] | None = None) -> None:
    record = table.manifests[0]
    header, entries = table.manifest(record)
    for entry in entries if forge else ():
        forge(entry["data_file"])
    data = avro_file(header, entries, f"{table.name}/manifest")
    table.files[manifest_path(table)] = data
    record |= {"key_metadata": None, "manifest_length": len(data)}
    table.replace_list()


def forged_plain_manifest(table: Table) -> None:
    """Have the plaintext manifest name the other manifest's data file, with its key."""
    _, (entry,) = table.manifest(table.manifests[1])
    names = ("file_path", "file_size_in_bytes", "key_metadata")
    other = {name: entry["data_file"][name] for name in names}
    plain_manifest(table, lambda file: file.update(other))


def cut_manifest(table: Table) -> None:
    table.files[manifest_path(table)] = table.files[manifest_path(table)][:-1]


def forged_manifest(table: Table) -> None:
    path = manifest_path(table)
    text = opened(table.files[path], table.manifests[0]["key_metadata"])
    table.files[path], _ = table.encrypted(text, "forged")


def cut_to_the_header(table: Table) -> None:
    path = table.file_path(0)
    table.files[path] = table.files[path][:8]


def changed_data_file(table: Table) -> None:
    change_bit(table, table.file_path(0), 60)


def plain_data_file(table: Table) -> None:
    """Have the encrypted manifest name a plaintext data file, as a writer with the keys can."""
    record = table.manifests[0]
    header, entries = table.manifest(record)
    for entry in entries:
        file = entry["data_file"]
        data = table.plaintext(table.path(file["file_path"]), file["key_metadata"])
        file |= {"key_metadata": None, "file_size_in_bytes": len(data)}
    text = avro_file(header, entries, f"{table.name}/manifest")
    table.files[manifest_path(table)], km = table.encrypted(text, "manifest")
    size = len(table.files[manifest_path(table)])
    record |= {"key_metadata": km, "manifest_length": size}
    table.replace_list()


def cut_deletion_vector(table: Table) -> None:
    path = table.file_path(1)
    table.files[path] = table.files[path][:-1]


def changed_deletion_vector(table: Table) -> None:
    change_bit(table, table.file_path(1), 60)


def changed_equality_delete(table: Table) -> None:
    (path,) = {table.path(f["file_path"]) for f in table.files_of(2) if f["file_format"] == "AVRO"}
    change_bit(table, path, 60)
