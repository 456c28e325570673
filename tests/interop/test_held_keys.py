"""Keys that we shred, rotate, re-wrap or prune while a session of Spark holds the table.

Facts about released Java rather than wishes: they decide what users have to be told.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ags1 import KeyMetadataError
from ags1.keys.envelope import EncryptedKey
from ags1.keys.manager import EncryptionManager
from ags1.kms import KmsClient

from .spark import SparkTables
from .tables import (
    FOUR_ROWS,
    create,
    manager_of,
    open_all,
    with_keys,
    with_list_of_ours,
    write_metadata,
)

pytestmark = pytest.mark.interop

# Java looks for the key, finds none and says so in a NullPointerException.
NO_KEY = 'because "manifestListKey" is null'
THREE_YEARS_MS = 3 * 365 * 24 * 3_600_000
_numbers = itertools.count()


@pytest.fixture(scope="module")
def held(spark: SparkTables) -> str:
    """A catalog as a long-running session has it: it keeps tables and with them their keys."""
    return spark.catalog("held", keeps_tables=True)


@dataclass(frozen=True, slots=True)
class Shredded:
    """A table of two snapshots, written by a session that still holds it, whose metadata in the
    metastore has lost a KEK. ``shown`` is it to a new client, ``held`` to that session."""

    shown: str
    held: str
    file: Path
    metadata: dict[str, Any]
    old_file: Path
    old_metadata: dict[str, Any]


@contextmanager
def table_held(spark: SparkTables, held: str, folder: Path) -> Iterator[str]:
    """The name of a table of two snapshots, without its catalog."""
    name = f"db.shred_{next(_numbers)}"
    create(spark, f"{held}.{name}", folder / name)
    assert spark.rows(f"{held}.{name}") == FOUR_ROWS
    yield name
    spark.sql(f"DROP TABLE {held}.{name}")


@pytest.fixture
def a_table(spark: SparkTables, held: str, tmp_path: Path) -> Iterator[str]:
    with table_held(spark, held, tmp_path) as name:
        yield name


@pytest.fixture
def a_table_of_middling_kek(
    spark: SparkTables, kms: KmsClient, held: str, tmp_path: Path
) -> Iterator[str]:
    """One whose KEK, which Java chose, can come before another in a HashMap and after another."""
    with ExitStack() as tables:
        while True:
            name = tables.enter_context(table_held(spark, held, tmp_path))
            [kek] = manager_of(spark.metadata(f"enc.{name}"), kms).key_encryption_keys
            if 0 < java_bucket(kek) < 15:
                break
        yield name


@pytest.fixture
def table(spark: SparkTables, kms: KmsClient, a_table: str) -> Shredded:
    """Its only KEK is shredded."""
    shown = f"enc.{a_table}"
    old_file, old = spark.metadata_file(shown), spark.metadata(shown)
    manager = manager_of(old, kms)
    [kek] = manager.key_encryption_keys
    metadata = with_keys(old, manager.shred(kek.key_id))
    assert "encryption-keys" not in metadata
    file = write_metadata(metadata, old_file)
    spark.commit(shown, file)
    return Shredded(shown, f"held.{a_table}", file, metadata, old_file, old)


def key_ids(metadata: dict[str, Any]) -> set[str]:
    return {key["key-id"] for key in metadata.get("encryption-keys", [])}


def test_a_new_reader_fails(spark: SparkTables, kms: KmsClient, table: Shredded) -> None:
    for snapshot in table.metadata["snapshots"]:
        with pytest.raises(Exception, match=NO_KEY):
            spark.rows(f"{table.shown} VERSION AS OF {snapshot['snapshot-id']}")
        with pytest.raises(KeyMetadataError):
            manager_of(table.metadata, kms).manifest_list_key(snapshot["key-id"])
    with pytest.raises(Exception, match=NO_KEY):
        spark.rows(table.shown)


def test_a_new_writer_fails(spark: SparkTables, table: Shredded) -> None:
    with pytest.raises(Exception, match=NO_KEY):
        spark.sql(f"INSERT INTO {table.shown} VALUES (5, 'e')")
    assert spark.metadata_file(table.shown) == table.file


def test_older_metadata_still_opens_everything(
    spark: SparkTables, kms: KmsClient, table: Shredded
) -> None:
    assert len(open_all(table.old_metadata, manager_of(table.old_metadata, kms))) == 2
    name = f"{table.shown}_older"
    spark.register(name, table.old_file)
    assert spark.rows(name) == FOUR_ROWS


def test_a_session_that_holds_the_table_reads_until_it_refreshes(
    spark: SparkTables, table: Shredded
) -> None:
    assert spark.rows(table.held) == FOUR_ROWS
    spark.sql(f"REFRESH TABLE {table.held}")
    with pytest.raises(Exception, match=NO_KEY):
        spark.rows(table.held)


def test_a_writer_that_holds_the_kek_brings_it_back(
    spark: SparkTables, kms: KmsClient, table: Shredded
) -> None:
    spark.sql(f"INSERT INTO {table.held} VALUES (5, 'e')")
    metadata = spark.metadata(table.shown)
    *older, newest = metadata["snapshots"]
    # Java 1.12.0 commits the KEK that it sealed with and the new list's key, and no other.
    [kek] = manager_of(table.old_metadata, kms).key_encryption_keys
    assert key_ids(metadata) == {kek.key_id, newest["key-id"]}
    manager = manager_of(metadata, kms)
    assert manager.key_encryption_keys == (kek,)

    # The new manifest list has the keys of the older manifests: what was shredded can be read.
    assert spark.rows(table.shown) == [*FOUR_ROWS, (5, "e")]
    assert len(open_all(metadata | {"snapshots": [newest]}, manager)) == 1
    # The older snapshots' own lists can't, unless an older metadata file is found, whose KEK this
    # is.
    for snapshot in older:
        with pytest.raises(Exception, match=NO_KEY):
            spark.rows(f"{table.shown} VERSION AS OF {snapshot['snapshot-id']}")
        with pytest.raises(KeyMetadataError):
            manager.manifest_list_key(snapshot["key-id"])


def test_a_refreshed_writer_does_not_bring_it_back(spark: SparkTables, table: Shredded) -> None:
    spark.sql(f"REFRESH TABLE {table.held}")
    with pytest.raises(Exception, match=NO_KEY):
        spark.sql(f"INSERT INTO {table.held} VALUES (5, 'e')")
    assert spark.metadata_file(table.shown) == table.file


def test_snapshots_under_another_kek_live_on(
    spark: SparkTables, kms: KmsClient, a_table: str
) -> None:
    name = f"enc.{a_table}"
    file, metadata = spark.metadata_file(name), spark.metadata(name)
    manager = manager_of(metadata, kms)
    [old] = manager.key_encryption_keys
    later = EncryptionManager(
        kms,
        "keyA",
        manager.encryption_keys,
        clock_ms=lambda: time.time_ns() // 1_000_000 + THREE_YEARS_MS,
    )
    metadata = with_list_of_ours(metadata, later)
    assert len(later.key_encryption_keys) == 2
    shredded = later.shred(old.key_id)
    spark.commit(name, write_metadata(with_keys(metadata, shredded), file))

    first, second = (s["snapshot-id"] for s in metadata["snapshots"])
    assert spark.rows(f"{name} VERSION AS OF {second}") == FOUR_ROWS
    with pytest.raises(Exception, match=NO_KEY):
        spark.rows(f"{name} VERSION AS OF {first}")
    spark.sql(f"INSERT INTO {name} VALUES (5, 'e')")
    assert spark.rows(name) == [*FOUR_ROWS, (5, "e")]
    assert old.key_id not in key_ids(spark.metadata(name))


@pytest.mark.parametrize("which", ["old", "new"])
def test_a_writer_that_holds_a_kek_may_undo_its_rotation(
    spark: SparkTables, kms: KmsClient, a_table_of_middling_kek: str, which: str
) -> None:
    shown, holding = f"enc.{a_table_of_middling_kek}", f"held.{a_table_of_middling_kek}"
    file, metadata = spark.metadata_file(shown), spark.metadata(shown)
    manager = manager_of(metadata, kms)
    [old] = manager.key_encryption_keys
    while True:
        rotated = manager.rotate()
        [new] = rotated.key_encryption_keys
        first = old if which == "old" else new
        if min((old, new), key=java_bucket) == first and java_bucket(old) != java_bucket(new):
            break
    spark.commit(shown, write_metadata(with_keys(metadata, rotated), file))

    spark.sql(f"INSERT INTO {holding} VALUES (5, 'e')")
    metadata = spark.metadata(shown)
    newest = metadata["snapshots"][-1]["key-id"]
    [entry] = [key for key in metadata["encryption-keys"] if key["key-id"] == newest]
    assert entry["encrypted-by-id"] == first.key_id
    assert (old.key_id in key_ids(metadata)) == (which == "old")
    assert len(open_all(metadata, manager_of(metadata, kms))) == 3
    assert spark.rows(shown) == [*FOUR_ROWS, (5, "e")]


def test_a_session_goes_on_under_another_master_key(
    spark: SparkTables, kms: KmsClient, a_table: str
) -> None:
    shown, holding = f"enc.{a_table}", f"held.{a_table}"
    file, metadata = spark.metadata_file(shown), spark.metadata(shown)
    rewrapped = manager_of(metadata, kms).rewrap(table_key_id="keyB")
    file = write_metadata(with_keys(metadata, rewrapped), file)
    spark.commit(shown, file, **{"encryption.key-id": "keyB"})

    spark.sql(f"INSERT INTO {holding} VALUES (5, 'e')")
    metadata = spark.metadata(shown)
    manager = manager_of(metadata, kms, "keyB")
    assert manager.key_encryption_keys == rewrapped.key_encryption_keys
    assert len(open_all(metadata, manager)) == 3
    for name in (shown, holding):
        assert spark.rows(name) == [*FOUR_ROWS, (5, "e")]


def test_pruned_keys_stay_gone(spark: SparkTables, kms: KmsClient, a_table: str) -> None:
    shown, holding = f"enc.{a_table}", f"held.{a_table}"
    spark.sql(
        f"CALL held.system.expire_snapshots(table => '{a_table}', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    file, metadata = spark.metadata_file(shown), spark.metadata(shown)
    manager = manager_of(metadata, kms)
    [live] = metadata["snapshots"]
    [expired] = key_ids(metadata) - {live["key-id"], manager.key_encryption_keys[0].key_id}
    pruned = manager.prune([live["key-id"]])
    spark.commit(shown, write_metadata(with_keys(metadata, pruned), file))

    spark.sql(f"INSERT INTO {holding} VALUES (5, 'e')")
    metadata = spark.metadata(shown)
    assert expired not in key_ids(metadata)
    assert len(metadata["encryption-keys"]) == 3
    assert len(open_all(metadata, manager_of(metadata, kms))) == 2
    assert spark.rows(shown) == [*FOUR_ROWS, (5, "e")]


def java_bucket(key: EncryptedKey) -> int:
    """Where a HashMap of up to twelve entries keeps this key. Java takes the first KEK it meets, of
    those in the metadata and those that it remembers."""
    code = 0
    for character in key.key_id:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return (code ^ code >> 16) & 15
