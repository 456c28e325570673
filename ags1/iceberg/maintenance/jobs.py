"""Work on whole tables of a catalog: a plain one encrypted, an encrypted one moved.

What is done is in ``migration`` and ``relocation``; here it is committed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ValidationException,
)
from pyiceberg.io import load_file_io
from pyiceberg.typedef import Identifier

from ...errors import KmsConfigurationError, MetadataIntegrityError, NotEncryptedError
from ...keys.manager import TABLE_KEY_ID
from ..findings import Severity, TableVerification
from ..home import Home, home_of
from ..metadata import Trust, read_metadata
from ..table import EncryptedTable
from ..verify import verify_table
from ..writing.commits import Base
from ..writing.output import TableOutput
from ..writing.reencryption import RewriteExecutor
from .expiry import GC_ENABLED
from .meter import Meter, Progress
from .migration import Migration, PlaintextFiles, plaintext_files
from .relocation import Progress as RelocationProgress
from .relocation import RelocationResult, relocate

if TYPE_CHECKING:
    from ..catalog import EncryptedCatalog

# What says whether a table is whole.
Verify = Callable[[EncryptedTable], TableVerification]

_ATTEMPTS = 5
_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """What a migration did, or would do (``dry_run``): ``files`` of ``size`` bytes were encrypted,
    with ``rows`` in them; branches and tags ``dropped_refs`` are gone. ``plaintext`` are the files
    in the clear that are left of the table before, None after a dry run; ``failed`` those that were
    to be deleted and could not be."""

    files: int
    size: int
    rows: int
    dropped_refs: tuple[str, ...]
    plaintext: PlaintextFiles | None = field(default=None, repr=False)
    failed: tuple[str, ...] = ()


def migrate(
    catalog: EncryptedCatalog,
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
    """Encrypt a plain table, in its place and in one commit. See ``EncryptedCatalog.migrate_table``
    for the arguments and what is raised. ``executor`` encrypts the files instead of threads;
    ``verify`` is asked about the new table before files in the clear are deleted."""
    if catalog.kms is None:
        raise KmsConfigurationError(f"no KMS is configured, and {key_id!r} is needed")
    if catalog.key_ids and key_id not in catalog.key_ids:
        raise KmsConfigurationError(f"{key_id!r} is none of the catalog's trusted master keys")
    commits = catalog.commits()
    base = commits.load(identifier, Trust())
    commits.check(base)
    io = commits.io(base)
    output = TableOutput(io)
    if (base.metadata.get("properties") or {}).get(TABLE_KEY_ID):
        deletes = delete_plaintext and not dry_run
        return _finish(catalog, base, key_id, output, verify if deletes else None)
    meter = Meter(progress)
    migration = Migration(
        io,
        output,
        catalog.kms,
        key_id,
        data_key_length=data_key_length,
        drop_refs=drop_refs,
        threads=threads,
        on_done=meter.done,
        executor=executor,
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
                # The files that are encrypted stay: another run goes on with them.
                output.discard(migration.left_over)
                raise
    output.discard(migration.left_over)
    migration.finish()
    left, failed = _plaintext(
        catalog, base, after, key_id, output, verify if delete_plaintext else None
    )
    return MigrationResult(
        len(plan.rewrite.files),
        plan.rewrite.size,
        commit.rows,
        plan.refs,
        left,
        failed,
    )


def _finish(
    catalog: EncryptedCatalog, base: Base, key_id: str, output: TableOutput, verify: Verify | None
) -> MigrationResult:
    """Return what an earlier migration has left in the clear; delete it unless ``verify`` is
    None."""
    stated = base.metadata["properties"][TABLE_KEY_ID]
    if stated == key_id:
        home = Home.of(
            base.metadata, base.location, base.trust, catalog.commits().catalog.properties
        )
        logged = [entry["metadata-file"] for entry in base.metadata.get("metadata-log") or ()]
        for location in reversed(home.versions(logged)):
            try:
                metadata = read_metadata(output.io, location, Trust())
            except (FileNotFoundError, MetadataIntegrityError):
                continue
            if not (metadata.get("properties") or {}).get(TABLE_KEY_ID):
                plain = replace(base, metadata=metadata)
                left, failed = _plaintext(catalog, plain, base, key_id, output, verify)
                return MigrationResult(0, 0, 0, (), left, failed)
    raise ValueError(f"the table is encrypted already, under {stated!r}")


def _plaintext(
    catalog: EncryptedCatalog,
    before: Base,
    after: Base,
    key_id: str,
    output: TableOutput,
    verify: Verify | None,
) -> tuple[PlaintextFiles, tuple[str, ...]]:
    """Return what is left in the clear of the table before its migration, and what of that could
    not be deleted. Nothing is deleted when ``verify`` is None. Raises MetadataIntegrityError when
    the encrypted table is not whole: then nothing is either."""
    table = catalog.load_table(before.identifier, expected_key_id=key_id)
    assert isinstance(table, EncryptedTable)
    # Of the table before: what it said of its folders was true, or its files were elsewhere.
    home = Home.of(
        before.metadata, before.location, before.trust, catalog.commits().catalog.properties
    )
    left = plaintext_files(before.metadata, after.metadata, table.files, home)
    if verify is None:
        return left, ()
    # A file that an earlier run had written is known by its size alone so far.
    report = verify(table)
    if not report.ok:
        errors = [f for f in report.findings if f.severity is Severity.ERROR]
        raise MetadataIntegrityError(
            f"the encrypted table has {len(errors)} errors, so nothing in the clear is deleted: "
            f"{errors[0].message}",
            file=errors[0].file,
        )
    return left, left.delete(output)


def move_or_copy(
    catalog: EncryptedCatalog,
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
    progress: RelocationProgress | None = None,
) -> RelocationResult:
    """Copy an encrypted table elsewhere. See ``EncryptedCatalog.relocate_table`` for the arguments
    and what is raised."""
    if move and register_as is not None:
        raise ValueError("a table is moved, or its copy is registered: not both")
    table = catalog.load_table(identifier)
    if not isinstance(table, EncryptedTable):
        raise NotEncryptedError("the table is not encrypted: this is for those that are")
    if move and table.properties.get(GC_ENABLED, "true").lower() != "true":
        raise ValidationException(
            f"the table cannot be moved, only copied: {GC_ENABLED!r} is not true, so its files may "
            "be other tables' too"
        )
    commits = catalog.commits()
    home = home_of(table)
    result = relocate(
        table,
        new_location,
        properties=properties,
        snapshots=snapshots,
        threads=threads,
        dry_run=dry_run,
        progress=progress,
        # What is deleted afterwards has to be there, whole.
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
        commits.repoint(table.base(), result.metadata_location, output)
        old.discard([location for location in result.old_files if home.has(location)])
    return result
