"""What Python makes of the rows of ``vectors/rules``. For Java, see ``interop/test_rules.py``, and
for the reason ``docs/design/0010-rules-in-two-languages.md``."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import memory_kms
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from rules import changed_metadata, rows

from ags1.engine._messages import seal
from ags1.engine.key_metadata import KeyMetadata
from ags1.errors import Ags1Error
from ags1.iceberg import EncryptedCatalog, EncryptedTable
from ags1.iceberg.catalog import OpenedTable
from ags1.iceberg.formats.parquet_modules import verify_parquet
from ags1.iceberg.read.metadata import parse_metadata, read_metadata, table_key_id
from ags1.iceberg.storage.trust import Trust
from ags1.keys.envelope import KEY_TIMESTAMP, EncryptedKey, KeyEncryptionKey
from ags1.keys.manager import EncryptionManager
from ags1.kms import from_properties

SCHEMA = pa.schema([("price", pa.int64())])
KEY = b"0123456789012345"
AAD_PREFIX = b"\xa0" * 16


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> EncryptedCatalog:
    folder = tmp_path_factory.mktemp("rules")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        kms = from_properties(
            {"encryption.kms-type": "memory", "encryption.kms.key.default": KEY.hex()}
        )
    inner = load_catalog("rules", type="sql", uri="sqlite://", warehouse=f"file://{folder}")
    catalog = EncryptedCatalog(inner, kms)
    catalog.create_namespace("db")
    return catalog


def create(catalog: EncryptedCatalog, properties: Mapping[str, str]) -> OpenedTable:
    catalog.drop_table("db.t") if catalog.table_exists("db.t") else None
    given = (
        dict(properties)
        if "encryption.key-id" in properties
        else {"format-version": "2", **properties}
    )
    return catalog.create_table("db.t", SCHEMA, properties=given)


def new_table(catalog: EncryptedCatalog, given: Any) -> str:
    is_encrypted = isinstance(create(catalog, given), EncryptedTable)
    return "encrypted" if is_encrypted else "plaintext"


def set_properties(catalog: EncryptedCatalog, given: Any) -> str:
    table = create(catalog, given["before"])
    with table.transaction() as transaction:
        transaction.set_properties(given["set"])
    return "changed"


def key_timestamps(_: EncryptedCatalog, given: Any) -> str:
    kms = memory_kms()
    entry = EncryptedKey("k", kms.wrap_key(KEY, "keyA"), "keyA", {KEY_TIMESTAMP: given})
    KeyEncryptionKey.unwrap(kms, entry)
    return "opened"


def vault_urls(_: EncryptedCatalog, given: Any) -> str:
    from_properties(
        {"encryption.kms-type": "vault", "kms.vault.url": given, "kms.vault.token": "t"}
    )
    return "accepted"


def encrypted_parquet(_: EncryptedCatalog, given: Any) -> str:
    """A file without rows, whose footer verifies if a reader takes the AAD from what is given."""
    plain = io.BytesIO()
    pq.ParquetWriter(plain, SCHEMA).close()
    footer = plain.getvalue()[-8 - int.from_bytes(plain.getvalue()[-8:-4], "little") : -8]
    file_id = bytes.fromhex(given.get("file_id", "0102030405060708"))
    module = seal(KEY, footer, AAD_PREFIX + file_id + b"\0")
    end = bytes.fromhex(given["crypto_metadata"]) + struct.pack("<I", len(module)) + module
    end += bytes.fromhex(given.get("behind", ""))
    file = given.get("head", "PARE").encode() + end + struct.pack("<I", len(end))
    file += given.get("end", "PARE").encode()
    km = KeyMetadata(KEY, AAD_PREFIX, len(file))
    verify_parquet(lambda offset, size: file[offset : offset + size], len(file), km)
    return "accepted"


def table_metadata(catalog: EncryptedCatalog, given: Any) -> str:
    location = "memory.metadata.json"
    stored = changed_metadata(given).encode("utf-8", "surrogatepass")

    class Memory(PyArrowFileIO):
        def new_input(self, _: str) -> Any:
            return SimpleNamespace(open=lambda: io.BytesIO(stored))

    metadata = read_metadata(Memory(), location, Trust())
    key_id = table_key_id(metadata, Trust(), location)
    parse_metadata(metadata)
    if key_id is None:
        return "plaintext"
    manager = EncryptionManager.from_metadata(metadata, memory_kms())
    for snapshot in metadata["snapshots"]:
        if "key-id" in snapshot:
            manager.manifest_list_key(snapshot["key-id"])
    return "encrypted"


DECISIONS: dict[str, Callable[[EncryptedCatalog, Any], str]] = {
    decide.__name__: decide
    for decide in (
        new_table,
        set_properties,
        key_timestamps,
        vault_urls,
        encrypted_parquet,
        table_metadata,
    )
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("rule", "given", "result"), rows("python"))
def test_the_rows(catalog: EncryptedCatalog, rule: str, given: Any, result: str) -> None:
    try:
        found = DECISIONS[rule](catalog, given)
    except (Ags1Error, ValueError):
        found = "refused"
    assert found == result
