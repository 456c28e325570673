"""Row filters as they are typed. Independent of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pyiceberg.schema import Schema


def parsed_filter(
    schema: Schema, text: str | None, option: str, *, metadata_columns: bool = False
) -> Any:
    """Parse ``text`` as a filter on the columns of ``schema`` and, if so asked, on metadata
    columns; return it unbound. None selects every row. An empty text is refused: it is a shell's
    variable that is not set. Raises click.UsageError, with the ``option``'s name, if it is not a
    filter, or names a column that there is not."""
    from ...iceberg.command_line import bind_filter, parse_filter

    try:
        expression = parse_filter("true" if text is None else text)
        bind_filter(expression, schema, metadata_columns=metadata_columns)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise click.UsageError(f"{option} {text!r}: {reason}") from None
    return expression
