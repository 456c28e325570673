"""Runs the targets with atheris, in what build.sh built: ``python tests/fuzz/run.py [TARGET...]``.

What is found lies in build/fuzz-findings, what was learned in build/fuzz-corpus. ``--minimise``
writes the least of both corpora that runs the same code into tests/fuzz/corpus.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in FOLDER.glob("fuzz_*.py"))
SANITIZER = "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=16:malloc_context_size=4"
# One input may take this long, and the process this much memory.
LIMITS = ["-timeout=20", "-rss_limit_mb=3000"]


def run(target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    import atheris

    built = ROOT / "build" / "fuzz"
    environment = {
        "PYTHONPATH": str(built),
        "LD_PRELOAD": str(Path(atheris.path()) / "asan_with_fuzzer.so"),
        "ASAN_OPTIONS": SANITIZER,
    }
    program = built / "tests" / "fuzz" / f"fuzz_{target}.py"
    return subprocess.run(
        [sys.executable, "-W", "ignore", program, *LIMITS, *arguments],
        env=os.environ | environment,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )


def fuzz(target: str, seconds: int, max_size: int) -> int:
    """Return the count of executions; raise SystemExit on a finding."""
    learned, findings = ROOT / "build/fuzz-corpus" / target, ROOT / "build/fuzz-findings"
    for folder in (learned, findings):
        folder.mkdir(parents=True, exist_ok=True)
    dictionary = FOLDER / f"fuzz_{target}.dict"
    done = run(
        target,
        f"-max_total_time={seconds}",
        f"-max_len={max_size}",
        f"-artifact_prefix={findings}/{target}-",
        "-print_final_stats=1",
        *([f"-dict={dictionary}"] if dictionary.exists() else []),
        str(learned),
        str(FOLDER / "corpus" / target),
    )
    counted = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    count = int(counted[1]) if counted else 0
    print(f"{target}: {count} executions", flush=True)
    if done.returncode:
        sys.exit(f"{done.stderr[-4000:]}\n{target}: a finding, see {findings}")
    return count


def minimise(target: str, max_size: int) -> None:
    kept = ROOT / "build/fuzz-minimised"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    sources = [ROOT / "build/fuzz-corpus" / target, FOLDER / "corpus" / target]
    done = run(
        target,
        # Lines alone, not how often they ran, keep an input.
        "-merge=1",
        "-use_counters=0",
        f"-max_len={max_size}",
        str(kept),
        *[str(source) for source in sources if source.exists()],
    )
    if done.returncode:
        sys.exit(done.stderr[-4000:])
    for old in (FOLDER / "corpus" / target).iterdir():
        if not old.name.startswith("finding-"):
            old.unlink()
    shutil.copytree(kept, FOLDER / "corpus" / target, dirs_exist_ok=True)
    print(f"{target}: {len(list(kept.iterdir()))} inputs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--max-size", type=int, default=600, help="of an input, in bytes")
    parser.add_argument("--minimise", action="store_true", help="write tests/fuzz/corpus")
    options = parser.parse_args()
    targets = options.targets or TARGETS
    if options.minimise:
        for target in targets:
            minimise(target, options.max_size)
        return
    total = sum(fuzz(target, options.seconds, options.max_size) for target in targets)
    print(f"{total} executions, no finding")


if __name__ == "__main__":
    main()
