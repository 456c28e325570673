"""Wraps a ledger's KEKs again, under another master key or a newer version of the same one.

The KEKs do not change, so files and their keys do not, either. The driver reads the batches of the
ledger, tasks wrap their keys again, and the driver replaces each batch in one step. A task checks
that every key can be unwrapped, because the old master key may be destroyed next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...errors import KMS_UNUSABLE, Ags1Error, KeyMetadataError, KmsKeyNotFoundError, KmsUnwrapError
from ...files.jobs.report import Summary
from ...files.jobs.running import Job, JobOptions
from ...files.keys import FileKeys, KmsConfig, as_text
from ...files.ledger import Row, ledger_location
from ...files.work.tasks import cause
from ...keys.envelope import EncryptedKey, KeyEncryptionKey
from ...keys.keychain import FILE_KEY_SIZE
from ...keys.sidecar import Sidecar
from .group import starts

REWRAP = "rewrap"
# The rows of one task, and of one Spark job. The driver has as many in memory.
_KEYS_IN_A_TASK = 2_000
_KEYS_IN_A_JOB = 100_000

# For each KEK's ID: the wrapped KEK, and the master key's ID.
_Made: TypeAlias = "dict[tuple[str, bytes, str | None], KeyEncryptionKey]"


class _Rewrapped(NamedTuple):
    """What became of a key: its new document and master key, or the error's kind and message."""

    key_metadata: str | None
    master_key_id: str | None
    error_kind: str = ""
    error: str = ""


def rewrap_ledger(
    spark: Any,
    *,
    ledger: str | os.PathLike[str],
    kms: KmsConfig,
    to_key_id: str | None = None,
    to_kms: KmsConfig | None = None,
    key_ids: Iterable[str] = (),
    durable: bool = True,
    cores: int | None = None,
) -> Summary:
    """Wrap the KEKs of a ledger under the master key ``to_key_id``, of ``to_kms`` if that is given.
    By default each is wrapped under the newest version of its own master key.

    ``key_ids`` are the master keys to accept, as in ``decrypt_files``. Keys that cannot be
    unwrapped are failures and do not change. Copies of the ledger do not change. ``spark``,
    ``ledger``, ``durable`` and ``cores`` are as in ``encrypt_files``. Raises KmsError, OSError
    (BlockingIOError if a job writes to the ledger, also if it has begun meanwhile: then some keys
    may not be wrapped again), FormatError, and SparkEndedError.
    """
    accepted = frozenset(key_ids)
    if accepted and to_key_id is not None and to_kms is None:
        accepted |= {to_key_id}  # what an earlier run has done
    keys = FileKeys.for_opening(kms, accepted)
    at = ledger_location(ledger)
    with Job(starts(spark), REWRAP, "", at, JobOptions(durable=durable, cores=cores)) as job:
        if to_kms is None:  # otherwise an earlier run may have done them all
            batches = job.ledger.batches(("key_metadata",))
            keys.check(row.key_metadata for _, rows in batches for row in rows if row.key_metadata)
        target = kms if to_kms is None else to_kms
        if to_key_id is not None:
            # One KMS call, which fails if no key can be wrapped under it.
            KeyEncryptionKey.generate(target.client(), to_key_id, key_size=FILE_KEY_SIZE)
        work = _Rewrapping(keys, target, to_key_id)
        tried: set[str] = set()
        job.ledger.note_rewrapping()
        while True:
            # A job that begins after this has its keys under the new master key already.
            job.ledger.refuse_jobs()
            before = len(tried)
            for batches in job.ledger.settled_groups(_KEYS_IN_A_JOB, besides=tried):
                tried |= {name for name, _ in batches}
                job.ledger.replace_all(_wrap_again(job, work, batches))
            if len(tried) == before:
                break
        job.has_ended = True
    return job.summary


def _wrap_again(
    job: Job, work: _Rewrapping, batches: Sequence[tuple[str, list[Row]]]
) -> dict[str, list[Row]]:
    """Return batches with the keys that tasks have wrapped again, those of them that have any."""
    rows = [row for _, batch in batches for row in batch if row.key_metadata is not None]
    documents = [row.key_metadata or "" for row in rows]
    cut = range(0, len(rows), _KEYS_IN_A_TASK)
    tasks = [documents[first : first + _KEYS_IN_A_TASK] for first in cut]
    of_tasks = job.runner.run(tasks, work) if tasks else []
    results = (result for of_task in of_tasks for result in of_task)
    done = ((name, _done(job.summary, batch, results)) for name, batch in batches)
    return {name: rows for name, rows in done if rows is not None}


def _done(summary: Summary, batch: list[Row], results: Iterator[_Rewrapped]) -> list[Row] | None:
    """Return a batch with the keys of the next results, and count them; None if all failed."""
    rows = []
    done = 0
    for row in batch:
        if row.key_metadata is not None:
            result = next(results)
            if result.key_metadata is None:
                summary.add_failure(row.target, result.error_kind, result.error)
            else:
                done += 1
                new = result.key_metadata, result.master_key_id
                row = row._replace(key_metadata=new[0], master_key_id=new[1])
        rows.append(row)
    summary.done += done
    return rows if done else None


@dataclasses.dataclass(frozen=True)
class _Rewrapping:
    keys: FileKeys
    to: KmsConfig
    to_key_id: str | None

    def __call__(self, tasks: Iterable[list[str]]) -> Iterator[list[_Rewrapped]]:
        made: _Made = {}
        for documents in tasks:
            yield [self._outcome(document, made) for document in documents]

    def _outcome(self, document: str, made: _Made) -> _Rewrapped:
        try:
            return self._rewrapped(document, made)
        except KMS_UNUSABLE:
            raise
        except Ags1Error as error:
            return _Rewrapped(None, None, type(error).__name__, cause(error))

    def _rewrapped(self, document: str, made: _Made) -> _Rewrapped:
        sidecar = Sidecar.from_bytes(document.encode())
        keks = {}
        for entry in sidecar.own_kek_entries:
            known = (entry.key_id, entry.encrypted_key_metadata, entry.encrypted_by_id)
            if known not in made:
                made[known] = self._rewrap(entry)
            keks[entry.key_id] = made[known]
        for wrapped in sidecar.file_keys:
            sidecar.open(lambda entry: keks[entry.key_id], wrapped)
        after = sidecar.with_entries([kek.entry for kek in keks.values()])
        master_key_id = after.kek_entry(after.file_keys[0]).encrypted_by_id
        return _Rewrapped(as_text(after.to_dict()), master_key_id)

    def _rewrap(self, entry: EncryptedKey) -> KeyEncryptionKey:
        master_key_id = self.to_key_id or entry.encrypted_by_id
        if master_key_id is None:
            message = "a KEK in the ledger does not say which master key wrapped it: restore a copy"
            raise KeyMetadataError(message)
        if self.to_key_id is None:
            self.keys.check_trust(entry)
        elsewhere = self.to != self.keys.kms
        if elsewhere and entry.encrypted_by_id == master_key_id:
            # An earlier run may have done this KEK. Or both KMSs have a key of this name.
            with contextlib.suppress(KmsUnwrapError, KmsKeyNotFoundError):
                return self.to.keks().unwrap(entry)
        kek = self.keys.unwrap_kek(entry)
        return kek.rewrap(self.to.client(), master_key_id)
