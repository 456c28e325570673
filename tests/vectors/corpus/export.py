"""Writes the corpus in the form of apache/iceberg-verification: ``python export.py FOLDER``.

Its ``cases.json`` has for each case an ID, whether it is valid, its input and what it decodes to.
Bytes are upper-case hex, and 64-bit integers are strings. That form has no third result, so
``acceptable`` cases are left out, which nobody has to accept. Files are not compressed there, so
streams above ``MAX_SIZE`` bytes are left out, too. Tables go to ``reference-tables``. Their index
has one more field than that form, ``location``, because a changed table has the location of the
table that it was made from.
"""

from __future__ import annotations

import json
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MAX_SIZE = 64 << 10
SPEC = "https://iceberg.apache.org/"
SURFACES = {
    "stream": ("gcm-stream-spec/", "AES GCM Stream"),
    "key_metadata": ("spec/#encryption-keys", "Standard key metadata"),
    "key_envelope": ("spec/#encryption-keys", "Encryption Keys"),
}


def upper(text: str | None) -> str | None:
    return None if text is None else text.upper()


def stream(case: dict[str, Any]) -> tuple[Any, Any, str | None]:
    """Return the input and the decoded content of a case, and its canonical bytes."""
    given = {
        "key": upper(case["key"]),
        "aad-prefix": upper(case["aadPrefix"]),
        "file-length": case["fileLength"],
        "file": zlib.decompress(bytes.fromhex(case["ct"])).hex().upper(),
    }
    read = {"length": str(case["msgLength"]), "sha-256": upper(case["msgSha256"])}
    return given, read, None


def key_metadata(case: dict[str, Any]) -> tuple[Any, Any, str | None]:
    read = {
        "encryption-key": upper(case["encryptionKey"]),
        "aad-prefix": upper(case["aadPrefix"]),
        "file-length": case["fileLength"],
    }
    return upper(case["data"]), read, None if case["flags"] else upper(case["data"])


def key_envelope(case: dict[str, Any]) -> tuple[Any, Any, str | None]:
    given = {
        "encryption.key-id": case["tableKeyId"],
        "encryption-keys": case["encryptionKeys"],
        "key-id": case["keyId"],
    }
    return given, upper(case["msg"]), None


def export(surface: str) -> dict[str, Any]:
    """Return the ``cases.json`` of ``stream``, ``key_metadata`` or ``key_envelope``."""
    document = json.loads((FOLDER / f"ags1_{surface}_test.json").read_text())
    (group,) = document["testGroups"]
    reference, clause = SURFACES[surface]
    read = {"stream": stream, "key_metadata": key_metadata, "key_envelope": key_envelope}[surface]
    cases = []
    for case in group["tests"]:
        given, decoded, canonical = read(case)
        if case["result"] == "acceptable" or len(json.dumps(given)) > 2 * MAX_SIZE:
            continue
        if surface == "key_envelope":
            given = {"master-keys": {k: upper(v) for k, v in group["masterKeys"].items()}, **given}
        flags = ", ".join(case["flags"])
        made = {"id": f"{surface}-{case['tcId']}", "valid": case["result"] == "valid"}
        made |= {"input": given}
        if made["valid"]:
            made |= {"decoded": decoded}
            made |= {} if canonical is None else {"canonical": canonical}
        about = f"{clause}: {case['comment']}" + (f" ({flags})" if flags else "")
        cases.append({**made, "clause": about, "spec_ref": SPEC + reference})
    return {"cases": cases}


def export_tables(target: Path) -> dict[str, Any]:
    """Copy the tables, and write their index; return the ``cases.json``."""
    index = json.loads((FOLDER / "tables/index.json").read_text())
    (group,) = index["testGroups"]
    masters = {name: upper(key) for name, key in group["masterKeys"].items()}
    tables, cases = [], []
    for case in group["tests"]:
        if case["result"] == "acceptable":
            continue
        kind = case["dataFileFormat"]
        name = "v3/encrypted-" + case["name"].replace("_", "-")
        name = f"{name.removesuffix(f'-{kind}')}-{kind}-data" if kind else name
        source = FOLDER / "tables" / case["name"]
        leave_out = shutil.ignore_patterns("expected.jsonl")
        shutil.copytree(source, target / name, ignore=leave_out, dirs_exist_ok=True)
        writer = case["writer"]
        made = f"{case['madeFrom']}, changed: " if case["madeFrom"] else ""
        table = {"name": name, "format-version": 3}
        table |= {"written-by": f"{writer['name']}, {writer['version']}", "data-file-format": kind}
        metadata = case["metadata"].partition("/")[2]
        table |= {"metadata": f"{name}/{metadata}", "location": case["location"]}
        tables.append(table | {"description": made + case["comment"]})
        one = {"id": f"table-{case['tcId']}", "valid": case["result"] == "valid"}
        given = {"table": name, "encryption.key-id": case["expectedKeyId"], "master-keys": masters}
        one |= {"input": given}
        if case["rows"]:
            lines = (FOLDER / "tables" / case["rows"]).read_text().splitlines()
            one |= {"decoded": [row | {"id": str(row["id"])} for row in map(json.loads, lines)]}
        flags = ", ".join(case["flags"])
        about = f"Table encryption: {made}{case['comment']}" + (f" ({flags})" if flags else "")
        cases.append(one | {"clause": about, "spec_ref": SPEC + "spec/#encryption-keys"})
    (target / "index.json").write_text(json.dumps({"tables": tables}, indent=2) + "\n")
    return {"cases": cases}


def main(target: Path) -> None:
    tables = export_tables(target / "reference-tables")
    exported = {surface: export(surface) for surface in SURFACES} | {"tables": tables}
    for surface, document in exported.items():
        path = target / "table-spec/encryption" / surface.replace("_", "-") / "cases.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
