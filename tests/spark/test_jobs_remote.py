"""Jobs between storages: S3, another file system of fsspec's, and local files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

import ags1
from ags1.files.jobs import waves
from ags1.files.jobs.publishing import clear_again, published, settle_pending
from ags1.files.jobs.running import JobOptions
from ags1.files.keys import FileKeys, KmsConfig
from ags1.files.ledger import DONE, ENCRYPT, Ledger, Row, open_ledger
from ags1.files.plan import cutting
from ags1.files.staging import places as storages
from ags1.files.staging import s3 as s3_storage
from ags1.files.staging.pieces import Item, Piece
from ags1.files.staging.protocol import CHANGED, Attempt, Staging, UnknownOutcomeError
from ags1.files.staging.s3 import S3Storage
from ags1.files.work.tasks import Decrypting, Encrypting, Result, Verifying
from ags1.host.runners import TaskAttempt, this_attempt
from ags1.keys import Sidecar
from ags1.spark import jobs
from ags1.spark.jobs.group import JobGroup, starts

from .conftest import nonce_in, set_for_workers

MIB = 1 << 20
BUCKET = "bucket"
BIG = 17 * MIB + 5

boto3 = pytest.importorskip("boto3")
pytest.importorskip("s3fs")
ClientError = pytest.importorskip("botocore.exceptions").ClientError


class ShelfFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Files of this machine under a scheme that nobody takes for theirs."""

    protocol = "shelf"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("shelf://")))

    def unstrip_protocol(self, name: str) -> str:
        return f"shelf://{self._strip_protocol(name)}"


class BareFileSystem(ShelfFileSystem):
    """One that tells of a file what it is called and how large it is."""

    protocol = "bare"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("bare://")))

    def unstrip_protocol(self, name: str) -> str:
        return f"bare://{self._strip_protocol(name)}"

    def info(self, path: Any, **more: Any) -> dict[str, Any]:
        facts = super().info(path, **more)
        return {name: facts[name] for name in ("name", "size", "type")}


# Wherever this module is imported: the works below take it along to the executors.
fsspec.register_implementation("shelf", ShelfFileSystem, clobber=True)
fsspec.register_implementation("bare", BareFileSystem, clobber=True)


class EncryptingHere(Encrypting):
    """Encrypts, where this module is known."""


class DecryptingHere(Decrypting):
    """Decrypts, where this module is known."""


class VerifyingHere(Verifying):
    """Verifies, where this module is known."""


@pytest.fixture(scope="module")
def s3_environment(aws_environment: dict[str, str]) -> dict[str, str]:
    """The environment in which the AWS SDKs talk to S3's stand-in."""
    return aws_environment


@pytest.fixture(scope="module")
def endpoint(spark: Any, s3_environment: dict[str, str]) -> Iterator[str]:
    """S3's URL, known to this process and to Spark's workers."""
    with pytest.MonkeyPatch.context() as patch:
        _forget_connections()
        set_for_workers(patch, spark, s3_environment)
        yield s3_environment["AWS_ENDPOINT_URL"]
        _forget_connections()


def _forget_connections() -> None:
    storages._remote.take()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


