"""Which KMS the command line means: options, environment and configuration file."""

from __future__ import annotations

import importlib
import json
import os
import stat
import sys
import traceback
from pathlib import Path

import click
import pytest

from ags1.cli.kms.master_keys import layer_of_options
from ags1.errors import ArgumentError, KmsAccessDeniedError, KmsConfigurationError
from ags1.host import private_file
from ags1.keys import read_sidecar
from ags1.kms import create_key
from ags1.kms.settings import (
    Layer,
    file_path,
    from_environment,
    from_options,
    from_text,
    read_file,
    resolve,
    unknown_variables,
)

from .test_files import TEXT, execute, fail, home, run, succeed

__all__ = ["home"]

NOTHING = Layer()
TYPE, IMPL = "encryption.kms-type", "encryption.kms-impl"
ARN = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
HEX = "00112233445566778899aabbccddeeff"
MEMORY_KEY = f"encryption.kms.key.k={HEX}"


# -- one place


def test_the_environment_follows_pyicebergs_rule() -> None:
    layer = from_environment(
        {
            "AGS1_KMS_TYPE": "aws",
            "AGS1_KMS_KEY": ARN,
            "AGS1_KMS_CLIENT__REGION": "eu-west-1",
            "AGS1_KMS_KMS__READ_TIMEOUT_MS": "500",
            "AGS1_KMS_CLIENT__ASSUME_ROLE__ARN": "x",
            "AGS1_KMS_KMS__ENDPOINT": "",
            "AGS1_DEBUG": "1",
            "HOME": "/",
        }
    )
    assert layer.key_id == ARN
    assert dict(layer.properties) == {
        TYPE: "aws",
        "client.region": "eu-west-1",
        "kms.read-timeout-ms": "500",
        "client.assume-role.arn": "x",
    }
    assert from_environment({"AGS1_KMS_IMPL": "a.b:C"}).kind == "a.b:C"


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("AGS1_KMS_REGION", "AGS1_KMS_CLIENT__REGION"),
        ("AGS1_KMS___REGION", "AGS1_KMS_CLIENT__REGION"),
        ("AGS1_KMS_KEYS", "AGS1_KMS_KEY"),
        ("AGS1_KMS_VAULT_URL", "AGS1_KMS_KMS__VAULT__URL"),
        ("AGS1_KMS_FOO", None),
        ("AGS1_KMS_", None),
        ("AGS1_KEYRNG", "AGS1_KEYRING"),
        ("AGS1_FOO", None),
    ],
)
def test_an_unknown_variable_warns_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, near: str | None
) -> None:
    (home / "a").write_bytes(TEXT)
    known = {"AGS1_KMS_TYPE": "local", "AGS1_KMS_KEY": "default", "AGS1_KMS_CLIENT__REGION": "x"}
    assert unknown_variables({variable: "s3cr3t", **known}) == {variable: near}
    assert unknown_variables({variable: "", **known}) == {}
    assert from_environment({variable: "s3cr3t"}) == NOTHING
    monkeypatch.setenv(variable, "s3cr3t")
    for command in (
        "encrypt a",
        "verify a.ags1",
        f"key rewrap a.ags1.keys --to-kms memory --to-kms-property {MEMORY_KEY} --to-key k",
    ):
        told = run(*command.split()).stderr
        assert told.count(f"ags1: the environment variable {variable} is unknown and ignored") == 1
        assert (near or "ags1 --help") in told
        assert "s3cr3t" not in told
    # What needs no KMS does not look.
    for command in ("inspect a.ags1", "completion bash", "--version", "encrypt --help"):
        succeed(*command.split())


def test_two_variables_for_one_property_are_told() -> None:
    with pytest.raises(KmsConfigurationError, match="two environment variables"):
        from_environment({"AGS1_KMS_CLIENT__REGION": "a", "AGS1_KMS_client__region": "b"})


