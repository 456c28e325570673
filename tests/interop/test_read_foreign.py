"""metadata.json of other writers, read by Java and by us."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from foreign_files import paths

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
