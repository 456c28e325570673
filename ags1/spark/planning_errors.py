"""What a data source raises on the driver, in few words.

Spark's message is the whole traceback, with our own words at its end. So what planning raises loses
its frames and causes, unless AGS1_DEBUG is set. Independent of the sources.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
