"""Lists the files of a run and names their targets, before any work is done. Wrong usage (two
sources with one target, an output without a name) stops the run before it begins. A source that
does not exist or cannot be read is a failure of this source only."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import click

from ...engine import layout
from ...errors import FormatError, KeyMetadataError
from ...files.paths import SUFFIX
from ...host.atomic import is_temporary
from ...host.descriptors import is_stream
from ...keys.sidecar import MAX_SIDECAR_SIZE, Sidecar, sidecar_beside
from ...keys.sidecar import SUFFIX as SIDECAR_SUFFIX
from ...kms.keyring import LOCK_SUFFIX, is_keyring
from ..console import STDIN, STREAM
from ..options import Paths

_ENCRYPTED = "encrypted already"


@dataclass(frozen=True, slots=True)
class Job:
    """One file's work. ``target`` is None if nothing is written. With ``makes_folder``, its folder
    is made if it is missing. ``size`` is the source's in bytes, 0 if it is not known before it is
    read. ``is_pipe``: the source can only be read from its beginning to its end."""

    source: str
    target: str | None
    sidecar: str
    size: int
    is_pipe: bool = False
    makes_folder: bool = False

    @property
    def source_name(self) -> str:
        """What to call the source in messages."""
        return STDIN if self.source == STREAM else self.source

    @property
    def to_stream(self) -> bool:
        """Whether the target is written as a stream."""
        return _is_stream(self.target)


@dataclass(slots=True)
class Plan:
    """The work of a run: jobs to do, jobs that are done already, sources that cannot be read (file
    and error), and what is skipped (file and reason)."""

    jobs: list[Job] = field(default_factory=list)
    done: list[Job] = field(default_factory=list)
    problems: list[tuple[str, Exception]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def total_size(self) -> int | None:
        """The size of all sources in bytes; None where a pipe is among them."""
        if any(job.is_pipe for job in self.jobs):
            return None
        return sum(job.size for job in self.jobs)


@dataclass(frozen=True, slots=True)
class _Source:
    """``relative_path`` begins at the folder that the user named; it is the file's name if they
    named the file itself (``is_named``)."""

    path: str
    relative_path: str
    size: int = 0
    is_pipe: bool = False
    is_named: bool = False


def plan_encryption(
    sources: Paths, output: str | None, sidecar: str | None, *, again: bool, skip_existing: bool
) -> Plan:
    """Plan to encrypt ``sources`` to ``FILE.ags1``, or to or into ``output``. If a source is
    encrypted already, that is a problem unless ``again`` is true. With ``skip_existing``, it counts
    as done, and so does a source whose target and sidecar exist."""
    if output is None and sources == (STREAM,):
        output = STREAM
    if _is_stream(output) and sidecar is None:
        message = (
            "to encrypt to standard output or a pipe, say with --sidecar FILE where the keys go"
        )
        raise click.UsageError(message)
    plan = Plan()
    for file in _find(sources, plan, _not_encrypted, "file to encrypt"):
        if file.is_named and not file.is_pipe and not again:
            try:
                refused = _is_encrypted_or_sidecar(file.path)
            except OSError as error:
                plan.problems.append((file.path, error))
                continue
            if refused and skip_existing:
                plan.skipped.append((file.path, _ENCRYPTED))
                continue
            if refused:
                message = "is encrypted already (--again encrypts it once more)"
                plan.problems.append((file.path, OSError(errno.EINVAL, message)))
                continue
        target, makes_folder = _target(file, sources, output, lambda name: name + SUFFIX)
        sidecar_file = sidecar if sidecar is not None else sidecar_beside(target)
        job = Job(file.path, target, sidecar_file, file.size, file.is_pipe, makes_folder)
        plan.jobs.append(job)
    _check(plan, sources, output, sidecar)
    if skip_existing:
        jobs, plan.jobs = plan.jobs, []
        for job in jobs:
            if has_results(job):
                plan.done.append(job)
            elif _has_lost_sidecar(job):
                message = (
                    f"this sidecar is missing, so {job.target} cannot be decrypted: restore it "
                    "from a backup, or encrypt the file again with --force"
                )
                plan.problems.append((job.source, KeyMetadataError(message, file=job.sidecar)))
            else:
                plan.jobs.append(job)
    return plan


def _has_lost_sidecar(job: Job) -> bool:
    if job.target is None or job.to_stream or os.path.lexists(job.sidecar):
        return False
    return os.path.isfile(job.target) and _begins_as_encrypted(job.target)


def has_results(job: Job) -> bool:
    """Whether a job's target and its sidecar are there."""
    if job.target is None or job.to_stream:
        return False
    return os.path.isfile(job.target) and os.path.isfile(job.sidecar)


