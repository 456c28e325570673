"""Encrypted Parquet files outside tables: parquet-java, as Spark brings it, reads ours, and we read
its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ags1 import KeyMetadata, parquet
from ags1.kms.local import create_key

from .spark import SparkTables

pytestmark = pytest.mark.interop

ROWS = pa.table(
    {
        "n": pa.array(range(600)),
        "text": pa.array([None if i % 5 == 0 else f"t{i % 50}" for i in range(600)]),
    }
)


def path_of(jvm: Any, path: Path) -> Any:
    return jvm.org.apache.hadoop.fs.Path(f"file://{path}")


def read_by_java(jvm: Any, path: Path, km: KeyMetadata) -> list[dict[str, Any]]:
    keys = jvm.org.apache.parquet.crypto.FileDecryptionProperties.builder()
    keys = keys.withFooterKey(km.encryption_key).withAADPrefix(km.aad_prefix).build()
    hadoop = jvm.org.apache.parquet.hadoop
    support = hadoop.example.GroupReadSupport()
    reader = hadoop.ParquetReader.builder(support, path_of(jvm, path)).withDecryption(keys).build()
    rows: list[dict[str, Any]] = []
    while (row := reader.read()) is not None:
        is_null = row.getFieldRepetitionCount("text") == 0
        rows.append(
            {"n": row.getLong("n", 0), "text": None if is_null else row.getString("text", 0)}
        )
    reader.close()
    return rows


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd", "row_group_size": 200, "data_page_size": 500},
        {"write_page_index": True, "bloom_filter_options": {"n": {"ndv": 600}}},
    ],
    ids=str,
)
def test_parquet_java_reads_ours(
    spark: SparkTables, tmp_path: Path, options: dict[str, Any]
) -> None:
    create_key(str(tmp_path / "keyring"), "default")
    keys = {"keyring": str(tmp_path / "keyring"), "key": "default"}
    path = tmp_path / "f.parquet"
    km = parquet.write_table(ROWS, path, storage_options=keys, **options)
    assert read_by_java(spark.jvm, path, km) == ROWS.to_pylist()


def test_what_parquet_java_wrote_is_opened(spark: SparkTables, tmp_path: Path) -> None:
    jvm, km, path = spark.jvm, KeyMetadata.generate(16), tmp_path / "f.parquet"
    keys = jvm.org.apache.parquet.crypto.FileEncryptionProperties.builder(km.encryption_key)
    keys = keys.withAADPrefix(km.aad_prefix).withoutAADPrefixStorage().build()
    schema = jvm.org.apache.parquet.schema.MessageTypeParser.parseMessageType(
        "message rows { required int32 n; optional binary text (STRING); }"
    )
    writer = jvm.org.apache.parquet.hadoop.example.ExampleParquetWriter.builder(path_of(jvm, path))
    writer = writer.withType(schema).withEncryption(keys).build()
    groups = jvm.org.apache.parquet.example.data.simple.SimpleGroupFactory(schema)
    for row in ROWS.to_pylist():
        group = groups.newGroup().append("n", row["n"])
        writer.write(group if row["text"] is None else group.append("text", row["text"]))
    writer.close()
    with parquet.open(path, km.with_file_length(path.stat().st_size)) as file:
        assert pq.read_table(file).to_pylist() == ROWS.to_pylist()
