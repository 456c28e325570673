"""A Parquet file as other libraries read it: plain, and encrypted behind our file systems."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.rounds import Contest, Contestant, compete, timed
from bench.settings import Settings, first_missing
from bench.storage import scratch_folder

SUBJECT = "libraries"
NEEDED = ("fsspec", "pandas", "pyarrow")
DATASET = "scan a Parquet file by pyarrow.dataset"
PANDAS = "read a Parquet file by pandas and fsspec"
PLAIN = "the plain file"
ENCRYPTED = "the encrypted file"

# Rows are made and written in batches of this many; one takes about this many bytes, compressed.
_ROWS = 250_000
_ROW_SIZE = 38


class Files:
    """A Parquet file of about ``size`` bytes in ``folder``, with one row group or more, beside its
    encrypted form, and the ways in which both are read."""

    def __init__(self, folder: Path, size: int) -> None:
        import fsspec

        from ags1.kms import create_key

        self.plain = folder / "x.parquet"
        self.rows = _write_rows(self.plain, size)
        keyring = folder / "keyring.json"
        create_key(str(keyring), "bench")
        self._options = {"keyring": str(keyring), "key": "bench"}
        with (
            open(self.plain, "rb") as source,
            fsspec.open(f"ags1::file://{self.plain}", "wb", **self._options) as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
        self.size = self.plain.stat().st_size

    def scan(self, *, encrypted: bool) -> int:
        """Return the number of rows that pyarrow has read in batches, with its threads."""
        import pyarrow.dataset

        import ags1.arrow

        below = ags1.arrow.filesystem(**self._options) if encrypted else None
        data = pyarrow.dataset.dataset(str(self.plain), filesystem=below, format="parquet")
        return sum(batch.num_rows for batch in data.to_batches())

    def frame(self, *, encrypted: bool) -> Any:
        """Return the file as a frame of pandas, which reads both by fsspec."""
        import pandas

        url = f"file://{self.plain}"
        if not encrypted:
            return pandas.read_parquet(url, storage_options={"auto_mkdir": False})
        return pandas.read_parquet(f"ags1::{url}", storage_options=self._options)


def _write_rows(path: Path, size: int) -> int:
    import numpy
    import pyarrow
    import pyarrow.parquet

    random = numpy.random.default_rng(1)
    rows = max(1, size // _ROW_SIZE)
    writer = None
    for begin in range(0, rows, _ROWS):
        count = min(_ROWS, rows - begin)
        table = pyarrow.table(
            {
                "id": numpy.arange(begin, begin + count),
                "price": random.random(count),
                "weight": random.random(count),
                "account": random.integers(0, 1 << 40, count),
                "name": [f"{number:x}" for number in random.integers(0, 1 << 32, count)],
            }
        )
        writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return rows


def missing() -> str | None:
    """Which package is not there, if one is not."""
    return first_missing(NEEDED)


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    if (name := missing()) is not None:
        skipped[SUBJECT] = f"{name} is not installed"
        return
    import pyarrow

    with scratch_folder(settings.folder, 3 * settings.table_size) as folder:
        files = Files(folder, settings.table_size)
        ways: list[tuple[str, Callable[..., object]]] = [
            (DATASET, files.scan),
            (PANDAS, files.frame),
        ]
        for contest, way in ways:
            runs = [
                Contestant(PLAIN, timed(lambda way=way: way(encrypted=False)), files.size),  # type: ignore[misc]
                Contestant(ENCRYPTED, timed(lambda way=way: way(encrypted=True)), files.size),  # type: ignore[misc]
            ]
            release = pyarrow.default_memory_pool().release_unused
            yield compete(SUBJECT, contest, runs, settings.slow_rounds, between=release)
