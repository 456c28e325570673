"""How scans and results are shown: a short ``repr``, and a table in HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Shown:
    """An object that is shown by its facts, and in notebooks by the lines of a list as well."""

    __slots__ = ()

    def shown_facts(self) -> Mapping[str, Any]:
        """Return the facts by their names."""
        raise NotImplementedError

    def shown_lines(self) -> Iterable[Sequence[object]]:
        """Return the lines of the list, each as its columns."""
        return ()

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self.shown_facts().items())
        return f"{type(self).__name__}({facts})"

    def _repr_html_(self) -> str:
        facts = [(name.replace("_", " "), value) for name, value in self.shown_facts().items()]
        name = html.escape(type(self).__name__)
        return f"<b>{name}</b>{_table(facts)}{_table(self.shown_lines())}"


def _table(rows: Iterable[Sequence[object]]) -> str:
    lines = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>" if lines else ""
