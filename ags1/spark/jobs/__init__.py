"""Encrypt, decrypt, verify and rewrap any number of files on Spark's executors.

In ``ags1.files``: ``plan`` (which files), ``work`` (what a task does), ``jobs`` (a run).
The ledger (``ags1.files.ledger``), of any kind, lets the next job continue a killed one. Paths are
folders that the driver and all executors have mounted, or URLs of S3 or any other storage that
fsspec knows (``ags1.files.staging``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from ...files.jobs.report import FailedFile, PlannedFile, Progress, Summary
from ...files.jobs.running import VERIFY, Job, JobOptions
from ...files.keys import FileKeys, KmsConfig
from ...files.ledger import DECRYPT, ENCRYPT, ledger_location
from ...files.paths import SUFFIX
from ...files.plan.selection import Wanted
from ...files.staging.packed import Packed
from ...files.staging.pieces import Item
from ...files.staging.places import absolute
from ...files.work.tasks import Decrypting, Encrypting, Verifying
from .group import starts
from .rewrapping import rewrap_ledger

__all__ = [
    "FailedFile",
    "KmsConfig",
    "PlannedFile",
    "Summary",
    "decrypt_files",
    "encrypt_files",
    "rewrap_ledger",
    "verify_files",
]

# Paths, globs and folders; or a DataFrame with a column ``path``.
Sources: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Any"


def encrypt_files(
    spark: Any,
    sources: Sources,
    target: str | os.PathLike[str],
    *,
    ledger: str | os.PathLike[str],
    kms: KmsConfig,
    key_id: str,
    overwrite: bool = False,
    durable: bool = True,
    sidecars: bool = False,
    cores: int | None = None,
    progress: Progress | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    max_failures: int | None = None,
    dry_run: bool = False,
) -> Summary:
    """Encrypt files into the folder ``target``, each under a fresh key that the ledger holds.

    ``FILE``, below the folder that was given, becomes ``target/FILE.ags1``. If the ledger has a
    file as done, and source and target have not changed, nothing is done. If the source has
    changed, it is encrypted again with a new key and replaces the older target. Files that are
    encrypted already are skipped. ``key_id`` is the master key; the driver and each
    executor process call the KMS once. ``overwrite`` replaces targets that the ledger does not
    know; ``durable`` syncs files before the ledger has them as done. ``sidecars`` writes a
    sidecar ``FILE.ags1.keys`` beside each file that is encrypted now, when the ledger has its key;
    files that are done already get none. ``cores`` are the cluster's, by default what Spark says.
    ``progress(done, total)`` is called with bytes of sources.
    ``include`` and ``exclude`` are patterns as in ``.gitignore``: only files that match one of the
    first, if there are any, and none that match one of the second (``ags1.files.plan.patterns``).
    ``max_failures``: when so many files have failed, no other one is begun. ``dry_run``: write
    nothing, open no file, and return what would be done.

    ``ledger`` is a folder, or the URL of one in an object storage. ``spark`` is a session, classic
    or of Spark Connect, or a function that returns one. That is called when there is something to
    do, after everything that needs no Spark: the listing, the KMS. Any number of jobs use one
    ledger at a time.

    Raises KmsError, OSError for a ledger or folder that cannot be used or is full (BlockingIOError
    while a job of an earlier version writes to the ledger), FormatError for a damaged ledger,
    ValueError, and SparkEndedError.
    What is done so far stays done. The failure of one file, or sources without any file, is in the
    summary and in the ledger, and stops no other.
    There are more than eight arguments, because each is an option of the command.
    """
    root = absolute(_named(target, "target"))
    paths = _paths(sources)
    at = ledger_location(_named(ledger, "ledger"))
    options = JobOptions(
        durable, cores, progress, include, exclude, dry_run, max_failures, sidecars
    )
    kms.client()  # what fails here, does so before sources are listed
    make_keys = partial(FileKeys.for_sealing, kms, key_id)
    with Job(starts(spark), ENCRYPT, root, at, options) as job:
        files = job.selection.listed(paths)
        wanted = (Wanted(file, file.relative_path, file.size, None) for file in files)
        items = job.selection.items(wanted, len(files), suffix=SUFFIX, overwrite=overwrite)
        job.run(items, Encrypting, make_keys, key_id)
    return job.summary


def decrypt_files(
    spark: Any,
    sources: Sources | None,
    target: str | os.PathLike[str],
    *,
    ledger: str | os.PathLike[str],
    kms: KmsConfig,
    key_ids: Iterable[str] = (),
    overwrite: bool = False,
    durable: bool = True,
    cores: int | None = None,
    progress: Progress | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    max_failures: int | None = None,
    dry_run: bool = False,
) -> Summary:
    """Decrypt files whose keys the ledger has into the folder ``target``, under their old names.

    ``sources`` None means all files of the ledger. Moved files may be given too, if they keep their
    relative paths below the folder that is given. ``key_ids`` are the master keys to accept. They
    have to be given if the KMS would unwrap with other users' keys too. The same ledger notes which
    files are done, and the next job leaves those alone. The other arguments and the errors are
    those of ``encrypt_files``. If no key can be unwrapped, that is an error of the job: KmsError,
    KeyMetadataError, AuthenticationError. There are more than eight arguments, as there.
    """
    root = absolute(_named(target, "target"))
    keys = FileKeys.for_opening(kms, frozenset(key_ids))
    paths = None if sources is None else _paths(sources)
    at = ledger_location(_named(ledger, "ledger"))
    options = JobOptions(durable, cores, progress, include, exclude, dry_run, max_failures)
    with Job(starts(spark), DECRYPT, root, at, options) as job:
        wanted = Packed(Wanted._make)
        for file, row in job.selection.encrypted(paths):
            below = file.relative_path.removesuffix(SUFFIX)
            name = row.relative_path if paths is None else below
            wanted.append(Wanted(file, name, row.source_size, row.key_metadata))
        items = job.selection.items(wanted, len(wanted), overwrite=overwrite)
        job.run(items, Decrypting, lambda: keys, None)
    return job.summary


def verify_files(
    spark: Any,
    sources: Sources | None,
    *,
    ledger: str | os.PathLike[str],
    kms: KmsConfig,
    key_ids: Iterable[str] = (),
    cores: int | None = None,
    progress: Progress | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    max_failures: int | None = None,
    dry_run: bool = False,
) -> Summary:
    """Authenticate every block of files whose keys the ledger has; write nothing.

    The arguments and the errors are as in ``decrypt_files``. There are more than eight
    arguments, as there.
    """
    keys = FileKeys.for_opening(kms, frozenset(key_ids))
    paths = None if sources is None else _paths(sources)
    at = ledger_location(_named(ledger, "ledger"))
    options = JobOptions(False, cores, progress, include, exclude, dry_run, max_failures)
    with Job(starts(spark), VERIFY, "", at, options) as job:
        items = Packed(Item._make)
        for (path, name, size, version), row in job.selection.encrypted(paths):
            text_size, wrapped = row.source_size, row.key_metadata
            items.append(Item(len(items), path, "", name, size, version, text_size, wrapped))
        job.run(items, Verifying, lambda: keys, None)
    return job.summary


def _paths(sources: Any) -> list[str]:
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    elif hasattr(sources, "toLocalIterator"):
        if "path" not in sources.columns:
            raise ValueError("the DataFrame of sources has no column 'path': rename one")
        sources = [row["path"] for row in sources.select("path").toLocalIterator()]
        if None in sources:
            raise ValueError("the DataFrame of sources has rows without a path: leave them out")
    return [_named(source, "source") for source in sources]


def _named(path: str | os.PathLike[str], what: str) -> str:
    """Return a path as text. Raises ValueError for an empty one, as of a variable that is not set:
    it would mean the current folder."""
    text = os.fspath(path)
    if not text:
        raise ValueError(f"the path of the {what} is empty: give one")
    return text
