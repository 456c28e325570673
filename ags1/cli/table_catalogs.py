"""The catalog of a table that is to be changed, with the KMS for it, and what can go wrong there.

Knows nothing of what is changed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from ..errors import Ags1Error, NotEncryptedError
from . import standard
from .failures import EXPECTED, Exit, describe, one_line
from .tables import NamedCatalog, pyiceberg_failures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..iceberg import EncryptedTable
    from ..kms import KmsClient
    from .table_options import TableOptions

Command = TypeVar("Command", bound=Callable[..., Any])


class CommitConflictError(Ags1Error):
    """Others committed first, again and again."""


class CommitStateUnknownError(Ags1Error):
    """The catalog did not say what became of a commit."""


class ChangedCatalog(NamedCatalog):
    """The catalog of a table that is to be changed.

    ``trusted_key_ids`` are the master keys that its configuration names. Raises as
    ``NamedCatalog``.
    """

    def __init__(self, options: TableOptions, *, keys: bool = True) -> None:
        if options.catalog is None:
            raise click.UsageError(
                f"{options.table}: name its catalog with --catalog. A table that is opened by its "
                "metadata.json or folder can be read only: a change is committed to a catalog"
            )
        if options.key_id == "":  # a shell's variable that is not set
            raise click.UsageError("--key is empty")
        super().__init__(options, keys=keys)
        self._options = options
        self.trusted_key_ids = self.catalog.key_ids

    def new_key_id(self) -> str:
        """Return the master key for a table that is to be encrypted. Raises click.UsageError where
        nobody names one."""
        trusted = self.trusted_key_ids
        only = next(iter(trusted)) if len(trusted) == 1 else None
        key_id = self._options.key_id or only or self.setting
        if not key_id:
            raise click.UsageError("which master key? Name it with --key")
        return key_id

    def load(self) -> EncryptedTable:
        """Load the table. Raises NotEncryptedError for one that is not encrypted."""
        from ..iceberg import EncryptedTable

        key_id = self.expected_key_id
        table = self.catalog.load_table(
            self.identifier, expected_key_id=key_id, location_map=self._options.location_map
        )
        if not isinstance(table, EncryptedTable):
            raise NotEncryptedError(
                "the table is not encrypted: 'ags1 table migrate' encrypts it",
                file=self._options.table,
            )
        if self.takes_any_key and key_id and not self.trusted_key_ids:
            # Whose table it is nobody else may say, however often it is loaded.
            self.catalog.key_ids = frozenset([key_id])
        return table


def other_kms(kms_type: str | None, properties: tuple[tuple[str, str], ...]) -> KmsClient | None:
    """Return the KMS that ``--to-kms`` names, None without one. Raises click.UsageError."""
    from .masters import connect, settings_of
    from .options import KmsOptions
    from .settings import from_options

    if kms_type is None and not properties:
        return None
    if from_options(kms_type, properties, None).kind is None:
        raise click.UsageError("--to-kms-property needs --to-kms")
    return connect(settings_of(KmsOptions(kms_type, properties)))


def reporting(command: Command) -> Command:
    """Have failures over the table told with our exit codes, and as JSON too where that was asked
    for."""

    @functools.wraps(command)
    def guarded(where: TableOptions, *arguments: Any, as_json: bool, **more: Any) -> int:
        try:
            with failures(where.table):
                return int(command(where, *arguments, as_json=as_json, **more) or Exit.OK)
        except EXPECTED as error:
            failure = describe(error, where.table)
            if failure.file == standard.STDOUT:
                raise
            standard.print_error(f"ags1: {one_line(failure.message)}")
            if as_json:
                code = int(failure.exit_code)
                details = {"kind": failure.kind, "message": failure.message}
                standard.print_line(json.dumps({"ok": False, "exit_code": code, "error": details}))
            return failure.exit_code

    return cast("Command", guarded)


@contextmanager
def failures(table: str) -> Iterator[None]:
    """Turn what catalogs and writers raise into failures of one line."""
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

    with pyiceberg_failures(table):
        try:
            yield
        except CommitFailedException as error:
            raise CommitConflictError(
                f"others kept committing first, and nothing was changed: {_text(error)}", file=table
            ) from None
        except CommitStateUnknownException as error:
            unknown = CommitStateUnknownError(
                f"look at the table before you do it again: {_text(error)}", file=table
            )
            cause = error.__cause__
            if isinstance(cause, KeyboardInterrupt):
                standard.print_error(f"ags1: {one_line(str(unknown))}")
                raise cause from None
            raise unknown from None


def print_result(facts: dict[str, Any], line: str, *, as_json: bool, quiet: bool) -> None:
    """Print what was done."""
    if as_json:
        standard.print_line(json.dumps({**facts, "ok": True}))
    elif not quiet:
        standard.print_line(one_line(line))


def counted(number: int, name: str) -> str:
    """Return ``1 file``, ``2 files``."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())
