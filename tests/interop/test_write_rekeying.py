"""Files as Spark writes them, in all of its codecs and encodings, rekeyed by us: Spark reads the
same rows, by the same row ids, and finds them by their filters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet.encryption import create_decryption_properties

from ags1.errors import AuthenticationError
from ags1.iceberg import EncryptedTable, verify_table
from ags1.iceberg.read.records import DELETED, ContentFile
from ags1.kms import KmsClient

from .reading import check_history
from .spark import SparkTables, path_of
from .writing import Shared, check_rows, check_version, entries_of

pytestmark = pytest.mark.interop

# What differs between the files of a table: properties, and what shows it in the first column chunk
# of a text column.
PAGES = {
    "write.parquet.page-row-limit": "30",
    "write.parquet.row-group-size-bytes": "4096",
    "write.parquet.row-group-check-min-record-count": "50",
    "write.parquet.row-group-check-max-record-count": "100",
}
PARQUET: list[tuple[str, bool, dict[str, str]]] = [
    ("zstd", True, {}),
    ("gzip", False, PAGES),
    ("snappy", True, PAGES),
    ("uncompressed", False, {}),
    ("lz4", True, {}),
    ("zstd", True, {"write.parquet.bloom-filter-enabled.column.v": "true"}),
    ("zstd", True, {"write.parquet.stats-enabled.column.v": "false"}),
]
AVRO = ["gzip", "zstd", "snappy", "uncompressed"]
ROWS_EACH = 150
BY_ROW = {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}
DEFAULTS = PAGES.keys() | {
    "write.parquet.bloom-filter-enabled.column.v",
    "write.parquet.stats-enabled.column.v",
    "write.parquet.dict-encoding-enabled.column.v",
}


@pytest.fixture
def shared(spark: SparkTables, kms: KmsClient, tmp_path: Path) -> Iterator[Shared]:
    made = Shared("sql", spark, kms, tmp_path)
    yield made
    made.close()


def insert(spark: SparkTables, name: str, number: int, properties: dict[str, str]) -> None:
    """Have Spark write one file with these properties."""
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({listed})")
    spark.sql(
        f"INSERT INTO {name} SELECT /*+ COALESCE(1) */ id, concat('v', id % 9), "
        "IF(id % 7 = 0, NULL, sha2(CAST(id AS STRING), 256)), id / 3, "
        "CAST(id AS DECIMAL(20, 3)), TIMESTAMP_NTZ'1970-01-01 00:00:00' - make_interval(0,0,0,id), "
        "transform(sequence(0, CAST(id % 4 AS INT)), x -> IF(x = 2, NULL, named_struct('a', x))), "
        "IF(id % 5 = 0, NULL, map('k', id, concat('k', id), NULL)), CAST('ü' AS BINARY) "
        f"FROM range({number * ROWS_EACH}, {(number + 1) * ROWS_EACH})"
    )
    gone = ", ".join(f"'{key}'" for key in properties if key in DEFAULTS)
    if gone:
        spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ({gone})")


def footer(file: ContentFile) -> pq.FileMetaData:
    """Return the footer of an encrypted Parquet file."""
    assert file.key
    found = create_decryption_properties(
        footer_key=file.key.encryption_key, aad_prefix=file.key.aad_prefix
    )
    return pq.read_metadata(path_of(file.file_path), decryption_properties=found)


def described(footer: pq.FileMetaData) -> list[dict[str, Any]]:
    """Return what the footer says of each column chunk, but for where it lies."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [g.column(number).to_dict() for g in groups for number in range(g.num_columns)]
    moved = {
        *("file_offset", "dictionary_page_offset", "data_page_offset"),
        *("total_compressed_size", "total_uncompressed_size"),
    }
    return [{k: v for k, v in chunk.items() if k not in moved} for chunk in chunks]


def data_files(table: EncryptedTable) -> list[ContentFile]:
    """Return the live data files in the order of their rows."""
    live = (entry.file for entry in entries_of(table) if entry.status != DELETED)
    return sorted(
        (file for file in live if not file.content), key=lambda file: file.first_row_id or 0
    )


def rekeyed(
    spark: SparkTables, shared: Shared, name: str
) -> tuple[str, list[ContentFile], list[ContentFile]]:
    """Rekey a table of Spark's, and check what Spark reads then; return its new name, its data
    files before and after."""
    rows = "*, _row_id, _last_updated_sequence_number"
    before = spark.rows(name, rows)
    table = shared.taken_back(name)
    old = data_files(table)
    assert table.rekey().files >= len(old)
    new = data_files(table)
    after = shared.shown(table)
    assert spark.rows(after, rows) == before
    check_rows(spark, after, table, rewritten=True)
    for one, other in zip(new, old, strict=True):
        assert size_and_place_apart(one) == size_and_place_apart(other)
    keys = [file.key.encryption_key for file in (*old, *new) if file.key]
    assert len(set(keys)) == len(keys)
    errors = {f.kind for f in verify_table(table).findings if f.severity == "error"}
    # Earlier snapshots still have what was not encrypted.
    assert errors == {"plain-data-file" for file in old if file.key is None}
    return after, old, new


def size_and_place_apart(file: ContentFile) -> ContentFile:
    return file.replace(
        file_path="",
        file_size_in_bytes=0,
        key_metadata=None,
        column_sizes=None,
        split_offsets=tuple(0 for _ in file.split_offsets or ()),
    )


