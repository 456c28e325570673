"""Encrypted tables on S3 (moto's server on 127.0.0.1), by both of PyIceberg's file systems.

Beside them, what a storage's stream has to offer at least: ``TableFiles`` over one that only reads
and seeks.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from counted_requests import counted_requests
from iceberg_tables import (
    JAVA_LOCATION,
    KMS_PROPERTIES,
    TABLES,
    by_id,
    copied,
    expected_rows,
    memory_kms,
    metadata_file,
    open_fixture,
)
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.utils.concurrent import ExecutorFactory
from table_maker import TableMaker

import ags1
from ags1 import (
    Ags1Error,
    KeyMetadata,
    KeyMetadataError,
    MissingFileLengthError,
    NotEncryptedError,
    TruncatedError,
)
from ags1.iceberg import EncryptedCatalog, TableFiles, open_table, verify_table
from ags1.iceberg.read.open_files import OpenView
from ags1.keys.manager import EncryptionManager
from ags1.kms import KmsClient, from_properties

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

BUCKET = "tables"
FILE_IO = {
    "pyarrow": "pyiceberg.io.pyarrow.PyArrowFileIO",
    "fsspec": "pyiceberg.io.fsspec.FsspecFileIO",
}
COLUMNS = [{"id": 1, "name": "id", "type": "long"}, {"id": 2, "name": "name", "type": "string"}]
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "long", "field-id": 1},
        {"name": "name", "type": "string", "field-id": 2},
    ],
}


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A client of a server that is there for this module; its endpoint is ``meta.endpoint_url``."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("moto.server")
    from aws_server import aws_server, dummy_environment

    with aws_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in dummy_environment(endpoint).items():
            patch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket=BUCKET)
        yield client


def upload(s3: Any, folder: Path, prefix: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            key = f"{prefix}/{path.relative_to(folder)}"
            s3.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())


def properties(s3: Any, kind: str) -> dict[str, str]:
    if kind == "fsspec":
        pytest.importorskip("s3fs")
    return {
        "py-io-impl": FILE_IO[kind],
        "s3.endpoint": s3.meta.endpoint_url,
        "s3.access-key-id": "testing",
        "s3.secret-access-key": "testing",
        "s3.region": "us-east-1",
    }


# Of `make test`: one table through each of the two FileIOs.
@pytest.mark.slow_variants(r"(mor_dv-fsspec|parquet_plain-.*|stats-pyarrow)")
@pytest.mark.parametrize("kind", FILE_IO)
@pytest.mark.parametrize("name", ["mor_dv", "stats", "parquet_plain"])
def test_a_table_of_java_s_moved_to_s3(s3: Any, kind: str, name: str) -> None:
    upload(s3, TABLES / name, f"fixtures/{name}")
    table = open_table(
        f"s3://{BUCKET}/fixtures/{name}/metadata/{metadata_file(name).name}",
        memory_kms(),
        {JAVA_LOCATION: f"s3://{BUCKET}/fixtures"},
        properties=properties(s3, kind),
    )
    expected = expected_rows(name)
    assert by_id(table.scan().to_arrow().to_pylist()) == expected
    assert by_id(table.refresh().scan().to_arrow().to_pylist()) == expected
    assert table.inspect.files().num_rows > 0


@pytest.mark.parametrize("kind", FILE_IO)
def test_every_kind_of_file_on_s3(s3: Any, kind: str, tmp_path: Path) -> None:
    place = f"s3://{BUCKET}/{kind}/t"
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms(), location=place)
    rows = [{"id": n, "name": "x" * 200} for n in range(2000)]
    parquet = maker.add_parquet(rows[:10])
    plain = maker.add_parquet(rows[10:20], encrypted=False)
    avro = maker.add_avro(rows[20:], AVRO)
    maker.commit(parquet, plain, avro)
    maker.commit(*maker.add_deletion_vectors({parquet["file_path"]: [0], avro["file_path"]: [5]}))
    maker.commit(maker.add_position_deletes([(plain["file_path"], 1)]))
    maker.commit(maker.add_equality_deletes([{"id": 7}, {"id": 100}], [1]))
    path = Path(maker.write())
    upload(s3, tmp_path / "t", f"{kind}/t")
    table = open_table(
        f"{place}/metadata/{path.name}", memory_kms(), properties=properties(s3, kind)
    )
    gone = {0, 25, 11, 7, 100}
    expected = [n for n in range(2000) if n not in gone]
    assert table.scan().to_arrow()["id"].to_pylist() == expected
    s3.delete_object(Bucket=BUCKET, Key=f"{kind}/t/data/{avro['file_path'].rpartition('/')[2]}")
    with pytest.raises(FileNotFoundError):
        table.scan().to_arrow()


@pytest.mark.parametrize("kind", FILE_IO)
def test_a_cut_file_on_s3(s3: Any, kind: str, tmp_path: Path) -> None:
    place = f"s3://{BUCKET}/cut/{kind}"
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms(), location=place)
    files = [
        maker.add_parquet([{"id": 1, "name": "a"}]),
        maker.add_avro([{"id": 1, "name": "a"}], AVRO),
    ]
    for number, file in enumerate(files):
        maker.manifests.clear()
        maker.commit(file)
        path = Path(maker.write())
        upload(s3, tmp_path / "t", f"cut/{kind}")
        name = file["file_path"].removeprefix(f"s3://{BUCKET}/")
        whole = s3.get_object(Bucket=BUCKET, Key=name)["Body"].read()
        s3.put_object(Bucket=BUCKET, Key=name, Body=whole[:-1])
        table = open_table(
            f"{place}/metadata/{path.name}", memory_kms(), properties=properties(s3, kind)
        )
        with pytest.raises(TruncatedError):
            table.scan().to_arrow()
        assert number < 2


def test_a_table_whose_master_key_is_in_aws_kms(s3: Any, tmp_path: Path) -> None:
    boto3 = pytest.importorskip("boto3")
    aws = boto3.client("kms", endpoint_url=s3.meta.endpoint_url, region_name="us-east-1")
    key_id = aws.create_key()["KeyMetadata"]["Arn"]
    kms = {
        "encryption.kms-type": "aws",
        "kms.endpoint": s3.meta.endpoint_url,
        "client.region": "us-east-1",
    }
    place = f"s3://{BUCKET}/kms/t"
    maker = TableMaker(tmp_path / "t", COLUMNS, from_properties(kms), location=place, key_id=key_id)
    maker.commit(maker.add_parquet([{"id": 1, "name": "a"}]))
    path = Path(maker.write())
    upload(s3, tmp_path / "t", "kms/t")
    location = f"{place}/metadata/{path.name}"
    more = {"expected_key_id": key_id, "properties": properties(s3, "pyarrow")}
    table = open_table(location, kms, **more)
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "name": "a"}]
    # Such a KMS would as well unwrap with an attacker's key, in the attacker's account.
    for client in (kms, lambda _: from_properties(kms)):
        with pytest.raises(KeyMetadataError, match="another user's key"):
            open_table(location, client, properties=more["properties"])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    pinned = open_table(
        location, kms, expected_metadata_sha256=digest, properties=more["properties"]
    )
    assert pinned.scan().count() == 1


def test_a_local_table_by_fsspec(tmp_path: Path) -> None:
    copied("mor_dv", tmp_path)
    table = open_fixture("mor_dv", tmp_path, properties={"py-io-impl": FILE_IO["fsspec"]})
    assert by_id(table.scan().to_arrow().to_pylist()) == expected_rows("mor_dv")


# -- TableFiles itself


@pytest.fixture
def kms() -> KmsClient:
    return memory_kms()


@pytest.fixture(params=FILE_IO)
def files(request: pytest.FixtureRequest, kms: KmsClient) -> TableFiles:
    if request.param == "pyarrow":
        return TableFiles(PyArrowFileIO(), EncryptionManager(kms, "keyA"))
    from pyiceberg.io.fsspec import FsspecFileIO

    return TableFiles(FsspecFileIO({}), EncryptionManager(kms, "keyA"))


def sealed(tmp_path: Path, data: bytes) -> tuple[str, KeyMetadata]:
    stored, km = ags1.encrypt(data)
    (tmp_path / "x").write_bytes(stored)
    return f"file://{tmp_path}/x", km


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_plaintext_of_every_size(files: TableFiles, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    location, km = sealed(tmp_path, data)
    assert files.read_encrypted(location, km) == data
    with files.open_encrypted(location, km) as reader:
        assert reader.read() == data
        assert reader.pread(size // 2, 100) == data[size // 2 :][:100]
    with files.open_stored(location) as stream:
        assert ags1.decrypt(stream.read(), km) == data


def test_lengths_are_not_the_storage_s(files: TableFiles, tmp_path: Path) -> None:
    location, km = sealed(tmp_path, b"data")
    without = KeyMetadata(km.encryption_key, km.aad_prefix)
    for read in (files.read_encrypted, files.open_encrypted):
        with pytest.raises(MissingFileLengthError) as caught:
            read(location, without)
        assert caught.value.file == location


def test_a_file_in_the_clear_is_told_as_such(files: TableFiles, tmp_path: Path) -> None:
    location, km = sealed(tmp_path, b"data")
    (tmp_path / "x").write_bytes(b"Obj\x01" + bytes((km.file_length or 0) - 4))
    with pytest.raises(NotEncryptedError):
        files.read_encrypted(location, km)


@pytest.mark.parametrize(("stored", "message"), [(b"", "is empty"), (b"AG", "ends within")])
def test_a_file_that_ends_before_it_begins(
    files: TableFiles, tmp_path: Path, stored: bytes, message: str
) -> None:
    location, km = sealed(tmp_path, b"content")
    (tmp_path / "x").write_bytes(stored)
    with pytest.raises(TruncatedError, match=message):
        files.read_encrypted(location, km)


@pytest.mark.slow
def test_a_pickle_has_no_key(tmp_path: Path) -> None:
    from ags1.kms.local import LocalKms

    kms = LocalKms(tmp_path / "keyring.json", passphrase_file=_passphrase(tmp_path))
    kms.create_key("keyA")
    maker = TableMaker(tmp_path / "t", COLUMNS, kms)
    maker.commit(maker.add_parquet([{"id": 1, "name": "a"}]))
    table = open_table(maker.write(), kms)
    rows = table.scan().to_arrow()
    keys = [
        task.file.key.encryption_key  # type: ignore[attr-defined]
        for task in table.scan().plan_files()
    ]
    pickles = [pickle.dumps(thing) for thing in (table, table.scan(), table.io)]
    for data in pickles:
        assert not any(key in data or key.hex().encode() in data for key in keys)
    again, scan, files = map(pickle.loads, pickles)
    assert again.scan().to_arrow().equals(rows)
    assert scan.to_arrow().equals(rows)
    assert len(table.metadata.current_snapshot().manifests(files)) == 1


def _passphrase(folder: Path) -> Path:
    path = folder / "passphrase"
    path.write_text("correct horse battery staple")
    path.chmod(0o600)
    return path


@pytest.mark.slow_variants(r"avro-.*")
@pytest.mark.parametrize("kind", FILE_IO)
@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_errors_about_a_moved_table_name_both_locations(
    catalog: Any, tmp_path: Path, kind: str, file_format: str
) -> None:
    """Otherwise somebody could mend the file at the former location."""
    rows = pa.table({"id": range(1000)})
    named = {"encryption.key-id": "keyA", "write.format.default": file_format}
    table = catalog.create_table("db.t", rows.schema, properties=named)
    table.append(rows)
    table.delete("id = 5")
    moved = tmp_path / "moved"
    shutil.copytree(table.location().removeprefix("file://"), moved)

    def messages() -> Iterator[str]:
        copy = open_table(str(moved), KMS_PROPERTIES, properties={"py-io-impl": FILE_IO[kind]})
        works: list[Callable[[], object]] = [
            lambda: copy.scan().to_arrow(),
            lambda: copy.scan("id > 3").count(),
            lambda: copy.scan().to_arrow_batch_reader().read_all(),
            lambda: copy.inspect.entries(),
        ]
        for work in works:
            try:
                work()
            except (Ags1Error, OSError) as error:
                yield str(error)
        for finding in verify_table(copy).findings:
            if finding.severity == "error":
                yield f"{finding.file}: {finding.message}"

    # All but metadata.json. Each manifest is damaged in two of three ways, by turns.
    for number, path in enumerate(sorted(moved.rglob("*.[apv]*"))):
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[len(whole) // 2] ^= 1
        ways = [None, whole[:-7], changed]
        if path.parent.name == "metadata":
            del ways[number % 3]
        for damaged in ways:
            path.unlink(missing_ok=True)
            if damaged is not None:
                path.write_bytes(damaged)
            told = list(messages())
            assert told  # at least by the verification
            for message in told:
                assert f"{table.location()}/{path.relative_to(moved)}" in message
                assert str(path) in message
        path.write_bytes(whole)


def opened(files: TableFiles, file: Any) -> OpenView:
    return OpenView(files.open_source(file.file_path), file.sized_key)


@pytest.mark.slow_variants("of the environment")
@pytest.mark.parametrize("credentials", ["of the environment", "of properties"])
def test_the_number_of_requests(s3: Any, credentials: str) -> None:
    rows = pa.table({"id": [1, 2, 3]})
    with counted_requests(s3.meta.endpoint_url) as requests:
        server = properties(s3, "pyarrow") | {"s3.endpoint": requests.url}
        # On a busy machine, the client would ask again after a second without an answer.
        server |= {"s3.connect-timeout": "60", "s3.request-timeout": "60"}
        if credentials == "of the environment":
            del server["s3.access-key-id"], server["s3.secret-access-key"]
        inner = load_catalog(
            "c",
            type="sql",
            uri="sqlite://",
            warehouse=f"s3://{BUCKET}/{credentials[-3:]}",
            **server,
        )
        catalog = EncryptedCatalog(inner, memory_kms())
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", rows.schema, properties={"encryption.key-id": "keyA"})
        table.append(rows)
        made: dict[str, int] = {}

        def count(name: str, work: Callable[[], object]) -> None:
            requests.made.clear()
            work()
            made[name] = sum(requests.made.values())

        # The table of docs/tables/catalogs.md has these numbers.
        count("append", lambda: table.append(rows))
        count("delete", lambda: table.delete("id = 2"))
        for _ in range(4):
            table.append(rows)
        read = catalog.load_table("db.t")
        count("scan", lambda: read.scan().to_arrow())
        (*_, task) = read.scan().plan_files()
        count("a small data file", lambda: opened(read.files, task.file))
        count("compaction", lambda: read.rewrite_data_files())
        if credentials == "of the environment":  # `make test` leaves out the most requests
            count("verify", lambda: verify_table(catalog.load_table("db.t")))
            count("expire", lambda: read.expire_snapshots("0s", 1))
            # Arrow makes the marker of a folder again when it has deleted a file there, unless
            # another thread has just done that.
            assert 95 <= made.pop("expire") <= 110
            assert made.pop("verify") == 78
    assert made.pop("a small data file") == 2
    assert made == {"append": 6, "delete": 14, "scan": 30, "compaction": 36}


def test_many_files_of_a_distant_store_are_read_at_once(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def catalog(endpoint: str) -> EncryptedCatalog:
        server = properties(s3, "pyarrow") | {"s3.endpoint": endpoint}
        place = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://{BUCKET}/many"}
        return EncryptedCatalog(load_catalog("c", type="sql", **place, **server), memory_kms())

    rows = pa.table({"id": list(range(16))})
    near = catalog(s3.meta.endpoint_url)
    near.create_namespace("db")
    table = near.create_table("db.t", rows.schema, properties={"encryption.key-id": "keyA"})
    with table.update_spec() as spec:
        spec.add_identity("id")
    table.append(rows)
    with counted_requests(s3.meta.endpoint_url, 0.05) as requests:
        distant = catalog(requests.url).load_table("db.t")
        for configured, least, most in ((None, 8, 16), ("2", 1, 2)):
            if configured is not None:
                monkeypatch.setenv("PYICEBERG_MAX_WORKERS", configured)
                monkeypatch.setattr(ExecutorFactory, "_instance", None)
            requests.most = 0
            assert len(distant.scan().to_arrow()) == 16
            assert least <= requests.most <= max(most, os.cpu_count() or 1)
