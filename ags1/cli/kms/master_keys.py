"""The master keys of a run: the KMS that was chosen, and keychains over it. What would fail for
every file fails here, before the first file: a keyring that cannot be read, a master key that
nobody named. A secret among the options is warned of, because other users see what a command was
called with. Independent of files."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence

import click

from ...errors import KmsAccessDeniedError
from ...keys.keychain import Keychain
from ...kms import KmsClient, LocalKms, default_keyring_path, from_properties, settings
from ...kms.client import accepts_foreign_keys
from ...kms.key_file import KeyFileKms
from ...kms.local import check_names
from ...kms.passphrase import ALLOW_READABLE
from ...kms.properties import Properties
from ...kms.registry import KMS_IMPL, KMS_TYPE, built_in_type, check_type
from ...kms.secret import discreet
from ...kms.settings import (
    FILE,
    KEY_FILE,
    KEYRING,
    LOCAL,
    PASSPHRASE_FILE,
    Layer,
    Settings,
)
from ..console import print_error
from ..exits import one_line
from .options import KmsOptions, NewMasterKey
from .plugins import failures_of, guarded

# For a property that holds a secret, the property that names a file with the secret.
_INSTEAD = {
    "kms.local.passphrase": "kms.local.passphrase-file",
    "kms.vault.secret-id": "kms.vault.secret-id-file",
    "kms.vault.token": "kms.vault.token-file",
}
# The properties with the keys of the KMS for tests begin with this.
_KEY_OF_TESTS = "encryption.kms.key."


def settings_of(options: KmsOptions) -> Settings:
    """Return the settings of a run. Raises click.UsageError, KmsError. Warns on standard error,
    once a run, of environment variables that mean nothing."""
    context = click.get_current_context(silent=True)
    warned = set() if context is None else context.meta.setdefault(__name__, set())
    for variable, near in settings.unknown_variables(os.environ).items():
        if variable not in warned:
            warned.add(variable)
            hint = f"did you mean {near}?" if near else "'ags1 --help' says how they are named"
            print_error(f"the environment variable {variable} is unknown and ignored: {hint}")
    given = layer_of_options(
        options.kms_type, options.kms_properties, options.keyring, options.key_file
    )
    for name in Properties(given.properties).secrets():
        if name not in warned and not name.startswith(_KEY_OF_TESTS):
            warned.add(name)
            instead = _INSTEAD.get(name) or settings.variable_of(name)
            print_error(
                f"--kms-property {name}: other users of this machine can see the options of a "
                f"command, and the shell keeps them: use {instead} or the configuration file"
            )
    return settings.of_process(given).of_this_user()


def layer_of_options(
    kms_type: str | None,
    properties: Sequence[tuple[str, str]],
    keyring: str | None,
    key_file: str | None = None,
) -> Layer:
    """Return what ``--kms``, ``--kms-property``, ``--keyring`` and ``--key-file`` say. Raises
    click.UsageError."""
    given: dict[str, str] = {}
    for name, value in properties:
        if name in given:
            raise click.UsageError(f"--kms-property {name} is given twice: give it once")
        given[name] = value
    if kms_type is not None:
        if given.get(KMS_TYPE, kms_type) != kms_type or KMS_IMPL in given:
            raise click.UsageError("--kms and --kms-property name two KMSs: name one")
        given[KMS_TYPE] = kms_type
    for option, path, wanted, name in (
        ("--keyring", keyring, LOCAL, KEYRING),
        ("--key-file", key_file, FILE, KEY_FILE),
    ):
        if path is None:
            continue
        kind = Layer(given).kind
        if kind not in (None, wanted):
            message = f"{option} is for --kms {wanted}, not for {kind}: leave one of the two out"
            raise click.UsageError(message)
        if given.get(name, path) != path:
            raise click.UsageError(f"{option} and --kms-property name two files: name one")
        given[KMS_TYPE], given[name] = wanted, path
    return Layer(given)


def target_of(target: NewMasterKey) -> Settings | None:
    """Return the settings of the KMS to wrap keys with, None for the KMS that they are wrapped by.
    Raises click.UsageError for an option without another one that it needs, KmsError."""
    if target.to_key == "":  # a shell's variable that is not set
        raise click.UsageError("--to-key is empty: name a master key")
    kms = target.kms
    if kms is None:
        return None
    if layer_of_options(kms.kms_type, kms.kms_properties, kms.keyring).kind is None:
        raise click.UsageError("--to-kms-property needs --to-kms")
    if target.to_key is None:
        name = "--to-kms" if kms.keyring is None else "--to-keyring"
        raise click.UsageError(f"{name} needs --to-key")
    return settings_of(kms)


def connect(chosen: Settings) -> KmsClient:
    """Return the KMS client. Raises KmsError; for a keyring also when it cannot be used."""
    kms = client(chosen)
    if isinstance(kms, LocalKms):
        # A keyring that cannot be used is one failure of the run, not one of every file.
        kms.names()
    elif isinstance(kms, KeyFileKms):
        kms.check()
    return kms


def client(chosen: Settings) -> KmsClient:
    """Return the KMS client, not used yet. Raises KmsError."""
    properties = chosen.properties
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if chosen.is_local and not has_passphrase(chosen):
            check_names(properties)
            path = properties.get(KEYRING)
            kms: KmsClient = LocalKms(
                path,
                passphrase=functools.partial(ask_passphrase, path),
                allow_readable=Properties(properties).flag(ALLOW_READABLE, default=False),
            )
        elif built_in_type(properties):
            kms = from_properties(properties)
        else:
            with failures_of(chosen.kms_name, "its construction"):
                kms = from_properties(properties)
            kms = guarded(kms, chosen.kms_name)
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            print_error(str(warning.message))
    return kms


def has_passphrase(chosen: Settings) -> bool:
    """Whether the settings have the keyring's passphrase, so that nobody has to be asked."""
    return any(chosen.properties.get(name) for name in ("kms.local.passphrase", PASSPHRASE_FILE))


