"""Which metadata.json of a folder is the table's, and ``open_table`` of a folder."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from iceberg_tables import JAVA_LOCATION, KMS_PROPERTIES, by_id, copied, expected_rows, memory_kms
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from ags1.errors import MetadataIntegrityError
from ags1.iceberg import open_table
from ags1.iceberg.storage.metadata_files import newest_metadata
from ags1.kms.client import KmsClient

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")


class BlindIO(FileIO):
    """A storage that cannot list files."""

    def new_input(self, location: str) -> InputFile:
        return PyArrowFileIO().new_input(location)

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError

    def delete(self, location: Any) -> None:
        raise NotImplementedError


def test_a_folder_is_opened_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied("parquet_plain", tmp_path)
    monkeypatch.chdir(tmp_path)
    for location in (f"file://{folder}/", str(folder), "parquet_plain"):
        table = open_table(location, KMS_PROPERTIES)
        assert by_id(table.scan().to_arrow().to_pylist()) == expected_rows("parquet_plain")


def test_a_refresh_looks_into_the_folder_again(tmp_path: Path) -> None:
    folder = copied("parquet_plain", tmp_path)
    files = sorted((folder / "metadata").glob("*.metadata.json"))
    newer = [file.rename(tmp_path / file.name) for file in files[2:]]
    asked: list[str] = []

    def client_of(key_id: str) -> KmsClient:
        asked.append(key_id)
        return memory_kms()

    table = open_table(str(folder), client_of)
    assert asked == ["keyA"]
    assert table.metadata_location == str(files[1])
    before = table.scan().count()
    for file in newer:
        file.rename(folder / "metadata" / file.name)
    assert table.refresh().metadata_location == str(files[-1])
    assert table.scan().count() == len(expected_rows("parquet_plain")) > before


def test_what_is_known_of_a_table_holds_for_its_folder(tmp_path: Path) -> None:
    folder = copied("stats", tmp_path)
    with pytest.raises(MetadataIntegrityError):
        open_table(str(folder), KMS_PROPERTIES, expected_key_id="keyB")
    with pytest.raises(MetadataIntegrityError):
        open_table(str(folder), KMS_PROPERTIES, expected_metadata_sha256="00" * 32)
    elsewhere = {JAVA_LOCATION: str(tmp_path / "elsewhere")}
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        open_table(str(folder), KMS_PROPERTIES, elsewhere).scan().to_arrow()


def test_a_storage_that_cannot_list(tmp_path: Path) -> None:
    folder = copied("stats", tmp_path)
    with pytest.raises(OSError, match="BlindIO cannot list the files in this folder") as caught:
        open_table(str(folder), KMS_PROPERTIES, properties={"py-io-impl": f"{__name__}.BlindIO"})
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTSUP, str(folder))


def test_the_version_hint_decides_and_else_the_highest_number(tmp_path: Path) -> None:
    from pyiceberg.io import load_file_io

    io = load_file_io({}, str(tmp_path))
    folder = tmp_path / "t"
    (folder / "metadata").mkdir(parents=True)

    def make(*names: str) -> None:
        for name in names:
            (folder / "metadata" / name).write_text("{}")

    def newest() -> str:
        return Path(newest_metadata(io, str(folder))).name

    with pytest.raises(FileNotFoundError):
        newest()
    make("v1.metadata.json", "v2.metadata.json", "v10.metadata.json", "snap-99-1-x.avro")
    assert newest() == "v10.metadata.json"
    (folder / "metadata" / "version-hint.text").write_text("2\n")
    assert newest() == "v2.metadata.json"
    (folder / "metadata" / "version-hint.text").write_text("77")
    assert newest() == "v10.metadata.json"
    (folder / "metadata" / "version-hint.text").write_text("3")
    make("3.metadata.json")
    assert newest() == "3.metadata.json"
    # Java looks for these names alone, and then for the versions that follow.
    make("v3.metadata.json.gz")
    assert newest() == "v3.metadata.json.gz"
    make("v3.gz.metadata.json")
    assert newest() == "v3.gz.metadata.json"
    make("v3.metadata.json")
    assert newest() == "v3.metadata.json"
    make("v4.gz.metadata.json", "v5.metadata.json", "v7.metadata.json", "6.metadata.json")
    assert newest() == "v5.metadata.json"
    (folder / "metadata" / "version-hint.text").write_text("77")
    make("00011-aa.metadata.json")
    assert newest() == "00011-aa.metadata.json"
    make("00012-aa.gz.metadata.json")
    assert newest() == "00012-aa.gz.metadata.json"
    make("00012-bb.metadata.json")
    with pytest.raises(ValueError, match="2 metadata files have the number 12"):
        newest()
