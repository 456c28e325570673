"""Refuses properties of a table that name code, a server or credentials.

In PyIceberg, the properties in metadata.json override those of the catalog. So anybody who can
write the file could name code that runs here, could send requests to another server, or could make
another of the user's accounts read the table. Such a property is accepted only if the catalog's own
properties have the same value. This module does not know catalogs and files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import MetadataIntegrityError

# Python code to import. PyIceberg imports the first and the last one today.
_CODE = ("py-io-impl", "py-catalog-impl", "py-kms-impl", "write.py-location-provider.impl")
# Where requests go and who signs them, in FileIOs that read these names without a prefix.
_NAMES = (*_CODE, "uri", "token", "credential", "auth.manager", "DEFAULT_SCHEME", "DEFAULT_NETLOC")
# The properties of a FileIO have these prefixes. Parts of the rest of the name decide.
_STORAGE = ("s3.", "gcs.", "adls.", "hdfs.", "hf.", "client.")
_CODE_PARTS = re.compile(r"\b(impl|kwargs)\b")
_PARTS = re.compile(
    r"\b(impl|kwargs"  # code, and arguments for it
    r"|endpoint|signer|proxy|host|port|authority|scheme|account-name|connection-string"
    r"|access-key-id|secret-access-key|session-token|profile-name|role-arn|sse-kms-key-id"
    r"|token|credential|account-key|sas-token|tenant-id|client-id|client-secret|user"
    r"|kerberos_ticket)\b"
)
# A region is part of a server's name.
_REGION = re.compile(r"(s3|client)\.region")
_IS_REGION = re.compile(r"[A-Za-z0-9-]*")


def refuse_redirection(
    metadata: Mapping[str, Any], own: Mapping[str, Any], location: str | None
) -> None:
    """Raise MetadataIntegrityError if a table's metadata names code, a server or credentials, and
    ``own``, the properties of the catalog or the caller, do not have the same value. ``location``
    is the metadata's, for the message."""
    for name, value in (metadata.get("properties") or {}).items():
        if _redirects(name, value) and own.get(name) != value:
            raise MetadataIntegrityError(
                f"the table's properties have {name!r}: whoever writes the metadata would choose "
                "which code runs here, or where requests and credentials go. If the value is "
                "right, give it to the catalog, too",
                file=location,
            )


def refuse_foreign_code(
    config: Mapping[str, Any], own: Mapping[str, Any], location: str | None
) -> None:
    """Raise MetadataIntegrityError if a REST server's configuration of a table names code that
    ``own``, the catalog's properties, do not. Everything else may come from the server."""
    for name, value in config.items():
        is_code = name in _CODE or (name.startswith(_STORAGE) and _CODE_PARTS.search(name))
        if is_code and own.get(name) != value:
            raise MetadataIntegrityError(
                f"the REST server's configuration of the table has {name!r}, which names code to "
                "run here. If the value is right, give it to the catalog",
                file=location,
            )


def _redirects(name: str, value: object) -> bool:
    if _REGION.fullmatch(name):
        return not _IS_REGION.fullmatch(str(value))
    return name in _NAMES or (
        name.startswith(_STORAGE) and _PARTS.search(name.partition(".")[2]) is not None
    )
