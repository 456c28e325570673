"""Ags1FileSystem: the command line's files, names, sidecars, keys, and failed writes."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import pickle
import resource
import shutil
import tarfile
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

import ags1
from ags1.errors import Ags1Error, AuthenticationError, KeyMetadataError, KmsConfigurationError
from ags1.files import sidecars
from ags1.filesystem import Ags1FileSystem
from ags1.keys import Keychain, read_sidecar
from ags1.kms import LocalKms

TEXT = b"".join(b"%d,%d\n" % (n, n * n) for n in range(140_000))  # three blocks


@pytest.fixture
def local() -> Ags1FileSystem:
    return Ags1FileSystem(fs=LocalFileSystem())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_entry_point() -> None:
    (entry,) = entry_points(group="fsspec.specs", name="ags1")
    assert entry.load() is Ags1FileSystem
    assert fsspec.get_filesystem_class("ags1") is Ags1FileSystem


@pytest.mark.parametrize("suffix", ["", ".ags1"])
def test_a_file_of_the_command_line_is_read(
    tmp_path: Path, command: Callable[..., None], suffix: str
) -> None:
    (tmp_path / "x.csv").write_bytes(TEXT)
    command("encrypt", "--block-size", "64k", tmp_path / "x.csv")
    (tmp_path / "x.csv").write_bytes(b"plaintext is not read")
    url = f"ags1::file://{tmp_path}/x.csv{suffix}"
    with fsspec.open(url) as file:
        assert file.read() == TEXT
    with fsspec.open(url, "rt") as file:
        assert next(file) == "0,0\n"
    fs, path = fsspec.url_to_fs(url)
    assert fs.size(path) == len(TEXT)
    assert fs.cat_file(path, -5, -1) == TEXT[-5:-1]
    whole = TEXT[TEXT.index(b"\n", 100) + 1 : TEXT.index(b"\n", 150) + 1]
    assert fs.read_block(path, 100, 50, b"\n") == whole


def test_the_command_line_reads_a_file_that_was_written_here(
    tmp_path: Path, local: Ags1FileSystem, command: Callable[..., None]
) -> None:
    with local.open(f"{tmp_path}/x.csv", "wb") as file:
        file.write(TEXT)
    assert names(tmp_path) == ["x.csv.ags1", "x.csv.ags1.keys"]
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1
    command("verify", tmp_path / "x.csv.ags1")
    command("decrypt", tmp_path / "x.csv.ags1")
    assert (tmp_path / "x.csv").read_bytes() == TEXT


def test_ranges(root: str, fs: Any) -> None:
    fs.pipe({f"{root}/a": TEXT, f"{root}/b": b"short"})
    paths = [f"{root}/a", f"{root}/b", f"{root}/a", f"{root}/no", f"{root}/b.ags1"]
    *found, missing, last = fs.cat_ranges(paths, [5, 1, -9, 0, 3], [2_000_000, 3, None, 1, 99])[:5]
    assert found == [TEXT[5:2_000_000], b"ho", TEXT[-9:]]
    assert isinstance(missing, FileNotFoundError)
    assert last == b"rt"
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([f"{root}/no"], 0, 1, on_error="raise")
    with fs.open(f"{root}/a") as file:
        file.seek(-3, 2)
        assert file.read() == TEXT[-3:]
        again = pickle.loads(pickle.dumps(file))
        assert again.tell() == len(TEXT)
        again.seek(1_500_000)
        assert again.read(10) == TEXT[1_500_000:1_500_010]


def test_listings_show_plaintext(root: str, fs: Any) -> None:
    fs.pipe({f"{root}/a.bin": b"12345", f"{root}/d/b.bin": b"", f"{root}/d/e/c.bin": TEXT})
    fs.fs.pipe_file(f"{root}/plain.txt", b"not ours")
    assert [info["name"] for info in fs.ls(root) if info["type"] == "file"] == [f"{root}/a.bin"]
    assert fs.ls(f"{root}/a.bin", detail=False) == [f"{root}/a.bin"]
    assert fs.find(root) == [f"{root}/a.bin", f"{root}/d/b.bin", f"{root}/d/e/c.bin"]
    sizes = {path: info["size"] for path, info in fs.find(root, detail=True).items()}
    assert list(sizes.values()) == [5, 0, len(TEXT)]
    assert fs.du(root) == 5 + len(TEXT)
    assert fs.glob(f"{root}/**/*.bin.ags1") == fs.glob(f"{root}/**/*.bin") == fs.find(root)
    assert [files for _, _, files in fs.walk(root)] == [["a.bin"], ["b.bin"], ["c.bin"]]
    assert not fs.exists(f"{root}/plain.txt")
    with pytest.raises(FileNotFoundError):
        fs.open(f"{root}/plain.txt")


def test_sidecars_go_where_their_files_go(root: str, fs: Any) -> None:
    below, path = fs.fs, f"{root}/a"
    fs.pipe_file(path, b"one")
    fs.pipe_file(f"{root}/b", b"two")
    fs.cp(path, f"{root}/b")
    fs.mv(path, f"{root}/c")
    assert fs.cat([f"{root}/b", f"{root}/c"]) == {f"{root}/b": b"one", f"{root}/c": b"one"}
    assert sorted(name.rpartition("/")[2] for name in below.find(root)) == [
        "b.ags1", "b.ags1.keys", "c.ags1", "c.ags1.keys"
    ]  # fmt: skip
    fs.rm([f"{root}/b", f"{root}/c"])
    below.invalidate_cache()
    assert not below.exists(root) or below.find(root) == []


def fail_within(fs: Any, path: str, mode: str, text: Any) -> None:
    with fs.open(path, mode) as file:
        file.write(text)
        raise ZeroDivisionError


def pipe_and_fail(fs: Any, path: str) -> None:
    fs.pipe_file(path, b"other")
    raise KeyError


def test_a_failed_write_leaves_what_was_there(root: str, fs: Any) -> None:
    path = f"{root}/x"
    with pytest.raises(ZeroDivisionError):
        fail_within(fs, path, "wb", TEXT)
    assert fs.fs.glob(f"{root}/*") == []
    fs.pipe_file(path, b"old")
    before = {name: fs.fs.cat_file(name) for name in fs.fs.find(root)}
    for mode, text in (("wb", b"new"), ("w", "new")):
        with pytest.raises(ZeroDivisionError):
            fail_within(fs, path, mode, text)
    assert {name: fs.fs.cat_file(name) for name in fs.fs.find(root)} == before


def test_transactions(root: str, fs: Any) -> None:
    with fs.transaction:
        with fs.open(f"{root}/x", "wb") as file:
            file.write(b"content")
        assert not fs.exists(f"{root}/x")
    assert fs.cat(f"{root}/x") == b"content"
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fail_within(fs, f"{root}/x", "wb", b"other")
    with pytest.raises(KeyError), fs.transaction:
        pipe_and_fail(fs, f"{root}/x")
    assert fs.cat(f"{root}/x") == b"content"
    assert len(fs.fs.find(root)) == 2


class Unreliable(MemoryFileSystem):
    """Loses the connection on the way to a file (not a sidecar), before or after it is stored."""

    protocol = "unreliable"
    cachable = False
    fails = ""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        lost = self.fails and path.endswith(".ags1")
        if not lost or self.fails == "after":
            super().pipe_file(path, value, mode, **kwargs)
        if lost:
            raise ConnectionError(errno.ECONNRESET, "connection reset")


@pytest.mark.parametrize("fails", ["before", "after"])
@pytest.mark.parametrize("old", [None, b"old"])
def test_no_file_is_without_its_key_after_a_lost_connection(fails: str, old: bytes | None) -> None:
    below = Unreliable(global_store=False)
    fs = Ags1FileSystem(fs=below, skip_instance_cache=True)
    if old is not None:
        fs.pipe_file("/x", old)
    below.fails = fails
    with pytest.raises(ConnectionError):
        fs.pipe_file("/x", b"new")
    below.fails = ""
    if fails == "after":
        assert fs.cat_file("/x") == b"new"
    elif old is not None:
        assert fs.cat_file("/x") == old
    else:
        assert below.find("/") == []


@pytest.mark.parametrize("mode", ["ab", "r+b", "a", "rb+", "w+b"])
def test_modes_that_change_a_file_are_refused(
    tmp_path: Path, local: Ags1FileSystem, mode: str
) -> None:
    local.pipe_file(f"{tmp_path}/x", b"content")
    with pytest.raises(NotImplementedError, match="write the whole file again"):
        local.open(f"{tmp_path}/x", mode)
    assert local.cat_file(f"{tmp_path}/x") == b"content"


def test_a_cut_or_changed_file_and_a_lost_sidecar(root: str, fs: Any) -> None:
    below, path = fs.fs, f"{root}/x"
    fs.pipe_file(path, TEXT)
    sealed = below.cat_file(path + ".ags1")
    for damaged in (sealed[:-1], sealed[:1_000_000], sealed + b"\0", b"", b"\1" + sealed[1:]):
        below.pipe_file(path + ".ags1", damaged)
        with pytest.raises(Ags1Error) as raised:
            fs.cat_file(path)
        assert raised.value.file is not None
        assert "x.ags1" in raised.value.file
    below.pipe_file(path + ".ags1", sealed[:-20] + bytes(20))
    with pytest.raises(AuthenticationError):
        fs.cat_file(path)
    below.rm_file(path + ".ags1.keys")
    with pytest.raises(KeyMetadataError, match="no such sidecar") as missing:
        fs.cat_file(path)
    assert missing.value.file == path + ".ags1.keys"
    assert fs.info(path)["size"] is None
    assert [info["size"] for info in fs.ls(root)] == [None]


def test_another_users_key_is_refused(tmp_path: Path, local: Ags1FileSystem) -> None:
    local.pipe_file(f"{tmp_path}/x", b"content")
    other = str(tmp_path / "other.json")
    LocalKms(other).create_key("default")
    with pytest.raises(Ags1Error) as raised:
        Ags1FileSystem(fs=LocalFileSystem(), keyring=other).cat_file(f"{tmp_path}/x")
    assert raised.value.file == f"{tmp_path}/x.ags1.keys"
    # As the option --key of the command line.
    for options in ({"trusted_keys": ["another"]}, {"key": "another"}):
        strict = Ags1FileSystem(fs=LocalFileSystem(), **options)
        with pytest.raises(KeyMetadataError, match="not among those to trust"):
            strict.cat_file(f"{tmp_path}/x")
    both = Ags1FileSystem(fs=LocalFileSystem(), key="another", trusted_keys=["default"])
    assert both.cat_file(f"{tmp_path}/x") == b"content"
    with pytest.raises(ValueError, match="did you mean 'trusted_keys'"):
        Ags1FileSystem(fs=LocalFileSystem(), **{"trusted-keys": ["default"]})


def test_a_path_without_a_protocol_is_a_local_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = f"{tmp_path}/x.csv"
    with fsspec.open(f"ags1::{path}", "wt") as out:
        out.write("id\n1\n")
    assert (tmp_path / "x.csv.ags1").exists()
    assert Ags1FileSystem().cat_file(path) == b"id\n1\n"
    # pandas takes only text with :// for a URL.
    assert pandas.read_csv(f"ags1://{path}").to_dict("list") == {"id": [1]}


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"encryption.kms.key.default": "c2VjcmV0"}, KmsConfigurationError, "is a secret"),
        ({"kms": "vault", "kms.vault.token": "c2VjcmV0"}, KmsConfigurationError, "is a secret"),
        ({"kms.local.passphrase": "c2VjcmV0"}, KmsConfigurationError, "is a secret"),
        ({"kms.vault.url": "https://u:c2VjcmV0@host"}, KmsConfigurationError, "is a secret"),
        ({"keys": "x"}, ValueError, "did you mean 'key'"),
        ({"anon": True}, ValueError, "under the name of its protocol"),
        ({"s3": {"anon": True}}, ValueError, "as target_options"),
        ({"key": b"c2VjcmV0"}, KmsConfigurationError, "is not text"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], error: Any, match: str) -> None:
    with pytest.raises(error, match=match) as raised:
        fsspec.filesystem("ags1", target_protocol="memory", **options)
    assert "c2VjcmV0" not in str(raised.value)


def test_an_unknown_kms_is_told_before_a_missing_key() -> None:
    files = fsspec.filesystem("ags1", target_protocol="memory", kms="awss")
    with pytest.raises(KmsConfigurationError, match="'awss', which is unknown"):
        files.pipe_file("/x", b"content")


def described(fs: Any) -> list[str]:
    made = [
        repr(fs),
        str(vars(fs)),
        fs.to_json(),
        json.dumps(fs.to_dict()),
        str(fs.storage_options),
    ]
    return [*made, fs._fs_token, pickle.dumps(fs).hex(), repr(fs.storage_args)]


def test_no_key_leaves_the_process(tmp_path: Path, keyring: str) -> None:
    options = {"kms": "local", "keyring": keyring, "key": "default", "trusted_keys": ["default"]}
    fs = fsspec.filesystem("ags1", target_protocol="file", **options)
    path = f"{tmp_path}/x"
    fs.pipe_file(path, b"content")
    with fs.open(path) as file:
        km = Keychain(LocalKms(keyring)).open(path + ".ags1.keys", path + ".ags1")
        texts = [*described(fs), pickle.dumps(file).hex(), repr(file)]
    master = json.loads(Path(keyring).read_text())
    secrets = [km.encryption_key, *_base64_texts(master)]
    assert len(secrets) > 1
    for text in texts:
        for secret in secrets:
            for form in (secret.hex(), repr(secret), repr(secret)[2:-1]):
                assert form not in text
    for copy in (
        pickle.loads(pickle.dumps(fs)),
        fsspec.AbstractFileSystem.from_json(fs.to_json()),
        # As earlier versions wrote it.
        fsspec.AbstractFileSystem.from_json(fs.to_json().replace(".files.fsspec.", ".filesystem.")),
        fsspec.AbstractFileSystem.from_dict(fs.to_dict()),
    ):
        assert copy == fs
        assert copy.cat_file(path) == b"content"


def _base64_texts(document: Any) -> list[bytes]:
    """Return all long texts in a keyring: its master keys are among them."""
    if isinstance(document, dict):
        return [text for value in document.values() for text in _base64_texts(value)]
    if isinstance(document, list):
        return [text for value in document for text in _base64_texts(value)]
    return [document.encode()] if isinstance(document, str) and len(document) > 30 else []


def test_keys_from_a_function(tmp_path: Path) -> None:
    km = ags1.encrypt_file(_write(tmp_path / "plain", TEXT), tmp_path / "x.ags1")
    asked: list[str] = []

    def key_for(path: str) -> ags1.KeyMetadata | None:
        asked.append(path)
        return km if path.endswith("/x.ags1") else None

    fs = Ags1FileSystem(fs=LocalFileSystem(), key_for=key_for)
    assert fs.cat_file(f"{tmp_path}/x") == TEXT
    assert asked == [f"{tmp_path}/x.ags1"]
    assert fs.size(f"{tmp_path}/x") == len(TEXT)
    fs.pipe_file(f"{tmp_path}/y", b"has a sidecar")
    assert fs.cat_file(f"{tmp_path}/y") == b"has a sidecar"
    calls: tuple[Callable[[], object], ...] = (
        lambda: pickle.dumps(fs), fs.to_json, fs.to_dict
    )  # fmt: skip
    for call in calls:
        with pytest.raises(TypeError, match="may hold keys"):
            call()


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_what_tells_contents_apart(root: str, fs: Any) -> None:
    fs.pipe_file(f"{root}/x", b"one")
    first = fs.ukey(f"{root}/x"), fs.checksum(f"{root}/x")
    assert (fs.ukey(f"{root}/x.ags1"), fs.checksum(f"{root}/x")) == first
    fs.pipe_file(f"{root}/x", b"two")
    assert fs.ukey(f"{root}/x") != first[0]
    assert fs.modified(f"{root}/x") == fs.fs.modified(f"{root}/x.ags1")


def test_a_replaced_file_keeps_its_mode_and_a_link_stays_one(
    tmp_path: Path, local: Ags1FileSystem
) -> None:
    local.pipe_file(f"{tmp_path}/x", b"one")
    os.chmod(tmp_path / "x.ags1", 0o640)
    (tmp_path / "link.ags1").symlink_to("x.ags1")
    local.pipe_file(f"{tmp_path}/x", b"two")
    assert (tmp_path / "x.ags1").stat().st_mode & 0o777 == 0o640
    local.pipe_file(f"{tmp_path}/link", b"three")
    assert (tmp_path / "link.ags1").is_symlink()
    assert local.cat_file(f"{tmp_path}/link") == local.cat_file(f"{tmp_path}/x") == b"three"
    assert not (tmp_path / "link.ags1.keys").exists()


def test_a_link_with_another_sidecar_is_not_written(
    tmp_path: Path, local: Ags1FileSystem, command: Callable[..., None]
) -> None:
    local.pipe_file(f"{tmp_path}/x", b"one")
    local.pipe_file(f"{tmp_path}/y", b"other")
    (tmp_path / "link.ags1").symlink_to("x.ags1")
    (tmp_path / "y.ags1.keys").rename(tmp_path / "link.ags1.keys")
    with pytest.raises(OSError, match="name that file"):
        local.pipe_file(f"{tmp_path}/link", b"two")
    (tmp_path / "z").write_bytes(b"three")
    with pytest.raises(AssertionError, match="name that file"):
        command("encrypt", "--force", tmp_path / "z", "-o", tmp_path / "link.ags1")
    assert local.cat_file(f"{tmp_path}/x") == b"one"
    (tmp_path / "link.ags1.keys").unlink()
    command("encrypt", "--force", tmp_path / "z", "-o", tmp_path / "link.ags1")
    assert local.cat_file(f"{tmp_path}/x") == b"three"
    command("decrypt", tmp_path / "link.ags1", "-o", tmp_path / "plain")
    assert (tmp_path / "plain").read_bytes() == b"three"


def test_errors_name_what_the_user_has_named(tmp_path: Path, local: Ags1FileSystem) -> None:
    (tmp_path / "folder").mkdir()
    plain = LocalFileSystem()
    for fs in (plain, local):
        with pytest.raises(IsADirectoryError) as refused:
            fs.open(f"{tmp_path}/folder")
        assert refused.value.filename == f"{tmp_path}/folder"
        with pytest.raises(FileNotFoundError) as missing:
            fs.open(f"{tmp_path}/none/x", "wb")
        assert missing.value.filename.removesuffix(".ags1") == f"{tmp_path}/none/x"
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Ags1FileSystem(fs=plain, threads=0)


@pytest.mark.parametrize("limit", [0, 100_000])
def test_a_full_disk_is_reported_for_the_file_that_the_user_has_named(
    tmp_path: Path, local: Ags1FileSystem, limit: int
) -> None:
    source = _write(tmp_path / "source", TEXT)
    km = ags1.encrypt_file(source, tmp_path / "sealed")
    local.pipe_file(f"{tmp_path}/old", TEXT)
    calls: dict[str, Callable[[str], object]] = {
        "x.ags1": lambda path: local.pipe_file(path, TEXT),
        "y.ags1": lambda path: local.cp_file(f"{tmp_path}/old", path),
        "z": lambda path: local.get_file(f"{tmp_path}/old", path),
        "open": lambda path: ags1.open(path, "wb").write(TEXT),
        "encrypted": lambda path: ags1.encrypt_file(source, path),
        "decrypted": lambda path: ags1.decrypt_file(tmp_path / "sealed", path, km),
        "keyring": lambda path: LocalKms(path).create_key("other"),
    }
    before = names(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name, call in calls.items():
        if name == "keyring" and limit:
            continue
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(OSError) as full:  # noqa: PT011
                call(f"{tmp_path}/{name}")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (full.value.errno, full.value.filename) == (errno.EFBIG, f"{tmp_path}/{name}")
        del full
    assert [name for name in names(tmp_path) if not name.endswith(".lock")] == before


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig", "utf-16-le"])
def test_text_has_the_mark_that_local_files_have(
    root: str, fs: Any, below: str, tmp_path: Path, encoding: str
) -> None:
    pandas, upath = pytest.importorskip("pandas"), pytest.importorskip("upath")

    def written(url: str, files: Any, folder: str) -> list[bytes]:
        for mode in ("wt", "xt"):
            with fsspec.open(f"{url}/{mode}", mode, encoding=encoding) as file:
                file.write("a")
            with files.open(f"{folder}/{mode}2", mode, encoding=encoding) as file:
                file.write("a")
        files.write_text(f"{folder}/whole", "a", encoding=encoding)
        upath.UPath(f"{url}/path").write_text("a", encoding=encoding)
        pandas.DataFrame({"a": [1]}).to_csv(f"{url}/csv", encoding=encoding)
        return [files.cat_file(path) for path in sorted(files.find(folder))]

    (tmp_path / "plain").mkdir()
    plain = written(str(tmp_path / "plain"), LocalFileSystem(), f"{tmp_path}/plain")
    fs.makedirs(f"{root}/text", exist_ok=True)
    assert written(f"ags1::{below}://{root}/text", fs, f"{root}/text") == plain


@pytest.mark.parametrize("suffix", ["", ".ags1"])
def test_open_files_have_the_name_of_the_content(root: str, fs: Any, suffix: str) -> None:
    with (
        fs.open(f"{root}/x.tar.gz{suffix}", "wb") as file,
        tarfile.open(fileobj=file, mode="w|gz") as tar,
    ):
        tar.addfile(tarfile.TarInfo("member"))
        assert file.name == file.path == f"{root}/x.tar.gz"
    with fs.open(f"{root}/x.tar.gz{suffix}") as file:
        assert file.name == file.path == fs.info(file.path)["name"] == f"{root}/x.tar.gz"
        assert fsspec.filesystem("tar", fo=file).find("") == ["member"]


def test_functions_with_the_same_repr_make_different_file_systems(tmp_path: Path) -> None:
    class Keys:
        def __init__(self, path: Path) -> None:
            self.km = ags1.encrypt_file(tmp_path / "source", path)

        def __repr__(self) -> str:
            return "Keys(hidden)"

        def __call__(self, path: str) -> ags1.KeyMetadata:
            return self.km

    (tmp_path / "source").write_bytes(TEXT)
    below = LocalFileSystem()
    for name in ("a", "b"):
        fs = Ags1FileSystem(fs=below, key_for=Keys(tmp_path / f"{name}.ags1"))
        assert fs.cat_file(f"{tmp_path}/{name}") == TEXT


# Of `make test`: each two of these together.
@pytest.mark.slow_variants(
    r"(file|memory)-(opened|_km)-larger", r"(file|memory)-starts-same size",
    r"link-(opened|_km)-same size", r"link-starts-larger",
)  # fmt: skip
@pytest.mark.parametrize("grows", [False, True], ids=["same size", "larger"])
@pytest.mark.parametrize("when", ["opened", "starts", "_km"])
@pytest.mark.parametrize("kind", ["file", "link", "memory"])
def test_a_file_that_is_replaced_while_it_is_opened_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, grows: bool, kind: str
) -> None:
    protocol, path = ("memory", "/replaced/x") if kind == "memory" else ("file", f"{tmp_path}/x")
    if kind == "link":
        (tmp_path / "x.ags1").symlink_to(_write(tmp_path / "target", b""))
    fs, other = (
        Ags1FileSystem(target_protocol=protocol, skip_instance_cache=True) for _ in range(2)
    )
    old, new = TEXT, TEXT[:0:-1] + b"1" * (1 + 1000 * grows)
    holder: Any = {"_km": fs, "opened": fs._pairs, "starts": fs._pairs.storage}[when]
    step = getattr(holder, when)

    def replacing(is_before: bool, *arguments: Any) -> Any:
        monkeypatch.setattr(holder, when, step)
        found = None if is_before else step(*arguments)
        other.pipe_file(path, new)
        return step(*arguments) if is_before else found

    for is_before in (True, False):
        fs.pipe_file(path, old)
        monkeypatch.setattr(holder, when, functools.partial(replacing, is_before))
        # A local file that was opened is read, with its key; an object that was, is no more.
        has_both = when == "_km" or (when, is_before) == ("starts", False)
        assert fs.cat_file(path) == (old if has_both and kind != "memory" else new)


class _Listed(MemoryFileSystem):  # type: ignore[misc]
    """Keeps its listings, as s3fs, gcsfs and adlfs do."""

    protocol = "listed"
    cachable = False

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        path = self._strip_protocol(path)
        if path not in self.dircache:
            self.dircache[path] = [dict(one) for one in super().ls(path, detail=True)]
        listed = self.dircache[path]
        return listed if detail else [one["name"] for one in listed]

    def info(self, path: str, **_: Any) -> Any:
        path = self._strip_protocol(path)
        listed = {one["name"]: one for one in self.dircache.get(self._parent(path), ())}
        return listed[path] if path in listed else super().info(path)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()


@pytest.mark.parametrize("before", [0, 1000, 3_000_000])
@pytest.mark.parametrize("after", [0, 5, 1000, 3_000_000])
@pytest.mark.parametrize("with_keys", [False, True], ids=["sidecars", "key_for"])
def test_a_listing_that_is_old_hides_no_new_file(before: int, after: int, with_keys: bool) -> None:
    reader, writer = (Ags1FileSystem(fs=_Listed(), skip_instance_cache=True) for _ in range(2))
    path = f"/listed/{os.urandom(4).hex()}/x"
    writer.pipe_file(path, b"1" * before)
    if with_keys:
        keys = Keychain(LocalKms())
        reader = Ags1FileSystem(
            fs=_Listed(),
            key_for=lambda _: keys.key_of(writer._sidecar_of(f"{path}.ags1")),
        )
    reader.ls(os.path.dirname(path))
    writer.pipe_file(path, b"2" * after)
    assert reader.cat_file(path) == b"2" * after


@pytest.mark.parametrize("size", [3_000_000, 2_000_000])
def test_an_object_that_is_replaced_while_it_is_open_is_no_attack(size: int) -> None:
    fs = fsspec.filesystem("ags1", target_protocol="memory")
    fs.pipe_file("/open/x", bytes(3_000_000))
    with fs.open("/open/x") as file:
        assert file.pread(0, 5) == bytes(5)
        fs.pipe_file("/open/x", b"1" * size)
        with pytest.raises(OSError, match="replaced the file while it was open") as told:
            file.pread(2_900_000, 5)
        assert told.value.errno == errno.ESTALE
    data = bytearray(fs.fs.cat("/open/x.ags1"))
    data[-1] ^= 1
    with fs.open("/open/x") as file:
        fs.fs.pipe("/open/x.ags1", bytes(data))
        with pytest.raises(AuthenticationError):
            file.pread(size - 5, 5)


def test_the_sidecar_of_a_local_file_is_read_once(
    tmp_path: Path, local: Ags1FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.pipe_file(f"{tmp_path}/x", TEXT)
    read: list[str] = []
    storage = local._pairs.storage
    step = storage.starts

    def counted(wanted: Any) -> Any:
        read.extend(path for path, _ in wanted)
        return step(wanted)

    monkeypatch.setattr(storage, "starts", counted)
    assert local.cat_file(f"{tmp_path}/x") == TEXT
    assert read == [f"{tmp_path}/x.ags1.keys"]


def _meanwhile(step: Callable[..., Any], number: int, other: Callable[[], None]) -> Any:
    """Return ``step``, which has another thread run ``other`` before its call of this number, to
    the end or until it waits."""
    calls: list[Thread | None] = []

    def run(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == number:
            # A daemon: one that waits for ever must not keep the tests from ending.
            calls[-1] = thread = Thread(target=other, daemon=True)
            thread.start()
            thread.join(0.5)
        return step(*arguments, **named)

    run.join = lambda: calls[number - 1].join(30)  # type: ignore[attr-defined,union-attr]
    return run


@pytest.mark.parametrize(
    ("step", "number", "first"),
    [
        # The removal has removed the file, and not yet its sidecar.
        ("os.unlink", 1, "rm"),
        # The writer has given the file its name, and the sidecar still has the old key.
        ("write_document", 2, "pipe"),
        # The sidecar has both keys, and the file is still the old one.
        ("give_name", 1, "pipe"),
    ],
)
@pytest.mark.parametrize("second", ["rm", "pipe"])
def test_two_who_change_a_pair_come_one_after_the_other(
    tmp_path: Path,
    local: Ags1FileSystem,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    number: int,
    first: str,
    second: str,
) -> None:
    path = f"{tmp_path}/x"
    local.pipe_file(path, b"old")
    other = Ags1FileSystem(fs=LocalFileSystem(), skip_instance_cache=True)
    work = {"rm": lambda fs, _: fs.rm_file(path), "pipe": lambda fs, data: fs.pipe_file(path, data)}

    def second_work() -> None:
        with contextlib.suppress(FileNotFoundError):
            work[second](other, b"second")

    holder = os if step == "os.unlink" else sidecars
    name = step.removeprefix("os.")
    paused = _meanwhile(getattr(holder, name), number, second_work)
    monkeypatch.setattr(holder, name, paused)
    work[first](local, b"first")
    paused.join()
    if second == "rm":
        assert names(tmp_path) == []
    else:
        assert names(tmp_path) == ["x.ags1", "x.ags1.keys"]
        assert local.cat_file(path) == b"second"


@pytest.mark.parametrize("second", [b"second", None])
def test_whoever_comes_before_a_new_sidecar_is_locked_comes_first(
    tmp_path: Path, local: Ags1FileSystem, monkeypatch: pytest.MonkeyPatch, second: bytes | None
) -> None:
    path = f"{tmp_path}/x"
    other = Ags1FileSystem(fs=LocalFileSystem(), skip_instance_cache=True)

    def second_work() -> None:
        if second is None:
            os.remove(f"{path}.ags1.keys")
        else:
            other.pipe_file(path, second)

    # Its first lock is that of the old sidecar.
    monkeypatch.setattr(sidecars, "locked", _meanwhile(sidecars.locked, 2, second_work))
    first = Thread(target=local.pipe_file, args=(path, b"first"), daemon=True)
    first.start()
    first.join(30)
    assert not first.is_alive()
    assert local.cat_file(path) == b"first"
    assert len(read_sidecar(f"{path}.ags1.keys").file_keys) == 1


def test_a_removal_leaves_the_key_of_a_file_that_replaced_its_own() -> None:
    class Slow(MemoryFileSystem):
        protocol = "slow"
        cachable = False
        hook: Callable[[], None] | None = None

        def rm_file(self, path: str) -> None:
            super().rm_file(path)
            hook, self.hook = self.hook, None
            if hook is not None:
                hook()

    below = Slow(global_store=False)
    fs = Ags1FileSystem(fs=below, skip_instance_cache=True)
    fs.pipe_file("/x", b"old")
    below.hook = lambda: fs.pipe_file("/x", b"new")
    fs.rm_file("/x")
    assert fs.cat_file("/x") == b"new"


@pytest.mark.parametrize("name", ["x", "x.ags1"])
def test_a_file_does_not_take_the_name_of_a_folder(
    tmp_path: Path, local: Ags1FileSystem, name: str
) -> None:
    (tmp_path / "x").mkdir()
    for fs in (LocalFileSystem(), local):  # as the file system below
        with pytest.raises(IsADirectoryError):
            fs.pipe_file(f"{tmp_path}/{name if fs is local else 'x'}", b"file")
    assert names(tmp_path) == ["x"]


def test_requests_for_a_small_file() -> None:
    """Each method of the file system below is a request to an object storage, or more."""

    class Counting(MemoryFileSystem):
        protocol = "counting"
        cachable = False
        asked: ClassVar[list[str]] = []

        def __getattribute__(self, name: str) -> Any:
            if name in ("cat_file", "pipe_file", "info", "ls", "rm_file", "ukey", "exists"):
                self.asked.append(name)
            return super().__getattribute__(name)

    below = Counting(global_store=False)
    fs = Ags1FileSystem(fs=below, skip_instance_cache=True)

    def asked(work: Callable[[], object]) -> list[str]:
        below.asked.clear()
        work()
        return below.asked

    # The sidecar that may be there; the new sidecar and the new file.
    new = asked(lambda: fs.pipe_file("/x", b"small"))
    assert new == ["cat_file", "pipe_file", "pipe_file"]
    assert asked(lambda: fs.cat_file("/x")) == ["info", "cat_file", "cat_file"]
    # The old file's version before it is replaced, the sidecar once more before it loses the key.
    assert len(asked(lambda: fs.pipe_file("/x", b"new"))) <= 7
    assert fs.cat_file("/x") == b"new"


def test_a_file_whose_sidecar_is_removed_with_the_old_one_gets_its_key_again() -> None:
    class Slow(MemoryFileSystem):
        protocol = "slow"
        cachable = False
        removes = False

        def pipe_file(self, path: str, value: bytes, *arguments: Any, **kwargs: Any) -> None:
            if self.removes and path.endswith(".ags1"):
                self.rm_file("/x.ags1")
                self.rm_file("/x.ags1.keys")
            super().pipe_file(path, value, *arguments, **kwargs)

    below = Slow(global_store=False)
    fs = Ags1FileSystem(fs=below, skip_instance_cache=True)
    fs.pipe_file("/x", b"old")
    below.removes = True
    fs.pipe_file("/x", b"new")
    assert fs.cat_file("/x") == b"new"


@pytest.mark.parametrize("target", ["x.ags1", "", "x", "link"])
def test_a_file_that_is_moved_to_itself_stays(root: str, fs: Any, target: str) -> None:
    fs.pipe_file(f"{root}/x", TEXT)
    if target == "link":
        if not isinstance(fs.fs, LocalFileSystem):
            pytest.skip("there are no links here")
        os.symlink("x.ags1", f"{root}/link.ags1")
    with contextlib.suppress(shutil.SameFileError):
        fs.mv(f"{root}/x", f"{root}/{target}")
    assert fs.cat_file(f"{root}/x") == TEXT


def test_a_folder_is_not_moved_into_itself(root: str, fs: Any) -> None:
    fs.makedirs(f"{root}/d")
    fs.pipe_file(f"{root}/d/x", TEXT)
    for target in ("d/inner", "d", "d/"):
        with contextlib.suppress(OSError):
            fs.mv(f"{root}/d", f"{root}/{target}", recursive=True)
        assert fs.cat_file(f"{root}/d/x") == TEXT
    fs.mv(f"{root}/d", f"{root}/e", recursive=True)
    assert fs.cat_file(f"{root}/e/x") == TEXT
    assert not fs.exists(f"{root}/d/x")


def test_a_file_that_is_replaced_while_it_is_moved_stays(
    root: str, fs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.pipe_file(f"{root}/x", b"old")
    copy = fs._pairs.copy

    def meanwhile(source: str, target: str) -> None:
        copy(source, target)
        fs.pipe_file(f"{root}/x", b"new")

    monkeypatch.setattr(fs._pairs, "copy", meanwhile)
    with pytest.raises(BlockingIOError, match="move it again"):
        fs.mv(f"{root}/x", f"{root}/y")
    assert (fs.cat_file(f"{root}/x"), fs.cat_file(f"{root}/y")) == (b"new", b"old")


MAGIC = {"a[1].csv": "a1.csv", "b*.csv": "b2.csv", "d[x]/y": "dx/y"}


# Of `make test`: each name in one of them.
@pytest.mark.slow_variants(r"(a\[1\]\.csv|d\[x\])-memory", r"(b\*|a\[12\])\.csv-file")
@pytest.mark.parametrize("below", ["file", "memory"])
@pytest.mark.parametrize("name", ["a[1].csv", "b*.csv", "a[12].csv", "d[x]"])
def test_names_that_are_patterns_mean_what_they_mean_below(
    below: str, name: str, tmp_path: Path
) -> None:
    options = {"auto_mkdir": True} if below == "file" else {}

    def filled(fs: Any, root: str) -> str:
        fs.pipe({f"{root}/{one}": one.encode() for one in [*MAGIC, *MAGIC.values(), "into/x"]})
        return root

    def done(fs: Any, work: Callable[[Any, str], Any]) -> tuple[Any, dict[str, bytes]]:
        root = f"{tmp_path}/{os.urandom(4).hex()}"
        if below == "file":
            shutil.copytree(full[fs], root)
        else:
            filled(fs, root)
        try:
            result = repr(work(fs, root)).replace(root, "")
        except Exception as error:
            result = type(error).__name__
        found = {path.removeprefix(root): fs.cat_file(path) for path in fs.find(root)}
        MemoryFileSystem.store.clear()
        return result, found

    def got(fs: Any, root: str) -> list[tuple[str, bytes]]:
        out = Path(f"{root}-out")
        out.mkdir()
        fs.get(f"{root}/{name}", f"{out}/", recursive=recursive)
        return [(str(one), one.read_bytes()) for one in sorted(out.rglob("*")) if one.is_file()]

    recursive = name == "d[x]"
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"local")
    works: dict[str, Callable[[Any, str], Any]] = {
        "rm": lambda fs, root: fs.rm(f"{root}/{name}", recursive=recursive),
        "rm of a list": lambda fs, root: fs.rm([f"{root}/{name}"], recursive=recursive),
        "mv": lambda fs, root: fs.mv(f"{root}/{name}", f"{root}/new", recursive=recursive),
        "mv into": lambda fs, root: fs.mv(f"{root}/{name}", f"{root}/into", recursive=recursive),
        "mv to": lambda fs, root: fs.mv(f"{root}/a1.csv", f"{root}/{name}"),
        "cp": lambda fs, root: fs.cp(f"{root}/{name}", f"{root}/new", recursive=recursive),
        "cp into": lambda fs, root: fs.cp(f"{root}/{name}", f"{root}/into", recursive=recursive),
        "cp to": lambda fs, root: fs.cp(f"{root}/a1.csv", f"{root}/{name}"),
        "cat": lambda fs, root: fs.cat(f"{root}/{name}" + "/y" * recursive),
        "get": got,
        "put": lambda fs, root: fs.put(f"{tmp_path}/{name}", f"{root}/put/"),
        "find": lambda fs, root: fs.find(f"{root}/{name}"),
        "expand_path": lambda fs, root: fs.expand_path(f"{root}/{name}"),
        "exists": lambda fs, root: fs.exists(f"{root}/{name}"),
        "du": lambda fs, root: fs.du(f"{root}/{name}"),
        "glob": lambda fs, root: fs.glob(f"{root}/{name}"),
    }
    plain = fsspec.filesystem(below, **options)
    ours = fsspec.filesystem("ags1", target_protocol=below, target_options=options)
    full = {fs: filled(fs, f"{tmp_path}/{n}") for n, fs in enumerate((plain, ours))}
    for what, work in works.items():
        assert done(ours, work) == done(plain, work), what


def test_what_is_moved_by_name_is_removed_by_name(root: str, fs: Any) -> None:
    fs.pipe({f"{root}/a[1]": b"one", f"{root}/a1": b"other", f"{root}/d/x": b"within"})
    fs.mv([f"{root}/a[1]"], [f"{root}/new"])
    with contextlib.suppress(OSError):
        fs.mv([f"{root}/d"], [f"{root}/e"], recursive=True)
    assert fs.cat(fs.find(root)) == {
        f"{root}/a1": b"other",
        f"{root}/d/x": b"within",
        f"{root}/new": b"one",
    }
