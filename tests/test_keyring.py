"""The keyring: private, never half written, and no key of it ever lost or shown."""

from __future__ import annotations

import base64
import json
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import RunPython

from ags1.errors import (
    KmsAccessDeniedError,
    KmsError,
    KmsKeyNotFoundError,
    KmsUnwrapError,
)
from ags1.kms import KmsClient, LocalKms, create_key, default_keyring_path

KEY = bytes(range(32))


@pytest.fixture
def keyring(tmp_path: Path) -> Path:
    path = tmp_path / "config" / "ags1" / "keyring.json"
    create_key(str(path), "default")
    return path


def kms_of(keyring: Path) -> KmsClient:
    return LocalKms(str(keyring))


def master_key(keyring: Path, name: str = "default", version: int = 1) -> bytes:
    document = json.loads(keyring.read_bytes())
    return base64.b64decode(document["keys"][name]["versions"][str(version)]["key"])


def add_version(keyring: Path, name: str = "default") -> None:
    """Do what a rotation will do: a second version, which wraps from now on."""
    document = json.loads(keyring.read_bytes())
    entry = document["keys"][name]
    entry["versions"]["2"] = {"created-ms": 2, "key": base64.b64encode(os.urandom(32)).decode()}
    entry["current"] = 2
    keyring.write_text(json.dumps(document))


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_new_keyring_is_private(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "keyring.json"
    assert create_key(str(path), "default") == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        "keyring.json",
        "keyring.json.lock",
    ]
    assert len(master_key(path)) == 32


def test_a_wrapped_key_unwraps(keyring: Path) -> None:
    kms = kms_of(keyring)
    wrapped = kms.wrap_key(KEY, "default")
    assert KEY not in wrapped
    assert kms.unwrap_key(wrapped, "default") == KEY
    assert kms_of(keyring).unwrap_key(wrapped, "default") == KEY
    assert kms.wrap_key(KEY, "default") != wrapped


def test_a_keyring_generates_no_keys(keyring: Path) -> None:
    kms = kms_of(keyring)
    assert not kms.supports_key_generation
    with pytest.raises(NotImplementedError):
        kms.generate_key("default", 32)


def test_an_old_version_still_unwraps_and_the_new_one_wraps(keyring: Path) -> None:
    kms = kms_of(keyring)
    old = kms.wrap_key(KEY, "default")
    add_version(keyring)
    new = kms_of(keyring).wrap_key(KEY, "default")
    assert (old[:5], new[:5]) == (b"\1\0\0\0\1", b"\1\0\0\0\2")
    # The client that read the keyring before reads it again for a version it doesn't know.
    assert kms.unwrap_key(new, "default") == KEY
    assert kms.unwrap_key(old, "default") == KEY


def test_every_byte_of_a_wrapped_key_is_authenticated(keyring: Path) -> None:
    kms = kms_of(keyring)
    add_version(keyring)
    wrapped = kms.wrap_key(KEY, "default")
    for position in range(len(wrapped)):
        for bit in range(8):
            changed = bytearray(wrapped)
            changed[position] ^= 1 << bit
            with pytest.raises((KmsUnwrapError, KmsKeyNotFoundError)):
                kms.unwrap_key(bytes(changed), "default")
    for size in range(len(wrapped)):
        with pytest.raises(KmsUnwrapError):
            kms.unwrap_key(wrapped[:size], "default")


def test_another_keyrings_key_of_that_name_does_not_unwrap(keyring: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    create_key(str(other), "default")
    wrapped = kms_of(keyring).wrap_key(KEY, "default")
    with pytest.raises(KmsUnwrapError, match="another key of that name"):
        kms_of(other).unwrap_key(wrapped, "default")


def test_a_missing_key_is_named(keyring: Path) -> None:
    with pytest.raises(KmsKeyNotFoundError, match="no master key 'prod'"):
        kms_of(keyring).wrap_key(KEY, "prod")


def test_a_key_made_meanwhile_is_found(keyring: Path) -> None:
    kms = kms_of(keyring)
    kms.wrap_key(KEY, "default")
    create_key(str(keyring), "later")
    kms.wrap_key(KEY, "later")
    assert LocalKms(str(keyring)).names() == ["default", "later"]


def test_an_existing_key_is_never_replaced(keyring: Path) -> None:
    before = keyring.read_bytes()
    with pytest.raises(KmsError, match="already"):
        create_key(str(keyring), "default")
    assert keyring.read_bytes() == before


def test_what_a_newer_program_added_is_kept(keyring: Path) -> None:
    document = json.loads(keyring.read_bytes())
    document["note"] = document["keys"]["default"]["note"] = "kept"
    keyring.write_text(json.dumps(document))
    create_key(str(keyring), "other")
    after = json.loads(keyring.read_bytes())
    assert after["note"] == after["keys"]["default"]["note"] == "kept"


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "-x", "\x1b[31m", "a" * 129, "ключ"])
def test_a_name_that_would_not_print_is_refused(keyring: Path, name: str) -> None:
    with pytest.raises(KmsError, match="cannot name a master key"):
        create_key(str(keyring), name)


