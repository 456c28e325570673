"""Objects that hold keys or credentials stay in this process, and no exception contains them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Secret:
    """Base class of objects that hold a key or a credential. Pickling or copying raises TypeError.
    Subclasses must hide the secret in their ``repr``."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is not pickled or copied: it holds secrets")


def discreet(function: Callable[P, T]) -> Callable[P, T]:
    """Make ``function`` raise its exceptions without the frames of their tracebacks, and without
    cause and context. Error reporters print the variables of every frame, and an exception of an
    SDK or a decoder contains the request or the text. This is for functions that have a key in a
    variable and whose callers do not, and for calls of SDKs. Inside them, errors can be raised as
    anywhere else."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return function(*arguments, **named)
        except Exception as error:
            failure = error.with_traceback(None)
        del arguments, named
        failure.__cause__ = failure.__context__ = None
        try:
            raise failure
        finally:
            del failure  # or the exception and this frame would keep each other alive

    return call
