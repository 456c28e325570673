"""Parses JSON that holds keys or decides about them.

An object with one name twice is refused. Python and Java would take the second value and drop the
first; RFC 8259 leaves it open, so other parsers may take the first. Integers of more than 64 bits,
text with half a surrogate pair, NaN and infinities are refused too: Java, Arrow and UTF-8 have none
of them. Independent of what the JSON is for.
"""

from __future__ import annotations

import functools
import json
import marshal
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

Pairs = list[tuple[str, Any]]
_LONGEST_NAME = 100
_INTEGERS = range(-(1 << 63), 1 << 63)
_MOST_KEPT = 64 << 10
_T = TypeVar("_T")


class _DuplicateName(Exception):
    pass


class LongIntegerError(ValueError):
    """The JSON has an integer of more than 64 bits."""


def _integer(text: str) -> int:
    value = int(text)
    if value not in _INTEGERS:
        raise LongIntegerError
    return value


def _refuse_constant(_: str) -> None:
    raise ValueError("no JSON")


def parse(
    text: str | bytes,
    make: Callable[[Pairs], dict[str, Any]] = dict,
    *,
    long_integers: bool = False,
) -> Any:
    """Return the parsed JSON; ``make`` makes the objects. Raises ValueError, whose message is a
    predicate: the caller puts the name of what was parsed before it. It is a LongIntegerError for
    an integer of more than 64 bits, unless ``long_integers`` accepts them."""

    def unique(pairs: Pairs) -> dict[str, Any]:
        made = make(pairs)
        if len(made) != len(pairs):
            ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise _DuplicateName(name[:_LONGEST_NAME])
        return made

    kind: type[ValueError] = ValueError
    try:
        parsed = json.loads(
            text,
            object_pairs_hook=unique,
            parse_int=int if long_integers else _integer,
            parse_constant=_refuse_constant,
        )
        if _may_have_surrogates(text):
            json.dumps(parsed, ensure_ascii=False).encode()
        return parsed
    except _DuplicateName as error:
        problem = (
            f"has the name {error.args[0]!r} twice in one object, and programs differ in which of "
            "the two they read: restore a copy, or rename or remove one of the two"
        )
    except LongIntegerError:
        kind = LongIntegerError
        problem = "has an integer of more than 64 bits"
    except UnicodeEncodeError:
        problem = "has text that is not Unicode: half a surrogate pair"
    except (ValueError, RecursionError):
        problem = "is not JSON"
    # Raised here, because the parser's exception has the text, and the text may have keys.
    raise kind(problem)


def _may_have_surrogates(text: str | bytes) -> bool:
    if isinstance(text, str):
        return "\\u" in text or not text.isascii()
    return b"\\u" in text or b"\xed" in text


def kept(work: Callable[[Any], _T]) -> Callable[[Any], _T]:
    """Return a function that does ``work`` on parsed JSON, once for each content: it keeps the last
    4,096 results, and returns them again. What is larger than 64 KiB, or very deep, is not kept.
    The caller must not change a result.

    The key is the content as bytes: they are the same only if the values are equal and of the same
    types, which ``1 == True`` does not say. To make them takes a tenth of the time of printing."""

    @functools.lru_cache(maxsize=4096)
    def known(content: bytes) -> _T:
        return work(marshal.loads(content))

    def done(value: Any) -> _T:
        try:
            content = marshal.dumps(value, 2)
        except ValueError:  # too deep
            return work(value)
        return known(content) if len(content) <= _MOST_KEPT else work(value)

    return done
