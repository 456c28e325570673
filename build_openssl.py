"""Finds the libcrypto that ``ags1.engine._gcm`` links, or builds one.

``AGS1_OPENSSL`` says which:

    auto      (the default) the system's, if it is OpenSSL 3.5 or newer; else vendored; else, with
              a loud warning, whatever the system has from 3.0 on
    system    the system's, 3.0 or newer (pkg-config, else plain -lcrypto); FIPS builds want this
    vendored  OpenSSL 4.0 built here as a static library that holds little more than AES-GCM;
              AGS1_OPENSSL_VERSION=3.5 takes the long-term release instead
    <prefix>  the one under /such/a/folder (include/, lib/ or lib64/; shared, else static)

Why not simply the system's: AES-GCM on VAES and AVX-512 is not in 3.0, which is two to three times
slower on CPUs that have these instructions. The next long-term release is 3.5.

The vendored source is the Rust package ``openssl-src``, a plain copy of OpenSSL's release. cargo
fetches it, or AGS1_OPENSSL_CRATE names the ``.crate`` file (for machines without a network); this
script checks its SHA-256 before it unpacks it. Needed beside that: Perl, make, a C compiler. The
result is kept in the user's cache folder and serves every later build.

Run as a program it does the finding and building with its progress shown, and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GOOD_VERSION = (3, 5)
OLDEST_VERSION = (3, 0)


class BuildError(Exception):
    """No libcrypto of the wanted kind; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class Crate:
    """A release of the package openssl-src, pinned by the SHA-256 of its file."""

    package_version: str
    openssl_version: str
    sha256: str

    @property
    def name(self) -> str:
        return f"openssl-src-{self.package_version}+{self.openssl_version}"


CRATES = {
    "4.0": Crate(
        "400.0.2", "4.0.3", "d2093956673b8dbda85c87fa4fb78e70698ce6c5978a2837d1613f661d3bef76"
    ),
    "3.5": Crate(
        "300.5.5", "3.5.5", "3f1787d533e03597a7934fd0a765f0d28e94ecc5fb7789f8053b1e699a56f709"
    ),
}

# Everything goes that AES-GCM and the random generators do not need: a quarter of the build time,
# half of the extension's size, and less code that could be wrong. Names that a release does not
# know are left out for it.
WITHOUT = """
    apps async autoerrinit autoload-config comp default-thread-pool demos deprecated docs dso
    dtls engine fips http ktls legacy module multiblock nextprotoneg quic secure-memory shared sock
    stdio tests thread-pool tls ui-console
    cmp cms ct ocsp psk rfc3779 srp srtp ts
    argon2 cmac hmac-drbg-kdf kbkdf krb5kdf pvkkdf scrypt snmpkdf srtpkdf sshkdf sskdf x942kdf
    x963kdf
    aria bf blake2 camellia cast chacha des gost idea md4 mdc2 ocb poly1305 rc2 rc4 rmd160 seed
    siphash siv sm2 sm3 sm4 whirlpool
    dh dsa ec ecx lms ml-dsa ml-kem slh-dsa
""".split()
ONLY_IN_4_0 = frozenset(
    "hmac-drbg-kdf kbkdf krb5kdf lms pvkkdf snmpkdf srtpkdf sshkdf sskdf x942kdf x963kdf".split()
)
ONLY_IN_3_5 = frozenset({"engine"})
COMPILER_FLAGS = ("-fPIC", "-ffunction-sections", "-fdata-sections")

# OpenSSL's names for the compilers' targets; for any other, Configure makes its own guess.
LINUX_TARGETS = {
    "x86_64": "linux-x86_64",
    "aarch64": "linux-aarch64",
    "i686": "linux-x86",
    "powerpc64le": "linux-ppc64le",
    "ppc64le": "linux-ppc64le",
    "s390x": "linux64-s390x",
    "riscv64": "linux64-riscv64",
}
DARWIN_TARGETS = {"x86_64": "darwin64-x86_64-cc", "arm64": "darwin64-arm64-cc"}

# Make and Configure would take these up from a surrounding build and build something else.
FOREIGN_VARIABLES = frozenset(
    "CFLAGS CPPFLAGS CXXFLAGS LDFLAGS LDLIBS CPPDEFINES CPPINCLUDES ARFLAGS MAKEFLAGS MFLAGS "
    "MAKELEVEL MAKEOVERRIDES VERSION OPENSSL_CONF OPENSSL_LOCAL_CONFIG_DIR".split()
)