def plan_decryption(sources: Paths, output: str | None, sidecar: str | None) -> Plan:
    """Plan to decrypt ``sources`` to their names without ``.ags1``, or to or into ``output``."""
    if output is None and sources == (STREAM,):
        output = STREAM
    plan = Plan()
    for file in _find(sources, plan, _lacks_suffix, f"{SUFFIX} file"):
        if output is None and not file.is_pipe and not file.path.endswith(SUFFIX):
            # Before asking for an output's name, which would not help.
            try:
                refuse_other_files(file.path)
            except (OSError, FormatError) as error:
                plan.problems.append((file.path, error))
                continue
        target, makes_folder = _target(file, sources, output, _without_suffix)
        sidecar_file = _sidecar_of(file, sidecar)
        job = Job(file.path, target, sidecar_file, file.size, file.is_pipe, makes_folder)
        plan.jobs.append(job)
    _check(plan, sources, output, sidecar)
    return plan


def plan_reading(sources: Paths, sidecar: str | None) -> Plan:
    """Plan to read the encrypted files ``sources`` and write no file."""
    plan = Plan()
    for file in _find(sources, plan, _lacks_suffix, f"{SUFFIX} file"):
        sidecar_file = _sidecar_of(file, sidecar)
        plan.jobs.append(Job(file.path, None, sidecar_file, file.size, file.is_pipe))
    _check(plan, sources, None, sidecar)
    return plan


def plan_rewrapping(sources: Paths) -> Plan:
    """Plan to change sidecars: the files named, and in folders all ``*.ags1.keys``."""
    plan = Plan()
    for file in _find(sources, plan, _is_no_sidecar, f"{SUFFIX}{SIDECAR_SUFFIX} file"):
        if _is_stream(file.path):
            raise click.UsageError(f"{file.path} is not a regular file: name a sidecar or a folder")
        if _is_no_sidecar(file.path) is not None and _is_encrypted_or_sidecar(file.path):
            beside = sidecar_beside(file.path)
            raise click.UsageError(f"{file.path} is an encrypted file: name its sidecar, {beside}")
        hint = _did_you_mean(sidecar_beside(file.path + SUFFIX))
        if file.is_named and hint and not is_sidecar(file.path):
            error = KeyMetadataError(f"not a sidecar{hint}", file=file.path)
            plan.problems.append((file.path, error))
            continue
        plan.jobs.append(Job(file.path, None, file.path, file.size))
    return plan


def refuse_other_files(path: str) -> None:
    """Raise FormatError when a file does not begin as AGS1 files do; OSError."""
    if not _begins_as_encrypted(path):
        if is_sidecar(path):
            encrypted = path.removesuffix(SIDECAR_SUFFIX)
            hint = "" if encrypted == path else f": name {encrypted}"
            raise FormatError(f"this is a sidecar, not an encrypted file{hint}", file=path)
        message = f"not an AGS1 file: it does not begin with 'AGS1'{_did_you_mean(path + SUFFIX)}"
        raise FormatError(message, file=path)


def _did_you_mean(path: str) -> str:
    """Return the end of a message about another file, which is empty if there is no ``path``."""
    return f": did you mean {path}?" if os.path.isfile(path) else ""


def _find(
    sources: Paths,
    plan: Plan,
    passed_over: Callable[[str], str | None],
    kind: str,
) -> Iterator[_Source]:
    """Yield the files that ``sources`` mean; in folders, those for which ``passed_over`` gives no
    reason. An empty reason is not reported. ``kind`` is what a folder should have."""
    for source in sources:
        if source == STREAM:
            if len(sources) > 1:
                raise click.UsageError("'-' (standard input) has to be the only source")
            yield _Source(STREAM, STREAM, is_pipe=True, is_named=True)
            continue
        try:
            status = os.stat(source)
        except OSError as problem:
            if isinstance(problem, FileNotFoundError) and passed_over in _ENDINGS:
                hint = _did_you_mean(source + _ENDINGS[passed_over])
                problem.strerror = f"{problem.strerror}{hint}"
            plan.problems.append((source, problem))
            continue
        if not stat.S_ISDIR(status.st_mode):
            is_pipe = not stat.S_ISREG(status.st_mode)
            size = 0 if is_pipe else status.st_size
            yield _Source(source, os.path.basename(source), size, is_pipe, is_named=True)
            continue
        is_empty = True
        for file in _walk(source, plan, passed_over):
            is_empty = False
            yield file
        if is_empty:
            error = FileNotFoundError(errno.ENOENT, f"no {kind} in this folder", source)
            plan.problems.append((source, error))


def _walk(folder: str, plan: Plan, passed_over: Callable[[str], str | None]) -> Iterator[_Source]:
    def unreadable(error: OSError) -> None:
        plan.problems.append((str(error.filename), error))

    for inner, folders, names in os.walk(folder, onerror=unreadable):
        folders.sort()
        for name in folders:
            path = os.path.join(inner, name)
            if os.path.islink(path):
                plan.skipped.append((path, "link to a folder"))
        for name in sorted(names):
            path = os.path.join(inner, name)
            if is_temporary(name):
                plan.skipped.append((path, "left by an ags1 that was killed"))
                continue
            try:
                if (reason := passed_over(path)) is not None:
                    if reason:
                        plan.skipped.append((path, reason))
                    continue
                status = os.stat(path)
            except OSError as error:
                plan.problems.append((path, error))
                continue
            if not stat.S_ISREG(status.st_mode):
                plan.skipped.append((path, "not a regular file"))
                continue
            yield _Source(path, os.path.relpath(path, folder), status.st_size)


