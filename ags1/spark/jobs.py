"""Encrypt, decrypt, verify and rewrap any number of files on Spark's executors.

The driver lists the sources and cuts the work (``planning``); tasks do it under names of their own
(``work``); the driver publishes what one attempt of each piece has made (``publishing``) and keeps
the ledger (``ledger``), by which a job that was killed is taken up again. Paths are of file systems
that the driver and all executors have mounted, or URLs of S3's or any other storage that fsspec
knows (``storage``); the ledger is a folder of the driver's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeAlias

from .bulk.planning import Item
from .bulk.rewrapping import rewrap_ledger
from .bulk.running import SUFFIX, VERIFY, FailedFile, Job, Progress, Summary
from .bulk.work import Decrypting, Encrypting, Verifying
from .keys import FileKeys, KmsConfig
from .ledger import DECRYPT, ENCRYPT
from .storage.choice import absolute, find

__all__ = [
    "FailedFile",
    "KmsConfig",
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
    plaintext_hmac: bool = False,
    cores: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Encrypt files into the folder ``target``, each under a fresh key that the ledger holds.

    ``FILE`` becomes ``target/FILE.ags1``, below the folder that was named. Files that the ledger
    has as done are left alone when source and target are as it says; those whose source has changed
    are encrypted anew, with a new key, and replace the older target. Files that are encrypted
    already are passed over. ``key_id`` is the master key; the KMS is asked once by the driver and
    once by each executor process. ``overwrite`` replaces targets that the ledger does not know;
    ``durable`` syncs everything before the ledger says that it is done. ``plaintext_hmac`` notes an
    HMAC of each plaintext, for which it is read once more. ``cores`` are those of the
    cluster, by default what Spark says. ``progress(done, total)`` is called with bytes of sources.

    Raises KmsError, OSError for a ledger or folder that cannot be used, ValueError. A file's
    failure is in the summary and in the ledger and stops no other; so is that there is no file.
    """
    root = absolute(_named(target, "target"))
    paths = _paths(sources)
    keys = FileKeys.for_sealing(kms, key_id)
    folder = _named(ledger, "ledger")
    with Job(spark, ENCRYPT, root, folder, durable, cores, progress) as job:
        listing = find(paths, passed_over=(root, job.ledger.folder))
        job.list_failed(listing.problems)
        if not listing.files and not listing.problems:
            job.fail_as_empty(paths, (root, job.ledger.folder))
        known = job.ledger.done(ENCRYPT, ("source", "source_size", "source_version", "target_size"))
        job.looks_at(len(listing.files))
        items: list[Item] = []
        for found in listing.files:
            path = job.target(found.relative_path + SUFFIX)
            row = known.get(path)
            if not job.takes(found, path, row, overwrite=overwrite):
                continue
            item = Item(
                len(items),
                found.path,
                path,
                found.relative_path,
                found.size,
                found.version,
                found.size,
                replaces=overwrite or row is not None,
                unit=job.unit(found.size),
            )
            items.append(item)
        job.run(items, Encrypting, keys, key_id, digests=plaintext_hmac)
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
) -> Summary:
    """Decrypt files that the ledger has the keys of into the folder ``target``, under the names
    that they had.

    ``sources`` None means all files of the ledger. They may have been moved: then the folder named
    has them at the relative paths that the ledger knows. ``key_ids`` are the master keys to accept,
    which have to be named where a key id may be a stranger's. What is done is noted in the same
    ledger, and left alone the next time. Arguments and errors otherwise as in ``encrypt_files``.
    """
    root = absolute(_named(target, "target"))
    keys = FileKeys.for_opening(kms, frozenset(key_ids))
    paths = None if sources is None else _paths(sources)
    folder = _named(ledger, "ledger")
    with Job(spark, DECRYPT, root, folder, durable, cores, progress) as job:
        known = job.ledger.done(DECRYPT, ("source", "source_size", "source_version", "target_size"))
        sealed_files = list(job.sealed_files(paths, (root, job.ledger.folder)))
        job.looks_at(len(sealed_files))
        items: list[Item] = []
        for found, sealed in sealed_files:
            name = sealed.relative_path if sources is None else _without_suffix(found.relative_path)
            path = job.target(name)
            row = known.get(path)
            if not job.takes(found, path, row, overwrite=overwrite):
                continue
            item = Item(
                len(items),
                found.path,
                path,
                name,
                found.size,
                found.version,
                sealed.source_size,
                sealed.key_metadata,
                overwrite or row is not None,
                job.unit(sealed.source_size),
            )
            items.append(item)
        job.run(items, Decrypting, keys, None)
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
) -> Summary:
    """Authenticate every block of files that the ledger has the keys of; write nothing.

    Arguments and errors as in ``decrypt_files``.
    """
    keys = FileKeys.for_opening(kms, frozenset(key_ids))
    paths = None if sources is None else _paths(sources)
    with Job(spark, VERIFY, "", _named(ledger, "ledger"), False, cores, progress) as job:
        items = [
            Item(
                number,
                found.path,
                "",
                found.relative_path,
                found.size,
                found.version,
                sealed.source_size,
                sealed.key_metadata,
            )
            for number, (found, sealed) in enumerate(job.sealed_files(paths, (job.ledger.folder,)))
        ]
        job.run(items, Verifying, keys, None)
    return job.summary


def _paths(sources: Sources) -> list[str]:
    given: Any = sources
    if isinstance(sources, (str, os.PathLike)):
        return [_named(sources, "source")]
    if not hasattr(sources, "toLocalIterator"):
        return [_named(source, "source") for source in sources]
    if "path" not in given.columns:
        raise ValueError("the DataFrame of sources has no column 'path'")
    paths = [row["path"] for row in given.select("path").toLocalIterator()]
    if None in paths:
        raise ValueError("the DataFrame of sources has rows without a path")
    return [_named(path, "source") for path in paths]


def _named(path: str | os.PathLike[str], what: str) -> str:
    """Return a path as text. Raises ValueError for an empty one, which would mean the folder that
    happens to be the current one: a variable that is not set."""
    text = os.fspath(path)
    if not text:
        raise ValueError(f"the path of a {what} is empty")
    return text


def _without_suffix(name: str) -> str:
    return name.removesuffix(SUFFIX)
