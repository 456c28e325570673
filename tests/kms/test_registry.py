"""Which client the properties mean, and what becomes of their values."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
from conftest import RunPython
from kms_contract import everything_said

from ags1.errors import KmsConfigurationError
from ags1.kms import LocalKms, from_properties, kms_types
from ags1.kms.client import missing_library
from ags1.kms.endpoints import ALLOW_PLAINTEXT_HTTP, InsecureEndpointWarning
from ags1.kms.memory import MemoryKms
from ags1.kms.properties import Properties

BUILT_IN = ["aws", "azure", "gcp", "local", "memory", "vault"]
MEMORY = {"encryption.kms.key.m": "00" * 16}

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")


class ThirdParty:
    """A client of somebody else."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = properties

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ThirdParty:
        return cls(properties)

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        return key

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        return wrapped_key

    @property
    def supports_key_generation(self) -> bool:
        raise AssertionError("it would have to ask the service")

    def generate_key(self, key_id: str, key_size: int) -> NoReturn:
        raise NotImplementedError

    def close(self) -> None:
        pass

    class Inner:
        @classmethod
        def from_properties(cls, properties: Mapping[str, str]) -> ThirdParty:
            return ThirdParty({**properties, "made-by": "from_properties"})


def make_third_party(properties: Mapping[str, str]) -> ThirdParty:
    raise AssertionError("nothing but from_properties is called")