def _target(
    file: _Source, sources: Paths, output: str | None, renamed: Callable[[str], str]
) -> tuple[str, bool]:
    """Return where the result goes, and whether its folder may have to be made."""
    if output is None:
        if file.is_pipe:
            raise click.UsageError(f"{file.path} is not a regular file: name the output with -o")
        folder, name = os.path.split(file.path)
        return os.path.join(folder, renamed(name)), False
    into_folder = sources != (file.path,) or output.endswith("/") or os.path.isdir(output)
    if _is_stream(output) or not into_folder:
        return output, False
    if file.is_pipe:
        message = f"{output} is a folder, and this input has no name: give the output a file's name"
        raise click.UsageError(message)
    return os.path.join(output, renamed(file.relative_path)), True


def _is_stream(output: str | None) -> bool:
    return output is not None and (output == STREAM or is_stream(output))


def _without_suffix(name: str) -> str:
    plain = name.removesuffix(SUFFIX)
    if plain == name or not os.path.basename(plain):
        raise click.UsageError(f"{name} does not end in {SUFFIX}: name its output with -o FILE")
    return plain


def _sidecar_of(file: _Source, sidecar: str | None) -> str:
    if sidecar is not None:
        return sidecar
    if file.is_pipe:
        raise click.UsageError("to read from a pipe, say with --sidecar FILE where the keys are")
    return sidecar_beside(file.path)


def _is_encrypted_or_sidecar(path: str) -> bool:
    """Whether ``path`` is a sidecar by name, or an AGS1 file by name and first bytes."""
    if path.endswith(SUFFIX + SIDECAR_SUFFIX):
        return True
    if not path.endswith(SUFFIX) or not os.path.isfile(path):
        return False
    return _begins_as_encrypted(path)


def is_sidecar(path: str) -> bool:
    """Whether a regular file has the content of a sidecar. Raises OSError."""
    if not os.path.isfile(path) or os.path.getsize(path) > MAX_SIDECAR_SIZE:
        return False
    with open(path, "rb") as file:
        data = file.read(1)
        if data != b"{":
            return False
        data += file.read()
    try:
        Sidecar.from_bytes(data)
    except KeyMetadataError:
        return False
    return True


def _begins_as_encrypted(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(layout.MAGIC)) == layout.MAGIC


def _not_encrypted(path: str) -> str | None:
    """Return why a file in a folder is not encrypted: by its content, it has keys, or it is
    encrypted already."""
    if _is_encrypted_or_sidecar(path):
        return _ENCRYPTED
    if is_sidecar(path):
        return "sidecar"
    if is_keyring(path):
        return "keyring"
    if path.endswith(LOCK_SUFFIX) and is_keyring(path.removesuffix(LOCK_SUFFIX)):
        return "lock of a keyring"
    return None


def _lacks_suffix(path: str) -> str | None:
    return None if path.endswith(SUFFIX) else ""


def _is_no_sidecar(path: str) -> str | None:
    return None if path.endswith(SUFFIX + SIDECAR_SUFFIX) else ""


# What commands that look for these files would have found behind the name that they were given.
_ENDINGS = {_lacks_suffix: SUFFIX, _is_no_sidecar: SUFFIX + SIDECAR_SUFFIX}


def _check(plan: Plan, sources: Paths, output: str | None, sidecar: str | None) -> None:
    """Raise UsageError when two of the files of a plan would be one."""
    if len(plan.jobs) > 1 or (plan.jobs and plan.jobs[0].source not in sources):
        if _is_stream(output):
            message = "only one file can be written to standard output or a pipe: give -o FOLDER"
            raise click.UsageError(message)
        if sidecar is not None:
            raise click.UsageError("--sidecar is for one file, and there are several: leave it out")
    read = {os.path.abspath(job.source) for job in plan.jobs}
    written: dict[str, str] = {}
    for job in plan.jobs:
        if job.target is None or job.target == STREAM:
            continue
        target = os.path.abspath(job.target)
        if target in read:
            message = f"{job.target} is a source and cannot be the output, too: give another -o"
            raise click.UsageError(message)
        if target in written:
            both = f"{written[target]} and {job.source} would both be written to {job.target}"
            raise click.UsageError(f"{both}: encrypt or decrypt them one by one")
        written[target] = job.source
        if os.path.abspath(job.sidecar) in written or os.path.abspath(job.sidecar) in read:
            message = f"{job.sidecar} is a source or an output and cannot be the sidecar"
            raise click.UsageError(f"{message}: give another one")
