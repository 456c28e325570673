"""Why an implementation differs from the corpus: the place in its source, for each known cause."""

from __future__ import annotations

from dataclasses import dataclass

from .corpus_cases import Case
from .corpus_table_differences import table_explanation


@dataclass(frozen=True, slots=True)
class _Known:
    """A cause: cases of ``kind``, or of any, with one of ``flags`` have this ``outcome``."""

    name: str
    outcome: str
    flags: frozenset[str]
    why: str
    kind: str = ""


def _known(name: str, outcome: str, flags: str, why: str, kind: str = "") -> _Known:
    return _Known(name, outcome, frozenset(flags.split()), why, kind)


_CUT_UNION = (
    "`decode_internal` of the crate `apache-avro` reads null where a datum ends before a union"
)
_KNOWN = (
    _known(
        "Java",
        "unsupported",
        "NonDefaultBlockSize",
        "`AesGcmInputStream.validateHeader` accepts `Ciphers.PLAIN_BLOCK_SIZE`, 1 MiB, alone",
    ),
    _known(
        "Java",
        "fail",
        "TrailingData WrongFileLength",
        "`AesGcmInputFile.newStream` takes the length from the key metadata, and nobody compares "
        "it with the size of the file. What is returned is authentic",
    ),
    _known(
        "Java",
        "fail",
        "EmptyBlock",
        "`AesGcmInputStream.read` stops at the plaintext's size, so an empty last block after a "
        "full one is never decrypted",
    ),
    _known(
        "Java",
        "fail",
        "WrongKeyLength NegativeLength",
        "`KeyMetadataDecoder.decode` and `StandardKeyMetadata` check no lengths: the cipher "
        "refuses such a key later, and no file has such a length",
    ),
    _known(
        "Java",
        "fail",
        "ProposedSpelling DifferentTimestamps",
        "`StandardEncryptionManager` knows `KEY_TIMESTAMP` alone",
    ),
    _known(
        "Java",
        "fail",
        "DuplicateKeyId",
        "`StandardEncryptionManager` puts the entries into a map by their IDs: the last one counts",
    ),
    _known(
        "iceberg-rust",
        "unsupported",
        "NonDefaultBlockSize",
        "`AesGcmFileRead` (`encryption/stream.rs`) has blocks of `PLAIN_BLOCK_SIZE`, 1 MiB, alone",
    ),
    _known(
        "iceberg-rust",
        "fail",
        "BadMagic BlockSizeChanged",
        "`AesGcmFileRead::new` (`encryption/stream.rs`) never reads the header",
    ),
    _known(
        "iceberg-rust",
        "fail",
        "WrongFileLength TruncationAtBlock",
        "`EncryptedInputFile::reader` (`encryption/io.rs`) takes the stored file's size and "
        "ignores `file_length`: a file that was cut at the end of a block is read as a shorter one",
    ),
    _known(
        "iceberg-rust",
        "fail",
        "EmptyBlock",
        "`AesGcmFileRead::read` stops at the plaintext's size, so an empty last block after a "
        "full one is never decrypted",
    ),
    _known(
        "iceberg-rust",
        "fail",
        "Truncation",
        "`AesGcmFileRead::new` takes a header without a block for an empty file, and nobody asks "
        "`file_length`",
        "stream",
    ),
    _known(
        "iceberg-rust",
        "fail",
        "Truncation",
        _CUT_UNION,
        "key metadata",
    ),
    _known(
        "iceberg-rust",
        "fail",
        "KeyMetadata",
        _CUT_UNION,
        "envelope",
    ),
    _known(
        "iceberg-rust",
        "fail",
        "OtherMasterKeyNamed",
        "`EncryptionManager::unwrap_key_encryption_key` unwraps a KEK with the master key that its "
        "entry names, Java with the table's",
    ),
    _known(
        "iceberg-rust",
        "fail",
        "HeaderOnly",
        "`AesGcmFileRead::new` accepts a header without a block, also where no length says that "
        "nothing was cut off",
    ),
    _known(
        "iceberg-rust",
        "fail",
        "WrongKeyLength",
        "`StandardKeyMetadata::decode` (`encryption/key_metadata.rs`) checks no length of a key: "
        "the cipher refuses it later",
    ),
    _known(
        "iceberg-rust",
        "fail",
        "ProposedSpelling DifferentTimestamps",
        "`EncryptionManager::kek_timestamp_aad` (`encryption/manager.rs`) knows `KEY_TIMESTAMP` "
        "alone",
    ),
    _known(
        "iceberg-rust",
        "fail",
        "DuplicateKeyId",
        "`TableMetadata` and `EncryptionManager` keep the entries in a map by their IDs: the last "
        "one counts",
    ),
)


def explanation(name: str, case: Case, outcome: str) -> str:
    """Return why the implementation ``name`` differs on a case; empty if nobody knows yet."""
    if case.kind == "table":
        return table_explanation(name, case.flags, outcome)
    for known in _KNOWN:
        is_of_case = known.kind in ("", case.kind) and known.flags & set(case.flags)
        if (known.name, known.outcome) == (name, outcome) and is_of_case:
            return known.why
    return ""
