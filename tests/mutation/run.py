"""Puts each fault of ``mutants.py`` into a copy of the tree and runs tests until one notices it.

``python tests/mutation/run.py [WORD...]`` runs those whose file or reason has one of the words.
Exits with 1 if a fault survives that is not stated to change nothing, or if its place in the source
is not found (the source has changed: adapt the fault). Nothing is written outside build/mutants.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutants import MUTANTS, TESTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "mutants"
COPIED = ("ags1", "bench", "include", "tests", "setup.py", "build_openssl.py", "pyproject.toml")
LEFT_OUT = ("*.so", "__pycache__", "fuzz", "mutation")
BUILD = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace"]
PYTEST = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m"]
# With the variants that `make test` leaves to the slow tests.
ORDINARY = "(variant or not slow) and not interop and not spark and not peers"
SECONDS = 600


def prepare() -> Path:
    """Return a built copy of the tree, compiled without optimisation: faults compile sooner."""
    base = PLACE / "base"
    for name in COPIED:
        source, target = ROOT / name, base / name
        if source.is_file():
            base.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
            continue
        keep = list(target.rglob("*.so")) if target.exists() else []
        saved = {path: path.read_bytes() for path in keep}
        times = {path: path.stat() for path in keep}
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for path, data in saved.items():
            path.write_bytes(data)
            os.utime(path, ns=(times[path].st_atime_ns, times[path].st_mtime_ns))
    setup = base / "setup.py"
    setup.write_text(setup.read_text().replace('"-O3"', '"-O0"'))
    # setuptools compiles all again where this is new.
    shutil.copystat(ROOT / "setup.py", setup)
    run(BUILD, base)
    return base


def run(command: list[str], folder: Path) -> str | None:
    """Return the output of a command that fails, "timeout", or None where it succeeds."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    return done.stdout if done.returncode else None


def verdict(mutant: Mutant, number: int, base: Path) -> str:
    """Return "killed by ...", "survived" or "not compiled ..."."""
    tree = PLACE / f"tree-{number}"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(base, tree, symlinks=True)
    try:
        path = tree / mutant.file
        path.write_text(path.read_text().replace(mutant.old, mutant.new))
        if path.suffix == ".pyx" and (failure := run(BUILD, tree)) is not None:
            return f"not compiled:\n{failure[-1500:]}"
        for tests in mutant.tests or TESTS[mutant.file.removeprefix("ags1/")]:
            if (failure := run([*PYTEST, ORDINARY, *tests.split()], tree)) is not None:
                failed = [line for line in failure.splitlines() if line.startswith("FAILED")]
                where = failed[0].removeprefix("FAILED ").split(" - ")[0] if failed else tests
                return f"killed by {where}" + (" (timeout)" if failure == "timeout" else "")
        return "survived"
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def misplaced() -> list[str]:
    """Return what cannot be applied: a fault's text has to stand in its file once."""
    found = []
    for mutant in MUTANTS:
        count = (ROOT / mutant.file).read_text().count(mutant.old)
        if count != 1 or mutant.old == mutant.new:
            found.append(f"{mutant.file}: {mutant.reason}: its text is there {count} times")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="only look for the places")
    options = parser.parse_args()
    if wrong := misplaced():
        sys.exit("\n".join(wrong))
    chosen = [
        mutant
        for mutant in MUTANTS
        if not options.words
        or any(word in f"{mutant.file} {mutant.reason}" for word in options.words)
    ]
    print(f"{len(chosen)} of {len(MUTANTS)} faults, each found in its file", flush=True)
    if options.check:
        return
    # A shell's background job ignores it, and so would tests of Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    base = prepare()

    def judge(numbered: tuple[int, Mutant]) -> tuple[Mutant, str]:
        begin = time.monotonic()
        mutant, found = numbered[1], verdict(numbered[1], numbered[0], base)
        seconds = time.monotonic() - begin
        print(f"{mutant.file}: {mutant.reason}: {found} ({seconds:.0f} s)", flush=True)
        return mutant, found

    files = {m.file.removeprefix("ags1/") for m in chosen}
    for tests in sorted({tests for file in files for tests in TESTS[file]}):
        if (failure := run([*PYTEST, ORDINARY, *tests.split()], base)) is not None:
            sys.exit(f"{tests} fail without any fault:\n{failure[-2000:]}")
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(judge, enumerate(chosen)))
    killed = [mutant for mutant, found in results if found.startswith("killed")]
    alive = [mutant for mutant, found in results if not found.startswith("killed")]
    stated = [mutant for mutant in alive if mutant.equivalent]
    print(f"{len(killed)} killed, {len(stated)} change nothing that a caller can tell, as stated")
    for mutant in [mutant for mutant in killed if mutant.equivalent]:
        print(f"killed, though stated to change nothing: {mutant.file}: {mutant.reason}")
    if survivors := [mutant for mutant in alive if not mutant.equivalent]:
        names = "\n".join(f"{mutant.file}: {mutant.reason}" for mutant in survivors)
        sys.exit(f"{len(survivors)} survived:\n{names}")


if __name__ == "__main__":
    main()
