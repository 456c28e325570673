"""Options that say which KMS is meant, and which of its master keys. The list of KMSs is made when
an option names one, because help has to be quick."""

from __future__ import annotations

from dataclasses import dataclass, field

import click

from ..options import PATH, Pair, flag, grouped


@dataclass(frozen=True, slots=True)
class KmsOptions:
    """What ``--kms``, ``--kms-property``, ``--keyring`` and ``--key-file`` say."""

    kms_type: str | None = None
    kms_properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    keyring: str | None = None
    key_file: str | None = None


@dataclass(frozen=True, slots=True)
class NewMasterKey:
    """What ``--to-key``, ``--to-keyring``, ``--to-kms`` and ``--to-kms-property`` say: the master
    key to wrap under, and its KMS if that is another one."""

    to_key: str | None = None
    to_kms: str | None = None
    to_kms_properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    to_keyring: str | None = None

    @property
    def kms(self) -> KmsOptions | None:
        """The other KMS, None for the one that the keys are under already."""
        other = KmsOptions(self.to_kms, self.to_kms_properties, self.to_keyring)
        return None if other == KmsOptions() else other


class _KmsType(click.ParamType):  # type: ignore[type-arg]
    name = "type"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from ...kms.registry import kms_types

        types = kms_types()
        for known in types:
            if value in (known, known.upper()):
                return known
        self.fail(f"{value!r} is not a type of KMS: they are {', '.join(types)}.", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        from click.shell_completion import CompletionItem

        from ...kms.registry import kms_types

        return [CompletionItem(known) for known in kms_types() if known.startswith(incomplete)]


KMS_TYPE = _KmsType()
PROPERTY = Pair("NAME=VALUE", "client.region=eu-west-1", of_kms=True)

keyring = click.option(
    "--keyring",
    type=PATH,
    metavar="FILE",
    help="The keyring with the master keys.  [default: $AGS1_KEYRING, or ags1/keyring.json in "
    "$XDG_CONFIG_HOME or ~/.config]",
)
_key_file = click.option(
    "--key-file",
    type=PATH,
    metavar="FILE",
    help="Instead of a KMS, use the AES key in this file (mode 0600): 16, 24 or 32 bytes, or twice "
    "as many hexadecimal digits. The same as --kms file.",
)
new_passphrase = flag(
    "--passphrase",
    help="Protect the new keyring with a passphrase: the one in the settings "
    "(kms.local.passphrase-file), or one that you type twice.",
)
_kms_type = click.option(
    "--kms",
    "kms_type",
    type=KMS_TYPE,
    metavar="TYPE",
    help="The KMS with the master keys: local (a keyring), file (--key-file), aws, gcp, azure, "
    "vault, memory, or a plug-in's.  [default: $AGS1_KMS_TYPE, the configuration's type, or local]",
)
_kms_property = click.option(
    "--kms-property",
    "kms_properties",
    type=PROPERTY,
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of the KMS, such as client.region=eu-west-1; may be repeated. Other users can "
    "see it in the list of processes: put secrets in the environment or the configuration.",
)
new_key = click.option(
    "--key",
    metavar="NAME",
    help="The master key to use.  [default: $AGS1_KMS_KEY, the configuration's key, or in a "
    "keyring 'default']",
)
trusted_keys = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="NAME",
    help="Accept only keys that are wrapped under this master key; may be repeated. aws and gcp "
    "need it, because with them the key may be another user's.  [default with those: "
    "$AGS1_KMS_KEY, or the configuration's key]",
)
_TARGET = (
    click.option("--to-key", metavar="NAME", help="Wrap under this master key."),
    click.option(
        "--to-kms",
        type=KMS_TYPE,
        metavar="TYPE",
        help="The KMS of that key, if it is another one; needs --to-key.",
    ),
    click.option(
        "--to-kms-property",
        "to_kms_properties",
        type=PROPERTY,
        multiple=True,
        metavar="NAME=VALUE",
        help="A property of that KMS; may be repeated.",
    ),
    click.option(
        "--to-keyring",
        type=PATH,
        metavar="FILE",
        help="The keyring of that key, if it is in another one. The same as --to-kms local with "
        "the keyring.",
    ),
)


kms = grouped("kms", KmsOptions, _kms_type, _kms_property, keyring, _key_file)
target = grouped("target", NewMasterKey, *_TARGET)
