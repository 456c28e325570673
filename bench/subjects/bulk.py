"""Whole files in the page cache, next to ``cp`` and ``cat`` on the same files.

Before every run the target is removed and the disk synced, outside the time, so that nobody pays
for the pages that another left dirty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import ags1
from bench.limits import copies
from bench.material import random_file
from bench.rounds import Contest, Contestant, compete, timed
from bench.settings import Settings
from bench.storage import scratch_folder

SUBJECT = "bulk"
CP, CP_FSYNC, CAT, CAT_NULL = "cp", "cp + fsync", "cat", "cat to /dev/null"


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    with scratch_folder(settings.folder, 3 * settings.file_size + (64 << 20)) as folder:
        plain = random_file(folder / "plain", settings.file_size)
        sealed, target = folder / "sealed.ags1", folder / "target"
        km = ags1.encrypt_file(plain, sealed, durable=False)
        if ags1.decrypt_file(sealed, target, km, durable=False) != settings.file_size:
            raise RuntimeError("the file did not come back")

        def encrypt(threads: int, durable: bool) -> Callable[[], object]:
            return lambda: ags1.encrypt_file(plain, target, threads=threads, durable=durable)

        def decrypt(threads: int, durable: bool) -> Callable[[], object]:
            return lambda: ags1.decrypt_file(sealed, target, km, threads=threads, durable=durable)

        def verify(threads: int) -> Callable[[], object]:
            return lambda: ags1.verify_file(sealed, km, threads=threads)

        for verb, work, source in (("encrypt", encrypt, plain), ("decrypt", decrypt, sealed)):
            yield _contest(
                f"{verb}_file, not durable",
                {
                    f"{verb}_file, 1 thread": work(1, False),
                    f"{verb}_file, 2 threads": work(2, False),
                    CP: _cp(source, target),
                    CAT: _cat(source, target),
                },
                target,
                settings,
            )
            yield _contest(
                f"{verb}_file, durable",
                {
                    f"{verb}_file, 2 threads": work(2, True),
                    CP_FSYNC: _cp_fsync(source, target),
                },
                target,
                settings,
            )
        yield _contest(
            "verify_file",
            {
                "verify_file, 1 thread": verify(1),
                "verify_file, 2 threads": verify(2),
                CAT_NULL: lambda: copies.run_command(["cat", sealed]),
            },
            target,
            settings,
        )


def _contest(
    name: str, works: dict[str, Callable[[], object]], target: Path, settings: Settings
) -> Contest:
    def clean() -> None:
        target.unlink(missing_ok=True)
        os.sync()

    return compete(
        SUBJECT,
        name,
        [Contestant(name, timed(work), settings.file_size) for name, work in works.items()],
        settings.slow_rounds,
        between=clean,
        by_best=True,
    )


def _cp(source: Path, target: Path) -> Callable[[], None]:
    return lambda: copies.run_command(["cp", source, target])


def _cat(source: Path, target: Path) -> Callable[[], None]:
    return lambda: copies.run_command(["cat", source], target)


def _cp_fsync(source: Path, target: Path) -> Callable[[], None]:
    def work() -> None:
        copies.run_command(["cp", source, target])
        copies.sync_file(target)

    return work
