"""The keyring: private, never half written, and no key of it ever lost or shown."""

from __future__ import annotations

import base64
import errno
import functools
import hashlib
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
import traceback
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import forked
import pytest
from conftest import python_environment
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from kms_contract import KmsContract, everything_said, spellings

from ags1.errors import (
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsError,
    KmsKeyNotFoundError,
    KmsUnwrapError,
)
from ags1.host import atomic, private_file
from ags1.host.atomic import AtomicFile
from ags1.kms import KmsClient, LocalKms, create_key, default_keyring_path
from ags1.kms import from_properties as kms_from_properties
from ags1.kms import keyring as keyring_module
from ags1.kms import passphrase as passphrase_module
from ags1.kms.local import remove_passphrase, set_passphrase

KEY = bytes(range(32))
WHOLE_KEY = json.dumps(
    {"current": 1, "versions": {"1": {"key": base64.b64encode(b"secret" * 5 + b"--").decode()}}}
)
PASSPHRASE = b"correct horse, battery staple \xff"
SCRYPT_N = passphrase_module._SCRYPT_N

pytestmark = pytest.mark.usefixtures("cheap_scrypt")


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


@pytest.mark.parametrize("made", ["NFC", "NFD"])
def test_a_passphrase_opens_in_each_form_of_unicode(tmp_path: Path, made: str) -> None:
    path = str(tmp_path / "keyring.json")
    forms = {form: unicodedata.normalize(form, "Pässwört Å").encode() for form in ("NFC", "NFD")}
    LocalKms(path, passphrase=forms[made]).create_key("default")
    for form in forms.values():
        assert LocalKms(path, passphrase=form).names() == ["default"]
    with pytest.raises(KmsAccessDeniedError, match="does not open"):
        LocalKms(path, passphrase="Pässwört A".encode()).names()
    # Earlier releases took a passphrase as it was given.
    document = json.loads(Path(path).read_bytes())
    keys = opened_independently(Path(path), forms["NFC"])
    nonce = os.urandom(12)
    cipher = AESGCM(independent_key(document, forms["NFD"]))
    sealed = cipher.encrypt(nonce, json.dumps(keys).encode(), header_of(document))
    document["keys"] = base64.b64encode(nonce + sealed).decode()
    Path(path).write_text(json.dumps(document))
    for form in forms.values():
        assert LocalKms(path, passphrase=form).names() == ["default"]


def test_a_passphrase_from_a_pipe_is_read_once(protected: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "wb") as pipe:
        pipe.write(PASSPHRASE + b"\n")
        pipe.close()
        kms = LocalKms(str(protected), f"/dev/fd/{reading}")
        assert kms.names() == ["default"]
        kms.close()
        assert kms.names() == ["default"]
        with pytest.raises(TypeError, match="passphrase"):
            pickle.dumps(kms)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o610, 0o602])
def test_a_keyring_of_ours_that_others_may_access_is_refused(keyring: Path, mode: int) -> None:
    keyring.chmod(mode)
    with pytest.raises(KmsAccessDeniedError, match="open to others"):
        kms_of(keyring).wrap_key(KEY, "default")
    with pytest.raises(KmsAccessDeniedError, match="open to others"):
        create_key(str(keyring), "other")


