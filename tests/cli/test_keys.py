"""The command line and its KMSs: which master keys are used, accepted, managed and replaced."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import hmac
import json
import os
import pickle
import pty
import re
import select
import signal
import socket
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
from conftest import python_environment
from kms_contract import spellings

from ags1.cli.exits import Exit
from ags1.cli.keys.rewrapping import Rewrapping
from ags1.cli.keys.rewrapping import rewrap as wrap_anew
from ags1.cli.kms.plugins import PluginError, guarded
from ags1.engine._messages import seal
from ags1.errors import KmsError, KmsUnwrapError
from ags1.keys import Keychain, read_sidecar, write_sidecar
from ags1.keys.cache import KekCache
from ags1.kms import LocalKms, create_key
from ags1.kms.client import own_name
from ags1.kms.memory import MemoryKms

from .test_files import (
    TEXT,
    Interrupted,
    at_step,
    execute,
    fail,
    home,
    interrupt,
    make_tree,
    names,
    run,
    start,
    succeed,
    wait_for,
)

__all__ = ["home"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning"),
    pytest.mark.usefixtures("cheap_scrypt"),
]

KEYS = {"keyA": b"0123456789012345", "keyB": b"1123456789012345"}
MEMORY = [
    *("--kms", "memory"),
    *(
        argument
        for name, key in KEYS.items()
        for argument in ("--kms-property", f"encryption.kms.key.{name}={key.hex()}")
    ),
]
WARNING = "ags1: master keys in properties are for tests"


class FaultyKms:
    """A plug-in with a mistake that shows the key, or returns what it should not."""

    accepts_foreign_keys = False

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.mistake = properties["test.mistake"]
        if self.mistake == "constructor":
            raise ValueError(SECRET)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> FaultyKms:
        return cls(properties)

    @property
    def supports_key_generation(self) -> bool:
        return self.mistake == "tuple"

    def wrap_key(self, key: bytes, key_id: str) -> Any:
        mistakes = {"none": None, "text": "wrapped", "number": 5}
        if self.mistake in mistakes:
            return mistakes[self.mistake]
        errors = {"exit": SystemExit, "os": OSError, "text of OSError": ConnectionError}
        raise errors.get(self.mistake, RuntimeError)(f"{SECRET} {key.hex()}")

    unwrap_key = wrap_key

    def generate_key(self, key_id: str, key_size: int) -> Any:
        return (SECRET, SECRET)

    def close(self) -> None:
        pass


SECRET = "s3cr3t"
BROKEN = ("--kms-property", "encryption.kms-impl=cli.kms_impls:BrokenKms")


def master_key_of(sidecar: str | Path) -> str | None:
    return read_sidecar(str(sidecar)).kek_entries[0].encrypted_by_id


def public(*arguments: object) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(succeed("key", "export-public-info", *arguments).stdout)
    return shown


# -- memory


def test_another_kms_by_option(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    result = run("encrypt", "a", "--key", "keyA", *MEMORY)
    assert result.exit_code == 0
    assert result.stderr.startswith(WARNING)
    assert result.stderr.count("\n") == 1
    # What Java's test KMS would do with the sidecar's KEK.
    entry = read_sidecar("a.ags1.keys").kek_entries[0]
    kms = MemoryKms({"encryption.kms.key.keyA": KEYS["keyA"].hex()})
    assert len(kms.unwrap_key(entry.encrypted_key_metadata, "keyA")) == 32
    assert run("cat", "a.ags1", *MEMORY).stdout_bytes == TEXT
    for arguments in (["decrypt", "-f"], ["cat"], ["verify"]):
        assert "no keyring wrapped it" in fail(5, *arguments, "a.ags1")


def test_another_kms_by_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "a").write_bytes(TEXT)
    monkeypatch.setenv("AGS1_KMS_TYPE", "memory")
    monkeypatch.setenv("AGS1_KMS_ENCRYPTION__KMS__KEY__MINE", KEYS["keyA"].hex())
    assert "name it with --key, AGS1_KMS_KEY" in fail(2, "encrypt", "a")
    monkeypatch.setenv("AGS1_KMS_KEY", "mine")
    assert run("encrypt", "a").exit_code == 0
    assert master_key_of("a.ags1.keys") == "mine"
    assert run("verify", "a.ags1").stdout == "a.ags1: OK\n"
    # The environment is about another KMS than the option.
    assert "no keyring wrapped it" in fail(5, "verify", "a.ags1", "--kms", "local")
    succeed("encrypt", "a", "-f", "--kms", "local")
    assert master_key_of("a.ags1.keys") == "default"


# -- which master keys are accepted


def test_only_named_master_keys_are_accepted(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("keygen", "--name", "other")
    succeed("encrypt", "a")
    for command in ("decrypt", "cat", "verify"):
        output = ["-o", "b", "-f"] if command == "decrypt" else []
        message = fail(5, command, "a.ags1", "--key", "other", *output)
        assert "'default'" in message
        assert "--key" in message
        succeed(command, "a.ags1", "--key", "other", "--key", "default", *output)
        succeed(command, "a.ags1", *output)
    sidecar = (home / "a.ags1").read_bytes()
    assert "not among" in fail(
        5, "cat", "-", "--sidecar", "a.ags1.keys", "--key", "other", data=sidecar
    )


def test_where_keys_may_be_strangers_they_are_named(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    environment = python_environment()
    foreign = (*BROKEN, "--kms-property", "test.foreign=true")
    for command in ("decrypt", "cat", "verify", "key rewrap"):
        operand = "a.ags1.keys" if command == "key rewrap" else "a.ags1"
        code, _, errors = execute(*command.split(), operand, *foreign, env=environment)
        assert code == 2
        assert b"--key" in errors
        assert b"AGS1_KMS_KEY" in errors
        assert errors.count(b"\n") == 1
    # Named, the KMS is asked; and a stranger's key is not what it is asked for.
    with_key = environment | {"AGS1_KMS_KEY": "mine"}
    code, _, errors = execute("verify", "a.ags1", *foreign, env=with_key)
    assert code == 5
    assert b"not among those to trust (see --key)" in errors
    assert b"does not want" not in errors


# -- failures of the KMS


@pytest.mark.parametrize("error", ["denied", "unavailable"])
def test_an_unusable_kms_stops_the_run(home: Path, error: str) -> None:
    for name in ("a", "b", "c"):
        (home / name).write_bytes(TEXT)
    succeed("encrypt", "a", "b", "c")
    broken = (*BROKEN, "--kms-property", f"test.error={error}")
    code, out, errors = execute(
        "verify", "a.ags1", "b.ags1", "c.ags1", *broken, "--json", "--key", "default"
    )
    assert code == 5
    assert errors.decode().splitlines() == [
        "ags1: a.ags1.keys: it does not want to",
        "ags1: 2 more files not tried, because the KMS cannot be used",
    ]
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["file"] for line in lines] == ["a.ags1", "b.ags1", "c.ags1"]
    assert [line["ok"] for line in lines] == [False] * 3
    assert [line["error"]["kind"] for line in lines[1:]] == ["NotTried"] * 2
    # Encrypting asks before any work, once.
    code, out, errors = execute("encrypt", "a", "b", "-f", *broken, "--key", "x")
    assert (code, out, errors) == (5, b"", b"ags1: it does not want to\n")
    succeed("verify", "a.ags1", "b.ags1")


def faulty(mistake: str) -> tuple[str, ...]:
    properties = (f"encryption.kms-impl={__name__}:FaultyKms", f"test.mistake={mistake}")
    return tuple(x for text in properties for x in ("--kms-property", text))


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("constructor", "failed in its construction: ValueError"),
        ("none", "returned the wrong type from wrap_key: NoneType"),
        ("text", "returned the wrong type from wrap_key: str"),
        ("number", "returned the wrong type from wrap_key: int"),
        ("tuple", "returned the wrong type from generate_key: tuple"),
        ("exit", "failed in wrap_key: SystemExit"),
        ("os", "failed in wrap_key: OSError"),
        ("text of OSError", "failed in wrap_key: ConnectionError"),
        ("any", "failed in wrap_key: RuntimeError"),
    ],
)
def test_a_plug_ins_mistake_is_told_without_its_text(home: Path, mistake: str, told: str) -> None:
    (home / "a").write_bytes(TEXT)
    said = fail(5, "encrypt", "a", "--key", "x", *faulty(mistake))
    assert f"the KMS client {__name__}:FaultyKms {told}" in said
    assert SECRET not in said
    assert names(home) == ["a"]


def test_a_plug_in_s_own_name_of_a_key_is_asked_for() -> None:
    class Named(FaultyKms):
        def own_name(self, key_id: str) -> Any:
            return {"alias": "arn:key", "none": None}.get(key_id, 5)

    kms = guarded(Named({"test.mistake": "any"}), "named")
    assert (own_name(kms, "alias"), own_name(kms, "none")) == ("arn:key", None)
    with pytest.raises(PluginError, match="wrong type from own_name: int"):
        own_name(kms, "other")
    assert own_name(guarded(FaultyKms({"test.mistake": "any"}), "faulty"), "alias") is None


def test_a_plug_ins_mistake_over_one_file_stops_no_other(home: Path) -> None:
    for name in ("a", "b", "c"):
        (home / name).write_bytes(TEXT)
    succeed("encrypt", "a", "b", "c")
    result = run("verify", "a.ags1", "b.ags1", "c.ags1", *faulty("any"))
    assert result.exit_code == 5
    assert result.stderr.count("failed in unwrap_key: RuntimeError") == 3
    assert SECRET not in result.stderr
    to = [text.replace("--kms", "--to-kms") for text in faulty("any")]
    assert "FaultyKms failed in wrap_key" in fail(
        5, "key", "rewrap", "a.ags1.keys", *to, "--to-key", "x"
    )


def test_the_same_failure_of_the_kms_twice_stops_the_run(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c", "d"):
        (home / name).write_bytes(TEXT)
    succeed("encrypt", "a", "b", "c", "d")

    def no_kms(*_: object) -> NoReturn:
        raise KmsError("that does not answer as a KMS does")

    monkeypatch.setattr(LocalKms, "unwrap_key", no_kms)
    result = run("verify", "a.ags1", "b.ags1", "c.ags1", "d.ags1", "--json")
    assert result.exit_code == 5
    kinds = [json.loads(line)["error"]["kind"] for line in result.stdout.splitlines()]
    assert kinds == ["KmsError", "KmsError", "NotTried", "NotTried"]


def test_names_of_any_length_are_shortened(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    document = json.loads((home / "a.ags1.keys").read_bytes())
    document["encryption-keys"][0]["encrypted-by-id"] = "begin" + "x" * 400_000 + "end"
    (home / "a.ags1.keys").write_text(json.dumps(document))
    said = fail(5, "verify", "a.ags1", "--key", "other")
    assert said.startswith("ags1: a.ags1.keys: ")
    assert "'begin" in said
    assert "not among those to trust" in said
    assert len(said) < 1200
    shown = run("inspect", "a.ags1")
    assert shown.exit_code == 0
    assert "end, version 1, KEK of " in shown.stdout
    assert len(shown.stdout) < 2000


def test_an_unknown_kms_is_told_before_a_missing_key(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "a").write_bytes(b"text")
    monkeypatch.setenv("AGS1_KMS_TYPE", "awss")
    assert "'awss', which is unknown" in fail(5, "encrypt", "a")


def test_another_kms_is_named_as_the_likely_cause(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    run("encrypt", "a", "--key", "keyA", *MEMORY)
    said = fail(5, "verify", "a.ags1")
    assert "'keyA' belongs to another KMS (--kms" in said


def test_a_missing_master_key_of_one_file_stops_nothing_else(home: Path) -> None:
    for name in ("a", "b"):
        (home / name).write_bytes(TEXT)
        run("encrypt", name, *MEMORY, "--key", f"key{name.upper()}")
    result = run(
        "verify",
        "a.ags1",
        "b.ags1",
        "--kms",
        "memory",
        "--kms-property",
        f"encryption.kms.key.keyB={KEYS['keyB'].hex()}",
    )
    assert result.exit_code == 5
    assert result.stdout == "b.ags1: OK\n"


@pytest.mark.parametrize(
    ("kms", "commands"),
    [
        (
            "aws",
            ["kms list-aliases", "kms create-key", "kms rotate-key-on-demand", "kms describe-key"],
        ),
        ("azure", ["key list", "key create", "key rotate", "key show"]),
        ("gcp", ["keys list", "keys create", "versions create --primary", "versions list"]),
        ("vault", ["vault list", "keys/NAME", "keys/NAME/rotate", "vault read"]),
        ("memory", ["its own tools"] * 4),
    ],
)
def test_another_kms_is_managed_with_its_own_tools(
    home: Path, kms: str, commands: list[str]
) -> None:
    calls = (["list"], ["create", "x"], ["rotate", "x"], ["export-public-info"])
    for arguments, command in zip(calls, commands, strict=True):
        said = fail(Exit.USAGE, "key", *arguments, "--kms", kms)
        assert f"For the KMS '{kms}', use" in said
        assert command in said
        assert said.count("\n") == 1


def test_a_library_that_is_missing_is_one_line(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    (home / "boto3.py").write_text("raise ImportError('none', name='boto3')")
    environment = python_environment()
    environment["PYTHONPATH"] = f"{home}{os.pathsep}{environment['PYTHONPATH']}"
    code, _, errors = execute(
        "encrypt", "a", "--kms", "aws", "--key", "k", env=environment, anew=True
    )
    assert (code, errors.count(b"\n")) == (5, 1)
    assert b"ags1[aws]" in errors


# -- key list, create, rotate, export-public-info, in a keyring


def test_keys_of_a_keyring_are_managed(home: Path) -> None:
    assert "made the master key 'backup'" in succeed("key", "create", "backup").stdout
    assert "already" in fail(5, "key", "create", "backup")
    lines = [json.loads(line) for line in succeed("key", "list", "--json").stdout.splitlines()]
    assert [line["key_id"] for line in lines] == ["backup", "default"]
    assert all(line["ok"] and line["current_version"] == "1" for line in lines)
    rotated = json.loads(succeed("key", "rotate", "backup", "--json").stdout)
    assert (rotated["current_version"], len(rotated["versions"])) == ("2", 2)
    first, second = succeed("key", "list").stdout.splitlines()
    assert first.endswith("version 2, and 1 older one")
    assert second.endswith("version 1")
    assert "no master key 'none'" in fail(5, "key", "rotate", "none")
    assert "no keyring" in fail(5, "key", "list", "--keyring", home / "none.json")


def test_public_info_tells_keyrings_apart_and_nothing_else(home: Path) -> None:
    keyring = Path(os.environ["XDG_CONFIG_HOME"]) / "ags1" / "keyring.json"
    succeed("key", "rotate", "default")
    shown = public()
    assert shown["kms"] == "local"
    [info] = shown["keys"]
    assert [version["version"] for version in info["versions"]] == ["1", "2"]
    assert all(version["created_ms"] > 1_600_000_000_000 for version in info["versions"])
    copy = home / "copy.json"
    copy.write_bytes(keyring.read_bytes())
    copy.chmod(0o600)
    assert public("--keyring", copy, "default") == shown
    create_key(str(home / "other.json"), "default")
    other = public("--keyring", home / "other.json")["keys"][0]["versions"][0]
    assert other["fingerprint"] != info["versions"][0]["fingerprint"]
    said = json.dumps(shown)
    assert str(keyring) not in said
    for version in json.loads(keyring.read_bytes())["keys"]["default"]["versions"].values():
        assert version["key"] not in said
    assert "no master key 'none'" in fail(5, "key", "export-public-info", "none")


def test_the_group_alone_shows_its_help() -> None:
    result = run("key")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Examples:" in result.stderr
    assert "rewrap" in result.stderr
    assert "nonsense" in fail(2, "key", "nonsense")


# -- passphrases


def on_a_terminal(*arguments: object, answers: list[str], **options: Any) -> tuple[int, str]:
    """Run with a terminal of its own; give each answer to one question. Returns exit code and what
    the terminal showed."""
    question = re.compile(rb"(?:assphrase of [^\r\n]*|The same again): ")
    master, terminal = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    with start(
        *arguments,
        preexec_fn=own_terminal,
        stdin=terminal,
        stderr=terminal,
        stdout=terminal,
        env=python_environment() | {"TERM": "dumb"},
        **options,
    ) as process:
        os.close(terminal)
        seen = b""
        questions = 0
        pressed = 0.0
        deadline = time.monotonic() + 60
        while process.poll() is None or select.select([master], [], [], 0)[0]:
            if time.monotonic() > deadline:
                process.kill()
                pytest.fail(f"it waits for something: {seen!r}")
            # The question is there, and what is typed is not shown: as somebody would see it. An
            # answer before its question would be thrown away when the echo is switched.
            asked = len(question.findall(seen))
            if questions < min(asked, len(answers)) and not echoes(master):
                os.write(master, answers[questions].encode("utf-8", "surrogateescape"))
                questions += 1
                pressed = time.monotonic()
            # Python looks at signals just before it waits for input. One that comes between the
            # two is seen at the next one, so Ctrl-C is pressed again.
            if questions and answers[questions - 1] == "\x03" and time.monotonic() > pressed + 1:
                os.write(master, b"\x03")
                pressed = time.monotonic()
            if select.select([master], [], [], 0.02)[0]:
                try:
                    seen += os.read(master, 65536)
                except OSError:  # the other end is closed
                    break
    os.close(master)
    return process.returncode, seen.decode()


def echoes(terminal: int) -> bool:
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)


@pytest.fixture
def passphrase(home: Path) -> Path:
    """A file with the passphrase of the keyring protected.json."""
    file = home / "passphrase"
    file.write_text("correct horse\n")
    file.chmod(0o600)
    create_key(str(home / "protected.json"), "default", passphrase=b"correct horse")
    return file


def test_a_protected_keyring_opens_with_a_passphrase_file(home: Path, passphrase: Path) -> None:
    (home / "a").write_bytes(TEXT)
    options = (
        "--keyring",
        "protected.json",
        "--kms-property",
        f"kms.local.passphrase-file={passphrase}",
    )
    succeed("encrypt", "a", *options)
    succeed("verify", "a.ags1", *options)
    succeed("key", "rotate", "default", *options)
    assert json.loads((home / "protected.json").read_bytes())["version"] == 2
    passphrase.write_text("wrong")
    message = fail(5, "verify", "a.ags1", "a.ags1", *options)
    assert "passphrase does not open" in message
    passphrase.chmod(0o644)
    assert "open to others" in fail(5, "verify", "a.ags1", *options)
    allowed = ("--kms-property", "kms.allow-readable-files=true")
    assert "passphrase does not open" in fail(5, "verify", "a.ags1", *options, *allowed)
    succeed("keygen", "--keyring", "plain.json")
    (home / "plain.json").chmod(0o444)
    assert "open to others" in fail(5, "key", "list", "--keyring", "plain.json")
    succeed("key", "list", "--keyring", "plain.json", *allowed)


def test_without_terminal_and_file_the_way_is_told(home: Path, passphrase: Path) -> None:
    code, out, errors = execute(
        "key", "list", "--keyring", "protected.json", start_new_session=True
    )
    assert (code, out, errors.count(b"\n")) == (5, b"", 1)
    assert b"kms.local.passphrase-file" in errors


def test_the_terminal_is_asked_once_and_shows_nothing(home: Path, passphrase: Path) -> None:
    for name in ("a", "b"):
        (home / name).write_bytes(TEXT)
    keyring = ("--keyring", "protected.json")
    code, seen = on_a_terminal("encrypt", "a", "b", *keyring, answers=["correct horse\n"])
    assert code == 0, seen
    assert seen.count("Passphrase of protected.json: ") == 1
    assert "horse" not in seen
    code, seen = on_a_terminal("verify", "a.ags1", "b.ags1", *keyring, answers=["wrong\n"])
    assert code == 5
    assert seen.count("assphrase of") == 1
    assert "passphrase does not open" in seen
    code, seen = on_a_terminal("verify", "a.ags1", *keyring, answers=["\n"])
    assert code == 5
    assert "passphrase is empty" in seen
    for answer in ("\x03", "\x04"):
        code, seen = on_a_terminal("verify", "a.ags1", *keyring, answers=[answer])
        assert (code, "Traceback" in seen) == (130, False), seen


def test_a_keyring_is_protected_and_unprotected(home: Path, passphrase: Path) -> None:
    def version() -> int:
        return int(json.loads((home / "k.json").read_bytes())["version"])

    keyring = ("--keyring", "k.json")
    new = ["one\n", "one\n"]
    code, seen = on_a_terminal("key", "create", "default", "--passphrase", *keyring, answers=new)
    assert (code, version()) == (0, 2), seen
    before = public(
        "--keyring", "k.json", "--kms-property", f"kms.local.passphrase-file={wrong(home, 'one')}"
    )
    assert "ags1 key protect" in fail(2, "key", "create", "x", "--passphrase", *keyring)
    code, seen = on_a_terminal(
        "key", "protect", *keyring, answers=["one\n", "two\n", "three\n", "two\n", "two\n"]
    )
    assert code == 0, seen
    assert "changed the passphrase of the keyring k.json" in seen
    assert "one\n" not in seen
    old = ("--kms-property", f"kms.local.passphrase-file={wrong(home, 'two')}")
    succeed("key", "protect", *keyring, *old, "--new-passphrase-file", passphrase)
    old = ("--kms-property", f"kms.local.passphrase-file={passphrase}")
    assert public(*keyring, *old) == before
    done = json.loads(succeed("key", "protect", "--remove", *keyring, *old, "--json").stdout)
    assert (done["protected"], version()) == (False, 1)
    assert public(*keyring) == before
    # A passphrase in the settings is meant for this keyring: one without is not taken.
    assert "which has none" in fail(5, "key", "list", *keyring, *old)
    none = succeed("key", "protect", "--remove", *keyring).stdout
    assert none == "there was no passphrase to remove from the keyring k.json\n"
    done = succeed("key", "protect", *keyring, "--new-passphrase-file", passphrase).stdout
    assert (done, version()) == ("set a passphrase for the keyring k.json\n", 2)
    assert "cannot be used together" in fail(
        2, "key", "protect", *keyring, "--remove", "--new-passphrase-file", passphrase
    )


def test_keygen_makes_a_protected_keyring(home: Path, passphrase: Path) -> None:
    keygen = ("keygen", "--passphrase", "--keyring")
    code, seen = on_a_terminal(*keygen, "k.json", answers=["one\n", "one\n"])
    assert code == 0, seen
    assert seen.count("assphrase of k.json: ") == 1
    assert "The same again: " in seen
    assert "one\n" not in seen
    assert json.loads((home / "k.json").read_bytes())["version"] == 2
    with_file = ("--kms-property", f"kms.local.passphrase-file={wrong(home, 'one')}")
    assert len(public("--keyring", "k.json", *with_file)["keys"]) == 1
    # A passphrase that is in the settings is taken rather than asked for.
    settings = {"AGS1_KMS_KMS__LOCAL__PASSPHRASE_FILE": str(passphrase)}
    done = execute(
        *keygen,
        "f.json",
        env=python_environment() | settings,
        start_new_session=True,
    )
    assert (done[0], done[2]) == (0, b"")
    assert json.loads((home / "f.json").read_bytes())["version"] == 2
    assert "ags1 key protect" in fail(Exit.USAGE, *keygen, "k.json")
    code, _, errors = execute(*keygen, "none.json", start_new_session=True)
    assert (code, errors.count(b"\n")) == (5, 1)
    assert b"no terminal to ask" in errors
    assert not (home / "none.json").exists()
    code, seen = on_a_terminal(*keygen, "none.json", answers=["\n", "\n"])
    assert (code, "passphrase is empty" in seen) == (5, True), seen
    assert not (home / "none.json").exists()


def wrong(home: Path, text: str) -> Path:
    path = home / f"passphrase-{text}"
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("option", [(), ("--remove",)])
def test_a_missing_keyring_is_told_before_any_question(home: Path, option: tuple[str, ...]) -> None:
    code, seen = on_a_terminal("key", "protect", "--keyring", "nosuch", *option, answers=[])
    assert code == 5
    assert "there is no keyring nosuch" in seen
    assert "assphrase of" not in seen


def test_a_passphrase_that_is_no_text_is_not_shown(home: Path) -> None:
    for option in ((), ("--remove",)):
        secret = {"AGS1_KMS_KMS__LOCAL__PASSPHRASE": "geheim\udcff", "AGS1_DEBUG": "1"}
        done = execute(
            *("key", "protect", *option), env=python_environment() | secret, stderr=subprocess.PIPE
        )
        assert done == (5, b"", b"ags1: the property 'kms.local.passphrase' is not UTF-8\n")


def test_a_passphrase_typed_in_another_encoding_is_not_shown(home: Path) -> None:
    status, said = on_a_terminal("key", "protect", answers=["geh\udce9im\n", "geh\udce9im\n"])
    assert status == 5
    assert "UTF-8" in said
    assert "internal error" not in said
    assert "0xe9" not in said


def test_an_empty_key_is_not_the_default(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    assert "--key is empty" in fail(2, "encrypt", "a", "--key", "")
    assert names(home) == ["a"]


@pytest.mark.parametrize(
    "name", ["kms.local.passphrase-flie", "kms.local.keyrng", "kms.local.passphrase_file"]
)
def test_a_mistyped_property_is_told(home: Path, name: str) -> None:
    (home / "a").write_bytes(TEXT)
    option = ("--kms-property", f"{name}=s3cr3t", "--keyring", "k.json")
    for command in (("key", "create", "d"), ("encrypt", "a"), ("key", "protect")):
        said = fail(5, *command, *option)
        assert name in said
        assert "s3cr3t" not in said
    assert names(home) == ["a"]


def test_a_tilde_is_the_home_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home / "me"))
    (home / "pass").write_bytes(b"geheim")
    (home / "pass").chmod(0o600)
    (home / "me").mkdir()
    (home / "pass").rename(home / "me" / "pass")
    properties = ("kms.local.keyring=~/k.json", "kms.local.passphrase-file=~/pass")
    succeed("key", "create", "d", *(x for p in properties for x in ("--kms-property", p)))
    document = json.loads((home / "me" / "k.json").read_bytes())
    assert "protection" in document
    monkeypatch.setenv("AGS1_KEYRING", "~/other.json")
    succeed("key", "create", "d")
    assert {"k.json", "other.json"} <= set(names(home / "me"))
    assert not (home / "~").exists()


# -- a key file


@pytest.mark.parametrize("size", [16, 24, 32])
@pytest.mark.parametrize("form", ["bytes", "hex"])
def test_an_aes_key_in_a_file(home: Path, size: int, form: str) -> None:
    key = os.urandom(size)
    (home / "team.key").write_bytes(key if form == "bytes" else key.hex().encode() + b"\n")
    (home / "team.key").chmod(0o600)
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a", "--key-file", "team.key")
    assert master_key_of(home / "a.ags1.keys") == "key-file"
    assert succeed("cat", "a.ags1", "--key-file", "team.key").stdout_bytes == TEXT
    succeed("verify", "a.ags1", "--kms", "file", "--kms-property", "kms.file.path=team.key")
    for data in (key, hmac.digest(key, b"", "sha256")):
        sidecar = (home / "a.ags1.keys").read_bytes()
        assert data not in sidecar
        assert data.hex().encode() not in sidecar


def test_a_key_file_that_cannot_be_used(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    file = home / "team.key"
    assert "there is no key file" in fail(5, "encrypt", "a", "--key-file", "team.key")
    file.write_bytes(os.urandom(31))
    file.chmod(0o600)
    assert "no AES key" in fail(5, "encrypt", "a", "--key-file", "team.key")
    secret = os.urandom(32)
    file.write_bytes(secret)
    file.chmod(0o644)
    said = fail(5, "encrypt", "a", "--key-file", "team.key")
    assert "team.key" in said
    assert not (home / "a.ags1").exists()
    file.chmod(0o600)
    succeed("encrypt", "a", "--key-file", "team.key")
    file.write_bytes(os.urandom(32))
    said = fail(5, "verify", "a.ags1", "--key-file", "team.key")
    assert "does not open the wrapped key" in said
    file.write_bytes(secret)
    succeed("verify", "a.ags1", "--key-file", "team.key")
    # Two kinds of KMS open one file.
    succeed("keygen", "--name", "ring")
    add = ("--to-kms", "local", "--add-key", "ring")
    succeed("key", "rewrap", "a.ags1.keys", "--key-file", "team.key", *add)
    succeed("verify", "a.ags1")
    succeed("verify", "a.ags1", "--key-file", "team.key")
    for wrong in (["--keyring", "k.json"], ["--kms", "aws"]):
        fail(2, "encrypt", "a", "--key-file", "team.key", *wrong)


def test_a_key_file_s_client_shows_no_key(home: Path) -> None:
    from ags1.kms.key_file import KeyFileKms

    secret = os.urandom(32)
    (home / "k").write_bytes(secret)
    (home / "k").chmod(0o600)
    kms = KeyFileKms({"kms.file.path": "k"})
    wrapped = kms.wrap_key(b"a key of 16 byte", "any")
    other = pickle.loads(pickle.dumps(kms))
    assert other.unwrap_key(wrapped, "any") == b"a key of 16 byte"
    for text in (repr(kms), repr(vars(kms)), pickle.dumps(kms).hex()):
        assert secret.hex() not in text
        assert repr(secret) not in text
    # What the key itself has encrypted is no wrapped key.
    with pytest.raises(KmsUnwrapError):
        kms.unwrap_key(seal(secret, b"a key of 16 byte", b"ags1 key file"), "any")


# -- rewrap


def test_rewrapping_moves_sidecars_to_another_key(home: Path) -> None:
    files = make_tree(home / "in")
    succeed("encrypt", "in", "-o", "sealed")
    succeed("keygen", "--name", "new")
    data = {path: path.read_bytes() for path in (home / "sealed").rglob("*.ags1")}
    sidecars = sorted((home / "sealed").rglob("*.keys"))
    before = {path: path.read_bytes() for path in sidecars}
    done = succeed("key", "rewrap", "sealed", "--to-key", "new", "--dry-run").stdout
    assert done.count(": wrapped under new (dry run: nothing was changed)") == len(files)
    assert {path: path.read_bytes() for path in sidecars} == before
    lines = succeed("key", "rewrap", "sealed", "--to-key", "new", "--json").stdout.splitlines()
    results = [json.loads(line) for line in lines]
    assert all(
        result["ok"]
        and result["changed"]
        and (result["from_master_key_ids"], result["master_key_id"]) == (["default"], "new")
        for result in results
    )
    assert {path: path.read_bytes() for path in data} == data
    for path in sidecars:
        assert master_key_of(path) == "new"
    succeed("verify", "sealed", "--key", "new", "--quiet")
    again = succeed("key", "rewrap", "sealed", "--to-key", "new", "--key", "default").stdout
    assert again.count("is already wrapped under new") == len(files)
    assert names(home / "sealed") == sorted(
        name + suffix for name in files for suffix in (".ags1", ".ags1.keys")
    )


ESCROW = ("--to-keyring", "escrow.json")


def test_a_team_s_key_and_an_escrow_key_open_a_file(home: Path) -> None:
    make_tree(home / "in")
    succeed("encrypt", "in", "-o", "sealed")
    succeed("key", "create", "escrow", "--keyring", "escrow.json")
    sidecar = home / "sealed" / "x.avro.ags1.keys"
    before = json.loads(sidecar.read_bytes())
    fail(5, "verify", "sealed/x.avro.ags1", "--keyring", "escrow.json")
    add = ("key", "rewrap", "sealed", "--add-key", "escrow", *ESCROW)
    assert ": wrapped also under escrow (dry run" in succeed(*add, "--dry-run").stdout
    assert json.loads(sidecar.read_bytes()) == before
    succeed(*add)
    after = json.loads(sidecar.read_bytes())
    # Whoever does not know the new entry finds all others as they were.
    assert after["encryption-keys"][:2] == before["encryption-keys"]
    assert after["key-id"] == before["key-id"]
    (copy,) = after["encryption-keys"][2:]
    assert copy["properties"] == {
        "ags1.copy-of": before["encryption-keys"][0]["key-id"],
        "KEY_TIMESTAMP": before["encryption-keys"][0]["properties"]["KEY_TIMESTAMP"],
    }
    assert succeed(*add).stdout.count("is already wrapped also under escrow") == 4
    assert json.loads(sidecar.read_bytes()) == after
    for keyring in (
        (),
        ("--keyring", "escrow.json"),
        ("--keyring", "escrow.json", "--key", "escrow"),
    ):
        assert succeed("verify", "sealed", *keyring).stdout.count(": OK") == 4
    wrong = ("--keyring", "escrow.json", "--key", "default")
    assert "'default'" in fail(5, "verify", "sealed/x.avro.ags1", *wrong)
    keys = json.loads(succeed("inspect", "sealed/x.avro.ags1", "--json").stdout)["keys"]
    assert [key["master_key_id"] for key in keys] == ["default", "escrow"]
    assert "cannot be used together" in fail(2, *add, "--to-key", "new")


def test_the_key_that_opens_has_to_be_trusted(home: Path) -> None:
    """Whatever else wraps the file's key."""
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    for name in ("escrow", "other"):
        succeed("keygen", "--name", name)
    succeed("key", "rewrap", "a.ags1.keys", "--add-key", "escrow")
    for trusted in ("default", "escrow"):
        succeed("verify", "a.ags1", "--key", trusted)
    assert "not among" in fail(5, "verify", "a.ags1", "--key", "other")
    assert "not among" in fail(
        5, "key", "rewrap", "a.ags1.keys", "--add-key", "other", "--key", "other"
    )


