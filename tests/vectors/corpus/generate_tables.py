"""Makes ``tables/index.json`` and the tables that were tampered with, each out of a valid table.

``python generate_tables.py`` writes them; ``generate()`` returns their files. The same files come
out each time, because keys and nonces are derived from names. The valid tables come from Java,
iceberg-rust and ags1; the README says how. Shares no code with ags1, and decrypts with ``spec.py``.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import json
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import fastavro
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FOLDER = Path(__file__).parent
TABLES = FOLDER / "tables"
sys.path.insert(0, str(FOLDER))
import spec  # noqa: E402

LOCATION = "file:/tmp/ags1-fixtures"
MASTER_KEYS = {"keyA": b"0123456789012345", "keyB": b"1123456789012345"}
WRITERS = {
    "java": {"name": "Java", "version": "Iceberg 1.12.0 with Spark 4.1.4"},
    "java_1_11": {"name": "Java", "version": "Iceberg 1.11.0 with Spark 4.1.4"},
    "iceberg_rust": {"name": "iceberg-rust", "version": "0.10.1"},
    "ags1": {"name": "ags1", "version": "0.1.0"},
}


def derived(name: str, size: int) -> bytes:
    """Return ``size`` bytes that depend on ``name`` alone."""
    return hashlib.shake_256(f"ags1 corpus/tables/{name}".encode()).digest(size)


def seal(key: bytes, text: bytes, aad: bytes, name: str) -> bytes:
    nonce = derived(f"{name}/nonce", 12)
    return nonce + AESGCM(key).encrypt(nonce, text, aad)


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
    marker = derived(f"{name}/marker", 16)
    fastavro.writer(out, schema, records, codec="null", metadata=own, sync_marker=marker)
    return out.getvalue()


class Table:
    """A copy of a valid table, to be changed. ``files`` are the stored ones by their paths."""

    def __init__(self, base: str, name: str) -> None:
        self.name = name
        self.location = f"{LOCATION}/{base}"
        paths = sorted(path for path in (TABLES / base).rglob("*") if path.is_file())
        self.files = {str(path.relative_to(TABLES / base)): path.read_bytes() for path in paths}
        del self.files["expected.jsonl"]
        (self.metadata_path,) = (path for path in self.files if path.endswith(".metadata.json"))
        self.metadata: dict[str, Any] = json.loads(self.files[self.metadata_path])
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
        key_id = base64.b64encode(derived(f"{self.name}/key-id", 16)).decode()
        sealed = base64.b64encode(seal(kek, km, aad, f"{self.name}/list-key")).decode()
        entry = {"key-id": key_id, "encrypted-key-metadata": sealed}
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

    def sealed(self, text: bytes, name: str) -> tuple[bytes, bytes]:
        """Return a stream and its key metadata, under a key of its own."""
        name = f"{self.name}/{name}"
        key, prefix = derived(f"{name}/key", 16), derived(f"{name}/prefix", 16)
        data = struct.pack("<4si", b"AGS1", 1 << 20)
        data += seal(key, text, prefix + bytes(4), name)
        return data, key_metadata(key, prefix, len(data))

    def replace_list(self) -> None:
        """Write the manifest list again, with ``manifests`` as they are now."""
        text = avro_file(self.manifest_list[0], self.manifests, f"{self.name}/list")
        data, km = self.sealed(text, "list")
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
    again = seal(MASTER_KEYS["keyB"], kek, b"", f"{table.name}/kek")
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
    table.files[path], _ = table.sealed(text, "forged")


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
    table.files[path], _ = table.sealed(text, "forged")


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
    table.files[manifest_path(table)], km = table.sealed(text, "manifest")
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


# -- The index -------------------------------------------------------------------------------------

NOTES = {
    "ChangedFile": ("AUTH_BYPASS", "A bit of an encrypted file was changed."),
    "ChangedKek": ("AUTH_BYPASS", "The KEK's entry was changed."),
    "Exchanged": ("AUTH_BYPASS", "Encrypted files were exchanged, or one was replaced."),
    "ExpiredKek": ("FUNCTIONALITY", "The first KEK wraps nothing new, and still opens its keys."),
    "MissingKey": ("AUTH_BYPASS", "The key of the manifest list is not in encryption-keys."),
    "NoFileLength": (
        "MISSING_STEP",
        "The key metadata has no file lengths. A reader must refuse, unless its caller asked it to "
        "trust the sizes of the files. The rows are those for such a caller.",
    ),
    "OldSnapshot": (
        "AUTH_BYPASS",
        "A snapshot has the manifest list of an older one, and its key. The list itself says for "
        "which snapshot it was written.",
    ),
    "PlainDataFile": (
        "FUNCTIONALITY",
        "An encrypted manifest lists a plaintext data file without a key, as a writer with keys "
        "may. A reader may refuse it: nothing authenticates the rows.",
    ),
    "PlainManifest": (
        "AUTH_BYPASS",
        "An encrypted manifest list has a plaintext manifest, as rewrite_manifests left it before "
        "Iceberg 1.12. Nothing authenticates the manifest. If nobody changed it, a reader may read "
        "it, and the case is acceptable.",
    ),
    "PlainManifestList": (
        "AUTH_BYPASS",
        "The snapshot of an encrypted table has a plaintext manifest list and no key for it.",
    ),
    "Stripped": (
        "AUTH_BYPASS",
        "The catalog says that the table is encrypted, and its metadata that it is not.",
    ),
    "TrailingData": ("AUTH_BYPASS", "Something follows the end of a file."),
    "Truncation": ("AUTH_BYPASS", "The end of a file is missing."),
    "UnknownMasterKey": ("MISSING_STEP", "The KMS has no master key of this ID."),
    "WrongKeyId": ("AUTH_BYPASS", "The metadata names another master key than the catalog."),
    "WrongMasterKey": ("MISSING_STEP", "Another master key wrapped the KEK."),
}

# Name, writer, comment, flags; in the order of their IDs.
VALID = (
    ("java_parquet", "java", "Parquet, two appends", ()),
    ("java_avro", "java", "Avro, partitioned, two appends", ()),
    ("java_deletion_vectors", "java", "Parquet, a delete and an update merged on read", ()),
    ("java_equality_deletes", "java", "equality deletes in Parquet and in Avro", ()),
    ("java_256_bit_keys", "java", "data keys of 32 bytes", ()),
    ("java_two_keks", "java", "an expired KEK and a new one", ("ExpiredKek",)),
    ("java_empty", "java", "no snapshot", ()),
    ("ags1_parquet", "ags1", "Parquet, two appends", ()),
    ("ags1_avro", "ags1", "Avro, two appends", ()),
    ("ags1_deletion_vectors", "ags1", "Parquet, a deletion vector for each of two files", ()),
    ("ags1_256_bit_keys", "ags1", "data keys of 32 bytes", ()),
    ("ags1_two_keks", "ags1", "an expired KEK and a new one", ("ExpiredKek",)),
)
# As VALID, and the class of the error of a reader that refuses.
ACCEPTABLE = (
    (
        "java_plain_manifest",
        "java_1_11",
        "two appends and a delete; rewrite_manifests left a plaintext manifest",
        "PlainManifest",
        "NotEncryptedError",
    ),
    (
        "iceberg_rust",
        "iceberg_rust",
        "Parquet, one snapshot",
        "NoFileLength",
        "MissingFileLengthError",
    ),
)
NOT_ENCRYPTED, INTEGRITY = "NotEncryptedError", "MetadataIntegrityError"
TRUNCATED, AUTHENTICATION = "TruncatedError", "AuthenticationError"

# The valid table, what is done to it, the kind of file that has the fault, a comment, the flag and
# the class of the error. Without an error, the table is acceptable. The new table has the name of
# the function.
TAMPERED: tuple[tuple[str, Callable[[Table], None], str, str, str, str | None], ...] = (
    ("ags1_avro", plain_data_file, "data file", "a plaintext Avro file", "PlainDataFile", None),
    (
        "ags1_avro",
        stripped,
        "metadata",
        "all files decrypted, and no key named",
        "Stripped",
        NOT_ENCRYPTED,
    ),
    (
        "java_256_bit_keys",
        key_id_removed,
        "metadata",
        "encryption.key-id removed",
        "Stripped",
        NOT_ENCRYPTED,
    ),
    ("ags1_parquet", other_key_id, "metadata", "keyB instead of keyA", "WrongKeyId", INTEGRITY),
    (
        "ags1_parquet",
        unknown_master_key,
        "metadata",
        "keyC, in the catalog too",
        "UnknownMasterKey",
        "KmsKeyNotFoundError",
    ),
    (
        "java_256_bit_keys",
        kek_of_other_master_key,
        "metadata",
        "the KEK wrapped by keyB",
        "WrongMasterKey",
        "KmsUnwrapError",
    ),
    (
        "java_256_bit_keys",
        kek_timestamp,
        "metadata",
        "the KEK is 1 ms younger",
        "ChangedKek",
        AUTHENTICATION,
    ),
    (
        "java_256_bit_keys",
        missing_key,
        "metadata",
        "no entry of the key-id",
        "MissingKey",
        "KeyMetadataError",
    ),
    (
        "ags1_parquet",
        plain_manifest_list,
        "manifest list",
        "the list decrypted, and no key-id",
        "PlainManifestList",
        NOT_ENCRYPTED,
    ),
    (
        "java_parquet",
        older_manifest_list,
        "metadata",
        "the parent's list and key-id",
        "OldSnapshot",
        INTEGRITY,
    ),
    (
        "ags1_parquet",
        forged_manifest_list,
        "manifest list",
        "the list under another key",
        "Exchanged",
        AUTHENTICATION,
    ),
    (
        "java_256_bit_keys",
        cut_manifest_list,
        "manifest list",
        "a byte less",
        "Truncation",
        TRUNCATED,
    ),
    (
        "java_256_bit_keys",
        longer_manifest_list,
        "manifest list",
        "a byte more",
        "TrailingData",
        "FormatError",
    ),
    (
        "ags1_avro",
        forged_plain_manifest,
        "manifest",
        "a plaintext manifest that names another file",
        "PlainManifest",
        NOT_ENCRYPTED,
    ),
    ("ags1_avro", cut_manifest, "manifest", "a byte less", "Truncation", TRUNCATED),
    (
        "java_avro",
        forged_manifest,
        "manifest",
        "the manifest under another key",
        "Exchanged",
        AUTHENTICATION,
    ),
    (
        "java_256_bit_keys",
        cut_data_file,
        "data file",
        "a byte less of a Parquet file",
        "Truncation",
        TRUNCATED,
    ),
    (
        "java_avro",
        cut_to_the_header,
        "data file",
        "an Avro file without its block",
        "Truncation",
        TRUNCATED,
    ),
    (
        "ags1_parquet",
        data_files_exchanged,
        "data file",
        "two Parquet files exchanged",
        "Exchanged",
        AUTHENTICATION,
    ),
    (
        "ags1_avro",
        changed_data_file,
        "data file",
        "a bit of an Avro file",
        "ChangedFile",
        AUTHENTICATION,
    ),
    (
        "ags1_deletion_vectors",
        cut_deletion_vector,
        "delete file",
        "a byte less",
        "Truncation",
        TRUNCATED,
    ),
    (
        "ags1_deletion_vectors",
        changed_deletion_vector,
        "delete file",
        "a bit of a deletion vector",
        "ChangedFile",
        AUTHENTICATION,
    ),
    (
        "java_equality_deletes",
        changed_equality_delete,
        "delete file",
        "a bit of an equality delete",
        "ChangedFile",
        AUTHENTICATION,
    ),
)


def test(number: int, name: str, writer: str, comment: str, **more: Any) -> dict[str, Any]:
    """Return a case; ``more`` are its other fields."""
    base = more["madeFrom"] or name
    (metadata,) = (TABLES / base).glob("metadata/*.metadata.json")
    is_invalid = more["result"] == "invalid"
    found = {path.suffix[1:] for path in (TABLES / base).glob("data/**/*.*")}
    formats = [kind for kind in ("parquet", "avro") if kind in found]
    return {
        "tcId": number,
        "comment": comment,
        "name": name,
        "writer": WRITERS[writer],
        "madeFrom": more["madeFrom"],
        "location": json.loads(metadata.read_bytes())["location"],
        "metadata": f"{name}/metadata/{metadata.name}",
        "dataFileFormat": formats[0] if formats else None,
        "expectedKeyId": more.get("key_id", "keyA"),
        "faultIn": more.get("fault"),
        "rows": None if is_invalid else f"{base}/expected.jsonl",
        "result": more["result"],
        "error": more.get("error"),
        "flags": list(more["flags"]),
    }


def generate() -> dict[str, bytes]:
    """Return the files of the tampered tables and the index, by their paths in ``tables``."""
    tests: list[dict[str, Any]] = []
    files: dict[str, bytes] = {}
    for name, writer, comment, flags in VALID:
        more = {"madeFrom": None, "result": "valid", "flags": flags}
        tests.append(test(len(tests) + 1, name, writer, comment, **more))
    for name, writer, comment, flag, error in ACCEPTABLE:
        more = {"madeFrom": None, "result": "acceptable", "flags": [flag], "error": error}
        tests.append(test(len(tests) + 1, name, writer, comment, **more))
    for base, change, fault, comment, flag, error in TAMPERED:
        name = change.__name__
        table = Table(base, name)
        change(table)
        files |= {f"{name}/{path}": data for path, data in table.stored().items()}
        more = {"madeFrom": base, "fault": fault, "result": "invalid", "flags": [flag]}
        more["error"] = error
        if error is None:
            more["result"] = "acceptable"
        if change is unknown_master_key:
            more["key_id"] = "keyC"
        writer = base.partition("_")[0]
        tests.append(test(len(tests) + 1, name, writer, comment, **more))
    index = {
        "algorithm": "AGS1",
        "schema": "index_schema.json",
        "header": ["Data: CC0 1.0. How to use these tables: README.md in the folder above."],
        "numberOfTests": len(tests),
        "notes": {
            flag: {"bugType": NOTES[flag][0], "description": NOTES[flag][1]}
            for flag in sorted({flag for one in tests for flag in one["flags"]})
        },
        "testGroups": [
            {
                "type": "Ags1Table",
                "masterKeys": {name: key.hex() for name, key in MASTER_KEYS.items()},
                "tests": tests,
            }
        ],
    }
    return files | {"index.json": (json.dumps(index, indent=1) + "\n").encode()}


def main() -> None:
    generated = generate()
    for _, change, *_ in TAMPERED:
        shutil.rmtree(TABLES / change.__name__, ignore_errors=True)
    for path, data in generated.items():
        target = TABLES / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


if __name__ == "__main__":
    main()
