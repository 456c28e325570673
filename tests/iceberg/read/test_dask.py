"""``read_dask`` against the rows that were written; the graph is searched for keys."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any, cast

import cloudpickle
import pandas
import pyarrow as pa
import pytest
from conftest import RunPython
from iceberg_tables import KMS_PROPERTIES, MASTER_KEYS

from ags1 import KeyMetadata
from ags1.iceberg import ContentFile, EncryptedCatalog, EncryptedTable, load_catalog, read_dask

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

ROWS = pa.table(
    {
        "id": pa.array(range(8), pa.int64()),
        "text": ["a", None, "b", "c", "d", "e", None, "f"],
        "number": [1.5, None, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    }
)


def open_table(folder: Path, name: str = "db.t") -> Any:
    return load_catalog(
        "sql",
        type="sql",
        uri=f"sqlite:///{folder}/catalog.db",
        warehouse=f"file://{folder}/warehouse",
        **KMS_PROPERTIES,
    ).load_table(name)


@pytest.fixture
def table(catalog: EncryptedCatalog) -> EncryptedTable:
    """A table of four files, with a deletion vector, that later got another column."""
    made = catalog.create_table("db.t", ROWS, properties={"encryption.key-id": "keyA"})
    for first in range(0, 8, 2):
        made.append(ROWS.slice(first, 2))
    made.delete("id = 3")
    assert isinstance(made, EncryptedTable)
    return made


LEFT = ROWS.filter(pa.compute.not_equal(ROWS["id"], 3))


def expected(rows: pa.Table = LEFT) -> pandas.DataFrame:
    return rows.to_pandas(types_mapper=pandas.ArrowDtype)


def by_id(frame: Any) -> pandas.DataFrame:
    rows = frame.compute(scheduler="threads").sort_values("id").reset_index(drop=True)
    return rows.astype({"text": pandas.ArrowDtype(pa.string())}) if "text" in rows else rows


def test_a_frame_has_the_rows_of_the_table(table: EncryptedTable, tmp_path: Path) -> None:
    opened = functools.partial(open_table, tmp_path)
    frame = read_dask(opened, partition_size=1)
    assert frame.npartitions == 4
    assert read_dask(opened).npartitions == 1
    pandas.testing.assert_frame_equal(by_id(frame), expected())
    assert len(frame) == 7
    assert frame["number"].sum().compute() == 25.5
    some = read_dask(opened, "id >= 6", ("id", "text"), partition_size=1)
    assert some.npartitions == 1
    pandas.testing.assert_frame_equal(by_id(some), expected(LEFT.select(["id", "text"]).slice(5)))
    assert read_dask(opened, "id > 100").compute().empty


def test_a_frame_stays_at_its_snapshot(table: EncryptedTable, tmp_path: Path) -> None:
    frame = read_dask(functools.partial(open_table, tmp_path))
    table.append(ROWS)
    table.delete("id < 4")
    pandas.testing.assert_frame_equal(by_id(frame), expected())
    first = table.history()[0].snapshot_id
    old = read_dask(functools.partial(open_table, tmp_path), snapshot_id=first)
    pandas.testing.assert_frame_equal(by_id(old), expected(ROWS.slice(0, 2)))


def test_a_table_without_rows(catalog: EncryptedCatalog, tmp_path: Path) -> None:
    catalog.create_table("db.t", ROWS, properties={"encryption.key-id": "keyA"})
    frame = read_dask(functools.partial(open_table, tmp_path))
    assert list(frame.compute().columns) == ROWS.schema.names
    catalog.create_table("db.plain", ROWS)
    with pytest.raises(TypeError, match="a function that opens the table is needed, not str"):
        read_dask("db.t")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not encrypted"):
        read_dask(functools.partial(open_table, tmp_path, "db.plain"))


OTHER_PROCESS = """
import sys, cloudpickle, dask
with open(sys.argv[1], "rb") as f:
    frame = cloudpickle.load(f)
print(sorted(frame["id"].compute(scheduler="threads")))
"""


# Of `make test`: Dask's own processes in filesystem/test_readers.py, and frames within this one.
@pytest.mark.slow
@pytest.mark.variant
def test_a_graph_has_no_key_and_is_read_by_another_process(
    table: EncryptedTable, tmp_path: Path, run_python: RunPython
) -> None:
    frame = read_dask(functools.partial(open_table, tmp_path), partition_size=1)
    frame.compute()
    sent = cloudpickle.dumps(frame.optimize()) + cloudpickle.dumps(dict(frame.optimize().dask))
    files = [cast("ContentFile", task.file).key_bytes for task in table.scan().plan_files()]
    keys = [*MASTER_KEYS.values()]
    keys += [KeyMetadata.from_bytes(km).encryption_key for km in files if km is not None]
    assert len(keys) == 6
    for key in keys:
        for form in (key, key.hex().encode()):
            assert form not in sent
    path = tmp_path / "frame"
    path.write_bytes(cloudpickle.dumps(frame))
    done = run_python(OTHER_PROCESS, path)
    assert done.stdout.strip().endswith("[0, 1, 2, 4, 5, 6, 7]")
    # A function that holds the table itself would send its keys.
    held = read_dask(lambda: table)
    assert len(held) == 7
    with pytest.raises((TypeError, pickle.PicklingError)):
        cloudpickle.dumps(held)


def test_a_damaged_file_fails_the_task(table: EncryptedTable, tmp_path: Path) -> None:
    frame = read_dask(functools.partial(open_table, tmp_path), partition_size=1)
    path = Path(next(iter(table.scan().plan_files())).file.file_path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Exception, match=path.name):
        frame.compute()