def test_the_key_that_is_left_brings_files_to_a_new_one(home: Path) -> None:
    make_tree(home / "in")
    succeed("encrypt", "in", "-o", "sealed")
    succeed("key", "create", "escrow", "--keyring", "escrow.json")
    succeed("key", "rewrap", "sealed", "--add-key", "escrow", *ESCROW)
    (Path(os.environ["XDG_CONFIG_HOME"]) / "ags1" / "keyring.json").unlink()
    succeed("keygen", "--keyring", "new.json", "--name", "new")
    new = ("--to-kms", "local", "--to-kms-property", "kms.local.keyring=new.json")
    succeed("key", "rewrap", "sealed", "--keyring", "escrow.json", *new, "--to-key", "new")
    for keyring in ("new.json", "escrow.json"):
        assert succeed("verify", "sealed", "--keyring", keyring).stdout.count(": OK") == 4
    # A file that is encrypted again has one master key.
    succeed("encrypt", "in", "-o", "sealed", "--force", "--keyring", "new.json", "--key", "new")
    fail(5, "verify", "sealed/x.avro.ags1", "--keyring", "escrow.json")


def test_a_copy_of_another_kek_opens_nothing(home: Path) -> None:
    succeed("key", "create", "escrow", "--keyring", "escrow.json")
    for name in ("a", "b"):  # each run has a KEK of its own
        (home / name).write_bytes(TEXT)
        succeed("encrypt", name)
    succeed("key", "rewrap", "a.ags1.keys", "b.ags1.keys", "--add-key", "escrow", *ESCROW)
    one, other = (json.loads((home / f"{name}.ags1.keys").read_bytes()) for name in "ab")
    kek_id = one["encryption-keys"][2]["properties"]["ags1.copy-of"]
    moved = other["encryption-keys"][2]
    moved["properties"]["ags1.copy-of"] = kek_id
    one["encryption-keys"][2] = moved
    (home / "a.ags1.keys").write_text(json.dumps(one))
    assert "does not verify" in fail(7, "verify", "a.ags1", "--keyring", "escrow.json")
    succeed("verify", "a.ags1")
    moved["properties"]["KEY_TIMESTAMP"] = "1"
    (home / "a.ags1.keys").write_text(json.dumps(one))
    fail(7, "verify", "a.ags1", "--keyring", "escrow.json")


