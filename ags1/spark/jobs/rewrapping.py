"""Wraps a ledger's KEKs again, under another master key or a newer version of the same one.

The KEKs do not change, so files and their keys do not, either. A task rewrites each batch, and
checks that every key in it can be unwrapped, because the old master key may be destroyed next. Then
the new batch replaces the old one in one step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from ...errors import KMS_UNUSABLE, Ags1Error, KeyMetadataError, KmsKeyNotFoundError, KmsUnwrapError
from ...keys.envelope import EncryptedKey, KeyEncryptionKey
from ...keys.keychain import FILE_KEY_SIZE
from ...keys.sidecar import Sidecar
from ..keys import FileKeys, KmsConfig, as_text
from ..ledger import Row, read_rows, write_rows
from ..paths import ledger_folder
from ..storage import local_files as files
from ..workers import task_context
from .running import Conduct, Job, Summary
from .work import cause

REWRAP = "rewrap"

# By a KEK's id, the wrapped KEK and the master key's id.
_Made: TypeAlias = "dict[tuple[str, bytes, str | None], KeyEncryptionKey]"


class _Rewritten(NamedTuple):
    """What became of a batch. ``staged`` is None if nothing in it had to change."""

    path: str
    staged: str | None
    done: int
    failures: list[tuple[str, str, str]]


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
    unwrapped are failures and do not change. Copies of the ledger do not change. Raises KmsError,
    OSError, FormatError.
    """
    accepted = frozenset(key_ids)
    if accepted and to_key_id is not None and to_kms is None:
        accepted |= {to_key_id}  # what an earlier run has done
    keys = FileKeys.for_opening(kms, accepted)
    folder = ledger_folder(os.fspath(ledger))
    conduct = Conduct(durable=durable, cores=cores)
    with Job(spark, REWRAP, folder, folder, conduct) as job:
        paths = job.ledger.batches()
        if to_kms is None:  # otherwise an earlier run may have done them all
            batches = job.ledger.rows_between(0, None, ("key_metadata",))
            keys.check(row.key_metadata for _, rows in batches for row in rows if row.key_metadata)
        if to_key_id is not None:
            # One KMS call, which fails if no key can be wrapped under it.
            target = kms if to_kms is None else to_kms
            KeyEncryptionKey.generate(target.client(), to_key_id, key_size=FILE_KEY_SIZE)
        job.begin()
        work = _Rewrapping(keys, kms if to_kms is None else to_kms, to_key_id, job.id, durable)
        job.stages_in(folder)
        for result in job.group.run(paths, work) if paths else ():
            if result.staged is not None:
                job.ledger.replace(result.path, result.staged)
            job.summary.done += result.done
            for failed in result.failures:
                job.summary.add_failure(*failed)
        job.has_ended = True
    return job.summary


@dataclasses.dataclass(frozen=True)
class _Rewrapping:
    keys: FileKeys
    to: KmsConfig
    to_key_id: str | None
    job_id: str
    durable: bool

    def __call__(self, paths: Iterable[str]) -> Iterator[_Rewritten]:
        context = task_context()
        made: _Made = {}
        for path in paths:
            failures = []
            rows = []
            done = 0
            for row in read_rows(path):
                if row.key_metadata is not None:
                    try:
                        row = self._rewrapped(row, row.key_metadata, made)
                        done += 1
                    except KMS_UNUSABLE:
                        raise
                    except Ags1Error as error:
                        failures.append((row.target, type(error).__name__, cause(error)))
                rows.append(row)
            staged = None
            if done:
                staged = files.staged_path(path, self.job_id, f"{context.taskAttemptId():x}")
                write_rows(staged, rows, durable=self.durable)
            yield _Rewritten(path, staged, done, failures)

    def _rewrapped(self, row: Row, document: str, made: _Made) -> Row:
        sidecar = Sidecar.from_bytes(document.encode())
        keks = {}
        for entry in sidecar.kek_entries:
            known = (entry.key_id, entry.encrypted_key_metadata, entry.encrypted_by_id)
            if known not in made:
                made[known] = self._rewrap(entry)
            keks[entry.key_id] = made[known]
        for wrapped in sidecar.file_keys:
            sidecar.open(lambda entry: keks[entry.key_id], wrapped)
        after = sidecar.with_entries([kek.entry for kek in keks.values()])
        master_key_id = after.kek_entry(after.file_keys[0]).encrypted_by_id
        return row._replace(key_metadata=as_text(after.to_dict()), master_key_id=master_key_id)

    def _rewrap(self, entry: EncryptedKey) -> KeyEncryptionKey:
        master_key_id = self.to_key_id or entry.encrypted_by_id
        if master_key_id is None:
            said = "a KEK in the ledger does not say which master key wrapped it: restore a copy"
            raise KeyMetadataError(said)
        elsewhere = self.to != self.keys.kms
        if elsewhere and entry.encrypted_by_id == master_key_id:
            # An earlier run may have done this KEK. Or both KMSs have a key of this name.
            with contextlib.suppress(KmsUnwrapError, KmsKeyNotFoundError):
                return self.to.keks().unwrap(entry)
        kek = self.keys.unwrap_kek(entry)
        return kek.rewrap(self.to.client(), master_key_id, same_kms=not elsewhere)
