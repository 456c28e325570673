"""The address of a service: its form, and what is allowed without TLS.

Without TLS, keys cross the connection unencrypted. A connection to this machine may do without, for
emulators and tests. One to another machine is refused, unless a property allows it. Knows no
service.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import urllib.request
from urllib.parse import urlsplit

from ..errors import KmsConfigurationError
from .properties import Properties, warn_user
from .secret import discreet

ALLOW_PLAINTEXT_HTTP = "kms.allow-plaintext-http"

_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f.]*:[0-9a-f:.]*")


class InsecureEndpointWarning(UserWarning):
    """Keys and credentials go to a KMS whose identity is not checked, or unencrypted."""


def is_allowed(properties: Properties) -> bool:
    """Return whether ``kms.allow-plaintext-http`` is true, of which it warns."""
    allowed = properties.flag(ALLOW_PLAINTEXT_HTTP, default=False)
    if allowed:
        warn_user(
            f"{ALLOW_PLAINTEXT_HTTP} is true: keys and credentials may cross the network "
            "unencrypted, to whoever answers",
            InsecureEndpointWarning,
        )
    return allowed


@discreet
def checked_url(name: str, url: str, *, allowed: bool, form: str = "https://host:port") -> str:
    """Return an address without a slash at its end, its host in small letters. ``name`` is what
    gave it, and ``form`` shows whether there may be a path. Raises KmsConfigurationError, which
    does not quote the address: it may hold a password. For http see ``check``."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise KmsConfigurationError(f"{name} is not of the form {form}") from None
    if "@" in parts.netloc:
        raise KmsConfigurationError(f"{name} may not hold credentials")
    path = parts.path.rstrip("/")
    if (
        parts.scheme not in ("http", "https")
        or not _HOST.fullmatch(host)
        or port == 0
        or (path and not form.endswith("/path"))
        or not re.fullmatch(r"[\x21-\x7e]+", url)  # urlsplit drops line breaks
        or not {"?", "#"}.isdisjoint(url)
    ):
        raise KmsConfigurationError(f"{name} is not of the form {form}")
    check(url, allowed=allowed)
    return f"{parts.scheme}://{parts.netloc.lower()}{path}"


def check(url: str, *, allowed: bool) -> None:
    """Raise KmsConfigurationError if ``url`` is http to another machine, and not ``allowed``."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not allowed and not _is_loopback(parts.hostname or ""):
        raise KmsConfigurationError(
            f"{shown(url)} is not https: keys would cross the network unencrypted; give an https "
            f"address, or allow it with {ALLOW_PLAINTEXT_HTTP!r} = 'true'"
        )


def check_proxy(url: str) -> None:
    """Raise KmsConfigurationError if ``url`` is http and a proxy would get its keys."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    if (
        parts.scheme == "http"
        and (proxies.get("http") or proxies.get("all"))
        and not urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2])
    ):
        raise KmsConfigurationError(
            f"a proxy is configured for {shown(url)}, which is not https: it would see the keys; "
            "name the host in NO_PROXY"
        )


def shown(url: str) -> str:
    """Return an address without the credentials that it may contain."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")
