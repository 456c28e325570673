"""The documents say what is so: the tests that SECURITY.md names exist, the tutorial runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import python_environment

import ags1

TESTS = Path(__file__).parent
PROJECT = TESTS.parent

pytestmark = pytest.mark.skipif(
    not (PROJECT / "SECURITY.md").exists(), reason="the documents are not beside these tests"
)


def test_every_test_that_security_names_exists() -> None:
    text = (PROJECT / "SECURITY.md").read_text()
    named = re.findall(r"`(?:((?:\w+/)?test_\w+\.py)(?:::)?)?(test_\w+)?`", text)
    here = ""
    count = 0
    for file, test in named:
        here = file or here
        if here:
            source = (TESTS / here).read_text()
            assert not test or f"def {test}(" in source, f"{here}::{test}"
            count += 1
    assert count > 20


def test_every_line_of_the_threat_model_names_a_test() -> None:
    text = (PROJECT / "SECURITY.md").read_text()
    table = text[text.index("| Against |") : text.index("## What is not")].splitlines()
    rows = [line for line in table[2:] if line.startswith("|")]
    assert len(rows) > 10
    assert [row for row in rows if not re.search(r"`(\w+/)?test_", row)] == []


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (PROJECT / "README.md").read_text()
    tutorial = text[text.index("## Tutorial") :]
    code = tutorial[tutorial.index("```python\n") + 10 :]
    code = code[: code.index("```")]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["stored"] == names["km"]
    assert (tmp_path / "numbers.ags1").exists()


@pytest.mark.filterwarnings("ignore:.*for tests and demonstrations")
def test_a_tables_keys_open_as_the_readme_says() -> None:
    text = (PROJECT / "README.md").read_text()
    code = text[text.index("from ags1.keys import EncryptionManager") :]
    code = code[: code.index("```")]
    aws = '{"encryption.kms-type": "aws", "client.region": "eu-west-1"}'
    assert aws in code
    assert '"alias/orders"' in code
    folder = TESTS / "tables" / "parquet_plain" / "metadata"
    metadata = json.loads(max(folder.glob("*.metadata.json")).read_text())
    names = {
        "ags1": ags1,
        "properties": {
            "encryption.kms-type": "memory",
            "encryption.kms.key.keyA": b"0123456789012345".hex(),
        },
        "metadata": metadata,
        "manifest_list": str(folder / Path(metadata["snapshots"][-1]["manifest-list"]).name),
    }
    code = code.replace(aws, "properties").replace("alias/orders", "keyA")
    code = code.replace("    ...", "    manifests = list(reader(f))")
    exec(compile("from fastavro import reader\n" + code, "README.md", "exec"), names)
    manifests = names["manifests"]
    assert isinstance(manifests, list)
    assert all(manifest["key_metadata"] for manifest in manifests)
    assert len(manifests) == 3


@pytest.mark.filterwarnings("ignore:.*for tests and demonstrations")
def test_a_table_opens_as_the_readme_says() -> None:
    text = (PROJECT / "README.md").read_text()
    code = text[text.index("from ags1.iceberg import open_table") :]
    code = code[: code.index("```")]
    folder = TESTS / "tables" / "parquet_plain"
    location = max((folder / "metadata").glob("*.metadata.json"))
    kms = {
        "encryption.kms-type": "memory",
        "encryption.kms.key.keyA": b"0123456789012345".hex(),
    }
    replacements = {
        '"s3://lake/db/flights/metadata/00003-767abab5.metadata.json"': repr(str(location)),
        '{"encryption.kms-type": "vault", "kms.vault.url": "https://vault:8200"}': repr(kms),
        'expected_key_id="tables"': 'expected_key_id="keyA", location_map=location_map',
    }
    for written, meant in replacements.items():
        assert written in code
        code = code.replace(written, meant)
    names: dict[str, Any] = {
        "location_map": {"file:/tmp/ags1-fixtures/parquet_plain": str(folder)},
    }
    exec(compile(code, "README.md", "exec"), names)
    assert names["table"].scan().to_arrow().num_rows == 3000


PLAIN_TABLES = """
import pyarrow
from ags1.iceberg import load_catalog
inner = load_catalog("lake").inner
inner.create_namespace_if_not_exists("db")
for name in ("db.plain", "db.other"):
    rows = pyarrow.table({"id": [1, 2, 3]})
    inner.create_table(name, rows.schema).append(rows)
"""


@pytest.mark.slow
def test_tables_are_written_as_the_readme_says(tmp_path: Path) -> None:
    """A new user's home, with the configuration, the Python and the commands as they stand."""
    text = (PROJECT / "README.md").read_text()
    section = text[text.index("## Writing tables") :]
    section = section[: section.index("\n## ", 3)].replace("/srv", str(tmp_path))

    def blocks(language: str) -> list[str]:
        return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)

    (tmp_path / "lake").mkdir()
    [configuration] = blocks("yaml")
    (tmp_path / ".pyiceberg.yaml").write_text(configuration)
    home = python_environment() | {"HOME": str(tmp_path)}
    home["PATH"] = f"{Path(sys.executable).parent}:{os.defpath}"

    def run(*command: str) -> None:
        done = subprocess.run(command, cwd=tmp_path, env=home, capture_output=True, text=True)
        assert done.returncode == 0, (command[0], done.stdout, done.stderr)

    run("ags1", "keygen")
    first, second = blocks("python")
    run(sys.executable, "-c", PLAIN_TABLES)
    run(
        sys.executable,
        "-c",
        first.replace("create_namespace(", "create_namespace_if_not_exists(") + second,
    )
    [commands] = blocks("sh")
    run("sh", "-ec", commands)
