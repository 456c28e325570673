"""The catalog of a table that is to be changed, with the KMS for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...errors import KmsError, NotEncryptedError
from .opening import NamedCatalog, NoKms, plaintext_table

if TYPE_CHECKING:
    from ...iceberg.command_line import EncryptedTable
    from .options import TableOptions


class ChangedCatalog(NamedCatalog):
    """The catalog of a table that is to be changed. ``trusted_key_ids`` are the master keys that
    its configuration names. Raises as ``NamedCatalog``; if there is no KMS and the table is not
    encrypted, NotEncryptedError, unless the command ``migrates`` it."""

    def __init__(self, options: TableOptions, *, keys: bool = True, migrates: bool = False) -> None:
        if options.catalog is None:
            raise click.UsageError(
                f"{options.table}: changes are committed to a catalog: name it with --catalog. A "
                "table that is opened by its metadata.json or folder can only be read"
            )
        if options.key_id == "":  # a shell's variable that is not set
            raise click.UsageError("--key is empty: name a master key")
        self._options = options
        try:
            super().__init__(options, without=None if keys else NoKms())
        except KmsError as error:
            if plaintext_table(options) is None:
                raise
            if not migrates:
                raise self._not_encrypted() from None
            error.message = f"the table is not encrypted yet, and to encrypt it: {error.message}"
            raise
        self.trusted_key_ids = self.catalog.key_ids

    def load(self) -> EncryptedTable:
        """Load the table. Raises NotEncryptedError for one that is not encrypted."""
        from ...iceberg.command_line import EncryptedTable

        key_id = self.expected_key_id
        table = self.catalog.load_table(
            self.identifier, expected_key_id=key_id, location_map=self._options.location_map
        )
        if not isinstance(table, EncryptedTable):
            raise self._not_encrypted()
        if self.takes_any_key and key_id and not self.trusted_key_ids:
            # From now on, the catalog refuses the table if its metadata names another master key.
            self.catalog.key_ids = frozenset([key_id])
        return table

    def _not_encrypted(self) -> NotEncryptedError:
        message = "the table is not encrypted: 'ags1 table migrate' encrypts it"
        return NotEncryptedError(message, file=self._options.table)