class Half:
    """Wraps and unwraps, and is no client yet."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.close = self.wrap_key

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Half:
        return cls(properties)

    def wrap_key(self, key: bytes = b"", key_id: str = "") -> bytes:
        return key

    unwrap_key = wrap_key


NOT_A_CLIENT = 5


class MakesNothing:
    @staticmethod
    def from_properties(properties: Mapping[str, str]) -> None:
        return None


# ---- which client ------------------------------------------------------------------------------


def test_what_there_is() -> None:
    assert set(BUILT_IN) <= set(kms_types())
    assert kms_types() == sorted(kms_types())


@pytest.mark.parametrize("written", ["local", "LOCAL", "Local"])
def test_a_type_names_a_client_in_any_case(written: str) -> None:
    kms = from_properties({"encryption.kms-type": written, "kms.local.keyring": "/k.json"})
    assert isinstance(kms, LocalKms)
    assert kms.path == "/k.json"
    memory = from_properties({"encryption.kms-type": "MemorY", **MEMORY})
    assert isinstance(memory, MemoryKms)


@pytest.mark.parametrize("properties", [{}, {"encryption.kms-type": ""}, {"kms-type": "aws"}])
def test_without_type_and_impl_the_message_lists_the_types(properties: dict[str, str]) -> None:
    with pytest.raises(KmsConfigurationError, match="no KMS is configured") as caught:
        from_properties(properties)
    assert all(kms_type in str(caught.value) for kms_type in BUILT_IN)


def test_type_and_impl_together_are_refused_as_in_java() -> None:
    with pytest.raises(KmsConfigurationError, match="both"):
        from_properties({"encryption.kms-type": "local", "encryption.kms-impl": "m:C"})
    with pytest.raises(KmsConfigurationError, match="both"):
        from_properties(
            {
                "encryption.kms-type": "aws",
                "encryption.kms-impl": "org.apache.iceberg.aws.AwsKeyManagementClient",
            }
        )


@pytest.mark.parametrize("unknown", ["hsm", "aws ", "a\nb", "ags1.kms.local:LocalKms"])
def test_an_unknown_type_is_an_error_that_lists_the_types(unknown: str) -> None:
    with pytest.raises(KmsConfigurationError, match="it is one of") as caught:
        from_properties({"encryption.kms-type": unknown})
    assert repr(unknown) in str(caught.value)
    assert all(kms_type in str(caught.value) for kms_type in BUILT_IN)


@pytest.mark.parametrize("kms_type", BUILT_IN)
def test_javas_type_and_class_name_mean_the_same_client(kms_type: str, monkeypatch: Any) -> None:
    java = {
        "aws": "org.apache.iceberg.aws.AwsKeyManagementClient",
        "azure": "org.apache.iceberg.azure.keymanagement.AzureKeyManagementClient",
        "gcp": "org.apache.iceberg.gcp.GcpKeyManagementClient",
    }
    loaded = []

    def load(place: str) -> type[ThirdParty]:
        loaded.append(place)
        return ThirdParty

    monkeypatch.setattr("ags1.kms.registry._load", load)
    from_properties({"encryption.kms-type": kms_type})
    if kms_type in java:
        from_properties({"encryption.kms-impl": java[kms_type]})
    assert set(loaded) == {f"ags1.kms.{kms_type}:{kms_type.capitalize()}Kms"}


@pytest.mark.parametrize(
    ("impl", "made_by"),
    [
        ("kms.test_registry:ThirdParty", None),
        ("kms.test_registry:ThirdParty.Inner", "from_properties"),
    ],
)
def test_an_impl_names_python_code(impl: str, made_by: str | None) -> None:
    properties = {"encryption.kms-impl": impl, "anything": "else"}
    kms = from_properties(properties)
    assert isinstance(kms, ThirdParty)
    assert kms.properties == properties | ({"made-by": made_by} if made_by else {})


def test_a_client_has_all_of_the_protocol() -> None:
    with pytest.raises(
        KmsConfigurationError, match=r"has no supports_key_generation, generate_key$"
    ):
        from_properties({"encryption.kms-impl": "kms.test_registry:Half"})


def test_a_client_gets_a_copy_of_the_properties() -> None:
    properties = {"encryption.kms-impl": "kms.test_registry:ThirdParty"}
    kms: Any = from_properties(properties)
    kms.properties["more"] = "x"
    assert list(properties) == ["encryption.kms-impl"]


# What would run the first property as a program.
GADGETS = ["subprocess:Popen", "subprocess:run", "subprocess:call", "subprocess:check_output"]


@pytest.mark.parametrize("impl", GADGETS)
def test_an_impl_without_from_properties_is_not_called(impl: str, tmp_path: Path) -> None:
    script, marker = tmp_path / "script", tmp_path / "marker"
    script.write_text(f"#!/bin/sh\ntouch {marker}\n")
    script.chmod(0o755)
    with pytest.raises(KmsConfigurationError, match="has no method from_properties"):
        from_properties({str(script): "1", "encryption.kms-impl": impl})
    assert not marker.exists()


@pytest.mark.parametrize(
    ("impl", "message"),
    [
        ("no_such_module_of_ours:Kms", "cannot load"),
        ("ags1.kms.local:NoSuchClient", "cannot load"),
        ("ags1.kms..local:LocalKms", "form package.module:Name"),
        ("ags1.kms.local", "form package.module:Name"),
        ("ags1.kms.local:", "form package.module:Name"),
        (":LocalKms", "form package.module:Name"),
        (".local:LocalKms", "form package.module:Name"),
        ("ags1.kms.local:LocalKms:x", "form package.module:Name"),
        ("ags1.kms.local:LocalKms()", "form package.module:Name"),
        ("org.apache.iceberg.encryption.UnitestKMS", "AwsKeyManagementClient"),
        ("kms.test_registry:NOT_A_CLIENT", "has no method from_properties"),
        ("kms.test_registry:make_third_party", "has no method from_properties"),
        ("kms.test_registry:MakesNothing", "is not complete"),
        *((gadget, "has no method from_properties") for gadget in GADGETS),
    ],
)
def test_an_impl_that_cannot_be_used_is_a_configuration_error(impl: str, message: str) -> None:
    with pytest.raises(KmsConfigurationError, match=message):
        from_properties({"encryption.kms-impl": impl})


@pytest.mark.parametrize("value", [None, 5, b"aws", True])
@pytest.mark.parametrize("name", ["encryption.kms-type", "encryption.kms-impl", "kms.vault.token"])
def test_values_that_are_no_text_are_refused_without_quoting_them(name: str, value: Any) -> None:
    with pytest.raises(KmsConfigurationError, match=f"'{name}' is not text") as caught:
        from_properties({"encryption.kms-type": "local", name: value})
    assert repr(value) not in str(caught.value)


# ---- other packages' clients -------------------------------------------------------------------


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Put a distribution with entry points of ours, as pip leaves it, in a folder of its own, which
    this process imports from."""
    monkeypatch.syspath_prepend(tmp_path)

    def distribution(name: str, entry_points: str) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[ags1.kms]\n{entry_points}\n")
        (tmp_path / f"{name}_module.py").write_text(
            "class Kms:\n"
            "    def __init__(self, properties): self.properties = properties\n"
            "    @classmethod\n"
            "    def from_properties(cls, properties): return cls(properties)\n"
            "    def wrap_key(self, key, key_id): return key[::-1]\n"
            "    def unwrap_key(self, wrapped_key, key_id): return wrapped_key[::-1]\n"
            "    supports_key_generation = False\n"
            "    def generate_key(self, key_id, key_size): raise NotImplementedError\n"
            "    def close(self): pass\n"
        )

    before = set(sys.modules)
    yield distribution
    for name in set(sys.modules) - before:
        if name.endswith("_module"):
            del sys.modules[name]


