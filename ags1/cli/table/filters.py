"""Row filters as they are typed. Knows nothing of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pyiceberg.table import Table


def parsed_filter(table: Table, text: str | None, option: str, *, of_scan: bool = False) -> Any:
    """Parse ``text`` as a filter; return it unbound. None selects every row. An empty text is
    refused: it is a shell's variable that is not set. The filter of a scan may name metadata
    columns. Raises click.UsageError, with the ``option``'s name, if it is not a filter, or names a
    column that the table does not have."""
    from pyiceberg.expressions.visitors import bind

    from ...iceberg.pyiceberg.expressions import parse_filter
    from ...iceberg.read.metadata_columns import filtered_schema
    from ...iceberg.table import EncryptedTable

    try:
        expression = parse_filter("true" if text is None else text)
        schema = table.schema()
        if of_scan and isinstance(table, EncryptedTable):
            schema = filtered_schema(schema, expression)
        bind(schema, expression, case_sensitive=True)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise click.UsageError(f"{option} {text!r}: {reason}") from None
    return expression
