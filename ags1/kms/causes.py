"""Why a service could not be asked: the cause at the bottom of an exception of requests, botocore,
google-auth or azure-core. Independent of any service.

Exceptions of these libraries may contain the request with its key. So no text of theirs is quoted
but OpenSSL's reasons and the names of files.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

_ANOTHER_HOST = (
    "the server's certificate is not valid for the host that the address names: give a name that "
    "the certificate has"
)
# X509_V_ERR_* of OpenSSL's x509_vfy.h.
_CERTIFICATES = {
    9: "the server's certificate is not yet valid: is the clock of this machine right?",
    10: "the server's certificate has expired: renew it on the server",
    62: _ANOTHER_HOST,
    64: _ANOTHER_HOST,
}
# A server that demands a client certificate may do so before its reason is read.
ENDED = "the server ended the connection"
_NO_TLS = "what answers there does not speak TLS: is the address one of http: or of another port?"
_CLIENT_CERTIFICATE = "the server demands a client certificate, and accepts none or not this one"
# Parts of OpenSSL's reasons.
_REASONS = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "HTTP_REQUEST": _NO_TLS,
    "PACKET_LENGTH_TOO_LONG": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "CERTIFICATE_REQUIRED": _CLIENT_CERTIFICATE,
    "ALERT_BAD_CERTIFICATE": _CLIENT_CERTIFICATE,
    "ALERT_UNKNOWN_CA": _CLIENT_CERTIFICATE,
    "ALERT_HANDSHAKE_FAILURE": "the server refuses the TLS connection: it may demand a client "
    "certificate, or other versions and ciphers of TLS",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """``is_local``: nothing but a change of the configuration helps (a file, an address, a
    certificate, a proxy). Otherwise the service may answer later."""

    text: str
    is_local: bool


def cause_of(error: BaseException, trust: str) -> Cause | None:
    """Return why a connection failed; None if nothing below ``error`` says so. ``trust`` says how
    to name the authority of a certificate."""
    for one in reversed(list(below(error))):
        if cause := _cause(one, trust):
            return cause
    return None


def _cause(error: BaseException, trust: str) -> Cause | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        untrusted = f"the server's certificate is not trusted ({error.verify_message}): {trust}"
        return Cause(_CERTIFICATES.get(error.verify_code, untrusted), True)
    if type(error).__name__ == "CertificateError":  # urllib3's own
        return Cause(_ANOTHER_HOST, True)
    if isinstance(error, (ssl.SSLEOFError, ConnectionError)) and error.errno != errno.ECONNREFUSED:
        return Cause(ENDED, False)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        for part, text in _REASONS.items():
            if part in reason:
                return Cause(text, True)
        return Cause(f"the TLS connection failed ({reason})", False) if reason else None
    if isinstance(error, socket.gaierror) or type(error).__name__ == "NameResolutionError":
        return Cause("its name is not known", False)
    if type(error).__name__ in ("InvalidSchema", "InvalidProxyURL", "ProxySchemeUnknown"):
        # The addresses of services are checked before, so it is the proxy's.
        return Cause(
            "the proxy that HTTPS_PROXY or ALL_PROXY names cannot be used: SOCKS needs the package "
            "PySocks (pip install pysocks), and other proxies an address http://host:port",
            True,
        )
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        why = os.strerror(error.errno)
        if isinstance(error.filename, str):
            return Cause(f"cannot read {error.filename}: {why}", True)
        return Cause(why, False)
    return None


def below(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error`` and the exceptions that led to it. The libraries keep them as causes,
    arguments or attributes."""
    seen: list[BaseException] = []
    waiting: list[BaseException] = [error]
    while waiting:
        one = waiting.pop(0)
        if any(one is other for other in seen):
            continue
        seen.append(one)
        yield one
        kept = getattr(one, "kwargs", None)
        inner = [
            *(one.__cause__, one.__context__, getattr(one, "reason", None)),
            *(getattr(one, "inner_exception", None), *one.args),
            kept.get("error") if isinstance(kept, dict) else None,
        ]
        waiting.extend(each for each in inner if isinstance(each, BaseException))
