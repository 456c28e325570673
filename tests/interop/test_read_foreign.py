"""What other writers leave in tables, read by Java and by us: null in metadata.json, and data files
without field IDs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from foreign_files import CASES, INSIDE, avro_of, file_of, paths
from table_maker import TableMaker

from ags1.iceberg.read.metadata import parse_metadata, without_nulls
from ags1.kms import KmsClient

from .reading import opened
from .spark import SparkTables

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_null_is_read_wherever_java_reads_it(
    spark: SparkTables, kms: KmsClient, tmp_path: Path
) -> None:
    name = "enc.db.nulls"
    spark.create(name, "id BIGINT NOT NULL, s STRUCT<x: INT>, l ARRAY<INT>", tmp_path)
    spark.sql(f"ALTER TABLE {name} SET IDENTIFIER FIELDS id")
    spark.sql(f"INSERT INTO {name} VALUES (1, NULL, NULL)")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD bucket(2, id)")
    spark.sql(f"ALTER TABLE {name} WRITE ORDERED BY id")
    spark.sql(f"INSERT INTO {name} VALUES (2, NULL, NULL)")
    location = opened(spark, name, kms).metadata_location
    metadata = json.loads(Path(location.removeprefix("file:")).read_text())
    parser = spark.jvm.org.apache.iceberg.TableMetadataParser
    read = 0
    for path in paths(metadata):
        changed = copy.deepcopy(metadata)
        part: Any = changed
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = None
        try:
            theirs = parser.fromJson("x", json.dumps(changed))
        except Exception:
            continue
        ours = parse_metadata(without_nulls(changed))
        read += 1
        assert ours.schema().schema_id == theirs.currentSchemaId(), path
        assert [s.snapshot_id for s in ours.snapshots] == [
            s.snapshotId() for s in theirs.snapshots()
        ], path
    assert read >= 5


# Java 1.12 fails at names without an ID and at an element without one. It reads a map whose key
# has an ID. A struct none of whose fields has one is null there.
OTHERWISE = {
    *("a name without an ID", "a struct whose fields are mapped"),
    *("all fields of a struct", "the name of a field at the top"),
}


@pytest.mark.parametrize(
    ("case", "file_format"),
    [(case, "parquet") for case in CASES if case not in INSIDE | OTHERWISE]
    + [(case, "avro") for case in CASES if case not in INSIDE],
)
def test_fields_that_the_name_mapping_lacks_are_left_out(
    spark: SparkTables, tmp_path: Path, case: str, file_format: str
) -> None:
    columns, mapping, stored, expected = CASES[case]
    maker = TableMaker(tmp_path / "t", columns)
    maker.properties["schema.name-mapping.default"] = json.dumps(mapping)
    table = file_of(stored)
    is_avro = file_format == "avro"
    maker.commit(maker.add_avro(stored, avro_of(table)) if is_avro else maker.add_parquet_of(table))
    # Hive's statistics of the table.
    totals = ("total-data-files", "total-files-size", "total-records")
    maker.snapshots[-1]["summary"] |= dict.fromkeys(totals, "1")
    name = f"enc.db.foreign_{file_format}_{list(CASES).index(case)}"
    spark.register(name, Path(maker.write()))
    found = spark.session.table(name).toArrow().to_pylist()
    assert found == expected
