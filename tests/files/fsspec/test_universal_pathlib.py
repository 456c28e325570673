"""``UPath("ags1::…")``: paths of universal_pathlib over encrypted files."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ags1.errors import Ags1Error

upath = pytest.importorskip("upath")
from upath.registry import get_upath_class, register_implementation  # noqa: E402

from ags1.files.fsspec.paths import Ags1Path  # noqa: E402

TEXT = "day,fare\n1,2.5\n"


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    """universal_pathlib warns of what it does not know well. Register the class as the entry point
    of an installed package does."""
    register_implementation("ags1", Ags1Path, clobber=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(params=["ags1::file://{}", "ags1::memory://{}", "ags1::simplecache::memory://{}"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    tmp_path.joinpath("d").mkdir()
    return upath.UPath(request.param.format(tmp_path / "d"))


def test_the_class_is_found_by_the_protocol(folder: Any) -> None:
    assert get_upath_class("ags1") is Ags1Path
    assert type(folder) is type(folder / "x.csv") is type(folder.parent) is Ags1Path


def test_what_a_path_writes_is_encrypted_on_the_disk(
    tmp_path: Path, command: Callable[..., None]
) -> None:
    path = upath.UPath(f"ags1::file://{tmp_path}") / "x.csv"
    path.write_text(TEXT)
    stored = sorted(entry.name for entry in tmp_path.iterdir())
    assert stored == ["x.csv.ags1", "x.csv.ags1.keys"]
    command("decrypt", tmp_path / "x.csv.ags1", "-o", tmp_path / "copy.csv")
    assert (tmp_path / "copy.csv").read_text() == TEXT
    # As with ags1::, the suffix .ags1 may be written or left out.
    assert upath.UPath(f"ags1::file://{tmp_path}/x.csv.ags1").read_text() == TEXT


@pytest.mark.parametrize("url", ["ags1::file://{}", "ags1::memory://{}"])
def test_folders_are_listed_as_plaintext(url: str, tmp_path: Path) -> None:
    folder = upath.UPath(url.format(tmp_path / "d"))
    (folder / "sub").mkdir(parents=True)
    (folder / "x.csv").write_text(TEXT)
    (folder / "sub" / "y.csv").write_bytes(b"")
    listed = {str(path) for path in folder.iterdir()}
    assert listed == {f"{folder}/sub", f"{folder}/x.csv"}
    assert [path.read_text() for path in folder.glob("*.csv")] == [TEXT]
    assert {path.name for path in folder.rglob("*.csv")} == {"x.csv", "y.csv"}
    assert [(names, files) for _, names, files in folder.walk()] == [
        (["sub"], ["x.csv"]),
        ([], ["y.csv"]),
    ]
    assert (folder / "x.csv").stat().st_size == len(TEXT)
    assert (folder / "x.csv").is_file()
    assert (folder / "sub").is_dir()
    assert not (folder / "z.csv").exists()
    # The text of a path opens the same file again.
    assert all(upath.UPath(str(path)).exists() for path in folder.iterdir())
    (folder / "x.csv").rename(folder / "z.csv")
    assert (folder / "z.csv").read_text() == TEXT
    (folder / "z.csv").unlink()
    assert [path.name for path in folder.iterdir()] == ["sub"]


def test_reading_through_other_file_systems(folder: Any) -> None:
    written = upath.UPath(str(folder).replace("simplecache::", "")) / "x.csv"
    written.write_text(TEXT)
    path = folder / "x.csv"
    assert path.read_text() == TEXT
    assert [str(entry) for entry in folder.iterdir()] == [str(path)]
    with path.open("r") as file:
        assert file.readline() == "day,fare\n"
    assert pickle.loads(pickle.dumps(path)).read_bytes() == TEXT.encode()


def test_options_go_to_the_entries_of_a_folder(keyring: str, tmp_path: Path) -> None:
    (upath.UPath(f"ags1::file://{tmp_path}") / "x.csv").write_text(TEXT)
    folder = upath.UPath(f"ags1::file://{tmp_path}", keyring=keyring)
    (path,) = folder.iterdir()
    assert path.storage_options["keyring"] == keyring
    assert path.read_text() == TEXT


def test_a_cut_file_is_not_read(tmp_path: Path) -> None:
    path = upath.UPath(f"ags1::file://{tmp_path}/x.csv")
    path.write_text(TEXT * 1000)
    stored = tmp_path / "x.csv.ags1"
    stored.write_bytes(stored.read_bytes()[:-1])
    with pytest.raises(Ags1Error):
        path.read_text()
