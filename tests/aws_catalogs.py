"""AWS Glue and DynamoDB on this machine, as catalogs: moto's server, on a free port of 127.0.0.1.

moto ignores the version that an UpdateTable of Glue names, and answers requests at once that have
to be answered one after the other. So the server here does both: one request at a time, and a
refusal if the version is not the current one, as Glue documents it. It can be told to fail.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from aws_server import ACCOUNT, REGION
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

# The requests that commit something.
COMMITS = (
    "AWSGlue.CreateTable",
    "AWSGlue.UpdateTable",
    "DynamoDB_20120810.PutItem",
    "DynamoDB_20120810.UpdateItem",
    "DynamoDB_20120810.TransactWriteItems",
)


class Aws:
    """The server as a WSGI application. ``faults`` are what happens to the next commits:
    ``("before" or "after" one is made, the error that is answered or None for no answer)``."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import (
            DomainDispatcherApplication,
            create_backend_app,
        )

        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.RLock()
        self.checks_versions = True
        self.faults: list[tuple[str, str | None]] = []
        self.on_commit: Callable[[], None] | None = None  # before the next one
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.url = ""

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = BytesIO(body)
        action = environ.get("HTTP_X_AMZ_TARGET", "")
        commits = action in COMMITS
        if commits:
            first, self.on_commit = self.on_commit, None
            if first is not None:
                first()
        with self._lock:
            if commits:
                self.requests.append((action, json.loads(body)))
            when, error = self.faults.pop(0) if commits and self.faults else ("never", None)
            if when == "before":
                return failed(error, environ, start)
            if action == "AWSGlue.UpdateTable" and self.checks_versions:
                asked = json.loads(body)
                if asked.get("VersionId", current := version(asked)) != current:
                    return failed("ConcurrentModificationException", environ, start)
            if when == "never":
                return list(self._moto(environ, start))
            answered: list[str] = []
            list(self._moto(environ, lambda status, *more: answered.append(status)))
            assert answered[0].startswith("200"), answered
            return failed(error, environ, start)


def failed(error: str | None, environ: dict[str, Any], start: Any) -> list[bytes]:
    if error is None:
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionAbortedError("told to")
    status = "500 Error" if error.startswith("Internal") else "400 Error"
    body = json.dumps({"__type": error, "message": "told to"}).encode()
    start(status, [("Content-Type", "application/x-amz-json-1.1"), ("x-amzn-errortype", error)])
    return [body]


def version(asked: dict[str, Any]) -> str | None:
    """The version of the table that an UpdateTable names."""
    from moto.core.exceptions import ServiceException
    from moto.glue.models import glue_backends

    glue = glue_backends[ACCOUNT][REGION]
    try:
        table = glue.get_table(asked["DatabaseName"], asked["TableInput"]["Name"])
    except ServiceException:
        return asked.get("VersionId")  # moto will say that it is not there
    return str(table.as_dict()["VersionId"])


class Quiet(WSGIRequestHandler):
    def log(self, *arguments: object) -> None:
        pass


def aws_catalog_server(aws: Aws) -> BaseWSGIServer:
    """Return a server whose ``serve_forever`` answers with ``aws``, in this process or a child."""
    server = make_server("127.0.0.1", 0, aws, threaded=True, request_handler=Quiet)
    aws.url = f"http://127.0.0.1:{server.server_port}"
    return server


@contextmanager
def aws_catalogs() -> Iterator[Aws]:
    """Run a server without tables in this process."""
    from moto.dynamodb.models import dynamodb_backends
    from moto.glue.models import glue_backends

    # moto keeps what earlier servers of this process had.
    for backend in (*glue_backends.values(), *dynamodb_backends.values()):
        backend.reset()
    aws = Aws()
    server = aws_catalog_server(aws)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield aws
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def environment(url: str) -> dict[str, str]:
    """The environment of clients. PyIceberg has no property for the endpoint of DynamoDB."""
    return {"AWS_ENDPOINT_URL_DYNAMODB": url, "AWS_EC2_METADATA_DISABLED": "true"}


def properties(kind: str, url: str, warehouse: str) -> dict[str, str]:
    """The properties of a ``glue`` or ``dynamodb`` catalog."""
    return {
        "type": kind,
        "warehouse": warehouse,
        f"{kind}.region": REGION,
        f"{kind}.access-key-id": "testing",
        f"{kind}.secret-access-key": "testing",
        **({"glue.endpoint": url} if kind == "glue" else {}),
    }
