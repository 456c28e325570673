"""Makes Puffin files, which have blobs, and a footer that says what and where they are::

    PFA1 | blob | blob | ... | PFA1 | footer (JSON) | footer length | flags | PFA1

Nothing is compressed. Offsets are the plaintext's. This follows the Iceberg specification,
"Puffin". This module does not encrypt, and does not know what blobs mean.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from ... import __version__
from ..spec.constants import PUFFIN_MAGIC

_NO_FLAGS = b"\0\0\0\0"


class PuffinPayload:
    """The plaintext of a Puffin file under construction."""

    def __init__(self) -> None:
        self._payload = bytearray(PUFFIN_MAGIC)
        self._blobs: list[dict[str, Any]] = []

    def add(self, payload: bytes, **fields: Any) -> dict[str, Any]:
        """Add a blob; return its entry in the footer. ``fields`` are the entry's, with ``_``
        for ``-`` in their names."""
        blob = {name.replace("_", "-"): value for name, value in fields.items()}
        blob |= {"offset": len(self._payload), "length": len(payload)}
        # Java writes the properties last.
        blob["properties"] = blob.pop("properties")
        self._payload += payload
        self._blobs.append(blob)
        return blob

    def finish(self) -> bytes:
        """Return the file's plaintext."""
        content = {"blobs": self._blobs, "properties": {"created-by": f"ags1 {__version__}"}}
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        size = struct.pack("<i", len(text))
        footer = PUFFIN_MAGIC + text + size + _NO_FLAGS + PUFFIN_MAGIC
        return bytes(self._payload + footer)
