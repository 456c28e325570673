"""What an encrypted file shows without its key: header, sizes, blocks, and the ids in its sidecar.
None of it is authenticated: no tag protects the header, and the sizes are the file system's."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from ...engine import layout
from ...errors import KeyMetadataError, TruncatedError
from ...keys import Sidecar
from ...keys.keychain import find_sidecar
from ...kms.client import wrapped_version
from .sources import Job, refuse_other_files


def inspect(job: Job) -> dict[str, Any]:
    """Return what the file and its sidecar show. Raises FormatError, TruncatedError or OSError. If
    the sidecar cannot be read, ``sidecar_error`` has the reason."""
    if job.is_pipe:
        raise OSError(errno.ESPIPE, "Not a regular file", job.source)
    with open(job.source, "rb") as file:
        header = file.read(layout.HEADER_SIZE)
        encrypted_size = os.fstat(file.fileno()).st_size
    if not header:
        raise TruncatedError("the file is empty")
    refuse_other_files(job.source)
    block_size = layout.parse_header(header)
    plaintext_size = layout.plaintext_size(encrypted_size, block_size)
    blocks = 0
    if encrypted_size > layout.HEADER_SIZE:
        blocks = layout.block_count(plaintext_size, block_size)
    result: dict[str, Any] = {
        "file": job.source,
        "format": layout.MAGIC.decode(),
        "block_size": block_size,
        "blocks": blocks,
        "last_block_size": plaintext_size - max(0, blocks - 1) * block_size,
        "plaintext_size": plaintext_size,
        "encrypted_size": encrypted_size,
        "sidecar": job.sidecar,
    }
    try:
        result["keys"] = _keys(find_sidecar(job.sidecar))
    except KeyMetadataError as error:
        result["sidecar_error"] = error.message
    return result


def blocks_of(job: Job, result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each block's number, offset in the file, plaintext size and nonce."""
    with open(job.source, "rb") as file:
        for number in range(result["blocks"]):
            offset = layout.block_offset(number, result["block_size"])
            file.seek(offset)
            last = number == result["blocks"] - 1
            yield {
                "number": number,
                "offset": offset,
                "size": result["last_block_size"] if last else result["block_size"],
                "nonce": file.read(layout.NONCE_SIZE).hex(),
            }


def as_text(result: dict[str, Any]) -> str:
    """Return the same for people."""
    lines = [
        ("format", f"{result['format']}, blocks of {_amount(result['block_size'])}"),
        ("blocks", f"{result['blocks']:,} (the last has {result['last_block_size']:,} bytes)"),
        ("plaintext", _amount(result["plaintext_size"])),
        ("encrypted", _amount(result["encrypted_size"])),
    ]
    if "sidecar_error" in result:
        # The failure that follows tells why.
        lines.append(("sidecar", "cannot be read"))
    else:
        lines.append(("sidecar", result["sidecar"]))
        for key in result["keys"]:
            lines.append(("key", f"{key['key_id']}, under the KEK {key['kek_id']}"))
            version = key["master_key_version"]
            named = f"{key['master_key_id']}{'' if version is None else f', version {version}'}"
            lines.append(("master key", f"{named}, KEK of {_when(key)}"))
    return "\n".join([result["file"], *(f"  {name:<11}{value}" for name, value in lines)])


def _keys(sidecar: Sidecar) -> list[dict[str, Any]]:
    keys = []
    for wrapped in sidecar.file_keys:
        for kek in sidecar.same_kek(sidecar.kek_entry(wrapped).key_id):
            facts = {
                "master_key_id": kek.encrypted_by_id,
                "master_key_version": wrapped_version(kek.encrypted_key_metadata),
                "kek_timestamp": kek.timestamp,
            }
            keys.append({"key_id": wrapped.key_id, "kek_id": kek.key_id, **facts})
    return keys


def _amount(size: int) -> str:
    """Return a size in bytes, and in the largest binary unit that gives it a whole part."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >> shift:
            return f"{size:,} bytes ({size / (1 << shift):.4g} {unit})"
    return f"{size:,} bytes"


def _when(key: dict[str, Any]) -> str:
    timestamp = key["kek_timestamp"]
    try:
        moment = datetime.fromtimestamp(int(timestamp) / 1000, timezone.utc)
    except (TypeError, ValueError, OverflowError, OSError):
        return f"an unknown time ({timestamp})"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
