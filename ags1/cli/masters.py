"""The master keys of a run: the KMS that was chosen, and keychains over it.

What cannot work for any file is found out here, before the first one: a keyring that cannot be
read, a master key that nobody named. Knows no files to encrypt.
"""

from __future__ import annotations

import functools
import os
import warnings

import click

from ..errors import KmsAccessDeniedError
from ..keys.keychain import Keychain
from ..kms import KmsClient, LocalKms, default_keyring_path, from_properties
from ..kms.local import check_names
from ..kms.registry import is_built_in
from ..kms.secret import discreet
from . import settings, standard
from .failures import one_line
from .options import KmsOptions
from .plugins import failures_of, guarded
from .settings import Settings


def settings_of(options: KmsOptions) -> Settings:
    """Return the settings of a run. Raises click.UsageError, KmsError.

    Warns on standard error, once a run, of environment variables that mean nothing.
    """
    context = click.get_current_context(silent=True)
    warned = set() if context is None else context.meta.setdefault(__name__, set())
    for variable, near in settings.unknown_variables(os.environ).items():
        if variable not in warned:
            warned.add(variable)
            hint = f"did you mean {near}?" if near else "'ags1 --help' says how they are named"
            standard.print_error(
                f"ags1: the environment variable {one_line(variable)} is unknown and ignored: "
                f"{hint}"
            )
    given = settings.from_options(options.kms_type, options.properties, options.keyring)
    environment = settings.from_environment(os.environ)
    return settings.resolve(given, environment, settings.read_file(os.environ))


def connect(chosen: Settings) -> KmsClient:
    """Return the KMS client. Raises KmsError; for a keyring also when it cannot be used."""
    kms = client(chosen)
    if isinstance(kms, LocalKms):
        # A keyring that cannot be used is one failure of the run, not one of every file.
        kms.names()
    return kms


def client(chosen: Settings) -> KmsClient:
    """Return the KMS client, not used yet. Raises KmsError."""
    properties = chosen.properties
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if chosen.is_local and not has_passphrase(chosen):
            check_names(properties)
            path = properties.get(settings.KEYRING)
            kms: KmsClient = LocalKms(path, passphrase=functools.partial(ask_passphrase, path))
        elif is_built_in(properties):
            kms = from_properties(properties)
        else:
            with failures_of(chosen.kms_name, "its construction"):
                kms = from_properties(properties)
            kms = guarded(kms, chosen.kms_name)
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            standard.print_error(f"ags1: {one_line(str(warning.message))}")
    return kms


def has_passphrase(chosen: Settings) -> bool:
    """Whether the settings have the keyring's passphrase, so that nobody has to be asked."""
    return any(
        chosen.properties.get(name)
        for name in ("kms.local.passphrase", "kms.local.passphrase-file")
    )


