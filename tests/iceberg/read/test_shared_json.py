"""A parser that keeps the objects of some lists returns what the parser of Python returns."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ags1.host._json import objects_from
from ags1.host.strict_json import SharingParser
from ags1.keys import parse_encryption_keys

PARSED = {"snapshots": [{"id": 1, "summary": {"a": "b"}}, {"id": 2}], "keys": [{"id": "x"}]}
TEXT = json.dumps(PARSED, indent=1).encode()
# What a cut could take for something else: names in texts, brackets, escapes, constants.
PIECES = (
    *'{ } [ ] , : " \\ \\" \\\\ 1 -0.5 null true NaN Infinity -Infinity a'.split(),
    *('"snapshots":[', '"snapshots"', '"keys" : [\n', '{"a":1}', '{"snapshots":[{"a":2}]}'),
    *('{"a":{"b":["}"]}}', '"a":', '"snapshots\\":[{"', '{"\\ud800":1}', "\0", "é", " "),
    *('{"snapshots":[', "]}", '{"a":NaN}', '{"a":1,"a":2}', '{"n":9223372036854775808}', "{}"),
)

CHANGES: list[tuple[Any, ...]] = [
    ("__setitem__", "id", 5),
    ("__delitem__", "id"),
    ("__ior__", {"id": 5}),
    ("update", {"id": 5}),
    ("setdefault", "id", 5),
    ("pop", "id", None),
    ("popitem",),
    ("clear",),
]


def outcome(parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except ValueError:
        return ValueError


def python_s(text: bytes) -> Any:
    """Return what json.loads returns. Raises ValueError also for what it accepts and we refuse."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError
        return dict(pairs)

    def refuse(_: str) -> None:
        raise ValueError

    def integer(digits: str) -> int:
        if not -(1 << 63) <= int(digits) < 1 << 63:
            raise ValueError
        return int(digits)

    parsed = json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_int=integer)
    json.dumps(parsed, ensure_ascii=False).encode()
    return parsed


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@example('{"a":"\\"snapshots\\":[{","b":NaN}')
@example('{"a":"NaN","snapshots":[{"a":1}]}')
@example('{"snapshots":[{"a":1},{"a":1}],"b":{"keys":[{"snapshots":[{}]}]}}')
@example('{"snapshots":[{}],"snapshots":[{}]}')
@example('{"snapshots":[{},]}')
@example('{"snapshots":[{}]1}')
def test_what_is_kept_changes_no_outcome(text: str) -> None:
    parser = SharingParser("snapshots", "keys")
    data = text.encode("utf-8", "surrogatepass")
    wanted = outcome(lambda: python_s(data))
    for _ in range(2):
        assert outcome(lambda: parser.parse(data)) == wanted


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_every_encoding_of_python_s_parser_is_read(encoding: str) -> None:
    parser = SharingParser("snapshots", "keys")
    assert [parser.parse(TEXT.decode().encode(encoding)) for _ in range(2)] == [PARSED, PARSED]


def test_only_a_copy_of_what_is_shared_can_be_changed() -> None:
    parser = SharingParser("snapshots", "keys")
    shared = parser.parse(TEXT)["snapshots"][0]
    assert parser.parse(TEXT.replace(b"2", b"3"))["snapshots"][0] is shared
    for changed in shared, shared["summary"]:
        for name, *arguments in CHANGES:
            with pytest.raises(TypeError, match="shared"):
                getattr(changed, name)(*arguments)
    for made in (copy.deepcopy(shared), pickle.loads(pickle.dumps(shared))):
        made["summary"]["a"] = made["id"] = 5
        assert made == {"id": 5, "summary": {"a": 5}}
    assert parser.parse(TEXT) == PARSED


def test_a_key_that_was_parsed_is_its_user_s() -> None:
    parser = SharingParser("keys")
    for unknown in ({}, {"of-others": {"a": 1}}, {"of-others": {"a": [1]}}):
        entry = {"key-id": "a", "encrypted-key-metadata": "AA==", "properties": {"a": "b"}}
        text = json.dumps({"keys": [entry | unknown]}).encode()
        (key,) = parse_encryption_keys(parser.parse(text)["keys"])
        key.properties["a"] = "c"  # type: ignore[index]
        with contextlib.suppress(KeyError, TypeError, AttributeError):
            key.unknown["of-others"]["a"].append(2)
        with contextlib.suppress(KeyError, TypeError):
            key.unknown["of-others"]["a"] = 2
        (again,) = parse_encryption_keys(parser.parse(text)["keys"])
        assert again.to_dict() == entry | unknown


def test_what_is_kept_has_a_limit() -> None:
    parser = SharingParser("many")

    def parsed(size: int, mark: int) -> Any:
        return parser.parse(json.dumps({"many": [{"m": mark, "text": "x" * size}]}).encode())

    first = parsed(100, 0)["many"][0]
    assert parsed(100, 0)["many"][0] is first
    long = parsed(9000, 0)["many"][0]
    assert parsed(9000, 0)["many"][0] is not long
    for mark in range(17 << 7):
        parsed(8000, mark)
    assert parsed(100, 0)["many"][0] is not first


@pytest.mark.parametrize("text", [b"{", b'{"', b'{"}', b'{"\\"}', b'{"a":{}', b'{},{"\\'])
def test_an_object_without_an_end_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no end"):
        objects_from(text, 0)


@pytest.mark.parametrize("at", [-1, 2, 100])
def test_a_place_outside_the_text_has_no_objects(at: int) -> None:
    if at < 0:
        with pytest.raises(ValueError, match="negative"):
            objects_from(b"{}", at)
    else:
        assert objects_from(b"{}", at) == ([], at)
