"""What can be typed: the commands, their options and their help. The work is done elsewhere.

Imports nothing that help and completion don't need; each command imports what it runs on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from .app import App
from .failures import EXIT_STATUS, EXPECTED, Exit

if TYPE_CHECKING:
    from ..keys.keychain import Keychain
    from .report import Report
    from .sources import Job, Plan


def _size(
    minimum: int = 1, maximum: int | None = None
) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """Return a callback that reads a number of bytes, with an optional binary unit."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
        if text is None:
            return None
        match = re.fullmatch(r"(\d{1,19})([KMGT]?)(iB|B)?", text, re.IGNORECASE | re.ASCII)
        if match is None:
            raise click.BadParameter(f"{text!r} is not a size such as 4096, 64K or 1MiB.")
        size = int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")
        if size < minimum:
            raise click.BadParameter(f"{text} is less than {minimum} bytes.")
        if maximum is not None and size > maximum:
            raise click.BadParameter(f"{text} is more than {maximum} bytes.")
        return size

    return read


# Whether a path can be read is found out, and told, by reading it.
_PATH = click.Path(readable=False)

_sources = click.argument("sources", nargs=-1, required=True, type=_PATH, metavar="FILE...")
_keyring = click.option(
    "--keyring",
    type=_PATH,
    metavar="FILE",
    help="The keyring with the master keys.  [default: $AGS1_KEYRING, or ags1/keyring.json in "
    "$XDG_CONFIG_HOME or ~/.config]",
)
_sidecar = click.option(
    "--sidecar",
    type=_PATH,
    metavar="FILE",
    help="The sidecar of the one encrypted file.  [default: its name and .keys]",
)
_threads = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Worker threads.  [default: one for each CPU that may be used]",
)
_max_block_size = click.option(
    "--max-block-size",
    callback=_size(),
    default="64M",
    show_default=True,
    metavar="SIZE",
    help="Refuse files with larger blocks; a block is held in memory.",
)
_output = click.option(
    "-o",
    "--output",
    type=_PATH,
    metavar="PATH",
    help="Write to this file, or into this folder, or (-) to standard output.",
)
_force = click.option("-f", "--force", is_flag=True, help="Overwrite files that exist.")
_no_fsync = click.option(
    "--no-fsync",
    is_flag=True,
    help="Don't wait for the disk. Faster; a power failure may lose what was reported as done.",
)
_quiet = click.option("-q", "--quiet", is_flag=True, help="No progress bar, no notes, no OK lines.")
_json = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object a line, one line for each file, failures too.",
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
  XDG_CONFIG_HOME  where the default keyring's folder ags1 is, instead of ~/.config

\b
Files:
  ~/.config/ags1/keyring.json  master keys; who has it can open everything
  FILE.ags1                    an encrypted file
  FILE.ags1.keys               its sidecar: its own key, wrapped. Without it the
                               file is lost; keep and move the two together

\b
Examples:
  ags1 keygen
  ags1 encrypt flights.avro
  ags1 inspect flights.avro.ags1
  ags1 verify flights.avro.ags1
  ags1 cat flights.avro.ags1 | head -c 100
  ags1 decrypt flights.avro.ags1 -o copy.avro
