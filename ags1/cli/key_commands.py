"""The commands ``ags1 key …``: master keys made, listed and rotated, and sidecars wrapped anew."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from . import options
from .failures import EXIT_STATUS, Exit
from .options import KmsOptions

if TYPE_CHECKING:
    from ..kms import KeyInfo
    from .report import Report
    from .sources import Job

_json = click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON object.")
_name = click.argument("name", metavar="NAME")


@click.group(
    "key",
    short_help="Manage master keys; move sidecars to another one.",
    invoke_without_command=True,
    epilog="""
\b
Examples:
  ags1 key create backup-2026
  ags1 key list
  ags1 key rotate default && ags1 key rewrap sealed
  ags1 key rewrap sealed --to-kms vault --to-key backup
""",
)
@click.pass_context
def key(ctx: click.Context) -> None:
    """Manage the master keys of a keyring, and move sidecars to another master key or KMS.

    Another KMS's keys are managed with its own tools: aws, az, gcloud or vault.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(Exit.USAGE)


@key.command(
    "list",
    short_help="List the master keys.",
    epilog=f"""
\b
Examples:
  ags1 key list
  ags1 key list --json | jq -r .key_id

{EXIT_STATUS}""",
)
@options.kms
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def list_(kms: KmsOptions, as_json: bool) -> int:
    """List the master keys of a keyring: name, algorithm, current version."""
    import json

    from .failures import one_line
    from .masters import keyring, keyring_settings
    from .standard import print_line

    for info in keyring(keyring_settings(kms, "list")).list_keys():
        if as_json:
            facts = asdict(info)
            del facts["versions"]
            print_line(json.dumps({**facts, "ok": True}))
        else:
            facts_shown = (info.key_id, info.algorithm, f"version {info.current_version}")
            print_line(one_line("  ".join(facts_shown)))
    return Exit.OK


@key.command(
    epilog=f"""
\b
Examples:
  ags1 key create default
  ags1 key create default --passphrase --keyring /mnt/usb/k.json

{EXIT_STATUS}"""
)
@_name
@options.kms
@options.new_passphrase
@_json
def create(name: str, kms: KmsOptions, passphrase: bool, as_json: bool) -> int:
    """Make a master key in a keyring.

    One that is there already is never replaced: whatever it has wrapped would be lost. A keyring is
    made if there is none ('ags1 keygen' does the same). With --passphrase, or a
    passphrase in the settings (kms.local.passphrase-file), a new keyring is protected by it: on a
    terminal it is asked for when the keyring is used. Where a passphrase is set, a keyring without
    one is refused.
    """
    from .masters import keyring_for_new_key, keyring_settings

    chosen = keyring_settings(kms, "create")
    info = keyring_for_new_key(chosen, protect=passphrase).create_key(name)
    _tell(info, f"made the master key {name!r}", as_json)
    return Exit.OK


@key.command(
    epilog=f"""
\b
Examples:
  ags1 key rotate default
  ags1 key rotate default && ags1 key rewrap sealed

{EXIT_STATUS}"""
)
@_name
@options.kms
@_json
def rotate(name: str, kms: KmsOptions, as_json: bool) -> int:
    """Make a new version of a master key in a keyring.

    The new version wraps from now on. Older ones stay and open what they have wrapped; 'ags1 key
    rewrap' brings sidecars to the new one.
    """
    from .masters import keyring, keyring_settings

    info = keyring(keyring_settings(kms, "rotate")).rotate_key(name)
    said = f"rotated the master key {info.key_id!r}, version {info.current_version}"
    _tell(info, f"{said}; older versions still open", as_json)
    return Exit.OK


@key.command(
    epilog=f"""
\b
Examples:
  ags1 key protect
  ags1 key protect --keyring /mnt/usb/k.json --new-passphrase-file new.txt
  ags1 key protect --remove

{EXIT_STATUS}"""
)
@options.kms
@click.option(
    "--new-passphrase-file",
    type=options.PATH,
    metavar="FILE",
    help="Take the new passphrase from a file (mode 0600) rather than asking.",
)
@click.option("--remove", is_flag=True, help="Remove the passphrase.")
@_json
def protect(kms: KmsOptions, new_passphrase_file: str | None, remove: bool, as_json: bool) -> int:
    """Set, change or remove the passphrase of a keyring.

    The old one, if there is one, is asked for first, on the terminal, or is the property
    kms.local.passphrase-file's. Copies of the keyring from before stay as they are: if one is in
    the wrong hands, rotate its keys.
    """
    import functools
    import json

    from ..kms import default_keyring_path, remove_passphrase, set_passphrase
    from ..kms.local import check_names
    from ..kms.passphrase import encoded, read_passphrase
    from .failures import one_line
    from .masters import ask_passphrase, keyring_settings
    from .standard import print_line

    if remove and new_passphrase_file is not None:
        raise click.UsageError("--remove and --new-passphrase-file contradict each other")
    settings = keyring_settings(kms, "protect")
    check_names(settings.properties)
    path = settings.properties.get("kms.local.keyring") or default_keyring_path()
    old: Any = functools.partial(ask_passphrase, path)
    if file := settings.properties.get("kms.local.passphrase-file"):
        old = read_passphrase(file)
    elif text := settings.properties.get("kms.local.passphrase"):
        old = encoded(text)
    new: Any = functools.partial(ask_passphrase, path, new=True)
    if new_passphrase_file is not None:
        new = read_passphrase(new_passphrase_file)
    if remove:
        had_one = remove_passphrase(path, old)
        done = "removed the passphrase of" if had_one else "there was no passphrase to remove from"
    else:
        had_one = set_passphrase(path, new, old)
        done = "changed the passphrase of" if had_one else "set a passphrase for"
    if as_json:
        print_line(json.dumps({"keyring": path, "protected": not remove, "ok": True}))
    else:
        print_line(one_line(f"{done} the keyring {path}"))
    return Exit.OK


