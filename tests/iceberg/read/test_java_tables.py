"""Encrypted tables that released Java wrote, read through every door of a PyIceberg table.

The rows are compared with what Spark read, the rest with the same table's snapshots as Java's
metadata describes them.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from conftest import python_environment
from iceberg_tables import (
    JAVA_LOCATION,
    KMS_PROPERTIES,
    MASTER_KEYS,
    READABLE,
    TABLES,
    by_id,
    expected_rows,
    memory_kms,
    metadata_file,
    open_fixture,
)
from pyiceberg.expressions import AlwaysTrue, EqualTo
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table

from ags1 import KeyMetadata
from ags1.iceberg import ContentFile, EncryptedManifest

pytestmark = pytest.mark.filterwarnings(
    "ignore::ags1.kms.memory.KeysInPropertiesWarning",
    "ignore:Iceberg scan planning with the polars_iceberg plugin",
    "ignore:the `reader_override` parameter",
)


@pytest.mark.parametrize("name", READABLE)
def test_the_rows_are_those_that_spark_read(name: str) -> None:
    rows = open_fixture(name).scan().to_arrow().to_pylist()
    assert by_id(rows) == expected_rows(name)


@pytest.mark.parametrize("name", READABLE)
def test_every_door_leads_to_the_same_rows(name: str) -> None:
    table = open_fixture(name)
    assert isinstance(table, Table)
    expected = expected_rows(name)
    scan = table.scan()
    assert scan.count() == len(expected)
    assert by_id(scan.to_arrow_batch_reader().read_all().to_pylist()) == expected
    assert by_id(scan.to_pandas().to_dict("records")) == expected
    assert by_id(scan.to_polars().to_dicts()) == expected
    assert by_id(table.to_polars().collect().to_dicts()) == expected
    duckdb = scan.to_duckdb("t")
    assert duckdb.sql("select count(*) from t").fetchall() == [(len(expected),)]


@pytest.mark.parametrize("reader", [None, "pyiceberg"])
@pytest.mark.parametrize("name", READABLE)
def test_polars_scans_lazily(name: str, reader: Any) -> None:
    table = open_fixture(name)
    expected = expected_rows(name)
    frame = polars.scan_iceberg(table, reader_override=reader)
    assert by_id(frame.collect().to_dicts()) == expected
    assert frame.select(polars.len()).collect().item() == len(expected)
    ids = [row["id"] for row in expected if 100 <= row["id"] < 200]
    some = frame.filter(polars.col("id").is_between(100, 199)).select("id")
    assert sorted(some.collect()["id"].to_list()) == ids
    assert len(frame.head(7).collect()) == min(7, len(expected))


def test_polars_scans_what_was_appended() -> None:
    table = open_fixture("parquet_plain")
    first, second, _ = table.snapshots()
    frame = polars.scan_iceberg(
        table,
        from_snapshot_id_exclusive=first.snapshot_id,
        to_snapshot_id_inclusive=second.snapshot_id,
    )
    assert frame.collect()["id"].sort().to_list() == list(range(1000, 2000))
    old = polars.scan_iceberg(table, snapshot_id=first.snapshot_id)
    assert old.collect()["id"].sort().to_list() == list(range(1000))


@pytest.mark.parametrize("name", ["stats", "mor_dv"])
def test_readers_without_keys_are_told_how_to_read(name: str) -> None:
    table = open_fixture(name)
    how = r"(PARQUET|PUFFIN), encrypted: read it by .* table\.scan\(\)\.to_arrow\(\)"
    arrow_scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    with pytest.raises(ValueError, match=how):
        arrow_scan.to_table(table.scan().plan_files())
    with pytest.raises(polars.exceptions.ComputeError, match=how):
        polars.scan_iceberg(table, reader_override="native").collect()
    # What the table says of its files is what the manifests say.
    files = table.inspect.files().to_pylist()
    assert {file["file_format"] for file in files} <= {"PARQUET", "PUFFIN"}
    assert table.scan().count() == len(expected_rows(name))


def test_ray_is_given_the_arrow_table(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray itself is too large to ask for here; what PyIceberg asks of it is one function.
    class Ray:
        class data:
            @staticmethod
            def from_arrow(table: pa.Table) -> pa.Table:
                return table

    monkeypatch.setitem(sys.modules, "ray", Ray)
    rows = open_fixture("stats").scan().to_ray().to_pylist()
    assert by_id(rows) == expected_rows("stats")


def test_filters_columns_and_limits() -> None:
    scan = open_fixture("mor_dv").scan
    expected = expected_rows("mor_dv")
    filtered = scan("g = 3 and id > 1000").to_arrow()
    assert by_id(filtered.to_pylist()) == [r for r in expected if r["g"] == 3 and r["id"] > 1000]
    assert scan("g = 3").count() == sum(row["g"] == 3 for row in expected)
    assert scan(EqualTo("s", "upd"), selected_fields=("id",)).to_arrow().column_names == ["id"]
    assert {r["id"] for r in scan("s = 'upd'", selected_fields=("id",)).to_arrow().to_pylist()} == {
        row["id"] for row in expected if row["s"] == "upd"
    }
    for limit in (0, 1, 999, 1000, 2598, 5000):
        assert scan(limit=limit).to_arrow().num_rows == min(limit, 2598)
        assert scan(limit=limit).to_arrow_batch_reader().read_all().num_rows == min(limit, 2598)
        assert scan(limit=limit).count() == min(limit, 2598)


def test_time_travel_reads_each_snapshot_as_its_summary_counts() -> None:
    table = open_fixture("parquet_plain")
    for snapshot in table.snapshots():
        assert snapshot.summary is not None
        total = int(snapshot.summary["total-records"] or 0)
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        assert rows.num_rows == total
        assert set(rows["id"].to_pylist()) == set(range(total))


def test_time_travel_between_deletes() -> None:
    table = open_fixture("mor_dv")
    counts = [
        table.scan(snapshot_id=s.snapshot_id).to_arrow().num_rows
        for s in sorted(table.snapshots(), key=lambda s: s.sequence_number or 0)
    ]
    expected = []
    for snapshot in sorted(table.snapshots(), key=lambda s: s.sequence_number or 0):
        assert snapshot.summary is not None
        records = int(snapshot.summary["total-records"] or 0)
        expected.append(records - int(snapshot.summary["total-position-deletes"] or 0))
    assert counts == expected
    assert counts[-1] == 2598


def test_a_reference_is_read_by_name() -> None:
    table = open_fixture("mor_dv")
    assert table.scan().use_ref("main").count() == 2598


def test_appends_between_two_snapshots() -> None:
    table = open_fixture("parquet_plain")
    first, *_, last = sorted(table.snapshots(), key=lambda s: s.sequence_number or 0)
    scan = table.incremental_append_scan(from_snapshot_id_exclusive=first.snapshot_id)
    assert sorted(scan.to_arrow()["id"].to_pylist()) == list(range(1000, 3000))
    assert scan.to_arrow_batch_reader().read_all().num_rows == 2000
    scan = scan.to_snapshot_id_inclusive(last.snapshot_id).filter("id < 1500")
    assert sorted(scan.to_arrow()["id"].to_pylist()) == list(range(1000, 1500))


def test_partitions_are_pruned() -> None:
    table = open_fixture("stats")
    tasks = table.scan("p = 'e'").plan_files()
    assert [task.file.partition[0] for task in tasks] == ["e"]
    expected = [row for row in expected_rows("stats") if row["p"] == "e"]
    assert by_id(table.scan("p = 'e'").to_arrow().to_pylist()) == expected


def test_metrics_prune_files() -> None:
    table = open_fixture("parquet_plain")
    assert len(table.scan().plan_files()) == 3
    assert len(table.scan("id = 5").plan_files()) == 1


def test_several_vectors_lie_in_one_puffin_file() -> None:
    table = open_fixture("mor_dv")
    vectors = [
        delete
        for snapshot in table.snapshots()
        for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
        for delete in task.delete_files
    ]
    places: dict[str, set[int | None]] = {}
    for vector in vectors:
        assert isinstance(vector, ContentFile)
        places.setdefault(vector.file_path, set()).add(vector.content_offset)
    assert max(map(len, places.values())) == 2


def test_rows_of_avro_files_are_planned_with_their_keys() -> None:
    # The data files themselves are too large to lie here.
    seen = {
        file["file_path"]: file
        for file in json.loads((TABLES / "read_by_spark/avro_part/files.json").read_text())
    }
    tasks = open_fixture("avro_part").scan().plan_files()
    assert len(tasks) == len(seen) == 4
    for task in tasks:
        assert isinstance(task.file, ContentFile)
        spark = bytes.fromhex(seen[task.file.file_path]["km"])
        assert task.file.key == KeyMetadata.from_bytes(spark)


def test_an_avro_file_of_java_s() -> None:
    # Of the four only one is here, 3.4 MB in 4 blocks: the odd rows of the first append. Spark made
    # the payload, md5(id) 32 times over.
    table = open_fixture("avro_part")
    first = min(table.snapshots(), key=lambda s: s.sequence_number or 0)
    scan = table.scan("p = 'odd'", snapshot_id=first.snapshot_id)
    rows = scan.to_arrow().to_pylist()
    assert [row["id"] for row in rows] == list(range(1, 6600, 2))
    for row in rows:
        digest = hashlib.md5(str(row["id"]).encode(), usedforsecurity=False).hexdigest()
        assert (row["p"], row["payload"]) == ("odd", digest * 32)
    found = table.scan("p = 'odd' and id = 77", ("payload",), snapshot_id=first.snapshot_id)
    assert found.to_arrow().num_rows == 1


# -- what is shown


def _secrets(name: str) -> list[bytes]:
    files = json.loads((TABLES / "read_by_spark" / name / "files.json").read_text())
    keys = [KeyMetadata.from_bytes(bytes.fromhex(file["km"])).encryption_key for file in files]
    return [*keys, *MASTER_KEYS.values()]


def _shows(text: str, secrets: list[bytes]) -> bool:
    return any(form in text for key in secrets for form in (key.hex(), repr(key)[2:-1]))


def test_the_secrets_looked_for_are_the_tables_own() -> None:
    task = open_fixture("mor_dv").scan().plan_files()[0]
    assert isinstance(task.file, ContentFile)
    assert task.file.key is not None
    assert task.file.key.encryption_key in _secrets("mor_dv")


@pytest.mark.parametrize("name", ["mor_dv", "parquet_plain", "stats"])
def test_inspect_shows_no_key(name: str) -> None:
    table = open_fixture(name)
    inspect = table.inspect
    tables = {
        what: getattr(inspect, what)()
        for what in (
            "all_data_files all_delete_files all_files all_manifests data_files delete_files "
            "entries files history manifests metadata_log_entries partitions refs snapshots"
        ).split()
    }
    assert tables["files"].num_rows == len(
        json.loads((TABLES / "read_by_spark" / name / "files.json").read_text())
    )
    for rows in tables.values():
        assert not _shows(repr(rows.to_pylist()), _secrets(name))
        if "key_metadata" in rows.column_names:
            assert rows["key_metadata"].null_count == rows.num_rows


@pytest.mark.parametrize("name", ["mor_dv", "parquet_plain"])
def test_nothing_that_is_printed_shows_a_key(name: str) -> None:
    table = open_fixture(name)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    tasks = table.scan().plan_files()
    shown = [table, table.io, table.metadata, snapshot, manifests, tasks, table.scan()]
    shown += [manifest.fetch_manifest_entry(table.io) for manifest in manifests]
    shown += [vars(task.file).keys() for task in tasks]
    for thing in shown:
        assert not _shows(repr(thing) + str(thing), _secrets(name))


def test_files_and_manifests_are_not_pickled() -> None:
    table = open_fixture("mor_dv")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifest = snapshot.manifests(table.io)[0]
    task = table.scan().plan_files()[0]
    assert isinstance(manifest, EncryptedManifest)
    encoded: Any = task.file.encoded  # type: ignore[attr-defined]
    for thing in (manifest, task.file, task, encoded.block):
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(thing)


def test_pyiceberg_keeps_no_manifest_of_ours_in_its_process_wide_cache() -> None:
    from pyiceberg.manifest import _manifest_cache, clear_manifest_cache

    clear_manifest_cache()
    open_fixture("mor_dv").scan().to_arrow()
    assert len(_manifest_cache) == 0


@pytest.mark.slow
def test_a_scan_works_in_a_process_with_no_other_import() -> None:
    # The packages of catalogs and KMSs cannot be imported, as if they were not installed.
    script = (
        "import json, sys, warnings; warnings.simplefilter('ignore')\n"
        "sys.modules |= dict.fromkeys(('sqlalchemy', 'thrift', 'boto3'))\n"
        "from ags1.iceberg import open_table\n"
        "path, kms, places = sys.argv[1], *map(json.loads, sys.argv[2:])\n"
        "print(open_table(path, kms, places).scan().to_arrow().num_rows)\n"
    )
    places = {JAVA_LOCATION: str(TABLES)}
    arguments = [str(metadata_file("stats")), json.dumps(KMS_PROPERTIES), json.dumps(places)]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=python_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1000\n"


# -- what is refused


def test_writing_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    table = open_fixture("stats")
    rows = table.scan().to_arrow()
    before = sorted(TABLES.rglob("*"))
    attempts = {
        "append": lambda: table.append(rows),
        "overwrite": lambda: table.overwrite(rows),
        "delete": lambda: table.delete("id = 1"),
        "upsert": lambda: table.upsert(rows, join_cols=["id"]),
        "dynamic_partition_overwrite": lambda: table.dynamic_partition_overwrite(rows),
        "add_files": lambda: table.add_files([str(tmp_path / "x.parquet")]),
        "transaction": lambda: table.transaction(),
        "new_output": lambda: table.io.new_output(str(tmp_path / "x")),
        "io.delete": lambda: table.io.delete(str(metadata_file("stats"))),
        "expire": lambda: table.maintenance.expire_snapshots().by_id(1).commit(),
        "tag": lambda: (
            table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "t").commit()
        ),
        "daft": lambda: table.to_daft(),
        "bodo": lambda: table.to_bodo(),
    }
    for attempt in attempts.values():
        with pytest.raises(NotImplementedError):
            attempt()
    assert sorted(TABLES.rglob("*")) == before


def test_refreshing_a_static_table_reads_it_again() -> None:
    table = open_fixture("stats", require_encrypted=True)
    rows = table.refresh().scan().to_arrow()
    assert by_id(rows.to_pylist()) == expected_rows("stats")
    assert table.files.require_encrypted


def test_a_foreign_io_is_refused() -> None:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    snapshot = open_fixture("stats").current_snapshot()
    assert snapshot is not None
    with pytest.raises(TypeError, match="its own io"):
        snapshot.manifests(PyArrowFileIO())


def test_the_kms_may_be_a_client_or_properties() -> None:
    for kms in (memory_kms(), KMS_PROPERTIES):
        assert open_fixture("stats", kms=kms).scan().count() == 1000


# -- processes and threads


def test_a_scan_in_a_forked_child(in_a_fork: Callable[[Callable[[], object]], None]) -> None:
    table = open_fixture("mor_dv")
    expected = table.scan().to_arrow()

    def child() -> None:
        assert table.scan().to_arrow() == expected
        assert table.refresh().scan().to_arrow() == expected

    in_a_fork(child)


def test_many_threads_scan_one_table() -> None:
    table = open_fixture("mor_dv")
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda _: table.scan().to_arrow().num_rows, range(24)))
    assert counts == [2598] * 24
