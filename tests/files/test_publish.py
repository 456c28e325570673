"""The table of steps, over a sidecar in a storage: what opens after each step, and after a failure.

The files are AGS1 files under real keys, and what opens is what ``Keychain`` opens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import ags1
from ags1.errors import KeyMetadataError
from ags1.files.publish import ADDED, PUT, RETIRED, STEPS, publish, steps
from ags1.files.sidecars import Beside, LocalPlace, OldKeys, Place, publish_pair
from ags1.keys import Keychain, Sidecar
from ags1.kms import LocalKms

OLD, NEW, OTHER = b"old", b"new", b"other"


class Bucket(Place):
    """A storage without locks, with one file and its sidecar."""

    path = "x.ags1.keys"

    def __init__(self, keychain: Keychain) -> None:
        self.keychain = keychain
        self.file: bytes | None = None
        self.sidecar: bytes | None = None

    def read(self) -> bytes | None:
        return self.sidecar

    def write(self, data: bytes) -> None:
        self.sidecar = data

    def remove(self) -> None:
        self.sidecar = None

    def sealed(self, text: bytes) -> tuple[bytes, Sidecar]:
        data, key_metadata = ags1.encrypt(text)
        return data, Sidecar.seal(key_metadata, self.keychain._new_kek.get(), data[8:20])

    def replacing(
        self, text: bytes, old_keys: OldKeys = OldKeys.RETIRE
    ) -> tuple[Beside, Callable[[], None]]:
        data, sidecar = self.sealed(text)

        def put() -> None:
            self.file = data

        return Beside(self, sidecar, old_keys), put

    def write_file(self, text: bytes, old_keys: OldKeys = OldKeys.RETIRE) -> None:
        publish(*self.replacing(text, old_keys), lambda _: False)

    def text(self) -> bytes | None:
        """What the file holds."""
        return None if self.file is None else self.opened(self.file)

    def opened(self, file: bytes) -> bytes:
        assert self.sidecar is not None
        name = self.folder / "x"
        name.write_bytes(file)
        key_metadata = self.keychain.key_of(Sidecar.from_bytes(self.sidecar), str(name))
        return ags1.decrypt(file, key_metadata)

    folder: Path

    def key_count(self) -> int:
        return 0 if self.sidecar is None else len(Sidecar.from_bytes(self.sidecar).file_keys)


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    kms = LocalKms(str(tmp_path / "keyring.json"))
    kms.create_key("default")
    bucket = Bucket(Keychain(kms, "default"))
    bucket.folder = tmp_path
    return bucket


class Failure(Exception):
    pass


@pytest.mark.parametrize("before", [None, OLD])
def test_what_opens_after_each_step(bucket: Bucket, before: bytes | None) -> None:
    if before is not None:
        bucket.write_file(before)
    old = bucket.file
    # For each step: what opens, and how many keys there are.
    table = {
        ADDED: (before, 1 if old is None else 2),
        PUT: (NEW, 1 if old is None else 2),
        RETIRED: (NEW, 1),
    }
    run = steps(*bucket.replacing(NEW), lambda _: False)
    for expected in STEPS:
        assert next(run) == expected
        assert (bucket.text(), bucket.key_count()) == table[expected]
    assert next(run, None) is None
    if old is not None:  # whoever puts it back has no key for it
        with pytest.raises(KeyMetadataError, match="put back"):
            bucket.opened(old)


@pytest.mark.parametrize("before", [None, OLD])
@pytest.mark.parametrize("last", [None, *STEPS])
def test_a_run_that_ends_after_a_step_is_repeated(
    bucket: Bucket, before: bytes | None, last: str | None
) -> None:
    if before is not None:
        bucket.write_file(before)
    killed = steps(*bucket.replacing(NEW), lambda _: False)  # nothing runs in it any more
    for _ in range(0 if last is None else STEPS.index(last) + 1):
        next(killed)
    assert bucket.text() == (NEW if last in (PUT, RETIRED) else before)
    bucket.write_file(OTHER)
    assert (bucket.text(), bucket.key_count()) == (OTHER, 1)


@pytest.mark.parametrize("before", [None, OLD, b"damaged"])
@pytest.mark.parametrize("is_put", [False, True])
def test_a_failed_run_takes_its_key_back_unless_the_file_may_have_its_name(
    bucket: Bucket, before: bytes | None, is_put: bool
) -> None:
    if before is not None:
        bucket.write_file(OLD)
    if before == b"damaged":
        bucket.sidecar = b"{"
    saved = bucket.file, bucket.sidecar
    keys, put = bucket.replacing(NEW)

    def failing() -> None:
        if is_put:
            put()
        raise Failure

    with pytest.raises(Failure):
        publish(keys, failing, lambda _: is_put)
    if is_put:
        assert bucket.text() == NEW
    else:
        assert (bucket.file, bucket.sidecar) == saved


def test_a_failed_run_leaves_a_sidecar_that_others_have_changed(bucket: Bucket) -> None:
    """Nothing is locked in an object storage: what is written back could be without their key."""
    bucket.write_file(OLD)
    keys, _ = bucket.replacing(NEW)
    other = steps(*bucket.replacing(OTHER), lambda _: False)

    def failing() -> None:
        assert [next(other), next(other)] == [ADDED, PUT]
        raise Failure

    with pytest.raises(Failure):
        publish(keys, failing, lambda _: False)
    assert (bucket.text(), bucket.key_count()) == (OTHER, 3)
    assert next(other) == RETIRED
    assert (bucket.text(), bucket.key_count()) == (OTHER, 1)


def test_a_repeated_run_takes_back_the_key_that_a_killed_one_added(bucket: Bucket) -> None:
    bucket.write_file(OLD)
    before = bucket.sidecar
    _, sidecar = bucket.sealed(NEW)
    killed = steps(Beside(bucket, sidecar, OldKeys.RETIRE), fail, lambda _: False)
    assert next(killed) == ADDED
    assert bucket.key_count() == 2
    with pytest.raises(Failure):
        publish(Beside(bucket, sidecar, OldKeys.RETIRE), fail, lambda _: False)
    assert (bucket.text(), bucket.key_count()) == (OLD, 1)
    assert bucket.sidecar == before
    bucket.sidecar = None
    runs = [steps(Beside(bucket, sidecar, OldKeys.KEEP), fail, lambda _: False) for _ in range(2)]
    assert [next(one) for one in runs] == [ADDED, ADDED]
    assert bucket.key_count() == 1
    with pytest.raises(Failure):
        publish(Beside(bucket, sidecar, OldKeys.KEEP), fail, lambda _: False)
    assert bucket.sidecar is None


def test_what_becomes_of_keys_that_are_there(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write_file(OLD)
    moved, bucket.file = bucket.file, None
    assert moved is not None
    bucket.write_file(NEW, OldKeys.KEEP)
    assert (bucket.text(), bucket.opened(moved)) == (NEW, OLD)
    with pytest.raises(FileExistsError):
        bucket.write_file(OTHER, OldKeys.REFUSE)
    assert (bucket.text(), bucket.opened(moved)) == (NEW, OLD)
    bucket.write_file(OTHER, OldKeys.DROP)
    assert (bucket.text(), bucket.key_count()) == (OTHER, 1)
    bucket.sidecar = b"somebody's notes"
    with pytest.raises(KeyMetadataError, match="damaged"):
        bucket.write_file(NEW, OldKeys.KEEP)
    assert bucket.sidecar == b"somebody's notes"
    # A stream has nothing that could be kept or taken back.
    stream = LocalPlace("/dev/null")
    with pytest.raises(Failure), stream:
        publish(Beside(stream, bucket.sealed(NEW)[1], OldKeys.RETIRE), fail, lambda _: False)


def fail() -> None:
    raise Failure


def test_a_failed_run_leaves_the_key_of_another_that_comes_while_it_looks(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write the same new file. Without a lock, the first removes what the second wrote."""
    target, sidecar_file = tmp_path / "file.ags1", tmp_path / "file.ags1.keys"
    data, sidecar = bucket.sealed(NEW)
    (tmp_path / "second").write_bytes(data)
    second = threading.Thread(
        target=publish_pair,
        args=(str(tmp_path / "second"), str(target), sidecar, str(sidecar_file), OldKeys.KEEP),
    )
    read = LocalPlace.read

    def read_then_wait(place: LocalPlace) -> bytes | None:
        found = read(place)
        if threading.current_thread() is not second and not second.ident:
            second.start()
            second.join(0.5)
        return found

    monkeypatch.setattr(LocalPlace, "read", read_then_wait)
    with LocalPlace(str(sidecar_file)) as place, pytest.raises(Failure):
        publish(Beside(place, bucket.sealed(OLD)[1], OldKeys.KEEP), fail, lambda _: False)
    second.join()
    bucket.sidecar = sidecar_file.read_bytes()
    assert bucket.opened(target.read_bytes()) == NEW


def test_a_removal_leaves_the_key_of_a_file_that_came_meanwhile(bucket: Bucket) -> None:
    bucket.write_file(OLD)
    bucket.remove_after(lambda: bucket.write_file(NEW))
    assert bucket.text() == NEW
    bucket.remove_after(lambda: None)
    assert bucket.sidecar is None


@pytest.mark.parametrize("old_keys", [OldKeys.KEEP, OldKeys.REFUSE])
def test_a_new_sidecar_is_not_written_through_a_link(
    bucket: Bucket, tmp_path: Path, old_keys: OldKeys
) -> None:
    (tmp_path / "x.keys").symlink_to(tmp_path / "elsewhere")
    place = LocalPlace(str(tmp_path / "x.keys"), durable=False)
    with pytest.raises(FileExistsError), place:
        publish(Beside(place, bucket.sealed(NEW)[1], old_keys), fail, lambda _: False)
    assert not (tmp_path / "elsewhere").exists()
