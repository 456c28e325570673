"""What ``ags1 info`` tells: versions, the libcrypto in use, the CPU, and a speed figure."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any

from .. import __version__, cpu, layout
from .._gcm import BlockCipher, libcrypto, random_bytes
from ..errors import KmsError
from ..kms import default_keyring_path, kms_types
from ..kms.registry import KMS_IMPL, is_known_type
from . import settings
from .masters import settings_of
from .options import KmsOptions

# Small enough to stay in the second-level cache's reach, large enough that the calls don't count.
_BLOCKS = 4


def about(speed_seconds: float) -> dict[str, Any]:
    """Return the facts; the speed is measured for so many seconds, not at all for 0."""
    kms, keyring = _kms()
    facts: dict[str, Any] = {
        "ags1": __version__,
        "python": platform.python_version(),
        "libcrypto": dict(libcrypto()),
        "cpu": {
            "model": cpu.model(),
            "machine": platform.machine(),
            "features": cpu.features(),
            "usable": cpu.usable_cpus(),
        },
        "kms": kms,
        "keyring": {"path": keyring, "exists": os.path.exists(keyring)},
    }
    if speed_seconds:
        facts["speed"] = _speed(speed_seconds)
    return facts


def _kms() -> tuple[dict[str, Any], str]:
    """Return which KMS the environment and the configuration choose, and the keyring's path."""
    path, named = settings.file_path(os.environ)
    configuration = path if named or os.path.exists(path) else None
    try:
        chosen = settings_of(KmsOptions())
    except KmsError as error:
        return {"configuration": configuration, "error": str(error)}, default_keyring_path()
    keyring = chosen.properties.get(settings.KEYRING) or default_keyring_path()
    facts = {"configuration": configuration, "kms": chosen.kms_name, "key": chosen.key_id}
    if KMS_IMPL not in chosen.properties and not is_known_type(chosen.kms_name):
        facts["error"] = (
            f"unknown: there is no KMS type {chosen.kms_name!r}, only {', '.join(kms_types())}"
        )
    return facts, keyring


def as_text(facts: dict[str, Any]) -> str:
    """Return the same for people."""
    library, processor = facts["libcrypto"], facts["cpu"]
    missing = "" if facts["keyring"]["exists"] else " (not there yet: ags1 keygen)"
    kms = facts["kms"]
    lines = [
        ("ags1", f"{facts['ags1']}, Python {facts['python']}"),
        ("libcrypto", f"{library['version']}, {library['source']}"),
        ("FIPS", "provider active" if library["fips"] else "provider not active"),
        ("CPU", f"{processor['model']} ({processor['machine']}), {processor['usable']} usable"),
        ("AES", " ".join(processor["features"]) or "no instructions for it known"),
        ("KMS", kms.get("error") or f"{kms['kms']}, master key {kms['key'] or 'not named'}"),
        ("keyring", facts["keyring"]["path"] + missing),
    ]
    if "speed" in facts:
        speed = facts["speed"]
        lines.append(
            (
                "speed",
                f"encrypt {speed['encrypt_bytes_per_second'] / 1e9:.2f} GB/s, decrypt "
                f"{speed['decrypt_bytes_per_second'] / 1e9:.2f} GB/s "
                "(AES-256, 1 MiB blocks, memory to memory, one thread)",
            )
        )
    return "\n".join(f"{name:<11}{value}" for name, value in lines)


def _speed(seconds: float) -> dict[str, float]:
    cipher = BlockCipher(random_bytes(32), random_bytes(16))
    plaintext = bytearray(_BLOCKS * layout.DEFAULT_BLOCK_SIZE)
    sealed = bytearray(len(plaintext) + _BLOCKS * layout.BLOCK_OVERHEAD)
    return {
        "encrypt_bytes_per_second": _rate(
            lambda: cipher.seal_blocks(plaintext, sealed), len(plaintext), seconds / 2
        ),
        "decrypt_bytes_per_second": _rate(
            lambda: cipher.open_blocks(sealed, plaintext), len(plaintext), seconds / 2
        ),
    }


def _rate(call: Callable[[], object], size: int, seconds: float) -> float:
    call()  # the first touches the memory and the tables
    start = now = time.perf_counter()
    calls = 0
    while now - start < seconds:
        call()
        calls += 1
        now = time.perf_counter()
    return calls * size / (now - start) if calls else 0.0
