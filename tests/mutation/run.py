"""Puts generated faults into a copy of the tree, one by one, and runs tests until one notices it.

``python tests/mutation/run.py [WORD...]`` takes a sample of the faults of ``mutants.py`` in the
modules whose path has one of the words. The sample is another one each week. Exits with 1 if less
than ``RATE`` of them are noticed. Some faults change nothing that a caller can tell, so nobody can
notice all of them: read those that are left. Nothing is written outside build/mutants.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutants import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "mutants"
COPIED = ("ags1", "bench", "include", "tests", "setup.py", "build_openssl.py", "pyproject.toml")
LEFT_OUT = ("*.so", "__pycache__", "fuzz", "mutation")
BUILD = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace"]
PYTEST = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m"]
# With the variants that `make test` leaves to the slow tests.
ORDINARY = "local and (quick or variant)"
# Pytest's status if the marks leave no test of a file.
NO_TESTS = 5
# The part of the faults that the tests have to notice.
RATE = 0.85
SECONDS = 600


def t(*names: str) -> tuple[str, ...]:
    """Return the test files of each group; ``kms/aws`` is ``tests/kms/test_aws.py``."""
    return tuple(
        " ".join(f"tests/{'/test_'.join(name.rsplit('/', 1))}.py" for name in group.split())
        for group in names
    )


# The quick files first; all that could notice is tried before a fault counts as survived.
TESTS = {
    "engine/_gcm.pyx": t(
        "engine/gcm",
        "engine/oneshot engine/vectors engine/key_use",
        "engine/bulk engine/tamper",
        "engine/secrets",
    ),
    "engine/_messages.pyx": t(
        "engine/oneshot", "engine/gcm engine/vectors", "kms/keyring keys/envelope engine/key_use"
    ),
    "engine/_columns.pyx": t("engine/columns", "engine/secrets"),
    "engine/_buffers.pyx": t("engine/oneshot engine/gcm", "engine/stream_reader"),
    "engine/_pump.pyx": t("engine/bulk", "engine/crash engine/interrupts"),
    "engine/_reading.pyx": t("engine/stream_reader"),
    "engine/_writing.pyx": t("engine/stream_writer"),
    "engine/reader.py": t("engine/stream_reader", "engine/tamper", "engine/interrupts"),
    "engine/writer.py": t("engine/stream_writer", "engine/crash engine/interrupts"),
    "engine/geometry.py": t(
        "engine/oneshot engine/layout",
        "engine/stream_reader engine/bulk",
        "engine/key_use",
        "engine/tamper",
    ),
    "engine/_key_metadata.pyx": t("engine/key_use engine/key_metadata engine/columns"),
    "engine/key_metadata.py": t("engine/key_metadata", "engine/key_use engine/oneshot"),
    "keys/envelope.py": t("keys/envelope", "keys/manager", "engine/key_use engine/secrets"),
    "keys/cache.py": t("engine/key_use keys/manager keys/keychain", "keys/envelope"),
    "keys/keychain.py": t("keys/keychain", "cli/files"),
    "keys/manager.py": t("keys/manager", "engine/key_use"),
    "iceberg/operations/orphans.py": t("iceberg/operations/orphans"),
    "iceberg/operations/reached_files.py": t("iceberg/operations/orphans"),
    "iceberg/operations/erase.py": t("iceberg/operations/erasure"),
    "iceberg/operations/check/maintenance.py": t("iceberg/operations/check"),
    "iceberg/operations/check/metadata_checks.py": t("iceberg/operations/check"),
    "iceberg/operations/check/remedies.py": t("iceberg/operations/check", "cli/table_check"),
    "iceberg/operations/compact.py": t("iceberg/operations/compaction"),
    "iceberg/operations/compact_plan.py": t("iceberg/operations/compaction"),
    "iceberg/write/conflicts.py": t("iceberg/write/conflicts iceberg/operations/compaction"),
    "iceberg/write/rolling_writer.py": t("iceberg/operations/compaction"),
    "host/strict_json.py": t("keys/envelope kms/keyring iceberg/trust iceberg/read/shared_json"),
    "keys/sidecar.py": t("keys/keychain keys/envelope", "cli/files", "iceberg/trust"),
    "iceberg/commit/aws.py": t("iceberg/commit/aws"),
    "iceberg/commit/glue.py": t("iceberg/commit/aws"),
    "iceberg/commit/dynamodb.py": t("iceberg/commit/aws"),
    "iceberg/commit/sql.py": t("iceberg/commit/pins"),
    "iceberg/steps.py": t("iceberg/operations/pruning"),
    "iceberg/commit/rest.py": t("iceberg/operations/pruning", "iceberg/commit/commits"),
    "iceberg/read/statistics.py": t("iceberg/statistics"),
    "iceberg/read/kept_rows.py": t("iceberg/read/kept_rows"),
}


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


def run(command: list[str], folder: Path, seconds: float = SECONDS) -> str | None:
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
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    return done.stdout if done.returncode not in (0, NO_TESTS) else None


def tests_of(file: str) -> tuple[str, ...]:
    """Return the test files for a module, in groups that are run one after another."""
    module = Path(file.removeprefix("ags1/"))
    if str(module) in TESTS:
        return TESTS[str(module)]
    folder = "format" if module.parent == Path() else module.parent
    name = f"tests/{folder}/test_{module.stem.lstrip('_')}.py"
    return (name,) if (ROOT / name).exists() else ()


def verdict(mutant: Mutant, number: int, base: Path, seconds: dict[str, float]) -> str:
    """Return "killed by ...", "survived" or "not compiled"."""
    tree = PLACE / f"tree-{number}"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(base, tree, symlinks=True)
    try:
        path = tree / mutant.file
        path.write_text(mutant.applied(path.read_text()))
        if path.suffix == ".pyx" and run(BUILD, tree) is not None:
            return "not compiled"
        for tests in tests_of(mutant.file):
            failure = run([*PYTEST, ORDINARY, *tests.split()], tree, 4 * seconds[tests] + 30)
            if failure is not None:
                failed = [line for line in failure.splitlines() if line.startswith("FAILED")]
                where = failed[0].removeprefix("FAILED ").split(" - ")[0] if failed else tests
                return f"killed by {where}" + (" (timeout)" if failure == "timeout" else "")
        return "survived"
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sample", type=int, default=200, help="faults to try")
    parser.add_argument(
        "--seed", default="{0.year}-{0.week}".format(datetime.date.today().isocalendar())
    )
    options = parser.parse_args()
    files = sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "ags1").rglob("*.py*")
        if path.suffix in (".py", ".pyx") and tests_of(str(path.relative_to(ROOT)))
    )
    files = [file for file in files if any(word in file for word in options.words or [""])]
    every = [mutant for file in files for mutant in mutants(ROOT, file)]
    chosen = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    print(
        f"{len(chosen)} of {len(every)} faults in {len(files)} modules, seed {options.seed}",
        flush=True,
    )
    # A shell's background job ignores it, and so would tests of Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    base = prepare()
    seconds = {}
    for tests in sorted({tests for mutant in chosen for tests in tests_of(mutant.file)}):
        begin = time.monotonic()
        if (failure := run([*PYTEST, ORDINARY, *tests.split()], base)) is not None:
            sys.exit(f"{tests} fail without any fault:\n{failure[-2000:]}")
        seconds[tests] = time.monotonic() - begin

    def judge(numbered: tuple[int, Mutant]) -> str:
        begin = time.monotonic()
        found = verdict(numbered[1], numbered[0], base, seconds)
        print(f"{numbered[1]}: {found} ({time.monotonic() - begin:.0f} s)", flush=True)
        return found

    with ThreadPoolExecutor(options.jobs) as pool:
        results = dict(zip(chosen, pool.map(judge, enumerate(chosen)), strict=True))
    tried = {mutant: found for mutant, found in results.items() if found != "not compiled"}
    survivors = [str(mutant) for mutant, found in tried.items() if found == "survived"]
    print(
        f"{len(tried) - len(survivors)} of {len(tried)} killed; left:", *sorted(survivors), sep="\n"
    )
    if len(survivors) > (1 - RATE) * len(tried):
        sys.exit(f"less than {RATE:.0%} were killed")


if __name__ == "__main__":
    main()
