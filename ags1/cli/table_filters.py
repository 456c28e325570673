"""Row filters as they are typed. Knows nothing of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pyiceberg.table import Table


def parsed_filter(table: Table, text: str, option: str) -> Any:
    """Return the filter that ``text`` is, unbound. Raises click.UsageError, with the ``option``'s
    name, for what is none, and for a column that the table does not have."""
    from pyiceberg.expressions.parser import parse
    from pyiceberg.expressions.visitors import bind

    try:
        expression = parse(text)
        bind(table.schema(), expression, case_sensitive=True)
    except Exception as error:
        position = getattr(error, "loc", None)  # pyparsing's
        reason = " ".join(str(error).split())
        if position is not None:
            reason = f"not understood from character {position + 1} on"
        raise click.UsageError(f"{option} {text!r}: {reason}") from None
    return expression
