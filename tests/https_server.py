"""A small HTTP server with TLS at 127.0.0.1 for tests of clients: it records what it was sent, and
gives queued answers (faults) before its own.

An authority of the server's own, whose ``certificate`` a client has to trust, has signed its
certificate; ``trusting`` has requests do so, as with a company's CA, through
``REQUESTS_CA_BUNDLE``. Independent of KMSs.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import ssl
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Request:
    """The names of ``headers`` are in small letters."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]


@dataclass(frozen=True)
class Answer:
    """``stall_s`` is waited first, or until the server stops; ``drop`` closes the connection."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    stall_s: float = 0
    drop: bool = False


_TRUST = ("REQUESTS_CA_BUNDLE", "NO_PROXY", "no_proxy")
GARBAGE = b"<html><body>Please log in to the hotel's network</body></html>"
HTML = {"Content-Type": "text/html"}


class Server:
    """Answers requests by ``answer``, which a subclass has. ``faults`` are given first, one a
    request; a fault may also be a function of the request, None meaning the usual answer.

    ``days`` is when the certificate is valid, from now, and ``host`` is whose it is. With
    ``wants_certificate``, the server demands a certificate of the client."""

    def __init__(
        self,
        *,
        tls: bool = True,
        days: tuple[int, int] = (-1, 2),
        host: str = "127.0.0.1",
        wants_certificate: bool = False,
    ) -> None:
        self.requests: list[Request] = []
        self.faults: deque[Answer | Callable[[Request], Answer | None]] = deque()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._folder = tempfile.TemporaryDirectory()
        self.certificate = os.path.join(self._folder.name, "certificate.pem")
        self._httpd = _Httpd(("127.0.0.1", 0), _handler_of(self))
        if tls:
            self.chain, self.key = (
                os.path.join(self._folder.name, name) for name in ("chain.pem", "key.pem")
            )
            _make_certificates(self.certificate, self.chain, self.key, days, host)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.chain, self.key)
            if wants_certificate:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(self.certificate)
            # The handshake is the handler thread's, not the accepting one's.
            self._httpd.socket = context.wrap_socket(
                self._httpd.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._httpd.server_address[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._httpd.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def answer(self, request: Request) -> Answer:
        raise NotImplementedError

    def stop(self) -> None:
        self._stopped.set()
        self._httpd.shutdown()
        self._httpd.server_close()
        self._thread.join()
        self._folder.cleanup()

    def handle(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            fault = self.faults.popleft() if self.faults else None
        given = fault(request) if callable(fault) else fault
        if given is None:
            with self._lock:
                return self.answer(request)
        self._stopped.wait(given.stall_s)
        return given


@contextlib.contextmanager
def trusting(server: Server) -> Iterator[None]:
    """Have requests trust the server's certificate meanwhile, in this process and its children."""
    before = {name: os.environ.get(name) for name in _TRUST}
    os.environ |= dict(zip(_TRUST, (server.certificate, "127.0.0.1", "127.0.0.1"), strict=True))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class _Httpd(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away, or does not trust the certificate


def _handler_of(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body are two writes: without this, 40 ms apart.
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = server.handle(Request(self.command, self.path, headers, body))
            if answer.drop:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in ({"Content-Type": "application/json"} | answer.headers).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    return Handler


def _make_certificates(ca: str, chain: str, key: str, days: tuple[int, int], host: str) -> None:
    """Write the certificate of an authority, and a server's certificate and key."""
    authority, signing = _certificate("ags1 test authority", (-20, 20), None, None)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    own, private = _certificate("ags1 test server", days, names, (authority, signing))
    for path, certificate in ((ca, authority), (chain, own)):
        with open(path, "wb") as file:
            file.write(certificate.public_bytes(serialization.Encoding.PEM))
    with open(key, "wb") as file:
        file.write(
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


def _certificate(
    name: str,
    days: tuple[int, int],
    names: x509.SubjectAlternativeName | None,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    above = key.public_key() if issuer is None else issuer[1].public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(above), False)
    )
    if names is not None:
        builder = builder.add_extension(names, False)
    return builder.sign(key if issuer is None else issuer[1], hashes.SHA256()), key
