"""Changes of a column's type that Java allows: the record that other tests use is right."""

from __future__ import annotations

import json

import pytest
from type_changes import JAVA_ALLOWS, PAIRS

from .java import Java, JavaError

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("by", ["update_column", "union_by_name"])
def test_java_allows_what_is_recorded(java: Java, by: str) -> None:
    refusals = []

    def answer(old: str, new: str) -> str | None:
        schemas = (
            {"type": "struct", "fields": [{"id": 1, "name": "c", "required": False, "type": kind}]}
            for kind in (old, new)
        )
        before, after = map(json.dumps, schemas)
        try:
            text = java.call(
                "org.apache.iceberg.TableUpdates.changeType", before=before, after=after, by=by
            )
        except JavaError as error:
            refusals.append(str(error))
            return None
        kind: str = json.loads(text)["fields"][0]["type"]
        return kind

    answers = {pair: answer(*pair) for pair in PAIRS}
    expected = {pair: pair[1] if pair in JAVA_ALLOWS else None for pair in PAIRS}
    if by == "union_by_name":
        # The union keeps the type that is wider already.
        expected |= {(new, old): new for old, new in JAVA_ALLOWS}
    assert answers == expected
    assert all("Cannot change column type" in refusal for refusal in refusals)
