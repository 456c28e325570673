"""The tables of ``tests/vectors/corpus/tables``: each one's rows, or the class of its error."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pyiceberg.table import Table

from ags1.errors import (
    Ags1Error,
    MetadataIntegrityError,
    MissingFileLengthError,
    NotEncryptedError,
)
from ags1.iceberg import EncryptedTable, open_table, verify_table
from ags1.iceberg.operations.check.findings import Severity
from ags1.kms.memory import KeysInPropertiesWarning, MemoryKms

CORPUS = Path(__file__).parents[1] / "vectors/corpus"
FOLDER = CORPUS / "tables"
INDEX = json.loads((FOLDER / "index.json").read_text())
(GROUP,) = INDEX["testGroups"]
CASES = GROUP["tests"]


def _program(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"corpus_{name}", CORPUS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kms() -> MemoryKms:
    keys = {f"encryption.kms.key.{name}": key for name, key in GROUP["masterKeys"].items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KeysInPropertiesWarning)
        return MemoryKms(keys)


def _opened(case: dict[str, Any], kms: MemoryKms, **more: Any) -> Table:
    places = {case["location"]: str(FOLDER / case["name"])}
    key_id = case["expectedKeyId"]
    return open_table(str(FOLDER / case["metadata"]), kms, places, expected_key_id=key_id, **more)


def _rows(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_each_table_has_its_rows_or_its_error(case: dict[str, Any], kms: MemoryKms) -> None:
    rows = error = None
    try:
        rows = _rows(_opened(case, kms))
    except Exception as raised:
        error = type(raised).__name__
    assert error == case["error"]
    if error == MissingFileLengthError.__name__:
        rows = _rows(_opened(case, kms, trust_file_size=True))
    if rows is not None:
        expected = (FOLDER / case["rows"]).read_text().splitlines()
        assert rows == [json.loads(line) for line in expected]


# What the finding of verify_table is called, where it opens the table, by the class of the error.
FINDINGS = {
    "AuthenticationError": "authentication",
    "FormatError": "format",
    "KeyMetadataError": "key",
    "KmsKeyNotFoundError": "key",
    "KmsUnwrapError": "key",
    "TruncatedError": "truncated",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_verify_table_finds_the_fault(case: dict[str, Any], kms: MemoryKms) -> None:
    if case["faultIn"] == "metadata" and case["flags"][0] in ("Stripped", "WrongKeyId"):
        with pytest.raises(MetadataIntegrityError):
            _opened(case, kms)
        return
    table = _opened(case, kms, trust_file_size="NoFileLength" in case["flags"])
    assert isinstance(table, EncryptedTable)
    # In the folders is expected.jsonl, which is not encrypted.
    result = verify_table(table, list_folders=False)
    errors = {finding.kind for finding in result.findings if finding.severity == Severity.ERROR}
    assert result.ok == (not errors - {"plain-data-file"})
    if case["result"] == "valid":
        assert not errors
    elif case["error"] in FINDINGS:
        assert FINDINGS[case["error"]] in errors
    elif case["result"] == "invalid":
        assert errors


def test_the_generator_makes_the_tampered_tables_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(CORPUS)
    made = _program("generate_tables").generate()
    tampered = {case["name"] for case in CASES if case["madeFrom"]}
    committed = {
        path.relative_to(FOLDER).as_posix(): path.read_bytes()
        for name in tampered
        for path in (FOLDER / name).rglob("*")
        if path.is_file()
    }
    committed["index.json"] = (FOLDER / "index.json").read_bytes()
    assert made.keys() == committed.keys()
    assert not [path for path, data in made.items() if data != committed[path]]


def test_the_index_has_the_form_of_its_schema() -> None:
    schema = json.loads((FOLDER / INDEX["schema"]).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(INDEX)
    assert [case["tcId"] for case in CASES] == list(range(1, INDEX["numberOfTests"] + 1))
    assert {path.name for path in FOLDER.iterdir() if path.is_dir()} == {c["name"] for c in CASES}
    assert INDEX["notes"].keys() == {flag for case in CASES for flag in case["flags"]}
    writers = {case["writer"]["name"] for case in CASES if not case["madeFrom"]}
    assert writers == {"Java", "iceberg-rust", "ags1"}
    assert f"| `tables/index.json` | {len(CASES)} |" in (CORPUS / "README.md").read_text()


def test_the_tables_are_small() -> None:
    sizes = {
        case["name"]: sum(
            path.stat().st_size for path in (FOLDER / case["name"]).rglob("*") if path.is_file()
        )
        for case in CASES
    }
    assert max(sizes.values()) < 100_000
    assert sum(sizes.values()) < 1_000_000


def test_the_export_has_reference_tables(kms: MemoryKms, tmp_path: Path) -> None:
    cases = _program("export").export_tables(tmp_path)["cases"]
    tables = {
        one["name"]: one for one in json.loads((tmp_path / "index.json").read_text())["tables"]
    }
    fields = {"name", "format-version", "written-by", "data-file-format", "metadata", "description"}
    assert sorted(tables) == sorted(case["input"]["table"] for case in cases)
    assert len(tables) == len([case for case in CASES if case["result"] != "acceptable"])
    for name, table in tables.items():
        assert table.keys() == fields | {"location"}
        assert name.startswith("v3/")
        assert name.endswith(f"-{table['data-file-format']}-data") == bool(
            table["data-file-format"]
        )
    for case in cases:
        name, key_id = case["input"]["table"], case["input"]["encryption.key-id"]
        metadata = tmp_path / tables[name]["metadata"]
        places = {tables[name]["location"]: str(tmp_path / name)}
        read = None if case["valid"] else pytest.raises(Ags1Error)
        with read or contextlib.nullcontext():
            rows = _rows(open_table(str(metadata), kms, places, expected_key_id=key_id))
            assert [row | {"id": str(row["id"])} for row in rows] == case["decoded"]


def test_plaintext_rows_are_refused_where_encryption_is_required(kms: MemoryKms) -> None:
    (case,) = (case for case in CASES if case["name"] == "plain_data_file")
    with pytest.raises(NotEncryptedError):
        _rows(_opened(case, kms, require_encrypted=True))


def test_the_document_says_what_becomes_of_the_tables() -> None:
    text = (CORPUS.parents[2] / "docs/format.md").read_text()
    section = text.partition("## What a reader of tables checks")[2].partition("\n## ")[0]
    results = json.loads((CORPUS / "results.json").read_text())["implementations"]
    read_by_java = {
        number
        for one in results["Java"]["differences"]
        if (one["kind"], one["outcome"], one["what"]) == ("table", "fail", "accepted")
        for number in one["cases"]
    }
    named = set()
    for row in [line.split("|") for line in section.splitlines() if line.startswith("| ")][1:]:
        for name in re.findall(r"`(\w+)`", row[4]):
            (case,) = (case for case in CASES if case["name"] == name)
            is_read = case["result"] != "invalid" or case["tcId"] in read_by_java
            assert row[2].split()[0] == ("reads" if is_read else "refuses"), name
            assert row[3].split()[0] == ("refuses" if case["error"] else "reads"), name
            named.add(case["tcId"])
    assert read_by_java < named
