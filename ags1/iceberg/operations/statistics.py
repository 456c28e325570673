"""Reads and writes the statistics file of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyiceberg.table.puffin import PuffinFile

from ..commit.session import TableSession
from ..read.statistics import read_statistics as read_statistics_file
from ..steps import KeyStep, MetadataStep
from ..transaction import EncryptedTransaction, commit_steps
from ..write.statistics import DRAFT, StatisticsBlob, StatisticsWriter


def read_statistics(
    table: TableSession, snapshot_id: int | None = None, *, allow_plaintext: bool = False
) -> PuffinFile:
    """Return the statistics file of a snapshot, by default of the current one. Its
    ``get_blob_payload`` returns a blob of its ``footer.blobs``.

    Java up to 1.12 writes statistics unencrypted. Nothing authenticates them, so this raises
    NotEncryptedError for them unless ``allow_plaintext`` is true. Encrypted statistics have a
    ``key-id`` in the metadata, as in the open pull request apache/iceberg 17533. Raises
    ValueError if the snapshot has no statistics; MetadataIntegrityError if the file is not what
    the metadata says; AuthenticationError, TruncatedError, KmsError, FileNotFoundError.
    """
    entry = _statistics_entry(table, snapshot_id)
    if entry is None:
        raise ValueError("the snapshot has no statistics file")
    return read_statistics_file(entry, table.files, allow_plaintext=allow_plaintext)


def write_statistics(
    table: TableSession,
    blobs: Iterable[StatisticsBlob],
    snapshot_id: int | None = None,
    *,
    encrypted_statistics: str,
) -> None:
    """Write an encrypted statistics file for a snapshot, by default for the current one.

    ``encrypted_statistics`` names the form, and must be ``"draft-17533"``. **The specification
    is not final**: the form is that of the open pull request apache/iceberg 17533, and may
    change. Java up to 1.12 reads such a table, and its next commit removes the ``key-id`` from
    the statistics. They cannot be read then: write them again. ``StatisticsBlob.read_all`` takes
    the blobs of a file that another writer has made. An earlier file of the snapshot is not
    deleted; ``verify_table`` reports it.

    Raises ValueError for another form or an unknown snapshot, NotImplementedError if the
    catalog does not keep the ``key-id``, and what a commit raises.
    """
    if encrypted_statistics != DRAFT:
        raise ValueError(
            "encrypted statistics are a draft of the specification, which may change: pass "
            f"encrypted_statistics={DRAFT!r}, not {encrypted_statistics!r}"
        )
    if snapshot_id is None:
        snapshot_id = table.version.json.get("current-snapshot-id", -1)
    transaction = EncryptedTransaction(table)
    with transaction:  # an interrupt leaves no file
        writer = StatisticsWriter(transaction.output, table.view(), snapshot_id)
        writer.write(blobs)
        transaction.stage_step(KeyStep(writer.change))
    entry = _statistics_entry(table, snapshot_id)
    if entry is not None and entry.get("key-id") is None:
        remove = {"action": "remove-statistics", "snapshot-id": snapshot_id}
        commit_steps(table, MetadataStep([remove], []))
        raise NotImplementedError(
            "the catalog does not keep the key-id of statistics, so they cannot be encrypted: "
            "they were removed again"
        )


def _statistics_entry(table: TableSession, snapshot_id: int | None) -> Mapping[str, Any] | None:
    if snapshot_id is None:
        snapshot_id = table.version.json.get("current-snapshot-id")
    entries = table.version.json.get("statistics") or ()
    return next((e for e in entries if e["snapshot-id"] == snapshot_id), None)
