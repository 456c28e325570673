"""Decides which KMS a run uses, with which properties and which master key.

The settings come from options, the environment and the configuration file. An option overrides the
environment, and the environment overrides the file. If none of them names a KMS, it is the local
keyring. Settings for another KMS than the chosen one are ignored, because one service must not see
key ids or endpoints of another. The names of environment variables follow PyIceberg's rule. Only
``read_file`` and ``of_process`` are not pure.
"""

from __future__ import annotations

import configparser
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import KmsAccessDeniedError, KmsConfigurationError
from ..host import private_file
from .passphrase import ALLOW_READABLE, check_owner, check_private, mode_remedy
from .properties import Properties
from .registry import KMS_IMPL, KMS_TYPE, built_in_type

LOCAL = "local"
KEYRING = "kms.local.keyring"
PASSPHRASE_FILE = "kms.local.passphrase-file"
FILE = "file"
KEY_FILE = "kms.file.path"
# The master key of a KMS of one user, if none is named.
_DEFAULT_KEYS = {LOCAL: "default", FILE: "key-file"}
# What the names of a KMS's properties begin with.
PROPERTY_PREFIXES = ("encryption.kms", "kms.", "client.", "http-client.")

_PREFIX = "AGS1_KMS_"
_KEY_VARIABLE = f"{_PREFIX}KEY"
_NAMES = {"TYPE": KMS_TYPE, "IMPL": KMS_IMPL}
# The other variables that ags1 reads, and what those of its build and its tests begin with.
_VARIABLES = (
    "AGS1_CATALOG",
    "AGS1_CONFIG",
    "AGS1_DEBUG",
    "AGS1_KEYRING",
    "AGS1_UNTESTED_PYICEBERG",
)
_FOR_TOOLS = ("AGS1_BUILD", "AGS1_COMPLETE", "AGS1_OPENSSL", "AGS1_TEST_", "AGS1_WHEEL")
# The properties that a built-in client reads, and what the names of others begin with.
_KNOWN = (
    KEY_FILE,
    *(
        KMS_TYPE,
        KMS_IMPL,
        KEYRING,
        PASSPHRASE_FILE,
        ALLOW_READABLE,
        "adls.token-credential-provider",
    ),
    *("azure.keyvault.key-wrap-algorithm", "azure.keyvault.url", "client.access-key-id"),
    *("client.assume-role.arn", "client.assume-role.external-id", "client.assume-role.region"),
    *("client.assume-role.session-name", "client.assume-role.timeout-sec", "client.factory"),
    *("client.credentials-provider", "client.profile-name", "client.region", "client.role-arn"),
    *("client.role-session-name", "client.secret-access-key", "client.session-token"),
    *("gcs.oauth2.token", "gcs.oauth2.token-expires-at", "kms.allow-plaintext-http"),
    *("kms.aws.former-keys", "kms.azure.token", "kms.connect-timeout-ms", "kms.data-key-spec"),
    *("kms.encryption-algorithm-spec", "kms.endpoint", "kms.gcp.anonymous", "kms.gcp.endpoint"),
    *("kms.gcp.key-ring", "kms.local.passphrase", "kms.max-attempts", "kms.read-timeout-ms"),
    *("kms.vault.auth", "kms.vault.auth-mount-path", "kms.vault.ca-cert", "kms.vault.jwt-file"),
    *("kms.vault.client-cert", "kms.vault.client-key"),
    *("kms.vault.mount-path", "kms.vault.namespace", "kms.vault.role", "kms.vault.role-id"),
    *("kms.vault.secret-id", "kms.vault.secret-id-file", "kms.vault.token"),
    *("kms.vault.token-file", "kms.vault.url", "kms.vault.verify"),
)
_KNOWN_PREFIXES = (
    "client.assume-role.tags.",
    "client.credentials-provider.",
    "encryption.kms.key.",
    "http-client.",
)
_SECTION = "kms"
_MAX_FILE_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one source (options, environment, file): properties and a master key."""

    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    key_id: str | None = None

    @property
    def kind(self) -> str | None:
        """The KMS that these properties are for; None if they do not say."""
        if impl := self.properties.get(KMS_IMPL):
            return impl
        kms_type = self.properties.get(KMS_TYPE)
        return kms_type.lower() if kms_type else None

    def over(self, beneath: Layer) -> Layer:
        """Return both layers as one, in which this one overrides ``beneath``; this one alone if
        they are for two KMSs."""
        if self.kind is not None and beneath.kind not in (None, self.kind):
            return self
        key_id = beneath.key_id if self.key_id is None else self.key_id
        return Layer({**beneath.properties, **self.properties}, key_id)


@dataclass(frozen=True, slots=True)
class Settings:
    """The KMS of a run. ``key_id`` is the master key to use if no option names one."""

    properties: Mapping[str, str] = field(repr=False)
    key_id: str | None

    @property
    def kms_name(self) -> str:
        """The KMS's type, or the name of the class in ``encryption.kms-impl``."""
        return self.properties.get(KMS_IMPL) or self.properties[KMS_TYPE]

    @property
    def is_local(self) -> bool:
        """Whether the KMS is a keyring file."""
        return self.kms_name.lower() == LOCAL

    def of_this_user(self) -> Settings:
        """Return the settings with the home folder of this process's user for ``~`` in paths. A
        shell does not expand it in a file, or after a '=' on the command line. Processes of other
        users, such as Spark's executors, have homes of their own."""
        paths = {
            name: os.path.expanduser(path)
            for name in (KEYRING, PASSPHRASE_FILE, KEY_FILE)
            if (path := self.properties.get(name))
        }
        return Settings({**self.properties, **paths}, self.key_id)