def refused(kms_type: str) -> str:
    with pytest.raises(KmsConfigurationError) as caught:
        from_properties({"encryption.kms-type": kms_type})
    return str(caught.value)


def test_an_installed_package_adds_a_type(install: Any) -> None:
    install("hsm", "hsm = hsm_module:Kms\nHsm2 = hsm_module:Kms [extra]")
    assert {"hsm", "aws"} <= set(kms_types())
    assert "hsm_module" not in sys.modules
    for kms_type in ("hsm", "Hsm2"):
        properties = {"encryption.kms-type": kms_type, "a": "b"}
        kms: Any = from_properties(properties)
        assert type(kms).__module__ == "hsm_module"
        assert kms.properties == properties
    assert "hsm" in refused("other")
    assert "it is one of" in refused("hsm2")


def test_a_package_cannot_take_the_place_of_ours(install: Any) -> None:
    install("evil", "local = evil_module:Kms")
    assert kms_types().count("local") == 1
    assert type(from_properties({"encryption.kms-type": "local"})) is LocalKms
    assert "evil_module" not in sys.modules


def test_a_type_of_two_packages_is_refused(install: Any) -> None:
    install("one", "hsm = one_module:Kms\nsame = one_module:Kms")
    install("two", "hsm = two_module:Kms\nsame = one_module:Kms")
    message = refused("hsm")
    assert "one_module:Kms, two_module:Kms" in message
    assert "encryption.kms-impl" in message
    assert kms_types().count("hsm") == 1
    from_properties({"encryption.kms-type": "same"})


@pytest.mark.parametrize("place", ["broken_module", "broken_module:None_", "no_module:Kms", "a b"])
def test_a_broken_package_is_a_configuration_error(install: Any, place: str) -> None:
    install("broken", f"broken = {place}")
    assert "the KMS client" in refused("broken")


# ---- libraries that are missing ----------------------------------------------------------------


def test_a_missing_library_is_named_with_its_extra(run_python: RunPython) -> None:
    run_python(
        """
import sys
from ags1.errors import KmsConfigurationError
from ags1.kms import from_properties, kms_types

url = "https://example.vault.azure.net"
for kms_type, libraries, properties in (
    ("aws", ["boto3", "botocore"], {"client.region": "eu-central-1"}),
    ("vault", ["requests"], {"kms.vault.url": "http://127.0.0.1:1", "kms.vault.token": "t"}),
    ("gcp", ["google.cloud.kms", "google.cloud.kms_v1"], {}),
    ("azure", ["azure.keyvault.keys", "azure.identity"], {"azure.keyvault.url": url}),
):
    sys.modules.update(dict.fromkeys(libraries))
    assert kms_type in kms_types()
    try:
        from_properties({"encryption.kms-type": kms_type} | properties)
    except KmsConfigurationError as error:
        assert f"pip install 'ags1[{kms_type}]'" in str(error), error
        assert any(name in str(error) for name in libraries), error
    else:
        raise AssertionError(f"{kms_type} was made without its library")
"""
    )


