"""Which table is meant, and opening it: a metadata file, a table's folder, or a catalog's name. The
user says which master key the table may name and which hash its metadata has, because others may be
able to write the metadata. Knows nothing of what is done with the table."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ...errors import KmsConfigurationError, MetadataIntegrityError
from ..kms.options import KmsOptions
from .options import TableOptions

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from ...iceberg import EncryptedCatalog
    from ...kms.client import GeneratedKey, KmsClient

Note = Callable[[str], None]

_METADATA_NAME = re.compile(
    r"(?:v(?P<version>\d{1,18})|(?P<number>\d{1,18})(?:-[^/]*?)?)"
    r"(?:\.gz\.metadata\.json|\.metadata\.json(?:\.gz)?)"
)


class NoKms:
    """A KMS client for commands that need no keys."""

    accepts_foreign_keys = False
    supports_key_generation = False

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        raise KmsConfigurationError("this command opens no keys")

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        raise KmsConfigurationError("this command opens no keys")

    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


def open_table(
    options: TableOptions, note: Note, *, keys: bool = True, require_encrypted: bool = False
) -> Table:
    """Open the table; an encrypted one with the KMS of the settings, unless ``keys`` is False.
    ``note`` is called with the choice of a metadata file. Raises click.UsageError, Ags1Error,
    OSError."""
    if options.catalog is not None:
        named = NamedCatalog(options, keys=keys)
        return named.catalog.load_table(
            named.identifier,
            expected_key_id=named.expected_key_id,
            expected_metadata_sha256=options.metadata_sha256,
            location_map=options.location_map,
            require_encrypted=require_encrypted or None,
        )
    return _from_metadata(options, note, keys, require_encrypted)


class NamedCatalog:
    """The catalog that the options name, its ``name``, and the ``identifier`` of the table in it.
    ``settings_key_id`` is the master key that the settings name; None if the catalog has a KMS.
    ``keys`` is False for a command that needs no keys. Raises click.UsageError, Ags1Error,
    OSError."""

    def __init__(self, options: TableOptions, *, keys: bool) -> None:
        from pyiceberg.catalog import load_catalog as load_plain_catalog

        from ...iceberg import EncryptedCatalog, load_catalog
        from ...iceberg.catalog import catalog_rules
        from ...iceberg.pyiceberg.catalogs import configured_properties
        from ...kms.registry import names_kms
        from ..kms.master_keys import connect, settings_of

        name = self.name = options.catalog or ""
        self.identifier = options.table.removeprefix(f"{name}.")
        if "." not in self.identifier or "/" in self.identifier:
            said = f"{options.table}: a table in a catalog has the name NAMESPACE.TABLE"
            raise click.UsageError(said)
        self._key_id = options.key_id
        self.settings_key_id: str | None = None
        configured = configured_properties(name, options.io_properties)
        if not configured:
            said = f"PyIceberg's configuration has no catalog {name!r}: add it there"
            raise click.UsageError(said)
        has_kms = names_kms(configured)
        if keys and has_kms and options.kms == KmsOptions():
            # The catalog's own KMS comes before the settings that are for everything.
            self.catalog: EncryptedCatalog = load_catalog(name, **options.io_properties)
            return
        kms: KmsClient = NoKms()
        if keys:
            chosen = settings_of(options.kms)
            kms = connect(chosen)
            self.settings_key_id = chosen.key_id
        inner = load_plain_catalog(name, **options.io_properties)
        self.catalog = EncryptedCatalog(inner, kms, **catalog_rules(configured))

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


def _from_metadata(options: TableOptions, note: Note, keys: bool, require_encrypted: bool) -> Table:
    from pyiceberg.io import load_file_io

    from ...iceberg import open_table as open_from_metadata
    from ...iceberg.read.metadata import read_metadata, table_key_id
    from ...iceberg.storage.locations import without_scheme
    from ...iceberg.storage.trust import Trust
    from ...kms.client import accepts_foreign_keys
    from ..kms.master_keys import connect, settings_of

    location = options.table if ":" in options.table else os.path.abspath(options.table)
    io = load_file_io(dict(options.io_properties), location)
    location_map = dict(options.location_map)
    trust = Trust(options.key_id, options.metadata_sha256)
    folder = None
    if not location.endswith((".metadata.json", ".metadata.json.gz")):
        folder = location.rstrip("/")
        location = newest_metadata(io, folder)
        note(f"reading {location}")
    metadata = read_metadata(io, location, trust)
    expected = options.key_id
    kms: KmsClient | None = None
    if table_key_id(metadata, trust, location) is not None:
        kms = NoKms()
        if keys:
            chosen = settings_of(options.kms)
            kms = connect(chosen)
            if expected is None and accepts_foreign_keys(kms):
                expected = chosen.key_id
                if expected is None:
                    raise click.UsageError(
                        "with this KMS, the metadata may name another user's master key: name the "
                        "table's with --key, AGS1_KMS_KEY, or key in the configuration"
                    )
    stated = str(metadata.get("location") or "").rstrip("/")
    is_elsewhere = folder is not None and without_scheme(stated) != without_scheme(folder)
    if folder is not None and stated and is_elsewhere and not location_map:
        location_map[stated] = folder
        note(f"the table was moved here from {stated}")
    return open_from_metadata(
        location,
        kms,
        location_map,
        expected_key_id=expected,
        expected_metadata_sha256=options.metadata_sha256,
        require_encrypted=require_encrypted,
        properties=dict(options.io_properties),
    )


def newest_metadata(io: FileIO, folder: str) -> str:
    """Return the location of the newest metadata file of the table in ``folder``: the one that
    ``version-hint.text`` names, or else the one with the highest number. Raises FileNotFoundError,
    and MetadataIntegrityError when two have that number."""
    from ...iceberg.storage.listing import list_files

    files = list_files(io, f"{folder}/metadata")
    if files is None:
        said = f"{type(io).__name__} cannot list the files of {folder}: name the metadata.json"
        raise click.UsageError(said)
    hint, numbered = None, []
    for location in files:
        name = location.rpartition("/")[2]
        if name == "version-hint.text":
            hint = location
        elif match := _METADATA_NAME.fullmatch(name):
            numbered.append((int(match["version"] or match["number"]), location))
    if hint is not None:
        with contextlib.closing(io.new_input(hint).open()) as stream:
            version = stream.read(1 << 10).decode("utf-8", "replace").strip()
        names = (version, f"v{version}.metadata.json", f"{version}.metadata.json")
        for _, location in numbered:
            if location.rpartition("/")[2] in names:
                return location
    if not numbered:
        said = "there is no metadata.json in its folder 'metadata': name a table's folder"
        raise FileNotFoundError(errno.ENOENT, said, folder)
    highest = max(number for number, _ in numbered)
    newest = [location for number, location in numbered if number == highest]
    if len(newest) > 1:
        said = f"{len(newest)} metadata files have the number {highest}: name the one to read"
        raise MetadataIntegrityError(said, file=folder)
    return newest[0]
