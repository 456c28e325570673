"""Encrypt an unencrypted table of a catalog.

``Migration`` makes the new files. This module commits them to the catalog.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from ...errors import KmsConfigurationError, MetadataIntegrityError
from ...keys.envelope import KeyEncryptionKey
from ...keys.manager import TABLE_KEY_ID, EncryptionManager, now_ms
from ...kms.client import KmsClient
from ..commit.base import Base
from ..commit.commits import Commits
from ..commit.session import TableSession
from ..read.metadata import (
    is_plaintext,
    is_plaintext_with_key_id,
    table_key_id,
)
from ..storage.locations import file_identity
from ..storage.output import TableOutput
from ..storage.table_folders import TableFolders
from ..storage.trust import Trust
from ..write.executors import RewriteExecutor, RewriteThreads
from .check import verify_table
from .check.findings import Severity, TableCheck
from .deletion import delete_files, logged_metadata
from .meter import Meter, Progress
from .migrate import Migration, MigrationPlan
from .plaintext_files import (
    PlaintextFiles,
    check_owns_files,
    plaintext_files,
    unencrypted_version,
)


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


# Verifies a table that its catalog has loaded, without its folders: they have the plaintext.
Verify = Callable[[Any], TableCheck]
_verify_files: Verify = partial(verify_table, list_folders=False)

_ATTEMPTS = 5
_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """The result of a migration, or of its ``dry_run``.

    ``files`` is the number of encrypted files, ``size`` their bytes, ``rows`` their rows.
    ``dropped_refs`` are the removed branches and tags, ``dropped_snapshots`` the IDs of the
    removed snapshots: all that the table had. ``plaintext`` are the unencrypted files of
    the table before the migration; it is None after a dry run. ``metadata_deleted`` is the number
    of earlier metadata files that were deleted with them. ``failed`` are the files of both kinds
    that could not be deleted.
    """

    files: int
    size: int
    rows: int
    dropped_refs: tuple[str, ...]
    plaintext: PlaintextFiles | None = field(default=None, repr=False)
    failed: tuple[str, ...] = ()
    metadata_deleted: int = 0
    dropped_snapshots: tuple[int, ...] = ()


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
    verify: Verify = _verify_files,
) -> MigrationResult:
    """Encrypt an unencrypted table in place, in one commit. ``EncryptedCatalog.migrate_table``
    documents the arguments and the errors. ``executor`` encrypts the files instead of threads.
    ``verify`` verifies the new table before unencrypted files are deleted. There are eleven
    parameters: each optional one is a choice by itself, and is given by name."""
    kms = _kms_for(catalog, key_id)
    commits = catalog.commits()
    keys = EncryptionManager(kms, key_id, data_key_length=data_key_length)
    # Fail now, also in a dry run, if the key ID is wrong or the key may not be used.
    KeyEncryptionKey.generate(kms, key_id, key_size=data_key_length, timestamp_ms=now_ms())
    base = _loaded(commits, identifier)
    commits.check(base)
    output = TableOutput(base.io(commits.catalog))
    removal = _PlaintextRemoval(
        catalog, key_id, output, verify if delete_plaintext and not dry_run else None
    )
    if not is_plaintext(base.metadata):
        return removal.continued(base)
    meter = Meter(progress)
    migration = Migration(
        output,
        keys,
        drop_refs=drop_refs,
        executor=executor or RewriteThreads(threads),
        on_done=meter.done,
    )
    if delete_plaintext:
        check_owns_files(base.metadata)
    plan = migration.plan(base.metadata)
    meter.total = plan.rewrite.size
    if dry_run:
        return _result(plan)
    before, plan, after = _committed(commits, base, migration, output)
    output.discard(migration.left_over)
    migration.finish()
    return _result(plan, *removal.run(before, after, removal.folders(before)))


def _result(
    plan: MigrationPlan,
    plaintext: PlaintextFiles | None = None,
    failed: tuple[str, ...] = (),
    metadata_deleted: int = 0,
) -> MigrationResult:
    rewrite = plan.rewrite
    return MigrationResult(
        len(rewrite.files),
        rewrite.size,
        plan.rows,
        plan.refs,
        plaintext,
        failed,
        metadata_deleted,
        plan.snapshots,
    )


def _committed(
    commits: Commits, base: Base, migration: Migration, output: TableOutput
) -> tuple[Base, MigrationPlan, Base]:
    """Commit a migration; return the version that was migrated, the plan for it, and the new
    version. If another writer commits first, try again with its version."""
    for attempt in itertools.count(1):
        commit = migration.produce(base.metadata)
        try:
            after = commits.commit(
                base, commit.updates, commit.requirements, output, new_key_id=commit.key_id
            )
            return base, commit.plan, after
        except CommitStateUnknownException:
            raise
        except CommitFailedException:
            if attempt == _ATTEMPTS:
                # The encrypted files stay: the next run uses them.
                output.discard(migration.left_over)
                raise
        time.sleep(random.uniform(0.5, 1) * _WAIT_SECONDS * 2**attempt)
        base = _loaded(commits, base.identifier)
    raise AssertionError


def _loaded(commits: Commits, identifier: str | Identifier) -> Base:
    """Load a table. If it only has the property of an encrypted table, nothing is expected of it:
    a catalog keeps the property beside the metadata, whatever the files are. Raises
    NotEncryptedError if the catalog keeps more: then the table was encrypted."""
    base = commits.read(identifier, Trust())
    if is_plaintext_with_key_id(base.metadata):
        commits.check_never_encrypted(base)
        return replace(base, trust=replace(base.trust, key_id=None, data_key_length=None))
    table_key_id(base.metadata, base.trust, base.location)
    return base


def _kms_for(catalog: JobCatalog, key_id: str) -> KmsClient:
    """Return the catalog's KMS. Raises KmsConfigurationError without one, or for a key that is not
    the catalog's."""
    if catalog.kms is None:
        raise KmsConfigurationError(f"no KMS is configured, and {key_id!r} is needed")
    if catalog.key_ids and key_id not in catalog.key_ids:
        raise KmsConfigurationError(f"{key_id!r} is none of the catalog's trusted master keys")
    return catalog.kms


