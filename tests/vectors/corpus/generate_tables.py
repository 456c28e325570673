"""Makes ``tables/index.json`` and the tables that were tampered with, each out of a valid table.

``python generate_tables.py`` writes them; ``generate()`` returns their files, which are the same
each time. The valid tables come from Java, iceberg-rust and ags1; the README says how.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import table_faults as faults
from derived_bytes import AUTHENTICATION, FORMAT, KEY_METADATA, TRUNCATED, UNWRAP
from table_faults import MASTER_KEYS, TABLES, Table

WRITERS = {
    "java": {"name": "Java", "version": "Iceberg 1.12.0 with Spark 4.1.4"},
    "java_1_11": {"name": "Java", "version": "Iceberg 1.11.0 with Spark 4.1.4"},
    "iceberg_rust": {"name": "iceberg-rust", "version": "0.10.1"},
    "ags1": {"name": "ags1", "version": "0.1.0"},
}

NOT_ENCRYPTED, INTEGRITY = "NotEncryptedError", "MetadataIntegrityError"

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
        NOT_ENCRYPTED,
    ),
    (
        "iceberg_rust",
        "iceberg_rust",
        "Parquet, one snapshot",
        "NoFileLength",
        "MissingFileLengthError",
    ),
)

# The valid table, what is done to it, the kind of file that has the fault, a comment, the flag and
# the class of the error. Without an error, the table is acceptable. The new table has the name of
# the function.
TAMPERED: tuple[tuple[str, Callable[[Table], None], str, str, str, str | None], ...] = (
    (
        "ags1_avro",
        faults.plain_data_file,
        "data file",
        "a plaintext Avro file",
        "PlainDataFile",
        None,
    ),
    (
        "ags1_avro",
        faults.stripped,
        "metadata",
        "all files decrypted, and no key named",
        "Stripped",
        NOT_ENCRYPTED,
    ),
    (
        "java_256_bit_keys",
        faults.key_id_removed,
        "metadata",
        "encryption.key-id removed",
        "Stripped",
        NOT_ENCRYPTED,
    ),
    (
        "ags1_parquet",
        faults.other_key_id,
        "metadata",
        "keyB instead of keyA",
        "WrongKeyId",
        INTEGRITY,
    ),
    (
        "ags1_parquet",
        faults.unknown_master_key,
        "metadata",
        "keyC, in the catalog too",
        "UnknownMasterKey",
        "KmsKeyNotFoundError",
    ),
    (
        "java_256_bit_keys",
        faults.kek_of_other_master_key,
        "metadata",
        "the KEK wrapped by keyB",
        "WrongMasterKey",
        UNWRAP,
    ),
    (
        "java_256_bit_keys",
        faults.kek_timestamp,
        "metadata",
        "the KEK is 1 ms younger",
        "ChangedKek",
        AUTHENTICATION,
    ),
    (
        "java_256_bit_keys",
        faults.missing_key,
        "metadata",
        "no entry of the key-id",
        "MissingKey",
        KEY_METADATA,
    ),
    (
        "ags1_parquet",
        faults.plain_manifest_list,
        "manifest list",
        "the list decrypted, and no key-id",
        "PlainManifestList",
        NOT_ENCRYPTED,
    ),
    (
        "java_parquet",
        faults.older_manifest_list,
        "metadata",
        "the parent's list and key-id",
        "OldSnapshot",
        INTEGRITY,
    ),
    (
        "ags1_parquet",
        faults.forged_manifest_list,
        "manifest list",
        "the list under another key",
        "Exchanged",
        AUTHENTICATION,
    ),
    (
        "java_256_bit_keys",
        faults.cut_manifest_list,
        "manifest list",
        "a byte less",
        "Truncation",
        TRUNCATED,
    ),
    (
        "java_256_bit_keys",
        faults.longer_manifest_list,
        "manifest list",
        "a byte more",
        "TrailingData",
        FORMAT,
    ),
    (
        "ags1_avro",
        faults.forged_plain_manifest,
        "manifest",
        "a plaintext manifest that names another file",
        "PlainManifest",
        NOT_ENCRYPTED,
    ),
    ("ags1_avro", faults.cut_manifest, "manifest", "a byte less", "Truncation", TRUNCATED),
    (
        "java_avro",
        faults.forged_manifest,
        "manifest",
        "the manifest under another key",
        "Exchanged",
        AUTHENTICATION,
    ),
    (
        "java_256_bit_keys",
        faults.cut_data_file,
        "data file",
        "a byte less of a Parquet file",
        "Truncation",
        TRUNCATED,
    ),
    (
        "java_avro",
        faults.cut_to_the_header,
        "data file",
        "an Avro file without its block",
        "Truncation",
        TRUNCATED,
    ),
    (
        "ags1_parquet",
        faults.data_files_exchanged,
        "data file",
        "two Parquet files exchanged",
        "Exchanged",
        AUTHENTICATION,
    ),
    (
        "ags1_avro",
        faults.changed_data_file,
        "data file",
        "a bit of an Avro file",
        "ChangedFile",
        AUTHENTICATION,
    ),
    (
        "ags1_deletion_vectors",
        faults.cut_deletion_vector,
        "delete file",
        "a byte less",
        "Truncation",
        TRUNCATED,
    ),
    (
        "ags1_deletion_vectors",
        faults.changed_deletion_vector,
        "delete file",
        "a bit of a deletion vector",
        "ChangedFile",
        AUTHENTICATION,
    ),
    (
        "java_equality_deletes",
        faults.changed_equality_delete,
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
        if change is faults.unknown_master_key:
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