""",
)
@click.option("--version", is_flag=True, help="Show the version and exit.")
@click.pass_context
def app(ctx: click.Context, version: bool) -> None:
    """Encrypt files in Apache Iceberg's AES-GCM stream format (AGS1), verify and decrypt them.

    Every file gets a fresh key, which is stored wrapped in a sidecar beside it. The master key that
    opens the sidecars is in a keyring, made once by 'ags1 keygen'.
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
    epilog="""
\b
Examples:
  ags1 keygen                            a key 'default' in the default keyring
  ags1 keygen --name backup-2026         another one beside it
  ags1 keygen --keyring /mnt/usb/k.json  a keyring of its own
"""
)
@click.option("--name", default="default", show_default=True, help="The master key's name.")
@_keyring
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON object.")
def keygen(name: str, keyring: str | None, as_json: bool) -> int:
    """Make a master key.

    The key is added to the keyring, and the keyring is made (mode 0600) if there is none. A key
    that is there already is never replaced: whatever it has wrapped would be lost. Keep a copy of
    the keyring in a safe place.

    As ssh does with private keys, ags1 refuses a keyring of yours that others can read or write;
    'chmod 600' mends that. In a keyring that belongs to somebody else (a secret that root mounted,
    say) only others' permission to write is refused.
    """
    import json

    from ..kms import create_key, default_keyring_path
    from .standard import print_line

    path = keyring or default_keyring_path()
    version = create_key(path, name)
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
    "--key", default="default", show_default=True, metavar="NAME", help="The master key to use."
)
@_keyring
@_sidecar
@click.option(
    "--block-size",
    callback=_size(maximum=64 << 20),
    default="1M",
    show_default=True,
    metavar="SIZE",
    help="Plaintext bytes in a block. Java and iceberg-rust read no other size than 1M.",
)
@_threads
@_force
@_no_fsync
@_quiet
@_json
def encrypt(
    sources: tuple[str, ...],
    output: str | None,
    key: str,
    keyring: str | None,
    sidecar: str | None,
    block_size: int,
    threads: int | None,
    force: bool,
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Encrypt files, each with a fresh key in a sidecar beside it.

    FILE becomes FILE.ags1 and FILE.ags1.keys; it is never removed. A folder stands for all files
    in it and below; those that are encrypted already are passed over, links to folders are not
    followed. With -o, one file is written to that name; several files or a folder are written into
    that folder, keeping the tree below the folder named.

    '-' reads standard input and writes to standard output unless -o says otherwise; output to a
    pipe needs --sidecar. The sidecar is written before the last bytes of the output.

    An encrypted file and its sidecar appear together, and only when both are whole and on the disk.
    A crash may leave a sidecar without a file, never a file without its key. With --force the old
    pair stays usable until the new one has taken its place.
    """
    from ..layout import plaintext_size
    from .sealing import Sealing
    from .sealing import encrypt as seal
    from .sources import plan_encryption

    _refuse_json_beside_data(as_json, sources, output)
    plan = plan_encryption(sources, output, sidecar)
    _refuse_terminal(plan)
    keychain = _keychain(keyring, key)
    if plan.jobs:
        keychain.prepare()

    def work(job: Job, report: Report) -> None:
        how = Sealing(block_size, threads, not no_fsync, force, report.progress)
        km, sealed = seal(job, keychain, how)
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
                "master_key_id": key,
            }
        )

    return _for_each(plan, work, as_json=as_json, quiet=quiet)


@app.command(
    epilog=f"""
\b
Examples:
  ags1 decrypt a.avro.ags1               makes a.avro
  ags1 decrypt a.ags1 -o /tmp/a.avro     names the output
  ags1 decrypt sealed -o warehouse       a folder's files, into the same tree
  ssh host cat db.ags1 | ags1 decrypt - --sidecar db.keys | psql db

{EXIT_STATUS}"""
)
@_sources
@_output
@_keyring
@_sidecar
@_max_block_size
@_threads
@_force
@_no_fsync
@_quiet
@_json
def decrypt(
    sources: tuple[str, ...],
    output: str | None,
    keyring: str | None,
    sidecar: str | None,
    max_block_size: int,
    threads: int | None,
    force: bool,
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Decrypt files that 'ags1 encrypt' made.

    FILE.ags1 becomes FILE; neither it nor its sidecar FILE.ags1.keys is removed. A folder stands
    for all files in it and below whose names end in .ags1. With -o, one file is written to that
    name; several files or a folder are written into that folder, keeping the tree below the folder
    named. The sidecar names the master key.

    A file appears under its name when every block has been verified. '-' reads standard input,
    needs --sidecar, and writes to standard output unless -o says otherwise: there, each block is
    written as soon as it is verified, and only the exit status tells that the end was reached.
    """
    from .sources import plan_decryption
    from .unsealing import Reading
    from .unsealing import decrypt as unseal

    _refuse_json_beside_data(as_json, sources, output)
    plan = plan_decryption(sources, output, sidecar)
    keychain = _keychain(keyring)

    def work(job: Job, report: Report) -> None:
        km = keychain.open(job.sidecar, None if job.is_pipe else job.source)
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

    return _for_each(plan, work, as_json=as_json, quiet=quiet)


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
    callback=_size(0),
    default="0",
    show_default=True,
    metavar="SIZE",
    help="Begin at this byte of the plaintext.",
)
@click.option(
    "--length",
    callback=_size(0),
    metavar="SIZE",
    help="Print so many bytes, not all to the end.",
)
@_keyring
@_sidecar
@_max_block_size
@_threads
def cat(
    sources: tuple[str, ...],
    offset: int,
    length: int | None,
    keyring: str | None,
    sidecar: str | None,
    max_block_size: int,
    threads: int | None,
) -> int:
    """Decrypt files to standard output, one after the other.

    With --offset and --length (one file only), just the blocks that hold the range are read and
    verified. Each block is printed once it is verified; when a later one is not, what went before
    has been printed and the exit status tells. A range beyond the end prints nothing.
    """
    from .sources import plan_reading
    from .standard import BinaryOutput
    from .unsealing import Reading, copy_out

    plan = plan_reading(sources, sidecar)
    if (offset or length is not None) and len(plan.jobs) > 1:
        raise click.UsageError("--offset and --length go with one file")
    keychain = _keychain(keyring)
    stdout = BinaryOutput()

    def work(job: Job, report: Report) -> None:
        km = keychain.open(job.sidecar, None if job.is_pipe else job.source)
        how = Reading(threads, max_block_size, report.progress)
        copy_out(job, km, how, stdout, offset=offset, length=length)
        stdout.flush()

    return _for_each(plan, work, as_json=False, quiet=True)


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
@_keyring
@_sidecar
@_max_block_size
@_threads
@_quiet
@_json
def verify(
    sources: tuple[str, ...],
    keyring: str | None,
    sidecar: str | None,
    max_block_size: int,
    threads: int | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Check every block of encrypted files; write nothing.

    A file that verifies is whole and is what was encrypted under the key in its sidecar. That file
    and sidecar were not exchanged together for another pair under the same master key is not
    something they can tell. A folder stands for all files in it and below whose names end in .ags1.
    """
    from .sources import plan_reading
    from .unsealing import Reading
    from .unsealing import verify as check

    plan = plan_reading(sources, sidecar)
    keychain = _keychain(keyring)

    def work(job: Job, report: Report) -> None:
        km = keychain.open(job.sidecar, None if job.is_pipe else job.source)
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

    return _for_each(plan, work, as_json=as_json, quiet=quiet)


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
@_json
def inspect(sources: tuple[str, ...], blocks: bool, sidecar: str | None, as_json: bool) -> int:
    """Show what encrypted files tell without a key.

    The header, sizes, blocks, and from the sidecar the ids of the key, of the key encryption key
    (KEK) that wraps it and of the master key that wraps the KEK. Nothing of this is authenticated:
    'ags1 verify' does that.
    """
    from ..errors import KeyMetadataError
    from .inspecting import as_text, blocks_of
    from .inspecting import inspect as examine
    from .sources import plan_reading
    from .standard import print_line

    def work(job: Job, report: Report) -> None:
        result = examine(job)
        if as_json:
            if blocks:
                result["block_list"] = list(blocks_of(job, result))
        else:
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

    return _for_each(plan_reading(sources, sidecar), work, as_json=as_json, quiet=False)


@app.command(
    epilog="""
\b
Examples:
  ags1 info
  ags1 info --seconds 0 --json | jq -r .libcrypto.version
"""
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
    epilog="""
\b
Examples:
  eval "$(ags1 completion bash)"                                 in ~/.bashrc
  eval "$(ags1 completion zsh)"                                  in ~/.zshrc
  ags1 completion fish > ~/.config/fish/completions/ags1.fish
"""
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


def _keychain(keyring: str | None, master_key_id: str = "") -> Keychain:
    from ..keys.keychain import Keychain
    from ..kms import LocalKms

    kms = LocalKms(keyring)
    # A keyring that cannot be used is one failure of the run, not one of every file.
    kms.names()
    return Keychain(kms, master_key_id)


def _for_each(
    plan: Plan, work: Callable[[Job, Report], None], *, as_json: bool, quiet: bool
) -> int:
    """Do ``work`` for every job; go on after failures. Returns the first failure's exit code."""
    from .report import Report
    from .sources import make_folder

    with Report(as_json=as_json, quiet=quiet, total_size=plan.total_size) as report:
        for note in plan.notes:
            report.note(note)
        for file, error in plan.problems:
            report.failed(error, file)
        for job in plan.jobs:
            report.begin(job.source_name)
            try:
                if job.makes_folder and job.target is not None:
                    make_folder(os.path.dirname(job.target), os.path.dirname(job.source))
                work(job, report)
            except EXPECTED as error:
                report.failed(error, job.source_name)
    return report.exit_code


def _refuse_json_beside_data(as_json: bool, sources: tuple[str, ...], output: str | None) -> None:
    if as_json and (output == "-" or (output is None and "-" in sources)):
        raise click.UsageError("--json and the data cannot both go to standard output")


def _refuse_terminal(plan: Plan) -> None:
    import sys

    if any(job.target == "-" for job in plan.jobs) and sys.stdout and sys.stdout.isatty():
        raise click.UsageError("encrypted data is not written to a terminal: use -o or a pipe")
