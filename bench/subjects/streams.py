"""Reader and Writer next to the engine, and random reads next to one bare block each.

The engine's pace is that of opening block after block into one kept block: what a stream has to do
anyway. Its pace over the whole of a large buffer is shown too; that one also pays for the memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ags1
from bench.contenders import Engine, EngineByBlock, key_metadata
from bench.material import Material, make_material, random_file
from bench.rounds import Contest, Contestant, compete, repeated, timed
from bench.settings import MIB, Settings, size_name
from bench.storage import scratch_folder

from .pairs import Entrant, the_limit, the_peers

SUBJECT = "streams"
PIECES = (MIB, 64 << 10, 4 << 10)
READER, WRITER = "Reader", "Writer"
READER_2, WRITER_2 = "Reader, 2 threads", "Writer, 2 threads"
ENGINE_BLOCKS, ENGINE_WHOLE = "engine by block", "engine whole buffer"
BARE_FILE = "pread + EVP loop in C"
PREAD, BARE_BLOCK = "Reader.pread", "pread + one bare block"
PREAD_AGAIN = "Reader.pread, a block just read"
PREAD_SIZE = SMALL_SIZE = 4096
RANDOM_READS = "random 4 KiB reads"
SMALL_FILE = "open, read and close a file of 4 KiB"
STREAMING_PEERS = ("cobblestone", "tink")
PLACE_OF_PEERS = ("memory", MIB)

Works = dict[str, Callable[[], object]]


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    material = make_material(settings.size)
    Engine(material).seal()
    needed = 3 * settings.size + 2 * settings.pread_size
    with scratch_folder(settings.folder, needed) as folder:
        sealed_file = folder / "stream.ags1"
        sealed_file.write_bytes(material.sealed)
        names = [name for name in STREAMING_PEERS if name in settings.peers]
        with the_peers(names, material, skipped) as peers:
            for peer in peers:
                peer.seal()
                peer.open()
                peer.check()
            yield from _readers(material, sealed_file, settings, skipped, peers)
            yield from _writers(material, folder / "written.ags1", settings, peers)
        yield from _preads(folder, settings, skipped)
        yield _small_file(folder, settings)


def _contestants(works: Works, size: int, verb: str, peers: Sequence[Entrant]) -> list[Contestant]:
    ours = [Contestant(name, timed(work), size) for name, work in works.items()]
    return ours + [Contestant(p.name, getattr(p, verb), size, rounds=p.rounds) for p in peers]


def _readers(
    material: Material,
    sealed_file: Path,
    settings: Settings,
    skipped: dict[str, str],
    peers: Sequence[Entrant],
) -> Iterator[Contest]:
    km = key_metadata(material)
    in_memory = io.BytesIO(bytes(material.sealed))
    sources: dict[str, Callable[[], Any]] = {
        "memory": lambda: in_memory,
        "page cache": lambda: sealed_file,
    }
    blocks, whole = EngineByBlock(material), Engine(material)
    limit = the_limit(material, skipped, settings.slow_rounds)

    def bare_file(open_file: Callable[..., None]) -> None:
        with sealed_file.open("rb", buffering=0) as file:
            open_file(file.fileno(), material.size)

    for place, source in sources.items():
        _check_reader(source(), km, material)
        for piece_size in PIECES:
            works: Works = {
                READER: _reading(source, km, piece_size),
                READER_2: _reading(source, km, piece_size, threads=2),
                ENGINE_BLOCKS: blocks.open,
                ENGINE_WHOLE: whole.open,
            }
            if place == "page cache" and limit:
                works[BARE_FILE] = functools.partial(bare_file, limit.open_file)
            present = peers if (place, piece_size) == PLACE_OF_PEERS else ()
            yield compete(
                SUBJECT,
                f"read {size_name(piece_size)} pieces from {place}",
                _contestants(works, settings.size, "open", present),
                settings.rounds,
            )


def _reading(
    source: Callable[[], Any], km: ags1.KeyMetadata, piece_size: int, threads: int = 1
) -> Callable[[], None]:
    piece = memoryview(bytearray(piece_size))

    def work() -> None:
        file = source()
        if isinstance(file, io.BytesIO):
            file.seek(0)
        with ags1.open(file, "rb", km, threads=threads) as reader:
            readinto = reader.readinto
            while readinto(piece):
                pass

    return work


def _check_reader(source: Any, km: ags1.KeyMetadata, material: Material) -> None:
    with ags1.open(source, "rb", km) as reader:
        if reader.read() != material.plaintext:
            raise RuntimeError("the reader gave another plaintext")


def _writers(
    material: Material, target: Path, settings: Settings, peers: Sequence[Entrant]
) -> Iterator[Contest]:
    in_memory = io.BytesIO(bytes(len(material.sealed)))
    targets: dict[str, Callable[[], Any]] = {
        "nowhere": _Nowhere,
        "memory": lambda: in_memory,
        "page cache": lambda: target,
    }
    blocks, whole = EngineByBlock(material), Engine(material)
    for place, sink in targets.items():
        for piece_size in PIECES:
            works: Works = {
                WRITER: _writing(sink, material, piece_size),
                WRITER_2: _writing(sink, material, piece_size, threads=2),
                ENGINE_BLOCKS: blocks.seal,
                ENGINE_WHOLE: whole.seal,
            }
            present = peers if (place, piece_size) == PLACE_OF_PEERS else ()
            yield compete(
                SUBJECT,
                f"write {size_name(piece_size)} pieces to {place}",
                _contestants(works, settings.size, "seal", present),
                settings.rounds,
                between=lambda: target.unlink(missing_ok=True),
            )


def _writing(
    sink: Callable[[], Any], material: Material, piece_size: int, threads: int = 1
) -> Callable[[], None]:
    text = memoryview(material.plaintext)
    pieces = [text[at : at + piece_size] for at in range(0, len(text), piece_size)]

    def work() -> None:
        file = sink()
        if isinstance(file, io.BytesIO):
            file.seek(0)
        with ags1.open(file, "wb", durable=False, threads=threads) as writer:
            write = writer.write
            for piece in pieces:
                write(piece)

    return work


class _Nowhere(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)


def _preads(folder: Path, settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    size = settings.pread_size
    plain = random_file(folder / "preads", size)
    sealed_file = folder / "preads.ags1"
    km = ags1.encrypt_file(plain, sealed_file, durable=False)
    # Each in a block of its own, or there are more of them than blocks. Whole pages, so that no
    # read needs two blocks.
    blocks = range(size // MIB)
    numbers = random.sample(blocks, min(settings.preads, len(blocks)))
    offsets = [
        number * MIB + random.randrange(MIB // PREAD_SIZE) * PREAD_SIZE for number in numbers
    ]
    same_block = [offset % MIB for offset in offsets]
    with contextlib.ExitStack() as stack:
        reader, kept = (stack.enter_context(ags1.open(sealed_file, "rb", km)) for _ in range(2))
        with plain.open("rb", buffering=0) as expected:
            for offset in [*offsets[:20], *same_block]:
                for one in (reader, kept):
                    if one.pread(offset, PREAD_SIZE) != os.pread(
                        expected.fileno(), PREAD_SIZE, offset
                    ):
                        raise RuntimeError("pread gave another plaintext")

        def preads(of: ags1.Reader, at: Sequence[int]) -> None:
            pread = of.pread
            for offset in at:
                pread(offset, PREAD_SIZE)

        works: Works = {PREAD: functools.partial(preads, reader, offsets)}
        block = dataclasses.replace(
            make_material(MIB), key=km.encryption_key, aad_prefix=km.aad_prefix or b""
        )
        if limit := the_limit(block, skipped, settings.slow_rounds):
            descriptor = stack.enter_context(sealed_file.open("rb", buffering=0)).fileno()

            def bare_blocks() -> None:
                for offset in offsets:
                    limit.open_file(descriptor, MIB, first_block=offset // MIB)

            works[BARE_BLOCK] = bare_blocks
        works[PREAD_AGAIN] = functools.partial(preads, kept, same_block)
        yield compete(
            SUBJECT,
            RANDOM_READS,
            [Contestant(name, timed(work), count=len(offsets)) for name, work in works.items()],
            settings.rounds,
        )


def _small_file(folder: Path, settings: Settings) -> Contest:
    data = os.urandom(SMALL_SIZE)
    plain, sealed_file = folder / "small", folder / "small.ags1"
    plain.write_bytes(data)
    km = ags1.encrypt_file(plain, sealed_file, durable=False)

    def with_reader() -> bytes:
        with ags1.open(sealed_file, "rb", km) as file:
            return file.read()

    def with_decrypt() -> bytes:
        with sealed_file.open("rb") as file:
            return ags1.decrypt(file.read(), km)

    def unencrypted() -> bytes:
        with plain.open("rb") as file:
            return file.read()

    works = {
        READER: with_reader,
        "open + decrypt": with_decrypt,
        "open, not encrypted": unencrypted,
    }
    if any(work() != data for work in works.values()):
        raise RuntimeError("the small file did not come back")
    return compete(
        SUBJECT,
        SMALL_FILE,
        [
            Contestant(name, repeated(work, settings.preads), count=settings.preads)
            for name, work in works.items()
        ],
        settings.rounds,
    )
