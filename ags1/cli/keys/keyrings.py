"""The keyring whose master keys a command manages."""

from __future__ import annotations

import os

import click

from ...kms import LocalKms
from ...kms.settings import Settings
from ..kms.master_keys import ask_passphrase, client, has_passphrase, settings_of
from ..kms.options import KmsOptions

# What makes, lists and shows master keys elsewhere: the vendors' own command lines.
_VENDOR_COMMANDS = {
    ("aws", "list"): "aws kms list-aliases",
    ("aws", "create"): "aws kms create-key, then aws kms create-alias",
    ("aws", "rotate"): "aws kms rotate-key-on-demand",
    ("aws", "describe"): "aws kms describe-key",
    ("azure", "list"): "az keyvault key list",
    ("azure", "create"): "az keyvault key create --ops wrapKey unwrapKey",
    ("azure", "rotate"): "az keyvault key rotate",
    ("azure", "describe"): "az keyvault key show",
    ("gcp", "list"): "gcloud kms keys list",
    ("gcp", "create"): "gcloud kms keys create --purpose encryption",
    ("gcp", "rotate"): "gcloud kms keys versions create --primary",
    ("gcp", "describe"): "gcloud kms keys versions list",
    ("vault", "list"): "vault list transit/keys",
    ("vault", "create"): "vault write -f transit/keys/NAME",
    ("vault", "rotate"): "vault write -f transit/keys/NAME/rotate",
    ("vault", "describe"): "vault read transit/keys/NAME",
}


def keyring_settings(options: KmsOptions, action: str) -> Settings:
    """Return the settings of a run about a keyring's master keys: ``action`` is ``list``,
    ``create``, ``rotate``, ``describe`` or ``protect``. Raises KmsError, and for another KMS
    click.UsageError, which names that KMS's own command."""
    chosen = settings_of(options)
    if not chosen.is_local:
        command = _VENDOR_COMMANDS.get((chosen.kms_name.lower(), action))
        raise click.UsageError(
            f"ags1 manages only the keys of a keyring (--kms local). For the KMS "
            f"{chosen.kms_name!r}, use {command or 'its own tools'}"
        )
    return chosen


def keyring(chosen: Settings) -> LocalKms:
    """Return the keyring, not read yet. Raises KmsError."""
    kms = client(chosen)
    assert isinstance(kms, LocalKms)
    return kms


def keyring_for_new_key(chosen: Settings, *, protect: bool) -> LocalKms:
    """Return the keyring to make a master key in, not read yet. With ``protect``, a new keyring
    gets a passphrase: the settings', or one that is typed twice. Raises KmsError, and
    click.UsageError if a keyring to ``protect`` exists."""
    kms = keyring(chosen)
    if not protect:
        return kms
    if os.path.exists(kms.path):
        raise click.UsageError(f"the keyring {kms.path} exists: protect it with 'ags1 key protect'")
    if has_passphrase(chosen):
        return kms
    return LocalKms(kms.path, passphrase=ask_passphrase(kms.path, new=True))
