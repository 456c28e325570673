"""The rules that both languages decide alike: the rows of ``vectors/rules``.

A row has what is ``given`` and the ``result``, and may say what it is ``about``. If a language
decides otherwise by design, the row has its result under ``python`` or ``java``, and ``why``.
Knows nothing of what rules are about.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_FIELDS = {"given", "about", "result", "python", "java", "why"}
FOLDER = Path(__file__).with_name("vectors") / "rules"


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
