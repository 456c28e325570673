"""What can be typed: the commands, their options and their help. The work is done elsewhere.

Imports nothing that help and completion don't need; each command imports what it runs on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import options
from .app import App
from .failures import EXIT_STATUS, Exit
from .key_commands import key as key_group
from .options import KmsOptions, size
from .spark_commands import spark as spark_group
from .table_commands import table as table_group

if TYPE_CHECKING:
    from .report import Report
    from .sources import Job, Plan


_sources = click.argument("sources", nargs=-1, required=True, type=options.PATH, metavar="FILE...")
_sidecar = click.option(
    "--sidecar",
    type=options.PATH,
    metavar="FILE",
    help="The sidecar of the one encrypted file.  [default: the file's name and .keys]",
)
_threads = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Worker threads.  [default: one for each CPU that may be used]",
)
_max_block_size = click.option(
    "--max-block-size",
    callback=size(),
    default="64M",
    show_default=True,
    metavar="SIZE",
    help="Refuse files with larger blocks; a block is held in memory.",
)
_output = click.option(
    "-o",
    "--output",
    type=options.PATH,
    metavar="PATH",
    help="Write to this file, or into this folder, or (-) to standard output.",
)


@click.group(
    "ags1",
    cls=App,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
    epilog=EXIT_STATUS
    + """
\b
Environment:
  AGS1_KEYRING     the keyring to use instead of the default one
  AGS1_KMS_TYPE    the KMS to use (--kms); AGS1_KMS_KEY: the master key (--key)
  AGS1_KMS_X__Y_Z  the KMS's property x.y-z: AGS1_KMS_CLIENT__REGION is client.region
  AGS1_CONFIG      the configuration to use instead of the default one
  AGS1_DEBUG       1 shows tracebacks, and the messages of Spark and PyIceberg
  XDG_CONFIG_HOME  the folder that ags1/config.ini and ags1/keyring.json are in,
                   instead of ~/.config

\b
Configuration (options come before the environment, and that before the configuration;
what is set for another KMS than the chosen one is ignored):
  [kms]
  type = aws
  key = arn:aws:kms:eu-west-1:111122223333:alias/files
  client.region = eu-west-1

\b
Files:
  ~/.config/ags1/config.ini    which KMS, and its properties
  ~/.config/ags1/keyring.json  master keys; whoever has it can decrypt all files
  FILE.ags1                    an encrypted file
  FILE.ags1.keys               its sidecar: the file's key, wrapped. If it is lost,
                               so is the file; keep and move the two together

\b
Examples:
  ags1 keygen
  ags1 encrypt flights.avro
  ags1 inspect flights.avro.ags1
  ags1 verify flights.avro.ags1
  ags1 cat flights.avro.ags1 | head -c 100
  ags1 decrypt flights.avro.ags1 -o copy.avro
  ags1 encrypt flights.avro --kms aws --key alias/files
""",
)
@click.option("--version", is_flag=True, help="Show the version and exit.")
@click.pass_context
def app(ctx: click.Context, version: bool) -> None:
    """Encrypt, verify and decrypt files in Apache Iceberg's AES-GCM stream format (AGS1).

    Every file gets a fresh key. A sidecar beside the file has that key, wrapped by a master key.
    Master keys are in a keyring, which 'ags1 keygen' makes once, or in another KMS (--kms).
    """
    if version:
        from .. import __version__
        from .standard import print_line

        print_line(f"ags1 {__version__}")
        ctx.exit(Exit.OK)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(Exit.USAGE)


@app.command(
    short_help="Make a master key in a keyring.",
    epilog="""
\b
Examples:
  ags1 keygen                            a key 'default' in the default keyring
  ags1 keygen --name backup-2026         another one beside it
  ags1 keygen --keyring /mnt/usb/k.json  a keyring of its own
  ags1 keygen --passphrase               a new keyring that a passphrase protects
""",
)
@click.option("--name", default="default", show_default=True, help="The master key's name.")
@options.keyring
@options.new_passphrase
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON object.")
def keygen(name: str, keyring: str | None, passphrase: bool, as_json: bool) -> int:
    """Make a master key in a keyring: the short form of 'ags1 key create'.

    The key is added to the keyring, and the keyring is made (mode 0600) if there is none. A key
    that is there already is never replaced: whatever it has wrapped would be lost. Keep a copy of
    the keyring in a safe place.

    As ssh does with private keys, ags1 refuses a keyring of yours that others can read or write;
    'chmod 600' mends that. In a keyring that belongs to somebody else (a secret that root mounted,
    say) only others' permission to write is refused.
    """
    import json

    from .masters import keyring_for_new_key, settings_of
    from .standard import print_line

    chosen = settings_of(KmsOptions("local", (), keyring))
    kms = keyring_for_new_key(chosen, protect=passphrase)
    path = kms.path
    version = int(kms.create_key(name).versions[-1].version)
    if as_json:
        print_line(json.dumps({"keyring": path, "name": name, "version": version, "ok": True}))
    else:
        print_line(f"made the master key {name!r} in {path}; without it nothing can be decrypted")
    return Exit.OK


@app.command(
    epilog=f"""
