"""A stream whose reader could not be made, with the reason.

If a data source's ``streamReader`` raises, PySpark shows an UnboundLocalError of its own. So the
sources return a reader that raises when the query begins. Knows nothing of the sources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader


class FailedStreamReader(DataSourceStreamReader):  # type: ignore[misc]  # PySpark's types are not read
    """Raises ``error`` at the first step of a query."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _fail(self, *_: Any) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = partitions = read = _fail


def or_failed(make: Callable[[], DataSourceStreamReader]) -> DataSourceStreamReader:
    """Return the reader that ``make`` returns, or one that raises what ``make`` raised."""
    try:
        return make()
    except Exception as error:
        return FailedStreamReader(error)
