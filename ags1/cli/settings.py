"""Which KMS is meant, with which properties and which master key: options, environment and file.

An option beats the environment, which beats the configuration file; what nobody says is the local
keyring. What was meant for another KMS is left out whole: a key id or an endpoint of one service is
nothing to show to another. The environment follows PyIceberg's rule for names. Pure, but for
``read_file``; knows no KMS.
"""

from __future__ import annotations

import configparser
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import click

from .. import private_file
from ..errors import KmsAccessDeniedError, KmsConfigurationError
from ..kms.passphrase import check_owner, check_private
from ..kms.properties import Properties
from ..kms.registry import KMS_IMPL, KMS_TYPE

LOCAL = "local"
KEYRING = "kms.local.keyring"
PASSPHRASE_FILE = "kms.local.passphrase-file"
DEFAULT_LOCAL_KEY = "default"

_PREFIX = "AGS1_KMS_"
_KEY_VARIABLE = f"{_PREFIX}KEY"
_NAMES = {"TYPE": KMS_TYPE, "IMPL": KMS_IMPL}
# Properties that are often set, for the hint about a mistyped one.
_COMMON = (
    *("azure.keyvault.url", "client.assume-role.arn", "client.profile-name", "client.region"),
    *("gcs.oauth2.token", "kms.endpoint", "kms.gcp.key-ring", KEYRING),
    *(PASSPHRASE_FILE, "kms.max-attempts", "kms.vault.auth", "kms.vault.mount-path"),
    *("kms.vault.namespace", "kms.vault.token", "kms.vault.url"),
)
_SECTION = "kms"
_MAX_FILE_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class Layer:
    """What one place says: properties, and the master key to use."""

    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    key_id: str | None = None

    @property
    def kind(self) -> str | None:
        """The KMS that the place is about; None when it does not say."""
        if impl := self.properties.get(KMS_IMPL):
            return impl
        kms_type = self.properties.get(KMS_TYPE)
        return kms_type.lower() if kms_type else None

    def over(self, beneath: Layer) -> Layer:
        """Return both, this one's word first; only this one if they are about two KMSs."""
        if self.kind is not None and beneath.kind not in (None, self.kind):
            return self
        key_id = beneath.key_id if self.key_id is None else self.key_id
        return Layer({**beneath.properties, **self.properties}, key_id)


@dataclass(frozen=True, slots=True)
class Settings:
    """The KMS of a run. ``key_id`` is the master key to use where no option names one."""

    properties: Mapping[str, str] = field(repr=False)
    key_id: str | None

    @property
    def kms_name(self) -> str:
        """The KMS's type, or the code that stands for it."""
        return self.properties.get(KMS_IMPL) or self.properties[KMS_TYPE]

    @property
    def is_local(self) -> bool:
        return self.kms_name.lower() == LOCAL


def resolve(options: Layer, environment: Layer, file: Layer) -> Settings:
    """Return what holds when all three places have had their say."""
    chosen = options.over(environment.over(file))
    if chosen.kind is None:
        chosen = Layer({KMS_TYPE: LOCAL}).over(chosen)
    key_id = chosen.key_id
    if key_id is None and chosen.kind == LOCAL:
        key_id = DEFAULT_LOCAL_KEY
    # What stands in a file, or behind a '=' on the command line, no shell has expanded.
    paths = {
        name: os.path.expanduser(path)
        for name in (KEYRING, PASSPHRASE_FILE)
        if (path := chosen.properties.get(name))
    }
    return Settings({**chosen.properties, **paths}, key_id)


def from_options(
    kms_type: str | None, properties: Sequence[tuple[str, str]], keyring: str | None
) -> Layer:
    """Return what ``--kms``, ``--kms-property`` and ``--keyring`` say. Raises click.UsageError."""
    given: dict[str, str] = {}
    for name, value in properties:
        if name in given:
            raise click.UsageError(f"--kms-property {name} is given twice")
        given[name] = value
    if kms_type is not None:
        if given.get(KMS_TYPE, kms_type) != kms_type or KMS_IMPL in given:
            raise click.UsageError("--kms and --kms-property name two KMSs: one is meant")
        given[KMS_TYPE] = kms_type
    if keyring is not None:
        kind = Layer(given).kind
        if kind not in (None, LOCAL):
            raise click.UsageError(f"--keyring is of --kms local, not of {kind}")
        if given.get(KEYRING, keyring) != keyring:
            raise click.UsageError("--keyring and --kms-property name two keyrings: one is meant")
        given[KMS_TYPE], given[KEYRING] = LOCAL, keyring
    return Layer(given)


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Return what the variables ``AGS1_KMS_…`` and ``AGS1_KEYRING`` say; an empty one says nothing.

    Those of ``unknown_variables`` are left out. Raises KmsConfigurationError, naming the variable.
    """
    properties: dict[str, str] = {}
    for variable in _kms_variables(environ):
        name, value = _property_of(variable), environ[variable]
        if not _is_property(name):
            continue
        if name in properties:
            raise KmsConfigurationError(
                f"the environment variable {variable} is one of two for the property {name!r}"
            )
        properties[name] = value
    layer = Layer(properties, environ.get(_KEY_VARIABLE) or None)
    keyring = environ.get("AGS1_KEYRING")
    if keyring and layer.kind in (None, LOCAL):
        layer = layer.over(Layer({KEYRING: keyring}))
    return layer


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables ``AGS1_KMS_…`` that name no property, each with the nearest known one;
    None if none is near."""
    unknown = [name for name in _kms_variables(environ) if not _is_property(_property_of(name))]
    if not unknown:
        return {}
    from difflib import get_close_matches

    names = [p.replace(".", "__").replace("-", "_").upper() for p in _COMMON]
    # REGION alone is as near to CLIENT__REGION as the whole name.
    known = {name.rpartition("__")[2]: name for name in names}
    known |= {name: name for name in (*names, *_NAMES, "KEY")}
    found = {}
    for variable in unknown:
        near = get_close_matches(variable.removeprefix(_PREFIX).upper(), known, 1)
        found[variable] = _PREFIX + known[near[0]] if near else None
    return found