def test_the_file_takes_values_as_they_are() -> None:
    layer = from_text(
        f"""
# a comment
[kms]
type = aws
key={ARN}
kms.endpoint = https://kms.eu-west-1.amazonaws.com:443/?a=b
kms.local.passphrase = 100%% # not; a %(comment)s
encryption.kms.key.KeyA = {HEX}
client.region =
"""
    )
    assert layer.key_id == ARN
    assert dict(layer.properties) == {
        TYPE: "aws",
        "kms.endpoint": "https://kms.eu-west-1.amazonaws.com:443/?a=b",
        "kms.local.passphrase": "100%% # not; a %(comment)s",
        "encryption.kms.key.KeyA": HEX,
    }
    assert from_text("") == from_text("[kms]\n") == NOTHING


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[kmss]\ntype = aws", r"section \[kmss\] is unknown"),
        ("[DEFAULT]\ntype = aws", r"section \[DEFAULT\] is unknown"),
        ("[kms]\n[kms]\n", "line 2: the section"),
        ("type = s3cr3t", "line 1: it is before"),
        ("[kms]\ntype: s3cr3t", "line 2: it does not have the form NAME = VALUE"),
        ("[kms]\nregion = s3cr3t", "'region' is unknown"),
        ("[kms]\na.b = s3cr3t\na.b = s3cr3t", "line 3: 'a.b' is set twice"),
        ("[kms]\na.b = 1\n  c.d = s3cr3t", "'a.b' continues on the next line"),
        (f"[kms]\ntype = a\n{TYPE} = s3cr3t", "two names"),
    ],
)
def test_mistakes_in_the_file_are_told_without_values(text: str, message: str) -> None:
    with pytest.raises(KmsConfigurationError, match=message) as caught:
        from_text(text)
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3cr3t" not in str(error) + repr(error)
        error = error.__context__ or error.__cause__


def test_where_the_file_is(tmp_path: Path) -> None:
    assert file_path({"AGS1_CONFIG": "x.ini", "XDG_CONFIG_HOME": "/y"}) == ("x.ini", True)
    assert file_path({"XDG_CONFIG_HOME": "/y"}) == ("/y/ags1/config.ini", False)
    default = os.path.expanduser("~/.config/ags1/config.ini")
    assert file_path({"AGS1_CONFIG": "", "XDG_CONFIG_HOME": "y"}) == (default, False)


def test_only_a_file_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    assert read_file({"XDG_CONFIG_HOME": str(tmp_path)}) == NOTHING
    with pytest.raises(KmsConfigurationError, match="AGS1_CONFIG names a file") as caught:
        read_file({"AGS1_CONFIG": str(tmp_path / "none")})
    assert caught.value.file == str(tmp_path / "none")
    for bad in (tmp_path, tmp_path / "binary", tmp_path / "large"):
        if bad.name == "binary":
            bad.write_bytes(b"\xff")
        if bad.name == "large":
            bad.write_bytes(bytes(2 << 20))
        with pytest.raises(KmsConfigurationError):
            read_file({"AGS1_CONFIG": str(bad)})


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "config.ini"
    path.write_text("[kms]\ntype = aws\n")
    path.chmod(mode)
    with pytest.raises(KmsAccessDeniedError, match="others can write"):
        read_file({"AGS1_CONFIG": str(path)})
    path.chmod(0o644)
    assert read_file({"AGS1_CONFIG": str(path)}).kind == "aws"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("mode", [0o400, 0o644])
def test_a_file_of_another_user_is_refused(tmp_path: Path, mode: int) -> None:
    # As with sudo that keeps HOME: its owner would choose keys, and code, for us.
    path = tmp_path / "ags1" / "config.ini"
    path.parent.mkdir()
    path.write_text("[kms]\ntype = aws\n")
    path.chmod(mode)
    assert read_file({"XDG_CONFIG_HOME": str(tmp_path)}).kind == "aws"
    os.chown(path, 12345, 12345)
    for environ in ({"XDG_CONFIG_HOME": str(tmp_path)}, {"AGS1_CONFIG": str(path)}):
        with pytest.raises(KmsAccessDeniedError, match="uid 12345"):
            read_file(environ)


def test_the_mode_is_that_of_the_file_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, private = tmp_path / "config.ini", tmp_path / "private"
    for one, mode in ((path, 0o644), (private, 0o600)):
        one.write_text("[kms]\ntype = vault\nkms.vault.token = s3cr3t\n")
        one.chmod(mode)
    read = private_file.read

    def read_and_replace(name: str, size_limit: int) -> tuple[bytes, os.stat_result]:
        answer = read(name, size_limit)
        if private.exists():
            private.replace(path)
        return answer

    monkeypatch.setattr(private_file, "read", read_and_replace)
    with pytest.raises(KmsAccessDeniedError, match="open to others"):
        read_file({"AGS1_CONFIG": str(path)})


