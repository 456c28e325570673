"""Results of commands as JSON, or as one line. A result is a dataclass; its ``PARTS`` say which
words stand around the values in the line. After a dry run the line has the same words, and says
that nothing was changed. Independent of what was done.

    @dataclass(frozen=True, slots=True)
    class Pruned(TableResult):
        key_ids: Sequence[str]
        PARTS: ClassVar = ("{key_ids:key} removed",)     db.t: 2 keys removed
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from .console import Output, counted
from .exits import Exit

DRY_RUN = " (dry run: nothing was changed)"
_MAIN_BRANCH = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command has done, or would do. Each of ``PARTS`` is a format of the fields; a number,
    or the length of a list, may have a noun: ``{files:file}``. A part is left out if its first
    value is none, 0 or empty, unless it is the first part. ``SUBJECT`` names the field that the
    line begins with. A field ``done`` is the library's own result, whose fields are taken as fields
    of this one."""

    dry_run: bool = False
    SUBJECT: ClassVar[str]
    PARTS: ClassVar[Sequence[str]]

    def show(self, out: Output, code: Exit = Exit.OK) -> Exit:
        """Print the result. Return ``code``, with which the command exits."""
        facts = asdict(self)
        # The fields of the library's own result are fields of this one.
        facts |= facts.pop("done", {})
        out.result(facts, format_line(facts, self.SUBJECT, self.PARTS), code)
        return code


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult(Result):
    """A result about a table."""

    table: str
    SUBJECT: ClassVar[str] = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchResult(TableResult):
    """A result about a branch of a table."""

    branch: str


def format_line(facts: dict[str, Any], subject: str, parts: Sequence[str]) -> str:
    """Return a result as a line."""
    values = {name: _Value(value) for name, value in facts.items()}
    shown = [
        part.format_map(values)
        for number, part in enumerate(parts)
        if number == 0 or all(facts[name] for name in _names(part)[:1])
    ]
    branch = facts.get("branch", _MAIN_BRANCH)
    about = facts[subject] if branch == _MAIN_BRANCH else f"{facts[subject]}, branch {branch}"
    return f"{about}: {', '.join(shown)}{DRY_RUN if facts['dry_run'] else ''}"


def _names(part: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(part) if name is not None]


class _Value:
    """A value as it stands in a line."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __format__(self, noun: str) -> str:
        value = self._value
        if noun:
            return counted(value if isinstance(value, int) else len(value or ()), noun)
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