def from_options(options: Mapping[str, str]) -> Layer:
    """Return the settings that named options give: ``kms`` (a type), ``keyring`` (a path), ``key``
    and Iceberg's properties; the others are passed over. Raises KmsConfigurationError if two of
    them differ. Whether a secret may be among them, the caller decides."""
    given = {name: text for name, text in options.items() if name.startswith(PROPERTY_PREFIXES)}
    short = {KMS_TYPE: options.get("kms"), KEYRING: options.get("keyring")}
    for name, value in short.items():
        if value and given.setdefault(name, value) != value:
            raise KmsConfigurationError(f"two options set {name!r} differently: leave one out")
    if options.get("keyring"):
        given.setdefault(KMS_TYPE, LOCAL)
    return Layer(given, options.get("key") or None)


def of_process(options: Layer) -> Settings:
    """Return the settings of this process: ``options`` over its environment and its configuration
    file. Raises KmsError."""
    return resolve(options, from_environment(os.environ), read_file(os.environ))


def resolve(options: Layer, environment: Layer, file: Layer) -> Settings:
    """Return the settings of a run. Only this function decides which layer overrides which. Raises
    KmsConfigurationError for a property that no built-in client reads."""
    chosen = options.over(environment.over(file))
    if chosen.kind is None:
        chosen = Layer({KMS_TYPE: LOCAL}).over(chosen)
    if built_in_type(chosen.properties):
        _check_known(chosen.properties)
    key_id = chosen.key_id
    if key_id is None:
        key_id = _DEFAULT_KEYS.get(chosen.kind or "")
    return Settings(chosen.properties, key_id)


def _check_known(properties: Mapping[str, str]) -> None:
    for name in sorted(properties):
        if name not in _KNOWN and not name.startswith(_KNOWN_PREFIXES):
            from difflib import get_close_matches

            near = get_close_matches(name, _KNOWN, 1)
            hint = f"did you mean {near[0]!r}?" if near else "no built-in KMS has it"
            raise KmsConfigurationError(f"the KMS property {name!r} is unknown: {hint}")


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Return the settings in the variables ``AGS1_KMS_…`` and ``AGS1_KEYRING`` that are not empty
    or unknown (``unknown_variables``). Raises KmsConfigurationError, naming the variable."""
    properties: dict[str, str] = {}
    for variable in _kms_variables(environ):
        name, value = _property_of(variable), environ[variable]
        if not _is_property(name):
            continue
        if name in properties:
            raise KmsConfigurationError(
                f"two environment variables set the property {name!r}: remove {variable}"
            )
        properties[name] = value
    layer = Layer(properties, environ.get(_KEY_VARIABLE) or None)
    keyring = environ.get("AGS1_KEYRING")
    if keyring and layer.kind in (None, LOCAL):
        layer = layer.over(Layer({KEYRING: keyring}))
    return layer


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables ``AGS1_…`` that mean nothing, each with the nearest known one or
    None."""
    unknown = [name for name in _kms_variables(environ) if not _is_property(_property_of(name))]
    unknown += sorted(
        name
        for name, value in environ.items()
        if value
        and name.startswith("AGS1_")
        and not name.startswith((*_VARIABLES, _PREFIX, *_FOR_TOOLS))
    )
    if not unknown:
        return {}
    from difflib import get_close_matches

    names = [variable_of(name).removeprefix(_PREFIX) for name in _KNOWN]
    # Compare with the last part of each name too: REGION is meant as CLIENT__REGION.
    known = {name.rpartition("__")[2]: name for name in names}
    known |= {name: name for name in (*names, *_NAMES, "KEY")}
    nearest: dict[str, str | None] = {}
    for variable in unknown:
        if variable.startswith(_PREFIX):
            near = get_close_matches(variable.removeprefix(_PREFIX).upper(), known, 1)
            nearest[variable] = _PREFIX + known[near[0]] if near else None
        else:
            near = get_close_matches(variable.upper(), _VARIABLES, 1, cutoff=0.8)
            nearest[variable] = near[0] if near else None
    return nearest


