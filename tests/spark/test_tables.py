"""Whole tables on Spark's executors: the reports are those of one machine, whoever dies meanwhile.

What is right is what the single-machine functions say of Java's tables, of tables that are damaged
and of tables of PyIceberg's.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import JAVA_LOCATION, READABLE, TABLES, copied, metadata_file, open_fixture
from pyiceberg.expressions import GreaterThanOrEqual
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from ags1.cli.app import app
from ags1.cli.exits import Exit
from ags1.errors import AuthenticationError, KmsConfigurationError, KmsError
from ags1.host import runners
from ags1.iceberg import EncryptedTable, load_catalog
from ags1.iceberg import verify_table as verify_here
from ags1.iceberg.distributed import executors
from ags1.iceberg.distributed.sealed import SentRecord
from ags1.iceberg.distributed.tasks import Checking, JobTable, Rewriting
from ags1.iceberg.operations.check.findings import TableCheck
from ags1.iceberg.operations.rekey import Choice, Rekeying
from ags1.iceberg.operations.rewrite import Rewriter
from ags1.iceberg.read.records import read_entries
from ags1.iceberg.storage.output import TableOutput

pytest.importorskip("pyspark")

from ags1.spark import tables
from ags1.spark.jobs.group import JobGroup, TaskFailedError
from ags1.spark.table_access import TableByOptions

from .conftest import set_for_workers
from .test_iceberg_source import JAVA_KMS, some_rows, stored_files, table_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning"),
]


@pytest.fixture(scope="module")
def session(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The session, with Java's test KMS."""
    module = tmp_path_factory.mktemp("kms") / "java_unitest_kms.py"
    module.write_text(JAVA_KMS)
    if hasattr(spark, "sparkContext"):
        spark.sparkContext.addPyFile(str(module))
    else:
        spark.addArtifact(str(module), pyfile=True)
        sys.path.append(str(module.parent))  # as addPyFile does
    return spark


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both cores have something to do, however small the files are."""
    monkeypatch.setattr(runners, "_LEAST_COST", 1)


@pytest.fixture
def small_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is a file, a wave four of them."""
    monkeypatch.setattr(runners, "_TASK_COST", 200_000)


def report(result: TableCheck) -> dict[str, Any]:
    """All that is told, but for the time that it took."""
    told = result.to_dict()
    del told["seconds"], told["bytes_per_second"]
    return told


def on_spark(session: Any, name: str, folder: Path = TABLES, **more: Any) -> TableCheck:
    """Verify a table that Java wrote."""
    options = {
        "encryption.kms-impl": "java_unitest_kms:Kms",
        "location-map": json.dumps({JAVA_LOCATION: str(folder)}),
        "key": "keyA",
    }
    return tables.verify_table(session, str(metadata_file(name, folder)), options, **more)


# -- verification


@pytest.mark.parametrize("name", READABLE)
def test_the_report_on_java_s_tables_is_that_of_one_machine(
    session: Any, small_tasks: None, name: str
) -> None:
    here = verify_here(open_fixture(name))
    assert here.ok
    seen: list[tuple[int, int | None]] = []

    there = on_spark(session, name, progress=lambda done, total: seen.append((done, total)))

    assert report(there) == report(here)
    assert seen[-1][0] == seen[-1][1]


def test_the_report_on_damaged_tables_is_that_of_one_machine(
    session: Any, small_tasks: None, tmp_path: Path
) -> None:
    folder = copied("mor_dv", tmp_path)
    damages: list[Callable[[bytes], bytes]] = [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"PAR1" + data[4:],
        lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
    ]
    data_files = sorted((folder / "data").iterdir())
    (manifest, *_) = sorted((folder / "metadata").glob("*-m*.avro"))
    assert {path.suffix for path in data_files} == {".parquet", ".puffin"}
    (folder / "data" / "stray.parquet").write_bytes(b"PAR1 in the clear")
    for number, path in enumerate((*data_files, manifest)):
        path.write_bytes(damages[number % len(damages)](path.read_bytes()))
    for gone in ((), data_files[-1:]):
        for path in gone:
            path.unlink()

        here = verify_here(open_fixture("mor_dv", tmp_path))
        there = on_spark(session, "mor_dv", tmp_path)

        assert len(here.finding_counts) >= 5
        assert report(there) == report(here)