\b
Examples:
  ags1 encrypt a.avro                    makes a.avro.ags1 and a.avro.ags1.keys
  ags1 encrypt a.avro -o /backup/a.ags1  names the output; the sidecar is beside it
  ags1 encrypt *.avro --key backup-2026  each file with a key of its own
  ags1 encrypt warehouse -o sealed       a folder's files, into the same tree
  tar c docs | ags1 encrypt - -o docs.tar.ags1
  pg_dump db | ags1 encrypt - --sidecar db.keys | ssh host 'cat > db.ags1'

{EXIT_STATUS}"""
)
@_sources
@_output
@click.option(
    "--key",
    metavar="NAME",
    help="The master key to use.  [default: $AGS1_KMS_KEY, the configuration's key, or in a "
    "keyring 'default']",
)
@options.kms
@_sidecar
@click.option(
    "--block-size",
    callback=size(maximum=64 << 20),
    default="1M",
    show_default=True,
    metavar="SIZE",
    help="Plaintext bytes in a block. Java and iceberg-rust read no other size than 1M.",
)
@_threads
@options.force
@click.option(
    "--skip-existing",
    is_flag=True,
    help="Pass over files whose output and sidecar exist, whatever is in them.",
)
@click.option("--again", is_flag=True, help="Encrypt files that are encrypted already, too.")
@options.no_fsync
@options.quiet
@options.as_json
def encrypt(
    sources: tuple[str, ...],
    output: str | None,
    key: str | None,
    kms: KmsOptions,
    sidecar: str | None,
    block_size: int,
    threads: int | None,
    force: bool,
    skip_existing: bool,
    again: bool,
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Encrypt files, each with a fresh key in a sidecar beside it.

    FILE becomes FILE.ags1 and FILE.ags1.keys; FILE itself stays. A folder stands for all files in
    it and below it. Files that are encrypted already are passed over, and links to folders are not
    followed. With -o, one file is written to that name; several files or a folder are written into
    that folder, with the same tree as below the folder named.

    '-' reads standard input and writes to standard output, unless -o says otherwise. Output to a
    pipe needs --sidecar; the sidecar is written before the last bytes of the output.

    An encrypted file and its sidecar appear together, and only when both are whole and on the disk.
    A crash may leave a sidecar without a file, but never a file without its key. With --force the
    old pair stays usable until the new one has taken its place. To go on with an interrupted run
    over many files, repeat it with --skip-existing. If it left a sidecar without a file, that
    sidecar keeps its keys and gets the new file's key.

    The KMS is asked once for a run. With --kms other than local, the master key has to be named.
    """
    from ..layout import plaintext_size
    from .masters import sealing_keychain
    from .running import for_each
    from .sealing import Sealing
    from .sealing import encrypt as seal
    from .sources import has_results, plan_encryption

    _refuse_json_beside_data(as_json, sources, output)
    if force and skip_existing:
        raise click.UsageError("--force and --skip-existing contradict each other")
    plan = plan_encryption(sources, output, sidecar, again=again, skip_existing=skip_existing)
    _refuse_terminal(plan)
    keychain, master_key_id = sealing_keychain(kms, key)
    if plan.jobs:
        keychain.prepare()

    def work(job: Job, report: Report) -> None:
        how = Sealing(
            block_size, threads, not no_fsync, force, report.progress, takes_orphans=skip_existing
        )
        try:
            km, sealed = seal(job, keychain, how)
        except FileExistsError as error:
            if not has_results(job):
                raise
            hint = "exists already (--force overwrites, --skip-existing passes over)"
            raise FileExistsError(error.errno, hint, error.filename) from None
        assert km.file_length is not None
        report.succeeded(
            {
                "file": job.source,
                "output": job.target,
                "sidecar": job.sidecar,
                "plaintext_size": plaintext_size(km.file_length, block_size),
                "encrypted_size": km.file_length,
                "block_size": block_size,
                "key_id": sealed.key_id,
                "master_key_id": master_key_id,
            }
        )

    return for_each(plan, work, as_json=as_json, quiet=quiet)