def variable_of(name: str) -> str:
    """Return the environment variable of a property."""
    return _PREFIX + name.replace(".", "__").replace("-", "_").upper()


def _kms_variables(environ: Mapping[str, str]) -> list[str]:
    # Values only where they are needed: os.environ decodes each of them, for each file of fsspec's.
    names = (name for name in environ if name.startswith(_PREFIX) and environ[name])
    return sorted(name for name in names if name != _KEY_VARIABLE)


def _property_of(variable: str) -> str:
    name = variable.removeprefix(_PREFIX)
    return _NAMES.get(name, name).replace("__", ".").replace("_", "-").lower()


def from_text(text: str) -> Layer:
    """Return the settings in a configuration file. Raises KmsConfigurationError. Its messages quote
    only names, because a value may be secret."""
    parser = configparser.RawConfigParser(
        # Values hold colons (ARNs, addresses), '#' and ';' (passphrases).
        delimiters=("=",),
        comment_prefixes=("#", ";"),
        inline_comment_prefixes=None,
        # There is no section of defaults. Anything outside [kms] is a mistake.
        default_section="",
        interpolation=None,
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    problem = ""
    # Raised after the except block, because the parser's exception has lines of the file.
    try:
        parser.read_string(text)
    except configparser.DuplicateOptionError as error:
        problem = f"line {error.lineno}: {error.option!r} is set twice: remove one"
    except configparser.DuplicateSectionError as error:
        problem = f"line {error.lineno}: the section [{error.section}] is there twice: join them"
    except configparser.MissingSectionHeaderError as error:
        problem = f"line {error.lineno}: it is before the section [{_SECTION}]: move it below"
    except configparser.ParsingError as error:
        problem = f"line {error.errors[0][0]}: it does not have the form NAME = VALUE"
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
                f"the value of {name!r} continues on the next line: write it on one line"
            )
        if name in properties:
            raise KmsConfigurationError(f"{name!r} is set under two names: remove one")
        properties[name] = value
    return Layer({name: value for name, value in properties.items() if value}, key_id or None)


def file_path(environ: Mapping[str, str]) -> tuple[str, bool]:
    """Return the configuration file's path, and whether AGS1_CONFIG names it."""
    if path := environ.get("AGS1_CONFIG"):
        return path, True
    return os.path.join(private_file.config_folder(environ), "config.ini"), False


def read_file(environ: Mapping[str, str]) -> Layer:
    """Return the settings in the configuration file. If there is no file, there are none, unless
    AGS1_CONFIG names it. Whoever can write the file chooses the keys that files are encrypted
    under, and with ``encryption.kms-impl`` the code that runs. So a file that others can write is
    refused, and so is one that belongs to neither us nor root (``sudo`` may keep HOME). If it has a
    secret, others must not be able to read it. Raises KmsError with the file's name."""
    path, named = file_path(environ)
    try:
        data, status = private_file.read(path, _MAX_FILE_SIZE)
    except OSError as error:
        if not named and isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return Layer()
        if isinstance(error, FileNotFoundError):
            why = "AGS1_CONFIG names a file that does not exist"
        else:
            why = f"cannot read the configuration: {error.strerror}"
        raise KmsConfigurationError(why, file=path) from None
    check_owner(status, path, "configuration")
    if status.st_mode & 0o022:
        raise KmsAccessDeniedError(
            f"others can write this configuration (mode {stat.S_IMODE(status.st_mode):04o}), and "
            f"could choose the keys: {mode_remedy(path, 'it is refused until you run chmod go-w')}",
            file=path,
        )
    try:
        layer = from_text(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        layer = None
    except KmsConfigurationError as error:
        raise KmsConfigurationError(error.message, file=path) from None
    if layer is None:
        raise KmsConfigurationError("the configuration is not UTF-8: save it as UTF-8", file=path)
    if Properties(layer.properties).secrets():
        properties = Properties({**layer.properties, **from_environment(environ).properties})
        allow_readable = properties.flag(ALLOW_READABLE, default=False)
        check_private(status, path, "configuration with secrets", allow_readable=allow_readable)
    return layer


def _is_property(name: str) -> bool:
    return "." in name.strip(".")
