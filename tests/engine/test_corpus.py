"""The corpus of ``tests/vectors/corpus``: each case through every way of reading, and through the
specification as a program."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import re
import sys
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
from reading import write_anew

import ags1
from ags1 import KeyMetadata
from ags1.keys.manager import EncryptionManager
from ags1.kms import LocalKms
from ags1.kms.memory import KeysInPropertiesWarning, MemoryKms

from .corpus_ways import FURTHER_WAYS, OF_JOBS, ONE_BLOCK_SIZE, UNSIZED, WAYS, Stream

FOLDER = Path(__file__).parents[1] / "vectors/corpus"


def _program(name: str) -> ModuleType:
    """Import a program of the corpus, whose folder is no package."""
    spec = importlib.util.spec_from_file_location(f"corpus_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


DOCUMENTS = {path.name: json.loads(path.read_text()) for path in FOLDER.glob("*_test.json")}
TESTS = {name: document["testGroups"][0]["tests"] for name, document in DOCUMENTS.items()}
STREAM_FLAGS = {flag for case in TESTS["ags1_stream_test.json"] for flag in case["flags"]}
KEY_METADATA = TESTS["ags1_key_metadata_test.json"]
ENVELOPES = TESTS["ags1_key_envelope_test.json"]
spec = _program("spec")


def _streams() -> Iterator[Stream]:
    for case in TESTS["ags1_stream_test.json"]:
        data = zlib.decompress(bytes.fromhex(case["ct"]))
        length = None if case["fileLength"] is None else int(case["fileLength"])
        km = KeyMetadata(bytes.fromhex(case["key"]), _bytes(case["aadPrefix"]), length)
        released, error = bytearray(), None
        try:
            for block in spec.read_blocks(data, km.encryption_key, km.aad_prefix, length):
                released += block
        except Exception as raised:
            error = type(raised).__name__
        digest = hashlib.sha256(released).hexdigest()
        yield Stream(case, data, km, bytes(released), digest, error)


@pytest.fixture(scope="module")
def streams() -> list[Stream]:
    return list(_streams())


def _check(
    stream: Stream, out: bytes | bytearray, error: Exception | None, *, sized: bool = True
) -> None:
    """Check what a way of reading released, and its error. A reader of a source that does not tell
    its size may meet a tag that does not match before it notices a wrong length."""
    case = stream.case
    shown = f"{case['tcId']}: {case['comment']}: {error!r}"
    if error is not None:
        assert isinstance(error, ags1.Ags1Error), shown
        allowed = (case["error"],) if case["result"] == "invalid" else ("FormatError",)
        allowed += () if sized else ("AuthenticationError", "FormatError")
        allowed += ("NotEncryptedError",) if "BadMagic" in case["flags"] else ()
        if isinstance(error, ags1.MissingFileLengthError):
            assert (case["fileLength"], len(out)) == (None, 0), shown
            return
        assert case["result"] != "valid", shown
        assert type(error).__name__ in allowed, shown
        assert len(out) <= case["msgLength"], shown
        if out:
            genuine = _genuine_prefix(stream)[: case["msgLength"]]
            assert hashlib.sha256(genuine).hexdigest() == case["msgSha256"], shown
            assert genuine.startswith(out), shown
    else:
        assert case["result"] != "invalid", shown
        assert len(out) == case["msgLength"], shown
        assert stream.released_sha256 == case["msgSha256"], shown
        assert out == stream.released, shown


def _genuine_prefix(stream: Stream) -> bytes:
    """Return the plaintext of the first blocks whose tags match. The last one may be cut out by the
    trusted length, or by the end of the data."""

    def read(data: bytes) -> bytes:
        slot = 28 + int.from_bytes(data[4:8], "little")
        prefix, text = stream.km.aad_prefix or b"", bytearray()
        with contextlib.suppress(spec.AuthenticationError):
            for number, at in enumerate(range(8, len(data), slot)):
                sealed, aad = data[at : at + slot], prefix + number.to_bytes(4, "little")
                text += spec.open_sealed(stream.km.encryption_key, sealed, aad)
        return bytes(text)

    return max(read(stream.data), read(stream.data[: stream.km.file_length]), key=len)


def _of_each_flag(streams: list[Stream]) -> list[Stream]:
    """Return the first case of each set of flags and each result."""
    first: dict[tuple[str, ...], Stream] = {}
    for stream in streams:
        first.setdefault((*stream.case["flags"], stream.case["result"]), stream)
    return list(first.values())


# Of `make test`: half of the ways; engine/test_tamper.py has these with other faults.
@pytest.mark.slow_variants(
    r"(decrypt_into|decrypt_many|decrypt_file|read in threads|readinto|lines)",
    r"(read from an object|ags1 cat)",
    r"(pread|readv|PythonFile|read1 and peek|fsspec's cat_file)",
    r"(ags1.arrow.filesystem|.* URL|ags1 decrypt( of a pipe)?)",
    r"a job that decrypts blocks",
)
@pytest.mark.parametrize("way", [*WAYS, *FURTHER_WAYS])
def test_every_way_of_reading(
    way: str, streams: list[Stream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stream.ags1"
    LocalKms(str(tmp_path / "keyring.json")).create_key("default")
    monkeypatch.setenv("AGS1_KEYRING", str(tmp_path / "keyring.json"))
    read = WAYS[way] if way in WAYS else FURTHER_WAYS[way]
    cases = streams if way in WAYS else _of_each_flag(streams)
    assert {flag for stream in cases for flag in stream.case["flags"]} == STREAM_FLAGS
    for stream in cases:
        write_anew(path, stream.data)
        out, error = bytearray(), None
        try:
            read(stream, path, out)
        except Exception as raised:
            error = raised
        is_other_size = "NonDefaultBlockSize" in stream.case["flags"]
        unsized = stream.km.file_length is None and way in OF_JOBS
        if way in ONE_BLOCK_SIZE and is_other_size and stream.case["result"] != "invalid":
            refused = ags1.MissingFileLengthError if unsized else ags1.FormatError
            assert (type(error), out) == (refused, b""), stream.case["comment"]
        elif way in ONE_BLOCK_SIZE and is_other_size:
            assert isinstance(error, ags1.Ags1Error), stream.case["comment"]
            assert not out
        else:
            _check(stream, out, error, sized=way not in UNSIZED)


def test_verify_file(streams: list[Stream], tmp_path: Path) -> None:
    path = tmp_path / "stream"
    for stream in streams:
        write_anew(path, stream.data)
        case = stream.case
        try:
            size = ags1.verify_file(path, stream.km, **stream.trust)
            assert (case["result"] != "invalid", size) == (True, case["msgLength"]), case["comment"]
        except ags1.Ags1Error as error:
            _check(stream, b"", error)


def test_without_a_trusted_length_nothing_is_read(streams: list[Stream]) -> None:
    untrusted = [stream for stream in streams if stream.km.file_length is None]
    assert len(untrusted) > 20
    for stream in untrusted:
        with pytest.raises(ags1.MissingFileLengthError):
            ags1.decrypt(stream.data, stream.km)


def test_the_specification_reads_the_streams(streams: list[Stream]) -> None:
    for stream in streams:
        case = stream.case
        assert stream.error == case["error"], case["comment"]
        assert len(stream.released) <= case["msgLength"], case["comment"]
        if stream.error is None:
            assert stream.released_sha256 == case["msgSha256"], case["comment"]


@pytest.mark.parametrize("parse", [spec.parse_key_metadata, KeyMetadata.from_bytes])
def test_key_metadata(parse: Callable[[bytes], Any]) -> None:
    for case in KEY_METADATA:
        error, km = None, None
        try:
            km = parse(bytes.fromhex(case["data"]))
        except (ags1.KeyMetadataError, spec.KeyMetadataError) as raised:
            error = type(raised).__name__
        assert error == case["error"], case["comment"]
        if km is not None:
            key = km.encryption_key if isinstance(km, KeyMetadata) else km.key
            length = None if km.file_length is None else str(km.file_length)
            read = (key.hex(), km.aad_prefix, length)
            expected = (case["encryptionKey"], _bytes(case["aadPrefix"]), case["fileLength"])
            assert read == expected, case["comment"]
            if isinstance(km, KeyMetadata) and not case["flags"]:
                assert km.to_bytes().hex() == case["data"]


def test_the_specification_opens_the_envelopes() -> None:
    masters = DOCUMENTS["ags1_key_envelope_test.json"]["testGroups"][0]["masterKeys"]
    keys = {key_id: bytes.fromhex(key) for key_id, key in masters.items()}
    for case in ENVELOPES:
        error, km = None, None
        try:
            km = spec.manifest_list_key(
                keys, case["tableKeyId"], case["encryptionKeys"], case["keyId"]
            )
        except Exception as raised:
            error = type(raised).__name__
        assert error == case["error"], case["comment"]
        assert error or km == spec.parse_key_metadata(bytes.fromhex(case["msg"]))


def test_envelopes() -> None:
    masters = DOCUMENTS["ags1_key_envelope_test.json"]["testGroups"][0]["masterKeys"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KeysInPropertiesWarning)
        kms = MemoryKms({f"encryption.kms.key.{name}": key for name, key in masters.items()})
    for case in ENVELOPES:
        table_key, now = case["tableKeyId"], int(case["nowMs"])
        metadata = {
            "properties": {"encryption.key-id": table_key},
            "encryption-keys": case["encryptionKeys"],
        }
        error = None
        try:
            manager = EncryptionManager.from_metadata(
                metadata, kms, table_key_id=table_key, clock_ms=lambda now=now: now
            )
            km = manager.manifest_list_key(case["keyId"])
        except ags1.Ags1Error as raised:
            error = type(raised).__name__
        assert error == case["error"], case["comment"]
        if error is None:
            assert km.to_bytes().hex() == case["msg"], case["comment"]
            if case["wrapsNewKeys"] is not None:
                added = manager.add_manifest_list_key(km)
                wrapped_by = {key.key_id: key.encrypted_by_id for key in manager.encryption_keys}
                old = {entry["key-id"] for entry in case["encryptionKeys"]}
                assert (wrapped_by[added] in old) == case["wrapsNewKeys"], case["comment"]


# Of `make test`: every case of the corpus through every way.
@pytest.mark.slow
@pytest.mark.variant
def test_the_generator_makes_the_corpus_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)

    def unpacked(document: dict[str, Any]) -> dict[str, Any]:
        # Other versions of zlib compress to other bytes.
        for case in document["testGroups"][0]["tests"]:
            if "ct" in case:
                case["ct"] = zlib.decompress(bytes.fromhex(case["ct"]))
        return document

    made = _program("generate").generate()
    assert made.keys() == DOCUMENTS.keys()
    for name, document in made.items():
        committed = json.loads((FOLDER / name).read_text())
        assert unpacked(json.loads(json.dumps(document))) == unpacked(committed), name


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_files_have_the_form_of_their_schemas(name: str) -> None:
    document = DOCUMENTS[name]
    schema = json.loads((FOLDER / document["schema"]).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)
    numbers = [case["tcId"] for case in TESTS[name]]
    assert numbers == list(range(1, document["numberOfTests"] + 1))
    comments = Counter(case["comment"] for case in TESTS[name])
    assert max(comments.values()) == 1


def test_an_invalid_case_has_one_fault_that_its_flag_names() -> None:
    # These flags describe a case, and are no faults.
    circumstances = {"PartialPlaintext", "NonDefaultBlockSize", "NoFileLength"}
    by_flag = defaultdict(set)
    for tests in TESTS.values():
        for case in tests:
            faults = set(case["flags"]) - circumstances
            if case["result"] == "invalid":
                assert len(faults) == 1, case["comment"]
            for flag in case["flags"]:
                by_flag[flag].add(case["result"])
    assert "invalid" in by_flag["PartialPlaintext"]


def test_the_corpus_is_as_large_as_its_readme_says() -> None:
    counts = {name: len(tests) for name, tests in TESTS.items()}
    assert counts == {
        "ags1_stream_test.json": 667,
        "ags1_key_metadata_test.json": 187,
        "ags1_key_envelope_test.json": 83,
    }
    text = (FOLDER / "README.md").read_text()
    for name, count in counts.items():
        assert f"| `{name}` | {count} |" in text


# Of `make test`: every case of the corpus through every way.
@pytest.mark.slow
@pytest.mark.variant
def test_the_export_has_the_form_of_iceberg_verification(tmp_path: Path) -> None:
    export = _program("export")
    export.main(tmp_path)
    paths = sorted(tmp_path.glob("table-spec/encryption/*/cases.json"))
    surfaces = ["key-envelope", "key-metadata", "stream", "tables"]
    assert [path.parent.name for path in paths] == surfaces
    cases = [case for path in paths for case in json.loads(path.read_text())["cases"]]
    assert len({case["id"] for case in cases}) == len(cases) > 700
    allowed = {"id", "valid", "input", "decoded", "canonical", "clause", "spec_ref"}
    for case in cases:
        assert case.keys() <= allowed
        assert ("decoded" in case) == case["valid"]
        assert case["valid"] or "canonical" not in case
    stream = next(case for case in cases if case["id"] == "stream-15")
    data, given = bytes.fromhex(stream["input"]["file"]), stream["input"]
    assert given["file"] == given["file"].upper()
    km = KeyMetadata(
        bytes.fromhex(given["key"]), _bytes(given["aad-prefix"]), int(given["file-length"])
    )
    assert ags1.decrypt(data, km) == b""


def test_the_document_cites_the_cases_that_it_means() -> None:
    text = (FOLDER.parents[2] / "docs/format.md").read_text()
    cited = {
        "S1 EmptyBlock valid, S15 EmptyBlock valid, S81 NonDefaultBlockSize valid",
        "S165 CounterRollover valid, S173 CounterRollover invalid, S175 HeaderOnly acceptable",
        "S179 EmptyBlock invalid, S187 BadMagic invalid, S192 BlockSizeChanged invalid",
        "S195 BlockSizeChanged acceptable, S226 NoFileLength acceptable",
        "S251 BlockFromOtherFile acceptable, S299 - valid, S336 TruncationAtBlock invalid",
        "S337 TruncationAtBlock acceptable, M91 AppendedFields valid, M96 TrailingBytes acceptable",
        "E24 ExpiredKek valid, E30 ProposedSpelling valid, E36 OtherMasterKeyNamed valid",
        "E40 WrongAad invalid, E41 DifferentTimestamps invalid, E73 ExchangedEntries acceptable",
    }
    meant = [citation.split() for line in cited for citation in line.split(", ")]
    assert set(re.findall(r"\b[SME]\d+\b", text)) == {number for number, _, _ in meant}
    files = {"S": TESTS["ags1_stream_test.json"], "M": KEY_METADATA, "E": ENVELOPES}
    for number, flag, result in meant:
        case = files[number[0]][int(number[1:]) - 1]
        assert case["result"] == result, number
        assert flag in case["flags"] or (flag == "-" and not case["flags"]), number


def test_the_document_says_what_java_makes_of_acceptable_cases() -> None:
    text = (FOLDER.parents[2] / "docs/format.md").read_text()
    accepts = json.loads((FOLDER / "results.json").read_text())["implementations"]["Java"][
        "accepts"
    ]
    for number, said in {"S175": "refuses", "S226": "refuses null", "M96": "ignores them"}.items():
        (row,) = (line for line in text.splitlines() if line.startswith("| ") and number in line)
        assert said in row.split("|")[3], number
        kind = {"S": "stream", "M": "key metadata"}[number[0]]
        assert (int(number[1:]) in accepts.get(kind, ())) == (said == "ignores them"), number