@app.command(
    epilog=f"""
\b
Examples:
  ags1 decrypt a.avro.ags1               makes a.avro
  ags1 decrypt a.ags1 -o copy.avro       names the output
  ags1 decrypt sealed -o warehouse       a folder's files, into the same tree
  ssh host cat db.ags1 | ags1 decrypt - --sidecar db.keys | psql db

{EXIT_STATUS}"""
)
@_sources
@_output
@options.trusted_keys
@options.kms
@_sidecar
@_max_block_size
@_threads
@options.force
@options.no_fsync
@options.quiet
@options.as_json
def decrypt(
    sources: tuple[str, ...],
    output: str | None,
    keys: tuple[str, ...],
    kms: KmsOptions,
    sidecar: str | None,
    max_block_size: int,
    threads: int | None,
    force: bool,
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Decrypt files that 'ags1 encrypt' made.

    FILE.ags1 becomes FILE; FILE.ags1 and its sidecar FILE.ags1.keys stay. A folder stands for all
    files in it and below it whose names end in .ags1. With -o, one file is written to that name;
    several files or a folder are written into that folder, with the same tree as below the folder
    named. The sidecar names the master key; --key says which ones to accept.

    A file appears under its name when every block has been verified. '-' reads standard input and
    needs --sidecar. It writes to standard output, unless -o says otherwise. There each block is
    written as soon as it is verified: the output is whole only if the exit status is 0.
    """
    from .masters import opening_keychain
    from .running import for_each
    from .sources import plan_decryption
    from .unsealing import Reading, key_metadata
    from .unsealing import decrypt as unseal

    _refuse_json_beside_data(as_json, sources, output)
    plan = plan_decryption(sources, output, sidecar)
    keychain = opening_keychain(kms, keys)

    def work(job: Job, report: Report) -> None:
        km = key_metadata(job, keychain)
        how = Reading(threads, max_block_size, report.progress)
        size = unseal(job, km, how, durable=not no_fsync, overwrite=force)
        report.succeeded(
            {
                "file": job.source,
                "output": job.target,
                "sidecar": job.sidecar,
                "plaintext_size": size,
                "encrypted_size": km.file_length,
            }
        )

    return for_each(plan, work, as_json=as_json, quiet=quiet)


@app.command(
    epilog=f"""
\b
Examples:
  ags1 cat a.csv.ags1 | wc -l
  ags1 cat a.bin.ags1 --offset 1M --length 16 | xxd
  ags1 cat part1.ags1 part2.ags1 > whole

{EXIT_STATUS}"""
)
@_sources
@click.option(
    "--offset",
    callback=size(0),
    default="0",
    show_default=True,
    metavar="SIZE",
    help="Begin at this byte of the plaintext.",
)
@click.option(
    "--length",
    callback=size(0),
    metavar="SIZE",
    help="Print this many bytes instead of all to the end.",
)
@options.trusted_keys
@options.kms
@_sidecar
@_max_block_size
@_threads
def cat(
    sources: tuple[str, ...],
    offset: int,
    length: int | None,
    keys: tuple[str, ...],
    kms: KmsOptions,
    sidecar: str | None,
    max_block_size: int,
    threads: int | None,
) -> int:
    """Decrypt files to standard output, one after the other.

    With --offset and --length (one file only), just the blocks that hold the range are read and
    verified. Each block is printed as soon as it is verified: the output is whole only if the exit
    status is 0. A range beyond the end prints nothing.
    """
    from .masters import opening_keychain
    from .running import for_each
    from .sources import plan_reading
    from .standard import BinaryOutput
    from .unsealing import Reading, copy_out, key_metadata

    plan = plan_reading(sources, sidecar)
    if (offset or length is not None) and len(plan.jobs) > 1:
        raise click.UsageError("--offset and --length go with one file")
    keychain = opening_keychain(kms, keys)
    stdout = BinaryOutput()

    def work(job: Job, report: Report) -> None:
        km = key_metadata(job, keychain)
        how = Reading(threads, max_block_size, report.progress)
        copy_out(job, km, how, stdout, offset=offset, length=length)
        stdout.flush()

    return for_each(plan, work, as_json=False, quiet=True)


@app.command(
    epilog=f"""
\b
Examples:
  ags1 verify a.avro.ags1
  ags1 verify sealed --quiet && echo all good
  ags1 verify sealed --json | jq -r 'select(.ok | not) | .file'

{EXIT_STATUS}"""
)
@_sources
@options.trusted_keys
@options.kms
@_sidecar
@_max_block_size
@_threads
@options.quiet
@options.as_json
def verify(
    sources: tuple[str, ...],
    keys: tuple[str, ...],
    kms: KmsOptions,
    sidecar: str | None,
    max_block_size: int,
    threads: int | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Check every block of encrypted files; write nothing.

    A file that verifies is whole, and is what was encrypted under the key in its sidecar. If
    somebody replaces a file together with its sidecar by another pair under the same master key,
    the new pair verifies too.

    With --key, only sidecars under the named master keys are accepted. With aws and gcp, where a
    sidecar may name another user's key, --key is needed: otherwise whoever can write the sidecar
    could pass off a file of their own, under their own key.

    A folder stands for all files in it and below it whose names end in .ags1.
    """
    from .masters import opening_keychain
    from .running import for_each
    from .sources import plan_reading
    from .unsealing import Reading, key_metadata
    from .unsealing import verify as check

    plan = plan_reading(sources, sidecar)
    keychain = opening_keychain(kms, keys)

    def work(job: Job, report: Report) -> None:
        km = key_metadata(job, keychain)
        size = check(job, km, Reading(threads, max_block_size, report.progress))
        report.succeeded(
            {
                "file": job.source,
                "sidecar": job.sidecar,
                "plaintext_size": size,
                "encrypted_size": km.file_length,
            },
            f"{job.source_name}: OK",
        )

    return for_each(plan, work, as_json=as_json, quiet=quiet)


@app.command(
    epilog=f"""
\b
Examples:
  ags1 inspect a.avro.ags1
  ags1 inspect a.avro.ags1 --blocks
  ags1 inspect sealed --json | jq .keys[].master_key_id

{EXIT_STATUS}"""
)
@_sources
@click.option("--blocks", is_flag=True, help="List every block: offset, size and nonce.")
@_sidecar
@options.as_json
def inspect(sources: tuple[str, ...], blocks: bool, sidecar: str | None, as_json: bool) -> int:
    """Show what can be read from encrypted files without a key.

    That is the header, sizes and blocks; and from the sidecar the ids of the file's key, of the key
    encryption key (KEK) that wraps it, and of the master key that wraps the KEK. None of this is
    authenticated; 'ags1 verify' authenticates a file.
    """
    from ..errors import KeyMetadataError
    from .inspecting import as_text, blocks_of
    from .inspecting import inspect as examine
    from .report import shortened
    from .running import for_each
    from .sources import plan_reading
    from .standard import print_line

    def work(job: Job, report: Report) -> None:
        result = examine(job)
        if as_json:
            if blocks:
                result["block_list"] = list(blocks_of(job, result))
        else:
            if "keys" in result:
                result["keys"] = [
                    {name: text and shortened(text) for name, text in key.items()}
                    for key in result["keys"]
                ]
            for line in as_text(result).splitlines():
                report.succeeded({}, line)
            if blocks:
                print_line("  block         offset        size  nonce")
                for block in blocks_of(job, result):
                    print_line("  {number:<9} {offset:>10} {size:>11}  {nonce}".format(**block))
        if "sidecar_error" in result:
            raise KeyMetadataError(result["sidecar_error"], file=job.sidecar)
        if as_json:
            report.succeeded(result)

    return for_each(plan_reading(sources, sidecar), work, as_json=as_json, quiet=False)


@app.command(
    short_help="Show versions, the CPU, the KMS chosen and a speed.",
    epilog="""
\b
Examples:
  ags1 info
  ags1 info --seconds 0 --json | jq -r .libcrypto.version
""",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 60),
    default=2.0,
    show_default=True,
    help="How long to measure the speed; 0 for not at all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(seconds: float, as_json: bool) -> int:
    """Show the libcrypto in use and where it came from, whether its FIPS provider is active, the
    CPU's instructions for AES, and how fast this machine encrypts and decrypts."""
    import json

    from .about import about, as_text
    from .standard import print_line

    facts = about(seconds)
    print_line(json.dumps({**facts, "ok": True}) if as_json else as_text(facts))
    return Exit.OK


@app.command(
    short_help="Print the script for completion in a shell.",
    epilog="""
\b
Examples:
  eval "$(ags1 completion bash)"                                 in ~/.bashrc
  eval "$(ags1 completion zsh)"                                  in ~/.zshrc
  ags1 completion fish > ~/.config/fish/completions/ags1.fish
""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the script that makes a shell complete commands, options and files of ags1."""
    from click.shell_completion import get_completion_class

    from .standard import print_line

    script = get_completion_class(shell)
    assert script is not None
    completer = script(app, {}, "ags1", "_AGS1_COMPLETE")
    # Not its source(): that runs the shell to see its version.
    print_line(completer.source_template % completer.source_vars())
    return Exit.OK


app.add_command(key_group)
app.add_command(spark_group)
app.add_command(table_group)


def _refuse_json_beside_data(as_json: bool, sources: tuple[str, ...], output: str | None) -> None:
    if as_json and (output == "-" or (output is None and "-" in sources)):
        raise click.UsageError("--json and the data cannot both go to standard output")


def _refuse_terminal(plan: Plan) -> None:
    import sys

    if any(job.target == "-" for job in plan.jobs) and sys.stdout and sys.stdout.isatty():
        raise click.UsageError("encrypted data is not written to a terminal: use -o or a pipe")
