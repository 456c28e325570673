"""The commands on files: their options and their help. The work is done elsewhere."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ..console import STREAM, BinaryOutput, Output, print_line
from ..exits import Command
from ..kms.options import KmsOptions, kms, new_key, trusted_keys
from ..options import (
    PATH,
    Paths,
    flag,
    force,
    grouped,
    json_output,
    no_fsync,
    output,
    output_path,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...engine.key_metadata import KeyMetadata
    from ..report import Report
    from .decrypting import Opened, Reading
    from .sources import Job, Plan


_sources = click.argument("sources", nargs=-1, required=True, type=PATH, metavar="FILE...")
_sidecar = click.option(
    "--sidecar",
    type=PATH,
    metavar="FILE",
    help="The sidecar of the encrypted file, if there is one file only.  [default: the encrypted "
    "file's name and .keys]",
)
_threads = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Worker threads.  [default: one for each CPU that ags1 may use]",
)
_verbose = flag("-v", "--verbose", help="Say of each file that is skipped why.")
_max_block_size = click.option(
    "--max-block-size",
    callback=size(),
    default="64M",
    show_default=True,
    metavar="SIZE",
    help="Refuse files with larger blocks. A block is held in memory.",
)


@dataclass(frozen=True, slots=True)
class _OpeningOptions:
    """What the options say of how encrypted files are opened."""

    keys: tuple[str, ...]
    kms: KmsOptions
    sidecar: str | None
    max_block_size: int
    threads: int | None


_opening = grouped("given", _OpeningOptions, trusted_keys, kms, _sidecar, _max_block_size, _threads)
_output = output_path("Write to this file, into this folder, or (-) to standard output.", "PATH")


@click.command(cls=Command)
@_sources
@_output
@new_key
@kms
@_sidecar
@click.option(
    "--block-size",
    callback=size(maximum=64 << 20),
    default="1M",
    show_default=True,
    metavar="SIZE",
    help="Plaintext bytes in a block. Java and iceberg-rust read only 1M.",
)
@_threads
@force
@flag(
    "--skip-existing",
    help="Skip files whose output and sidecar exist. Their content is not checked. The last line "
    "says how many of them changed later.",
)
@flag("--again", help="Also encrypt files that are encrypted already.")
@no_fsync
@_verbose
@output
def encrypt(
    sources: Paths,
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
    verbose: bool,
    out: Output,
) -> int:
    """Encrypt files, each with a fresh key in a sidecar beside it.

    FILE becomes FILE.ags1 and FILE.ags1.keys; FILE itself stays. A folder stands for all files in
    it and below it. Files that are encrypted already, sidecars and keyrings are skipped, and links
    to folders are not followed; the last line says how many. With -o, one file is written to that
    name; several files or a folder are written into that folder, with the same tree as in the
    source folder.

    '-' reads standard input and writes to standard output, unless -o says otherwise. Output to a
    pipe needs --sidecar; the sidecar is written before the last bytes of the output.

    An encrypted file and its sidecar appear together, and only when both are whole and on the disk.
    A crash may leave a sidecar without a file, but never a file without its key. With --force, the
    old pair can be decrypted until the new pair has replaced it. To go on with an interrupted run
    over many files, repeat it with --skip-existing. If it left a sidecar without a file, that
    sidecar keeps its keys and gets the new file's key.

    The KMS is called once for a run. With another KMS than local, name the master key with --key.

    Examples:
      ags1 encrypt a.avro                    makes a.avro.ags1 and a.avro.ags1.keys
      ags1 encrypt a.avro -o /backup/a.ags1  names the output; the sidecar is beside it
      ags1 encrypt *.avro --key backup-2026  each file with a key of its own
      ags1 encrypt warehouse -o sealed       a folder's files, into the same tree
      tar c docs | ags1 encrypt - -o docs.tar.ags1
      pg_dump db | ags1 encrypt - --sidecar db.keys | ssh host 'cat > db.ags1'
    """
    from ...engine.layout import plaintext_size
    from ...files.sidecars import OldKeys
    from ..kms.master_keys import encrypting_keychain
    from .encrypting import EncryptingOptions
    from .encrypting import encrypt as encrypt_file
    from .running import for_each
    from .sources import has_results, plan_encryption

    _refuse_json_beside_data(out, sources, output)
    if force and skip_existing:
        raise click.UsageError("--force and --skip-existing cannot be used together")
    plan = plan_encryption(sources, output, sidecar, again=again, skip_existing=skip_existing)
    if any(job.target == STREAM for job in plan.jobs) and sys.stdout and sys.stdout.isatty():
        message = "encrypted data is not written to a terminal: give -o FILE, or use a pipe"
        raise click.UsageError(message)
    if not plan.jobs:  # a missing source is reported without a keyring
        return for_each(plan, lambda *_: None, out, "encrypted", verbose=verbose)
    keychain, master_key_id = encrypting_keychain(kms, key)
    keychain.prepare()
    old_keys = OldKeys.KEEP if skip_existing else OldKeys.REFUSE
    if force:
        old_keys = OldKeys.RETIRE

    def work(job: Job, report: Report) -> None:
        options = EncryptingOptions(
            block_size,
            threads,
            durable=not no_fsync,
            old_keys=old_keys,
            progress=report.progress,
        )
        try:
            key_metadata, written = encrypt_file(job, keychain, options)
        except FileExistsError as error:
            if not has_results(job):
                raise
            hint = "exists already (--force overwrites it, --skip-existing skips it)"
            raise FileExistsError(error.errno, hint, error.filename) from None
        assert key_metadata.file_length is not None
        facts = _facts(job, plaintext_size(key_metadata.file_length, block_size), key_metadata)
        facts |= {"block_size": block_size, "key_id": written.key_id}
        report.succeeded({**facts, "master_key_id": master_key_id})

    return for_each(plan, work, out, "encrypted", verbose=verbose)


def _facts(job: Job, size: int, key_metadata: KeyMetadata) -> dict[str, Any]:
    """Return what is printed of every file that was encrypted, decrypted or verified."""
    files = {"file": job.source, "output": job.target, "sidecar": job.sidecar}
    if job.target is None:
        del files["output"]
    return {**files, "plaintext_size": size, "encrypted_size": key_metadata.file_length}


@click.command(cls=Command)
@_sources
@_output
@_opening
@force
@no_fsync
@_verbose
@output
def decrypt(
    sources: Paths,
    output: str | None,
    given: _OpeningOptions,
    force: bool,
    no_fsync: bool,
    verbose: bool,
    out: Output,
) -> int:
    """Decrypt files that 'ags1 encrypt' made.

    FILE.ags1 becomes FILE; FILE.ags1 and its sidecar FILE.ags1.keys stay. A folder stands for all
    files in it and below it whose names end in .ags1. With -o, one file is written to that name;
    several files or a folder are written into that folder, with the same tree as in the source
    folder. The sidecar names the master key; --key says which ones to accept.

    A file appears under its name when every block has been verified. '-' reads standard input and
    needs --sidecar. It writes to standard output, unless -o says otherwise. There, and in a pipe or
    a device, each block is written as soon as it is verified: the output is whole only if the exit
    status is 0.

    Examples:
      ags1 decrypt a.avro.ags1               makes a.avro
      ags1 decrypt a.ags1 -o copy.avro       names the output
      ags1 decrypt sealed -o warehouse       a folder's files, into the same tree
      ssh host cat db.ags1 | ags1 decrypt - --sidecar db.keys | psql db
    """
    from .decrypting import decrypt as decrypt_file
    from .sources import plan_decryption

    _refuse_json_beside_data(out, sources, output)
    plan = plan_decryption(sources, output, given.sidecar)

    def work(job: Job, report: Report, file: Opened, options: Reading) -> None:
        size = decrypt_file(job, file, options, durable=not no_fsync, overwrite=force)
        report.succeeded(_facts(job, size, file.km))

    return _for_each_opened(plan, given, work, out, "decrypted", verbose=verbose)


@click.command(cls=Command)
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
@_opening
def cat(sources: Paths, offset: int, length: int | None, given: _OpeningOptions) -> int:
    """Decrypt files to standard output, one after the other.

    With --offset and --length (one file only), only the blocks that hold the range are read and
    verified. Each block is printed as soon as it is verified: the output is whole only if the exit
    status is 0. A range beyond the end prints nothing.

    Examples:
      ags1 cat a.csv.ags1 | wc -l
      ags1 cat a.bin.ags1 --offset 1M --length 16 | xxd
      ags1 cat part1.ags1 part2.ags1 > whole
    """
    from .decrypting import copy_out
    from .sources import plan_reading

    plan = plan_reading(sources, given.sidecar)
    if (offset or length is not None) and len(plan.jobs) > 1:
        raise click.UsageError("--offset and --length take one file, not several")
    stdout = BinaryOutput()

    def work(job: Job, report: Report, file: Opened, options: Reading) -> None:
        stdout.refuse_source(job.source)
        copy_out(job, file, options, stdout.write, offset=offset, length=length)
        stdout.flush()

    return _for_each_opened(plan, given, work, Output(quiet=True), "printed")


@click.command(cls=Command)
@_sources
@_opening
@output
def verify(sources: Paths, given: _OpeningOptions, out: Output) -> int:
    """Check every block of encrypted files; write nothing.

    If a file verifies, it is complete and is what was encrypted under the key in its sidecar. If
    somebody replaces a file and its sidecar with another pair under the same master key, the other
    pair verifies, too.

    With --key, only sidecars under the named master keys are accepted. aws and gcp need --key: with
    them, a sidecar may name another user's key, so that whoever can write the sidecar could replace
    the file with their own.

    A folder stands for all files in it and below it whose names end in .ags1.

    Examples:
      ags1 verify a.avro.ags1
      ags1 verify sealed --quiet && echo all good
      ags1 verify sealed --json | jq -r 'select(.ok | not) | .file'
    """
    from .decrypting import verify as check
    from .sources import plan_reading

    plan = plan_reading(sources, given.sidecar)

    def work(job: Job, report: Report, file: Opened, options: Reading) -> None:
        size = check(job, file, options)
        report.succeeded(_facts(job, size, file.km), f"{job.source_name}: OK")

    return _for_each_opened(plan, given, work, out, "verified")


@click.command(cls=Command)
@_sources
@flag("--blocks", help="List every block: offset, size and nonce.")
@_sidecar
@json_output
def inspect(sources: Paths, blocks: bool, sidecar: str | None, out: Output) -> int:
    """Show what can be read from encrypted files without a key.

    These are the file's header, its sizes and its blocks. From the sidecar come the ids of the
    file's key, of the key encryption key (KEK) that wraps it, and of the master key that wraps the
    KEK. None of this is authenticated; 'ags1 verify' authenticates a file.

    Examples:
      ags1 inspect a.avro.ags1
      ags1 inspect a.avro.ags1 --blocks
      ags1 inspect sealed --json | jq .keys[].master_key_id
    """
    from ...errors import KeyMetadataError
    from ..report import shortened
    from .inspecting import as_text, blocks_of
    from .inspecting import inspect as examine
    from .running import for_each
    from .sources import plan_reading

    if STREAM in sources:
        raise click.UsageError("inspect reads files, not standard input: save it to a file")

    def work(job: Job, report: Report) -> None:
        result = examine(job)
        if out.as_json:
            if blocks:
                result["block_list"] = list(blocks_of(job, result))
        else:
            for key in result.get("keys", ()):
                key.update({n: shortened(text) for n, text in key.items() if isinstance(text, str)})
            for line in as_text(result).splitlines():
                report.succeeded({}, line)
            if blocks:
                print_line("  block         offset        size  nonce")
                for block in blocks_of(job, result):
                    print_line("  {number:<9} {offset:>10} {size:>11}  {nonce}".format(**block))
        if "sidecar_error" in result:
            raise KeyMetadataError(result["sidecar_error"], file=job.sidecar)
        if out.as_json:
            report.succeeded(result)

    plan = plan_reading(sources, sidecar)
    return for_each(plan, work, Output(as_json=out.as_json), "inspected")


def _for_each_opened(
    plan: Plan,
    given: _OpeningOptions,
    work: Callable[[Job, Report, Opened, Reading], None],
    out: Output,
    done: str,
    *,
    verbose: bool = False,
) -> int:
    """Do ``work`` for every encrypted file of a plan; it gets the open file and its key."""
    from ..kms.master_keys import decrypting_keychain
    from .decrypting import Reading, opened
    from .running import for_each

    keychain = decrypting_keychain(given.kms, given.keys)

    def open_and_work(job: Job, report: Report) -> None:
        options = Reading(given.threads, given.max_block_size, report.progress)
        with opened(job, keychain) as file:
            work(job, report, file, options)

    return for_each(plan, open_and_work, out, done, verbose=verbose)


def _refuse_json_beside_data(out: Output, sources: Paths, output: str | None) -> None:
    if out.as_json and (output == STREAM or (output is None and STREAM in sources)):
        message = "--json and the data cannot both go to standard output: give -o FILE"
        raise click.UsageError(message)