def test_the_report_on_keys_that_do_not_open_is_that_of_one_machine(
    session: Any, tmp_path: Path
) -> None:
    path = metadata_file("mor_dv", copied("mor_dv", tmp_path).parent)
    metadata = json.loads(path.read_text())
    for entry in metadata["encryption-keys"]:
        if "properties" in entry:
            wrapped = base64.b64decode(entry["encrypted-key-metadata"])
            entry["encrypted-key-metadata"] = base64.b64encode(wrapped[::-1]).decode()
    path.write_text(json.dumps(metadata))

    here = verify_here(open_fixture("mor_dv", tmp_path))

    assert here.finding_counts["kek-unusable"] == 1
    assert report(on_spark(session, "mor_dv", tmp_path)) == report(here)


def test_a_kms_that_executors_cannot_use_ends_the_job(
    session: Any, catalog: Any, options: dict[str, str], tmp_path: Path
) -> None:
    table = deleted_rows(catalog, "avro")
    elsewhere = {**options, "keyring": str(tmp_path / "nothing")}

    with pytest.raises(KmsError, match="nothing"):
        tables.verify_table(session, table, elsewhere)
    with pytest.raises(KmsError, match="nothing"):
        tables.rekey_table(session, table, elsewhere)

    assert len(table.refresh().snapshots()) == 5


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_files_of_many_snapshots_and_in_the_clear(
    session: Any,
    small_waves: None,
    catalog: Any,
    options: dict[str, str],
    tmp_path: Path,
    file_format: str,
) -> None:
    table = table_of(catalog, file_format)
    for first in (0, 100, 200):
        table.append(some_rows(first, 100))
    table.delete("id in (5, 150)")
    if file_format == "parquet":
        pq.write_table(some_rows(900, 10), tmp_path / "plain.parquet")
        table.add_files([f"file://{tmp_path}/plain.parquet"], allow_plaintext=True)

    for more in ({}, {"require_encrypted": True}, {"list_folders": False}):
        here = verify_here(catalog.load_table("db.t"), **more)
        assert report(tables.verify_table(session, "db.t", options, **more)) == report(here)

    opened = catalog.load_table("db.t")
    told = tables.verify_table(session, opened, _without_path(options))
    assert report(told) == report(verify_here(opened))


def _without_path(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name != "catalog"}


def options_of(table: JobTable) -> dict[str, str]:
    assert isinstance(table, TableByOptions)
    return dict(table.options)


class KilledChecking(Checking):
    """The first worker to have looked at files is killed before anybody hears of it."""

    def __call__(self, tasks: Iterable[list[Any]]) -> Iterator[list[Any]]:
        for result in super().__call__(tasks):
            die_once(options_of(self.table))
            yield result


class KilledRewriting(Rewriting):
    """The first worker to have written files is killed before anybody hears of them."""

    def __call__(self, tasks: Iterable[list[Any]]) -> Iterator[list[Any]]:
        for result in super().__call__(tasks):
            die_once(options_of(self.table))
            yield result


class SlowRewriting(Rewriting):
    """Whoever has begun to write takes a second for each file."""

    def __call__(self, tasks: Iterable[list[Any]]) -> Iterator[list[Any]]:
        for task in tasks:
            for file in task:
                Path(options_of(self.table)["keyring"]).with_name("begun").touch()
                time.sleep(1)
                yield from super().__call__([[file]])


class DyingRewriting(Rewriting):
    """All workers are killed."""

    def __call__(self, tasks: Iterable[list[Any]]) -> Iterator[list[Any]]:
        for _ in super().__call__(tasks):
            os.kill(os.getpid(), signal.SIGKILL)
        yield []


