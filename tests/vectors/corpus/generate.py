"""Makes the three files of cases in this folder: ``python generate.py``.

The same files come out each time, because keys and nonces are derived from names. ``generate()``
returns their contents. Shares no code with ags1 or with spec.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generate_envelopes import ENVELOPE_NOTES, MASTER_KEYS, envelopes
from generate_key_metadata import KEY_METADATA_NOTES, key_metadata_cases
from generate_streams import STREAM_NOTES, streams

FOLDER = Path(__file__).parent


def generate() -> dict[str, dict[str, Any]]:
    """Return the files' contents by name."""
    masters = {"masterKeys": {key_id: key.hex() for key_id, key in MASTER_KEYS.items()}}
    made = [
        _document("stream", "AGS1", "Ags1Stream", STREAM_NOTES, {"tests": streams()}),
        _document(
            "key_metadata",
            "StandardKeyMetadata",
            "Ags1KeyMetadata",
            KEY_METADATA_NOTES,
            {"tests": key_metadata_cases()},
        ),
        _document(
            "key_envelope",
            "AES-GCM",
            "Ags1KeyEnvelope",
            ENVELOPE_NOTES,
            {**masters, "tests": envelopes()},
        ),
    ]
    return {document["schema"].replace("_schema", "_test"): document for document in made}


def _document(
    name: str, algorithm: str, kind: str, notes: dict[str, tuple[str, str]], group: dict[str, Any]
) -> dict[str, Any]:
    """Return a whole file."""
    used = {flag for test in group["tests"] for flag in test["flags"]}
    assert used == notes.keys(), used ^ notes.keys()
    return {
        "algorithm": algorithm,
        "schema": f"ags1_{name}_schema.json",
        "header": ["Data: CC0 1.0. How to use these cases: README.md in this folder."],
        "numberOfTests": len(group["tests"]),
        "notes": {
            flag: {"bugType": bug_type, "description": text}
            for flag, (bug_type, text) in sorted(notes.items())
        },
        "testGroups": [{"type": kind, "source": {"name": "ags1", "version": "1"}, **group}],
    }


def _lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield a file's text, one case per line."""
    (group,) = document["testGroups"]
    head = {**document, "testGroups": [{**group, "tests": ["@"]}]}
    before, after = json.dumps(head, indent=1).split('"@"')
    yield before
    yield ",\n    ".join(json.dumps(test) for test in group["tests"])
    yield after + "\n"


if __name__ == "__main__":
    for file_name, contents in generate().items():
        (FOLDER / file_name).write_text("".join(_lines(contents)))
