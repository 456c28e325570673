"""How much of an answer is read, and for how long: requests' own time-out is one between two reads,
and a server that sends a byte every now and then, or never stops sending, outlasts it.

Bounds what comes from the socket, headers included, for sessions of requests that are ours. Knows
no service.
"""

from __future__ import annotations

import errno
import http.client
import io
import os
import socket
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import requests
    import requests.adapters

MAX_ANSWER_SIZE = 4 << 20


class _BoundedReader(io.RawIOBase):
    """What ``raw`` reads from a socket, up to a size and a time. A single read takes its time-out
    at most, so that the whole takes at most twice as long."""

    def __init__(self, raw: Any, timeout_s: float | None) -> None:
        self._raw = raw
        self._left = MAX_ANSWER_SIZE
        self._end_s = None if timeout_s is None else time.monotonic() + timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._end_s is not None and time.monotonic() > self._end_s:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        size: int | None = self._raw.readinto(buffer)
        self._left -= size or 0
        if self._left < 0:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


class BoundedResponse(http.client.HTTPResponse):
    """An answer of at most ``MAX_ANSWER_SIZE``, read within the socket's time-out."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        raw = self.fp.detach()
        self.fp = io.BufferedReader(_BoundedReader(raw, sock.gettimeout()))


def bounded_adapter(**options: Any) -> requests.adapters.HTTPAdapter:
    """Return requests' adapter with these ``options``, whose answers are bounded."""
    import requests.adapters
    import urllib3.connection
    import urllib3.connectionpool

    class Connection(urllib3.connection.HTTPConnection):
        response_class = BoundedResponse

    class TlsConnection(urllib3.connection.HTTPSConnection):
        response_class = BoundedResponse

    class Pool(urllib3.connectionpool.HTTPConnectionPool):
        ConnectionCls = Connection

    class TlsPool(urllib3.connectionpool.HTTPSConnectionPool):
        ConnectionCls = TlsConnection

    pools = {"http": Pool, "https": TlsPool}

    class Adapter(requests.adapters.HTTPAdapter):  # type: ignore[misc]
        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options)
            self.poolmanager.pool_classes_by_scheme = pools

        def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
            manager = super().proxy_manager_for(proxy, **options)
            if not proxy.lower().startswith("socks"):  # which has connections of its own
                manager.pool_classes_by_scheme = pools
            return manager

    return Adapter(**options)


def refuse_compressed(session: requests.Session) -> None:
    """Ask for answers as they are, and refuse others: compressed, a small one can be a huge one."""
    import requests

    def check(answer: requests.Response, **_: Any) -> None:
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            answer.close()
            raise requests.exceptions.ContentDecodingError("a compressed answer")

    session.headers["Accept-Encoding"] = "identity"
    session.hooks["response"].append(check)
