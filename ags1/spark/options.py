"""The options of a data source, checked: keys, paths, columns, sizes.

Options appear in programs and in Spark's plans, so an option that is a secret is refused. If no
option names a KMS, the driver's environment (``AGS1_KMS_…``) and configuration file do, as for the
command line. Independent of files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ..errors import KmsConfigurationError
from ..files.keys import FileKeys, KmsConfig
from ..kms import settings
from ..kms.client import accepts_foreign_keys
from ..kms.properties import Properties
from ..kms.settings import Settings

INNER_FORMATS = ("text", "csv", "parquet", "avro")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_UNITS |= {f"{unit}b": size for unit, size in _UNITS.items()}


def refuse_secrets(options: Mapping[str, str]) -> None:
    """Raise KmsConfigurationError if an option is a secret."""
    if secrets := Properties(dict(options)).secrets():
        raise KmsConfigurationError(
            f"the option {secrets[0]!r} would send a secret through Spark: let each process find "
            "its own credentials (a file, the environment, its identity)"
        )


def as_spark_names(options: Mapping[str, str] | None) -> dict[str, str]:
    """Return options that a caller of ours has given with the names in which Spark hands them to a
    data source. Case does not count in Spark's names, so they get lower case. In names of
    properties it does."""
    return {n if "." in n else n.lower(): text for n, text in (options or {}).items()}


def key_settings(options: Mapping[str, str]) -> Settings:
    """Return the settings of the KMS: from the options ``kms``, ``keyring``, ``key`` and Iceberg's
    properties, then the environment, then the file. Raises KmsConfigurationError."""
    refuse_secrets(options)
    return settings.of_process(settings.from_options(options))


def opening_keys(options: Mapping[str, str]) -> FileKeys:
    """Return what unwraps the keys of files. Raises KmsError. The option ``trusted_keys`` names the
    master keys to accept, separated by commas. By default it is the option ``key``, or the key of
    the settings if the KMS would unwrap with any user's master key."""
    chosen = key_settings(options)
    kms = KmsConfig(chosen.properties)
    trusted = names(options.get("trusted_keys"))
    if not trusted and options.get("key"):
        trusted = [options["key"]]
    if not trusted and chosen.key_id and accepts_foreign_keys(kms.client()):
        trusted = [chosen.key_id]
    return FileKeys.for_opening(kms, trusted)


def sealing_keys(options: Mapping[str, str]) -> FileKeys:
    """Return what wraps the keys of new files under the master key ``key``, after one KMS call.
    Raises KmsError, and KmsConfigurationError if no master key is named."""
    chosen = key_settings(options)
    if not chosen.key_id:
        raise KmsConfigurationError("no master key is named: give the option 'key'")
    return FileKeys.for_sealing(KmsConfig(chosen.properties), chosen.key_id)


def names(text: str | None) -> list[str]:
    """Return the names in a list that is separated by commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def paths(options: Mapping[str, str]) -> list[str]:
    """Return the paths that ``load`` was given: one, or Spark's JSON list of several. Raises
    ValueError if there is none."""
    given = json.loads(options["paths"]) if options.get("paths") else []
    if options.get("path"):
        given.append(options["path"])
    if not given:
        raise ValueError("no path is given: pass one to load() or save()")
    return [str(path) for path in given]


def size(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is a number of bytes and may end in ``k``, ``m`` or ``g``. Raises
    ValueError."""
    text = options.get(name)
    if not text:
        return default
    parts = re.fullmatch(r"([0-9]{1,15})([a-z]{0,2})", text.strip().lower())
    if parts is None or parts[2] not in _UNITS or int(parts[1]) < 1:
        raise ValueError(f"the option {name!r} has to be a number of bytes above 0, not {text!r}")
    return int(parts[1]) * _UNITS[parts[2]]


def inner(options: Mapping[str, str]) -> str:
    """Return the format of the rows inside encrypted files, empty if it is not given. Raises
    ValueError for one that is not known."""
    name = options.get("inner", "").lower()
    if name and name not in INNER_FORMATS:
        json = ". JSON lines are text, for Spark's from_json and to_json" if name == "json" else ""
        raise ValueError(
            f"the option 'inner' has to be one of {', '.join(INNER_FORMATS)}, not {name!r}{json}"
        )
    return name


def flag(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return an option that is ``true`` or ``false``. Raises ValueError."""
    text = (options.get(name) or str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"the option {name!r} has to be 'true' or 'false', not {text!r}")
    return text == "true"
