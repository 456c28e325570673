"""The file system of fsspec that a URL means. URLs with passwords, signatures or other URLs in them
are refused. Needs fsspec, which is optional."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from typing import Any

from ..errors import Ags1Error, KmsConfigurationError
from ..kms.properties import Properties

_SIGNATURE = re.compile(r"[?&](x-\w+-)?(signature|security-token)=", re.IGNORECASE)
# How many requests a process sends to S3 at a time at most; botocore keeps 10 connections.
_CONNECTIONS = 48
# What fsspec takes for a URL inside another URL: two colons behind a scheme or a host.
_CHAIN = re.compile(r"::[^/]*://|^[^/]*://[^/\[]*::")


def refuse_chain(path: str) -> None:
    """Raise KmsConfigurationError for a URL with another URL in it."""
    if "::" in path and _CHAIN.search(path):
        raise KmsConfigurationError(
            "a URL with another one inside, behind '::', is refused: give the URL of the files "
            "themselves"
        )


def host_url_of(url: str) -> str:
    """Return the scheme and the host of a URL. Raises KmsConfigurationError for a URL with a
    password or a signature in it: paths are sent to executors and stored in ledgers."""
    if _has_secret(url):
        raise KmsConfigurationError(
            "a URL with a password or a signature is refused, as paths are sent to executors and "
            "stored: let each process find its own credentials (a file, the environment, its "
            "identity)"
        )
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def open_filesystem(host_url: str) -> Any:
    """Return the file system that fsspec has for a URL's scheme, with the credentials that this
    process finds. Raises OSError if it cannot be used."""
    with os_errors(host_url):
        import fsspec.core  # optional

        try:
            filesystem, _ = fsspec.core.url_to_fs(host_url)
        except OSError as error:
            if error.errno is not None:
                raise
            # Arrow's, of HDFS without Java or Hadoop, has a line for each place where it looked.
            message = f"cannot be used: {str(error).splitlines()[0]}"
            raise OSError(errno.ENOTSUP, message, host_url) from None
        if not is_s3(filesystem):
            return filesystem
        options = dict(filesystem.storage_options)
        chosen = options.get("config_kwargs") or {}
        options["config_kwargs"] = {"max_pool_connections": _CONNECTIONS, **chosen}
        return type(filesystem)(*filesystem.storage_args, **options)


def is_s3(filesystem: Any) -> bool:
    """Whether that is the file system of s3fs."""
    protocol = filesystem.protocol
    return "s3" in ((protocol,) if isinstance(protocol, str) else protocol)


@contextlib.contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Raise OSError instead of the exceptions that each file system has of its own."""
    try:
        yield
    except (OSError, Ags1Error, MemoryError):
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", path) from error


def _has_secret(path: str) -> bool:
    if "@" not in path and "?" not in path:
        return False
    # In other URLs a question mark is part of a name.
    text = path if path.lower().startswith("http") else path.partition("?")[0]
    return bool(Properties({"path": text}).secrets() or _SIGNATURE.search(text))
