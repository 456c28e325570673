"""Which table is meant, and opening it: a metadata file, a table's folder, or a catalog's name. The
user says which master key the table may name and which hash its metadata has, because others may be
able to write the metadata. Independent of what is done with the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ...errors import KmsConfigurationError, KmsError
from ..kms.options import KmsOptions
from .options import TableOptions

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from ...iceberg.command_line import EncryptedCatalog
    from ...kms.client import GeneratedKey, KmsClient

Note = Callable[[str], None]


_NO_KEYS = "this command opens no keys"


class NoKms:
    """A KMS client for commands that need no keys, or cannot use them: ``why`` says why not."""

    accepts_foreign_keys = False
    supports_key_generation = False

    def __init__(self, why: str = _NO_KEYS) -> None:
        self._why = why

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        raise KmsConfigurationError(self._why)

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        raise KmsConfigurationError(self._why)

    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


def open_table(
    options: TableOptions,
    note: Note,
    *,
    keys: bool = True,
    no_keys: str = _NO_KEYS,
    require_encrypted: bool = False,
) -> Table:
    """Open the table; an encrypted one with the KMS of the settings. With ``keys=False``, a use of
    its keys raises KmsConfigurationError, whose message is ``no_keys``. ``note`` is called with the
    choice of a metadata file. Raises click.UsageError, Ags1Error, OSError."""
    without = None if keys else NoKms(no_keys)
    if options.catalog is not None:
        try:
            named = NamedCatalog(options, without=without)
        except KmsError:
            table = plaintext_table(options, require_encrypted=require_encrypted or None)
            if table is None:
                raise
            return table
        return named.catalog.load_table(
            named.identifier,
            expected_key_id=named.expected_key_id,
            expected_metadata_sha256=options.metadata_sha256,
            location_map=options.location_map,
            require_encrypted=require_encrypted or None,
        )
    return _from_metadata(options, note, without, require_encrypted)


def plaintext_table(
    options: TableOptions, *, require_encrypted: bool | None = False
) -> Table | None:
    """Return a table of a catalog that is not encrypted, and so needs no KMS; None if it is
    encrypted. Raises what its catalog raises, and NotEncryptedError if it has to be encrypted."""
    from ...iceberg.command_line import EncryptedTable

    named = NamedCatalog(options, without=NoKms())
    table = named.catalog.load_table(named.identifier, require_encrypted=require_encrypted)
    return None if isinstance(table, EncryptedTable) else table


class NamedCatalog:
    """The catalog that the options name, its ``name``, and the ``identifier`` of the table in it.
    ``settings_key_id`` is the master key that the settings name; None if the catalog has a KMS.
    ``without`` is for a command that needs no keys. Raises click.UsageError, Ags1Error, OSError."""

    def __init__(self, options: TableOptions, *, without: NoKms | None = None) -> None:
        from ...iceberg.command_line import catalog_with, configured_properties
        from ...kms.registry import names_kms
        from ..kms.master_keys import connect, settings_of

        name = self.name = options.catalog or ""
        self.identifier = options.table.removeprefix(f"{name}.")
        if "." not in self.identifier or "/" in self.identifier:
            message = f"{options.table}: a table in a catalog has the name NAMESPACE.TABLE"
            raise click.UsageError(message)
        self._key_id = options.key_id
        self.settings_key_id: str | None = None
        configured = configured_properties(name, options.io_properties)
        if not configured:
            message = f"PyIceberg's configuration has no catalog {name!r}: add it there"
            raise click.UsageError(message)
        kms: KmsClient | None = without
        # The catalog's own KMS comes before the settings that are for everything.
        if kms is None and (options.kms != KmsOptions() or not names_kms(configured)):
            chosen = settings_of(options.kms)
            kms = connect(chosen)
            self.settings_key_id = chosen.key_id
        self.catalog: EncryptedCatalog = catalog_with(kms, name, options.io_properties)

    @property
    def takes_any_key(self) -> bool:
        """Whether the KMS would unwrap with any key that a table's metadata names, another user's
        too."""
        from ...kms.client import accepts_foreign_keys

        kms = self.catalog.kms
        return kms is not None and accepts_foreign_keys(kms)

    @property
    def expected_key_id(self) -> str | None:
        """Return the master key that the table has to name; None if it may name any."""
        if self._key_id is None and self.takes_any_key:
            return self.settings_key_id
        return self._key_id


def _from_metadata(
    options: TableOptions, note: Note, without: NoKms | None, require_encrypted: bool
) -> Table:
    from ...iceberg.command_line import EncryptedTable, moved_to
    from ...iceberg.command_line import open_table as open_from_metadata
    from ...kms.client import accepts_foreign_keys
    from ..kms.master_keys import connect, settings_of

    named: dict[str, Any] = {
        "expected_metadata_sha256": options.metadata_sha256,
        "require_encrypted": require_encrypted,
        "properties": dict(options.io_properties),
    }
    no_kms = without or NoKms()
    opened: Table = open_from_metadata(
        options.table,
        lambda _: no_kms,
        options.location_map,
        expected_key_id=options.key_id,
        **named,
    )
    location = opened.metadata_location
    is_folder = location.rpartition("/")[2] != options.table.rpartition("/")[2]
    if is_folder:
        note(f"reading {location}")
    location_map: Mapping[str, str] = options.location_map
    if not location_map:
        moved = moved_to(location.rpartition("/metadata/")[0] or None, opened.location())
        for stated in moved:
            if is_folder:
                location_map = moved
                note(f"the table was moved here from {stated}")
            else:
                note(
                    f"the metadata says that the table is in {stated}, and its files are read "
                    "there. If the whole folder was moved or copied, name the folder"
                )
    if without is not None or not isinstance(opened, EncryptedTable):
        return opened
    # Only now is it known that the table has keys, and so that a KMS is needed.
    chosen = settings_of(options.kms)
    kms = connect(chosen)
    expected = options.key_id
    if expected is None and accepts_foreign_keys(kms):
        expected = chosen.key_id
        if expected is None:
            raise click.UsageError(
                "with this KMS, the metadata may name another user's master key: name the table's "
                "with --key, AGS1_KMS_KEY, or key in the configuration"
            )
    return open_from_metadata(location, kms, location_map, expected_key_id=expected, **named)
