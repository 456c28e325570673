"""Files of every codec, every key length and some size, and tables of many columns."""

from __future__ import annotations

from pathlib import Path

import fastavro
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet.encryption import create_decryption_properties

from ags1.iceberg import ContentFile, EncryptedTable
from ags1.kms import KmsClient

from .reading import check_same, opened, plain_types
from .spark import SparkTables, path_of

pytestmark = pytest.mark.interop

# By Iceberg's names, in the order of the table's snapshots; then by the file formats' own.
CODECS = [
    ("parquet", "zstd", "ZSTD"),
    ("parquet", "gzip", "GZIP"),
    ("parquet", "snappy", "SNAPPY"),
    ("parquet", "lz4", "UNKNOWN"),  # LZ4_RAW, for which Arrow has no name here
    ("parquet", "uncompressed", "UNCOMPRESSED"),
    ("avro", "gzip", "deflate"),
    ("avro", "zstd", "zstandard"),
    ("avro", "snappy", "snappy"),
    ("avro", "uncompressed", "null"),
]


def data_files(table: EncryptedTable) -> list[ContentFile]:
    return [task.file for task in table.scan().plan_files()]


def codec_of(table: EncryptedTable, file: ContentFile) -> str:
    """Return the codec of a data file, as other libraries see it."""
    assert file.key is not None
    if file.file_path.endswith(".parquet"):
        stored = pq.ParquetFile(
            path_of(file.file_path),
            decryption_properties=create_decryption_properties(
                file.key.encryption_key, aad_prefix=file.key.aad_prefix
            ),
        )
        return str(stored.metadata.row_group(0).column(0).compression)
    with table.files.open_encrypted(file.file_path, file.key) as stream:
        return str(fastavro.reader(stream).codec)


@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_codecs_and_key_lengths(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, key_size: int
) -> None:
    name = f"enc.db.codecs_{key_size}"
    columns = "id BIGINT, v STRING, d DOUBLE"
    spark.create(name, columns, tmp_path, **{"encryption.data-key-length": str(key_size)})
    codecs = CODECS if key_size == 16 else CODECS[::4]
    for number, (file_format, codec, _) in enumerate(codecs):
        settings = f"'write.format.default'='{file_format}', " + (
            f"'write.{file_format}.compression-codec'='{codec}'"
        )
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({settings})")
        spark.sql(
            f"INSERT INTO {name} SELECT id + {1000 * number}, repeat(string(id % 3), 50), id / 7 "
            "FROM range(0, 500, 1, 1)"
        )
    table = opened(spark, name, kms)
    files = data_files(table)
    assert {len(f.key.encryption_key) for f in files if f.key} == {key_size}
    assert {codec_of(table, file) for file in files} == {own for _, _, own in codecs}
    assert check_same(spark, name, table.scan()) == 500 * len(codecs)


@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_the_key_length_changes_between_files(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, key_size: int
) -> None:
    name = f"enc.db.lengths_{key_size}"
    spark.create(name, "id BIGINT", tmp_path, **{"encryption.data-key-length": str(key_size)})
    spark.sql(f"INSERT INTO {name} VALUES (1)")
    other = 32 if key_size == 16 else 16
    change = f"'encryption.data-key-length'='{other}', 'write.format.default'='avro'"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({change})")
    spark.sql(f"INSERT INTO {name} VALUES (2)")
    table = opened(spark, name, kms)
    sizes = {len(f.key.encryption_key) for f in data_files(table) if f.key}
    assert sizes == {key_size, other}
    check_same(spark, name, table.scan())


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_files_of_several_blocks(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, file_format: str
) -> None:
    """2 MiB and more: several AGS1 blocks, several row groups, many Avro blocks."""
    name = f"enc.db.large_{file_format}"
    spark.create(
        name,
        "id BIGINT, v STRING, ar ARRAY<INT>",
        tmp_path,
        **{
            "write.format.default": file_format,
            f"write.{file_format}.compression-codec": "uncompressed",
            "write.parquet.row-group-size-bytes": "400000",
            "write.delete.mode": "merge-on-read",
        },
    )
    spark.sql(
        f"INSERT INTO {name} SELECT id, repeat(sha2(string(id), 256), 2), "
        "IF(id % 10 = 0, null, array(int(id), null, int(id * 7))) FROM range(0, 20000, 1, 1)"
    )
    [file] = data_files(opened(spark, name, kms))
    assert file.file_size_in_bytes > 2 << 20
    for condition in ("true", "id % 3 = 0 OR id BETWEEN 7000 AND 9500"):
        if condition != "true":
            spark.sql(f"DELETE FROM {name} WHERE {condition}")
        table = opened(spark, name, kms)
        theirs = spark.session.sql(f"SELECT * FROM {name}").toArrow().sort_by("id")
        ours = table.scan().to_arrow().sort_by("id")
        assert plain_types(ours.schema) == plain_types(theirs.schema)
        assert ours.cast(theirs.schema).equals(theirs)
        streamed = table.scan().to_arrow_batch_reader().read_all().sort_by("id")
        assert streamed.cast(theirs.schema).equals(theirs)
        assert table.scan().count() == len(theirs)
        few = table.scan("id >= 6990 and id < 9600", selected_fields=("id",)).to_arrow()
        assert sorted(few["id"].to_pylist()) == [
            i for i in theirs["id"].to_pylist() if 6990 <= i < 9600
        ]


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_tables_of_many_columns(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, file_format: str
) -> None:
    name, width = f"enc.db.wide_{file_format}", 400
    kinds = ["INT", "STRING", "DOUBLE", "DECIMAL(20, 3)"]
    columns = ", ".join(f"c{n} {kinds[n % 4]}" for n in range(width))
    spark.create(name, f"id BIGINT, {columns}", tmp_path, **{"write.format.default": file_format})
    values = ", ".join(f"CAST(id + {n} AS {kinds[n % 4]})" for n in range(width))
    spark.sql(f"INSERT INTO {name} SELECT id, {values} FROM range(10)")
    table = opened(spark, name, kms)
    assert check_same(spark, name, table.scan()) == 10
    some = ("c0", "c399", "c200")
    assert table.scan(selected_fields=some).to_arrow().num_columns == 3
    assert table.scan("c399 > 405").count() == 3
