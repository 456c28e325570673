"""An encrypted table as ``rewrite_manifests`` of Iceberg 1.11 leaves it: plaintext manifests, with
the keys of the files that they list, in an encrypted manifest list that has no key for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from ags1 import KeyMetadata
from ags1.iceberg import EncryptedTable
from ags1.iceberg.read.records import read_entries
from ags1.iceberg.read.snapshots import EncryptedManifest
from ags1.iceberg.steps import CommitRequest, Step
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.write import manifests as writing
from ags1.iceberg.write import snapshot as producing
from ags1.iceberg.write.manifests import NewManifests, schema_of_spec, write_manifest
from ags1.iceberg.write.view import TableView


class _PlainOutput:
    """Writes what is to be sealed as it is."""

    def __init__(self, output: TableOutput) -> None:
        self._output = output

    def write_encrypted(self, location: str, data: bytes, km: KeyMetadata) -> KeyMetadata:
        with self._output.create(location) as file:
            file.write(data)
        return km.with_file_length(len(data))


class _RewriteManifests(Step):
    def __init__(self, output: TableOutput, chosen: Callable[[EncryptedManifest], bool]) -> None:
        self._output = output
        self._chosen = chosen
        self._producer = producing.SnapshotProducer(output)

    def stage(self, view: TableView) -> CommitRequest:
        locations = view.locations
        records = []
        for number, manifest in enumerate(view.manifests):
            if not self._chosen(manifest):
                records.append(manifest)
                continue
            spec = view.specs[manifest.partition_spec_id]
            schema = schema_of_spec(spec, view.parsed.schemas)
            new = NewManifests(
                _PlainOutput(self._output),  # type: ignore[arg-type]
                view.manager,
                spec,
                schema,
                view.schema_json(schema.schema_id),
                self._producer.snapshot_id,
                manifest.content,
            )
            written = write_manifest(
                new,
                locations.new_metadata_location(
                    f"optimized-m-{number}-{self._producer.commit_uuid}.avro"
                ),
                [entry.existing() for entry in read_entries(manifest, view.files)],
            )
            records.append(written.replace(key_metadata=None))
        with (
            _keys_may_be_missing(),
            mock.patch.object(self._producer, "_without", return_value=(records, [])),
        ):
            updates = self._producer.produce(view, producing.FileChange(reseals=True))
        return updates, []


@contextmanager
def _keys_may_be_missing() -> Iterator[None]:
    check = writing._check_manifest

    def passed_over(record: EncryptedManifest, *more: Any) -> None:
        if not record.is_plaintext:
            check(record, *more)

    with mock.patch.object(writing, "_check_manifest", passed_over):
        yield


def rewrite_manifests_as_java_1_11(
    table: EncryptedTable, chosen: Callable[[EncryptedManifest], bool] = lambda record: True
) -> None:
    """Write the chosen manifests anew, one for one, as plaintext, in a snapshot."""
    transaction = table.transaction()
    transaction.stage_step(_RewriteManifests(transaction.output, chosen))
    transaction.commit_transaction()