@pytest.mark.parametrize(
    "secret",
    ["kms.vault.token", "encryption.kms.key.a", "client.secret-access-key", "kms.local.passphrase"],
)
def test_a_file_with_a_secret_is_private(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "config.ini"
    path.write_text(f"[kms]\n{secret} = s3cr3t\n")
    path.chmod(0o640)
    with pytest.raises(KmsAccessDeniedError, match="open to others") as caught:
        read_file({"AGS1_CONFIG": str(path)})
    assert "s3cr3t" not in str(caught.value)
    allowed = {"AGS1_KMS_KMS__ALLOW_READABLE_FILES": "true"}
    assert read_file({"AGS1_CONFIG": str(path), **allowed}).properties == {secret: "s3cr3t"}
    path.chmod(0o600)
    layer = read_file({"AGS1_CONFIG": str(path)})
    assert layer.properties == {secret: "s3cr3t"}
    assert "s3cr3t" not in repr(layer)
    assert "s3cr3t" not in repr(resolve(layer, NOTHING, NOTHING))


# -- all places together


def test_nothing_said_is_the_local_keyring() -> None:
    settings = resolve(NOTHING, NOTHING, NOTHING)
    assert dict(settings.properties) == {TYPE: "local"}
    assert (settings.is_local, settings.key_id, settings.kms_name) == (True, "default", "local")


def test_options_beat_the_environment_which_beats_the_file() -> None:
    file = Layer(
        {
            TYPE: "aws",
            "client.region": "file",
            "client.profile-name": "file",
            "client.factory": "file",
        },
        "file",
    )
    environment = Layer({"client.region": "environment", "client.profile-name": "environment"})
    options = Layer({TYPE: "AWS", "client.region": "option"})
    settings = resolve(options, environment, file)
    assert dict(settings.properties) == {
        TYPE: "AWS",
        "client.region": "option",
        "client.profile-name": "environment",
        "client.factory": "file",
    }
    assert settings.key_id == "file"
    assert resolve(options, Layer({}, "environment"), file).key_id == "environment"


def test_what_is_meant_for_another_kms_is_left_out() -> None:
    file = Layer({TYPE: "aws", "client.region": "file"}, "file")
    environment = Layer({TYPE: "vault", "kms.vault.url": "environment"}, "environment")
    left = resolve(Layer({TYPE: "aws"}), environment, file)
    # The environment hides the file, and is hidden itself.
    assert (dict(left.properties), left.key_id) == ({TYPE: "aws"}, None)
    left = resolve(NOTHING, environment, file)
    assert (dict(left.properties), left.key_id) == (dict(environment.properties), "environment")
    # What does not say for which KMS it is follows the next place that does.
    left = resolve(Layer({TYPE: "local"}), Layer({"client.region": "x"}, "x"), file)
    assert (dict(left.properties), left.key_id) == ({TYPE: "local"}, "default")
    left = resolve(Layer({TYPE: "aws"}), Layer({"client.region": "x"}, "x"), file)
    assert (left.properties["client.region"], left.key_id) == ("x", "x")
    left = resolve(Layer({TYPE: "aws"}), Layer({"client.region": "x"}, "x"), NOTHING)
    assert (left.properties["client.region"], left.key_id) == ("x", "x")
    # A type and an implementation are two KMSs, and only one of them is kept.
    left = resolve(Layer({TYPE: "aws"}), NOTHING, Layer({IMPL: "a:B"}, "x"))
    assert (dict(left.properties), left.key_id) == ({TYPE: "aws"}, None)


def test_contradicting_options_are_wrong_usage() -> None:
    for kms_type, properties, keyring in [
        ("aws", (), "k"),
        (None, ((TYPE, "aws"),), "k"),
        (None, ((IMPL, "a:B"),), "k"),
        ("aws", ((TYPE, "gcp"),), None),
        ("aws", ((IMPL, "a:B"),), None),
        (None, (("kms.local.keyring", "j"),), "k"),
        (None, (("a.b", "s3cr3t"), ("a.b", "s3cr3t")), None),
    ]:
        with pytest.raises(click.UsageError) as caught:
            layer_of_options(kms_type, properties, keyring)
        assert "s3cr3t" not in caught.value.format_message()
    layer = layer_of_options("local", (), "k")
    assert dict(layer.properties) == {TYPE: "local", "kms.local.keyring": "k"}


def test_the_keyring_of_the_environment_beats_the_files() -> None:
    file = Layer({"kms.local.keyring": "file"})
    environment = from_environment({"AGS1_KEYRING": "environment"})
    assert resolve(NOTHING, environment, file).properties["kms.local.keyring"] == "environment"
    options = layer_of_options(None, (), "option")
    assert resolve(options, environment, file).properties["kms.local.keyring"] == "option"
    assert "AGS1_KEYRING" not in str(from_environment({"AGS1_KMS_TYPE": "aws"}).properties)


def test_a_home_folder_is_that_of_the_process_that_opens_the_keyring() -> None:
    """The options of a data source travel to executors, whose user has another home."""
    settings = resolve(from_options({"keyring": "~/k.json"}), NOTHING, NOTHING)
    assert settings.properties["kms.local.keyring"] == "~/k.json"
    here = settings.of_this_user().properties["kms.local.keyring"]
    assert here == os.path.expanduser("~/k.json")


# -- the program


def configure(text: str, mode: int = 0o600) -> Path:
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "ags1" / "config.ini"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_program_heeds_the_file_the_environment_and_the_options(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "a").write_bytes(TEXT)
    for name in ("file", "environment", "option"):
        create_key(str(home / f"{name}.json"), name)
    configure(f"[kms]\nkms.local.keyring = {home}/file.json\nkey = file\n")

    def used() -> str | None:
        succeed("encrypt", "a", "--force")
        return read_sidecar("a.ags1.keys").kek_entries[0].encrypted_by_id

    assert used() == "file"
    succeed("keygen", "--name", "from-keygen")
    assert json.loads((home / "file.json").read_bytes())["keys"].keys() == {"file", "from-keygen"}
    monkeypatch.setenv("AGS1_KMS_KMS__LOCAL__KEYRING", str(home / "environment.json"))
    monkeypatch.setenv("AGS1_KMS_KEY", "environment")
    assert used() == "environment"
    succeed("verify", "a.ags1")
    options = ("--keyring", home / "option.json", "--key", "option")
    succeed("encrypt", "a", "--force", *options)
    succeed("verify", "a.ags1", *options)
    assert "no master key 'option'" in fail(5, "verify", "a.ags1")


def test_a_configuration_can_name_code_only_for_its_owner(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "a").write_bytes(TEXT)
    (home / "trap.py").write_text("open('sprung', 'w').close()")
    monkeypatch.syspath_prepend(home)
    path = configure("[kms]\nimpl = trap:Kms\nkey = a\n", 0o646)
    message = fail(5, "encrypt", "a")
    assert str(path) in message
    assert "others can write" in message
    assert not (home / "sprung").exists()
    path.chmod(0o600)
    assert "trap:Kms" in fail(5, "encrypt", "a")
    assert (home / "sprung").exists()


def test_a_byte_order_mark_is_no_part_of_a_configuration(home: Path) -> None:
    configure("\ufeff[kms]\ntype = memory\nkey = k\n")
    assert "encryption.kms.key" in fail(5, "cat", "a.ags1", "--key", "k")


def test_a_bad_configuration_is_one_line_that_names_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "a").write_bytes(TEXT)
    path = configure("[kms]\nkms.vault.token: s3cr3t\n")
    message = fail(5, "encrypt", "a")
    assert f"{path}: line 2" in message
    assert "s3cr3t" not in message
    path.unlink()
    monkeypatch.setenv("AGS1_KMS_TYPE", "vsult")
    assert "'vsult'" in fail(5, "encrypt", "a", "--key", "a")
    monkeypatch.setenv("AGS1_KMS_TYPE", "vault")
    assert "--key" in fail(2, "encrypt", "a")
    monkeypatch.setenv("AGS1_KMS_IMPL", "a:B")
    assert "both" in fail(5, "encrypt", "a", "--key", "a")
    # What needs no KMS asks for no configuration.
    assert run("inspect", "a").exit_code == 4
    assert run("--help").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kms", "vsult"], "they are aws, azure, file, gcp, local, memory, vault"),
        (["--kms", "aws", "--keyring", "k"], "--keyring is for --kms local"),
        (["--kms-property", "s3cr3t"], "NAME=VALUE"),
        (["--kms-property", "region=s3cr3t"], "NAME=VALUE"),
        (["--kms-property", "a.b=s3cr3t", "--kms-property", "a.b=s3cr3t"], "a.b is given twice"),
    ],
)
@pytest.mark.parametrize(
    "command", ["encrypt", "decrypt", "cat", "verify", "key list", "key rotate", "key rewrap"]
)
def test_wrong_options_are_wrong_usage_everywhere(
    home: Path, command: str, arguments: list[str], message: str
) -> None:
    (home / "a.ags1").write_bytes(b"")
    operand = [] if command == "key list" else ["a.ags1"]
    said = fail(2, *command.split(), *operand, *arguments)
    assert message in said
    assert "s3cr3t" not in said


