"""No variable of an exception's frames shows a key, whatever is damaged and whatever is done.

Error reporters (Sentry, rich, ``pytest -l``) print the variables of every frame.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from iceberg_tables import unpin
from leaks import kek_bytes, keys_of_table, variables_with

import ags1
from ags1 import KeyMetadata
from ags1.files.keys import FileKeys, KmsConfig
from ags1.files.ledger import open_ledger
from ags1.files.ledger.rows import encrypted_row
from ags1.iceberg import load_catalog, verify_table
from ags1.iceberg.storage import output
from ags1.keys import Keychain, Sidecar
from ags1.kms import LocalKms

FORMATS = ("parquet", "avro")
ROWS = pa.table({"a": pa.array(range(10)), "b": ["x"] * 10})


def opened(folder: Path) -> Any:
    return load_catalog(
        "lake",
        type="sql",
        uri=f"sqlite:///{folder}/catalog.db",
        warehouse=f"file://{folder}/warehouse",
        **{"encryption.kms-type": "local", "kms.local.keyring": f"{folder}/keyring.json"},
    )


def make_tables(folder: Path) -> None:
    LocalKms(f"{folder}/keyring.json").create_key("default")
    catalog = opened(folder)
    catalog.create_namespace("db")
    for name in FORMATS:
        properties = {
            "encryption.key-id": "default",
            "write.format.default": name,
            # Else the keys in a manifest are compressed, and not found.
            "write.manifest.compression-codec": "uncompressed",
        }
        table = catalog.create_table(f"db.{name}", ROWS.schema, properties=properties)
        table.append(ROWS)
        table.append(ROWS.set_column(0, "a", pa.array(range(10, 20))))
        table.delete("a = 5")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        catalog.create_table("db.plain", ROWS.schema).append(ROWS)


OPERATIONS: dict[str, Callable[[Any], object]] = {
    "scan": lambda table: table.scan("a > 1").to_arrow(),
    "count": lambda table: table.scan("b = 'x'").count(),
    "inspect": lambda table: (table.inspect.files(), table.inspect.manifests()),
    "verify": verify_table,
    "append": lambda table: table.append(ROWS),
    "delete": lambda table: table.delete("a = 3"),
    "overwrite": lambda table: table.overwrite(ROWS, "a = 2"),
    "upsert": lambda table: table.upsert(ROWS.slice(0, 1), join_cols=["a"]),
    "compact": lambda table: table.rewrite_data_files(min_input_files=1),
    "rekey": lambda table: table.rekey(),
    "rewrap": lambda table: table.rewrap_keys(),
    "rotate": lambda table: table.rotate_keys(),
    "prune": lambda table: table.prune_keys(),
    "erase": lambda table: table.erase_deleted_rows(),
    "expire": lambda table: table.expire_snapshots(retain_last=1),
    "orphans": lambda table: table.remove_orphan_files(),
}


def changed(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def files(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.rglob(pattern) if path.is_file()]


def sealed_again(folder: Path, what: str) -> None:
    """Put other contents under the right key: as if another writer had a fault."""
    for name in FORMATS:
        table = opened(folder).load_table(f"db.{name}")
        snapshot = table.current_snapshot()
        manifests = snapshot.manifests(table.io)
        list_key = table.io.keys.manifest_list_key(snapshot.key_id)
        keys = [(m.manifest_path, m.key) for m in manifests]
        if what == "list":
            keys = [(snapshot.manifest_list, list_key)]
        for location, key in keys:
            path = Path(location.removeprefix("file://"))
            text = bytearray(ags1.decrypt(path.read_bytes(), key))
            text[-17] ^= 1  # the last byte before the block's marker
            path.write_bytes(ags1.encrypt(bytes(text), km=key, reuse_key=True).data)


def edit_keys(folder: Path, edit: Callable[[list[dict[str, Any]]], object]) -> None:
    for path in files(folder, "*.metadata.json"):
        metadata = json.loads(path.read_bytes())
        metadata["encryption-keys"] = edit(metadata.get("encryption-keys", []))
        path.write_text(json.dumps(metadata))
    unpin(opened(folder))


def with_other_bytes(entry: dict[str, Any]) -> dict[str, Any]:
    wrapped = changed(base64.b64decode(entry["encrypted-key-metadata"]))
    return {**entry, "encrypted-key-metadata": base64.b64encode(wrapped).decode()}


def every(pattern: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        found = files(folder, pattern)
        assert found
        for path in found:
            path.write_bytes(change(path.read_bytes()))

    return damage


DAMAGE: dict[str, Callable[[Path], object]] = {
    "manifest list": every("snap-*.avro", changed),
    "manifest": every("*-m*.avro", changed),
    "cut manifest list": every("snap-*.avro", lambda data: data[:-1]),
    "cut manifest": every("*-m*.avro", lambda data: data[:-1]),
    "empty manifest": every("*-m*.avro", lambda _: b""),
    "Parquet file": every("00000-*.parquet", changed),
    "Parquet pages": every("00000-*.parquet", lambda data: data[:60] + b"?" + data[61:]),
    "Avro file": every("00000-*.avro", changed),
    "deletion vector": every("*.puffin", changed),
    "metadata": every("*.metadata.json", lambda data: data[:-1]),
    "keyring": every("keyring.json", lambda data: data.replace(b'"key"', b'"kex"')),
    "keyring's key": every("keyring.json", lambda data: data.replace(b"=", b"")),
    "contents of manifests": lambda folder: sealed_again(folder, "manifests"),
    "contents of manifest lists": lambda folder: sealed_again(folder, "list"),
    "wrapped keys": lambda folder: edit_keys(
        folder, lambda keys: list(map(with_other_bytes, keys))
    ),
    "wrapped key metadata": lambda folder: edit_keys(
        folder, lambda keys: [k if "properties" in k else with_other_bytes(k) for k in keys]
    ),
    "no KEKs": lambda folder: edit_keys(
        folder, lambda keys: [key for key in keys if "properties" not in key]
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tables")
    make_tables(made)
    return made


@pytest.fixture
def keys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All keys: those of the tables, the master key, and those that the test makes."""
    found: list[bytes] = []
    for name in FORMATS:
        found += keys_of_table(opened(folder).load_table(f"db.{name}"))
    document = json.loads((folder / "keyring.json").read_bytes())
    for version in document["keys"]["default"]["versions"].values():
        found.append(base64.b64decode(version["key"]))
    generate = KeyMetadata.generate

    def noting(key_size: int = 32) -> KeyMetadata:
        made = generate(key_size)
        found.append(made.encryption_key)
        return made

    monkeypatch.setattr(KeyMetadata, "generate", noting)
    return found


