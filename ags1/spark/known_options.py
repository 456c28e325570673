"""The options that the data sources know, and the refusal of all others.

A source declares its options by direction: reading, writing, and for tables also jobs. An option of
another direction, or one that no direction knows, raises ValueError: if a source passed over it, a
query would read or write something else than it says. Spark hands over names in lower case, so case
does not count. Spark adds ``path`` and ``paths``. Independent of the options' values.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from ..kms.settings import PROPERTY_PREFIXES

# The directions, as error messages say them.
READ, WRITE = "reading", "writing"
JOB = "a job on a whole table"


@dataclass(frozen=True, slots=True)
class KnownOptions:
    """Options by their names as documented, and by what names of properties begin with."""

    names: frozenset[str]
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: str, *prefixes: str) -> KnownOptions:
        """``names`` are separated by blanks."""
        return cls(frozenset(names.split()), prefixes)

    def __or__(self, other: KnownOptions) -> KnownOptions:
        return KnownOptions(self.names | other.names, (*self.prefixes, *other.prefixes))

    def has(self, name: str) -> bool:
        """Whether an option is known. ``name`` is in lower case."""
        known = any(name == known.lower() for known in self.names)
        return known or name.startswith(tuple(prefix.lower() for prefix in self.prefixes))


Source = Mapping[str, KnownOptions]

_KMS = KnownOptions.of("kms keyring key", *PROPERTY_PREFIXES)
_PLACE = KnownOptions.of("path paths")

_OPENED = _KMS | KnownOptions.of("path catalog require-encrypted location-map", "catalog.")
_TABLE = _OPENED | KnownOptions.of("case-sensitive")
_TABLE_ROWS = KnownOptions.of("filter columns partSize")
_SNAPSHOT = KnownOptions.of("snapshot-id branch as-of-timestamp")
_TABLE_OUTPUT = KnownOptions.of("branch", "snapshot-property.")
_TABLE_WRITE = KnownOptions.of("overwrite-filter overwrite-mode partitionOverwriteMode")

#: The options of "ags1-iceberg", of ``queries`` and of ``tables``.
TABLES: Source = {
    READ: _TABLE | _TABLE_ROWS | _SNAPSHOT,
    WRITE: _TABLE | _TABLE_OUTPUT | _TABLE_WRITE,
    JOB: _OPENED,
}

_FILES = _KMS | KnownOptions.of("inner ledger")
_FILE_ROWS = KnownOptions.of("trusted_keys columns partSize ignoreMissingFiles")
_CSV_ROWS = KnownOptions.of("header sep delimiter quote escape nullValue inferSchema multiLine")
_COMPRESSION = KnownOptions.of("compression")
_READ_BY_FORMAT = {"csv": _CSV_ROWS}
_WRITTEN_BY_FORMAT = {
    "csv": KnownOptions.of("header sep"),
    "parquet": _COMPRESSION,
    "avro": _COMPRESSION,
}


def of_files(inner: str) -> Source:
    """Return the options of "ags1" with an inner format, empty for the encrypted files
    themselves."""
    inner = inner.lower()
    nothing = KnownOptions.of("")
    reading = _FILES | _FILE_ROWS | _READ_BY_FORMAT.get(inner, nothing)
    writing = _FILES | _WRITTEN_BY_FORMAT.get(inner, nothing)
    return {
        READ: _PLACE | reading,
        WRITE: _PLACE | writing,
        **{f"reading {name}": known for name, known in _READ_BY_FORMAT.items()},
        **{f"writing {name}": known for name, known in _WRITTEN_BY_FORMAT.items()},
    }


def check(options: Mapping[str, str], source: Source, direction: str) -> None:
    """Raise ValueError for an option that a source does not know in this direction, and if
    nothing is named to read from or to write to."""
    _refuse_catalog_entry(options)
    allowed = source[direction]
    for given in options:
        name = given.lower()
        if allowed.has(name):
            continue
        elsewhere = [direction for direction, known in source.items() if known.has(name)]
        if elsewhere:
            where = " and ".join(elsewhere)
            raise ValueError(f"the option {given!r} is only for {where}: leave it out")
        message = f"the option {given!r} is not known"
        if near := _near(name, allowed):
            raise ValueError(f"{message}: did you mean {near!r}?")
        if source is TABLES and (near := _near(name, _FILES | _FILE_ROWS)):
            raise ValueError(f"{message}: {near!r} is one of the source 'ags1'. Leave it out")
        raise ValueError(f"{message}: leave it out")


def _near(name: str, known: KnownOptions) -> str | None:
    names = {each.lower(): each for each in known.names}
    # Those of a lower ratio have hardly a letter in the same place.
    near = difflib.get_close_matches(name, names, 1, cutoff=0.7)
    return names[near[0]] if near else None


def _refuse_catalog_entry(options: Mapping[str, str]) -> None:
    # CREATE TABLE passes these properties. A later use of the table passes no options.
    is_new_entry = options.keys() >= {"owner", "provider"}
    if is_new_entry or not (options.get("path") or options.get("paths")):
        raise ValueError(
            "no table or folder is named: pass it to load() or save(). If this is a table "
            "of Spark's catalog (CREATE TABLE ... USING, saveAsTable): Spark does not hand such a "
            "table's options to a data source, so use CREATE TEMPORARY VIEW ... USING instead"
        )