def test_no_library_is_imported_before_its_client_is_made(run_python: RunPython) -> None:
    run_python(
        """
import sys
import ags1.kms
ags1.kms.kms_types()
ags1.kms.from_properties({"encryption.kms-type": "local"})
libraries = {"boto3", "botocore", "google.cloud", "grpc", "azure", "requests"}
assert not libraries & set(sys.modules)
"""
    )


@pytest.mark.parametrize("name", [None, "boto3"])
def test_why_a_library_cannot_be_imported_is_told(name: str | None) -> None:
    error = ImportError("libxyz.so: cannot open shared object file", name=name)
    assert "libxyz.so: cannot open" in str(missing_library("aws", error))


# ---- reading properties ------------------------------------------------------------------------


def test_the_first_name_that_is_given_wins() -> None:
    properties = Properties({"b": "2", "c": "3", "a": ""})
    assert properties.get("a", "b", "c") == "2"
    assert properties.require("c") == "3"
    assert properties.get("a") is properties.get("d") is None
    assert properties.number("b", default=9) == 2
    assert properties.number("a", default=9) == 9
    with pytest.raises(KmsConfigurationError, match="'d' is missing: say which"):
        properties.require("d", hint="say which")
    with pytest.raises(KmsConfigurationError, match=r"'d' is missing$"):
        properties.require("d")


@pytest.mark.parametrize("text", ["1", "100", "3600000", "007"])
def test_numbers_within_the_bounds(text: str) -> None:
    assert Properties({"n": text}).number("n", default=5) == int(text)


@pytest.mark.parametrize(
    "text",
    [
        *("0", "-1", "3600001", "9" * 13, "9" * 10_000, "1.5", "1e3", " 1", "1 ", "1\n", "+1"),
        *("1_000", "0x10", "x", "٣", "²", "true"),
    ],
)
def test_what_is_no_number_within_the_bounds_is_refused(text: str) -> None:
    with pytest.raises(KmsConfigurationError, match="'n' is not a number from 1 to 3600000"):
        Properties({"n": text}).number("n", default=5)


def test_the_time_limits_that_all_clients_have() -> None:
    properties = Properties({})
    assert properties.connect_timeout_ms == 3_000
    assert properties.read_timeout_ms == 10_000
    assert properties.max_attempts == 4
    names = ("kms.connect-timeout-ms", "kms.read-timeout-ms", "kms.max-attempts")
    properties = Properties(dict(zip(names, ("1", "2", "100"), strict=True)))
    assert properties.connect_timeout_ms == 1
    assert properties.read_timeout_ms == 2
    assert properties.max_attempts == 100
    for name, attribute in zip(
        names, ("connect_timeout_ms", "read_timeout_ms", "max_attempts"), strict=True
    ):
        for text in ("0", "-1", "forever", "3600001"):
            with pytest.raises(KmsConfigurationError, match=f"'{name}'"):
                getattr(Properties({name: text}), attribute)
    with pytest.raises(KmsConfigurationError, match="from 1 to 100"):
        _ = Properties({"kms.max-attempts": "101"}).max_attempts


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("False", False), ("", True)]
)
def test_flags(text: str, value: bool) -> None:
    assert Properties({"f": text}).flag("f", default=True) is value


@pytest.mark.parametrize("text", ["yes", "1", "0", "t", " true"])
def test_what_is_no_flag_is_refused(text: str) -> None:
    with pytest.raises(KmsConfigurationError, match="'f' is not 'true' or 'false'"):
        Properties({"f": text}).flag("f", default=True)


def test_choices() -> None:
    properties = Properties({"auth": "approle", "old-auth": "magic"})
    choices = ["token", "approle"]
    assert properties.choice("auth", default="token", choices=choices) == "approle"
    assert properties.choice("none", default="token", choices=choices) == "token"
    with pytest.raises(KmsConfigurationError, match="'old-auth' is none of 'token', 'approle'"):
        properties.choice("old-auth", default="token", choices=choices)


def test_properties_with_a_prefix() -> None:
    properties = Properties({"a.b": "1", "a.c.d": "2", "b": "3", "a": "4"})
    assert properties.with_prefix("a.") == {"b": "1", "c.d": "2"}