@contextlib.contextmanager
def restored(folder: Path) -> Iterator[None]:
    """Put all files back afterwards."""
    kept = {path: path.read_bytes() for path in files(folder, "*")}
    try:
        yield
    finally:
        for path in files(folder, "*"):
            if path not in kept:
                path.unlink()
        for path, data in kept.items():
            path.write_bytes(data)


def failures(folder: Path, name: str, keys: list[bytes], spoil: Callable[[], object]) -> set[str]:
    """Do everything with a table after ``spoil``. Return what failed, and see that no variable of
    its frames shows a key."""
    failed: dict[str, list[str]] = {}
    for operation, do in OPERATIONS.items():
        with restored(folder):
            spoil()
            try:
                do(opened(folder).load_table(f"db.{name}"))
            except Exception as error:
                failed[operation] = variables_with(error, keys)
    assert not any(failed.values()), failed
    return set(failed)


@pytest.mark.slow_variants(r"(?!manifest list-avro|contents of manifests-parquet).*")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_tables(
    damage: Callable[[Path], object],
    name: str,
    folder: Path,
    keys: list[bytes],
    request: pytest.FixtureRequest,
) -> None:
    failed = failures(folder, name, keys, lambda: damage(folder))
    other = {"parquet": "Avro", "avro": "Parquet"}[name]
    if not request.node.callspec.id.startswith(other):
        assert {"rekey", "erase"} <= failed