PROBE = r"""
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
int main(void)
{
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    if (cipher == NULL)
        return 1;
    EVP_CIPHER_free(cipher);
    printf("%d.%d %u.%u %s\n", OPENSSL_VERSION_MAJOR, OPENSSL_VERSION_MINOR,
           OPENSSL_version_major(), OPENSSL_version_minor(),
           OpenSSL_version(OPENSSL_VERSION_STRING));
    return 0;
}
"""


@dataclass(frozen=True, slots=True)
class Library:
    """A libcrypto and how to compile and link against it."""

    source: str  # "system", "vendored" or "prefix"
    version: str
    compile_args: tuple[str, ...]
    link_args: tuple[str, ...]
    static_library: str | None = None

    @property
    def summary(self) -> str:
        kind = "static" if self.static_library else "shared"
        return f"OpenSSL {self.version} ({self.source}, {kind})"


def find_library(environ: Mapping[str, str] = os.environ) -> Library:
    """The libcrypto that ``AGS1_OPENSSL`` asks for, built first if need be."""
    choice = environ.get("AGS1_OPENSSL") or "auto"
    if choice == "system":
        return _system(OLDEST_VERSION)
    if choice == "vendored":
        return _vendored(environ)
    if choice == "auto":
        return _auto(environ)
    if os.path.isabs(choice):
        return _prefix(Path(choice))
    raise BuildError(
        f"AGS1_OPENSSL={choice!r}: give auto, system, vendored or the absolute path of a prefix"
    )


def _auto(environ: Mapping[str, str]) -> Library:
    try:
        return _system(GOOD_VERSION)
    except BuildError as error:
        system_error = error
        say(str(error).splitlines()[0])
    try:
        return _vendored(environ)
    except BuildError as error:
        vendored_error = error
    try:
        library = _system(OLDEST_VERSION)
    except BuildError:
        raise BuildError(
            "no libcrypto to build ags1 with.\n"
            f"  The system's: {system_error}\n"
            f"  Vendored: {vendored_error}\n"
            "Either will do: install OpenSSL's development files (3.5 or newer if you can), or "
            "what the vendored build needs; or set AGS1_OPENSSL to the prefix of an OpenSSL."
        ) from None
    warn(
        f"ags1 will use {library.summary}, which is older than 3.5.",
        "3.0 is two to three times slower than it need be on CPUs with VAES.",
        f"The reason: {vendored_error}",
    )
    return library


# --- what is installed -----------------------------------------------------------------------


def compiler() -> list[str]:
    """The C compiler that Python's own build of extensions takes."""
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = shlex.split(named)
    if command and shutil.which(command[0]):
        return command
    if shutil.which("cc"):
        return ["cc"]
    raise BuildError(f"no C compiler: neither {named!r} nor cc is there")


def _system(oldest: tuple[int, int]) -> Library:
    compile_args, link_args = _pkg_config()
    version = _probe(compile_args, link_args, oldest)
    return Library("system", version, tuple(compile_args), tuple(link_args))


def _pkg_config() -> tuple[list[str], list[str]]:
    program = os.environ.get("PKG_CONFIG") or "pkg-config"
    try:
        answers = [
            subprocess.run(
                [program, option, "libcrypto"], capture_output=True, text=True, check=True
            ).stdout
            for option in ("--cflags", "--libs")
        ]
    except (OSError, subprocess.CalledProcessError):
        return [], ["-lcrypto"]
    compile_args, link_args = (shlex.split(answer) for answer in answers)
    # pkg-config names only folders where the loader does not look by itself.
    folders = [arg.removeprefix("-L") for arg in link_args if arg.startswith("-L")]
    return compile_args, [*link_args, *(f"-Wl,-rpath,{folder}" for folder in folders)]