@key.command(
    "export-public-info",
    short_help="Print what is public about master keys.",
    epilog=f"""
\b
Examples:
  ags1 key export-public-info > keys.json
  ags1 key export-public-info default --keyring /mnt/usb/k.json | diff keys.json -

{EXIT_STATUS}""",
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@options.kms
def export_public_info(names: tuple[str, ...], kms: KmsOptions) -> int:
    """Print what is public about a keyring's master keys, all of them unless some are named, as
    JSON.

    Versions with their times and fingerprints; nothing secret, and nothing about where the keyring
    is. For audits, and to see whether two places hold the same key.
    """
    import json

    from .masters import keyring, keyring_settings
    from .standard import print_line

    opened = keyring(keyring_settings(kms, "describe"))
    wanted = names or tuple(opened.names())
    keys = [asdict(opened.describe_key(name)) for name in wanted]
    print_line(json.dumps({"kms": "local", "keys": keys}, indent=2))
    return Exit.OK


@key.command(
    short_help="Wrap sidecars' keys under another master key.",
    epilog=f"""
\b
Examples:
  ags1 key rewrap sealed                     newest version of each one's key
  ags1 key rewrap sealed --to-key new        another key of the same KMS
  ags1 key rewrap a.ags1.keys --to-kms vault --to-key backup
  ags1 key rewrap sealed --kms aws --key alias/old --to-key alias/new --dry-run

{EXIT_STATUS}""",
)
@click.argument("sources", nargs=-1, required=True, type=options.PATH, metavar="SIDECAR|FOLDER...")
@options.kms
@options.trusted_keys
@click.option("--to-key", metavar="NAME", help="The master key to wrap under.")
@click.option(
    "--to-kms",
    type=options.KMS_TYPE,
    metavar="TYPE",
    help="The KMS of that key, if it is another one; needs --to-key.",
)
@click.option(
    "--to-kms-property",
    "to_kms_properties",
    type=options.PROPERTY,
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of that KMS; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Do everything but write the sidecars.")
@options.no_fsync
@options.quiet
@options.as_json
def rewrap(
    sources: tuple[str, ...],
    kms: KmsOptions,
    keys: tuple[str, ...],
    to_key: str | None,
    to_kms: str | None,
    to_kms_properties: tuple[tuple[str, str], ...],
    dry_run: bool,
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Wrap the keys in sidecars anew; the encrypted files stay as they are.

    Under another master key (--to-key), one of another KMS (--to-kms too), or else under the newest
    version of their own. A folder stands for all *.ags1.keys in it and below. --kms, --key and the
    environment are about the KMS that opens the sidecars now; the other one takes from environment
    and configuration what is meant for its own type.

    A sidecar is replaced in one step, after what replaces it has been unwrapped again; an
    interrupted run can be repeated, and passes over what is under --to-key already. Don't
    encrypt the same files with --force meanwhile. Once all have succeeded, these files don't need
    the old master key any more; older copies of their sidecars (backups) do, and who has got at a
    file's key by one still has it.
    """
    from ..keys.cache import KekCache
    from ..keys.keychain import Keychain
    from .masters import connect, settings_of, trusted_keys
    from .report import shortened
    from .rewrapping import Rewrapping
    from .rewrapping import rewrap as wrap_anew
    from .running import for_each
    from .settings import from_options
    from .sources import plan_rewrapping

    other_kms = KmsOptions(to_kms, to_kms_properties)
    is_other = to_kms is not None or bool(to_kms_properties)
    if is_other and from_options(to_kms, to_kms_properties, None).kind is None:
        raise click.UsageError("--to-kms-property needs --to-kms")
    if is_other and to_key is None:
        raise click.UsageError("--to-kms needs --to-key")
    plan = plan_rewrapping(sources)
    settings = settings_of(kms)
    source = connect(settings)
    target = connect(settings_of(other_kms)) if is_other else None
    trusted = trusted_keys(settings, source, keys)
    if trusted is not None and to_key is not None and not is_other:
        trusted |= {to_key}
    if plan.jobs and to_key is not None:
        # A key that cannot be used is one failure of the run.
        Keychain(target or source, to_key).prepare()
    how = Rewrapping(
        Keychain(source, "", trusted_key_ids=trusted),
        to_key,
        target,
        KekCache(target or source),
        dry_run=dry_run,
        durable=not no_fsync,
    )

    def work(job: Job, report: Report) -> None:
        done = wrap_anew(job.source, how)
        what = "would be wrapped" if dry_run else "wrapped"
        if not done["changed"]:
            what = "is wrapped already"
        report.succeeded(done, f"{job.source}: {what} under {shortened(done['master_key_id'])}")

    return for_each(plan, work, as_json=as_json, quiet=quiet)


def _tell(info: KeyInfo, line: str, as_json: bool) -> None:
    import json

    from .failures import one_line
    from .standard import print_line

    print_line(json.dumps({**asdict(info), "ok": True}) if as_json else one_line(line))