def ask_passphrase(keyring: str | None, *, new: bool = False) -> bytes:
    """Ask for a keyring's passphrase on the terminal; twice for a new one. Raises
    KmsAccessDeniedError when there is no terminal, click.Abort when nobody answers."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        raise KmsAccessDeniedError(
            "the keyring needs its passphrase, and there is no terminal to ask for it: set "
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
            # An empty answer is refused; the question is not asked again.
            default="",
            show_default=False,
            hide_input=True,
            err=True,
            confirmation_prompt=confirmation,
        )
    except UnicodeDecodeError:
        raise KmsAccessDeniedError(
            "the passphrase that was typed is not UTF-8: set the terminal's encoding to UTF-8, or "
            "give the passphrase in a file (kms.local.passphrase-file)"
        ) from None
    return answer.encode("utf-8", "surrogateescape")


def named_key(options: KmsOptions, key: str | None) -> tuple[Settings, str]:
    """Return the settings of a run that encrypts, and the master key's id: ``key``, or the one that
    the settings name. Raises click.UsageError when none is named, KmsError."""
    if key == "":  # a shell's variable that is not set
        raise click.UsageError("--key is empty: name a master key")
    chosen = settings_of(options)
    key = key or chosen.key_id
    if not key:
        check_type(chosen.properties)
        raise click.UsageError(
            f"no master key of {chosen.kms_name} is named: name it with --key, AGS1_KMS_KEY, or "
            "key in the configuration"
        )
    return chosen, key


def encrypting_keychain(options: KmsOptions, key: str | None) -> tuple[Keychain, str]:
    """Return the keychain to encrypt with, and the master key's id. Raises as ``named_key``."""
    chosen, key_id = named_key(options, key)
    return Keychain(connect(chosen), key_id), key_id


def decrypting_keychain(options: KmsOptions, keys: tuple[str, ...]) -> Keychain:
    """Return the keychain to decrypt with. If ``keys`` are given, it accepts only these. Raises
    click.UsageError when they have to be named, KmsError."""
    chosen = settings_of(options)
    kms = connect(chosen)
    return Keychain(kms, "", trusted_key_ids=accepted_key_ids_of(chosen, kms, keys))


def accepted_key_ids_of(
    chosen: Settings, kms: KmsClient, keys: tuple[str, ...]
) -> frozenset[str] | None:
    """Return the master keys that sidecars may name; None is all that the KMS has. Some KMSs accept
    the key ids of other users. With them, whoever can write a sidecar could have us accept another
    file under another user's key. Raises click.UsageError if no key is named."""
    if keys:
        return frozenset(keys)
    if not accepts_foreign_keys(kms):
        return None
    if not chosen.key_id:
        raise click.UsageError(
            f"with {chosen.kms_name}, a sidecar may name another user's master key: name the "
            "master keys to accept with --key, AGS1_KMS_KEY, or key in the configuration"
        )
    return frozenset({chosen.key_id})