@dataclass(frozen=True, slots=True)
class _PlaintextRemoval:
    """Lists the unencrypted files of a table that was migrated, and deletes them unless ``verify``
    is None."""

    catalog: JobCatalog
    key_id: str
    output: TableOutput
    verify: Verify | None

    def continued(self, base: Base) -> MigrationResult:
        """Finish an earlier migration, whose result is ``base``. If no unencrypted version is
        known, nothing is left to do. Raises ValueError if the table was encrypted under another
        master key."""
        stated = base.metadata["properties"][TABLE_KEY_ID]
        if stated != self.key_id:
            raise ValueError(f"the table is encrypted already, under the master key {stated!r}")
        # Nothing confirms the earlier metadata, so it may not name folders.
        folders = self.folders(base)
        if (found := unencrypted_version(base.metadata, self.output.io, folders)) is None:
            return MigrationResult(0, 0, 0, (), PlaintextFiles((), (), (), folders))
        before = replace(base, location=found[0], metadata=found[1])
        return MigrationResult(0, 0, 0, (), *self.run(before, base, folders))

    def run(
        self, before: Base, after: Base, folders: TableFolders
    ) -> tuple[PlaintextFiles, tuple[str, ...], int]:
        """Return the unencrypted files of ``before``, the files that could not be deleted, and the
        number of deleted metadata files. Only files in ``folders`` are deleted. If the encrypted
        table has an error, raise MetadataIntegrityError and delete nothing."""
        table = self.catalog.load_table(before.identifier, expected_key_id=self.key_id)
        assert isinstance(table, TableSession)
        plaintext = plaintext_files(before.metadata, after.metadata, table.files, folders)
        if self.verify is None:
            return plaintext, (), 0
        check_owns_files(before.metadata, after.metadata)
        # An earlier run has written some files. Only their sizes were checked so far.
        report = self.verify(table)
        if not report.ok:
            errors = [f for f in report.findings if f.severity is Severity.ERROR]
            raise MetadataIntegrityError(
                f"the encrypted table has {len(errors)} errors, so no unencrypted file is deleted: "
                f"{errors[0].message}",
                file=errors[0].file,
            )
        failed = plaintext.delete(self.output)
        # Their summaries may have values of partitions. The newest goes last: while it is there,
        # the next run continues this one.
        logged = folders.versions([*logged_metadata(before.metadata), before.location])
        kept = file_identity(after.location)
        earlier = [location for location in logged if file_identity(location) != kept]
        stayed = delete_files(earlier[:-1], self.output, folders)
        stayed += delete_files(earlier[-1:], self.output, folders)
        return plaintext, failed + stayed, len(earlier) - len(stayed)

    def folders(self, base: Base) -> TableFolders:
        """Return the table's folders, as far as its catalog confirms ``base``."""
        properties = self.catalog.commits().catalog.properties
        return TableFolders.of(base.metadata, base.location, base.trust, properties)
