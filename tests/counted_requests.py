"""Counts the requests to a server of this machine, and delays each, as a distant store does."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Requests:
    """The requests to ``url`` by their method; ``most`` ran at the same time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.made: Counter[str] = Counter()
        self.running = self.most = 0


@contextmanager
def counted_requests(endpoint: str, delay: float = 0) -> Iterator[Requests]:
    """Yield the requests to a proxy of ``endpoint`` that answers each after ``delay`` seconds."""
    target = urlsplit(endpoint).netloc
    local = threading.local()
    lock = threading.Lock()

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            with lock:
                requests.made[self.command] += 1
                requests.running += 1
                requests.most = max(requests.most, requests.running)
            body = self._body()
            time.sleep(delay)
            if not hasattr(local, "connection"):
                local.connection = http.client.HTTPConnection(target)
            names = ("transfer-encoding", "content-length", "expect", "connection")
            headers = {n: v for n, v in self.headers.items() if n.lower() not in names}
            local.connection.request(self.command, self.path, body, headers)
            answer = local.connection.getresponse()
            content = answer.read()
            with lock:
                requests.running -= 1
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            length = answer.getheader("content-length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding", "") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length", 0)))
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(chunks)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    requests = Requests(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