def check_found(spark: SparkTables, name: str) -> None:
    """Check that statistics, indexes and bloom filters lead to the rows."""
    for condition in (
        "v = 'v3' AND id < 60",
        "h = sha2('1', 256)",
        "h = sha2('451', 256)",
        "d = 90.000",
        "x BETWEEN 10 AND 11",
        "a[0].a = 0 AND id BETWEEN 300 AND 310",
    ):
        # Once as a filter, once as a column.
        [found] = spark.sql(f"SELECT count(*) AS n FROM {name} WHERE {condition}")
        [whole] = spark.sql(f"SELECT count_if(coalesce({condition}, false)) AS n FROM {name}")
        assert found["n"] == whole["n"] > 0, condition


COLUMNS = (
    "id BIGINT, v STRING, h STRING, x DOUBLE, d DECIMAL(20, 3), t TIMESTAMP_NTZ, "
    "a ARRAY<STRUCT<a: INT>>, m MAP<STRING, BIGINT>, b BINARY"
)


def test_parquet_in_all_of_spark_s_forms(
    spark: SparkTables, shared: Shared, tmp_path: Path
) -> None:
    name = f"enc.{shared.new_name()}"
    spark.create(name, COLUMNS, tmp_path / "t", **BY_ROW)
    for number, (codec, dictionary, more) in enumerate(PARQUET):
        properties = {
            "write.parquet.compression-codec": codec,
            "write.parquet.dict-encoding-enabled.column.v": str(dictionary).lower(),
        }
        insert(spark, name, number, properties | more)
    spark.sql(f"DELETE FROM {name} WHERE id % 150 BETWEEN 100 AND 110 OR h = sha2('777', 256)")
    name, old, new = rekeyed(spark, shared, name)
    assert len(new) == len(PARQUET)
    for one, other, (codec, dictionary, more) in zip(old, new, PARQUET, strict=True):
        footers = footer(one), footer(other)
        assert described(footers[0]) == described(footers[1])
        assert footers[0].metadata == footers[1].metadata
        assert footers[0].schema.equals(footers[1].schema)
        chunk = footers[0].row_group(0).column(1)
        # Spark did what it was told.
        # Arrow has no name for LZ4 as Hadoop frames it.
        assert chunk.compression.lower() == {"lz4": "unknown"}.get(codec, codec)
        assert chunk.has_dictionary_page == dictionary
        assert (footers[0].num_row_groups > 1) == (PAGES.items() <= more.items())
    check_found(spark, name)


def test_pages_of_version_2_are_not_encrypted_again(
    spark: SparkTables, shared: Shared, tmp_path: Path
) -> None:
    """Java does not authenticate which of their values are null."""
    name = f"enc.{shared.new_name()}"
    spark.create(name, "id BIGINT", tmp_path / "t", **{"write.parquet.page-version": "v2"})
    spark.sql(f"INSERT INTO {name} SELECT IF(id % 3 = 0, NULL, id) FROM range(100)")
    with pytest.raises(AuthenticationError, match="rewrite it in Spark"):
        shared.taken_back(name).rekey()


def test_avro_in_all_of_spark_s_codecs(spark: SparkTables, shared: Shared, tmp_path: Path) -> None:
    name = f"enc.{shared.new_name()}"
    spark.create(name, COLUMNS, tmp_path / "t", **BY_ROW, **{"write.format.default": "avro"})
    for number, codec in enumerate(AVRO):
        insert(spark, name, number, {"write.avro.compression-codec": codec})
    spark.sql(f"DELETE FROM {name} WHERE id % 150 BETWEEN 100 AND 110")
    name, old, new = rekeyed(spark, shared, name)
    check_history(spark, name, shared.taken_back(name))
    # The bytes are the same, sealed anew.
    assert [f.file_size_in_bytes for f in new] == [f.file_size_in_bytes for f in old]
    assert len({f.file_size_in_bytes for f in new}) == len(AVRO)
    check_found(spark, name)
    spark.sql(f"DELETE FROM {name} WHERE id % 150 = 111")
    assert len(spark.rows(name, "id")) == 4 * (ROWS_EACH - 12)


def test_files_in_the_clear_are_encrypted(
    spark: SparkTables, shared: Shared, tmp_path: Path
) -> None:
    name = f"enc.{shared.new_name()}"
    spark.create(name, "id BIGINT, v STRING", tmp_path / "t", **BY_ROW)
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, NULL)")
    plain = str(tmp_path / "plain.parquet")
    pq.write_table(pa.table({"id": [3, 4, 5], "v": ["c", None, "e"]}), plain)
    table = shared.taken_back(name)
    table.add_files([f"file:{plain}"], allow_plaintext=True)
    table.delete("id = 4")
    name = shared.shown(table)
    check_version(spark, name, table)
    spark.sql(f"DELETE FROM {name} WHERE id = 1")
    name, old, new = rekeyed(spark, shared, name)
    assert [file.key is None for file in old] == [False, True]
    assert all(file.key for file in new)
    assert spark.rows(name) == [(2, None), (3, "c"), (5, "e")]
    spark.sql(f"INSERT INTO {name} VALUES (6, 'f')")
    check_version(spark, name, shared.taken_back(name))
