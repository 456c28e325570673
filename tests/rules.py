"""The rules that both languages decide alike: the rows of ``vectors/rules``.

A row has what is ``given`` and the ``result``, and may say what it is ``about``. If a language
decides otherwise by design, the row has its result under ``python`` or ``java``, and ``why``.
Independent of what rules are about.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_FIELDS = {"given", "about", "result", "python", "java", "why"}
FOLDER = Path(__file__).with_name("vectors") / "rules"
_METADATA = Path(__file__).with_name("tables") / "parquet_plain" / "metadata"


def changed_metadata(given: dict[str, Any]) -> str:
    """Return the text of a metadata.json after the changes of a row of ``table_metadata``."""
    metadata = json.loads(sorted(_METADATA.glob("*.metadata.json"))[-1].read_text())

    def at(path: list[Any]) -> Any:
        found = metadata
        for name in path:
            found = found[int(name) if isinstance(found, list) else name]
        return found

    for path in given.get("remove", ()):
        del at(path[:-1])[path[-1]]
    for path, value in given.get("set", ()):
        if isinstance(value, str) and value.startswith("COPY:"):
            value = at(value.removeprefix("COPY:").split(","))
        at(path[:-1])[path[-1]] = value
    return json.dumps(metadata).replace(*given.get("replace", ("", "")))


def rows(language: str) -> list[Any]:
    """Return a parameter for each row: the rule's name, what is given, and the result."""
    parameters = []
    for path in sorted(FOLDER.glob("*.json")):
        for row in json.loads(path.read_text())["rows"]:
            assert {"given", "result"} <= set(row) <= _FIELDS
            assert ("why" in row) == (row.keys() >= {"python"} or row.keys() >= {"java"})
            result = row.get(language, row["result"])
            name = f"{path.stem}-{row.get('about') or json.dumps(row['given'])}"
            parameters.append(pytest.param(path.stem, row["given"], result, id=name))
    return parameters
