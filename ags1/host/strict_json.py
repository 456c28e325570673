"""Parses JSON that holds keys or decides about them.

An object with one name twice is refused. Python and Java would take the second value and drop the
first; RFC 8259 leaves it open, so other parsers may take the first. Integers of more than 64 bits,
text with half a surrogate pair, NaN and infinities are refused too: Java, Arrow and UTF-8 have none
of them. Independent of what the JSON is for.
"""

from __future__ import annotations

import contextlib
import functools
import json
import marshal
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from ._json import objects_from

Pairs = list[tuple[str, Any]]
_LONGEST_NAME = 100
_INTEGERS = range(-(1 << 63), 1 << 63)
_MOST_KEPT = 64 << 10
_MOST_SHARED, _MOST_SHARED_TEXT = 8 << 10, 8 << 20
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
    constant: Callable[[str], Any] = _refuse_constant,
) -> Any:
    """Return the parsed JSON; ``make`` makes the objects, and ``constant`` the values of NaN and of
    infinities. Raises ValueError, whose message is a predicate: the caller puts the name of what
    was parsed before it. It is a LongIntegerError for an integer of more than 64 bits, unless
    ``long_integers`` accepts them."""

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
            parse_constant=constant,
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


class SharedObject(dict[str, Any]):
    """An object of JSON that several results of a parser have in common. It cannot be changed."""

    # What ``kept`` made of it, by the work. Most have none.
    __slots__ = ("results",)
    results: dict[Callable[[Any], Any], Any]

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("this object of JSON is shared: change a copy of it")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


def _may_be_shared(text: bytes) -> bool:
    return len(text) <= _MOST_SHARED and b"[" not in text


class SharingParser:
    """Parses JSON, and the objects of the lists with ``names`` once for each text: they become
    SharedObjects. It keeps those of 8 MiB of text. An object is not shared if its text is longer
    than 8 KiB, or has a bracket, because it may have a list, which can be changed."""

    def __init__(self, *names: str) -> None:
        either = "|".join(map(re.escape, names))
        self._lists = re.compile(rf'"(?:{either})"[ \t\r\n]*:[ \t\r\n]*\['.encode())
        self._known: dict[bytes, Any] = {}
        self._size = 0

    def parse(self, text: bytes) -> Any:
        """Return what ``parse`` of this module returns. Raises as that."""
        with contextlib.suppress(ValueError):
            return self._parse(text)
        # What is wrong is said of the whole text.
        return parse(text)

    def _parse(self, text: bytes) -> Any:
        around, objects = self._cut(text)
        if b"\0" in text or around.count(b"NaN") != len(objects) or b"Infinity" in around:
            raise ValueError("another encoding, or constants")
        values = iter(self._values(objects))
        # Each NaN is read as the object that was there. If all are read, what is around them is
        # JSON with a value in each of these places.
        parsed = parse(around, constant=lambda _: next(values))
        if next(values, None) is not None:
            raise ValueError("a place is in a string")
        return parsed

    def _cut(self, text: bytes) -> tuple[bytes, list[bytes]]:
        """Return the text with NaN instead of each object to share, and these objects."""
        pieces: list[bytes] = []
        objects: list[bytes] = []
        at = 0
        while found := self._lists.search(text, at):
            texts, end = objects_from(text, found.end())
            around = [b"NaN" if _may_be_shared(each) else each for each in texts]
            objects += (each for each, left in zip(texts, around, strict=True) if each is not left)
            pieces += text[at : found.end()], b",".join(around)
            at = end
        return b"".join([*pieces, text[at:]]), objects

    def _values(self, objects: list[bytes]) -> list[Any]:
        known = self._known
        new = list(dict.fromkeys(text for text in objects if text not in known))
        if not new:
            return [known[text] for text in objects]
        made = dict(zip(new, parse(b"[" + b",".join(new) + b"]", SharedObject), strict=True))
        values = [made[text] if text in made else known[text] for text in objects]
        for text, value in made.items():
            self._keep(text, value)
        return values

    def _keep(self, text: bytes, value: Any) -> None:
        if self._size + len(text) > _MOST_SHARED_TEXT:
            # A new dict, because other threads look into the old one.
            self._known, self._size = {}, 0
        self._known[text] = value
        self._size += len(text)


def kept(work: Callable[[Any], _T]) -> Callable[[Any], _T]:
    """Return a function that does ``work`` on parsed JSON, once for each content: it keeps the last
    4,096 results, and returns them again. What is larger than 64 KiB, or very deep, is not kept.
    The caller must not change a result.

    The key is the content as bytes: they are the same only if the values are equal and of the same
    types, which ``1 == True`` does not say. To make them takes a tenth of the time of printing. A
    SharedObject needs no key: it never changes, and has its result."""

    @functools.lru_cache(maxsize=4096)
    def known(content: bytes) -> _T:
        return work(marshal.loads(content))

    def done(value: Any) -> _T:
        if type(value) is SharedObject:
            results: dict[Callable[[Any], _T], _T] = getattr(value, "results", {})
            if work not in results:
                results = value.results = {**results, work: work(value)}
            return results[work]
        try:
            content = marshal.dumps(value, 2)
        except ValueError:  # too deep
            return work(value)
        return known(content) if len(content) <= _MOST_KEPT else work(value)

    return done
