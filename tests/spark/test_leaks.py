"""No key is in anything that Spark shows or stores of a job: event log, REST API, plans, logs,
exceptions, temporary files, and what was sent to tasks."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from leaks import found_in, kek_bytes, keys_of_table, master_key

import ags1
from ags1.files.keys import FileKeys, KmsConfig
from ags1.files.ledger import ENCRYPT, open_ledger
from ags1.iceberg import load_catalog
from ags1.keys import Keychain, read_sidecar, write_sidecar
from ags1.keys.envelope import KeyEncryptionKey
from ags1.keys.sidecar import Sidecar
from ags1.kms import LocalKms

pytestmark = pytest.mark.spark


def test_no_key_is_shown_or_stored(tmp_path: Path, keyring: Path) -> None:
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("java is not on this machine")
    kms = LocalKms(str(keyring))
    keychain = Keychain(kms)
    keys: list[bytes] = []
    for name in ("sealed", "damaged"):
        (tmp_path / name).mkdir()
        (tmp_path / "plain").mkdir(exist_ok=True)
        plain = tmp_path / "plain" / f"{name}.txt"
        plain.write_bytes(b"".join(b"line %d of %s\n" % (n, name.encode()) for n in range(5000)))
        target = tmp_path / name / "lines"
        km = ags1.encrypt_file(plain, target, block_size=4096)
        write_sidecar(f"{target}.keys", keychain.seal(km))
        keys.append(km.encryption_key)
    damaged = bytearray((tmp_path / "damaged" / "lines").read_bytes())
    damaged[20_000] ^= 1
    (tmp_path / "damaged" / "lines").write_bytes(damaged)
    catalog = load_catalog(
        "leaks",
        type="sql",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        warehouse=f"file://{tmp_path}/warehouse",
        **{"encryption.kms-type": "local", "kms.local.keyring": str(keyring)},
    )
    catalog.create_namespace("db")
    rows = pa.table({"id": pa.array(range(100), pa.int64()), "s": ["text"] * 100})
    table = catalog.create_table("db.t", rows.schema, properties={"encryption.key-id": "default"})
    table.append(rows)
    table.delete("id = 5")  # type: ignore[attr-defined]

    script = Path(__file__).with_name("leak_job.py")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, script.parents[1:3]))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(keyring)],
        env=environment,
        capture_output=True,
        timeout=800,
        check=False,
    )

    shown = tmp_path / "shown"
    (shown / "stdout").write_bytes(done.stdout)
    (shown / "stderr").write_bytes(done.stderr)
    assert done.returncode == 0, done.stderr[-3000:].decode()
    assert b"AuthenticationError" in (shown / "texts").read_bytes()
    assert (shown / "api").stat().st_size > 10_000
    assert sum(path.stat().st_size for path in (shown / "events").rglob("*")) > 10_000
    keys += keys_of_files(tmp_path, keychain, kms)
    keys += keys_of_table(catalog.load_table("db.t"))
    for ledger in ("ledger", "ledger-of-rows"):
        keys += keys_of_ledger(tmp_path / ledger, keyring)
    keys += [master_key(kms, name) for name in ("default", "other")]
    assert len(keys) >= 22
    assert len(set(keys)) == len(keys)
    assert found_in(shown, keys) == []
    # The search finds what there is.
    (shown / "planted").write_text(f"x{base64.b64encode(b'..' + keys[0] + b'..').decode()}")
    assert found_in(shown, keys) != []


def keys_of_files(folder: Path, keychain: Keychain, kms: LocalKms) -> list[bytes]:
    """The keys of the files that Spark wrote, and the KEKs of all sidecars."""
    written = [path for path in (folder / "written").iterdir() if path.suffix != ".keys"]
    keys = [keychain.open(f"{path}.keys", str(path)).encryption_key for path in written]
    for path in (folder / "sealed" / "lines", written[0]):
        for entry in read_sidecar(f"{path}.keys").kek_entries:
            keys.append(kek_bytes(KeyEncryptionKey.unwrap(kms, entry)))
    return keys


def keys_of_ledger(folder: Path, keyring: Path) -> list[bytes]:
    """The keys of the files that a job encrypted, and its KEK."""
    config = KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": str(keyring)})
    keys = FileKeys.for_opening(config)
    found: dict[bytes, None] = {}
    with open_ledger(str(folder), writing=False) as ledger:
        for row in ledger.done(ENCRYPT).values():
            assert row.key_metadata is not None
            found[keys.unwrap(row.key_metadata).encryption_key] = None
            for entry in Sidecar.from_bytes(row.key_metadata.encode()).kek_entries:
                found[kek_bytes(keys.unwrap_kek(entry))] = None
    return list(found)
