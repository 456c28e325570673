"""Reader and Writer next to the engine, and random reads next to one bare block each.

The engine's pace is that of opening block after block into one kept block: what a stream has to do
anyway. Its pace over the whole of a large buffer is shown too; that one also pays for the memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ags1
from bench.contenders import LIMIT, Engine, EngineByBlock, key_metadata
from bench.limits import EvpLoop, LimitError
from bench.material import Material, make_material, random_file
from bench.rounds import Contest, Contestant, compete, timed
from bench.settings import MIB, Settings, size_name
from bench.storage import scratch_folder

SUBJECT = "streams"
PIECES = (MIB, 64 << 10, 4 << 10)
READER, WRITER = "Reader", "Writer"
READER_2, WRITER_2 = "Reader, 2 threads", "Writer, 2 threads"
ENGINE_BLOCKS, ENGINE_WHOLE = "engine by block", "engine whole buffer"
BARE_FILE = "pread + EVP loop in C"
PREAD, BARE_BLOCK = "Reader.pread", "pread + one bare block"
PREAD_SIZE = 4096
RANDOM_READS = "random 4 KiB reads"


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    material = make_material(settings.size)
    Engine(material).seal()
    needed = 3 * settings.size + 2 * settings.pread_size
    with scratch_folder(settings.folder, needed) as folder:
        sealed_file = folder / "stream.ags1"
        sealed_file.write_bytes(material.sealed)
        yield from _readers(material, sealed_file, settings, skipped)
        yield from _writers(material, folder / "written.ags1", settings)
        yield from _preads(folder, settings, skipped)


def _readers(
    material: Material, sealed_file: Path, settings: Settings, skipped: dict[str, str]
) -> Iterator[Contest]:
    km = key_metadata(material)
    in_memory = io.BytesIO(bytes(material.sealed))
    sources: dict[str, Callable[[], Any]] = {
        "memory": lambda: in_memory,
        "page cache": lambda: sealed_file,
    }
    blocks, whole = EngineByBlock(material), Engine(material)
    bare = _bare_file(material, sealed_file, skipped)
    for place, source in sources.items():
        _check_reader(source(), km, material)
        for piece_size in PIECES:
            works: dict[str, Callable[[], object]] = {
                READER: _reading(source, km, piece_size),
                READER_2: _reading(source, km, piece_size, threads=2),
                ENGINE_BLOCKS: blocks.open,
                ENGINE_WHOLE: whole.open,
            }
            if place == "page cache" and bare is not None:
                works[BARE_FILE] = bare
            yield compete(
                SUBJECT,
                f"read {size_name(piece_size)} pieces from {place}",
                [Contestant(name, timed(work), settings.size) for name, work in works.items()],
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


def _bare_file(
    material: Material, sealed_file: Path, skipped: dict[str, str]
) -> Callable[[], None] | None:
    try:
        loop = EvpLoop(material)
    except LimitError as error:
        skipped[LIMIT] = str(error)
        return None

    def work() -> None:
        with sealed_file.open("rb", buffering=0) as file:
            loop.open_file(file.fileno(), material.size)

    return work


def _writers(material: Material, target: Path, settings: Settings) -> Iterator[Contest]:
    in_memory = io.BytesIO(bytes(len(material.sealed)))
    targets: dict[str, Callable[[], Any]] = {
        "nowhere": _Nowhere,
        "memory": lambda: in_memory,
        "page cache": lambda: target,
    }
    blocks, whole = EngineByBlock(material), Engine(material)
    for place, sink in targets.items():
        for piece_size in PIECES:
            works: dict[str, Callable[[], object]] = {
                WRITER: _writing(sink, material, piece_size),
                WRITER_2: _writing(sink, material, piece_size, threads=2),
                ENGINE_BLOCKS: blocks.seal,
                ENGINE_WHOLE: whole.seal,
            }
            yield compete(
                SUBJECT,
                f"write {size_name(piece_size)} pieces to {place}",
                [Contestant(name, timed(work), settings.size) for name, work in works.items()],
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
    # Whole pages, so that no read needs two blocks.
    offsets = [random.randrange(size // PREAD_SIZE) * PREAD_SIZE for _ in range(settings.preads)]
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(ags1.open(sealed_file, "rb", km))
        with plain.open("rb", buffering=0) as expected:
            for offset in offsets[:20]:
                if reader.pread(offset, PREAD_SIZE) != os.pread(
                    expected.fileno(), PREAD_SIZE, offset
                ):
                    raise RuntimeError("pread gave another plaintext")

        def preads() -> None:
            pread = reader.pread
            for offset in offsets:
                pread(offset, PREAD_SIZE)

        works: dict[str, Callable[[], object]] = {PREAD: preads}
        block = dataclasses.replace(
            make_material(MIB), key=km.encryption_key, aad_prefix=km.aad_prefix or b""
        )
        try:
            loop = EvpLoop(block)
        except LimitError as error:
            skipped[LIMIT] = str(error)
        else:
            descriptor = stack.enter_context(sealed_file.open("rb", buffering=0)).fileno()

            def bare_blocks() -> None:
                for offset in offsets:
                    loop.open_file(descriptor, MIB, first_block=offset // MIB)

            works[BARE_BLOCK] = bare_blocks
        yield compete(
            SUBJECT,
            RANDOM_READS,
            [Contestant(name, timed(work), count=len(offsets)) for name, work in works.items()],
            settings.rounds,
        )