def die_once(options: dict[str, str]) -> None:
    marker = Path(options["keyring"]).with_name("killed")
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_changes_no_report(
    session: Any,
    small_tasks: None,
    catalog: Any,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(catalog)
    for first in (0, 100, 200):
        table.append(some_rows(first, 100))
    monkeypatch.setattr(executors, "Checking", KilledChecking)

    there = tables.verify_table(session, "db.t", options)

    assert (tmp_path / "killed").exists()
    assert report(there) == report(verify_here(catalog.load_table("db.t")))


# -- rekeying


def entries(table: EncryptedTable) -> list[Any]:
    return entries_of(table.refresh())


def entries_of(table: EncryptedTable) -> list[Any]:
    view = table.view()
    return [entry for manifest in view.manifests for entry in read_entries(manifest, view.files)]


def keys_of(found: list[Any]) -> set[bytes]:
    """The keys; both deletion vectors of ``deleted_rows`` lie in one file."""
    return {entry.file.key.encryption_key for entry in found}


def lineage(found: list[Any]) -> list[Any]:
    return sorted(
        (e.file.first_row_id, e.file.record_count, e.sequence_number, repr(e.file.lower_bounds))
        for e in found
        if e.file.content == 0
    )


def deleted_rows(catalog: Any, file_format: str) -> EncryptedTable:
    """A table of four files, of which two have deletes."""
    table: EncryptedTable = table_of(catalog, file_format)
    for first in (0, 100, 200, 300):
        table.append(some_rows(first, 100))
    table.delete("id in (5, 150)")
    return table


def rows(table: EncryptedTable) -> pa.Table:
    return table.refresh().scan().to_arrow().sort_by("id")


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_all_files_are_under_other_keys_in_one_snapshot(
    session: Any, small_tasks: None, catalog: Any, options: dict[str, str], file_format: str
) -> None:
    table = deleted_rows(catalog, file_format)
    before, expected = entries(table), rows(table)
    planned = table.rekey(dry_run=True)
    seen: list[tuple[int, int]] = []

    assert tables.rekey_table(session, "db.t", options, dry_run=True) == planned
    assert entries(table) == before
    done = tables.rekey_table(
        session, "db.t", options, progress=lambda done, total: seen.append((done, total))
    )

    after = entries(table)
    assert done == planned
    assert done.files == 4
    assert seen[-1] == (done.size, done.size)
    assert len(table.snapshots()) == 6
    assert rows(table).equals(expected)
    assert lineage(after) == lineage(before)
    assert len(after) == len(before) == 6
    assert len(keys_of(before) | keys_of(after)) == len(before) + len(after) - 2
    found = verify_here(table)
    assert found.ok
    assert "orphan-file" not in found.finding_counts


def test_chosen_files_of_a_table_that_is_open(
    session: Any, catalog: Any, options: dict[str, str]
) -> None:
    table = deleted_rows(catalog, "parquet")
    before, expected = entries(table), rows(table)

    done = tables.rekey_table(
        session,
        table,
        options,
        GreaterThanOrEqual("id", 150),
        select=lambda file: file.record_count == 100 and file.first_row_id != 300,
    )

    assert done.files == 2
    assert rows(table).equals(expected)
    stayed = {e.file.file_path for e in before} & {e.file.file_path for e in entries(table)}
    assert len(stayed) == 3


def test_a_worker_that_is_killed_leaves_no_file_that_nobody_knows(
    session: Any,
    small_tasks: None,
    catalog: Any,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = deleted_rows(catalog, "avro")
    expected = rows(table)
    monkeypatch.setattr(executors, "Rewriting", KilledRewriting)
    strays: list[str] = []
    find = executors.FileRewrites._unused

    def spying(*arguments: Any) -> list[str]:
        strays.extend(find(*arguments))
        return strays

    monkeypatch.setattr(executors.FileRewrites, "_unused", spying)

    tables.rekey_table(session, "db.t", options)

    assert (tmp_path / "killed").exists()
    assert len(strays) >= 1
    assert rows(table).equals(expected)
    found = verify_here(table)
    assert found.ok
    assert "orphan-file" not in found.finding_counts
    assert len(keys_of(entries(table))) == 5


def test_tasks_end_with_a_job_that_is_interrupted(
    session: Any,
    catalog: Any,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = deleted_rows(catalog, "avro")
    before = stored_files(tmp_path)
    monkeypatch.setattr(executors, "Rewriting", SlowRewriting)

    def interrupt() -> None:
        if (tmp_path / "begun").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(executors, "_nothing", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tables.rekey_table(session, "db.t", options)

    time.sleep(1.5)
    assert stored_files(tmp_path) == before
    assert len(table.refresh().snapshots()) == 5


def test_workers_that_are_killed_over_and_over_end_the_job_and_leave_nothing(
    session: Any,
    catalog: Any,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = deleted_rows(catalog, "avro")
    before = stored_files(tmp_path)
    monkeypatch.setattr(executors, "Rewriting", DyingRewriting)

    with pytest.raises(TaskFailedError):
        tables.rekey_table(session, "db.t", options)

    assert stored_files(tmp_path) == before
    assert len(table.refresh().snapshots()) == 5


def test_a_damaged_file_ends_the_job_by_its_own_error_and_leaves_nothing(
    session: Any, small_waves: None, catalog: Any, options: dict[str, str], tmp_path: Path
) -> None:
    table = deleted_rows(catalog, "avro")
    location = entries(table)[1].file.file_path
    path = Path(location.removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    before = stored_files(tmp_path)

    with pytest.raises(AuthenticationError) as caught:
        tables.rekey_table(session, "db.t", options)

    assert caught.value.file == location
    assert caught.value.block == 0
    assert stored_files(tmp_path) == before
    assert len(table.refresh().snapshots()) == 5


def test_a_table_of_java_s_that_was_moved(session: Any, tmp_path: Path) -> None:
    folder = copied("mor_dv", tmp_path)
    table = open_fixture("mor_dv", tmp_path)
    before = entries_of(table)
    options = {
        "path": str(metadata_file("mor_dv", tmp_path)),
        "encryption.kms-impl": "java_unitest_kms:Kms",
        "location-map": json.dumps({JAVA_LOCATION: str(tmp_path)}),
        "key": "keyA",
    }
    output = TableOutput(PyArrowFileIO(), {JAVA_LOCATION: str(tmp_path)})
    runner = tables._runner(session, None)
    with executors.FileRewrites(runner, TableByOptions.of(options)) as executor:
        change = Rekeying(Rewriter(output, executor), Choice()).change(table.view())
        nobody_s = folder / "data" / f"{executor._job_id}-0-ff.parquet"
        nobody_s.write_bytes(b"PARE")

    assert not nobody_s.exists()
    new = [entry.file for entry in change.replaced]
    assert sorted(f.record_count for f in new) == sorted(e.file.record_count for e in before)
    for file in new:
        assert file.file_path.startswith(f"{JAVA_LOCATION}/mor_dv/data/")
        path = tmp_path / file.file_path.removeprefix(f"{JAVA_LOCATION}/")
        assert path.stat().st_size == file.file_size_in_bytes
    assert keys_of(change.replaced).isdisjoint(keys_of(before))


# -- migration

PLAIN = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType()),
    NestedField(3, "at", TimestamptzType()),
)


def plain_table(catalog: Any, name: str) -> Any:
    """A table in the clear with seven files in four partitions, and a row deleted."""
    region = PartitionField(2, 1000, IdentityTransform(), "region")
    table = catalog.inner.create_table(name, PLAIN, partition_spec=PartitionSpec(region))
    for first in (0, 12):
        table.append(some_rows(first, 10))
    table.delete("id = 3")
    return table


def test_a_table_in_the_clear_is_encrypted_as_on_one_machine(
    session: Any, small_tasks: None, catalog: Any, options: dict[str, str]
) -> None:
    for name in ("db.here", "db.there"):
        plain_table(catalog, name)
    expected = catalog.inner.load_table("db.there").scan().to_arrow().sort_by("id")
    here = catalog.migrate_table("db.here", "default", data_key_length=32)
    seen: list[tuple[int, int]] = []

    def migrate(**more: Any) -> Any:
        return tables.migrate_table(
            session, "db.there", "default", options, data_key_length=32, **more
        )

    planned = migrate(dry_run=True)
    there = migrate(progress=lambda done, total: seen.append((done, total)))

    told = ("files", "size", "rows", "dropped_refs", "failed")
    assert [getattr(there, n) for n in told] == [getattr(here, n) for n in told]
    assert [getattr(planned, n) for n in told] == [getattr(here, n) for n in told]
    assert (there.files, there.rows) == (7, 19)
    assert seen[-1] == (there.size, there.size)
    assert len(there.plaintext.inside) == len(here.plaintext.inside)
    table = catalog.load_table("db.there")
    assert rows(table).equals(expected)
    # PyIceberg's threads have put the files of one append into any order.
    both = [lineage(entries(catalog.load_table(name))) for name in ("db.here", "db.there")]
    assert sorted(row[1:] for row in both[0]) == sorted(row[1:] for row in both[1])
    assert {len(key) for key in keys_of(entries(table))} == {32}
    assert len(keys_of(entries(table))) == 7
    left = set(there.plaintext.inside)
    found = verify_here(table)
    strangers = {f.file for f in found.findings if f.kind in ("orphan-file", "stray-plain-file")}
    assert strangers == {urlparse(location).path for location in left}

    # What is left is told again, and deleted once all is verified, on Spark too.
    again = migrate(delete_plaintext=True)
    assert set(again.plaintext.inside) == left
    assert not any(Path(urlparse(location).path).exists() for location in left)
    found = verify_here(table)
    assert set(found.finding_counts) == set()


def test_nothing_in_the_clear_is_deleted_where_spark_finds_damage(
    session: Any, catalog: Any, options: dict[str, str]
) -> None:
    plain_table(catalog, "db.t")
    done = tables.migrate_table(session, "db.t", "default", options)
    path = Path(urlparse(entries(catalog.load_table("db.t"))[0].file.file_path).path)
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(Exception, match="has 1 errors, so no unencrypted file is deleted"):
        tables.migrate_table(session, "db.t", "default", options, delete_plaintext=True)

    assert all(Path(urlparse(location).path).exists() for location in done.plaintext.inside)


def test_a_migration_that_was_interrupted_is_gone_on_with(
    session: Any,
    small_waves: None,
    catalog: Any,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain_table(catalog, "db.t")
    before = stored_files(tmp_path)
    expected = catalog.inner.load_table("db.t").scan().to_arrow().sort_by("id")
    done = itertools.count(1)

    def interrupt(size: int, total: int) -> None:
        if next(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tables.migrate_table(session, "db.t", "default", options, progress=interrupt)

    new = {path for path in stored_files(tmp_path) - before if not path.endswith(".journal")}
    assert len(new) == 3
    sent: list[str] = []
    travel = SentRecord.of

    def spying(file: Any, names: Iterable[str], job: Any) -> SentRecord:
        sent.append(file.file_path)
        return travel(file, names, job)

    monkeypatch.setattr(SentRecord, "of", spying)
    result = tables.migrate_table(session, "db.t", "default", options)
    assert (result.files, len(sent)) == (7, 4)
    table = catalog.load_table("db.t")
    assert rows(table).equals(expected)
    assert new <= {urlparse(e.file.file_path).path for e in entries(table)}
    assert not [path for path in stored_files(tmp_path) if path.endswith(".journal")]


def test_a_worker_that_is_killed_in_a_migration(
    session: Any,
    small_tasks: None,
    catalog: Any,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = plain_table(catalog, "db.t").scan().to_arrow().sort_by("id")
    monkeypatch.setattr(executors, "Rewriting", KilledRewriting)

    tables.migrate_table(session, "db.t", "default", options, delete_plaintext=True)

    assert (tmp_path / "killed").exists()
    table = catalog.load_table("db.t")
    assert rows(table).equals(expected)
    assert set(verify_here(table).finding_counts) == set()


# -- another storage


def test_a_table_in_s3_under_a_key_of_aws(
    session: Any,
    small_tasks: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    aws_environment: dict[str, str],
) -> None:
    boto3 = pytest.importorskip("boto3")
    set_for_workers(monkeypatch, session, aws_environment)
    boto3.client("s3").create_bucket(Bucket="lake")
    key_id = boto3.client("kms").create_key()["KeyMetadata"]["KeyId"]
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": "s3://lake/warehouse",
        "s3.endpoint": aws_environment["AWS_ENDPOINT_URL"],
        "s3.region": aws_environment["AWS_REGION"],
        "encryption.kms-type": "aws",
        "encryption.trusted-key-ids": key_id,
    }
    options = {"catalog": "s3", **{f"catalog.{k}": v for k, v in properties.items()}}
    with load_catalog("s3", **properties) as catalog:
        catalog.create_namespace("db")
        expected = plain_table(catalog, "db.t").scan().to_arrow().sort_by("id")

        done = tables.migrate_table(session, "db.t", key_id, options, delete_plaintext=True)

        table = catalog.load_table("db.t")
        assert rows(table).equals(expected)
        there = tables.verify_table(session, "db.t", options)
        assert report(there) == report(verify_here(table))
        assert set(there.finding_counts) == set()
        assert there.data_files == done.files == 7


# -- what travels


def test_no_key_travels(
    session: Any,
    small_tasks: None,
    catalog: Any,
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[bytes] = []
    run = JobGroup.run

    def spying(self: Any, tasks: Any, work: Any, costs: Any) -> Any:
        sent.append(pickle.dumps((tasks, work)))
        results = run(self, tasks, work, costs)
        sent.append(pickle.dumps(results))
        return results

    monkeypatch.setattr(JobGroup, "run", spying)
    table = deleted_rows(catalog, "parquet")
    keys = keys_of(entries(table))
    tables.verify_table(session, "db.t", options)
    tables.rekey_table(session, "db.t", options)
    plain_table(catalog, "db.plain")
    tables.migrate_table(session, "db.plain", "default", options)
    keys |= keys_of(entries(table)) | keys_of(entries(catalog.load_table("db.plain")))

    assert len(sent) == 6
    assert len(keys) == 17
    logs = Path(urlparse(session.conf.get("spark.eventLog.dir")).path)
    stored = [path.read_bytes() for path in logs.iterdir()]
    assert any(b"SparkListenerTaskEnd" in data for data in stored)
    for key in keys:
        for form in (key, key.hex().encode(), base64.b64encode(key), repr(key)[2:-1].encode()):
            assert not any(form in data for data in (*sent, *stored))


def test_secrets_are_no_options(session: Any, catalog: Any, options: dict[str, str]) -> None:
    table_of(catalog)
    plain_table(catalog, "db.plain")
    secret = {**options, "catalog.s3.secret-access-key": "sesame"}
    for job in (
        lambda: tables.verify_table(session, "db.t", secret),
        lambda: tables.rekey_table(session, "db.t", secret),
        lambda: tables.migrate_table(session, "db.plain", "default", secret),
        lambda: tables.migrate_table(session, "db.plain", "default", secret, catalog=catalog),
        lambda: tables.verify_table(session, catalog.load_table("db.t"), secret),
    ):
        with pytest.raises(KmsConfigurationError, match="would send a secret") as caught:
            job()
        assert "sesame" not in str(caught.value)


# -- tasks and waves


def test_tasks_are_of_about_equal_cost_and_begin_with_the_largest() -> None:
    sizes = [1, 700, 3, 250, 250, 9, 90] * 10
    items = [(number, size << 20) for number, size in enumerate(sizes)]

    tasks_and_sizes = runners.cut(items, cores=4, most=16)
    tasks = [task for task, _ in tasks_and_sizes]

    assert sorted(itertools.chain.from_iterable(tasks)) == list(range(70))
    assert len(tasks) == 16
    costs = [sum(sizes[number] for number in task) for task in tasks]
    assert max(costs) - min(costs) <= 700
    per_file = 512 << 10
    assert [size for _, size in tasks_and_sizes] == [
        (cost << 20) - per_file * len(task) for task, cost in zip(tasks, costs, strict=True)
    ]
    assert all(sizes[task[0]] == 700 for task in tasks[:10])


@pytest.mark.parametrize(
    ("count", "size", "tasks"),
    [(1, 1, 1), (3, 1, 1), (100, 0, 7), (1, 10 << 30, 1), (40, 1 << 30, 16)],
)
def test_there_are_no_more_tasks_than_are_worth_it(count: int, size: int, tasks: int) -> None:
    items = [(number, size + (512 << 10)) for number in range(count)]

    assert len(runners.cut(items, cores=100, most=16)) == tasks


# -- the commands


class TestCommands:
    """``ags1 spark …``, in the session that there is, tells what ``ags1 table …`` tells."""

    @pytest.fixture
    def run(
        self, session: Any, options: dict[str, str], capfd: pytest.CaptureFixture[str]
    ) -> Callable[..., tuple[int, dict[str, Any]]]:
        where = ["--catalog", "test", "--keyring", options["keyring"], "--json"]
        for name, text in options.items():
            if name.startswith("catalog."):
                where += ["--io-property", f"{name.removeprefix('catalog.')}={text}"]

        def run(*arguments: str) -> tuple[int, dict[str, Any]]:
            with pytest.raises(SystemExit) as ended:
                app([*arguments, *where])
            out, _ = capfd.readouterr()
            code = ended.value.code
            assert isinstance(code, int)
            told = json.loads(out) if out else {}
            for name in ("seconds", "bytes_per_second"):
                told.pop(name, None)
            return code, told

        return run

    def test_verify_table(self, run: Any, catalog: Any, tmp_path: Path) -> None:
        table = deleted_rows(catalog, "avro")
        # The maintenance that is due is not looked for on Spark.
        maintenance = ("findings", "finding_counts", "notes", "branches")

        def both(*arguments: str) -> int:
            code, there = run("spark", "verify-table", "db.t", *arguments)
            same, here = run("table", "check", "db.t", "--full", *arguments)
            assert code == same
            assert all(finding in here["findings"] for finding in there["findings"])
            assert {n: v for n, v in there.items() if n not in maintenance} == {
                n: v for n, v in here.items() if n not in maintenance
            }
            return int(code)

        assert both("--key", "default") == Exit.OK
        path = Path(urlparse(entries(table)[0].file.file_path).path)
        path.write_bytes(path.read_bytes()[:-1])
        assert both("--strict") == Exit.TRUNCATED
        assert run("spark", "verify-table", "db.t", "--key", "other")[0] == Exit.AUTHENTICATION

    def test_verify_a_folder_without_a_catalog(
        self, session: Any, catalog: Any, options: dict[str, str], capfd: Any
    ) -> None:
        table = deleted_rows(catalog, "avro")
        folder = urlparse(table.location()).path
        with pytest.raises(SystemExit) as ended:
            app(["spark", "verify-table", folder, "--keyring", options["keyring"]])
        assert ended.value.code == Exit.OK
        assert "4 data files" in capfd.readouterr().out

    def test_rekey(self, run: Any, catalog: Any) -> None:
        table = deleted_rows(catalog, "parquet")
        asked = ("db.t", "--filter", "id < 150")
        planned = run("table", "rekey", *asked, "--dry-run")
        assert run("spark", "rekey", *asked, "--dry-run") == planned
        code, told = run("spark", "rekey", *asked)
        assert (code, told) == (0, {**planned[1], "dry_run": False})
        assert told["files"] == 2
        assert len(table.refresh().snapshots()) == 6
        assert run("spark", "rekey", "db.t", "--filter", "nothing = 1")[0] == Exit.USAGE

    def test_migrate(self, run: Any, catalog: Any) -> None:
        plain_table(catalog, "db.plain")
        asked = ("db.plain", "--key", "default")
        planned = run("table", "migrate", *asked, "--dry-run")
        assert run("spark", "migrate", *asked, "--dry-run") == planned
        code, told = run("spark", "migrate", *asked, "--delete-plaintext", "--yes")
        assert code == 0
        deleted = {name: told[name] for name in ("plaintext_deleted", "metadata_deleted")}
        assert all(deleted.values())
        assert {name: told[name] for name in planned[1]} == {
            **planned[1],
            **deleted,
            "dry_run": False,
        }
        assert (told["plaintext_left"], told["plaintext_outside"]) == ([], [])
        assert verify_here(catalog.load_table("db.plain")).ok
        assert run("spark", "migrate", "db.plain", "--key", "other")[0] == Exit.USAGE
