"""What a data source raises on the driver, as Spark shows it: in few words, or at all.

Spark's message is the whole traceback, with our own words at its end. So what planning raises loses
its frames and causes, unless AGS1_DEBUG is set. And if ``streamReader`` raises, PySpark shows an
UnboundLocalError of its own: so the source returns a reader that raises when the query begins.
Knows nothing of the sources.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader

_P = ParamSpec("_P")
_R = TypeVar("_R")


def in_few_words(plan: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return ``plan``, a method that Spark calls on the driver, with errors that have no frames of
    what it calls."""

    @functools.wraps(plan)
    def planned(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return plan(*args, **kwargs)
        except Exception as error:
            if os.environ.get("AGS1_DEBUG"):
                raise
            raise error.with_traceback(None) from None

    return planned


class FailedStreamReader(DataSourceStreamReader):  # type: ignore[misc]  # PySpark's types are not read
    """Raises ``error`` at the first step of a query."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @in_few_words
    def _fail(self, *_: Any) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = partitions = read = _fail


def or_failed(make: Callable[[], DataSourceStreamReader]) -> DataSourceStreamReader:
    """Return the reader that ``make`` returns, or one that raises what ``make`` raised."""
    try:
        return make()
    except Exception as error:
        return FailedStreamReader(error)
