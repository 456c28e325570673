"""An S3 server on this machine that answers each request late, as a distant one does, and counts
the requests. It is moto's, in a process of its own."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

BUCKET = "bench"


class ObjectStore:
    """A server with the bucket ``BUCKET``. ``properties`` are those of a catalog. Each request is
    answered after ``delay`` seconds, but not in a block of ``at_once``."""

    def __init__(self, delay: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._delay = context.Value("d", 0.0)
        self._requests = context.Value("q", 0)
        here, there = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_serve, args=(self._delay, self._requests, there), daemon=True
        )
        self._process.start()
        self.properties = {
            "s3.endpoint": f"http://127.0.0.1:{here.recv()}",
            "s3.access-key-id": "id",
            "s3.secret-access-key": "secret",
            "s3.region": "us-east-1",
            "s3.force-virtual-addressing": "false",
        }
        self._make_bucket()
        self._delay.value = delay

    def _make_bucket(self) -> None:
        from pyarrow.fs import S3FileSystem

        S3FileSystem(
            endpoint_override=self.properties["s3.endpoint"],
            access_key="id",
            secret_key="secret",
            region="us-east-1",
            allow_bucket_creation=True,
        ).create_dir(BUCKET)

    @property
    def requests(self) -> int:
        """How many requests were made so far."""
        count: int = self._requests.value
        return count

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Answer at once, for what is not measured."""
        delay, self._delay.value = self._delay.value, 0.0
        try:
            yield
        finally:
            self._delay.value = delay

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.join()


def _serve(delay: Any, requests: Any, ready: Connection) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    moto = DomainDispatcherApplication(create_backend_app)

    def late(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with requests.get_lock():
            requests.value += 1
        time.sleep(delay.value)
        answer: Iterable[bytes] = moto(environ, start)
        return answer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, late, threaded=True)
    ready.send(server.server_port)
    server.serve_forever()