def test_a_keyring_link_stays_a_link(keyring: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(keyring)
    create_key(str(link), "other")
    assert link.is_symlink()
    assert LocalKms(str(keyring)).names() == ["default", "other"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o610, 0o602])
def test_a_keyring_of_ours_that_others_may_access_is_refused(keyring: Path, mode: int) -> None:
    keyring.chmod(mode)
    with pytest.raises(KmsAccessDeniedError, match="open to others"):
        kms_of(keyring).wrap_key(KEY, "default")
    with pytest.raises(KmsAccessDeniedError, match="open to others"):
        create_key(str(keyring), "other")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(("mode", "accepted"), [(0o440, True), (0o644, True), (0o660, False)])
def test_in_somebody_elses_keyring_only_writing_is_refused(
    keyring: Path, mode: int, accepted: bool
) -> None:
    os.chown(keyring, 12345, 12345)
    keyring.chmod(mode)
    if accepted:
        kms_of(keyring).wrap_key(KEY, "default")
    else:
        with pytest.raises(KmsAccessDeniedError):
            kms_of(keyring).wrap_key(KEY, "default")


def test_a_missing_keyring_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(KmsKeyNotFoundError, match="ags1 keygen"):
        kms_of(tmp_path / "none.json").wrap_key(KEY, "default")


def test_a_folder_a_fifo_and_a_huge_file_are_no_keyrings(tmp_path: Path) -> None:
    fifo, huge = tmp_path / "fifo", tmp_path / "huge"
    os.mkfifo(fifo, 0o600)
    huge.touch(0o600)
    os.truncate(huge, 1 << 40)
    for path in (tmp_path, fifo, huge):
        with pytest.raises(KmsError, match="cannot read the keyring"):
            kms_of(path).wrap_key(KEY, "default")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not a keyring"),
        ('{"format": "other"}', "not a keyring"),
        ('{"format": "ags1-keyring", "version": 2}', "does not know"),
        ('{"format": "ags1-keyring", "version": 1}', "no 'keys'"),
        ('{"format": "ags1-keyring", "version": 1, "keys": {"a": 5}}', "'a' is not whole"),
        (
            '{"format": "ags1-keyring", "version": 1, "keys":'
            ' {"a": {"current": 1, "versions": {"1": {"key": "c2VjcmV0c2VjcmV0"}}}}}',
            "'a' is not whole",
        ),
        (
            '{"format": "ags1-keyring", "version": 1, "keys":'
            ' {"a": {"current": 2, "versions": {"1": {"key": "'
            + base64.b64encode(KEY).decode()
            + '"}}}}}',
            "'a' is not whole",
        ),
    ],
)
def test_a_damaged_keyring_is_refused_without_quoting_it(
    tmp_path: Path, document: str, message: str
) -> None:
    path = tmp_path / "keyring.json"
    path.touch(0o600)
    path.write_text(document)
    with pytest.raises(KmsError, match=message) as caught:
        kms_of(path).wrap_key(KEY, "a")
    assert "c2VjcmV0" not in str(caught.value)
    with pytest.raises(KmsError, match=message):
        create_key(str(path), "b")
    assert path.read_text() == document


def test_no_key_shows(keyring: Path) -> None:
    kms = LocalKms(str(keyring))
    kms.wrap_key(KEY, "default")
    secret = master_key(keyring)
    for shown in (repr(kms).encode(), pickle.dumps(kms)):
        assert secret not in shown
        assert base64.b64encode(secret) not in shown
        assert secret.hex().encode() not in shown
    assert pickle.loads(pickle.dumps(kms)).wrap_key(KEY, "default")


def test_close_forgets_the_keys_and_the_client_can_go_on(keyring: Path) -> None:
    kms = kms_of(keyring)
    wrapped = kms.wrap_key(KEY, "default")
    kms.close()
    assert kms.unwrap_key(wrapped, "default") == KEY


def test_keys_made_by_many_processes_at_once_are_all_there(
    keyring: Path, run_python: RunPython
) -> None:
    run_python(
        """
import subprocess, sys
code = "import sys; from ags1.kms import create_key; create_key(sys.argv[1], sys.argv[2])"
children = [
    subprocess.Popen([sys.executable, "-c", code, sys.argv[1], f"key{i}"]) for i in range(8)
]
assert [child.wait() for child in children] == [0] * 8
""",
        keyring,
    )
    assert LocalKms(str(keyring)).names() == ["default", *(f"key{i}" for i in range(8))]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"AGS1_KEYRING": "/k.json"}, "/k.json"),
        ({"XDG_CONFIG_HOME": "/xdg"}, "/xdg/ags1/keyring.json"),
        ({"XDG_CONFIG_HOME": "relative"}, "/home/u/.config/ags1/keyring.json"),
        ({"AGS1_KEYRING": "", "XDG_CONFIG_HOME": ""}, "/home/u/.config/ags1/keyring.json"),
    ],
)
def test_where_the_keyring_is(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AGS1_KEYRING", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (environment | {"HOME": "/home/u"}).items():
        monkeypatch.setenv(name, value)
    assert default_keyring_path() == expected