def ask_passphrase(keyring: str | None, *, new: bool = False) -> bytes:
    """Ask for a keyring's passphrase on the terminal; twice for a new one.

    Raises KmsAccessDeniedError when there is no terminal, click.Abort when nobody answers.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        raise KmsAccessDeniedError(
            "the keyring's passphrase is needed, and there is no terminal to ask for it: set "
            "kms.local.passphrase-file with --kms-property, in the configuration file, or as "
            "AGS1_KMS_KMS__LOCAL__PASSPHRASE_FILE in the environment"
        ) from None
    name = one_line(keyring or default_keyring_path())
    return _typed(
        f"{'New passphrase' if new else 'Passphrase'} of {name}",
        confirmation="The same again" if new else False,
    )


@discreet
def _typed(question: str, *, confirmation: str | bool) -> bytes:
    try:
        answer: str = click.prompt(
            question,
            # Nothing is an answer too, and refused as such rather than asked again.
            default="",
            show_default=False,
            hide_input=True,
            err=True,
            confirmation_prompt=confirmation,
        )
    except UnicodeDecodeError:
        raise KmsAccessDeniedError(
            "the passphrase that was typed is not UTF-8: the terminal has another encoding, or "
            "give it in a file (kms.local.passphrase-file)"
        ) from None
    return answer.encode("utf-8", "surrogateescape")


def sealing_keychain(options: KmsOptions, key: str | None) -> tuple[Keychain, str]:
    """Return the keychain to encrypt with, and the master key's id.

    Raises click.UsageError when none is named, KmsError.
    """
    if key == "":  # a shell's variable that is not set
        raise click.UsageError("--key is empty")
    chosen = settings_of(options)
    key = key or chosen.key_id
    if not key:
        raise click.UsageError(
            f"which master key of {chosen.kms_name}? Name it with --key (or AGS1_KMS_KEY, or "
            "key in the configuration)"
        )
    return Keychain(connect(chosen), key), key


def opening_keychain(options: KmsOptions, keys: tuple[str, ...]) -> Keychain:
    """Return the keychain to decrypt with, which accepts only ``keys`` where there are any.

    Raises click.UsageError when they have to be named, KmsError.
    """
    chosen = settings_of(options)
    kms = connect(chosen)
    return Keychain(kms, "", trusted_key_ids=trusted_keys(chosen, kms, keys))


def trusted_keys(chosen: Settings, kms: KmsClient, keys: tuple[str, ...]) -> frozenset[str] | None:
    """Return the master keys that sidecars may name; None is all that the KMS has.

    Where a key id may be a stranger's, whoever can write a sidecar could have us accept a file of
    theirs, wrapped under a key of theirs. Raises click.UsageError.
    """
    if keys:
        return frozenset(keys)
    if not getattr(kms, "accepts_foreign_keys", True):
        return None
    if not chosen.key_id:
        raise click.UsageError(
            f"with {chosen.kms_name}, name the master keys to accept with --key (or AGS1_KMS_KEY, "
            "or key in the configuration): a sidecar may name anybody's"
        )
    return frozenset({chosen.key_id})


# What makes, lists and shows master keys elsewhere: the vendors' own command lines.
_VENDOR_COMMANDS = {
    "aws": {
        "list": "aws kms list-aliases",
        "create": "aws kms create-key, then aws kms create-alias",
        "rotate": "aws kms rotate-key-on-demand",
        "describe": "aws kms describe-key",
    },
    "azure": {
        "list": "az keyvault key list",
        "create": "az keyvault key create --ops wrapKey unwrapKey",
        "rotate": "az keyvault key rotate",
        "describe": "az keyvault key show",
    },
    "gcp": {
        "list": "gcloud kms keys list",
        "create": "gcloud kms keys create --purpose encryption",
        "rotate": "gcloud kms keys versions create --primary",
        "describe": "gcloud kms keys versions list",
    },
    "vault": {
        "list": "vault list transit/keys",
        "create": "vault write -f transit/keys/NAME",
        "rotate": "vault write -f transit/keys/NAME/rotate",
        "describe": "vault read transit/keys/NAME",
    },
}


def keyring_settings(options: KmsOptions, action: str) -> Settings:
    """Return the settings of a run about a keyring's master keys: ``action`` is ``list``,
    ``create``, ``rotate``, ``describe`` or ``protect``. Raises click.UsageError that names another
    KMS's own command, KmsError."""
    chosen = settings_of(options)
    if not chosen.is_local:
        command = _VENDOR_COMMANDS.get(chosen.kms_name.lower(), {}).get(action)
        raise click.UsageError(
            f"ags1 manages the keys of a keyring (--kms local); for the KMS {chosen.kms_name!r}, "
            + (f"use: {command}" if command else "use its own tools")
        )
    return chosen


def keyring(chosen: Settings) -> LocalKms:
    """Return the keyring, not read yet. Raises KmsError."""
    kms = client(chosen)
    assert isinstance(kms, LocalKms)
    return kms


def keyring_for_new_key(chosen: Settings, *, protect: bool) -> LocalKms:
    """Return the keyring to make a master key in, not read yet. ``protect``: a keyring that is not
    there yet gets a passphrase, the settings' or one that is asked for twice.

    Raises click.UsageError when the keyring is there, KmsError.
    """
    kms = keyring(chosen)
    if not protect:
        return kms
    if os.path.exists(kms.path):
        raise click.UsageError(f"{kms.path} exists: protect it with 'ags1 key protect'")
    if has_passphrase(chosen):
        return kms
    return LocalKms(kms.path, passphrase=ask_passphrase(kms.path, new=True))
