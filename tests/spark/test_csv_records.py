"""Where CSV is cut: never inside a quoted value, or the job fails. Python's csv module decides
which rows a text has."""

from __future__ import annotations

import csv
import io
import itertools
import random
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("pyspark")

from ags1 import FormatError
from ags1.spark.datasource import format_readers
from ags1.spark.datasource.encrypted_files import OpenPart
from ags1.spark.datasource.format_readers import Csv

pytestmark = pytest.mark.spark

CHARACTERS = ["a", "b", ",", '"', "\n", "\r\n", "\r", "'", "é", " "]


class Text:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.plaintext_size = len(data)

    def pread(self, offset: int, size: int, /) -> bytes:
        return self.data[offset : offset + size]


def rows(data: bytes, bounds: list[int], **options: str) -> list[tuple[str, ...]]:
    inner, reader = Csv(options), Text(data)
    found = []
    for begin, end in itertools.pairwise(bounds):
        part = OpenPart("a.csv", reader, begin, end)  # type: ignore[arg-type]
        for batch in inner.read(part, inner.columns(part)):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def rows_or_refusal(data: bytes, bounds: list[int], **options: str) -> list[tuple[str, ...]] | None:
    try:
        return rows(data, bounds, **options)
    except FormatError as error:
        if "multiLine" in str(error):
            return None
        raise


def written(chosen: random.Random, end: str, **dialect: Any) -> tuple[bytes, list[tuple[str, ...]]]:
    def value() -> str:
        # An empty line is no row, and a null is not told from an empty text.
        return "x" + "".join(chosen.choices(CHARACTERS, k=chosen.randrange(6)))

    wanted: list[tuple[str, ...]] = [(value(), value()) for _ in range(chosen.randrange(1, 30))]
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=end, **dialect).writerows(wanted)
    return out.getvalue().encode(), wanted


# With the least quotes, the writer leaves line ends of other kinds than its own unquoted.
@pytest.mark.parametrize(
    ("end", "quoting"),
    [
        ("\r\n", csv.QUOTE_MINIMAL),
        *((end, csv.QUOTE_ALL) for end in ("\n", "\r\n", "\r")),
    ],
)
@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_rows_are_right_or_refused(end: str, quoting: int, chunk: int) -> None:
    chosen = random.Random(f"{end!r}{quoting}{chunk}")
    refused = 0
    with mock.patch.object(format_readers, "CHUNK_SIZE", chunk):
        for _ in range(30):
            data, wanted = written(chosen, end, quoting=quoting)
            assert rows(data, [0, len(data)]) == wanted, data
            bounds = sorted({0, len(data), *(chosen.randrange(len(data)) for _ in range(3))})
            found = rows_or_refusal(data, bounds)
            assert found in (wanted, None), (data, bounds)
            refused += found is None
    assert 0 < refused < 30


@pytest.mark.parametrize(
    ("data", "options", "wanted"),
    [
        # A quote inside a value that does not begin with one is a letter.
        (b'5" disk,a\n"b\nc",d\n', {}, [('5" disk', "a"), ("b\nc", "d")]),
        (b'"a\\"\nb",c\nd,e\n', {"escape": "\\"}, [('a"\nb', "c"), ("d", "e")]),
        (b"'a\nb',c\nd,e\n", {"quote": "'"}, [("a\nb", "c"), ("d", "e")]),
        (b'"a,b\nc,d\n', {"quote": ""}, [('"a', "b"), ("c", "d")]),
        (b'"a\nb";c\nd;e\n', {"sep": ";"}, [("a\nb", "c"), ("d", "e")]),
        (b'"x\ny",z\n"a\nb",c\n', {"header": "true"}, [("a\nb", "c")]),
        (b'\n\n"a\nb",c\n\nd,e\n', {}, [("a\nb", "c"), ("d", "e")]),
    ],
)
def test_dialects(data: bytes, options: dict[str, str], wanted: list[tuple[str, str]]) -> None:
    for chunk in range(1, len(data) + 1):
        with mock.patch.object(format_readers, "CHUNK_SIZE", chunk):
            assert rows(data, [0, len(data)], **options) == wanted
    for cut in range(1, len(data)):
        assert rows_or_refusal(data, [0, cut, len(data)], **options) in (wanted, None)


def test_the_part_that_is_cut_fails_whichever_is_read_first() -> None:
    data = b'a,"b\nc"\nd,e\n'
    with pytest.raises(FormatError, match="multiLine"):
        rows(data, [0, 4], sep=",")
    assert rows(data, [0, 8], sep=",") == [("a", "b\nc")]
