"""``relocate`` copies an encrypted table to another location, in the same storage or in another.

What is at the new location after each step::

    make_plan      nothing; the old table's manifests are read
    Copier         data/1.parquet                   data files, equality deletes and statistics,
                   data/2.parquet                   as they are stored and under their old names
    Rewriter       data/<uuid>-deletes.puffin       deletion vectors and position deletes,
                   metadata/<attempt>-m0.avro       then manifests, which name all files above,
                   metadata/snap-1-1-<attempt>.avro then manifest lists, which name manifests
    _publish       metadata/00001-<uuid>.metadata.json   to register in a catalog

Each file appears complete or not at all. So if the process is killed, there are whole files, and
no metadata.json names them. The next attempt finds the copies by their names and sizes, and does
not copy them again. It writes the other files under new names, and those of the killed attempt
stay: ``verify_table`` reports them as orphans. If an attempt fails with an exception, it deletes
the files that it has written anew, and its copies stay for the next attempt (with
``resume=False``, it deletes them too). The old table never changes.

Java's ``RewriteTablePath`` does the same for unencrypted tables and refuses encrypted ones. This
package does not know catalogs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io

from ....cpu import usable_cpus
from ....errors import MetadataIntegrityError
from ...commit.base import Base
from ...commit.metadata_file import (
    METADATA_PATH,
    next_metadata_location,
    print_metadata,
    stored_form,
)
from ...commit.session import TableSession, open_version
from ...storage.locations import checked_location, normalized
from ...storage.trust import Trust
from ..deletion import logged_metadata
from ..verify import verify_table
from ..verify.findings import Severity
from ..verify.progress import EstimatedProgress
from .copying import Copier
from .destination import Destination
from .location_checks import (
    check_new_location,
    is_seen_from,
    known_by_another_name,
    refuse_other_table,
)
from .new_metadata import new_metadata, new_properties
from .plan import Plan, make_plan
from .relocation import Relocation
from .rewriting import Rewriter
from .workers import Workers

_REMOTE_THREADS = 16


@dataclass(frozen=True, slots=True)
class RelocationResult:
    """The result of a relocation, or of its ``dry_run``.

    ``metadata_location`` is the new metadata.json, to register in a catalog; None after a dry run.
    ``copied_files`` is the number of files that were copied, ``copied_size`` their bytes.
    ``found_files`` and ``found_size`` are those that an earlier attempt had copied; a dry run does
    not look for them. ``rewritten_files`` is the number of files that were written anew: manifest
    lists, manifests, deletion vectors, position deletes. ``dropped_statistics`` are statistics
    files of the old metadata that are missing or outside the metadata folder; those outside may be
    something else, so they are not copied.

    ``old_files`` are the files in the old table's own folders that the new table replaces, and all
    known metadata.json files there. Delete them once nobody reads the old table.
    ``old_files_outside`` are those outside these folders, which may be somebody else's.
    """

    location: str
    metadata_location: str | None
    snapshots: int
    copied_files: int
    copied_size: int
    found_files: int
    found_size: int
    rewritten_files: int
    dropped_statistics: tuple[str, ...] = ()
    old_files: tuple[str, ...] = field(default=(), repr=False)
    old_files_outside: tuple[str, ...] = field(default=(), repr=False)


def relocate(
    table: TableSession,
    new_location: str,
    *,
    properties: Mapping[str, str] | None = None,
    snapshots: Literal["all", "current"] = "all",
    threads: int | None = None,
    dry_run: bool = False,
    progress: EstimatedProgress | None = None,
    resume: bool = True,
    verify: bool = False,
) -> RelocationResult:
    """Copy a table to ``new_location``. The old table does not change.

    ``properties`` are those of PyIceberg's FileIO for the new location; the default is the table's
    own. With ``snapshots="current"``, only the current snapshot is copied, with the branches and
    tags that refer to it. ``threads`` is the number of threads that copy. The default is one per
    CPU for this machine's file systems, and more over a network. ``progress(done, total)`` is
    called about ten times a second with numbers of bytes to copy, in the calling thread. If it
    raises, the call ends. With ``dry_run``, the manifests are read and nothing is written. With
    ``resume``, data files that are at their new location already are used, and after a failure the
    copied files stay. Without it, such a file is an error, and after a failure nothing stays.

    Each copy must have the size that the metadata says. With ``verify``, every file of the new
    table is authenticated before its metadata.json is written. An unencrypted file that is there
    already is compared with its source. If a wrong encrypted file is there, reading it fails.

    The new table keeps its KEKs and the keys of its data files. Files from outside the table's
    location are copied into a folder of the new location. Table properties that name a folder below
    the old location are changed to the new one. Those that name another folder are removed.

    If the table was moved and is opened with a ``location_map``, the new location may be where its
    files already are. Then nothing is copied.

    Raises ValueError if the location is invalid, if it is inside the present one or contains it,
    or if it is the present one under another name (through a link, a mount or an access point);
    TypeError if the table is not encrypted; NotImplementedError if it was opened with
    ``trust_file_size``; FileExistsError if another file is in the way;
    MetadataIntegrityError, TruncatedError, FormatError, AuthenticationError and NotEncryptedError
    if the table is damaged; KmsError; OSError.
    """
    if not isinstance(table, TableSession):
        raise TypeError(
            "the table is not encrypted, and only encrypted tables can be relocated: migrate it "
            "first"
        )
    if snapshots not in ("all", "current"):
        raise ValueError(f"snapshots must be 'all' or 'current', not {snapshots!r}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    view = table.view()
    if view.files.trust_file_size:
        raise NotImplementedError(
            "the table was opened with trust_file_size, and its copy would have what may be cut "
            "files as whole ones: write the rows that you have checked into a new table"
        )
    old_location = view.metadata["location"]
    new_location = checked_location(new_location)
    io_properties = view.files.properties if properties is None else dict(properties)
    is_in_place = check_new_location(view, new_location, io_properties)
    if threads is None:
        threads = usable_cpus()
        used = (normalized(new_location), normalized(view.files.stored_location(old_location)))
        if any(location.scheme != "file" for location in used):
            threads = max(threads, _REMOTE_THREADS)
    relocation = Relocation(
        view=view,
        metadata_location=table.metadata_location,
        folders=table.folders,
        all_snapshots=snapshots == "all",
        destination=Destination(old_location, new_location),
        io=load_file_io(io_properties, new_location),
        is_same_storage=io_properties == view.files.properties,
        is_in_place=is_in_place,
        workers=Workers(threads, progress),
        resume=resume,
        verify=verify,
    )
    return _run(relocation, dry_run=dry_run)


def _run(relocation: Relocation, *, dry_run: bool) -> RelocationResult:
    properties = new_properties(relocation.metadata, relocation.destination)
    metadata_folder = properties.get(METADATA_PATH, f"{relocation.destination.new}/metadata")
    copier = Copier(relocation)
    rewriter = Rewriter(relocation, metadata_folder)
    metadata_location = None
    try:
        plan = make_plan(relocation)
        if not dry_run:
            refuse_other_table(relocation.io, metadata_folder, relocation.metadata)
            for _ in relocation.workers.each(copier.copy, plan.copies.values()):
                pass
            lists = rewriter.rewrite(plan)
            metadata = new_metadata(relocation, plan, properties, lists)
            metadata_location = _publish(relocation, metadata, copier, rewriter)
        relocation.workers.report.tick(final=True)
    except BaseException:
        # Stop the threads first, because they may be about to complete a file.
        relocation.workers.stop()
        rewriter.output.discard(rewriter.output.written)
        if not relocation.resume:
            copier.output.discard(copier.output.written)
        raise
    finally:
        relocation.workers.stop()
    return _result(relocation, plan, copier, metadata_location)


def _publish(
    relocation: Relocation, metadata: dict[str, Any], copier: Copier, rewriter: Rewriter
) -> str:
    """Write the new metadata.json; return its location."""
    old_location = relocation.metadata_location
    location = next_metadata_location(metadata, old_location)
    text = print_metadata(metadata)
    if relocation.verify:
        _verify(relocation, metadata, location)
    rewriter.output.write(location, stored_form(text, location))
    if not relocation.is_in_place and is_seen_from(relocation.view, old_location, location):
        # Delete the copies of files from outside: no further attempt will use them.
        copier.output.discard(copier.output.written)
        raise known_by_another_name(relocation.destination.new)
    return location


def _verify(relocation: Relocation, metadata: dict[str, Any], location: str) -> None:
    """Authenticate every file of the new table. Raises MetadataIntegrityError, KmsError."""
    keys = relocation.files.keys
    version = open_version(
        Base(("relocated", location), metadata, location, Trust(key_id=keys.table_key_id)),
        relocation.io,
        keys.kms,
        require_encrypted=relocation.files.require_encrypted,
    )
    table = TableSession(version, NoopCatalog("relocated"))
    report = verify_table(table, threads=relocation.workers.threads, list_folders=False)
    for finding in report.findings:
        if finding.severity == Severity.ERROR:
            raise MetadataIntegrityError(
                f"the relocated table has an error, so it was not completed: {finding.message}",
                file=finding.file,
            )


def _result(
    relocation: Relocation, plan: Plan, copier: Copier, metadata_location: str | None
) -> RelocationResult:
    logged = logged_metadata(relocation.metadata)
    sources = set(plan.sources())
    unchanged = {c.source for c in plan.copies.values() if relocation.is_at_destination(c.source)}
    old = sources - unchanged
    old.update(plan.manifests, (snapshot.manifest_list for snapshot in plan.snapshots))
    inside = {location for location in old if relocation.folders.has(location)}
    inside.update(relocation.folders.versions(logged))
    # The table was opened from this file, which may have another location than in the metadata.
    inside.add(relocation.metadata_location)
    return RelocationResult(
        location=relocation.destination.new,
        metadata_location=metadata_location,
        snapshots=len(plan.snapshots),
        copied_files=len(plan.copies) - copier.found_files,
        copied_size=plan.copied_size - copier.found_size,
        found_files=copier.found_files,
        found_size=copier.found_size,
        rewritten_files=plan.rewritten_files,
        dropped_statistics=tuple(plan.dropped_statistics),
        old_files=tuple(sorted(inside)),
        old_files_outside=tuple(sorted(old.union(logged) - inside)),
    )
