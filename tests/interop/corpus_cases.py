"""The cases of ``tests/vectors/corpus`` in one form, for every implementation to run."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parents[1] / "vectors" / "corpus"
# They say how a case is run. The other flags say what is wrong with it.
_MANNERS = ("PartialPlaintext", "NoFileLength", "NonDefaultBlockSize")


@dataclass(frozen=True, slots=True)
class Case:
    """One case. ``kind`` is stream, key metadata, envelope or table; ``given`` is what an
    implementation is handed, and ``expected`` what it must return, by name, if it accepts.
    ``result`` is valid, invalid or acceptable."""

    number: int
    comment: str
    kind: str
    result: str
    flags: tuple[str, ...]
    given: Mapping[str, Any] = field(repr=False)
    expected: Mapping[str, Any]

    @property
    def group(self) -> str:
        """The kind and what is special about the case."""
        faults = [flag for flag in self.flags if flag not in _MANNERS]
        return f"{self.kind}, {(faults or list(self.flags) or ['no flag'])[0]}"


def cases() -> list[Case]:
    """Return all cases."""
    return [*_streams(), *_key_metadata(), *_envelopes(), *_tables()]


def _tests(name: str) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for group in json.loads((CORPUS / name).read_text())["testGroups"]:
        for test in group["tests"]:
            yield group, test


def _case(
    kind: str, test: Mapping[str, Any], given: Mapping[str, Any], expected: Mapping[str, Any]
) -> Case:
    flags = tuple(test["flags"])
    expected = {} if test["result"] == "invalid" else expected
    return Case(test["tcId"], test["comment"], kind, test["result"], flags, given, expected)


def _streams() -> Iterator[Case]:
    for _, test in _tests("ags1_stream_test.json"):
        given = {
            "key": test["key"],
            "aad_prefix": test["aadPrefix"],
            "file_length": test["fileLength"],
            "stream": zlib.decompress(bytes.fromhex(test["ct"])),
        }
        yield _case("stream", test, given, {"sha256": test["msgSha256"]})


def _key_metadata() -> Iterator[Case]:
    for _, test in _tests("ags1_key_metadata_test.json"):
        expected = {
            "key": test["encryptionKey"],
            "aad_prefix": test["aadPrefix"],
            "file_length": test["fileLength"],
        }
        yield _case("key metadata", test, {"bytes": test["data"]}, expected)


def _envelopes() -> Iterator[Case]:
    for group, test in _tests("ags1_key_envelope_test.json"):
        given = {
            "master_keys": group["masterKeys"],
            "table_key_id": test["tableKeyId"],
            "keys": test["encryptionKeys"],
            "key_id": test["keyId"],
        }
        yield _case("envelope", test, given, {"key_metadata": test["msg"]})


def _tables() -> Iterator[Case]:
    for group, test in _tests("tables/index.json"):
        given = {
            "name": test["name"],
            "location": test["location"],
            "metadata": test["metadata"],
            "table_key_id": test["expectedKeyId"],
            "master_keys": group["masterKeys"],
            "fault_in": test["faultIn"],
            "trust_file_size": "NoFileLength" in test["flags"],
        }
        lines = (CORPUS / "tables" / test["rows"]).read_text() if test["rows"] else ""
        rows = [json.loads(line) for line in lines.splitlines()]
        yield _case("table", test, given, {"rows": rows})
