"""``read_ray`` against the rows that were written; the tasks are searched for keys."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import cloudpickle
import pyarrow as pa
import pytest
from iceberg_tables import MASTER_KEYS

from ags1 import KeyMetadata
from ags1.iceberg import ContentFile, EncryptedCatalog, EncryptedTable, read_ray

from .test_dask import LEFT, ROWS, table

__all__ = ["table"]

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning"),
]
ray: Any = pytest.importorskip("ray")
pytest.importorskip("ray.data")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    paths = [Path(__file__).parents[3], Path(__file__).parents[2]]
    given = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONWARNINGS": "ignore"}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": given})
    yield
    ray.shutdown()


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Any]:
    # Workers cannot import the module of a test, so this function is sent as it is.
    def open_table(name: str = "db.t", folder: str = str(tmp_path)) -> Any:
        from iceberg_tables import KMS_PROPERTIES

        from ags1.iceberg import load_catalog

        place = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
        return load_catalog("sql", **place, **KMS_PROPERTIES).load_table(name)

    return open_table


def rows(dataset: Any) -> pa.Table:
    found = pa.concat_tables(ray.get(dataset.to_arrow_refs()))
    return found.sort_by("id").select(["id", "text", "number"]).cast(ROWS.schema)


def test_a_dataset_has_the_rows_of_the_table(
    table: EncryptedTable, opened: Callable[..., Any]
) -> None:
    dataset = read_ray(opened, partition_size=1)
    assert dataset.schema().names == ROWS.schema.names
    table.append(ROWS)  # the dataset stays at its snapshot
    assert rows(dataset).equals(LEFT)
    assert dataset.count() == 7
    assert dataset.limit(3).count() == 3
    some = read_ray(opened, "id >= 6", ("id", "text"), table.history()[-2].snapshot_id)
    assert sorted(some.take_all(), key=lambda row: row["id"]) == [
        {"id": 6, "text": None},
        {"id": 7, "text": "f"},
    ]
    assert read_ray(opened, "id > 100").count() == 0


def test_tasks_have_no_key(table: EncryptedTable, opened: Callable[..., Any]) -> None:
    dataset = read_ray(opened, partition_size=1)
    source = dataset._logical_plan.dag.datasource
    sent = cloudpickle.dumps(source.get_read_tasks(4)) + cloudpickle.dumps(source)
    files = [cast("ContentFile", task.file).key_bytes for task in table.scan().plan_files()]
    keys = [*MASTER_KEYS.values()]
    keys += [KeyMetadata.from_bytes(km).encryption_key for km in files if km is not None]
    assert len(keys) == 6
    for key in keys:
        for form in (key, key.hex().encode()):
            assert form not in sent
    # A function that holds the table itself would send its keys.
    with pytest.raises((TypeError, pickle.PicklingError, ray.exceptions.RayError)):
        read_ray(lambda: table).count()


def test_what_has_no_rows_or_fails(
    catalog: EncryptedCatalog, opened: Callable[..., Any], table: EncryptedTable
) -> None:
    catalog.create_table("db.empty", ROWS, properties={"encryption.key-id": "keyA"})
    assert read_ray(lambda: opened("db.empty")).count() == 0
    catalog.create_table("db.plain", ROWS)
    with pytest.raises(TypeError, match="not encrypted"):
        read_ray(lambda: opened("db.plain"))
    path = Path(next(iter(table.scan().plan_files())).file.file_path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Exception, match=path.name):
        read_ray(opened).count()
