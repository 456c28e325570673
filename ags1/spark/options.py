"""What the options of a data source say, checked: keys, paths, columns, sizes.

Options are in the plan, and whoever writes them writes them into programs: one that is a secret is
refused, whatever it is for. Where no option names a KMS, the driver's environment
(``AGS1_KMS_…``) and configuration file do, as for the command line. Knows nothing of files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from ..cli import settings
from ..cli.settings import Layer, Settings
from ..errors import KmsConfigurationError
from ..kms.properties import Properties
from ..kms.registry import KMS_TYPE
from .keys import FileKeys, KmsConfig

_SHIFTS = (("k", 10), ("m", 20), ("g", 30))
_KMS_PREFIXES = ("encryption.kms", "kms.", "client.", "http-client.")
_UNITS = {"": 1, "b": 1, **{f"{u}{b}": 1 << s for u, s in _SHIFTS for b in ("", "b")}}


def refuse_secrets(options: Mapping[str, str]) -> None:
    """Raise KmsConfigurationError when an option is a secret."""
    if secrets := Properties(dict(options)).secrets():
        raise KmsConfigurationError(
            f"the option {secrets[0]!r} would send a secret through Spark: let each process find "
            "its own credentials (a file, the environment, its identity)"
        )


def key_settings(options: Mapping[str, str]) -> Settings:
    """Return which KMS is meant: ``kms``, ``keyring``, ``key`` and properties under Iceberg's
    names, above the environment and the configuration file. Raises KmsConfigurationError."""
    refuse_secrets(options)
    given = {name: text for name, text in options.items() if name.startswith(_KMS_PREFIXES)}
    short = {KMS_TYPE: options.get("kms"), settings.KEYRING: options.get("keyring")}
    for name, value in short.items():
        if value and given.setdefault(name, value) != value:
            raise KmsConfigurationError(f"two options say what {name!r} is: one is meant")
    if options.get("keyring"):
        given.setdefault(KMS_TYPE, settings.LOCAL)
    return settings.resolve(
        Layer(given, options.get("key") or None),
        settings.from_environment(os.environ),
        settings.read_file(os.environ),
    )


def opening_keys(options: Mapping[str, str]) -> FileKeys:
    """Return what unwraps files' keys. ``trusted-keys`` are the master keys that they may be
    under, with commas between; else ``key``, where the KMS would unwrap with anybody's.

    Raises KmsError.
    """
    chosen = key_settings(options)
    kms = KmsConfig(chosen.properties)
    trusted = names(options.get("trusted-keys"))
    if not trusted and chosen.key_id and getattr(kms.client(), "accepts_foreign_keys", True):
        trusted = [chosen.key_id]
    return FileKeys.for_opening(kms, trusted)


def sealing_keys(options: Mapping[str, str]) -> FileKeys:
    """Return what wraps new files' keys, under the master key ``key``; one KMS call.

    Raises KmsError, KmsConfigurationError where nobody names the key.
    """
    chosen = key_settings(options)
    if not chosen.key_id:
        raise KmsConfigurationError("which master key? Name it with the option 'key'")
    return FileKeys.for_sealing(KmsConfig(chosen.properties), chosen.key_id)


def names(text: str | None) -> list[str]:
    """Return the names in a list with commas between."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def paths(options: Mapping[str, str]) -> list[str]:
    """Return the paths that were given to ``load``: one, or Spark's JSON list of several.

    Raises ValueError when there is none.
    """
    found = json.loads(options["paths"]) if options.get("paths") else []
    if options.get("path"):
        found.append(options["path"])
    if not found:
        raise ValueError("no path is given")
    return [str(path) for path in found]


def size(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option's number of bytes, which may end in ``k``, ``m`` or ``g``. Raises
    ValueError."""
    text = options.get(name)
    if not text:
        return default
    parts = re.fullmatch(r"([0-9]{1,15})([a-z]{0,2})", text.strip().lower())
    if parts is None or parts[2] not in _UNITS or int(parts[1]) < 1:
        raise ValueError(f"the option {name!r} is no number of bytes above 0: {text!r}")
    return int(parts[1]) * _UNITS[parts[2]]


def flag(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return an option that is ``true`` or ``false``. Raises ValueError."""
    text = (options.get(name) or str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"the option {name!r} is 'true' or 'false', not {text!r}")
    return text == "true"