class Places:
    """A bucket, a shelf and a folder, and jobs between any of them."""

    def __init__(self, root: Path, spark: Any, kms: KmsConfig) -> None:
        self.root, self.spark, self.kms = root, spark, kms
        self.ledger: Any = root / "ledger"
        self.s3 = boto3.client("s3")
        with contextlib.suppress(self.s3.exceptions.BucketAlreadyOwnedByYou):
            self.s3.create_bucket(Bucket=BUCKET)

    def url(self, kind: str, name: str) -> str:
        starts = {"s3": f"s3://{BUCKET}", "local": str(self.root)}
        return f"{starts.get(kind, f'{kind}://{self.root}')}/{name}"

    def write(self, kind: str, folder: str, **sizes: int) -> dict[str, bytes]:
        made = {name.replace("_", "/"): os.urandom(size) for name, size in sizes.items()}
        for name, data in made.items():
            if kind == "s3":
                self.s3.put_object(Bucket=BUCKET, Key=f"{folder}/{name}", Body=data)
            else:
                path = self.root / folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        return made

    def read(self, kind: str, folder: str) -> dict[str, bytes]:
        if kind == "s3":
            listed = self.s3.list_objects_v2(Bucket=BUCKET, Prefix=folder + "/").get("Contents", [])
            return {
                found["Key"].removeprefix(folder + "/"): self.s3.get_object(
                    Bucket=BUCKET, Key=found["Key"]
                )["Body"].read()
                for found in listed
            }
        base = self.root / folder
        paths = [path for path in base.rglob("*") if path.is_file()]
        return {str(path.relative_to(base)): path.read_bytes() for path in paths}

    def encrypt(self, source: str, target: str, **more: Any) -> jobs.Summary:
        where = {"ledger": self.ledger, "kms": self.kms}
        more = {**where, "key_id": "default", "durable": False} | more
        return jobs.encrypt_files(self.spark, source, target, **more)

    def decrypt(self, source: str | None, target: str) -> jobs.Summary:
        where = {"ledger": self.ledger, "kms": self.kms}
        return jobs.decrypt_files(self.spark, source, target, durable=False, **where)

    def verify(self, source: str | None = None) -> jobs.Summary:
        return jobs.verify_files(self.spark, source, ledger=self.ledger, kms=self.kms)

    def rows(self) -> list[Row]:
        with open_ledger(str(self.ledger), writing=False) as ledger:
            return ledger.rows()

    def done(self) -> dict[str, Row]:
        with open_ledger(str(self.ledger), writing=False) as ledger:
            return {row.relative_path: row for row in ledger.done(ENCRYPT).values()}

    def check(self, kind: str, plain: dict[str, bytes]) -> None:
        """See that ledger and sealed files agree, no key served twice, nothing is left."""
        keys = FileKeys.for_opening(self.kms)
        sealed = self.read(kind, "sealed")
        sidecars = {name: sealed.pop(name) for name in list(sealed) if name.endswith(".keys")}
        has_sidecars = bool(sidecars)
        rows = self.done()
        assert sealed.keys() == {name + ".ags1" for name in plain}
        assert rows.keys() == plain.keys()
        for name, row in rows.items():
            data = sealed[name + ".ags1"]
            assert ags1.decrypt(data, keys.unwrap(row.key_metadata or "")) == plain[name]
            assert nonce_in(row) == data[8:20].hex()
            assert row.target_size == len(data)
            if has_sidecars:
                found = Sidecar.from_bytes(sidecars.pop(name + ".ags1.keys"))
                assert found.to_dict() == json.loads(row.key_metadata or "")
        assert not sidecars
        used = [
            keys.unwrap(row.key_metadata).encryption_key
            for row in self.rows()
            if row.key_metadata and row.operation == ENCRYPT
        ]
        assert len(set(used)) == len(used)
        with open_ledger(str(self.ledger), writing=False) as ledger:
            assert not list(ledger.pending())
            assert not ledger.notes()
        assert not [*self.root.glob("ledger/_[pj]*"), *self.root.glob("ledger/_staged*")]
        assert not list(self.root.rglob(".ags1-*"))
        assert self.uploads() == []

    def uploads(self) -> list[str]:
        listed = self.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return [upload["Key"] for upload in listed]

    def empty(self) -> None:
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            if names := [{"Key": found["Key"]} for found in page.get("Contents", [])]:
                self.s3.delete_objects(Bucket=BUCKET, Delete={"Objects": names, "Quiet": True})
        for upload in self.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
            name = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
            self.s3.abort_multipart_upload(Bucket=BUCKET, **name)


@pytest.fixture
def places(
    tmp_path: Path,
    spark: Any,
    kms: KmsConfig,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Places]:
    monkeypatch.setattr(cutting, "MIN_TASK_COST", 8 * MIB)
    monkeypatch.setattr(cutting, "REMOTE_FILE_COST", 2 * MIB)
    for kind in (EncryptingHere, DecryptingHere, VerifyingHere):
        monkeypatch.setattr(jobs, kind.__name__.removesuffix("Here"), kind)
    places = Places(tmp_path, spark, kms)
    yield places
    places.empty()


