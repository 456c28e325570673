"""Turns the errors of PyIceberg, catalogs and storages into failures of one line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import click

from ...errors import Ags1Error
from ..console import print_error
from ..exits import ReaderGoneError, with_option


class CommitConflictError(Ags1Error):
    """Other writers kept committing first, or changed what the command has read."""


class CommitStateUnknownError(Ags1Error):
    """The catalog did not say whether a commit was made."""


@contextlib.contextmanager
def failures(table: str) -> Iterator[None]:
    """Turn what PyIceberg, catalogs and storages raise into failures of one line."""
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

    from ...iceberg.command_line import ConflictError

    try:
        yield
    except (Ags1Error, OSError, MemoryError, click.ClickException, click.Abort, ReaderGoneError):
        raise
    except CommitFailedException as error:
        message = "other writers committed first each time, so nothing was changed. Try again later"
        raise CommitConflictError(f"{message}: {_text(error)}", file=table) from None
    except ConflictError as error:
        raise CommitConflictError(_text(error), file=table) from None
    except CommitStateUnknownException as error:
        message = "the commit may have been made or not. Look at the table before you try again"
        unknown = CommitStateUnknownError(f"{message}: {_text(error)}", file=table)
        cause = error.__cause__
        if isinstance(cause, KeyboardInterrupt):
            print_error(str(unknown))
            raise cause from None
        raise unknown from None
    except NotImplementedError as error:
        raise Ags1Error(str(error), file=table) from None
    except Exception as error:
        kind = type(error)
        library = kind.__module__.partition(".")[0]
        # PyIceberg's classes for what is missing have no common base.
        is_missing = library == "pyiceberg" and kind.__name__.startswith("NoSuch")
        if kind is ValueError or is_missing:
            message = with_option(_text(error), error) or kind.__name__
            raise click.UsageError(f"{table}: {message}") from None
        if library in ("ags1", "builtins") or os.environ.get("AGS1_DEBUG"):
            raise
        if kind.__name__.endswith("AlreadyExistsError"):
            raise Ags1Error(_text(error), file=table) from None
        # A catalog's or a storage's: thrift, SQLAlchemy, Arrow.
        raise Ags1Error(f"{kind.__name__}: {_text(error)}", file=table) from None


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())
