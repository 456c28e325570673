"""pandas, pyarrow, Polars, DuckDB and Dask read an encrypted Parquet file of the command line."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ags1.errors import Ags1Error, KmsConfigurationError
from ags1.filesystem import Ags1FileSystem
from ags1.kms import LocalKms

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
import pyarrow.dataset as ds  # noqa: E402
import pyarrow.fs as pafs  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

import ags1.arrow  # noqa: E402

ROWS = 40_000
BLOCK_SIZE = 1 << 16
TABLE = pa.table({"id": range(ROWS), "half": [n / 2 for n in range(ROWS)]})


def with_pandas(path: str) -> Any:
    return pa.Table.from_pandas(pd.read_parquet(f"ags1::file://{path}.ags1"))


def with_pyarrow(path: str) -> Any:
    return ds.dataset(path, filesystem=ags1.arrow.filesystem()).to_table()


def with_pyarrow_s_own_wrapper(path: str) -> Any:
    return pq.read_table(path, filesystem=fsspec.filesystem("ags1", target_protocol="file"))


def with_polars(path: str) -> Any:
    polars = pytest.importorskip("polars")
    with fsspec.open(f"ags1::file://{path}.ags1") as file:
        return polars.read_parquet(file).to_arrow()


def with_polars_lazily(path: str) -> Any:
    pytest.importorskip("polars")
    import ags1.polars

    return ags1.polars.scan_parquet(path).collect().to_arrow()


def with_duckdb(path: str) -> Any:
    pytest.importorskip("duckdb")
    import ags1.duckdb

    connection = ags1.duckdb.connect()
    return connection.sql(f"SELECT * FROM 'ags1::file://{path}'").to_arrow_table()


def with_duckdb_over_a_dataset(path: str) -> Any:
    duckdb = pytest.importorskip("duckdb")
    dataset = ds.dataset(path, filesystem=ags1.arrow.filesystem())  # noqa: F841, named in SQL
    return duckdb.sql("SELECT * FROM dataset").to_arrow_table()


def with_dask(path: str, scheduler: str = "threads") -> Any:
    dask = pytest.importorskip("dask.dataframe")
    frame = dask.read_parquet(f"ags1::file://{path}.ags1")
    return pa.Table.from_pandas(frame.compute(scheduler=scheduler, num_workers=1))


def with_processes_of_dask(path: str) -> Any:
    return with_dask(path, "processes")


READERS: list[Callable[[str], Any]] = [
    with_pandas,
    with_pyarrow,
    with_pyarrow_s_own_wrapper,
    with_polars,
    with_polars_lazily,
    with_duckdb,
    with_duckdb_over_a_dataset,
    with_dask,
    with_processes_of_dask,
]


@pytest.fixture
def sealed(tmp_path: Path, command: Callable[..., None]) -> Path:
    plain = tmp_path / "x.parquet"
    pq.write_table(TABLE, plain, row_group_size=10_000)
    command("encrypt", "--quiet", "--block-size", BLOCK_SIZE, plain)
    plain.unlink()
    return tmp_path / "x.parquet.ags1"


@pytest.mark.slow_variants("with_processes_of_dask")
@pytest.mark.parametrize("read", READERS)
def test_rows(sealed: Path, read: Callable[[str], Any]) -> None:
    rows = read(str(sealed.with_suffix("")))
    assert rows.num_rows == ROWS
    assert rows["id"].equals(TABLE["id"])
    assert rows["half"].equals(TABLE["half"])


# Of `make test`: a changed byte through each library; these two faults through pyarrow. Rows;
# Dask starts processes.
@pytest.mark.slow_variants(
    r"(cut|another key)-with_(pandas|polars.*|duckdb.*|pyarrow_s_.*)", r".*-with_.*dask"
)
@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("damage", ["cut", "changed", "another key"])
def test_damage_raises(
    sealed: Path,
    read: Callable[[str], Any],
    damage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = bytearray(sealed.read_bytes())
    said = {"cut": "truncated", "changed": "tag|authentic", "another key": "key"}[damage]
    if damage == "cut":
        sealed.write_bytes(stored[: -len(stored) // 3])
    elif damage == "changed":
        stored[len(stored) // 2] ^= 1
        sealed.write_bytes(stored)
    else:
        other = str(tmp_path / "other.json")
        LocalKms(other).create_key("default")
        monkeypatch.setenv("AGS1_KEYRING", other)
    # What a file raises is a panic in Polars, which is no Exception.
    with pytest.raises(BaseException, match=said) as raised:
        read(str(sealed.with_suffix("")))
    assert isinstance(raised.value, Ags1Error) or read is not with_pandas


def test_a_column_and_a_range_of_rows_are_read_alone(sealed: Path) -> None:
    fs = ags1.arrow.filesystem()
    path = str(sealed.with_suffix(""))
    dataset = ds.dataset(path, filesystem=pickle.loads(pickle.dumps(fs)))
    found = dataset.to_table(columns=["half"], filter=ds.field("id") >= ROWS - 10)
    assert found == TABLE.select(["half"]).slice(ROWS - 10).combine_chunks()


@pytest.mark.parametrize(
    "below", [None, "file", pafs.LocalFileSystem(), fsspec.filesystem("file"), "ours"]
)
def test_file_systems_below(sealed: Path, below: Any) -> None:
    if below == "ours":
        below = Ags1FileSystem(fs=fsspec.filesystem("file"))
    fs = ags1.arrow.filesystem(below)
    info = fs.get_file_info(str(sealed))
    assert (info.type, info.size) == (pafs.FileType.File, pq_size(sealed))
    assert pq.read_table(str(sealed.with_suffix("")), filesystem=fs).equals(TABLE)


def pq_size(sealed: Path) -> int:
    return sealed.stat().st_size - 8 - 28 * -(-sealed.stat().st_size // BLOCK_SIZE)


def test_a_file_system_of_pyarrow_below(sealed: Path) -> None:
    folder = pafs.SubTreeFileSystem(str(sealed.parent), pafs.LocalFileSystem())
    fs = ags1.arrow.filesystem(folder)
    assert pq.read_table("x.parquet", filesystem=fs).equals(TABLE)


def test_a_dataset_of_several_files_is_written_and_read(tmp_path: Path) -> None:
    fs = ags1.arrow.filesystem()
    ds.write_dataset(TABLE, str(tmp_path / "t"), format="parquet", filesystem=fs,
                     max_rows_per_file=12_000, max_rows_per_group=12_000)  # fmt: skip
    stored = sorted(path.name for path in (tmp_path / "t").iterdir())
    assert len(stored) == 8
    assert all(name.endswith((".parquet.ags1", ".parquet.ags1.keys")) for name in stored)
    found = ds.dataset(str(tmp_path / "t"), filesystem=fs, format="parquet").to_table()
    assert found.sort_by("id").equals(TABLE)


@pytest.mark.parametrize("folder", ["t", "t/", "./t", "t/x=1", "", "."])
def test_a_relative_folder_is_a_dataset_as_with_arrow_s_files(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "encrypted").mkdir()
    (tmp_path / "plain").mkdir()
    listed = []
    for name, fs in (("plain", pafs.LocalFileSystem()), ("encrypted", ags1.arrow.filesystem())):
        monkeypatch.chdir(tmp_path / name)
        ds.write_dataset(TABLE.slice(0, 9), "t/x=1", format="parquet", filesystem=fs)
        if folder:
            found = ds.dataset(folder, filesystem=fs, format="parquet")
            assert found.count_rows() == 9
            listed.append(found.files)
        infos = fs.get_file_info(pafs.FileSelector(folder or ".", recursive=True))
        listed.append([(info.path, info.type) for info in infos])
    half = len(listed) // 2
    assert listed[:half] == listed[half:]


def put(command: Callable[..., None], folder: Path, frame: Any, kind: str = "parquet") -> None:
    """Write a frame of Polars to ``plain`` in a folder, and encrypted to ``sealed``."""
    (folder / "plain").mkdir(parents=True)
    getattr(frame, f"write_{kind}")(folder / "plain" / f"x.{kind}")
    command("encrypt", "--quiet", folder / "plain", "-o", folder / "sealed")


@pytest.mark.parametrize(
    "spelling", ["{}", "{}.ags1", "file://{}", "ags1::file://{}.ags1", "ags1://{}"]
)
def test_a_csv_file_is_what_polars_reads_from_the_plaintext(
    spelling: str, tmp_path: Path, command: Callable[..., None]
) -> None:
    polars = pytest.importorskip("polars")
    import ags1.polars

    frame = polars.DataFrame({"n": [1, None, 3], "text": ["a;b", "", None], "x": [0.5, 2.0, -1.0]})
    put(command, tmp_path, frame, "csv")
    options: dict[str, Any] = {"schema_overrides": {"n": polars.Int16}, "row_index_name": "row"}
    sealed = spelling.format(tmp_path / "sealed" / "x.csv")
    found = ags1.polars.scan_csv(sealed, **options).filter(polars.col("n") > 1).collect()
    plain = polars.scan_csv(tmp_path / "plain" / "x.csv", **options)
    assert found.equals(plain.filter(polars.col("n") > 1).collect())
    assert found.height == 1


def test_filters_and_folders_are_those_of_polars(
    tmp_path: Path, command: Callable[..., None]
) -> None:
    polars = pytest.importorskip("polars")
    import ags1.polars

    numbers = [1, None, 3, 7]
    floats = {"n": numbers, "x": [0.5, float("nan"), None, float("inf")]}
    for name, data in (("floats", floats), ("whole", {"n": numbers, "x": [5, 6, None, 8]})):
        for year in (2025, 2026):
            put(command, tmp_path / name / f"year={year}", polars.DataFrame(data))
    for name in ("floats", "whole"):
        for kind in ("plain", "sealed"):
            for year in (2025, 2026):
                target = tmp_path / kind / name / f"year={year}"
                target.parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name / f"year={year}" / kind).rename(target)
        plain = polars.scan_parquet(tmp_path / "plain" / name)
        sealed = ags1.polars.scan_parquet(tmp_path / "sealed" / name)
        assert sealed.collect_schema() == plain.collect_schema()
        n, x, year = polars.col("n"), polars.col("x"), polars.col("year")
        for query in (
            x > 1, x == x, x <= 0.5, x != 5, ~(x > 1), n.is_null(), n.is_in([1, None]),
            n.ne_missing(3), year == 2026, (year == 2025) & (n > 1) | (x < 6),
        ):  # fmt: skip
            wanted = plain.filter(query).select("year", "n", "x").collect().sort("year", "n")
            for engine in ("in-memory", "streaming"):
                found = sealed.filter(query).select("year", "n", "x").collect(engine=engine)
                assert found.sort("year", "n").equals(wanted), (name, query)
    pattern = ags1.polars.scan_parquet(f"{tmp_path}/sealed/whole/*/x.parquet.ags1")
    assert pattern.collect().height == 8
    one = f"{tmp_path}/sealed/whole/year=2026/x.parquet"
    assert ags1.polars.scan_parquet([one, one]).collect().height == 8
    for missing in ("nope", "*.nope", f"ags1::file://{tmp_path}/nope.ags1"):
        with pytest.raises(FileNotFoundError, match="nope"):
            ags1.polars.scan_parquet(missing)


def test_a_storage_of_fsspec_by_its_url() -> None:
    pytest.importorskip("polars")
    pytest.importorskip("duckdb")
    import ags1.duckdb
    import ags1.polars

    with pytest.raises(KmsConfigurationError, match="is a secret"):
        ags1.duckdb.connect(storage_options={"s3": {"anon": True}, "kms.vault.token": "00"})
    connection = ags1.duckdb.connect()
    connection.execute("COPY (SELECT 7 AS n) TO 'ags1::memory://doors/x.parquet'")
    assert ags1.polars.scan_parquet("memory://doors/x.parquet").collect()["n"].to_list() == [7]
    found = connection.sql("SELECT n FROM read_parquet('ags1::memory://doors/*.parquet')")
    assert found.fetchall() == [(7,)]
    stored = fsspec.filesystem("memory").find("/doors")
    assert stored == ["/doors/x.parquet.ags1", "/doors/x.parquet.ags1.keys"]


def test_duckdb_copies_whole_files_or_none(tmp_path: Path, command: Callable[..., None]) -> None:
    duckdb = pytest.importorskip("duckdb")
    import ags1.duckdb

    connection = ags1.duckdb.connect()
    rows = "SELECT i, i % 7 AS rest FROM range(100000) AS t(i)"
    for kind in ("csv", "parquet"):
        target = f"ags1::file://{tmp_path}/x.{kind}"
        connection.execute(f"COPY ({rows}) TO '{target}'")
        sums = connection.sql(f"SELECT count(*), sum(i), sum(rest) FROM '{target}'").fetchall()
        assert sums == duckdb.sql(f"SELECT count(*), sum(i), sum(rest) FROM ({rows})").fetchall()
        before = (tmp_path / f"x.{kind}.ags1").read_bytes()
        failing = f"SELECT CASE WHEN i > 90000 THEN error('no') ELSE i END AS i FROM ({rows})"
        for name in (target, f"ags1::file://{tmp_path}/new.{kind}"):
            with pytest.raises(duckdb.Error, match="no"):
                connection.execute(f"COPY ({failing}) TO '{name}'")
        assert (tmp_path / f"x.{kind}.ags1").read_bytes() == before
    assert not list(tmp_path.glob("new*"))
    assert all(path.name.endswith((".ags1", ".ags1.keys")) for path in tmp_path.iterdir())


def test_a_file_that_duckdb_removes_and_then_closes_is_not_there(
    tmp_path: Path, keyring: str
) -> None:
    """DuckDB does so after a failed COPY, now and then: one of its threads still has the file."""
    pytest.importorskip("duckdb")
    import ags1.duckdb

    files = ags1.duckdb._Urls({})
    path = f"ags1::file://{tmp_path}/x.parquet"
    file = files.open(path, "wb")
    file.write(b"PAR1")
    assert files.isfile(path)
    files.rm_file(path)
    file.close()
    assert not list(tmp_path.glob("*x.parquet*"))
    with contextlib.closing(files.open(path, "wb")) as file:
        file.write(b"PAR1")
    assert files.size(path) == 4
    files.rm_file(path)
    assert not files.exists(path)


def test_threads_of_duckdb_move_one_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyring: str
) -> None:
    pytest.importorskip("duckdb")
    import ags1.duckdb

    class Slow(ags1.duckdb.SharedReader):
        """Lets other threads come between a thread's seek and its read."""

        def seek(self, *arguments: Any) -> int:
            position = super().seek(*arguments)
            time.sleep(0.0005)
            return position

    monkeypatch.setattr(ags1.duckdb, "SharedReader", Slow)
    connection = ags1.duckdb.connect(config={"threads": 4})
    path = f"ags1::file://{tmp_path}/x"
    connection.execute(
        f"COPY (FROM range(200000) AS t(i)) TO '{path}.parquet' (ROW_GROUP_SIZE 10000);"
        f"COPY (FROM range(200000) AS t(i)) TO '{path}.csv'"
    )
    for kind in ("parquet", "csv"):
        found = connection.sql(f"SELECT count(*), sum(i), max(i) FROM '{path}.{kind}'")
        assert found.fetchall() == [(200_000, 19_999_900_000, 199_999)]


_SLOW = """
import sys, time
import pyarrow.dataset
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from ags1 import arrow

class Slow(DirFileSystem):
    def cat_file(self, path, start=None, end=None, **kwargs):
        time.sleep(0.4)
        return super().cat_file(path, start=start, end=end, **kwargs)

files = arrow.filesystem(Slow(sys.argv[1], LocalFileSystem()))
print(pyarrow.dataset.dataset("rows", filesystem=files, format="parquet").head(5).num_rows)
"""


def test_a_process_ends_although_arrow_reads_ahead(tmp_path: Path) -> None:
    """Arrow's threads read other files for ``head``, which does not wait for them."""
    files = ags1.arrow.filesystem()
    (tmp_path / "rows").mkdir()
    rows = pa.table({"n": range(10_000)})
    for number in range(8):
        path = f"{tmp_path}/rows/{number}.parquet"
        pq.write_table(rows, path, filesystem=files, row_group_size=1_000)
    done = subprocess.run(
        [sys.executable, "-c", _SLOW, tmp_path], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
