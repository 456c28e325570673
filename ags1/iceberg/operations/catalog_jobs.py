"""Work on whole tables of a catalog: encrypt an unencrypted table, copy or move an encrypted one.

``migrate`` and ``relocate`` make the new files. This module commits them to the catalog.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ValidationException,
)
from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from ...errors import KmsConfigurationError, MetadataIntegrityError, NotEncryptedError
from ...keys.manager import TABLE_KEY_ID, EncryptionManager
from ...kms.client import KmsClient
from ..commit.base import Base
from ..commit.commits import Commits
from ..commit.session import TableSession
from ..read.metadata import read_metadata
from ..storage.output import TableOutput
from ..storage.table_folders import TableFolders
from ..storage.trust import Trust
from ..write.reencryption import RewriteExecutor, RewriteThreads
from .expire import GC_ENABLED
from .meter import Meter, Progress
from .migrate import Migration, PlaintextFiles, plaintext_files
from .relocation.relocate import RelocationResult, relocate
from .verify import verify_table
from .verify.findings import Severity, TableVerification
from .verify.progress import EstimatedProgress


class JobCatalog(Protocol):
    """The part of ``EncryptedCatalog`` that this module needs."""

    @property
    def kms(self) -> KmsClient | None: ...

    @property
    def key_ids(self) -> Collection[str]: ...

    def commits(self) -> Commits: ...

    def load_table(
        self, identifier: str | Identifier, *, expected_key_id: str | None = None
    ) -> Table: ...


# Verifies a table that its catalog has loaded.
Verify = Callable[[Any], TableVerification]

_ATTEMPTS = 5
_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """The result of a migration, or of its ``dry_run``.

    ``files`` is the number of encrypted files, ``size`` their bytes, ``rows`` their rows.
    ``dropped_refs`` are the removed branches and tags. ``plaintext`` are the unencrypted files of
    the table before the migration; it is None after a dry run. ``failed`` are those that could not
    be deleted.
    """

    files: int
    size: int
    rows: int
    dropped_refs: tuple[str, ...]
    plaintext: PlaintextFiles | None = field(default=None, repr=False)
    failed: tuple[str, ...] = ()


def migrate(
    catalog: JobCatalog,
    identifier: str | Identifier,
    key_id: str,
    *,
    data_key_length: int = 16,
    drop_refs: bool = False,
    threads: int | None = None,
    delete_plaintext: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    executor: RewriteExecutor | None = None,
    verify: Verify = verify_table,
) -> MigrationResult:
    """Encrypt an unencrypted table in place, in one commit.

    ``EncryptedCatalog.migrate_table`` documents the arguments and the errors. ``executor`` encrypts
    the files instead of threads. ``verify`` verifies the new table before unencrypted files are
    deleted.

    There are eleven parameters: each optional one is a choice by itself, and is given by name.
    """
    kms = _kms_for(catalog, key_id)
    asked = verify if delete_plaintext else None
    commits = catalog.commits()
    base = commits.load(identifier, Trust())
    commits.check(base)
    output = TableOutput(base.io(commits.catalog))
    if (base.metadata.get("properties") or {}).get(TABLE_KEY_ID):
        return _finish(catalog, base, key_id, output, None if dry_run else asked)
    meter = Meter(progress)
    migration = Migration(
        output,
        EncryptionManager(kms, key_id, data_key_length=data_key_length),
        drop_refs=drop_refs,
        executor=executor or RewriteThreads(threads),
        on_done=meter.done,
    )
    plan = migration.plan(base.metadata)
    meter.total = plan.rewrite.size
    if dry_run:
        return MigrationResult(len(plan.rewrite.files), plan.rewrite.size, plan.rows, plan.refs)
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0.5, 1) * _WAIT_SECONDS * 2**attempt)
            base = commits.load(identifier, Trust())
            plan = migration.plan(base.metadata)
        commit = migration.produce(base.metadata)
        try:
            after = commits.commit(
                base, commit.updates, commit.requirements, output, new_key_id=key_id
            )
            break
        except CommitStateUnknownException:
            raise
        except CommitFailedException:
            if attempt + 1 == _ATTEMPTS:
                # The encrypted files stay: the next run uses them.
                output.discard(migration.left_over)
                raise
    output.discard(migration.left_over)
    migration.finish()
    left, failed = _plaintext(catalog, base, after, key_id, output, asked)
    found = plan.rewrite
    return MigrationResult(len(found.files), found.size, commit.rows, plan.refs, left, failed)


def _kms_for(catalog: JobCatalog, key_id: str) -> KmsClient:
    """Return the catalog's KMS. Raises KmsConfigurationError without one, or for a key that is not
    the catalog's."""
    if catalog.kms is None:
        raise KmsConfigurationError(f"no KMS is configured, and {key_id!r} is needed")
    if catalog.key_ids and key_id not in catalog.key_ids:
        raise KmsConfigurationError(f"{key_id!r} is none of the catalog's trusted master keys")
    return catalog.kms


