"""``ags1.spark.session`` in a process of its own, where Spark takes the jars when it starts, and
with a server of Spark Connect. No key is in anything that Spark shows or stores of the session."""

from __future__ import annotations

import base64
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from connect_server import connect_server
from leaks import found_in, keys_of_table, master_key

from ags1.iceberg import EncryptedCatalog, EncryptedTable, load_catalog, verify_table
from ags1.kms import LocalKms
from ags1.kms.local import create_key

from . import jars

pytestmark = pytest.mark.interop

TESTS = Path(__file__).parents[1]
TOKEN = "a-token-that-nobody-may-see"
PASSPHRASE = b"a passphrase that nobody may see"
ROWS = [[1, "UA"], [2, "DL"], [3, "UA"], [5, "XX"], [9, "WN"]]


class Lake:
    """A catalog in SQLite, with a keyring under a passphrase, and two tables in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        keyring, secret = folder / "keyring.json", folder / "passphrase"
        secret.touch(mode=0o600)
        secret.write_bytes(PASSPHRASE)
        create_key(str(keyring), "default", passphrase=PASSPHRASE)
        self.kms = LocalKms(str(keyring), str(secret))
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
            "encryption.kms-type": "local",
            "kms.local.keyring": str(keyring),
            "kms.local.passphrase-file": str(secret),
            "encryption.trusted-key-ids": "default",
            "encryption.require-encrypted": "true",
        }
        self.catalog: EncryptedCatalog = load_catalog("lake", **self.properties)
        self.catalog.create_namespace("db")
        rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "carrier": ["UA", "AA", "UA"]})
        for name in ("t", "damaged"):
            encrypted = {"encryption.key-id": "default", "write.format.default": "avro"}
            table = self.catalog.create_table(f"db.{name}", rows.schema, properties=encrypted)
            table.append(rows)
        (file,) = (folder / "warehouse" / "db" / "damaged" / "data").rglob("*.avro")
        file.write_bytes(file.read_bytes()[:-1])

    def table(self, name: str) -> EncryptedTable:
        loaded = self.catalog.load_table(f"db.{name}")
        assert isinstance(loaded, EncryptedTable)
        return loaded

    def run(self, url: str | None, tokens: dict[str, str] | None = None, **more: str) -> None:
        """Run the program, and check what it leaves."""
        names = ("spark-runtime", "sqlite")
        job = {
            "lake": self.properties,
            "tokens": tokens,
            "url": url,
            "jars": [str(jars.jar(name)) for name in names],
        }
        (self.folder / "job.json").write_text(json.dumps(job))
        done = subprocess.run(
            [sys.executable, "-m", "interop.session_job", str(self.folder)],
            cwd=self.folder,
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
                **more,
            },
            capture_output=True,
            timeout=800,
            check=False,
        )
        (self.folder / "shown").mkdir(exist_ok=True)
        (self.folder / "shown" / "stdout").write_bytes(done.stdout)
        (self.folder / "shown" / "stderr").write_bytes(done.stderr)
        assert done.returncode == 0, done.stderr[-3000:].decode()
        assert json.loads(done.stdout.decode().splitlines()[-1]) == ROWS
        for name in ("t", "made"):
            table = self.table(name)
            read = table.scan().to_arrow().sort_by("id").to_pylist()
            assert [list(row.values()) for row in read] == ROWS
            assert not [f for f in verify_table(table).findings if f.severity != "note"]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    jars.plugin()
    jars.pyspark_jars()
    jars.program("java")
    made = Lake(tmp_path)
    yield made
    made.catalog.close()


def test_nothing_secret_is_shown(lake: Lake) -> None:
    with rest_catalog() as (uri, authorized):
        rest = {"type": "rest", "uri": uri, "token": TOKEN, "encryption.kms-type": "local"}
        lake.run(None, rest, PYICEBERG_CATALOG__TOKENS__TOKEN=TOKEN)
    assert authorized == {f"Bearer {TOKEN}"}
    shown = lake.folder / "shown"
    texts = (shown / "texts").read_text()
    assert "is truncated" in texts
    assert "== Physical Plan ==" in texts
    assert (shown / "api").stat().st_size > 10_000
    assert sum(path.stat().st_size for path in (shown / "events").rglob("*")) > 10_000
    keys = [master_key(lake.kms, "default"), PASSPHRASE, TOKEN.encode()]
    for name in ("t", "made"):
        keys += keys_of_table(lake.table(name))
    assert len(keys) > 20
    assert found_in(shown, keys) == []
    # The search finds what there is.
    (shown / "planted").write_text(f"x{base64.b64encode(b'..' + keys[0] + b'..').decode()}")
    assert found_in(shown, keys) != []


def test_a_session_of_spark_connect(lake: Lake) -> None:
    pytest.importorskip("grpc")
    from ags1.spark.sql_session import EXTENSIONS, conf

    files = [jars.plugin(), *map(jars.jar, ("spark-runtime", "sqlite"))]
    settings = {"spark.jars": ",".join(map(str, files))}
    # The client adds the catalog.
    settings[EXTENSIONS] = conf("lake", lake.properties)[EXTENSIONS]
    with connect_server(settings) as server:
        lake.run(server.url)


@contextmanager
def rest_catalog() -> Iterator[tuple[str, set[str | None]]]:
    """A catalog with a namespace; its URI, and what clients have authorized themselves with."""
    authorized: set[str | None] = set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            authorized.add(self.headers["Authorization"])
            is_config = self.path.startswith("/v1/config")
            answer: Any = {"defaults": {}, "overrides": {}}
            body = json.dumps(answer if is_config else {"namespaces": [["named"]]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", authorized
    finally:
        server.shutdown()
        server.server_close()