@pytest.mark.parametrize(
    ("source", "target", "back"),
    [("s3", "s3", "s3"), ("local", "s3", "local"), ("s3", "local", "s3"), ("shelf",) * 3],
)
def test_a_tree_comes_back(places: Places, source: str, target: str, back: str) -> None:
    plain = places.write(source, "in", a_empty=0, a_small=1000, b_c_more=2 * MIB + 1, b_cut=BIG)
    where = places.url(source, "in"), places.url(target, "sealed")
    done = places.encrypt(*where)
    assert (done.done, done.failed, done.size) == (4, 0, sum(map(len, plain.values())))
    places.check(target, plain)
    again = places.encrypt(*where)
    assert (again.done, again.unchanged) == (0, 4)
    assert places.verify().done == places.verify(where[1]).done == 4
    for source_again, unchanged in ((None, 0), (where[1], 4)):
        done = places.decrypt(source_again, places.url(back, "back"))
        assert (done.done, done.failed, done.unchanged) == (4 - unchanged, 0, unchanged)
    assert places.read(back, "back") == plain
    assert places.uploads() == []


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tasks that jobs have had."""
    tasks: list[Any] = []
    run_wave = waves.Waves.run_wave
    monkeypatch.setattr(
        waves.Waves,
        "run_wave",
        lambda self, wave, *more: tasks.extend(wave.tasks) or run_wave(self, wave, *more),
    )
    return tasks


def test_a_large_file_is_many_tasks_and_parts(places: Places, tasks: list[Any]) -> None:
    plain = places.write("s3", "in", big=BIG)
    assert places.encrypt(places.url("s3", "in"), places.url("s3", "sealed")).done == 1
    assert [piece.block_count for [piece] in tasks] == [8, 8, 2]
    head = places.s3.head_object(Bucket=BUCKET, Key="sealed/big.ags1")
    assert head["ETag"].endswith('-3"')
    places.check("s3", plain)


@pytest.mark.parametrize("target", ["s3", "local"])
def test_a_file_of_no_version_is_one_task_s(places: Places, tasks: list[Any], target: str) -> None:
    plain = places.write("local", "in", big=BIG)
    where = places.url("bare", "in"), places.url(target, "sealed")
    assert places.encrypt(*where).done == 1
    assert [piece.block_count for [piece] in tasks] == [0]
    assert [row.source_version for row in places.rows()] == [""]
    places.check(target, plain)
    assert places.encrypt(*where).unchanged == 1


def test_what_is_settled_while_it_is_looked_for_is_verified(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.write("local", "in", a=1000)
    places.encrypt(places.url("local", "in"), places.url("local", "sealed"))
    rows = places.rows()
    shutil.rmtree(places.ledger)
    job = open_ledger(str(places.ledger), writing=True)
    pending = [job.prepare(rows)]

    # Between the looks at what is pending and at what is settled, whichever is first.
    def then_settled(look: Any) -> Any:
        def looking(*args: Any) -> Any:
            found = look(*args)
            found = found if isinstance(found, dict) else iter(list(found))
            if pending:
                job.settle(pending.pop(), rows)
            return found

        return looking

    monkeypatch.setattr(Ledger, "done", then_settled(Ledger.done))
    monkeypatch.setattr(Ledger, "pending", then_settled(Ledger.pending))
    assert places.verify().done == 1
    job.close()


def test_requests_for_many_files_are_the_executors(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ags1.files.jobs.waves._FEW_REQUESTS", 4)
    asked: list[str] = []
    call = S3Storage.call
    monkeypatch.setattr(
        S3Storage, "call", lambda self, m, **more: asked.append(m) or call(self, m, **more)
    )
    plain = places.write("s3", "in", **{f"f{number}": 100 for number in range(11)})
    theirs = places.write("s3", "sealed", **{"f7.ags1": 5})
    done = places.encrypt(places.url("s3", "in"), places.url("s3", "sealed"))
    assert (done.done, done.failed) == (10, 1)
    assert not {"create_multipart_upload", "complete_multipart_upload"}.intersection(asked)
    assert places.read("s3", "sealed")["f7.ags1"] == theirs["f7.ags1"]
    places.s3.delete_object(Bucket=BUCKET, Key="sealed/f7.ags1")
    assert places.encrypt(places.url("s3", "in"), places.url("s3", "sealed")).done == 1
    places.check("s3", plain)


def test_an_object_that_would_lie_in_no_folder_is_a_failure(places: Places) -> None:
    plain = places.write("s3", "in", a_x=10, b=20)
    for key in ("in//top", "in/a//deep"):
        places.s3.put_object(Bucket=BUCKET, Key=key, Body=b"secret")
    done = places.encrypt(places.url("s3", "in"), places.url("s3", "sealed"))
    assert (done.done, done.failed) == (2, 2)
    assert {failure.path for failure in done.failures} == {
        f"s3://{BUCKET}/in/",
        f"s3://{BUCKET}/in/a/",
    }
    assert all("two slashes" in failure.message for failure in done.failures)
    assert places.read("s3", "sealed").keys() == {name + ".ags1" for name in plain}


def test_a_storage_that_sends_all_where_a_range_is_asked_for(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.write("s3", "in", a=3 * MIB)
    storage = storages.open_storage(f"s3://{BUCKET}/in/a")
    assert isinstance(storage, S3Storage)
    version = storage.status(f"s3://{BUCKET}/in/a").version
    call = type(storage.fs)._call_s3

    async def without_range(self: Any, method: str, **more: Any) -> Any:
        more.pop("Range")
        return await call(self, method, **more)

    monkeypatch.setattr(type(storage.fs), "_call_s3", without_range)
    with pytest.raises(OSError, match="more bytes than it was asked for"):
        storage.get(f"s3://{BUCKET}/in/a", 0, MIB, version)


def test_a_small_object_is_read_by_one_request(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = places.write("s3", "small", at_most=MIB, more=MIB + 1)
    counts = {}
    for name, data in written.items():
        requests: list[Any] = []
        get = S3Storage.get
        monkeypatch.setattr(
            S3Storage, "get", lambda *given, of=requests, get=get: of.append(given) or get(*given)
        )
        path = places.url("s3", f"small/{name.replace('_', '/')}")
        storage = storages.open_storage(path)
        with storage.open(path, *storage.status(path)) as source:
            assert source.read(0, 8) == data[:8]
            assert source.read(8, len(data)) == data[8:]
        counts[name] = len(requests)
        monkeypatch.undo()
    assert counts == {"at/most": 1, "more": 2}


def test_patterns_and_what_is_passed_over(places: Places) -> None:
    places.write("s3", "in", a_x=10, b_x=20, b_y=30, b_c_x=40)
    places.s3.put_object(Bucket=BUCKET, Key="in/marker/", Body=b"")
    found = {
        pattern: {item.relative_path for item in storages.find([places.url("s3", pattern)]).files}
        for pattern in ("in", "in/b", "in/*/x", "in/b/**", "in/b/y")
    }
    assert found == {
        "in": {"a/x", "b/x", "b/y", "b/c/x"},
        "in/b": {"x", "y", "c/x"},
        "in/*/x": {"a/x", "b/x"},
        "in/b/**": {"x", "y", "c/x"},
        "in/b/y": {"y"},
    }
    passed = storages.find([places.url("s3", "in")], closed=[places.url("s3", "in/b")])
    assert {item.relative_path for item in passed.files} == {"a/x"}
    for nothing in ("none", "in/*.csv"):
        [problem] = storages.find([places.url("s3", nothing)]).problems
        assert isinstance(problem.error, FileNotFoundError)


class TestGoingOn:
    def test_a_changed_object_gets_a_new_key(self, places: Places) -> None:
        plain = places.write("s3", "in", a=1000, b=1000)
        where = places.url("s3", "in"), places.url("s3", "sealed")
        places.encrypt(*where)
        plain |= places.write("s3", "in", a=1000)  # of the same size
        again = places.encrypt(*where)
        assert (again.done, again.unchanged) == (1, 1)
        places.check("s3", plain)

    def test_a_target_that_is_gone(self, places: Places) -> None:
        plain = places.write("s3", "in", a=1000, b=1000)
        where = places.url("s3", "in"), places.url("s3", "sealed")
        places.encrypt(*where)
        places.s3.delete_object(Bucket=BUCKET, Key="sealed/a.ags1")
        assert [failure.kind for failure in places.verify().failures] == ["FileNotFoundError"]
        again = places.encrypt(*where)
        assert (again.done, again.unchanged) == (1, 1)
        places.check("s3", plain)

    def test_many_targets_are_looked_at_by_a_listing(
        self, places: Places, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ags1.files.staging.remote._FEW", 1)
        plain = places.write("s3", "in", a=10, b_c=20, d=30)
        where = places.url("s3", "in"), places.url("s3", "sealed")
        places.encrypt(*where)
        asked: list[str] = []
        call = S3Storage.call
        monkeypatch.setattr(
            S3Storage, "call", lambda self, m, **more: asked.append(m) or call(self, m, **more)
        )
        assert places.encrypt(*where).unchanged == 3
        assert places.verify().done == 3
        assert set(asked) == {"list_objects_v2"}
        places.check("s3", plain)


class TestFailures:
    @pytest.mark.parametrize("kind", ["s3", "shelf"])
    def test_somebody_elses_target(self, places: Places, kind: str) -> None:
        places.write("local", "in", a=1000, b=1000)
        where = places.url("local", "in"), places.url(kind, "sealed")
        theirs = places.write(kind, "sealed", **{"a.ags1": 5})
        done = places.encrypt(*where)
        assert (done.done, [failure.kind for failure in done.failures]) == (1, ["FileExistsError"])
        assert places.read(kind, "sealed")["a.ags1"] == theirs["a.ags1"]
        again = places.encrypt(*where, overwrite=True)
        assert (again.done, again.unchanged) == (1, 1)
        places.check(kind, places.read("local", "in"))

    @pytest.mark.parametrize("kind", ["s3", "shelf"])
    def test_nothing_unverified_arrives(self, places: Places, kind: str) -> None:
        plain = places.write("s3", "in", a=1000, mid=3 * MIB, big=BIG)
        places.encrypt(places.url("s3", "in"), places.url(kind, "sealed"))
        for name in ("mid", "big"):
            sealed = bytearray(places.read(kind, "sealed")[f"{name}.ags1"])
            sealed[-100] ^= 1
            if kind == "s3":
                places.s3.put_object(Bucket=BUCKET, Key=f"sealed/{name}.ags1", Body=bytes(sealed))
            else:
                (places.root / "sealed" / f"{name}.ags1").write_bytes(sealed)
        for done in (places.verify(), places.decrypt(None, places.url(kind, "back"))):
            assert (done.done, done.failed) == (1, 2)
            assert {failure.kind for failure in done.failures} == {"AuthenticationError"}
        assert places.read(kind, "back") == {"a": plain["a"]}
        assert places.uploads() == []

    def test_what_is_encrypted_already_is_passed_over(self, places: Places) -> None:
        plain = places.write("s3", "in", a=100)
        for name, size in (("b", 100), ("c", 3 * MIB)):
            sealed = ags1.encrypt(bytes(size)).data
            places.s3.put_object(Bucket=BUCKET, Key=f"in/{name}", Body=sealed)
        done = places.encrypt(places.url("s3", "in"), places.url("s3", "sealed"))
        assert (done.done, done.skipped, done.failed) == (1, 2, 0)
        places.check("s3", plain)

    def test_no_such_bucket_or_scheme(self, places: Places) -> None:
        places.write("local", "in", a=100)
        with pytest.raises(FileNotFoundError):
            places.encrypt(places.url("local", "in"), "s3://no-such-bucket/sealed")
        with pytest.raises(OSError, match="nowhere"):
            places.encrypt(places.url("local", "in"), "nowhere://sealed")
        with pytest.raises(OSError, match="neither a folder nor a URL"):
            places.encrypt("in", "out", ledger="s3:/bucket/ledger")
        with pytest.raises(FileNotFoundError, match="there is no ledger"):
            jobs.rewrap_ledger(places.spark, ledger="s3://bucket/ledger", kms=places.kms)
        places.encrypt(places.url("local", "in"), places.url("local", "sealed"))
        named = {"ledger": f"file://{places.ledger}", "kms": places.kms}
        assert jobs.verify_files(places.spark, None, **named).done == 1
        assert jobs.rewrap_ledger(places.spark, **named, to_key_id="other").done == 1
        assert places.rows()[0].master_key_id == "other"
        done = places.encrypt("s3://no-such-bucket/in", places.url("local", "sealed"))
        assert [failure.kind for failure in done.failures] == ["FileNotFoundError"]


class Killed(Encrypting):
    """Kills the worker process, once a piece, when all of it is uploaded."""

    def piece(self, piece: Piece, attempt: Attempt) -> Result:
        folder = Path(dict(self.keys.kms.properties)["kms.local.keyring"]).parent
        marker = folder / f"killed-{piece.first_block}"
        if piece.source.endswith("/victim") and not marker.exists():
            finish = s3_storage._PartsOutput.finish

            def finish_and_die(output: Any) -> None:
                finish(output)
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

            s3_storage._PartsOutput.finish = finish_and_die  # type: ignore[method-assign]
        return super().piece(piece, attempt)


class Replacing(Encrypting):
    """Lets somebody replace the object after its first range was read."""

    def piece(self, piece: Piece, attempt: Attempt) -> Result:
        if piece.first_block == 8:
            boto3.client("s3").put_object(Bucket=BUCKET, Key="in/victim", Body=os.urandom(BIG))
        return super().piece(piece, attempt)


class TestRetries:
    @pytest.mark.parametrize("size", [1000, BIG])
    def test_a_worker_that_is_killed(
        self, places: Places, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        monkeypatch.setattr(jobs, "Encrypting", Killed)
        plain = places.write("s3", "in", a=1000, victim=size, z=1000)
        assert places.encrypt(places.url("s3", "in"), places.url("s3", "sealed")).done == 3
        assert (places.root / "killed-0").exists()
        places.check("s3", plain)

    def test_an_object_that_is_replaced_under_one_key(
        self, places: Places, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs, "Encrypting", Replacing)
        places.write("s3", "in", victim=BIG)
        where = places.url("s3", "in"), places.url("s3", "sealed")
        assert [failure.message for failure in places.encrypt(*where).failures] == [CHANGED]
        assert places.read("s3", "sealed") == {}
        monkeypatch.setattr(jobs, "Encrypting", Encrypting)
        assert places.encrypt(*where).done == 1
        places.check("s3", places.read("s3", "in"))


def _stop_after(count: int, after: bool) -> Callable[..., Any]:
    """Return a ``call`` that a kill ends: before, or after, an upload is completed."""
    call = S3Storage.call
    completed = 0

    def stopping(self: S3Storage, method: str, **more: Any) -> Any:
        nonlocal completed
        if method != "complete_multipart_upload":
            return call(self, method, **more)
        completed += 1
        if completed <= count:
            return call(self, method, **more)
        if after and completed == count + 1:
            call(self, method, **more)
        raise KeyboardInterrupt

    return stopping


@pytest.mark.parametrize("after", [False, True])
def test_a_job_that_ends_between_key_and_name(
    places: Places, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    plain = places.write("s3", "in", a=1000, b=1000, c=1000, big=BIG)
    where = places.url("s3", "in"), places.url("s3", "sealed")
    with monkeypatch.context() as patch:
        patch.setattr(S3Storage, "call", _stop_after(1, after))
        with pytest.raises(KeyboardInterrupt):
            places.encrypt(*where)
    # What has its name has its key.
    named = places.read("s3", "sealed")
    assert 1 <= len(named) <= 3
    assert places.verify(where[1]).done == len(named)
    again = places.encrypt(*where)
    assert again.failed == 0
    assert again.done + again.unchanged == 4
    places.check("s3", plain)


def test_uploads_that_a_killed_job_has_begun(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    plain = places.write("s3", "in", a=1000, b=1000)
    where = places.url("s3", "in"), places.url("s3", "sealed")
    theirs = {"Bucket": BUCKET, "Key": "sealed/theirs"}
    upload = places.s3.create_multipart_upload(**theirs)["UploadId"]
    for is_killed in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(waves.Waves, "_whole", interrupt)
            if is_killed:
                patch.setattr(jobs.Job, "__exit__", lambda self, *_: self.ledger.close())
            with pytest.raises(KeyboardInterrupt):
                places.encrypt(*where)
        assert len(places.uploads()) == (3 if is_killed else 1)
    assert places.encrypt(*where).done == 2
    assert places.uploads() == ["sealed/theirs"]
    places.s3.abort_multipart_upload(**theirs, UploadId=upload)
    places.check("s3", plain)


def _refusing(count: int) -> Callable[..., Any]:
    """Return a ``call`` that is refused so many times when it aborts an upload."""
    call = S3Storage.call
    refused = 0

    def refusing(self: S3Storage, method: str, **more: Any) -> Any:
        nonlocal refused
        refused += method == "abort_multipart_upload"
        if method == "abort_multipart_upload" and refused <= count:
            _refused()
        return call(self, method, **more)

    return refusing


def test_uploads_that_cannot_be_aborted_now(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"Bucket": BUCKET, "Key": "sealed/a"}
    upload = places.s3.create_multipart_upload(**place)["UploadId"]
    with open_ledger(str(places.ledger), writing=True) as ledger:
        ledger.begin("abc", "s3://bucket/sealed")
        ledger.note_staged("abc", 1, {"s3://bucket/sealed/a": upload})
        with monkeypatch.context() as patch:
            patch.setattr(S3Storage, "call", _refusing(1))
            settle_pending(ledger)
            assert (places.uploads(), len(ledger.killed())) == (["sealed/a"], 1)
            settle_pending(ledger)
        assert (places.uploads(), len(ledger.killed())) == ([], 0)
        # A part that was under way then may have come later: it is aborted once more.
        assert ledger.notes()
        assert ledger.staged("abc")
        clear_again(ledger)
        assert not ledger.notes()
        # What somebody else has aborted, or removed with its bucket, is gone as well.
        for job_id, root in (("abc", "s3://bucket/sealed"), ("abd", "s3://no-such-bucket/b")):
            ledger.begin(job_id, root)
            ledger.note_staged(job_id, 1, {f"{root}/a": upload})
        settle_pending(ledger)
        assert not ledger.killed()
        clear_again(ledger)
        # What is outside the job's folder, a job has not begun.
        place = {"Bucket": BUCKET, "Key": "theirs/a"}
        upload = places.s3.create_multipart_upload(**place)["UploadId"]
        ledger.begin("abc", "s3://bucket/sealed")
        ledger.note_staged("abc", 1, {"s3://bucket/theirs/a": upload})
        settle_pending(ledger)
        assert (places.uploads(), ledger.killed()) == (["theirs/a"], {})
        places.s3.abort_multipart_upload(**place, UploadId=upload)


def test_the_upload_of_a_failed_file_that_cannot_be_aborted_at_once(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "Encrypting", Replacing)
    places.write("s3", "in", victim=BIG)
    monkeypatch.setattr(S3Storage, "call", _refusing(1))
    assert places.encrypt(places.url("s3", "in"), places.url("s3", "sealed")).failed == 1
    assert places.uploads() == []
    assert not [*places.ledger.glob("_j*"), *places.ledger.glob("_staged*")]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("speculation", ["false", "true"])
def test_names_are_given_again_by_second_attempts(
    places: Places, monkeypatch: pytest.MonkeyPatch, number: int, speculation: str
) -> None:
    """What a first attempt is told is told of its own request: no other file need wait."""
    called = []

    def run(group: JobGroup, parts: list[Any], work: Any) -> list[Any]:
        before = this_attempt.set(TaskAttempt("task", number))
        try:
            return list(work(parts))
        finally:
            this_attempt.reset(before)

    monkeypatch.setattr("ags1.files.jobs.waves._FEW_REQUESTS", 1)
    spark = SimpleNamespace(conf={"spark.speculation": speculation}, sparkContext=None)
    monkeypatch.setattr(JobGroup, "run", run)
    conduct = JobOptions(durable=False, cores=2)
    job = jobs.Job(starts(spark), ENCRYPT, "s3://bucket/sealed", str(places.ledger), conduct)
    with job.ledger:
        job._waves._spread(
            lambda items: called.append("first") or items,
            [1, 2],
            lambda items: called.append("again") or items,
        )
    is_first = number == 0 and speculation == "false"
    assert called == (["first"] if is_first else ["again"]) * 2


_KILLED_DRIVER = """
import os, signal, sys
from pyspark.sql import SparkSession
from ags1.spark import jobs
from ags1.files.plan import cutting
from ags1.files.staging import s3 as s3_storage
from ags1.files.keys import KmsConfig