def test_properties_are_a_copy() -> None:
    values = {"a": "1"}
    properties = Properties(values)
    values["a"] = "2"
    assert properties.get("a") == "1"
    properties.to_pickle()["a"] = "3"
    assert properties.get("a") == "1"


# ---- endpoints without TLS ---------------------------------------------------------------------

CREDENTIALS = {
    "aws": {"client.region": "eu-west-1"},
    "vault": {"kms.vault.token": "t"},
    "gcp": {"kms.gcp.anonymous": "true"},
}
ENDPOINT = {"aws": "kms.endpoint", "vault": "kms.vault.url", "gcp": "kms.gcp.endpoint"}
LIBRARIES = {"aws": "boto3", "vault": "requests", "gcp": "google.cloud.kms_v1"}


def client_at(kms_type: str, url: str, **more: str) -> Any:
    pytest.importorskip(LIBRARIES[kms_type])
    given = {"encryption.kms-type": kms_type, ENDPOINT[kms_type]: url, **more}
    return from_properties(given | CREDENTIALS[kms_type])


@pytest.mark.parametrize("kms_type", ENDPOINT)
@pytest.mark.parametrize("url", ["http://kms.test:8080", "http://10.0.0.1", "http://127.1.test"])
def test_keys_do_not_cross_the_network_unencrypted_unless_allowed(kms_type: str, url: str) -> None:
    for refusing in ({}, {ALLOW_PLAINTEXT_HTTP: "false"}):
        with pytest.raises(KmsConfigurationError, match=rf"not https.*'{ALLOW_PLAINTEXT_HTTP}'"):
            client_at(kms_type, url, **refusing)
    with pytest.warns(InsecureEndpointWarning, match="unencrypted") as told:
        client_at(kms_type, url, **{ALLOW_PLAINTEXT_HTTP: "true"})
    assert [one.filename for one in told] == [__file__]


@pytest.mark.filterwarnings("error::ags1.kms.endpoints.InsecureEndpointWarning")
@pytest.mark.parametrize("kms_type", ENDPOINT)
@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", "https://kms.test"],
)
def test_an_emulator_on_this_machine_needs_no_tls(kms_type: str, url: str) -> None:
    client_at(kms_type, url)


def test_azure_never_goes_without_tls() -> None:
    pytest.importorskip("azure.keyvault.keys")
    for url in ("http://vault.test", "http://127.0.0.1:1"):
        given = {"azure.keyvault.url": url, ALLOW_PLAINTEXT_HTTP: "true"}
        with pytest.raises(KmsConfigurationError, match="https"):
            from_properties({"encryption.kms-type": "azure", **given})


# ---- secrets -----------------------------------------------------------------------------------

SECRET = [
    "kms.local.passphrase",
    "kms.vault.token",
    "kms.vault.secret-id",
    "encryption.kms.key.keyA",
    "Encryption.KMS.Key.keyA",
    "client.secret-access-key",
    "client.session-token",
    "gcs.oauth2.token",
    "KMS.Vault.TOKEN",
    # A catalog's own, when its properties are handed over whole.
    "token",
    "credential",
    "password",
    "s3.secret-access-key",
    "s3.session-token",
    "s3.sse.key",
    "adls.account-key",
    "adls.auth.shared-key.account.key",
    "adls.client-secret",
    "adls.connection-string",
    "adls.connection-string.account1",
    "adls.sas-token",
    "adls.sas-token.account1",
    "adls.token",
    "gcp.auth.credentials-json",
    "gcs.decryption-key",
    "gcs.encryption-key",
    "header.Authorization",
    "header.Cookie",
    "auth",
    "urn:ietf:params:oauth:token-type:jwt",
    "urn:ietf:params:oauth:token-type:saml2",
    "jdbc.password",
    "rest.auth.basic.password",
    "rest.secret-access-key",
    "client_secret",
    "fs.s3a.secret.key",
    "fs.azure.account.key.account1.dfs.core.windows.net",
]
NOT_SECRET = [
    "kms.local.keyring",
    "kms.local.passphrase-file",
    "kms.vault.url",
    "kms.vault.namespace",
    "kms.vault.mount-path",
    "kms.vault.auth",
    "kms.vault.token-file",
    "kms.vault.role-id",
    "kms.vault.secret-id-file",
    "kms.vault.auth-mount-path",
    "kms.vault.role",
    "kms.vault.jwt-file",
    "kms.vault.ca-cert",
    "kms.vault.verify",
    "kms.connect-timeout-ms",
    "kms.read-timeout-ms",
    "kms.max-attempts",
    "kms.endpoint",
    "kms.encryption-algorithm-spec",
    "kms.data-key-spec",
    "kms.gcp.endpoint",
    "client.region",
    "client.access-key-id",
    "client.profile-name",
    "client.assume-role.arn",
    "client.assume-role.external-id",
    "client.credentials-provider",
    "client.refresh-credentials-endpoint",
    "azure.keyvault.url",
    "azure.keyvault.key-wrap-algorithm",
    "encryption.kms-type",
    "encryption.kms-impl",
    "encryption.key-id",
    "encryption.data-key-length",
    "gcs.oauth2.token-expires-at",
    "gcp.auth.credentials-path",
    "adls.sas-token-expires-at-ms.account1",
    "s3.access-key-id",
    "tokens-per-second",
    "broken",
    "nontoken",
]


