"""What became of a commit whose answer was lost: the catalog is asked until it is known.

Follows Java's ``BaseMetastoreTableOperations.checkCommitStatus``. If it stays unknown, no file of
the commit may be deleted: see ``docs/design/0002-unknown-outcome.md``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.typedef import Identifier

from ...errors import ArgumentError
from ..spec.properties import number_in

_log = logging.getLogger(__name__)

# Some catalogs answer with a stack trace. This is how many characters of its first line are shown.
_MAX_SHOWN = 300

# Properties of a table: how often, and how many ms apart, the catalog is asked. The names and the
# defaults are Java's. The last numbers are the greatest that are obeyed, because the metadata must
# not make us wait for ever.
_NUM_CHECKS = "commit.status-check.num-retries", 3, 100
_MIN_WAIT_MS = "commit.status-check.min-wait-ms", 1000, 60_000
_MAX_WAIT_MS = "commit.status-check.max-wait-ms", 60_000, 60_000


def was_committed(
    identifier: Identifier,
    metadata: Mapping[str, Any],
    error: BaseException,
    ask: Callable[[], bool | None],
) -> bool:
    """Return whether a commit that ended in ``error`` was made. ``ask`` asks the catalog once;
    None: it cannot be known yet. ``metadata`` is the table's. Raises CommitStateUnknownException if
    it stays unknown, or if it was made and ``error`` is an interrupt (Ctrl-C)."""
    try:
        is_committed = _ask_until_known(ask, metadata.get("properties") or {})
    except BaseException:
        # A second Ctrl-C, before there was an answer.
        is_committed = None
    if is_committed is None:
        raise CommitStateUnknownException(
            f"it is unknown whether a commit of {'.'.join(identifier)} was made: "
            f"{type(error).__name__}. Look at the table before you repeat the change"
        ) from error
    if is_committed and not isinstance(error, Exception):
        raise _made_despite(identifier, error) from error
    return is_committed


def not_committed(
    identifier: Identifier, error: Exception, what: str = "a commit"
) -> CommitFailedException:
    """Return the exception for a commit that ended in ``error`` and was certainly not made."""
    return CommitFailedException(
        f"{what} of {'.'.join(identifier)} was not made: {_line_of(error)}"
    )


@contextmanager
def after_commit(identifier: Identifier) -> Iterator[None]:
    """Turn what is raised once a commit is made into CommitStateUnknownException. A caller who took
    it for a failure would repeat the change."""
    try:
        yield
    except CommitStateUnknownException:
        raise
    except BaseException as error:
        raise _made_despite(identifier, error) from error


def _made_despite(identifier: Identifier, error: BaseException) -> CommitStateUnknownException:
    return CommitStateUnknownException(
        f"a commit of {'.'.join(identifier)} was made, and then there was an error: "
        f"{_line_of(error)}. Do not repeat the change"
    )


def _line_of(error: BaseException) -> str:
    """Return an exception's name and the first line of its message."""
    text = str(getattr(error, "message", None) or error).strip()
    line = text.splitlines()[0][:_MAX_SHOWN] if text else ""
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _ask_until_known(ask: Callable[[], bool | None], properties: Mapping[str, Any]) -> bool | None:
    wait_ms, max_wait_ms = _setting(properties, *_MIN_WAIT_MS), _setting(properties, *_MAX_WAIT_MS)
    for attempt in range(_setting(properties, *_NUM_CHECKS) + 1):
        if attempt:
            time.sleep(min(wait_ms, max_wait_ms) / 1000)
            wait_ms *= 2
        try:
            answer = ask()
        except Exception as error:
            _log.warning("the catalog cannot be asked about a commit: %s", type(error).__name__)
        else:
            if answer is not None:
                return answer
    return None


def _setting(properties: Mapping[str, Any], name: str, default: int, most: int) -> int:
    try:
        return min(max(0, number_in(properties, name, default)), most)
    except ArgumentError:
        # The request was sent, so the catalog has to be asked.
        return default
