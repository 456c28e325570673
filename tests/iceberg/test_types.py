"""A program of a user: mypy and pyright accept it (``make lint``), and here it runs."""

from __future__ import annotations

import secrets
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from typing_extensions import assert_type

from ags1.iceberg import (
    EncryptedScan,
    EncryptedTable,
    EncryptedTransaction,
    OrphanFiles,
    check_table,
    load_catalog,
    open_table,
    verify_table,
)


@pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")
def test_a_users_program(tmp_path: Path) -> None:
    kms = {"encryption.kms-type": "memory", "encryption.kms.key.k": secrets.token_hex(16)}
    storage = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    with load_catalog("test", type="sql", **storage, **kms) as catalog:
        catalog.create_namespace("db")
        schema = pa.schema([("id", pa.int64())])
        encrypted = {"encryption.key-id": "k"}
        made = catalog.create_table("db.t", schema, properties=encrypted)
        made = catalog.create_table_if_not_exists("db.t", schema, properties=encrypted)
        made.append(pa.table({"id": [1, 2]}))
        use(made)

        table = catalog.load_table("db.t", require_encrypted=True)
        if not isinstance(table, EncryptedTable):
            raise TypeError("this cannot be")
        assert_type(table.scan(), EncryptedScan)
        assert_type(table.transaction(), EncryptedTransaction)
        assert_type(table.remove_orphan_files(dry_run=True), OrphanFiles)
        with table.transaction() as transaction:
            assert_type(transaction, EncryptedTransaction)
            transaction.append(pa.table({"id": [3]}))
        assert len(transaction.snapshot_ids) == 1
        assert table.inspect.all_entries().num_rows == 2
        table.maintenance.expire_snapshots().by_ids([]).commit()

        with catalog.create_table_transaction("db.u", schema, properties=encrypted) as creation:
            creation.append(pa.table({"id": [3]}))
        use(catalog.rename_table("db.u", "db.v"))
        use(catalog.register_table("db.w", catalog.load_table("db.v").metadata_location))

    opened = open_table(table.metadata_location, kms)
    assert opened.refresh().scan(limit=1).to_arrow().num_rows == 1
    with pytest.raises(AttributeError):
        opened.rotate_kys()  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        opened.rekey(thread=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def use(table: EncryptedTable) -> None:
    """Call methods of PyIceberg and of ours."""
    would = table.rotate_keys(dry_run=True)
    before = [kek.key_id for kek in table.files.keys.key_encryption_keys]
    done = table.rotate_keys()
    now = [kek.key_id for kek in table.files.keys.key_encryption_keys]
    assert (list(done.keks), done.snapshots) == (now, len(table.snapshots()))
    assert not {*before, *would.keks} & {*now}
    assert table.rewrap_keys(dry_run=True).keks == done.keks
    assert table.prune_keys(dry_run=True) == table.prune_keys() == []
    assert table.rekey("id > 0", dry_run=True).files == 1
    assert verify_table(table).ok
    assert check_table(table).ok
    assert plain(table) == table.scan("id > 0", selected_fields=("id",)).count()


def plain(table: Table) -> int:
    """Call what works with any table of PyIceberg."""
    assert table.inspect.files().num_rows == 1
    return table.scan("id > 0").count()
