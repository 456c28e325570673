"""What earlier releases have written can still be read: ``releases/make.py`` made it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ags1
from ags1.kms import LocalKms

RELEASES = Path(__file__).parent / "releases"
VERSIONS = sorted(path.parent.name for path in RELEASES.glob("*/index.json"))


def content(size: int) -> bytes:
    return bytes(n * 7 % 251 for n in range(size))


@pytest.fixture(scope="module", params=VERSIONS)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a release wrote, with the modes that keyrings need."""
    folder = tmp_path_factory.mktemp("release") / request.param
    shutil.copytree(RELEASES / request.param, folder)
    for name in ("keyring.json", "protected.json"):
        (folder / name).chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def index(release: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((release / "index.json").read_text())
    return found


@pytest.fixture(scope="module")
def kms(release: Path) -> LocalKms:
    return LocalKms(str(release / "keyring.json"))


def test_there_is_a_release() -> None:
    assert "0.2.0" in VERSIONS


def test_streams(release: Path, index: dict[str, Any]) -> None:
    assert len(index["streams"]) >= 4
    for made in index["streams"]:
        km = ags1.KeyMetadata.from_bytes(bytes.fromhex(made["km"]))
        with ags1.open(release / made["file"], "rb", km) as stream:
            assert stream.read() == content(made["size"])


def test_keyrings(release: Path, index: dict[str, Any], kms: LocalKms) -> None:
    (key,) = kms.list_keys()
    assert (key.key_id, len(key.versions)) == (index["master_key"], 2)
    passphrase = index["passphrase"].encode()
    (protected,) = LocalKms(str(release / "protected.json"), passphrase=passphrase).list_keys()
    assert protected.versions[0] == key.versions[0]


def test_sidecars(release: Path, index: dict[str, Any], kms: LocalKms) -> None:
    from ags1.keys import Keychain

    keychain = Keychain(kms, index["master_key"])
    assert len(index["sidecars"]) >= 2
    for made in index["sidecars"]:
        path = str(release / made["file"])
        with ags1.open(path, "rb", keychain.open(f"{path}.keys", path)) as stream:
            assert stream.read() == content(made["size"])


def test_ledgers(release: Path, index: dict[str, Any], kms: LocalKms, tmp_path: Path) -> None:
    """A ledger is found by the places that its job had; its rows go into a new ledger, too."""
    pytest.importorskip("pyarrow")
    from ags1.files.ledger import open_ledger
    from ags1.files.ledger.copying import copy_rows
    from ags1.files.ledger.lookup import LedgerSidecars
    from ags1.keys import Keychain

    keychain = Keychain(kms, index["master_key"])
    for made in index["ledgers"]:
        old, new = str(release / made["ledger"]), str(tmp_path / "new")
        with open_ledger(old, writing=False) as source, open_ledger(new, writing=True) as target:
            copy_rows(source, target)
        for ledger in (old, new):
            targets = [f"{index['made_at']}/{file['file']}" for file in made["files"]]
            sidecars = LedgerSidecars(ledger).find(targets)
            for file, sidecar in zip(made["files"], sidecars, strict=True):
                assert sidecar is not None
                path = str(release / file["file"])
                with ags1.open(path, "rb", keychain.key_of(sidecar, path)) as stream:
                    assert stream.read() == content(file["size"])


def test_tables(release: Path, index: dict[str, Any], kms: LocalKms) -> None:
    pytest.importorskip("pyiceberg")
    from ags1.iceberg import open_table, verify_table

    assert len(index["tables"]) >= 3
    for made in index["tables"]:
        table = open_table(
            f"file://{release}/{made['metadata']}",
            kms=kms,
            expected_key_id=index["master_key"],
            location_map={f"file://{index['made_at']}": f"file://{release}"},
        )
        rows = table.scan().to_arrow()
        assert sorted(rows["id"].to_pylist()) == made["ids"]
        assert verify_table(table).ok