ledger, keyring, method, wanted = sys.argv[1:]
cutting.MIN_TASK_COST = 8 << 20
builder = SparkSession.builder.master("local[2]")
for name in ("spark.driver.host", "spark.driver.bindAddress"):
    builder = builder.config(name, "127.0.0.1")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
call, calls = s3_storage.S3Storage.call, 0

def killing(self, name, **more):
    global calls
    calls += name == method
    if calls == int(wanted):
        os.kill(os.getpid(), signal.SIGKILL)
    return call(self, name, **more)

s3_storage.S3Storage.call = killing
kms = KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": keyring})
where = "s3://bucket/in", "s3://bucket/sealed"
more = {"ledger": ledger, "kms": kms, "key_id": "default", "sidecars": True}
jobs.encrypt_files(spark, *where, **more)
"""


@pytest.mark.parametrize("at", [1, 3])
def test_a_driver_that_is_killed(places: Places, keyring: Path, run_python: Any, at: int) -> None:
    """Its ledger is in the same storage, and has each key before a file has its name."""
    places.ledger = places.url("s3", "ledger")
    sizes = {f"f{number}": 1000 for number in range(6)}
    plain = places.write("s3", "in", **sizes, big=BIG)
    sealed = places.url("s3", "sealed")
    where = (places.ledger, keyring, "complete_multipart_upload", at)
    done = run_python(_KILLED_DRIVER, *where, check=False, timeout=200)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert places.uploads()
    named = [name for name in places.read("s3", "sealed") if name.endswith(".ags1")]
    with open_ledger(places.ledger, writing=False) as ledger:
        known = {row.target for row in ledger.rows(pending=True)}
    assert {f"{sealed}/{name}" for name in named} <= known
    again = places.encrypt(places.url("s3", "in"), sealed)
    assert again.failed == 0
    assert again.done + again.unchanged == len(plain)
    # The pending files got their sidecars; a source that has changed gets one with its new key.
    found = {name.removesuffix(".ags1.keys") for name in places.read("s3", "sealed")} & set(plain)
    assert found
    plain |= places.write("s3", "in", **dict.fromkeys(plain, 2000))
    assert places.encrypt(places.url("s3", "in"), sealed, sidecars=True).done == len(plain)
    places.check("s3", plain)


def _refused(*_: object, **__: object) -> None:
    raise PermissionError("The security token included in the request is expired")


def _no_such_upload(self: S3Storage, call: Any, method: str, **more: Any) -> Any:
    if method != "complete_multipart_upload":
        return call(self, method, **more)
    answer = {"Error": {"Code": "NoSuchUpload", "Message": "gone"}}
    raise FileNotFoundError("gone") from ClientError(answer, method)


class TestUploads:
    """What the driver and attempts do to one object, without Spark."""

    @pytest.fixture
    def staged(self, places: Places) -> tuple[S3Storage, Staging, Item, str]:
        storage = storages.open_storage("s3://bucket/sealed")
        assert isinstance(storage, S3Storage)
        staging = Staging("abc", "s3://bucket/sealed", True, True)
        item = Item(7, "", "s3://bucket/sealed/x", "x", 9 * MIB, "", 9 * MIB, unit=8)
        shared = storage.stage(staging, [item], {7})[7]
        assert isinstance(shared, str)
        return storage, staging, item, shared

    def write(
        self, staged: tuple[S3Storage, Staging, Item, str], number: int, *data: bytes
    ) -> list[tuple[int, str]]:
        storage, _, item, shared = staged
        piece = cutting.whole(item)._replace(shared=shared)
        with storage.output(piece, Attempt("abc", str(number), number), 0o600, 0) as output:
            for part in data:
                output.write(part)
        return [(0, output.staged)]

    def row(self, staged: tuple[S3Storage, Staging, Item, str], results: Any, size: int) -> Row:
        storage, staging, item, shared = staged
        attempt = storage.gather(staging, item, shared, results, lambda path: None)
        values = {"operation": ENCRYPT, "target": item.target, "target_size": size, "status": DONE}
        fields: dict[str, Any] = dict.fromkeys(Row._fields)
        return Row(**(fields | values | {"attempt": attempt, "replaces": False}))

    def test_a_late_attempt_changes_nothing(self, places: Places, staged: Any) -> None:
        winner = self.write(staged, 0, b"w" * 8 * MIB, b"w")
        self.write(staged, 1, b"l" * 8 * MIB, b"l")
        storage = staged[0]
        row = self.row(staged, winner, 8 * MIB + 1)
        assert not storage.has_its_name(row)
        storage.publish(row, again=False)
        assert places.read("s3", "sealed") == {"x": b"w" * (8 * MIB + 1)}
        storage.publish(row, again=True)  # by whoever does not know that it is done
        assert storage.has_its_name(row)

    def test_an_attempt_too_many_cannot_do_harm(self, places: Places, staged: Any) -> None:
        winner = self.write(staged, 0, b"w" * 8 * MIB, b"w")
        self.write(staged, 3, b"l" * 8 * MIB, b"l")  # the numbers come round
        storage = staged[0]
        with pytest.raises(OSError, match="part"):
            storage.publish(self.row(staged, winner, 8 * MIB + 1), again=False)
        assert places.read("s3", "sealed") == {}

    @pytest.mark.parametrize("is_done", [True, False])
    def test_an_answer_that_was_lost(
        self, places: Places, staged: Any, monkeypatch: pytest.MonkeyPatch, is_done: bool
    ) -> None:
        row = self.row(staged, self.write(staged, 0, b"mine"), 4)
        call = S3Storage.call

        def losing(self: S3Storage, method: str, **more: Any) -> Any:
            lost = method == "complete_multipart_upload"
            answer = call(self, method, **more) if is_done or not lost else None
            if lost:
                raise TimeoutError("no answer")
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(S3Storage, "call", losing)
            with contextlib.nullcontext() if is_done else pytest.raises(TimeoutError):
                staged[0].publish(row, again=False)
        assert places.read("s3", "sealed") == ({"x": b"mine"} if is_done else {})

    @pytest.mark.parametrize("is_done", [True, False])
    @pytest.mark.parametrize("lost", ["abort_multipart_upload", "head_object"])
    def test_an_outcome_that_cannot_be_told(
        self,
        places: Places,
        staged: Any,
        monkeypatch: pytest.MonkeyPatch,
        is_done: bool,
        lost: str,
    ) -> None:
        row = self.row(staged, self.write(staged, 0, b"mine"), 4)._replace(key_metadata="{}")
        call = S3Storage.call

        def losing(self: S3Storage, method: str, **more: Any) -> Any:
            completes = method == "complete_multipart_upload"
            if is_done and completes:
                call(self, method, **more)
            if completes or method == lost:
                raise TimeoutError("no answer")
            return call(self, method, **more)

        with monkeypatch.context() as patch:
            patch.setattr(S3Storage, "call", losing)
            with pytest.raises(UnknownOutcomeError):
                published([row])
        # The next job settles it, once it can be told.
        with monkeypatch.context() as patch:
            patch.setattr(S3Storage, "call", _refused)
            with pytest.raises(PermissionError):
                published([row], again=True)
        is_gone = lost == "head_object" and not is_done
        with monkeypatch.context() as patch:
            if is_gone:  # what moto answers is "Internal Server Error"
                patch.setattr(S3Storage, "call", partialmethod(_no_such_upload, call))
            [settled] = published([row], again=True)
        assert settled.key_metadata == "{}"
        if not is_gone:
            assert settled == row
            assert places.read("s3", "sealed") == {"x": b"mine"}
        else:
            assert settled.error_kind == "NothingStagedError"
            assert places.read("s3", "sealed") == {}

    @pytest.mark.parametrize("code", ["InvalidRequest", "SlowDown"])
    def test_a_refusal_ends_the_upload_of_a_killed_job(
        self, places: Places, staged: Any, monkeypatch: pytest.MonkeyPatch, code: str
    ) -> None:
        """Otherwise its batch would stay pending, and bar the ledger's targets for good."""
        row = self.row(staged, self.write(staged, 0, b"mine"), 4)
        call = S3Storage.call

        def refusing(self: S3Storage, method: str, **more: Any) -> Any:
            if method != "complete_multipart_upload":
                return call(self, method, **more)
            answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}
            raise OSError("refused") from ClientError(answer, method)

        monkeypatch.setattr(S3Storage, "call", refusing)
        if code == "SlowDown":  # it may be done later
            with pytest.raises(OSError, match="refused"):
                published([row], again=True)
            assert places.uploads() == ["sealed/x"]
        else:
            [settled] = published([row], again=True)
            assert settled.error_kind == "NothingStagedError"
            assert places.uploads() == []

    def test_a_name_that_seems_to_name_a_version(self, places: Places, staged: Any) -> None:
        storage, *more, item, _ = staged
        target = f"{item.target}?versionId=null"
        item = item._replace(target=target)
        shared = storage.stage(more[0], [item], {7})[7]
        named = (storage, *more, item, shared)
        row = self.row(named, self.write(named, 0, b"mine"), 4)
        assert published([row]) == [row]
        assert places.read("s3", "sealed") == {"x?versionId=null": b"mine"}
        found = list(storages.find(["s3://bucket/sealed"]).files)
        assert [its.path for its in found] == [target]
        assert storage.status(target) == (4, found[0].version)

    def test_a_target_that_appeared_meanwhile(self, places: Places, staged: Any) -> None:
        row = self.row(staged, self.write(staged, 0, b"mine"), 4)
        theirs = places.write("s3", "sealed", x=3)
        with pytest.raises(FileExistsError):
            staged[0].publish(row, again=False)
        with pytest.raises(FileExistsError):
            staged[0].publish(row, again=True)
        assert places.read("s3", "sealed") == theirs
        staged[0].withdraw(row)
        assert places.uploads() == []

    def test_units_of_large_files(self, staged: Any) -> None:
        storage = staged[0]
        assert storage.unit(0) == storage.unit(20 * 1024 * MIB) == 8
        for size in (100 << 30, 5 << 40):
            unit = storage.unit(size)
            item = Item(0, "", "", "", size, "", size, unit=unit)
            pieces = list(cutting.ranges(item, cutting.MAX_TASK_COST))
            assert all(piece.first_block % unit == 0 for piece in pieces)
            assert sum(piece.block_count for piece in pieces) == size // MIB
            last = (pieces[-1].first_block + pieces[-1].block_count - 1) // unit
            assert last * s3_storage._ATTEMPTS + s3_storage._ATTEMPTS <= 10_000


def test_a_frame_without_paths(places: Places) -> None:
    frame = places.spark.createDataFrame([("x",)], ["file"])
    with pytest.raises(ValueError, match="'path'"):
        places.encrypt(frame, places.url("local", "sealed"))
    frame = places.spark.createDataFrame([("x",), (None,)], ["path"])
    with pytest.raises(ValueError, match="without a path"):
        places.encrypt(frame, places.url("local", "sealed"))


def test_files_by_their_urls(places: Places) -> None:
    plain = places.write("local", "in", a=10, b=20)
    frame = places.spark.createDataFrame(
        [(f"file:{places.root}/in/{name}",) for name in plain], ["path"]
    )
    assert places.encrypt(frame, f"file://{places.root}/sealed").done == 2
    places.check("local", plain)
    assert {row.source for row in places.rows()} == {f"{places.root}/in/{name}" for name in plain}