def _prefix(prefix: Path) -> Library:
    include = prefix / "include"
    if not (include / "openssl" / "evp.h").is_file():
        raise BuildError(f"AGS1_OPENSSL={prefix}: no include/openssl/evp.h there")
    folders = [prefix / "lib64", prefix / "lib"]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        folders.append(prefix / "lib" / multiarch)
    shared = "libcrypto.dylib" if sys.platform == "darwin" else "libcrypto.so"
    compile_args = [f"-I{include}"]
    for folder in folders:
        if (folder / shared).exists():
            link_args = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lcrypto"]
            static_library = None
        elif (folder / "libcrypto.a").exists():
            # libdl for a libcrypto that can load modules.
            link_args = ["-lpthread", "-ldl"]
            static_library = str(folder / "libcrypto.a")
        else:
            continue
        libraries = [static_library] if static_library else []
        version = _probe(compile_args, libraries + link_args, OLDEST_VERSION)
        return Library("prefix", version, tuple(compile_args), tuple(link_args), static_library)
    raise BuildError(f"AGS1_OPENSSL={prefix}: neither {shared} nor libcrypto.a in lib or lib64")


def _probe(compile_args: Sequence[str], link_args: Sequence[str], oldest: tuple[int, int]) -> str:
    """Compiles and runs a small program: headers and library must be there and fit together."""
    install = "its development files (libssl-dev, openssl-devel, openssl-dev)"
    with tempfile.TemporaryDirectory(prefix="ags1-probe-") as folder:
        source, program = Path(folder, "probe.c"), Path(folder, "probe")
        source.write_text(PROBE)
        command = [*compiler(), *compile_args, str(source), "-o", str(program), *link_args]
        compiled = subprocess.run(command, capture_output=True, text=True)
        if compiled.returncode:
            raise BuildError(
                f"no OpenSSL 3 that a C program can be built with; install {install}\n"
                + _last_lines(compiled.stderr)
            )
        try:
            ran = subprocess.run([program], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"a program linked with libcrypto does not run: {error}") from None
    if ran.returncode:
        raise BuildError(
            f"a program linked with libcrypto does not run: exit code {ran.returncode}\n"
            + _last_lines(ran.stderr)
        )
    header_words, library_words, version = ran.stdout.split(maxsplit=2)
    header, library = _numbers(header_words), _numbers(library_words)
    if min(header, library) < oldest:
        wanted = ".".join(map(str, oldest))
        raise BuildError(f"the OpenSSL found is {version.strip()}; wanted is {wanted} or newer")
    if header[0] != library[0] or header > library:
        raise BuildError(
            f"OpenSSL's headers are of {header_words}, the library is {version.strip()}"
        )
    return version.strip()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


# --- the vendored build ----------------------------------------------------------------------


def _vendored(environ: Mapping[str, str]) -> Library:
    wanted = environ.get("AGS1_OPENSSL_VERSION") or "4.0"
    if wanted not in CRATES:
        raise BuildError(f"AGS1_OPENSSL_VERSION={wanted!r}: there are {', '.join(CRATES)}")
    crate = CRATES[wanted]
    prefix = _build_once(crate, environ)
    return Library(
        "vendored",
        crate.openssl_version,
        (f"-I{prefix / 'include'}",),
        ("-lpthread",),
        str(prefix / "lib" / "libcrypto.a"),
    )


def component(version: str) -> dict[str, object]:
    """Describe the vendored OpenSSL for a bill of materials (CycloneDX): what it is, and the file
    that its source came in."""
    (crate,) = (crate for crate in CRATES.values() if crate.openssl_version == version)
    source = {
        "type": "file",
        "name": f"{crate.name}.crate",
        "purl": f"pkg:cargo/openssl-src@{crate.package_version}%2B{version}",
        "hashes": [{"alg": "SHA-256", "content": crate.sha256}],
    }
    return {
        "type": "library",
        "name": "openssl",
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "cpe": f"cpe:2.3:a:openssl:openssl:{version}:*:*:*:*:*:*:*",
        "purl": f"pkg:generic/openssl@{version}",
        "components": [source],
    }


def _build_once(crate: Crate, environ: Mapping[str, str]) -> Path:
    """The folder of the built libcrypto, from the cache or fresh; one build at a time."""
    cc = compiler()
    arguments = _configure_arguments(crate, cc)
    shelf = _cache_folder(environ)
    done = shelf / f"{crate.openssl_version}-{_fingerprint(crate, cc, arguments)}"
    if _is_whole(done):
        return done
    try:
        shelf.mkdir(parents=True, exist_ok=True)
        with _locked(shelf / f"{done.name}.lock"):
            if not _is_whole(done):
                _build(crate, cc, arguments, done, environ)
    except OSError as error:
        raise BuildError(
            f"cannot build OpenSSL into {shelf}: {error}; set XDG_CACHE_HOME to a folder that "
            "can be written"
        ) from error
    return done


