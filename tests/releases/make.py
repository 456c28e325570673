"""Writes what this release writes into ``tests/releases/VERSION``, for the tests of later releases.

    python tests/releases/make.py

It needs Spark (``ags1[interop]``, Java 17) for the ledger. Run it before a release, again after a
change of a format, and never for a version that is out. ``index.json`` has what a reader has to
find; ``tests/test_releases.py`` is that reader. Everything is made below ``/tmp/ags1-releases``,
because tables and ledgers name their files by absolute paths. All keys in here are public.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import ags1
from ags1.iceberg import VariantType, load_catalog
from ags1.keys import Keychain, write_sidecar
from ags1.kms import LocalKms, create_key, set_passphrase

RELEASES = Path(__file__).parent
WORK = Path("/tmp/ags1-releases") / ags1.__version__
PASSPHRASE = "a passphrase that everybody knows"
KEY = "release"
ROWS = {
    "id": [1, 2, 3, 4, 5],
    "carrier": ["UA", "AA", None, "UA", "AS"],
    "day": [datetime.date(2026, 1, day) for day in (1, 1, 2, 31, 31)],
    "delay": [1.5, -2.0, None, 0.0, 12.25],
}
LEFT = [1, 3, 4, 5]  # the IDs of rows after a delete


def main() -> None:
    os.umask(0o077)
    shutil.rmtree(WORK.parent, ignore_errors=True)
    WORK.mkdir(parents=True)
    keyrings()
    index = {
        "version": ags1.__version__,
        "made_at": str(WORK),
        "passphrase": PASSPHRASE,
        "master_key": KEY,
        "streams": streams(),
        "sidecars": sidecars(),
        "ledgers": ledgers(),
        "tables": tables(),
    }
    (WORK / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    target = RELEASES / ags1.__version__
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(WORK, target, ignore=shutil.ignore_patterns("*lock"))
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {size} bytes")
    assert size < 300 << 10


def content(size: int) -> bytes:
    """Return bytes that a reader can make again."""
    return bytes(n * 7 % 251 for n in range(size))


def keyrings() -> None:
    """One keyring without a passphrase, whose key has two versions, and one with a passphrase."""
    create_key(str(WORK / "keyring.json"), KEY)
    shutil.copy(WORK / "keyring.json", WORK / "protected.json")
    set_passphrase(str(WORK / "protected.json"), PASSPHRASE.encode())


def streams() -> list[dict[str, Any]]:
    """Streams, with their keys as they are: every key size, one block, several and none."""
    made = []
    (WORK / "streams").mkdir()
    for name, size, block_size, key_size in (
        ("empty", 0, 1 << 20, 32),
        ("small", 1000, 1 << 20, 16),
        ("blocks", 5000, 1000, 24),
        ("odd", 5001, 1024, 32),
    ):
        path = WORK / "streams" / f"{name}.ags1"
        with ags1.open(path, "wb", block_size=block_size, key_size=key_size) as stream:
            stream.write(content(size))
        km = stream.key_metadata
        made.append({"file": f"streams/{name}.ags1", "size": size, "km": km.to_bytes().hex()})
    return made


def sidecars() -> list[dict[str, Any]]:
    """Files with sidecars: under both versions of the master key, and one with two file keys."""
    made = []
    folder = WORK / "sidecars"
    folder.mkdir()
    kms = LocalKms(str(WORK / "keyring.json"))
    for name, size in (("first", 100), ("rotated", 2000)):
        if name == "rotated":
            kms.rotate_key(KEY)
        path = folder / f"{name}.ags1"
        km = ags1.encrypt_file(source(size), path)
        write_sidecar(f"{path}.keys", Keychain(kms, KEY).seal(km))
        made.append({"file": f"sidecars/{name}.ags1", "size": size})
    return made


def source(size: int) -> Path:
    path = WORK.parent / "source"
    path.write_bytes(content(size))
    return path


def ledgers() -> list[dict[str, Any]]:
    """A ledger that a bulk job has written twice: two files, of which one is replaced."""
    from pyspark.sql import SparkSession

    from ags1.spark.jobs import KmsConfig, encrypt_files

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    session = builder.config("spark.log.level", "OFF").getOrCreate()
    raw = WORK.parent / "raw"
    (raw / "below").mkdir(parents=True)
    kms = KmsConfig(
        {"encryption.kms-type": "local", "kms.local.keyring": str(WORK / "keyring.json")}
    )
    sizes = {"one.csv": 300, "below/two.csv": 4000}
    for first in (10, 300):
        for name, size in sizes.items():
            (raw / name).write_bytes(content(first if name == "one.csv" else size))
        encrypt_files(
            session, raw, WORK / "sealed", ledger=WORK / "ledger", kms=kms, key_id=KEY, cores=1
        )
    session.stop()
    files = [{"file": f"sealed/{name}.ags1", "size": size} for name, size in sizes.items()]
    return [{"ledger": "ledger", "files": files}]


def tables() -> list[dict[str, Any]]:
    """Tables of Parquet and of Avro: partitions, a deletion vector, two KEKs; and a variant."""
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import MonthTransform
    from pyiceberg.types import LongType, NestedField

    folder = WORK / "tables"
    folder.mkdir()
    catalog = load_catalog(
        "releases",
        uri=f"sqlite:///{WORK.parent}/catalog.db",
        warehouse=f"file://{folder}",
        **{"encryption.kms-type": "local", "kms.local.keyring": str(WORK / "keyring.json")},
    )
    catalog.create_namespace("db")
    made = []
    rows = pa.table(ROWS)
    for format_, length in (("parquet", "32"), ("avro", "16")):
        properties = {
            "encryption.key-id": KEY,
            "encryption.data-key-length": length,
            "write.format.default": format_,
        }
        name = f"db.{format_}"
        table = catalog.create_table(name, rows.schema, properties=properties)
        with table.update_spec() as spec:
            spec.add_field("day", MonthTransform(), "month")
        table.append(rows.slice(0, 3))
        table.append(rows.slice(3))
        table.rotate_keys()
        table.delete("id = 2")
        made.append(described(table, LEFT))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "event", VariantType()))
    table = catalog.create_table("db.variant", schema, properties={"encryption.key-id": KEY})
    event = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x11"}  # the number 17
    table.append(pa.table({"id": [1], "event": [event]}))
    made.append(described(table, [1]))
    return made


def described(table: Any, ids: list[int]) -> dict[str, Any]:
    location = table.metadata_location.removeprefix("file://")
    return {"metadata": str(Path(location).relative_to(WORK)), "ids": ids}


if __name__ == "__main__":
    sys.exit(main())
