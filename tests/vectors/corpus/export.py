"""Writes the corpus in the form of apache/iceberg-verification: ``python export.py FOLDER``.

Its ``cases.json`` has for each case an ID, whether it is valid, its input and what it decodes to.
Bytes are upper-case hex, and 64-bit integers are strings. That form has no third result, so
``acceptable`` cases are left out, which nobody has to accept. Files are not compressed there, so
streams above ``MAX_SIZE`` bytes are left out, too.
"""

from __future__ import annotations

import json
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


def main(target: Path) -> None:
    for surface in SURFACES:
        path = target / "table-spec/encryption" / surface.replace("_", "-") / "cases.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(export(surface), indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