def test_where_files_have_no_modes_a_keyring_needs_a_passphrase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on FAT or a share: every new file is open to all."""

    def without_modes(*arguments: Any, mode: int, **named: Any) -> AtomicFile:
        return AtomicFile(*arguments, mode=0o777, **named)

    monkeypatch.setattr(private_file, "AtomicFile", without_modes)
    path = tmp_path / "usb" / "keyring.json"
    before = os.umask(0)
    try:
        with pytest.raises(KmsAccessDeniedError, match=r"would be open to others.*passphrase"):
            create_key(str(path), "default")
        assert os.listdir(path.parent) == ["keyring.json.lock"]
        create_key(str(path), "default", passphrase=PASSPHRASE)
        kms = LocalKms(str(path), passphrase=PASSPHRASE)
        kms.rotate_key("default")
        assert stat.S_IMODE(path.stat().st_mode) == 0o777
        wrapped = kms.wrap_key(KEY, "default")
        assert LocalKms(str(path), passphrase=PASSPHRASE).unwrap_key(wrapped, "default") == KEY
        # Without its passphrase it would be open to all.
        with pytest.raises(KmsAccessDeniedError, match="would be open to others"):
            remove_passphrase(str(path), PASSPHRASE)
        assert LocalKms(str(path), passphrase=PASSPHRASE).names() == ["default"]
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("mode", [0o400, 0o600, 0o644])
def test_a_keyring_or_passphrase_file_of_another_user_is_refused(
    keyring: Path, tmp_path: Path, mode: int
) -> None:
    file = tmp_path / "passphrase"
    file.write_bytes(PASSPHRASE)
    for path in (keyring, file):
        path.chmod(mode)
        os.chown(path, 12345, 12345)
    before = keyring.read_bytes()
    with pytest.raises(KmsAccessDeniedError, match="uid 12345"):
        kms_of(keyring).wrap_key(KEY, "default")
    with pytest.raises(KmsAccessDeniedError, match="uid 12345"):
        create_key(str(keyring), "other")
    with pytest.raises(KmsAccessDeniedError, match="uid 12345"):
        set_passphrase(str(keyring), PASSPHRASE)
    assert keyring.read_bytes() == before
    with pytest.raises(KmsAccessDeniedError, match=r"passphrase file .*uid 12345"):
        LocalKms(str(tmp_path / "new.json"), str(file)).create_key("default")


@pytest.mark.parametrize(("mode", "accepted"), [(0o440, True), (0o644, True), (0o660, False)])
def test_in_roots_keyring_only_writing_is_refused(
    keyring: Path, mode: int, accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has a file of root's to try")
    keyring.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if accepted:
        kms_of(keyring).wrap_key(KEY, "default")
    else:
        with pytest.raises(KmsAccessDeniedError, match="open to others"):
            kms_of(keyring).wrap_key(KEY, "default")


# Files in a folder that a link names, as Kubernetes mounts secrets. In a user name space of its own
# a process is root: it may mount, and it owns the files.
_MOUNTED = """
for mode in 400 440 444; do
    mkdir "$0/$mode" && mount -t tmpfs none "$0/$mode" && cd "$0/$mode"
    mkdir ..2026 && cp "$1" "$2" ..2026/ && chmod $mode ..2026/*
    ln -s ..2026 ..data && ln -s ..data/keyring.json ..data/passphrase .
    mount -o remount,ro "$0/$mode"
done
exec "$3" -c "$4"
"""
_USED = """
import os
from ags1.errors import KmsAccessDeniedError
from ags1.kms import LocalKms
def tried(call):
    try:
        return str(call())
    except KmsAccessDeniedError as error:
        return str(error)
for mode in ("400", "440", "444"):
    os.chdir(f"../{mode}")
    said = [mode]
    for allow in (False, True):
        kms = LocalKms("keyring.json", "passphrase", allow_readable=allow)
        said += [tried(kms.names), tried(lambda: kms.create_key("b"))]
    print(*said, sep="\\t")
"""


@pytest.mark.skipif(
    subprocess.call(["unshare", "-rm", "true"], stderr=subprocess.DEVNULL) != 0,
    reason="only in a name space of its own a process may mount",
)
def test_a_mounted_secret(protected: Path, passphrase_file: Path, tmp_path: Path) -> None:
    (place := tmp_path / "mount").mkdir()
    script = [place, protected, passphrase_file, sys.executable, _USED]
    run = subprocess.run(
        ["unshare", "-rm", "sh", "-ec", _MOUNTED, *map(str, script)],
        capture_output=True,
        text=True,
        env=python_environment(),
        check=True,
        timeout=60,
    )
    seen = [line.split("\t") for line in run.stdout.splitlines()]
    assert [mode for mode, *_ in seen] == ["400", "440", "444"]
    for mode, default, changed, allowed, changed_too in seen:
        assert allowed == "['default']"
        assert changed_too.endswith(
            "its file system is read-only: change the original, and mount it again"
        )
        if mode == "400":
            assert (default, changed) == (allowed, changed_too)
        else:
            assert default == changed
            assert "is open to others" in default
            assert (
                "mount it with mode 0400 (Kubernetes: defaultMode), or set kms.allow-read"
                in default
            )
            assert "chmod" not in default


def test_the_property_that_allows_others_to_read(
    keyring: Path, protected: Path, passphrase_file: Path
) -> None:
    allowed = {"encryption.kms-type": "local", "kms.allow-readable-files": "true"}
    given = {"kms.local.keyring": str(protected), "kms.local.passphrase-file": str(passphrase_file)}
    kms = pickle.loads(pickle.dumps(kms_from_properties(allowed | given)))
    assert kms.unwrap_key(kms.wrap_key(KEY, "default"), "default") == KEY
    for mode in (0o644, 0o664):
        passphrase_file.chmod(mode)
        if mode == 0o644:
            kms_from_properties(allowed | given).wrap_key(KEY, "default")
            continue
        with pytest.raises(KmsAccessDeniedError, match=r"open to others .* run chmod 600"):
            kms_from_properties(allowed | given).wrap_key(KEY, "default")


def test_the_property_that_allows_others_to_read_a_keyring(keyring: Path) -> None:
    allowed = {"encryption.kms-type": "local", "kms.allow-readable-files": "true"}
    given = allowed | {"kms.local.keyring": str(keyring)}
    keyring.chmod(0o644)
    assert kms_from_properties(given).wrap_key(KEY, "default")
    keyring.chmod(0o664)
    with pytest.raises(KmsAccessDeniedError, match=r"open to others .* run chmod 600"):
        kms_from_properties(given).wrap_key(KEY, "default")


def test_a_keyring_with_a_passphrase_may_be_open_to_others(protected: Path) -> None:
    protected.chmod(0o666)
    kms = LocalKms(str(protected), passphrase=PASSPHRASE)
    assert kms.unwrap_key(kms.wrap_key(KEY, "default"), "default") == KEY
    # Whoever puts one without a passphrase in its place is noticed.
    protected.write_text(json.dumps({"format": "ags1-keyring", "version": 1, "keys": {}}))
    for passphrase in (PASSPHRASE, lambda: PASSPHRASE, None):
        with pytest.raises(KmsError):
            LocalKms(str(protected), passphrase=passphrase).wrap_key(KEY, "default")


def write_damaged(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def unwritable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ags1.host.atomic.os.fsync", refuse)


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "one key is damaged": lambda d: d["keys"].update(bad={}),
    "one key is a list": lambda d: d["keys"].update(bad=[*d["keys"]["default"].values()]),
    "a newer version": lambda d: d.update(version=3),
    "another format": lambda d: d.update(format="x"),
    "a list of keys": lambda d: d.update(keys=[d["keys"]]),
}


FAILURES = ["existing", "missing", "full disk", "open to others", "passphrases"]


@pytest.mark.parametrize(
    ("failure", "protected"),
    [(one, protected) for one in FAILURES for protected in (False, True)]
    + [(one, False) for one in DAMAGES],
)
def test_no_variable_of_a_traceback_shows_a_master_key(
    keyring: Path, failure: str, protected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Error reporters print the variables of every frame.
    secret = master_key(keyring)
    if failure in DAMAGES:
        write_damaged(keyring, DAMAGES[failure])
    if protected:
        set_passphrase(str(keyring), PASSPHRASE)
    ask: Any = (lambda: PASSPHRASE) if protected else None
    kms = LocalKms(str(keyring), passphrase=ask)
    call: Callable[[], object] = kms.names
    if failure == "existing":
        call = functools.partial(kms.create_key, "default")
    elif failure == "missing":
        call = functools.partial(kms.rotate_key, "nope")
    elif failure == "full disk":
        unwritable(monkeypatch)
        call = functools.partial(kms.rotate_key, "default")
    elif failure == "open to others":
        if protected:
            pytest.skip("the passphrase protects it")
        keyring.chmod(0o644)
    elif failure == "passphrases":
        call = functools.partial(
            set_passphrase, str(keyring), b"another " + PASSPHRASE, lambda: b"wrong"
        )
        if not protected:
            keyring.chmod(0o644)
    with pytest.raises((KmsError, OSError)) as caught:
        call()
    shown, error = "", caught.value
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [frame for frame in frames if frame.f_globals["__name__"].startswith("ags1")]
    assert ours
    for frame in ours:
        shown += repr(frame.f_locals)
    assert error.__context__ is None or error.__suppress_context__
    for hidden in (secret, PASSPHRASE):
        assert not any(form in shown.encode() for form in spellings(hidden))


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
        ('{"format": "ags1-keyring", "version": 1, "version": 2}', "the name 'version' twice"),
        ("[]", "not a keyring"),
        ('{"format": "other"}', "not a keyring"),
        ('{"format": "ags1-keyring", "version": 2}', "does not know"),
        ('{"format": "ags1-keyring", "version": 3}', "does not know"),
        ('{"format": "ags1-keyring", "version": true, "keys": {}}', "does not know"),
        ('{"format": "ags1-keyring", "version": 1}', "no 'keys'"),
        ('{"format": "ags1-keyring", "version": 1, "keys": {"a": 5}}', "'a' is not complete"),
        (
            '{"format": "ags1-keyring", "version": 1, "keys":'
            ' {"a": {"current": 1, "versions": {"1": {"key": "c2VjcmV0c2VjcmV0"}}}}}',
            "'a' is not complete",
        ),
        (
            '{"format": "ags1-keyring", "version": 1, "keys":'
            ' {"a": {"current": 2, "versions": {"1": {"key": "'
            + base64.b64encode(KEY).decode()
            + '"}}}}}',
            "'a' is not complete",
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


@pytest.mark.parametrize("again", ['"default"', '"def\\u0061ult"'])
def test_a_keyring_that_has_a_name_twice_is_refused(keyring: Path, again: str) -> None:
    """Two keyrings that were merged by hand. The next change would drop the first key."""
    key = json.dumps(json.loads(keyring.read_bytes())["keys"]["default"])
    merged = f'{{"default": {key}, {again}: {key}}}'
    kms = LocalKms(str(keyring))
    keyring.write_text(f'{{"format": "ags1-keyring", "version": 1, "keys": {merged}}}')
    before = keyring.read_bytes()
    for call in (kms.names, functools.partial(kms.create_key, "third")):
        with pytest.raises(KmsError, match="has the name 'default' twice"):
            call()
    assert keyring.read_bytes() == before


@pytest.mark.parametrize("current", [True, 1.0, "1", None, [1], 0, 2, -1])
def test_a_current_version_that_is_none_of_the_versions_is_refused(
    keyring: Path, current: object
) -> None:
    document = json.loads(keyring.read_bytes())
    document["keys"]["default"]["current"] = current
    keyring.write_text(json.dumps(document))
    with pytest.raises(KmsError, match="'default' is not complete"):
        kms_of(keyring).wrap_key(KEY, "default")


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


def test_keys_made_by_many_processes_at_once_are_all_there(keyring: Path) -> None:
    names = [f"key{number}" for number in range(8)]
    creating = [functools.partial(create_key, str(keyring), name) for name in names]
    assert forked.at_once(*creating) == [0] * 8
    assert LocalKms(str(keyring)).names() == ["default", *names]


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


# ---- what every client does --------------------------------------------------------------------


@pytest.fixture(params=["plain", "passphrase", "passphrase file"])
def any_kms(request: pytest.FixtureRequest, tmp_path: Path) -> LocalKms:
    path, file = str(tmp_path / "keyring.json"), tmp_path / "passphrase"
    if request.param == "plain":
        kms = LocalKms(path)
    elif request.param == "passphrase":
        kms = LocalKms(path, passphrase=PASSPHRASE)
    else:
        file.touch(0o600)
        file.write_bytes(PASSPHRASE + b"\n")
        kms = LocalKms(path, str(file))
    kms.create_key("default")
    kms.create_key("other")
    assert json.loads(Path(path).read_bytes())["version"] == (1 if request.param == "plain" else 2)
    return kms


class TestContract(KmsContract):
    @pytest.fixture
    def kms(self, any_kms: LocalKms) -> LocalKms:
        return any_kms

    @pytest.fixture
    def key_id(self) -> str:
        return "default"

    @pytest.fixture
    def other_key_id(self) -> str:
        return "other"

    @pytest.fixture
    def missing_key_id(self) -> str:
        return "missing"

    @pytest.fixture
    def unreachable(self) -> NoReturn:
        pytest.skip("a keyring is a file: there is no service to be down")


# ---- administration ----------------------------------------------------------------------------


def test_the_client_manages_its_keys(keyring: Path) -> None:
    kms = LocalKms(str(keyring))
    assert not kms.accepts_foreign_keys
    made = kms.create_key("b")
    kms.create_key("a")
    assert [info.key_id for info in kms.list_keys()] == ["a", "b", "default"]
    assert kms.describe_key("b") == made
    assert (made.algorithm, made.current_version) == ("AES-256-GCM", "1")
    written = json.loads(keyring.read_bytes())["keys"]["b"]["versions"]["1"]
    assert [version.created_ms for version in made.versions] == [written["created-ms"]]
    with pytest.raises(KmsKeyNotFoundError, match="'c'"):
        kms.describe_key("c")
    with pytest.raises(KmsError, match="already"):
        kms.create_key("b")


def test_a_rotation_adds_a_version_which_wraps_from_now_on(any_kms: LocalKms) -> None:
    long_running = any_kms
    wrapped = [long_running.wrap_key(KEY, "default")]
    for version in (2, 3):
        other = LocalKms(any_kms.path, passphrase=any_kms_passphrase(any_kms))
        info = other.rotate_key("default")
        assert info.current_version == str(version)
        assert [each.version for each in info.versions] == [
            str(number) for number in range(1, version + 1)
        ]
        assert len({each.fingerprint for each in info.versions}) == version
        assert other.describe_key("default") == info
        # A client that had read the keyring before wraps under the new version, too.
        wrapped.append(long_running.wrap_key(KEY, "default"))
    assert [each[:5] for each in wrapped] == [b"\1\0\0\0" + bytes([n]) for n in (1, 2, 3)]
    for client in (long_running, other):
        assert [client.unwrap_key(each, "default") for each in wrapped] == [KEY] * 3
    assert long_running.describe_key("other").current_version == "1"


def any_kms_passphrase(kms: LocalKms) -> bytes | None:
    plain = json.loads(Path(kms.path).read_bytes())["version"] == 1
    return None if plain else PASSPHRASE


def test_a_missing_key_is_not_rotated(keyring: Path, tmp_path: Path) -> None:
    before = keyring.read_bytes()
    with pytest.raises(KmsKeyNotFoundError, match="no master key 'prod'"):
        LocalKms(str(keyring)).rotate_key("prod")
    assert keyring.read_bytes() == before
    with pytest.raises(KmsKeyNotFoundError, match="there is no keyring"):
        LocalKms(str(tmp_path / "a" / "b")).rotate_key("default")
    assert not (tmp_path / "a").exists()


def test_the_last_possible_version_is_the_last(keyring: Path) -> None:
    document = json.loads(keyring.read_bytes())
    entry = document["keys"]["default"]
    entry["versions"] = {str(2**32 - 1): entry["versions"]["1"]}
    entry["current"] = 2**32 - 1
    keyring.write_text(json.dumps(document))
    before = keyring.read_bytes()
    kms = LocalKms(str(keyring))
    assert kms.unwrap_key(kms.wrap_key(KEY, "default"), "default") == KEY
    with pytest.raises(KmsError):
        kms.rotate_key("default")
    assert keyring.read_bytes() == before


def test_a_key_is_wrapped_again_under_the_newest_version(keyring: Path) -> None:
    kms = LocalKms(str(keyring))
    old = kms.wrap_key(KEY, "default")
    LocalKms(str(keyring)).rotate_key("default")
    new = kms.wrap_key(kms.unwrap_key(old, "default"), "default")
    assert (old[4], new[4]) == (1, 2)
    document = json.loads(keyring.read_bytes())
    del document["keys"]["default"]["versions"]["1"]
    keyring.write_text(json.dumps(document))
    assert LocalKms(str(keyring)).unwrap_key(new, "default") == KEY


def test_a_fingerprint_tells_which_copies_hold_the_same_key(keyring: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    copy.touch(0o600)
    copy.write_bytes(keyring.read_bytes())
    mac = HMAC(master_key(keyring), SHA256())
    mac.update(b"ags1 master key fingerprint v1")
    kms = LocalKms(str(keyring))
    kms.create_key("other")
    (version,) = kms.describe_key("default").versions
    assert version.fingerprint == mac.finalize()[:8].hex()
    assert LocalKms(str(copy)).describe_key("default").versions == (version,)
    assert kms.describe_key("other").versions[0].fingerprint != version.fingerprint


@pytest.mark.parametrize("created", ["yesterday", None, True, 1.5])
def test_a_time_that_is_none_is_left_out(keyring: Path, created: object) -> None:
    document = json.loads(keyring.read_bytes())
    document["keys"]["default"]["versions"]["1"]["created-ms"] = created
    keyring.write_text(json.dumps(document))
    (version,) = LocalKms(str(keyring)).describe_key("default").versions
    assert version.created_ms is None


def test_a_deleted_keyring_wraps_no_more(keyring: Path) -> None:
    kms = LocalKms(str(keyring))
    wrapped = kms.wrap_key(KEY, "default")
    keyring.unlink()
    assert kms.unwrap_key(wrapped, "default") == KEY
    with pytest.raises(KmsKeyNotFoundError, match="there is no keyring"):
        kms.wrap_key(KEY, "default")


# ---- the passphrase ----------------------------------------------------------------------------


@pytest.fixture
def protected(keyring: Path) -> Path:
    set_passphrase(str(keyring), PASSPHRASE)
    return keyring


@pytest.fixture
def derivations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each run of scrypt."""
    runs: list[int] = []
    scrypt = hashlib.scrypt

    def counted(*args: Any, **kwargs: Any) -> bytes:
        runs.append(1)
        return scrypt(*args, **kwargs)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    return runs


def header_of(document: dict[str, Any]) -> bytes:
    # Written out: its form is part of the file's.
    n, r, p, salt = (document["protection"][name] for name in ("n", "r", "p", "salt"))
    protection = f'{{"kdf":"scrypt","n":{n},"p":{p},"r":{r},"salt":"{salt}"}}'
    return f'{{"format":"ags1-keyring","protection":{protection},"version":2}}'.encode()


def independent_key(document: dict[str, Any], passphrase: bytes) -> bytes:
    protection = document["protection"]
    salt = base64.b64decode(protection["salt"])
    n, r, p = (protection[name] for name in ("n", "r", "p"))
    return Scrypt(salt=salt, length=32, n=n, r=r, p=p).derive(passphrase)


def opened_independently(keyring: Path, passphrase: bytes) -> Any:
    document = json.loads(keyring.read_bytes())
    sealed = base64.b64decode(document["keys"])
    cipher = AESGCM(independent_key(document, passphrase))
    return json.loads(cipher.decrypt(sealed[:12], sealed[12:], header_of(document)))


# The documented work takes half a second each time.
@pytest.mark.parametrize("n", [1 << 10, pytest.param(SCRYPT_N, marks=pytest.mark.slow)])
def test_a_passphrase_seals_the_keys_as_documented(
    keyring: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    assert SCRYPT_N == 131072
    monkeypatch.setattr(passphrase_module, "_SCRYPT_N", n)
    before = json.loads(keyring.read_bytes())
    before["note"] = "kept"
    keyring.write_text(json.dumps(before))
    wrapped = LocalKms(str(keyring)).wrap_key(KEY, "default")
    set_passphrase(str(keyring), PASSPHRASE)
    after = json.loads(keyring.read_bytes())
    salt = after["protection"].pop("salt")
    assert after["protection"] == {"kdf": "scrypt", "n": n, "r": 8, "p": 1}
    assert len(base64.b64decode(salt)) == 16
    assert (after["version"], after["note"]) == (2, "kept")
    assert opened_independently(keyring, PASSPHRASE) == before["keys"]
    secret = base64.b64decode(before["keys"]["default"]["versions"]["1"]["key"])
    assert not any(form in keyring.read_bytes() for form in spellings(secret))
    assert stat.S_IMODE(keyring.stat().st_mode) == 0o600
    assert LocalKms(str(keyring), passphrase=PASSPHRASE).unwrap_key(wrapped, "default") == KEY


def test_what_another_program_sealed_so_opens(protected: Path) -> None:
    document = json.loads(protected.read_bytes())
    keys = {"theirs": {"current": 7, "versions": {"7": {"key": base64.b64encode(KEY).decode()}}}}
    document["protection"] |= {"n": 512, "r": 3, "p": 2}
    nonce = os.urandom(12)
    cipher = AESGCM(independent_key(document, PASSPHRASE))
    sealed = nonce + cipher.encrypt(nonce, json.dumps(keys).encode(), header_of(document))
    document["keys"] = base64.b64encode(sealed).decode()
    protected.write_text(json.dumps(document))
    kms = LocalKms(str(protected), passphrase=PASSPHRASE)
    wrapped = kms.wrap_key(b"k" * 16, "theirs")
    assert AESGCM(KEY).decrypt(wrapped[5:17], wrapped[17:], b"\1\0\0\0\7") == b"k" * 16


@pytest.mark.parametrize(
    ("password", "salt", "n", "r", "p", "first_half"),
    [  # RFC 7914, section 12
        (b"", b"", 16, 1, 1, "77d6576238657b203b19ca42c18a0497f16b4844e3074ae8dfdffa3fede21442"),
        (
            b"password",
            b"NaCl",
            1024,
            8,
            16,
            "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162",
        ),
        (
            b"pleaseletmein",
            b"SodiumChloride",
            16384,
            8,
            1,
            "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2",
        ),
    ],
)
def test_keys_are_derived_as_in_the_rfc(
    password: bytes, salt: bytes, n: int, r: int, p: int, first_half: str
) -> None:
    assert passphrase_module.Protection(n, r, p, salt).derive(password).hex() == first_half


@pytest.mark.parametrize(("n", "r", "p"), [(2, 1, 1), (1 << 15, 1, 4), (2, 1000, 4), (4, 2, 3)])
def test_memory_is_allowed_for_whatever_is_within_the_bounds(n: int, r: int, p: int) -> None:
    salt = os.urandom(16)
    fields = {"kdf": "scrypt", "n": n, "r": r, "p": p, "salt": base64.b64encode(salt).decode()}
    derived = passphrase_module.Protection.from_dict(fields, "k").derive(PASSPHRASE)
    assert derived == Scrypt(salt=salt, length=32, n=n, r=r, p=p).derive(PASSPHRASE)


def test_a_wrong_passphrase_opens_nothing_and_tells_nothing(protected: Path) -> None:
    before = protected.read_bytes()
    messages = set()
    for wrong in (b"x", PASSPHRASE[:-1], PASSPHRASE + b"\n", PASSPHRASE.upper()):
        kms = LocalKms(str(protected), passphrase=wrong)
        for call in (
            kms.names,
            lambda kms=kms: kms.wrap_key(KEY, "default"),
            lambda kms=kms: kms.create_key("new"),
            lambda kms=kms: kms.rotate_key("default"),
            lambda wrong=wrong: set_passphrase(str(protected), b"new", wrong),
            lambda wrong=wrong: remove_passphrase(str(protected), wrong),
            lambda wrong=wrong: create_key(str(protected), "new", passphrase=wrong),
        ):
            with pytest.raises(KmsAccessDeniedError) as caught:
                call()
            messages.add(str(caught.value))
            if len(wrong) > 1:
                assert not any(form in everything_said(caught.value) for form in spellings(wrong))
    assert messages == {f"the passphrase does not open the keyring {protected}"}
    assert protected.read_bytes() == before


def test_a_missing_passphrase_is_asked_for_by_the_message(protected: Path) -> None:
    before = protected.read_bytes()
    for call in (
        lambda: LocalKms(str(protected)).wrap_key(KEY, "default"),
        lambda: LocalKms(str(protected)).rotate_key("default"),
        lambda: create_key(str(protected), "new"),
        lambda: set_passphrase(str(protected), b"new"),
    ):
        with pytest.raises(KmsAccessDeniedError, match="protected by a passphrase, and none"):
            call()
    assert protected.read_bytes() == before


def test_the_header_and_the_keys_are_authenticated(protected: Path) -> None:
    document = json.loads(protected.read_bytes())
    sealed = base64.b64decode(document["keys"])
    changes: list[dict[str, Any]] = [
        {"protection": document["protection"] | {"n": 2048}},
        {"protection": document["protection"] | {"n": 2}},
        {"protection": document["protection"] | {"r": 4}},
        {"protection": document["protection"] | {"p": 2}},
        {"protection": document["protection"] | {"salt": base64.b64encode(bytes(16)).decode()}},
    ]
    for position in {0, 11, 12, len(sealed) // 2, len(sealed) - 16, len(sealed) - 1}:
        changed = bytearray(sealed)
        changed[position] ^= 1
        changes.append({"keys": base64.b64encode(changed).decode()})
    changes += [{"keys": base64.b64encode(sealed[:size]).decode()} for size in (1, 12, 28, 100)]
    for change in changes:
        protected.write_text(json.dumps(document | change))
        with pytest.raises(KmsAccessDeniedError, match="does not open"):
            LocalKms(str(protected), passphrase=PASSPHRASE).names()
    protected.write_text(json.dumps(document))
    assert LocalKms(str(protected), passphrase=PASSPHRASE).names() == ["default"]


def test_the_parameters_themselves_are_bound_to_the_keys(
    protected: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if scrypt gave the same key for other parameters, the seal would not open."""
    document = json.loads(protected.read_bytes())
    key = independent_key(document, PASSPHRASE)
    monkeypatch.setattr(hashlib, "scrypt", lambda *_, **__: key)
    assert LocalKms(str(protected), passphrase=b"any").names() == ["default"]
    for change in ({"n": 2048}, {"r": 4}, {"p": 2}, {"salt": base64.b64encode(bytes(16)).decode()}):
        changed = document | {"protection": document["protection"] | change}
        protected.write_text(json.dumps(changed))
        with pytest.raises(KmsAccessDeniedError, match="does not open"):
            LocalKms(str(protected), passphrase=b"any").names()


@pytest.mark.parametrize(
    "change",
    [
        {"n": 1 << 29},  # 512 GiB
        {"n": 1 << 26},  # 64 GiB
        {"n": 1 << 20},
        {"r": 1 << 30},
        {"n": 2, "r": 1 << 22},
        {"p": 5},
        {"p": 1 << 30},
        {"n": 0},
        {"n": 1},
        {"n": -1024},
        {"n": 1000},
        {"n": 1 << 16, "r": 1},  # the RFC's own limit: n < 2 ** (128 * r / 8)
        {"r": 0},
        {"r": -8},
        {"p": 0},
        {"p": True},
        {"n": 1024.0},
        {"n": "1024"},
        {"n": True},
        {"n": None},
        {"n": [1024]},
        {"n": 10**1000},
        {"salt": ""},
        {"salt": "AAAA"},
        {"salt": base64.b64encode(bytes(17)).decode()},
        {"salt": "!" * 24},
        {"salt": 5},
        {"salt": "\u00e9"},
        {"kdf": "argon2id"},
        {"kdf": ["scrypt"]},
        {"cipher": "none"},
    ],
    ids=str,
)
def test_hostile_parameters_are_refused_before_any_work(
    protected: Path, derivations: list[int], change: dict[str, Any]
) -> None:
    document = json.loads(protected.read_bytes())
    document["protection"] |= change
    protected.write_text(json.dumps(document))
    asked: list[int] = []
    kms = LocalKms(str(protected), passphrase=lambda: asked.append(1) or PASSPHRASE)
    with pytest.raises(KmsError, match=r"out of bounds|its salt|does not know|64 bits"):
        kms.names()
    assert (asked, derivations) == ([], [])


@pytest.mark.parametrize("protection", [None, [], "scrypt", {}, {"kdf": "scrypt"}])
def test_a_protection_that_is_none_is_refused(protected: Path, protection: object) -> None:
    document = json.loads(protected.read_bytes())
    protected.write_text(json.dumps(document | {"protection": protection}))
    with pytest.raises(KmsError, match="does not know"):
        LocalKms(str(protected), passphrase=PASSPHRASE).names()


@pytest.mark.parametrize("keys", [None, {}, [], "", "no base64", "\u00e9", 5])
def test_sealed_keys_that_are_none_are_refused(protected: Path, keys: object) -> None:
    document = json.loads(protected.read_bytes())
    protected.write_text(json.dumps(document | {"keys": keys}))
    with pytest.raises(KmsError, match="no 'keys'"):
        LocalKms(str(protected), passphrase=PASSPHRASE).names()


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '"c2VjcmV0c2VjcmV0"', '{"a": {"key": "c2VjcmV0c2VjcmV0"}}'),
        f'{{"a": {WHOLE_KEY}, "a": {WHOLE_KEY}}}',
    ],
)
def test_damage_under_the_seal_is_refused_without_quoting_it(protected: Path, text: str) -> None:
    document = json.loads(protected.read_bytes())
    nonce, cipher = os.urandom(12), AESGCM(independent_key(document, PASSPHRASE))
    sealed = nonce + cipher.encrypt(nonce, text.encode(), header_of(document))
    document["keys"] = base64.b64encode(sealed).decode()
    protected.write_text(json.dumps(document))
    with pytest.raises(KmsError, match="damaged") as caught:
        LocalKms(str(protected), passphrase=PASSPHRASE).names()
    assert b"c2VjcmV0" not in everything_said(caught.value)


def test_a_service_goes_on_when_the_passphrase_file_follows_the_keyring(
    protected: Path, tmp_path: Path, derivations: list[int]
) -> None:
    file = tmp_path / "passphrase"
    file.touch(0o600)
    file.write_bytes(PASSPHRASE)
    kms = LocalKms(str(protected), str(file))
    wrapped = kms.wrap_key(KEY, "default")
    set_passphrase(str(protected), b"new", PASSPHRASE)
    derivations.clear()
    for _ in range(3):
        with pytest.raises(KmsAccessDeniedError, match="does not open"):
            kms.wrap_key(KEY, "default")
    assert len(derivations) == 1  # it takes a third of a second, for the same result
    file.write_bytes(b"new")
    assert kms.unwrap_key(kms.wrap_key(KEY, "default"), "default") == KEY
    assert kms.unwrap_key(wrapped, "default") == KEY
    # The key that opened the keyring stays, whatever the file says later.
    file.write_bytes(b"another one")
    protected.touch()
    assert kms.wrap_key(KEY, "default")
    assert len(derivations) == 2


def test_a_passphrase_is_changed_and_removed(protected: Path) -> None:
    path = str(protected)
    wrapped = LocalKms(path, passphrase=PASSPHRASE).wrap_key(KEY, "default")
    before = json.loads(protected.read_bytes())
    set_passphrase(path, b"new", PASSPHRASE)
    after = json.loads(protected.read_bytes())
    assert before["protection"]["salt"] != after["protection"]["salt"]
    with pytest.raises(KmsAccessDeniedError, match="does not open"):
        LocalKms(path, passphrase=PASSPHRASE).names()
    assert LocalKms(path, passphrase=b"new").unwrap_key(wrapped, "default") == KEY
    remove_passphrase(path, lambda: b"new")
    plain = json.loads(protected.read_bytes())
    assert plain["version"] == 1
    assert "protection" not in plain
    assert stat.S_IMODE(protected.stat().st_mode) == 0o600
    assert LocalKms(path).unwrap_key(wrapped, "default") == KEY


def test_a_changed_protected_keyring_stays_protected(protected: Path) -> None:
    kms = LocalKms(str(protected), passphrase=PASSPHRASE)
    first = json.loads(protected.read_bytes())
    kms.rotate_key("default")
    second = json.loads(protected.read_bytes())
    kms.create_key("other")
    third = json.loads(protected.read_bytes())
    assert len({base64.b64decode(each["keys"])[:12] for each in (first, second, third)}) == 3
    assert sorted(opened_independently(protected, PASSPHRASE)) == ["default", "other"]
    assert set(opened_independently(protected, PASSPHRASE)["default"]["versions"]) == {"1", "2"}


def test_a_new_keyring_is_protected_by_the_passphrase_at_hand(
    tmp_path: Path, derivations: list[int]
) -> None:
    path = tmp_path / "folder" / "keyring.json"
    kms = LocalKms(str(path), passphrase=PASSPHRASE)
    kms.create_key("default")
    wrapped = kms.wrap_key(KEY, "default")
    assert len(derivations) == 1
    assert list(opened_independently(path, PASSPHRASE)) == ["default"]
    assert LocalKms(str(path), passphrase=PASSPHRASE).unwrap_key(wrapped, "default") == KEY


def test_nobody_is_asked_for_the_passphrase_of_a_keyring_without_one(tmp_path: Path) -> None:
    def ask() -> bytes:
        raise AssertionError("asked")

    path = tmp_path / "keyring.json"
    kms = LocalKms(str(path), passphrase=ask)
    kms.create_key("default")
    assert kms.unwrap_key(kms.wrap_key(KEY, "default"), "default") == KEY
    assert json.loads(path.read_bytes())["version"] == 1


def test_a_plain_keyring_in_the_place_of_a_protected_one_is_refused(
    keyring: Path, tmp_path: Path
) -> None:
    set_passphrase(str(keyring), PASSPHRASE)
    kms = LocalKms(str(keyring), passphrase=lambda: PASSPHRASE)
    wrapped = kms.wrap_key(KEY, "default")
    plain = tmp_path / "plain.json"
    create_key(str(plain), "default")
    plain.replace(keyring)
    for call in (
        lambda: kms.wrap_key(KEY, "default"),
        lambda: kms.rotate_key("default"),
        kms.names,
    ):
        with pytest.raises(KmsConfigurationError, match="was protected"):
            call()
    assert kms.unwrap_key(wrapped, "default") == KEY
    kms.close()
    assert kms.names() == ["default"]  # opened anew, it is what it is


def test_a_keyring_without_the_passphrase_that_is_at_hand_is_refused(
    keyring: Path, tmp_path: Path
) -> None:
    """Or else somebody puts a keyring of theirs there, and has our keys."""
    before = keyring.read_bytes()
    file = tmp_path / "passphrase"
    file.touch(0o600)
    file.write_bytes(PASSPHRASE)
    for kms in (
        LocalKms(str(keyring), passphrase=PASSPHRASE),
        LocalKms(str(keyring), str(file)),
    ):
        with pytest.raises(KmsConfigurationError, match="which has none"):
            kms.wrap_key(KEY, "default")
        with pytest.raises(KmsConfigurationError, match="which has none"):
            kms.rotate_key("default")
    with pytest.raises(KmsConfigurationError, match="which has none"):
        set_passphrase(str(keyring), b"new", PASSPHRASE)
    assert keyring.read_bytes() == before


def test_a_thousand_keys_cost_one_derivation_and_one_question(
    protected: Path, derivations: list[int]
) -> None:
    asked: list[int] = []
    kms = LocalKms(str(protected), passphrase=lambda: asked.append(1) or PASSPHRASE)
    wrapped = kms.wrap_key(KEY, "default")
    derivations.clear()
    asked.clear()
    for attempt in range(1000):
        assert kms.unwrap_key(wrapped, "default") == KEY
        if attempt % 10 == 0:
            with pytest.raises(KmsKeyNotFoundError):
                kms.unwrap_key(wrapped, f"missing{attempt}")
    for version in (2, 3):
        LocalKms(str(protected), passphrase=PASSPHRASE).rotate_key("default")
        assert kms.wrap_key(KEY, "default")[4] == version
    assert asked == []
    assert len(derivations) == 2  # of the clients that rotated
    kms.close()
    assert kms.unwrap_key(wrapped, "default") == KEY
    assert asked == [1]
    set_passphrase(str(protected), PASSPHRASE, PASSPHRASE)
    kms.wrap_key(KEY, "default")
    assert asked == [1, 1]


def test_a_wrong_answer_is_not_asked_for_again(protected: Path, derivations: list[int]) -> None:
    answers = [b"wrong", PASSPHRASE]
    kms = LocalKms(str(protected), passphrase=lambda: answers.pop(0))
    for _ in range(5):
        with pytest.raises(KmsAccessDeniedError):
            kms.wrap_key(KEY, "default")
    assert len(derivations) == 1
    kms.close()
    kms.wrap_key(KEY, "default")


def test_threads_ask_once(protected: Path) -> None:
    asked: list[int] = []
    together = threading.Barrier(8)
    kms = LocalKms(str(protected), passphrase=lambda: asked.append(1) or PASSPHRASE)

    def work() -> None:
        together.wait(30)
        kms.wrap_key(KEY, "default")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert asked == [1]


def test_a_forked_child_asks_for_itself(
    protected: Path, in_a_fork: Callable[[Callable[[], object]], None]
) -> None:
    asked: list[int] = []
    kms = LocalKms(str(protected), passphrase=lambda: asked.append(1) or PASSPHRASE)
    wrapped = kms.wrap_key(KEY, "default")

    def child() -> None:
        assert kms.unwrap_key(wrapped, "default") == KEY
        assert asked == [1, 1]

    in_a_fork(child)
    assert asked == [1]


def test_ctrl_c_at_the_question_is_no_answer(protected: Path) -> None:
    answers: list[Callable[[], bytes]] = [lambda: PASSPHRASE]

    def interrupt() -> NoReturn:
        raise KeyboardInterrupt

    answers.insert(0, interrupt)
    kms = LocalKms(str(protected), passphrase=lambda: answers.pop(0)())
    with pytest.raises(KeyboardInterrupt):
        kms.wrap_key(KEY, "default")
    kms.wrap_key(KEY, "default")


def test_nobody_waits_for_the_lock_while_somebody_is_asked(protected: Path) -> None:
    def ask() -> bytes:
        create = functools.partial(create_key, str(protected), "b", passphrase=PASSPHRASE)
        assert forked.at_once(create) == [0]
        return PASSPHRASE

    LocalKms(str(protected), passphrase=ask).create_key("a")
    assert sorted(opened_independently(protected, PASSPHRASE)) == ["a", "b", "default"]


@pytest.mark.parametrize("passphrase", [b"", "text", None, bytearray(b"x"), 5])
def test_what_is_no_passphrase_is_refused(protected: Path, passphrase: Any) -> None:
    before = protected.read_bytes()
    if passphrase is not None:
        with pytest.raises(KmsConfigurationError, match="passphrase is"):
            LocalKms(str(protected), passphrase=passphrase)
    with pytest.raises(KmsConfigurationError, match="passphrase is"):
        LocalKms(str(protected), passphrase=lambda: passphrase).names()
    with pytest.raises(KmsConfigurationError, match="passphrase is"):
        set_passphrase(str(protected), passphrase, PASSPHRASE)
    assert protected.read_bytes() == before


# ---- the passphrase's file, and properties -----------------------------------------------------


@pytest.fixture
def passphrase_file(tmp_path: Path) -> Path:
    path = tmp_path / "passphrase"
    path.touch(0o600)
    path.write_bytes(PASSPHRASE + b"\n")
    return path


@pytest.mark.parametrize(
    ("begin", "ending", "opens"),
    [
        (b"", b"", True),
        (b"", b"\n", True),
        (b"", b"\r\n", True),
        (b"\xef\xbb\xbf", b"\r\n", True),
        (b"", b"\n\n", False),
        (b"\n", b"", False),
    ],
)
def test_one_line_end_ends_a_passphrase_file(
    protected: Path, passphrase_file: Path, begin: bytes, ending: bytes, opens: bool
) -> None:
    passphrase_file.write_bytes(begin + PASSPHRASE + ending)
    kms = LocalKms(str(protected), str(passphrase_file))
    if opens:
        assert kms.names() == ["default"]
    else:
        with pytest.raises(KmsAccessDeniedError, match="does not open"):
            kms.names()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o610, 0o602])
def test_a_passphrase_file_that_others_may_access_is_refused(
    protected: Path, passphrase_file: Path, mode: int
) -> None:
    passphrase_file.chmod(mode)
    with pytest.raises(KmsAccessDeniedError, match=r"passphrase file .* is open to others"):
        LocalKms(str(protected), str(passphrase_file)).names()


def test_a_passphrase_file_that_is_none_is_refused(protected: Path, passphrase_file: Path) -> None:
    kms = LocalKms(str(protected), str(passphrase_file))
    for content in (b"", b"\n"):
        passphrase_file.write_bytes(content)
        with pytest.raises(KmsConfigurationError, match="is empty"):
            kms.names()
    os.truncate(passphrase_file, 1 << 40)
    with pytest.raises(KmsError, match="cannot read the passphrase file"):
        kms.names()
    passphrase_file.unlink()
    with pytest.raises(KmsConfigurationError, match="there is no passphrase file"):
        kms.names()
    os.mkfifo(passphrase_file, 0o600)
    with pytest.raises(KmsError, match="cannot read the passphrase file"):
        kms.names()
    passphrase_file.unlink()
    passphrase_file.touch(0o600)
    passphrase_file.write_bytes(PASSPHRASE)
    assert kms.names() == ["default"]


def test_properties_name_the_keyring_and_the_passphrase(
    protected: Path, passphrase_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Schlüssel" * 2
    set_passphrase(str(protected), text.encode(), PASSPHRASE)
    passphrase_file.write_text(f"{text}\n", encoding="utf-8")
    keyring = {"encryption.kms-type": "local", "kms.local.keyring": str(protected)}
    file = {"kms.local.passphrase-file": str(passphrase_file)}
    for passphrase in ({"kms.local.passphrase": text}, file):
        kms = kms_from_properties(keyring | passphrase)
        assert isinstance(kms, LocalKms)
        assert kms.names() == ["default"]
        assert text not in repr(kms) + repr(vars(kms))
    with pytest.raises(KmsConfigurationError, match="both") as caught:
        LocalKms.from_properties(keyring | file | {"kms.local.passphrase": text})
    assert text.encode() not in everything_said(caught.value)
    with pytest.raises(KmsConfigurationError, match="not UTF-8") as caught:
        LocalKms.from_properties({"kms.local.passphrase": f"{text}\udc80"})
    assert text.encode() not in everything_said(caught.value)
    monkeypatch.setenv("AGS1_KEYRING", "/k.json")
    assert LocalKms.from_properties({}).path == "/k.json"


def test_a_passphrase_does_not_travel_and_does_not_show(
    protected: Path, passphrase_file: Path
) -> None:
    at_hand = LocalKms(str(protected), passphrase=PASSPHRASE)
    asked = LocalKms(str(protected), passphrase=functools.partial(bytes, PASSPHRASE))
    from_file = LocalKms(str(protected), str(passphrase_file))
    for kms in (at_hand, asked, from_file):
        wrapped = kms.wrap_key(KEY, "default")
        shown = repr(kms) + str(kms) + repr(vars(kms))
        assert not any(form in shown.encode() for form in spellings(PASSPHRASE))
    for kms in (at_hand, asked):
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(kms)
    pickled = pickle.dumps(from_file)
    secret = base64.b64decode(
        opened_independently(protected, PASSPHRASE)["default"]["versions"]["1"]["key"]
    )
    for hidden in (PASSPHRASE, secret):
        assert not any(form in pickled for form in spellings(hidden))
    assert pickle.loads(pickled).unwrap_key(wrapped, "default") == KEY


# ---- many at once, and ends in the middle ------------------------------------------------------


def test_versions_made_by_many_processes_at_once_are_all_there(keyring: Path) -> None:
    rotating = functools.partial(LocalKms(str(keyring)).rotate_key, "default")
    assert forked.at_once(*[rotating] * 6) == [0] * 6
    info = LocalKms(str(keyring)).describe_key("default")
    assert [version.version for version in info.versions] == list("1234567")
    assert len({version.fingerprint for version in info.versions}) == 7
    assert info.current_version == "7"


def test_a_protected_keyring_made_by_many_processes_at_once_is_one(tmp_path: Path) -> None:
    path = tmp_path / "keyring.json"
    names = [f"key{number}" for number in range(6)]
    create = functools.partial(create_key, str(path), passphrase=PASSPHRASE)
    assert forked.at_once(*(functools.partial(create, name) for name in names)) == [0] * 6
    assert sorted(opened_independently(path, PASSPHRASE)) == names


CHANGES: dict[str, Callable[[str], object]] = {
    "create_key": lambda path: LocalKms(path, passphrase=PASSPHRASE).create_key("new"),
    "rotate_key": lambda path: LocalKms(path, passphrase=PASSPHRASE).rotate_key("default"),
    "set_passphrase": lambda path: set_passphrase(path, b"new", PASSPHRASE),
    "remove_passphrase": lambda path: remove_passphrase(path, PASSPHRASE),
}


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
@pytest.mark.parametrize("change", CHANGES)
def test_an_end_before_the_new_keyring_has_its_name_leaves_the_old_one(
    protected: Path, change: str, end: signal.Signals
) -> None:
    before = protected.read_bytes()

    def publish(temporary: str, *_: object, **__: object) -> None:
        assert os.path.getsize(temporary) > 100
        signal.raise_signal(end)

    def interrupted() -> None:
        atomic.publish = publish
        CHANGES[change](str(protected))

    assert forked.at_once(interrupted) == [-end]
    assert protected.read_bytes() == before
    left = {entry.name for entry in protected.parent.iterdir()}
    if end == signal.SIGINT:
        assert left == {"keyring.json", "keyring.json.lock"}
    # The lock died with its holder, and the next change goes through.
    info = LocalKms(str(protected), passphrase=PASSPHRASE).rotate_key("default")
    assert info.current_version == "2"


def test_a_child_forked_meanwhile_does_not_keep_the_lock(keyring: Path) -> None:
    def rotate_while_forking() -> None:
        write, children = private_file.write, []

        def forking(*args: Any, **kwargs: Any) -> None:
            child = os.fork()
            if not child:
                signal.pause()
            children.append(child)
            write(*args, **kwargs)

        private_file.write = forking
        kms = LocalKms(str(keyring))
        kms.rotate_key("default")
        private_file.write = write
        second = threading.Thread(target=kms.rotate_key, args=("default",), daemon=True)
        second.start()
        second.join(30)
        waited = second.is_alive()
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)
        assert not waited
        assert kms.describe_key("default").current_version == "3"

    assert forked.at_once(rotate_while_forking) == [0]


def test_every_change_keeps_a_link_and_the_mode(protected: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(protected)
    path = str(link)
    before = os.umask(0)
    try:
        LocalKms(path, passphrase=PASSPHRASE).rotate_key("default")
        set_passphrase(path, b"new", PASSPHRASE)
        remove_passphrase(path, b"new")
        LocalKms(path).create_key("other")
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert stat.S_IMODE(protected.stat().st_mode) == 0o600
    assert LocalKms(str(protected)).names() == ["default", "other"]
    assert not Path(f"{path}.lock").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_one_process_at_a_time_changes_a_keyring(
    keyring: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(fd: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("ags1.kms.keyring.fcntl.flock", refused)
    kms = LocalKms(str(keyring))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: LocalKms(str(keyring)).create_key(f"key-{n}"), range(8)))
    assert {f"key-{n}" for n in range(8)} < set(kms.names())
    held = Path(f"{keyring}.lock.held")
    assert not held.exists()
    held.touch()
    monkeypatch.setattr("ags1.kms.keyring._MOST_SECONDS", 0.1)
    with pytest.raises(OSError, match=r"killed: remove this file.*\.lock\.held"):
        kms.create_key("late")
    held.unlink()
    kms.create_key("late")


def test_a_planted_lock_is_not_followed(keyring: Path, tmp_path: Path) -> None:
    lock, victim = Path(f"{keyring}.lock"), tmp_path / "victim"
    lock.unlink()
    lock.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        LocalKms(str(keyring)).rotate_key("default")
    assert not victim.exists()


def test_a_keyring_too_large_to_read_is_not_written(
    keyring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keyring.read_bytes()
    monkeypatch.setattr(keyring_module, "_MAX_SIZE", len(before) + 10)
    with pytest.raises(KmsError, match="would be larger"):
        LocalKms(str(keyring)).rotate_key("default")
    assert keyring.read_bytes() == before


def test_the_old_passphrase_is_asked_for_before_the_new(tmp_path: Path) -> None:
    path = str(tmp_path / "k.json")
    asked: list[bytes] = []

    def answer(text: bytes) -> bytes:
        asked.append(text)
        return text

    for change in (
        lambda: set_passphrase(path, lambda: answer(b"new"), lambda: answer(b"old")),
        lambda: remove_passphrase(path, lambda: answer(b"old")),
    ):
        with pytest.raises(KmsKeyNotFoundError, match="no keyring"):
            change()
    assert not asked
    create_key(path, "default")
    assert not remove_passphrase(path, lambda: answer(b"old"))
    assert not set_passphrase(path, lambda: answer(b"one"), lambda: answer(b"old"))
    assert set_passphrase(path, lambda: answer(b"two"), lambda: answer(b"one"))
    with pytest.raises(KmsAccessDeniedError, match="does not open"):
        set_passphrase(path, lambda: answer(b"new"), lambda: answer(b"wrong"))
    assert remove_passphrase(path, lambda: answer(b"two"))
    assert asked == [b"one", b"one", b"two", b"wrong", b"two"]