@pytest.mark.parametrize("name", SECRET)
def test_a_secret_is_neither_shown_nor_pickled(name: str) -> None:
    properties = Properties({name: "hunter2hunter2", "kms.endpoint": "http://127.0.0.1:1"})
    assert properties.secrets() == [name]
    assert "hunter2" not in repr(properties) + str(properties)
    assert "127.0.0.1" in repr(properties)
    with pytest.raises(TypeError, match=r"is not pickled") as caught:
        properties.to_pickle()
    assert name in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert properties.get(name) == "hunter2hunter2"


@pytest.mark.parametrize("name", NOT_SECRET)
def test_what_merely_looks_alike_travels(name: str) -> None:
    properties = Properties({name: "shown"})
    assert properties.secrets() == []
    assert "shown" in repr(properties)
    assert properties.to_pickle() == {name: "shown"}


@pytest.mark.parametrize(
    ("url", "is_secret"),
    [
        ("https://user:hunter2@vault.example.com:8200", True),
        ("postgresql+psycopg2://u:hunter2@db/catalog", True),
        ("http://:hunter2@proxy:3128", True),
        ("https://hunter2@vault.example.com:8200", True),
        ("jdbc:postgresql://db/catalog?user=u&password=hunter2", True),
        ("jdbc:sqlserver://db;user=u;password=hunter2", True),
        ("https://account.blob.core.windows.net/c?sv=2024&sig=hunter2", True),
        ("postgresql://user@host/db?sslmode=require&sslpassword=hunter2", True),
        ("https://bucket/x?X-Amz-Expires=9&X-Amz-Signature=hunter2", True),
        ("https://vault.example.com:8200", False),
        ("abfss://container@account.dfs.core.windows.net/warehouse", False),
        ("https://vault.example.com/?passwords=none&design=1", False),
        ("postgresql://user@db/catalog", False),
        ("thrift://one:9083,thrift://two:9083", False),
        ("https://example.com:443/path@version", False),
    ],
)
def test_a_password_in_a_url_is_a_secret(url: str, is_secret: bool) -> None:
    properties = Properties({"uri": url})
    assert properties.secrets() == (["uri"] if is_secret else [])
    assert ("hunter2" in repr(properties)) is False
    assert (url in repr(properties)) is not is_secret


def test_properties_themselves_are_not_pickled() -> None:
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(Properties({}))


def test_messages_never_quote_a_value() -> None:
    value = "hunter2" * 2
    properties = Properties({"p": value})
    for read in (
        lambda: properties.number("p", default=1),
        lambda: properties.flag("p", default=True),
        lambda: properties.choice("p", default="a", choices=["a"]),
        lambda: Properties({"p": [value]}),  # type: ignore[dict-item]
    ):
        with pytest.raises(KmsConfigurationError, match="'p'") as caught:
            read()
        assert value.encode() not in everything_said(caught.value)