def test_an_encrypted_file_is_not_called_a_damaged_sidecar(home: Path) -> None:
    for size in (3, 3 << 20):
        (home / "a").write_bytes(bytes(size))
        succeed("encrypt", "a", "--force")
        assert "name its sidecar, a.ags1.keys" in fail(2, "key", "rewrap", "a.ags1")


def test_rewrapping_takes_the_newest_version(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    succeed("key", "rotate", "default")
    keyring = Path(os.environ["XDG_CONFIG_HOME"]) / "ags1" / "keyring.json"
    assert "wrapped under default, version 2" in succeed("key", "rewrap", ".").stdout
    sidecar = (home / "a.ags1.keys").read_bytes()
    assert (
        "is already wrapped under default, version 2, the newest"
        in succeed("key", "rewrap", ".").stdout
    )
    assert (home / "a.ags1.keys").read_bytes() == sidecar
    assert "default, version 2, KEK of" in succeed("inspect", "a.ags1").stdout
    # The old version is not needed any more.
    document = json.loads(keyring.read_bytes())
    del document["keys"]["default"]["versions"]["1"]
    keyring.write_text(json.dumps(document))
    succeed("verify", "a.ags1")


def test_rewrapping_moves_sidecars_to_another_kms_and_back(home: Path) -> None:
    for name in ("a", "b"):
        (home / name).write_bytes(TEXT)
    create_key(str(home / "there.json"), "default")
    succeed("encrypt", "a")
    to = ("--to-kms", "local", "--to-kms-property", f"kms.local.keyring={home}/there.json")
    # One name in two keyrings: which of them wrapped it is found out.
    assert (
        "is already wrapped"
        not in succeed("key", "rewrap", "a.ags1.keys", *to, "--to-key", "default").stdout
    )
    assert (
        "is already wrapped"
        in succeed("key", "rewrap", "a.ags1.keys", *to, "--to-key", "default").stdout
    )
    succeed("verify", "a.ags1", "--keyring", "there.json")
    assert "another key of that name" in fail(5, "verify", "a.ags1")
    to_memory = [argument.replace("--kms", "--to-kms") for argument in MEMORY]
    arguments = ["key", "rewrap", "a.ags1.keys", "--keyring", "there.json", *to_memory]
    assert "--to-key" in fail(2, *arguments)
    assert run(*arguments, "--to-key", "keyA").exit_code == 0
    assert run("verify", "a.ags1", *MEMORY).exit_code == 0
    assert "'none'" in run(*arguments, "--to-key", "none").stderr
    assert run("verify", "a.ags1", *MEMORY).exit_code == 0


def test_a_sidecars_word_for_its_master_key_is_not_taken(home: Path) -> None:
    # Or the old master key would be destroyed, and the file's key with it.
    (home / "a").write_bytes(TEXT)
    succeed("keygen", "--name", "new")
    succeed("encrypt", "a")
    sidecar = home / "a.ags1.keys"
    text = sidecar.read_text()
    relabelled = text.replace('"encrypted-by-id": "default"', '"encrypted-by-id": "new"')
    assert relabelled != text
    sidecar.write_text(relabelled)
    assert "does not open the wrapped key" in fail(5, "key", "rewrap", ".", "--to-key", "new")
    assert sidecar.read_text() == relabelled
    sidecar.write_text(text)
    succeed("key", "rewrap", ".", "--to-key", "new")
    assert "is already wrapped" in succeed("key", "rewrap", ".", "--to-key", "new").stdout


@pytest.mark.parametrize("damaged", ["timestamp", "file key"])
@pytest.mark.parametrize("to_key", ["new", "default", None])
def test_a_sidecar_that_opens_nothing_is_not_rewrapped(
    home: Path, damaged: str, to_key: str | None
) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("keygen", "--name", "new")
    succeed("encrypt", "a")
    document = json.loads((home / "a.ags1.keys").read_bytes())
    kek, file_key = document["encryption-keys"]
    if damaged == "timestamp":
        kek["properties"]["KEY_TIMESTAMP"] = "1"
    else:
        sealed = bytearray(base64.b64decode(file_key["encrypted-key-metadata"]))
        sealed[-1] ^= 1
        file_key["encrypted-key-metadata"] = base64.b64encode(sealed).decode()
    (home / "a.ags1.keys").write_text(json.dumps(document))
    before = (home / "a.ags1.keys").read_bytes()
    to = () if to_key is None else ("--to-key", to_key)
    assert "a.ags1.keys: " in fail(7, "key", "rewrap", "a.ags1.keys", *to)
    assert (home / "a.ags1.keys").read_bytes() == before


def test_a_sidecar_of_two_master_keys_is_rewrapped_whole(home: Path) -> None:
    # A replacement that was cut short leaves such a one.
    for name in ("a", "b"):
        (home / name).write_bytes(name.encode())
        succeed("keygen", "--name", name)
        succeed("encrypt", name, "--key", name)
    both = read_sidecar("a.ags1.keys").with_keys_of(read_sidecar("b.ags1.keys"))
    write_sidecar("both", both)
    assert "name one with --to-key" in fail(5, "key", "rewrap", "both")
    assert "not among" in fail(5, "key", "rewrap", "both", "--to-key", "default", "--key", "a")
    assert read_sidecar("both") == both
    # The key to wrap under is one to accept, too.
    succeed("key", "rewrap", "both", "--to-key", "b", "--key", "a")
    succeed("key", "rewrap", "both", "--to-key", "default")
    for name in ("a", "b"):
        opened = succeed("cat", f"{name}.ags1", "--sidecar", "both", "--key", "default")
        assert opened.stdout == name


def test_a_failure_of_rewrapping_stops_no_other(home: Path) -> None:
    for name in ("a", "b", "c"):
        (home / name).write_bytes(TEXT)
        succeed("keygen", "--name", name)
        succeed("encrypt", name, "--key", name)
    (home / "a.ags1.keys").write_bytes(b"{")
    result = run("key", "rewrap", ".", "nope", "--to-key", "default", "--key", "c")
    assert result.exit_code == 6
    assert [master_key_of(f"{name}.ags1.keys") for name in ("b", "c")] == ["b", "default"]
    assert (home / "a.ags1.keys").read_bytes() == b"{"
    assert "a.ags1.keys: the sidecar is damaged" in result.stderr
    assert "b.ags1.keys: the wrapped key names the master key 'b'" in result.stderr
    assert "no master key 'none'" in fail(5, "key", "rewrap", ".", "--to-key", "none")
    assert "no .ags1.keys file" in fail(6, "key", "rewrap", _made(home / "empty"))
    assert "not a sidecar" in fail(5, "key", "rewrap", "a")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_sidecar_that_changes_meanwhile_is_left_alone(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("encrypt", "a")
    succeed("keygen", "--name", "new")
    old = read_sidecar("a.ags1.keys")
    succeed("encrypt", "a", "--force")
    newer = read_sidecar("a.ags1.keys")
    write_sidecar("a.ags1.keys", old, overwrite=True)

    class Replacing(LocalKms):
        def wrap_key(self, key: bytes, key_id: str) -> bytes:
            # As another process would, which encrypts the file anew.
            write_sidecar("a.ags1.keys", newer, overwrite=True)
            return super().wrap_key(key, key_id)

    with pytest.raises(Exception, match="changed the sidecar meanwhile"):
        wrap_anew("a.ags1.keys", how(Replacing(), "new"))
    assert read_sidecar("a.ags1.keys") == newer


def how(kms: LocalKms, master_key_id: str | None) -> Rewrapping:
    return Rewrapping(Keychain(kms, ""), master_key_id, None, kms, KekCache(kms), False, True)


@pytest.mark.slow_variants(r"(False-True|True-False)")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("crash", [False, True])
def test_no_crash_of_rewrapping_loses_a_key(home: Path, after: bool, crash: bool) -> None:
    (home / "a").write_bytes(TEXT)
    succeed("keygen", "--name", "new")
    succeed("encrypt", "a")
    first = read_sidecar("a.ags1.keys")
    seen = set()
    for number in range(1, 100):
        write_sidecar("a.ags1.keys", first, overwrite=True)
        kms = LocalKms()
        kms.names()
        child = os.fork()
        if child == 0:
            act = functools.partial(os._exit, 9) if crash else interrupt
            patch = at_step(number, after=after, act=act, crash=crash)
            finished = False
            with contextlib.suppress(Interrupted):
                wrap_anew("a.ags1.keys", how(kms, "new"))
                finished = True
            patch.undo()
            os._exit(0 if finished else 9)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        succeed("verify", "a.ags1")
        seen.add(master_key_of("a.ags1.keys"))
        if not crash:
            assert not list(home.glob(".ags1-*"))
        if code == 0:
            break
    else:
        pytest.fail("it never came to an end")
    assert seen == {"default", "new"}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_rewrapping_can_be_repeated(
    home: Path, number: signal.Signals, code: int
) -> None:
    for name in "abcde":
        (home / name).write_bytes(TEXT)
        succeed("encrypt", name)  # each with a KEK of its own
    create_key(str(home / "there.json"), "new")
    to = (
        "--to-kms-property",
        "encryption.kms-impl=cli.kms_impls:WaitingKms",
        "--to-kms-property",
        f"test.keyring={home}/there.json",
        "--to-kms-property",
        f"test.marker={home}/marker",
    )
    # One call before the work, then one for each sidecar.
    waiting = (*to, "--to-kms-property", "test.wait=4", "--to-key", "new")
    with start("key", "rewrap", ".", *waiting, stdout=-1) as process:
        wait_for((home / "marker").exists)
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors == (b"ags1: interrupted\n" if number == signal.SIGINT else b"")
    assert out.count(b"wrapped under new") == 2
    found = [master_key_of(f"{name}.ags1.keys") for name in "abcde"]
    assert found == ["new"] * 2 + ["default"] * 3
    assert not list(home.glob(".ags1-*"))
    to_there = ("--to-kms", "local", "--to-kms-property", f"kms.local.keyring={home}/there.json")
    done = succeed("key", "rewrap", ".", *to_there, "--to-key", "new").stdout
    assert done.count("is already wrapped") == 2
    succeed("verify", ".", "--quiet", "--keyring", "there.json")


def test_completion_knows_the_kmss() -> None:
    environment = python_environment() | {
        "_AGS1_COMPLETE": "bash_complete",
        "COMP_WORDS": "ags1 encrypt --kms a",
        "COMP_CWORD": "3",
    }
    code, out, _ = execute(env=environment, anew=True)
    assert (code, out.split()) == (0, [b"plain,aws", b"plain,azure"])


# -- nothing secret is said


def test_no_key_is_in_any_output(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (home / name).write_bytes(TEXT)
    monkeypatch.setenv("AGS1_DEBUG", "1")
    said = b""
    secrets = [*KEYS.values()]
    succeed("key", "create", "new")
    keyring = Path(os.environ["XDG_CONFIG_HOME"]) / "ags1" / "keyring.json"
    for entry in json.loads(keyring.read_bytes())["keys"].values():
        secrets += [base64.b64decode(version["key"]) for version in entry["versions"].values()]
    impl = ("--kms-property", "encryption.kms-impl=cli.kms_impls:BrokenKms")
    secret_property = ("--kms-property", f"kms.vault.token={KEYS['keyA'].hex()}")
    to_memory = [argument.replace("--kms", "--to-kms") for argument in MEMORY]
    for arguments in [
        ["encrypt", "a", "--json", "--key", "keyA", *MEMORY],
        ["encrypt", "b", "--json"],
        ["verify", "a.ags1", "--json", *MEMORY],
        ["verify", "b.ags1", "--json", *MEMORY],
        ["verify", "a.ags1", "--json"],
        ["decrypt", "a.ags1", "-o", "x", "--json", *MEMORY],
        ["inspect", "a.ags1", "--json", "--blocks"],
        ["key", "list", "--json"],
        ["key", "export-public-info"],
        ["key", "rotate", "new", "--json"],
        ["key", "rewrap", "b.ags1.keys", "--to-key", "new", "--json"],
        ["key", "rewrap", "b.ags1.keys", "--to-key", "keyB", "--json", *to_memory],
        ["verify", "b.ags1", "--key", "keyB", *impl, *secret_property],
        ["encrypt", "a", "-f", "--key", "keyB", *impl, *secret_property],
        ["encrypt", "a", "--kms", "vault", *secret_property],
        [
            "encrypt",
            "a",
            "--kms",
            "memory",
            "--key",
            "a",
            "--kms-property",
            f"encryption.kms.key.a={KEYS['keyA'].hex()}0",
        ],
        ["encrypt", "a", "--kms-property", KEYS["keyA"].hex()],
        ["info", "--seconds", "0", "--json"],
    ]:
        if "--json" in arguments:
            result = run(*arguments)
            said += result.stdout_bytes + result.stderr_bytes
        else:  # what a process of its own prints when it fails
            _, out, errors = execute(*arguments)
            said += out + errors
    for path in ("a.ags1.keys", "b.ags1.keys"):
        kms = MemoryKms({f"encryption.kms.key.{name}": key.hex() for name, key in KEYS.items()})
        for entry in read_sidecar(path).kek_entries:
            assert entry.encrypted_by_id in KEYS
            secrets.append(kms.unwrap_key(entry.encrypted_key_metadata, entry.encrypted_by_id))
        secrets.append(Keychain(kms, "").open(path, None).encryption_key)
    assert len(secrets) == 2 + 2 + 2 * 2
    assert b"failed in unwrap_key: RuntimeError" in said
    assert b"raise self.error(" in said
    for secret in secrets:
        for spelling in spellings(bytes(secret)):
            assert spelling not in said


# -- AWS


@pytest.fixture(scope="module")
def aws_endpoint() -> Iterator[str]:
    pytest.importorskip("boto3")
    pytest.importorskip("moto.moto_server.threaded_moto_server")
    aws = pytest.importorskip("aws_server")
    with aws.aws_server() as endpoint:
        yield endpoint


@pytest.fixture
def aws(aws_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    import aws_server

    for name, value in aws_server.dummy_environment(aws_endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AGS1_KMS_TYPE", "aws")
    monkeypatch.setenv("AGS1_KMS_CLIENT__REGION", aws_server.REGION)
    monkeypatch.setenv("AGS1_KMS_KMS__ENDPOINT", aws_endpoint)
    return aws_endpoint


def create_in_aws() -> tuple[str, str]:
    """Make a master key under a new alias; return the alias and the key's ARN."""
    import boto3

    alias = f"alias/t{os.urandom(6).hex()}"
    client = boto3.client("kms", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    made = client.create_key()["KeyMetadata"]
    client.create_alias(AliasName=alias, TargetKeyId=made["KeyId"])
    return alias, made["Arn"]


def test_aws_from_the_environment(home: Path, aws: str) -> None:
    import boto3

    for name in ("a", "b"):
        (home / name).write_bytes(TEXT)
    alias, arn = create_in_aws()
    assert "--key" in fail(2, "encrypt", "a")
    code, out, errors = execute("encrypt", "a", "b", "--key", alias, "--json")
    assert (code, errors) == (0, b"")
    assert [json.loads(line)["master_key_id"] for line in out.splitlines()] == [alias] * 2
    # The service itself opens the KEK.
    entry = read_sidecar("a.ags1.keys").kek_entries[0]
    client = boto3.client("kms", endpoint_url=aws)
    opened = client.decrypt(CiphertextBlob=entry.encrypted_key_metadata)
    assert (opened["KeyId"], len(opened["Plaintext"])) == (arn, 32)
    assert "another user's" in fail(2, "verify", "a.ags1")
    succeed("verify", "a.ags1", "b.ags1", "--key", alias)
    succeed("verify", "a.ags1", "--key", arn)
    assert "not among" in fail(5, "verify", "a.ags1", "--key", create_in_aws()[1])
    assert run("encrypt", "a", "-f", "--key", "alias/none").exit_code == 5


def test_an_alias_that_was_pointed_at_a_new_key(home: Path, aws: str) -> None:
    import boto3

    (home / "a").write_bytes(TEXT)
    (alias, old), (_, new) = create_in_aws(), create_in_aws()
    succeed("encrypt", "a", "--key", alias)
    client = boto3.client("kms", endpoint_url=aws)
    client.update_alias(AliasName=alias, TargetKeyId=new.rpartition("/")[2])
    for command in (("verify", "a.ags1"), ("key", "rewrap", ".")):
        fail(5, *command, "--key", alias)
    succeed("verify", "a.ags1", "--key", alias, "--key", old)
    succeed("key", "rewrap", ".", "--key", alias, "--key", old)
    [kek] = read_sidecar("a.ags1.keys").kek_entries
    assert client.decrypt(CiphertextBlob=kek.encrypted_key_metadata)["KeyId"] == new
    assert (kek.encrypted_by_id, kek.properties["ags1.master-key"]) == (alias, new)
    assert succeed("cat", "a.ags1", "--key", alias).stdout_bytes == TEXT


def test_no_key_is_wrapped_under_a_name_that_only_the_sidecar_gives(home: Path, aws: str) -> None:
    """Whoever can write a sidecar could name a key of their own, and read what is wrapped."""
    (home / "a").write_bytes(TEXT)
    (alias, _), (_, theirs) = create_in_aws(), create_in_aws()
    succeed("encrypt", "a", "--key", alias)
    sidecar = home / "a.ags1.keys"
    sidecar.write_text(sidecar.read_text().replace(alias, theirs))
    before = sidecar.read_bytes()
    succeed("verify", "a.ags1", "--key", alias)
    assert f"'{theirs}', which is not among" in fail(5, "key", "rewrap", ".", "--key", alias)
    assert sidecar.read_bytes() == before
    succeed("key", "rewrap", ".", "--key", alias, "--to-key", alias)
    assert master_key_of(sidecar) == alias


def test_aws_from_a_configuration_file(
    home: Path, aws: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "a").write_bytes(TEXT)
    alias, arn = create_in_aws()
    for name in [name for name in os.environ if name.startswith("AGS1_KMS_")]:
        monkeypatch.delenv(name)
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "ags1" / "config.ini"
    config.write_text(f"[kms]\ntype = aws\nkey = {arn}\nkms.endpoint = {aws}\n")
    succeed("encrypt", "a")
    assert master_key_of("a.ags1.keys") == arn
    assert succeed("cat", "a.ags1").stdout_bytes == TEXT
    # For the local keyring the file's key does not apply.
    succeed("encrypt", "a", "-f", "--kms", "local")
    assert master_key_of("a.ags1.keys") == "default"
    assert alias != arn


def test_from_a_keyring_to_aws_and_back(home: Path, aws: str) -> None:
    (home / "a").write_bytes(TEXT)
    alias, _ = create_in_aws()
    succeed("encrypt", "a", "--kms", "local")
    move = ["key", "rewrap", "a.ags1.keys", "--kms", "local", "--to-kms", "aws", "--to-key", alias]
    assert "wrapped under" in succeed(*move).stdout
    assert "is already wrapped" in succeed(*move).stdout
    succeed("verify", "a.ags1", "--key", alias)
    succeed("key", "rewrap", "a.ags1.keys", "--key", alias)
    back = ["key", "rewrap", "a.ags1.keys", "--to-kms", "local", "--to-key", "default"]
    assert "--key" in fail(2, *back)
    succeed(*back, "--key", alias)
    succeed("verify", "a.ags1", "--kms", "local")


def test_an_unreachable_aws_is_asked_once(
    home: Path, aws: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (home / name).write_bytes(TEXT)
    alias, _ = create_in_aws()
    succeed("encrypt", "a", "b", "c", "--key", alias)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AGS1_KMS_KMS__ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.setenv("AGS1_KMS_KMS__MAX_ATTEMPTS", "1")
        result = run("verify", "a.ags1", "b.ags1", "c.ags1", "--key", alias)
        assert result.exit_code == 5
        assert result.stderr.count("\n") == 2
        assert "2 more files not tried" in result.stderr
        fail(5, "encrypt", "a", "b", "-f", "--key", alias)
