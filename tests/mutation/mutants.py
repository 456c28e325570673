"""Makes faults from the tokens of a source file, Python's or Cython's.

A fault changes one operator, number or name, negates a condition, or takes one statement out. It
leaves alone what has no behaviour: imports, signatures, C declarations, casts, annotations and
docstrings.
Cython's source consists of Python's tokens, so one list of operators serves both.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Only where blanks stand around them: others are casts, signs and arguments by name.
OPERATORS = {
    "==": "!=",
    "!=": "==",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "+": "-",
    "-": "+",
    "*": "+",
    "//": "*",
    "%": "+",
    "&": "|",
    "<<": ">>",
    "+=": "-=",
    "-=": "+=",
}
NAMES = {"and": "or", "or": "and", "True": "False", "False": "True", "break": "continue"}
SKIPPED = {"import", "from", "def", "class", "cdef", "cpdef", "cimport", "ctypedef", "async", "@"}
COMPOUND = {
    "if",
    "elif",
    "else",
    "for",
    "while",
    "with",
    "try",
    "except",
    "finally",
    "match",
    "case",
}
CONDITIONS = {"if", "elif", "while"}
BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    column: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old.strip()!r} -> {self.new.strip()!r}"

    def applied(self, source: str) -> str:
        lines = source.splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        assert source.startswith(self.old, start), self
        return source[:start] + self.new + source[start + len(self.old) :]


def statements(source: str) -> Iterator[list[tokenize.TokenInfo]]:
    """Yield the tokens of each logical line."""
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            yield statement
            statement = []
        elif token.type not in BLANK:
            statement.append(token)


def mutants(root: Path, file: str) -> list[Mutant]:
    """Return each fault of a file, in the order of its lines."""
    source = (root / file).read_text()
    lines = source.splitlines(keepends=True)
    found = []

    def add(token: tokenize.TokenInfo, old: str, new: str) -> None:
        found.append(Mutant(file, *token.start, old, new))

    for statement in statements(source):
        first, last = statement[0], statement[-1]
        annotated = len(statement) > 1 and statement[1].string == ":"
        if first.string in SKIPPED or first.type == tokenize.STRING or annotated:
            continue
        if first.string not in COMPOUND:
            begin, end = first.start[0] - 1, last.end[0]
            text = "".join(lines[begin:end])[first.start[1] :]
            # A name that is never bound is found by any test that comes there.
            assigned = len(statement) > 1 and any(token.string == "=" for token in statement[1:2])
            if first.string not in ("pass", "return", "global", "nonlocal") and not assigned:
                add(first, text, "pass\n")
        elif first.string in CONDITIONS and last.string == ":" and last.start[0] == first.start[0]:
            condition = lines[first.start[0] - 1][statement[1].start[1] : last.start[1]]
            add(statement[1], condition, f"not ({condition})")
        for token in statement:
            before, after = token.line[: token.start[1]][-1:], token.line[token.end[1] :][:1]
            if token.type == tokenize.OP and token.string in OPERATORS:
                if before == after == " " and token.start[0] == token.end[0]:
                    add(token, token.string, OPERATORS[token.string])
            elif token.type == tokenize.NAME and token.string in NAMES:
                add(token, token.string, NAMES[token.string])
            elif token.type == tokenize.NUMBER and token.string.isdecimal():
                add(token, token.string, str(int(token.string) + 1))
    return found