@pytest.mark.slow_variants(r"(?!-m-parquet).*")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("full", ["-m", "snap-", ".metadata.json", "/data/"])
def test_a_full_disk(
    full: str, name: str, folder: Path, keys: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(output._NamedFile):
        def write(self, data: Any, /) -> int:
            if full in self.path:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    monkeypatch.setattr(output, "_NamedFile", Full)
    failed = failures(folder, name, keys, lambda: None)
    assert failed
    with restored(folder), pytest.raises(OSError, match="No space left") as caught:
        opened(folder).migrate_table("db.plain", "default")
    assert variables_with(caught.value, keys) == []


def test_a_loose_file(folder: Path, tmp_path: Path) -> None:
    """Each byte of a file and of its sidecar is changed, and the file is opened, or its key is
    wrapped again."""
    keychain = Keychain(LocalKms(f"{folder}/keyring.json"))
    sealed, km = ags1.encrypt(b"text")
    file, sidecar = tmp_path / "a.ags1", tmp_path / "a.ags1.keys"
    stored = keychain.seal(km).to_bytes()
    shown = []
    for path, data in ((file, sealed), (sidecar, stored)):
        for at in range(0, len(data), 5):
            file.write_bytes(sealed)
            sidecar.write_bytes(stored)
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            for work in (
                lambda: ags1.decrypt(file.read_bytes(), keychain.open(str(sidecar), str(file))),
                lambda: Keychain(LocalKms(f"{folder}/keyring.json")).rewrap(
                    str(sidecar), "default"
                ),
            ):
                try:
                    work()
                except ags1.Ags1Error as error:
                    shown.append(variables_with(error, [km.encryption_key]))
    assert len(shown) > 50
    assert not any(shown)


def test_a_ledger_of_jobs(folder: Path, tmp_path: Path) -> None:
    """Bytes of a file and of its wrapped key in a ledger are changed, and the file is read, or its
    key is unwrapped as a job does."""
    keyring = f"{folder}/keyring.json"
    kms = KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": keyring})
    job = FileKeys.for_sealing(kms, "default")
    sealed, km = ags1.encrypt(b"text")
    sidecar = Sidecar.from_bytes(json.dumps(job.wrap(km)).encode())
    assert job.kek is not None
    keys = [km.encryption_key, kek_bytes(job.unwrap_kek(job.kek))]
    file = tmp_path / "a.ags1"
    row = encrypted_row(str(file), file.name, len(sealed), sidecar, "0123456789ab")
    stored = (row.key_metadata or "").encode()
    shown = []
    for changes_file, data in ((True, sealed), (False, stored)):
        for at in range(0, len(data), 41):
            damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            text = (stored if changes_file else damaged).decode()
            file.write_bytes(damaged if changes_file else sealed)
            ledger = f"{tmp_path}/{changes_file}-{at}"
            with open_ledger(ledger, writing=True) as written:
                rows = [row._replace(key_metadata=text)]
                written.settle(written.prepare(rows), rows)
            options = {"ledger": ledger, "keyring": keyring, "skip_instance_cache": True}
            read = fsspec.filesystem("ags1", target_protocol="file", **options).cat_file
            for work in (
                functools.partial(read, str(file)),
                functools.partial(FileKeys.for_opening(kms).unwrap, text),
                functools.partial(FileKeys.for_opening(kms).check, [text]),
            ):
                try:
                    work()
                except ags1.Ags1Error as error:
                    shown.append(variables_with(error, keys))
    assert len(shown) > 20
    assert not any(shown), shown
