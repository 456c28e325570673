"""Endpoints without TLS: what is allowed there, the same for every client that takes one.

Keys cross such a connection in the clear. One to this machine is for emulators and tests; one to
anywhere else gets a warning that is hard to overlook. Knows no service.
"""

from __future__ import annotations

import contextlib
import ipaddress
from urllib.parse import urlsplit

from ..errors import KmsConfigurationError


class InsecureEndpointWarning(UserWarning):
    """Keys and credentials go to a KMS whose identity is not checked, or in the clear."""


def crosses_the_network(url: str) -> bool:
    """Whether ``url`` is http and of another machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def through_a_proxy(where: str) -> KmsConfigurationError:
    """Return the error for an endpoint that a proxy would get the keys of."""
    return KmsConfigurationError(
        f"a proxy is configured for {where}, which is not https: it would see the keys; name the "
        "host in NO_PROXY"
    )
