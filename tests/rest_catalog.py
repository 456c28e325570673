"""A REST catalog in memory, on 127.0.0.1: what a server does with updates, requirements and keys.

It applies updates as our own code does, to whatever is current, and can be told to fail. Knows
nothing of files.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from ags1.iceberg.commit.new_table import new_table_updates
from ags1.iceberg.commit.updates import apply_updates
from ags1.iceberg.spec.requirements import check_requirements
from ags1.keys.manager import now_ms

Update = dict[str, Any]


class Rest(ThreadingHTTPServer):
    """A REST server with tables in memory, which does what ``faults`` say to the next commits:
    ``("before" or "after" the commit, a status to answer or None for no answer at all)``."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), RestRequest)
        self.folder = folder
        self.tables: dict[str, tuple[dict[str, Any], str]] = {}
        self.faults: list[tuple[str, int | None]] = []
        self.requests: list[list[str]] = []
        self.required: list[Update] = []  # by the last of them
        self.keeps_keys = True
        self.forgets: list[str] = []  # a key for each of the next commits
        self.may_load = True
        self.now_ms: int | None = None
        self.on_commit: Callable[[], None] | None = None
        self.lock = threading.Lock()

    def serve_forever(self, poll_interval: float = 0.01) -> None:
        """Serve, and end at once when told to: by itself, ``shutdown`` takes half a second."""
        super().serve_forever(poll_interval)

    def commit(self, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.requests.append([update["action"] for update in body["updates"]])
        first, self.on_commit = self.on_commit, None
        if first is not None:
            first()
        with self.lock:
            metadata = self.tables[name][0] if name in self.tables else None
            try:
                check_requirements(metadata, body["requirements"])
            except CommitFailedException as error:
                return 409, failure(409, error)
            try:
                metadata = apply_updates(metadata, body["updates"], now_ms=self.now_ms or now_ms())
            except (ValueError, CommitFailedException) as error:
                return 400, failure(400, error)
            if not self.keeps_keys:
                metadata.pop("encryption-keys", None)
            if self.forgets:
                gone = self.forgets.pop(0)
                keys = metadata["encryption-keys"]
                metadata["encryption-keys"] = [key for key in keys if key["key-id"] != gone]
            location = f"{metadata['location']}/metadata/{uuid.uuid4()}.metadata.json"
            self.tables[name] = metadata, location
        return 200, {"metadata": metadata, "metadata-location": location}


def failure(status: int, error: object) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": "Failure", "code": status}}


class RestRequest(BaseHTTPRequestHandler):
    server: Rest

    def do_GET(self) -> None:
        *_, kind, name = self.path.rstrip("/").split("/")
        if kind == "tables":
            if not self.server.may_load:
                self.answer(503, failure(503, "busy"))
            elif name in self.server.tables:
                metadata, location = self.server.tables[name]
                self.answer(200, {"metadata": metadata, "metadata-location": location})
            else:
                self.answer(404, failure(404, "no such table"))
        else:
            self.answer(200, {"defaults": {}, "overrides": {}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/namespaces"):
            self.answer(200, {"namespace": body["namespace"], "properties": {}})
            return
        if self.path.endswith("/tables"):
            assert body["stage-create"]
            location = body.get("location") or f"file://{self.server.folder}/{body['name']}"
            metadata = apply_updates(
                None,
                new_table_updates(
                    Schema.model_validate(body["schema"]),
                    UNPARTITIONED_PARTITION_SPEC,
                    UNSORTED_SORT_ORDER,
                    location,
                    body["properties"],
                ),
                now_ms=1,
            )
            self.answer(200, {"metadata": metadata, "config": {"token": "of-the-table"}})
            return
        self.server.required = body["requirements"]
        when, status = self.server.faults.pop(0) if self.server.faults else ("never", None)
        if when != "before":
            answer = self.server.commit(self.path.rpartition("/")[2], body)
        if when == "never":
            self.answer(*answer)
        elif status is not None:
            self.answer(status, failure(status, "told to"))

    def do_DELETE(self) -> None:
        del self.server.tables[self.path.rpartition("/")[2].partition("?")[0]]
        self.answer(204, None)

    def answer(self, status: int, body: object) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass
