"""Why an implementation differs on tables of the corpus: the place in its source."""

from __future__ import annotations

from collections.abc import Collection

# Its name, the outcome, the flags (all if there is none), and why.
_KNOWN = (
    (
        "spec.py",
        "unsupported",
        "",
        "it has streams, key metadata and wrapped keys, and no metadata of tables",
    ),
    (
        "Java",
        "fail",
        "TrailingData",
        "`AesGcmInputFile.newStream` takes the length from the key metadata, and nobody compares "
        "it with the size of the file. What is returned is authentic",
    ),
    (
        "Java",
        "fail",
        "PlainManifestList",
        "`EncryptingFileIO.newInputFile(ManifestListFile)` reads the file as plaintext if the "
        "snapshot has no `key-id`. The catalog's hash of the metadata, where it has one, would "
        "show the change",
    ),
    (
        "Java",
        "fail",
        "OldSnapshot",
        "`ManifestLists.read` does not compare the `snapshot-id` in the header of the manifest "
        "list. The catalog's hash of the metadata, where it has one, would show the change",
    ),
    (
        "Java",
        "fail",
        "PlainManifest",
        "`EncryptingFileIO.newInputFile(ManifestFile)` reads the file as plaintext if the "
        "manifest list has no key for it",
    ),
    (
        "iceberg-rust",
        "fail",
        "Stripped WrongKeyId",
        "`EncryptionManager::from_table_metadata` (`encryption/manager.rs`) takes the key ID from "
        "the metadata, and a caller of `TableBuilder` cannot say which one to expect",
    ),
    (
        "iceberg-rust",
        "fail",
        "PlainManifestList",
        "`ManifestListReader::load` (`spec/manifest_list/reader.rs`) reads the file as plaintext "
        "if the snapshot has no `key-id`",
    ),
    (
        "iceberg-rust",
        "fail",
        "OldSnapshot",
        "`ManifestList::parse_with_version` (`spec/manifest_list/mod.rs`) does not compare the "
        "`snapshot-id` in the header of the manifest list",
    ),
    (
        "iceberg-rust",
        "fail",
        "PlainManifest",
        "`ManifestFile::load_manifest` (`spec/manifest_list/manifest_file.rs`) reads the file as "
        "plaintext if the manifest list has no key for it",
    ),
    (
        "iceberg-rust",
        "unsupported",
        "",
        "`FileScanTask` (`scan/task.rs`) has no key of the file, and no Avro data files are read. "
        "The metadata, manifest lists and manifests of these tables were read",
    ),
)


def table_explanation(name: str, flags: Collection[str], outcome: str) -> str:
    """Return why the implementation ``name`` differs on a table; empty if nobody knows yet."""
    for known_name, known_outcome, known_flags, why in _KNOWN:
        of_flags = not known_flags or set(known_flags.split()) & set(flags)
        if (known_name, known_outcome) == (name, outcome) and of_flags:
            return why
    return ""