def test_info_tells_which_kms_is_configured(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = configure(f"[kms]\ntype = aws\nkey = {ARN}\n")
    facts = json.loads(succeed("info", "--seconds", "0", "--json").stdout)
    assert facts["kms"] == {"configuration": str(path), "kms": "aws", "key": ARN}
    assert f"aws, master key {ARN}" in succeed("info", "--seconds", "0").stdout
    path.write_text("[kms]\ntype = vualt\n")
    wrong = run("info", "--seconds", "0", "--json")
    assert wrong.exit_code == 5
    assert "no KMS type 'vualt'" in json.loads(wrong.stdout)["kms"]["error"]
    assert "unknown" in run("info", "--seconds", "0").stdout
    path.write_text("[kms]\ntype = Vault\n")
    assert "error" not in json.loads(succeed("info", "--seconds", "0", "--json").stdout)["kms"]
    path.write_text("nonsense")
    wrong = run("info", "--seconds", "0", "--json")
    assert wrong.exit_code == 5
    assert str(path) in json.loads(wrong.stdout)["kms"]["error"]
    monkeypatch.setenv("AGS1_KMS_KMS__LOCAL__KEYRING", "/k.json")
    path.unlink()
    facts = json.loads(succeed("info", "--seconds", "0", "--json").stdout)
    assert facts["keyring"] == {"path": "/k.json", "exists": False}


def test_the_keyring_stays_private(home: Path) -> None:
    succeed("keygen", "--keyring", home / "new" / "k.json")
    assert stat.S_IMODE((home / "new" / "k.json").stat().st_mode) == 0o600


def test_an_unknown_property_is_refused_with_the_nearest_name(home: Path) -> None:
    (home / "a").write_bytes(b"text")
    wrong = ("--kms-property", "client.regon=x")
    for command in (["encrypt", "a"], ["verify", "a.ags1"], ["key", "list"]):
        said = fail(5, *command, *wrong)
        assert "'client.regon' is unknown: did you mean 'client.region'?" in said
    assert "no built-in KMS has it" in fail(5, "encrypt", "a", "--kms-property", "x.y=z")
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "ags1" / "config.ini"
    config.parent.mkdir(exist_ok=True)
    config.write_text("[kms]\nkms.vault.ulr = http://127.0.0.1\n")
    assert "did you mean 'kms.vault.url'?" in fail(5, "encrypt", "a")
    assert not (home / "a.ags1").exists()
    config.write_text("[kms]\nclient.assume-role.tags.team = x\n")
    succeed("encrypt", "a")


def test_a_secret_among_the_options_is_warned_of(home: Path) -> None:
    (home / "a").write_bytes(TEXT)
    told = run(
        *("encrypt", "a", "--kms", "vault", "--key", "k", "--kms-property"),
        *("kms.vault.url=https://127.0.0.1:1", "--kms-property", "kms.vault.token=hvs.s3cr3t"),
        *("--kms-property", "kms.max-attempts=1"),
    ).stderr
    assert "--kms-property kms.vault.token: other users" in told
    assert "kms.vault.token-file" in told
    assert "s3cr3t" not in told


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"catalog:\n\tdefault: {", ", line 2: "),
        (b"catalog: {a: b}\n", ", line 1: "),
        (b"catalog:\n  a:\n    uri: s3cr3t\n    uri: b\n", ", line 4: Duplicate key 'uri'"),
        (b"catalog:\n  a\n    uri: x\n", ", line 3: "),
        (b"catalog\n", ": it is not a mapping"),
        (b"catalog:\n  a: s3cr3t\n", ": Configuration path catalogs.a needs to be an object"),
        (b"catalog:\n  - a\n", ": Catalog configurations needs to be an object: a"),
        (b"\xff\xfe", ": it is not UTF-8"),
    ],
)
def test_a_broken_configuration_of_pyiceberg_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, line: str
) -> None:
    importlib.import_module("ags1.iceberg")  # here, once for all: it takes a second
    monkeypatch.setenv("PYICEBERG_HOME", str(home))
    path = home / ".pyiceberg.yaml"
    path.write_bytes(text)
    broken = f"PyIceberg's configuration file {path}{line}"

    def open_it() -> None:
        # PyIceberg reads its configuration when it is imported.
        for name in [*sys.modules]:
            if name.startswith(("ags1.iceberg", "pyiceberg.catalog")):
                del sys.modules[name]
        with pytest.raises(ArgumentError) as caught:
            importlib.import_module("ags1.iceberg").load_catalog("a")
        told = "".join(traceback.format_exception(caught.value))
        assert told.splitlines()[-1].startswith(f"ags1.errors.ArgumentError: {broken}")
        assert "s3cr3t" not in told

    code, _, errors = execute("table", "list", "--catalog", "a", preexec_fn=open_it)
    assert (code, errors.count(b"\n")) == (2, 1), errors.decode()
    assert f"{path}{line}" in errors.decode()
    assert b"s3cr3t" not in errors
