"""What somebody put in place of a table's file, and that is no regular file, is refused at once:
opening a pipe that has no writer waits for ever."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from iceberg_tables import copied, metadata_file, open_fixture

KINDS: dict[str, Callable[[str], object]] = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(path),
    "device": lambda path: os.symlink("/dev/zero", path),
}


@pytest.mark.slow_variants(r"(?!pipe-py|folder-fs).*")
@pytest.mark.parametrize("implementation", ["pyarrow.PyArrowFileIO", "fsspec.FsspecFileIO"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_read_waits(
    tmp_path: Path,
    kind: str,
    implementation: str,
    in_a_fork: Callable[[Callable[[], object]], None],
) -> None:
    folder = copied("mor_dv", tmp_path)
    properties = {"py-io-impl": f"pyiceberg.io.{implementation}"}

    def read() -> int:
        table = open_fixture("mor_dv", tmp_path, properties=properties)
        return len(table.scan().to_arrow())

    rows = read()
    current = open_fixture("mor_dv", tmp_path).current_snapshot()
    assert current is not None
    newest = metadata_file("mor_dv").name, current.manifest_list.rpartition("/")[2]
    # Without the metadata and the manifest lists of other versions.
    paths = [
        path
        for path in folder.rglob("*.*")
        if path.name in newest
        or not path.name.startswith(("snap-", "0000"))
        or path.parent.name == "data"
    ]

    def read_without_each_file() -> None:
        refused = set()
        for path in paths:
            path.rename(folder / "aside")
            os.chdir(path.parent)  # a socket's path is short
            KINDS[kind](path.name)
            try:
                assert read() == rows  # the current snapshot does not have this file
            except OSError:
                refused.add(path.suffix)
            path.rmdir() if kind == "folder" else path.unlink()
            (folder / "aside").rename(path)
        # Manifests and their list, data files, deletion vectors.
        assert refused == {".avro", ".parquet", ".puffin", ".json"}

    in_a_fork(read_without_each_file)
