"""The commands ``ags1 keygen`` and ``ags1 key …``."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from ..console import Output, counted, print_line
from ..exits import Command, Group
from ..kms import options
from ..kms.options import KmsOptions, NewMasterKey
from ..options import PATH, Paths, flag, json_output, no_fsync, output

if TYPE_CHECKING:
    from ..files.sources import Job
    from ..report import Report

_name = click.argument("name", metavar="NAME")


@click.command(cls=Command, short_help="Make a master key in a keyring.")
@click.option("--name", default="default", show_default=True, help="The master key's name.")
@options.keyring
@options.new_passphrase
@json_output
def keygen(name: str, keyring: str | None, passphrase: bool, out: Output) -> None:
    """Make a master key in a keyring: the short form of 'ags1 key create'.

    The key is added to the keyring. If there is no keyring, it is made (mode 0600). A key that
    exists is never replaced, because what it has wrapped would be lost. Keep a copy of the keyring
    in a safe place.

    As ssh does with private keys, ags1 refuses your keyring if others can read or write it; 'chmod
    600' mends that. If a keyring belongs to another user (root may have mounted it as a secret),
    ags1 refuses it only if others can write it. With the property kms.allow-readable-files=true,
    your own keyring is accepted even if others can read it. Set it only for a mounted secret whose
    mode you cannot change.

    Examples:
      ags1 keygen                            a key 'default' in the default keyring
      ags1 keygen --name backup-2026         another one beside it
      ags1 keygen --passphrase               a new keyring that a passphrase protects
      ags1 keygen --passphrase --keyring /mnt/usb/k.json     one on a USB stick
    """
    from ..kms.master_keys import settings_of
    from .keyrings import keyring_for_new_key

    chosen = settings_of(KmsOptions("local", (), keyring))
    kms = keyring_for_new_key(chosen, protect=passphrase)
    version = int(kms.create_key(name).versions[-1].version)
    line = f"made the master key {name!r} in {kms.path}; if it is lost, nothing can be decrypted"
    out.result({"keyring": kms.path, "name": name, "version": version}, line)


@click.group(
    "key", short_help="Manage master keys; move sidecars to another master key.", cls=Group
)
def key() -> None:
    """Manage the master keys of a keyring, and wrap sidecars under another master key or KMS.

    For the keys of another KMS, use its own tools: aws, az, gcloud or vault.

    Examples:
      ags1 key create backup-2026
      ags1 key list
      ags1 key rotate default && ags1 key rewrap sealed
      ags1 key rewrap sealed --to-kms vault --to-key backup
    """


@key.command("list", short_help="List the master keys.")
@options.kms
@json_output
def list_(kms: KmsOptions, out: Output) -> None:
    """List the master keys of a keyring: name, algorithm, the version that wraps, and how many
    older versions still unwrap. 'ags1 inspect' says which version has wrapped a file's key.

    Examples:
      ags1 key list
      ags1 key list --json | jq -r .key_id
    """
    from .keyrings import keyring, keyring_settings

    for info in keyring(keyring_settings(kms, "list")).list_keys():
        facts = asdict(info)
        del facts["versions"]
        older = f", and {counted(len(info.versions) - 1, 'older one')}" if info.versions[1:] else ""
        line = f"{info.key_id}  {info.algorithm}  version {info.current_version}{older}"
        out.result(facts, line)


@key.command()
@_name
@options.kms
@options.new_passphrase
@json_output
def create(name: str, kms: KmsOptions, passphrase: bool, out: Output) -> None:
    """Make a master key in a keyring.

    A key that exists is never replaced, because what it has wrapped would be lost. If there is no
    keyring, it is made ('ags1 keygen' does the same). With --passphrase, or with a passphrase in
    the settings (kms.local.passphrase-file), a new keyring is protected by the passphrase. Whenever
    the keyring is used, the passphrase is read from the settings or asked for on the terminal. If
    the settings have a passphrase, a keyring without one is refused.

    Examples:
      ags1 key create default
      ags1 key create default --passphrase --keyring /mnt/usb/k.json
    """
    from .keyrings import keyring_for_new_key, keyring_settings

    chosen = keyring_settings(kms, "create")
    info = keyring_for_new_key(chosen, protect=passphrase).create_key(name)
    out.result(asdict(info), f"made the master key {name!r}")


@key.command()
@_name
@options.kms
@json_output
def rotate(name: str, kms: KmsOptions, out: Output) -> None:
    """Make a new version of a master key in a keyring.

    From now on, the new version wraps. Older versions stay and unwrap what they have wrapped. 'ags1
    key rewrap' wraps sidecars under the new version.

    Examples:
      ags1 key rotate default
      ags1 key rotate default && ags1 key rewrap sealed
    """
    from .keyrings import keyring, keyring_settings

    info = keyring(keyring_settings(kms, "rotate")).rotate_key(name)
    done = f"rotated the master key {info.key_id!r}, version {info.current_version}"
    out.result(asdict(info), f"{done}; older versions still unwrap")


@key.command()
@options.kms
@click.option(
    "--new-passphrase-file",
    type=PATH,
    metavar="FILE",
    help="Read the new passphrase from a file (mode 0600) instead of asking.",
)
@flag("--remove", help="Remove the passphrase.")
@json_output
def protect(kms: KmsOptions, new_passphrase_file: str | None, remove: bool, out: Output) -> None:
    """Set, change or remove the passphrase of a keyring.

    If there is an old passphrase, it is read from the property kms.local.passphrase-file or asked
    for on the terminal. Earlier copies of the keyring do not change: if somebody else has one,
    rotate its keys.

    Examples:
      ags1 key protect
      ags1 key protect --keyring /mnt/usb/k.json --new-passphrase-file new.txt
      ags1 key protect --remove
    """
    from ...kms import default_keyring_path, remove_passphrase, set_passphrase
    from ...kms.local import check_names
    from ...kms.passphrase import ALLOW_READABLE, encoded, read_passphrase
    from ...kms.properties import Properties
    from ...kms.settings import KEYRING, PASSPHRASE_FILE
    from ..kms.master_keys import ask_passphrase
    from .keyrings import keyring_settings

    if remove and new_passphrase_file is not None:
        message = "--remove and --new-passphrase-file cannot be used together"
        raise click.UsageError(message)
    settings = keyring_settings(kms, "protect")
    check_names(settings.properties)
    path = settings.properties.get(KEYRING) or default_keyring_path()
    allow_readable = Properties(settings.properties).flag(ALLOW_READABLE, default=False)
    old: Any = functools.partial(ask_passphrase, path)
    if file := settings.properties.get(PASSPHRASE_FILE):
        old = read_passphrase(file, allow_readable=allow_readable)
    elif text := settings.properties.get("kms.local.passphrase"):
        old = encoded(text)
    new: Any = functools.partial(ask_passphrase, path, new=True)
    if new_passphrase_file is not None:
        new = read_passphrase(new_passphrase_file, allow_readable=allow_readable)
    if remove:
        had_one = remove_passphrase(path, old, allow_readable=allow_readable)
        done = "removed the passphrase of" if had_one else "there was no passphrase to remove from"
    else:
        had_one = set_passphrase(path, new, old, allow_readable=allow_readable)
        done = "changed the passphrase of" if had_one else "set a passphrase for"
    out.result({"keyring": path, "protected": not remove}, f"{done} the keyring {path}")


@key.command("export-public-info", short_help="Print what is public about master keys.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@options.kms
def export_public_info(names: tuple[str, ...], kms: KmsOptions) -> None:
    """Print what is public about the master keys of a keyring, as JSON.

    Without NAME, all keys are printed: their versions with times and fingerprints. Nothing secret
    is printed, and not where the keyring is. Use it for audits, and to compare the keys of two
    places.

    Examples:
      ags1 key export-public-info > keys.json
      ags1 key export-public-info default --keyring /mnt/usb/k.json | diff keys.json -
    """
    from .keyrings import keyring, keyring_settings

    opened = keyring(keyring_settings(kms, "describe"))
    wanted = names or tuple(opened.names())
    keys = [asdict(opened.describe_key(name)) for name in wanted]
    print_line(json.dumps({"kms": "local", "keys": keys}, indent=2))


@key.command(short_help="Wrap the keys in sidecars again.")
@click.argument("sources", nargs=-1, required=True, type=PATH, metavar="SIDECAR|FOLDER...")
@options.kms
@options.trusted_keys
@options.target
@click.option(
    "--add-key",
    metavar="NAME",
    help="Wrap under this master key too. The keys that wrap now stay, and each of them opens the "
    "files. --to-kms or --to-keyring says where it is, if it is elsewhere.",
)
@flag("--dry-run", help="Do everything, but write no sidecar.")
@no_fsync
@output
def rewrap(
    sources: Paths,
    kms: KmsOptions,
    keys: tuple[str, ...],
    target: NewMasterKey,
    add_key: str | None,
    dry_run: bool,
    no_fsync: bool,
    out: Output,
) -> int:
    """Wrap the keys in sidecars again. The encrypted files do not change.

    The keys are wrapped under another master key (--to-key), which may be in another KMS
    (--to-kms), or without options under the newest version of their own master key. With --add-key,
    one more master key opens the files, for example an escrow key; a later --to-key leaves it. A
    folder stands for all *.ags1.keys in it and below it. --kms and --key say how the sidecars are
    opened now. The other KMS takes its settings from the environment and the configuration if these
    are for it.

    A sidecar is replaced in one step, after the new one has been unwrapped as a check. An
    interrupted run can be repeated; it skips sidecars that are under --to-key already. Do not
    encrypt the same files with --force meanwhile. After the run, these files no longer need the old
    master key. Older copies of their sidecars (backups) still do, and whoever has used a copy to
    get a file's key still has that key.

    Examples:
      ags1 key rewrap sealed                     newest version of each one's key
      ags1 key rewrap sealed --to-key new        another key of the same KMS
      ags1 key rewrap sealed --add-key escrow    one more key that opens the files
      ags1 key rewrap sealed --add-key team --to-keyring team.json
      ags1 key rewrap a.ags1.keys --to-kms vault --to-key backup
      ags1 key rewrap sealed --kms aws --key $OLD --to-key $NEW --dry-run
    """
    from ...keys.cache import KekCache
    from ...keys.keychain import Keychain
    from ..files.running import for_each
    from ..files.sources import plan_rewrapping
    from ..kms.master_keys import accepted_key_ids_of, connect, settings_of, target_of
    from .rewrapping import Rewrapping
    from .rewrapping import add_key as wrap_too
    from .rewrapping import rewrap as wrap_again

    if add_key is not None:
        if target.to_key is not None:
            raise click.UsageError("--add-key and --to-key cannot be used together")
        target = replace(target, to_key=add_key)
    other = target_of(target)
    plan = plan_rewrapping(sources)
    settings = settings_of(kms)
    source = connect(settings)
    wrapping = source if other is None else connect(other)
    trusted = accepted_key_ids_of(settings, source, keys)
    if trusted is not None and target.to_key is not None and other is None and add_key is None:
        trusted |= {target.to_key}  # an interrupted run has put sidecars under it
    if plan.jobs and target.to_key is not None:
        # A key that cannot be used is one failure of the run.
        Keychain(wrapping, target.to_key).prepare()
    request = Rewrapping(
        Keychain(source, "", trusted_key_ids=trusted),
        target.to_key,
        None if other is None else wrapping,
        wrapping,
        KekCache(wrapping),
        dry_run=dry_run,
        durable=not no_fsync,
    )

    counts = {True: 0, False: 0}

    def work(job: Job, report: Report) -> None:
        done = (wrap_again if add_key is None else wrap_too)(job.source, request)
        counts[done["changed"]] += 1
        report.succeeded(done, _wrapped_line(done, "" if add_key is None else " also"))

    code = for_each(plan, work, out, "wrapped")
    if len(plan.jobs) > 1 and not out.as_json and not out.quiet:
        would = "would be wrapped" if dry_run else "wrapped"
        print_line(f"{counts[True]:,} {would}, {counts[False]:,} already were")
    return code


def _wrapped_line(done: dict[str, Any], also: str) -> str:
    from ..report import shortened
    from ..results import format_line

    what = "wrapped" if done["changed"] else "is already wrapped"
    shown = {**done, "master_key_id": shortened(done["master_key_id"])}
    version = done.get("version")
    newest = "" if version is None else f", version {version}, the newest"
    return format_line(shown, "file", [f"{what}{also} under {{master_key_id}}{newest}"])