def _is_whole(prefix: Path) -> bool:
    return (prefix / "lib" / "libcrypto.a").is_file()


def _cache_folder(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    return root / "ags1" / "openssl"


def _configure_arguments(crate: Crate, cc: Sequence[str]) -> list[str]:
    unknown = ONLY_IN_4_0 if crate.openssl_version.startswith("3.") else ONLY_IN_3_5
    target = _configure_target(cc)
    return [
        *([target] if target else []),
        *(f"no-{name}" for name in WITHOUT if name not in unknown),
        *COMPILER_FLAGS,
    ]


def _configure_target(cc: Sequence[str]) -> str | None:
    if sys.platform == "darwin":
        archs = os.environ.get("ARCHFLAGS", "").replace("-arch", " ").split()
        if len(set(archs)) > 1:
            raise BuildError(
                f"ARCHFLAGS names {' and '.join(archs)}: the vendored build makes one at a time"
            )
        return DARWIN_TARGETS.get(archs[0] if archs else platform.machine())
    if sys.platform == "linux":
        machine = _output([*cc, "-dumpmachine"]).strip()
        # The x32 ABI answers as x86_64 too; Configure knows how to tell.
        if not machine.endswith("x32"):
            return LINUX_TARGETS.get(machine.split("-")[0])
    return None


def _fingerprint(crate: Crate, cc: Sequence[str], arguments: Sequence[str]) -> str:
    facts = [
        crate.sha256,
        *arguments,
        *cc,
        _output([*cc, "--version"]),
        _output([*cc, "-dumpmachine"]),
        os.environ.get("MACOSX_DEPLOYMENT_TARGET", ""),
        os.environ.get("SDKROOT", ""),
    ]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _build(
    crate: Crate,
    cc: Sequence[str],
    arguments: Sequence[str],
    done: Path,
    environ: Mapping[str, str],
) -> None:
    started = time.monotonic()
    make = shutil.which("gmake") or shutil.which("make")
    missing = [name for name, path in (("perl", shutil.which("perl")), ("make", make)) if not path]
    if missing or make is None:
        raise BuildError(f"to build OpenSSL, install {' and '.join(missing)}")
    env = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
    env["CC"] = shlex.join(cc)
    log = done.with_name(f"{done.name}.log")
    with tempfile.TemporaryDirectory(prefix="ags1-openssl-") as scratch, log.open("w") as log_file:
        source = _unpack(_crate_file(crate, environ), crate, Path(scratch))
        say(f"configuring OpenSSL {crate.openssl_version} (log: {log})")
        runner = _Runner(source, env, log, log_file.fileno())
        runner.run(["perl", "./Configure", *arguments])
        jobs = f"-j{cpu_count()}"
        runner.run([make, jobs, "build_generated"])
        steps = sum(" -c -o " in line for line in runner.plan([make, "-n", "libcrypto.a"]))
        runner.run([make, jobs, "libcrypto.a"], steps)
        _put_in_place(source, done)
    log.unlink(missing_ok=True)
    say(f"built in {time.monotonic() - started:.0f} s, kept in {done}")


def _put_in_place(source: Path, done: Path) -> None:
    """Copies what linking needs beside its final place, then renames: it is there whole or not."""
    fresh = Path(tempfile.mkdtemp(prefix=f"{done.name}.", dir=done.parent))
    try:
        (fresh / "lib").mkdir()
        shutil.copy(source / "libcrypto.a", fresh / "lib")
        shutil.copytree(
            source / "include" / "openssl",
            fresh / "include" / "openssl",
            ignore=shutil.ignore_patterns("*.in"),
        )
        shutil.copy(source / "LICENSE.txt", fresh)
        fresh.chmod(0o755)
        if done.exists():
            shutil.rmtree(done)
        fresh.rename(done)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _crate_file(crate: Crate, environ: Mapping[str, str]) -> Path:
    named = environ.get("AGS1_OPENSSL_CRATE")
    if named:
        path = Path(named)
        if not path.is_file():
            raise BuildError(f"AGS1_OPENSSL_CRATE={named}: no such file")
        return path
    return _find_crate(crate) or _fetch_crate(crate)


def _find_crate(crate: Crate) -> Path | None:
    home = Path(os.environ.get("CARGO_HOME") or "~/.cargo").expanduser()
    found = sorted((home / "registry" / "cache").glob(f"*/{crate.name}.crate"))
    return found[0] if found else None


def _fetch_crate(crate: Crate) -> Path:
    """Has cargo fetch the package: it knows the user's mirrors, proxies and certificates."""
    hint = f"or set AGS1_OPENSSL_CRATE to the file {crate.name}.crate"
    cargo = os.environ.get("CARGO") or shutil.which("cargo")
    if not cargo:
        raise BuildError(
            f"OpenSSL's source comes with cargo, which is not there: install Rust, {hint}"
        )
    say(f"fetching OpenSSL {crate.openssl_version} (openssl-src {crate.package_version})")
    with tempfile.TemporaryDirectory(prefix="ags1-fetch-") as folder:
        Path(folder, "empty.rs").touch()
        Path(folder, "Cargo.toml").write_text(
            '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n'
            '[lib]\npath = "empty.rs"\n'
            f'[dependencies]\nopenssl-src = "={crate.package_version}"\n'
            "[workspace]\n"
        )
        try:
            fetched = subprocess.run(
                [cargo, "fetch"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except OSError as error:
            raise BuildError(f"cargo does not run ({hint}): {error}") from None
    if fetched.returncode:
        raise BuildError(
            f"cargo cannot fetch {crate.name} ({hint}):\n{_last_lines(fetched.stdout)}"
        )
    path = _find_crate(crate)
    if path is None:
        raise BuildError(f"cargo fetched {crate.name} but kept no file of it; {hint}")
    return path


def _unpack(path: Path, crate: Crate, folder: Path) -> Path:
    """Unpacks OpenSSL's source if the file is the pinned one, byte for byte."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while piece := file.read(1 << 20):
            digest.update(piece)
        if digest.hexdigest() != crate.sha256:
            raise BuildError(
                f"{path} is not the {crate.name}.crate that ags1 trusts: "
                f"its SHA-256 is {digest.hexdigest()}, not {crate.sha256}"
            )
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:gz") as archive:
            wanted = [
                member
                for member in archive.getmembers()
                if member.name.startswith(f"{crate.name}/openssl/")
            ]
            if hasattr(tarfile, "data_filter"):
                archive.extractall(folder, wanted, filter="data")
            else:
                archive.extractall(folder, wanted)
    return folder / crate.name / "openssl"


class _Runner:
    """Runs the steps of the build in one folder, into one log, and shows how far they are."""

    def __init__(self, folder: Path, env: Mapping[str, str], log: Path, log_fd: int) -> None:
        self._folder = folder
        self._env = env
        self._log = log
        self._log_fd = log_fd

    def plan(self, command: Sequence[str]) -> list[str]:
        result = subprocess.run(
            command, cwd=self._folder, env=self._env, capture_output=True, text=True
        )
        return result.stdout.splitlines()

    def run(self, command: Sequence[str], steps: int = 0) -> None:
        last: deque[str] = deque(maxlen=30)
        progress = _Progress(steps)
        with subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                os.write(self._log_fd, line.encode(errors="replace"))
                last.append(line)
                if " -c -o " in line:
                    progress.step()
        if process.returncode:
            raise BuildError(
                f"building OpenSSL failed at {shlex.join(command[:3])} (whole log: {self._log}):\n"
                + "".join(last)
            )


class _Progress:
    """A line that fills up on a terminal; elsewhere a line at every tenth of the way."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._done = 0
        self._shown = -1
        self._live = sys.stderr.isatty()

    def step(self) -> None:
        self._done += 1
        if not self._steps:
            return
        percent = min(100, 100 * self._done // self._steps)
        if percent // (1 if self._live else 10) <= self._shown:
            return
        self._shown = percent // (1 if self._live else 10)
        end = "\r" if self._live and percent < 100 else "\n"
        say(f"compiling on {cpu_count()} CPUs: {percent:3d} % of {self._steps} files", end)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build of the same OpenSSL is at work; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cpu_count() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


def _last_lines(text: str, count: int = 8) -> str:
    return "\n".join("    " + line for line in text.strip().splitlines()[-count:])


def say(message: str, end: str = "\n") -> None:
    print(f"[openssl] {message}", end=end, file=sys.stderr, flush=True)


def warn(*lines: str) -> None:
    rule = "*" * 78
    print("\n".join(["", rule, *(f"WARNING: {line}" for line in lines), rule, ""]), file=sys.stderr)


def main() -> int:
    try:
        library = find_library()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    say(f"ags1 links {library.summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