def _kms_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that are set and say a property."""
    names = (name for name, value in environ.items() if name.startswith(_PREFIX) and value)
    return sorted(name for name in names if name != _KEY_VARIABLE)


def _property_of(variable: str) -> str:
    name = variable.removeprefix(_PREFIX)
    return _NAMES.get(name, name).replace("__", ".").replace("_", "-").lower()


def from_text(text: str) -> Layer:
    """Return what a configuration file says. Raises KmsConfigurationError; its messages quote
    nothing but names, because a value may be secret."""
    parser = configparser.RawConfigParser(
        # Values hold colons (ARNs, addresses), '#' and ';' (passphrases).
        delimiters=("=",),
        comment_prefixes=("#", ";"),
        inline_comment_prefixes=None,
        # No section of defaults: what stands outside [kms] is a mistake.
        default_section="",
        interpolation=None,
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    problem = ""
    # Raised outside: the parser's exception holds lines of the file.
    try:
        parser.read_string(text)
    except configparser.DuplicateOptionError as error:
        problem = f"line {error.lineno}: {error.option!r} is there twice"
    except configparser.DuplicateSectionError as error:
        problem = f"line {error.lineno}: the section [{error.section}] is there twice"
    except configparser.MissingSectionHeaderError as error:
        problem = f"line {error.lineno}: it stands before the section [{_SECTION}]"
    except configparser.ParsingError as error:
        problem = f"line {error.errors[0][0]}: not of the form NAME = VALUE"
    if problem:
        raise KmsConfigurationError(problem)
    unknown = [section for section in parser.sections() if section != _SECTION]
    if unknown:
        raise KmsConfigurationError(
            f"the section [{unknown[0]}] is unknown; there is only [{_SECTION}]"
        )
    values = dict(parser.items(_SECTION)) if parser.has_section(_SECTION) else {}
    key_id = values.pop("key", None)
    properties: dict[str, str] = {}
    for name, value in values.items():
        name = {"type": KMS_TYPE, "impl": KMS_IMPL}.get(name, name)
        if not _is_property(name):
            raise KmsConfigurationError(
                f"{name!r} is unknown; [{_SECTION}] has type, impl, key and properties such as "
                "client.region"
            )
        if "\n" in value:
            raise KmsConfigurationError(
                f"{name!r} goes on in the next line: lines begin without white space"
            )
        if name in properties:
            raise KmsConfigurationError(f"{name!r} is there under two names")
        properties[name] = value
    return Layer({name: value for name, value in properties.items() if value}, key_id or None)


def file_path(environ: Mapping[str, str]) -> tuple[str, bool]:
    """Return the configuration file's path, and whether somebody has named it."""
    if path := environ.get("AGS1_CONFIG"):
        return path, True
    folder = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # the XDG rules: a relative path there is to be ignored
        folder = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(folder, "ags1", "config.ini"), False


def read_file(environ: Mapping[str, str]) -> Layer:
    """Return what the configuration file says; nothing if there is none, unless it was named.

    Whoever can write it chooses the keys that files are encrypted under, and with
    ``encryption.kms-impl`` the code that runs: a file that others may write is refused, and so is
    one of neither ours nor root's (``sudo`` may keep HOME). One with a secret in it is private as a
    keyring is. Raises KmsError with the file's name.
    """
    path, named = file_path(environ)
    try:
        data, status = private_file.read(path, _MAX_FILE_SIZE)
    except FileNotFoundError:
        if not named:
            return Layer()
        raise KmsConfigurationError("AGS1_CONFIG names no file", file=path) from None
    except OSError as error:
        if isinstance(error, NotADirectoryError) and not named:
            return Layer()
        raise KmsConfigurationError(
            f"cannot read the configuration: {error.strerror}", file=path
        ) from None
    check_owner(status, path, "configuration")
    if status.st_mode & 0o022:
        raise KmsAccessDeniedError(
            f"others may write this configuration (mode {stat.S_IMODE(status.st_mode):04o}), and "
            "choose the keys by that; it is not used until chmod go-w closes it",
            file=path,
        )
    try:
        layer = from_text(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        layer = None
    except KmsConfigurationError as error:
        raise KmsConfigurationError(error.message, file=path) from None
    if layer is None:
        raise KmsConfigurationError("the configuration is not UTF-8", file=path)
    if Properties(layer.properties).secrets():
        check_private(status, path, "configuration with secrets")
    return layer


def _is_property(name: str) -> bool:
    return "." in name.strip(".")