def _finish(
    catalog: JobCatalog, base: Base, key_id: str, output: TableOutput, verify: Verify | None
) -> MigrationResult:
    """Return the unencrypted files that an earlier migration has left. Delete them unless
    ``verify`` is None."""
    stated = base.metadata["properties"][TABLE_KEY_ID]
    if stated == key_id:
        folders = TableFolders.of(
            base.metadata, base.location, base.trust, catalog.commits().catalog.properties
        )
        logged = [entry["metadata-file"] for entry in base.metadata.get("metadata-log") or ()]
        for location in reversed(folders.versions(logged)):
            try:
                metadata = read_metadata(output.io, location, Trust())
            except (FileNotFoundError, MetadataIntegrityError):
                continue
            if not (metadata.get("properties") or {}).get(TABLE_KEY_ID):
                plain = replace(base, metadata=metadata)
                left, failed = _plaintext(catalog, plain, base, key_id, output, verify)
                return MigrationResult(0, 0, 0, (), left, failed)
    raise ValueError(f"the table is encrypted already, under the master key {stated!r}")


def _plaintext(
    catalog: JobCatalog,
    before: Base,
    after: Base,
    key_id: str,
    output: TableOutput,
    verify: Verify | None,
) -> tuple[PlaintextFiles, tuple[str, ...]]:
    """Return the unencrypted files of the table before its migration, and those of them that could
    not be deleted. If ``verify`` is None, nothing is deleted. If it finds an error in the encrypted
    table, nothing is deleted and this raises MetadataIntegrityError."""
    table = catalog.load_table(before.identifier, expected_key_id=key_id)
    assert isinstance(table, TableSession)
    # The folders are those that the metadata before the migration names: its files were there.
    folders = TableFolders.of(
        before.metadata, before.location, before.trust, catalog.commits().catalog.properties
    )
    left = plaintext_files(before.metadata, after.metadata, table.files, folders)
    if verify is None:
        return left, ()
    # So far only the size was checked of files that an earlier run had written.
    report = verify(table)
    if not report.ok:
        errors = [f for f in report.findings if f.severity is Severity.ERROR]
        raise MetadataIntegrityError(
            f"the encrypted table has {len(errors)} errors, so no unencrypted file is deleted: "
            f"{errors[0].message}",
            file=errors[0].file,
        )
    return left, left.delete(output)


def move_or_copy(
    catalog: JobCatalog,
    identifier: str | Identifier,
    new_location: str,
    *,
    move: bool = False,
    register_as: str | Identifier | None = None,
    snapshots: Literal["all", "current"] = "all",
    properties: Mapping[str, str] | None = None,
    threads: int | None = None,
    verify: bool = False,
    dry_run: bool = False,
    progress: EstimatedProgress | None = None,
) -> RelocationResult:
    """Copy an encrypted table to another location. ``EncryptedCatalog.relocate_table`` documents
    the arguments and the errors.

    There are eleven parameters: each optional one is a choice by itself, and is given by name.
    """
    if move and register_as is not None:
        raise ValueError("move and register_as exclude each other: pass one of them")
    table = catalog.load_table(identifier)
    if not isinstance(table, TableSession):
        raise NotEncryptedError(
            "the table is not encrypted, and only encrypted tables can be relocated: migrate it "
            "first"
        )
    if move and table.properties.get(GC_ENABLED, "true").lower() != "true":
        raise ValidationException(
            f"the table cannot be moved: its property {GC_ENABLED!r} is not true, so other tables "
            "may have its files too. Copy it instead"
        )
    commits = catalog.commits()
    folders = table.folders
    result = relocate(
        table,
        new_location,
        properties=properties,
        snapshots=snapshots,
        threads=threads,
        dry_run=dry_run,
        progress=progress,
        # A move deletes the old files, so the new table must be intact.
        verify=verify or move,
    )
    if result.metadata_location is None:
        return result
    files = table.files
    stored = files.properties if properties is None else dict(properties)
    output = TableOutput(load_file_io(stored, result.metadata_location))
    if register_as is not None:
        commits.register(register_as, result.metadata_location, output)
    if move:
        old = TableOutput(files.inner, files.location_map)
        commits.repoint(table.version.base, result.metadata_location, output)
        old.discard([location for location in result.old_files if folders.has(location)])
    return result
