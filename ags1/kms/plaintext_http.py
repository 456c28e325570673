"""Endpoints without TLS, the same rules for every client that takes one.

Keys cross such a connection unencrypted. One to this machine is for emulators and tests. One to
another machine is refused unless a property allows it. Knows no service.
"""

from __future__ import annotations

import contextlib
import ipaddress
import urllib.request
from urllib.parse import urlsplit

from ..errors import KmsConfigurationError
from .properties import Properties, warn_user

ALLOW_PLAINTEXT_HTTP = "kms.allow-plaintext-http"


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
    """Return an address without the credentials that may stand in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")
