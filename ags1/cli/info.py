"""``ags1 info``: versions, the libcrypto in use, the CPU, the KMS, and a speed figure."""

from __future__ import annotations

import os
import platform
import ssl
import time
from collections.abc import Callable
from typing import Any

import click

from .. import __version__
from ..engine import layout
from ..engine._gcm import BlockCipher, libcrypto, random_bytes
from ..errors import KmsError
from ..host import cpu
from .console import Output, print_line
from .exits import Command, Exit
from .kms.options import KmsOptions
from .options import json_output

# Small enough for the second-level cache, and so large that the time of the calls is negligible.
_BLOCKS = 4


@click.command(cls=Command, short_help="Show versions, the CPU, the KMS chosen and a speed.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, 60),
    default=2.0,
    show_default=True,
    help="How long to measure the speed; 0 measures nothing.",
)
@json_output
def info(seconds: float, out: Output) -> int:
    """Show the libcrypto in use, where it comes from, and whether its FIPS provider is active; the
    CPU's instructions for AES; and how fast this machine encrypts and decrypts.

    Examples:
      ags1 info
      ags1 info --seconds 0 --json | jq -r .libcrypto.version
    """
    facts = about(seconds)
    if out.as_json:
        out.result(facts)
    else:
        print_line(as_text(facts))
    return Exit.KEYS if "error" in facts["kms"] else Exit.OK


def about(speed_seconds: float) -> dict[str, Any]:
    """Return the facts. The speed is measured for ``speed_seconds``; 0 leaves it out."""
    kms, keyring = _kms()
    facts: dict[str, Any] = {
        "ags1": __version__,
        "python": platform.python_version(),
        "libcrypto": dict(libcrypto()),
        "python_openssl": ssl.OPENSSL_VERSION,
        "cpu": {
            "model": cpu.model(),
            "machine": platform.machine(),
            "features": cpu.features(),
            "unused": cpu.unused(libcrypto()["cpu"]),
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
    from ..kms import default_keyring_path, kms_types, settings
    from ..kms.registry import KMS_IMPL, is_known_type
    from .kms.master_keys import settings_of

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
    missing = "" if facts["keyring"]["exists"] else " (does not exist: ags1 keygen makes it)"
    kms = facts["kms"]
    lines = [
        ("ags1", f"{facts['ags1']}, Python {facts['python']}"),
        ("libcrypto", f"{library['version']}, {library['source']}"),
        ("Python's", f"{facts['python_openssl']}, for HMACs, scrypt and TLS to a KMS"),
        ("FIPS", "provider active" if library["fips"] else "provider not active"),
        ("CPU", f"{processor['model']} ({processor['machine']}), {processor['usable']} usable"),
        ("AES", " ".join(processor["features"]) or "no instructions for it known"),
        *(
            [("warning", f"OpenSSL does not use {' '.join(unused)}: unset OPENSSL_ia32cap")]
            if (unused := processor["unused"])
            else []
        ),
        ("KMS", kms.get("error") or f"{kms['kms']}, master key {kms['key'] or 'not named'}"),
        ("keyring", facts["keyring"]["path"] + missing),
    ]
    if "speed" in facts:
        seal = facts["speed"]["encrypt_bytes_per_second"] / 1e9
        unseal = facts["speed"]["decrypt_bytes_per_second"] / 1e9
        text = "AES-256, 1 MiB blocks, memory to memory, one thread"
        lines.append(("speed", f"encrypt {seal:.2f} GB/s, decrypt {unseal:.2f} GB/s ({text})"))
    return "\n".join(f"{name:<11}{value}" for name, value in lines)


def _speed(seconds: float) -> dict[str, float]:
    cipher = BlockCipher(random_bytes(32), random_bytes(16))
    plaintext = bytearray(_BLOCKS * layout.DEFAULT_BLOCK_SIZE)
    sealed = bytearray(len(plaintext) + _BLOCKS * layout.BLOCK_OVERHEAD)
    size = len(plaintext)
    seal = _rate(lambda: cipher.seal_blocks(plaintext, sealed), size, seconds / 2)
    unseal = _rate(lambda: cipher.open_blocks(sealed, plaintext), size, seconds / 2)
    return {"encrypt_bytes_per_second": seal, "decrypt_bytes_per_second": unseal}


def _rate(call: Callable[[], object], size: int, seconds: float) -> float:
    call()  # the first touches the memory and the tables
    start = now = time.perf_counter()
    calls = 0
    while now - start < seconds:
        call()
        calls += 1
        now = time.perf_counter()
    return calls * size / (now - start) if calls else 0.0
